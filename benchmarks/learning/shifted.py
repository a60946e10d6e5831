"""Rare classes and other scanners at the hospitals: `python -m benchmarks.learning.shifted --help`.

Self-training against labels alone where the table of `run.py` does not look: few classes of which one is rare, a hub
with fewer than a hundred labels, and silos (and test images) whose colours, contrast and noise differ from the hub's.
What stands in shifted.jsonl is not run again. Writes SHIFTED.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EACH", "METHODS", "SEEN", "TASKS", "Dealt", "Scanner", "Task", "deal", "images_of", "seen_by", "write_page"]

HERE = Path(__file__).parent
RESULTS = HERE / "shifted.jsonl"
PAGE = HERE / "SHIFTED.md"
_SILOS, _ROUNDS, _UNLABELLED, _TEST = 5, 10, 1500, 1500
_MANY, _FIRST_OF_MANY = 100, 31
"""Rounds that a new study asks for, and the first draw with so many."""
_SHOWN_OF_MANY = (1, 5, 10, 20, 50, 100)
_SPARE, _LEAST, _EACH = 1.3, 30, 300
"""Where classes are thinned out: how many times the images that silos get are left, the fewest of a class, and the most
test images of one."""


@dataclass(frozen=True, slots=True)
class Scanner:
    """How a device shows what the hub's shows as it is."""

    gains: tuple[float, float, float]
    """Of red, green and blue."""
    gamma: float
    noise: float
    """Standard deviation of normal noise, as a share of white."""


SCANNERS = (Scanner((1.0, 1.0, 1.0), 1.0, 0.0), Scanner((1.1, 0.9, 0.95), 0.8, 0.02),
            Scanner((0.85, 1.0, 1.1), 1.25, 0.04), Scanner((0.95, 1.05, 0.8), 1.0, 0.0))
"""The first is the hub's."""
EACH = "a scanner each"
SEEN: Mapping[str, tuple[Scanner, ...]] = {
    "as the hub": (), "four scanners": SCANNERS, "another scanner": (SCANNERS[2],),
    EACH: (*SCANNERS, Scanner((1.05, 0.95, 1.0), 0.9, 0.01))}
"""By what silos' and test images are seen, as many by each, or those of a silo by one of them; by none as they are."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of a set's images."""

    classes: tuple[tuple[int, ...], ...]
    """The set's classes that each class of the task is made of."""
    labels: tuple[int, ...]
    """Labelled images of each at the hub."""
    dirichlet: float
    """Of the silos' class shares around those of all images, times the number of classes; large is alike."""
    source: str = "bloodcells.npz"
    """The set's file. Grey images have the same in all three channels."""
    thinned: bool = False
    """Whether its classes, which the set has equally many images of, are as frequent at silos as among the labels. Then
    test images are equally many of each."""


TASKS: Mapping[str, Task] = {
    "two classes, one rare": Task(classes=((1, 2, 3, 4, 5, 6, 7), (0,)), labels=(70, 8), dirichlet=5.0),
    "three classes, 5 to 1": Task(classes=((3,), (6,), (1,)), labels=(60, 30, 12), dirichlet=5.0),
    "eight classes, 8 to 1": Task(classes=tuple((kind,) for kind in range(8)), labels=(24, 18, 13, 9, 7, 5, 3, 3),
                                  dirichlet=5.0),
    "Fashion-MNIST, two classes, one rare": Task(
        classes=((2, 4, 3), (6,)), labels=(70, 8), dirichlet=5.0, source="fashion_mnist.npz", thinned=True),
    "MNIST, two classes, one rare": Task(
        classes=((3, 5, 9), (8,)), labels=(70, 8), dirichlet=5.0, source="mnist.npz", thinned=True),
    "Fashion-MNIST, four classes, 4 to 1": Task(
        classes=((2,), (4,), (0,), (6,)), labels=(48, 24, 16, 12), dirichlet=5.0, source="fashion_mnist.npz",
        thinned=True),
    "Fashion-MNIST, seven classes, 20 to 1": Task(
        classes=((0,), (2,), (3,), (4,), (6,), (7,), (9,)), labels=(60, 12, 10, 8, 6, 4, 3), dirichlet=5.0,
        source="fashion_mnist.npz", thinned=True),
    "CIFAR-10, two classes, one rare": Task(
        classes=((3, 4, 5), (2,)), labels=(70, 8), dirichlet=5.0, source="cifar10.npz", thinned=True),
    "CIFAR-10, seven classes, 20 to 1": Task(
        classes=((0,), (1,), (2,), (3,), (4,), (5,), (7,)), labels=(60, 12, 10, 8, 6, 4, 3), dirichlet=5.0,
        source="cifar10.npz", thinned=True),
}
"""Those without a set's name are of blood cells."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    "self-training": {"name": "self_training"},
    "weak views": {"name": "self_training", "labelled_views": "weak"},
    "no silo": {"name": "self_training", "confidence_threshold": 1.0},
    "standardised": {"name": "self_training"},
}
"""With "no silo" no image is ever confident enough, so that only the hub trains on."""
_STANDARDISED = ("standardised",)
"""Methods whose images are standardised one by one, as `simulate` does where it is not told otherwise."""

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dealt:
    """Images uint8 (N, H, W, 3) and labels int64 (N,), from 0."""

    labelled: tuple[Images, Labels]
    unlabelled: tuple[Images, Labels]
    test: tuple[Images, Labels]
    sites: tuple[tuple[Images, Labels], ...] = ()
    """What each silo has of the unlabelled images, by its scanner, where each has one."""


def seen_by(scanner: Scanner, images_NHWC: Images, random: np.random.Generator) -> Images:
    """clip(clip(gain x)^gamma + noise), rounded, of x from 0 to 1."""
    shown = np.clip(images_NHWC / 255.0 * np.array(scanner.gains), 0.0, 1.0) ** scanner.gamma
    if scanner.noise:
        shown = np.clip(shown + random.normal(0.0, scanner.noise, shown.shape), 0.0, 1.0)
    return np.round(shown * 255.0).astype(np.uint8)


def deal(task: Task, images: Mapping[str, NDArray[Any]], *, seen: str, seed: int) -> Dealt:
    """Draws the hub's labelled images, the silos' and the test images of one seed.

    Args:
        images: "train_images", "train_labels", "test_images", "test_labels" as in bloodcells.npz.
        seen: one of `SEEN`.
    """
    random = np.random.default_rng([seed, 64])
    kinds = {kind: number for number, group in enumerate(task.classes) for kind in group}

    def part(name: str) -> tuple[Images, Labels]:
        found_N = images[f"{name}_labels"].reshape(-1)
        chosen_N = np.isin(found_N, list(kinds))
        return images[f"{name}_images"][chosen_N], np.array([kinds[int(kind)] for kind in found_N[chosen_N]])

    def drawn(part: tuple[Images, Labels], chosen_n: NDArray[np.int64], scanners: tuple[Scanner, ...]
              ) -> tuple[Images, Labels]:
        shown, labels = part[0][chosen_n].copy(), part[1][chosen_n]
        scanner_n = random.integers(0, len(scanners or SCANNERS), len(shown))
        for number, scanner in enumerate(scanners):
            shown[scanner_n == number] = seen_by(scanner, shown[scanner_n == number], random)
        return shown, labels

    train, test = part("train"), part("test")
    hub_n = np.concatenate([random.choice(np.flatnonzero(train[1] == number), count, replace=False)
                            for number, count in enumerate(task.labels)])
    others_n = np.setdiff1d(np.arange(len(train[1])), hub_n)
    dealt = Dealt(labelled=(train[0][hub_n], train[1][hub_n]),
                  unlabelled=drawn(train, random.choice(others_n, min(_UNLABELLED, len(others_n)), replace=False),
                                   () if seen == EACH else SEEN[seen]),
                  test=drawn(test, random.choice(len(test[1]), min(_TEST, len(test[1])), replace=False), SEEN[seen]))
    return replace(dealt, sites=_sites(task, *dealt.unlabelled, seed=seed)) if seen == EACH else dealt


def _sites(task: Task, images_NHWC: Images, labels_N: Labels, *, seed: int) -> tuple[tuple[Images, Labels], ...]:
    """What `simulate` deals each silo, by its scanner."""
    from semisilo.simulation.splits.prevalence_split import prevalence_shift

    split = prevalence_shift(labels_N, _SILOS, num_classes=len(task.classes), seed=seed, dirichlet=task.dirichlet)
    random = np.random.default_rng([seed, 66])
    return tuple((seen_by(scanner, images_NHWC[held], random), labels_N[held])
                 for scanner, held in zip(SEEN[EACH], split.silos, strict=True))


def images_of(task: Task, images: Mapping[str, NDArray[Any]], *, seed: int) -> dict[str, NDArray[Any]]:
    """A set's training and test images with three channels, uint8 (N, H, W, 3), and where the task thins its classes
    out only those that are left of it."""
    found = {name: images[name] for name in ("train_images", "train_labels", "test_images", "test_labels")}
    for name in ("train_images", "test_images"):
        if found[name].ndim == 3:
            found[name] = np.repeat(found[name][..., None], 3, axis=-1)
    if not task.thinned:
        return found
    random, shares = np.random.default_rng([seed, 65]), np.array(task.labels) / sum(task.labels)
    for part in ("train", "test"):
        labels_N = found[f"{part}_labels"].reshape(-1)
        kept_N = np.zeros(len(labels_N), dtype=bool)
        for group, labelled, share in zip(task.classes, task.labels, shares, strict=True):
            there_n = random.permutation(np.flatnonzero(np.isin(labels_N, group)))
            kept_N[there_n[:labelled + max(int(_SPARE * _UNLABELLED * share), _LEAST)
                           if part == "train" else _EACH]] = True
        found |= {f"{part}_images": found[f"{part}_images"][kept_N], f"{part}_labels": labels_N[kept_N]}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description="Self-training and labels alone: rare classes, other scanners.")
    parser.add_argument("--data", type=Path, default=Path("build/data"), help="folder of bloodcells.npz and others")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--tasks", default="", help="only tasks whose name holds this text")
    parser.add_argument("--methods", default="", help="only methods whose name holds this text")
    parser.add_argument("--seen", default="", help=f"only this of: {', '.join(SEEN)}")
    parser.add_argument("--many", action="store_true",
                        help=f"studies of {_MANY} rounds, on draws of their own: about 20 minutes each")
    parser.add_argument("--page", action="store_true", help="run nothing, write SHIFTED.md only")
    options = parser.parse_args(arguments)
    rounds, first = (_MANY, _FIRST_OF_MANY) if options.many else (_ROUNDS, 1)
    done = {(row["task"], row["seen"], row["method"], row["seed"]) for row in lines() if rounds_of(row) == rounds}
    wanted = [] if options.page else [
        key for seed in range(first, first + options.seeds) for task in TASKS for seen in SEEN for method in METHODS
        if options.tasks in task and options.methods in method and options.seen in seen
        and (key := (task, seen, method, seed)) not in done]
    for number, (task, seen, method, seed) in enumerate(wanted):
        with np.load(options.data / TASKS[task].source) as file:
            images = images_of(TASKS[task], file, seed=seed)
        found = _run(task, deal(TASKS[task], images, seen=seen, seed=seed), method, seed=seed, rounds=rounds)
        with RESULTS.open("a") as out:
            out.write(json.dumps({"task": task, "seen": seen, "method": method, "seed": seed,
                                  **({"rounds": rounds} if options.many else {}), **found}) + "\n")
        print(f"[{number + 1}/{len(wanted)}] {task}, {seen}, {method}, seed {seed}:"
              f" {100 * found['balanced_accuracy']:.1f}", file=sys.stderr, flush=True)
    write_page(HERE)
    return 0


def lines() -> list[dict[str, Any]]:
    """What was run so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def rounds_of(row: Mapping[str, Any]) -> int:
    """Of a line of shifted.jsonl."""
    return int(row.get("rounds", _ROUNDS))


def _run(task: str, dealt: Dealt, method: str, *, seed: int, rounds: int) -> dict[str, Any]:
    import semisilo

    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = semisilo.simulate(
            labelled=dealt.labelled, unlabelled=list(dealt.sites) or dealt.unlabelled, test=dealt.test, silos=_SILOS,
            split="natural" if dealt.sites else {"name": "prevalence_shift", "dirichlet": TASKS[task].dirichlet},
            rounds=rounds, method=dict(METHODS[method]), tables={"data": {"image": {
                "standardise": "image" if method in _STANDARDISED else "study"}}},
            labelled_only=method != "no silo", seed=seed, out=Path(folder) / "run", engine="process",
            progress=False)
        last = run.rounds[-1].metrics
        found = {name: last[name] for name in ("balanced_accuracy", "auroc")}
        found["curve"] = [round(each.metrics["balanced_accuracy"], 4) for each in run.rounds]
        handed: Mapping[str, float] = run.chosen.metrics if run.chosen is not None else last
        if run.labelled_only:
            found["labels_alone"] = {name: run.labelled_only[name] for name in ("balanced_accuracy", "auroc")}
            handed = run.labelled_only if run.choice.labels_alone else handed
        found["handed_over"] = {name: handed[name] for name in ("balanced_accuracy", "auroc")}
        found["choice"] = run.choice.text
        return {**found, "processor_seconds": round(time.process_time() - began, 1)}


def write_page(folder: Path) -> None:
    """SHIFTED.md from shifted.jsonl."""
    by: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in lines():
        if rounds_of(row) != _ROUNDS:
            continue
        cell = by[row["task"], row["seen"]]
        cell[row["method"]].append((row["balanced_accuracy"], row["auroc"]))
        if row["method"] == "standardised":
            cell["labels alone, standardised"].append(
                (row["labels_alone"]["balanced_accuracy"], row["labels_alone"]["auroc"]))
        if row["method"] == "self-training":
            cell["labels alone"].append((row["labels_alone"]["balanced_accuracy"], row["labels_alone"]["auroc"]))
    names = ("labels alone, standardised", "standardised", "labels alone", "self-training", "weak views", "no silo")
    table = ["| task | silos and test images | " + " | ".join(names) + " |", "|---|---|" + "---:|" * len(names)]
    for task in TASKS:
        for seen in SEEN:
            if (task, seen) in by:
                found = [_shown(by[task, seen][name]) for name in names]
                table.append(f"| {task} | {seen} | " + " | ".join(found) + " |")
    described = "\n".join(f"- **{name}**: {', '.join(str(count) for count in task.labels)} labels at the hub."
                          for name, task in TASKS.items())
    (folder / PAGE.name).write_text(f"""# Rare classes and other scanners

Written by `python -m benchmarks.learning.shifted`. Blood cells at 28 pixels or the set that is named, {_SILOS} silos
with other shares of the classes, {_ROUNDS} rounds. Balanced accuracy / macro AUROC on up to {_TEST} test images after
the last round in per cent, mean over seeds, and how many were run; with fewer than 200 labels the last round is what a
study hands over. Four scanners: silos and test images as seen by devices with other colours, contrast and noise, a
quarter each; the hub's labelled images by the first alone. Another scanner: all of them by the third, which the hub has
no image of. A scanner each: as four scanners and a fifth, but all images of a silo by the same one, those of one silo
by the hub's. Of the named sets, which have about equally many images of all classes, those at the silos are made as
frequent as the labels, and test images are drawn from {_EACH} of each class.
*Standardised*: self-training with the defaults of `semisilo.simulate` and of a new study, where each image is
standardised by itself. *Self-training* and what follows: with `[data] image.standardise = "study"`, all images by one
mean and deviation, as before docs/decisions/0115. *Weak views*: with `labelled_views = "weak"`. *No silo*: the hub
trains on as in self-training, and no pseudo-label is ever kept.

{described}

""" + "\n".join(table) + f"""

## A hundred rounds

As *standardised*, with {_MANY} rounds, as many as a new study asks for; each draw for itself, balanced accuracy in per
cent after some rounds, macro AUROC of the last one (`--many`).

""" + "\n".join(_of_many()) + "\n", encoding="utf-8")


def _of_many() -> list[str]:
    """The table of studies of a hundred rounds."""
    table = ["| task | silos and test images | draw | labels alone | AUROC | "
             + " | ".join(f"round {number}" for number in _SHOWN_OF_MANY) + " | AUROC |",
             "|---|---|---:|" + "---:|" * (len(_SHOWN_OF_MANY) + 3)]
    rows = [row for row in lines() if rounds_of(row) == _MANY and row["method"] in _STANDARDISED]
    for row in sorted(rows, key=lambda row: (list(TASKS).index(row["task"]), list(SEEN).index(row["seen"]),
                                             row["seed"])):
        alone = row["labels_alone"]
        numbers = (alone["balanced_accuracy"], alone["auroc"], *(row["curve"][number] for number in _SHOWN_OF_MANY),
                   row["auroc"])
        table.append(f"| {row['task']} | {row['seen']} | {row['seed']} | "
                     + " | ".join(f"{100 * value:.1f}" for value in numbers) + " |")
    return table


def _shown(pairs: Sequence[tuple[float, float]]) -> str:
    if not pairs:
        return ""
    balanced, area = (100 * statistics.fmean(values) for values in zip(*pairs, strict=True))
    return f"{balanced:.1f} / {area:.1f} ({len(pairs)})"


if __name__ == "__main__":
    raise SystemExit(main())
