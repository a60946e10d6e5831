"""What silos have brought: a measure of the federated model less that of labels alone, with its interval and in words.

Every reader says it through this module, so that "no difference shown" means the same wherever it stands. The interval
of a study that is over is of both models' answers to each test image (`PairedGain`). Before, and of other rounds, it
follows from counts and areas alone, which need no images.

Shapes: K classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.intervals import (
    Interval,
    area_interval,
    dependent_mean_interval,
    difference_interval,
    mean_interval,
    precision_interval,
    share_interval,
)
from semisilo.common.measures.study_measure import StudyMeasure
from semisilo.common.text.describe import counted, describe_points

__all__ = ["Gain", "ImageCounts", "PairedGain", "by_patients_text", "describe_gain", "gain_interval_text", "gain_of",
           "gain_text", "gain_verdict", "interval_of", "mean_gain"]

_NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """The images that both models were measured on."""

    total: int
    by_class: tuple[int, ...] = ()
    """Of each class, in label order; () where nobody has counted them."""
    without: tuple[int, ...] = ()
    """Known not to show each class, where an image may have several labels or none; () where an image has one, and all
    others are without the class."""
    independent: IndependentImages | None = None
    """What they are worth where several are of one patient; None where all of them count, or that is not known."""

    @property
    def patients(self) -> int:
        """How many patients intervals go by; 0 where every image counts."""
        return 0 if self.independent is None else self.independent.patients


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedGain:
    """How far the model of a round may be better than labels alone, by what both answer to each test image."""

    round: int
    patients: int
    """Whom the images are of, where several are of one; 0 where every image counts."""
    intervals: dict[str, Interval]
    """Measure, as a study file names it -> interval of the difference (`semisilo.common.measures.paired`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The difference of two models in one measure."""

    measure: StudyMeasure
    federated: float
    """0 to 1, like the next."""
    labels_alone: float
    interval: Interval | None
    """Of `value`, with a confidence of 95 %; None where the images of each class were not counted."""
    patients: int = 0
    """How many patients it goes by; 0 where every image counts."""
    paired: bool = False
    """Whether the interval is of what both models answer to each image, not of the numbers of each by itself."""

    @property
    def value(self) -> float:
        """The federated model's less that of labels alone, -1 to 1."""
        return self.federated - self.labels_alone

    @property
    def is_shown(self) -> bool:
        """Whether there is a difference beyond what chance explains: the interval does not contain 0."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


def gain_of(measure: StudyMeasure, *, classes: Sequence[str], images: ImageCounts, federated: Mapping[str, float],
            labels_alone: Mapping[str, float], paired: PairedGain | None = None) -> Gain | None:
    """The gain in a measure, from the metrics of two models on the same images.

    Its interval is that of `paired`, where there is one; else:

    | measure           | interval of each model                                                    |
    |-------------------|---------------------------------------------------------------------------|
    | accuracy, recall  | Wilson's of right / images; of the difference it is Newcombe's            |
    | balanced accuracy | of the mean of the recalls, each class by itself (`mean_interval`)        |
    | AUROC             | of the mean of the areas, each with `area_interval`, as if all err alike  |
    | average precision | likewise, each with `precision_interval`                                  |

    The two are then put together as Newcombe does (`difference_interval`), as if the models were measured on images of
    their own: since these are the same ones, the interval is wider than it need be, and a difference that it shows is
    shown all the more. Where several images are of one patient, they count as far as `ImageCounts.independent` says:
    what a model gets wrong of a patient it may get wrong in all images of that patient.

    Args:
        classes: names in label order, (K,).
        federated: as the metrics of a round are named.
        labels_alone: likewise.
        paired: of these two models; None where their answers to each image are not known.
    Returns: None where either was not measured.
    Source: Newcombe, Statistics in Medicine 17 (1998), method 10; Zou and Donner, Statistics in Medicine 27 (2008), for
        sums and differences of any two estimates with intervals.
    """
    ours, theirs = federated.get(measure.metric), labels_alone.get(measure.metric)
    if ours is None or theirs is None or not (math.isfinite(ours) and math.isfinite(theirs)):
        return None
    if paired is not None and (found := paired.intervals.get(str(measure))) is not None:
        return Gain(measure=measure, federated=ours, labels_alone=theirs, interval=found, patients=paired.patients,
                    paired=True)
    first, second = (interval_of(measure, classes=classes, images=images, metrics=metrics)
                     for metrics in (federated, labels_alone))
    return Gain(measure=measure, federated=ours, labels_alone=theirs, interval=None if first is None or second is None
                else difference_interval(ours, first, theirs, second), patients=images.patients)


def interval_of(measure: StudyMeasure, *, classes: Sequence[str], images: ImageCounts, metrics: Mapping[str, float]
                ) -> Interval | None:
    """The interval of a measure of one model, as the table of `gain_of` has it.

    Returns: None without images, and where those of each class are needed and not known.
    """
    worth = images.independent
    if measure.kind == "accuracy":
        return share_interval(metrics.get(measure.metric), images.total, None if worth is None else worth.total)
    by_class = dict(zip(classes, images.by_class, strict=False))
    own: dict[str, float] = {} if worth is None else dict(zip(classes, worth.by_class, strict=False))
    if measure.kind == "recall":
        name = measure.class_name
        return share_interval(metrics.get(measure.metric), by_class.get(name, 0), own.get(name))
    if not by_class:
        return None
    inside = by_class if worth is None else own
    if measure.kind == "balanced_accuracy":
        found = [(share, share_interval(share, count, own.get(name))) for name, count in by_class.items()
                 if (share := metrics.get(f"recall/{name}")) is not None]
    elif measure.kind == "average_precision":
        found = [(area, precision_interval(area, inside=count))
                 for name, count in inside.items() if (area := metrics.get(f"average_precision/{name}")) is not None]
    else:
        others = images.without or [images.total - count for count in images.by_class]
        outside = dict(zip(classes, others if worth is None else worth.without, strict=False))
        found = [(area, area_interval(area, inside=count, outside=outside[name]) if count and outside[name] > 0
                  else None)
                 for name, count in inside.items() if (area := metrics.get(f"auroc/{name}")) is not None]
    known = [(value, interval) for value, interval in found if interval is not None]
    if not known or len(known) < len(found):
        return None
    return mean_interval(known) if measure.kind == "balanced_accuracy" else \
        dependent_mean_interval([interval for _, interval in known])


def mean_gain(gains: Sequence[Gain]) -> Gain | None:
    """The mean of the gains of several runs in one measure; None of none.

    Its interval is the mean of theirs: runs may be measured on the same images, so that it is not taken for granted
    that their errors cancel. It speaks of the images; how far runs differ is the spread over seeds.
    """
    if not gains:
        return None
    intervals = [each.interval for each in gains if each.interval is not None]
    return Gain(measure=gains[0].measure, federated=math.fsum(each.federated for each in gains) / len(gains),
                labels_alone=math.fsum(each.labels_alone for each in gains) / len(gains),
                interval=None if len(intervals) < len(gains) else dependent_mean_interval(intervals),
                patients=min((each.patients for each in gains if each.patients), default=0),
                paired=all(each.paired for each in gains))


# In words -------------------------------------------------------------------------------------------------------------


def gain_text(gain: Gain, *, decimals: int = 1) -> str:
    """How large it is: "+1.2 points", of an AUROC "+0.012"."""
    number = _signed(gain.measure, gain.federated, gain.labels_alone, decimals)
    return number if gain.measure.is_area else f"{number} points"


def gain_interval_text(gain: Gain, *, decimals: int = 1) -> str:
    """From where to where: "95 % interval −0.3 to +2.7, paired by image"; where several images are of one patient
    "paired by 20 patients". Where only the numbers of each model are known "paired" is not said."""
    if gain.interval is None:
        return "interval not known"
    low, high = (_signed(gain.measure, end, 0.0, decimals) for end in (gain.interval.low, gain.interval.high))
    by = by_patients_text(gain.patients)
    how = f", paired{by or ' by image'}" if gain.paired else by
    return f"95 % interval {low} to {high}{how}"


def by_patients_text(patients: int) -> str:
    """That an interval goes by patients, to stand behind it: " by 20 patients"; empty of 0, where every image counts.
    """
    return f" by {counted(patients, 'patient')}" if patients else ""


def gain_verdict(gain: Gain) -> str:
    """What it comes to: "no difference shown" where the interval contains 0; empty where that is not known."""
    if gain.interval is None:
        return ""
    if not gain.is_shown:
        return _NO_DIFFERENCE
    return "the silos have helped" if gain.value > 0 else "the silos have not helped"


def describe_gain(gain: Gain, *, decimals: int = 1) -> str:
    """All of it: "+1.2 points, 95 % interval −0.3 to +2.7, no difference shown"."""
    return ", ".join(filter(None, (gain_text(gain, decimals=decimals), gain_interval_text(gain, decimals=decimals),
                                   gain_verdict(gain))))


def _signed(measure: StudyMeasure, after: float, before: float, decimals: int) -> str:
    """The difference of what stands there for each, so that who subtracts finds the same."""
    if not measure.is_area:
        return describe_points(after, before, decimals=decimals)
    places = decimals + 2
    difference = round(round(after, places) - round(before, places), places)
    return f"{'−' if difference < 0 else '+'}{abs(difference):.{places}f}"
