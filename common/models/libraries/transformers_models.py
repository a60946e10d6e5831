"""Image classifiers of Hugging Face Transformers, from the config.json of a local folder; never from a hub.

A study names the folder, "transformers/vit-tiny": config.json lies in `vit-tiny` beside the study file, and weights,
where there are any, are named by [model] weights as for every other network. A configuration that asks for code of its
own is refused.

Tests: tests/common/models/libraries/test_transformers_models.py.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Hashable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from torch import Tensor, nn

from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.text.installing import how_to_install

__all__ = ["TRANSFORMERS_PREFIX", "build_transformers_model", "read_transformers_weights"]

TRANSFORMERS_PREFIX = "transformers/"
"""Begins the names of Transformers' networks."""

_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")
_OF_THE_STUDY = ("id2label", "label2id", "num_labels", "num_channels", "image_size")


def build_transformers_model(config: bytes, *, num_classes: int, channels: int, size: int) -> nn.Module:
    """The network with random weights, for the study's classes, channels and size; it answers with logits (B, K), and
    its tensors are called as Transformers calls them.

    Args:
        config: the content of config.json.
    Raises: BadConfiguration for one that is none, that no image classifier fits, or that brings code; whatever
        Transformers raises where the size does not fit.
    """
    transformers = _transformers()
    read = _checked(transformers, config)
    kept = {key: value for key, value in read.items() if key not in (*_OF_THE_STUDY, "model_type")}
    made = transformers.AutoConfig.for_model(read["model_type"], **kept, num_labels=num_classes, num_channels=channels,
                                             image_size=size)
    # One implementation of attention on every machine: others round otherwise.
    model = transformers.AutoModelForImageClassification.from_config(made, attn_implementation="eager")
    model.__class__ = _answering_with_logits(cast(Hashable, type(model)))
    answered: nn.Module = model
    return answered


def read_transformers_weights(path: Path, config: bytes) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, by the names of the network: a file that was written by another version of
    Transformers may call them otherwise.

    Args:
        config: the content of the config.json that they were saved with.
    Raises: BadData when Transformers cannot read them; what `build_transformers_model` raises.
    """
    transformers = _transformers()
    _checked(transformers, config)
    if path.suffix.lower() != ".safetensors":
        raise BadData(f"{path}: weights of Transformers are read from safetensors alone.",
                      remedy="Write them with save_pretrained(folder).")
    with TemporaryDirectory(prefix="semisilo-") as folder:  # as Transformers wants to find them
        (Path(folder) / "config.json").write_bytes(config)
        (Path(folder) / "model.safetensors").symlink_to(path.absolute())
        try:
            model = transformers.AutoModelForImageClassification.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False)
        except Exception as error:  # whatever Transformers raises
            lines = str(error).strip().splitlines()
            raise BadData(f"{path}: Transformers cannot read it: {lines[0] if lines else type(error).__name__}",
                          remedy="Write it again with save_pretrained, and name its own config.json.") from error
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _checked(transformers: Any, config: bytes) -> dict[str, Any]:  # the keys are those of each network
    """A configuration that an image classifier can be made from. Raises: BadConfiguration."""
    try:
        read = json.loads(config)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or not isinstance(read.get("model_type"), str):
        raise BadConfiguration("config.json is not a configuration of Transformers: it has no model_type.",
                               remedy="Take the file of the model's folder as it is.")
    if asked := [key for key in _CODE if key in read]:
        raise BadConfiguration(f"config.json asks for code of its own ({asked[0]}), which is not run.",
                               remedy="Take a model that Transformers itself has, or write a file: [model] factory =" +
                                      ' "my_net.py:build".')
    kind = read["model_type"]
    if kind not in transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        raise BadConfiguration(f"config.json: Transformers has no image classifier for '{kind[:60]}'.",
                               remedy="Take the configuration of a model such as vit, swin, convnext or resnet.")
    return read


@functools.cache
def _answering_with_logits(cls: Any) -> Any:
    """The class with an answer of logits alone. A wrapper around it would change the names of its tensors."""
    def forward(self: Any, images_BCHW: Tensor) -> Tensor:
        found: Tensor = cls.forward(self, pixel_values=images_BCHW).logits
        return found

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported: nothing is fetched
    os.environ.setdefault("DISABLE_TELEMETRY", "1")
    try:
        import transformers
    except ImportError:
        raise BadConfiguration("Networks of Transformers need the package transformers, which is not installed here.",
                               remedy=how_to_install("semisilo[transformers]")) from None
    transformers.utils.logging.disable_progress_bar()
    return transformers
