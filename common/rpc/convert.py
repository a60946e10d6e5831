"""Task messages <-> the dataclasses of the contract, the same on both sides.

What arrives is hostile until it has passed here: lengths are checked against the limits in the proto's comments, names
against what may become a file name, settings against the dataclasses.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from semisilo.common.audit.head import AuditHead, SignedHead
from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.data.form import AugmentationSettings, ImageForm, Reading
from semisilo.common.errors import BadPayload
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.measures.study_measure import parse_measure
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.common.methods.uplink import Uplink
from semisilo.common.payload.manifest import parse_reference as reference_from_proto
from semisilo.common.payload.manifest import reference_to_proto
from semisilo.common.secure_aggregation.conversion import message_from_hex, question_from_proto, question_to_hex
from semisilo.common.wire import round_service_pb2 as round_pb

__all__ = [
    "augmentation_from_proto",
    "augmentation_to_proto",
    "check_metrics",
    "dp_from_proto",
    "dp_to_proto",
    "evaluation_from_proto",
    "evaluation_to_proto",
    "head_from_proto",
    "head_to_proto",
    "image_from_proto",
    "image_to_proto",
    "model_from_proto",
    "model_to_proto",
    "numerics_from_proto",
    "numerics_to_proto",
    "reference_from_proto",
    "reference_to_proto",
    "task_from_proto",
    "task_to_proto",
    "uplink_from_proto",
]

T = TypeVar("T")

_MAX_SETTINGS_BYTES = 64 * 1024
_MAX_SETTINGS_DEPTH = 32
"""What Python reads and cannot write again in a deeper call differs by version: hundreds within one another."""
_MAX_CLASSES = 10_000
_MAX_PAYLOADS = 1024
_MAX_METRICS = 256
_MAX_NAME_BYTES = 128
_MAX_TASK_ID_BYTES = 640
_MAX_MEASURE_BYTES = 300
_MAX_CERTIFICATE_BYTES = 4096
_LAST_UNIX = 253_402_300_800.0
"""The year 10000, when calendars end."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def task_to_proto(spec: TaskSpec, *, report_interval_seconds: float) -> round_pb.Task:
    """The message of a task. `spec.silo` does not travel: a silo's name is in its certificate."""
    message = round_pb.Task(
        task_id=spec.task_id, study=spec.study, round=spec.round, round_count=spec.rounds, phase=spec.phase,
        method=spec.method, settings_json=canonical_json(spec.settings), model=model_to_proto(spec.model),
        image=image_to_proto(spec.image), augmentation=augmentation_to_proto(spec.augmentation),
        numerics=numerics_to_proto(spec.numerics), payloads=[reference_to_proto(ref) for ref in spec.payloads],
        last_folded_round=spec.last_folded_round, seed=spec.seed,
    )
    if spec.deadline_unix:
        # Microseconds: in nanoseconds a date of today does not fit the 53 bits of a float.
        message.deadline_time.FromMicroseconds(round(spec.deadline_unix * 1e6))
    message.report_interval.FromMicroseconds(round(report_interval_seconds * 1e6))
    message.uplink.CopyFrom(round_pb.Uplink(**to_dict(spec.uplink)))
    if spec.model_round is not None:
        message.model_round = spec.model_round
        message.model_digest = bytes.fromhex(spec.model_digest)
    message.measure = spec.measure
    if spec.secure:
        message.secure.CopyFrom(message_from_hex(spec.secure))
    if spec.dp is not None:
        message.dp.CopyFrom(dp_to_proto(spec.dp))
    message.study_card = bytes.fromhex(spec.card)
    return message


def task_from_proto(message: round_pb.Task, *, silo: str) -> TaskSpec:
    """The task of a message, checked.

    Args:
        message: as it arrived.
        silo: this silo's name, from its own certificate.
    Raises: BadPayload for a broken limit, BadConfiguration for a value that this version does not know. Whether the
        method's settings fit their dataclass is not checked here.
    """
    _text("task_id", message.task_id, _MAX_TASK_ID_BYTES)
    study = _name("study", message.study)
    method = _name("method", message.method)
    phase = _name("phase", message.phase)
    if message.round < 1 or message.round_count < message.round:
        raise BadPayload(f"The task's round {message.round} of {message.round_count} cannot be.")
    if not 0 <= message.last_folded_round <= message.round:
        raise BadPayload(f"The task's last_folded_round {message.last_folded_round} cannot be in round"
                         f" {message.round}.")
    if len(message.payloads) > _MAX_PAYLOADS:
        raise BadPayload(f"The task names {len(message.payloads)} payloads; at most {_MAX_PAYLOADS} are allowed.")
    if message.HasField("model_round") and not 0 <= message.model_round < message.round:
        raise BadPayload(f"The task's model of round {message.model_round} cannot be in round {message.round}.")
    return TaskSpec(
        task_id=message.task_id, study=study, round=message.round, rounds=message.round_count, phase=phase, silo=silo,
        method=method, settings=_settings(message.settings_json), model=_part(model_from_proto, message.model),
        image=_part(image_from_proto, message.image),
        augmentation=_part(augmentation_from_proto, message.augmentation),
        numerics=_part(numerics_from_proto, message.numerics),
        payloads=tuple(reference_from_proto(ref) for ref in message.payloads),
        last_folded_round=message.last_folded_round, seed=message.seed,
        deadline_unix=_unix(message.deadline_time) if message.HasField("deadline_time") else 0.0,
        uplink=_part(uplink_from_proto, message.uplink) if message.HasField("uplink") else Uplink(),
        model_round=message.model_round if message.HasField("model_round") else None,
        model_digest=_model_digest(message.model_digest), measure=_measure(message.measure), secure=_secure(message),
        dp=dp_from_proto(message.dp) if message.HasField("dp") else None, card=_card(message.study_card),
    )


def _part(read: Callable[[Any], T], message: Message) -> T:
    """What `read` makes of a part of a task, a dataclass that cannot be changed: of a study's tasks most parts are
    equal, and each is checked once."""
    kind = cast(Hashable, type(message))
    return cast(T, _read_part(read, kind, message.SerializeToString(deterministic=True)))


@functools.lru_cache(maxsize=32)
def _read_part(read: Callable[[Any], object], kind: Hashable, serialized: bytes) -> object:
    return read(cast(type[Message], kind).FromString(serialized))


def _card(digest: bytes) -> str:
    if len(digest) not in (0, 32):
        raise BadPayload(f"The digest of the task's study card has {len(digest)} bytes instead of 32.")
    return digest.hex()


def _model_digest(digest: bytes) -> str:
    if len(digest) not in (0, 32):
        raise BadPayload(f"The digest of a round's model has {len(digest)} bytes instead of 32.")
    return digest.hex()


def _file_digest(digest: bytes) -> str:
    if len(digest) not in (0, 32):
        raise BadPayload(f"The digest of the network's file has {len(digest)} bytes instead of 32.")
    return digest.hex()


def model_to_proto(model: ModelSettings) -> round_pb.ModelSpec:
    """The message of a network."""
    return round_pb.ModelSpec(name=model.name, classes=model.classes, normalisation=model.normalisation,
                              factory_sha256=bytes.fromhex(model.factory_sha256))


def model_from_proto(message: round_pb.ModelSpec) -> ModelSettings:
    """The network of a message, checked. Raises: BadPayload or BadConfiguration."""
    if len(message.classes) > _MAX_CLASSES:
        raise BadPayload(f"The task has {len(message.classes)} classes; at most {_MAX_CLASSES} are allowed.")
    classes = [_text("class", name, 2 * _MAX_NAME_BYTES) for name in message.classes]
    if len(set(classes)) != len(classes):
        raise BadPayload("The task names a class twice.")
    return _build(ModelSettings, {"name": _text("model", message.name, 256), "classes": classes,
                                  "normalisation": message.normalisation,
                                  "factory_sha256": _file_digest(message.factory_sha256)}, "model")


def image_to_proto(image: ImageForm) -> round_pb.ImageForm:
    """The message of an image form."""
    return round_pb.ImageForm(**to_dict(image) | {"reading": _reading_to_proto(image.reading)})


def _reading_to_proto(reading: Reading) -> round_pb.Reading:
    centre, width = (0.0, 0.0) if isinstance(reading.window, str) else reading.window
    return round_pb.Reading(
        window=reading.window if isinstance(reading.window, str) else "fixed", window_centre=centre,
        window_width=width, window_number=reading.window_number, frames=str(reading.frames), axis=reading.axis,
        slices=str(reading.slices))


def image_from_proto(message: round_pb.ImageForm) -> ImageForm:
    """The image form of a message, checked. Raises: BadPayload or BadConfiguration."""
    if len(message.mean) > 3 or len(message.std) > 3 or not all(map(math.isfinite, message.mean)):
        raise BadPayload("The task's image form has a mean or standard deviation that cannot be.")
    return _build(ImageForm, {"size": message.size, "channels": message.channels, "mean": list(message.mean),
                              "std": list(message.std), "resize": message.resize,
                              "reading": _reading_from_proto(message), "standardise": message.standardise or "study"},
                  "image")


def _reading_from_proto(message: round_pb.ImageForm) -> dict[str, object]:
    """Plain values; empty, which is the default, where an older coordinator sends none."""
    if not message.HasField("reading"):
        return {}
    reading = message.reading
    window = [reading.window_centre, reading.window_width] if reading.window == "fixed" else reading.window
    # At most five digits: a longer number is out of range anyway, and takes time to read.
    frames, slices = (int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else text
                      for text in (reading.frames, reading.slices))
    return {"window": window, "window_number": reading.window_number, "frames": frames, "axis": reading.axis,
            "slices": slices}


def augmentation_to_proto(augmentation: AugmentationSettings) -> round_pb.Augmentation:
    """The message of augmentation settings."""
    return round_pb.Augmentation(**to_dict(augmentation))


def augmentation_from_proto(message: round_pb.Augmentation) -> AugmentationSettings:
    """The augmentation settings of a message, checked. Raises: BadPayload or BadConfiguration."""
    if len(message.without) > 64:
        raise BadPayload(f"The task leaves out {len(message.without)} operations; there are not so many.")
    without = [_text("operation", name, _MAX_NAME_BYTES) for name in message.without]
    return _build(AugmentationSettings, {"policy": message.policy, "horizontal_flip": message.horizontal_flip,
                                         "vertical_flip": message.vertical_flip, "without": without}, "augmentation")


def numerics_to_proto(numerics: Numerics) -> round_pb.Numerics:
    """The message of the numerics."""
    return round_pb.Numerics(threads=numerics.threads, deterministic=numerics.deterministic,
                             precision=numerics.precision, memory_format=numerics.memory_format)


def numerics_from_proto(message: round_pb.Numerics) -> Numerics:
    """The numerics of a message, checked. Coordinators of the first version name no precision and no memory format.

    Raises: BadPayload for an impossible number of threads; BadPayload or BadConfiguration for a precision or memory
        format that this version does not know.
    """
    if not (1 <= message.threads <= 1024 or (message.threads == 0 and message.memory_format)):
        raise BadPayload(f"The task asks for {message.threads} threads; between 1 and 1024 are allowed.")
    return _build(Numerics, {"threads": message.threads, "deterministic": message.deterministic,
                             "precision": message.precision or "fp32",
                             "memory_format": message.memory_format or "contiguous"}, "numerics")


def uplink_from_proto(message: round_pb.Uplink) -> Uplink:
    """The form of updates of a message, checked. Raises: BadPayload or BadConfiguration."""
    if not 0 < message.top_k <= 1:
        raise BadPayload(f"The task asks for a share of {message.top_k} of the elements.")
    return _build(Uplink, {"aim": message.aim, "values": message.values, "top_k": message.top_k,
                           "rounding": message.rounding, "error_feedback": message.error_feedback}, "uplink")


def dp_to_proto(dp: DifferentialPrivacy) -> round_pb.DifferentialPrivacy:
    """The message of differential privacy."""
    return round_pb.DifferentialPrivacy(**to_dict(dp))


def dp_from_proto(message: round_pb.DifferentialPrivacy) -> DifferentialPrivacy:
    """The differential privacy of a message, checked. Raises: BadConfiguration."""
    return _build(DifferentialPrivacy, {
        "unit": message.unit, "noise_multiplier": message.noise_multiplier, "target_epsilon": message.target_epsilon,
        "clip_norm": message.clip_norm, "delta": message.delta, "honest_silos": message.honest_silos},
        "differential privacy")


def evaluation_to_proto(found: SiteEvaluation) -> round_pb.SiteEvaluation:
    """The message of a global model's numbers on a site's own images."""
    return round_pb.SiteEvaluation(
        study=found.study, round=found.round, labels_alone=found.labels_alone,
        model_digest=bytes.fromhex(found.model_digest),
        classes=[round_pb.ClassResult(image_count=each.images, correct_count=each.correct, auroc=each.auroc,
                                      other_count=each.others, correct_other_count=each.correct_others,
                                      average_precision=each.average_precision)
                 for each in found.classes])


def evaluation_from_proto(message: round_pb.SiteEvaluation) -> SiteEvaluation:
    """The numbers of a message, checked; not against the study, which the coordinator knows. Raises: BadPayload."""
    if len(message.classes) > _MAX_CLASSES:
        raise BadPayload(f"An evaluation has {len(message.classes)} classes; at most {_MAX_CLASSES} are allowed.")
    try:
        return SiteEvaluation(
            study=_name("study", message.study), round=message.round, labels_alone=message.labels_alone,
            model_digest=_model_digest(message.model_digest),
            classes=tuple(ClassResult(images=each.image_count, correct=each.correct_count,
                                      auroc=each.auroc if each.HasField("auroc") else None,
                                      others=each.other_count if each.HasField("other_count") else None,
                                      correct_others=each.correct_other_count,
                                      average_precision=each.average_precision
                                      if each.HasField("average_precision") else None)
                          for each in message.classes))
    except ValueError as error:
        raise BadPayload(f"An evaluation has numbers that cannot be: {error}") from None


def check_metrics(metrics: Any) -> dict[str, float]:
    """Metrics of an update or abstention as plain numbers.

    Raises: BadPayload for more than 256, a name that is too long, or a number that is not finite.
    """
    if len(metrics) > _MAX_METRICS:
        raise BadPayload(f"{len(metrics)} metrics were sent; at most {_MAX_METRICS} are allowed.")
    for name, value in metrics.items():
        _text("metric", name, _MAX_NAME_BYTES)
        if not math.isfinite(value):
            raise BadPayload(f"The metric '{name}' is not a finite number.")
    return {name: float(value) for name, value in sorted(metrics.items())}


def _measure(text: str) -> str:
    """Checked; what a later version may have more is read as the accuracy is, which every study has."""
    if not text:
        return ""
    try:
        return str(parse_measure(_text("measure", text, _MAX_MEASURE_BYTES)))
    except ValueError:
        return ""


def _secure(message: round_pb.Task) -> str:
    """In canonical form, checked."""
    return question_to_hex(question_from_proto(message.secure)) if message.HasField("secure") else ""


def _settings(text: str) -> dict[str, object]:
    if len(text.encode()) > _MAX_SETTINGS_BYTES:
        raise BadPayload(f"The task's settings are longer than {_MAX_SETTINGS_BYTES} bytes.")
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if _is_deep(value, _MAX_SETTINGS_DEPTH):
            raise BadPayload(f"The task's settings have more than {_MAX_SETTINGS_DEPTH} tables and lists within one"
                             " another.")
        canonical_json(value).encode()  # 1e999 is an infinity, and half of a surrogate pair no text
    except (ValueError, RecursionError):
        raise BadPayload("The task's settings are not JSON.") from None
    if not isinstance(value, dict):
        raise BadPayload("The task's settings are not a table.")
    return value


def _is_deep(value: object, left: int) -> bool:
    """Whether there are more than so many tables and lists within one another."""
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return within is not None and (left == 0 or any(_is_deep(each, left - 1) for each in within))


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _unix(moment: Timestamp) -> float:
    return moment.seconds + moment.nanos / 1e9


def _build(cls: type[T], values: dict[str, object], what: str) -> T:
    return from_dict(cls, values, where=f"the task's {what}")


def _text(what: str, text: str, limit: int) -> str:
    if not text or len(text.encode()) > limit or not text.isprintable():
        raise BadPayload(f"The {what} of the message is empty, not printable, or longer than {limit} bytes.")
    return text


def _name(what: str, text: str) -> str:
    """A name that may become part of a file name."""
    if len(text) > _MAX_NAME_BYTES or not _NAME.fullmatch(text):
        raise BadPayload(f"The {what} of the message is not a plain name of at most {_MAX_NAME_BYTES} characters.")
    return text


def head_to_proto(signed: SignedHead) -> round_pb.AuditHead:
    """The message of a signed head."""
    head = signed.head
    message = round_pb.AuditHead(number=head.number, chain=bytes.fromhex(head.chain), signature=signed.signature,
                                 certificate_der=signed.certificate_der)
    message.event_time.FromMicroseconds(round(head.unix * 1e6))
    if head.restored_unix:
        message.restored_time.FromMicroseconds(round(head.restored_unix * 1e6))
        message.backup_time.FromMicroseconds(round(head.backup_unix * 1e6))
    return message


def head_from_proto(message: round_pb.AuditHead) -> SignedHead:
    """A signed head as it arrives: its form is sound, its signature is still to be checked.

    Raises: BadPayload.
    """
    if message.number < 1 or len(message.chain) != 32 or len(message.signature) != 64 \
            or not 1 <= len(message.certificate_der) <= _MAX_CERTIFICATE_BYTES or not all(
                0 <= _unix(each) < _LAST_UNIX
                for each in (message.event_time, message.restored_time, message.backup_time)):
        raise BadPayload("The audit head is not one.")
    head = AuditHead(number=message.number, chain=message.chain.hex(), unix=_unix(message.event_time),
                     restored_unix=_unix(message.restored_time), backup_unix=_unix(message.backup_time))
    return SignedHead(head=head, signature=message.signature, certificate_der=message.certificate_der)
