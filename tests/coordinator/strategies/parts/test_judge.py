"""The judge: what harms more than the others is left out, and the rest counts as far as it helps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies.parts.judge import Judge

FORM = ImageForm(size=8, channels=1, mean=(0.0,), std=(1.0,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


def _images() -> ImageSet:
    """Two classes, by whether the upper or the lower half is grey."""
    labels_N = torch.arange(20) % 2
    images_NCHW = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    images_NCHW[labels_N == 0, :, :4] = 128
    images_NCHW[labels_N == 1, :, 4:] = 128
    return ImageSet(images_NCHW=images_NCHW, labels_N=labels_N, names=tuple(map(str, range(20))))


def _w(gain: float = 1.0) -> dict[str, Tensor]:
    """Tells the halves apart."""
    half_D = gain * torch.cat([torch.ones(32), -torch.ones(32)]) / 8
    return {"1.weight": torch.stack([half_D, -half_D]), "1.bias": torch.zeros(2)}


def _weights(updates: list[dict[str, Tensor]], *, data: CoordinatorData | None = None,
             scales: list[float] | None = None, plain: list[float] | None = None, gain: float = 1.0) -> list[float]:
    """With a model that tells the halves apart as surely as `gain` says."""
    environment = Environment(
        seed=1, rounds=1, num_silos=5, data=data or CoordinatorData(labelled=_images()), build_model=_net, image=FORM,
        augmentation=AugmentationSettings(), num_classes=2, robust=RobustSettings(rule="judge"))
    headers = tuple(UpdateHeader(f"silo-{index}", 1) for index in range(len(updates)))
    groups = [{"model": TensorGroup(update, Meaning.DIFFERENCE)} for update in updates]
    with SpooledUpdates(headers, lambda index: groups[index], norms=[None] * len(headers), scratch=Path()) as spooled:
        return Judge(environment).weights(_w(gain), spooled, "model", scales=scales or [1.0] * len(headers),
                                          plain=plain or [1 / len(headers)] * len(headers), round=1)


def _accepted(updates: list[dict[str, Tensor]], *, data: CoordinatorData | None = None, gain: float = 1.0
              ) -> list[bool]:
    """Which count at least a tenth of their share."""
    return [weight * len(updates) >= 0.1 for weight in _weights(updates, data=data, gain=gain)]


def _honest(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.02 * torch.randn(tensor.shape, generator=generator) for name, tensor in _w().items()}


def test_honest_updates_stay() -> None:
    weights = _weights([_honest(seed) for seed in range(6)])
    assert sum(weight >= 0.1 / 6 for weight in weights) >= 5
    assert max(weights) < 3.0 / 6


def test_updates_that_are_the_same_keep_the_plain_weights() -> None:
    plain = [0.5, 0.3, 0.2]
    assert _weights([_honest(1)] * 3, plain=plain) == pytest.approx(plain, abs=1e-12)


def test_an_update_counts_as_it_is_scaled() -> None:
    """By one tenth of ten times the update the same is judged."""
    updates = [tensors.scale(_w(), factor) for factor in (0.5, 0.2, -0.1)]
    judged = _weights(updates, gain=0.1)
    assert judged[0] > 0.5
    for number in range(3):
        longer, scales = list(updates), [1.0] * 3
        longer[number], scales[number] = tensors.scale(updates[number], 10.0), 0.1
        assert _weights(longer, scales=scales, gain=0.1) == pytest.approx(judged, rel=1e-6)


def test_silos_that_are_alone_with_what_they_know_count_more() -> None:
    """Four silos add nothing; the one that makes the images better gets most of the weight."""
    nothing = tensors.zeros_like(_w())
    weights = _weights([nothing, nothing, _w(), nothing, nothing], gain=0.1)
    assert weights[2] > 0.5
    assert sum(weights) == pytest.approx(1.0)


@pytest.mark.parametrize("lie", [
    pytest.param(tensors.scale(_w(), -2.0), id="the opposite model"),
    pytest.param(tensors.scale(_w(), float("inf")), id="not finite"),
    pytest.param(tensors.scale(_honest(9), 300.0), id="noise")])
def test_what_destroys_the_model_is_left_out(lie: dict[str, Tensor]) -> None:
    assert _accepted([_honest(1), lie, _honest(2), _honest(3), lie]) == [True, False, True, True, False]


def test_a_flipped_sign_is_left_out_where_silos_see_one_class_each() -> None:
    """Each says its own class of everything, so all harm alike alone; in the mean that cancels, and the rest counts."""
    def of_one_class(label: int, sure: float, knows: float) -> dict[str, Tensor]:
        says = torch.tensor([sure, -sure]) * (1 if label == 0 else -1)
        return {"1.weight": knows * _w()["1.weight"], "1.bias": says}

    honest = [of_one_class(label, sure, 0.3) for sure in (3.0, 5.0, 4.0) for label in (0, 1)]
    accepted = _accepted([*honest, of_one_class(1, 4.0, -1.0)], gain=0.1)
    assert accepted[:6] == [True] * 6
    assert not accepted[6]


def test_validation_images_go_before_labelled_ones() -> None:
    swapped = _images()
    wrong = ImageSet(images_NCHW=swapped.images_NCHW, labels_N=1 - torch.arange(20) % 2, names=swapped.names)
    updates = [_honest(1), _honest(2), _honest(3), tensors.scale(_w(), -2.0)]
    assert _accepted(updates, data=CoordinatorData(labelled=wrong, validation=_images())) == [True, True, True, False]
    assert _accepted(updates, data=CoordinatorData(labelled=_images(), validation=wrong))[3]


def test_a_learned_weight_below_its_share_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.coordinator.strategies.parts.judge.learned_weights",
                        lambda plain, look: [0.125, 0.375, 0.25, 0.25])
    weights = _weights([_honest(1)] * 4)
    assert weights == pytest.approx([0.125 / 8 / 0.890625, *(each / 0.890625 for each in (0.375, 0.25, 0.25))])


def test_labelled_images_are_looked_at_in_views_too() -> None:
    """An update that goes wrong where no labelled image has anything, one pixel beside them, harms views alone."""
    images = _images()
    images.images_NCHW[:, :, 3:5] = 0
    beside = {name: torch.zeros_like(tensor) for name, tensor in _w().items()}
    beside["1.weight"].view(2, 8, 8)[:, 3:5] = -6 * _w()["1.weight"].view(2, 8, 8)[:, 3:5]
    updates = [_honest(1), _honest(2), _honest(3), beside]
    from_validation = _weights(updates, data=CoordinatorData(labelled=images, validation=images))
    from_views = _weights(updates, data=CoordinatorData(labelled=images))
    assert from_validation[3] > 0.1
    assert from_views[3] < 0.01
