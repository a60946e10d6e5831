"""Tensors against a base: every pattern comes back, and near values become small numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.payload.codec import ELEMENT_TYPES, Aim, Plan, add_bits, coded_kind, subtract_bits
from tests.common.codec_samples import there_and_back

SMALLEST = Plan(aim=Aim.SMALLEST)


@settings(max_examples=100)
@given(dtype=st.sampled_from(sorted(ELEMENT_TYPES)), size=st.integers(0, 50), data=st.data())
def test_any_pattern_against_any_base_comes_back(dtype: str, size: int, data: st.DataObject) -> None:
    kind = ELEMENT_TYPES[dtype]
    bits, base = (np.frombuffer(data.draw(st.binary(min_size=size * kind.size_bytes, max_size=size * kind.size_bytes)),
                                dtype=kind.bits) for _ in "ab")
    coded = subtract_bits(bits, base)
    assert coded.dtype == kind.bits
    assert np.array_equal(add_bits(coded, base), bits)


def test_the_difference_is_zigzag_coded_and_wraps() -> None:
    bits = np.array([7, 8, 6, 0, 255], dtype="u1")
    base = np.array([7, 7, 7, 255, 0], dtype="u1")
    assert subtract_bits(bits, base).tolist() == [0, 2, 1, 2, 1]


def test_results_can_go_into_the_arguments() -> None:
    random = np.random.default_rng(0)
    bits, base = (random.integers(0, 2**32, (30, 20), dtype="<u4") for _ in "ab")
    target = bits.copy()
    assert subtract_bits(target, base, out=target) is target
    assert np.array_equal(target, subtract_bits(bits, base))
    kept = base.copy()
    assert add_bits(target, kept, out=kept) is kept
    assert np.array_equal(kept, bits)
    assert add_bits(target, base, out=target) is target
    assert np.array_equal(target, bits)
    scattered = np.zeros((60, 40), dtype="<u4")[::2, ::2]
    subtract_bits(bits, base, out=scattered)
    assert np.array_equal(add_bits(scattered, base), bits)


def test_a_tensor_without_axes_stays_an_array() -> None:
    coded = subtract_bits(np.array(5, dtype="<u8"), np.array(9, dtype="<u8"))
    assert isinstance(coded, np.ndarray)
    assert coded.shape == ()
    assert add_bits(coded, np.array(9, dtype="<u8")) == 5


def test_tensors_of_other_types_or_shapes_are_refused() -> None:
    bits = np.zeros(4, dtype="<u4")
    for other in (np.zeros(5, dtype="<u4"), np.zeros(4, dtype="<u2"), np.zeros((4, 1), dtype="<u4")):
        with pytest.raises(ValueError, match="cannot be coded"):
            subtract_bits(bits, other)
        with pytest.raises(ValueError, match="cannot be coded"):
            add_bits(bits, bits, out=other)
    with pytest.raises(ValueError, match="cannot be coded"):
        subtract_bits(np.zeros(4, dtype="<f4"), np.zeros(4, dtype="<f4"))


def test_a_model_trained_a_little_further_takes_fewer_bytes_against_its_base_than_in_full() -> None:
    random = np.random.default_rng(0)
    before = (random.standard_normal(100_000) * 0.05).astype("<f4")
    after = before + (random.standard_normal(100_000) * 1e-4).astype("<f4")
    kind = ELEMENT_TYPES["float32"]
    full = there_and_back(after.view("<u4"), kind, SMALLEST)
    coded = there_and_back(subtract_bits(after.view("<u4"), before.view("<u4")), coded_kind(kind), SMALLEST)
    assert np.array_equal(add_bits(coded.bits, before.view("<u4")), after.view("<u4"))
    assert coded.size_bytes < 0.75 * full.size_bytes


def test_a_model_that_did_not_change_takes_its_header() -> None:
    bits = np.arange(1000, dtype="<u4")
    assert there_and_back(subtract_bits(bits, bits), coded_kind(ELEMENT_TYPES["float32"]), SMALLEST).size_bytes == 18
