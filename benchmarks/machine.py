"""The machine that a result was measured on, as results tell it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from semisilo.common import __version__
from semisilo.common.process.processors import usable_processors

__all__ = ["machine_now", "processor_name"]


def machine_now() -> dict[str, Any]:
    """What a result says of the machine: to be asked before anything is measured."""
    return {"cpu": processor_name(), "cores": usable_processors(), "kernel": platform.release(),
            "python": platform.python_version(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "load_before": os.getloadavg()[0], "version": __version__}


def processor_name() -> str:
    """The processor's own name, or its architecture where the system does not say it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
