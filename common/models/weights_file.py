"""A file of trained weights as somebody gave it to us: named tensors, read without running anything in it.

safetensors, and what torch.save writes (.pth, .pt, .bin), the latter with torch's reader of plain tensors, which
refuses everything else. Sizes are looked at before memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from semisilo.common.errors import BadData
from semisilo.common.models.exported import ModelFacts, read_facts
from semisilo.common.system_errors import source_trouble

__all__ = ["StoredWeights", "read_weights"]

_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
_MAX_HEADER_BYTES = 2**24
_MAX_TENSORS = 100_000
_INSIDE = ("state_dict", "model_state_dict", "model", "net")
"""Where training scripts put the weights among other things."""
_PIECE_BYTES = 2**20
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
"""In torch's long text about what it refuses to read: what the file asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeights:
    """What a file holds."""

    path: Path
    digest: str
    """SHA-256 of the file, hex."""
    tensors: Mapping[str, Tensor]
    """By the names in the file."""
    facts: ModelFacts | None = None
    """What the file says of itself; None where it is not the model of a study."""


def read_weights(path: Path, *, progress: Callable[[float, str], None] | None = None) -> StoredWeights:
    """The tensors of a file, on the CPU.

    Raises: BadData, naming the file, when it is missing, damaged, of another kind, or would run code when read.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise BadData(f"{path}: weights are read from {', '.join(_ENDINGS)}.",
                      remedy="Convert the file, best to safetensors.")
    try:
        digest = _digest(path, progress)
        safe = path.suffix.lower() == ".safetensors"
        tensors = _safetensors(path) if safe else _torch_file(path)
        facts = _facts(path) if safe else None
    except FileNotFoundError:
        raise BadData(f"{path}: there is no such file.",
                      remedy="[model] weights starts at the folder of the study file.") from None
    except OSError as error:
        raise source_trouble(error, path) or BadData(f"{path}: cannot be read: {error.strerror or error}.") from None
    if not tensors:
        raise BadData(f"{path}: holds no tensors.", remedy="Write the network's state_dict into it.")
    return StoredWeights(path=path, digest=digest, tensors=tensors, facts=facts)


def _digest(path: Path, progress: Callable[[float, str], None] | None) -> str:
    total, size, done = hashlib.sha256(), max(path.stat().st_size, 1), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            total.update(piece)
            done += len(piece)
            if progress is not None:
                progress(min(1.0, done / size), "reading weights")
    return total.hexdigest()


def _safetensors(path: Path) -> dict[str, Tensor]:
    damaged = BadData(f"{path}: is not a complete safetensors file.", remedy="Fetch it again.")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 2**64
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise damaged
        try:
            names = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise damaged from None
    if not isinstance(names, dict) or len(names) > _MAX_TENSORS:
        raise damaged
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise BadData(f"{path}: is not a complete safetensors file: {_first_line(error)}.",
                      remedy="Fetch it again.") from None


def _facts(path: Path) -> ModelFacts | None:
    try:
        return read_facts(path)
    except BadData:
        return None


def _torch_file(path: Path) -> dict[str, Tensor]:
    if _unpacked_bytes(path) > path.stat().st_size:  # torch.save compresses nothing
        raise BadData(f"{path}: unpacks to more than its size, which torch.save never writes.",
                      remedy="Do not use this file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about protocols of pickle, which help nobody here
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = _GLOBAL.search(str(error))
        what = f" ({wanted[1][:100].rstrip('.')})" if wanted else ""
        raise BadData(f"{path}: holds more than tensors{what}, and is not read: that might run code from it.",
                      remedy="Ask for a safetensors file, or where you trust it save its state_dict alone.") from None
    except (RuntimeError, ValueError, EOFError, TypeError, KeyError, AttributeError, IndexError, AssertionError,
            MemoryError) as error:
        raise BadData(f"{path}: torch cannot read it: {_first_line(error)}.", remedy="Fetch it again.") from None
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise BadData(f"{path}: holds a {type(content).__name__}, not named tensors.",
                      remedy="Save the network's state_dict.")
    found = {name: value.detach() for name, value in content.items()
             if isinstance(name, str) and isinstance(value, Tensor)}
    if len(found) > _MAX_TENSORS:
        raise BadData(f"{path}: holds {len(found)} tensors; {_MAX_TENSORS} are the most.")
    return found


def _unpacked_bytes(path: Path) -> int:
    """What an archive says that it unpacks to; 0 for a file that is none.

    Raises: BadData when it is damaged.
    """
    try:
        if not zipfile.is_zipfile(path):
            return 0
        with zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BadData(f"{path}: torch cannot read it: {_first_line(error)}.", remedy="Fetch it again.") from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
