"""What experiment trackers know of studies: queries over the table tracking."""

from __future__ import annotations

from dataclasses import dataclass

from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import RoundState, StudyState

__all__ = [
    "TrackedRun",
    "TrackedStudy",
    "add_tracked_run",
    "forget_run",
    "note_complete",
    "note_told",
    "studies_with_results",
    "tracked_run",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedStudy:
    """How far a study has come: while two of them are equal there is nothing new to tell a tracker."""

    name: str
    state: StudyState
    last_round: int
    """The last committed one."""
    ended_unix: float | None
    labels_alone: bool
    """Whether labels alone are trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """What one tracker was told of one study."""

    run: str
    """The tracker's own name for it."""
    last_round: int = -1
    """Of what it was told; -1 for nothing."""
    complete: bool = False
    """Whether it was told of the end, with the report and the model."""


def studies_with_results(ledger: Ledger) -> list[TrackedStudy]:
    """Studies with at least one committed round, in order of the queue."""
    return [TrackedStudy(name=row["name"], state=StudyState(row["state"]), last_round=row["number"],
                         ended_unix=row["ended_unix"], labels_alone=bool(row["labels_alone"]))
            for row in ledger.query(
                "SELECT study.name, study.state, max(round.number) AS number, study.ended_unix,"
                " study.baseline_json IS NOT NULL AS labels_alone FROM study"
                " JOIN round ON round.study = study.name AND round.state = ? GROUP BY study.name"
                " ORDER BY study.position", RoundState.COMPLETED)]


def tracked_run(ledger: Ledger, study: str, target: str) -> TrackedRun | None:
    """The run of a study at a tracker's address; None when none was noted."""
    rows = ledger.query("SELECT * FROM tracking WHERE study = ? AND target = ?", study, target)
    if not rows:
        return None
    return TrackedRun(run=rows[0]["run"], last_round=rows[0]["round"], complete=bool(rows[0]["complete"]))


def add_tracked_run(ledger: Ledger, study: str, target: str, *, run: str) -> TrackedRun:
    """Notes the run that a tracker has made for a study, of which it was told no round yet."""
    with ledger.transaction() as db:
        db.execute("INSERT INTO tracking (study, target, run) VALUES (?, ?, ?)", (study, target, run))
    return TrackedRun(run=run)


def forget_run(ledger: Ledger, study: str, target: str) -> None:
    """The study is told to another run from now on, from its first round."""
    with ledger.transaction() as db:
        db.execute("DELETE FROM tracking WHERE study = ? AND target = ?", (study, target))


def note_told(ledger: Ledger, study: str, target: str, *, last_round: int) -> None:
    """Notes the last round of which a tracker was told. Where the study went back meanwhile, and the round is gone, the
    tracker knows too much: then its run is forgotten, as those are that knew of it before."""
    with ledger.transaction() as db:
        if db.execute("SELECT 1 FROM round WHERE study = ? AND number = ?", (study, last_round)).fetchone():
            db.execute("UPDATE tracking SET round = ? WHERE study = ? AND target = ?", (last_round, study, target))
        else:
            forget_run(ledger, study, target)


def note_complete(ledger: Ledger, study: str, target: str, *, complete: bool) -> None:
    """Notes that a tracker was told of a study's end, or that the study goes on after all."""
    with ledger.transaction() as db:
        db.execute("UPDATE tracking SET complete = ? WHERE study = ? AND target = ?", (int(complete), study, target))
