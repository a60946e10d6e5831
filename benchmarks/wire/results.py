"""Writes RESULTS.md and its figure from what was measured; computes nothing that is not in results.json."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.wire.cells import SYSTEMS

__all__ = ["write_results"]

Facts = dict[str, Any]
Shape = tuple[int, int, float]
"""Silos, parameters, density."""

_COLUMNS = ("semisilo-raw", "semisilo-auto", "semisilo-smallest", "nvflare", "flower")
_REFERENCE = "semisilo-auto"
_NAMES = {system.key: system.name for system in SYSTEMS}
_COLOURS = {"semisilo-raw": "#8fbfe0", "semisilo-auto": "#2b7bba", "semisilo-smallest": "#0b4a80",
            "nvflare": "#e08214", "flower": "#9e6ab8"}
_GB = 1e9


def write_results(everything: Facts, folder: Path) -> None:
    """Writes RESULTS.md and results.svg.

    Args:
        everything: as run.py collects it: machine, limits, cells.
        folder: where both go.
    """
    found = {(cell["system_key"], (cell["silos"], cell["parameters"], cell["density"])): cell
             for cell in everything["cells"]}
    shapes = sorted({shape for _, shape in found}, key=lambda shape: (shape[0], shape[1], -shape[2]))
    columns = [key for key in _COLUMNS if any(system == key for system, _ in found)]
    _draw(everything["limits"], found, shapes, columns, folder / "results.svg")
    (folder / "RESULTS.md").write_text(_page(everything, found, shapes, columns))


def _page(everything: Facts, found: dict[tuple[str, Shape], Facts], shapes: Sequence[Shape],
          columns: Sequence[str]) -> str:
    limits, machine = everything["limits"], everything["machine"]
    names = [_NAMES[key] for key in columns]
    ours = f"*(in brackets: times {_NAMES[_REFERENCE]})*"

    def rows(value: Callable[[Facts], float], show: Callable[[float, Facts], str], *extra: Callable[[Shape], str],
             ratio: bool = True) -> list[list[str]]:
        table = []
        for shape in shapes:
            reference = found.get((_REFERENCE, shape))
            cells = [_cell(found.get((key, shape)), reference, key, value, show, ratio) for key in columns]
            table.append([*_shape_cells(shape), *cells, *(each(shape) for each in extra)])
        return table

    parts = [
        "# What a round costs: semisilo, Flower, NVIDIA FLARE and the raw limits",
        "Written by `make bench-wire`; do not edit. How it is measured is below the tables, everything that was"
        " measured in [results.json](results.json).",
        '<img src="results.svg" alt="Bars: seconds per round, and bytes per round as a share of dense, for every system'
        ' and cell." width="980">',
        "## Seconds per round",
        f"Median of the timed rounds {ours}. *Raw TLS* only moves the same dense bytes, down to all silos at once and"
        " then back.",
        _table(["K", "P", "density", *names, "raw TLS"],
               rows(_seconds, lambda seconds, _: _three(seconds), lambda shape: _three(_raw_seconds(limits, shape)))),
        "## Bytes per round and silo",
        f"What the kernel counted, up and down added, as a share of dense (2 x 4 x P bytes) {ours}.",
        _table(["K", "P", "density", "dense, MB", *names],
               [[*row[:3], _megabytes(8 * shape[1]), *row[3:]] for row, shape in zip(
                   rows(_both, lambda both, facts: f"{both / (8 * facts['parameters']):.1%}"), shapes, strict=True)]),
        "Up + down, in MB. *Positions* is what the positions of the changed elements take at least, n·H(density)/8;"
        " their values come on top.",
        _table(["K", "P", "density", *names, "positions"],
               rows(_both, lambda _, facts: f"{_megabytes(facts['up_bytes'])} + {_megabytes(facts['down_bytes'])}",
                    lambda shape: _positions(limits, shape), ratio=False)),
        "## Peak memory of the server side",
        "In GB: above what the same processes take without a job + that; in brackets the first, in models.",
        _table(["K", "P", "density", *names],
               rows(_above, lambda above, facts: f"{above / _GB:.2f} + {facts['coordinator_import_bytes'] / _GB:.2f}"
                                                 f" ({above / (4 * facts['parameters']):.1f} models)", ratio=False)),
        _per_silo(found, shapes, columns),
        "## The limits of this machine",
        _limits(limits),
        "## How it was measured",
        _method(everything, machine),
    ]
    failed = [cell for cell in everything["cells"] if "failed" in cell]
    if failed:
        parts += ["## What failed", "\n".join(f"- `{cell['key']}`: {_line(cell['failed'])}" for cell in failed)]
    return "\n\n".join(parts) + "\n"


def _method(everything: Facts, machine: Facts) -> str:
    cells = everything["cells"]
    versions: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for cell in cells:
        if "failed" not in cell:
            system = cell["system_key"].partition("-")[0]
            versions[system] = cell["version"]
            notes.setdefault(system, [cell["notes"]] if isinstance(cell["notes"], str) else cell["notes"])
    rounds = {system: sorted({len(cell["seconds_per_round"]) for cell in cells
                              if "failed" not in cell and cell["system_key"].startswith(system)})
              for system in versions}
    names = {"semisilo": "semisilo", "flower": "Flower (flwr)", "nvflare": "NVIDIA FLARE (nvflare)"}
    lines = [
        f"{machine['date'][:10]}, {machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f}"
        f" GiB, Linux {machine['kernel']}, Python {machine['python']}; load average before the first measurement"
        f" {machine['load_before'][0]:.1f}.",
        "The job is the same everywhere: each silo receives the model (P float32 parameters in arrays shaped like an"
        " image classifier's), adds seeded noise to all elements or to a seeded tenth, and answers; the server"
        " averages. Nothing is trained and nothing is evaluated. semisilo answers with the difference, NVIDIA FLARE"
        " with a DIFF, Flower with the whole model, as their documentation does. Neither peer encodes positions or"
        " compresses, so for them a tenth costs what all costs.",
        "Real processes on one machine, TLS on localhost, one measurement after the other; systems take turns within"
        " each cell. The first round warms up and is left out. A round lasts from one event at the server to the same"
        " event of the next round. Bytes are the kernel's counters (TCP_INFO) of the silos' connections to the"
        " server, with TLS, HTTP and everything else in them. Memory is VmHWM, added over the server-side processes"
        " that hold the model.",
        *(f"**{names[system]} {versions[system]}**, {' or '.join(map(str, rounds[system]))} timed rounds."
          f" {' '.join(_sentence(note) for note in notes[system])}" for system in names if system in versions),
        "To measure again: `make bench-wire` (`BENCH_ARGS=--fresh` forgets earlier ones, `BENCH_ARGS=--quick`"
        " tries all on a small model). On a busy machine trust the ratios more than the seconds.",
    ]
    return "\n\n".join(lines)


def _limits(limits: Facts) -> str:
    rates = limits["tls_bytes_per_second"]
    lines = [
        f"- Python's TLS over loopback ({limits['openssl'].split(' 2')[0]}), one connection, 100 MB: "
        f"{rates['down'] / 1e6:.0f} MB/s one way, {rates['up'] / 1e6:.0f} MB/s the other.",
        f"- Memory copy, one thread: {limits['copy_bytes_per_second'] / _GB:.1f} GB/s.",
    ]
    for key, size in limits["position_bound_bytes"].items():
        parameters, _, density = key.partition(" x ")
        lines.append(f"- Positions of a uniform {float(density):.0%} of {int(parameters):,} elements: at least "
                     f"{_megabytes(size)} MB, {size / limits['dense_bytes'][parameters]:.2%} of dense.")
    return "\n".join(lines)


def _cell(facts: Facts | None, reference: Facts | None, key: str, value: Callable[[Facts], float],
          show: Callable[[float, Facts], str], ratio: bool) -> str:
    if facts is None:
        return "–"
    if "failed" in facts:
        return "failed"
    text = show(value(facts), facts)
    if ratio and key != _REFERENCE and reference is not None and "failed" not in reference and value(reference):
        text += f" ({_two(value(facts) / value(reference))})"
    return text


def _seconds(facts: Facts) -> float:
    return float(statistics.median(facts["seconds_per_round"]))


def _both(facts: Facts) -> float:
    return float(facts["up_bytes"] + facts["down_bytes"])


def _above(facts: Facts) -> float:
    return float(facts["coordinator_peak_bytes"] - facts["coordinator_import_bytes"])


def _per_silo(found: dict[tuple[str, Shape], Facts], shapes: Sequence[Shape], columns: Sequence[str]) -> str:
    """By how many models the server side grows with each silo, for the largest model, dense."""
    parameters = max(shape[1] for shape in shapes)
    few, many = min(shape[0] for shape in shapes), max(shape[0] for shape in shapes)
    parts = []
    for key in columns:
        first, last = found.get((key, (few, parameters, 1.0))), found.get((key, (many, parameters, 1.0)))
        if few < many and first and last and "failed" not in first and "failed" not in last:
            growth = (_above(last) - _above(first)) / (many - few) / (4 * parameters)
            parts.append(f"{_NAMES[key]} {growth:+.2f}")
    growths = ", ".join(parts) or "not measured"
    return f"A model is 4 x P bytes. Growth with each further silo, in models of {_size(parameters)}, dense: {growths}."


def _raw_seconds(limits: Facts, shape: Shape) -> float:
    directions = limits["tls_dense_round"][f"{shape[0]} x {shape[1]}"]
    return float(directions["down"]["median"] + directions["up"]["median"])


def _positions(limits: Facts, shape: Shape) -> str:
    size = limits["position_bound_bytes"].get(f"{shape[1]} x {shape[2]}")
    return "–" if size is None else _megabytes(size)


def _shape_cells(shape: Shape) -> list[str]:
    silos, parameters, density = shape
    return [str(silos), _size(parameters), "dense" if density >= 1 else f"{density:.0%}"]


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:g} M"


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.3g}" if size_bytes < 1e8 else f"{size_bytes / 1e6:.0f}"


def _three(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}"


def _two(ratio: float) -> str:
    return f"{ratio:.2f} x" if ratio < 10 else f"{ratio:.0f} x"


def _sentence(note: str) -> str:
    return note[0].upper() + note[1:] + ("" if note.endswith(".") else ".")


def _line(text: str) -> str:
    return " ".join(text.split())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _draw(limits: Facts, found: dict[tuple[str, Shape], Facts], shapes: Sequence[Shape],
          columns: Sequence[str], path: Path) -> None:
    from matplotlib import rc_context  # takes half a second, which measuring does not wait for
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    with rc_context({"svg.hashsalt": "bench-wire", "font.size": 9, "axes.spines.top": False,
                     "axes.spines.right": False}):
        figure = Figure(figsize=(12.5, 4.6), layout="constrained")
        FigureCanvasSVG(figure)
        left, right = figure.subplots(1, 2)
        width = 0.8 / max(1, len(columns))
        for number, key in enumerate(columns):
            at = [index + (number - (len(columns) - 1) / 2) * width for index in range(len(shapes))]
            cells = [found.get((key, shape)) for shape in shapes]
            good = [(x, facts) for x, facts in zip(at, cells, strict=True) if facts and "failed" not in facts]
            xs = [x for x, _ in good]
            left.bar(xs, [_seconds(facts) for _, facts in good], width, color=_COLOURS[key], label=_NAMES[key])
            for x, facts in zip(at, cells, strict=True):
                if facts and "failed" in facts:
                    for axis in (left, right):
                        axis.annotate("failed", (x, 0), xycoords=("data", "axes fraction"), rotation=90, fontsize=7,
                                      ha="center", va="bottom", color=_COLOURS[key])
            right.bar(xs, [100 * _both(facts) / (8 * facts["parameters"]) for _, facts in good], width,
                      color=_COLOURS[key])
        for axis in (left, right):
            axis.set_xticks(range(len(shapes)), [
                f"K = {silos}\n{_size(parameters)}\n{'dense' if density >= 1 else f'{density:.0%}'}"
                for silos, parameters, density in shapes])
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            axis.set_axisbelow(True)
        raw = [_raw_seconds(limits, shape) for shape in shapes]
        left.hlines(raw, [index - 0.44 for index in range(len(shapes))], [index + 0.44 for index in range(len(shapes))],
                    color="black", linewidth=1.4, label="raw TLS, dense")
        left.set_yscale("log")
        left.set_ylim(bottom=min(raw) / 2)
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        left.yaxis.set_minor_locator(NullLocator())
        left.set_title("Seconds per round (logarithmic)")
        right.axhline(100, color="#555555", linewidth=0.8, linestyle=":")
        right.set_title("Bytes per round and silo, up and down, in % of dense")
        figure.legend(loc="outside lower center", ncols=len(columns) + 1, frameon=False)
        figure.savefig(path, metadata={"Date": None})
