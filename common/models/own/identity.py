"""What a function, a class or a value is, in plain types: the same for the same code and settings, in every process.

A network is told from others by what it is made of. Its settings are often not among its tensors and layers: an
attribute that `forward` reads, an argument of functools.partial, a value that a function has around it. Code of
packages that are installed is known by its name, and what has no values to compare (a lock, a logger) by its type.
torch is imported only where a value is looked at.

Tests: tests/common/models/own/test_given.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from semisilo.common.config import canonical_json

__all__ = ["LIBRARIES", "Telling", "bytes_of", "written"]

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "monai")
"""Their layers are told apart by how they print."""
_KNOWN_BY_NAME = frozenset({*LIBRARIES, "semisilo", "numpy", *sys.stdlib_module_names})
_INSTALLED = tuple(Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib"))
_MEMBERS = (types.FunctionType, staticmethod, classmethod, property)


class Telling:
    """Tells what values are; what comes a second time by its number, so that circles end."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, object]] = {}  # with the object: the number of one that is gone is given again

    def value(self, value: Any) -> Any:
        """JSON types, which are equal where values are."""
        import numpy as np
        import torch
        from torch import nn

        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, (tuple, torch.Size)):
            return [self.value(item) for item in value]
        if isinstance(value, (frozenset, set)):
            return ["set", *sorted(canonical_json(self.value(item)) for item in value)]
        if isinstance(value, (int, float, complex, str, bytes, range, slice, np.generic, torch.dtype, torch.device,
                              Path)):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if (before := self._seen.get(id(value))) is not None:
            return f"number {before[0]}"
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, Mapping):
            return ["table", *sorted(([self.value(key), self.value(item)] for key, item in value.items()),
                                     key=canonical_json)]
        if isinstance(value, torch.Tensor):
            return [str(value.dtype), list(value.shape),
                    "" if value.requires_grad else hashlib.sha256(bytes_of(value)).hexdigest()]
        if isinstance(value, np.ndarray):
            return self.value(value.tolist()) if value.dtype.hasobject else \
                [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        if isinstance(value, nn.Module):
            return [str(value), self.attributes(value), self.value(dict(value.state_dict()))]
        return self._code(value) if callable(value) else self._settings(value)

    def attributes(self, network: Any) -> dict[str, Any]:
        """What the modules of a network hold besides tensors and other modules."""
        from torch import nn

        usual = vars(nn.Module())
        return {path: {name: self.value(value) for name, value in sorted(vars(module).items()) if name not in usual}
                for path, module in network.named_modules()}

    def _code(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return ["partial", self.value(value.func), self.value(value.args), self.value(value.keywords)]
        if isinstance(value, types.MethodType):
            return ["method", self.value(value.__func__), self.value(value.__self__)]
        if isinstance(value, types.FunctionType):
            return self._function(value) if _is_own(value) else _name(value)
        if isinstance(value, type):
            return self._class(value) if _is_own(value) else _name(value)
        if hasattr(value, "__wrapped__"):  # of functools.lru_cache
            return self.value(value.__wrapped__)
        return self._settings(value) if _is_own(type(value)) else _name(value)

    def _function(self, function: types.FunctionType) -> list[Any]:
        code = function.__code__
        found: list[Any] = [written(function), self.value(function.__defaults__), self.value(function.__kwdefaults__)]
        if code.co_name == "<lambda>":  # two of them may stand on one line
            found.append([list(code.co_names), list(code.co_freevars)])
        for cell in function.__closure__ or ():
            try:
                found.append(self.value(cell.cell_contents))
            except ValueError:
                found.append("empty")
        for name in sorted(set(_globals_of(code)) & function.__globals__.keys()):
            other = function.__globals__[name]
            is_code = isinstance(other, (types.FunctionType, type))
            found.append([name, _name(other) if is_code and other.__module__ != function.__module__
                          else self.value(other)])
        return found

    def _class(self, cls: type) -> list[Any]:
        members: dict[str, Any] = {}
        for name, member in sorted(vars(cls).items()):
            if isinstance(member, _MEMBERS):
                members[name] = self.value(getattr(member, "__func__", getattr(member, "fget", member)))
            elif not name.startswith("__"):
                members[name] = self.value(member)
        return [_name(cls), [self.value(base) for base in cls.__bases__], members]

    def _settings(self, value: Any) -> Any:
        """An object that holds settings: somebody's own, or of a kind that is there for that."""
        own = _is_own(type(value))
        if own or dataclasses.is_dataclass(value) or isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
            return [self.value(type(value)), self.value(dict(getattr(value, "__dict__", {})))]
        return f"a {_name(type(value))}"


def bytes_of(tensor: Any) -> bytes:
    """The values of a tensor on any device; nothing of one that has none."""
    import torch

    return b"" if tensor.is_meta else \
        tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def written(thing: object) -> str:
    """A class or function as it is written; of what has no source its instructions, names and constants."""
    if isinstance(thing, type):
        members = [written(value) for _, value in sorted(vars(thing).items()) if isinstance(value, _MEMBERS)]
        return "\n".join([f"class {thing.__qualname__}", *members])
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    if isinstance(thing, property):
        thing = thing.fget
    code = getattr(thing, "__code__", None)
    if not isinstance(code, types.CodeType):
        return f"a {type(thing).__qualname__}"  # what it makes is looked at all the same
    try:
        return inspect.getsource(code)
    except (OSError, TypeError, IndexError):
        return _instructions(code)


def _instructions(code: types.CodeType) -> str:
    constants = [_instructions(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Names that a function, and those inside it, look up in their module."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", ""))
    return f"{getattr(thing, '__module__', '')}.{name}" if name else f"a {_name(type(thing))}"


def _is_own(thing: Any) -> bool:
    """Whether a function or class is somebody's own: of a notebook, a script, or a package that is worked on."""
    module = getattr(thing, "__module__", None) or ""
    if module.partition(".")[0] in _KNOWN_BY_NAME:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)  # of a notebook, that of Jupyter
    return module == "__main__" or file is None or not any(Path(file).is_relative_to(folder) for folder in _INSTALLED)
