"""The parts of a dealt study as files: what `semisilo split` writes, and what a simulated coordinator reads.

    coordinator/study.toml, coordinator/data/*.npz   to be copied to `studies/NAME` of a federation
    silos/<name>.npz                                 what each silo joins with
    manifest.json                                    seed, settings, counts per class, SHA-256 of every part

Shapes: N images, C channels, S side of the square.

Tests: tests/semisilo/simulation/test_split.py.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from semisilo.common import __version__
from semisilo.common.config import canonical_json, to_dict
from semisilo.common.data.formats.archive import texts_of_ranges
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.storage.durable import sync_file, write_durably
from semisilo.simulation.dealing import Dealt
from semisilo.simulation.settings import SETS, set_file, weights_file
from semisilo.simulation.splits.manifest import split_manifest

__all__ = ["manifest", "write_coordinator", "write_parts"]


def write_parts(dealt: Dealt, folder: Path) -> Path:
    """Writes every part and, last, manifest.json; returns the latter's path. Each file is whole or not there."""
    silos = folder / "silos"
    silos.mkdir(parents=True, exist_ok=True)
    write_coordinator(dealt, folder / "coordinator")
    for index, name in enumerate(dealt.silos):
        _write_npz(silos / f"{name}.npz", _silo_arrays(dealt, index))
    path = folder / "manifest.json"
    write_durably(path, canonical_json(manifest(dealt)).encode("utf-8", "surrogatepass") + b"\n")
    return path


def write_coordinator(dealt: Dealt, folder: Path) -> None:
    """Writes the coordinator's sets, its files of weights and network, and the study file of real silos into the folder
    of a study.

    Raises: BadData when there is no such file.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    if dealt.study.weights is not None:
        _copy(dealt.study.weights, folder / weights_file(dealt.study.weights))
    if dealt.study.model_file is not None:
        target = folder / dealt.study.model_file.relative_to(dealt.study.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(dealt.study.model_file, target)
    for name in SETS:
        images = dealt.coordinator_set(name)
        if images is not None:
            _write_npz(folder / set_file(name), _set_arrays(dealt, name, images))
    write_durably(folder / "study.toml", tomli_w.dumps(dealt.tables).encode())


def manifest(dealt: Dealt) -> dict[str, object]:
    """Plain JSON types that name the split and let anyone check a part:
    `semisilo.simulation.splits.manifest.split_manifest`, with the SHA-256 of every array that a file holds, and what
    the parts come from."""
    study = dealt.study
    entries = split_manifest(
        dealt.split, dealt.labels(), classes=dealt.classes, source=study.simulation.source,
        settings=to_dict(study.simulation.split), silo_names=dealt.silos, rounds_per_step=dealt.rounds_per_step,
        classes_known=dealt.classes_known)
    shared = {name: entries.pop(key, {}) for name, key in (
        ("labelled", "coordinator"), ("validation", "validation"), ("test", "test"))}
    coordinator = {}
    for name in SETS:
        images = dealt.coordinator_set(name)
        if images is not None:
            coordinator[name] = {**shared[name], "num_images": len(images), "file": f"coordinator/{set_file(name)}",
                                 "sha256_arrays": _digests(_set_arrays(dealt, name, images))}
    silos = {name: {**entries["silos"][name], "file": f"silos/{name}.npz",
                    "sha256_arrays": _digests(_silo_arrays(dealt, index))} for index, name in enumerate(dealt.silos)}
    return {**entries, "semisilo": __version__, "study": study.name, "seed": study.draft.study.seed,
            "scenario": study.scenario, "digest": dealt.digest(), "coordinator": coordinator, "silos": silos,
            **({} if dealt.split.patients is None else {"patients": to_dict(dealt.split.patients)})}


def _set_arrays(dealt: Dealt, name: str, images: ImageSet) -> dict[str, NDArray[Any]]:
    """What the file of a coordinator's set holds; `patients` where a patient has several images, so that the
    coordinator, too, holds out whole patients; `divided_by` where images had more than 8 bits, so that it keeps what is
    white of them with its models."""
    assert images.labels_N is not None
    arrays: dict[str, NDArray[Any]] = {"images": _pictures(images), "labels": images.labels_N.numpy(),
                                       "classes": np.array(dealt.classes)}
    numbers_N = dealt.patient_numbers(name)
    if numbers_N is not None:
        arrays["patients"] = numbers_N
    if ranges := dealt.ranges_of(name):
        arrays["divided_by"] = texts_of_ranges(ranges)
    return arrays


def _silo_arrays(dealt: Dealt, index: int) -> dict[str, NDArray[Any]]:
    """What a silo's file holds; the classes of unlabelled images are not among it."""
    arrays: dict[str, NDArray[Any]] = {}
    labelled, unlabelled = dealt.labelled_of(index), dealt.split.silos[index]
    steps_N = dealt.split.steps_of(index)
    if len(labelled):
        arrays["labelled_images"] = _pictures(dealt.images.subset(labelled))
        arrays["labelled_labels"] = dealt.labels()[labelled]
        arrays["classes"] = np.array(dealt.classes)
    arrays["unlabelled_images"] = _pictures(dealt.images.subset(unlabelled))
    if steps_N is not None:
        arrays["unlabelled_steps"] = steps_N
        arrays["rounds_per_step"] = np.array(dealt.rounds_per_step)
    return arrays


def _copy(source: Path, target: Path) -> None:
    """The same file, whole or not at all."""
    half = target.with_name(f".{target.name}.tmp")
    try:
        with source.open("rb") as content, half.open("wb") as copy:
            shutil.copyfileobj(content, copy)
            copy.flush()
            sync_file(copy.fileno())
    except FileNotFoundError:
        raise BadData(f"{source}: there is no such file.",
                      remedy="[model] weights starts at the folder of the study file.") from None
    os.replace(half, target)


def _pictures(images: ImageSet) -> NDArray[np.uint8]:
    """(N, S, S) for grey, (N, S, S, 3) for colour: the layout of MedMNIST."""
    pixels_NCHW: NDArray[np.uint8] = images.images_NCHW.numpy()
    return pixels_NCHW[:, 0] if pixels_NCHW.shape[1] == 1 else np.ascontiguousarray(np.moveaxis(pixels_NCHW, 1, 3))


def _digests(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """SHA-256, hex, of type, shape and elements (little endian) of each array."""
    found = {}
    for key, array in arrays.items():
        plain = array.astype(array.dtype.newbyteorder("<"), copy=False)
        found[key] = hashlib.sha256(f"{plain.dtype.str} {plain.shape} ".encode() + plain.tobytes()).hexdigest()
    return found


def _write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """The same arrays give the same bytes: numpy writes no time of its own into the archive."""
    stream = io.BytesIO()
    np.savez(stream, **dict(arrays))  # type: ignore[arg-type]
    write_durably(path, stream.getvalue())
