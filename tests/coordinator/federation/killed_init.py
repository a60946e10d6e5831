"""Runs `coordinator init` again and again, each time in a copy of this process that ends itself with SIGKILL:
`python killed_init.py FOLDER FIRST LAST`. A program of its own, since one with threads cannot be copied safely.

FOLDER/hubN is what the N-th leaves: killed before its N-th opening, making, renaming or removing of a file. Prints how
many were killed; ends with the first that was not.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from semisilo.coordinator.cli import main as cli


def init(folder: Path, number: int) -> None:
    left = number

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "sqlite3.connect") and str(folder) in str(arguments):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    cli.init("lung", address="hub:8443", folder=folder, scenario="labels-at-coordinator", as_json=True)


def main() -> None:
    root, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    killed = 0
    for number in range(first, last + 1):
        child = os.fork()
        if child == 0:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the copy's own, until its end
            status = 1
            try:
                init(root / f"hub{number}", number)
                status = 0
            finally:
                os._exit(status)
        ended = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(ended):
            if ended:
                sys.exit("coordinator init failed")
            break
        killed += 1
    print(killed)


if __name__ == "__main__":
    main()
