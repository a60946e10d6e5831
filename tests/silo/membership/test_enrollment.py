"""Promises of the silo's identity on disk and of enrolment without a network; the rest is in
tests/test_identity_over_the_network.py."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from semisilo.common.errors import BadConfiguration, ClockSkew, InvitationInvalid, StorageDamaged, UsageError
from semisilo.common.identity.certificates import certificate_pem, key_from_pem, key_to_pem, load_certificate, make_key
from semisilo.common.identity.invitation import decode_invitation, token_hash
from semisilo.silo.membership.enrollment import enroll, renew_if_due
from semisilo.silo.site.home import AlreadyRunning, SiloHome
from semisilo.silo.site.identity_store import (
    FederationFile,
    drop_pending_keys,
    has_identity,
    install_identity,
    load_identity,
    pending_key,
)
from tests.identity_kit import Federation, make_federation, serving
from tests.synced_paths import synced_paths

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Federation:
    return make_federation(tmp_path_factory.mktemp("hub"), now=NOW)


def _about(silo: str = "hospital-a", **changes) -> FederationFile:
    return FederationFile(**{"federation": "lung", "silo": silo, "address": "hub.example:8443", "invitation": "00",
                             "enrollment_address": "hub.example:8444", "renew_unix": NOW + 20 * DAY, **changes})


def _install(home: Path, federation: Federation, **changes):
    made = federation.silo_credentials("hospital-a", now=NOW, seconds=30 * DAY)
    home.mkdir(exist_ok=True)
    return install_identity(home, _about(**changes), key=key_from_pem(made.key_pem),
                            certificate_pem=made.certificate_pem, authority_pem=federation.keys.pem)


def test_an_installed_identity_is_loaded_whole(tmp_path, federation):
    installed = _install(tmp_path, federation)
    loaded = load_identity(tmp_path)
    assert loaded == installed
    assert (loaded.silo, loaded.federation, loaded.address) == ("hospital-a", "lung", "hub.example:8443")
    assert (loaded.not_before_unix, loaded.not_after_unix) == (NOW - 600, NOW + 30 * DAY)
    assert {path.name for path in (tmp_path / "identity").iterdir()} == {
        "key.pem", "certificate.pem", "ca.pem", "federation.json"}
    assert loaded.credentials.key_pem.decode() not in repr(loaded)


def test_the_private_key_is_readable_by_its_owner_only_whatever_the_umask(tmp_path, federation):
    before = os.umask(0)
    try:
        _install(tmp_path, federation)
        pending_key(tmp_path, "renew")
    finally:
        os.umask(before)
    for path in (tmp_path / "identity" / "key.pem", tmp_path / "identities" / "pending" / "renew.key.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "identities").stat().st_mode & 0o777 == 0o700


def test_a_key_that_others_may_read_is_refused(tmp_path, federation):
    _install(tmp_path, federation)
    (tmp_path / "identity" / "key.pem").chmod(0o604)
    with pytest.raises(BadConfiguration) as caught:
        load_identity(tmp_path)
    assert "chmod 600" in caught.value.remedy


def test_a_home_without_an_identity_says_how_to_get_one(tmp_path):
    assert not has_identity(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_identity(tmp_path)
    assert "silo enroll" in caught.value.remedy


@pytest.mark.parametrize("name", ["key.pem", "certificate.pem", "ca.pem", "federation.json"])
def test_a_missing_or_damaged_file_is_named(tmp_path, federation, name):
    _install(tmp_path, federation)
    path = tmp_path / "identity" / name
    mode = path.stat().st_mode
    path.write_bytes(b"\xff damaged")
    path.chmod(mode)
    with pytest.raises((StorageDamaged, BadConfiguration), match=name.replace(".", r"\.")):
        load_identity(tmp_path)
    path.unlink()
    with pytest.raises(StorageDamaged, match=name.replace(".", r"\.")):
        load_identity(tmp_path)


def test_a_new_identity_replaces_the_old_one_and_sweeps_its_key(tmp_path, federation):
    first = _install(tmp_path, federation)
    second = _install(tmp_path, federation)
    assert load_identity(tmp_path) == second
    assert second.credentials != first.credentials
    assert not first.folder.exists()
    assert [path.name for path in (tmp_path / "identities").iterdir()] == ["2"]


def _copied_with_links_followed(tmp_path: Path, federation: Federation) -> Path:
    """As `scp -r` and `cp -rL` copy a silo's folder: `identity` is a folder of its own."""
    _install(tmp_path / "old", federation)
    shutil.copytree(tmp_path / "old", tmp_path / "new", symlinks=False)
    assert not (tmp_path / "new" / "identity").is_symlink()
    return tmp_path / "new"


def test_a_home_that_was_copied_with_links_followed_is_renewed(tmp_path, federation):
    home = _copied_with_links_followed(tmp_path, federation)
    assert load_identity(home).silo == "hospital-a"
    second = _install(home, federation)
    third = _install(home, federation)
    assert (load_identity(home), second.folder.exists()) == (third, False)
    assert sorted(path.name for path in home.iterdir()) == ["identities", "identity"]
    assert (home / "identity").is_symlink()


@pytest.mark.parametrize("killed_at", ["before the folder is aside", "between", "after"])
def test_a_kill_while_the_copied_folder_is_replaced_leaves_one_identity_whole(tmp_path, federation, monkeypatch,
                                                                              killed_at):
    home = _copied_with_links_followed(tmp_path, federation)
    old = load_identity(home)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    name, instead = {"before the folder is aside": ("os.symlink", killed),
                     "between": ("os.replace", _only_files_below(home, killed)),
                     "after": ("_sweep", killed)}[killed_at]
    with monkeypatch.context() as patch:
        patch.setattr(f"semisilo.silo.site.identity_store.{name}", instead)
        with pytest.raises(KeyboardInterrupt):
            _install(home, federation)
    assert has_identity(home)
    found = load_identity(home)
    assert (found.credentials == old.credentials) == (killed_at != "after")
    again = _install(home, federation)
    assert load_identity(home) == again
    assert sorted(path.name for path in home.iterdir()) == ["identities", "identity"]


def _only_files_below(home: Path, killed):
    """Kills at the link itself; files are replaced as ever."""
    replace = os.replace
    return lambda source, target: killed() if Path(target) == home / "identity" else replace(source, target)


def test_a_pending_key_that_is_found_is_on_the_disk_before_it_is_used(tmp_path):
    """The process that made it may have been killed before it could wait for the disk; an invitation is spent once."""
    pending_key(tmp_path, "renew")
    with synced_paths() as synced:
        pending_key(tmp_path, "renew")
    assert synced == [str(tmp_path / "identities" / "pending" / "renew.key.pem"),
                      str(tmp_path / "identities" / "pending")]


def test_a_pending_key_is_the_same_until_it_is_dropped(tmp_path):
    first = pending_key(tmp_path, "renew")
    assert key_to_pem(pending_key(tmp_path, "renew")) == key_to_pem(first)
    assert key_to_pem(pending_key(tmp_path, "other")) != key_to_pem(first)
    (tmp_path / "identities" / "pending" / "other.key.pem").write_bytes(b"")  # a disk that lost it
    pending_key(tmp_path, "other")
    drop_pending_keys(tmp_path)
    assert key_to_pem(pending_key(tmp_path, "renew")) != key_to_pem(first)


_RENEW_FOR_EVER = """
import sys
from pathlib import Path
from semisilo.common.identity.certificates import key_from_pem
from semisilo.silo.site.identity_store import FederationFile, install_identity, load_identity
home, pairs = Path(sys.argv[1]), Path(sys.argv[2])
kept = load_identity(home)
print("ready", flush=True)
while True:
    for pair in sorted(pairs.iterdir()):
        key, certificate = pair.read_bytes().split(b"=====")
        install_identity(home, kept.about, key=key_from_pem(key), certificate_pem=certificate,
                         authority_pem=kept.authority_pem)
"""


@pytest.mark.slow
def test_a_kill_at_any_instant_of_a_renewal_leaves_a_key_with_its_own_certificate(tmp_path, federation):
    """A process renews as fast as it can and is killed at 6 different instants."""
    home, pairs = tmp_path / "home", tmp_path / "pairs"
    pairs.mkdir()
    _install(home, federation)
    for number in range(4):
        made = federation.silo_credentials("hospital-a", now=NOW)
        (pairs / str(number)).write_bytes(made.key_pem + b"=====" + made.certificate_pem)
    seen = set()
    for attempt in range(6):
        process = subprocess.Popen([sys.executable, "-c", _RENEW_FOR_EVER, str(home), str(pairs)],
                                   stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            before, limit = os.readlink(home / "identity"), time.monotonic() + 300
            while os.readlink(home / "identity") == before:  # however busy the machine is, it renews when it is killed
                assert time.monotonic() < limit
                time.sleep(0.0005)
            time.sleep(0.0074 * attempt)
        finally:
            process.kill()
            process.communicate()
        identity = load_identity(home)
        key = key_from_pem(identity.credentials.key_pem)
        assert key.public_key() == load_certificate(identity.credentials.certificate_pem).public_key()
        seen.add(identity.folder.name)
    assert len(seen) == 6  # numbers only grow: each process has renewed


def test_a_home_of_another_silo_is_not_enrolled_over(tmp_path, federation):
    _install(tmp_path, federation)
    kept = load_identity(tmp_path)
    heart = make_federation(tmp_path / "heart-hub", "heart", now=NOW)
    namesake = make_federation(tmp_path / "namesake-hub", "lung", now=NOW)
    for line, text in ((federation.invite("hospital-b", now=NOW), "for silo 'hospital-b'"),
                       (heart.invite("hospital-a", now=NOW), "federation 'heart'"),
                       (namesake.invite("hospital-a", now=NOW), "under another authority")):
        with pytest.raises(UsageError, match=text) as caught:
            asyncio.run(enroll(line, tmp_path, now=NOW))
        assert "--force" in caught.value.remedy
    assert load_identity(tmp_path) == kept


@pytest.mark.slow
@pytest.mark.parametrize(("silo", "force"), [("hospital-a", False), ("hospital-b", True)])
def test_nobody_enrols_over_a_running_agent_and_the_line_stays_good(tmp_path, silo, force):
    """The agent went on as the silo before until its certificate ended, and a renewal that was under way put that
    silo's certificate over the one that the line had been spent for."""
    federation, home = make_federation(tmp_path / "hub"), tmp_path / "home"

    async def run() -> None:
        async with serving(federation):
            kept = await enroll(federation.invite(), home, now=time.time(), use_http_proxy=False)
            line = federation.invite(silo)
            with SiloHome(home).lock():
                with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}") as caught:
                    await enroll(line, home, now=time.time(), force=force, use_http_proxy=False)
                assert "then: silo enroll LINE --home" in caught.value.remedy
                assert caught.value.remedy.endswith("--force") == force
                assert load_identity(home) == kept
            await enroll(line, home, now=time.time(), force=force, use_http_proxy=False)
            with SiloHome(home).lock():  # the same line again changes nothing
                await enroll(line, home, now=time.time(), force=force, use_http_proxy=False)
    asyncio.run(run())
    assert load_identity(home).silo == silo


def test_a_line_that_another_command_has_just_used_in_the_same_home_is_not_said_to_be_used_by_others(
        tmp_path, federation, monkeypatch):
    """Two at once asked with two keys, and the second was told to warn the operator."""
    line = federation.invite(now=NOW)
    locked = SiloHome.stopped

    @contextmanager
    def after_another(home, command):
        with locked(home, command):
            _install(tmp_path, federation, invitation=token_hash(decode_invitation(line).token).hex())
            yield

    monkeypatch.setattr(SiloHome, "stopped", after_another)
    assert asyncio.run(enroll(line, tmp_path, now=NOW, patience_seconds=0.0)) == load_identity(tmp_path)


def test_a_damaged_line_touches_nothing(tmp_path, federation):
    with pytest.raises(InvitationInvalid):
        asyncio.run(enroll(federation.invite(now=NOW)[:-3], tmp_path / "home", now=NOW))
    assert not (tmp_path / "home").exists()


class _NoCall:
    async def RenewCertificate(self, request, timeout):
        raise AssertionError("called")


def test_renewal_waits_for_its_time_and_the_coordinator_knows_when_it_is_too_late(tmp_path, federation):
    _install(tmp_path, federation)
    assert asyncio.run(renew_if_due(tmp_path, _NoCall(), NOW + 20 * DAY - 1)) is None
    for now in (NOW + 20 * DAY, NOW + 30 * DAY + 1):  # this machine's clock may be the one that is wrong
        with pytest.raises(AssertionError, match="called"):
            asyncio.run(renew_if_due(tmp_path, _NoCall(), now))


class _Answers:
    """A coordinator that answers a renewal with a certificate of its choice."""

    def __init__(self, der: bytes) -> None:
        self.der = der

    async def RenewCertificate(self, request, timeout):
        from semisilo.common.wire import enrollment_service_pb2 as pb

        return pb.RenewCertificateResponse(certificate_der=self.der)


def test_a_renewed_certificate_that_does_not_fit_is_refused_and_the_old_one_kept(tmp_path, federation):
    from semisilo.common.errors import WrongAuthority
    from semisilo.common.identity.certificates import certificate_der, issue_silo_certificate

    _install(tmp_path, federation)
    kept = load_identity(tmp_path)
    other_key = certificate_der(issue_silo_certificate(
        federation.keys.key, federation.keys.certificate, make_key().public_key(), "hospital-a", now=NOW))
    foreign = make_federation(tmp_path / "namesake", "lung", now=NOW)
    key = pending_key(tmp_path, "renew").public_key()
    other_name = certificate_der(issue_silo_certificate(
        federation.keys.key, federation.keys.certificate, key, "hospital-b", now=NOW))
    other_authority = certificate_der(issue_silo_certificate(
        foreign.keys.key, foreign.keys.certificate, key, "hospital-a", now=NOW))
    for der in (other_key, other_name, other_authority, b"", b"nonsense"):
        with pytest.raises(WrongAuthority):
            asyncio.run(renew_if_due(tmp_path, _Answers(der), NOW + 21 * DAY))
        assert load_identity(tmp_path) == kept
    for begins in (NOW + 61 * DAY, NOW - 40 * DAY):  # the coordinator's clock is 40 days ahead, or behind
        elsewhen = certificate_der(issue_silo_certificate(
            federation.keys.key, federation.keys.certificate, key, "hospital-a", now=begins))
        with pytest.raises(ClockSkew):
            asyncio.run(renew_if_due(tmp_path, _Answers(elsewhen), NOW + 21 * DAY))
        assert load_identity(tmp_path) == kept
    good = issue_silo_certificate(federation.keys.key, federation.keys.certificate, key, "hospital-a", now=NOW)
    renewed = asyncio.run(renew_if_due(tmp_path, _Answers(certificate_der(good)), NOW + 21 * DAY))
    assert renewed is not None
    assert renewed.credentials.certificate_pem == certificate_pem(good)
    # The answer gave no time to renew: two thirds of the life that the certificate shows.
    assert renewed.about.renew_unix == pytest.approx(NOW - 600 + (30 * DAY + 600) * 2 / 3)
