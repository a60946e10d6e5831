"""`silo check`, the study: what it asks of this silo against what silo.toml permits.

What the coordinator answers is hostile until it is checked here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.describe import counted, describe_bytes, describe_seconds
from common.errors import BadPayload, SemisiloError
from common.exchange import PayloadRef, TaskSpec
from common.logs import printable
from common.methods.spec import FROZEN
from silo.budget import read_day
from silo.check import Finding, bad
from silo.home import SiloHome
from silo.hours import DAYS, closes_at, next_day_at, opens_at, time_text
from silo.policy import Policy, check_task

if TYPE_CHECKING:
    from common.wire import round_service_pb2 as pb
    from silo.forecast import Forecast

__all__ = ["OwnRound", "StudyNeeds", "look_at_hours", "look_at_study", "needs_of"]

_MOST_BYTES = 2**50
_MOST_SECONDS = 10.0 * 365 * 86400


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRound:
    """What one round took of this silo, as the coordinator counted it."""

    number: int
    payload_down: int
    payload_up: int
    wire_down: int
    wire_up: int
    training_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyNeeds:
    """What the study asks of a silo, checked."""

    task: TaskSpec
    """A task of the study as it would come, without payloads; with the form of images only if it has `begun`."""
    begun: bool
    state: str
    round: int
    dense_bytes: int
    own_rounds: tuple[OwnRound, ...]
    typical_update_bytes: int
    typical_round_seconds: float | None
    round_timeout_seconds: float


def needs_of(description: pb.DescribeStudyResponse | None, *,
             silo: str) -> tuple[StudyNeeds | None, Finding | None]:
    """The study of an answer, and what is to be said of it; (None, None) when there was no answer."""
    if description is None:
        return None, None
    if not description.study:
        return None, Finding(what="study", state="ok", text="The coordinator has none at the moment.")
    try:
        needs = _checked(description, silo=silo)
    except SemisiloError as error:
        return None, bad("study", error)
    task = needs.task
    network = f"{task.model.name}" + (f" for {len(task.model.classes)} classes" if task.model.classes else "")
    form = f", images {task.image.channels}x{task.image.size}x{task.image.size}" if needs.begun else ""
    size = f", {describe_bytes(needs.dense_bytes)} dense" if needs.dense_bytes else ""
    return needs, Finding(
        what="study", state="ok",
        text=f"{task.study} is {needs.state}, round {needs.round}/{task.rounds}: {task.method}, {network}{form}{size}",
        facts={"study": task.study, "state": needs.state, "round": needs.round, "rounds": task.rounds,
               "method": task.method, "model": task.model.name, "dense_bytes": needs.dense_bytes})


def _checked(message: pb.DescribeStudyResponse, *, silo: str) -> StudyNeeds:
    """Raises: BadPayload, BadConfiguration."""
    from common.convert import (
        augmentation_to_proto,
        image_to_proto,
        numerics_to_proto,
        reference_to_proto,
        task_from_proto,
    )
    from common.data.form import AugmentationSettings, ImageForm
    from common.exchange import Numerics
    from common.wire import round_service_pb2 as pb

    begun = message.HasField("image")
    nothing = ImageForm(size=1, channels=1, mean=(0.0,), std=(1.0,))
    task = task_from_proto(pb.Task(
        task_id=f"{message.study}/check", study=message.study, round=1, round_count=max(1, message.round_count),
        phase="check", method=message.method, settings_json=message.settings_json, model=message.model,
        image=message.image if begun else image_to_proto(nothing),
        augmentation=augmentation_to_proto(AugmentationSettings()), numerics=numerics_to_proto(Numerics()),
        # What every task of such a study brings besides, so that it is looked at like that of a task.
        payloads=[reference_to_proto(PayloadRef("00" * 32, _bytes(message.frozen_bytes), (FROZEN,)))]
        if message.frozen_bytes else [],
        uplink=message.uplink if message.HasField("uplink") else None), silo=silo)
    if len(message.own_rounds) > 64:
        raise BadPayload(f"The coordinator tells of {len(message.own_rounds)} rounds; 64 are plenty.")
    return StudyNeeds(
        task=task, begun=begun, state=printable(message.state, limit=40), round=max(0, message.round),
        dense_bytes=_bytes(message.dense_bytes), own_rounds=tuple(OwnRound(
            number=own.round, payload_down=_bytes(own.payload_down_bytes), payload_up=_bytes(own.payload_up_bytes),
            wire_down=_bytes(own.wire_down_bytes), wire_up=_bytes(own.wire_up_bytes),
            training_seconds=_seconds(own.training_duration) if own.HasField("training_duration") else None)
            for own in message.own_rounds),
        typical_update_bytes=_bytes(message.typical_update_bytes),
        typical_round_seconds=_seconds(message.typical_round_duration)
        if message.HasField("typical_round_duration") else None,
        round_timeout_seconds=_seconds(message.round_timeout))


def _bytes(count: int) -> int:
    if not 0 <= count <= _MOST_BYTES:
        raise BadPayload(f"The coordinator tells of {count} bytes, which cannot be.")
    return count


def _seconds(duration: object) -> float:
    seconds = float(getattr(duration, "seconds", 0)) + float(getattr(duration, "nanos", 0)) / 1e9
    if not (0 <= seconds <= _MOST_SECONDS and math.isfinite(seconds)):
        raise BadPayload(f"The coordinator tells of {seconds} seconds, which cannot be.")
    return seconds


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


def _form(needs: StudyNeeds) -> str:
    lossy = needs.task.uplink.lossy
    return f"lossy: {', '.join(lossy)}" if lossy else "exact"


def look_at_hours(home: SiloHome, policy: Policy, needs: StudyNeeds | None, expected: Forecast | None,
                  now: float) -> list[Finding]:
    """Working hours and the budget of the day."""
    return [_hours(policy, needs, now), _budget(home, policy, expected, now)]


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
