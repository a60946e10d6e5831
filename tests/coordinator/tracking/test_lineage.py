"""Which run of a tracker a study is told to, after it went back and after the federation went on from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.oversight.signed_heads import restores_of
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tracking import add_tracked_run, note_told, tracked_run
from semisilo.coordinator.tracking.facts import RoundReader
from semisilo.coordinator.tracking.lineage import forget_what_a_restore_undid, lineage_of
from tests.coordinator.ledger_fixture import Filled, fill_study
from tests.coordinator.tracking.test_tensorboard import commit

MADE_UNIX = 1_790_000_000.0
TARGET = "tracker"


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=5, done=3, complete=False)


def go_on_from_backup(filled: Filled) -> None:
    """As `coordinator restore` writes it down."""
    filled.ledger.event("restored", backup_made_unix=MADE_UNIX, invitations_withdrawn=0)


def forgets(filled: Filled, last_round: int) -> bool:
    return forget_what_a_restore_undid(filled.ledger, "first", TARGET, last_round=last_round,
                                       rounds=RoundReader(filled.ledger, "first").rounds_after(last_round))


def test_a_study_that_was_never_undone_has_its_own_name(filled: Filled) -> None:
    found = lineage_of(filled.ledger, "first")
    assert (found.name, found.key, found.reason, found.unix) == ("first", "", "", 0.0)


def test_every_return_and_every_restore_gives_another_run(filled: Filled) -> None:
    keys = {lineage_of(filled.ledger, "first").key}
    go_on_from_backup(filled)
    restored = lineage_of(filled.ledger, "first")
    assert restored.name == "first (2)"
    assert restored.reason == ("the federation went on from its backup of 2026-09-21 14:13 UTC: what came after it no"
                               " longer counts")
    assert restored.unix == restores_of(filled.ledger, "first")[0].unix
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    roll_back(filled.ledger, "first", 2, operator="mona", reason="noise")
    back = lineage_of(filled.ledger, "first")
    assert back.name == "first (3)"
    assert back.reason.endswith("(mona): round 3 no longer counts; noise")
    go_on_from_backup(filled)
    again = lineage_of(filled.ledger, "first")
    assert again.reason == restored.reason
    keys |= {restored.key, back.key, again.key}
    assert len(keys) == 4


def test_a_restore_counts_for_a_study_that_was_there_and_goes_on(filled: Filled) -> None:
    filled.ledger.set_study_state("first", StudyState.STOPPED)
    go_on_from_backup(filled)
    assert lineage_of(filled.ledger, "first").key == ""
    assert restores_of(filled.ledger, "later") == ()


def test_the_first_round_after_a_restore_goes_to_another_run(filled: Filled) -> None:
    add_tracked_run(filled.ledger, "first", TARGET, run="old")
    note_told(filled.ledger, "first", TARGET, last_round=3)
    go_on_from_backup(filled)
    assert not forgets(filled, 3), "a restore on trial leaves the run alone"
    assert tracked_run(filled.ledger, "first", TARGET) is not None
    commit(filled, 4)
    assert forgets(filled, 3)
    assert tracked_run(filled.ledger, "first", TARGET) is None
    add_tracked_run(filled.ledger, "first", TARGET, run="new")
    note_told(filled.ledger, "first", TARGET, last_round=4)
    commit(filled, 5)
    assert not forgets(filled, 4), "the second one goes where the first one went"


def test_rounds_that_a_tracker_has_missed_until_a_restore_go_to_the_run_that_it_has(filled: Filled) -> None:
    """The backup has them, so they are the same in both."""
    add_tracked_run(filled.ledger, "first", TARGET, run="old")
    note_told(filled.ledger, "first", TARGET, last_round=1)
    go_on_from_backup(filled)
    assert not forgets(filled, 1)
