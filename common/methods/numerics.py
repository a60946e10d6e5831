"""What the bits of a computation hang on: what a study sets, and what is recorded of a machine.

Apart from the contract, which imports it: `coordinator status` reads the record and no task.

Tests: tests/common/numerics/test_numerics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["MemoryFormat", "Numerics", "NumericsRecord", "Precision"]

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "channels_last", "contiguous"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """What must be equal on two machines for equal bits, apart from device and library versions."""

    threads: int = 0
    """Threads of a CPU operation. 0: each machine measures once what is fastest for the study's network and keeps to
    it; in a simulation, where silos train side by side, it is 1."""
    deterministic: bool = True
    """Whether only deterministic algorithms are used."""
    precision: Precision = "fp32"
    """Of convolutions and matrix products. "bf16": float32's range in 16 bits, about twice as fast on processors and
    accelerators that have it; "fp16": 16 bits with a smaller range, the loss is scaled; "tf32": short products of
    NVIDIA's accelerators, float32 elsewhere. Weights, sums and everything else stay float32."""
    memory_format: MemoryFormat = "auto"
    """How images and filters lie in memory: "channels_last" and "contiguous" (channels first) are torch's words.
    "auto": channels last where it is faster: on CPUs, and on accelerators unless the precision is "fp32"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericsRecord:
    """What a computation's bits depend on, besides its inputs and seeds. Kept in the ledger."""

    device: str
    """"cpu", or the accelerator's name as its driver gives it."""
    torch: str
    """Version of torch."""
    cpu_capability: str
    """Instruction set that torch uses, for example "AVX2"."""
    threads: int
    deterministic: bool
    precision: Precision = "fp32"
    memory_format: Literal["channels_last", "contiguous"] = "contiguous"
    """Of convolutions; in versions that did not record it they were contiguous."""
