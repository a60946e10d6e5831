"""What a study's network starts from: weights of a file where there is one, random ones elsewhere, and what is frozen.

Only the coordinator does this; silos get the outcome as tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration
from semisilo.common.learning import batch_norm
from semisilo.common.learning.seeds import derive_seed
from semisilo.common.methods.contract import ModelBuilder, ModelSettings
from semisilo.common.models.factory import build_model, check_what_is_kept, model_builder, model_file_content
from semisilo.common.models.freezing import fixed_statistics, freeze, frozen_names, head_of
from semisilo.common.models.libraries.transformers_models import TRANSFORMERS_PREFIX, read_transformers_weights
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.models.weights_file import StoredWeights, read_weights

__all__ = ["StartingPoint", "starting_point"]

_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "net.", "network.", "encoder.")
"""What wrappers put in front of every name."""
_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class StartingPoint:
    """A network before its first step."""

    builder: ModelBuilder
    """Makes the network with the weights of the file, where it has them, and with its frozen parts."""
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    """Group `frozen`; empty when all is trained."""
    num_frozen: int = 0
    """Frozen parameters, counted in numbers."""
    weights_digest: str = ""
    """SHA-256 of the weights file, hex; empty without one."""
    left_random: tuple[str, ...] = ()
    """Parameters that the file did not give: the head, where it is for other classes."""
    notes: tuple[str, ...] = ()
    """What a person should know, a sentence each."""
    head_by_class: bool = False
    """Whether the head is not as it is in the file, because the file names other classes, or in another order."""


def starting_point(settings: ModelSettings, form: ImageForm, *, seed: int, weights: Path | None = None,
                   by_class: bool = True, allow_factories: Collection[PermittedCode] = (),
                   progress: Callable[[float, str], None] | None = None) -> StartingPoint:
    """Reads the weights and decides what is frozen. With neither, the plain builder.

    Args:
        seed: of the study: random weights are those of `initial_model`, frozen or not.
        weights: the file; None for random weights.
        by_class: whether the head goes by the names of the classes, where the file has them; without it by their
            places, as in studies that an earlier version began.
    Raises: what `build_model` raises; BadData for a file that cannot be read; BadConfiguration when it does not fit the
        network, or `settings.freeze` does not, or when the network keeps tensors that would differ from silo to silo.
    """
    plain = model_builder(settings, form, allow_factories)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "model_init"))
        model = plain()
    check_what_is_kept(model, plain)

    def head() -> frozenset[str]:
        return head_of(lambda classes: build_model(
            replace(settings, classes=tuple(map(str, range(classes)))), channels=form.channels, size=form.size,
            allow_factories=allow_factories), len(settings.classes))

    stored = None if weights is None else read_weights(weights, progress=progress)
    if stored is not None and settings.name.startswith(TRANSFORMERS_PREFIX):
        stored = replace(stored, tensors=read_transformers_weights(
            stored.path, model_file_content(settings, allow_factories)))
    fitted = None if stored is None else _fitted(model, stored, settings, form, head, by_class=by_class)
    if fitted is not None:
        _put(model, fitted.parameters)
    names = frozen_names(model, settings.freeze, head)
    parameters = dict(model.named_parameters())
    frozen = {name: parameters[name].detach().clone() for name in names if name in parameters}
    num_frozen = sum(tensor.numel() for tensor in frozen.values())
    if fitted is not None:
        frozen |= fixed_statistics(model, names, fitted.statistics)
    if not frozen and fitted is None:
        return StartingPoint(builder=plain)
    given = {} if fitted is None else {name: tensor for name, tensor in fitted.parameters.items() if name not in frozen}

    def build() -> nn.Module:
        made = plain()
        _put(made, given)
        freeze(made, frozen)
        return made

    return StartingPoint(
        builder=build, frozen=frozen, num_frozen=num_frozen, weights_digest="" if stored is None else stored.digest,
        left_random=() if fitted is None else fitted.left_random, notes=() if fitted is None else fitted.notes,
        head_by_class=fitted is not None and fitted.head_by_class)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fitted:
    """A file's tensors by the names of the network."""

    parameters: dict[str, Tensor]
    """In shape and type of the network's."""
    statistics: dict[str, tuple[Tensor, Tensor]]
    """Mean and variance by batch-norm layer."""
    left_random: tuple[str, ...]
    notes: tuple[str, ...]
    head_by_class: bool


def _fitted(model: nn.Module, stored: StoredWeights, settings: ModelSettings, form: ImageForm,
            head: Callable[[], frozenset[str]], *, by_class: bool) -> _Fitted:
    """The file's tensors by the names of the network, all accounted for.

    Raises: BadConfiguration, naming tensors that are missing, unexpected or of another shape, with the remedy.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    layers = batch_norm.layers_of(model)
    shared = _other_names(model)
    tensors = _without_prefixes(stored.tensors, {*parameters, *shared, *buffers, *_statistics_names(model)})
    found: dict[str, Tensor] = {}
    wrong: dict[str, str] = {}
    summed = []
    for name, own_name in shared.items():  # a state_dict has a shared tensor under each of its names
        other = tensors.pop(name, None)
        if other is not None and not torch.equal(tensors.setdefault(own_name, other), other):
            wrong[name] = f"{name} has other values in the file than {own_name}, and is the same tensor here"
    for name, parameter in parameters.items():
        tensor = tensors.pop(name, None)
        if tensor is None or not tensor.is_floating_point():
            continue
        if form.channels == 1 and _is_of_colour(tensor, parameter):
            tensor = tensor.sum(dim=1, keepdim=True)
            summed.append(name)
        if tensor.shape == parameter.shape and not bool(torch.isfinite(tensor).all()):
            wrong[name] = f"{name} has numbers that are not finite"
        elif tensor.shape == parameter.shape:
            found[name] = tensor.to(parameter.dtype, copy=True)
        else:
            wrong[name] = f"{name} is {list(tensor.shape)} in the file and {list(parameter.shape)} here"
    statistics, left_out = _statistics(layers, model, tensors)
    for name, buffer in buffers.items():
        other = tensors.pop(name, None)
        if other is not None and not (other.shape == buffer.shape and bool((other == buffer).all())):
            wrong[name] = f"{name} has other values in the file, and silos would not get them"
    order = _order_of_classes(stored, settings) if by_class else None
    for name in head() if order is not None else ():
        if name in found and order and len(found[name]) == len(order):
            found[name] = found[name][list(order)]
        else:
            found.pop(name, None)
    lacking = [name for name in parameters if name not in found]
    own = head() if lacking else frozenset()
    _check_complete(stored.path, missing=[name for name in lacking if name not in own and name not in wrong],
                    wrong=[text for name, text in wrong.items() if name not in own or "not finite" in text],
                    unexpected=list(tensors), settings=settings)
    if not found:
        raise BadConfiguration(f"{stored.path}: has nothing for the network {settings.name}.",
                               remedy="Check [model] name and weights.")
    return _Fitted(parameters=found, statistics=statistics, left_random=tuple(lacking),
                   head_by_class=order is not None,
                   notes=_notes(stored, lacking, summed, left_out, settings, form, order))


def _order_of_classes(stored: StoredWeights, settings: ModelSettings) -> tuple[int, ...] | None:
    """The place in the file of each class of the study; () where the file is for other classes; None where there is
    nothing to do: the same classes in the same order, or the file names none."""
    named = () if stored.facts is None else stored.facts.model.classes
    if not named or named == settings.classes:
        return None
    return tuple(map(named.index, settings.classes)) if set(named) == set(settings.classes) else ()


def _other_names(model: nn.Module) -> dict[str, str]:
    """Further names of parameters that several modules share, each with the one by which it is known."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    every = ((name, known[id(parameter)]) for name, parameter in model.named_parameters(remove_duplicate=False))
    return {name: first for name, first in every if name != first}


def _put(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def _without_prefixes(tensors: Mapping[str, Tensor], known: Collection[str]) -> dict[str, Tensor]:
    """The tensors by the names of the network, where these come out when prefixes of wrappers are taken off."""
    found: dict[str, Tensor] = {name: tensor for name, tensor in tensors.items() if name in known}
    for name, tensor in tensors.items():
        inner = name
        while inner not in known and (prefix := next((each for each in _PREFIXES if inner.startswith(each)), "")):
            inner = inner.removeprefix(prefix)
        found[inner if inner in known and inner not in found else name] = tensor
    return found


def _statistics_names(model: nn.Module) -> set[str]:
    """What statistics of batch-norm layers are called in files, also of layers that normalise otherwise here."""
    kinds = (batch_norm.StaticBatchNorm, nn.GroupNorm, nn.Identity)
    return {f"{name}.{kind}" for name, module in model.named_modules() if isinstance(module, kinds)
            for kind in ("running_mean", "running_var", "mean", "var")}


def _statistics(layers: Mapping[str, batch_norm.StaticBatchNorm], model: nn.Module,
                tensors: dict[str, Tensor]) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    """Takes the statistics of batch-norm layers out of `tensors`, as torch calls them or as we write them.

    Returns: (mean, variance) by layer; and layers of the file that here normalise otherwise.
    """
    statistics: dict[str, tuple[Tensor, Tensor]] = {}
    for name, layer in layers.items():
        for kinds in (("running_mean", "running_var"), ("mean", "var")):
            mean, var = (tensors.get(f"{name}.{kind}") for kind in kinds)
            if mean is not None and var is not None and mean.shape == var.shape == (layer.num_features,):
                values = torch.stack([mean, var]).to(torch.float32)
                if bool(torch.isfinite(values).all()) and bool((values[1] >= 0).all()):
                    statistics[name] = values[0], values[1]
                for kind in kinds:
                    del tensors[f"{name}.{kind}"]
    others = []
    modules = dict(model.named_modules())
    for key in list(tensors):
        name, _, kind = key.rpartition(".")
        if kind == "num_batches_tracked":
            del tensors[key]
        elif kind in ("running_mean", "running_var") and isinstance(modules.get(name), (nn.GroupNorm, nn.Identity)):
            others.append(name)
            del tensors[key]
    return statistics, sorted(set(others))


def _is_of_colour(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether it is a first convolution for three colours where the network has one for grey."""
    return (parameter.dim() == 4 and tensor.dim() == 4 and parameter.shape[1] == 1 and tensor.shape[1] == 3
            and tensor.shape[0] == parameter.shape[0] and tensor.shape[2:] == parameter.shape[2:])


def _check_complete(path: Path, *, missing: list[str], wrong: list[str], unexpected: list[str],
                    settings: ModelSettings) -> None:
    problems = [f"{what}: {_some(names)}" for what, names in (
        ("of another shape or kind", wrong), ("missing in the file", missing), ("unknown to the network", unexpected))
        if names]
    if not problems:
        return
    if missing and unexpected and len(missing) > len(unexpected) // 2:
        remedy = f"The file is probably not of a {settings.name}: check [model] name."
    elif wrong and not missing:
        remedy = "Use the [data] image size and the [model] name that the weights were made for."
    elif unexpected and not missing and settings.normalisation == "none":
        remedy = 'The file has normalisation layers: leave out [model] normalisation = "none".'
    else:
        remedy = "Check [model] name; or save the file again with the names of the network."
    raise BadConfiguration(f"{path}: does not fit the network {settings.name}: {'; '.join(problems)}.", remedy=remedy)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _notes(stored: StoredWeights, lacking: list[str], summed: list[str], left_out: list[str], settings: ModelSettings,
           form: ImageForm, order: tuple[int, ...] | None) -> tuple[str, ...]:
    path, facts = stored.path, stored.facts
    notes = []
    if order:
        notes.append(f"{path.name} has the classes in another order: the head is put into that of the study.")
    if lacking and order == ():
        notes.append(f"{path.name} is for other classes: the head starts at random ({_some(lacking)}).")
    elif lacking:
        notes.append(f"{path.name} is not for {len(settings.classes)} classes: the head starts at random"
                     f" ({_some(lacking)}).")
    if summed:
        notes.append(f"{path.name} is for colour images: the first convolution ({_some(summed)}) is summed over the"
                     " colours.")
    if facts is not None and facts.image.standardise != form.standardise:
        notes.append(f"{path.name} was trained on images standardised otherwise: [data] image.standardise was"
                     f" \"{facts.image.standardise}\" there and is \"{form.standardise}\" here.")
    if left_out:
        notes.append(f"{path.name} has statistics of {len(left_out)} batch-norm layers, which this network does not"
                     f" have: its normalisation is \"{settings.normalisation_layers}\".")
    return tuple(notes)
