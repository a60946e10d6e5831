"""What a silo's update gives away: `python -m benchmarks.privacy.probe --help`.

`semisilo probe` on studies of the embedded digits, case by case. What stands in probe.jsonl is not run again, and a
case that was stopped goes on, so it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semisilo.common.config import to_dict
from semisilo.probe.settings import ProbeSettings, probed_tables

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "probe.jsonl", HERE / "PROBE.md"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A study, and how it is probed."""

    text: str
    method: dict[str, Any]
    labels: dict[str, Any] = field(default_factory=lambda: {"all_labelled": True})
    normalisation: str = "group"
    settings: ProbeSettings


_LABELLED = {"name": "fedavg", "objective": "sl", "scenario": "labels-at-silo", "lr": 0.2, "lambda_s": 1.0,
             "weak_view": "none"}
_GRADIENT = {"name": "fedsgd", "objective": "sl", "scenario": "labels-at-silo", "lambda_s": 1.0, "weak_view": "none"}
_SEARCH = ProbeSettings(shadows=0, reconstructions=16, restarts=3, others=False)

CASES = {
    "fedavg-5": Case(text="FedAvg, 5 local epochs", method={**_LABELLED, "labelled_batch": 50, "local_epochs": 5},
                     settings=ProbeSettings(shadows=64, reconstructions=6, restarts=1,
                                            epsilons=(8.0, 1.0))),
    "fedavg-30": Case(text="FedAvg, 30 local epochs", method={**_LABELLED, "labelled_batch": 20, "local_epochs": 30},
                      settings=ProbeSettings(shadows=16, reconstructions=0)),
    "self-training": Case(text="self-training, group normalisation", method={"name": "self_training"},
                          labels={"num_labelled": 50},
                          settings=ProbeSettings(shadows=24, reconstructions=6, restarts=1)),
    "self-training-batch": Case(text="self-training, batch normalisation", method={"name": "self_training"},
                                labels={"num_labelled": 50}, normalisation="static_batch",
                                settings=ProbeSettings(shadows=24, reconstructions=0)),
    "fedsgd-1": Case(text="FedSGD, a batch of 1", method={**_GRADIENT, "labelled_batch": 1}, settings=_SEARCH),
    "fedsgd-8": Case(text="FedSGD, a batch of 8", method={**_GRADIENT, "labelled_batch": 8}, settings=_SEARCH),
}


def tables_of(case: Case) -> dict[str, Any]:
    """The study: five silos with equal parts of the digits."""
    return {
        "study": {"seed": 1, "rounds": 20}, "model": {"name": "small_cnn", "normalisation": case.normalisation},
        "data": {"image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.3]}},
        "augmentation": {"policy": "small" if case.method["name"] == "self_training" else "none"},
        "method": case.method,
        "simulation": {"data": "digits", "split": {"name": "iid", "silos": 5, "num_test": 300, **case.labels}}}


def digest_of(name: str) -> str:
    """Tells one case from another."""
    case = CASES[name]
    content = {"study": tables_of(case), "settings": to_dict(case.settings)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def lines() -> dict[str, dict[str, Any]]:
    """What was run so far, of cases as they are now, by name."""
    found = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {line["case"]: line["found"] for line in found
            if line["case"] in CASES and line["digest"] == digest_of(line["case"])}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description="What a silo's update gives away.")
    parser.add_argument("--work", type=Path, default=Path("build/probes"), help="folder of the probes")
    parser.add_argument("--cases", default="", help="only these, such as 'fedsgd-1,fedavg-5'")
    parser.add_argument("--page", action="store_true", help="run nothing, write PROBE.md only")
    options = parser.parse_args(arguments)
    wanted = [name for name in CASES if not options.cases or name in options.cases.split(",")]
    for name in [] if options.page else [name for name in wanted if name not in lines()]:
        from semisilo.probe.probe import probe

        case = CASES[name]
        found = probe(probed_tables(tables_of(case), name=name), out=options.work / name,
                      settings=case.settings, device="cpu").to_dict()
        found["pictures"] = ""
        with RESULTS.open("a") as file:
            file.write(json.dumps({"case": name, "digest": digest_of(name), "found": found}) + "\n")
        print(f"{name}: {found['seconds']:.0f} s", file=sys.stderr, flush=True)
    PAGE.write_text(page(lines()))
    return 0


def page(found: dict[str, dict[str, Any]]) -> str:
    """PROBE.md."""
    images = sorted({result["images"] for result in found.values()})
    text = ["# What an update gives away\n\nFive silos with equal parts of the embedded digits",
            f" ({' to '.join(map(str, dict.fromkeys((images[0], images[-1]))))} images each), `small_cnn` with group"
            if images else ", `small_cnn` with group",
            " normalisation\nwhere nothing else is said, round 1."
            " Each attacked update is trained on a random half of a silo's images,"
            " of FedSGD on one batch.\nBrackets: 95 % intervals. \"At most\": what no attack can exceed by the site's"
            " own count of epsilon for that one update.\n\n",
            "Written by `make bench-privacy BENCH_ARGS=--probe`.\n\n## Was this image trained on?\n\n"]
    return "".join([*text, *membership_table(found), "\n## What did the images look like?\n\n", *inversion_table(found),
                    "\n", (HERE / "probe_notes.md").read_text()])


def membership_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of the table about membership inference, each with its line break."""
    table = ["| study | what is seen | AUC (chance 0.50) | found at 1 % falsely accused | found at 10 % | updates |\n",
             "|---|---|---|---|---|---:|\n"]
    for name, result in _in_order(found):
        for entry in result["membership"]:
            hits = {each["false_positive_rate"]: each for each in entry["hits"]}
            cells = [_bracketed(entry["area"], "{:.2f}") + _at_most(entry["allowed_area"], "{:.3f}")]
            cells += [_bracketed(hits[rate]["true_positive_rate"], "{:.1%}") + _at_most(hits[rate]["allowed"], "{:.1%}")
                      if rate in hits else "too few images" for rate in (0.01, 0.1)]
            table.append(f"| {CASES[name].text} | {_seen(entry)} | {' | '.join(cells)} | {entry['updates']} |\n")
    return table


def inversion_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The same about gradient inversion."""
    table = ["| study | what is seen | images in it | PSNR, trained on | PSNR, others | difference | shown"
             " | others shown |\n",
             "|---|---|---:|---|---|---|---|---|\n"]
    for name, result in _in_order(found):
        for entry in result["inversion"]:
            cells = [_bracketed(entry[key], form) for key, form in (
                ("seen_psnr", "{:.1f}"), ("unseen_psnr", "{:.1f}"), ("gain_psnr", "{:+.1f}"),
                ("seen_recovered", "{:.1%}"), ("unseen_recovered", "{:.1%}"))]
            table.append(f"| {CASES[name].text} | {_seen(entry)} | {entry['trained_on']} | {' | '.join(cells)} |\n")
    return table


def _in_order(found: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, found[name]) for name in CASES if name in found]


def _seen(entry: dict[str, Any]) -> str:
    what = "the update by itself" if entry["view"] == "own" else f"the average of {entry['silos']} silos"
    if not entry["protection"]:
        return what
    spent = f" ({entry['epsilon']:.2g} of it in this update)" if entry.get("epsilon") else ""
    return f"{what}, {entry['protection']}{spent}"


def _bracketed(value: dict[str, float] | None, form: str) -> str:
    if value is None:
        return "-"
    return f"{form.format(value['value'])} ({form.format(value['low'])} to {form.format(value['high'])})"


def _at_most(value: float | None, form: str) -> str:
    return "" if value is None else f", at most {form.format(value)}"


if __name__ == "__main__":
    sys.exit(main())
