"""Both sides of a study in one Python process: simulate, compare, load, predict.

    import semisilo
    comparison = semisilo.compare(["fedavg", "semifl"], data="my_images", silos=5, num_labelled=50)
    comparison.plot()

See docs/python.md. What is heavy (torch) is imported by the first call that needs it, not by `import semisilo`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semisilo.common import __version__

if TYPE_CHECKING:
    from semisilo.api.results import Comparison, Round, Run, Summary
    from semisilo.api.simulate import compare, load_run, simulate
    from semisilo.common.errors import SemisiloError
    from semisilo.prediction.predictor import Predictions, predict

__all__ = ["Comparison", "Predictions", "Round", "Run", "SemisiloError", "Summary", "__version__", "compare",
           "load_run", "predict", "simulate"]

_HOMES = {"Comparison": "semisilo.api.results", "Predictions": "semisilo.prediction.predictor",
          "Round": "semisilo.api.results", "Run": "semisilo.api.results", "SemisiloError": "semisilo.common.errors",
          "Summary": "semisilo.api.results", "compare": "semisilo.api.simulate", "load_run": "semisilo.api.simulate",
          "predict": "semisilo.prediction.predictor", "simulate": "semisilo.api.simulate"}
"""Where each name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'semisilo' has no attribute '{name}'")
    import importlib

    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
