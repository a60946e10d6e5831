"""The operator's actions through the page: with the right token, with a wrong one, and what they do to the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.ledger_fixture import Filled, fill_study
from tests.page.kit import TOKEN, LivePage, Tab, live_page, tab, until


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "hub", rounds=12, done=3, collecting=True)


@pytest.fixture
def served(filled: Filled) -> Iterator[LivePage]:
    with live_page(filled.federation) as page:
        page.said = {"study": "first", "round": 4, "rounds": 12, "phase": "train"}
        yield page


@pytest.fixture
def shown(browser: Any, served: LivePage) -> Iterator[Tab]:
    with tab(browser, served.address) as opened:
        opened.go("#/study/first")
        yield opened


def press(shown: Tab, words: str) -> None:
    """Presses a button of the page or of the open dialog."""
    shown.page.get_by_role("button", name=words, exact=True).click()


def sign_in(shown: Tab, token: str = TOKEN) -> None:
    """Types a token into its dialog."""
    shown.page.get_by_role("dialog", name="Operator's token").wait_for()
    shown.page.get_by_label("Token", exact=True).fill(token)
    shown.page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    if token == TOKEN:
        shown.page.get_by_role("dialog", name="Operator's token").wait_for(state="detached")


@pytest.mark.slow
def test_a_wrong_token_is_refused_and_nothing_happens(shown: Tab, filled: Filled) -> None:
    press(shown, "Pause")
    sign_in(shown, "not-the-token-of-this-operator")
    shown.page.get_by_role("alert").wait_for()
    assert "not the operator's token" in shown.text("dialog")
    assert shown.page.get_by_role("dialog", name="Pause first?").count() == 0
    press(shown, "Cancel")
    assert str(filled.ledger.study("first").state) == "running"
    assert shown.page.evaluate("sessionStorage.length") == 0
    assert all("401" in problem for problem in shown.problems)
    shown.problems.clear()


@pytest.mark.slow
def test_pause_and_resume(shown: Tab, filled: Filled) -> None:
    press(shown, "Pause")
    sign_in(shown)
    assert "no silo gets a new task" in shown.page.get_by_role("dialog", name="Pause first?").inner_text()
    press(shown, "Pause the study")
    shown.wait_for_text("first is paused", selector="#toasts")
    assert str(filled.ledger.study("first").state) == "paused"
    press(shown, "Resume")
    press(shown, "Resume the study")
    shown.wait_for_text("first continues", selector="#toasts")
    until(lambda: str(filled.ledger.study("first").state) == "running")
    press(shown, "Sign out")
    assert shown.page.evaluate("sessionStorage.length") == 0


@pytest.mark.slow
def test_a_silo_is_set_aside_with_a_reason_and_taken_back(shown: Tab, filled: Filled) -> None:
    shown.go("#/silo/hospital-a")
    press(shown, "Set aside")
    sign_in(shown)
    shown.page.get_by_label("Why").fill("it sends noise")
    shown.page.get_by_role("dialog").get_by_role("button", name="Set aside").click()
    shown.wait_for_text("hospital-a is set aside", selector="#toasts")
    until(lambda: LedgerRoster(filled.ledger).aside() == {"hospital-a": "it sends noise"})
    shown.wait_for_text("it sends noise")
    press(shown, "Take back")
    shown.page.get_by_role("dialog").get_by_role("button", name="Take back").click()
    until(lambda: LedgerRoster(filled.ledger).aside() == {})


@pytest.mark.slow
def test_stop_wants_the_name_typed_and_cancel_does_nothing(shown: Tab, filled: Filled) -> None:
    press(shown, "Stop")
    sign_in(shown)
    dialog = shown.page.get_by_role("dialog", name="Stop first?")
    assert "Its open round, 4, is cancelled" in dialog.inner_text()
    assert "coordinator queue first would continue it" in dialog.inner_text()
    assert "After 3 of 12 rounds a model stays, that of round 3, the last one" in dialog.inner_text()
    stop = dialog.get_by_role("button", name="Stop the study")
    assert stop.is_disabled()
    dialog.get_by_role("textbox").fill("firs")
    assert stop.is_disabled()
    press(shown, "Cancel")
    assert str(filled.ledger.study("first").state) == "running"
    press(shown, "Stop")
    dialog.get_by_role("textbox").fill("first")
    stop.click()
    shown.wait_for_text("An operator has stopped this study")
    assert "stopped by the operator" not in shown.text(), "the notice does not say the same twice"
    assert "coordinator queue first" in shown.text()
    assert str(filled.ledger.study("first").state) == "stopped"
    shown.wait_for("() => ![...document.querySelectorAll('button')].some(button => button.innerText === 'Stop')")


@pytest.mark.slow
def test_extend_moves_the_deadline(shown: Tab, filled: Filled) -> None:
    before = filled.ledger.phase("first", 4, 0).deadline_unix
    press(shown, "Extend deadline")
    sign_in(shown)
    dialog = shown.page.get_by_role("dialog", name="Extend the deadline?")
    assert "hospital-a and hospital-b" in dialog.inner_text()
    dialog.get_by_role("combobox").select_option("3600")
    press(shown, "Extend")
    shown.wait_for_text("The deadline is later now", selector="#toasts")
    assert filled.ledger.phase("first", 4, 0).deadline_unix == pytest.approx(before + 3600, abs=1)


@pytest.mark.slow
def test_an_invitation_is_shown_once_and_can_be_copied(shown: Tab, filled: Filled) -> None:
    create_authority(filled.federation.authority, filled.federation.name, now=time.time())
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.go("#/silos", title="Silos")
    press(shown, "Invite a silo")
    sign_in(shown)
    dialog = shown.page.get_by_role("dialog", name="Invite a silo")
    make = dialog.get_by_role("button", name="Make the invitation")
    dialog.get_by_label("Name of the silo").fill("Hospital C")
    assert make.is_disabled(), "a name that a certificate cannot carry"
    dialog.get_by_label("Name of the silo").fill("hospital-c")
    make.click()
    after = shown.page.get_by_role("dialog", name="Invitation for hospital-c")
    line = after.get_by_label("Invitation line").input_value()
    assert len(line) > 100
    press(shown, "Copy the line")
    shown.wait_for_text("Copied.", selector="dialog")
    assert shown.page.evaluate("navigator.clipboard.readText()") == line
    press(shown, "Done, I have sent it")
    shown.wait_for_text("hospital-c has not used its line yet")
    assert line not in shown.page.content()
    (silo,) = filled.ledger.query("SELECT silo FROM invitation WHERE used_unix IS NULL")
    assert silo["silo"] == "hospital-c"


@pytest.mark.slow
def test_revoke_wants_the_name_typed(shown: Tab, filled: Filled) -> None:
    shown.go("#/silos", title="Silos")
    press(shown, "Revoke hospital-b")
    sign_in(shown)
    dialog = shown.page.get_by_role("dialog", name="Revoke hospital-b?")
    dialog.get_by_role("textbox").fill("hospital-b")
    dialog.get_by_role("button", name="Revoke").click()
    shown.wait_for_text("1 revoked")
    (row,) = filled.ledger.query("SELECT revoked_unix FROM silo WHERE name = 'hospital-b'")
    assert row["revoked_unix"] is not None


@pytest.mark.slow
def test_what_the_coordinator_refuses_is_said_in_its_words(shown: Tab, filled: Filled) -> None:
    press(shown, "Pause")
    sign_in(shown)
    shown.page.get_by_role("dialog", name="Pause first?").wait_for()
    filled.ledger.set_study_state("first", StudyState.PAUSED)  # another operator
    press(shown, "Pause the study")
    shown.page.get_by_role("alert").wait_for()
    assert "is paused already" in shown.text("dialog")
    press(shown, "Cancel")
    assert all("409" in problem for problem in shown.problems)
    shown.problems.clear()
