"""The trainer of a method plug-in: what it returns that is none of what it should names it.

What it raises is an error like any other of training: only its class leaves this machine.

Tests: tests/silo/trainers/test_plugged_in.py.
"""

from __future__ import annotations

from typing import Any

from semisilo.common.errors import PluginFailed
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.contract import SiloData, SiloTask, Trainer, Update
from semisilo.common.methods.plugins import cannot_be_kept, find_plugin

__all__ = ["PluggedIn", "build_trainer"]


def build_trainer(half: type[Any], name: str) -> Any:
    """The trainer of a method; that of a plug-in as `PluggedIn`.

    Args:
        half: its class (`semisilo.silo.trainers.load_trainer`).
        name: of the method.
    """
    return half() if name in BUILT_IN else PluggedIn(half, name)


class PluggedIn:
    """As the trainer that it has built, whose answer it looks at."""

    def __init__(self, half: type[Any], name: str) -> None:
        self._what = f"The trainer '{find_plugin(name).trainer}' of the method plug-in '{name}'"
        self._built: Trainer = half()
        self.Memory: type[Any] = half.Memory

    def train(self, task: SiloTask, data: SiloData, memory: Any) -> tuple[Update, Any]:
        """See `Trainer`. Raises: PluginFailed for anything but an update, or an abstention, and its memory."""
        answer: object = self._built.train(task, data, memory)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Update)):
            raise PluginFailed(f"{self._what} returned a {type(answer).__name__} from train, not the pair of an Update"
                               " and what it keeps.")
        update, keep = answer
        if not (update.groups or update.abstention):
            raise PluginFailed(f"{self._what} returned an Update with neither tensor groups nor an abstention.")
        if keep is not None and type(keep) is not self.Memory:
            raise PluginFailed(f"{self._what} returned a {type(keep).__name__} to keep, and its Memory is"
                               f" {self.Memory.__name__}: the next task could not read it.")
        return update, keep

    def cannot_keep(self, kept: object, error: Exception) -> PluginFailed:
        """What to raise where what it wants to be kept cannot be written."""
        return cannot_be_kept(self._what, kept, error)
