"""Identity end to end: real gRPC servers with real mutual TLS on 127.0.0.1, every refusal as the silo shows it.

RenewCertificate is the authenticated RPC throughout: whatever refuses it refuses every other one.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from semisilo.common.errors import (
    BadPayload,
    CertificateExpired,
    CertificateRevoked,
    ClockSkew,
    ConnectionRefusedByPeer,
    DiskFull,
    InvitationExpired,
    InvitationInvalid,
    InvitationUsed,
    SemisiloError,
    StorageDamaged,
    SystemTrouble,
    TooManyCalls,
    Unreachable,
    WrongAuthority,
)
from semisilo.common.identity.certificates import (
    certificate_pem,
    issue_coordinator_certificate,
    key_to_pem,
    load_certificate,
    make_key,
    make_request,
    silo_uri_of,
)
from semisilo.common.identity.invitation import decode_invitation
from semisilo.common.rpc.grpc_errors import CODE_KEY, REMEDY_KEY, answering_errors, from_rpc_error
from semisilo.common.rpc.tls import (
    Credentials,
    channel_credentials,
    channel_options,
    listen,
    server_credentials,
    server_options,
)
from semisilo.common.wire import enrollment_service_pb2 as pb
from semisilo.common.wire import enrollment_service_pb2_grpc as pb_grpc
from semisilo.coordinator.federation.enrollment import EnrollmentSettings
from semisilo.silo.link.diagnosis import diagnose
from semisilo.silo.membership.enrollment import enroll, open_channel, renew_if_due
from semisilo.silo.site.identity_store import install_identity, load_identity
from tests.identity_kit import Federation, make_federation, serving

DAY = 86400.0


@pytest.fixture
def federation(tmp_path) -> Federation:
    return make_federation(tmp_path / "hub", now=time.time() - 100 * DAY)


def _enroll(line: str, home: Path, *, now: float | None = None, **options: Any):
    return enroll(line, home, now=time.time() if now is None else now, use_http_proxy=False, **options)


def _stub(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.EnrollmentServiceStub(channel)


def _channel(address: str, federation: Federation, own: Credentials | None, *, name: str = "lung") -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, channel_credentials(authority_pem=federation.keys.pem, own=own),
                                   options=channel_options(name, use_http_proxy=False))


async def _call(channel: grpc.aio.Channel, timeout: float = 5.0) -> None:
    """The authenticated RPC; a refusal comes out as the silo's code sees it."""
    request = pb.RenewCertificateRequest(certificate_request_der=make_request(make_key()))
    try:
        await _stub(channel).RenewCertificate(request, timeout=timeout)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


async def _enroll_raw(federation: Federation, request: pb.EnrollRequest) -> pb.EnrollResponse:
    async with _channel(federation.enrollment_address, federation, None) as channel:
        try:
            return await _stub(channel).Enroll(request, timeout=300)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


def test_a_line_becomes_an_identity_that_works_and_renews_itself(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            home = tmp_path / "home"
            identity = await _enroll(federation.invite(), home)
            assert (identity.silo, identity.federation, identity.address) == ("hospital-a", "lung", federation.address)
            assert (home / "identity" / "key.pem").stat().st_mode & 0o777 == 0o600
            assert identity.about.renew_unix == pytest.approx(time.time() + 20 * DAY, abs=60)
            async with open_channel(identity, use_http_proxy=False) as channel:
                await _call(channel)
                assert await renew_if_due(home, _stub(channel), time.time()) is None
                renewed = await renew_if_due(home, _stub(channel), time.time() + 21 * DAY)
                assert renewed is not None
                await _call(channel)  # the connection of the old certificate goes on
            assert renewed.credentials.key_pem != identity.credentials.key_pem
            assert renewed == load_identity(home)
            async with open_channel(renewed, use_http_proxy=False) as channel:
                await _call(channel)

    asyncio.run(run())


def test_the_private_key_never_leaves_the_silo(tmp_path, federation):
    """What Enroll receives is a token, a request and a time; the request holds the public key only."""
    seen: list[dict[str, Any]] = []
    genuine = federation.authority.enroll
    federation.authority.enroll = lambda **given: (seen.append(given), genuine(**given))[1]  # type: ignore[method-assign]

    async def run() -> None:
        async with serving(federation):
            identity = await _enroll(federation.invite(), tmp_path / "home")
            body = b"".join(identity.credentials.key_pem.splitlines()[1:-1])
            import base64

            assert base64.b64decode(body)[36:68] not in seen[0]["request_der"]  # the secret number in PKCS#8 of P-256

    asyncio.run(run())
    assert set(seen[0]) == {"token", "request_der", "silo_unix", "now"}


class _KilledError(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def test_an_enrolment_whose_answer_was_lost_is_repeated_with_the_same_line(tmp_path, federation):
    home = tmp_path / "home"

    async def run() -> None:
        async with serving(federation):
            line = federation.invite()
            genuine = pb_grpc.EnrollmentServiceStub.__init__

            def cut(self, channel):  # the coordinator has answered, the silo dies before it has written anything
                genuine(self, channel)
                inner = self.Enroll

                async def lost(*args, **options):
                    await inner(*args, **options)
                    raise _KilledError

                self.Enroll = lost

            pb_grpc.EnrollmentServiceStub.__init__ = cut
            try:
                with pytest.raises(_KilledError):
                    await _enroll(line, home)
            finally:
                pb_grpc.EnrollmentServiceStub.__init__ = genuine
            assert not (home / "identity").exists()
            identity = await _enroll(line, home)
            assert {load_certificate(identity.credentials.certificate_pem).serial_number} == \
                federation.roster.serials["hospital-a"]
            assert await _enroll(line, home) == identity  # once more, with nothing left to do

    asyncio.run(run())


def test_a_used_line_is_refused_elsewhere_with_the_remedy(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            line = federation.invite()
            await _enroll(line, tmp_path / "home")
            with pytest.raises(InvitationUsed, match="'hospital-a' has been used already") as caught:
                await _enroll(line, tmp_path / "thief")
            assert "coordinator invite hospital-a" in caught.value.remedy
            assert not (tmp_path / "thief" / "identity").exists()

    asyncio.run(run())


def test_an_expired_line_is_refused_whether_or_not_the_port_is_still_open(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            line = federation.invite(now=time.time() - 2 * DAY)
            with pytest.raises(InvitationExpired, match="'hospital-a' expired on") as caught:
                await _enroll(line, tmp_path / "home")
            assert caught.value.remedy == "Ask the coordinator's operator to run: coordinator invite hospital-a"
        with pytest.raises(InvitationExpired, match=r"Nothing answers at .* expired on") as caught:
            await _enroll(line, tmp_path / "home")
        assert "coordinator invite hospital-a" in caught.value.remedy
        with pytest.raises(Unreachable, match="refuses connections") as unreachable:
            await _enroll(federation.invite(), tmp_path / "home")
        assert "The port is open only while an invitation is" in unreachable.value.remedy

    asyncio.run(run())


def test_an_enrolment_at_the_work_port_says_that_the_port_is_wrong(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            federation.enrollment_address = federation.address
            with pytest.raises(ConnectionRefusedByPeer, match="shows no certificate") as caught:
                await _enroll(federation.invite(), tmp_path / "home")
            assert "not for enrolment" in caught.value.remedy

    asyncio.run(run())


def test_a_replaced_line_is_refused_and_the_newer_one_works(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            first, second = federation.invite(), federation.invite()
            with pytest.raises(InvitationInvalid, match="replaced by a newer one"):
                await _enroll(first, tmp_path / "home")
            assert (await _enroll(second, tmp_path / "home")).silo == "hospital-a"

    asyncio.run(run())


def test_a_silo_with_a_wrong_clock_is_told_both_times(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            line = federation.invite()
            with pytest.raises(ClockSkew, match=r"UTC, the coordinator's .* UTC: the silo's is 60 minutes ahead") as e:
                await _enroll(line, tmp_path / "home", now=time.time() + 3600)
            assert "NTP" in e.value.remedy
            await _enroll(line, tmp_path / "home")

    asyncio.run(run())


def test_a_line_of_another_federation_at_this_address_is_refused_by_the_silo(tmp_path, federation):
    """The invitation pins its authority: the silo sends its token to nobody else."""
    heart = make_federation(tmp_path / "heart", "heart")
    namesake = make_federation(tmp_path / "namesake", "lung")

    async def run() -> None:
        async with serving(federation):
            for other in (heart, namesake):
                other.enrollment_address = federation.enrollment_address
                with pytest.raises(WrongAuthority, match="a certificate of 'lung'"):
                    await _enroll(other.invite(), tmp_path / "home")

    asyncio.run(run())
    assert federation.roster.invitations == {}


def test_hostile_enrolment_requests_are_refused_and_the_port_lives_on(federation, tmp_path):
    async def run() -> None:
        async with serving(federation):
            token = decode_invitation(federation.invite()).token
            good = make_request(make_key())
            now = int(time.time())
            with pytest.raises(InvitationInvalid):
                await _enroll_raw(federation, pb.EnrollRequest(token="x" * 257, certificate_request_der=good,
                                                               silo_time={"seconds": now}))
            for der in (b"", b"x" * 16385, b"\x30\x82"):
                with pytest.raises(BadPayload):
                    await _enroll_raw(federation, pb.EnrollRequest(token=token, certificate_request_der=der,
                                                                   silo_time={"seconds": now}))
            with pytest.raises(BadPayload, match="clock"):
                await _enroll_raw(federation, pb.EnrollRequest(token=token, certificate_request_der=good))
            for seconds in (2**62, -(2**62)):
                with pytest.raises(ClockSkew):
                    await _enroll_raw(federation, pb.EnrollRequest(token=token, certificate_request_der=good,
                                                                   silo_time={"seconds": seconds}))
            async with _channel(federation.enrollment_address, federation, None) as channel:
                with pytest.raises(SemisiloError, match="does not know this call"):
                    await _call(channel)  # no renewal without a certificate
            answer = await _enroll_raw(federation, pb.EnrollRequest(token=token, certificate_request_der=good,
                                                                    silo_time={"seconds": now}))
            assert answer.silo == "hospital-a"

    asyncio.run(run())


def test_a_request_for_another_name_gets_the_name_of_the_invitation(federation):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    wished = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("urn:semisilo:lung:silo:hospital-b")])
    request = (x509.CertificateSigningRequestBuilder()
               .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hospital-b")]))
               .add_extension(wished, critical=True).sign(make_key(), hashes.SHA256()))

    async def run() -> pb.EnrollResponse:
        async with serving(federation):
            return await _enroll_raw(federation, pb.EnrollRequest(
                token=decode_invitation(federation.invite("hospital-a")).token,
                certificate_request_der=request.public_bytes(serialization.Encoding.DER),
                silo_time={"seconds": int(time.time())}))

    answer = asyncio.run(run())
    assert silo_uri_of(load_certificate(answer.certificate_der)) == "urn:semisilo:lung:silo:hospital-a"


def test_revocation_works_at_the_next_rpc_of_an_open_connection(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            home = tmp_path / "home"
            identity = await _enroll(federation.invite(), home)
            async with open_channel(identity, use_http_proxy=False) as channel:
                await _call(channel)
                federation.authority.revoke("hospital-a")
                with pytest.raises(CertificateRevoked, match="has revoked silo 'hospital-a'") as caught:
                    await _call(channel)
                assert "coordinator invite hospital-a" in caught.value.remedy
                assert not caught.value.retry
            again = await _enroll(federation.invite(), home)  # the same home, a new invitation
            async with open_channel(again, use_http_proxy=False) as channel:
                await _call(channel)
            async with open_channel(identity, use_http_proxy=False) as channel:
                with pytest.raises(CertificateRevoked):
                    await _call(channel)

    asyncio.run(run())


def test_a_certificate_that_ends_on_an_open_connection_is_refused_there(federation):
    """gRPC itself goes on with the connection; only the coordinator's own check stops it."""
    offset = {"seconds": 0.0}
    own = federation.silo_credentials("hospital-a", now=time.time(), seconds=3600)

    async def run() -> None:
        async with (serving(federation, clock=lambda: time.time() + offset["seconds"]),
                    _channel(federation.address, federation, own) as channel):
            await _call(channel)
            offset["seconds"] = 3601
            with pytest.raises(CertificateExpired, match="'hospital-a' ended on") as caught:
                await _call(channel)
            assert caught.value.remedy == "Ask the coordinator's operator to run: coordinator invite hospital-a"

    asyncio.run(run())


@pytest.mark.slow
def test_a_certificate_that_really_ends_during_a_connection_is_refused_without_a_new_handshake(federation):
    """The same with the true clock and a certificate of two seconds, or of more where two do not suffice for a call."""
    async def run(seconds: float) -> None:
        async with serving(federation):
            begins = time.time()
            ends = begins + seconds
            own = federation.silo_credentials("hospital-a", now=begins, seconds=seconds)
            async with _channel(federation.address, federation, own) as channel:
                try:
                    await _call(channel)
                except SemisiloError:
                    if seconds < 60 and time.time() > ends - 1:
                        return await run(4 * seconds)
                    raise
                await asyncio.sleep(ends + 0.6 - time.time())
                with pytest.raises(CertificateExpired):
                    await _call(channel)

    asyncio.run(run(2.0))


async def _diagnosed(home: Path, address: str, **options: float) -> SemisiloError:
    return await asyncio.to_thread(diagnose, home, address, time.time(), use_http_proxy=False, **options)


def _with(home: Path, federation: Federation, own: Credentials, address: str) -> None:
    """Puts credentials into a home that has enrolled."""
    kept = load_identity(home)
    from semisilo.common.identity.certificates import key_from_pem

    install_identity(home, kept.about, key=key_from_pem(own.key_pem), certificate_pem=own.certificate_pem,
                     authority_pem=federation.keys.pem)


def test_an_expired_certificate_on_a_new_connection_is_diagnosed_by_the_silo(tmp_path, federation):
    async def run() -> None:
        async with serving(federation):
            home = tmp_path / "home"
            await _enroll(federation.invite(), home)
            _with(home, federation, federation.silo_credentials("hospital-a", now=time.time() - 2 * DAY),
                  federation.address)
            async with open_channel(load_identity(home), use_http_proxy=False) as channel:
                with pytest.raises(Unreachable):  # all that gRPC says
                    await _call(channel)
            found = await _diagnosed(home, federation.address)
            assert isinstance(found, CertificateExpired)
            assert found.remedy == "Ask the coordinator's operator to run: coordinator invite hospital-a"
            # A silo whose clock is two days behind meets the coordinator's refusal instead: gRPC closes without an
            # alert, so the line gives the dates and the remedy names the clocks.
            slow = await asyncio.to_thread(diagnose, home, federation.address, time.time() - 2 * DAY,
                                           use_http_proxy=False)
            assert isinstance(slow, ConnectionRefusedByPeer)
            assert "does not accept this silo's certificate" in slow.text
            assert "this machine's clock says" in slow.text
            assert "Compare the clocks" in slow.remedy

    asyncio.run(run())


def test_a_certificate_of_a_foreign_authority_is_diagnosed_by_the_silo(tmp_path, federation):
    namesake = make_federation(tmp_path / "namesake", "lung")

    async def run() -> None:
        async with serving(federation):
            home = tmp_path / "home"
            await _enroll(federation.invite(), home)
            _with(home, federation, namesake.silo_credentials("hospital-a", now=time.time()), federation.address)
            async with open_channel(load_identity(home), use_http_proxy=False) as channel:
                with pytest.raises(Unreachable):
                    await _call(channel)
            found = await _diagnosed(home, federation.address)
            assert isinstance(found, WrongAuthority)
            assert "was not issued by the authority of federation 'lung'" in found.text
            assert "coordinator invite hospital-a" in found.remedy

    asyncio.run(run())


def test_the_work_port_is_shut_to_those_without_a_silo_certificate(federation):
    async def run() -> None:
        async with serving(federation):
            key = make_key()
            posing = issue_coordinator_certificate(federation.keys.key, federation.keys.certificate, key.public_key(),
                                                   now=time.time())
            for own in (None, Credentials(key_pem=key_to_pem(key), certificate_pem=certificate_pem(posing))):
                async with _channel(federation.address, federation, own) as channel:
                    with pytest.raises((Unreachable, WrongAuthority)):
                        await _call(channel)
            known = federation.silo_credentials("hospital-a", now=time.time())
            async with _channel(federation.address, federation, known) as channel:
                await _call(channel)  # control

    asyncio.run(run())


def test_a_coordinator_with_another_name_is_not_talked_to(tmp_path, federation):
    """The same authority cannot be pinned for two federations; a stolen certificate of another name must not work."""
    async def run() -> None:
        async with serving(federation):
            known = federation.silo_credentials("hospital-a", now=time.time())
            async with _channel(federation.address, federation, known, name="liver") as channel:
                with pytest.raises(Unreachable):
                    await _call(channel)

    asyncio.run(run())


def test_a_working_silo_is_diagnosed_as_working(tmp_path, federation, monkeypatch):
    """Control: against the real gRPC server, not only against a plain TLS one."""
    async def run() -> None:
        async with serving(federation):
            home = tmp_path / "home"
            await _enroll(federation.invite(), home)
            monkeypatch.setattr("semisilo.silo.link.diagnosis._LISTEN_SECONDS", 1000.0)
            found = await _diagnosed(home, federation.address, budget_seconds=2000.0)
            assert isinstance(found, Unreachable), "the server spoke first: no waiting"
            assert "answers now" in found.text
            found = await _diagnosed(home, federation.enrollment_address)
            assert "answers now" in found.text

    asyncio.run(run())


def test_a_renewed_coordinator_certificate_is_shown_without_a_restart(federation):
    def fresh(seconds: float) -> Credentials:
        key = make_key()
        certificate = issue_coordinator_certificate(federation.keys.key, federation.keys.certificate, key.public_key(),
                                                    now=time.time() - 10, seconds=seconds)
        return Credentials(key_pem=key_to_pem(key), certificate_pem=certificate_pem(certificate))

    shown = {"now": fresh(1.0)}  # ended nine seconds ago
    own = federation.silo_credentials("hospital-a", now=time.time())

    async def run() -> None:
        async with serving(federation, shown=lambda: shown["now"]):
            async with _channel(federation.address, federation, own) as channel:
                with pytest.raises(Unreachable):
                    await _call(channel)
            shown["now"] = fresh(DAY)
            async with _channel(federation.address, federation, own) as channel:
                await _call(channel)

    asyncio.run(run())


def test_certificates_last_as_the_settings_say(tmp_path):
    federation = make_federation(tmp_path / "hub", settings=EnrollmentSettings(
        certificate_seconds=3600, renew_seconds=1200, invitation_seconds=60))

    async def run() -> None:
        async with serving(federation):
            identity = await _enroll(federation.invite(), tmp_path / "home")
            assert identity.not_after_unix == pytest.approx(time.time() + 3600, abs=30)
            assert identity.about.renew_unix == pytest.approx(time.time() + 1200, abs=30)

    asyncio.run(run())


# Errors on their way


class _Raises(pb_grpc.EnrollmentServiceServicer):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def RenewCertificate(self, request, context):
        async with answering_errors(context):
            raise self._error


async def _answer_to(federation: Federation, error: Exception) -> SemisiloError:
    server = grpc.aio.server(options=server_options())
    pb_grpc.add_EnrollmentServiceServicer_to_server(_Raises(error), server)
    own = federation.silo_credentials("coordinator", now=time.time())
    key = make_key()
    shown = Credentials(key_pem=key_to_pem(key), certificate_pem=certificate_pem(issue_coordinator_certificate(
        federation.keys.key, federation.keys.certificate, key.public_key(), now=time.time())))
    port = listen(server, "127.0.0.1:0", server_credentials(lambda: shown, silo_authority_pem=federation.keys.pem))
    await server.start()
    try:
        async with _channel(f"127.0.0.1:{port}", federation, own) as channel:
            with pytest.raises(SemisiloError) as caught:
                await _call(channel)
            return caught.value
    finally:
        await server.stop(0)


def test_an_error_of_the_catalogue_arrives_as_itself(federation):
    sent = CertificateRevoked("Silo 'büro' — revoked.\nforged line", remedy="Ask Zoë.")
    got = asyncio.run(_answer_to(federation, sent))
    assert type(got) is CertificateRevoked
    assert got.text == "Silo 'büro' — revoked. forged line"
    assert got.remedy == "Ask Zoë."


@pytest.mark.parametrize(("error", "kind"), [
    (RuntimeError("secret path /srv/hub"), SemisiloError), (StorageDamaged("/srv/hub/spool/1 is gone"), StorageDamaged),
    (DiskFull("/srv/hub is full"), DiskFull), (SemisiloError("/srv/hub", remedy="look into /srv/hub"), SemisiloError),
    (OSError(errno.EROFS, "Read-only file system", "/srv/hub/spool"), SystemTrouble)])
def test_what_is_the_coordinators_own_business_stays_in_its_log_under_a_request_id(federation, caplog, error, kind):
    got = asyncio.run(_answer_to(federation, error))
    assert type(got) is kind
    assert got.retry == kind.retry
    assert "/srv" not in got.line()
    request = got.line().split("request ")[1][:8]
    assert any(request in record.getMessage() for record in caplog.records)
    assert "/srv" in caplog.text
    own = [record for record in caplog.records if record.name.startswith("semisilo")]  # gRPC's loops end when they like
    assert any(record.exc_info for record in own) == isinstance(error, RuntimeError)


def test_a_hostile_answer_is_one_bounded_printable_line():
    class Hostile(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.INTERNAL

        def details(self):
            return "\x1b[2J" + "x" * 10_000 + "\n"

        def trailing_metadata(self):
            return ((CODE_KEY, "NO_SUCH_CODE"), (REMEDY_KEY, b"\xff\x1b" + b"y" * 10_000))

    got = from_rpc_error(Hostile())
    assert type(got) is SemisiloError
    assert got.line().isprintable()
    assert len(got.line()) < 1300


def test_what_grpc_itself_says_is_put_into_our_words():
    def got(status: grpc.StatusCode) -> SemisiloError:
        return from_rpc_error(grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details="why"))

    assert got(grpc.StatusCode.UNAVAILABLE).retry
    assert got(grpc.StatusCode.DEADLINE_EXCEEDED).retry
    assert isinstance(got(grpc.StatusCode.RESOURCE_EXHAUSTED), TooManyCalls)
    assert "same version" in got(grpc.StatusCode.UNIMPLEMENTED).remedy
    assert "why" in got(grpc.StatusCode.DATA_LOSS).text
