"""A silo measures its number of threads once, and keeps to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.models.factory import model_builder
from semisilo.common.numerics.thread_count import TrainingStep
from semisilo.silo.compute import threads
from semisilo.silo.compute.threads import measured_threads

FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
TASK = TaskSpec(
    task_id="t", study="s", round=1, rounds=1, phase="train", silo="a", method="semifl", settings={},
    model=ModelSettings(classes=("a", "b")), image=FORM, augmentation=AugmentationSettings(), numerics=Numerics(),
    payloads=(), last_folded_round=0, seed=1, deadline_unix=0.0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the measurements that come will say; empty when all were made."""
    given = [2, 1, 4]

    def fastest_threads(step: TrainingStep, *, processors: int) -> int:
        return given.pop(0)

    monkeypatch.setattr(threads, "fastest_threads", fastest_threads)
    return given


def _threads(file: Path, task: TaskSpec = TASK, *, processors: int = 4, passes: int = 2) -> int:
    return measured_threads(task, model_builder(task.model, task.image), batch=10, passes=passes,
                            processors=processors, file=file)


def test_it_is_measured_once_and_kept(tmp_path: Path, answers: list[int]) -> None:
    file = tmp_path / "threads.json"
    assert [_threads(file) for _ in range(3)] == [2, 2, 2]
    assert answers == [1, 4]


def test_another_network_machine_or_precision_is_measured_by_itself(tmp_path: Path, answers: list[int]) -> None:
    file = tmp_path / "threads.json"
    assert _threads(file) == 2
    assert _threads(file, processors=8) == 1
    assert _threads(file, replace(TASK, numerics=Numerics(precision="bf16"))) == 4
    assert [_threads(file), _threads(file, processors=8)] == [2, 1], "the first ones still stand"


def test_a_damaged_file_is_written_anew(tmp_path: Path, answers: list[int]) -> None:
    file = tmp_path / "threads.json"
    file.write_text("{")
    assert _threads(file) == 2
    assert _threads(file) == 2
