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
from datetime import datetime
from pathlib import Path

from cryptography import x509

from semisilo.common.audit.chain import ChainWalk, Restore
from semisilo.common.audit.head import AuditHead, SignedHead, micros
from semisilo.common.audit.signature import authority_id, check_head
from semisilo.common.errors import WrongAuthority
from semisilo.common.identity.certificates import utc_text

__all__ = ["CheckedRecord", "HeadFinding", "HeadNews", "HeadOrder", "SeenHead", "UnreadableHead", "check_record",
           "find_head", "read_heads", "why_unsigned"]

_LAST_UNIX = 253_402_300_800.0
"""The year 10000, when calendars end."""
_CLOCK_SECONDS = 2 * 86400.0
"""By which times of a restore may contradict those of a head: clocks are set, and were wrong (decision 0075)."""


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

    @property
    def seen_unix(self) -> float | None:
        """When it came; None where the record's text is no time."""
        try:
            return datetime.fromisoformat(self.seen).timestamp()
        except (ValueError, OverflowError, OSError):
            return None


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
        self._last_times: tuple[float, ...] = ()
        """When the last one was written, by the coordinator's clock and by that of who has seen it."""
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
            when = f"on {utc_text(head.restored_unix)} from a backup of {utc_text(head.backup_unix)}"
            if head.restored_unix < min(self._last_times) - _CLOCK_SECONDS:
                return HeadNews(f"it says that the coordinator was restored {when}, and event {last.number} of"
                                f" {utc_text(last.unix)}, which is later, had been seen without that")
            if head.number <= last.number and max(self._last_times) + _CLOCK_SECONDS <= head.backup_unix:
                return HeadNews(f"it was cut: event {last.number} of {utc_text(last.unix)} had been seen, and now event"
                                f" {head.number} is the last one, though the coordinator was restored {when}, which"
                                " is later")
            return HeadNews(text=f"The coordinator was restored {when}: what its audit trail said since that backup is"
                                 " gone")
        if head.number < last.number:
            return HeadNews(f"it was cut: event {last.number} had been seen, and now event {head.number} of "
                            f"{utc_text(head.unix)} is the last one")
        if head.number == last.number and head.chain != last.chain:
            return HeadNews(f"event {head.number} was rewritten: another one had been seen")
        return HeadNews()

    def take(self, head: AuditHead, *, seen_unix: float | None) -> None:
        """From now on the next ones are compared with this one.

        Args:
            seen_unix: when it came, by the clock of who has seen it; None where that is not known.
        """
        self._last = head
        self._last_times = (head.unix,) if seen_unix is None else (head.unix, seen_unix)
        self._restores.add(head.restored_unix)


@dataclass(frozen=True, slots=True)
class HeadFinding:
    """What a chain says of a head that was kept elsewhere."""

    problem: str = ""
    """Why they contradict each other; empty when they do not."""
    note: str = ""
    """Why the head is no event of the chain, where a restore from a backup explains it."""


def find_head(head: AuditHead, walk: ChainWalk, *, seen_unix: float | None = None) -> HeadFinding:
    """Whether a chain that was walked to its end holds a head; its number must have been among those wanted.

    A restore explains what was written after its backup and before itself, and nothing else. Of the two clocks that say
    when the head was written one must agree, as nearly as clocks do.

    Args:
        seen_unix: when the head came, by the clock of who has seen it; None where that is not known.
    """
    value = walk.values.get(head.number)
    if value == head.chain:
        return HeadFinding()
    what = f"event {head.number} of {utc_text(head.unix)}"
    times = (head.unix,) if seen_unix is None else (head.unix, seen_unix)
    for restore in walk.restores:
        if _is_of_what_was_lost(head, restore, walk) and any(
                restore.backup_unix - _CLOCK_SECONDS < unix <= restore.unix + _CLOCK_SECONDS for unix in times):
            return HeadFinding(note=f"{what} was lost when the coordinator was restored on {utc_text(restore.unix)}"
                                    f" from a backup of {utc_text(restore.backup_unix)}")
    if value is None:
        return HeadFinding(problem=f"{what} is missing: the trail ends at event {walk.number}")
    return HeadFinding(problem=f"{what} is another one in this trail: it was rewritten")


def _is_of_what_was_lost(head: AuditHead, restore: Restore, walk: ChainWalk) -> bool:
    """Whether a head that the chain does not hold can be of the branch that a restore has cut off, by its number and by
    the restore that it names itself."""
    if micros(head.restored_unix) >= micros(restore.unix):
        return False
    if restore.number <= head.number:
        return True
    # Restored first from an older backup, and then from a newer one of before that: of the first restore the chain
    # says nothing, and the head's number counts from the older backup.
    return 0 < micros(restore.backup_unix) < micros(head.restored_unix) \
        and micros(head.restored_unix) not in {micros(each.unix) for each in walk.restores}


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
    others = entries = 0
    for seen in read_heads(path):
        if isinstance(seen, UnreadableHead):
            problems.append(f"line {seen.line} {seen.reason}")
            continue
        entries += 1
        if seen.authority != mine:
            others += 1
            continue
        problem, where = why_unsigned(seen.signed, authority), f"line {seen.line}, seen {seen.seen}"
        if not problem:
            news = order.judge(seen.signed.head)
            order.take(seen.signed.head, seen_unix=seen.seen_unix)
            heads.append(seen)
            problem = news.problem
            if news.text:
                notes.append(f"{where}: {news.text}")
        if problem:
            problems.append(f"{where}: {problem}")
    if len(problems) > 1 and not entries:  # another kind of file
        problems = [f"none of its {len(problems)} lines is an entry of the record (a silo's heads.jsonl)"]
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
