"""Silos in parallel processes: the bits of one process, whoever dies, and nothing that stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from semisilo.common.errors import SemisiloError, UsageError
from semisilo.common.process.compute import ProcessCompute
from semisilo.silo.compute.messages import Train, Trained
from semisilo.simulation import SimulationResult, run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.engines import processes
from semisilo.simulation.engines.one_process import InlineWorkplace
from semisilo.simulation.engines.processes import ProcessesWorkplace
from semisilo.simulation.engines.shared_images import read_working, share
from semisilo.simulation.engines.worker import prepared
from semisilo.simulation.settings import load_simulated_study
from semisilo.simulation.simulate import _moved, _workplace
from tests.semisilo.simulation.engines.test_ray import _children
from tests.semisilo.simulation.test_simulate import AFTER_AN_ANSWER, RESUMED, killed
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    """`RESUMED`: silos keep momentum and what was left out."""
    return run(RESUMED, out=tmp_path_factory.mktemp("here"), device="cpu", engine="process")


@pytest.fixture
def trained_elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """A process id for every task that was trained in another process."""
    found: list[int | None] = []
    original = ProcessCompute.call

    async def call(self: ProcessCompute, request: Any, **options: Any) -> Any:
        answer = await original(self, request, **options)
        found.append(self.pid)
        return answer

    monkeypatch.setattr(ProcessCompute, "call", call)
    return found


def same(found: SimulationResult, expected: SimulationResult) -> None:
    assert found.digest == expected.digest
    assert found.curve == expected.curve
    assert ([(each.payload_down, each.payload_up, each.answers) for each in found.rounds]
            == [(each.payload_down, each.payload_up, each.answers) for each in expected.rounds])


# Same bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_however_many_processes_the_bits_and_bytes_are_those_of_one(
        tmp_path: Path, in_one_process: SimulationResult, trained_elsewhere: list[int | None], workers: int) -> None:
    same(run(RESUMED, out=tmp_path, device="cpu", workers=workers), in_one_process)
    assert len(trained_elsewhere) == 9
    assert 1 <= len(set(trained_elsewhere)) <= workers
    assert not [each for each in _children() if "semisilo" in each], "nothing is left running"


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scenario"), [("scaffold", "labels-at-silo"), ("fedmatch", "labels-at-silo")])
def test_methods_that_keep_something_at_silos_end_with_the_same_bits(
        tmp_path: Path, method: str, scenario: str) -> None:
    tables = study(method, scenario, rounds=3)
    here = run(tables, out=tmp_path / "here", device="cpu", engine="process")
    for workers in (1, 2):
        same(run(tables, out=tmp_path / str(workers), device="cpu", workers=workers), here)


@pytest.mark.slow
def test_by_default_other_processes_take_over_once_they_are_ready(
        tmp_path: Path, in_one_process: SimulationResult, trained_elsewhere: list[int | None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(processes, "usable_processors", lambda: 2)
    monkeypatch.setattr(ProcessesWorkplace, "train", _begun_first(ProcessesWorkplace.train, after=2))
    same(run(RESUMED, out=tmp_path, device="cpu"), in_one_process)
    assert len(trained_elsewhere) == 7, "two of nine were trained here"


def _begun_first(original: Callable[..., Any], *, after: int) -> Callable[..., Any]:
    """Lets so many tasks begin before the other processes are ready, and the next ones after that."""
    begun: list[str] = []

    async def train(self: ProcessesWorkplace, request: Train, **options: Any) -> Trained:
        begun.append(request.task.task_id)
        if len(begun) > after:
            self._beginning = self._beginning or asyncio.ensure_future(self._begin())
            while not self._is_open:
                await asyncio.sleep(0.01)
        trained: Trained = await original(self, request, **options)
        return trained

    return train


@pytest.mark.slow
def test_a_short_simulation_starts_no_other_process(tmp_path: Path, trained_elsewhere: list[int | None],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_WORTH_SECONDS", 1000.0)
    monkeypatch.setattr(processes, "usable_processors", lambda: 2)
    run(study(rounds=1), out=tmp_path, device="cpu")
    assert trained_elsewhere == []


@pytest.mark.slow
def test_where_an_event_loop_runs_already_processes_train_as_well(tmp_path: Path,
                                                                  in_one_process: SimulationResult) -> None:
    async def cell() -> SimulationResult:
        return run(RESUMED, out=tmp_path / "out", device="cpu", workers=2)

    same(asyncio.run(cell()), in_one_process)


@pytest.mark.slow
def test_where_processes_cannot_be_copied_each_is_started_by_itself(
        tmp_path: Path, in_one_process: SimulationResult, trained_elsewhere: list[int | None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(processes, "can_copy", lambda: False)
    same(run(RESUMED, out=tmp_path, device="cpu", workers=2), in_one_process)
    assert len(trained_elsewhere) == 9


# Death ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_trains_is_replaced_and_its_task_done_again(
        tmp_path: Path, in_one_process: SimulationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    original, dead = ProcessesWorkplace.train, []

    async def train(self: ProcessesWorkplace, request: Train, **options: Any) -> Trained:
        running = asyncio.ensure_future(original(self, request, **options))
        if request.task.round == 2 and not dead:
            while not self.pids:
                await asyncio.sleep(0.001)
            dead.append(self.pids[0])
            os.kill(self.pids[0], signal.SIGKILL)
        return await running

    monkeypatch.setattr(ProcessesWorkplace, "train", train)
    same(run(RESUMED, out=tmp_path, device="cpu", workers=1), in_one_process)
    assert len(dead) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "match"), [
    ("dying", r"3 processes in a row have died while they trained silo-000: .*signal 9"),
    ("out_of_memory", r"3 processes in a row .*silo-000: Out of memory"),
    ("mistaken", "ZeroDivisionError: a mistake")])
def test_what_goes_wrong_in_every_process_ends_the_simulation_with_one_line(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, match: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(processes, "_TARGET", f"tests.semisilo.simulation.engines.dying:{target}")
    with pytest.raises(SemisiloError, match=match) as error:
        run(study(rounds=1), out=tmp_path, device="cpu", workers=1)
    assert "\n" not in error.value.line()
    if target == "dying":
        assert "--workers" in error.value.remedy


@pytest.mark.slow
def test_what_a_silo_would_refuse_is_refused_from_another_process_as_well(tmp_path: Path) -> None:
    result = run(study(rounds=1, settings={"lr": 1e30, "coordinator_epochs": 0, "clip_norm": 0.0}), out=tmp_path,
                 device="cpu", workers=2)
    assert "refused" in {each.state for each in result.silos}


@pytest.mark.slow
def test_a_simulation_that_was_killed_leaves_no_process_and_goes_on_with_the_same_bits(
        tmp_path: Path, in_one_process: SimulationResult) -> None:
    path, out = killed(RESUMED, tmp_path, crash=AFTER_AN_ANSWER, options="workers=2")
    until = time.monotonic() + 60
    while _processes_of(out):
        assert time.monotonic() < until
        time.sleep(0.05)
    resumed = run(path, out=out, device="cpu", workers=3)
    assert resumed.digest == in_one_process.digest
    assert resumed.curve == in_one_process.curve


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_in_the_middle_it_leaves_no_process_and_goes_on(
        tmp_path: Path, number: signal.Signals, status: int) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(study(rounds=50)), encoding="utf-8")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        running = subprocess.Popen([sys.executable, "-P", "-m", "semisilo.cli.main", "simulate", str(path), "--workers",
                                    "2", "--device", "cpu", "--out", str(tmp_path / "out")], cwd=ROOT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        until = time.monotonic() + 100
        while len(started := _processes_below(running.pid)) < 2:  # a nursery and a copy
            assert time.monotonic() < until
            assert running.poll() is None, running.communicate()
            time.sleep(0.05)
        running.send_signal(number)
        _, error = running.communicate(timeout=100)
    finally:
        running.kill()
    assert running.returncode == status, error
    assert "continues from here" in error
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < until
        time.sleep(0.05)


def _processes_of(folder: Path) -> list[int]:
    """Nurseries and copies of a simulation that has held its folder's lock; they have no other mark."""
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if _works_in(each, folder)]


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return str(folder.parent) in (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return False


def _processes_below(pid: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, here = [], [pid]
    while here:
        parent = here.pop()
        children = [each for each, its in parents.items() if its == parent]
        here += children
        found += children
    return found


# Memory and choices ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("free", "expected"), [(0, 1), (2**50, 3)])
def test_where_memory_is_short_there_are_fewer_processes(
        tmp_path: Path, trained_elsewhere: list[int | None], monkeypatch: pytest.MonkeyPatch, free: int,
        expected: int) -> None:
    most = []
    original = ProcessesWorkplace._hire

    def hire(self: ProcessesWorkplace) -> None:
        original(self)
        most.append(len(self._processes))

    monkeypatch.setattr(ProcessesWorkplace, "_hire", hire)
    monkeypatch.setattr(processes, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(processes, "usable_processors", lambda: 3)
    monkeypatch.setattr(processes, "free_bytes", lambda: free)
    monkeypatch.setattr(ProcessesWorkplace, "train", _begun_first(ProcessesWorkplace.train, after=0))
    run(study(rounds=3, silos=6), out=tmp_path, device="cpu")
    assert max(most) == expected
    assert len(set(trained_elsewhere)) == expected


def test_with_too_little_memory_for_a_second_copy_the_images_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = deal_study(load_simulated_study(study()))
    monkeypatch.setattr("semisilo.simulation.engines.shared_images.free_bytes", lambda: 1000)
    assert share(dealt, device="cpu") is None


def test_shared_images_are_those_that_were_dealt_and_nobody_can_change_them_for_others() -> None:
    dealt = deal_study(load_simulated_study(study("fedmatch", "labels-at-silo")))
    shared = share(dealt, device="cpu")
    assert shared is not None
    moved, file = shared
    first, second = read_working(file.descriptor), read_working(file.descriptor)
    file.close()
    assert first.method == "fedmatch"
    assert moved.digest() == dealt.digest()
    for here, there in zip(dealt.silos_images(), first.images, strict=True):
        for name in ("labelled", "unlabelled", "test"):
            mine, its = getattr(here, name), getattr(there, name)
            assert torch.equal(mine.images_NCHW, its.images_NCHW)
            assert torch.equal(mine.labels_N, its.labels_N)
            assert mine.names == its.names
    first.images.images.images_NCHW.zero_()
    assert second.images.images.images_NCHW.any()
    assert moved.digest() == dealt.digest()


def test_workers_are_refused_where_one_silo_trains_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers has no effect: in this process"):
        run(study(), out=tmp_path / "out", engine="process", workers=2)


@pytest.mark.parametrize(("workers", "expected"), [(2, ProcessesWorkplace), (None, InlineWorkplace)])
def test_an_accelerator_is_shared_by_several_processes_only_where_somebody_asks_for_them(
        workers: int | None, expected: type[object]) -> None:
    dealt = deal_study(load_simulated_study(study()))
    with _moved(dealt, engine="processes", device="cuda", workers=workers) as (dealt, shared):
        assert isinstance(_workplace(dealt, shared, engine="processes", device="cuda", workers=workers), expected)
        assert (shared is None) == (workers is None)
        if shared is not None:
            assert read_working(shared.descriptor).device == "cuda"


def test_what_is_copied_for_an_accelerator_does_not_take_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a process that has an accelerator cannot use it."""
    def taken(*arguments: object) -> None:
        raise AssertionError("the accelerator was taken")

    for name in ("_lazy_init", "is_available", "device_count", "init"):
        monkeypatch.setattr(torch.cuda, name, taken)
    shared = share(deal_study(load_simulated_study(study())), device="cuda")
    assert shared is not None
    build = prepared(shared[1].descriptor)
    assert build(lambda fraction, text: None)._device == "cuda"
    shared[1].close()
