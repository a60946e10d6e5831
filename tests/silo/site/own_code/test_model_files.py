"""Permitting a file: it is looked at without being run, and silo.toml changes by one line."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.own_code.model_files import look_at, permit_file
from semisilo.silo.site.policy import load_policy, policy_text

SOURCE = ("import os\nfrom torch.nn import functional\n\ndef build(**_): ...\n\nclass Net: ...\n\ndef _own(): ...\n"
          "os.abort()\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_net.py"
    path.write_text(SOURCE)
    return path


def test_a_person_sees_what_is_in_the_file_and_nothing_of_it_runs(file: Path) -> None:
    found = look_at(file)
    assert (found.factories, found.imports, found.lines) == (("build", "Net"), ("os", "torch"), 9)
    assert found.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()


@pytest.mark.parametrize(("name", "content", "says"), [
    ("net.py", b"def (", "is not Python"), ("net.txt", b"x = 1", "neither a Python file"),
    ("net.py", b"#" * (2**20 + 1), "more than 1048576"), ("net.py", b"\0", "is not Python"),
    ("", b"", "cannot be read")])
def test_what_cannot_be_such_a_file_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    if name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=says):
        look_at(tmp_path / (name or "missing.py"))


def test_a_configuration_of_transformers_is_permitted_likewise(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["ViTForImageClassification"],\n"model_type": "vit"}')
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    found = look_at(path)
    assert (found.factories, found.lines) == (("ViTForImageClassification",), 2)
    assert permit_file(home, found)
    assert (home.model_files / f"{found.sha256}.json").read_bytes() == path.read_bytes()
    path.write_text("[1]")
    with pytest.raises(UsageError, match="not a configuration"):
        look_at(path)


OTHERS = "\n[limits]\nmax_upload_bytes = 5 # of this site\n"


@pytest.mark.parametrize("text", [
    policy_text(), "", OTHERS, "[permit]\nsite_evaluation = true\n" + OTHERS,
    OTHERS + "[permit] # what may run\nmodel_files = []\n",
    f'[permit]\nmodel_files = [\n  "{"a" * 64}", # another\n]\nsite_evaluation = true\n' + OTHERS])
def test_one_line_of_silo_toml_changes_whatever_else_it_holds(tmp_path: Path, file: Path, text: str) -> None:
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    home.policy.write_text(text)
    before, tables = load_policy(home.policy), tomllib.loads(text)
    found = look_at(file)
    assert permit_file(home, found)
    after = load_policy(home.policy)
    assert after.permit.model_files == (*before.permit.model_files, found.sha256)
    changed = tomllib.loads(home.policy.read_text())
    changed["permit"].pop("model_files")
    tables.setdefault("permit", {}).pop("model_files", None)
    assert changed == tables
    assert ("# of this site" in text) == ("# of this site" in home.policy.read_text())
    assert (home.model_files / f"{found.sha256}.py").read_text() == SOURCE
    assert home.model_files.stat().st_mode & 0o077 == 0
    assert not permit_file(home, found), "once is enough"


def test_a_silo_toml_that_cannot_be_edited_stays_as_it_is_with_the_line_to_write(tmp_path: Path, file: Path) -> None:
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    text = 'permit = { site_evaluation = true }\n'
    home.policy.write_text(text)
    with pytest.raises(BadConfiguration, match="without a person") as caught:
        permit_file(home, look_at(file))
    assert f'model_files = ["{look_at(file).sha256}"]' in caught.value.remedy
    assert home.policy.read_text() == text
