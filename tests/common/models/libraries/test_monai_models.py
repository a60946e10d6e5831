"""Networks of MONAI: known by name without the package, built for the study's images, trainable in a federation."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, UnknownName
from semisilo.common.learning import batch_norm
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.factory import build_model, check_model, model_builder
from semisilo.common.models.libraries.monai_models import monai_names

installed = pytest.mark.skipif(find_spec("monai") is None, reason="the extra monai is not installed")
CLASSES = ("a", "b", "c")


@installed
@pytest.mark.slow  # MONAI is imported; quickly: names, below
@pytest.mark.parametrize(("name", "channels", "size"), [
    ("monai/densenet121", 1, 64), ("monai/resnet10", 3, 32), ("monai/seresnet50", 3, 64),
    ("monai/efficientnet-b0", 1, 64)])
def test_a_network_takes_the_studys_images_and_has_its_batch_norm_replaced(name: str, channels: int, size: int) -> None:
    form = ImageForm(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
    builder = model_builder(ModelSettings(name=name, classes=CLASSES), form)
    assert check_model(builder, form, 3) > 10_000
    assert batch_norm.layers_of(builder())


def test_without_the_package_the_remedy_is_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "monai.networks", None)
    with pytest.raises(BadConfiguration, match="not installed here") as caught:
        build_model(ModelSettings(name="monai/densenet121", classes=CLASSES), channels=1, size=64)
    assert "semisilo[monai]" in caught.value.remedy


def test_a_misspelt_name_has_the_nearest_one() -> None:
    assert len(monai_names()) == len(set(monai_names())) > 20
    with pytest.raises(UnknownName) as caught:
        build_model(ModelSettings(name="monai/densenet12", classes=CLASSES), channels=1, size=64)
    assert "monai/densenet121" in caught.value.remedy
