"""What this process knows to be wrong with the site's own images, so that no task is fetched that cannot be done.

Images are read once for a study. When they cannot be used, the next task of the study would end in the same way, after
its payloads have come. So the error stands for the study until something about the files has changed: name, size, or
the time of a change, which a new right to read sets as well. Files that a table names elsewhere are not looked at; a
restart forgets all.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from semisilo.common.errors import BadData
from semisilo.silo.site.home import JoinChoice

__all__ = ["OwnImages", "state_of"]

_DIGEST_BYTES = 16


class OwnImages:
    """Which studies have had the images, and for which they cannot be used. Blocks for as long as a look at the names
    of all files takes, where it says so."""

    def __init__(self, choice: JoinChoice) -> None:
        self._choice = choice
        self._read: set[str] = set()
        self._broken: dict[str, tuple[BadData, str]] = {}

    def knows(self, study: str) -> bool:
        """Whether `standing` and `before_reading` of a study need not look at any file: it has had the images, and
        nothing is known against them."""
        return study in self._read and study not in self._broken

    def before_reading(self, study: str) -> str:
        """The state of the files, for `cannot_be_used`; empty when the study has them already. Blocks."""
        return "" if study in self._read else state_of(self._choice)

    def were_read(self, study: str) -> None:
        """The study has the images."""
        self._read.add(study)
        self._broken.pop(study, None)

    def cannot_be_used(self, study: str, error: BadData, state: str) -> bool:
        """Notes why; returns whether that is news. Blocks when `state` is empty.

        Args:
            state: of the files before they were read: what is fixed meanwhile must count as a change.
        """
        known = self._broken.get(study)
        self._broken[study] = (error, state or state_of(self._choice))
        return known is None or known[0].text != error.text

    def standing(self, study: str) -> BadData | None:
        """Why the images still cannot be used; None when nothing is known against them, or they have changed since.
        Blocks when something is."""
        if study not in self._broken:
            return None
        error, state = self._broken[study]
        return BadData(error.text, remedy=error.remedy) if state_of(self._choice) == state else None


def state_of(choice: JoinChoice) -> str:
    """A digest of names, sizes and times of all files of a choice, by their entries alone; no file is opened."""
    total, seen = 0, set[tuple[int, int]]()
    waiting = [Path(source.partition("#")[0]) for source in choice.sources]
    while waiting:
        path = waiting.pop()
        try:
            about = path.stat()
            text = f"{about.st_mode} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"
            if path.is_dir():
                if (about.st_dev, about.st_ino) in seen:  # a link back to a folder above
                    continue
                seen.add((about.st_dev, about.st_ino))
                with os.scandir(path) as entries:
                    waiting += [Path(entry.path) for entry in entries]
        except OSError as error:
            text = f"error {error.errno}"
        entry = hashlib.blake2b(os.fsencode(path) + b"\0" + text.encode(), digest_size=_DIGEST_BYTES)
        total += int.from_bytes(entry.digest(), "big")  # a sum: the order in which a folder is listed says nothing
    return f"{total:x}"
