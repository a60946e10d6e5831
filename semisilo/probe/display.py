"""What `semisilo probe` shows: a bar while it works, then what was found, as tables and in words.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from semisilo.common.text.describe import counted
from semisilo.common.text.narrow_table import fitted
from semisilo.probe.membership import Measured
from semisilo.probe.probe import ProbeWatcher
from semisilo.probe.result import RECOVERED, InversionFound, MembershipFound, ProbeResult

__all__ = ["ConsoleWatcher", "show_probe"]


class ConsoleWatcher(ProbeWatcher):
    """Lines, and a bar on a terminal."""

    def __init__(self, console: Console, bar: Callable[[float, str], None], *, quiet: bool) -> None:
        self._console, self._bar, self._quiet = console, bar, quiet

    def step(self, text: str) -> None:
        """See `ProbeWatcher.step`."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def progress(self, fraction: float, text: str) -> None:
        """See `ProbeWatcher.progress`."""
        self._bar(fraction, text)


def show_probe(console: Console, found: ProbeResult, out: Path) -> None:
    """Prints a result."""
    console.print(Text(f"{found.study}: the update of {found.site} in round {found.round} ({found.method},"
                       f" {found.model}), {counted(found.images, 'image')}"), soft_wrap=True)
    if found.membership:
        console.print()
        _show_membership(console, found.membership)
    if found.inversion:
        console.print()
        _show_inversion(console, found.inversion)
    console.print()
    for note in found.notes:
        console.print(Text(note), soft_wrap=True)
    if found.pictures:
        console.print(Text("pictures of originals and reconstructions, which show this site's images:"
                           f" {found.pictures}"), soft_wrap=True)
    console.print(Text(f"written to {out / 'result.json'}; nothing has left this machine"), soft_wrap=True)


def _show_membership(console: Console, entries: tuple[MembershipFound, ...]) -> None:
    """Was an image trained on?"""
    rates = tuple(dict.fromkeys(each.false_positive_rate for entry in entries for each in entry.hits))
    console.print(Text("Was this image trained on? (membership inference, LiRA)", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("who sees what")
    table.add_column("AUC (chance 0.5)")
    for rate in rates:
        table.add_column(f"found at {rate:.1%} falsely accused")
    for entry in entries:
        hits = {each.false_positive_rate: each for each in entry.hits}
        table.add_row(Text(_view(entry)), Text(_measured(entry.area) + _allowed(entry.allowed_area)), *(
            Text("") if rate not in hits else
            Text(_share(hits[rate].true_positive_rate) + _allowed(hits[rate].allowed)) for rate in rates))
    console.print(fitted(table, console))
    console.print(Text("Of two images, one trained on and one not, the attack says which was trained on. AUC is how"
                       " often it is right:"), soft_wrap=True)
    for entry in entries:
        console.print(Text(f"  {_view(entry)}: {entry.words}", style="bold red" if entry.violates else ""),
                      soft_wrap=True)
    for entry in entries:
        if entry.epsilon is not None:
            console.print(Text(f"{entry.protection}: one update spends epsilon {entry.epsilon:.3g} at delta"
                               f" {entry.delta:g} by the site's own count; \"at most\" is what no attack can exceed"
                               " with it."), soft_wrap=True)


def _show_inversion(console: Console, entries: tuple[InversionFound, ...]) -> None:
    """What did the images look like?"""
    console.print(Text("What did the images look like? (gradient inversion)", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("who sees what", "images in it", "PSNR, trained on", "PSNR, others", "difference",
                 f"shown (correlation {RECOVERED:g})", "others by accident"):
        table.add_column(name)
    for entry in entries:
        table.add_row(Text(_view(entry)), Text(str(entry.trained_on)), *(Text("" if each is None else how(each))
                                                                      for each, how in (
            (entry.seen_psnr, _decibels), (entry.unseen_psnr, _decibels), (entry.gain_psnr, _decibels),
            (entry.seen_recovered, _share), (entry.unseen_recovered, _share))))
    console.print(fitted(table, console))
    console.print(Text("PSNR says how near the pixels are: more is nearer. \"Others\" are images that were not trained"
                       " on, so being near to them is not a leak:"), soft_wrap=True)
    for entry in entries:
        console.print(Text(f"  {_view(entry)}: {entry.words}"), soft_wrap=True)


def _view(entry: MembershipFound | InversionFound) -> str:
    what = "the update by itself" if entry.view == "own" else f"the average of {entry.silos} silos"
    return f"{what}, {entry.protection}" if entry.protection else what


def _measured(value: Measured) -> str:
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})"


def _decibels(value: Measured) -> str:
    return f"{value.value:.1f} dB ({value.low:.1f} to {value.high:.1f})"


def _share(value: Measured) -> str:
    return f"{value.value:.1%} ({value.low:.1%} to {value.high:.1%})"


def _allowed(value: float | None) -> str:
    return "" if value is None else f", at most {value:.3f}"
