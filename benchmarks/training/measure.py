"""One way of training, timed in a process of its own: `python -m benchmarks.training.measure --help`. Prints JSON."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.training.bare_step import BareRound
from benchmarks.training.our_semifl import OurSilo
from benchmarks.training.plain_semifl import plain_network, round_seconds
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.numerics import Numerics, Precision
from semisilo.common.models.factory import build_model
from semisilo.common.process.processors import usable_processors

__all__ = ["VARIANTS", "main"]

_MEAN, _STD = (0.491, 0.482, 0.447), (0.247, 0.244, 0.262)

VARIANTS: dict[str, Numerics | Precision | int] = {
    "plain": 0,
    "plain, 2 loading processes": 2,
    "semisilo fp32": Numerics(),
    "semisilo fp32, contiguous, 1 thread": Numerics(threads=1, memory_format="contiguous"),
    "semisilo bf16": Numerics(precision="bf16"),
    "arithmetic alone fp32": "fp32",
    "arithmetic alone bf16": "bf16",
}
"""By name: our numerics, the precision of arithmetic alone, or how many processes load the images of the plain loop."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Times rounds of one silo and prints images per second: those trained on, labelling included in the time."""
    parser = argparse.ArgumentParser(description="Times a silo's round of SemiFL.")
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--network", default="wide_resnet_28_2")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="timed, after one of a tenth of the images")
    chosen = parser.parse_args(arguments)
    images_NHWC = np.random.default_rng(1).integers(0, 256, (chosen.images, chosen.size, chosen.size, 3),
                                                    dtype=np.uint8)
    variant = VARIANTS[chosen.variant]
    form = {}
    if isinstance(variant, Numerics):
        ours = OurSilo(chosen.network, images_NHWC, mean=_MEAN, std=_STD, batch=chosen.batch, epochs=chosen.epochs,
                       chosen=variant)
        form = {"threads": ours.record.threads, "memory_format": ours.record.memory_format,
                "device": ours.record.device}
        one: Callable[[], float] = ours.round_seconds
    elif isinstance(variant, str):
        form = {"threads": 1, "memory_format": "channels_last"}
        one = BareRound(_plain(chosen.network, chosen.size), size=chosen.size, batch=chosen.batch,
                        images=chosen.images, epochs=chosen.epochs, bf16=variant == "bf16").round_seconds
    else:
        torch.set_num_threads(usable_processors())
        model = _plain(chosen.network, chosen.size)

        def one() -> float:
            return round_seconds(model, images_NHWC, mean=_MEAN, std=_STD, batch=chosen.batch, epochs=chosen.epochs,
                                 workers=variant)
    one()
    seconds = statistics.median(one() for _ in range(chosen.rounds))
    print(json.dumps({"images_per_second": chosen.images * chosen.epochs / seconds, **form}))


def _plain(network: str, size: int) -> nn.Module:
    return plain_network(build_model(ModelSettings(name=network, classes=tuple("abcdefghij")), channels=3, size=size))


if __name__ == "__main__":
    main()
