"""The page of a silo in a real browser: every view, axe-core, and a study approved by clicks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.page import web_server
from semisilo.silo.page.routes import silo_page_app
from semisilo.silo.page.service import SiloPage
from semisilo.silo.site.home import SiloHome, StatusFile
from semisilo.silo.study_cards.book import CardBook
from tests.page.kit import NARROW, WIDE, Tab, tab, until
from tests.page.test_accessibility import violations
from tests.silo.page.home_kit import SECRET, TOKEN, filled_home

VIEWS = {"#/": "hospital-a", "#/studies": "Studies", "#/study/s": "s", "#/left": "What left",
         "#/asked": "What was asked", "#/rules": "Rules", "#/trust": "Trust"}
LISTEN = "127.0.0.1:0"


@contextlib.contextmanager
def served(home: SiloHome) -> Iterator[str]:
    """The address of a home's page, in a thread of its own."""
    ready, address = threading.Event(), []

    async def run() -> None:
        page = SiloPage(home)
        listening = web_server.bind(LISTEN, setting="", in_use="")
        server = web_server.WebServer(silo_page_app(page, listen_host="127.0.0.1"), listening, listen=LISTEN)
        serving = asyncio.ensure_future(server.serve())
        stop = asyncio.Event()
        address.extend([server.address, lambda: loop.call_soon_threadsafe(stop.set)])
        loop = asyncio.get_running_loop()
        ready.set()
        await stop.wait()
        await server.end(serving)
        await page.close()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(300)
    try:
        yield address[0]
    finally:
        address[1]()
        thread.join(300)
        assert not thread.is_alive()


@pytest.fixture
def home(tmp_path: Path) -> SiloHome:
    return filled_home(tmp_path / "home")


def sign_in(shown: Tab) -> None:
    shown.page.get_by_role("button", name="Sign in", exact=True).click()
    dialog = shown.page.get_by_role("dialog")
    dialog.locator("input[type=password]").fill(TOKEN)
    dialog.get_by_role("button", name="Sign in", exact=True).click()
    dialog.wait_for(state="detached")


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", NARROW), ("light", NARROW)],
                         ids=["light-wide", "dark-narrow", "light-narrow"])
def test_axe_finds_nothing_in_any_view_of_a_silo(scheme: str, viewport: dict[str, int], browser: Any,
                                                 home: SiloHome) -> None:
    with served(home) as address, tab(browser, address, viewport=viewport, scheme=scheme) as shown:
        for view, title in VIEWS.items():
            shown.go(view, title=title)
            for summary in shown.page.locator("summary").all():
                summary.click()
            assert violations(shown, scheme=scheme) == [], view
            assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        shown.go("#/studies", title="Studies")
        shown.page.get_by_role("button", name="Approve").click()
        shown.page.get_by_role("dialog").wait_for()
        assert violations(shown, scheme=scheme) == [], "dialog for the token"


@pytest.mark.slow
def test_a_study_is_approved_by_clicks_and_with_the_token_the_words_are_told(browser: Any, home: SiloHome) -> None:
    with served(home) as address, tab(browser, address) as shown:
        shown.go("#/", title="hospital-a")
        shown.wait_for_text("s waits for a decision")
        assert SECRET not in shown.text()
        sign_in(shown)
        shown.wait_for_text(f"{SECRET}: permission denied")
        shown.go("#/study/s", title="s")
        shown.wait_for_text("rounds: 3 is now 9")
        shown.page.get_by_role("button", name="Approve").click()
        shown.page.get_by_role("button", name="Approve the study").click()
        until(lambda: next(iter(CardBook(home.cards).entries())).state == "approved")
        shown.wait_for_text("signed with its next task")
        shown.go("#/", title="hospital-a")
        shown.wait_for("() => !document.querySelector('main').innerText.includes('waits for a decision')")


@pytest.mark.slow
def test_an_agent_that_was_stopped_while_the_coordinator_was_away_has_not_ended_in_trouble(
        browser: Any, home: SiloHome) -> None:
    with served(home) as address, tab(browser, address) as shown:
        shown.go("#/", title="hospital-a")
        shown.wait_for_text("The agent has ended in trouble")
        StatusFile(home.status).update(now_unix=time.time(), state="stopped; it could not reach the coordinator")
        shown.go("#/studies", title="Studies")
        shown.go("#/", title="hospital-a")
        shown.wait_for_text("Stopped; it could not reach the coordinator")
        assert "The agent has ended in trouble" not in shown.text()


@pytest.mark.slow
def test_a_study_that_is_over_asks_nobody_for_a_decision(browser: Any, home: SiloHome) -> None:
    StatusFile(home.status).update(now_unix=time.time(), study="")
    with served(home) as address, tab(browser, address) as shown:
        shown.go("#/studies", title="Studies")
        shown.wait_for_text("not approved; the study is over")
        assert shown.page.get_by_role("button", name="Approve").count() == 0
