"""Every method's silo half with the settings against imbalance: what it labels and learns.

The equations are written out again in numpy. The learning rate is 0, so that the model stays as it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload
from semisilo.common.learning.imbalance.labels import class_balanced_order
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.soft_labels import soft_labels
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup
from semisilo.common.models.factory import initial_model
from semisilo.silo.trainers import load_trainer
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
TARGET = (0.2, 0.3, 0.5)
HINTS: dict[str, Any] = {"labelled_confidence": 0.6, "labelled_class_confidence": (0.5, 0.25, 0.4)}
"""With tau = 0.9: 0.54; by class 0.54, 0.27, 0.432."""


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int, seed: int, labels: Tensor | None = None) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, labels, tuple(str(index) for index in range(count)))


UNLABELLED = _images(37, 1)
LABELLED = _images(12, 2, torch.tensor([0] * 8 + [1] * 3 + [2]))


def _weights(scale: float = 3.0) -> dict[str, Tensor]:
    return {name: tensor * scale for name, tensor in initial_model(_net, 3).items()}


def _task(method: str, scenario: str = "labels-at-coordinator", **settings: Any) -> SiloTask:
    w = _weights()
    zero = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    groups = {"model": TensorGroup(w), "sigma": TensorGroup(w), "psi": TensorGroup(zero)}
    names = {"semifl": ("model",), "fedmix": ("model", "sigma"), "fedmatch": ("sigma", "psi"), "fedavg": ("model",),
             "fed_shvr": ("model",)}
    rate = {} if method == "fed_shvr" else {"round_lr": 0.0}
    made = METHODS[method].settings(**{"local_epochs": 1, "scenario": scenario, **rate, **settings})
    return SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, settings=made,
                    groups={name: groups[name] for name in names[method]}, build_model=_net, image=FORM,
                    augmentation=AugmentationSettings(policy="none"))


def _metrics(task: SiloTask, method: str, labelled: ImageSet | None = None) -> Mapping[str, float]:
    update, _ = load_trainer(method)().train(task, SiloData(labelled=labelled, unlabelled=UNLABELLED), None)
    return update.metrics


def _p(images: ImageSet) -> NDArray[np.float64]:
    """Softmax of the linear network, in numpy."""
    w = {name: tensor.double().numpy() for name, tensor in _weights().items()}
    x = augment.to_input(images.images_NCHW, FORM).double().flatten(1).numpy()
    f = np.exp(x @ w["1.weight"].T + w["1.bias"])
    return f / f.sum(axis=1, keepdims=True)


def _aligned(p: NDArray[np.float64], mean: NDArray[np.float64], strength: float = 1.0) -> NDArray[np.float64]:
    raised = p * (np.array(TARGET) / mean) ** strength
    return raised / raised.sum(axis=1, keepdims=True)


def _by_batches(order: list[Tensor], strength: float = 1.0) -> NDArray[np.float64]:
    """Aligned probabilities, in the order of the batches, with the arithmetic mean of the batches' means so far."""
    parts, means = [], []
    for index in order:
        p = _p(UNLABELLED.subset(index.numpy()))
        means.append(p.mean(axis=0))
        parts.append(_aligned(p, np.mean(means, axis=0), strength))
    return np.concatenate(parts)


def _kept(p: NDArray[np.float64], threshold: Any) -> tuple[float, dict[str, float]]:
    label = p.argmax(axis=1)
    keep = p.max(axis=1) >= np.broadcast_to(np.asarray(threshold, dtype=np.float64), 3)[label]
    counts = np.bincount(label[keep], minlength=3)
    return float(keep.mean()), {f"pseudo_labels/{index}": float(count) for index, count in enumerate(counts) if count}


def _check(metrics: Mapping[str, float], p: NDArray[np.float64], threshold: Any) -> None:
    ratio, counts = _kept(p, threshold)
    assert metrics["label_ratio"] == pytest.approx(ratio)
    assert {name: value for name, value in metrics.items() if name.startswith("pseudo_labels/")} == counts
    plain_ratio, plain = _kept(_p(UNLABELLED), 0.9)
    assert (plain_ratio, plain) != (ratio, counts), "the settings must do something here"


STATED = {"distribution_alignment": "stated", "class_prior": TARGET}
THRESHOLDS = [("relative", 0.54), ("class_relative", (0.54, 0.27, 0.432))]


def _order(batch: int, purpose: str = "local_order") -> list[Tensor]:
    generator = torch_generator(1, purpose, round=1, silo="a")
    return list(torch.split(torch.randperm(len(UNLABELLED), generator=generator), batch))


@pytest.mark.parametrize(("kind", "threshold"), THRESHOLDS)
def test_semifl_labels_once_a_round_aligned_by_the_mean_over_all_images(kind: str, threshold: Any) -> None:
    p = _p(UNLABELLED)
    plain = _metrics(_task("semifl", confidence_threshold=0.9, thresholds=kind, **HINTS), "semifl")
    _check(plain, p, threshold)
    aligned = _aligned(p, p.mean(axis=0), 0.5)
    found = _metrics(_task("semifl", confidence_threshold=0.9, thresholds=kind, alignment_strength=0.5, **STATED,
                           **HINTS), "semifl")
    _check(found, aligned, threshold)


def test_semifl_labels_batch_by_batch_with_a_running_mean() -> None:
    settings = {"labelling": "batch", "mix_weight": 0.0, "unlabelled_batch": 10, "confidence_threshold": 0.6}
    _check(_metrics(_task("semifl", **settings, **STATED), "semifl"), _by_batches(_order(10)), 0.6)


@pytest.mark.parametrize("method", ["fedmix", "fedmatch"])
@pytest.mark.parametrize(("kind", "threshold"), THRESHOLDS)
def test_fedmix_and_fedmatch_align_with_a_running_mean_over_the_batches(method: str, kind: str, threshold: Any) -> None:
    settings = {"unlabelled_batch": 10, "confidence_threshold": 0.9, "thresholds": kind, **HINTS, **STATED}
    if method == "fedmix":
        settings |= {"num_views": 2}
    _check(_metrics(_task(method, **settings), method), _by_batches(_order(10)), threshold)


@pytest.mark.parametrize("objective", ["fixmatch", "uda"])
def test_fixmatch_and_uda_align_with_a_running_mean_over_the_batches(objective: str) -> None:
    settings = {"objective": objective, "unlabelled_batch": 10, "confidence_threshold": 0.9, "steps_rule": "fed_shvr",
                "thresholds": "class_relative", **HINTS, **STATED}
    generator = torch_generator(1, "unlabelled_order", round=1, silo="a")
    order = list(torch.split(torch.randperm(len(UNLABELLED), generator=generator), 10))[:3]  # floor(37 / 10) steps
    p = _by_batches(order)
    ratio, counts = _kept(p, (0.54, 0.27, 0.432))
    metrics = _metrics(_task("fedavg", **settings), "fedavg")
    assert metrics["label_ratio"] == pytest.approx(ratio)
    assert {name: value for name, value in metrics.items() if name.startswith("pseudo_labels/")} == counts


def test_pseudo_labels_of_a_round_are_aligned_by_the_mean_over_all_images() -> None:
    p = _p(UNLABELLED)
    metrics = _metrics(_task("fedavg", objective="pseudo_label", **STATED), "fedavg")
    _check(metrics, _aligned(p, p.mean(axis=0)), 0.0)


def test_fed_shvrs_soft_labels_are_made_of_aligned_predictions() -> None:
    """The reported shares are sums of v = p^(alpha0 / alpha1) of the aligned p."""
    task = _task("fed_shvr", "labels-at-silo", lr=1e-9, alpha0_ramp="none", **STATED)
    p = _p(UNLABELLED)
    v = soft_labels(torch.from_numpy(_aligned(p, p.mean(axis=0))).log(), alpha0=1.0, alpha1=0.75)
    metrics = _metrics(task, "fed_shvr", LABELLED)
    for label in range(3):
        assert metrics[f"pseudo_labels/{label}"] == pytest.approx(float(v[:, label].sum()), rel=1e-4)


def test_fedmatchs_helpers_vote_with_answers_that_are_aligned_by_means_of_their_own() -> None:
    """A helper that is the model itself: its vote agrees with the local one, aligned or not, so that the labels are
    those of the aligned model alone; one that were not aligned would pull images back by a tie."""
    settings = {"unlabelled_batch": 10, "confidence_threshold": 0.0, "tie_break": "lowest_index", **STATED}
    task = _task("fedmatch", **settings)
    zero = {name: torch.zeros_like(tensor) for name, tensor in _weights().items()}
    groups = {**task.groups, "helper_psi/0": TensorGroup(zero)}
    with_helper = SiloTask(study="s", round=1, rounds=5, phase="train", silo="a", seed=1, settings=task.settings,
                           groups=groups, build_model=_net, image=FORM, augmentation=task.augmentation)
    _check(_metrics(with_helper, "fedmatch"), _by_batches(_order(10)), 0.0)


def test_with_labels_at_silos_the_target_and_the_thresholds_follow_from_the_silos_own() -> None:
    """Labels 8, 3, 1 of 12; confidence on the labelled images from the numpy model."""
    labelled_p, labels = _p(LABELLED), np.array([0] * 8 + [1] * 3 + [2])
    by_class = np.array([labelled_p[labels == label, label].mean() for label in range(3)])
    threshold = 0.9 * labelled_p.max(axis=1).mean() * by_class / by_class.max()
    p = _p(UNLABELLED)
    metrics = _metrics(_task("fedavg", "labels-at-silo", objective="fixmatch", confidence_threshold=0.9,
                             thresholds="class_relative", labelled_batch=12, distribution_alignment="labels"),
                       "fedavg", LABELLED)  # one step with all images, in an order that does not matter
    raised = p * (np.array([8, 3, 1]) / 12) / p.mean(axis=0)
    aligned = raised / raised.sum(axis=1, keepdims=True)
    ratio, counts = _kept(aligned, threshold)
    assert metrics["label_ratio"] == pytest.approx(ratio)
    assert {name: value for name, value in metrics.items() if name.startswith("pseudo_labels/")} == counts
    without = _metrics(_task("fedavg", "labels-at-silo", objective="fixmatch", confidence_threshold=0.9,
                             unlabelled_batch=37, thresholds="class_relative", distribution_alignment="labels"),
                       "fedavg")
    assert without["label_ratio"] == pytest.approx(_kept(p, 0.9)[0]), "a silo without labels goes by the setting alone"


def _adjusted_loss(index: NDArray[np.int64], tau: float = 1.0) -> float:
    """Menon's Eq. 10 on these labelled images, with pi = 8, 3, 1 of 12."""
    labels = np.array([0] * 8 + [1] * 3 + [2])
    p = _p(LABELLED) * (np.array([8, 3, 1]) / 12) ** tau
    p /= p.sum(axis=1, keepdims=True)
    return float(-np.log(p[index, labels[index]]).mean())


_LEARNS: dict[str, dict[str, Any]] = {
    "fedavg": {"labelled_batch": 12, "objective": "sl"}, "fedmatch": {"labelled_batch": 12, "unlabelled_batch": 37},
    "fed_shvr": {"labelled_batch": 12, "unlabelled_batch": 37, "lr": 1e-9}}
"""One labelled batch of all twelve images in every step."""


@each_of(("method", "name"), [("fedavg", "labelled_loss"), ("fedmatch", "label_loss"),
                              ("fed_shvr", "labelled_loss")])
def test_a_silos_labelled_loss_is_adjusted_by_its_own_shares(method: str, name: str) -> None:
    settings = _LEARNS[method]
    found = _metrics(_task(method, "labels-at-silo", logit_adjustment=1.0, **settings), method, LABELLED)
    assert found[name] == pytest.approx(_adjusted_loss(np.arange(12)), rel=1e-4)
    assert found[name] != pytest.approx(_adjusted_loss(np.arange(12), 0.0), rel=1e-2)


@each_of(("method", "name", "stream"), [
    ("fedavg", "labelled_loss", "labelled_order"), ("fedmatch", "label_loss", "labelled_order"),
    ("fed_shvr", "labelled_loss", "labelled_order")])
def test_a_silo_draws_its_labelled_images_class_by_class(method: str, name: str, stream: str) -> None:
    """One batch of the epoch's 12: classes four times each, as the named stream orders them."""
    settings = _LEARNS[method]
    found = _metrics(_task(method, "labels-at-silo", labelled_sampling="class_balanced", **settings), method, LABELLED)
    assert LABELLED.labels_N is not None
    order = class_balanced_order(LABELLED.labels_N, torch_generator(1, stream, round=1, silo="a"))
    assert found[name] == pytest.approx(_adjusted_loss(order.numpy(), 0.0), rel=1e-4)


@pytest.mark.parametrize("settings", [{"thresholds": "relative"}, {"distribution_alignment": "labels"}])
def test_a_task_that_does_not_say_what_its_settings_need_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadPayload, match="does not say labelled_"):
        _metrics(_task("semifl", **settings), "semifl")
