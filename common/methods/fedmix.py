"""FedMix: supervised, unsupervised and previous global model are mixed; FedFreq weighs the silos by participation.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import HINTS_DISCLOSE, LABELLED_HINTS, ImbalanceSettings
from semisilo.common.methods.parts.robust import RULES
from semisilo.common.methods.spec import (
    PSEUDO_LABEL_METRICS,
    MethodSpec,
    at_least,
    below_one,
    first_unused,
    refuse_unused,
    within,
)

__all__ = ["FEDMIX", "FedMixSettings"]

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class FedMixSettings(ImbalanceSettings):
    """Settings of FedMix. Defaults are the paper's where it has them, else those of FedMatch, its authors' baseline.

    Source: Zhang et al., arXiv 2110.13388.
    """

    scenario: Literal["labels-at-coordinator"] = "labels-at-coordinator"
    """FedMix is defined for labels at the coordinator only."""
    confidence_threshold: float = 0.8
    """tau: a pseudo-label is kept when its mean probability over the views is at least this. 0..1."""
    num_views: int = 5
    """A: random views of an image that are averaged into its pseudo-label."""
    label_rule: Literal["mean", "vote"] = "mean"
    """The label of an image: the likeliest class of the mean over its views, or the class that most views say. They
    differ for thresholds below 0.75 only."""
    mix_alpha: float = 0.5
    """alpha: share of psi, the silos' aggregate, in the next global model. Near-equal shares are best when silos are
    alike."""
    mix_beta: float = 0.3
    """beta: share of sigma, the model trained on labels."""
    mix_gamma: float = 0.2
    """gamma: share of the global model as it was; damps its drift. The three sum to 1."""
    lambda_s: float = 10.0
    """Weight of the cross-entropy on labels at the coordinator. Not in the paper; FedMatch's."""
    lambda_1: float = 0.01
    """Weight of the cross-entropy on pseudo-labels at a silo. Not in the paper; FedMatch's."""
    lambda_2: float = 10.0
    """Weight of ||sigma - psi||^2 at a silo. Not in the paper; FedMatch's. The first one to tune: with lr 0.001 one
    step moves psi 2 % of the way to sigma; lr * lambda_2 must stay below 1 or training diverges."""
    lambda_l1: float = 1e-5
    """Weight of ||psi||_1 at a silo. Not in the paper; FedMatch's. Descent does not make exact zeros, so it saves no
    bytes without `l1_thres` and `delta_thres`."""
    local_epochs: int = 1
    """E_client: passes over the unlabelled images in a round."""
    coordinator_epochs: int = 1
    """E_server: passes over the labelled images in a round."""
    unlabelled_batch: int = 64
    """Images in a batch at a silo."""
    labelled_batch: int = 64
    """Images in a batch at the coordinator."""
    lr: float = 0.001
    """Learning rate of round 1, at silos and coordinator."""
    schedule: Literal["constant", "plateau"] = "constant"
    """Whether `lr` stays, or falls as FedMatch's does when the validation loss of the mixed model does not improve;
    that needs validation images at the coordinator."""
    plateau_patience: int = 20
    """With schedule = "plateau": rounds without improvement before the learning rate falls."""
    plateau_factor: float = 3.0
    """With schedule = "plateau": what the learning rate is then divided by."""
    momentum: float = 0.0
    """SGD momentum. A silo's starts anew in every round, the coordinator's goes on."""
    weight_decay: float = 0.0
    """L2 decay of every parameter."""
    clip_norm: float = 0.0
    """Largest global norm of a gradient; 0 turns clipping off."""
    weighting: Literal["fedfreq", "uniform", "size"] = "fedfreq"
    """Weights of accepted updates: less for silos that took part often, equal, or by the number of images."""
    fedfreq_rule: Literal["share", "inverse"] = "share"
    """FedFreq's weights: (1 - q_k / sum q) / (|S| - 1), the paper's as far as it can be read, or 1 / q_k normalised."""
    l1_thres: float = 0.0
    """Weights of psi up to this size are sent as 0; FedMatch's sparse transfer."""
    delta_thres: float = 0.0
    """Differences up to this size are not sent; FedMatch's sparse transfer. 0 leaves out exact zeros only."""
    sbn_source: Literal["coordinator", "coordinator+silos"] = "coordinator"
    """Whose images give the static batch-norm statistics; with silos it takes a phase of its own."""
    round_lr: float = 0.0
    """Learning rate of the current round; set by the strategy in every task, never by a person."""

    def __post_init__(self) -> None:
        within("confidence_threshold", self.confidence_threshold, 0.0, 1.0)
        for name in ("num_views", "local_epochs", "unlabelled_batch", "labelled_batch", "plateau_patience",
                     "plateau_factor"):
            at_least(name, getattr(self, name), 1)
        for name in ("coordinator_epochs", "mix_alpha", "mix_beta", "mix_gamma", "lambda_s", "lambda_1", "lambda_2",
                     "lambda_l1", "lr", "round_lr", "weight_decay", "clip_norm", "l1_thres", "delta_thres"):
            at_least(name, getattr(self, name), 0)
        below_one("momentum", self.momentum)
        total = self.mix_alpha + self.mix_beta + self.mix_gamma
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"mix_alpha + mix_beta + mix_gamma = {total:g}: must be 1.")
        self.check_imbalance(threshold=self.confidence_threshold,
                             no_labels="" if self.coordinator_epochs else "coordinator_epochs = 0")
        if self.multi_label:
            refuse_unused(self, "label_rule", 'task = "multi_label"')
        if self.weighting != "fedfreq":
            refuse_unused(self, "fedfreq_rule", f'weighting = "{self.weighting}"')
        if self.schedule != "plateau":
            for name in ("plateau_patience", "plateau_factor"):
                refuse_unused(self, name, f'schedule = "{self.schedule}"')

    @property
    def refused_to_begin(self) -> str:
        """See `semisilo.common.methods.spec.first_unused`."""
        unused = {} if self.coordinator_epochs else {"lambda_s": "coordinator_epochs = 0"}
        if self.num_views == 1:
            unused["label_rule"] = "num_views = 1"
        return first_unused(self, unused)


FEDMIX = MethodSpec(
    name="fedmix",
    source="Zhang et al., FedMix and FedFreq, arXiv 2110.13388",
    scenarios=("labels-at-coordinator",),
    down={"model": Meaning.VALUES, "sigma": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, "loss", "unlabelled_loss", "sigma_distance", "steps"),
    settings=FedMixSettings,
    tasks=("single_label", "multi_label"),
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    robust_rules=RULES,
    summed=True,
    discloses="A silo receives, besides the global model, the model that the coordinator has trained on its own labels "
              "(sigma). The coordinator sees a silo's model difference, how many images it used, its losses, how many "
              "of the images got a pseudo-label of each class, and keeps count of the rounds in which the silo took "
              "part; with sbn_source = \"coordinator+silos\" also mean, variance and count at every batch-norm layer."
              + HINTS_DISCLOSE,
)
