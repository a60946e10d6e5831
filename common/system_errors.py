"""What the operating system refuses for now: recognised in one place, and said in one line with its remedy.

A full, read-only or failing disk, a right that is missing, too many open files, threads or processes: none of these
says anything about a study, a task or a silo. Whoever meets one puts its work off and tries again until it is well; see
docs/decisions/0038-errors-of-the-system-put-work-off.md.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from semisilo.common.errors import DiskFull, SystemTrouble

__all__ = ["SYSTEM_ERRORS", "account_name", "explained", "explained_text", "gone", "is_error_of_code", "is_shortage",
           "may_be_of_one_file", "remedy_of", "source_trouble"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CHECK_DISK = "Check the disk and the log of the system"
_RIGHTS = "This user needs the right to it"
_FILES = "Close other programs, or raise the limit of open files (ulimit -n, LimitNOFILE of systemd)"
_PROCESSES = ("Close other programs, or raise the limit of processes and threads (ulimit -u, TasksMax of systemd, pids"
              " of a container)")
_NO_THREAD = "can't start new thread"
"""All that Python says where the system refuses one."""
SYSTEM_ERRORS: Final = (SystemTrouble, OSError, RuntimeError)
"""As what the system's errors arrive; which of them are such, `explained` says. A RuntimeError is one where a thread
could not be started."""
_REMEDIES = {
    **dict.fromkeys(_FULL, "Free some space"),
    errno.EFBIG: "Raise the limit of the size of files (ulimit -f), or use another disk",
    errno.EROFS: "Let the disk be written, or choose another place",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "Free some memory",
    **dict.fromkeys((errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE), _CHECK_DISK),
}
"""By which errors of any call are known to be such, also where no file is named."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_AWAY = tuple(getattr(errno, name) for name in (
    "EIO", "ENXIO", "ENODEV", "ESTALE", "ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH",
    "ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "ESHUTDOWN", "EREMOTEIO") if hasattr(errno, name))
"""What a call says of a file whose disk or share is away or fails."""
_ENDED = (errno.ECONNRESET, errno.ECONNREFUSED)
"""Those of them that are a file's only where one is named: else they are of the socket between a process and its
compute process. All other connections say what befalls them in errors of the catalogue."""
_CHECK_SHARE = "Check that the disk or the share is there and can be read"
_SAYS = {os.strerror(number): number for number in _REMEDIES}


def explained(error: BaseException, where: Path | None = None) -> SystemTrouble | None:
    """The error of the catalogue for what the system refuses for now; None for every other error.

    Args:
        where: the file or folder, for an error that does not name it.
    """
    if isinstance(error, SystemTrouble):
        return error
    if _is_of_threads(error):
        return SystemTrouble("No further thread can be started.", remedy=f"{_PROCESSES}.")
    if not isinstance(error, OSError):
        return None
    place, number = str(error.filename or where or ""), error.errno
    if number is not None and (number in _REMEDIES or (number in _AWAY and (place or number not in _ENDED))):
        return _trouble(number, place)
    return None


def explained_text(error: BaseException) -> SystemTrouble | None:
    """The same, also for libraries such as torch, which put what the system says into the text of an error of theirs,
    or raise theirs from it."""
    cause: BaseException | None = error
    while cause is not None:
        if (found := explained(cause)) is not None:
            return found
        cause = cause.__cause__
    number = _number_in(error)
    return _trouble(number, "") if number else None


def is_shortage(error: BaseException) -> bool:
    """Whether the system was short of files, memory, threads or processes, also where a library says so in words of its
    own."""
    cause: BaseException | None = error
    while cause is not None:
        if _is_of_threads(cause) or (isinstance(cause, OSError) and cause.errno in _SHORTAGES):
            return True
        cause = cause.__cause__
    return _number_in(error) in _SHORTAGES


def _is_of_threads(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def _number_in(error: BaseException) -> int:
    """The error of the system that a text tells of; 0 for none."""
    return next((number for text, number in _SAYS.items() if text in str(error)), 0)


def source_trouble(error: BaseException, where: Path) -> SystemTrouble | None:
    """What keeps a file of images from being read for now and says nothing of the file: too many open files, too little
    memory for them, a disk or a share that has gone away. None for everything else, also for a missing right.

    Args:
        error: also one of a library, raised from or while handling the system's.
    """
    for cause in _causes(error):
        if isinstance(cause, SystemTrouble):
            return cause
        if _is_of_threads(cause) or (isinstance(cause, OSError) and cause.errno in _SHORTAGES):
            return explained(cause, where)
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno in _AWAY:
            return SystemTrouble(f"{cause.filename or where}: {os.strerror(cause.errno)}.", remedy=f"{_CHECK_SHARE}.")
    return None


def may_be_of_one_file(error: BaseException) -> bool:
    """Whether `source_trouble` may be about a single file after all, such as one with a bad sector: others tell."""
    return any(isinstance(cause, OSError) and cause.errno == errno.EIO for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from or while handling, the last one first."""
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def gone(where: Path) -> SystemTrouble:
    """The error for files that were listed a moment ago and are not there any more, by the first of them: a share that
    is unmounted leaves an empty folder."""
    return SystemTrouble(f"{where}: was there a moment ago and is not any more.", remedy=f"{_CHECK_SHARE}.")


def remedy_of(number: int | None, *, of_file: bool = False, path: str = "") -> str:
    """What a person can do about an error of the system, a clause without its end; empty for other errors.

    Args:
        of_file: whether it is known to be of one: a share that is away says what a broken connection does.
        path: the file or folder, to say whose it is where a right is missing.
    """
    found = _REMEDIES.get(number or 0, _CHECK_SHARE if of_file and number in _AWAY else "")
    return (_whose(path) if found is _RIGHTS and path else "") or found


def account_name(user: int) -> str:
    """What the machine calls an account; its number where it has no name, as in a container."""
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _whose(path: str) -> str:
    """The remedy that names the owner of a file, or of the folder in which it is to be made or cannot be reached; empty
    where that is this user. Files that were put back as root are not told from others by their names."""
    if not hasattr(os, "geteuid"):
        return ""
    place = path
    try:
        try:
            owner = os.stat(place).st_uid
        except FileNotFoundError:
            place = os.path.dirname(path) or "."
            owner = os.stat(place).st_uid
        except PermissionError:  # the highest folder that cannot be entered
            place = next(str(each) for each in reversed(Path(path).parents) if not os.access(each, os.X_OK))
            owner = os.stat(place).st_uid
    except (OSError, StopIteration):
        return ""
    if owner == os.geteuid():
        return ""
    what = "It" if place == path else place
    return (f"{what} belongs to {account_name(owner)}, and this user, {account_name(os.geteuid())}, needs the right to"
            f" {'it' if place == path else 'what is there'}")


def _trouble(number: int, where: str) -> SystemTrouble:
    kind = DiskFull if number in _FULL else SystemTrouble
    return kind(f"{where}: {os.strerror(number)}." if where else f"{os.strerror(number)}.",
                remedy=f"{remedy_of(number, of_file=True, path=where)}.")


def is_error_of_code(error: BaseException) -> bool:
    """Whether somebody's code has raised an exception: any error, and SystemExit or KeyboardInterrupt unless a signal
    has brought them about, or semisilo itself.

    A script calls `sys.exit()` as it stands; imported, or called as a network, it would end semisilo without a word, or
    look like Ctrl-C.
    """
    if isinstance(error, Exception):
        return True
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is None or str(frames.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "semisilo":
        return False  # such as the handler of SIGTERM
    if isinstance(error, SystemExit):
        return True
    import dis  # later: hardly anybody comes here

    # Ctrl-C comes to whatever Python runs at that moment, and never to a line that raises something.
    return isinstance(error, KeyboardInterrupt) and dis.opname[
        frames.tb_frame.f_code.co_code[frames.tb_lasti]] == "RAISE_VARARGS"
