"""A study that is made, queued and noted beside in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.page.hand_over import HandOver
from semisilo.coordinator.studies.study_file import load_study
from tests.coordinator.ledger_fixture import fill_study
from tests.page.kit import TOKEN, Tab, live_page, tab
from tests.page.test_accessibility import violations


def sign_in(shown: Tab) -> None:
    shown.page.get_by_role("textbox", name="Token").fill(TOKEN)
    shown.page.get_by_role("dialog").get_by_role("button", name="Sign in").click()


@pytest.mark.slow
def test_a_study_is_made_from_the_template_and_queued_with_what_the_command_says(
        browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(self: HandOver, study: str) -> None:
        """The command itself is run in tests/coordinator/page/test_studies.py."""

    monkeypatch.setattr(HandOver, "check", check)
    filled = fill_study(tmp_path / "hub", rounds=3)
    with live_page(filled.federation) as page, tab(browser, page.address) as shown:
        shown.go("#/studies", title="Studies")
        shown.page.get_by_role("button", name="New study").click()
        sign_in(shown)
        dialog = shown.page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("second")
        dialog.get_by_label("Labels").select_option("labels-at-silo")
        assert dialog.get_by_label("Method").input_value() == "self_training", "the template's"
        dialog.get_by_label("Method").select_option("fedprox")
        dialog.get_by_label("Rounds").fill("12")
        assert violations(shown) == []
        dialog.get_by_role("button", name="Make the study").click()
        shown.wait_for_text("Not queued yet")
        config = load_study(filled.federation.studies / "second" / "study.toml")
        assert (config.method.name, config.study.rounds, config.study.start_with) == ("fedprox", 12, 2)
        shown.page.get_by_role("button", name="Check and queue second").click()
        shown.page.get_by_role("dialog").get_by_role("button", name="Check and queue").click()
        shown.wait_for("() => [...document.querySelectorAll('.view-studies tbody tr')].some("
                       "(row) => row.innerText.includes('second') && row.innerText.includes('queued'))")


@pytest.mark.slow
def test_a_note_is_kept_beside_the_study(browser: Any, tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3)
    with live_page(filled.federation) as page, tab(browser, page.address) as shown:
        shown.go("#/study/first", title="first")
        shown.page.get_by_role("button", name="Add a note").click()
        sign_in(shown)
        shown.page.get_by_role("textbox", name="Note").fill("<b>new</b> scanner\nat hospital-a")
        shown.page.get_by_role("button", name="Keep the note").click()
        shown.wait_for_text("<b>new</b> scanner at hospital-a")
        assert "page token, " in shown.text(".notes")
