"""A silo's images are compared with the study's in the network's features, and the difference stays at the site."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semisilo.common.learning.batch_norm import LayerStatistics
from semisilo.common.text.cli_errors import run_cli
from semisilo.silo.check.likeness import look_at_features
from semisilo.silo.cli.main import app
from semisilo.silo.compute.feature_likeness import feature_distances
from semisilo.silo.compute.messages import Train
from semisilo.silo.compute.operations import Operations
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.study_features import StudyFeatures, note_study_features, read_study_features
from tests.silo.check.test_report import needs
from tests.silo.compute.test_operations import NUM_IMAGES, Site, all_digits


def layer(mean: list[float], std: list[float]) -> LayerStatistics:
    return LayerStatistics(10.0, torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64) ** 2)


def told(mean: list[float], std: list[float], name: str = "a") -> dict[str, torch.Tensor]:
    return {f"{name}.mean": torch.tensor(mean), f"{name}.var": torch.tensor(std) ** 2}


def test_the_distance_is_that_of_gaussians_in_the_studys_deviations() -> None:
    same = layer([1.0, -2.0], [0.5, 3.0])
    assert feature_distances({"a": same}, told([1.0, -2.0], [0.5, 3.0])) == {"a": 0.0}
    # by hand: channels ((1 - 0)^2 + (2 - 4)^2) / 16 and ((3 - 3)^2 + (1 - 2)^2) / 4
    found = feature_distances({"a": layer([1.0, 3.0], [2.0, 1.0])}, told([0.0, 3.0], [4.0, 2.0]))
    assert found["a"] == pytest.approx(math.sqrt((5 / 16 + 1 / 4) / 2))
    assert feature_distances({"a": same, "b": same}, told([1.0, -2.0], [0.5, 3.0])).keys() == {"a"}
    assert feature_distances({"a": same}, told([1.0], [0.5])) == {}, "another number of channels"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    source = tmp_path / "scans.npz"
    np.savez(source, train_images=(all_digits().images[100:100 + NUM_IMAGES] * 15).astype(np.uint8))
    return Site(tmp_path, str(source))


def noisy(site: Site) -> str:
    """Source of the same images with noise over them."""
    images = (all_digits().images[100:100 + NUM_IMAGES] * 15).astype(np.uint8)
    noise = np.random.default_rng(1).integers(0, 200, images.shape)
    path = Path(site.source).with_name("noisy.npz")
    np.savez(path, train_images=np.minimum(images + noise, 255).astype(np.uint8))
    return str(path)


def request(site: Site, **changes: Any) -> Train:
    """As of `Site`, of a task with changes to `TaskSpec` among them."""
    of_task = {name: changes.pop(name) for name in ("round", "rounds", "method", "settings") if name in changes}
    site.spec = replace(site.spec, **of_task)
    return site.request(**changes)


def operations() -> Operations:
    return Operations(lambda fraction, text: None, device="cpu")


def test_images_of_the_studys_kind_are_near_and_noisy_ones_are_told_of(
        site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "features.json"
    with caplog.at_level(logging.WARNING, "semisilo.work"):
        operations().train(site.request(features_file=file))
        found = read_study_features(file)
        assert found is not None
        assert (found.study, found.round, found.images, found.is_unlike) == ("s", 1, 60, False)
        assert 0 < found.distance < 0.2
        assert caplog.text == ""
        operations().train(site.request(features_file=file, choice=JoinChoice(source=noisy(site))))
    found = read_study_features(file)
    assert found is not None
    assert found.is_unlike
    assert f"{found.text}. Look at them: silo data" in caplog.text
    assert f"60 images of this site look unlike those of study s in the features of its network (round 1): " \
           f"{found.distance:.2f} standard deviations away, up to 0.2 is usual" == found.text


def test_comparing_changes_no_bit_of_the_answer(site: Site, tmp_path: Path) -> None:
    plain, compared = operations(), operations()
    results = [(plain.train(request(site, round=number)),
                compared.train(request(site, round=number, features_file=tmp_path / "features.json")))
               for number in (1, 2)]
    for without, with_it in results:
        assert replace(without, seconds=0.0) == replace(with_it, seconds=0.0)
    assert (found := read_study_features(tmp_path / "features.json")) is not None
    assert found.round == 2


def test_it_is_looked_at_first_and_whenever_rounds_have_doubled(site: Site, tmp_path: Path) -> None:
    working, file = operations(), tmp_path / "features.json"
    seen: list[Any] = []
    for number in range(3, 14):
        file.unlink(missing_ok=True)
        working.train(request(site, round=number, rounds=20, features_file=file))
        seen += [number] if file.exists() else []
    assert seen == [3, 6, 12]
    working.train(request(site, round=13, features_file=file, authority="other"))
    assert (found := read_study_features(file)) is not None
    assert found.round == 13, "of another federation's study of that name nothing is known yet"


def test_what_cannot_be_compared_costs_nothing(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "features.json"
    assert operations().train(site.request(features_file=file)).payload is not None, "no folder to write it to"
    few = tmp_path / "few.npz"
    np.savez(few, train_images=(all_digits().images[:19] * 15).astype(np.uint8))
    file = tmp_path / "features.json"
    assert operations().train(site.request(features_file=file, choice=JoinChoice(source=str(few)))).payload is not None
    assert not file.exists(), "19 images"
    site.given.pop("batch_norm")
    labelled = tmp_path / "labelled.npz"
    np.savez(labelled, train_images=(all_digits().images[:60] * 15).astype(np.uint8),
             train_labels=all_digits().target[:60])
    result = operations().train(request(
        site, method="fedavg", settings={"scenario": "labels-at-silo", "local_epochs": 1}, features_file=file,
        choice=JoinChoice(source=str(labelled))))
    assert result.payload is not None
    assert not file.exists(), "no statistics to compare with"


def noted(**changes: Any) -> StudyFeatures:
    return replace(StudyFeatures(study=needs().task.study, round=4, images=64, layer="norm1", distance=0.5), **changes)


def test_check_says_it_of_the_study_that_there_is(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    assert look_at_features(home, needs()) == []
    note_study_features(home.study_features, noted())
    (found,) = look_at_features(home, needs())
    assert (found.what, found.state, found.facts["distance"]) == ("features", "warning", 0.5)
    assert "look unlike those of study" in found.text
    assert "silo data" in found.remedy
    note_study_features(home.study_features, noted(distance=0.2))
    (found,) = look_at_features(home, needs())
    assert (found.state, found.remedy) == ("ok", "")
    assert "look like those of study" in found.text
    note_study_features(home.study_features, noted(study="another"))
    assert look_at_features(home, needs()) == []


def test_data_says_it_of_the_images_of_the_last_join_alone(tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "scans.npz"
    np.savez(source, train_images=(all_digits().images[:30] * 15).astype(np.uint8))
    (tmp_path / "silo.toml").write_text(f'[data]\nsource = "{source}"\n')
    home = SiloHome(tmp_path)

    def shown(*words: str) -> str:
        assert run_cli(app, ["data", *words, "--home", str(tmp_path)], name="silo") == 0
        return " ".join(capsys.readouterr().out.split())

    note_study_features(home.study_features, noted(distance=0.2))
    assert "in the features" not in shown()
    note_study_features(home.study_features, noted())
    assert shown().count("look unlike those of study") == 1
    assert "in the features" not in shown(str(source))


@pytest.mark.parametrize("content", [
    b"", b"{}", b'{"study": "s", "round": 1, "images": 64, "layer": "a", "distance": NaN}',
    b'{"study": "s", "round": 1, "images": 19, "layer": "a", "distance": 0.1}'])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "features.json"
    note_study_features(path, noted())
    assert read_study_features(path) == noted()
    path.write_bytes(content)
    assert read_study_features(path) is None
