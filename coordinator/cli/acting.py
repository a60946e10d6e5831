"""Who runs a command: it stands with everything that the command writes into the audit trail.

Tests: tests/coordinator/cli/test_audit.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from semisilo.common.text.logs import printable

if TYPE_CHECKING:
    from semisilo.coordinator.federation.folder import Federation
    from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["account", "acting_ledger", "command_user"]


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


def command_user() -> str:
    """The account as events have it, "cli:alice"."""
    return f"cli:{account()}"


@contextlib.contextmanager
def acting_ledger(federation: Federation) -> Iterator[Ledger]:
    """The ledger of a federation, in which this account acts."""
    from semisilo.coordinator.ledger.ledger import Ledger

    with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.acted_by(command_user()):
        yield ledger
