"""`semisilo export` and `semisilo predict`: a simulated study's model as files, and any exported model on images.

Tests: tests/semisilo/simulation/test_measuring.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisilo.common.text.command_line import JsonOption, check_out_file
from semisilo.common.text.describe import describe_percentage

__all__ = ["add_to"]

DeviceOption = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(
    "--device", help="auto uses a GPU if there is one.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(export)
    app.command()(predict)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", show_default=False,
                                        help="Folder of a simulation, such as runs/NAME.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", show_default=False,
                                             help="Folder to write; RUN/export-round-N or RUN/export-labels-alone by"
                                                  " default. An earlier export there is replaced.")] = None,
    round: Annotated[str, typer.Option("--round", metavar="chosen|last|N|labels-alone|best-on-test",
                                       help="Which model: of the round chosen on validation images (without any, the"
                                            " last), of the last one, of round N, the one of the labels alone, or of"
                                            " the round that is best on the test images, which then no longer measure"
                                            " it.")] = "chosen",
    test: Annotated[str, typer.Option("--test", metavar="SOURCE", show_default=False,
                                      help="Measure on these labelled images instead of the study's own.")] = "",
    patient: Annotated[Literal["auto", "folder", "name", "none"] | None, typer.Option(
        "--patient", show_default=False, help="How patients of the --test images are known, as [data] patient of a"
                                              " study; by default as the study knows its own. none: not at all, for"
                                              " other patients of the same names.")] = None,
    formats: Annotated[str, typer.Option("--format", metavar="LIST",
                                         help="What to write, with commas: safetensors, onnx.")] = "safetensors,onnx",
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit a temperature on the validation images, never on"
                                                                " test images. Where images may have several labels: a"
                                                                " slope and an offset for each class.")] = False,
    operating_point: Annotated[list[str] | None, typer.Option(
        "--operating-point", metavar="TEXT", show_default=False,
        help='Such as "sensitivity 95% for CLASS": a threshold for one class, chosen on the validation images, never on'
             ' test images. Where images may have several labels it may be repeated, and be "... for every class".')]
    = None,
    device: DeviceOption = "auto",
    json_: JsonOption = False,
) -> None:
    """Writes a simulation's model for others: safetensors, ONNX and a model card that says how accurate it is.

    As `coordinator export` does for a federation's study; `semisilo predict` runs the result.

    \b
    Examples:
      semisilo export runs/study
      semisilo export runs/study --round last --out hand-over --calibrate
    """
    import json

    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.common.text.logs import set_up_logging
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.coordinator.export.terminal import show_export
    from semisilo.simulation.output import export_run

    set_up_logging(quiet=True)
    with interrupt_on_termination(), progress_bar() as progress:
        found = export_run(run, out=out, round=round, test=test, patient=patient, calibrate=calibrate, device=device,
                           operating_point=operating_point or (),
                           formats=tuple(part.strip() for part in formats.split(",") if part.strip()),
                           progress=progress)
    if json_:
        typer.echo(json.dumps({"folder": str(found.folder), "card": found.card}, indent=2))
    else:
        show_export(found.folder, found.facts)


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", show_default=False,
                                          help="Folder of an export, its model.safetensors or its model.onnx.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False,
                                          help="Images: a folder, an .npz file, or whatever else a study reads.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", show_default=False, dir_okay=False,
                                             help="Write the predictions to FILE as CSV. Default: to the terminal.")]
    = None,
    top: Annotated[int | None, typer.Option("--top", metavar="K", min=1, show_default=False,
                                            help="The K most likely classes of each image instead of all.")] = None,
    device: DeviceOption = "auto",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images at a time.")] = 250,
    on_error: Annotated[Literal["skip", "stop"], typer.Option(
        "--on-error", help="What to do with a file that cannot be read.")] = "skip",
    prevalence: Annotated[str, typer.Option(
        "--prevalence", metavar="CLASS=SHARE,...|estimate", show_default=False,
        help="How frequent the classes are at this place, or that this is to be estimated from the images:"
             " probabilities are brought to it.")] = "",
    no_operating_point: Annotated[bool, typer.Option(
        "--no-operating-point", help="Predict the most likely class, also where the model has an operating point.")]
    = False,
    allow_factory: Annotated[list[str] | None, typer.Option(
        "--allow-factory", metavar="CODE:factory", show_default=False,
        help="A network from a package that you trust; may be repeated.")] = None,
    format_plugin: Annotated[list[str] | None, typer.Option(
        "--format-plugin", metavar="NAME", show_default=False,
        help="An installed plug-in that reads files of another format, as [data] formats of a study; may be repeated.")]
    = None,
    dicom: Annotated[list[str] | None, typer.Option(
        "--dicom", metavar="TAG=VALUE,...", show_default=False,
        help="Of DICOM files only those whose tag has one of the values, as [data] dicom of a study; an empty value"
             " stands for a file without the tag; may be repeated.")] = None,
    json_: JsonOption = False,
) -> None:
    """Predicts the class of every image with an exported model. Not for clinical use.

    The CSV has a line per image: file, predicted class, its probability, the probabilities of all classes. If the
    source has classes that the model knows (class folders, labels), the accuracy is shown as well. Files that cannot be
    read are left out and listed.

    Where an image may show several classes or none, the CSV has file, findings, and of every class p_CLASS and
    shown_CLASS, 1 or 0 by the model's threshold. If the source is a table of labels ("A|B", or columns of 0 and 1),
    true_CLASS follows, and AUROC, average precision, F1, sensitivity and specificity of every class are shown.

    \b
    Examples:
      semisilo predict studies/first/export-round-100 /scans/new --out predictions.csv
      semisilo predict model.onnx scans.npz --top 3
      semisilo predict hand-over digits#test --json
      semisilo predict hand-over /scans/new --prevalence melanoma=0.02
      semisilo predict hand-over /scans/labels.csv --out predictions.csv
      semisilo predict hand-over /pacs-export --dicom Modality=CR,DX --format-plugin slide
    """
    import json

    from rich.console import Console
    from rich.text import Text

    from semisilo.common.text.cli_errors import interrupt_on_termination
    from semisilo.common.text.logs import printable
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.prediction.options import selection_of
    from semisilo.prediction.predictor import predict as run
    from semisilo.prediction.terminal import show_measures

    out = None if out == Path("-") else out
    if out is not None:
        check_out_file(out, "--out")
    console = Console(stderr=True, highlight=False)
    with interrupt_on_termination(), progress_bar(console) as progress:
        found = run(model, source, device=device, batch_size=batch_size, on_error=on_error,
                    allow_factories=tuple(allow_factory or ()), progress=progress,
                    operating_point=not no_operating_point, prevalence=prevalence,
                    selection=selection_of(format_plugin or (), dicom or ()))
    if out is not None:
        found.to_csv(out, top=top)
    if json_:
        typer.echo(json.dumps({**found.to_dict(top=top), "out": None if out is None else str(out)}, indent=2))
    elif out is None:
        typer.echo(found.to_csv(top=top), nl=False)
    for each in found.skipped:
        if each.counts:
            continue
        console.print(Text(printable(f"left out: {each.name}: {each.reason}", limit=500)), soft_wrap=True)
    for note in found.notes():
        console.print(Text(printable(note, limit=2000)), soft_wrap=True)
    if found.measures is not None:
        show_measures(found.measures, console)
    known = f", {found.labelled} with known labels" if found.measures is not None else ""
    share = known if found.accuracy is None else \
        f", {found.right} of {found.labelled} with a known class are right:" \
        f" accuracy {describe_percentage(found.accuracy, decimals=2)}"
    where = "" if out is None else f"; written to {out}"
    console.print(Text(f"{len(found)} images{share}{where}"), soft_wrap=True)
