"""The parts of the strong recipe, against what they are by definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import averaged_training
from semisilo.common.learning.averaged_training import (
    AveragedPosition,
    AveragedTraining,
    average_decay,
    log_prior,
    mixed_cross_entropy,
    mixed_views,
    stream,
)
from semisilo.common.learning.training import SGDSettings
from semisilo.common.methods.contract import CoordinatorData, Environment
from tests.each_of import each_of


def test_the_average_looks_back_over_a_tenth_of_the_training_and_less_at_its_beginning() -> None:
    assert average_decay(0, 1000) == pytest.approx(0.1)
    assert average_decay(90, 1000) == pytest.approx(91 / 100)
    assert average_decay(10**6, 1000) == pytest.approx(0.99)
    assert average_decay(5, 5) == 0.0  # too short to average: the last weights


@each_of(("counts", "adjusted"), [
    ((10, 10), False), ((15, 10), False), ((16, 10), True), ((4, 0), False), ((10, 1), True)])
def test_only_imbalanced_labels_have_a_prior(counts: tuple[int, int], adjusted: bool) -> None:
    labels_N = torch.tensor([0] * counts[0] + [1] * counts[1])
    prior_K = log_prior(labels_N, 2)
    assert (prior_K is not None) == adjusted
    if prior_K is not None:
        assert prior_K.exp().tolist() == pytest.approx([count / sum(counts) for count in counts])


def test_the_loss_with_a_prior_is_least_at_the_likelihood_ratio_and_not_at_the_frequency() -> None:
    """Labels 9 to 1 that nothing tells apart: softmax(logits + prior) fits them with equal logits."""
    labels_B = torch.tensor([0] * 9 + [1])
    prior_K = torch.tensor([0.9, 0.1]).log()
    logits_K = torch.zeros(2, requires_grad=True)
    mixed_cross_entropy(logits_K.expand(10, 2), labels_B, labels_B, 1.0, prior_K).backward()  # type: ignore[no-untyped-call]
    assert logits_K.grad is not None
    assert logits_K.grad.abs().max() < 1e-6
    without = torch.zeros(2, requires_grad=True)
    mixed_cross_entropy(without.expand(10, 2), labels_B, labels_B, 1.0, None).backward()  # type: ignore[no-untyped-call]
    assert without.grad is not None
    assert without.grad.abs().max() > 0.3


def test_mixed_cross_entropy_is_that_of_the_mixed_labels() -> None:
    logits_BK = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    labels_B, others_B = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 1, 0, 1])
    target_BK = 0.3 * functional.one_hot(labels_B, 3) + 0.7 * functional.one_hot(others_B, 3)
    expected = -(target_BK * logits_BK.log_softmax(1)).sum(1).mean()
    found = mixed_cross_entropy(logits_BK, labels_B, others_B, 0.3, None)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_the_stream_is_made_of_shuffled_passes_wherever_it_is_cut() -> None:
    whole = stream(7, first=0, length=21, seed=3, purpose="p")
    for start in (0, 7, 14):
        assert sorted(whole[start:start + 7].tolist()) == list(range(7))
    assert whole[:7].tolist() != whole[7:14].tolist()
    pieces = [stream(7, first=start, length=5, seed=3, purpose="p") for start in range(0, 20, 5)]
    assert torch.equal(torch.cat(pieces), whole[:20])


def test_half_of_every_batch_is_strong_and_the_rest_weak() -> None:
    images = torch.randint(0, 256, (8, 1, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    settings = AugmentationSettings(policy="small")
    views = mixed_views(images, settings, torch.Generator().manual_seed(5), batch_size=4)
    generator = torch.Generator().manual_seed(5)
    strong = augment.strong(images[[0, 1, 4, 5]], settings, generator)
    weak = augment.weak(images[[2, 3, 6, 7]], settings, generator)
    assert torch.equal(views[[0, 1, 4, 5]], strong)
    assert torch.equal(views[[2, 3, 6, 7]], weak)


def test_batches_after_the_first_ones_are_weak_throughout() -> None:
    images = torch.randint(0, 256, (8, 1, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    settings = AugmentationSettings(policy="small")
    views = mixed_views(images, settings, torch.Generator().manual_seed(5), batch_size=4, batches=1)
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(views[[0, 1]], augment.strong(images[[0, 1]], settings, generator))
    assert torch.equal(views[2:], augment.weak(images[2:], settings, generator))


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


IMAGES = ImageSet(torch.randint(0, 256, (6, 1, 2, 2), generator=torch.Generator().manual_seed(2), dtype=torch.uint8),
                  torch.tensor([0, 1, 2, 0, 1, 2]), tuple("abcdef"))
ENVIRONMENT = Environment(
    seed=3, rounds=1, num_silos=1, data=CoordinatorData(labelled=IMAGES), build_model=_net, num_classes=3,
    image=ImageForm(size=2, channels=1, mean=(0.5,), std=(0.25,)), augmentation=AugmentationSettings(policy="none"))
PLAIN = SGDSettings(lr=0.5, momentum=0.0, nesterov=False, weight_decay=0.0, clip_norm=0.0)


def _training(*, plain_steps: int, position: AveragedPosition | None = None) -> AveragedTraining:
    model = _net()
    return AveragedTraining(
        ENVIRONMENT, model, IMAGES, log_prior_K=torch.tensor([0.5, 0.3, 0.2]).log(), sgd=PLAIN, steps=5, cosine=False,
        initial=dict(model.named_parameters()), batch_size=4, purpose="p", plain_steps=plain_steps, position=position)


def test_plain_steps_are_descent_on_the_images_as_they_are() -> None:
    training = _training(plain_steps=2)
    list(training.run(3))
    before, model = training.position(), _net()
    list(training.run())
    order_n = stream(6, first=0, length=20, seed=3, purpose="p")
    model.load_state_dict(before.parameters)
    for number in (3, 4):
        chosen_B = order_n[4 * number:4 * number + 4]
        input_BCHW = (IMAGES.images_NCHW[chosen_B] / 255.0 - 0.5) / 0.25
        loss = functional.cross_entropy(model(input_BCHW) + torch.tensor([0.5, 0.3, 0.2]).log(),
                                        IMAGES.labels_N[chosen_B])
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())),
                                       strict=True):
            parameter.data -= 0.5 * gradient
    for name, tensor in training.position().parameters.items():
        assert torch.allclose(tensor, model.state_dict()[name], atol=1e-6), name
    mixed = _training(plain_steps=0)
    list(mixed.run(3))
    assert all(torch.equal(tensor, before.parameters[name]) for name, tensor in mixed.position().parameters.items())
    list(mixed.run())
    assert not torch.allclose(mixed.position().parameters["1.weight"], training.position().parameters["1.weight"])


def test_plain_steps_of_later_blocks_have_weak_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are made for a block of batches at a time, here of two; the last three steps of five are plain."""
    found: list[int | None] = []

    def views(images_nCHW: Tensor, settings: AugmentationSettings, generator: torch.Generator, *, batch_size: int,
              batches: int | None = None) -> Tensor:
        found.append(batches)
        return mixed_views(images_nCHW, settings, generator, batch_size=batch_size, batches=batches)

    monkeypatch.setattr(averaged_training, "mixed_views", views)
    monkeypatch.setattr(averaged_training, "view_block_images", lambda images_NCHW, batch_size: 2 * batch_size)
    list(_training(plain_steps=3).run())
    assert found == [2, 0, 0]


def test_a_training_that_goes_on_in_its_plain_steps_ends_with_the_same_bits() -> None:
    whole, begun = _training(plain_steps=2), _training(plain_steps=2)
    list(whole.run())
    list(begun.run(4))
    resumed = _training(plain_steps=2, position=begun.position())
    list(resumed.run())
    assert all(torch.equal(tensor, whole.average()[name]) for name, tensor in resumed.average().items())
