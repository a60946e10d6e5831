"""FedRGD: the silos' updates fall into groups at random, and every group is averaged with the coordinator's model.

The coordinator trains on its labels while the silos train on pseudo-labels. In the next round a silo goes on from the
mean of its group, so that fewer models are averaged at a time. The paper uses networks with group normalisation
(`[model] normalisation = "group"`).

Tests: tests/test_contract.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.parts.imbalance import HINTS_DISCLOSE, LABELLED_HINTS
from semisilo.common.methods.parts.objectives import OBJECTIVE_METRICS, ObjectiveSettings
from semisilo.common.methods.spec import (
    PSEUDO_LABEL_METRICS,
    MethodSpec,
    at_least,
    below_one,
    first_unused,
    positive,
    refuse_unused,
)

__all__ = ["FEDRGD", "FedRGDSettings"]

_SEMIFL_MOMENTUM = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class FedRGDSettings(ObjectiveSettings):
    """Settings of FedRGD. Defaults are the paper's where it has them.

    Source: Zhang et al., arXiv 2008.11364v2; mode = "semifl_variant" as SemiFL (Diao et al., NeurIPS 2022) runs it.
    """

    scenario: Literal["labels-at-coordinator"] = "labels-at-coordinator"
    """FedRGD is defined for labels at the coordinator only."""
    objective: Literal["fixmatch"] = "fixmatch"
    """What silos train: FixMatch, every batch labelled with the silo's model as it is."""
    mode: Literal["paper", "semifl_variant"] = "paper"
    """"paper": a silo goes on from the mean of its group. "semifl_variant": all go on from the mean of all groups,
    which takes server momentum, as in SemiFL's Table 1."""
    groups: int = 2
    """S: groups of silos; the paper has 2 for 10 to 20 silos of a round and 5 for 47."""
    labelled_batch: int = 64
    """Images in a batch at the coordinator."""
    unlabelled_batch: int = 64
    """Images in a batch at a silo; it takes max(1, round(M_k / unlabelled_batch)) steps in an epoch."""
    coordinator_epochs: int = 1
    """Passes over the labelled images in a round."""
    lr: float = 0.03
    """Largest learning rate; the paper has 0.146 for CIFAR-10 and SVHN, else 0.03."""
    decay: Literal["fedrgd", "schedule"] = "fedrgd"
    """How `lr` changes over the rounds t = 1..T. "fedrgd": lr t / w in the first w rounds, then
    lr max(cos(pi c (t - w) / (T - w)), 0.0001). "schedule": as `schedule` says."""
    warmup_rounds: int = 5
    """w of decay = "fedrgd"; 0 starts with `lr` itself."""
    decay_c: float = 2.3
    """c of decay = "fedrgd". With the paper's 2.3 the rate is at its floor between 22 % and 65 % of the rounds and ends
    at 0.6 lr; at most 0.5 makes it fall all the time (FixMatch has 7/16)."""
    momentum: float = 0.9
    """SGD momentum. The coordinator's goes on over the rounds."""
    weight_decay: float = 1e-4
    """L2 decay of every parameter."""
    lambda_s: float = 1.0
    """Weight of the cross-entropy on labels at the coordinator."""
    confidence_threshold: float | None = 0.95
    """A pseudo-label is kept when its probability is at least this. 0..1."""
    global_momentum: float | None = None
    """Server momentum of mode = "semifl_variant"; left out it is 0.5 there. The paper has none."""
    persist_local_momentum: bool = False
    """Whether a silo keeps its SGD momentum between rounds, as SemiFL's code does."""
    sbn_source: Literal["coordinator", "coordinator+silos"] = "coordinator"
    """Whose images give the static batch-norm statistics, which are those of the mean of all groups; with silos it
    takes a phase of its own."""

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        at_least("groups", self.groups, 1)
        for name in ("coordinator_epochs", "warmup_rounds"):
            at_least(name, getattr(self, name), 0)
        positive("decay_c", self.decay_c)
        below_one("global_momentum", self.server_momentum)
        if self.mode == "paper":
            refuse_unused(self, "global_momentum", 'mode = "paper"')
        if self.decay == "fedrgd":
            refuse_unused(self, "schedule", 'decay = "fedrgd"')
        else:
            for name in ("warmup_rounds", "decay_c"):
                refuse_unused(self, name, f'decay = "{self.decay}"')
        if self.momentum == 0:
            refuse_unused(self, "persist_local_momentum", "momentum = 0")

    @property
    def refused_to_begin(self) -> str:
        """See `semisilo.common.methods.spec.first_unused`."""
        return first_unused(self, {} if self.coordinator_epochs else {"lambda_s": "coordinator_epochs = 0"})

    @property
    def without_labelled_training(self) -> str:
        return "" if self.coordinator_epochs else "coordinator_epochs = 0"

    @property
    def server_momentum(self) -> float:
        """`global_momentum`, or the mode's own where it is left out."""
        if self.global_momentum is not None:
            return self.global_momentum
        return _SEMIFL_MOMENTUM if self.mode == "semifl_variant" else 0.0


FEDRGD = MethodSpec(
    name="fedrgd",
    source="Zhang et al., FedRGD, arXiv 2008.11364v2; a variant as SemiFL (Diao et al., NeurIPS 2022) runs it",
    scenarios=("labels-at-coordinator",),
    down={"model": Meaning.VALUES, "batch_norm": Meaning.VALUES},
    up={"model": Meaning.DIFFERENCE, "batch_norm": Meaning.VALUES},
    metrics=(*PSEUDO_LABEL_METRICS, *OBJECTIVE_METRICS),
    settings=FedRGDSettings,
    set_by_strategy=("round_lr", *LABELLED_HINTS),
    discloses="A silo receives the mean of the coordinator's model and those of its group of the last round: of fewer "
              "silos than with other methods, so it says more about each; a group of two is one other silo. The "
              "coordinator sees a silo's model difference, how many images it has, its losses and how many "
              "pseudo-labels of each class it kept; with sbn_source = \"coordinator+silos\" also mean, variance and "
              "count at every batch-norm layer." + HINTS_DISCLOSE,
)
