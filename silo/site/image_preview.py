"""Which sources `silo data` looks at, and where their contact sheets go: to this machine's disk and nowhere else.

Tests: tests/silo/cli/test_data.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.preview.contact_sheet import contact_sheet
from semisilo.common.data.preview.likeness import statistics_of, unlikeness
from semisilo.common.data.preview.preview import Preview, look_at
from semisilo.common.errors import BadData
from semisilo.common.storage.durable import write_durably
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.images_choice import choose_data
from semisilo.silo.site.policy import load_policy
from semisilo.silo.site.study_images import StudyImages

__all__ = ["look", "sources", "write_sheets"]

_SIZE = 96
"""Of the contact sheet's pictures, while no study is known."""


def sources(folder: Path, named: str) -> tuple[str, ...]:
    """What a command means: what it names, else all that silo.toml or the last join names.

    Raises: UsageError when none of them names any.
    """
    if named:
        return (named,)
    home = SiloHome(folder)
    return choose_data(home, load_policy(home.policy).data, data=None, on_error=None).sources


def look(source: str, *, classes: tuple[str, ...], size: int, study: StudyImages | None = None,
         progress: Callable[[float, str], None] | None = None) -> Preview:
    """Looks at a source as a silo reads it.

    Args:
        size: of the pictures; 0: as the study has it, where that is known, else 96.
        study: to compare brightness and contrast with; not with another size, which changes them.
    Raises: BadData when it cannot be used as a whole.
    """
    if study is None or size not in (0, study.form.size):
        return look_at(source, form=Geometry(size=size or _SIZE, channels=3, resize="fit"), classes=classes,
                       at_silo=True, progress=progress)
    found = look_at(source, form=study.geometry, reading=study.form.reading, classes=classes, at_silo=True,
                    progress=progress)
    if found.tiles:
        unlike = unlikeness(statistics_of([tile.square for tile in found.tiles]), study.statistics)
        found.notes += tuple(f"unlike the images of study {study.study}, {line}" for line in unlike)
    return found


def write_sheets(found: Sequence[Preview], sheet: Path | None, *, folder: Path) -> list[Path]:
    """A contact sheet of each; from the second on a number stands in its name. Only this user may read them.

    Raises: BadData when one cannot be written.
    """
    first = sheet if sheet is not None else folder / "contact-sheet.png"
    paths = [first if number == 1 else first.with_name(f"{first.stem}-{number}{first.suffix}")
             for number in range(1, len(found) + 1)]
    for path, each in zip(paths, found, strict=True):
        content = contact_sheet(each.tiles, title=Path(each.source).name, counts=each.classes,
                                unlabelled=each.unlabelled)
        try:
            if sheet is None:
                folder.mkdir(parents=True, exist_ok=True)
            write_durably(path, content, mode=0o600)
        except OSError as error:
            raise BadData(f"{path}: the contact sheet cannot be written: {error.strerror}.",
                          remedy="Name another place: --sheet FILE.") from None
    return [path.absolute() for path in paths]
