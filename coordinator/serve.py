"""`coordinator serve`: wires ledger, engine, services and display together. The only place that knows them all."""

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

from common.allocator import settle_allocator
from common.compute import ProcessCompute
from common.errors import DiskFull, SemisiloError
from common.tls import listen, server_credentials, server_options
from common.wire import enrollment_service_pb2_grpc
from coordinator.authority import CoordinatorCertificate, load_authority
from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.desk import Desk
from coordinator.display import Display
from coordinator.engine import Engine, EngineFolders
from coordinator.enrollment_services import EnrollmentPort, RenewalService
from coordinator.federation import Federation
from coordinator.invitations import authority_of
from coordinator.ledger import Ledger
from coordinator.link_rates import LinkRates
from coordinator.live import LiveStatus, write
from coordinator.metering import RoundMeter
from coordinator.page import server as page_server
from coordinator.page.reader import PageSource
from coordinator.page.service import PageService
from coordinator.page.token import operator_token
from coordinator.queue import queue_new_studies
from coordinator.roster import LedgerRoster
from coordinator.services import RoundServicer
from coordinator.states import StudyState
from coordinator.stores import open_payloads, open_spool
from coordinator.tracking.companion import keep_tracking
from coordinator.tracking.settings import check_installed

__all__ = ["serve"]

_LOG = logging.getLogger("semisilo.coordinator")
_WATCH_SECONDS = 0.5
_LIVE_SECONDS = 1.0
_SETTLE_SECONDS = 2.0
_CERTIFICATE_SECONDS = 3600.0
_DISK_SECONDS = 10.0
_ENROLLMENT_SECONDS = 5.0
_FAREWELL_SECONDS = 15.0
_LATELY_SECONDS = 600.0
_QUIET_SECONDS = 1.5


async def serve(federation: Federation, *, exit_when_finished: bool, console: Console) -> int:
    """Serves silos and runs queued studies until stopped.

    Args:
        federation: an opened folder; it is locked meanwhile.
        exit_when_finished: ends once no study is left.
        console: where the live view goes when it is a terminal.
    Returns: exit status: 0, or 1 when a study failed and `exit_when_finished` is set.
    Raises: SemisiloError for what keeps it from starting.
    """
    settle_allocator()
    check_installed(federation.config.tracking)
    with federation.lock():
        ledger = Ledger(federation.ledger)
        try:
            return await _Server(federation, ledger, console).run(exit_when_finished=exit_when_finished)
        finally:
            ledger.close()


class _Server:
    """The parts of a running coordinator."""

    def __init__(self, federation: Federation, ledger: Ledger, console: Console) -> None:
        self._federation = federation
        self._ledger = ledger
        self._roster = LedgerRoster(ledger)
        self._bulletin = Bulletin()
        self._compute = ProcessCompute("coordinator.work:Operations")
        self._meter = RoundMeter(ledger, port=federation.config.address.listen_port)
        payloads = open_payloads(federation.payloads)
        spool = open_spool(federation.spool, limit_bytes=federation.config.limits.spool_bytes)
        self._rates = LinkRates()
        payloads.clean()
        spool.clean(keep_partials=ledger.awaited_updates())
        self._desk = Desk(ledger=ledger, roster=self._roster, bulletin=self._bulletin, payloads=payloads, spool=spool,
                          compute=self._compute)
        self._engine = Engine(ledger=ledger, roster=self._roster, bulletin=self._bulletin, compute=self._compute,
                              payloads=payloads, spool=spool, accountant=self._meter,
                              slowest_link=self._rates.slowest,
                              folders=EngineFolders(studies=federation.studies, payloads=federation.payloads))
        self._display = Display(ledger, self._roster, self._bulletin, console, federation=federation)

    async def run(self, *, exit_when_finished: bool) -> int:
        refused = self._queue_studies()
        address = self._federation.config.address
        certificate = CoordinatorCertificate(self._federation.authority, now=time.time())
        authority = authority_of(self._federation, self._roster)
        keys = load_authority(self._federation.authority)
        server = grpc.aio.server(options=server_options())
        RoundServicer(
            desk=self._desk, roster=self._roster, bulletin=self._bulletin, meter=self._meter,
            federation=self._federation.name, max_uploads=self._federation.config.limits.uploads,
            rates=self._rates).add_to(server)
        enrollment_service_pb2_grpc.add_EnrollmentServiceServicer_to_server(  # type: ignore[no-untyped-call]
            RenewalService(authority, self._roster, on_leave=self._left), server)
        listen(server, address.listen_address,
               server_credentials(certificate.current, silo_authority_pem=keys.pem))
        port = EnrollmentPort(address=address.listen_enrollment_address,
                              credentials=lambda: server_credentials(certificate.current), authority=authority,
                              roster=self._roster)
        await port.look()
        await self._compute.start()
        await server.start()
        _LOG.info("federation %s: serving silos on %s", self._federation.name, address.listen_address)
        page = page_server.offer(self._federation.config.page, self._page_service)
        self._bulletin.page = page.address if page is not None else ""
        try:
            return await self._until_stopped([
                self._watch(), self._write_live(), self._settle(), self._display.run(), self._enrollment(port),
                self._refresh(certificate), *([page.run()] if page is not None else []),
                *([keep_tracking(self._federation.folder)] if self._federation.config.tracking.any else [])],
                exit_when_finished=exit_when_finished, failed=refused)
        finally:
            self._federation.live.unlink(missing_ok=True)
            await server.stop(grace=1.0)
            await self._compute.close()
            self._meter.settle(study=self._bulletin.study, round=self._bulletin.round, phase="standby")

    def _page_service(self) -> PageService:
        federation = self._federation
        return PageService(
            PageSource(federation=federation.name, address=federation.config.address.public, ledger=federation.ledger,
                       read_only=False),
            live=lambda: LiveStatus.from_bulletin(self._bulletin), federation=federation,
            token=lambda: operator_token(federation.page_token), acted=self._bulletin.notify)

    def _left(self, silo: str) -> None:
        """A silo has left: nobody waits for it any more."""
        self._bulletin.held.pop(silo, None)
        self._bulletin.silos.pop(silo, None)
        self._bulletin.notify()
        self._bulletin.call()

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
        return bool(refused)

    async def _until_stopped(self, background: list[Awaitable[None]], *, exit_when_finished: bool,
                             failed: bool) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        studies = asyncio.ensure_future(self._run_studies(exit_when_finished=exit_when_finished, failed=failed))
        waiting = asyncio.ensure_future(stop.wait())
        tasks: set[asyncio.Future[Any]] = {studies, waiting, *(asyncio.ensure_future(each) for each in background)}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if studies in done:
                return studies.result()
            for task in done:
                task.result()
            _LOG.info("stopping; a restart carries on from here")
            return 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_studies(self, *, exit_when_finished: bool, failed: bool) -> int:
        while True:
            try:
                study = await self._engine.run_next()
            except DiskFull as error:
                _LOG.error("%s Trying again in %d s.", error.line(), _DISK_SECONDS)
                await asyncio.sleep(_DISK_SECONDS)
                continue
            if study is not None:
                failed |= study.state is StudyState.FAILED
                continue
            self._bulletin.set(reason=StandbyReason.NO_STUDY, activity="")
            if exit_when_finished:
                await self._farewell()
                return int(failed)
            await self._bulletin.wait(60.0)

    async def _farewell(self) -> None:
        """Waits until every silo that was here lately has heard that the study is over, even if it must reconnect."""
        began, end = time.time(), time.monotonic() + _FAREWELL_SECONDS
        lately = {silo.name for silo in self._roster.silos() if silo.revoked_unix is None
                  and silo.seen_unix is not None and began - silo.seen_unix < _LATELY_SECONDS}
        quiet = time.monotonic()
        # An answer may be lost on a connection that breaks; then its silo is back within a second or so.
        while time.monotonic() < min(end, quiet + _QUIET_SECONDS):
            if self._bulletin.connected or any(self._desk.dismissed.get(silo, 0.0) < began for silo in lately):
                quiet = time.monotonic()
            await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        """Notices what commands have written to the ledger."""
        version = self._ledger.data_version()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = self._ledger.data_version()
            if now != version:
                version = now
                self._bulletin.notify()
                self._bulletin.call()

    async def _enrollment(self, port: EnrollmentPort) -> None:
        """Lets silos in; what is in the way of that is no reason to leave those that are in."""
        told = ""
        while True:
            try:
                await port.run()
            except SemisiloError as error:
                if error.line() != told:
                    told = error.line()
                    _LOG.error("no silo can enrol now: %s It is tried again every %d s.", told, _ENROLLMENT_SECONDS)
                await asyncio.sleep(_ENROLLMENT_SECONDS)

    async def _write_live(self) -> None:
        await _every(_LIVE_SECONDS, lambda: write(self._federation.live, LiveStatus.from_bulletin(self._bulletin)))

    async def _settle(self) -> None:
        def settle() -> None:
            collecting = self._bulletin.reason is StandbyReason.NOT_SAMPLED
            self._meter.settle(study=self._bulletin.study, round=self._bulletin.round,
                               phase=self._bulletin.phase if collecting else "standby")
        await _every(_SETTLE_SECONDS, settle)

    async def _refresh(self, certificate: CoordinatorCertificate) -> None:
        await _every(_CERTIFICATE_SECONDS, lambda: certificate.refresh(time.time()))


async def _every(seconds: float, action: Callable[[], object]) -> None:
    """Repeats something that may fail without harm, such as a full disk under the live file."""
    while True:
        await asyncio.sleep(seconds)
        with contextlib.suppress(OSError, SemisiloError):
            action()
