"""Folders that look like patients, not classes: many of them, few images in each, names such as numbers.

Hospitals sort images by patient, studies by class; who mixes the two up trains on three hundred classes of one image.

Tests: tests/common/data/test_identifiers.py.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping

from semisilo.common.text.describe import counted
from semisilo.common.text.logs import printable

__all__ = ["patients_for_classes"]

_FEWEST = 5
_MOST_IMAGES = 100
"""In half of the folders: a class has more, or a study could not learn it."""
_SHARE = 0.8
_MANY, _FEW = 50, 3
"""So many folders of so few images are none, whatever they are called."""
_IDENTIFIER = re.compile(
    r"(?ix) .*\d{3}.* | [0-9a-f-]{8,} | (pat(ient)?|sub(j|ject)?|case|pt|person|proband|study|p|s)[-_. ]?\d+")
"""A run of three digits, hexadecimal digits, or a word for a person with a number."""


def patients_for_classes(counts: Mapping[str, int]) -> str:
    """A question about class folders that look like identifiers; "" where they do not.

    Args:
        counts: class folder -> images in it.
    """
    counts = {name: count for name, count in counts.items() if count}
    if len(counts) < _FEWEST:
        return ""
    usual = statistics.median(counts.values())
    alike = [name for name in counts if _IDENTIFIER.fullmatch(name)]
    named_so = len(alike) >= _SHARE * len(counts) and usual <= _MOST_IMAGES
    if not (named_so or (len(counts) >= _MANY and usual <= _FEW)):
        return ""
    low, high = min(counts.values()), max(counts.values())
    number = counted(high, "image") if low == high else f"{low} to {high} images"
    return (f"are these {len(counts)} folders patients or examinations, and no classes? They have {number} each and"
            f" names such as '{printable((alike or list(counts))[0], limit=60)}'")
