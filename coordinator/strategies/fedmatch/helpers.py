"""Whose models a silo gets as helpers in FedMatch: the most reliable silos, or those that answer a noise image alike.

Source: FedMatch, Jeong et al.: by reliability arXiv v1 section 3.3, by similarity ICLR 2021 section 3.1 and official
code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semisilo.common.learning.seeds import numpy_generator

if TYPE_CHECKING:
    import torch

__all__ = ["NearestHelpers", "helpers_by_embedding", "helpers_by_reliability", "noise_image", "pool_joined",
           "pool_keeping", "pool_psi", "pool_silos", "pool_with"]

_NOISE_MEAN = _NOISE_STD = 125.0


@dataclass(frozen=True, slots=True)
class NearestHelpers:
    """Helpers by similarity, nearest first."""

    helpers: tuple[str, ...]
    sq_dist: tuple[float, ...]
    """Squared Euclidean distance of each helper's embedding to the silo's own."""


def helpers_by_reliability(scores: Mapping[str, float], k_self: str, num_helpers: int) -> tuple[str, ...]:
    """The `num_helpers` highest scores among the other silos, best first; oracle M8.

    Args:
        scores: accuracy by silo, of those who may be chosen; `k_self` may be among them. Ties go to the smaller name,
            in byte order.
    Returns: fewer when there are fewer.
    """
    others = sorted((silo for silo in scores if silo != k_self), key=lambda silo: (-scores[silo], silo.encode()))
    return tuple(others[:num_helpers])


def helpers_by_embedding(embeddings: Mapping[str, Sequence[float]], k_self: str, num_helpers: int) -> NearestHelpers:
    """The `num_helpers` nearest other silos by Euclidean distance of their embeddings; oracle M9.

    Args:
        embeddings: class probabilities on the noise image by silo, equally long; without `k_self` nobody is chosen.
            Ties go to the smaller name, in byte order.
    """
    own = embeddings.get(k_self)
    if own is None:
        return NearestHelpers((), ())
    distances = {silo: sum((a - b) ** 2 for a, b in zip(own, other, strict=True))
                 for silo, other in embeddings.items() if silo != k_self}
    nearest = sorted(distances, key=lambda silo: (distances[silo], silo.encode()))[:num_helpers]
    return NearestHelpers(tuple(nearest), tuple(distances[silo] for silo in nearest))


def noise_image(seed: int, *, channels: int, size: int) -> torch.Tensor:
    """The one image on which all models are compared: float32 (1, channels, size, size) on the scale 0 to 1.

    Pixels are normal(125, 125) truncated to 0..255, divided by 255 [C]. Drawn by rejection: it needs no inverse of the
    normal distribution, in which libraries differ in the last bit.

    Args:
        seed: of the study; the image is the same in every round.
    """
    import torch

    generator = numpy_generator(seed, "helper_noise")
    wanted = channels * size * size
    pixels = np.zeros(0)
    while len(pixels) < wanted:
        drawn = generator.normal(_NOISE_MEAN, _NOISE_STD, wanted)
        pixels = np.concatenate([pixels, drawn[(drawn >= 0) & (drawn <= 255)]])
    return torch.from_numpy((pixels[:wanted] / 255).astype(np.float32)).reshape(1, channels, size, size)


# The psi of those who may be chosen, as one dictionary "<silo>/<tensor>" that a state can hold: the name of a silo has
# no slash. The tensors of a silo follow each other. Each of these goes through the pool once.

def pool_silos(pool: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The silos of a pool, in byte order."""
    return tuple(sorted({name.partition("/")[0] for name in pool}, key=str.encode))


def pool_psi(pool: Mapping[str, torch.Tensor], silo: str) -> dict[str, torch.Tensor]:
    """One silo's tensors, under their own names; empty when it is not in the pool."""
    start = f"{silo}/"
    return {name[len(start):]: tensor for name, tensor in pool.items() if name.startswith(start)}


def pool_with(pool: Mapping[str, torch.Tensor], silo: str, psi: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The pool with a silo's tensors in the place of those it had; silos in byte order."""
    return pool_joined(pool, {f"{silo}/{name}": tensor for name, tensor in psi.items()})


def pool_joined(pool: Mapping[str, torch.Tensor], newer: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Both pools, for a silo that is in both the newer one's tensors; silos in byte order."""
    silos = {**_by_silo(pool), **_by_silo(newer)}
    return {name: tensor for silo in sorted(silos, key=str.encode) for name, tensor in silos[silo].items()}


def pool_keeping(pool: Mapping[str, torch.Tensor], silos: Sequence[str]) -> dict[str, torch.Tensor]:
    """The part of a pool that belongs to these silos, in their order."""
    there = _by_silo(pool)
    return {name: tensor for silo in silos for name, tensor in there.get(silo, {}).items()}


def _by_silo(pool: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Its items by silo."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in pool.items():
        found.setdefault(name.partition("/")[0], {})[name] = tensor
    return found
