"""Files that build networks: known by their bytes, and run only where these bytes are permitted."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
import torch

from semisilo.common.config import canonical_json, from_dict, to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, NotPermitted
from semisilo.common.learning.tensors import digest
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model, check_answers, check_model, initial_model, model_builder
from semisilo.common.models.own.model_file import ModelFile, file_of, load_file, names_file, read_file, with_digest
from semisilo.common.numerics import numerics
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


SETS = """torch.manual_seed(5)
torch.set_num_threads(2)
torch.use_deterministic_algorithms(False)
torch.backends.cudnn.benchmark = True
torch.set_grad_enabled(False)
"""


@pytest.mark.parametrize("where", ["where it is read", "where it builds"])
def test_what_a_file_sets_in_torch_ends_with_it_so_that_a_restart_gives_the_same_bits(folder: Path, where: str) -> None:
    """It is read once in a process: its threads and its seed held for the first network of a process alone."""
    text = f"import torch\n{SETS}{SOURCE}" if where == "where it is read" else "import torch" + SOURCE.replace(
        "    return", "".join(f"    {line}\n" for line in SETS.splitlines()) + "    return")
    (folder / "my_net.py").write_text(f"# {folder}\n{text}")
    model = settings(folder)
    build = model_builder(model, ImageForm(size=4, channels=1, mean=(0.5,), std=(0.5,)),
                          [ModelFile(folder, model.factory_sha256)])
    before = numerics.record(), torch.backends.cudnn.benchmark
    try:
        first = digest(initial_model(build, 1))
        assert (numerics.record(), torch.backends.cudnn.benchmark) == before
        assert torch.is_grad_enabled()
        assert digest(initial_model(build, 1)) == first
    finally:
        torch.set_grad_enabled(True)


NET = "nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, num_classes))"
ARGUMENTS = "num_classes, channels, size"
CLASS = f"""
class build(nn.Module):
    def __init__(self, {ARGUMENTS}):
        super().__init__()
        self.layers = {NET}
"""


@pytest.mark.parametrize(("source", "says", "remedy"), [
    (f"def made({ARGUMENTS}):\n    return {NET}\n", "my_net.py has no 'build'", '"my_net.py:made"'),
    ("import beside_it\n", "ModuleNotFoundError: No module named 'beside_it'", "a file cannot import other files"),
    (f"def build({ARGUMENTS}):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))\n",
     r"'1\.weight' has no shape yet", "Linear for LazyLinear"),
    (f"{CLASS}\n    def train(self, mode=True):\n        super().train(mode)\n"
     "    def forward(self, images):\n        return self.layers(images)\n",
     r"train\(\) returns NoneType", "return self"),
    (f"{CLASS}\n    def eval(self):\n        super().eval()\n"
     "    def forward(self, images):\n        return self.layers(images)\n",
     r"eval\(\) returns NoneType", "return self"),
    (f"{CLASS}\n    def forward(self, images):\n        return self.layers(images).detach()\n",
     "no gradient would reach any of them", "no_grad"),
    (f"built = []\ndef build({ARGUMENTS}):\n    built.append(8 + len(built))\n    return nn.Sequential(nn.Flatten(),"
     " nn.Linear(channels * size * size, built[-1]), nn.Linear(built[-1], num_classes))\n",
     "another one each time that it is built: its parameter '1.weight'", "num_classes, channels and size alone")])
def test_a_mistake_in_a_network_of_ones_own_is_one_line_that_says_how_to_mend_it(
        folder: Path, source: str, says: str, remedy: str) -> None:
    """Before a study starts, and no traceback; one that nothing reaches was trained for nothing, without a word."""
    (folder / "my_net.py").write_text(f"# {folder}\nfrom torch import nn\n{source}")
    model, form = settings(folder), ImageForm(size=4, channels=1, mean=(0.5,), std=(0.5,))
    build = model_builder(model, form, [ModelFile(folder, model.factory_sha256)])

    def checked() -> None:
        check_model(build, form, 3)
        check_answers(build, form, 3)

    with pytest.raises(BadConfiguration, match=says) as caught:
        checked()
    assert remedy in caught.value.remedy


def test_lazy_layers_that_have_seen_a_batch_are_layers_like_others(folder: Path) -> None:
    (folder / "my_net.py").write_text(f"# {folder}\nimport torch\nfrom torch import nn\ndef build({ARGUMENTS}):\n"
                                      "    made = nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))\n"
                                      "    made(torch.zeros(1, channels, size, size))\n    return made\n")
    model, form = settings(folder), ImageForm(size=4, channels=1, mean=(0.5,), std=(0.5,))
    build = model_builder(model, form, [ModelFile(folder, model.factory_sha256)])
    assert check_model(build, form, 3) == 16 * 3 + 3
    check_answers(build, form, 3)
