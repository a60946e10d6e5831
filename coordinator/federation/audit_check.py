"""`coordinator verify`: the whole audit trail, the tables that it tells of, the signed head, and heads of silos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.record import CheckedRecord, check_record, find_head, why_unsigned
from semisilo.common.errors import StorageDamaged, UsageError
from semisilo.coordinator.federation.authority import load_authority
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import signed_head, tasks_given_since_start
from semisilo.coordinator.ledger.oversight.table_check import compare_tables

__all__ = ["AuditReport", "verify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """What the check has found."""

    events: int
    """That are sound, from the first one on."""
    signed: int
    """How many of them the last signed head speaks for; 0 before the first head."""
    silo_heads: int
    """Heads of silos that were compared."""
    problems: tuple[str, ...]
    """Empty when all is as it was written."""
    notes: tuple[str, ...]
    """What looks wrong and has an explanation."""


def verify(federation: Federation, ledger: Ledger, head_files: Sequence[Path] = ()) -> AuditReport:
    """Checks everything that can be checked; changes nothing.

    Args:
        head_files: `heads.jsonl` of silos.
    Raises: UsageError when a file is not there; StorageDamaged and BadConfiguration when the authority is not sound.
    """
    for path in head_files:
        if not path.is_file():
            raise UsageError(f"{path}: no such file.", remedy="Name the file heads.jsonl from a silo's home folder.")
    authority = load_authority(federation.authority).certificate
    records: list[tuple[Path, CheckedRecord]] = [(path, check_record(path, authority)) for path in head_files]
    last = signed_head(ledger)
    wanted = {seen.signed.head.number for _, record in records for seen in record.heads}
    walk = ChainWalk(wanted | ({last.head.number} if last is not None else set()))
    problems: list[str] = []
    notes: list[str] = []
    try:
        problems += compare_tables(ledger, walk)
    except StorageDamaged as error:
        problems.append(error.text)
    signed = 0
    if last is not None:
        found = find_head(last.head, walk)
        problem = why_unsigned(last, authority) or found.problem
        problems += [f"the last signed head: {problem}"] if problem else []
        notes += [f"the last signed head: {found.note}"] if found.note else []
        signed = 0 if problem or found.note else last.head.number
    elif given := tasks_given_since_start(ledger):
        problems.append(f"the last signed head is missing: {given} tasks were given, each with one")
    for path, record in records:
        problems += [f"{path}: {problem}" for problem in record.problems]
        notes += [f"{path}: {note}" for note in record.notes]
        if not record.heads:
            problems.append(f"{path}: holds no head of federation {federation.name}")
        for seen in record.heads:
            found = find_head(seen.signed.head, walk, seen_unix=seen.seen_unix)
            where = f"{path}: line {seen.line}, seen {seen.seen}"
            problems += [f"{where}: {found.problem}"] if found.problem else []
            notes += [f"{where}: {found.note}"] if found.note else []
    return AuditReport(events=walk.number, signed=signed, silo_heads=sum(len(record.heads) for _, record in records),
                       problems=tuple(problems), notes=tuple(notes))
