"""FedMatch: weights split into a part learnt from labels and a sparse part learnt without, and help among silos.

Every weight is sigma + psi. sigma learns from labels, at the coordinator or at the silos; psi from unlabelled images at
the silos. A silo's pseudo-labels are a vote of its own model and of helpers, models of other silos that the coordinator
picks; where they disagree with the silo's model it is drawn towards them. Only differences that matter travel.

As it stands (and in v1) silos are weighed and helpers picked by accuracy, so the coordinator needs validation images;
aggregation = "uniform" with helpers = "similarity", as in v3, needs none. The published learning rates are made for
many rounds: studies of few rounds, or few images, want ten to a hundred times more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import HINTS_DISCLOSE, LABELLED_HINTS, ImbalanceSettings
from semisilo.common.methods.spec import (
    PSEUDO_LABEL_METRICS,
    EitherScenario,
    MethodSpec,
    StatisticsSource,
    at_least,
    below_one,
    first_unused,
    positive,
    within,
)

__all__ = ["FEDMATCH", "FedMatchPreset", "FedMatchSettings", "preset_values"]

FedMatchPreset = Literal["", "paper_v1", "paper_v3"]

_OF_PRESET: Any = None
"""Default of a field whose value the preset gives. It is never seen: `__post_init__` puts the value in its place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FedMatchSettings(ImbalanceSettings):
    """Settings of FedMatch. What a study does not set comes from its preset and scenario (`preset_values`); an instance
    always holds the resulting values, and these are what travels in tasks.

    The plain transfer ("dense" in the paper) is lambda_l1 = 0, l1_thres = 0 and delta_thres = 0.
    Source: Jeong et al., arXiv 2006.12097 (v1) and ICLR 2021 (v3) with official code.
    """

    scenario: EitherScenario = "labels-at-coordinator"
    """Who holds the labels; the paper's "disjoint" is labels-at-coordinator, its "standard" labels-at-silo."""
    preset: FedMatchPreset = ""
    """Values of a published version for all settings that the study does not set. "" has those of v1, but ties among
    votes go to the local model and the transfer has the official code's thresholds, where v1 has none."""
    confidence_threshold: float = _OF_PRESET
    """tau: an image is kept when the local model's probability is at least this. 0.75 (v1), 0.85 (v3). 0..1."""
    lr: float = _OF_PRESET
    """Learning rate of round 1: 0.0001 (v1), 0.001 (v3)."""
    momentum: float = _OF_PRESET
    """SGD momentum, of sigma and psi apart: 0.9 (v1), 0 (v3). A silo's starts at zero in every task, the coordinator's
    goes on over the rounds."""
    weight_decay: float = 0.0
    """L2 decay of the part that a step trains. v3 names 1e-4, which never reaches the loss in its code."""
    clip_norm: float = 0.0
    """Largest global norm of a gradient; 0 turns clipping off. Not in the paper."""
    plateau_factor: float = 3.0
    """The learning rate is divided by this when the validation loss does not improve; 1 keeps it. Without validation
    images at the coordinator it is constant."""
    plateau_patience: int = _OF_PRESET
    """Rounds without improvement before that: 3 (v1); v3 5 with labels at silos, 20 with labels at the coordinator."""
    local_epochs: int = 1
    """E_L: epochs at a silo in a round."""
    coordinator_epochs: int = _OF_PRESET
    """E_G: passes over the coordinator's labelled images in a round, 1. With labels at silos 0: it does not train."""
    labelled_batch: int = _OF_PRESET
    """B_S: labelled images in a batch: 10; 100 in v3 with labels at the coordinator."""
    unlabelled_batch: int = _OF_PRESET
    """B_U: unlabelled images in a batch: 50 (v1), 100 (v3). With labels at silos v3 takes
    ceil(M_k / steps) instead, except at a silo without labels."""
    steps_by: Literal["unlabelled", "labelled"] = _OF_PRESET
    """Steps of an epoch. "unlabelled" (v1): every unlabelled image once, labelled batches repeat as needed. "labelled"
    (v3): round(N_k / labelled_batch), so that every labelled image comes about once; without labels at the silo
    round(M_k / unlabelled_batch). Images beyond steps x batch are not used in that epoch. By "labelled" a silo with few
    labels takes all its other images in a step or two."""
    augment_train: bool = _OF_PRESET
    """Whether training images, labelled and unlabelled, are weak views (v1) or as they are (v3)."""
    lambda_s: float = 10.0
    """Weight of the cross-entropy on labels."""
    lambda_a: float = _OF_PRESET
    """Weight of the cross-entropy on pseudo-labels: 1 (v1), 0.01 (v3)."""
    lambda_i: float = _OF_PRESET
    """Weight of the inter-client consistency: 1 (v1), 0.01 (v3)."""
    lambda_l2: float = _OF_PRESET
    """Weight of ||sigma - psi||^2, a sum: 0.01 (v1), 10 (v3). lr * lambda_l2 must stay below 1 or psi diverges."""
    lambda_l1: float = _OF_PRESET
    """Weight of ||psi||_1: 0.01 (v1 sparse; its dense rows have 0); v3 1e-4 with labels at silos, else 1e-5."""
    l1_update: Literal["subgradient", "proximal"] = "subgradient"
    """How ||psi||_1 acts: in the gradient, as published, or by soft thresholding after the step, which makes exact
    zeros and so saves bytes."""
    l1_thres: float = _OF_PRESET
    """Elements of psi up to this size are sent, and evaluated, as 0: 5e-6 with labels at silos, else 1e-5; 0 (v1)."""
    delta_thres: float = _OF_PRESET
    """Differences up to this size to what the receiver holds are not sent: 5e-5 with labels at silos, else 1e-5; 0
    (v1)."""
    aggregation: Literal["reliability", "uniform", "size", "fedfreq"] = _OF_PRESET
    """Weights of silos: by accuracy on the coordinator's validation images (v1), equal (v3), by the number of images
    (FedMix's comparison), or FedMix's FedFreq."""
    num_helpers: int = 2
    """H: models of other silos that a silo receives; 0 turns helpers off. 0..16."""
    helpers: Literal["reliability", "similarity"] = _OF_PRESET
    """Which: the silos with the best accuracy on validation images (v1), or those whose models answer a fixed noise
    image most alike (v3)."""
    helper_interval: int = _OF_PRESET
    """Helpers are sent in rounds that are a multiple of this: 1 (v1), 10 (v3)."""
    keep_helpers: bool = False
    """Whether a silo keeps its helpers for the rounds in between. In the official code it does not."""
    helper_pool: Literal["last_round", "all"] = _OF_PRESET
    """Who may be a helper: silos of the last round that accepted updates (v1), or every silo so far (v3). With "all"
    the coordinator's state holds one psi per silo."""
    helper_max_age_rounds: int = 0
    """A silo whose last accepted update is older than this many rounds is not chosen; 0: no limit."""
    icc: Literal["sum", "mean"] = _OF_PRESET
    """The inter-client term over helpers: sum (v1) or mean (v3)."""
    icc_images: Literal["kept", "all"] = "kept"
    """The images of the inter-client term: those with a pseudo-label, as in the official code, or every unlabelled one,
    as Eq. 1 and 2 are printed."""
    tie_break: Literal["local_first", "lowest_index"] = _OF_PRESET
    """Which class wins among those with equally many votes: the local model's if it is one of them, or the lowest
    index, as in the official code and both presets."""
    abstain_if_no_confident: bool = False
    """Whether a silo that kept no image, and learnt from no label, abstains. As published it answers with a psi that
    was only drawn towards sigma."""
    sbn_source: StatisticsSource = "auto"
    """Who measures static batch-norm statistics, for networks that have them; "auto": the coordinator where it has
    labelled or validation images, else the silos. The published networks have none."""
    round_lr: float = 0.0
    """Learning rate of the current round; set by the strategy in every task, never by a person."""

    def __post_init__(self) -> None:
        for name, value in preset_values(self.preset, self.scenario).items():
            if getattr(self, name) is _OF_PRESET:
                object.__setattr__(self, name, value)
        within("confidence_threshold", self.confidence_threshold, 0.0, 1.0)
        for name in ("local_epochs", "labelled_batch", "unlabelled_batch", "plateau_patience", "plateau_factor",
                     "helper_interval"):
            at_least(name, getattr(self, name), 1)
        for name in ("coordinator_epochs", "lr", "round_lr", "weight_decay", "clip_norm", "lambda_s", "lambda_a",
                     "lambda_i", "lambda_l2", "lambda_l1", "l1_thres", "delta_thres", "helper_max_age_rounds"):
            at_least(name, getattr(self, name), 0)
        within("num_helpers", self.num_helpers, 0, 16)
        below_one("momentum", self.momentum)
        if self.scenario == "labels-at-silo" and self.coordinator_epochs:
            raise ValueError(f"coordinator_epochs = {self.coordinator_epochs}: in labels-at-silo the coordinator has"
                             " nothing to train on; leave it out.")
        if self.icc_images == "all" and not (self.lambda_i and self.num_helpers):
            raise ValueError('icc_images = "all": without lambda_i and num_helpers there is no inter-client term.')
        if self.l1_update == "proximal":
            positive("lambda_l1", self.lambda_l1)  # otherwise the proximal step does nothing
        idle = self.scenario == "labels-at-coordinator" and not self.coordinator_epochs
        self.check_imbalance(threshold=self.confidence_threshold, no_labels="coordinator_epochs = 0" if idle else "",
                             no_class_weights="FedMatch")

    @property
    def refused_to_begin(self) -> str:
        """See `semisilo.common.methods.spec.first_unused`."""
        of_helpers = ("helpers", "helper_interval", "helper_pool", "helper_max_age_rounds", "keep_helpers", "tie_break",
                      "lambda_i", "icc")
        unused = {} if self.num_helpers else dict.fromkeys(of_helpers, "num_helpers = 0")
        if not self.lambda_i:
            unused.setdefault("icc", "lambda_i = 0")
        if self.plateau_factor == 1:
            unused["plateau_patience"] = "plateau_factor = 1"
        if self.scenario == "labels-at-coordinator" and not self.coordinator_epochs:
            unused["lambda_s"] = "coordinator_epochs = 0"
        if not self.num_helpers and not self.lambda_i:  # both say the same
            del unused["lambda_i"]
        return first_unused(self, unused, defaults=preset_values(self.preset, self.scenario))

    @property
    def measures_weak_views(self) -> bool:
        return self.augment_train


def preset_values(preset: FedMatchPreset, scenario: EitherScenario) -> Mapping[str, object]:
    """The settings that a preset fills in where a study leaves them out; section 8 of the published table.

    Thresholds of the transfer are the official code's, but in "paper_v1": v1 names none. What it counts as sent then
    takes exact zeros, `l1_update = "proximal"`, or thresholds that the study sets.
    """
    at_silo = scenario == "labels-at-silo"
    shared = {"coordinator_epochs": 0 if at_silo else 1, "l1_thres": 5e-6 if at_silo else 1e-5,
              "delta_thres": 5e-5 if at_silo else 1e-5}
    if preset == "paper_v3":
        return {**shared, "confidence_threshold": 0.85, "lr": 1e-3, "momentum": 0.0,
                "plateau_patience": 5 if at_silo else 20, "labelled_batch": 10 if at_silo else 100,
                "unlabelled_batch": 100, "steps_by": "labelled", "augment_train": False, "lambda_a": 1e-2,
                "lambda_i": 1e-2, "lambda_l2": 10.0, "lambda_l1": 1e-4 if at_silo else 1e-5, "aggregation": "uniform",
                "helpers": "similarity", "helper_interval": 10, "helper_pool": "all", "icc": "mean",
                "tie_break": "lowest_index"}
    if preset == "paper_v1":
        shared |= {"l1_thres": 0.0, "delta_thres": 0.0}
    return {**shared, "confidence_threshold": 0.75, "lr": 1e-4, "momentum": 0.9, "plateau_patience": 3,
            "labelled_batch": 10, "unlabelled_batch": 50, "steps_by": "unlabelled", "augment_train": True,
            "lambda_a": 1.0, "lambda_i": 1.0, "lambda_l2": 0.01, "lambda_l1": 0.01, "aggregation": "reliability",
            "helpers": "reliability", "helper_interval": 1, "helper_pool": "last_round", "icc": "sum",
            "tie_break": "lowest_index" if preset == "paper_v1" else "local_first"}


FEDMATCH = MethodSpec(
    name="fedmatch",
    source="Jeong, Yoon, Yang and Hwang, FedMatch, arXiv 2006.12097 (v1) and ICLR 2021 (v3)",
    scenarios=("labels-at-coordinator", "labels-at-silo"),
    down={"sigma": Meaning.OVERWRITE, "psi": Meaning.OVERWRITE, "helper_psi/*": Meaning.VALUES,
          "batch_norm": Meaning.VALUES, "model": Meaning.VALUES},
    up={"sigma": Meaning.OVERWRITE, "psi": Meaning.OVERWRITE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, "loss", "label_loss", "agreement_loss", "consistency_loss", "steps", "num_labelled",
             "num_unlabelled", "num_kept"),
    settings=FedMatchSettings,
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    discloses="A silo receives the psi weights of up to num_helpers other silos, without their names, and so can "
              "compute those silos' models; with keep_helpers it stores them. A silo that does not permit the group "
              "helper_psi/* does not take part, so its own psi goes to nobody. The coordinator sees a silo's own "
              "weights sigma and psi, keeps them, scores or compares its model on images of its own, and learns how "
              "many labelled and unlabelled images it has, its losses and how many of the unlabelled ones got a "
              "pseudo-label of each class; where silos measure batch-norm statistics also mean, variance and count "
              "at every such layer." + HINTS_DISCLOSE,
)
