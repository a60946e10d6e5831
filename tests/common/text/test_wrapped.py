"""Lines of facts at 40, 60 and 80 columns, and whole in a pipe."""

from __future__ import annotations

import pytest

from semisilo.common.text.wrapped import fitted, terminal_width, wrapped
from tests.each_of import each_of

TEXT = "until 2026-12-23 20:06:30 UTC (30 days left), renews from 2026-12-13 20:06:30 UTC"


@each_of("width", [20, 40, 60, 80])
def test_lines_fit_and_nothing_is_lost(width: int) -> None:
    found = wrapped("certificate", TEXT, indent=14, width=width)
    assert all(len(line) <= width for line in found)
    assert " ".join(" ".join(found).split()) == f"certificate {TEXT}"
    assert found[1].startswith("  " if width < 60 else " " * 14)


def test_a_path_is_not_broken_and_a_pipe_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/a/very/long/path/to/a/folder/of/scans/that/somebody/may/want/to/copy"
    assert any(path in line for line in wrapped("home", path, indent=14, width=40))
    assert wrapped("home", TEXT, indent=14, width=None) == [f"home          {TEXT}"]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None, "standard output of a test is no terminal"
    monkeypatch.setenv("COLUMNS", "52")
    assert terminal_width() == 52


@pytest.mark.parametrize("begin", ["", "  "])
def test_a_line_that_does_not_fit_goes_on_two_deeper_and_loses_nothing(begin: str) -> None:
    found = fitted(f"{begin}{TEXT}", 40)
    assert all(len(line) <= 40 for line in found)
    assert [line[:len(begin) + 3].count(" ") for line in found] == [len(begin), *[len(begin) + 2] * (len(found) - 1)]
    assert " ".join(line.strip() for line in found) == TEXT
    assert fitted(TEXT, None) == fitted(TEXT, len(TEXT)) == [TEXT]
