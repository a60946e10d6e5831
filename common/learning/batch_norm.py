"""Static batch-norm (sBN): no running statistics in training; fixed, measured statistics in inference.

Source: SemiFL (Diao et al., NeurIPS 2022) section 3.4, after HeteroFL (Diao et al., ICLR 2021). The affine parameters
gamma and beta are ordinary parameters and are averaged; the statistics never are: they are measured with the current
weights on somebody's images, merged exactly over batches and institutions, and travel as group `batch_norm`.

Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadPayload, LayoutMismatch
from semisilo.common.learning.evaluation import outcome
from semisilo.common.numerics import process_group
from semisilo.common.numerics.side_by_side import results_in_order

__all__ = [
    "LayerStatistics", "NoReplacement", "Normalisation", "OneValuePerChannel", "StaticBatchNorm", "Statistics",
    "StatisticsMissing", "batches", "convert", "from_tensors", "layers_of", "load", "measure",
    "measuring_steps", "merge", "normalisation_layer", "to_tensors", "without",
]

Normalisation = Literal["static_batch", "group", "layer", "none"]
_MAX_COUNT = 2**53


class OneValuePerChannel(ValueError):
    """Training statistics were asked of one value per channel: the batch must be skipped and counted."""


class StatisticsMissing(RuntimeError):
    """Inference was asked of a static batch-norm layer that has no statistics; mean 0, variance 1 would be wrong."""


class NoReplacement(ValueError):
    """A network has a layer that keeps statistics of its own, and nothing is known that could stand in its place."""


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """What was measured at one layer."""

    count: float
    """Values per channel: images x H x W."""
    mean: Tensor
    """Float64 (C,)."""
    var: Tensor
    """Unbiased variance, float64 (C,); 0 where count is 1."""


Statistics = dict[str, LayerStatistics]
"""By the name of the layer, in the order of `named_modules()`."""


class StaticBatchNorm(nn.Module):
    """Batch normalisation over all axes but the second, for inputs of 2 to 5 axes.

    Training mode uses the batch's own mean and biased variance and keeps nothing. Evaluation mode uses the statistics
    given by `load`. A layer that was given statistics by `fix` uses these in both modes, and is measured no more.
    """

    mean: Tensor | None
    var: Tensor | None

    def __init__(self, num_features: int, *, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.fixed = False
        self.num_features = num_features
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        # Buffers, so that they follow the model to its device; not persistent, since they are not the model's.
        self.register_buffer("mean", None, persistent=False)
        self.register_buffer("var", None, persistent=False)
        self._watch: Callable[[Tensor], None] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Normalises, scales and shifts; same shape and dtype as `input`.

        Raises: OneValuePerChannel in training; StatisticsMissing in evaluation.
        """
        if self.fixed or not self.training:
            if self.mean is None or self.var is None:
                raise StatisticsMissing("Static batch-norm has no statistics yet: measure them before inference.")
            return functional.batch_norm(input, self.mean, self.var, self.weight, self.bias, False, 0.0, self.eps)
        per_channel = input.numel() // max(input.shape[1], 1)
        batch = process_group.batch_under_way()
        if batch is not None:  # of as many images as in one process
            per_channel = per_channel // len(input) * batch.everywhere
        if self._watch is not None:
            self._watch(input)
            if per_channel == 1:  # its own mean and variance 0: what is left is beta
                rest = (1,) * (input.dim() - 2)
                beta = torch.zeros_like(input) if self.bias is None else self.bias.reshape(1, -1, *rest)
                return beta.expand_as(input)
        if per_channel == 1:
            raise OneValuePerChannel(f"One value per channel at a batch-norm layer of {self.num_features} channels.")
        if batch is not None:
            return self._over_processes(input, batch.here, per_channel)
        return functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def _over_processes(self, input: Tensor, here: int, per_channel: int) -> Tensor:
        """The same with the statistics of the whole batch, of which other processes have the other images.

        Args:
            here: images of `input` that count.
            per_channel: values of a channel in the whole batch.
        """
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(input.dim())]
        values = input.float()  # sums of 16 bits would be too coarse
        mean = (process_group.over_processes(values[:here].sum(axes)) / per_channel).reshape(shape)
        centred = values - mean
        var_C = process_group.over_processes(centred[:here].square().sum(axes)) / per_channel
        output = centred * torch.rsqrt(var_C + self.eps).reshape(shape)
        if self.weight is not None and self.bias is not None:
            output = output * self.weight.reshape(shape) + self.bias.reshape(shape)
        return output.to(input.dtype)

    def fix(self, mean: Tensor, var: Tensor) -> None:
        """Statistics for good, float32 (C,) each: the layer is no longer among `layers_of`."""
        self.mean, self.var, self.fixed = mean.clone(), var.clone(), True

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        fixed = ", fixed" if self.fixed else ""
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}{fixed}"


class _ThenActs(nn.Module):
    """What some libraries put into their batch-norm layers behind the normalisation. The names are theirs, so that
    weights of an activation are called as in their files."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        """As of the next class, then drop and activation."""
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


class _StaticBatchNormAct(_ThenActs, StaticBatchNorm):
    pass


class _GroupNormAct(_ThenActs, nn.GroupNorm):
    pass


class _IdentityAct(_ThenActs, nn.Identity):
    pass


def normalisation_layer(kind: Normalisation, channels: int, *, eps: float = 1e-5, affine: bool = True) -> nn.Module:
    """The normalisation layer of a network for `channels` channels.

    "group" has 32 groups, or the largest divisor of the channels that is at most 32; "layer" one group.
    """
    if kind == "static_batch":
        return StaticBatchNorm(channels, eps=eps, affine=affine)
    if kind == "none":
        return nn.Identity()
    groups = 1 if kind == "layer" else max(d for d in range(1, min(32, channels) + 1) if channels % d == 0)
    return nn.GroupNorm(groups, channels, eps=eps, affine=affine)


def convert(model: nn.Module, kind: Normalisation) -> None:
    """Replaces every batch-norm layer below `model` in place, keeping eps, the initial affine values, and, of layers
    that have one, the activation behind the normalisation.

    Raises: NoReplacement, naming a layer that is neither torch's own batch-norm nor one followed by `drop` and `act`
        (timm's), and for any other that keeps running statistics: those of every site would be others.
    """
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, _replacement(child, kind, f"{path}.{name}".lstrip(".")))
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in ("running_mean", "running_var") and buffer is not None:
            layer = name.rpartition(".")[0]
            raise NoReplacement(f"its layer {layer} ({type(model.get_submodule(layer)).__name__}) keeps statistics of"
                                " its own, for which nothing here stands in")


def _replacement(child: nn.modules.batchnorm._BatchNorm, kind: Normalisation, where: str) -> nn.Module:
    """The layer in the place of a batch-norm layer."""
    channels, eps, affine = child.num_features, child.eps, child.affine
    layer = normalisation_layer(kind, channels, eps=eps, affine=affine)
    if not type(child).forward.__module__.startswith("torch."):  # one that does more than to normalise
        drop, act = getattr(child, "drop", None), getattr(child, "act", None)
        if not isinstance(drop, nn.Module) or not isinstance(act, nn.Module):
            raise NoReplacement(f"its layer {where} is a batch-norm of its own kind ({type(child).__name__}), for which"
                                " nothing here stands in")
        acting = _acting(layer, channels, eps=eps, affine=affine)
        acting.drop, acting.act = drop, act
        if isinstance(acting, nn.Identity):  # what batch-norm gave was a tensor of its own, this is another's
            for module in acting.modules():
                if getattr(module, "inplace", False):
                    module.inplace = False  # type: ignore[assignment]
        layer = acting
    if affine and not isinstance(layer, nn.Identity):
        with torch.no_grad():
            layer.weight.copy_(child.weight)  # type: ignore[operator]
            layer.bias.copy_(child.bias)  # type: ignore[operator]
    return layer


def _acting(layer: nn.Module, channels: int, *, eps: float, affine: bool) -> _ThenActs:
    """A layer like the given one that has a place for drop and activation."""
    if isinstance(layer, StaticBatchNorm):
        return _StaticBatchNormAct(channels, eps=eps, affine=affine)
    if isinstance(layer, nn.GroupNorm):
        return _GroupNormAct(layer.num_groups, channels, eps=eps, affine=affine)
    return _IdentityAct()


def layers_of(model: nn.Module, *, fixed_too: bool = False) -> dict[str, StaticBatchNorm]:
    """The static batch-norm layers by name, in the order of `named_modules()`.

    Args:
        fixed_too: also those whose statistics are fixed; nobody measures them, and a model that is written out has
            them as well.
    """
    return {name: module for name, module in model.named_modules()
            if isinstance(module, StaticBatchNorm) and (fixed_too or not module.fixed)}


def batches(count: int, batch_size: int) -> list[slice]:
    """Cuts 0..count into slices of `batch_size`; a last slice of one image joins the slice before it.

    Statistics of a single image say nothing about its class-mates, and one value per channel says nothing at all.
    """
    starts = list(range(0, count, batch_size))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True)]


def measure(model: nn.Module, images_NCHW: Tensor, *, form: ImageForm, generator: torch.Generator,
            batch_size: int = 250, progress: Callable[[float], None] | None = None) -> Statistics:
    """Statistics of the input of every static batch-norm layer, with the current weights.

    Un-augmented normalised images go forward in batches, in an order drawn from `generator` (so that no batch holds
    one class only), with training-mode normalisation and without gradient; everything else (dropout) is in evaluation
    mode. The modes of the modules are restored.

    Args:
        model: on any device; with no static batch-norm layer the answer is empty and nothing is computed.
        images_NCHW: uint8, at least one image.
    Source: SemiFL section 3.4; exact merge instead of the official cumulative average.
    """
    steps = measuring_steps(model, images_NCHW, form=form, generator=generator, batch_size=batch_size)
    with process_group.each_by_itself():  # the layers look at all that goes through them
        return outcome(steps, progress)


def measuring_steps(model: nn.Module, images_NCHW: Tensor, *, form: ImageForm, generator: torch.Generator,
                    batch_size: int = 250) -> Generator[float, None, Statistics]:
    """`measure`, which may be left after every batch; yields the share that is done.

    The model belongs to it until it has ended.
    """
    layers = layers_of(model)
    if not layers:
        return {}
    device = next(model.parameters()).device
    order_N = torch.randperm(images_NCHW.shape[0], generator=generator)
    cuts = batches(images_NCHW.shape[0], batch_size)
    parts: dict[str, list[LayerStatistics]] = {name: [] for name in layers}
    seen = _Seen()

    def batch_statistics(cut: slice) -> Mapping[str, list[LayerStatistics]]:
        seen.by_layer = {}
        model(augment.to_input(images_NCHW[order_N[cut]].to(device), form))
        return seen.by_layer

    found = results_in_order(partial(batch_statistics, cut) for cut in cuts)
    with _measuring(model, layers, seen), closing(found):
        for index in range(len(cuts)):
            with torch.no_grad():
                of_batch = next(found)
            for name, of_layer in of_batch.items():
                parts[name].extend(of_layer)
            yield (index + 1) / len(cuts)
    # A layer that no image reaches (an auxiliary head, say) has nothing to merge, nor will inference ask for it.
    return {name: _merge_layer(of_layer) for name, of_layer in parts.items() if of_layer}


class _Measured(Exception):
    """Ends a pass behind the layer that it was for."""


def measure_first(model: nn.Module, images_NCHW: Tensor, *, form: ImageForm, batch_size: int = 250) -> Statistics:
    """`measure` of the first static batch-norm layer alone: nothing behind it is computed. Exact whatever the order.

    Args:
        model: with none of these layers the answer is empty.
    """
    layers = layers_of(model)
    if not layers:
        return {}
    name, layer = next(iter(layers.items()))
    device = next(model.parameters()).device
    parts: list[LayerStatistics] = []

    def watch(input: Tensor) -> None:
        parts.append(_statistics_of(input))
        raise _Measured

    with _restored(model, layers), process_group.each_by_itself(), torch.no_grad():
        model.eval()
        for each in layers.values():
            each.training = True  # those in front of it, should there be any
        layer._watch = watch
        for cut in batches(len(images_NCHW), batch_size):
            with suppress(_Measured):
                model(augment.to_input(images_NCHW[cut].to(device), form))
    return {name: _merge_layer(parts)} if parts else {}


class _Seen(threading.local):
    """What the layers have seen of the batch that goes through them in this thread, in the order of its passes."""

    by_layer: dict[str, list[LayerStatistics]]


@contextmanager
def _measuring(model: nn.Module, layers: Mapping[str, StaticBatchNorm], seen: _Seen) -> Iterator[None]:
    def watcher(name: str) -> Callable[[Tensor], None]:
        return lambda input: seen.by_layer.setdefault(name, []).append(_statistics_of(input))

    with _restored(model, layers):
        model.eval()
        for name, layer in layers.items():
            layer.training = True
            layer._watch = watcher(name)
        yield


@contextmanager
def _restored(model: nn.Module, layers: Mapping[str, StaticBatchNorm]) -> Iterator[None]:
    """Puts back the modes of the modules, and ends watching."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for layer in layers.values():
            layer._watch = None
        for module, mode in modes.items():
            module.training = mode


def _statistics_of(input_NCx: Tensor) -> LayerStatistics:
    """Of a batch of two axes or more. Each image is summed in float32, and the images in float64: as exact as Welford's
    way of `torch.var_mean`, and two to eight times as quick on one thread of a CPU."""
    input_NCx = input_NCx.float()  # sums of 16 bits would be too coarse
    count = input_NCx.numel() // input_NCx.shape[1]
    within = list(range(2, input_NCx.dim()))

    def total(values_NCx: Tensor) -> Tensor:
        of_images_NC = values_NCx.sum(within) if within else values_NCx
        return of_images_NC.to("cpu", torch.float64).sum(0)

    mean_C = total(input_NCx) / count
    near_C = mean_C.to(input_NCx)
    squares_C = total((input_NCx - near_C.reshape(-1, *(1 for _ in within))).square_())
    squares_C -= count * (mean_C - near_C.to(mean_C)).square()  # what the rounding of the mean has added
    return LayerStatistics(float(count), mean_C, squares_C.clamp_(min=0.0) / max(count - 1, 1))


def merge(parts: Sequence[Statistics]) -> Statistics:
    """Merges what batches or silos measured, exactly, in float64; oracle S4.

        mu  = sum n_m mu_m / sum n_m
        var = (sum (n_m - 1) var_m + sum n_m (mu_m - mu)^2) / (sum n_m - 1)

    A count of 1 contributes variance 0; a total of 1 gives variance 0.
    Raises: LayoutMismatch when the layers or their channels differ.
    Source: SemiFL section 3.4.
    """
    for other in parts[1:]:
        if list(other) != list(parts[0]):
            raise LayoutMismatch("Batch-norm statistics name different layers.")
        for name, layer in other.items():
            if layer.mean.shape != parts[0][name].mean.shape:
                raise LayoutMismatch(f"Batch-norm statistics of '{name}' differ in their number of channels.")
    return {name: _merge_layer([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _merge_layer(parts: Sequence[LayerStatistics]) -> LayerStatistics:
    total = sum(part.count for part in parts)
    mean_C = sum((part.count * part.mean for part in parts), start=torch.zeros_like(parts[0].mean)) / total
    squares_C = torch.zeros_like(mean_C)
    for part in parts:
        squares_C += (part.count - 1) * part.var + part.count * (part.mean - mean_C).square()
    return LayerStatistics(float(total), mean_C, squares_C / max(total - 1, 1.0))


def without(merged: Statistics, part: Statistics) -> Statistics:
    """What `merge` would have given without one of its parts, to rounding; {} where nothing is left.

        n = N - n_p    mu = (N M - n_p mu_p) / n
        var = ((N - 1) V - (n_p - 1) var_p - n_p (mu_p - M)^2 - n (mu - M)^2) / (n - 1)

    with N, M and V the merged ones.
    """
    rest: Statistics = {}
    for name, all_ in merged.items():
        gone = part[name]
        count = all_.count - gone.count
        if count < 1:
            return {}
        mean_C = (all_.count * all_.mean - gone.count * gone.mean) / count
        squares_C = ((all_.count - 1) * all_.var - (gone.count - 1) * gone.var
                     - gone.count * (gone.mean - all_.mean).square() - count * (mean_C - all_.mean).square())
        rest[name] = LayerStatistics(count, mean_C, squares_C.clamp(min=0.0) / max(count - 1, 1.0))
    return rest


def load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives every static batch-norm layer its statistics from the tensors "<layer>.mean" and "<layer>.var".

    Raises: LayoutMismatch when a layer's tensors are missing, have another shape, or belong to no layer.
    """
    layers = layers_of(model)
    known = {f"{name}.{kind}" for name in layers for kind in ("mean", "var")}
    for name in tensors:
        if name not in known and not (name.endswith(".count") and name.removesuffix(".count") in layers):
            raise LayoutMismatch(f"Batch-norm tensor '{name}' belongs to no layer of the model.")
    for name, layer in layers.items():
        found = {kind: tensors.get(f"{name}.{kind}") for kind in ("mean", "var")}
        for kind, tensor in found.items():
            if tensor is None:
                raise LayoutMismatch(f"Batch-norm tensor '{name}.{kind}' is missing.")
            if tensor.shape != (layer.num_features,):
                raise LayoutMismatch(f"Batch-norm tensor '{name}.{kind}' must have {layer.num_features} values.")
        device = layer.weight.device if layer.weight is not None else next(model.parameters()).device
        layer.mean, layer.var = (tensor.to(device, torch.float32, copy=True)
                                 for tensor in found.values() if tensor is not None)


def to_tensors(statistics: Statistics, *, counts: bool = False) -> dict[str, Tensor]:
    """Group `batch_norm`: "<layer>.mean" and "<layer>.var" float32 (C,); with counts also "<layer>.count" int64 (1,).

    Coordinators send mean and variance; silos return counts as well, which merging needs.
    """
    tensors: dict[str, Tensor] = {}
    for name, layer in statistics.items():
        tensors[f"{name}.mean"] = layer.mean.to(torch.float32)
        tensors[f"{name}.var"] = layer.var.to(torch.float32)
        if counts:
            tensors[f"{name}.count"] = torch.tensor([round(layer.count)], dtype=torch.int64)
    return tensors


def from_tensors(tensors: Mapping[str, Tensor]) -> Statistics:
    """The statistics of a group that was made with counts. What arrives is checked: it came over the network.

    Raises: BadPayload for a missing tensor, a count outside 1..2^53, a negative variance, or a value that is not
        finite.
    """
    statistics: Statistics = {}
    for key in tensors:
        name, _, kind = key.rpartition(".")
        if kind != "mean":
            continue
        mean, var, count = (tensors.get(f"{name}.{part}") for part in ("mean", "var", "count"))
        if mean is None or var is None or count is None or var.shape != mean.shape or count.numel() != 1:
            raise BadPayload(f"Batch-norm statistics of '{name}' are incomplete.")
        values, total = torch.stack([mean, var]).double(), int(count.reshape(()))
        if not (bool(torch.isfinite(values).all()) and bool((values[1] >= 0).all()) and 1 <= total <= _MAX_COUNT):
            raise BadPayload(f"Batch-norm statistics of '{name}' are not finite, or their variance or count is below"
                             " what is possible.")
        statistics[name] = LayerStatistics(float(total), values[0], values[1])
    if len(tensors) != 3 * len(statistics):
        raise BadPayload("Batch-norm statistics hold tensors that belong to no layer.")
    return statistics
