"""A ledger with a study in it as the engine would leave it, made through the ledger's public methods."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import semisilo.coordinator.ledger.database as ledger_file_module
import semisilo.coordinator.ledger.ledger as ledger_module
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.methods.contract import ModelSettings, PayloadRef, Phase, TaskSpec
from semisilo.common.methods.numerics import Numerics, NumericsRecord
from semisilo.coordinator.federation.folder import Federation, create_federation
from semisilo.coordinator.ledger.costs import Cost, Direction, Kind, add_costs
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import DeclaredUpdate, FrozenStudy, LabelledOnlyResult, PhaseRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState

__all__ = ["DENSE_BYTES", "LABELLED_ONLY", "OVERHEAD", "PAYLOAD_DOWN", "PAYLOAD_UP", "SECONDS_PER_ROUND", "SILOS",
           "TEST_IMAGES", "WIRE_DOWN", "WIRE_UP", "Filled", "accuracy_after", "add_study", "answer", "confusion_after",
           "fill_study", "open_collecting_round", "open_federation_with_silos", "query_plan", "study_config"]

SILOS = ("clinic-north", "hospital-a", "hospital-b")
NUM_PARAMETERS = 23_258
DENSE_BYTES = 4 * NUM_PARAMETERS
LABELLED_ONLY = 0.7521
TEST_IMAGES = (36,) * 5 + (35,) * 5
"""Of each class."""
UNEVEN_ALONE = {"balanced_accuracy": 0.6173, "auroc": 0.8812, "recall/9": 0.7}
"""Of labels alone, beside `LABELLED_ONLY`."""
PHASE = "train"
PAYLOAD_UP = DENSE_BYTES + 700
PAYLOAD_DOWN = DENSE_BYTES + 500
WIRE_UP = PAYLOAD_UP + 1_900
WIRE_DOWN = PAYLOAD_DOWN + 1_500
OVERHEAD = 6_100
SECONDS_PER_ROUND = 4.0
PREPARATION_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Filled:
    """An open federation with its ledger."""

    federation: Federation
    ledger: Ledger
    roster: LedgerRoster


def study_config(*, rounds: int, test: bool = True) -> dict[str, Any]:
    """The settings of a study as the ledger keeps them."""
    return {"study": {"seed": 7, "rounds": rounds, "start_with": 3}, "model": {"name": "small_cnn"},
            "data": {"labelled": "data/labelled.npz", "test": "data/test.npz" if test else "",
                     "image": {"size": 8, "channels": 1}},
            "method": {"name": "semifl", "settings": {"confidence_threshold": 0.95, "local_epochs": 2, "lr": 0.03}},
            "participation": {"silos_per_round": "100%", "quorum": 2}}


def accuracy_after(number: int) -> float:
    """A curve that rises from 0.74 towards 0.94."""
    return round(0.94 - 0.2 * math.exp(-number / 4), 4)


def uneven_after(number: int) -> dict[str, float]:
    """What else a round of imbalanced images measures: a tenth below the accuracy, and falling in the last class."""
    return {"balanced_accuracy": round(accuracy_after(number) - 0.1, 4), "auroc": round(0.9 + 0.001 * number, 4),
            "recall/9": round(0.8 - 0.01 * number, 4)}


def confusion_after(number: int) -> tuple[tuple[int, ...], ...]:
    """As many right ones as `accuracy_after` says, nearly; every class is taken for the next one, 3 for 8 besides."""
    rows = []
    for label, images in enumerate(TEST_IMAGES):
        wrong = round(images * (1 - accuracy_after(number)))
        row = [0] * 10
        row[label] = images - wrong
        row[8 if label == 3 else (label + 1) % 10] += wrong
        rows.append(tuple(row))
    return tuple(rows)


def digest(text: str) -> str:
    """A digest-like name."""
    return hashlib.sha256(text.encode()).hexdigest()


def query_plan(ledger: Ledger, question: Callable[[], object]) -> list[str]:
    """How SQLite finds what a question asks of a ledger, step by step: "SEARCH task USING INDEX ...", "SCAN task"."""
    steps, query = list[str](), ledger.query

    def planned(sql: str, *values: Any) -> Any:
        steps.extend(row["detail"] for row in query(f"EXPLAIN QUERY PLAN {sql}", *values))
        return query(sql, *values)

    with mock.patch.object(ledger, "query", planned):
        question()
    return steps


def open_federation_with_silos(folder: Path, *, silos: tuple[str, ...] = SILOS, labelled: int = 0) -> Filled:
    """A federation whose silos have enrolled and joined; nothing is queued."""
    federation = create_federation(folder, name="lung-federation", address="hub.example:8443")
    ledger = Ledger(federation.ledger, waits=False)
    ledger.query("PRAGMA synchronous = OFF")  # no test here pulls the plug, and a disk flush is slow
    roster = LedgerRoster(ledger)
    with ledger.transaction() as db:  # one for all: each takes time
        for number, silo in enumerate(silos):
            token = hashlib.sha256(f"token {silo}".encode()).digest()
            roster.add_invitation(silo=silo, token_hash=token, expires_unix=4e9)
            roster.use_invitation(token, key_fingerprint=b"f" * 32, certificate_der=b"c", serial=number + 1,
                                  not_after_unix=4e9)
            roster.joined(silo, version="0.1.0", methods=("semifl",), labelled_count=labelled,
                          unlabelled_count=470 - labelled, memory_study="", memory_round=0)
        db.execute("UPDATE silo SET seen_unix = ?", (time.time() - 3600,))
    return Filled(federation, ledger, roster)


def fill_study(folder: Path, *, name: str = "first", rounds: int = 12, done: int | None = None, test: bool = True,
               silos: tuple[str, ...] = SILOS, collecting: bool = False, complete: bool = True,
               estimated: bool = False, labels_at_silo: bool = False, measure: str = "") -> Filled:
    """A study with `done` committed rounds. In round 3 the last silo abstains, in round 5 the first is late, in round 6
    the second refuses.

    Args:
        rounds: planned; `done` of them are over (all by default).
        collecting: opens one more round, in which the first silo has answered and the others work.
        complete: ends the study after its last round.
        labels_at_silo: 50 images of each silo have a label, and the coordinator has none.
        measure: the study's, where it is not the accuracy; rounds then have the numbers of `uneven_after` as well.
    """
    filled = open_federation_with_silos(folder, silos=silos, labelled=50 if labels_at_silo else 0)
    add_study(filled, name, rounds=rounds, done=rounds if done is None else done, test=test, silos=silos,
              collecting=collecting, complete=complete, estimated=estimated, labels_at_silo=labels_at_silo,
              measure=measure)
    return filled


def add_study(filled: Filled, name: str, *, rounds: int, done: int, test: bool = True, silos: tuple[str, ...] = SILOS,
              collecting: bool = False, complete: bool = False, estimated: bool = False, labels_at_silo: bool = False,
              measure: str = "") -> None:
    """One more study in that ledger, as `fill_study` has it."""
    clock = _Clock(time.time() - SECONDS_PER_ROUND * (done + (0.5 if collecting else 0)) - PREPARATION_SECONDS)
    fake = SimpleNamespace(time=clock.read)
    with mock.patch.object(ledger_module, "time", fake), mock.patch.object(ledger_file_module, "time", fake), \
            filled.ledger.transaction():
        _fill(filled.ledger, name, rounds, done, test=test, silos=silos, collecting=collecting, complete=complete,
              estimated=estimated, clock=clock, labels_at_silo=labels_at_silo, measure=measure)


def labelled_only(accuracy: float, **more: float) -> LabelledOnlyResult:
    """The line to beat, as round 0 writes it."""
    return LabelledOnlyResult(metrics={"accuracy": accuracy, **more}, epochs=400, lr=0.1, batch_size=10, steps=1200,
                              num_labelled=30, history=())


class _Clock:
    """What the ledger takes for the time, so that rounds last."""

    def __init__(self, unix: float) -> None:
        self.unix = unix

    def read(self) -> float:
        return self.unix


def _fill(ledger: Ledger, name: str, rounds: int, done: int, *, test: bool, silos: tuple[str, ...], collecting: bool,
          complete: bool, estimated: bool, clock: _Clock, labels_at_silo: bool, measure: str) -> None:
    ledger.queue_study(name, study_config(rounds=rounds, test=test))
    ledger.set_study_state(name, StudyState.PREPARING)
    ledger.set_study_facts(
        name, frozen=FrozenStudy(
            classes=tuple(str(label) for label in range(10)),
            image=ImageForm(size=8, channels=1, mean=(0.3,), std=(0.38,)), num_labelled=0 if labels_at_silo else 30,
            num_validation=0, num_test=355 if test else 0, num_parameters=NUM_PARAMETERS, dense_bytes=DENSE_BYTES,
            measure=measure, test_images=TEST_IMAGES if test else ()),
        numerics=NumericsRecord(device="cpu", torch="2.9.0", cpu_capability="AVX2", threads=1, deterministic=True),
        baseline=None if labels_at_silo or not test else
        labelled_only(LABELLED_ONLY, loss=0.9, **(UNEVEN_ALONE if measure else {})))
    ledger.open_round(name, 0, start_digest="", sample=(), phases=())
    metrics = {"accuracy": accuracy_after(0), "loss": 0.9} if test else {}
    clock.unix += PREPARATION_SECONDS
    ledger.set_round_state(name, 0, RoundState.EVALUATING, state_digest=digest("0"), metrics=metrics)
    ledger.commit_round(name, 0, metrics=metrics, confusion=confusion_after(0) if test and not measure else ())
    ledger.set_study_state(name, StudyState.WAITING)
    ledger.set_study_state(name, StudyState.RUNNING)
    add_costs(ledger, [Cost(study=name, round=0, phase="standby", silo="", direction=direction, kind="wire", item="tcp",
                            bytes=OVERHEAD // 2, estimated=estimated) for direction in ("down", "up")])
    for number in range(1, done + 1):
        open_collecting_round(ledger, name, number, silos)
        for index, silo in enumerate(silos):
            odd = {(3, len(silos) - 1): TaskState.ABSTAINED, (5, 0): TaskState.EXPIRED,
                   (6, 1): TaskState.REFUSED}.get((number, index), TaskState.UPDATED)
            answer(ledger, name, number, silo, odd, ratio=min(0.98, 0.35 + 0.05 * number + 0.04 * index),
                   estimated=estimated)
        clock.unix += SECONDS_PER_ROUND
        ledger.close_phase(ledger.phase(name, number, 0))
        ledger.folded(name, number, dict.fromkeys(silos))
        ledger.set_round_state(name, number, RoundState.EVALUATING, state_digest=digest(str(number)))
        ledger.commit_round(name, number, metrics={
            "accuracy": accuracy_after(number), **(uneven_after(number) if measure else {})} if test else {},
            confusion=confusion_after(number) if test and not measure else ())
    if collecting:
        open_collecting_round(ledger, name, done + 1, silos)
        answer(ledger, name, done + 1, silos[0], TaskState.UPDATED, ratio=0.9, estimated=estimated)
    if complete and not collecting:
        ledger.set_study_state(name, StudyState.COMPLETED)


def open_collecting_round(ledger: Ledger, name: str, number: int, silos: tuple[str, ...]) -> None:
    """Opens a round and its one phase."""
    row = ledger.open_round(name, number, start_digest=ledger.committed_digest(name), sample=silos,
                            phases=(Phase(PHASE),))
    phase = PhaseRow(study=name, round=number, number=0, name=PHASE, quorum=2, opened_unix=row.opened_unix,
                     deadline_unix=row.opened_unix + 1800, limit_unix=row.opened_unix + 172_800, closed_unix=None,
                     expects={})
    ledger.open_phase(phase, [TaskSpec(
        task_id=f"{name}/{number}/0-{PHASE}/{silo}", study=name, round=number, rounds=20, phase=PHASE, silo=silo,
        method="semifl", settings={}, model=ModelSettings(classes=("0", "1")),
        image=ImageForm(size=8, channels=1, mean=(0.3,), std=(0.4,)), augmentation=AugmentationSettings(),
        numerics=Numerics(), payloads=(PayloadRef(digest("model"), PAYLOAD_DOWN, ("model",)),), last_folded_round=0,
        seed=7) for silo in silos])


def answer(ledger: Ledger, name: str, number: int, silo: str, state: TaskState, *, ratio: float,
           estimated: bool = False) -> None:
    """One silo's answer with its costs; an expired task is left open for `close_phase` to expire."""
    task = ledger.task(f"{name}/{number}/0-{PHASE}/{silo}")
    assert task is not None
    costs: list[tuple[Direction, Kind, str, int]] = [
        ("down", "payload", "model", PAYLOAD_DOWN), ("down", "message", "DownloadPayload", PAYLOAD_DOWN + 900),
        ("down", "wire", "tcp", WIRE_DOWN), ("up", "wire", "tcp", 1_200), ("up", "message", "AwaitTask", 300)]
    metrics = {"label_ratio": ratio, "loss": 0.4}
    if state is TaskState.UPDATED:
        update = DeclaredUpdate(
            update_id=digest(f"{name}{number}{silo}")[:32], task_id=task.task_id, digest=digest(f"update {number}"),
            size_bytes=PAYLOAD_UP, groups={"model": DENSE_BYTES}, example_count=int(470 * ratio), metrics=metrics,
            training_seconds=1.5, declared_unix=task.opened_unix + 2, accepted_unix=None, folded=False)
        ledger.declare_update(update)
        ledger.accept_update(update, task)
        costs += [("up", "payload", "model", DENSE_BYTES), ("up", "payload", "manifest", PAYLOAD_UP - DENSE_BYTES),
                  ("up", "message", "SubmitUpdate", PAYLOAD_UP + 800), ("up", "wire", "tcp", WIRE_UP)]
    elif state is TaskState.ABSTAINED:
        ledger.close_task(task, state, reason="no_confident_example", metrics={"label_ratio": 0.0})
    elif state is TaskState.REFUSED:
        ledger.close_task(task, state, reason="METHOD_NOT_PERMITTED: silo.toml does not list semifl")
    add_costs(ledger, [Cost(study=name, round=number, phase=PHASE, silo=silo, direction=direction, kind=kind, item=item,
                            bytes=size, count=1, estimated=estimated and kind == "wire")
                       for direction, kind, item, size in costs])
