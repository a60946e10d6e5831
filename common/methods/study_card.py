"""The study card: what a study asks of a silo from its first round to its last, in one text that both sides hold.

A silo signs its digest before its first task, and holds every task against it: who changes a study needs a new
signature. What belongs to single rounds (tensors, deadlines, learning rates of a schedule) is not in it.

The text is canonical JSON (sorted keys, no blanks), so that equal cards have equal digests.

Tests: tests/common/methods/test_study_card.py.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import typing
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import PrivacySettings
from semisilo.common.methods.spec import MethodSpec
from semisilo.common.methods.uplink import Uplink

__all__ = ["MAX_CARD_BYTES", "StudyCard", "card_from_text", "changes", "contradictions", "digest_of",
           "settings_for_card"]

MAX_CARD_BYTES = 256 * 1024
_DIGEST = b"semisilo study card v1\0"
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCard:
    """What a silo signs."""

    study: str
    rounds: int
    method: str
    settings: dict[str, object]
    """Of the method, without those that its strategy sets anew in every task."""
    model: ModelSettings
    """As tasks name it: without a file of weights, and without what is frozen of it, which comes with the tasks."""
    image: ImageForm
    augmentation: AugmentationSettings
    numerics: Numerics
    seed: int
    uplink: Uplink
    measure: str
    """What the study compares rounds by."""
    privacy: PrivacySettings
    receives: dict[str, str]
    """Tensor group -> what it means, of all that tasks may bring."""
    sends: dict[str, str]
    """Likewise of all that updates may hold."""
    numbers: tuple[str, ...]
    """That may leave with an update; one that ends in "/*" stands for numbered ones."""
    discloses: str
    """What a silo learns of others, and the coordinator of a silo, beyond model updates."""

    def text(self) -> str:
        """Canonical JSON."""
        return canonical_json(self)

    def digest(self) -> str:
        """See `digest_of`."""
        return digest_of(self.text())


def digest_of(text: str) -> str:
    """SHA-256 of a card's text with its purpose before it, hex."""
    return hashlib.sha256(_DIGEST + text.encode()).hexdigest()


@functools.lru_cache(maxsize=16)
def card_from_text(text: str) -> StudyCard:
    """The card that a text holds, without what a later version has added to it. Kept: every task is held against it.

    Raises: BadPayload for one that is too large, or that cannot be read.
    """
    if len(text) > MAX_CARD_BYTES:
        raise BadPayload(f"The study card has {len(text)} characters; at most {MAX_CARD_BYTES} are taken.")
    try:
        value = json.loads(text)
        canonical_json(value).encode()  # NaN and infinities are no JSON, and half of a surrogate pair no text
        return from_dict(StudyCard, _known(StudyCard, value), where="the study card")
    except (ValueError, TypeError, RecursionError, BadConfiguration) as error:
        raise BadPayload(f"The study card cannot be read: {error}",
                         remedy="If the coordinator is of a newer version, upgrade semisilo on this machine.") from None


def settings_for_card(spec: MethodSpec, settings: Mapping[str, object]) -> dict[str, object]:
    """The method's settings without those that a strategy sets anew in every task."""
    return {name: value for name, value in settings.items() if name not in spec.set_by_strategy}


def contradictions(card: StudyCard, task: TaskSpec, spec: MethodSpec) -> list[str]:
    """What a task asks, or what the method that is installed here does, otherwise than the card says; empty for
    nothing. Each as "what: card, not task"."""
    secure = card.privacy.secure_aggregation
    asked: dict[str, object] = {
        "study": task.study, "rounds": task.rounds, "method": task.method,
        "settings": settings_for_card(spec, task.settings), "model": task.model, "image": task.image,
        "augmentation": task.augmentation, "numerics": task.numerics, "seed": task.seed, "uplink": task.uplink,
        "measure": task.measure, "receives": dict(spec.receives), "sends": dict(spec.up), "numbers": spec.tells,
        "discloses": spec.discloses}
    told = to_dict(card)
    found = list(_compared("", {name: told[name] for name in asked}, asked))
    found += _compared("privacy.dp", told["privacy"]["dp"], task.dp)
    if bool(task.secure) != secure:
        found.append(f"privacy.secure_aggregation: {_short(secure)}, not {_short(not secure)}")
    return found


def changes(before: StudyCard, after: StudyCard) -> str:
    """What is otherwise in a later card, for a person: the first few."""
    found = list(_differences("", _plain(before), _plain(after)))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return "; ".join(found[:_MOST_NAMED]).replace(", not ", " is now ") + more


def _known(cls: Any, data: object) -> object:
    """The keys of a mapping that a dataclass has, and likewise in those of its fields that are dataclasses."""
    if not isinstance(data, dict):
        return data
    return {name: data[name] if kind is None else _known(kind, data[name])
            for name, kind in _kinds(cls).items() if name in data}


@functools.cache
def _kinds(cls: Hashable) -> Mapping[str, object]:
    """The names of a dataclass's fields, with the dataclass that each holds, be it beside others; None for no one.
    Finding it out takes longer than to read a card."""
    hints = typing.get_type_hints(cls)
    return {each.name: next((option for option in (hints[each.name], *typing.get_args(hints[each.name]))
                             if dataclasses.is_dataclass(option)), None)
            for each in dataclasses.fields(typing.cast(Any, cls))}


def _compared(where: str, signed: object, other: object) -> Iterator[str]:
    """The differences of two values; most often there are none, which their texts show at once."""
    told, asked = canonical_json(signed), canonical_json(other)
    if told != asked:
        yield from _differences(where, json.loads(told), json.loads(asked))


def _plain(value: object) -> object:
    """As JSON gives it back."""
    return json.loads(canonical_json(value))


def _differences(where: str, signed: object, other: object) -> Iterator[str]:
    """Of two values as JSON gives them back."""
    if isinstance(signed, dict) and isinstance(other, dict):
        for name in sorted(signed.keys() | other.keys()):
            at = f"{where}.{name}" if where else name
            if name not in signed or name not in other:
                there, here = (signed.get(name), "nothing") if name in signed else ("nothing", other[name])
                yield f"{at}: {_short(there)}, not {_short(here)}"
            else:
                yield from _differences(at, signed[name], other[name])
    elif signed != other:
        yield f"{where}: {_short(signed)}, not {_short(other)}"


def _short(value: object) -> str:
    text = value if value == "nothing" else canonical_json(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
