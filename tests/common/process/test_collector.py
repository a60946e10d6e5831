"""The collector of a light process: full collections are few and small, and cycles still go."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import gc, json, sys, weakref
from semisilo.common.process.collector import settle_collector
stays = [[number] for number in range(50_000)]
if sys.argv[1] == "settled":
    settle_collector()
looked_at = len(gc.get_objects())
full, young = [], [0]
def noted(phase, info):
    if phase == "start" and info["generation"] == 2:
        full.append(1)
    elif phase == "start" and len(young) < 20:
        young.append(len(gc.get_objects(generation=0)))
gc.callbacks.append(noted)
class Node:
    pass
first = Node()
first.itself = first
gone = weakref.ref(first)
del first
kept = [[number] for number in range(400_000)]
more = []
for number in range(2_000_000):
    more.append([number])
    if len(more) == 1000:
        more = []
print(json.dumps({"looked_at": looked_at, "full": len(full), "young": max(young), "gone": gone() is None}))
"""


def found(how: str) -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True)
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_what_was_made_at_the_start_is_never_looked_at_again_and_cycles_are_still_freed() -> None:
    plain, settled = found("plain"), found("settled")
    assert plain["looked_at"] > 50_000 > settled["looked_at"]
    assert settled["full"] < plain["full"]
    assert settled["gone"]
    assert settled["young"] < 10_000, "with 20,000 a collection took as long as ten answers"
