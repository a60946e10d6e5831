"""How often the answer to one class is right and wrong, in images.

Without numpy: `coordinator status` needs no more than these counts, and starts in a fifth less of its time.

Tests: tests/common/measures/test_multi_label.py
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClassCounts"]


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """How often the answer to one class is right and wrong at a cut-off, in images."""

    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """True positives, false negatives, false positives, true negatives."""
        return self.true_positives, self.false_negatives, self.false_positives, self.true_negatives

    @property
    def images(self) -> int:
        """Of all images."""
        return self.with_class + self.without_class

    @property
    def with_class(self) -> int:
        """Images that show it."""
        return self.true_positives + self.false_negatives

    @property
    def without_class(self) -> int:
        """Images that do not."""
        return self.false_positives + self.true_negatives

    @property
    def predicted(self) -> int:
        """Images that are answered with it."""
        return self.true_positives + self.false_positives

    @property
    def precision(self) -> float | None:
        """Share of the images that are answered with it that show it; None without any."""
        return self.true_positives / self.predicted if self.predicted else None

    @property
    def sensitivity(self) -> float | None:
        """Share of the images with the class that are found; None without any."""
        return self.true_positives / self.with_class if self.with_class else None

    @property
    def specificity(self) -> float | None:
        """Share of the images without it that are answered so; None without any."""
        return self.true_negatives / self.without_class if self.without_class else None
