"""Learning rate by plateau: divided when the validation loss has not improved for a while.

It never rises: a silo that keeps the loss from falling runs it down for good (docs/operations.md says what to do).

Source: FedMatch, Jeong et al. (ICLR 2021), appendix and official code; the floor is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LR_FLOOR", "Plateau", "plateau_lr"]

LR_FLOOR = 1e-20
"""The learning rate falls no lower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plateau:
    """Where the rule stands between two evaluations."""

    lr: float
    best: float | None
    """Lowest loss so far; None before the first."""
    left: int
    """Evaluations without improvement until the next division."""


def plateau_lr(before: Plateau, loss: float, *, factor: float, patience: int) -> Plateau:
    """One evaluation; oracle M10.

        loss < best:  best = loss, left = patience
        else:         left -= 1; at 0: lr /= factor, left = patience

    Args:
        loss: of the validation set. NaN is no improvement.
        factor: at least 1; 1 keeps the learning rate.
        patience: at least 1.
    """
    if loss == loss and (before.best is None or loss < before.best):
        return Plateau(lr=before.lr, best=loss, left=patience)
    left = before.left - 1
    if left > 0:
        return Plateau(lr=before.lr, best=before.best, left=left)
    # An lr that was below the floor from the start stays as it is.
    return Plateau(lr=min(before.lr, max(before.lr / factor, LR_FLOOR)), best=before.best, left=patience)
