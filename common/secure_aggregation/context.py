"""What all silos of a sum must have been told alike: its digest goes into the key of every mask.

Silos that were told different things, another model or other settings, add masks that do not vanish: the coordinator
gets noise instead of updates that can be told apart.

Tests: tests/common/secure_aggregation/test_context.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from semisilo.common.config import canonical_json, to_dict
from semisilo.common.errors import BadPayload
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.parts.privacy import shares_noise
from semisilo.common.secure_aggregation.mask_form import MaskForm

__all__ = ["told_alike"]


def told_alike(task: TaskSpec, *, phase: str, form: MaskForm, roster: bytes) -> bytes:
    """32 bytes that follow from what is the same in the tasks of all silos of a sum, and from nothing else. Its name
    and its members go into the masks besides (`semisilo.common.secure_aggregation.keys.mask_context`).

    Args:
        task: of step "mask", of any silo: what differs between silos (its id, which files bring the tensor groups,
            deadlines, what was folded) is left out; the digests of the tensors are in.
        phase: of the method.
        roster: chain value of the roster's last entry.
    Raises: BadPayload for a task that names a tensor group without its digest.
    """
    groups: dict[str, str] = {}
    for payload in task.payloads:
        if not payload.tensors or len(payload.groups) != 1:
            raise BadPayload("A task of a secure sum must name the digest of every tensor group.")
        groups[payload.groups[0]] = payload.tensors
    told: Mapping[str, object] = {
        "study": task.study, "round": task.round, "rounds": task.rounds, "phase": phase, "method": task.method,
        "settings": task.settings, "model": to_dict(task.model), "image": to_dict(task.image),
        "augmentation": to_dict(task.augmentation), "seed": task.seed, "card": task.card, "groups": groups,
        "form": to_dict(form), "roster": roster.hex()}
    if shares_noise(task.dp, secure=True):  # what each adds protects the others
        assert task.dp is not None
        told = {**told, "dp": to_dict(task.dp)}
    return hashlib.sha256(b"semisilo told alike v1\0" + canonical_json(told).encode()).digest()
