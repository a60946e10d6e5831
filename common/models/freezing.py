"""Parts of a network that nobody trains: which they are, and a network that has them.

A study names them in [model] freeze. Their tensors travel once, down, as group `frozen`: parameters by their names, and
"<layer>.mean", "<layer>.var" of static batch-norm layers whose statistics are fixed. A network that got them trains,
averages and sends the others alone, since all our arithmetic is on the parameters that require a gradient.

Shapes: C channels of a batch-norm layer.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from semisilo.common.errors import BadConfiguration, BadPayload, LayoutMismatch
from semisilo.common.learning import batch_norm

__all__ = ["fixed_statistics", "freeze", "frozen_names", "head_of"]

_STATISTICS = ("mean", "var")


def head_of(build: Callable[[int], nn.Module], num_classes: int) -> frozenset[str]:
    """Names of the parameters whose shape follows the number of classes: the head, whatever the network calls it.

    Args:
        build: makes the network for a number of classes. Networks that can be are made without memory.
    Raises: what `build` raises.
    """
    def shapes(classes: int) -> dict[str, torch.Size]:
        try:
            with torch.device("meta"):
                model = build(classes)
        except Exception:  # some networks read their own numbers while they are made
            with torch.random.fork_rng(devices=[]):
                model = build(classes)
        return {name: parameter.shape for name, parameter in model.named_parameters()}

    few, more = shapes(num_classes), shapes(num_classes + 1)
    return frozenset(name for name, shape in few.items() if more.get(name) != shape)


def frozen_names(model: nn.Module, freeze: Sequence[str] | str, head: Callable[[], Collection[str]]) -> tuple[str, ...]:
    """Names of the parameters that keep their values, in the order of the network, and of batch-norm layers without
    parameters.

    Args:
        freeze: each the name of a parameter, of a module, or a pattern with "*"; or "backbone": all but the head.
        head: names of the head's parameters; asked for "backbone" only.
    Raises: BadConfiguration, naming an entry that fits nothing with the nearest that does; or when nothing is left.
    """
    parameters = [name for name, _ in model.named_parameters()]
    bare = [name for name, layer in batch_norm.layers_of(model).items() if layer.weight is None]
    if freeze == "backbone":
        kept = set(head())
        if not kept:
            raise BadConfiguration('[model] freeze = "backbone": no parameter of the network follows the number of'
                                   " classes, so its head cannot be identified.", remedy="Name the parts to be frozen.")
        chosen = {*parameters, *bare} - kept
    else:
        chosen = set()
        for entry in freeze:
            found = {name for name in (*parameters, *bare) if _belongs(name, entry)}
            if not found:
                raise _unknown(entry, model)
            chosen |= found
    # What its maker has frozen already would otherwise be another one, at random, at every site.
    chosen |= {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if freeze and chosen.issuperset(parameters):
        raise BadConfiguration("[model] freeze leaves nothing to train.", remedy="Leave out the head, at least.")
    return tuple(name for name in (*parameters, *bare) if name in chosen)


def _belongs(name: str, entry: str) -> bool:
    return fnmatchcase(name, entry) or fnmatchcase(name, f"{entry}.*")


def _unknown(entry: str, model: nn.Module) -> BadConfiguration:
    names = [name for name, _ in model.named_parameters()]
    modules = [name for name, module in model.named_modules()
               if name and next(module.parameters(), None) is not None]
    near = difflib.get_close_matches(entry, [*modules, *names], n=1, cutoff=0.5)
    parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    shown = ", ".join(parts[:20]) + (", ..." if len(parts) > 20 else "")
    return BadConfiguration(f"[model] freeze: the network has nothing called '{entry}'.",
                            remedy=f"Did you mean '{near[0]}'?" if near else f"Its parts are: {shown}.")


def fixed_statistics(model: nn.Module, frozen: Collection[str],
                     statistics: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Tensors "<layer>.mean" and "<layer>.var" of batch-norm layers that are frozen as a whole and whose statistics are
    known; the others are measured in the federation, as without freezing.

    Args:
        frozen: from `frozen_names`.
        statistics: (mean, variance) by layer, (C,) each.
    """
    found: dict[str, Tensor] = {}
    for name, layer in batch_norm.layers_of(model).items():
        own = {f"{name}.{part}" for part, _ in layer.named_parameters()} or {name}
        if name in statistics and own.issubset(frozen):
            for kind, tensor in zip(_STATISTICS, statistics[name], strict=True):
                found[f"{name}.{kind}"] = tensor.to(torch.float32, copy=True)
    return found


def freeze(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives the network its frozen tensors, in place; from now on they require no gradient.

    What arrives is checked: it may have come over the network.
    Raises: LayoutMismatch, naming a tensor that is not the network's in name, shape or type, or half of a layer's
        statistics; BadPayload for a negative variance.
    """
    parameters = dict(model.named_parameters())
    layers = batch_norm.layers_of(model)
    statistics = {f"{name}.{kind}": layer for name, layer in layers.items() for kind in _STATISTICS}
    for name, tensor in tensors.items():
        if name in parameters:
            _check(name, tensor, parameters[name].shape, parameters[name].dtype)
        elif name in statistics:
            _check(name, tensor, torch.Size([statistics[name].num_features]), torch.float32)
        else:
            raise LayoutMismatch(f"The frozen tensor '{name}' is not the network's.",
                                 remedy="Both sides need the same network: the same versions of its packages.")
    with torch.no_grad():
        for name in tensors.keys() & parameters.keys():
            parameters[name].copy_(tensors[name])
            parameters[name].requires_grad_(False)
    for layer_name, mean, var in _pairs(layers, tensors):
        if not bool((var >= 0).all()):
            raise BadPayload(f"The frozen batch-norm layer '{layer_name}' has a negative variance.")
        layers[layer_name].fix(mean, var)


def _check(name: str, tensor: Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype != dtype:
        raise LayoutMismatch(f"The frozen tensor '{name}' is {list(tensor.shape)} {tensor.dtype}; the network has"
                             f" {list(shape)} {dtype}.".replace("torch.", ""),
                             remedy="Both sides need the same network: the same versions of its packages.")


def _pairs(layers: Iterable[str], tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor, Tensor]]:
    found = []
    for name in layers:
        mean, var = (tensors.get(f"{name}.{kind}") for kind in _STATISTICS)
        if mean is not None and var is not None:
            found.append((name, mean, var))
        elif mean is not None or var is not None:
            raise LayoutMismatch(f"Of the frozen batch-norm layer '{name}' either the mean or the variance is missing.")
    return found
