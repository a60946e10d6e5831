"""TensorBoard event files of studies: one file per study, one record per round, appended and never written twice. The
line of labels alone, which may come later than rounds, is then one more record for each of these.

A record is written whole or, after a kill, cut off at the next start: its own checksums show which. So which rounds are
in the file can be read from the file, and it needs no other memory. Where a study has gone back, or its ledger is one
from a backup, the file holds rounds that are not the study's: they were committed at other times. A record that
TensorBoard knows as a restart takes them back, and those that are done again follow. Nothing here imports torch or
tensorflow.

Tests: tests/coordinator/tracking/test_tensorboard.py.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from semisilo.common.errors import SemisiloError
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.tracking.facts import LABELS_ALONE, RoundFacts, RoundReader, flat_settings

__all__ = ["event_file", "write_events"]

_FILE_VERSION = "brain.Event:2"
_HEAD = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_LONGEST_RECORD = 64 * 2**20
"""A length beyond this is damage; a round of 200 silos has some 30 kB."""


def event_file(folder: Path, queued_unix: float) -> Path:
    """The file of a study that was queued then: TensorBoard wants the time in the name."""
    return folder / f"events.out.tfevents.{int(queued_unix):010d}.semisilo"


def write_events(ledger: Ledger, study: str, folder: Path, *, reader: RoundReader | None = None) -> int:
    """Adds the committed rounds of a study that are not in its event file yet; returns how many.

    Args:
        folder: where the file goes, made when missing.
        reader: of this study, where one is kept between calls.
    Raises: UnknownName; SemisiloError when another process writes the file now; OSError.
    """
    row = ledger.study(study)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(event_file(folder, row.queued_unix)) as file:
        told, end = _scan(file)
        file.truncate(end)
        file.seek(end)
        reader = reader or RoundReader(ledger, study)
        committed = reader.committed()
        gone = min((number for number, (unix, _) in told.items() if committed.get(number) != unix), default=None)
        if gone is not None:
            file.write(_record(_restart_event(gone, row.queued_unix)))
            told = {number: entry for number, entry in told.items() if number < gone}
        last, with_line = max(told, default=-1), {number for number, (_, line) in told.items() if line}
        rounds, late = reader.rounds_after(last), reader.labels_alone(up_to=last, known=with_line)
        if gone is None and not rounds and not late:
            return 0
        if end == 0:
            file.write(_record(_version_event(row.queued_unix)))
        for entry in late:
            file.write(_record(_round_event(entry, {})))
        for entry in rounds:
            settings = flat_settings(row.config) if entry.number == 0 else {}
            file.write(_record(_round_event(entry, settings)))
        file.flush()
        os.fsync(file.fileno())
    return len(rounds)


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SemisiloError(f"{path}: another process is writing it.",
                                remedy="`coordinator serve` does where [tracking] says so; let it.") from None
        file.seek(0)
        # In append mode every write goes to the end, wherever the position is: what is cut off is cut off first.
        yield file


def _scan(file: IO[bytes]) -> tuple[dict[int, tuple[float, bool]], int]:
    """(round -> when it was committed and whether it has the line of labels alone, where the last whole record
    ends)."""
    told: dict[int, tuple[float, bool]] = {}
    whole = 0
    for event, end in _events(file):
        whole = end
        if event.HasField("session_log"):
            told = {number: entry for number, entry in told.items() if number < event.step}
        if event.HasField("summary"):
            line = any(value.tag == LABELS_ALONE for value in event.summary.value)
            told[event.step] = event.wall_time, line or told.get(event.step, (0.0, False))[1]
    return told, whole


def _events(file: IO[bytes]) -> Iterator[tuple[Any, int]]:
    """Whole records from the start: (event, where it ends). Ends before the first that is cut off or damaged."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import masked_crc32c

    end = 0
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, check = _HEAD.unpack(head)
        if masked_crc32c(head[:8]) != check or length > _LONGEST_RECORD:
            return
        data, foot = file.read(length), file.read(_CHECK.size)
        if len(data) != length or len(foot) != _CHECK.size or masked_crc32c(data) != _CHECK.unpack(foot)[0]:
            return
        end += _HEAD.size + length + _CHECK.size
        try:
            yield event_pb2.Event.FromString(data), end
        except DecodeError:
            return


def _record(event: Any) -> bytes:
    """An event with its length and checksums, as TensorBoard reads it."""
    import io

    from tensorboard.summary.writer.record_writer import RecordWriter

    target = io.BytesIO()
    RecordWriter(target).write(event.SerializeToString())
    return target.getvalue()


def _version_event(unix: float) -> Any:
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event(wall_time=unix, file_version=_FILE_VERSION)


def _restart_event(number: int, unix: float) -> Any:
    """This round and those behind it are to be forgotten."""
    from tensorboard.compat.proto import event_pb2

    return event_pb2.Event(wall_time=unix, step=number,
                           session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))


def _round_event(entry: RoundFacts, settings: dict[str, str]) -> Any:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=name, simple_value=value)
                                         for name, value in sorted(entry.scalars.items())])
    if sum(entry.pseudo_labels) > 0:
        summary.value.append(_histogram("pseudo_labels", entry.pseudo_labels))
    if settings:
        summary.value.append(_text("settings", settings))
    return event_pb2.Event(wall_time=entry.unix, step=entry.number, summary=summary)


def _histogram(name: str, counts: tuple[float, ...]) -> Any:
    """A bar for each class, from its number - 0.5 to + 0.5."""
    from tensorboard.compat.proto import summary_pb2

    shown = [label for label, count in enumerate(counts) if count > 0]
    return summary_pb2.Summary.Value(tag=name, histo=summary_pb2.HistogramProto(
        min=min(shown), max=max(shown), num=sum(counts), sum=sum(label * count for label, count in enumerate(counts)),
        sum_squares=sum(label**2 * count for label, count in enumerate(counts)),
        bucket_limit=[label + 0.5 for label in range(len(counts))], bucket=counts))


def _text(name: str, settings: dict[str, str]) -> Any:
    """A table in TensorBoard's text view, which reads Markdown."""
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

    lines = ["| setting | value |", "|---|---|",
             *(f"| {key} | {_cell(value)} |" for key, value in settings.items())]
    return summary_pb2.Summary.Value(
        tag=name, metadata=summary_pb2.SummaryMetadata(
            plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"),
            data_class=summary_pb2.DATA_CLASS_TENSOR),
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=["\n".join(lines).encode()],
                                      tensor_shape=tensor_shape_pb2.TensorShapeProto()))


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
