"""The account that a process runs under: who has given a command, for records of what people have decided.

Tests: tests/common/process/test_account.py.
"""

from __future__ import annotations

import os

from semisilo.common.text.logs import printable

__all__ = ["account"]


def account() -> str:
    """The account of this process: its name as the machine knows it, else its number. With sudo, who has called that.

    The number comes from the kernel and cannot be made up as $USER can; $SUDO_USER counts for root only, who can make
    up anything.
    """
    if not hasattr(os, "getuid"):
        import getpass

        return getpass.getuser()
    import pwd

    user = os.getuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:  # a container's user without a name
        name = str(user)
    caller = os.environ.get("SUDO_USER", "") if user == 0 else ""
    return printable(f"{name} (sudo of {caller})" if caller else name, limit=100)
