"""Heads of the coordinator's audit trail that this silo has seen: `<home>/heads.jsonl`, one JSON object a line.

Each came with a task, signed. A line is on disk before the task is worked on. As long as the trail only grows, each
head has a higher number than the one before; one that contradicts an earlier one is kept as well, for the two prove
that the trail was cut or rewritten.
"""

from __future__ import annotations

import base64
import errno
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from semisilo.common.audit.head import SignedHead
from semisilo.common.audit.record import HeadNews, HeadOrder, SeenHead, read_heads, why_unsigned
from semisilo.common.audit.signature import authority_id
from semisilo.common.config import canonical_json
from semisilo.common.errors import BadPayload
from semisilo.common.rpc.convert import head_from_proto
from semisilo.common.storage.durable import sync_file, sync_folder, sync_found
from semisilo.common.wire import round_service_pb2 as pb

__all__ = ["HeadRecord"]


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
        sync_found(path)  # a head that is there is not written again
        for seen in read_heads(path):
            if isinstance(seen, SeenHead):
                self._certificate = seen.signed.certificate_der
                if seen.authority == self._id and why_unsigned(seen.signed, authority) == "":
                    self._take(seen.signed, seen.seen_unix)

    @property
    def authority(self) -> str:
        """Of the federation that it listens to (`authority_id`)."""
        return self._id

    def saw(self, message: pb.AuditHead, *, study: str, round: int, seen_unix: float) -> HeadNews:
        """Checks a head that came with a task, and returns once it is on disk. The same one again is no news.

        Raises: OSError when it cannot be kept; nothing is remembered then.
        """
        try:
            signed = head_from_proto(message)
        except BadPayload as error:
            return HeadNews(error.text.rstrip("."))
        if self._last is not None and signed.head == self._last.head:
            return HeadNews()
        problem = why_unsigned(signed, self._authority)
        news = HeadNews(problem) if problem else self._order.judge(signed.head)
        self._append(signed, study=study, round=round, seen_unix=seen_unix, problem=news.problem)
        if not problem:
            self._take(signed, seen_unix)
        return news

    def _take(self, signed: SignedHead, seen_unix: float | None) -> None:
        self._order.take(signed.head, seen_unix=seen_unix)
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
            try:
                if os.write(handle, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                sync_file(handle)
            except OSError:  # the line is written anew, and once only: the system may take for written what is not
                with suppress(OSError):
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)
        if not size:
            sync_folder(self._path.parent)
        self._certificate = signed.certificate_der


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
