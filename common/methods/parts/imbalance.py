"""Settings against imbalance that the methods share: labelled images, pseudo-labels, thresholds; off by default.

Tests: tests/common/methods/parts/test_imbalance.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.parts.label_task import LabelTaskSettings
from semisilo.common.methods.spec import at_least, positive, refuse_unused, within

__all__ = ["HINTS_DISCLOSE", "LABELLED_HINTS", "ImbalanceSettings", "check_class_prior"]

LABELLED_HINTS = ("labelled_prior", "labelled_confidence", "labelled_class_confidence")
"""Settings that a strategy writes into a task where silos need them: of the labelled images at the coordinator."""
HINTS_DISCLOSE = (" With labels at the coordinator a silo learns the class shares of the labelled images there if "
                  "distribution_alignment = \"labels\", and how sure the model is of them if thresholds are relative "
                  "(of each class if \"class_relative\").")
"""For the `discloses` of methods whose silos get them."""

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class ImbalanceSettings(LabelTaskSettings):
    """To be inherited by the settings of methods. The equations are in `semisilo.common.learning.imbalance`."""

    labelled_sampling: Literal["shuffled", "class_balanced"] = "shuffled"
    """How labelled images are drawn, wherever labels are: all once in an epoch, or every class equally often in an
    epoch of the same length (Shen et al., ECCV 2016; Kang et al., ICLR 2020)."""
    logit_adjustment: float = 0.0
    """tau of Menon et al. (ICLR 2021, Eq. 10): the loss of labelled images is taken of the logits + tau log(class
    shares of these images), so that rare classes are not predicted less; 1 is theirs, 0 turns it off. Nothing is added
    when predicting. Not beside class-balanced sampling, which does the same."""
    distribution_alignment: Literal["none", "labels", "uniform", "stated"] = "none"
    """Pseudo-labels are made of probabilities multiplied by target / mean prediction and normalised (ReMixMatch, ICLR
    2020, section 3.1; AdaMatch, ICLR 2022). The target: "labels", the class shares of the labelled images (those at
    the coordinator, which silos are then told; with labels-at-silo the silo's own, and none where it has no labels),
    "uniform", or "stated", `class_prior`. The mean is over all images of the silo where these are labelled once a
    round, else a running one over the batches. It forces the target on every silo: where silos have few classes each,
    or other shares than the target, it makes wrong labels; then take a small `alignment_strength` or none."""
    alignment_strength: float = 1.0
    """Power of that ratio, above 0 to 1; below 1 the target is gone towards, not reached. Ours."""
    class_prior: tuple[float, ...] = ()
    """With distribution_alignment = "stated": the share of every class among unlabelled images, in label order; above
    0, together 1."""
    thresholds: Literal["fixed", "relative", "class_relative"] = "fixed"
    """"fixed": `confidence_threshold` as it is. "relative" (AdaMatch, ICLR 2022, section 3.2): times the mean
    confidence of the model that is sent on weak views of the labelled images. "class_relative" (FreeMatch, ICLR 2023,
    Eq. 8): for class c also times its mean confidence over the surest class's. The labelled images are the
    coordinator's, measured after it has trained; with labels-at-silo the silo's own, and "fixed" where it has none."""
    labelled_prior: tuple[float, ...] = ()
    """Class shares of the coordinator's labelled images; set by the strategy in a task that needs them, never by a
    person."""
    labelled_confidence: float = 0.0
    """Mean confidence on them; set by the strategy likewise."""
    labelled_class_confidence: tuple[float, ...] = ()
    """By class, -1 for a class without images; set by the strategy likewise."""

    @property
    def measures_weak_views(self) -> bool:
        """Whether confidence on labelled images is that of weak views, as the method learns them, or of the images."""
        return True

    def check_imbalance(self, *, threshold: float, no_labels: str = "", no_alignment: str = "",
                        no_thresholds: str = "", makes_labels: bool = True, no_class_weights: str = "") -> None:
        """Refuses what is out of range, contradicts itself or would have no effect.

        Args:
            threshold: of the method, that relative ones follow.
            no_labels, no_alignment, no_thresholds: why settings of labelled images, of alignment or of thresholds have
                no effect, such as 'objective = "sl"'; empty where they have.
            makes_labels: whether unlabelled images get labels at all.
            no_class_weights: why class weights have no effect, besides `no_labels`.
        Raises: ValueError, naming the setting.
        """
        self.check_label_task(threshold=threshold, makes_labels=makes_labels,
                              no_class_weights=no_labels or no_class_weights)
        at_least("logit_adjustment", self.logit_adjustment, 0)
        positive("alignment_strength", self.alignment_strength)
        within("alignment_strength", self.alignment_strength, 0.0, 1.0)
        if self.labelled_sampling == "class_balanced" and self.logit_adjustment:
            raise ValueError('logit_adjustment beside labelled_sampling = "class_balanced" would correct twice: choose'
                             " one of them.")
        if self.multi_label:  # each of them weighs the classes of images that have one
            no_labels = no_alignment = no_thresholds = 'task = "multi_label"'
        if self.weighs_classes:
            for name in ("logit_adjustment", "labelled_sampling"):
                refuse_unused(self, name, "class_weights, which correct for the same")
        refused = {"labelled_sampling": no_labels, "logit_adjustment": no_labels,
                   "distribution_alignment": no_alignment,
                   "thresholds": no_thresholds or ("" if threshold > 0 else "a confidence_threshold of 0")}
        if self.distribution_alignment == "none":
            refused["alignment_strength"] = 'distribution_alignment = "none"'
        if self.distribution_alignment != "stated":
            refused["class_prior"] = f'distribution_alignment = "{self.distribution_alignment}"'
        for name, because in refused.items():
            if because:
                refuse_unused(self, name, because)
        if self.distribution_alignment == "stated":
            _check_shares(self.class_prior)


def _check_shares(shares: Sequence[float]) -> None:
    if not shares:
        raise ValueError('distribution_alignment = "stated" needs class_prior: the share of every class.')
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"class_prior = {list(shares)}: every share must be above 0 and at most 1.")
    if abs(sum(shares) - 1) > _SUM_TOLERANCE:
        raise ValueError(f"class_prior = {list(shares)}: the shares sum to {sum(shares):g}, must be 1.")


def check_class_prior(settings: object, classes: Sequence[str]) -> None:
    """Whether a stated prior has a share for every class of the study.

    Args:
        settings: of any method; those without imbalance settings pass.
    Raises: BadConfiguration.
    """
    if isinstance(settings, ImbalanceSettings) and settings.class_prior and len(settings.class_prior) != len(classes):
        raise BadConfiguration(f"[method] class_prior has {len(settings.class_prior)} shares, not {len(classes)}.",
                               remedy=f"Give one for each of: {', '.join(classes)}.")
