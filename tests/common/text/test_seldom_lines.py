"""Lines that a peer may bring about at any rate."""

from __future__ import annotations

import pytest

from semisilo.common.text import seldom_lines
from semisilo.common.text.seldom_lines import SeldomLines


def test_a_line_is_written_once_in_its_time_for_each_of_what_tells_it_apart() -> None:
    now = 100.0
    lines = SeldomLines(seconds=60.0, clock=lambda: now)
    assert lines.standing("alpha", "why", mark="first") is None
    assert [lines.standing("alpha", "why", mark=str(number)) for number in range(3)] == ["first"] * 3
    assert lines.standing("beta", "why") is lines.standing("alpha", "another") is None
    now += 59.9
    assert lines.standing("alpha", "why") == "first"
    now += 0.2
    assert lines.standing("alpha", "why", mark="second") is None
    assert lines.standing("alpha", "why") == "second"
    lines.forget()
    assert lines.standing("alpha", "why") is None


def test_of_too_many_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seldom_lines, "_MOST", 3)
    lines = SeldomLines()
    assert [lines.standing(name) for name in "abcd"] == [None] * 4
    assert [lines.standing(name) for name in "bcd"] == [""] * 3
    assert lines.standing("a") is None
    assert len(lines._written) == 3
