"""SGD momentum that a silo keeps from its last participation to the next.

Tests: tests/silo/trainers/test_semifl.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from semisilo.common.methods.contract import SiloTask
from semisilo.silo.trainers.parts.model import that_fits

__all__ = ["KeptMomentum", "momentum_to_go_on_from"]

_LOG = logging.getLogger("semisilo.silo")


@dataclass(frozen=True, kw_only=True)
class KeptMomentum:
    """Of a silo's last accepted participation."""

    momentum: dict[str, Tensor]
    """SGD momentum at its end."""
    round: int
    """Its round."""


def momentum_to_go_on_from(task: SiloTask, kept: KeptMomentum | None, received: Mapping[str, Tensor], *, persist: bool,
                           max_age_rounds: int) -> dict[str, Tensor] | None:
    """The buffers to go on from; None starts anew: the first time, by setting, after a long absence, or when what was
    kept is another model's.

    Args:
        received: parameters of the model that was sent.
        max_age_rounds: 0 for any age.
    """
    if kept is None or not persist:
        return None
    if max_age_rounds and task.round - kept.round > max_age_rounds:
        _LOG.info("momentum of round %d is older than %d rounds and starts anew", kept.round, max_age_rounds)
        return None
    return that_fits(kept.momentum, received, "momentum")
