"""Networks that somebody hands over from Python: `semisilo.simulate(model=my_network)`.

A study names such a network by a digest of what it is: its classes and functions as they are written and with the
values around them, its layers and their attributes, the names, shapes and types of its tensors, the values of its
buffers, and those of all tensors of one that is handed over built. So another network is another study, and the same
one goes on. The network itself stays in memory: nothing of it is written, or read back, as code.

Processes that train beside this one get it pickled (`packed`). torch is imported only where a network is looked at.

Tests: tests/common/models/own/test_given.py.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semisilo.common.config import canonical_json
from semisilo.common.errors import UsageError
from semisilo.common.models.own.identity import LIBRARIES, Telling, bytes_of, written
from semisilo.common.process.turns import at_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["GIVEN", "CannotBePacked", "GivenNetwork", "Network", "give", "given_factory", "packed", "unpack"]

GIVEN = "given_in_python"
"""Stands for the package in the names of such networks: "given_in_python:MyNetwork"."""

Factory = Callable[..., "nn.Module"]
"""Called as `factory(num_classes=, channels=, size=)`, it makes a new network."""
Network = Any  # torch is not imported for a type
"""A torch.nn.Module, which starts with the weights that it has; or a `Factory`, such as the class of one."""

_GIVEN: dict[str, Factory] = {}
"""The networks that this process was handed, by digest."""


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
        built, title = kept, type(network).__name__
        parts: list[Any] = []
    elif callable(network):
        with at_torch(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            built = _called(network, num_classes=num_classes, channels=channels, size=size)
        _check_whole(built)
        factory, title = network, getattr(network, "__name__", type(network).__name__)
        parts = [written(network), network]
    else:
        raise UsageError(f"model = {str(network)[:80]!r} is neither a network's name nor a network.",
                         remedy="Give a name, a torch.nn.Module, or a function of num_classes, channels and size that"
                                " makes one.")
    digest = _digest(built, parts, with_values=isinstance(network, nn.Module))
    if sha256 and not isinstance(network, nn.Module) and sha256 not in (
            digest, _digest_of_earlier_versions(built, network)):
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
    import torch
    from torch.nn.parameter import is_lazy

    if isinstance(network, torch.jit.ScriptModule):
        raise UsageError("model: is a network of TorchScript, whose layers cannot be looked at and trained here.",
                         remedy="Hand over the network that it was made of.")
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(f"model: {name} has no shape yet: the network has lazy layers.",
                             remedy="Send one batch of images through it first.")
        if tensor.is_meta:
            raise UsageError(f"model: {name} has no values: it is on torch's device 'meta'.",
                             remedy="Build the network on the CPU, or load its weights first.")


# What a network is ----------------------------------------------------------------------------------------------------


def _digest(built: nn.Module, parts: list[Any], *, with_values: bool) -> str:
    """SHA-256, hex, of what tells a network from others."""
    total, telling = hashlib.sha256(b"semisilo network v2\0"), Telling()
    buffers = dict(built.named_buffers())  # of which some are not in the state
    tensors = {**built.state_dict(), **buffers}
    total.update(canonical_json([
        [telling.value(part) for part in parts], *_description(built, tensors),
        [telling.value(cls) for cls in _own_classes(built)], telling.attributes(built)]).encode())
    if with_values:
        buffers = tensors
    for tensor in buffers.values():
        total.update(bytes_of(tensor))
    return total.hexdigest()


def _digest_of_earlier_versions(built: nn.Module, network: object) -> str:
    """Of what makes a network, as models were named that it was trained as before version 2 of the digest."""
    return hashlib.sha256(b"semisilo network v1\0" + canonical_json(
        [written(network), *_description(built, built.state_dict())]).encode()).hexdigest()


def _description(built: nn.Module, tensors: Mapping[str, Tensor]) -> list[Any]:
    """Its layers, how the classes of its own layers are written, its tensors, and which are trained."""
    return [str(built), *map(written, _own_classes(built)),
            {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()},
            [name for name, parameter in built.named_parameters() if parameter.requires_grad]]


def _own_classes(network: nn.Module) -> Iterator[type]:
    """The classes of a network's own layers, each once."""
    found = dict.fromkeys(base for module in network.modules() for base in type(module).__mro__)
    for cls in sorted(found, key=lambda each: each.__qualname__):  # of one name in the order of the layers
        if cls.__module__.partition(".")[0] not in (*LIBRARIES, "builtins", "typing", "abc"):
            yield cls
