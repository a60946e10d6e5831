"""Arguments that a person wrote in Python: what has another type is refused in a line that names the argument.

Settings of a study are checked as those of a file (`semisilo.common.config`); this is for what no file says: folders,
yes or no, functions.

Tests: tests/common/text/test_python_arguments.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from semisilo.common.errors import UsageError

__all__ = ["checked_folder", "checked_function", "checked_path", "checked_texts", "checked_whole", "checked_yes_or_no"]

_LONGEST_SHOWN = 80
"""Characters of a value that an error shows."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _wrong(value: object, where: str, wanted: str, remedy: str) -> UsageError:
    return UsageError(f"{where} = {_shown(value)}: must be {wanted}.", remedy=remedy)


def checked_path(value: Any, where: str) -> Path:
    """A folder or file, with "~" as the home folder, as a shell reads it. Raises: UsageError for what is no path, and
    for an empty text, which would be the current folder."""
    if isinstance(value, (str, os.PathLike)) and isinstance(found := os.fspath(value), str) and found \
            and "\0" not in found:
        return Path(os.path.expanduser(found))  # where nobody has that name as it is
    raise _wrong(value, where, "a path", f'Write {where}="some/folder"; the current one is ".".')


def checked_folder(value: Any, where: str) -> Path:
    """A folder to write into, there already or not. Raises: UsageError as `checked_path`, and where a file is in its
    place or on the way to it, or the system does not let this account write there."""
    found = checked_path(value, where)
    try:
        nearest = found.absolute()
        while not _is_there(nearest):
            nearest = nearest.parent
        is_folder, writable = nearest.is_dir(), os.access(nearest, os.W_OK | os.X_OK)
    except OSError as error:
        raise UsageError(f"{where} = {_shown(value)}: {error.strerror or error}.",
                         remedy="Choose another folder.") from None
    if not is_folder:
        raise UsageError(f"{where} = {_shown(value)}: {nearest} is not a folder.", remedy="Choose another folder.")
    if not writable:
        raise UsageError(f"{where} = {_shown(value)}: this account may not write into {nearest}.",
                         remedy="Choose another folder; what is finished there, load_run reads.")
    return found


def _is_there(path: Path) -> bool:
    """Also of a link to nothing. Raises: OSError for a name that no file can have."""
    try:
        path.lstat()
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def checked_yes_or_no(value: Any, where: str) -> bool:
    """True or False, also NumPy's, and 1 or 0. Raises: UsageError for all else: the text "no" would be a yes."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _wrong(value, where, "True or False", f"Write {where}=True or {where}=False.")


def checked_whole(value: Any, where: str) -> int:
    """A whole number of at least 1, also NumPy's. Raises: UsageError for all else."""
    if not isinstance(value, bool) and hasattr(type(value), "__index__"):
        try:
            number = int(value.__index__())
        except (TypeError, ValueError):  # arrays of several numbers
            number = 0
        if number >= 1:
            return number
    raise _wrong(value, where, "a whole number of at least 1", f"Write for example {where}=250.")


def checked_texts(value: Any, where: str, *, example: str) -> tuple[str, ...]:
    """One text or several. Raises: UsageError for all else."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Collection) and not hasattr(value, "dtype") and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise _wrong(value, where, "a text or a list of texts", f'Write {where}=["{example}"].')


def checked_function(value: Any, where: str, *, takes: str) -> Callable[..., None] | None:
    """A function, or None for none. Raises: UsageError for all else."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    raise _wrong(value, where, f"a function that takes {takes}", "Leave it out, or give one such as print.")
