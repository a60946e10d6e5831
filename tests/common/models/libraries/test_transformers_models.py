"""Networks of Transformers from a local config.json: for the study's images, with the names of their own weights."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, NotPermitted
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model, check_model, model_builder
from semisilo.common.models.own.model_file import ModelFile, code_of, file_of, with_digest
from semisilo.common.models.starting_point import starting_point

installed = pytest.mark.skipif(find_spec("transformers") is None, reason="the extra transformers is not installed")
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 16, "num_hidden_layers": 1,
       "num_attention_heads": 2, "intermediate_size": 32, "image_size": 224, "patch_size": 4, "num_channels": 3,
       "id2label": {"0": "cat", "1": "dog"}}
FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
CLASSES = ("a", "b", "c")


def settings(folder: Path, config: dict[str, Any] | None = None, **keys: Any) -> ModelSettings:
    (folder / "vit-tiny").mkdir(exist_ok=True)
    (folder / "vit-tiny" / "config.json").write_text(json.dumps(VIT if config is None else config))
    return with_digest(ModelSettings(name="transformers/vit-tiny", classes=CLASSES, **keys), folder)


@installed
@pytest.mark.slow  # Transformers is imported; quickly: what needs no import, below
def test_a_tiny_vision_transformer_is_built_for_the_study_and_starts_with_its_own_weights(tmp_path: Path) -> None:
    import transformers

    own = {**VIT, "image_size": 8, "num_channels": 1}
    model = settings(tmp_path, own, weights="vit-tiny/model.safetensors")
    code = code_of(model, tmp_path)
    assert check_model(model_builder(model, FORM, code), FORM, 3) > 1000
    config = transformers.ViTConfig(**{**own, "id2label": {0: "x", 1: "y"}})
    saved = transformers.ViTForImageClassification(config)
    saved.save_pretrained(tmp_path / "trained")
    start = starting_point(model, FORM, seed=1, weights=tmp_path / "trained" / "model.safetensors",
                           allow_factories=code)
    built = start.builder()
    names, before = dict(built.named_parameters()), dict(saved.named_parameters())
    same = [name for name in names if name in before and not name.startswith("classifier")]
    assert len(same) == len(names) - 2
    assert all(torch.equal(names[name], before[name]) for name in same)
    assert any(name.startswith("classifier") for name in start.left_random), "two classes there, three here"
    logits = built(torch.zeros(2, 1, 8, 8))
    assert tuple(logits.shape) == (2, 3)


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("config", "says"), [
    ({**VIT, "auto_map": {"AutoModel": "x--y.Z"}}, "asks for code of its own"),
    ({"model_type": "bert"}, "no image classifier"), ({"hidden_size": 3}, "has no model_type")])
def test_what_is_no_configuration_of_an_image_classifier_is_refused(tmp_path: Path, config: dict[str, Any],
                                                                    says: str) -> None:
    model = settings(tmp_path, config)
    with pytest.raises(BadConfiguration, match=says) as caught:
        build_model(model, channels=1, size=8, allow_factories=code_of(model, tmp_path))
    assert "\n" not in caught.value.line()


def test_a_configuration_is_permitted_by_its_digest_like_any_other_file(tmp_path: Path) -> None:
    model = settings(tmp_path)
    assert file_of(model.name) == "vit-tiny/config.json"
    for allowed in ((), (model.name,), (ModelFile(tmp_path, "0" * 64),)):
        with pytest.raises(NotPermitted, match=model.factory_sha256):
            build_model(model, channels=1, size=8, allow_factories=allowed)


def test_without_the_package_the_remedy_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    model = settings(tmp_path)
    with pytest.raises(BadConfiguration, match="not installed here") as caught:
        build_model(model, channels=1, size=8, allow_factories=code_of(model, tmp_path))
    assert "semisilo[transformers]" in caught.value.remedy
