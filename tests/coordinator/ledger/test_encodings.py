"""What each encoding carried and saved: counted with the payloads, kept with the costs, in ledgers of any version."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.methods.contract import PayloadRef, TensorGroup
from semisilo.common.payload.codec import Plan
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.payload.usage import FRAMING, HELD, UNKNOWN, Encoded, describe_encoding
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.describe import describe_bytes
from semisilo.coordinator.ledger import database as ledger_file_module
from semisilo.coordinator.ledger.costs import Cost, add_costs, costs_of, total_bytes
from semisilo.coordinator.ledger.encodings import (
    DownloadEncodings,
    add_encoded,
    encoding_totals,
    encodings_of,
    held_groups,
)
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.migrations import MIGRATIONS
from semisilo.coordinator.monitoring.summary import summarise
from semisilo.coordinator.report.encoding_figure import draw_encodings
from semisilo.coordinator.report.figure_style import LIGHT
from semisilo.coordinator.report.report import write_pages
from semisilo.simulation import SimulationResult, run
from tests.coordinator.compute.test_held_groups import asked, in_second_round
from tests.semisilo.studies import study

VERSION_1 = Path(__file__).with_name("ledger_version_1.sql")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, simulated_in_one_process: None) -> SimulationResult:
    return run(study("semifl", rounds=2, silos=3), out=tmp_path_factory.mktemp("simulated"), device="cpu")


def ledger_of(result: SimulationResult) -> Ledger:
    return Ledger(next(Path(result.folder).rglob("ledger.sqlite")))


# Counting -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_encodings_of_a_study_add_up_to_its_payload_bytes_both_ways_and_in_every_round(
        simulated: SimulationResult) -> None:
    ledger = ledger_of(simulated)
    name = ledger.studies()[0].name
    costs = costs_of(ledger, name)
    for direction in ("down", "up"):
        uses = [use for use in encodings_of(ledger, name) if use.direction == direction]
        assert sum(use.bytes for use in uses) == total_bytes(costs, kind="payload", direction=direction) > 0
        assert any(use.blocks for use in uses)
        rounds = ledger.query("SELECT round, sum(bytes) AS bytes FROM encoded WHERE study = ? AND direction = ?"
                              " GROUP BY round", name, direction)
        for row in rounds:
            assert row["bytes"] == sum(cost.bytes for cost in costs if (cost.kind, cost.direction, cost.round) == (
                "payload", direction, row["round"]))
        assert len(rounds) >= 2


def test_dense_bytes_are_one_model_for_each_update_and_each_group_that_silos_needed(
        simulated: SimulationResult) -> None:
    """SemiFL sends each silo the model once in each of its phases; what it holds already counts as held."""
    ledger = ledger_of(simulated)
    name = ledger.studies()[0].name
    model = ledger.study(name).dense_bytes
    updates = ledger.query("SELECT count(*) AS n FROM task WHERE state = 'updated'")[0]["n"]
    up = sum(use.dense_bytes for use in encodings_of(ledger, name) if use.direction == "up")
    assert up == updates * model
    assert all(use.saved_bytes == use.dense_bytes - use.bytes for use in encodings_of(ledger, name))


def test_totals_are_the_sums_of_each_direction_and_none_of_nothing(simulated: SimulationResult) -> None:
    ledger = ledger_of(simulated)
    uses = encodings_of(ledger, ledger.studies()[0].name)
    totals = encoding_totals(uses)
    assert [(total.direction, total.encoding) for total in totals] == [("down", "all"), ("up", "all")]
    for total in totals:
        own = [use for use in uses if use.direction == total.direction]
        assert (total.bytes, total.dense_bytes, total.blocks) == tuple(
            sum(getattr(use, name) for use in own) for name in ("bytes", "dense_bytes", "blocks"))
        assert total.saved_bytes == total.dense_bytes - total.bytes
        assert total.share_of_dense == total.bytes / total.dense_bytes
    assert [(total.bytes, total.share_of_dense) for total in encoding_totals(())] == [(0, None), (0, None)]


def test_a_download_that_was_cut_counts_what_crossed(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path / "payloads")
    made = encode_groups(store, {"model": TensorGroup({"w": torch.ones(1000)})}, plan=Plan())
    encodings = DownloadEncodings(store)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for offset, sent in ((0, 100), (50, made.size_bytes - 50)):
        add_encoded(ledger, encodings.carried(made.digest, offset=offset, sent_bytes=sent), study="s", round=1,
                    direction="down")
    uses = encodings_of(ledger, "s")
    assert sum(use.bytes for use in uses) == made.size_bytes + 50, "the fifty bytes that were sent twice count twice"
    assert sum(use.blocks for use in uses) == 1


def test_bytes_of_a_file_that_is_gone_are_counted_all_the_same(tmp_path: Path) -> None:
    encodings = DownloadEncodings(PayloadStore(tmp_path / "payloads"))
    assert encodings.carried("ab" * 32, offset=3, sent_bytes=9) == (Encoded(UNKNOWN, 0, 9, 9),)


def test_a_group_that_a_silo_holds_is_saved_once_however_often_it_asks(tmp_path: Path) -> None:
    async def scenario(coordinator: Any, first: str) -> None:
        def held() -> list[int]:
            return [use.dense_bytes for use in encodings_of(coordinator.ledger, "s") if use.encoding == HELD]

        row = coordinator.ledger.open_task("alpha")
        coordinator.ledger.query("DELETE FROM encoded")
        coordinator.ledger.replace_payloads(row, [PayloadRef("", 0, ("model",), tensors=first, held_bytes=1600)])
        await asyncio.gather(*(asked(coordinator, "alpha", first) for _ in range(3)))
        await asked(coordinator, "alpha", first)
        assert held() == [1600]
        assert not coordinator.ledger.task_given(row.task_id), "of two calls that find it open, one is the first"
    in_second_round(tmp_path, scenario)
    assert held_groups([PayloadRef("aa", 10, ("model",), held_bytes=5)]) == []


@pytest.mark.slow
def test_counting_takes_less_than_a_hundredth_of_a_small_round(tmp_path: Path) -> None:
    """100 MB in 160 tensors: the headers are read in milliseconds, where a round takes seconds."""
    store = PayloadStore(tmp_path / "payloads")
    tensors = {f"layer{number}": torch.randn(160_000) for number in range(160)}
    made = encode_groups(store, {"model": TensorGroup(tensors)}, plan=Plan(), durable=False)
    encodings = DownloadEncodings(store)
    began = time.process_time()
    encodings.carried(made.digest, offset=0, sent_bytes=made.size_bytes)
    assert time.process_time() - began < 0.05
    began = time.process_time()
    for _ in range(200):
        encodings.carried(made.digest, offset=0, sent_bytes=made.size_bytes)
    assert time.process_time() - began < 0.2, "of a file that is known"


# Showing --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_the_report_has_a_row_and_a_bar_for_each_encoding(simulated: SimulationResult, tmp_path: Path) -> None:
    ledger = ledger_of(simulated)
    name = ledger.studies()[0].name
    page = write_pages(ledger, name, tmp_path).read_text(encoding="utf-8")
    uses = encodings_of(ledger, name)
    for use in uses:
        arrow = {"down": "↓", "up": "↑"}[use.direction]
        assert f'<th scope="row">{arrow} {use.encoding}</th>' in page
        assert describe_encoding(use.encoding) in page
    for total in summarise(ledger, name).encoding_totals:
        arrow = {"down": "↓", "up": "↑"}[total.direction]
        row = page.partition(f'<th scope="row">{arrow} all</th>')[2].partition("</tr>")[0]
        assert describe_bytes(total.bytes) in row
        assert describe_bytes(total.dense_bytes) in row
    most = max(uses, key=lambda use: use.dense_bytes)
    assert f"{describe_bytes(most.bytes)} instead of {describe_bytes(most.dense_bytes)}" in page
    assert (tmp_path / "encodings.png").exists()
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    assert draw_encodings(axes, summarise(ledger, name), LIGHT)
    wanted = {use for use in uses if use.encoding != FRAMING}
    assert len(axes.patches) == 2 * len(wanted) == 2 * len(axes.get_yticks()) > 0


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_from_before_has_neither(tmp_path: Path) -> None:
    old_ledger(tmp_path / "ledger.sqlite").close()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    page = write_pages(ledger, ledger.studies()[0].name, tmp_path / "report").read_text(encoding="utf-8")
    assert "What each encoding saved" not in page
    assert not (tmp_path / "report" / "encodings.png").exists()


# Ledgers of every version ---------------------------------------------------------------------------------------------


def old_ledger(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.executescript(VERSION_1.read_text(encoding="utf-8"))
    db.execute("PRAGMA user_version = 1")
    return db


def test_a_ledger_of_version_1_is_migrated_with_everything_in_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    db = old_ledger(path)
    before = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
              for table in ("cost", "task", "round", "event", "silo", "declared_update")}
    assert all(before.values())
    spent = db.execute("SELECT direction, sum(bytes) FROM cost GROUP BY direction ORDER BY 1").fetchall()
    db.close()
    ledger = Ledger(path)
    assert ledger.query("PRAGMA user_version")[0][0] == len(MIGRATIONS)
    assert ledger.check_events() == before["event"]
    for table, count in before.items():
        assert ledger.query(f"SELECT count(*) FROM {table}")[0][0] == count
    totals = ledger.query("SELECT direction, sum(bytes) FROM cost_total GROUP BY direction ORDER BY 1")
    assert [tuple(row) for row in totals] == spent
    name = ledger.studies()[0].name
    assert encodings_of(ledger, name) == [], "nothing was counted then, and nothing is made up"
    add_encoded(ledger, [Encoded("raw", 1, 10, 12)], study=name, round=1, direction="up")
    assert encodings_of(ledger, name)[0].saved_bytes == 2


def test_a_migration_that_is_cut_off_leaves_the_old_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    old_ledger(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file_module, "MIGRATIONS", (MIGRATIONS[0], MIGRATIONS[1] + "SELECT * FROM nothing;"))
        with pytest.raises(sqlite3.OperationalError):
            Ledger(path)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM sqlite_master WHERE name = 'encoded'").fetchone() == (0,)
    assert Ledger(path).query("SELECT count(*) FROM encoded")[0][0] == 0


def test_totals_follow_every_cost_that_is_added(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number in range(3):
        add_costs(ledger, [Cost(study="s", round=number, phase="train", silo=silo, direction="up", kind="wire",
                                item="tcp", bytes=10 + number, count=1) for silo in ("a", "b")])
    rows = ledger.query("SELECT silo, bytes, count FROM cost_total ORDER BY silo")
    assert [tuple(row) for row in rows] == [("a", 33, 3), ("b", 33, 3)]


def test_two_silos_that_finish_at_once_are_both_counted(tmp_path: Path) -> None:
    """Rows of two processes over one ledger add up: the sum is made in the database."""
    one, two = Ledger(tmp_path / "ledger.sqlite"), Ledger(tmp_path / "ledger.sqlite")

    async def add(ledger: Ledger) -> None:
        for _ in range(20):
            add_encoded(ledger, [Encoded("raw", 1, 2, 3)], study="s", round=1, direction="down")
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(add(one), add(two))
    asyncio.run(both())
    use, = encodings_of(one, "s")
    assert (use.blocks, use.bytes, use.dense_bytes, use.saved_bytes) == (40, 80, 120, 40)
