"""Events of the audit trail: by filter, and what they say of one study.

They are numbered in the order in which they were written, so two of them are compared by their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from semisilo.common.audit.chain import ChainedEvent
from semisilo.coordinator.ledger.database import event_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import TaskRow
from semisilo.coordinator.ledger.states import RoundState, StudyState

__all__ = ["StudyNote", "begun_again_event", "chain_of", "event_kinds", "find_events", "has_gone_back",
           "has_paused_itself", "is_model_noted", "is_model_written", "last_ended_rounds", "last_event_of",
           "late_tasks", "note_late_answer", "note_model_not_written", "note_model_written", "round_ended_event",
           "study_notes"]


def chain_of(ledger: Ledger, number: int) -> str | None:
    """The chain value of an event, None when there is no such event."""
    rows = ledger.query("SELECT chain FROM event WHERE number = ?", number)
    return rows[0]["chain"] if rows else None


def last_event_of(ledger: Ledger, study: str) -> int:
    """Number of the last event of a study; 0 before the first. Asked by whoever reaches the page, so it looks at one
    entry of the index for each kind."""
    return int(ledger.query(
        "WITH RECURSIVE kinds (kind) AS (SELECT min(kind) FROM event WHERE study = ?1 UNION ALL"
        " SELECT (SELECT min(kind) FROM event WHERE study = ?1 AND event.kind > kinds.kind) FROM kinds"
        " WHERE kinds.kind IS NOT NULL) SELECT coalesce(max((SELECT max(number) FROM event WHERE study = ?1"
        " AND event.kind = kinds.kind)), 0) AS number FROM kinds WHERE kind IS NOT NULL", study)[0]["number"])


def find_events(ledger: Ledger, *, study: str = "", silo: str = "", kind: str = "", before: int = 0,
                limit: int) -> list[ChainedEvent]:
    """The newest events that fit, newest first; an empty filter fits all, as does `before` 0."""
    # With both the index has them in this order. With one of them the newest come soonest from the end of the table.
    by_study, of_study = ("study = ? AND kind = ?", (study, kind)) if study and kind else (
        "(study = ? OR ? = '') AND (kind = ? OR ? = '')", (study, study, kind, kind))
    return [event_of(row) for row in ledger.query(
        f"SELECT * FROM event WHERE {by_study} AND (number < ? OR ? = 0)"
        " AND (? = '' OR json_extract(detail_json, '$.silo') = ?) ORDER BY number DESC LIMIT ?",
        *of_study, before, before, silo, silo, limit)]


def event_kinds(ledger: Ledger, study: str) -> tuple[tuple[str, int], ...]:
    """(kind, how many) of the events of a study, most frequent first."""
    rows = ledger.query("SELECT kind, count(*) AS count FROM event WHERE study = ? GROUP BY kind"
                        " ORDER BY count DESC, kind", study)
    return tuple((row["kind"], row["count"]) for row in rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyNote:
    """A note of an operator beside a study."""

    unix: float
    by: str
    """Who wrote it, as the audit trail has it: "operator:alice", "cli:root", "page token"."""
    text: str


def study_notes(ledger: Ledger, study: str) -> tuple[StudyNote, ...]:
    """The notes beside a study, oldest first."""
    found = [event_of(row) for row in ledger.query(
        "SELECT * FROM event WHERE study = ? AND kind = 'study_note' ORDER BY number", study)]
    return tuple(StudyNote(unix=each.unix, by=str(each.detail.get("by", "")), text=str(each.detail.get("text", "")))
                 for each in found)


_WRITTEN, _NOT_WRITTEN, _GONE_BACK = "model_written", "model_not_written", "study_rolled_back"


def note_model_written(ledger: Ledger, study: str, state_digest: str) -> None:
    """Notes that the model of a committed state lies beside the study's file."""
    ledger.event(_WRITTEN, study=study, state_digest=state_digest)


def note_model_not_written(ledger: Ledger, study: str, state_digest: str, *, reason: str) -> None:
    """Notes why the model of a committed state could not be written, so that it is not tried for ever."""
    ledger.event(_NOT_WRITTEN, study=study, state_digest=state_digest, reason=reason)


def is_model_noted(ledger: Ledger, study: str, state_digest: str) -> bool:
    """Whether the model of a state was the last that was written, or could not be, and the study has not gone back to
    an earlier round since."""
    return _last_model(ledger, study) in ((_WRITTEN, state_digest), (_NOT_WRITTEN, state_digest))


def is_model_written(ledger: Ledger, study: str, state_digest: str) -> bool:
    """Whether what lies beside the study's file is the model of a state: likewise, and it could be written."""
    return _last_model(ledger, study) == (_WRITTEN, state_digest)


def _last_model(ledger: Ledger, study: str) -> tuple[str, str | None] | None:
    """The kind and the state of the last note about a model of the study, or that it has gone back since."""
    rows = ledger.query("SELECT kind, json_extract(detail_json, '$.state_digest') AS state_digest FROM event"
                        " WHERE study = ? AND kind IN (?, ?, ?) ORDER BY number DESC LIMIT 1",
                        study, _WRITTEN, _NOT_WRITTEN, _GONE_BACK)
    return (rows[0]["kind"], rows[0]["state_digest"]) if rows else None


def has_gone_back(ledger: Ledger, study: str) -> bool:
    """Whether an operator has taken the study back to an earlier round since its model was last written: what may lie
    beside its file is of a round that no longer counts."""
    last = _last_model(ledger, study)
    return last is not None and last[0] == _GONE_BACK and bool(ledger.query(
        "SELECT 1 FROM rollback WHERE study = ? AND origin <> 'coordinator' AND number = (SELECT max(number) FROM"
        " rollback WHERE study = ?)", study, study))


def note_late_answer(ledger: Ledger, task: TaskRow) -> None:
    """Notes that an answer came to a task that is over."""
    ledger.event("update_late", study=task.study, round=task.round, silo=task.silo, state=task.state,
                 task_id=task.task_id)


def late_tasks(ledger: Ledger, study: str) -> set[str]:
    """The tasks of a study of which `note_late_answer` has told. All of them at once: no index leads to one, and a
    study whose rounds end at their deadlines may have many thousands."""
    return {row["task_id"] for row in ledger.query(
        "SELECT json_extract(detail_json, '$.task_id') AS task_id FROM event WHERE study = ? AND kind = 'update_late'",
        study)}


def last_ended_rounds(ledger: Ledger, study: str, count: int) -> list[int]:
    """Numbers of the last rounds that were committed or have failed, the latest first; round 0 is none of them."""
    return [int(row["number"]) for row in ledger.query(
        "SELECT number FROM round WHERE study = ? AND number > 0 AND state IN (?, ?) ORDER BY number DESC LIMIT ?",
        study, RoundState.COMPLETED, RoundState.FAILED, count)]


def round_ended_event(ledger: Ledger, study: str, number: int) -> int:
    """The number of the event with which a round was committed or has failed; it must have ended."""
    return int(ledger.query("SELECT max(number) AS number FROM event WHERE study = ? AND kind IN (?, ?)"
                            " AND json_extract(detail_json, '$.round') = ?", study,
                            f"round_{RoundState.COMPLETED}", f"round_{RoundState.FAILED}", number)[0]["number"])


def begun_again_event(ledger: Ledger, study: str) -> int:
    """The number of the event with which a study was last resumed or queued; 0 when there is none."""
    return int(ledger.query(
        "SELECT coalesce(max(number), 0) AS number FROM event WHERE study = ? AND kind IN ('study_queued',"
        " 'study_requeued', ?, ?, ?) AND (kind IN ('study_queued', 'study_requeued')"
        " OR json_extract(detail_json, '$.before') = ?)", study,
        f"study_{StudyState.PREPARING}", f"study_{StudyState.WAITING}", f"study_{StudyState.RUNNING}",
        StudyState.PAUSED)[0]["number"])


def has_paused_itself(ledger: Ledger, study: str) -> bool:
    """Whether the coordinator has paused a study since it was last queued."""
    return bool(ledger.query(
        "SELECT 1 FROM event WHERE study = ? AND kind = ? AND json_extract(detail_json, '$.origin') = 'coordinator' AND"
        " number > (SELECT coalesce(max(number), 0) FROM event WHERE study = ? AND kind IN ('study_queued',"
        " 'study_requeued')) LIMIT 1", study, f"study_{StudyState.PAUSED}", study))
