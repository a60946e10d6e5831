"""Table [alerts] of federation.toml.

Tests: tests/coordinator/monitoring/alerts/test_webhook.py.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

__all__ = ["AlertSettings", "is_this_machine", "split_webhook"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertSettings:
    """Table [alerts]: who is told what needs a person, beside the operator page."""

    webhook: str = ""
    """Address that `coordinator serve` sends a JSON object to when something needs a person, and when that is over:
    https, or http to this machine. Empty: none. Whoever knows such an address can often post there, so keep this file
    to yourself."""

    def __post_init__(self) -> None:
        if self.webhook:
            split_webhook(self.webhook)


def split_webhook(address: str) -> SplitResult:
    """The parts of a webhook's address.

    Raises: ValueError for one that may not be: plain http to another machine, names and passwords, other schemes.
    """
    if not address.isascii() or not address.isprintable() or " " in address:
        raise ValueError("webhook: write the address in ASCII letters without spaces.")
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"webhook: this is not an address: {error}.") from None
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError('webhook: write an address such as "https://chat.example/hooks/abc".')
    if parts.username is not None or parts.password is not None:
        raise ValueError("webhook: leave name and password out of the address.")
    if parts.fragment:
        raise ValueError("webhook: leave the part after # out.")
    if parts.scheme == "http" and not is_this_machine(host):
        raise ValueError("webhook: http would send it in clear; use https, or an address of this machine.")
    return parts


def is_this_machine(host: str) -> bool:
    """Whether a host of an address is this machine by definition."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
