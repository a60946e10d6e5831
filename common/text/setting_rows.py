"""The settings of a study as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = ["setting_rows"]


def setting_rows(config: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """(table, key, value) of each setting; tables within a table become dotted keys, save `settings`, a method's own.

    Args:
        config: plain tables, as a study file has them.
    """
    return [(table, key, value) for table, content in config.items() for key, value in _flat(content)]


def _flat(content: object, prefix: str = "") -> list[tuple[str, str]]:
    if not isinstance(content, Mapping):
        return [(prefix, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))]
    return [pair for key, value in content.items()
            for pair in _flat(value, str(key) if prefix in ("", "settings") else f"{prefix}.{key}")]
