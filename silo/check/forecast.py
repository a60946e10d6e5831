"""How many bytes and seconds a round will take of this silo, and how that was estimated.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semisilo.common.text.describe import counted, describe_bytes, describe_seconds
from semisilo.silo.agent.task_times import TaskTook, read_tasks
from semisilo.silo.site.home import SiloHome

if TYPE_CHECKING:
    from semisilo.silo.check.needs import OwnRound, StudyNeeds

__all__ = ["Forecast", "forecast", "line_of"]

_RECENT = 5
_SMALLEST_MEASURED_BYTES = 256 * 1024
"""A transfer of less says more about round trips than about the line."""
_SHORTEST_SECONDS = 0.05
"""What is less would be written as 0.0 s."""
_VALUE_BYTES = {"bf16": 2.0, "int8": 1.0, "int4": 0.5}
_INDEX_BYTES = 2.0
"""Of one of the largest elements, about: what its place costs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """One round. What is not known is None or 0."""

    down_bytes: int
    up_bytes: int
    bytes_from: str
    """How the bytes were estimated, in words."""
    train_seconds: float | None
    train_from: str
    transfer_seconds: float | None
    transfer_from: str
    once_bytes: int = 0
    """Frozen layers, which come before the first round of the study and then no more; 0 once they are here."""

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.down_bytes + self.up_bytes

    @property
    def seconds(self) -> float | None:
        """Transfers and training; None when one of them is not known."""
        if self.train_seconds is None or self.transfer_seconds is None:
            return None
        return self.train_seconds + self.transfer_seconds


def forecast(needs: StudyNeeds, home: SiloHome, *, images: int, measured_seconds: float | None = None) -> Forecast:
    """The next round of a study at this silo.

    Args:
        images: of this silo now; an earlier training is scaled by it.
        measured_seconds: of the training of a round, as `silo check --measure` estimated it.
    """
    tasks = [task for task in read_tasks(home.rounds) if task.study == needs.task.study]
    down, up, bytes_from = _bytes(needs, tasks)
    train, train_from = _training(needs, tasks, images, measured_seconds)
    transfer, transfer_from = _transfer(read_tasks(home.rounds), down, up)
    return Forecast(down_bytes=down, up_bytes=up, bytes_from=bytes_from, train_seconds=train, train_from=train_from,
                    transfer_seconds=transfer, transfer_from=transfer_from,
                    once_bytes=0 if _took_part(needs, tasks) else needs.frozen_bytes)


def line_of(found: Forecast) -> str:
    """For a person."""
    if not found.bytes:
        return f"bytes per round: {found.bytes_from}"
    parts = [f"about {describe_bytes(found.down_bytes)} in and {describe_bytes(found.up_bytes)} out per round "
             f"({found.bytes_from})"]
    if found.once_bytes:
        parts.append(f"before the first round once {describe_bytes(found.once_bytes)} in, of layers that nobody trains")
    parts.append(f"training {describe_seconds(found.train_seconds)} ({found.train_from})"
                 if found.train_seconds is not None else f"time of training unknown: {found.train_from}")
    parts.append(f"transfers {describe_seconds(found.transfer_seconds)} ({found.transfer_from})"
                 if found.transfer_seconds is not None else f"time of transfers unknown: {found.transfer_from}")
    return "; ".join(parts)


def _took_part(needs: StudyNeeds, tasks: list[TaskTook]) -> bool:
    """Whether the silo has had a task of the study, with which frozen layers come."""
    return bool(tasks) or any(entry.payload_down for entry in needs.own_rounds)


def _usual(rounds: list[OwnRound], frozen_bytes: int) -> tuple[list[OwnRound], int]:
    """Rounds that say what a round takes, and how many of their bytes came in will not come again: the frozen layers,
    where no other round is there yet than the one with which they came."""
    without = [entry for entry in rounds if not frozen_bytes or entry.payload_down < frozen_bytes]
    return (without, 0) if without else (rounds, frozen_bytes)


def _bytes(needs: StudyNeeds, tasks: list[TaskTook]) -> tuple[int, int, str]:
    taken = [entry for entry in needs.own_rounds if entry.payload_down or entry.payload_up][-_RECENT:]
    own, once = _usual(taken, needs.frozen_bytes)
    if own:
        wire = all(entry.wire_down and entry.wire_up for entry in own)
        down = statistics.median(entry.wire_down if wire else entry.payload_down for entry in own) - once
        up = statistics.median(entry.wire_up if wire else entry.payload_up for entry in own)
        what = "on the wire" if wire else "payloads"
        return (round(down), round(up),
                f"{what}, median of this silo's last {counted(len(own), 'round')}, by the coordinator's count")
    rounds: dict[int, list[TaskTook]] = {}
    for task in tasks:
        rounds.setdefault(task.round, []).append(task)
    if rounds:
        recent = [rounds[number] for number in sorted(rounds)][-_RECENT:]
        return (round(statistics.median(sum(task.received_bytes for task in entry) for entry in recent)),
                round(statistics.median(sum(task.sent_bytes for task in entry) for entry in recent)),
                f"on the wire, median of this silo's last {counted(len(recent), 'round')}, by its own count")
    dense = needs.dense_bytes
    if not dense:
        return 0, 0, "unknown until the study has begun"
    if needs.masked_update_bytes:
        return dense, needs.masked_update_bytes, "at most a whole model in, and the words of a masked update out"
    if needs.typical_update_bytes:
        return dense, needs.typical_update_bytes, "a whole model in, what other silos' updates took out"
    return dense, _lossy_bytes(needs), "at most: a whole model in, and an update of its size in the study's form out"


def _lossy_bytes(needs: StudyNeeds) -> int:
    uplink = needs.task.uplink
    value = _VALUE_BYTES.get(uplink.values, 4.0)
    per_element = value if uplink.top_k >= 1 else uplink.top_k * (value + _INDEX_BYTES)
    return round(needs.dense_bytes / 4 * per_element)


def _training(needs: StudyNeeds, tasks: list[TaskTook], images: int,
              measured_seconds: float | None) -> tuple[float | None, str]:
    if measured_seconds is not None:
        return measured_seconds, "plain steps of the study's network, just measured; the method's own views add to it"
    trained = [task for task in tasks if task.train_seconds > 0]
    if trained:
        last = {task.round for task in trained[-_RECENT:]}
        sums = [sum(task.train_seconds * (images / task.images if images and task.images else 1.0) for task in trained
                    if task.round == number) for number in sorted(last)]
        return statistics.median(sums), f"median of this silo's last {counted(len(sums), 'training')} of the study"
    declared = [entry.training_seconds for entry in needs.own_rounds if entry.training_seconds is not None][-_RECENT:]
    if declared:
        return (statistics.median(declared),
                f"median of this silo's last {counted(len(declared), 'training')}, by the coordinator")
    return None, "this silo has not trained in the study yet; --measure times its network"


def _transfer(tasks: tuple[TaskTook, ...], down: int, up: int) -> tuple[float | None, str]:
    """With the speed of the line in the last tasks of any study, each way."""
    rates_down = [task.download_bytes / task.download_seconds for task in tasks
                  if task.download_bytes >= _SMALLEST_MEASURED_BYTES and task.download_seconds > 0][-_RECENT:]
    rates_up = [task.upload_bytes / task.upload_seconds for task in tasks
                if task.upload_bytes >= _SMALLEST_MEASURED_BYTES and task.upload_seconds > 0][-_RECENT:]
    if not rates_down and not rates_up:
        at = (down + up) * 8 / 100e6
        why = ("transfers so far were too small to measure the connection" if any(
            task.download_bytes or task.upload_bytes for task in tasks) else "the line has not been measured yet")
        expected = describe_seconds(at) if at >= _SHORTEST_SECONDS else "less than 0.1 s"
        return None, f"{why}; at 100 Mbit/s it would be {expected}"
    rate_down = statistics.median(rates_down or rates_up)
    rate_up = statistics.median(rates_up or rates_down)
    return (down / rate_down + up / rate_up, f"line measured in the last tasks: {describe_bytes(rate_down)}/s in, "
                                             f"{describe_bytes(rate_up)}/s out")
