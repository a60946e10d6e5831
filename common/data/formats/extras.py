"""Packages for one kind of file each, imported when such a file is met.

Tests: tests/common/data/formats/test_registry.py.
"""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from typing import Any

from semisilo.common.data.formats.registry import ImageFormat, SourceFormat
from semisilo.common.errors import BadData
from semisilo.common.text.installing import how_to_install

__all__ = ["needed", "silence"]


def needed(module: str, of: ImageFormat | SourceFormat, *, what: str = "") -> Any:
    """The module, imported.

    Args:
        of: the format that needs it.
        what: what the message begins with; "DICOM files", by the format, when left out.
    Raises: BadData, naming the extra, when it is not installed: whatever `on_error` says, since all such files would be
        left out.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        files = what or f"{of.name} files"
        raise BadData(f"{files} need the package '{error.name or module}', which is not installed.",
                      remedy=how_to_install(f"semisilo[{of.extra}]")) from None


def silence(*loggers: str) -> None:
    """Lets libraries log and warn of nothing, however much we log: they quote what stands in files, names of patients
    too. Logger and package of a library have one name."""
    for name in loggers:
        warnings.filterwarnings("ignore", module=rf"{re.escape(name)}(\.|\Z)")
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
