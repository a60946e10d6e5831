"""silo.toml in plain words: every setting has some, and the week is the one that the agent goes by."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from semisilo.common.methods import METHODS
from semisilo.silo.page.policy_words import rules_of, week_of
from semisilo.silo.site.policy import DataPolicy, Limits, Permit, Policy, PrivacyPolicy, Require
from semisilo.silo.site.working_hours import Hours, closes_at

MONDAY = datetime(2026, 11, 23, tzinfo=UTC).timestamp()


def value(policy: Policy, key: str) -> str:
    return next(rule.value for table in rules_of(policy) for rule in table.rules if rule.key == key)


def test_every_setting_of_silo_toml_has_words() -> None:
    keys = {rule.key for table in rules_of(Policy()) for rule in table.rules}
    expected = {"[peers]"}
    for table in dataclasses.fields(Policy):
        if table.name != "peers":
            found = getattr(Policy(), table.name)
            expected |= {f"[{table.name}] {each.name}" for each in dataclasses.fields(found)}
    assert keys == expected


@pytest.mark.parametrize("hours", [
    Hours(zone="UTC"), Hours(zone="UTC", train=("20:00-06:00",)),
    Hours(zone="UTC", train=("20:00-06:00",), days=("sun",)),
    Hours(zone="UTC", train=("08:00-12:00", "11:00-17:30"), days=("mon", "wed")),
    Hours(zone="UTC", train=("00:00-24:00",), days=("sat",)), Hours(zone="UTC", train=("18:00-00:00",), days=("fri",))])
def test_the_week_is_the_one_that_tasks_are_taken_in(hours: Hours) -> None:
    """Every quarter of an hour of a week, against what the agent asks."""
    week = week_of(hours)
    for quarter in range(7 * 96):
        day, minute = quarter // 96, quarter % 96 * 15
        drawn = any(span.day == day and span.begins <= minute < span.ends for span in week)
        assert drawn == (closes_at(hours, MONDAY + 900 * quarter) is not None), (day, minute)
    assert all(span.begins < span.ends <= 1440 for span in week)


def test_what_is_permitted_is_told_against_what_there_is() -> None:
    assert value(Policy(), "[permit] methods") == f"all {len(METHODS)} that are built in"
    some = Policy(permit=Permit(methods=("semifl", "fedavg", "ours")))
    assert value(some, "[permit] methods") == f"2 of {len(METHODS)} that are built in, and 1 plug-in"
    assert value(Policy(permit=Permit(methods=())), "[permit] methods") == "none that is built in"
    assert value(Policy(permit=Permit(encodings=())), "[permit] encodings") == "none: only exact updates leave"


def test_limits_and_requirements_say_what_follows_from_them() -> None:
    assert value(Policy(), "[limits] bytes_per_day") == "no limit"
    assert value(Policy(limits=Limits(bytes_per_day=200_000_000)), "[limits] bytes_per_day") == "200.0 MB"
    assert "studies without differential privacy are refused" in value(
        Policy(privacy=PrivacyPolicy(max_epsilon=8)), "[privacy] max_epsilon")
    assert value(Policy(require=Require(approval=True)), "[require] approval").startswith("needed before the first")
    named = Policy(data=DataPolicy(source="/scans"))
    assert [rule.key for table in rules_of(named) for rule in table.rules if rule.private] == ["[data] source"]
