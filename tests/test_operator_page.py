"""The operator page of a real `coordinator serve` with real silos: what it streams, and what its actions do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semisilo.coordinator.federation.folder import create_federation, open_federation
from tests.processes import PATIENCE_SECONDS, STUDY, FederationOfProcesses, federation

LONG = STUDY.replace("rounds = 3", "rounds = 500")


class Browser:
    """Listens to the stream and asks for what the page shows."""

    def __init__(self, processes: FederationOfProcesses) -> None:
        self.address = json.loads(processes.coordinator("page", "--json"))["address"]
        self.token = processes.coordinator("page", "--token").strip()
        self.client = httpx.Client(base_url=self.address, timeout=PATIENCE_SECONDS, trust_env=False)
        self.heard: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with httpx.stream("GET", f"{self.address}/api/stream", timeout=PATIENCE_SECONDS, trust_env=False) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.heard.append(json.loads(line[6:]))

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def act(self, name: str, **body: Any) -> Any:
        answer = self.client.post(f"/api/actions/{name}", json=body, headers={"authorization": f"Bearer {self.token}"})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[FederationOfProcesses]:
    """A long study in its first rounds."""
    with federation(tmp_path, study=LONG, page=True) as processes:
        processes.start()
        processes.wait_for(lambda: bool(processes.query("SELECT 1 FROM round WHERE number > 0")))
        yield processes


def until(condition: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.05)


def waits_for(browser: Browser, silo: str, seconds: float = 2) -> bool:
    """The open round waits for that silo alone, and goes on doing so: nothing that it had sent is still on its way."""
    first = browser.get("/api/studies/first")["open_round"]
    if not first or first["waiting_for"] != [silo]:
        return False
    time.sleep(seconds)
    later = browser.get("/api/studies/first")["open_round"]
    return bool(later) and (later["number"], later["waiting_for"]) == (first["number"], [silo])


@pytest.mark.slow
def test_a_study_is_followed_paused_extended_resumed_and_stopped_from_the_page(
        running: FederationOfProcesses) -> None:
    browser = Browser(running)
    until(lambda: browser.heard)

    # Rounds come by without asking, and the revision says when to ask again.
    first = browser.heard[0]
    until(lambda: browser.heard[-1]["live"]["round"] > first["live"]["round"])
    assert browser.heard[-1]["revision"] > first["revision"]
    found = browser.get("/api/federation")
    assert found["serving"]
    assert not found["read_only"]
    assert found["live"]["study"] == "first"
    assert {silo["state"] for silo in found["silos"]} <= {"connected", "working"}
    assert all(silo["bytes_today_down"] > 0 for silo in found["silos"])
    assert found["revision"] >= browser.heard[0]["revision"]

    # One silo hangs: the round waits for it, and its deadline can be moved on.
    beta = running.running["beta"].pid
    os.killpg(beta, signal.SIGSTOP)
    until(lambda: waits_for(browser, "beta"))
    deadline = browser.get("/api/studies/first")["open_round"]["deadline_unix"]
    assert browser.act("extend", study="first", seconds=600)["deadline_unix"] == pytest.approx(deadline + 600)
    assert browser.get("/api/studies/first")["open_round"]["deadline_unix"] == pytest.approx(deadline + 600)
    until(lambda: browser.heard[-1]["live"]["deadline_unix"] == pytest.approx(deadline + 600))
    os.killpg(beta, signal.SIGCONT)

    # Paused: told within a second or so, and no round comes any more.
    assert browser.act("pause", study="first")["state"] == "paused"
    until(lambda: browser.heard[-1]["live"]["reason"] == "paused")
    until(lambda: browser.get("/api/studies/first")["state"] == "paused")
    time.sleep(1)
    number = browser.get("/api/studies/first")["rounds"][-1]["number"]
    time.sleep(1.5)
    paused = browser.get("/api/studies/first")
    assert paused["rounds"][-1]["number"] == number
    until(lambda: "paused" in silo_status(running, "alpha"))

    # The command and the page are one: the page paused, the command resumes.
    running.coordinator("resume")
    until(lambda: browser.get("/api/studies/first")["rounds"][-1]["number"] > number)

    # Stopped: silos end by themselves, since they were told to leave with the study.
    browser.act("stop", study="first")
    stopped = time.monotonic()
    until(lambda: not running.query("SELECT 1 FROM task WHERE state = 'open'"))
    for name in ("alpha", "beta", "coordinator"):
        assert running.running.pop(name).wait(PATIENCE_SECONDS) == 0, running.log(name)
    assert time.monotonic() - stopped < PATIENCE_SECONDS
    model = running.hub / "studies" / "first" / "model.safetensors"
    assert model.stat().st_size > 1000
    assert running.query("SELECT state FROM study") == [("stopped",)]
    assert running.query("SELECT count(*) FROM round WHERE state NOT IN ('completed', 'cancelled')") == [(0,)]
    origins = dict(running.query("SELECT kind, json_extract(detail_json, '$.origin') FROM event WHERE kind IN"
                                 " ('study_paused', 'study_stopped')"))
    assert origins == {"study_paused": "page", "study_stopped": "page"}

    # Without `serve`, the same study on a page that only reads.
    with over(running) as address:
        assert httpx.get(f"{address}/api/studies/first", trust_env=False).json()["state"] == "stopped"
        refused = httpx.post(f"{address}/api/actions/stop", json={}, trust_env=False,
                             headers={"authorization": f"Bearer {browser.token}"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "READ_ONLY")


def silo_status(processes: FederationOfProcesses, silo: str) -> str:
    return (processes.folder / silo / "status.json").read_text()


def over(processes: FederationOfProcesses) -> Any:
    """`coordinator page first` while the block lasts; its address."""
    @contextlib.contextmanager
    def shown() -> Iterator[str]:
        log = processes.folder / "page.log"
        processes._start("page", "semisilo.coordinator.cli.main", "page", "first", "--folder", str(processes.hub),
                         crash="")
        until(lambda: "http://" in (log.read_text() if log.exists() else ""))
        address, _, route = log.read_text().strip().partition("/#")
        assert route == "/study/first"
        yield address
        page = processes.running.pop("page")
        page.send_signal(signal.SIGINT)
        assert page.wait(PATIENCE_SECONDS) == 0
    return shown()


@pytest.mark.slow
def test_a_taken_port_costs_a_line_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, federation(tmp_path, page=True) as processes:
        port = taken.getsockname()[1]
        path = processes.hub / "federation.toml"
        path.write_text(path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        processes.serve()
        processes.enroll("alpha")  # so it serves
        processes.wait_for(lambda: processes.query("SELECT state FROM study") == [("waiting",)])
        log = processes.log("coordinator")
    assert log.count("there is no operator page") == 1
    assert f"Another process listens on 127.0.0.1:{port}" in log
    assert "[page] listen" in log


def test_a_page_that_silos_cannot_see_is_the_default_and_the_live_file_names_it(tmp_path: Path) -> None:
    federation = create_federation(tmp_path / "hub", name="lung", address="hub.example:8443")
    assert federation.config.page.listen == "127.0.0.1:8080"
    text = (tmp_path / "hub" / "federation.toml").read_text()
    (tmp_path / "hub" / "federation.toml").write_text(text.split("[page]")[0])
    assert open_federation(tmp_path / "hub").config.page.listen == "127.0.0.1:8080"
