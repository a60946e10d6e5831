"""What a person does to have a library that is missing: how, hangs on where the program runs.

Tests: tests/common/text/test_installing.py.
"""

from __future__ import annotations

import importlib.util

__all__ = ["how_to_install"]


def how_to_install(package: str) -> str:
    """A sentence to stand in a remedy.

    Args:
        package: what pip would be told: "semisilo[onnx]", "pandas". An image is built with the extra of that name.
    """
    if importlib.util.find_spec("pip") is not None:
        return f"Install it: pip install '{package}'." if "[" in package else f"Install it: pip install {package}."
    # Containers and some services have no pip: nothing is installed there while they run.
    extra = package.partition("[")[2].removesuffix("]")
    if extra:
        return (f"This installation has no pip. Containers: build the image with \"{extra}\" in EXTRAS. systemd: run"
                f" install.sh with --extras {extra}.")
    return f"This installation has no pip: have {package} installed where its image or environment is made."
