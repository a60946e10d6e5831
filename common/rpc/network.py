"""Who an address belongs to, as far as limits go.

Tests: tests/coordinator/rpc/test_stranger_calls.py.
"""

from __future__ import annotations

import functools
import ipaddress

__all__ = ["network_of"]


@functools.lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """The IPv4 address, or the /64 network of an IPv6 one, which is one customer's; what is no address as it is.

    Asked at every call for a task, and of every connection twice a second.
    """
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)
