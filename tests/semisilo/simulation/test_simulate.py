"""Simulations: resumable anywhere, in processes without a network library, with silos that come and go."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from rich.console import Console

from semisilo.common.data.formats import archive
from semisilo.common.errors import BadConfiguration, SemisiloError, StorageDamaged, UsageError
from semisilo.common.storage.checkpoint import load
from semisilo.common.text.describe import describe_percentage
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.strategies.scaffold import ScaffoldState
from semisilo.coordinator.studies.study_file import load_study
from semisilo.simulation import SimulationResult, SimulationWatcher, run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.display import ConsoleWatcher, show_result
from semisilo.simulation.folder import SimulationFolder, begin
from semisilo.simulation.settings import load_simulated_study
from semisilo.simulation.source_stamp import source_stamp
from tests.processes import CRASHING, run_command
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[3]


def written(tables: dict[str, Any], folder: Path, name: str = "study.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


# Same bits ------------------------------------------------------------------------------------------------------------

RESUMED = study("semifl", rounds=3, wire={"uplink": "top-k 20%"})
"""Silos keep momentum and what was left out, so whatever is lost or done twice shows in the bits."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    return run(RESUMED, out=tmp_path_factory.mktemp("undisturbed"), device="cpu")


def killed(tables: dict[str, Any], folder: Path, *, crash: str,
           options: str = "engine='process'") -> tuple[Path, Path]:
    """Starts a simulation that is killed (kill -9) at a chosen call; returns its study file and folder."""
    digits = archive.digits("train", source="digits"), archive.digits("test", source="digits")
    np.savez(folder / "digits.npz", train_images=digits[0].images, train_labels=digits[0].labels_N,
             test_images=digits[1].images, test_labels=digits[1].labels_N)  # quicker to load than scikit-learn
    simulation = {**tables["simulation"], "data": "digits.npz"}
    path, out = written({**tables, "simulation": simulation}, folder), folder / "out"
    code = ("from pathlib import Path; from semisilo.simulation import run;"
            f" run(Path({str(path)!r}), out=Path({str(out)!r}), device='cpu', {options})")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(CRASHING), str(ROOT)]), SEMISILO_TEST_CRASH=crash)
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return path, out


def copied(folder: Path, to: Path) -> tuple[Path, Path]:
    """A copy of what `killed` has left, under the same name, which is the study's; its study file and folder."""
    shutil.copytree(folder, to / folder.name)
    return to / folder.name / "study.toml", to / folder.name / "out"


AFTER_AN_ANSWER = "semisilo.silo.site.memory:SiloMemory.record_pending:4:after"
"""The first of round 2."""


@pytest.fixture(scope="module")
def killed_in_round_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulation that was killed `AFTER_AN_ANSWER`, to copy."""
    folder = tmp_path_factory.mktemp("killed")
    killed(RESUMED, folder, crash=AFTER_AN_ANSWER)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("crash", [
    AFTER_AN_ANSWER,
    *(pytest.param(crash, marks=pytest.mark.slow) for crash in (
        "semisilo.simulation.parts:write_coordinator:1:before",
        "semisilo.coordinator.compute.operations:Operations.aggregate:2:before",
        "semisilo.coordinator.ledger.ledger:Ledger.commit_round:3:after",
        "semisilo.coordinator.tasks.update_service:UpdateService.accept:5:before",
        "semisilo.silo.compute.operations:Operations.train:6:after",
    )),
])
def test_a_simulation_that_was_killed_goes_on_with_the_same_bits_and_bytes(
        tmp_path: Path, undisturbed: SimulationResult, killed_in_round_2: Path, crash: str) -> None:
    if crash == AFTER_AN_ANSWER:
        path, out = copied(killed_in_round_2, tmp_path / "copy")
    else:
        path, out = killed(RESUMED, tmp_path, crash=crash)
    resumed = run(path, out=out, device="cpu")
    assert resumed.digest == undisturbed.digest
    assert resumed.curve == undisturbed.curve
    assert ([(each.payload_down, each.payload_up) for each in resumed.rounds]
            == [(each.payload_down, each.payload_up) for each in undisturbed.rounds])


def test_a_finished_simulation_is_not_run_again(tmp_path: Path, undisturbed: SimulationResult,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be computed")

    monkeypatch.setattr("semisilo.coordinator.compute.operations.Operations.open_study", refuse)
    monkeypatch.setattr("semisilo.silo.compute.operations.Operations.train", refuse)
    again = run(RESUMED, out=undisturbed.folder, device="cpu")
    assert again == undisturbed


def test_a_silo_keeps_its_memory_and_no_update_that_was_folded(undisturbed: SimulationResult) -> None:
    folders = list((undisturbed.folder / "silos").iterdir())
    assert len(folders) == 3
    for folder in folders:
        index = json.loads((folder / "memory" / "memory.json").read_text())["studies"][undisturbed.study]
        assert index["pending"] is None
        kept = {index["committed"]["digest"], index["committed"]["residuals"]}
        assert {path.stem for path in (folder / "memory").glob("*.safetensors")} == kept
        assert not [path for path in (folder / "outgoing").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_another_seed_gives_another_model(tmp_path: Path, undisturbed: SimulationResult) -> None:
    other = run(RESUMED, out=tmp_path / "out", device="cpu", seed=6)
    assert other.digest != undisturbed.digest
    assert (other.seed, undisturbed.seed) == (6, 5)


@pytest.mark.slow
def test_a_simulation_runs_where_an_event_loop_runs_already_as_in_a_notebook(
        tmp_path: Path, undisturbed: SimulationResult) -> None:
    async def cell() -> SimulationResult:
        return run(RESUMED, out=tmp_path / "out", device="cpu")

    assert asyncio.run(cell()).digest == undisturbed.digest


@pytest.mark.slow
def test_two_threads_that_simulate_at_once_come_one_after_the_other_with_the_bits_of_each(
        tmp_path: Path, undisturbed: SimulationResult) -> None:
    """The numerics of the other are those of the whole process."""
    waits: list[str] = []
    other: list[SimulationResult] = []
    threads: list[threading.Thread] = []
    coarse = study("semifl", rounds=1, numerics={"precision": "bf16", "deterministic": False})

    class Second(SimulationWatcher):
        def step(self, text: str) -> None:
            waits.append(text)

    class First(SimulationWatcher):
        def progress(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
            if not threads:
                threads.append(threading.Thread(target=lambda: other.append(
                    run(coarse, out=tmp_path / "other", device="cpu", engine="process", watcher=Second()))))
                threads[0].start()

    assert run(RESUMED, out=tmp_path / "out", device="cpu", engine="process",
               watcher=First()).digest == undisturbed.digest
    threads[0].join(300)
    assert waits[0] == "waiting for another simulation of this process"
    assert other[0].digest == run(coarse, out=tmp_path / "alone", device="cpu", engine="process").digest


def test_what_is_in_the_folder_already_is_never_gone_on_with_as_something_else(
        tmp_path: Path, undisturbed: SimulationResult) -> None:
    with pytest.raises(UsageError, match=r"another config: \[study\] rounds = 3 there, 4 here\."):
        run(study("semifl", rounds=4, wire={"uplink": "top-k 20%"}), out=undisturbed.folder, device="cpu")
    split = {**RESUMED["simulation"]["split"], "fraction": 0.13}
    with pytest.raises(UsageError, match="another simulation and another digest of its images: "
                                         r"\[simulation\] split\.fraction = 0\.\d+ there, 0\.13 here\."):
        run({**RESUMED, "simulation": {"data": "digits", "split": split}}, out=undisturbed.folder, device="cpu")
    (tmp_path / "photo.png").touch()
    with pytest.raises(UsageError, match="not empty"):
        run(RESUMED, out=tmp_path, device="cpu")


def test_killed_while_it_wrote_its_first_file_a_simulation_begins_anew(tmp_path: Path) -> None:
    dealt = deal_study(load_simulated_study(RESUMED))
    half = tmp_path / ".simulation.json.0123456789ab.tmp"
    half.write_bytes(b"{")
    begin(SimulationFolder(tmp_path), dealt, stamp="")
    assert not half.exists()
    assert json.loads((tmp_path / "simulation.json").read_bytes())["digest"] == dealt.digest()


def test_a_study_may_lie_in_a_folder_whose_name_is_no_utf_8_but_its_run_may_not(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    path = written(RESUMED, folder)
    there = SimulationFolder(tmp_path / "out")
    there.folder.mkdir()
    dealt = deal_study(load_simulated_study(path))
    begin(there, dealt, stamp="")
    begin(there, dealt, stamp="")
    assert json.loads(there.record.read_bytes())["source"]["folder"] == str(folder)
    with pytest.raises(UsageError, match="not in UTF-8"):
        run(path, out=folder / "out", device="cpu")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("wrong", [
    study("semifl", model={"name": "small-cnn"}),
    study("semifl", augmentation={"without": ["Foo"]}),
])
def test_a_name_that_is_not_there_is_said_before_there_is_a_folder(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(SemisiloError, match=r"study study: .*(small-cnn|Foo)"):
        run(wrong, out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_mistake_that_shows_when_the_study_is_opened_may_be_corrected(
        tmp_path: Path, undisturbed: SimulationResult, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SemisiloError, match="patience = 2 looks at validation images"):
        run({**study("semifl", split={"num_validation": 0}, study={"patience": 2}), "augmentation": {}},
            out=tmp_path, device="cpu")
    assert caplog.records == [], "the error says it, and nobody runs a coordinator"
    assert Ledger(tmp_path / "ledger.sqlite").study("study").state == "failed"
    corrected = run(RESUMED, out=tmp_path, device="cpu", engine="process")
    assert corrected.digest == undisturbed.digest
    assert run(RESUMED, out=tmp_path, device="cpu") == corrected


@pytest.mark.slow
def test_a_memory_that_is_lost_ends_the_simulation_instead_of_changing_its_bits(
        tmp_path: Path, killed_in_round_2: Path) -> None:
    path, out = copied(killed_in_round_2, tmp_path / "copy")
    (out / "silos" / "silo-001" / "memory" / "memory.json").unlink()
    with pytest.raises(StorageDamaged, match="silo-001"):
        run(path, out=out, device="cpu")


def test_two_simulations_do_not_share_a_folder(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another simulation runs here"):
            run(RESUMED, out=tmp_path, device="cpu")


# What it needs and leaves ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_simulation_needs_neither_grpc_nor_cryptography(tmp_path: Path) -> None:
    path = written(study("semifl", rounds=1), tmp_path)
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grpc", "cryptography"):
            raise ImportError(f"{{name}} is not to be imported")
sys.meta_path.insert(0, Blocked())
sys.argv = ["semisilo", "simulate", {str(path)!r}, "--out", {str(tmp_path / "out")!r}, "--quiet"]
from semisilo.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "state (SHA-256)" in done.stdout


@pytest.mark.usefixtures("pictures_left_blank")
def test_the_command_tells_rounds_line_by_line_and_leaves_report_and_metrics(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(study("semifl", rounds=2), tmp_path / "lungs")
    monkeypatch.chdir(tmp_path)
    status, out_text, err = run_command("semisilo.cli.main", "simulate", str(path), "--json", "result.json")
    assert status == 0, err
    assert "round 2/2: accuracy" in out_text
    out = tmp_path / "runs" / "lungs"
    facts = json.loads((tmp_path / "result.json").read_text())
    assert json.loads((out / "metrics.json").read_text()) == facts
    with (out / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["round"]) for line in lines] == [0, 1, 2]
    assert float(lines[-1]["accuracy"]) == facts["accuracy"]
    assert int(lines[1]["payload_up"]) > 0
    page = (out / "report" / "index.html").read_text()
    assert "Simulation" in page
    assert "nothing crossed a network" in page
    assert (out / "studies" / "lungs" / "model.safetensors").is_file()


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_with_accuracy_bytes_and_time_left(tmp_path: Path) -> None:
    stream = io.StringIO()
    watcher = ConsoleWatcher(Console(file=stream, force_terminal=True, width=200, _environ={"TERM": "xterm-256color"}))
    result = run(study("semifl", rounds=4), out=tmp_path, device="cpu", watcher=watcher)
    shown = stream.getvalue()
    assert "dealing images to silos" in shown
    assert "round 4/4" in shown
    assert f"accuracy {describe_percentage(result.accuracy, decimals=2)}" in shown
    assert "left" in shown
    assert "round 1/4: accuracy" not in shown, "no lines beside the bar"


@pytest.mark.slow
def test_nothing_but_the_result_is_shown_when_it_is_to_be_quiet(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream)
    result = run(study("semifl", rounds=1), out=tmp_path, device="cpu", watcher=ConsoleWatcher(console, quiet=True))
    assert stream.getvalue() == ""
    show_result(console, result, tmp_path / "report" / "index.html")
    assert result.digest[:16] in stream.getvalue()


def test_the_result_has_what_every_silo_reported(undisturbed: SimulationResult) -> None:
    assert {(each.round, each.silo) for each in undisturbed.silos} == {
        (number, f"silo-00{index}") for number in (1, 2, 3) for index in range(3)}
    updates = [each for each in undisturbed.silos if each.state == "updated"]
    assert updates
    for each in updates:
        assert each.num_examples > 0
        assert 0 <= each.metrics["pseudo_label_accuracy"] <= 1, "known in simulations alone"


@pytest.mark.slow
def test_unlabelled_images_keep_their_labels_for_diagnostics_and_train_the_same(
        tmp_path: Path, undisturbed: SimulationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from semisilo.simulation.dealing import SilosImages

    original = SilosImages.__getitem__

    def without_truth(self: SilosImages, silo: int) -> Any:
        images = original(self, silo)
        assert images.unlabelled is not None
        return replace(images, unlabelled=images.unlabelled.without_labels())

    monkeypatch.setattr(SilosImages, "__getitem__", without_truth)
    assert run(RESUMED, out=tmp_path / "out", device="cpu", engine="process").digest == undisturbed.digest


# Many silos -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_silos_of_which_ten_are_asked_in_a_round(tmp_path: Path) -> None:
    tables = study("semifl", silos=100, rounds=2, participation={"silos_per_round": "10%"},
                   split={"fraction": 1.0})
    result = run(tables, out=tmp_path, device="cpu")
    assert [sum(each.answers.values()) for each in result.rounds] == [0, 10, 10]
    asked = {each.silo for each in result.silos}
    assert {path.name for path in (tmp_path / "silos").iterdir()} == asked, "who was never asked has no folder"


def test_a_silo_whose_folder_is_lost_after_its_update_counted_ends_the_simulation(
        tmp_path: Path, killed_in_round_2: Path) -> None:
    path, out = copied(killed_in_round_2, tmp_path / "copy")
    shutil.rmtree(out / "silos" / "silo-002")
    with pytest.raises(StorageDamaged, match="silo-002"):
        run(path, out=out, device="cpu")


# Silos that come and go -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_silos_that_can_be_reached_are_asked(tmp_path: Path) -> None:
    from semisilo.simulation.availability import reachable

    tables = study("semifl", rounds=4, simulation={"availability": "skewed", "reachable": 0.6})
    result = run(tables, out=tmp_path, device="cpu")
    settings = load_simulated_study(tables).simulation
    names = [f"silo-00{index}" for index in range(3)]
    asked = {number: [each.silo for each in result.silos if each.round == number] for number in (1, 2, 3, 4)}
    assert asked == {number: reachable(settings, names, seed=5, round=number) for number in (1, 2, 3, 4)}
    assert any(len(silos) < 3 for silos in asked.values()), "the seed must leave somebody out, or nothing is tested"


@pytest.mark.slow
def test_a_silo_that_drops_out_is_late_and_nobody_waits_for_its_deadline(tmp_path: Path) -> None:
    tables = study("semifl", rounds=3, silos=4, simulation={"dropout": 0.4},
                   participation={"round_timeout": "3h", "quorum": 1})
    result = run(tables, out=tmp_path, device="cpu")
    assert result.seconds < 3600, "a deadline is after three hours"
    late = [each for each in result.silos if each.state == "expired"]
    assert late
    assert all(each.state == "completed" for each in result.rounds)


@pytest.mark.slow
def test_scaffold_counts_all_silos_and_not_those_that_it_waits_for(tmp_path: Path) -> None:
    """Two of four silos are asked, and the study starts with one: every state says four."""
    result = run(study("scaffold", rounds=2, silos=4, participation={"silos_per_round": 2}) | {
        "study": {"seed": 5, "rounds": 2, "labelled_only_baseline": False, "start_with": 1}}, out=tmp_path,
        device="cpu")
    assert [each.state for each in result.rounds[-2:]] == ["completed", "completed"]
    ledger = Ledger(tmp_path / "ledger.sqlite")
    try:
        rows = ledger.rounds("study")
    finally:
        ledger.close()
    files, = tmp_path.rglob("states")
    first, second, third = (load(files / f"{row.start_digest or row.state_digest}.safetensors", ScaffoldState)
                            for row in rows)
    assert (first.silos, second.silos, third.silos) == (0, 4, 4)
    assert len(third.members) == 2
    assert rows[2].start_digest == rows[1].state_digest, "nobody has joined since"


@pytest.mark.slow
def test_a_round_without_its_quorum_fails_and_the_model_stays(tmp_path: Path) -> None:
    tables = study("semifl", rounds=3, silos=4, simulation={"dropout": 0.4},
                   participation={"round_timeout": "3h", "quorum": 4})
    result = run(tables, out=tmp_path, device="cpu")
    failed = [each.round for each in result.rounds if each.state == "failed"]
    assert failed
    ledger = Ledger(tmp_path / "ledger.sqlite")
    try:
        for row in ledger.rounds("study"):
            if row.number in failed:
                assert row.state_digest == row.start_digest
    finally:
        ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("participation", [{"silos_per_round": 1, "quorum": 2},
                                           {"silos_per_round": "50%", "quorum": 2}])
def test_a_simulation_of_an_earlier_version_is_gone_on_with_whatever_its_quorum(
        tmp_path: Path, participation: dict[str, Any]) -> None:
    """A new one is refused before images are dealt; of one that was begun, the file cannot be changed."""
    tables = study("semifl", rounds=1, silos=2, participation=participation)
    with pytest.raises(BadConfiguration, match="quorum = 2: a round asks 1 silo"):
        run(tables, out=tmp_path / "new", device="cpu", engine="process")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]

    begun = load_simulated_study(tables)
    folder = SimulationFolder(tmp_path / "begun")
    folder.folder.mkdir()
    begin(folder, deal_study(begun), stamp=source_stamp(begun))
    result = run(tables, out=folder.folder, device="cpu", engine="process")
    assert [each.state for each in result.rounds if each.round] == ["completed"]
    assert run(tables, out=folder.folder, device="cpu", engine="process").digest == result.digest


def test_a_simulation_waits_for_no_deadline_so_its_limit_may_be_below_it(tmp_path: Path) -> None:
    tables = study("semifl", rounds=1, silos=2, participation={"round_limit": "10m"})
    assert run(tables, out=tmp_path, device="cpu", engine="process").rounds[-1].state == "completed"


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tables", "match"), [
    ({**study(), "simulation": {}}, r"\[simulation\]: 'split' is missing"),
    ({name: keys for name, keys in study().items() if name != "simulation"}, r"\[simulation\] is missing"),
    (study(split={"name": "idd"}), "not one of the choices"),
    (study(simulation={"dropout": 1.5}), "dropout = 1.5"),
    (study(data={"labelled": "here.npz"}), "'labelled' has no effect"),
    (study(study={"start_with": 4}), "start_with = 4"),
    (study(settings={"round_lr": 0.1}), "'round_lr' is set by the method itself"),
    (study(split={"num_labelled": 7}), r"\[simulation.split\].*num_labelled = 7"),
    (study(simulation={"data": "nothing.npz"}), "nothing.npz"),
    (study("local", "labels-at-silo", data={"image": {"size": 8, "channels": 1}}), "mean"),
])
def test_a_study_that_cannot_be_simulated_is_refused_by_name(tmp_path: Path, tables: dict[str, Any],
                                                             match: str) -> None:
    with pytest.raises(SemisiloError, match=match):
        run(tables, out=tmp_path / "out", device="cpu")


@pytest.mark.parametrize(("options", "match"), [
    ({"engine": "spark"}, "no engine 'spark'"),
    ({"device": "mps"}, "no device 'mps'"),
    ({"device": "cuda:1"}, "no device 'cuda:1'"),
    pytest.param({"device": "cuda"}, "no GPU", marks=pytest.mark.skipif(
        torch.cuda.is_available(), reason="there is one")),
])
def test_an_option_that_cannot_be_honoured_is_refused(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        run(study(), out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["study", "numerics"])
def test_what_is_no_table_is_refused_by_name_also_where_an_option_goes_into_it(tmp_path: Path, name: str) -> None:
    path = written({**study(), name: 1}, tmp_path)
    with pytest.raises(BadConfiguration, match=rf"\[{name}\]: expected a table, found 1"):
        load_simulated_study(path, seed=2, threads=1)


def test_coordinator_serve_refuses_a_simulated_study_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"simulated silos") as error:
        load_study(written(study(), tmp_path))
    assert "semisilo simulate" in error.value.remedy
    assert "semisilo split" in error.value.remedy


def test_an_error_that_nobody_foresaw_is_logged_once_without_a_command_of_a_coordinator(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("semisilo.coordinator.rounds.engine.card_of", broken)
    with pytest.raises(SemisiloError, match=r"nobody foresaw, ZeroDivisionError: a mistake\.(\n|$)"):
        run(study(rounds=1), out=tmp_path, device="cpu", engine="process")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "coordinator queue" not in record.getMessage()


def test_a_mistake_in_a_method_ends_the_simulation_and_is_not_taken_for_a_silos_refusal(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semisilo.silo.trainers.semifl import SemiFLTrainer

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(SemiFLTrainer, "train", broken)
    with pytest.raises(Exception, match="a mistake"):
        run(study(rounds=1), out=tmp_path, device="cpu", engine="process")


def test_training_that_diverges_is_refused_by_the_silo_as_in_a_federation(tmp_path: Path) -> None:
    result = run(study(rounds=1, settings={"lr": 1e30, "coordinator_epochs": 0, "clip_norm": 0.0}), out=tmp_path,
                 device="cpu")
    assert {each.state for each in result.silos} <= {"refused", "abstained"}


def test_numpy_and_torch_generators_are_left_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    run(study(rounds=1), out=tmp_path, device="cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_two_simulations_on_an_accelerator_end_with_the_same_bits(tmp_path: Path) -> None:
    whole = run(RESUMED, out=tmp_path / "whole", device="cuda")
    again = run(RESUMED, out=tmp_path / "again", device="cuda")
    assert again.digest == whole.digest
