"""Options that several commands of `coordinator` take.

Tests: tests/coordinator/cli/test_main.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Folder", "RunningStudyName", "SiloName", "StudyFileName", "StudyName", "complete_studies"]


def complete_studies(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of studies, for the shell's TAB."""
    from semisilo.coordinator.cli.completion import studies  # late: only the shell's TAB needs it

    return studies(ctx, incomplete)


def _study_files(ctx: typer.Context, incomplete: str) -> list[str]:
    from semisilo.coordinator.cli.completion import study_files

    return study_files(ctx, incomplete)


def _silos(ctx: typer.Context, incomplete: str) -> list[str]:
    from semisilo.coordinator.cli.completion import silos

    return silos(ctx, incomplete)


# Not `readable`: what may not be read is no mistake in the words of a command. Who opens it says whose it is, with the
# status by which a service is started again.
Folder = Annotated[Path, typer.Option("--folder", "-C", envvar="SEMISILO_FEDERATION", readable=False,
                                      help="The federation folder; the current one by default.")]
StudyName = Annotated[str, typer.Argument(metavar="STUDY", autocompletion=complete_studies,
                                          help="Name of the study; the last one by default.")]
RunningStudyName = Annotated[str, typer.Argument(metavar="STUDY", autocompletion=complete_studies,
                                                 help="Name of the study; the running one by default.")]
StudyFileName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study.", autocompletion=_study_files)]
SiloName = Annotated[str, typer.Argument(metavar="SILO", help="Name of the silo.", autocompletion=_silos)]
