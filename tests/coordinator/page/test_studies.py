"""Studies that are made, checked, queued and noted beside through the page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.events import find_events
from semisilo.coordinator.ledger.oversight.operators import add_operator
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.page import hand_over
from semisilo.coordinator.page.hand_over import CannotHandOver, HandOver
from semisilo.coordinator.page.routes import _ACTIONS
from tests.coordinator.ledger_fixture import Filled, add_study, fill_study, open_federation_with_silos
from tests.coordinator.page.page_kit import Page, asking


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "hub", rounds=3, done=1, collecting=True)


def test_a_note_of_a_named_operator_stands_beside_the_study_and_in_the_trail(filled: Filled) -> None:
    token = add_operator(filled.ledger, "alice")

    async def work(page: Page) -> None:
        answer = await page.act("note", {"study": "first", "text": " new scanner at hospital-a "}, token=token)
        assert answer.json() == {"study": "first"}
        note, = (await page.get("/api/studies/first"))["notes"]
        assert (note["by"], note["text"]) == ("operator:alice", "new scanner at hospital-a")
        assert abs(note["unix"] - time.time()) < 600
        event, = find_events(filled.ledger, study="first", kind="study_note", limit=2)
        assert event.detail == {"by": "operator:alice", "origin": "page", "text": "new scanner at hospital-a"}
        for body, status in (({"study": "first", "text": "  "}, 409), ({"study": "nobody", "text": "x"}, 404),
                             ({"study": "first", "text": "x" * 1001}, 400)):
            assert (await page.act("note", body, token=token)).status_code == status, body
    asking(filled, work)


@pytest.mark.parametrize("action", ["new", "queue", "note"])
def test_none_of_it_goes_without_the_operators_token(action: str, filled: Filled) -> None:
    assert action == "queue" or action in _ACTIONS

    async def work(page: Page) -> None:
        for token, status in (("", 401), ("a-wrong-token-of-some-length", 401)):
            body = {"study": "first", "name": "second", "text": "x"}
            assert (await page.act(action, body, token=token)).status_code == status
        assert page.acted == []
    asking(filled, work)
    assert find_events(filled.ledger, kind="study_note", limit=1) == []


def test_choices_are_listed_and_a_study_is_made_of_them(filled: Filled) -> None:
    async def work(page: Page) -> None:
        choices = await page.get("/api/choices")
        assert choices["scenarios"][0]["name"] == "labels-at-coordinator"
        answer = await page.act("new", {"name": "second", "scenario": "labels-at-silo", "method": "fedprox",
                                        "rounds": 7})
        assert answer.status_code == 200, answer.text
        text = Path(answer.json()["path"]).read_text()
        assert "rounds = 7\n" in text
        assert 'name = "fedprox"' in text
        again = await page.act("new", {"name": "second"})
        assert (again.status_code, "exists already" in again.json()["error"]["text"]) == (409, True)
        assert (await page.act("new", {"name": "third", "rounds": 1.5})).status_code == 409
    asking(filled, work)


@pytest.mark.slow
def test_what_coordinator_queue_refuses_is_refused_in_its_words(filled: Filled) -> None:
    """The command itself is run: the template's folder of images is not there."""
    async def work(page: Page) -> None:
        await page.act("new", {"name": "second"})
        assert "second" in (await page.get("/api/choices"))["drafts"]
        answer = await page.act("queue", {"study": "second"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "CANNOT_HAND_OVER")
        assert "data/labelled" in error["text"]
        assert "nothing there" in error["text"] or "no such" in error["text"].lower()
        for name in ("nobody", "--help", "first"):
            refused = await page.act("queue", {"study": name})
            assert refused.status_code in (404, 409), refused.text
    asking(filled, work)
    assert filled.ledger.find_study("second") is None


def test_a_study_that_passes_the_check_is_queued_by_whoever_asked(filled: Filled, monkeypatch: pytest.MonkeyPatch
                                                                  ) -> None:
    asked: list[str] = []

    async def check(self: HandOver, study: str) -> None:
        asked.append(study)
        if len(asked) == 1:
            raise CannotHandOver("an image cannot be read")

    monkeypatch.setattr(hand_over.HandOver, "check", check)
    token = add_operator(filled.ledger, "alice")

    async def work(page: Page) -> None:
        await page.act("new", {"name": "second"})
        assert (await page.act("queue", {"study": "second"}, token=token)).status_code == 409
        assert filled.ledger.find_study("second") is None
        answer = await page.act("queue", {"study": "second"}, token=token)
        assert answer.json() == {"study": "second", "state": "queued", "method": "self_training", "rounds": 100}
        assert filled.ledger.study("second").state is StudyState.QUEUED
        event = find_events(filled.ledger, study="second", limit=1)[0]
        assert event.detail["by"] == "operator:alice"
        assert page.acted[-1:] == [True], "serve hears of it"
    asking(filled, work)
    assert asked == ["second", "second"]


def test_a_page_without_a_federation_makes_nothing(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")

    async def work(page: Page) -> None:
        assert (await page.client.get("/api/choices")).status_code == 404
        assert (await page.act("new", {"name": "x"})).status_code == 409
        assert (await page.act("queue", {"study": "x"})).status_code == 409
    asking(filled, work, federation=False)


def test_studies_are_compared_through_the_api(filled: Filled) -> None:
    add_study(filled, "second", rounds=5, done=2)

    async def work(page: Page) -> None:
        found = await page.get("/api/compare?study=first&study=second")
        assert [study["name"] for study in found["studies"]] == ["first", "second"]
        for query, status in (("study=first", 409), ("study=first&study=nobody", 404), ("study=a&x=1", 400),
                              ("&".join(f"study={name}" for name in range(20)), 409)):
            assert (await page.client.get(f"/api/compare?{query}")).status_code == status, query
    asking(filled, work)
