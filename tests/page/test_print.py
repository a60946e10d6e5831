"""Pages that are handed over on paper, or as PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.report.page import render_page
from tests.coordinator.ledger_fixture import fill_study
from tests.page.kit import live_page, tab
from tests.page.test_silo_page import served
from tests.silo.page.home_kit import filled_home

A4 = {"width": 684, "height": 1000}
"""Between the margins of Chromium, in CSS pixels."""
TABLES_CUT_OFF = """() => [...document.querySelectorAll(".scroll")]
    .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.getAttribute("aria-label"))"""


@pytest.mark.slow
def test_on_paper_no_table_of_the_report_is_cut_off(browser: Any, tmp_path: Path) -> None:
    """A browser scrolls them, and a printer left the last columns out."""
    filled = fill_study(tmp_path / "hub", rounds=3, silos=("a" * 63, "clinic-north", "hospital-a"))
    path = tmp_path / "index.html"
    path.write_text(render_page(federation="lung", address="hub:8443", study=summarise(filled.ledger, "first"),
                                silos=filled.roster.silos(), figures=(), audit=audit(filled.ledger, "first"),
                                state_digest=""), encoding="utf-8")
    page = browser.new_page(viewport=A4)
    try:
        page.goto(path.as_uri())
        assert "Every round of the study" in page.evaluate(TABLES_CUT_OFF), "on a screen it scrolls"
        page.emulate_media(media="print")
        assert page.evaluate(TABLES_CUT_OFF) == []
    finally:
        page.close()


CUT_OFF = """() => [...document.querySelectorAll("main :is(.table-room, .lanes, .json)")]
    .filter((each) => each.clientWidth
        && (each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1))
    .map((each) => each.innerText.slice(0, 60))"""
LETTERS = """() => getComputedStyle(document.body).color"""


@pytest.mark.slow
def test_on_paper_nothing_of_the_operator_page_is_cut_off_and_letters_are_dark(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=30, silos=("a" * 63, "clinic-north", "hospital-a"))
    with live_page(filled.federation, serving=False) as page, tab(browser, page.address, viewport=A4) as shown:
        shown.go("#/study/first")
        shown.page.evaluate("() => { document.documentElement.dataset.theme = 'dark' }")
        assert shown.page.evaluate(LETTERS) == "rgb(227, 234, 237)"
        for view in ("#/study/first", "#/study/first/rounds", "#/study/first/round/6", "#/silos", "#/cost/first",
                     "#/audit"):
            shown.page.emulate_media(media="screen")
            shown.go(view)
            for summary in shown.page.locator("main summary").all()[:12]:
                summary.click()
            assert shown.page.evaluate(CUT_OFF) or view in ("#/silos", "#/cost/first"), "on a screen it scrolls"
            shown.page.emulate_media(media="print")
            assert shown.page.evaluate(CUT_OFF) == [], view
            assert shown.page.evaluate(LETTERS) == "rgb(21, 35, 43)", "and paper is white"


@pytest.mark.slow
def test_on_paper_nothing_of_a_silos_page_is_cut_off(browser: Any, tmp_path: Path) -> None:
    with served(filled_home(tmp_path / "home")) as address, tab(browser, address, viewport=A4) as shown:
        for view in ("#/studies", "#/study/s", "#/left", "#/asked"):
            shown.page.emulate_media(media="screen")
            shown.go(view)
            for summary in shown.page.locator("main summary").all()[:12]:
                summary.click()
            shown.page.emulate_media(media="print")
            assert shown.page.evaluate(CUT_OFF) == [], view
