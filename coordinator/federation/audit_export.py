"""The audit trail of a ledger as CSV or JSON, all of it or a part.

Tests: tests/coordinator/cli/test_audit.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TextIO

from semisilo.common.audit.chain import ChainedEvent
from semisilo.common.audit.export import ExportAbout, write_csv, write_json
from semisilo.coordinator.ledger.ledger import Ledger

__all__ = ["ExportFormat", "export_trail"]

ExportFormat = Literal["csv", "json"]
_STRETCH = 4000


def export_trail(federation: str, ledger: Ledger, out: TextIO, *, form: ExportFormat, study: str = "",
                 since_unix: float = 0.0, now_unix: float) -> int:
    """Writes the events in order; returns how many.

    Args:
        study: only events of this study; all when empty.
        since_unix: only events since then.
    """
    count = 0

    def chosen() -> Iterator[ChainedEvent]:
        nonlocal count
        last = 0
        while events := ledger.events_after(last, limit=_STRETCH):
            last = events[-1].number
            for event in events:
                if (not study or event.study == study) and event.unix >= since_unix:
                    count += 1
                    yield event

    if form == "csv":
        write_csv(chosen(), out)
    else:
        write_json(chosen(), ExportAbout(federation=federation, exported_unix=now_unix,
                                         complete=not study and not since_unix), out)
    return count
