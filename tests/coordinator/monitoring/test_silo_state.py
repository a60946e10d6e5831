"""What a silo is doing: every line of the table, its borders, and that every reader gives the same answer."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from semisilo.common.page.requests import SHARED
from semisilo.coordinator.ledger.roster import SiloRow
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import OpenTask, open_tasks
from semisilo.coordinator.monitoring.prometheus import Exposition
from semisilo.coordinator.monitoring.silo_state import (
    PRESENT_SECONDS,
    SiloActivity,
    SiloSigns,
    SiloState,
    activity_of,
    is_present,
)
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.monitoring.terminal import Display
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.report.page import render_page
from semisilo.coordinator.rounds.live_file import LiveSilo, LiveStatus
from semisilo.coordinator.rounds.runtime import RuntimeState
from tests.coordinator.ledger_fixture import SILOS, Filled, fill_study
from tests.each_of import each_of
from tests.page.kit import STATIC

NOW = 1_000_000.0
LONG_AGO = NOW - 3600
MEMBER = SiloRow(name="hospital-a", enrolled_unix=0.0, revoked_unix=None, joined_unix=1.0, seen_unix=LONG_AGO,
                 version="1", methods=(), labelled_count=0, unlabelled_count=10, memory_study="", memory_round=0,
                 certificate_not_after_unix=4e9)
TRAINS = LiveSilo(stage="training", fraction=0.4, text="", unix=NOW - 5)
TASK = OpenTask(silo="hospital-a", study="first", deadline_unix=NOW + 60)
SIGNS = SiloSigns(member=MEMBER, now_unix=NOW, serving=True)
SILENT = replace(MEMBER, silent_unix=LONG_AGO)
AWAY = replace(MEMBER, away_reason="outside working hours", away_until_unix=NOW + 60)


@each_of(("signs", "state"), [
    (replace(SIGNS, member=replace(MEMBER, revoked_unix=1.0, left_unix=1.0), in_call=True), SiloState.REVOKED),
    (replace(SIGNS, member=replace(MEMBER, left_unix=1.0)), SiloState.LEFT),
    (replace(SIGNS, member=replace(MEMBER, joined_unix=None), in_call=True), SiloState.ENROLLED),
    (replace(SIGNS, serving=False), SiloState.JOINED),
    (replace(SIGNS, serving=False, member=AWAY), SiloState.AWAY_BY_POLICY),
    (replace(SIGNS, member=AWAY, in_call=True), SiloState.AWAY_BY_POLICY),
    (replace(SIGNS, member=AWAY, open_task=replace(TASK, deadline_unix=NOW - 1)), SiloState.AWAY_BY_POLICY),
    (replace(SIGNS, member=AWAY, open_task=TASK, said=TRAINS), SiloState.WORKING),
    (replace(SIGNS, member=replace(AWAY, away_until_unix=NOW), in_call=True), SiloState.CONNECTED),
    (replace(SIGNS, member=replace(AWAY, silent_unix=LONG_AGO)), SiloState.AWAY_BY_POLICY),
    (replace(SIGNS, member=SILENT), SiloState.SILENT),
    (replace(SIGNS, member=SILENT, serving=False), SiloState.SILENT),
    (replace(SIGNS, member=SILENT, open_task=replace(TASK, deadline_unix=NOW - 1)), SiloState.SILENT),
    (replace(SIGNS, member=SILENT, in_call=True), SiloState.CONNECTED),
    (replace(SIGNS, member=SILENT, open_task=TASK, said=TRAINS), SiloState.WORKING),
    (replace(SIGNS, member=replace(SILENT, revoked_unix=1.0)), SiloState.REVOKED),
    (replace(SIGNS, open_task=replace(TASK, deadline_unix=NOW - 1), said=TRAINS), SiloState.LATE),
    (replace(SIGNS, open_task=replace(TASK, deadline_unix=NOW - 1)), SiloState.LATE),
    (replace(SIGNS, open_task=replace(TASK, deadline_unix=NOW)), SiloState.AWAY),
    (replace(SIGNS, open_task=replace(TASK, deadline_unix=None), said=TRAINS), SiloState.WORKING),
    (replace(SIGNS, open_task=TASK, said=TRAINS), SiloState.WORKING),
    (replace(SIGNS, open_task=TASK, said=replace(TRAINS, unix=LONG_AGO), in_call=True), SiloState.WORKING),
    (replace(SIGNS, open_task=TASK, said=replace(TRAINS, unix=LONG_AGO)), SiloState.AWAY),
    (replace(SIGNS, open_task=TASK, said=replace(TRAINS, stage="")), SiloState.CONNECTED),
    (replace(SIGNS, open_task=TASK, in_call=True), SiloState.CONNECTED),
    (replace(SIGNS, said=TRAINS), SiloState.CONNECTED),
    (replace(SIGNS, member=replace(MEMBER, seen_unix=NOW - 5)), SiloState.CONNECTED),
    (replace(SIGNS, member=replace(MEMBER, seen_unix=None)), SiloState.AWAY),
    (SIGNS, SiloState.AWAY)])
def test_the_first_line_of_the_table_that_fits_counts(signs: SiloSigns, state: SiloState) -> None:
    assert activity_of(signs).state is state


def test_a_silo_is_there_up_to_the_last_moment_and_no_longer() -> None:
    """The one comparison with `PRESENT_SECONDS`: the border itself counts as there, whatever was heard."""
    for heard in (lambda unix: replace(SIGNS, member=replace(MEMBER, seen_unix=unix)),
                  lambda unix: replace(SIGNS, called_unix=unix),
                  lambda unix: replace(SIGNS, said=replace(TRAINS, unix=unix))):
        assert is_present(heard(NOW - PRESENT_SECONDS))
        assert not is_present(heard(NOW - PRESENT_SECONDS - 0.001))
    assert not is_present(replace(SIGNS, in_call=True, serving=False)), "an old live.json says nothing of now"


def test_a_silo_was_seen_when_it_last_called_and_not_when_it_last_asked_for_work() -> None:
    for heard in (replace(SIGNS, called_unix=NOW - 2), replace(SIGNS, said=replace(TRAINS, unix=NOW - 2)),
                  replace(SIGNS, member=replace(MEMBER, seen_unix=NOW - 2))):
        assert activity_of(heard).seen_unix == NOW - 2
    assert activity_of(replace(SIGNS, in_call=True)).seen_unix == NOW
    assert activity_of(replace(SIGNS, member=replace(MEMBER, seen_unix=None))).seen_unix is None
    assert activity_of(replace(SIGNS, serving=False)).seen_unix == MEMBER.seen_unix


def test_what_was_noted_while_the_clock_was_ahead_makes_no_silo_present() -> None:
    """An administrator sets the clock of the coordinator back by an hour: a silo that has gone is not there for it."""
    later = NOW + 3600
    for ahead in (replace(SIGNS, member=replace(MEMBER, seen_unix=later)), replace(SIGNS, called_unix=later),
                  replace(SIGNS, open_task=TASK, said=replace(TRAINS, unix=later))):
        assert not is_present(ahead)
        assert activity_of(ahead).state is SiloState.AWAY
        assert is_present(replace(ahead, in_call=True))
    since = replace(SIGNS, member=replace(MEMBER, seen_unix=later), called_unix=NOW - 60)
    assert activity_of(since).seen_unix == NOW - 60
    assert is_present(replace(since, called_unix=NOW - 5))
    assert is_present(replace(SIGNS, called_unix=NOW + 1)), "written after the reader has looked at the clock"


def test_what_it_does_is_said_as_long_as_it_owes_the_answer() -> None:
    late = activity_of(replace(SIGNS, open_task=replace(TASK, deadline_unix=NOW - 1), said=TRAINS))
    assert late == SiloActivity(state=SiloState.LATE, doing=TRAINS, present=True, seen_unix=TRAINS.unix)
    assert activity_of(replace(SIGNS, said=TRAINS)).doing is None, "it has answered, or has no task any more"


# Every reader ---------------------------------------------------------------------------------------------------------


def _states(filled: Filled, runtime: RuntimeState) -> dict[str, dict[str, str]]:
    """Reader -> silo -> the word it shows."""
    live = LiveStatus.from_runtime(runtime)
    status = gather(filled.federation, filled.ledger, live)
    page = PageReader(PageSource(federation="f", address="a:1", ledger=filled.ledger.path, read_only=False),
                      filled.ledger).silos(live)
    console = Console(file=io.StringIO(), width=120, height=30, force_terminal=True, color_system=None)
    console.print(Display(filled.ledger, filled.roster, runtime, console, federation=filled.federation).render())
    assert isinstance(console.file, io.StringIO)
    terminal = {}
    for silo in SILOS:
        line = next(line for line in console.file.getvalue().splitlines() if line.startswith(silo))
        found = line[max(len(name) for name in SILOS) + 1:][:14].strip()
        terminal[silo] = "working" if found == "training" else found
    return {"status": {silo.name: silo.state for silo in status.silos},
            "page": {silo.name: silo.state for silo in page}, "terminal": terminal}


def _counted(filled: Filled, runtime: RuntimeState) -> dict[str, float]:
    text = Exposition(filled.federation, filled.ledger, live=lambda: LiveStatus.from_runtime(runtime)).text().decode()
    return {sample.labels["state"]: sample.value for family in text_string_to_metric_families(text)
            for sample in family.samples if sample.name == "semisilo_silos" and sample.value}


def _seen(filled: Filled, silo: str, seconds_ago: float) -> None:
    with filled.ledger.transaction() as db:
        db.execute("UPDATE silo SET seen_unix = ? WHERE name = ?", (time.time() - seconds_ago, silo))


def test_every_reader_says_when_a_silo_that_works_on_a_long_task_was_seen(running: Filled) -> None:
    """It asked for work hours ago; a minute ago it has told how far it is."""
    _seen(running, SILOS[1], 5 * 3600)
    runtime = _runtime()
    runtime.silos.clear()
    runtime.called[SILOS[1]] = called = round(time.time() - 60, 1)
    live = LiveStatus.from_runtime(runtime)
    status = gather(running.federation, running.ledger, live)
    page = PageReader(PageSource(federation="f", address="a:1", ledger=running.ledger.path, read_only=False),
                      running.ledger).silos(live)
    text = Exposition(running.federation, running.ledger, live=lambda: live).text().decode()
    metric = [sample.value for family in text_string_to_metric_families(text) for sample in family.samples
              if sample.name == "semisilo_silo_last_seen_timestamp_seconds" and sample.labels["silo"] == SILOS[1]]
    assert [silo.seen_unix for silo in (*status.silos, *page) if silo.name == SILOS[1]] + metric == [called] * 3


@pytest.fixture
def running(tmp_path: Path) -> Filled:
    """The ninth round is open: the first silo has answered, the others owe an answer."""
    return fill_study(tmp_path / "hub", done=8, collecting=True)


def _runtime() -> RuntimeState:
    runtime = RuntimeState(study="first", round=9, rounds=12, phase="train")
    runtime.heard(SILOS[1], task_id="t", stage="training", fraction=0.42, text="")
    return runtime


def test_a_silo_that_asked_five_seconds_ago_is_the_same_in_status_page_terminal_and_metrics(running: Filled) -> None:
    """It was "connected", "connected", "done" and "away"."""
    _seen(running, SILOS[0], 5)
    expected = dict(zip(SILOS, ("connected", "working", "away"), strict=True))
    assert _states(running, _runtime()) == dict.fromkeys(("status", "page", "terminal"), expected)
    assert _counted(running, _runtime()) == {"connected": 1, "working": 1, "away": 1}


def test_late_away_by_policy_and_gone_are_the_same_everywhere(running: Filled) -> None:
    with running.ledger.transaction() as db:
        db.execute("UPDATE phase SET deadline_unix = ? WHERE round = 9", (time.time() - 1,))
        db.execute("UPDATE silo SET away_reason = 'outside working hours', away_until_unix = ? WHERE name = ?",
                   (time.time() + 600, SILOS[2]))
    running.roster.revoke(SILOS[0])
    expected = dict(zip(SILOS, ("revoked", "late", "away by policy"), strict=True))
    assert _states(running, _runtime()) == dict.fromkeys(("status", "page", "terminal"), expected)
    assert _counted(running, _runtime()) == {"revoked": 1, "late": 1, "away by policy": 1}


def test_while_a_study_is_paused_silos_may_finish_and_nobody_is_late(running: Filled) -> None:
    with running.ledger.transaction() as db:
        db.execute("UPDATE phase SET deadline_unix = ? WHERE round = 9", (time.time() - 1,))
    running.ledger.set_study_state("first", StudyState.PAUSED)
    expected = dict(zip(SILOS, ("away", "working", "away"), strict=True))
    assert _states(running, _runtime()) == dict.fromkeys(("status", "page", "terminal"), expected)


def test_a_report_says_what_is_known_without_serve(running: Filled) -> None:
    running.roster.leave(SILOS[1])
    page = render_page(federation="f", address="a:1", study=summarise(running.ledger, "first"), figures=(),
                       silos=running.roster.silos(), audit=audit(running.ledger, "first"), state_digest="")
    rows = dict(re.findall(r'<th scope="row"[^>]*>([a-z-]+)</th>\s*<td[^>]*>(joined|left|revoked|enrolled)</td>', page))
    assert rows == dict(zip(SILOS, ("joined", "left", "joined"), strict=True))
    status = gather(running.federation, running.ledger, None)
    assert {silo.name: silo.state for silo in status.silos} == rows


def test_only_open_tasks_of_open_rounds_count(running: Filled) -> None:
    assert open_tasks(running.ledger).keys() == set(SILOS[1:])
    running.ledger.set_study_state("first", StudyState.STOPPED)
    assert open_tasks(running.ledger) == {}


# The page's words -----------------------------------------------------------------------------------------------------


def test_the_page_knows_every_state_by_its_own_word() -> None:
    """`parts.js` has a shape and a colour for each; the word is the value itself, for silos and for outcomes."""
    text = (SHARED / "js" / "parts.js").read_text(encoding="utf-8")
    table = text[text.index("const STATES = {"):text.index("const SHAPES")]
    words = {(quoted or plain): word for quoted, plain, word in
             re.findall(r'(?:"([a-z ]+)"|\b([a-z]+)): \["([a-z ]+)", "[a-z]+"\]', table)}
    for state in (*SiloState, *TaskState):
        assert words[state] == state
    assert {*StudyState, *RoundState} <= words.keys()


def test_views_of_the_page_name_only_states_that_there_are() -> None:
    text = (STATIC / "js" / "views" / "silos.js").read_text(encoding="utf-8")
    for table in ("GROUP_OF", "URGENCY"):
        body = text[text.index(f"const {table} = {{"):].split("}", 1)[0]
        names = re.findall(r'(?:"([a-z ]+)"|\b([a-z]+)): ', body)
        assert {quoted or plain for quoted, plain in names} == {*SiloState}
    ranks = re.findall(r'"([a-z ]+)"', text[text.index("const RANK = ["):].split("]", 1)[0])
    assert sorted(ranks) == sorted(SiloState)
