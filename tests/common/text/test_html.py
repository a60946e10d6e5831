"""Pages from templates: every value is escaped, nothing is forgotten, and no markup hides in Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from semisilo.common.text.html import render_html

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("coordinator", "silo", "common", "semisilo")
HOSTILE = "<script>alert('x')</script>\" onload=\"x & y"


@dataclass(frozen=True)
class Page:
    title: str
    address: str = ""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package somewhere else, as ours may be renamed or installed; its module has a template."""
    folder = tmp_path / "elsewhere" / "inner"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "page.html.j2").write_text('{% extends "html_document.html.j2" %}{% block main %}'
                                         '<a href="{{ page.address }}">{{ page.title }}</a>{% endblock %}')
    (folder / "forgetful.html.j2").write_text("{{ page.titel }}")
    monkeypatch.syspath_prepend(tmp_path)
    return "elsewhere.inner"


def test_a_template_lies_beside_its_module_wherever_that_is_and_what_it_shows_is_escaped(room: str) -> None:
    text = render_html(f"{room}.page", Page(HOSTILE, HOSTILE))
    assert text.startswith("<!doctype html>")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 3  # title, attribute, text
    assert re.search(r'<a href="[^"<>]*">[^<>]*</a>', text)
    assert "&amp; y" in text


def test_the_frame_of_a_page_forbids_scripts_and_requests(room: str) -> None:
    text = render_html(f"{room}.page", Page("a"))
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in text


def test_what_a_page_does_not_have_is_an_error_and_not_a_gap(room: str) -> None:
    with pytest.raises(UndefinedError, match="titel"):
        render_html(f"{room}.forgetful", Page("a"))


def test_templates_of_the_product_escape_everything() -> None:
    """Whoever marks a text as safe, or switches escaping off, must change this test."""
    templates = [path for package in PACKAGES for path in (ROOT / package).rglob("*.j2")]
    assert len(templates) >= 7
    for path in templates:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"\|\s*safe|autoescape|Markup|<script", text) == [], path.name


def test_every_template_belongs_to_the_module_beside_it_or_to_all() -> None:
    alone = [str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.html.j2")
             if not path.with_name(path.name.removesuffix(".html.j2") + ".py").is_file()]
    assert sorted(alone) == ["common/text/html_document.html.j2", "common/text/html_pieces.html.j2"]


MARKUP = re.compile(r"</?(div|span|table|tr|td|th|p|h\d|ul|li|section|img|html|style|figure)\b[^<]*>")


def markup_in(text: str) -> list[int]:
    """Lines of a module with a text that holds markup; documentation apart."""
    if not MARKUP.search(text):  # nor has any text in it; most modules end here, and trees take time
        return []
    tree = ast.parse(text)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node.lineno for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
            and MARKUP.search(node.value)]


def test_no_module_of_the_product_holds_markup() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for package in PACKAGES for path in (ROOT / package).rglob("*.py")
             for line in markup_in(path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_control_markup_in_a_module_is_noticed() -> None:
    assert markup_in('"""Makes a <table>."""\nrow = f"<td class=number>{1}</td>"') == [2, 2]
    assert markup_in('"""Makes a <table>."""\nusage = "silo enroll <the line>"') == []


@pytest.mark.slow
def test_modules_that_can_make_a_page_load_the_templates_library_only_when_they_do() -> None:
    code = ("import sys; import semisilo.coordinator.report.page, semisilo.common.text.html as html; "
            "print('jinja2' in sys.modules); html._environment('semisilo.common.text'); print('jinja2' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                          timeout=100)
    assert done.stdout.split() == ["False", "True"]
