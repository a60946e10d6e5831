"""The payload stores of a silo, as its light and its compute process open them.

Tests: tests/silo/agent/test_answer.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from semisilo.common.methods.contract import PayloadRef
from semisilo.common.payload.cache import TensorCache
from semisilo.common.storage.store import PayloadStore

__all__ = ["collect_tensors", "open_cache", "open_outgoing"]

_SPARE_GROUPS = 12
"""Tensor groups of earlier tasks and updates that stay on disk: the next task may name one again, or be coded against
it."""
_OF_EACH_NAME = 1
"""Of each name the newest: what the last update made of it, where it overwrites. Rounds that ask this silo for
statistics alone must not push it out; and more would be a model each, for a simulation's every silo."""

_SPARE_FILES = 1
"""The next payload of a round is as large as the last one, and is written over it."""


def open_cache(folder: Path) -> PayloadStore:
    """What arrives. It need not survive a stop of the machine: what is damaged is fetched again."""
    return PayloadStore(folder, spare_files=_SPARE_FILES, durable=False)


def collect_tensors(tensors: TensorCache, payloads: Iterable[PayloadRef]) -> None:
    """Removes the tensor groups that neither the payloads of the task at hand need nor the next ones are likely to."""
    tensors.collect({digest for each in payloads for digest in (each.tensors, each.reference)}, spare=_SPARE_GROUPS,
                    of_each_name=_OF_EACH_NAME)


def open_outgoing(folder: Path) -> PayloadStore:
    """Updates."""
    return PayloadStore(folder, spare_files=_SPARE_FILES)
