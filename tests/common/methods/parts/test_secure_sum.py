"""When updates may be added up behind masks, and what is said where they may not."""

from __future__ import annotations

import pytest

from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.parts.privacy import PrivacySettings
from semisilo.common.methods.parts.secure_sum import STEPS, divisor_of, sums_per_step, threshold_of, totals_of
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.each_of import each_of

STUDY = {
    "study": {"rounds": 2, "start_with": 3, "seed": 7},
    "data": {"labelled": "digits", "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}},
    "method": {"name": "semifl"}, "privacy": {"secure_aggregation": True}}


@each_of(("threshold", "min_silos", "asked", "wanted"), [
    (0, 3, 3, 3), (0, 3, 4, 3), (0, 3, 10, 7), (0, 3, 32, 22), (5, 3, 10, 5), (0, 8, 9, 8), (3, 4, 10, 4)])
def test_the_threshold_is_more_than_two_thirds(threshold: int, min_silos: int, asked: int, wanted: int) -> None:
    assert threshold_of(threshold, min_silos, asked) == wanted


AT_SILOS = {"classes": ["a", "b"], "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}}


@pytest.mark.parametrize("method", ["fednova", "fed_shvr"])
def test_methods_that_normalise_by_steps_have_it(method: str) -> None:
    config = config_from_dict({**STUDY, "method": {"name": method, "scenario": "labels-at-silo"}, "data": AT_SILOS},
                              where="study.toml")
    assert sums_per_step(config.method.settings)
    assert STEPS in totals_of(config.method.settings)


def test_plain_averages_have_no_totals() -> None:
    settings = config_from_dict(STUDY, where="study.toml").method.settings
    assert (totals_of(settings), sums_per_step(settings), divisor_of(settings, {})) == ((), False, 1.0)


def test_a_correction_needs_every_number_of_an_update() -> None:
    study = {**STUDY, "data": AT_SILOS, "privacy": {"secure_aggregation": True, "random_k": "1%"}}
    with pytest.raises(BadConfiguration, match="random_k is not possible with the method fed_shvr and these settings"):
        config_from_dict({**study, "method": {"name": "fed_shvr"}}, where="study.toml")
    config_from_dict({**study, "method": {"name": "fed_shvr", "variant": "fed_sh"}}, where="study.toml")


def test_rules_look_at_groups_of_which_there_must_be_enough() -> None:
    study = {**STUDY, "privacy": {"secure_aggregation": True, "group_size": 3},
             "robust": {"rule": "trimmed_mean", "byzantine_silos": 1}}
    config_from_dict({**study, "participation": {"silos_per_round": 9}}, where="study.toml")
    with pytest.raises(BadConfiguration, match="needs 3 updates in a round, and there are 2 groups of silos"):
        config_from_dict({**study, "participation": {"silos_per_round": 8}}, where="study.toml")
    config_from_dict({**STUDY, "privacy": {"secure_aggregation": True, "group_size": 16},
                      "participation": {"silos_per_round": 500}}, where="study.toml")


@each_of(("method", "totals"), [
    ({"name": "fed_shvr"}, ("steps", "joins", "lost")), ({"name": "fed_shvr", "variant": "fed_sh"}, ("steps",)),
    ({"name": "fed_shvr", "variant": "fed_svr"}, ("steps", "joins", "lost"))])
def test_what_a_correction_adds_up(method: dict[str, str], totals: tuple[str, ...]) -> None:
    settings = config_from_dict({**STUDY, "method": method, "data": AT_SILOS}, where="study.toml").method.settings
    assert totals_of(settings) == totals
    assert sums_per_step(settings) == (method.get("variant") != "fed_svr")
    assert divisor_of(settings, {"steps": 7.0}) == (1.0 if method.get("variant") == "fed_svr" else 7.0)


@each_of("method", ["semifl", "fedavg", "fedprox", "self_training"])
def test_methods_that_average_have_it(method: str) -> None:
    config = config_from_dict({**STUDY, "method": {"name": method}}, where="study.toml")
    assert config.privacy.secure_aggregation


@each_of(("other", "text"), [
    ({"method": {"name": "fedmatch"}}, "the method fedmatch: it computes with each silo's update by itself"),
    ({"method": {"name": "fedavg", "scenario": "labels-at-silo", "weighting": "fedfreq"}, "data": AT_SILOS},
     'weighting = "fedfreq"'),
    ({"method": {"name": "fedsgd", "scenario": "labels-at-silo"}, "data": AT_SILOS}, "the method fedsgd"),
    ({"method": {"name": "semifl", "weighting": "fedfreq"}}, 'weighting = "fedfreq"'),
    ({"robust": {"rule": "norm_clipping"}}, 'rule = "norm_clipping", which looks at each update.*group_size = 3'),
    ({"wire": {"uplink": "top-k 1%"}}, "a lossy \\[wire\\] uplink"),
    ({"study": {**STUDY["study"], "local_accuracy": True}}, "local_accuracy"),  # type: ignore[dict-item]
    ({"participation": {"silos_per_round": 33}}, "up to 32 silos in a sum"),
])
def test_what_looks_at_single_updates_is_refused_by_name(other: dict[str, object], text: str) -> None:
    with pytest.raises(BadConfiguration, match=text) as caught:
        config_from_dict({**STUDY, **other}, where="study.toml")
    assert "study.toml: [privacy]: secure_aggregation is" in caught.value.text


@each_of(("wrong", "text"), [
    ({"min_silos": 2}, "min_silos = 2: must be between 3 and 32"), ({"threshold": 2}, "threshold = 2"),
    ({"word_bits": 15}, "word_bits = 15"), ({"group_size": 17}, "group_size = 17"),
    ({"group_size": 3, "threshold": 4}, "group_size = 3: must be at least min_silos and threshold, 4"),
    ({"threshold": 33}, "threshold = 33")])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PrivacySettings(secure_aggregation=True, **wrong)  # type: ignore[arg-type]


@each_of("unused", [{"min_silos": 4}, {"threshold": 3}, {"word_bits": 24}, {"group_size": 3}])
def test_settings_without_effect_are_refused(unused: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has no effect without secure_aggregation = true"):
        PrivacySettings(**unused)  # type: ignore[arg-type]
