"""Writes what `docs/methods.md` and `docs/privacy.md` say of each method from its spec; `--check`: is it current?

Everything stands in `common/methods/`: the first paragraphs of a method's module, its `MethodSpec`, and the docstring
under each field of its settings. So the page cannot say what the program does not.
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


def reference() -> str:
    """The section from its heading to the end of the page: one part for every method of the table."""
    parts = [HEADING, "\nWritten by `make docs` from `common/methods/`.\n"]
    parts += [_part(spec) for spec in METHODS.values()]
    return "".join(parts)


def _part(spec: MethodSpec) -> str:
    module = inspect.getmodule(spec.settings)
    about = inspect.cleandoc((module.__doc__ if module is not None else "") or "").partition("\n\nTests: ")[0]
    facts = [("Source", spec.source), ("Scenarios", ", ".join(f"`{name}`" for name in spec.scenarios)),
             ("Labels of an image", "one, or several and none" if "multi_label" in spec.tasks else "one"),
             ("A silo receives", _groups(spec.down)), ("A silo sends", _groups(spec.up)),
             ("Numbers that a silo sends", ", ".join(f"`{name}`" for name in spec.metrics) or "none"),
             ("Discloses", spec.discloses)]
    lines = [f"\n### {spec.name}\n\n{about}\n\n| | |\n|---|---|\n"]
    lines += [f"| {name} | {_cell(text)} |\n" for name, text in facts]
    lines.append("\n| setting | default | meaning |\n|---|---|---|\n")
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
        parts.append(f"\n### {spec.name}\n\n| | |\n|---|---|\n")
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


def main() -> None:
    """Writes or checks."""
    for name, heading, section in (("methods.md", HEADING, reference), ("privacy.md", PRIVACY_HEADING, privacy)):
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        fresh = text[:text.index(heading)] + section()
        if sys.argv[1:] != ["--check"]:
            page.write_text(fresh, encoding="utf-8")
        elif fresh != text:
            sys.exit(f"docs/{name} does not describe the methods as they are. Run: make docs")
        else:
            print(f"docs/{name} is current")


if __name__ == "__main__":
    main()
