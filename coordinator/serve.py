"""`coordinator serve`: wires ledger, engine, services and display together. The only place that knows them all.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from rich.console import Console

from semisilo.common.errors import SemisiloError, SystemTrouble
from semisilo.common.page.token import page_token
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.process.collector import settle_collector
from semisilo.common.process.compute import ComputeDied, ProcessCompute
from semisilo.common.rpc.tls import listen, server_credentials, server_options
from semisilo.common.storage.half_written import LEFT_SECONDS, remove_leftovers
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.cli_errors import EXIT_INTERRUPTED
from semisilo.common.text.describe import describe_moment
from semisilo.common.text.seldom_lines import SeldomLines
from semisilo.coordinator.federation.audit_key import HeadSigner, ensure_audit_key
from semisilo.coordinator.federation.authority import CoordinatorCertificate, load_authority
from semisilo.coordinator.federation.folder import Federation, keep_private
from semisilo.coordinator.federation.invitations import authority_of
from semisilo.coordinator.federation.study_cards import StudyCards
from semisilo.coordinator.federation.tracking_table import check_installed
from semisilo.coordinator.ledger.cleanup import open_payloads, open_spool
from semisilo.coordinator.ledger.costs import add_costs, estimate_lost
from semisilo.coordinator.ledger.database import LedgerPlace, checkpoint
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.signed_heads import note_start
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, StudyState
from semisilo.coordinator.monitoring.alerts.delivery import keep_telling
from semisilo.coordinator.monitoring.terminal import Display
from semisilo.coordinator.page import server as page_server
from semisilo.coordinator.page.log_lines import LogLines
from semisilo.coordinator.page.reader import PageSource
from semisilo.coordinator.page.service import PageService
from semisilo.coordinator.rounds.compute_client import ATTEMPTS
from semisilo.coordinator.rounds.engine import Engine, EngineFolders
from semisilo.coordinator.rounds.hearing import Hearing
from semisilo.coordinator.rounds.live_file import LiveFile, LiveStatus, seconds_between
from semisilo.coordinator.rounds.masked_sums import MaskedSums
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from semisilo.coordinator.rounds.shared_model import SharedModels
from semisilo.coordinator.rpc.connection_limits import ConnectionLimits, strangers_kept
from semisilo.coordinator.rpc.enrollment_service import EnrollmentPort, RenewalService
from semisilo.coordinator.rpc.link_rates import LinkRates
from semisilo.coordinator.rpc.metering import RoundMeter
from semisilo.coordinator.rpc.open_files import OWN_FILES, allow_open_files
from semisilo.coordinator.rpc.round_service import RoundServicer
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.coordinator.studies.queue import edited_studies, queue_new_studies
from semisilo.coordinator.tasks.task_service import TaskService
from semisilo.coordinator.tracking.companion import keep_tracking

__all__ = ["serve"]

_LOG = logging.getLogger("semisilo.coordinator")
_WATCH_SECONDS = 0.5
"""A command that pauses, stops or revokes acts this soon. A look reads one number of the ledger's file, no table."""
_LISTEN_SECONDS = 5.0
"""The page and `coordinator status` show this soon that a silo is silent, or heard again. A look reads the roster."""
_SETTLE_SECONDS = 2.0
"""What is counted in between is lost by a kill; every settling is a transaction of the ledger. A phase that
ends is settled by the engine."""
_SETTLE_SECONDS_PER_SILO = 0.02
"""Settling writes a few rows for each silo: with a thousand of them it comes every twenty seconds, not every two."""
_CHECKPOINT_SECONDS = 2.0
"""A thousand silos write a few MB to the ledger in that time."""
_CONNECTIONS_SECONDS = 0.5
"""So long strangers may fill the files of this process. A look costs two milliseconds for a thousand connections."""
_CERTIFICATE_SECONDS = 30.0
"""The certificate is due after 60 of its 90 days, but one that was issued while the clock was ahead must not be shown
for long once it is right; a look compares dates."""
_ENROLLMENT_SECONDS = 5.0
"""Most likely another program holds the port and a person ends it: soon enough for whoever waits to enrol, and seldom
enough for a trial that opens a port."""
_FAREWELL_SECONDS = 15.0
"""No silo keeps `--exit-when-finished` waiting for longer. Room for a new connection, between whose trials gRPC waits
up to 5 s (`common/rpc/tls.py`), and for the poll of a silo that came before the end, which without a study lasts 7 s at
most."""
_LATELY_SECONDS = 600.0
"""A silo that nobody has heard for so long has gone: reports come every few seconds, and a pause between its trials is
half a minute at most. It would only make the farewell as long as it may be."""
_QUIET_SECONDS = 1.5
"""So long nobody must be connected: a silo whose answer was lost is back within about a second."""


async def serve(federation: Federation, *, exit_when_finished: bool, console: Console) -> int:
    """Serves silos and runs queued studies until stopped.

    Args:
        federation: an opened folder; it is locked meanwhile.
        exit_when_finished: ends once no study is left.
        console: where the live view goes when it is a terminal.
    Returns: exit status: 0, also after SIGTERM; 130 after Ctrl-C; 1 when a study failed and `exit_when_finished` is
        set.
    Raises: SemisiloError for what keeps it from starting.
    """
    settle_allocator()
    check_installed(federation.config.tracking)
    with federation.lock():
        for line in keep_private(federation):
            _LOG.warning("%s", line)
        ledger = Ledger(federation.ledger)
        try:
            return await _Server(federation, ledger, console).run(exit_when_finished=exit_when_finished)
        finally:
            ledger.close()


class _Server:
    """The parts of a running coordinator."""

    def __init__(self, federation: Federation, ledger: Ledger, console: Console) -> None:
        self._federation = federation
        self._live = LiveFile(federation.live)
        self._ledger = ledger
        self._place = LedgerPlace(federation.ledger)
        self._roster = LedgerRoster(ledger)
        self._runtime = RuntimeState()
        self._compute = ProcessCompute("semisilo.coordinator.compute.unmasking:UnmaskingOperations")
        self._meter = RoundMeter(ledger, port=federation.config.address.listen_port)
        payloads = open_payloads(federation.payloads)
        spool = open_spool(federation.spool, limit_bytes=federation.config.limits.spool_bytes)
        self._rates = LinkRates()
        payloads.clean()
        spool.clean(keep_partials=ledger.awaited_updates())
        self._task_service = TaskService(ledger=ledger, roster=self._roster, runtime=self._runtime, payloads=payloads,
                                         spool=spool, compute=self._compute)
        self._hearing = Hearing(roster=self._roster, runtime=self._runtime, clock=time.time,
                                silent_seconds=federation.config.limits.silent_seconds)
        self._engine = Engine(ledger=ledger, roster=self._roster, runtime=self._runtime, compute=self._compute,
                              payloads=payloads, spool=spool, accountant=self._meter, hearing=self._hearing,
                              slowest_link=self._rates.slowest, steady=time.monotonic,
                              sums=MaskedSums(ledger, self._roster, federation=federation.name),
                              folders=EngineFolders(
                                  studies=federation.studies, payloads=federation.payloads,
                                  images=federation.images if federation.config.limits.images_on_disk else None))
        self._logs = LogLines()
        self._display = Display(ledger, self._roster, self._runtime, console, federation=federation)
        self._interrupted: dict[str, int] = {}
        """Study -> its round that was under way when this process began, and is not over yet."""
        self._stop = asyncio.Event()
        self._signals: list[int] = []
        """That ask it to end, in order."""

    async def run(self, *, exit_when_finished: bool) -> int:
        # Before there is anything to be closed: until then a signal ends the process by itself.
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, self._heard, each)
        with self._logs.listening():
            return await self._run(exit_when_finished=exit_when_finished)

    async def _run(self, *, exit_when_finished: bool) -> int:
        refused = self._queue_studies()
        open_files = allow_open_files(len(self._roster.members()))
        address = self._federation.config.address
        certificate = CoordinatorCertificate(self._federation.authority, now=time.time())
        authority = authority_of(self._federation, self._roster)
        keys = load_authority(self._federation.authority)
        heads = HeadSigner(self._ledger, ensure_audit_key(self._federation.authority, now=time.time()))
        with contextlib.suppress(SystemTrouble):  # the next event that is on disk for good brings a head as well
            note_start(self._ledger)
        with contextlib.suppress(SystemTrouble):  # the next start finds them as well
            self._estimate_lost_costs()
        server = grpc.aio.server(options=server_options())
        limits = ConnectionLimits(ports=lambda: (work_port, port.port), strangers=lambda connected: strangers_kept(
            open_files, connected, missing=max(0, self._roster.count_enrolled() - connected), own_files=OWN_FILES))
        calls = SiloCalls(self._federation.name, called=limits.called)
        RoundServicer(
            task_service=self._task_service, roster=self._roster, runtime=self._runtime, meter=self._meter,
            models=SharedModels(self._ledger, self._federation.studies),
            cards=StudyCards(self._ledger, federation=self._federation.name), federation=self._federation.name,
            max_uploads=self._federation.config.limits.uploads, rates=self._rates,
            audit_head=heads.current).add_to(server, calls)
        RenewalService(authority, self._roster, on_leave=self._left).add_to(server, calls)
        work_port = listen(server, address.listen_address,
                           server_credentials(certificate.current, silo_authority_pem=keys.pem))
        port = EnrollmentPort(address=address.listen_enrollment_address,
                              credentials=lambda: server_credentials(certificate.current), authority=authority,
                              roster=self._roster, on_change=self._enrollment_changed)
        # So that it is open once `serve` says that it serves. `_enrollment` says what is in the way, and tries again.
        with contextlib.suppress(SemisiloError, OSError):
            await port.look()
        await self._start_compute()
        await server.start()
        settle_collector()
        _LOG.info("federation %s: serving silos on %s", self._federation.name, address.listen_address)
        page_settings = self._federation.config.page
        page = page_server.offer(page_settings, self._page_service)
        self._page_offered(page.address if page is not None else "")
        try:
            return await self._until_stopped([
                self._watch(), self._listen(), self._write_live(), self._settle(), self._checkpoint(), self._tidy(),
                self._display.run(),
                self._enrollment(port), self._refresh(certificate), _every(lambda: _CONNECTIONS_SECONDS, limits.look),
                *([page_server.keep(page, page_settings, self._page_service, told=self._page_offered)]
                  if page_settings.listen else []),
                *([self._tell_alerts()] if self._federation.config.alerts.webhook else []),
                *([keep_tracking(self._federation.folder)] if self._federation.config.tracking.any else [])],
                exit_when_finished=exit_when_finished, failed=refused)
        finally:
            self._live.remove()
            await server.stop(grace=1.0)
            await self._compute.close()
            await self._settle_at_the_end()

    async def _start_compute(self) -> None:
        """Raises: ComputeFailed when it cannot be started; or it was killed meanwhile as often as a step may be."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(ComputeDied):
                return await self._compute.start()
            _LOG.warning("the compute process has ended while it was started; it is started again")
        await self._compute.start()

    def _page_offered(self, address: str) -> None:
        self._runtime.page = address

    def _page_service(self) -> PageService:
        federation = self._federation
        return PageService(
            PageSource(federation=federation.name, address=federation.config.address.public,
                       ledger=federation.ledger, read_only=False, folder=federation.folder),
            live=lambda: LiveStatus.from_runtime(self._runtime), federation=federation,
            token=lambda: page_token(federation.page_token), acted=self._runtime.notify, logs=self._logs)

    async def _tell_alerts(self) -> None:
        await keep_telling(self._federation, live=lambda: LiveStatus.from_runtime(self._runtime),
                           page=lambda: self._runtime.page)

    def _left(self, silo: str) -> None:
        """A silo has left: nobody waits for it any more."""
        self._runtime.held.pop(silo, None)
        self._runtime.silos.pop(silo, None)
        self._runtime.notify()
        self._runtime.call()

    def _queue_studies(self) -> bool:
        """Queues what is new; whether a study file was wrong.

        Raises: what is wrong with a study file, when no other study is left to run.
        """
        queued, refused = queue_new_studies(self._federation, self._ledger)
        if refused and not self._engine.has_work():
            raise next(iter(refused.values()))
        for name, error in refused.items():
            _LOG.error("study %s is not queued: %s", name, error.line())
        if queued:
            _LOG.info("queued: %s", ", ".join(queued))
        for name, text in edited_studies(self._federation, self._ledger).items():
            _LOG.warning("study %s: %s", name, text)
        return bool(refused)

    def _estimate_lost_costs(self) -> None:
        """Of the rounds that were under way when the last process ended, whether or not it was killed: now, while
        nothing is counted, and once they are over, since an upload that goes on is counted whole as payload."""
        for study in self._ledger.studies():
            row = None if study.state in ENDED_STUDY else self._ledger.last_round(study.name)
            if row is not None:
                self._interrupted[study.name] = row.number
                add_costs(self._ledger, estimate_lost(self._ledger, study.name, row.number))

    def _estimate_of_interrupted(self) -> None:
        for study, number in list(self._interrupted.items()):
            last = self._ledger.last_round(study)
            if last is not None and last.number == number and last.state not in ENDED_ROUND:
                continue
            if last is not None and last.number >= number:  # else it is gone
                add_costs(self._ledger, estimate_lost(self._ledger, study, number))
            del self._interrupted[study]

    def _heard(self, number: int) -> None:
        self._signals.append(number)
        self._stop.set()

    async def _until_stopped(self, background: list[Awaitable[None]], *, exit_when_finished: bool,
                             failed: bool) -> int:
        studies = asyncio.ensure_future(self._run_studies(exit_when_finished=exit_when_finished, failed=failed))
        waiting = asyncio.ensure_future(self._stop.wait())
        tasks: set[asyncio.Future[Any]] = {studies, waiting, *(asyncio.ensure_future(each) for each in background)}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if studies in done:
                return studies.result()
            for task in done:
                task.result()
            _LOG.info("stopping; a restart continues from here")
            return EXIT_INTERRUPTED if self._signals[:1] == [signal.SIGINT] else 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_studies(self, *, exit_when_finished: bool, failed: bool) -> int:
        while True:
            study = await self._engine.run_next()
            if study is not None:
                failed |= study.state is StudyState.FAILED
                continue
            self._runtime.set(reason=StandbyReason.NO_STUDY, activity="")
            if exit_when_finished:
                await self._farewell()
                return int(failed)
            await self._runtime.wait(60.0)

    async def _farewell(self) -> None:
        """Waits until every silo that was here lately has heard that the study is over, even if it must reconnect."""
        now, began = time.time(), time.monotonic()
        end, quiet = began + _FAREWELL_SECONDS, began
        lately = {silo.name for silo in self._roster.silos() if silo.revoked_unix is None
                  and silo.seen_unix is not None and now - silo.seen_unix < _LATELY_SECONDS}
        while time.monotonic() < min(end, quiet + _QUIET_SECONDS):
            if self._runtime.connected or any(self._task_service.dismissed.get(silo, 0.0) < began for silo in lately):
                quiet = time.monotonic()
            await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        """Notices what commands have written to the ledger."""
        version: int | None = None

        def look() -> None:
            nonlocal version
            before, version = version, self._ledger.data_version()
            if before is not None and before != version:
                self._runtime.notify()
                self._runtime.call()
        await _every(lambda: _WATCH_SECONDS, look)

    async def _listen(self) -> None:
        """Notices silos that fall silent, and that are heard again, also while no round is opened."""
        await _every(lambda: min(_LISTEN_SECONDS, self._hearing.silent_seconds / 4), self._hearing.look)

    async def _enrollment(self, port: EnrollmentPort) -> None:
        """Lets silos in; what is in the way of that is no reason to leave those that are in."""
        told = ""
        while True:
            try:
                await port.run()
            except (SemisiloError, OSError) as error:
                problem = explained(error) or error
                line = problem.line() if isinstance(problem, SemisiloError) else f"{problem}."
                if line != told:
                    told = line
                    _LOG.error("no silo can enrol now: %s It is tried again every %d s.", told, _ENROLLMENT_SECONDS)
                await asyncio.sleep(_ENROLLMENT_SECONDS)

    def _enrollment_changed(self, listens: bool) -> None:
        """Writes it at once: `coordinator invite` waits for it."""
        self._runtime.enrollment = listens
        with contextlib.suppress(OSError):
            self._live.write(LiveStatus.from_runtime(self._runtime))

    async def _write_live(self) -> None:
        await _every(lambda: seconds_between(len(self._runtime.connected)),
                     lambda: self._live.write(LiveStatus.from_runtime(self._runtime)))

    async def _settle(self) -> None:
        while True:
            with contextlib.suppress(SemisiloError):  # such as a full disk; what was counted waits for the next time
                await self._settle_once()
            await asyncio.sleep(max(_SETTLE_SECONDS, len(self._runtime.held) * _SETTLE_SECONDS_PER_SILO))

    async def _settle_at_the_end(self) -> None:
        """With a full disk too the command ends as it was told to: the last counts are all that is lost."""
        try:
            await self._settle_once()
        except SemisiloError as error:
            _LOG.warning("what crossed the network last is not written to the costs of the study: %s", error.line())

    async def _settle_once(self) -> None:
        account = self._runtime.account()
        await self._meter.settle(study=account.study, round=account.round, phase=account.phase)
        self._estimate_of_interrupted()

    async def _checkpoint(self) -> None:
        """Brings commits into the ledger's file, and says so once that has gone: commits do not notice."""
        self._ledger.checkpointed_elsewhere()
        path, kept = self._federation.ledger, True
        while True:
            await asyncio.sleep(_CHECKPOINT_SECONDS)
            try:
                before, kept = kept, await asyncio.to_thread(self._place.is_kept)
            except SYSTEM_ERRORS:  # such as a thread that the system refuses
                continue
            if kept:
                with contextlib.suppress(SemisiloError, *SYSTEM_ERRORS):  # commits meet it as well, and say so
                    await asyncio.to_thread(checkpoint, path)
            if before and not kept:
                _LOG.error("%s: is gone, or another file is in its place. What this coordinator writes goes into the"
                           " one that it has opened, and is lost when it ends. Stop it, then put the ledger back, or"
                           " restore the federation: coordinator restore.", path)
            elif kept and not before:
                _LOG.info("%s is there again", path)

    async def _tidy(self) -> None:
        """Removes what killed compute processes, and a coordinator before this one, have left half-written."""
        while True:
            with contextlib.suppress(*SYSTEM_ERRORS):
                await asyncio.to_thread(lambda: remove_leftovers(self._federation.with_temporary_files()))
            await asyncio.sleep(LEFT_SECONDS)

    async def _refresh(self, certificate: CoordinatorCertificate) -> None:
        lines = SeldomLines()
        await _every(lambda: _CERTIFICATE_SECONDS, lambda: renew(certificate, time.time(), lines))


def renew(certificate: CoordinatorCertificate, now: float, lines: SeldomLines) -> None:
    """Renews the coordinator's own certificate when it is time, and says once an hour what is in the way of that."""
    try:
        certificate.refresh(now)
    except (OSError, SemisiloError) as error:
        if lines.standing("certificate") is not None:
            return
        problem = explained(error) or error
        line = problem.line() if isinstance(problem, SemisiloError) else f"{problem}."
        _LOG.error("the coordinator's own certificate, which ends on %s, cannot be renewed now: %s It is tried again"
                   " every %.0f s.", describe_moment(certificate.not_after_unix), line, _CERTIFICATE_SECONDS)


async def _every(seconds: Callable[[], float], action: Callable[[], object]) -> None:
    """Does something at once and then again and again; it may fail without harm, such as a full disk under the live
    file."""
    while True:
        with contextlib.suppress(OSError, SemisiloError):
            action()
        await asyncio.sleep(seconds())
