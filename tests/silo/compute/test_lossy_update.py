"""Lossy updates: what is sent, what is kept back, and that nothing is lost for good."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semisilo.common.errors import ComputeFailed
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup
from semisilo.common.methods.uplink import Uplink, parse_uplink
from semisilo.common.payload.codec import Aim, ValueForm
from semisilo.common.payload.reader import PayloadReader
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.storage.store import PayloadStore
from semisilo.silo.compute.lossy_update import Sender, largest, merged, plan_of, write_update
from tests.each_of import each_of

BASE = "ab" * 32
FORMS = ["bf16", "int8", "int4", "top-k 10%", "top-k 10% bf16", "top-k 10% int8", "top-k 10% int4"]


def sender(round: int = 1, **changes: Any) -> Sender:
    return Sender(**{"seed": 1, "round": round, "phase": "train", "silo": "a", **changes})


def difference(seed: int = 0, *, scale: float = 1e-3) -> TensorGroup:
    """Three tensors with 643 elements of several magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv.weight": (8, 3, 5, 5), "conv.bias": (8,), "head.weight": (5, 7)}
    return TensorGroup({name: torch.randn(shape, generator=generator) * scale for name, shape in shapes.items()},
                       Meaning.DIFFERENCE, BASE)


class Wire:
    """Sends updates of one silo, round by round, each folded."""

    def __init__(self, folder: Path, uplink: Uplink) -> None:
        self.store, self.uplink = PayloadStore(folder), uplink
        self.residuals: dict[str, torch.Tensor] = {}
        self.payload: PayloadRef | None = None

    def send(self, group: TensorGroup, round: int = 1, name: str = "model") -> dict[str, torch.Tensor]:
        """What the receiver decodes."""
        self.payload, left = write_update(self.store, {name: group}, self.uplink, sender=sender(round),
                                          residuals=self.residuals)
        self.residuals = merged(committed=self.residuals, pending={}, left=left, phase="train")
        decoded = decode_groups(self.store.path(self.payload.digest), require_finite=True)[name]
        assert (decoded.meaning, decoded.base) == (group.meaning, group.base)
        assert tensors.specs(decoded.tensors) == tensors.specs(group.tensors)
        return dict(decoded.tensors)

    def left_out(self, tensor: str) -> torch.Tensor:
        return self.residuals[f"train\nmodel\n{tensor}"]


# Which elements top-k keeps -------------------------------------------------------------------------------------------


@each_of(("share", "elements", "count"), [
    (0.07, 100, 7), (0.01, 100, 1), (0.01, 101, 2), (0.001, 10, 1), (1.0, 10, 10), (0.5, 0, 0), (0.29, 100, 29)])
def test_the_count_is_the_share_as_written_rounded_up(share: float, elements: int, count: int) -> None:
    """0.07 * 100 is 7.000000000000001 in float64 and 0.29 * 100 is 28.999999999999996: neither may show."""
    assert Uplink(top_k=share).sent(elements) == count


@given(tenths=st.integers(1, 1000), elements=st.integers(0, 10**9))
def test_the_count_of_any_share_a_study_can_write(tenths: int, elements: int) -> None:
    assert parse_uplink(f"top-k {tenths / 10}%").sent(elements) == math.ceil(Fraction(tenths, 1000) * elements)


@given(values=st.lists(st.lists(st.integers(-4, 4), max_size=12), min_size=1, max_size=4), data=st.data())
def test_the_largest_are_those_of_a_stable_sort(values: list[list[int]], data: st.DataObject) -> None:
    """Small integers, so that most magnitudes tie: of equal ones the first win."""
    parts = [torch.tensor(part, dtype=torch.float32) for part in values]
    flat = [value for part in values for value in part]
    count = data.draw(st.integers(0, len(flat)))
    expected = set(sorted(range(len(flat)), key=lambda position: -abs(flat[position]))[:count])
    masks = largest(parts, count)
    assert [mask.shape for mask in masks] == [part.shape for part in parts]
    assert set(torch.nonzero(torch.cat(masks)).flatten().tolist()) == expected


def test_the_largest_of_a_tensor_with_several_axes_and_of_a_scalar() -> None:
    masks = largest([torch.tensor([[1.0, -5.0], [3.0, 0.0]]), torch.tensor(4.0)], 2)
    assert masks[0].tolist() == [[False, True], [False, False]]
    assert (masks[1].shape, bool(masks[1])) == ((), True)


def test_of_equal_elements_of_a_strided_tensor_the_first_of_its_shape_win_not_the_first_in_memory() -> None:
    strided = torch.tensor([[1.0, 2.0], [-2.0, 1.0], [2.0, 2.0]]).t()
    assert not strided.is_contiguous()
    masks = largest([strided], 2)  # in the order of the shape: 1, -2, 2, 2, 1, 2
    assert masks[0].tolist() == [[False, True, True], [False, False, False]]


def test_top_k_sends_the_largest_of_the_whole_group_exactly_and_keeps_the_rest(tmp_path: Path) -> None:
    group = TensorGroup({"a": torch.tensor([0.1, -9.0, 0.2, 0.3]), "b": torch.tensor([7.0, -0.4]),
                         "c": torch.tensor([0.5, 0.6, 0.7, 0.8])}, Meaning.DIFFERENCE, BASE)
    wire = Wire(tmp_path, parse_uplink("top-k 20%"))
    sent = wire.send(group)
    assert sent["a"].tolist() == [0.0, -9.0, 0.0, 0.0]
    assert sent["b"].tolist() == [7.0, 0.0]
    assert not sent["c"].any()
    for name, tensor in group.tensors.items():
        assert torch.equal(wire.left_out(name), torch.where(sent[name] != 0, 0.0, tensor))


# Error feedback -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("form", FORMS)
def test_the_sum_of_what_was_decoded_is_the_sum_of_the_differences_less_the_last_residual(
        tmp_path: Path, form: str, rounding: str) -> None:
    """The identity of error feedback, up to the rounding of float32: one part in 2^24 of the largest for each step."""
    wire = Wire(tmp_path, parse_uplink(form, rounding=rounding))  # type: ignore[arg-type]
    decoded = {name: tensor.double() * 0 for name, tensor in difference().tensors.items()}
    whole = {name: tensor.clone() for name, tensor in decoded.items()}
    for number in range(1, 9):
        group = difference(number)
        for name, tensor in wire.send(group, number).items():
            decoded[name] += tensor.double()
            whole[name] += group.tensors[name].double()
    largest_value = max(float(tensor.abs().max()) for tensor in whole.values())
    assert any(wire.left_out(name).any() for name in decoded), "a form that leaves out nothing would prove nothing"
    for name in decoded:
        torch.testing.assert_close(decoded[name], whole[name] - wire.left_out(name).double(), rtol=0,
                                   atol=8 * 2**-23 * 4 * largest_value)


def test_what_is_left_out_is_sent_in_a_later_round(tmp_path: Path) -> None:
    """One element of three a round: the second, silent for a round, adds up and leaves in the next one."""
    wire = Wire(tmp_path, parse_uplink("top-k 33%"))
    group = TensorGroup({"w": torch.tensor([1.0, 0.75, 0.0])}, Meaning.DIFFERENCE, BASE)
    assert wire.send(group, 1)["w"].tolist() == [1.0, 0.0, 0.0]
    assert wire.send(group, 2)["w"].tolist() == [0.0, 1.5, 0.0]
    assert wire.send(group, 3)["w"].tolist() == [2.0, 0.0, 0.0]
    assert wire.left_out("w").tolist() == [0.0, 0.75, 0.0]


def test_without_error_feedback_nothing_is_kept_and_nothing_is_added(tmp_path: Path) -> None:
    wire = Wire(tmp_path, parse_uplink("top-k 33%", error_feedback=False))
    wire.residuals = {"train\nmodel\nw": torch.tensor([0.0, 9.0, 0.0])}
    payload, left = write_update(wire.store, {"model": TensorGroup({"w": torch.tensor([1.0, 0.75, 0.0])},
                                                                   Meaning.DIFFERENCE, BASE)},
                                 wire.uplink, sender=sender(), residuals=wire.residuals)
    assert left == {}
    decoded = decode_groups(wire.store.path(payload.digest), require_finite=True)["model"]
    assert decoded.tensors["w"].tolist() == [1.0, 0.0, 0.0]


def test_a_residual_that_does_not_fit_the_update_counts_as_zero(tmp_path: Path) -> None:
    group = TensorGroup({"w": torch.tensor([1.0, 0.75, 0.0])}, Meaning.DIFFERENCE, BASE)
    wire = Wire(tmp_path, parse_uplink("top-k 33%"))
    wire.residuals = {"train\nmodel\nw": torch.tensor([9.0, 9.0])}
    assert wire.send(group)["w"].tolist() == [1.0, 0.0, 0.0]


def test_a_phase_adds_its_own_residuals_only(tmp_path: Path) -> None:
    group = TensorGroup({"w": torch.tensor([1.0, 0.75, 0.0])}, Meaning.DIFFERENCE, BASE)
    wire = Wire(tmp_path, parse_uplink("top-k 33%"))
    wire.residuals = {"other\nmodel\nw": torch.tensor([0.0, 9.0, 0.0])}
    assert wire.send(group)["w"].tolist() == [1.0, 0.0, 0.0]
    assert set(wire.residuals) == {"other\nmodel\nw", "train\nmodel\nw"}


def test_after_a_later_phase_the_residuals_of_the_earlier_one_are_those_of_this_round() -> None:
    """Two phases that send differences: the second starts from what is committed, and does not undo the first."""
    one, two, three, four = (torch.tensor([float(value)]) for value in (1, 2, 3, 4))
    committed = {"train\nmodel\nw": one, "tune\nhead\nw": two}
    after_first = merged(committed=committed, pending={}, left={"train\nmodel\nw": three}, phase="train")
    assert after_first == {"train\nmodel\nw": three, "tune\nhead\nw": two}
    after_second = merged(committed=committed, pending=after_first, left={"tune\nhead\nw": four}, phase="tune")
    assert after_second == {"train\nmodel\nw": three, "tune\nhead\nw": four}
    again = merged(committed=committed, pending=after_second, left={}, phase="tune")
    assert again == {"train\nmodel\nw": three, "tune\nhead\nw": two}, "an attempt that is done again counts for nothing"
    first_ever = merged(committed={}, pending=after_second, left={}, phase="tune")
    assert first_ever == {"train\nmodel\nw": three}, "also where nothing was committed before it"
    statistics = merged(committed=committed, pending=after_first, left={}, phase="statistics")
    assert statistics == after_first
    assert list(after_second) == sorted(after_second)


# Which groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_only_float32_of_groups_of_differences_is_sent_lossily(tmp_path: Path, form: str) -> None:
    values = TensorGroup({"mean": torch.randn(40), "count": torch.arange(40)})
    half = torch.randn(40).half()
    mixed = TensorGroup({"steps": torch.arange(1, 31), "half": half, "w": torch.randn(40)}, Meaning.DIFFERENCE, BASE)
    store = PayloadStore(tmp_path)
    payload, left = write_update(store, {"batch_norm": values, "model": mixed}, parse_uplink(form), sender=sender(),
                                 residuals={})
    decoded = decode_groups(store.path(payload.digest), require_finite=True)
    assert tensors.digest(decoded["batch_norm"].tensors) == tensors.digest(values.tensors)
    assert torch.equal(decoded["model"].tensors["steps"], mixed.tensors["steps"])
    assert torch.equal(decoded["model"].tensors["half"], half)
    assert not torch.equal(decoded["model"].tensors["w"], mixed.tensors["w"]), "the control: this one is lossy"
    assert set(left) == {"train\nmodel\nw"}


@pytest.mark.parametrize("form", ["raw", "auto", "smallest", "top-k 100%"])
def test_a_lossless_form_arrives_bit_for_bit_and_leaves_out_nothing(tmp_path: Path, form: str) -> None:
    """All of the elements is all of the update. A residual of an earlier setting is not added."""
    group = difference()
    group = TensorGroup({**group.tensors, "odd": torch.tensor([-0.0, 1e-42, 0.0])}, group.meaning, group.base)
    store = PayloadStore(tmp_path)
    residuals = {"train\nmodel\nconv.bias": torch.ones(8)}
    payload, left = write_update(store, {"model": group}, parse_uplink(form), sender=sender(), residuals=residuals)
    decoded = decode_groups(store.path(payload.digest), require_finite=True)["model"]
    assert tensors.digest(decoded.tensors) == tensors.digest(group.tensors)
    assert left == {}


def test_the_default_writes_the_very_file_that_an_exact_encoding_does(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path)
    payload, _ = write_update(store, {"model": difference()}, Uplink(), sender=sender(), residuals={})
    assert payload == encode_groups(store, {"model": difference()}, plan=plan_of(Uplink()))


def test_the_plan_is_the_settings(tmp_path: Path) -> None:
    plan = plan_of(parse_uplink("top-k 1% int4", rounding="nearest"), link_bytes_per_second=5.0)
    assert (plan.aim, plan.values, plan.rounding) == (Aim.SMALLEST, ValueForm.INT4, "nearest")
    assert plan.link_bytes_per_second == 5.0
    assert plan_of(parse_uplink("auto")).values is ValueForm.EXACT


# Numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "bound"), [("bf16", 2**-8), ("int8", 1 / 127), ("int4", 1 / 7)])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_an_element_is_off_by_at_most_one_step(tmp_path: Path, form: str, bound: float, rounding: str) -> None:
    """A step of a block is at most its largest magnitude over the levels, and bfloat16 scales add one part in 128; a
    bfloat16 value is off by at most one part in 256."""
    group = difference()
    sent = Wire(tmp_path, parse_uplink(form, rounding=rounding)).send(group)  # type: ignore[arg-type]
    largest = max(float(tensor.abs().max()) for tensor in group.tensors.values())  # neighbours share scales
    for name, tensor in group.tensors.items():
        assert float((sent[name] - tensor).abs().max()) <= bound * largest * (1 + 2**-7)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_stochastic_rounding_has_the_right_mean_and_nearest_does_not(tmp_path: Path, form: str) -> None:
    """1024 elements at 0.3 of a step beside one that sets the scale. The mean over elements of the error of stochastic
    rounding is 0 with standard deviation sqrt(0.3 * 0.7 / 1024) = 0.0143 steps: five of them allow 0.072. To the
    nearest, all become 0: off by 0.3 steps."""
    levels = {"int8": 127, "int4": 7}[form]
    values = torch.full((1024,), 0.3)
    values[::64] = levels  # every group of 64 or 256 has its own scale, then one step is 1
    group = TensorGroup({"w": values}, Meaning.DIFFERENCE, BASE)
    errors = {}
    for rounding in ("stochastic", "nearest"):
        uplink = parse_uplink(form, rounding=rounding, error_feedback=False)
        sent = Wire(tmp_path, uplink).send(group)["w"]
        errors[rounding] = float((sent - values)[values < 1].mean())
    assert abs(errors["stochastic"]) < 0.072
    assert errors["nearest"] == pytest.approx(-0.3, abs=1e-3)


@pytest.mark.parametrize("form", ["int8", "top-k 10% int4"])
def test_random_numbers_follow_from_seed_round_phase_silo_and_group_alone(tmp_path: Path, form: str) -> None:
    store, uplink = PayloadStore(tmp_path), parse_uplink(form, rounding="stochastic")

    def written(name: str = "model", **changes: Any) -> str:
        torch.manual_seed(len(store.digests()))  # the global generators are no matter
        np.random.seed(len(store.digests()))
        payload, _ = write_update(store, {name: difference()}, uplink, sender=sender(**changes),
                                  residuals={})
        with PayloadReader(store.path(payload.digest)) as reader:
            return b"".join(bits.tobytes() for _, bits in reader.tensors(name)).hex()

    assert written() == written()
    others = [written(), written(seed=2), written(round=2), written(phase="tune"), written(silo="b"), written("psi")]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", ["bf16", "int8", "int4", "top-k 10%"])
def test_an_update_that_is_not_finite_is_refused_by_name_before_anything_is_written(
        tmp_path: Path, form: str, value: float) -> None:
    group = difference()
    group.tensors["conv.bias"][3] = value
    with pytest.raises(ComputeFailed, match=r"diverged: 'conv\.bias'") as caught:
        Wire(tmp_path, parse_uplink(form)).send(group)
    assert "lr" in caught.value.remedy
    assert PayloadStore(tmp_path).digests() == set()


def test_a_sum_with_the_residual_that_overflows_is_refused(tmp_path: Path) -> None:
    wire = Wire(tmp_path, parse_uplink("top-k 10%"))
    wire.residuals = {"train\nmodel\nw": torch.tensor([3e38])}
    with pytest.raises(ComputeFailed, match="diverged"):
        wire.send(TensorGroup({"w": torch.tensor([3e38])}, Meaning.DIFFERENCE, BASE))


@pytest.mark.parametrize("form", FORMS)
def test_awkward_groups_can_be_sent(tmp_path: Path, form: str) -> None:
    """No element, one element, all zero, subnormal, huge, not contiguous: and error feedback still adds up."""
    group = TensorGroup({
        "none": torch.zeros(0), "empty axis": torch.zeros(3, 0), "scalar": torch.tensor(0.25), "zero": torch.zeros(70),
        "tiny": torch.full((70,), 1e-41), "huge": torch.linspace(-1, 1, 71) * 3e38,
        "strided": torch.arange(24.0).reshape(4, 6).t()}, Meaning.DIFFERENCE, BASE)
    wire = Wire(tmp_path, parse_uplink(form))
    sent = wire.send(group)
    assert not sent["zero"].any()
    for name, tensor in group.tensors.items():
        assert wire.left_out(name).shape == tensor.shape
        torch.testing.assert_close(sent[name] + wire.left_out(name), tensor, rtol=1e-6, atol=0)


def test_the_trainers_own_tensors_are_not_changed(tmp_path: Path) -> None:
    group = difference()
    before = tensors.digest(group.tensors)
    wire = Wire(tmp_path, parse_uplink("top-k 10% int8"))
    wire.send(group, 1)
    kept = {key: tensor.clone() for key, tensor in wire.residuals.items()}
    first = wire.residuals
    wire.send(group, 2)
    assert tensors.digest(group.tensors) == before
    assert all(torch.equal(first[key], kept[key]) for key in kept)
