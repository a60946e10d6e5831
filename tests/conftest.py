"""What every test stands on: interpreters that start quickly, and one thread of torch for each of them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.processes import Undisturbed

# The suite starts hundreds of interpreters: what one has compiled, the next need not compile again. Some containers
# switch this off to keep their images small; `make clean` removes what is written.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Set before torch is imported, here and in every process that a test starts. More threads wait for each other on small
# images, and spin while they do: two test processes with two threads each take longer than with one, and beside other
# work many times longer.
for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that run in this process set logging up for the whole of it, and so do some libraries when they are
    imported: that would hide lines from later tests."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    before = {each.name: (each.level, each.propagate, each.disabled) for each in _loggers()}
    yield
    root.setLevel(level)
    for handler in [each for each in root.handlers if each not in handlers]:
        root.removeHandler(handler)
    for each in _loggers():
        wanted, propagate, disabled = before.get(each.name, (logging.NOTSET, True, False))
        if each.name in before or each.name.startswith("semisilo"):
            if each.level != wanted:
                each.setLevel(wanted)
            each.propagate, each.disabled = propagate, disabled


def _loggers() -> list[logging.Logger]:
    return [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty files for figures: painting takes seconds, and the tests of the report look at them."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda figure, target, **options: target.write(b"\x89PNG\r\n\x1a\n"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """One finished federation of processes for all tests that look at it or compare with its bits."""
    from tests.processes import undisturbed_federation

    with undisturbed_federation(tmp_path_factory.mktemp("undisturbed")) as found:
        yield found
