"""FedMatch's down-link: what a silo holds after a task, and the tensor groups that take it there.

A silo that is known (it has a shadow) is sent what differs from its shadow; any other one everything. Groups that are
equal for many silos are made once and are the same objects in all tasks, so that each is encoded once.

Source: FedMatch, Jeong et al. (ICLR 2021) section 3.2; `common.sparse_transfer` has the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from common import tensors
from common.exchange import Meaning, TensorGroup
from common.sparse_transfer import num_elements, sparse_delta, threshold

__all__ = ["Parts", "PartsInUse", "Received", "SparseDownlink"]


class Parts(Protocol):
    """A model in two parts: a silo's shadow, or the state of a study."""

    @property
    def sigma(self) -> dict[str, Tensor]:
        """The part learnt from labels."""

    @property
    def psi(self) -> dict[str, Tensor]:
        """The part learnt without; not thresholded in a state."""


class PartsInUse(Parts, Protocol):
    """The state of a study."""

    @property
    def batch_norm(self) -> dict[str, Tensor]:
        """Static batch-norm statistics; empty for a network without such layers."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a silo starts its task from."""

    sigma: Mapping[str, Tensor]
    psi: Mapping[str, Tensor]
    values_sent: int
    """Of both, without helpers; all of them where there is no shadow."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """Tensor groups of one state, for a silo without a shadow."""

    state: PartsInUse
    sigma: TensorGroup
    psi: TensorGroup
    batch_norm: TensorGroup | None
    others: dict[str, TensorGroup] = field(default_factory=dict)
    """Made when first asked for."""


class SparseDownlink:
    """Down-links of one study. It keeps the groups of the last state that it was asked for."""

    def __init__(self, *, l1_thres: float, delta_thres: float) -> None:
        """
        Args:
            l1_thres, delta_thres: as in `sparse_delta`; sigma is not thresholded.
        """
        self._l1_thres, self._delta_thres = l1_thres, delta_thres
        self._whole: _Whole | None = None

    def received(self, state: PartsInUse, shadow: Parts | None) -> Received:
        """What a silo with this shadow holds once it has its task, to the bit. Raises: LayoutMismatch."""
        if shadow is None:
            whole = self._of(state)
            return Received(whole.sigma.tensors, whole.psi.tensors, 2 * num_elements(state.psi))
        sigma = sparse_delta(state.sigma, shadow.sigma, l1_thres=0.0, delta_thres=self._delta_thres)
        psi = sparse_delta(state.psi, shadow.psi, l1_thres=self._l1_thres, delta_thres=self._delta_thres)
        return Received(sigma.receiver_after, psi.receiver_after, sigma.nnz + psi.nnz)

    def groups(self, state: PartsInUse, shadow: Parts | None) -> dict[str, TensorGroup]:
        """"sigma" and "psi", written over the shadow where there is one, and "batch_norm" where it is needed."""
        whole = self._of(state)
        groups = {"sigma": whole.sigma, "psi": whole.psi}
        if shadow is not None:
            received = self.received(state, shadow)
            for name, result, before in (("sigma", received.sigma, shadow.sigma), ("psi", received.psi, shadow.psi)):
                groups[name] = TensorGroup(result, Meaning.OVERWRITE, base=tensors.digest(before), base_tensors=before)
        if whole.batch_norm is not None:
            groups["batch_norm"] = whole.batch_norm
        return groups

    def shared(self, state: PartsInUse, name: str, make: Callable[[], dict[str, Tensor]]) -> TensorGroup:
        """A group of VALUES that is made once for a state.

        Args:
            name: tells it from others; need not be the group's.
        """
        others = self._of(state).others
        if name not in others:
            values = make()
            others[name] = TensorGroup(values, digest=tensors.digest(values))
        return others[name]

    def forget(self) -> None:
        """Frees the memory of the last state's groups."""
        self._whole = None

    def _of(self, state: PartsInUse) -> _Whole:
        if self._whole is None or self._whole.state is not state:
            psi = threshold(state.psi, self._l1_thres)
            self._whole = _Whole(
                state, TensorGroup(state.sigma, digest=tensors.digest(state.sigma)),
                TensorGroup(psi, digest=tensors.digest(psi)),
                TensorGroup(state.batch_norm) if state.batch_norm else None)
        return self._whole
