"""Tables of a study as TOML text; the standard library reads TOML and does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["toml_text"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tables: Mapping[str, Any]) -> str:
    """The text of plain tables of texts, numbers, booleans, lists and tables; those within a table are inline."""
    parts = []
    for name, table in tables.items():
        lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{_key(name)}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    # A JSON string is a TOML basic string, except for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    raise TypeError(f"{value!r} has no form in TOML.")
