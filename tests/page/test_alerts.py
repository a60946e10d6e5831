"""What needs a person: the bell, its view, the strip on other views, and notices of the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.ledger_fixture import Filled, fill_study
from tests.page.kit import NARROW, Tab, live_page, tab
from tests.page.test_accessibility import violations

RECORDER = """
class Recorded { static permission = "granted"; static requestPermission = async () => "granted";
    constructor(title, options) { (window.noticed ??= []).push([title, options.body]); } }
window.Notification = Recorded;
"""


def failed_study(folder: Path) -> Filled:
    filled = fill_study(folder, rounds=3, complete=False)
    filled.ledger.set_study_state("first", StudyState.FAILED, reason="the disk is full")
    filled.roster.silent("hospital-b", heard_unix=1_000_000_000.0)
    return filled


@pytest.mark.slow
def test_the_bell_leads_to_what_needs_a_person_and_what_to_do(browser: Any, tmp_path: Path) -> None:
    with live_page(failed_study(tmp_path / "hub").federation) as page, tab(browser, page.address) as shown:
        shown.go("#/silos", title="Silos")
        assert shown.page.locator(".bell").get_attribute("aria-label") == "2 things need a person"
        assert "hospital-b is silent. At the hospital: silo status, silo check." in shown.text(".strip-alerts")
        shown.page.locator(".bell").click()
        shown.page.get_by_role("heading", level=1, name="Needs a person").wait_for()
        titles = shown.page.locator(".trouble-title").all_inner_texts()
        assert titles == ["first has failed", "hospital-b is silent"]
        assert "the disk is full" in shown.text()
        assert "coordinator queue first" in shown.text()


@pytest.mark.slow
def test_a_study_that_runs_well_needs_nobody(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3, done=1, collecting=True)
    with live_page(filled.federation) as page, tab(browser, page.address) as shown:
        page.connected = ("clinic-north", "hospital-a", "hospital-b")
        shown.go("#/alerts", title="Needs a person")
        assert "Nothing needs you" in shown.text()
        assert shown.page.locator(".bell").get_attribute("aria-label") == "Nothing needs a person"


@pytest.mark.slow
def test_the_browser_announces_what_is_new_once_it_was_asked_to(browser: Any, tmp_path: Path) -> None:
    filled = failed_study(tmp_path / "hub")
    filled.ledger.queue_study("second", {"study": {"rounds": 3}})
    with live_page(filled.federation) as page, tab(browser, page.address) as shown:
        page.said["study"] = "second"
        shown.page.add_init_script(RECORDER)
        shown.go("#/alerts", title="Needs a person")
        shown.page.get_by_role("button", name="Show notices in this browser").click()
        shown.page.get_by_role("button", name="Stop notices").wait_for()
        hurry(shown)
        add_notice(filled.ledger, NoticeKind.STANDS_OUT, silo="hospital-a", text="its norm is 31", study="second")
        shown.wait_for("() => (window.noticed ?? []).length > 0")
        shown.page.wait_for_timeout(300)
        assert shown.page.evaluate("window.noticed") == [
            ["lung-federation: hospital-a stands out", "hospital-a: its norm is 31 To leave it out: coordinator"
             " set-aside hospital-a. To go back: coordinator rollback."]], "what was there before is not announced"


def hurry(shown: Tab) -> None:
    """Half a minute passes for the page."""
    shown.page.evaluate("() => { const now = Date.now; setInterval(() => { const add = (window.added ??= 0) + 5000;"
                        " window.added = add; Date.now = () => now() + add; }, 100); }")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_something_needs_a_person(scheme: str, browser: Any, tmp_path: Path) -> None:
    with live_page(failed_study(tmp_path / "hub").federation) as page, \
            tab(browser, page.address, scheme=scheme, viewport=NARROW) as shown:
        for view, title in (("#/alerts", "Needs a person"), ("#/silos", "Silos")):
            shown.go(view, title=title)
            assert violations(shown, scheme=scheme) == [], view
