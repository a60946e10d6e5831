"""Who may do what on the page: hosts, tokens, bodies, and what hostile requests get."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semisilo.common.errors import BadConfiguration, SemisiloError
from semisilo.common.page.guard import MOST_BODY_BYTES, host_of, is_local
from semisilo.common.page.token import TokenGate, is_token, page_token
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.ledger_fixture import SILOS, Filled, fill_study
from tests.coordinator.page.page_kit import TOKEN, Page, asking
from tests.each_of import each_of

ACTIONS = {"pause": {"study": "first"}, "resume": {"study": "first"}, "stop": {"study": "first"},
           "extend": {"study": "first", "seconds": 60}, "invite": {"silo": "hospital-z"}, "revoke": {"silo": SILOS[0]},
           "set-aside": {"silo": SILOS[0]}, "take-back": {"silo": SILOS[0]}, "rollback": {"study": "first", "to": 1}}


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "hub", done=3, collecting=True)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """The same for all tests that only ask, or ask for what is refused. None of them changes it."""
    filled = fill_study(tmp_path_factory.mktemp("still") / "hub", done=3, collecting=True)
    before = filled.ledger.last_event()
    yield filled
    assert filled.ledger.last_event() == before


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def last_event(filled: Filled) -> dict[str, Any]:
    row = filled.ledger.query("SELECT kind, detail_json FROM event ORDER BY number DESC LIMIT 1")[0]
    return {"kind": row["kind"], **json.loads(row["detail_json"])}


# Actions --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS)
def test_without_the_token_no_action_is_done(filled: Filled, name: str) -> None:
    async def work(page: Page) -> None:
        for token in ("", "wrong", TOKEN[:-1], TOKEN + "x"):
            before = last_event(filled)
            answer = await page.act(name, ACTIONS[name], token=token)
            assert (answer.status_code, code(answer)) == (401, "WRONG_TOKEN")
            assert last_event(filled) == before
        assert not page.acted
    asking(filled, work)


def test_pause_extend_resume_and_stop_do_what_they_say(filled: Filled) -> None:
    ledger = filled.ledger

    async def work(page: Page) -> None:
        paused = await page.act("pause", {"study": "first"})
        assert paused.json() == {"study": "first", "state": "paused"}
        assert last_event(filled) == {"kind": "study_paused", "origin": "page", "by": "page token",
                                          "before": "running", "reason": ""}
        study = await page.get("/api/studies/first")
        assert study["state"] == "paused"
        assert study["paused_unix"] is not None
        again = await page.act("pause", {"study": "first"})
        assert (again.status_code, code(again)) == (409, "USAGE")
        assert "resume" in again.json()["error"]["remedy"]
        before = ledger.phase("first", 4, 0).deadline_unix
        moved = await page.act("extend", {"study": "first", "seconds": 90})
        assert moved.json()["deadline_unix"] == pytest.approx(before + 90)
        assert ledger.phase("first", 4, 0).deadline_unix == pytest.approx(before + 90)
        assert (await page.act("resume", {"study": "first"})).json()["state"] == "running"
        assert (await page.act("stop", {"study": "first"})).json()["state"] == "stopped"
        assert ledger.study_state("first") is StudyState.STOPPED
        assert len(page.acted) == 5
    asking(filled, work)


@pytest.mark.parametrize("study", ["\\ud800", "a\\u0000b", "first\\n"])
def test_text_that_is_none_is_refused_in_one_line(still: Filled, study: str) -> None:
    async def work(page: Page) -> None:
        answer = await page.client.post("/api/actions/pause", content=f'{{"study":"{study}"}}', headers={
            "authorization": f"Bearer {TOKEN}", "content-type": "application/json"})
        assert (answer.status_code, code(answer)) == (400, "WRONG_FIELD")
    asking(still, work)


def test_a_silo_is_invited_and_revoked(filled: Filled) -> None:
    from semisilo.coordinator.federation.authority import create_authority
    create_authority(filled.federation.authority, filled.federation.name, now=1.0)

    async def work(page: Page) -> None:
        invited = await page.act("invite", {"silo": "hospital-z", "life": "2h"})
        facts = invited.json()
        assert facts["line"].startswith("semisilo-invite-v1.")
        assert last_event(filled)["origin"] == "page"
        (open_one,) = (await page.get("/api/federation"))["invitations"]
        assert (open_one["silo"], open_one["expires_unix"]) == ("hospital-z", pytest.approx(facts["expires_unix"]))
        assert facts["line"] not in filled.ledger.path.with_name("ledger.sqlite-wal").read_bytes().decode("latin-1")
        assert (await page.act("revoke", {"silo": SILOS[0]})).json() == {"silo": SILOS[0], "state": "revoked"}
        assert (await page.get("/api/federation"))["silos"][0]["state"] == "revoked"
        unknown = await page.act("revoke", {"silo": "nobody"})
        assert (unknown.status_code, code(unknown)) == (404, "UNKNOWN_NAME")
        bad = await page.act("invite", {"silo": "../<b>"})
        assert bad.status_code in (400, 409)
        endless = await page.act("invite", {"silo": "hospital-y", "life": "999d"})
        assert endless.status_code in (400, 409)
    asking(filled, work)


@pytest.mark.parametrize("body", [
    {"seconds": 60, "study": 3}, {"seconds": "60"}, {"seconds": True}, {"seconds": 60, "force": 1}, {}, [], 5,
    {"seconds": 10**400}, {"seconds": 60, "study": "x" * 2000}])
def test_a_body_of_other_fields_or_types_is_refused(still: Filled, body: Any) -> None:
    async def work(page: Page) -> None:
        answer = await page.act("extend", body)
        assert answer.status_code == 400
        assert not page.acted
    asking(still, work)


@pytest.mark.parametrize("seconds", [0, -5, 1e300, 0.5])
def test_a_deadline_moves_by_a_sensible_time_only(still: Filled, seconds: float) -> None:
    async def work(page: Page) -> None:
        assert (await page.act("extend", {"seconds": seconds})).status_code == 409
    asking(still, work)


@pytest.mark.parametrize(("content", "kind", "status"), [
    (b"{", "application/json", 400), (b"[" * 15_000, "application/json", 400), (b"\xff\xfe", "application/json", 400),
    (b'{"study": NaN}', "application/json", 400), (b'{"study": "first"}', "text/plain", 415),
    (b"study=first", "application/x-www-form-urlencoded", 415), (b'{"study": "first"}', "", 415)])
def test_what_is_not_json_is_refused(filled: Filled, content: bytes, kind: str, status: int) -> None:
    async def work(page: Page) -> None:
        answer = await page.client.post("/api/actions/pause", content=content,
                                        headers={"authorization": f"Bearer {TOKEN}", "content-type": kind})
        assert answer.status_code == status
        assert filled.ledger.study_state("first") is StudyState.RUNNING
    asking(filled, work)


def test_a_silo_is_set_aside_and_taken_back_and_a_study_goes_back(filled: Filled) -> None:
    ledger, folder = filled.ledger, filled.federation.studies / "first"
    silo = "hospital-a"
    for row in ledger.rounds("first"):
        file = folder / "states" / f"{row.state_digest}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    async def work(page: Page) -> None:
        done = await page.act("set-aside", {"silo": silo, "reason": "it sends <b>noise</b>"})
        assert done.json() == {"silo": silo, "state": "set aside"}
        line = next(each for each in (await page.get("/api/federation"))["silos"] if each["name"] == silo)
        assert (line["state"], line["set_aside_reason"]) == ("set aside", "it sends <b>noise</b>")
        assert code(await page.act("set-aside", {"silo": silo})) == "USAGE"
        assert (await page.act("take-back", {"silo": silo})).json()["state"] == "joined"
        assert code(await page.act("rollback", {"study": "first", "to": 2})) == "USAGE", "it runs"
        await page.act("pause", {"study": "first"})
        assert code(await page.act("rollback", {"study": "first", "to": 1.5})) == "USAGE"
        back = await page.act("rollback", {"study": "first", "to": 2, "reason": "noise"})
        assert back.json() == {"study": "first", "state": "queued", "round": 2, "gone": [3, 4]}
        study = await page.get("/api/studies/first")
        assert [each["number"] for each in study["rounds"]] == [0, 1, 2]
        (found,) = study["rollbacks"]
        assert (found["to_round"], found["origin"], found["reason"]) == (2, "page", "noise")
        assert [each["number"] for each in found["rounds"]] == [3, 4]
        assert found["rounds"][0]["accuracy"] is not None
    asking(filled, work)


def test_a_page_that_only_reads_acts_for_nobody(filled: Filled) -> None:
    async def work(page: Page) -> None:
        for name, body in ACTIONS.items():
            answer = await page.act(name, body)
            assert (answer.status_code, code(answer)) == (403, "READ_ONLY")
        assert (await page.get("/api/federation"))["read_only"] is True
    asking(filled, work, token=None)


def test_the_token_is_checked_without_a_cookie(filled: Filled) -> None:
    async def work(page: Page) -> None:
        right = await page.client.post("/api/session", json={"token": TOKEN})
        assert (right.status_code, right.json()) == (200, {"valid": True, "by": "page token"})
        assert "set-cookie" not in right.headers
        assert right.headers["cache-control"] == "no-store"
        wrong = await page.client.post("/api/session", json={"token": "no"})
        assert wrong.status_code == 401
        assert TOKEN not in wrong.text
        assert (await page.client.get("/api/session")).status_code == 405
    asking(filled, work)


def test_many_wrong_tokens_are_slowed_down_and_the_right_one_is_always_heard(filled: Filled) -> None:
    async def work(page: Page) -> None:
        statuses = [(await page.client.post("/api/session", json={"token": f"guess {number}"})).status_code
                    for number in range(15)]
        assert statuses == [401] * 10 + [429] * 5
        limited = await page.client.post("/api/session", json={"token": "guess again"})
        assert int(limited.headers["retry-after"]) > 0
        assert filled.ledger.study_state("first") is StudyState.RUNNING
        assert (await page.act("pause", {"study": "first"})).status_code == 200
        assert filled.ledger.study_state("first") is StudyState.PAUSED
    asking(filled, work)


def test_a_wrong_guess_is_forgotten_with_time_and_other_addresses_are_not_affected() -> None:
    now = [100.0]
    gate = TokenGate(clock=lambda: now[0])
    for _ in range(10):
        assert gate.wait_seconds("a") == 0
        gate.wrong("a")
    assert gate.wait_seconds("a") == pytest.approx(6)
    assert gate.wait_seconds("b") == 0
    now[0] += 6
    assert gate.wait_seconds("a") == 0
    for number in range(3000):
        gate.wrong(f"address {number}")
    assert len(gate._wrong) <= 1024


# The token's file -----------------------------------------------------------------------------------------------------


def test_a_token_is_made_once_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "page.token"
    token = page_token(path)
    assert len(token) >= 43
    assert page_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_token(token, token)
    assert not is_token("", token)
    assert not is_token(token + "é" * 1000, token)


def test_a_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "page.token"
    page_token(path)
    path.chmod(0o604)
    with pytest.raises(BadConfiguration, match="every user of this machine can read"):
        page_token(path)


def test_a_token_that_has_the_group_of_a_pods_disk_is_used(tmp_path: Path) -> None:
    """Platforms add 0660 to all files of a disk for the pod's group (fsGroup), as to the private keys beside it."""
    path = tmp_path / "page.token"
    token = page_token(path)
    path.chmod(0o660)
    assert page_token(path) == token


def test_an_empty_token_is_none(tmp_path: Path) -> None:
    path = tmp_path / "page.token"
    path.write_text("")
    path.chmod(0o600)
    with pytest.raises(BadConfiguration, match="holds no token"):
        page_token(path)


@pytest.mark.parametrize("content", [bytes(44), b"\xff\xfe" * 22, b"a\0" * 22],
                         ids=["zeros", "no text", "zeros between"])
def test_a_token_that_was_damaged_is_none(tmp_path: Path, content: bytes) -> None:
    """One of zeros was taken, which anybody guesses; of another it was said that this user cannot read it."""
    path = tmp_path / "page.token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadConfiguration, match="holds no token"):
        page_token(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SemisiloError):
        page_token(tmp_path / "page.token")


# Hosts and headers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:9", "[::1]:8080", "page.hub.example"])
def test_known_hosts_are_served(still: Filled, host: str) -> None:
    async def work(page: Page) -> None:
        assert (await page.client.get("/health", headers={"host": host})).status_code == 200
    asking(still, work, hosts=("page.hub.example",))


@each_of("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "",
                                  "10.0.0.7:8080", "[::2]", "evil.example:8080@127.0.0.1"])
@each_of("path", ["/", "/health", "/api/federation", "/metrics", "/static/js/app.js"])
def test_other_hosts_are_not(still: Filled, host: str, path: str) -> None:
    """What DNS rebinding looks like: the browser is at 127.0.0.1, under a name of somebody else's."""
    async def work(page: Page) -> None:
        answer = await page.client.get(path, headers={"host": host})
        assert (answer.status_code, code(answer)) == (403, "UNKNOWN_HOST")
    asking(still, work)


@pytest.mark.parametrize(("host", "status"), [("10.0.0.7:8080", 200), ("[2001:db8::1]", 200), ("hub.example", 403)])
def test_a_page_for_other_machines_goes_by_any_number_but_not_by_any_name(still: Filled, host: str,
                                                                         status: int) -> None:
    async def work(page: Page) -> None:
        assert (await page.client.get("/health", headers={"host": host})).status_code == status
    asking(still, work, listen_host="0.0.0.0")


def test_pages_of_other_sites_may_not_ask(filled: Filled) -> None:
    async def work(page: Page) -> None:
        for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
            answer = await page.client.post("/api/actions/pause", json={"study": "first"},
                                            headers={"authorization": f"Bearer {TOKEN}", "origin": origin})
            assert (answer.status_code, code(answer)) == (403, "OTHER_ORIGIN")
            assert "access-control-allow-origin" not in answer.headers
        own = await page.client.post("/api/session", json={"token": TOKEN}, headers={"origin": "http://localhost:8080"})
        assert own.status_code == 200
    asking(filled, work)


@pytest.mark.parametrize("path", ["/", "/health", "/api/federation", "/nothing", "/static/none.js", "/api/studies/x"])
def test_every_answer_tells_browsers_to_load_and_run_nothing_else(still: Filled, path: str) -> None:
    async def work(page: Page) -> None:
        headers = (await page.client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    asking(still, work)


def test_a_host_is_read_as_a_browser_writes_it() -> None:
    assert [host_of(text) for text in ("A.b:80", "[::1]:80", "[::1]", "a", "")] == ["a.b", "[::1]", "[::1]", "a", ""]
    assert [is_local(host) for host in ("127.0.0.2", "[::1]", "0.0.0.0", "[::]", "hub.example", "localhost")] == [
        True, True, False, False, False, True]


# Hostile requests -----------------------------------------------------------------------------------------------------


def test_a_huge_body_is_refused_before_it_is_read(filled: Filled) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1024

    async def work(page: Page) -> None:
        declared = await page.client.post("/api/session", content=b"x" * (MOST_BODY_BYTES + 1))
        assert (declared.status_code, code(declared)) == (413, "TOO_LARGE")
        lied = await page.client.post("/api/session", content=b"x", headers={"content-length": "-5"})
        assert lied.status_code == 413
        chunked = await page.client.post("/api/session", content=endless(), headers={
            "content-type": "application/json"})
        assert (chunked.status_code, code(chunked)) == (413, "TOO_LARGE")
    asking(filled, work)


@each_of("path", [
    "/static/../token.py", "/static/%2e%2e/token.py", "/static/..%2f..%2fledger.py", "/static//etc/passwd",
    "/static/%00", "/static/", "/static", "/static/....//token.py", "/api/studies/..%2f..%2ffederation.toml",
    "/api/studies/first/rounds/-1", "/api/studies/first/rounds/1e9", "/api/studies/first/rounds/99999999999999999999",
    "/api/studies/first/silos/nobody", "/api/studies/%27%20OR%201=1--", "/api/studies/first/rounds/²", "/api/",
    "/api/events?limit=-1", "/api/events?limit=abc", "/api/events?limit=9999999999999999999999", "/api/events?x=1",
    "/page.token", "/../page.token"])
def test_paths_that_lead_nowhere_are_answered_with_an_error_in_json(still: Filled, path: str) -> None:
    async def work(page: Page) -> None:
        answer = await page.client.get(path)
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]["text"]
    asking(still, work)


def test_only_declared_methods_are_answered(still: Filled) -> None:
    async def work(page: Page) -> None:
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
            answer = await page.client.request(method, "/api/federation")
            assert answer.status_code == 405
            assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}, "RFC 9110, 15.5.6"
        answer = await page.client.get("/api/actions/pause")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    asking(still, work)


def test_a_mistake_of_ours_tells_a_stranger_nothing(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the secret path /srv/x")
    monkeypatch.setattr("semisilo.coordinator.page.reader.PageReader.study", broken)

    async def work(page: Page) -> None:
        answer = await page.client.get("/api/studies/first")
        assert (answer.status_code, code(answer)) == (500, "INTERNAL")
        assert "secret" not in answer.text
    asking(filled, work)


def test_metrics_need_no_token_and_a_ledger_without_a_federation_has_none(filled: Filled) -> None:
    async def with_federation(page: Page) -> None:
        answer = await page.client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "semisilo_" in answer.text

    async def without(page: Page) -> None:
        assert (await page.client.get("/metrics")).status_code == 404
    asking(filled, with_federation)
    asking(filled, without, federation=False)
