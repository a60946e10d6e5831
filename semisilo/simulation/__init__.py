"""Studies with simulated silos: many of them on one machine, or on a Ray cluster, with the bits of a real run.

    from semisilo.simulation import run
    result = run("study.toml", out=Path("runs/first"))
    print(result.accuracy, result.curve)
"""

from __future__ import annotations

from semisilo.simulation.federation import SimulationWatcher
from semisilo.simulation.result import RoundResult, SiloResult, SimulationResult
from semisilo.simulation.simulate import run

__all__ = ["RoundResult", "SiloResult", "SimulationResult", "SimulationWatcher", "run"]
