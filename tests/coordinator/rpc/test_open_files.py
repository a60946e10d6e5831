"""The limit of open files, on systems that are made up."""

from __future__ import annotations

import logging
import resource

import pytest

from semisilo.coordinator.rpc.open_files import allow_open_files

NONE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[soft, hard] of this process, as the test sets it."""
    found = [1024, 1024]

    def change(which: int, wanted: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        assert wanted[1] == found[1]
        if found[1] != NONE and wanted[0] > found[1]:
            raise ValueError("not allowed to raise maximum limit")
        found[0] = wanted[0]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", change)
    return found


@pytest.mark.parametrize(("soft", "hard", "silos", "after"), [
    (1024, 20_000, 50, 20_000), (1024, NONE, 2000, 4200), (NONE, NONE, 2000, 0), (65_536, 65_536, 2000, 65_536),
    (100_000, NONE, 10, 100_000)])
def test_the_limit_is_raised_as_far_as_the_system_allows(
        limits: list[int], caplog: pytest.LogCaptureFixture, soft: int, hard: int, silos: int, after: int) -> None:
    limits[:] = soft, hard
    with caplog.at_level(logging.WARNING):
        assert allow_open_files(silos) == after
    assert limits[0] == (after or NONE)
    assert not caplog.records


def test_where_it_is_too_low_for_the_silos_one_line_says_how_to_raise_it(limits: list[int],
                                                                         caplog: pytest.LogCaptureFixture) -> None:
    limits[:] = 512, 1024
    with caplog.at_level(logging.WARNING):
        assert allow_open_files(1000) == 1024
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == ("only 1024 files may be open at a time, and 1000 silos take one each: some will not connect. Raise"
                    " the limit before `coordinator serve`, for example: ulimit -n 2400 (systemd: LimitNOFILE=2400).")


def test_a_system_that_refuses_is_taken_as_it_is(limits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    limits[:] = 1024, 4096

    def refused(which: int, wanted: tuple[int, int]) -> None:
        raise OSError("not here")
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert allow_open_files(10) == 1024
