"""The federation folder: made once, opened with every key checked, and held by one `serve` at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from semisilo.common.errors import BadConfiguration, SemisiloError, StorageDamaged, UsageError
from semisilo.coordinator.cli import main as cli
from semisilo.coordinator.federation import folder as folder_module
from semisilo.coordinator.federation.authority import load_authority
from semisilo.coordinator.federation.folder import (
    AddressSettings,
    Federation,
    create_federation,
    keep_private,
    new_federation,
    open_federation,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.studies.queue import create_study
from semisilo.coordinator.studies.study_file import load_study
from tests.another_account import given_to_another_account
from tests.each_of import each_of

KILLED_INIT = Path(__file__).parent / "killed_init.py"


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path / "lung", name="lung", address="hub.example:8443")


def test_a_new_federation_opens_with_what_it_was_made_with(federation: Federation) -> None:
    again = open_federation(federation.folder)
    assert again == federation
    assert (again.name, again.config.address.public, again.config.address.enrollment_address) == (
        "lung", "hub.example:8443", "hub.example:8444")
    assert (again.config.limits.uploads, again.config.limits.invitation_life) == (4, "24h")
    assert federation.authority.stat().st_mode & 0o777 == 0o700
    assert all(folder.is_dir() for folder in (again.authority, again.payloads, again.spool, again.studies))


@contextlib.contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def modes(federation: Federation) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode)
            for path in (federation.folder, *federation.folder.glob("ledger.sqlite*"))}


PRIVATE = {"lung": 0o700, "ledger.sqlite": 0o600, "ledger.sqlite-wal": 0o600, "ledger.sqlite-shm": 0o600}


def test_folder_and_ledger_are_their_owners_whatever_the_umask(tmp_path: Path) -> None:
    with umask(0):
        made = create_federation(tmp_path / "lung", name="lung", address="hub.example:8443")
        with contextlib.closing(Ledger(made.ledger)):
            assert modes(made) == PRIVATE
            assert keep_private(made) == []


def test_what_others_may_read_of_an_older_folder_is_taken_from_them_and_said_once(federation: Federation) -> None:
    with contextlib.closing(Ledger(federation.ledger)):
        federation.folder.chmod(0o755)
        for path in federation.folder.glob("ledger.sqlite*"):
            path.chmod(0o664)
        (said,) = keep_private(federation)
        assert said == (f"{federation.folder}, ledger.sqlite, ledger.sqlite-wal, ledger.sqlite-shm: other users of this"
                        " machine had rights there; now only this one has")
        assert modes(federation) == PRIVATE
        assert keep_private(federation) == []


def test_a_federation_whose_ledger_is_gone_is_not_taken_for_a_new_one(federation: Federation) -> None:
    """An empty ledger in its place would know no silo, and backups of it would push good ones out."""
    open_federation(federation.folder)  # nothing has been noted yet: `serve` makes that key
    (federation.authority / "audit.key").write_text("-")
    with pytest.raises(StorageDamaged, match=r"ledger\.sqlite: is gone, and this federation has had one") as caught:
        open_federation(federation.folder)
    assert "coordinator restore" in caught.value.remedy
    federation.ledger.touch()  # as by a program that looked into it
    with pytest.raises(StorageDamaged, match=r"ledger\.sqlite: is empty, and this federation has had one"):
        open_federation(federation.folder)
    Ledger(federation.ledger).close()
    assert open_federation(federation.folder) == federation


def test_what_belongs_to_somebody_else_is_named_with_the_remedy(federation: Federation,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    federation.folder.chmod(0o750)
    monkeypatch.setattr(Path, "chmod", refused)
    (said,) = keep_private(federation)
    assert said.endswith(f"its owner can, with chmod go-rwx {federation.folder}")


def test_the_commented_settings_of_a_new_federation_are_valid(federation: Federation) -> None:
    path = federation.folder / "federation.toml"
    lines = [line.removeprefix("# ") if "=" in line and ":" not in line.split("=")[0] else line
             for line in path.read_text().splitlines() if not line.startswith('# "')]
    path.write_text("\n".join(lines))
    assert "\nspool_bytes" in path.read_text()
    again = open_federation(federation.folder).config
    assert (again.limits, again.address.enrollment_address, again.address.listen_enrollment_address) == (
        federation.config.limits, "hub.example:8444", "[::]:8444")


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lung").mkdir()
    (tmp_path / "lung" / "photo").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        create_federation(tmp_path / "lung", name="lung", address="hub:8443")
    assert [path.name for path in (tmp_path / "lung").iterdir()] == ["photo"]


@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize("failing", ["federation.toml", "rest"])
def test_a_federation_that_cannot_be_made_whole_leaves_nothing_and_can_be_made_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool, failing: str) -> None:
    """A disk that was full once: the second try heard that the folder is not empty, and `init --if-missing` took half a
    federation for a whole one."""
    folder = tmp_path / "lung"
    if was_there:
        folder.mkdir()

    def full(*arguments: object, **keywords: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def make() -> None:
        with new_federation(folder, name="lung", address="hub:8443") as made:
            Ledger(made.ledger).close()
            (made.authority / "ca.key").write_bytes(b"half")
            if failing == "rest":
                full()

    with monkeypatch.context() as patch:
        if failing == "federation.toml":
            patch.setattr(folder_module, "write_durably", full)
        with pytest.raises(OSError, match="No space"):
            make()
    assert folder.is_dir() == was_there
    assert not was_there or list(folder.iterdir()) == []
    with new_federation(folder, name="lung", address="hub:8443") as made:
        Ledger(made.ledger).close()
    assert open_federation(folder) == made
    with pytest.raises(UsageError, match="not empty"), new_federation(folder, name="lung", address="hub:8443"):
        pass
    assert made.ledger.exists(), "what another call has made stays"


def _init_killed(root: Path, number: int) -> subprocess.CompletedProcess[str]:
    """`coordinator init` of root/hub that is killed before its n-th operation on a file; 0: see `killed_init.py`."""
    return subprocess.run([sys.executable, KILLED_INIT, root, str(number)], capture_output=True, text=True, check=False,
                          timeout=300)


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.slow
def test_init_killed_at_any_moment_leaves_nothing_that_is_taken_for_a_federation(tmp_path: Path) -> None:
    """Before, `federation.toml` came first: after a kill `init --if-missing` said that the federation was there, and
    `serve` ended with a missing key in every start of the container."""
    done, unfinished = _init_killed(tmp_path, 0), 0
    assert done.returncode == 0, done.stderr
    assert _init_killed(tmp_path / "earnest", 30).returncode == -signal.SIGKILL
    assert _names(tmp_path / "earnest" / "hub") == _names(tmp_path / "hub30"), "the copies are what a kill leaves"
    for number in range(1, int(done.stdout) + 1):
        folder = tmp_path / f"hub{number}"
        if not (folder / "federation.toml").exists():
            begun = folder.exists() and any(folder.iterdir())
            with pytest.raises(UsageError, match="has not finished there" if begun else "no federation.toml"):
                open_federation(folder)
            unfinished += begun
            cli.init("lung", address="hub:8443", folder=folder, if_missing=True, as_json=True)
            assert sorted(path.name for path in folder.iterdir()) == [
                "authority", "federation.toml", "ledger.sqlite", "payloads", "spool", "studies"]
        whole = open_federation(folder)
        assert load_authority(whole.authority).federation == "lung"
        with contextlib.closing(Ledger(whole.ledger)) as ledger:
            assert ledger.studies() == []
        assert load_study(whole.studies / "first" / "study.toml")
    assert unfinished > 20, "most of the kills hit it at work"


def test_what_somebody_put_beside_half_a_federation_is_not_cleared_away(tmp_path: Path) -> None:
    assert _init_killed(tmp_path, 20).returncode == -signal.SIGKILL
    folder = tmp_path / "hub"
    (folder / "photo").write_text("mine")
    with pytest.raises(UsageError, match=r"not empty: it holds photo"):
        create_federation(folder, name="lung", address="hub:8443")
    assert (folder / "photo").read_text() == "mine"
    (folder / "photo").unlink()
    (folder / "studies" / "first" / "data").mkdir(parents=True)
    (folder / "studies" / "first" / "study.toml").write_text("edited")
    with pytest.raises(UsageError, match=r"it holds studies/first/study.toml"):
        create_federation(folder, name="lung", address="hub:8443")


def test_two_that_make_the_same_federation_do_not_clear_each_others_work_away(tmp_path: Path) -> None:
    with new_federation(tmp_path / "hub", name="lung", address="hub:8443") as made:
        (made.authority / "ca.key").write_bytes(b"key")
        with pytest.raises(UsageError, match="Another 'coordinator init' is at work"):
            create_federation(tmp_path / "hub", name="lung", address="hub:8443")
        assert (made.authority / "ca.key").read_bytes() == b"key"


def test_init_for_scripts_refuses_half_a_federation_of_an_earlier_version(federation: Federation) -> None:
    with pytest.raises(StorageDamaged, match=r"ca\.pem: no such file"):
        cli.init("lung", folder=federation.folder, if_missing=True)


def test_root_makes_no_federation_in_a_folder_of_another_account(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of one there would be taken for a whole one by `init --if-missing`."""
    folder = given_to_another_account(tmp_path / "lung", monkeypatch)
    before = folder.stat().st_mode
    with pytest.raises(UsageError, match="this is root"):
        create_federation(folder, name="lung", address="hub:8443")
    assert (list(folder.iterdir()), folder.stat().st_mode) == ([], before)


@pytest.mark.parametrize(("name", "address", "word"), [
    ("Lung", "hub:8443", "lower-case"), ("", "hub:8443", "lower-case"), ("a" * 64, "hub:8443", "63"),
    ("../x", "hub:8443", "lower-case"), ("lung", "hub", "host:port"), ("lung", "hub:0", "host:port"),
    ("lung", "hub:65536", "host:port"), ("lung", "hub:65535", "below 65535"), ("lung", "a b:1", "host:port"),
    ("lung", 'hub"\n[x]\n:1', "host:port")])
def test_names_and_addresses_that_cannot_be_make_no_folder(tmp_path: Path, name: str, address: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        create_federation(tmp_path / "new", name=name, address=address)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("before", "after", "words"), [
    ("listen", "lissten", ("[address]", "'lissten'", "'listen'")),
    ("[limits]", "[limit]", ("'limit'", "'limits'")),
    ("[federation]\n", "", ("unknown key 'name'",)),
    ('[federation]\nname = "lung"\n', "", ("[federation] is missing", 'name = "lung"')),
    ('name = "lung"', "name = 3", ("[federation] name", "text in quotes")),
    ('name = "lung"', 'name = "Lung"', ("[federation]", "lower-case")),
    ('"[::]"\n', '"[::]:"\n', ("listen", "127.0.0.1:8443")),
    ("# uploads = 4", "uploads = 0", ("[limits]", "at least 1")),
    ("# uploads = 4", 'uploads = "4"', ("[limits] uploads", "whole number")),
    ('# invitation_life = "24h"', 'invitation_life = "a day"', ("[limits]", "invitation_life", "'a day'", '"2h"')),
    ('# invitation_life = "24h"', 'invitation_life = "0s"', ("[limits]", "above 0")),
    ('# invitation_life = "24h"', 'invitation_life = "90d"', ("[limits]", "invitation_life", 'at most "30d"')),
    ('# silent_after = "3m"', 'silent_after = "5s"', ("[limits]", "silent_after", "10s at least")),
    ('# silent_after = "3m"', 'silent_after = "soon"', ("[limits]", "silent_after", "'soon'")),
    ('public = "hub.example:8443"', 'public = "hub.example:8443"\nenrollment = "hub.example:8443"',
     ("[address]", "different ports")),
    ("[address]", "[address", ("not valid TOML", "line")),
])
def test_a_mistake_in_federation_toml_is_one_line_with_its_place(federation: Federation, before: str, after: str,
                                                                 words: tuple[str, ...]) -> None:
    path = federation.folder / "federation.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(BadConfiguration) as caught:
        open_federation(federation.folder)
    line = caught.value.line()
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_a_folder_without_the_file_says_how_to_get_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a federation folder") as caught:
        open_federation(tmp_path)
    assert "coordinator init" in caught.value.remedy


@each_of(("public", "enrollment", "listen", "work", "enrolling"), [
    ("hub:8443", "", "[::]", "[::]:8443", "[::]:8444"),
    ("hub:443", "hub:9000", "127.0.0.1", "127.0.0.1:443", "127.0.0.1:9000"),
    ("hub:443", "hub:444", "[::]:9443", "[::]:9443", "[::]:9444"),
    ("[2001:db8::1]:8443", "", "0.0.0.0", "0.0.0.0:8443", "0.0.0.0:8444"),
])
def test_where_the_coordinator_listens_follows_from_where_silos_connect(public: str, enrollment: str, listen: str,
                                                                        work: str, enrolling: str) -> None:
    address = AddressSettings(public=public, enrollment=enrollment, listen=listen)
    assert (address.listen_address, address.listen_enrollment_address) == (work, enrolling)
    assert address.listen_port == int(work.rpartition(":")[2])


def _try_lock(folder: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        with open_federation(folder).lock():
            answers.put("held")
    except SemisiloError as error:
        answers.put(error.line())


@pytest.mark.slow
def test_two_serves_never_run_over_one_folder_and_a_killed_one_is_no_obstacle(federation: Federation) -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    with federation.lock():
        other = context.Process(target=_try_lock, args=(federation.folder, answers))
        other.start()
        line = answers.get(timeout=300)
        other.join()
        assert f"process {multiprocessing.current_process().pid}" in line
        assert "Stop it first" in line
    with federation.lock():  # the file is still there; the kernel forgot the lock with its holder
        pass


def test_a_glance_at_the_lock_keeps_no_serve_from_starting(federation: Federation) -> None:
    """A health check takes it shared for a moment; one at that moment ended `serve` as if another ran."""
    with federation.lock():
        pass
    handle = os.open(federation.folder / ".lock", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    glance = threading.Timer(0.1, os.close, [handle])
    glance.start()
    with federation.lock():
        glance.join()


def test_a_serve_whose_folder_takes_nothing_is_told_from_one_that_hangs_or_has_ended(
        federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert federation.silenced() == "", "nobody ever served"
    with federation.lock():
        assert federation.silenced() == "", "it could write"
        assert not list(federation.folder.glob(".writable*"))

        def refused(path: Path, content: bytes) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", refused)
            assert "Read-only file system. Let the disk be written" in federation.silenced()
    monkeypatch.setattr(Path, "write_bytes", refused)
    assert federation.silenced() == "", "nobody serves"


def test_the_study_of_a_new_federation_points_to_places_inside_its_folder(federation: Federation) -> None:
    config = load_study(create_study(federation, "first"))
    assert not Path(config.data.labelled).is_absolute()
