"""Rows of the ledger as typed values: what was written comes back equal, and what an older version left out has a
default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.contract import GroupLayout, Meaning, Phase, TensorSpec
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.coordinator.ledger import records
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import (
    DeclaredUpdate,
    FrozenStudy,
    HistoryPoint,
    LabelledOnlyResult,
    PhaseRow,
    task_row,
)
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from tests.coordinator.ledger_fixture import SILOS, digest, open_collecting_round, study_config

FROZEN = FrozenStudy(
    classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.25,)), num_labelled=4,
    num_validation=0, num_test=3, num_parameters=5, dense_bytes=20, num_frozen=7, frozen_digest="f", weights="w.pth",
    weights_digest="d", left_random=("head",), skipped=("x.txt: no image",), num_broken=0)
NUMERICS = NumericsRecord(device="cpu", torch="2", cpu_capability="AVX2", threads=1, deterministic=True)
BASELINE = LabelledOnlyResult(metrics={"accuracy": 0.5}, epochs=2, lr=0.1, batch_size=10, steps=1, num_labelled=4,
                              history=(HistoryPoint(1, 0.7, 0.5), HistoryPoint(2, 0.6, 0.5)))
PHASES = (Phase("train"), Phase("measure", asks="roster"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """With study s and round 0, which is open."""
    made = Ledger(tmp_path / "ledger.sqlite", waits=False)
    made.queue_study("s", study_config(rounds=3))
    made.open_round("s", 0, start_digest="", sample=("a", "b"), phases=PHASES)
    yield made
    made.close()


def test_a_study_comes_back_with_what_was_frozen(ledger: Ledger) -> None:
    before = ledger.study("s")
    assert (before.frozen, before.numerics, before.baseline, before.started_unix) == (None, None, None, None)
    assert (before.classes, before.dense_bytes) == ((), 0), "nothing was read yet"
    ledger.set_study_facts("s", frozen=FROZEN, numerics=NUMERICS, baseline=BASELINE)
    row = ledger.study("s")
    assert (row.frozen, row.numerics, row.baseline) == (FROZEN, NUMERICS, BASELINE)
    assert (row.classes, row.dense_bytes, row.state) == (("a", "b"), 20, StudyState.QUEUED)
    assert row.config == study_config(rounds=3)


def test_what_an_earlier_version_did_not_write_has_a_default(ledger: Ledger) -> None:
    ledger.query("UPDATE study SET frozen_json = ?", '{"classes":["a"],"dense_bytes":20,"image":{"channels":1,"mean":'
                 '[0.5],"size":8,"std":[0.25]},"num_labelled":4,"num_parameters":5,"num_test":3,"num_validation":0}')
    frozen = ledger.study("s").frozen
    assert frozen is not None
    assert (frozen.num_broken, frozen.num_frozen, frozen.skipped) == (None, 0, ())


def test_a_column_that_cannot_be_is_refused_by_its_key(ledger: Ledger) -> None:
    ledger.query("UPDATE study SET numerics_json = ?", '{"device":"cpu","surprise":1}')
    with pytest.raises(BadConfiguration, match="unknown key 'surprise'"):
        ledger.study("s")


def test_a_round_comes_back_with_its_phases_and_sample(ledger: Ledger) -> None:
    row = ledger.round("s", 0)
    assert row.phases == PHASES
    assert (row.sample, row.state, row.phase, row.metrics, row.closed_unix) == (
        ("a", "b"), RoundState.PREPARING, 0, {}, None)


def test_a_phase_comes_back_with_the_layouts_that_updates_must_have(ledger: Ledger) -> None:
    layout = GroupLayout(Meaning.DIFFERENCE, "ab", (TensorSpec("w", (2, 3), "float32"),))
    phase = PhaseRow(study="s", round=0, number=0, name="train", quorum=2, opened_unix=1.0, deadline_unix=2.0,
                     limit_unix=3.0, closed_unix=None, expects={"delta": layout})
    ledger.open_phase(phase, [])
    assert ledger.phase("s", 0, 0) == phase


def test_tasks_and_updates_come_back_as_they_were_declared(ledger: Ledger) -> None:
    ledger.set_round_state("s", 0, RoundState.CANCELLED)
    open_collecting_round(ledger, "s", 1, SILOS)
    task = ledger.tasks("s", 1, 0)[0]
    assert (task.silo, task.state, task.update_id, task.metrics) == (SILOS[0], TaskState.OPEN, None, {})
    raw, = ledger.query("SELECT * FROM task WHERE task_id = ?", task.task_id)
    assert task_row(raw) == task
    assert task_row(raw).spec is task_row(raw).spec, "a row that is read again and again is parsed once"
    update = DeclaredUpdate(update_id=digest("a")[:32], task_id=task.task_id, digest=digest("u"), size_bytes=100,
                            groups={"model": 64}, example_count=10, metrics={"loss": 1.0}, training_seconds=0.5,
                            declared_unix=1.0, accepted_unix=None, folded=False)
    ledger.declare_update(update)
    assert ledger.declared_update(update.update_id) == update
    header = update.header(SILOS[0])
    assert (header.silo, header.num_examples, header.metrics) == (SILOS[0], 10, {"loss": 1.0})


def test_a_task_that_was_remembered_is_the_one_that_is_read(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    open_collecting_round(ledger, "s", 1, SILOS)
    remembered = [task.spec for task in ledger.tasks("s", 1, 0)]
    monkeypatch.setattr(records, "_SPECS", {})
    read = [task.spec for task in ledger.tasks("s", 1, 0)]
    assert read == remembered
    assert repr(read) == repr(remembered), "also where types differ that are equal"
    assert read[0] is not remembered[0]
    assert ledger.tasks("s", 1, 0)[0].spec is read[0], "a second look parses nothing"


def test_only_so_many_tasks_are_remembered(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, object] = {}
    monkeypatch.setattr(records, "_SPECS", kept)
    monkeypatch.setattr(records, "_MOST_SPECS", 2)
    open_collecting_round(ledger, "s", 1, SILOS)
    assert len(SILOS) == 3
    assert len(kept) == 2
    assert [task.spec.silo for task in ledger.tasks("s", 1, 0)] == sorted(SILOS)
