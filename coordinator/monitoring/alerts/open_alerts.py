"""What needs a person at this moment. The one list that the page shows, the browser announces and the webhook is told.

| kind | when | severity |
|---|---|---|
| study_failed | a study failed within the last week | critical |
| study_paused | the coordinator has paused a study, because silos refuse its rounds | critical |
| study_waits | a study waits for silos to join, or for so many that take tasks | warning |
| quorum_missing | a phase is past its deadline and its quorum is not reached | warning |
| rounds_failed | the last round or rounds of a running study have failed | warning |
| system_trouble | the operating system refuses what a study needs, which waits until then | critical |
| silo_refuses | the last answer of a silo in a running study was a refusal | warning |
| silo_silent | nothing was heard of a silo for `silent_after`: no round asks it | warning |
| silo_stands_out | a notice of the last day about a silo (`semisilo.coordinator.ledger.oversight.notices`) | warning |
| silo_certificate | the certificate of a silo ends within 5 days | warning |
| hub_certificate | that of the coordinator ends within 14 days, or the authority's within 60 | critical |
| disk_low | less than 5 % or 2 GB are free on the disk of the federation folder | critical |
| study_finished | a study was completed within the last day | info |

Tests: tests/coordinator/monitoring/alerts/test_open_alerts.py.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from semisilo.common.errors import SemisiloError
from semisilo.common.identity.certificates import load_certificate, not_after_unix
from semisilo.common.text.describe import counted, describe_bytes, describe_moment
from semisilo.common.text.logs import printable
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import notices_of
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import ENDED_STUDY, RoundState, StudyState
from semisilo.coordinator.ledger.tasks import first_update, last_refusals, open_tasks
from semisilo.coordinator.monitoring.silo_state import SiloState, activities_of
from semisilo.coordinator.monitoring.study_facts import open_round_facts
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.rounds.runtime import StandbyReason
from semisilo.coordinator.rounds.study_lifecycle import FIX_THERE
from semisilo.coordinator.studies.model_choice import choice_of

__all__ = ["Alert", "AlertKind", "Severity", "open_alerts"]

_DAY = 86400.0
_FAILED_DAYS, _FINISHED_DAYS, _NOTICE_DAYS = 7, 1, 1
_SILO_CERTIFICATE_DAYS, _HUB_CERTIFICATE_DAYS, _AUTHORITY_DAYS = 5, 14, 60
_LEAST_FREE_BYTES, _LEAST_FREE_SHARE = 2e9, 0.05
_LONGEST = 500
_GONE = (SiloState.REVOKED, SiloState.LEFT)


class Severity(StrEnum):
    """How much it presses."""

    CRITICAL = "critical"
    """Nothing goes on without a person."""
    WARNING = "warning"
    INFO = "info"
    """Good to know."""


class AlertKind(StrEnum):
    """What it is about; the table above says when."""

    STUDY_FAILED = "study_failed"
    STUDY_PAUSED = "study_paused"
    STUDY_WAITS = "study_waits"
    QUORUM_MISSING = "quorum_missing"
    ROUNDS_FAILED = "rounds_failed"
    SYSTEM_TROUBLE = "system_trouble"
    SILO_REFUSES = "silo_refuses"
    SILO_SILENT = "silo_silent"
    SILO_STANDS_OUT = "silo_stands_out"
    SILO_CERTIFICATE = "silo_certificate"
    HUB_CERTIFICATE = "hub_certificate"
    DISK_LOW = "disk_low"
    STUDY_FINISHED = "study_finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One thing that needs a person."""

    id: str
    """The same as long as it is the same thing: who has heard of it need not hear again."""
    kind: AlertKind
    severity: Severity
    title: str
    """In a few words."""
    text: str
    """What is known; may hold what a silo said, as one printable line. Empty where the title says all."""
    remedy: str
    """What to do; empty where nothing is to be done."""
    study: str = ""
    silo: str = ""
    since_unix: float | None = None
    """None where that is not known."""


def open_alerts(ledger: Ledger, live: LiveStatus | None, *, folder: Path | None, now_unix: float) -> tuple[Alert, ...]:
    """All of them: first what presses most, then by kind.

    Args:
        live: what `coordinator serve` is doing; None when it is not running.
        folder: of the federation, for its disk and certificates; None where there is only a ledger.
    """
    found = [*_of_studies(ledger, live, now_unix), *_of_silos(ledger, live, now_unix)]
    if folder is not None:
        found += [*_of_disk(folder), *_of_certificates(folder, now_unix)]
    order, kinds = list(Severity), list(AlertKind)
    return tuple(sorted(found, key=lambda each: (order.index(each.severity), kinds.index(each.kind))))


# Studies --------------------------------------------------------------------------------------------------------------


def _of_studies(ledger: Ledger, live: LiveStatus | None, now: float) -> Iterator[Alert]:
    for row in ledger.studies():
        if row.state in ENDED_STUDY:
            yield from _of_ended(ledger, row, now)
            continue
        rounds = round_heads(ledger, row.name)
        if live is not None and live.study == row.name and live.trouble:
            yield Alert(id=f"system_trouble/{row.name}", kind=AlertKind.SYSTEM_TROUBLE, severity=Severity.CRITICAL,
                        title=f"{row.name} waits", text=_line(live.trouble), remedy="It continues automatically.",
                        study=row.name)
        paused = ledger.paused_since(row.name) if row.state is StudyState.PAUSED else None
        if paused is not None and row.reason:
            yield Alert(id=f"study_paused/{row.name}/{paused[0]:.0f}", kind=AlertKind.STUDY_PAUSED,
                        severity=Severity.CRITICAL, title=f"{row.name} was paused by the coordinator",
                        text=_line(row.reason.removesuffix(FIX_THERE)), study=row.name, since_unix=paused[0],
                        remedy=f"Remove the cause, then: coordinator resume {row.name}.")
        if row.state in (StudyState.WAITING, StudyState.RUNNING):
            yield from _waits(ledger, row, rounds, live, now)
            yield from _failed_rounds(row, rounds)


def _of_ended(ledger: Ledger, row: StudyRow, now: float) -> Iterator[Alert]:
    ended = row.ended_unix or 0.0
    if row.state is StudyState.FAILED and now - ended < _FAILED_DAYS * _DAY:
        yield Alert(id=f"study_failed/{row.name}/{ended:.0f}", kind=AlertKind.STUDY_FAILED, severity=Severity.CRITICAL,
                    title=f"{row.name} has failed", text=_line(row.reason),
                    remedy=f"Remove the cause, then: coordinator queue {row.name}.", study=row.name, since_unix=ended)
    if row.state is StudyState.COMPLETED and now - ended < _FINISHED_DAYS * _DAY:
        choice = choice_of(row, round_heads(ledger, row.name), first_update=first_update(ledger, row.name))
        yield Alert(id=f"study_finished/{row.name}/{ended:.0f}", kind=AlertKind.STUDY_FINISHED, severity=Severity.INFO,
                    title=f"{row.name} is complete", text=choice.conclusion,
                    remedy=f"Next: coordinator export {row.name}.", study=row.name, since_unix=ended)


def _waits(ledger: Ledger, row: StudyRow, rounds: list[RoundHead], live: LiveStatus | None, now: float
           ) -> Iterator[Alert]:
    says = live is not None and live.study == row.name and live.reason == StandbyReason.WAITING_FOR_SILOS
    if row.state is StudyState.WAITING or says:
        number = rounds[-1].number if rounds else 0
        yield Alert(id=f"study_waits/{row.name}/{number}", kind=AlertKind.STUDY_WAITS, severity=Severity.WARNING,
                    title=f"{row.name} waits for silos", text=_line(live.text) if says and live is not None else "",
                    remedy=" ".join(("It goes on as soon as enough take part.", live.remedy if says and live is not None
                                     else "")).strip(),
                    study=row.name)
    open_round = open_round_facts(ledger, row, rounds[-1] if rounds else None)
    if open_round is None or open_round.deadline_unix is None or open_round.deadline_unix > now:
        return
    missing = ", ".join(open_round.waiting_for[:5])
    more = f" and {len(open_round.waiting_for) - 5} others" if len(open_round.waiting_for) > 5 else ""
    limit = "" if open_round.limit_unix is None else f" The round fails on {describe_moment(open_round.limit_unix)}."
    yield Alert(id=f"quorum_missing/{row.name}/{open_round.number}/{open_round.phase}", kind=AlertKind.QUORUM_MISSING,
                severity=Severity.WARNING, title=f"Round {open_round.number} of {row.name} waits for its quorum",
                text=f"{counted(open_round.quorum, 'answer')} are needed; {missing}{more} have not answered.{limit}",
                remedy="Ask the sites, or: coordinator extend.", study=row.name, since_unix=open_round.deadline_unix)


def _failed_rounds(row: StudyRow, rounds: list[RoundHead]) -> Iterator[Alert]:
    failed = []
    for each in reversed([each for each in rounds if each.closed_unix is not None]):
        if each.state is not RoundState.FAILED:
            break
        failed.append(each)
    if failed:
        last, first = failed[0], failed[-1]
        yield Alert(id=f"rounds_failed/{row.name}/{first.number}", kind=AlertKind.ROUNDS_FAILED,
                    severity=Severity.WARNING, study=row.name, since_unix=first.closed_unix,
                    title=f"Round {last.number} of {row.name} has failed" if first is last else
                    f"Rounds {first.number} to {last.number} of {row.name} have failed", text=_line(last.reason),
                    remedy="The model stays as it was. coordinator status says whose answers were missing.")


# Silos ----------------------------------------------------------------------------------------------------------------


def _of_silos(ledger: Ledger, live: LiveStatus | None, now: float) -> Iterator[Alert]:
    members = LedgerRoster(ledger).silos()
    activities = activities_of(members, live, open_tasks(ledger), now_unix=now)
    for task in last_refusals(ledger):
        yield Alert(id=f"silo_refuses/{task.silo}/{task.study}", kind=AlertKind.SILO_REFUSES, severity=Severity.WARNING,
                    title=f"{task.silo} refuses tasks of {task.study}", text=_line(task.reason or "no reason given"),
                    remedy="What is in the way is at the hospital: silo status says more.", study=task.study,
                    silo=task.silo, since_unix=task.closed_unix)
    for row in members:
        state = activities[row.name].state
        if state is SiloState.SILENT and row.silent_unix is not None:
            yield Alert(id=f"silo_silent/{row.name}/{row.silent_unix:.0f}", kind=AlertKind.SILO_SILENT,
                        severity=Severity.WARNING, title=f"{row.name} is silent",
                        text=f"Last heard on {describe_moment(row.silent_unix)}. No round asks it until it calls"
                             " again.",
                        remedy="At the hospital: silo status, silo check. To leave it out:"
                               f" coordinator set-aside {row.name}.", silo=row.name, since_unix=row.silent_unix)
        ends = row.certificate_not_after_unix
        if ends and ends - now < _SILO_CERTIFICATE_DAYS * _DAY and state not in _GONE:
            yield Alert(id=f"silo_certificate/{row.name}/{ends:.0f}", kind=AlertKind.SILO_CERTIFICATE,
                        severity=Severity.WARNING, title=f"The certificate of {row.name} {_ends(ends, now)}", text="",
                        remedy="It renews itself while silo join runs; after its end the silo needs a new invitation:"
                               f" coordinator invite {row.name}.", silo=row.name)
    for study in (row for row in ledger.studies() if row.state not in ENDED_STUDY):
        for notice in notices_of(ledger, study.name, since_unix=study.queued_unix):
            if now - notice.unix < _NOTICE_DAYS * _DAY:
                yield Alert(id=f"silo_stands_out/{notice.silo}/{notice.kind}/{notice.study}",
                            kind=AlertKind.SILO_STANDS_OUT, severity=Severity.WARNING,
                            title=f"{notice.silo} stands out", text=_line(notice.line),
                            remedy=f"To leave it out: coordinator set-aside {notice.silo}. To go back: coordinator"
                                   " rollback.", study=notice.study, silo=notice.silo, since_unix=notice.unix)


# The hub --------------------------------------------------------------------------------------------------------------


def _of_disk(folder: Path) -> Iterator[Alert]:
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage(folder)
        if disk.free < max(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * disk.total):
            free, size = describe_bytes(disk.free), describe_bytes(disk.total)
            yield Alert(id="disk_low", kind=AlertKind.DISK_LOW, severity=Severity.CRITICAL,
                        title="The disk is nearly full", text=f"{free} of {size} are free at the federation folder.",
                        remedy="Free some space; nothing is lost, and rounds wait until there is room.")


def _of_certificates(folder: Path, now: float) -> Iterator[Alert]:
    for file, whose, days, remedy in (
            ("coordinator.pem", "coordinator", _HUB_CERTIFICATE_DAYS,
             "It renews itself while coordinator serve runs; its log says what is in the way."),
            ("ca.pem", "authority", _AUTHORITY_DAYS, "With its end every silo needs a new invitation from a new"
                                                     " federation: docs/operations.md, Certificates.")):
        with contextlib.suppress(OSError, SemisiloError, ValueError):
            ends = not_after_unix(load_certificate((folder / "authority" / file).read_bytes()))
            if ends - now < days * _DAY:
                yield Alert(id=f"hub_certificate/{file}/{ends:.0f}", kind=AlertKind.HUB_CERTIFICATE,
                            severity=Severity.CRITICAL, title=f"The certificate of the {whose} {_ends(ends, now)}",
                            text="", remedy=remedy)


def _ends(ends: float, now: float) -> str:
    return f"ended on {describe_moment(ends)}" if ends <= now else f"ends on {describe_moment(ends)}"


def _line(text: str) -> str:
    return printable(text.strip(), limit=_LONGEST)
