"""Table [robust]: what is refused, in one line that says why."""

from __future__ import annotations

import pytest

from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.parts.robust import RULES, WITHOUT_IMAGES, RobustSettings, Rule, fewest_updates, refused
from semisilo.common.methods.uplink import Uplink, parse_uplink
from semisilo.coordinator.studies.study_file import config_from_dict
from tests.each_of import each_of


def _study(**robust: object) -> dict[str, object]:
    return {"study": {}, "data": {"image": {"size": 8, "channels": 1}, "labelled": "x"}, "method": {"name": "semifl"},
            "robust": robust}


@each_of(("settings", "said"), [
    ({"rule": "trimmed_mean"}, "needs byzantine_silos"), ({"rule": "multi_krum"}, "needs byzantine_silos"),
    ({"rule": "fltrust", "byzantine_silos": 2}, 'no effect on rule = "fltrust"'),
    ({"rule": "judge", "byzantine_silos": -1}, "at least 0"), ({"norm_bound": 0.5}, "at least 1, or 0"),
    ({"norm_bound": float("inf")}, "at least 1, or 0"), ({"statistics_bound": -0.1}, "at least 0; 0 for none"),
    ({"statistics_bound": float("nan")}, "at least 0; 0 for none"),
    ({"statistics_bound": 0.0, "rule": "judge"}, 'no effect on rule = "judge"'), ({"rule": "krum"}, "rule")])
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, object], said: str) -> None:
    with pytest.raises(BadConfiguration, match=r"\[robust\]") as error:
        config_from_dict(_study(**settings), where="study.toml")
    assert said in error.value.text


def test_the_default_is_the_plain_mean_with_a_bound() -> None:
    robust = config_from_dict(_study(), where="study.toml").robust
    assert (robust.rule, robust.norm_bound, robust.statistics_bound) == ("none", 5.0, 0.2)


def test_the_plain_mean_is_told_for_its_counts_alone_how_many_may_lie() -> None:
    robust = config_from_dict(_study(byzantine_silos=2), where="study.toml").robust
    assert (robust.capped_together, RobustSettings().capped_together) == (2, 1)
    assert fewest_updates(robust) == 1


@each_of("method", ["fedmatch", "scaffold", "fed_shvr", "fedrgd", "local"])
def test_methods_that_do_not_average_plainly_refuse_every_rule(method: str) -> None:
    study = _study(rule="judge") | {"method": {"name": method}}
    with pytest.raises(BadConfiguration, match=f"not defined for the method {method}; it has none"):
        config_from_dict(study, where="study.toml")


def test_gradients_have_the_rules_that_need_no_images() -> None:
    assert set(RULES) - set(WITHOUT_IMAGES) == {"fltrust", "judge"}
    with pytest.raises(BadConfiguration, match="it has: norm_clipping, coordinate_median"):
        config_from_dict(_study(rule="judge") | {"method": {"name": "fedsgd"}}, where="study.toml")


@each_of("rule", RULES)
def test_top_k_updates_are_not_compared_number_by_number(rule: Rule) -> None:
    settings = RobustSettings(rule=rule, byzantine_silos=1 if rule in ("trimmed_mean", "multi_krum") else 0)
    why = refused(settings, method="semifl", allowed=RULES, uplink=parse_uplink("top-k 1%"), silos=None)
    assert bool(why) == (rule in ("coordinate_median", "trimmed_mean", "multi_krum"))
    assert not refused(settings, method="semifl", allowed=RULES, uplink=parse_uplink("int8"), silos=None)


@each_of(("rule", "silos", "enough"), [
    ("multi_krum", 8, False), ("multi_krum", 9, True), ("trimmed_mean", 6, False), ("trimmed_mean", 7, True),
    ("judge", 6, False), ("norm_clipping", 7, True)])
def test_a_rule_needs_so_many_silos(rule: Rule, silos: int, enough: bool) -> None:
    settings = RobustSettings(rule=rule, byzantine_silos=3)
    why = refused(settings, method="semifl", allowed=RULES, uplink=Uplink(), silos=silos)
    assert (not why) == enough
    assert enough or f"needs {fewest_updates(settings)} updates" in why
