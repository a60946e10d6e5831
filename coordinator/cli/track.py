"""The command `coordinator track`: parse, call, print.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semisilo.common.text.command_line import JsonOption
from semisilo.coordinator.cli.options import Folder, StudyName

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(track)


def track(study: StudyName = "",
          folder: Folder = Path(),
          tensorboard: Annotated[Path | None, typer.Option(
              "--tensorboard", metavar="DIR", show_default=False,
              help="Folder for TensorBoard's event file; made when missing.")] = None,
          mlflow: Annotated[str, typer.Option(
              "--mlflow", metavar="TARGET", show_default=False,
              help="An MLflow server such as https://mlflow.example, or a folder.")] = "",
          experiment: Annotated[str, typer.Option(
              "--experiment", show_default=False,
              help="MLflow's experiment; the name of the federation by default.")] = "",
          wandb: Annotated[str, typer.Option(
              "--wandb", metavar="PROJECT", show_default=False,
              help="A project of Weights & Biases; its run goes to the federation's folder wandb, for `wandb sync`.")]
          = "",
          wandb_online: Annotated[bool, typer.Option(
              "--wandb-online", help="Send it to the server of $WANDB_BASE_URL, or to W&B's own, instead.")] = False,
          as_json: JsonOption = False) -> None:
    """Hand a study over to TensorBoard, MLflow or Weights & Biases: one that is over, or one that runs.

    What was handed over before is not written again. `coordinator serve` does the same while studies run, where the
    table "tracking" of federation.toml says so.

    \b
    Examples:
      coordinator track first --tensorboard runs/first
      coordinator track first --mlflow https://mlflow.example
      coordinator track first --wandb lungs
    """
    import json

    from semisilo.common.config import to_dict
    from semisilo.coordinator.tracking.hand_over import track_study

    told = track_study(folder, study, tensorboard=tensorboard, mlflow=mlflow, experiment=experiment, wandb=wandb,
                       wandb_mode="online" if wandb_online else "offline")
    if as_json:
        typer.echo(json.dumps(to_dict(told), indent=2))
        return
    for name, entry in told.trackers.items():
        typer.echo(f"{name}: {entry.rounds} new rounds of {told.study} in {entry.target}")
