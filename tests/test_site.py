"""The documentation builds as a site without a warning, fetches nothing from elsewhere, and can be read by everyone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page import kit

ROOT = Path(__file__).resolve().parents[1]
_FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)")


pytestmark = pytest.mark.slow
"""Building takes five seconds of the processor, and tests/test_docs.py looks at every link quickly."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a broken link or an unlisted page ends the build."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)], cwd=ROOT,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_and_its_search_works_from_a_disk(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        page = page.relative_to(ROOT / "docs")
        assert (site / page.with_name("index.html" if page.name == "README.md" else f"{page.stem}.html")).is_file()
    assert not list(site.rglob("*.py"))
    assert "confidence_threshold" in (site / "search" / "search_index.js").read_text(encoding="utf-8")


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    found = {(page.name, address) for page in site.rglob("*.html")
             for address in _FETCHED.findall(page.read_text(encoding="utf-8"))}
    assert found == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_problem_of_accessibility_and_the_search_finds_a_setting(site: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with kit.browser() as browser:
        page = browser.new_context(color_scheme=scheme, viewport=kit.WIDE).new_page()
        for name in ("index", "tutorial-one-machine", "methods/semifl", "study", "glossary"):
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_function("() => !document.querySelector('.md-code__nav:not([aria-label])')")
            problems = [(each["id"], [node["html"] for node in each["nodes"]][:3])
                        for each in axe.run(page).response["violations"] if each["impact"] != "minor"]
            assert problems == [], name
        page.locator("input[name=query]").fill("confidence_threshold")
        page.locator(".md-search-result__item").first.wait_for()
        assert "confidence_threshold" in page.locator(".md-search-result__list").inner_text()
