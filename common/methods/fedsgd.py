"""FedSGD: silos send the gradient of one batch, and the coordinator takes one step with their average.

What central training does with the silos' batches put together, at the price of very many rounds: a baseline of
SemiFL's Figure 2.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import HINTS_DISCLOSE, LABELLED_HINTS
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.common.methods.parts.robust import WITHOUT_IMAGES
from semisilo.common.methods.spec import (
    PSEUDO_LABEL_METRICS,
    EitherScenario,
    MethodSpec,
    StatisticsSource,
    refuse_unused,
)

__all__ = ["FEDSGD", "FedSGDSettings"]

_OF_SEVERAL_STEPS = ("local_epochs", "steps_rule", "alpha0", "alpha0_ramp", "ramp_epochs", "label_refresh", "ema_decay",
                     "teacher")
"""Settings of local training that one gradient has no use for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FedSGDSettings(ObjectiveSettings):
    """Settings of FedSGD. Defaults of the descent are SemiFL's, whose baseline it is.

    With labels-at-coordinator silos send the gradient of the unlabelled term, and the coordinator adds that of the
    labelled term of one batch of its own: together it is the gradient of the objective.
    Source: McMahan et al., AISTATS 2017; with FixMatch as SemiFL (Diao et al., NeurIPS 2022) compares it.
    """

    scenario: EitherScenario = "labels-at-coordinator"
    """Where the labels are."""
    objective: Literal["fixmatch", "uda", "sl"] = "fixmatch"
    """The objective whose gradient is sent. "sl" learns from labels alone, so it needs them at the silos."""
    labelled_batch: int = 64
    """Labelled images of the round's batch; fewer where there are fewer."""
    unlabelled_batch: int = 64
    """Unlabelled images of the round's batch at a silo; fewer where there are fewer."""
    lr: float = 0.03
    """Learning rate of round 1."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """How `lr` falls over the rounds: not at all, or lr_t = lr/2 (1 + cos(pi (t-1) / rounds))."""
    momentum: float = 0.9
    """Momentum of the coordinator's descent."""
    nesterov: bool = True
    """Nesterov momentum."""
    weight_decay: float = 5e-4
    """L2 decay of every parameter."""
    clip_norm: float = 1.0
    """Largest global norm of the averaged gradient; 0 turns clipping off."""
    lambda_s: float = 1.0
    """Weight of the labelled term."""
    confidence_threshold: float | None = 0.95
    """A pseudo-label is kept when its probability is at least this. 0..1. (UDA itself has 0.8.)"""
    weighting: Literal["size", "uniform"] = "size"
    """Weights of accepted gradients: by the silo's images, labelled and not, or equal."""
    sbn_source: StatisticsSource = "auto"
    """Whose images give the static batch-norm statistics; "auto": the coordinator's where it has any, else the silos'.
    """

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        for name in _OF_SEVERAL_STEPS:
            refuse_unused(self, name, "FedSGD, whose silos take no step of their own")
        refuse_unused(self, "class_weights", "FedSGD")
        if self.scenario == "labels-at-silo":
            refuse_unused(self, "thresholds", "FedSGD and labels-at-silo: silos get no statistics to measure with")


FEDSGD = MethodSpec(
    name="fedsgd",
    source="McMahan et al., FedSGD, AISTATS 2017; with FixMatch as SemiFL (Diao et al., NeurIPS 2022) compares",
    scenarios=("labels-at-coordinator", "labels-at-silo"),
    down={"model": Meaning.VALUES},
    up={"gradient": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, "loss", "labelled_loss", "unlabelled_loss"),
    settings=FedSGDSettings,
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    robust_rules=WITHOUT_IMAGES,
    discloses="The coordinator sees the gradient of one batch of a silo, from which images can be reconstructed more "
              "easily than from a model trained over many batches; also how many images the silo has, its losses and, "
              "where it makes pseudo-labels, how many of each class it kept; if silos measure batch-norm statistics "
              "also mean, variance and count at every such layer. A silo sees the model." + HINTS_DISCLOSE,
)
