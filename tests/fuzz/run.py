"""Runs one fuzzer: `python -m tests.fuzz.run TARGET [options of libFuzzer]`. README.md in this folder says more.

The process may take 256 MiB beyond what it has once everything is imported; whoever takes more gets a MemoryError,
which is a finding like any other exception that is not in the catalogue.
"""

from __future__ import annotations

import operator
import os
import random
import resource
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import atheris
import numpy as np

MEMORY_BYTES = 256 * 2**20
"""What an execution may take, far above the scratch of a block."""
_MAX_INPUT_BYTES = 2**15


def main(arguments: list[str]) -> None:
    """Fuzzes the target of the first argument; the others go to libFuzzer."""
    with atheris.instrument_imports(include=["common"]):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.mutators import MUTATORS
    from tests.fuzz.seeds import seeds

    if not arguments or arguments[0] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz.run {{{','.join(TARGETS)}}} [options of libFuzzer]")
    name, *options = arguments
    mutator = MUTATORS[name]
    folders = [option for option in options if not option.startswith("-")]
    if folders and not any(option.startswith("-merge") for option in options):
        _add_seeds(Path(folders[0]), seeds(name))

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        return mutator(data, random.Random(seed), lambda part: atheris.Mutate(part, max(len(part) + 16, 32)))[:max_size]

    target = TARGETS[name]
    traced = None

    def one(data: bytes) -> None:
        nonlocal traced
        if traced is None:  # only now: atheris puts its own function in place when it begins
            traced = atheris._trace_cmp = _spare_arrays(atheris._trace_cmp)
        target(data)

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    defaults = ["-timeout=5", "-rss_limit_mb=1024", f"-max_len={_MAX_INPUT_BYTES}", "-print_final_stats=1"]
    # The merger starts itself again, by a shell.
    command = f"{shlex.quote(sys.executable)} -m tests.fuzz.run {name}"
    atheris.Setup([command, *defaults, *options], one, custom_mutator=mutate)
    atheris.Fuzz()


def _spare_arrays(trace: Callable[..., object]) -> Callable[..., object]:
    """What atheris calls for a comparison, but not for arrays: it would never let go of the result."""
    compare = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)

    def traced(first: object, second: object, which: int, counter: int, is_constant: bool) -> object:
        if isinstance(first, (np.ndarray, np.generic)) or isinstance(second, (np.ndarray, np.generic)):
            return compare[which](first, second)
        return trace(first, second, which, counter, is_constant)

    return traced


def _add_seeds(folder: Path, inputs: Iterable[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"seed-{number:04}").write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
