"""Who may work in the folder of a federation or a silo.

Root in the folder of another account is refused, before it leaves files there that the owner cannot use; an account
that may not enter the folder hears whose it is.

Tests: tests/common/process/test_folder_owner.py.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import sys
from pathlib import Path

from semisilo.common.errors import UsageError
from semisilo.common.system_errors import account_name, explained

__all__ = ["check_may_enter", "refuse_for_root"]


def check_may_enter(folder: Path) -> None:
    """Nothing for a folder that this user may list and enter, and for one that is not there.

    Raises: SystemTrouble, with whose it is: a folder that was put back as root is no mistake in the command, and works
        once its owner is right.
    """
    try:
        os.stat(folder)
    except PermissionError:
        may = False
    except OSError:
        return
    else:
        may = os.access(folder, os.R_OK | os.X_OK)
    if may:
        return
    trouble = explained(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)))
    assert trouble is not None
    raise trouble


def refuse_for_root(folder: Path) -> None:
    """Nothing for other accounts, for a folder that is not there, and where root's files get the folder's owner.

    Args:
        folder: of a federation or a silo; or the one in which that is about to be made.
    Raises: UsageError, with the command as the owner gives it.
    """
    if os.name != "posix" or os.geteuid() != 0:
        return
    try:
        found = folder.stat()
    except OSError:
        return
    if found.st_uid == 0 or _owner_of_new_files(folder) in (None, found.st_uid):
        return
    raise UsageError(
        f"{folder} belongs to {account_name(found.st_uid)}, and this is root: what root writes there, its owner cannot"
        " use.",
        remedy=f"Run: {_as_owner(found.st_uid, found.st_gid)}  (in a container: start it with --user"
               f" {found.st_uid}:{found.st_gid})")


def _owner_of_new_files(folder: Path) -> int | None:
    """Network folders and those of desktops may make another account of root; None where root may write nothing."""
    probe = folder / f".owner.{secrets.token_hex(4)}.tmp"
    try:
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(handle).st_uid
    finally:
        os.close(handle)
        probe.unlink(missing_ok=True)


def _as_owner(user: int, group: int) -> str:
    import pwd

    command = shlex.join([sys.argv[0], *sys.argv[1:]])
    try:
        return f"runuser -u {shlex.quote(pwd.getpwuid(user).pw_name)} -- {command}"
    except KeyError:
        return f"setpriv --reuid {user} --regid {group} --clear-groups -- {command}"
