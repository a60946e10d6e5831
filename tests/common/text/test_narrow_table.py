"""A table where it fits, else a block of lines for each row, with everything that the table holds."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from semisilo.common.text.narrow_table import fitted
from tests.each_of import each_of


def printed(width: int) -> str:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("study", "state", "method", "time left"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_row("a-study-with-quite-a-long-name", "running", "self_training", "4 min 21 s")
    table.add_row("b", "queued", "fedavg", "")
    console = Console(file=io.StringIO(), width=width)
    console.print(fitted(table, console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_wide_terminal_shows_the_table() -> None:
    first, second, _ = printed(100).splitlines()
    assert first.split() == ["study", "state", "method", "time", "left"]
    assert second.split()[:2] == ["a-study-with-quite-a-long-name", "running"]


@each_of("width", [30, 40, 60])
def test_a_narrow_one_shows_every_cell_below_its_name(width: int) -> None:
    said = printed(width)
    assert all(len(line.rstrip()) <= width for line in said.splitlines())
    assert "…" not in said
    rows = [" ".join(line.split()) for line in said.splitlines()]
    joined = " ".join(rows)
    assert "state running method self_training time left 4 min 21 s" in joined
    assert joined.endswith("b state queued method fedavg"), "an empty cell has no line"
