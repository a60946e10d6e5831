"""HTTP answers of the page, with facts as JSON text: what is no finite number becomes null.

Tests: tests/coordinator/monitoring/test_facts.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from semisilo.common.errors import SemisiloError, UnknownSilo, UsageError

__all__ = ["exact", "failure", "failure_of", "json_answer", "to_json"]


def to_json(facts: Any) -> bytes:
    """UTF-8; the field names of dataclasses are the keys."""
    try:
        text = json.dumps(facts, default=_fields, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:  # rare, so only then is everything looked through
        text = json.dumps(_finite(facts), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")


_LARGEST_EXACT = 2**53 - 1
"""A browser rounds larger whole numbers."""


def exact(value: Any) -> Any:
    """The same JSON value, in which whole numbers that a browser would round are text, such as a seed of 63 bits."""
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
        return str(value)
    if isinstance(value, Mapping):
        return {name: exact(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(entry) for entry in value]
    return value


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is not JSON")


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


_STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "PERMISSION_DENIED": 403, "FAILED_PRECONDITION": 409,
           "UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 507}


def json_answer(content: bytes) -> Response:
    """Facts that are JSON text already."""
    return Response(content, media_type="application/json")


def failure(status: int, code: str, text: str, remedy: str = "", *, retry_seconds: float = 0.0) -> Response:
    """{"error": {"code", "text", "remedy"}}."""
    headers = {"retry-after": str(int(retry_seconds) + 1)} if retry_seconds else None
    return Response(to_json({"error": {"code": code, "text": text, "remedy": remedy}}), status_code=status,
                    media_type="application/json", headers=headers)


def failure_of(error: SemisiloError) -> Response:
    """An error of the catalogue; it goes to the operator, so with its text and remedy."""
    status = 404 if isinstance(error, UnknownSilo) else 409 if type(error) is UsageError else _STATUS.get(
        error.status, 500)
    return failure(status, error.code, error.text, error.remedy)
