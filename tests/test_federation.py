"""Whole federations of real processes on localhost: what must hold end to end, besides restarts (test_restart.py)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.processes import (
    PATIENCE_SECONDS,
    STUDY,
    FederationOfProcesses,
    Undisturbed,
    federation,
    federation_behind_a_proxy,
)

SMALL = STUDY.replace("wide_network:wide", "small_cnn")


def test_the_wire_bytes_of_the_ledger_are_those_that_a_proxy_counts(undisturbed: Undisturbed) -> None:
    counted = {direction: sum(int(str(row[0])) for row in undisturbed.processes.query(
        f"SELECT bytes FROM cost WHERE kind = 'wire' AND direction = '{direction}'")) for direction in ("up", "down")}
    assert counted == {"up": undisturbed.proxy.total_up, "down": undisturbed.proxy.total_down}
    assert undisturbed.processes.query("SELECT count(*) FROM cost WHERE estimated = 1") == [(0,)]


def test_wire_bytes_are_a_little_more_than_messages_and_these_than_payloads(undisturbed: Undisturbed) -> None:
    total = {kind: {direction: amount for _, direction, amount in rows} for kind, rows in (
        (kind, undisturbed.processes.query("SELECT kind, direction, sum(bytes) FROM cost WHERE study = 'first' AND kind"
                                           f" = '{kind}' GROUP BY direction"))
        for kind in ("payload", "message", "wire"))}
    for direction in ("up", "down"):
        payload, message, wire = (int(str(total[kind][direction])) for kind in ("payload", "message", "wire"))
        assert payload < message < wire < 1.01 * payload + 50_000


def test_the_audit_trail_holds_every_head_that_silos_have_seen(undisturbed: Undisturbed) -> None:
    processes = undisturbed.processes
    files = [processes.folder / silo / "heads.jsonl" for silo in processes.silos]
    heads = ["--heads", *" --heads ".join(map(str, files)).split()]
    report = json.loads(processes.coordinator("verify", *heads, "--json"))
    assert report["problems"] == []
    assert report["silo_heads"] >= 3 * len(files), "one of each round"
    assert report["signed"] > 0


@pytest.mark.slow
def test_a_silo_that_is_revoked_in_the_middle_of_an_upload_is_cut_off_within_seconds(tmp_path: Path) -> None:
    with federation_behind_a_proxy(tmp_path) as (processes, proxy):
        silo = processes.silos[0]
        processes.start(silo_crash="semisilo.silo.site.memory:SiloMemory.record_pending:1:after")
        processes.died(silo)
        proxy.bytes_per_second = 100_000  # so that its upload takes most of a minute
        processes.join(silo)
        processes.wait_for(lambda: bool(processes.query("SELECT 1 FROM declared_update JOIN task USING (task_id)"
                                                        f" WHERE accepted_unix IS NULL AND silo = '{silo}'")))
        processes.coordinator("revoke", silo, "--yes")
        status = processes.running.pop(silo).wait(PATIENCE_SECONDS)
        assert status == 1
        assert processes.query("SELECT accepted_unix FROM declared_update JOIN task USING (task_id)"
                               f" WHERE silo = '{silo}'") == [(None,)], "it was heard within the upload, not behind it"
        assert "has revoked silo" in processes.log(silo)
        assert "coordinator invite" in processes.log(silo)
        proxy.bytes_per_second = 0
        other = next(name for name in processes.silos if name != silo)
        processes.silos = (other,)
        processes.finish()


@pytest.mark.slow
def test_a_second_study_runs_in_the_same_federation(tmp_path: Path) -> None:
    with federation(tmp_path, study=SMALL) as processes:
        processes.coordinator("new", "second")
        studies = processes.hub / "studies"
        for file in ("study.toml", "labelled.npz", "test.npz"):
            (studies / "second" / file).write_bytes((studies / "first" / file).read_bytes())
        processes.start()
        processes.finish()
        states = dict(processes.query("SELECT name, state FROM study"))
        assert states == {"first": "completed", "second": "completed"}
        digests = processes.query("SELECT DISTINCT state_digest FROM round WHERE number = 3")
        assert len(digests) == 1, "equal settings and silos give equal bits, whatever the study's name"


@pytest.mark.slow
def test_sigterm_ends_both_sides_quietly_and_leaves_nothing_running(tmp_path: Path) -> None:
    with federation(tmp_path) as processes:
        processes.start()
        processes.wait_for(lambda: bool(processes.query(
            "SELECT 1 FROM round WHERE number = 1 AND state = 'completed'")))
        for name in ("alpha", "coordinator"):
            running = processes.running.pop(name)
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE_SECONDS) == 0, processes.log(name)
            assert "Traceback" not in processes.log(name)


def with_wire(study: str, form: str) -> str:
    """The study with one form of payloads both ways."""
    return f'{study}[wire]\nuplink = "{form}"\ndownlink = "{form}"\n'


def payload_bytes(processes: FederationOfProcesses) -> dict[str, dict[int, int]]:
    """Direction -> round -> bytes of all payloads of all silos."""
    found: dict[str, dict[int, int]] = {"up": {}, "down": {}}
    for direction, number, amount in processes.query(
            "SELECT direction, round, sum(bytes) FROM cost WHERE kind = 'payload' GROUP BY direction, round"):
        found[str(direction)][int(str(number))] = int(str(amount))
    return found


def in_round(processes: FederationOfProcesses, number: int) -> bool:
    return bool(processes.query(f"SELECT 1 FROM task WHERE round = {number} AND given_unix IS NOT NULL"))


@pytest.fixture(scope="session")
def raw_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, dict[int, int]]]:
    """Final digest and payload bytes of the study with raw payloads. All its processes are fresh interpreters, while
    those whose bits are compared with these may be copies (`tests/preloaded.py`)."""
    with federation(tmp_path_factory.mktemp("raw"), study=with_wire(STUDY, "raw"), copies=False) as processes:
        processes.start()
        return processes.finish(), payload_bytes(processes)


@pytest.mark.slow
def test_the_smallest_payloads_give_the_same_model_with_fewer_bytes(
        tmp_path: Path, raw_run: tuple[str, dict[str, dict[int, int]]]) -> None:
    digest, raw = raw_run
    with federation(tmp_path, study=with_wire(STUDY, "smallest")) as processes:
        processes.start()
        assert processes.finish() == digest
        small = payload_bytes(processes)
    assert raw["down"].keys() == small["down"].keys() == raw["up"].keys() == {1, 2, 3}
    for number in (1, 2, 3):
        assert small["up"][number] < 0.95 * raw["up"][number]
        assert small["down"][number] < (0.95 if number == 1 else 0.8) * raw["down"][number]


@pytest.mark.slow
def test_a_silo_that_loses_its_cache_between_rounds_gets_whole_groups_and_the_model_is_the_same(
        tmp_path: Path, raw_run: tuple[str, dict[str, dict[int, int]]]) -> None:
    with federation(tmp_path, study=with_wire(STUDY, "smallest")) as processes:
        processes.start()
        processes.wait_for(lambda: in_round(processes, 2))
        processes.kill("alpha")
        cache = tmp_path / "alpha" / "cache"
        held = set(os.listdir(cache / "tensors"))
        assert held, "there is something to lose"
        shutil.rmtree(cache)
        processes.join("alpha")
        assert processes.finish() == raw_run[0]
        assert set(os.listdir(cache / "tensors"))
        alone = {str(silo) for silo, text in processes.query("SELECT silo, spec_json FROM task WHERE round > 1")
                 for payload in json.loads(str(text))["payloads"]
                 if payload["groups"] == ["model"] and not payload["reference"]}
        assert alone == {"alpha"}


@pytest.mark.slow
def test_a_coordinator_that_loses_its_references_between_rounds_ends_with_the_same_model(
        tmp_path: Path, raw_run: tuple[str, dict[str, dict[int, int]]]) -> None:
    with federation(tmp_path, study=with_wire(STUDY, "smallest")) as processes:
        processes.start()
        processes.wait_for(lambda: in_round(processes, 2))
        processes.kill("coordinator")
        shutil.rmtree(processes.hub / "payloads" / "tensors")
        processes.serve()
        assert processes.finish() == raw_run[0]


FEDMATCH = STUDY[:STUDY.index("[method]")].replace(
    'test = "test.npz"', 'test = "test.npz"\nvalidation = "labelled.npz#val"') + """[method]
name = "fedmatch"
scenario = "labels-at-coordinator"
confidence_threshold = 0.3
unlabelled_batch = 20
[participation]
round_timeout = "{timeout}"
"""


@pytest.mark.slow
def test_a_method_that_overwrites_sends_little_and_gives_the_same_model_when_a_silo_loses_what_it_held(
        tmp_path: Path) -> None:
    """FedMatch. Its first task comes whole; from then on a silo is sent what differs from what it holds, and sends what
    differs from what it was sent."""
    with federation(tmp_path / "raw", study=with_wire(FEDMATCH, "raw")) as processes:
        processes.start()
        digest = processes.finish()
        dense = 2 * 4 * 1_200_010  # of two silos
        sent = {(int(str(number)), str(direction)): int(str(amount)) for number, direction, amount in processes.query(
            "SELECT round, direction, sum(bytes) FROM cost WHERE kind = 'payload' AND item = 'psi'"
            " GROUP BY round, direction")}
        assert sent[1, "down"] > dense
        assert all(sent[number, "down"] < 0.1 * dense for number in (2, 3))
        assert all(sent[number, "up"] < 0.1 * dense for number in (1, 2, 3))
        assert came_whole(processes) == [("alpha", 1), ("beta", 1)]
    with federation(tmp_path / "lost", study=with_wire(FEDMATCH, "smallest")) as processes:
        processes.start()
        processes.wait_for(lambda: in_round(processes, 2))
        processes.kill("alpha")
        shutil.rmtree(tmp_path / "lost" / "alpha" / "cache")
        processes.join("alpha")
        assert processes.finish() == digest
        assert came_whole(processes)[2:] in ([("alpha", 2)], [("alpha", 3)]), "the round in which it was noticed"


def came_whole(processes: FederationOfProcesses) -> list[tuple[str, int]]:
    """(silo, round) of the tasks that sent all of psi."""
    rows = processes.query("SELECT silo, round, spec_json FROM task ORDER BY round, silo")
    return [(str(silo), int(str(number))) for silo, number, text in rows
            for payload in json.loads(str(text))["payloads"]
            if payload["groups"] == ["psi"] and payload["digest"] and not payload["reference"]]


BIG = with_wire(STUDY.replace("wide_network:wide", "wide_network:{network}").replace("rounds = 3", "rounds = 1"), "raw")


@pytest.mark.parametrize(("network", "megabytes", "cut_seconds"), [
    ("wide_40_megabytes", 40, 1.5),
    pytest.param("wide_200_megabytes", 200, 3.0, marks=pytest.mark.timeout(1800)),
])
@pytest.mark.slow
def test_a_large_payload_goes_through_a_connection_that_is_cut_every_few_seconds(
        tmp_path: Path, network: str, megabytes: int, cut_seconds: float) -> None:
    study = BIG.replace("{network}", network).replace("start_with = 2", "start_with = 1")
    with federation_behind_a_proxy(tmp_path, study=study, silos=("alpha",), images=20) as (processes, proxy):
        proxy.cut_after_seconds = cut_seconds
        proxy.bytes_per_second = megabytes * 1e6 / (4 * cut_seconds)
        processes.factory = f"wide_network:{network}"
        processes.start()
        processes.wait_for(lambda: bool(processes.query(
            "SELECT 1 FROM declared_update WHERE accepted_unix IS NOT NULL")), seconds=1500)
        proxy.cut_after_seconds = None
        processes.finish()
        (size,), = processes.query("SELECT size_bytes FROM declared_update WHERE accepted_unix IS NOT NULL")
        assert int(str(size)) > megabytes * 1e6
        assert len(proxy.connections) >= 6, "the connection was cut several times each way"
        assert proxy.total_up < 1.8 * megabytes * 1e6, "what had arrived was not sent again"
        assert proxy.total_down < 1.8 * megabytes * 1e6
