"""A folder of another account as root sees it, for tests that run as root and for those that do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ANOTHER = 54321


def given_to_another_account(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes it where it is not there; the process counts as root, which does not own it."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, _ANOTHER, _ANOTHER)
    else:
        monkeypatch.setattr("semisilo.common.process.folder_owner.os.geteuid", lambda: 0)
        monkeypatch.setattr("semisilo.common.process.folder_owner._owner_of_new_files", lambda folder: 0)
    return folder
