"""The screen for a wall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.common.text.describe import describe_percentage
from tests.coordinator.ledger_fixture import accuracy_after, fill_study
from tests.page.kit import LivePage, Tab, live_page, tab
from tests.page.test_accessibility import violations

FULL_HD = {"width": 1920, "height": 1080}


@pytest.mark.slow
def test_a_wall_shows_the_study_that_runs_in_large_letters_without_controls(browser: Any, page: LivePage) -> None:
    with tab(browser, page.address, viewport=FULL_HD) as shown:
        shown.go("#/wall", title="first")
        shown.wait_for_text("training 40 %")
        text = shown.text()
        for expected in ("11", "of 20", describe_percentage(accuracy_after(10)), "hospital-a", "clinic-north"):
            assert expected in text
        assert shown.page.locator("button, select, input, nav").count() == 0
        size = shown.page.locator(".wall-value").first.evaluate(
            "element => parseFloat(getComputedStyle(element).fontSize)")
        assert size > 60
        assert shown.page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "nobody scrolls a wall"
        shown.page.keyboard.press("Escape")
        shown.page.get_by_role("navigation", name="Views").wait_for()


@pytest.mark.slow
def test_the_button_leads_to_the_wall(shown: Tab) -> None:
    shown.go("#/study/first", title="first")
    shown.page.get_by_role("link", name="Screen for a wall").click()
    shown.page.locator(".wall-numbers").wait_for()
    assert shown.page.url.endswith("#/wall/first")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_wall(scheme: str, browser: Any, page: LivePage) -> None:
    with tab(browser, page.address, viewport=FULL_HD, scheme=scheme) as shown:
        shown.go("#/wall", title="first")
        shown.wait_for_text("training 40 %")
        assert violations(shown, scheme=scheme) == []


@pytest.mark.slow
def test_a_study_without_test_images_is_not_said_to_be_measured_later(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3, test=False)
    with live_page(filled.federation, serving=False) as served, tab(browser, served.address) as shown:
        for view, number in (("#/wall/first", ".wall-number"), ("#/study/first", ".tile")):
            shown.go(view, title="first")
            accuracy = shown.page.locator(number, has_text="Accuracy").first.inner_text().split("\n")
            assert [line for line in accuracy if line.strip()] == ["Accuracy", "–", "no test images"], view
