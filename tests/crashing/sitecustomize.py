"""Loaded by every Python process with this folder on PYTHONPATH: kills the process at a chosen call, as kill -9 does.

SEMISILO_TEST_CRASH = "module:qualified.name:n:when[:word]" kills around the n-th call of that function, `when` being
"before" or "after"; with `word`, only calls count whose arguments' text contains it. A light process dies alone; a
compute process takes the light one with it, as a loss of power would.

SEMISILO_TEST_LIE = "module:Class.train:what" makes a trainer lie in every update: "weights" has 3e38 in every value,
"count" says that it is from a billion images. "module:function:shares" makes what that seals for others zeros.
"module:Link.upload:bytes" sends other bytes than those that were written, as `hostile_bytes.py` has them.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import signal
import sys
from types import ModuleType


def _die() -> None:
    if any("semisilo.common.process.compute" in word for word in sys.orig_argv):
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _patch(module: ModuleType, name: str, count: int, when: str, word: str) -> None:
    owner: object = module
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    calls = 0

    def hit(args: object, kwargs: object) -> bool:
        nonlocal calls
        if word and word not in repr((args, kwargs)):
            return False
        calls += 1
        return calls == count

    if inspect.iscoroutinefunction(original):
        @functools.wraps(original)
        async def wrapper(*args: object, **kwargs: object) -> object:
            dies = hit(args, kwargs)
            if dies and when == "before":
                _die()
            result = await original(*args, **kwargs)
            if dies:
                _die()
            return result
    else:
        @functools.wraps(original)
        def wrapper(*args: object, **kwargs: object) -> object:
            dies = hit(args, kwargs)
            if dies and when == "before":
                _die()
            result = original(*args, **kwargs)
            if dies:
                _die()
            return result
    setattr(owner, last, wrapper)


def _lie(module: ModuleType, name: str, what: str) -> None:
    import dataclasses

    if what == "shares":
        seal = getattr(module, name)
        setattr(module, name, lambda *args, **kwargs: bytes(len(seal(*args, **kwargs))))
        return
    owner, _, last = name.partition(".")
    cls = getattr(module, owner)
    original = getattr(cls, last)
    if what == "bytes":
        from hostile_bytes import lying

        setattr(cls, last, lying(original))
        return

    @functools.wraps(original)
    def wrapper(*args: object, **kwargs: object) -> object:
        update, memory = original(*args, **kwargs)
        if update.abstention:
            return update, memory
        if what == "count":
            return dataclasses.replace(update, num_examples=10**9), memory
        groups = {key: dataclasses.replace(group, digest="", tensors={
            tensor: values.new_full(values.shape, 3e38) for tensor, values in group.tensors.items()})
            for key, group in update.groups.items()}
        return dataclasses.replace(update, groups=groups), memory
    setattr(cls, last, wrapper)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, apply: object, *patch: object) -> None:
        self._name = name
        self._apply = apply
        self._patch = patch

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute, apply, patch = spec.loader.exec_module, self._apply, self._patch

        def exec_module(module: ModuleType) -> None:
            execute(module)
            apply(module, *patch)  # type: ignore[operator]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "SEMISILO_TEST_CRASH" in os.environ:
    import importlib.util

    _module, _name, _count, _when, *_word = os.environ["SEMISILO_TEST_CRASH"].split(":")
    sys.meta_path.insert(0, _Finder(_module, _patch, _name, int(_count), _when, _word[0] if _word else ""))

if "SEMISILO_TEST_LIE" in os.environ:
    import importlib.util

    _module, _name, _what = os.environ["SEMISILO_TEST_LIE"].split(":")
    sys.meta_path.insert(0, _Finder(_module, _lie, _name, _what))
