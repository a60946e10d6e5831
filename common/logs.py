"""Plain logging for both sides: one event, one line, and never a secret.

Text that came from the other side or from a file may hold line breaks, terminal escapes or something that looks like a
log line of ours; `printable` makes it one harmless line.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import TextIO

__all__ = ["LineFormatter", "printable", "set_up_logging", "without_secrets"]

_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_TOKEN = re.compile(r"(?i)\b(token|password|passphrase|secret|authorization)(\"?'?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)")
_INVITATION = re.compile(r"(semisilo-invite-v\d+\.)[A-Za-z0-9_.=-]+")


def printable(text: str, *, limit: int = 500) -> str:
    """One line without control characters or terminal escapes, at most `limit` characters."""
    line = "".join(c if c.isprintable() else " " if c in "\r\n\t" else "�" for c in text[: 4 * limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def without_secrets(text: str) -> str:
    """The text with private keys, tokens and invitation lines blotted out."""
    text = _KEY_BLOCK.sub("[private key removed]", text)
    text = _INVITATION.sub(r"\1[removed]", text)
    return _TOKEN.sub(r"\1\2[removed]", text)


class LineFormatter(logging.Formatter):
    """`2026-01-31 12:00:00 warning: text`, in local time; the level is named from warning on."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        text = printable(without_secrets(record.getMessage()), limit=4000)
        if record.exc_info:
            # A traceback is for us, not for an attacker: its lines stay apart, its secrets go.
            text += "\n" + without_secrets(self.formatException(record.exc_info))
        return f"{stamp} {level}{text}"


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment: a live display puts itself in its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up_logging(*, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Sends this process's log to standard error, or to `stream`; with `verbose` also what only a developer wants.

    May be called again; the last call counts.
    """
    handler = _StandardError() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    if not verbose:
        # gRPC's core writes past this log, about what we explain ourselves; it reads this when it is loaded.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # asyncio and grpc speak about their own affairs at these levels.
    for noisy in ("asyncio", "grpc", "grpc._cython.cygrpc", "matplotlib", "PIL"):
        logging.getLogger(noisy).setLevel(logging.INFO if verbose else logging.WARNING)
