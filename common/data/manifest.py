"""A split on disk: a manifest with digests, and each participant's part as an .npz that the readers understand.

So a deployed silo can be given exactly its part, and anyone can check that it is that part. Unlabelled parts hold no
labels. The same split and images give the same bytes.

A silo's file holds `images`; where silos have labels or images come in steps, it has `labelled_images`,
`labelled_labels` and `unlabelled_images`, and with steps `unlabelled_steps` and `rounds_per_step` instead.

Shapes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.config import canonical_json
from common.data.splits import Indices, Split, class_distributions, non_iidness
from common.errors import BadConfiguration, BadData

__all__ = ["index_digest", "split_manifest", "write_split"]


def index_digest(indices: ArrayLike) -> str:
    """SHA-256, hex, of the indices as little-endian 64-bit integers."""
    return hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").tobytes()).hexdigest()


def split_manifest(
    split: Split, labels_N: ArrayLike, *, classes: Sequence[str], source: str, settings: Mapping[str, Any],
    silo_names: Sequence[str] | None = None, rounds_per_step: int = 1,
) -> dict[str, Any]:
    """Plain JSON types that name the split and let anyone check a part.

    The entry of a silo names its unlabelled images; "labelled" in it its labelled ones, and "steps" in which order the
    unlabelled ones come, where there are any.
    Args:
        labels_N: of the whole set; class counts come from it.
        source: where the images came from, as the user wrote it.
        settings: name, seed and numbers of the split, so that it can be made again.
        silo_names: one per silo, by default "silo-000", ...
        rounds_per_step: rounds that each step of a streaming split lasts.
    Raises: BadConfiguration when names and silos do not match in number, or a name is not usable as a file name.
    """
    names = _silo_names(split, silo_names)
    labels = np.asarray(labels_N)

    def part(indices: Indices) -> dict[str, Any]:
        counts = np.bincount(labels[indices], minlength=len(classes)).tolist()
        return {"num_images": len(indices), "sha256_indices": index_digest(indices),
                "class_counts": dict(zip(classes, counts, strict=True)), "indices": indices.tolist()}

    def silo(place: int, name: str) -> dict[str, Any]:
        entry = {"file": f"{name}.npz", **part(split.silos[place])}
        if split.labelled:
            entry["labelled"] = part(split.labelled[place])
        if split.steps:
            entry["steps"] = [part(step) for step in split.steps[place]]
        return entry

    rest = {name: {"file": f"{name}.npz", **part(indices)}
            for name, indices in _shared_parts(split).items() if len(indices)}
    return {
        "format": 1,
        "source": source,
        "settings": dict(settings),
        "classes": list(classes),
        "num_images": len(labels),
        "non_iidness": non_iidness(class_distributions(labels, split, num_classes=len(classes))),
        **({"rounds_per_step": rounds_per_step} if split.steps else {}),
        "silos": {name: silo(place, name) for place, name in enumerate(names)},
        **rest,
    }


def write_split(
    folder: Path, split: Split, images_NCHW: NDArray[np.uint8], labels_N: ArrayLike, *, classes: Sequence[str],
    source: str, settings: Mapping[str, Any], silo_names: Sequence[str] | None = None, rounds_per_step: int = 1,
) -> Path:
    """Writes every part and, last, manifest.json; returns the latter's path.

    Beside the silos' files coordinator.npz, validation.npz and test.npz, where not empty, with `images`, `labels` and
    `classes`. Each file appears complete or not at all.
    Raises: BadData when images and labels differ in number; BadConfiguration as `split_manifest`.
    """
    labels = np.asarray(labels_N, dtype=np.int64)
    if len(labels) != len(images_NCHW):
        raise BadData(f"{len(images_NCHW)} images but {len(labels)} labels.")
    manifest = split_manifest(split, labels, classes=classes, source=source, settings=settings, silo_names=silo_names,
                              rounds_per_step=rounds_per_step)
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(_silo_names(split, silo_names)):
        _write_npz(folder / f"{name}.npz", _silo_arrays(split, place, images_NCHW, labels, classes, rounds_per_step))
    for name, indices in _shared_parts(split).items():
        if len(indices):
            _write_npz(folder / f"{name}.npz", {"images": _pictures(images_NCHW, indices), "labels": labels[indices],
                                                "classes": np.array(list(classes))})
    path = folder / "manifest.json"
    text = canonical_json(manifest) + "\n"
    _write_durably(path, lambda stream: stream.write(text.encode()))
    return path


def _silo_arrays(split: Split, place: int, images_NCHW: NDArray[np.uint8], labels_N: Indices, classes: Sequence[str],
                 rounds_per_step: int) -> dict[str, NDArray[Any]]:
    unlabelled = split.silos[place]
    if not (split.labelled or split.steps):
        return {"images": _pictures(images_NCHW, unlabelled)}
    arrays: dict[str, NDArray[Any]] = {}
    if split.labelled:
        held = split.labelled[place]
        arrays = {"labelled_images": _pictures(images_NCHW, held), "labelled_labels": labels_N[held],
                  "classes": np.array(list(classes))}
    arrays["unlabelled_images"] = _pictures(images_NCHW, unlabelled)
    steps_N = split.steps_of(place)
    if steps_N is not None:
        arrays |= {"unlabelled_steps": steps_N, "rounds_per_step": np.array(rounds_per_step, dtype=np.int64)}
    return arrays


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


def _pictures(images_NCHW: NDArray[np.uint8], indices: Indices) -> NDArray[np.uint8]:
    """(n, H, W) for grey, (n, H, W, 3) for colour: the layout of MedMNIST."""
    chosen = images_NCHW[indices]
    return chosen[:, 0] if chosen.shape[1] == 1 else np.ascontiguousarray(np.moveaxis(chosen, 1, 3))


def _write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    _write_durably(path, lambda stream: np.savez(stream, **dict(arrays)))  # type: ignore[arg-type]


def _write_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
