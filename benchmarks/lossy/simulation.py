"""The studies of this benchmark: SemiFL over three simulated silos, with one form of the uplink."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semisilo.common.data.readers import read_images
from semisilo.simulation import run

__all__ = ["NUM_SILOS", "Course", "Setting", "bloodcells", "digits", "simulated"]

NUM_SILOS = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A study without its table [wire]: labelled images at the coordinator, the others without labels at silos."""

    name: str
    tables: Mapping[str, Any]
    images: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What is dealt, as arrays of an .npz in MedMNIST's layout, where `tables` does not name it."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """What became of one study."""

    accuracies: tuple[float, ...]
    """On the test images, after round 0 (the coordinator alone) to the last."""
    uplink_bytes: tuple[int, ...]
    """Payload bytes of all silos' updates, in round 1 to the last."""
    dense_bytes: int
    """4 x the parameters of the network."""


def digits(seed: int, *, rounds: int) -> Setting:
    """The demo's study in larger batches: 20 labelled digits, 1422 others at three silos."""
    return Setting(name="digits", tables=_tables(
        seed, rounds, size=8, channels=1, num_labelled=20, data="digits", local_epochs=3, coordinator_epochs=40,
        augmentation={"policy": "small", "without": ["Invert", "Solarize"]}))


def bloodcells(path: Path, seed: int, *, rounds: int, num_labelled: int = 96, num_unlabelled: int = 1800,
               num_test: int = 1000) -> Setting:
    """96 labelled blood cells, 1800 others at three silos; from an .npz in MedMNIST's layout."""
    train, test = (read_images(f"{path}#{part}", size=28, channels=3).images for part in ("train", "test"))
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    images = {}
    for part, found in (("train", train.subset(chosen[:num_labelled + num_unlabelled].numpy())),
                        ("test", test.subset(np.arange(num_test)))):
        assert found.labels_N is not None
        images[f"{part}_images"] = found.images_NCHW.numpy().transpose(0, 2, 3, 1)
        images[f"{part}_labels"] = found.labels_N.numpy()
    return Setting(name="bloodcells", images=images, tables=_tables(
        seed, rounds, size=28, channels=3, num_labelled=num_labelled, data="", local_epochs=2, coordinator_epochs=20,
        augmentation={"policy": "small", "horizontal_flip": True, "vertical_flip": True}))


def _tables(seed: int, rounds: int, *, size: int, channels: int, num_labelled: int, data: str, local_epochs: int,
            coordinator_epochs: int, augmentation: dict[str, Any]) -> dict[str, Any]:
    return {
        "study": {"seed": seed, "rounds": rounds, "labelled_only_baseline": False},
        "data": {"image": {"size": size, "channels": channels, "mean": "labelled", "std": "labelled"}},
        "augmentation": augmentation,
        "method": {"name": "semifl", "local_epochs": local_epochs, "coordinator_epochs": coordinator_epochs,
                   "unlabelled_batch": 32},
        "simulation": {"data": data, "silos_test": False,
                       "split": {"name": "iid", "silos": NUM_SILOS, "num_labelled": num_labelled}}}


def simulated(setting: Setting, uplink: str, *, rounding: Literal["nearest", "stochastic"] = "stochastic",
              error_feedback: bool = True) -> Course:
    """Runs the whole study, on the processor, with this form of the uplink."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {**setting.tables, "wire": {"uplink": uplink, "rounding": rounding, "error_feedback": error_feedback}}
        if setting.images:
            images = Path(folder) / "images.npz"
            np.savez(images, **dict(setting.images))  # type: ignore[arg-type]
            tables["simulation"] = {**tables["simulation"], "data": str(images)}
        result = run(tables, out=Path(folder) / "run", device="cpu")
    assert len(result.curve) == len(result.rounds), "every round was completed and measured"
    return Course(accuracies=tuple(accuracy for _, accuracy in result.curve),
                  uplink_bytes=tuple(each.payload_up for each in result.rounds[1:]), dense_bytes=result.dense_bytes)
