"""Validation images held out of the coordinator's labelled ones, and images that stand in two of its sets.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semisilo.common.data.form import is_of_file
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.text.describe import counted

__all__ = ["ENOUGH_LABELS", "MOST_HELD_OUT", "SHARE_HELD_OUT", "Overlap", "check_apart", "check_patients_apart",
           "draw_validation", "held_out_share", "shared_images", "shared_patients", "wanted_of_each"]

ENOUGH_LABELS = 200
"""From so many labelled images on some are held out without being asked for."""
SHARE_HELD_OUT = 0.2
MOST_HELD_OUT = 2000
"""More would sharpen the choice by less than a point, and cost labels."""
_NEAR_SHARE, _NEAR_IMAGES = 1.25, 2
"""How many times its share, and how many images, all that is held out may exceed it for every class to have one."""
_NAMED = 3

Digests = Sequence[bytes]


def held_out_share(stated: float | None, num_labelled: int) -> float:
    """Which share of the labelled images to hold out, 0 for none.

    Args:
        stated: what the study says; None: `SHARE_HELD_OUT` of `ENOUGH_LABELS` or more, else none, so that none of a few
            is wasted.
    """
    if stated is not None:
        return stated
    return SHARE_HELD_OUT if num_labelled >= ENOUGH_LABELS else 0.0


def wanted_of_each(images_K: NDArray[np.int64], share: float, *, seed: int) -> NDArray[np.int64]:
    """How many images of each class to hold out, int64 (K,): this share, rounded, at least one of a class that has two,
    never the last of a class.

    Of many classes with two or three images that is far more than the share, up to half of the labels. Where it exceeds
    the share of all by more than a quarter and two images, just the share of all is held out: one image of every class
    with two where they are not too many, and each further one of the class that is furthest below its share, of equals
    at random.
    Args:
        images_K: of each class.
        seed: of the study; the stream is called "validation split classes".
    """
    room_K = (images_K - 1).clip(min=0)
    each_K: NDArray[np.int64] = np.minimum(np.maximum(1, np.rint(share * images_K)).astype(np.int64), room_K)
    wanted = max(1, round(share * int(images_K.sum())))
    if each_K.sum() <= max(_NEAR_SHARE * wanted, wanted + _NEAR_IMAGES):
        return each_K
    found_K: NDArray[np.int64] = np.minimum(room_K, int((room_K > 0).sum() <= wanted))
    order_K = numpy_generator(seed, "validation split classes").permutation(len(images_K))
    while found_K.sum() < wanted and (found_K < room_K).any():
        short_K = np.where(found_K < room_K, share * images_K - found_K, -np.inf)
        found_K[order_K[short_K[order_K].argmax()]] += 1
    return found_K


def draw_validation(labels_N: NDArray[np.int64], share: float, *, seed: int, num_classes: int,
                    digests: Digests | None = None, patients: Sequence[str] = (), drawn_before: int = 0
                    ) -> NDArray[np.int64]:
    """Which labelled images are held out: this share of each class at random, as `wanted_of_each` says; at most
    `MOST_HELD_OUT` together, or the share of each class is smaller.

    Where patients are known, all images of one are held out or none is: they are taken at random as long as each brings
    a class closer to its share than it carries others beyond theirs; of a class that has none then, the patient with
    the fewest images.
    Args:
        patients: `ImageSet.patients`.
        digests: of the pixels, as `telling_digests`; an image that stands twice is not held out, for it would stand on
            both sides.
        seed: of the study; the stream is called "validation split".
        drawn_before: how many images the study held out at its first opening; 0 at the first. An earlier version held
            one out of every class with two, however many that were: such a study keeps its images.
    Returns: sorted indices, int64; empty for a share of 0.
    """
    if share <= 0:
        return np.empty(0, dtype=np.int64)
    share = min(share, MOST_HELD_OUT / max(1, len(labels_N)))
    seen = Counter(digests or ())
    once_N = np.array([not each or seen[each] == 1 for each in digests], dtype=bool) if digests is not None else \
        np.ones(len(labels_N), dtype=bool)
    images_K = np.bincount(labels_N[labels_N >= 0], minlength=num_classes)[:num_classes].astype(np.int64)

    def drawn(wanted_K: NDArray[np.int64]) -> NDArray[np.int64]:
        generator = numpy_generator(seed, "validation split")
        if any(patients):
            return _draw_patients(labels_N, wanted_K, generator, once_N=once_N, patients=patients)
        found: list[NDArray[np.int64]] = []
        for label, wanted in enumerate(wanted_K.tolist()):
            candidates = generator.permutation(np.flatnonzero(labels_N == label))
            found.append(candidates[once_N[candidates]][:wanted])
        return np.sort(np.concatenate(found)).astype(np.int64)

    if drawn_before:
        earlier = drawn(np.minimum(np.maximum(1, np.rint(share * images_K)).astype(np.int64), (images_K - 1).clip(0)))
        if len(earlier) == drawn_before:
            return earlier
    return drawn(wanted_of_each(images_K, share, seed=seed))


def _draw_patients(labels_N: NDArray[np.int64], wanted_K: NDArray[np.int64], generator: np.random.Generator, *,
                   once_N: NDArray[np.bool_], patients: Sequence[str]) -> NDArray[np.int64]:
    """`draw_validation` where whole patients are held out; an image of an unknown one stands for itself."""
    groups: dict[str, list[int]] = {}
    for index, patient in enumerate(patients):
        groups.setdefault(patient or f"image {index}", []).append(index)
    members = [np.array(each) for each in groups.values()]
    num_classes = len(wanted_K)
    counts_GK = np.stack([np.bincount(labels_N[each], minlength=num_classes)[:num_classes] for each in members])
    left_K = counts_GK.sum(axis=0)
    may_G = [bool(once_N[each].all()) for each in members]
    drawn: list[int] = []

    def take(group: int) -> None:
        nonlocal left_K, wanted_K
        left_K, wanted_K = left_K - counts_GK[group], wanted_K - counts_GK[group]
        drawn.append(group)

    def possible(group: int) -> bool:
        has_K = counts_GK[group]
        return may_G[group] and group not in taken and bool((left_K - has_K >= np.minimum(1, left_K)).all())

    taken: set[int] = set()
    order = generator.permutation(len(members))
    for group in order.tolist():
        has_K, short_K = counts_GK[group], wanted_K.clip(0)
        gain = np.minimum(has_K, short_K).sum() - (has_K - short_K).clip(0).sum()
        if gain > 0 and possible(group):
            take(group)
            taken.add(group)
    for label in range(num_classes):
        if wanted_K[label] > 0 and not any(counts_GK[group, label] for group in drawn):
            candidates = [group for group in order.tolist() if counts_GK[group, label] and possible(group)]
            if candidates:
                smallest = min(candidates, key=lambda group: int(counts_GK[group].sum()))
                take(smallest)
                taken.add(smallest)
    if not drawn:
        return np.empty(0, dtype=np.int64)
    return np.sort(np.concatenate([members[group] for group in drawn])).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """What two sets have in common."""

    of: str
    """The second of the two, by the name that table [data] has for it."""
    text: str
    """For a person, without names of files."""
    pairs: str
    """The first images, by their names: these stay with whoever has the images."""

    @property
    def line(self) -> str:
        return f"{self.text} ({self.pairs})"


def shared_patients(sets: Mapping[str, ImageSet]) -> list[Overlap]:
    """Patients who are in two sets: images of one are alike, so that a model seems to know what it remembers.

    Args:
        sets: by the name that table [data] has for them.
    """
    found = []
    for first, second in _twos(sets):
        where = {patient: number for number, patient in reversed(list(enumerate(sets[first].patients))) if patient}
        both = {patient: number for number, patient in reversed(list(enumerate(sets[second].patients)))
                if patient in where}
        if both:
            pairs = [f"{sets[second].names[mine]} and {sets[first].names[where[patient]]}"
                     for patient, mine in list(both.items())[:_NAMED]]
            files = sum(map(is_of_file, both))
            who = " and ".join(filter(None, (counted(len(both) - files, "patient") if len(both) > files else "",
                                             counted(files, "file") if files else "")))
            found.append(Overlap(of=second, pairs=_first(pairs, of=len(both)),
                                 text=f"{who} of the {second} images have {first} ones as well"))
    return found


def shared_images(sets: Mapping[str, ImageSet], digests: Mapping[str, Digests]) -> list[Overlap]:
    """Images that stand in two sets: measured on what was trained on, a model looks better than it is.

    Args:
        sets: by the name that table [data] has for them.
        digests: `telling_digests` of each: plain images are nobody's twins.
    """
    found = []
    for first, second in _twos(sets):
        numbers = {digest: number for number, digest in reversed(list(enumerate(digests[first])))}
        twice = [(number, numbers[digest]) for number, digest in enumerate(digests[second])
                 if digest and digest in numbers]
        if twice:
            pairs = [f"{sets[second].names[mine]} = {sets[first].names[other]}" for mine, other in twice[:_NAMED]]
            found.append(Overlap(of=second, pairs=_first(pairs, of=len(twice)),
                                 text=f"{len(twice)} of {len(sets[second])} {second} images have the pixels of {first}"
                                      " ones"))
    return found


def _twos(sets: Mapping[str, ImageSet]) -> list[tuple[str, str]]:
    names = [name for name in ("labelled", "validation", "test") if name in sets]
    return [(first, second) for index, second in enumerate(names) for first in names[:index]]


def _first(pairs: Sequence[str], *, of: int) -> str:
    return f"{', '.join(pairs)}{', ...' if of > len(pairs) else ''}"


def check_patients_apart(sets: Mapping[str, ImageSet], *, where: str = "[data]", else_say: str =
                         '[data] patient = "none", or "folder" or "name" where those tell patients apart') -> None:
    """Whether no patient is in two sets.

    Args:
        where: what has named the sets, for the error.
        else_say: what to set where these are different patients.
    Raises: BadData with how many are, and the names of the first images.
    """
    if found := shared_patients(sets):
        raise BadData(f"{where} {'; '.join(each.line for each in found)}.",
                      remedy="Keep all images of a patient in one set. If these are different patients, say so:"
                             f" {else_say}.")


def check_apart(sets: Mapping[str, ImageSet], digests: Mapping[str, Digests], *, where: str = "[data]") -> None:
    """Whether no image stands in two sets.

    Args:
        digests: `telling_digests` of each set.
        where: what has named the sets, for the error.
    Raises: BadData with how many do, and the names of the first.
    """
    if found := shared_images(sets, digests):
        raise BadData(f"{where} {'; '.join(each.line for each in found)}.",
                      remedy="Remove them from one of the two sets: images that a model has seen cannot measure its"
                             " accuracy.")
