"""Fed-SHVR: soft pseudo-labels and a confidence penalty at the silos, normalised averaging, corrected gradients.

For silos whose unlabelled images are of classes that their labelled ones lack, and which differ from each other. Once
a round a silo gives every unlabelled image a distribution over the classes, and trains on it beside its labels. What
its gradients have over those of all silos together is taken off them in the next round, so that many local steps do not
pull the silos apart; and silos that took more steps weigh no more.

Where few silos take part in a round, the correction of one may be many rounds old. If silos often lose what they
keep, or their images change in number, choose `correction_at = "coordinator"`: else every such event costs all silos
one round without correction (metric correction_lost).

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import LABELLED_HINTS, ImbalanceSettings
from semisilo.common.methods.parts.secure_sum import STEPS
from semisilo.common.methods.spec import PSEUDO_LABEL_METRICS, MethodSpec, StatisticsSource, at_least, positive

__all__ = ["FED_SHVR", "JOINS", "LOST", "FedSHVRSettings"]

JOINS, LOST = "joins", "lost"
"""Totals of an update: 1 where the silo is not in the sum of control variates yet, and where it has lost its own."""

_RAMP_EPOCHS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class FedSHVRSettings(ImbalanceSettings):
    """Settings of Fed-SHVR and its two ablations. Defaults are the paper's where it has them. Source: Wang et al.,
    2021, section IV. Silos descend with plain SGD: the correction needs the sum of raw gradients, so there is neither
    momentum nor weight decay nor clipping."""

    scenario: Literal["labels-at-silo"] = "labels-at-silo"
    """Fed-SHVR is defined for labels at the silos only; a silo may have labelled images, unlabelled ones or both."""
    variant: Literal["fed_shvr", "fed_sh", "fed_svr"] = "fed_shvr"
    """"fed_sh": without the correction (FedNova with this loss); "fed_svr": with it, but models averaged plainly
    (VRL-SGD with this loss)."""
    alpha0: float = 1.0
    """alpha_0: weight of the unlabelled images once the ramp is over; the paper does not give its value."""
    alpha0_ramp: Literal["sigmoid", "linear", "none"] = "sigmoid"
    """How alpha_0 rises over the first `ramp_epochs`: exp(-5 (1 - x)^2), x, or at once."""
    ramp_epochs: int = _RAMP_EPOCHS
    """Local epochs (`local_epochs` in every round) after which alpha_0 is reached."""
    alpha1: float = 0.75
    """alpha_1: keeps pseudo-labels soft; 0 gives hard ones. Labels are f^(alpha_0 / alpha_1), normalised."""
    alpha2: float = 0.1
    """alpha_2: confidence penalty on the model's predictions for unlabelled images; 0 turns it off."""
    r2_reduction: Literal["mean", "sum"] = "mean"
    """The penalty of a batch: the mean over its images, or their sum as the paper's Eq. 9 is printed, which weighs
    `unlabelled_batch` times as much. With the paper's alpha2 "sum" lies nearer to its Table I."""
    local_epochs: int = 2
    """E: passes in a round over the larger of the two sets, counted in its batches."""
    labelled_batch: int = 32
    """B_l: labelled images in a batch."""
    unlabelled_batch: int = 32
    """B_u: unlabelled images in a batch."""
    lr: float = 0.01
    """Learning rate, constant."""
    correction_at: Literal["silo", "coordinator"] = "silo"
    """Who keeps each silo's control variate: the silo, or the coordinator, which needs one model's room on disk for
    each silo. The latter for silos that come and go, whose number of images changes, or with a lossy [wire] uplink."""
    correction_max_age_rounds: int = 0
    """With `correction_at = "coordinator"`: a silo that was away for more rounds than this starts again with correction
    0; 0 keeps it without a limit."""
    sbn_source: StatisticsSource = "auto"
    """Whose images give the static batch-norm statistics: the coordinator's labelled or validation images where it has
    any, else the silos' ("auto"), or as said."""
    correction_since: int = 0
    """Where updates are added up behind masks: the first round of the sum of control variates that the task belongs to,
    the same for all silos; else 0. Set by the strategy, never by a person."""
    correction_epoch: int = 0
    """Number of the sum of control variates that the task belongs to; set by the strategy, never by a person."""
    correction_round: int = 0
    """The round whose control variate of this silo is in that sum, 0 for none; set by the strategy, never by a
    person."""

    @property
    def penalty_of_mean(self) -> float:
        """The weight of the mean penalty over a silo's images in its gradient: alpha_2, for a sum times the batch."""
        return self.alpha2 * (self.unlabelled_batch if self.r2_reduction == "sum" else 1)

    @property
    def weighting(self) -> str:
        """By what a silo counts: its images, as the method has it."""
        return "size"

    @property
    def sums_per_step(self) -> bool:
        """See `semisilo.common.methods.parts.secure_sum.sums_per_step`."""
        return self.variant != "fed_svr"

    @property
    def sum_totals(self) -> tuple[str, ...]:
        """See `semisilo.common.methods.parts.secure_sum.totals_of`."""
        return (STEPS,) if self.variant == "fed_sh" else (STEPS, JOINS, LOST)

    @property
    def keeps_weights(self) -> bool:
        """See `semisilo.common.methods.parts.secure_sum.keeps_weights`: a control variate is in the sum of all with its
        silo's weight, and is taken out with it."""
        return self.variant != "fed_sh"

    @property
    def needs_exact_updates(self) -> bool:
        """A silo that keeps its own control variate must keep what the coordinator decodes, or the sum drifts."""
        return self.variant != "fed_sh" and self.correction_at == "silo"

    def __post_init__(self) -> None:
        self.check_imbalance(threshold=0.0, no_thresholds="Fed-SHVR, whose labels are soft: all images enter",
                             no_class_weights="Fed-SHVR")
        for name in ("alpha0", "alpha1", "alpha2", "correction_max_age_rounds", "correction_epoch", "correction_round",
                     "correction_since"):
            at_least(name, getattr(self, name), 0)
        for name in ("local_epochs", "labelled_batch", "unlabelled_batch", "ramp_epochs"):
            at_least(name, getattr(self, name), 1)
        positive("lr", self.lr)
        if self.alpha0_ramp == "none" and self.ramp_epochs != _RAMP_EPOCHS:
            raise ValueError(f'ramp_epochs = {self.ramp_epochs}: alpha0_ramp = "none" has no ramp.')
        if self.r2_reduction != "mean" and not self.alpha2:
            raise ValueError(f'r2_reduction = "{self.r2_reduction}": alpha2 = 0 has no penalty to reduce.')
        if self.variant == "fed_sh" and self.correction_at != "silo":
            raise ValueError(f'correction_at = "{self.correction_at}": variant = "fed_sh" has no correction.')
        if self.correction_max_age_rounds and (self.variant == "fed_sh" or self.correction_at == "silo"):
            raise ValueError('correction_max_age_rounds needs a correction with correction_at = "coordinator": only '
                             "who keeps the old control variate can take it out of the sum.")

    @property
    def passes_side_by_side(self) -> int:
        """Those of the labelled and of the unlabelled batch."""
        return 2


FED_SHVR = MethodSpec(
    name="fed_shvr",
    source="Wang et al., Fed-SHVR, arXiv 2021",
    scenarios=("labels-at-silo",),
    down={"model": Meaning.VALUES, "correction": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, "loss", "labelled_loss", "unlabelled_loss", "r1", "r2", "steps", "correction_lost"),
    counts=("steps",),
    settings=FedSHVRSettings,
    summed=True,
    set_by_strategy=("correction_epoch", "correction_round", "correction_since", *LABELLED_HINTS),
    discloses="A silo receives the mean gradient of all silos that have taken part so far (group correction); where "
              "there are only two, each can work out the other's. The coordinator sees a silo's model difference, how "
              "many images it has, how many steps it took, the class shares of its pseudo-labels and its losses; with "
              "correction_at = \"coordinator\" it keeps the silo's last mean gradient. Where silos measure batch-norm "
              "statistics, also mean, variance and count at every batch-norm layer.",
)
