"""The coordinator's payload stores, as its light and its compute process open them."""

from __future__ import annotations

from pathlib import Path

from common.store import PayloadStore

__all__ = ["open_payloads", "open_spool"]

_SPARE_PAYLOADS = 2
_SPARE_UPDATES = 8
"""Old files that new ones are written over, at most; they go when the disk is short."""


def open_payloads(folder: Path) -> PayloadStore:
    """What silos may fetch."""
    return PayloadStore(folder, spare_files=_SPARE_PAYLOADS)


def open_spool(folder: Path, *, limit_bytes: int) -> PayloadStore:
    """Updates, until their round is committed."""
    return PayloadStore(folder, limit_bytes=limit_bytes, spare_files=_SPARE_UPDATES)
