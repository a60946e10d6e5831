"""Methods of others: installed plug-ins of the entry point group `semisilo.methods`, looked for only when needed.

A plug-in is code that its owner has installed on this machine, as any package; no code ever comes over the network.
A silo runs a plug-in only when its silo.toml lists it by name (silo/site/policy.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from semisilo.common.config import canonical_json, from_dict
from semisilo.common.errors import BadConfiguration, PluginFailed, UnknownName
from semisilo.common.methods import METHODS, MethodPlugin, MethodSpec
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.system_errors import is_error_of_code

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "cannot_be_kept", "check_plugin_settings", "find_plugin", "load_half", "modules_of", "plugin_names"]

GROUP = "semisilo.methods"
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_NEW_NAMES = {
    "common.exchange": "semisilo.common.methods.contract",
    "common.methods": "semisilo.common.methods",
    "common.tensors": "semisilo.common.learning.tensors",
    "common.training": "semisilo.common.learning.training",
    "common.sgd": "semisilo.common.learning.sgd",
    "common.losses": "semisilo.common.learning.losses",
    "common.consistency": "semisilo.common.learning.consistency",
    "common.batch_norm": "semisilo.common.learning.batch_norm",
    "common.evaluation": "semisilo.common.learning.evaluation",
    "common.seeds": "semisilo.common.learning.seeds",
    "common.data": "semisilo.common.data",
    "common.errors": "semisilo.common.errors",
    "coordinator.weights": "semisilo.coordinator.strategies.parts.weights",
    "coordinator.static_statistics": "semisilo.coordinator.strategies.batch_norm.statistics",
    "silo.statistics": "semisilo.silo.trainers.batch_norm_phase",
}
"""Where the modules that methods import have gone: until version 0.1 they stood at top level (decision 0018)."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}", re.ASCII)


def plugin_names() -> tuple[str, ...]:
    """Names of the installed plug-ins, sorted; none of them is imported for it. Built-in names are not among them."""
    return tuple(sorted(_installed(tuple(sys.path))))


def find_plugin(name: str) -> MethodPlugin:
    """An installed plug-in; its light module is imported, its halves are not.

    Raises: UnknownName, with the names there are; BadConfiguration, naming the package, when it cannot be used.
    """
    return _plugin(name, tuple(sys.path))


@functools.lru_cache(maxsize=64)
def _plugin(name: str, path: tuple[str, ...]) -> MethodPlugin:
    """Looked up once: every task and every update asks for its method. What cannot be used is tried again."""
    found = _installed(path).get(name, ())
    if not found:
        names = {_plain(each): each for each in (*plugin_names(), *METHODS)}
        near = difflib.get_close_matches(_plain(name), names, n=1, cutoff=0.8)
        perhaps = f"Did you mean '{names[near[0]]}'? " if near else ""
        raise UnknownName(f"There is no method '{name}'.",
                          remedy=f"{perhaps}Methods: {', '.join((*sorted(METHODS), *plugin_names()))}.")
    if len({(entry.value, _package(entry)) for entry in found}) > 1:
        packages = ", ".join(sorted({_package(entry) for entry in found}))
        raise BadConfiguration(f"The method '{name}' is offered by more than one package: {packages}.",
                               remedy="Uninstall all but one of them.")
    return _loaded(found[0])


def modules_of(name: str) -> tuple[str, ...]:
    """The modules that a plug-in is described and its halves are written in, each once; () of a built-in method.

    Raises: as `find_plugin`.
    """
    if name in BUILT_IN:
        return ()
    plugin = find_plugin(name)
    entry = _installed(tuple(sys.path))[name][0]
    return tuple(dict.fromkeys((entry.module, plugin.spec.settings.__module__,
                                *(half.partition(":")[0] for half in (plugin.strategy, plugin.trainer)))))


def load_half(name: str, half: Literal["strategy", "trainer"]) -> type[Any]:
    """The class of one half of a method, built in or an installed plug-in's.

    Imports it, and with it torch: for compute processes.
    Raises: UnknownName, with the names there are; BadConfiguration for a plug-in whose half cannot be imported, or
        lacks what a half must have.
    """
    method = BUILT_IN[name] if name in BUILT_IN else find_plugin(name)
    where = method.strategy if half == "strategy" else method.trainer
    module, _, cls = where.partition(":")
    if name in BUILT_IN:
        loaded: type[Any] = getattr(importlib.import_module(module), cls)
        return loaded
    try:
        loaded = getattr(importlib.import_module(module), cls)
    except BaseException as error:
        if not is_error_of_code(error):
            raise
        raise BadConfiguration(f"The {half} '{where}' of the method plug-in '{name}' cannot be imported:"
                               f" {_said(error)}.", remedy=_remedy(error, "Fix or reinstall the plug-in.")) from error
    if trouble := _trouble_of_half(half, loaded):
        raise BadConfiguration(f"The {half} '{where}' of the method plug-in '{name}' {trouble}.",
                               remedy="Fix, update or reinstall the plug-in; docs/adding-a-method.md has a whole one.")
    return loaded


def _trouble_of_half(half: Literal["strategy", "trainer"], loaded: object) -> str:
    """Why an object is not a half of a method, as a predicate of it; empty when it is. A study would end with it in its
    first round, or in a later one, when silos have trained for days."""
    from semisilo.common.methods import contract  # later: it imports this package

    if not isinstance(loaded, type):
        return "is not a class"
    protocol, kept, built_with = ((contract.Strategy, ("State",), (None, None)) if half == "strategy" else
                                  (contract.Trainer, ("Memory",), ()))
    if not _takes(loaded, built_with, {}):
        return f"cannot be built as {loaded.__name__}({'settings, environment' if built_with else ''})"
    for name, wanted in vars(protocol).items():
        if name.startswith("_") or not inspect.isfunction(wanted):
            continue
        parameters = [each.replace(annotation=inspect.Parameter.empty)
                      for each in inspect.signature(wanted).parameters.values() if each.name != "self"]
        written = f"{name}{inspect.Signature(parameters)}"
        found = inspect.getattr_static(loaded, name, None)
        if found is None or found is wanted or not callable(getattr(loaded, name)):
            return f"has no function {written}"
        by_name = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
        if inspect.isfunction(found) and not _takes(found, (None,) * (1 + len(parameters) - len(by_name)), by_name):
            return f"cannot be called as {written}: it has {name}{inspect.signature(found)}"
    for name in (*kept, *(("SiloState",) if hasattr(loaded, "SiloState") else ())):
        kind = getattr(loaded, name, None)
        if not (isinstance(kind, type) and (dataclasses.is_dataclass(kind) or kind is type(None))):
            return (f"has no {name}, the dataclass of what it keeps" if kind is None else
                    f"has as {name}, of what it keeps, no dataclass")
    return ""


def _takes(called: Callable[..., object], args: tuple[None, ...], by_name: dict[str, None]) -> bool:
    """Whether it may be called so; true where its parameters cannot be known."""
    try:
        signature = inspect.signature(called)
    except ValueError:
        return True
    try:
        signature.bind(*args, **by_name)
    except TypeError:
        return False
    return True


def cannot_be_kept(what: str, kept: object, error: Exception) -> PluginFailed:
    """What to raise where something that a half of a plug-in wants to be kept cannot be written.

    Args:
        what: which half, for a person.
    """
    return PluginFailed(f"{what} returned a {type(kept).__name__} that cannot be written: {_said(error)}.",
                        remedy="Its fields may be numbers, text, None, JSON lists and dicts, or dict[str, Tensor].")


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


@functools.lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points by name. `path` is sys.path: what is found depends on it."""
    from importlib.metadata import entry_points  # later: light commands need none of it

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in METHODS:
            found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _loaded(entry: EntryPoint) -> MethodPlugin:
    """Imports what an entry point names, and checks it."""
    what = f"The method plug-in '{entry.name}' of the package {_package(entry)}"
    if _NAME.fullmatch(entry.name) is None:
        raise BadConfiguration(f"{what} has an impossible name.",
                               remedy="Names are lower-case letters, digits, '-' and '_'.")
    heavy = "torch" in sys.modules
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints would stand in the output of a command
            plugin = entry.load()
    except BaseException as error:
        if not is_error_of_code(error):
            raise
        raise BadConfiguration(f"{what} cannot be imported: {_said(error)}.",
                               remedy=_remedy(error, "Fix, reinstall or uninstall it.")) from error
    if trouble := _trouble(entry.name, plugin):
        raise BadConfiguration(f"{what} cannot be used: {trouble}.", remedy="Fix, update or uninstall it.")
    if not heavy and "torch" in sys.modules:
        raise BadConfiguration(f"{what} imports torch where it is only described.",
                               remedy="Its halves belong in modules of their own, which are named and not imported.")
    assert isinstance(plugin, MethodPlugin)
    return plugin


def _trouble(name: str, plugin: object) -> str:
    """Why an object is not a plug-in of that name; empty when it is."""
    if not isinstance(plugin, MethodPlugin):
        return f"it names a {type(plugin).__name__}, not a MethodPlugin"
    spec: object = plugin.spec
    if not isinstance(spec, MethodSpec):
        return f"its spec is a {type(spec).__name__}, not a MethodSpec"
    if spec.name != name:
        return f"its spec is called '{spec.name}'"
    if not (isinstance(spec.settings, type) and dataclasses.is_dataclass(spec.settings)
            and "scenario" in {field.name for field in dataclasses.fields(spec.settings)}):
        return "its settings are not a dataclass with a field 'scenario'"
    for half in ("strategy", "trainer"):
        if not isinstance(where := getattr(plugin, half), str) or _CLASS.fullmatch(where) is None:
            return f"its {half} is not of the form \"package.module:Class\""
    return _trouble_of_settings(spec.settings)


def _trouble_of_settings(kind: type[Any]) -> str:
    """Why settings cannot travel; empty where their defaults can be read from the JSON that they become."""
    try:
        hints = typing.get_type_hints(kind)
    except Exception as error:
        return f"the types of its settings cannot be read: {_said(error)}"
    for field in dataclasses.fields(kind):
        factory = field.default_factory
        value = factory() if factory is not dataclasses.MISSING else field.default
        if value is dataclasses.MISSING or value is None:  # None may stand for what the others decide
            continue
        alone = dataclasses.make_dataclass("alone", [(field.name, hints[field.name])])
        try:
            from_dict(alone, json.loads(canonical_json({field.name: value})))
        except (TypeError, ValueError, BadConfiguration):
            hint = hints[field.name]
            written = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
            return (f"its setting {field.name}: {written} = {value!r} cannot be sent as JSON and read again; settings"
                    " are finite numbers, text, tuples, dicts by text, enums, or dataclasses of these")
    return ""


def check_plugin_settings(name: str, settings: Any, *, where: str) -> None:
    """Whether settings of a plug-in, which may not check them itself, can be sent.

    Raises: BadConfiguration for a number that is not finite.
    """
    if name in BUILT_IN:
        return
    try:
        canonical_json(settings)
    except (TypeError, ValueError) as error:
        raise BadConfiguration(f"{where}: these settings cannot be sent: {_said(error)}.",
                               remedy="Numbers are finite; leave out nan and inf.") from None


def _package(entry: EntryPoint) -> str:
    """The distribution that an entry point comes from, as its owner knows it."""
    return "of unknown name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .")


def _remedy(error: BaseException, otherwise: str) -> str:
    """What to do about an import that failed; that a plug-in was written to the old import names is told by them."""
    old = error.name if isinstance(error, ImportError) and error.name else ""
    if old.partition(".")[0] not in ("common", "coordinator", "silo"):
        return otherwise
    parts = old.split(".")
    for length in range(len(parts), 0, -1):
        if new := _NEW_NAMES.get(".".join(parts[:length])):
            return (f"Import {'.'.join([new, *parts[length:]])} instead of {old}: the names of semisilo's modules have"
                    " changed.")
    return (f"The plug-in was written to the old import names: {old.partition('.')[0]} is now"
            f" semisilo.{old.partition('.')[0]}. docs/adding-a-method.md has the modules that a method needs.")
