"""What stands in a model's file besides its numbers: the same whether a study writes the file at its end or an export
does.

Tests: tests/coordinator/export/test_export.py, tests/semisilo/simulation/test_multi_label.py.
"""

from __future__ import annotations

from dataclasses import replace

from semisilo.common.data.image_set import ImageSet
from semisilo.common.models.exported import ModelFacts, inference_settings
from semisilo.coordinator.ledger.records import LABELS_ALONE, FrozenStudy
from semisilo.coordinator.strategies.parts.labelled_hints import prior_of_labels_alone, training_prior
from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["model_facts"]


def model_facts(study: str, config: StudyConfig, frozen: FrozenStudy, labelled: ImageSet | None, *, state: str,
                round: int | None = None, alone_adjusted: bool | None = None) -> ModelFacts:
    """The facts of a model of a study.

    Args:
        labelled: the coordinator's labelled images; None without any.
        state: SHA-256, hex, of the state, or of the file of labels alone.
        round: whose model it is; None where that is not known, and of labels alone.
        alone_adjusted: where the model is that of labels alone, whether these were trained with logit adjustment; else
            None.
    """
    classes, is_alone = len(frozen.classes), alone_adjusted is not None
    return ModelFacts(
        model=inference_settings(replace(config.model, classes=frozen.classes)), image=frozen.image, study=study,
        method=LABELS_ALONE if is_alone else config.method.name, round=None if is_alone else round,
        state=state, task=frozen.task, ranges=frozen.ranges,
        training_prior=training_prior(config.method.settings, labelled, classes) if alone_adjusted is None else
        prior_of_labels_alone(labelled, classes, adjusted=alone_adjusted))
