"""RESULTS.md and the figures, from the results that were run (results/*.json) and what a person read out of them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.comparison import Comparison, load_comparison, study_digest

__all__ = ["spread", "write_results"]

_HEAD = """# The papers' comparisons

Written by `make bench-papers-small`. **Every row is scaled down**, but in the section "At full scale": smaller images,
fewer of them, fewer silos and rounds, a small network, other learning rates, other shares of labels. So the order of
the rows of one table can be held against the paper, not their numbers. What is smaller or other stands under *Scale*.

The studies are run by the engine of `semisilo simulate` on real images: coordinator, codec and silos as deployed, so
bytes are those that a deployment would send. *accuracy*: on the test images after the last round, mean and spread over
the seeds (square root of the mean squared deviation); *early*: after a quarter of the rounds, measured on the same kind
of model as the last one (with labels at the coordinator, where a method trains on them: after that pass). *Labels alone
with equal steps*: the same labels and no other image, for as many steps as the methods beside it take on the labels, at
a silo or at the coordinator; *without the unlabelled term*: the method itself with its losses of unlabelled images at
weight 0. A method that beats neither has got nothing out of unlabelled images. *paper*: the published number at full
scale, where there is one; *kept*: images with a pseudo-label in the last round, of all at a silo; *up, down*: payload
bytes of an update and of what a silo is sent, as a share of a dense model. Study files at the papers' own scale:
[studies](studies/README.md).
"""


def spread(values: Sequence[float]) -> float:
    """sqrt(mean squared deviation), as Fed-SHVR's paper gives it."""
    mean = statistics.fmean(values)
    return math.sqrt(statistics.fmean((value - mean) ** 2 for value in values))


def write_results(folder: Path) -> None:
    """Writes everything anew from what is there."""
    parts = [_HEAD]
    for scale, heading in (("small", ""), ("full", "# At full scale\n")):
        sections = []
        for path in sorted((folder / scale).glob("*.toml")):
            results = folder / "results" / f"{path.stem}.json"
            if results.exists():
                comparison = load_comparison(path, data=Path("data"))
                sections.append(_section(comparison, json.loads(results.read_text()), folder))
        parts += [heading, *sections] if sections and heading else sections
    (folder / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


def _of_now(comparison: Comparison, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of studies that are in the comparison as they were run; of a choice the chosen one, once all are run."""
    known = {study_digest(variant, seed) for variant in comparison.variants for seed in variant.seeds}
    rows = [row for row in rows if row["study"] in known]
    found: list[dict[str, Any]] = []
    for group, name in dict.fromkeys((variant.group, variant.name) for variant in comparison.variants):
        tried = {variant.chosen: [row for row in rows if (row["group"], row["variant"], row["chosen"])
                                  == (group, name, variant.chosen)]
                 for variant in comparison.variants if (variant.group, variant.name) == (group, name)}
        if len(tried) == 1:
            found += tried.popitem()[1]
        elif all(tried.values()):
            best = max(tried, key=lambda value: statistics.fmean(map(_validated, tried[value])))
            shown = f"{name}: {best}, by validation of {len(tried)}"
            found += [{**row, "variant": shown} for row in tried[best]]
    return found


def _validated(row: dict[str, Any]) -> float:
    """Accuracy on the validation images after the last round."""
    return float(row["rounds"][-1]["validation_accuracy"])


def _section(comparison: Comparison, measured: list[dict[str, Any]], folder: Path) -> str:
    rows, tried = _of_now(comparison, measured), {row["study"] for row in measured}
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"## {comparison.title}\n", f"**Claim.** {comparison.claim}\n",
             f"**Scale.** {comparison.scale} Seeds {', '.join(map(str, seeds))}.\n"]
    groups = list(dict.fromkeys(variant.group for variant in comparison.variants))
    _draw(rows, groups, folder / f"{comparison.name}.svg")
    lines.append(f"![{comparison.title}]({comparison.name}.svg)\n")
    for group in groups:
        lines.append(f"### {group}\n" if group else "")
        mine = [row for row in rows if row["group"] == group]
        if mine:
            lines.append("| variant | seeds | accuracy, % | early, % | paper | kept | up | down | total payload |")
            lines.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for name in dict.fromkeys(row["variant"] for row in mine):
            lines.append(_line(name, [row for row in mine if row["variant"] == name]))
        labels = [row["labelled_only"] for row in mine if row["labelled_only"] is not None]
        if labels:
            lines.append(f"| labels alone with equal steps | {len(labels)} | {_percent(labels)} | | | | | | |")
        lines.append("")
        lines += _remarks(comparison, group, mine, tried)
    notes = folder / "notes" / f"{comparison.name}.md"
    if notes.exists():
        lines.append(notes.read_text(encoding="utf-8"))
    return "\n".join(lines)


def _remarks(comparison: Comparison, group: str, rows: list[dict[str, Any]], measured: Collection[str]) -> list[str]:
    """Which rows were measured with which revision of the program, where it is not one; and which are missing.

    Args:
        measured: digests of all studies that were run, also of those that no row shows.
    """
    lines = []
    revisions: dict[str, list[str]] = {}
    for row in rows:
        revisions.setdefault(row["revision"], []).append(row["variant"])
    if len(revisions) > 1:
        said = [f"{', '.join(dict.fromkeys(names))} with revision {revision}" for revision, names in revisions.items()]
        lines.append(f"Measured: {'; '.join(said)}.\n")
    missing: dict[str, list[int]] = {}
    for variant in comparison.variants:
        absent = [seed for seed in variant.seeds if study_digest(variant, seed) not in measured]
        if variant.group == group and absent:
            missing[f"{variant.name}, {variant.chosen}" if variant.chosen else variant.name] = absent
    if missing:
        said = [f"{name} (seeds {', '.join(map(str, seeds))})" for name, seeds in missing.items()]
        lines.append(f"Not run with the studies as they are now: {'; '.join(said)}.\n")
    return lines


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    last = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    early = [_early(row) for row in rows]
    dense = rows[0]["dense_bytes"]
    updates = sum(row["updates"] for row in rows)
    up, down = (sum(row[f"{way}_bytes"] for row in rows) for way in ("up", "down"))
    share = [f"{100 * amount / (dense * updates):.0f} %" if updates else "–" for amount in (up, down)]
    total = (up + down) / len(rows) / 1e6
    return (f"| {name} | {len(rows)} | {_percent(last)} | {_percent([each for each in early if each is not None])} | "
            f"{rows[0]['published'] or ''} | {_kept(rows)} | {share[0]} | {share[1]} | {total:.1f} MB |")


def _kept(rows: list[dict[str, Any]]) -> str:
    """Images that got a pseudo-label in the last round, of all that a silo could have labelled; empty for no such."""
    ratios = [row["rounds"][-1]["label_ratio"] for row in rows if "label_ratio" in row["rounds"][-1]]
    return f"{100 * statistics.fmean(ratios):.0f} %" if ratios else ""


def _early(row: dict[str, Any]) -> float | None:
    curve = [entry for entry in row["rounds"] if "accuracy" in entry]
    wanted = max(1, math.ceil(max((entry["round"] for entry in curve), default=0) / 4))
    return next((entry["accuracy"] for entry in curve if entry["round"] >= wanted), None)


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = 100 * statistics.fmean(values)
    return f"{mean:.1f} ± {100 * spread(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _draw(rows: list[dict[str, Any]], groups: list[str], path: Path) -> None:
    """One plot for each group: mean accuracy by round, with the range over seeds."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a4fbf", "#5b6770")
    with rc_context({"svg.hashsalt": "semisilo", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(5.4 * len(groups), 4.4), layout="constrained")
        FigureCanvasSVG(figure)
        for index, group in enumerate(groups):
            axes = figure.add_subplot(1, len(groups), index + 1)
            mine = [row for row in rows if row["group"] == group]
            for number, name in enumerate(dict.fromkeys(row["variant"] for row in mine)):
                curves: dict[int, list[float]] = {}
                for row in (row for row in mine if row["variant"] == name):
                    for entry in row["rounds"]:
                        if "accuracy" in entry:
                            curves.setdefault(entry["round"], []).append(100 * entry["accuracy"])
                xs = sorted(curves)
                colour = colours[number % len(colours)]
                axes.fill_between(xs, [min(curves[x]) for x in xs], [max(curves[x]) for x in xs], color=colour,
                                  alpha=0.15, linewidth=0)
                axes.plot(xs, [statistics.fmean(curves[x]) for x in xs], color=colour, label=name, linewidth=1.6,
                          linestyle="-" if number < len(colours) else "--")
            labels = [row["labelled_only"] for row in mine if row["labelled_only"] is not None]
            if labels:
                axes.axhline(100 * statistics.fmean(labels), color="#5b6770", linestyle=":", label="labels alone")
            axes.set_title(group)
            axes.set_xlabel("round")
            axes.set_ylabel("test accuracy (%)")
            axes.grid(color="#e3e7eb")
            axes.legend(fontsize=8)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
