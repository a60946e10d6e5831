"""Which files of a source `semisilo predict` looks at, as its options say it.

Tests: tests/semisilo/prediction/test_predict_selection.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from semisilo.common.data.form import Selection
from semisilo.common.errors import UsageError

__all__ = ["selection_of"]


def selection_of(formats: Sequence[str], dicom: Sequence[str]) -> Selection:
    """The files that count.

    Args:
        formats: names of format plug-ins.
        dicom: "TAG=VALUE,VALUE", one or more for a tag; an empty value stands for a file without it.
    Raises: UsageError for what is not of this form.
    """
    rules: dict[str, tuple[str, ...]] = {}
    for text in dicom:
        keyword, mark, values = text.partition("=")
        if not mark:
            raise UsageError(f"--dicom {text}: has no value.", remedy="Write for example --dicom Modality=CR,DX.")
        rules[keyword] = (*rules.get(keyword, ()), *values.split(","))
    try:
        return Selection(dicom=rules, formats=tuple(formats))
    except ValueError as error:
        raise UsageError(f"--{error}") from None
