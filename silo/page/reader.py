"""Reads what the page shows from the silo's folder, and nothing else.

Nothing here writes, asks anybody, or holds the agent's lock for longer than a glance; every reading is bounded, and
what is long is read again only when it has changed. Used from one thread.

Tests: tests/silo/page/test_page.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from semisilo.common import __version__
from semisilo.common.config import to_dict
from semisilo.common.errors import SemisiloError
from semisilo.common.identity.certificates import load_certificate
from semisilo.common.text.logs import printable
from semisilo.common.text.setting_rows import setting_rows
from semisilo.silo.agent.asked import AskedTask, read_asked
from semisilo.silo.agent.daily_budget import DayCount, read_day, read_days
from semisilo.silo.monitoring.status import (
    agent_status,
    budget_facts,
    evaluation_of,
    hours_facts,
    last_disclosure,
    policy_of,
    privacy_of,
    score_of,
)
from semisilo.silo.page.disclosure_book import DisclosureBook, LeftOf, LeftPage
from semisilo.silo.page.facts import (
    AgentFacts,
    AskedPage,
    AuditFacts,
    CardFacts,
    CertificateFacts,
    EvaluationsFacts,
    HereFacts,
    LeftFacts,
    PeerFacts,
    PolicyFacts,
    StudiesFacts,
    StudyDetail,
    TrustFacts,
)
from semisilo.silo.page.policy_words import rules_of, week_of
from semisilo.silo.site.evaluations import RecordedEvaluation, read_evaluations
from semisilo.silo.site.home import AgentStatus, SiloHome, StatusFile, home_option
from semisilo.silo.site.identity_store import Identity, has_identity, load_identity
from semisilo.silo.site.peers import peers_of
from semisilo.silo.site.policy import Policy
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending, spent_by_study
from semisilo.silo.site.trail_check import TrailFacts, check_trail, trail_facts
from semisilo.silo.study_cards.book import BY_POLICY, CardBook, CardEntry
from semisilo.silo.study_cards.decision import find_card

__all__ = ["MOST_TASKS", "SiloReader"]

MOST_TASKS = 200
_MOST_POLICY_BYTES = 256 * 1024
_READING = "reading the images"
_STEP = "answered"
"""What becomes of a step of a secure sum."""

T = TypeVar("T")


class SiloReader:
    """Reads one silo's folder again and again."""

    def __init__(self, home: SiloHome, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._clock = clock
        self.book = DisclosureBook(home.disclosures)
        self._audit: _Kept[AuditFacts] = _Kept()
        self._trail_facts: _Kept[TrailFacts | None] = _Kept()
        self._asked: _Kept[tuple[AskedTask, ...]] = _Kept()
        self._evaluated: _Kept[tuple[RecordedEvaluation, ...]] = _Kept()
        self._spendings: _Kept[tuple[Spending, ...]] = _Kept()

    # At a glance ------------------------------------------------------------------------------------------------------

    def here(self, *, revealed: bool) -> HereFacts:
        """The silo at a glance.

        Args:
            revealed: whether whoever asks may see private fields; so below.
        """
        home, now = self._home, self._clock()
        identity, identity_error = self._identity()
        policy, policy_error = policy_of(home)
        running, agent = agent_status(home)
        since = home.agent_began() if running else None
        privacy, privacy_error = privacy_of(self._spent, policy,
                                            authority=None if identity is None else identity.authority)
        waiting, cards_error = self._waiting()
        found, trail = self._evaluations(), self._trail_facts.of(home.heads, lambda path: trail_facts(home))
        return HereFacts(
            now_unix=now, version=__version__, revealed=revealed, home=str(home.folder),
            token_command=f"silo page --token{home_option(home.folder)}",
            enrolled=identity is not None, silo="" if identity is None else identity.silo,
            federation="" if identity is None else identity.federation,
            address="" if identity is None else identity.address,
            identity_error=_private(identity_error, revealed),
            certificate=None if identity is None else _certificate(identity),
            agent=_agent(agent, running=running, since=since, revealed=revealed),
            policy_error=_private(policy_error, revealed),
            policy_newer=self._policy_newer(since), hours=None if policy is None else hours_facts(policy.hours, now),
            budget=None if policy is None else budget_facts(home, policy, now), privacy=privacy,
            privacy_error=_private(privacy_error, revealed), last_disclosure=last_disclosure(home),
            evaluation=evaluation_of(found[-1]) if found else None, waiting=waiting,
            cards_error=_private(cards_error, revealed),
            audit_problems=0 if trail is None else trail.problems)

    def _identity(self) -> tuple[Identity | None, str]:
        if not has_identity(self._home.folder):
            return None, ""
        try:
            return load_identity(self._home.folder), ""
        except SemisiloError as error:
            return None, error.line()

    def _policy_newer(self, since: float | None) -> bool:
        """Whether silo.toml is younger than the agent that has read it."""
        changed = _modified(self._home.policy)
        return since is not None and changed is not None and changed > since

    def _waiting(self) -> tuple[tuple[str, ...], str]:
        try:
            return tuple(entry.study for entry in CardBook(self._home.cards).entries()
                         if entry.state == "waiting" and not entry.is_over(self._works_on())), ""
        except SemisiloError as error:
            return (), error.line()

    def _works_on(self) -> str | None:
        return StatusFile.load(self._home.status).works_on

    # Studies ----------------------------------------------------------------------------------------------------------

    def studies(self, *, revealed: bool) -> StudiesFacts:
        """All studies whose cards have come."""
        policy, _ = policy_of(self._home)
        try:
            entries, error = CardBook(self._home.cards).entries(), ""
        except SemisiloError as trouble:
            entries, error = [], trouble.line()
        self.book.refresh()
        spent = self._spent_by_study() if entries else {}
        return StudiesFacts(studies=tuple(self._card(entry, spent) for entry in entries),
                            error=_private(error, revealed),
                            approval=policy is not None and policy.require.approval)

    def study(self, study: str) -> StudyDetail:
        """One study. Raises: UsageError where no card of it has come; StorageDamaged."""
        entry = find_card(CardBook(self._home.cards), study)
        self.book.refresh()
        card = to_dict(entry.card)
        return StudyDetail(facts=self._card(entry, self._spent_by_study()), card=card,
                           settings=tuple(setting_rows(card)))

    def _card(self, entry: CardEntry, spent: Mapping[str, float]) -> CardFacts:
        card = entry.card
        left = next((each for each in self.book.left().studies if each.name == entry.study),
                    LeftOf(name=entry.study, lines=0, bytes=0, last=""))
        return CardFacts(
            study=entry.study, state=entry.state, over=entry.is_over(self._works_on()), by=entry.by,
            by_policy=entry.by == BY_POLICY, unix=entry.unix, digest=entry.digest, told=entry.told,
            changed=entry.changed, earlier=len(entry.earlier), method=card.method, rounds=card.rounds,
            model=card.model.name, secure_aggregation=card.privacy.secure_aggregation,
            dp_unit="" if card.privacy.dp is None else card.privacy.dp.unit, sends=card.sends, numbers=card.numbers,
            discloses=card.discloses, epsilon=spent.get(entry.study), lines=left.lines,
            bytes=left.bytes)

    def _spent(self) -> tuple[Spending, ...]:
        """Raises: StorageDamaged."""
        ledger = PrivacyLedger(self._home.privacy)
        return self._spendings.of(ledger.path, lambda path: ledger.lines())

    def _spent_by_study(self) -> dict[str, float]:
        identity, _ = self._identity()
        try:
            return spent_by_study(self._spent(), None if identity is None else identity.authority)
        except (SemisiloError, OSError):
            return {}

    # What left --------------------------------------------------------------------------------------------------------

    def left(self) -> LeftFacts:
        """What left, added up."""
        self.book.refresh()
        policy, now = policy_of(self._home)[0], self._clock()
        days: tuple[DayCount, ...] = ()
        with contextlib.suppress(OSError):
            days = read_days(self._home.days)
        if policy is not None:
            today = read_day(self._home.day, policy.hours, now)
            days = (*(each for each in days if each.day < today.day), today)  # later ones are of a wrong clock
        return LeftFacts(record=self.book.left(), days=days,
                         limit_bytes=0 if policy is None else policy.limits.bytes_per_day)

    def disclosures(self, *, study: str | None, kind: str, before: int, limit: int) -> LeftPage:
        """Lines of the record, newest first."""
        self.book.refresh()
        return self.book.page(study=study, kind=kind, before=before, limit=limit)

    # What was asked ---------------------------------------------------------------------------------------------------

    def asked(self, *, study: str, steps: bool, offset: int, limit: int, revealed: bool) -> AskedPage:
        """Tasks, newest first.

        Args:
            study: empty for all.
            steps: whether steps of secure sums are wanted too: they ask for no update, and are most of what is asked.
            offset: how many of the newest to leave out.
        """
        tasks = self._asked.of(self._home.asked, read_asked)
        of_study = [task for task in reversed(tasks) if not study or task.study == study]
        fitting = [task for task in of_study if steps or task.outcome != _STEP]
        shown = fitting[offset:offset + max(1, min(limit, MOST_TASKS))]
        return AskedPage(tasks=tuple(task if revealed else replace(task, text="") for task in shown),
                         studies=tuple(dict.fromkeys(task.study for task in tasks)), total=len(fitting),
                         steps=sum(task.outcome == _STEP for task in of_study), offset=offset, revealed=revealed)

    # The model here ---------------------------------------------------------------------------------------------------

    def evaluations(self) -> EvaluationsFacts:
        """Global models on this site's test images."""
        policy, found = policy_of(self._home)[0], self._evaluations()
        return EvaluationsFacts(scores=tuple(map(score_of, found)), newest=evaluation_of(found[-1]) if found else None,
                                told=None if policy is None else policy.permit.site_evaluation)

    def _evaluations(self) -> tuple[RecordedEvaluation, ...]:
        return self._evaluated.of(self._home.evaluations, read_evaluations)

    # Rules ------------------------------------------------------------------------------------------------------------

    def policy(self, *, revealed: bool) -> PolicyFacts:
        """silo.toml."""
        policy, error = policy_of(self._home)
        shown = Policy() if policy is None else policy
        rules = () if policy is None else rules_of(shown)
        if not revealed:
            rules = tuple(replace(table, rules=tuple(
                replace(rule, value="shown after signing in") if rule.private else rule for rule in table.rules))
                for table in rules)
        return PolicyFacts(
            error=_private(error, revealed), rules=rules,
            week=() if policy is None else week_of(shown.hours), restricted=shown.hours.restricted,
            zone=shown.hours.zone, text=self._policy_text() if revealed else None,
            changed_unix=_modified(self._home.policy),
            newer=self._policy_newer(self._home.agent_began() if self._home.is_running() else None))

    def _policy_text(self) -> str:
        try:
            with self._home.policy.open("rb") as file:
                return file.read(_MOST_POLICY_BYTES).decode(errors="replace")
        except OSError:
            return ""

    # Trust ------------------------------------------------------------------------------------------------------------

    def trust(self, *, revealed: bool) -> TrustFacts:
        """Peers, and the coordinator's audit trail."""
        peers, peers_error = self._peers()
        audit, audit_error = self._trail()
        return TrustFacts(peers=peers, peers_error=_private(peers_error, revealed), audit=audit,
                          audit_error=_private(audit_error, revealed))

    def _peers(self) -> tuple[tuple[PeerFacts, ...], str]:
        home = self._home
        if not has_identity(home.folder):
            return (), ""
        if not (home.secure / "identity.key").exists():
            return (), ""  # the agent makes it: nothing is made by looking
        try:
            return tuple(PeerFacts(**peer.facts()) for peer in peers_of(home)), ""
        except (SemisiloError, OSError) as error:
            return (), error.line() if isinstance(error, SemisiloError) else str(error)

    def _trail(self) -> tuple[AuditFacts | None, str]:
        if not has_identity(self._home.folder) or not self._home.heads.exists():
            return None, ""
        try:
            return self._audit.of(self._home.heads, lambda path: self._check_trail()), ""
        except (SemisiloError, OSError) as error:
            return None, error.line() if isinstance(error, SemisiloError) else str(error)

    def _check_trail(self) -> AuditFacts:
        found = check_trail(self._home.folder, None)
        return AuditFacts(heads=found.heads, text=found.text, checked_unix=self._clock(),
                          problems=tuple(printable(line, limit=1000) for line in found.problems),
                          notes=tuple(printable(line, limit=1000) for line in found.notes))


def _certificate(identity: Identity) -> CertificateFacts:
    certificate: x509.Certificate = load_certificate(identity.credentials.certificate_pem)
    return CertificateFacts(not_before_unix=identity.not_before_unix, not_after_unix=identity.not_after_unix,
                            renew_unix=identity.about.renew_unix,
                            fingerprint=hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest())


def _agent(agent: AgentStatus, *, running: bool, since: float | None, revealed: bool) -> AgentFacts:
    state = _READING if agent.state.startswith(_READING) and not revealed else agent.state
    return AgentFacts(
        running=running, since_unix=since, state=state, updated_unix=agent.updated_unix,
        last_contact_unix=agent.last_contact_unix, study=agent.study, round=agent.round, rounds=agent.rounds,
        stage=agent.stage, stage_fraction=agent.stage_fraction, stage_text=agent.stage_text, last_task=agent.last_task,
        last_outcome=_private(agent.last_outcome, revealed), tasks_answered=agent.tasks_answered,
        labelled_count=agent.labelled_count, unlabelled_count=agent.unlabelled_count, sent_bytes=agent.sent_bytes,
        received_bytes=agent.received_bytes, bytes_estimated=agent.bytes_estimated,
        last_error=_private(agent.last_error, revealed), refusals=agent.refusals, refusal_code=agent.refusal_code,
        last_refusal=_private(agent.last_refusal, revealed), warning=agent.warning)


class _Kept(Generic[T]):
    """What was made of a file, until that is another one."""

    def __init__(self) -> None:
        self._made: tuple[tuple[int, int, int], T] | None = None

    def of(self, path: Path, make: Callable[[Path], T]) -> T:
        """What `make` makes of the file. Raises: what that does."""
        try:
            found = path.stat()
        except OSError:
            self._made = None
            return make(path)
        stamp = found.st_ino, found.st_size, found.st_mtime_ns
        if self._made is None or self._made[0] != stamp:
            self._made = stamp, make(path)
        return self._made[1]


def _private(text: str, revealed: bool) -> str | None:
    return text if revealed or not text else None


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
