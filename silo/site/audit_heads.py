"""Ends of the coordinator's audit trail that this silo has seen: `<home>/heads.jsonl`, one JSON object a line.

Each came signed with a task. A line is on disk before the task is worked on. As long as the trail only grows, each end has a
higher number than the one before; one that contradicts an earlier one is kept as well, for the two prove that the trail was
cut or rewritten.
"""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from semisilo.common.audit.head import AuditHead, SignedHead, authority_id, check_head
from semisilo.common.config import canonical_json
from semisilo.common.errors import BadPayload, WrongAuthority
from semisilo.common.identity.certificates import utc_text
from semisilo.common.rpc.convert import head_from_proto
from semisilo.common.storage.durable import sync_file, sync_folder
from semisilo.common.wire import round_service_pb2 as pb

__all__ = ["HeadNews", "HeadOrder", "HeadRecord", "SeenHead", "UnreadableHead", "read_heads"]

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
    """Whether ends, in the order in which they come, can be of one trail that only grows."""

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


class HeadRecord:
    """Checks and keeps what comes from one federation's coordinator."""

    def __init__(self, path: Path, authority: x509.Certificate) -> None:
        """Reads the record; a last line that was cut short, with the task that it came with, goes."""
        self._path = path
        self._authority = authority
        self._id = authority_id(authority)
        self._order = HeadOrder()
        self._last: SignedHead | None = None
        self._certificate = b""
        _drop_cut_line(path)
        for seen in read_heads(path):
            if isinstance(seen, SeenHead):
                self._certificate = seen.signed.certificate_der
                if seen.authority == self._id and _why_unsigned(seen.signed, authority) == "":
                    self._take(seen.signed)

    def saw(self, message: pb.AuditHead, *, study: str, round: int, seen_unix: float) -> HeadNews:
        """Checks an end that came with a task, and returns once it is on disk. The same one again is no news.

        Raises: OSError when it cannot be kept; nothing is remembered then.
        """
        try:
            signed = head_from_proto(message)
        except BadPayload as error:
            return HeadNews(error.text.rstrip("."))
        if self._last is not None and signed.head == self._last.head:
            return HeadNews()
        problem = _why_unsigned(signed, self._authority)
        news = HeadNews(problem) if problem else self._order.judge(signed.head)
        self._append(signed, study=study, round=round, seen_unix=seen_unix, problem=news.problem)
        if not problem:
            self._take(signed)
        return news

    def _take(self, signed: SignedHead) -> None:
        self._order.take(signed.head)
        self._last = signed

    def _append(self, signed: SignedHead, *, study: str, round: int, seen_unix: float, problem: str) -> None:
        head = signed.head
        entry: dict[str, object] = {
            "seen": datetime.fromtimestamp(seen_unix, UTC).isoformat(timespec="seconds"), "study": study,
            "round": round, "number": head.number, "chain": head.chain, "unix": head.unix,
            "restored_unix": head.restored_unix, "backup_unix": head.backup_unix,
            "signature": _text(signed.signature), "authority": self._id, "problem": problem}
        if signed.certificate_der != self._certificate:
            entry["certificate"] = _text(signed.certificate_der)
        line = canonical_json(entry).encode() + b"\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            if os.write(handle, line) != len(line):
                os.ftruncate(handle, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync_file(handle)
        finally:
            os.close(handle)
        if not size:
            sync_folder(self._path.parent)
        self._certificate = signed.certificate_der


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


def _why_unsigned(signed: SignedHead, authority: x509.Certificate) -> str:
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


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _drop_cut_line(path: Path) -> None:
    """Removes what was being written when the machine stopped: its task was not begun."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if content and not content.endswith(b"\n"):
        handle = os.open(path, os.O_WRONLY)
        try:
            os.ftruncate(handle, content.rfind(b"\n") + 1)
        finally:
            os.close(handle)
