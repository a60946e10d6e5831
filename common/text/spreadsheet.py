"""Text in a cell of a table that may be opened in a spreadsheet.

Tests: tests/common/audit/test_export.py, tests/semisilo/prediction/test_predict.py.
"""

from __future__ import annotations

__all__ = ["no_formula"]


def no_formula(text: str) -> str:
    """The text, behind an apostrophe where it begins like a formula: names and reasons come from elsewhere, and a
    spreadsheet would run it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
