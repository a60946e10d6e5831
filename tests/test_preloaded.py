"""A copy behaves as a fresh interpreter does, towards what it runs and towards whoever has started it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.each_of import each_of
from tests.processes import CRASHING, PATIENCE_SECONDS, STUDY, federation

pytestmark = pytest.mark.skipif(sys.platform != "linux" or bool(os.environ.get(preloaded.OFF)),
                                reason="every process starts an interpreter here")

ROOT = Path(__file__).parents[1]
MODULE = "module_of_this_test"
COPIED = "'_preloaded' in sys.modules"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(autouse=True, scope="module")
def new_source() -> None:
    """The copying process has served all tests before in this process. Had it gone, or had one of them left its
    environment changed, interpreters would be started for good."""
    preloaded.close()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a process that runs some lines of Python, as a module that may be copied and may have copies itself."""
    monkeypatch.setattr(preloaded, "LIGHT", (*preloaded.LIGHT, MODULE))
    running: list[subprocess.Popen[bytes]] = []
    numbers = itertools.count()

    def run(code: str, *words: str, kind: type[subprocess.Popen[bytes]] = preloaded.Popen,
            environment: dict[str, str] | None = None, crashing: bool = False, **options: Any
            ) -> subprocess.Popen[bytes]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / f"{MODULE}.py").write_text("import os, signal, sys, time\n" + code)
        paths = [str(folder), *[str(CRASHING)][:crashing], str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        running.append(kind([sys.executable, "-P", "-m", MODULE, *words], **{
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
            "start_new_session": True, "env": {
                **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1",
                "GRPC_ENABLE_FORK_SUPPORT": "0", **(environment or {})}, **options}))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def said(process: subprocess.Popen[bytes], given: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(given, timeout=PATIENCE_SECONDS)
    return process.returncode, out.decode(), err.decode()


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_copied(pid: int) -> bool:
    """The kernel shows the environment that an interpreter was started with, which is not that of its copies: a silo's
    has PYTHONPATH with the crash points, and what started the copying process has not. It shows none yet while it puts
    a program into its place."""
    environment = Path(f"/proc/{pid}/environ")
    wait_until(lambda: environment.read_bytes() != b"")
    return f"{CRASHING}".encode() not in environment.read_bytes()


def computing(pid: int) -> list[int]:
    """The compute processes of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in children
            if "semisilo.common.process.compute_process" in Path(f"/proc/{each}/cmdline").read_text()]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


SURROUNDINGS = """
import json, resource, subprocess
print(json.dumps({
    "words": sys.argv, "line": sys.orig_argv, "shown": open("/proc/self/cmdline").read().strip("\\0").split("\\0"),
    "environment": sorted(os.environ.items()),
    "inherited": subprocess.run(["sh", "-c", "printf %s $OF_THIS_TEST"], capture_output=True).stdout.decode(),
    "folder": os.getcwd(), "paths": sys.path, "flags": list(sys.flags), "name": __name__, "spec": __spec__.name,
    "file": __file__, "main": sys.modules["__main__"].__dict__ is globals(), "input": sys.stdin.read(),
    "own session": os.getsid(0) == os.getpid(), "own group": os.getpgid(0) == os.getpid(), "parent": os.getppid(),
    "descriptors": sorted(int(each) for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")
                          and int(each) < 500),
    "inheritable": [os.get_inheritable(each) for each in map(int, sys.argv[1:])],
    "handed": [os.read(each, 100).decode() for each in map(int, sys.argv[1:])],
    "signals": [repr(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "umask": os.umask(0), "niceness": os.nice(0), "zone": time.tzname,
    "limits": [resource.getrlimit(getattr(resource, each)) for each in dir(resource) if each.startswith("RLIMIT_")],
    "unbuffered": [sys.stdout.write_through, sys.stderr.write_through], "encoding": sys.stdout.encoding,
    "threads": len(os.listdir("/proc/self/task")),
    "buffered": (os.write(2, b"straight "), sys.stderr.write("after"))[1],
}))
"""


@pytest.mark.slow
def test_a_copy_has_the_surroundings_of_a_fresh_interpreter(start: Start, tmp_path: Path) -> None:
    found = []
    for kind in (subprocess.Popen, preloaded.Popen):
        read, write = os.pipe()
        os.write(write, b"through a pipe")
        os.close(write)
        before = os.umask(0o27)
        try:
            process = start(SURROUNDINGS, str(read), kind=kind, stdin=subprocess.PIPE, pass_fds=(read,), cwd=tmp_path,
                            environment={"OF_THIS_TEST": "grün", "TZ": "Asia/Kathmandu"})
        finally:
            os.umask(before)
            os.close(read)
        status, out, err = said(process, b"something to read")
        assert (status, err) == (0, "straight after")
        seen = json.loads(out)
        assert (seen["handed"], seen["input"]) == (["through a pipe"], "something to read")
        assert (seen["parent"], seen["umask"]) == (os.getpid(), 0o27)
        found.append(json.loads(json.dumps(seen).replace(f"{tmp_path}/{len(found)}", "FOLDER").replace(
            f'"{read}"', '"NUMBER"')))
        found[-1]["descriptors"] = [each if each < 3 else "more" for each in found[-1]["descriptors"]]
    assert found[0] == found[1]


def test_the_copy_of_these_tests_is_one_and_their_interpreter_is_not(start: Start) -> None:
    """The control of this file."""
    for kind, copied in ((preloaded.Popen, "True True\n"), (subprocess.Popen, "False False\n")):
        assert said(start(f"print({COPIED}, 'torch' in sys.modules)", kind=kind)) == (0, copied, "")


@pytest.mark.slow
@each_of(("code", "status", "out", "err"), [
    ("", 0, "", ""),
    ("sys.exit()", 0, "", ""),
    ("sys.exit(3)", 3, "", ""),
    ("sys.exit(-1)", 255, "", ""),
    ("sys.exit('one line')", 1, "", "one line\n"),
    ("sys.exit([1])", 1, "", "[1]\n"),
    ("os._exit(5)", 5, "", ""),
    ("1 / 0", 1, "", "ZeroDivisionError: division by zero\n"),
    ("raise KeyboardInterrupt", -signal.SIGINT, "", "KeyboardInterrupt\n"),
    ("signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
     -signal.SIGINT, "", "KeyboardInterrupt\n"),  # a shell's job in the background ignores it
    ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM, "", ""),
    ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", ""),
    ("os.abort()", -signal.SIGABRT, "", ""),
    ("import atexit; atexit.register(print, 'at the end'); sys.exit(4)", 4, "at the end\n", ""),
    ("import threading; threading.Thread(target=lambda: (time.sleep(0.2), print('a thread'))).start()", 0,
     "a thread\n", ""),
    ("import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", 0, "", ""),
    ("sys.stdout.write('no line')", 0, "no line", ""),
])
def test_a_copy_ends_as_a_fresh_interpreter_does(start: Start, code: str, status: int, out: str, err: str) -> None:
    for kind in (preloaded.Popen, subprocess.Popen):
        got = said(start(code, kind=kind))
        assert got[:2] == (status, out), (kind, got)
        assert got[2].endswith(err), (kind, got)
        assert err or not got[2], (kind, got)


def test_signals_from_outside_reach_a_copy_and_all_that_is_in_its_group(start: Start) -> None:
    process = start("import subprocess\nother = subprocess.Popen(['sleep', '600'])\nprint(other.pid)\nother.wait()")
    assert process.stdout is not None
    other = int(process.stdout.readline())
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    wait_until(lambda: not is_there(other))


def test_whoever_reads_sees_the_end_when_a_copy_is_killed(start: Start) -> None:
    """What is kept for compute processes does not hold the pipe open."""
    process = start("print('begun')\ntime.sleep(600)")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.kill()
    assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]
    assert process.stdout.read() == b""


HAS_COMPUTE = """
import asyncio
from pathlib import Path
from semisilo.common.process.compute import ProcessCompute
from tests.common.process.compute_operations import Steps

os.environ["GRPC_VERBOSITY"] = "NONE"  # as commands do

async def main():
    compute = ProcessCompute("tests.common.process.compute_operations:Operations")
    await compute.start()
    status = Path(f"/proc/{compute.pid}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    kept = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    line = Path("/proc", str(compute.pid), "cmdline").read_text().split("\\0")
    copied = b"/tests/crashing" not in Path("/proc", str(compute.pid), "environ").read_bytes()
    print(compute.pid, int(parent) == os.getpid(), line[3], copied,
          *sorted(set(kept) - {str(compute.pid)}), flush=True)
    await compute.call(Steps(int(sys.argv[1]), 0.05))
    await compute.close()
    print("closed", flush=True)

asyncio.run(main())
"""


def _compute_of(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Process ids of the compute process, and of what it was copied from."""
    assert process.stdout is not None
    line = process.stdout.readline().decode().split()
    assert len(line) == 5, (line, said(process))
    pid, is_child, module, copied, kept = line
    assert (is_child, module, copied) == ("True", "semisilo.common.process.compute_process", "True")
    assert is_there(int(kept))
    return int(pid), int(kept)


def test_a_compute_process_of_a_copy_is_its_child_and_is_gone_with_it(start: Start) -> None:
    process = start(HAS_COMPUTE, "100000", crashing=True)
    compute, kept = _compute_of(process)
    assert is_there(compute)
    process.kill()
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    wait_until(lambda: not is_there(compute) and not is_there(kept))


def test_a_compute_process_of_a_copy_works_and_is_closed_as_another(start: Start) -> None:
    process = start(HAS_COMPUTE, "2", crashing=True)
    compute, kept = _compute_of(process)
    status, out, err = said(process)
    assert (status, out, err) == (0, "closed\n", "")
    wait_until(lambda: not is_there(compute) and not is_there(kept))


@each_of(("crash", "dies"), [
    ("semisilo.common.text.logs:printable:2:after", True), ("semisilo.common.text.logs:printable:3:after", False)])
def test_a_crash_point_kills_a_copy_at_its_call_wherever_the_function_was_imported_to(
        start: Start, crash: str, dies: bool) -> None:
    process = start(f"from semisilo.common.process.account import printable\nprintable('a')\nprint({COPIED})\n"
                    "printable('b')\nprint('alive')", environment={"SEMISILO_TEST_CRASH": crash}, crashing=True)
    assert said(process) == ((-signal.SIGKILL, "True\n", "") if dies else (0, "True\nalive\n", ""))


@each_of("environment", [
    {"OMP_NUM_THREADS": "2"}, {"MALLOC_ARENA_MAX": "1"}, {"LD_PRELOAD": ""}, {"GRPC_ENABLE_FORK_SUPPORT": "1"},
    {"PYTHONHASHSEED": "7"}, {"PYTHONUNBUFFERED": ""}, {"LC_ALL": "C"}, {preloaded.OFF: "1"}])
def test_what_is_read_while_an_interpreter_starts_or_imports_has_one_start(
        start: Start, environment: dict[str, str]) -> None:
    assert said(start(f"print({COPIED})", environment=environment))[:2] == (0, "False\n")


@each_of("options", [{"close_fds": False}, {"preexec_fn": os.getpid}, {"umask": 0o77},
                     {"start_new_session": False, "process_group": 0}])
def test_what_a_copy_cannot_be_given_has_an_interpreter_start(start: Start, options: dict[str, Any]) -> None:
    assert said(start(f"print({COPIED})", **options))[:2] == (0, "False\n")


def test_when_the_copying_process_is_gone_interpreters_are_started(start: Start, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    said(start(""))
    real = preloaded._source
    assert real is not None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    monkeypatch.setattr(preloaded, "_source", preloaded._Source({"full": ours}, real._environment))
    with contextlib.closing(ours):
        for _ in range(2):
            assert said(start(f"print({COPIED})")) == (0, "False\n", "")


@pytest.mark.slow
def test_many_that_are_started_at_once_get_their_own(start: Start) -> None:
    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(lambda number: start(f"print({number}, {COPIED})"), range(8)))
    assert [said(each) for each in begun] == [(0, f"{number} True\n", "") for number in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False])
def test_all_processes_of_a_federation_are_copies_if_they_may_be(copies: bool, tmp_path: Path) -> None:
    with federation(tmp_path, silos=("alpha",), study=STUDY.replace("start_with = 2", "start_with = 1"),
                    copies=copies) as processes:
        processes.start()
        for light in processes.running.values():
            assert is_copied(light.pid) == copies
            wait_until(lambda light=light: bool(computing(light.pid)))  # type: ignore[misc]
            compute, = computing(light.pid)
            assert is_copied(compute) == copies
        processes.finish()


@pytest.mark.slow
def test_nothing_is_left_when_the_process_that_asked_is_killed(tmp_path: Path) -> None:
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "from tests import preloaded\npreloaded._source_of_this_process()\n"
            "import os\nprint(preloaded._process.pid, flush=True)\n"
            "print(*open(f'/proc/{preloaded._process.pid}/task/{preloaded._process.pid}/children').read().split(), "
            "flush=True)\nsys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        both = [int(asking.stdout.readline()), int(asking.stdout.readline())]
        assert all(is_there(each) for each in both)
        asking.kill()
        asking.wait(PATIENCE_SECONDS)
        wait_until(lambda: not any(is_there(each) for each in both))
