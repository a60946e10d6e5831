"""Who has given a command, as the kernel knows it."""

from __future__ import annotations

import pytest

from semisilo.common.process import account as module
from semisilo.common.process.account import account


def test_sudo_says_who_has_called_it_to_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    monkeypatch.setattr(module.os, "getuid", lambda: 0)
    assert account() == "root (sudo of alice)"
    monkeypatch.setattr(module.os, "getuid", lambda: 987_654)
    assert account() == "987654", "an account without a name"


def test_what_the_environment_says_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    assert "mallory" not in account()
