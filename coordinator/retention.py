"""Which state files of a study are kept when a round is committed."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.rows import RoundRow
from coordinator.states import RoundState

__all__ = ["states_to_keep"]

_LAST = 3


def states_to_keep(rounds: Sequence[RoundRow], *, every: int) -> set[str]:
    """Digests of the state files to keep: of the last 3 rounds, of the best one, of every `every`-th.

    The best is the committed round with the highest test accuracy, the earliest of equals. It is kept for a person to
    look at; nothing of the study follows from it.
    """
    keep = {digest for row in rounds[-_LAST:] for digest in (row.start_digest, row.state_digest)}
    committed = [row for row in rounds if row.state is RoundState.COMPLETED]
    keep |= {row.state_digest for row in committed if row.number % every == 0}
    measured = [row for row in committed if "accuracy" in row.metrics]
    if measured:
        keep.add(max(measured, key=lambda row: (row.metrics["accuracy"], -row.number)).state_digest)
    return keep - {""}
