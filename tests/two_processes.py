"""One of two processes that train tasks of every method's study alone and together, and compare.

`python -m tests.two_processes RANK FOLDER [METHOD ...]`: both are in a gloo group whose meeting point is a file of the
folder, which has the images of SILOS; each runs the same study with both sides in memory. Process 0 prints what it
found as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Update
from semisilo.common.numerics import process_group
from semisilo.common.numerics.process_group import ProcessGroup
from semisilo.silo.compute.operations import Operations
from tests.both_sides import Federation, Images, quickly, study_tables
from tests.method_studies import STUDIES

BOTH_NETWORKS = ("semifl", "fedmatch", "scaffold")
"""Methods whose studies without a note are run on a network without batch-norm as well: mixed images and momentum,
decomposed weights, corrections. Batch-norm apart, all methods train both networks by the same lines."""
SILOS = ("a", "b")
COMPARED = "a"
"""The other silo trains alone: without it corrections, the mean less a silo's own, would be zero."""
SIZE = 2
ROUNDS = 2


@dataclass(frozen=True)
class Compared:
    """A task, alone and together."""

    study: str
    network: str
    phase: str
    abstained: bool
    difference: float
    """Largest of an element of what would be sent, over the largest element of its group."""
    metrics: float
    """Largest of a metric, likewise."""
    repeated: bool | None
    """Whether a second time together gave the same bits; None when it was not tried."""
    equal: bool
    """Whether together gave the bits of alone."""


def difference(one: Update, other: Update) -> float:
    """Of the tensors of two updates, relative to the largest element of each group."""
    assert one.groups.keys() == other.groups.keys(), (one.groups.keys(), other.groups.keys())
    worst = 0.0
    for name, group in one.groups.items():
        ours, theirs = (torch.cat([each.flatten().double() for each in found.tensors.values()])
                        for found in (group, other.groups[name]))
        worst = max(worst, float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-12)))
    return worst


def of_metrics(one: Update, other: Update) -> float:
    """Of the metrics, relative to theirs."""
    assert one.metrics.keys() == other.metrics.keys()
    return max((abs(value - other.metrics[name]) / max(1e-3, abs(value)) for name, value in one.metrics.items()),
               default=0.0)


def digests(update: Update) -> dict[str, str]:
    """Of every group's bits."""
    return {name: tensors.digest(group.tensors) for name, group in update.groups.items()}


def main(rank: int, folder: Path, methods: tuple[str, ...]) -> list[Compared]:
    """Runs the studies; see the module."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=SIZE,
                                         timeout=timedelta(seconds=120))
    group, found, now = ProcessGroup(rank=rank, size=SIZE), [], ["", ""]

    def twice(self: Operations, trainer: Any, asked: Any, data: Any, memory: Any, *, given: Any) -> Any:
        alone, keep = trainer.train(asked, data, memory)
        if asked.phase != "train" or asked.silo != COMPARED:
            return alone, keep
        shared = replace(asked, build_model=lambda: process_group.shared(asked.build_model()))

        def together() -> Update:
            with process_group.together(group):
                update: Update = trainer.train(shared, data, memory)[0]
            return update

        update = together()
        # What a round begins with is more in the last one: corrections, kept momentum, what others have sent.
        again = together() if asked.round == ROUNDS else None
        assert update.abstention == alone.abstention
        found.append(Compared(study=now[0], network=now[1], phase=asked.phase, abstained=bool(alone.abstention),
                              difference=difference(alone, update), metrics=of_metrics(alone, update),
                              repeated=None if again is None else digests(update) == digests(again),
                              equal=digests(update) == digests(alone)))
        return alone, keep

    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        patch.setattr(Operations, "_trained", twice)
        images = Images(folder)
        for number, study in enumerate(STUDIES):
            if methods and study.method not in methods:
                continue
            plain = study.method in BOTH_NETWORKS and not study.note
            for network in ("batch norm", "plain") if plain else ("batch norm",):
                now[:] = str(study), network
                # 27 images: the last batch of 13 has one, which one of the processes does not get. A metric of FedMatch
                # and an update of FedProx then hardly have the digits in float32 that are compared.
                batch = 4 if study.method in ("fedmatch", "fedprox") else 13
                smaller = {"unlabelled_batch": batch} if "unlabelled_batch" in study.settings else {}
                settings = {**study.settings, **smaller}
                tables = study_tables(images, method={"name": study.method, "scenario": study.scenario, **settings},
                                      network=network, silos=len(SILOS), rounds=ROUNDS)
                Federation(folder / f"{number}-{network}-{rank}".replace(" ", "-"), tables, images, SILOS).run()
    torch.distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    compared = main(int(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:]))
    if sys.argv[1] == "0":
        print(json.dumps([asdict(each) for each in compared]))
