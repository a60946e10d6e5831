"""What a study needs of this silo, as the coordinator describes it. Its answer is hostile until it is checked here.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from semisilo.common.errors import BadPayload, SemisiloError
from semisilo.common.methods import Scenario
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.methods.spec import FROZEN
from semisilo.common.text.describe import describe_bytes
from semisilo.common.text.logs import printable
from semisilo.silo.check.finding import Finding, bad

if TYPE_CHECKING:
    from semisilo.common.wire import round_service_pb2 as pb

__all__ = ["OwnRound", "StudyNeeds", "needs_of", "scenario_of"]

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
    secure_silos: int = 0
    """Silos that a secure sum must have; 0 where updates go in the clear."""
    masked_update_bytes: int = 0
    """Of an update behind masks; 0 where updates go in the clear, and until the study has begun."""
    masked_share: float = 1.0
    """Of the values of an update, the share that a study wants behind masks."""
    frozen_bytes: int = 0
    """Of layers that nobody trains, which come once; 0 for none, and until the study has begun."""
    normalisation_images: int = 0
    """Images that mean and deviation of the form of images were measured on; 0: they are nothing to compare with."""


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
    size += f" and {describe_bytes(needs.frozen_bytes)} of frozen layers, which come once" if needs.frozen_bytes else ""
    return needs, Finding(
        what="study", state="ok",
        text=f"{task.study} is {needs.state}, round {needs.round}/{task.rounds}: {task.method}, {network}{form}{size}"
             + (f"; updates are added up behind masks, of {needs.secure_silos} silos or more" if task.secure else ""),
        facts={"study": task.study, "state": needs.state, "round": needs.round, "rounds": task.rounds,
               "method": task.method, "model": task.model.name, "dense_bytes": needs.dense_bytes,
               "frozen_bytes": needs.frozen_bytes})


def scenario_of(needs: StudyNeeds) -> Scenario:
    """Where the study has its labels, as far as this version knows its method; else at the coordinator, where those of
    a silo do not matter."""
    found = needs.task.settings.get("scenario", getattr(_settings_of(needs.task.method), "scenario", None))
    return cast(Scenario, found) if found in get_args(Scenario) else "labels-at-coordinator"


def _settings_of(method: str) -> object:
    from semisilo.common.methods import find_method

    try:
        return find_method(method).settings()
    except (SemisiloError, TypeError):
        return None


def _checked(message: pb.DescribeStudyResponse, *, silo: str) -> StudyNeeds:
    """Raises: BadPayload, BadConfiguration."""
    from semisilo.common.data.form import AugmentationSettings, ImageForm
    from semisilo.common.methods.numerics import Numerics
    from semisilo.common.rpc.convert import (
        augmentation_to_proto,
        image_to_proto,
        numerics_to_proto,
        reference_to_proto,
        task_from_proto,
    )
    from semisilo.common.secure_aggregation.messages import NONCE_BYTES
    from semisilo.common.wire import round_service_pb2 as pb
    from semisilo.common.wire import secure_aggregation_pb2 as pb_secure

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
        uplink=message.uplink if message.HasField("uplink") else None,
        dp=message.dp if message.HasField("dp") else None,
        secure=pb_secure.SecureTask(step="STEP_KEYS", phase="check", nonce=bytes(NONCE_BYTES),
                                    threshold=message.secure_silo_count) if message.secure_silo_count else None),
        silo=silo)
    if len(message.own_rounds) > 64:
        raise BadPayload(f"The coordinator tells of {len(message.own_rounds)} rounds; 64 are plenty.")
    return StudyNeeds(
        task=task, begun=begun, state=printable(message.state, limit=40), round=max(0, message.round),
        dense_bytes=_bytes(message.dense_bytes), frozen_bytes=_bytes(message.frozen_bytes), own_rounds=tuple(OwnRound(
            number=own.round, payload_down=_bytes(own.payload_down_bytes), payload_up=_bytes(own.payload_up_bytes),
            wire_down=_bytes(own.wire_down_bytes), wire_up=_bytes(own.wire_up_bytes),
            training_seconds=_seconds(own.training_duration) if own.HasField("training_duration") else None)
            for own in message.own_rounds),
        typical_update_bytes=_bytes(message.typical_update_bytes),
        typical_round_seconds=_seconds(message.typical_round_duration)
        if message.HasField("typical_round_duration") else None,
        round_timeout_seconds=_seconds(message.round_timeout), secure_silos=max(0, message.secure_silo_count),
        masked_update_bytes=_bytes(message.masked_update_bytes), masked_share=_share(message.masked_share),
        normalisation_images=_bytes(message.normalisation_image_count) if begun else 0)


def _bytes(count: int) -> int:
    if not 0 <= count <= _MOST_BYTES:
        raise BadPayload(f"The coordinator tells of {count} bytes, which cannot be.")
    return count


def _share(share: float) -> float:
    """1 where the coordinator says none, as one does that is older than the field."""
    if not 0 <= share <= 1:  # nor is NaN
        raise BadPayload(f"The coordinator tells of a share of {share}, which cannot be.")
    return share or 1.0


def _seconds(duration: object) -> float:
    seconds = float(getattr(duration, "seconds", 0)) + float(getattr(duration, "nanos", 0)) / 1e9
    if not (0 <= seconds <= _MOST_SECONDS and math.isfinite(seconds)):
        raise BadPayload(f"The coordinator tells of {seconds} seconds, which cannot be.")
    return seconds
