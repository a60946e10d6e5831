"""Who is to blame where silos of a secure sum complain of one another: a coordinator cannot look into what they send.

Tests: tests/coordinator/secure_aggregation/test_complaints.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

__all__ = ["at_odds"]


def at_odds(complaints: Collection[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The silos that sums should go on without, so that as few of the others as possible are still at odds.

    A complaint says that one of two silos is at fault, not which. One at odds with two others or more, and with more
    than any of these is, is left out; then once more, without its complaints. So a silo that lies about all others goes
    itself, and two that accuse each other both stay.

    Args:
        complaints: (silo, the one that it complains of); in which direction does not matter, nor how often.
    Returns: silo -> those that it is at odds with, both in byte order.
    """
    others: dict[str, set[str]] = defaultdict(set)
    for one, other in complaints:
        if one != other:
            others[one].add(other)
            others[other].add(one)
    left_out: dict[str, tuple[str, ...]] = {}
    while found := [silo for silo, near in others.items()
                    if len(near) > max(1, *(len(others[each]) for each in near))]:
        silo = min(found, key=lambda each: (-len(others[each]), each.encode()))
        left_out[silo] = tuple(sorted(others[silo], key=str.encode))
        for each in others.pop(silo):
            others[each].discard(silo)
        others = defaultdict(set, {each: near for each, near in others.items() if near})
    return dict(sorted(left_out.items(), key=lambda item: item[0].encode()))
