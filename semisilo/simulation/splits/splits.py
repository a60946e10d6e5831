"""How the images of one set are dealt to the silos of a simulation.

Every split is a pure function of (labels, number of silos, settings, seed): the same arguments give the same arrays on
every machine. Index arrays are sorted, int64 and disjoint; "file order" is the order of the labels.

Shapes: N images, K silos, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning.seeds import numpy_generator
from semisilo.common.text.describe import counted

__all__ = [
    "Indices", "Split", "WholePatients", "all_labels_at_silos", "checked_labels", "class_distributions",
    "dirichlet_semifl", "hold_out", "iid", "kept_whole", "labelled_at_silos", "labelled_selection", "largest_remainder",
    "long_tail", "long_tailed_part", "non_iidness", "shards", "stratified_part", "unlabelled_pool",
]

Indices = NDArray[np.int64]

_MINIMUM = 10
_MAX_TRIES = 10_000


def _no_indices() -> Indices:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class WholePatients:
    """What it took that no patient is in two parts: `semisilo.simulation.splits.whole_patients`."""

    num_patients: int
    """Of how many patients the images are, as far as these are known."""
    moved: int
    """Images in another part than the one that the rule alone gives them."""
    left_out: int
    """Images in no part, although the rule gives them one."""
    labelled: int
    """How many images the rule alone gives the coordinator, labelled."""
    validation: int
    """For validation."""
    test: int
    """For testing."""
    num_files: int = field(default=0, metadata=ABSENT_AT_DEFAULT)
    """Of how many files of unknown patients several images are, which stay together as well."""

    @property
    def kept(self) -> str:
        """What was kept whole, for a person: "3 patients and 1 file"."""
        return kept_whole(self.num_patients, self.num_files)


def kept_whole(num_patients: int, num_files: int) -> str:
    """See `WholePatients.kept`."""
    files = counted(num_files, "file") if num_files else ""
    patients = counted(num_patients, "patient") if num_patients or not files else ""
    return " and ".join(filter(None, (patients, files)))


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Who holds which images. Each array is sorted; no image is held twice; images in none are unused."""

    silos: tuple[Indices, ...]
    """The unlabelled images of each silo, (M_k,)."""
    coordinator: Indices = field(default_factory=_no_indices)
    """The labelled images at the coordinator."""
    validation: Indices = field(default_factory=_no_indices)
    test: Indices = field(default_factory=_no_indices)
    labelled: tuple[Indices, ...] = ()
    """The labelled images of each silo, (N_k,); empty where no silo has any."""
    steps: tuple[tuple[Indices, ...], ...] = ()
    """Per silo its unlabelled images in the order in which they stream in: the same number of steps for every silo,
    together exactly `silos[k]`. Empty where they are all there from the start."""
    patients: WholePatients | None = None
    """What was done to keep patients whole; None where the rule alone does, or patients are not known."""

    def __post_init__(self) -> None:
        if self.labelled and len(self.labelled) != len(self.silos):
            raise ValueError(f"{len(self.silos)} silos but labelled images of {len(self.labelled)}.")
        parts = (*self.silos, *self.labelled, self.coordinator, self.validation, self.test)
        everything = np.concatenate(parts)
        if len(np.unique(everything)) != len(everything):
            raise ValueError("an image is held twice.")
        if not all(map(_is_sorted, parts)):
            raise ValueError("the indices of a part are not sorted.")
        if self.steps:
            self._check_steps()

    def _check_steps(self) -> None:
        if len(self.steps) != len(self.silos) or len({len(steps) for steps in self.steps}) != 1:
            raise ValueError("every silo needs the same number of steps.")
        for held, steps in zip(self.silos, self.steps, strict=True):
            together = np.concatenate((_no_indices(), *steps))
            if len(together) != len(held) or not np.array_equal(np.sort(together), held):
                raise ValueError("the steps of a silo are not its unlabelled images.")
            if not all(map(_is_sorted, steps)):
                raise ValueError("the indices of a step are not sorted.")

    def steps_of(self, silo: int) -> Indices | None:
        """The step, from 0, in which each unlabelled image of a silo comes, in the order of `silos[silo]`; or None."""
        if not self.steps:
            return None
        steps_N = np.empty(len(self.silos[silo]), dtype=np.int64)
        for step, indices in enumerate(self.steps[silo]):
            steps_N[np.searchsorted(self.silos[silo], indices)] = step
        return steps_N


def _is_sorted(part: Indices) -> bool:
    return len(part) < 2 or bool(np.all(part[1:] > part[:-1]))


def largest_remainder(proportions: ArrayLike, total: int) -> Indices:
    """Whole numbers in the given proportions that add up to `total`.

    Each gets the floor of its share; what is left goes one each to the largest fractions, ties to the lowest index.
    Args:
        proportions: (K,), not negative; they need not add up to 1.
        total: 0 or more.
    Returns: int64 (K,).
    Raises: ValueError when the proportions are negative, not finite, or all zero.
    Source: data.md section 2, oracle X9.
    """
    weights = np.asarray(proportions, dtype=np.float64)
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0 or total < 0:
        raise ValueError("proportions must be finite, not negative and not all zero, and the total not negative.")
    share = weights / weights.sum() * total
    # A share that is whole on paper must not lose a unit to rounding, nor win a tie by one.
    share = np.round(share, 9)
    counts: Indices = np.floor(share).astype(np.int64)
    order = np.argsort(-np.round(share - counts, 9), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def long_tail(num_images: int, num_classes: int, imbalance: float) -> Indices:
    """How many images of each class make `num_images`, falling geometrically from the first class to the last.

        n_c in proportion to imbalance^(-c / (C - 1)), c = 0..C-1, by largest remainders; at least 1 of each

    Args:
        num_images: at least one for each class.
        imbalance: n_0 / n_{C-1}, at least 1.
    Returns: int64 (C,).
    Raises: BadConfiguration when there are fewer images than classes.
    Source: Cui et al., CVPR 2019, section 5.1 (long-tailed CIFAR).
    """
    if num_images < num_classes:
        raise BadConfiguration(f"num_labelled = {num_images}: fewer than one for each of {num_classes} classes.",
                               remedy="Choose a larger num_labelled.")
    counts_C = largest_remainder(_tail_shares(num_classes, imbalance), num_images)
    while (counts_C < 1).any():  # the largest class gives; the first of equals
        counts_C[int(np.argmax(counts_C))] -= 1
        counts_C[int(np.argmin(counts_C))] += 1
    return counts_C


def long_tailed_part(labels_N: ArrayLike, pool: Indices, *, num_classes: int, imbalance: float, seed: int) -> Indices:
    """A random part of a pool whose classes fall geometrically from the first to the last, as large as can be.

        n_c = floor(n_0 imbalance^(-c / (C - 1))), n_0 the largest number for which every class has enough

    Args:
        pool: indices into the labels.
    Returns: sorted int64.
    Raises: BadData when a class would have no image.
    Source: Cui et al., CVPR 2019, section 5.1.
    """
    labels = checked_labels(labels_N, num_classes)
    shares_C = _tail_shares(num_classes, imbalance)
    size_C = np.bincount(labels[pool], minlength=num_classes)
    most = float((size_C / shares_C).min())
    wanted_C = np.floor(np.round(most * shares_C, 9)).astype(np.int64)
    if (wanted_C < 1).any():
        label = int(np.argmin(size_C / shares_C))
        raise BadData(f"Class {label} has {size_C[label]} unlabelled images, too few for unlabelled_imbalance ="
                      f" {imbalance:g}.", remedy="Choose a smaller one, or fewer labelled images.")
    generator = numpy_generator(seed, "split unlabelled imbalance")
    return np.sort(np.concatenate([generator.permutation(pool[labels[pool] == label])[:count]
                                   for label, count in enumerate(wanted_C)]))


def _tail_shares(num_classes: int, imbalance: float) -> NDArray[np.float64]:
    """imbalance^(-c / (C - 1)); 1 for a single class."""
    result: NDArray[np.float64] = float(imbalance) ** (-np.arange(num_classes) / max(num_classes - 1, 1))
    return result


def labelled_selection(labels_N: ArrayLike, num_labelled: int | Sequence[int], num_classes: int, seed: int, *,
                       imbalance: float | None = None) -> Indices:
    """Which images keep their label: a random num_labelled / num_classes of each class.

    Args:
        num_labelled: in all; or how many of each class.
        imbalance: `long_tail`'s, where the number is not to be of each class equally many.
    Returns: sorted int64 (num_labelled,).
    Raises: BadConfiguration when the number is not a positive multiple of the classes, or not one for each; BadData
        when a class has fewer.
    Source: data.md section 2 (SemiFL code).
    """
    labels = checked_labels(labels_N, num_classes)
    generator = numpy_generator(seed, "split labelled")
    chosen = []
    for label, each in enumerate(_labelled_counts(num_labelled, num_classes, imbalance)):
        members = np.flatnonzero(labels == label)
        if len(members) < each:
            raise BadData(f"Class {label} has {len(members)} images, fewer than the {each} to be labelled.",
                          remedy="Choose a smaller num_labelled.")
        chosen.append(generator.permutation(members)[:each])
    return np.sort(np.concatenate(chosen))


def _labelled_counts(num_labelled: int | Sequence[int], num_classes: int, imbalance: float | None) -> list[int]:
    if not isinstance(num_labelled, int):
        if len(num_labelled) != num_classes:
            raise BadConfiguration(f"num_labelled has {len(num_labelled)} numbers for {num_classes} classes.",
                                   remedy="Give one for each class, in label order, or a single number.")
        return list(num_labelled)
    if imbalance is not None:
        return [int(count) for count in long_tail(num_labelled, num_classes, imbalance)]
    if num_labelled <= 0 or num_labelled % num_classes:
        raise BadConfiguration(f"num_labelled = {num_labelled} is not a positive multiple of {num_classes} classes.",
                               remedy=f"Choose a multiple of {num_classes}, or set label_imbalance.")
    return [num_labelled // num_classes] * num_classes


def labelled_at_silos(labels_N: ArrayLike, num_silos: int, *, per_class: int, num_classes: int, seed: int,
                      classes: Sequence[Sequence[int]] | None = None, without: ArrayLike = ()) -> tuple[Indices, ...]:
    """Which images are labelled at which silo: `per_class` random ones of each class, or of each of its own classes.

    Per class the images in random order are handed out in pieces of `per_class`, silo after silo.
    Args:
        classes: the classes that each silo has labels of; None: all.
        without: indices that no silo gets, such as the coordinator's labelled images.
    Returns: K sorted int64 arrays, disjoint.
    Raises: BadConfiguration when `per_class` is not positive; BadData when a class has too few images.
    Source: data.md section 3.4 (FedMatch code: silo k takes [5k, 5k + 5) of each class of the shuffled images).
    """
    labels = checked_labels(labels_N, num_classes)
    if per_class < 1:
        raise BadConfiguration(f"labelled_per_class = {per_class}: must be at least 1.")
    wanted = [range(num_classes)] * num_silos if classes is None else classes
    generator = numpy_generator(seed, "split labelled at silos")
    parts: list[list[Indices]] = [[] for _ in range(num_silos)]
    for label in range(num_classes):
        owners = [silo for silo in range(num_silos) if label in wanted[silo]]
        members = generator.permutation(np.setdiff1d(np.flatnonzero(labels == label), without))
        if len(members) < per_class * len(owners):
            raise BadData(f"Class {label} has {len(members)} images, fewer than {per_class} for each of {len(owners)}"
                          " silos.", remedy="Choose a smaller labelled_per_class or fewer silos.")
        for index, silo in enumerate(owners):
            parts[silo].append(members[index * per_class : (index + 1) * per_class])
    return tuple(np.sort(np.concatenate((_no_indices(), *pieces))) for pieces in parts)


def all_labels_at_silos(split: Split) -> Split:
    """The same parts, every image of a silo labelled: the supervised upper bounds (FedAvg-SL in FedMatch's tables)."""
    before = split.labelled or tuple(_no_indices() for _ in split.silos)
    together = tuple(np.sort(np.concatenate(pair)) for pair in zip(split.silos, before, strict=True))
    return Split(tuple(_no_indices() for _ in split.silos), split.coordinator, split.validation, split.test, together)


def hold_out(labels_N: ArrayLike, *, num_test: int, num_validation: int, seed: int) -> tuple[Indices, Indices, Indices]:
    """Cuts the images at random into train, test and validation; each sorted int64.

    A class that the cut leaves without a validation image gets one, as long as there is room: an image of it that would
    be trained on changes places with a validation image of the class that has most there. A model that never answers a
    class would be chosen by validation images without it. Nothing else changes, so that a cut which has given every
    class one is that of the source.
    Raises: BadConfiguration when nothing is left to train on.
    Source: data.md section 3.4 (FedMatch code: shuffle, then cut train | test | valid).
    """
    labels = np.asarray(labels_N)
    num_images = len(labels)
    if min(num_test, num_validation) < 0 or num_test + num_validation >= num_images:
        raise BadConfiguration(f"num_test = {num_test} and num_validation = {num_validation} cannot be held out of"
                               f" {num_images} images.", remedy="Choose smaller numbers.")
    order = numpy_generator(seed, "split hold out").permutation(num_images)
    num_train = num_images - num_test - num_validation
    train, test, validation = np.split(order, [num_train, num_train + num_test])
    for label in np.unique(labels).tolist() if num_validation else ():
        mine, of_most = np.flatnonzero(labels[train] == label), np.bincount(labels[validation])
        if np.any(labels[validation] == label) or len(mine) < 2 or of_most.max() < 2:
            continue
        given = np.flatnonzero(labels[validation] == of_most.argmax())[0]
        train[mine[-1]], validation[given] = validation[given], train[mine[-1]]
    return np.sort(train), np.sort(test), np.sort(validation)


def stratified_part(labels_N: ArrayLike, fraction: float, *, num_classes: int, seed: int) -> Indices:
    """A random part of the images with the class shares of the whole: for runs on a smaller scale.

    Args:
        fraction: above 0, at most 1; the number of images is rounded, and so is that of each class.
    Returns: sorted int64.
    Raises: BadConfiguration for another fraction, or when no image is left.
    """
    labels = checked_labels(labels_N, num_classes)
    total = round(fraction * len(labels)) if 0 < fraction <= 1 else 0
    if total < 1:
        raise BadConfiguration(f"fraction = {fraction} of {len(labels)} images: must be above 0 and at most 1, and"
                               " leave an image.")
    generator = numpy_generator(seed, "split fraction")
    counts = largest_remainder(np.bincount(labels, minlength=num_classes), total)
    chosen = [generator.permutation(np.flatnonzero(labels == label))[:count] for label, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))


def iid(labels_N: ArrayLike, num_silos: int, *, seed: int, labelled: ArrayLike = ()) -> Split:
    """Random equal parts: floor(n / K) of the n unlabelled images each; the remainder is unused.

    Args:
        labelled: indices at the coordinator, which no silo gets.
    Raises: BadConfiguration when there are fewer images than silos.
    Source: data.md section 3.1 (SemiFL code).
    """
    labels = np.asarray(labels_N)
    coordinator, pool = unlabelled_pool(len(labels), labelled, num_silos)
    each = len(pool) // num_silos
    if each == 0:
        raise BadConfiguration(f"{len(pool)} unlabelled images cannot be dealt to {num_silos} silos.",
                               remedy="Choose fewer silos.")
    shuffled = numpy_generator(seed, "split iid").permutation(pool)
    return Split(tuple(np.sort(shuffled[k * each : (k + 1) * each]) for k in range(num_silos)), coordinator)


def shards(
    labels_N: ArrayLike, num_silos: int, *, classes_per_silo: int, num_classes: int, seed: int, labelled: ArrayLike = ()
) -> Split:
    """At most `classes_per_silo` classes at each silo (SemiFL's "non-iid-l-K").

    Each class is cut in file order into s*K/C shards, leftovers one each to the first; each class fills that many
    slots, the slots are permuted, s consecutive ones belong to a silo, each takes a random unused shard of its class.
    Raises: BadConfiguration when s*K is not divisible by C, or s is not in 1..C.
    Source: data.md section 3.2 (SemiFL code).
    """
    labels = checked_labels(labels_N, num_classes)
    coordinator, pool = unlabelled_pool(len(labels), labelled, num_silos)
    if not 1 <= classes_per_silo <= num_classes:
        raise BadConfiguration(f"classes_per_silo = {classes_per_silo}: must be between 1 and {num_classes}.")
    slots = classes_per_silo * num_silos
    if slots % num_classes:
        raise BadConfiguration(
            f"{classes_per_silo} classes per silo x {num_silos} silos is not divisible by {num_classes} classes.",
            remedy="Choose another number of silos or of classes per silo.")
    per_class = slots // num_classes
    generator = numpy_generator(seed, "split shards")
    slot_labels = generator.permutation(np.repeat(np.arange(num_classes), per_class)).reshape(num_silos, -1)
    unused = []
    for label in range(num_classes):
        pieces = np.array_split(pool[labels[pool] == label], per_class)
        unused.append([pieces[index] for index in generator.permutation(per_class)])
    return Split(tuple(np.sort(np.concatenate([unused[label].pop() for label in row])) for row in slot_labels),
                 coordinator)


def dirichlet_semifl(
    labels_N: ArrayLike, num_silos: int, *, beta: float, num_classes: int, seed: int, labelled: ArrayLike = (),
    max_tries: int = _MAX_TRIES,
) -> Split:
    """Class by class in proportions q ~ Dir(beta), closed to silos that hold their fair share, until all have 10.

    Args:
        beta: concentration > 0; small is uneven.
    Raises: BadConfiguration when beta is not positive, when there are fewer than 10 K images, or when no try of
        `max_tries` gave every silo 10.
    Source: data.md section 3.3 (SemiFL code).
    """
    labels = checked_labels(labels_N, num_classes)
    coordinator, pool = unlabelled_pool(len(labels), labelled, num_silos)
    if not 0 < beta < float("inf"):
        raise BadConfiguration(f"beta = {beta}: must be above 0.")
    if len(pool) < _MINIMUM * num_silos:
        raise BadConfiguration(f"{len(pool)} unlabelled images cannot give each of {num_silos} silos {_MINIMUM}.",
                               remedy="Choose fewer silos.")
    by_class = [pool[labels[pool] == label] for label in range(num_classes)]
    generator = numpy_generator(seed, "split dirichlet_semifl")
    for _ in range(max_tries):
        parts = _dirichlet_try(by_class, num_silos, beta, generator, max_tries)
        if parts is not None and min(map(len, parts)) >= _MINIMUM:
            return Split(parts, coordinator)
    raise BadConfiguration(
        f"beta = {beta} with {num_silos} silos: in {max_tries} tries some silo always got under {_MINIMUM} images.",
        remedy="Choose a larger beta or fewer silos.")


def _dirichlet_try(
    by_class: Sequence[Indices], num_silos: int, beta: float, generator: np.random.Generator, max_tries: int
) -> tuple[Indices, ...] | None:
    """One deal of all classes; None when no silo with room ever got a share of some class."""
    fair = sum(map(len, by_class)) / num_silos
    held_K = np.zeros(num_silos, dtype=np.int64)
    parts: list[list[Indices]] = [[] for _ in range(num_silos)]
    for members in by_class:
        if len(members) == 0:
            continue
        for _ in range(max_tries):
            q_K = generator.dirichlet(np.full(num_silos, beta)) * (held_K < fair)
            if q_K.sum() > 0:
                break
        else:
            return None
        cuts = np.floor(np.cumsum(q_K / q_K.sum()) * len(members)).astype(np.int64)[:-1]
        for silo, piece in enumerate(np.split(members, cuts)):
            parts[silo].append(piece)
            held_K[silo] += len(piece)
    return tuple(np.sort(np.concatenate(pieces)) for pieces in parts)


def class_distributions(labels_N: ArrayLike, split: Split, *, num_classes: int) -> NDArray[np.float64]:
    """Share of each class among all images of each silo, labelled or not, (K, C); without images a row of zeros."""
    labels = checked_labels(labels_N, num_classes)
    counts = np.stack([np.bincount(labels[part], minlength=num_classes) for part in split.silos]).astype(np.float64)
    for silo, part in enumerate(split.labelled):
        counts[silo] += np.bincount(labels[part], minlength=num_classes)
    shares: NDArray[np.float64] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def non_iidness(distributions_KC: ArrayLike) -> float:
    """Mean over pairs of silos of half the L1 distance of their class distributions: 0 equal, 1 no class in common.

    Rows without images are left out; fewer than two rows give 0.
    Source: FedRGD, Zhang et al. 2020, metric R; data.md section 3.8.
    """
    rows = np.asarray(distributions_KC, dtype=np.float64)
    rows = rows[rows.sum(1) > 0]
    if len(rows) < 2:
        return 0.0
    total = sum(0.5 * float(np.abs(rows[j + 1 :] - rows[j]).sum()) for j in range(len(rows) - 1))
    return total / (len(rows) * (len(rows) - 1) / 2)


def checked_labels(labels_N: ArrayLike, num_classes: int) -> Indices:
    """The labels as int64 (N,).

    Raises: BadData when they are not one whole number per image in 0..num_classes - 1.
    """
    labels = np.asarray(labels_N)
    if num_classes < 1:
        raise BadConfiguration(f"num_classes = {num_classes}: must be at least 1.")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadData("Labels must be one whole number per image.")
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        index = int(np.flatnonzero((labels < 0) | (labels >= num_classes))[0])
        raise BadData(f"Label {labels[index]} of image {index} is out of range (0 to {num_classes - 1}).")
    return labels.astype(np.int64)


def unlabelled_pool(num_images: int, labelled: ArrayLike, num_silos: int) -> tuple[Indices, Indices]:
    """The labelled images, and all others; both sorted.

    Raises: BadConfiguration when an index is out of range or there is no silo.
    """
    if num_silos < 1:
        raise BadConfiguration(f"num_silos = {num_silos}: must be at least 1.")
    coordinator = np.unique(np.asarray(labelled, dtype=np.int64))
    if len(coordinator) and not (coordinator[0] >= 0 and coordinator[-1] < num_images):
        raise BadConfiguration(f"labelled: an index is not in 0 to {num_images - 1}.")
    return coordinator, np.setdiff1d(np.arange(num_images, dtype=np.int64), coordinator)
