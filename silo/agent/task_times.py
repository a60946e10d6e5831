"""What the last tasks took at this silo, for forecasts: `rounds.json`. Nothing but a forecast depends on it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration

__all__ = ["TaskTook", "note_task", "read_tasks"]

_KEPT = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTook:
    """One task that was answered."""

    study: str
    round: int
    phase: str
    method: str
    unix: float
    """When it ended."""
    images: int
    """Of the silo, labelled and not."""
    train_seconds: float = 0.0
    """0 when the answer was ready before."""
    processes: int = 1
    """That have trained together, under torchrun."""
    download_bytes: int = 0
    """Payloads that came in this task; 0 when they were here already."""
    download_seconds: float = 0.0
    upload_bytes: int = 0
    upload_seconds: float = 0.0
    sent_bytes: int = 0
    """On the wire."""
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _File:
    tasks: tuple[TaskTook, ...] = ()


def read_tasks(path: Path) -> tuple[TaskTook, ...]:
    """The last tasks, oldest first; none when there is no file or it is damaged."""
    try:
        return _tasks_in(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, BadConfiguration):
        return ()


@functools.lru_cache(maxsize=8)
def _tasks_in(text: str) -> tuple[TaskTook, ...]:
    """The file is read again before each task is added, and mostly holds what was written last. Raises: ValueError;
    BadConfiguration."""
    return from_dict(_File, json.loads(text)).tasks


def note_task(path: Path, took: TaskTook) -> None:
    """Adds a task; the oldest go. Raises: OSError, for example on a full disk; the caller may ignore it."""
    tasks = (*_kept_texts(path), _text(took))[-_KEPT:]
    text = f'{{"tasks": [{", ".join(tasks)}]}}\n'
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    _written[path] = text, tasks


_written: dict[Path, tuple[str, tuple[str, ...]]] = {}
"""What this process has written last and the tasks in it: to read and write thirty of them anew takes longer than all
else that is noted of a task."""


def _kept_texts(path: Path) -> tuple[str, ...]:
    """The tasks in a file, each as JSON."""
    known, tasks = _written.get(path, ("", ()))
    with contextlib.suppress(OSError, ValueError):
        if known and path.read_text(encoding="utf-8") == known:
            return tasks
    return tuple(map(_text, read_tasks(path)))


def _text(took: TaskTook) -> str:
    return json.dumps(to_dict(took))
