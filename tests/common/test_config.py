"""What a person or a peer has written becomes a dataclass, or is refused by the name of what is wrong in it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from semisilo.common.config import canonical_json, from_dict, load_toml, parse_duration, tables_from_dict, to_dict
from semisilo.common.errors import BadConfiguration, SystemTrouble
from tests.each_of import each_of


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    low: float
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low = {self.low}: is above high.")


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    count: int = 3
    flag: bool = False
    mode: Literal["mean", "sum"] = "mean"
    sizes: tuple[int, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    inner: Inner | None = None
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    path: Path = Path()
    colour: Colour = Colour.RED
    anything: object = None


FULL = {"name": "n", "count": 4, "flag": True, "mode": "sum", "sizes": [1, 2], "pair": ["b", 2],
        "inner": {"low": 0, "high": 2}, "by_name": {"x": {"low": 0.5}}, "path": "a/b", "colour": "red",
        "anything": [1, {"y": None}]}


def test_a_table_becomes_its_dataclass_and_goes_back_to_plain_types() -> None:
    made = from_dict(Outer, FULL)
    assert made == Outer(name="n", count=4, flag=True, mode="sum", sizes=(1, 2), pair=("b", 2), inner=Inner(0.0, 2.0),
                         by_name={"x": Inner(0.5)}, path=Path("a/b"), colour=Colour.RED, anything=[1, {"y": None}])
    assert type(made.inner.low if made.inner else 0) is float, "a whole number is a number too"
    assert from_dict(Outer, {"name": "n"}) == Outer("n")
    back = to_dict(made)
    assert back == {**FULL, "inner": {"low": 0.0, "high": 2.0}, "by_name": {"x": {"low": 0.5, "high": 1.0}}}
    assert from_dict(Outer, json.loads(json.dumps(back))) == made


@each_of(("change", "text", "remedy"), [
    ({"nmae": "x"}, "unknown key 'nmae'", "Did you mean 'name'?"),
    ({"zzzzzz": 1}, "unknown key 'zzzzzz'", "Known keys: anything, by_name, colour"),
    ({"count": True}, "count: expected a whole number, found true", ""),
    ({"count": 1.5}, "count: expected a whole number, found 1.5", ""),
    ({"flag": 1}, "flag: expected true or false, found 1", ""),
    ({"mode": "meen"}, "mode: the text 'meen' is not one of the choices", "Did you mean 'mean'?"),
    ({"mode": 7}, "mode: 7 is not one of the choices", "Choose one of: mean, sum."),
    ({"sizes": 3}, "sizes: expected a list, found 3", ""),
    ({"sizes": [1, "2"]}, "sizes[1]: expected a whole number, found the text '2'", ""),
    ({"pair": ["a"]}, "pair: expected 2 values, found 1", ""),
    ({"inner": {"low": "0"}}, "inner low: expected a number, found the text '0'", ""),
    ({"inner": {"high": 1.0}}, "inner: 'low' is missing", ""),
    ({"inner": {"low": 3}}, "inner: low = 3.0: is above high.", ""),
    ({"by_name": {"x": 1}}, "by_name.x: expected a table, found 1", ""),
    ({"by_name": []}, "by_name: expected a table, found a list", ""),
    ({"path": 1}, "path: expected a path in quotes, found 1", ""),
    ({"colour": "blue"}, "colour: the text 'blue' is not one of the choices", "Choose one of: red."),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else None)
def test_what_does_not_fit_is_refused_with_its_place(change: dict[str, Any], text: str, remedy: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        from_dict(Outer, {"name": "n", **change}, where="f.toml: [t]")
    assert caught.value.text.startswith("f.toml: [t]")
    assert text in caught.value.text
    assert caught.value.remedy.startswith(remedy)


@each_of(("key", "remedy"), [
    ("count", "It belongs in [outer]."), ("high", "It belongs in [inner] or [outer] inner."),
    ("other_name", "Known keys: low.")])
def test_a_key_of_another_table_is_told_where_it_belongs(key: str, remedy: str) -> None:
    @dataclass
    class Low:
        low: int = 0

    with pytest.raises(BadConfiguration, match=f"unknown key '{key}'") as caught:
        from_dict(Low, {key: 1}, others={"inner": Inner, "outer": Outer, "low": Low})
    assert caught.value.remedy == remedy


def test_the_tables_of_a_file_are_built_by_name_and_know_each_other() -> None:
    @dataclass
    class Low:
        low: int = 0
        deep: int = 0

    @dataclass
    class File:
        one: Inner = field(default_factory=lambda: Inner(0.0))
        two: Low = field(default_factory=Low)
        names: dict[str, str] = field(default_factory=dict)

    File.__annotations__.update(one=Inner, two=Low, names=dict[str, str])
    assert tables_from_dict(File, {"two": {"deep": 1}, "names": {}}, where="f.toml") == {"two": Low(deep=1)}
    with pytest.raises(BadConfiguration, match=r"f\.toml: \[one\]: unknown key 'deep'") as caught:
        tables_from_dict(File, {"one": {"deep": 1}}, where="f.toml")
    assert caught.value.remedy == "It belongs in [two]."


def test_what_is_no_table_and_what_misses_a_key_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="expected a table, found a list"):
        from_dict(Outer, [])
    with pytest.raises(BadConfiguration, match="'name' is missing"):
        from_dict(Outer, {})


def test_a_stranger_s_long_text_stays_one_readable_line() -> None:
    with pytest.raises(BadConfiguration) as caught:
        from_dict(Outer, {"name": "n", "x" * 10_000: 1})
    assert len(caught.value.text) < 300
    with pytest.raises(BadConfiguration) as caught:
        from_dict(Outer, {"name": "n", "mode": "y" * 10_000})
    assert len(caught.value.text) < 300


def test_equal_values_have_one_canonical_text() -> None:
    assert canonical_json({"b": (1, 2), "a": Path("ä")}) == '{"a":"ä","b":[1,2]}'
    assert canonical_json(Inner(0.5)) == canonical_json({"high": 1.0, "low": 0.5}) == '{"high":1.0,"low":0.5}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@each_of(("text", "seconds"), [
    ("250ms", 0.25), ("30s", 30), ("5m", 300), ("1.5h", 5400), (" 2 d ", 172_800), (7, 7), (0.5, 0.5)])
def test_a_duration_is_read_in_every_unit(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@each_of("text", ["", "5", "5 weeks", "-3s", "1h30m", "s", True, None])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(BadConfiguration, match=r"deadline: .* is not a duration"):
        parse_duration(text, where="deadline")


def test_a_toml_file_is_read_or_refused_by_name_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(BadConfiguration, match=r"a\.toml: no such file"):
        load_toml(path)
    path.write_text("[t]\nx = 1\n", encoding="utf-8")
    assert load_toml(path) == {"t": {"x": 1}}
    path.write_text("[t]\nx = \n", encoding="utf-8")
    with pytest.raises(BadConfiguration, match=r"not valid TOML: .*line 2") as caught:
        load_toml(path)
    assert "text in double quotes" in caught.value.remedy
    path.write_bytes(b"x = '\xff'")
    with pytest.raises(BadConfiguration, match="cannot be read"):
        load_toml(path)


@pytest.mark.parametrize(("number", "kind"), [
    (errno.EIO, SystemTrouble), (errno.ESTALE, SystemTrouble), (errno.ENOTCONN, SystemTrouble),
    (errno.ETIMEDOUT, SystemTrouble), (errno.EMFILE, SystemTrouble),
    (errno.EACCES, SystemTrouble), (errno.EPERM, SystemTrouble), (errno.EISDIR, BadConfiguration)])
def test_a_toml_file_whose_disk_fails_is_no_mistake_in_it(tmp_path: Path, number: int, kind: type[Exception],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that ends with a usage error is not started again."""
    def fails(path: Path, **options: object) -> str:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_text", fails)
    with pytest.raises(kind, match=f"a.toml: .*{os.strerror(number)}"):
        load_toml(tmp_path / "a.toml")


def test_a_toml_file_of_a_windows_editor_is_read_or_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[t]\nx = "ü"\n', encoding="utf-8-sig")
    assert load_toml(path) == {"t": {"x": "ü"}}
    path.write_text('[t]\nx = "ü"\n', encoding="cp1252")
    with pytest.raises(BadConfiguration, match=r"a\.toml: cannot be read: it is not UTF-8") as error:
        load_toml(path)
    assert error.value.remedy == "Save it as UTF-8."
