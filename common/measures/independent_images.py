"""How many independent images a set counts as, of which several are of one patient.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semisilo.common.text.describe import counted

if TYPE_CHECKING:  # the ledger reads its numbers, and commands load no numpy for them
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["IndependentImages", "by_what", "independent_images", "patient_keys", "summed_by_patient", "worth_of"]


@dataclass(frozen=True, slots=True)
class IndependentImages:
    """As many images, each of a patient of its own, bring as narrow an interval at worst.

    Of m_p images of patient p it is (sum m_p)^2 / sum m_p^2: what is left where a model is right on all images of a
    patient or on none, the largest design effect that there is. Equally many of each are worth one for each patient.
    Source: Kish, "Survey Sampling", 1965, section 5.4, with an intraclass correlation of 1 and of clusters that differ.
    """

    patients: int
    """Among all images. One of an unknown patient counts as one, like those of one file together."""
    total: float
    by_class: tuple[float, ...]
    """Of the images of each class, in label order; 0 of none."""
    without: tuple[float, ...]
    """Of those known not to show it."""

    @classmethod
    def of_equal_patients(cls, patients: int, total: int, by_class: Sequence[int], without: Sequence[int]
                          ) -> IndependentImages:
        """Where only the number of patients is known: as if all had equally many images of every class."""
        def worth(count: int) -> float:
            return max(1.0, count * patients / total) if count else 0.0
        return cls(patients, float(patients), tuple(map(worth, by_class)), tuple(map(worth, without)))


def independent_images(patients: Sequence[str], labels_N: NDArray[np.integer], num_classes: int
                       ) -> IndependentImages | None:
    """What labelled images are worth; None where no two are of one patient, so that all of them count.

    Args:
        patients: a key of each, as `semisilo.common.data.image_set.ImageSet.patients`: "" where it is not known, () of
            no image.
        labels_N: of each, int (N,); where images may have several labels or none multi-hot rows (N, K), 1 shown, 0 not
            shown, -1 not known.
    """
    keys = patient_keys(patients)
    if len(set(keys)) == len(keys):
        return None
    several = labels_N.ndim == 2
    shown = [labels_N[:, label] == 1 if several else labels_N == label for label in range(num_classes)]
    others = [labels_N[:, label] == 0 if several else labels_N != label for label in range(num_classes)]

    def of(chosen_N: NDArray[np.bool_]) -> float:
        return _worth(key for key, chosen in zip(keys, chosen_N.tolist(), strict=True) if chosen)
    return IndependentImages(len(set(keys)), _worth(keys), tuple(map(of, shown)), tuple(map(of, others)))


def by_what(independent: IndependentImages | None) -> str:
    """What intervals go by, for a person: "by image", or "by patient (20 patients)"."""
    return "by image" if independent is None else f"by patient ({counted(independent.patients, 'patient')})"


def patient_keys(patients: Sequence[str]) -> list[str]:
    """A key of each image that images of one patient share: one of an unknown patient ("") has its own."""
    return [patient or f"\0{index}" for index, patient in enumerate(patients)]


def worth_of(patients: Sequence[str], chosen_N: NDArray[np.bool_]) -> float | None:
    """What some images of a set are worth, such as those that are answered with a class; 0 of none.

    Args:
        patients: of all images of the set; () where every image counts.
        chosen_N: which they are, (N,).
    Returns: None where every image counts.
    """
    if not patients:
        return None
    return _worth(key for key, chosen in zip(patient_keys(patients), chosen_N.tolist(), strict=True) if chosen)


def summed_by_patient(patients: Sequence[str], values_N: Sequence[float]) -> list[float]:
    """The sum over the images of each patient; the values themselves where every image counts (())."""
    if not patients:
        return list(values_N)
    found: dict[str, float] = {}
    for key, value in zip(patient_keys(patients), values_N, strict=True):
        found[key] = found.get(key, 0) + value
    return list(found.values())


def _worth(keys: Iterable[str]) -> float:
    counts = Counter(keys).values()
    return sum(counts) ** 2 / sum(each * each for each in counts) if counts else 0.0
