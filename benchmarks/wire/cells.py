"""What is measured: the systems, the cells of the table, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DENSITIES", "FULL", "PARAMETERS", "QUICK", "SILOS", "SYSTEMS", "Cell", "Plan", "System", "command",
           "order"]

SILOS = (2, 8)
PARAMETERS = (1_500_000, 25_000_000)
DENSITIES = (1.0, 0.1)


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """One column of the tables."""

    key: str
    name: str
    module: str
    wire: str = ""
    """semisilo's setting; empty for others."""
    environment: str = ""
    """The folder of its virtual environment under build/peers; empty for ours."""


SYSTEMS = (
    System(key="semisilo-raw", name="semisilo raw", module="semisilo_rounds", wire="raw"),
    System(key="flower", name="Flower", module="flower", environment="flower"),
    System(key="semisilo-auto", name="semisilo auto", module="semisilo_rounds", wire="auto"),
    System(key="nvflare", name="NVIDIA FLARE", module="nvflare", environment="nvflare"),
    System(key="semisilo-smallest", name="semisilo smallest", module="semisilo_rounds", wire="smallest"),
)
"""In the order in which they take turns: a peer between every two of ours."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    system: System
    silos: int
    parameters: int
    density: float

    @property
    def key(self) -> str:
        """A file name."""
        return f"{self.system.key}-{self.silos}x{self.parameters}-{self.density:g}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    name: str
    silos: tuple[int, ...]
    parameters: tuple[int, ...]
    densities: tuple[float, ...]
    rounds: dict[str, tuple[int, int]]
    """Timed rounds by system (its key, up to a hyphen): of models below 10 million parameters, and of larger ones."""

    def timed_rounds(self, cell: Cell) -> int:
        """Rounds after the first."""
        small, large = self.rounds[cell.system.key.partition("-")[0]]
        return small if cell.parameters < 10_000_000 else large

    def expected_seconds(self, cell: Cell) -> float:
        """Roughly what one measurement takes, to say how much is left."""
        load = cell.silos * cell.parameters / 25e6
        start, base, slope = {
            "semisilo": (8 + cell.silos, 0.1, 0.5), "flower": (10 + 1.5 * cell.silos, 4 + 0.7 * cell.silos, 1.6),
            "nvflare": (8 + 0.8 * cell.silos, 0.4, 0.8)}[cell.system.key.partition("-")[0]]
        return start + (self.timed_rounds(cell) + 2) * (base + slope * load)


FULL = Plan("full", SILOS, PARAMETERS, DENSITIES, {"semisilo": (20, 6), "flower": (4, 3), "nvflare": (12, 5)})
QUICK = Plan("quick", (2,), (100_000,), DENSITIES, {"semisilo": (2, 2), "flower": (2, 2), "nvflare": (2, 2)})


def order(plan: Plan, only: Sequence[str]) -> list[Cell]:
    """All cells; the systems take turns within each, so that whatever else the machine does meets all of them alike.

    Args:
        only: keys of systems, or their first part ("semisilo"); empty for all.
    """
    chosen = [system for system in SYSTEMS
              if not only or system.key in only or system.key.partition("-")[0] in only]
    return [Cell(system, silos, parameters, density) for silos in plan.silos for parameters in plan.parameters
            for density in plan.densities for system in chosen]


def command(cell: Cell, *, rounds: int, result: Path, folder: Path, peers: Path) -> list[str]:
    """The command line of an adapter.

    Args:
        rounds: timed ones.
        folder: for what the system writes; the peers' adapters make it anew.
        peers: holds the peers' virtual environments.
    """
    words = ["-m", f"benchmarks.wire.{cell.system.module}", "--silos", str(cell.silos), "--parameters",
             str(cell.parameters), "--density", f"{cell.density:g}", "--json", str(result)]
    if cell.system.environment:
        python = str(peers / cell.system.environment / "bin" / "python")
        return [python, *words, "--rounds", str(rounds), "--folder", str(folder)]
    return [sys.executable, *words, "--rounds", str(rounds + 1), "--wire", cell.system.wire]
