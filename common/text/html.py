"""HTML from Jinja2 templates, in which every value is escaped.

A template lies beside the module that renders it and bears its name: `page.py` renders `page.html.j2`.
Templates of this folder are there for all: `html_document.html.j2` is the frame of a whole page.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Table", "png_address", "render_html"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page: what stands in its cells, as text."""

    caption: str
    """What it shows, for those who do not see it."""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """First columns that are text; the others are numbers."""
    totals: Sequence[Sequence[str]] = ()
    """Rows at its foot."""


def render_html(module: str, page: object) -> str:
    """Fills a module's template.

    Args:
        module: its `__name__`; the template lies in its package, also in a wheel.
        page: what the template calls `page`, usually a frozen dataclass. All of its text is escaped.
    Raises: jinja2.UndefinedError where the template names something that the page does not have.
    """
    package, _, name = module.rpartition(".")
    return _environment(package).get_template(f"{name}.html.j2").render(page=page)


def png_address(png: bytes) -> str:
    """A picture itself, as a data: address, so that a page needs no file beside it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


@cache
def _environment(package: str) -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined  # few commands write a page

    # The names of packages come from the modules themselves, so that a package may move.
    loader = ChoiceLoader([PackageLoader(each, "") for each in dict.fromkeys((package, __name__.rpartition(".")[0]))])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
