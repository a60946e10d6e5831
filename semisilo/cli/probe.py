"""`semisilo probe`: what a site's own update would give away of its images.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisilo.cli.json_file import STANDARD_OUTPUT, check_json_file, write_json_file

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(probe)


def probe(
    study: Annotated[Path, typer.Argument(metavar="STUDY", show_default=False,
                                          help="A study file, or its folder: with a table [simulation] as `semisilo"
                                               " simulate` reads it, or of a federation with --data.")],
    data: Annotated[str, typer.Option(
        "--data", metavar="SOURCE", show_default=False,
        help="Images of your own with their classes, as a study reads them: dealt to the silos in the place of"
             " [simulation] data.")] = "",
    silos: Annotated[int | None, typer.Option(
        "--silos", min=1, show_default=False,
        help="With --data and a study without [simulation]: to how many silos they are dealt, in equal parts. Default:"
             " as many as the study starts with, at least 5.")] = None,
    silo: Annotated[str, typer.Option("--silo", metavar="NAME", show_default=False,
                                      help="The site whose update is attacked. Default: the first.")] = "",
    round: Annotated[int, typer.Option("--round", metavar="N", min=1,
                                       help="The round in which it comes to the study; those before are trained"
                                            " first, without it.")] = 1,
    epsilon: Annotated[list[float] | None, typer.Option(
        "--epsilon", metavar="E", show_default=False,
        help="Also with differential privacy of single images, with this target for the whole study; may be"
             " repeated.")] = None,
    shadows: Annotated[int, typer.Option(
        "--shadows", min=0, help="Updates that are trained and attacked, each on half of the site's images; even, from"
                                 " 6. More give narrower intervals. 0: no membership inference.")] = 32,
    reconstructions: Annotated[int, typer.Option(
        "--reconstructions", min=0, help="Updates that are inverted, from 2; 0: no gradient inversion.")] = 8,
    searched: Annotated[int, typer.Option("--searched", min=1,
                                          help="Most images that are searched for at a time.")] = 8,
    restarts: Annotated[int, typer.Option("--restarts", min=1, help="Random beginnings of each search.")] = 2,
    iterations: Annotated[int, typer.Option("--iterations", min=10, help="Steps of each search.")] = 400,
    images: Annotated[int, typer.Option("--images", min=0, help="Most images of the site that are used; 0: all. Fewer"
                                                               " are quicker, and give more away.")] = 0,
    others: Annotated[bool, typer.Option("--others/--no-others", help="Also attack the average with the other silos of"
                                                                      " the round.")] = True,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Write pictures of originals beside their"
                                                                            " reconstructions into DIR/pictures.")]
    = True,
    seed: Annotated[int, typer.Option("--seed",
                                      help="Of everything that the probe draws. The study's is its own.")] = 1,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(
        "--device", help="auto takes an accelerator where there is one.")] = "auto",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", show_default=False,
                                             help="Folder of this probe; it stays. Default: probes/NAME here.")] = None,
    json_: Annotated[Path | None, typer.Option(
        "--json", metavar="FILE", show_default=False, dir_okay=False, allow_dash=True,
        help="Write the result to FILE as well; with - to standard output, where nothing else is written then.")]
    = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the result only.")] = False,
) -> None:
    """Attacks what a site would send in a study, before it agrees to it: what would leak of its own images?

    Trains the site's update as the study would have it, again and again on halves of its images, and runs two published
    attacks on what would leave: membership inference (was this image trained on?) and gradient inversion (what did the
    images look like?). Against the update by itself, as the coordinator sees it; against the average of the round's
    silos, as it sees it with secure aggregation; and with differential privacy, where it is asked for or the study has
    it. Nothing is sent anywhere. The numbers hold for these attacks: a better one may find more.

    Stopped at any time, the same command continues. The same command gives the same numbers.

    \b
    Examples:
      semisilo probe study.toml
      semisilo probe study.toml --epsilon 8 --epsilon 1
      semisilo probe lung/studies/first --data /scans --silos 5
      semisilo probe study.toml --shadows 64 --reconstructions 0 --json result.json

    Exit status: 1 also where an attack finds more than differential privacy allows, which is a mistake in this program.
    """
    from rich.console import Console

    from semisilo.common.errors import ComputeFailed
    from semisilo.common.text.cli_errors import Terminated, interrupt_on_termination
    from semisilo.common.text.logs import set_up_logging
    from semisilo.common.text.progress_bar import progress_bar
    from semisilo.probe.display import ConsoleWatcher, show_probe
    from semisilo.probe.probe import probe as run
    from semisilo.probe.settings import ProbeSettings, load_probed_study

    check_json_file(json_)
    set_up_logging(quiet=True)
    console = Console(highlight=False, stderr=json_ == STANDARD_OUTPUT)
    settings = ProbeSettings(
        silo=silo, round=round, images=images, shadows=shadows, epsilons=tuple(epsilon or ()), others=others,
        reconstructions=reconstructions, searched=searched, restarts=restarts, iterations=iterations, seed=seed,
        pictures=pictures)
    asked = load_probed_study(study, data=data, silos=silos or 0)
    folder = out or Path("probes") / asked.name
    try:
        with interrupt_on_termination(), progress_bar(console) as bar:
            found = run(asked, out=folder, settings=settings, device=device,
                        watcher=ConsoleWatcher(console, bar, quiet=quiet))
    except (KeyboardInterrupt, Terminated):
        typer.echo("interrupted; the same command continues from here", err=True)
        raise
    show_probe(console, found, folder)
    write_json_file(found.to_json(), json_)
    if found.violates:
        raise ComputeFailed("An attack finds more than differential privacy allows: a mistake in this program.",
                            remedy="Please report it with the file result.json, and do not rely on the epsilon.")
