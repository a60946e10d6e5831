"""The coordinator's secret for noise on the sum: made once, kept, its own."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from semisilo.common.errors import StorageDamaged
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.coordinator.compute.silo_noise import NOISE_KEY, silo_noise

SILO = DifferentialPrivacy(unit="silo", noise_multiplier=1.5, clip_norm=2.0)


def test_a_study_that_hides_silos_has_a_secret_of_its_own_that_stays(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    found = silo_noise(SILO, first)
    assert found is not None
    assert (found.noise_multiplier, found.clip_norm, len(found.key)) == (1.5, 2.0, 32)
    assert silo_noise(SILO, first) == found
    assert silo_noise(SILO, other) != found
    assert stat.S_IMODE((first / NOISE_KEY).stat().st_mode) == 0o600
    assert found.key.hex() not in repr(found)


def test_other_studies_have_none(tmp_path: Path) -> None:
    assert silo_noise(None, tmp_path) is None
    assert silo_noise(DifferentialPrivacy(noise_multiplier=1.0), tmp_path) is None
    assert not (tmp_path / NOISE_KEY).exists()


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / NOISE_KEY).write_bytes(b"x")
    with pytest.raises(StorageDamaged, match="32 bytes"):
        silo_noise(SILO, tmp_path)
