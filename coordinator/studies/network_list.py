"""The networks that a study may name, for a list that is there at once: read from what is installed, without importing
it.

torchvision and timm put a decorator on each function that makes a network. Reading their source for it takes a tenth of
a second; importing both, to ask them, takes several. A study's network is always looked up in the packages themselves
(`semisilo.common.models.factory`).

Tests: tests/coordinator/studies/test_network_list.py.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from semisilo.common.errors import UnknownName
from semisilo.common.text.installing import how_to_install

__all__ = ["ListedNetwork", "NetworkList", "listed_networks", "matching"]

_OWN = ("small_cnn", "wide_resnet_28_2", "wide_resnet_28_8", "resnet9", "alexnet_like", "mlp_5000", "cnn13",
        "cnn13_no_bias")
"""Of `semisilo.common.models.factory`, which imports torch; a test holds them equal."""
_MONAI = (*(f"densenet{depth}" for depth in (121, 169, 201, 264)), "senet154",
          *(f"seresnet{depth}" for depth in (50, 101, 152)),
          *(f"resnet{depth}" for depth in (10, 18, 34, 50, 101, 152, 200)),
          *(f"efficientnet-b{number}" for number in range(9)))
"""Of `semisilo.common.models.libraries.monai_models`, which imports torch; a test holds them equal."""
_REGISTERED = re.compile(r"^@register_model(?:\((?:name=)?(?:\"(?P<name>\w+)\")?\))?$(?:\n(?!def ).*)*?\n"
                         r"def (?P<function>\w+)", re.MULTILINE)
"""The decorator alone on its line, with or without a name of its own, up to the function under it."""


@dataclass(frozen=True, slots=True)
class ListedNetwork:
    """A network by name."""

    name: str
    of: Literal["semisilo", "torchvision", "timm", "monai"]
    """Whose it is."""


@dataclass(frozen=True, slots=True)
class NetworkList:
    """All there are here."""

    networks: tuple[ListedNetwork, ...]
    has_timm: bool
    has_monai: bool


def listed_networks() -> NetworkList:
    """The built-in networks, torchvision's, and those of timm and MONAI where these are installed; in that order."""
    theirs = sorted(_registered("torchvision")) or _asked_torchvision()
    has_timm = importlib.util.find_spec("timm") is not None
    has_monai = importlib.util.find_spec("monai") is not None
    timm = sorted(_registered("timm"), key=_natural) or _asked_timm() if has_timm else []
    return NetworkList((*(ListedNetwork(name, "semisilo") for name in _OWN),
                        *(ListedNetwork(name, "torchvision") for name in theirs),
                        *(ListedNetwork(f"timm/{name}", "timm") for name in timm),
                        *(ListedNetwork(f"monai/{name}", "monai") for name in _MONAI if has_monai)),
                       has_timm, has_monai)


def matching(networks: Sequence[ListedNetwork], pattern: str) -> tuple[ListedNetwork, ...]:
    """Those whose name fits a pattern with "*", or holds the text where there is none; all for an empty one.

    Raises: UnknownName when there are none.
    """
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = tuple(each for each in networks if fnmatchcase(each.name, wanted))
    if not found:
        raise UnknownName(f"There is no network like '{pattern}'.",
                          remedy=f"All of them: coordinator models.{_more(wanted)}")
    return found


def _more(pattern: str) -> str:
    """What would bring networks that are not listed: those of packages that are not here, and could be meant."""
    missing = [package for package in ("timm", "monai") if importlib.util.find_spec(package) is None]
    there = [each for each in missing if each != "monai" or any(fnmatchcase(f"monai/{name}", pattern)
                                                               for name in _MONAI)]
    return "".join(f" Those of {name} need more. {how_to_install(f'semisilo[{each}]')}" for each, name in
                   (("monai", "MONAI"), ("timm", "timm")) if each in there)


def _registered(package: str) -> set[str]:
    """Names of the functions that a package registers in its folder "models"; none where there is no source."""
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else [Path(folder) / "models" for folder in spec.submodule_search_locations or ()]
    return {found["name"] or found["function"] for folder in folders for path in folder.glob("*.py")
            for found in _REGISTERED.finditer(path.read_text(encoding="utf-8"))}


def _asked_torchvision() -> list[str]:
    from semisilo.common.models.libraries.torchvision_models import torchvision_names

    return list(torchvision_names())


def _asked_timm() -> list[str]:
    from semisilo.common.models.libraries.timm_models import PREFIX, timm_names

    return [name.removeprefix(PREFIX) for name in timm_names()]


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name sort by their value, as timm lists its networks."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name.lower())]
