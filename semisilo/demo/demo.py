"""`semisilo demo`: a real federation on this machine, from `coordinator init` to the report.

One coordinator with a few labelled digits and several silos with unlabelled ones, each a process of its own, over
mutual TLS on localhost; the same commands that two institutions would type.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tomli_w

from semisilo.common.config import to_dict
from semisilo.common.errors import UsageError
from semisilo.common.measures.gain import Gain
from semisilo.common.methods import METHODS, Scenario, find_method
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.results.study_numbers import MeasureBeside
from semisilo.coordinator.monitoring.summary import StudySummary, summarise
from semisilo.coordinator.rounds.live_file import read
from semisilo.demo.processes import Processes, StepFailed, console_script

__all__ = ["DemoData", "DemoResult", "DemoSettings", "DemoWatcher", "make_data", "run_demo", "study_text"]

_STUDY = "first"
_FEDERATION = "demo"
_NUM_CLASSES = 10
_SCENARIO: Scenario = "labels-at-coordinator"
_METHOD_SETTINGS = {**dict.fromkeys(("fedavg", "fedprox", "fednova", "scaffold"), """\
objective = "fixmatch"            # by default silos learn from labels, which they do not have here
"""), "semifl": """\
local_epochs = 3
coordinator_epochs = 40           # the paper's 5 are for thousands of labels: here an epoch is two batches
"""}
"""What the demo sets of each method's own settings; all others keep their defaults."""
_LOOK_SECONDS = 0.3
_START_SECONDS = 60.0
_END_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """What the demo trains; chosen so that it ends within minutes on two processor cores."""

    method: str = "self_training"
    """A method that works with labels at the coordinator only."""
    seed: int = 1
    """Of the split and of the study."""
    silos: int = 3
    rounds: int = 10
    labels_per_class: int = 2
    """Labelled images of each of the ten digits at the coordinator."""
    baseline_epochs: int = 0
    """Passes over the labelled images when training on labels alone; 0 for as many as the strong recipe makes."""

    def __post_init__(self) -> None:
        if _SCENARIO not in find_method(self.method).scenarios:
            fitting = ", ".join(name for name, spec in METHODS.items() if _SCENARIO in spec.scenarios)
            raise UsageError(f"The demo has labels at the coordinator alone, for which {self.method} is not defined.",
                             remedy=f"Choose one of: {fitting}.")
        for name, least in (("silos", 1), ("rounds", 1), ("labels_per_class", 1), ("baseline_epochs", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} = {getattr(self, name)}: must be at least {least}.")


def study_text(settings: DemoSettings) -> str:
    """The study file of the demo."""
    return f'''# Handwritten digits, 8 x 8 grey. Few labels here, unlabelled images at the silos.
[study]
seed = {settings.seed}
rounds = {settings.rounds}
start_with = {settings.silos}
baseline_epochs = {settings.baseline_epochs}

[model]
name = "small_cnn"

[data]
labelled = "data/digits.npz#train"
test = "data/digits.npz#test"
image = {{ size = 8, channels = 1, mean = "labelled", std = "labelled" }}

[augmentation]
policy = "small"
without = ["Invert", "Solarize"]  # they make another picture of a digit than a pen can

[method]
name = "{settings.method}"
scenario = "{_SCENARIO}"
{_METHOD_SETTINGS.get(settings.method, "")}
[participation]
round_timeout = "5m"
'''


@dataclass(frozen=True, slots=True)
class DemoData:
    """How many images went where."""

    labelled: int
    test: int
    unlabelled: tuple[int, ...]
    """One number per silo."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """What came out."""

    labelled_only_accuracy: float
    labelled_only_recipe: str
    """How labels alone were trained, in words."""
    beside: tuple[MeasureBeside, ...]
    """All numbers of the round that is handed over beside those of labels alone."""
    test_images: int
    accuracy: float
    gain: Gain | None
    """In the study's measure; None where silos have no part in what is handed over."""
    rounds: int
    silos: int
    payload_bytes: int
    wire_bytes: int
    dense_bytes: int
    """What the same transfers would have cost as dense tensors."""
    seconds: float
    method: str
    seed: int
    report: Path
    kept: Path | None = None
    """The folder in which it worked, where that stays."""
    federated: str = "federated"
    """What the column of the federated model is called: which round it is of."""
    no_gain: str = ""
    """Why nothing was gained, whatever the numbers are; empty where a gain may be spoken of."""

    def to_json(self) -> str:
        """The facts as one JSON object; the report's path is not among them."""
        facts = {name: getattr(self, name) for name in (
            "labelled_only_accuracy", "accuracy", "rounds", "silos", "payload_bytes", "wire_bytes", "dense_bytes",
            "seconds", "method", "seed")}
        interval = None if self.gain is None else self.gain.interval
        facts["gain"] = None if self.gain is None else self.gain.value
        facts |= {"labelled_only_recipe": self.labelled_only_recipe, "test_images": self.test_images}
        facts["gain_interval"] = None if interval is None else [interval.low, interval.high]
        facts["gain_measure"] = None if self.gain is None else str(self.gain.measure)
        facts["beside"] = [to_dict(each) for each in self.beside]
        return json.dumps(facts, indent=2) + "\n"


class DemoWatcher:
    """Told what happens; this one says nothing."""

    def step(self, text: str) -> None:
        """A line about what is done next."""

    def progress(self, study: StudySummary) -> None:
        """The study as the ledger has it now; comes several times a second."""

    def done(self) -> None:
        """The study is over, or the demo has failed."""


def run_demo(settings: DemoSettings, *, folder: Path | None = None, keep: bool = False,
             watcher: DemoWatcher | None = None) -> DemoResult:
    """Runs the whole federation and returns what came out. No process is left behind, however it ends.

    Args:
        folder: where to work, new or empty; it stays. None: a temporary folder, of which only the report stays.
        keep: the temporary folder stays as well.
    Raises: StepFailed with the last lines of the failing process's log (the folder stays then); UsageError;
        KeyboardInterrupt.
    """
    begun = time.monotonic()
    watcher = watcher or DemoWatcher()
    root, temporary = _make_folder(folder)
    keep = keep or not temporary
    try:
        with Processes(logs=root / "logs") as processes:
            demo = _Demo(settings, root, processes, watcher)
            try:
                demo.set_up()
                demo.wait()
            finally:
                watcher.done()
            report = demo.report(root / "report")
            result = demo.result(report, seconds=time.monotonic() - begun)
    except StepFailed as error:
        error.remedy = f"Its folder stays: {root}"
        raise
    except BaseException:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
        raise
    if not keep:
        _remove_all_but(root, "report")
        return result
    return replace(result, kept=root)


class _Demo:
    """The steps, in order."""

    def __init__(self, settings: DemoSettings, root: Path, processes: Processes, watcher: DemoWatcher) -> None:
        self._settings = settings
        self._hub = root / "coordinator"
        self._root = root
        self._processes = processes
        self._say = watcher.step
        self._watch: Callable[[StudySummary], None] = watcher.progress
        self._page = ""
        self._silos = [f"silo-{number + 1}" for number in range(settings.silos)]

    def set_up(self) -> None:
        """Makes the federation, starts the coordinator, enrols the silos and lets them join."""
        port, enrollment_port = _free_ports(2)
        self._coordinator("init", "init", _FEDERATION, "--address", f"127.0.0.1:{port}", "--folder", str(self._hub))
        (self._hub / "federation.toml").write_text(
            tomli_w.dumps({
                "federation": {"name": _FEDERATION}, "page": {"listen": "127.0.0.1:0"},
                "address": {"public": f"127.0.0.1:{port}", "enrollment": f"127.0.0.1:{enrollment_port}",
                            "listen": "127.0.0.1"}}), encoding="utf-8")
        study = self._hub / "studies" / _STUDY
        (study / "study.toml").write_text(study_text(self._settings), encoding="utf-8")
        homes = [self._root / name for name in self._silos]
        data = make_data(self._settings, coordinator=study / "data" / "digits.npz",
                         silos=[home / "images.npz" for home in homes])
        self._say(f"{data.labelled} labelled images at the coordinator, {data.test} to test with, "
                  f"{', '.join(map(str, data.unlabelled))} unlabelled at the silos")
        lines = [self._coordinator(f"invite-{name}", "invite", name, "--folder", str(self._hub)).strip()
                 for name in self._silos]
        command = ["serve", "--folder", str(self._hub), "--exit-when-finished"]
        self._say(f"$ coordinator {_shown(command)}")
        self._processes.start("coordinator", [*console_script("coordinator"), *command])
        self._wait_for_port(enrollment_port)
        for name, home, line in zip(self._silos, homes, lines, strict=True):
            self._enroll_and_join(name, home, line)

    def wait(self) -> None:
        """Until the study is over and every process has ended by itself.

        Raises: StepFailed when a process or the study fails.
        """
        ledger = Ledger(self._hub / "ledger.sqlite")
        try:
            over_since: float | None = None
            while True:
                time.sleep(_LOOK_SECONDS)
                self._say_page()
                study = next((row for row in ledger.studies() if row.name == _STUDY), None)
                if study is not None:
                    self._watch(summarise(ledger, _STUDY))
                    if study.state in (StudyState.FAILED, StudyState.STOPPED):
                        raise StepFailed(f"The study {study.state}: {study.reason}")
                    if study.state is StudyState.COMPLETED and over_since is None:
                        over_since = time.monotonic()
                self._processes.check()
                running = self._processes.running()
                if over_since is None and "coordinator" not in running:
                    raise StepFailed("'coordinator' ended before the study did.")
                if not running or (over_since is not None and time.monotonic() - over_since > _END_SECONDS):
                    break
            if running:
                self._say(f"still running a minute after the end, stopped now: {', '.join(running)}")
        finally:
            ledger.close()

    def _say_page(self) -> None:
        """Says where the operator page is, once it is known."""
        live = None if self._page else read(self._hub / "live.json")
        if live is not None and live.page:
            self._page = live.page
            self._say(f"watch it in a browser while it runs: {live.page}")

    def report(self, out: Path) -> Path:
        """Writes the report; returns its page."""
        self._coordinator("report", "report", _STUDY, "--folder", str(self._hub), "--out", str(out))
        return out / "index.html"

    def result(self, report: Path, *, seconds: float) -> DemoResult:
        """Reads the outcome from the ledger."""
        ledger = Ledger(self._hub / "ledger.sqlite")
        try:
            study = summarise(ledger, _STUDY)
        finally:
            ledger.close()
        if study.accuracy is None or study.labelled_only is None:
            raise StepFailed("The study has ended without an accuracy.")
        return DemoResult(
            labelled_only_accuracy=study.labelled_only, beside=study.beside,
            labelled_only_recipe="" if study.row.baseline is None else study.row.baseline.description,
            test_images=0 if study.row.frozen is None else study.row.frozen.num_test,
            accuracy=study.accuracy, gain=study.gain, rounds=study.completed_rounds, silos=len(study.silos),
            payload_bytes=study.traffic.payload, wire_bytes=study.traffic.wire,
            dense_bytes=study.traffic.dense_total, seconds=round(seconds, 2), method=self._settings.method,
            seed=self._settings.seed, report=report, federated=study.shown.column, no_gain=study.shown.no_gain)

    def _enroll_and_join(self, name: str, home: Path, line: str) -> None:
        self._say(f"$ silo enroll LINE --home {home}")
        # Through standard input: a command line can be read by everyone on the machine.
        self._processes.run(f"enroll-{name}", [*console_script("silo"), "enroll", "-", "--home", str(home)], text=line)
        command = ["join", "--data", str(home / "images.npz"), "--home", str(home), "--exit-when-finished"]
        self._say(f"$ silo {_shown(command)}")
        self._processes.start(name, [*console_script("silo"), *command])

    def _coordinator(self, name: str, *words: str) -> str:
        self._say(f"$ coordinator {_shown(words)}")
        return self._processes.run(name, [*console_script("coordinator"), *words])

    def _wait_for_port(self, port: int) -> None:
        end = time.monotonic() + _START_SECONDS
        while True:
            self._processes.check()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > end or "coordinator" not in self._processes.running():
                    raise StepFailed(f"'coordinator' does not listen on port {port}.") from None
            time.sleep(0.1)


# Data -----------------------------------------------------------------------------------------------------------------


def make_data(settings: DemoSettings, *, coordinator: Path, silos: Sequence[Path]) -> DemoData:
    """Deals the embedded digits out into .npz files in MedMNIST's layout: labels stay at the coordinator.

    Args:
        coordinator: file for the labelled training images and the test images.
        silos: one file per silo, with images only.
    Raises: BadData or BadConfiguration when there are too few images for the settings.
    """
    from semisilo.common.data.formats.archive import digits
    from semisilo.simulation.splits.splits import iid, labelled_selection

    train, test = digits("train", source="digits#train"), digits("test", source="digits#test")
    assert train.images is not None
    assert train.labels_N is not None
    assert test.images is not None
    assert test.labels_N is not None
    labelled = labelled_selection(train.labels_N, settings.labels_per_class * _NUM_CLASSES, _NUM_CLASSES, settings.seed)
    split = iid(train.labels_N, len(silos), seed=settings.seed, labelled=labelled)
    for path in (coordinator, *silos):
        path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(coordinator, train_images=train.images[labelled], train_labels=train.labels_N[labelled],
             test_images=test.images, test_labels=test.labels_N, classes=np.array(train.classes))
    for path, part in zip(silos, split.silos, strict=True):
        np.savez(path, train_images=train.images[part])
    return DemoData(labelled=len(labelled), test=test.shape[0], unlabelled=tuple(map(len, split.silos)))


# Small things ---------------------------------------------------------------------------------------------------------


def _make_folder(folder: Path | None) -> tuple[Path, bool]:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="semisilo-demo-")), True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder.", remedy="Choose another --folder.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve(), False


def _remove_all_but(root: Path, name: str) -> None:
    for path in root.iterdir():
        if path.name != name:
            shutil.rmtree(path, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _shown(words: Sequence[str]) -> str:
    return " ".join(words)
