"""Sets what must be equal on two machines for equal bits, and records what is in force."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from semisilo.common.methods.numerics import Numerics, NumericsRecord, Precision
from semisilo.common.numerics.side_by_side import lanes, set_lanes
from semisilo.common.process.processors import usable_processors
from semisilo.common.process.turns import at_torch

__all__ = ["apply", "as_handed_over", "at_work", "code_of_others", "left_as_it_was", "precision", "record",
           "settings_left_as_they_were"]

_REDUCED: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions whose convolutions and matrix products are computed in a type of 16 bits."""

_precision: Precision = "fp32"
_channels_last = False


def apply(numerics: Numerics, *, device: str = "cpu", processors: int = 0) -> NumericsRecord:
    """Puts the numerics in force in this process and returns what is now in force.

    Explicit, since the defaults differ between machines (threads) and versions (TensorFloat-32). With
    `deterministic`, an operation that has no deterministic form raises instead of giving other bits each time.
    Networks that were built before (`at_work`) keep the memory format that they have.

    Args:
        numerics: threads of 0 count as 1 here; whoever measures them does so before.
        processors: how many this process may keep busy; 0: all that the system lets it use. Passes that do not need
            each other go side by side on those that one operation leaves free, which changes no bits.
    """
    global _precision, _channels_last
    threads = max(1, numerics.threads)
    # cuBLAS reads this when its first handle is made; without it its sums are not reproducible.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    set_lanes(max(1, (processors or usable_processors()) // threads) if device == "cpu" else 1)
    # The same switch as `use_deterministic_algorithms`, which would also load the compiler: 150 MB and a second.
    torch.set_deterministic_debug_mode("error" if numerics.deterministic else "default")
    # Filling fresh memory costs time and only helps code that reads what it never wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = numerics.deterministic
    torch.backends.cudnn.benchmark = not numerics.deterministic
    torch.backends.cudnn.allow_tf32 = numerics.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = numerics.precision == "tf32"
    torch.set_default_dtype(torch.float32)
    _precision = numerics.precision
    # On an accelerator only the units for short types like it; on a CPU convolutions always do.
    wins = device == "cpu" or numerics.precision != "fp32"
    _channels_last = numerics.memory_format == "channels_last" or (numerics.memory_format == "auto" and wins)
    return record(device=device)


@contextmanager
def as_handed_over() -> Iterator[None]:
    """float32 without TensorFloat-32, and operations that have a deterministic form in it: what a model that is handed
    over is measured with (`apply`), for a while in somebody else's process. Afterwards all is as it was, also after an
    error. An operation without such a form does not raise: the answer is better than none.
    """
    # Before the first handle of cuBLAS: its sums are not reproducible without.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    wanted = {(torch.backends.cudnn, "deterministic"): True, (torch.backends.cudnn, "benchmark"): False,
              (torch.backends.cudnn, "allow_tf32"): False, (torch.backends.cuda.matmul, "allow_tf32"): False,
              (torch.utils.deterministic, "fill_uninitialized_memory"): False}
    before = {(owner, name): getattr(owner, name) for owner, name in wanted}
    mode = torch.get_deterministic_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_deterministic_debug_mode("warn" if mode == 0 else mode)
            for (owner, name), value in wanted.items():
                setattr(owner, name, value)
            yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
        torch.set_deterministic_debug_mode(mode)


@contextmanager
def left_as_it_was() -> Iterator[None]:
    """Afterwards the numerics of this process, torch's settings and its generator are as they were, also after an
    error: operations put theirs in force (`apply`) and draw, and here the process is the caller's own. Nobody else's
    operation is disturbed by it (`at_torch`)."""
    with at_torch():
        generator, put_back = torch.get_rng_state(), _settings()
    try:
        yield
    finally:
        with at_torch():
            put_back()
            torch.set_rng_state(generator)


@contextmanager
def code_of_others() -> Iterator[None]:
    """Around what runs code of others within an operation: `settings_left_as_they_were`, and torch's generator too."""
    with torch.random.fork_rng(devices=[]), settings_left_as_they_were():
        yield


@contextmanager
def settings_left_as_they_were() -> Iterator[None]:
    """Afterwards the numerics of this process and torch's settings are as they were, also after an error; its generator
    has gone on. Within an operation, for code of others: many a script sets threads or TensorFloat-32."""
    put_back = _settings()
    try:
        yield
    finally:
        put_back()


def _settings() -> Callable[[], None]:
    """What puts the numerics of this process and torch's settings back to what they are now."""
    flags = [(torch.backends.cudnn, "deterministic"), (torch.backends.cudnn, "benchmark"),
             (torch.backends.cudnn, "allow_tf32"), (torch.backends.cuda.matmul, "allow_tf32"),
             (torch.utils.deterministic, "fill_uninitialized_memory")]
    before = [(owner, name, getattr(owner, name)) for owner, name in flags]
    threads, mode, lanes_before = torch.get_num_threads(), torch.get_deterministic_debug_mode(), lanes()
    dtype, gradients, own = torch.get_default_dtype(), torch.is_grad_enabled(), (_precision, _channels_last)

    def put_back() -> None:
        global _precision, _channels_last
        for owner, name, value in before:
            setattr(owner, name, value)
        torch.set_num_threads(threads)
        set_lanes(lanes_before)
        torch.set_deterministic_debug_mode(mode)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        _precision, _channels_last = own

    return put_back


def record(*, device: str = "cpu") -> NumericsRecord:
    """What is in force in this process."""
    name = device
    if device.startswith("cuda") and torch.cuda.is_available():
        name = torch.cuda.get_device_name(torch.device(device))
    return NumericsRecord(device=name, torch=str(torch.__version__),
                          cpu_capability=torch.backends.cpu.get_cpu_capability(), threads=torch.get_num_threads(),
                          deterministic=torch.are_deterministic_algorithms_enabled(), precision=_precision,
                          memory_format="channels_last" if _channels_last else "contiguous")


def precision() -> Precision:
    """The precision in force in this process."""
    return _precision


def at_work(model: nn.Module) -> nn.Module:
    """A network in the form of the numerics in force: its convolutions' memory format, its precision.

    Weights stay float32 and logits are float32; with "bf16" and "fp16" convolutions and matrix products between them
    are computed in the short type, sums and normalisation statistics in float32 (torch's autocast). A network
    without convolutions keeps its memory format.
    """
    if _channels_last and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model = model.to(memory_format=torch.channels_last)
    if _precision in _REDUCED:
        kind = type(model)
        if not issubclass(kind, _Reduced):  # a class, not a function in place of `forward`: it survives copying
            model.__class__ = type(kind.__name__, (_Reduced, kind), {})
    return model


class _Reduced(nn.Module):
    """A network whose forward pass runs in the precision in force, with float32 logits."""

    def forward(self, *args: Any) -> Any:
        dtype, device = _REDUCED.get(_precision), args[0].device.type
        with nullcontext() if dtype is None else torch.autocast(device, dtype=dtype):
            output = super().forward(*args)
        return output.float() if isinstance(output, Tensor) else output
