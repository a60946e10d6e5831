"""Report, card and model of a study that is over, downloaded from the page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from semisilo.coordinator.ledger.events import last_event_of
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.page import hand_over
from semisilo.coordinator.page.hand_over import FILES, CannotHandOver, HandOver, HandOverFile
from tests.coordinator.ledger_fixture import Filled, fill_study, query_plan
from tests.coordinator.page.page_kit import TOKEN, Page, asking

BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def over(tmp_path: Path) -> Filled:
    filled = fill_study(tmp_path / "hub", rounds=3, done=3)
    filled.ledger.move_study("first", StudyState.RUNNING, StudyState.COMPLETED)
    return filled


@pytest.mark.slow  # the command is a process, which draws
def test_the_report_is_what_the_command_writes_and_is_made_once(over: Filled) -> None:
    async def work(page: Page) -> None:
        answer = await page.client.get("/api/studies/first/files/report.html")
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-disposition"] == 'attachment; filename="first-report.html"'
        assert answer.headers["content-type"].startswith("text/html")
        written = over.federation.studies / "first" / "report" / "index.html"
        assert answer.text == written.read_text(encoding="utf-8")
        assert "<h1>Study first" in answer.text
        before = written.stat().st_mtime_ns
        assert (await page.client.get("/api/studies/first/files/report.html")).text == answer.text
        assert written.stat().st_mtime_ns == before, "nothing has changed"
    asking(over, work)


def test_card_and_model_are_an_operators(over: Filled) -> None:
    async def work(page: Page) -> None:
        for name, file in FILES.items():
            if file.needs_operator:
                answer = await page.client.get(f"/api/studies/first/files/{name}")
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "WRONG_TOKEN")
    asking(over, work)


@pytest.mark.slow  # quickly: the same of `coordinator queue` in test_studies.py
def test_what_coordinator_export_refuses_is_refused_in_its_words(over: Filled) -> None:
    """The states of this ledger are made up, so that the real command must refuse them."""
    async def work(page: Page) -> None:
        answer = await page.client.get("/api/studies/first/files/model.safetensors", headers=BEARER)
        assert answer.json()["error"]["code"] == "CANNOT_HAND_OVER"
        assert answer.status_code < 500
        assert "Traceback" not in answer.text
        assert len(answer.json()["error"]["text"]) > 20
    asking(over, work)


def test_the_model_is_served_byte_for_byte(over: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def made(self: HandOver, study: str, command: str) -> Path:
        assert (study, command) == ("first", "export")
        for file in FILES.values():
            (tmp_path / file.name).write_bytes(file.name.encode() * 1000)
        return tmp_path

    monkeypatch.setattr(HandOver, "_make", made)

    async def work(page: Page) -> None:
        for name in ("model.safetensors", "model_card.json", "model_card.html"):
            answer = await page.client.get(f"/api/studies/first/files/{name}", headers=BEARER)
            assert answer.status_code == 200
            assert answer.content == name.encode() * 1000
            assert answer.headers["content-disposition"] == f'attachment; filename="first-{name}"'
    asking(over, work)


def test_an_export_that_the_operator_has_made_is_not_replaced_by_a_download(
        over: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a temperature, an ONNX graph and an operating point, and the page's has none."""
    asked: list[list[str]] = []

    async def run(self: HandOver, command: list[str]) -> dict[str, str]:
        asked.append(command)
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"of the page")
        return {"folder": str(folder)}

    monkeypatch.setattr(HandOver, "_run", run)

    async def work(page: Page) -> None:
        answer = await page.client.get("/api/studies/first/files/model.safetensors", headers=BEARER)
        assert answer.content == b"of the page"
    asking(over, work)
    study = over.federation.studies / "first"
    assert asked == [["export", "first", "--format", "safetensors", "--out", str(study / ".export-of-page")]]


def test_a_study_that_runs_an_unknown_file_and_a_page_that_only_reads_have_none(tmp_path: Path, over: Filled) -> None:
    async def unknown(page: Page) -> None:
        assert (await page.client.get("/api/studies/first/files/states.tar", headers=BEARER)).status_code == 404
        assert (await page.client.get("/api/studies/nothing/files/report.html")).status_code == 404

    async def running(page: Page) -> None:
        answer = await page.client.get("/api/studies/first/files/report.html")
        assert (answer.status_code, "once it is over" in answer.json()["error"]["remedy"]) == (409, True)

    async def reading(page: Page) -> None:
        answer = await page.client.get("/api/studies/first/files/model.safetensors", headers=BEARER)
        assert answer.status_code == 403
        assert (await page.client.get("/api/studies/first/files/report.html")).status_code == 409
    asking(over, unknown)
    asking(fill_study(tmp_path / "other", rounds=9, done=3, collecting=True), running)
    asking(over, reading, token=None, federation=False)


def test_the_study_says_what_comes_next_once_it_is_over(over: Filled, tmp_path: Path) -> None:
    async def ended(page: Page) -> None:
        study = await page.get("/api/studies/first")
        assert study["next_command"] == "coordinator export first"
        assert study["choice"]["conclusion"]

    async def running(page: Page) -> None:
        assert (await page.get("/api/studies/first"))["next_command"] == ""
    asking(over, ended)
    asking(fill_study(tmp_path / "other", rounds=9, done=3, collecting=True), running)


def test_every_file_is_of_a_command_that_there_is() -> None:
    assert {file.command for file in FILES.values()} == {"report", "export"}
    assert all(isinstance(file, HandOverFile) for file in FILES.values())


def test_who_has_no_token_starts_a_report_once_a_minute_whatever_happens(
        over: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any event of the federation, such as a silo that is heard again, had the next caller start another process."""
    made: list[str] = []
    now, fails = 1000.0, False

    async def make(self: HandOver, study: str, command: str) -> Path:
        made.append(command)
        if fails:
            raise CannotHandOver("no room")
        (tmp_path / "index.html").write_text(str(len(made)))
        return tmp_path

    monkeypatch.setattr(HandOver, "_make", make)
    monkeypatch.setattr(hand_over, "time", SimpleNamespace(monotonic=lambda: now))

    async def work(page: Page) -> None:
        nonlocal now, fails

        async def report(**headers: str) -> str:
            return (await page.client.get("/api/studies/first/files/report.html", headers=headers)).text

        assert await report() == "1"
        over.roster.silent("hospital-a", heard_unix=1.0)
        assert [await report(), await report(**BEARER)] == ["1", "1"], "an event of no study"
        over.ledger.event("study_note", study="second", text="x")
        assert await report(**BEARER) == "1", "one of another study"
        over.ledger.event("study_note", study="first", text="x")
        assert [await report(), await report(authorization="Bearer wrong")] == ["1", "1"]
        now += 60.0
        assert [await report(), await report()] == ["2", "2"]
        over.ledger.event("study_note", study="first", text="y")
        assert await report(**BEARER) == "3", "an operator waits for nothing"
        fails = True
        over.ledger.event("study_note", study="first", text="z")
        now += 60.0
        assert ["no room" in await report() for _ in range(3)] == [True] * 3
        assert len(made) == 4, "nor does a report that cannot be made start a process each time"
        fails = False
        assert await report(**BEARER) == "5"
    asking(over, work)


def test_the_last_event_of_a_study_is_found_by_the_index(over: Filled) -> None:
    ledger = over.ledger
    for study in ("first", "nothing"):
        want = ledger.query("SELECT coalesce(max(number), 0) AS n FROM event WHERE study = ?", study)[0]["n"]
        assert last_event_of(ledger, study) == want
    assert last_event_of(ledger, "first") > 0
    plan = query_plan(ledger, lambda: last_event_of(ledger, "first"))
    assert not [step for step in plan if "SCAN event" in step], plan
