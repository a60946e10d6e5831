"""What rounds and studies cost in bytes, added up in one way for every reader."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from semisilo.coordinator.ledger.costs import Direction, Kind
from semisilo.coordinator.ledger.traffic import RoundTotal, SiloWay

__all__ = ["OVERHEAD", "SILOS", "CostLine", "RoundCosts", "StudyCosts", "Traffic", "cost_lines", "share_of",
           "silo_ways", "traffic_of"]

SILOS = "silos"
OVERHEAD = "overhead"
"""Items of wire bytes: what connections of silos carried, and what belongs to no silo."""
_KINDS: tuple[Kind, ...] = ("payload", "message", "wire")


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes of one round or of a whole study, each way, and what dense transfers would have cost."""

    payload_down: int = 0
    payload_up: int = 0
    message_down: int = 0
    message_up: int = 0
    wire_down: int = 0
    wire_up: int = 0
    overhead_down: int = 0
    """Part of `wire_down` that belongs to no silo."""
    overhead_up: int = 0
    downloads: int = 0
    """Silos that received a payload, counted once per round, and again where it is done again."""
    uploads: int = 0
    """Silos whose update was accepted, counted likewise."""
    dense_bytes: int = 0
    """Bytes of one dense model: 4 x its parameters; 0 when unknown."""
    estimated: bool = False
    """Whether wire bytes follow from the messages, for want of the kernel's counters."""

    @property
    def payload(self) -> int:
        """Payload bytes, both ways."""
        return self.payload_down + self.payload_up

    @property
    def wire(self) -> int:
        """Wire bytes, both ways."""
        return self.wire_down + self.wire_up

    @property
    def overhead(self) -> int:
        """Wire bytes that belong to no silo, both ways."""
        return self.overhead_down + self.overhead_up

    @property
    def dense_total(self) -> int:
        """What the same transfers would have cost as dense tensors: one model per download and per upload."""
        return self.dense_bytes * (self.downloads + self.uploads)

    @property
    def dense_down(self) -> int:
        """What the downloads would have cost as dense models."""
        return self.dense_bytes * self.downloads

    @property
    def dense_up(self) -> int:
        """What the accepted updates would have cost as dense models."""
        return self.dense_bytes * self.uploads

    @property
    def simulated(self) -> bool:
        """Whether there are payload bytes only, as of a simulation."""
        return bool(self.payload) and not (self.wire or self.message_down or self.message_up)

    @property
    def share_down(self) -> float | None:
        """Payload bytes per download as a share of a dense model; None without downloads or model."""
        return share_of(self.payload_down, self.dense_down)

    @property
    def share_up(self) -> float | None:
        """Payload bytes per accepted update as a share of a dense model."""
        return share_of(self.payload_up, self.dense_up)

    @property
    def wire_share_down(self) -> float | None:
        """Wire bytes to silos as a share of the downloads as dense models."""
        return share_of(self.wire_down, self.dense_down)

    @property
    def wire_share_up(self) -> float | None:
        """Wire bytes from silos as a share of the accepted updates as dense models."""
        return share_of(self.wire_up, self.dense_up)

    @property
    def payload_share(self) -> float | None:
        """Payload bytes, both ways, as a share of the dense total."""
        return share_of(self.payload, self.dense_total)

    @property
    def share(self) -> float | None:
        """Wire bytes as a share of the dense total."""
        return share_of(self.wire, self.dense_total)


@dataclass(slots=True)
class RoundCosts:
    """Bytes of one round."""

    bytes: defaultdict[tuple[Kind, Direction], int] = field(default_factory=lambda: defaultdict(int))
    items: defaultdict[tuple[Kind, str, Direction], int] = field(default_factory=lambda: defaultdict(int))
    """(payload or message, group or RPC, direction) -> bytes."""
    overhead: defaultdict[Direction, int] = field(default_factory=lambda: defaultdict(int))
    transfers: defaultdict[Direction, int] = field(default_factory=lambda: defaultdict(int))
    """Direction -> silos with payload bytes, however many streams that took: a resumed download counts once, and its
    repeated bytes show as a share above what one needs."""
    estimated: bool = False

    def add(self, total: RoundTotal) -> None:
        """Takes in a sum of this round."""
        self.bytes[total.kind, total.direction] += total.bytes
        self.transfers[total.direction] += total.silos
        if total.kind == "wire":
            self.overhead[total.direction] += total.overhead
            self.estimated |= total.estimated
        else:
            self.items[total.kind, total.item, total.direction] += total.bytes

    @property
    def wire(self) -> int:
        """Both ways."""
        return self.bytes["wire", "down"] + self.bytes["wire", "up"]


@dataclass(slots=True)
class StudyCosts:
    """Bytes of one study."""

    rounds: defaultdict[int, RoundCosts] = field(default_factory=lambda: defaultdict(RoundCosts))
    by_silo: Mapping[str, Mapping[Direction, int]] = field(default_factory=dict)
    """Wire bytes; the name is empty for those that belong to no silo."""

    def replace(self, totals: Iterable[RoundTotal]) -> None:
        """Takes in the sums of some rounds, all of each, for what it had of them."""
        changed: defaultdict[int, RoundCosts] = defaultdict(RoundCosts)
        for total in totals:
            changed[total.round].add(total)
        self.rounds.update(changed)

    def traffic(self, *, dense_bytes: int, round: int | None = None) -> Traffic:
        """Of the whole study, or of one round.

        Args:
            dense_bytes: of one dense model; 0 when unknown.
        """
        chosen = list(self.rounds.values()) if round is None else [self.rounds.get(round, RoundCosts())]

        def total(kind: Kind, direction: Direction) -> int:
            return sum(costs.bytes.get((kind, direction), 0) for costs in chosen)

        return Traffic(
            payload_down=total("payload", "down"), payload_up=total("payload", "up"),
            message_down=total("message", "down"), message_up=total("message", "up"),
            wire_down=total("wire", "down"), wire_up=total("wire", "up"),
            overhead_down=sum(costs.overhead.get("down", 0) for costs in chosen),
            overhead_up=sum(costs.overhead.get("up", 0) for costs in chosen),
            downloads=sum(costs.transfers.get("down", 0) for costs in chosen),
            uploads=sum(costs.transfers.get("up", 0) for costs in chosen),
            dense_bytes=dense_bytes, estimated=any(costs.estimated for costs in chosen))

    def wire(self) -> int:
        """Wire bytes of the study, both ways."""
        return sum(costs.wire for costs in self.rounds.values())

    def items(self, kind: Kind) -> Iterator[tuple[str, dict[Direction, int]]]:
        """(group or RPC, bytes each way) of one kind, most bytes first."""
        found: defaultdict[str, dict[Direction, int]] = defaultdict(lambda: {"down": 0, "up": 0})
        for costs in self.rounds.values():
            for (each, item, direction), size in costs.items.items():
                if each == kind:
                    found[item][direction] += size
        return iter(sorted(found.items(), key=lambda pair: (-pair[1]["down"] - pair[1]["up"], pair[0])))


@dataclass(frozen=True, slots=True)
class CostLine:
    """Bytes of one kind and item of a study, each way."""

    kind: Kind
    item: str
    """Tensor group (payload), RPC (message), `SILOS` or `OVERHEAD` (wire)."""
    down: int
    up: int
    count: int
    """Transfers or messages behind them."""


def cost_lines(totals: Iterable[RoundTotal]) -> tuple[CostLine, ...]:
    """The costs of a study added up by item: payload, messages, wire; `OVERHEAD` stands last, and is always there."""
    sizes: Counter[tuple[Kind, str, Direction]] = Counter()
    counts: Counter[tuple[Kind, str]] = Counter({("wire", OVERHEAD): 0})
    for total in totals:
        item, size = (SILOS, total.bytes - total.overhead) if total.kind == "wire" else (total.item, total.bytes)
        if total.kind == "wire":
            sizes["wire", OVERHEAD, total.direction] += total.overhead
        if size or total.count or total.kind != "wire":
            sizes[total.kind, item, total.direction] += size
            counts[total.kind, item] += total.count
    keys = sorted(counts, key=lambda key: (_KINDS.index(key[0]), key == ("wire", OVERHEAD), key[1]))
    return tuple(CostLine(kind, item, sizes[kind, item, "down"], sizes[kind, item, "up"], counts[kind, item])
                 for kind, item in keys)


def silo_ways(wire: Mapping[SiloWay, int]) -> dict[str, dict[Direction, int]]:
    """Silo -> bytes each way."""
    found: dict[str, dict[Direction, int]] = {}
    for (silo, direction), size in wire.items():
        found.setdefault(silo, {"down": 0, "up": 0})[direction] = size
    return found


def traffic_of(totals: Iterable[RoundTotal], *, dense_bytes: int = 0) -> Traffic:
    """What some sums of a study come to, all of each round that they are of."""
    book = StudyCosts()
    book.replace(totals)
    return book.traffic(dense_bytes=dense_bytes)


def share_of(part: int, whole: int) -> float | None:
    """Part over whole; None when there is no whole."""
    return part / whole if whole else None
