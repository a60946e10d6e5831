"""Files that build networks, as this site permits them: a copy in its folder, and the file's digest in silo.toml.

Nothing here runs such a file. `silo permit-model` calls this; the same can be done by hand.

Tests: tests/silo/site/own_code/test_model_files.py.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from semisilo.common.config import to_dict
from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.common.models.own.model_file import MAX_FILE_BYTES
from semisilo.common.storage.durable import write_durably
from semisilo.common.text.logs import printable
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import load_policy

__all__ = ["LookedAt", "look_at", "permit_file"]

_TABLE = re.compile(r"^[ \t]*\[permit\][ \t]*(#.*)?$", re.MULTILINE)
_NEXT_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_LINE = re.compile(r"^[ \t]*model_files[ \t]*=[ \t]*\[(?P<listed>[^\]]*)\]", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LookedAt:
    """What a person should see of a file before it is permitted; found without running it."""

    path: Path
    sha256: str
    content: bytes
    lines: int
    factories: tuple[str, ...]
    """Its functions and classes at the top, which a study may name."""
    imports: tuple[str, ...]
    """The packages that it names, wherever it imports them."""


def look_at(path: Path) -> LookedAt:
    """Reads a file. Raises: UsageError when there is none, or it is neither Python nor a configuration in JSON."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.",
                         remedy="Name the file that the coordinator's operator has given you.") from None
    if path.suffix not in (".py", ".json"):
        raise UsageError(f"{path}: is neither a Python file nor a configuration.",
                         remedy='Its name must end in ".py", or in ".json" for a configuration of Transformers.')
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: has more than {MAX_FILE_BYTES} bytes.",
                         remedy="Ask for the file of the network alone.")
    sha256 = hashlib.sha256(content).hexdigest()
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if path.suffix == ".json":
        try:
            read = json.loads(content)
        except (ValueError, RecursionError, MemoryError):
            read = None
        if not isinstance(read, dict):
            raise UsageError(f"{path}: is not a configuration: it holds no JSON object.",
                             remedy="Ask for the file again.")
        named = read.get("architectures")
        made = [each for each in (named if isinstance(named, list) else [read.get("model_type", "")])[:5]
                if isinstance(each, str)]
        return LookedAt(path=path, sha256=sha256, content=content, lines=lines, imports=(),
                        factories=tuple(printable(each, limit=80) for each in made if each))
    try:
        tree = ast.parse(content, str(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: is not Python: {error}.", remedy="Ask for the file again.") from None
    except (RecursionError, MemoryError):  # what Python's parser says to brackets within brackets
        raise UsageError(f"{path}: cannot be looked at: it is nested too deeply, as no network is.",
                         remedy="Ask for the file again, and read it.") from None
    imports = {name.partition(".")[0] for node in ast.walk(tree) for name in (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else
        [node.module or "."] if isinstance(node, ast.ImportFrom) else [])}
    return LookedAt(path=path, sha256=sha256, content=content, lines=lines,
                    factories=tuple(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
                                    and not node.name.startswith("_")), imports=tuple(sorted(imports)))


def permit_file(home: SiloHome, file: LookedAt) -> bool:
    """Copies a file into this silo's folder and lists its digest in silo.toml; everything else there stays as it is.

    Returns: False when it was permitted already.
    Raises: BadConfiguration when silo.toml is wrong already, or cannot be changed without a person.
    """
    before = load_policy(home.policy)
    home.model_files.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_durably(home.model_files / f"{file.sha256}{file.path.suffix}", file.content)
    if file.sha256 in before.permit.model_files:
        return False
    text = home.policy.read_text(encoding="utf-8") if home.policy.exists() else ""
    listed = (*before.permit.model_files, file.sha256)
    changed = home.policy.with_name(f".{home.policy.name}.new")
    changed.write_text(_with_line(text, listed), encoding="utf-8")
    try:
        after = load_policy(changed)
        same = to_dict(replace(after, permit=replace(after.permit, model_files=()))) == \
            to_dict(replace(before, permit=replace(before.permit, model_files=())))
    except BadConfiguration:
        same = False
    finally:
        content = changed.read_bytes()
        changed.unlink()
    if not same or after.permit.model_files != listed:
        raise BadConfiguration(f"{home.policy}: the digest cannot be written into this file without a person.",
                               remedy=f"Write into [permit]: model_files = {_toml(listed)}")
    write_durably(home.policy, content)
    return True


def _with_line(text: str, listed: tuple[str, ...]) -> str:
    """The text of silo.toml with the list in table [permit], in the place of the one that is there."""
    table = _TABLE.search(text)
    if table is None:
        return f"{text.rstrip()}\n\n[permit]\nmodel_files = {_toml(listed)}\n".lstrip()
    following = _NEXT_TABLE.search(text, table.end())
    end = len(text) if following is None else following.start()
    line = _LINE.search(text, table.end(), end)
    if line is None:
        return f"{text[:table.end()]}\nmodel_files = {_toml(listed)}{text[table.end():]}"
    return f"{text[:line.start()]}model_files = {_toml(listed)}{text[line.end():]}"


def _toml(listed: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{each}"' for each in listed) + "]"
