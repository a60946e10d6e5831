"""The audit trail of a ledger as CSV or JSON, all of it or a part.

Tests: tests/coordinator/cli/test_audit.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from semisilo.common.audit.chain import ChainedEvent
from semisilo.common.audit.export import ExportAbout, csv_lines, json_pieces
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["ExportFormat", "export_trail"]

ExportFormat = Literal["csv", "json"]
_STRETCH = 4000


def export_trail(federation: str, ledger: Ledger, *, form: ExportFormat, study: str = "", since_unix: float = 0.0,
                 now_unix: float) -> Iterator[str]:
    """The events in order, as text piece by piece: one an event, and one or two more.

    Args:
        study: only events of this study; all when empty.
        since_unix: only events since then.
    """
    events = _chosen(ledger, study=study, since_unix=since_unix)
    if form == "csv":
        return csv_lines(events)
    return json_pieces(events, ExportAbout(federation=federation, exported_unix=now_unix,
                                           complete=not study and not since_unix))


def _chosen(ledger: Ledger, *, study: str, since_unix: float) -> Iterator[ChainedEvent]:
    last = 0
    while events := ledger.events_after(last, limit=_STRETCH, study=study, since_unix=since_unix):
        last = events[-1].number
        yield from events
