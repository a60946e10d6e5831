"""What the coordinator holds of a study, read and frozen: images, class order, image form, the network's fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from common.data.augment import check_settings
from common.data.form import ImageForm
from common.data.readers import ImageSet, measure_form, read_images
from common.errors import BadConfiguration, BadData
from common.exchange import CoordinatorData
from common.models import ModelBuilder, check_model, model_builder
from coordinator.study import FrozenStudy, StudyConfig

__all__ = ["StudyData", "read_study_data"]

_LOG = logging.getLogger("semisilo.study")


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyData:
    """A study's images in memory, with what is frozen of them."""

    images: CoordinatorData
    build_model: ModelBuilder
    frozen: FrozenStudy


def read_study_data(config: StudyConfig, *, folder: Path, frozen: FrozenStudy | None,
                    progress: Callable[[float, str], None] | None = None) -> StudyData:
    """Reads the coordinator's sets and freezes what follows from them, or checks it against what is frozen.

    Args:
        config: the study's settings.
        folder: the study's folder; relative paths start here.
        frozen: from the first opening; None at the first. Never measured again.
    Raises: BadData, naming the file; BadConfiguration when the settings do not fit the images or what is frozen.
    """
    data, image = config.data, config.data.image
    check_settings(config.augmentation)
    if frozen is not None:
        _check_unchanged(config, frozen)
    classes = frozen.classes if frozen is not None else data.classes
    skipped: list[str] = []

    def read(source: str, part: str) -> ImageSet | None:
        nonlocal classes
        if not source:
            return None
        found = read_images(_located(source, folder), size=image.size, channels=image.channels, resize=image.resize,
                            classes=classes or None, labelled=True, on_error=data.on_error, progress=progress)
        classes = classes or found.classes
        skipped.extend(f"{part}: {item.name}: {item.reason}" for item in found.skipped)
        return found.images

    images = CoordinatorData(labelled=read(data.labelled, "labelled"), validation=read(data.validation, "validation"),
                             test=read(data.test, "test"))
    if len(classes) < 2:
        raise BadData(f"[data] the study has {len(classes)} class(es): {', '.join(classes) or 'none'}.",
                      remedy="Give at least two class folders, or name them: classes = [\"a\", \"b\"].")
    form = frozen.image if frozen is not None else _form(config, images)
    build = model_builder(replace(config.model, classes=classes), form, _own_factory(config.model.name))
    num_parameters = check_model(build, form, len(classes))
    now = FrozenStudy(
        classes=classes, image=form, num_labelled=_count(images.labelled), num_validation=_count(images.validation),
        num_test=_count(images.test), num_parameters=num_parameters, dense_bytes=4 * num_parameters,
        skipped=tuple(skipped))
    if frozen is not None and now != frozen:
        if now.num_parameters != frozen.num_parameters:
            raise BadConfiguration(f"Model '{config.model.name}' has {now.num_parameters} parameters; the study was"
                                   f" started with {frozen.num_parameters}.",
                                   remedy="Restore the model's code, or start a new study.")
        _LOG.warning("the coordinator's images have changed since the study started (labelled %d -> %d, validation"
                     " %d -> %d, test %d -> %d): its bits will differ from an undisturbed run", frozen.num_labelled,
                     now.num_labelled, frozen.num_validation, now.num_validation, frozen.num_test, now.num_test)
    return StudyData(images=images, build_model=build, frozen=frozen or now)


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
        return ImageForm(size=image.size, channels=image.channels, mean=mean, std=std, resize=image.resize)
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
        ("resize", image.resize, frozen.image.resize)]
    pairs += [(name, value, getattr(frozen.image, name)) for name in ("mean", "std")
              if not isinstance(value := getattr(image, name), str)]
    for name, now, then in pairs:
        if now != then:
            raise BadConfiguration(f"[data] {name} = {now} differs from {then}, with which the study was started.",
                                   remedy="Set it back, or start a new study.")


def _count(images: ImageSet | None) -> int:
    return 0 if images is None else len(images)
