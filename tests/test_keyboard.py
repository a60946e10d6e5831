"""Quick on the keyboard: what the commands load, how they end, what they complete, and that facts come as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.methods import METHODS
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app as coordinator_app
from tests import identity_kit
from tests.command_lines import SCRIPTS
from tests.coordinator.ledger_fixture import fill_study
from tests.processes import free_ports

HEAVY = ("torch", "torchvision", "matplotlib", "sklearn", "scipy", "PIL", "starlette", "uvicorn", "pandas", "pyarrow",
         "pydantic")  # the last: the parser's, for values that are not plainly right


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEMISILO", "_COORDINATOR"))}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[1]), **more}


def loaded(script: str, *words: str, cwd: Path) -> set[str]:
    """Top-level modules, and dotted ones, that a command has imported when it ends."""
    code = (f"import sys; from semisilo.common.text.cli_errors import run_cli; from {SCRIPTS[script]} import app\n"
            f"run_cli(app, {list(words)!r}, name={script!r}); print('LOADED', *sorted(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=300,
                          env=environment(), check=True)
    return set(done.stdout.partition("LOADED")[2].split())


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--help",), ("--version",)])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_version_load_none_of_the_heavy_libraries(script: str, words: tuple[str, ...], tmp_path: Path) -> None:
    found = loaded(script, *words, cwd=tmp_path)
    assert SCRIPTS[script] in found
    assert not found & {*HEAVY, "grpc", "cryptography", "numpy", "sqlite3", "google.protobuf", "asyncio"}


def test_status_of_the_hub_loads_sqlite_and_rich_and_nothing_heavier(tmp_path: Path) -> None:
    assert run_cli(coordinator_app, ["init", "lung", "--folder", str(tmp_path / "hub")], name="coordinator") == 0
    found = loaded("coordinator", "status", "--folder", str(tmp_path / "hub"), cwd=tmp_path)
    assert {"semisilo.coordinator.monitoring.status", "sqlite3"} <= found
    assert not found & {*HEAVY, "grpc", "cryptography", "numpy", "google.protobuf"}
    assert not found & {f"semisilo.common.methods.{name}" for name in METHODS}, "names of methods are enough for it"


def test_status_of_a_study_under_way_loads_nothing_that_tasks_summaries_and_masks_are_made_with(tmp_path: Path) -> None:
    fill_study(tmp_path / "hub", rounds=3, done=1, collecting=True).ledger.close()
    found = loaded("coordinator", "status", "--folder", str(tmp_path / "hub"), cwd=tmp_path)
    assert "semisilo.coordinator.monitoring.study_facts" in found
    assert not found & {*HEAVY, "semisilo.common.methods.contract", "semisilo.common.methods.study_card",
                        "semisilo.common.secure_aggregation.messages", "semisilo.common.learning.outliers",
                        "semisilo.common.measures.site_evaluation", "semisilo.coordinator.monitoring.summary",
                        "semisilo.coordinator.monitoring.results.by_class", "semisilo.coordinator.studies.privacy"}


@pytest.mark.slow
def test_status_of_a_silo_loads_no_grpc(tmp_path: Path) -> None:
    import asyncio

    from semisilo.silo.membership.enrollment import enroll

    async def work() -> None:
        federation = identity_kit.make_federation(tmp_path / "hub")
        async with identity_kit.serving(federation):
            await enroll(federation.invite(), tmp_path / "home", now=time.time(), use_http_proxy=False)
    asyncio.run(work())
    found = loaded("silo", "status", "--home", str(tmp_path / "home"), cwd=tmp_path)
    assert "semisilo.silo.monitoring.status" in found
    assert not found & {*HEAVY, "grpc", "numpy", "rich.console", "semisilo.common.methods.contract",
                        "semisilo.common.secure_aggregation.messages", "semisilo.common.rpc.meter"}


# JSON -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_commands_of_the_hub_print_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "hub")

    def facts(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run_cli(coordinator_app, [*words, "--folder", folder, "--json"], name="coordinator") == 0
        said = capsys.readouterr()
        assert said.err == ""
        found: dict[str, Any] = json.loads(said.out)
        return found
    made = facts("init", "lung", "--address", "hub.example:8443")
    assert (made["federation"], made["address"], made["enrollment_address"]) == (
        "lung", "hub.example:8443", "hub.example:8444")
    assert Path(made["study"]).is_file()
    invited = facts("invite", "hospital-a", "--life", "2h")
    assert invited["line"].startswith("semisilo-invite-")
    assert abs(invited["expires_unix"] - time.time() - 7200) < 60
    assert Path(facts("new", "second")["path"]).is_file()
    assert facts("queue", "second", "--no-images") | {"rounds": 0} == {
        "study": "second", "state": "queued", "method": "self_training", "rounds": 0,
        "images_checked": False}
    assert facts("revoke", "hospital-a", "--yes") == {"silo": "hospital-a", "state": "revoked"}
    assert Path(facts("report", "second")["page"]).is_file()
    assert facts("status")["federation"] == "lung"


# Completion -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_gives_the_completion_script_of_the_shell_that_calls_it(script: str, tmp_path: Path) -> None:
    # Not the last command of the line: bash would step aside for it, and the shell above bash be found.
    line = f"'{sys.executable}' -m {SCRIPTS[script]} --show-completion; exit $?"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300, cwd=tmp_path,
                          env=environment())
    assert done.returncode == 0, done.stderr
    assert f"complete -o default -F _{script}_completion {script}" in done.stdout


def completed(line: str, *, cwd: Path, **more: str) -> list[str]:
    words = line.split(" ")
    done = subprocess.run([sys.executable, "-m", "semisilo.coordinator.cli.main"], capture_output=True, text=True,
                          timeout=300, cwd=cwd, env=environment(
                              _COORDINATOR_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1),
                              **more))
    return done.stdout.split()


@pytest.mark.slow
def test_names_of_studies_and_silos_are_completed_from_the_ledger_and_nothing_is_made(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    for words in (["init", "lung", "--folder", str(hub)], ["new", "second", "--folder", str(hub)],
                  ["queue", "second", "--no-images", "--folder", str(hub)]):
        assert run_cli(coordinator_app, words, name="coordinator") == 0
    with contextlib.closing(sqlite3.connect(hub / "ledger.sqlite")) as db:
        db.execute("INSERT INTO silo (name, enrolled_unix) VALUES ('hospital-a', 1)")
        db.execute("INSERT INTO silo (name, enrolled_unix, left_unix) VALUES ('hospital-b', 1, 2)")
        db.commit()
    assert completed("coordinator report s", cwd=hub) == ["second"]
    assert completed("coordinator queue f", cwd=hub) == ["first"]
    for command in ("export", "track"):
        assert completed(f"coordinator {command} s", cwd=hub) == ["second"]
    assert completed("coordinator revoke h", cwd=tmp_path, SEMISILO_FEDERATION=str(hub)) == ["hospital-a"]
    assert completed(f"coordinator report --folder {hub} s", cwd=tmp_path) == ["second"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert completed("coordinator report s", cwd=empty) == []
    assert list(empty.iterdir()) == []


# Exit status ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status"), [
    (["-m", "semisilo.coordinator.cli.main", "--version"], 0),
    (["-m", "semisilo.silo.cli.main", "check", "--home", "none"], 1),
    (["-m", "semisilo.coordinator.cli.main", "sever"], 2),
    (["-m", "semisilo.silo.cli.main", "status", "--home", "none"], 2),
])
def test_a_command_ends_with_the_status_that_the_page_names(words: list[str], status: int, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, timeout=300, cwd=tmp_path, env=environment())
    assert done.returncode == status


@pytest.mark.slow
def test_serve_that_is_told_to_end_while_it_starts_ends_with_0(tmp_path: Path) -> None:
    """From the first moment in which it listens to signals, long before it has imported what it needs."""
    hub = tmp_path / "hub"
    assert run_cli(coordinator_app, ["init", "lung", "--folder", str(hub), "--address", f"127.0.0.1:{free_ports()}"],
                   name="coordinator") == 0
    for seconds in (0.0, 0.2, 0.6):
        process = subprocess.Popen([sys.executable, "-m", "semisilo.coordinator.cli.main", "serve",
                                    "--folder", str(hub)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment())
        while not catches(process.pid, signal.SIGTERM):
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        time.sleep(seconds)
        process.terminate()
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert b"Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_that_is_told_to_end_while_nothing_can_be_written_ends_with_the_same_status(
        number: int, status: int, tmp_path: Path) -> None:
    """As on a full disk. What has crossed the network last is still to be written to the ledger then."""
    hub, port = tmp_path / "hub", free_ports()
    assert run_cli(coordinator_app, ["init", "lung", "--folder", str(hub), "--address", f"127.0.0.1:{port}"],
                   name="coordinator") == 0
    shutil.rmtree(hub / "studies" / "first")
    process = subprocess.Popen([sys.executable, "-m", "semisilo.coordinator.cli.main", "serve", "--page", "",
                                "--folder", str(hub)], stderr=subprocess.PIPE, cwd=tmp_path, env=environment())
    assert process.stderr is not None
    said = b""
    while b"serving silos" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(bytes([22, 3, 1, 2, 0]) + bytes(100))  # a TLS record that never becomes whole
        time.sleep(2.5)  # it has been counted then, and could not be written
        process.send_signal(number)
        _, more = process.communicate(timeout=300)
    said += more
    assert process.returncode == status, said
    assert b"Traceback" not in said
    assert b"what crossed the network last is not written" in said


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_a_signal_cuts_short_ends_with_128_and_its_number(number: int, status: int, tmp_path: Path) -> None:
    code = ("import signal, sys, time, typer\nfrom semisilo.common.text.cli_errors import run_cli\n"
            "from semisilo.common.text.cli_errors import interrupt_on_termination\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)  # CI's shell ignores it\n"
            "app = typer.Typer()\n@app.command()\ndef work():\n"
            "    with interrupt_on_termination():\n        print('up', flush=True)\n        time.sleep(60)\n"
            "sys.exit(run_cli(app, [], name='work'))")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    assert process.wait(300) == status
    process.stdout.close()


@pytest.mark.parametrize(("ignored", "status"), [(True, 0), (False, 129)])
def test_work_under_nohup_outlasts_the_end_of_a_connection(ignored: bool, status: int, tmp_path: Path) -> None:
    code = ("import signal, sys, typer\nfrom semisilo.common.text.cli_errors import interrupt_on_termination, run_cli\n"
            f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})  # as nohup does\n"
            "app = typer.Typer()\n@app.command()\ndef work():\n"
            "    with interrupt_on_termination():\n        print('up', flush=True)\n        sys.stdin.readline()\n"
            "sys.exit(run_cli(app, [], name='work'))")
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               cwd=tmp_path, env=environment())
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGHUP)
    if ignored:
        process.stdin.close()  # the work is done
    assert process.wait(300) == status
    process.stdin.close()
    process.stdout.close()


def test_predictions_that_could_not_be_written_are_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from semisilo.cli.main import app as semisilo_app

    (tmp_path / "images").mkdir()
    words = ["predict", str(tmp_path / "model"), str(tmp_path / "images"), "--out", str(tmp_path / "none" / "p.csv")]
    assert run_cli(semisilo_app, words, name="semisilo") == 2
    assert f"p.csv: there is no folder {tmp_path / 'none'}. Make it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("demo",), ("simulate", "study.toml"), ("probe", "study.toml")])
def test_a_file_that_could_not_be_written_is_said_before_anything_runs(
        words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from semisilo.cli.main import app as semisilo_app

    monkeypatch.chdir(tmp_path)
    assert run_cli(semisilo_app, [*words, "--json", "no/such/f.json"], name="semisilo") == 2
    assert "--json no/such/f.json: there is no folder no/such. Make it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    assert run_cli(semisilo_app, [*words, "--json", "out"], name="semisilo") == 2
    assert "Invalid value for '--json': file 'out' is a directory" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


@pytest.mark.slow
def test_simulations_print_one_json_document_on_standard_output(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from semisilo.cli.main import app as semisilo_app

    study = tmp_path / "study.toml"
    study.write_text('[study]\nrounds = 1\nlabelled_only_baseline = false\n[model]\nname = "small_cnn"\n[data]\n'
                     'image = { size = 8, channels = 1 }\n[method]\nname = "semifl"\nlocal_epochs = 1\n'
                     'coordinator_epochs = 1\n[simulation]\ndata = "digits"\n'
                     'split = { name = "dirichlet_semifl", silos = 2, num_labelled = 20, dirichlet = 0.3 }\n')

    def facts(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run_cli(semisilo_app, list(words), name="semisilo") == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found
    assert len(facts("split", str(study), "--out", str(tmp_path / "parts"), "--json")["classes"]) == 10
    result = facts("simulate", str(study), "--out", str(tmp_path / "run"), "--json", "-")
    assert 0 <= result["accuracy"] <= 1
    assert facts("report", str(tmp_path / "run"), "--json")["accuracy"] == result["accuracy"]
