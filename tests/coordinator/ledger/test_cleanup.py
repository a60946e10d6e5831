"""Which state files stay: the last three rounds, the chosen one, every n-th, and what the open round starts from. Which
updates and payloads stay: those of open rounds, of whatever study."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semisilo.common.errors import UsageError
from semisilo.common.storage.state_files import StateFiles
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.cleanup import Cleanup, payloads_to_keep, states_to_keep, updates_to_keep
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import DeclaredUpdate, RoundRow
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from tests.coordinator.ledger_fixture import Filled, add_study, digest, fill_study, query_plan


def row(number: int, *, score: float | None = None, state: RoundState = RoundState.COMPLETED) -> RoundRow:
    """Round n starts from state s(n-1) and, once completed, ends in s(n)."""
    done = state is RoundState.COMPLETED
    return RoundRow(study="s", number=number, state=state, phase=0, phases=(), sample=(), opened_unix=0.0,
                    closed_unix=None, start_digest=f"s{number - 1}" if number else "",
                    state_digest=f"s{number}" if done else f"s{number - 1}" if number else "",
                    metrics={"accuracy": 1.0 / (number + 1)} if score is None else
                    {"accuracy": 1.0 / (number + 1), "selection_score": score, "selection_error": 0.02}, reason="")


def test_the_last_three_the_chosen_and_every_fiftieth_stay() -> None:
    rounds = [row(n, score=0.9 if n == 17 else 0.5) for n in range(121)]
    assert states_to_keep(rounds, every=50) == {"s0", "s17", "s50", "s100", "s117", "s118", "s119", "s120"}


def test_of_rounds_that_cannot_be_told_apart_the_latest_stays() -> None:
    rounds = [row(n, score={5: 0.8, 9: 0.79, 11: 0.77}.get(n, 0.1)) for n in range(30)]
    kept = states_to_keep(rounds, every=1000)
    assert "s9" in kept
    assert not {"s5", "s11"} & kept


def test_the_best_stays_as_well_where_labels_alone_may_leave_it() -> None:
    """Round 9 is the chosen one, within the error of round 5."""
    rounds = [row(n, score={5: 0.8, 9: 0.79}.get(n, 0.1)) for n in range(30)]
    assert states_to_keep(rounds, every=1000, best=True) == states_to_keep(rounds, every=1000) | {"s5"}


@pytest.mark.parametrize("best", [False, True])
def test_the_chosen_state_is_always_among_those_that_were_kept_before(best: bool) -> None:
    """Files are removed after every round, so what a round needs must have stayed in all rounds before."""
    generator, there = random.Random(4), {"s0"}
    rounds: list[RoundRow] = []
    for number in range(60):
        rounds.append(row(number, score=generator.random()))
        kept = states_to_keep(rounds, every=20, best=best)
        assert not best or f"s{max(rounds, key=lambda each: each.metrics['selection_score']).number}" in kept
        assert kept <= there | {f"s{number}"}
        there = kept


def test_what_would_be_handed_over_after_going_back_stays_for_the_rounds_one_can_go_back_to() -> None:
    """Round 13 is within the error of no other: after going back from there, round 5 is the chosen one again."""
    rounds = [row(n, score={5: 0.8, 13: 0.9}.get(n, 0.6)) for n in range(14)]
    assert states_to_keep(rounds, every=1000) == {"s0", "s5", "s10", "s11", "s12", "s13"}
    rounds += [row(n, score=0.6) for n in range(14, 17)]
    assert "s5" not in states_to_keep(rounds, every=1000), "one can no longer go back to a round before 13"


def test_what_an_nth_round_would_hand_over_stays_with_it() -> None:
    rounds = [row(n, score={17: 0.8, 70: 0.9}.get(n, 0.6)) for n in range(121)]
    assert {"s17", "s50", "s70", "s100"} <= states_to_keep(rounds, every=50)


def test_test_images_keep_no_state() -> None:
    """Their accuracy falls in these rounds: the earliest would be the best on them."""
    assert states_to_keep([row(n) for n in range(1, 10)], every=1000) == {"s6", "s7", "s8", "s9"}


def test_a_failed_round_is_never_chosen_nor_one_of_every_nth() -> None:
    rounds = [row(n, score=0.5) for n in range(10)]
    rounds.append(row(10, score=0.99, state=RoundState.FAILED))
    rounds += [row(n, score=0.4) for n in range(11, 20)]
    assert "s10" not in states_to_keep(rounds, every=11)
    assert "s9" in states_to_keep(rounds, every=1000)


def test_what_the_open_round_starts_from_and_has_made_so_far_stays() -> None:
    open_round = row(8, state=RoundState.COLLECTING)
    kept = states_to_keep([*(row(n) for n in range(8)), open_round], every=1000)
    assert {open_round.start_digest, open_round.state_digest} <= kept


def test_after_a_run_of_failed_rounds_the_committed_model_stays() -> None:
    """A failed round ends in the state it began with, so the last three rounds always name the committed one."""
    failed = [RoundRow(study="s", number=n, state=RoundState.FAILED, phase=0, phases=(), sample=(), opened_unix=0.0,
                       closed_unix=1.0, start_digest="s4", state_digest="s4", metrics={}, reason="") for n in (5, 6, 7)]
    assert "s4" in states_to_keep([*(row(n) for n in range(5)), *failed], every=1000)


def test_before_round_0_nothing_is_named() -> None:
    assert states_to_keep([], every=50) == set()
    assert states_to_keep([row(0, state=RoundState.PREPARING)], every=50) == set()


# While an operator goes back ------------------------------------------------------------------------------------------


def with_states(folder: Path) -> tuple[Filled, Path, Cleanup]:
    """A paused study of which round 6 was committed just now, so that round 2 falls out of what is kept; its folder,
    with the states of all rounds; what removes some of them."""
    filled = fill_study(folder, rounds=9, done=6, complete=False)
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    study = filled.federation.studies / "first"
    (study / "states").mkdir(parents=True)
    for head in round_heads(filled.ledger, "first"):
        StateFiles(study / "states").path(head.state_digest).write_bytes(b"a state")
    return filled, study, Cleanup(ledger=filled.ledger, payloads=PayloadStore(filled.federation.payloads),
                                  spool=PayloadStore(filled.federation.spool), studies=filled.federation.studies)


def go_back(filled: Filled, study: Path) -> None:
    """As the command does it, in a process of its own."""
    ledger = Ledger(filled.federation.ledger)
    try:
        operate.rollback(ledger, "first", 2, study_folder=study, origin="command")
    finally:
        ledger.close()


def test_a_round_that_an_operator_goes_back_to_while_updates_are_removed_keeps_its_state(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, study, cleanup = with_states(tmp_path / "hub")
    monkeypatch.setattr(cleanup, "_remove_updates", lambda *_: go_back(filled, study))
    asyncio.run(cleanup.remove_unneeded("first", keep_every=50))
    assert [head.number for head in round_heads(filled.ledger, "first")] == [0, 1, 2]
    assert StateFiles(study / "states").path(filled.ledger.committed_digest("first")).is_file()


def test_from_the_moment_on_in_which_states_are_chosen_nobody_goes_back_to_one_that_is_removed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes back waits for the transaction in which they are chosen, and then finds none of them."""
    filled, study, cleanup = with_states(tmp_path / "hub")
    replace, unlink, removed = os.replace, Path.unlink, list[str]()

    def chosen(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(filled.federation.ledger, timeout=0)) as other, \
                pytest.raises(sqlite3.Error, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        replace(source, target)

    def slow(path: Path, missing_ok: bool = False) -> None:
        with pytest.raises(UsageError, match="its files are gone"):
            go_back(filled, study)
        removed.append(path.name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr("os.replace", chosen)
    monkeypatch.setattr(Path, "unlink", slow)
    asyncio.run(cleanup.remove_unneeded("first", keep_every=50))
    assert len(removed) == 2
    assert operate.returnable_rounds(filled.ledger, "first", study_folder=study) == [0, 3, 4, 5]
    assert len(list((study / "states").iterdir())) == 5, "nothing is left beside"


# Updates and payloads -------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Filled:
    """Study "first" has three committed rounds; "second" one, and its round 2 is open: one silo has answered, another
    has announced its update, whose bytes are all there, and the third works."""
    filled = fill_study(tmp_path / "hub", rounds=9, done=3, complete=False)
    add_study(filled, "second", rounds=9, done=1, collecting=True)
    task = filled.ledger.task("second/2/0-train/hospital-a")
    assert task is not None
    filled.ledger.declare_update(DeclaredUpdate(
        update_id="e" * 32, task_id=task.task_id, digest=digest("whole"), size_bytes=5, groups={}, example_count=1,
        metrics={}, training_seconds=0.1, declared_unix=0.0, accepted_unix=None, folded=False))
    return filled


def stores(filled: Filled, *others: str) -> tuple[PayloadStore, PayloadStore, Cleanup]:
    """Spool and payloads with what "second" needs and with other files; what removes them."""
    spool, payloads = PayloadStore(filled.federation.spool), PayloadStore(filled.federation.payloads)
    for each in ("update 2", "whole", *others):
        (spool.folder / digest(each)).write_text(each)
    for each in ("model", *others):
        (payloads.folder / digest(each)).write_text(each)
    return spool, payloads, Cleanup(ledger=filled.ledger, payloads=payloads, spool=spool,
                                    studies=filled.federation.studies)


def test_a_commit_removes_nothing_that_an_open_round_of_another_study_needs(two: Filled) -> None:
    spool, payloads, cleanup = stores(two, "update 3", "late")
    asyncio.run(cleanup.remove_unneeded("first", keep_every=50))
    assert spool.digests() == {digest("update 2"), digest("whole")}
    assert payloads.digests() == {digest("model")}


@pytest.mark.parametrize("state", [StudyState.PAUSED, StudyState.FAILED])
def test_a_round_that_is_over_takes_nothing_along_of_a_study_that_waits_or_has_failed(
        two: Filled, state: StudyState) -> None:
    two.ledger.set_study_state("second", state)
    spool, _, cleanup = stores(two, "late")
    asyncio.run(cleanup.remove_updates("first", 3))
    assert spool.digests() == {digest("update 2"), digest("whole")}


def test_with_its_own_round_what_a_study_needed_goes(two: Filled) -> None:
    spool, payloads, cleanup = stores(two)
    two.ledger.fail_round(two.ledger.round("second", 2), reason="nobody")
    assert updates_to_keep(two.ledger) == payloads_to_keep(two.ledger) == set()
    asyncio.run(cleanup.remove_updates("second", 2))
    assert spool.digests() == set()
    asyncio.run(cleanup.remove_unneeded("first", keep_every=50))
    assert payloads.digests() == set()


def test_a_closed_phase_keeps_its_updates_and_not_its_payloads(two: Filled) -> None:
    two.ledger.close_phase(two.ledger.phase("second", 2, 0))
    assert updates_to_keep(two.ledger) == {digest("update 2")}
    assert payloads_to_keep(two.ledger) == set()


def test_what_comes_while_files_are_removed_stays(two: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo that was at work when the coordinator was restarted delivers while another study commits."""
    spool, _, cleanup = stores(two, "late")
    content, remove = b"announced meanwhile", cleanup._remove_updates
    name = hashlib.sha256(content).hexdigest()

    def meanwhile(*arguments: object) -> None:
        spool.add_bytes(content, name)
        remove(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cleanup, "_remove_updates", meanwhile)
    asyncio.run(cleanup.remove_updates("first", 3))
    assert spool.digests() == {digest("update 2"), digest("whole"), name}


def test_an_update_may_be_folded_while_its_round_is_open_and_its_task_too_or_answered_with_it(two: Filled) -> None:
    ledger = two.ledger
    assert [ledger.may_be_folded(digest(each)) for each in ("update 2", "whole", "update 1", "late")] == [
        True, True, False, False]
    task = ledger.task("second/2/0-train/hospital-a")
    assert task is not None
    ledger.close_task(task, TaskState.ABSTAINED)
    assert not ledger.may_be_folded(digest("whole"))


def test_the_files_of_open_rounds_are_found_without_reading_the_others(two: Filled) -> None:
    """A coordinator has ended a thousand rounds with half a million tasks."""
    for question in (lambda: updates_to_keep(two.ledger), lambda: payloads_to_keep(two.ledger),
                     lambda: two.ledger.may_be_folded(digest("late"))):
        first, *others = query_plan(two.ledger, question)
        assert first.endswith("INDEX open_round")
        assert [step for step in others if "SCAN" in step and "VIRTUAL TABLE" not in step] == []
