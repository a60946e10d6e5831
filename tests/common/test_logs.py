"""One event is one harmless line, and no secret is ever in it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from common.invitation import INVITATION_PREFIX
from common.logs import printable, set_up_logging, without_secrets


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    set_up_logging(stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_an_event_is_one_line_whatever_is_in_it(log: io.StringIO) -> None:
    logging.getLogger("semisilo").info("silo said: %s", "hello\n2026-01-01 00:00:00 error: fake\x1b[2J\u202e")
    logging.getLogger("semisilo").warning("beware")
    first, second = log.getvalue().splitlines()
    assert "hello 2026-01-01" in first
    assert "\x1b" not in first
    assert "\u202e" not in first
    assert second.endswith("warning: beware")


@pytest.mark.parametrize("text", [
    "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----\nMIGHAgEAMBMG",
    f"enroll {INVITATION_PREFIX}MIGHAgEAMBMG-_x",
    'token="MIGHAgEAMBMG"', "password: MIGHAgEAMBMG", "Authorization=MIGHAgEAMBMG",
])
def test_secrets_are_blotted_out(log: io.StringIO, text: str) -> None:
    assert "MIGHAgEAMBMG" not in without_secrets(text)
    logging.getLogger("semisilo").info("got %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("semisilo").exception("failed")
    assert "MIGHAgEAMBMG" not in log.getvalue()
    assert "failed" in log.getvalue()


def test_setting_up_twice_writes_each_event_once(log: io.StringIO) -> None:
    set_up_logging(stream=log)
    logging.getLogger("semisilo").info("once")
    assert log.getvalue().count("once") == 1


def test_long_text_is_cut_and_marked() -> None:
    assert printable("x" * 1000, limit=10) == "x" * 9 + "…"
    assert printable("naïve façade 漢字") == "naïve façade 漢字"
