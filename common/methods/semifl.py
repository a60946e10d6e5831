"""SemiFL: alternate training of the coordinator on labels and the silos on pseudo-labels.

After every aggregation the coordinator fine-tunes the model on its labels; a silo labels its images once a round with
the model that it received, keeps the confident ones, and trains on them with a FixMatch and a MixUp loss.

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
    positive,
    within,
)

__all__ = ["SEMIFL", "SemiFLSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SemiFLSettings(ImbalanceSettings):
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
    aggregation: Literal["alternate", "parallel"] = "alternate"
    """"alternate": the coordinator fine-tunes what was averaged. "parallel", the paper's Table 2: it trains beside the
    silos, from the same model, and the new model is halfway between its own and the silos' mean."""
    labelling: Literal["round", "batch"] = "round"
    """"round": a silo labels its images once, with the received model. "batch", the paper's Table 2: every batch anew,
    with the model under training; only kept images enter the loss, there is no MixUp and nobody abstains."""
    weighting: Literal["uniform", "size", "fedfreq"] = "uniform"
    """Weights of accepted updates: the paper's 1/M_t, by the number of unlabelled images, or FedFreq's."""
    gate: bool = False
    """Not in the paper. Whether only so much of what the silos return is taken over (all, 1/2, 1/4 or nothing) as does
    not make the coordinator's validation images, or without any its labelled ones, worse beyond noise."""
    sbn_source: Literal["coordinator", "coordinator+silos"] = "coordinator"
    """Whose images give the static batch-norm statistics; with silos it takes a phase of its own."""
    joined_passes: bool = False
    """Whether the strong and the mixed batch go through the network as one. An accelerator takes less time for it. With
    batch-norm its statistics are then those of both together, another method than the paper's; with other
    normalisation nothing changes but rounding. On a CPU two passes side by side are quicker."""
    persist_local_momentum: bool = True
    """Whether a silo keeps its SGD momentum between rounds, as the official code does."""
    momentum_max_age_rounds: int = 0
    """A silo's momentum older than this many rounds is reset; 0 keeps it without a limit."""
    final_epochs: int = 0
    """Extra fine-tuning epochs at the coordinator after the last round."""
    round_lr: float = 0.0
    """lr_t of the current round; set by the strategy in every task, never by a person."""

    def __post_init__(self) -> None:
        within("confidence_threshold", self.confidence_threshold, 0.0, 1.0)
        for name in ("local_epochs", "unlabelled_batch", "labelled_batch"):
            at_least(name, getattr(self, name), 1)
        for name in ("coordinator_epochs", "final_epochs", "momentum_max_age_rounds", "clip_norm", "weight_decay",
                     "fix_weight", "mix_weight", "lr", "round_lr"):
            at_least(name, getattr(self, name), 0)
        for name in ("momentum", "global_momentum"):
            below_one(name, getattr(self, name))
        positive("mixup_a", self.mixup_a)
        if self.labelling == "batch" and self.mix_weight:
            raise ValueError('labelling = "batch" has no MixUp: set mix_weight = 0.')
        if self.joined_passes and not (self.labelling == "round" and self.fix_weight and self.mix_weight):
            raise ValueError("joined_passes = true has no effect: there is one pass only.")
        if self.aggregation == "parallel" and self.gate:
            raise ValueError('aggregation = "parallel" takes the mean of both sides: leave gate out.')
        if self.aggregation == "parallel" and self.final_epochs:
            raise ValueError('aggregation = "parallel" has no fine-tuning: leave final_epochs out.')
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov = true needs momentum above 0.")
        trains = self.coordinator_epochs or self.final_epochs
        self.check_imbalance(threshold=self.confidence_threshold,
                             no_labels="" if trains else "coordinator_epochs = 0 and final_epochs = 0")

    @property
    def refused_to_begin(self) -> str:
        """See `semisilo.common.methods.spec.first_unused`."""
        unused = {} if self.mix_weight else {"mixup_a": "mix_weight = 0"}
        if not (self.persist_local_momentum and self.momentum):
            unused["momentum_max_age_rounds"] = "persist_local_momentum = false" if self.momentum else "momentum = 0"
        return first_unused(self, unused)

    @property
    def passes_side_by_side(self) -> int:
        """Those of the fix and of the mix loss."""
        apart = self.labelling == "round" and self.fix_weight and self.mix_weight and not self.joined_passes
        return 2 if apart else 1


SEMIFL = MethodSpec(
    name="semifl",
    source="Diao, Ding and Tarokh, SemiFL, NeurIPS 2022",
    scenarios=("labels-at-coordinator",),
    down={"model": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, "loss", "fix_loss", "mix_loss", "steps"),
    settings=SemiFLSettings,
    tasks=("single_label", "multi_label"),
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    robust_rules=RULES,
    summed=True,
    discloses="The coordinator sees a silo's model difference, how many images it has, its losses, how many of its "
              "images got a pseudo-label that it kept and of which class, and keeps count of the rounds in which the "
              "silo took part; with sbn_source = \"coordinator+silos\" also mean, variance and count at every "
              "batch-norm layer." + HINTS_DISCLOSE,
)
