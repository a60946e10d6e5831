"""Writes `docs/modules.md`, the list of modules, from their docstrings; `--check` says whether it is current."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGE = DOCS / "modules.md"
HEAD = """\
# Modules

The first line of each module, collected by `make docs`. How they belong together: [architecture.md](architecture.md).
"""
PACKAGES = ("common", "coordinator", "silo", "semisilo")


def module_list() -> str:
    """The page: one table per package, `common/wire/` as one row."""
    parts = [HEAD]
    for package in PACKAGES:
        parts.append(f"\n## `{package}/`\n\n| module | what |\n|---|---|\n")
        rows = {}
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT / package)
            if name.parts[0] == "wire":
                rows["wire/"] = "Generated from `protos/` by `make protos`; never edited."
            elif path.name != "__init__.py":
                rows[name.as_posix()] = first_line(path)
        parts.extend(f"| `{name}` | {text} |\n" for name, text in sorted(rows.items()))
    return "".join(parts)


def first_line(path: Path) -> str:
    """First line of a module's docstring, fit for a table's cell.

    Raises: SystemExit, naming the file, when there is none.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        sys.exit(f"{path.relative_to(ROOT)} has no docstring: begin it with one line that says what it is for.")
    return docstring.splitlines()[0].replace("|", "\\|").strip()


def main() -> None:
    """Writes or checks."""
    fresh = module_list()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or fresh != PAGE.read_text(encoding="utf-8"):
            sys.exit("docs/modules.md does not list the modules as they are. Run: make docs")
        print("docs/modules.md is current")
        return
    PAGE.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
