"""Measures how images get from files to batches: decoded once into memory, or onto the disk, against a DataLoader.

    python benchmarks/training/large_images.py [--count 2000] [--pixels 512] [--size 224] [--repeats 3] [--json FILE]

Makes JPEG files in a temporary folder, then, in a process of its own for each: reads them as a silo does, with one core
and with two, in memory and mapped from the disk, and takes one epoch of random batches from what it has; and takes one
epoch from torch's DataLoader with two workers, which decodes and resizes every time. All of them alternate, and the
median counts. Times are of the wall and of the processor (children included): on a busy machine only the latter says
something. Memory is the peak of what is the process's own, above what torch took before, and of all that it has mapped,
torch and the kernel's cache of the file included; that of the DataLoader's workers is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BATCH = 32
KINDS = ("memory, 1 core", "memory, 2 cores", "disk, 2 cores", "DataLoader, 2 workers")


def make_images(folder: Path, count: int, pixels: int) -> int:
    """Smooth pictures with some noise, as JPEG of quality 90; returns their bytes."""
    generator, total = np.random.default_rng(0), 0
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (16, 16, 3)).astype(np.uint8)).resize((pixels, pixels))
        noise = generator.integers(-12, 13, (pixels, pixels, 3))
        path = folder / f"{number % 2}" / f"{number:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)
        total += path.stat().st_size
    return total


# In a process of its own ----------------------------------------------------------------------------------------------


def _status(name: str) -> int:
    """Bytes, as the kernel counts them for this process."""
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(found[name].split()[0]) * 1024


class Peaks:
    """The largest RssAnon and RSS that this process has had, by looking often."""

    def __init__(self) -> None:
        self.anonymous = self.all = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._end.wait(0.02):
            self.anonymous = max(self.anonymous, _status("RssAnon"))
            self.all = max(self.all, _status("VmRSS"))

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def timed(into: dict[str, float], name: str) -> Iterator[None]:
    """Wall and processor seconds, of children as well."""
    def processor() -> float:
        return sum(used.ru_utime + used.ru_stime for used in map(
            resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))

    wall, own = time.perf_counter(), processor()
    yield
    into[f"{name}_wall"], into[f"{name}_processor"] = time.perf_counter() - wall, processor() - own


def ours(folder: Path, size: int, *, on_disk: bool, found: dict[str, float]) -> None:
    """Reads as a silo does, then one epoch of random batches."""
    import torch

    from semisilo.common.data import room
    from semisilo.common.data.readers import read_images

    torch.set_num_threads(1)
    before = _status("RssAnon")
    peaks = Peaks()
    if on_disk:
        room.free_bytes = lambda **paths: 1  # type: ignore[assignment]  # as on a machine that is too small
    with timed(found, "read"):
        images = read_images(str(folder), size=size, channels=3, labelled=False,
                             disk=folder.parent / "disk" if on_disk else None).images
    with timed(found, "epoch"):
        for chosen in torch.split(torch.randperm(len(images)), BATCH):
            images.images_NCHW[chosen]
    peaks.end()
    found |= {"anonymous_bytes": peaks.anonymous - before, "rss_bytes": peaks.all,
              "image_bytes": images.images_NCHW.numel()}


def data_loader(folder: Path, size: int, *, workers: int, found: dict[str, float]) -> None:
    """One epoch, which decodes and resizes: every epoch costs the same."""
    import torch
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    # As `resize = "fit"` does of squares: Pillow's antialiased bilinear filter.
    transform = v2.Compose([v2.Resize((size, size)), v2.PILToTensor()])

    class Files(Dataset[torch.Tensor]):
        def __init__(self) -> None:
            self.paths = sorted(folder.rglob("*.jpg"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            with Image.open(self.paths[index]) as image:
                pixels: torch.Tensor = transform(image.convert("RGB"))
                return pixels

    before = _status("RssAnon")
    peaks = Peaks()
    with timed(found, "epoch"):
        for _ in DataLoader(Files(), batch_size=BATCH, shuffle=True, num_workers=workers):
            pass
    peaks.end()
    found |= {"anonymous_bytes": peaks.anonymous - before, "rss_bytes": peaks.all}


def child(kind: str, folder: Path, size: int) -> None:
    """One measurement, as a line of JSON."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: 1 if "1 core" in kind else 2])
    found: dict[str, float] = {}
    if kind.startswith("DataLoader"):
        data_loader(folder, size, workers=2, found=found)
    else:
        ours(folder, size, on_disk=kind.startswith("disk"), found=found)
    print(json.dumps(found))


# All of it ------------------------------------------------------------------------------------------------------------


def measure(count: int, pixels: int, size: int, repeats: int) -> dict[str, Any]:
    """Medians of each kind."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="semisilo-images-") as name:
        folder = Path(name) / "images"
        folder.mkdir()
        jpeg_bytes = make_images(folder, count, pixels)
        for _ in range(repeats):
            for kind in KINDS:
                command = [sys.executable, "-P", __file__, "--child", kind, str(folder), "--size", str(size)]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs[kind].append(json.loads(out.splitlines()[-1]))
    medians = {kind: {key: statistics.median(run[key] for run in found) for key in found[0]}
               for kind, found in runs.items()}
    return {"count": count, "pixels": pixels, "size": size, "repeats": repeats, "jpeg_bytes": jpeg_bytes,
            "cores": len(os.sched_getaffinity(0)), "kinds": medians}


def show(found: dict[str, Any]) -> None:
    """A table in Markdown."""
    count = found["count"]
    print(f"{count} JPEGs of {found['pixels']} pixels, {found['jpeg_bytes'] / count / 1e3:.0f} kB each, as squares of "
          f"{found['size']}; {found['cores']} cores; median of {found['repeats']}.\n")
    print("| | read once, images/s | processor ms an image | an epoch, images/s | processor ms an image"
          " | own memory, MB | all, MB |\n|---|---|---|---|---|---|---|")
    for kind, each in found["kinds"].items():
        read = (f"{count / each['read_wall']:.0f} | {1e3 * each['read_processor'] / count:.2f}" if "read_wall" in each
                else "– | –")
        print(f"| {kind} | {read} | {count / each['epoch_wall']:.0f} | {1e3 * each['epoch_processor'] / count:.3f} |"
              f" {each['anonymous_bytes'] / 1e6:.0f} | {each['rss_bytes'] / 1e6:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--pixels", type=int, default=512)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="writes the numbers here as well")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child[0], Path(chosen.child[1]), chosen.size)
        return
    found = measure(chosen.count, chosen.pixels, chosen.size, chosen.repeats)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")
    show(found)


if __name__ == "__main__":
    main()
