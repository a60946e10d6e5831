"""Tasks and what silos answered to them, over whole rounds and studies: who owes an answer, who gave which, and what
silos say of the model that a task brought (site evaluations).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semisilo.common.config import canonical_json, from_dict
from semisilo.common.errors import SemisiloError
from semisilo.common.methods.spec import ACCEPTED_STEP, MEASURING
from semisilo.coordinator.ledger.ledger import Ledger, digest_of_column
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState

if TYPE_CHECKING:
    from semisilo.common.measures.site_evaluation import SiteEvaluation

__all__ = ["AllRefused", "OpenTask", "ReceivedAnswer", "Refusal", "RefusedTask", "SiloPart", "SubmittedTask",
           "TaskAnswer", "add_site_evaluation", "answer_states", "answers_of_round", "answers_of_study",
           "counts_of_evaluation", "first_update", "has_answers", "has_taken_part", "is_committed", "last_refusal",
           "last_refusals", "not_added_up", "open_tasks", "received_answers", "refusal_reasons", "silo_parts",
           "silos_that_refused_all", "site_evaluation_counts", "site_evaluations", "sizes_of_last_updates",
           "takes_in", "task_counts", "tasks_of_phase", "training_seconds"]

_REASON_LETTERS = 80
_NOT_ADDED = ("(task.update_id IS NOT NULL AND EXISTS (SELECT 1 FROM phase WHERE phase.study = task.study AND"
              " phase.round = task.round AND phase.number = task.phase AND phase.step = 'mask'))")
"""Of a task that counts as refused: its silo has sent a masked update, and no sum was made of it, for example because
too few others came. That is no refusal of the silo."""
_STATES = {str(state): state for state in TaskState}
_ANSWER = (f"CASE WHEN task.state = '{TaskState.REFUSED}' AND {_NOT_ADDED} THEN '{TaskState.ANSWERED}'"
           " ELSE task.state END")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTask:
    """A task of an open round that its silo has not answered yet."""

    silo: str
    study: str
    deadline_unix: float | None
    """Unix seconds at which its phase closes if there is a quorum; None while the study is paused: it stands still."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAnswer:
    """What one silo answered to one task: of a round of several phases there are several."""

    round: int
    phase: str
    """The phase's name."""
    silo: str
    state: TaskState
    reason: str = ""
    example_count: int | None = None
    """Images that the update says it is from; None where there is no update."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the silo sent; empty where it was not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedTask:
    """A task with what is known of its update. Times are Unix seconds."""

    silo: str
    state: TaskState
    given_unix: float | None
    closed_unix: float | None
    reason: str
    metrics: dict[str, float]
    example_count: int | None
    training_seconds: float | None
    update_bytes: int | None
    groups: dict[str, int]
    """Tensor group -> encoded bytes of the update."""
    norm: float | None = None
    """Of the update, as the coordinator has measured it; None before its phase is closed."""
    cosine: float | None = None
    """Of the update to the mean of its phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedAnswer:
    """What has come from a silo for one task."""

    silo: str
    state: TaskState
    metrics: dict[str, float]
    groups: dict[str, int] | None
    """Tensor group -> encoded bytes of its update; None where none has arrived whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Who has refused a task, and why."""

    silo: str
    reason: str
    """"CODE: text"; empty when the silo gave none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloPart:
    """What part a silo has in a study."""

    silo: str
    asked: bool
    """In a round that is over."""
    set_aside: bool
    """Whether the operator has set it aside, before the study's end."""
    updated: bool
    """Whether a committed round has an update of it, in any phase."""
    abstained: bool
    """Whether a committed round has an abstention of it."""
    not_added: bool
    """Whether it has sent masked updates in committed rounds, and none of any was added up."""

    @property
    def took_part(self) -> bool:
        """Whether a committed round has an answer of it that counts."""
        return self.updated or self.abstained

    @property
    def only_abstained(self) -> bool:
        """Whether it took part and has sent no update."""
        return self.abstained and not self.updated and not self.not_added


@dataclass(frozen=True, kw_only=True, slots=True)
class AllRefused:
    """A silo that has given no other answer in a study than refusals."""

    rounds: int
    """In which it refused."""
    reason: str
    """Of the last one, as in `Refusal`."""
    closed_unix: float
    """When that came."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedTask:
    """A task that was refused."""

    silo: str
    study: str
    round: int
    reason: str
    closed_unix: float


def open_tasks(ledger: Ledger) -> dict[str, OpenTask]:
    """Silo -> the task that it owes an answer to, in a study that runs or is paused."""
    rows = ledger.query(
        "SELECT task.silo, task.study, study.state AS study_state, phase.deadline_unix FROM task"
        " JOIN study ON study.name = task.study AND study.state IN (?, ?)"
        " JOIN round ON round.study = task.study AND round.number = task.round AND round.closed_unix IS NULL"
        " JOIN phase ON phase.study = task.study AND phase.round = task.round AND phase.number = task.phase"
        # Spelt out: the indexes of open tasks are not used for a value that SQLite does not know when it plans.
        f" WHERE task.state = '{TaskState.OPEN}'", StudyState.RUNNING, StudyState.PAUSED)
    return {row["silo"]: OpenTask(
        silo=row["silo"], study=row["study"],
        deadline_unix=None if row["study_state"] == StudyState.PAUSED else row["deadline_unix"]) for row in rows}


def answers_of_study(ledger: Ledger, study: str, *, first: int = 0, last: int = 2**62, silo: str = "",
                     counted: bool = True) -> list[TaskAnswer]:
    """Answers to all phases of the rounds from `first` to `last`, by round, phase and silo. A masked update that was
    not added up is no refusal: its silo has ANSWERED.

    Args:
        silo: only of this one; of all when empty.
        counted: False where nobody asks for the counts of images, all None then: to find those of many answers takes
            longer than all else.
    """
    count, join = ("declared_update.example_count", " LEFT JOIN declared_update ON declared_update.update_id ="
                   " task.update_id") if counted else ("NULL", "")
    rows = ledger.query(
        f"SELECT task.round, phase.name, task.silo, {_ANSWER} AS state, task.reason, {count}, task.metrics_json"
        " FROM task JOIN phase ON phase.study = task.study AND phase.round = task.round AND phase.number = task.phase"
        f"{join} WHERE task.study = ? AND task.round BETWEEN ? AND ? AND (task.silo = ? OR ? = '')"
        " ORDER BY task.round, task.phase, task.silo", study, first, last, silo, silo)
    # One text for all: the page's first look at a study of a thousand silos reads thirty thousand.
    metrics = json.loads(f"[{','.join(row[6] for row in rows)}]")
    return [TaskAnswer(round=number, phase=phase, silo=name, state=_STATES[state], reason=reason, example_count=images,
                       metrics=numbers)
            for (number, phase, name, state, reason, images, _), numbers in zip(rows, metrics, strict=True)]


def answers_of_round(ledger: Ledger, study: str, number: int) -> list[tuple[str, TaskState]]:
    """(silo, state) of the tasks of a round, by phase; that of a masked update which was not added up is ANSWERED."""
    return [(row["silo"], TaskState(row["state"])) for row in ledger.query(
        f"SELECT silo, {_ANSWER} AS state FROM task JOIN phase ON phase.study = task.study AND phase.round = task.round"
        " AND phase.number = task.phase WHERE task.study = ? AND task.round = ? AND phase.step NOT IN"
        " ('confirm', 'unmask') ORDER BY phase.number", study, number)]


def not_added_up(ledger: Ledger, study: str, *, first: int = 0) -> dict[int, int]:
    """Round -> silos whose answer to it counts as refused in the sums that the ledger keeps, though it was a masked
    update that was not added up, of rounds that are over from `first` on."""
    if not ledger.query("SELECT 1 FROM secure_sum WHERE study = ? LIMIT 1", study):
        return {}
    return {row["round"]: row["silos"] for row in ledger.query(
        "SELECT round, count(*) AS silos FROM (SELECT task.round AS round, task.silo FROM task JOIN round ON"
        " round.study = task.study AND round.number = task.round JOIN phase ON phase.study = task.study AND phase.round"
        " = task.round AND phase.number = task.phase WHERE task.study = ? AND task.round >= ? AND round.closed_unix IS"
        " NOT NULL AND phase.step NOT IN ('confirm', 'unmask') GROUP BY task.round, task.silo"
        f" HAVING max(task.state = ? AND {_NOT_ADDED}) AND NOT max(task.state IN (?, ?) OR (task.state = ? AND NOT"
        f" {_NOT_ADDED}))) GROUP BY round",
        study, first, TaskState.REFUSED, TaskState.EXPIRED, TaskState.CANCELLED, TaskState.REFUSED)}


def tasks_of_phase(ledger: Ledger, study: str, number: int, phase: int) -> list[SubmittedTask]:
    """The tasks of a phase with their updates, in byte order of silos."""
    rows = ledger.query(
        "SELECT task.silo, task.state, task.given_unix, task.closed_unix, task.reason, task.metrics_json,"
        " example_count, training_seconds, size_bytes, groups_json, norm, cosine FROM task"
        " LEFT JOIN declared_update ON declared_update.update_id = task.update_id"
        " WHERE study = ? AND round = ? AND phase = ?", study, number, phase)
    return [SubmittedTask(
        silo=row["silo"], state=TaskState(row["state"]), given_unix=row["given_unix"], closed_unix=row["closed_unix"],
        reason=row["reason"], metrics=json.loads(row["metrics_json"]), example_count=row["example_count"],
        training_seconds=row["training_seconds"], update_bytes=row["size_bytes"],
        groups=json.loads(row["groups_json"] or "{}"), norm=row["norm"], cosine=row["cosine"])
        for row in sorted(rows, key=lambda row: row["silo"].encode())]


def received_answers(ledger: Ledger, study: str) -> list[ReceivedAnswer]:
    """What has come from silos in a study, task by task in no order; of rounds that are gone nothing."""
    rows = ledger.query(
        "SELECT task.silo, task.state, task.metrics_json, groups_json, accepted_unix FROM task LEFT JOIN"
        " declared_update ON declared_update.update_id = task.update_id WHERE task.study = ?", study)
    # One text for all, as in `answers_of_study`.
    metrics = json.loads(f"[{','.join(row['metrics_json'] for row in rows)}]")
    groups = json.loads(f"[{','.join('null' if row['accepted_unix'] is None else row['groups_json'] for row in rows)}]")
    return [ReceivedAnswer(silo=row["silo"], state=_STATES[row["state"]], metrics=numbers, groups=sizes)
            for row, numbers, sizes in zip(rows, metrics, groups, strict=True)]


def site_evaluation_counts(ledger: Ledger, study: str) -> dict[str, int]:
    """Silo -> models of a study of which it has said what they are worth on its own test images."""
    return {row["silo"]: int(row["n"]) for row in ledger.query(
        "SELECT silo, count(*) AS n FROM site_evaluation WHERE study = ? GROUP BY silo", study)}


def last_refusals(ledger: Ledger) -> list[RefusedTask]:
    """The newest closed task of each silo and study, where that was refused and the study has not ended."""
    # From the refusals, of which there are few: a study may have half a million tasks.
    rows = ledger.query(
        "SELECT * FROM (SELECT task.silo, task.study, task.round, task.reason, max(task.closed_unix) AS closed_unix"
        " FROM study CROSS JOIN silo CROSS JOIN task ON task.study = study.name AND task.silo = silo.name"
        f" AND task.state = ? AND NOT {_NOT_ADDED} WHERE study.ended_unix IS NULL GROUP BY task.silo, task.study) AS"
        " last WHERE NOT EXISTS (SELECT 1 FROM task WHERE task.study = last.study AND task.silo = last.silo"
        f" AND (task.state <> ? OR {_NOT_ADDED}) AND task.closed_unix > last.closed_unix) ORDER BY silo, study",
        TaskState.REFUSED, TaskState.REFUSED)
    return [RefusedTask(silo=row["silo"], study=row["study"], round=row["round"], reason=row["reason"],
                        closed_unix=row["closed_unix"]) for row in rows]


def silo_parts(ledger: Ledger, study: str, *, ended_unix: float | None = None) -> list[SiloPart]:
    """What part each silo has in a study, in byte order of names: those that were asked, and other members.

    Args:
        ended_unix: members that have joined later are left out; who was set aside later was not in the study.
    """
    # The first answer of each silo that fits is enough, and the index finds it: a study may have half a million tasks.
    answered = ("EXISTS (SELECT 1 FROM task JOIN round ON round.study = task.study AND round.number = task.round WHERE"
                " task.study = ? AND task.silo = silo.name AND task.state = ? AND round.state = ?{})")
    end = float("inf") if ended_unix is None else ended_unix
    rows = ledger.query(
        "SELECT silo.name, total.silo IS NOT NULL AS asked, silo.set_aside_unix <= ? AS set_aside,"
        f" {answered.format('')} AS updated, {answered.format('')} AS abstained,"
        f" {answered.format(f' AND {_NOT_ADDED}')} AS not_added"
        " FROM silo LEFT JOIN silo_total AS total ON total.study = ? AND total.silo = silo.name"
        " WHERE total.silo IS NOT NULL OR (silo.joined_unix <= ? AND silo.revoked_unix IS NULL AND silo.left_unix IS"
        " NULL) ORDER BY silo.name", end, study, TaskState.UPDATED, RoundState.COMPLETED, study, TaskState.ABSTAINED,
        RoundState.COMPLETED, study, TaskState.REFUSED, RoundState.COMPLETED, study, end)
    return [SiloPart(silo=row["name"], asked=bool(row["asked"]), set_aside=bool(row["set_aside"]),
                     updated=bool(row["updated"]), abstained=bool(row["abstained"]),
                     not_added=bool(row["not_added"]) and not row["updated"]) for row in rows]


def has_answers(ledger: Ledger, study: str) -> bool:
    """Whether a round of a study with silos is over."""
    return bool(ledger.query("SELECT 1 FROM silo_total WHERE study = ? LIMIT 1", study))


def silos_that_refused_all(ledger: Ledger, study: str) -> dict[str, AllRefused]:
    """Silos that have refused every round of a study in which they answered, in byte order of names. A masked update
    that was not added up is another answer than a refusal."""
    # From the refusals, by the index: a study may have half a million tasks.
    return {row["silo"]: AllRefused(rounds=row["rounds"], reason=row["reason"], closed_unix=row["closed_unix"])
            for row in ledger.query(
                "SELECT task.silo, task.reason, count(DISTINCT task.round) AS rounds, max(task.closed_unix) AS"
                " closed_unix FROM silo CROSS JOIN task ON task.study = ? AND task.silo = silo.name AND task.state = ?"
                " WHERE NOT EXISTS (SELECT 1 FROM task AS other WHERE other.study = ? AND other.silo = silo.name AND"
                " other.state IN (?, ?)) GROUP BY task.silo HAVING"
                f" max({_NOT_ADDED}) = 0 ORDER BY task.silo", study, TaskState.REFUSED, study,
                TaskState.UPDATED, TaskState.ABSTAINED)}


def task_counts(ledger: Ledger, study: str) -> dict[TaskState, int]:
    """State -> tasks of a study."""
    return {TaskState(row["state"]): row["n"] for row in ledger.query(
        "SELECT state, count(*) AS n FROM task WHERE study = ? GROUP BY state", study)}


def refusal_reasons(ledger: Ledger, study: str) -> Iterable[str]:
    """The beginning of the reason of every refused task, up to 80 letters; none of masked updates that were not
    added up."""
    for row in ledger.query(  # the index has them by study, silo and state
            "SELECT substr(task.reason, 1, ?) AS reason FROM silo CROSS JOIN task ON task.study = ? AND"
            f" task.silo = silo.name AND task.state = ? AND NOT {_NOT_ADDED}", _REASON_LETTERS, study,
            TaskState.REFUSED):
        yield row["reason"]


def answer_states(ledger: Ledger, study: str, number: int) -> frozenset[TaskState]:
    """The states that the tasks of a round are in, each once, over all its phases. Whoever has sent a masked update has
    UPDATED, also where it was not added up."""
    return frozenset(TaskState(row["state"]) for row in ledger.query(
        f"SELECT DISTINCT CASE WHEN state = ? AND {_NOT_ADDED} THEN ? ELSE state END AS state FROM task"
        " WHERE study = ? AND round = ?", TaskState.REFUSED, TaskState.UPDATED, study, number))


def last_refusal(ledger: Ledger, study: str, number: int) -> Refusal | None:
    """The refusal of a round that came last, of equals that of the last silo by name; None when nobody refused."""
    rows = ledger.query("SELECT silo, reason FROM task WHERE study = ? AND round = ? AND state = ? AND NOT"
                        f" {_NOT_ADDED} ORDER BY closed_unix DESC, silo DESC LIMIT 1", study, number, TaskState.REFUSED)
    return Refusal(silo=rows[0]["silo"], reason=rows[0]["reason"]) if rows else None


def first_update(ledger: Ledger, study: str) -> int | None:
    """The first committed round of a study that has taken in an update, as `takes_in` has it; None where none has."""
    # In the order of the index, so that with updates from the beginning few rows are read, however long a study is.
    found = ledger.query(
        "SELECT number FROM round WHERE study = ? AND state = ? AND (coalesce(json_extract(metrics_json, ?), 1) > 0 AND"
        " EXISTS (SELECT 1 FROM task WHERE task.study = round.study AND task.round = round.number AND task.state = ?)"
        " OR EXISTS (SELECT 1 FROM phase CROSS JOIN task ON task.study = phase.study AND task.round = phase.round AND"
        " task.phase = phase.number WHERE phase.study = round.study AND phase.round = round.number AND phase.name IN"
        " (?, ?) AND task.state = ?)) ORDER BY number LIMIT 1", study, RoundState.COMPLETED, f"$.{ACCEPTED_STEP}",
        TaskState.UPDATED, *MEASURING, TaskState.UPDATED)
    return found[0]["number"] if found else None


def takes_in(metrics: Mapping[str, float], answers: Iterable[TaskAnswer]) -> bool:
    """Whether anything that silos sent in a round is in its model: an update, unless the gate has accepted nothing of
    it, or batch-norm statistics.

    Args:
        metrics: of the round.
        answers: of all its phases.
    """
    accepted = metrics.get(ACCEPTED_STEP, 1.0) > 0
    return any(each.state is TaskState.UPDATED and (accepted or each.phase in MEASURING) for each in answers)


def has_taken_part(ledger: Ledger, study: str, silo: str) -> bool:
    """Whether a silo has answered a task of a study with an update or an abstention."""
    return bool(ledger.query("SELECT 1 FROM task WHERE study = ? AND silo = ? AND state IN (?, ?) LIMIT 1", study, silo,
                             TaskState.UPDATED, TaskState.ABSTAINED))


def is_committed(ledger: Ledger, study: str, number: int) -> bool:
    """Whether a study has committed the round of that number."""
    return bool(ledger.query("SELECT 1 FROM round WHERE study = ? AND number = ? AND state = ?", study, number,
                             RoundState.COMPLETED))


def is_other_model(ledger: Ledger, row: StudyRow, found: SiteEvaluation) -> bool:
    """Whether an evaluation names a model that its study no longer has: a study that has gone back does a round again,
    and what a silo found of the first model of that round says nothing of the second."""
    if not found.model_digest:
        return False  # the silo, or who gave it the task, is of a version without
    if found.labels_alone:
        return row.baseline is None or row.baseline.model_digest != found.model_digest
    return not ledger.query("SELECT 1 FROM round WHERE study = ? AND number = ? AND state = ? AND state_digest = ?",
                            found.study, found.round, RoundState.COMPLETED, found.model_digest)


def add_site_evaluation(ledger: Ledger, silo: str, found: SiteEvaluation, *, now_unix: float) -> bool:
    """Notes what a silo says of a model; of one model the first counts. Returns: whether it was news."""
    classes = canonical_json(found.classes)
    with ledger.part() as db:
        added = db.execute(
            "INSERT OR IGNORE INTO site_evaluation VALUES (?, ?, ?, ?, ?, ?)",
            (found.study, silo, found.round, int(found.labels_alone), classes, now_unix)).rowcount
        if added:
            ledger.event("site_evaluation", study=found.study, round=found.round, silo=silo, count=found.count,
                         correct=found.correct, labels_alone=found.labels_alone,
                         classes_digest=digest_of_column(classes))
        return bool(added)


def counts_of_evaluation(classes_json: str) -> tuple[int, int]:
    """(images, right ones) of a column of table site_evaluation; (-1, -1) where that is none."""
    from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation

    try:
        found = SiteEvaluation(study="", round=0, classes=tuple(
            from_dict(ClassResult, each) for each in json.loads(classes_json)))
    except (ValueError, TypeError, SemisiloError):
        return -1, -1
    return found.count, found.correct


def site_evaluations(ledger: Ledger, study: str, *, round: int, labels_alone: bool = False) -> dict[str,
                                                                                                  SiteEvaluation]:
    """Silo -> what it says of one model of a study, or where it says nothing of that of the newest that it knows; in
    byte order of names. Silos that have said nothing are not in it.

    Args:
        round, labels_alone: the model that is wanted most, such as the one that is handed over.
    """
    from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation

    found: dict[str, SiteEvaluation] = {}
    rows = ledger.query(
        "SELECT *, max((round = ? AND labels_alone = ?) * 1000000000 + round) FROM site_evaluation WHERE study = ?"
        " GROUP BY silo", round, int(labels_alone), study)
    for row in sorted(rows, key=lambda row: row["silo"].encode()):
        classes = tuple(from_dict(ClassResult, each) for each in json.loads(row["classes_json"]))
        found[row["silo"]] = SiteEvaluation(study=study, round=row["round"], labels_alone=bool(row["labels_alone"]),
                                            classes=classes)
    return found


def training_seconds(ledger: Ledger, study: str, silo: str, number: int) -> float | None:
    """How long a silo trained in a round, as it declared with its accepted updates, over all phases; None when none of
    its updates was accepted."""
    (seconds,), = ledger.query(
        "SELECT sum(training_seconds) FROM declared_update JOIN task USING (task_id) WHERE study = ? AND silo = ?"
        " AND round = ? AND accepted_unix IS NOT NULL", study, silo, number)
    return None if seconds is None else float(seconds)


def sizes_of_last_updates(ledger: Ledger, study: str) -> list[int]:
    """Bytes that each silo sent in the last committed round with updates, over all phases; empty before there is one.

    In no order, and without names: what is told of them to other silos must not say whose they are.
    """
    return [int(row["total"]) for row in ledger.query(
        "SELECT sum(size_bytes) AS total FROM declared_update JOIN task USING (task_id) WHERE task.study = ? AND"
        # From the last round backwards, and of that one alone ("+silo": not by the index of silos, for its order): a
        # study may have half a million tasks.
        " task.state = ? AND round = (SELECT number FROM round WHERE round.study = ? AND round.state = ? AND EXISTS"
        " (SELECT 1 FROM task WHERE task.study = round.study AND task.round = round.number AND task.state = ?)"
        " ORDER BY number DESC LIMIT 1) AND accepted_unix IS NOT NULL GROUP BY +silo",
        study, TaskState.UPDATED, study, RoundState.COMPLETED, TaskState.UPDATED)]
