"""FedMatch's sparse transfer: which elements of named tensors are sent, and what the receiver then holds.

    s' = s if |s| > l1_thres else 0            sender's value; for psi and helpers only, sigma is not thresholded
    sent where |s' - r| > delta_thres          the receiver overwrites these and keeps the rest of its own r

Both thresholds 0 lose nothing. The sender must know r exactly, hence the coordinator's shadow of every silo.

Source: FedMatch, Jeong et al. (ICLR 2021) section 3.2 and official code; thresholding what is sent is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from semisilo.common.learning.tensors import check_same_layout

__all__ = ["SparseDelta", "comm_cost", "density", "nonzero_count", "num_elements", "sparse_delta", "threshold"]


@dataclass(frozen=True, slots=True)
class SparseDelta:
    """One transfer of named tensors."""

    receiver_after: dict[str, Tensor]
    """What the receiver holds afterwards; new tensors."""
    sent: dict[str, Tensor]
    """Whether an element is sent, bool, by tensor, in its shape."""

    @property
    def nnz(self) -> int:
        """How many elements are sent; an explicit zero is one of them."""
        return sum(int(mask.sum()) for mask in self.sent.values())


def threshold(tensors: Mapping[str, Tensor], l1_thres: float) -> dict[str, Tensor]:
    """x if |x| > l1_thres else 0, as new tensors.

    Args:
        l1_thres: at least 0; 0 changes no number.
    """
    return {name: torch.where(tensor.abs() > l1_thres, tensor, 0.0) for name, tensor in tensors.items()}


def sparse_delta(sender: Mapping[str, Tensor], receiver: Mapping[str, Tensor], *, l1_thres: float,
                 delta_thres: float) -> SparseDelta:
    """What is sent of `sender` to one who holds `receiver`; oracles M7 and M7b.

    Args:
        sender, receiver: float, same layout, finite.
        l1_thres: at least 0; 0 where nothing is thresholded, as for sigma.
        delta_thres: at least 0.
    Raises: LayoutMismatch.
    Source: the module's.
    """
    check_same_layout(receiver, sender)
    after: dict[str, Tensor] = {}
    sent: dict[str, Tensor] = {}
    for name, value in threshold(sender, l1_thres).items():
        sent[name] = (value - receiver[name]).abs() > delta_thres
        after[name] = torch.where(sent[name], value, receiver[name])
    return SparseDelta(after, sent)


def num_elements(tensors: Mapping[str, Tensor]) -> int:
    """Elements of all tensors together."""
    return sum(tensor.numel() for tensor in tensors.values())


def nonzero_count(tensors: Mapping[str, Tensor]) -> int:
    """Elements that are not 0: what travels of values whose absence means 0."""
    return sum(int(torch.count_nonzero(tensor)) for tensor in tensors.values())


def density(tensors: Mapping[str, Tensor]) -> float:
    """Share of the elements that are not 0, 0..1."""
    return nonzero_count(tensors) / max(num_elements(tensors), 1)


def comm_cost(n_params: int, *nnz: int) -> float:
    """100 * (values sent) / (parameters of theta), in percent; oracle M11.

    The paper's measure: indices are not counted. Ours, in bytes with indices, stands beside it.

    Args:
        n_params: trainable parameters of the network, above 0.
        nnz: values sent of sigma, psi, helpers.
    """
    return 100.0 * sum(nnz) / n_params
