"""Runs pytest again and again, each time in a child that begins with the large libraries loaded: a second, not five.

Run as a program in the copy. Reads a line of JSON for each run, {"arguments": [...], "seconds": limit, "output": file},
and answers with a line: pytest's exit status, or -1 where the run was cut off. Nothing of the tested program is
imported before a child begins, for its files change between the runs.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress

LIBRARIES = ("pytest", "numpy", "torch", "torchvision", "safetensors.torch", "hypothesis", "grpc.aio",
             "google.protobuf.timestamp_pb2", "cryptography.x509")
"""What the tests of this program load; where one is missing, whoever needs it says so."""
_LOOK_SECONDS = 0.02


def _run(arguments: list[str], output: str) -> int:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, handle), (2, handle)):
        os.dup2(source, target)
    import pytest

    return int(pytest.main(arguments))


def _in_a_child(arguments: list[str], seconds: float, output: str) -> int:
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setsid()
            status = _run(arguments, output)
        finally:
            sys.stdout.flush()
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            with suppress(ProcessLookupError):  # what its tests have left running
                os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 70
        time.sleep(_LOOK_SECONDS)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def main() -> None:
    """Until its standard input ends; the arguments are the libraries to load."""
    for name in sys.argv[1:]:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        wanted = json.loads(line)
        print(_in_a_child(wanted["arguments"], wanted["seconds"], wanted["output"]), flush=True)


if __name__ == "__main__":
    main()
