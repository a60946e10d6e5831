"""Whether the files that a study's images come from are untouched, seen without reading them.

A finished simulation that is asked for again shows its result. That its images are still the same would be proved by
dealing them; where sizes and times of all files are those of before, that is believed. Where it is not certain that
these files are everything (a table names others), there is no stamp, and the images are dealt.

Tests: tests/semisilo/simulation/test_source_stamp.py.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from semisilo.common import __version__
from semisilo.common.data.formats.registry import DIGITS, NPZ, has_suffix
from semisilo.simulation.settings import SimulatedStudy

__all__ = ["source_stamp"]


def source_stamp(study: SimulatedStudy) -> str:
    """SHA-256, hex, of names, sizes and times (last written, last changed in any way) of all files that a study's
    images and first weights come from, and of this version, whose rules deal them.

    Returns: an empty text where a source is neither a folder without links to folders, nor an .npz file, nor
        scikit-learn's digits; or where a file is not there.
    """
    total = hashlib.sha256(__version__.encode())
    try:
        simulation = study.simulation
        for source in (simulation.data, *simulation.sites, simulation.test, simulation.labelled):
            name = source.partition("#")[0]
            if name and name != DIGITS:
                for line in _lines(study.folder / Path(name).expanduser()):
                    total.update(line.encode("utf-8", "surrogateescape"))
        if study.weights is not None:
            total.update(_line("weights", study.weights.stat()).encode())
    except OSError:
        return ""
    return total.hexdigest()


def _lines(source: Path) -> Iterator[str]:
    """A line for each file of a source. Raises: OSError where a file is missing, or others may belong to the source."""
    found = source.stat()
    if not stat.S_ISDIR(found.st_mode):
        if not has_suffix(source, NPZ):
            raise OSError(f"{source} may name other files")
        yield _line("", found)
        return
    for folder, folders, files in os.walk(source):
        folders.sort()
        if any(os.path.islink(os.path.join(folder, each)) for each in folders):
            raise OSError(f"{folder} has links to other folders")
        for name in sorted(files):
            path = os.path.join(folder, name)
            yield _line(os.path.relpath(path, source), os.stat(path))


def _line(name: str, found: os.stat_result) -> str:
    return f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\0"
