"""What each encoding carried and saved, as rows of the ledger's table `encoded`.

Down: what crossed, so each download counts, and a part that was sent twice counts twice. Up: accepted updates. Both as
the payload rows of `semisilo.coordinator.ledger.costs`, whose bytes these rows add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from semisilo.common.errors import BadPayload
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.payload.usage import FRAMING, HELD, UNKNOWN, Encoded, Part, carried, parts_of
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.ledger.costs import Direction
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["DownloadEncodings", "EncodingUse", "add_encoded", "encoding_totals", "encodings_of", "held_groups"]

_REMEMBERED_FILES = 64
_LAST = {FRAMING: 2, UNKNOWN: 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodingUse:
    """What one encoding carried in one direction."""

    encoding: str
    """`semisilo.common.payload.usage.Part` explains the names; "held": tensor groups that were not sent, because silos
    had them."""
    direction: Direction
    blocks: int
    bytes: int
    dense_bytes: int
    """The same elements as they lie in memory."""
    saved_bytes: int
    """Dense bytes less bytes; below 0 where the encoding cost something, as framing does."""

    @property
    def share_of_dense(self) -> float | None:
        """Bytes over dense bytes; None where there is nothing dense, as of framing."""
        return self.bytes / self.dense_bytes if self.dense_bytes else None


def add_encoded(ledger: Ledger, rows: Iterable[Encoded], *, study: str, round: int, direction: Direction) -> None:
    """Adds what was carried to the sums of a round."""
    with ledger.transaction(lasting=False) as db:
        db.executemany(
            "INSERT INTO encoded VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " blocks = blocks + excluded.blocks, bytes = bytes + excluded.bytes,"
            " dense_bytes = dense_bytes + excluded.dense_bytes",
            [(study, round, direction, row.encoding, row.blocks, row.bytes, row.dense_bytes) for row in rows])


def encodings_of(ledger: Ledger, study: str) -> list[EncodingUse]:
    """What each encoding carried in a study, by direction, the most bytes saved first; framing stands last."""
    rows = ledger.query("SELECT direction, encoding, sum(blocks) AS blocks, sum(bytes) AS bytes,"
                        " sum(dense_bytes) AS dense FROM encoded WHERE study = ? GROUP BY direction, encoding", study)
    uses = [EncodingUse(encoding=row["encoding"], direction=row["direction"], blocks=row["blocks"], bytes=row["bytes"],
                        dense_bytes=row["dense"], saved_bytes=row["dense"] - row["bytes"]) for row in rows]
    return sorted(uses, key=lambda use: (use.direction, _LAST.get(use.encoding, 0), -use.saved_bytes, use.encoding))


def encoding_totals(uses: Sequence[EncodingUse]) -> tuple[EncodingUse, ...]:
    """All encodings together, for each direction: down, then up. Their `encoding` is "all"."""
    directions: tuple[Direction, ...] = ("down", "up")
    return tuple(_total([use for use in uses if use.direction == direction], direction) for direction in directions)


def _total(uses: Sequence[EncodingUse], direction: Direction) -> EncodingUse:
    return EncodingUse(encoding="all", direction=direction, blocks=sum(use.blocks for use in uses),
                       bytes=sum(use.bytes for use in uses), dense_bytes=sum(use.dense_bytes for use in uses),
                       saved_bytes=sum(use.saved_bytes for use in uses))


def held_groups(payloads: Iterable[PayloadRef]) -> list[Encoded]:
    """What a task does not send, because the silo holds it."""
    held = sum(payload.held_bytes for payload in payloads if not payload.digest)
    return [Encoded(HELD, 0, 0, held)] if held else []


class DownloadEncodings:
    """The encodings of payload files on their way to silos; each file is looked into once."""

    def __init__(self, store: PayloadStore) -> None:
        self._store = store
        self._parts: dict[str, tuple[Part, ...]] = {}

    def carried(self, digest: str, *, offset: int, sent_bytes: int) -> tuple[Encoded, ...]:
        """What `sent_bytes` of a file carried, from byte `offset` on."""
        if digest not in self._parts:
            try:
                parts = parts_of(self._store.path(digest))
            except (OSError, BadPayload):  # removed meanwhile, or damaged; the bytes have crossed all the same
                return (Encoded(UNKNOWN, 0, sent_bytes, sent_bytes),)
            while len(self._parts) >= _REMEMBERED_FILES:
                del self._parts[next(iter(self._parts))]
            self._parts[digest] = parts
        return carried(self._parts[digest], offset, offset + sent_bytes)
