"""What the page of a silo shows, as dataclasses; their field names are the keys of the JSON.

Times are seconds since 1970. A field that is marked private names files of this site, or may: where it has something to
say it is None for who has not given the token, for the page is open to everyone who can reach it. Private too is what
is wrong: `identity_error` and the like, empty where nothing is.

Tests: tests/silo/page/test_page.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semisilo.silo.agent.asked import AskedTask
from semisilo.silo.agent.daily_budget import DayCount
from semisilo.silo.monitoring.status import (
    BudgetFacts,
    EvaluationFacts,
    HoursFacts,
    LastDisclosure,
    PrivacyFacts,
    Score,
)
from semisilo.silo.page.disclosure_book import Left
from semisilo.silo.page.policy_words import DaySpan, Rules

__all__ = ["AgentFacts", "AskedPage", "AuditFacts", "CardFacts", "CertificateFacts", "EvaluationsFacts", "HereFacts",
           "LeftFacts", "PeerFacts", "PolicyFacts", "StudiesFacts", "StudyDetail", "TrustFacts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateFacts:
    """This silo's certificate."""

    not_before_unix: float
    not_after_unix: float
    renew_unix: float
    fingerprint: str
    """SHA-256 of the certificate, hex."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFacts:
    """What `silo join` last wrote of itself: of its notes (`AgentStatus`), those that a page may show. A new note is
    shown only once it is named here, for everyone who can reach the page reads it."""

    running: bool
    since_unix: float | None
    state: str
    updated_unix: float
    last_contact_unix: float
    study: str
    round: int
    rounds: int
    stage: str
    stage_fraction: float
    stage_text: str
    last_task: str
    last_outcome: str | None
    """Private. Empty before the first."""
    tasks_answered: int
    labelled_count: int
    unlabelled_count: int
    sent_bytes: int
    received_bytes: int
    bytes_estimated: bool
    last_error: str | None
    """Private; empty when all is well."""
    refusals: int
    refusal_code: str
    last_refusal: str | None
    """Private."""
    warning: str
    """Of the coordinator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HereFacts:
    """The silo at a glance."""

    now_unix: float
    version: str
    revealed: bool
    """Whether private fields are told."""
    home: str
    token_command: str
    """Prints the token."""
    enrolled: bool
    silo: str
    federation: str
    address: str
    """Of the coordinator."""
    identity_error: str | None
    certificate: CertificateFacts | None
    agent: AgentFacts
    policy_error: str | None
    """What is wrong with silo.toml."""
    policy_newer: bool
    """Whether silo.toml has changed since the agent has read it."""
    hours: HoursFacts | None
    budget: BudgetFacts | None
    privacy: PrivacyFacts | None
    privacy_error: str | None
    last_disclosure: LastDisclosure | None
    evaluation: EvaluationFacts | None
    """The newest."""
    waiting: tuple[str, ...]
    """Studies that wait for a person."""
    cards_error: str | None
    audit_problems: int
    """Contradictions in the coordinator's audit trail, as they were noted when they came."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """A study and what this site has said to it."""

    study: str
    state: str
    """"waiting", "approved", "signed" or "declined"."""
    over: bool
    """Whether it waits in vain: the study is over."""
    by: str
    by_policy: bool
    """Whether silo.toml has signed, not a person."""
    unix: float
    digest: str
    told: bool
    changed: str
    """What is otherwise than in the card that was signed before; empty where there was none."""
    earlier: int
    """Cards that were signed before."""
    method: str
    rounds: int
    model: str
    secure_aggregation: bool
    dp_unit: str
    """Whose presence is hidden, "example" or "silo"; empty without differential privacy."""
    sends: Mapping[str, str]
    """Tensor group -> what its bytes mean."""
    numbers: tuple[str, ...]
    discloses: str
    epsilon: float | None
    """What it has spent here, at its own delta; None where nothing was."""
    lines: int
    bytes: int
    """What has left for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudiesFacts:
    """All studies whose cards have come, the newest first."""

    studies: tuple[CardFacts, ...]
    approval: bool
    """Whether a person must approve; False too where silo.toml cannot be read."""
    error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyDetail:
    """One of them, whole."""

    facts: CardFacts
    card: Mapping[str, object]
    """As it was signed or is to be: plain JSON."""
    settings: tuple[tuple[str, str, str], ...]
    """(table, key, value) of all that it says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftFacts:
    """What left this site, in short, and what the connection carried."""

    record: Left
    days: tuple[DayCount, ...]
    """Bytes on the wire of days that are over, oldest first, and of today, where it is known."""
    limit_bytes: int
    """A day's; 0 for no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedPage:
    """Some tasks, the newest first."""

    tasks: tuple[AskedTask, ...]
    """Their `text` is empty for who has not given the token."""
    studies: tuple[str, ...]
    total: int
    """That fit what was asked for."""
    steps: int
    """Steps of secure sums, which ask for no update."""
    offset: int
    revealed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationsFacts:
    """All that is recorded, oldest first."""

    scores: tuple[Score, ...]
    newest: EvaluationFacts | None
    """With its classes."""
    told: bool | None
    """Whether the coordinator is told, as silo.toml says; None where that cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFacts:
    """silo.toml in plain words."""

    error: str | None
    rules: tuple[Rules, ...]
    week: tuple[DaySpan, ...]
    restricted: bool
    """Whether there are hours in which no task is taken."""
    zone: str
    text: str | None
    """The file itself. Private."""
    changed_unix: float | None
    newer: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerFacts:
    """A silo that this one knows."""

    silo: str
    state: str
    number: str
    """To be read to each other."""
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFacts:
    """What the signed heads of the coordinator's audit trail prove."""

    heads: int
    text: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    checked_unix: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustFacts:
    """Whom this silo trusts, and what it has checked."""

    peers: tuple[PeerFacts, ...]
    peers_error: str | None
    audit: AuditFacts | None
    audit_error: str | None
