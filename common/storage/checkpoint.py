"""Frozen dataclasses and named tensors <-> one safetensors file, bit for bit, written so that a kill leaves no half.

Fields may be numbers, text, booleans, None, JSON lists and dicts, or `dict[str, torch.Tensor]`. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import sys
import tempfile
import typing
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semisilo.common.config import Tables
from semisilo.common.errors import StorageDamaged
from semisilo.common.storage.durable import sync_file, sync_folder
from semisilo.common.system_errors import explained, explained_text

__all__ = ["YOUNGER", "load", "save", "settled"]

T = TypeVar("T")
YOUNGER = {"younger": True}
"""Metadata of a field with a default that files of earlier versions do not have."""

_KEY = "semisilo"
_FORMAT = 1
_PIECE_BYTES = 2**20
_TYPES = {torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
          torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
"""Names in the file; tensors lie in it in this order of types, as the format's own library writes them."""


def save(path: Path, state: Any, *, named: bool = True) -> str:
    """Writes a frozen dataclass. Equal states give equal bytes.

    Args:
        named: whether the name `path` lasts as well when this returns; False when the caller gives it another.
    Returns: the SHA-256 of the file, hex.
    Raises: SystemTrouble, with nothing written at `path`; TypeError for a field of another kind (our own mistake).
    """
    fields: dict[str, object] = {}
    groups: dict[str, list[str]] = {}
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values()):
            groups[field.name] = list(value)
            tensors.update({f"{field.name}/{name}": tensor for name, tensor in value.items()})
        else:
            fields[field.name] = value
    return _write(path, tensors, {"class": type(state).__name__, "fields": fields, "groups": groups}, named=named)


def settled(state: T) -> T:
    """What `load` would give of a state that was saved, without the disk: copies nothing that it need not.

    Tensors are contiguous and on the CPU, as they come from a file, so that later arithmetic has the same order.
    """
    hints = typing.get_type_hints(type(state))
    values: dict[str, object] = {}
    for field in dataclasses.fields(state):  # type: ignore[arg-type]
        value = getattr(state, field.name)
        if isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values()):
            values[field.name] = {name: tensor.detach().to("cpu").contiguous() for name, tensor in value.items()}
        else:
            values[field.name] = _tuples(hints[field.name], json.loads(json.dumps(value)))
    return type(state)(**values)


def load(path: Path, cls: type[T]) -> T:
    """Reads what `save` wrote of an instance of `cls`; tuples come back as tuples where the class says so.

    A field that is `YOUNGER` than the file has its default.
    Raises: StorageDamaged when the file is missing, malformed, or holds another class or other fields.
    """
    tensors, header = _read(path)
    try:
        if header["class"] != cls.__name__:
            raise StorageDamaged(f"{path}: holds {header['class']}, expected {cls.__name__}.")
        values = dict(header["fields"])
        for field, names in header["groups"].items():
            values[field] = {name: tensors.pop(f"{field}/{name}") for name in names}
        known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        absent = known.keys() - values.keys()
        if values.keys() - known or tensors or not all(known[name].metadata.get("younger") for name in absent):
            raise StorageDamaged(f"{path}: its fields are not those of {cls.__name__}.")
        hints = typing.get_type_hints(cls)
        return cls(**{name: _tuples(hints[name], value) for name, value in values.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageDamaged(f"{path}: damaged: {type(error).__name__}.") from error


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, object], *, named: bool = True) -> str:
    # One metadata entry: the order of several is not fixed, and equal states must give equal bytes.
    text = json.dumps({"format": _FORMAT, **header}, sort_keys=True, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    try:
        with open(temporary, "wb", buffering=0) as file:
            total = hashlib.sha256()
            with ThreadPoolExecutor(1, thread_name_prefix="hash") as hashing:  # beside the writing
                for part in _parts(tensors, {_KEY: text}):
                    hashed = hashing.submit(total.update, part)
                    _write_all(file.fileno(), part)
                    hashed.result()
                sync_file(file.fileno())
        os.replace(temporary, path)
        if named:
            sync_folder(path.parent)
        return total.hexdigest()
    except OSError as error:
        # A file that is called by what it holds has no name before all of it is there.
        raise explained(error, path if named else path.parent) or error from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _parts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The safetensors format, one tensor at a time: the library's own writer copies all of them first.

    Raises: TypeError for a type that the format does not have.
    """
    order = list(_TYPES)
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise TypeError(f"Tensor '{name}' of type {tensor.dtype} cannot be kept.")
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name.encode()))
    head: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        head[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        raw = tensors[name].detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        if sys.byteorder == "big":
            raw = raw.reshape(-1, tensors[name].element_size()).flip(1).reshape(-1)
        data = raw.numpy().data
        # In pieces, so that a piece is still in the processor's cache when it is read the second time.
        yield from (data[start:start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))


def _write_all(handle: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view):]


def _read(path: Path) -> tuple[dict[str, Tensor], Tables]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # for its error: the library says "no such file" to all
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header = _parse(path, file.metadata())
            # Copies: the file may be replaced or removed while its tensors are still in use.
            return {name: torch.clone(file.get_tensor(name)) for name in file.keys()}, header  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        if (trouble := explained_text(error)) is not None:
            raise trouble from error
        raise StorageDamaged(f"{path}: cannot be read: {error}.") from error


def _parse(path: Path, metadata: Mapping[str, str] | None) -> Tables:
    text = (metadata or {}).get(_KEY)
    if text is None:
        raise StorageDamaged(f"{path}: is a safetensors file, but not one of ours.")
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
