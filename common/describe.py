"""Amounts as people read them: bytes, seconds and shares. Both sides and every page use the same words."""

from __future__ import annotations

import math

__all__ = ["counted", "describe_bytes", "describe_seconds", "describe_share"]


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


def describe_share(share: float | None) -> str:
    """A share of 1 in per cent with three digits or so: 0.31 %, 12.4 %, 100 %; a dash when it is unknown."""
    if share is None or not math.isfinite(share):
        return "–"
    percent = 100 * share
    if percent == 0 or percent >= 99.95:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if percent >= 1 else f"{percent:.2g} %"
