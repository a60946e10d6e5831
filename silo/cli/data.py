"""`silo data`: what this site's images are, before anything is joined."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.silo.cli.options import HomeOption, home_of

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(data)


def data(
    source: Annotated[str, typer.Argument(
        metavar="SOURCE", show_default=False,
        help="A folder of images, of class folders, or with the folders labelled and unlabelled; a .csv, .tsv, "
             ".parquet or .npz file; or digits. Default: [data] of silo.toml, else the images of the last join.")] = "",
    home: HomeOption = None,
    classes: Annotated[str, typer.Option(
        "--classes", metavar="A,B,C", show_default=False,
        help="The study's classes in label order, to compare with; the coordinator's operator knows them.")] = "",
    size: Annotated[int, typer.Option("--size", min=0, max=4096, show_default=False,
                                      help="Side of the pictures. Default: as the study has it, if `silo check` has "
                                           "heard of one, else 96.")] = 0,
    no_labels: Annotated[bool, typer.Option(
        "--no-labels", help="No image has a label, whatever folders it is in: for folders of patients.")] = False,
    sheet: Annotated[Path | None, typer.Option(
        "--sheet", metavar="FILE", show_default=False,
        help="Where to write the contact sheet, a PNG. Default: contact-sheet.png in the silo's folder. It shows "
             "images: only this user may read it.")] = None,
    json_: JsonOption = False,
) -> None:
    """Shows what this site's images are and which cannot be used.

    Kind, counts, classes, sizes, depths, and every file that cannot be used. Once `silo check` has heard of a study, it
    says where brightness or contrast are unlike the study's, and once this silo has trained, whether the network sees
    them as unlike. Says which test images are among those to train on. Asks where folders look like patients and no
    classes, and where labels of a table are not clear. Reads every image once. Nothing is sent anywhere; the contact
    sheet stays here.

    \b
    Examples:
      silo data                                  the images of silo.toml or of the last join
      silo data /scans
      silo data /scans/labels.csv --classes covid,healthy,pneumonia
      silo data /scans --json | jq .skipped
    """
    import contextlib
    import json
    import sys

    from semisilo.common.data.preview.preview_text import lines, progress_bar
    from semisilo.silo.site.home import SiloHome
    from semisilo.silo.site.image_preview import choice_of, look, tell_twins, write_sheets
    from semisilo.silo.site.study_features import read_study_features
    from semisilo.silo.site.study_images import read_study_images

    folder = home_of(home)
    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    with progress_bar() as progress:
        study = read_study_images(SiloHome(folder).study_images)
        choice = choice_of(folder, source, no_labels=no_labels)
        with contextlib.redirect_stdout(sys.stderr):  # what the reader of a format plug-in prints
            found = [look(each, choice=choice, classes=names, size=size, study=study, progress=progress)
                     for each in choice.sources]
    tell_twins(found, choice)
    features = read_study_features(SiloHome(folder).study_features)
    if features is not None and features.is_unlike and not source:  # it was of the images of the last join
        found[0].notes += (features.text,)
    paths = write_sheets(found, sheet, folder=folder)
    if json_:
        facts = [{**each.facts(), "sheet": str(path)} for each, path in zip(found, paths, strict=True)]
        typer.echo(json.dumps(facts[0] if len(facts) == 1 else facts, indent=2, ensure_ascii=False))
    else:
        for each, path in zip(found, paths, strict=True):
            typer.echo("\n".join([*lines(each), f"  sheet       {path} (stays here)"]))
    if any(each.misfits or not each.num_images for each in found):
        raise typer.Exit(1)
