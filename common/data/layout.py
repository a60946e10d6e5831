"""What the folders of a source are taken for: classes, parts of a data set, patients; and what to set where that is not
clear. `silo data`, `silo check` and `silo join` say the same of the same folder.

Nothing is guessed in silence: folders such as `train` and `test` are neither classes nor trained on together until
somebody has named them; folders that may be patients are asked about.

Tests: tests/common/data/test_layout.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from semisilo.common.data.form import LABELLED, UNLABELLED
from semisilo.common.data.formats.folder import ImageFile, Listing, class_name_of
from semisilo.common.data.identifiers import patients_for_classes
from semisilo.common.errors import BadData
from semisilo.common.text.describe import counted
from semisilo.common.text.logs import printable

__all__ = ["Layout", "layout_of", "refuse_parts", "refuse_without_label"]

_NAMED = 6
_Part = Literal["train", "val", "test"]
_PART = re.compile(r"(?ix) (?:(?P<train>train(?:ing)?)|(?P<val>val(?:id(?:ation)?)?|dev)|(?P<test>test(?:ing)?))"
                   r"(?: [-_.\ ]? (?:set|data|images?|split|part))?")
"""Names that data sets on the internet have for their parts."""
_NEARLY = frozenset(("labelled", "unlabelled", "labeled", "unlabeled", "nolabel", "no_label", "no label", "nolabels"))
_WITHOUT_LABEL = ("If not, move it out of this folder where its images have no label, or name it as the source where it"
                  " holds class folders; if it is, list every class in [data] classes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What the folders of a source are taken for."""

    understood: str
    """One line: "class folders: covid, healthy"."""
    question: str = ""
    """What a person must say, on one line; "" where all is clear."""
    remedy: str = ""
    """What to set."""
    is_refused: bool = False
    """Whether the images are not used before that."""

    @property
    def asks(self) -> str:
        """Question and remedy on one line; "" where there is none."""
        mark = "" if self.question.endswith("?") else "."
        return f"{self.question}{mark} {self.remedy}" if self.question else ""


def layout_of(source: str, listing: Listing, *, classes: Sequence[str] = (), at_silo: bool = False) -> Layout:
    """What the folders of a source are taken for.

    Args:
        source: the folder as the user wrote it; what is to be set names it from the root on.
        listing: of it.
        classes: the study's class names where they are known: a folder with such a name is a class.
        at_silo: whether folders `labelled` and `unlabelled` tell images apart, and silo.toml says what is what.
    """
    counts = Counter(file.class_name for file in listing.images)
    folders = [name for name in listing.folders if counts[name]]
    if found := _parts(folders, classes):  # an empty folder for labelled images beside them makes them no less
        return _of_parts(source, listing, found, at_silo=at_silo)
    if at_silo and LABELLED in listing.folders and LABELLED not in folders:
        return Layout(understood="images without a label", question=f"is the folder '{LABELLED}' meant to be empty?",
                      remedy="If not, mount or fill it: none of these images counts as labelled; else remove it")
    at_top = f"; {counted(counts[''], 'image')} beside them without a label" if counts[""] else ""
    if not folders:
        return Layout(understood="images without a label, in no folder")
    if at_silo and LABELLED in folders:
        inside = _inside(listing.images, LABELLED)
        return Layout(understood=f"{_classes(list(inside))} in '{LABELLED}'; all else without a label")
    rest = [name for name in folders if not (at_silo and name == UNLABELLED)]
    beside = f"; '{UNLABELLED}' without a label" if len(rest) < len(folders) else ""
    if not rest:
        return Layout(understood=f"images without a label, in '{UNLABELLED}'")
    if asked := "" if classes else patients_for_classes({name: counts[name] for name in rest}):
        return Layout(
            understood=f"{len(rest)} class folders, which look like patients{beside}{at_top}", question=asked, remedy=
            f"If so, put them into one folder called '{UNLABELLED}', or say that nothing there has a label: labels ="
            " false in [data] of silo.toml, or --no-labels" if at_silo else
            "If so, sort the images into a folder for each class, or name a table that says what each shows: labelled ="
            ' "labels.csv"')
    understood = f"{_classes(rest)}{beside}{at_top}"
    if near := _near(rest, classes):
        return Layout(understood=understood, question=f"is '{printable(near, limit=60)}' a class?", remedy=
                      f"If not, call it '{UNLABELLED}' where its images have no label, '{LABELLED}' where it holds"
                      " class folders" if at_silo else _WITHOUT_LABEL)
    return Layout(understood=understood)


def refuse_without_label(source: str, listing: Listing, *, classes: Sequence[str] = ()) -> None:
    """Raises: BadData where every folder is to be a class and one says of itself that its images have no label, or
    that it holds the labelled ones; unless it is a class that the study has."""
    if near := _near(listing.folders, classes):
        raise BadData(f"{source}: is the folder '{printable(near, limit=60)}' a class?", remedy=f"{_WITHOUT_LABEL}.")


def _near(folders: Sequence[str], classes: Sequence[str]) -> str:
    """The first folder that is called as if it were no class; "" where there is none."""
    return next((name for name in folders if name.casefold() in _NEARLY and name not in classes), "")


def refuse_parts(source: str, listing: Listing, *, classes: Sequence[str] = (), at_silo: bool = False) -> None:
    """Raises: BadData for a source whose folders are parts of a data set, saying what to name instead."""
    layout = layout_of(source, listing, classes=classes, at_silo=at_silo)
    if layout.is_refused:
        raise BadData(f"{source}: its folders are taken for {layout.understood}.", remedy=f"{layout.remedy}.")


def _parts(folders: Sequence[str], classes: Sequence[str]) -> dict[str, _Part]:
    """Which part each folder is, in their order; {} where they are no parts."""
    found: dict[str, _Part] = {}
    for name in folders:
        match = None if name in classes else _PART.fullmatch(name)
        if match is not None:
            found[name] = "train" if match["train"] else "val" if match["val"] else "test"
        elif name != UNLABELLED:
            return {}
    return found if "train" in found.values() or len(found) > 1 else {}


def _of_parts(source: str, listing: Listing, parts: dict[str, _Part], *, at_silo: bool) -> Layout:
    base = Path(source).expanduser().absolute()
    inside = {name: _inside(listing.images, name) for name in parts}
    patients = [name for name in parts if _may_be_patients(inside[name], list(inside.values()))]
    described = ", ".join(f"'{name}' ({_within(inside[name], patients=name in patients)})" for name in parts)
    by_part: dict[_Part, str] = {}
    for name, part in parts.items():
        by_part.setdefault(part, name)
    named = {"source" if at_silo else "labelled": by_part.get("train", next(iter(parts))),
             **({} if at_silo or "val" not in by_part else {"validation": by_part["val"]}),
             **({"test": by_part["test"]} if "test" in by_part and inside[by_part["test"]]
                and by_part["test"] not in patients else {})}
    if at_silo and UNLABELLED in listing.folders:
        unused = f"; '{UNLABELLED}' belongs into '{named['source']}'"
    else:
        left = [name for name in parts if name not in named.values()]
        unused = f"; {_listed(left)} {'is' if len(left) == 1 else 'are'} then not used" if left else ""
    keys = ", ".join(f'{key} = "{base}/{name}"' for key, name in named.items())
    if not at_silo:
        remedy = f"Name each by itself, for example in [data]: {keys}{unused}"
    else:
        options = " ".join(f"--{'data' if key == 'source' else key} {base}/{name}" for key, name in named.items())
        remedy = (f"Set {keys} in [data] of silo.toml, or: silo join {options}{unused}. To train on all of them"
                  " without a label: labels = false, or --no-labels")
    return Layout(understood=f"parts of a data set, not classes: {described}", is_refused=True, remedy=remedy,
                  question=f"which of {_listed(list(parts))} are to be trained on?")


def _inside(images: Iterable[ImageFile], name: str) -> dict[str, int]:
    """Images of the folders within one of the top folders, in the order of their names."""
    counts = Counter(class_name_of(path[1]) for file in images if file.class_name == name
                     and len(path := file.name.split("/")) > 2)
    return dict(sorted(counts.items()))


def _may_be_patients(counts: Mapping[str, int], of_parts: Sequence[Mapping[str, int]]) -> bool:
    """Whether folders of a part may be patients, be they few: other parts with the same folders speak for classes."""
    alike = sum(set(counts) == set(each) for each in of_parts)
    return bool(patients_for_classes(counts)) or (alike == 1 and len(counts) > 0 and any(
        patients_for_classes({**each, **counts}) for each in of_parts))


def _within(counts: Mapping[str, int], *, patients: bool) -> str:
    if not counts:
        return "no folders"
    return f"{counted(len(counts), 'folder')} that may be patients" if patients else _classes(list(counts))


def _listed(names: Sequence[str]) -> str:
    quoted = [f"'{printable(name, limit=60)}'" for name in names]
    return " and ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))


def _classes(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name, limit=60) for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"class folders: {shown}{more}"
