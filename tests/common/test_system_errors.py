"""What the operating system refuses for now is told from everything else, and said in one line."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from semisilo.common.errors import BadData, DiskFull, SemisiloError, SystemTrouble
from semisilo.common.system_errors import SYSTEM_ERRORS, explained, explained_text, is_shortage, remedy_of
from tests.each_of import each_of


@each_of(("number", "kind"), [
    (errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EROFS, SystemTrouble), (errno.EACCES, SystemTrouble),
    (errno.EIO, SystemTrouble), (errno.EMFILE, SystemTrouble), (errno.ENFILE, SystemTrouble),
    (errno.EAGAIN, SystemTrouble)])
def test_the_line_says_what_is_wrong_where_and_how_to_mend_it(number: int, kind: type[SemisiloError]) -> None:
    found = explained(OSError(number, "as the system says it", "/hub/spool/1"), Path("/elsewhere"))
    assert type(found) is kind
    assert found.retry
    assert found.line().startswith("/hub/spool/1: ")
    assert remedy_of(number)
    assert found.remedy == f"{remedy_of(number)}."


@each_of("number", [errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ECONNABORTED, errno.ESHUTDOWN])
def test_what_a_share_says_that_is_away_is_an_error_of_the_system(number: int) -> None:
    found = explained(OSError(number, os.strerror(number), "/hub/spool/1"))
    assert found is not None
    assert found.line() == (f"/hub/spool/1: {os.strerror(number)}. Check that the disk or the share is there and can be"
                            " read.")
    assert explained(OSError(number, os.strerror(number))) is not None  # as to read or write an open file says it
    assert remedy_of(number) == ""  # of a connection it is another matter
    assert remedy_of(number, of_file=True)


def test_of_a_connection_that_has_ended_the_share_is_not_to_blame() -> None:
    assert explained(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")) is None
    assert explained(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer", "/hub/spool/1")) is not None
    assert explained(TimeoutError()) is None


def test_a_file_that_the_error_does_not_name_is_named_by_whoever_used_it() -> None:
    found = explained(OSError(errno.EIO, "Input/output error"), Path("/hub/spool"))
    assert found is not None
    assert found.text == "/hub/spool: Input/output error."


@each_of("error", [
    FileNotFoundError(errno.ENOENT, "No such file"), OSError("without a number"), TimeoutError(), KeyError("EIO"),
    BadData("Input/output error")])
def test_what_waiting_does_not_mend_is_no_error_of_the_system(error: Exception) -> None:
    assert explained(error) is None
    assert remedy_of(getattr(error, "errno", None)) == ""


def test_an_error_that_a_library_has_put_into_its_own_words_is_found() -> None:
    assert explained_text(RuntimeError("unable to open file </s> in read-only mode: Too many open files (24)"))
    assert explained_text(ImportError("libx.so: cannot open shared object file: Too many open files"))
    assert explained_text(RuntimeError("shape mismatch")) is None
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/scratch/x")
        except OSError as error:
            raise RuntimeError("could not be written") from error
    except RuntimeError as error:
        found = explained_text(error)
    assert isinstance(found, DiskFull)
    assert found.text.startswith("/scratch/x: ")


def test_a_thread_that_the_system_refuses_is_one_though_python_gives_it_no_number(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")  # as CPython says it

    begins = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    monkeypatch.setattr(threading, begins, refused)  # the former since Python 3.13
    with pytest.raises(SYSTEM_ERRORS) as caught:
        threading.Thread(target=print).start()
    found = explained(caught.value)
    assert found is not None
    assert found.retry
    assert "TasksMax" in found.line()
    assert is_shortage(caught.value)
    assert explained(RuntimeError("can't start")) is None


def test_a_shortage_is_told_from_what_is_wrong_with_a_file() -> None:
    assert is_shortage(OSError(errno.EMFILE, "Too many open files"))
    assert is_shortage(RuntimeError("unable to open file </s> in read-only mode: Too many open files (24)"))
    with pytest.raises(SystemTrouble) as caught:
        raise SystemTrouble("/a: Nothing.") from OSError(errno.ENFILE, "Too many open files in system")
    assert is_shortage(caught.value)
    assert not is_shortage(OSError(errno.EACCES, "Permission denied"))
    assert not is_shortage(RuntimeError("shape mismatch"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another account")
@each_of("what", ["file", "new file", "folder"])
def test_a_right_that_is_missing_is_told_with_whose_it_is(what: str, tmp_path: Path) -> None:
    """As after a restore by root, where every file looks like the others."""
    folder = tmp_path / what
    folder.mkdir()
    path = {"file": folder / "there", "new file": folder / "new", "folder": folder}[what]
    if what == "file":
        path.touch()
    whose = folder if what == "new file" else path
    os.chown(whose, 54321, 54321)
    found = explained(PermissionError(errno.EACCES, "Permission denied", str(path)))
    assert found is not None
    named = f"{folder} belongs" if what == "new file" else "It belongs"
    assert found.line().startswith(f"{path}: Permission denied. {named} to user 54321, and this user, root, needs the")
    assert remedy_of(errno.EACCES, path=str(path)) == found.remedy.removesuffix(".")
    os.chown(whose, 0, 0)
    assert remedy_of(errno.EACCES, path=str(path)) == remedy_of(errno.EACCES)
