"""One event is one harmless line, and no secret is ever in it."""

from __future__ import annotations

import asyncio
import datetime
import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from semisilo.common.errors import BadData
from semisilo.common.identity.invitation import INVITATION_PREFIX
from semisilo.common.text.cli_errors import run_cli
from semisilo.common.text.log_context import REQUEST_ID_KEY, bind, bound, call_in, log_context, new_request_id
from semisilo.common.text.logs import (
    CALLS,
    FIELDS,
    FORMAT_VARIABLE,
    JsonFormatter,
    printable,
    set_up_logging,
    without_secrets,
)
from tests.each_of import each_of


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where a log may go; afterwards all is as before."""
    monkeypatch.setenv(FORMAT_VARIABLE, "text")
    root = logging.getLogger()
    before, level, calls = list(root.handlers), root.level, logging.getLogger(CALLS).level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)
    logging.getLogger(CALLS).setLevel(calls)
    logging.captureWarnings(False)


@pytest.fixture
def log(stream: io.StringIO) -> io.StringIO:
    set_up_logging(stream=stream)
    return stream


@pytest.fixture
def json_log(stream: io.StringIO) -> io.StringIO:
    set_up_logging(stream=stream, log_format="json")
    return stream


def objects(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


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


class _FullDisk(io.StringIO):
    """Refuses one line."""

    refused = 0

    def write(self, text: str) -> int:
        if not self.refused:
            self.refused = 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_a_line_that_does_not_fit_on_the_disk_is_lost_without_a_traceback(
        stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = _FullDisk()
    monkeypatch.setattr(sys, "stderr", disk)
    set_up_logging()
    logging.getLogger("semisilo.test").warning("lost")
    logging.getLogger("semisilo.test").warning("kept")
    assert disk.refused
    assert disk.getvalue().splitlines()[0].endswith("warning: kept")


def test_long_text_is_cut_and_marked() -> None:
    assert printable("x" * 1000, limit=10) == "x" * 9 + "…"
    assert printable("naïve façade 漢字") == "naïve façade 漢字"


# JSON -----------------------------------------------------------------------------------------------------------------


def test_a_json_line_has_its_time_in_utc_and_what_it_is_about(json_log: io.StringIO) -> None:
    with bound(study="first", round=3, silo="hospital-a", task_id="first/3/0-train/hospital-a", request_id="ab" * 8):
        logging.getLogger("semisilo.coordinator").warning("closed without %s", "beta")
    logging.getLogger("semisilo.silo").info("alone")
    first, second = objects(json_log)
    moment = datetime.datetime.fromisoformat(first.pop("time"))
    assert moment.utcoffset() == datetime.timedelta()
    assert abs((datetime.datetime.now(datetime.UTC) - moment).total_seconds()) < 60
    assert first == {"level": "warning", "logger": "semisilo.coordinator", "message": "closed without beta",
                     "study": "first", "round": 3, "silo": "hospital-a", "task_id": "first/3/0-train/hospital-a",
                     "request_id": "ab" * 8}
    assert second.keys() == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("nasty", ["a\nb", 'x", "level": "critical', "\u2028", "\x1b[31m", "\x85", "\0"])
def test_nothing_can_break_out_of_its_json_line(json_log: io.StringIO, nasty: str) -> None:
    with bound(silo=nasty, study=nasty):
        logging.getLogger("semisilo").info("silo said %s", nasty)
        try:
            raise ValueError(nasty)
        except ValueError:
            logging.getLogger("semisilo").exception("failed")
    assert json_log.getvalue().isascii()
    lines = objects(json_log)
    assert [line["level"] for line in lines] == ["info", "error"]
    assert not set(lines[0]["message"]) & set("\n\x1b\u2028\x85\0")
    assert set(lines[1]) <= {"time", "level", "logger", "message", "traceback", *FIELDS}


def test_half_a_character_does_not_end_a_json_line() -> None:
    """Formatted here, not logged: what pytest captures has to reach another process."""
    record = logging.makeLogRecord({"name": "semisilo", "levelno": logging.INFO, "levelname": "INFO",
                                    "msg": "silo said %s", "args": ("\ud800",), "silo": "\ud800"})
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert json.loads(line)["message"].startswith("silo said ")


def test_secrets_are_blotted_out_of_every_field(json_log: io.StringIO) -> None:
    secret = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----"
    with bound(silo=f"token={'MIGHAgEAMBMG'}"):
        try:
            raise ValueError(secret)
        except ValueError:
            logging.getLogger("semisilo").exception("got %s", secret)
    assert "MIGHAgEAMBMG" not in json_log.getvalue()
    assert "traceback" in objects(json_log)[0]


def test_numbers_that_json_does_not_have_are_left_out(json_log: io.StringIO) -> None:
    logging.getLogger("semisilo").info("x", extra={"seconds": float("nan"), "round": 2})
    assert "NaN" not in json_log.getvalue()
    assert objects(json_log)[0]["round"] == 2


def test_the_code_of_an_error_is_a_field(json_log: io.StringIO) -> None:
    error = BadData("an image cannot be read")
    logging.getLogger("semisilo").error("refused: %s", error)
    try:
        raise error
    except BadData:
        logging.getLogger("semisilo").exception("failed")
    assert [line["error_code"] for line in objects(json_log)] == ["BAD_DATA", "BAD_DATA"]


def test_a_command_that_fails_says_so_in_json_too(json_log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise BadData("an image cannot be read", remedy="Look at it.")
    assert run_cli(app, []) == 1
    assert capsys.readouterr().err == ""
    assert objects(json_log)[0]["error_code"] == "BAD_DATA"
    assert "Look at it." in objects(json_log)[0]["message"]


def test_calls_have_lines_with_json_or_for_a_developer_only(stream: io.StringIO) -> None:
    def seen(**options: Any) -> bool:
        stream.truncate(0)
        set_up_logging(stream=stream, **options)
        logging.getLogger(CALLS).info("DownloadPayload: answered")
        return "DownloadPayload" in stream.getvalue()
    assert seen(log_format="json")
    assert seen(log_format="text", verbose=True)
    assert not seen(log_format="text")


def test_quiet_leaves_warnings_in_the_same_form(stream: io.StringIO) -> None:
    set_up_logging(stream=stream, quiet=True, log_format="text")
    logging.getLogger("semisilo").info("not shown")
    logging.getLogger("semisilo").warning("the same image in two classes")
    assert re.fullmatch(r"[-\d]{10} [:\d]{8} warning: the same image in two classes\n", stream.getvalue())


def test_a_compute_process_writes_json_when_its_parent_does(stream: io.StringIO) -> None:
    code = ("import logging, sys\nfrom semisilo.common.text.logs import set_up_child_logging\nset_up_child_logging()\n"
            "logging.getLogger('semisilo').warning('from the child')\nimport warnings\nwarnings.warn('careful')")
    for log_format in ("json", "text"):
        set_up_logging(stream=stream, log_format=log_format)  # type: ignore[arg-type]
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True,
                              env=os.environ).stderr
        if log_format == "json":
            first, second = (json.loads(line) for line in said.splitlines())
            assert first["message"] == "from the child"
            assert "careful" in second["message"]
        else:
            assert said.startswith("warning: from the child\n"), "its parent puts the time before it"


# What lines are about -------------------------------------------------------------------------------------------------


def test_what_one_task_binds_is_not_in_the_lines_of_another(json_log: io.StringIO) -> None:
    async def serve(silo: str) -> None:
        bind(silo=silo)
        await asyncio.sleep(0)
        logging.getLogger("semisilo").info("call")
        await asyncio.to_thread(logging.getLogger("semisilo").info, "in a thread")

    async def both() -> None:
        await asyncio.gather(serve("a"), serve("b"))
        logging.getLogger("semisilo").info("outside")
    asyncio.run(both())
    found = [(line["message"], line.get("silo")) for line in objects(json_log)]
    assert sorted(found[:-1]) == [("call", "a"), ("call", "b"), ("in a thread", "a"), ("in a thread", "b")]
    assert found[-1] == ("outside", None)


def test_what_is_bound_ends_with_its_block_and_none_takes_a_field_away() -> None:
    with bound(study="s", round=1):
        bind(round=None, phase="train")
        assert log_context() == {"study": "s", "phase": "train"}
    assert log_context() == {}


@each_of("sent", ["", "short", "x" * 65, "abc def ghi", "abcdefgh\n", "ab\u00e9cdefgh", b"abcdefgh"])
def test_a_request_id_that_is_none_of_ours_is_replaced(sent: str | bytes) -> None:
    found = call_in([("other", "x"), (REQUEST_ID_KEY, sent)])["request_id"]
    assert found != sent
    assert len(found) == 16


def test_a_request_id_is_kept_and_new_ones_differ() -> None:
    mine = new_request_id()
    assert call_in([(REQUEST_ID_KEY, mine)])["request_id"] == mine
    assert call_in(None) != call_in(())
    assert len({new_request_id() for _ in range(100)}) == 100
