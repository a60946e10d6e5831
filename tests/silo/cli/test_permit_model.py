"""`silo permit-model`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import load_policy
from tests.processes import run_command

MODULE = "semisilo.silo.cli.main"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_net.py"
    path.write_text("import torch\n\ndef build(num_classes, channels, size): ...\n")
    return path


class _Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "status", "says"), [
    ("y\n", 0, "Permitted"), ("n\n", 2, "Nothing was permitted"), (None, 2, "nobody can answer here")])
def test_a_person_is_shown_the_file_and_asked(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch,
                                              typed: str | None, status: int, says: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO() if typed is None else _Keyboard(typed))
    found, out, err = run_command(MODULE, "permit-model", str(file), "--home", str(tmp_path / "home"))
    assert found == status
    assert "makes     build" in out
    assert "imports   torch" in out
    assert says in out + err
    assert (tmp_path / "home").exists() == (status == 0)


def test_with_yes_it_is_permitted_and_once_is_enough(tmp_path: Path, file: Path) -> None:
    home = SiloHome(tmp_path / "home")
    words = ("permit-model", str(file), "--yes", "--home", str(home.folder))
    status, out, err = run_command(MODULE, *words)
    assert (status, err) == (0, "")
    assert f"Permitted: listed in {home.policy}. A running `silo join` must be started again." in out
    assert len(load_policy(home.policy).permit.model_files) == 1
    assert "permitted already" in run_command(MODULE, *words)[1]


def test_a_file_that_is_no_python_is_a_wrong_use(tmp_path: Path) -> None:
    status, _, err = run_command(MODULE, "permit-model", str(tmp_path / "net.bin"), "--yes", "--home", str(tmp_path))
    assert status == 2
    assert "net.bin: cannot be read" in err


@pytest.mark.parametrize(("name", "text"), [
    ("my_net.py", "x = " + "(" * 90_000), ("my_net.py", "x = " + "-" * 90_000 + "1"),
    ("my_net.py", "x = " + "[" * 90 + "]" * 90 + "\n" + "y = " + "a." * 50_000 + "b"),
    ("config.json", '{"a": ' + "[" * 90_000), ("config.json", '{"architectures": [' + "[" * 900 + "]" * 900 + "]}")])
def test_a_file_that_is_nested_deeply_ends_in_no_traceback(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    status, _, err = run_command(MODULE, "permit-model", str(tmp_path / name), "--yes", "--home",
                                 str(tmp_path / "home"))
    assert (status, "Traceback" in err) in ((0, False), (2, False))
    assert err.count("\n") <= 1
