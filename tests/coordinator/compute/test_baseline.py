"""The labelled-only line: the paper's settings, reproducible, and honest about what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData, ComputeFailed
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.training import cosine_lr
from semisilo.common.methods.contract import CoordinatorData, Environment
from semisilo.coordinator.compute import baseline, labels_alone
from semisilo.coordinator.compute.baseline import PaperLabelsAlone, PaperRecipe
from tests.each_of import each_of
from tests.labels_alone import train_labelled_only

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), StaticBatchNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))


def _halves(count: int, seed: int) -> ImageSet:
    """Class 0 is bright on the left, class 1 on the right, under noise: a net that learns tells them apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    pixels = torch.randint(0, 120, (count, 1, 4, 4), generator=generator)
    for index, label in enumerate(labels.tolist()):
        pixels[index, 0, :, 2 * label : 2 * label + 2] += 130
    return ImageSet(pixels.to(torch.uint8), labels, tuple(map(str, range(count))))


def _environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "seed": 1, "rounds": 1, "num_silos": 1, "build_model": _net, "image": FORM,
        "augmentation": AugmentationSettings(policy="none"),
        "data": CoordinatorData(labelled=_halves(20, 0), test=_halves(101, 1))}
    return Environment(**{**values, **changes})


def test_it_learns_what_the_labels_teach_and_reports_the_last_epoch() -> None:
    told: list[float] = []
    found = train_labelled_only(_environment(progress=lambda share, text: told.append(share)), epochs=40)
    assert found.evaluation.count == 101
    assert found.evaluation.accuracy > 0.95
    assert [point.epoch for point in found.history] == list(range(2, 41, 2))
    assert found.history[-1].accuracy == found.evaluation.accuracy
    assert (found.epochs, found.steps, found.lr) == (40, 80, 0.1)
    assert told[-1] == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "batch"), [(20, 10), (1000, 10), (1001, 250)])
def test_batches_are_the_papers(labels: int, batch: int) -> None:
    data = CoordinatorData(labelled=_halves(labels, 0), test=_halves(4, 1))
    assert train_labelled_only(_environment(data=data), epochs=1).batch_size == batch


def test_the_same_seed_gives_the_same_line_whatever_the_global_generator() -> None:
    lines = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        lines.append(train_labelled_only(_environment(), epochs=3))
    assert lines[0] == lines[1]
    assert train_labelled_only(_environment(seed=2), epochs=3) != lines[0]


@each_of("data", [
    CoordinatorData(test=_halves(4, 0)), CoordinatorData(labelled=_halves(4, 0)),
    CoordinatorData(labelled=_halves(4, 0).without_labels(), test=_halves(4, 0)),
    CoordinatorData(labelled=_halves(4, 0), test=_halves(0, 0))])
def test_without_labelled_or_test_images_it_is_refused(data: CoordinatorData) -> None:
    with pytest.raises(BadData, match="labelled-only line needs"):
        train_labelled_only(_environment(data=data), epochs=1)


# In slices ------------------------------------------------------------------------------------------------------------


def _net_that_draws() -> nn.Module:
    """With dropout, so that torch's global generator matters, and batch-norm."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), StaticBatchNorm(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
                         nn.Linear(32, 2))


def _drawing(count: int, **changes: Any) -> Environment:
    data = CoordinatorData(labelled=_halves(count, 0), validation=_halves(30, 2), test=_halves(101, 1))
    return _environment(build_model=_net_that_draws, augmentation=AugmentationSettings(), data=data, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("count", [23, 1300])  # batches of 10 in one block of views; of 250 in two, the last one short
def test_left_after_any_batch_and_gone_on_with_in_memory_or_by_another_process_the_bits_are_those_of_one_run(
        count: int, tmp_path: Path) -> None:
    environment, recipe, file = _drawing(count), PaperRecipe(epochs=4), tmp_path / "alone.safetensors"
    whole = train_labelled_only(environment, epochs=4)
    alone, lives = PaperLabelsAlone(environment, recipe, file=file), 1
    for slice_ in range(200):
        torch.manual_seed(slice_)  # what others draw meanwhile
        before = torch.random.get_rng_state()
        alone.work(0.0)
        assert torch.equal(torch.random.get_rng_state(), before)
        if alone.found is not None:
            break
        if slice_ % 3 == 0:
            alone.save()
        if slice_ % 11 == 10:  # killed: what was not saved is done again
            alone, lives = PaperLabelsAlone(environment, recipe, file=file), lives + 1
    assert lives > 2
    assert alone.found == whole
    assert len(whole.history) == 4


def test_a_file_of_other_settings_or_of_another_version_is_begun_again(tmp_path: Path) -> None:
    environment, file = _drawing(23), tmp_path / "alone.safetensors"
    alone = PaperLabelsAlone(environment, PaperRecipe(epochs=4), file=file)
    alone.work(0.0)
    alone.save()
    assert PaperLabelsAlone(environment, PaperRecipe(epochs=4), file=file).fraction > 0
    assert PaperLabelsAlone(environment, PaperRecipe(epochs=5), file=file).fraction == 0
    assert PaperLabelsAlone(_drawing(24), PaperRecipe(epochs=4), file=file).fraction == 0
    file.write_bytes(b"{}")
    assert PaperLabelsAlone(environment, PaperRecipe(epochs=4), file=file).fraction == 0


class _Clock:
    """Time that passes by itself, so much at every look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def test_a_budget_ends_it_with_the_epochs_that_fit_and_the_learning_rate_has_come_down(
        monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(0.5)
    monkeypatch.setattr(labels_alone, "time", clock)
    rates: list[tuple[int, int]] = []

    def noted(lr: float, *, round: int, rounds: int) -> float:
        rates.append((round, rounds))
        return cosine_lr(lr, round=round, rounds=rounds)

    monkeypatch.setattr(baseline, "cosine_lr", noted)
    alone = PaperLabelsAlone(_drawing(23), PaperRecipe(epochs=400, budget_seconds=120.0))
    alone.work(float("inf"))
    found = alone.found
    assert found is not None
    assert (found.ended, found.asked) == ("budget", 400)
    assert 10 < found.epochs < 100
    assert clock.now < 150
    assert rates[0] == (1, 400)
    last, planned = rates[-1]
    assert planned == alone.planned < 100
    assert last / planned > 0.9, "the cosine ends with the budget"
    assert found.history[-1].epoch == found.epochs
    assert found.history[-1].accuracy == found.evaluation.accuracy


def test_a_budget_that_is_spent_within_the_first_epoch_still_gives_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_alone, "time", _Clock(10.0))
    alone = PaperLabelsAlone(_drawing(60), PaperRecipe(epochs=4, budget_seconds=15.0))
    alone.work(float("inf"))
    assert alone.found is not None
    assert (alone.found.ended, alone.found.epochs, alone.found.asked) == ("budget", 0, 4)
    assert 0 < alone.found.steps < 6
    assert [point.epoch for point in alone.found.history] == [0]


def test_a_budget_that_is_not_spent_changes_no_bits() -> None:
    alone = PaperLabelsAlone(_drawing(23), PaperRecipe(epochs=3, budget_seconds=1e6))
    alone.work(float("inf"))
    assert alone.found == train_labelled_only(_drawing(23), epochs=3)


@pytest.mark.parametrize(("patience", "ended", "epochs"), [(0, "epochs", 20), (3, "flat", None)])
def test_it_ends_when_the_accuracy_on_validation_images_rises_no_more(
        patience: int, ended: str, epochs: int | None) -> None:
    data = CoordinatorData(labelled=_halves(20, 0), test=_halves(101, 1), validation=_halves(40, 3))
    alone = PaperLabelsAlone(_environment(data=data), PaperRecipe(epochs=20, patience=patience))
    alone.work(float("inf"))
    assert alone.found is not None
    assert alone.found.ended == ended
    assert alone.found.epochs == epochs if epochs else 3 < alone.found.epochs < 20
    assert alone.found.history[-1].epoch == alone.found.epochs


@pytest.mark.slow
def test_gone_on_with_from_any_step_patience_ends_it_at_the_same_epoch(tmp_path: Path) -> None:
    """Also from between the test and the validation images of one epoch: a point of the history that stood already
    would be taken for both."""
    data = CoordinatorData(labelled=_halves(20, 0), test=_halves(101, 1), validation=_halves(40, 3))
    environment, recipe, file = _environment(data=data), PaperRecipe(epochs=20, patience=3), tmp_path / "alone"
    whole, alone, steps = PaperLabelsAlone(environment, recipe), PaperLabelsAlone(environment, recipe, file=file), 0
    whole.work(float("inf"))
    while alone.found is None:
        alone.work(0.0)
        if alone.found is None:
            alone.save()
            resumed, steps = PaperLabelsAlone(environment, recipe, file=file), steps + 1
            resumed.work(float("inf"))
            assert resumed.found == whole.found
    assert alone.found == whole.found
    assert steps > 4 * 4


def test_how_long_it_will_take_is_known_after_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_alone, "time", _Clock(1.0))
    alone = PaperLabelsAlone(_drawing(20), PaperRecipe(epochs=100))
    assert alone.seconds_left is None
    alone.work(0.0)
    assert alone.fraction == pytest.approx(0.005)
    assert alone.seconds_left is not None
    assert alone.seconds_left == pytest.approx(199 * alone._seconds)


def test_a_line_that_diverges_is_an_error() -> None:
    alone = PaperLabelsAlone(_environment(), PaperRecipe(epochs=3, lr=float("nan")))
    with pytest.raises(ComputeFailed, match="on labels only"):
        alone.work(float("inf"))
    assert alone.found is None
