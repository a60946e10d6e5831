"""SemiFL's silo half: labelling once per round, the two losses, abstentions, memory and the statistics phase."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, ComputeFailed, UnknownName
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.losses import pseudo_labels
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.numerics.passes import Descent
from semisilo.common.storage import checkpoint
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.semifl import SemiFLMemory, SemiFLTrainer
from tests.overflows import overflowing

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTED = "semifl_official"
"""A policy whose original, weak and strong views differ, also of images of 4 x 4 pixels."""


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int = 23) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, None, tuple(str(index) for index in range(count)))


def _statistics(build: Any, w: dict[str, Tensor], images: ImageSet) -> dict[str, Tensor]:
    model = build()
    tensors.load_into(model, w)
    generator = torch.Generator().manual_seed(1)
    return batch_norm.to_tensors(batch_norm.measure(model, images.images_NCHW, form=FORM, generator=generator))


def _task(build: Any = _net, *, round: int = 1, silo: str = "a", policy: Any = "none", groups: Any = None,
          phase: str = "train", progress: Any = None, **settings: Any) -> SiloTask:
    w = initial_model(build, 3)
    if groups is None:
        groups = {"model": TensorGroup(w), "batch_norm": TensorGroup(_statistics(build, w, _images()))}
    values = {"confidence_threshold": 0.0, "round_lr": 0.03, "local_epochs": 2, **settings}
    return SiloTask(study="s", round=round, rounds=5, phase=phase, silo=silo, seed=1, settings=SemiFLSettings(**values),
                    groups=groups, build_model=build, augmentation=AugmentationSettings(policy=policy), image=FORM,
                    progress=progress)


def _train(task: SiloTask, memory: SemiFLMemory | None = None, images: ImageSet | None = None) -> Any:
    return SemiFLTrainer().train(task, SiloData(unlabelled=_images() if images is None else images), memory)


@pytest.mark.parametrize("settings", [{}, {"joined_passes": True}, {"labelling": "batch", "mix_weight": 0.0}])
def test_a_batch_that_overflows_is_no_step_and_alone_means_abstaining(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]) -> None:
    """23 images in batches of 10, twice."""
    monkeypatch.setattr(Descent, "gradients", overflowing(2))
    assert _train(_task(**settings))[0].metrics["steps"] == 4
    assert "2 of 6 batches were skipped: gradients that overflow in fp16" in caplog.messages
    monkeypatch.setattr(Descent, "gradients", overflowing(6))
    update, memory = _train(_task(**settings))
    assert (update.abstention, memory) == ("no_usable_batch", None)


def _median_threshold(task: SiloTask) -> float:
    """A threshold that keeps some images and leaves others."""
    model = _net()
    tensors.load_into(model, task.groups["model"].tensors)
    batch_norm.load(model, task.groups["batch_norm"].tensors)
    logits = model.eval()(augment.to_input(_images().images_NCHW, FORM))
    return float(pseudo_labels(logits.detach(), 0.0).max_prob_B.median())


@pytest.mark.parametrize(("mix_weight", "fix_weight", "policy"), [
    (1.0, 1.0, "none"), (0.5, 2.0, "none"), (0.0, 1.0, "none"), (0.5, 2.0, AUGMENTED), (0.0, 1.0, AUGMENTED),
    (1.0, 0.0, AUGMENTED)])
def test_training_is_the_specified_sequence_of_steps(mix_weight: float, fix_weight: float, policy: str) -> None:
    """A plain reference: weak views labelled in evaluation mode, FIX shuffled, a partner from all images, two forward
    passes, the strong view and a mixture of weak ones, clip, weight decay, Nesterov; written with tensors only."""
    threshold = _median_threshold(_task())
    task = _task(confidence_threshold=threshold, mix_weight=mix_weight, fix_weight=fix_weight, policy=policy)
    update, memory = _train(task)
    images, augmentation = _images().images_NCHW, AugmentationSettings(policy=policy)
    views = torch_generator(1, "label_views", round=1, silo="a")
    x = augment.to_input(augment.weak(images, augmentation, views), FORM)
    model = _net()
    tensors.load_into(model, task.groups["model"].tensors)
    batch_norm.load(model, task.groups["batch_norm"].tensors)
    labels = pseudo_labels(model.eval()(x).detach(), threshold)
    kept = torch.nonzero(labels.keep_B).flatten()
    assert 0 < len(kept) < 23
    order, partner, views = (torch_generator(1, purpose, round=1, silo="a")
                             for purpose in ("local_order", "mix_index", "local_views"))
    lams = numpy_generator(1, "mixup", round=1, silo="a")
    buffers = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    model.train()
    for _ in range(2):
        fix = kept[torch.randperm(len(kept), generator=order)]
        other = torch.randint(23, (len(kept),), generator=partner)
        strong, weak, mixed = (
            augment.to_input(made(images[index], augmentation, views), FORM)
            for made, index in ((augment.strong, fix), (augment.weak, fix), (augment.weak, other)))
        for b in torch.arange(len(fix)).split(10):
            lam = float(lams.beta(0.75, 0.75))
            y_fix, y_mix = labels.hard_label_B[fix[b]], labels.hard_label_B[other[b]]
            log_p, log_p_mix = (torch.log_softmax(model(inputs), dim=1)
                                for inputs in (strong[b], lam * weak[b] + (1 - lam) * mixed[b]))
            row = torch.arange(len(b))
            loss = (-fix_weight * log_p[row, y_fix].mean() - mix_weight * (
                lam * log_p_mix[row, y_fix].mean() + (1 - lam) * log_p_mix[row, y_mix].mean()))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
            with torch.no_grad():
                for (name, w), gradient in zip(model.named_parameters(), gradients, strict=True):
                    g = gradient * min(1.0, 1.0 / (norm + 1e-6)) + 5e-4 * w
                    buffers[name] = 0.9 * buffers[name] + g
                    w -= 0.03 * (g + 0.9 * buffers[name])
    received = task.groups["model"].tensors
    for name, w in model.named_parameters():
        assert torch.allclose(update.groups["model"].tensors[name], w.detach() - received[name], atol=1e-5), name
        assert torch.allclose(memory.momentum[name], buffers[name], atol=1e-4), name
    assert update.metrics["label_ratio"] == pytest.approx(len(kept) / 23)
    assert update.metrics["steps"] == 2 * math.ceil(len(kept) / 10)


def _group_norm_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize(("build", "the_same"), [(_group_norm_net, True), (_net, False)])
def test_joined_passes_are_two_passes_but_for_batch_norm(build: Any, the_same: bool) -> None:
    apart, joined = (_train(_task(build, policy=AUGMENTED, fix_weight=2.0, joined_passes=each))[0]
                     for each in (False, True))
    near = [torch.allclose(tensor, joined.groups["model"].tensors[name], atol=1e-5)
            for name, tensor in apart.groups["model"].tensors.items()]
    assert all(near) is the_same
    if the_same:
        assert {name: joined.metrics[name] for name in ("loss", "fix_loss", "mix_loss")} == pytest.approx(
            {name: apart.metrics[name] for name in ("loss", "fix_loss", "mix_loss")}, abs=1e-5)


def test_joined_passes_are_refused_where_there_is_one() -> None:
    with pytest.raises(ValueError, match="one pass only"):
        SemiFLSettings(joined_passes=True, mix_weight=0.0)


def test_an_update_is_a_difference_to_the_received_model() -> None:
    task = _task()
    update, memory = _train(task)
    group = update.groups["model"]
    received = task.groups["model"].tensors
    assert set(update.groups) == {"model"}
    assert group.meaning is Meaning.DIFFERENCE
    assert group.base == tensors.digest(received)
    assert list(group.tensors) == list(received)
    assert update.num_examples == 23
    assert memory.round == 1
    assert list(memory.momentum) == list(received)


def test_without_a_learning_rate_nothing_moves() -> None:
    update, _ = _train(_task(round_lr=0.0))
    assert all(not tensor.any() for tensor in update.groups["model"].tensors.values())


def test_received_tensors_are_left_as_they_were() -> None:
    task = _task()
    before = tensors.digest(task.groups["model"].tensors)
    _train(task)
    assert tensors.digest(task.groups["model"].tensors) == before


def test_labels_come_from_the_received_statistics_not_from_the_batch() -> None:
    """Statistics that shift every feature far away turn all labels into one class with certainty."""
    task = _task()
    shifted = {"1.mean": torch.full((4,), -1e4), "1.var": torch.ones(4)}
    groups = {"model": task.groups["model"], "batch_norm": TensorGroup(shifted)}
    update, _ = _train(_task(groups=groups, confidence_threshold=0.999999, local_epochs=1))
    assert update.metrics["label_ratio"] == 1.0
    assert _train(_task(confidence_threshold=0.999999))[0].abstention == "no_confident_example"


def test_a_silo_without_confident_examples_abstains_and_keeps_its_memory() -> None:
    memory = SemiFLMemory(momentum={"x": torch.ones(1)}, round=4)
    update, kept = _train(_task(confidence_threshold=1.0), memory)
    assert update.abstention == "no_confident_example"
    assert update.groups == {}
    assert update.metrics == {"label_ratio": 0.0}
    assert kept is memory


@pytest.mark.parametrize("phase", ["train", "statistics"])
def test_a_silo_without_data_abstains(phase: str) -> None:
    for data in (SiloData(), SiloData(unlabelled=_images(0))):
        update, memory = SemiFLTrainer().train(_task(phase=phase), data, None)
        assert update.abstention == "no_data"
        assert memory is None


def test_a_single_confident_image_is_one_short_batch() -> None:
    update, _ = _train(_task(local_epochs=3), images=_images(1))
    assert update.metrics["steps"] == 3


def test_batches_that_batch_norm_cannot_use_are_skipped_and_a_silo_of_nothing_else_abstains() -> None:
    """21 images in batches of 10 leave one image, hence one value per channel, in every epoch."""
    update, _ = _train(_task(_flat_net), images=_images(21))
    assert update.metrics["steps"] == 4
    assert tensors.all_finite(update.groups["model"].tensors)
    alone, memory = _train(_task(_flat_net), images=_images(1))
    assert alone.abstention == "no_usable_batch"
    assert memory is None


def test_metrics_are_declared_finite_and_tell_the_truth_only_where_it_is_known() -> None:
    update, _ = _train(_task())
    histogram = {name for name in update.metrics if name.startswith("pseudo_labels/")}
    assert set(update.metrics) - histogram == {"label_ratio", "loss", "fix_loss", "mix_loss", "steps"}
    assert sum(update.metrics[name] for name in histogram) == 23, "threshold 0 keeps all"
    truth = replace(_images(), labels_N=torch.zeros(23, dtype=torch.int64))
    known, _ = _train(_task(), images=truth)
    check_metrics(METHODS["semifl"], known.metrics, update=True)
    assert {*METHODS["semifl"].metrics} - {"pseudo_labels/*"} <= set(known.metrics)
    assert all(math.isfinite(value) for value in known.metrics.values())
    assert known.metrics["threshold_accuracy"] == known.metrics["pseudo_label_accuracy"], "threshold 0 keeps all"


@pytest.mark.parametrize("policy", ["none", AUGMENTED])
def test_labels_per_batch_are_those_of_the_model_under_training(policy: str) -> None:
    """Table 2's per-batch labels, recomputed step by step for one epoch of SGD without momentum in whole batches."""
    changes: dict[str, Any] = {"labelling": "batch", "mix_weight": 0.0, "local_epochs": 1, "momentum": 0.0,
                               "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0}
    task = _task(policy=policy, **changes)
    update, _ = _train(task)
    model = _net()
    tensors.load_into(model, task.groups["model"].tensors)
    model.train()
    order, views = (torch_generator(task.seed, purpose, round=task.round, silo=task.silo)
                    for purpose in ("local_order", "local_views"))
    images, steps = _images().images_NCHW, 0
    for chosen in torch.split(torch.randperm(23, generator=order), task.settings.unlabelled_batch):
        weak = augment.weak(images[chosen], task.augmentation, views)
        strong = augment.strong(images[chosen], task.augmentation, views)
        with torch.no_grad():
            prob, label = torch.softmax(model(augment.to_input(weak, task.image)), 1).max(1)
        keep = prob >= task.settings.confidence_threshold
        if keep.any():
            loss = torch.nn.functional.cross_entropy(model(augment.to_input(strong[keep], task.image)), label[keep])
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= task.settings.round_lr * parameter.grad
            steps += 1
    assert update.metrics["steps"] == steps
    delta = tensors.subtract(tensors.parameters_of(model), task.groups["model"].tensors)
    for name, tensor in update.groups["model"].tensors.items():
        assert torch.allclose(tensor, delta[name], atol=1e-7), name


def test_with_labels_per_batch_nobody_abstains() -> None:
    update, _ = _train(_task(labelling="batch", mix_weight=0.0, confidence_threshold=1.0))
    assert not update.abstention
    assert update.metrics["label_ratio"] == 0.0
    assert all(not tensor.any() for tensor in update.groups["model"].tensors.values())


def test_true_labels_never_enter_the_training() -> None:
    truth = replace(_images(), labels_N=torch.arange(23) % 3)
    one, other = _train(_task())[0], _train(_task(), images=truth)[0]
    assert tensors.digest(one.groups["model"].tensors) == tensors.digest(other.groups["model"].tensors)


def _delta(memory: SemiFLMemory | None, **changes: Any) -> str:
    return tensors.digest(_train(_task(**changes), memory)[0].groups["model"].tensors)


def test_momentum_goes_on_from_the_last_accepted_participation() -> None:
    _, memory = _train(_task(round=1))
    fresh, kept = _delta(None, round=2), _delta(memory, round=2)
    assert kept != fresh
    assert _delta(memory, round=2, persist_local_momentum=False) == fresh


@pytest.mark.parametrize(("round", "kept"), [(3, True), (4, False)])
def test_momentum_older_than_the_limit_starts_anew(round: int, kept: bool) -> None:
    _, memory = _train(_task(round=1))
    limited = _delta(memory, round=round, momentum_max_age_rounds=2)
    assert (limited == _delta(memory, round=round)) is kept
    assert (limited == _delta(None, round=round)) is not kept


def test_memory_of_another_model_starts_anew() -> None:
    other = SemiFLMemory(momentum={"x": torch.ones(1)}, round=1)
    assert _delta(other, round=2) == _delta(None, round=2)


def test_memory_survives_the_disk(tmp_path: Path) -> None:
    _, memory = _train(_task())
    checkpoint.save(tmp_path / "memory", memory)
    assert _delta(checkpoint.load(tmp_path / "memory", SemiFLMemory), round=2) == _delta(memory, round=2)


def test_bits_follow_from_seed_round_and_silo_alone() -> None:
    torch.manual_seed(1)
    one = _delta(None, policy="small")
    torch.manual_seed(2)
    assert _delta(None, policy="small") == one
    assert _delta(None, policy="small", silo="b") != one
    assert _delta(None, policy="small", round=2) != one


def test_the_statistics_phase_measures_what_the_silo_holds_and_trains_nothing() -> None:
    """One batch: the closed form at the first layer, the convolution of the normalised images."""
    task = _task(phase="statistics", groups={"model": TensorGroup(initial_model(_net, 3))})
    memory = SemiFLMemory(momentum={}, round=1)
    update, kept = _train(task, memory)
    model = _net()
    tensors.load_into(model, task.groups["model"].tensors)
    hidden = model[0](augment.to_input(_images().images_NCHW, FORM)).detach()
    found = update.groups["batch_norm"]
    assert set(update.groups) == {"batch_norm"}
    assert found.meaning is Meaning.VALUES
    assert found.tensors["1.count"].tolist() == [23 * 4]
    assert torch.allclose(found.tensors["1.mean"], hidden.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(found.tensors["1.var"], hidden.var((0, 2, 3), correction=1), atol=1e-5)
    assert kept is memory
    assert update.num_examples == 23


def test_progress_rises_to_one_after_every_batch_and_may_abort() -> None:
    told: list[float] = []
    _train(_task(progress=lambda share, text: told.append(share)))
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert len(told) == 1 + 2 * 3

    class AbortedError(Exception):
        pass

    def abort(share: float, text: str) -> None:
        if share > 0.5:
            raise AbortedError

    with pytest.raises(AbortedError):
        _train(_task(progress=abort))


def test_divergence_is_an_error_not_an_update_of_nan() -> None:
    with pytest.raises(ComputeFailed, match="diverged at this silo in round 1"):
        _train(_task(round_lr=1e30, clip_norm=0.0))


def test_a_received_model_that_is_not_finite_labels_nothing() -> None:
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in _task().groups["model"].tensors.items()}
    groups = {"model": TensorGroup(broken), "batch_norm": _task().groups["batch_norm"]}
    assert _train(_task(groups=groups))[0].abstention == "no_confident_example"


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(BadPayload, match="no phase 'dance'"):
        _train(_task(phase="dance"))


def test_trainers_are_found_by_name() -> None:
    assert load_trainer("semifl") is SemiFLTrainer
    assert all(load_trainer(name).__name__ for name in METHODS)
    with pytest.raises(UnknownName, match="'semiflop'"):
        load_trainer("semiflop")
