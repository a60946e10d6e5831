"""What a plug-in's strategy raises or returns by mistake names it, and is no fault of silos or of the system."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from semisilo.common.errors import BadPayload, PluginFailed
from semisilo.common.methods.contract import Phase
from semisilo.coordinator.strategies.plugged_in import PluggedIn, build_strategy
from semisilo.coordinator.strategies.semifl import SemiFLStrategy
from tests.plugin_kit import HALVES

WHAT = "The strategy 'gossip:Strategy' of the method plug-in 'gossip'"


def plugged_in(**changes: Any) -> Any:
    """The strategy of the kit with some functions replaced."""
    module: dict[str, Any] = {"__name__": "gossip"}
    exec(compile(HALVES, "gossip.py", "exec", dont_inherit=True), module)
    half = type("Strategy", (module["Strategy"],), changes)
    return PluggedIn(half, None, None, what=WHAT)  # type: ignore[arg-type]


def raising(error: BaseException) -> Any:
    def function(*args: object, **by_name: object) -> None:
        raise error

    return function


def test_an_error_names_the_plug_in_and_the_function_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    strategy = plugged_in(fold=raising(KeyError("w")))
    with caplog.at_level(logging.ERROR, "semisilo.study"):
        for _ in range(3):
            with pytest.raises(PluginFailed) as caught:
                strategy.fold(None, None, None, {}, None)
    assert caught.value.text == f"{WHAT} failed in fold: KeyError: 'w'."
    (record,) = caplog.records
    assert record.exc_info is not None
    with pytest.raises(PluginFailed, match="failed in begin: SystemExit: 2"):
        plugged_in(begin=lambda *args, **by_name: sys.exit(2)).begin(None, None, (), round=1)
    with pytest.raises(PluginFailed, match="failed in __init__: ValueError: no"):
        plugged_in(__init__=raising(ValueError("no")))


@pytest.mark.parametrize("error", [BadPayload("too long"), MemoryError(), RuntimeError("CUDA error: of the device"),
                                   OSError(28, "No space left on device")])
def test_what_is_said_of_an_update_or_of_the_system_is_left_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        plugged_in(finish=raising(error)).finish(None, None, None, round=1)
    assert caught.value is error


@pytest.mark.parametrize(("function", "arguments", "wanted"), [
    ("start", ({},), "its State, a State"), ("finish", (None, None, None), "its State, a State"),
    ("phases", (None, 1), "a tuple of Phase"), ("task", (None, None, "a", None), "a Task"),
    ("expects", (None, None), "a dict"), ("fold", (None, None, None, {}, None), "a pair"),
    ("model", (None,), "a pair")])
def test_what_it_should_not_return_is_said(function: str, arguments: tuple[Any, ...], wanted: str) -> None:
    by_name = {"round": 1} if function in ("finish", "task", "expects") else {}
    with pytest.raises(PluginFailed) as caught:
        getattr(plugged_in(**{function: lambda *args, **by_name: None}), function)(*arguments, **by_name)
    assert caught.value.text == f"{WHAT} returned a NoneType from {function}, not {wanted}."


def test_it_has_what_the_strategy_has_and_nothing_else() -> None:
    strategy = plugged_in(phases=lambda self, state, round: (Phase("train"),), accepted=lambda self, state: 0.5)
    assert strategy.phases(None, 1) == (Phase("train"),)
    assert strategy.accepted(None) == 0.5
    assert not hasattr(strategy, "appraise")
    assert not hasattr(strategy, "notices")


def test_a_built_in_method_is_what_it_was() -> None:
    class Plain(SemiFLStrategy):
        def __init__(self, settings: Any, environment: Any) -> None:
            pass

    assert type(build_strategy(Plain, "semifl", None, None)) is Plain  # type: ignore[arg-type]
