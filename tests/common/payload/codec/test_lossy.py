"""Lossy values: how far they are off, that they are finite, and the pitfalls of scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from semisilo.common.errors import BadPayload
from semisilo.common.payload.codec import ELEMENT_TYPES, Aim, Plan, ValueEncoding, ValueForm
from semisilo.common.payload.codec.lossy import INT4, INT8, ScaledCodes, decode_bf16, encode_bf16
from tests.common.codec_samples import FLOAT32, float_bits, sparse_floats, there_and_back
from tests.each_of import each_of

FORMS = [ValueForm.BF16, ValueForm.INT8, ValueForm.INT4]
CODES = [INT8, INT4]
LARGEST = float(np.finfo(np.float32).max)
finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def smallest(form: ValueForm, rounding: Any = "nearest") -> Plan:
    return Plan(aim=Aim.SMALLEST, values=form, rounding=rounding)


def through(codes: ScaledCodes, values: NDArray[np.float32], generator: np.random.Generator | None = None,
            squeeze: bool = True) -> NDArray[np.float32]:
    data = codes.encode(float_bits(values), generator, squeeze=squeeze)
    decoded: NDArray[np.float32] = codes.decode(memoryview(data), len(values)).view("<f4")
    return decoded


@each_of(("form", "rounding", "share", "low", "high"), [
    (ValueForm.BF16, "nearest", 0.342, 0.0015, 0.0018),
    (ValueForm.INT8, "nearest", 0.2355, 0.005, 0.0075),
    (ValueForm.INT8, "stochastic", 0.2355, 0.007, 0.0105),
    (ValueForm.INT4, "nearest", 0.12, 0.08, 0.115),
    (ValueForm.INT4, "stochastic", 0.12, 0.11, 0.16)])
def test_normal_values_keep_their_error_and_share_of_dense(form: ValueForm, rounding: str, share: float, low: float,
                                                           high: float) -> None:
    values = sparse_floats(200_000, 1)
    trip = there_and_back(values.view("<u4"), FLOAT32, smallest(form, rounding), generator=np.random.default_rng(0))
    error = np.linalg.norm(trip.bits.view("<f4") - values) / np.linalg.norm(values)
    assert low < error < high
    assert trip.size_bytes <= share * values.nbytes


@settings(max_examples=150)
@given(values=st.lists(finite_floats, min_size=1, max_size=300), form=st.sampled_from(FORMS),
       rounding=st.sampled_from(["nearest", "stochastic"]), aim=st.sampled_from(list(Aim)))
def test_any_finite_floats_come_back_finite(values: list[float], form: ValueForm, rounding: Any, aim: Aim) -> None:
    plan = Plan(aim=aim, values=form, rounding=rounding)
    trip = there_and_back(float_bits(np.array(values)), FLOAT32, plan, generator=np.random.default_rng(0))
    assert np.isfinite(trip.bits.view("<f4")).all()


@settings(max_examples=150)
@given(values=st.lists(finite_floats, min_size=1, max_size=600), codes=st.sampled_from(CODES), squeeze=st.booleans())
def test_the_nearest_code_is_at_most_half_a_scale_away(values: list[float], codes: ScaledCodes, squeeze: bool) -> None:
    exact = np.array(values, dtype="<f4")
    decoded = through(codes, exact, squeeze=squeeze)
    for start in range(0, len(exact), codes.group):
        group = exact[start:start + codes.group].astype(np.float64)
        scale = np.abs(group).max() / codes.levels * (1 + 2**-7)
        error = np.abs(decoded[start:start + codes.group] - group)
        # The largest scales are rounded down, so that code * scale is finite: the largest values lose up to 1/128.
        limit = max(0.51 * scale, 1e-30 * codes.levels) + (LARGEST / 100 if np.abs(group).max() > 0.98 * LARGEST else 0)
        assert error.max() <= limit


@pytest.mark.parametrize("codes", CODES)
def test_stochastic_rounding_is_unbiased_and_nearest_is_not(codes: ScaledCodes) -> None:
    values = np.full(codes.group, 0.3, dtype="<f4")
    values[0] = codes.levels  # so that the scale is 1 and a 0.3 lies between two codes
    random = np.random.default_rng(0)
    draws = np.stack([through(codes, values, random) for _ in range(400)])[:, 1:]
    assert set(np.unique(draws)) == {0.0, 1.0}
    # Standard error of the mean of so many Bernoulli draws: 0.46 / sqrt(400 * 63) = 0.003 at most.
    assert abs(draws.mean() - 0.3) < 0.012
    assert not through(codes, values)[1:].any()


@pytest.mark.parametrize("codes", CODES)
def test_stochastic_rounding_depends_on_the_generator_alone(codes: ScaledCodes) -> None:
    bits = sparse_floats(1000, 1).view("<u4")
    first, again, other = (codes.encode(bits, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_stochastic_rounding_needs_a_generator() -> None:
    bits = sparse_floats(1000, 1).view("<u4")
    with pytest.raises(ValueError, match="generator"):
        there_and_back(bits, FLOAT32, smallest(ValueForm.INT8, "stochastic"))


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("tiny", [1e-45, 1e-40, 1e-38, 1e-31])
def test_a_group_so_small_that_its_scale_has_no_inverse_becomes_zero(codes: ScaledCodes, tiny: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        decoded = through(codes, np.array([tiny, -tiny, 0, tiny] * 100, dtype="<f4"))
    assert not decoded.any()


@pytest.mark.parametrize("codes", CODES)
def test_a_group_of_zeros_beside_others_stays_zero(codes: ScaledCodes) -> None:
    values = np.concatenate([np.zeros(codes.group), np.ones(codes.group), np.zeros(3)]).astype("<f4")
    decoded = through(codes, values)
    assert np.array_equal(decoded == 0, values == 0)
    assert np.allclose(decoded, values, rtol=2**-7)


@pytest.mark.parametrize("codes", CODES)
def test_the_largest_floats_do_not_become_infinite(codes: ScaledCodes) -> None:
    values = np.array([LARGEST, -LARGEST, LARGEST / 2], dtype="<f4")
    for generator in (None, np.random.default_rng(0)):
        decoded = through(codes, values, generator)
        assert np.isfinite(decoded).all()
        assert np.allclose(decoded[:2], values[:2], rtol=0.01)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_before_anything_is_encoded(form: ValueForm, bad: float) -> None:
    values = np.ones(1000, dtype="<f4")
    values[-1] = bad
    with pytest.raises(BadPayload, match=f"cannot be sent as {form}"):
        there_and_back(values.view("<u4"), FLOAT32, smallest(form))
    all_ones = np.full(1000, 0xFFFF_FFFF, dtype="<u4")  # a NaN that rounding as an integer would make -0.0
    with pytest.raises(BadPayload, match=f"cannot be sent as {form}"):
        there_and_back(all_ones, FLOAT32, smallest(form))


@settings(max_examples=100)
@given(values=st.lists(finite_floats, min_size=1, max_size=50))
def test_bf16_rounds_as_torch_does_but_stays_finite(values: list[float]) -> None:
    exact = np.array(values, dtype="<f4")
    decoded = decode_bf16(memoryview(encode_bf16(float_bits(exact))), len(exact)).view("<f4")
    expected = torch.from_numpy(exact).to(torch.bfloat16).float().numpy()
    largest = np.float32(torch.finfo(torch.bfloat16).max)
    assert np.array_equal(decoded.view("<u4"), np.clip(expected, -largest, largest).view("<u4"))


@each_of("form", FORMS)
def test_types_other_than_float32_are_sent_exactly(form: ValueForm) -> None:
    random = np.random.default_rng(0)
    for kind in ELEMENT_TYPES.values():
        if kind is not FLOAT32:
            bits = random.integers(0, 2 ** min(12, 8 * kind.size_bytes), 3000, dtype=kind.bits.type).astype(kind.bits)
            trip = there_and_back(bits, kind, smallest(form))
            assert np.array_equal(trip.bits, bits)
            assert not any(header.value.lossy for header in trip.headers)


@each_of("form", FORMS)
def test_sparse_lossy_blocks_keep_their_zeros(form: ValueForm) -> None:
    values = sparse_floats(20_000, 0.1)
    trip = there_and_back(values.view("<u4"), FLOAT32, smallest(form))
    assert trip.headers[0].value is ValueEncoding[form.upper()]
    assert not trip.bits[values == 0].any()


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("pattern", [0x7F80, 0x7FC0, 0xFFC0, 0xFF80, 0x8000, 0xBF80, 0x7F7F])
def test_a_scale_that_is_negative_or_not_finite_or_too_large_is_refused(codes: ScaledCodes, pattern: int) -> None:
    data = bytearray(codes.encode(float_bits(np.ones(3)), None, squeeze=False))
    codes.decode(memoryview(data), 3)  # the control
    rotated = (pattern << 1 | pattern >> 15) & 0xFFFF
    data[5:7] = rotated.to_bytes(2, "little")  # behind the length and the list of planes
    with pytest.raises(BadPayload, match="scale"):
        codes.decode(memoryview(data), 3)


def test_codes_out_of_range_are_refused() -> None:
    for codes, bad in ((INT8, 0x00), (INT4, 0x81), (INT4, 0x18)):
        data = bytearray(codes.encode(float_bits(np.ones(4)), None, squeeze=False))
        data[8] = bad
        if bad == 0x81:  # the first code of the two is 1 - 8, the second 0: both can be
            codes.decode(memoryview(data), 4)
            data[8] = 0x80
        elif bad == 0x18:
            codes.decode(memoryview(data), 4)
            data[8] = 0x08
        with pytest.raises(BadPayload, match="out of range"):
            codes.decode(memoryview(data), 4)


@pytest.mark.parametrize("codes", CODES)
def test_codes_and_scales_of_another_number_are_refused(codes: ScaledCodes) -> None:
    data = codes.encode(float_bits(np.arange(codes.group + 1)), None)
    for count in (1, codes.group - 3, codes.group, codes.group + 3, 10 * codes.group):
        with pytest.raises(BadPayload):
            codes.decode(memoryview(data), count)
    for bad in (b"", data[:3], data[:-1], data + b"\0", b"\xff\xff\xff\xff" + data[4:], bytes(4) + data[4:]):
        with pytest.raises(BadPayload):
            codes.decode(memoryview(bad), codes.group + 1)


def test_a_bf16_infinity_or_nan_is_refused() -> None:
    for pattern in (0x7F80, 0xFF80, 0x7FC0, 0xFFFF):
        rotated = (pattern << 1 | pattern >> 15) & 0xFFFF
        with pytest.raises(BadPayload, match="infinity"):
            decode_bf16(memoryview(b"\0" + rotated.to_bytes(2, "little")), 1)
