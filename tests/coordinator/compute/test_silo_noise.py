"""Before a study with differential privacy: its network, and the coordinator's secret for noise on the sum."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, StorageDamaged
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivacySettings
from semisilo.common.models.factory import model_builder
from semisilo.coordinator.compute.silo_noise import check_network, silo_noise
from semisilo.coordinator.ledger.records import NOISE_KEY

SILO = DifferentialPrivacy(unit="silo", noise_multiplier=1.5, clip_norm=2.0)
CLEAR = PrivacySettings(dp=SILO)


def test_a_study_that_hides_silos_has_a_secret_of_its_own_that_stays(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    found = silo_noise(CLEAR, first)
    assert found is not None
    assert (found.noise_multiplier, found.clip_norm, len(found.key)) == (1.5, 2.0, 32)
    assert silo_noise(CLEAR, first) == found
    assert silo_noise(CLEAR, other) != found
    assert stat.S_IMODE((first / NOISE_KEY).stat().st_mode) == 0o600
    assert found.key.hex() not in repr(found)


def test_other_studies_have_none(tmp_path: Path) -> None:
    assert silo_noise(PrivacySettings(), tmp_path) is None
    assert silo_noise(PrivacySettings(dp=DifferentialPrivacy(noise_multiplier=1.0)), tmp_path) is None
    assert silo_noise(PrivacySettings(dp=SILO, secure_aggregation=True), tmp_path) is None, "silos add it"
    assert not (tmp_path / NOISE_KEY).exists()


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / NOISE_KEY).write_bytes(b"x")
    with pytest.raises(StorageDamaged, match="32 bytes"):
        silo_noise(CLEAR, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "normalisation", "fits"), [
    ("resnet18", "static_batch", False), ("resnet18", "group", True), ("small_cnn", "layer", True),
    ("mlp_5000", "auto", True)])
def test_a_network_that_mixes_images_is_refused_before_any_silo_is_asked(name: str, normalisation: str,
                                                                        fits: bool) -> None:
    settings = ModelSettings(name=name, normalisation=normalisation, classes=("a", "b"))  # type: ignore[arg-type]
    build = model_builder(settings, ImageForm(size=32, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3))
    check_network(None, build, seed=1)
    if fits:
        check_network(SILO, build, seed=1)
        return
    with pytest.raises(BadConfiguration, match="batch-norm"):
        check_network(SILO, build, seed=1)
