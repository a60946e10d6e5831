"""The allocator of a light process: what one chunk gave back, the next one gets."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from semisilo.common.process.allocator import settle_allocator
if sys.argv[1] == "settled":
    assert settle_allocator()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    pieces = [bytearray(600_000 + 1000 * number) for number in range(8)]
use()
before = faults()
for _ in range(50):
    use()
print(faults() - before)
"""


def page_faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_chunks_that_come_and_go_cost_no_new_pages() -> None:
    """50 times 4.8 MB are 60 000 pages; glibc by itself fetches many of them anew each time."""
    assert page_faults("settled") < 2000 < page_faults("as it is")
