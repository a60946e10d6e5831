"""The compute process itself: receives requests, runs one operation at a time, describes what went wrong.

`semisilo.common.process.child` starts this module by `python -P -m` with the words `package.module:Class DESCRIPTOR
PARENT`, and `semisilo.common.process.compute` documents the conversation. Nothing heavy is imported here: that is up to
the Operations class. Further words are descriptors that the process is handed: the target is then called with them, and
returns what the Operations are built with.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import ComputeFailed, SemisiloError
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.process.messages import Call, Failure, Operations, Progress, Reply, handlers_of, run_operation
from semisilo.common.process.processors import usable_processors
from semisilo.common.system_errors import explained_text, is_shortage
from semisilo.common.text.logs import set_up_child_logging

__all__ = ["LIMIT_BYTES", "LOST_PEER", "OUT_OF_MEMORY", "SEE_LOG", "Build", "OnProgress", "ProgressThrottle",
           "describe", "describe_start", "die_with_parent", "ends_process", "load_build", "serve", "unusable_after"]

OnProgress = Callable[[float, str], None]
Build = Callable[[OnProgress], Operations]
"""Makes the Operations, given what is told of their progress."""

LIMIT_BYTES = 64 * 2**20
"""Largest message, either way."""
OUT_OF_MEMORY = "Use a smaller batch, fewer or smaller images, or a machine with more memory."
SEE_LOG = "The log of this machine has the details."
_NOT_DETERMINISTIC = re.compile(r"(\w+) does not have a deterministic implementation")
"""How torch says so where [numerics] deterministic is true."""
_OTHER_NETWORK = "Set [numerics] deterministic = false in the study, or choose another [model] name."
LOST_PEER = 75
"""Exit status of a process that waits for another one which is gone, inside a library that does not notice."""
_ENDS = "This process ends: it cannot be trusted with another call."
_PROGRESS_SECONDS = 0.1
_IDLE_SECONDS = 10.0


class ProgressThrottle:
    """Lets a report of progress pass when the last one is long enough ago, and the last of all."""

    def __init__(self, send: OnProgress) -> None:
        self._send = send
        self._next = 0.0

    def __call__(self, fraction: float, text: str = "") -> None:
        now = time.monotonic()
        if now >= self._next or fraction >= 1:
            self._next = now + _PROGRESS_SECONDS
            self._send(min(1.0, max(0.0, float(fraction))), text)


def _out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.cuda.OutOfMemoryError)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and (
        "out of memory" in str(error) or "can't allocate memory" in str(error)))


def ends_process(error: BaseException) -> None:
    """Marks an error after which the process that answers with it cannot be trusted with the next call."""
    error.add_note(_ENDS)


def unusable_after(error: BaseException) -> bool:
    """Whether this process cannot be trusted with the next call: memory is short, a CUDA fault has come to stay, too
    many files were open while libraries looked at the processor, so that they would compute in another way, or
    `ends_process` has said so."""
    if _ENDS in getattr(error, "__notes__", ()):
        return True
    faulty = isinstance(error, RuntimeError) and "CUDA error" in str(error)
    return faulty or _out_of_memory(error) or is_shortage(error)


def describe(error: BaseException) -> Failure:
    """An exception as it is sent; one that nobody expected brings its traceback."""
    if not isinstance(error, SemisiloError):
        error = explained_text(error) or error
    if isinstance(error, SemisiloError):
        return Failure(code=error.code, text=error.text, remedy=error.remedy,
                       words_of_others=error.words_of_others or _raised_by_others(error))
    if isinstance(error, RuntimeError) and (found := _NOT_DETERMINISTIC.match(str(error))) is not None:
        return Failure(code=ComputeFailed.code, remedy=_OTHER_NETWORK, text=(
            f"The network has an operation that gives other bits each time on this machine's device: {found[1]}."))
    details = "".join(traceback.format_exception(error))[-16000:]
    last = " ".join("".join(traceback.format_exception_only(error)).split())[:500]
    if _out_of_memory(error):
        last, remedy = f"Out of memory: {last}", OUT_OF_MEMORY
    else:
        remedy = SEE_LOG
    return Failure(code=ComputeFailed.code, text=last, remedy=remedy, details=details)


def _raised_by_others(error: BaseException) -> bool:
    """Whether an error comes from code that is not semisilo's own, by the module of its last frame."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    module = "semisilo" if frames is None else str(frames.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] != "semisilo"


def describe_start(error: BaseException) -> Failure:
    """What went wrong before the first call."""
    failure = describe(error)
    if isinstance(error, ImportError):
        failure = replace(failure, text=f"The compute process cannot import what it needs: {failure.text}",
                          remedy="Check the installation: python -c 'import torch'. " + SEE_LOG)
    return failure


class _Connection:
    """The compute process's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self.requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.call = 0
        self.throttle = ProgressThrottle(self._send_progress)

    def send(self, reply: Reply) -> None:
        line = json.dumps(to_dict(reply)).encode() + b"\n"
        if len(line) > LIMIT_BYTES:
            raise ComputeFailed(f"A result takes {len(line)} bytes; the limit is {LIMIT_BYTES}.")
        with self._lock:
            self._socket.sendall(line)

    def progress(self, fraction: float, text: str = "") -> None:
        self.throttle(fraction, text)

    def _send_progress(self, fraction: float, text: str) -> None:
        self.send(Reply(id=self.call, progress=Progress(fraction=fraction, text=text)))

    def watch(self) -> None:
        """Reads requests for ever; ends the process at once when the parent has closed its end or is gone."""
        with self._socket.makefile("rb") as lines:
            while (line := lines.readline(LIMIT_BYTES + 1)).endswith(b"\n"):
                self.requests.put(line)
        os._exit(0)


def die_with_parent(parent: int) -> None:
    """Has this process killed when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)


def load_build(target: str, handed: Sequence[int] = ()) -> Build:
    """What makes the Operations of a target; one that takes descriptors is called with them first."""
    module, _, name = target.partition(":")
    loaded = getattr(importlib.import_module(module), name)
    build: Build = loaded(*handed) if handed else loaded
    return build


def _next_request(connection: _Connection) -> bytes:
    """The next request. Memory is given back only when there is none for a moment: the operations of a round follow
    each other closely, and each would have to fetch from the system what the one before has just returned."""
    with contextlib.suppress(queue.Empty):
        return connection.requests.get(timeout=_IDLE_SECONDS)
    _give_back_memory()
    return connection.requests.get()


def _give_back_memory() -> None:
    """Returns freed memory to the system: glibc keeps what lies between pieces in use, in the end several models."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _answer(load: Callable[[], Build], connection: _Connection) -> None:
    try:
        handlers = handlers_of(load()(connection.progress))
    except Exception as error:
        connection.send(Reply(error=describe_start(error)))
        return
    connection.send(Reply(ready=True))
    while True:
        call = from_dict(Call, json.loads(_next_request(connection)))
        connection.call = call.id
        connection.throttle = ProgressThrottle(connection._send_progress)
        try:
            answer = run_operation(handlers, call.operation, call.arguments)
            connection.send(Reply(id=call.id, answer=to_dict(answer)))
        except Exception as error:
            exits = unusable_after(error)
            connection.send(Reply(id=call.id, error=describe(error), exits=exits))
            if exits:
                return


def serve(end: socket.socket, load: Callable[[], Build]) -> NoReturn:
    """Answers what comes through a socket until its other end closes; this process ends then."""
    # The light process decides when this one ends: by closing the socket, or by SIGKILL. A signal that a terminal or a
    # service manager sends to both must not make a running task look failed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settle_allocator(arenas=1 + usable_processors())
    set_up_child_logging()
    end.set_inheritable(False)
    connection = _Connection(end)
    try:
        threading.Thread(target=connection.watch, daemon=True).start()
    except RuntimeError as error:
        connection.send(Reply(error=describe_start(error)))
        os._exit(1)
    _answer(load, connection)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # a damaged device context or a full memory must not hang the usual way out


def _main(target: str, descriptor: str, parent: str, *handed: str) -> None:
    die_with_parent(int(parent))
    serve(socket.socket(fileno=int(descriptor)), lambda: load_build(target, [int(each) for each in handed]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
