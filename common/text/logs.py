"""Plain logging for both sides: one event, one line, and never a secret.

Text that came from the other side or from a file may hold line breaks, terminal escapes or something that looks like a
log line of ours; `printable` makes it one harmless line. With the format "json" each event is one JSON object.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import os
import re
import sys
import time
from typing import Literal, TextIO

from semisilo.common.errors import SemisiloError
from semisilo.common.text.log_context import log_context

__all__ = ["CALLS", "FIELDS", "FORMAT_VARIABLE", "JsonFormatter", "LineFormatter", "LogFormat", "log_call",
           "printable",
           "set_up_child_logging", "set_up_logging", "without_secrets", "writes_json"]

LogFormat = Literal["text", "json"]
FORMAT_VARIABLE = "SEMISILO_LOG_FORMAT"
"""Environment variable: the format where the command does not say; a compute process inherits it."""
FIELDS = ("study", "round", "phase", "silo", "task_id", "trace_id", "request_id", "rpc", "seconds",
          "error_code")
"""What a JSON line may have beside time, level, logger and message, where it is known."""
CALLS = "semisilo.calls"
"""The logger with a line for each RPC, on both sides: with "json", or with `verbose`."""
_CALLS_LOG = logging.getLogger(CALLS)
_MAX_TRACEBACK = 20_000
_FREQUENT_CALLS = ("AwaitTask", "ReportProgress")

_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_TOKEN = re.compile(r"(?i)\b(token|password|passphrase|secret|authorization)(\"?'?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)")
_INVITATION = re.compile(r"(semisilo-invite-v\d+\.)[A-Za-z0-9_.=-]+")


def printable(text: str, *, limit: int = 500) -> str:
    """One line without control characters or terminal escapes, at most `limit` characters."""
    if len(text) <= limit and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else " " if c in "\r\n\t" else "�" for c in text[: 4 * limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def without_secrets(text: str) -> str:
    """The text with private keys, tokens and invitation lines blotted out."""
    text = _KEY_BLOCK.sub("[private key removed]", text)
    text = _INVITATION.sub(r"\1[removed]", text)
    return _TOKEN.sub(r"\1\2[removed]", text)


class LineFormatter(logging.Formatter):
    """`2026-01-31 12:00:00 warning: text`, in local time; the level is named from warning on."""

    def __init__(self, *, stamped: bool = True) -> None:
        super().__init__()
        self._stamped = stamped

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ", time.localtime(record.created)) if self._stamped else ""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        text = printable(without_secrets(record.getMessage()), limit=4000)
        if record.exc_info:
            # A traceback is for us, not for an attacker: its lines stay apart, its secrets go.
            text += "\n" + without_secrets(self.formatException(record.exc_info))
        return f"{stamp}{level}{text}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, logger, message, and those of `FIELDS` that are known."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(), "logger": record.name,
            "message": printable(without_secrets(record.getMessage()), limit=4000)}
        context = log_context()
        for name in FIELDS:
            value = getattr(record, name, context.get(name))
            if isinstance(value, (int, float)) and math.isfinite(value):
                line[name] = value
            elif value is not None and value != "":
                line[name] = printable(without_secrets(str(value)), limit=200)
        if "error_code" not in line and (code := _code_in(record)):
            line["error_code"] = code
        if record.exc_info:
            line["traceback"] = without_secrets(self.formatException(record.exc_info))[-_MAX_TRACEBACK:]
        # In ASCII: no separator that a log collector takes for the end of the line is left.
        return json.dumps(line, allow_nan=False)


def _code_in(record: logging.LogRecord) -> str:
    """The code of an error of the catalogue that a record is about."""
    error = record.exc_info[1] if record.exc_info else None
    found = next((each for each in (error, *(record.args if isinstance(record.args, tuple) else ()))
                  if isinstance(each, SemisiloError)), None)
    return "" if found is None else found.code


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment: a live display puts itself in its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """What the system refuses is lost, such as a line for a log on a full disk: a traceback would go there too."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def set_up_logging(*, verbose: bool = False, quiet: bool = False, stream: TextIO | None = None,
                   log_format: LogFormat | None = None) -> None:
    """Sends this process's log to standard error, or to `stream`; with `verbose` also what only a developer wants.

    Args:
        quiet: warnings and errors alone, for a command that shows by itself what it does.
        log_format: None for what `$SEMISILO_LOG_FORMAT` says, "text" without it.

    May be called again; the last call counts.
    """
    if log_format is None:
        log_format = "json" if os.environ.get(FORMAT_VARIABLE) == "json" else "text"
    os.environ[FORMAT_VARIABLE] = log_format  # for the processes that this one starts
    handler = _StandardError() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    logging.getLogger(CALLS).setLevel(
        logging.DEBUG if verbose else logging.INFO if log_format == "json" else logging.WARNING)
    logging.captureWarnings(log_format == "json")  # else Python writes them between the lines
    if not verbose:
        # gRPC's core writes past this log, about what we explain ourselves; it reads this when it is loaded.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # asyncio and grpc speak about their own affairs at these levels.
    for noisy in ("asyncio", "grpc", "grpc._cython.cygrpc", "matplotlib", "PIL", "wandb"):
        logging.getLogger(noisy).setLevel(logging.INFO if verbose else logging.WARNING)


def log_call(rpc: str, text: str, *, seconds: float) -> None:
    """One line about an RPC. Those that are made every few seconds are for a developer."""
    level = logging.DEBUG if rpc in _FREQUENT_CALLS else logging.INFO
    if _CALLS_LOG.isEnabledFor(level):
        _CALLS_LOG.log(level, "%s", text, extra={"rpc": rpc, "seconds": round(seconds, 6)})


def set_up_child_logging() -> None:
    """The log of a process that another of ours has started: in the format of that one."""
    if os.environ.get(FORMAT_VARIABLE) == "json":
        set_up_logging(log_format="json")
    else:
        set_up_logging(log_format="text")
        for handler in logging.getLogger().handlers:
            handler.setFormatter(LineFormatter(stamped=False))  # the parent reads these lines, and stamps its own


def writes_json() -> bool:
    """Whether this process's log is JSON lines, so that nothing else may be written where it goes."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
