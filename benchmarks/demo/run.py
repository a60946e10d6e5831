"""`semisilo demo` for three seeds: what README says of it.

    python -m benchmarks.demo.run             runs it, some minutes a seed; writes seed-N.json, RESULTS.md and README
    python -m benchmarks.demo.run --write     writes RESULTS.md and the table of README from the files that are there
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import processor_name
from semisilo.common.text.describe import describe_points
from semisilo.demo.processes import console_script

__all__ = ["HEADING", "SEEDS", "main", "results", "rows", "with_rows"]

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
SEEDS = (1, 2, 3)
HEADING = """\
| seed | labels alone | federated | gain, with a 95 % interval | on the wire |
|---:|---:|---:|---:|---:|
"""
_PROGRAM = ("common", "coordinator", "silo", "semisilo", "protos")


def results(folder: Path = HERE) -> list[dict[str, Any]]:
    """What the demo wrote with --json, by seed."""
    return [json.loads((folder / f"seed-{seed}.json").read_text(encoding="utf-8")) for seed in SEEDS]


def rows(found: list[dict[str, Any]]) -> str:
    """The rows below `HEADING`, each with its line end."""
    lines = []
    for each in found:
        low, high = each["gain_interval"]
        gain = describe_points(each["accuracy"], each["labelled_only_accuracy"])  # as the demo says it
        lines.append(f"| {each['seed']} | {each['labelled_only_accuracy']:.1%} | {each['accuracy']:.1%} |"
                     f" {gain} points ({100 * low:+.1f} to {100 * high:+.1f}) |"
                     f" {each['wire_bytes'] / 1e6:.1f} MB |\n".replace("%", " %"))
    return "".join(lines)


def with_rows(page: str, table: str) -> str:
    """A page whose table below `HEADING` has these rows instead of its own."""
    before, heading, rest = page.partition(HEADING)
    _, end, after = rest.partition("\n\n")
    if not (heading and end):
        raise SystemExit(f"error: {README} has no table with the heading of benchmarks/demo/run.py.")
    return f"{before}{heading}{table}\n{after}"


def _revision() -> str:
    """The last commit of this checkout that changed the program; empty where there is no checkout."""
    found = subprocess.run(["git", "log", "-1", "--format=%h", "--abbrev=8", "--", *_PROGRAM], cwd=HERE.parents[1],
                           capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _page(found: list[dict[str, Any]], how: str) -> str:
    least, most = (function(each["wire_bytes"] / each["dense_bytes"] for each in found) for function in (min, max))
    share = f"{least:.0%}" if f"{least:.0%}" == f"{most:.0%}" else f"{least:.0%} to {most:.0%}"
    return f"""\
# The demo

Written by `make bench-demo`: `semisilo demo --seed N --json benchmarks/demo/seed-N.json` for N in {SEEDS}.
{how}

{HEADING}{rows(found)}
On the wire: {share.replace("%", " %")} of what a dense 32-bit model each way costs in every round.
Labels alone: {found[0]["labelled_only_recipe"]}.
"""


def main(arguments: list[str] | None = None) -> None:
    """Runs the demo for each seed, one after the other, and writes what came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="run nothing; write the pages from the files")
    asked = parser.parse_args(arguments)
    page = HERE / "RESULTS.md"
    if asked.write:
        how = next(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Measured"))
    else:
        for seed in SEEDS:
            print(f"==> seed {seed}", file=sys.stderr)
            subprocess.run([*console_script("semisilo"), "demo", "--seed", str(seed), "--json",
                            str(HERE / f"seed-{seed}.json")], check=True)
        how = f"Measured with commit {_revision()} on two cores of {processor_name()}."
    found = results()
    page.write_text(_page(found, how), encoding="utf-8")
    README.write_text(with_rows(README.read_text(encoding="utf-8"), rows(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
