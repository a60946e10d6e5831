"""A page's reader in a thread of its own, so that whoever serves the page is never kept from other work; its answers as
JSON, kept for a moment.

Tests: tests/common/page/test_answers.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from semisilo.common.page.responses import to_json

__all__ = ["Answers"]

_MOST_KEPT = 64
_PIECES = 500
"""Pieces of a long text that are made at a time; others are answered in between."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Kept:
    content: bytes
    version: object
    made: float


class Answers:
    """One thread, and the answers that were made in it."""

    def __init__(self, *, share_seconds: float, keep_seconds: float = 0.0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            share_seconds: an answer is not made again before this time, whatever has changed: several tabs ask at about
                the same time.
            keep_seconds: nor before this one, as long as its version is the same.
        """
        self._share_seconds, self._keep_seconds, self._clock = share_seconds, keep_seconds, clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="page")
        self._kept: dict[str, _Kept] = {}

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """What `work` gives; one at a time. Raises: what that does."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def json_of(self, key: str, make: Callable[[], Any], *, version: object = None) -> bytes:
        """JSON of what `make` gives, perhaps a moment old; to be called in the thread.

        Args:
            key: equal keys mean equal facts.
            version: of what the facts are made from.
        """
        kept = self._kept.get(key)
        if kept is not None:
            age = self._clock() - kept.made
            if age < self._share_seconds or (age < self._keep_seconds and kept.version == version):
                return kept.content
        content = to_json(make())
        self._kept.pop(key, None)
        self._kept[key] = _Kept(content, version, self._clock())
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return content

    def forget(self) -> None:
        """After an action: nothing that was answered holds any more."""
        self._kept.clear()

    async def text_of(self, pieces: Iterator[str]) -> AsyncIterator[str]:
        """A long text, some of its pieces at a time, each made in the thread."""
        while text := await self.in_thread(lambda: "".join(islice(pieces, _PIECES))):
            yield text

    def end(self) -> None:
        """Ends the thread; work that has not begun is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
