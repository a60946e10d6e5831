"""The page's own reader in a thread of its own, with answers kept for a moment, and the number that says when to ask
again. Whatever happens here must never keep the event loop, which serves silos, from its work.

Tests: tests/coordinator/page/test_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from semisilo.common.errors import SemisiloError, UsageError
from semisilo.common.page.answers import Answers
from semisilo.common.page.responses import to_json
from semisilo.common.page.token import TokenGate
from semisilo.common.rpc.network import network_of
from semisilo.common.system_errors import SYSTEM_ERRORS
from semisilo.coordinator.federation.audit_export import ExportFormat, export_trail
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.events import last_event_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.operators import operator_of
from semisilo.coordinator.ledger.states import ENDED_STUDY
from semisilo.coordinator.page.hand_over import HandOver, HandOverFile
from semisilo.coordinator.page.log_lines import LogLines
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.studies.queue import queue_study
from semisilo.coordinator.studies.study_file import StudyConfig

if TYPE_CHECKING:
    from semisilo.coordinator.monitoring.prometheus import Exposition

__all__ = ["PageService"]

_KEEP_SECONDS = 1.0
"""An answer is made again after this time even when the ledger has not changed: it tells how much time is left."""
_SHARE_SECONDS = 0.25
"""And not before this time, however quickly it changes."""
_WATCH_SECONDS = 1.0
_SLOW_SECONDS = 10.0
"""Bytes change all the time; what only they have changed is told this often."""
_BEAT_SECONDS = 15.0
_CHECK_SECONDS = 600.0
_MOST_STREAMS = 64

Result = TypeVar("Result")


class PageService:
    """What the routes call."""

    def __init__(self, source: PageSource, *, live: Callable[[], LiveStatus | None],
                 federation: Federation | None = None, token: Callable[[], str] | None = None,
                 acted: Callable[[], None] = lambda: None, logs: LogLines | None = None) -> None:
        """
        Args:
            live: what `coordinator serve` is doing, None when it is not running; asked in the event loop.
            federation: for invitations; None where there is only a ledger.
            token: the operator's token; None where there are no actions.
            acted: called in the event loop after an action.
            logs: the log of the running coordinator; None where none runs.
        """
        self.source = source
        self.federation = federation
        self.token = token
        self.gate = TokenGate()
        self.live = live
        self.logs = logs
        self.closing = asyncio.Event()
        """Set when the page ends, so that streams do."""
        self._acted = acted
        self._answers = Answers(share_seconds=_SHARE_SECONDS, keep_seconds=_KEEP_SECONDS)
        self._ledger: Ledger | None = None
        self._reader: PageReader | None = None
        self._revision = 1
        self._seen: tuple[Any, ...] = ()
        self._slowly: tuple[int, float] = (0, 0.0)
        self._looked: Any = None
        self._looked_at = 0.0
        self._changed = asyncio.Event()
        self._streams: dict[asyncio.Event, str] = {}
        """Set when one ends -> network that it goes to, oldest first."""
        self._live: LiveStatus | None = None
        self._exposition: Exposition | None = None
        self._hand_over = None if federation is None else HandOver(federation.folder)

    # In the thread ----------------------------------------------------------------------------------------------------

    def _opened(self) -> PageReader:
        if self._reader is None:
            self._ledger = Ledger(self.source.ledger, makes=False)
            self._reader = PageReader(self.source, self._ledger)
        return self._reader

    def _build(self, key: str, build: Callable[[PageReader], Any]) -> bytes:
        reader = self._opened()
        return self._answers.json_of(key, lambda: build(reader), version=reader.ledger.data_version())

    def _look(self, live: LiveStatus | None) -> tuple[int, Any]:
        """The revision, and what goes with it in the stream; one look serves all who ask at about the same time."""
        if time.monotonic() - self._looked_at < _SHARE_SECONDS:
            return self._revision, self._looked
        reader = self._opened()
        assert self._ledger is not None
        seen = (self._ledger.last_event(),
                tuple((silo.name, silo.state, silo.doing is None) for silo in reader.silos(live)), live is None)
        version, now = self._ledger.data_version(), time.monotonic()
        slowly = version != self._slowly[0] and now - self._slowly[1] >= _SLOW_SECONDS
        if seen != self._seen or slowly:
            self._revision += bool(self._seen)
            self._seen, self._slowly = seen, (version, now)
        self._looked, self._looked_at = reader.live(live), now
        return self._revision, self._looked

    # For routes -------------------------------------------------------------------------------------------------------

    async def facts(self, key: str, build: Callable[[PageReader, LiveStatus | None], Any]) -> bytes:
        """JSON of facts, perhaps a moment old. `build` runs in the thread; equal keys mean equal facts."""
        live = self.live()
        return await self._answers.in_thread(lambda: self._build(key, lambda reader: build(reader, live)))

    async def metrics(self) -> bytes | None:
        """What Prometheus scrapes; None where there is only a ledger."""
        federation, live = self.federation, self.live()
        if federation is None:
            return None

        def work() -> bytes:
            from semisilo.coordinator.monitoring.prometheus import Exposition

            self._live = live
            if self._exposition is None:
                self._exposition = Exposition(federation, self._opened().ledger, live=lambda: self._live)
            return self._exposition.text()
        return await self._answers.in_thread(work)

    async def revision(self) -> int:
        """The number that grows when there is something new."""
        live = self.live()
        return (await self._answers.in_thread(lambda: self._look(live)))[0]

    async def hand_over(self, study: str, what: HandOverFile, *, by_operator: bool) -> Path:
        """A file of a study that is over.

        Args:
            by_operator: see `HandOver.file`.
        Raises: UnknownName; UsageError while it runs, and where there is only a ledger; CannotHandOver.
        """
        def look() -> tuple[str, object]:
            row = self._opened().ledger.study(study)
            if row.state not in ENDED_STUDY:
                raise UsageError(f"Study '{row.name}' is {row.state}.", remedy="Its files are there once it is over.")
            return row.name, (row.state, row.ended_unix, last_event_of(self._opened().ledger, row.name))

        name, version = await self._answers.in_thread(look)
        if self._hand_over is None:
            raise UsageError("There is no federation here, only a ledger.",
                             remedy="Use the page of coordinator serve, or the command coordinator export.")
        return await self._hand_over.file(name, what, version=version, by_operator=by_operator)

    async def queue(self, study: str, *, by: str) -> StudyConfig:
        """Checks a study in a process of its own, all its images as well, then queues it.

        Raises: CannotHandOver with what `coordinator queue` says; UsageError where there is only a ledger.
        """
        federation, commands = self.federation, self._hand_over
        if federation is None or commands is None:
            raise UsageError("There is no federation here, only a ledger.", remedy="Use the command coordinator queue.")
        # The name goes into a command line, and what is none is not started; what is wrong with the file shows at once.
        await self._answers.in_thread(lambda: queue_study(federation, self._opened().ledger, study, only_check=True))
        await commands.check(study)

        def queue(ledger: Ledger) -> StudyConfig:
            with ledger.acting("page"):
                return queue_study(federation, ledger, study)
        return await self.act(queue, by=by)

    async def export(self, form: ExportFormat, study: str) -> AsyncIterator[str]:
        """The audit trail as text, made piece by piece in the thread. Raises: UnknownName."""
        def begin() -> Iterator[str]:
            ledger = self._opened().ledger
            if study:
                ledger.study(study)
            return export_trail(self.source.federation, ledger, form=form, study=study, now_unix=time.time())

        pieces = await self._answers.in_thread(begin)
        async for text in self._answers.text_of(pieces):
            yield text

    async def operator_of(self, token: str) -> str | None:
        """The named operator whose token it is; None when it is nobody's."""
        return await self._answers.in_thread(lambda: operator_of(self._opened().ledger, token))

    async def act(self, action: Callable[[Ledger], Result], *, by: str) -> Result:
        """Runs an action of the operator; what it has changed is seen by the next answer.

        Args:
            by: who acts, for the audit trail.
        """
        def work() -> Result:
            self._opened()
            assert self._ledger is not None
            try:
                with self._ledger.acted_by(by):
                    return action(self._ledger)
            finally:
                self._answers.forget()
                self._looked_at = 0.0
        try:
            return await self._answers.in_thread(work)
        finally:
            self._revision += 1
            self._acted()
            self._wake()

    # The stream -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def stream(self, caller: str) -> Iterator[asyncio.Event]:
        """Counts a stream. Yields what is set when it makes way for a newer one: of too many the oldest does, of the
        address that has most."""
        ended = asyncio.Event()
        if len(self._streams) >= _MOST_STREAMS:
            most = Counter(self._streams.values()).most_common(1)[0][0]
            oldest = next(each for each, network in self._streams.items() if network == most)
            del self._streams[oldest]
            oldest.set()
        self._streams[ended] = network_of(caller)
        try:
            yield ended
        finally:
            self._streams.pop(ended, None)

    async def changes(self, ended: asyncio.Event) -> AsyncIterator[bytes]:
        """Events for one browser until it goes away, the page ends or the stream makes way."""
        told, spoken = b"", 0.0
        while not self.closing.is_set() and not ended.is_set():
            live = self.live()
            revision, facts = await self._answers.in_thread(lambda live=live: self._look(live))  # type: ignore[misc]
            data = to_json({"revision": revision, "live": facts})
            if data != told:
                told, spoken = data, time.monotonic()
                yield b"event: state\ndata: " + data + b"\n\n"
            elif time.monotonic() - spoken >= _BEAT_SECONDS:
                spoken = time.monotonic()
                yield b": still here\n\n"
            changed = self._changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await changed.wait()

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    # Life -------------------------------------------------------------------------------------------------------------

    async def check_chain(self) -> None:
        """Checks the chain of events a stretch at a time, all of it again every ten minutes, until cancelled. What the
        system refuses it, it tries again."""
        refused = contextlib.suppress(SemisiloError, *SYSTEM_ERRORS)
        while True:
            with refused:
                while await self._answers.in_thread(lambda: self._opened().check.go_on(self._opened().ledger)):
                    await asyncio.sleep(0.02)
            end = time.monotonic() + _CHECK_SECONDS
            while time.monotonic() < end:
                await asyncio.sleep(_SLOW_SECONDS)
                with refused:
                    await self._answers.in_thread(lambda: self._opened().check.go_on(self._opened().ledger))
            with refused:
                await self._answers.in_thread(lambda: self._opened().check.again())

    def end_streams(self) -> None:
        """Lets streams end."""
        self.closing.set()
        self._wake()

    async def close(self) -> None:
        """Ends the thread and its connection."""
        def close() -> None:
            if self._ledger is not None:
                self._ledger.close()
        self.end_streams()
        await self._answers.in_thread(close)
        self._answers.end()
