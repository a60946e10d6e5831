"""The payload stores of a silo, as its light and its compute process open them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.exchange import PayloadRef
from common.store import PayloadStore
from common.tensor_cache import TensorCache

__all__ = ["collect_tensors", "open_cache", "open_outgoing"]

_SPARE_GROUPS = 12
"""Tensor groups of earlier tasks and updates that stay on disk: the next task may name one again, or be coded against
it."""
_SPARES_OF_A_NAME = 2
"""Of each name: what the last task brought and what the update made of it. Which of them the coordinator goes on from
is only known later; and rounds that ask this silo for statistics alone must not push them out."""

_SPARE_FILES = 1
"""The next payload of a round is as large as the last one, and is written over it."""


def open_cache(folder: Path) -> PayloadStore:
    """What arrives. It need not survive a stop of the machine: what is damaged is fetched again."""
    return PayloadStore(folder, spare_files=_SPARE_FILES, durable=False)


def collect_tensors(tensors: TensorCache, payloads: Iterable[PayloadRef]) -> None:
    """Removes the tensor groups that neither the payloads of the task at hand need nor the next ones are likely to."""
    tensors.collect({digest for each in payloads for digest in (each.tensors, each.reference)}, spare=_SPARE_GROUPS,
                    of_each_name=_SPARES_OF_A_NAME)


def open_outgoing(folder: Path) -> PayloadStore:
    """Updates."""
    return PayloadStore(folder, spare_files=_SPARE_FILES)
