"""Study cards as `silo studies` shows them.

Tests: tests/silo/cli/test_studies.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from semisilo.common.config import to_dict
from semisilo.common.methods.parts.privacy import shares_noise
from semisilo.common.text.describe import counted, describe_moment
from semisilo.common.text.logs import printable
from semisilo.common.text.wrapped import fitted
from semisilo.silo.study_cards.book import BY_POLICY, CardEntry

__all__ = ["facts_of", "lines_of", "whole_card"]


def facts_of(entry: CardEntry, *, works_on: str | None = None) -> dict[str, object]:
    """Of one study, for a program.

    Args:
        works_on: as of `CardEntry.is_over`; likewise below.
    """
    return {"study": entry.study, "state": entry.state, "over": entry.is_over(works_on), "by": entry.by,
            "unix": entry.unix, "digest": entry.digest, "told": entry.told, "changed": entry.changed,
            "earlier": to_dict(entry.earlier), "card": to_dict(entry.card)}


def lines_of(entries: Sequence[CardEntry], *, works_on: str | None = None, width: int | None = None) -> list[str]:
    """For a person, the newest first.

    Args:
        width: of the terminal, at whose end lines are broken; None for whole lines.
    """
    return [part for line in [line for entry in entries for line in _lines(entry, works_on)] or [
        "No study card has come yet. It comes with the first task that `silo join` is given."]
        for part in fitted(line, width)]


def whole_card(entry: CardEntry, *, works_on: str | None = None, width: int | None = None) -> list[str]:
    """All that a card says, for a person. Its own text is never broken."""
    return [*lines_of([entry], works_on=works_on, width=width), *(printable(line, limit=4000) for line in json.dumps(
        to_dict(entry.card), indent=2, ensure_ascii=False).splitlines())]


def _lines(entry: CardEntry, works_on: str | None) -> list[str]:
    card = entry.card
    said = {"waiting": "not approved, and the study is over" if entry.is_over(works_on) else
            f"waits for a person: silo approve {entry.study}, or silo decline {entry.study}",
            "approved": f"approved by {entry.by}, to be signed with its next task",
            "signed": f"signed, {'by silo.toml' if entry.by == BY_POLICY else f'approved by {entry.by}'}",
            "declined": f"declined by {entry.by}"}[entry.state]
    dp = card.privacy.dp
    lines = [f"{printable(entry.study, limit=128)}: {said}, {describe_moment(entry.unix)}",
             f"  {printable(card.method, limit=64)}, {counted(card.rounds, 'round')}, network"
             f" {printable(card.model.name, limit=128)};"
             f" {'updates behind masks' if card.privacy.secure_aggregation else 'updates in the clear'};"
             f" {'no differential privacy' if dp is None else f'differential privacy of {dp.unit}s'}"
             f"{', whose noise silos share' if shares_noise(dp, secure=card.privacy.secure_aggregation) else ''}",
             f"  leaves: {printable(', '.join(card.sends), limit=300)}; card {entry.digest[:16]}..."]
    if entry.changed:
        lines.append(f"  changed since it was signed before: {printable(entry.changed, limit=1000)}")
    return lines
