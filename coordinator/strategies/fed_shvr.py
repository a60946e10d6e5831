"""Fed-SHVR at the coordinator: normalised averaging, and the sum of control variates that corrections are made of.

Source: Wang et al., "Fed-SHVR", 2021, Algorithm 1; the form for partial participation is ours (fedshvr.md, section 4).
Symbols and rules are in `semisilo.common.learning.averaging.normalised`.

| variant  | averaging                    | correction                                       |
|----------|------------------------------|--------------------------------------------------|
| fed_shvr | normalised (Eq. 14)          | d_k = C - c_k, C = sum n_k c_k / sum n_k         |
| fed_sh   | normalised                   | none                                             |
| fed_svr  | plain, w = sum p_k w_k       | d_k = C / tau_k - c_k, with n_k tau_k c_k in C   |

n_k = N_k + M_k is a silo's number of images; p_k is n_k over the sum of the accepted silos'. The sums of C go over the
silos in `members`, those that have contributed since the sum was last begun. Where `largest_weight` cuts n_k by the
counts of who else answers, p_k changes with them, and in C a member keeps the n_k that it came with. A member that
stays away leaves its last c_k in the sum, so that C stays the mean over all who ever took part, as in SAGA; its own d_k
is made of it on return. Where a member is set aside, revoked or gone the sum is begun anew.

**Who keeps c_k.** At the silo: c_k never crosses; the coordinator follows it by the difference it makes to the sum.
What it cannot do is to take out a c_k that a silo has lost, or whose weight has changed (the silo has more images now):
then it raises `correction_epoch` and begins the sum anew, and one round goes without correction. Behind masks a silo
weighs min(n_k, r) images, with an r that follows from all members' counts, not from those of the silos that a round
asks; where r changes, for example with a silo that joins, the sum is begun anew as well. At the coordinator:
one file for each silo; d_k is sent, and an old c_k can always be taken out.

**Exactness.** Sum and c_k change by the same increments in float64 at both ends, so sum n_k s_k d_k = 0 holds to the
rounding of C and d_k to float32, however many rounds. That is so where the update arrives as the silo made it. A lossy
uplink gives the coordinator another Delta_k than the silo's: with correction_at = "silo" the two then differ by what
the silo's error feedback still owes, over lr tau_k; with "coordinator" c_k is made of what arrived, and the sum is
exact.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.normalised import (
    control_increment,
    correction,
    mean_gradient,
    mean_steps,
    next_control,
    normalised_factors,
)
from semisilo.common.learning.soft_labels import ramp
from semisilo.common.learning.training import check_finite
from semisilo.common.methods.contract import Environment, Phase, Task, TensorGroup, UpdateHeader, Updates
from semisilo.common.methods.fed_shvr import JOINS, LOST, FedSHVRSettings
from semisilo.common.methods.parts.secure_sum import STEPS
from semisilo.common.storage.checkpoint import YOUNGER
from semisilo.coordinator.strategies.batch_norm.statistics import StatisticsTally
from semisilo.coordinator.strategies.parts.averaging import AverageTally, own_model
from semisilo.coordinator.strategies.parts.labelled_training import model_at_coordinator
from semisilo.coordinator.strategies.parts.phases import TrainAndMeasure
from semisilo.coordinator.strategies.parts.robust import CUT, GONE
from semisilo.coordinator.strategies.parts.served import ServedState
from semisilo.coordinator.strategies.parts.step_cap import counted_steps
from semisilo.coordinator.strategies.parts.weights import size_weights

__all__ = ["FedSHVRSiloState", "FedSHVRState", "FedSHVRStrategy", "FedSHVRTally"]

_LOG = logging.getLogger("semisilo.coordinator")


@dataclass(frozen=True, kw_only=True)
class FedSHVRSiloState:
    """What is kept for a silo with `correction_at = "coordinator"`."""

    c: dict[str, Tensor]
    """c_k: the silo's mean raw gradient in its last accepted round, in the type of the model."""
    epoch: int
    """`correction_epoch` of the sum that it is in."""
    round: int
    """That round."""


@dataclass(frozen=True, kw_only=True)
class FedSHVRState(ServedState):
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """w_t, the global model."""
    batch_norm: dict[str, Tensor]
    """"<layer>.mean" and "<layer>.var"; empty for a network without static batch-norm, and until they are measured."""
    own_statistics: dict[str, Tensor]
    """What the coordinator's own images gave, with counts, float64; empty where it measures nothing."""
    c_sum: dict[str, Tensor] | None
    """sum n_k s_k c_k over the members, float64; None while there is none."""
    mass: float
    """sum n_k over the members; whole but where updates are added up behind masks."""
    members: dict[str, dict[str, int]]
    """By silo in the sum: {"examples": n_k in the sum, "said": as the silo says, "steps": tau_k, "round": of its c_k}.
    States of earlier versions have no "said"."""
    sizes: dict[str, int]
    """n_k of every silo that was ever accepted, a member's as it is in the sum."""
    correction_since: int = 1
    """The first round of that sum."""
    correction_epoch: int
    """Rises when the sum is begun anew."""
    tau_bar: float
    """sum p_k tau_k of the last round that accepted somebody; 0 before."""
    weight_reference: int = field(default=0, metadata=YOUNGER)
    """Where updates are added up behind masks: what n_k is cut to in the sum; 0 before, and in a sum of an earlier
    version, which is begun anew."""


@dataclass(frozen=True, kw_only=True)
class FedSHVRTally(AverageTally):
    """The training phase being folded. Weights are what each silo's difference is multiplied by, and sum to more or
    less than 1 where the silos' steps differ."""

    round: int = 0
    tau_bar: float = 0.0
    c_sum: dict[str, Tensor] | None = None
    mass: float = 0.0
    members: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """n_k of the accepted silos."""
    weight_reference: int = 0
    renew: str = ""
    """Why the sum of control variates must be begun anew; empty when it need not."""


class FedSHVRStrategy(TrainAndMeasure[FedSHVRState, FedSHVRTally, FedSHVRSiloState]):
    """The coordinator half of Fed-SHVR, Fed-SH and Fed-SVR."""

    State = FedSHVRState
    Tally = FedSHVRTally
    SiloState = FedSHVRSiloState

    def __init__(self, settings: FedSHVRSettings, environment: Environment) -> None:
        """Raises: BadConfiguration for another scenario, or when the coordinator has no images to measure with."""
        if settings.scenario != "labels-at-silo":
            raise BadConfiguration(f"Fed-SHVR is not defined for the scenario '{settings.scenario}'.",
                                   remedy='Set [method] scenario = "labels-at-silo".')
        if environment.summed and settings.variant != "fed_sh" and settings.correction_at == "coordinator":
            raise BadConfiguration('[method] correction_at = "coordinator" keeps what each silo has sent, and with'
                                   " secure_aggregation nobody sees that.",
                                   remedy='Set [method] correction_at = "silo".')
        self._settings = settings
        super().__init__(environment, settings.sbn_source, settings)

    def start(self, initial: Mapping[str, Tensor]) -> FedSHVRState:
        """The initial model as it is; its statistics where the coordinator measures them."""
        own = self._own_statistics(initial, round=0)
        return FedSHVRState(round=0, w=dict(initial), batch_norm=self._statistics.used(own), own_statistics=own,
                            c_sum=None, mass=0.0, members={}, sizes={}, correction_epoch=1, tau_bar=0.0)

    def sent_model(self, state: FedSHVRState) -> TensorGroup:
        return state.served.group("model", lambda: state.w)

    def train_task(self, state: FedSHVRState, silo: str, kept: FedSHVRSiloState | None, *, round: int) -> Task:
        """Model, statistics, and C (or the silo's d_k) once there is one."""
        groups = {"model": self.sent_model(state), **state.served.batch_norm(state.batch_norm)}
        if not self._corrects:
            return Task(groups=groups)
        if self._settings.correction_at == "coordinator":
            if self._is_corrected(state, silo, kept, round=round):
                assert kept is not None
                d = correction(_mean_control(state).tensors, kept.c, share=self._share(state.members[silo]["steps"]))
                groups["correction"] = TensorGroup(d)
            return Task(groups=groups)
        if state.c_sum is not None and state.mass:
            groups["correction"] = _mean_control(state)
        if self._environment.summed:
            return Task(groups=groups, settings={"correction_epoch": state.correction_epoch,
                                                 "correction_since": state.correction_since})
        return Task(groups=groups, settings={"correction_epoch": state.correction_epoch,
                                             "correction_round": state.members.get(silo, {}).get("round", 0)})

    def train_begin(self, state: FedSHVRState, headers: tuple[UpdateHeader, ...], *, round: int) -> FedSHVRTally:
        """Fixes p_k by size and tau_bar, on which no silo has much say, and whether the sum of control variates can go
        on."""
        if not headers:
            return FedSHVRTally(round=round)
        if self._environment.summed:
            return self._begin_sums(state, headers, round=round)
        sizes, steps = [_examples(header) for header in headers], [_steps(header) for header in headers]
        plain = self._settings.variant == "fed_svr"
        counted = steps if plain else counted_steps(self._environment.robust, headers, steps, round=round)
        factors = size_weights(sizes) if plain else normalised_factors(sizes, steps, counted=counted)
        return FedSHVRTally(
            round=round, weights={header.silo: factor for header, factor in zip(headers, factors, strict=True)},
            tau_bar=mean_steps(sizes, counted), c_sum=state.c_sum, mass=state.mass, members=state.members,
            sizes={header.silo: _weight_in_sum(state, header) for header in headers},
            renew=self._reason_to_renew(state, headers))

    def leave(self, phase: Phase, tally: FedSHVRTally | StatisticsTally, silos: tuple[str, ...]
              ) -> FedSHVRTally | StatisticsTally:
        """The sum is begun anew where a control variate of theirs is in it."""
        if not isinstance(tally, FedSHVRTally) or not (gone := sorted(tally.members.keys() & set(silos))):
            return tally
        return replace(tally, renew=tally.renew or GONE.format(gone[0]))

    def train_appraise(self, state: FedSHVRState, tally: FedSHVRTally, updates: Updates, *,
                       round: int) -> tuple[FedSHVRTally, Mapping[str, float]]:
        """The bound alone. A silo whose update is shortened keeps a c_k that the coordinator does not count so, and
        therefore the sum is begun anew."""
        after, told = super().train_appraise(state, tally, updates, round=round)
        if after is tally or not self._corrects:
            return after, told
        return replace(after, renew=tally.renew or CUT), told

    def stretches(self, tally: FedSHVRTally, updates: Updates) -> list[float]:
        """tau_bar / tau_k, or 1 with plain averaging: a silo that says it took fewer steps than it did is counted with
        a longer update."""
        plain = size_weights([_examples(header) for header in updates.headers])
        return [tally.weights[header.silo] / share if share else 1.0
                for header, share in zip(updates.headers, plain, strict=True)]

    def train_fold(self, state: FedSHVRState, tally: FedSHVRTally, header: UpdateHeader,
                   groups: Mapping[str, TensorGroup], kept: FedSHVRSiloState | None
                   ) -> tuple[FedSHVRTally, FedSHVRSiloState | None]:
        """Adds one silo's difference, and what its new control variate changes in the sum."""
        delta = groups["model"].tensors
        tally = tally.plus(header.silo, delta, like=state.w)
        if not self._corrects or tally.renew:
            return tally, kept
        if self._environment.summed:
            return self._fold_sum(state, tally, header, delta), kept
        followed = mean_gradient(delta, lr=self._settings.lr, steps=_steps(header))
        if self._settings.correction_at == "coordinator":
            return self._fold_kept(state, tally, header, followed, kept)
        member, examples = header.silo in state.members, _weight_in_sum(state, header)
        increment = control_increment(followed, _mean_control(state).tensors if member else None,
                                      share=self._share(_steps(header)))
        c_sum = tensors.add(_or_zeros(tally.c_sum, increment), increment, factor=examples)
        return _with_member(tally, header, c_sum, examples=examples, mass=0 if member else examples), kept

    def train_finish(self, state: FedSHVRState, tally: FedSHVRTally, *, round: int) -> FedSHVRState:
        """The new model and sum. With no update accepted nothing changes."""
        if tally.delta is None:
            return replace(state, round=round)
        w = tensors.add(state.w, tally.delta)
        check_finite(w, where=f"at the coordinator in round {round}")
        c_sum, mass, members, epoch = tally.c_sum, tally.mass, tally.members, state.correction_epoch
        if tally.renew:
            _LOG.warning("round %d: %s; the sum of control variates restarts, and the next round has no correction",
                         round, tally.renew)
            c_sum, mass, members, epoch = None, 0.0, {}, epoch + 1
        own = self._own_statistics(w, round=round)
        return FedSHVRState(
            round=round, w=w, batch_norm=self._statistics.used(own) if own else state.batch_norm, own_statistics=own,
            c_sum=c_sum, mass=mass, members=members, sizes={**state.sizes, **tally.sizes}, correction_epoch=epoch,
            correction_since=round + 1 if tally.renew else state.correction_since, tau_bar=tally.tau_bar,
            weight_reference=tally.weight_reference)

    def model(self, state: FedSHVRState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The global model and its statistics."""
        return state.w, state.batch_norm

    def local_model(self, state: FedSHVRState, groups: Mapping[str, TensorGroup], kept: FedSHVRSiloState | None
                    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """w_k = w_t + its difference, with the statistics that were measured with w_t."""
        return own_model(self.sent_model(state), groups), state.batch_norm

    def diagnostics(self, state: FedSHVRState) -> dict[str, float]:
        """tau_bar and alpha_0 of the round; of the correction its epoch, how many silos and which share of all known
        images are in the sum, and the norm of C, which tends to 0 as the model becomes stationary."""
        settings = self._settings
        first_epoch = max(state.round - 1, 0) * settings.local_epochs + 1
        share = ramp(settings.alpha0_ramp, epoch=first_epoch, ramp_epochs=settings.ramp_epochs)
        found = {"tau_bar": state.tau_bar, "alpha0": settings.alpha0 * share}
        if self._corrects:
            everybody = sum(state.sizes.values())
            found |= {"correction_epoch": float(state.correction_epoch),
                      "correction_norm": tensors.norm(_mean_control(state).tensors) if state.mass else 0.0}
            if not self._environment.summed:  # else nobody knows who is in the sum
                found |= {"correction_silos": float(len(state.members)),
                          "correction_mass": state.mass / everybody if everybody else 0.0}
        return found

    # Corrections ------------------------------------------------------------------------------------------------------

    @property
    def _corrects(self) -> bool:
        return self._settings.variant != "fed_sh"

    def _share(self, steps: int) -> int:
        """s_k of `semisilo.common.learning.averaging.normalised`."""
        return steps if self._settings.variant == "fed_svr" else 1

    def _reason_to_renew(self, state: FedSHVRState, headers: tuple[UpdateHeader, ...]) -> str:
        """What keeps the old c_k of an accepted silo from being taken out of the sum; empty when nothing does."""
        if not self._corrects or self._settings.correction_at == "coordinator":
            return ""
        for header in headers:
            before = state.members.get(header.silo)
            if before is None:
                continue
            if header.metrics.get("correction_lost", 0.0) > 0:
                return f"silo {header.silo} has lost its control variate"
            if _has_other_images(before, header):
                images = before.get("said", before["examples"])
                return f"silo {header.silo} has {_said(header)} images, no longer {images}"
            if self._share(before["steps"]) != self._share(_steps(header)):
                return f"silo {header.silo} took {_steps(header)} steps, no longer {before['steps']}"
        return ""

    def _begin_sums(self, state: FedSHVRState, headers: tuple[UpdateHeader, ...], *, round: int) -> FedSHVRTally:
        """`train_begin` where each update is that of several silos, which took their mean number of steps together."""
        sizes, steps = [_examples(header) for header in headers], [header.metrics[STEPS] for header in headers]
        counted = steps if not self._settings.sums_per_step else counted_steps(
            self._environment.robust, headers, steps, round=round)
        factors = (normalised_factors(sizes, steps, counted=counted) if self._settings.sums_per_step
                   else size_weights(sizes))
        renew, reference = "", headers[0].weight_reference
        if any(header.metrics.get(LOST, 0.0) > 0 for header in headers):
            renew = "a silo has lost its control variate, or its images have changed"
        elif state.c_sum is not None and state.weight_reference != reference:
            before = state.weight_reference
            renew = (f"the count of images that none weighs more than is {reference}, no longer {before}" if before else
                     "an earlier version has kept no count of images that none weighs more than")
        return FedSHVRTally(
            round=round, weights=dict(zip([header.silo for header in headers], factors, strict=True)),
            tau_bar=mean_steps(sizes, counted), c_sum=state.c_sum, mass=state.mass, members=state.members,
            weight_reference=reference, renew=renew)

    def _fold_sum(self, state: FedSHVRState, tally: FedSHVRTally, header: UpdateHeader,
                  delta: Mapping[str, Tensor]) -> FedSHVRTally:
        """Adds what the control variates of several silos change in the sum:

            sum n_k s_k (c_k_new - c_k) = -(1 / lr) sum n_k d_k - C sum_{k in the sum before} n_k

        Args:
            delta: tau_bar sum n_k d_k / tau_k over sum n_k; with plain averaging sum n_k d_k over sum n_k.
        """
        examples, share = _examples(header), header.metrics[STEPS] if self._settings.sums_per_step else 1.0
        followed = tensors.scale(mean_gradient(delta, lr=self._settings.lr, steps=share), float(examples))
        joining = examples * header.metrics[JOINS]
        c_sum = tensors.add(_or_zeros(tally.c_sum, followed), followed)
        if examples > joining and state.mass:
            c_sum = _add(c_sum, _mean_control(state).tensors, factor=joining - examples)
        return replace(tally, c_sum=c_sum, mass=tally.mass + joining)

    def _is_held(self, state: FedSHVRState, silo: str, kept: FedSHVRSiloState | None) -> bool:
        """Whether what is kept for a silo is what is in the sum."""
        before = state.members.get(silo)
        return (before is not None and kept is not None and kept.epoch == state.correction_epoch
                and kept.round == before["round"])

    def _is_corrected(self, state: FedSHVRState, silo: str, kept: FedSHVRSiloState | None, *, round: int) -> bool:
        limit = self._settings.correction_max_age_rounds
        return (kept is not None and self._is_held(state, silo, kept)
                and not (limit and round - kept.round > limit))

    def _fold_kept(self, state: FedSHVRState, tally: FedSHVRTally, header: UpdateHeader,
                   followed: Mapping[str, Tensor], kept: FedSHVRSiloState | None
                   ) -> tuple[FedSHVRTally, FedSHVRSiloState | None]:
        """Takes the silo's old control variate out of the sum, whatever its weight was, and puts the new one in."""
        silo, before = header.silo, state.members.get(header.silo)
        if before is not None and not self._is_held(state, silo, kept):
            return replace(tally, renew=f"what was kept for silo {silo} is lost"), kept
        mean = old = None
        if self._is_corrected(state, silo, kept, round=tally.round):
            assert kept is not None
            mean, old = _mean_control(state).tensors, kept.c
        new = next_control(followed, mean, old, share=1 if before is None else self._share(before["steps"]))
        c = {name: tensor.to(state.w[name].dtype) for name, tensor in new.items()}
        examples, share = _weight_in_sum(state, header), self._share(_steps(header))
        c_sum, mass = _or_zeros(tally.c_sum, new), examples
        if before is not None and kept is not None:
            c_sum = _add(c_sum, kept.c, factor=-before["examples"] * self._share(before["steps"]))
            mass -= before["examples"]
        c_sum = _add(c_sum, c, factor=examples * share)
        return (_with_member(tally, header, c_sum, examples=examples, mass=mass),
                FedSHVRSiloState(c=c, epoch=state.correction_epoch, round=tally.round))

    def _own_statistics(self, w: Mapping[str, Tensor], *, round: int) -> dict[str, Tensor]:
        if not self._statistics.needed:
            return {}
        return self._statistics.own(model_at_coordinator(self._environment, w, round=round), round=round,
                                    report_from=0.0)


def _mean_control(state: FedSHVRState) -> TensorGroup:
    """C, in the type in which it is sent: everything goes on from what the silos got. There must be a sum."""
    c_sum, mass = state.c_sum, state.mass
    assert c_sum is not None
    return state.served.group("correction", lambda: {
        name: (tensor / mass).to(state.w[name].dtype) for name, tensor in c_sum.items()}, digest=False)


def _examples(header: UpdateHeader) -> int:
    """n_k; a silo that trained has at least one image."""
    return max(header.num_examples, 1)


def _said(header: UpdateHeader) -> int:
    """`_examples` before it was cut."""
    return max(header.said_examples, 1)


def _has_other_images(member: Mapping[str, int], header: UpdateHeader) -> bool:
    """Whether a silo says another number of images than when it came into the sum. Of a member that an earlier version
    has written only the cut number is known."""
    return member["said"] != _said(header) if "said" in member else member["examples"] != _examples(header)


def _weight_in_sum(state: FedSHVRState, header: UpdateHeader) -> int:
    """n_k in the sum of control variates: a member's stays, whoever else answers, as long as it has the same images."""
    member = state.members.get(header.silo)
    return _examples(header) if member is None or _has_other_images(member, header) else member["examples"]


def _steps(header: UpdateHeader) -> int:
    """tau_k, a whole number from 1: `MethodSpec.counts`."""
    return int(header.metrics["steps"])


def _add(total: Mapping[str, Tensor], part: Mapping[str, Tensor], *, factor: float) -> dict[str, Tensor]:
    return tensors.add(total, {name: tensor.double() for name, tensor in part.items()}, factor=factor)


def _or_zeros(c_sum: Mapping[str, Tensor] | None, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return tensors.zeros_like(like) if c_sum is None else dict(c_sum)


def _with_member(tally: FedSHVRTally, header: UpdateHeader, c_sum: dict[str, Tensor], *, examples: int,
                 mass: float) -> FedSHVRTally:
    """The tally with a silo in its sum, `examples` its weight there, and `mass` by how much the sum's grows."""
    entry = {"examples": examples, "said": _said(header), "steps": _steps(header), "round": tally.round}
    return replace(tally, c_sum=c_sum, mass=tally.mass + mass, members={**tally.members, header.silo: entry})
