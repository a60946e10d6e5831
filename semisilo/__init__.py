"""Both sides of a study in one Python process: simulate, compare, load, predict.

    import semisilo
    comparison = semisilo.compare(["fedavg", "semifl"], data="my_images", silos=5, num_labelled=50)
    comparison.plot()

See docs/python.md. What is heavy (torch) is imported by the first call that needs it, not by `import semisilo`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common import __version__

if TYPE_CHECKING:
    from common.errors import SemisiloError
    from semisilo.api import compare, load_run, simulate
    from semisilo.api_results import Comparison, Round, Run, Summary
    from semisilo.predictor import Predictions, predict

__all__ = ["Comparison", "Predictions", "Round", "Run", "SemisiloError", "Summary", "__version__", "compare",
           "load_run", "predict", "simulate"]

_HOMES = {"Comparison": "semisilo.api_results", "Predictions": "semisilo.predictor", "Round": "semisilo.api_results",
          "Run": "semisilo.api_results", "SemisiloError": "common.errors", "Summary": "semisilo.api_results",
          "compare": "semisilo.api", "load_run": "semisilo.api", "predict": "semisilo.predictor",
          "simulate": "semisilo.api"}
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
