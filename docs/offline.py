"""A hook of the documentation's builder: what the theme would fetch from elsewhere comes from the site itself, and its
search has a name for screen readers."""

from __future__ import annotations

import posixpath
from typing import Any

_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
_SEARCH = 'data-md-component="search" role="dialog"'
_HERE = "vendored/iframe-worker-1.0.4.js"
"""The same script (MIT, its licence beside it): it lets the search run on pages that are opened from a disk."""


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Called by mkdocs with each page's HTML; returns what is written."""
    folder = posixpath.dirname(page.url)
    return _named(output).replace(_ELSEWHERE, posixpath.relpath(_HERE, folder) if folder else _HERE)


def on_post_template(output: str, *, template_name: str, config: Any) -> str:
    """The same for pages that belong to no file, such as 404.html."""
    return _named(output).replace(_ELSEWHERE, _HERE)


def _named(output: str) -> str:
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')
