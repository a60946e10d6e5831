"""The ledger: an SQLite record of studies, rounds, tasks and updates.

A commit is one transaction that names file digests; the files are written before it and collected after it. Several
processes may open the same ledger: `serve` and the commands of the operator.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from semisilo.common.config import canonical_json
from semisilo.common.errors import TaskClosed, UnknownName
from semisilo.common.measures.gain import PairedGain
from semisilo.coordinator.ledger.database import LedgerFile
from semisilo.coordinator.ledger.records import (
    DeclaredUpdate,
    FrozenStudy,
    LabelledOnlyResult,
    PhaseRow,
    RoundRow,
    StudyRow,
    TaskRow,
    declared_update,
    forget_tasks,
    phase_row,
    round_row,
    study_row,
    task_column,
    task_row,
)
from semisilo.coordinator.ledger.states import (
    ENDED_ROUND,
    ENDED_STUDY,
    ROUND_TRANSITIONS,
    STUDY_TRANSITIONS,
    TASK_TRANSITIONS,
    RoundState,
    StudyState,
    TaskState,
    check_transition,
)

if TYPE_CHECKING:
    from semisilo.common.learning.outliers import UpdateMeasure
    from semisilo.common.methods.contract import PayloadRef, Phase, TaskSpec
    from semisilo.common.methods.numerics import NumericsRecord

__all__ = ["Ledger", "RoundGone"]

_OPEN = f"state = '{TaskState.OPEN}'"
"""Spelt out, since the indexes of open tasks are not used for a value that SQLite does not know when it plans."""


class RoundGone(TaskClosed):
    """A round is no more the study's: an operator has gone back to an earlier one, or has stopped the study and queued
    it again."""


class Ledger(LedgerFile):
    """Reads and writes `ledger.sqlite`. Every public method that writes is one transaction and survives kill -9."""

    # Studies ----------------------------------------------------------------------------------------------------------

    def queue_study(self, name: str, config: Mapping[str, object]) -> None:
        """Adds a checked study at the end of the queue."""
        with self.transaction() as db:
            position = db.execute("SELECT coalesce(max(position), 0) + 1 FROM study").fetchone()[0]
            db.execute("INSERT INTO study (name, position, state, config_json, queued_unix) VALUES (?, ?, ?, ?, ?)",
                       (name, position, StudyState.QUEUED, canonical_json(config), time.time()))
            self.event("study_queued", study=name, config=config)

    def requeue_study(self, name: str, config: Mapping[str, object]) -> None:
        """Gives a study that failed or was stopped another try, from where it stood, at the end of the queue.

        Before its first commit that is the very beginning: what other settings have measured no longer counts, nor does
        a round 0 that was begun with them. The open round of one that was stopped is cancelled, as its tasks were;
        that of one that failed goes on.
        """
        with self.transaction():
            last = self.last_round(name) if self.study_state(name) is StudyState.STOPPED else None
            if last is not None and last.state not in ENDED_ROUND:
                self.cancel_round(last)
            self.set_study_state(name, StudyState.QUEUED)
            self.move_to_end(name)
            self._take_settings(name, config)

    def replace_settings(self, name: str, config: Mapping[str, object]) -> bool:
        """Gives a study that waits in the queue other settings, unless it has begun by now; it keeps its place."""
        with self.transaction():
            if self.study_state(name) is not StudyState.QUEUED or self.committed_digest(name) != "":
                return False
            self._take_settings(name, config)
            return True

    def _take_settings(self, name: str, config: Mapping[str, object]) -> None:
        with self.part() as db:
            db.execute("UPDATE study SET config_json = ? WHERE name = ?", (canonical_json(config), name))
            if self.committed_digest(name) == "":
                db.execute("UPDATE study SET frozen_json = NULL, numerics_json = NULL, baseline_json = NULL,"
                           " paired_json = NULL WHERE name = ?", (name,))
                db.execute("DELETE FROM round WHERE study = ?", (name,))
            self.event("study_requeued", study=name, config=config)

    def move_to_end(self, name: str) -> None:
        """Puts a study that was over at the end of the queue: others have waited for longer, and one may be running."""
        with self.part() as db:
            db.execute("UPDATE study SET ended_unix = NULL, position = (SELECT max(position) + 1 FROM study)"
                       " WHERE name = ?", (name,))

    def refuse_study(self, name: str, reason: str) -> None:
        """Notes why a study file cannot be queued, so that everyone sees it; the study has failed before it began."""
        with self.transaction() as db:
            if not self.query("SELECT 1 FROM study WHERE name = ?", name):
                self.queue_study(name, {})
            if self.study(name).state is not StudyState.FAILED:
                self.set_study_state(name, StudyState.FAILED, reason=reason)
            else:
                db.execute("UPDATE study SET reason = ? WHERE name = ?", (reason, name))

    def studies(self) -> list[StudyRow]:
        """All studies in order of the queue."""
        return [study_row(row) for row in self.query("SELECT * FROM study ORDER BY position")]

    def study(self, name: str) -> StudyRow:
        """One study.

        Raises: UnknownName, with the names there are.
        """
        rows = self.query("SELECT * FROM study WHERE name = ?", name)
        if not rows:
            names = ", ".join(row.name for row in self.studies()) or "none yet"
            raise UnknownName(f"There is no study '{name}' in the ledger.", remedy=f"Studies: {names}.")
        return study_row(rows[0])

    def next_study(self) -> StudyRow | None:
        """The study that has begun and is not over, or else the first of the queue; None when there is neither."""
        ended = sorted(ENDED_STUDY)
        rows = self.query(f"SELECT * FROM study WHERE state NOT IN ({', '.join('?' * len(ended))})"
                          " ORDER BY state = ?, position LIMIT 1", *ended, StudyState.QUEUED)
        return study_row(rows[0]) if rows else None

    def find_study(self, name: str) -> StudyRow | None:
        """One study; None when there is none of that name."""
        rows = self.query("SELECT * FROM study WHERE name = ?", name)
        return study_row(rows[0]) if rows else None

    def study_state(self, name: str) -> StudyState:
        """The state of a study that exists: asked for with every answer of a silo."""
        return StudyState(self.query("SELECT state FROM study WHERE name = ?", name)[0]["state"])

    def move_study(self, name: str, before: StudyState, after: StudyState, *, reason: str = "") -> bool:
        """Moves a study on, unless it is no longer where it was: an operator may have paused or stopped it."""
        with self.transaction():
            if self.study_state(name) is not before:
                return False
            self.set_study_state(name, after, reason=reason)
            return True

    def set_study_state(self, name: str, state: StudyState, *, reason: str = "") -> None:
        """Moves a study on; sets its start and end times."""
        with self.transaction() as db:
            before = self.study(name).state
            if before == state:
                return
            check_transition(STUDY_TRANSITIONS, before, state)
            now = time.time()
            db.execute("UPDATE study SET state = ?, reason = ? WHERE name = ?", (state, reason, name))
            if state is StudyState.PREPARING and before is StudyState.QUEUED:
                # One that is queued again goes on; before its first commit it begins anew.
                began = "coalesce(started_unix, ?)" if self.committed_digest(name) else "?"
                db.execute(f"UPDATE study SET started_unix = {began} WHERE name = ?", (now, name))
            if state in ENDED_STUDY:
                db.execute("UPDATE study SET ended_unix = ? WHERE name = ?", (now, name))
            self.event(f"study_{state}", study=name, reason=reason, before=str(before))

    def paused_since(self, name: str) -> tuple[float, StudyState] | None:
        """Since when a study is paused, and the state that it was in before; None while it is not paused."""
        rows = self.query("SELECT unix, detail_json FROM event JOIN study ON study.name = event.study WHERE"
                          " study.name = ? AND study.state = ? AND kind = 'study_paused' ORDER BY number DESC LIMIT 1",
                          name, StudyState.PAUSED)
        if not rows:
            return None
        return float(rows[0]["unix"]), StudyState(json.loads(rows[0]["detail_json"])["before"])

    def set_study_facts(self, name: str, *, frozen: FrozenStudy | None = None, numerics: NumericsRecord | None = None,
                        baseline: LabelledOnlyResult | None = None, paired: PairedGain | None = None) -> None:
        """Writes what was found out about a study, most of it when it began; None leaves what is there."""
        facts = {"frozen": frozen, "numerics": numerics, "baseline": baseline, "paired": paired}
        with self.transaction() as db:
            for key, value in facts.items():
                if value is None:
                    continue
                db.execute(f"UPDATE study SET {key}_json = ? WHERE name = ?", (canonical_json(value), name))
                self.event(f"study_{key}", study=name, **{key: value})

    # Rounds and phases ------------------------------------------------------------------------------------------------

    def open_round(self, study: str, number: int, *, start_digest: str, sample: Sequence[str],
                   phases: Sequence[Phase]) -> RoundRow:
        """Records a new round with its sample, before any silo hears of it.

        Raises: RoundGone when the study no longer stands where the round was to begin.
        """
        with self.transaction(lasting=False) as db:
            last = self.query("SELECT max(number) AS number FROM round WHERE study = ?", study)[0]["number"]
            if last is not None and number > last + 1:
                raise RoundGone(f"Study '{study}' has gone back to an earlier round.")
            db.execute("INSERT INTO round (study, number, state, phases_json, sample_json, opened_unix, start_digest,"
                       " state_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                       (study, number, RoundState.PREPARING, canonical_json(phases), canonical_json(sample),
                        time.time(), start_digest, start_digest))
            self.event("round_opened", study=study, round=number, sample=list(sample))
        return self.round(study, number)

    def rounds(self, study: str, *, first: int = 0) -> list[RoundRow]:
        """All rounds of a study in order, or those from `first` on."""
        return [round_row(row) for row in self.query("SELECT * FROM round WHERE study = ? AND number >= ?"
                                                     " ORDER BY number", study, first)]

    def round(self, study: str, number: int) -> RoundRow:
        """One round that was opened. Raises: RoundGone when it is no more the study's."""
        rows = self.query("SELECT * FROM round WHERE study = ? AND number = ?", study, number)
        if not rows:
            raise RoundGone(f"Round {number} is no more of study '{study}'.")
        return round_row(rows[0])

    def last_round(self, study: str) -> RoundRow | None:
        """The round with the highest number, None before round 0."""
        rows = self.query("SELECT * FROM round WHERE study = ? ORDER BY number DESC LIMIT 1", study)
        return round_row(rows[0]) if rows else None

    def committed_digest(self, study: str) -> str:
        """The state file of the last completed round; '' before round 0."""
        rows = self.query("SELECT state_digest FROM round WHERE study = ? AND state = ? ORDER BY number DESC LIMIT 1",
                          study, RoundState.COMPLETED)
        return str(rows[0]["state_digest"]) if rows else ""

    def committed_round(self, study: str) -> int:
        """The number of the last completed round; -1 before round 0."""
        rows = self.query("SELECT number FROM round WHERE study = ? AND state = ? ORDER BY number DESC LIMIT 1",
                          study, RoundState.COMPLETED)
        return int(rows[0]["number"]) if rows else -1

    def set_round_state(self, study: str, number: int, state: RoundState, *, state_digest: str | None = None,
                        metrics: Mapping[str, float] | None = None, phase: int | None = None,
                        reason: str = "", also: Mapping[str, object] | None = None) -> None:
        """Moves a round on, with what the step has produced, in one transaction.

        Args:
            also: what the event says beside that.

        Raises: RoundGone when the round is no more the study's, or was cancelled while the step was under way.
        """
        with self.part() as db:
            row = self.round(study, number)
            if row.state is RoundState.CANCELLED:
                raise RoundGone(f"Round {number} of study '{study}' was cancelled.")
            check_transition(ROUND_TRANSITIONS, row.state, state)
            db.execute("UPDATE round SET state = ?, reason = ? WHERE study = ? AND number = ?",
                       (state, reason, study, number))
            for column, value in (("state_digest", state_digest), ("phase", phase),
                                  ("metrics_json", None if metrics is None else canonical_json(metrics))):
                if value is not None:
                    db.execute(f"UPDATE round SET {column} = ? WHERE study = ? AND number = ?", (value, study, number))
            if state in ENDED_ROUND:
                db.execute("UPDATE round SET closed_unix = ? WHERE study = ? AND number = ?",
                           (time.time(), study, number))
            self.event(f"round_{state}", study=study, round=number,
                       state_digest=row.state_digest if state_digest is None else state_digest,
                       metrics=dict(metrics or {}), reason=reason, **(also or {}))

    def open_phase(self, phase: PhaseRow, tasks: Sequence[TaskSpec], *, columns: Sequence[str] = ()) -> None:
        """Records a phase and its tasks, and moves the round to COLLECTING.

        Args:
            columns: `task_column` of each task, from a caller who has made them beforehand; empty to make them here.
        """
        texts = columns or [task_column(spec) for spec in tasks]
        forget_tasks(keep=2 * len(tasks))
        with self.transaction() as db:
            self.round(phase.study, phase.round)
            db.execute("INSERT INTO phase VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       (phase.study, phase.round, phase.number, phase.name, phase.quorum, phase.opened_unix,
                        phase.deadline_unix, phase.limit_unix, None, canonical_json(phase.expects), phase.step))
            db.executemany("INSERT INTO task (task_id, study, round, phase, silo, state, spec_json, opened_unix)"
                           " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                           [(spec.task_id, spec.study, spec.round, phase.number, spec.silo, TaskState.OPEN, text,
                             phase.opened_unix) for spec, text in zip(tasks, texts, strict=True)])
            self.set_round_state(phase.study, phase.round, RoundState.COLLECTING)

    def phase(self, study: str, round: int, number: int) -> PhaseRow:
        """One phase that was opened. Raises: RoundGone when its round is no more the study's."""
        rows = self.query("SELECT * FROM phase WHERE study = ? AND round = ? AND number = ?", study, round, number)
        if not rows:
            raise RoundGone(f"Round {round} is no more of study '{study}'.")
        return phase_row(rows[0])

    def lower_quorum(self, phase: PhaseRow, quorum: int) -> PhaseRow:
        """Lets an open phase close with fewer answers, since silos of it are set aside."""
        with self.transaction(lasting=False) as db:
            db.execute("UPDATE phase SET quorum = min(quorum, ?) WHERE study = ? AND round = ? AND number = ?",
                       (quorum, phase.study, phase.round, phase.number))
            self.event("quorum_lowered", study=phase.study, round=phase.round, before=phase.quorum, quorum=quorum)
        return replace(phase, quorum=min(phase.quorum, quorum))

    def move_deadline(self, phase: PhaseRow, *, deadline_unix: float, limit_unix: float,
                      opened_unix: float | None = None) -> None:
        """Gives a phase another deadline: after a restart, with the clock, or because the operator asks for it.

        Args:
            opened_unix: when it was opened, by the clock as it goes now: its round was opened as much earlier or later;
                None where nobody has set that.
        """
        with self.transaction(lasting=False) as db:
            if opened_unix is not None:
                self.move_round(phase.study, phase.round, opened_unix - phase.opened_unix)
            db.execute("UPDATE phase SET opened_unix = ?, deadline_unix = ?, limit_unix = ?"
                       " WHERE study = ? AND round = ? AND number = ?",
                       (phase.opened_unix if opened_unix is None else opened_unix, deadline_unix, limit_unix,
                        phase.study, phase.round, phase.number))
            self.event("deadline_moved", study=phase.study, round=phase.round, deadline_unix=deadline_unix)

    def move_round(self, study: str, number: int, seconds: float) -> None:
        """Says when a round was opened by the clock as it goes now, after that was set by so many seconds."""
        with self.part() as db:
            db.execute("UPDATE round SET opened_unix = opened_unix + ? WHERE study = ? AND number = ?",
                       (seconds, study, number))

    def close_phase(self, phase: PhaseRow) -> None:
        """Fixes who was accepted: open tasks expire, the round moves to AGGREGATING."""
        with self.transaction(lasting=False) as db:
            now = time.time()
            for row in self.query(f"SELECT * FROM task WHERE study = ? AND round = ? AND phase = ? AND {_OPEN}"
                                  " ORDER BY silo", phase.study, phase.round, phase.number):
                self.close_task(task_row(row), TaskState.EXPIRED, reason="no answer before the phase closed")
            db.execute("UPDATE phase SET closed_unix = ? WHERE study = ? AND round = ? AND number = ?",
                       (now, phase.study, phase.round, phase.number))
            self.set_round_state(phase.study, phase.round, RoundState.AGGREGATING)

    # Tasks and updates ------------------------------------------------------------------------------------------------

    def tasks(self, study: str, round: int, phase: int) -> list[TaskRow]:
        """The tasks of a phase in byte order of the silos' names."""
        rows = self.query("SELECT * FROM task WHERE study = ? AND round = ? AND phase = ?", study, round, phase)
        return sorted((task_row(row) for row in rows), key=lambda task: task.silo.encode())

    def task_states(self, study: str, round: int, phase: int) -> dict[str, TaskState]:
        """The state of each silo's task of a phase, in silo order."""
        rows = self.query("SELECT silo, state FROM task WHERE study = ? AND round = ? AND phase = ?", study, round,
                          phase)
        return {row["silo"]: TaskState(row["state"]) for row in sorted(rows, key=lambda row: row["silo"].encode())}

    def open_tasks(self, study: str, round: int, phase: int) -> list[str]:
        """The silos that have not answered a phase yet, in silo order."""
        rows = self.query(f"SELECT silo FROM task WHERE study = ? AND round = ? AND phase = ? AND {_OPEN}", study,
                          round, phase)
        return sorted((row["silo"] for row in rows), key=str.encode)

    def cancelled_silos(self, study: str, round: int, phase: int) -> set[str]:
        """The silos whose task of a phase was cancelled."""
        rows = self.query("SELECT silo FROM task WHERE study = ? AND round = ? AND phase = ? AND state = ?", study,
                          round, phase, TaskState.CANCELLED)
        return {row["silo"] for row in rows}

    def count_answers(self, study: str, round: int, phase: int, *, of: Collection[str] | None = None) -> int:
        """How many answers a phase has that count for its quorum: updates, abstentions and answers to steps of a secure
        sum. A refusal brings nothing.

        Args:
            of: silos whose answers alone are looked at; None for all.
        """
        return self._count_tasks(study, round, phase, (TaskState.UPDATED, TaskState.ABSTAINED, TaskState.ANSWERED), of)

    def count_refusals(self, study: str, round: int, phase: int) -> int:
        """How many silos have refused a phase."""
        return self._count_tasks(study, round, phase, (TaskState.REFUSED,))

    def _count_tasks(self, study: str, round: int, phase: int, states: Sequence[TaskState],
                     silos: Collection[str] | None = None) -> int:
        of, values = ("", ()) if silos is None else (" AND silo IN (SELECT value FROM json_each(?))",
                                                     (json.dumps(list(silos)),))
        return int(self.query(f"SELECT count(*) FROM task WHERE study = ? AND round = ? AND phase = ?{of} AND state IN"
                              " (SELECT value FROM json_each(?))", study, round, phase, *values,
                              json.dumps(states))[0][0])

    def task(self, task_id: str) -> TaskRow | None:
        """One task, with the state of its study: whoever asks for one wants to know whether it still counts."""
        rows = self.query("SELECT task.*, study.state AS study_state FROM task JOIN study ON study.name = task.study"
                          " WHERE task_id = ?", task_id)
        return task_row(rows[0], StudyState(rows[0]["study_state"])) if rows else None

    def open_task(self, silo: str, *, study: str = "") -> TaskRow | None:
        """The task that a silo should work on now, of one study or of any."""
        of_study, values = (" AND study = ?", (silo, study)) if study else ("", (silo,))
        rows = self.query(f"SELECT * FROM task WHERE silo = ? AND {_OPEN}{of_study} ORDER BY opened_unix LIMIT 1",
                          *values)
        return task_row(rows[0]) if rows else None

    def task_given(self, task_id: str) -> bool:
        """Notes that the silo has been told of its task; whether this is the first time."""
        with self.transaction(lasting=False) as db:
            return db.execute("UPDATE task SET given_unix = ? WHERE task_id = ? AND given_unix IS NULL",
                              (time.time(), task_id)).rowcount == 1

    def replace_payloads(self, task: TaskRow, payloads: Sequence[PayloadRef]) -> TaskSpec:
        """The task with other payloads of the same tensor groups: its silo no longer holds what the first need. On disk
        before the silo hears of them: it asks for them by name, also of a coordinator that lost its power meanwhile."""
        spec = replace(task.spec, payloads=tuple(payloads))
        with self.transaction() as db:
            db.execute("UPDATE task SET spec_json = ? WHERE task_id = ?", (canonical_json(spec), task.task_id))
        return spec

    def close_task(self, task: TaskRow, state: TaskState, *, update: DeclaredUpdate | None = None, reason: str = "",
                   metrics: Mapping[str, float] | None = None) -> None:
        """Ends an open task.

        Args:
            update: with which it is answered.
        Raises: TaskClosed when another process, such as `coordinator revoke`, has ended it since it was read.
        """
        check_transition(TASK_TRANSITIONS, task.state, state)
        with self.part() as db:
            changed = db.execute("UPDATE task SET state = ?, closed_unix = ?, update_id = ?, reason = ?,"
                                 " metrics_json = ? WHERE task_id = ? AND state = ?",
                                 (state, time.time(), update.update_id if update is not None else None, reason,
                                  canonical_json(dict(metrics or {})),
                                  task.task_id, TaskState.OPEN)).rowcount
            if not changed:
                raise TaskClosed("The task is over.")
            of_update = {} if update is None else {
                "update_id": update.update_id, "digest": update.digest, "bytes": update.size_bytes,
                "example_count": update.example_count}
            self.event(f"task_{state}", study=task.study, round=task.round, silo=task.silo, reason=reason,
                       metrics=dict(metrics or {}), **of_update)

    def leave_out(self, task: TaskRow, *, reason: str) -> None:
        """An update that was accepted is not folded after all: its task counts as refused, with the reason. Of a masked
        one that is no refusal of its silo: `semisilo.coordinator.ledger.tasks`."""
        check_transition(TASK_TRANSITIONS, task.state, TaskState.REFUSED)
        with self.part() as db:
            db.execute("UPDATE task SET state = ?, reason = ? WHERE task_id = ?",
                       (TaskState.REFUSED, reason, task.task_id))
            self.event("update_left_out", study=task.study, round=task.round, silo=task.silo,
                       update_id=task.update_id or "", reason=reason)

    def measured(self, study: str, round: int, phase: int, measures: Mapping[str, UpdateMeasure]) -> None:
        """Notes the norm of each silo's update of a phase, and its cosine to their mean."""
        with self.part() as db:
            db.executemany("UPDATE declared_update SET norm = ?, cosine = ? WHERE update_id = (SELECT update_id FROM"
                           " task WHERE study = ? AND round = ? AND phase = ? AND silo = ?)",
                           [(each.norm, each.cosine, study, round, phase, silo) for silo, each in measures.items()])

    def cancel_tasks(self, silo: str, *, reason: str) -> int:
        """Cancels the open tasks of a silo; returns how many there were."""
        with self.transaction():
            rows = self.query(f"SELECT * FROM task WHERE silo = ? AND {_OPEN}", silo)
            for row in rows:
                self.close_task(task_row(row), TaskState.CANCELLED, reason=reason)
            return len(rows)

    def declare_update(self, update: DeclaredUpdate) -> list[str]:
        """Records what a silo announces; a repeat changes nothing.

        Returns: ids that the task had before: another update takes their place, so that a task never has two.
        """
        with self.transaction(lasting=False) as db:
            before = [row["update_id"] for row in self.query(
                "DELETE FROM declared_update WHERE task_id = ? AND update_id <> ? AND accepted_unix IS NULL"
                " RETURNING update_id", update.task_id, update.update_id)]
            db.execute("INSERT OR IGNORE INTO declared_update (update_id, task_id, digest, size_bytes, groups_json,"
                       " example_count, metrics_json, training_seconds, declared_unix)"
                       " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       (update.update_id, update.task_id, update.digest, update.size_bytes,
                        canonical_json(update.groups), update.example_count, canonical_json(update.metrics),
                        update.training_seconds, update.declared_unix))
            return before

    def unfinished_updates(self, study: str, round: int) -> list[str]:
        """Ids of what was announced in a round and has not been accepted."""
        return [row["update_id"] for row in self.query(
            "SELECT declared_update.update_id FROM declared_update JOIN task USING (task_id)"
            " WHERE study = ? AND round = ? AND accepted_unix IS NULL", study, round)]

    def awaited_updates(self) -> list[str]:
        """Ids of what was announced for tasks that are still open: of these a part may be on disk."""
        return [row["update_id"] for row in self.query(
            f"SELECT declared_update.update_id FROM declared_update JOIN task USING (task_id) WHERE task.{_OPEN}")]

    def may_be_folded(self, digest: str) -> bool:
        """Whether an update with this content was announced that may still be folded: its round is not over, and its
        task is open or was answered with it."""
        # From the open rounds, which an index has: a study may have half a million updates.
        return bool(self.query(
            "SELECT 1 FROM round CROSS JOIN task ON task.study = round.study AND task.round = round.number"
            " CROSS JOIN declared_update ON declared_update.task_id = task.task_id WHERE round.closed_unix IS NULL"
            f" AND digest = ? AND (task.{_OPEN} OR task.update_id = declared_update.update_id) LIMIT 1", digest))

    def declared_update(self, update_id: str) -> DeclaredUpdate | None:
        """One announced update."""
        rows = self.query("SELECT * FROM declared_update WHERE update_id = ?", update_id)
        return declared_update(rows[0]) if rows else None

    def is_declared(self, update_id: str) -> bool:
        """Whether an update was announced, and no other one of its task since."""
        return bool(self.query("SELECT 1 FROM declared_update WHERE update_id = ?", update_id))

    def accept_update(self, update: DeclaredUpdate, task: TaskRow) -> None:
        """The update is complete, checked and on disk: the task is answered."""
        with self.transaction() as db:
            changed = db.execute("UPDATE declared_update SET accepted_unix = ? WHERE update_id = ?"
                                 " AND accepted_unix IS NULL", (time.time(), update.update_id)).rowcount
            assert changed == 1, f"update {update.update_id} is declared, and accepted once"
            self.close_task(task, TaskState.UPDATED, update=update, metrics=update.metrics)

    def accepted_updates(self, study: str, round: int, phase: int) -> list[tuple[TaskRow, DeclaredUpdate]]:
        """The updates that a closed phase folds, in silo order."""
        updates = {row["update_id"]: declared_update(row) for row in self.query(
            "SELECT declared_update.* FROM task JOIN declared_update USING (update_id) WHERE study = ? AND round = ?"
            " AND phase = ? AND state = ?", study, round, phase, TaskState.UPDATED)}
        return [(task, updates[task.update_id]) for task in self.tasks(study, round, phase)
                if task.state is TaskState.UPDATED and task.update_id is not None]

    def updated_tasks(self, study: str, round: int, phase: int, silos: Collection[str]) -> list[TaskRow]:
        """The tasks of a phase that some silos have answered with an update, in silo order."""
        rows = self.query("SELECT * FROM task WHERE study = ? AND round = ? AND phase = ? AND state = ? AND silo IN"
                          " (SELECT value FROM json_each(?)) ORDER BY silo", study, round, phase, TaskState.UPDATED,
                          json.dumps(list(silos)))
        return [task_row(row) for row in rows]

    def folded(self, study: str, round: int, kept: Mapping[str, str | None]) -> None:
        """Notes whose updates a phase has folded and what is kept for them; it counts once the round is committed."""
        with self.part() as db:
            db.executemany("INSERT INTO silo_state (study, silo, pending_round, pending_kept_digest)"
                           " VALUES (?, ?, ?, ?) ON CONFLICT (study, silo) DO UPDATE SET"
                           " pending_round = excluded.pending_round, pending_kept_digest ="
                           " CASE WHEN pending_round = excluded.pending_round"
                           " THEN coalesce(excluded.pending_kept_digest, pending_kept_digest)"
                           " ELSE excluded.pending_kept_digest END",  # of a round that was cancelled nothing stays
                           [(study, silo, round, digest) for silo, digest in kept.items()])

    def commit_round(self, study: str, round: int, *, metrics: Mapping[str, float],
                     confusion: Sequence[Sequence[int]] = ()) -> None:
        """Commits a round: its state counts, and what was folded in it becomes what silos and strategy remember.

        A silo that missed one phase of the round is left as it was: it must not commit the memory of an update that
        was not folded because another answer of the same round was. Steps of a secure sum are no such phases: a masked
        update is in the sum whatever its silo does afterwards.

        Args:
            confusion: (K, K), confusion[true][predicted], in test images; where images may have several labels (K, 4),
                of each class true positives, false negatives, false positives and true negatives; () where it is not
                known.
        """
        counts = canonical_json(confusion) if confusion else ""
        with self.transaction() as db:
            self.set_round_state(study, round, RoundState.COMPLETED, metrics=metrics, also={
                "confusion_digest": digest_of_column(counts) if counts else ""})
            if counts:
                db.execute("INSERT INTO confusion VALUES (?, ?, ?)", (study, round, counts))
            db.execute("UPDATE silo_state SET pending_round = NULL, pending_kept_digest = NULL WHERE study = ? AND silo"
                       " IN (SELECT silo FROM task JOIN phase ON phase.study = task.study AND phase.round = task.round"
                       " AND phase.number = task.phase WHERE task.study = ? AND task.round = ? AND phase.step IN"
                       " ('', 'mask') AND state IN (?, ?, ?))",
                       (study, study, round, TaskState.EXPIRED, TaskState.REFUSED, TaskState.CANCELLED))
            db.execute("INSERT INTO kept_state SELECT study, silo, ?, coalesce(pending_kept_digest, kept_digest) FROM"
                       " silo_state WHERE study = ? AND pending_round = ?", (round, study, round))
            db.execute("UPDATE silo_state SET last_folded_round = ?,"
                       " kept_digest = coalesce(pending_kept_digest, kept_digest),"
                       " pending_round = NULL, pending_kept_digest = NULL WHERE study = ? AND pending_round = ?",
                       (round, study, round))
            of_round = "update_id IN (SELECT update_id FROM task WHERE study = ? AND round = ?)"
            again = db.execute(f"SELECT 1 FROM declared_update WHERE folded = 1 AND {of_round} LIMIT 1",
                               (study, round)).fetchone()
            assert again is None, f"an update of round {round} of study {study} is folded once"
            db.execute(f"UPDATE declared_update SET folded = 1 WHERE {of_round}", (study, round))

    def fail_round(self, row: RoundRow, *, reason: str) -> None:
        """Ends a round without a result: the model stays, its updates and what was pending are dropped."""
        with self.transaction() as db:
            for task in self.tasks(row.study, row.number, row.phase):
                if task.state is TaskState.OPEN:
                    self.close_task(task, TaskState.EXPIRED, reason="the round failed")
            self.set_round_state(row.study, row.number, RoundState.FAILED, state_digest=row.start_digest,
                                 reason=reason)
            db.execute("UPDATE silo_state SET pending_round = NULL, pending_kept_digest = NULL WHERE study = ?",
                       (row.study,))

    def cancel_round(self, row: RoundRow) -> None:
        """Ends the open round of a study that was stopped."""
        with self.transaction():
            for task in self.tasks(row.study, row.number, row.phase):
                if task.state is TaskState.OPEN:
                    self.close_task(task, TaskState.CANCELLED, reason="the study was stopped")
            self.set_round_state(row.study, row.number, RoundState.CANCELLED)

    def silo_state(self, study: str, silo: str, *, round: int = 0) -> tuple[int, str | None]:
        """(last folded round or 0, digest of what the strategy keeps or None).

        With `round`, what an earlier phase of that round has put aside goes before what is committed.
        """
        rows = self.query("SELECT * FROM silo_state WHERE study = ? AND silo = ?", study, silo)
        return _silo_state(rows[0], round) if rows else (0, None)

    def silo_states(self, study: str, silos: Collection[str], *, round: int = 0) -> dict[str, tuple[int, str | None]]:
        """`silo_state` of each of many silos."""
        found = {row["silo"]: _silo_state(row, round) for row in self.query(
            "SELECT * FROM silo_state WHERE study = ? AND silo IN (SELECT value FROM json_each(?))", study,
            json.dumps(list(silos)))}
        return {silo: found.get(silo, (0, None)) for silo in silos}

    def folded_silos(self, study: str) -> dict[str, int]:
        """Silos of which an update was folded in a committed round -> the last such round."""
        return {row["silo"]: int(row["last_folded_round"]) for row in self.query(
            "SELECT silo, last_folded_round FROM silo_state WHERE study = ? AND last_folded_round > 0", study)}

    def kept_digests(self, study: str) -> set[str]:
        """State files that the strategy keeps for silos."""
        rows = self.query("SELECT kept_digest, pending_kept_digest FROM silo_state WHERE study = ?", study)
        return {digest for row in rows for digest in tuple(row) if digest is not None}


def digest_of_column(text: str) -> str:
    """What an event says of a column that is too long for it: SHA-256, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def _silo_state(row: sqlite3.Row, round: int) -> tuple[int, str | None]:
    pending = row["pending_kept_digest"] if round and row["pending_round"] == round else None
    return int(row["last_folded_round"]), pending or row["kept_digest"]
