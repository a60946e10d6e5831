"""A proxy's word for who acts on the page; its own token is in `semisilo.common.page.token`.

Tests: tests/coordinator/page/test_operators.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.datastructures import Headers

from semisilo.common.text.logs import printable
from semisilo.coordinator.ledger.oversight.operators import is_operator_name

__all__ = ["PAGE_TOKEN", "LoginProxy"]

_LOG = logging.getLogger("semisilo.coordinator")
PAGE_TOKEN = "page token"
"""Who acts, as the audit trail has it, when it is whoever has the page's token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginProxy:
    """A reverse proxy with a login of its own, such as one for OIDC: it says who acts, in a header."""

    header: str = ""
    """Empty: nobody's word is taken."""
    addresses: tuple[str, ...] = ()
    """From where it comes; a header from elsewhere is not looked at."""

    _said: set[str] = field(default_factory=set, compare=False)
    """Why a word was not taken, as the log has it already."""

    def user(self, caller: str, headers: Headers) -> str | None:
        """Who acts; None when no proxy says so, and when it says two names or none that can be one: the log then says
        why, once."""
        if not self.header:
            return None
        names, where = headers.getlist(self.header), _address(caller)
        if where is None or where not in map(_address, self.addresses):
            if names:
                self._say("elsewhere", f"{printable(caller, limit=60)} sends the header {self.header}, and is not in"
                          " trusted_proxies: it is not looked at")
            return None
        if len(names) == 1 and is_operator_name(names[0]):
            return names[0]
        if not names:
            self._say("none", f"the proxy at {caller} has sent no header {self.header} with an action")
        elif len(names) > 1:
            self._say("several", f"the proxy at {caller} has sent {len(names)} headers {self.header}: none of them"
                      " counts")
        else:
            self._say("not a name", f"the proxy at {caller} has named {printable(names[0], limit=80)!r} in"
                      f" {self.header}, which is not an operator's name: at most 64 letters, digits and . _ @ + -. Have"
                      " it send another claim, such as the mail address")
        return None

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            _LOG.warning("page: %s (this is said once; [page] in federation.toml names header and proxies)", text)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """What a socket that listens for both kinds calls ::ffff:10.0.0.5 is 10.0.0.5. None for what is no address."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
