"""The accuracy of a model class by class: recall with its interval, and which classes it takes for which others.

Tests: tests/coordinator/monitoring/results/test_by_class.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semisilo.common.measures.intervals import Interval, wilson
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import confusion_of
from semisilo.coordinator.ledger.records import RoundHead, StudyRow

__all__ = ["ByClass", "ClassLine", "Mistake", "by_class", "by_class_of_study"]

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
class ByClass:
    """The model of one round on the test images, class by class."""

    round: int
    handed_over: bool
    """Whether it is the round that the study hands over as things stand."""
    classes: tuple[ClassLine, ...]
    """In label order."""
    confusion: tuple[tuple[int, ...], ...]
    """(K, K), confusion[true][predicted], in images; () where it was not kept: the round was committed by an earlier
    version, or there are very many classes."""
    mistakes: tuple[Mistake, ...]
    """The most frequent ones, most images first; () likewise."""


def by_class(classes: Sequence[str], metrics: Mapping[str, float], *, images: Sequence[int],
             confusion: Sequence[Sequence[int]], round: int, handed_over: bool = False) -> ByClass | None:
    """The classes of one model.

    Args:
        classes: names in label order.
        metrics: of the round; "recall/<class>" counts where there is no confusion.
        images: test images of each class; () where that is not known.
        confusion: (K, K) counts; () where it is not known.
    Returns: None where no class was measured.
    """
    rows = [tuple(row) for row in confusion] if len(confusion) == len(classes) else []
    lines = []
    for label, name in enumerate(classes):
        count = sum(rows[label]) if rows else images[label] if len(images) == len(classes) else None
        found = (rows[label][label] / count if count else None) if rows else metrics.get(f"recall/{name}")
        interval = None if found is None or not count else wilson(_whole(found * count), count)
        lines.append(ClassLine(name=name, images=count, recall=found, interval=interval))
    if all(line.recall is None for line in lines):
        return None
    return ByClass(round=round, handed_over=handed_over, classes=tuple(lines), confusion=tuple(rows),
                   mistakes=_mistakes(classes, rows))


def _whole(value: float) -> int:
    """A recall times its images is a whole number up to the last digits of a float."""
    return int(value + 0.5)


def _mistakes(classes: Sequence[str], rows: Sequence[Sequence[int]]) -> tuple[Mistake, ...]:
    found = [Mistake(true=classes[true], predicted=classes[predicted], images=count, share=count / sum(row))
             for true, row in enumerate(rows) for predicted, count in enumerate(row) if count and true != predicted]
    return tuple(sorted(found, key=lambda each: -each.images)[:_MOST_MISTAKES])


def by_class_of_study(ledger: Ledger, row: StudyRow, last: RoundHead | None, *, chosen: RoundHead | None
                      ) -> ByClass | None:
    """The classes of the model of a study that counts now: of the last committed round while it runs, of the round that
    is handed over once it is over; None before the first, and without test images.

    Args:
        last: the last committed round with silos.
        chosen: the round that is handed over as things stand.
    """
    shown = chosen if row.ended_unix is not None and chosen is not None else last or chosen
    if shown is None or row.frozen is None:
        return None
    return by_class(row.classes, shown.metrics, images=row.frozen.test_images, round=shown.number,
                    confusion=confusion_of(ledger, row.name, shown.number),
                    handed_over=chosen is not None and shown.number == chosen.number)
