"""Arithmetic on named tensors, and the digest that names a base."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch
from torch import nn

from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import TensorSpec
from tests.each_of import each_of


def test_add_subtract_and_scale_work_tensor_by_tensor() -> None:
    a = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor(3.0)}
    b = {"x": torch.tensor([10.0, 20.0]), "y": torch.tensor(-1.0)}
    assert tensors.add(a, b, factor=0.5)["x"].tolist() == [6.0, 12.0]
    assert tensors.subtract(b, a)["y"].item() == -4.0
    assert tensors.scale(a, -2.0)["x"].tolist() == [-2.0, -4.0]
    assert tensors.zeros_like(a)["y"].shape == ()
    assert tensors.norm({"x": torch.tensor([3.0]), "y": torch.tensor([[4.0]])}) == 5.0


def test_inputs_are_left_as_they_were() -> None:
    a, b = {"x": torch.ones(2)}, {"x": torch.ones(2)}
    tensors.add(a, b)
    tensors.subtract(a, b)
    tensors.scale(a, 3.0)
    assert a["x"].tolist() == b["x"].tolist() == [1.0, 1.0]


@each_of(("other", "says"), [
    ({"x": torch.zeros(2)}, "'y' is missing"),
    ({"x": torch.zeros(3), "y": torch.zeros(())}, "'x' has shape 3; expected 2"),
    ({"x": torch.zeros(2), "y": torch.zeros((), dtype=torch.float64)}, "'y' is float64; expected float32"),
    ({"x": torch.zeros(2), "y": torch.zeros(()), "z": torch.zeros(1)}, "'z' is not expected"),
])
def test_a_different_layout_is_refused_naming_the_first_tensor(other: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(LayoutMismatch, match=says):
        tensors.check_same_layout({"x": torch.zeros(2), "y": torch.zeros(())}, other)


def test_digest_is_the_sha256_of_length_prefixed_names_types_shapes_and_little_endian_bytes() -> None:
    """The canonical bytes written out by hand for one tensor."""
    expected = b"semisilo-tensors-1"
    for part in (b"a", b"float32", struct.pack("<2q", 1, 2)):
        expected += struct.pack("<q", len(part)) + part
    expected += struct.pack("<2f", 1.5, -0.0)
    assert tensors.digest({"a": torch.tensor([[1.5, -0.0]])}) == hashlib.sha256(expected).hexdigest()


def test_digest_does_not_depend_on_order_strides_or_grad() -> None:
    x, y = torch.arange(6.0).reshape(2, 3), torch.tensor([1], dtype=torch.int64)
    turned = x.t().contiguous().t().requires_grad_()
    assert not turned.is_contiguous()
    assert tensors.digest({"x": x, "y": y}) == tensors.digest({"y": y, "x": turned})


@each_of("other", [
    {"x": torch.tensor([0.0, 2.0])},
    {"x": torch.tensor([-0.0, 1.0])},
    {"x": torch.tensor([[0.0, 1.0]])},
    {"x": torch.tensor([0.0, 1.0], dtype=torch.float64)},
    {"z": torch.tensor([0.0, 1.0])},
    {},
], ids=["value", "sign of zero", "shape", "type", "name", "empty"])
def test_digest_changes_with_everything_that_matters(other: dict[str, torch.Tensor]) -> None:
    assert tensors.digest(other) != tensors.digest({"x": torch.tensor([0.0, 1.0])})


@each_of("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool])
def test_digest_takes_every_type_scalars_and_empty_tensors(dtype: torch.dtype) -> None:
    assert len(tensors.digest({"a": torch.ones((), dtype=dtype), "b": torch.ones(0, 3, dtype=dtype)})) == 64


def test_specs_name_shape_and_type_in_order() -> None:
    found = tensors.specs({"b": torch.zeros(2, 3), "a": torch.zeros((), dtype=torch.bfloat16)})
    assert found == (TensorSpec("b", (2, 3), "float32"), TensorSpec("a", (), "bfloat16"))


def test_parameters_go_out_of_a_model_and_into_another_bit_for_bit() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    taken = tensors.parameters_of(one)
    tensors.load_into(other, taken)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)
    with torch.no_grad():
        one.weight.add_(1.0)
    assert not torch.equal(one.weight, taken["weight"]), "parameters_of must copy"


def test_frozen_parameters_are_neither_taken_nor_expected() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert list(tensors.parameters_of(model)) == ["weight"]
    with pytest.raises(LayoutMismatch, match="'bias' is not expected"):
        tensors.load_into(model, {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})


def test_a_refused_load_changes_nothing() -> None:
    model = nn.Linear(3, 2)
    before = tensors.parameters_of(model)
    with pytest.raises(LayoutMismatch):
        tensors.load_into(model, {"weight": torch.zeros(2, 3), "bias": torch.zeros(7)})
    assert torch.equal(before["weight"], model.weight)


def test_all_finite_sees_nan_and_infinity() -> None:
    assert tensors.all_finite({"x": torch.ones(3)})
    for bad in (float("nan"), float("inf")):
        assert not tensors.all_finite({"x": torch.ones(3), "y": torch.tensor([1.0, bad])})
