"""What the coordinator holds of a study, read and frozen: images, class order, image form, the network's fit.

Tests: tests/coordinator/cli/test_data.py.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from semisilo.common import __version__
from semisilo.common.data.augmentation.augment import check_settings
from semisilo.common.data.form import ImageForm, Ranges
from semisilo.common.data.image_set import part_of
from semisilo.common.data.multi_hot import class_counts, num_strata, strata_of
from semisilo.common.data.pixel_digests import pixel_digests, telling_digests
from semisilo.common.data.readers import ImageSet, Skipped, measure_form, read_images, refuse_broken
from semisilo.common.errors import BadConfiguration, BadData, SemisiloError, SystemTrouble, UnknownName
from semisilo.common.learning.averaged_training import log_prior
from semisilo.common.learning.tensors import digest
from semisilo.common.measures.independent_images import IndependentImages, independent_images
from semisilo.common.measures.study_measure import ACCURACY, AUROC, StudyMeasure, decided_measure, parse_measure
from semisilo.common.methods import silos_have_labels
from semisilo.common.methods.contract import CoordinatorData, ModelSettings, TensorGroup
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.models.factory import ModelBuilder, WrongSize, check_answers, check_model
from semisilo.common.models.image_sizes import sizes_that_work
from semisilo.common.models.own.model_file import code_of, with_digest
from semisilo.common.models.starting_point import StartingPoint, starting_point
from semisilo.common.numerics.numerics import code_of_others
from semisilo.common.text.describe import counted
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.studies.colour_views import left_out_views
from semisilo.coordinator.studies.held_out import (
    Overlap,
    check_apart,
    check_patients_apart,
    draw_validation,
    held_out_share,
    shared_images,
    shared_patients,
)
from semisilo.coordinator.studies.study_file import NEEDS_VALIDATION, StudyConfig, check_class, check_class_names

__all__ = ["StudyData", "read_study_data", "warn_of_ranges"]

_LOG = logging.getLogger("semisilo.study")
_SETS = ("labelled", "validation", "test")
_READERS = ("numpy", "pillow", "pydicom", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "nibabel", "pyarrow",
            "imagecodecs", "tifffile")
"""Packages that make pixels of files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyData:
    """A study's images, with what is frozen of them."""

    images: CoordinatorData
    build_model: ModelBuilder
    """Makes the network with the weights that the study starts from, where it has a file of them."""
    frozen: FrozenStudy
    frozen_group: TensorGroup | None = None
    """Group `frozen`; None when all of the network is trained."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """How each set differs from the one with which the study was started, for a person; without those that do not."""
    unread: frozenset[str] = frozenset()
    """Sets that could not be read now, and so are None in `images`; only where they may have changed."""

    @property
    def labelled_of_study(self) -> ImageSet | None:
        """The labelled images, where they are those of the study still: others say nothing of what its models know."""
        return None if "labelled" in self.changes else self.images.labelled

    @property
    def to_build_with(self) -> CoordinatorData:
        """`images`, for a strategy that is asked for a model and trains nothing: one blank image of each class stands
        for a set that could not be read, since strategies are not built without what they would train on."""
        if not self.unread:
            return self.images
        blank = _blank(self.frozen)
        return replace(self.images, **{name: blank for name in ("labelled", "validation") if name in self.unread})


def read_study_data(config: StudyConfig, *, folder: Path, frozen: FrozenStudy | None,
                    progress: Callable[[float, str], None] | None = None, disk: Path | None = None,
                    may_have_changed: bool = False) -> StudyData:
    """Reads the coordinator's sets and freezes what follows from them, or checks it against what is frozen.

    Args:
        config: the study's settings.
        folder: the study's folder; relative paths start here.
        frozen: from the first opening; None at the first. Never measured again.
        disk: a folder on whose disk images lie that are too many for memory; None where they must not.
        may_have_changed: whether sets that are not those of the first opening, or cannot be read any more, are told
            and not refused: by whoever trains nothing with them. Test images of which one stands in another set now are
            left out as a whole.
    Raises: BadData, naming the file, for images in two sets, and for sets that have changed; BadConfiguration when the
        settings do not fit the images or what is frozen; UnknownName.
    """
    with _naming(folder / "study.toml"):
        return _read(config, folder=folder, frozen=frozen, progress=progress, disk=disk,
                     may_have_changed=may_have_changed)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Errors name the study's file, unless they name something beside it, or it is in no file."""
    try:
        yield
    except (BadConfiguration, BadData, UnknownName) as error:
        if file.is_file() and str(file.parent) not in error.text:
            error.text = f"{file}: {error.text}"
            error.args = (error.text,)
        raise


def _read(config: StudyConfig, *, folder: Path, frozen: FrozenStudy | None,
          progress: Callable[[float, str], None] | None, disk: Path | None, may_have_changed: bool) -> StudyData:
    data, image = config.data, config.data.image
    check_settings(config.augmentation.decided(()))
    if frozen is not None:
        _check_unchanged(config, frozen)
    classes = frozen.classes if frozen is not None else data.classes
    multi_label = config.study.task == "multi_label"
    skipped: list[str] = []
    broken: list[Skipped] = []
    ranges: Ranges = () if frozen is None else frozen.ranges
    is_first = frozen is None
    tells = may_have_changed and frozen is not None
    unread: dict[str, str] = {}

    def read(source: str, part: str) -> ImageSet | None:
        nonlocal classes, ranges, is_first
        if not source:
            return None
        try:
            with code_of_others():  # a format plug-in: what it sets in torch ends with it
                found = read_images(
                    _located(source, folder), size=image.size, channels=image.channels, resize=image.resize,
                    classes=classes or None, labelled=True, on_error="skip" if data.on_error == "report"
                    else data.on_error, progress=progress, reading=image.reading, disk=disk,
                    selection=data.selection, multi_label=multi_label, ranges=dict(ranges))
        except SystemTrouble:
            raise  # it passes
        except SemisiloError as error:
            if not tells:
                raise
            unread[part] = error.text
            return None
        classes = classes or found.classes
        if is_first:
            ranges, is_first = tuple(sorted(found.ranges.items())), False
        if frozen is None:
            warn_of_ranges(ranges, found.ranges, part=part)
        skipped.extend(f"{part}: {item.name}: {item.reason}" for item in found.skipped if not item.unchosen)
        if frozen is None and (unchosen := sum(item.unchosen for item in found.skipped)):
            _LOG.info("%s images: %s left out by a setting of [data]", part, counted(unchosen, "file"))
        broken.extend(replace(item, name=f"{part}: {item.name}") for item in found.skipped if item.broken)
        return found.images

    images = CoordinatorData(labelled=read(data.labelled, "labelled"), validation=read(data.validation, "validation"),
                             test=read(data.test, "test"))
    if data.on_error == "report" and not tells:
        refuse_broken(str(folder), broken)
    if frozen is not None and not frozen.by_file:
        images = CoordinatorData(labelled=_without_files(images.labelled), test=_without_files(images.test),
                                 validation=_without_files(images.validation))
    plain_images = frozen.plain_images if frozen is not None else images.labelled is not None and not all(
        telling_digests(images.labelled, (b"image",) * len(images.labelled)))
    sets = [each for each in (images.labelled, images.validation, images.test) if each is not None]
    by_patient = frozen.by_patient if frozen is not None else any(each.knows_patients for each in sets)
    by_file = frozen.by_file if frozen is not None else any(each.has_parts_of_files for each in sets)
    images, num_held_out, images_K, digests, shared = _parted(
        config, images, frozen, num_classes=len(classes), disk=disk, may_have_changed=may_have_changed)
    if len(classes) < 2:
        raise BadData(f"[data] the study has {'1 class: ' + classes[0] if classes else 'no class'}.",
                      remedy="Give at least two class folders, or name them: classes = [\"a\", \"b\"].")
    if frozen is None and silos_have_labels(config.method.settings.scenario):
        check_class_names(classes, where="[data]")  # those that the labelled images have brought
    if frozen is None:
        _warn_of_missing_classes(images, classes, silos_too=silos_have_labels(config.method.settings.scenario))
    measure, measure_reason = _measure(config, classes, images_K)
    if frozen is None:
        _check_measured_class(images, classes, measure, silos_too=silos_have_labels(config.method.settings.scenario))
        _warn_of_other_aim(config, images, measure, num_classes=len(classes))
        _warn_of_unseen_classes(images, classes, measure)
        if not config.study.measure and config.study.task != "multi_label" and not any(images_K):
            _warn_of_imbalanced_tests(_by_class(images.test, num_classes=len(classes)))
    if config.study.patience and not may_have_changed and not _count(images.validation):
        raise BadConfiguration(f"[study] patience = {config.study.patience} looks at validation images, and there are"
                               f" none: {_count(images.labelled)} labelled images are too few for some to be held out"
                               " unasked.", remedy=NEEDS_VALIDATION.format(setting="patience"))
    form = frozen.image if frozen is not None else _form(config, images)
    left_out, left_out_reason = _left_out_views(config, images, frozen, num_classes=len(classes))
    start, num_parameters = _network(config, replace(config.model, classes=classes), form, folder, progress,
                                     frozen=frozen)
    group = TensorGroup(start.frozen, digest=digest(start.frozen)) if start.frozen else None
    now = FrozenStudy(
        classes=classes, image=form, num_labelled=_count(images.labelled), num_validation=_count(images.validation),
        num_test=_count(images.test), num_parameters=num_parameters, dense_bytes=4 * num_parameters,
        num_held_out=num_held_out, ranges=ranges, plain_images=plain_images, by_patient=by_patient, by_file=by_file,
        labelled_patients=_patients(images.labelled), validation_patients=_patients(images.validation),
        test_patients=_patients(images.test), measure=str(measure), measure_reason=measure_reason,
        test_images=_by_class(images.test, num_classes=len(classes)), test_without=_without(images.test),
        test_independent=_independent(images.test, num_classes=len(classes)),
        task=config.study.task, left_out_views=left_out, left_out_views_reason=left_out_reason,
        skipped=tuple(skipped), num_broken=len(broken), num_frozen=start.num_frozen,
        frozen_digest="" if group is None else group.digest,
        weights=Path(config.model.weights).name, weights_digest=start.weights_digest, left_random=start.left_random,
        head_by_class=start.head_by_class,
        labelled_digest=_digest_of(images.labelled, digests.get("labelled", ())),
        validation_digest=_digest_of(images.validation, digests.get("validation", ())),
        test_digest=_digest_of(images.test, digests.get("test", ())), read_with=_read_with(), keeps_best=True,
        compares_usual=True)
    changes: dict[str, str] = {}
    if frozen is None:
        for note in start.notes:
            _LOG.info("%s", note)
    elif (comparable := _comparable(now, frozen)) != frozen or shared:
        _check_same_network(config, now, frozen)
        changes = _changes(now, frozen)
        for name, why in unread.items():
            _LOG.warning("the %s images cannot be read: %s", name, why)
            changes[name] = f"the {name} images cannot be read any more"  # a card tells no paths
        for each in shared:
            changes[each.of] = "; ".join(filter(None, (changes.get(each.of), each.text)))
        if changes and not may_have_changed:
            raise BadData(f"[data] the coordinator's images are not those with which the study was started:"
                          f" {'; '.join(changes.values())}.",
                          remedy="Restore them and queue the study again, or start a new one: coordinator new NAME.")
        what = "; ".join(changes.values()) or (
            f"the same number of images; read with {now.read_with}, then with {frozen.read_with}"
            if any(_set_digests(comparable)[each] != _set_digests(frozen)[each] for each in _SETS) else
            "the same number of images")
        _LOG.warning("the coordinator's images are not as they were when the study was started (%s): its bits will"
                     " differ from an undisturbed run", what)
        if any(each.of == "test" for each in shared):
            changes["test"] += ", so nothing is measured on them"
            images = replace(images, test=None)
    return StudyData(images=images, build_model=start.builder, frozen=frozen or now, frozen_group=group,
                     changes=changes, unread=frozenset(unread) | (
                         {"validation"} if "labelled" in unread and frozen is not None and frozen.num_held_out
                         else frozenset()))


def _blank(frozen: FrozenStudy) -> ImageSet:
    import torch

    form, num = frozen.image, len(frozen.classes)
    labels = torch.eye(num, dtype=torch.int8) if frozen.task == "multi_label" else torch.arange(num)
    return ImageSet(torch.zeros((num, form.channels, form.size, form.size), dtype=torch.uint8), labels,
                    tuple(f"a blank image in the place of one of {name}" for name in frozen.classes))


def warn_of_ranges(ranges: Ranges, found: Mapping[str, float], *, part: str) -> None:
    """Says which values of a set of images go beyond those that the study learns from.

    Args:
        found: what its values were divided by.
        part: what the set is called: "test".
    """
    for kind, limit in ranges:
        if found[kind] > limit:
            _LOG.warning("values of %s go up to %g in the %s images, and not beyond %g in those that the study"
                         " learns from: they are read darker; set [data.image.reading] window", kind,
                         found[kind], part, limit)


def _parted(config: StudyConfig, images: CoordinatorData, frozen: FrozenStudy | None, *, num_classes: int,
            disk: Path | None, may_have_changed: bool
            ) -> tuple[CoordinatorData, int, tuple[int, ...], Mapping[str, Sequence[bytes]], list[Overlap]]:
    """The sets with validation images held out of the labelled ones, where that is so; how many were; how many images
    of each class the labelled images had before, else the validation images have, (K,); digests of every set's pixels;
    and what sets have in common, where they may have changed since the first opening.

    Every opening looks for images that stand in two sets, but for those of a study that was begun by a version that did
    not; a later one holds out what the first has.
    Raises: BadData when an image stands in two sets, or there is none to be held out; not where sets may have changed.
    """
    labelled, validation = images.labelled, images.validation
    counted = labelled if labelled is not None else validation
    images_K = class_counts(None if counted is None else counted.labels_N, num_classes)
    share = 0.0
    if labelled is not None and validation is None and (frozen is None or frozen.num_held_out):
        share = held_out_share(config.data.stated_share, len(labelled))
    sets = {name: each for name, each in (("labelled", labelled), ("validation", validation), ("test", images.test))
            if each is not None}
    digests: dict[str, Sequence[bytes]] = {name: pixel_digests(each) for name, each in sets.items()}
    telling = {name: telling_digests(each, digests[name]) for name, each in sets.items()}
    shared: list[Overlap] = []
    if frozen is None or frozen.measure:
        if may_have_changed:
            shared += shared_images(sets, telling)
        else:
            check_apart(sets, telling)
    by_patient = frozen is None or frozen.by_patient or frozen.by_file
    if by_patient:
        if may_have_changed:
            shared += shared_patients(sets)
        else:
            check_patients_apart(sets)
    if labelled is None or not share:
        return images, 0, images_K, digests, shared
    assert labelled.labels_N is not None
    labels_N = labelled.labels_N.numpy()
    drawn = draw_validation(strata_of(labels_N), share, seed=config.study.seed,
                            num_classes=num_strata(labels_N, num_classes),
                            digests=telling["labelled"] if frozen is None or frozen.plain_images else
                            digests["labelled"],
                            patients=labelled.patients if by_patient else (),
                            drawn_before=0 if frozen is None else frozen.num_held_out)
    if len(drawn) == 0:
        if config.data.stated_share is None or may_have_changed:
            return images, 0, images_K, digests, shared
        raise BadData(f'[data] validation_share = "{config.data.validation_share}": of {len(labelled)} labelled images'
                      " none can be held out: no class has two different ones.",
                      remedy='Give more labelled images, or set validation_share = "0%".')
    if frozen is None:
        _LOG.info("%d of %d labelled images are held out for validation", len(drawn), len(labelled))
    kept = np.setdiff1d(np.arange(len(labelled)), drawn)
    return (replace(images, labelled=part_of(labelled, kept, disk=disk),
                    validation=part_of(labelled, drawn, disk=disk)), len(drawn), images_K,
            {**digests, "labelled": [digests["labelled"][each] for each in kept.tolist()],
             "validation": [digests["labelled"][each] for each in drawn.tolist()]}, shared)


def _measure(config: StudyConfig, classes: tuple[str, ...], images_K: tuple[int, ...]) -> tuple[StudyMeasure, str]:
    """The study's measure, and why it is that one.

    Raises: BadConfiguration for a class that is not the study's.
    """
    if config.study.measure:
        measure = parse_measure(config.study.measure)
        check_class(measure, classes, where="study")
        return measure, "as the study file says"
    if config.study.task == "multi_label":
        return AUROC, "images may have several labels or none"
    measure = decided_measure(images_K)
    if not any(images_K):
        return measure, "the coordinator has no images to see an imbalance by"
    whose = "labelled" if config.data.labelled else "validation"
    spread = f"{max(images_K)} images of the largest class to {min(images_K)} of the smallest"
    return measure, f"the {whose} images are {'balanced' if measure == ACCURACY else 'imbalanced'}, {spread}"


def _left_out_views(config: StudyConfig, images: CoordinatorData, frozen: FrozenStudy | None, *,
                    num_classes: int) -> tuple[tuple[str, ...], str]:
    """Operations that strong views leave out because of the labelled images, and why; what is frozen stays."""
    if frozen is not None:
        return frozen.left_out_views, frozen.left_out_views_reason
    return left_out_views(images.labelled, num_classes=num_classes) if config.augmentation.decides else ((), "")


def _by_class(images: ImageSet | None, *, num_classes: int) -> tuple[int, ...]:
    """How many images there are of each class; () without any."""
    if images is None or images.labels_N is None or len(images) == 0:
        return ()
    return class_counts(images.labels_N, num_classes)


def _without(images: ImageSet | None) -> tuple[int, ...]:
    """How many images are known not to show each class; () where an image has one class."""
    if images is None or images.labels_N is None or images.labels_N.ndim == 1:
        return ()
    return tuple(int(count) for count in (images.labels_N == 0).sum(dim=0))


def _warn_of_missing_classes(images: CoordinatorData, classes: tuple[str, ...], *, silos_too: bool) -> None:
    """Says which classes the coordinator has no labelled image of, where it has labels.

    Args:
        silos_too: whether silos have some too.
    """
    counts_K = _by_class(images.labelled, num_classes=len(classes))
    missing = [name for name, count in zip(classes, counts_K, strict=False) if not count]
    if missing:
        _LOG.warning("the coordinator has no labelled image of '%s'%s: %s", missing[0],
                     f" and {len(missing) - 1} more of the study's classes" if len(missing) > 1 else "",
                     "what silos learn of such a class from their labels is hardly kept; give the coordinator a few"
                     if silos_too else "nobody has labels of such a class, so the model can never learn it; give the"
                     " coordinator a few, or leave it out of [data] classes")


def _check_measured_class(images: CoordinatorData, classes: tuple[str, ...], measure: StudyMeasure, *, silos_too: bool
                          ) -> None:
    """Refuses the recall of a class that nobody can learn, or by which no round can be chosen: a study would run to its
    end and hand over whatever came last. Test images without it are told by `_warn_of_unseen_classes`.

    Args:
        silos_too: whether silos have labels too.
    Raises: BadConfiguration.
    """
    if (label := measure.label_in(classes)) is None:
        return
    name, where = measure.class_name, f'[study] measure = "{measure}":'
    other = "Add some, or choose another measure, such as balanced_accuracy."
    labelled_K, validation_K = (_by_class(each, num_classes=len(classes)) for each in (images.labelled,
                                                                                      images.validation))
    if labelled_K and not labelled_K[label] and not silos_too:
        raise BadConfiguration(f"{where} of the {counted(sum(labelled_K), 'labelled image')} none is of '{name}', so no"
                               " model can learn it.", remedy=other)
    if validation_K and validation_K[label] in (0, sum(validation_K)):
        which = "none" if not validation_K[label] else "every one"
        raise BadConfiguration(f"{where} of the {counted(sum(validation_K), 'validation image')} {which} is of"
                               f" '{name}', so no round can be chosen by it.",
                               remedy=other if which == "none" else "Add images of other classes.")


def _warn_of_unseen_classes(images: CoordinatorData, classes: tuple[str, ...], measure: StudyMeasure) -> None:
    """Says of which classes there is no image where the study measures itself by all of them."""
    for part, found, what in (("validation", images.validation, "choose the round that is handed over"),
                              ("test", images.test, "are what the model is judged by")):
        unseen = measure.unseen(classes, _by_class(found, num_classes=len(classes)))
        if unseen and measure.kind == "recall":  # of test images: without it in the others it was refused
            _LOG.warning("the %s images, which %s, have none of '%s': the study's %s is not measured there, and the"
                         " gain is stated in accuracy; give them some", part, what, unseen[0], measure.title)
        elif unseen:
            _LOG.warning("the %s images, which %s, have none of '%s'%s: their %s leaves out what the model does there,"
                         " and a model that never answers so looks no worse; give them some of every class", part, what,
                         unseen[0], f" and {len(unseen) - 1} more of the study's classes" if len(unseen) > 1 else "",
                         measure.title)


def _warn_of_imbalanced_tests(images_K: tuple[int, ...]) -> None:
    """Says that accuracy was taken for want of labelled and validation images, where the test images are imbalanced:
    they choose nothing, so they do not change the measure either; only how frequent classes are is looked at."""
    measure = decided_measure(images_K)
    if measure != ACCURACY:
        _LOG.warning("the study is about accuracy, since the coordinator has neither labelled nor validation images;"
                     " its test images are imbalanced, %d of the largest class to %d of the smallest: set [study]"
                     ' measure = "%s" if rare classes count as much as frequent ones', max(images_K), min(images_K),
                     measure)


def _warn_of_other_aim(config: StudyConfig, images: CoordinatorData, measure: StudyMeasure, *,
                       num_classes: int) -> None:
    """Says where a study is about accuracy, and its method makes a model that finds rare classes at accuracy's cost."""
    settings, labelled = config.method.settings, images.labelled
    if (isinstance(settings, SelfTrainingSettings) and settings.logit_adjustment > 0
            and not measure.weighs_classes_alike and labelled is not None and labelled.labels_N is not None
            and len(labelled) and log_prior(labelled.labels_N, num_classes) is not None):
        _LOG.warning("the study is about accuracy, and its labels are imbalanced: self-training's model is made for"
                     " balanced accuracy, and answers rare classes more often than accuracy rewards; set [method]"
                     " logit_adjustment = 0 for accuracy, or [study] measure = \"balanced_accuracy\"")


def _comparable(now: FrozenStudy, frozen: FrozenStudy) -> FrozenStudy:
    """What was found now, with what an earlier version did not freeze as it is there."""
    if not frozen.measure:
        now = replace(now, measure="", measure_reason="")
    if not frozen.test_images:
        now = replace(now, test_images=())
    if not frozen.test_without:
        now = replace(now, test_without=())
    if frozen.test_independent is None:
        now = replace(now, test_independent=None)
    if not frozen.by_patient:
        now = replace(now, by_patient=False, labelled_patients=0, validation_patients=0, test_patients=0)
    if not frozen.read_with:
        now = replace(now, labelled_digest="", validation_digest="", test_digest="")
    return replace(now, num_broken=frozen.num_broken, read_with=frozen.read_with, keeps_best=frozen.keeps_best,
                   compares_usual=frozen.compares_usual)


def _changes(now: FrozenStudy, frozen: FrozenStudy) -> dict[str, str]:
    """How each set differs from the frozen one. Other pixels of as many images are no other images for certain where
    other versions have read them."""
    found = {}
    for name in _SETS:
        count, before = (getattr(each, f"num_{name}") for each in (now, frozen))
        if count != before:
            found[name] = f"{before} {name} images then, {count} now"
        elif now.read_with == frozen.read_with and _set_digests(now)[name] != _set_digests(frozen)[name]:
            found[name] = f"as many {name} images as then, {count}, but other ones or other labels"
    return found


def _set_digests(frozen: FrozenStudy) -> dict[str, str]:
    return {"labelled": frozen.labelled_digest, "validation": frozen.validation_digest, "test": frozen.test_digest}


def _digest_of(images: ImageSet | None, digests: Sequence[bytes]) -> str:
    """SHA-256, hex, of pixels and labels, the images in the order of these, so that files may be renamed.

    Args:
        digests: `pixel_digests` of the images.
    """
    if images is None or images.labels_N is None or len(images) == 0:
        return ""
    rows = (pixels + label.tobytes()
            for pixels, label in zip(digests, images.labels_N.cpu().numpy().astype("<i8"), strict=True))
    return hashlib.sha256(b"".join(sorted(rows))).hexdigest()


def _read_with() -> str:
    """Versions of what reads images here, and the kind of machine."""
    found = [f"semisilo {__version__}"]
    for name in _READERS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join([*found, platform.machine()])


def _network(config: StudyConfig, model: ModelSettings, form: ImageForm, folder: Path,
             progress: Callable[[float, str], None] | None, *, frozen: FrozenStudy | None
             ) -> tuple[StartingPoint, int]:
    """The network that the study starts from, and its number of trainable parameters.

    Args:
        frozen: None where the study begins: what has begun with a network goes on with it.
    Raises: BadConfiguration or BadData; where the image size does not fit, with sizes that do.
    """
    weights = folder / Path(model.weights).expanduser() if model.weights else None
    model = with_digest(model, folder)
    try:
        start = starting_point(model, form, seed=config.study.seed, weights=weights, progress=progress,
                               by_class=frozen is None or frozen.head_by_class,
                               allow_factories=code_of(model, folder))
        num_parameters = check_model(start.builder, form, len(model.classes))
        if frozen is None and ":" in model.name:
            check_answers(start.builder, form, len(model.classes))
        return start, num_parameters
    except WrongSize as error:
        sizes = sizes_that_work(model, channels=form.channels, near=form.size)
        if not sizes:
            raise
        nearest = min(sizes, key=lambda size: abs(size - form.size))
        raise BadConfiguration(error.text, remedy=f"Sizes that work: {', '.join(map(str, sizes))}. Set [data] image ="
                               f" {{ size = {nearest}, ... }}.") from error


def _check_same_network(config: StudyConfig, now: FrozenStudy, frozen: FrozenStudy) -> None:
    """Raises: BadConfiguration when the network is another one than that which the study was started with."""
    if now.weights_digest != frozen.weights_digest:
        raise BadConfiguration(f"[model] weights: {now.weights} is another file (SHA-256 {now.weights_digest[:12]}...)"
                               f" than that with which the study was started ({frozen.weights_digest[:12]}...).",
                               remedy="Restore that file, or start a new study.")
    if now.num_parameters != frozen.num_parameters or now.frozen_digest != frozen.frozen_digest:
        raise BadConfiguration(f"Model '{config.model.name}' has {now.num_parameters} parameters to train and"
                               f" {now.num_frozen} frozen ones; the study was started with {frozen.num_parameters} and"
                               f" {frozen.num_frozen}, or with other values of these.",
                               remedy="Restore the model's code, or start a new study.")


def _located(source: str, folder: Path) -> str:
    """The source with a relative path started at `folder`; a named set stays as it is."""
    if source.partition("#")[0] == "digits":
        return source
    return str(folder / Path(source).expanduser())



def _form(config: StudyConfig, images: CoordinatorData) -> ImageForm:
    image = config.data.image
    mean, std = image.mean, image.std
    if isinstance(mean, str):
        mean = measure_form(_measured(images, mean, "mean"))[0]
    if isinstance(std, str):
        std = measure_form(_measured(images, std, "std"))[1]
    try:
        return ImageForm(size=image.size, channels=image.channels, mean=mean, std=std, resize=image.resize,
                         reading=image.reading, standardise=image.standardise)
    except ValueError as error:
        raise BadConfiguration(f"[data.image] {error}") from None


def _measured(images: CoordinatorData, source: str, key: str) -> ImageSet:
    found: ImageSet | None = getattr(images, source)
    if found is None:
        raise BadConfiguration(f'[data.image] {key} is to be measured on "{source}", but there is none.',
                               remedy="Write its numbers into the study file.")
    return found


def _check_unchanged(config: StudyConfig, frozen: FrozenStudy) -> None:
    data, image = config.data, config.data.image
    if config.study.task != frozen.task:
        raise BadConfiguration(f'[study] task = "{config.study.task}" differs from "{frozen.task}", with which the'
                               " study was started.", remedy="Set it back, or start a new study.")
    settings = [("classes", data.classes or frozen.classes, frozen.classes)]
    pairs: list[tuple[str, object, object]] = [
        *settings, ("size", image.size, frozen.image.size), ("channels", image.channels, frozen.image.channels),
        ("resize", image.resize, frozen.image.resize), ("reading", image.reading, frozen.image.reading),
        ("standardise", image.standardise, frozen.image.standardise)]
    pairs += [(name, value, getattr(frozen.image, name)) for name in ("mean", "std")
              if not isinstance(value := getattr(image, name), str)]
    for name, now, then in pairs:
        if now != then:
            raise BadConfiguration(f"[data] {name} = {now} differs from {then}, with which the study was started.",
                                   remedy="Restore the old value, or start a new study.")


def _without_files(images: ImageSet | None) -> ImageSet | None:
    """The images as a study that an earlier version began sees them."""
    return None if images is None else images.without_files()


def _independent(images: ImageSet | None, *, num_classes: int) -> IndependentImages | None:
    if images is None or images.labels_N is None:
        return None
    return independent_images(images.patients, images.labels_N.cpu().numpy(), num_classes)


def _patients(images: ImageSet | None) -> int:
    return 0 if images is None else images.num_patients


def _count(images: ImageSet | None) -> int:
    return 0 if images is None else len(images)
