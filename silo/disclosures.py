"""The local record of everything that left this site: `<home>/disclosures.jsonl`, one JSON object a line.

A line is on disk before the first byte that it tells of leaves, so the record may name something that was cut off on
its way but never misses anything that was sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from common.durable import sync_folder

__all__ = ["Disclosure", "DisclosureLog"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Disclosure:
    """One answer to one task."""

    kind: Literal["update", "abstention", "refusal"]
    study: str
    round: int
    phase: str
    method: str
    update_id: str
    groups: tuple[str, ...] = ()
    """Tensor groups of an update."""
    bytes: int = 0
    """Size of the update's payload."""
    digest: str = ""
    """SHA-256 of the update's payload, hex."""
    num_examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    """Reason of an abstention or refusal, as it was sent."""


class DisclosureLog:
    """Appends to the file; each update appears once, however often it is sent again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = {entry.get("update_id") for entry in self.entries()}

    def entries(self) -> list[dict[str, object]]:
        """All lines, oldest first; a last line that a crash cut short is left out."""
        if not self._path.exists():
            return []
        found = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found

    def record(self, disclosure: Disclosure) -> None:
        """Writes a line and waits until it is on disk; nothing when this update_id is there already."""
        if disclosure.update_id in self._known:
            return
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(disclosure)}
        line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and not _ends_with_newline(self._path):
                line = "\n" + line
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        if not size:
            sync_folder(self._path.parent)
        self._known.add(disclosure.update_id)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
