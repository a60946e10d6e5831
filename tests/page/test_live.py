"""The page while something happens: a real federation with a silo that dies, and a coordinator that goes away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.rounds.live_file import LiveSilo
from tests.coordinator.ledger_fixture import answer, fill_study
from tests.page.kit import LivePage, Tab, live_page, tab, until
from tests.processes import STUDY, FederationOfProcesses, federation

TWO_ROUNDS = STUDY.replace("rounds = 3", "rounds = 2") + "quorum = 2\n"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[FederationOfProcesses]:
    with federation(tmp_path, timeout="8s", study=TWO_ROUNDS, page=True) as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_study_is_followed_while_a_silo_dies_and_comes_back(browser: Any,
                                                                  processes: FederationOfProcesses) -> None:
    """One load of the page sees it all: waiting, the round, the silo that falls silent, its return, the end."""
    processes.serve()
    live = processes.hub / "live.json"
    processes.wait_for(lambda: live.exists() and bool(json.loads(live.read_text()).get("page")))
    address = json.loads(live.read_text())["page"]
    with tab(browser, address) as shown:
        shown.go("#/study/first")
        shown.wait_for_text("Waiting for silos: 0 of 2 have joined", seconds=300)
        shown.page.evaluate("window.loadedOnce = true")
        for silo in processes.silos:
            processes.enroll(silo)
        processes.join("alpha")
        shown.wait_for_text("Waiting for silos: 1 of 2 have joined", seconds=300)
        # kill -9 in the middle of its training
        processes.join("beta", crash="semisilo.common.learning.sgd:learn:2:after")
        shown.wait_for_text("1 of 2 silos have answered", seconds=300)
        assert "updated" in shown.text("[data-silo=alpha]")
        processes.died("beta")
        shown.wait_for("() => /late|away|silent/.test(document.querySelector('[data-silo=beta]').innerText)",
                       seconds=300)
        assert shown.page.locator(".side .count").inner_text().endswith("1"), "one silo needs a look"
        assert "beta" in shown.text("#said") or "beta" in shown.text("main")
        processes.join("beta")
        shown.wait_for_text("completed", selector="h1", seconds=300)
        assert "2 / 2" in shown.text(".tiles")
        assert shown.page.evaluate("window.loadedOnce") is True, "never loaded anew"
        shown.go("#/audit", title="Audit")
        shown.wait_for_text("study completed")
        processes.finish()
        shown.page.locator(".lost").wait_for(timeout=300_000)
        forgive(shown)


@pytest.mark.slow
def test_an_update_leaves_focus_scroll_and_open_details_alone(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=12, done=3, collecting=True)
    with live_page(filled.federation) as served, tab(browser, served.address) as shown:
        served.said = {"study": "first", "round": 4, "rounds": 12, "phase": "train"}
        shown.go("#/study/first")
        shown.page.locator("figure summary").first.click()
        shown.page.locator("figure tbody tr").first.wait_for()
        shown.page.get_by_role("link", name="All rounds").focus()
        shown.page.evaluate("scrollTo(0, 300); window.same = document.querySelector('figure tbody tr')")
        assert "1 of 3 silos have answered" in shown.text()
        answer(filled.ledger, "first", 4, "hospital-a", TaskState.UPDATED, ratio=0.8)
        shown.wait_for_text("2 of 3 silos have answered")
        assert shown.page.evaluate("scrollY") == 300
        assert shown.page.evaluate("document.activeElement.innerText") == "All rounds"
        assert shown.page.evaluate("document.querySelector('figure details').open") is True
        assert shown.page.evaluate("window.same === document.querySelector('figure tbody tr')") is True


@pytest.mark.slow
def test_progress_moves_and_times_tick(browser: Any, page: LivePage) -> None:
    with tab(browser, page.address) as shown:
        shown.go("#/study/first")
        page.silos = {"hospital-a": LiveSilo(stage="training", fraction=0.4)}
        shown.wait_for_text("training 40 %")
        before = shown.text(".now [data-since]")
        page.silos = {"hospital-a": LiveSilo(stage="training", fraction=0.7)}
        shown.wait_for_text("training 70 %")
        until(lambda: shown.text(".now [data-since]") != before)
        page.silos = {"hospital-a": LiveSilo(stage="training", fraction=0.4)}


@pytest.mark.slow
def test_a_coordinator_that_goes_away_is_said_and_its_return_is_noticed(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=12, done=3, collecting=True)
    with live_page(filled.federation) as first:
        address = first.address
        with tab(browser, address) as shown:
            shown.go("#/study/first")
            shown.wait_for_text("live", selector=".connection")
            shown.page.get_by_role("link", name="All rounds").focus()
            first.stop()
            shown.page.locator(".lost").wait_for(timeout=300_000)
            shown.wait_for_text("Not connected since", selector=".lost")
            shown.wait_for_text("not connected", selector=".connection")
            shown.wait_for_text("Not connected", selector="#said")
            assert "Round 4" in shown.text(), "what was known stays"
            with live_page(filled.federation, listen=address.removeprefix("http://")):
                shown.page.locator(".lost").wait_for(state="detached", timeout=300_000)
                shown.wait_for_text("live", selector=".connection", seconds=300)
                shown.wait_for_text("Connected again", selector="#said")
                assert shown.page.evaluate("document.activeElement.innerText") == "All rounds"
                forgive(shown)


@pytest.mark.slow
def test_a_page_that_is_open_during_an_upgrade_takes_the_new_scripts_once_no_dialog_is_open(
        browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill_study(tmp_path / "hub", rounds=12, done=3, collecting=True)
    with live_page(filled.federation) as served, tab(browser, served.address) as shown:
        shown.go("#/study/first")
        shown.wait_for_text("live", selector=".connection")
        shown.page.evaluate("() => { window.scripts = 'old' }")
        shown.page.get_by_role("button", name="Pause").click()
        shown.page.get_by_role("dialog").wait_for()
        monkeypatch.setattr("semisilo.coordinator.page.reader.__version__", "99.0")
        operate.note(filled.ledger, "first", "upgraded", origin="page")  # something new is told
        shown.wait_for_text("semisilo 99.0", selector=".side")
        assert shown.page.evaluate("() => window.scripts") == "old", "somebody types"
        shown.page.keyboard.press("Escape")
        with shown.page.expect_navigation():
            operate.note(filled.ledger, "first", "again", origin="page")
        shown.wait_for_text("semisilo 99.0", selector=".side")
        assert shown.page.evaluate("() => window.scripts") is None
        assert shown.page.url.endswith("#/study/first")


def forgive(shown: Tab) -> None:
    """A browser reports every request that found nobody, and some of them late; anything else stays a problem."""
    shown.forgiven = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY")
