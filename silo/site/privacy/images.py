"""What differential privacy asks of the images of a site, whatever its budget: `silo check` says it before, and every
task is held against it.

Tests: tests/silo/compute/test_private_task.py and tests/silo/check/test_privacy.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from semisilo.common.errors import NotPermitted
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.silo.site.policy import PrivacyPolicy

__all__ = ["check_apart", "check_delta"]


def check_apart(dp: DifferentialPrivacy, tied: Sequence[str]) -> None:
    """Whether every image became what it is by itself.

    Args:
        tied: kinds of deep values whose range was found in several images together.
    Raises: NotPermitted.
    """
    if dp.unit == "example" and tied:
        raise NotPermitted(
            "Differential privacy of single images is not defined where black and white were found in the values of"
            f" several images together ({', '.join(tied)}): one bright image changes what all others become.",
            remedy='The study needs [data.image.reading] window = [centre, width], or "image"; or convert the images'
                   " to 8-bit grey.")


def check_delta(dp: DifferentialPrivacy, policy: PrivacyPolicy, images: int) -> None:
    """Whether both deltas mean something for so many images. Raises: NotPermitted."""
    for name, delta in (("[privacy.dp] delta of the study", dp.delta), ("[privacy] delta of silo.toml", policy.delta)):
        if images * delta >= 1:
            raise NotPermitted(f"{name} = {delta:g} says little with {images} images: it must be below one over their"
                               " number.", remedy="Lower it, for example to a tenth of that.")
