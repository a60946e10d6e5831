"""The payload stores of a silo, as its light and its compute process open them."""

from __future__ import annotations

from pathlib import Path

from common.store import PayloadStore

__all__ = ["open_cache", "open_outgoing"]

_SPARE_FILES = 1
"""The next payload of a round is as large as the last one, and is written over it."""


def open_cache(folder: Path) -> PayloadStore:
    """What arrives. It need not survive a stop of the machine: what is damaged is fetched again."""
    return PayloadStore(folder, spare_files=_SPARE_FILES, durable=False)


def open_outgoing(folder: Path) -> PayloadStore:
    """Updates."""
    return PayloadStore(folder, spare_files=_SPARE_FILES)
