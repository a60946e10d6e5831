"""EnrollmentService on gRPC: Enroll on a port that opens and shuts by itself; RenewCertificate and Leave elsewhere.

Python gRPC cannot make client certificates optional on one port, hence the second one. It is open while an invitation
is, and a little longer, so that a silo whose answer was lost can ask again and a late one learns why it is refused.

Tests: tests/coordinator/federation/test_enrollment.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from semisilo.common.errors import BadPayload, SiloLeft
from semisilo.common.identity.certificates import utc_text
from semisilo.common.rpc.grpc_errors import answering_errors
from semisilo.common.rpc.tls import listen, server_options
from semisilo.common.wire import enrollment_service_pb2 as pb
from semisilo.coordinator.federation.enrollment import Authority, Roster
from semisilo.coordinator.rpc.caller import CallerCertificate, caller_silo, check_caller
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.coordinator.rpc.stranger_calls import StrangerCalls

__all__ = ["EnrollService", "EnrollmentPort", "RenewalService"]

_log = logging.getLogger(__name__)
_MESSAGE_LIMIT_BYTES = 64 * 1024
"""A token and a certificate request are a few kilobytes; whoever sends more here has shown no certificate yet."""
_LINGER_SECONDS = 3600.0
"""A silo whose answer was lost asks again, when its invitation is used up and the last one that was open: an hour for a
person to notice. The port must not stay open for ever."""

_SERVICE = pb.DESCRIPTOR.services_by_name["EnrollmentService"].full_name
_Context = grpc.aio.ServicerContext[Any, Any]


class EnrollService:
    """Enroll, for callers that have no certificate yet."""

    def __init__(self, authority: Authority, *, clock: Callable[[], float] = time.time,
                 calls: StrangerCalls | None = None) -> None:
        self._authority = authority
        self._clock = clock
        self._calls = StrangerCalls() if calls is None else calls

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the RPC, as a stream of requests: so it is here before its request is, and may be ended. On the
        wire that is the same."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {
            "Enroll": grpc.stream_unary_rpc_method_handler(
                self.Enroll, response_serializer=pb.EnrollResponse.SerializeToString)}),))

    async def Enroll(self, requests: AsyncIterator[bytes], context: _Context) -> pb.EnrollResponse:
        """Exchanges a token for a certificate."""
        async with answering_errors(context):
            try:
                request = pb.EnrollRequest.FromString(await self._calls.request(requests, context.peer()))
            except DecodeError:
                raise BadPayload("The request cannot be read.") from None
            if not request.HasField("silo_time"):
                raise BadPayload("The request does not say what the silo's clock shows.")
            silo_unix = request.silo_time.seconds + request.silo_time.nanos / 1e9
            issued = self._authority.enroll(token=request.token, request_der=request.certificate_request_der,
                                            silo_unix=silo_unix, now=self._clock())
            response = pb.EnrollResponse(certificate_der=issued.certificate_der, silo=issued.silo,
                                         authority_der=self._authority.certificate_der,
                                         federation=self._authority.federation)
            response.renew_time.seconds = int(issued.renew_unix)
            return response
        raise AssertionError("answering_errors swallowed an error")


class RenewalService:
    """RenewCertificate and Leave, on the port where silos show their certificates."""

    def __init__(self, authority: Authority, roster: Roster, *, clock: Callable[[], float] = time.time,
                 on_leave: Callable[[str], None] = lambda silo: None) -> None:
        """`on_leave` is told the name of a silo that has just left."""
        self._authority = authority
        self._roster = roster
        self._on_leave = on_leave
        self._clock = clock

    def add_to(self, server: grpc.aio.Server, calls: SiloCalls) -> None:
        """Registers the RPCs; to be called before the server starts."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {
            "RenewCertificate": calls.unary(self.RenewCertificate, pb.RenewCertificateRequest),
            "Leave": calls.unary(self.Leave, pb.LeaveRequest)}),))

    async def RenewCertificate(self, request: pb.RenewCertificateRequest,
                               context: _Context) -> pb.RenewCertificateResponse:
        """Issues the caller's next certificate."""
        async with answering_errors(context):
            now = self._clock()
            caller = caller_silo(context, self._authority.federation)
            check_caller(caller, self._roster, now)
            issued = self._authority.renew(caller.silo, request_der=request.certificate_request_der, now=now)
            response = pb.RenewCertificateResponse(certificate_der=issued.certificate_der)
            response.renew_time.seconds = int(issued.renew_unix)
            return response
        raise AssertionError("answering_errors swallowed an error")

    async def Leave(self, request: pb.LeaveRequest, context: _Context) -> pb.LeaveResponse:
        """Ends the caller's membership; a caller that has left already hears when that was."""
        async with answering_errors(context):
            caller = caller_silo(context, self._authority.federation)
            if not self._has_left(caller):
                left = self._authority.leave(caller.silo)
                self._on_leave(caller.silo)
            else:
                left = self._roster.leave(caller.silo)
            response = pb.LeaveResponse()
            response.left_time.FromMicroseconds(round(left * 1e6))
            return response
        raise AssertionError("answering_errors swallowed an error")

    def _has_left(self, caller: CallerCertificate) -> bool:
        """Whether this is a repeat. Raises: what `check_caller` raises, for whoever is no member for another reason."""
        try:
            check_caller(caller, self._roster, self._clock())
        except SiloLeft:
            if self._roster.has_issued(caller.silo, caller.serial):
                return True
            raise
        return False


class EnrollmentPort:
    """Opens the enrolment port while an invitation is open, shuts it `linger_seconds` after the last one ended."""

    def __init__(self, *, address: str, credentials: Callable[[], grpc.ServerCredentials], authority: Authority,
                 roster: Roster, clock: Callable[[], float] = time.time, interval_seconds: float = 1.0,
                 linger_seconds: float = _LINGER_SECONDS, on_change: Callable[[bool], None] = lambda open: None
                 ) -> None:
        """
        Args:
            on_change: told whether the port listens, whenever that changes.
            credentials: makes those of a server; asked whenever the port opens.
        """
        self._address = address
        self._credentials = credentials
        self._service = EnrollService(authority, clock=clock)
        self._roster = roster
        self._clock = clock
        self._interval = interval_seconds
        self._linger = linger_seconds
        self._on_change = on_change
        self._server: grpc.aio.Server | None = None
        self._wanted_until = float("-inf")
        self.port = 0
        """The bound port while open, else 0."""

    async def run(self) -> None:
        """Watches the roster until cancelled; then the port is shut.

        Raises: PortInUse, NoSuchAddress or BadConfiguration when the address cannot be listened on.
        """
        try:
            while True:
                await self.look()
                await asyncio.sleep(self._interval)
        finally:
            await self._shut()

    async def look(self) -> bool:
        """Opens or shuts the port as the roster asks for; whether it is open."""
        now = self._clock()
        if self._roster.open_invitations(now) > 0:
            self._wanted_until = now + self._linger
            if self._server is None:
                await self._open()
        elif self._server is not None and now >= self._wanted_until:
            await self._shut()
        return self._server is not None

    async def _open(self) -> None:
        server = grpc.aio.server(options=server_options(message_limit_bytes=_MESSAGE_LIMIT_BYTES, strangers=True))
        self._service.add_to(server)
        port = listen(server, self._address, self._credentials())
        await server.start()
        self._server, self.port = server, port
        self._on_change(True)
        _log.info("enrolment is open on %s", self._address)

    async def _shut(self) -> None:
        if self._server is None:
            return
        server, self._server, self.port = self._server, None, 0
        self._on_change(False)
        await server.stop(grace=2.0)
        _log.info("enrolment is shut since %s", utc_text(self._clock()))
