from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.demo.processes import Processes, StepFailed, console_script

_WRITE_PIDS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + ".new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def _python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def _wait_for(path: Path, seconds: float = 300) -> str:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.02)
    return path.read_text()


def _gone(pid: int, seconds: float = 300) -> bool:
    """Whether a process ends, or is only a zombie whose parent has not looked yet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_command_gets_its_input_and_returns_its_output(tmp_path: Path) -> None:
    with Processes(logs=tmp_path) as processes:
        assert processes.run("echo", _python("print(input().upper())"), text="line\n") == "LINE\n"
        assert processes.running() == []


def test_a_command_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    code = "import sys\nfor n in range(40): print('line', n, file=sys.stderr)\nsys.exit(3)"
    with Processes(logs=tmp_path) as processes, pytest.raises(StepFailed, match="'bad' ended with status 3") as caught:
        processes.run("bad", _python(code))
    assert caught.value.log_tail.splitlines() == [f"line {number}" for number in range(25, 40)]


def test_a_background_process_that_dies_is_noticed_by_name(tmp_path: Path) -> None:
    with Processes(logs=tmp_path) as processes:
        processes.start("fine", _python("pass"))
        processes.start("killed", _python("import os, signal; print('last words', flush=True);"
                                          "os.kill(os.getpid(), signal.SIGKILL)"))
        end = time.monotonic() + 300
        while processes.running():
            assert time.monotonic() < end
            time.sleep(0.02)
        with pytest.raises(StepFailed, match="'killed' was killed by SIGKILL") as caught:
            processes.check()
    assert "last words" in caught.value.log_tail


def test_leaving_the_context_ends_processes_even_those_that_do_not_listen(tmp_path: Path) -> None:
    code = ("import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "import os; open(sys.argv[1] + '.new', 'w').write(str(os.getpid()));"
            "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(600)")
    pids: list[int] = []

    def interrupted() -> None:
        with Processes(logs=tmp_path, grace_seconds=0.3) as processes:
            processes.start("deaf", _python(code, str(tmp_path / "deaf")))
            processes.start("polite", _python(_WRITE_PIDS, str(tmp_path / "polite")))
            pids.extend(int(word) for name in ("deaf", "polite") for word in _wait_for(tmp_path / name).split())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 3, "the child of the one that ends politely is left to us"
    assert all(_gone(pid) for pid in pids)


def test_an_interrupt_while_a_process_starts_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def interrupted_in_the_middle(*words: Any, **named: Any) -> subprocess.Popen[bytes]:
        begun.append(real(*words, **named))
        signal.raise_signal(signal.SIGINT)  # the process runs, and its starter does not know it yet
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted_in_the_middle)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt), Processes(logs=tmp_path, grace_seconds=5) as processes:
            processes.start("sleeper", _python("import time; time.sleep(600)"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert begun[0].returncode == -signal.SIGTERM


def test_a_deaf_process_takes_its_children_along(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _WRITE_PIDS
    with Processes(logs=tmp_path, grace_seconds=0.2) as processes:
        processes.start("deaf", _python(code, str(tmp_path / "pids")))
        pids = [int(word) for word in _wait_for(tmp_path / "pids").split()]
    assert all(_gone(pid) for pid in pids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_when_we_are_killed_our_processes_end_too(tmp_path: Path) -> None:
    code = ("import sys, time, pathlib; from semisilo.demo.processes import Processes\n"
            "with Processes(logs=pathlib.Path(sys.argv[1])) as processes:\n"
            "    processes.start('child', [sys.executable, '-c', sys.argv[2], sys.argv[1] + '/pids'])\n"
            "    time.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), _WRITE_PIDS])
    child, grandchild = (int(word) for word in _wait_for(tmp_path / "pids").split())
    parent.kill()
    parent.wait()
    try:
        assert _gone(child)
    finally:
        os.kill(grandchild, signal.SIGKILL)  # not ours to promise: the child would have to pass it on


@pytest.mark.slow
def test_console_scripts_run_from_any_folder_whatever_lies_there(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("raise SystemExit('the wrong common')")
    for name in ("coordinator", "silo", "semisilo"):
        done = subprocess.run([*console_script(name), "--version"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "0." in done.stdout
