"""What was found in a source, as a person reads it; both sides print the same.

Tests: tests/common/data/preview/test_preview.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semisilo.common.data.form import OnError
from semisilo.common.data.image_set import Skipped
from semisilo.common.data.preview.preview import Preview
from semisilo.common.text.logs import printable

__all__ = ["lines", "progress_bar"]

_CLASSES = 40
_PROBLEMS = 20
_CONSEQUENCE: dict[OnError | None, str] = {
    None: "[data] on_error says whether a study stops there", "skip": "this study leaves them out",
    "stop": "this study stops here", "report": "this study names them all and stops here"}


def lines(preview: Preview, *, on_error: OnError | None = None) -> list[str]:
    """The facts, a line each; problems last, where the eye ends.

    Args:
        on_error: what the study that reads this source does at a file that cannot be used; None when that is not known.
    """
    found = [f"{printable(preview.source)}: {preview.kind}, {_images(preview)}"]
    if preview.layout:
        found.append(f"  taken for   {printable(preview.layout, limit=600)}")
    if preview.labelled or preview.classes:
        found.append(f"  labelled    {preview.labelled:,}, without a label {preview.unlabelled:,}")
    else:
        found.append("  labelled    none")
    if preview.classes:
        wide = max(len(printable(name)) for name in preview.classes)
        found.append(f"  classes     {len(preview.classes)}")
        for name, count in list(preview.classes.items())[:_CLASSES]:
            share = count / preview.labelled if preview.labelled else 0.0
            found.append(f"    {printable(name):<{wide}}  {count:>7,}  {share:6.1%}")
        if len(preview.classes) > _CLASSES:
            found.append(f"    and {len(preview.classes) - _CLASSES} more")
    if preview.sizes:
        sizes = ", ".join(f"{size} ({count:,})" for size, count in preview.sizes.items())
        more = preview.num_sizes - len(preview.sizes)
        found.append(f"  sizes       {sizes}" + (f", and {more:,} other sizes" if more > 0 else ""))
    if preview.channels:
        kinds = {1: "grey", 3: "colour"}
        found.append("  channels    " + ", ".join(f"{kinds[number]} ({count:,})"
                                                  for number, count in preview.channels.items()))
        found.append("  depth       " + ", ".join(f"{bits} bits ({count:,})" for bits, count in preview.bits.items()))
    if preview.patients:
        found.append(f"  patients    {preview.patients:,}")
    found += [f"  note        {printable(note)}" for note in preview.notes]
    found += [f"  question    {printable(question, limit=600)}" for question in preview.questions]
    found += [f"  no fit      {printable(misfit)}" for misfit in preview.misfits]
    found += _problems(preview, on_error)
    return found


def _images(preview: Preview) -> str:
    count = f"{preview.num_images:,} image{'s' * (preview.num_images != 1)}"
    if preview.num_files == preview.num_images + len([item for item in preview.skipped if item.broken]):
        return count
    return f"{count} from {preview.num_files:,} file{'s' * (preview.num_files != 1)}" if (
        preview.kind not in ("npz", "digits")) else count


def _problems(preview: Preview, on_error: OnError | None) -> list[str]:
    found = []
    unchosen = [item for item in preview.skipped if item.unchosen]
    again = sum(item.counts for item in preview.skipped)
    if again:
        found.append(f"  listed      {again:,} several times; each counts once")
    others = [item for item in preview.skipped if not (item.broken or item.unchosen or item.counts)]
    for items, words in ((unchosen, "by a setting of this site"), (others, "that are no images")):
        if items:
            found.append(f"  left out    {len(items):,} {words}")
        found += _named(items[:5])
        if len(items) > 5:
            found.append(f"    and {len(items) - 5:,} more")
    if not preview.broken:
        return [*found, "  problems    none"]
    found.append(f"  problems    {preview.broken:,} cannot be used; {_CONSEQUENCE[on_error]}")
    found += _named([item for item in preview.skipped if item.broken][:_PROBLEMS])
    if preview.broken > _PROBLEMS:
        found.append(f"    and {preview.broken - _PROBLEMS:,} more; --json lists all")
    if not preview.num_images:
        found.append("  remedy      no file can be used: check that they were copied completely and how they were"
                     " exported")
    elif on_error in ("stop", "report"):
        found.append('  remedy      fix or remove them, or set [data] on_error = "skip" to leave them out')
    return found


def _named(items: list[Skipped]) -> list[str]:
    return [f"    {printable(item.name, limit=200)}: {printable(item.reason, limit=200)}" for item in items]


@contextmanager
def progress_bar() -> Iterator[Callable[[float, str], None] | None]:
    """A bar on standard error where that is a terminal, gone at the end; nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    with Progress(TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(),
                  TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("looking at images", total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=text)
