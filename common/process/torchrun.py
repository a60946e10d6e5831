"""Whether torchrun has started this process as one of several, and which one it is: what stands in its environment.

Tests: tests/silo/compute/test_torchrun.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from semisilo.common.errors import UsageError

__all__ = ["TOKEN", "Place", "is_under_torchrun", "place"]

TOKEN = "SEMISILO_TORCHRUN_TOKEN"
"""Variable of the environment with what the processes of one silo know each other by; `silo join` sets it for its
compute process where nobody has."""

_REMEDY = "Start all processes with torchrun: torchrun --standalone --nproc-per-node 2 --no-python silo join"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One of the processes of a torchrun."""

    rank: int
    """From 0; process 0 does the work that is not shared."""
    size: int
    """Processes on all machines, from 2."""
    local_rank: int
    """On this machine, from 0: which of its GPUs is this process's."""
    local_size: int
    """Processes on this machine."""
    address: str
    """Of the machine on which the first torchrun runs."""
    port: int
    """On which processes find each other there."""
    kept_by_torchrun: bool
    """Whether torchrun itself listens there; else process 0 does."""
    token: str = field(default="", repr=False)
    """See `TOKEN`; empty where it is not known yet."""


def is_under_torchrun(environment: Mapping[str, str] | None = None) -> bool:
    """Whether torchrun has started this process, be it as the only one: it takes any status but 0 for a failure, and
    starts its processes again."""
    return "TORCHELASTIC_RUN_ID" in (os.environ if environment is None else environment)


def place(environment: Mapping[str, str] | None = None) -> Place | None:
    """Which process of a torchrun this is; None where it was started otherwise, or is the only one.

    Raises: UsageError when the environment says so only in part.
    """
    found = os.environ if environment is None else environment
    if not is_under_torchrun(found):
        return None
    try:
        rank, size, local_rank, local_size, port = (int(found[name]) for name in (
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"))
        address = found["MASTER_ADDR"]
    except KeyError as error:
        raise UsageError(f"torchrun has not set ${error.args[0]}.", remedy=_REMEDY) from None
    except ValueError as error:
        raise UsageError(f"A variable of torchrun is not a number: {error}.", remedy=_REMEDY) from None
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise UsageError(f"torchrun says that this is process {rank} of {size}, {local_rank} of {local_size} here.",
                         remedy=_REMEDY)
    return None if size == 1 else Place(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, address=address, port=port,
        kept_by_torchrun=found.get("TORCHELASTIC_USE_AGENT_STORE") == "True", token=found.get(TOKEN, ""))
