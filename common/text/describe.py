"""Amounts as people read them: bytes, seconds, shares and percentages. Both sides and every page use the same words.

Percentages are rounded as on paper: the shortest decimal text of the number is what is rounded, halves go up in
magnitude. 0.8325 is written 0.8325 and so becomes 83.3 %; binary rounding would make it 83.2 % here and 83.3 % in
a browser. The page's `format.js` does the same, and a test holds both against one table.
"""

from __future__ import annotations

import math
import time
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

__all__ = ["counted", "describe_bytes", "describe_estimate", "describe_moment", "describe_percentage",
           "describe_points", "describe_progress", "describe_range", "describe_seconds", "describe_share"]

_DASH = "–"
_AREAS = ("auroc", "average_precision")
"""Numbers that people write as 0.953, not as a percentage."""
_EXACT = Context(prec=800)
"""More digits than any float has, before the point and after it: only `quantize` rounds."""


def counted(count: int, one: str, many: str = "") -> str:
    """1 task, 2 tasks, 0 classes: `many` where an s is not enough."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def describe_bytes(count: float) -> str:
    """512 B, 4.3 kB, 12.0 MB, 1.20 GB: powers of ten, as network links are sold."""
    if count < 999.5:
        return f"{count:.0f} B"
    if count < 999_950:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 999_950_000 else f"{count / 1e9:.2f} GB"


def describe_seconds(seconds: float) -> str:
    """4.2 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = whole // 60
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


_ESTIMATE_STEPS = ((7.5, 5), (55, 10), (285, 30), (3570, 60), (12 * 3600 - 300, 600), (math.inf, 3600))
"""(below so many seconds, to how many seconds an estimate is rounded)."""


def describe_estimate(seconds: float) -> str:
    """5 s, 40 s, 2 min 30 s, 37 min, 2 h 10 min, 13 h, 3 d 4 h: as many digits as an estimate is worth; for a sentence
    that says "about"."""
    step = next(step for below, step in _ESTIMATE_STEPS if seconds < below)
    whole = max(5, math.floor(seconds / step + 0.5) * step)
    days, hours, minutes = whole // 86400, whole // 3600, whole % 3600 // 60
    parts = ((f"{whole} s",) if whole < 60 else (f"{minutes} min", f"{whole % 60} s") if whole < 3600
             else (f"{hours} h", f"{minutes} min") if whole < 48 * 3600 else (f"{days} d", f"{hours % 24} h"))
    return " ".join(part for number, part in enumerate(parts) if number == 0 or not part.startswith("0 "))


def describe_moment(unix: float) -> str:
    """2026-01-31 12:00 UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix))


def describe_percentage(share: float | None, *, decimals: int = 1) -> str:
    """An accuracy or another share of 1 in per cent with as many decimals always: 83.3 %; a dash when it is unknown."""
    if share is None or not math.isfinite(share):
        return _DASH
    return f"{_rounded(_percent(share), decimals):f} %"


def describe_range(low: float, high: float, *, decimals: int = 1) -> str:
    """Two shares of 1 in per cent: 81.2 to 85.1 %."""
    return f"{describe_percentage(low, decimals=decimals).removesuffix(' %')} to" \
           f" {describe_percentage(high, decimals=decimals)}"


def describe_points(after: float | None, before: float | None, *, decimals: int = 1) -> str:
    """How many points two shares of 1 differ: +9.8 or −2.0; a dash when either is unknown.

    It is the difference of the percentages as `describe_percentage` shows them, so that who subtracts finds the same.
    """
    if after is None or before is None or not math.isfinite(after) or not math.isfinite(before):
        return _DASH
    points = _rounded(_percent(after), decimals) - _rounded(_percent(before), decimals)
    return f"{'−' if points < 0 else '+'}{abs(points):f}"


def describe_metric(name: str, value: float | None, *, decimals: int = 1) -> str:
    """A number of a model for a person: an AUROC or an average precision with two digits more than `decimals`, 0.953,
    anything else as `describe_percentage`.

    Args:
        name: as among the metrics of a round: "accuracy", "auroc", "validation_auroc/CLASS", ...
        value: 0 to 1.
    """
    if value is None or not math.isfinite(value) or not any(each in name.split("/")[0] for each in _AREAS):
        return describe_percentage(value, decimals=decimals)
    return f"{value:.{decimals + 2}f}"


def describe_progress(fraction: float) -> str:
    """How far something is, 0 to 1, in whole per cent: 42 %. Rounded down: 100 % is done."""
    percent = _percent(min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0)
    return f"{percent.quantize(Decimal(1), rounding=ROUND_FLOOR, context=_EXACT):f} %"


def describe_share(share: float | None) -> str:
    """A share of 1 in per cent with three digits or so: 0.31 %, 12.4 %, 100 %; a dash when it is unknown."""
    if share is None or not math.isfinite(share):
        return _DASH
    percent = _percent(share)
    if percent == 0 or percent >= Decimal("99.95"):
        return f"{_rounded(percent, 0):f} %"
    if percent >= 1:
        return f"{_rounded(percent, 1):f} %"
    text = f"{_rounded(percent, 1 - percent.adjusted()):f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def _percent(share: float) -> Decimal:
    """Exactly a hundred times the shortest decimal text of a finite number."""
    return Decimal(repr(float(share))).scaleb(2, context=_EXACT)


def _rounded(percent: Decimal, decimals: int) -> Decimal:
    """Halves go away from zero; there is no minus before a zero."""
    rounded = percent.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP, context=_EXACT)
    return abs(rounded) if rounded == 0 else rounded
