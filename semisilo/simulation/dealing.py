"""Deals a set of images to the coordinator and the silos of a study: for a simulation, or as files for real silos.

Both ways every participant has the same images in the same order. Pictures are brought to the study's size and channels
before they are dealt, so that who reads them from a file has the same pixels.

Shapes: N images, C channels, S side of the square.

Tests: tests/semisilo/simulation/test_split.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import ImageForm, Ranges, is_of_file, text_of_file
from semisilo.common.data.formats.registry import NPZ, has_suffix
from semisilo.common.data.image_set import ImageSet, joined
from semisilo.common.data.multi_hot import num_strata, strata_of
from semisilo.common.data.partly_labelled import PartlySurvey, read_partly_labelled, survey_partly_labelled
from semisilo.common.data.pixel_digests import pixel_digests, telling_digests
from semisilo.common.data.preview.likeness import statistics_of, unlikeness
from semisilo.common.data.readers import classes_of, read_images, survey
from semisilo.common.errors import BadConfiguration, BadData, SemisiloError, UsageError
from semisilo.common.methods import silos_have_labels
from semisilo.common.text.describe import counted
from semisilo.coordinator.studies.study_file import StudyConfig, check_scenario, config_from_dict
from semisilo.simulation.settings import SimulatedStudy
from semisilo.simulation.splits.named_splits import WITHOUT_LABELS, deal
from semisilo.simulation.splits.splits import Indices, Split, class_distributions, non_iidness

if TYPE_CHECKING:
    from semisilo.silo.compute.images import SiloImages

__all__ = ["Dealt", "SilosImages", "deal_study", "silo_names"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SilosImages(Sequence["SiloImages"]):
    """What the silos of a study train on, by their index: copied out of the whole when it is asked for, so that what
    no task needs takes neither time nor memory. Unlabelled images keep their labels, for diagnostics alone."""

    images: ImageSet
    """Of all silos."""
    split: Split
    test: ImageSet | None
    """What silos measure their own models on."""
    rounds_per_step: int
    classes_known: bool = True
    """Whether the unlabelled images have labels at all; see `Dealt.classes_known`."""

    def __len__(self) -> int:
        return len(self.split.silos)

    @overload
    def __getitem__(self, index: int) -> SiloImages: ...

    @overload
    def __getitem__(self, index: slice) -> list[SiloImages]: ...

    def __getitem__(self, index: int | slice) -> SiloImages | list[SiloImages]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        from semisilo.silo.compute.images import SiloImages

        unlabelled = self.split.silos[index]
        labelled = self.split.labelled[index] if self.split.labelled else ()
        hidden = self.images.subset(unlabelled) if len(unlabelled) else None
        return SiloImages(labelled=self.images.subset(labelled) if len(labelled) else None,
                          unlabelled=hidden if hidden is None or self.classes_known else hidden.without_labels(),
                          steps_N=self.split.steps_of(index), rounds_per_step=self.rounds_per_step, test=self.test)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dealt:
    """A set of images and who holds which of them."""

    study: SimulatedStudy
    classes: tuple[str, ...]
    images: ImageSet
    """Everything that is dealt, with labels."""
    split: Split
    test: ImageSet | None
    """The coordinator's test images."""
    tables: Mapping[str, object]
    """The study of real silos with these parts."""
    config: StudyConfig
    """Its settings."""
    classes_known: bool = True
    """Whether the unlabelled images have labels, for diagnostics alone; otherwise their labels here are zeros that
    stand for nothing."""
    ranges: Ranges = ()
    """What values of more than 8 bits were divided by: of the coordinator's own images where it has such, else of all
    that are dealt."""
    test_ranges: Ranges = ()
    """Of test images with a source of their own."""
    left_out: int = 0
    """Images of the silos' sources that have no label and are not used, since labels are needed."""

    @property
    def silos(self) -> tuple[str, ...]:
        """Names of the silos, in order."""
        return silo_names(len(self.split.silos))

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def labels(self) -> NDArray[np.integer]:
        """Of everything that is dealt, int64 (N,); multi-hot rows, int8 (N, K), where images may have several."""
        assert self.images.labels_N is not None
        labels_N: NDArray[np.integer] = self.images.labels_N.numpy()
        return labels_N

    def coordinator_set(self, name: str) -> ImageSet | None:
        """The coordinator's "labelled", "validation" or "test" images; None where it has none."""
        if name == "test":
            return self.test
        indices = self.split.coordinator if name == "labelled" else self.split.validation
        return self.images.subset(indices) if len(indices) else None

    def ranges_of(self, name: str) -> Ranges:
        """What the values of a coordinator's set were divided by."""
        return self.test_ranges if name == "test" and not len(self.split.test) else self.ranges

    def labelled_of(self, silo: int) -> Indices:
        """The labelled images of a silo, by its index; sorted."""
        return self.split.labelled[silo] if self.split.labelled else np.empty(0, dtype=np.int64)

    @property
    def rounds_per_step(self) -> int:
        """Rounds that a step lasts; 1 without steps."""
        return (self.study.simulation.split.rounds_per_step or _ROUNDS_PER_STEP) if self.split.steps else 1

    def left_out_line(self) -> str:
        """How many of the silos' images are not used for want of a label, for a person; "" where none is left out."""
        if not self.left_out:
            return ""
        return (f"{counted(self.left_out, 'image')} without a label {'is' if self.left_out == 1 else 'are'} left out:"
                f" the split \"{self.study.simulation.split.name}\" in {self.study.scenario}"
                f"{'' if self.study.simulation.labelled else ' without [simulation] labelled'} needs the class of each")

    def patients_line(self) -> str:
        """What it took that no patient is in two parts, for a person; "" where that took nothing."""
        whole = self.split.patients
        if whole is None:
            return ""
        others = [f"{now} {name} images, not {asked}" for name, asked, now in (
            ("labelled", whole.labelled, len(self.split.coordinator)),
            ("validation", whole.validation, len(self.split.validation)),
            ("test", whole.test, len(self.split.test))) if asked != now]
        who = "no file" if whole.num_files and not whole.num_patients else "no patient"
        return (f"{who} is in two parts: {whole.kept} kept whole,"
                f" {counted(whole.moved, 'image')} in another part than the split alone would put"
                f" {'it' if whole.moved == 1 else 'them'}, {counted(whole.left_out, 'image')} left out"
                f"{'; ' if others else ''}{', '.join(others)}")

    def check_tested_apart(self) -> str:
        """Whether the images that the model is tested on are others than those that it learns from and is chosen by, by
        their pixels: a set may hold an image twice, and test images of a source of their own may be in another.

        Returns: a line for a person where some are among the silos' unlabelled images, which may be meant, or a few
            among their labelled ones; else "".
        Raises: BadData with how many, and the names of the first, where two sets of the coordinator share images, as
            the coordinator would refuse them; and where more than a few that silos have with labels are tested with.
        """
        if self.test is None and not len(self.split.validation):
            return ""
        dealt = telling_digests(self.images, pixel_digests(self.images))
        self._check_coordinators_apart(dealt)
        if self.test is None:
            return ""
        held_out = len(self.split.test) > 0
        tested = [dealt[index] for index in self.split.test.tolist()] if held_out else \
            telling_digests(self.test, pixel_digests(self.test))
        with_labels = {dealt[index]: index for part in reversed(self.split.labelled) for index in part[::-1].tolist()}
        unlabelled = {dealt[index] for part in self.split.silos for index in part.tolist()}
        lines = []
        if twice := [(number, with_labels[digest]) for number, digest in enumerate(tested)
                     if digest and digest in with_labels]:
            first = ", ".join(f"{self.test.names[mine]} = {self.images.names[other]}" for mine, other in twice[:_NAMED])
            found = (f"{len(twice)} of {len(self.test)} test images have the pixels of labelled ones"
                     f" ({first}{', ...' if len(twice) > _NAMED else ''})")
            anywhere = with_labels if held_out else set(dealt)
            if sum(bool(digest) and digest in anywhere for digest in tested) > _FEW_TWINS * len(self.test):
                raise BadData(f"[simulation] silos' images: {found}.", remedy=_TWINS_OF_ONE_SET if held_out else
                              "Remove them from one of the two sets: images that a model has seen cannot measure its"
                              " accuracy.")
            lines.append(found)
        if number := sum(bool(digest) and digest in unlabelled for digest in tested):
            lines.append(f"{number} of {len(self.test)} test images are among the silos' unlabelled images")
        return f"{', '.join(lines)}: silos train on them, so the model may look better than it is" if lines else ""

    def _check_coordinators_apart(self, dealt: Sequence[bytes]) -> None:
        """Raises: BadData where two sets of the coordinator that were dealt share images. The coordinator says the same
        of sets that somebody has named, and here nobody has: it knows neither the names nor what may be done."""
        for name, mine, others in (("validation", self.split.validation, (("labelled", self.split.coordinator),)),
                                   ("test", self.split.test, (("labelled", self.split.coordinator),
                                                              ("validation", self.split.validation)))):
            for other, theirs in others:
                known = {dealt[index]: index for index in theirs[::-1].tolist() if dealt[index]}
                twice = [(index, known[dealt[index]]) for index in mine.tolist() if dealt[index] in known]
                if twice:
                    first = ", ".join(f"{self.images.names[one]} = {self.images.names[two]}"
                                      for one, two in twice[:_NAMED])
                    raise BadData(f"[simulation] {self.study.simulation.source}: {len(twice)} of {len(mine)} {name}"
                                  f" images have the pixels of {other} ones"
                                  f" ({first}{', ...' if len(twice) > _NAMED else ''}).", remedy=_TWINS_OF_ONE_SET)

    def unlike_line(self) -> str:
        """Which sites' images look unlike the coordinator's labelled ones, or whether a set does that is dealt beside
        these, and what may be done about it; "" where none does, and where images are standardised one by one."""
        settings, own = self.study.simulation, self.coordinator_set("labelled")
        if not (settings.labelled or settings.sites) or own is None or \
                self.study.draft.data.image.standardise == "image":
            return ""
        parts = {f"{silo}, {Path(site).name}": part for silo, site, part in zip(
            self.silos, settings.sites, self.split.silos, strict=True)} if settings.sites else {
            settings.data: np.sort(np.concatenate(self.split.silos))}
        study = statistics_of(_sampled(own))
        theirs = {whose: unlikeness(statistics_of(_sampled(self.images, part)), study)
                  for whose, part in parts.items() if len(part)}
        unlike = [(whose, lines[0]) for whose, lines in theirs.items() if lines]
        if not unlike:
            return ""
        who = f"the images of {counted(len(unlike), 'silo')}" if settings.sites else "the silos' images"
        return (f"{who} look unlike the coordinator's labelled ones ({': '.join(unlike[0])}); [data] image.standardise"
                ' = "image" takes brightness, contrast and colour cast out of every image')

    def patient_numbers(self, name: str) -> NDArray[np.int64] | NDArray[np.str_] | None:
        """A number for the patient of each image of a coordinator's set, -1 where it is not known, the same in every
        set; None where no patient has several of the images that are dealt or tested with. The numbers stand for
        nothing else. Texts where images are of one file of an unknown patient: "file 3"; "" where nothing is known."""
        beside = () if self.test is None or len(self.split.test) else self.test.patients
        known = [patient for patient in (*self.images.patients, *beside) if patient]
        number = {patient: index for index, patient in enumerate(dict.fromkeys(known))}
        chosen = self.coordinator_set(name)
        if len(number) == len(known) or chosen is None:
            return None
        patients = chosen.patients or ("",) * len(chosen)
        if any(map(is_of_file, known)):
            return np.array(["" if not patient else text_of_file(number[patient]) if is_of_file(patient)
                             else str(number[patient]) for patient in patients])
        return np.array([number.get(patient, -1) for patient in patients], dtype=np.int64)

    def silos_images(self) -> SilosImages:
        """What each silo trains on, by its index."""
        return SilosImages(images=self.images, split=self.split, rounds_per_step=self.rounds_per_step,
                           test=self.test if self.study.simulation.silos_test else None,
                           classes_known=self.classes_known)

    def non_iidness(self) -> float:
        """FedRGD's R: 0 for equal silos, 1 where no two have a class in common; of images with several labels that of
        their strata. Source: data.md section 3.8."""
        labels_N = self.labels()
        return non_iidness(class_distributions(strata_of(labels_N), self.split,
                                               num_classes=num_strata(labels_N, self.num_classes)))

    def digest(self) -> str:
        """SHA-256, hex, of all that participants get: a simulation goes on only with the same images."""
        total = hashlib.sha256("\0".join(self.classes).encode())
        sets = [self.images] + ([] if self.test is None else [self.test])
        for images in sets:
            assert images.labels_N is not None
            total.update(str(tuple(images.images_NCHW.shape)).encode())
            total.update(np.ascontiguousarray(images.images_NCHW.numpy()).data)
            total.update(images.labels_N.numpy().astype("<i8").tobytes())
        parts = [*self.split.silos, *self.split.labelled, self.split.coordinator, self.split.validation,
                 *(step for steps in self.split.steps for step in steps)]
        for part in parts:
            total.update(len(part).to_bytes(8, "little"))
            total.update(part.astype("<i8").tobytes())
        return total.hexdigest()


def deal_study(study: SimulatedStudy, *, begun: str = "",
               progress: Callable[[float, str], None] | None = None) -> Dealt:
    """Reads the images of a simulated study and deals them: the same file and seed give the same parts everywhere.

    Args:
        begun: the digest of what was dealt, of a simulation that was begun before: where an earlier version dealt
            otherwise, it is dealt as by that; "" for a new one.
    Raises: BadData, naming the source; BadConfiguration when the split does not fit the images or the scenario.
    """
    dealt, refused = _tried(study, progress, _Before())
    if begun and (dealt is None or dealt.digest() != begun):
        for before in _EARLIER:
            earlier, _ = _tried(study, progress, before)
            if earlier is not None and earlier.digest() == begun:
                return earlier
    if dealt is None:
        assert refused is not None
        raise refused
    return dealt


@dataclass(frozen=True, kw_only=True, slots=True)
class _Before:
    """What is dealt as an earlier version did."""

    slices_alone: bool = False
    """Slices of a file one by one."""
    unlabelled_left_out: bool = False
    """Of sources in which some images have a label, the others are left out, though no label is needed."""


_EARLIER = (_Before(unlabelled_left_out=True), _Before(slices_alone=True, unlabelled_left_out=True))
"""The later one first."""


def _tried(study: SimulatedStudy, progress: Callable[[float, str], None] | None, before: _Before
           ) -> tuple[Dealt | None, SemisiloError | None]:
    """What `_deal` gives, or why it gives nothing."""
    try:
        return _deal(study, progress, before), None
    except SemisiloError as error:
        return None, error


def _deal(study: SimulatedStudy, progress: Callable[[float, str], None] | None, before: _Before) -> Dealt:
    """See `deal_study`."""
    settings, form = study.simulation, study.draft.data.image
    sources, test_source = _sources(study)

    def read(name: str, classes: tuple[str, ...], least: Mapping[str, float], keeps_unsaid: bool) -> _Sources:
        found = read_images(name, size=form.size, channels=form.channels, resize=form.resize, classes=classes or None,
                            labelled=True, on_error="stop", progress=progress, reading=form.reading,
                            selection=study.draft.data.selection,
                            multi_label=study.draft.study.task == "multi_label", ranges=least,
                            keeps_unsaid=keeps_unsaid and study.draft.study.task == "multi_label")
        return _Sources(images=found.images.without_files() if before.slices_alone else found.images,
                        classes=classes or found.classes, ranges={} if before.slices_alone else found.ranges)

    dealt = _joined_sources(study, read, sources, before)
    classes, images = dealt.classes, dealt.images.without_files() if before.slices_alone else dealt.images
    tested_with = read(test_source, classes, dealt.ranges, False) if test_source else None
    test = None if tested_with is None else tested_with.images
    if settings.pool_test:
        if test is None:
            raise BadConfiguration(f"[simulation] pool_test: {settings.data} has no test images to pool.",
                                   remedy="Remove pool_test, or name them: test = \"file.npz#test\".")
        images, test = joined(images, test), None
    assert images.labels_N is not None
    try:
        split = deal(images.labels_N.numpy(), settings.split, num_classes=len(classes), seed=study.draft.study.seed,
                     scenario=study.scenario, apart=dealt.apart, multi_label=images.labels_N.ndim == 2,
                     patients=images.patients, tested=set(test.patients) - {""} if test is not None else (),
                     sites=dealt.sites)
    except UsageError as error:
        raise type(error)(f"[simulation.split] {error.text}", remedy=error.remedy) from None
    if len(split.test):
        test = images.subset(split.test)
    has = {"labelled": len(split.coordinator), "validation": len(split.validation),
           "test": 0 if test is None else len(test)}
    tables = study.deployable(classes=classes, sets=tuple(name for name, number in has.items() if number))
    config = config_from_dict(tables, where=f"study {study.name}")
    check_scenario(config, f"study {study.name}")
    return Dealt(study=study, classes=classes, images=images, split=split, test=test, tables=tables, config=config,
                 classes_known=dealt.classes_known, ranges=_sorted(dealt.ranges),
                 test_ranges=() if tested_with is None else _sorted(tested_with.ranges), left_out=dealt.left_out)


def _sorted(ranges: Mapping[str, float]) -> Ranges:
    return tuple(sorted(ranges.items()))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Sources:
    """What was read to be dealt."""

    images: ImageSet
    classes: tuple[str, ...]
    ranges: Mapping[str, float]
    """What values of more than 8 bits were divided by, of the coordinator's own images where it has such."""
    apart: int = 0
    """How many of the first images are the coordinator's own."""
    classes_known: bool = True
    """Whether the others have labels."""
    sites: NDArray[np.int64] | tuple[()] = ()
    """(N,): whose each image is, from 0, -1 for the coordinator's own; () where it may be anybody's."""
    left_out: int = 0
    """See `Dealt.left_out`."""


_Read = Callable[[str, tuple[str, ...], Mapping[str, float], bool], _Sources]
"""(source, classes, ranges at least, `keeps_unsaid` of `read_images`): its labelled images."""


def _joined_sources(study: SimulatedStudy, read: _Read, sources: Sequence[str], before: _Before) -> _Sources:
    """What is dealt; the coordinator's own images before it, and of several sites one after the other. Those without
    labels get zeros, which nobody is shown: all of them where some have none and none is needed.

    Raises: BadConfiguration where labels are needed that are not there.
    """
    settings = study.simulation
    if not settings.labelled:
        return _with_labels(study, read, sources)
    own = read(_located(settings.labelled, study.folder), study.draft.data.classes, {}, False)
    have = [_labels_of(study, source) for source in sources]
    known = all(each.labelled for each in have)
    needed = settings.split.name not in WITHOUT_LABELS or silos_have_labels(study.scenario)
    if not known and needed:
        raise BadConfiguration(f'[simulation] {settings.source} has no labels, which the split "{settings.split.name}"'
                               f" and the scenario {study.scenario} would need.",
                               remedy=f'Deal it with the split "{"natural" if settings.sites else "iid"}" in'
                                      " labels-at-coordinator.")
    if not needed and not before.unlabelled_left_out:
        known = known and not any(each.unlabelled for each in have)
    unsaid = not silos_have_labels(study.scenario)  # these are unlabelled whatever is known of them
    others = [read(source, own.classes, {}, unsaid).images if known else _without_labels(study, source, own.images)
              for source in sources]  # silos find what is white by themselves, as real ones do
    sites = _numbered(own.images, others) if settings.sites else ()
    return replace(own, images=_in_one([own.images, *others]), apart=len(own.images), classes_known=known, sites=sites,
                   left_out=sum(each.unlabelled for each in have) if needed else 0)


def _labels_of(study: SimulatedStudy, source: str) -> PartlySurvey:
    """How many images of a source have a label. Where an image may have several labels, those of which none is known
    do not count: see `keeps_unsaid` of `read_images`."""
    if study.draft.study.task == "multi_label":
        found = survey(source)
        return PartlySurvey(labelled=found.num_images if found.class_counts else 0, unlabelled=0)
    return survey_partly_labelled(source, study.draft.data.selection)


def _with_labels(study: SimulatedStudy, read: _Read, sources: Sequence[str]) -> _Sources:
    """Of sources that all have labels, of which the coordinator gets its own."""
    classes = study.draft.data.classes
    if len(sources) > 1 and not classes:
        classes = classes_of(sources)
    found = [read(source, classes, {}, False) for source in sources]
    left_out = sum(_labels_of(study, source).unlabelled for source in sources)
    if not study.simulation.sites:
        return replace(found[0], left_out=left_out)
    ranges = {kind: max(each.ranges.get(kind, 0.0) for each in found) for each in found for kind in each.ranges}
    images = [each.images for each in found]
    return _Sources(images=_in_one(images), classes=found[0].classes, ranges=ranges, sites=_numbered(None, images),
                    left_out=left_out)


def _without_labels(study: SimulatedStudy, source: str, own: ImageSet) -> ImageSet:
    """Images whose labels, if there are any, are not read: zeros of the form of the coordinator's."""
    image = study.draft.data.image
    form = ImageForm(size=image.size, channels=image.channels, mean=(0.0,) * image.channels, resize=image.resize,
                     std=(1.0,) * image.channels, reading=image.reading)  # of which pixels take no mean
    found = read_partly_labelled(source, form, classes=(), use_labels=False,
                                 selection=study.draft.data.selection).unlabelled
    import torch

    assert own.labels_N is not None
    assert found is not None
    return replace(found, labels_N=torch.zeros((len(found), *own.labels_N.shape[1:]), dtype=own.labels_N.dtype))


def _numbered(own: ImageSet | None, others: Sequence[ImageSet]) -> NDArray[np.int64]:
    """Whose each image is: see `_Sources.sites`."""
    return np.concatenate([np.full(0 if own is None else len(own), -1, dtype=np.int64),
                           *(np.full(len(images), site, dtype=np.int64) for site, images in enumerate(others))])


def _in_one(parts: Sequence[ImageSet]) -> ImageSet:
    """All of them, one after the other: pair by pair, so that nothing is copied more often than it need be."""
    parts = list(parts)
    while len(parts) > 1:
        parts = [joined(*parts[at:at + 2]) if at + 1 < len(parts) else parts[at] for at in range(0, len(parts), 2)]
    return parts[0]


def _sampled(images: ImageSet, part: Indices | None = None) -> list[NDArray[np.uint8]]:
    """Up to `_SAMPLE` of the images, or of some of them, spread evenly."""
    held = np.arange(len(images)) if part is None else part
    chosen = held[np.unique(np.linspace(0, len(held) - 1, min(len(held), _SAMPLE)).astype(np.int64))]
    return [images.images_NCHW[index].numpy() for index in chosen.tolist()]


def silo_names(number: int) -> tuple[str, ...]:
    """"silo-000", ... with as many digits as the last one needs: byte order is the order of the split."""
    digits = max(3, len(str(number - 1)))
    return tuple(f"silo-{index:0{digits}d}" for index in range(number))


_NAMED, _SAMPLE = 3, 64
_TWINS_OF_ONE_SET = ("The images that are dealt hold them twice: leave one of each, or let twins have one patient, who"
                     " is in one part. Images that a model has seen cannot measure its accuracy.")
_FEW_TWINS = 0.05
"""Up to this share of test images that are in the set that is dealt are taken for copies that got into both."""
_ROUNDS_PER_STEP = 10
"""Source: FedMatch v1, data.md section 3.4."""


def _sources(study: SimulatedStudy) -> tuple[tuple[str, ...], str]:
    """Where the images that are dealt and the test images are; the second is empty where there are none."""
    settings = study.simulation
    held_out = bool(settings.split.num_test) and not settings.pool_test
    if settings.sites:
        test = _located(settings.test, study.folder) if settings.test else ""
        return tuple(_located(site, study.folder) for site in settings.sites), "" if held_out else test
    name, mark, part = settings.data.rpartition("#") if "#" in settings.data else (settings.data, "", "")
    if name == "digits":
        return (f"digits#{part or 'train'}",), settings.test or ("" if held_out else "digits#test")
    source = str(study.folder / Path(name).expanduser())
    parts = _parts_of(Path(source)) if has_suffix(source, NPZ) else ()
    test = _located(settings.test, study.folder) if settings.test else f"{source}#test" if "test" in parts else ""
    return (f"{source}{mark}{part}",), "" if held_out else test


def _located(source: str, folder: Path) -> str:
    return source if source.partition("#")[0] == "digits" else str(folder / Path(source).expanduser())


def _parts_of(path: Path) -> tuple[str, ...]:
    """Which of train, val and test an .npz file has; what is wrong with it is said by who reads it."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return tuple(name for name in ("train", "val", "test") if f"{name}_images" in archive.files)
    except (OSError, ValueError):
        return ()
