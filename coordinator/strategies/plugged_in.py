"""The strategy of a method plug-in: what it raises, and what it returns that is none of what it should, names it.

Without that an error of its own looks like one of semisilo, or of the silos whose updates it was given, and is tried
again.

Tests: tests/coordinator/strategies/test_plugged_in.py.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from semisilo.common.errors import PluginFailed, SemisiloError
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.contract import Environment, Phase, Strategy, Task
from semisilo.common.methods.plugins import cannot_be_kept, find_plugin
from semisilo.common.process.compute_process import unusable_after
from semisilo.common.system_errors import explained_text, is_error_of_code

__all__ = ["PluggedIn", "build_strategy"]

_LOG = logging.getLogger("semisilo.study")


def build_strategy(half: type[Any], name: str, settings: Any, environment: Environment) -> Strategy[Any]:
    """The strategy of a method; that of a plug-in as `PluggedIn`.

    Args:
        half: its class (`semisilo.coordinator.strategies.load_strategy`).
        name: of the method.
    Raises: PluginFailed where a plug-in's cannot be built; what a strategy refuses.
    """
    if name in BUILT_IN:
        built: Strategy[Any] = half(settings, environment)
        return built
    plugged: Any = PluggedIn(half, settings, environment, what=(
        f"The strategy '{find_plugin(name).strategy}' of the method plug-in '{name}'"))
    return plugged  # type: ignore[no-any-return]


class PluggedIn:
    """As the strategy that it has built: whatever that has, this has."""

    def __init__(self, half: type[Any], settings: Any, environment: Environment, *, what: str) -> None:
        self._half = half
        self.what = what
        """How a person is told which one it is."""
        self._logged: set[str] = set()
        self._built = self._named("__init__", half)(settings, environment)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._built, name)
        return self._named(name, found) if callable(found) else found

    def cannot_keep(self, kept: object, error: Exception) -> PluginFailed:
        """What to raise where what it wants to be kept cannot be written."""
        return cannot_be_kept(self.what, kept, error)

    def _named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def called(*args: Any, **by_name: Any) -> Any:
            try:
                returned = function(*args, **by_name)
            except SemisiloError:
                raise
            except BaseException as error:
                if not is_error_of_code(error) or unusable_after(error) or explained_text(error) is not None:
                    raise  # memory, an accelerator or a disk: that is nobody's fault, and may be tried again
                failed = PluginFailed(f"{self.what} failed in {name}: {_said(error)}.")
                if failed.text not in self._logged:  # it may be asked about every update
                    self._logged.add(failed.text)
                    _LOG.error("%s", failed.text, exc_info=error)
                raise failed from error
            if wanted := self._trouble(name, returned):
                raise PluginFailed(f"{self.what} returned a {type(returned).__name__} from {name}, not {wanted}.")
            return returned

        return called

    def _trouble(self, name: str, returned: object) -> str:
        """What a function should have returned; empty where it has."""
        if name in ("start", "start_from", "finish", "opened"):
            kind = self._half.State
            return "" if isinstance(returned, kind) else f"its State, a {kind.__name__}"
        if name == "phases":
            return "" if isinstance(returned, tuple) and returned and all(
                isinstance(each, Phase) for each in returned) else "a tuple of Phase"
        if name == "task":
            return "" if isinstance(returned, Task) else "a Task"
        if name in ("expects", "diagnostics", "notices"):
            return "" if isinstance(returned, Mapping) else "a dict"
        if name in ("fold", "appraise", "model", "local_model"):
            return "" if isinstance(returned, tuple) and len(returned) == 2 else "a pair"
        return ""


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(": .")
