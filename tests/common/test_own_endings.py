"""What code of others raises to end a process is an error; what a signal brings about is not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from semisilo.common.process.messages import Handler, run_operation
from semisilo.common.system_errors import is_error_of_code
from semisilo.common.text.cli_errors import Terminated
from semisilo.coordinator.compute.messages import Phases

ROOT = Path(__file__).resolve().parents[2]


def caught(code: str, module: str = "their_net") -> BaseException:
    with pytest.raises(BaseException) as found:  # noqa: PT011 - any
        exec(compile(code, "their_net.py", "exec", dont_inherit=True), {"__name__": module})
    return found.value


@pytest.mark.parametrize("code", ["1 / 0", "import sys\nsys.exit(3)", "raise SystemExit", "raise KeyboardInterrupt",
                                  "def f():\n    raise KeyboardInterrupt('x')\nf()",
                                  "exit_ = SystemExit(2)\nraise exit_"])
def test_what_code_of_others_raises_is_an_error(code: str) -> None:
    assert is_error_of_code(caught(code))


def test_what_a_signal_brings_about_is_none() -> None:
    def terminate(number: int, frame: object) -> None:
        raise Terminated(number)

    terminate = type(terminate)(terminate.__code__, {"__name__": "semisilo.common.text.cli_errors",
                                                     "Terminated": Terminated})
    before = signal.signal(signal.SIGTERM, terminate)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            error = caught(f"import os\nos.kill(os.getpid(), {int(number)})\nfor _ in range(10**9):\n    pass")
            assert not is_error_of_code(error), number
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize("ends", [SystemExit("scan 17"), KeyboardInterrupt()])
def test_an_operation_that_ends_the_process_fails_and_the_process_goes_on(ends: BaseException) -> None:
    def handle(request: object) -> object:
        raise ends

    with pytest.raises(RuntimeError, match=type(ends).__name__):
        run_operation({"phases": Handler(Phases, handle)}, "phases", {"state": "00", "round": 1, "silos": 1})
