"""What has left each hospital, from a ledger as the engine leaves it."""

from __future__ import annotations

from pathlib import Path

from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.tasks import add_site_evaluation
from semisilo.coordinator.monitoring.results.left_of_silos import left_of_silos
from tests.coordinator.ledger_fixture import DENSE_BYTES, SILOS, WIRE_UP, fill_study


def test_updates_groups_numbers_refusals_and_evaluations_are_counted_by_silo(tmp_path: Path) -> None:
    """In round 3 the last silo abstains, in round 5 the first is late, in round 6 the second refuses."""
    ledger = fill_study(tmp_path / "hub", rounds=6).ledger
    assert add_site_evaluation(ledger, SILOS[1], SiteEvaluation(study="first", round=1, classes=(
        ClassResult(images=5, correct=4),) * 10), now_unix=1.0)
    found = left_of_silos(ledger, "first")
    assert [each.silo for each in found] == list(SILOS)
    assert [each.updates for each in found] == [5, 5, 5]
    assert [each.refusals for each in found] == [0, 1, 0]
    assert [each.evaluations for each in found] == [0, 1, 0]
    assert all(each.groups == {"model": 5 * DENSE_BYTES} == {"model": each.payload_bytes} for each in found)
    assert all("label_ratio" in each.numbers for each in found)
    assert all(each.wire_bytes >= 5 * WIRE_UP for each in found)


def test_numbers_by_class_are_named_once(tmp_path: Path) -> None:
    ledger = fill_study(tmp_path / "hub", rounds=4).ledger
    with ledger.transaction() as db:
        db.execute("""UPDATE task SET metrics_json = '{"pseudo_labels/0": 3, "pseudo_labels/1": 4, "loss": 1}'""")
    assert left_of_silos(ledger, "first")[0].numbers == ("loss", "pseudo_labels/*")


def test_what_came_in_rounds_that_are_gone_has_left_all_the_same(tmp_path: Path) -> None:
    """A study that had gone back twice told a third of what its hospitals had sent, beside the wire bytes of all."""
    ledger = fill_study(tmp_path / "hub", rounds=6).ledger
    before = left_of_silos(ledger, "first")
    roll_back(ledger, "first", 4, operator="", reason="")
    assert left_of_silos(ledger, "first") == before
    roll_back(ledger, "first", 1, operator="", reason="")
    assert left_of_silos(ledger, "first") == before, "each is counted once"
