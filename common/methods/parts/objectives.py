"""Settings of local training on labels and pseudo-labels: what FedAvg, FedProx and local-only training have in common.

The objectives stand in a table in common/methods/fedavg.py.
Source: baselines.md section 1; FedMatch (Jeong et al.) for the first three, Fed-SHVR (Wang et al.) for the last two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.parts.imbalance import ImbalanceSettings
from semisilo.common.methods.spec import EitherScenario, at_least, below_one, positive, refuse_unused, within

__all__ = ["OBJECTIVE_METRICS", "Objective", "ObjectiveSettings"]

Objective = Literal["sl", "uda", "fixmatch", "pseudo_label", "mean_teacher"]

OBJECTIVE_METRICS = ("loss", "labelled_loss", "unlabelled_loss", "steps")
"""What local training gives besides its pseudo-labels: means over the steps, without the terms' weights but for
"loss", and the number of steps."""

_THRESHOLDS = {"fixmatch": 0.85, "uda": 0.8}
_USED_BY: dict[str, tuple[Objective, ...]] = {
    "unlabelled_batch": ("uda", "fixmatch", "pseudo_label", "mean_teacher"),
    "lambda_s": ("sl", "uda", "fixmatch"),
    "lambda_u": ("uda", "fixmatch"),
    "confidence_threshold": ("uda", "fixmatch"),
    "mask_mean": ("uda", "fixmatch"),
    "temperature": ("uda",),
    "tsa": ("uda",),
    "alpha0": ("pseudo_label", "mean_teacher"),
    "alpha0_ramp": ("pseudo_label", "mean_teacher"),
    "ramp_epochs": ("pseudo_label", "mean_teacher"),
    "label_refresh": ("pseudo_label",),
    "ema_decay": ("mean_teacher",),
    "teacher": ("mean_teacher",),
}
"""Settings that only some objectives honour; the others honour all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveSettings(ImbalanceSettings):
    """Settings of local training. Defaults are FedMatch's (v3) for sl, uda and fixmatch, and Fed-SHVR's for what only
    pseudo_label and mean_teacher have; a study of the latter sets lr = 0.01, local_epochs = 2, labelled_batch = 32,
    unlabelled_batch = 32 and steps_rule = "fed_shvr" as that paper does."""

    scenario: EitherScenario = "labels-at-silo"
    """Where the labels are."""
    objective: Objective = "sl"
    """The local objective. "sl" learns from labels alone, so it needs them at the silos."""
    local_epochs: int = 1
    """E: passes over a silo's images in a round."""
    steps_rule: Literal["fedmatch", "fed_shvr"] = "fedmatch"
    """Steps of a silo in a round, from its N_k labelled and M_k unlabelled images. "fedmatch": E times max(1, round(N_k
    / labelled_batch)), each with ceil(M_k / steps) unlabelled images; without labels at the silo E times max(1,
    round(M_k / unlabelled_batch)). "fed_shvr": max(1, floor(E M_k / unlabelled_batch), floor(E N_k / labelled_batch)),
    both sets cycled. Where a silo may have few labels and thousands of other images, choose the latter: "fedmatch"
    takes all of them in a step or two."""
    labelled_batch: int = 10
    """Labelled images in a step, at a silo or, with labels-at-coordinator, there (FedMatch has 10 and 100)."""
    unlabelled_batch: int = 100
    """Unlabelled images in a step at a silo; with steps_rule = "fedmatch" only at silos without labels."""
    lr: float = 1e-3
    """Learning rate of round 1."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How `lr` falls over the rounds: not at all, or lr_t = lr/2 (1 + cos(pi (t-1) / rounds))."""
    momentum: float = 0.0
    """SGD momentum."""
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: float = 0.0
    """L2 decay of every parameter."""
    clip_norm: float = 0.0
    """Largest global norm of a gradient; 0 turns clipping off."""
    weak_view: Literal["weak", "none"] = "weak"
    """View of labelled images and the weak view of unlabelled ones: the study's weak augmentation, or the image as it
    is (FedMatch v3, since weak augmentation hurt there)."""
    lambda_s: float = 10.0
    """Weight of the labelled term of sl, uda and fixmatch; 1 gives plain cross-entropy."""
    lambda_u: float = 1.0
    """Weight of the unlabelled term of uda and fixmatch."""
    confidence_threshold: float | None = None
    """Of uda and fixmatch: a pseudo-label is kept when its probability is at least this. 0..1; left out it is 0.85 for
    fixmatch (FedMatch v3; v1 has 0.75) and 0.8 for uda (UDA's CIFAR-10 setting)."""
    mask_mean: Literal["batch", "kept"] = "batch"
    """Denominator of the unlabelled term of uda and fixmatch: all images of the batch (FixMatch), or the kept ones (the
    codes of FedMatch and SemiFL)."""
    temperature: float = 0.4
    """T of uda: sharpens the target."""
    tsa: Literal["exp", "linear", "log", "none"] = "exp"
    """Training signal annealing of uda: how the largest probability at which a labelled image still enters rises from
    1/K to 1 over the rounds; "none" lets all enter."""
    alpha0: float = 1.0
    """Final weight of the unlabelled term of pseudo_label and mean_teacher."""
    alpha0_ramp: Literal["sigmoid", "linear", "none"] = "sigmoid"
    """How alpha0 is reached: alpha0 exp(-5 (1 - x)^2), alpha0 x, or at once; x = local epochs / ramp_epochs."""
    ramp_epochs: int = 50
    """Local epochs until alpha0 is reached, counted from round 1, also for a silo that comes later."""
    label_refresh: Literal["round", "batch"] = "round"
    """When pseudo_label labels: all images once with the received model (Fed-SHVR), or every batch anew with the model
    under training (Lee 2013)."""
    ema_decay: float = 0.99
    """a of mean_teacher: teacher = a teacher + (1 - a) student, after every step. 0..1."""
    teacher: Literal["round", "local"] = "round"
    """Where mean_teacher's teacher starts in a round: at the received model, or where this silo's own ended in the last
    round that it took part in."""
    round_lr: float = 0.0
    """lr_t of the current round; set by the strategy in every task, never by a person."""

    def __post_init__(self) -> None:
        if self.scenario == "labels-at-coordinator" and self.objective == "sl":
            raise ValueError('objective = "sl": with scenario = "labels-at-coordinator" silos have no labels and '
                             'nothing to train. Choose another objective, or scenario = "labels-at-silo".')
        for name in ("local_epochs", "labelled_batch", "unlabelled_batch", "ramp_epochs"):
            at_least(name, getattr(self, name), 1)
        for name in ("lr", "round_lr", "weight_decay", "clip_norm", "lambda_s", "lambda_u", "alpha0"):
            at_least(name, getattr(self, name), 0)
        within("confidence_threshold", self.threshold, 0.0, 1.0)
        within("ema_decay", self.ema_decay, 0.0, 1.0)
        below_one("momentum", self.momentum)
        positive("temperature", self.temperature)
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov = true needs momentum above 0.")
        for name, objectives in _USED_BY.items():
            if self.objective not in objectives:
                refuse_unused(self, name, f'objective = "{self.objective}"')
        if self.alpha0_ramp == "none":
            refuse_unused(self, "ramp_epochs", 'alpha0_ramp = "none"')
        because = f'objective = "{self.objective}"'
        if self.multi_label and self.objective not in ("sl", "fixmatch"):
            raise ValueError(f'{because}: not defined with task = "multi_label". Choose "sl" or "fixmatch".')
        self.check_imbalance(
            threshold=self.threshold, no_labels=self.without_labelled_training,
            no_alignment=because if self.objective in ("sl", "mean_teacher") else "",
            no_thresholds="" if self.objective in ("fixmatch", "uda") else because,
            makes_labels=self.objective != "sl", no_class_weights=because if self.objective == "uda" else "")

    @property
    def measures_weak_views(self) -> bool:
        return self.weak_view == "weak"

    @property
    def without_labelled_training(self) -> str:
        """Why nobody trains on labelled images, such as "coordinator_epochs = 0"; empty where somebody does."""
        return ""

    @property
    def passes_side_by_side(self) -> int:
        """Those of labelled and of unlabelled images, where a silo may have both."""
        return 2 if self.scenario == "labels-at-silo" and self.objective != "sl" else 1

    @property
    def expected_images(self) -> int:
        """Images of a silo that a step expects, whatever the silo has of them."""
        return (self.labelled_batch if self.scenario == "labels-at-silo" else 0) + (
            self.unlabelled_batch if self.objective != "sl" else 0)

    @property
    def threshold(self) -> float:
        """`confidence_threshold`, or the objective's own where it is left out; 0 for objectives without one."""
        chosen = self.confidence_threshold
        return _THRESHOLDS.get(self.objective, 0.0) if chosen is None else chosen
