"""`semisilo new`: a folder to start from.

Tests: tests/semisilo/starters/test_project.py, tests/semisilo/starters/test_method.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(new)


def new(
    project: Annotated[str, typer.Argument(metavar="PROJECT", show_default=False,
                                           help="The folder to make; or the word method.")],
    name: Annotated[str, typer.Argument(metavar="[NAME]", show_default=False,
                                        help="After the word method: what the method is called.")] = "",
) -> None:
    """Makes a folder to start from: a project, or a method of your own.

    A project has a study to simulate, a script that compares methods, and a place for your images; both run at once, on
    scikit-learn's digits. A method is a package with a spec, a strategy, a trainer, an entry point and a test that
    passes: change what you want to be different.

    \b
    Examples:
      semisilo new my-study
      semisilo new method my_method
      semisilo new ./method                a project that is called method
    """
    from semisilo.common.errors import UsageError
    from semisilo.starters.method import new_method
    from semisilo.starters.project import new_project

    if project == "method":
        if not name:
            raise UsageError("A method needs a name.", remedy="Run: semisilo new method my_method. A project called"
                                                              " method is: semisilo new ./method")
        then = new_method(name, Path())
    elif name:
        raise UsageError(f"'{name}' is one word too many.", remedy=f"Run: semisilo new {project}; or: semisilo new"
                                                                   f" method {name}")
    else:
        then = new_project(Path(project))
    typer.echo("Made. Next:")
    for line in then:
        typer.echo(f"  {line}")
