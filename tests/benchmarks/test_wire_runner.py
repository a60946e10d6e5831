"""What the benchmark against other systems measures with, and what it shows."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.wire.cells import FULL, SYSTEMS, command, order
from benchmarks.wire.job import add_perturbation, initial_model, perturbation, shapes
from benchmarks.wire.limits import entropy, measure_limits, position_bound_bytes, tls_round_seconds
from benchmarks.wire.results import write_results
from benchmarks.wire.watch import Processes, Watch, peak_bytes, wait_for
from tests.each_of import each_of


@each_of("parameters", [10_000, 100_000, 1_500_000, 25_000_000])
def test_the_shapes_have_exactly_so_many_parameters(parameters: int) -> None:
    found = shapes(parameters)
    assert sum(math.prod(shape) for shape in found.values()) == parameters
    assert min(min(shape) for shape in found.values()) >= 1


def test_a_perturbation_is_what_it_says_and_the_same_again() -> None:
    model = initial_model(200_000)
    before = {name: values.copy() for name, values in model.items()}
    add_perturbation(model, silo=1, round=3, density=0.1)
    noise = perturbation(200_000, silo=1, round=3, density=0.1)
    for name, values in model.items():
        assert np.array_equal(values, before[name] + noise[name])
    changed = sum(int(np.count_nonzero(values)) for values in noise.values()) / 200_000
    assert changed == pytest.approx(0.1, abs=0.005)  # 7 standard deviations of a binomial with n = 200 000


def test_silos_and_rounds_draw_different_noise() -> None:
    draws = [perturbation(50_000, silo=silo, round=round, density=1.0)["layer5.weight"].tobytes()
             for silo in range(8) for round in range(1, 20)]
    assert len(set(draws)) == len(draws)


@pytest.mark.slow
def test_the_bytes_of_a_silos_connection_are_counted_and_a_strangers_are_not(tmp_path: Path) -> None:
    """A child sends 3 000 000 bytes and receives 70 000; this process, which is no silo, sends 500 000."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        done = threading.Event()

        def serve() -> None:
            served = [listening.accept()[0] for _ in range(2)]
            for connection in served:
                taken = 0
                while taken < 500_000:
                    taken += len(connection.recv(65_536))
                connection.sendall(bytes(70_000))
            done.wait(300)

        def drain_and_serve() -> None:
            serve()

        thread = threading.Thread(target=drain_and_serve, daemon=True)
        thread.start()
        program = ("import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
                   "time.sleep(0.5); s.sendall(bytes(500_000)); n = 0\n"
                   "while n < 70_000: n += len(s.recv(65_536))\n"
                   "print('all', flush=True); time.sleep(30)")
        with Processes(tmp_path) as processes, Watch(port, processes.owners) as watch:
            begin = time.time()
            processes.start("silo0", [sys.executable, "-c", program, str(port)])
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(bytes(500_000))
                wait_for(lambda: "all" in processes.tail("silo0"), "the child", 300)
                wait_for(lambda: watch.bytes_between(begin, time.time())[0] > 0, "the count of the connection", 60)
                up_bytes, down_bytes = watch.bytes_between(begin, time.time())
            done.set()
        assert (up_bytes, down_bytes) == (500_000, 70_000)
        assert watch.silo_peak_bytes() > 1_000_000


def test_everything_that_was_started_ends_also_what_has_detached_itself(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.wire.watch._GRACE_SECONDS", 0.2)
    program = ("import subprocess, sys, time\n"
               "p = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN);"
               " print(1, flush=True); time.sleep(600)'], start_new_session=True)\n"
               "print('child', p.pid, flush=True)")
    with Processes(tmp_path) as processes:
        processes.start("parent", [sys.executable, "-c", program])
        wait_for(lambda: processes.started["parent"].poll() is not None and "1" in processes.tail("parent").split(),
                 "the grandchild", 300)
        grandchild = int(processes.find("parent", r"child (\d+)"))
        assert processes.owners() == {grandchild: "parent"}
    wait_for(lambda: peak_bytes(grandchild) == 0, "its end", 300)


def test_a_peer_measures_between_every_two_of_ours_in_each_cell() -> None:
    cells = order(FULL, [])
    assert len(cells) == 8 * len(SYSTEMS)
    ours = [cell.system.key.startswith("semisilo") for cell in cells[:len(SYSTEMS)]]
    assert ours == [True, False, True, False, True]
    assert {cell.system.key for cell in order(FULL, ["semisilo"])} == {
        "semisilo-raw", "semisilo-auto", "semisilo-smallest"}


def test_each_system_is_asked_for_its_timed_rounds_and_one_to_warm_up(tmp_path: Path) -> None:
    """The peers' adapters add the warm-up round themselves; ours counts all rounds."""
    for cell in order(FULL, []):
        words = command(cell, rounds=7, result=tmp_path / "r", folder=tmp_path / "f", peers=tmp_path / "peers")
        asked = int(words[words.index("--rounds") + 1])
        assert asked == (8 if cell.system.key.startswith("semisilo") else 7)


def test_entropy_of_a_tenth_and_its_limits() -> None:
    """H(0.1) = 0.468996 bit, H(0.5) = 1 bit, H(0) = H(1) = 0."""
    assert entropy(0.1) == pytest.approx(0.4689955935892812)
    assert entropy(0.5) == 1.0
    assert entropy(0.0) == entropy(1.0) == 0.0
    assert position_bound_bytes(8_000_000, 0.5) == 1_000_000


@pytest.mark.slow
def test_raw_tls_moves_the_bytes_of_all_silos_both_ways() -> None:
    seconds = tls_round_seconds(2, 1_000_000, 2)
    assert [len(each) for each in seconds.values()] == [2, 2]
    assert all(0 < second < 20 for each in seconds.values() for second in each)


def _everything(tmp_path: Path) -> dict[str, Any]:
    cells = []
    for number, cell in enumerate(order(FULL, [])):
        facts: dict[str, Any] = {"key": cell.key, "system_key": cell.system.key, "silos": cell.silos,
                                 "parameters": cell.parameters, "density": cell.density}
        if cell.system.key == "flower" and cell.silos == 8:
            facts["failed"] = "ended with 1: out\nof luck"
        else:
            facts |= {"version": "9.9", "seconds_per_round": [1.0, 3.0, 2.0 + number], "notes": "a note",
                      "up_bytes": 4.0 * cell.parameters, "down_bytes": 4.0 * cell.parameters,
                      "coordinator_peak_bytes": 10**9 + 8 * cell.parameters * cell.silos,
                      "coordinator_import_bytes": 10**9, "silo_peak_bytes": 5}
        cells.append(facts)
    limits = measure_limits([(2, 10_000)], [0.1], repetitions=1, moved_bytes=1_000_000)
    round_ = limits["tls_dense_round"]["2 x 10000"]
    limits["tls_dense_round"] = {f"{silos} x {size}": round_ for silos in (2, 8) for size in (1_500_000, 25_000_000)}
    limits["dense_bytes"] = {"1500000": 6_000_000, "25000000": 100_000_000}
    limits["position_bound_bytes"] = {"1500000 x 0.1": 87_937.0, "25000000 x 0.1": 1_465_611.0}
    machine = {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "kernel": "6", "python": "3.11.7",
               "load_before": [0.5, 0.5, 0.5], "date": "2026-01-02T03:04:05+00:00"}
    return {"machine": machine, "plan": "full", "minutes": 1.0, "limits": limits, "cells": cells}


@pytest.mark.slow
def test_the_page_shows_every_cell_and_what_failed(tmp_path: Path) -> None:
    everything = json.loads(json.dumps(_everything(tmp_path)))
    write_results(everything, tmp_path)
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.count("| 8 | 25 M | 10% |") == 4  # seconds, bytes, up and down, memory
    assert page.count(" failed ") == 4 * 4
    assert "`flower-8x25000000-1`: ended with 1: out of luck" in page
    assert "100.0% (1.00 x)" in page
    assert "semisilo auto +2.00" in page  # 8 bytes per parameter and silo are two models
    assert "<svg" in (tmp_path / "results.svg").read_text()


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C while a measurement runs: exit code 130, and nothing that carries the run's mark is left. The raw limits
    are what was measured before."""
    limits = tmp_path / "build" / "quick" / "cells" / "limits.json"
    limits.parent.mkdir(parents=True)
    limits.write_text('{"kept": true}')
    environment = {**os.environ, "MARK_OF_THIS_TEST": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.wire.run", "--quick", "--only", "flower", "--peers",
                                str(_sleeping_peer(tmp_path)), "--build", str(tmp_path / "build")],
                               stderr=subprocess.PIPE, env=environment, text=True, cwd=Path(__file__).parents[2],
                               # A shell starts what runs in its background with Ctrl-C ignored; that is inherited.
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        wait_for(lambda: any("benchmarks.wire.flower" in line for line in _marked(tmp_path)), "the measurement", 300)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert _marked(tmp_path) == []
    assert limits.read_text() == '{"kept": true}'


def _sleeping_peer(folder: Path) -> Path:
    """An environment whose interpreter starts another process and waits."""
    python = folder / "peers" / "flower" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nsetsid sleep 100 &\nsleep 100\n")
    python.chmod(0o755)
    return folder / "peers"


def _marked(folder: Path) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if f"MARK_OF_THIS_TEST={folder}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found
