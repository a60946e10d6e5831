"""What each silo has brought to a study, over all rounds or up to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring.participants import Participant, participants_of
from semisilo.coordinator.monitoring.summary import StudySummary, summarise
from tests.coordinator.ledger_fixture import SILOS, WIRE_DOWN, WIRE_UP, fill_study

ASKED_UP = 1_200
"""Wire bytes of a silo's own calls in a round, beside its update's."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudySummary]:
    """Six rounds: in round 3 the last silo abstains, in round 5 the first is late, in round 6 the second refuses."""
    filled = fill_study(tmp_path_factory.mktemp("hub") / "fed", rounds=6)
    yield summarise(filled.ledger, "first")
    filled.ledger.close()


def test_answers_and_bytes_of_all_rounds_are_counted_in_byte_order_of_silos(study: StudySummary) -> None:
    found = participants_of(study)
    assert list(found) == sorted(SILOS, key=str.encode)
    first, second, last = (found[silo] for silo in SILOS)
    assert first.outcomes == {TaskState.UPDATED: 5, TaskState.EXPIRED: 1}
    assert second.outcomes == {TaskState.UPDATED: 5, TaskState.REFUSED: 1}
    assert last.outcomes == {TaskState.UPDATED: 5, TaskState.ABSTAINED: 1}
    assert (last.wire_down, last.wire_up) == (6 * WIRE_DOWN, 5 * WIRE_UP + 6 * ASKED_UP)


def test_up_to_a_round_nothing_later_counts(study: StudySummary) -> None:
    found = participants_of(study, up_to=2)
    for silo in SILOS:
        assert found[silo].outcomes == {TaskState.UPDATED: 2}
        assert (found[silo].wire_down, found[silo].wire_up) == (0, 0), "bytes are told of all rounds only"
    assert participants_of(study, up_to=0) == {}, "overhead is nobody's"


def test_the_label_ratio_is_the_last_that_a_silo_has_told(study: StudySummary) -> None:
    """The first silo tells 0.35 + 0.05 a round; in round 5 it tells nothing."""
    assert participants_of(study, up_to=4)[SILOS[0]].label_ratio == pytest.approx(0.55)
    assert participants_of(study, up_to=5)[SILOS[0]].label_ratio == pytest.approx(0.55)
    assert participants_of(study)[SILOS[0]].label_ratio == pytest.approx(0.65)
    assert Participant().label_ratio is None
