"""Which code of others a study runs: the files of a method plug-in, and of the package that a network is built by.

Settings name them, and say nothing of what they hold: an edited method would go on with the rounds of the one before,
and show its numbers. Methods and networks that are built in have no such files; those of a file beside the study, and
networks handed over from Python, have digests of their own.

Tests: tests/semisilo/simulation/test_code_stamp.py.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semisilo.common.config import Tables
from semisilo.common.errors import UsageError
from semisilo.common.methods.plugins import modules_of
from semisilo.common.models.own.given import GIVEN
from semisilo.common.models.own.model_file import names_file

__all__ = ["code_of_tables", "code_stamp"]

_IMPORTED: dict[tuple[str, ...], tuple[object, str]] = {}
"""By module and file, the module as it was imported here, None before that, and the digest that was seen then."""


def code_stamp(method: str, network: str) -> str:
    """SHA-256, hex, of the Python files of a plug-in's and a factory's modules; of a package, all that it has.

    Args:
        method, network: their names in a study.
    Returns: an empty text where both are built in, or have a digest of their own.
    Raises: what `find_plugin` raises; UsageError where this process runs the code of before.
    """
    module, colon, _ = network.partition(":")
    factories = (module,) if colon and module != GIVEN and not names_file(network) else ()
    found = [f"{name} {_digest_of(name)}" for name in (*modules_of(method), *factories)]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


def code_of_tables(tables: Mapping[str, Any]) -> Tables:
    """{"code": `code_stamp`} of the tables of a study, {} where that is empty, or they name no method and network."""
    method, model = tables.get("method"), tables.get("model") or {}
    if not isinstance(method, Mapping) or not isinstance(model, Mapping) or not isinstance(method.get("name"), str):
        return {}
    stamp = code_stamp(method["name"], str(model.get("factory", model.get("name", ""))))
    return {"code": stamp} if stamp else {}


def _digest_of(module: str) -> str:
    """Of the files that a module belongs to; of one that is not found its name stands alone, and who imports it says
    so."""
    files = _files_of(module)
    total = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        total.update(f"{path.name}\0{len(content)}\0".encode())
        total.update(content)
    digest = total.hexdigest()
    key = (module, *map(str, files[:1]))
    imported = getattr(sys.modules.get(module), "__spec__", None)
    before, seen = _IMPORTED.get(key, (imported, digest))
    if seen != digest and imported is not None and (before is None or before is imported):
        raise UsageError(f"{module} has changed since this process imported it: what runs here is the code of before.",
                         remedy="Start Python anew (in a notebook: restart the kernel).")
    _IMPORTED[key] = imported, digest
    return digest


def _files_of(module: str) -> list[Path]:
    """All Python files of the package that a module is in, or its own; [] where it has none."""
    try:
        top, own = importlib.util.find_spec(module.partition(".")[0]), importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return []
    if top is not None and top.has_location and top.submodule_search_locations:
        return sorted(path for folder in top.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return [Path(own.origin)] if own is not None and own.has_location and own.origin else []
