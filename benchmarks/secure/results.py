"""What was measured of secure aggregation, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["silo_seconds", "write_results"]

Facts = dict[str, Any]
_SILO = ("quantise", "masks", "pack")
_PUBLISHED = 2.7
"""Times the plain run: what is published of NVIDIA FLARE with homomorphic encryption."""


def silo_seconds(row: Facts, clock: str = "processor") -> float:
    """What a silo does in a round beyond training and writing: seconds."""
    return float(sum(row["seconds"][name][clock] for name in _SILO))


def write_results(everything: Facts, path: Path) -> None:
    """Writes the page.

    Args:
        everything: as run.py collects it.
    """
    machine = everything["machine"]
    lines = [
        "# Secure aggregation: a silo's work, the coordinator's, and bytes", "",
        f"Written by `make bench-secure{' BENCH_ARGS=--quick' if everything['quick'] else ''}`; do not edit. "
        f"{machine['date']}, {machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python "
        f"{machine['python']}, semisilo {machine['version']}; load average {machine['load_before']:.1f} before and "
        f"{machine['load_after']:.1f} after.", "",
        "One process on one core. Seconds are the processor's (median of the repeats; in brackets lowest and highest), "
        "for others work on this machine as well; the wall's are in a column of their own. The plain path is the same "
        "update written by `common.payload` in the same run, without waiting for the disk: raw, and as `uplink = "
        "\"auto\"` has it. *Of the plain path* is (quantise + masks + pack + write) over writing it plainly. Updates "
        "are normal with deviation 0.01 and bound 0.1.", "",
        "## A silo's work in a round beyond training", "",
        *_table(("parameters", "silos", "bits", "quantise", "masks", "pack", "together", "wall", "then write",
                 "plain raw", "plain auto", "of plain raw", "of plain auto"),
                [_silo(row) for row in everything["vectors"]]), "",
        "The whole run of a federation is training and transfers besides; what is published of NVIDIA FLARE with "
        f"homomorphic encryption, {_PUBLISHED} times the plain run, is of a whole run.", "",
        "## Bytes up, against dense fp32", "",
        *_table(("parameters", "bits", "masked", "of dense", "plain auto, of dense"),
                [_bytes(row) for row in everything["vectors"] if row["silos"] == min(each["silos"] for each in
                                                                                     everything["vectors"])]), "",
        "Masked words are uniform: nothing can compress them.", "",
        "## The coordinator", "",
        *_table(("parameters", "silos", "bits", "unpack and add, a silo", "take self masks away", "decode"),
                [_hub(row) for row in everything["vectors"]]), "",
        "## Keys, shares and signatures, whatever the model", "",
        "Milliseconds of the processor for one silo in each step; for the coordinator to put the secrets together when "
        "none, or as many silos as the threshold allows, have dropped out after handing in their shares. Bytes are "
        "those of the fields, without framing.", "",
        *_table(("silos", "threshold", "keys", "shares", "mask seeds", "confirm", "unmask", "hub, none dropped out",
                 "hub, most dropped out", "bytes sent", "bytes received"),
                [_protocol(row) for row in everything["protocol"]]), "",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
            *("| " + " | ".join(row) + " |" for row in rows)]


def _spread(facts: Facts) -> str:
    return f"{facts['processor']:.3f} ({facts['lowest']:.3f} to {facts['highest']:.3f})"


def _silo(row: Facts) -> list[str]:
    seconds = row["seconds"]
    whole = silo_seconds(row) + seconds["write"]["processor"]
    return [f"{row['parameters']:,}", str(row["silos"]), str(row["bits"]), *(_spread(seconds[name]) for name in _SILO),
            f"**{silo_seconds(row):.2f}**", f"{silo_seconds(row, 'wall'):.2f}",
            *(f"{seconds[name]['processor']:.3f}" for name in ("write", "plain raw", "plain auto")),
            *(f"{whole / seconds[name]['processor']:.1f}" for name in ("plain raw", "plain auto"))]


def _bytes(row: Facts) -> list[str]:
    dense, sizes = row["dense_bytes"], row["bytes"]
    return [f"{row['parameters']:,}", str(row["bits"]), f"{sizes['masked']:,}", f"{sizes['masked'] / dense:.3f}",
            f"{sizes['plain auto'] / dense:.3f}"]


def _hub(row: Facts) -> list[str]:
    return [f"{row['parameters']:,}", str(row["silos"]), str(row["bits"]),
            *(_spread(row["seconds"][f"hub: {name}"]) for name in ("unpack and add, a silo", "take self masks away",
                                                                   "decode"))]


def _protocol(row: Facts) -> list[str]:
    names = ("keys", "shares", "mask", "signed", "answer", "hub: secrets, none dropped out",
             "hub: secrets, most dropped out")
    return [str(row["silos"]), str(row["threshold"]),
            *(f"{1000 * row['seconds'][name]['processor']:.1f}" if name in row["seconds"] else "-" for name in names),
            f"{row['bytes']['sent']:,}",
            f"{row['bytes']['received']:,}"]
