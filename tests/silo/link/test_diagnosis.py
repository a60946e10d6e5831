"""What a refused connection means, one test for each reason. Real sockets and real TLS on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semisilo.common.errors import (
    BadConfiguration,
    CertificateExpired,
    CertificateRevoked,
    ClockSkew,
    ConnectionRefusedByPeer,
    Unreachable,
    UsageError,
    WrongAuthority,
)
from semisilo.common.identity.certificates import (
    certificate_pem,
    issue_coordinator_certificate,
    key_from_pem,
    key_to_pem,
    make_key,
)
from semisilo.silo.link.diagnosis import BUDGET_SECONDS, by_own_clock, diagnose, diagnose_connection
from semisilo.silo.link.dialling import Way, connect, goes_around_proxy, way_to
from semisilo.silo.membership.enrollment import open_channel
from semisilo.silo.site.identity_store import FederationFile, install_identity, load_identity
from tests.identity_kit import Federation, make_federation

DAY = 86400.0
_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Federation:
    return make_federation(tmp_path_factory.mktemp("hub"), now=time.time() - 100 * DAY)


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


def _home(path: Path, federation: Federation, *, begins: float, seconds: float = 30 * DAY,
          issuer: Federation | None = None) -> Path:
    made = (issuer or federation).silo_credentials("hospital-a", now=begins, seconds=seconds)
    path.mkdir()
    install_identity(path, FederationFile(federation="lung", silo="hospital-a", address="127.0.0.1:1", invitation="00",
                                          enrollment_address="127.0.0.1:1", renew_unix=begins + 1),
                     key=key_from_pem(made.key_pem), certificate_pem=made.certificate_pem,
                     authority_pem=federation.keys.pem)
    return path


@contextlib.contextmanager
def _listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port that hands every connection to `answer`."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError, ssl.SSLError):
                    connection.settimeout(5)
                    answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        thread.join()
        listener.close()


def _tls(folder: Path, issuer: Federation, *, begins: float, seconds: float = 90 * DAY,
         demand: Federation | None = None, first: bytes = _SETTINGS,
         waits: bool = False) -> Callable[[socket.socket], None]:
    """A TLS server with a coordinator's certificate that says `first` after the handshake."""
    key = make_key()
    certificate = issue_coordinator_certificate(issuer.keys.key, issuer.keys.certificate, key.public_key(), now=begins,
                                                seconds=seconds)
    folder.mkdir(exist_ok=True)
    (folder / "key.pem").write_bytes(key_to_pem(key))
    (folder / "chain.pem").write_bytes(certificate_pem(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    if demand is not None:
        context.load_verify_locations(cadata=demand.keys.pem.decode())
        context.verify_mode = ssl.CERT_REQUIRED

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            if waits:
                secured.recv(100)
            secured.sendall(first)
            with contextlib.suppress(OSError):
                secured.recv(1)

    return answer


def _diagnose(home: Path, address: str, **options):
    begin = time.monotonic()
    error = diagnose(home, address, time.time(), **options)
    assert time.monotonic() - begin < 10 * BUDGET_SECONDS
    assert error.line().count("\n") == 0
    return error


def test_a_home_without_an_identity_is_said_first(tmp_path):
    assert isinstance(_diagnose(tmp_path, "127.0.0.1:1"), UsageError)


def test_a_certificate_has_ended_when_both_sides_say_so(tmp_path, federation):
    home = _home(tmp_path / "home", federation, begins=time.time() - 40 * DAY)
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time(), demand=federation)) as address:
        error = _diagnose(home, address)
    assert isinstance(error, CertificateExpired)
    assert "'hospital-a' ended on" in error.text
    assert error.remedy == "Ask the coordinator's operator to run: coordinator invite hospital-a"


def test_by_this_machines_clock_alone_no_certificate_has_ended(tmp_path, federation):
    home = _home(tmp_path / "home", federation, begins=time.time() - 40 * DAY)
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time())) as address:
        taken = _diagnose(home, address)  # a coordinator whose clock is behind as well does not object
    for error in (taken, _diagnose(home, "nowhere.invalid:1")):
        assert isinstance(error, Unreachable), "it is tried again"
        assert "'hospital-a' ended on" in error.text
        assert error.remedy.endswith("Check this machine's clock.")
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time() - 100 * DAY)) as address:
        both = _diagnose(home, address)
    assert isinstance(both, ClockSkew)


def test_the_coordinators_word_alone_ends_no_silo(tmp_path, federation):
    begins = time.time() - DAY
    home = _home(tmp_path / "home", federation, begins=begins)
    said = CertificateExpired("The certificate of silo 'hospital-a' ended.", remedy="Ask for another.")
    identity = load_identity(home)
    doubted = by_own_clock(said, identity, time.time())
    assert isinstance(doubted, ClockSkew)
    assert "by this machine's clock" in doubted.text
    assert by_own_clock(said, identity, begins + 31 * DAY) is said
    revoked = CertificateRevoked("revoked")
    assert by_own_clock(revoked, identity, time.time()) is revoked


def test_a_certificate_that_is_not_valid_yet_means_a_clock_that_is_behind(tmp_path, federation):
    home = _home(tmp_path / "home", federation, begins=time.time() + DAY)
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time(), demand=federation)) as address:
        error = _diagnose(home, address)
    assert isinstance(error, ClockSkew)
    assert "it is behind" in error.text


@pytest.fixture
def home(tmp_path, federation):
    return _home(tmp_path / "home", federation, begins=time.time())


def test_a_port_where_nothing_listens_is_named(home):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        error = _diagnose(home, f"127.0.0.1:{port}")
    assert isinstance(error, Unreachable)
    assert error.retry
    assert f"refuses connections to port {port}" in error.text
    assert "coordinator serve" in error.remedy


def test_a_name_that_nobody_knows_is_named(home, monkeypatch):
    def unknown(*_args, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = _diagnose(home, "hub.example:8443")
    assert isinstance(error, Unreachable)
    assert "'hub.example' (the coordinator) is not known" in error.text


def test_too_many_open_files_are_not_blamed_on_the_network(home, monkeypatch):
    def full(*_args, **_options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("semisilo.silo.link.diagnosis.connect", full)
    error = _diagnose(home, "127.0.0.1:1")
    assert isinstance(error, Unreachable)
    assert error.text.endswith("failed: Too many open files.")
    assert "ulimit -n" in error.remedy


def test_a_resolver_that_hangs_does_not_hang_the_diagnosis(home, monkeypatch):
    release = threading.Event()

    def hangs(*_args, **_options):
        release.wait(300)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    error = _diagnose(home, "hub.example:8443", budget_seconds=0.3)
    release.set()
    assert isinstance(error, Unreachable)
    assert "not resolved in time" in error.text


def test_a_host_that_swallows_packets_is_told_apart_from_one_that_refuses(home):
    """A listener whose queue is full drops further SYNs, as a firewall does."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        error = _diagnose(home, f"127.0.0.1:{listener.getsockname()[1]}", budget_seconds=0.3)
    assert isinstance(error, Unreachable)
    assert "No answer from" in error.text
    assert "firewall" in error.remedy


def test_an_address_that_is_none_is_refused(home):
    for address in ("hub", "hub:", ":1", "::1:8443", "hub:x", "hub:99999", "hub:-1"):
        assert isinstance(_diagnose(home, address), BadConfiguration)


def test_a_coordinator_that_accepts_the_silo_now_is_worth_another_try(home, tmp_path, federation, monkeypatch):
    """Control for every test below: with nothing wrong, nothing is found."""
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time(), demand=federation)) as address:
        error = _diagnose(home, address)
    assert isinstance(error, Unreachable)
    assert "answers now" in error.text
    monkeypatch.setattr("semisilo.silo.link.diagnosis._LISTEN_SECONDS", 0.2)
    polite = _tls(tmp_path / "tls", federation, begins=time.time(), demand=federation, waits=True)
    with _listening(polite) as address:
        assert "answers now" in _diagnose(home, address).text


def test_a_coordinator_of_another_authority_is_named(home, tmp_path):
    heart = make_federation(tmp_path / "heart", "heart")
    with _listening(_tls(tmp_path / "tls", heart, begins=time.time())) as address:
        error = _diagnose(home, address)
    assert isinstance(error, WrongAuthority)
    assert "a certificate of 'heart' for 'coordinator.heart.semisilo', not one of the authority of federation 'lung'" \
        in error.text
    assert "inspects TLS" in error.remedy


def test_another_authority_of_the_same_name_is_not_trusted_either(home, tmp_path):
    namesake = make_federation(tmp_path / "namesake", "lung")
    with _listening(_tls(tmp_path / "tls", namesake, begins=time.time())) as address:
        assert isinstance(_diagnose(home, address), WrongAuthority)


def test_a_wrong_name_under_the_right_authority_names_both(home, tmp_path, federation):
    def diagnosed(address: str, name: str):
        return diagnose_connection(address, authority_pem=federation.keys.pem, federation=name, own_files=None,
                                   now=time.time())

    with _listening(_tls(tmp_path / "tls", federation, begins=time.time())) as address:
        error = diagnosed(address, "liver")
        assert isinstance(diagnosed(address, "lung"), Unreachable)
    assert isinstance(error, WrongAuthority)
    assert "'coordinator.lung.semisilo', not 'coordinator.liver.semisilo'" in error.text


def test_a_coordinators_certificate_that_has_ended_or_not_begun_points_at_the_clocks(home, tmp_path, federation):
    now = time.time()
    with _listening(_tls(tmp_path / "tls", federation, begins=now - 60 * DAY, seconds=DAY)) as address:
        ended = _diagnose(home, address)
    with _listening(_tls(tmp_path / "tls", federation, begins=now + DAY)) as address:
        future = _diagnose(home, address)
    assert isinstance(ended, ClockSkew)
    assert "coordinator's certificate ended on" in ended.text
    assert "restart 'coordinator serve'" in ended.remedy
    assert isinstance(future, ClockSkew)
    assert "certificate begins on" in future.text


def test_a_home_whose_certificate_is_not_of_the_pinned_authority_is_found_without_the_network(tmp_path, federation):
    namesake = make_federation(tmp_path / "namesake", "lung")
    home = _home(tmp_path / "home", federation, begins=time.time(), issuer=namesake)
    error = _diagnose(home, "nowhere.invalid:1")
    assert isinstance(error, WrongAuthority)
    assert "was not issued by the authority of federation 'lung'" in error.text
    assert "coordinator invite hospital-a" in error.remedy


def test_a_silo_that_the_coordinators_authority_did_not_enrol_is_told_so(tmp_path, federation):
    namesake = make_federation(tmp_path / "namesake", "lung")
    home = _home(tmp_path / "home", federation, begins=time.time())
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time(), demand=namesake)) as address:
        error = _diagnose(home, address)
    assert isinstance(error, WrongAuthority)
    assert "does not accept this silo's certificate" in error.text


def test_the_enrolment_line_at_the_work_port_says_that_the_port_is_wrong(tmp_path, federation):
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time(), demand=federation)) as address:
        error = diagnose_connection(address, authority_pem=federation.keys.pem, federation="lung", own_files=None,
                                    now=time.time())
    assert isinstance(error, WrongAuthority)
    assert "not for enrolment" in error.remedy


def test_what_speaks_no_tls_or_no_http2_is_no_coordinator(home, tmp_path, federation):
    with _listening(lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        plain = _diagnose(home, address)
    with _listening(_tls(tmp_path / "tls", federation, begins=time.time(), first=b"HTTP/1.1 200 OK\r\n")) as address:
        web = _diagnose(home, address)
    assert isinstance(plain, ConnectionRefusedByPeer)
    assert "does not speak TLS" in plain.text
    assert isinstance(web, ConnectionRefusedByPeer)
    assert "is not a coordinator" in web.text


@pytest.mark.slow
def test_a_peer_that_closes_at_once_or_never_answers_is_reported_in_time(home):
    with _listening(lambda c: None) as address:
        closed = _diagnose(home, address)
    diagnosed = threading.Event()
    with _listening(lambda c: diagnosed.wait(300)) as address:
        silent = _diagnose(home, address, budget_seconds=0.5)
        diagnosed.set()
    assert isinstance(closed, ConnectionRefusedByPeer)
    assert isinstance(silent, Unreachable)
    assert "does not answer" in silent.text


# Through the HTTP proxy of the site


def _proxy(status: str, asked: list[bytes]) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        asked.append(connection.recv(4096))
        connection.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())

    return answer


@pytest.mark.parametrize(("status", "text"), [("407 Proxy Authentication Required", "does not accept the user"),
                                              ("401 Unauthorized", "name and password of https_proxy"),
                                              ("403 Forbidden", "it said: HTTP/1.1 403 Forbidden")])
def test_a_proxy_that_refuses_is_named_and_asked_as_grpc_asks(home, monkeypatch, status, text):
    asked: list[bytes] = []
    with _listening(_proxy(status, asked)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:pass%20word@{proxy}")
        error = _diagnose(home, "hub.example:8443")
        monkeypatch.setenv("no_proxy", "other.example,.example")
        around = _diagnose(home, "127.0.0.1:1")
    assert isinstance(error, Unreachable)
    assert proxy in error.text
    assert text in error.text
    assert asked[0].startswith(b"CONNECT hub.example:8443 HTTP/1.1\r\n")
    assert b"Basic dXNlcjpwYXNzIHdvcmQ=" in asked[0]  # base64 of "user:pass word"
    assert "HTTP proxy" in around.text  # 127.0.0.1 is not in no_proxy


def test_a_proxy_that_wants_a_password_and_was_given_none_says_so(home, monkeypatch):
    with _listening(_proxy("407 Proxy Authentication Required", [])) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        error = _diagnose(home, "hub.example:8443")
    assert f"The HTTP proxy {proxy} wants a user name and password." in error.text
    assert "https_proxy=http://user:password@host:port" in error.remedy


@pytest.mark.parametrize("url", ["https://u:hidden@proxy.example:3128", "http://u:hid#den@proxy.example:3128",
                                 "http://u:hid/den@proxy.example:3128", "http://u:hidden@[proxy:3128",
                                 "http://u:hidden@proxy.example:0"])
def test_what_names_no_http_proxy_is_said_without_its_password(home, monkeypatch, url):
    monkeypatch.setenv("https_proxy", url)
    error = _diagnose(home, "hub.example:8443")
    assert isinstance(error, BadConfiguration)
    assert error.text == "https_proxy does not name an HTTP proxy."
    assert "%23 for #" in error.remedy
    assert "hid" not in error.text + error.remedy


def test_no_proxy_and_the_setting_go_around_the_proxy(home, monkeypatch):
    asked: list[bytes] = []
    with _listening(_proxy("403 Forbidden", asked)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy}")
        direct = _diagnose(home, "127.0.0.1:1", use_http_proxy=False)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        named = _diagnose(home, "127.0.0.1:1")
    assert asked == []
    assert "(the coordinator)" in direct.text
    assert "(the coordinator)" in named.text


@pytest.mark.parametrize(("listed", "address", "direct"), [
    ("*", "127.0.0.1:1", True), ("other, *", "localhost:1", True), ("127.0.0.0/8", "127.0.0.1:1", True),
    ("10.0.0.0/8, 127.0.0.0/30", "127.0.0.1:1", True), ("10.0.0.0/8", "127.0.0.1:1", False),
    ("::1/128", "[::1]:1", True), ("[::1]", "[0:0:0:0:0:0:0:1]:1", True), ("::/0", "127.0.0.1:1", False),
    ("localhost:1", "localhost:1", True), ("localhost:2", "localhost:1", False), ("calhost", "localhost:1", False),
    (".example", "hub.example:1", True), ("example", "hub.example:1", True), ("example", "hub.other:1", False),
    ("127.0.0.0/8", "hub.example:1", False), ("", "localhost:1", False)])
def test_what_no_proxy_lists_goes_around_the_proxy(monkeypatch, listed, address, direct):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", listed)
    assert goes_around_proxy(address) == direct
    assert (way_to(address).proxy is None) == direct


@pytest.mark.parametrize("listed", ["*", "127.0.0.0/8"])
def test_grpc_and_the_diagnosis_go_the_same_way(home, monkeypatch, listed):
    """gRPC knows no star, and what the diagnosis asked knew no networks: they reached the hub in different ways, and
    the reason that was shown was that of the other one."""
    asked: list[bytes] = []
    called = threading.Event()

    def hub(connection: socket.socket) -> None:
        if connection.recv(1) == b"\x16":  # a handshake of TLS
            called.set()

    async def call(address: str) -> None:
        async with open_channel(load_identity(home), address=address) as channel:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30):
                    channel.get_state(try_to_connect=True)
                    while not called.is_set() and not asked:
                        await asyncio.sleep(0.01)

    with _listening(_proxy("403 Forbidden", asked)) as proxy, _listening(hub) as address:
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        monkeypatch.setenv("no_proxy", listed)
        asyncio.run(call(address))
    assert (called.is_set(), asked) == (True, [])


def test_a_proxy_that_says_much_before_it_connects_is_read_to_the_end(home):
    """Its headers are no part of the coordinator's answer."""
    many = b"".join(b"X-Trace-%d: %s\r\n" % (number, b"a" * 100) for number in range(300))

    def talkative(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n" + many + b"\r\n")
        connection.sendall(connection.recv(16) + b" from behind")

    with _listening(talkative) as proxy:
        way = Way("hub.example:8443", "hub.example", 8443, proxy=urllib.parse.urlsplit(f"http://{proxy}"))
        with connect(way, time.monotonic() + 30) as connection:
            connection.sendall(b"hello")
            behind = b""
            while len(behind) < 17 and (piece := connection.recv(100)):
                behind += piece
    assert behind == b"hello from behind"


def test_a_proxy_that_breaks_off_its_answer_is_named(home, monkeypatch):
    def breaks_off(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\nX-Trace: 1\r\n")

    with _listening(breaks_off) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy}")
        error = _diagnose(home, "hub.example:8443")
    assert isinstance(error, Unreachable)
    assert f"The HTTP proxy {proxy} breaks off in the middle of its answer, after 49 B." in error.text
