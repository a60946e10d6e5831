"""The accuracy of a model class by class: recall with its interval, and which classes it takes for which others; where
images may have several labels or none, areas under the curve, and what is found and spared at a probability of 0.5.

Tests: tests/coordinator/monitoring/results/test_by_class.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from semisilo.common.measures.class_counts import ClassCounts
from semisilo.common.measures.independent_images import IndependentImages, by_what
from semisilo.common.measures.intervals import Interval, area_interval, precision_interval, share_interval
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import confusion_of
from semisilo.coordinator.ledger.records import RoundHead, StudyRow
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.studies.model_choice import ChoiceFacts

__all__ = ["ByClass", "ClassLine", "FindingLine", "Mistake", "by_class", "by_class_of_study"]

_MOST_MISTAKES = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassLine:
    """One class of a study."""

    name: str
    images: int | None
    """Test images of it; None where that is not known."""
    recall: float | None
    """Share of them that the model finds; None without any."""
    interval: Interval | None
    """Wilson's, of 95 %; None where the number of images is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """Images of one class that a model takes for another."""

    true: str
    predicted: str
    images: int
    share: float
    """Of the images of `true`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingLine:
    """One class of a study whose images may show several or none: a question of its own. Intervals are of 95 %; None
    where the images were not counted, as in a round that an earlier version has committed."""

    name: str
    images: int | None
    """Test images that show it."""
    others: int | None
    """That do not; those of which it is not known are neither."""
    auroc: float | None
    auroc_interval: Interval | None
    average_precision: float | None
    average_precision_interval: Interval | None
    calibration_error: float | None
    found: int | None
    """Of `images`, those with a probability of at least 0.5; so are the next ones."""
    missed: int | None
    falsely_found: int | None
    """Of `others`."""
    spared: int | None
    sensitivity: float | None
    sensitivity_interval: Interval | None
    specificity: float | None
    specificity_interval: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ByClass:
    """The model of one round on the test images, class by class."""

    round: int
    """0 of labels alone."""
    handed_over: bool
    """Whether it is the model that the study hands over as things stand."""
    classes: tuple[ClassLine, ...]
    """In label order."""
    confusion: tuple[tuple[int, ...], ...]
    """(K, K), confusion[true][predicted], in images; () where it was not kept: the round was committed by an earlier
    version, or there are very many classes."""
    mistakes: tuple[Mistake, ...]
    """The most frequent ones, most images first; () likewise."""
    findings: tuple[FindingLine, ...] = ()
    """In label order, where images may have several labels or none; there is then no confusion of classes."""
    images: int | None = None
    """Test images, where they may have several labels or none; None where an image has one class."""
    labels_alone: bool = False
    """Whether it is no round but labels alone."""
    intervals_by: str = "by image"
    """What the intervals go by, for a person: "by image", or "by patient (20 patients)"."""


def by_class(classes: Sequence[str], metrics: Mapping[str, float], *, images: Sequence[int],
             confusion: Sequence[Sequence[int]], round: int, handed_over: bool = False, findings_of: int | None = None,
             independent: IndependentImages | None = None) -> ByClass | None:
    """The classes of one model.

    Args:
        classes: names in label order.
        metrics: of the round; "recall/<class>" counts where there is no confusion.
        images: test images of each class; () where that is not known.
        confusion: (K, K) counts; () where it is not known.
        findings_of: how many test images there are, where they may have several labels or none; `confusion` is then
            (K, 4) counts of true positives, false negatives, false positives and true negatives.
        independent: what the test images are worth where several are of one patient.
    Returns: None where no class was measured.
    """
    if findings_of is not None:
        return _by_finding(classes, metrics, confusion=confusion, round=round, handed_over=handed_over,
                           images=findings_of, independent=independent)
    rows = [tuple(row) for row in confusion] if len(confusion) == len(classes) else []
    lines = []
    for label, name in enumerate(classes):
        count = sum(rows[label]) if rows else images[label] if len(images) == len(classes) else None
        found = (rows[label][label] / count if count else None) if rows else metrics.get(f"recall/{name}")
        interval = None if found is None or not count else share_interval(
            found, count, None if independent is None else independent.by_class[label])
        lines.append(ClassLine(name=name, images=count, recall=found, interval=interval))
    if all(line.recall is None for line in lines):
        return None
    return ByClass(round=round, handed_over=handed_over, classes=tuple(lines), confusion=tuple(rows),
                   mistakes=_mistakes(classes, rows), intervals_by=by_what(independent))


def _by_finding(classes: Sequence[str], metrics: Mapping[str, float], *, confusion: Sequence[Sequence[int]], round: int,
                handed_over: bool, images: int, independent: IndependentImages | None) -> ByClass | None:
    rows: list[ClassCounts | None] = [ClassCounts(*row) for row in confusion] if len(confusion) == len(classes) else \
        [None] * len(classes)
    found = [_finding_line(name, metrics, row, *((None, None) if independent is None else (
        independent.by_class[label], independent.without[label])))
        for label, (name, row) in enumerate(zip(classes, rows, strict=True))]
    if all(line.auroc is None and line.sensitivity is None for line in found):
        return None
    lines = tuple(ClassLine(name=line.name, images=line.images, recall=line.sensitivity,
                            interval=line.sensitivity_interval) for line in found)
    return ByClass(round=round, handed_over=handed_over, classes=lines, confusion=(), mistakes=(),
                   findings=tuple(found), images=images, intervals_by=by_what(independent))


def _finding_line(name: str, metrics: Mapping[str, float], row: ClassCounts | None, inside: float | None,
                  outside: float | None) -> FindingLine:
    """
    Args:
        inside: how many independent ones the images that show it are worth; None: as many as they are.
        outside: likewise those that do not.
    """
    area, precision = metrics.get(f"auroc/{name}"), metrics.get(f"average_precision/{name}")
    return FindingLine(
        name=name, images=None if row is None else row.with_class, others=None if row is None else row.without_class,
        auroc=area, auroc_interval=None if row is None or area is None or not row.with_class or not row.without_class
        else area_interval(area, inside=inside or row.with_class, outside=outside or row.without_class),
        average_precision=precision, average_precision_interval=None if row is None or precision is None else
        precision_interval(precision, inside=inside or row.with_class),
        calibration_error=metrics.get(f"calibration_error/{name}"),
        found=None if row is None else row.true_positives, missed=None if row is None else row.false_negatives,
        falsely_found=None if row is None else row.false_positives, spared=None if row is None else row.true_negatives,
        sensitivity=metrics.get(f"recall/{name}") if row is None else row.sensitivity,
        sensitivity_interval=None if row is None else share_interval(row.sensitivity, row.with_class, inside),
        specificity=None if row is None else row.specificity,
        specificity_interval=None if row is None else share_interval(row.specificity, row.without_class, outside))


def _mistakes(classes: Sequence[str], rows: Sequence[Sequence[int]]) -> tuple[Mistake, ...]:
    found = [Mistake(true=classes[true], predicted=classes[predicted], images=count, share=count / sum(row))
             for true, row in enumerate(rows) for predicted, count in enumerate(row) if count and true != predicted]
    return tuple(sorted(found, key=lambda each: -each.images)[:_MOST_MISTAKES])


def by_class_of_study(ledger: Ledger, row: StudyRow, rounds: Sequence[RoundHead], choice: ChoiceFacts
                      ) -> ByClass | None:
    """The classes of the model of a study that counts now: of the last committed round while it runs; once it is over,
    of the round that is handed over, or of labels alone where these are and were measured by class. None before the
    first, and without test images.

    Args:
        rounds: all of them, in order.
        choice: the study's, of the same rounds.
    """
    if row.frozen is None:
        return None
    over = row.ended_unix is not None
    if over and choice.labels_alone and row.baseline is not None:
        alone = by_class(row.classes, row.baseline.metrics, images=row.frozen.test_images, confusion=(), round=0,
                         handed_over=True, findings_of=row.frozen.findings_of,
                         independent=row.frozen.test_counts.independent)
        if alone is not None:
            return replace(alone, labels_alone=True)
    chosen = next((each for each in rounds if each.number == choice.round), None)
    last = next((each for each in reversed(rounds) if each.state is RoundState.COMPLETED and each.number > 0), None)
    shown = chosen if over and chosen is not None else last or chosen
    if shown is None:
        return None
    return by_class(row.classes, shown.metrics, images=row.frozen.test_images, round=shown.number,
                    confusion=confusion_of(ledger, row.name, shown.number), findings_of=row.frozen.findings_of,
                    handed_over=not choice.labels_alone and shown.number == choice.round,
                    independent=row.frozen.test_counts.independent)
