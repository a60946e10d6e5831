"""The secret that the noise of a study with differential privacy of whole silos follows from: `<study>/noise.key`.

Tests: tests/coordinator/compute/test_silo_noise.py.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from semisilo.common.errors import StorageDamaged
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, SiloNoise
from semisilo.common.storage.durable import write_secret

__all__ = ["NOISE_KEY", "silo_noise"]

NOISE_KEY = "noise.key"
"""In the study's folder; 32 bytes, for its owner only. Whoever has it and the updates can take the noise away."""
_KEY_BYTES = 32


def silo_noise(dp: DifferentialPrivacy | None, folder: Path) -> SiloNoise | None:
    """What a strategy averages with; None for a study without differential privacy of silos.

    The secret is made at the first call, from the system's generator. A lost one is made anew: later rounds have other
    noise then, as good as that of before.
    Raises: StorageDamaged where it is there and no such secret.
    """
    if dp is None or dp.unit != "silo":
        return None
    path = folder / NOISE_KEY
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(_KEY_BYTES)
        write_secret(path, key)
    if len(key) != _KEY_BYTES:
        raise StorageDamaged(f"{path}: is not a secret of {_KEY_BYTES} bytes.", remedy="Remove it: a new one is made.")
    return SiloNoise(noise_multiplier=dp.noise_multiplier, clip_norm=dp.clip_norm, key=key)
