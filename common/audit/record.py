"""A silo's record of the heads of the audit trail that it has seen, as both sides read it: JSON lines, and whether
they can be of one trail that only grows, and of a given one.

The silo writes it (`semisilo.silo.site.audit_heads`); the coordinator's operator may be given a copy.

Tests: tests/silo/site/test_audit_heads.py, tests/common/audit/test_head.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.head import AuditHead, SignedHead, micros
from semisilo.common.audit.signature import authority_id, check_head
from semisilo.common.errors import WrongAuthority
from semisilo.common.identity.certificates import utc_text

__all__ = ["CheckedRecord", "HeadFinding", "HeadNews", "HeadOrder", "SeenHead", "UnreadableHead", "check_record",
           "find_head", "read_heads", "why_unsigned"]

_LAST_UNIX = 253_402_300_800.0
"""The year 10000, when calendars end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenHead:
    """A line of the record."""

    line: int
    """Its number, from 1."""
    seen: str
    """When it came, ISO 8601 in UTC."""
    study: str
    round: int
    authority: str
    """Which federation's coordinator it came from (`authority_id`)."""
    signed: SignedHead
    problem: str
    """What was wrong with it when it came; empty when nothing was."""


@dataclass(frozen=True, slots=True)
class UnreadableHead:
    """A line that cannot be read."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class HeadNews:
    """What an end of the trail has brought."""

    problem: str = ""
    """What is wrong with it; empty when nothing is."""
    text: str = ""
    """What else is to be said: that the coordinator was restored from a backup."""


class HeadOrder:
    """Whether heads, in the order in which they come, can be of one trail that only grows."""

    def __init__(self) -> None:
        self._last: AuditHead | None = None
        self._restores: set[float] = set()

    def judge(self, head: AuditHead) -> HeadNews:
        """What the next one brings; its signature is right. It is not taken yet."""
        last = self._last
        if last is None:
            return HeadNews()
        if head.restored_unix != last.restored_unix:
            if head.restored_unix in self._restores or not head.restored_unix:
                return HeadNews("it is that of before the coordinator was restored from a backup: are there two"
                                " coordinators?")
            return HeadNews(text=f"The coordinator was restored on {utc_text(head.restored_unix)} from a backup of "
                                 f"{utc_text(head.backup_unix)}: what its audit trail said since that backup is gone")
        if head.number < last.number:
            return HeadNews(f"it was cut: event {last.number} had been seen, and now event {head.number} of "
                            f"{utc_text(head.unix)} is the last one")
        if head.number == last.number and head.chain != last.chain:
            return HeadNews(f"event {head.number} was rewritten: another one had been seen")
        return HeadNews()

    def take(self, head: AuditHead) -> None:
        """From now on the next ones are compared with this one."""
        self._last = head
        self._restores.add(head.restored_unix)


@dataclass(frozen=True, slots=True)
class HeadFinding:
    """What a chain says of a head that was kept elsewhere."""

    problem: str = ""
    """Why they contradict each other; empty when they do not."""
    note: str = ""
    """Why the head is no event of the chain, where a restore from a backup explains it."""


def find_head(head: AuditHead, walk: ChainWalk) -> HeadFinding:
    """Whether a chain that was walked to its end holds a head; its number must have been among those wanted."""
    value = walk.values.get(head.number)
    if value == head.chain:
        return HeadFinding()
    what = f"event {head.number} of {utc_text(head.unix)}"
    for restore in walk.restores:
        if restore.number <= head.number and micros(head.restored_unix) < micros(restore.unix):
            return HeadFinding(note=f"{what} was lost when the coordinator was restored on {utc_text(restore.unix)}"
                                    f" from a backup of {utc_text(restore.backup_unix)}")
    if value is None:
        return HeadFinding(problem=f"{what} is missing: the trail ends at event {walk.number}")
    return HeadFinding(problem=f"{what} is another one in this trail: it was rewritten")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRecord:
    """What a record is worth."""

    heads: tuple[SeenHead, ...]
    """Those of this federation's coordinator, with a signature that is right."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    others: int
    """Lines about other federations."""


def check_record(path: Path, authority: x509.Certificate) -> CheckedRecord:
    """Checks signatures and order of what a record holds of one federation."""
    order, mine = HeadOrder(), authority_id(authority)
    heads: list[SeenHead] = []
    problems: list[str] = []
    notes: list[str] = []
    others = 0
    for seen in read_heads(path):
        if isinstance(seen, UnreadableHead):
            problems.append(f"line {seen.line} {seen.reason}")
            continue
        if seen.authority != mine:
            others += 1
            continue
        problem, where = why_unsigned(seen.signed, authority), f"line {seen.line}, seen {seen.seen}"
        if not problem:
            news = order.judge(seen.signed.head)
            order.take(seen.signed.head)
            heads.append(seen)
            problem = news.problem
            if news.text:
                notes.append(f"{where}: {news.text}")
        if problem:
            problems.append(f"{where}: {problem}")
    return CheckedRecord(heads=tuple(heads), problems=tuple(problems), notes=tuple(notes), others=others)


def read_heads(path: Path) -> Iterator[SeenHead | UnreadableHead]:
    """The lines of a record, oldest first, as they were written. A file that is not there has none."""
    if not path.exists():
        return
    certificate = b""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                seen = _seen(number, json.loads(raw), certificate)
            except (ValueError, RecursionError, TypeError, KeyError, OverflowError):
                yield UnreadableHead(number, "is not an entry of the record")
                continue
            certificate = seen.signed.certificate_der
            yield seen


def why_unsigned(signed: SignedHead, authority: x509.Certificate) -> str:
    """Why a head is not one of this authority's coordinator; empty when it is."""
    try:
        check_head(signed, authority)
    except WrongAuthority as error:
        return error.text
    return ""


def _seen(number: int, entry: dict[str, object], certificate_before: bytes) -> SeenHead:
    """A line as it was written. Raises: ValueError, TypeError, KeyError or OverflowError when it is none."""
    def text(name: str) -> str:
        if not isinstance(found := entry[name], str):
            raise TypeError
        return found

    def unix(name: str) -> float:
        found = entry[name]
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not abs(found) < _LAST_UNIX:
            raise TypeError
        return float(found)

    return SeenHead(
        line=number, seen=text("seen"), study=text("study"), round=int(unix("round")), authority=text("authority"),
        problem=text("problem"), signed=SignedHead(
            head=AuditHead(number=int(unix("number")), chain=text("chain"), unix=unix("unix"),
                           restored_unix=unix("restored_unix"), backup_unix=unix("backup_unix")),
            signature=base64.b64decode(text("signature"), validate=True),
            certificate_der=base64.b64decode(text("certificate"), validate=True) if "certificate" in entry
            else certificate_before))
