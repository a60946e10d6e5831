"""Runs schedules of faults: `python -m tests.simulator.run SEED...`, or `FIRST-LAST`, or `--minutes`.

Exit status 0 when every invariant has held, 1 when one was broken; then the seed is printed, and
`python -m tests.simulator.run SEED --trace` shows it again, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
        return subprocess.call([sys.executable, "-m", "tests.simulator.run", *sys.argv[1:]],
                               env={**os.environ, "PYTHONHASHSEED": "0"})
    if options.planted:
        from tests.simulator.planted import plant

        plant(options.planted)
    from tests.simulator.federation import run_schedule
    from tests.simulator.schedule import draw_schedule

    began, used = time.perf_counter(), time.process_time()
    runs = faults = failed = 0
    for seed in _seeds(options):
        if options.minutes and time.perf_counter() - began > 60 * options.minutes:
            break
        schedule = draw_schedule(seed)
        outcome = run_schedule(schedule)
        runs, faults = runs + 1, faults + schedule.num_faults
        if options.trace:
            print("\n".join((*schedule.lines(), *outcome.trace)))
        if outcome.violations:
            failed += 1
            print(f"seed {seed}: fingerprint {outcome.fingerprint}")
            print("\n".join([*(f"    {line}" for line in schedule.lines()),
                             *(f"    ! {line}" for line in outcome.violations)]), flush=True)
            if failed >= options.failures:
                break
        elif options.verbose or options.trace:
            print(f"seed {seed}: {schedule.num_faults} faults, {outcome.messages} messages, {outcome.turns} callbacks,"
                  f" {outcome.seconds - 1000:.0f} s, fingerprint {outcome.fingerprint}", flush=True)
    took, used = time.perf_counter() - began, time.process_time() - used
    print(f"{runs} schedules with {faults} faults in {took:.1f} s, {1000 * used / max(1, runs):.0f} ms of a processor"
          f" each: {failed} broke an invariant")
    return int(failed > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.run", description=__doc__)
    parser.add_argument("seeds", nargs="*", default=["1-1000"], help="numbers, or ranges such as 1-1000")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many failures")
    parser.add_argument("--planted", default="", help="with one of the bugs of tests/simulator/planted.py")
    parser.add_argument("--trace", action="store_true", help="show every message, death and start")
    parser.add_argument("--verbose", action="store_true", help="a line for each schedule")
    return parser.parse_args()


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    for text in options.seeds:
        first, dash, last = text.partition("-")
        yield from count(int(first)) if dash and not last else range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
