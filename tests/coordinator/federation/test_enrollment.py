"""Promises of the authority: who gets a certificate, once, for which name; files; callers on every RPC; the port."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import grpc
import pytest

from semisilo.common.errors import (
    BadConfiguration,
    BadPayload,
    CertificateExpired,
    CertificateRevoked,
    ClockSkew,
    InvitationExpired,
    InvitationInvalid,
    InvitationUsed,
    NoSuchAddress,
    PortInUse,
    StorageDamaged,
    TooManyCalls,
    UnknownSilo,
    UsageError,
    WrongAuthority,
)
from semisilo.common.identity.certificates import (
    certificate_der,
    certificate_pem,
    fingerprint,
    issue_silo_certificate,
    key_from_pem,
    load_certificate,
    make_authority,
    make_key,
    make_request,
    not_after_unix,
    not_before_unix,
    silo_uri_of,
)
from semisilo.common.identity.invitation import decode_invitation, token_hash
from semisilo.common.rpc import tls
from semisilo.common.rpc.tls import server_credentials
from semisilo.common.text.seldom_lines import SeldomLines
from semisilo.coordinator.federation import authority as authority_module
from semisilo.coordinator.federation.authority import (
    CoordinatorCertificate,
    create_authority,
    ensure_coordinator_certificate,
    load_authority,
)
from semisilo.coordinator.federation.enrollment import EnrollmentSettings, SiloStatus
from semisilo.coordinator.rpc.caller import CallerCertificate, caller_silo, check_caller
from semisilo.coordinator.rpc.enrollment_service import EnrollmentPort
from semisilo.coordinator.serve import renew
from tests.identity_kit import MemoryRoster, make_federation

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture
def federation(tmp_path):
    return make_federation(tmp_path / "lung", now=NOW)


def _enroll(federation, line, key, *, now=NOW, silo_unix=None):
    return federation.authority.enroll(token=decode_invitation(line).token, request_der=make_request(key),
                                       silo_unix=now if silo_unix is None else silo_unix, now=now)


def test_a_token_is_exchanged_for_a_certificate_in_the_name_of_the_invitation(federation):
    issued = _enroll(federation, federation.invite("hospital-a", now=NOW), make_key())
    certificate = load_certificate(issued.certificate_der)
    assert issued.silo == "hospital-a"
    assert silo_uri_of(certificate) == "urn:semisilo:lung:silo:hospital-a"
    assert issued.renew_unix == NOW + 20 * DAY
    assert federation.roster.silo_status("hospital-a") == SiloStatus(revoked=False)
    assert federation.roster.accepts("hospital-a", certificate.serial_number)


def test_the_roster_never_sees_a_token(federation):
    token = decode_invitation(federation.invite(now=NOW)).token
    assert list(federation.roster.invitations) == [token_hash(token)]
    assert token not in repr(federation.roster)


def test_a_repeat_with_the_same_key_returns_the_same_certificate_and_another_key_is_refused(federation):
    line, key = federation.invite(now=NOW), make_key()
    first = _enroll(federation, line, key)
    assert _enroll(federation, line, key, now=NOW + 2 * DAY) == first  # even after the invitation's time
    with pytest.raises(InvitationUsed, match="hospital-a") as caught:
        _enroll(federation, line, make_key())
    assert "coordinator invite hospital-a" in caught.value.remedy
    with pytest.raises(InvitationUsed):  # what it was exchanged for has ended: of no use to anyone
        _enroll(federation, line, key, now=NOW + 31 * DAY)


def test_two_calls_that_race_for_one_token_get_one_certificate(federation):
    """The roster decides, in one transaction: whoever comes second is told, although the first look said unused."""
    line = federation.invite(now=NOW)
    hashed = token_hash(decode_invitation(line).token)
    stale = federation.roster.invitation(hashed)
    _enroll(federation, line, make_key())
    federation.roster.invitation = lambda _: stale
    with pytest.raises(InvitationUsed):
        _enroll(federation, line, make_key())


def test_an_expired_invitation_names_its_end_and_the_remedy(federation):
    line = federation.invite(now=NOW)  # lasts 24 h
    with pytest.raises(InvitationExpired, match="'hospital-a' expired on 2027-01-16 08:00:00 UTC") as caught:
        _enroll(federation, line, make_key(), now=NOW + DAY)
    assert caught.value.remedy == "Ask the coordinator's operator to run: coordinator invite hospital-a"
    _enroll(federation, line, make_key(), now=NOW + DAY - 1)


def test_every_wrong_token_gets_the_same_answer(federation):
    replaced = decode_invitation(federation.invite(now=NOW)).token
    good = decode_invitation(federation.invite(now=NOW)).token
    answers = set()
    for token in (replaced, good[:-1], good + "x", good + "x" * 300, "", "ä" * 200, "\ud800", good.upper()):
        with pytest.raises(InvitationInvalid) as caught:
            federation.authority.enroll(token=token, request_der=make_request(make_key()), silo_unix=NOW, now=NOW)
        answers.add(caught.value.line())
    assert len(answers) == 1
    assert "hospital-a" not in answers.pop()


def test_a_bad_request_is_refused_before_the_token_is_looked_up(federation):
    federation.roster.invitation = None  # would raise TypeError
    with pytest.raises(BadPayload):
        federation.authority.enroll(token="x", request_der=b"nonsense", silo_unix=NOW, now=NOW)


def test_a_silo_whose_clock_is_wrong_is_told_so_and_keeps_its_invitation(federation):
    line, key = federation.invite(now=NOW), make_key()
    with pytest.raises(ClockSkew, match="2 hours behind") as caught:
        _enroll(federation, line, key, silo_unix=NOW - 7200)
    assert "NTP" in caught.value.remedy
    assert _enroll(federation, line, key).silo == "hospital-a"


def test_renewal_keeps_the_name_and_the_old_certificate(federation):
    first = load_certificate(_enroll(federation, federation.invite(now=NOW), make_key()).certificate_der)
    issued = federation.authority.renew("hospital-a", request_der=make_request(make_key()), now=NOW + 20 * DAY)
    renewed = load_certificate(issued.certificate_der)
    assert silo_uri_of(renewed) == silo_uri_of(first)
    assert not_after_unix(renewed) == NOW + 50 * DAY
    assert issued.renew_unix == NOW + 40 * DAY
    assert federation.roster.serials["hospital-a"] == {first.serial_number, renewed.serial_number}
    federation.authority.revoke("hospital-a")
    with pytest.raises(CertificateRevoked):
        federation.authority.renew("hospital-a", request_der=make_request(make_key()), now=NOW)
    with pytest.raises(UnknownSilo):
        federation.authority.renew("hospital-b", request_der=make_request(make_key()), now=NOW)


def test_a_silo_renews_a_few_times_in_a_row_and_then_once_a_day(tmp_path):
    """One of them took 2,368 certificates in 40 s."""
    clock = {"now": 1000.0}
    federation = make_federation(tmp_path / "lung", now=NOW, monotonic=lambda: clock["now"])

    def renew(key=None):
        return federation.authority.renew("hospital-a", request_der=make_request(key or make_key()), now=NOW)

    _enroll(federation, federation.invite(now=NOW), make_key())
    for _ in range(8):
        renew()
    with pytest.raises(TooManyCalls, match="8 times or more lately: the next one is given in 24 h") as caught:
        renew()
    assert caught.value.remedy == "The last one stays valid."
    assert caught.value.retry_seconds == pytest.approx(DAY)
    assert len(federation.roster.serials["hospital-a"]) == 9
    _enroll(federation, federation.invite("hospital-b", now=NOW), make_key())
    federation.authority.renew("hospital-b", request_der=make_request(make_key()), now=NOW)
    clock["now"] += DAY
    renew()
    with pytest.raises(TooManyCalls):
        renew()


def test_a_renewal_whose_answer_was_lost_gives_the_same_certificate_to_the_same_key(tmp_path):
    federation, key = make_federation(tmp_path / "lung", now=NOW), make_key()

    def renew(now=NOW):
        return federation.authority.renew("hospital-a", request_der=make_request(key), now=now)

    _enroll(federation, federation.invite(now=NOW), make_key())
    first = renew()
    for _ in range(30):
        assert renew(NOW + 60) == first
    assert len(federation.roster.serials["hospital-a"]) == 2
    assert renew(NOW + 31 * DAY) != first, "that one has ended"
    _enroll(federation, federation.invite(now=NOW), make_key())  # which ends those before
    assert load_certificate(renew().certificate_der).serial_number in federation.roster.serials["hospital-a"]


def test_a_certificate_that_a_clock_ahead_has_made_is_replaced_once_the_clock_is_right(federation):
    """Its silo asks with the same key until it has one that it can use, and was locked out when its old one ended."""
    _enroll(federation, federation.invite(now=NOW), make_key())
    request = make_request(make_key())
    ahead = federation.authority.renew("hospital-a", request_der=request, now=NOW + 60 * DAY)
    right = federation.authority.renew("hospital-a", request_der=request, now=NOW + 20 * DAY)
    assert not_before_unix(load_certificate(ahead.certificate_der)) > NOW + 30 * DAY
    certificate = load_certificate(right.certificate_der)
    assert not_before_unix(certificate) <= NOW + 20 * DAY < NOW + 40 * DAY < not_after_unix(certificate)
    assert federation.authority.renew("hospital-a", request_der=request, now=NOW + 20.1 * DAY) == right


@pytest.mark.parametrize("silo", ["", "Hospital", "a b", "a" * 64])
def test_no_invitation_is_made_for_a_name_that_is_not_allowed(federation, silo):
    with pytest.raises(UsageError, match="silo name"):
        federation.invite(silo, now=NOW)
    assert federation.roster.invitations == {}


def test_settings_that_contradict_themselves_are_refused():
    for values in ({"invitation_seconds": 1.0}, {"renew_seconds": 40 * DAY}, {"certificate_seconds": 0.0}):
        with pytest.raises(ValueError, match="_seconds"):
            EnrollmentSettings(**values)


# Files


def test_keys_are_readable_by_their_owner_only_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        create_authority(tmp_path / "authority", "lung", now=NOW)
        ensure_coordinator_certificate(tmp_path / "authority", NOW)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "authority").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "coordinator.key": 0o600, "coordinator.pem": 0o644}
    assert (tmp_path / "authority").stat().st_mode & 0o777 == 0o700


def test_an_authority_is_made_once_and_loads_again(tmp_path):
    made = create_authority(tmp_path / "authority", "lung", now=NOW)
    loaded = load_authority(tmp_path / "authority")
    assert (loaded.federation, loaded.certificate) == ("lung", made.certificate)
    with pytest.raises(UsageError, match="holds an authority already"):
        create_authority(tmp_path / "authority", "lung", now=NOW)


def test_an_authority_that_was_cut_short_is_begun_again(tmp_path):
    (tmp_path / "authority").mkdir()
    (tmp_path / "authority" / "ca.key").write_bytes(b"half a key")
    create_authority(tmp_path / "authority", "lung", now=NOW)
    assert load_authority(tmp_path / "authority").federation == "lung"


def test_damaged_foreign_or_open_authority_files_are_refused(tmp_path):
    create_authority(tmp_path / "authority", "lung", now=NOW)
    folder = tmp_path / "authority"
    (folder / "ca.key").chmod(0o644)
    with pytest.raises(BadConfiguration, match=r"every user") as caught:
        load_authority(tmp_path / "authority")
    assert "chmod 600" in caught.value.remedy
    (folder / "ca.key").chmod(0o600)
    (folder / "ca.pem").write_bytes(certificate_pem(make_authority("lung", now=NOW)[1]))
    with pytest.raises(StorageDamaged, match=r"not the key of"):
        load_authority(tmp_path / "authority")
    (folder / "ca.pem").unlink()
    with pytest.raises(StorageDamaged, match="no such file"):
        load_authority(tmp_path / "authority")


def test_the_coordinators_certificate_is_kept_until_it_is_two_thirds_old(tmp_path):
    create_authority(tmp_path / "authority", "lung", now=NOW)
    first = ensure_coordinator_certificate(tmp_path / "authority", NOW)
    assert ensure_coordinator_certificate(tmp_path / "authority", NOW + 60 * DAY - 1) == first
    second = ensure_coordinator_certificate(tmp_path / "authority", NOW + 60 * DAY)
    assert second != first
    assert not_after_unix(load_certificate(second.certificate_pem)) == NOW + 150 * DAY


@pytest.mark.parametrize(("ahead", "match"), [(-400 * DAY, "before this federation's authority was made"),
                                              (11 * 366 * DAY, "authority ended")])
def test_a_clock_outside_the_authoritys_life_is_no_wrong_usage(tmp_path, ahead, match):
    """A machine may start with a clock that is set right later. A service is started again unless it ended with 2."""
    create_authority(tmp_path / "authority", "lung", now=NOW)
    before = ensure_coordinator_certificate(tmp_path / "authority", NOW)
    with pytest.raises(ClockSkew, match=match) as caught:
        CoordinatorCertificate(tmp_path / "authority", now=NOW + ahead)
    assert caught.value.exit_status == 1
    assert CoordinatorCertificate(tmp_path / "authority", now=NOW + DAY).current() == before


def test_a_kill_between_the_coordinators_key_and_certificate_is_mended(tmp_path):
    create_authority(tmp_path / "authority", "lung", now=NOW)
    ensure_coordinator_certificate(tmp_path / "authority", NOW)
    old_key = (tmp_path / "authority" / "coordinator.key").read_bytes()
    ensure_coordinator_certificate(tmp_path / "authority", NOW + 70 * DAY)
    (tmp_path / "authority" / "coordinator.key").write_bytes(old_key)
    fixed = ensure_coordinator_certificate(tmp_path / "authority", NOW + 70 * DAY)
    assert ensure_coordinator_certificate(tmp_path / "authority", NOW + 70 * DAY) == fixed
    for damage in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (tmp_path / "authority" / "coordinator.pem").write_bytes(damage)
        assert ensure_coordinator_certificate(tmp_path / "authority", NOW + 70 * DAY) != fixed


def test_a_refreshed_coordinator_certificate_is_the_one_shown_next(tmp_path):
    create_authority(tmp_path / "authority", "lung", now=NOW)
    shown = CoordinatorCertificate(tmp_path / "authority", now=NOW)
    first = shown.current()
    assert not shown.refresh(NOW + DAY)
    assert shown.current() is first
    assert shown.refresh(NOW + 61 * DAY)
    assert shown.current() != first


@pytest.mark.parametrize("failing", ["coordinator.next.key", "coordinator.pem", "rename"])
def test_where_a_new_certificate_cannot_be_written_the_hub_starts_with_the_one_it_has(tmp_path, monkeypatch, failing):
    """Whichever of the steps fails: the two files that are there belong together."""
    folder = tmp_path / "authority"
    create_authority(folder, "lung", now=NOW)
    first = ensure_coordinator_certificate(folder, NOW)

    def fails(write):
        def writing(path, content, **keywords):
            if path.name == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            write(path, content, **keywords)
        return writing

    def no_rename(source, target):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))

    with monkeypatch.context() as patch:
        patch.setattr(authority_module, "write_secret", fails(authority_module.write_secret))
        patch.setattr(authority_module, "write_durably", fails(authority_module.write_durably))
        if failing == "rename":
            patch.setattr(authority_module.os, "replace", lambda source, target: (
                no_rename(source, target) if Path(source).name == "coordinator.next.key"
                else os.rename(source, target)))
        with pytest.raises(OSError, match=r"No space|Input/output"):
            ensure_coordinator_certificate(folder, NOW + 70 * DAY)
        shown = CoordinatorCertificate(folder, now=NOW + 70 * DAY)
        assert (shown.current() == first) == (failing != "rename")
        with pytest.raises(OSError, match=r"No space|Input/output"):
            shown.refresh(NOW + 71 * DAY)
        if failing != "rename":
            with pytest.raises(OSError, match="No space"):
                CoordinatorCertificate(folder, now=NOW + 400 * DAY)  # it has ended
    renewed = CoordinatorCertificate(folder, now=NOW + 72 * DAY)
    key = key_from_pem((folder / "coordinator.key").read_bytes())
    certificate = load_certificate((folder / "coordinator.pem").read_bytes())
    assert fingerprint(key.public_key()) == fingerprint(certificate.public_key())
    assert renewed.current().key_pem == (folder / "coordinator.key").read_bytes()
    assert not_after_unix(certificate) > NOW + 90 * DAY
    assert not (folder / "coordinator.next.key").exists()


def test_a_hub_that_cannot_renew_its_certificate_says_why(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "authority"
    create_authority(folder, "lung", now=NOW)
    shown = CoordinatorCertificate(folder, now=NOW)

    def read_only(path, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    lines = SeldomLines()
    renew(shown, NOW + DAY, lines)
    assert caplog.messages == []
    monkeypatch.setattr(authority_module, "write_secret", read_only)
    for seconds in (0, 30, 60):
        renew(shown, NOW + 61 * DAY + seconds, lines)
    (line,) = caplog.messages
    assert "the coordinator's own certificate, which ends on" in line
    assert "Read-only file system. Let the disk be written" in line


# Callers


class _Peer:
    """The part of a gRPC context that names the peer."""

    def __init__(self, *pems: bytes) -> None:
        self._pems = pems

    def auth_context(self):
        return {"x509_pem_cert": self._pems} if self._pems else {}


def _certificate(federation, silo="hospital-a", **options):
    return issue_silo_certificate(federation.keys.key, federation.keys.certificate, make_key().public_key(), silo,
                                  now=NOW, **options)


def test_the_caller_is_named_by_its_certificate(federation):
    certificate = _certificate(federation)
    assert caller_silo(_Peer(certificate_pem(certificate)), "lung") == CallerCertificate(
        silo="hospital-a", serial=certificate.serial_number, not_before_unix=NOW - 600, not_after_unix=NOW + 30 * DAY)


def test_a_caller_without_a_certificate_of_this_federation_is_refused(federation):
    pem = certificate_pem(_certificate(federation))
    with pytest.raises(WrongAuthority, match="federation 'lung', this is 'heart'"):
        caller_silo(_Peer(pem), "heart")
    coordinators_own = ensure_coordinator_certificate(federation.folder, NOW).certificate_pem
    for peer in (_Peer(), _Peer(pem, pem), _Peer(b"nonsense"), _Peer(coordinators_own), _Peer(federation.keys.pem)):
        with pytest.raises(WrongAuthority):
            caller_silo(peer, "lung")


def test_a_caller_is_checked_for_dates_roster_revocation_and_serial():
    roster = MemoryRoster(serials={"a": {1, 2}})
    caller = CallerCertificate(silo="a", serial=1, not_before_unix=NOW, not_after_unix=NOW + DAY)
    check_caller(caller, roster, NOW)
    check_caller(caller, roster, NOW + DAY)
    with pytest.raises(CertificateExpired, match="ended on 2027-01-16 08:00:00 UTC") as caught:
        check_caller(caller, roster, NOW + DAY + 1)
    assert caught.value.remedy == "Ask the coordinator's operator to run: coordinator invite a"
    with pytest.raises(ClockSkew):
        check_caller(caller, roster, NOW - 1)
    with pytest.raises(UnknownSilo):
        check_caller(CallerCertificate(silo="b", serial=1, not_before_unix=NOW, not_after_unix=NOW + 1), roster, NOW)
    roster.serials["a"] = {2}
    with pytest.raises(CertificateRevoked, match="replaced"):
        check_caller(caller, roster, NOW)
    roster.revoke("a")
    with pytest.raises(CertificateRevoked, match="has revoked silo 'a'"):
        check_caller(caller, roster, NOW)


def test_a_new_invitation_after_revocation_does_not_bring_the_old_key_back(federation):
    old = load_certificate(_enroll(federation, federation.invite(now=NOW), make_key()).certificate_der)
    federation.authority.revoke("hospital-a")
    new = load_certificate(_enroll(federation, federation.invite(now=NOW), make_key()).certificate_der)
    check_caller(caller_silo(_Peer(certificate_pem(new)), "lung"), federation.roster, NOW)
    with pytest.raises(CertificateRevoked):
        check_caller(caller_silo(_Peer(certificate_pem(old)), "lung"), federation.roster, NOW)
    assert certificate_der(old) != certificate_der(new)


# The port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_enrolment_port_is_open_only_while_an_invitation_is_and_a_little_longer(federation):
    clock = {"now": NOW}
    shown = ensure_coordinator_certificate(federation.folder, NOW)

    async def run() -> None:
        port = EnrollmentPort(address="127.0.0.1:0", credentials=lambda: server_credentials(lambda: shown),
                              authority=federation.authority, roster=federation.roster, clock=lambda: clock["now"],
                              linger_seconds=100)
        assert not await port.look()
        federation.invite(now=NOW, life_seconds=1000)
        assert await port.look()
        bound = port.port
        assert _listens(bound)
        clock["now"] += 999
        assert await port.look()
        clock["now"] += 99
        assert await port.look()  # the invitation has ended, its holder may still learn that
        clock["now"] += 1
        assert not await port.look()
        assert not _listens(bound)
        federation.invite(now=clock["now"])  # and open again for the next invitation
        assert await port.look()
        assert _listens(port.port)

    asyncio.run(run())


def test_a_port_that_is_taken_is_named(federation):
    federation.invite(now=NOW)
    shown = ensure_coordinator_certificate(federation.folder, NOW)

    async def run(address: str) -> None:
        port = EnrollmentPort(address=address, credentials=lambda: server_credentials(lambda: shown), clock=lambda: NOW,
                              authority=federation.authority, roster=federation.roster)
        await port.run()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortInUse, match=address):
            asyncio.run(run(address))
    with pytest.raises(BadConfiguration, match="not an address"):
        asyncio.run(run("hub"))
    for address in ("192.0.2.1:8444", "no-such-host.invalid:8444"):  # TEST-NET-1: no machine has it
        with pytest.raises(NoSuchAddress, match="Cannot listen"):
            asyncio.run(run(address))


def test_a_port_that_belongs_to_root_is_told_with_what_to_set(federation, monkeypatch):
    credentials = server_credentials(lambda: ensure_coordinator_certificate(federation.folder, NOW))
    monkeypatch.setattr(tls, "_bind_error", lambda host, port: PermissionError(errno.EACCES, "Permission denied"))

    async def run(port: int) -> str:
        server = grpc.aio.server()
        monkeypatch.setattr(server, "add_secure_port", lambda *words: 0)
        with pytest.raises(BadConfiguration) as caught:
            tls.listen(server, f"[::]:{port}", credentials)
        return caught.value.line()

    assert '[address] listen = "[::]:8443"' in asyncio.run(run(443))
    assert "Permission denied. Choose an address" in asyncio.run(run(8443))  # such as by SELinux
