"""One thing that `silo check` has looked at, and how it stands.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from semisilo.common.errors import SemisiloError

__all__ = ["Finding", "State", "bad"]

State = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    """A word or two: "certificate", "disk"."""
    state: State
    """"bad": this silo cannot take part; "warning": it can, but something should be fixed; "unknown": not found
    out."""
    text: str
    remedy: str = ""
    """What to do; empty when there is nothing."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Numbers behind the text, for programs: plain JSON types, others for each thing that is looked at."""


def bad(what: str, error: SemisiloError) -> Finding:
    """The finding of an error."""
    return Finding(what=what, state="bad", text=error.text, remedy=error.remedy, facts={"code": error.code})
