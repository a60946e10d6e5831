"""What was measured of rounds at every size, as a page: seconds, processor time, latency, memory, and their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["spread", "write_results"]

Facts = dict[str, Any]


def write_results(everything: Facts, path: Path) -> None:
    """Writes the page.

    Args:
        everything: as run.py collects it.
    """
    machine = everything["machine"]
    lines = [
        "# Scale: rounds of 8 to 1,000 silos", "",
        f"Written by `make bench-scale{' BENCH_ARGS=--quick' if everything['quick'] else ''}`; do not edit. "
        f"{machine['date']}, {machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python"
        f" {machine['python']}, semisilo {machine['version']}; load average before it began"
        f" {machine['load_before']:.1f}. Everything runs on this machine, silos and coordinator, over TLS.", "",
        "The silos are real agents, each with a certificate, a connection and files of its own, which send noise"
        " instead of training; up to 50 share a process. The floor is bare gRPC for Python that carries the same bytes"
        " each way for as many callers and does nothing with them: no files, checksums, record or certificates of"
        " callers. Ratios are of one run; in brackets the lowest and the highest round over the floor's median round."
        " On a busy machine trust ratios and processor time more than seconds.", "",
        "## Rounds", "",
        *_table(("silos", "s a round", "of the floor", "coordinator, ms of processor a silo", "its compute process",
                 "floor's server", "of the floor", "silos, ms a silo", "coordinator's ms against the smallest"),
                [_size(each, everything["sizes"][0]) for each in everything["sizes"]]), "",
        "## Waiting for an answer, and memory", "",
        "One more silo asks `DescribeStudy` every 50 ms while all others wait for a study, and while they work. With"
        " everything on one machine it waits for a processor as well.", "",
        *_table(("silos", "idle p50, ms", "idle p99, ms", "in rounds p50, ms", "in rounds p99, ms", "longest, ms",
                 "kB of the coordinator a silo, waiting", "after the rounds"),
                [_waits(each["semisilo"]) for each in everything["sizes"]]), "",
        "## Registered silos that are away", "",
        *_table(("asked", "registered besides", "s a round", "against none"), _rosters(everything["rosters"])), "",
        "## Large models", "",
        *_table(("silos", "parameters", "s a round", "of the floor", "processor seconds a round: coordinator",
                 "its compute process", "silos", "their compute processes"),
                [_large(each) for each in everything["large"]]), "",
        "## Simulations", "",
        "`simulation.py` says what each figure is.", "",
        *_table(("what", "figure", "value"), [(name, figure, f"{value:.3g}") for name, figures in
                                              everything["simulations"].items() for figure, value in figures.items()]),
        *(_commands(everything["commands"]) if "commands" in everything else ()),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _commands(found: Facts) -> list[str]:
    machine = found["machine"]
    rows = [(name, f"{each['seconds']:.2f}", f"{each['processor_seconds']:.2f}" if "processor_seconds" in each else "",
             f"an interpreter that does nothing {each['interpreter_seconds']:.2f}" if "interpreter_seconds" in each else
             f"one that imports torch {each['torch_seconds']:.2f}" if "torch_seconds" in each else "")
            for name, each in found["commands"].items()]
    return [
        "", f"## Commands, with a record of {found['silos']:,} silos and {found['rounds']:,} rounds", "",
        f"`python -m benchmarks.scale.commands`, {machine['date']}, {machine['cores']} cores of {machine['cpu']}; load"
        f" average before it began {machine['load_before']:.1f}. The record of a real study of a few silos and rounds,"
        f" whose rows were copied: {found['rows']['task']:,} tasks and {found['rows']['cost']:,} rows of costs,"
        f" {found['bytes'] / 1e6:,.0f} MB. Each command is a process of its own; medians of {found['repeats']} runs.",
        "", *_table(("what", "s of the clock", "s of the processor", "beside it, s"), rows)]


def spread(values: Sequence[float], reference: float) -> str:
    """Median over a reference, and in brackets lowest and highest."""
    of = [value / reference for value in values]
    return f"{statistics.median(of):.1f} ({min(of):.1f} to {max(of):.1f})"


def _size(each: Facts, smallest: Facts) -> tuple[str, ...]:
    found, floor = each["semisilo"], each["floor"]
    used, silos = found["cpu_seconds_per_round"], found["silos"]
    own = 1000 * used["coordinator"] / silos
    bare = 1000 * floor["server_cpu_seconds"] / silos
    first = 1000 * smallest["semisilo"]["cpu_seconds_per_round"]["coordinator"] / smallest["semisilo"]["silos"]
    return (f"{silos:,}", f"{statistics.median(found['seconds_per_round']):.2f}",
            spread(found["seconds_per_round"], floor["median_seconds"]), f"{own:.1f}",
            f"{1000 * used['coordinator compute'] / silos:.1f}", f"{bare:.1f}", _ratio(own, bare),
            f"{1000 * used['silos'] / silos:.1f}", _ratio(own, first))


def _waits(found: Facts) -> tuple[str, ...]:
    idle, busy, silos = found["waits_while_idle"], found["waits_in_rounds"], found["silos"]

    def milliseconds(waits: Facts, name: str) -> str:
        return f"{1000 * waits[name]:.0f}" if name in waits else "-"

    alone = found["coordinator_bytes_alone"]
    return (f"{silos:,}", milliseconds(idle, "p50"), milliseconds(idle, "p99"), milliseconds(busy, "p50"),
            milliseconds(busy, "p99"), milliseconds(busy, "longest"),
            f"{(found['coordinator_bytes_connected'] - alone) / silos / 1000:.0f}",
            f"{(found['coordinator_bytes_after'] - alone) / silos / 1000:.0f}")


def _rosters(rosters: Sequence[Facts]) -> list[tuple[str, ...]]:
    alone = statistics.median(rosters[0]["seconds_per_round"])
    return [(f"{each['silos']:,}", f"{each['registered']:,}", f"{statistics.median(each['seconds_per_round']):.2f}",
             spread(each["seconds_per_round"], alone)) for each in rosters]


def _large(each: Facts) -> tuple[str, ...]:
    found, used = each["semisilo"], each["semisilo"]["cpu_seconds_per_round"]
    return (f"{found['silos']}", f"{found['parameters']:,}", f"{statistics.median(found['seconds_per_round']):.2f}",
            spread(found["seconds_per_round"], each["floor"]["median_seconds"]), f"{used['coordinator']:.2f}",
            f"{used['coordinator compute']:.2f}", f"{used['silos']:.2f}", f"{used['silos compute']:.2f}")


def _ratio(value: float, reference: float) -> str:
    return f"{value / reference:.1f}" if reference else "-"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
