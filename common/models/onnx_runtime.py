"""The package onnxruntime, brought in so that it reports nothing to anybody.

Its official builds for Linux, from 1.29 on, tell Microsoft of every graph that is loaded (file name, digests of graph
and weights and others), and keep an identifier of the machine below `~/.cache/Microsoft`. An environment variable
that is there before the package is imported stops all of that, its call `disable_telemetry_events` a part.

Tests: tests/common/models/test_onnx_runtime.py.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["onnx_runtime"]


def onnx_runtime() -> Any:
    """The package. Whoever wants its reports sets `ORT_DISABLE_TELEMETRY=0`. Raises: ImportError without it."""
    off = os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1") == "1"
    import onnxruntime

    if off:  # somebody else's code in this process may have imported it before
        onnxruntime.disable_telemetry_events()
    return onnxruntime
