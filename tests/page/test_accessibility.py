"""axe-core over every view, light and dark, wide and narrow; and one action with the keyboard alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.report.report import write_report
from tests.coordinator.ledger_fixture import fill_study, open_federation_with_silos
from tests.page.kit import NARROW, TOKEN, WIDE, LivePage, Tab, live_page, tab
from tests.page.test_views import VIEWS


def violations(shown: Tab, *, scheme: str = "light") -> list[str]:
    """What axe-core finds, one line each; its rules are those of WCAG 2.2 AA and good practice.

    In the dark only colours are other than by day, so only their rule is asked.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    options = {"resultTypes": ["violations"], **({} if scheme == "light" else {"runOnly": ["color-contrast"]})}
    found = axe.Axe().run(shown.page, options=options).response["violations"]
    return [f"{entry['id']}: {node['target']} {node['failureSummary']}" for entry in found for node in entry["nodes"]]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "viewport"), [
    ("light", WIDE), ("dark", NARROW), ("light", NARROW), ("dark", WIDE)],
    ids=["light-wide", "dark-narrow", "light-narrow", "dark-wide"])
def test_axe_finds_nothing_in_any_view(scheme: str, viewport: dict[str, int], browser: Any, page: LivePage) -> None:
    with tab(browser, page.address, viewport=viewport, scheme=scheme) as shown:
        for view, title in VIEWS.items():
            shown.go(view, title=title)
            if view == "#/audit":  # ten rows are checked as well as a hundred, and in a tenth of the time
                shown.page.get_by_label("Kind").select_option("round_completed")
                shown.wait_for("() => document.querySelectorAll('.view-audit tbody tr').length === 11")
            assert violations(shown, scheme=scheme) == [], view
        shown.go("#/study/first")
        for summary in shown.page.locator("summary").all():
            summary.click()
        assert violations(shown, scheme=scheme) == [], "with all details open"
        shown.page.get_by_role("button", name="Stop").click()
        shown.page.get_by_role("dialog").wait_for()
        assert violations(shown, scheme=scheme) == [], "dialog for the token"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_drift_is_marked(scheme: str, browser: Any, drifting: LivePage) -> None:
    with tab(browser, drifting.address, scheme=scheme) as shown:
        for view, title in (("#/silos", "Silos"), ("#/silo/hospital-a", "hospital-a"), ("#/cost/first", "Cost")):
            shown.go(view, title=title)
            for summary in shown.page.locator("summary").all():
                summary.click()
            assert violations(shown, scheme=scheme) == [], view


@pytest.mark.slow
def test_axe_finds_what_is_wrong(browser: Any, page: LivePage) -> None:
    """The control: a button without a name and text that is too faint are found."""
    with tab(browser, page.address) as shown:
        shown.go("#/studies")
        shown.page.evaluate("""() => {
            document.querySelector(".side-foot").style.color = "#cccccc";
            document.querySelector("main").append(document.createElement("button"));
        }""")
        assert {line.split(":")[0] for line in violations(shown)} >= {"color-contrast", "button-name"}
        assert {line.split(":")[0] for line in violations(shown, scheme="dark")} == {"color-contrast"}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_there_is_nothing_or_something_is_wrong(scheme: str, browser: Any,
                                                                        tmp_path: Path) -> None:
    empty = open_federation_with_silos(tmp_path / "empty", silos=())
    failed = fill_study(tmp_path / "failed", rounds=3, complete=False)
    failed.ledger.set_study_state("first", StudyState.FAILED, reason="the disk is full")
    for filled in (empty, failed):
        with live_page(filled.federation) as served, tab(browser, served.address, scheme=scheme) as shown:
            served.said = {}
            for view in ("#/", "#/silos", "#/cost"):
                shown.go(view)
                assert violations(shown, scheme=scheme) == [], view


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", NARROW)])
def test_axe_finds_nothing_in_a_report(scheme: str, viewport: dict[str, int], browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3)
    operate.note(filled.ledger, "first", "a new scanner", origin="page")
    path = write_report(filled.federation, filled.ledger, "first")
    with tab(browser, "file://", viewport=viewport, scheme=scheme, bypass_csp=True) as shown:
        shown.page.goto(path.as_uri())
        for summary in shown.page.locator("summary").all():
            summary.click()
        assert violations(shown, scheme=scheme) == []


@pytest.mark.slow
def test_a_study_is_paused_with_the_keyboard_alone(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=12, done=3, collecting=True)
    with live_page(filled.federation) as served, tab(browser, served.address) as shown:
        shown.go("#/study/first")
        keyboard = shown.page.keyboard
        keyboard.press("Tab")
        assert focused(shown) == "Skip to the content"
        keyboard.press("Enter")
        for _ in range(8):
            keyboard.press("Tab")
            if focused(shown) == "Pause":
                break
        assert focused(shown) == "Pause"
        keyboard.press("Enter")
        shown.page.get_by_role("dialog", name="Operator's token").wait_for()
        keyboard.type(TOKEN)
        keyboard.press("Enter")
        shown.page.get_by_role("dialog", name="Pause first?").wait_for()
        for _ in range(4):
            if focused(shown) == "Pause the study":
                break
            keyboard.press("Tab")
        keyboard.press("Enter")
        shown.wait_for_text("nothing new starts until it is resumed")
        assert str(filled.ledger.study("first").state) == "paused"
        shown.page.get_by_role("button", name="Resume").wait_for()


@pytest.mark.slow
def test_escape_closes_a_dialog_and_the_focus_goes_back(browser: Any, page: LivePage) -> None:
    with tab(browser, page.address) as shown:
        shown.go("#/silos")
        button = shown.page.get_by_role("button", name="Invite a silo")
        button.focus()
        shown.page.keyboard.press("Enter")
        dialog = shown.page.get_by_role("dialog")
        dialog.wait_for()
        assert shown.page.evaluate("document.activeElement.type") == "password"
        shown.page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert focused(shown) == "Invite a silo"


def focused(shown: Tab) -> str:
    """The text of what has the focus."""
    return str(shown.page.evaluate("document.activeElement.innerText.trim()"))
