"""Frozen dataclasses and named tensors <-> one safetensors file, bit for bit, written so that a kill leaves no half.

Fields may be numbers, text, booleans, None, JSON lists and dicts, or `dict[str, torch.Tensor]`. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import tempfile
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.durable import sync_folder
from common.errors import DiskFull, StorageDamaged

__all__ = ["load", "load_facts", "load_tensors", "save", "save_tensors"]

T = TypeVar("T")

_KEY = "semisilo"
_FORMAT = 1


def save(path: Path, state: Any) -> None:
    """Writes a frozen dataclass. Equal states give equal bytes.

    Raises: DiskFull, with nothing written at `path`; TypeError for a field of another kind (our own mistake).
    """
    fields: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values()):
            groups[field.name] = list(value)
            tensors.update({f"{field.name}/{name}": tensor for name, tensor in value.items()})
        else:
            fields[field.name] = value
    _write(path, tensors, {"class": type(state).__name__, "fields": fields, "groups": groups})


def load(path: Path, cls: type[T]) -> T:
    """Reads what `save` wrote of an instance of `cls`; tuples come back as tuples where the class says so.

    Raises: StorageDamaged when the file is missing, malformed, or holds another class or other fields.
    """
    tensors, header = _read(path)
    try:
        if header["class"] != cls.__name__:
            raise StorageDamaged(f"{path}: holds {header['class']}, expected {cls.__name__}.")
        values = dict(header["fields"])
        for field, names in header["groups"].items():
            values[field] = {name: tensors.pop(f"{field}/{name}") for name in names}
        known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if values.keys() != known or tensors:
            raise StorageDamaged(f"{path}: its fields are not those of {cls.__name__}.")
        hints = typing.get_type_hints(cls)
        return cls(**{name: _tuples(hints[name], value) for name, value in values.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageDamaged(f"{path}: damaged: {type(error).__name__}.") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, facts: Mapping[str, Any] | None = None) -> None:
    """Writes named tensors, keeping their order, with JSON facts beside them. Raises: DiskFull."""
    _write(path, dict(tensors), {"order": list(tensors), "facts": dict(facts or {})})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Reads what `save_tensors` wrote, in its order; of a safetensors file from elsewhere, in byte order of names.

    Raises: StorageDamaged.
    """
    tensors, header = _read(path, need_header=False)
    order = header.get("order", sorted(tensors, key=str.encode))
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(tensors):
        raise StorageDamaged(f"{path}: damaged: its order names other tensors.")
    return {name: tensors[name] for name in order}


def load_facts(path: Path) -> dict[str, Any]:
    """The facts given to `save_tensors`, without reading the tensors; empty for a file from elsewhere."""
    facts = _header(path, need_header=False).get("facts", {})
    if not isinstance(facts, dict):
        raise StorageDamaged(f"{path}: damaged: its facts are not a table.")
    return facts


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    # One metadata entry: the order of several is not fixed, and equal states must give equal bytes.
    text = json.dumps({"format": _FORMAT, **header}, sort_keys=True, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    try:
        save_file(_own_storage(tensors), temporary, metadata={_KEY: text})
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        # safetensors reports what the system said as text
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error):
            raise DiskFull(f"No space to write {path}.", remedy="Free space; the work is then repeated.") from error
        raise
    finally:
        Path(temporary).unlink(missing_ok=True)


def _own_storage(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors of which no two share memory, as the file format demands."""
    seen: set[int] = set()
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().to("cpu").contiguous()
        storage = own.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != own.numel() * own.element_size():
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        result[name] = own
    return result


def _header(path: Path, *, need_header: bool) -> dict[str, Any]:
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            return _parse(path, file.metadata(), need_header=need_header)
    except (OSError, SafetensorError) as error:
        raise StorageDamaged(f"{path}: cannot be read: {error}.") from error


def _read(path: Path, *, need_header: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header = _parse(path, file.metadata(), need_header=need_header)
            # Copies: the file may be replaced or removed while its tensors are still in use.
            return {name: torch.clone(file.get_tensor(name)) for name in file.keys()}, header  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StorageDamaged(f"{path}: cannot be read: {error}.") from error


def _parse(path: Path, metadata: Mapping[str, str] | None, *, need_header: bool) -> dict[str, Any]:
    text = (metadata or {}).get(_KEY)
    if text is None:
        if need_header:
            raise StorageDamaged(f"{path}: is a safetensors file, but not one of ours.")
        return {}
    try:
        header = json.loads(text)
    except ValueError:
        raise StorageDamaged(f"{path}: its header is not JSON.") from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise StorageDamaged(f"{path}: was written by another version.")
    return header


def _tuples(hint: Any, value: Any) -> Any:
    if isinstance(value, list) and any(typing.get_origin(option) is tuple or option is tuple
                                       for option in (hint, *typing.get_args(hint))):
        return tuple(value)
    return value
