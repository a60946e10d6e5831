"""What a silo's page tells, to whom, and what it lets them do: asked over HTTP, over a real home."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from semisilo.common.page.requests import TOKEN_SHOWN
from semisilo.common.process.account import account
from semisilo.silo import page
from semisilo.silo.page.routes import silo_page_app
from semisilo.silo.site.disclosures import KINDS, KINDS_IN_WORDS, Disclosure, DisclosureLog
from semisilo.silo.site.home import SiloHome, StatusFile
from semisilo.silo.study_cards.book import CardBook
from tests.processes import run_command
from tests.silo.page.home_kit import SECRET, TOKEN, Page, asking, filled_home

READINGS = ("/", "/health", "/api/silo", "/api/studies", "/api/studies/s", "/api/left", "/api/disclosures",
            "/api/disclosures.csv", "/api/disclosures.json", "/api/asked", "/api/asked?steps=1", "/api/evaluations",
            "/api/policy", "/api/trust", "/static/js/app.js", "/static/js/dom.js", "/static/css/base.css")
PRIVATE = ("/api/silo", "/api/studies", "/api/asked", "/api/policy", "/api/trust")
"""Whose answers may name files of the site."""


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> SiloHome:
    """For tests that change nothing."""
    return filled_home(tmp_path_factory.mktemp("still") / "home")


@pytest.fixture
def home(still: SiloHome, tmp_path: Path) -> SiloHome:
    """A copy that may be changed."""
    shutil.copytree(still.folder, tmp_path / "home", symlinks=True)
    return SiloHome(tmp_path / "home")


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def contents(folder: Path) -> Mapping[str, tuple[int, bytes]]:
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(folder.rglob("*")) if path.is_file()}


# What it tells --------------------------------------------------------------------------------------------------------


def test_the_silo_at_a_glance_is_what_its_files_say(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        here = await page.get("/api/silo", token=TOKEN)
        assert (here["silo"], here["federation"], here["address"]) == ("hospital-a", "lung", "hub.example:8443")
        certificate = here["certificate"]
        assert certificate["not_after_unix"] - here["now_unix"] == pytest.approx(30 * 86_400, abs=600)
        agent = here["agent"]
        assert (agent["running"], agent["state"], agent["stage"]) == (False, "stopped", "")
        assert (agent["labelled_count"], agent["unlabelled_count"], agent["tasks_answered"]) == (30, 300, 5)
        assert (here["budget"]["limit_bytes"], here["budget"]["used_bytes"]) == (60_000_000, 3_000)
        assert (here["privacy"]["epsilon"], here["privacy"]["max_epsilon"]) == (1.5, 8.0)
        assert here["privacy"]["studies"] == {"s": 1.25}, "not what another federation's study of its name has spent"
        assert here["evaluation"]["accuracy"]["value"] == pytest.approx(40 / 50)
        assert (here["last_disclosure"]["kind"], here["last_disclosure"]["bytes"]) == ("update", 200_000)
        assert (here["waiting"], here["audit_problems"]) == (["s"], 0)
    asking(still, work)


def test_a_study_says_what_is_otherwise_than_it_was_signed_and_what_it_has_cost(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        studies = await page.get("/api/studies")
        (card,) = studies["studies"]
        assert studies["approval"] is True
        assert (card["state"], card["changed"], card["earlier"]) == ("waiting", "rounds: 3 is now 9", 1)
        assert (card["epsilon"], card["lines"], card["bytes"]) == (1.25, 2, 300_000)
        detail = await page.get("/api/studies/s")
        assert detail["card"]["rounds"] == 9
        assert ["settings", "local_epochs", "5"] in detail["settings"]
    asking(still, work)


def test_what_left_adds_up_by_day_study_and_kind_beside_what_the_wire_carried(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        left = await page.get("/api/left")
        assert {each["name"]: (each["lines"], each["bytes"]) for each in left["record"]["kinds"]} == {
            "enrolment": (1, 252), "update": (2, 300_000)}
        assert {each["name"]: each["bytes"] for each in left["record"]["studies"]} == {"": 252, "s": 300_000}
        assert sum(day["bytes"] for day in left["record"]["days"]) == 300_252
        carried = [(day["sent_bytes"], day["received_bytes"]) for day in left["days"]]
        assert carried == [(70_000, 80_000), (1_000, 2_000)]
        assert left["limit_bytes"] == 60_000_000
        lines = await page.get("/api/disclosures?study=s&limit=1")
        assert [(line["round"], line["digest"]) for line in lines["lines"]] == [(2, f"{2:064x}")]
        older = await page.get(f"/api/disclosures?study=s&limit=1&before={lines['before']}")
        assert ([line["round"] for line in older["lines"]], older["before"]) == ([1], 0)
    asking(still, work)


def test_what_was_asked_comes_with_settings_and_answer(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        asked = await page.get("/api/asked", token=TOKEN)
        assert [(task["round"], task["outcome"], task["code"], task["text"]) for task in asked["tasks"]] == [
            (2, "refused", "BAD_DATA", SECRET), (1, "updated", "", "sent")]
        assert (asked["tasks"][0]["settings"], asked["tasks"][0]["download_bytes"]) == ({"local_epochs": 5}, 7)
        assert (await page.get("/api/asked?study=other"))["total"] == 0
    asking(still, work)


def test_peers_and_the_audit_trail_are_checked(home: SiloHome) -> None:
    async def work(page: Page) -> None:
        trust = await page.get("/api/trust")
        assert [(peer["silo"], peer["state"]) for peer in trust["peers"]] == [("hospital-a", "this silo"),
                                                                            ("clinic-b", "seen")]
        assert (trust["audit"]["heads"], trust["audit"]["problems"]) == (2, [])
        lines = home.heads.read_text().splitlines()
        home.heads.write_text("\n".join(reversed(lines)) + "\n")  # as of a trail that was cut
    asking(home, work)

    async def again(page: Page) -> None:
        assert len((await page.get("/api/trust"))["audit"]["problems"]) >= 1
    asking(home, again)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_the_record_as_a_file_is_what_the_command_writes(still: SiloHome, form: str) -> None:
    words = ("--csv", "-") if form == "csv" else ("--json",)

    async def work(page: Page) -> None:
        for query, options in (("", ()), ("?study=s", ("--study", "s")), ("?kind=update", ("--kind", "update"))):
            answer = await page.client.get(f"/api/disclosures.{form}{query}")
            assert answer.headers["content-disposition"] == f'attachment; filename="disclosures.{form}"'
            status, out, _ = run_command("semisilo.silo.cli.main", "disclosures", "--home", str(still.folder), *words,
                                         *options)
            assert status == 0
            if form == "csv":
                assert answer.text == out
            else:
                assert {**answer.json(), "record": ""} == {**json.loads(out), "record": ""}
    asking(still, work)


# Beside a running agent -----------------------------------------------------------------------------------------------


def test_looking_changes_nothing_in_the_folder(still: SiloHome) -> None:
    before = contents(still.folder)

    async def work(page: Page) -> None:
        for path in READINGS:
            assert (await page.client.get(path, headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200, path
    asking(still, work)
    assert contents(still.folder) == before


def test_looking_at_a_folder_of_which_hardly_anything_is_there_makes_nothing_either(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    async def work(page: Page) -> None:
        for path in READINGS:
            if path != "/api/studies/s":
                assert (await page.client.get(path)).status_code == 200, path
        assert (await page.get("/api/silo"))["enrolled"] is False
        assert (await page.client.get("/api/studies/s")).status_code == 409
    asking(SiloHome(tmp_path), work)
    assert list(tmp_path.iterdir()) == []


def test_looking_makes_no_key_for_a_silo_that_has_enrolled_and_never_joined(home: SiloHome) -> None:
    shutil.rmtree(home.secure)

    async def work(page: Page) -> None:
        assert (await page.get("/api/trust"))["peers"] == []
    asking(home, work)
    assert not home.secure.exists()


def test_it_follows_an_agent_that_runs_and_does_not_keep_one_from_starting(home: SiloHome) -> None:
    async def work(page: Page) -> None:
        for _ in range(20):
            await page.get("/api/silo")
            with home.lock():  # what an agent does when it starts
                page.page._answers.forget()
                agent = (await page.get("/api/silo"))["agent"]
                assert (agent["running"], agent["stage"], agent["stage_fraction"]) == (True, "training", 0.42)
                assert agent["state"] == "s, round 2/3: works on it"
                assert agent["since_unix"] == pytest.approx(time.time(), abs=60)
            page.page._answers.forget()
        assert (await page.get("/api/silo"))["agent"]["running"] is False
    asking(home, work)


def test_a_silo_toml_that_the_running_agent_has_not_read_is_said(home: SiloHome) -> None:
    async def work(page: Page) -> None:
        with home.lock():
            os.utime(home.policy, (time.time() - 60, time.time() - 60))
            assert (await page.get("/api/policy"))["newer"] is False
            os.utime(home.policy, (time.time() + 60, time.time() + 60))
            page.page._answers.forget()
            assert (await page.get("/api/policy"))["newer"] is True
            assert (await page.get("/api/silo"))["policy_newer"] is True
    asking(home, work)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["policy", "status", "day", "days", "evaluations", "asked", "disclosures"])
def test_a_damaged_file_takes_nothing_else_away(home: SiloHome, damage: str) -> None:
    path = getattr(home, damage)
    path.write_bytes(b'{"\xff": [1,\n')

    async def work(page: Page) -> None:
        for reading in READINGS:
            assert (await page.client.get(reading)).status_code == 200, reading
        assert (await page.get("/api/silo"))["silo"] == "hospital-a"
    asking(home, work)


def test_what_is_wrong_with_silo_toml_cards_or_ledger_is_said(home: SiloHome) -> None:
    home.policy.write_text("[permit]\nmethodz = []\n")
    next(home.cards.glob("*.json")).write_text("{")

    async def work(page: Page) -> None:
        here = await page.get("/api/silo", token=TOKEN)
        assert "methodz" in here["policy_error"]
        assert "cannot be read" in here["cards_error"]
        assert (here["hours"], here["budget"]) == (None, None)
        assert "methodz" in (await page.get("/api/policy", token=TOKEN))["error"]
        home.policy.unlink()
        (home.privacy / "spent.jsonl").write_text("{\n")
        page.page._answers.forget()
        assert "is not known" in (await page.get("/api/silo", token=TOKEN))["privacy_error"]
    asking(home, work)


# Who may read and decide ----------------------------------------------------------------------------------------------


def test_what_may_name_files_of_the_site_is_for_who_has_the_token(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        for path in PRIVATE:
            assert SECRET not in (await page.client.get(path)).text, path
            wrong = await page.client.get(path, headers={"authorization": "Bearer wrong"})
            assert SECRET not in wrong.text, path
        here = await page.get("/api/silo")
        assert (here["revealed"], here["agent"]["last_error"], here["agent"]["last_refusal"]) == (False, None, None)
        here = await page.get("/api/silo", token=TOKEN)
        assert (here["revealed"], here["agent"]["last_error"]) == (True, f"{SECRET}: permission denied")
        policy = await page.get("/api/policy", token=TOKEN)
        assert f'source = "{SECRET}"' in policy["text"]
        assert SECRET in json.dumps(policy["rules"])
    asking(still, work)


def test_which_images_are_read_is_for_who_has_the_token(home: SiloHome) -> None:
    StatusFile(home.status).update(now_unix=time.time(), state=f"reading the images of {SECRET}")

    async def work(page: Page) -> None:
        with home.lock():
            assert (await page.get("/api/silo"))["agent"]["state"] == "reading the images"
            assert SECRET in (await page.get("/api/silo", token=TOKEN))["agent"]["state"]
    asking(home, work)


@pytest.mark.parametrize("action", ["approve", "decline"])
def test_without_the_token_nothing_is_decided(still: SiloHome, action: str) -> None:
    async def work(page: Page) -> None:
        digest = (await page.get("/api/studies"))["studies"][0]["digest"]
        for token in ("", "wrong", TOKEN[:-1]):
            answer = await page.decide(action, {"study": "s", "digest": digest}, token=token)
            assert (answer.status_code, code(answer)) == (401, "WRONG_TOKEN")
            assert "silo page --token" in answer.json()["error"]["remedy"]
    asking(still, work)
    entry = CardBook(still.cards).find("s")
    assert entry is not None
    assert entry.state == "waiting"


@pytest.mark.parametrize(("action", "state"), [("approve", "approved"), ("decline", "declined")])
def test_a_decision_is_kept_as_by_the_command_with_who_gave_it(home: SiloHome, action: str, state: str) -> None:
    async def work(page: Page) -> None:
        digest = (await page.get("/api/studies"))["studies"][0]["digest"]
        answer = await page.decide(action, {"study": "s", "digest": digest})
        assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert (await page.get("/api/silo"))["waiting"] == []
        card = (await page.get("/api/studies"))["studies"][0]
        assert (card["state"], card["by"], card["by_policy"]) == (state, f"{account()} (page)", False)
    asking(home, work)
    _, out, _ = run_command("semisilo.silo.cli.main", "studies", "--home", str(home.folder))
    assert f"s: {state} by {account()} (page)" in out


def test_the_last_to_leave_has_the_words_of_the_page_and_no_round_where_there_is_none(home: SiloHome) -> None:
    """ "last to leave: model of s, round 0" read as if a model had left the hospital."""
    DisclosureLog(home.disclosures).record(Disclosure(kind="model", study="s", update_id="m", bytes=40,
                                                      digest="ab" * 32, text="asks for the model"))
    _, out, _ = run_command("semisilo.silo.cli.main", "status", "--home", str(home.folder))
    (line,) = [line for line in out.splitlines() if "last to leave" in line]
    assert "question for a model of s, 40 B" in line
    shown = (Path(page.__file__).parent / "static/js/views/left.js").read_text()
    words = {kind: re.search(rf'\b{kind}: "([^"]+)"', shown) for kind in KINDS}
    assert {kind: found and found[1] for kind, found in words.items()} == {
        kind: KINDS_IN_WORDS.get(kind, kind) for kind in KINDS}


def test_a_study_that_is_over_waits_for_nobody(home: SiloHome) -> None:
    StatusFile(home.status).update(now_unix=time.time(), study="")

    async def work(page: Page) -> None:
        assert (await page.get("/api/silo"))["waiting"] == []
        (card,) = (await page.get("/api/studies"))["studies"]
        assert (card["state"], card["over"]) == ("waiting", True)
    asking(home, work)


def test_a_card_that_nobody_has_looked_at_is_not_approved(home: SiloHome) -> None:
    async def work(page: Page) -> None:
        answer = await page.decide("approve", {"study": "s", "digest": "00" * 32})
        assert (answer.status_code, code(answer)) == (409, "USAGE")
        assert "another card by now" in answer.json()["error"]["text"]
        for body in ({"study": "s"}, {"study": "s", "digest": ""}, {"study": "s", "digest": 7}, ["s"]):
            assert (await page.decide("approve", body)).status_code == 400
        assert (await page.decide("approve", {"study": "nobody", "digest": "00" * 32})).status_code == 409
    asking(home, work)
    entry = CardBook(home.cards).find("s")
    assert entry is not None
    assert entry.state == "waiting"


def test_after_ten_wrong_tokens_only_the_right_one_is_heard(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        for _ in range(10):
            assert (await page.decide("approve", {}, token="wrong")).status_code == 401
        answer = await page.decide("approve", {}, token="wrong")
        assert (answer.status_code, code(answer)) == (429, "TOO_MANY_TOKENS")
        assert (await page.client.post("/api/session", json={"token": TOKEN})).json() == {"valid": True}
    asking(still, work)


def test_a_connection_is_told_when_the_token_was_shown_on_it_and_not_before(still: SiloHome) -> None:
    """What that is good for: `tests/coordinator/page/test_server.py`."""
    shown: list[bool] = []

    async def work(page: Page) -> None:
        app = silo_page_app(page.page, listen_host="127.0.0.1")

        async def on_a_connection(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": {TOKEN_SHOWN: lambda: shown.append(True)}}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(on_a_connection),
                                     base_url="http://127.0.0.1:8090") as client:
            for token in ("", "wrong", TOKEN):
                assert not shown
                await client.get("/api/trust", headers={"authorization": f"Bearer {token}"})
    asking(still, work)
    assert shown == [True]


def test_other_names_other_sites_and_other_methods_get_nothing(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        client = page.client
        rebound = await client.get("/api/silo", headers={"host": "evil.example:8090"})
        assert (rebound.status_code, code(rebound)) == (403, "UNKNOWN_HOST")
        assert "silo page --host" in rebound.json()["error"]["remedy"]
        other = await client.post("/api/actions/approve", json={}, headers={"origin": "http://evil.example"})
        assert (other.status_code, code(other)) == (403, "OTHER_ORIGIN")
        form = await client.post("/api/actions/approve", data={"study": "s"}, headers={
            "authorization": f"Bearer {TOKEN}"})
        assert (form.status_code, code(form)) == (415, "NOT_JSON")
        assert (await client.get("/api/actions/approve")).status_code == 405
        assert (await client.get("/api/disclosures?secret=1")).status_code == 400
        answer = await client.get("/")
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        for path in ("/static/../routes.py", "/static/%2e%2e/routes.py", "/page.token"):
            assert (await client.get(path)).status_code == 404
    asking(still, work)


def test_a_name_that_was_given_is_served(still: SiloHome) -> None:
    async def work(page: Page) -> None:
        assert (await page.client.get("/health", headers={"host": "silo.hospital.example"})).status_code == 200
    asking(still, work, hosts=("silo.hospital.example",))
