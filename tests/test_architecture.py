"""The house is as docs/architecture.md draws it: rooms, doors, layers, the way of an update, where tests lie."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import subprocess
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.each_of import each_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SIDES = ("common", "coordinator", "silo", "semisilo")
ENTRY_POINTS = {"common": {"config", "errors", "system_errors"}, "coordinator": {"serve"}, "silo": {"join"},
                "semisilo": set[str]()}
"""What may stand beside the rooms of a side."""
COLLECTIONS = {"common/methods", "common/data/formats", "coordinator/strategies", "silo/trainers"}
"""One module for each method or format: as many as there are."""
GENERATED = "common/wire"
LEFT = {"desk", "bulletin", "places", "spooled", "leftovers", "endings", "operators_word", "patient_calls", "spares",
        "announcement", "own_images", "live"}
"""Names that nobody would search for; what replaced them is in docs/decisions/0019-rooms.md."""


@functools.cache
def _sources() -> list[Path]:
    """All modules of the product; what is reached over a link counts once."""
    return sorted(path for side in SIDES for path in (ROOT / side).glob("**/*.py")
                  if not any(parent.is_symlink() for parent in path.parents))


@functools.cache
def _rooms() -> dict[str, list[Path]]:
    """Folder -> its modules without the door."""
    rooms: dict[str, list[Path]] = {}
    for path in _sources():
        rooms.setdefault(path.parent.relative_to(ROOT).as_posix(), [])
        if path.name not in ("__init__.py", "__main__.py"):
            rooms[path.parent.relative_to(ROOT).as_posix()].append(path)
    return {name: modules for name, modules in rooms.items() if name != GENERATED}


def test_layers_hold_without_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
    assert "ignore_imports" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_every_room_has_a_door_that_says_what_it_is_for() -> None:
    says = {room: ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
            for room in _rooms()}
    assert [f"{room}/__init__.py: say what the folder is for and who may import it"
            for room, text in says.items() if len(text) < 40] == []


def test_no_room_is_crowded() -> None:
    assert {room: len(modules) for room, modules in _rooms().items()
            if room not in COLLECTIONS and room not in SIDES and len(modules) > 16} == {}


def test_most_rooms_are_small() -> None:
    assert statistics.median(len(modules) for room, modules in _rooms().items() if room not in SIDES) <= 8


@each_of("side", SIDES)
def test_the_root_of_a_side_holds_entry_points_only(side: str) -> None:
    assert {path.stem for path in _rooms()[side]} == ENTRY_POINTS[side]


def test_no_module_has_a_name_that_nobody_would_search_for() -> None:
    assert [str(path.relative_to(ROOT)) for path in _sources() if path.stem in LEFT] == []


def test_nothing_imports_the_old_names() -> None:
    """`import common` finds the folder from the repository's root: under another name, so twice in one process."""
    tracked = subprocess.run(["git", "ls-files", "*.py", "*.md", "*.toml", "*.sh", "*.yml"], cwd=ROOT, text=True,
                             capture_output=True, check=False)
    files = [ROOT / name for name in tracked.stdout.split()] or _sources()
    old = re.compile(r"^\s*(?:>>> )?(?:from|import) (?:common|coordinator|silo)\b(?!.*# the old name)", re.MULTILINE)
    found = [f"{path.relative_to(ROOT)}: {match[0].strip()}" for path in files
             if path.is_file() and "decisions" not in path.parts
             for match in old.finditer(path.read_text(encoding="utf-8"))]
    assert found == []


# The page -------------------------------------------------------------------------------------------------------------


def _section(heading: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    begin = text.index(f"## {heading}\n")
    end = text.find("\n## ", begin + 1)
    return text[begin:end]


def test_the_picture_shows_every_room_and_no_other() -> None:
    picture = _section("The rooms").split("```")[1]
    drawn: set[str] = set()
    side = ""
    for line in picture.splitlines():
        if match := re.match(r"(\w+)/ ", line):
            side = match[1]
        drawn |= {f"{side}/{name}" for name in re.findall(r"\b([a-z_]+(?:/[a-z_]+)?)/", line) if name != side}
    rooms = {room for room in _rooms() if room not in SIDES} | {GENERATED}
    assert drawn == rooms


def test_the_page_opens_with_processes_and_rooms_and_leaves_the_modules_to_their_own_page() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:3] == ["Processes", "The rooms", "The way of one update"]
    assert headings[-1] == "Modules"
    assert _section("Modules").count("\n") <= 5


def test_the_way_of_an_update_names_definitions_that_are_there() -> None:
    steps = re.findall(r"`([\w/]+\.py)` · `([\w.]+)`", _section("The way of one update"))
    assert len(steps) >= 12
    for file, name in steps:
        assert name in _definitions(ROOT / file), f"{file} has no {name}"


@functools.cache
def _definitions(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body
                      if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


# Tests ----------------------------------------------------------------------------------------------------------------


def _untested(path: Path) -> str:
    """What is missing for the tests of a module to be found; empty where nothing is."""
    module = path.relative_to(ROOT)
    wanted = f"tests/{module.parent}/test_{module.stem}.py"
    if (ROOT / wanted).is_file():
        return ""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    named = re.findall(r"\btests/[\w/]+\.py", docstring.partition("Tests: ")[2])
    if not named:
        return f"{module}: write {wanted}, or say 'Tests: tests/...' in its docstring"
    absent = [name for name in named if not (ROOT / name).is_file()]
    return f"{module}: its docstring names {', '.join(absent)}, and there is none" if absent else ""


@pytest.mark.slow
def test_a_module_s_test_lies_at_the_mirrored_path_or_the_module_says_where() -> None:
    modules = [path for path in _sources() if path.name not in ("__init__.py", "__main__.py")
               and not path.is_relative_to(ROOT / GENERATED)]
    assert len(modules) > 500
    assert [problem for path in modules if (problem := _untested(path))] == []
