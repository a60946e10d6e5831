"""What an image's label is, and what follows for a method's settings: one class, or several findings and none.

A study says it once, in [study] task; it travels as a setting of the method, so that a silo of a version that does not
know it refuses the task by name, and so that everything that is trained or labelled has it at hand.

Tests: tests/common/methods/parts/test_label_task.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.errors import BadConfiguration

__all__ = ["LabelTask", "LabelTaskSettings", "check_class_weights", "is_multi_label", "refused_task"]

LabelTask = Literal["single_label", "multi_label"]
"""Of an image one class; or any number of findings, also none. The field's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelTaskSettings:
    """To be inherited by the settings of methods."""

    task: LabelTask = field(default="single_label", metadata=ABSENT_AT_DEFAULT)
    """[study] task, which a study file has there and not in [method]: an image has one class, or several findings or
    none."""
    negative_threshold: float | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """With task = "multi_label": a class counts as absent from an unlabelled image where its probability is at most
    this, and as shown where it is at least `confidence_threshold`; between the two nothing is learnt of it. Left out: 1
    - confidence_threshold."""
    class_weights: tuple[float, ...] | str = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Weights in the loss of labelled images, wherever labels are. One class for an image: of its class; "balanced" is
    N / (K N_c), as scikit-learn has it. Several findings: of a class where it is shown, against 1 where it is not
    (`pos_weight`); "balanced" is N_without / N_with. Or a number above 0 for every class, in label order."""

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels or none."""
        return self.task == "multi_label"

    @property
    def weighs_classes(self) -> bool:
        """Whether there are class weights."""
        return self.class_weights not in ((), "")

    def check_label_task(self, *, threshold: float, makes_labels: bool = True, no_class_weights: str = "") -> None:
        """Refuses what is out of range or would have no effect.

        Args:
            threshold: of the method, that a shown class must reach.
            makes_labels: whether unlabelled images get labels at all.
            no_class_weights: why class weights have no effect, such as "Fed-SHVR"; empty where they have.
        Raises: ValueError, naming the setting.
        """
        if self.negative_threshold is not None:
            if not self.multi_label or not makes_labels:
                raise ValueError(f"negative_threshold = {self.negative_threshold}: not used "
                                 + ('with task = "single_label"' if not self.multi_label else
                                    "where no pseudo-labels are made") + ". Leave it out.")
            if not 0 <= self.negative_threshold < threshold:
                raise ValueError(f"negative_threshold = {self.negative_threshold}: must be at least 0 and below"
                                 f" confidence_threshold = {threshold:g}.")
        if self.multi_label and makes_labels and self.negative_threshold is None and threshold <= 0.5:
            raise ValueError(f"confidence_threshold = {threshold:g}: with several labels for an image it must be above"
                             " 0.5, or give negative_threshold as well: what a class's probability may be at most where"
                             " the image does not show it.")
        if isinstance(self.class_weights, str):
            if self.class_weights not in ("", "balanced"):
                raise ValueError(f'class_weights = "{self.class_weights}": give "balanced", or a number for every'
                                 " class.")
        elif not all(weight > 0 and math.isfinite(weight) for weight in self.class_weights):
            raise ValueError(f"class_weights = {list(self.class_weights)}: every weight must be above 0 and finite.")
        if self.weighs_classes and no_class_weights:
            raise ValueError(f"class_weights: not used with {no_class_weights}. Leave it out.")

    def negative_below(self, threshold: float) -> float:
        """`negative_threshold`, or what it is where it is left out."""
        return 1.0 - threshold if self.negative_threshold is None else self.negative_threshold


def is_multi_label(settings: object) -> bool:
    """Whether images have several labels or none, by the settings of any method or by the JSON of them."""
    if isinstance(settings, Mapping):
        return settings.get("task") == "multi_label"
    return isinstance(settings, LabelTaskSettings) and settings.multi_label


def check_class_weights(settings: object, classes: Sequence[str]) -> None:
    """Whether there is a weight for every class of the study, where weights are given as numbers.

    Args:
        settings: of any method; those without class weights pass.
    Raises: BadConfiguration.
    """
    weights = settings.class_weights if isinstance(settings, LabelTaskSettings) else ()
    if weights and not isinstance(weights, str) and len(weights) != len(classes):
        raise BadConfiguration(f"[method] class_weights has {len(weights)} numbers, not {len(classes)}.",
                               remedy=f'Give one for each of: {", ".join(classes)}; or "balanced".')


def refused_task(task: LabelTask, *, method: str, tasks: Collection[LabelTask], others: Sequence[str],
                 rule: str = "none", local_accuracy: bool = False) -> str:
    """Why a study cannot have this task, with what to do; empty when it can.

    Args:
        method: its name.
        tasks: that it is defined for.
        others: names of the methods that are defined for this one.
        rule: of table [robust].
        local_accuracy: of table [study].
    """
    if task not in tasks:
        return f'task = "{task}" is not defined for the method {method}. It is for: {", ".join(others)}.'
    if task == "multi_label":
        if rule == "judge":
            return ('task = "multi_label": [robust] rule = "judge" balances its images by the one class that each has.'
                    " Choose another rule.")
        if local_accuracy:
            return ('task = "multi_label": local_accuracy = true has no meaning, there is no accuracy of images with'
                    " several labels. Leave it out.")
    return ""
