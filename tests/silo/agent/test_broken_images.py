"""What a silo remembers of images that cannot be used, and how it sees that they have changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from semisilo.common.errors import BadData
from semisilo.silo.agent.broken_images import OwnImages, state_of
from semisilo.silo.site.home import JoinChoice


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.png").write_bytes(b"a")
    (folder / "b.png").write_bytes(b"b")
    (folder / "back").symlink_to(folder)  # must not be followed for ever
    return folder


def touch(scans: Path) -> None:
    os.utime(scans / "b.png", (1, 1))


def permit(scans: Path) -> None:
    (scans / "b.png").chmod(0o600)


def grow(scans: Path) -> None:
    (scans / "deep" / "a.png").write_bytes(b"aa")


def lose(scans: Path) -> None:
    (scans / "deep" / "a.png").unlink()


def gain(scans: Path) -> None:
    (scans / "deep" / "c.png").write_bytes(b"")


def test_only_of_a_study_that_has_the_images_and_nothing_against_them_no_file_is_looked_at(scans: Path) -> None:
    images = OwnImages(JoinChoice(source=str(scans)))
    assert not images.knows("s")
    images.were_read("s")
    assert images.knows("s")
    assert not images.knows("other")
    images.cannot_be_used("s", BadData("b.png cannot be read."), "")
    assert not images.knows("s")


@pytest.mark.parametrize("change", [touch, permit, grow, lose, gain])
def test_whatever_changes_a_file_changes_the_state_and_reading_does_not(
        scans: Path, change: Callable[[Path], None]) -> None:
    choice = JoinChoice(source=f"{scans}#train")
    before = state_of(choice)
    (scans / "b.png").read_bytes()
    assert state_of(choice) == before
    change(scans)
    assert state_of(choice) != before


def test_all_sources_count_and_one_that_is_not_there_is_a_state_too(scans: Path, tmp_path: Path) -> None:
    choice = JoinChoice(source=str(scans / "b.png"), labelled=str(scans / "deep"), test=str(tmp_path / "later.npz"))
    before = state_of(choice)
    (tmp_path / "later.npz").write_bytes(b"")
    assert state_of(choice) != before
    assert state_of(JoinChoice(source="digits")) == state_of(JoinChoice(source="digits"))


def test_an_error_stands_for_its_study_until_the_files_change_and_is_news_once(scans: Path) -> None:
    images, error = OwnImages(JoinChoice(source=str(scans))), BadData("b.png is broken.", remedy="Fix it.")
    assert images.standing("first") is None
    assert images.cannot_be_used("first", error, images.before_reading("first"))
    found = images.standing("first")
    assert found is not None
    assert found.line() == "b.png is broken. Fix it."
    assert images.standing("second") is None
    grow(scans)
    assert images.standing("first") is None
    assert not images.cannot_be_used("first", error, "")
    images.were_read("first")
    assert images.standing("first") is None
    assert images.before_reading("first") == ""


def test_what_is_mended_while_it_is_read_counts_as_a_change(scans: Path) -> None:
    images = OwnImages(JoinChoice(source=str(scans)))
    before = images.before_reading("first")
    grow(scans)
    images.cannot_be_used("first", BadData("b.png is broken."), before)
    assert images.standing("first") is None
