"""The table of methods: what each is called, where it comes from, what crosses and what it discloses.

The halves live in `coordinator/strategies/<name>.py` and `silo/trainers/<name>.py`. Settings are dataclasses whose
fields carry the paper's symbols; they travel as canonical JSON. Methods of others come as plug-ins (common/plugins.py);
they cannot take a name that is in this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from common.exchange import Meaning

__all__ = ["METHODS", "MethodPlugin", "MethodSpec", "Scenario", "SemiFLSettings", "find_method"]

Scenario = Literal["labels-at-coordinator", "labels-at-silo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSpec:
    """Declares a method once, for both sides, the ledger, the policy of silos and the documentation."""

    name: str
    source: str
    """Paper and venue."""
    scenarios: tuple[Scenario, ...]
    down: Mapping[str, Meaning]
    """Tensor groups that a silo may receive. A name that ends in "/*" stands for numbered groups."""
    up: Mapping[str, Meaning]
    """Tensor groups that a silo may send."""
    metrics: tuple[str, ...]
    """Numbers that a silo may send with an update or an abstention."""
    settings: type
    """Dataclass of the method's settings."""
    set_by_strategy: tuple[str, ...] = ()
    """Settings that the strategy writes into every task; a study file must not have them."""
    discloses: str
    """What a silo learns about others and the coordinator about a silo, beyond model updates. Shown to operators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodPlugin:
    """A method of somebody else's: what an entry point of the group `semisilo.methods` names.

        [project.entry-points."semisilo.methods"]
        ours = "our_package.method:OURS"          # OURS is a MethodPlugin, its spec is called "ours"

    The module of the entry point is imported by the light processes of both sides, so it must import neither torch nor
    the halves; these are named as text and imported by the compute processes alone.
    """

    spec: MethodSpec
    """Its name is the entry point's. Its settings need a field `scenario`, as those of every method."""
    strategy: str
    """"package.module:Class" of the coordinator half, built as `Class(settings, environment)`."""
    trainer: str
    """"package.module:Class" of the silo half, built as `Class()`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SemiFLSettings:
    """Settings of SemiFL. Defaults are the paper's where it has them. Source: Diao et al., NeurIPS 2022, section 4."""

    scenario: Literal["labels-at-coordinator"] = "labels-at-coordinator"
    """SemiFL is defined for labels at the coordinator only."""
    confidence_threshold: float = 0.95
    """tau: a pseudo-label is kept when its probability is at least this. 0..1."""
    local_epochs: int = 5
    """E at a silo: passes over the kept images in a round."""
    coordinator_epochs: int = 5
    """E at the coordinator: passes over the labelled images after every aggregation."""
    unlabelled_batch: int = 10
    """B_m: images in a batch at a silo."""
    labelled_batch: int = 10
    """B_s: images in a batch at the coordinator."""
    lr: float = 0.03
    """eta: learning rate of round 1."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How `lr` falls over the rounds: lr_t = lr/2 (1 + cos(pi (t-1) / rounds)), or not at all."""
    momentum: float = 0.9
    """SGD momentum at silos and coordinator."""
    nesterov: bool = True
    """Nesterov momentum, as the official code has it."""
    weight_decay: float = 5e-4
    """L2 decay of every parameter."""
    clip_norm: float = 1.0
    """Largest global norm of a gradient; 0 turns clipping off."""
    global_momentum: float = 0.5
    """beta_g: server momentum on the averaged pseudo-gradient."""
    fix_weight: float = 1.0
    """Weight of the fix loss (strong view, pseudo-label); the paper has 1."""
    mix_weight: float = 1.0
    """lambda: weight of the mix loss; 0 turns MixUp off."""
    mixup_a: float = 0.75
    """a: MixUp's Beta(a, a)."""
    weighting: Literal["uniform", "size"] = "uniform"
    """Weights of accepted updates: the paper's 1/M_t, or by the number of unlabelled images."""
    sbn_source: Literal["coordinator", "coordinator+silos"] = "coordinator"
    """Whose images give the static batch-norm statistics; with silos it takes a phase of its own."""
    persist_local_momentum: bool = True
    """Whether a silo keeps its SGD momentum between rounds, as the official code does."""
    momentum_max_age_rounds: int = 0
    """A silo's momentum older than this many rounds is reset; 0 keeps it for ever."""
    final_epochs: int = 0
    """Extra fine-tuning epochs at the coordinator after the last round."""
    round_lr: float = 0.0
    """lr_t of the current round; set by the strategy in every task, never by a person."""

    def __post_init__(self) -> None:
        _within("confidence_threshold", self.confidence_threshold, 0.0, 1.0)
        for name in ("local_epochs", "unlabelled_batch", "labelled_batch"):
            _at_least(name, getattr(self, name), 1)
        for name in ("coordinator_epochs", "final_epochs", "momentum_max_age_rounds", "clip_norm", "weight_decay",
                     "fix_weight", "mix_weight", "lr", "round_lr"):
            _at_least(name, getattr(self, name), 0)
        for name in ("momentum", "global_momentum"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} = {value}: must be at least 0 and below 1.")
        if not self.mixup_a > 0:
            raise ValueError(f"mixup_a = {self.mixup_a}: must be above 0.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov = true needs momentum above 0.")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} = {value}: must be between {low} and {high}.")


def _at_least(name: str, value: float, low: float) -> None:
    if not (value >= low and value == value and value != float("inf")):
        raise ValueError(f"{name} = {value}: must be at least {low} and finite.")


SEMIFL = MethodSpec(
    name="semifl",
    source="Diao, Ding and Tarokh, SemiFL, NeurIPS 2022",
    scenarios=("labels-at-coordinator",),
    down={"model": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=("label_ratio", "loss", "fix_loss", "mix_loss", "steps", "pseudo_label_accuracy",
             "threshold_accuracy"),
    settings=SemiFLSettings,
    set_by_strategy=("round_lr",),
    discloses="The coordinator sees a silo's model difference, how many images it used and which share it could label; "
              "with sbn_source = \"coordinator+silos\" also mean, variance and count at every batch-norm layer.",
)

METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in (SEMIFL,)}


def find_method(name: str) -> MethodSpec:
    """The spec of a method: built in, or an installed plug-in's.

    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in that cannot be used.
    """
    if name in METHODS:
        return METHODS[name]
    from common.plugins import find_plugin  # later: looking through what is installed takes its time

    return find_plugin(name).spec
