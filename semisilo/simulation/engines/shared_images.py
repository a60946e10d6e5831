"""The images of a simulation in memory that several processes read: one copy, however many there are.

They lie in a file without a name (of memory on Linux, else an unlinked temporary one), whose descriptor other processes
inherit. What is read from it are views of that memory; a process that wrote to them would change its own copy alone.

Tests: tests/semisilo/simulation/engines/test_processes.py.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.room import free_bytes
from semisilo.simulation.dealing import Dealt, SilosImages

__all__ = ["SharedImages", "Working", "read_working", "share"]

_SMALL = 64 * 1024
"""Arrays below this are copied into every process: the indices of ten thousand silos are ten thousand arrays."""
_ALIGNED = 64
_HEAD = struct.Struct("<QQ")
"""Bytes of the pickle, number of arrays; the offset and the size of each follow."""
_PLACE = struct.Struct("<QQ")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Working:
    """What a process needs to train any silo."""

    images: SilosImages
    method: str
    """Of the study: what it needs is imported before the first task."""
    device: str
    """"cpu" or "cuda"; a process takes its accelerator with its first task. The nursery never does: what has an
    accelerator cannot be copied."""
    path: tuple[str, ...]
    """Where modules are found, as in the process that has started the simulation: its networks may be its own."""
    network: bytes = b""
    """One that was handed over from Python (`semisilo.common.models.own.given.packed`); empty without."""


class SharedImages:
    """The open file. Closed, it is gone with the last process that has it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Closes it here; what was read stays readable."""
        os.close(self.descriptor)


def share(dealt: Dealt, *, device: str, network: bytes = b"") -> tuple[Dealt, SharedImages] | None:
    """Puts the images of a study where other processes can read them, to train on a device; and a network of its own.

    Returns: the same with its images there, so that the copy of before may go; None where memory does not hold both
        for a moment.
    """
    free = free_bytes()
    if free is not None and free < sum(_size_of(each) for each in (dealt.images, dealt.test) if each is not None):
        return None
    buffers: list[memoryview] = []
    head = _pickled(Working(images=dealt.silos_images(), method=dealt.config.method.name, device=device,
                            path=tuple(sys.path), network=network), buffers)
    descriptor = _file_without_a_name()
    try:
        _write(descriptor, head, buffers)
        there = read_working(descriptor).images
    except BaseException:
        os.close(descriptor)
        raise
    moved = replace(dealt, images=replace(dealt.images, images_NCHW=there.images.images_NCHW))
    if there.test is not None and dealt.test is not None:
        moved = replace(moved, test=replace(dealt.test, images_NCHW=there.test.images_NCHW))
    return moved, SharedImages(descriptor)


def read_working(descriptor: int) -> Working:
    """What `share` has written; its large arrays are views of the file, private to this process."""
    # Never closed: what is read keeps the memory, and the last view gives it back.
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    size, number = _HEAD.unpack_from(view, 0)
    places = [_PLACE.unpack_from(view, _HEAD.size + each * _PLACE.size) for each in range(number)]
    start = _HEAD.size + number * _PLACE.size
    working = pickle.loads(view[start : start + size], buffers=[view[at : at + length] for at, length in places])
    assert isinstance(working, Working)
    return working


def _size_of(images: ImageSet) -> int:
    return images.images_NCHW.nbytes


class _Pickler(pickle.Pickler):
    """Tensors cross as arrays, whose memory may lie outside the pickle."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return torch.from_numpy, (np.ascontiguousarray(thing.numpy()),)
        return NotImplemented


def _pickled(working: Working, buffers: list[memoryview]) -> bytes:
    def inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _SMALL:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=inside).dump(working)
    return stream.getvalue()


def _file_without_a_name() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("semisilo-images", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(descriptor: int, head: bytes, buffers: Sequence[memoryview]) -> None:
    at = _HEAD.size + len(buffers) * _PLACE.size + len(head)
    places = []
    for buffer in buffers:
        at = -(-at // _ALIGNED) * _ALIGNED
        places.append((at, buffer.nbytes))
        at += buffer.nbytes
    with os.fdopen(os.dup(descriptor), "wb", buffering=2**20) as file:
        file.write(_HEAD.pack(len(head), len(buffers)))
        for place in places:
            file.write(_PLACE.pack(*place))
        file.write(head)
        for (start, _), buffer in zip(places, buffers, strict=True):
            file.write(b"\0" * (start - file.tell()))
            file.write(buffer)
