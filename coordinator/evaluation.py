"""The model of a state: measured on the coordinator's images, and written out for others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from common import batch_norm
from common.config import canonical_json
from common.durable import write_durably
from common.evaluation import Evaluation, evaluate
from common.exchange import Environment, Tensors
from common.tensors import load_into

__all__ = ["build_with", "export_model", "measure_model", "metrics_of"]


def build_with(environment: Environment, parameters: Tensors, statistics: Tensors) -> nn.Module:
    """The study's network with these parameters and static batch-norm statistics, on the study's device."""
    model = environment.build_model()
    load_into(model, parameters)
    batch_norm.load(model, statistics)
    return model.to(environment.device)


def measure_model(environment: Environment, classes: tuple[str, ...], parameters: Tensors,
                  statistics: Tensors) -> dict[str, float]:
    """Metrics on the test set, and "validation_accuracy" on the validation set; {} where there are no such sets, and
    as long as nobody has measured the batch-norm statistics that the network needs (round 0 of a study where silos do).
    """
    test, validation = environment.data.test, environment.data.validation
    if test is None and validation is None:
        return {}
    if not statistics and batch_norm.layers_of(environment.build_model()):
        return {}
    model = build_with(environment, parameters, statistics)
    metrics: dict[str, float] = {}
    if test is not None:
        metrics |= metrics_of(evaluate(model, test, form=environment.image, progress=environment.report), classes)
    if validation is not None:
        metrics["validation_accuracy"] = evaluate(model, validation, form=environment.image).accuracy
    return metrics


def metrics_of(evaluation: Evaluation, classes: tuple[str, ...]) -> dict[str, float]:
    """"accuracy", "loss", "balanced_accuracy", and "recall/<class>" for each class that occurs.

    A number that is not finite (the loss of logits that overflow) is left out: it has no place in JSON.
    """
    metrics = {"accuracy": evaluation.accuracy, "loss": evaluation.loss,
               "balanced_accuracy": evaluation.balanced_accuracy}
    metrics |= {f"recall/{name}": recall
                for name, recall in zip(classes, evaluation.per_class_recall, strict=True) if recall is not None}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def export_model(path: Path, parameters: Tensors, statistics: Tensors, *, facts: Mapping[str, Any]) -> None:
    """Writes a safetensors file, atomically: the tensors by their names in the model, and facts as JSON.

    Static batch-norm statistics are "<layer>.mean" and "<layer>.var". The metadata has one entry, "semisilo", since the
    order of several is not fixed and equal models are to give equal bytes.
    """
    assert not parameters.keys() & statistics.keys(), "a parameter is called like a batch-norm statistic"
    tensors: dict[str, Tensor] = {name: tensor.detach().cpu().contiguous()
                                  for name, tensor in (*parameters.items(), *statistics.items())}
    write_durably(path, save(tensors, metadata={"semisilo": canonical_json(dict(facts))}))
