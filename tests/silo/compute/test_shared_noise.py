"""A silo's update with its share of the noise that hides whole silos: how long it is, how much noise a sum has, and
which forms are refused; and the known ways to be wrong, planted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from semisilo.common.errors import SecureSumRefused
from semisilo.common.methods.contract import GroupLayout, Meaning, TensorGroup, TensorSpec
from semisilo.common.methods.parts.privacy import SharedNoise
from semisilo.common.secure_aggregation.clipped import bits_of_step, bound_of_clip, bound_of_step, length_in_levels
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MaskSeed
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.secure_aggregation.masked_updates import add_up, decoded_mean
from semisilo.silo.compute import masked_update
from semisilo.silo.compute.lossy_update import Sender
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.masked_update import Summand, plain_words, write_masked
from tests.each_of import each_of

CLIP, SIGMA, SHARES, SILOS = 0.5, 1.0, 4, 10
BOUND = bound_of_clip(CLIP, noise_multiplier=SIGMA, silo_count=SILOS, shares=SHARES)
FORM = MaskForm(bits=20, bounds=(BOUND, BOUND), silo_count=SILOS)
LENGTH = length_in_levels(CLIP, bits=20, bound=BOUND, silo_count=SILOS)
LAYOUT = {"model": GroupLayout(Meaning.DIFFERENCE, "11" * 32, (
    TensorSpec("weight", (80, 50), "float32"), TensorSpec("bias", (9,), "float32")))}
ELEMENTS = 4009


def update(scale: float, seed: int = 1) -> dict[str, TensorGroup]:
    generator = torch.Generator().manual_seed(seed)
    return {"model": TensorGroup({"weight": scale * torch.randn(80, 50, generator=generator),
                                  "bias": scale * torch.randn(9, generator=generator)}, Meaning.DIFFERENCE, "11" * 32)}


def flat(groups: dict[str, TensorGroup]) -> np.ndarray:
    return torch.cat([each.flatten() for each in groups["model"].tensors.values()]).double().numpy()


def noise(key: bytes = b"k" * 32, *, sigma: float = SIGMA) -> SharedNoise:
    return SharedNoise(noise_multiplier=sigma / math.sqrt(SHARES), clip_norm=CLIP, key=key)


def masking(form: MaskForm = FORM, seeds: tuple[MaskSeed, ...] = ()) -> Masking:
    return Masking(form=form, phase="train", threshold=7, seeds=seeds)


def words(groups: dict[str, TensorGroup], of: SharedNoise, *, form: MaskForm = FORM, round_number: int = 1,
          num_examples: int = 7) -> np.ndarray:
    found, left = plain_words(groups, masking(form), summand=Summand(num_examples=num_examples, noise=of),
                              sender=Sender(seed=7, round=round_number, phase="train", silo="a"), residuals={})
    assert not left
    return found


def levels(found: np.ndarray, bits: int = 20) -> np.ndarray:
    shift = np.uint32(32 - bits)
    return ((found[:-2] << shift).view(np.int32) >> np.int32(32 - bits)).astype(np.float64)


def test_so_many_silos_as_have_to_be_honest_add_the_noise_of_the_study(tmp_path: Path) -> None:
    total = sum(levels(words(update(0.0), noise(bytes([silo]) * 32))) for silo in range(SHARES))
    assert float(np.std(total)) == pytest.approx(SIGMA * LENGTH, rel=0.04)
    assert abs(float(np.mean(total))) < 5 * float(np.std(total)) / math.sqrt(ELEMENTS)


def test_the_mean_is_that_of_clipped_updates_with_the_noise_of_all(tmp_path: Path) -> None:
    """Ten silos of which some send far too much; over masks that vanish in the sum."""
    paths, right = [], np.zeros(ELEMENTS)
    for silo in range(SILOS):
        store, groups = PayloadStore(tmp_path / str(silo)), update(10.0 ** (silo - 5), seed=silo)
        exact = flat(groups)
        right += exact * min(1.0, CLIP / float(np.linalg.norm(exact)))
        sign = 1 if silo % 2 else -1
        payload, _, _ = write_masked(
            store, groups, masking(seeds=(MaskSeed(seed=bytes([silo // 2]) * 32, sign=sign),)),
            summand=Summand(num_examples=silo, noise=noise(bytes([silo]) * 32)),
            sender=Sender(seed=7, round=1, phase="train", silo=str(silo)), residuals={}, add_masks=add_masks)
        paths.append(store.path(payload.digest))
    found, outcome = decoded_mean(add_up(paths, FORM, elements=ELEMENTS), FORM, LAYOUT, silos=SILOS, seed=7, round=1,
                                  phase="train")
    rest = flat(found) - right / SILOS
    assert float(np.std(rest)) == pytest.approx(SIGMA * CLIP * math.sqrt(SILOS / SHARES) / SILOS, rel=0.04)
    assert abs(float(np.mean(rest))) < 5 * float(np.std(rest)) / math.sqrt(ELEMENTS)
    assert (outcome.silos, outcome.weight, outcome.cut) == (SILOS, 10.0, 0)


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e20])
def test_one_silo_moves_the_sum_by_at_most_the_clip(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_update, "SecretStream", Silent)
    assert float(np.linalg.norm(levels(words(update(scale), noise())))) <= LENGTH
    # Its weight and what it had to cut say nothing either.
    assert (words(update(scale), noise(), num_examples=1)[-2:] == words(update(1.0), noise(), num_examples=999)[-2:]
            ).all()


class Silent:
    """Noise left out."""

    def __init__(self, key: bytes) -> None:
        pass

    def noise(self, purpose: str, number: int, count: int, deviation: float) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float64)


@each_of("what", ["key", "round", "update", "one bit", "share", "clip"])
def test_whatever_is_otherwise_has_other_noise(what: str) -> None:
    """Of the same noise on two updates, or of two sizes of it on one, the difference would be bare."""
    base, other = update(0.001), update(0.001)
    of, form, number = noise(), FORM, 1
    if what == "key":
        of = noise(b"l" * 32)
    if what == "round":
        number = 2
    if what == "update":
        other = update(0.001, seed=2)
    if what == "one bit":
        other["model"].tensors["bias"][0] += 0.01
    if what == "share":
        of = replace(of, noise_multiplier=2 * of.noise_multiplier)
    if what == "clip":
        of = replace(of, clip_norm=0.4)
    first, second = levels(words(base, noise())), levels(words(other, of, form=form, round_number=number))
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.1
    assert (first == levels(words(base, noise()))).all()


@each_of("form", [
    replace(FORM, bounds=(BOUND, 2 * BOUND)), replace(FORM, weight_reference=100), replace(FORM, random_k=0.5),
    replace(FORM, bounds=(1e4, 1e4)), replace(FORM, bits=16, silo_count=32, bounds=(20.0, 20.0)),
    replace(FORM, bounds=(0.4, 0.4)), replace(FORM, bounds=(1e-300, 1e-300))])
def test_forms_in_which_noise_would_not_hide_a_silo_are_refused(form: MaskForm) -> None:
    with pytest.raises(SecureSumRefused, match=r"form is none|too coarse|too fine"):
        words(update(0.1), noise(), form=form)


def test_an_update_that_has_diverged_is_nothing_but_noise_and_nobody_is_told() -> None:
    """Whether it did follows from the images; a refusal has no noise."""
    diverged = update(1.0)
    diverged["model"].tensors["bias"][3] = float("inf")
    assert (words(diverged, noise()) == words(update(0.0), noise())).all()


# Noise of single images, of a step whose gradients were clipped one by one -------------------------------------------

IMAGES = 50
ONE = 0.1 * CLIP / IMAGES
STEP_BOUND = bound_of_step(ONE, images=IMAGES, noise_multiplier=SIGMA, silo_count=SILOS, shares=SHARES)
STEP = MaskForm(bits=bits_of_step(16, contribution=ONE, bound=STEP_BOUND, noise_multiplier=SIGMA, silo_count=SILOS,
                                  shares=SHARES), bounds=(STEP_BOUND, STEP_BOUND), silo_count=SILOS)
LEVELS = length_in_levels(ONE, bits=STEP.bits, bound=STEP_BOUND, silo_count=SILOS)


def exact(seed: int, scale: float = 3 * ONE) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"weight": scale * torch.randn(80, 50, generator=generator, dtype=torch.float64),
            "bias": scale * torch.randn(9, generator=generator, dtype=torch.float64)}


def step_noise(key: bytes = b"k" * 32) -> SharedNoise:
    return SharedNoise(noise_multiplier=SIGMA / math.sqrt(SHARES), clip_norm=ONE, key=key)


def step_words(values: dict[str, torch.Tensor], of: SharedNoise, form: MaskForm = STEP) -> np.ndarray:
    found, _ = plain_words(update(1.0), masking(form), summand=Summand(num_examples=7, noise=of, exact=values),
                           sender=Sender(seed=7, round=1, phase="train", silo="a"), residuals={})
    return found


def test_the_mean_of_steps_has_the_noise_of_so_many_silos_and_is_right(tmp_path: Path) -> None:
    """Each by itself would need all of it: the deviation of the mean is that over the root of the shares."""
    paths, right = [], np.zeros(ELEMENTS)
    for silo in range(SILOS):
        store, values = PayloadStore(tmp_path / str(silo)), exact(silo)
        right += torch.cat([each.flatten() for each in values.values()]).numpy() / SILOS
        payload, _, _ = write_masked(
            store, update(1.0), masking(STEP, seeds=(MaskSeed(seed=bytes([silo // 2]) * 32, sign=1 - 2 * (silo % 2)),)),
            summand=Summand(num_examples=silo, noise=step_noise(bytes([silo]) * 32), exact=values),
            sender=Sender(seed=7, round=1, phase="train", silo=str(silo)), residuals={}, add_masks=add_masks)
        paths.append(store.path(payload.digest))
    found, outcome = decoded_mean(add_up(paths, STEP, elements=ELEMENTS), STEP, LAYOUT, silos=SILOS, seed=7, round=1,
                                  phase="train")
    rest = flat(found) - right
    assert float(np.std(rest)) == pytest.approx(SIGMA * ONE / math.sqrt(SILOS) / math.sqrt(SHARES), rel=0.04)
    assert abs(float(np.mean(rest))) < 5 * float(np.std(rest)) / math.sqrt(ELEMENTS)
    assert outcome.cut == 0


def test_of_a_step_one_image_moves_the_words_by_what_it_is_and_rounding_alone_would_move_them_more(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noise at both of two neighbours, their difference has the clip's length on average over the noise.
    A single rounding makes it longer: of words that were rounded before the noise, one image moves more than it."""
    one = {name: each.clone() for name, each in exact(1).items()}
    direction = exact(2, 1.0)
    length = math.sqrt(sum(float(each.square().sum()) for each in direction.values()))
    other = {name: each + direction[name] * (ONE / length) for name, each in one.items()}
    apart = []
    for seed in range(100):
        monkeypatch.setattr(masked_update, "SecretStream", lambda key, seed=seed: Fixed(seed))
        apart.append(levels(step_words(other, step_noise()), STEP.bits) - levels(step_words(one, step_noise()),
                                                                                 STEP.bits))
    moved = np.mean(apart, axis=0)
    assert float(np.linalg.norm(moved)) == pytest.approx(LEVELS, rel=0.1)
    assert float(np.linalg.norm(apart[0])) > 1.05 * LEVELS, "a single rounding is no bound"


class Fixed:
    """The same noise whatever it is added to."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def noise(self, purpose: str, number: int, count: int, deviation: float, *, rounded: bool) -> torch.Tensor:
        assert not rounded
        return torch.from_numpy(self.generator.standard_normal(count) * deviation)


def test_of_a_step_whatever_is_otherwise_has_other_noise_and_the_same_the_same() -> None:
    base = levels(step_words(exact(1), step_noise()), STEP.bits)
    assert (base == levels(step_words(exact(1), step_noise()), STEP.bits)).all()
    shifted = exact(1)
    shifted["bias"][0] += 1e-12
    middle = np.concatenate([each.numpy().ravel() for each in exact(1).values()]) * LEVELS / ONE
    for values, of in ((shifted, step_noise()), (exact(1), step_noise(b"l" * 32)),
                       (exact(1), replace(step_noise(), noise_multiplier=SIGMA))):
        found = levels(step_words(values, of), STEP.bits)
        assert abs(float(np.corrcoef(base - middle, found - middle)[0, 1])) < 0.1


def test_a_step_that_is_too_large_wraps_and_is_cut_to_nothing() -> None:
    """Cutting would make the sum depend on more than the sum; modulo 2^bits it does not."""
    huge = exact(1, 1000 * STEP_BOUND)
    expected = np.rint(np.concatenate([each.numpy().ravel() for each in huge.values()]) * (LEVELS / ONE))
    rest = (levels(step_words(huge, step_noise()), STEP.bits) - expected) % 2**STEP.bits
    rest = np.where(rest >= 2**(STEP.bits - 1), rest - 2**STEP.bits, rest)
    assert float(np.std(rest)) == pytest.approx(SIGMA / math.sqrt(SHARES) * LEVELS, rel=0.04)


@each_of("form", [
    replace(STEP, bounds=(STEP_BOUND, 2 * STEP_BOUND)), replace(STEP, weight_reference=100),
    replace(STEP, random_k=0.5), replace(STEP, bounds=(1e4, 1e4)), replace(STEP, bounds=(ONE / 2, ONE / 2)),
    replace(STEP, bounds=(1e-300, 1e-300))])
def test_forms_in_which_noise_would_not_hide_an_image_are_refused(form: MaskForm) -> None:
    with pytest.raises(SecureSumRefused, match=r"form is none|too coarse|too fine"):
        step_words(exact(1), step_noise(), form=form)


@pytest.mark.parametrize("lr", [1e300, 1e-300])
def test_a_learning_rate_with_which_floats_overflow_is_refused_before_it_tells_whose_gradients_are_large(
        lr: float) -> None:
    """The scale fits it, and so would everything else."""
    form = replace(STEP, bounds=tuple(bound / ONE * lr * CLIP / IMAGES for bound in STEP.bounds))
    with pytest.raises(SecureSumRefused, match="floats cannot carry"):
        step_words(exact(1), replace(step_noise(), clip_norm=lr * CLIP / IMAGES), form=form)


def test_the_key_is_not_shown() -> None:
    assert "kkk" not in repr(noise())
