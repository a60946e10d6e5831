"""The local record of what left this site: `<home>/disclosures.jsonl`, one JSON object a line.

A line is on disk before the first byte that it tells of leaves, so the record may name something that was cut off on
its way but never misses anything of these kinds.

What repeats itself is told once: an answer to a task however often it is sent, as long as it says the same; what the
silo announces in every call for a task (counts, version, permitted methods) when it changes, and a question of `silo
check` when the version does: every call for a task says as much, and a monitor that asks each minute would hide the
updates. What goes along with calls and has no line of its own, such as how far the work is, is listed in
docs/federation.md, "What has no line".
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar, get_args

from semisilo.common.config import canonical_json, to_dict
from semisilo.common.storage.durable import naming, sync_file, sync_folder, sync_found

__all__ = ["KINDS", "KINDS_IN_WORDS", "Broken", "Disclosure", "DisclosureLog", "Kind", "Line", "announcement",
           "last_line", "message", "read_line", "read_lines"]

T = TypeVar("T")

Kind = Literal["update", "abstention", "refusal", "announcement", "check", "enrolment", "renewal", "leaving",
               "evaluation", "model", "secure_step", "study_card"]
KINDS: tuple[str, ...] = get_args(Kind)
KINDS_IN_WORDS = {"check": "silo check", "renewal": "renewal of the certificate", "model": "question for a model",
                  "secure_step": "step of a secure sum", "study_card": "signature of a card"}
"""For a person, where the name is not what left: no model leaves. The page has the same words (`left.js`)."""
_ANSWERS = ("update", "abstention", "refusal", "secure_step")
"""Kinds of answers to tasks. What other messages say is named by their update_id: a second attempt differs by its clock
or signature alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disclosure:
    """Something that leaves: an answer to a task, or a message about this silo itself."""

    kind: Kind
    study: str = ""
    round: int = 0
    phase: str = ""
    method: str = ""
    update_id: str
    """Tells it from all others: a message about this silo is recorded once for each. An answer to a task is recorded
    again where it says something else under the same one: other metrics beside the same payload, another text."""
    groups: tuple[str, ...] = ()
    """Tensor groups of an update."""
    bytes: int = 0
    """Of an update the size of its payload, of all others that of the message."""
    digest: str = ""
    """SHA-256 of these bytes, hex; of an announcement that of what it says."""
    num_examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    """Reason of an abstention or refusal, as it was sent; of others what they are, in words."""
    content: Mapping[str, object] = field(default_factory=dict)
    """What a message about this silo says, name by name."""
    authority: str = ""
    """Of the federation that it goes to (`authority_id`), where that is known."""


def message(kind: Kind, sent: bytes, *, update_id: str = "", study: str = "", round: int = 0, phase: str = "",
            method: str = "", metrics: Mapping[str, float] | None = None, text: str = "",
            content: Mapping[str, object] | None = None) -> Disclosure:
    """The record of a message about this silo.

    Args:
        sent: the message as it is serialised.
        update_id: tells it from others; by default the message itself does.
        study, round, phase, method, metrics, text, content: as `Disclosure` has them.
    """
    digest = hashlib.sha256(sent).hexdigest()
    return Disclosure(kind=kind, update_id=update_id or f"{kind} {digest[:32]}", bytes=len(sent), digest=digest,
                      study=study, round=round, phase=phase, method=method, metrics=metrics or {}, text=text,
                      content=content or {})


def announcement(content: Mapping[str, object], *, size_bytes: int) -> Disclosure:
    """The record of what every call for a task says of this silo; the same content is recorded once in a row."""
    digest = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    return Disclosure(kind="announcement", update_id=f"announcement {digest[:32]}", bytes=size_bytes, digest=digest,
                      content=dict(content), text="sent with every call for a task, until the next announcement")


class DisclosureLog:
    """Appends to the file; each answer appears once, however often it is sent again."""

    def __init__(self, path: Path, *, authority: str = "") -> None:
        """
        Args:
            authority: `authority_id` of the federation that answers go to: one that another federation got is none of
                this one's. Lines that do not say count as this one's; without it all do.
        """
        self._path = path
        self._authority = authority
        self._known: set[str] = set()
        self._announced = ""
        self._methods: dict[str, str] = {}
        sync_found(path)  # what is recorded there is not recorded again
        for line in read_lines(path):
            if isinstance(line, Line):
                self._note(line)

    def record(self, disclosure: Disclosure) -> None:
        """Writes a line and waits until it is on disk; nothing when that is there already: see `Disclosure.update_id`.

        An announcement is there already when it is the last one: what was announced in between has another line.
        """
        disclosure = replace(disclosure, authority=disclosure.authority or self._authority)
        if disclosure.update_id == self._announced or _told(disclosure) in self._known:
            return
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **to_dict(disclosure)}
        if not disclosure.authority:
            del entry["authority"]
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with naming(self._path):
                # `silo check` and others record as well: what is cut off where a line cannot be written is this line.
                fcntl.flock(handle, fcntl.LOCK_EX)
                size = os.fstat(handle).st_size
                if size and not _ends_with_newline(self._path):
                    line = "\n" + line
                _write_line(handle, line.encode(), size)
        finally:
            os.close(handle)
        if not size:
            sync_folder(self._path.parent)
        self._note(disclosure)

    def method_of(self, study: str) -> str:
        """The method of the last task of a study that this silo has answered with an update or an abstention; empty
        where there was none."""
        return self._methods.get(study, "")

    def _note(self, entry: Disclosure | Line) -> None:
        if self._authority and entry.authority not in ("", self._authority):
            self._announced = ""
            return
        if entry.kind == "announcement":
            self._announced = entry.update_id
        else:
            self._known.add(_told(entry))
        if entry.kind in ("update", "abstention"):
            self._methods[entry.study] = entry.method


def _told(entry: Disclosure | Line) -> str:
    """Equal for what need not be recorded again. `content` is this site's own note, or in the digest as well."""
    if entry.kind not in _ANSWERS:
        return entry.update_id
    told = repr((entry.kind, entry.study, entry.round, entry.phase, entry.method, entry.groups, entry.bytes,
                 entry.digest, entry.num_examples, sorted(entry.metrics.items()), entry.text))
    return f"{entry.update_id} {hashlib.sha256(told.encode(errors='backslashreplace')).hexdigest()[:32]}"


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of the record as it was written, by this version or an earlier one."""

    number: int
    """Of the line in the file, from 1."""
    time: str
    kind: str
    study: str
    round: int
    phase: str
    method: str
    update_id: str
    groups: tuple[str, ...]
    bytes: int
    digest: str
    num_examples: int
    metrics: Mapping[str, float]
    text: str
    content: Mapping[str, object]
    authority: str

    @property
    def unix(self) -> float | None:
        """When it was written; None when its time cannot be read."""
        try:
            moment = datetime.fromisoformat(self.time)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that cannot be read."""

    number: int
    reason: str


def read_lines(path: Path) -> Iterator[Line | Broken]:
    """All lines, oldest first. A file that is not there has none."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            yield read_line(number, raw)


def last_line(path: Path) -> Line | None:
    """The newest line that can be read, found from the end: quick however long the record is."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 64 * 1024))
            pieces = file.read().splitlines()
    except OSError:
        return None
    for raw in reversed(pieces):
        if raw.strip() and isinstance(found := _line(0, raw, cut=False), Line):
            return found
    return None


def read_line(number: int, raw: bytes) -> Line | Broken:
    """A line of the file, with its line break unless it was cut short.

    Args:
        number: of the line, from 1.
    """
    return _line(number, raw, cut=not raw.endswith(b"\n"))


def _line(number: int, raw: bytes, *, cut: bool) -> Line | Broken:
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return Broken(number, "cut short: the process or the machine stopped while it was written, so that what it was "
                              "to tell of had not left yet" if cut else "not JSON")
    if not isinstance(entry, dict):
        return Broken(number, "not an entry of the record")
    try:
        line = Line(
            number=number, time=_field(entry, "time", ""), kind=_field(entry, "kind", ""),
            study=_field(entry, "study", ""), round=_field(entry, "round", 0), phase=_field(entry, "phase", ""),
            method=_field(entry, "method", ""), update_id=_field(entry, "update_id", ""),
            groups=tuple(map(str, _field(entry, "groups", list[object]()))), bytes=_field(entry, "bytes", 0),
            digest=_field(entry, "digest", ""), num_examples=_field(entry, "num_examples", 0),
            metrics=_field(entry, "metrics", dict[str, float]()), text=_field(entry, "text", ""),
            content=_field(entry, "content", dict[str, object]()), authority=_field(entry, "authority", ""))
    except TypeError as error:
        return Broken(number, str(error))
    return line if line.kind else Broken(number, "not an entry of the record")


def _field(entry: Mapping[str, object], name: str, default: T) -> T:
    """What an entry says; `default`, whose type it must have, is what a line of an earlier version without it means.

    Raises: TypeError.
    """
    value = entry.get(name, default)
    if not isinstance(value, type(default)) or isinstance(value, bool):
        raise TypeError(f"its {name} is not what it should be")
    return value


def _write_line(handle: int, line: bytes, size: int) -> None:
    """Raises: OSError, with the file as it was, of `size` bytes: what failed is written once more, and once only."""
    try:
        view = memoryview(line)
        while view:
            view = view[os.write(handle, view):]
        sync_file(handle)
    except OSError:
        with suppress(OSError):
            os.ftruncate(handle, size)
        raise


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
