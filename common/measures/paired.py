"""The interval of what one model is better by than another, of their answers to the same test images.

Shapes: N images, K classes, P patients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semisilo.common.measures.calibration import probabilities
from semisilo.common.measures.independent_images import summed_by_patient, worth_of
from semisilo.common.measures.intervals import Interval, difference_around
from semisilo.common.measures.multi_label import precision_shares, ranked_shares, sigmoid
from semisilo.common.measures.study_measure import StudyMeasure

__all__ = ["paired_interval", "shares_of_images"]

Logits = NDArray[np.floating]


def paired_interval(measure: StudyMeasure, first_NK: Logits, second_NK: Logits, labels_N: NDArray[np.integer], *,
                    classes: Sequence[str], patients: Sequence[str]) -> Interval | None:
    """Interval of a measure of the first model less that of the second.

        d -+ z max(e, sqrt(sum_p (sum_{i of p} (a_i - b_i))^2))

    a_i and b_i being what image i adds to the measure of either (`shares_of_images`). What both models get right, or
    wrong, adds nothing; images of one patient may hang on one another in any way. The squares are not taken from the
    mean: the error is the one under which there is no difference, as in McNemar's test, so that an only image of a
    class, or three patients who all speak for one model, show nothing. Of shares e is what the images of one patient
    add, each for itself right by one model alone: where both answer a few images alike, they need not the next ones.

    Args:
        first_NK: logits, (N, K).
        labels_N: of each image, int (N,); where images may have several labels or none multi-hot rows (N, K), 1 shown,
            0 not shown, -1 not known.
        classes: names in label order, (K,).
        patients: a key of each image, as `semisilo.common.data.image_set.ImageSet.patients`; "" where it is not known:
            such an image stands for itself. () where every image does.
    Returns: None where the images do not give the measure, or a logit is not finite; of areas also where no image is
        ranked otherwise by one model than by the other.
    Source: Durkalski, Palesch, Lipsitz and Rust, Statistics in Medicine 22 (2003) 2417, for shares of matched pairs in
        clusters; DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837, and Obuchowski, Biometrics 53 (1997) 567,
        for areas.
    """
    parts = [shares_of_images(measure, each, labels_N, classes=classes) for each in (first_NK, second_NK)]
    if parts[0] is None or parts[1] is None:
        return None
    (first, first_N), (second, second_N) = parts[0], parts[1]
    if measure.is_area and not (first_N != second_N).any():
        return None  # as where both areas are 1: the error would be 0, which no number of images proves
    by_patient = summed_by_patient(patients, (first_N - second_N).tolist())
    least = _of_one_patient(measure, labels_N, classes=classes, patients=patients)
    return difference_around(first - second, max(least, math.hypot(*by_patient)))


def _of_one_patient(measure: StudyMeasure, labels_N: NDArray[np.integer], *, classes: Sequence[str],
                    patients: Sequence[str]) -> float:
    """What the images of one patient add to a share if each is right by one model alone, whichever: 1 / sqrt(n n*) of n
    images that are worth n* patients; 0 of areas."""
    def of(chosen_N: NDArray[np.bool_]) -> float:
        images = float(chosen_N.sum())
        return 1 / math.sqrt(images * (worth_of(patients, chosen_N) or images))
    if measure.is_area:
        return 0.0
    if measure.kind == "accuracy":
        return of(np.ones(len(labels_N), dtype=bool))
    if measure.kind == "recall":
        return of(labels_N == list(classes).index(measure.class_name))
    found = [of(labels_N == label) for label in np.unique(labels_N)]
    return math.hypot(*found) / len(found)


def shares_of_images(measure: StudyMeasure, logits_NK: Logits, labels_N: NDArray[np.integer], *, classes: Sequence[str]
                     ) -> tuple[float, NDArray[np.float64]] | None:
    """A measure, and what each image adds to it, float (N,).

    | measure           | of an image of class k, which n of N images are of                             |
    |-------------------|--------------------------------------------------------------------------------|
    | accuracy          | 1 / N where it is right                                                        |
    | recall            | 1 / n where it is right, 0 of another class                                    |
    | balanced accuracy | 1 / n where it is right, over the number of classes                            |
    | AUROC             | of every class how it is ranked among images of the other kind                 |
    |                   | (`ranked_shares`); the mean over the classes                                   |
    | average precision | of every class the precision at its score and what it moves that of others by  |
    |                   | (`precision_shares`); the mean over the classes                                |

    They add up to the measure.
    Returns: None where the images do not give it, or a logit is not finite.
    """
    if not np.isfinite(logits_NK).all() or not len(labels_N):
        return None
    several = labels_N.ndim == 2
    if measure.is_area:
        scores_NK = sigmoid(logits_NK) if several else probabilities(logits_NK)
        rows_NK = labels_N if several else (labels_N[:, None] == np.arange(len(classes))).astype(np.int8)
        return (ranked_shares if measure.kind == "auroc" else precision_shares)(scores_NK, rows_NK)
    if several:
        return None
    right_N = (logits_NK.argmax(axis=1) == labels_N).astype(np.float64)
    images_K = np.bincount(labels_N, minlength=len(classes))
    if measure.kind == "accuracy":
        shares_N = right_N / len(labels_N)
    elif measure.kind == "recall":
        label = list(classes).index(measure.class_name)
        if not images_K[label]:
            return None
        shares_N = np.where(labels_N == label, right_N / images_K[label], 0.0)
    else:
        shares_N = right_N / images_K[labels_N] / np.count_nonzero(images_K)
    return math.fsum(shares_N.tolist()), shares_N
