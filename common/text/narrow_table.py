"""Tables on narrow terminals: what does not fit side by side stands one below the other, so that nothing is cut off.

```
hospital-a
  state      working
  last seen  3.0 s ago
```

Tests: tests/common/text/test_narrow_table.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

__all__ = ["blocks", "fitted"]


def fitted(table: Table, console: Console, options: ConsoleOptions | None = None, *,
           titled: bool = False) -> RenderableType:
    """The table where it fits into the terminal, else each of its rows as a block of lines.

    Args:
        titled: whether the name of the first column says what the table is about: then it stands above the blocks.
    """
    options = options or console.options
    natural = Measurement.get(console, options.update_width(10_000), table).maximum
    if natural <= options.max_width or len(table.columns) < 3:
        return table
    names = [_text(column.header).plain for column in table.columns]
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    found = blocks(names, [[_text(cell) for cell in row] for row in rows])
    return Group(Text(names[0], "dim", overflow="fold"), found) if titled else found


def blocks(names: Sequence[str], rows: Sequence[Sequence[Text]]) -> RenderableType:
    """Each row as a block: its first cell, and below it the other ones with their columns' names; empty ones left out.
    """
    found: list[RenderableType] = []
    for row in rows:
        found.append(Text(row[0].plain, "bold", overflow="fold"))
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(style="dim", no_wrap=True)
        lines.add_column(overflow="fold")
        for name, cell in zip(names[1:], row[1:], strict=True):
            if cell.plain:
                lines.add_row(f"  {name}", cell)
        found.append(lines)
    return Group(*found)


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))
