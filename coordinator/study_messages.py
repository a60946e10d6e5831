"""The description of a study as the message that `silo check` asks for."""

from __future__ import annotations

from common import __version__
from common.config import canonical_json, to_dict
from common.convert import image_to_proto, model_to_proto
from common.wire import round_service_pb2 as pb
from coordinator.study_description import StudyDescription

__all__ = ["description_to_proto"]


def description_to_proto(found: StudyDescription | None, *, now_unix: float) -> pb.DescribeStudyResponse:
    """The message; only version and clock when there is no study."""
    message = pb.DescribeStudyResponse(version=__version__)
    message.coordinator_time.FromMicroseconds(round(now_unix * 1e6))
    if found is None:
        return message
    message.MergeFrom(pb.DescribeStudyResponse(
        study=found.name, state=found.state, round=found.round, round_count=found.rounds, method=found.method,
        settings_json=canonical_json(found.settings), model=model_to_proto(found.model),
        image=None if found.image is None else image_to_proto(found.image),
        uplink=pb.Uplink(**to_dict(found.uplink)), dense_bytes=found.dense_bytes,
        frozen_bytes=found.frozen_bytes,
        typical_update_bytes=found.typical_update_bytes))
    message.round_timeout.FromMicroseconds(round(found.round_timeout_seconds * 1e6))
    if found.typical_round_seconds is not None:
        message.typical_round_duration.FromMicroseconds(round(found.typical_round_seconds * 1e6))
    for entry in found.own_rounds:
        own = message.own_rounds.add(
            round=entry.number, payload_down_bytes=entry.payload_down, payload_up_bytes=entry.payload_up,
            wire_down_bytes=entry.wire_down, wire_up_bytes=entry.wire_up)
        if entry.training_seconds is not None:
            own.training_duration.FromMicroseconds(round(entry.training_seconds * 1e6))
    return message
