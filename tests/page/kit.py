"""A real browser, and the real operator page over a ledger, for tests.

Without Chromium the tests that need it are skipped with the reason: `apt-get install --no-install-recommends chromium`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.federation.folder import Federation, PageSettings
from semisilo.coordinator.page.log_lines import LogLines
from semisilo.coordinator.page.reader import PageSource
from semisilo.coordinator.page.server import PageServer, bind
from semisilo.coordinator.page.service import PageService
from semisilo.coordinator.rounds.live_file import LiveSilo, LiveStatus

TOKEN = "the-token-of-the-operator-of-this-test"
STATIC = Path(__file__).parents[2] / "coordinator" / "page" / "static"
SILO_STATIC = Path(__file__).parents[2] / "silo" / "page" / "static"
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
              "--disable-background-networking", "--disable-component-update", "--disable-sync",
              "--disable-dev-shm-usage"]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium, driven by playwright; skips the test without either."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    path = next((found for name in _CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium here: apt-get install --no-install-recommends chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        try:
            yield started
        finally:
            started.close()


_SHARED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _shared_context(browser: Any) -> Any:
    """What tabs without options of their own share: each context is a person's profile of its own, and to make one
    takes longer than most tests."""
    if browser not in _SHARED:
        _SHARED[browser] = browser.new_context()
        _SHARED[browser].new_page()  # its window stays
    return _SHARED[browser]


class Tab:
    """A page of the browser that remembers everything that went wrong in it."""

    def __init__(self, browser: Any, address: str, *, viewport: dict[str, int] | None = None,
                 scheme: str = "light", **options: Any) -> None:
        self.address = address
        self._alone = bool(options)
        self.context = browser.new_context(**options) if options else _shared_context(browser)
        self.page = self.context.new_page()
        self.page.set_viewport_size(viewport or WIDE)
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_default_timeout(300_000)
        self.problems: list[str] = []
        self.forgiven: tuple[str, ...] = ()
        """What stands in problems that are to be expected, also in those that are reported later."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: None if request.url.startswith(address)
                     else self.problems.append(f"asks someone else: {request.url}"))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text} {message.location}")

    def go(self, view: str, *, title: str = "") -> None:
        """Opens an address within the page and waits until its heading, and the data behind it, are there."""
        if self.page.url.startswith(self.address):
            self.page.evaluate("view => { location.hash = view }", view)
        else:
            self.page.goto(f"{self.address}/{view}")
        self.page.locator("h1", has_text=title).wait_for()
        self.wait_for("() => !document.querySelector('.loading')")

    def text(self, selector: str = "main") -> str:
        """What a person reads there."""
        return str(self.page.locator(selector).first.inner_text())

    def wait_for_text(self, text: str, *, selector: str = "main", seconds: float = 300) -> None:
        """Waits until a text stands there."""
        self.wait_for("([selector, text]) => document.querySelector(selector)?.innerText.includes(text)",
                      [selector, text], seconds=seconds)

    def wait_for(self, function: str, argument: Any = None, *, seconds: float = 300) -> None:
        """Waits until a function of JavaScript is true; playwright's own way needs eval, which the page forbids."""
        until(lambda: bool(self.page.evaluate(function, argument)), seconds=seconds,
              otherwise=lambda: f"{function} {argument}\n{self.text('body')[:3000]}")

    def leave(self) -> None:
        """Closes the tab; the next one finds nothing of it."""
        if self._alone:
            self.context.close()
            return
        if self.page.url.startswith("http"):
            self.page.evaluate("() => localStorage.clear()")
        self.page.close()
        self.context.clear_permissions()
        self.context.clear_cookies()

    def close(self) -> None:
        """Closes the tab, and fails when anything went wrong in it."""
        self.leave()
        problems = [problem for problem in self.problems if not any(words in problem for words in self.forgiven)]
        assert not problems, "\n".join(problems)


@contextlib.contextmanager
def tab(browser: Any, address: str, **options: Any) -> Iterator[Tab]:
    """A tab that is closed, and looked through for errors."""
    opened = Tab(browser, address, **options)
    try:
        yield opened
    except BaseException:
        print("\n".join(opened.problems))
        opened.leave()
        raise
    opened.close()


class LivePage:
    """The operator page of a coordinator that is said to run, in a thread of its own."""

    def __init__(self, federation: Federation, *, read_only: bool = False, serving: bool = True,
                 simulation: bool = False, listen: str = "127.0.0.1:0") -> None:
        """
        Args:
            simulation: as over the folder of one, which has a ledger and nothing else.
        """
        self.said: dict[str, Any] = {"study": "first"}
        """What `coordinator serve` says of itself; a test may change it."""
        self.silos: dict[str, LiveSilo] = {}
        self.logs = LogLines()
        self.connected: tuple[str, ...] = ()
        self._serving = serving
        self._federation, self._read_only = federation, read_only
        self._simulation = simulation
        self._listen = listen
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.address = ""
        self._thread.start()
        assert self._ready.wait(300)

    def _live(self) -> LiveStatus | None:
        if not self._serving:
            return None
        silos = {name: LiveSilo(stage=said.stage, fraction=said.fraction, unix=time.time())
                 for name, said in self.silos.items()}
        return LiveStatus(pid=1, unix=time.time(), connected=self.connected, silos=silos, **self.said)

    async def _run(self) -> None:
        federation = self._federation
        address = "" if self._simulation else federation.config.address.public
        source = PageSource(federation=federation.name, address=address, ledger=federation.ledger,
                            read_only=self._read_only, folder=None if self._simulation else federation.folder)
        service = PageService(source, live=self._live, federation=None if self._simulation else federation,
                              token=None if self._read_only else lambda: TOKEN,
                              logs=None if self._read_only else self.logs)
        settings = PageSettings(listen=self._listen)
        server = PageServer(service, bind(settings.listen), settings)
        self.address = server.address
        self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(server.run())
        self._ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def stop(self) -> None:
        """Ends it as a coordinator that is gone; safe to repeat."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(300)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def live_page(federation: Federation, **options: Any) -> Iterator[LivePage]:
    """A page that leaves nothing behind."""
    page = LivePage(federation, **options)
    try:
        yield page
    finally:
        page.stop()


def until(condition: Callable[[], bool], *, seconds: float = 300,
          otherwise: Callable[[], str] = lambda: "the condition never came true") -> None:
    """Polls until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.05)
