"""From a model's name to a network: built in, torchvision's, timm's, or a factory that this machine's owner permits.

Tests: tests/common/models/test_models.py.
"""

from __future__ import annotations

import difflib
import importlib
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, NotPermitted, SemisiloError, UnknownName
from semisilo.common.learning.batch_norm import NoReplacement, Normalisation, StaticBatchNorm, convert, layers_of, load
from semisilo.common.learning.seeds import derive_seed
from semisilo.common.learning.tensors import parameters_of
from semisilo.common.methods.contract import ModelBuilder, ModelSettings, Tensors
from semisilo.common.models.alexnet_like import AlexNetLike
from semisilo.common.models.cnn13 import CNN13
from semisilo.common.models.freezing import freeze
from semisilo.common.models.libraries.monai_models import MONAI_PREFIX, build_monai_model, monai_names
from semisilo.common.models.libraries.timm_models import PREFIX, build_timm_model, timm_names
from semisilo.common.models.libraries.torchvision_models import build_torchvision_model, torchvision_names
from semisilo.common.models.libraries.transformers_models import build_transformers_model
from semisilo.common.models.mlp_5000 import MLP5000
from semisilo.common.models.own.given import GIVEN, given_factory
from semisilo.common.models.own.model_file import (
    ModelFile,
    PermittedCode,
    file_of,
    load_file,
    names_file,
    read_file,
)
from semisilo.common.models.resnet9 import ResNet9
from semisilo.common.models.small_cnn import SmallCNN
from semisilo.common.models.wide_resnet import WideResNet28
from semisilo.common.numerics.numerics import at_work, settings_left_as_they_were
from semisilo.common.system_errors import is_error_of_code
from semisilo.common.text.describe import counted

__all__ = ["ModelBuilder", "WrongSize", "build_model", "check_answers", "check_model", "check_name",
           "check_what_is_kept", "initial_model", "model_builder", "model_file_content", "model_names"]


class WrongSize(BadConfiguration):
    """The network does not take images of the study's size, or something else is wrong that shows only there."""


_BuiltIn = Callable[[int, int, int, Normalisation], nn.Module]

_BUILT_IN: dict[str, _BuiltIn] = {
    "small_cnn": lambda classes, channels, size, norm: SmallCNN(
        num_classes=classes, channels=channels, size=size, normalisation=norm),
    "wide_resnet_28_2": lambda classes, channels, size, norm: WideResNet28(
        widen=2, num_classes=classes, channels=channels, normalisation=norm),
    "wide_resnet_28_8": lambda classes, channels, size, norm: WideResNet28(
        widen=8, num_classes=classes, channels=channels, normalisation=norm),
    "resnet9": lambda classes, channels, size, norm: ResNet9(
        num_classes=classes, channels=channels, size=size, normalisation=norm),
    "alexnet_like": lambda classes, channels, size, norm: AlexNetLike(
        num_classes=classes, channels=channels, size=size),
    "mlp_5000": lambda classes, channels, size, norm: MLP5000(num_classes=classes, channels=channels, size=size),
    "cnn13": lambda classes, channels, size, norm: CNN13(
        num_classes=classes, channels=channels, size=size, normalisation=norm),
    "cnn13_no_bias": lambda classes, channels, size, norm: CNN13(
        num_classes=classes, channels=channels, size=size, bias=False, normalisation=norm),
}

_NOTHING_TO_NORMALISE = ("alexnet_like", "mlp_5000")
"""Networks that are defined without normalisation layers, and have no place for them."""

_SENT = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
"""Types of tensors that payloads have."""
_SAME = 1e-4
"""Of the largest logit: what equal images may be answered otherwise by."""

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def model_names() -> tuple[str, ...]:
    """The built-in networks, then torchvision's. With those of timm, where it is installed (`timm_names`), these are
    the names that need nobody's permission."""
    return (*_BUILT_IN, *torchvision_names())


def check_name(name: str) -> None:
    """Whether there is a network of this name. What a factory or a file gives shows only when it is built.

    Raises: UnknownName with the nearest name.
    """
    if ":" in name or names_file(name) or name in _BUILT_IN:
        return
    if name not in (timm_names() if name.startswith(PREFIX) else (*torchvision_names(), *monai_names())):
        raise _unknown(name)


def build_model(settings: ModelSettings, *, channels: int, size: int,
                allow_factories: Collection[PermittedCode] = ()) -> nn.Module:
    """The network of a study, on the CPU, with random weights from torch's global generator.

    Args:
        settings: its `classes` give the number of outputs.
        allow_factories: what the owner of this machine lists: "package.module:factory" names, and files. A factory is
            called as `factory(num_classes=, channels=, size=)`; only then is its package imported, or its file run. A
            network that was handed to this process needs no permission.
    Raises: UnknownName with the nearest name; NotPermitted for a factory that is not listed; BadConfiguration for a
        factory that cannot be imported or called, a network that refuses the image size, fewer than two classes, or
        normalisation layers that the network has no place for.
    """
    name, classes, kind = settings.name, len(settings.classes), settings.normalisation_layers
    check_name(name)
    if classes < 2:
        raise BadConfiguration(f"Model '{name}' needs at least 2 classes; the study has {classes}.")
    if ":" in name:
        model = _called(settings, _factory(settings, allow_factories), channels=channels, size=size)
    elif names_file(name):
        content = model_file_content(settings, allow_factories)
        model = _fitting(name, size, lambda: build_transformers_model(
            content, num_classes=classes, channels=channels, size=size))
    elif name in _BUILT_IN:
        if name in _NOTHING_TO_NORMALISE and kind != "none":
            raise _takes_no_normalisation(settings)
        return _BUILT_IN[name](classes, channels, size, kind)
    else:
        build = build_timm_model if name.startswith(PREFIX) else build_monai_model if name.startswith(MONAI_PREFIX) \
            else build_torchvision_model
        model = _fitting(name, size, lambda: build(name, num_classes=classes, channels=channels, size=size))
    if settings.normalisation not in ("auto", "none") and not any(map(_is_batch_norm, model.modules())):
        raise _takes_no_normalisation(settings)
    try:
        convert(model, kind)
    except NoReplacement as error:
        raise BadConfiguration(f"Model '{name}' cannot be trained in a federation: {error}.",
                               remedy="Choose another [model] name.") from None
    return model


def model_builder(settings: ModelSettings, form: ImageForm, allow_factories: Collection[PermittedCode] = (), *,
                  frozen: Tensors | None = None) -> ModelBuilder:
    """A builder for images of `form`, of networks in the form of the numerics in force; raises as `build_model` and
    `freeze` do, when called.

    Args:
        frozen: tensors of parts that nobody trains (group `frozen`); every network that is built has them.
    """
    def build() -> nn.Module:
        model = build_model(settings, channels=form.channels, size=form.size, allow_factories=allow_factories)
        if frozen is not None:
            freeze(model, frozen)
        return at_work(model)

    return build


def initial_model(builder: ModelBuilder, seed: int) -> dict[str, Tensor]:
    """The parameters a study starts from: the same on every machine for the same study seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "model_init"))
        return parameters_of(builder())


def check_model(builder: ModelBuilder, form: ImageForm, num_classes: int) -> int:
    """Sends two black images through a fresh network, so that a bad fit shows before a study starts; and two that are
    not black where it keeps tensors besides its parameters, since an average of black ones may move nothing.

    Returns: the number of trainable parameters.
    Raises: BadConfiguration when the network cannot take the images or does not give (2, num_classes) finite logits,
        has parameters of a type that is not sent, or changes while it trains what never travels.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = builder()
        _check_mode(model, model.train(), "train")
        _check_types(model)
        black_BCHW = torch.zeros(2, form.channels, form.size, form.size, dtype=torch.float32)  # whatever is the default
        kept = _copies(model.named_buffers())
        try:
            with torch.no_grad():
                logits_BK = model(black_BCHW)
                kept = _in_place_of_placeholders(kept, _copies(model.named_buffers()))
                if kept:
                    model(torch.linspace(-1, 1, black_BCHW.numel(), dtype=torch.float32).reshape(black_BCHW.shape))
        except BaseException as error:
            if not is_error_of_code(error):
                raise
            if other := _other_than_float32(model):
                raise BadConfiguration(f"The model cannot take images, which are float32: its parameter {other}:"
                                       f" {_first_line(error)}.",
                                       remedy="Leave out .half(), .double() and the like: [numerics] precision says in"
                                              " which type a network computes.") from error
            raise WrongSize(
                f"The model cannot take images of {form.channels}x{form.size}x{form.size}: {_first_line(error)}.",
                remedy="Choose another [model] name, or a larger image size in [data] image.") from error
    if changed := _other(kept, dict(model.named_buffers())):
        raise BadConfiguration(f"The model changes '{changed}' while it trains, and only its parameters travel: every"
                               " silo would change its own, and each round begin with another network.",
                               remedy="Leave out the layer that changes it (a moving average, spectral_norm). What need"
                                      " not change can be a torch.nn.Parameter(..., requires_grad=False).")
    if not isinstance(logits_BK, Tensor) or tuple(logits_BK.shape) != (2, num_classes):
        found = tuple(logits_BK.shape) if isinstance(logits_BK, Tensor) else type(logits_BK).__name__
        raise BadConfiguration(f"The model answers two images with {found}; expected logits (2, {num_classes}).")
    if not bool(torch.isfinite(logits_BK).all()):
        raise BadConfiguration("The model's first answer is not finite.")
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if count == 0:
        raise BadConfiguration("The model has no trainable parameters.")
    return count


def check_answers(builder: ModelBuilder, form: ImageForm, num_classes: int) -> None:
    """Whether a network of somebody's own answers in evaluation as it must: one image as well as several, and equal
    images equally, whatever it has answered and trained on before. Statistics of batch-norm layers are 0 and 1 here.
    And whether it can be trained at all, and is built the same each time.

    Raises: BadConfiguration, saying what it does.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        model = builder()
        if wrong := next((name for name, each in model.named_parameters() if not bool(torch.isfinite(each).all())), ""):
            raise BadConfiguration(f"The model's parameter '{wrong}' begins with numbers that are not finite.",
                                   remedy="Give it values where the network is built.")
        load(model, {f"{name}.{kind}": fill(layer.num_features) for name, layer in layers_of(model).items()
                     for kind, fill in (("mean", torch.zeros), ("var", torch.ones))})
        images_BCHW = torch.linspace(-1, 1, 2 * form.channels * form.size**2, dtype=torch.float32).reshape(
            2, form.channels, form.size, -1)
        _check_mode(model, model.eval(), "eval")
        _check_same_again(model, builder())

        def answered(number: int) -> object:
            return model.eval()(images_BCHW[:number].clone())

        try:
            answers = [(2, answered(2)), (1, answered(1)), (2, answered(2))]
            with torch.enable_grad():
                learnt = model.train()(images_BCHW.clone())
            answers.append((2, answered(2)))
        except BaseException as error:
            if not is_error_of_code(error):
                raise
            raise BadConfiguration(f"The model fails in evaluation, as .eval() leaves it: {_first_line(error)}.",
                                   remedy="It must answer one image and several, in either mode.") from error
    if isinstance(learnt, Tensor) and not learnt.requires_grad:
        raise BadConfiguration("The model's answers do not follow from its parameters in a way that can be trained: no"
                               " gradient would reach any of them.",
                               remedy="Leave out torch.no_grad(), .detach() and .data in its forward pass, and steps"
                                      " that have no gradient (argmax, rounding).")
    logits: list[Tensor] = []
    for number, answer in answers:
        if not isinstance(answer, Tensor) or tuple(answer.shape) != (number, num_classes):
            found = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise BadConfiguration(f"The model answers {counted(number, 'image')} in evaluation with {found}; expected"
                                   f" logits ({number}, {num_classes}).",
                                   remedy="Keep the batch's axis: write x.flatten(1) for x.squeeze()." if number == 1
                                   else "Return the logits alone, in either mode.")
        logits += [answer] if number == 2 else []
    room = _SAME * max(1.0, float(logits[0].abs().max()))
    if not all(torch.allclose(each, logits[0], rtol=0.0, atol=room, equal_nan=True) for each in logits):
        raise BadConfiguration("The model answers the same images otherwise a second time, also in evaluation: what it"
                               " is measured by would be chance.",
                               remedy="Draw random numbers only while it trains, as in functional.dropout(x, training="
                                      "self.training), and keep nothing from one batch for the next.")


def _check_mode(model: nn.Module, returned: object, method: str) -> None:
    """Raises: BadConfiguration where a network's own `train` or `eval` does not return it, as torch's do."""
    if returned is not model:
        raise BadConfiguration(f"The model's {method}() returns {type(returned).__name__}, not the model itself.",
                               remedy="End the train() and eval() of its own with: return self.")


def _check_same_again(model: nn.Module, again: nn.Module) -> None:
    """Raises: BadConfiguration where a network has other parameters when it is built a second time."""
    one, two = ({name: (tuple(each.shape), each.dtype, each.requires_grad) for name, each in made.named_parameters()}
                for made in (model, again))
    if one == two:
        return
    other = next(name for name in (*one, *two) if one.get(name) != two.get(name))
    raise BadConfiguration(f"The model is another one each time that it is built: its parameter '{other}' is not the"
                           " same a second time.",
                           remedy="Let it follow from num_classes, channels and size alone.")


def _check_types(model: nn.Module) -> None:
    """Raises: BadConfiguration for a parameter of a type that is neither sent nor kept."""
    for name, parameter in model.named_parameters():
        if parameter.dtype not in _SENT:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise BadConfiguration(f"The model's parameter '{name}' is of the type {kind}, which is not sent.",
                                   remedy=f"Make it one of float32{' (torch.view_as_real)' * parameter.is_complex()}.")


def _other_than_float32(model: nn.Module) -> str:
    """The first parameter of another floating type, with that; empty where there is none."""
    return next((f"'{name}' is {str(each.dtype).removeprefix('torch.')}" for name, each in model.named_parameters()
                 if each.is_floating_point() and each.dtype != torch.float32), "")


def check_what_is_kept(model: nn.Module, builder: ModelBuilder) -> None:
    """Whether a network is the same at every place but for its parameters, which alone travel. A network that keeps
    nothing besides is not built again.

    Args:
        model: one that `builder` has made.
    Raises: BadConfiguration, naming a tensor that the next network of the builder has with other values.
    """
    kept = _kept(model)
    if not kept:
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        again = _kept(builder())
    if drawn := _other(kept, again):
        raise BadConfiguration(f"The model keeps '{drawn}' besides its parameters, with other values each time that it"
                               " is built: every silo would have another network.",
                               remedy="Make it a parameter that nobody trains, torch.nn.Parameter(...,"
                                      " requires_grad=False), which travels; or give it values that are not drawn.")


def _kept(model: nn.Module) -> dict[str, Tensor]:
    """The buffers of a network, and the tensors that its modules merely hold; without those that follow from
    parameters."""
    held = {f"{path}.{name}".lstrip("."): value for path, module in model.named_modules()
            for name, value in vars(module).items() if isinstance(value, Tensor) and not value.requires_grad}
    return {**held, **dict(model.named_buffers())}


def _in_place_of_placeholders(before: Mapping[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors from before the first images; those from after it where they were not there or had another shape, as
    what is worked out when the size of an image is known."""
    return after | {name: tensor for name, tensor in before.items()
                    if name not in after or after[name].shape == tensor.shape}


def _copies(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors}


def _other(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    """The first tensor that is not as before; empty where all are. NaN equals NaN."""
    for name, tensor in before.items():
        now = after.get(name)
        if now is None or now.shape != tensor.shape or now.dtype != tensor.dtype \
                or not bool(((now == tensor) | ((now != now) & (tensor != tensor))).all()):
            return name
    return ""


def _unknown(name: str) -> UnknownName:
    if name.startswith(PREFIX):
        names, plain = timm_names(), name.partition(".")[0]
        if plain in names:
            return UnknownName(f"There is no model '{name}': what stands behind the dot names weights.",
                               remedy=f"Write name = \"{plain}\"; weights come from your file, [model] weights.")
    else:
        names = (*model_names(), *monai_names())
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return UnknownName(f"There is no model '{name}'.", remedy=f"Did you mean '{near[0]}'?" if near else
                       f"Choose one of {', '.join(_BUILT_IN)}, a torchvision name, timm/NAME, monai/NAME, or"
                       " package.module:factory; `coordinator models` lists them.")


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, (StaticBatchNorm, nn.modules.batchnorm._BatchNorm))


def _takes_no_normalisation(settings: ModelSettings) -> BadConfiguration:
    return BadConfiguration(
        f'[model] normalisation = "{settings.normalisation}" has no effect: {settings.name} has no batch-norm layers.',
        remedy="Remove normalisation, or choose another [model] name.")


def model_file_content(settings: ModelSettings, allow_factories: Collection[PermittedCode]) -> bytes:
    """Of the file that a network is built from, where it is permitted. Raises: NotPermitted or BadConfiguration."""
    return read_file(_permitted(settings, allow_factories), name=file_of(settings.name))[1]


def _fitting(name: str, size: int, build: Callable[[], nn.Module]) -> nn.Module:
    """Raises: WrongSize for whatever a library raises; a SemisiloError as it is."""
    try:
        return build()
    except SemisiloError:
        raise
    except Exception as error:
        raise WrongSize(f"Model '{name}' cannot be built for images of {size}x{size}: {_first_line(error)}.",
                        remedy="Choose another [model] name or image size.") from error


def _permitted(settings: ModelSettings, allowed: Collection[PermittedCode]) -> ModelFile:
    """The file of a network, where it is permitted. Raises: NotPermitted or BadConfiguration."""
    name = settings.name
    if not settings.factory_sha256:
        raise BadConfiguration(f"'{name}' comes without the digest of its file.")
    found = next((each for each in allowed if isinstance(each, ModelFile) and each.sha256 == settings.factory_sha256),
                 None)
    if found is None:
        raise NotPermitted(f"The file of the network '{name}' (SHA-256 {settings.factory_sha256}) is not permitted"
                           " here.", remedy="If you trust it, permit it: silo permit-model FILE, or semisilo predict"
                           f" --allow-factory {name}.")
    return found


def _factory(settings: ModelSettings, allowed: Collection[PermittedCode]) -> Callable[[], Callable[..., object]]:
    """Finds a factory when it is called; whether it may be is known before.

    Raises: NotPermitted or BadConfiguration.
    """
    name = settings.name
    module_name, _, function = name.partition(":")
    if module_name == GIVEN:
        given = given_factory(settings.factory_sha256)
        if given is None:
            raise BadConfiguration(f"The network '{function}' was handed over from Python, and this process does not"
                                   " have it.", remedy="Use it in the process that called semisilo.simulate(model=...),"
                                   " hand it to semisilo.predict(network=...), or put it into a file: [model] factory ="
                                   ' "my_net.py:build".')
        return lambda: given
    if file := file_of(name):
        found = _permitted(settings, allowed)
        return lambda: _named_in(load_file(found, name=file), file, function)
    if _FACTORY.fullmatch(name) is None:
        raise BadConfiguration(f"'{name}' is neither of the form package.module:factory nor of the form"
                               " file.py:factory.")
    if name not in allowed:
        raise NotPermitted(f"The model factory '{name}' is not permitted here.",
                           remedy=f"If you trust it, list \"{name}\" among the permitted model factories.")
    return lambda: getattr(importlib.import_module(module_name), function)


def _called(settings: ModelSettings, find: Callable[[], Callable[..., object]], *, channels: int,
            size: int) -> nn.Module:
    name, found = settings.name, None
    try:
        with settings_left_as_they_were():  # else the first network of a process is another than the next
            with torch.random.fork_rng(devices=[]):
                found = find()
            model = found(num_classes=len(settings.classes), channels=channels, size=size)
    except SemisiloError:
        raise
    except BaseException as error:  # a script that reads its own command line ends what imports it
        if not is_error_of_code(error):
            raise
        remedy = "It is called as factory(num_classes=, channels=, size=)."
        if found is None and isinstance(error, ImportError):
            remedy = "Install what it imports on this machine; a file cannot import other files beside it."
        said = _first_line(error)
        said = said if said.startswith(type(error).__name__) else f"{type(error).__name__}: {said}"
        raise BadConfiguration(f"Model factory '{name}' failed: {said}.",
                               remedy=remedy) from error
    if isinstance(model, torch.jit.ScriptModule):
        raise BadConfiguration(f"Model factory '{name}' returned a network of TorchScript, whose layers cannot be"
                               " looked at and trained here.", remedy="Return the network that it was made of.")
    if not isinstance(model, nn.Module):
        raise BadConfiguration(f"Model factory '{name}' returned {type(model).__name__}, not a torch.nn.Module.")
    if lazy := next((each for each, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)),
                    ""):
        raise BadConfiguration(f"Model factory '{name}': '{lazy}' has no shape yet, as the network has lazy layers.",
                               remedy="Give them their numbers (Linear for LazyLinear), or send a batch of zeros"
                                      " through the network before the factory returns it.")
    return model


def _named_in(module: types.ModuleType, file: str, function: str) -> Callable[..., object]:
    """Raises: BadConfiguration, with the names that there are, where the file has none such."""
    found: Callable[..., object] | None = getattr(module, function, None)
    if found is None:
        own = [name for name, value in vars(module).items()
               if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")]
        raise BadConfiguration(f"{file} has no '{function}', which is to build the network.",
                               remedy=f"It has {', '.join(own[:5]) or 'no function or class'}: [model] factory ="
                                      f' "{file}:{own[0] if own else "build"}".')
    return found


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    said = (lines[0] if lines else "").rstrip(".! ")
    if isinstance(error, Exception):
        return said or type(error).__name__
    return f"{type(error).__name__}: {said}".rstrip(": ")  # of sys.exit() a number alone
