"""The number of threads that this silo has measured for the networks it trains, kept so that bits stay the same.

Tests: tests/silo/compute/test_threads.py.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.contract import ModelBuilder, TaskSpec
from semisilo.common.methods.numerics import MemoryFormat, Precision
from semisilo.common.numerics.thread_count import TrainingStep, fastest_threads
from semisilo.common.storage.durable import write_durably

__all__ = ["Measured", "measured_threads"]

_LOG = logging.getLogger("semisilo.work")
_MOST_KEPT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was measured, and on what."""

    network: str
    size: int
    channels: int
    batch: int
    passes: int
    precision: Precision
    memory_format: MemoryFormat
    processors: int
    cpu_capability: str
    torch: str
    threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    measured: tuple[Measured, ...] = ()


def measured_threads(order: TaskSpec, build: ModelBuilder, *, batch: int, passes: int, processors: int,
                     file: Path) -> int:
    """The number of threads for a task that leaves it to the silo: as measured before, or measured now and written
    durably, so that the silo goes on with the same bits after it was killed.

    Args:
        batch, passes: see `semisilo.common.numerics.thread_count.TrainingStep`.
        processors: that training may keep busy.
        file: of this silo; a damaged one is written anew.
    """
    form: ImageForm = order.image
    wanted = Measured(network=order.model.name, size=form.size, channels=form.channels, batch=batch, passes=passes,
                      precision=order.numerics.precision, memory_format=order.numerics.memory_format,
                      processors=processors, cpu_capability=torch.backends.cpu.get_cpu_capability(),
                      torch=str(torch.__version__), threads=0)
    kept = _read(file)
    for found in kept.measured:
        if replace(found, threads=0) == wanted:
            return found.threads
    threads = fastest_threads(TrainingStep(build=build, image=form, num_classes=len(order.model.classes), batch=batch,
                                           passes=passes), processors=processors)
    kept = _Kept(measured=(*kept.measured[-_MOST_KEPT + 1:], replace(wanted, threads=threads)))
    write_durably(file, json.dumps(to_dict(kept), indent=1).encode() + b"\n")
    _LOG.info("%s trains fastest with %d of %d processors for an operation; measured, and kept for this silo",
              order.model.name, threads, processors)
    return threads


def _read(file: Path) -> _Kept:
    try:
        return from_dict(_Kept, json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError, BadConfiguration):
        return _Kept()
