"""Labels alone by the paper's recipe, all of the work at once: what the pieces beside the rounds must come to."""

from __future__ import annotations

from semisilo.common.methods.contract import Environment
from semisilo.coordinator.compute.baseline import PAPER_EPOCHS, PaperLabelsAlone, PaperRecipe
from semisilo.coordinator.compute.labels_alone import LabelledOnly

__all__ = ["train_labelled_only"]


def train_labelled_only(environment: Environment, *, epochs: int = PAPER_EPOCHS, batch_size: int = 0) -> LabelledOnly:
    """From the study's own initial model."""
    alone = PaperLabelsAlone(environment, PaperRecipe(epochs=epochs, batch_size=batch_size))
    alone.work(float("inf"))
    assert alone.found is not None
    return alone.found
