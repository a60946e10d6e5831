"""A Weights & Biases run for each study, written to a folder without a server, and read back as `wandb sync` does."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.config import from_dict
from semisilo.common.errors import BadConfiguration, Unreachable
from semisilo.coordinator.federation.tracking_table import TrackingSettings
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tracking import tracked_run
from semisilo.coordinator.tracking.follow import artefacts_of
from semisilo.coordinator.tracking.wandb_runs import WandbRuns
from tests.coordinator.ledger_fixture import LABELLED_ONLY, Filled, accuracy_after, fill_study
from tests.coordinator.tracking.test_tensorboard import commit
from tests.each_of import each_of
from tests.processes import PATIENCE_SECONDS

installed = pytest.mark.skipif(find_spec("wandb") is None, reason="the extra wandb is not installed")
pytestmark = pytest.mark.usefixtures("pictures_left_blank")


def runs_of(filled: Filled) -> WandbRuns:
    return WandbRuns(filled.ledger, "lungs", mode="offline", folder=filled.federation.folder,
                     federation="lung-federation")


def tell(filled: Filled) -> int:
    """As a process that has just started would."""
    runs = runs_of(filled)
    try:
        return runs.catch_up("first", artefacts=artefacts_of(filled.federation, filled.ledger))
    finally:
        runs.close()


def written(content: bytes) -> Iterator[bytes]:
    """The records of W&B's file: a head of 7 bytes, then LevelDB's log format in blocks of 32 kB."""
    at, block, so_far = 7, 32768, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<4xHB", content, at)
        so_far += content[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, last
            yield so_far
            so_far = b""


def records(filled: Filled) -> list[Any]:
    """Every record of every run, in order of time; of runs that were closed, whose files W&B may write a moment
    later."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted((filled.federation.folder / "wandb").glob("offline-run-*/run-*.wandb")):
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            run = [wandb_internal_pb2.Record.FromString(data) for data in written(path.read_bytes())]
            if any(record.WhichOneof("record_type") == "exit" for record in run):
                break
            assert time.monotonic() < end, path
            time.sleep(0.05)
        found += run
    return found


def history(filled: Filled, name: str) -> list[tuple[int, float]]:
    found = []
    for record in records(filled):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if name in items:
                found.append((items["_step"], items[name]))
    return found


@installed
@pytest.mark.slow  # quickly: what settings say, below. W&B starts a process of its own for each of ours.
def test_a_study_is_one_run_whatever_is_restarted_with_every_round_once_and_its_files(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=5, done=3, complete=False)
    assert tell(filled) == 4
    assert tell(filled) == 0
    curve = history(filled, "model/accuracy")
    assert curve == [(step, pytest.approx(accuracy_after(step))) for step in range(4)]
    begun = [record.run for record in records(filled) if record.WhichOneof("record_type") == "run"]
    assert {(run.project, run.display_name, run.run_group) for run in begun} == {("lungs", "first", "lung-federation")}
    assert {run.host for run in begun} == {"lung-federation"}, "the name of the machine is nobody's business"
    assert not list((filled.federation.folder / "wandb").rglob("requirements.txt")), "nor what is installed there"
    settings = {item.key: json.loads(item.value_json) for item in begun[0].config.update}
    assert settings["method.settings.confidence_threshold"] == "0.95"
    known = tracked_run(filled.ledger, "first", runs_of(filled).target)
    assert known is not None
    assert {run.run_id for run in begun} == {known.run}
    assert (known.last_round, known.complete) == (3, False)


@installed
@pytest.mark.slow
def test_a_study_that_goes_back_goes_on_in_another_run_and_the_one_before_says_so(tmp_path: Path) -> None:
    """W&B takes no earlier step: rounds that were done again went nowhere."""
    filled = fill_study(tmp_path / "fed", rounds=5, done=3, complete=False)
    runs = runs_of(filled)
    runs.catch_up("first", artefacts=artefacts_of(filled.federation, filled.ledger))
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    roll_back(filled.ledger, "first", 2, operator="mona", reason="noise")
    assert runs.catch_up("first", artefacts=artefacts_of(filled.federation, filled.ledger)) == 3
    for state in (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING):
        filled.ledger.set_study_state("first", state)
    commit(filled, 3)
    assert runs.catch_up("first", artefacts=artefacts_of(filled.federation, filled.ledger)) == 1
    runs.close()
    found = records(filled)
    begun = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    assert {run.display_name for run in begun} == {"first", "first (2)"}
    assert len({run.run_id for run in begun}) == 2
    expected = [(number, accuracy_after(number)) for number in range(4)]
    assert sorted(history(filled, "model/accuracy")) == [
        (step, pytest.approx(value)) for step, value in sorted([*expected, *expected[:3], (3, 0.5)])]
    said = [json.loads(item.value_json) for record in found if record.WhichOneof("record_type") == "summary"
            for item in record.summary.update if item.key == "reason"]
    assert said
    assert said[0].endswith("(mona): round 3 no longer counts; noise")


@installed
@pytest.mark.slow
def test_after_a_restore_rounds_that_are_done_again_go_to_another_run(tmp_path: Path) -> None:
    """W&B takes no earlier step: of the rounds that were done again it kept the lost ones."""
    filled = fill_study(tmp_path / "fed", rounds=5, done=3, complete=False)
    tell(filled)
    filled.ledger.event("restored", backup_made_unix=1_790_000_000.0, invitations_withdrawn=0)
    assert tell(filled) == 0
    commit(filled, 4)
    assert tell(filled) == 5
    begun = {(record.run.run_id, record.run.display_name) for record in records(filled)
             if record.WhichOneof("record_type") == "run"}
    assert {name for _, name in begun} == {"first", "first (2)"}
    assert len(begun) == 2


@installed
@pytest.mark.slow
def test_a_study_that_is_over_has_its_line_its_state_and_its_artefacts(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2, done=2, complete=True)
    assert tell(filled) == 3
    found = records(filled)
    kinds = [record.WhichOneof("record_type") for record in found]
    named = [record.artifact.name for record in found if record.WhichOneof("record_type") == "artifact"] + [
        record.request.log_artifact.artifact.name for record in found
        if record.WhichOneof("record_type") == "request" and record.request.HasField("log_artifact")]
    assert any(name.startswith("lung-federation-first-report") for name in named), kinds
    summary = {}
    for record in found:
        if record.WhichOneof("record_type") == "summary":
            summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.summary.update}
    assert summary["state"] == "completed"
    assert summary["model/labelled_only_accuracy"] == pytest.approx(LABELLED_ONLY)
    known = tracked_run(filled.ledger, "first", runs_of(filled).target)
    assert known is not None
    assert known.complete
    assert tell(filled) == 0


def test_what_weights_and_biases_raises_is_one_line_and_the_rounds_are_told_later(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2, done=1, complete=False)

    def broken(*arguments: Any) -> None:
        raise RuntimeError("no such\x1b[31m server")

    monkeypatch.setattr(WandbRuns, "_tell", broken)
    with pytest.raises(Unreachable, match=r"Weights & Biases \(offline\) cannot be told: no such.*server") as caught:
        runs_of(filled).catch_up("first", artefacts=lambda study, folder: ())
    assert "\x1b" not in caught.value.line()
    known = tracked_run(filled.ledger, "first", runs_of(filled).target)
    assert known is not None
    assert known.last_round == -1


@each_of("project", ["../x", "a b", "https://wandb.example", "-x", "x" * 129])
def test_a_project_is_a_plain_name(project: str) -> None:
    with pytest.raises(BadConfiguration, match="write the name of a project"):
        from_dict(TrackingSettings, {"wandb": project})
    assert TrackingSettings(wandb="lungs").any
