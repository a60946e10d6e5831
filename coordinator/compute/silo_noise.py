"""What a study with differential privacy needs before it is opened: a network that it is defined for and, where the
coordinator adds the noise, the secret that this follows from, `<study>/noise.key`.

Tests: tests/coordinator/compute/test_silo_noise.py.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from semisilo.common.errors import BadConfiguration, StorageDamaged
from semisilo.common.learning.privacy.example_gradients import mixes_images
from semisilo.common.learning.training import unloaded_model
from semisilo.common.methods.contract import ModelBuilder
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivacySettings, SiloNoise
from semisilo.common.storage.durable import write_secret
from semisilo.coordinator.ledger.records import NOISE_KEY

__all__ = ["check_network", "silo_noise"]

_KEY_BYTES = 32


def check_network(dp: DifferentialPrivacy | None, build: ModelBuilder, *, seed: int) -> None:
    """Raises: BadConfiguration for a network of which every silo would refuse the study's tasks."""
    if dp is not None and mixes_images(unloaded_model(build, seed=seed)):
        raise BadConfiguration(
            "[privacy.dp] is not defined for a network with batch-norm layers, in which every image of a batch changes"
            " what all others contribute.",
            remedy='Set [model] normalisation = "group" or "layer", or freeze all these layers with the statistics of'
                   " trained weights.")


def silo_noise(privacy: PrivacySettings, folder: Path) -> SiloNoise | None:
    """What a strategy averages with; None for a study without differential privacy of silos, and where silos clip and
    add the noise themselves, behind masks.

    The secret is made at the first call, from the system's generator. A lost one is made anew: later rounds have other
    noise then, as good as that of before.
    Raises: StorageDamaged where it is there and no such secret.
    """
    dp = privacy.dp
    if dp is None or dp.unit != "silo" or privacy.secure_aggregation:
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
