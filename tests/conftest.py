"""What every test stands on: interpreters that start quickly, and one thread of torch for each of them."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
from hypothesis import HealthCheck, settings

from tests.compiled_tests import compile_share

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


with contextlib.suppress(ImportError):
    # It comes with dp-accounting, notes sys.stderr when it is imported, and closes that stream when anybody sets
    # logging up anew: the stream would be pytest's own.
    from absl import logging as _absl_logging

    _absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


# Libraries and thousands of tests stay until the end: there is no use in looking at them again and again, as Python's
# collector does by default. Cycles that tests leave behind are still freed, only later.
gc.set_threshold(20_000, 20, 20)


# Nothing is timed: beside other work any example may take long.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    compile_share(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported meanwhile stays: to look through it dozens of times takes a tenth of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Of what tests have started, nothing is left."""
    preloaded = sys.modules.get("tests.preloaded")
    if preloaded is not None:
        preloaded.close()


@pytest.fixture(autouse=True)
def _errors_are_in_the_log() -> Iterator[None]:
    """Of an error that comes again and again the log of a process has one line an hour, and tests share a process."""
    yield
    errors = sys.modules.get("semisilo.common.rpc.grpc_errors")
    if errors is not None:
        errors.forget_lines()


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


def blank_picture(figure: object, target: BinaryIO, **options: Any) -> None:
    """In the place of matplotlib's `savefig`."""
    from PIL import Image

    Image.new("L", (1, 1), 255).save(target, format="PNG")


@pytest.fixture
def pictures_left_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is said beside plots: each is drawn into its axes, and its picture is one white pixel. To lay a
    picture out and to render it takes most of a report's time; some reports of tests/coordinator/report have theirs."""

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank_picture)


@pytest.fixture(scope="session", autouse=True)
def _ledgers_begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], None]]:
    """New ledgers of this process begin as copies of one that the program has made in it, for its migrations take
    longer than most tests that need a ledger. Yields what the program does instead. See `ledgers_made_anew`."""
    from semisilo.coordinator.ledger import database

    begin_empty = database._begin_private
    made: list[bytes] = []

    def begin(path: Path) -> None:
        if not made:
            first = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
            made.append(b"")
            database.LedgerFile(first).close()  # the last that closes it leaves everything in this one file
            made[0] = first.read_bytes()
        begin_empty(path)
        with contextlib.suppress(OSError):  # as there: SQLite then says what is wrong
            if path.stat().st_size == 0:
                path.write_bytes(made[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_begin_private", begin)
        yield begin_empty


@pytest.fixture
def ledgers_made_anew(_ledgers_begun: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how a ledger comes about: none is copied."""
    monkeypatch.setattr("semisilo.coordinator.ledger.database._begin_private", _ledgers_begun)


@pytest.fixture(scope="session")
def simulated_in_one_process() -> Iterator[None]:
    """Simulated silos train in this process however long that takes, unless a test asks for others (`workers`). Beside
    other work every simulation takes longer than what other processes are worth; each of them imports torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semisilo.simulation.engines.processes._WORTH_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """One finished federation of processes for all tests that look at it or compare with its bits."""
    from tests.processes import undisturbed_federation

    with undisturbed_federation(tmp_path_factory.mktemp("undisturbed")) as found:
        yield found
