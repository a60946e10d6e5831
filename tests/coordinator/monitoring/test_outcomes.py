from __future__ import annotations

import re
from pathlib import Path

from semisilo.coordinator.ledger.states import TaskState
from semisilo.coordinator.monitoring import outcomes
from semisilo.coordinator.monitoring.outcomes import OUTCOME_STYLES, OUTCOMES, counts_of, outcomes_of, waiting_for


def test_every_state_but_open_is_an_outcome_and_has_a_colour() -> None:
    assert {*OUTCOMES, TaskState.OPEN, TaskState.ANSWERED} == {*TaskState} == OUTCOME_STYLES.keys()
    assert len(OUTCOMES) == len({*OUTCOMES})


def test_of_several_phases_the_answer_that_stands_out_counts() -> None:
    found = outcomes_of([("a", TaskState.UPDATED), ("a", TaskState.ABSTAINED), ("b", TaskState.UPDATED),
                         ("b", TaskState.OPEN), ("c", TaskState.REFUSED), ("c", TaskState.EXPIRED)])
    assert found == {"a": TaskState.ABSTAINED, "b": TaskState.OPEN, "c": TaskState.EXPIRED}
    assert counts_of(found) == {"abstained": 1, "expired": 1, "open": 1}
    assert waiting_for(found) == ("b",)


def test_the_table_in_the_documentation_is_the_vocabulary() -> None:
    assert re.findall(r"^\| ([a-z]+) \|", outcomes.__doc__ or "", re.MULTILINE)[1:] == [str(each) for each in OUTCOMES]
    page = (Path(__file__).parents[3] / "docs" / "observability.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("| `semisilo_tasks_total`"))
    assert all(str(each) in line for each in OUTCOMES)
