"""A silo's images as a study's scenario sees them: which are labelled, which arrive in which round.

| scenario              | labelled                     | unlabelled                                            |
|-----------------------|------------------------------|-------------------------------------------------------|
| labels-at-coordinator | none                         | all images; labels that they have are dropped         |
| labels-at-silo, -both | what `silo join` was told is | the rest; where they come in steps, those of one step |

What a source holds with and without a class is told by `semisilo.common.data.partly_labelled`. Nothing here makes
tensors, so that a light process may import it.

Shapes: N unlabelled images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import ImageForm, OnError, is_of_file
from semisilo.common.data.image_set import ImageSet, Skipped, joined
from semisilo.common.data.layout import Layout, layout_of, refuse_parts
from semisilo.common.data.partly_labelled import check_partly_labelled, read_partly_labelled, survey_partly_labelled
from semisilo.common.data.pixel_digests import pixel_digests, telling_digests
from semisilo.common.data.readers import (
    ReadResult,
    check_labelled,
    kind_of,
    listing_of,
    parse_source,
    read_images,
    refuse_broken,
    survey,
)
from semisilo.common.data.split_settings import streaming_step
from semisilo.common.errors import BadData
from semisilo.common.methods import Scenario, silos_have_labels
from semisilo.common.methods.contract import SiloData
from semisilo.common.text.describe import counted
from semisilo.common.text.logs import printable
from semisilo.silo.compute.messages import Surveyed
from semisilo.silo.site.home import JoinChoice, check_apart

__all__ = ["ReadSilo", "SiloImages", "check_silo_images", "read_silo_images", "survey_silo_images"]

_LOG = logging.getLogger("semisilo.data")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SiloImages:
    """All images of a silo, in the form of a study. Sets that it does not have are None."""

    labelled: ImageSet | None = None
    unlabelled: ImageSet | None = None
    """In a simulation they may keep their labels (`SiloData.unlabelled`); a deployed silo drops them as it reads."""
    steps_N: NDArray[np.int64] | None = None
    """The step in which each unlabelled image is there, from 0; -1 for an image that is there in every step. None where
    nothing comes in steps."""
    rounds_per_step: int = 1
    """Rounds that a step lasts. The last step lasts until the end."""
    test: ImageSet | None = None
    tied: tuple[str, ...] = ()
    """Kinds of deep values whose range was found in those to train on together: see
    `semisilo.common.data.image_set.ReadResult`. Of images of a simulation it is not known."""

    def __post_init__(self) -> None:
        if self.rounds_per_step < 1:
            raise ValueError(f"rounds_per_step = {self.rounds_per_step}: must be at least 1.")
        number = 0 if self.unlabelled is None else len(self.unlabelled)
        if self.steps_N is not None and self.steps_N.shape != (number,):
            raise ValueError(f"{number} unlabelled images but steps of the shape {self.steps_N.shape}.")

    def data(self, *, round: int, scenario: Scenario) -> SiloData:
        """What a trainer is given in a round, counted from 1. Sets without an image are None.

        In labels-at-coordinator labelled images count as unlabelled ones that are there in every step.
        Source of the steps: FedMatch's streaming split, data.md section 3.4.
        """
        labelled, unlabelled = _some(self.labelled), self._of_round(round)
        if not silos_have_labels(scenario) and labelled is not None:
            hidden = labelled.without_labels()
            labelled, unlabelled = None, hidden if unlabelled is None else joined(hidden, unlabelled)
        return SiloData(labelled=labelled, unlabelled=unlabelled, test=_some(self.test))

    def _of_round(self, round: int) -> ImageSet | None:
        if self.unlabelled is None or self.steps_N is None or len(self.steps_N) == 0:
            return _some(self.unlabelled)
        step = streaming_step(round, steps=int(self.steps_N.max()) + 1, rounds_per_step=self.rounds_per_step)
        return _some(self.unlabelled.subset(np.flatnonzero((self.steps_N == step) | (self.steps_N < 0))))


@dataclass(frozen=True, slots=True)
class ReadSilo:
    """What was read, and what was left out of it."""

    images: SiloImages
    skipped: tuple[Skipped, ...]
    """Never leaves the site, like the next."""
    twins: tuple[str, ...] = ()
    """Names of test images that were left out, since an image to train on has the same pixels."""


def read_silo_images(choice: JoinChoice, form: ImageForm, *, classes: tuple[str, ...], scenario: Scenario,
                     progress: Callable[[float, str], None] | None = None, disk: Path | None = None,
                     multi_label: bool = False) -> ReadSilo:
    """Reads all images that a `silo join` has named.

    Args:
        form: the study's geometry; mean and deviation are applied to batches, not here.
        classes: the study's class names in label order.
        progress: told the share that is done, 0 to 1, and a line of text that names no file.
        disk: a folder on whose disk images lie that are too many for memory; None where they must not.
        multi_label: whether images of the study may have several labels or none.
    Raises: BadData, naming the file, for images that cannot be used and for a class that the study does not have.
    """
    check_apart(choice)
    number = 1 + bool(choice.labelled) + bool(choice.test)
    labels_count = silos_have_labels(scenario)
    on_error: OnError = "skip" if choice.on_error == "report" else choice.on_error  # reported once, of all sources

    def part(index: int) -> Callable[[float, str], None]:
        def tell(share: float, text: str) -> None:
            if progress is not None:
                progress((index + share) / number, text)

        return tell

    def read(source: str, index: int, *, with_labels: bool) -> ReadResult:
        return read_images(source, size=form.size, channels=form.channels, resize=form.resize, classes=classes,
                           labelled=with_labels, on_error=on_error, progress=part(index), reading=form.reading,
                           disk=disk, selection=choice.selection, multi_label=multi_label)

    found = read_partly_labelled(choice.source, form, classes=classes, use_labels=labels_count and _with_labels(choice),
                                 on_error=on_error, progress=part(0), disk=disk, selection=choice.selection,
                                 multi_label=multi_label)
    images = SiloImages(labelled=found.labelled, unlabelled=found.unlabelled, steps_N=found.steps_N,
                        rounds_per_step=found.rounds_per_step, tied=found.tied)
    skipped, twins = found.skipped, tuple[str, ...]()
    read_with = {choice.source: found.ranges}
    if choice.labelled:
        more = read(choice.labelled, 1, with_labels=labels_count)
        images = replace(images, labelled=more.images) if labels_count else _with_hidden(images, more.images, disk)
        images = replace(images, tied=tuple(sorted({*images.tied, *more.tied})))
        skipped += more.skipped
        read_with[choice.labelled] = more.ranges
    if choice.test:
        test = read(choice.test, number - 1, with_labels=True)
        apart, twins = _apart(test.images, images, choice)
        images = replace(images, test=apart)
        skipped += test.skipped
        read_with[choice.test] = test.ranges
    _warn_of_ranges(read_with)
    if choice.on_error == "report":
        refuse_broken(" and ".join(choice.sources), skipped, any_left=any(
            each is not None for each in (images.labelled, images.unlabelled, images.test)))
    _check_patients(images)
    return ReadSilo(images, skipped, twins)


def _warn_of_ranges(read_with: Mapping[str, Mapping[str, float]]) -> None:
    """Says on this machine where the site's sources are read with several ranges: each finds its own."""
    by_kind: dict[str, dict[str, float]] = {}
    for source, ranges in read_with.items():
        for kind, limit in ranges.items():
            by_kind.setdefault(kind, {})[source] = limit
    for kind, limits in by_kind.items():
        if len(set(limits.values())) > 1:
            _LOG.warning("values of %s: %s. Each source is read by its own values; if they are of one kind, ask for a"
                         " study with [data.image.reading] window", kind,
                         ", ".join(f"{limit:g} is white in {printable(source, limit=200)}"
                                   for source, limit in limits.items()))


def _apart(test: ImageSet, images: SiloImages, choice: JoinChoice) -> tuple[ImageSet, tuple[str, ...]]:
    """The test images without those that have the pixels of one to train on, and the names of these: what a model has
    seen, with a label or without, does not measure it. Raises: BadData where none is left."""
    trained = {digest for each in (images.labelled, images.unlabelled) if each is not None
               for digest in pixel_digests(each)}
    seen = [bool(digest) and digest in trained for digest in telling_digests(test, pixel_digests(test))]
    twins = tuple(name for name, twice in zip(test.names, seen, strict=True) if twice)
    if not twins:
        return test, ()
    if len(twins) == len(test):
        raise BadData(f"{choice.test}: every test image has the pixels of one to train on, first {twins[0]}.",
                      remedy="Name test images that nothing is trained on.")
    return test.subset([index for index, twice in enumerate(seen) if not twice]), twins


def _with_labels(choice: JoinChoice) -> bool:
    """Whether class folders and labels within `source` are used."""
    return choice.use_labels and not choice.labelled


def _check_patients(images: SiloImages) -> None:
    """Whether nobody whose images are trained on is tested with.

    Raises: BadData with how many are, and the first image of one.
    """
    test = images.test
    if test is None or not test.patients:
        return
    trained = {patient for each in (images.labelled, images.unlabelled) if each is not None
               for patient in each.patients}
    twice = {patient for patient in test.patients if patient and not is_of_file(patient)} & trained
    if twice:
        first = next(name for name, patient in zip(test.names, test.patients, strict=True) if patient in twice)
        raise BadData(f"{counted(len(twice), 'patient')} of the test images are among the images to train on, too,"
                      f" first the one of {first}.",
                      remedy="Keep all images of a patient on one side; or, if these are different patients, set"
                             ' patient = "none" in [data] of silo.toml.')


def check_silo_images(choice: JoinChoice, *, classes: tuple[str, ...], scenario: Scenario, multi_label: bool = False
                      ) -> None:
    """Refuses what `read_silo_images` would refuse of names and labels for a study; decodes nothing.

    Raises: BadData, in the words of `read_silo_images`.
    """
    if silos_have_labels(scenario):
        if _with_labels(choice):
            check_partly_labelled(choice.source, classes=classes, selection=choice.selection, multi_label=multi_label)
        if choice.labelled:
            check_labelled(choice.labelled, classes=classes, selection=choice.selection, multi_label=multi_label)
    if choice.test:
        check_labelled(choice.test, classes=classes, selection=choice.selection, multi_label=multi_label)


def _with_hidden(images: SiloImages, more: ImageSet, disk: Path | None) -> SiloImages:
    """Unlabelled images more, there in every step."""
    if images.unlabelled is None:
        return replace(images, unlabelled=more)
    steps_N = None if images.steps_N is None else np.concatenate([np.full(len(more), -1), images.steps_N])
    return replace(images, unlabelled=joined(more, images.unlabelled, disk=disk), steps_N=steps_N)


def _some(images: ImageSet | None) -> ImageSet | None:
    return images if images is not None and len(images) else None


def survey_silo_images(choice: JoinChoice) -> Surveyed:
    """Counts what a `silo join` has named, before any study is known.

    Raises: BadData, naming the file, when a source cannot be used, or has no labels where it must have them; for
        a folder of parts such as `train` and `test`.
    """
    check_apart(choice)
    layout = _layout(choice)
    found = survey_partly_labelled(choice.source, choice.selection)
    labelled, unlabelled = found.labelled, found.unlabelled
    if not _with_labels(choice):
        labelled, unlabelled = 0, labelled + unlabelled
    if choice.labelled:
        labelled = _count_labelled(choice, choice.labelled, "labelled")
    return Surveyed(labelled=labelled, unlabelled=unlabelled, steps=found.steps,
                    test=_count_labelled(choice, choice.test, "test") if choice.test else 0,
                    layout=layout.understood, question=layout.question, remedy=layout.remedy)


def _layout(choice: JoinChoice) -> Layout:
    """What the folders of the source are taken for, or what is not clear in a table; nothing where nothing has a label.

    Raises: BadData for parts of a data set.
    """
    path, split = parse_source(choice.source)
    kind = kind_of(path)
    if path is None or not _with_labels(choice) or kind not in ("folder", "table"):
        return Layout(understood="")
    listing = listing_of(path, split, source=choice.source, selection=choice.selection)
    if kind == "table":
        asked = listing.question
        return Layout(understood="") if asked is None else Layout(
            understood="", question=asked.text.rstrip("."), remedy=asked.remedy.rstrip("."))
    refuse_parts(choice.source, listing, at_silo=True)
    return layout_of(choice.source, listing, at_silo=True)


def _count_labelled(choice: JoinChoice, source: str, what: str) -> int:
    found = survey(source, choice.selection).num_labelled
    if not found:
        raise BadData(f"{source}: has no labels, but was named as {what} images.",
                      remedy="Give class folders, or an .npz file that holds labels as well.")
    return found
