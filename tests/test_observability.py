"""Real processes, watched: JSON logs and metrics of both sides, TensorBoard, and encodings that add up on the wire."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.text.logs import FIELDS, FORMAT_VARIABLE
from tests.processes import STUDY, FederationOfProcesses, federation, free_ports
from tests.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SMALL = STUDY.replace('name = "wide_network:wide"', 'name = "small_cnn"')


def start(processes: FederationOfProcesses, *words: str, crash: str = "") -> None:
    """
    Args:
        words: for the first silo besides.
        crash: where the second one dies.
    """
    processes.serve()
    for name in processes.silos:
        processes.enroll(name)
    for name in processes.silos:
        processes.join(name, words=("--exit-when-finished", *words) if name == processes.silos[0]
                       else ("--exit-when-finished",), crash=crash if name == processes.silos[1] else "")


def lines(processes: FederationOfProcesses, name: str) -> list[dict[str, Any]]:
    """Every line that a process has written, to standard output or error; each must be JSON."""
    text = (processes.folder / f"{name}.log").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_federation_with_json_logs_writes_nothing_else_and_one_id_finds_both_ends(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    with federation(tmp_path, study=SMALL) as processes:
        start(processes)
        processes.finish()
        logs = {name: lines(processes, name) for name in ("coordinator", *processes.silos)}
    for name, found in logs.items():
        assert found, name
        for line in found:
            assert line.keys() <= {"time", "level", "logger", "message", "traceback", *FIELDS}
            assert line["level"] != "error", line
    committed = [line["round"] for line in logs["coordinator"] if "committed" in line["message"]]
    assert committed == [0, 1, 2, 3]
    for silo in processes.silos:
        ours = {line["request_id"] for line in logs[silo] if line.get("rpc") == "SubmitUpdate"}
        theirs = {line["request_id"]: line["silo"] for line in logs["coordinator"] if line.get("rpc") == "SubmitUpdate"}
        assert len(ours) >= 3
        assert {theirs[request] for request in ours} == {silo}


def test_encodings_add_up_to_payload_bytes_although_downloads_are_cut_and_gone_on_with(tmp_path: Path) -> None:
    public = free_ports()
    with federation(tmp_path, public_port=public) as processes, \
            Proxy("127.0.0.1", processes.port, listen_port=public) as proxy:
        start(processes)
        for _ in range(6):
            time.sleep(1.5)
            if "coordinator" in processes.running and processes.running["coordinator"].poll() is None:
                proxy.cut()
        processes.finish()
        spent = dict(processes.query("SELECT direction, sum(bytes) FROM cost WHERE kind = 'payload'"
                                     " GROUP BY direction"))
        counted = dict(processes.query("SELECT direction, sum(bytes) FROM encoded GROUP BY direction"))
        assert counted == spent
        assert set(counted) == {"down", "up"}
        assert processes.query("SELECT count(*) FROM encoded WHERE encoding = 'unknown'") == [(0,)]
        updates = processes.query("SELECT sum(blocks) FROM encoded WHERE direction = 'up'")[0][0]
        assert isinstance(updates, int)
        assert updates > 0


def test_metrics_of_both_sides_and_tensorboard_while_a_study_runs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tests.coordinator.tracking.test_tensorboard import steps_in

    site = free_ports()
    with federation(tmp_path, study=SMALL, page=True) as processes:
        configuration = processes.hub / "federation.toml"
        page = free_ports()
        text = configuration.read_text(encoding="utf-8").replace('listen = "127.0.0.1:0"',
                                                                 f'listen = "127.0.0.1:{page}"')
        configuration.write_text(text.partition("[tracking]")[0] + "[tracking]\ntensorboard = true\n",
                                 encoding="utf-8")
        start(processes, "--metrics", f"127.0.0.1:{site}",  # and round 1 stays open until both were looked at
              crash="semisilo.silo.site.memory:SiloMemory.record_pending:1:before")
        seen: dict[str, str] = {}

        def scraped() -> bool:
            for name, port in (("hub", page), ("site", site)):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
                        seen[name] = answer.read().decode()
                except OSError:
                    return False
            return 'semisilo_site_tasks_total{outcome="updated"} ' in seen["site"] \
                and 'semisilo_site_tasks_total{outcome="updated"} 0' not in seen["site"]
        processes.wait_for(scraped, seconds=300)
        assert "semisilo_serving 1.0" in seen["hub"]
        assert 'semisilo_study_state{state="running",study="first"} 1.0' in seen["hub"]
        processes.died(processes.silos[1])
        processes.join(processes.silos[1])
        processes.finish()
        events, = (processes.hub / "studies" / "first" / "tensorboard").iterdir()
        assert steps_in(events) == [0, 1, 2, 3]
