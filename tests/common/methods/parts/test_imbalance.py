"""Settings against imbalance: off by default, refused where they contradict each other or would do nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods import METHODS
from semisilo.common.methods.parts.imbalance import LABELLED_HINTS, ImbalanceSettings, check_class_prior
from tests.each_of import each_of

ALL = sorted(METHODS.keys() - {"self_training"})
"""Self-training has what it needs of them built in, and on."""
OFF = {field.name: field.default for field in dataclasses.fields(ImbalanceSettings)}
WITH_THRESHOLDS = ["fedmatch", "fedmix", "fedrgd", "fedsgd", "semifl"]


@each_of("method", ALL)
def test_every_method_has_them_and_they_are_off(method: str) -> None:
    settings = METHODS[method].settings()
    assert isinstance(settings, ImbalanceSettings)
    assert {name: getattr(settings, name) for name in OFF} == OFF
    assert set(LABELLED_HINTS) <= set(METHODS[method].set_by_strategy), "no person may set them"


def _refused(method: str, **settings: Any) -> str:
    with pytest.raises(BadConfiguration) as raised:
        from_dict(METHODS[method].settings, settings)
    return raised.value.text


@each_of("method", ALL)
@each_of(("settings", "says"), [
    ({"logit_adjustment": -1}, "at least 0"),
    ({"logit_adjustment": 1.0, "labelled_sampling": "class_balanced"}, "correct twice"),
    ({"alignment_strength": 0.5}, "alignment_strength = 0.5: not used"),
    ({"class_prior": [0.5, 0.5]}, "class_prior"),
    ({"alignment_strength": 1.5}, "alignment_strength"), ({"alignment_strength": 0.0}, "above 0")])
def test_what_contradicts_itself_or_does_nothing_is_refused(method: str, settings: dict[str, Any], says: str) -> None:
    assert says in _refused(method, **settings)


@each_of(("prior", "says"), [
    ((), "needs class_prior"), ((0.5, 0.4), "sum to 0.9"), ((1.0, 0.0), "above 0"), ((1.5, -0.5), "above 0")])
def test_a_stated_prior_is_shares_that_make_1(prior: tuple[float, ...], says: str) -> None:
    assert says in _refused("semifl", distribution_alignment="stated", class_prior=list(prior))


def test_a_stated_prior_has_a_share_for_every_class_of_the_study() -> None:
    settings = METHODS["semifl"].settings(distribution_alignment="stated", class_prior=(0.5, 0.5))
    check_class_prior(settings, ("a", "b"))
    with pytest.raises(BadConfiguration, match="2 shares, not 3") as raised:
        check_class_prior(settings, ("a", "b", "c"))
    assert "a, b, c" in (raised.value.remedy or "")
    check_class_prior(object(), ("a",))


@each_of(("objective", "setting"), [
    ("sl", {"distribution_alignment": "uniform"}), ("sl", {"thresholds": "relative"}),
    ("mean_teacher", {"distribution_alignment": "uniform"}), ("mean_teacher", {"thresholds": "relative"}),
    ("pseudo_label", {"thresholds": "relative"})])
def test_objectives_refuse_what_they_have_no_use_for(objective: str, setting: dict[str, Any]) -> None:
    assert f'objective = "{objective}"' in _refused("fedavg", objective=objective, **setting)


def test_fed_shvr_has_no_threshold_and_fedsgds_silos_no_statistics() -> None:
    assert "soft" in _refused("fed_shvr", thresholds="relative")
    assert "statistics" in _refused("fedsgd", scenario="labels-at-silo", thresholds="relative")


@each_of("method", WITH_THRESHOLDS)
def test_relative_to_a_threshold_of_0_is_refused(method: str) -> None:
    assert "confidence_threshold of 0" in _refused(method, confidence_threshold=0.0, thresholds="relative")


@pytest.mark.parametrize("method", ["fedmatch", "fedmix", "fedrgd", "semifl"])
@pytest.mark.parametrize("setting", [{"logit_adjustment": 1.0}, {"labelled_sampling": "class_balanced"}])
def test_a_coordinator_that_does_not_train_refuses_settings_of_its_labels(method: str, setting: dict[str, Any]) -> None:
    assert "coordinator_epochs = 0" in _refused(method, coordinator_epochs=0, **setting)


@each_of("method", ["semifl", "fedmix", "fedmatch"])
def test_they_survive_ledger_and_task(method: str) -> None:
    given = {"distribution_alignment": "stated", "class_prior": [0.25, 0.75], "thresholds": "class_relative",
             "labelled_confidence": 0.5, "labelled_class_confidence": [0.1, -1.0], "labelled_prior": [0.2, 0.8]}
    before = from_dict(METHODS[method].settings, given)
    after = from_dict(METHODS[method].settings, to_dict(before))
    assert after == before
    assert canonical_json(after) == canonical_json(before)
