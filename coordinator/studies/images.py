"""What the coordinator holds of a study, read and frozen: images, class order, image form, the network's fit.

Tests: tests/coordinator/cli/test_data.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from semisilo.common.data.augmentation.augment import check_settings
from semisilo.common.data.form import ImageForm
from semisilo.common.data.readers import ImageSet, Skipped, measure_form, read_images, refuse_broken
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning.tensors import digest
from semisilo.common.methods.contract import CoordinatorData, ModelSettings, TensorGroup
from semisilo.common.models.factory import ModelBuilder, WrongSize, check_model
from semisilo.common.models.image_sizes import sizes_that_work
from semisilo.common.models.starting_point import StartingPoint, starting_point
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["StudyData", "read_study_data"]

_LOG = logging.getLogger("semisilo.study")


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyData:
    """A study's images, with what is frozen of them."""

    images: CoordinatorData
    build_model: ModelBuilder
    """Makes the network with the weights that the study starts from, where it has a file of them."""
    frozen: FrozenStudy
    frozen_group: TensorGroup | None = None
    """Group `frozen`; None when all of the network is trained."""


def read_study_data(config: StudyConfig, *, folder: Path, frozen: FrozenStudy | None,
                    progress: Callable[[float, str], None] | None = None, disk: Path | None = None) -> StudyData:
    """Reads the coordinator's sets and freezes what follows from them, or checks it against what is frozen.

    Args:
        config: the study's settings.
        folder: the study's folder; relative paths start here.
        frozen: from the first opening; None at the first. Never measured again.
        disk: a folder on whose disk images lie that are too many for memory; None where they must not.
    Raises: BadData, naming the file; BadConfiguration when the settings do not fit the images or what is frozen.
    """
    data, image = config.data, config.data.image
    check_settings(config.augmentation)
    if frozen is not None:
        _check_unchanged(config, frozen)
    classes = frozen.classes if frozen is not None else data.classes
    skipped: list[str] = []
    broken: list[Skipped] = []

    def read(source: str, part: str) -> ImageSet | None:
        nonlocal classes
        if not source:
            return None
        found = read_images(_located(source, folder), size=image.size, channels=image.channels, resize=image.resize,
                            classes=classes or None, labelled=True, on_error="skip" if data.on_error == "report" else
                            data.on_error, progress=progress, reading=image.reading, disk=disk)
        classes = classes or found.classes
        skipped.extend(f"{part}: {item.name}: {item.reason}" for item in found.skipped)
        broken.extend(replace(item, name=f"{part}: {item.name}") for item in found.skipped if item.broken)
        return found.images

    images = CoordinatorData(labelled=read(data.labelled, "labelled"), validation=read(data.validation, "validation"),
                             test=read(data.test, "test"))
    if data.on_error == "report":
        refuse_broken(str(folder), broken)
    if len(classes) < 2:
        raise BadData(f"[data] the study has {'1 class: ' + classes[0] if classes else 'no class'}.",
                      remedy="Give at least two class folders, or name them: classes = [\"a\", \"b\"].")
    form = frozen.image if frozen is not None else _form(config, images)
    start, num_parameters = _network(config, replace(config.model, classes=classes), form, folder, progress)
    group = TensorGroup(start.frozen, digest=digest(start.frozen)) if start.frozen else None
    now = FrozenStudy(
        classes=classes, image=form, num_labelled=_count(images.labelled), num_validation=_count(images.validation),
        num_test=_count(images.test), num_parameters=num_parameters, dense_bytes=4 * num_parameters,
        skipped=tuple(skipped), num_broken=len(broken), num_frozen=start.num_frozen,
        frozen_digest="" if group is None else group.digest,
        weights=Path(config.model.weights).name, weights_digest=start.weights_digest, left_random=start.left_random)
    if frozen is None:
        for note in start.notes:
            _LOG.info("%s", note)
    elif replace(now, num_broken=frozen.num_broken) != frozen:
        _check_same_network(config, now, frozen)
        _LOG.warning("the coordinator's images have changed since the study started (labelled %d -> %d, validation"
                     " %d -> %d, test %d -> %d): its bits will differ from an undisturbed run", frozen.num_labelled,
                     now.num_labelled, frozen.num_validation, now.num_validation, frozen.num_test, now.num_test)
    return StudyData(images=images, build_model=start.builder, frozen=frozen or now, frozen_group=group)


def _network(config: StudyConfig, model: ModelSettings, form: ImageForm, folder: Path,
             progress: Callable[[float, str], None] | None) -> tuple[StartingPoint, int]:
    """The network that the study starts from, and its number of trainable parameters.

    Raises: BadConfiguration or BadData; where the image size does not fit, with sizes that do.
    """
    weights = folder / Path(model.weights).expanduser() if model.weights else None
    try:
        start = starting_point(model, form, seed=config.study.seed, weights=weights, progress=progress,
                               allow_factories=_own_factory(model.name))
        return start, check_model(start.builder, form, len(model.classes))
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


def _own_factory(name: str) -> tuple[str, ...]:
    """The operator's own study file permits the factory that it names; a silo decides for itself."""
    return (name,) if ":" in name else ()


def _form(config: StudyConfig, images: CoordinatorData) -> ImageForm:
    image = config.data.image
    mean, std = image.mean, image.std
    if isinstance(mean, str):
        mean = measure_form(_measured(images, mean, "mean"))[0]
    if isinstance(std, str):
        std = measure_form(_measured(images, std, "std"))[1]
    try:
        return ImageForm(size=image.size, channels=image.channels, mean=mean, std=std, resize=image.resize,
                         reading=image.reading)
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
    settings = [("classes", data.classes or frozen.classes, frozen.classes)]
    pairs: list[tuple[str, object, object]] = [
        *settings, ("size", image.size, frozen.image.size), ("channels", image.channels, frozen.image.channels),
        ("resize", image.resize, frozen.image.resize), ("reading", image.reading, frozen.image.reading)]
    pairs += [(name, value, getattr(frozen.image, name)) for name in ("mean", "std")
              if not isinstance(value := getattr(image, name), str)]
    for name, now, then in pairs:
        if now != then:
            raise BadConfiguration(f"[data] {name} = {now} differs from {then}, with which the study was started.",
                                   remedy="Set it back, or start a new study.")


def _count(images: ImageSet | None) -> int:
    return 0 if images is None else len(images)
