"""Calls of strangers, who have shown no certificate: each has seconds to say what it wants, and a newer one goes before
an older one that says nothing.

Nobody is refused because others wait: of too many that have sent nothing yet, the oldest ends, first of the address
that has most. So whoever sends its request at once is served, however many others keep silent. What has been sent is
counted: an address may send so many requests a second.

Tests: tests/coordinator/rpc/test_stranger_calls.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from urllib.parse import unquote

from semisilo.common.errors import BadPayload, TooManyCalls, Unreachable
from semisilo.common.rpc.network import network_of
from semisilo.coordinator.federation.token_bucket import TokenBucket
from semisilo.coordinator.rpc.endable import Endable

__all__ = ["StrangerCalls", "address_of"]

_REQUEST_SECONDS = 10.0
"""A request is a few kilobytes, and comes with the call."""
_OF_ONE_ADDRESS = 8
"""Calls that have sent nothing yet. Many hospitals may come from one address, behind a proxy of the hub's own."""
_IN_ALL = 64
_AT_ONCE, _PER_SECOND = 50, 5.0
"""Requests of one address. Each costs about a millisecond: the check of a signature."""
_ADDRESSES = 4096
"""So many are remembered."""
_AGAIN_SECONDS = 1.0


class StrangerCalls:
    """Takes the one request of each call."""

    def __init__(self, *, request_seconds: float = _REQUEST_SECONDS,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            request_seconds: how long a call may take to send its request.
            clock: seconds, never steps.
        """
        self._request_seconds = request_seconds
        self._clock = clock
        self._silent: dict[Endable, str] = {}
        """Calls that have sent nothing yet, oldest first -> address."""
        self._rates: dict[str, TokenBucket] = {}
        """By address, the one that called last at the end."""

    async def request(self, requests: AsyncIterator[bytes], peer: str) -> bytes:
        """The request of a call, serialised.

        Args:
            peer: gRPC's `context.peer()`.
        Raises: TooManyCalls when a newer call has taken the place of this one, or the address asks too often;
            Unreachable when nothing comes in time; BadPayload for a call without a request.
        """
        address = address_of(peer)
        self._count(address)
        call = Endable()
        self._make_way(address)
        self._silent[call] = address
        try:
            with call.block():
                async with asyncio.timeout(self._request_seconds):
                    message = await anext(requests, None)
        except TimeoutError:
            raise Unreachable(f"The request did not arrive within {self._request_seconds:.0f} s.",
                              remedy="It is tried again.") from None
        finally:
            self._silent.pop(call, None)
        if message is None:
            raise BadPayload("The call brings no request.")
        return message

    def _make_way(self, address: str) -> None:
        counts = Counter(self._silent.values())
        if counts[address] >= _OF_ONE_ADDRESS:
            most = address
        elif len(self._silent) >= _IN_ALL:
            most = counts.most_common(1)[0][0]
        else:
            return
        oldest = next(call for call, its_address in self._silent.items() if its_address == most)
        del self._silent[oldest]
        oldest.end(TooManyCalls("The coordinator has taken a newer call in the place of this one, which had sent"
                                " nothing yet.", remedy="It is tried again.", retry_seconds=_AGAIN_SECONDS))

    def _count(self, address: str) -> None:
        bucket = self._rates.pop(address, None) or TokenBucket(_AT_ONCE, _PER_SECOND)
        self._rates[address] = bucket
        if len(self._rates) > _ADDRESSES:
            del self._rates[next(iter(self._rates))]
        if wait := bucket.take(self._clock()):
            raise TooManyCalls("The coordinator hears too many requests from this address.",
                               remedy="It is tried again.", retry_seconds=max(wait, _AGAIN_SECONDS))


def address_of(peer: str) -> str:
    """Who calls, as far as limits go (`semisilo.common.rpc.network`).

    Args:
        peer: gRPC's `context.peer()`, for example "ipv4:10.0.0.1:40000".
    """
    return network_of(unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]"))
