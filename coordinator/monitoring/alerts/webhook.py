"""Posts one JSON object to the operator's address: no redirect is followed, no answer is read, and nothing of either
gets into a log but the host and the status.

What may be asked for from here (server-side request forgery): the address is the operator's own, from a file that only
the hub's account can write; no silo and no visitor of the page has a say in it or sees an answer.

Tests: tests/coordinator/monitoring/alerts/test_webhook.py.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from email.message import Message
from typing import IO

from semisilo.common import __version__
from semisilo.common.errors import SemisiloError
from semisilo.common.text.logs import printable
from semisilo.coordinator.federation.alerts_table import is_this_machine, split_webhook

__all__ = ["WebhookFailed", "post"]

_SECONDS = 10.0
_UNWANTED = frozenset({400, 413, 415, 422})
"""The receiver does not want this object, and would not want it later."""


class WebhookFailed(SemisiloError):
    """The address did not take an alert."""

    code, status = "WEBHOOK_FAILED", "UNAVAILABLE"

    def __init__(self, text: str, *, again: bool) -> None:
        """
        Args:
            again: whether it may help to try again.
        """
        super().__init__(text, remedy="See [alerts] webhook in federation.toml.")
        self.again = again


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Who answers with another address does not get the alert there."""

    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message,
                         newurl: str) -> urllib.request.Request | None:
        """None: the redirect is an error."""
        return None


def post(address: str, body: bytes, *, seconds: float = _SECONDS) -> None:
    """Sends an object; blocks for some `seconds` at most. A proxy of the environment is used for other machines.

    Raises: WebhookFailed, with the host and what is wrong.
    """
    host = split_webhook(address).hostname or ""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_this_machine(host):
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(address, data=body, method="POST", headers={
        "Content-Type": "application/json", "User-Agent": f"semisilo/{__version__}"})
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=seconds):
            return
    except urllib.error.HTTPError as error:
        with error:
            raise WebhookFailed(f"{host} answered with status {error.code}.", again=error.code not in _UNWANTED
                                ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise WebhookFailed(f"{host}: {printable(str(reason) or type(reason).__name__, limit=200)}.", again=True
                            ) from None
