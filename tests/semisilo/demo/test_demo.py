from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from semisilo.common.errors import BadData, UnknownName, UsageError
from semisilo.common.measures.gain import Gain
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.methods import METHODS
from semisilo.coordinator.monitoring.summary import StudySummary
from semisilo.coordinator.studies.study_file import check_scenario, config_from_dict
from semisilo.demo.demo import DemoResult, DemoSettings, DemoWatcher, make_data, run_demo, study_text
from semisilo.demo.processes import console_script
from semisilo.demo.terminal import show_result
from tests.newcombe import newcombe
from tests.processes import PATIENCE_SECONDS

_GAIN = Gain(measure=ACCURACY, federated=0.875, labels_alone=0.75, interval=newcombe(70, 60, 80))
_RESULT = DemoResult(labelled_only_accuracy=0.75, accuracy=0.875, gain=_GAIN, rounds=2, silos=3, payload_bytes=10,
                     wire_bytes=12, dense_bytes=20, seconds=1.5, method="semifl", seed=1,
                     report=Path("report/index.html"), labelled_only_recipe="strong views", beside=(), test_images=80)


def _processes_of(folder: Path) -> list[str]:
    """Command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.parametrize("kept", [None, Path("/tmp/demo of mine")])
def test_what_stays_is_named_with_the_command_that_shows_its_page(kept: Path | None) -> None:
    console = Console(file=io.StringIO(), width=60)
    show_result(console, replace(_RESULT, kept=kept))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    line = "To see the page again: coordinator page first --folder '/tmp/demo of mine/coordinator'"
    assert (line in said) is (kept is not None)


def test_the_study_file_holds_the_settings_and_is_accepted() -> None:
    config = config_from_dict(tomllib.loads(study_text(DemoSettings(seed=5, rounds=7, silos=4))), where="demo")
    assert (config.study.seed, config.study.rounds, config.study.start_with) == (5, 7, 4)
    assert config.method.name == "self_training"
    assert (config.data.image.size, config.data.image.channels) == (8, 1)
    assert set(config.augmentation.without) == {"Invert", "Solarize"}
    assert not config.augmentation.horizontal_flip


@pytest.mark.parametrize("method", [name for name, spec in METHODS.items()
                                    if "labels-at-coordinator" in spec.scenarios])
def test_the_study_file_of_every_method_for_labels_at_the_coordinator_is_accepted(method: str) -> None:
    config = config_from_dict(tomllib.loads(study_text(DemoSettings(method=method))), where="demo")
    check_scenario(config, "demo")


def test_labels_stay_at_the_coordinator_and_no_image_is_in_two_places(tmp_path: Path) -> None:
    from semisilo.common.data.formats.archive import digits

    silos = [tmp_path / f"silo-{number}" / "images.npz" for number in range(3)]
    data = make_data(DemoSettings(labels_per_class=2), coordinator=tmp_path / "hub" / "digits.npz", silos=silos)
    assert (data.labelled, data.test, data.unlabelled) == (20, 355, (474, 474, 474))  # (1442 - 20) / 3
    with np.load(tmp_path / "hub" / "digits.npz") as hub:
        assert np.bincount(hub["train_labels"]).tolist() == [2] * 10
        assert len(hub["test_images"]) == 355
        parts = [hub["train_images"]]
    for path in silos:
        with np.load(path) as held:
            assert held.files == ["train_images"], "silos get no labels"
            parts.append(held["train_images"])
    train = digits("train", source="digits#train").images
    assert train is not None
    dealt = sorted(image.tobytes() for part in parts for image in part)
    assert dealt == sorted(image.tobytes() for image in train), "20 + 3 x 474 = 1442: each image once"


def test_the_split_follows_from_the_seed(tmp_path: Path) -> None:
    def held(name: str, seed: int) -> bytes:
        make_data(DemoSettings(seed=seed), coordinator=tmp_path / name / "hub.npz", silos=[tmp_path / name / "a.npz"])
        with np.load(tmp_path / name / "a.npz") as archive:
            return bytes(archive["train_images"].tobytes())

    assert held("one", 1) == held("again", 1)
    assert held("one", 1) != held("other", 2)


def test_wrong_settings_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no method 'semifil'"):
        DemoSettings(method="semifil")
    for method in ("fed_shvr", "local"):
        with pytest.raises(UsageError, match=f"for which {method} is not defined") as error:
            DemoSettings(method=method)
        assert "self_training" in error.value.remedy
        assert method not in error.value.remedy
    with pytest.raises(UsageError, match="rounds = 0"):
        DemoSettings(rounds=0)
    (tmp_path / "taken").touch()
    with pytest.raises(UsageError, match="not an empty folder"):
        run_demo(DemoSettings(), folder=tmp_path)


def test_a_temporary_folder_goes_when_the_settings_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(BadData, match="fewer than the 5000 to be labelled"):
        run_demo(DemoSettings(labels_per_class=5000))
    assert list(tmp_path.iterdir()) == []


def test_the_result_as_json_has_the_promised_keys_first() -> None:
    facts = json.loads(_RESULT.to_json())
    assert list(facts) == ["labelled_only_accuracy", "accuracy", "rounds", "silos", "payload_bytes", "wire_bytes",
                           "dense_bytes", "seconds", "method", "seed", "gain", "labelled_only_recipe", "test_images",
                           "gain_interval", "gain_measure", "beside"]
    low, high = facts["gain_interval"]
    assert low < 0.125 < high
    assert facts["gain"] == 0.125
    facts = json.loads(replace(_RESULT, gain=None).to_json())
    assert [facts[name] for name in ("gain", "gain_interval", "gain_measure")] == [None, None, None]


@pytest.mark.slow
def test_an_unknown_method_is_one_line_and_status_2() -> None:
    done = subprocess.run([*console_script("semisilo"), "demo", "--method", "semifil"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no method 'semifil'" in done.stderr


def test_help_and_version_import_nothing_heavy() -> None:
    code = ("import sys, semisilo.cli\n"
            "print([name for name in ('torch', 'numpy', 'grpc', 'matplotlib') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class _Listener(DemoWatcher):
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.seen: set[str] = set()

    def step(self, text: str) -> None:
        self.steps.append(text)

    def progress(self, study: StudySummary) -> None:
        self.seen.add(str(study.row.state))


@pytest.mark.slow
def test_a_whole_federation_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    listener = _Listener()
    folder = tmp_path / "demo"
    settings = DemoSettings(silos=2, rounds=2, baseline_epochs=5)
    result = run_demo(settings, folder=folder, watcher=listener)
    assert _processes_of(folder) == []
    assert (result.rounds, result.silos, result.method) == (2, 2, "self_training")
    assert 0 < result.labelled_only_accuracy <= 1
    assert 0 < result.accuracy <= 1
    # At least the model goes down to both silos in both rounds; wire bytes contain the payload.
    assert result.dense_bytes >= 4 * 4 * 50_000
    assert result.wire_bytes > result.payload_bytes > 0
    # Payloads are encoded exactly, so some bytes go, and most cannot. Silos get three models in two rounds: of the last
    # one they measure the batch-norm statistics.
    assert 0.5 * 5 / 4 * result.dense_bytes < result.payload_bytes < 0.95 * 5 / 4 * result.dense_bytes
    assert result.report == folder / "report" / "index.html"
    assert result.report.is_file()
    assert [step.split()[:3] for step in listener.steps if step.startswith("$")] == [
        ["$", "coordinator", "init"], ["$", "coordinator", "invite"], ["$", "coordinator", "invite"],
        ["$", "coordinator", "serve"], ["$", "silo", "enroll"], ["$", "silo", "join"], ["$", "silo", "enroll"],
        ["$", "silo", "join"], ["$", "coordinator", "report"]]
    assert "completed" in listener.seen
    assert not any("semisilo-invite" in step for step in listener.steps), "an invitation is a secret"


def _heed_interrupts() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_processes_and_removes_its_folder(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen([*console_script("semisilo"), "demo", "--silos", "1", "--rounds", "500"],
                            stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
                            preexec_fn=_heed_interrupts)
    assert demo.stdout is not None
    try:
        for line in demo.stdout:
            if line.startswith("$ silo join"):
                break
        end = time.monotonic() + PATIENCE_SECONDS
        while len(_processes_of(tmp_path)) < 2:  # a coordinator and a silo
            assert time.monotonic() < end
            time.sleep(0.05)
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait(300) == 128 + number
    finally:
        demo.kill()
    assert _processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
