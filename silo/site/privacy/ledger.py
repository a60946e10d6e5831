"""What this site has spent of its privacy budget: `<home>/privacy/spent.jsonl`, one JSON object a line, over all
studies.

A line is on disk before the training that it tells of begins, so a killed round counts. A task that is done again with
the same fingerprint (model, settings, images, all that its bits follow from) has the same noise and gives the same
bits: it tells nothing new and has one line. Anything else has other noise and a line of its own.

What the site has spent is counted over all lines; what a study has spent, over those of its name and federation.

The noise follows from `<home>/privacy/noise.key`, which never leaves the site: with it the noise could be subtracted.

Tests: tests/silo/site/privacy/test_ledger.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from semisilo.common.config import from_dict
from semisilo.common.errors import BadConfiguration, StorageDamaged
from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of
from semisilo.common.storage.durable import sync_file, sync_folder, sync_found, write_secret

__all__ = ["PrivacyLedger", "Spending", "may_be_of", "now_text", "spent", "spent_by_study", "steps_of_study"]

_KEY_BYTES = 32
_MOST_BYTES = 2**28
"""Of the file; a line has some 500."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """A line: one task."""

    time: str
    study: str
    round: int
    phase: str
    task_id: str
    fingerprint: str
    """SHA-256 of all that the task's bits follow from, hex."""
    images: int
    """That the silo trained on."""
    noise_multiplier: float
    clip_norm: float
    sampling_rate: float
    """Of labelled or of unlabelled images, whichever is larger."""
    steps: int
    study_delta: float
    study_epsilon: float
    """What the study has spent by then, this task included, at its own delta."""
    delta: float
    """The site's, from silo.toml."""
    epsilon: float
    """What all studies have spent by then, this task included, at the site's delta."""
    authority: str = ""
    """Of the study's federation (`authority_id`); empty in a simulation and where an earlier version wrote the line."""

    @property
    def noisy_steps(self) -> NoisySteps:
        """What the accountant counts."""
        return NoisySteps(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate, steps=self.steps)


_PARSED: dict[Path, tuple[int, str, tuple[Spending, ...]]] = {}
"""What this process has read of a ledger: bytes, their SHA-256 in hex, and their lines."""


class PrivacyLedger:
    """Of one site. The light process reads it, the compute process writes it; one task at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "spent.jsonl"

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def lines(self) -> tuple[Spending, ...]:
        """All of them, oldest first; none where nothing was spent.

        A last line that was cut short was not on disk when its task was to begin, so nothing was trained: it is none.
        Raises: StorageDamaged, for what was spent cannot be known then.
        """
        whole = self._whole()
        length, digest, known = _PARSED.get(self._path, (0, "", ()))
        # What was read before is only read on: a study's tasks would otherwise parse the square of their number.
        if not known or hashlib.sha256(whole[:length]).hexdigest() != digest:
            length, known = 0, ()
        raws = whole[length:].splitlines()
        before = whole.count(b"\n", 0, length)
        found = known + tuple(self._parsed(number, raw) for number, raw in enumerate(raws, before + 1) if raw.strip())
        _PARSED.clear()  # a process has one site
        _PARSED[self._path] = (len(whole), hashlib.sha256(whole).hexdigest(), found)
        return found

    def last(self) -> Spending | None:
        """The newest line; None where nothing was spent. Raises: StorageDamaged, where that one cannot be read."""
        return next(self._backwards(), None)

    def of_study(self, study: str, *, authority: str = "") -> Spending | None:
        """The newest line of a study of a federation: what it has spent by now. Raises: StorageDamaged, where one since
        then cannot be read."""
        return next((line for line in self._backwards() if line.study == study and may_be_of(line, authority)), None)

    def _backwards(self) -> Iterator[Spending]:
        """The lines, newest first, each read when it is asked for."""
        raws = self._whole().splitlines()
        for number in range(len(raws), 0, -1):
            if raws[number - 1].strip():
                yield self._parsed(number, raws[number - 1])

    def _whole(self) -> bytes:
        """All lines with their line breaks, without one that was cut short."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return b""
        if len(content) > _MOST_BYTES:
            raise self._damaged("is too large")
        return content[:content.rfind(b"\n") + 1]

    def _parsed(self, number: int, raw: bytes) -> Spending:
        try:
            return from_dict(Spending, json.loads(raw))
        except (ValueError, RecursionError, BadConfiguration):
            raise self._damaged(f"line {number} cannot be read") from None

    def append(self, line: Spending) -> None:
        """Writes a line and waits until it is on disk. Raises: OSError, with the file as it was."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            start = _whole_length(handle, size)
            if start != size:  # what a kill has cut short
                os.ftruncate(handle, start)
            try:
                view = memoryview(_text(line).encode())
                while view:
                    start += (written := os.pwrite(handle, view, start))
                    view = view[written:]
                sync_file(handle)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)
        if not size:
            sync_folder(self._folder)

    def keep(self) -> None:
        """Waits until the lines that are there are on disk: whoever wrote the last one may have been killed before it
        was, and a task that has a line spends nothing more. Raises: OSError."""
        sync_found(self._path)

    def key_of(self, fingerprint: str) -> bytes:
        """The secret that the random numbers of a task follow from, 32 bytes: HMAC-SHA-256 of its fingerprint.

        The site's own secret is made at the first call, from the system's generator. Where it is lost a new one is
        made: a task that is done again then has other noise, and must count again.
        Raises: StorageDamaged where it is there and no such secret.
        """
        path = self._folder / "noise.key"
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            secret = secrets.token_bytes(_KEY_BYTES)
            self.keep_secret(secret)
        if len(secret) != _KEY_BYTES:
            raise StorageDamaged(f"{path}: is not a secret of {_KEY_BYTES} bytes.",
                                 remedy="Remove it: a new one is made, and tasks that are done again count again.")
        return hmac.digest(secret, f"semisilo noise v1\x1f{fingerprint}".encode(), "sha256")

    def keep_secret(self, secret: bytes) -> None:
        """Writes the site's secret, 32 bytes; simulations alone hand one over, so that they can be repeated."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(self._folder / "noise.key", secret)

    def secret_name(self) -> str:
        """Tells one secret from another without telling it; empty before there is one."""
        with suppress(FileNotFoundError):
            return hashlib.sha256(b"semisilo noise name\x1f" + (self._folder / "noise.key").read_bytes()).hexdigest()
        return ""

    def _damaged(self, why: str) -> StorageDamaged:
        return StorageDamaged(f"{self._path}: {why}, so what was spent of the privacy budget is not known.",
                              remedy="Restore the file from a backup. Without one, have whoever answers for the budget "
                                     "decide, and note here what was spent.")


def may_be_of(line: Spending, authority: str) -> bool:
    """Whether a line may be of a federation. One that does not say may be of any: what a study promises holds then,
    whichever it was."""
    return line.authority in ("", authority)


def steps_of_study(lines: Iterable[Spending], study: str, authority: str) -> list[NoisySteps]:
    """What a study of a federation has spent; another federation's of the same name is another study."""
    return [line.noisy_steps for line in lines if line.study == study and may_be_of(line, authority)]


def spent_by_study(lines: Iterable[Spending], authority: str | None) -> dict[str, float]:
    """Study -> what it had spent by its last line, at its own delta; of the studies of a federation, or of all where it
    is not known which one this silo is in."""
    return {line.study: line.study_epsilon for line in lines if authority is None or may_be_of(line, authority)}


def spent(lines: Iterable[Spending], delta: float, *, study: str = "") -> float:
    """Epsilon of these lines at a delta; of one study's where it is named. Raises: NotPermitted as `epsilon_of`."""
    return epsilon_of([line.noisy_steps for line in lines if not study or line.study == study], delta)


def now_text() -> str:
    """The moment, as a line has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text(line: Spending) -> str:
    entry = asdict(line)
    if not line.authority:
        del entry["authority"]
    return json.dumps(entry, separators=(",", ":")) + "\n"


def _whole_length(handle: int, size: int) -> int:
    """Bytes up to and with the last line break."""
    end = size
    while end:
        start = max(0, end - 4096)
        piece = os.pread(handle, end - start, start)
        if (found := piece.rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0
