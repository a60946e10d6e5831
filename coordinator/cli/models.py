"""The command `coordinator models`: parse, call, print.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.common.text.installing import how_to_install

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(models)


def models(pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern with *. The "
                                                  "full name of one network shows its parts: also my_net.py:build, "
                                                  "which runs that file.")] = "",
           classes: Annotated[int, typer.Option(min=2, help="Number of classes, where the parts are shown.")] = 2,
           size: Annotated[int, typer.Option(min=1, max=4096, help="Side of the images in pixels, likewise.")] = 224,
           channels: Annotated[int, typer.Option(min=1, max=3, help="1 for grey images, 3 for colour, likewise.")] = 3,
           as_json: JsonOption = False) -> None:
    """List the networks that a study may name, or the parts of one.

    A study file may name the parts under freeze, in its table "model"; freeze = "backbone" leaves the head to be
    trained. Nothing is fetched: trained weights come from a file of yours, under weights in the same table.

    \b
    Examples:
      coordinator models
      coordinator models 'timm/*vit*tiny*'
      coordinator models timm/resnet18 --classes 7 --size 64 --channels 1
      coordinator models studies/first/my_net.py:build --size 64
    """
    from semisilo.common.errors import UsageError
    from semisilo.common.models.own.model_file import names_file
    from semisilo.coordinator.studies.network_list import listed_networks, matching

    if channels == 2:
        raise UsageError("--channels 2: images are grey (1) or in colour (3).")
    known = listed_networks()
    where, _, file = pattern.rpartition("/") if ".py:" in pattern else ("", "", pattern)
    own = ":" in file or names_file(file)
    if own or pattern in {each.name for each in known.networks}:
        from semisilo.common.models.catalogue import parts_of  # with torch, which takes seconds
        from semisilo.common.text.describe import describe_bytes

        with contextlib.redirect_stdout(sys.stderr):  # of what a file prints
            network = parts_of(file, num_classes=classes, size=size, channels=channels,
                               folder=Path(where or ("/" if pattern.startswith("/") else ".")) if own else None)
        if as_json:
            typer.echo(json.dumps(network.to_json()))
            return
        typer.echo(f"{network.name}: {network.parameters:,} parameters with {classes} classes,"
                   f" {describe_bytes(4 * network.parameters)}")
        width = max(len(part.name) for part in network.parts)
        for part in network.parts:
            marks = [text for text, holds in (("the head is in it", part.has_head),
                                              (f"{part.batch_norm_layers} static batch-norm layers",
                                               part.batch_norm_layers > 0)) if holds]
            typer.echo(f"  {part.name:<{width}}  {part.parameters:>13,}{'   ' if marks else ''}{', '.join(marks)}")
        typer.echo(f'freeze = "backbone" leaves {network.head_parameters:,} to train: {", ".join(network.head)}')
        return
    found = matching(known.networks, pattern)
    if as_json:
        typer.echo(json.dumps({"networks": [{"name": each.name, "of": each.of} for each in found],
                               "timm_installed": known.has_timm, "monai_installed": known.has_monai}))
        return
    for each in found:
        typer.echo(each.name)
    if not known.has_timm:
        typer.echo(f"More than a thousand networks come with timm. {how_to_install('semisilo[timm]')}", err=True)
    if not known.has_monai:
        typer.echo("MONAI's networks (monai/densenet121, ...) come with an extra."
                   f" {how_to_install('semisilo[monai]')}", err=True)
