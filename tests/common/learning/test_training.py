"""SGD steps, passes and evaluation against oracles, plain formulas and limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData, ComputeFailed
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.training import (
    SGDSettings,
    check_finite,
    cosine_lr,
    named_randomness,
    train_labelled,
    view_block_images,
)
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
NO_VIEWS = AugmentationSettings(policy="none")


def _linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int, *, labels: Tensor | None = None) -> ImageSet:
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    truth = torch.arange(count) % 3 if labels is None else labels
    return ImageSet(pixels, truth, tuple(str(index) for index in range(count)))


def test_oracle_s6_cosine_learning_rate() -> None:
    found = [cosine_lr(0.03, round=t, rounds=800) for t in (1, 2, 201, 401, 601, 800)]
    assert found == pytest.approx([0.03, 0.03, 0.025607, 0.015, 0.004393, 0.0], abs=1e-5)
    assert cosine_lr(0.03, round=0, rounds=800) == 0.03, "round 0 trains with lr_1"


def test_full_batch_training_without_momentum_is_gradient_descent() -> None:
    """w <- w - lr * dCE/dw with dCE/dw = (softmax - onehot)^T x / n, written out with plain tensors."""
    model, images = _linear(), _images(9)
    x = ((images.images_NCHW.float() / 255 - 0.5) / 0.25).flatten(1)
    weight, bias = model[1].weight.detach().clone(), model[1].bias.detach().clone()
    target = torch.nn.functional.one_hot(torch.arange(9) % 3, 3).float()
    for _ in range(4):
        error = torch.softmax(x @ weight.T + bias, dim=1) - target
        weight, bias = weight - 0.05 * error.T @ x / 9, bias - 0.05 * error.mean(0)
    sgd = SGDSettings(lr=0.05, momentum=0.0, nesterov=False, weight_decay=0.0, clip_norm=0.0)
    result = train_labelled(model, images, form=FORM, augmentation=NO_VIEWS, sgd=sgd, epochs=4, batch_size=100,
                            seed=1, purpose="test")
    assert result.steps == 4
    assert torch.allclose(model[1].weight, weight, atol=1e-5)
    assert torch.allclose(model[1].bias, bias, atol=1e-5)


def test_the_same_seed_trains_the_same_bits_and_another_purpose_other_bits() -> None:
    def trained(purpose: str) -> Tensor:
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
        train_labelled(model, _images(20), form=FORM, augmentation=AugmentationSettings(), sgd=SGDSettings(lr=0.1),
                       epochs=2, batch_size=7, seed=1, purpose=purpose)
        return model[3].weight.detach()

    torch.manual_seed(1)
    one = trained("a")
    torch.manual_seed(2)
    assert torch.equal(one, trained("a"))
    assert not torch.equal(one, trained("b"))


def test_every_image_enters_once_an_epoch_and_the_last_batch_may_be_short() -> None:
    shares: list[float] = []
    result = train_labelled(_linear(), _images(23), form=FORM, augmentation=NO_VIEWS, sgd=SGDSettings(lr=0.01),
                            epochs=2, batch_size=10, seed=1, purpose="test", progress=shares.append)
    assert result.steps == 6
    assert shares == pytest.approx([10 / 46, 20 / 46, 23 / 46, 33 / 46, 43 / 46, 1.0])


def test_the_learning_rate_may_follow_the_epoch() -> None:
    asked: list[int] = []

    def zero(epoch: int) -> float:
        asked.append(epoch)
        return 0.0

    model = _linear()
    before = tensors.parameters_of(model)
    train_labelled(model, _images(6), form=FORM, augmentation=NO_VIEWS, sgd=SGDSettings(lr=9.0), epochs=3,
                   batch_size=3, seed=1, purpose="test", lr_of_epoch=zero)
    assert asked == [1, 2, 3]
    assert torch.equal(before["1.weight"], model[1].weight)


def test_a_batch_with_one_value_per_channel_is_skipped_and_counted() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), StaticBatchNorm(5), nn.Linear(5, 3))
    result = train_labelled(model, _images(11), form=FORM, augmentation=NO_VIEWS, sgd=SGDSettings(lr=0.1), epochs=2,
                            batch_size=5, seed=1, purpose="test")
    assert (result.steps, result.skipped) == (4, 2)
    assert tensors.all_finite(tensors.parameters_of(model))
    assert math.isfinite(result.loss)


def test_training_without_labels_is_refused() -> None:
    for images in (_images(3).without_labels(), _images(0)):
        with pytest.raises(BadData):
            train_labelled(_linear(), images, form=FORM, augmentation=NO_VIEWS, sgd=SGDSettings(lr=0.1), epochs=1,
                           batch_size=5, seed=1, purpose="test")


def test_progress_may_abort_by_raising() -> None:
    class Stop(Exception):
        pass

    def stop(_: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        train_labelled(_linear(), _images(3), form=FORM, augmentation=NO_VIEWS, sgd=SGDSettings(lr=0.1), epochs=1,
                       batch_size=1, seed=1, purpose="test", progress=stop)


def test_named_randomness_is_reproducible_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    drawn = []
    for purpose in ("a", "a", "b"):
        with named_randomness(3, purpose):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(before, torch.random.get_rng_state())


def test_divergence_is_named_with_its_remedy() -> None:
    check_finite({"w": torch.ones(2)}, where="here")
    with pytest.raises(ComputeFailed, match="diverged at silo x") as caught:
        check_finite({"w": torch.tensor([float("nan")])}, where="at silo x")
    assert "lr" in caught.value.remedy


@each_of(("size", "batch", "expected"), [(8, 10, 1020), (8, 250, 1000), (8, 2000, 2000), (4096, 4, 4)])
def test_views_are_made_for_whole_batches_within_a_limit(size: int, batch: int, expected: int) -> None:
    assert view_block_images(torch.empty(2, 1, size, size, dtype=torch.uint8), batch) == expected
