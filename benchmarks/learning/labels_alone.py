"""Labels alone by the paper's recipe against the strong one, on sets of images with few labels.

    python -m benchmarks.learning.labels_alone measure DATA [--seeds 3] [--cells PART]   one line a cell, resumable
    python -m benchmarks.learning.labels_alone table                                      the lines as a table

DATA is a folder of `bloodcells.npz`, `fashion_mnist.npz` and `cifar10.npz` in MedMNIST's layout; the digits are
embedded. No recipe sees test images before it is done, and there are no validation images: the search is on
held-out labels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.methods.contract import CoordinatorData, Environment, ModelSettings
from semisilo.common.methods.numerics import Numerics
from semisilo.common.models.factory import build_model
from semisilo.common.numerics import numerics
from semisilo.coordinator.compute.baseline import PaperLabelsAlone, PaperRecipe
from semisilo.coordinator.compute.strong_baseline import StrongLabelsAlone, StrongRecipe

RESULTS = Path(__file__).with_name("labels_alone.jsonl")
_TEST_IMAGES = 2000


@dataclass(frozen=True, slots=True)
class Cell:
    """A set of images and how many of them have labels."""

    data: str
    per_class: int
    """Labels a class; of an imbalanced cell those of the most frequent class."""
    imbalanced: bool = False
    """Ten to one between the first and the last class, falling by equal factors."""


CELLS = (*(Cell("digits", count) for count in (2, 4, 10)),
         *(Cell(name, count) for count in (4, 10, 25) for name in ("bloodcells", "fashion_mnist", "cifar10")),
         Cell("digits", 30, True), Cell("bloodcells", 30, True))
_AUGMENTATION = {
    "digits": AugmentationSettings(policy="small", without=("Invert", "Solarize")),
    "bloodcells": AugmentationSettings(policy="small", horizontal_flip=True, vertical_flip=True),
    "fashion_mnist": AugmentationSettings(policy="small", horizontal_flip=True),
    "cifar10": AugmentationSettings(policy="small", horizontal_flip=True)}


def environment_of(cell: Cell, *, seed: int, folder: Path) -> tuple[Environment, int]:
    """The hub of a cell, with the number of its classes."""
    images, labels, test, test_labels = _read(cell.data, folder)
    classes = int(labels.max()) + 1
    generator = numpy_generator(seed, f"labels_{cell.data}")
    order = generator.permutation(len(images))
    chosen: list[int] = []
    for label in range(classes):
        share = 10.0 ** (-label / (classes - 1)) if cell.imbalanced else 1.0
        chosen += order[labels[order] == label][:max(1, round(cell.per_class * share))].tolist()
    few = np.sort(numpy_generator(1, f"test_{cell.data}").permutation(len(test))[:_TEST_IMAGES])
    labelled, tested = _set(images[chosen], labels[chosen]), _set(test[few], test_labels[few])
    pixels = labelled.images_NCHW.float() / 255
    form = ImageForm(size=pixels.shape[3], channels=pixels.shape[1], mean=tuple(pixels.mean(dim=(0, 2, 3)).tolist()),
                     std=tuple(pixels.std(dim=(0, 2, 3)).tolist()))
    network = ModelSettings(name="small_cnn", classes=tuple(map(str, range(classes))))
    return Environment(
        seed=seed, rounds=1, num_silos=1, data=CoordinatorData(labelled=labelled, test=tested),
        build_model=lambda: build_model(network, channels=form.channels, size=form.size), image=form,
        augmentation=_AUGMENTATION[cell.data]), classes


def measure(cell: Cell, *, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Both recipes on one cell. Times are of the processor, so that what else runs on the machine matters less."""
    numerics.apply(Numerics(threads=1), device="cpu")
    environment, classes = environment_of(cell, seed=seed, folder=folder)
    lines = []
    for recipe in ("paper", "strong"):
        began = time.process_time()
        work = PaperLabelsAlone(environment, PaperRecipe()) if recipe == "paper" else \
            StrongLabelsAlone(environment, StrongRecipe(num_classes=classes))
        work.work(float("inf"))
        found = work.found
        assert found is not None
        lines.append({**asdict(cell), "seed": seed, "recipe": recipe, "accuracy": found.evaluation.accuracy,
                      "balanced_accuracy": found.evaluation.balanced_accuracy, "lr": found.lr, "steps": found.steps,
                      **found.crossfit, "processor_seconds": round(time.process_time() - began, 1)})
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """A row a cell: balanced accuracy of both recipes, mean over seeds, their difference, and the times."""
    cells: dict[Cell, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        cells[Cell(line["data"], line["per_class"], line["imbalanced"])][line["recipe"]].append(line)
    rows = ["| images | labels a class | seeds | paper | strong | difference (each seed) | cross-validated | rates |"
            " processor time, paper, strong |", "|---|---|---|---|---|---|---|---|---|"]
    for cell in CELLS:
        paper, strong = (cells[cell][recipe] for recipe in ("paper", "strong"))
        if not strong:
            continue
        by_seed = {line["seed"]: line for line in paper}
        gains = [100 * (line["balanced_accuracy"] - by_seed[line["seed"]]["balanced_accuracy"]) for line in strong]
        mean = {name: 100 * statistics.fmean(line["balanced_accuracy"] for line in found)
                for name, found in (("paper", paper), ("strong", strong))}
        seconds = [statistics.fmean(line["processor_seconds"] for line in found) for found in (paper, strong)]
        estimates = [100 * line[name] for line in strong if (name := "crossfit_balanced_accuracy") in line]
        labels = f"{cell.per_class} to {round(cell.per_class / 10)}" if cell.imbalanced else str(cell.per_class)
        rows.append(
            f"| {cell.data} | {labels} | {len(strong)} | {mean['paper']:.1f} | {mean['strong']:.1f} |"
            f" {statistics.fmean(gains):+.1f} ({', '.join(f'{gain:+.1f}' for gain in gains)}) |"
            f" {statistics.fmean(estimates) if estimates else float('nan'):.1f} |"
            f" {', '.join(format(line['lr'], 'g') for line in strong)} |"
            f" {seconds[0]:.0f} s, {seconds[1]:.0f} s |")
    return "\n".join(rows) + "\n"


def _read(name: str, folder: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    if name == "digits":
        from semisilo.common.data.formats.archive import digits

        train, test = digits("train", source="digits#train"), digits("test", source="digits#test")
        assert train.images is not None
        assert train.labels_N is not None
        assert test.images is not None
        assert test.labels_N is not None
        return train.images, np.asarray(train.labels_N), test.images, np.asarray(test.labels_N)
    with np.load(folder / f"{name}.npz") as archive:
        return (archive["train_images"], archive["train_labels"].astype(np.int64), archive["test_images"],
                archive["test_labels"].astype(np.int64))


def _set(images: NDArray[Any], labels: NDArray[Any]) -> ImageSet:
    channels_first = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return ImageSet(torch.from_numpy(np.ascontiguousarray(channels_first)),
                    torch.from_numpy(labels.astype(np.int64)), tuple(map(str, range(len(images)))))


def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("data", type=Path, nargs="?", default=Path("build/data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", default="", help="only those whose set has this name")
    chosen = parser.parse_args()
    if chosen.what == "table":
        print(table(_lines()))
        return
    for seed in range(1, chosen.seeds + 1):
        for cell in CELLS:
            done = {(Cell(line["data"], line["per_class"], line["imbalanced"]), line["seed"]) for line in _lines()}
            if (cell, seed) in done or chosen.cells not in cell.data:
                continue
            with RESULTS.open("a") as file:
                for line in measure(cell, seed=seed, folder=chosen.data):
                    file.write(json.dumps(line) + "\n")
                    print(line, flush=True)


if __name__ == "__main__":
    main()
