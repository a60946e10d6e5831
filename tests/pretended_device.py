"""A device that there is not: its tensors say that they lie on "meta", and the CPU computes what they hold.

For code that is written for accelerators, on machines that have none. As on a real one, an operation of two tensors of
which one lies on the CPU is a mistake, and so is a generator of the CPU that draws on the device; scalars and indices
may come from the CPU. What makes the host wait for the device is counted. What is not like a real one: its numbers are
the CPU's bits, nothing runs beside the host, and code that asks for the type "cuda" takes its other path.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from semisilo.common.numerics.side_by_side import lanes, set_lanes

__all__ = ["DEVICE", "PretendedTensor", "WrongDevice", "on_the_device", "pretended_device"]

DEVICE = "meta"
_ROOT = str(Path(__file__).parents[1])
_aten = torch.ops.aten
_BETWEEN = (_aten.copy_.default, _aten._to_copy.default)
"""Operations that move what a tensor holds from one device to another."""
_INDEXING = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)
_WAITING = (_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default,
            _aten.equal.default)
_MAKING = (torch.tensor, torch.as_tensor, torch.asarray)
_waits: Counter[str] | None = None
"""Of `pretended_device`."""


class WrongDevice(RuntimeError):
    """What a real device would refuse."""


class PretendedTensor(Tensor):
    """A tensor of the device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=torch.device(DEVICE), requires_grad=False)
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PretendedTensor({self.held})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})

    def tolist(self) -> Any:
        _wait()
        return self.held.tolist()


@contextmanager
def pretended_device() -> Iterator[Counter[str]]:
    """While it lasts `device="meta"` is the device, in this thread. Gives what has made the host wait for it: places in
    our code, and how often. As with a real one, passes do not go side by side in other threads."""
    global _waits
    _waits, at_a_time = Counter(), lanes()
    set_lanes(1)
    try:
        with _Dispatch(), _Making():
            yield _waits
    finally:
        set_lanes(at_a_time)
        _waits = None


class _Dispatch(TorchDispatchMode):
    """Sees tensors that are made on the device, and moved to it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


class _Making(TorchFunctionMode):
    """Sees tensors that are made of numbers of Python, of which no operation tells."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _MAKING and _is_device(kwargs.get("device")):
            return function(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        return function(*args, **kwargs)


def _is_device(device: object) -> bool:
    return isinstance(device, (str, torch.device)) and torch.device(device).type == DEVICE


def _computed(function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What an operation gives: computed by the CPU, on the device where a real one would have it there."""
    leaves = _pytree.tree_leaves((args, dict(kwargs)))
    there = [each for each in leaves if isinstance(each, PretendedTensor)]
    here = [each for each in leaves if isinstance(each, Tensor) and not isinstance(each, PretendedTensor)]
    to = kwargs.get("device")
    gives_there = bool(there) if to is None else _is_device(to)
    if function is _aten.copy_.default:
        gives_there = isinstance(args[0], PretendedTensor)
    _check(function, args, leaves, here=here, there=there, gives_there=gives_there)
    if there and (function in _WAITING or not gives_there or (
            function in _INDEXING and any(each.dtype == torch.bool for each in args[1] if each is not None))):
        _wait()
    held_args, held_kwargs = _pytree.tree_map(
        lambda each: each.held if isinstance(each, PretendedTensor) else each, (args, dict(kwargs)))
    if _is_device(to):
        held_kwargs["device"] = torch.device("cpu")
    found = function(*held_args, **held_kwargs)
    if not gives_there:
        return found
    found = _pytree.tree_map(
        lambda each: PretendedTensor(each) if isinstance(each, Tensor) else each, found)
    return return_and_correct_aliasing(function, args, dict(kwargs), found) if there else found


def _check(function: Any, args: Any, leaves: list[Any], *, here: list[Tensor], there: list[PretendedTensor],
           gives_there: bool) -> None:
    """Raises: WrongDevice."""
    if gives_there and any(isinstance(each, torch.Generator) and each.device.type == "cpu" for each in leaves):
        raise WrongDevice(f"{function}: a generator of the CPU draws on the device, at {_place()}")
    if not (here and there) or function in _BETWEEN:
        return
    if function in _INDEXING and isinstance(args[0], PretendedTensor):
        here = [each for each in args[2:] if isinstance(each, Tensor) and not isinstance(each, PretendedTensor)]
    changes_here = str(function).split(".")[1].endswith("_") and not isinstance(args[0], PretendedTensor)
    if changes_here or any(each.ndim for each in here):
        raise WrongDevice(f"{function}: one tensor lies on the CPU, one on the device, at {_place()}")


def _wait() -> None:
    if _waits is not None:
        _waits[_place()] += 1


def _place() -> str:
    """The innermost line of ours."""
    ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(_ROOT)
            and "site-packages" not in frame.filename and frame.filename != __file__]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno} ({ours[-1].name})" if ours else "?"


def on_the_device(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work with the device at hand."""
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with pretended_device():
            return work(*args, **kwargs)

    return wrapped
