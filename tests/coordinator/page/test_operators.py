"""Who acts on the page: the page's token, a named operator's, or a proxy's word; each stands with what was done."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from semisilo.common.errors import BadConfiguration
from semisilo.coordinator.federation.folder import PageSettings, open_federation
from semisilo.coordinator.ledger.oversight.operators import add_operator, remove_operator
from semisilo.coordinator.ledger.oversight.rollback import rollbacks_of
from semisilo.coordinator.page.login_proxy import LoginProxy
from tests.coordinator.ledger_fixture import SILOS, Filled, digest, fill_study
from tests.coordinator.page.page_kit import TOKEN, Page, asking

PROXY = LoginProxy(header="X-Forwarded-User", addresses=("10.0.0.5",))


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "hub", done=3, collecting=True)


def by_of_last(filled: Filled) -> object:
    row = filled.ledger.query("SELECT detail_json FROM event ORDER BY number DESC LIMIT 1")[0]
    return json.loads(row["detail_json"]).get("by")


def test_each_token_stands_for_its_owner_in_the_trail(filled: Filled) -> None:
    alice = add_operator(filled.ledger, "alice")

    async def work(page: Page) -> None:
        for token, action, by in ((TOKEN, "pause", "page token"), (alice, "resume", "operator:alice"),
                                  (alice, "pause", "operator:alice")):
            assert (await page.act(action, {}, token=token)).status_code == 200
            assert by_of_last(filled) == by
            session = await page.client.post("/api/session", json={"token": token})
            assert session.json() == {"valid": True, "by": by}
        remove_operator(filled.ledger, "alice")
        assert (await page.act("resume", {}, token=alice)).status_code == 401
    asking(filled, work)


@pytest.mark.parametrize(("trusted", "caller"), [
    ("10.0.0.5", "10.0.0.5"), ("10.0.0.5", "::ffff:10.0.0.5"), ("::ffff:10.0.0.5", "10.0.0.5"),
    ("2001:db8::5", "2001:0db8:0:0:0:0:0:5")])
def test_an_address_is_the_same_however_it_is_written(trusted: str, caller: str) -> None:
    """A socket that listens for IPv6 and IPv4 writes the latter as mapped addresses."""
    proxy = LoginProxy(header="X-User", addresses=(trusted,))
    assert proxy.user(caller, Headers({"X-User": "alice"})) == "alice"
    for other in ("10.0.0.6", "::ffff:10.0.0.6", "::10.0.0.5", "not an address", ""):
        assert proxy.user(other, Headers({"X-User": "alice"})) is None


@pytest.mark.parametrize(("caller", "sent", "said"), [
    ("10.0.0.5", [("x-user", "DOMAIN\\alice")], r"has named 'DOMAIN\\\\alice' in X-User"),
    ("10.0.0.5", [("x-user", "a"), ("x-user", "b")], "has sent 2 headers X-User"),
    ("10.0.0.5", [], "has sent no header X-User"),
    ("10.0.0.9", [("x-user", "alice")], "10.0.0.9 sends the header X-User, and is not in trusted_proxies")])
def test_a_word_that_is_not_taken_is_said_once(caplog: pytest.LogCaptureFixture, caller: str,
                                               sent: list[tuple[str, str]], said: str) -> None:
    proxy = LoginProxy(header="X-User", addresses=("10.0.0.5",))
    headers = Headers(raw=[(name.encode(), value.encode()) for name, value in sent])
    for _ in range(3):
        assert proxy.user(caller, headers) is None
    (record,) = caplog.records
    assert re.search(said, record.getMessage())


def test_nothing_is_said_where_there_is_no_proxy_and_no_header(caplog: pytest.LogCaptureFixture) -> None:
    assert LoginProxy().user("10.0.0.5", Headers({"X-User": "alice"})) is None
    assert LoginProxy(header="X-User", addresses=("10.0.0.5",)).user("10.0.0.9", Headers({})) is None
    assert caplog.records == []


def test_going_back_names_the_operator(filled: Filled) -> None:
    alice = add_operator(filled.ledger, "alice")
    states = filled.federation.studies / "first" / "states"
    states.mkdir(parents=True)
    for number in range(4):
        (states / f"{digest(str(number))}.safetensors").touch()

    async def work(page: Page) -> None:
        assert (await page.act("pause", {}, token=alice)).status_code == 200
        answer = await page.act("rollback", {"study": "first", "to": 1}, token=alice)
        assert answer.status_code == 200, answer.text
        assert rollbacks_of(filled.ledger, "first")[-1].operator == "operator:alice"
    asking(filled, work)


@pytest.mark.parametrize(("caller", "headers", "by"), [
    ("10.0.0.5", {"X-Forwarded-User": "alice@hub.example"}, "proxy:alice@hub.example"),
    ("10.0.0.6", {"X-Forwarded-User": "alice"}, None),  # from elsewhere anybody can write it
    ("10.0.0.6", {"X-Forwarded-User": "alice", "X-Forwarded-For": "10.0.0.5"}, None),
    ("10.0.0.5", {}, None), ("10.0.0.5", {"X-Forwarded-User": ""}, None),
    ("10.0.0.5", {"X-Forwarded-User": "a b"}, None), ("10.0.0.5", {"X-Remote-User": "alice"}, None),
    ("10.0.0.5", [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "mallory")], None)])
def test_a_proxys_word_counts_from_its_own_address_only(filled: Filled, caller: str, headers: Any,
                                                        by: str | None) -> None:
    async def work(page: Page) -> None:
        answer = await page.client.post("/api/actions/pause", json={}, headers=headers)
        asked = await page.client.post("/api/session", json={"token": ""}, headers=headers)
        assert asked.json() == {"valid": by is not None, "by": by or ""}
        assert answer.status_code == (401 if by is None else 200)
        if by is not None:
            assert by_of_last(filled) == by
    asking(filled, work, caller=caller, proxy=PROXY)


def test_without_the_setting_nobodys_word_is_taken(filled: Filled) -> None:
    async def work(page: Page) -> None:
        answer = await page.client.post("/api/actions/pause", json={}, headers={"X-Forwarded-User": "alice"})
        assert answer.status_code == 401
    asking(filled, work)


@pytest.mark.parametrize(("lines", "said"), [
    ('user_header = "X-Forwarded-User"', "belong together"), ('trusted_proxies = ["10.0.0.5"]', "belong together"),
    ('user_header = "X User"\ntrusted_proxies = ["10.0.0.5"]', "not the name of a header"),
    ('user_header = "X-User"\ntrusted_proxies = ["proxy"]', '"proxy" is not an IP address')])
def test_half_a_setting_is_refused(filled: Filled, lines: str, said: str) -> None:
    path = filled.federation.folder / "federation.toml"
    text = path.read_text()
    path.write_text(text.replace("[page]\n", f"[page]\n{lines}\n") if "[page]\n" in text else
                    f"{text}\n[page]\n{lines}\n")
    with pytest.raises(BadConfiguration, match=said):
        open_federation(filled.federation.folder)
    assert PageSettings(user_header="X-User", trusted_proxies=("::1",)).user_header == "X-User"


# Downloads ------------------------------------------------------------------------------------------------------------


def test_the_trail_is_downloaded_whole_or_of_a_study(filled: Filled) -> None:
    async def work(page: Page) -> None:
        whole = await page.client.get("/api/audit.json")
        assert whole.headers["content-disposition"] == 'attachment; filename="audit.json"'
        document = whole.json()
        assert document["complete"] is True
        assert len(document["events"]) == filled.ledger.check_events() > 20
        answer = await page.client.get("/api/audit.csv", params={"study": "first"})
        rows = list(csv.DictReader(answer.text.splitlines()))
        assert {row["study"] for row in rows} == {"first"}
        assert {row["silo"] for row in rows} >= set(SILOS)
        missing = await page.client.get("/api/audit.csv", params={"study": "nobody"})
        assert missing.status_code == 404
        other = await page.client.get("/api/audit.json", params={"silo": SILOS[0]})
        assert (other.status_code, "no parameter 'silo'" in other.text) == (400, True), "else it would be all events"
    asking(filled, work)
