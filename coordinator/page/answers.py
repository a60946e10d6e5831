"""HTTP answers of the page."""

from __future__ import annotations

from starlette.responses import Response

from common.errors import SemisiloError, UnknownSilo, UsageError
from coordinator.page.json_text import to_json

__all__ = ["failure", "failure_of", "json_answer"]

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
