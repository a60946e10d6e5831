"""What silos receive in a phase, as payload files: every tensor group once, in the smallest form its readers can use.

A silo says which tensor groups it holds, by the digest of their tensors. What it holds is not sent. Where it holds an
earlier version, the group may be coded against that one; where it holds nothing, the group stands alone. A group that
overwrites what one silo holds is coded against just that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.learning.tensors import group_digest
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.manifest import GroupManifest
from semisilo.common.payload.reader import read_manifest
from semisilo.common.payload.torch_tensors import encode_groups, tensor_spec
from semisilo.common.payload.writer import Reference
from semisilo.common.storage.store import PayloadStore

__all__ = ["SPARE_REFERENCES", "Downlink"]

SPARE_REFERENCES = 4
"""Tensor groups of earlier phases that are kept on the coordinator's disk, so that a silo which missed some rounds can
still be sent a difference."""
_REMEMBERED_GROUPS = 16
_LOG = logging.getLogger("semisilo.coordinator")


class Downlink:
    """Writes the payloads of one phase. Equal groups for equal readers are one file."""

    def __init__(self, store: PayloadStore, cache: TensorCache, *, plan: Plan) -> None:
        """
        Args:
            store: where payloads go that silos may fetch.
            cache: earlier tensor groups that payloads may be coded against.
            plan: how blocks are encoded; with `Aim.RAW` nothing is coded against anything, but for groups that
                overwrite.
        """
        self._store = store
        self._cache = cache
        self._plan = plan
        self._digests: dict[int, tuple[TensorGroup, TensorGroup]] = {}
        self._written: dict[tuple[str, str, str], PayloadRef] = {}
        self._manifests: dict[str, GroupManifest | None] = {}
        self._used: set[str] = set()

    def payload(self, name: str, group: TensorGroup, held: Collection[str]) -> PayloadRef:
        """The payload of a group for a silo that holds the tensor groups `held` (hex digests of tensors).

        For a group that it holds, the reference names no file. One that overwrites goes whole, as VALUES, to a silo
        that does not hold its base.
        """
        group = self._with_digest(group)
        if group.digest in held:
            self._used.add(group.digest)
            return PayloadRef("", 0, (name,), tensors=group.digest,
                              held_bytes=sum(tensor.nbytes for tensor in group.tensors.values()))
        if group.meaning is Meaning.OVERWRITE:
            return self._for_one_silo(name, group, held)
        self._used.add(group.digest)
        base = self._reference(name, group, held)
        key = (name, group.digest, base)
        if key not in self._written:
            self._written[key] = self._write(name, group, base, keep=True)
        return self._written[key]

    def _for_one_silo(self, name: str, group: TensorGroup, held: Collection[str]) -> PayloadRef:
        """A group that overwrites what one silo holds. Nothing of it stays in memory or among the references: with
        hundreds of silos these would be hundreds of models, each of use to one silo that holds them itself."""
        if group.base_tensors is not None and group.base in held:
            return encode_groups(self._store, {name: group}, plan=self._plan)
        whole = TensorGroup(group.tensors, digest=group.digest)
        return self._write(name, whole, self._reference(name, whole, held), keep=False)

    def finish(self) -> None:
        """Forgets references that are too old."""
        self._cache.collect(self._used, spare=SPARE_REFERENCES)

    def _with_digest(self, group: TensorGroup) -> TensorGroup:
        """The group with its digest, computed once for an object that comes again with every task."""
        if group.digest:
            return group
        if group.meaning is Meaning.OVERWRITE:  # for one silo
            return replace(group, digest=group_digest(group))
        if id(group) not in self._digests:
            if len(self._digests) >= _REMEMBERED_GROUPS:  # what is for one silo only must not stay in memory
                del self._digests[next(iter(self._digests))]
            # The group is kept beside the result, so that its id cannot be given to another object meanwhile.
            self._digests[id(group)] = group, replace(group, digest=group_digest(group))
        return self._digests[id(group)][1]

    def _reference(self, name: str, group: TensorGroup, held: Collection[str]) -> str:
        """The newest tensors of the same layout that the silo holds and we have; empty for none, or with `Aim.RAW`."""
        if self._plan.aim is Aim.RAW:
            return ""
        layout = tuple(tensor_spec(key, tensor) for key, tensor in group.tensors.items())
        for digest in self._cache.digests():
            if digest in held and digest != group.digest:
                manifest = self._manifest(digest)
                if manifest is not None and (manifest.name, manifest.tensors) == (name, layout):
                    return digest
        return ""

    def _manifest(self, digest: str) -> GroupManifest | None:
        if digest not in self._manifests:
            try:
                self._manifests[digest] = read_manifest(self._cache.path(digest))[0]
            except (OSError, BadPayload, IndexError):
                self._manifests[digest] = None  # damaged: of no use, and nothing is lost
        return self._manifests[digest]

    def _write(self, name: str, group: TensorGroup, base: str, *, keep: bool) -> PayloadRef:
        """Writes a group, coded against tensors of the cache where `base` names them.

        Args:
            keep: whether later payloads may be coded against it; of no use for what one silo alone has received.
        """
        reference = Reference(base, self._cache.path(base)) if base else None
        try:
            written = encode_groups(self._store, {name: group}, plan=self._plan, reference=reference)
        except (BadPayload, LayoutMismatch, FileNotFoundError):
            if reference is None:
                raise
            _LOG.warning("%s is damaged; the group %s is sent whole", self._cache.path(base), name)
            self._cache.drop(base)
            self._manifests[base] = None
            return self._write(name, group, "", keep=keep)
        if not keep:
            return written
        if not written.reference:
            self._cache.put(group.digest, self._store.path(written.digest))
        elif self._cache.find(group.digest) is None:
            # What the next version may be coded against has to stand alone; this one went out coded itself.
            alone = encode_groups(self._store, {name: group}, durable=False)
            self._cache.put(group.digest, self._store.path(alone.digest))
        return written
