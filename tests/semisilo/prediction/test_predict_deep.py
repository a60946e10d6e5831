"""Predictions of images of 16 bits: black and white are those of the model's study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadData
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.models.exported import ModelFacts, facts_from_json
from semisilo.prediction.predictor import predict

FACTS = ModelFacts(model=ModelSettings(name="small_cnn", classes=("a", "b")), study="s", method="semifl", round=1,
                   state="", image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)),
                   ranges=(("16 bits", 65535.0),))
DARK = np.full((8, 8), 2000, dtype=np.uint16)
BRIGHT = np.full((8, 8), 60000, dtype=np.uint16)


class Seen:
    """Remembers what it is shown."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.values: list[int] = []

    def logits(self, images_BCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.values += images_BCHW[:, 0, 0, 0].tolist()
        return np.zeros((len(images_BCHW), 2), dtype=np.float32)


def shown(source: Any, facts: ModelFacts = FACTS) -> tuple[list[int], tuple[str, ...]]:
    model = Seen(facts)
    return model.values, predict(model, source).notes()


def sources(folder: Path, *pictures: NDArray[np.uint16]) -> list[Any]:
    """The same pictures in a folder, in a file of arrays, and as arrays."""
    (folder / "scans").mkdir()
    for index, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "scans" / f"{index}.png")
    np.savez(folder / "scans.npz", images=np.stack(pictures))
    return [folder / "scans", folder / "scans.npz", np.stack(pictures)]


def test_dark_images_are_as_dark_as_they_were_to_the_study(tmp_path: Path) -> None:
    for source in sources(tmp_path, DARK):
        values, notes = shown(source)
        assert values == [8]
        assert notes == ("values of 16 bits: 65535 and above are white, as in the model's study",)


def test_a_model_that_does_not_say_it_is_given_what_the_images_show(tmp_path: Path) -> None:
    for source in sources(tmp_path, DARK):
        values, notes = shown(source, replace(FACTS, ranges=()))
        assert values == [125]
        assert notes == ("values of 16 bits: 4095 and above are white, as far as these images show; the model does not"
                         " say what its study took",)


def test_images_beyond_the_white_of_the_study_are_said_to_be_so(tmp_path: Path) -> None:
    for source in sources(tmp_path, DARK, BRIGHT):
        values, notes = shown(source, replace(FACTS, ranges=(("16 bits", 4095.0),)))
        assert values == [8, 233]
        assert notes == ("values of 16 bits: 65535 and above are white, since these images go beyond 4095, the white of"
                         " the model's study: the model sees them darker",)


def test_nothing_is_said_of_8_bits_and_strange_ranges_are_refused() -> None:
    assert shown(np.zeros((2, 8, 8), dtype=np.uint8)) == ([0, 0], ())
    assert "ranges" not in replace(FACTS, ranges=()).to_json(), "as earlier versions wrote it"
    assert facts_from_json(FACTS.to_json(), where="model") == FACTS
    with pytest.raises(BadData, match="never divided by 17"):
        facts_from_json(FACTS.to_json().replace("65535.0", "17.0"), where="model")
