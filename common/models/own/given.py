"""Networks that somebody hands over from Python: `semisilo.simulate(model=my_network)`.

A study names such a network by a digest of what it is: its classes and functions as they are written, its layers, the
names, shapes and types of its tensors, and the values of one that is handed over built. So another network is another
study, and the same one goes on. The network itself stays in memory: nothing of it is written, or read back, as code.

Processes that train beside this one get it pickled (`packed`). torch is imported only where a network is looked at.

Tests: tests/common/models/own/test_given.py.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import pickle
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semisilo.common.config import canonical_json
from semisilo.common.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["GIVEN", "CannotBePacked", "GivenNetwork", "Network", "give", "given_factory", "packed", "unpack"]

GIVEN = "given_in_python"
"""Stands for the package in the names of such networks: "given_in_python:MyNetwork"."""

Factory = Callable[..., "nn.Module"]
"""Called as `factory(num_classes=, channels=, size=)`, it makes a new network."""
Network = Any  # torch is not imported for a type
"""A torch.nn.Module, which starts with the weights that it has; or a `Factory`, such as the class of one."""

_GIVEN: dict[str, Factory] = {}
"""The networks that this process was handed, by digest."""
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "monai")
"""Their layers are told apart by how they print."""


class CannotBePacked(Exception):
    """A network that other processes cannot be given; why, in a sentence."""


@dataclass(frozen=True, slots=True)
class GivenNetwork:
    """How a study names a network that was handed over."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class _Copies:
    """Makes copies of a network that was handed over built."""

    network: nn.Module

    def __call__(self, *, num_classes: int, channels: int, size: int) -> nn.Module:
        return copy.deepcopy(self.network)


def give(network: Network, *, num_classes: int, channels: int, size: int, sha256: str = "") -> GivenNetwork:
    """Keeps a network for this process, so that `build_model` finds it.

    Args:
        network: a torch.nn.Module, or what makes one.
        num_classes, channels, size: of the study's images; its first network is built for them, to be looked at.
        sha256: of a network that was trained: the one given now is to take its place. Empty: what it is.
    Raises: UsageError for what is neither, or makes none.
    """
    import torch
    from torch import nn

    if isinstance(network, nn.Module):
        _check_whole(network)
        kept = copy.deepcopy(network).cpu().train()
        factory: Factory = _Copies(kept)
        built, title, parts = kept, type(network).__name__, []
    elif callable(network):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            built = _called(network, num_classes=num_classes, channels=channels, size=size)
        _check_whole(built)
        factory, title, parts = network, getattr(network, "__name__", type(network).__name__), [_written(network)]
    else:
        raise UsageError(f"model = {str(network)[:80]!r} is neither a network's name nor a network.",
                         remedy="Give a name, a torch.nn.Module, or a function of num_classes, channels and size that"
                                " makes one.")
    digest = _digest(built, parts, with_values=isinstance(network, nn.Module))
    if sha256 and not isinstance(network, nn.Module) and digest != sha256:
        raise UsageError(f"{title} is another network than the one that was trained.",
                         remedy="Hand over the class or function as it was, or a network built as it was.")
    _GIVEN[sha256 or digest] = factory
    plain = title if title.isidentifier() and title.isascii() else "network"  # "<lambda>"
    return GivenNetwork(f"{GIVEN}:{plain[:60]}", sha256 or digest)


def given_factory(sha256: str) -> Factory | None:
    """What makes a network that this process was handed; None where it was not."""
    return _GIVEN.get(sha256)


def packed(sha256: str) -> bytes:
    """What `unpack` takes in another process with the same packages; classes and functions of a notebook go with it.

    Raises: CannotBePacked where the network holds what cannot leave a process, or was not handed over here.
    """
    import cloudpickle

    factory = _GIVEN.get(sha256)
    if factory is None:
        raise CannotBePacked("The network was not handed to this process.")
    try:
        return bytes(cloudpickle.dumps((sha256, factory)))
    except Exception as error:  # whatever the network's own parts raise
        raise CannotBePacked(f"The network cannot be given to other processes: {type(error).__name__}:"
                             f" {str(error).splitlines()[0] if str(error) else 'no reason given'}") from error


def unpack(content: bytes) -> None:
    """Keeps a network that another process of this simulation has packed. Of nobody else: it runs what it reads."""
    sha256, factory = pickle.loads(content)
    _GIVEN[sha256] = factory


def _called(factory: Factory, *, num_classes: int, channels: int, size: int) -> nn.Module:
    from torch import nn

    try:
        built = factory(num_classes=num_classes, channels=channels, size=size)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise UsageError(f"model: {getattr(factory, '__name__', factory)} failed: {type(error).__name__}:"
                         f" {reason[0] if reason else 'no reason given'}",
                         remedy="It is called with num_classes=, channels= and size=. Hand over a function of these,"
                                " such as: lambda num_classes, channels, size: MyNetwork(num_classes).") from error
    if not isinstance(built, nn.Module):
        raise UsageError(f"model: {getattr(factory, '__name__', factory)} made a {type(built).__name__}, not a"
                         " torch.nn.Module.")
    return built


def _check_whole(network: nn.Module) -> None:
    from torch.nn.parameter import is_lazy

    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(f"model: {name} has no shape yet: the network has lazy layers.",
                             remedy="Send one batch of images through it first.")


# What a network is ----------------------------------------------------------------------------------------------------


def _digest(built: nn.Module, parts: list[str], *, with_values: bool) -> str:
    """SHA-256, hex, of what tells a network from others."""
    import torch

    total = hashlib.sha256(b"semisilo network v1\0")
    tensors = built.state_dict()
    total.update(canonical_json([
        *parts, str(built), *_classes_of(built),
        {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()},
        [name for name, parameter in built.named_parameters() if parameter.requires_grad]]).encode())
    if with_values:
        for tensor in tensors.values():
            total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _classes_of(network: nn.Module) -> Iterator[str]:
    """How the classes of a network's own layers are written, each once."""
    seen = {type(module) for module in network.modules()}
    for cls in sorted({base for each in seen for base in each.__mro__}, key=lambda each: each.__qualname__):
        if cls.__module__.partition(".")[0] not in (*_LIBRARIES, "builtins", "typing", "abc"):
            yield _written(cls)


def _written(thing: object) -> str:
    """A class or function as it is written; of what has no source its instructions, names and constants."""
    if isinstance(thing, type):
        members = [_written(value) for _, value in sorted(vars(thing).items())
                   if isinstance(value, (types.FunctionType, staticmethod, classmethod, property))]
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
