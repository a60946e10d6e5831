"""Going back to an earlier round of a study: what the ledger does, and what it keeps of the rounds that are gone.

Their rows go from the tables of rounds, phases, tasks and updates to `past_round` and `past_answer`, in one transaction
with an event; what crossed the wire for them stays among the costs of the study. So every reader of the study sees it
as it was after the round that it goes back to, and the rounds that are gone can still be read, with who sent it back,
when and why.

Tests: tests/coordinator/ledger/oversight/test_rollback.py.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import RoundCounts
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, RoundState, StudyState, TaskState

__all__ = ["PastAnswer", "PastRound", "PastTotals", "Rollback", "count_rollbacks", "count_undoings",
           "has_undone_rounds", "kept_after", "oldest_return", "past_answers", "past_totals", "past_uploads",
           "roll_back", "rollbacks_of", "take_cancelled_back"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRound:
    """A round that is no more the study's."""

    number: int
    state: RoundState
    opened_unix: float
    closed_unix: float | None
    state_digest: str
    metrics: dict[str, float]
    reason: str
    sample: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollback:
    """A study went back to an earlier round."""

    number: int
    to_round: int
    unix: float
    origin: str
    """"command" or "page"."""
    operator: str
    """The account of who asked for it."""
    reason: str
    rounds: tuple[PastRound, ...]
    """Those that are gone, in order."""

    @property
    def text(self) -> str:
        """For a person: "went back to round 3 on 2027-01-01 10:00 UTC (operator): hospital-b sent noise"."""
        numbers = [each.number for each in self.rounds]
        gone = f"round {numbers[0]}" if len(numbers) == 1 else f"rounds {numbers[0]} to {numbers[-1]}"
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.unix))
        return (f"went back to round {self.to_round} on {when} ({self.operator or self.origin}): {gone} no longer"
                f" count{'s' * (len(numbers) == 1)}{f'; {self.reason}' if self.reason else ''}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastTotals:
    """What the rounds came to that are no more the study's, in all times that it went back together."""

    rounds: tuple[RoundCounts, ...]
    answers: dict[TaskState, int]
    """State -> tasks."""
    refusals: tuple[str, ...]
    """The reason of every refused task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastAnswer:
    """What a silo had answered in a phase of a round that is gone."""

    round: int
    phase: str
    silo: str
    state: TaskState
    reason: str
    example_count: int | None
    norm: float | None
    cosine: float | None
    metrics: dict[str, float]


def oldest_return(ledger: Ledger, study: str) -> int:
    """The first round of which the ledger knows what strategies kept for silos: 0, but of a study that an earlier
    version began."""
    return int(ledger.query("SELECT oldest_return FROM study WHERE name = ?", study)[0]["oldest_return"])


def kept_after(ledger: Ledger, study: str, number: int) -> dict[str, tuple[int, str | None]]:
    """Silo -> (the last round up to `number` in which its update was folded, digest of what the strategy kept then)."""
    rows = ledger.query("SELECT silo, max(round) AS round, kept_digest FROM kept_state WHERE study = ? AND round <= ?"
                        " GROUP BY silo", study, number)
    return {row["silo"]: (int(row["round"]), row["kept_digest"]) for row in rows}


def roll_back(ledger: Ledger, study: str, to_round: int, *, operator: str, reason: str) -> Rollback:
    """Makes a committed round the last one of a study, and queues the study, so that it goes on from there.

    One that was paused goes on at once, one that was over behind those that wait.
    Args:
        to_round: committed, with later rounds, and its files are there: the caller has looked.
        operator: the account of who asks for it.
    """
    with ledger.transaction():
        was_over, last = ledger.study_state(study) in ENDED_STUDY, ledger.last_round(study)
        assert last is not None
        if last.state not in ENDED_ROUND:
            for task in ledger.tasks(study, last.number, last.phase):
                if task.state is TaskState.OPEN:
                    ledger.close_task(task, TaskState.CANCELLED, reason=f"the study goes back to round {to_round}")
        number = _put_aside(ledger, study, to_round, operator=operator, reason=reason)
        _restore_silos(ledger, study)
        ledger.set_study_state(study, StudyState.QUEUED)
        if was_over:
            ledger.move_to_end(study)
        return next(each for each in rollbacks_of(ledger, study) if each.number == number)


def take_cancelled_back(ledger: Ledger, study: str) -> int | None:
    """Makes room for the round that was cancelled when a study was stopped, so that its number is done again.

    Not where silos were asked for a secure sum of it: they mask an update of a round once, and would refuse.

    Returns: the number of the round; None where the last round was not cancelled, or stays.
    """
    with ledger.acting("coordinator"), ledger.transaction() as db:
        last = ledger.last_round(study)
        if last is None or last.number == 0 or last.state is not RoundState.CANCELLED \
                or ledger.query("SELECT 1 FROM secure_sum WHERE study = ? AND round = ?", study, last.number):
            return None
        _put_aside(ledger, study, last.number - 1, operator="",
                   reason="it was cancelled when the study was stopped, and is done again")
        # What its phases have put aside for silos must not be taken for what the same number gives next time.
        db.execute("UPDATE silo_state SET pending_round = NULL, pending_kept_digest = NULL WHERE study = ?", (study,))
        return last.number


def _put_aside(ledger: Ledger, study: str, to_round: int, *, operator: str, reason: str) -> int:
    """Moves the rounds behind one to what is past, with an event; the number of that entry."""
    with ledger.part() as db:
        number = int(db.execute("INSERT INTO rollback (study, to_round, unix, origin, operator, reason, cost_row)"
                                " VALUES (?, ?, ?, ?, ?, ?, (SELECT coalesce(max(rowid), 0) FROM cost))"
                                " RETURNING number",
                                (study, to_round, time.time(), ledger.origin, operator, reason)).fetchone()["number"])
        db.execute("INSERT INTO past_round SELECT ?, study, number, state, sample_json, opened_unix, closed_unix,"
                   " state_digest, metrics_json, reason FROM round WHERE study = ? AND number > ?",
                   (number, study, to_round))
        db.execute("INSERT INTO past_answer SELECT ?, task.study, task.round, phase.number, phase.name, task.silo,"
                   " task.state, task.reason, example_count, norm, cosine, task.metrics_json FROM task"
                   " JOIN phase ON phase.study = task.study AND phase.round = task.round AND phase.number = task.phase"
                   " LEFT JOIN declared_update ON declared_update.update_id = task.update_id"
                   " WHERE task.study = ? AND task.round > ?", (number, study, to_round))
        db.execute("DELETE FROM declared_update WHERE task_id IN (SELECT task_id FROM task WHERE study = ?"
                   " AND round > ?)", (study, to_round))
        for table, column in (("task", "round"), ("phase", "round"), ("round", "number"), ("site_evaluation", "round"),
                              ("notice", "round"), ("kept_state", "round"), ("secure_sum", "round"),
                              ("confusion", "round")):
            db.execute(f"DELETE FROM {table} WHERE study = ? AND {column} > ?", (study, to_round))
        _total_again(ledger, study)
        db.execute("UPDATE study SET paired_json = NULL WHERE name = ?", (study,))  # of a round that may be done again
        # A tracker keeps what it was told: one that knows of rounds that are gone begins the study in another run.
        db.execute("DELETE FROM tracking WHERE study = ? AND round > ?", (study, to_round))
        found = rollbacks_of(ledger, study)[-1]
        ledger.event("study_rolled_back", study=study, round=to_round, operator=operator, reason=reason,
                     gone=[each.number for each in found.rounds])
        return number


def _restore_silos(ledger: Ledger, study: str) -> None:
    """Table silo_state from what is left of `kept_state`: of a silo that has had no part yet nothing is known."""
    with ledger.part() as db:
        db.execute("DELETE FROM silo_state WHERE study = ?", (study,))
        db.execute("INSERT INTO silo_state (study, silo, last_folded_round, kept_digest) SELECT study, silo,"
                   " max(round), kept_digest FROM kept_state WHERE study = ? GROUP BY silo", (study,))


def _total_again(ledger: Ledger, study: str) -> None:
    """The sums over rounds that are over: a trigger makes them when a round's end is written."""
    with ledger.part() as db:
        db.execute("DELETE FROM round_outcome WHERE study = ?", (study,))
        db.execute("DELETE FROM silo_total WHERE study = ?", (study,))
        db.execute("UPDATE round SET closed_unix = closed_unix WHERE study = ? AND closed_unix IS NOT NULL", (study,))


def count_rollbacks(ledger: Ledger, study: str) -> int:
    """How often a study went back."""
    return int(ledger.query("SELECT count(*) AS n FROM rollback WHERE study = ?", study)[0]["n"])


def count_undoings(ledger: Ledger, study: str) -> int:
    """How often a study went back behind a committed round."""
    return int(ledger.query("SELECT count(DISTINCT rollback) AS n FROM past_round WHERE study = ? AND state = ?",
                            study, RoundState.COMPLETED)[0]["n"])


def has_undone_rounds(ledger: Ledger, study: str) -> bool:
    """Whether committed rounds of a study are gone; where only the round is that was open when it was stopped, none
    are."""
    return bool(ledger.query("SELECT 1 FROM past_round WHERE study = ? AND state = ? LIMIT 1", study,
                             RoundState.COMPLETED))


def rollbacks_of(ledger: Ledger, study: str) -> tuple[Rollback, ...]:
    """Every time that a study went back, in order, with the rounds that are gone."""
    rounds: dict[int, list[PastRound]] = {}
    for row in ledger.query("SELECT * FROM past_round WHERE study = ? ORDER BY rollback, number", study):
        rounds.setdefault(row["rollback"], []).append(PastRound(
            number=row["number"], state=RoundState(row["state"]), opened_unix=row["opened_unix"],
            closed_unix=row["closed_unix"], state_digest=row["state_digest"], metrics=json.loads(row["metrics_json"]),
            reason=row["reason"], sample=tuple(json.loads(row["sample_json"]))))
    return tuple(Rollback(number=row["number"], to_round=row["to_round"], unix=row["unix"], origin=row["origin"],
                          operator=row["operator"], reason=row["reason"], rounds=tuple(rounds.get(row["number"], ())))
                 for row in ledger.query("SELECT * FROM rollback WHERE study = ? ORDER BY number", study))


def past_totals(ledger: Ledger, study: str) -> PastTotals:
    """What the rounds of a study came to that are gone. A handful of queries."""
    rounds = ledger.query(
        "SELECT past_round.state, count(*) AS n, coalesce(sum(closed_unix - opened_unix), 0) AS seconds FROM rollback"
        " CROSS JOIN past_round ON past_round.rollback = rollback.number WHERE rollback.study = ? AND past_round.number"
        " > 0 GROUP BY past_round.state", study)
    answers = "FROM rollback CROSS JOIN past_answer ON past_answer.rollback = rollback.number WHERE rollback.study = ?"
    return PastTotals(
        rounds=tuple(RoundCounts(state=RoundState(row["state"]), count=row["n"], seconds=max(0.0, row["seconds"]))
                     for row in rounds),
        answers={TaskState(row["state"]): row["n"] for row in ledger.query(
            f"SELECT past_answer.state, count(*) AS n {answers} GROUP BY past_answer.state", study)},
        refusals=tuple(row["reason"] for row in ledger.query(
            f"SELECT past_answer.reason {answers} AND past_answer.state = ?", study, TaskState.REFUSED)))


def past_answers(ledger: Ledger, rollback: int) -> tuple[PastAnswer, ...]:
    """What silos had answered in the rounds that one rollback has ended, by round, phase and silo."""
    return tuple(PastAnswer(round=row["round"], phase=row["phase"], silo=row["silo"], state=TaskState(row["state"]),
                            reason=row["reason"], example_count=row["example_count"], norm=row["norm"],
                            cosine=row["cosine"], metrics=json.loads(row["metrics_json"]))
                 for row in ledger.query("SELECT * FROM past_answer WHERE rollback = ? ORDER BY round, phase_number,"
                                         " phase, silo", rollback))


def past_uploads(ledger: Ledger, study: str) -> dict[tuple[str, str], int]:
    """(silo, tensor group) -> encoded bytes of the updates that came in rounds that are gone, in all times that the
    study went back together. Looks at all its costs, of which a large study has millions."""
    return {(row["silo"], row["item"]): int(row["bytes"]) for row in ledger.query(
        "SELECT silo, item, sum(bytes) AS bytes FROM cost WHERE study = ? AND kind = 'payload' AND direction = 'up'"
        " AND item <> 'manifest' AND EXISTS (SELECT 1 FROM rollback WHERE rollback.study = cost.study AND to_round <"
        " cost.round AND cost_row >= cost.rowid) GROUP BY silo, item", study)}
