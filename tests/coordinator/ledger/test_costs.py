"""Costs as rows: what is added comes back, summed by key, and nothing is counted twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.coordinator.ledger.costs import (
    Cost,
    CostSums,
    RoundBytes,
    SiloRoundBytes,
    add_costs,
    add_to_cost,
    bytes_by_round,
    costs_of,
    estimate_lost,
    has_downloads,
    rounds_with_payload,
    silo_round_bytes,
    total_bytes,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.traffic import round_totals, total_bytes_by_silo
from semisilo.coordinator.monitoring.cost_book import CostBook
from tests.coordinator.ledger_fixture import (
    SILOS,
    open_collecting_round,
    open_federation_with_silos,
    query_plan,
    study_config,
)

ROW = Cost(study="s", round=1, phase="train", silo="alpha", direction="up", kind="payload", item="model", bytes=100,
           count=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def test_rows_of_equal_keys_are_added_up_and_others_stay_apart(ledger: Ledger) -> None:
    others = [replace(ROW, round=2), replace(ROW, phase="standby"), replace(ROW, silo="beta"),
              replace(ROW, direction="down"), replace(ROW, kind="wire"), replace(ROW, item="batch_norm")]
    add_costs(ledger, [ROW, *others])
    add_costs(ledger, [replace(ROW, bytes=11, count=2)])
    found = costs_of(ledger, "s")
    assert replace(ROW, bytes=111, count=3) in found
    assert len(found) == 1 + len(others)
    assert {row for row in found if row.bytes == 100} == set(others)


def test_what_is_added_to_a_cost_is_one_row_and_every_sum_has_it_once(tmp_path: Path) -> None:
    """However often a silo fetches the same bytes: what page, report and status read is as if each time were a row."""
    down = replace(ROW, direction="down")
    others = [replace(down, round=2), replace(down, phase="standby"), replace(down, silo="beta"), ROW,
              replace(down, kind="wire"), replace(down, item="batch_norm"), replace(down, study="t")]
    parts = [replace(down, bytes=size, count=1) for size in (100, 1, 1, 2**40)] + [replace(down, bytes=0, count=1)]
    sums = []
    for name in ("one", "sums", "many"):
        ledger, book, seen = Ledger(tmp_path / f"{name}.sqlite"), CostBook(), []
        add = add_to_cost if name == "one" else add_one_by_one if name == "many" else sum_of(CostSums(ledger))
        add_costs(ledger, others)
        for part in parts:
            add(ledger, part)
            book.refresh(ledger)  # a book that reads what is new only must see each part
            seen.append(repr(book.study("s")))
        sums.append((seen, costs_of(ledger, "s"), total_bytes_by_silo(ledger), round_totals(ledger, "s", rounds=None),
                     silo_round_bytes(ledger, "s", "alpha", 1)))
        if name != "many":
            assert len(ledger.query("SELECT 1 FROM cost")) == len(others) + 1
            ledger.close()
            again = Ledger(tmp_path / f"{name}.sqlite")
            add_to_cost(again, replace(down, bytes=5))
            assert next(row.bytes for row in costs_of(again, "s") if replace(row, bytes=0, count=0) == replace(
                down, bytes=0, count=0)) == 2**40 + 107
    assert sums[0] == sums[1] == sums[2]


def add_one_by_one(ledger: Ledger, cost: Cost) -> None:
    add_costs(ledger, [cost])


def sum_of(rows: CostSums) -> Callable[[Ledger, Cost], None]:
    return lambda ledger, cost: rows.add([cost])


def test_sums_of_a_process_take_a_row_for_each_key_and_leave_those_of_others_alone(ledger: Ledger) -> None:
    standby = [replace(ROW, study="", round=0, phase="standby", silo=silo, kind=kind, item=item)
               for silo in ("alpha", "beta") for kind, item in (("message", "AwaitTask"), ("wire", "tcp"))]
    first = CostSums(ledger)
    for _ in range(100):
        first.add([*standby, *standby[:1]])  # twice at once as well
    assert len(ledger.query("SELECT 1 FROM cost")) == len(standby)
    second = CostSums(ledger)  # after a kill
    for _ in range(3):
        second.add(standby)
        first.add([replace(ROW, bytes=0, count=0)])
    assert len(ledger.query("SELECT 1 FROM cost")) == 2 * len(standby)
    assert [(row.bytes, row.count) for row in costs_of(ledger, "")] == [
        (20300, 203), (10300, 103), (10300, 103), (10300, 103)]
    first.add([replace(ROW, round=number) for number in range(1, 500)])
    first.add([ROW])
    assert len(first._rows) == 1, "of rounds that are over nothing is kept"


def test_what_a_new_try_of_a_round_costs_is_not_added_to_the_try_that_is_gone(ledger: Ledger) -> None:
    """The study went back behind the round, and its bytes are counted by the same process."""
    wire, other = replace(ROW, round=5, kind="wire", item="tcp"), replace(ROW, round=4, kind="wire", item="tcp")
    payload, sums = replace(ROW, round=5), CostSums(ledger)
    for _ in range(2):
        sums.add([wire, other])
        add_to_cost(ledger, payload)
    with ledger.transaction() as db:
        db.execute("INSERT INTO rollback (study, to_round, unix, origin, operator, reason, cost_row)"
                   " SELECT 's', 4, 0, 'command', '', '', max(rowid) FROM cost")
    for _ in range(3):
        sums.add([wire, other])
        add_to_cost(ledger, payload)
    assert [(row.kind, row.round, row.gone, row.bytes, row.count) for row in costs_of(ledger, "s")] == [
        ("wire", 4, 0, 500, 5),
        ("payload", 5, 1, 200, 2), ("payload", 5, 0, 300, 3), ("wire", 5, 1, 200, 2), ("wire", 5, 0, 300, 3)]
    assert len(ledger.query("SELECT 1 FROM cost")) == 5


def test_a_number_that_has_gone_to_another_row_is_no_sum(ledger: Ledger) -> None:
    rows = CostSums(ledger)
    rows.add([ROW])
    with ledger.transaction() as db:
        db.execute("UPDATE cost SET silo = 'beta'")  # as if the number were given anew
    rows.add([ROW])
    assert [(row.silo, row.bytes) for row in costs_of(ledger, "s")] == [("alpha", 100), ("beta", 100)]


def test_sums_that_fail_half_way_are_as_before(ledger: Ledger) -> None:
    rows = CostSums(ledger)
    rows.add([ROW])
    for _ in range(2):
        with pytest.raises(sqlite3.IntegrityError):
            rows.add([ROW, replace(ROW, direction="sideways")])  # type: ignore[arg-type]
        assert [row.bytes for row in costs_of(ledger, "s")] == [100]
    rows.add([ROW])
    assert [row["bytes"] for row in ledger.query("SELECT bytes FROM cost")] == [200]
    assert [row.bytes for row in round_totals(ledger, "s")] == [200]


def test_what_is_added_without_bytes_and_count_is_left_out(ledger: Ledger) -> None:
    add_to_cost(ledger, ROW)
    add_to_cost(ledger, replace(ROW, bytes=0, count=0))
    assert costs_of(ledger, "s") == [ROW]


def test_costs_of_another_study_and_of_none_do_not_count(ledger: Ledger) -> None:
    add_costs(ledger, [ROW, replace(ROW, study="t"), replace(ROW, study="", silo="")])
    assert costs_of(ledger, "s") == [ROW]
    assert costs_of(ledger, "u") == []


def test_rows_come_by_round_then_phase_silo_and_direction(ledger: Ledger) -> None:
    rows = [replace(ROW, round=number, silo=silo, direction=direction) for number in (2, 1) for silo in ("b", "a")
            for direction in ("up", "down")]
    add_costs(ledger, rows)
    found = [(row.round, row.silo, row.direction) for row in costs_of(ledger, "s")]
    assert found == sorted((row.round, row.silo, row.direction) for row in rows)


def test_one_estimated_part_makes_the_sum_estimated(ledger: Ledger) -> None:
    add_costs(ledger, [ROW, replace(ROW, estimated=True), replace(ROW, silo="beta")])
    assert {row.silo: row.estimated for row in costs_of(ledger, "s")} == {"alpha": True, "beta": False}


def test_rows_without_bytes_and_count_are_left_out_but_an_empty_transfer_is_kept(ledger: Ledger) -> None:
    add_costs(ledger, [replace(ROW, bytes=0, count=0), replace(ROW, bytes=0, count=4, item="empty")])
    assert [(row.item, row.bytes, row.count) for row in costs_of(ledger, "s")] == [("empty", 0, 4)]


def test_totals_are_sums_of_one_kind_in_one_or_both_directions() -> None:
    rows = [ROW, replace(ROW, direction="down", bytes=7), replace(ROW, kind="wire", bytes=1000)]
    assert total_bytes(rows, kind="payload") == 107
    assert total_bytes(rows, kind="payload", direction="up") == 100
    assert total_bytes(rows, kind="wire") == 1000
    assert total_bytes(rows, kind="message") == 0


def test_sums_beyond_32_bits_are_exact(ledger: Ledger) -> None:
    add_costs(ledger, [replace(ROW, bytes=2**40 + 1), replace(ROW, bytes=2**40 + 2)])
    assert costs_of(ledger, "s")[0].bytes == 2**41 + 3


def test_one_bad_row_keeps_all_rows_of_its_call_out(ledger: Ledger) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        add_costs(ledger, [ROW, replace(ROW, direction="sideways")])  # type: ignore[arg-type]
    assert costs_of(ledger, "s") == []


def test_bytes_by_round_are_those_of_the_rounds_asked_for_over_all_silos(ledger: Ledger) -> None:
    add_costs(ledger, [replace(ROW, round=number, silo=silo) for number in range(5) for silo in ("alpha", "beta")])
    add_costs(ledger, [replace(ROW, round=2, kind="wire", direction="down", bytes=7), replace(ROW, study="t", round=2)])
    found = bytes_by_round(ledger, "s", after=1, up_to=3)
    assert sorted(found, key=lambda each: (each.round, each.kind)) == [
        RoundBytes(round=2, direction="up", kind="payload", bytes=200),
        RoundBytes(round=2, direction="down", kind="wire", bytes=7),
        RoundBytes(round=3, direction="up", kind="payload", bytes=200)]
    assert bytes_by_round(ledger, "s", after=4, up_to=9) == []


@pytest.mark.parametrize("change", [{"study": "t"}, {"round": 2}, {"phase": "standby"}, {"silo": "beta"},
                                    {"direction": "up"}, {"kind": "wire"}])
def test_a_download_counts_for_its_own_study_round_phase_and_silo_only(ledger: Ledger, change: dict[str, str]) -> None:
    down = replace(ROW, direction="down")
    add_costs(ledger, [replace(down, **change)])  # type: ignore[arg-type]
    assert not has_downloads(ledger, study="s", round=1, phase="train", silo="alpha")
    add_costs(ledger, [down])
    assert has_downloads(ledger, study="s", round=1, phase="train", silo="alpha")


def test_of_two_phases_of_one_name_each_has_downloads_of_its_own(ledger: Ledger) -> None:
    """Of batch-norm statistics of round 1, before training and behind it, simulations counted those before alone."""
    def counted() -> bool:
        return has_downloads(ledger, study="s", round=1, phase="statistics", silo="alpha")

    first = replace(ROW, direction="down", phase="statistics")
    add_to_cost(ledger, first)
    assert counted()
    add_costs(ledger, [replace(ROW, direction="up", phase="statistics"), replace(ROW, silo="beta")])
    assert counted()
    add_costs(ledger, [replace(ROW, direction="up")])
    assert not counted(), "training has come between"
    add_to_cost(ledger, first)
    assert counted()


def test_the_rounds_of_a_silo_are_its_last_ones_with_a_payload_oldest_first(tmp_path: Path) -> None:
    ledger = open_federation_with_silos(tmp_path / "federation").ledger
    ledger.queue_study("s", study_config(rounds=9))
    for number in range(1, 7):
        open_collecting_round(ledger, "s", number, SILOS[:1] if number != 5 else SILOS[1:])  # not asked in round 5
        if number != 3:  # asked in round 3, but nothing came or went
            add_costs(ledger, [replace(ROW, round=number, silo=SILOS[0]), replace(ROW, round=number, silo=SILOS[1])])
        add_costs(ledger, [replace(ROW, round=number, silo=SILOS[0], kind="wire", direction="down", bytes=number)])
    assert rounds_with_payload(ledger, "s", SILOS[0], looked_at=64, most=8) == [1, 2, 4, 6]
    assert rounds_with_payload(ledger, "s", SILOS[0], looked_at=64, most=2) == [4, 6]
    assert rounds_with_payload(ledger, "s", SILOS[0], looked_at=3, most=8) == [4, 6]
    assert rounds_with_payload(ledger, "s", SILOS[1], looked_at=64, most=8) == [5]
    plan = query_plan(ledger, lambda: rounds_with_payload(ledger, "s", SILOS[1], looked_at=64, most=8))
    asked, = (step for step in plan if " task " in step)
    assert "(study=? AND silo=?)" in asked  # not through all tasks of all, for a silo that was never asked
    assert silo_round_bytes(ledger, "s", SILOS[0], 4) == SiloRoundBytes(payload_down=0, payload_up=100, wire_down=4,
                                                                        wire_up=0)


def test_what_a_round_took_of_a_silo_is_found_without_the_costs_of_the_others(tmp_path: Path) -> None:
    """Of a thousand silos a round has 15,000 rows, and every silo that asked about its last eight went through all."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number, silo in enumerate((*SILOS, "")):
        add_costs(ledger, [replace(ROW, silo=silo, kind=kind, direction=direction, bytes=10**number)
                           for kind in ("payload", "message", "wire") for direction in ("up", "down")])
    for number, silo in enumerate(SILOS):
        assert silo_round_bytes(ledger, ROW.study, silo, ROW.round) == SiloRoundBytes(
            payload_down=10**number, payload_up=10**number, wire_down=10**number, wire_up=10**number)
    plan = query_plan(ledger, lambda: silo_round_bytes(ledger, ROW.study, SILOS[0], ROW.round))
    assert "(study=? AND round=? AND kind=? AND silo=?)" in plan[0]


def test_what_a_kill_took_of_the_wire_is_estimated_once_by_the_payloads(ledger: Ledger) -> None:
    """Payloads are counted with their task, messages and the wire some seconds later."""
    down = replace(ROW, direction="down", item="model")
    counted = replace(ROW, silo="beta", kind="wire", item="tcp", bytes=130)
    add_costs(ledger, [ROW, down, replace(down, phase="statistics", bytes=7),
                       replace(down, kind="message", item="DownloadPayload", bytes=60),
                       replace(down, kind="wire", item="tcp", bytes=40), replace(ROW, silo="beta"), counted,
                       replace(counted, kind="message", item="SubmitUpdate", bytes=101), replace(ROW, round=2)])
    lost = estimate_lost(ledger, "s", 1)
    assert {(each.silo, each.direction, each.phase, each.kind, each.item): each.bytes for each in lost} == {
        ("alpha", "up", "train", "message", "SubmitUpdate"): 100, ("alpha", "up", "train", "wire", "tcp"): 100,
        ("alpha", "down", "statistics", "message", "DownloadPayload"): 47,
        ("alpha", "down", "statistics", "wire", "tcp"): 67}
    assert all(each.estimated for each in lost)
    add_costs(ledger, lost)
    assert estimate_lost(ledger, "s", 1) == []


def test_costs_of_a_round_that_is_gone_do_not_stand_for_those_of_its_next_try(ledger: Ledger) -> None:
    add_costs(ledger, [replace(ROW, kind="wire", item="tcp", bytes=1000),
                       replace(ROW, kind="message", item="SubmitUpdate", bytes=1000)])
    with ledger.transaction() as db:
        db.execute("INSERT INTO rollback (study, to_round, unix, origin, operator, reason, cost_row)"
                   " SELECT 's', 0, 0.0, '', '', '', max(rowid) FROM cost")
    add_costs(ledger, [ROW])
    assert [each.bytes for each in estimate_lost(ledger, "s", 1)] == [100, 100]
