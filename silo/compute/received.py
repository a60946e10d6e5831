"""A task's tensor groups from the payloads that were fetched and the groups that this silo holds already."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from semisilo.common.data.room import free_bytes
from semisilo.common.errors import BadPayload, LayoutMismatch, SystemTrouble, TensorsMissing, WrongBase
from semisilo.common.learning.tensors import digest, group_digest
from semisilo.common.methods import MethodSpec
from semisilo.common.methods.contract import Meaning, PayloadRef, TaskSpec, TensorGroup
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.manifest import DEFAULT_MAX_BYTES, check_manifest
from semisilo.common.payload.reader import PayloadReader, read_manifest
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.describe import describe_bytes

__all__ = ["hold", "receive"]

_LOG = logging.getLogger("semisilo.work")


def receive(task: TaskSpec, spec: MethodSpec, payloads: Mapping[str, Path], store: PayloadStore, *,
            most_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, TensorGroup]:
    """The tensor groups of a task, decoded. Each is kept on disk as well, for the next payload to be coded against.

    Args:
        payloads: path of each payload that was fetched, by digest; already verified.
        store: of payloads that arrive; in its folder "tensors" are the groups that this silo holds.
        most_bytes: that a group may have when decoded, by what the study's network has: a hundred kilobytes can stand
            for gigabytes, and nothing else tells that they are of no use.
    Raises: BadPayload for what the method does not declare or what is too large; SystemTrouble where there is no memory
        for all of them; TensorsMissing when what the task builds on is damaged here: it is dropped, and the task comes
        again with the whole group.
    """
    cache = TensorCache(store)
    _check_sizes(task, payloads, cache, most_bytes)
    groups: dict[str, TensorGroup] = {}
    for payload in task.payloads:
        found = _held(payload, cache, spec) or _fetched(task, payload, payloads, spec, store, cache)
        for name, group in found.items():
            if name in groups:
                raise BadPayload(f"Task {task.task_id} brings the group '{name}' twice.")
            groups[name] = group
    return groups


def _check_sizes(task: TaskSpec, payloads: Mapping[str, Path], cache: TensorCache, most_bytes: int) -> None:
    """Looks at what the groups take when they are decoded, before memory is taken for any. A file that is not here or
    cannot be read is for whoever decodes it to say."""
    total = 0
    for payload in task.payloads:
        path = (cache.find(payload.tensors) if payload.tensors else None) or payloads.get(payload.digest)
        if path is None or not path.is_file():
            continue
        try:
            groups = read_manifest(path)
        except BadPayload:
            continue
        for group in groups:
            if group.dense_bytes > most_bytes:
                raise BadPayload(f"The group '{group.name}' has {describe_bytes(group.dense_bytes)} when decoded; with"
                                 f" the network of study {task.study} at most {describe_bytes(most_bytes)} can be.")
            total += group.dense_bytes
    free = free_bytes()
    if free is not None and total > free:
        raise SystemTrouble(f"The tensor groups of task {task.task_id} need {describe_bytes(total)} of memory;"
                            f" {describe_bytes(free)} are free.", remedy="Free some memory.")


def _held(payload: PayloadRef, cache: TensorCache, spec: MethodSpec) -> dict[str, TensorGroup]:
    """The group when it is here, after looking at every bit; empty when it has to come from the payload."""
    path = cache.find(payload.tensors) if payload.tensors else None
    if path is None:
        return {}
    name, = payload.groups
    try:
        found, = _decode(path, spec, cache, name=name).values()
        if digest(found.tensors) == payload.tensors:
            return {name: replace(found, digest=payload.tensors)}
    except (BadPayload, WrongBase, ValueError) as error:
        _LOG.debug("%s: %s", path, error)
    _LOG.warning("%s is damaged; it is fetched again", path)
    cache.drop(payload.tensors)
    return {}


def _fetched(task: TaskSpec, payload: PayloadRef, payloads: Mapping[str, Path], spec: MethodSpec, store: PayloadStore,
             cache: TensorCache) -> dict[str, TensorGroup]:
    if payload.digest not in payloads:
        if payload.tensors:
            raise TensorsMissing("A tensor group that the task builds on is not here any more.")
        raise BadPayload(f"Task {task.task_id} names the payload {payload.digest}, which was not fetched.")
    path = payloads[payload.digest]
    try:
        found = _decode(path, spec, cache, reference=payload.reference)
    except (BadPayload, LayoutMismatch, WrongBase) as error:
        if not payload.reference:
            raise
        # The payload is what the coordinator wrote, so it is the reference that went bad: whatever came of it.
        cache.drop(payload.reference)
        raise TensorsMissing(error.text, remedy=error.remedy) from None
    if payload.tensors:
        if tuple(found) != payload.groups or found[payload.groups[0]].digest != payload.tensors:
            raise BadPayload(f"The group '{payload.groups[0]}' is not the one that the task names.")
        (name, group), = found.items()
        if not payload.reference and group.meaning is Meaning.VALUES:
            cache.put(group.digest, path)
        else:
            hold(store, name, group)
    return found


def hold(store: PayloadStore, name: str, group: TensorGroup) -> None:
    """Keeps the tensors of a group, so that the next payload may be coded against them: as one that stands alone."""
    whole = TensorGroup(group.tensors, digest=group_digest(group))
    alone = encode_groups(store, {name: whole}, durable=False)
    TensorCache(store).put(whole.digest, store.path(alone.digest))
    store.path(alone.digest).unlink()


def _decode(path: Path, spec: MethodSpec, cache: TensorCache, *, name: str = "",
            reference: str = "") -> dict[str, TensorGroup]:
    """The groups of a file, after a look at its manifest.

    Args:
        name: what its only group is called in the task: equal tensors are one file, whatever they are called.
        reference: what it must be coded against; empty for what must stand alone.
    """
    with PayloadReader(path, require_finite=True) as reader:
        groups = [replace(group, name=name or group.name) for group in reader.groups]
    check_manifest(groups, allowed=spec.receives, layouts=None, max_bytes=DEFAULT_MAX_BYTES)
    if any(group.reference != reference for group in groups):
        raise BadPayload("The payload is coded against other tensors than the task says.")
    return decode_groups(path, require_finite=True, references=cache.find, trust_digests=True)
