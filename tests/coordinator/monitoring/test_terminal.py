from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from semisilo.common.text.logs import set_up_logging
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.terminal import Display, sparkline
from semisilo.coordinator.rounds.runtime import RuntimeState, StandbyReason
from tests.coordinator.ledger_fixture import Filled, fill_study, open_federation_with_silos, study_config


class _Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def _collecting() -> RuntimeState:
    runtime = RuntimeState(study="first", round=10, rounds=20, phase="train", reason=StandbyReason.COLLECTING)
    runtime.heard("hospital-a", task_id="t", stage="training", fraction=0.42, text="epoch 1 of 2")
    runtime.connected = {"hospital-a": 1, "clinic-north": 1}
    return runtime


def _frame(filled: Filled, runtime: RuntimeState, *, width: int = 80, height: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(Display(filled.ledger, filled.roster, runtime, console, federation=filled.federation).render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _line(frame: str, start: str) -> str:
    return next(line for line in frame.splitlines() if line.startswith(start))


@pytest.fixture
def running(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=20, done=9, collecting=True)


@pytest.fixture
def root_handlers() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_a_frame_tells_where_the_round_stands(running: Filled) -> None:
    frame = _frame(running, _collecting())
    assert "lung-federation" in _line(frame, "federation")
    assert "hub.example:8443" in _line(frame, "federation")
    assert "semifl" in _line(frame, "study first")
    assert "left" in _line(frame, "round 10/20")
    assert _line(frame, "phase train").rstrip() == "phase train: waiting for hospital-a, hospital-b"


def test_every_silo_has_its_state_and_the_working_one_its_progress(running: Filled) -> None:
    frame = _frame(running, _collecting())
    assert " connected " in _line(frame, "clinic-north")
    assert " updated " in _line(frame, "clinic-north")
    assert " training " in _line(frame, "hospital-a")
    assert " 42 % " in _line(frame, "hospital-a")
    assert " away " in _line(frame, "hospital-b"), "asked, and not heard of for an hour"
    running.roster.revoke("hospital-b")
    assert " revoked " in _line(_frame(running, _collecting()), "hospital-b")


def test_a_silo_that_trains_is_there_between_its_reports_but_not_for_ever(running: Filled) -> None:
    runtime = _collecting()
    runtime.connected = {}
    assert " training " in _line(_frame(running, runtime), "hospital-a")
    runtime.silos["hospital-a"].unix -= 60
    assert " away " in _line(_frame(running, runtime), "hospital-a")


def test_accuracy_stands_beside_the_labelled_only_line_and_bytes_beside_dense(running: Filled) -> None:
    frame = _frame(running, _collecting())
    accuracy = _line(frame, "accuracy")
    assert "90.5 %  91.3 %  91.9 %" in accuracy
    assert "labelled only 75.2 %" in accuracy
    assert "▁" in accuracy
    assert "█" in accuracy
    assert "% of dense" in _line(frame, "wire")
    assert "estimated" not in _line(frame, "wire")


def test_estimated_bytes_are_called_so(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=3, done=1, collecting=True, estimated=True)
    assert "estimated" in _line(_frame(filled, RuntimeState(study="first")), "wire")


def test_a_frame_fits_eighty_columns_and_a_small_screen(tmp_path: Path) -> None:
    silos = tuple(f"hospital-with-a-very-long-name-{number:03}" for number in range(60))
    filled = fill_study(tmp_path / "fed", rounds=4, done=1, collecting=True, silos=silos)
    frame = _frame(filled, RuntimeState(study="first", round=2, rounds=4, phase="train"), height=24)
    lines = frame.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "more" in frame


def test_before_and_after_a_study_the_frame_says_what_to_do(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "fed", silos=())
    frame = _frame(filled, RuntimeState())
    assert "coordinator new NAME" in frame
    assert "coordinator invite NAME" in frame
    filled.ledger.queue_study("bad", study_config(rounds=3))
    filled.ledger.set_study_state("bad", StudyState.FAILED, reason="no such folder")
    assert "failed: no such folder" in _frame(filled, RuntimeState(study="bad"))


def test_a_silo_cannot_smuggle_markup_or_escapes_into_the_view(running: Filled) -> None:
    runtime = _collecting()
    runtime.activity = "[red]boo[/red]\x1b[2J"
    frame = _frame(running, runtime)
    assert "[red]boo[/red]" in frame
    assert "\x1b[2J" not in frame


@pytest.mark.usefixtures("root_handlers")
def test_log_lines_scroll_by_above_the_view_and_the_log_is_given_back(running: Filled) -> None:
    terminal = _Terminal()
    set_up_logging(stream=terminal)
    handlers = list(logging.getLogger().handlers)
    console = Console(file=_Terminal(), width=80, force_terminal=True, color_system=None)
    display = Display(running.ledger, running.roster, _collecting(), console)

    async def watch() -> None:
        task = asyncio.ensure_future(display.run())
        await asyncio.sleep(0.05)
        logging.getLogger("semisilo.coordinator").warning("something [odd] happened")
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(watch())
    assert isinstance(console.file, _Terminal)
    shown = console.file.getvalue()
    assert "warning: something [odd] happened" in shown
    assert "round 10/20" in shown
    assert terminal.getvalue() == "", "nothing is written behind the back of the view"
    assert logging.getLogger().handlers == handlers


@pytest.mark.usefixtures("root_handlers")
def test_away_from_a_terminal_it_shows_nothing_and_waits_to_be_cancelled(running: Filled) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    display = Display(running.ledger, running.roster, _collecting(), console)

    async def watch() -> bool:
        task = asyncio.ensure_future(display.run())
        await asyncio.sleep(0.05)
        ended = task.done()
        task.cancel()
        return ended

    assert asyncio.run(watch()) is False
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


@pytest.mark.usefixtures("root_handlers")
def test_a_view_that_cannot_be_drawn_does_not_end_the_study(running: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=_Terminal(), width=80, force_terminal=True, color_system=None)
    display = Display(running.ledger, running.roster, _collecting(), console)
    monkeypatch.setattr(display, "render", lambda: 1 / 0)

    async def watch() -> bool:
        task = asyncio.ensure_future(display.run())
        await asyncio.sleep(0.05)
        ended = task.done()
        task.cancel()
        return ended

    assert asyncio.run(watch()) is False
    assert isinstance(console.file, _Terminal)
    assert "the live view has failed" in console.file.getvalue()


def test_a_sparkline_goes_from_the_smallest_to_the_largest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"  # round(3.5) is 4: the fifth of eight
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(("measure", "start", "shown"), [
    ("balanced_accuracy", "balanced accuracy", ("80.5 %  81.3 %  81.9 %", "labelled only 61.7 %", "accuracy 91.9 %")),
    ("auroc", "AUROC", ("0.907  0.908  0.909", "labelled only 0.881", "accuracy 91.9 %"))])
def test_another_measure_is_drawn_in_the_place_of_accuracy_which_stands_beside(
        tmp_path: Path, measure: str, start: str, shown: tuple[str, ...]) -> None:
    filled = fill_study(tmp_path / "fed", rounds=20, done=9, collecting=True, measure=measure)
    line = _line(_frame(filled, _collecting(), width=140), start)
    for words in shown:
        assert words in line


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_names_states_and_bytes_of_silos_are_whole_at_any_width(running: Filled, width: int) -> None:
    frame = _frame(running, _collecting(), width=width)
    assert all(len(line.rstrip()) <= width for line in frame.splitlines())
    head = _line(frame, "silo ")
    row = _line(frame, "hospital-a ")
    assert "training" in row
    assert "…" not in head + row
    assert ("label ratio" in head, "down" in head) == (width >= 100, width >= 80), head


def test_a_silo_s_log_lines_scroll_by_above_its_live_line_unbroken(root_handlers: None) -> None:
    from semisilo.silo.agent.terminal import LiveDisplay

    stream = _Terminal()
    root = logging.getLogger()
    root.handlers[:] = [logging.StreamHandler(stream)]
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=50, _environ={"TERM": "xterm-256color"}))
    display.progress("training", 0.5, "epoch 1 of 2")
    display.event("first, round 1/3: training (self_training, 474 images, with labels of none of them)")
    logging.getLogger("semisilo.silo").warning("the images of this site cannot be used: %s", "x" * 80)
    display.close()
    shown = stream.getvalue()
    assert "training (self_training, 474 images, with labels of none of them)" in shown, "in one piece"
    assert f"WARNING the images of this site cannot be used: {'x' * 80}" in shown or \
        f"the images of this site cannot be used: {'x' * 80}" in shown
    before = shown[:shown.index("the images of this site")]
    assert before.rpartition("\x1b[2K")[2].count("training") == 0, "the live line is gone before the log line begins"
    assert len(root.handlers) == 1
    assert isinstance(root.handlers[0], logging.StreamHandler), "the log is given back"
