"""An update before its bytes: what a silo declares in BeginUpdate, and whether that can be what its task asks for.

Tests: tests/coordinator/tasks/test_update_service.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.methods import check_metrics, find_method
from semisilo.common.methods.contract import FROM_TASK, GroupLayout, Meaning
from semisilo.common.methods.spec import EPSILON, MAX_COUNT
from semisilo.common.payload.manifest import GroupManifest, check_base, check_manifest, is_meant
from semisilo.coordinator.ledger.records import PhaseRow, TaskRow

__all__ = ["UpdateDeclaration", "check_declaration", "check_lengths"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateDeclaration:
    """An update before its bytes: what BeginUpdate declares."""

    digest: str
    size_bytes: int
    groups: tuple[GroupManifest, ...]
    example_count: int
    metrics: Mapping[str, float]
    training_seconds: float


def check_lengths(phase: PhaseRow, *, num_groups: int, num_tensors: int) -> None:
    """Refuses a manifest that is longer than the one of any update that its task can ask for, before it is parsed.

    Args:
        phase: the task's, which says what groups it expects.
        num_tensors: of all groups together.
    Raises: BadPayload, LayoutMismatch.
    """
    if num_groups > len(phase.expects):
        raise BadPayload(f"The update must hold the groups {', '.join(sorted(phase.expects))}.")
    expected = sum(len(layout.tensors) for layout in phase.expects.values())
    if num_tensors > expected:
        raise LayoutMismatch(f"The update has {num_tensors} tensors; {expected} were expected.",
                             remedy="Both sides need the same model and version.")


def check_declaration(declaration: UpdateDeclaration, *, task: TaskRow, phase: PhaseRow, truth: bool = False) -> None:
    """Refuses an update by its declaration, before a byte of it has come.

    Args:
        declaration: whatever a silo has said; nothing in it is trusted.
        task: the silo's, open.
        truth: as of `check_metrics`.
        phase: the task's, which says what groups it expects.
    Raises: BadPayload, LayoutMismatch or WrongBase when it cannot be what the task asks for.
    """
    spec = find_method(task.spec.method)
    expects = phase.expects
    limit = _max_update_bytes(expects)
    if not 0 < declaration.size_bytes <= limit:
        raise BadPayload(f"The update is declared with {declaration.size_bytes} bytes; at most {limit} can be.")
    masked = phase.step == "mask"
    check_manifest(declaration.groups, allowed=_meanings(expects) if masked else spec.up,
                   layouts={name: layout.tensors for name, layout in expects.items()}, max_bytes=limit)
    if {group.name for group in declaration.groups} != expects.keys():
        raise BadPayload(f"The update must hold the groups {', '.join(sorted(expects))}.")
    for group in declaration.groups:
        layout = expects[group.name]
        if not is_meant(group.meaning, layout.meaning):
            raise BadPayload(f"Group '{group.name}' must mean {layout.meaning}.")
        check_base(group, _sent(task, group.name) if layout.base == FROM_TASK else layout.base)
    if sum(group.encoded_bytes for group in declaration.groups) > declaration.size_bytes:
        raise BadPayload("The update is declared with fewer bytes than its groups have.")
    if not (0 <= declaration.example_count <= MAX_COUNT and 0 <= declaration.training_seconds < math.inf):
        raise BadPayload(f"example_count must be between 0 and {MAX_COUNT}, training time at least 0 and finite.")
    if not masked:
        check_metrics(spec, declaration.metrics, update=True, phase=task.spec.phase,
                      num_classes=len(task.spec.model.classes), truth=truth)
    elif declaration.metrics.keys() - {EPSILON} or declaration.example_count:
        raise BadPayload("A masked update says nothing of its silo: neither metrics nor how many examples it is from.")


def _meanings(expects: Mapping[str, GroupLayout]) -> dict[str, Meaning]:
    return {name: layout.meaning for name, layout in expects.items()}


def _sent(task: TaskRow, group: str) -> str:
    """Digest of the tensors of a group that a task brings; empty, which is no update's base, when it brings none."""
    return next((payload.tensors for payload in task.spec.payloads if payload.groups == (group,)), "")


def _max_update_bytes(expects: Mapping[str, GroupLayout]) -> int:
    """Largest size that an update of this layout can have: dense 8-byte elements, block headers and a manifest."""
    elements = sum(spec.num_elements for layout in expects.values() for spec in layout.tensors)
    tensors = sum(len(layout.tensors) for layout in expects.values())
    return 8 * elements + 64 * (elements // 2**20 + tensors + 1) + 2048 * (tensors + 1) + 65536
