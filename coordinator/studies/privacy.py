"""What a study has spent of the privacy of its silos' images, or of its silos: for the report and the model card.

With unit = "example" every silo says so itself with each update; its own ledger is what counts. With unit = "silo" it
follows from how many of a silo's updates were taken in. Rounds that no longer count, since the study went back to an
earlier one, count here: silos had their models.

Tests: tests/coordinator/studies/test_privacy.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semisilo.common.config import from_dict
from semisilo.common.methods.parts.privacy import PrivacySettings, Unit
from semisilo.common.methods.spec import EPSILON
from semisilo.common.text.describe import counted
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import PastAnswer, past_answers, rollbacks_of
from semisilo.coordinator.ledger.states import TaskState

__all__ = ["AnsweredRound", "SiloEpsilon", "StudyPrivacy", "WentBack", "masked_sentence", "privacy_of",
           "went_back"]


class AnsweredRound(Protocol):
    """A round, as `semisilo.coordinator.monitoring.summary.RoundSummary` has it."""

    @property
    def number(self) -> int: ...
    @property
    def updated(self) -> frozenset[str]: ...
    @property
    def silo_metrics(self) -> Mapping[str, Mapping[str, float]]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WentBack:
    """A study went back to an earlier round, and what silos had answered in the rounds that are gone."""

    to_round: int
    answers: tuple[PastAnswer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloEpsilon:
    """One silo."""

    silo: str
    epsilon: float
    """What this study has spent, at the study's delta."""
    updates: int
    """Its updates that were accepted, those of rounds that no longer count among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyPrivacy:
    """Differential privacy of a study so far."""

    unit: Unit
    clip_norm: float
    noise_multiplier: float | None
    """None where every silo works out its own."""
    target_epsilon: float | None
    delta: float
    behind_masks: bool = False
    """Whether updates are added up behind masks, so that with unit = "silo" silos clip and add noise themselves."""
    honest_silos: int = 0
    """As set; see `semisilo.common.methods.parts.privacy.DifferentialPrivacy`."""
    silos: tuple[SiloEpsilon, ...]
    """Those with an accepted update, also one that was left out later and is not counted among `SiloEpsilon.updates`,
    in byte order of names."""

    @property
    def epsilon(self) -> float:
        """The largest of any silo; 0 before the first update."""
        return max((each.epsilon for each in self.silos), default=0.0)

    @property
    def promise(self) -> str:
        """What it means, in a sentence."""
        if self.unit == "example" and self.honest_silos:
            return ("Each silo clips the gradient of every image and adds a share of the noise behind its masks:"
                    " epsilon bounds what anybody outside, the coordinator included, learns of one image, as long as"
                    f" {counted(self.honest_silos, 'silo')} of every sum"
                    f" {'adds its share' if self.honest_silos == 1 else 'add theirs'}. The numbers are the silos' own,"
                    " for this study; a site's ledger counts all its studies.")
        if self.unit == "example":
            return ("Each silo clips the gradient of every image and adds noise before anything leaves it: epsilon"
                    " bounds what anybody outside, the coordinator included, learns of one image. The numbers are the"
                    " silos' own, for this study; a site's ledger counts all its studies.")
        if self.behind_masks:
            honest = counted(self.honest_silos, "silo") if self.honest_silos else "more than half of its threshold"
            return ("Every silo clips its update and adds a share of the noise behind its masks: epsilon bounds what"
                    " anybody, the coordinator included, learns of one whole silo, as long as so many silos of every"
                    f" sum add theirs: {honest}.")
        return ("The coordinator clips every silo's update and adds noise to their sum: epsilon bounds what whoever"
                " sees the models, but not the coordinator, learns of one whole silo.")

    @property
    def how(self) -> str:
        """The settings, in a phrase."""
        noise = (f"noise {self.noise_multiplier:g} times the clip" if self.noise_multiplier is not None
                 else f"noise of each silo's own for a target of epsilon {self.target_epsilon:g}")
        return f"clip {self.clip_norm:g}, {noise}, delta {self.delta:g}"


def masked_sentence(config: Mapping[str, Any]) -> str:
    """What secure aggregation means for a study, for a person; empty where it has none."""
    settings = from_dict(PrivacySettings, config.get("privacy", {}))
    if not settings.secure_aggregation:
        return ""
    return (f"The updates of silos were added up behind masks, those of {settings.min_silos} silos or more at a time:"
            " the coordinator has seen sums, and no update by itself.")


def went_back(ledger: Ledger, study: str) -> tuple[WentBack, ...]:
    """Every time that a study went back, in order; empty where it has no differential privacy, for then nobody asks."""
    if not ledger.study(study).config.get("privacy", {}).get("dp"):
        return ()
    return tuple(WentBack(to_round=each.to_round, answers=past_answers(ledger, each.number))
                 for each in rollbacks_of(ledger, study))


def privacy_of(config: Mapping[str, Any], rounds: Iterable[AnsweredRound], *, past: Sequence[WentBack] = (),
               up_to: int | None = None) -> StudyPrivacy | None:
    """Of the settings and rounds of a study, up to one of them; None where it has no differential privacy.

    Args:
        past: every time that it went back. What came before the round `up_to` as it is now was spent by then.
    With unit = "silo" a round that was done again with the very same updates counts twice, though its model and noise
    are the same: what is told is then more than was spent.
    """
    settings = from_dict(PrivacySettings, config.get("privacy", {}))
    dp = settings.dp
    if dp is None:
        return None
    epsilons: dict[str, float] = {}
    updates: Counter[str] = Counter()

    def told(silo: str, metrics: Mapping[str, float]) -> None:
        """What came with an update was spent, also where the update was left out since: the coordinator has had it."""
        if EPSILON in metrics:
            epsilons[silo] = max(epsilons.get(silo, 0.0), metrics[EPSILON])

    for entry in rounds:
        if up_to is not None and entry.number > up_to:
            continue
        updates.update(entry.updated)
        for silo, metrics in entry.silo_metrics.items():
            told(silo, metrics)
    again = [index for index, each in enumerate(past) if up_to is None or each.to_round < up_to]
    for each in past[:again[-1] + 1] if again else ():
        updates.update(silo for silo, _ in {(answer.silo, answer.round) for answer in each.answers
                                            if answer.state is TaskState.UPDATED})
        for answer in each.answers:
            told(answer.silo, answer.metrics)
    if dp.unit == "silo":
        from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of

        epsilons = {silo: epsilon_of([NoisySteps(noise_multiplier=dp.noise_multiplier, sampling_rate=1.0, steps=count)],
                                     dp.delta) for silo, count in updates.items()}
    return StudyPrivacy(
        unit=dp.unit, clip_norm=dp.clip_norm, noise_multiplier=dp.noise_multiplier or None,
        target_epsilon=dp.target_epsilon or None, delta=dp.delta, behind_masks=settings.secure_aggregation,
        honest_silos=dp.honest_silos, silos=tuple(
            SiloEpsilon(silo=silo, epsilon=epsilons.get(silo, 0.0), updates=updates[silo])
            for silo in sorted({*updates, *epsilons}, key=str.encode)))
