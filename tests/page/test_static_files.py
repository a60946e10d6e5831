"""What the pages are made of: nothing from elsewhere, nothing inline, every file that is named is there. No browser."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from semisilo.common.page.requests import SHARED
from tests.page.kit import SILO_STATIC, STATIC

PAGES = (STATIC, SILO_STATIC)
SCRIPTS = sorted(script for folder in (SHARED, *PAGES) for script in (folder / "js").rglob("*.js"))
STYLES = sorted(style for folder in (SHARED, *PAGES) for style in (folder / "css").glob("*.css"))
every_page = pytest.mark.parametrize("own", PAGES, ids=lambda folder: folder.parts[-3])


def served(own: Path, name: str) -> bool:
    """Whether a page with these files of its own has one of that name."""
    return any((folder / name).is_file() for folder in (own, SHARED))


class Markup(HTMLParser):
    """Collects what the page's policy forbids, and what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.refers: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self._open = tag
        self.inline += [f"<{tag} {name}>" for name in names if name == "style" or name.startswith("on")]
        self.refers += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style") and data.strip():
            self.inline.append(f"<{self._open}> with text")


@every_page
def test_the_markup_has_nothing_inline_and_names_only_files_that_are_there(own: Path) -> None:
    markup = Markup()
    markup.feed((own / "index.html").read_text(encoding="utf-8"))
    assert markup.inline == []
    files = [name for name in markup.refers if not name.startswith("#")]
    assert len(files) >= 6
    for name in files:
        assert name.startswith("/static/"), name
        assert served(own, name.removeprefix("/static/")), name


def test_the_markup_check_sees_what_is_inline() -> None:
    markup = Markup()
    markup.feed('<p style="color: red" onclick="go()"><script>go()</script>')
    assert len(markup.inline) == 3


@every_page
def test_scripts_import_only_files_that_are_there(own: Path) -> None:
    seen = 0
    for folder in (own, SHARED):
        for script in (folder / "js").rglob("*.js"):
            for name in re.findall(r'^(?:import|export .* from|\} from) .*?"([^"]+)";$', script.read_text(),
                                   re.MULTILINE):
                assert name.startswith("."), f"{script.name}: {name}"
                at = os.path.normpath(script.parent.relative_to(folder) / name)
                assert served(own, at), f"{script.name}: {name}"
                seen += 1
    assert seen > 40


@every_page
def test_a_page_has_no_file_of_its_own_in_the_place_of_a_shared_one(own: Path) -> None:
    shared = {path.relative_to(SHARED) for path in SHARED.rglob("*") if path.is_file()}
    assert shared & {path.relative_to(own) for path in own.rglob("*") if path.is_file()} == set()


def test_nothing_is_fetched_from_elsewhere_or_made_of_text() -> None:
    """Addresses of others, evaluation of text, and markup from strings."""
    for path in (*SCRIPTS, *STYLES):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        for forbidden in ("http://", "https://", "//cdn", "data:image", "data:text", "innerHTML", "outerHTML",
                          "insertAdjacentHTML", "document.write", "eval(", "new Function",
                          'setAttribute("style"', "@import"):
            assert forbidden not in text, f"{path.name}: {forbidden}"


def test_styles_name_only_files_that_are_there_and_colours_that_are_defined() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    for name in re.findall(r'url\("([^"]+)"\)', text):
        assert (SHARED / name.removeprefix("/static/")).is_file(), name
    used, defined = set(re.findall(r"var\((--[a-z-]+)\)", text)), set(re.findall(r"(--[a-z-]+):", text))
    assert used - defined == {"--row", "--head", "--name", "--share"}, "these are set by scripts"


def test_both_ways_to_darkness_are_the_same() -> None:
    """The system's choice and the operator's must give one picture."""
    text = (SHARED / "css" / "base.css").read_text(encoding="utf-8")
    system = text.split(':root:not([data-theme="light"]) {')[1].split("}")[0]
    chosen = text.split(':root[data-theme="dark"] {')[1].split("}")[0]
    assert system.split() == chosen.split()


def test_the_font_comes_with_its_licence() -> None:
    assert "SIL Open Font License" in (SHARED / "fonts" / "LICENSE-IBM-Plex-Sans.txt").read_text()
    assert len(list((SHARED / "fonts").glob("*.woff2"))) == 2


@every_page
def test_the_page_is_small(own: Path) -> None:
    """It is served by a machine that has better things to do."""
    assert sum(path.stat().st_size for folder in (own, SHARED) for path in folder.rglob("*")
               if path.is_file()) < 400_000
