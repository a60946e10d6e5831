"""What the adapters of all systems share: their options and the shape of their result."""

from __future__ import annotations

import argparse
import itertools
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Options", "Result", "run_adapter", "seconds_between"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What one measurement is asked to do."""

    silos: int
    parameters: int
    density: float
    """Share of the elements that a silo changes: 1.0 or 0.1."""
    rounds: int
    """Timed rounds; one more, the first, warms up."""
    json: Path
    """Where the result goes."""
    folder: Path
    """For everything that the system writes; made anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One measured cell of the table."""

    system: str
    version: str
    seconds_per_round: list[float]
    """Without the first round."""
    warm_up_seconds: float
    """The first round."""
    up_bytes: float
    """Wire bytes from a silo per round, TLS and HTTP included."""
    down_bytes: float
    """The same to a silo."""
    coordinator_peak_bytes: int
    """Sum of the VmHWM of the server-side processes that hold the model."""
    coordinator_import_bytes: int
    """The same, before a model was there."""
    silo_peak_bytes: int
    """Of the silo that took most: the sum of the VmHWM of its processes."""
    notes: list[str] = field(default_factory=list)


def run_adapter(measure: Callable[[Options], Result], arguments: Sequence[str] | None = None) -> None:
    """Reads the options, measures and writes the result; SIGTERM ends it as Ctrl-C does, with everything cleaned up."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--silos", type=int, required=True)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--density", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = Options(**vars(parser.parse_args(arguments)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = measure(options)
    part = options.json.with_suffix(".part")
    part.write_text(json.dumps(asdict(result), indent=1))
    part.rename(options.json)


def seconds_between(moments: Sequence[float]) -> list[float]:
    """The times from each moment to the next."""
    return [later - earlier for earlier, later in itertools.pairwise(moments)]
