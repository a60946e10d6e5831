"""Root is refused in the folder of another account, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semisilo.common.errors import SystemTrouble, UsageError
from semisilo.common.process import folder_owner
from semisilo.common.process.folder_owner import check_may_enter, refuse_for_root
from semisilo.silo.cli.options import home_of
from tests.another_account import given_to_another_account
from tests.processes import run_command


def test_the_folder_of_another_account_is_refused_with_the_command_of_its_owner(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = given_to_another_account(tmp_path / "hub", monkeypatch)
    monkeypatch.setattr("sys.argv", ["/opt/semisilo/bin/coordinator", "backup", "/mnt/two words"])
    with pytest.raises(UsageError, match="this is root") as caught:
        refuse_for_root(folder)
    assert "-- /opt/semisilo/bin/coordinator backup '/mnt/two words'" in caught.value.remedy
    assert f"--user {folder.stat().st_uid}:" in caught.value.remedy
    assert list(folder.iterdir()) == []


def test_a_silo_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = given_to_another_account(tmp_path / "silo", monkeypatch)
    with pytest.raises(UsageError, match="this is root"):
        home_of(folder)


def test_a_folder_of_ones_own_and_one_that_is_not_there_are_not(tmp_path: Path) -> None:
    refuse_for_root(tmp_path)
    refuse_for_root(tmp_path / "none")


@pytest.mark.parametrize("who", ["squashed to the owner", "may write nothing"])
def test_where_root_makes_no_files_of_its_own_it_is_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                who: str) -> None:
    folder = given_to_another_account(tmp_path / "hub", monkeypatch)
    owner = folder.stat().st_uid if who == "squashed to the owner" else None
    monkeypatch.setattr(folder_owner, "_owner_of_new_files", lambda folder: owner)
    refuse_for_root(folder)


def test_the_probe_says_who_owns_new_files_and_leaves_none(tmp_path: Path) -> None:
    assert folder_owner._owner_of_new_files(tmp_path) == os.geteuid()
    assert list(tmp_path.iterdir()) == []
    assert folder_owner._owner_of_new_files(tmp_path / "none") is None


def test_a_folder_that_may_not_be_entered_is_no_mistake_in_the_command(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that ends with a usage error is not started again once the folder has its owner back."""
    check_may_enter(tmp_path)
    check_may_enter(tmp_path / "none")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(SystemTrouble, match=f"{tmp_path}: Permission denied") as caught:
        home_of(tmp_path)
    assert caught.value.exit_status == 1
    for module in ("semisilo.coordinator.cli.main", "semisilo.silo.cli.main"):
        option = "--folder" if "coordinator" in module else "--home"
        status, _, error = run_command(module, "status", option, str(tmp_path))
        assert (status, error.count("Permission denied")) == (1, 1), error
