"""Table [tracking] of federation.toml.

Tests: tests/coordinator/tracking/test_follow.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from semisilo.common.errors import BadConfiguration
from semisilo.common.text.installing import how_to_install

__all__ = ["TrackingSettings", "WandbMode", "check_installed", "mlflow_target"]

WandbMode = Literal["offline", "online"]
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_URI = re.compile(r"(https?://[^\s@/]+(/\S*)?|file:/\S+|sqlite:///\S+|(mysql|postgresql|mssql)(\+\w+)?://\S+)")
_DATABASE = re.compile(r"(sqlite|mysql|postgresql|mssql)(\+\w+)?:")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingSettings:
    """Table [tracking]: what studies are written to beside the ledger, while they run."""

    tensorboard: bool = False
    """Whether every study gets TensorBoard event files, in `studies/NAME/tensorboard`."""
    mlflow: str = ""
    """Address of an MLflow server ("https://mlflow.example"), or a folder (relative to the federation folder); one run
    per study. Empty: none. Names and passwords go into $MLFLOW_TRACKING_USERNAME and the like, not here."""
    mlflow_experiment: str = ""
    """The experiment that runs belong to; the name of the federation when empty."""
    wandb: str = ""
    """A project of Weights & Biases; one run per study. Empty: none."""
    wandb_mode: WandbMode = "offline"
    """"offline" writes runs to the folder wandb of the federation folder, for `wandb sync`; "online" sends them to the
    server of $WANDB_BASE_URL, or to W&B's own, with $WANDB_API_KEY."""

    def __post_init__(self) -> None:
        if _SCHEME.match(self.mlflow) and not _URI.fullmatch(self.mlflow):
            raise ValueError("mlflow: write a folder, or an address such as https://mlflow.example, without a name or"
                             " password in it.")
        if self.wandb and not _PROJECT.fullmatch(self.wandb):
            raise ValueError(f'wandb = "{self.wandb[:80]}": write the name of a project: letters, digits, "_", "-"'
                             ' and ".".')

    @property
    def any(self) -> bool:
        """Whether there is anything to do."""
        return self.tensorboard or bool(self.mlflow) or bool(self.wandb)


def mlflow_target(text: str, *, base: Path) -> str:
    """The address as MLflow takes it; a folder that is relative starts at `base`."""
    if _SCHEME.match(text):
        return text
    return (base / Path(text).expanduser()).resolve().as_uri()


def check_installed(settings: TrackingSettings) -> None:
    """Raises: BadConfiguration, naming the extra that is not installed, or what a database needs beyond it."""
    for wanted, package in ((settings.tensorboard, "tensorboard"), (bool(settings.mlflow), "mlflow"),
                            (bool(settings.wandb), "wandb")):
        if wanted and find_spec(package) is None:
            raise BadConfiguration(f"[tracking] {package}: the package {package} is not installed here.",
                                   remedy=how_to_install(f"semisilo[{package}]"))
    if _DATABASE.match(settings.mlflow) and find_spec("sqlalchemy") is None:
        raise BadConfiguration("[tracking] mlflow: a database without a server needs the whole of MLflow, which is not"
                               " installed here.", remedy=f"Name a server or a folder. Or: {how_to_install('mlflow')}")
