"""What was measured as a table and a figure: accuracy against the bytes of all updates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Line", "Measured", "lines_of", "write_results"]

_EXACT = "smallest"
_COLOURS = {"smallest": "#5b6770", "bf16": "#cc79a7", "int8": "#0072b2", "int4": "#009e73", "top-k 10%": "#b8860b",
            "top-k 1%": "#d55e00", "top-k 1% int8": "#7a4fbf"}
"""Okabe and Ito's palette, which colour-blind people can tell apart."""
_NAMES = {"digits": "Digits", "bloodcells": "Blood cells"}
_WORDS = {"digits": "20 labelled images, 1422 others at three silos, 355 test images, the demo's settings but"
                    " for batches of 32",
          "bloodcells": "96 labelled images, 1800 others at three silos, 1000 test images, 2 local epochs, 20 at the"
                        " coordinator, batches of 32"}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One study."""

    uplink: str
    rounding: str
    error_feedback: bool
    data: str
    seed: int
    rounds: int
    dense_bytes: int
    """Of one model."""
    num_silos: int
    accuracies: Sequence[float]
    """After round 0 to the last."""
    uplink_bytes: Sequence[int]
    """Payload bytes of all silos, in round 1 to the last."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One form of the uplink over all seeds."""

    uplink: str
    rounding: str
    error_feedback: bool
    studies: tuple[Measured, ...]
    """In the order of their seeds."""

    @property
    def accuracy(self) -> float:
        """After the last round: the mean over seeds."""
        return statistics.fmean(study.accuracies[-1] for study in self.studies)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; 0 for one seed."""
        found = [study.accuracies[-1] for study in self.studies]
        return statistics.stdev(found) if len(found) > 1 else 0.0

    @property
    def curve(self) -> list[float]:
        """Mean accuracy after every round, from round 0."""
        return [statistics.fmean(values) for values in zip(*(study.accuracies for study in self.studies), strict=True)]

    @property
    def update_bytes(self) -> float:
        """Mean payload bytes of one update."""
        return statistics.fmean(size / study.num_silos for study in self.studies for size in study.uplink_bytes)

    @property
    def total_bytes(self) -> float:
        """Payload bytes of all updates of a study, mean over seeds."""
        return statistics.fmean(sum(study.uplink_bytes) for study in self.studies)

    def difference(self, exact: Line) -> float:
        """Mean over seeds of accuracy less the exact one's of the same seed."""
        theirs = {study.seed: study.accuracies[-1] for study in exact.studies}
        both = [study.accuracies[-1] - theirs[study.seed] for study in self.studies if study.seed in theirs]
        return statistics.fmean(both) if both else math.nan

    def rounds_to(self, accuracy: float) -> int | None:
        """The first round whose mean accuracy is at least `accuracy`."""
        return next((number for number, value in enumerate(self.curve) if value >= accuracy), None)


def lines_of(measured: Iterable[Measured], order: Sequence[tuple[str, str, bool]]) -> list[Line]:
    """The studies of one data set and one number of rounds, by form, in the order that is given."""
    found: dict[tuple[str, str, bool], list[Measured]] = {}
    for study in measured:
        found.setdefault((study.uplink, study.rounding, study.error_feedback), []).append(study)
    return [Line(uplink=form[0], rounding=form[1], error_feedback=form[2],
                 studies=tuple(sorted(found[form], key=lambda study: study.seed))) for form in order if form in found]


def write_results(folder: Path, measured: Sequence[Measured], order: Sequence[tuple[str, str, bool]],
                  notes: str) -> None:
    """Writes RESULTS.md and a figure for each data set into `folder`."""
    parts = [_INTRODUCTION]
    for data, rounds in sorted({(study.data, study.rounds) for study in measured}, reverse=True):
        lines = lines_of([study for study in measured if (study.data, study.rounds) == (data, rounds)], order)
        figure = folder / f"{data}-{rounds}.svg"
        _draw(figure, lines, f"{_NAMES[data]}, {rounds} rounds: accuracy against the bytes of all updates")
        name = _NAMES[data]
        parts += [f"## {name}, {rounds} rounds", f"{_WORDS[data]}.",
                  f"![{name}: accuracy against bytes]({figure.name})", _table(lines)]
    (folder / "RESULTS.md").write_text("\n\n".join([*parts, notes.strip()]) + "\n", encoding="utf-8")


_INTRODUCTION = """\
# Lossy updates: accuracy against bytes

Written by `make bench-lossy`. SemiFL in one process; every update is written to a payload file, and the coordinator
goes on from what it decodes. *feedback*: with error feedback or without; *bytes*: mean size of an update's payload
file, manifest included; *of dense*: over 4 bytes for every parameter; *fewer*: how many times fewer bytes than exact
updates; *accuracy*: on the test images after the last round, mean and standard deviation over seeds; *to exact*: mean
over seeds of the difference to exact updates with the same seed, in points; *reached*: the first round whose mean
accuracy is at most one point below the exact one's last."""


def _table(lines: Sequence[Line]) -> str:
    exact = next(line for line in lines if line.uplink == _EXACT)
    rows = ["| uplink | rounding | feedback | seeds | bytes | of dense | fewer | accuracy, % | to exact | reached |",
            "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for line in lines:
        reached = line.rounds_to(exact.accuracy - 0.01)
        rows.append(" | ".join((
            "| " + " | ".join(_words(line)), str(len(line.studies)), f"{line.update_bytes:,.0f}",
            f"{100 * line.update_bytes / line.studies[0].dense_bytes:.2f} %",
            f"{exact.total_bytes / line.total_bytes:.1f} x",
            f"{100 * line.accuracy:.1f}" + (f" ± {100 * line.spread:.1f}" if len(line.studies) > 1 else ""),
            f"{100 * line.difference(exact):+.1f}", f"{'–' if reached is None else reached} |")))
    return "\n".join(rows)


def _words(line: Line) -> tuple[str, str, str]:
    if line.uplink == _EXACT:
        return "exact (`smallest`)", "", ""
    rounding = line.rounding if "int" in line.uplink else ""
    return f"`{line.uplink}`", rounding, "yes" if line.error_feedback else "no"


def _draw(path: Path, lines: Sequence[Line], title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "semisilo"  # the same numbers give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
    for line in lines:
        if line.rounding == "stochastic" and line.error_feedback:
            continue  # beside the nearest with error feedback: the table has all
        _curve(axes, line)
    axes.set_xscale("log")
    axes.set_xlabel("payload bytes of all updates so far")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _curve(axes: Axes, line: Line) -> None:
    sums: list[float] = []
    for sizes in zip(*(study.uplink_bytes for study in line.studies), strict=True):
        sums.append((sums[-1] if sums else 0.0) + statistics.fmean(sizes))
    form, rounding, feedback = _words(line)
    label = form.replace("`", "") + (f", {rounding}" if rounding else "") + (
        "" if line.uplink == _EXACT else ", error feedback" if feedback == "yes" else ", without")
    style: dict[str, Any] = {"color": _COLOURS[line.uplink], "linestyle": "-" if line.error_feedback else ":"}
    if line.rounding == "stochastic":
        style["linestyle"] = "--"
    axes.plot(sums, [100 * value for value in line.curve[1:]], marker="o", markersize=2.5, label=label, **style)
