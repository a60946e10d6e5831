"""Files that build networks: known by their bytes, and run only where these bytes are permitted."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.errors import BadConfiguration, NotPermitted
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model
from semisilo.common.models.own.model_file import ModelFile, file_of, load_file, names_file, read_file, with_digest
from tests.each_of import each_of

SOURCE = """
import sys
from torch import nn
sys.ran_model_file = getattr(sys, "ran_model_file", 0) + 1

def build(num_classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_net.py").write_text(f"# {tmp_path}\n{SOURCE}")  # other bytes for every test: modules are kept
    monkeypatch.setattr(sys, "ran_model_file", 0, raising=False)
    return tmp_path


def settings(folder: Path, name: str = "my_net.py:build") -> ModelSettings:
    return with_digest(ModelSettings(name=name, classes=("a", "b", "c")), folder)


def test_a_permitted_file_is_run_once_and_builds_the_network(folder: Path) -> None:
    model = settings(folder)
    assert model.factory_sha256 == hashlib.sha256((folder / "my_net.py").read_bytes()).hexdigest()
    for _ in range(2):
        built = build_model(model, channels=1, size=4, allow_factories=[ModelFile(folder, model.factory_sha256)])
        assert sum(parameter.numel() for parameter in built.parameters()) == 16 * 3 + 3
    assert sys.ran_model_file == 1  # type: ignore[attr-defined]


def test_a_silos_copy_may_have_another_name(folder: Path) -> None:
    model = settings(folder)
    (folder / "my_net.py").rename(folder / f"{model.factory_sha256}.py")
    assert read_file(ModelFile(folder, model.factory_sha256), name="my_net.py")[0].name == f"{model.factory_sha256}.py"


@pytest.mark.parametrize("permitted", ["nothing", "another digest", "its name"])
def test_a_file_whose_digest_is_not_permitted_is_not_run(folder: Path, permitted: str) -> None:
    model = settings(folder)
    listed = {"nothing": [], "another digest": [ModelFile(folder, "0" * 64)],
              "its name": ["my_net.py:build"]}[permitted]
    with pytest.raises(NotPermitted, match=model.factory_sha256) as caught:
        build_model(model, channels=1, size=4, allow_factories=listed)
    assert "silo permit-model FILE" in caught.value.remedy
    assert sys.ran_model_file == 0  # type: ignore[attr-defined]


def test_a_permitted_file_that_has_changed_since_is_not_run(folder: Path) -> None:
    model = settings(folder)
    with (folder / "my_net.py").open("a") as file:
        file.write("\n")
    with pytest.raises(NotPermitted, match="No file has the SHA-256"):
        build_model(model, channels=1, size=4, allow_factories=[ModelFile(folder, model.factory_sha256)])
    assert sys.ran_model_file == 0  # type: ignore[attr-defined]
    with pytest.raises(BadConfiguration, match=r"my_net\.py has the SHA-256"):
        with_digest(model, folder)


def test_a_name_without_a_digest_runs_nothing(folder: Path) -> None:
    plain = ModelSettings(name="my_net.py:build", classes=("a", "b"))
    with pytest.raises(BadConfiguration, match="without the digest"):
        build_model(plain, channels=1, size=4, allow_factories=["my_net.py:build", ModelFile(folder, "")])
    assert sys.ran_model_file == 0  # type: ignore[attr-defined]


def test_a_file_that_fails_while_it_is_read_is_tried_again_the_next_time(folder: Path) -> None:
    (folder / "broken.py").write_text(f"# {folder}\nraise RuntimeError('first line')\n")
    model = settings(folder, "broken.py:build")
    for _ in range(2):
        with pytest.raises(BadConfiguration, match="RuntimeError: first line"):
            build_model(model, channels=1, size=4, allow_factories=[ModelFile(folder, model.factory_sha256)])


@each_of(("name", "file"), [
    ("my_net.py:build", "my_net.py"), ("my-net.v2.py:build", "my-net.v2.py"), ("../my_net.py:build", ""),
    ("/etc/my_net.py:build", ""), ("nets/my_net.py:build", ""), (".py:build", ""), ("my_net.py:build()", ""),
    ("my_net:build", ""), ("my_net.py", ""), ("my_net.py:", "")])
def test_only_a_plain_file_name_names_a_file(name: str, file: str) -> None:
    assert (file_of(name), names_file(name)) == (file, bool(file))


def test_a_missing_or_enormous_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"my_net\.py: cannot be read"):
        settings(tmp_path)
    (tmp_path / "my_net.py").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(BadConfiguration, match="more than 1048576 bytes"):
        settings(tmp_path)
    with pytest.raises(NotPermitted):
        load_file(ModelFile(tmp_path, "0" * 64), name="my_net.py")


def test_a_network_without_a_file_says_nothing_of_one_so_that_its_digests_stay(folder: Path) -> None:
    plain, own = ModelSettings(name="small_cnn"), settings(folder)
    assert canonical_json(plain) == \
        '{"classes":[],"freeze":[],"name":"small_cnn","normalisation":"auto","weights":""}'
    assert to_dict(own)["factory_sha256"] == own.factory_sha256
    assert from_dict(ModelSettings, to_dict(own)) == own


@each_of("digest", ["0" * 63, "G" * 64, "A" * 64])
def test_a_digest_that_is_none_is_refused(digest: str) -> None:
    with pytest.raises(BadConfiguration, match="64 lower-case hex digits"):
        from_dict(ModelSettings, {"name": "my_net.py:build", "factory_sha256": digest})
