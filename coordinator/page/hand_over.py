"""What an ended study has come to as files to download: report, model card, model. Each is made by the command that an
operator would type, in a process of its own, for that takes torch or a plotting library and seconds of a processor.

Tests: tests/coordinator/page/test_hand_over.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.errors import SemisiloError
from semisilo.common.text.logs import printable

__all__ = ["FILES", "HandOver", "HandOverFile"]

_MOST_SECONDS = 1800.0
_EXPORT = ".export-of-page"
"""Folder in that of a study."""
_LEAST_AGE_SECONDS = 60.0
"""So long what was made serves those who have no token, whatever has changed: to make it takes a processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOverFile:
    """One that may be asked for."""

    name: str
    """In the folder that the command writes."""
    command: str
    media_type: str
    needs_operator: bool
    """The report says what the page shows; weights and card are handed over by an operator."""


FILES: Mapping[str, HandOverFile] = {
    "report.html": HandOverFile(name="index.html", command="report", media_type="text/html; charset=utf-8",
                                needs_operator=False),
    "model_card.html": HandOverFile(name="model_card.html", command="export", media_type="text/html; charset=utf-8",
                                    needs_operator=True),
    "model_card.json": HandOverFile(name="model_card.json", command="export", media_type="application/json",
                                    needs_operator=True),
    "model.safetensors": HandOverFile(name="model.safetensors", command="export",
                                      media_type="application/octet-stream", needs_operator=True)}
"""Name in the address -> file."""


class CannotHandOver(SemisiloError):
    """The command that makes the files has failed; its own line says why."""

    code, status = "CANNOT_HAND_OVER", "FAILED_PRECONDITION"


_Made = tuple[object, Path | CannotHandOver, float]
"""Version, where the files are or why they could not be made, and when that was; of `time.monotonic`."""


class HandOver:
    """Makes the files of a federation's studies, one command at a time, and keeps them while nothing changes."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: of the federation.
        """
        self._folder = folder
        self._lock = asyncio.Lock()
        self._made: dict[tuple[str, str], _Made] = {}
        """By (study, command)."""

    async def file(self, study: str, what: HandOverFile, *, version: object, by_operator: bool) -> Path:
        """The path of a file, made first if need be.

        Args:
            study: a name that the ledger has.
            version: what the file depends on; with an equal one it is not made again.
            by_operator: whether somebody asks who may start any command.
        Raises: CannotHandOver with the line of the command.
        """
        async with self._lock:
            made = self._made.get((study, what.command))
            if made is None or self._is_to_be_made(made, what, version, by_operator=by_operator):
                made = await self._make_noted(study, what.command, version)
            if isinstance(made[1], CannotHandOver):
                raise made[1].with_traceback(None)
            return made[1] / what.name

    async def _make_noted(self, study: str, command: str, version: object) -> _Made:
        found: Path | CannotHandOver
        try:
            found = await self._make(study, command)
        except CannotHandOver as error:
            found = error
        made = self._made[study, command] = version, found, time.monotonic()
        return made

    @staticmethod
    def _is_to_be_made(made: _Made, what: HandOverFile, version: object, *, by_operator: bool) -> bool:
        if isinstance(made[1], Path) and not (made[1] / what.name).is_file():
            return True
        changed = made[0] != version or isinstance(made[1], CannotHandOver)
        return changed and (by_operator or time.monotonic() - made[2] >= _LEAST_AGE_SECONDS)

    async def _make(self, study: str, command: str) -> Path:
        # A folder of its own: where the command writes by default, the operator may have an export with other options.
        more = ["--format", "safetensors", "--out", str(self._folder / "studies" / study / _EXPORT)] \
            if command == "export" else []
        found = await self._run([command, study, *more])
        return Path(found["folder"]) if command == "export" else Path(found["page"]).parent

    async def check(self, study: str) -> None:
        """Whether a study can be queued, as `coordinator queue` says it: with all its images.

        Raises: CannotHandOver with the line of the command.
        """
        async with self._lock:
            await self._run(["queue", study, "--check"])

    async def _run(self, command: Sequence[str]) -> Mapping[str, str]:
        """The JSON object that a command prints."""
        words = [*command, "--folder", str(self._folder), "--json"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "semisilo.coordinator.cli.main", *words, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(os.environ))
        try:
            out, err = await asyncio.wait_for(process.communicate(), _MOST_SECONDS)
        finally:
            if process.returncode is None:  # whoever asked has gone, or it took too long
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            lines = [line for line in err.decode(errors="replace").splitlines() if line.startswith("error: ")]
            said = printable(lines[-1].removeprefix("error: ") if lines else "", limit=1000)
            raise CannotHandOver(said or f"`coordinator {' '.join(command)}` has failed.",
                                 remedy="" if said else "Run it at the hub to see why.")
        found: Mapping[str, str] = json.loads(out)
        return found
