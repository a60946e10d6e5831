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
from semisilo.common.text.describe import counted
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.images_choice import choose_data
from semisilo.silo.site.policy import load_policy
from semisilo.silo.site.study_images import StudyImages

__all__ = ["choice_of", "look", "tell_twins", "write_sheets"]

_SIZE = 96
"""Of the contact sheet's pictures, while no study is known."""


def choice_of(folder: Path, named: str, *, no_labels: bool = False) -> JoinChoice:
    """What a command means: what it names, else all that silo.toml or the last join names; which files count says
    silo.toml.

    Raises: UsageError when none of them names any.
    """
    home = SiloHome(folder)
    policy = load_policy(home.policy).data
    if named:  # as it is written, so that messages say it in the same way
        return JoinChoice(source=named, dicom=policy.dicom, patient=policy.patient, formats=policy.formats,
                          use_labels=policy.labels and not no_labels)
    return choose_data(home, policy, data=None, no_labels=no_labels, on_error=None, example="silo data{home} /scans")


def look(source: str, *, choice: JoinChoice, classes: tuple[str, ...], size: int, study: StudyImages | None = None,
         progress: Callable[[float, str], None] | None = None) -> Preview:
    """Looks at a source as a silo reads it.

    Args:
        source: one of those of `choice`.
        size: of the pictures; 0: as the study has it, where that is known, else 96.
        study: to compare brightness and contrast with; not with another size, which changes them.
    Raises: BadData when it cannot be used as a whole.
    """
    use_labels = source != choice.source or (choice.use_labels and not choice.labelled)
    if study is None or size not in (0, study.form.size):
        return look_at(source, form=Geometry(size=size or _SIZE, channels=3, resize="fit"), classes=classes,
                       at_silo=True, use_labels=use_labels, selection=choice.selection, progress=progress)
    found = look_at(source, form=study.geometry, reading=study.form.reading, classes=classes, at_silo=True,
                    use_labels=use_labels, selection=choice.selection, progress=progress)
    if found.tiles:
        unlike = unlikeness(statistics_of([tile.square for tile in found.tiles]), study.statistics)
        found.notes += tuple(f"unlike the images of study {study.study}, {line}" for line in unlike)
        if unlike and study.form.standardise == "image":
            found.notes += ("the study standardises images one by one: brightness, contrast and colour cast hardly"
                            " count; black and white the wrong way round, or another window, do",)
    return found


def tell_twins(found: Sequence[Preview], choice: JoinChoice) -> None:
    """Says beside the test images how many of them have the pixels of one to train on: none is tested with, and where
    all have, the silo refuses the tasks of every study. Of files; arrays are compared when a study begins.

    Args:
        found: one of each of `choice.sources`, in this order.
    """
    for test in found:
        if test.source != choice.test:
            continue
        trained = {digest for each in found if each is not test for digest in each.pixels}
        twins = [name for digest, names in test.pixels.items() if digest in trained for name in names]
        if twins and len(twins) == test.num_images:
            test.misfits += (f"every test image has the pixels of one to train on, first {twins[0]}. Name test images"
                             " that nothing is trained on.",)
        elif twins:
            test.notes += (f"{counted(len(twins), 'test image')} with the pixels of one to train on, first {twins[0]}:"
                           " not tested with",)


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
