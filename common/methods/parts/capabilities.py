"""What a silo must honour of a task beside its method, or the task is not given to it.

A silo of an earlier version skips fields of a message that it does not know: it would train without the differential
privacy that a study asks for, send in the clear what was to be masked, or show its network other values. So silos
announce what they honour (`AwaitTaskRequest.capabilities`), and the coordinator holds each task against it.

Tests: tests/common/methods/parts/test_capabilities.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from semisilo.common.methods.parts.privacy import shares_noise

if TYPE_CHECKING:
    from semisilo.common.methods.contract import TaskSpec

__all__ = ["CAPABILITIES", "lacking"]

CAPABILITIES = frozenset({"secure_aggregation", "differential_privacy", "shared_noise", "image_standardisation"})
"""What a silo of this version honours: tables and keys of [privacy], and of [data.image]."""
_WORDS = {
    "secure_aggregation": "masks for updates ([privacy] secure_aggregation)",
    "differential_privacy": "differential privacy ([privacy.dp])",
    "shared_noise": "noise that silos share behind masks ([privacy.dp])",
    "image_standardisation": "images standardised one by one ([data.image] standardise)",
}


def lacking(task: TaskSpec, announced: Collection[str]) -> tuple[str, ...]:
    """What of a task a silo that announces this would not honour, in words; empty where it honours all."""
    secure = bool(task.secure)
    needed = (("secure_aggregation", secure), ("differential_privacy", task.dp is not None),
              ("shared_noise", shares_noise(task.dp, secure=secure)),
              ("image_standardisation", task.image.standardise != "study"))
    return tuple(_WORDS[name] for name, is_needed in needed if is_needed and name not in announced)
