"""What `silo status` and the page of a silo show: identity and the agent's own notes, as facts and as lines.

Tests: tests/test_keyboard.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from semisilo.common.errors import SemisiloError
from semisilo.common.identity.certificates import utc_text
from semisilo.common.measures.independent_images import by_what
from semisilo.common.measures.site_evaluation import ClassResult, Estimate
from semisilo.common.text.describe import counted, describe_bytes, describe_progress, describe_seconds
from semisilo.common.text.logs import printable
from semisilo.common.text.wrapped import wrapped
from semisilo.silo.agent.daily_budget import read_day
from semisilo.silo.site.disclosures import KINDS_IN_WORDS, last_line
from semisilo.silo.site.evaluations import RecordedEvaluation, read_evaluations, scores_text
from semisilo.silo.site.home import AgentStatus, SiloHome, StatusFile, home_option
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import Policy, load_policy
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending, spent_by_study
from semisilo.silo.site.trail_check import TrailFacts, trail_facts
from semisilo.silo.site.working_hours import Hours, closes_at, next_day_at, opens_at, time_text

__all__ = ["BudgetFacts", "EvaluationFacts", "HoursFacts", "LastDisclosure", "PrivacyFacts", "Score",
           "SiloFacts", "agent_status", "budget_facts", "evaluation_of", "facts", "hours_facts", "last_disclosure",
           "lines", "policy_of", "privacy_of", "score_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HoursFacts:
    """The working hours of this silo, now."""

    restricted: bool
    """Whether there are any: else it works at any time."""
    open: bool
    closes_unix: float | None
    """None while it is closed, or when it never closes."""
    opens_unix: float | None
    """None while it is open."""
    text: str
    """A line for a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetFacts:
    """What was carried today, and what may be."""

    limit_bytes: int
    """0 for no limit."""
    used_bytes: int
    sent_bytes: int
    received_bytes: int
    estimated: bool
    """Whether these are estimates, for want of the kernel's counts."""
    ends_unix: float
    """When the day is over."""
    ends_text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LastDisclosure:
    """The last thing that left this site."""

    time: str
    unix: float | None
    """None when its time cannot be read."""
    kind: str
    study: str
    round: int
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A global model on this site's test images."""

    study: str
    round: int
    labels_alone: bool
    """Whether it is the model of labels alone, in the place of the round's."""
    unix: float
    count: int
    """Test images."""
    accuracy: Estimate | None
    """None where images may have several labels or none, like the next."""
    balanced_accuracy: Estimate | None
    measure: str
    """What the study compares rounds by."""
    measured: Estimate | None
    """That measure; None where it cannot be measured on these images."""
    intervals_by: str
    """What the intervals go by: "by image", or "by patient (20 patients)"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFacts(Score):
    """The same with its classes, and in words."""

    classes: Mapping[str, ClassResult]
    """By class name."""
    text: str
    """A line for a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyFacts:
    """What was spent of the privacy of this site's images."""

    epsilon: float
    """Of all studies together."""
    delta: float
    max_epsilon: float | None
    """What silo.toml permits; None for no limit."""
    studies: Mapping[str, float]
    """Epsilon of each study by itself, at its own delta; in the order in which they spent last."""
    text: str
    """A line for a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloFacts:
    """Who this silo is, its certificate, and what the agent last wrote."""

    silo: str
    federation: str
    address: str
    """Of the coordinator."""
    home: str
    certificate_until: str
    renews_from: str
    days_left: float
    """Until the certificate expires; negative afterwards."""
    running: bool
    """Whether `silo join` runs here."""
    agent: AgentStatus
    """Its own notes; "stopped" when it does not run, whatever it wrote last."""
    policy_error: str
    """What is wrong with silo.toml; empty when nothing is."""
    hours: HoursFacts | None
    """None when silo.toml cannot be read; so is the budget then."""
    budget: BudgetFacts | None
    last_disclosure: LastDisclosure | None
    audit_trail: TrailFacts | None
    """What was seen of the coordinator's audit trail; None before the first task."""
    evaluations: tuple[EvaluationFacts, ...]
    """Global models on this site's test images, of the study that was evaluated last, oldest first."""
    privacy: PrivacyFacts | None
    """None where nothing was spent and nothing is limited."""
    privacy_error: str
    """Why it is not known what was spent; empty when it is."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON types, in one table with the agent's notes."""
        noted = asdict(self.agent)
        noted.pop("pid")
        mine = asdict(self)
        index = list(mine).index("agent")
        return {**dict(list(mine.items())[:index]), **noted, **dict(list(mine.items())[index + 1:])}


def facts(folder: Path, *, now: float) -> SiloFacts:
    """Looks at a silo's home.

    Args:
        folder: the silo's home.
        now: Unix seconds.
    Raises: UsageError when it is not enrolled.
    """
    identity = load_identity(folder)
    home = SiloHome(folder)
    running, agent = agent_status(home)
    policy, error = policy_of(home)
    privacy, privacy_error = privacy_of(PrivacyLedger(home.privacy).lines, policy, authority=identity.authority)
    return SiloFacts(
        silo=identity.silo, federation=identity.federation, address=identity.address, home=str(folder),
        certificate_until=utc_text(identity.not_after_unix), renews_from=utc_text(identity.about.renew_unix),
        days_left=round((identity.not_after_unix - now) / 86400, 2), running=running, agent=agent, policy_error=error,
        hours=None if policy is None else hours_facts(policy.hours, now),
        budget=None if policy is None else budget_facts(home, policy, now), last_disclosure=last_disclosure(home),
        audit_trail=trail_facts(home), evaluations=evaluation_facts(home), privacy=privacy, privacy_error=privacy_error)


def agent_status(home: SiloHome) -> tuple[bool, AgentStatus]:
    """Whether an agent runs, and what it last wrote of itself; "stopped" where none runs any more."""
    running = home.is_running()
    agent = StatusFile.load(home.status)
    if not running and agent.state != "not started":
        state = agent.state if agent.state.startswith("stopped") else "stopped"  # else it was killed
        agent = replace(agent, state=state, stage="", stage_fraction=0.0, stage_text="")
    return running, agent


def policy_of(home: SiloHome) -> tuple[Policy | None, str]:
    """silo.toml, and what is wrong with it; empty when nothing is."""
    try:
        return load_policy(home.policy), ""
    except SemisiloError as error:
        return None, error.line()


def evaluation_facts(home: SiloHome) -> tuple[EvaluationFacts, ...]:
    found = read_evaluations(home.evaluations)
    return tuple(evaluation_of(each) for each in found if each.evaluation.study == found[-1].evaluation.study)


def score_of(entry: RecordedEvaluation) -> Score:
    """The numbers of one entry of the record."""
    found, scores = entry.evaluation, entry.scores()
    return Score(
        study=found.study, round=found.round, labels_alone=found.labels_alone, unix=entry.unix, count=scores.count,
        accuracy=scores.accuracy, balanced_accuracy=scores.balanced_accuracy, measure=str(entry.study_measure),
        measured=scores.measure, intervals_by=by_what(entry.independent))


def evaluation_of(entry: RecordedEvaluation) -> EvaluationFacts:
    """What one entry of the record says."""
    score = score_of(entry)
    return EvaluationFacts(
        **{field.name: getattr(score, field.name) for field in fields(Score)},
        classes=dict(zip(entry.class_names, entry.evaluation.classes, strict=True)), text=scores_text(entry))


def privacy_of(read: Callable[[], Sequence[Spending]], policy: Policy | None, *,
               authority: str | None) -> tuple[PrivacyFacts | None, str]:
    """What was spent, as the lines of the ledger have it, where it was worked out; and why that is not known.

    Args:
        read: gives these lines.
        policy: None when silo.toml cannot be read: then nothing can be said.
        authority: `authority_id` of this silo's federation; None where that is not known.
    """
    if policy is None:
        return None, ""
    try:
        return _privacy_facts(read(), policy, authority), ""
    except SemisiloError as error:
        return None, error.line()


def _privacy_facts(found: Sequence[Spending], policy: Policy, authority: str | None) -> PrivacyFacts | None:
    limit = policy.privacy.max_epsilon
    if not found and not limit:
        return None
    epsilon, delta = (found[-1].epsilon, found[-1].delta) if found else (0.0, policy.privacy.delta)
    studies = spent_by_study(found, authority)
    permits = f" of {limit:g} that silo.toml permits" if limit else " spent, no limit"
    over = ": this silo refuses what would go beyond" if limit else ""
    return PrivacyFacts(epsilon=epsilon, delta=delta, max_epsilon=limit or None, studies=studies,
                        text=f"epsilon {epsilon:.3g}{permits} (delta {delta:g}){over}")


def hours_facts(hours: Hours, now: float) -> HoursFacts:
    """Whether it is within the working hours, and until when."""
    end, opens = closes_at(hours, now), opens_at(hours, now)
    return HoursFacts(
        restricted=hours.restricted, open=end is not None,
        closes_unix=end if end is not None and math.isfinite(end) else None,
        opens_unix=None if end is not None else opens, text=_hours_text(hours, end, opens))


def budget_facts(home: SiloHome, policy: Policy, now: float) -> BudgetFacts:
    """What was carried today."""
    count, end = read_day(home.day, policy.hours, now), next_day_at(policy.hours, now)
    return BudgetFacts(
        limit_bytes=policy.limits.bytes_per_day, used_bytes=count.bytes, sent_bytes=count.sent_bytes,
        received_bytes=count.received_bytes, estimated=count.estimated, ends_unix=end,
        ends_text=time_text(policy.hours, end))


def _hours_text(hours: Hours, end: float | None, opens: float) -> str:
    if end is None:
        return f"outside working hours until {time_text(hours, opens)}: no task is taken"
    return f"within working hours until {time_text(hours, end)}" if math.isfinite(end) else "at any time"


def last_disclosure(home: SiloHome) -> LastDisclosure | None:
    """What left last; None before anything did."""
    line = last_line(home.disclosures)
    return None if line is None else LastDisclosure(time=line.time, unix=line.unix, kind=line.kind, study=line.study,
                                                    round=line.round, bytes=line.bytes, digest=line.digest)


def lines(found: SiloFacts, *, now: float, width: int | None = None) -> list[str]:
    """The facts for a person, one a line.

    Args:
        width: of the terminal, at whose end lines are broken; None for whole lines.
    """
    days, agent = found.days_left, found.agent
    if days <= 0:
        certificate = (f"expired on {found.certificate_until}. Ask the coordinator's operator to run: coordinator "
                       f"invite {found.silo}")
    else:
        left = f"{days:.0f} days" if days >= 2 else f"{days * 24:.1f} hours"
        certificate = f"until {found.certificate_until} ({left} left), renews from {found.renews_from}"
    about = "about " if agent.bytes_estimated else ""
    start = f"silo join{home_option(Path(found.home))}"
    rows = [
        ("silo", found.silo),
        ("federation", f"{found.federation} at {found.address}"),
        ("home", found.home),
        ("certificate", certificate),
        ("agent", f"running: {agent.state}{_stage(agent)}" if found.running else f"not running ({start})"),
        ("last contact", _ago(agent.last_contact_unix, now)),
        ("last task", f"{agent.last_task}: {agent.last_outcome}" if agent.last_task else "none yet"),
        ("answered", counted(agent.tasks_answered, "task")),
        ("images", f"{agent.labelled_count + agent.unlabelled_count} ({agent.labelled_count} with a label, "
                   f"{agent.unlabelled_count} without)"),
        ("on the wire", f"{about}{describe_bytes(agent.sent_bytes)} sent, "
                        f"{about}{describe_bytes(agent.received_bytes)} received"),
    ]
    if found.hours is not None:
        rows.append(("hours", found.hours.text))
    if found.budget is not None:
        rows.append(("today", _budget_text(found.budget)))
    if found.privacy is not None or found.privacy_error:
        rows.append(("privacy", found.privacy.text if found.privacy is not None else found.privacy_error))
    if found.last_disclosure is not None:
        last = found.last_disclosure
        of = f" of {printable(last.study, limit=128)}{f', round {last.round}' if last.round else ''}" \
            if last.study else ""
        when = printable(last.time, limit=40) if last.unix is None else _ago(last.unix, now)
        kind = KINDS_IN_WORDS.get(last.kind, printable(last.kind, limit=40))
        what = f"{kind}{of}, {describe_bytes(last.bytes)}"
        rows.append(("last to leave", f"{what}, {when} (silo disclosures)"))
    if found.audit_trail is not None:
        rows.append(("audit trail", _trail_text(found.audit_trail)))
    if found.evaluations:
        rows.append(("at this site", found.evaluations[-1].text))
    if found.policy_error:
        rows.append(("silo.toml", found.policy_error))
    if agent.refusals:
        rows.append(("refused", f"the last {counted(agent.refusals, 'task')}: {agent.refusal_code}: "
                                f"{agent.last_refusal} (silo check)"))
    if agent.warning:
        rows.append(("warning", agent.warning))
    if agent.last_error:
        rows.append(("trouble", agent.last_error))
    return [line for name, value in rows for line in wrapped(name, value, indent=14, width=width)]


def _stage(agent: AgentStatus) -> str:
    """", training 42 % (epoch 2 of 5)" while there is such a stage."""
    said = f" ({agent.stage_text})" if agent.stage_text else ""
    return f", {agent.stage} {describe_progress(agent.stage_fraction)}{said}" if agent.stage else ""


def _trail_text(trail: TrailFacts) -> str:
    if trail.problems:
        return (f"CONTRADICTS ITSELF ({counted(trail.problems, 'time')}), last on "
                f"{printable(trail.last_problem_seen, limit=40)}: {printable(trail.last_problem)}"
                " (silo disclosures --check)")
    return f"seen up to event {trail.number}"


def _budget_text(budget: BudgetFacts) -> str:
    used = f"{'about ' if budget.estimated else ''}{describe_bytes(budget.used_bytes)}"
    if not budget.limit_bytes:
        return f"{used} carried, no limit"
    over = ", used up: no task is taken" if budget.used_bytes >= budget.limit_bytes else ""
    return f"{used} of {describe_bytes(budget.limit_bytes)} carried until {budget.ends_text}{over}"


def _ago(then: float, now: float) -> str:
    return "never" if not then else f"{describe_seconds(max(0.0, now - then))} ago"
