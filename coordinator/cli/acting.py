"""Who runs a command: it stands with everything that the command writes into the audit trail.

Tests: tests/coordinator/cli/test_audit.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from semisilo.common.process.account import account

if TYPE_CHECKING:
    from semisilo.coordinator.federation.folder import Federation
    from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["acting_ledger", "command_user"]


def command_user() -> str:
    """The account as events have it, "cli:alice"."""
    return f"cli:{account()}"


@contextlib.contextmanager
def acting_ledger(federation: Federation) -> Iterator[Ledger]:
    """The ledger of a federation, in which this account acts."""
    from semisilo.coordinator.ledger.ledger import Ledger

    with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.acted_by(command_user()):
        yield ledger
