"""Which source `coordinator data` looks at, and in which form.

Tests: tests/coordinator/cli/test_data.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from semisilo.common.data.form import OnError, Reading, Selection
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.preview.contact_sheet import contact_sheet
from semisilo.common.data.preview.preview import Preview, look_at
from semisilo.common.data.readers import survey
from semisilo.common.errors import BadData, UsageError
from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.federation.folder import open_federation
from semisilo.coordinator.studies.held_out import MOST_HELD_OUT, held_out_share
from semisilo.coordinator.studies.study_file import DataSettings, load_study

__all__ = ["Chosen", "choose", "look", "write_sheet"]

_SHEET = "contact-sheet.png"
"""Of the labelled set, and of images without a study."""
_SETS = ("labelled", "validation", "test")
_UNKNOWN_FORM = Geometry(size=96, channels=3, resize="fit")
"""Without a study: for the sheet alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What to look at."""

    source: str
    form: Geometry = _UNKNOWN_FORM
    reading: Reading = field(default_factory=Reading)
    classes: tuple[str, ...] = ()
    """To compare with; empty for none."""
    selection: Selection = field(default_factory=Selection)
    sheet: Path = Path(_SHEET)
    multi_label: bool = False
    """Whether images of the study may have several labels or none."""
    on_error: OnError | None = None
    """What the study does at a file that cannot be used; None where no study reads this source."""

    def stops_at(self, found: Preview) -> bool:
        """Whether the study fails because of what was found."""
        return found.broken > 0 and self.on_error in ("stop", "report")


def choose(source: str, *, folder: Path, study: str) -> Chosen:
    """What a command means.

    Args:
        source: what the person named, perhaps nothing.
        folder: the federation's, where a study is named.
    Raises: UsageError when nothing is named; BadConfiguration for a study file that is wrong.
    """
    if not study:
        if not source:
            raise UsageError("No images were named.",
                             remedy="Say where they are, coordinator data FOLDER, or name a study with --study.")
        return Chosen(source=source)
    study_folder = open_federation(folder).studies / study
    config = load_study(study_folder / "study.toml")
    data = config.data
    named = source or next((name for name in _SETS if getattr(data, name)), "")
    if not named:
        raise UsageError(f"Study {study} names no images.", remedy="Say where they are: coordinator data FOLDER.")
    if named in _SETS and not getattr(data, named):
        if named == "validation" and (share := _held_out(data, study_folder)):
            raise UsageError(f"Study {study} names no validation images: {share} are held out of its labelled ones when"
                             " it starts.", remedy=f"They are among these: coordinator data labelled --study {study}")
        raise UsageError(f"Study {study} has no {named} images.", remedy=f"Add {named} to [data] of its file.")
    image = data.image
    found = located(getattr(data, named), study_folder) if named in _SETS else named
    return Chosen(source=found, classes=_classes(data, study_folder, named),
                  form=Geometry(size=image.size, channels=image.channels, resize=image.resize), reading=image.reading,
                  selection=data.selection, sheet=study_folder / _sheet_name(named),
                  multi_label=config.study.task == "multi_label",
                  on_error=data.on_error if named in _SETS else None)


def _held_out(data: DataSettings, study_folder: Path) -> str:
    """How many of the labelled images become validation images, in words; empty where none do. Which ones follows from
    their pixels, and by a few their number as well."""
    if not data.labelled or data.stated_share == 0.0:
        return ""
    try:
        found = survey(located(data.labelled, study_folder), data.selection)
    except BadData:  # what is wrong there shows when one looks there
        return "some" if data.stated_share else ""
    number = sum(found.class_counts.values()) or found.num_images
    share = held_out_share(data.stated_share, number)
    wanted = max(1, round(min(share * number, MOST_HELD_OUT)))
    return f"about {wanted} of {number}" if share else ""


def _sheet_name(named: str) -> str:
    """Of every source of a study one of its own, so that looking at one does not replace the sheet of another."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", named if named in _SETS else Path(named).name).strip("-")
    return _SHEET if named == "labelled" else f"contact-sheet-{words or 'images'}.png"


def located(source: str, folder: Path) -> str:
    """The source with a relative path started at `folder`; a named set stays as it is."""
    if source.partition("#")[0] == "digits":
        return source
    return str(folder / Path(source).expanduser())


def _classes(data: DataSettings, study_folder: Path, named: str) -> tuple[str, ...]:
    """The study's classes: those of its file, else those of its labelled images, unless these are looked at."""
    if data.classes or not data.labelled or named == "labelled":
        return data.classes
    try:
        return survey(located(data.labelled, study_folder), data.selection).classes
    except BadData:  # what is wrong there shows when one looks there
        return ()


def look(chosen: Chosen, *, progress: Callable[[float, str], None] | None = None) -> Preview:
    """Looks. Raises: BadData when the source as a whole cannot be used."""
    return look_at(chosen.source, form=chosen.form, reading=chosen.reading, classes=chosen.classes,
                   selection=chosen.selection, multi_label=chosen.multi_label, progress=progress)


def write_sheet(found: Preview, path: Path) -> Path:
    """Writes the contact sheet, which shows images: only this user may read it.

    Raises: BadData when it cannot be written.
    """
    content = contact_sheet(found.tiles, title=Path(found.source).name, counts=found.classes,
                            unlabelled=found.unlabelled)
    try:
        write_durably(path, content, mode=0o600)
    except OSError as error:
        raise BadData(f"{path}: the contact sheet cannot be written: {error.strerror}.",
                      remedy="Name another place: --sheet FILE.") from None
    return path.absolute()
