"""What the webhook is told, once, through restarts, failures and things that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from semisilo.coordinator.federation.alerts_table import AlertSettings
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.alerts import delivery as delivery_module
from semisilo.coordinator.monitoring.alerts.delivery import AlertDelivery, keep_telling
from semisilo.coordinator.monitoring.alerts.open_alerts import Alert, AlertKind, Severity
from semisilo.coordinator.monitoring.alerts.webhook import WebhookFailed
from tests.coordinator.ledger_fixture import fill_study
from tests.coordinator.monitoring.alerts.test_webhook import Receiver, receiver

SILENT = Alert(id="silo_silent/a/1", kind=AlertKind.SILO_SILENT, severity=Severity.WARNING, title="a is silent",
               text="", remedy="Ask.", silo="a")
FAILED = Alert(id="study_failed/s/1", kind=AlertKind.STUDY_FAILED, severity=Severity.CRITICAL, title="s has failed",
               text="why", remedy="", study="s")
DONE = Alert(id="study_finished/s/1", kind=AlertKind.STUDY_FINISHED, severity=Severity.INFO, title="s is complete",
             text="", remedy="", study="s")


def waiting(delivery: AlertDelivery) -> list[tuple[str, str]]:
    return [(each.state, each.alert.id) for each in delivery.told.waiting]


def test_what_comes_and_goes_is_not_told_and_what_stays_is_told_once(tmp_path: Path) -> None:
    delivery = AlertDelivery.load(tmp_path / "alerts.json")
    delivery.look((SILENT,), now=0)
    delivery.look((), now=10)
    delivery.look((SILENT,), now=20)
    assert waiting(delivery) == []
    for now in (49, 50, 60):
        delivery.look((SILENT,), now=now)
    assert waiting(delivery) == [("open", SILENT.id)]


def test_a_failed_study_is_told_at_once_and_what_is_over_after_a_minute(tmp_path: Path) -> None:
    delivery = AlertDelivery.load(tmp_path / "alerts.json")
    delivery.look((FAILED, DONE), now=0)
    assert waiting(delivery) == [("open", FAILED.id), ("open", DONE.id)]
    for now in (10, 69):
        delivery.look((), now=now)
    assert len(delivery.told.waiting) == 2
    delivery.look((), now=70)
    assert waiting(delivery) == [("open", FAILED.id), ("over", FAILED.id)], "that a study is complete is never over"
    delivery.look((FAILED,), now=80)
    assert waiting(delivery)[2:] == [("open", FAILED.id)], "it has failed again"


def test_that_a_study_is_complete_is_not_told_after_it_went_back(tmp_path: Path) -> None:
    delivery = AlertDelivery.load(tmp_path / "alerts.json")
    delivery.look((DONE,), now=0)
    again = replace(DONE, id="study_finished/s/90")
    for now in (30, 60):
        delivery.look((), now=now)
    assert waiting(delivery) == [("open", DONE.id)]
    delivery.look((again,), now=90)
    assert waiting(delivery) == [("open", again.id)]
    delivery.look((again,), now=200)
    assert waiting(delivery) == [("open", again.id)]


def test_a_restart_repeats_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    delivery = AlertDelivery.load(tmp_path / "alerts.json")
    delivery.look((FAILED, DONE), now=0)
    delivery.sent()
    again = AlertDelivery.load(tmp_path / "alerts.json")
    again.look((FAILED, DONE), now=5)
    assert waiting(again) == [("open", DONE.id)]
    assert again.told.open == (FAILED, DONE)
    (tmp_path / "alerts.json").write_text('{"open": [3]}')
    assert AlertDelivery.load(tmp_path / "alerts.json").told.open == ()


def test_what_could_not_be_sent_for_a_day_is_dropped_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture
                                                                  ) -> None:
    delivery = AlertDelivery.load(tmp_path / "alerts.json")
    delivery.look((FAILED,), now=0)
    delivery.look((FAILED,), now=86_399)
    assert len(delivery.told.waiting) == 1
    delivery.look((FAILED,), now=86_400)
    assert waiting(delivery) == []
    assert "could not be sent" in caplog.text


def telling(federation: Federation, until: Callable[[], bool], *, look_seconds: float = 0.02,
            first_pause_seconds: float = 0.05) -> None:
    """Runs the loop over a federation until something is true."""
    async def scenario() -> None:
        task = asyncio.ensure_future(keep_telling(federation, live=lambda: None, page=lambda: "http://127.0.0.1:8080",
                                                  look_seconds=look_seconds, first_pause_seconds=first_pause_seconds))
        try:
            async with asyncio.timeout(300):
                while not until():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.02)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    asyncio.run(scenario())


def failed_federation(folder: Path, known: Receiver) -> Federation:
    filled = fill_study(folder, rounds=2, complete=False)
    filled.ledger.set_study_state("first", StudyState.FAILED, reason="the disk is full")
    federation = filled.federation
    return replace(federation, config=replace(federation.config, alerts=AlertSettings(webhook=known.address)))


def test_a_failed_study_arrives_at_the_webhook_after_it_was_refused_twice(tmp_path: Path,
                                                                          caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as known, caplog.at_level(logging.INFO):
        known.statuses = [503, 500]
        federation = failed_federation(tmp_path / "hub", known)
        telling(federation, lambda: bool(known.taken))
        body = known.taken[0]
        since = body.pop("since")
        assert abs(time.time() - datetime.fromisoformat(since).timestamp()) < 600
        assert body.pop("time") >= since
        assert body.pop("id").startswith("study_failed/first/")
        assert body == {
            "version": 1, "federation": "lung-federation", "state": "open", "kind": "study_failed",
            "severity": "critical", "title": "first has failed", "detail": "the disk is full",
            "remedy": "Remove the cause, then: coordinator queue first.", "study": "first", "silo": "",
            "page": "http://127.0.0.1:8080",
            "text": "lung-federation: first has failed. the disk is full Remove the cause, then: coordinator queue"
                    " first."}
        assert known.paths == ["/hooks/abc"] * 3
        assert caplog.text.count("could not be sent") == 1
        assert "hooks" not in caplog.text
        telling(federation, lambda: bool(json.loads((federation.folder / "alerts.json").read_text())["open"]))
        assert len(known.taken) == 1, "after a restart it is not told again"


def test_one_that_the_receiver_does_not_want_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as known:
        known.statuses = [400]
        telling(failed_federation(tmp_path / "hub", known), lambda: "is dropped" in caplog.text)
        assert known.taken == []


def test_an_address_that_never_answers_keeps_nothing_from_ending(tmp_path: Path) -> None:
    """The loop goes on looking while a post hangs, and ends at once when it is cancelled."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        known = Receiver()
        known.address = f"http://127.0.0.1:{deaf.getsockname()[1]}/x"
        federation = failed_federation(tmp_path / "hub", known)
        begun = time.monotonic()
        telling(federation, (federation.folder / "alerts.json").exists)
        assert time.monotonic() - begun < 9, "a post gives up after ten seconds"


def test_an_answer_that_never_ends_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    """Each byte of it began the ten seconds of a post anew: no alert was sent any more, and no line said so."""
    import socket
    import threading

    monkeypatch.setattr(delivery_module, "_POST_SECONDS", 0.3)
    asked, stop = [], threading.Event()

    def trickle(taken: socket.socket) -> None:
        with taken, contextlib.suppress(OSError):
            taken.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not stop.wait(0.02):
                taken.sendall(b"x")

    def serve(tarpit: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = tarpit.accept()
                asked.append(threading.Thread(target=trickle, args=(taken,)))
                asked[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as tarpit:
        serving = threading.Thread(target=serve, args=(tarpit,), daemon=True)
        serving.start()
        known = Receiver()
        known.address = f"http://127.0.0.1:{tarpit.getsockname()[1]}/x"
        try:
            telling(failed_federation(tmp_path / "hub", known), lambda: len(asked) >= 2)
            monkeypatch.setattr(delivery_module, "_MOST_POSTS", 2)
            with pytest.raises(WebhookFailed, match="2 answers have begun and do not end"):
                asyncio.run(delivery_module._posted(known.address, b"{}"))
            assert len(asked) == 2, "nor does every try leave a thread behind, for good"
        finally:
            stop.set()
            tarpit.shutdown(socket.SHUT_RDWR)
            serving.join()
            for each in asked:
                each.join()
    assert "the answer was not there after" in caplog.text


def test_an_address_that_is_away_for_weeks_does_not_end_the_loop(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """After 1024 failures in a row, a week of pauses of ten minutes, two to that power was no float any more: the error
    ended `coordinator serve`."""
    failures = 0

    async def fails(address: str, body: bytes) -> None:
        nonlocal failures
        failures += 1
        raise WebhookFailed("hub: Connection refused.", again=True)

    monkeypatch.setattr(delivery_module, "_posted", fails)
    monkeypatch.setattr(delivery_module, "open_alerts", lambda *words, **named: (FAILED,))
    federation = failed_federation(tmp_path / "hub", Receiver())
    telling(federation, lambda: failures > 1030, look_seconds=0.0, first_pause_seconds=0.0)
    assert caplog.text.count("could not be sent") == 1


def test_an_error_of_the_program_is_said_once_and_alerts_are_told_once_it_is_gone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    def wrong(*words: object, **named: object) -> tuple[Alert, ...]:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise KeyError("nobody foresaw this")
        return (FAILED,)

    monkeypatch.setattr(delivery_module, "open_alerts", wrong)
    with receiver() as known:
        telling(failed_federation(tmp_path / "hub", known), lambda: bool(known.taken))
    lines = [record for record in caplog.records if "cannot be found out now" in record.getMessage()]
    assert [bool(record.exc_info) for record in lines] == [True]
