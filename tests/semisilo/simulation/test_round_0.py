"""Simulated self-training starts from labels alone, with every engine and after a kill with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.learning import averaged_training
from semisilo.common.storage import checkpoint
from semisilo.coordinator.compute import start_work
from semisilo.coordinator.compute.labels_alone import LabelsAlone
from semisilo.coordinator.compute.labels_alone_model import LabelsAloneModel
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import LABELS_ALONE_MODEL, StudyRow
from semisilo.coordinator.rounds import labels_alone as slices
from semisilo.coordinator.strategies.self_training import SelfTrainingState
from semisilo.simulation import SimulationResult, run
from tests.semisilo.studies import study

pytestmark = pytest.mark.usefixtures("pictures_left_blank")


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels alone take 24 steps in the place of 600 and more."""
    monkeypatch.setattr(averaged_training, "_MOST_STEPS", 24)
    monkeypatch.setattr(averaged_training, "_MOST_EPOCHS", 0)


def tables(scenario: str = "labels-at-coordinator", **changes: Any) -> dict[str, Any]:
    found = study("self_training", scenario, study={"labelled_only_baseline": True}, **changes)
    del found["method"]["warm_up_steps"]
    return found


def facts(result: SimulationResult) -> tuple[StudyRow, list[str], str, str]:
    """The study, the kinds of its events in order, the digests of its first and its last state."""
    ledger = Ledger(result.folder / "ledger.sqlite", waits=False)
    try:
        row = ledger.study(result.study)
        kinds = [each["kind"] for each in ledger.query("SELECT kind FROM event ORDER BY number")]
        rounds = ledger.rounds(result.study)
        return row, kinds, rounds[0].state_digest, rounds[-1].state_digest
    finally:
        ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["labels-at-coordinator", "labels-at-both"])
def test_round_0_is_the_model_of_labels_alone_and_nothing_of_them_is_left_for_later(tmp_path: Path,
                                                                                  scenario: str) -> None:
    result = run(tables(scenario), out=tmp_path / "run", engine="process", device="cpu")
    row, kinds, first, last = facts(result)
    assert row.baseline is not None
    assert kinds.index("study_baseline") < kinds.index("round_completed")
    assert kinds.index("study_baseline") < kinds.index("round_completed")
    assert kinds.count("study_baseline") == 1
    folder = result.folder / "studies" / result.study
    alone = checkpoint.load(folder / LABELS_ALONE_MODEL, LabelsAloneModel)
    state = checkpoint.load(folder / "states" / f"{first}.safetensors", SelfTrainingState)
    assert list(state.w) == list(alone.parameters)
    assert all(torch.equal(state.w[name], tensor) for name, tensor in alone.parameters.items())
    assert last != first


@pytest.mark.slow
def test_every_engine_and_a_kill_while_they_are_trained_give_the_same_bits(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    expected = facts(run(tables(), out=tmp_path / "undisturbed", engine="process", device="cpu"))
    processes = facts(run(tables(), out=tmp_path / "processes", engine="processes", device="cpu"))
    assert processes[0].baseline == expected[0].baseline
    assert processes[2:] == expected[2:]
    monkeypatch.setattr(start_work, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(start_work, "_SAVING_SHARE", 1e9)
    monkeypatch.setattr(slices, "_SLICE_SECONDS", 0.0)
    work, worked = LabelsAlone.work, list[float]()

    def until_killed(self: Any, seconds: float) -> None:
        worked.append(seconds)
        if len(worked) in (15, 40):
            raise Killed
        work(self, seconds)

    monkeypatch.setattr(LabelsAlone, "work", until_killed)
    for _ in range(2):
        with pytest.raises(Killed):
            run(tables(), out=tmp_path / "killed", engine="process", device="cpu")
    killed = facts(run(tables(), out=tmp_path / "killed", engine="process", device="cpu"))
    assert len(worked) > 45
    assert killed[0].baseline == expected[0].baseline
    assert killed[2:] == expected[2:]
