"""Names for the shell: what `coordinator report <TAB>` offers. Quick, and silent about whatever is in the way."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["silos", "studies", "study_files"]


def studies(ctx: Any, incomplete: str) -> list[str]:
    """Studies of the ledger."""
    return _names(ctx, "SELECT name FROM study ORDER BY position", incomplete)


def silos(ctx: Any, incomplete: str) -> list[str]:
    """Silos that have enrolled and are neither revoked nor gone."""
    return _names(ctx, "SELECT name FROM silo WHERE revoked_unix IS NULL AND left_unix IS NULL ORDER BY name",
                  incomplete)


def study_files(ctx: Any, incomplete: str) -> list[str]:
    """Folders with a study file: what can be queued."""
    try:
        found = sorted(path.parent.name for path in (_folder(ctx) / "studies").glob("*/study.toml"))
    except OSError:
        return []
    return [name for name in found if name.startswith(incomplete)]


def _names(ctx: Any, sql: str, incomplete: str) -> list[str]:
    ledger = _folder(ctx) / "ledger.sqlite"
    if not ledger.is_file():
        return []
    try:
        # Read only: pressing a key must neither make nor change a ledger.
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True, timeout=0.5)) as db:
            return [str(row[0]) for row in db.execute(sql) if str(row[0]).startswith(incomplete)]
    except (sqlite3.Error, OSError):
        return []


def _folder(ctx: Any) -> Path:
    """What the line says so far, else what the command itself would take."""
    named = (getattr(ctx, "params", None) or {}).get("folder")
    return Path(named or os.environ.get("SEMISILO_FEDERATION") or ".")
