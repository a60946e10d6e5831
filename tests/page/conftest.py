"""One browser and one finished and one running study for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from semisilo.common.config import canonical_json
from semisilo.common.payload.usage import Encoded
from semisilo.coordinator.ledger.encodings import add_encoded
from semisilo.coordinator.rounds.live_file import LiveSilo
from tests.coordinator.ledger_fixture import SILOS, Filled, fill_study, study_config
from tests.page import kit


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Not for the session: while it is there an event loop runs in this thread, and tests elsewhere run their own."""
    with kit.browser() as started:
        yield started


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A study in its eleventh round: the first silo has answered, the others work."""
    return fill_study(tmp_path_factory.mktemp("running") / "hub", rounds=20, done=10, collecting=True)


@pytest.fixture(scope="module")
def page(running: Filled) -> Iterator[kit.LivePage]:
    with kit.live_page(running.federation) as served:
        served.said = {"study": "first", "round": 11, "rounds": 20, "phase": "train"}
        served.connected = ("clinic-north", "hospital-a")
        served.silos = {"hospital-a": LiveSilo(stage="training", fraction=0.4)}
        yield served


@pytest.fixture(scope="module")
def _visit(browser: Any, page: kit.LivePage) -> Iterator[kit.Tab]:
    with kit.tab(browser, page.address) as opened:
        yield opened


@pytest.fixture
def shown(_visit: kit.Tab) -> Iterator[kit.Tab]:
    """One visit of `page` for all tests of a file that only look: to load the page anew takes longer than most of them.
    What goes wrong in it is the fault of the test that looked last."""
    yield _visit
    problems, _visit.problems[:] = list(_visit.problems), []
    _visit.go("#/studies", title="Studies")
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def _visit_of_drifting(browser: Any, drifting: kit.LivePage) -> Iterator[kit.Tab]:
    with kit.tab(browser, drifting.address) as opened:
        yield opened


@pytest.fixture
def drifted(_visit_of_drifting: kit.Tab) -> Iterator[kit.Tab]:
    """The same of `drifting`."""
    yield _visit_of_drifting
    problems, _visit_of_drifting.problems[:] = list(_visit_of_drifting.problems), []
    _visit_of_drifting.go("#/studies", title="Studies")
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.LivePage]:
    """A finished study in which hospital-a's pseudo-labels are all of one class in round 9, and one that waits."""
    filled = fill_study(tmp_path_factory.mktemp("drifting") / "hub", rounds=12)
    with filled.ledger.transaction() as db:
        for number in range(1, 13):
            for silo in SILOS:
                odd = number == 9 and silo == "hospital-a"
                counts = {f"pseudo_labels/{label}": (310 if label == 4 else 10) if odd else 40 for label in range(10)}
                db.execute("UPDATE task SET metrics_json = ? WHERE round = ? AND silo = ?",
                           (canonical_json({"label_ratio": 0.85, **counts}), number, silo))
    for direction, parts in (("down", [Encoded("held", 0, 0, 90_000), Encoded("bits:planes", 24, 700_000, 950_000)]),
                             ("up", [Encoded("planes", 24, 800_000, 950_000), Encoded("framing", 0, 9_000, 0)])):
        add_encoded(filled.ledger, parts, study="first", round=3, direction=direction)  # type: ignore[arg-type]
    filled.ledger.queue_study("second", study_config(rounds=5))
    with kit.live_page(filled.federation, serving=False) as served:
        yield served
