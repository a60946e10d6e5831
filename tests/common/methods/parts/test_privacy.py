"""Table [privacy.dp]: what is refused, in one line that says why and what to do."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from semisilo.common.config import to_dict
from semisilo.common.data.augmentation.augment import weak
from semisilo.common.data.form import AugmentationPolicy, AugmentationSettings
from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.methods import METHODS
from semisilo.common.methods.parts.privacy import (
    DifferentialPrivacy,
    contribution_of,
    noise_shares,
    shares_noise,
    spends_at_site,
)
from semisilo.common.rpc.convert import dp_from_proto, dp_to_proto
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.each_of import each_of

SAID = {"fedavg", "fedprox", "fednova"}


def study(*, method: dict[str, Any] | None = None, model: dict[str, Any] | None = None,
          numerics: dict[str, Any] | None = None, **dp: Any) -> dict[str, Any]:
    return {"study": {}, "data": {"image": {"size": 8, "channels": 1}, "classes": ["a", "b"]},
            "model": {"name": "small_cnn", "normalisation": "group", **(model or {})},
            "method": {"name": "fedavg", **(method or {})}, "numerics": numerics or {},
            "privacy": {"dp": {"noise_multiplier": 1.0} | dp}}


@each_of(("dp", "said"), [
    ({"noise_multiplier": 0.0}, "one of the two"), ({"target_epsilon": 3.0}, "one of the two"),
    ({"noise_multiplier": -1.0}, "between 0.1 and 1000"), ({"noise_multiplier": 0.01}, "between 0.1 and 1000"),
    ({"noise_multiplier": float("nan")}, "between"), ({"clip_norm": 0.0}, "above 0"),
    ({"clip_norm": float("inf")}, "finite"), ({"delta": 0.0}, "above 0 and below 1"), ({"delta": 1.0}, "below 1"),
    ({"unit": "patient"}, "not one of the choices"), ({"epsilon": 3.0}, "Did you mean 'target_epsilon'"),
    ({"unit": "silo", "noise_multiplier": 0.0, "target_epsilon": 1.0}, 'unit = "example"')])
def test_settings_that_cannot_be_are_refused_by_name(dp: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfiguration, match=r"\[privacy\] dp") as error:
        config_from_dict(study(**dp), where="study.toml")
    assert said in error.value.line()


@each_of(("method", "said"), [
    ({}, 'Set mix_weight = 0.0, silo_prior = "model", local_logit_adjustment = 0.0.'),
    ({"mix_weight": 0, "silo_prior": "model"}, "Set local_logit_adjustment = 0.0."),
    ({"scenario": "labels-at-both"}, 'use fedavg with objective = "fixmatch"')])
def test_self_training_has_it_without_what_looks_at_many_images_at_once(method: dict[str, Any], said: str) -> None:
    """One line names all that has to be set; then it is allowed, and its clip_norm stays the coordinator's."""
    with pytest.raises(BadConfiguration) as error:
        config_from_dict(study(method={"name": "self_training"} | method), where="study.toml")
    assert said in error.value.line()
    alone = {"name": "self_training", "mix_weight": 0, "silo_prior": "model", "local_logit_adjustment": 0}
    assert config_from_dict(study(method=alone), where="study.toml").privacy.dp is not None


def test_self_training_of_several_labels_does_not_begin_with_it_and_one_that_has_begun_goes_on() -> None:
    """Its silos would train FixMatch, from which several labels are not learnt; with fedavg a study may have both."""
    alone = {"name": "self_training", "mix_weight": 0, "silo_prior": "model", "local_logit_adjustment": 0}
    tables = study(method=alone)
    tables["study"]["task"] = "multi_label"
    with pytest.raises(BadConfiguration, match="several labels were hardly learnt") as error:
        config_from_dict(tables, where="study.toml")
    assert error.value.line().startswith('study.toml: [privacy.dp]: [study] task = "multi_label": the silos of')
    assert 'Use fedavg with objective = "fixmatch"' in error.value.line()
    begun = {"name": "self_training", "settings": {**to_dict(
        config_from_dict(study(method=alone), where="study.toml").method.settings), "task": "multi_label"}}
    assert config_from_dict(tables | {"method": begun}, where="the ledger").privacy.dp is not None
    fedavg = tables | {"method": {"name": "fedavg", "objective": "fixmatch"}}
    assert config_from_dict(fedavg, where="study.toml").privacy.dp is not None


@each_of("method", sorted(set(METHODS) - SAID - {"self_training"}))
def test_methods_whose_updates_are_no_sums_over_images_refuse_it(method: str) -> None:
    with pytest.raises(BadConfiguration, match=f"not defined for the method {method}"):
        config_from_dict(study(method={"name": method}), where="study.toml")


@each_of("method", sorted(SAID))
def test_methods_with_losses_by_image_have_it(method: str) -> None:
    assert config_from_dict(study(method={"name": method}), where="study.toml").privacy.dp is not None


@each_of(("given", "said"), [
    ({"model": {"normalisation": "auto"}}, "batch-norm layers"),
    ({"model": {"normalisation": "static_batch"}}, 'normalisation = "group"'),
    ({"numerics": {"precision": "bf16"}}, "precision"), ({"numerics": {"precision": "fp16"}}, "precision"),
    ({"method": {"clip_norm": 1.0}}, "clipped already"),
    ({"method": {"objective": "fixmatch", "mask_mean": "kept"}}, "how many images are kept"),
    ({"method": {"objective": "fixmatch", "distribution_alignment": "uniform"}}, "mean over the silo's images"),
    ({"method": {"objective": "fixmatch", "thresholds": "relative"}}, "mean confidence"),
    ({"method": {"logit_adjustment": 1.0}}, "class shares"),
    ({"method": {"labelled_sampling": "class_balanced"}}, "Poisson"),
    ({"unit": "silo"}, 'weighting = "uniform"')])
def test_what_ties_images_to_each_other_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfiguration, match=r"\[privacy\.dp\]") as error:
        config_from_dict(study(**given), where="study.toml")
    assert said in error.value.line()


@each_of("flips", [{"horizontal_flip": True}, {"vertical_flip": True}])
def test_views_that_depend_on_the_rest_of_a_step_are_refused(flips: dict[str, bool]) -> None:
    """FedMatch's flip-and-shift flips exactly half of a batch. Without flips it moves each image by itself; and where
    whole silos are hidden, a view is nobody else's matter."""
    views = {"policy": "fedmatch_official", **flips}
    with pytest.raises(BadConfiguration, match=r"\[privacy\.dp\]: \[augmentation\] policy") as error:
        config_from_dict(study() | {"augmentation": views}, where="study.toml")
    assert "who else is in it" in error.value.line()
    config_from_dict(study() | {"augmentation": {"policy": "fedmatch_official"}}, where="study.toml")
    config_from_dict(study() | {"augmentation": {"policy": "fedmix", "horizontal_flip": True}}, where="study.toml")
    config_from_dict(study(unit="silo", method={"weighting": "uniform"}) | {"augmentation": views}, where="study.toml")


@each_of("policy", [policy for policy in get_args(AugmentationPolicy) if policy != "none"])
def test_with_every_policy_that_is_not_refused_weak_views_are_drawn_image_by_image(policy: AugmentationPolicy) -> None:
    """Without its last image a batch has the views that it had: numbers are drawn in the order of images."""
    settings = AugmentationSettings(policy=policy, horizontal_flip=True)
    images = torch.arange(8 * 64, dtype=torch.int64).remainder(251).to(torch.uint8).view(8, 1, 8, 8)
    alone = True
    for seed in range(20):
        of_all, of_fewer = (weak(some, settings, torch.Generator().manual_seed(seed)) for some in (images, images[:-1]))
        alone &= torch.equal(of_all[:-1], of_fewer)
    tables = study() | {"augmentation": {"policy": policy, "horizontal_flip": True}}
    if alone:
        config_from_dict(tables, where="study.toml")
    else:
        with pytest.raises(BadConfiguration, match="augmentation"):
            config_from_dict(tables, where="study.toml")
    assert alone == (policy != "fedmatch_official")


def test_a_study_that_has_begun_with_such_views_is_still_told_of() -> None:
    begun = study(method={"settings": {}}) | {
        "augmentation": {"policy": "fedmatch_official", "horizontal_flip": True}}
    assert config_from_dict(begun, where="ledger").privacy.dp is not None


def test_what_follows_from_labels_of_the_coordinator_is_not_refused() -> None:
    tables = study(method={"objective": "fixmatch", "scenario": "labels-at-coordinator", "thresholds": "relative",
                           "logit_adjustment": 1.0})
    tables["data"]["labelled"] = "x"
    assert config_from_dict(tables, where="study.toml").privacy.dp is not None


def test_frozen_layers_leave_it_to_the_network_itself() -> None:
    """Whether they take in all batch-norm layers is known once the network is built: the silo looks."""
    assert config_from_dict(study(model={"normalisation": "auto", "freeze": "backbone"}), where="s").privacy.dp


def test_a_study_without_the_table_has_none() -> None:
    tables = study()
    del tables["privacy"]
    assert config_from_dict(tables, where="s").privacy.dp is None
    assert config_from_dict({**tables, "privacy": {}}, where="s").privacy.dp is None


def test_it_survives_the_ledger() -> None:
    config = config_from_dict(study(target_epsilon=3.0, noise_multiplier=0.0, delta=1e-6), where="s")
    assert config_from_dict(to_dict(config), where="ledger").privacy == config.privacy


def test_it_survives_the_wire_and_is_checked_there() -> None:
    dp = DifferentialPrivacy(unit="silo", noise_multiplier=1.25, clip_norm=0.5, delta=1e-6, honest_silos=3)
    assert dp_from_proto(dp_to_proto(dp)) == dp
    hostile = dp_to_proto(dp)
    hostile.delta = 2.0
    with pytest.raises((BadConfiguration, BadPayload), match="delta"):
        dp_from_proto(hostile)


SILOS: dict[str, Any] = {"unit": "silo", "noise_multiplier": 1.0}
IMAGES: dict[str, Any] = {"noise_multiplier": 1.0, "honest_silos": 3}


@each_of(("privacy", "said"), [
    ({"dp": SILOS | {"honest_silos": 3}}, "no effect without secure_aggregation"),
    ({"secure_aggregation": True, "dp": {"target_epsilon": 1.0, "honest_silos": 3}}, "needs noise_multiplier"),
    ({"secure_aggregation": True, "dp": SILOS | {"honest_silos": -1}}, "or 0"),
    ({"secure_aggregation": True, "dp": SILOS | {"honest_silos": 33}}, "between 1 and 32"),
    ({"secure_aggregation": True, "threshold": 6, "dp": SILOS | {"honest_silos": 7}}, "more than threshold = 6"),
    ({"secure_aggregation": True, "random_k": "10%", "dp": SILOS}, "random_k has no meaning"),
    ({"secure_aggregation": True, "group_size": 5, "dp": SILOS}, "group_size is not possible"),
    ({"secure_aggregation": True, "group_size": 5, "dp": IMAGES}, "group_size is not possible"),
    ({"secure_aggregation": True, "random_k": "10%", "dp": IMAGES}, "random_k has no meaning")])
def test_noise_that_could_not_hide_a_silo_behind_masks_is_refused(privacy: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfiguration, match=r"\[privacy\]") as error:
        config_from_dict(study(method={"weighting": "uniform"}) | {"privacy": privacy}, where="study.toml")
    assert said in error.value.line()


def test_noise_of_silos_goes_with_secure_aggregation() -> None:
    tables = study(method={"weighting": "uniform"}) | {
        "privacy": {"secure_aggregation": True, "threshold": 8, "dp": SILOS | {"honest_silos": 8}}}
    assert config_from_dict(tables, where="study.toml").privacy.dp == DifferentialPrivacy(
        unit="silo", noise_multiplier=1.0, honest_silos=8)


@each_of(("honest", "threshold", "shares"), [(0, 7, 4), (0, 10, 6), (3, 7, 3), (7, 7, 7), (9, 7, 7)])
def test_the_noise_has_as_many_shares_as_silos_that_are_honest(honest: int, threshold: int, shares: int) -> None:
    """More than half of the silos that a sum has at least; never more of them than that."""
    dp = DifferentialPrivacy(unit="silo", noise_multiplier=1.0, honest_silos=honest)
    assert noise_shares(dp, threshold) == shares


def test_a_site_counts_what_its_own_noise_covers() -> None:
    images, silos = DifferentialPrivacy(noise_multiplier=1.0), DifferentialPrivacy(unit="silo", noise_multiplier=1.0)
    assert [spends_at_site(dp, secure=secure) for dp in (None, images, silos) for secure in (False, True)] == [
        False, False, True, True, False, True]


@each_of(("method", "said"), [
    ({"local_epochs": 2}, "local_epochs = 2"), ({"momentum": 0.9}, "momentum = 0.9"),
    ({"weight_decay": 1e-4}, "weight_decay = 0.0001"), ({"weighting": "size"}, 'weighting = "size"'),
    ({"name": "fednova", "weighting": "uniform"}, "are more than the gradients of a step"),
    ({"objective": "mean_teacher"}, "mean_teacher")])
def test_silos_share_the_noise_of_images_in_rounds_of_one_step_alone(method: dict[str, Any], said: str) -> None:
    tables = {"privacy": {"secure_aggregation": True, "dp": IMAGES}}
    with pytest.raises(BadConfiguration, match="rounds of one step") as error:
        config_from_dict(study(method={"weighting": "uniform"} | method) | tables, where="study.toml")
    assert said in error.value.line()
    fits = config_from_dict(study(method={"weighting": "uniform"}) | tables, where="study.toml")
    assert fits.privacy.dp == DifferentialPrivacy(noise_multiplier=1.0, honest_silos=3)


def test_noise_is_shared_behind_masks_alone() -> None:
    images, alone = DifferentialPrivacy(**IMAGES), DifferentialPrivacy(noise_multiplier=1.0)
    silos = DifferentialPrivacy(**SILOS)
    assert [shares_noise(dp, secure=secure) for dp in (None, alone, images, silos) for secure in (False, True)] == [
        False, False, False, False, False, True, False, True]


def test_what_one_image_moves_is_the_clip_over_what_a_step_expects() -> None:
    """Whatever a silo has: noise that all share is for one length. 10 labelled and 100 without a label, lr 0.2."""
    def settings(**method: Any) -> Any:
        tables = study(method={"labelled_batch": 10} | method)
        return config_from_dict(tables, where="study.toml").method.settings

    dp = DifferentialPrivacy(**IMAGES, clip_norm=0.5)
    assert contribution_of(dp, settings(objective="fixmatch", unlabelled_batch=100), lr=0.2) == 0.2 * 0.5 / 110
    assert contribution_of(dp, settings(objective="sl"), lr=0.2) == 0.2 * 0.5 / 10
    labels_there = settings(objective="fixmatch", unlabelled_batch=100, scenario="labels-at-coordinator")
    assert contribution_of(dp, labels_there, lr=0.2) == 0.2 * 0.5 / 100
