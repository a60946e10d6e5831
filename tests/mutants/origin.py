"""A plugin of pytest that fails a run whose modules come from the checkout instead of the copy that was changed.

An installed package that points back to the checkout (an editable installation) would otherwise hide every mutant.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

CHECKOUT = "SEMISILO_MUTANTS_CHECKOUT"
"""Environment variable: the folder that nothing may be imported from."""


def strangers(checkout: Path) -> list[str]:
    """Files of imported modules that lie in the checkout; its virtual environment does not count."""
    environment = Path(sys.prefix).resolve()
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if file else None
        if path is not None and path.is_relative_to(checkout) and not path.is_relative_to(environment):
            found.append(str(path))
    return sorted(found)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the run with an internal error (3), which is no verdict."""
    if found := strangers(Path(os.environ[CHECKOUT]).resolve()):
        pytest.exit(f"{found[0]} was imported from the checkout, not from the copy.", returncode=3)
