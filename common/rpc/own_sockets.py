"""The sockets of this process, found also when it may open no further file.

Tests: tests/common/rpc/test_own_sockets.py.
"""

from __future__ import annotations

import os
import resource
import stat
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["own_sockets"]

_MOST_DESCRIPTORS = 65_536
"""So many are tried one by one where there is no list; a system that allows more does not run out of them."""


def own_sockets() -> dict[int, list[int]]:
    """Inode -> descriptors. Others may close them meanwhile, and open what they like under the same number."""
    found: dict[int, list[int]] = defaultdict(list)
    for descriptor in _descriptors():
        try:
            status = os.fstat(descriptor)
        except OSError:  # closed meanwhile, as is the list's own descriptor
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino].append(descriptor)
    return found


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir("/proc/self/fd"))
    except OSError:  # reading a folder takes a descriptor, and there is none
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return range(_MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _MOST_DESCRIPTORS))
