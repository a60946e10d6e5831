"""`silo check`, the study: what it asks of this silo against what silo.toml permits.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from semisilo.common.errors import SemisiloError
from semisilo.common.text.describe import counted, describe_bytes, describe_seconds
from semisilo.silo.agent.daily_budget import read_day
from semisilo.silo.check.finding import Finding, bad
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.secure_aggregation.trust import check_pins
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import Policy, check_masked_share, check_task
from semisilo.silo.site.working_hours import DAYS, closes_at, next_day_at, opens_at, time_text, zone_doubt

if TYPE_CHECKING:
    from semisilo.silo.check.forecast import Forecast

__all__ = ["look_at_card", "look_at_hours", "look_at_study", "look_at_sum"]


def look_at_study(policy: Policy, needs: StudyNeeds) -> list[Finding]:
    """Goes through the very check that a task goes through, and compares sizes with the limits."""
    findings = []
    try:
        spec = check_task(policy, needs.task)
        findings.append(Finding(what="permission", state="ok",
                                text=f"{needs.task.method} and what it needs are permitted: {len(spec.down)} groups "
                                     f"in, {len(spec.up)} out, {len(spec.metrics)} metrics; updates {_form(needs)}",
                                facts={"groups_in": sorted(spec.down), "groups_out": sorted(spec.up),
                                       "metrics": list(spec.metrics), "discloses": spec.discloses}))
    except SemisiloError as error:
        findings.append(bad("permission", error))
    limits = policy.limits
    for name, limit in (("max_download_bytes", limits.max_download_bytes), ("max_upload_bytes",
                                                                            limits.max_upload_bytes)):
        if needs.dense_bytes > limit:
            findings.append(Finding(
                what="limits", state="warning", text=f"A whole model has {describe_bytes(needs.dense_bytes)}; [limits] "
                                                     f"{name} allows {describe_bytes(limit)}.",
                remedy=f"Tasks may be refused: raise {name} in silo.toml."))
    return findings


def look_at_card(home: SiloHome, policy: Policy, needs: StudyNeeds) -> list[Finding]:
    """What a person here has said of the study, or has still to say; [] where its card is signed, or a signature needs
    nobody."""
    from semisilo.silo.study_cards.agreement import declined, not_approved
    from semisilo.silo.study_cards.book import CardBook

    try:
        entry = CardBook(home.cards).find(needs.task.study)
    except SemisiloError as error:
        return [bad("study card", error)]
    if entry is not None and entry.state == "declined":
        return [bad("study card", declined(entry))]
    if not policy.require.approval or (entry is not None and entry.state != "waiting"):
        return []
    if entry is None:
        return [Finding(what="study card", state="warning",
                        text=f"A person here must approve study '{needs.task.study}': [require] approval of silo.toml.",
                        remedy="Its card comes with its first task, which waits for that: then silo studies, silo"
                               " approve.")]
    return [bad("study card", not_approved(entry))]


def look_at_sum(policy: Policy, needs: StudyNeeds) -> list[Finding]:
    """Whether this site could take part in the study's secure sums, whoever the other silos are; [] where it could, or
    updates go in the clear."""
    if not needs.task.secure:
        return []
    try:
        check_masked_share(policy, needs.masked_share)
        check_pins(policy.peers, silo=needs.task.silo, require_pinned=policy.require.pinned_peers,
                   min_silos=policy.require.min_silos)
    except SemisiloError as error:
        return [bad("secure sum", error)]
    return []


def _form(needs: StudyNeeds) -> str:
    lossy = needs.task.uplink.lossy
    return f"lossy: {', '.join(lossy)}" if lossy else "exact"


def look_at_hours(home: SiloHome, policy: Policy, needs: StudyNeeds | None, expected: Forecast | None,
                  now: float) -> list[Finding]:
    """Working hours, whether their zone is meant, and the budget of the day."""
    doubt = zone_doubt(policy.hours)
    zone = [Finding(what="zone", state="warning", text=doubt, remedy='Write for example zone = "Europe/Berlin" there,'
                    ' or zone = "UTC" if that is meant.')] if doubt else []
    return [_hours(policy, needs, now), *zone, _budget(home, policy, expected, now)]


def _hours(policy: Policy, needs: StudyNeeds | None, now: float) -> Finding:
    hours = policy.hours
    if not hours.restricted:
        return Finding(what="hours", state="ok", text="Tasks are taken at any time.")
    end = closes_at(hours, now)
    days = "every day" if set(hours.days) == set(DAYS) else f"on {', '.join(hours.days)}"
    spans = f"{', '.join(hours.train) or 'all day'} {days}"
    if end is None:
        begin = opens_at(hours, now)
        late = ""
        if needs is not None and 0 < needs.round_timeout_seconds < begin - now:
            late = f" Rounds of the study close {describe_seconds(needs.round_timeout_seconds)} after they open."
        return Finding(what="hours", state="warning", facts={"open": False, "opens_unix": begin},
                       text=f"Outside working hours ({spans}) until {time_text(hours, begin)}: no task is taken.{late}",
                       remedy="Nothing, if that is meant; else change [hours] of silo.toml.")
    until = "" if math.isinf(end) else f", until {time_text(hours, end)}"
    return Finding(what="hours", state="ok", text=f"Within working hours ({spans}){until}",
                   facts={"open": True, "closes_unix": None if math.isinf(end) else end})


def _budget(home: SiloHome, policy: Policy, expected: Forecast | None, now: float) -> Finding:
    limit = policy.limits.bytes_per_day
    count = read_day(home.day, policy.hours, now)
    facts = {"limit_bytes": limit, "used_bytes": count.bytes, "estimated": count.estimated}
    used = f"{'about ' if count.estimated else ''}{describe_bytes(count.bytes)}"
    if not limit:
        return Finding(what="budget", state="ok", text=f"No limit a day; {used} carried today", facts=facts)
    ends = time_text(policy.hours, next_day_at(policy.hours, now))
    remedy = "Nothing, if that is meant; else raise [limits] bytes_per_day in silo.toml."
    if count.bytes >= limit:
        return Finding(what="budget", state="warning", remedy=remedy, facts=facts,
                       text=f"All of today's {describe_bytes(limit)} is used; no task is taken until {ends}.")
    left = limit - count.bytes
    text = f"{used} of {describe_bytes(limit)} used today, until {ends}"
    if expected is not None and expected.bytes:
        if expected.bytes > limit:
            return Finding(what="budget", state="bad", facts=facts, remedy="Raise [limits] bytes_per_day in silo.toml.",
                           text=f"A round takes about {describe_bytes(expected.bytes)}; {describe_bytes(limit)} a day "
                                "allows none.")
        text += f": about {counted(left // expected.bytes, 'round')} more today, {limit // expected.bytes} a day"
    return Finding(what="budget", state="ok", text=text, facts=facts)
