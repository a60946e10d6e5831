"""What an operator may get wrong, through the real command: one clear line, the right exit status, nothing lost, and
after fixing it a restart works."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.formats import archive
from tests.processes import free_ports, run_command

GOOD = """[study]
rounds = 2
labelled_only_baseline = false
[model]
name = "small_cnn"
[data]
labelled = "labelled.npz"
test = "digits#test"
image = { size = 8, channels = 1 }
[method]
name = "semifl"
coordinator_epochs = 1
"""
BEGUN = ("preparing", "waiting")
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")


class Hub:
    """A federation folder and the command over it."""

    def __init__(self, folder: Path, *, own_processes: bool = False) -> None:
        """`own_processes`: every command is a process of its own, which keeps nothing open, as a disk wants it that is
        taken away; else only a `serve` is that goes on."""
        self.folder, self._own_processes = folder, own_processes
        self.port = free_ports()
        self.run("init", "lung", "--address", f"127.0.0.1:{self.port}", expect=0)
        self.settings = folder / "federation.toml"
        self.settings.write_text(self.settings.read_text().replace('listen = "[::]"', 'listen = "127.0.0.1"'))
        self.study("first")

    def study(self, name: str, text: str = GOOD) -> Path:
        """Writes a study with a small labelled set; returns its file."""
        folder = self.folder / "studies" / name
        folder.mkdir(exist_ok=True)
        digits = archive.digits("train", source="digits")
        np.savez(folder / "labelled.npz", train_images=digits.images[:40], train_labels=digits.labels_N[:40])
        (folder / "study.toml").write_text(text)
        return folder / "study.toml"

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command."""
        return subprocess.Popen([sys.executable, "-P", "-m", "semisilo.coordinator.cli.main", *words,
                                 "--folder", str(self.folder)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def run(self, *words: str, expect: int) -> str:
        """Runs a command to its end; returns what it says on standard error."""
        if self._own_processes or "--exit-when-finished" in words:
            process = self.start(*words)
            try:
                out, err = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            status = process.returncode
        else:
            status, out, err = run_command("semisilo.coordinator.cli.main", *words, "--folder", str(self.folder))
        assert status == expect, out + err
        assert "Traceback" not in out + err
        return err

    def error(self, *words: str, expect: int) -> str:
        """The one line `error: ...` of a command that must fail; whatever else it says is its log."""
        lines = [line for line in self.run(*words, expect=expect).splitlines() if not _LOGGED.match(line)]
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    def studies(self) -> dict[str, tuple[str, str]]:
        """Name -> (state, reason), as `coordinator status` tells it."""
        status, out, err = run_command("semisilo.coordinator.cli.main", "status", "--json", "--folder",
                                       str(self.folder))
        assert status == 0, err
        return {study["name"]: (study["state"], study["reason"]) for study in json.loads(out)["studies"]}

    @contextlib.contextmanager
    def serving(self, until: Callable[[dict[str, tuple[str, str]]], bool]) -> Iterator[list[str]]:
        """`serve` in the background until the studies are as wanted; then it is stopped and its log is in the list."""
        process, log = self.start("serve"), list[str]()
        try:
            end = time.monotonic() + 300
            while not until(states := self.studies()):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, states
                time.sleep(0.2)
            yield log
            assert process.poll() is None, process.communicate()
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=300)
        assert process.returncode in (0, -signal.SIGTERM), err  # the latter while it still starts
        assert "Traceback" not in out + err
        log += err.splitlines()


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "lung")


# The study file and what it points to -------------------------------------------------------------------------------


def misspelt(hub: Hub) -> str:
    """Makes the study `first` so; returns what is said about it."""
    path = hub.study("first", GOOD.replace("rounds", "ronds"))
    return f"{path}: [study]: unknown key 'ronds'. Did you mean 'rounds'?"


def test_a_misspelt_study_file_is_one_line_visible_in_status(hub: Hub) -> None:
    line = misspelt(hub)
    for _ in range(2):
        assert hub.error("serve", expect=2) == f"error: {line}"
        assert hub.studies() == {"first": ("failed", line)}


@pytest.mark.slow
def test_a_misspelt_study_file_runs_once_it_is_mended(hub: Hub) -> None:
    line = misspelt(hub)
    assert hub.error("serve", expect=2) == f"error: {line}"
    hub.study("first")
    with hub.serving(lambda states: states["first"][0] in BEGUN):
        pass
    state, reason = hub.studies()["first"]
    assert (state in BEGUN, reason) == (True, "")


def images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(folder / name)


CANNOT_START: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "nowhere": (('labelled = "labelled.npz"', 'labelled = "nowhere"'), ("nowhere: no such folder", "npz")),
    "empty": (('labelled = "labelled.npz"', 'labelled = "empty"'), ("empty: the folder is empty", "Put images")),
    "damaged": (('labelled = "labelled.npz"', 'labelled = "damaged"'),
                ("b/2.png cannot be read", 'on_error = "skip"')),
    "one-class": (('labelled = "labelled.npz"\ntest = "digits#test"', 'labelled = "one"'),
                  ("1 class: a", "two class folders")),
    "other-classes": (('labelled = "labelled.npz"', 'labelled = "two"'), ("class '0'", "a, b")),
    "unknown-model": (("small_cnn", "small_cn"), ("unknown-model/study.toml: There is no model 'small_cn'",
                                                              "small_cnn")),
    "too-deep": (("small_cnn", "alexnet"), ("cannot take images of 1x8x8", "size = 64")),
    "no-factory": (("small_cnn", "nowhere:network"), ("nowhere:network", "No module named")),
    "no-operation": (("[method]", '[augmentation]\nwithout = ["Invrt"]\n[method]'), ("'Invrt'", "'Invert'")),
    "misspelt": (("seed", "seed"), ("[data]", "'tst'", "'test'")),
}


def cannot_start(hub: Hub) -> None:
    """Makes them all."""
    for name, ((before, after), _) in CANNOT_START.items():
        path = hub.study(name, GOOD.replace(before, after))
        if name == "empty":
            (path.parent / "empty").mkdir()
        if name == "damaged":
            images(path.parent / "damaged", "a/1.png", "b/1.png")
            (path.parent / "damaged" / "b" / "2.png").write_bytes(b"nonsense")
        if name == "one-class":
            images(path.parent / "one", "a/1.png", "a/2.png")
        if name == "other-classes":
            images(path.parent / "two", "a/1.png", "b/1.png")
    hub.study("misspelt", GOOD.replace("test =", "tst ="))


def queue(hub: Hub, name: str, *words: str) -> tuple[int, str]:
    status, out, err = run_command("semisilo.coordinator.cli.main", "queue", name, *words, "--folder", str(hub.folder))
    assert "Traceback" not in out + err
    assert err.count("\n") <= 1
    return status, err.strip()


@pytest.mark.slow
def test_queue_refuses_what_serve_would_refuse_and_queues_nothing(hub: Hub) -> None:
    cannot_start(hub)
    for name, (_, words) in CANNOT_START.items():
        status, said = queue(hub, name)
        assert status in (1, 2), name
        assert all(word in said for word in words), said
    twice = hub.study("twice", GOOD.replace('test = "digits#test"', 'test = "labelled.npz"'))
    status, said = queue(hub, "twice")
    assert (status, f"{twice}: [data] 40 of 40 test images have the pixels of labelled ones" in said) == (1, True), said
    too_few = hub.study("too-few", GOOD.replace("[study]", "[study]\npatience = 2"))
    status, said = queue(hub, "too-few")
    assert (status, f"{too_few}: [study] patience = 2 looks at validation images" in said) == (2, True), said
    hub.study("no-weights", GOOD.replace('name = "small_cnn"', 'name = "small_cnn"\nweights = "w.safetensors"'))
    status, said = queue(hub, "no-weights")
    assert status in (1, 2)
    assert "w.safetensors" in said
    hub.study("no-validation", GOOD.replace('name = "semifl"\ncoordinator_epochs = 1', 'name = "fedmatch"'))
    assert queue(hub, "no-validation")[0] in (1, 2)
    assert hub.studies() == {}
    assert queue(hub, "twice", "--no-images") == (0, "")
    hub.study("first")
    assert queue(hub, "first") == (0, "")
    assert hub.studies() == {"twice": ("queued", ""), "first": ("queued", "")}
    assert {path.name for path in twice.parent.iterdir()} == {"labelled.npz", "study.toml"}, "a check writes nothing"


@pytest.mark.slow
def test_studies_that_cannot_start_say_why_stop_no_other_and_start_once_they_are_mended(hub: Hub) -> None:
    cannot_start(hub)
    refused = {name: queue(hub, name)[1] for name in CANNOT_START}
    hub.study("first", GOOD.replace("image =", "# image ="))
    hub.study("z-good")
    with hub.serving(lambda states: states.get("z-good", ("", ""))[0] == "waiting") as log:
        pass
    states = hub.studies()
    for name, (_, words) in CANNOT_START.items():
        state, reason = states[name]
        assert state == "failed", name
        assert all(word in reason for word in words), reason
        assert refused[name] == f"error: {reason}", "queue has said so before, in the same line"
        told = [line for line in log if f" error: study {name} " in line]
        assert len(told) == 1, name
        assert reason in told[0]

    for name in CANNOT_START:
        hub.study(name)
    (hub.folder / "studies" / "z-good" / "study.toml").unlink()  # a study that has begun does not need it any more
    with hub.serving(lambda states: all(states[name] == ("queued", "") for name in CANNOT_START)):
        pass
    assert hub.studies()["z-good"][0] == "waiting"


@pytest.mark.slow
def test_a_begun_study_whose_images_vanish_goes_on_once_they_are_back(hub: Hub) -> None:
    with hub.serving(lambda states: states.get("first", ("", ""))[0] == "waiting"):
        pass
    images_file = hub.folder / "studies" / "first" / "labelled.npz"
    images_file.rename(images_file.with_suffix(".away"))
    log = hub.run("serve", "--exit-when-finished", expect=1)
    assert "study first failed" in log
    assert "labelled.npz: no such" in hub.studies()["first"][1]
    images_file.with_suffix(".away").rename(images_file)
    with hub.serving(lambda states: states["first"] == ("waiting", "")) as log_again:
        pass
    assert not any("round 0" in line for line in log_again)  # it was committed before; nothing is trained again


# The machine ----------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named_and_nothing_is_lost(hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", hub.port)):
        line = hub.error("serve", expect=1)
    assert f"Another process listens on 127.0.0.1:{hub.port}." in line
    assert "choose another port" in line
    assert hub.studies() == {"first": ("queued", "")}


def test_an_address_of_another_machine_is_named(hub: Hub) -> None:
    hub.settings.write_text(hub.settings.read_text().replace('listen = "127.0.0.1"', 'listen = "192.0.2.1"'))
    assert "Cannot listen on 192.0.2.1" in hub.error("serve", expect=1)  # its network may come later


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_an_enrollment_port_that_is_taken_does_not_end_serve(hub: Hub, before: bool) -> None:
    """Nor does it keep `serve` from starting while an invitation is open: silos that are in need it."""
    if before:
        hub.run("invite", "alpha", expect=0)
    with socket.create_server(("127.0.0.1", hub.port + 1)), \
            hub.serving(lambda states: states.get("first", ("", ""))[0] == "waiting") as log:
        hub.run("invite", "alpha" if not before else "beta", expect=0)
        time.sleep(2.5)
    told = [line for line in log if "no silo can enrol now" in line]
    assert len(told) == 1
    assert str(hub.port + 1) in told[0]


def test_a_broken_federation_file_stops_every_command_with_the_same_line(hub: Hub) -> None:
    good = hub.settings.read_text()
    hub.settings.write_text(good.replace("public", "publik"))
    lines = {hub.error(*words, expect=2) for words in (("serve",), ("status",), ("invite", "alpha"))}
    assert lines == {f"error: {hub.settings}: [address]: unknown key 'publik'. Did you mean 'public'?"}
    hub.settings.write_text(good.replace('name = "lung"', 'name = "liver"'))
    assert "was made for 'lung'" in hub.error("serve", expect=2)
    hub.settings.write_text(good)
    hub.run("invite", "alpha", expect=0)


def test_a_ledger_that_is_no_database_is_named_and_left_alone(hub: Hub) -> None:
    ledger = hub.folder / "ledger.sqlite"
    good = ledger.read_bytes()
    ledger.write_bytes(b"not a ledger" * 1000)
    for words in (("serve",), ("status",), ("queue", "first")):
        line = hub.error(*words, expect=1)
        assert str(ledger) in line
        assert "backup" in line
    assert ledger.read_bytes() == b"not a ledger" * 1000
    ledger.write_bytes(good)
    assert hub.studies() == {}


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A disk of its own, in memory."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Linux, to mount a small disk")
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", name], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        try:
            yield Path(name)
        finally:
            gc.collect()  # closes what commands in this process have left open
            subprocess.run(["umount", name], check=True)


def fill(disk: Path, *, leaving: int) -> None:
    """Writes a file that leaves so many bytes free."""
    (disk / "filling").unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filling").write_bytes(bytes(max(0, free - leaving)))


@pytest.mark.slow
def test_a_full_disk_is_said_so_and_the_study_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(3) as disk:
        hub = Hub(disk / "lung", own_processes=True)
        for leaving in (0, 32 * 1024):
            fill(disk, leaving=leaving)
            line = hub.error("serve", expect=1)
            assert "full" in line
            assert "Free some space" in line
        fill(disk, leaving=400 * 1024)  # enough for the ledger, not for the model
        process = hub.start("serve")
        end = time.monotonic() + 300
        said = ""
        assert process.stderr is not None
        while "It continues automatically" not in said:
            assert time.monotonic() < end
            said = process.stderr.readline()
        assert "study first waits:" in said
        assert "Free some space" in said
        (disk / "filling").unlink()
        while hub.studies()["first"][0] != "waiting":
            assert time.monotonic() < end
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        process.communicate()


@pytest.mark.slow
def test_a_stop_while_serve_starts_waits_until_what_has_begun_can_be_closed(hub: Hub) -> None:
    """The port of enrolment was open, and the process ended with "Event loop is closed" from a library."""
    hub.run("invite", "alpha", expect=0)
    process = hub.start("serve")
    assert process.stderr is not None
    for line in process.stderr:
        if "enrolment is open" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert [line for line in (out + err).splitlines() if not _LOGGED.match(line)] == []
    assert "stopping; a restart continues from here" in err


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with small_disk(4) as disk:
        hub = Hub(disk / "lung")
        gc.collect()  # a disk is not taken away from who has a file of it open
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for words in (("serve",), ("status",), ("invite", "alpha"), ("new", "second")):
            line = hub.error(*words, expect=1)
            assert str(hub.folder) in line
            assert "write" in line or "written" in line
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        hub.run("invite", "alpha", expect=0)


# While it runs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_serve_is_refused_an_invitation_can_be_used_when_it_is_printed_and_ctrl_c_ends_serve_with_130(
        hub: Hub) -> None:
    process = hub.start("serve")
    try:
        end = time.monotonic() + 300
        while not (hub.folder / "live.json").exists() or "first" not in hub.studies():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
        line = hub.error("serve", expect=1)
        assert "Another 'coordinator serve' runs" in line
        assert "Stop it first" in line
        assert hub.studies()["first"][0] in ("queued", *BEGUN)
        for silo in ("hospital-a", "hospital-b"):
            status, out, err = run_command("semisilo.coordinator.cli.main", "invite", silo, "--json", "--folder",
                                           str(hub.folder))
            assert (status, err) == (0, "")
            assert json.loads(out)["enrollment"] == "open"
            with socket.create_connection(("127.0.0.1", hub.port + 1), timeout=5):
                pass
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "stopping; a restart continues from here" in err
    status, out, err = run_command("semisilo.coordinator.cli.main", "invite", "hospital-c", "--json", "--folder",
                                   str(hub.folder))
    assert (status, json.loads(out)["enrollment"]) == (0, "not serving")
