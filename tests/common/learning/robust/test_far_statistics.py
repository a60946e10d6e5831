"""Which silos' batch-norm statistics lie too far from the others'."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.learning import batch_norm
from semisilo.common.learning.batch_norm import LayerStatistics, Statistics
from semisilo.common.learning.robust.far_statistics import BELIEVED, NAMED, Far, distance, far_from, middle_of


def _of(mean: float, var: float = 1.0, *, channels: int = 4) -> Statistics:
    return {"norm": LayerStatistics(100.0, torch.full((channels,), mean, dtype=torch.float64),
                                    torch.full((channels,), var, dtype=torch.float64))}


def far_statistics(voices: list[Statistics]) -> dict[int, Far]:
    middle = middle_of(voices)
    return {index: far for index, voice in enumerate(voices) if (far := far_from(middle, voice)) is not None}


def test_the_mean_square_is_that_around_the_median_silo() -> None:
    """c = 2, v = 4, s^2 = 4 + 0.05 * 4 + 1e-5."""
    mean_NC = torch.tensor([[1.0, 1.0], [2.0, 2.0], [12.0, -4.0]], dtype=torch.float64)
    var_NC = torch.tensor([[4.0, 4.0], [9.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    scale = torch.tensor([4.0 + 0.2 + 1e-5, 4.0 + 0.2 + 1e-5], dtype=torch.float64)
    expected = torch.tensor([[1.0 + 4.0, 0.0 + 4.0], [0.0 + 9.0, 1.0 + 4.0], [100.0 + 1.0, 25.0 + 0.0]],
                            dtype=torch.float64) / scale
    # The median of the second channel's means (1, 2, -4) is 1.
    voices = [{"norm": LayerStatistics(1.0, mean_C, var_C)} for mean_C, var_C in zip(mean_NC, var_NC, strict=True)]
    assert torch.allclose(middle_of(voices)["norm"].mean_squares(mean_NC, var_NC), expected)


def test_named_from_ten_on_and_not_believed_above_fifty() -> None:
    """v = 1, so s^2 = 1.05001 and q = (mean^2 + 1) / 1.05001 in every channel."""
    for q, named, believed in ((9.9, False, True), (10.1, True, True), (49.9, True, True), (50.1, True, False)):
        far = far_statistics([_of(0.0), _of(0.0), _of(0.0), _of((q * 1.05001 - 1) ** 0.5)])
        assert (list(far) == [3]) is named, q
        assert not named or far[3].believed is believed, q
    assert (NAMED.of_layer, BELIEVED.of_layer) == (10.0, 50.0)


def test_the_distance_is_in_units_of_what_is_named() -> None:
    middle = middle_of([_of(0.0), _of(0.0), _of(0.0)])
    assert distance(middle, _of((20 * 1.05001 - 1) ** 0.5)) == pytest.approx(2.0)
    assert distance(middle, _of(0.0)) == pytest.approx(0.1 / 1.05001)
    assert distance({}, _of(7.0)) == 0.0


def test_one_channel_of_many_is_enough() -> None:
    odd = _of(0.0, channels=64)
    odd["norm"].mean[7] = 30.0
    far = far_statistics([*[_of(0.0, channels=64)] * 4, odd])
    assert far[4].of_layer < BELIEVED.of_layer
    assert far[4].of_channel == pytest.approx(901 / 1.05001)
    assert not far[4].believed


def test_nearly_half_of_the_silos_do_not_make_the_others_far() -> None:
    assert list(far_statistics([_of(1e12, 1e12), _of(0.0), _of(0.1), _of(-1e12, 0.0), _of(0.2)])) == [0, 3]


def test_a_channel_that_is_the_same_everywhere_at_most_silos_need_not_be_so_at_all() -> None:
    flat = _of(0.0, channels=8)
    flat["norm"].var[0] = 0.0
    other = _of(0.0, channels=8)
    assert far_statistics([flat, flat, flat, other]) == {}


def test_variances_that_are_too_small_are_not_far_and_two_silos_cannot_tell() -> None:
    assert far_statistics([_of(0.0), _of(0.0), _of(0.0, 0.0)]) == {}
    assert far_statistics([_of(0.0), _of(1e12)]) == {}
    assert far_statistics([]) == {}


# Honest silos ---------------------------------------------------------------------------------------------------------

FORM = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.4,))


def _net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), batch_norm.StaticBatchNorm(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), batch_norm.StaticBatchNorm(32), nn.ReLU(), nn.Flatten(),
                         nn.Linear(32 * 16, 10))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.from_numpy(found.images * 15).to(torch.uint8)[:, None], torch.from_numpy(found.target)


def _seen(images_NCHW: Tensor, gain: float, gamma: float) -> Tensor:
    return (255 * (images_NCHW / 255 * gain).clamp(0, 1) ** gamma).round().to(torch.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["one class", "two classes", "dirichlet"])
@pytest.mark.parametrize("trained", [False, True], ids=["at random", "trained"])
def test_no_honest_silo_is_named_where_classes_and_scanners_differ(
        digits: tuple[Tensor, Tensor], split: str, trained: bool) -> None:
    """Ten silos whose images are shown as they are, brighter, darker, or with more contrast."""
    images, labels = digits
    model = _net()
    if trained:
        _train(model, images[:800], labels[:800])
    parts = []
    generator = torch.Generator().manual_seed(4)
    shares_KS = torch._sample_dirichlet(torch.full((10, 10), 0.1), generator=generator)
    for silo in range(10):
        mine = (labels == silo) if split == "one class" else (labels == silo) | (labels == (silo + 1) % 10)
        if split == "dirichlet":
            mine = torch.rand(len(labels), generator=generator) < shares_KS[labels, silo]
        parts.append(torch.nonzero(mine)[:, 0][:60])
    scanners = ((1.0, 1.0), (1.1, 0.8), (0.85, 1.25), (0.95, 1.0))
    found = [batch_norm.measure(model, _seen(images[part], *scanners[index % 4]), form=FORM,
                                generator=torch.Generator().manual_seed(0))
             for index, part in enumerate(parts) if len(part)]
    assert far_statistics(found) == {}
    liar = {name: LayerStatistics(layer.count, layer.mean + 1e12, layer.var) for name, layer in found[0].items()}
    assert list(far_statistics([*found, liar])) == [len(found)], "a control"


def _train(model: nn.Module, images_NCHW: Tensor, labels_N: Tensor) -> None:
    from semisilo.common.data.augmentation.augment import to_input

    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for index in torch.arange(len(images_NCHW)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(to_input(images_NCHW[index], FORM)), labels_N[index]).backward()
            optimiser.step()
