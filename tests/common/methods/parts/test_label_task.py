"""What a study may ask of images that have several labels or none, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods import METHODS, find_method
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.fedmix import FedMixSettings
from semisilo.common.methods.parts.label_task import check_class_weights, is_multi_label, refused_task
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.methods.semifl import SemiFLSettings
from tests.each_of import each_of


@each_of(("settings", "values", "text"), [
    (FedAvgSettings, {"objective": "uda"}, 'not defined with task = "multi_label"'),
    (FedAvgSettings, {"objective": "mean_teacher"}, 'Choose "sl" or "fixmatch"'),
    (SemiFLSettings, {"labelled_sampling": "class_balanced"}, "labelled_sampling"),
    (SemiFLSettings, {"logit_adjustment": 1.0}, "logit_adjustment"),
    (SemiFLSettings, {"distribution_alignment": "uniform"}, "distribution_alignment"),
    (SemiFLSettings, {"thresholds": "relative"}, "thresholds"),
    (FedMixSettings, {"label_rule": "vote"}, "label_rule"),
    (SelfTrainingSettings, {"class_weights": "balanced"}, "class_weights"),
    (SelfTrainingSettings, {"confidence_threshold": 0.5}, "must be above 0.5"),
    (SemiFLSettings, {"negative_threshold": 0.96}, "below confidence_threshold = 0.95"),
    (FedAvgSettings, {"objective": "sl", "scenario": "labels-at-silo", "negative_threshold": 0.1},
     "no pseudo-labels are made"),
])
def test_what_has_no_meaning_with_several_labels_is_refused(settings: type[Any], values: dict[str, Any],
                                                             text: str) -> None:
    with pytest.raises(ValueError, match=text):
        settings(task="multi_label", **values)


@each_of(("values", "text"), [
    ({"negative_threshold": 0.1}, 'not used with task = "single_label"'),
    ({"class_weights": "even"}, 'give "balanced"'),
    ({"class_weights": (1.0, 0.0)}, "must be above 0"),
    ({"class_weights": "balanced", "logit_adjustment": 1.0}, "correct for the same"),
])
def test_settings_of_labels_are_checked(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SemiFLSettings(**values)


def test_a_class_is_absent_below_one_minus_the_threshold_unless_it_is_said() -> None:
    assert SemiFLSettings(task="multi_label").negative_below(0.95) == pytest.approx(0.05)
    assert SemiFLSettings(task="multi_label", negative_threshold=0.2).negative_below(0.95) == 0.2


@each_of("name", METHODS)
def test_settings_of_a_study_with_one_label_for_an_image_are_written_as_they_were(name: str) -> None:
    """Texts and digests of tasks and study cards hang on them; a version that does not know the task refuses it."""
    settings = find_method(name).settings()
    assert not {"task", "negative_threshold", "class_weights"} & set(to_dict(settings))
    assert not is_multi_label(settings)


@each_of("name", [name for name, spec in METHODS.items() if "multi_label" in spec.tasks])
def test_the_task_travels_with_the_settings(name: str) -> None:
    spec = find_method(name)
    settings: Any = from_dict(spec.settings, {"task": "multi_label"})
    assert is_multi_label(settings)
    assert to_dict(settings)["task"] == "multi_label"
    assert is_multi_label(to_dict(settings))


def test_methods_that_are_not_defined_for_several_labels_name_those_that_are() -> None:
    text = refused_task("multi_label", method="fedmatch", tasks=find_method("fedmatch").tasks,
                        others=["semifl", "fedavg"])
    assert text == 'task = "multi_label" is not defined for the method fedmatch. It is for: semifl, fedavg.'
    assert "judge" in refused_task("multi_label", method="semifl", tasks=find_method("semifl").tasks, others=[],
                                   rule="judge")
    assert not refused_task("multi_label", method="semifl", tasks=find_method("semifl").tasks, others=[])


def test_a_weight_is_needed_for_every_class() -> None:
    check_class_weights(SemiFLSettings(class_weights=(1.0, 2.0)), ("a", "b"))
    check_class_weights(SemiFLSettings(class_weights="balanced"), ("a", "b", "c"))
    with pytest.raises(BadConfiguration, match="has 2 numbers, not 3"):
        check_class_weights(SemiFLSettings(class_weights=(1.0, 2.0)), ("a", "b", "c"))
