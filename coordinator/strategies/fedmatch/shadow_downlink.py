"""FedMatch's down-link: what a silo holds after a task, and the tensor groups that take it there.

A silo that is known (it has a shadow) is sent what differs from its shadow; any other one everything. Groups that are
equal for many silos are the same objects in all tasks, so that each is encoded once: the state remembers them.

Source: FedMatch, Jeong et al. (ICLR 2021) section 3.2; `semisilo.common.learning.sparse_transfer` has the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.sparse_transfer import num_elements, sparse_delta, threshold
from semisilo.common.methods.contract import Meaning, TensorGroup
from semisilo.coordinator.strategies.parts.served import ServedGroups

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

    @property
    def served(self) -> ServedGroups:
        """What silos are sent of the state."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a silo starts its task from."""

    sigma: Mapping[str, Tensor]
    psi: Mapping[str, Tensor]
    values_sent: int
    """Of both, without helpers; all of them where there is no shadow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseDownlink:
    """Down-links of one study."""

    l1_thres: float
    """As in `sparse_delta`; sigma is not thresholded."""
    delta_thres: float
    """As in `sparse_delta`."""

    def received(self, state: PartsInUse, shadow: Parts | None) -> Received:
        """What a silo with this shadow holds once it has its task, to the bit. Raises: LayoutMismatch."""
        if shadow is None:
            whole = self._whole(state)
            return Received(whole["sigma"].tensors, whole["psi"].tensors, 2 * num_elements(state.psi))
        sigma = sparse_delta(state.sigma, shadow.sigma, l1_thres=0.0, delta_thres=self.delta_thres)
        psi = sparse_delta(state.psi, shadow.psi, l1_thres=self.l1_thres, delta_thres=self.delta_thres)
        return Received(sigma.receiver_after, psi.receiver_after, sigma.nnz + psi.nnz)

    def groups(self, state: PartsInUse, shadow: Parts | None) -> dict[str, TensorGroup]:
        """"sigma" and "psi", written over the shadow where there is one, and "batch_norm" where it is needed."""
        groups = self._whole(state)
        if shadow is not None:
            received = self.received(state, shadow)
            for name, result, before in (("sigma", received.sigma, shadow.sigma), ("psi", received.psi, shadow.psi)):
                groups[name] = TensorGroup(result, Meaning.OVERWRITE, base=tensors.digest(before), base_tensors=before)
        return {**groups, **state.served.batch_norm(state.batch_norm)}

    def _whole(self, state: PartsInUse) -> dict[str, TensorGroup]:
        """"sigma" and "psi" for a silo without a shadow."""
        return {"sigma": state.served.group("sigma", lambda: state.sigma),
                "psi": state.served.group("psi", lambda: threshold(state.psi, self.l1_thres))}
