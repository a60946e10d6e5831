"""Facts as JSON text: dataclasses become objects, and what is no finite number becomes null."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["to_json"]


def to_json(facts: Any) -> bytes:
    """UTF-8; the field names of dataclasses are the keys."""
    try:
        text = json.dumps(facts, default=_fields, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:  # rare, so only then is everything looked through
        text = json.dumps(_finite(facts), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is no JSON")


def _finite(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _fields(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value
