"""Self-training with the class shares of every silo estimated: semisilo's own method.

Hospitals see classes in other shares than the hub and than each other. A model of the hub's labels then labels their
images by the wrong prior, and training on these labels moves the average towards whatever most silos see. Here the
prior is taken out of the model and put back where it belongs:

1. The coordinator trains first: its model before round 1 is that of its labels alone, made with strong and weak views,
   MixUp and logit adjustment, so that it stands for equal classes.
2. A silo estimates the class shares of its own images (expectation and maximisation), labels them with the posterior
   under these shares, and keeps the confident ones. The first batch-norm layer uses statistics of its own images where
   the model is surer of its answers so.
3. It trains on them as SemiFL does, with the logarithm of the shares of its kept labels added to the logits: what its
   classes' frequency explains is not learnt, and classes that it does not see are not unlearnt.
4. The coordinator averages, takes over what does not harm its own images, and trains on its labels again.

Where the labels are at the silos, each trains on its own ones after its pseudo-labels, with their class shares added to
the logits; in the first rounds on these alone, so that there is a model that can label.

Where they are at both, the coordinator does what it does with labels of its own alone, and a silo that has labels, be
it of a few classes, trains on them after its pseudo-labels, from the first round on.

Where images have several labels or none, every class is a two-class problem of its own: its share among a silo's images
is estimated, its labels are made under that share, and the log odds of the kept labels are added to its logit. The
model then stands for classes that half of all images show.

Nothing but what SemiFL tells leaves a silo: the estimate stays there.

With differential privacy of images (labels at the coordinator) silos train FixMatch, each image by itself: steps 2 and
3 without class shares and MixUp, which look at many images at once. Steps 1 and 4 touch no image of a silo.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.label_task import LabelTaskSettings
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.common.methods.parts.robust import RULES
from semisilo.common.methods.spec import (
    PSEUDO_LABEL_METRICS,
    MethodSpec,
    Scenario,
    StatisticsSource,
    at_least,
    below_one,
    coordinator_has_labels,
    first_unused,
    positive,
    refuse_unused,
    silos_have_labels,
    within,
)

__all__ = ["FEW_CLASSES", "SELF_TRAINING", "SelfTrainingSettings"]

FEW_CLASSES = 8
"""Fewer have a threshold and a smoothing of their own: docs/decisions/0070-self-training-of-few-classes.md."""

_SMOOTHING = 0.3
_THRESHOLDS: dict[Scenario, float] = {"labels-at-coordinator": 0.65, "labels-at-silo": 0.9, "labels-at-both": 0.65}


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTrainingSettings(LabelTaskSettings):
    """Settings of self-training. Sources stand beside each; the combination is ours
    (docs/decisions/0031-self-training.md)."""

    scenario: Scenario = "labels-at-coordinator"
    """Who holds the labels: the coordinator, silos, or the coordinator and some silos (or all)."""
    warm_up_steps: int | None = None
    """With labels at the coordinator: steps on them before round 1 by the settings below, on a cosine of their own;
    silos get the average of their weights. 0: none. Left out: the model of labels alone, the baseline of the study,
    which is then trained first. Where there is no such baseline, it is not of the strong recipe in full length, or it
    stands for another prior than logit_adjustment gives: 800 passes, but between 600 and 4000 steps."""
    coordinator_steps: int = 40
    """With labels at the coordinator: steps on them after every aggregation."""
    labelled_views: Literal["mixed", "weak"] = field(default="mixed", metadata=ABSENT_AT_DEFAULT)
    """With labels at the coordinator: what it looks at in coordinator_steps. "mixed": strong and weak views, mixed in
    pairs, as before round 1. "weak": weak views as they are, as in SemiFL; better where silos see what the coordinator
    sees and classes are told apart well, worse where they are hard to tell apart
    (docs/decisions/0109-weak-views-of-the-labels.md)."""
    warm_up_rounds: int = 2
    """With labels-at-silo: rounds in which silos learn from their labels alone; others then abstain."""
    labelled_steps: int = 40
    """With labels-at-silo and -both: steps of a silo on its own labels in a round, after its pseudo-labels, where it
    has any."""
    labelled_batch: int = 32
    """Images in a step on labels: half of them strong views, half weak ones, mixed in pairs (MixUp), unless
    labelled_views says otherwise."""
    logit_adjustment: float = 1.0
    """tau of Menon et al. (ICLR 2021, Eq. 10) for labelled images; at the coordinator where its classes differ by more
    than 1.5 to 1, at a silo always, since it may lack classes. The model stands for shares^(1 - tau), with 1 for equal
    classes. 0 turns it off."""
    silo_prior: Literal["estimated", "model"] = "estimated"
    """Under which class shares a silo labels: those of its own images, estimated once a round (Saerens, Latinne and
    Decaestecker, Neural Computation 2002), or those that the model stands for. Where nobody knows these, with labels at
    silos alone and another logit_adjustment than 1, it must be "model"."""
    prior_smoothing: float | None = None
    """The estimate counts this share of the silo's images once more, evenly over the classes (the mode under a
    Dirichlet prior), so that no class is ever impossible. Left out: 0.3, of K classes fewer than eight 0.03 K, so that
    a class of them is taken for no more frequent than one of ten would be."""
    local_logit_adjustment: float = 1.0
    """tau of the logit adjustment in a silo's losses, by the class shares of the labels that it kept (as FedLC, Zhang
    et al., ICML 2022, does with true labels). 0 turns it off."""
    confidence_threshold: float | None = None
    """tau: what a pseudo-label's probability must reach, 0..1. Left out: 0.65 with labels at the coordinator or at
    both, which is lower than elsewhere since a model that was trained on mixtures is less sure of itself than it may
    be; 0.9 with labels at silos alone, where nobody with labels of all classes puts the average right. Of K classes
    fewer than eight at least 13 / (12 + K), 0.93 of two: a label is then as many times as probable as the others are
    on average as with eight. Not so with several labels for an image, nor with differential privacy of images."""
    label_statistics: Literal["adaptive", "received"] = field(default="adaptive", metadata=ABSENT_AT_DEFAULT)
    """With which batch-norm statistics a silo labels: "received", those of the task, or "adaptive", with those of its
    own images in the first layer where the model is surer of its answers so, as where the silo's scanner is unlike the
    others' (docs/decisions/0113-labels-by-the-silos-own-first-statistics.md)."""
    local_epochs: int = 3
    """Passes over the kept images in a round."""
    unlabelled_batch: int = 32
    """Images in a batch at a silo."""
    lr: float = 0.03
    """eta: learning rate of round 1, and of a warm-up that is not labels alone, whose rate is searched."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How `lr` falls over the rounds: lr_t = lr/2 (1 + cos(pi (t-1) / rounds)), or not at all."""
    momentum: float = 0.9
    """SGD momentum at silos and coordinator."""
    nesterov: bool = True
    """Nesterov momentum."""
    weight_decay: float = 5e-4
    """L2 decay of every parameter."""
    clip_norm: float = 1.0
    """Largest global norm of a gradient; 0 turns clipping off."""
    global_momentum: float = 0.5
    """beta_g: server momentum on the averaged pseudo-gradient, as in SemiFL."""
    fix_weight: float = 1.0
    """Weight of the fix loss (strong view, pseudo-label)."""
    mix_weight: float = 1.0
    """Weight of the mix loss; 0 turns MixUp at silos off."""
    mixup_a: float = 0.75
    """a: MixUp's Beta(a, a)."""
    weighting: Literal["uniform", "size", "fedfreq"] = "uniform"
    """Weights of accepted updates: equal, by the number of unlabelled images, or FedFreq's."""
    gate: bool = True
    """Whether only so much of what the silos return is taken over (all, 1/2, 1/4 or nothing) as does not make the
    coordinator's validation images, or without any its labelled ones, worse beyond noise."""
    sbn_source: StatisticsSource = "coordinator+silos"
    """Whose images give the static batch-norm statistics: all, which takes a phase of its own; without images at the
    coordinator the silos'. Where hospitals' images look unlike the coordinator's, its own alone spoil labels and model
    (docs/decisions/0102-batch-norm-statistics-of-silos.md). "coordinator" tells less; "auto" is that where it has
    labelled or validation images, and else the silos."""
    sbn_offsets: bool = field(default=True, metadata=ABSENT_AT_DEFAULT)
    """With statistics of silos as well, and imbalanced labels at the coordinator: whether the classifier's bias makes
    up for what these statistics add to the logits of classes that have more labels, by the labelled images
    (docs/decisions/0107-offsets-of-batch-norm-statistics.md, 0112-offsets-along-the-label-shares.md)."""
    joined_passes: bool = False
    """As SemiFL's: whether the strong and the mixed batch go through the network as one."""
    persist_local_momentum: bool = True
    """Whether a silo keeps its SGD momentum between rounds."""
    momentum_max_age_rounds: int = 0
    """A silo's momentum older than this many rounds is reset; 0 keeps it without a limit."""
    round_lr: float = 0.0
    """lr_t of the current round; set by the strategy in every task, never by a person."""
    model_prior: tuple[float, ...] = ()
    """Class shares that the model stands for; set by the strategy likewise. Equal ones, unless logit_adjustment is not
    1 and the labels are imbalanced. With several labels for an image the share of images that show each class: a
    half."""

    def __post_init__(self) -> None:
        within("confidence_threshold", self.threshold, 0.0, 1.0)
        self.check_label_task(threshold=self.threshold, no_class_weights="self-training, whose "
                              "logit_adjustment corrects for the classes' sizes")
        used = {"warm_up_steps": self.labels_at_coordinator, "coordinator_steps": self.labels_at_coordinator,
                "labelled_views": self.labels_at_coordinator,
                "labelled_steps": self.labels_at_silos, "warm_up_rounds": not self.labels_at_coordinator}
        for name in (name for name, honoured in used.items() if not honoured):
            refuse_unused(self, name, f'scenario = "{self.scenario}"')
        for name in ("local_epochs", "unlabelled_batch", "labelled_batch", "labelled_steps"):
            at_least(name, getattr(self, name), 1)
        if self.warm_up_steps is not None:
            at_least("warm_up_steps", self.warm_up_steps, 0)
        for name in ("coordinator_steps", "warm_up_rounds", "logit_adjustment", "local_logit_adjustment",
                     "momentum_max_age_rounds", "clip_norm", "weight_decay", "fix_weight", "mix_weight", "lr",
                     "round_lr"):
            at_least(name, getattr(self, name), 0)
        for name in ("momentum", "global_momentum"):
            below_one(name, getattr(self, name))
        positive("mixup_a", self.mixup_a)
        if self.prior_smoothing is not None:
            positive("prior_smoothing", self.prior_smoothing)
        if self.joined_passes and not (self.fix_weight and self.mix_weight):
            raise ValueError("joined_passes = true has no effect: there is one pass only.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov = true needs momentum above 0.")
        if self.silo_prior == "model" and self.prior_smoothing != _SMOOTHING:  # which earlier versions wrote down
            refuse_unused(self, "prior_smoothing", 'silo_prior = "model"')

    @property
    def labels_at_coordinator(self) -> bool:
        """Whether the coordinator holds labels."""
        return coordinator_has_labels(self.scenario)

    @property
    def labels_at_silos(self) -> bool:
        """Whether labels of silos count."""
        return silos_have_labels(self.scenario)

    @property
    def refused_to_begin(self) -> str:
        """Why no study begins with these settings, with what to do; empty where it may. One that an earlier version has
        begun goes on."""
        unused = {} if self.mix_weight else {"mixup_a": "mix_weight = 0"}
        if not (self.persist_local_momentum and self.momentum):
            unused["momentum_max_age_rounds"] = "persist_local_momentum = false" if self.momentum else "momentum = 0"
        if self.labels_at_coordinator and not self.coordinator_steps:
            unused["labelled_views"] = "coordinator_steps = 0"
        if not self.labels_at_coordinator or self.multi_label:
            unused["sbn_offsets"] = f'scenario = "{self.scenario}"' if not self.multi_label else 'task = "multi_label"'
        elif self.sbn_source != "coordinator+silos":
            unused["sbn_offsets"] = f'sbn_source = "{self.sbn_source}"'
        if why := first_unused(self, unused):
            return why
        if self.labels_at_coordinator or self.logit_adjustment == 1 or self.silo_prior == "model":
            return ""
        return (f'logit_adjustment = {self.logit_adjustment:g} with labels at silos alone: nobody knows the class'
                ' shares that the model then stands for, and silo_prior = "estimated" begins with them. Set'
                ' logit_adjustment = 1, or silo_prior = "model".')

    @property
    def threshold(self) -> float:
        """`confidence_threshold`, or the scenario's where it is left out, of eight classes and more."""
        if self.confidence_threshold is None:
            return _THRESHOLDS[self.scenario]
        return self.confidence_threshold

    def threshold_of(self, num_classes: int) -> float:
        """The threshold where an image has one of so many classes."""
        if self.confidence_threshold is not None or num_classes >= FEW_CLASSES:
            return self.threshold
        return max(self.threshold, 13.0 / (12.0 + num_classes))

    def smoothing_of(self, num_classes: int) -> float:
        """prior_smoothing where an image has one of so many classes, or shows some of so many findings."""
        if self.prior_smoothing is not None:
            return self.prior_smoothing
        return _SMOOTHING if num_classes >= FEW_CLASSES or self.multi_label else _SMOOTHING * num_classes / 10

    @property
    def under_privacy(self) -> ObjectiveSettings:
        """What silos train with where the study has differential privacy of images: pseudo-labels of each image by
        itself, made anew in every step, and the fix loss; without MixUp and without class shares."""
        return ObjectiveSettings(
            scenario="labels-at-coordinator", objective="fixmatch", local_epochs=self.local_epochs,
            unlabelled_batch=self.unlabelled_batch, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov,
            weight_decay=self.weight_decay, lambda_u=self.fix_weight, confidence_threshold=self.threshold,
            round_lr=self.round_lr)

    @property
    def passes_side_by_side(self) -> int:
        """Those of the fix and of the mix loss."""
        return 2 if self.fix_weight and self.mix_weight and not self.joined_passes else 1


SELF_TRAINING = MethodSpec(
    name="self_training",
    source="semisilo; after Diao et al., SemiFL, NeurIPS 2022; Saerens et al., Neural Computation 2002; Menon et al., "
           "ICLR 2021; Zhang et al., FedLC, ICML 2022",
    scenarios=("labels-at-coordinator", "labels-at-silo", "labels-at-both"),
    down={"model": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, "loss", "fix_loss", "mix_loss", "steps", "labelled_loss"),
    settings=SelfTrainingSettings,
    tasks=("single_label", "multi_label"),
    set_by_strategy=("round_lr", "model_prior"),
    robust_rules=RULES,
    summed=True,
    dp_units=("example",),
    discloses="The coordinator sees a silo's model difference, how many images it has, its losses, how many of its "
              "images got a pseudo-label that it kept and of which class, and keeps count of the rounds in which the "
              "silo took part; where silos measure batch-norm statistics also mean, variance and count at every "
              "batch-norm layer. The estimated class shares stay at the silo. Of labels that a silo trains on their "
              "number and the loss on them are told, and the difference follows from them, the more so the fewer they "
              "are. A silo learns the class shares of the labelled images at the coordinator only where "
              "logit_adjustment is not 1 and they are imbalanced.",
)
