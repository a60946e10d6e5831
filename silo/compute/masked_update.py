"""A silo's update as words behind masks: cut to the public scale, weighted, rounded at random, masked, packed.

    words = round(a ((w_k - w) / c + e) level / bound) + sum of masks   modulo 2^bits
    behind them the totals, round(a level), and how many elements were cut

Where whole silos are hidden, all together are clipped, and noise is added before the masks:

    words = round(clip(w_k - w, C) level / bound) + round(N(0, (sigma C level / bound)^2 / shares)) + sum of masks

and where silos share the noise of a step in which the gradient of every image was clipped, C' = lr C / expected images:

    words = round((w_k - w) level / bound + N(0, (sigma C' level / bound)^2 / shares)) + sum of masks

a is the silo's weight (`semisilo.common.secure_aggregation.mask_form.weight_of`), c its number of steps where the
method averages normalised (`semisilo.common.methods.parts.secure_sum.divisor_of`), else 1. With a random share
of the elements, e is what was not sent so far (error feedback, as `semisilo.silo.compute.lossy_update` keeps it).

Tests: tests/silo/compute/test_masked_update.py, test_shared_noise.py.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from semisilo.common.errors import ComputeFailed, SecureSumRefused
from semisilo.common.learning.privacy.gaussian import SecretStream
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.methods.contract import PayloadRef, TensorGroup, TensorSpec
from semisilo.common.methods.parts.privacy import SharedNoise
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.writer import EncodedInput, TensorInput, write_payload
from semisilo.common.secure_aggregation.clipped import LEAST_DEVIATION, clipped_levels, length_in_levels
from semisilo.common.secure_aggregation.fixed_point import largest_level, quantise, to_words
from semisilo.common.secure_aggregation.mask_form import EXTRA_WORDS, MaskForm, weight_of
from semisilo.common.secure_aggregation.messages import MASKED_GROUP, MaskSeed
from semisilo.common.secure_aggregation.positions import chosen_positions
from semisilo.common.secure_aggregation.totals import total_words
from semisilo.common.secure_aggregation.words import pack
from semisilo.common.storage.store import PayloadStore
from semisilo.silo.compute.lossy_update import Sender
from semisilo.silo.compute.mask_order import Masking

__all__ = ["Summand", "plain_words", "write_masked"]

_SMALLEST_CLIP = 1e-100
"""And its inverse the largest: which numbers of an update overflow a float follows from that silo alone, not from the
sum that noise is added to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summand:
    """What of an update enters a sum beside its tensors."""

    num_examples: int
    """That the silo weighs by, where silos are weighted."""
    divisor: float = 1.0
    """c: what its tensors are divided by."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """See `semisilo.common.methods.contract.Update.totals`."""
    noise: SharedNoise | None = None
    """Where silos share noise."""
    exact: Mapping[str, Tensor] | None = field(default=None, repr=False)
    """See `semisilo.common.methods.contract.Update.exact`: where the noise is that of single images."""


def write_masked(store: PayloadStore, groups: Mapping[str, TensorGroup], masking: Masking, *, summand: Summand,
                 sender: Sender, residuals: Mapping[str, Tensor],
                 add_masks: Callable[[np.ndarray, Sequence[MaskSeed]], None],
                 ) -> tuple[PayloadRef, dict[str, Tensor], bytes]:
    """Writes a masked update.

    Args:
        groups: of the update, float32.
        residuals: as `semisilo.silo.compute.lossy_update.Residuals`.
        add_masks: adds the masks of seeds to words, in place.
    Returns: (the payload, the residuals of what was not sent: empty where all elements are, SHA-256 of the words before
        they were masked).
    Raises: ComputeFailed and SecureSumRefused as `plain_words`.
    """
    words, left = plain_words(groups, masking, summand=summand, sender=sender, residuals=residuals)
    vector = hashlib.sha256(words.data).digest()
    add_masks(words, masking.seeds)
    packed = pack(words, masking.form.bits)
    spec = TensorSpec("words", (len(packed),), "uint8")
    payload = write_payload(store, {MASKED_GROUP: EncodedInput(
        [TensorInput(spec, lambda: packed)], plan=Plan(aim=Aim("raw")))})
    return payload, left, vector


def plain_words(groups: Mapping[str, TensorGroup], masking: Masking, *, summand: Summand, sender: Sender,
                residuals: Mapping[str, Tensor]) -> tuple[np.ndarray, dict[str, Tensor]]:
    """The words of `write_masked`, uint32, before they are masked and packed: of the tensors in order (groups by name,
    tensors of a group in its own order), of the totals, then weight and number of elements that were cut. And the
    residuals.

    Raises: ComputeFailed when training has diverged, or the form is not that of the update; SecureSumRefused for a form
        in which noise would not hide the update.
    """
    form = masking.form
    if set(form.totals) != set(summand.totals):
        raise ComputeFailed(f"The secure sum adds up {sorted(form.totals)}, and the update has"
                            f" {sorted(summand.totals)}.")
    flat, places = _flat(groups, sender, residuals, divisor=summand.divisor, diverged_is_told=summand.noise is None)
    positions = chosen_positions(seed=sender.seed, round=sender.round, phase=masking.phase, share=form.random_k,
                                 elements=len(flat))
    weight, level = weight_of(form, summand.num_examples), largest_level(form.bits, form.silo_count)
    generator = numpy_generator(sender.seed, f"secure rounding\n{sender.phase}", round=sender.round, silo=sender.silo)
    if len(form.bounds) != len(places):
        raise ComputeFailed(f"The secure sum has bounds for {len(form.bounds)} tensors, and the update {len(places)}.")
    if summand.noise is not None:
        if summand.exact is not None:
            return _noised_step(_exact(groups, summand.exact), form, summand.noise, sender=sender), {}
        return _noised(flat, form, summand.noise, sender=sender, generator=generator), {}
    words = np.empty((len(flat) if positions is None else len(positions)) + form.extra_words, np.uint32)
    cut, kept_back = 0, None if positions is None else flat.copy()
    for (start, end), bound in zip(places, form.bounds, strict=True):
        if positions is None:
            values, first, last = flat[start:end], start, end
        else:
            first, last = (int(each) for each in np.searchsorted(positions, (start, end)))
            values = flat[positions[first:last]]
        levels, over = quantise(values * np.float32(weight), bound=bound, level=level, generator=generator)
        words[first:last] = to_words(levels)
        if kept_back is not None and positions is not None and weight:
            # What was cut and rounded away stays as well, so that nothing is lost for good.
            kept_back[positions[first:last]] = values - (levels * (bound / level / weight)).astype(np.float32)
        cut += over
    totals, over = total_words([summand.totals[name] for name in form.totals], weight=weight, level=level)
    words[len(words) - form.extra_words:-EXTRA_WORDS] = totals
    words[-2:] = np.uint32(round(weight * level)), np.uint32(min(cut + over, level))
    return words, {} if kept_back is None else _left(groups, kept_back, sender)


def _noised(flat: np.ndarray, form: MaskForm, noise: SharedNoise, *, sender: Sender,
            generator: np.random.Generator) -> np.ndarray:
    """The words of an update that is clipped and has this silo's share of the noise.

    The noise follows from a secret key, its deviation and the whole numbers that it is added to: the same update has
    the same words, and any other has other noise.
    Raises: SecureSumRefused for a form in which one silo could move the sum by more than the clip, or with a scale that
        is too coarse.
    """
    level, bound, length, deviation = _scale(form, noise)
    if not np.isfinite(flat).all():  # that training has diverged says something of the images, and nothing covers it
        flat = np.zeros_like(flat)
    try:
        levels = clipped_levels(flat, length, scale=level / bound, generator=generator)
    except ValueError as error:
        raise SecureSumRefused(f"The sum's scale is too coarse: {error}") from None
    key = hmac.digest(noise.key, deviation.hex().encode() + hashlib.sha256(levels.data).digest(), "sha256")
    levels += SecretStream(key).noise("update", sender.round, len(levels), deviation).numpy().astype(np.int64)
    return _equal_weights(levels, level)


def _noised_step(exact_P: np.ndarray, form: MaskForm, noise: SharedNoise, *, sender: Sender) -> np.ndarray:
    """The words of one step, float64 (P,), with this silo's share of the noise.

    They are rounded with the noise, not before it: rounded by itself, a sum that differs by one image could differ by a
    level in every word. What is too large wraps, as in every sum modulo 2^bits, which is no matter of privacy: nothing
    is cut to a bound, which would not be the sum's business alone.
    Raises: SecureSumRefused as `_noised`.
    """
    level, bound, _, deviation = _scale(form, noise)
    key = hmac.digest(noise.key, deviation.hex().encode() + hashlib.sha256(exact_P.data).digest(), "sha256")
    noise_P = SecretStream(key).noise("step", sender.round, len(exact_P), deviation, rounded=False).numpy()
    return _equal_weights(np.rint(exact_P * (level / bound) + noise_P).astype(np.int64), level)


def _scale(form: MaskForm, noise: SharedNoise) -> tuple[int, float, float, float]:
    """Of a form that noise hides in: its largest level, its bound, and in levels the clip and the noise's deviation."""
    if form.weight_reference or form.random_k < 1 or form.totals or len(set(form.bounds)) != 1:
        raise SecureSumRefused("The sum's form is none in which noise hides anything: that has all numbers, of equal"
                               " weight, on one scale, and nothing besides.")
    level, bound = largest_level(form.bits, form.silo_count), form.bounds[0]
    length = length_in_levels(noise.clip_norm, bits=form.bits, bound=bound, silo_count=form.silo_count)
    if not _SMALLEST_CLIP < noise.clip_norm < 1 / _SMALLEST_CLIP:
        raise SecureSumRefused(f"One contribution moves the sum by up to {noise.clip_norm:g}, which floats cannot"
                               " carry: the study's learning rate or clip_norm is far too large or too small.")
    if length > level:  # then whole numbers could leave what an int64 holds, silo by silo
        raise SecureSumRefused("The sum's scale is too fine: the clip alone would not fit into a word.")
    if (deviation := noise.noise_multiplier * length) < LEAST_DEVIATION:
        raise SecureSumRefused(f"The sum's scale is too coarse for noise: {deviation:.2g} levels.")
    return level, bound, length, deviation


def _equal_weights(levels_P: np.ndarray, level: int) -> np.ndarray:
    """Words modulo 2^32, and behind them what all silos say alike: their weight, and that nothing was cut."""
    words = np.empty(len(levels_P) + EXTRA_WORDS, np.uint32)
    words[:-EXTRA_WORDS] = levels_P.astype(np.uint32)
    words[-EXTRA_WORDS:] = level, 0
    return words


def _exact(groups: Mapping[str, TensorGroup], exact: Mapping[str, Tensor]) -> np.ndarray:
    """All elements one after another, float64; 0 where nothing was trained."""
    (group,) = groups.values()
    assert exact.keys() <= group.tensors.keys(), "what was trained is not what is sent"
    return np.concatenate([
        exact[name].double().reshape(-1).numpy() if name in exact else np.zeros(values.numel())
        for name, values in group.tensors.items()])


def _flat(groups: Mapping[str, TensorGroup], sender: Sender, residuals: Mapping[str, Tensor], *, divisor: float,
          diverged_is_told: bool) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """All elements one after another, float32, divided, residuals added, and where each tensor lies."""
    parts, places, start = [], [], 0
    for name in sorted(groups, key=str.encode):
        for tensor, values in groups[name].tensors.items():
            assert values.dtype is torch.float32, f"{name}: {tensor}: only float32 is added up behind masks"
            value, kept = values.detach().cpu().reshape(-1), residuals.get(_key(sender, name, tensor))
            if divisor != 1.0:
                value = value / divisor
            if kept is not None and kept.numel() == value.numel():
                value = value + kept.reshape(-1)
            if diverged_is_told and not bool(torch.isfinite(value).all()):
                raise ComputeFailed(f"Training diverged: '{tensor}' of the update has an infinity or NaN.",
                                    remedy="Lower [method] lr, or set clip_norm, in the study file.")
            parts.append(value.numpy())
            places.append((start, start + len(parts[-1])))
            start = places[-1][1]
    return np.concatenate(parts) if parts else np.empty(0, np.float32), places


def _left(groups: Mapping[str, TensorGroup], flat: np.ndarray, sender: Sender) -> dict[str, Tensor]:
    """Residuals by tensor."""
    left, start = {}, 0
    for name in sorted(groups, key=str.encode):
        for tensor, values in groups[name].tensors.items():
            left[_key(sender, name, tensor)] = torch.from_numpy(
                flat[start:start + values.numel()].copy()).reshape(values.shape)
            start += values.numel()
    return left


def _key(sender: Sender, group: str, tensor: str) -> str:
    return "\n".join((sender.phase, group, tensor))
