"""When updates may be added up behind masks, and what is said where they may not."""

from __future__ import annotations

import pytest

from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.parts.privacy import PrivacySettings
from semisilo.common.methods.parts.secure_sum import threshold_of
from semisilo.coordinator.studies.study_file import config_from_dict

STUDY = {
    "study": {"rounds": 2, "start_with": 3, "seed": 7},
    "data": {"labelled": "digits", "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}},
    "method": {"name": "semifl"}, "privacy": {"secure_aggregation": True}}


@pytest.mark.parametrize(("threshold", "min_silos", "asked", "wanted"), [
    (0, 3, 3, 3), (0, 3, 4, 3), (0, 3, 10, 7), (0, 3, 32, 22), (5, 3, 10, 5), (0, 8, 9, 8), (3, 4, 10, 4)])
def test_the_threshold_is_more_than_two_thirds(threshold: int, min_silos: int, asked: int, wanted: int) -> None:
    assert threshold_of(threshold, min_silos, asked) == wanted


@pytest.mark.parametrize("method", ["semifl", "fedavg", "fedprox", "self_training"])
def test_methods_that_average_have_it(method: str) -> None:
    config = config_from_dict({**STUDY, "method": {"name": method}}, where="study.toml")
    assert config.privacy.secure_aggregation


@pytest.mark.parametrize(("other", "text"), [
    ({"method": {"name": "fedmatch"}}, "the method fedmatch: it computes with each silo's update by itself"),
    ({"method": {"name": "fednova", "scenario": "labels-at-silo"}, "data": {
        "classes": ["a", "b"], "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}}}, "method fednova"),
    ({"method": {"name": "semifl", "weighting": "fedfreq"}}, 'weighting = "fedfreq"'),
    ({"robust": {"rule": "norm_clipping"}}, 'rule = "norm_clipping", which looks at each update'),
    ({"wire": {"uplink": "top-k 1%"}}, "a lossy \\[wire\\] uplink"),
    ({"study": {**STUDY["study"], "local_accuracy": True}}, "local_accuracy"),  # type: ignore[dict-item]
    ({"participation": {"silos_per_round": 33}}, "up to 32 silos"),
])
def test_what_looks_at_single_updates_is_refused_by_name(other: dict[str, object], text: str) -> None:
    with pytest.raises(BadConfiguration, match=text) as caught:
        config_from_dict({**STUDY, **other}, where="study.toml")
    assert "study.toml: [privacy]: secure_aggregation is" in caught.value.text


@pytest.mark.parametrize(("wrong", "text"), [
    ({"min_silos": 2}, "min_silos = 2: must be between 3 and 32"), ({"threshold": 2}, "threshold = 2"),
    ({"word_bits": 15}, "word_bits = 15"), ({"threshold": 33}, "threshold = 33")])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PrivacySettings(secure_aggregation=True, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("unused", [{"min_silos": 4}, {"threshold": 3}, {"word_bits": 24}])
def test_settings_without_effect_are_refused(unused: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has no effect without secure_aggregation = true"):
        PrivacySettings(**unused)  # type: ignore[arg-type]
