"""Keeps the images of a patient in one part of a split: a model recognises whom it was trained on.

A rule deals images; this then deals the patients so that every part has, class by class, as nearly the numbers of
images that the rule gives it as whole patients can make up. Test comes first, then validation, the coordinator's
labelled images, the labelled images of each silo, and what else the silos have. A part takes from its patients only
classes that the rule gives it. Where silos have the images of their sites, no patient goes to another site, and whoever
has the same key at two sites is two patients.

Shapes: N images, G groups (the images of a patient; an image of an unknown one is a group of its own), C classes, K
silos.

Tests: tests/semisilo/simulation/splits/test_whole_patients.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import is_of_file
from semisilo.common.errors import BadData
from semisilo.common.learning.seeds import numpy_generator
from semisilo.simulation.splits.splits import Indices, Split, WholePatients, kept_whole, largest_remainder

__all__ = ["keep_patients_whole"]

_TEST, _VALIDATION, _COORDINATOR, _FIRST_SILO = 0, 1, 2, 3
_FREE, _OUT = -1, -2
_REMEDY = ('Choose fewer silos or smaller numbers; or, if these are different patients, [data] patient = "none" in the'
           " study file.")
_REMEDY_OF_FILES = ("Choose fewer silos or smaller numbers; or deal each picture of a file by itself: [data] patient ="
                    ' "none" in the study file.')


def keep_patients_whole(split: Split, labels_N: Indices, patients: Sequence[str], *, num_classes: int, seed: int,
                        apart: int = 0, elsewhere: Collection[str] = (), sites_N: Indices | None = None) -> Split:
    """The same split with no patient in two parts, `Split.patients` telling what that took; the split itself where it
    is so already.

    Images that the rule leaves unused stay unused. Test and validation images have whole patients, so their numbers may
    differ; of a patient at the coordinator no more images are labelled than the rule asks for, and the others are left
    out; a silo's are its unlabelled ones.
    Args:
        labels_N: int64 (N,), a class of each image.
        patients: a key of each image's, "" where it is not known; () where none is.
        apart: so many of the first images are the coordinator's, whatever is dealt.
        elsewhere: patients with images in a test set that is not dealt; all their images are left out.
        sites_N: int64 (N,), whose each image is, from 0, -1 for the coordinator's; None where it may be anybody's.
    Raises: BadData where the patients are too few for the parts.
    """
    if not any(patients):
        return split
    name = _names_of_files(patients)
    keys, outside = [name.get(each, each) for each in patients], [name.get(each, each) for each in elsewhere]
    if sites_N is not None:
        keys = [key and _at(key, site) for key, site in zip(keys, sites_N.tolist(), strict=True)]
        outside = [_at(key, site) for key in outside for site in range(len(split.silos))]
    dealing = _Dealing(split, labels_N, keys, num_classes=num_classes, seed=seed, apart=apart, elsewhere=outside,
                       sites_N=sites_N)
    if dealing.is_whole():
        return split
    return dealing.dealt()


def _at(key: str, site: int) -> str:
    """The key of a patient of one site."""
    return f"{key} at {site}"


def _names_of_files(patients: Sequence[str]) -> Mapping[str, str]:
    """For each key of a file its number in the order of the images. The key itself follows from where the file lies,
    and the deal from the order of its groups: a study would be dealt otherwise in each folder."""
    keys = dict.fromkeys(key for key in patients if is_of_file(key))
    return {key: f"file {number:09d}" for number, key in enumerate(keys)}


@dataclass(frozen=True, slots=True, eq=False)
class _Demand:
    """How many images of each class the rule gives to each place."""

    shared: NDArray[np.int64]
    """(3, C): test, validation, the coordinator's labelled images."""
    labelled_KC: NDArray[np.int64]
    """Of silos that have unlabelled images too; elsewhere zeros."""
    rest_KC: NDArray[np.int64]
    """What else the silos have."""


class _Dealing:
    """One deal, from the parts of the rule to those of whole patients."""

    def __init__(self, split: Split, labels_N: Indices, patients: Sequence[str], *, num_classes: int, seed: int,
                 apart: int, elsewhere: Collection[str], sites_N: Indices | None) -> None:
        self._split, self._labels, self._apart = split, labels_N, apart
        self._num_classes, self._num_silos = num_classes, len(split.silos)
        self._home_N = _homes(split, len(labels_N))
        used = np.flatnonzero(self._home_N >= 0)
        keys = np.array([patients[index] or f"image {index}" for index in used.tolist()])
        self._names, group = np.unique(keys, return_inverse=True)
        self._group_N = np.full(len(labels_N), -1, dtype=np.int64)
        self._group_N[used] = group
        known = {patients[index] for index in used.tolist()} - {""}
        self._num_files = sum(map(is_of_file, known))
        self._num_patients = len(known) - self._num_files
        by_group = used[np.argsort(group, kind="stable")]
        self._members = np.split(by_group, np.cumsum(np.bincount(group, minlength=len(self._names)))[:-1])
        self._counts_GC = np.zeros((len(self._names), num_classes), dtype=np.int64)
        np.add.at(self._counts_GC, (group, labels_N[used]), 1)
        self._site_G = None if sites_N is None else np.array([sites_N[own[0]] for own in self._members], dtype=np.int64)
        self._order = numpy_generator(seed, "split patients").permutation(len(self._names))
        self._owner_G = np.full(len(self._names), _FREE, dtype=np.int64)
        first = self._group_N[:apart]
        self._owner_G[first[first >= 0]] = _COORDINATOR
        self._owner_G[np.isin(self._names, list(elsewhere))] = _OUT
        # all labelled: these are then what silos have most of
        self._scarce = bool(split.labelled) and any(len(part) for part in split.silos)
        self._demand = self._demands()

    def is_whole(self) -> bool:
        """Whether no patient is in two parts as it is."""
        if (self._owner_G == _OUT).any():
            return False
        used = self._group_N >= 0
        home, group = self._home_N[used], self._group_N[used]
        lowest, highest = (np.full(len(self._names), start) for start in (len(self._home_N), -1))
        np.minimum.at(lowest, group, home)
        np.maximum.at(highest, group, home)
        return bool((lowest == highest).all())

    def _demands(self) -> _Demand:
        split = self._split
        labelled_KC = self._table(split.labelled) if split.labelled else np.zeros(
            (self._num_silos, self._num_classes), dtype=np.int64)
        rest_KC = self._table(split.silos)
        if not self._scarce:
            rest_KC, labelled_KC = rest_KC + labelled_KC, np.zeros_like(labelled_KC)
        return _Demand(self._table((split.test, split.validation, split.coordinator)), labelled_KC, rest_KC)

    def _table(self, parts: Sequence[Indices]) -> NDArray[np.int64]:
        """Images of each class of each part."""
        return np.stack([np.bincount(self._labels[part], minlength=self._num_classes) for part in parts])

    def dealt(self) -> Split:
        """The parts of whole patients."""
        placed = np.full(len(self._labels), _OUT, dtype=np.int64)
        for home in (_TEST, _VALIDATION):
            for group in self._whole(self._demand.shared[home]):
                self._owner_G[group] = home
                placed[self._members[group]] = home
        self._give_coordinator(placed)
        labelled = self._labelled_of_silos()
        self._give_rest(labelled)
        silos, split = self._images_of_silos(placed, labelled), self._split
        if split.labelled and not self._scarce:
            silos, labelled = labelled, silos
        result = Split(
            silos=tuple(silos), coordinator=np.flatnonzero(placed == _COORDINATOR),
            validation=np.flatnonzero(placed == _VALIDATION), test=np.flatnonzero(placed == _TEST),
            labelled=tuple(labelled) if split.labelled else (),
            steps=tuple(self._steps(silo, images) for silo, images in enumerate(silos)) if split.steps else ())
        self._check(result)
        used, now = self._home_N >= 0, _homes(result, len(self._labels))
        return replace(result, patients=WholePatients(
            num_patients=self._num_patients, num_files=self._num_files,
            moved=int(((now != self._home_N) & (now >= 0)).sum()),
            left_out=int((used & (now < 0)).sum()), labelled=len(split.coordinator), validation=len(split.validation),
            test=len(split.test)))

    # Coordinator ------------------------------------------------------------------------------------------------------

    def _free(self, silo: int | None = None) -> Indices:
        """Groups that are no part's yet, in random order; of a silo those that it may have."""
        free: Indices = self._order[self._owner_G[self._order] == _FREE]
        return free if silo is None or self._site_G is None else free[self._site_G[free] == silo]

    def _whole(self, wanted_C: NDArray[np.int64]) -> list[int]:
        """Groups that together have about so many images of each class: those that fit, then those of which the better
        half is wanted; the smallest one where that is none."""
        taken, left_C = self._fitting(wanted_C)
        for group in self._free().tolist():
            if not (left_C > 0).any():
                break
            has_C = self._counts_GC[group]
            if group not in taken and 2 * np.minimum(has_C, left_C.clip(0)).sum() > has_C.sum():
                taken.append(group)
                left_C = left_C - has_C
        if not taken and wanted_C.any():
            free = self._free()
            alike = free[(self._counts_GC[free] * (wanted_C > 0)).sum(axis=1) > 0]
            taken = alike[np.argsort(self._counts_GC[alike].sum(axis=1), kind="stable")][:1].tolist()
        return taken

    def _fitting(self, wanted_C: NDArray[np.int64], silo: int | None = None) -> tuple[list[int], NDArray[np.int64]]:
        """Free groups that fit in one after the other; what is missing then."""
        taken, left_C = [], wanted_C.copy()
        for group in self._free(silo).tolist():
            if not left_C.any():
                break
            has_C = self._counts_GC[group]
            if (has_C <= left_C).all():
                taken.append(group)
                left_C = left_C - has_C
        return taken, left_C

    def _filled(self, wanted_C: NDArray[np.int64], silo: int | None = None) -> list[int]:
        """Groups that together have so many images of each class, and more if need be: those that fit, then, until
        there are enough, the one with the fewest images that are not wanted."""
        taken, left_C = self._fitting(wanted_C, silo)
        free = np.setdiff1d(self._free(silo), taken)
        free = self._order[np.isin(self._order, free)]
        while left_C.any() and len(free):
            useful_G = np.minimum(self._counts_GC[free], left_C).sum(axis=1)
            if not useful_G.any():
                break
            waste_G = np.where(useful_G > 0, self._counts_GC[free].sum(axis=1) - useful_G, np.iinfo(np.int64).max)
            best = int(np.argmin(waste_G))
            taken.append(int(free[best]))
            left_C = (left_C - self._counts_GC[free[best]]).clip(0)
            free = np.delete(free, best)
        return taken

    def _give_coordinator(self, placed: Indices) -> None:
        if self._apart:
            own = np.arange(len(self._labels)) < self._apart
            placed[own & (self._home_N >= 0) & (self._owner_G[self._group_N] == _COORDINATOR)] = _COORDINATOR
            return
        wanted_C = self._demand.shared[_COORDINATOR]
        groups = self._filled(wanted_C)
        self._owner_G[groups] = _COORDINATOR
        placed[self._chosen(groups, wanted_C, before=self._split.coordinator)] = _COORDINATOR

    def _chosen(self, groups: Sequence[int], wanted_C: NDArray[np.int64], *, before: Indices) -> Indices:
        """Of the groups' images so many of each class, those of `before` first; sorted."""
        there = np.concatenate([np.empty(0, dtype=np.int64), *(self._members[group] for group in groups)])
        there = there[np.lexsort((there, ~np.isin(there, before)))]
        return np.sort(np.concatenate([there[self._labels[there] == label][:wanted]
                                       for label, wanted in enumerate(wanted_C.tolist())]))

    # Silos ------------------------------------------------------------------------------------------------------------

    def _labelled_of_silos(self) -> list[Indices]:
        """The labelled images of each silo, where they are few; their patients are the silo's."""
        labelled = [np.empty(0, dtype=np.int64) for _ in range(self._num_silos)]
        if not self._scarce:
            return labelled
        for silo, wanted_C in enumerate(self._demand.labelled_KC):
            groups = self._filled(wanted_C, silo)
            self._owner_G[groups] = _FIRST_SILO + silo
            labelled[silo] = self._chosen(groups, wanted_C, before=self._split.labelled[silo])
        return labelled

    def _give_rest(self, labelled: Sequence[Indices]) -> None:
        """Gives each free group to the silo that misses most of its images, large groups first; of equals to the one
        that misses most in all."""
        may_KC = self._demand.rest_KC > 0
        left_KC = self._demand.rest_KC + self._table(labelled)
        for silo in range(self._num_silos):
            left_KC[silo] -= self._counts_GC[self._owner_G == _FIRST_SILO + silo].sum(axis=0)
        free = self._free()
        for group in free[np.argsort(-self._counts_GC[free].sum(axis=1), kind="stable")].tolist():
            has_C = self._counts_GC[group]
            may_K = (may_KC & (has_C > 0)).any(axis=1)
            if self._site_G is not None:
                may_K &= np.arange(self._num_silos) == self._site_G[group]
            if not may_K.any():
                self._owner_G[group] = _OUT
                continue
            fill_K = np.minimum(left_KC.clip(0), has_C).sum(axis=1)
            missing_K = (left_KC * may_KC).sum(axis=1)
            silo = int(np.lexsort((np.arange(self._num_silos), -missing_K, -fill_K, ~may_K))[0])
            self._owner_G[group] = _FIRST_SILO + silo
            left_KC[silo] -= has_C

    def _images_of_silos(self, placed: Indices, labelled: Sequence[Indices]) -> list[Indices]:
        """What each silo has besides its labelled images; `placed` gets them all."""
        may_KC = self._demand.rest_KC > 0
        owner_N = np.where(self._group_N >= 0, self._owner_G[self._group_N], _OUT)
        found = []
        for silo in range(self._num_silos):
            own = np.setdiff1d(np.flatnonzero(owner_N == _FIRST_SILO + silo), labelled[silo])
            own = own[may_KC[silo, self._labels[own]]]
            placed[own] = placed[labelled[silo]] = _FIRST_SILO + silo
            found.append(own)
        return found

    def _steps(self, silo: int, images: Indices) -> tuple[Indices, ...]:
        """A silo's images in steps that have the shares of each class that the rule gives them; an image that was in a
        step of this silo comes no later than one that was not."""
        before = self._split.steps[silo]
        wanted_TC = self._table(before)
        step_N = np.full(len(self._labels), len(before), dtype=np.int64)
        for step, indices in enumerate(before):
            step_N[indices] = step
        pieces: list[list[Indices]] = [[] for _ in before]
        for label in np.unique(self._labels[images]).tolist():
            there = images[self._labels[images] == label]
            there = there[np.lexsort((there, step_N[there]))]
            cuts = np.cumsum(largest_remainder(wanted_TC[:, label], len(there)))[:-1]
            for step, piece in enumerate(np.split(there, cuts)):
                pieces[step].append(piece)
        return tuple(np.sort(np.concatenate([np.empty(0, dtype=np.int64), *each])) for each in pieces)

    # What came out ----------------------------------------------------------------------------------------------------

    def _check(self, result: Split) -> None:
        """Raises: BadData for a part without images that the rule gives some, or a class without labelled ones."""
        who = f"{kept_whole(self._num_patients, self._num_files)} kept whole"
        remedy = _REMEDY if self._num_patients else _REMEDY_OF_FILES
        pairs: list[tuple[str, Indices, Indices]] = [
            ("no test image", self._split.test, result.test),
            ("no validation image", self._split.validation, result.validation),
            *((f"no image at silo {index + 1} of {self._num_silos}", _of_silo(self._split, index),
               _of_silo(result, index)) for index in range(self._num_silos)),
            *((f"no labelled image at silo {index + 1} of {self._num_silos}", before, now) for index, (before, now)
              in enumerate(zip(self._split.labelled, result.labelled, strict=True)))]
        for what, before, now in pairs:
            if len(before) and not len(now):
                raise BadData(f"{who} leave {what}.", remedy=remedy)
        missing = np.setdiff1d(self._labels[self._split.coordinator], self._labels[result.coordinator])
        if len(missing):
            raise BadData(f"{who} leave class {missing[0]} without a labelled image at the coordinator.",
                          remedy=remedy)


def _homes(split: Split, number: int) -> Indices:
    """The part of each image, (N,): test, validation, the coordinator, or a silo; -1 where it is in none."""
    homes = np.full(number, -1, dtype=np.int64)
    homes[split.test], homes[split.validation], homes[split.coordinator] = _TEST, _VALIDATION, _COORDINATOR
    for silo in range(len(split.silos)):
        homes[_of_silo(split, silo)] = _FIRST_SILO + silo
    return homes


def _of_silo(split: Split, silo: int) -> Indices:
    """All images of a silo."""
    return np.concatenate((split.silos[silo], split.labelled[silo])) if split.labelled else split.silos[silo]
