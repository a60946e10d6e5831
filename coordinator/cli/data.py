"""`coordinator data`: what a source of images holds, before a study is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.coordinator.cli.options import Folder

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(data)


def data(
    source: Annotated[str, typer.Argument(
        metavar="SOURCE", show_default=False,
        help="A folder of images or of class folders, a .csv, .tsv, .parquet or .npz file, or digits. With --study "
             "also labelled, validation or test, for what the study's file names so.")] = "",
    folder: Folder = Path(),
    study: Annotated[str, typer.Option(
        "--study", help="Look as this study does: its classes, its form of images.")] = "",
    sheet: Annotated[Path | None, typer.Option(
        "--sheet", metavar="FILE", show_default=False,
        help="Where to write the contact sheet, a PNG. Default: in the study's folder contact-sheet.png, for its other "
                                             "sets such as contact-sheet-test.png; else contact-sheet.png here.")]
    = None,
    as_json: JsonOption = False,
) -> None:
    """Look at images: what kind of source, how many, which classes, sizes and depths, what is wrong.

    Reads every image once, as a study would, and draws some of each class on a contact sheet. Changes nothing.

    \b
    Examples:
      coordinator data studies/first/data/labelled
      coordinator data labels.csv --sheet cells.png
      coordinator data --study first                 what the study trains on
      coordinator data test --study first            its test images against its classes
      coordinator data scans.parquet --json | jq .classes
    """
    import contextlib
    import json
    import sys

    from semisilo.common.data.preview.preview_text import lines, progress_bar
    from semisilo.coordinator.studies.image_preview import choose, look, write_sheet

    chosen = choose(source, folder=folder, study=study)
    # In no output: what the reader of a format plug-in prints.
    with progress_bar() as progress, contextlib.redirect_stdout(sys.stderr):
        found = look(chosen, progress=progress)
    path = write_sheet(found, sheet or chosen.sheet)
    stops = chosen.stops_at(found)
    if as_json:
        facts = {**found.facts(), "sheet": str(path), "study_stops": stops}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join([*lines(found, on_error=chosen.on_error),
                              f"  sheet       {path}"]))
    if found.misfits or not found.num_images or stops:
        raise typer.Exit(1)
