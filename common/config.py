"""Strict conversion between TOML or JSON and the owner's frozen dataclass.

A key that is unknown or misspelt is refused by name with the nearest valid key; a value of the wrong type is refused
with the place where it stands. The same function checks files that a person wrote and settings that came over the
network.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import tomllib
import types
import typing
from collections.abc import Hashable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from semisilo.common.errors import BadConfiguration
from semisilo.common.system_errors import explained, source_trouble

__all__ = ["ABSENT_AT_DEFAULT", "Tables", "canonical_json", "from_dict", "load_toml", "parse_duration",
           "tables_from_dict", "tables_of", "to_dict"]

T = TypeVar("T")

Tables = dict[str, Any]  # Any: whatever a person has written, before it is checked
"""A table of TOML or JSON as somebody has written it, and tables in it: of any type, until `from_dict` has checked
them."""

ABSENT_AT_DEFAULT: Mapping[str, bool] = types.MappingProxyType({"absent_at_default": True})
"""`metadata` of a dataclass's field that came later: `to_dict` leaves it out while it has its default, so that texts
and digests of what does not use it (tasks, study cards, model files) stay as they were, and a version that does not
know it refuses what does, by name."""

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$")
_PLAIN = frozenset({str, int, float, bool})
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_LONGEST_SHOWN = 200
"""Characters of a value that an error shows."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str | int | float, *, where: str = "duration") -> float:
    """Seconds from "250ms", "30s", "5m", "2h", "1d" or a plain number of seconds.

    Raises: BadConfiguration when the text is none of these.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    match = _DURATION.match(text) if isinstance(text, str) else None
    if match is None:
        raise BadConfiguration(f"{where}: {text!r} is not a duration.", remedy='Write for example "30s", "5m" or "2h".')
    return float(match[1]) * _SECONDS[match[2]]


def load_toml(path: Path) -> Tables:
    """The tables of a TOML file.

    Raises: BadConfiguration, naming the line, when it is missing, no file or not TOML; SystemTrouble when this user may
        not read it, its disk fails or is away, or the system is short of files or memory.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a mark first
    except FileNotFoundError:
        raise BadConfiguration(f"{path}: no such file.") from None
    except OSError as error:
        # A right is missing where a folder was put back as root: whoever gives it must not start the service as well.
        trouble = explained(error, path) if isinstance(error, PermissionError) else source_trouble(error, path)
        if trouble is not None:
            raise trouble from None
        raise BadConfiguration(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise BadConfiguration(f"{path}: cannot be read: it is not UTF-8.", remedy="Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise BadConfiguration(f"{path}: not valid TOML: {error}.", remedy="Fix that line: text in double quotes;"
                               " true or false in small letters.") from None


def to_dict(value: Any) -> Any:
    """Plain JSON types from a dataclass (recursively); tuples become lists, paths and enums text, bytes hex.

    Fields that are `ABSENT_AT_DEFAULT` are left out while they have their default.
    """
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value  # most values, before anything that takes time
    if kind is dict:
        return {str(key): item if type(item) in _PLAIN else to_dict(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [item if type(item) in _PLAIN else to_dict(item) for item in value]
    if (names := _names(typing.cast(Hashable, kind))) is not None:
        later = _later(typing.cast(Hashable, kind))
        found = {}
        for name in names:
            item = getattr(value, name)
            if name not in later or item != later[name]:
                found[name] = item if type(item) in _PLAIN else to_dict(item)
        return found
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return value


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text on every machine."""
    return _CANONICAL.encode(to_dict(value))


def from_dict(cls: type[T], data: Any, *, where: str = "", others: Mapping[str, type] | None = None) -> T:
    """Builds the dataclass `cls` from plain JSON or TOML types.

    Args:
        cls: a dataclass; its fields may be dataclasses, enums, Literal, tuple[X, ...], dict[str, X],
            Mapping[str, X], Path, bytes (as hex text), X | None.
        data: a mapping with at most the fields of `cls`; those without a default must be there.
        where: where the mapping stands, for the error, for example "studies/first/study.toml: [method]".
        others: the dataclasses of other tables of the same file, by name: a key of theirs is told where it belongs.
    Raises: BadConfiguration for an unknown or missing key, a wrong type, or what `__post_init__` refuses
        (a ValueError there becomes the text after the place).
    """
    if not isinstance(data, dict):
        raise BadConfiguration(f"{_at(where)}expected a table, found {_kind(data)}.")
    fields = _fields(typing.cast(Hashable, cls))
    for key in data if not data.keys() <= fields.keys() else ():
        if key not in fields:
            raise BadConfiguration(f"{_at(where)}unknown key {_short(repr(str(key)))}.",
                                   remedy=_place_of(str(key), others or {}) or _nearest(str(key), fields))
    values: dict[str, Any] = {}  # Any: arguments of a class that is known when this runs
    for name, field in fields.items():
        if name in data:
            item = data[name]
            values[name] = item if type(item) in field.plain else _convert(field.hint, item, f"{where} {name}".strip())
        elif field.needed:
            raise BadConfiguration(f"{_at(where)}'{name}' is missing.")
    try:
        return cls(**values)
    except ValueError as error:
        raise BadConfiguration(f"{_at(where)}{error}") from None


def tables_of(cls: type) -> dict[str, type]:
    """The fields of a dataclass that are dataclasses themselves, or may be, which a file has as tables, with these."""
    return {name: typing.cast(type, option) for name, field in _fields(cls).items()
            for option in _options_of(field.hint) if dataclasses.is_dataclass(option)}


def tables_from_dict(cls: type, data: Tables, *, where: str) -> dict[str, Any]:  # Any: a dataclass for each table
    """Those of a file's tables that are there, by name, each as `from_dict` builds it.

    Raises: BadConfiguration as `from_dict`, which names the table, and the one that a key belongs in.
    """
    kinds = tables_of(cls)
    return {name: from_dict(kind, data[name], where=f"{where}: [{name}]", others=kinds)
            for name, kind in kinds.items() if name in data}


def _nearest(key: str, fields: Mapping[str, _Field]) -> str:
    near = difflib.get_close_matches(key, fields, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(sorted(fields))}."


def _place_of(key: str, tables: Mapping[str, type]) -> str:
    """Says in which of these tables, or of the tables in them, a key is one; empty where in none."""
    found = []
    for name, cls in tables.items():
        found += [f"[{name}]"] * (key in _fields(cls))
        found += [f"[{name}] {inner}" for inner, kind in tables_of(cls).items() if key in _fields(kind)]
    return f"It belongs in {' or '.join(found)}." if found else ""


@functools.cache
def _names(cls: Hashable) -> tuple[str, ...] | None:
    """The names of a dataclass's fields; None for another class."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(field.name for field in dataclasses.fields(typing.cast(Any, cls)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """Of a dataclass, what `from_dict` looks at."""

    hint: Any
    needed: bool
    plain: frozenset[type]
    """Values of these types are taken as they are: most values, before anything that takes time."""


@functools.cache
def _later(cls: Hashable) -> Mapping[str, object]:
    """The fields of a dataclass that are left out at their default, with it."""
    return {field.name: field.default for field in dataclasses.fields(typing.cast(Any, cls))
            if field.metadata.get("absent_at_default")}


@functools.cache
def _fields(cls: Hashable) -> Mapping[str, _Field]:
    """The fields that a dataclass is built from; finding them out takes longer than everything else here."""
    hints = typing.get_type_hints(cls)
    return {field.name: _Field(hints[field.name], field.default is dataclasses.MISSING
                               and field.default_factory is dataclasses.MISSING, _taken_plainly(hints[field.name]))
            for field in dataclasses.fields(typing.cast(Any, cls)) if field.init}


def _taken_plainly(hint: Any) -> frozenset[type]:
    """The plain types whose values a hint takes as they are."""
    return frozenset(option for option in _options_of(hint) if option in _PLAIN or option is type(None))


def _options_of(hint: Any) -> tuple[Any, ...]:
    """Those of a union, or the hint itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


@functools.cache
def _shape(hint: Hashable) -> tuple[Any, tuple[Any, ...]]:
    """What a hint is of, and its arguments."""
    return typing.get_origin(hint), typing.get_args(hint)


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _kind(value: Any) -> str:
    names = {dict: "a table", list: "a list", str: f"the text {value!r}", bool: str(value).lower()}
    return _short(names.get(type(value), f"{value!r}"))


def _short(text: str) -> str:
    """What a stranger wrote, on a line that stays readable."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _convert(hint: Any, value: Any, where: str) -> Any:
    if hint is Any or hint is object or (type(value) is hint and hint in _PLAIN):
        return value  # most values, before anything that takes time
    origin, arguments = _shape(hint)
    if origin in (typing.Union, types.UnionType):
        if type(value) in arguments and (value is None or type(value) in _PLAIN):
            return value
        problems = []
        for option in arguments:
            if option is type(None):
                continue
            try:
                return _convert(option, value, where)
            except BadConfiguration as error:
                problems.append(error)
        raise problems[0]
    if origin is typing.Literal:
        arguments = hint.__args__  # in their own order: as keys of the cache, Literals of the same choices are equal
        if value in arguments and any(type(value) is type(option) for option in arguments):
            return value
        near = difflib.get_close_matches(str(value), [str(option) for option in arguments], n=1)
        hint_text = f"Did you mean '{near[0]}'?" if near else f"Choose one of: {', '.join(map(str, arguments))}."
        raise BadConfiguration(f"{_at(where)}{_kind(value)} is not one of the choices.", remedy=hint_text)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise BadConfiguration(f"{_at(where)}expected a list, found {_kind(value)}.")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            if arguments[0] in _PLAIN and all(type(item) is arguments[0] for item in value):
                return tuple(value)
            return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise BadConfiguration(f"{_at(where)}expected {len(arguments)} values, found {len(value)}.")
        pairs = enumerate(zip(arguments, value, strict=True))
        return tuple(_convert(argument, item, f"{where}[{i}]") for i, (argument, item) in pairs)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise BadConfiguration(f"{_at(where)}expected a table, found {_kind(value)}.")
        return {str(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, where=where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            options = ", ".join(str(option.value) for option in hint)
            raise BadConfiguration(f"{_at(where)}{_kind(value)} is not one of the choices.",
                                   remedy=f"Choose one of: {options}.") from None
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is bytes and isinstance(value, str):
        return _bytes(value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # whole numbers of JSON and TOML have no end
            raise BadConfiguration(f"{_at(where)}{_kind(value)} is too large for a number.") from None
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    wanted = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false",
              Path: "a path in quotes"}.get(hint, str(hint))
    raise BadConfiguration(f"{_at(where)}expected {wanted}, found {_kind(value)}.")


def _bytes(text: str, where: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = None
    if value is None or value.hex() != text:  # fromhex also takes capitals and spaces: one value, one text
        raise BadConfiguration(f"{_at(where)}{_kind(text)} is not an even number of lower-case hex digits.")
    return value
