"""Runs `coordinator init` and kills it: `python killed_init.py FOLDER NUMBER` makes FOLDER/hub and ends itself with
SIGKILL before the NUMBER-th opening, making, renaming or removing of a file there. A program of its own: a hook of
audits cannot be taken back.

With 0 it comes to its end, and FOLDER/hubN is a copy of what was there before the N-th operation: what a kill leaves,
since the system keeps what was written until then, and a dead process tidies nothing up. Prints how many there are.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from semisilo.coordinator.cli import main as cli

_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "sqlite3.connect")


def main() -> None:
    folder, killed_at = Path(sys.argv[1]) / "hub", int(sys.argv[2])
    number, copying = 0, False

    def before(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal number, copying
        if copying or event not in _OPERATIONS or str(folder) not in str(arguments):
            return
        number += 1
        if number == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if not killed_at:
            copying = True
            if folder.exists():
                shutil.copytree(folder, f"{folder}{number}")
            copying = False

    sys.addaudithook(before)
    said, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - until the end
    cli.init("lung", address="hub:8443", folder=folder, scenario="labels-at-coordinator", as_json=True)
    sys.stdout = said
    print(number)


if __name__ == "__main__":
    main()
