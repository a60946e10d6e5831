"""Arithmetic on named tensors: add, subtract, scale, same-layout check, digest, and the way in and out of a model.

A model's tensors are its trainable parameters in the order of `named_parameters()`; batch-norm affine parameters are
among them, batch-norm statistics are not (common/learning/batch_norm.py).
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisilo.common.errors import LayoutMismatch
from semisilo.common.methods.contract import TensorGroup, TensorSpec

__all__ = [
    "add", "all_finite", "all_like", "check_same_layout", "digest", "group_digest", "like", "load_into", "norm",
    "parameters_of", "scale", "specs", "subtract", "zeros_like",
]


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, factor: float = 1.0) -> dict[str, Tensor]:
    """a + factor * b, tensor by tensor, as new tensors of a's dtype. Raises: LayoutMismatch."""
    check_same_layout(a, b)
    return {name: torch.add(a[name], b[name], alpha=factor) for name in a}


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """a - b, tensor by tensor, as new tensors. Raises: LayoutMismatch."""
    check_same_layout(a, b)
    return {name: a[name] - b[name] for name in a}


def scale(a: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """factor * a, as new tensors of the same dtypes."""
    return {name: tensor * factor for name, tensor in a.items()}


def zeros_like(a: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros with the names, shapes and dtypes of `a`."""
    return {name: torch.zeros_like(tensor) for name, tensor in a.items()}


def norm(a: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all elements of all tensors, accumulated in float64."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in a.values()))


def all_finite(a: Mapping[str, Tensor]) -> bool:
    """Whether no element is NaN or infinite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in a.values())


def check_same_layout(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """Compares names, shapes and dtypes; the order of names does not matter.

    Raises: LayoutMismatch, naming the first tensor (in the order of `a`, then `b`) that differs.
    """
    for name, tensor in a.items():
        other = b.get(name)
        if other is None:
            raise LayoutMismatch(f"Tensor '{name}' is missing.")
        if tensor.shape != other.shape:
            raise LayoutMismatch(f"Tensor '{name}' has shape {_shape(other)}; expected {_shape(tensor)}.")
        if tensor.dtype != other.dtype:
            raise LayoutMismatch(f"Tensor '{name}' is {_dtype(other)}; expected {_dtype(tensor)}.")
    for name in b:
        if name not in a:
            raise LayoutMismatch(f"Tensor '{name}' is not expected.")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of names, dtypes, shapes and the exact little-endian bits, in byte order of the names.

    Every part is preceded by its length, so that no two different sets give the same bytes. Independent of the order
    of the mapping, of strides and of the device; -0.0 and 0.0 differ, as do different NaNs.
    """
    total = hashlib.sha256(b"semisilo-tensors-1")
    for name in sorted(tensors, key=str.encode):
        tensor = tensors[name]
        for part in (name.encode(), _dtype(tensor).encode(), struct.pack(f"<{tensor.dim()}q", *tensor.shape)):
            total.update(struct.pack("<q", len(part)))
            total.update(part)
        raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        if sys.byteorder == "big":
            raw = raw.reshape(-1, tensor.element_size()).flip(1).reshape(-1)
        total.update(raw.numpy().data)
    return total.hexdigest()


def group_digest(group: TensorGroup) -> str:
    """The digest of a group's tensors: what came with it, else computed."""
    return group.digest or digest(group.tensors)


def specs(tensors: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
    """Names, shapes and dtypes, in the order of the mapping."""
    return tuple(TensorSpec(name, tuple(tensor.shape), _dtype(tensor)) for name, tensor in tensors.items())


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Contiguous copies of the trainable parameters, detached, on the CPU, in the order of `named_parameters()`."""
    return {name: parameter.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, parameter in model.named_parameters() if parameter.requires_grad}


def like(pattern: Tensor, tensor: Tensor) -> Tensor:
    """A copy of a tensor, detached, on the device and in the memory format of another one of its shape and dtype."""
    return torch.empty_like(pattern, requires_grad=False).copy_(tensor.detach())


def all_like(patterns: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`like`, tensor by tensor, in the order of the patterns. Raises: LayoutMismatch."""
    check_same_layout(patterns, given)
    return {name: like(pattern, given[name]) for name, pattern in patterns.items()}


def load_into(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies named tensors into the trainable parameters of a model, on whatever device it is.

    Raises: LayoutMismatch when they are not exactly the model's; the model is then unchanged.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    check_same_layout(parameters, tensors)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _shape(tensor: Tensor) -> str:
    return "x".join(str(length) for length in tensor.shape) or "()"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
