"""A trained model as one safetensors file that says all that is needed to use it: network, classes, form of the images.

The tensors are all parameters and buffers of the network by their names, and "<layer>.mean", "<layer>.var" of static
batch-norm layers, so inference needs nothing else: no weights file, no study, no measuring. The metadata has one
entry, "semisilo", JSON of `ModelFacts`; several would have no fixed order, and equal models are to give equal bytes.

What was handed over by somebody is not trusted: sizes are compared before memory is taken, a model factory is imported
only if whoever reads the file names it, and nothing is unpickled. torch is imported only where tensors are.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from semisilo.common.config import ABSENT_AT_DEFAULT, canonical_json, from_dict
from semisilo.common.data.form import ImageForm, Ranges, check_ranges
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.measures.finding_calibration import PlattScaling
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.parts.label_task import LabelTask
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.process.turns import at_torch
from semisilo.common.storage.durable import write_durably

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["METADATA_KEY", "ModelFacts", "OperatingPoint", "facts_from_json", "inference_settings", "logits_of",
           "read_facts", "read_model", "write_model"]

METADATA_KEY = "semisilo"
_FORMAT = 1
_LONGEST_FACTS = 2**24
_NOT_OURS = "Export it with: coordinator export STUDY, or semisilo export RUN."


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    """When an image counts as one of a class: at which of the class's probabilities, and what that was chosen for."""

    label: str
    """The class; the others together are the rest."""
    measure: Literal["sensitivity", "specificity"]
    level: float
    """What the measure is to be at least, above 0 to 1."""
    threshold: float
    """An image is of the class when its probability, at the model's temperature, is at least this. 0..1."""

    def __post_init__(self) -> None:
        if not (0 < self.level <= 1 and 0 <= self.threshold <= 1):
            raise ValueError(f"operating point: level {self.level} and threshold {self.threshold} must be within 0 and"
                             " 1.")

    def describe(self) -> str:
        """In words, such as "sensitivity 95 % for melanoma"."""
        return f"{self.measure} {100 * self.level:g} % for {self.label}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What the numbers of a model belong to."""

    model: ModelSettings
    """The network, with its class names in label order, as `inference_settings` gives it."""
    image: ImageForm
    """The form that images are brought to: size, channels, resize, and mean and standard deviation of each channel."""
    study: str
    method: str
    round: int | None
    """The round that gave the model; None where that is not known."""
    state: str
    """SHA-256, hex, of the strategy's state that holds the model."""
    temperature: float = 1.0
    """Logits are divided by it before they become probabilities; fitted on validation images, or 1."""
    training_prior: tuple[float, ...] = ()
    """The class prior that the probabilities stand for, in label order: the class shares of the coordinator's labelled
    images, or what training has made of them (`semisilo.common.learning.imbalance.prevalence.implied_prior`). Empty
    where that is not known: labels at the silos, files of earlier versions."""
    operating_point: OperatingPoint | None = None
    """None: an image is of the class with the largest probability."""
    task: LabelTask = field(default="single_label", metadata=ABSENT_AT_DEFAULT)
    """"multi_label": an image may show several of the classes or none; the sigmoid of a logit is the probability that
    it shows the class, and `training_prior` has the share of images that show each."""
    thresholds: tuple[float, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """With several labels for an image: a class counts as shown where its probability is at least this, in label order;
    empty: 0.5 for all."""
    scaling: tuple[PlattScaling, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """With several labels for an image: what is made of each class's logit before the sigmoid, in label order; fitted
    on validation images. Empty: nothing."""
    operating_points: tuple[OperatingPoint, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """With several labels for an image: what the thresholds of these classes were chosen for. Those of the others have
    the largest F1."""
    ranges: Ranges = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """What deep values of the study's labelled images were divided by, where their values decided it; () without such,
    and in files of earlier versions."""
    format: int = _FORMAT

    def __post_init__(self) -> None:
        if self.format != _FORMAT:
            raise ValueError(f"format = {self.format}: written by another version of semisilo.")
        check_ranges(self.ranges)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature = {self.temperature}: must be above 0 and finite.")
        if len(self.model.classes) < 2 or len(set(self.model.classes)) != len(self.model.classes):
            raise ValueError("classes: at least two different names are needed.")
        if self.training_prior and (len(self.training_prior) != len(self.model.classes)
                                    or not all(0 < share <= 1 for share in self.training_prior)):
            raise ValueError("training_prior: must have a share above 0 for every class.")
        if self.thresholds and (self.task != "multi_label" or len(self.thresholds) != len(self.model.classes)
                                or not all(0 <= cut <= 1 for cut in self.thresholds)):
            raise ValueError("thresholds: must be one from 0 to 1 for every class of images with several labels.")
        if self.scaling and (self.task != "multi_label" or len(self.scaling) != len(self.model.classes)):
            raise ValueError("scaling: must be one for every class of images with several labels.")
        for point in self.operating_points:
            if not self.thresholds or self.thresholds[self._label(point)] != point.threshold:
                raise ValueError(f"operating point of '{point.label}': its threshold is not that of the class.")
        if self.task == "multi_label" and (self.operating_point is not None or self.temperature != 1.0):
            raise ValueError("one operating point and a temperature are for images with one class.")
        if self.operating_point is not None:
            self._label(self.operating_point)
        if self.model != inference_settings(self.model):
            raise ValueError("model: has settings of training.")

    def _label(self, point: OperatingPoint) -> int:
        if point.label not in self.model.classes:
            raise ValueError(f"operating point: there is no class '{point.label}'.")
        return self.model.classes.index(point.label)

    def to_json(self) -> str:
        """One line of JSON; equal facts give equal text."""
        return canonical_json(self)


def facts_from_json(text: str, *, where: str) -> ModelFacts:
    """What `to_json` wrote. Raises: BadData for anything else, naming the place."""
    try:
        if len(text) > _LONGEST_FACTS:
            raise ValueError("too long")
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BadData(f"{where}: its facts are not JSON.", remedy=_NOT_OURS) from None
    if not isinstance(data, dict) or "image" not in data or not isinstance(data.get("model"), dict):
        raise BadData(f"{where}: does not say which network and images it is for.", remedy=_NOT_OURS)
    try:
        return from_dict(ModelFacts, data)
    except BadConfiguration as error:
        raise BadData(f"{where}: cannot be used: {error.text}", remedy="Use the version of semisilo that wrote it, or"
                      " export it again.") from None


def inference_settings(settings: ModelSettings) -> ModelSettings:
    """The same network without what only training looks at: an exported file holds every weight, frozen or not."""
    return replace(settings, weights="", freeze=())


def write_model(path: Path, model: nn.Module, facts: ModelFacts) -> None:
    """Writes the file, whole or not at all.

    Args:
        model: with its static batch-norm statistics loaded, where it has such layers and they are known.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in _tensors_of(model).items()}
    write_durably(path, save(tensors, metadata={METADATA_KEY: facts.to_json()}))


def read_facts(path: Path) -> ModelFacts:
    """What a file says of its model, without its tensors.

    Raises: BadData when it is no safetensors file, or not one of ours.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path}: cannot be read as a safetensors file: {error}.", remedy="Check the copy.") from None
    if METADATA_KEY not in metadata:
        raise BadData(f"{path}: is a safetensors file, but says nothing about its network.", remedy=_NOT_OURS)
    return facts_from_json(metadata[METADATA_KEY], where=str(path))


def read_model(path: Path, *, allow_factories: Collection[PermittedCode] = (), device: str = "cpu"
               ) -> tuple[nn.Module, ModelFacts]:
    """The network with its weights and statistics, in evaluation mode.

    Args:
        allow_factories: "package.module:factory" names, and files, that the user of this machine permits.
    Raises: BadData when the file is damaged, or its tensors are not those of its network; NotPermitted or UnknownName
        for a network that cannot be built here.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    facts = read_facts(path)
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            held = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _check_without_memory(facts, held, allow_factories, path)
            model = _built(facts, allow_factories)
            wanted = _tensors_of(model, missing_too=True)
            _check_layout({name: tuple(tensor.shape) for name, tensor in wanted.items()}, held, path)
            found = {name: file.get_tensor(name) for name in wanted}
    except (OSError, SafetensorError) as error:
        raise BadData(f"{path}: cannot be read: {error}.", remedy="Check the copy.") from None
    for name, tensor in found.items():
        if tensor.dtype != wanted[name].dtype or not bool(torch.isfinite(tensor.double()).all()):
            raise BadData(f"{path}: tensor '{name}' has another type than its network, or is not finite.",
                          remedy="Check the copy.")
    _load(model, found)
    return model.to(device).eval(), facts


def logits_of(model: nn.Module, images_NCHW: torch.Tensor, form: ImageForm, *, batch_size: int = 250,
              progress: Callable[[float], None] | None = None) -> torch.Tensor:
    """What the model answers, float32 (N, K) on the CPU: the batches and bits of
    `semisilo.common.learning.evaluation.evaluate`.

    Args:
        images_NCHW: uint8, in the geometry of the form.
    """
    import torch

    from semisilo.common.data.augmentation import augment
    from semisilo.common.learning.evaluation import inference_batches

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    parts: list[torch.Tensor] = []
    try:
        with torch.no_grad():
            for cut in inference_batches(len(images_NCHW), batch_size):
                parts.append(model(augment.to_input(images_NCHW[cut].to(device), form)).float().cpu())
                if progress is not None:
                    progress(cut.stop / len(images_NCHW))
    finally:
        model.train(was_training)
    return torch.cat(parts)


def _tensors_of(model: nn.Module, *, missing_too: bool = False) -> dict[str, Tensor]:
    """All parameters and buffers, and the statistics of static batch-norm layers.

    Args:
        missing_too: with empty room for statistics that are not loaded; without it such layers are left out.
    """
    import torch

    from semisilo.common.learning import batch_norm

    tensors: dict[str, Tensor] = dict(model.state_dict())
    for name, layer in batch_norm.layers_of(model, fixed_too=True).items():
        for kind in ("mean", "var"):
            value = getattr(layer, kind)
            if value is None and missing_too:
                value = torch.empty(layer.num_features)
            if value is not None:
                tensors[f"{name}.{kind}"] = value
    return tensors


def _built(facts: ModelFacts, allow_factories: Collection[PermittedCode]) -> nn.Module:
    import torch

    from semisilo.common.models.factory import build_model

    with at_torch(), torch.random.fork_rng(devices=[]):
        return build_model(facts.model, channels=facts.image.channels, size=facts.image.size,
                           allow_factories=allow_factories)


def _check_without_memory(facts: ModelFacts, held: dict[str, tuple[int, ...]],
                          allow_factories: Collection[PermittedCode], path: Path) -> None:
    """Refuses a small file that asks for an enormous network (a linear layer for 4096 x 4096 pixels) beforehand.

    A network that cannot be built without memory (torchvision has some; none of them grows so with the image) is built.
    """
    import torch

    from semisilo.common.errors import SemisiloError

    if ":" in facts.model.name:
        return  # the user's own code, which they have permitted
    try:
        with torch.device("meta"):
            layout = {name: tuple(tensor.shape)
                      for name, tensor in _tensors_of(_built(facts, allow_factories), missing_too=True).items()}
    except SemisiloError as error:
        if error.__cause__ is None:
            raise
        return
    except Exception:
        return
    _check_layout(layout, held, path)


def _check_layout(wanted: dict[str, tuple[int, ...]], held: dict[str, tuple[int, ...]], path: Path) -> None:
    different: list[Any] = sorted(name for name in wanted.keys() | held.keys() if wanted.get(name) != held.get(name))
    if different:
        name = different[0]
        raise BadData(f"{path}: its tensors are not those of its network: '{name}' is {held.get(name, 'missing')},"
                      f" expected {wanted.get(name, 'none')}.",
                      remedy="Export it again; if it is the model of round 0, its batch-norm statistics may never have"
                             " been measured.")


def _load(model: nn.Module, found: dict[str, Tensor]) -> None:
    from semisilo.common.learning import batch_norm

    statistics = {f"{name}.{kind}" for name in batch_norm.layers_of(model) for kind in ("mean", "var")}
    model.load_state_dict({name: tensor for name, tensor in found.items() if name not in statistics})
    batch_norm.load(model, {name: found[name] for name in statistics})
