"""What says of a split who holds which images, with digests: so that anyone can check a participant's part.

`semisilo split` writes it beside the parts themselves (`semisilo.simulation.parts`).

Tests: tests/semisilo/simulation/splits/test_splits.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from semisilo.common.data.multi_hot import num_strata, strata_of
from semisilo.common.errors import BadConfiguration
from semisilo.simulation.splits.splits import Indices, Split, class_distributions, non_iidness

__all__ = ["index_digest", "split_manifest"]


def index_digest(indices: ArrayLike) -> str:
    """SHA-256, hex, of the indices as little-endian 64-bit integers."""
    return hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").tobytes()).hexdigest()


def split_manifest(
    split: Split, labels_N: ArrayLike, *, classes: Sequence[str], source: str, settings: Mapping[str, object],
    silo_names: Sequence[str] | None = None, rounds_per_step: int = 1, classes_known: bool = True,
) -> dict[str, Any]:  # JSON: those who write parts add what their files hold to each entry
    """Plain JSON types that name the split and let anyone check a part.

    The entry of a silo names its unlabelled images; "labelled" in it its labelled ones, and "steps" in which order the
    unlabelled ones come, where there are any.
    Args:
        labels_N: of the whole set; class counts come from it.
        source: where the images came from, as the user wrote it.
        settings: name, seed and numbers of the split, so that it can be made again.
        silo_names: one per silo, by default "silo-000", ...
        rounds_per_step: rounds that each step of a streaming split lasts.
        classes_known: whether the labels of what silos have stand for classes; otherwise nothing is said of them.
    Raises: BadConfiguration when names and silos do not match in number, or a name is not usable as a file name.
    """
    names = _silo_names(split, silo_names)
    labels = np.asarray(labels_N)

    def part(indices: Indices, known: bool = True) -> dict[str, object]:
        own = labels[indices]
        counts = ((own == 1).sum(axis=0) if own.ndim == 2 else np.bincount(own, minlength=len(classes))).tolist()
        return {"num_images": len(indices), "sha256_indices": index_digest(indices),
                **({"class_counts": dict(zip(classes, counts, strict=True))} if known else {}),
                "indices": indices.tolist()}

    def silo(index: int, name: str) -> dict[str, object]:
        entry = {"file": f"{name}.npz", **part(split.silos[index], classes_known)}
        if split.labelled:
            entry["labelled"] = part(split.labelled[index])
        if split.steps:
            entry["steps"] = [part(step) for step in split.steps[index]]
        return entry

    rest = {name: {"file": f"{name}.npz", **part(indices)}
            for name, indices in _shared_parts(split).items() if len(indices)}
    return {
        "format": 1,
        "source": source,
        "settings": dict(settings),
        "classes": list(classes),
        "num_images": len(labels),
        **({"non_iidness": non_iidness(class_distributions(
            strata_of(labels), split, num_classes=num_strata(labels, len(classes))))} if classes_known else {}),
        **({"rounds_per_step": rounds_per_step} if split.steps else {}),
        "silos": {name: silo(index, name) for index, name in enumerate(names)},
        **rest,
    }


def _shared_parts(split: Split) -> dict[str, Indices]:
    return {"coordinator": split.coordinator, "validation": split.validation, "test": split.test}


def _silo_names(split: Split, names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [f"silo-{number:03d}" for number in range(len(split.silos))]
    if len(names) != len(split.silos):
        raise BadConfiguration(f"{len(split.silos)} silos but {len(names)} names.")
    taken: set[str] = {"coordinator", "validation", "test"}
    for name in names:
        if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name or name in taken:
            raise BadConfiguration(f"'{name}' cannot be the name of a silo's file.", remedy="Use another name.")
        taken.add(name)
    return list(names)
