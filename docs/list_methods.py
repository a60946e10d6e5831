"""Writes the references in `docs/methods/` and what `docs/privacy.md` says of methods; `--check`: are they current?

The text comes from `common/methods/`: the first paragraphs of a method's module, its `MethodSpec`, and the docstring
under each field of its settings. So the pages cannot say what the program does not. Text above the heading of a
generated section is written by hand and stays.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
HEADING = "## Reference\n"
PRIVACY_HEADING = "## Method by method\n"
sys.path.insert(0, str(ROOT))

from semisilo.common.methods import METHODS, MethodSpec  # noqa: E402 - the checkout's, not an installed one


def reference(spec: MethodSpec) -> str:
    """The generated section of a method's page, from its heading to the end."""
    module = inspect.getmodule(spec.settings)
    about = inspect.cleandoc((module.__doc__ if module is not None else "") or "").partition("\n\nTests: ")[0]
    facts = [("Source", spec.source), ("Scenarios", ", ".join(f"`{name}`" for name in spec.scenarios)),
             ("Labels of an image", "one, or several and none" if "multi_label" in spec.tasks else "one"),
             ("A silo receives", _groups(spec.down)), ("A silo sends", _groups(spec.up)),
             ("Numbers that a silo sends", ", ".join(f"`{name}`" for name in spec.metrics) or "none"),
             ("Discloses", spec.discloses)]
    lines = [f"{HEADING}\n`make docs` writes this section from the source code in `common/methods/`.\n\n{about}\n\n"
             "### Declaration\n\n| property | value |\n|---|---|\n"]
    lines += [f"| {name} | {_cell(text)} |\n" for name, text in facts]
    lines.append("\n### Settings\n\n| setting | default | meaning |\n|---|---|---|\n")
    texts = field_docstrings(spec.settings)
    for field in dataclasses.fields(spec.settings):
        meaning = _choices(spec.settings, field.name) + texts.get(field.name, "")
        lines.append(f"| `{field.name}` | {_default(field)} | {_cell(meaning)} |\n")
    return "".join(lines)


def privacy() -> str:
    """The section of what leaves a site, to the end of its page: one part for every method of the table."""
    parts = [PRIVACY_HEADING, "\nWritten by `make docs` from `common/methods/`: the same declaration that both sides "
             "enforce.\n"]
    for spec in METHODS.values():
        facts = [("leaves the site", _groups(spec.up)),
                 ("numbers that leave", ", ".join(f"`{name}`" for name in spec.metrics) or "none"),
                 ("arrives", _groups(spec.down)), ("who learns what", spec.discloses)]
        parts.append(f"\n### {spec.name}\n\n| what | in detail |\n|---|---|\n")
        parts += [f"| {name} | {_cell(text)} |\n" for name, text in facts]
    return "".join(parts)


def _groups(groups: typing.Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` ({meaning})" for name, meaning in groups.items()) or "nothing"


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else \
        field.default_factory() if field.default_factory is not dataclasses.MISSING else None
    if value is None:
        return "left out"
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else \
        f'"{value}"' if isinstance(value, str) else repr(list(value) if isinstance(value, tuple) else value)
    return f"`{text}`"


def _choices(settings: type, name: str) -> str:
    """The values that a setting may have, where these are listed."""
    hint = typing.get_type_hints(settings)[name]
    values = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return f"One of {', '.join(f'`{value}`' for value in values)}. " if len(values) > 1 else ""


def field_docstrings(settings: type) -> dict[str, str]:
    """The text under each field of a dataclass and of its bases; those of the class itself win."""
    texts: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, below in zip(body.body, body.body[1:], strict=False):
            if (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
                    and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                    and isinstance(below.value.value, str)):
                texts[statement.target.id] = inspect.cleandoc(below.value.value)
    return texts


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _pages() -> list[tuple[str, str, str]]:
    """Every page with a generated section: its path below docs/, the section's heading, and the section."""
    pages = [(f"methods/{spec.name}.md", HEADING, reference(spec)) for spec in METHODS.values()]
    return [*pages, ("privacy.md", PRIVACY_HEADING, privacy())]


def main() -> None:
    """Writes or checks."""
    stale = []
    for name, heading, section in _pages():
        page = DOCS / name
        if not page.exists():
            sys.exit(f"docs/{name} is missing. Write what the method does, end the page with the line "
                     f"'{heading.strip()}', and run: make docs")
        text = page.read_text(encoding="utf-8")
        fresh = text.partition(heading)[0] + section
        if fresh != text:
            stale.append(name)
            if sys.argv[1:] != ["--check"]:
                page.write_text(fresh, encoding="utf-8")
    if sys.argv[1:] == ["--check"]:
        if stale:
            sys.exit(f"docs/ does not describe the methods as they are: {', '.join(stale)}. Run: make docs")
        print("docs/methods/ and docs/privacy.md are current")


if __name__ == "__main__":
    main()
