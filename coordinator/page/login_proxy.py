"""A proxy's word for who acts on the page; its own token is in `semisilo.common.page.token`.

Tests: tests/coordinator/page/test_operators.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers

from semisilo.coordinator.ledger.oversight.operators import is_operator_name

__all__ = ["PAGE_TOKEN", "LoginProxy"]

PAGE_TOKEN = "page token"
"""Who acts, as the audit trail has it, when it is whoever has the page's token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginProxy:
    """A reverse proxy with a login of its own, such as one for OIDC: it says who acts, in a header."""

    header: str = ""
    """Empty: nobody's word is taken."""
    addresses: tuple[str, ...] = ()
    """From where it comes; a header from elsewhere is not looked at."""

    def user(self, caller: str, headers: Headers) -> str | None:
        """Who acts; None when no proxy says so, and when it says two names or none that can be one."""
        if not self.header or caller not in self.addresses:
            return None
        names = headers.getlist(self.header)
        return names[0] if len(names) == 1 and is_operator_name(names[0]) else None
