"""Runs a simulated federation through schedules of faults: `python -m tests.simulator.run 17`, `1-1000`, or `--new`;
or through a study in which the operating system refuses an operation on a file: `--fail-operation 40 --of hub --errno
EIO`, or every one of them: `--fail-every-operation`.

Exit status 0 when every invariant has held, 1 when one was broken: then the seed, its faults and what was broken are
shown. `make simulate-faults SEEDS=17 SIMULATE_ARGS=--trace` shows that run again, message by message, bit for bit.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import math
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.federation import Outcome

_NEW_SEEDS = 10**9
_APART = 10**6
"""Between the new seeds of two processes."""
_PEOPLE_EVERY = 4
"""Of the families of new seeds."""
_WORTH_A_RUN = 16
"""Schedules of a family that are worth another run of their kind before them."""


def main() -> int:
    options = _options()
    if options.new and not options.seeds:
        first = secrets.randbelow(_NEW_SEEDS)
        print(f"new seeds, from {first} on", flush=True)
        options.seeds = [f"{first}-"]
    options.seeds = options.seeds or ["1-1000"]
    if options.fail_every_operation and not options.first:
        options.first = 1 + secrets.randbelow(options.stride)
        print(f"every {options.stride}th operation, from {options.first} on", flush=True)
    if options.jobs > 1 or os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        return _in_processes(options)
    if options.planted:
        from tests.simulator.planted import plant

        plant(options.planted)
    if options.fail_operation or options.fail_every_operation:
        return _fail_operations(options)
    from tests.simulator.federation import warm_up

    warm_up()
    began, used = time.monotonic(), _processor_seconds()
    runs, faults, failed = _run_seeds(options)
    took, used = time.monotonic() - began, _processor_seconds() - used
    print(f"{runs} schedules with {faults} faults in {took:.1f} s, {1000 * used / max(1, runs):.0f} ms of a processor"
          f" each: {failed} broke an invariant", flush=True)
    return int(failed > 0)


def _run_seeds(options: argparse.Namespace) -> tuple[int, int, int]:
    """(schedules, faults, schedules that broke an invariant)."""
    from tests.simulator.branches import Tally, run_family
    from tests.simulator.federation import warm_up_for
    from tests.simulator.schedule import draw_schedule, family_of

    tally = Tally()
    end = time.monotonic() + 60 * options.minutes if options.minutes else math.inf

    def goes_on() -> bool:
        return tally.read()[2] < options.failures and time.monotonic() < end

    def tell(outcome: Outcome) -> None:
        tally.add(outcome)
        _tell(outcome, options)

    for _, seeds in itertools.groupby(_seeds(options), family_of):
        if not goes_on():
            break
        of_family = list(seeds)
        if len(of_family) >= _WORTH_A_RUN:
            warm_up_for(draw_schedule(of_family[0]))
        run_family(of_family, tell=tell, goes_on=goes_on)
    return tally.read()


def _tell(outcome: Outcome, options: argparse.Namespace) -> None:
    """On standard output, as far as it is asked for, and what was broken."""
    schedule, seed = outcome.schedule, outcome.schedule.seed
    if options.trace:
        print("\n".join((*schedule.lines(), *outcome.trace)))
    if outcome.violations:
        print(f"seed {seed}: fingerprint {outcome.fingerprint}")
        print("\n".join([*(f"    {line}" for line in schedule.lines()),
                         *(f"    ! {line}" for line in outcome.violations),
                         f"    again, message by message: make simulate-faults SEEDS={seed} SIMULATE_ARGS=--trace"]))
    elif options.verbose or options.trace:
        print(f"seed {seed}: {schedule.num_faults} faults, {outcome.messages} messages, {outcome.turns} callbacks,"
              f" {outcome.seconds - 1000:.0f} s, fingerprint {outcome.fingerprint}")


def _processor_seconds() -> float:
    """Of this process and of those that it has started, as far as they have ended."""
    return sum(os.times()[:4])


def _fail_operations(options: argparse.Namespace) -> int:
    """One error of the system in each run of the same study."""
    from tests.simulator.file_errors import ERRORS, HUB, Found, fail_every_operation, machine_called, try_error
    from tests.simulator.machine import FileError
    from tests.simulator.schedule import COORDINATOR

    machines = [machine_called(name) for name in options.of.split(",")]
    errors = [ERRORS[name] for name in options.errno.split(",")]
    began = time.monotonic()
    found: Iterator[Found] = iter([try_error(FileError(
        machine=machines[0], number=options.fail_operation, errno=errors[0], for_seconds=options.seconds))]) \
        if options.fail_operation else fail_every_operation(
            machines=machines, errors=errors, first=options.first, stride=options.stride, minutes=options.minutes)
    runs = failed = 0
    for each in found:
        runs += 1
        if options.trace:
            print("\n".join(each.trace))
        if each.violations:
            failed += 1
            name = HUB if each.error.machine == COORDINATOR else each.error.machine
            print(f"--fail-operation {each.error.number} --of {name} --errno {errno.errorcode[each.error.errno]}"
                  f" --for {each.error.for_seconds:.0f}")
            print("\n".join(f"    ! {line}" for line in each.violations), flush=True)
            if failed >= options.failures:
                break
    print(f"{runs} studies with an error of the system each in {time.monotonic() - began:.1f} s: {failed} broke an"
          " invariant", flush=True)
    return int(failed > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.run", description=__doc__)
    parser.add_argument("seeds", nargs="*",
                        help="numbers, ranges such as 1-1000, the default, or 1- for all from there on")
    parser.add_argument("--fail-operation", type=int, default=0, help="the number of an operation on a file, from 1")
    parser.add_argument("--fail-every-operation", action="store_true", help="every --stride-th of them, one in a run")
    parser.add_argument("--of", default="hub,a", help="machines: hub, or a silo of B and a")
    parser.add_argument("--errno", default="EIO,EACCES,EROFS,ENOSPC,EMFILE", help="errors of the system")
    parser.add_argument("--for", dest="seconds", type=float, default=0.0,
                        help="all operations fail from that one on, so long")
    parser.add_argument("--first", type=int, default=0, help="the first operation; by default one of the first few")
    parser.add_argument("--stride", type=int, default=1, help="only every so-manieth operation")
    parser.add_argument("--new", action="store_true",
                        help="seeds that nobody has run before; every fourth family has people, who go back to earlier"
                             " rounds and approve studies")
    parser.add_argument("--operators", action="store_true", help="of these all families have people")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many failures")
    parser.add_argument("--planted", default="", help="with one of the bugs of tests/simulator/planted.py")
    parser.add_argument("--trace", action="store_true", help="show every message, death and start")
    parser.add_argument("--verbose", action="store_true", help="a line for each schedule")
    return parser.parse_args()


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    from tests.simulator.schedule import OPERATED_FROM, family_of

    for text in options.seeds:
        first, dash, last = text.partition("-")
        if not dash or last:
            yield from range(int(first), int(last or first) + 1)
            continue
        for seed in itertools.count(int(first)):
            people = options.new and (options.operators or family_of(seed) % _PEOPLE_EVERY == 0)
            yield seed + OPERATED_FROM * people


def _in_processes(options: argparse.Namespace) -> int:
    """Shares the seeds out among processes in which the order of sets is always the same."""
    command = [sys.executable, "-m", "tests.simulator.run", f"--failures={options.failures}",
               f"--minutes={options.minutes}", f"--planted={options.planted}", f"--of={options.of}",
               f"--errno={options.errno}", f"--fail-operation={options.fail_operation}", f"--for={options.seconds}",
               *(["--new"] if options.new else []), *(["--operators"] if options.operators else []),
               *(["--trace"] if options.trace else []), *(["--verbose"] if options.verbose else [])]
    if options.fail_every_operation:
        shares = [["--fail-every-operation", f"--first={options.first + number * options.stride}",
                   f"--stride={options.stride * options.jobs}"] for number in range(options.jobs)]
    else:
        shares = list(filter(None, (_share(options.seeds, number, options.jobs) for number in range(options.jobs))))
    processes = [subprocess.Popen([*command, *share], env={**os.environ, "PYTHONHASHSEED": "0"}) for share in shares]
    try:
        return max(process.wait() for process in processes)
    finally:
        for process in processes:
            process.kill()


def _share(texts: list[str], number: int, jobs: int) -> list[str]:
    """The seeds of one process."""
    if jobs == 1:
        return texts
    share = []
    for text in texts:
        first, dash, last = text.partition("-")
        if dash and not last:
            share.append(f"{int(first) + number * _APART}-")
            continue
        begin, end = int(first), int(last or first) + 1
        size = -(-(end - begin) // jobs)
        if begin + number * size < end:
            share.append(f"{begin + number * size}-{min(end, begin + (number + 1) * size) - 1}")
    return share


if __name__ == "__main__":
    sys.exit(main())
