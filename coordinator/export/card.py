"""The facts of a model card as plain JSON types: what the model is, its worth, its cost, where it comes from.

What was not measured is said so; nothing is made up in its place.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any

import numpy as np
import torch

from semisilo.common import __version__
from semisilo.common.config import to_dict
from semisilo.common.methods import MethodSpec
from semisilo.common.models.exported import ModelFacts
from semisilo.coordinator.export.calibration import BINS
from semisilo.coordinator.export.choose_model import STUDY_TEST, ChosenModel
from semisilo.coordinator.export.measures import Measures
from semisilo.coordinator.export.onnx_file import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, OnnxCheck
from semisilo.coordinator.ledger.roster import SiloRow
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.monitoring.participants import participants_of
from semisilo.coordinator.monitoring.summary import StudySummary
from semisilo.coordinator.monitoring.traffic import traffic_of

__all__ = ["CARD_FORMAT", "INTENDED_USE", "cost_facts", "limits_of", "measure_facts", "onnx_facts", "settings_shown",
           "silo_facts", "software_versions", "study_facts"]

CARD_FORMAT = 1
INTENDED_USE = (
    "Not for clinical use. This is the result of a training study, not a medical device; nobody has validated it in"
    " care, and no diagnosis or treatment may rest on it.",
    "It is for research: to compare methods and studies, and to be studied further on images of the same kind, by"
    " people who know where its training and test images came from.",
    "It answers every picture with one of its classes, also a picture that belongs to none of them.")


def settings_shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a study; of an absolute path only its last part: the rest is the coordinator's affair."""
    tables = {name: dict(table) for name, table in config.items()}
    for table, keys in _PATHS.items():
        for key in keys:
            value = tables.get(table, {}).get(key, "")
            if isinstance(value, str) and (value.startswith(("/", "~")) or PureWindowsPath(value).is_absolute()):
                tables[table][key] = re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return tables


_PATHS = {"data": ("labelled", "validation", "test"), "model": ("weights",)}


def study_facts(chosen: ChosenModel, facts: ModelFacts, spec: MethodSpec) -> dict[str, Any]:
    """Which model of which study this is."""
    frozen = chosen.study.frozen
    return {"study": facts.study, "study_state": str(chosen.study.state), "round": chosen.round.number,
            "chosen": chosen.rule, "planned_rounds": chosen.study.config["study"]["rounds"],
            "method": {"name": spec.name, "source": spec.source, "scenario": _scenario(chosen.study.config),
                       "discloses": spec.discloses},
            "network": {"name": facts.model.name, "normalisation": facts.model.normalisation_layers,
                        "parameters": None if frozen is None else frozen.num_parameters,
                        "frozen": 0 if frozen is None else frozen.num_frozen,
                        "weights_sha256": "" if frozen is None else frozen.weights_digest},
            "classes": list(facts.model.classes), "image": to_dict(facts.image)}


def _scenario(config: Mapping[str, Any]) -> str:
    return str(config.get("method", {}).get("settings", {}).get("scenario", ""))


def silo_facts(summary: StudySummary, silos: Sequence[SiloRow], *, up_to: int, names: bool) -> dict[str, Any]:
    """What the silos that were asked have announced and answered, up to a round.

    Args:
        names: False numbers them in the place of their names.
    """
    answers = {silo: part.outcomes for silo, part in participants_of(summary, up_to=up_to).items() if part.outcomes}
    known = {row.name: row for row in silos}
    rows = []
    for number, silo in enumerate(answers, 1):
        row = known.get(silo)
        rows.append({"silo": silo if names else f"silo {number}",
                     "labelled": None if row is None else row.labelled_count,
                     "unlabelled": None if row is None else row.unlabelled_count,
                     "updates": answers[silo][TaskState.UPDATED], "abstentions": answers[silo][TaskState.ABSTAINED],
                     "refusals": answers[silo][TaskState.REFUSED], "late": answers[silo][TaskState.EXPIRED]})
    return {"count": len(rows), "names_left_out": not names, "silos": rows,
            "labelled": sum(row["labelled"] or 0 for row in rows),
            "unlabelled": sum(row["unlabelled"] or 0 for row in rows)}


def measure_facts(measures: Measures, *, source: str, digest: str) -> dict[str, Any]:
    """The numbers of `measure`, with what they are."""
    return {**to_dict(measures), "source": source, "sha256_images": digest, "confidence_level": 0.95,
            "definitions": {
                "accuracy_interval": "Wilson's score interval of right / images",
                "balanced_accuracy": "mean recall of the classes that occur",
                "balanced_accuracy_interval": "percentile bootstrap, 2000 resamples within each class, named seed"
                                              " balanced_accuracy_bootstrap of the study",
                "recall_interval": "Wilson", "precision_interval": "Wilson",
                "auroc": "one class against the rest, of the class's probability; macro: mean over classes",
                "expected_error": f"expected calibration error: sum over {BINS} equal bins of the confidence of"
                                  " (images in the bin / images) x |accuracy - mean confidence|",
                "brier": "mean over images of the sum over classes of (probability - truth)^2, from 0 to 2",
                "negative_log_likelihood": "mean of -ln(probability of the true class)"}}


def onnx_facts(check: OnnxCheck) -> dict[str, Any]:
    """How the ONNX graph was checked."""
    return {**to_dict(check), "absolute_tolerance": ABSOLUTE_TOLERANCE, "relative_tolerance": RELATIVE_TOLERANCE,
            "input": "images: float32 (batch, channels, size, size), 0 to 1",
            "output": "logits: float32 (batch, classes)"}


def cost_facts(summary: StudySummary, *, up_to: int) -> dict[str, Any]:
    """Bytes from the beginning to the end of a round."""
    traffic = traffic_of((cost for cost in summary.costs if cost.round <= up_to),
                         dense_bytes=summary.traffic.dense_bytes)
    network = bool(traffic.wire or traffic.message_down or traffic.message_up)
    dense = traffic.dense_total
    return {"up_to_round": up_to, "payload_down": traffic.payload_down, "payload_up": traffic.payload_up,
            "message_down": traffic.message_down if network else None,
            "message_up": traffic.message_up if network else None,
            "wire_down": traffic.wire_down if network else None, "wire_up": traffic.wire_up if network else None,
            "wire_estimated": traffic.estimated, "dense_model": traffic.dense_bytes, "dense_total": dense,
            "downloads": traffic.downloads, "uploads": traffic.uploads,
            "updates_accepted": sum(entry.updates for entry in summary.rounds
                                    if entry.number <= up_to and entry.state is RoundState.COMPLETED),
            "payload_share_of_dense": traffic.payload_share,
            "wire_share_of_dense": traffic.share if network else None}


def software_versions() -> dict[str, str]:
    """Of what computed the numbers of the card."""
    return {"semisilo": __version__, "python": platform.python_version(), "torch": str(torch.__version__),
            "numpy": np.__version__, "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}


def limits_of(facts: Mapping[str, Any]) -> list[str]:
    """What to bear in mind with just these numbers, and what was not measured."""
    found: list[str] = []
    test, chosen = facts["test"], facts["model"]["chosen"]
    if test is None:
        found.append("The accuracy was not measured: the coordinator has no test images.")
    else:
        found.append("Intervals treat every test image as independent. Several images of one patient, or from one"
                     " device, make the true intervals wider.")
        if test["source"] == STUDY_TEST:
            found.append("The test accuracy of every round was shown while the study ran; whoever chose settings by it"
                         " has made these numbers optimistic.")
            if chosen == "best":
                found.append("This round was chosen because its accuracy on these very test images is the highest, so"
                             " that the accuracy is optimistic. Measure it on other images: --test SOURCE.")
        absent = [each["name"] for each in test["classes"] if each["images"] == 0]
        if absent:
            found.append(f"No test image is of these classes, so nothing is known of them: {', '.join(absent)}.")
        few = [each["name"] for each in test["classes"] if 0 < each["images"] < 30]
        if few:
            found.append(f"Fewer than 30 test images each are of: {', '.join(few)}; their intervals are wide.")
        if test["auroc_macro"] is None:
            found.append("No AUROC was measured: the test images are all of one class.")
        if test["temperature"] == 1.0:
            found.append("No temperature was fitted: probabilities are those of the network.")
        else:
            found.append("The temperature was fitted on the validation images, which may differ from those to come.")
    if facts["cost"]["updates_accepted"] == 0 and facts["model"]["round"] > 0:
        found.append("No update of any silo was accepted up to this round: no silo has part in this model, and what it"
                     " is worth is the coordinator's own doing.")
    if facts["labelled_only"] is None:
        found.append("Training on the coordinator's labels alone was not measured, so the gain is not known.")
    if facts["onnx"] is None:
        found.append("No ONNX graph was written.")
    elif facts["onnx"]["source"] == "random":
        found.append("The ONNX graph was compared on random images, since the coordinator has none.")
    if facts["cost"]["wire_down"] is None:
        found.append("This is a simulation: no message and no wire bytes were measured.")
    elif facts["cost"]["wire_estimated"]:
        found.append("Wire bytes are estimated from the messages: the kernel's counters could not be read.")
    found.append("Counts of silos are what they have announced; nobody has checked them, and images at silos may be in"
                 " the test set as well.")
    found.append("Not measured: differences between patients (age, sex, origin), devices, sites or over time; behaviour"
                 " on images of another kind, damaged or made to deceive; what the weights reveal of training images.")
    return found
