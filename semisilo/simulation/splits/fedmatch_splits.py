"""The splits of FedMatch (Jeong et al., arXiv v1 and ICLR 2021) and FedMix (Zhang et al. 2021).

All images of a class are shuffled before they are dealt, which is what shuffling the whole set does in FedMatch's code.

Shapes: N images, K silos, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning.seeds import numpy_generator
from semisilo.simulation.splits.class_pools import hand_out, shuffled_classes
from semisilo.simulation.splits.splits import Indices, Split, checked_labels, largest_remainder, unlabelled_pool

__all__ = ["batch_iid", "batch_noniid", "dirichlet_fedmix", "kind_distributions", "streaming_noniid"]

_FIRST_KIND = (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)
_WANTED_SHARE = 580 / 550


def batch_iid(labels_N: ArrayLike, num_silos: int, *, num_classes: int, seed: int, labelled: ArrayLike = ()) -> Split:
    """The same number of images of each class everywhere: floor(n_c / K) of class c; the remainder is unused.

    Args:
        labelled: indices that no silo gets, as in `semisilo.simulation.splits.splits.iid`.
    Raises: BadConfiguration when no class has an image for every silo.
    Source: data.md sections 3.4 (FedMatch code) and 3.5 (FedMix, IID).
    """
    labels = checked_labels(labels_N, num_classes)
    held, pool = unlabelled_pool(len(labels), labelled, num_silos)
    by_class = shuffled_classes(labels, pool, num_classes, numpy_generator(seed, "split batch_iid"))
    each_C = np.array([len(members) // num_silos for members in by_class])
    if not each_C.any():
        raise _too_few(len(pool), num_silos)
    return Split(hand_out(by_class, np.tile(each_C, (num_silos, 1))), held)


def batch_noniid(labels_N: ArrayLike, num_silos: int, *, num_classes: int, seed: int,
                 labelled: ArrayLike = ()) -> Split:
    """Silo k is of kind k mod 10: half of its images are of one class, 15 % of each neighbouring class.

    It wants floor(U / K) of the U unlabelled images, their classes drawn independently from its kind's distribution;
    an exhausted class gives fewer, so the last silos may get less than the first.
    Raises: BadConfiguration when there are not 10 classes, or fewer images than silos.
    Source: data.md section 3.4 (FedMatch code).
    """
    labels = checked_labels(labels_N, num_classes)
    held, pool = unlabelled_pool(len(labels), labelled, num_silos)
    kinds_TC = kind_distributions(num_classes)
    if len(pool) < num_silos:
        raise _too_few(len(pool), num_silos)
    generator = numpy_generator(seed, "split batch_noniid")
    by_class = shuffled_classes(labels, pool, num_classes, generator)
    each = len(pool) // num_silos
    wanted_KC = np.stack([generator.multinomial(each, kinds_TC[silo % len(kinds_TC)]) for silo in range(num_silos)])
    return Split(hand_out(by_class, wanted_KC), held)


def kind_distributions(num_classes: int) -> NDArray[np.float64]:
    """Class shares of FedMatch's ten kinds of silos, (10, 10): row j is row 0 rotated right by j.

    Raises: BadConfiguration when there are not 10 classes.
    """
    if num_classes != len(_FIRST_KIND):
        raise BadConfiguration(f"FedMatch's uneven splits are defined for 10 classes; there are {num_classes}.",
                               remedy='Choose "shards", "dirichlet_semifl" or "dirichlet_fedmix".')
    return np.stack([np.roll(_FIRST_KIND, kind) for kind in range(num_classes)])


def streaming_noniid(labels_N: ArrayLike, num_silos: int, *, num_classes: int, seed: int, steps: int = 10,
                     labelled: ArrayLike = ()) -> Split:
    """`batch_noniid`, whose images arrive in equal steps: each silo's are shuffled and cut; the remainder is unused.

    Raises: BadConfiguration as `batch_noniid`, or when a silo has fewer images than steps.
    Source: data.md section 3.4 (FedMatch v1).
    """
    if steps < 1:
        raise BadConfiguration(f"steps = {steps}: must be at least 1.")
    whole = batch_noniid(labels_N, num_silos, num_classes=num_classes, seed=seed, labelled=labelled)
    least = min(map(len, whole.silos))
    if least < steps:
        raise BadConfiguration(f"A silo has {least} unlabelled images, too few for {steps} steps.",
                               remedy="Choose fewer steps or fewer silos.")
    generator = numpy_generator(seed, "split streaming_noniid")
    streams = []
    for held in whole.silos:
        each = len(held) // steps
        cut = generator.permutation(held)[: each * steps].reshape(steps, each)
        streams.append(tuple(np.sort(cut, axis=1)))
    return Split(tuple(np.sort(np.concatenate(stream)) for stream in streams), whole.coordinator, steps=tuple(streams))


def dirichlet_fedmix(labels_N: ArrayLike, num_silos: int, *, mu: float, num_classes: int, seed: int,
                     images_per_silo: int | None = None, labelled: ArrayLike = ()) -> Split:
    """Silo k wants `images_per_silo` images in class shares p_k ~ Dir(mu), and takes what is left of each class.

    So the first silos get what they want and the last ones the remains, "some 580, some below 50"; classes that nobody
    wants any more stay unused.
    Args:
        mu: concentration > 0; small is uneven.
        images_per_silo: None: 580/550 of an equal share, the paper's 580 for 55,000 images and 100 silos.
    Raises: BadConfiguration when mu is not positive, or fewer images than silos.
    Source: data.md section 3.5 (FedMix, reconstructed).
    """
    labels = checked_labels(labels_N, num_classes)
    held, pool = unlabelled_pool(len(labels), labelled, num_silos)
    if not 0 < mu < float("inf"):
        raise BadConfiguration(f"dirichlet = {mu}: must be above 0.")
    if len(pool) < num_silos:
        raise _too_few(len(pool), num_silos)
    want = round(_WANTED_SHARE * len(pool) / num_silos) if images_per_silo is None else images_per_silo
    generator = numpy_generator(seed, "split dirichlet_fedmix")
    by_class = shuffled_classes(labels, pool, num_classes, generator)
    shares_KC = generator.dirichlet(np.full(num_classes, mu), size=num_silos)
    wanted_KC: Indices = np.stack([largest_remainder(share_C, want) for share_C in shares_KC])
    return Split(hand_out(by_class, wanted_KC), held)


def _too_few(images: int, silos: int) -> BadConfiguration:
    return BadConfiguration(f"{images} unlabelled images cannot be dealt to {silos} silos.",
                            remedy="Choose fewer silos.")
