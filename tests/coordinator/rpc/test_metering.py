"""The coordinator's meter over real connections: whose bytes, which call, which phase, and nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semisilo.common.errors import DiskFull
from semisilo.common.rpc.meter import ConnectionMeter
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.coordinator.ledger.costs import Cost, costs_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.rpc import metering
from semisilo.coordinator.rpc.metering import RoundMeter
from tests.coordinator.hub_over_tls import Hub, hub


def costs(made: Hub, *, kind: str, phase: str = "") -> list[Cost]:
    return [row for row in costs_of(made.coordinator.ledger, "s") if row.kind == kind and phase in ("", row.phase)]


async def report(made: Hub, silo: str, *, times: int = 1) -> tuple[int, int]:
    """Calls ReportProgress; returns the bytes of its requests and answers."""
    up = down = 0
    for _ in range(times):
        request = pb.ReportProgressRequest(task_id=made.tasks[silo].task_id, fraction=0.5, text="x" * 1000)
        answer = await made.silos[silo].ReportProgress(request, timeout=300)
        up, down = up + request.ByteSize(), down + answer.ByteSize()
    return up, down


def test_messages_are_counted_by_silo_call_and_direction_and_written_to_the_phase_that_is_settled(
        tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            await made.meter.settle(study="s", round=1, phase="standby")
            alpha_up, alpha_down = await report(made, "alpha", times=3)
            beta_up, _ = await report(made, "beta")
            await made.meter.settle(study="s", round=1, phase="train")
            found = {(row.silo, row.item, row.direction): (row.bytes, row.count)
                     for row in costs(made, kind="message", phase="train")}
            assert found == {("alpha", "ReportProgress", "up"): (alpha_up, 3),
                             ("alpha", "ReportProgress", "down"): (alpha_down, 3),
                             ("beta", "ReportProgress", "up"): (beta_up, 1),
                             ("beta", "ReportProgress", "down"): (0, 1)}
    asyncio.run(scenario())


def test_a_second_settlement_counts_nothing_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            await report(made, "alpha")
            await made.meter.settle(study="s", round=1, phase="train")
            before = costs(made, kind="message")
            await made.meter.settle(study="s", round=1, phase="train")
            assert costs(made, kind="message") == before
            again, _ = await report(made, "alpha")
            await made.meter.settle(study="s", round=2, phase="train")
            assert [(row.round, row.bytes) for row in costs(made, kind="message", phase="train")
                    if (row.item, row.direction) == ("ReportProgress", "up")] == [(1, again), (2, again)]
    asyncio.run(scenario())


def test_wire_bytes_belong_to_the_silo_of_the_connection_and_hold_its_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            await made.meter.settle(study="s", round=1, phase="standby")
            up, _ = await report(made, "alpha", times=20)
            await made.meter.settle(study="s", round=1, phase="train")
            wire = {(row.silo, row.direction): row for row in costs(made, kind="wire", phase="train")}
            found = wire["alpha", "up"]
            assert found.item == "tcp"
            if not found.estimated:
                assert up < found.bytes < 2 * up
            assert ("beta", "up") not in wire or wire["beta", "up"].bytes < up / 10
    asyncio.run(scenario())


class _Uncounted(ConnectionMeter):
    """A machine whose kernel does not count."""

    def __init__(self, port: int) -> None:
        super().__init__(local_port=port)
        self.supported = False


def test_where_the_kernel_does_not_count_wire_bytes_are_estimated_and_said_to_be(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            meter = RoundMeter(made.coordinator.ledger, port=made.port, connections=_Uncounted)
            meter.bind("ipv4:127.0.0.1:5", "alpha")
            meter.message("SubmitUpdate", "alpha", "up", 100_000)
            await meter.settle(study="s", round=7, phase="train")
            rows = [row for row in costs_of(made.coordinator.ledger, "s") if row.round == 7]
            assert [(row.bytes, row.estimated) for row in rows if row.kind == "message"] == [(100_000, False)]
            wire = [row for row in rows if (row.kind, row.direction) == ("wire", "up")]
            assert [row.estimated for row in wire] == [True]
            assert 100_000 < wire[0].bytes < 120_000
    asyncio.run(scenario())


def test_a_time_without_traffic_writes_no_rows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            meter = RoundMeter(made.coordinator.ledger, port=1)
            await meter.settle(study="s", round=9, phase="train")
            assert [row for row in costs_of(made.coordinator.ledger, "s") if row.round == 9] == []
    asyncio.run(scenario())


def test_a_settlement_that_is_cut_off_loses_nothing_and_counts_nothing_twice(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("semisilo.coordinator.rpc.metering._ROWS_AT_ONCE", 10)
        async with hub(tmp_path) as made:
            meter = RoundMeter(made.coordinator.ledger, port=1)
            names = [f"silo-{number:03}" for number in range(95)]
            for name in names:
                meter.message("AwaitTask", name, "up", 100)
            settling = asyncio.ensure_future(meter.settle(study="s", round=9, phase="train"))
            answered = 0
            while not (written := [row for row in costs_of(made.coordinator.ledger, "s") if row.round == 9]):
                await asyncio.sleep(0)
            while not settling.done() and answered < 3:  # others have their turn between two parts
                await asyncio.sleep(0)
                answered += 1
            assert answered == 3
            settling.cancel()
            await asyncio.wait({settling})
            assert 0 < len(written) < len(names)
            await meter.settle(study="s", round=10, phase="standby")
            rows = [row for row in costs_of(made.coordinator.ledger, "s") if row.item == "AwaitTask"
                    and row.silo in names]
            assert sorted(row.silo for row in rows) == names
            assert {(row.round, row.phase, row.bytes) for row in rows} == {(9, "train", 100)}
    asyncio.run(scenario())


def test_others_have_their_turn_while_counts_become_costs_and_a_cut_then_loses_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand silos there are ten thousand: in one go they held everybody up for 0.1 s."""
    monkeypatch.setattr(metering, "_USES_AT_ONCE", 10)
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    meter = RoundMeter(ledger, port=1)
    names = [f"silo-{number:03}" for number in range(95)]
    made = list[int]()

    async def scenario() -> None:
        for name in names:
            meter.message("AwaitTask", name, "up", 100)
        settling = asyncio.ensure_future(meter.settle(study="s", round=9, phase="train"))
        for _ in range(4):
            await asyncio.sleep(0)
            made.append(len(meter._unwritten))
        settling.cancel()
        await asyncio.wait({settling})
        assert not costs_of(ledger, "s")
        await meter.settle(study="s", round=10, phase="standby")

    asyncio.run(scenario())
    assert made == [10, 20, 30, 40]
    assert {(row.silo, row.round, row.phase, row.bytes) for row in costs_of(ledger, "s")} == {
        (name, 9, "train", 100) for name in names}
    ledger.close()


def test_what_cannot_be_written_is_added_up_however_long_that_lasts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weekend with a full disk has a hundred thousand settlements."""
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    meter = RoundMeter(ledger, port=1)

    def full(*_: object) -> None:
        raise DiskFull("no space")

    async def settle(number: int) -> None:
        for silo in ("alpha", "beta"):
            meter.message("AwaitTask", silo, "up", 100 + number)
        meter.message("AwaitTask", "alpha", "down", 7)
        await meter.settle(study="s", round=1, phase="train")

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(metering.CostSums, "add", full)
            for number in range(50):
                with pytest.raises(DiskFull):
                    await settle(number)
            assert len(meter._unwritten) == 3
        await settle(50)
        assert not meter._unwritten
        await settle(51)

    asyncio.run(scenario())
    found = {(row.silo, row.direction): (row.bytes, row.count) for row in costs_of(ledger, "s")}
    up = sum(100 + number for number in range(52)), 52
    assert found == {("alpha", "up"): up, ("beta", "up"): up, ("alpha", "down"): (7 * 52, 52)}
    assert len(ledger.query("SELECT 1 FROM cost")) == 3, "a row for each, however often it is counted"
    ledger.close()
