"""The coordinator's log in the browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.ledger_fixture import fill_study
from tests.page.kit import NARROW, TOKEN, live_page, tab
from tests.page.test_accessibility import violations


def record(text: str, level: int) -> logging.LogRecord:
    return logging.LogRecord("semisilo.coordinator", level, "", 0, text, None, None)


@pytest.mark.slow
def test_an_operator_reads_filters_and_follows_the_log(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=2)
    with live_page(filled.federation) as page, tab(browser, page.address, viewport=NARROW) as shown:
        page.logs.emit(record("first, round 1/2 committed", logging.INFO))
        page.logs.emit(record("<b>hospital-a</b> stands out", logging.WARNING))
        shown.go("#/audit", title="Audit")
        shown.page.get_by_role("link", name="Log of the coordinator").click()
        shown.wait_for_text("needs the operator's token")
        assert "stands out" not in shown.text("body")
        shown.page.locator("main").get_by_role("button", name="Sign in").click()
        shown.page.get_by_role("textbox", name="Token").fill(TOKEN)
        shown.page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        shown.wait_for_text("<b>hospital-a</b> stands out")
        assert violations(shown) == []
        shown.page.get_by_label("Level").select_option("warning")
        shown.wait_for("() => document.querySelectorAll('.view-logs tbody tr').length === 1")
        shown.page.get_by_label("Level").select_option("info")
        shown.page.get_by_label("With the text").fill("committed")
        shown.wait_for("() => document.querySelector('.view-logs tbody tr').innerText.includes('round 1/2')")
        page.logs.emit(record("first, round 2/2 committed", logging.INFO))
        shown.wait_for_text("round 2/2 committed")
