"""The one form of a study's images: what cannot be one is refused before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from semisilo.common.data.form import ImageForm, Reading
from tests.each_of import each_of

GREY: dict[str, Any] = {"size": 8, "channels": 1, "mean": (0.5,), "std": (0.25,)}


def test_a_form_of_either_number_of_channels_can_be_made() -> None:
    assert ImageForm(**GREY).resize == "fit"
    assert ImageForm(size=4096, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3).reading == Reading()


@each_of(("change", "said"), [
    ({"size": 0}, "size = 0"), ({"size": 4097}, "size = 4097"), ({"mean": (0.5, 0.5)}, "need 1 value, one"),
    ({"std": ()}, "need 1 value, one"), ({"channels": 3}, "need 3 values, one"), ({"std": (0.0,)}, "std must be above"),
    ({"std": (float("inf"),)}, "std must be above"), ({"std": (float("nan"),)}, "std must be above")])
def test_a_form_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ImageForm(**{**GREY, **change})


@each_of(("change", "said"), [
    ({"window": "auto"}, 'window = "auto"'), ({"window": (40.0,)}, "give .centre, width."),
    ({"window": (40.0, 0.0)}, "the width above 0"), ({"window": (float("nan"), 400.0)}, "give .centre, width."),
    ({"window_number": 0}, "window_number = 0"), ({"window_number": 100}, "window_number = 100"),
    ({"frames": "last"}, 'frames = "last"'), ({"frames": 0}, "frames = 0"), ({"slices": "first"}, 'slices = "first"'),
    ({"slices": 10_001}, "slices = 10001")])
def test_a_reading_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Reading(**change)


@each_of("change", [
    {"window": (40.0, 400.0)}, {"window": "image"}, {"window_number": 99}, {"frames": 5}, {"frames": "middle"},
    {"slices": "all"}, {"slices": 10_000}])
def test_a_reading_that_can_be_is_taken(change: dict[str, Any]) -> None:
    (name, value), = change.items()
    assert getattr(Reading(**change), name) == value
