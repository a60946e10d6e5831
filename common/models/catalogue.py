"""The parts of a network that a study may name: what `coordinator models NAME` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from semisilo.common.config import to_dict
from semisilo.common.learning import batch_norm
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import WrongSize, build_model
from semisilo.common.models.freezing import head_of
from semisilo.common.models.image_sizes import sizes_that_work
from semisilo.common.models.own.model_file import code_of, with_digest

__all__ = ["NetworkParts", "Part", "parts_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of the outermost modules of a network that have parameters, in the order of the network; of a module that has
    more than half of them all, one of its own."""

    name: str
    parameters: int
    has_head: bool
    batch_norm_layers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkParts:
    """A network with its parts."""

    name: str
    parameters: int
    parts: tuple[Part, ...]
    head: tuple[str, ...]
    """Names of the parameters that follow the number of classes."""
    head_parameters: int

    def to_json(self) -> Any:
        """Plain JSON types."""
        return to_dict(self)


def parts_of(name: str, *, num_classes: int, size: int, channels: int, folder: Path | None = None) -> NetworkParts:
    """The parts of a network that is made for these images.

    Args:
        folder: where the file of a network of one's own lies, for whoever permits what `name` names; None permits none.
    Raises: what `build_model` raises; for a wrong image size with sizes that work.
    """
    plain = ModelSettings(name=name, classes=tuple(map(str, range(num_classes))))
    settings = plain if folder is None else with_digest(plain, folder)
    permitted = () if folder is None else code_of(settings, folder)

    def build(classes: int) -> nn.Module:
        return build_model(replace(settings, classes=tuple(map(str, range(classes)))), channels=channels, size=size,
                           allow_factories=permitted)

    try:
        with torch.random.fork_rng(devices=[]):
            model = build(num_classes)
    except WrongSize as error:
        sizes = sizes_that_work(settings, channels=channels, near=size)
        raise WrongSize(error.text, remedy=f"Sizes that work: {', '.join(map(str, sizes))}." if sizes
                        else error.remedy) from error
    head, layers = head_of(build, num_classes), batch_norm.layers_of(model)
    counts = {each: parameter.numel() for each, parameter in model.named_parameters()}
    members: dict[str, list[str]] = {}
    for each in counts:
        members.setdefault(_part_of(each, counts), []).append(each)
    parts = tuple(Part(name=part, parameters=sum(counts[each] for each in own), has_head=not head.isdisjoint(own),
                       batch_norm_layers=sum(layer == part or layer.startswith(f"{part}.") for layer in layers))
                  for part, own in members.items())
    return NetworkParts(name=name, parameters=sum(counts.values()), parts=parts,
                        head=tuple(each for each in counts if each in head),
                        head_parameters=sum(counts[each] for each in head))


def _part_of(name: str, counts: Mapping[str, int]) -> str:
    """The part that a parameter belongs to."""
    first, *rest = name.split(".")
    own = sum(count for each, count in counts.items() if each.partition(".")[0] == first)
    return f"{first}.{rest[0]}" if len(rest) > 1 and 2 * own > sum(counts.values()) else first
