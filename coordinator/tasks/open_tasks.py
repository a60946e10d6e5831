"""The tasks of silos: which one a silo has, whether it still takes an answer, and what one is told that comes too late.

Tests: tests/coordinator/tasks/test_task_service.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from semisilo.common.errors import TaskClosed
from semisilo.common.text.log_context import bind
from semisilo.coordinator.ledger.events import late_tasks, note_late_answer
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import TaskRow
from semisilo.coordinator.ledger.states import ENDED_STUDY, TaskState
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason

__all__ = ["BeginAnswer", "OpenTasks"]


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """What the coordinator wants of an outcome."""

    state: Literal["send", "have", "refused"]
    resume_offset: int = 0
    reason: str = ""


class OpenTasks:
    """Looks tasks up in the ledger, for those who take answers to them."""

    def __init__(self, ledger: Ledger, runtime: RuntimeState) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._late: dict[str, set[str]] = {}
        """Study -> tasks of it of which the audit trail says that an answer came late; read once."""

    def current(self, silo: str) -> TaskRow | None:
        """The open task of the study that runs; a study that has failed keeps its tasks open for another try."""
        if self._runtime.reason in (StandbyReason.PAUSED, StandbyReason.NO_STUDY) or not self._runtime.study:
            return None
        return self._ledger.open_task(silo, study=self._runtime.study)

    def of(self, silo: str, task_id: str) -> TaskRow:
        """A task of a silo, open or over; the lines of the log are about it from then on.

        Raises: TaskClosed when it has no such task.
        """
        task = self._ledger.task(task_id)
        if task is None or task.silo != silo:
            raise TaskClosed("The coordinator knows no such task of this silo.")
        bind(study=task.study, round=task.round, phase=task.spec.phase, task_id=task.task_id)
        return task

    def still_open(self, silo: str, task_id: str) -> TaskRow:
        """Raises: TaskClosed when the silo has no such task, or it takes no more answers."""
        task = self.of(silo, task_id)
        self.check_open(task)
        return task

    def why_over(self, task: TaskRow) -> str:
        """Why a task takes no more answers; empty while it does."""
        if task.state is not TaskState.OPEN:
            return f"the task is over: {task.reason or task.state}"
        state = task.study_state or self._ledger.study_state(task.study)
        return f"the study {task.study} is {state}" if state in ENDED_STUDY else self._why_later(task)

    def _why_later(self, task: TaskRow) -> str:
        """Why an open task has to wait: its study failed and is in the queue again, and another one runs, so that
        nothing can be held against its model. Empty where it need not. When the study goes on, its silo is given the
        task again."""
        running = self._runtime.study
        return f"the study {task.study} waits for its turn" if running not in ("", task.study) else ""

    def check_open(self, task: TaskRow) -> None:
        """Raises: TaskClosed when a task takes no more answers."""
        if ended := self.why_over(task):
            raise TaskClosed(f"{ended[0].upper()}{ended[1:]}.")

    def note_held(self, task: TaskRow, *, made: Collection[str] = ()) -> None:
        """A silo that has answered a task holds what came with it, and what its update has made of that: the next phase
        may open before it says so."""
        came = frozenset(payload.tensors for payload in task.spec.payloads if payload.tensors)
        self._runtime.held[task.silo] = self._runtime.held.get(task.silo, frozenset()) | came | frozenset(made)

    def refuse_late(self, task: TaskRow) -> BeginAnswer:
        """What an answer to a task that is over is told; the audit trail has it once.

        Raises: TaskClosed for a task that only has to wait: its silo keeps the answer, and will send it then.
        """
        state = task.study_state or self._ledger.study_state(task.study)
        if task.state is TaskState.OPEN and state not in ENDED_STUDY:
            self.check_open(task)
        late = self._late.get(task.study)
        if late is None:
            late = self._late[task.study] = late_tasks(self._ledger, task.study)
        if task.task_id not in late:  # once, however often the silo repeats it
            note_late_answer(self._ledger, task)
            late.add(task.task_id)
        return BeginAnswer("refused", reason=self.why_over(task))
