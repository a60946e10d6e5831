"""The form of a block: by bytes, or by time on a link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from semisilo.common.payload.codec import (
    ELEMENT_TYPES,
    Aim,
    Bits,
    ElementType,
    IndexEncoding,
    Plan,
    ValueEncoding,
    ValueForm,
    coded_kind,
)
from tests.common.codec_samples import FLOAT32, sparse_floats, there_and_back
from tests.each_of import each_of

SMALLEST = Plan(aim=Aim.SMALLEST)
LOOPBACK = Plan(aim=Aim.FASTEST, link_bytes_per_second=2e9)
MODEM = Plan(aim=Aim.FASTEST, link_bytes_per_second=1e6)
ELEMENTS = 2**18


def forms(bits: Bits, plan: Plan, kind: ElementType = FLOAT32) -> tuple[IndexEncoding, ValueEncoding]:
    trip = there_and_back(bits, kind, plan)
    assert np.array_equal(trip.bits, bits) or plan.values is not ValueForm.EXACT
    return trip.headers[0].index, trip.headers[0].value


def test_a_fast_link_gets_values_as_they_are_and_a_slow_one_compressed() -> None:
    dense = sparse_floats(ELEMENTS, 1).view("<u4")
    assert forms(dense, LOOPBACK) == (IndexEncoding.DENSE, ValueEncoding.RAW)
    assert forms(dense, MODEM) == (IndexEncoding.DENSE, ValueEncoding.PLANES)


def test_a_link_that_was_not_measured_counts_as_100_mbit() -> None:
    for density in (1, 0.9, 0.5, 0.1, 0.01):
        bits = sparse_floats(ELEMENTS, density).view("<u4")
        assert forms(bits, Plan(aim=Aim.FASTEST)) == forms(bits, Plan(aim=Aim.FASTEST, link_bytes_per_second=12.5e6))
    assert forms(sparse_floats(ELEMENTS, 1).view("<u4"), Plan(aim=Aim.FASTEST))[1] is ValueEncoding.PLANES


@each_of("density", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 1])
def test_a_slow_link_gets_hardly_more_than_the_smallest(density: float) -> None:
    bits = sparse_floats(ELEMENTS, density).view("<u4")
    smallest = there_and_back(bits, FLOAT32, SMALLEST).size_bytes
    assert smallest <= there_and_back(bits, FLOAT32, MODEM).size_bytes <= 1.01 * smallest
    # Compressing the values at all takes 80 us, in which 100 Mbit/s carry 1000 bytes.
    assert there_and_back(bits, FLOAT32, Plan(aim=Aim.FASTEST)).size_bytes <= 1.02 * smallest + 1000


def test_even_a_fast_link_gets_no_zeros_where_most_are() -> None:
    bits = sparse_floats(ELEMENTS, 0.01).view("<u4")
    index, value = forms(bits, LOOPBACK)
    assert index is not IndexEncoding.DENSE
    assert value is ValueEncoding.RAW
    assert forms(np.zeros(100, dtype="<u4"), LOOPBACK)[0] is IndexEncoding.EMPTY


@pytest.mark.parametrize("form", list(ValueForm))
def test_a_faster_link_never_gets_fewer_bytes(form: ValueForm) -> None:
    for density in (0.01, 0.2, 0.7, 1):
        bits = sparse_floats(ELEMENTS, density).view("<u4")
        plans = [Plan(aim=Aim.FASTEST, link_bytes_per_second=rate, values=form) for rate in (1e5, 1e7, 1e8, 1e9, 1e10)]
        sizes = [there_and_back(bits, FLOAT32, plan).size_bytes for plan in plans]
        assert sizes == sorted(sizes)


def test_raw_leaves_out_blocks_of_zeros_and_nothing_else() -> None:
    bits = sparse_floats(2**20 + 2**20 + 5, 0.01).view("<u4")
    bits[2**20:2**21] = 0
    bits[-1] = 1
    trip = there_and_back(bits, FLOAT32, Plan())
    assert [header.index.name for header in trip.headers] == ["DENSE", "EMPTY", "DENSE"]
    lossy = there_and_back(bits, FLOAT32, Plan(values=ValueForm.INT8)).headers[0]
    assert (lossy.index, lossy.value) == (IndexEncoding.DENSE, ValueEncoding.INT8)


@each_of("density", [0.001, 0.1, 0.5, 0.9])
def test_raw_lists_single_values_where_that_is_asked_for_and_compresses_none(density: float) -> None:
    """Four bytes for each value, and at most a bit of each element for the positions."""
    bits = sparse_floats(ELEMENTS, density).view("<u4")
    trip = there_and_back(bits, FLOAT32, Plan(sparse=True))
    count = int(np.count_nonzero(bits))
    assert trip.headers[0].index is not IndexEncoding.DENSE
    assert trip.headers[0].value is ValueEncoding.RAW
    assert 4 * count <= trip.size_bytes <= 18 + 4 * count + ELEMENTS / 8 + 8
    assert np.array_equal(trip.bits, bits)
    full = sparse_floats(1000, 1).view("<u4")
    assert there_and_back(full, FLOAT32, Plan(sparse=True)).headers == there_and_back(full, FLOAT32, Plan()).headers
    almost = full.copy()
    almost[7] = 0
    assert there_and_back(almost, FLOAT32, Plan(sparse=True)).size_bytes <= 18 + almost.nbytes


@each_of("plan", [SMALLEST, MODEM, LOOPBACK])
def test_other_aims_do_not_ask_whether_single_zeros_may_go(plan: Plan) -> None:
    bits = sparse_floats(ELEMENTS, 0.3).view("<u4")
    assert forms(bits, plan) == forms(bits, replace(plan, sparse=True))


def test_small_integers_keep_their_zeros_where_that_is_smaller() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 100_000, dtype="<u8")
    trip = there_and_back(labels, ELEMENT_TYPES["int64"], SMALLEST)
    assert trip.headers[0].index is IndexEncoding.DENSE
    assert trip.size_bytes < 0.032 * labels.nbytes
    noise = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype="<u8")
    noise[::2] = 0
    assert there_and_back(noise, ELEMENT_TYPES["int64"], SMALLEST).headers[0].index is not IndexEncoding.DENSE
    assert there_and_back(noise, coded_kind(ELEMENT_TYPES["float64"]), SMALLEST).size_bytes < 0.53 * noise.nbytes


@each_of("elements", [1, 2, 10, 64, 128])
def test_small_tensors_take_at_most_their_header_and_values(elements: int) -> None:
    for density in (0.1, 0.5, 1):
        bits = sparse_floats(elements, density, seed=elements).view("<u4")
        for plan in (SMALLEST, MODEM, LOOPBACK):
            assert there_and_back(bits, FLOAT32, plan).size_bytes <= 18 + bits.nbytes


@pytest.mark.parametrize(("density", "exact", "bf16", "int8"), [
    (1, 0.84, 0.342, 0.2355), (0.5, 0.46, 0.2, 0.152), (0.1, 0.1, 0.048, 0.039), (0.01, 0.0112, 0.006, 0.0052)])
def test_messages_of_unstructured_updates_take_their_share_of_dense(density: float, exact: float, bf16: float,
                                                                    int8: float) -> None:
    """Real updates are smaller: benchmarks/codec/RESULTS.md. This is full-precision noise at random positions."""
    bits = sparse_floats(2**20, density).view("<u4")
    for form, share in ((ValueForm.EXACT, exact), (ValueForm.BF16, bf16), (ValueForm.INT8, int8)):
        assert there_and_back(bits, FLOAT32, Plan(aim=Aim.SMALLEST, values=form)).size_bytes <= share * bits.nbytes
