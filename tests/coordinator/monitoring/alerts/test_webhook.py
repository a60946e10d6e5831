"""Posting to the operator's address, and what may be one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from semisilo.coordinator.federation.alerts_table import AlertSettings
from semisilo.coordinator.monitoring.alerts.webhook import WebhookFailed, post
from tests.each_of import each_of


class Receiver:
    """An HTTP server on this machine that remembers what it was sent, and answers as it is told."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.statuses: list[int] = []
        """Of the next answers; 204 after them."""
        self.headers: dict[str, str] = {}
        self.address = ""


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Serves until the end of the block."""
    known = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = known.statuses.pop(0) if known.statuses else 204
            known.paths.append(self.path)
            if status < 300:
                known.taken.append(json.loads(body))
            self.send_response(status)
            for name, value in known.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.address = f"http://127.0.0.1:{server.server_port}/hooks/abc"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_object_arrives_whole() -> None:
    with receiver() as known:
        post(known.address, '{"text": "à"}'.encode())
        assert known.taken == [{"text": "à"}]


@each_of(("status", "again"), [(500, True), (404, True), (429, True), (400, False), (413, False)])
def test_another_status_says_whether_it_may_help_to_try_again(status: int, again: bool) -> None:
    with receiver() as known:
        known.statuses = [status]
        with pytest.raises(WebhookFailed, match=f"127.0.0.1 answered with status {status}") as failed:
            post(known.address, b"{}")
        assert failed.value.again is again
        assert "abc" not in failed.value.line(), "whoever knows the path may post there"


def test_a_redirect_is_not_followed() -> None:
    with receiver() as known, receiver() as other:
        known.statuses, known.headers = [302], {"Location": other.address}
        with pytest.raises(WebhookFailed, match="status 302"):
            post(known.address, b"{}")
        assert other.paths == []


def test_nobody_there_is_a_line() -> None:
    with receiver() as known:
        address = known.address
    with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1: .*refused"):
        post(address, b"{}")


@each_of(("address", "words"), [
    ("http://hub.example/x", "in clear"), ("http://10.0.0.1/x", "in clear"), ("ftp://hub.example/x", "such as"),
    ("https://alice:secret@hub.example/x", "name and password"), ("file:///etc/passwd", "such as"),
    ("https://hub.example/x#y", "after #"), ("https://hub.example:port/x", "not an address"),
    ("hub.example", "such as"),
    ("https://hub.example/ä", "ASCII"), ("https://hub.example/a\nb", "ASCII"),
    ("http://127.0.0.1.example/", "in clear")])
def test_what_cannot_be_a_webhook_is_refused_with_the_reason(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AlertSettings(webhook=address)


@each_of("address", ["", "https://chat.example/hooks/a?b=c", "http://localhost:9000/x",
                     "http://127.0.0.1/x", "http://[::1]:80/x"])
def test_https_and_this_machine_may_be_one(address: str) -> None:
    assert AlertSettings(webhook=address).webhook == address
