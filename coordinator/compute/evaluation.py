"""The model of a state: measured on the coordinator's images, and written out for others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from semisilo.common.errors import SemisiloError
from semisilo.common.learning import batch_norm
from semisilo.common.learning.evaluation import (
    AnyEvaluation,
    Evaluation,
    MultiLabelEvaluation,
    evaluate,
    evaluate_classes,
)
from semisilo.common.learning.tensors import load_into
from semisilo.common.measures.findings import thresholds_for
from semisilo.common.measures.independent_images import patient_keys
from semisilo.common.measures.paired import paired_interval
from semisilo.common.measures.study_measure import (
    ACCURACY,
    AUROC,
    AVERAGE_PRECISION,
    BALANCED_ACCURACY,
    VALIDATION_PREFIX,
    StudyMeasure,
    score_of,
    tells_class,
    why_not_for,
)
from semisilo.common.methods.contract import Environment, Strategy, TensorGroup, Tensors
from semisilo.common.models.exported import ModelFacts, logits_of, write_model
from semisilo.coordinator.compute.messages import Compared

__all__ = ["MOST_CONFUSED_CLASSES", "MOST_LABELLED", "LocalModels", "MeasuredModel", "UpdateObserver", "build_with",
           "compare_models",
           "diagnostics_of", "export_model", "measurable", "measure_model", "metrics_of", "selection_of"]

MOST_LABELLED = 10_000
"""Larger labelled sets are not measured in every round."""
MOST_CONFUSED_CLASSES = 64
"""Of studies with more classes no confusion matrix is kept: one of 64 classes has some 8 kB for every round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModel:
    """What was measured of one model."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Finite numbers by name."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """(K, K), confusion[true][predicted], in test images; () without test images, and for more than
    `MOST_CONFUSED_CLASSES` classes. Where images may have several labels or none (K, 4), whatever their number: of each
    class true positives, false negatives, false positives and true negatives at a probability of 0.5."""


def build_with(environment: Environment, parameters: Tensors, statistics: Tensors) -> nn.Module:
    """The study's network with these parameters and static batch-norm statistics, on the study's device."""
    model = environment.build_model()
    load_into(model, parameters)
    batch_norm.load(model, statistics)
    return model.to(environment.device)


def measure_model(environment: Environment, classes: tuple[str, ...], parameters: Tensors,
                  statistics: Tensors, *, measure: StudyMeasure = ACCURACY) -> MeasuredModel:
    """Metrics and confusion on the test set; the same metrics on the validation set, called "validation_...", with
    `selection_of`; and "labelled_accuracy" (of images with several labels "labelled_auroc") on the labelled one (of at
    most `MOST_LABELLED` images), which falls when a method forgets what the labels have taught.

    Nothing where there are no such sets, and as long as nobody has measured the batch-norm statistics that the network
    needs (round 0 of a study where silos do).
    """
    test, validation, labelled = environment.data.test, environment.data.validation, environment.data.labelled
    if labelled is not None and not 0 < len(labelled) <= MOST_LABELLED:
        labelled = None
    if test is None and validation is None and labelled is None:
        return MeasuredModel()
    model = measurable(environment, parameters, statistics)
    if model is None:
        return MeasuredModel()
    metrics: dict[str, float] = {}
    confusion: tuple[tuple[int, ...], ...] = ()
    if test is not None:
        on_test = evaluate(model, test, form=environment.image, progress=environment.report)
        metrics |= metrics_of(on_test, classes)
        if isinstance(on_test, Evaluation) and len(classes) <= MOST_CONFUSED_CLASSES:
            confusion = on_test.confusion
        elif isinstance(on_test, MultiLabelEvaluation):
            confusion = tuple(each.counts for each in on_test.class_counts)
    if validation is not None:
        on_validation = evaluate(model, validation, form=environment.image)
        metrics |= {f"{VALIDATION_PREFIX}{name}": value
                    for name, value in metrics_of(on_validation, classes).items()}
        metrics |= selection_of(on_validation, classes, measure)
    if labelled is not None:
        on_labelled = evaluate(model, labelled, form=environment.image)
        if isinstance(on_labelled, Evaluation):
            metrics["labelled_accuracy"] = on_labelled.accuracy
        elif on_labelled.areas.macro is not None:
            metrics["labelled_auroc"] = on_labelled.areas.macro
    return MeasuredModel(metrics=metrics, confusion=confusion)


def compare_models(environment: Environment, classes: tuple[str, ...], first: tuple[Tensors, Tensors],
                   second: tuple[Tensors, Tensors], *, measure: StudyMeasure) -> Compared:
    """Intervals of what the first model is better by than the second on the test images: of the study's measure and of
    those that studies are compared by.

    Args:
        first: its parameters and statistics.
    Returns: no intervals without test images, and where a model cannot be measured (as `measurable`), or gives logits
        that are not finite.
    """
    test = environment.data.test
    models = [measurable(environment, *each) for each in (first, second)]
    if test is None or test.labels_N is None or not len(test) or models[0] is None or models[1] is None:
        return Compared(patients=0, intervals={})
    logits = [logits_of(model.eval(), test.images_NCHW, environment.image, progress=environment.report)
              .float().cpu().numpy() for model in models if model is not None]
    labels_N, intervals = test.labels_N.numpy(), {}
    for each in dict.fromkeys((measure, ACCURACY, BALANCED_ACCURACY, AUROC, AVERAGE_PRECISION)):
        if not why_not_for(each, multi_label=labels_N.ndim == 2) and (found := paired_interval(
                each, logits[0], logits[1], labels_N, classes=classes, patients=test.patients)) is not None:
            intervals[str(each)] = found
    patients = len(set(patient_keys(test.patients)))
    return Compared(patients=patients if patients < len(test) else 0, intervals=intervals)


def diagnostics_of(strategy: Strategy[Any], state: Any) -> dict[str, float]:
    """What a strategy has to say about the round that gave a state; numbers that are not finite are left out."""
    if not hasattr(strategy, "diagnostics"):
        return {}
    found = {str(name): float(value) for name, value in strategy.diagnostics(state).items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


class UpdateObserver(Protocol):
    """Looks at the updates of a phase before they are folded, and has numbers for the round's metrics."""

    def measure(self, silo: str, state: Any, groups: Mapping[str, TensorGroup], kept: Any) -> None:
        """Looks at one update, with the state that its task was made of and what is kept for the silo."""

    def metrics(self) -> dict[str, float]:
        """What was found; finite numbers."""


class LocalModels:
    """The accuracy on the test set of the models that silos have trained, before they are averaged."""

    def __init__(self, strategy: Strategy[Any], environment: Environment) -> None:
        self._strategy = strategy
        self._environment = environment
        self._accuracies: dict[str, float] = {}

    def measure(self, silo: str, state: Any, groups: Mapping[str, TensorGroup], kept: Any) -> None:
        """Measures the model of one silo; nothing where there is no test set, or no model in its update.

        Args:
            kept: as the strategy's `fold` gets it.
        """
        test = self._environment.data.test
        if test is None or not hasattr(self._strategy, "local_model"):
            return
        try:
            parameters, statistics = self._strategy.local_model(state, groups, kept)
        except (SemisiloError, LookupError):
            return
        model = measurable(self._environment, parameters, statistics)
        if model is not None:
            self._accuracies[silo] = evaluate_classes(model, test, form=self._environment.image).accuracy

    def metrics(self) -> dict[str, float]:
        """"local_accuracy", the mean over silos, and "local_accuracy/<silo>"; {} when nothing was measured."""
        if not self._accuracies:
            return {}
        return {"local_accuracy": math.fsum(self._accuracies.values()) / len(self._accuracies),
                **{f"local_accuracy/{silo}": value for silo, value in self._accuracies.items()}}


def measurable(environment: Environment, parameters: Tensors, statistics: Tensors) -> nn.Module | None:
    """The study's network to be evaluated, or None without the batch-norm statistics that it needs."""
    if not statistics and batch_norm.layers_of(environment.build_model()):
        return None
    return build_with(environment, parameters, statistics)


def metrics_of(evaluation: AnyEvaluation, classes: tuple[str, ...]) -> dict[str, float]:
    """"accuracy", "loss", "balanced_accuracy", "auroc" (macro), "calibration_error", and for each class that occurs
    "recall/<class>" and "auroc/<class>". Of images with several labels or none no accuracy, but "average_precision"
    (macro, and by class), "calibration_error" likewise, "f1" (macro) and "exact_match", these and the recalls at 0.5.

    A number that is not finite (the loss of logits that overflow) is left out: it has no place in JSON.
    """
    if isinstance(evaluation, MultiLabelEvaluation):
        return _of_findings(evaluation, classes)
    metrics = {"accuracy": evaluation.accuracy, "loss": evaluation.loss,
               "balanced_accuracy": evaluation.balanced_accuracy}
    optional = {"auroc": evaluation.auroc, "calibration_error": evaluation.calibration_error}
    for kind, per_class in (("recall", evaluation.per_class_recall), ("auroc", evaluation.per_class_auroc)):
        optional |= {f"{kind}/{name}": value for name, value in zip(classes, per_class, strict=True)}
    metrics |= {name: value for name, value in optional.items() if value is not None}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _of_findings(evaluation: MultiLabelEvaluation, classes: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float | None] = {
        "loss": evaluation.loss, "auroc": evaluation.areas.macro,
        "average_precision": evaluation.average_precisions.macro,
        "f1": evaluation.f1.macro, "exact_match": evaluation.exact_match,
        "calibration_error": evaluation.calibration_errors.macro}
    for kind, by_class in (("recall", evaluation.sensitivity), ("auroc", evaluation.areas),
                           ("average_precision", evaluation.average_precisions),
                           ("calibration_error", evaluation.calibration_errors)):
        found |= {f"{kind}/{name}": value for name, value in zip(classes, by_class.per_class, strict=True)}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def selection_of(evaluation: AnyEvaluation, classes: tuple[str, ...], measure: StudyMeasure) -> dict[str, float]:
    """"selection_score", the study's measure on images that nothing was trained on, and "selection_error", its standard
    error: what rounds are chosen by.

    {} where it cannot be measured (no image of the class that it is about; for balanced accuracy images of one class
    alone, by which the model that always answers it would be best); for the recall of a class of a model that answers
    it to other images as often (`tells_class`); and for a model whose answers are not finite, which is never to be
    chosen.
    """
    if isinstance(evaluation, MultiLabelEvaluation):
        by_class = evaluation.areas if measure.kind == "auroc" else evaluation.average_precisions
        found = None if not evaluation.is_finite else score_of(
            measure, classes=classes, hits_K=[each.true_positives for each in evaluation.class_counts],
            images_K=[each.with_class for each in evaluation.class_counts], areas_K=by_class.per_class,
            without_K=[each.without_class for each in evaluation.class_counts])
        return {} if found is None else {"selection_score": found.value, "selection_error": found.error}
    if evaluation.calibration_error is None:
        return {}
    images_K = [sum(row) for row in evaluation.confusion]
    if measure == BALANCED_ACCURACY and sum(images > 0 for images in images_K) < 2:
        return {}
    if (label := measure.label_in(classes)) is not None and not tells_class(label, evaluation.confusion):
        return {}
    found = score_of(measure, classes=classes, hits_K=[row[label] for label, row in enumerate(evaluation.confusion)],
                     images_K=images_K, areas_K=evaluation.per_class_auroc)
    return {} if found is None else {"selection_score": found.value, "selection_error": found.error}


def export_model(path: Path, environment: Environment, parameters: Tensors, statistics: Tensors,
                 facts: ModelFacts, *, with_thresholds: bool = True) -> None:
    """Writes a model as a file of its own, atomically: see `semisilo.common.models.exported`.

    Batch-norm statistics that nobody has measured yet are not in it. Where images may have several labels, it has the
    threshold of each class with the largest F1 on validation images, as an export chooses without options; not with
    `with_thresholds` false, where those images are not the study's any more.
    """
    model = environment.build_model()
    load_into(model, parameters)
    if statistics:
        batch_norm.load(model, statistics)
    validation = environment.data.validation
    if (with_thresholds and facts.task == "multi_label" and validation is not None
            and validation.labels_N is not None and len(validation)
            and (statistics or not batch_norm.layers_of(model))):
        logits_NK = logits_of(model.to(environment.device), validation.images_NCHW, facts.image).numpy()
        if np.isfinite(logits_NK).all():  # else it is a poor model, but the study's, and it is to be written
            facts = replace(facts, thresholds=thresholds_for(logits_NK, validation.labels_N.numpy()))
    write_model(path, model, facts)
