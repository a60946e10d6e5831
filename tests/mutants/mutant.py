"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One wrong change of one place."""

    name: str
    """Says what goes wrong; unique."""
    area: str
    """What it belongs to, for `--area`."""
    file: str
    """Relative to the root of the repository."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Quick tests that should fail, as pytest names them: "tests/common/learning/test_losses.py::test_that"."""
    equivalent: str = ""
    """Why no test can tell the difference; such a mutant is listed and not run."""
