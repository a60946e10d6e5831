"""Tells the webhook what needs a person, once, and when that is over, from inside `coordinator serve`. Whatever happens
here is logged and put off; it never waits for the event loop and never keeps a study from its work.

What was told, and what is still to be sent, is in `alerts.json` of the federation folder, so that a restart neither
repeats nor forgets it.

Tests: tests/coordinator/monitoring/alerts/test_delivery.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import SemisiloError
from semisilo.common.storage.durable import write_durably
from semisilo.common.system_errors import explained
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.monitoring.alerts.open_alerts import Alert, AlertKind, Severity, open_alerts
from semisilo.coordinator.monitoring.alerts.webhook import WebhookFailed, post
from semisilo.coordinator.rounds.live_file import LiveStatus

__all__ = ["AlertDelivery", "Told", "body_of", "keep_telling"]

_LOG = logging.getLogger("semisilo.coordinator")
_LOOK_SECONDS = 5.0
_HOLD_SECONDS = 30.0
"""What comes and goes within so long is not told."""
_OVER_SECONDS = 60.0
"""What is gone for so long is over."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 600.0
_POST_SECONDS = 60.0
"""An answer that comes a byte at a time would keep every other alert waiting."""
_MOST_POSTS = 4
"""At a time: each of those that nobody waits for any more has a thread and a connection."""
_THREAD = "webhook"
_MOST_WAITING = 200
_OLD_SECONDS = 86400.0
"""What could not be sent for so long is dropped."""
_AT_ONCE = frozenset({AlertKind.STUDY_FAILED, AlertKind.STUDY_FINISHED, AlertKind.STUDY_PAUSED})
"""These do not come and go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One object on its way."""

    state: str
    """"open" or "over"."""
    alert: Alert
    made_unix: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the webhook knows, and what is on its way to it: the content of `alerts.json`."""

    open: tuple[Alert, ...] = ()
    """Told or on the way, and not over."""
    waiting: tuple[Message, ...] = ()
    """To be sent, oldest first."""


def body_of(message: Message, federation: str, *, page: str) -> bytes:
    """The JSON object that is sent; its fields are documented in docs/observability.md."""
    alert = message.alert
    what = " ".join(filter(None, (f"{alert.title}.", alert.text, alert.remedy)))
    return json.dumps({
        "version": 1, "federation": federation, "state": message.state, "id": alert.id, "kind": str(alert.kind),
        "severity": str(alert.severity), "title": alert.title, "detail": alert.text, "remedy": alert.remedy,
        "study": alert.study, "silo": alert.silo, "since": _moment(alert.since_unix),
        "time": _moment(message.made_unix), "page": page,
        "text": f"{federation}: {what if message.state == 'open' else f'over: {alert.title}.'}"},
        ensure_ascii=False).encode()


def _moment(unix: float | None) -> str | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


@dataclass(slots=True)
class AlertDelivery:
    """What is known and what is to be sent. No clock, no network: `look` is told what there is, `sent` that something
    has arrived."""

    file: Path
    told: Told = field(default_factory=Told)
    _seen: dict[str, float] = field(default_factory=dict)
    """Alert that is not told yet -> since when it is there."""
    _gone: dict[str, float] = field(default_factory=dict)
    """Told alert that is not there -> since when."""

    @classmethod
    def load(cls, file: Path) -> AlertDelivery:
        """From its file; a file that is not there or not whole is one that knows nothing."""
        try:
            return cls(file, from_dict(Told, json.loads(file.read_text(encoding="utf-8")), where=str(file)))
        except (OSError, ValueError, SemisiloError):
            return cls(file)

    def look(self, alerts: tuple[Alert, ...], *, now: float) -> None:
        """Takes in what needs a person at this moment."""
        there = {each.id: each for each in alerts}
        known = {each.id for each in self.told.open}
        self._seen = {name: self._seen.get(name, now) for name in there if name not in known}
        self._gone = {name: self._gone.get(name, now) for name in known if name not in there}
        new = [each for name, each in there.items() if name in self._seen
               and (each.kind in _AT_ONCE or now - self._seen[name] >= _HOLD_SECONDS)]
        over = [each for each in self.told.open if each.id in self._gone and now - self._gone[each.id] >= _OVER_SECONDS]
        young = [each for each in self.told.waiting if now - each.made_unix < _OLD_SECONDS]
        if dropped := len(self.told.waiting) - len(young):
            _LOG.error("%d alerts could not be sent to the webhook for a day and are dropped", dropped)
        if not (new or over or dropped):
            return
        # Of a study that is complete no "over" is sent. One that went back before it could be told is not complete.
        undone = {each.id for each in over if each.severity is Severity.INFO}
        messages = [*(each for each in young if each.alert.id not in undone),
                    *(Message(state="open", alert=each, made_unix=now) for each in new),
                    *(Message(state="over", alert=each, made_unix=now) for each in over
                      if each.severity is not Severity.INFO)]
        gone = {each.id for each in over}
        self._keep(Told(open=(*(each for each in self.told.open if each.id not in gone), *new),
                        waiting=tuple(messages[-_MOST_WAITING:])))
        for each in new:
            self._seen.pop(each.id, None)
        for each in over:
            self._gone.pop(each.id, None)

    def sent(self) -> None:
        """The oldest one has arrived, or nobody wants it."""
        self._keep(replace(self.told, waiting=self.told.waiting[1:]))

    def _keep(self, told: Told) -> None:
        self.told = told
        with contextlib.suppress(OSError):  # a full disk: what was told may be told again after a restart
            write_durably(self.file, json.dumps(to_dict(told)).encode(), mode=0o600)


async def keep_telling(federation: Federation, *, live: Callable[[], LiveStatus | None], page: Callable[[], str],
                       look_seconds: float = _LOOK_SECONDS, first_pause_seconds: float = _FIRST_PAUSE_SECONDS) -> None:
    """Looks and tells until cancelled.

    Args:
        live: what `serve` is doing; asked in the event loop.
        page: address of the operator page; empty where there is none.
    """
    delivery = AlertDelivery.load(federation.folder / "alerts.json")
    address = federation.config.alerts.webhook
    thread, ledgers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="alerts"), list[Ledger]()

    def look(status: LiveStatus | None) -> None:
        if not ledgers:
            ledgers.append(Ledger(federation.ledger, makes=False))
        now = time.time()
        delivery.look(open_alerts(ledgers[0], status, folder=federation.folder, now_unix=now), now=now)

    async def in_thread(work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(thread, work)

    failing, pause, not_before, said = False, first_pause_seconds, 0.0, ""
    try:
        while True:
            try:
                status = live()
                await in_thread(lambda status=status: look(status))  # type: ignore[misc]
                while delivery.told.waiting and time.monotonic() >= not_before:
                    try:
                        await _posted(address, body_of(delivery.told.waiting[0], federation.name, page=page()))
                        if failing:
                            _LOG.info("the webhook takes alerts again")
                        failing, pause = False, first_pause_seconds
                    except WebhookFailed as error:
                        if error.again:
                            if not failing:
                                _LOG.warning("an alert could not be sent to the webhook: %s It is tried again, for a"
                                             " day.", error.text)
                            failing, not_before = True, time.monotonic() + pause
                            pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
                            break
                        _LOG.error("the webhook does not want an alert, which is dropped: %s", error.text)
                    await in_thread(delivery.sent)
                said = ""
            except Exception as error:  # an error of the program here is no reason to end `serve` either
                said = _said(error, before=said)
            await asyncio.sleep(look_seconds)
    finally:
        with contextlib.suppress(RuntimeError):
            thread.submit(lambda: ledgers[0].close() if ledgers else None)
        thread.shutdown(wait=False)


def _said(error: Exception, *, before: str) -> str:
    """Says once in a row why alerts cannot be told now; returns what was said."""
    problem = explained(error) or error
    line = problem.line() if isinstance(problem, SemisiloError) else f"{type(error).__name__}: {error}"
    if line != before:
        _LOG.warning("what needs a person cannot be found out now: %s", line,
                     exc_info=None if isinstance(problem, (SemisiloError, OSError)) else error)
    return line


async def _posted(address: str, body: bytes) -> None:
    """Posts in a thread that nobody waits for at the end: an address that does not answer must not keep `serve` from
    ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def work() -> None:
        error: BaseException | None = None
        try:
            post(address, body)
        except WebhookFailed as failed:
            error = failed
        except Exception as unexpected:
            error = WebhookFailed(f"{type(unexpected).__name__}.", again=True)
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(finish, error)

    if sum(thread.name == _THREAD for thread in threading.enumerate()) >= _MOST_POSTS:
        raise WebhookFailed(f"{_MOST_POSTS} answers have begun and do not end.", again=True)
    threading.Thread(target=work, name=_THREAD, daemon=True).start()
    await asyncio.wait({done}, timeout=_POST_SECONDS)
    if not done.done():
        done.cancel()  # what comes of it later is nobody's business
        raise WebhookFailed(f"the answer was not there after {_POST_SECONDS:.0f} s.", again=True)
    done.result()
