"""Sets what must be equal on two machines for equal bits, and records what is in force."""

from __future__ import annotations

import os

import torch

from semisilo.common.methods.contract import Numerics, NumericsRecord

__all__ = ["apply", "record"]


def apply(numerics: Numerics, *, device: str = "cpu") -> NumericsRecord:
    """Puts the numerics in force in this process and returns what is now in force.

    Explicit, since the defaults differ between machines (threads) and versions (TensorFloat-32). With
    `deterministic`, an operation that has no deterministic form raises instead of giving other bits each time.
    """
    # cuBLAS reads this when its first handle is made; without it its sums are not reproducible.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(numerics.threads)
    # The same switch as `use_deterministic_algorithms`, which would also load the compiler: 150 MB and a second.
    torch.set_deterministic_debug_mode("error" if numerics.deterministic else "default")
    # Filling fresh memory costs time and only helps code that reads what it never wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = numerics.deterministic
    torch.backends.cudnn.benchmark = not numerics.deterministic
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_default_dtype(torch.float32)
    return record(device=device)


def record(*, device: str = "cpu") -> NumericsRecord:
    """What is in force in this process."""
    name = device
    if device.startswith("cuda") and torch.cuda.is_available():
        name = torch.cuda.get_device_name(torch.device(device))
    return NumericsRecord(device=name, torch=str(torch.__version__),
                          cpu_capability=torch.backends.cpu.get_cpu_capability(), threads=torch.get_num_threads(),
                          deterministic=torch.are_deterministic_algorithms_enabled())
