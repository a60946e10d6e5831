"""The cells of the comparison of methods, and the study of each method in each cell.

A cell is a set of images, how they are dealt, and how many labels the coordinator has. All methods of a cell have the
same images, labels, test images and network, rounds, passes over the silos' images, batches of 32, and the coordinator
takes the same number of steps on its labels in all: self-training starts from labels alone, the others take these steps
in their rounds. Learning rates are those that each method's own comparison has for runs of this length
(benchmarks/papers/small), but FedMix's, which at 0.01 diverged with these networks: 0.003 was the best of three on a
draw that is not in the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisilo.common.learning.averaged_training import enough_steps
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.coordinator.compute.strong_baseline import batch_size_of, images_of_study

__all__ = ["ABLATIONS", "ABLATION_CELLS", "AT_ONE_PLACE", "BOTH_CELLS", "BOTH_METHODS", "CEILING", "CELLS",
           "FIXMATCH_AT_ONE_PLACE", "LABELS_ALONE", "METHODS", "NO_PSEUDO_LABELS", "OTHERS", "OURS",
           "SETS", "SILO_CELLS", "SILO_METHODS", "WEAK_VIEWS", "Cell", "ImageSetOf", "digest_of", "methods_of",
           "study_of"]

OURS = "self-training"
LABELS_ALONE = "labels alone"
FIXMATCH_AT_ONE_PLACE = "FixMatch on all images in one place"
CEILING = "self-training on all images in one place"
NO_PSEUDO_LABELS = "self-training, labels only"
WEAK_VIEWS = "self-training, weak views"
_SILOS, _ROUNDS, _LOCAL_EPOCHS, _BATCH, _STEPS = 5, 10, 3, 32, 40
_IMBALANCE = 10.0
_OF_IMBALANCED = 3
"""As many images more are drawn where frequent classes are cut down to a falling number, of which two thirds are left
out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSetOf:
    """A set of images, as the cells use it."""

    source: str
    """"digits", or the file's name."""
    classes: int
    size: int
    channels: int
    fraction: float
    """Share of the set that is used: some thousand images, so that a study takes a minute."""
    augmentation: Mapping[str, Any]


SETS = {
    "digits": ImageSetOf(source="digits", classes=10, size=8, channels=1, fraction=1.0,
                         augmentation={"policy": "small", "without": ["Invert", "Solarize"]}),
    "blood cells": ImageSetOf(source="bloodcells.npz", classes=8, size=28, channels=3, fraction=0.1,
                              augmentation={"policy": "small", "horizontal_flip": True, "vertical_flip": True}),
    "Fashion-MNIST": ImageSetOf(source="fashion_mnist.npz", classes=10, size=28, channels=1, fraction=0.02,
                                augmentation={"policy": "small", "horizontal_flip": True}),
    "CIFAR-10": ImageSetOf(source="cifar10.npz", classes=10, size=32, channels=3, fraction=0.03,
                           augmentation={"policy": "small", "horizontal_flip": True}),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    data: str
    split: str
    """"even", "two classes", "Dirichlet 0.1" or "imbalanced"."""
    per_class: int
    """Labels a class; of an imbalanced cell their mean, with labels at silos those at each of them."""
    labels_at_silos: bool = False
    """Instead of at the coordinator."""
    labels_at_both: bool = False
    """There, and two labels of each of five classes at each of two silos."""

    @property
    def imbalanced(self) -> bool:
        """Whether classes differ by 10 to 1 at hub and silos, with other shares at every silo."""
        return self.split == "imbalanced"

    @property
    def name(self) -> str:
        """For people."""
        there = " and some at two silos" if self.labels_at_both else " at every silo" if self.labels_at_silos else ""
        return f"{self.data}, {self.split}, {self.per_class} labels a class{there}"


CELLS = (
    *(Cell("digits", split, labels) for labels in (2, 4, 10)
      for split in ("even", "two classes", "Dirichlet 0.1", "imbalanced") if (labels, split) != (2, "imbalanced")),
    *(Cell("blood cells", split, 4) for split in ("even", "two classes", "Dirichlet 0.1")),
    *(Cell("blood cells", "imbalanced", labels) for labels in (10, 25)),
    *(Cell("Fashion-MNIST", split, 4) for split in ("even", "two classes", "Dirichlet 0.1")),
    Cell("Fashion-MNIST", "imbalanced", 10), Cell("CIFAR-10", "even", 25), Cell("CIFAR-10", "Dirichlet 0.1", 25))
SILO_CELLS = (
    *(Cell("digits", split, 1, labels_at_silos=True) for split in ("even", "two classes", "Dirichlet 0.1")),
    Cell("digits", "labels of two classes", 5, labels_at_silos=True),
    *(Cell("Fashion-MNIST", split, 2, labels_at_silos=True) for split in ("even", "Dirichlet 0.1")))
"""As many labels in all as the cells with 4 to 10 labels a class have at the coordinator."""
BOTH_CELLS = (
    *(Cell("digits", split, 2, labels_at_both=True) for split in ("even", "two classes", "Dirichlet 0.1")),
    Cell("Fashion-MNIST", "even", 4, labels_at_both=True))
"""The coordinator's labels are those of the same cell of `CELLS`."""
_SOME_AT_SILOS = {"labelled_per_class": 2, "labelled_silos": 2, "labelled_classes": 5}


def _split_with_labels_at_silos(cell: Cell) -> dict[str, Any]:
    of = SETS[cell.data]
    split: dict[str, Any] = {"silos": _SILOS, "fraction": of.fraction, "labelled_per_class": cell.per_class}
    if cell.split == "labels of two classes":
        return {**split, "name": "shvr_noniid", "classes_per_silo": 2}
    return {**split, **{"even": {"name": "iid"}, "two classes": {"name": "shards", "classes_per_silo": 2},
                        "Dirichlet 0.1": {"name": "dirichlet_semifl", "dirichlet": 0.1}}[cell.split]}


def _split(cell: Cell, method: str) -> dict[str, Any]:
    if cell.labels_at_silos:
        return _split_with_labels_at_silos(cell)
    of = SETS[cell.data]
    fraction = min(1.0, _OF_IMBALANCED * of.fraction) if cell.imbalanced else of.fraction
    split: dict[str, Any] = {"silos": 1 if method in AT_ONE_PLACE else _SILOS, "fraction": fraction,
                             "num_labelled": cell.per_class * of.classes,
                             **(_SOME_AT_SILOS if cell.labels_at_both else {})}
    if cell.imbalanced:
        return {**split, "name": "prevalence_shift", "dirichlet": 1.0, "label_imbalance": _IMBALANCE,
                "unlabelled_imbalance": _IMBALANCE}
    if method == FIXMATCH_AT_ONE_PLACE:
        return {"name": "iid", "silos": 1, "labelled_per_class": cell.per_class, "fraction": of.fraction}
    if cell.split == "two classes":
        return {**split, "name": "shards", "classes_per_silo": 2, "silos": of.classes // 2}
    return {**split, **({"name": "iid"} if cell.split == "even" else {"name": "dirichlet_semifl", "dirichlet": 0.1})}


def _passes(cell: Cell, *, fewer: bool, rounds: int) -> int:
    """Passes over the labels in a round: together with as many images as self-training looks at in its rounds and in
    labels alone before them (without the search for a learning rate), or with `fewer` as in its rounds."""
    labels, images = cell.per_class * SETS[cell.data].classes, _STEPS * _BATCH
    if not fewer:
        size = batch_size_of(labels)
        images += size * enough_steps(labels, batch_size=size, least_images=images_of_study(
            SelfTrainingSettings(), rounds=rounds, num_labelled=labels)) // rounds
    return max(1, round(images / labels))


_DESCENT = {"lr": 0.03, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4, "clip_norm": 1.0}
_FIXMATCH = {"objective": "fixmatch", "local_epochs": _LOCAL_EPOCHS, "unlabelled_batch": _BATCH,
             "labelled_batch": _BATCH, "confidence_threshold": 0.95, "schedule": "cosine",
             "persist_local_momentum": True, **_DESCENT, "lambda_s": 1.0}


def _ours(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "self_training"}


def _labels_only(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "self_training", "confidence_threshold": 1.0}


def _weak_views(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "self_training", "labelled_views": "weak"}


def _semifl(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "semifl", "local_epochs": _LOCAL_EPOCHS, "unlabelled_batch": _BATCH, "labelled_batch": _BATCH,
            "coordinator_epochs": passes}


def _fixmatch(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "fedavg", "scenario": "labels-at-coordinator", "coordinator_epochs": passes,
            **_FIXMATCH}


def _fixmatch_at_one_place(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "fedavg", "scenario": "labels-at-silo", **_FIXMATCH}


def _fedmatch(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "fedmatch", "preset": "paper_v1", "local_epochs": _LOCAL_EPOCHS, "unlabelled_batch": _BATCH,
            "labelled_batch": _BATCH, "coordinator_epochs": passes, "lr": 0.003, "lambda_l1": 0.0,
            "aggregation": "uniform", "helpers": "similarity", "confidence_threshold": 0.75}


def _fedmix(cell: Cell, passes: int) -> dict[str, Any]:
    return {"name": "fedmix", "local_epochs": _LOCAL_EPOCHS, "unlabelled_batch": _BATCH, "labelled_batch": _BATCH,
            "coordinator_epochs": passes, "lr": 0.003, "momentum": 0.9, "lambda_1": 1.0, "lambda_2": 0.1,
            "lambda_s": 1.0, "lambda_l1": 0.0}


_AT_SILO = {"scenario": "labels-at-silo"}
SILO_METHODS: dict[str, dict[str, Any]] = {
    OURS: {"name": "self_training", **_AT_SILO},
    NO_PSEUDO_LABELS: {"name": "self_training", **_AT_SILO, "warm_up_rounds": _ROUNDS},
    "Fed-SHVR": {"name": "fed_shvr", **_AT_SILO, "local_epochs": _LOCAL_EPOCHS, "unlabelled_batch": _BATCH,
                 "labelled_batch": _BATCH, "ramp_epochs": _ROUNDS * _LOCAL_EPOCHS * 10 // 16, "lr": 0.05},
    "FedAvg + FixMatch": {"name": "fedavg", **_AT_SILO, **_FIXMATCH},
    "FedMatch": {"name": "fedmatch", **_AT_SILO, "preset": "paper_v1", "local_epochs": _LOCAL_EPOCHS,
                 "unlabelled_batch": _BATCH, "labelled_batch": _BATCH, "lr": 0.003, "lambda_l1": 0.0,
                 "aggregation": "uniform", "helpers": "similarity"},
}
"""Of cells with labels at silos. Fed-SHVR's weight of the unlabelled loss rises over as large a share of the epochs as
in its own comparison."""
_AT_BOTH = {"scenario": "labels-at-both"}
BOTH_METHODS: dict[str, dict[str, Any]] = {
    OURS: {"name": "self_training", **_AT_BOTH},
    NO_PSEUDO_LABELS: {"name": "self_training", **_AT_BOTH, "confidence_threshold": 1.0},
}
"""Of cells with labels at both. With the second no image is ever confident enough."""
METHODS = {OURS: _ours, WEAK_VIEWS: _weak_views, NO_PSEUDO_LABELS: _labels_only, "SemiFL": _semifl,
           "FedAvg + FixMatch": _fixmatch, "FedMatch": _fedmatch, "FedMix": _fedmix,
           FIXMATCH_AT_ONE_PLACE: _fixmatch_at_one_place, CEILING: _ours}
"""Besides labels alone, which are measured in the study of our own method. With the third no image is ever confident
enough, so that only the coordinator trains on."""
AT_ONE_PLACE = (FIXMATCH_AT_ONE_PLACE, CEILING)
"""Not federated: one silo has all images, with FixMatch the labels as well."""
OTHERS = tuple(name for name in METHODS if name not in (OURS, WEAK_VIEWS, NO_PSEUDO_LABELS, *AT_ONE_PLACE))
"""The federated ones that self-training is held against."""


ABLATIONS: dict[str, dict[str, Any]] = {
    "as it stands": {},
    "without warm-up": {"warm_up_steps": 0},
    "warm-up of 400 steps": {"warm_up_steps": 400},
    "without the gate": {"gate": False},
    "labels under the model's prior": {"silo_prior": "model"},
    "no prior in the silos' losses": {"local_logit_adjustment": 0.0},
    "neither of the two": {"silo_prior": "model", "local_logit_adjustment": 0.0},
    "threshold 0.95": {"confidence_threshold": 0.95},
    "threshold 0.8": {"confidence_threshold": 0.8},
    "no MixUp at silos": {"mix_weight": 0.0},
    "fresh momentum at silos": {"persist_local_momentum": False},
    "one local epoch": {"local_epochs": 1},
    "two local epochs": {"local_epochs": 2},
    "learning rate 0.01": {"lr": 0.01},
    "10 steps on the labels a round": {"coordinator_steps": 10},
    "80 steps on the labels a round": {"coordinator_steps": 80},
    "weak views of the labels in rounds": {"labelled_views": "weak"},
    "statistics of the coordinator alone": {"sbn_source": "coordinator"},
    "without offsets": {"sbn_offsets": False},
    "uplink int8": {},
    "uplink top-k 10% int8": {},
    "uplink top-k 5%": {},
    "uplink top-k 3%": {},
    "uplink top-k 1%": {},
    "uplink top-k 1% int8, statistics of the coordinator alone": {"sbn_source": "coordinator"},
}
"""Self-training with one thing changed. All start from labels alone, but those that ask for a warm-up of their own; as
many steps on the labels as a study has, labels alone has."""
_UPLINKS = {name: name.removeprefix("uplink ").partition(",")[0] for name in ABLATIONS if name.startswith("uplink ")}
ABLATION_CELLS = (Cell("digits", "even", 4), Cell("digits", "two classes", 4), Cell("digits", "Dirichlet 0.1", 4),
                  Cell("digits", "imbalanced", 4), Cell("blood cells", "imbalanced", 10),
                  Cell("Fashion-MNIST", "Dirichlet 0.1", 4))


def methods_of(cell: Cell) -> tuple[str, ...]:
    """Those that are compared in a cell; labels and images in one place are the same however they would be dealt, so
    these are in the even cells alone."""
    if cell.labels_at_silos or cell.labels_at_both:
        return tuple(SILO_METHODS if cell.labels_at_silos else BOTH_METHODS)
    return tuple(name for name in METHODS if name not in AT_ONE_PLACE or cell.split == "even")


def study_of(cell: Cell, method: str, *, seed: int, folder: Path, fewer: bool = False,
             rounds: int = _ROUNDS) -> dict[str, Any]:
    """The tables of one study.

    The other methods get the settings against imbalance where the labels are imbalanced.
    Args:
        folder: of the .npz files.
        fewer: the other methods take as many steps on the coordinator's labels as self-training does in its rounds,
            and none for those of labels alone.
        rounds: another number than the table's; not where labels are at the silos, whose settings count on it.
    """
    of = SETS[cell.data]
    if cell.labels_at_silos or cell.labels_at_both:
        settings = dict((SILO_METHODS if cell.labels_at_silos else BOTH_METHODS)[method])
    else:
        of_method = METHODS[OURS if method in ABLATIONS else method]
        settings = {**of_method(cell, _passes(cell, fewer=fewer, rounds=rounds)), **ABLATIONS.get(method, {})}
    image: dict[str, Any] = {"size": of.size, "channels": of.channels}
    if settings.get("scenario") == "labels-at-silo":  # the coordinator has no images to measure them on
        image |= {"mean": [0.5] * of.channels, "std": [0.25] * of.channels}
    if cell.imbalanced and settings["name"] != "self_training":
        settings["logit_adjustment"] = 1.0
    return {
        **({"wire": {"uplink": _UPLINKS[method]}} if method in _UPLINKS else {}),
        "study": {"rounds": rounds, "seed": seed,
                  "labelled_only_baseline": not cell.labels_at_silos and (
                      method in (OURS, WEAK_VIEWS, CEILING, *ABLATIONS)
                      or (method == NO_PSEUDO_LABELS and not cell.labels_at_both))},
        "model": {"name": "small_cnn"},
        "data": {"image": image, "validation_share": "0%"},
        "augmentation": dict(of.augmentation), "method": settings,
        "simulation": {"data": of.source if of.source == "digits" else str(folder / of.source), "silos_test": False,
                       "split": _split(cell, method)}}


def digest_of(study: Mapping[str, Any]) -> str:
    """16 hex digits that change when the study does, wherever its images lie."""
    simulation = {**study["simulation"], "data": Path(study["simulation"]["data"]).name}
    return hashlib.sha256(json.dumps({**study, "simulation": simulation}, sort_keys=True).encode()).hexdigest()[:16]
