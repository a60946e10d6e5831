"""The loss surface of a Fed-SHVR simulation: measured around its newest model, kept in its folder, and drawn.

Tests: tests/semisilo/simulation/test_measuring.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semisilo.common.config import Tables, to_dict
from semisilo.common.errors import StorageDamaged, UsageError
from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.compute.messages import OpenStudy
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.report.figure_style import Theme
from semisilo.coordinator.report.figures import DrawnFigure, draw_figure
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.simulation.dealing import Dealt, deal_study
from semisilo.simulation.folder import SimulationFolder, SimulationRecord
from semisilo.simulation.settings import load_simulated_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SURFACE_FILE", "coordinates", "drawn_surface", "measure_surface"]

SURFACE_FILE = "loss_surface.json"
_LEVELS = 14


def coordinates(points: int, span: float) -> list[float]:
    """From -span to span, with 0, the model itself, in the middle.

    Raises: UsageError for an even or too small number, or a span that is not above 0.
    """
    if points < 3 or points % 2 == 0:
        raise UsageError(f"--points {points}: must be an odd number from 3, so that the model itself is a point.",
                         remedy="Choose --points 11.")
    if not (math.isfinite(span) and span > 0):
        raise UsageError(f"--span {span}: must be above 0.", remedy="Choose --span 1.0.")
    return [span * (2 * number / (points - 1) - 1) for number in range(points)]


def measure_surface(folder: SimulationFolder, *, points: int, span: float,
                    progress: Callable[[float, str], None]) -> Path:
    """Measures the loss around the model of the last committed round and writes it into the simulation's folder.

    Args:
        points: along each of two random directions; points^2 passes over all images.
        span: how far to go; 1 moves every tensor by its own length.
        progress: told the share that is done, 0 to 1, and what is being done.
    Returns: the file.
    Raises: UsageError for a simulation of another method, or without a round, or whose images have changed; while a
        simulation runs there.
    """
    from semisilo.simulation.measuring import MeasuringOperations, silos_of_round

    at = coordinates(points, span)
    with folder.lock():
        record = folder.read_record()
        method = record.config["method"]["name"]
        if method != "fed_shvr":
            raise UsageError(f"{folder.folder}: the loss surface is one of Fed-SHVR's objective, and this is a"
                             f" simulation of {method}.", remedy="Leave out --loss-surface.")
        ledger = Ledger(folder.ledger)
        try:
            done = [row for row in ledger.rounds(record.study) if row.state is RoundState.COMPLETED and row.number]
            study = ledger.study(record.study)
        finally:
            ledger.close()
        if not done:
            raise UsageError(f"{folder.folder}: no round is complete yet.",
                             remedy="Continue the simulation first: semisilo simulate STUDY.")
        last = done[-1]
        progress(0.0, "dealing images to silos")
        dealt = _dealt_again(folder, record)
        operations = MeasuringOperations(progress, silos_of_round(dealt))
        operations.open_study(OpenStudy(
            name=dealt.study.name, config=config_from_dict(study.config, where=f"study {dealt.study.name}"),
            study_folder=folder.studies / dealt.study.name, payloads_folder=folder.payloads,
            num_silos=len(dealt.silos), frozen=study.frozen))
        found = to_dict(operations.surface(last.state_digest, last.number, at))
        path = folder.folder / SURFACE_FILE
        write_durably(path, (json.dumps({"state": last.state_digest, "round": last.number, **found}) + "\n").encode())
        return path


def _dealt_again(folder: SimulationFolder, record: SimulationRecord) -> Dealt:
    """The images as they were dealt for a simulation."""
    source = record.source
    if source is None:
        raise UsageError(f"{folder.folder}: it is not noted where the images came from.",
                         remedy="Call `semisilo simulate STUDY --out` with this folder once, with its study file.")
    study = load_simulated_study({**source.tables, "simulation": _without_none(source.simulation)},
                                 name=record.study)
    dealt = deal_study(replace(study, folder=Path(source.folder)), begun=record.digest)
    if dealt.digest() != record.digest:
        raise UsageError(f"{folder.folder}: the images of the study are no longer those of this simulation.",
                         remedy=f"Put them back where they were ({study.simulation.source}).")
    return dealt


def _without_none(tables: Tables) -> Tables:
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in tables.items()
            if value is not None}


# The plot -------------------------------------------------------------------------------------------------------------


def drawn_surface(folder: Path, *, state: str) -> tuple[DrawnFigure, ...]:
    """The plot of what was measured in a simulation's folder; none where nothing was, or of another model.

    Args:
        state: digest of the newest state.
    Raises: StorageDamaged when the file cannot be read.
    """
    path = folder / SURFACE_FILE
    if not path.exists():
        return ()
    try:
        found = json.loads(path.read_bytes())
        if found["state"] != state:
            return ()
        surface, weight = found["surface"], float(found["alpha2"])
        total = [[float(value) for value in row] for row in surface["total"]]
        without = [[value - weight * r2 for value, r2 in zip(*rows, strict=True)]
                   for rows in zip(total, surface["r2"], strict=True)]
        b1, b2 = [[float(value) for value in surface[name]] for name in ("b1", "b2")]
    except (ValueError, TypeError, LookupError) as error:
        raise StorageDamaged(f"{path} cannot be read: {error}",
                             remedy="Remove it, and measure again: semisilo report RUN --loss-surface.") from error
    panels = {"with the confidence penalty": total, "without it": without} if weight else {"no penalty": total}
    middle = total[len(b1) // 2][len(b2) // 2]
    rise = [f"{name}: {min(map(min, values)):.3g} to {max(map(max, values)):.3g}" for name, values in panels.items()]
    return (draw_figure(
        "loss_surface", "Loss around the model",
        f"Contours: the loss at points around the model of round {found['round']}, along two random directions;"
        f" {middle:.4g} at the model itself. {'; '.join(rise)}.",
        lambda axes, _, theme: _draw(axes, panels, b1, b2, theme)),)


def _draw(axes: Axes, panels: dict[str, list[list[float]]], b1: list[float], b2: list[float], theme: Theme) -> bool:
    """Contours beside each other, of the rise over the lowest point of each, in the same colours."""
    from matplotlib.ticker import MaxNLocator

    figure: Any = axes.figure
    axes.remove()
    rises = {name: [[value - min(map(min, values)) for value in row] for row in values]
             for name, values in panels.items()}
    top = max(max(map(max, values)) for values in rises.values())
    levels = MaxNLocator(_LEVELS).tick_values(0.0, top if math.isfinite(top) and top > 0 else 1.0)
    cells = figure.subplots(1, len(rises), squeeze=False, sharey=True)[0]
    picture = None
    for cell, (name, values) in zip(cells, rises.items(), strict=True):
        columns = list(map(list, zip(*values, strict=True)))  # b1 goes to the right
        picture = cell.contourf(b1, b2, columns, levels=levels, cmap="cividis")
        cell.contour(b1, b2, columns, levels=levels, colors="#ffffff", linewidths=0.4, alpha=0.6)
        cell.plot(0, 0, marker="+", markersize=10, color="#ffffff", markeredgewidth=1.6)
        cell.set_title(name, fontsize=10, color=theme.text)
        cell.set_xlabel("$b_1$", parse_math=True)
        cell.set_aspect("equal")
        for axis in (cell.xaxis, cell.yaxis):
            axis.set_ticks([b1[0], 0.0, b1[-1]], [f"{b1[0]:g}", "0", f"{b1[-1]:g}"])
        cell.grid(visible=False)
    cells[0].set_ylabel("$b_2$", parse_math=True)
    bar = figure.colorbar(picture, ax=list(cells), pad=0.02, shrink=0.8)
    bar.set_label("loss above its lowest point here")
    bar.outline.set_visible(False)
    return True
