"""Pages that are handed over on paper, or as PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.report.page import render_page
from tests.coordinator.ledger_fixture import fill_study

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
