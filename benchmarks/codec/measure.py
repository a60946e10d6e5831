"""Measures the block codec: bytes against dense and against the entropy bound, and rates against memcpy.

    python benchmarks/codec/measure.py SGD.npz [ADAMW.npz]

The files are from `benchmarks/codec/updates.py`. Prints Markdown; benchmarks/codec/RESULTS.md has one run of it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semisilo.common.payload.codec import (
    BLOCK_ELEMENTS,
    ELEMENT_TYPES,
    Aim,
    Bits,
    ElementType,
    Plan,
    ValueForm,
    coded_kind,
    decode_block,
    encode_blocks,
    parse_header,
    subtract_bits,
)

FLOAT32 = ELEMENT_TYPES["float32"]
DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.01, 0.001)
SMALLEST = Plan(aim=Aim.SMALLEST)
REPEATS = 9
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of one or more tensors."""

    total: int
    index: int


def size_of(tensors: list[Bits], kind: ElementType, plan: Plan) -> Size:
    """What tensors take with their headers, and what of that is index bytes."""
    total = index = 0
    for tensor in tensors:
        for parts in encode_blocks(tensor, kind, plan):
            total += sum(len(part) for part in parts)
            index += len(parts[1])
    return Size(total, index)


def entropy_bytes(elements: int, density: float) -> float:
    """n * H(density) / 8."""
    return -elements * (density * math.log2(density) + (1 - density) * math.log2(1 - density)) / 8


def main() -> None:
    """Prints every table."""
    print("## Uniform masks: index bytes over n H(d) / 8\n")
    print_uniform()
    print("\n## Small tensors\n")
    print_small()
    for path in sys.argv[1:]:
        old, new = (list(read_epoch(Path(path), epoch)) for epoch in (1, 2))
        update = [after - before for before, after in zip(old, new, strict=True)]
        print(f"\n## {Path(path).stem}: {len(update)} tensors, {sum(map(len, update))} parameters\n")
        print_shares(update)
        print("\nThe same as one tensor, without the headers and small streams of a network of few parameters:\n")
        print_shares([np.concatenate(update)])
        print_whole(old, new)
        print_rates(np.concatenate(update))


def read_epoch(path: Path, epoch: int) -> Iterator[Floats]:
    """The parameters after an epoch, each flat."""
    with np.load(path) as arrays:
        for name in arrays.files:
            if name.startswith(f"{epoch}/"):
                yield arrays[name].reshape(-1)


def print_uniform() -> None:
    """The entropy ratio of random masks, one block each."""
    random = np.random.default_rng(0)
    print("| d | " + " | ".join(f"{d:g}" for d in (0.99, 0.9, *DENSITIES)) + " |")
    print("|---|" + "---|" * (len(DENSITIES) + 2))
    ratios = []
    for density in (0.99, 0.9, *DENSITIES):
        mask = random.random(BLOCK_ELEMENTS) < density
        values = np.where(mask, random.standard_normal(BLOCK_ELEMENTS), 0).astype("<f4")
        ratios.append(size_of([values.view("<u4")], FLOAT32, SMALLEST).index / entropy_bytes(
            BLOCK_ELEMENTS, float(mask.mean())))
    print("| ratio | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |")


def print_small() -> None:
    """What a network of small tensors costs in calls."""
    random = np.random.default_rng(0)
    print("Microseconds per tensor of 256 normal values.\n\n| plan | encode | decode |\n|---|---|---|")
    tensors = [random.standard_normal(256).astype("<f4").view("<u4") for _ in range(300)]
    for name, plan in {"smallest": SMALLEST, "auto, 100 Mbit/s": Plan(aim=Aim.FASTEST), "raw": Plan()}.items():
        blocks = [next(encode_blocks(tensor, FLOAT32, plan)) for tensor in tensors]
        bodies = [(head, index + bytes(values)) for head, index, values in blocks]
        encoding, decoding = seconds_of(encode_all, tensors, plan), seconds_of(decode_all, bodies)
        print(f"| {name} | {encoding / len(tensors) * 1e6:.0f} | {decoding / len(tensors) * 1e6:.0f} |")


def encode_all(tensors: list[Bits], plan: Plan) -> None:
    """Every block of every tensor."""
    for tensor in tensors:
        encode(tensor, plan)


def decode_all(bodies: list[tuple[bytes, bytes]]) -> None:
    """Tensors of one block of 256 elements."""
    for head, body in bodies:
        out = np.zeros(256, dtype="<u4")
        decode_block(parse_header(head, elements=256, remaining_bytes=len(body), kind=FLOAT32), body, out, kind=FLOAT32)


def print_shares(update: list[Floats]) -> None:
    """Bytes of an update of which the largest magnitudes are kept."""
    magnitudes = np.abs(np.concatenate(update))
    dense = magnitudes.nbytes
    print("| d | index / bound | float32 exact | bf16 | int8 | int4 | COO |\n|---|---|---|---|---|---|---|")
    for density in (1.0, *DENSITIES):
        threshold = np.quantile(magnitudes, 1 - density) if density < 1 else -1.0
        kept = [np.where(np.abs(tensor) > threshold, tensor, np.float32(0)).view("<u4") for tensor in update]
        sizes = {form: size_of(kept, FLOAT32, Plan(aim=Aim.SMALLEST, values=form)) for form in ValueForm}
        ratio = "" if density == 1 else f"{sizes[ValueForm.EXACT].index / entropy_bytes(len(magnitudes), density):.2f}"
        shares = " | ".join(f"{size.total / dense:.4f}" for size in sizes.values())
        print(f"| {density:g} | {ratio} | {shares} | {min(1.0, 2 * density):g} |")


def print_whole(old: list[Floats], new: list[Floats]) -> None:
    """Bytes of a model after one more epoch: in full, and coded against the one before."""
    dense = sum(tensor.nbytes for tensor in new)
    full = size_of([tensor.view("<u4") for tensor in new], FLOAT32, SMALLEST).total
    coded = size_of([subtract_bits(after.view("<u4"), before.view("<u4")) for before, after in
                     zip(old, new, strict=True)], coded_kind(FLOAT32), SMALLEST).total
    print(f"\nThe model after the epoch, exactly: in full {full / dense:.3f} of dense; against the model before it "
          f"{coded / dense:.3f}.\n")


def print_rates(update: Floats) -> None:
    """Rates per thread of one full block, in MB/s of its dense bytes."""
    block = np.resize(update, BLOCK_ELEMENTS)
    magnitudes = np.sort(np.abs(block))
    copy = rate(block.nbytes, block.copy)
    print(f"Rates in MB/s of dense bytes, one block of 2^20, best of {REPEATS}; memcpy in the same run: {copy:.0f}.\n")
    print("| d | plan | share | encode | decode + add |\n|---|---|---|---|---|")
    plans = {"smallest": SMALLEST, "smallest, int8": Plan(aim=Aim.SMALLEST, values=ValueForm.INT8),
             "auto, 100 Mbit/s": Plan(aim=Aim.FASTEST),
             "auto, 1 GB/s": Plan(aim=Aim.FASTEST, link_bytes_per_second=1e9), "raw": Plan()}
    for density in (1.0, 0.9, 0.5, 0.1, 0.01):
        threshold = magnitudes[int((1 - density) * BLOCK_ELEMENTS)] if density < 1 else 0
        bits = np.where(np.abs(block) >= threshold, block, np.float32(0)).view("<u4")
        for name, plan in plans.items():
            [(head, index, values)] = encode_blocks(bits, FLOAT32, plan)
            body = index + bytes(values)
            encoding = rate(bits.nbytes, encode, bits, plan)
            total, out = np.zeros(BLOCK_ELEMENTS, dtype=np.float32), np.zeros(BLOCK_ELEMENTS, dtype="<u4")
            folding = rate(bits.nbytes, fold, head, body, total, out)
            print(f"| {density:g} | {name} | {(len(head) + len(body)) / bits.nbytes:.4f} | {encoding:.0f} | "
                  f"{folding:.0f} |")


def encode(bits: Bits, plan: Plan) -> None:
    """Every block of a tensor."""
    for _ in encode_blocks(bits, FLOAT32, plan):
        pass


def fold(head: bytes, body: bytes, total: Floats, out: Bits) -> None:
    """Decodes one block into cleared scratch and adds it to a sum."""
    out.fill(0)
    header = parse_header(head, elements=len(out), remaining_bytes=len(body), kind=FLOAT32)
    decode_block(header, body, out, kind=FLOAT32)
    np.add(total, out.view("<f4"), out=total)


def rate(size_bytes: int, work: Callable[..., object], *arguments: object) -> float:
    """MB/s of the best of a few runs of `work(*arguments)`."""
    return size_bytes / seconds_of(work, *arguments) / 1e6


def seconds_of(work: Callable[..., object], *arguments: object) -> float:
    """Of this thread on its core, not of the clock on the wall; the best of a few runs of `work(*arguments)`."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.thread_time()
        work(*arguments)
        best = min(best, time.thread_time() - start)
    return best


if __name__ == "__main__":
    main()
