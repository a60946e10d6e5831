"""Who may act on a page: its token, a file that its owner can read; and how many wrong tokens are heard.

Tests: tests/coordinator/page/test_access.py.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from semisilo.common.errors import BadConfiguration, SemisiloError
from semisilo.common.storage.durable import write_secret
from semisilo.common.system_errors import explained

__all__ = ["TokenGate", "is_token", "page_token"]

_BYTES = 32
_LONGEST = 512
_BURST, _REFILL_SECONDS, _MOST_CALLERS = 10, 6.0, 1024


def page_token(path: Path) -> str:
    """The token in a file; made when there is none yet.

    Raises: BadConfiguration when the file is empty or damaged, or everybody can read it; SemisiloError when it cannot
        be read.
    """
    try:
        if not path.exists():
            write_secret(path, f"{secrets.token_urlsafe(_BYTES)}\n".encode())
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise explained(error, path) or SemisiloError(
            f"{path}: cannot be read or made: {error.strerror or error}.",
            remedy=f"This user must be able to read and write {path.parent}.") from None
    # As for keys: where a pod's disks have a group (fsGroup), the platform gives that group rights on every file.
    if os.name == "posix" and mode & 0o007:
        raise BadConfiguration(f"{path}: every user of this machine can read it.",
                               remedy=f"Run: chmod 600 {path}, or remove the file: a new token is made.")
    # Of a file that was damaged: bytes of zero are a token that anybody guesses.
    if len(text) < 16 or not (text.isascii() and text.isprintable()):
        raise BadConfiguration(f"{path}: holds no token.", remedy="Remove the file: a new one is made.")
    return text


def is_token(given: str, token: str) -> bool:
    """Compares without telling by its time how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "replace")[:_LONGEST], token.encode())


class TokenGate:
    """How often an address may be wrong: ten times at once, then once in six seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address -> (wrong tokens that are held against it, when that was)."""

    def wait_seconds(self, caller: str) -> float:
        """How long the caller must wait before a wrong token of his is answered as one; 0 when he need not."""
        return max(0.0, (self._held(caller) - _BURST + 1) * _REFILL_SECONDS)

    def wrong(self, caller: str) -> None:
        """Notes a wrong token."""
        self._wrong[caller] = (self._held(caller) + 1, self._clock())
        self._wrong.move_to_end(caller)
        while len(self._wrong) > _MOST_CALLERS:
            self._wrong.popitem(last=False)

    def _held(self, caller: str) -> float:
        count, then = self._wrong.get(caller, (0.0, 0.0))
        return max(0.0, count - (self._clock() - then) / _REFILL_SECONDS)
