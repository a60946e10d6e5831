"""`silo disclosures --check`: what this silo has seen of the coordinator's audit trail, alone and against an export.

Tests: tests/silo/site/test_audit_heads.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.export import read_export
from semisilo.common.audit.record import SeenHead, check_record, find_head, read_heads
from semisilo.common.identity.certificates import load_certificate
from semisilo.common.text.describe import counted
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.identity_store import load_identity

__all__ = ["TrailFacts", "TrailReport", "check_trail", "trail_facts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailReport:
    """What the check has found."""

    heads: int
    """That were checked."""
    events: int
    """Of the export, found sound from the first one on; 0 without an export."""
    text: str
    """A line for a person."""
    problems: tuple[str, ...]
    """Empty when the trail can be what it claims to be."""
    notes: tuple[str, ...]
    """What looks wrong and has an explanation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrailFacts:
    """The record in short, as it was when its lines were written."""

    number: int
    """Of the last event that was seen."""
    seen: str
    """When, ISO 8601 in UTC."""
    problems: int
    last_problem: str
    """Empty when there is none."""
    last_problem_seen: str


def check_trail(folder: Path, export: Path | None) -> TrailReport:
    """Checks the record of a silo's home.

    Args:
        export: what `coordinator audit --format json` has written; None where there is none.
    Raises: UsageError when the silo is not enrolled; BadData when the export is none.
    """
    record = check_record(SiloHome(folder).heads, load_certificate(load_identity(folder).authority_pem))
    problems, notes = list(record.problems), list(record.notes)
    walk = ChainWalk({seen.signed.head.number for seen in record.heads})
    if export is not None:
        for event in read_export(export):
            if problem := walk.step(event):
                problems.append(f"{export}: {problem}")
                break
        for seen in record.heads:
            found = find_head(seen.signed.head, walk, seen_unix=seen.seen_unix)
            where = f"line {seen.line}, seen {seen.seen}"
            problems += [f"{where}: {found.problem}"] if found.problem else []
            notes += [f"{where}: {found.note}"] if found.note else []
    heads = len(record.heads)
    what = f"{counted(heads, 'head')} of the coordinator's audit trail"
    if heads:
        what += f", the last one event {record.heads[-1].signed.head.number} seen {record.heads[-1].seen}"
    against = f"; against {counted(walk.number, 'event')} of {export}" if export is not None else ""
    result = counted(len(problems), "problem") if problems else "no contradiction" if heads else "none came yet"
    return TrailReport(heads=heads, events=walk.number, text=f"{what}{against}: {result}.", problems=tuple(problems),
                       notes=tuple(notes))


def trail_facts(home: SiloHome) -> TrailFacts | None:
    """What the record says, without checking signatures anew; None while it holds nothing."""
    seen = [each for each in read_heads(home.heads) if isinstance(each, SeenHead)]
    if not seen:
        return None
    wrong = [each for each in seen if each.problem]
    return TrailFacts(number=seen[-1].signed.head.number, seen=seen[-1].seen, problems=len(wrong),
                      last_problem=wrong[-1].problem if wrong else "",
                      last_problem_seen=wrong[-1].seen if wrong else "")
