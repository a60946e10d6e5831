"""Names for the shell: what `coordinator report <TAB>` offers. Quick, and silent about whatever is in the way.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from semisilo.coordinator.ledger.names import names_of_silos, names_of_studies

__all__ = ["silos", "studies", "study_files"]


def studies(ctx: Any, incomplete: str) -> list[str]:
    """Studies of the ledger."""
    return _beginning(names_of_studies(_folder(ctx) / "ledger.sqlite"), incomplete)


def silos(ctx: Any, incomplete: str) -> list[str]:
    """Silos that have enrolled and are neither revoked nor gone."""
    return _beginning(names_of_silos(_folder(ctx) / "ledger.sqlite"), incomplete)


def study_files(ctx: Any, incomplete: str) -> list[str]:
    """Folders with a study file: what can be queued."""
    try:
        found = sorted(path.parent.name for path in (_folder(ctx) / "studies").glob("*/study.toml"))
    except OSError:
        return []
    return _beginning(found, incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _folder(ctx: Any) -> Path:
    """What the line says so far, else what the command itself would take."""
    named = (getattr(ctx, "params", None) or {}).get("folder")
    return Path(named or os.environ.get("SEMISILO_FEDERATION") or ".")
