"""Processes of tests that begin as copies of one which has imported torch, gRPC and semisilo already.

A coordinator, a silo and their compute processes import for two to six seconds of the processor each, and a federation
of tests has half a dozen of them. Here one process for each test process (`python tests/preloaded.py`, of a single
thread) imports once what they import, and copies itself (`fork`) for each that is asked for. The copy takes the words,
the environment, the folder, the descriptors, the session and the limits that a fresh interpreter would get, and runs
the module as `python -P -m` does. It is a real child of the process that has asked: for a moment that one takes in
orphans (PR_SET_CHILD_SUBREAPER), and the copy is made by a process in between that ends at once. So exit statuses,
kill -9, process groups and PR_SET_PDEATHSIG are the kernel's own. A copied coordinator or silo keeps, from before its
first thread, a copy of itself, of which its compute processes are copies in turn; nothing in the program knows of it.

What is not asked for in the usual way (see `_job`) starts an interpreter: other modules, another number of threads,
variables that libraries read while they are imported or that change memory or the clock (LD_PRELOAD, MALLOC_*). So do
tests of how processes start (`federation(..., copies=False)`), all tests with SEMISILO_TESTS_START_ANEW=1, and
everything when the copying process is gone or cannot be had. Processes with a crash point or a lie are copies of a
process that has not imported semisilo yet, since their functions are replaced while it is imported.

Linux alone. Tests: tests/test_preloaded.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["OFF", "Popen", "close"]

OFF = "SEMISILO_TESTS_START_ANEW"
"""Set in the environment: every process starts an interpreter."""

LIGHT = ("semisilo.coordinator.cli.main", "semisilo.silo.cli.main")
"""They start compute processes."""
COMPUTE = ("semisilo.common.process.compute_process",)

_LIBRARIES = (
    "numpy", "torch", "torch.nn.functional", "torchvision.transforms.v2", "PIL.Image", "safetensors.torch",
    "google.protobuf.internal.builder", "grpc", "grpc.aio", "cryptography.x509",
    "cryptography.hazmat.primitives.asymmetric.x25519", "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.serialization", "typer", "rich.progress", "uvicorn", "asyncio", "sqlite3",
    "tomllib", "multiprocessing", "concurrent.futures")
_OURS = ("semisilo.coordinator.serve", "semisilo.silo.join", "semisilo.coordinator.compute.unmasking",
         "semisilo.silo.compute.masking")
_BARE, _FULL = "bare", "full"
_REPLACES_FUNCTIONS = ("SEMISILO_TEST_CRASH", "SEMISILO_TEST_LIE")

_READ_EARLY = ("CUDA_", "GLIBC_", "GRPC_ENABLE_FORK_SUPPORT", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_",
               "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_")
"""How variables begin that are read while an interpreter starts or a library is imported. gRPC reads its others when
it is first used, and the program sets one of them before. scikit-learn sets some of KMP_, which torch's OpenMP does not
read."""
_READ_EARLY_BY_TORCH = ("CUBLAS_", "THP_")
_FOR_TORCH = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
              "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "THP_MEM_ALLOC_ENABLE": "1"}
"""As of `semisilo.common.process.child.numerics_of(1)`, which is not to be imported here."""
_MESSAGE_BYTES = 2**17
_HIGH = 500
"""Descriptors from here on are ours; no process of a test has as many."""
_READY_SECONDS = 300.0
_BORN_SECONDS = 120.0
_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """What a copy is to become; its descriptors come beside it: an end to answer through, 0, 1, 2, and `numbers`."""

    words: list[str]
    """The command line, with the interpreter and its options."""
    environment: dict[str, str]
    folder: str
    session: bool
    """Whether it begins a session of its own."""
    keeps: bool
    """Whether it has compute processes, which are copies in turn."""
    numbers: list[int]
    parent: int
    umask: int
    niceness: int
    limits: dict[str, tuple[int, int]]

    @property
    def module(self) -> str:
        return self.words[3]


# On the side of those who ask -----------------------------------------------------------------------------------------

class _Source:
    """Connections to processes that copy themselves."""

    def __init__(self, ends: dict[str, socket.socket], environment: dict[str, str]) -> None:
        self._ends = ends
        self._environment = environment
        """Which they were started with."""
        self._subreaping = threading.Lock()

    def would_do(self, job: _Job) -> bool:
        """Whether a copy has what a fresh interpreter would have read from its environment."""
        early = _READ_EARLY + (_READ_EARLY_BY_TORCH if job.module in COMPUTE else ())
        for name in {*self._environment, *job.environment}:
            if name.startswith(early) and name != "PYTHONPATH" and \
                    self._environment.get(name) != job.environment.get(name):
                return False
        theirs, ours = (_paths(each) for each in (job.environment, self._environment))
        return theirs[len(theirs) - len(ours):] == ours

    def copy(self, job: _Job, descriptors: list[int]) -> int | None:
        """Process id of a new child of this process; None when there is none to be had."""
        level = _BARE if any(name in job.environment for name in _REPLACES_FUNCTIONS) else _FULL
        end = self._ends.get(level)
        if end is None:
            return None
        reply, theirs = socket.socketpair()
        with reply:
            try:
                with theirs, self._as_subreaper():
                    socket.send_fds(end, [json.dumps(asdict(job)).encode()], [theirs.fileno(), *descriptors])
                    theirs.close()  # only the copy has it now: when it is gone, the answer is empty
                    reply.settimeout(_BORN_SECONDS)
                    born = reply.recv(100)
                if born:
                    reply.sendall(b"go")
                    return int(born)
            except OSError:
                pass
        self._ends.clear()  # something is wrong there: not once more
        return None

    @contextlib.contextmanager
    def _as_subreaper(self) -> Iterator[None]:
        """Meanwhile orphans among this process's descendants become its children."""
        with self._subreaping:
            _prctl(_SET_CHILD_SUBREAPER, 1)
            try:
                yield
            finally:
                _prctl(_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        for end in self._ends.values():
            end.close()
        self._ends.clear()


_source: _Source | None = None
_process: subprocess.Popen[bytes] | None = None
_starting = threading.Lock()


def _source_of_this_process() -> _Source:
    """Starts the process that copies itself, and waits until it has imported all; once in a process."""
    global _source, _process
    with _starting:
        if _source is None:
            environment = {**os.environ, **_FOR_TORCH, "PYTHONUNBUFFERED": "1", "GRPC_ENABLE_FORK_SUPPORT": "0"}
            for name in _REPLACES_FUNCTIONS:
                environment.pop(name, None)
            pairs = {level: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for level in (_BARE, _FULL)}
            theirs = [pair[1].fileno() for pair in pairs.values()]
            _process = subprocess.Popen(
                [sys.executable, "-P", __file__, *map(str, theirs), " " * 2000], env=environment, pass_fds=theirs,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                start_new_session=True)
            ends = {level: pair[0] for level, pair in pairs.items()}
            for _, end in pairs.values():
                end.close()
            _source = _Source(ends, environment)
            for end in ends.values():
                end.settimeout(_READY_SECONDS)
                try:
                    ready = end.recv(100) == b"ready"
                except OSError:
                    ready = False
                if not ready:
                    _source.close()
                    break
        return _source


def close() -> None:
    """Ends the process that copies itself, if this one has started it. What was copied is not touched."""
    global _source, _process
    with _starting:
        if _process is not None and _source is not None:
            _source.close()
            try:
                _process.wait(10)
            except subprocess.TimeoutExpired:
                _process.kill()
                _process.wait()
            _source = _process = None


class Popen(subprocess.Popen[Any]):
    """As `subprocess.Popen`, with a copy for an interpreter where that makes no difference."""

    def _execute_child(self, *given: Any, **named: Any) -> None:
        original = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(original).bind(*given, **named).arguments
        job = _job(asked)
        if job is not None and (source := _source_of_this_process()).would_do(job):
            # As subprocess does: what is not asked for is this process's own.
            streams = [own if asked[name] == -1 else asked[name]
                       for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))]
            pid = source.copy(job, [*streams, *job.numbers])
            if pid is not None:
                self.pid = pid
                self._child_created = True
                self._close_pipe_fds(*(asked[name] for name in (  # type: ignore[attr-defined]
                    "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))
                return
        original(*given, **named)


def _job(asked: dict[str, Any]) -> _Job | None:
    """What a copy would have to do in place of a fresh interpreter; None where one must not be taken."""
    words = asked["args"]
    usual = {"preexec_fn": None, "close_fds": True, "shell": False, "gid": None, "gids": None, "uid": None, "umask": -1,
             "process_group": -1, "executable": None}
    if sys.platform != "linux" or os.environ.get(OFF) or any(
            asked.get(name, value) != value for name, value in usual.items()):
        return None
    if not isinstance(words, list | tuple) or [str(word) for word in words[:3]] != [sys.executable, "-P", "-m"] \
            or len(words) < 4 or words[3] not in LIGHT + COMPUTE:
        return None
    numbers = sorted(asked["pass_fds"])
    if numbers and (numbers[0] < 3 or numbers[-1] >= _HIGH):
        return None
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in
                   (os.environ if asked["env"] is None else asked["env"]).items()}
    if environment.get(OFF):
        return None
    umask = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines()
                 if line.startswith("Umask:"))
    return _Job(words=[os.fsdecode(word) for word in words], environment=environment,
                folder=os.path.abspath(asked["cwd"] or os.getcwd()), session=bool(asked["start_new_session"]),
                keeps=words[3] in LIGHT,
                numbers=numbers, parent=os.getpid(), umask=int(umask, 8),
                niceness=os.getpriority(os.PRIO_PROCESS, 0),
                limits={name: resource.getrlimit(getattr(resource, name)) for name in _limits()})


def _limits() -> list[str]:
    return [name for name in dir(resource) if name.startswith("RLIMIT_")]


def _paths(environment: dict[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


# The process that copies itself, and its copies -----------------------------------------------------------------------

def _main(bare: str, full: str) -> None:
    """Imports, and serves. Returns in copies, once they have run what they were asked for."""
    first, second = (socket.socket(fileno=int(each)) for each in (bare, full))
    for end in (first, second):
        end.set_inheritable(False)
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if os.fork():
        second.close()
        control = first
    else:
        first.close()
        control = second
        for name in _OURS:
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("a process with several threads cannot be copied")
    # What the collector writes to is copied for every process.
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    job = _serve(control)
    if job.keeps:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            _keep(ours, job)
        else:
            ours.close()
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            for number in (nothing, *job.numbers):
                os.close(number)
            job = _serve(theirs)
    _run(job)


def _serve(control: socket.socket) -> _Job:
    """Makes a copy for each job, in which this returns; ends this process with those who ask."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 200)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            break
        for each in descriptors:
            os.close(each)
        os.waitpid(between, 0)
    job = _Job(**json.loads(message))
    end = time.monotonic() + _BORN_SECONDS / 2
    while os.getppid() != job.parent:
        if time.monotonic() > end:
            os._exit(1)
        time.sleep(0.0005)
    os.close(control.detach())
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in descriptors]
    os.closerange(3, _HIGH)
    for each, number in zip(high[1:], (0, 1, 2, *job.numbers), strict=True):
        os.dup2(each, number)
        os.close(each)
    _become(job)
    with socket.socket(fileno=high[0]) as reply:
        reply.sendall(str(os.getpid()).encode())
        if reply.recv(2) != b"go":
            os._exit(1)
    return job


def _become(job: _Job) -> None:
    """Takes on what a fresh interpreter would have got."""
    if job.session:
        os.setsid()
    os.chdir(job.folder)
    os.umask(job.umask)
    for name, limits in job.limits.items():
        if resource.getrlimit(getattr(resource, name)) != tuple(limits):
            resource.setrlimit(getattr(resource, name), tuple(limits))
    if os.getpriority(os.PRIO_PROCESS, 0) != job.niceness:
        os.setpriority(os.PRIO_PROCESS, 0, job.niceness)
    os.environ.clear()
    os.environ.update(job.environment)
    time.tzset()
    sys.path[:] = dict.fromkeys([*_paths(job.environment), *_PATH])
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    sys.orig_argv = list(job.words)
    _show(job.words)
    sys.modules["numpy"].random.seed(None)  # `random` does so itself


def _show(words: list[str]) -> None:
    """Writes the command line where the system looks for it."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in words)[:end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _keep(control: socket.socket, job: _Job) -> None:
    """The compute processes of this one are copies of that behind the socket."""
    global _source
    high = socket.socket(fileno=fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, _HIGH))
    control.close()
    level = _BARE if any(name in job.environment for name in _REPLACES_FUNCTIONS) else _FULL
    _source = _Source({level: high}, {**_started_with, "PYTHONPATH": job.environment.get("PYTHONPATH", "")})
    subprocess.Popen = Popen  # type: ignore[misc]


def _run(job: _Job) -> NoReturn:
    """As `python -P -m` does, but for the tidying up of modules at the end: that would write to all that is shared."""
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.modules.pop(job.module, None)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv[:] = ["-m", *job.words[4:]]
    status: object = 0
    try:
        runpy._run_module_as_main(job.module)  # type: ignore[attr-defined]
    except SystemExit as error:
        status = error.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = error if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if status is not None and not isinstance(status, int | KeyboardInterrupt):
        print(status, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if isinstance(status, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF if isinstance(status, int) else int(status is not None))


_started_with = dict(os.environ)
_PATH = sys.path[len(_paths(_started_with)):]
"""Without what came from PYTHONPATH."""

if __name__ == "__main__":
    sys.modules["_preloaded"] = sys.modules["__main__"]  # stays when another takes its place
    _main(*sys.argv[1:3])
