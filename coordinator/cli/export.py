"""`coordinator export`: a study's model as files for others.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.coordinator.cli.options import Folder, StudyName

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(export)


def export(study: StudyName = "",
           folder: Folder = Path(),
           out: Annotated[Path | None, typer.Option("--out", metavar="DIR", show_default=False,
                                                    help="Folder to write; by default export-round-N or"
                                                         " export-labels-alone in the study's. An earlier export there"
                                                         " is replaced.")] = None,
           round: Annotated[str, typer.Option("--round", metavar="chosen|last|N|labels-alone|best-on-test",
                                              help="Which model: of the round chosen on validation images (without"
                                                   " any, the last), of the last one, of round N, the one of the"
                                                   " coordinator's labels alone, or of the round that is best on the"
                                                   " test images, which then no longer measure it.")]
           = "chosen",
           test: Annotated[str, typer.Option("--test", metavar="SOURCE", show_default=False,
                                             help="Measure on these labelled images instead of the study's own test"
                                                  " images: a folder of class folders, an .npz file, ...")] = "",
           patient: Annotated[Literal["auto", "folder", "name", "none"] | None, typer.Option(
               "--patient", show_default=False, help="How patients of the --test images are known, as [data] patient of"
                                                     " a study; by default as the study knows its own. none: not at"
                                                     " all, for other patients of the same names.")] = None,
           formats: Annotated[str, typer.Option("--format", metavar="LIST",
                                                help="What to write, with commas: safetensors, onnx.")]
           = "safetensors,onnx",
           calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit a temperature on the study's validation"
                                                                       " images, never on test images. Where images may"
                                                                       " have several labels: a slope and an offset for"
                                                                       " each class.")] = False,
           operating_point: Annotated[list[str] | None, typer.Option(
               "--operating-point", metavar="TEXT", show_default=False,
               help='Such as "sensitivity 95% for CLASS": a threshold for one class, chosen on the study\'s validation'
                    " images, never on test images. Where images may have several labels it may be repeated, and be"
                    ' "... for every class".')] = None,
           hide_silos: Annotated[bool, typer.Option("--hide-silos", help="Number the silos in the card, without their"
                                                                         " names.")] = False,
           device: Annotated[Literal["auto", "cpu", "cuda"],
                             typer.Option("--device", help="auto uses a GPU if there is one.")] = "auto",
           json_: JsonOption = False) -> None:
    """Write a model for others: safetensors, ONNX and a model card that says how accurate it is.

    The study may be over, or run at this moment; nothing of it changes.

    The ONNX graph is compared with the network on real images: if an answer differs, nothing is written.

    `semisilo predict` runs the result on a folder of images.

    \b
    Examples:
      coordinator export first
      coordinator export first --operating-point "sensitivity 95% for melanoma"
      coordinator export first --round last --test /scans/other-hospital --calibrate
      coordinator export first --out hand-over --format safetensors --hide-silos
    """
    import json

    from semisilo.common.errors import UsageError
    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.common.text.logs import set_up_logging
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.coordinator.export.export import ExportChoice, export_study
    from semisilo.coordinator.export.terminal import show_export
    from semisilo.coordinator.federation.folder import folder_option, open_federation
    from semisilo.coordinator.ledger.ledger import Ledger

    set_up_logging(quiet=True)
    federation = open_federation(folder)
    ledger = Ledger(federation.ledger)
    try:
        known = ledger.studies()
        if not study and not known:
            raise UsageError("There is no study to export.",
                             remedy=f"Run one first: coordinator serve{folder_option(folder)}.")
        name = ledger.study(study or known[-1].name).name
        choice = ExportChoice(round=round, test=test, patient=patient, calibrate=calibrate, device=device,
                              operating_point=operating_point or (), silo_names=not hide_silos,
                              formats=tuple(part.strip() for part in formats.split(",") if part.strip()))
        with interrupt_on_termination(), progress_bar() as progress:
            found = export_study(ledger, name, study_folder=federation.studies / name, out=out, choice=choice,
                                 progress=progress)
    finally:
        ledger.close()
    if json_:
        typer.echo(json.dumps({"folder": str(found.folder), "card": found.card}, indent=2))
    else:
        show_export(found.folder, found.facts)
