"""What all silos of a sum must be told alike goes into their masks, and nothing that differs between them does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadPayload
from semisilo.common.methods.contract import ModelSettings, PayloadRef, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.common.secure_aggregation.context import told_alike
from semisilo.common.secure_aggregation.mask_form import MaskForm
from tests.each_of import each_of

TASK = TaskSpec(
    task_id="s/3/2-train/a", study="s", round=3, rounds=9, phase="train", silo="a", method="fedavg",
    settings={"lr": 0.1}, model=ModelSettings(name="small_cnn", classes=("0", "1")),
    image=ImageForm(size=8, channels=1, mean=(0.0,), std=(1.0,)), augmentation=AugmentationSettings(),
    numerics=Numerics(), payloads=(PayloadRef("11" * 32, 100, ("model",), tensors="22" * 32),), last_folded_round=2,
    seed=7)
FORM = MaskForm(bits=18, bounds=(1.0, 2.0), silo_count=3)

def context(task: TaskSpec = TASK, *, phase: str = "train", form: MaskForm = FORM, roster: bytes = b"r") -> bytes:
    return told_alike(task, phase=phase, form=form, roster=roster)


def test_what_differs_between_silos_is_not_in_it() -> None:
    reference = PayloadRef("33" * 32, 50, ("model",), tensors="22" * 32, reference="44" * 32)
    other = replace(TASK, task_id="s/3/2-train/b", silo="b", payloads=(reference,), last_folded_round=0,
                    deadline_unix=9.0, secure="ff")
    assert context(other) == context()
    assert len(context()) == 32


@each_of("other", [
    {"study": "t"}, {"round": 4}, {"rounds": 10}, {"method": "semifl"}, {"settings": {"lr": 0.2}}, {"seed": 8},
    {"model": ModelSettings(name="resnet9", classes=("0", "1"))},
    {"image": ImageForm(size=9, channels=1, mean=(0.0,), std=(1.0,))},
    {"augmentation": AugmentationSettings(horizontal_flip=True)},
    {"payloads": (PayloadRef("11" * 32, 100, ("model",), tensors="23" * 32),)},
    {"payloads": (PayloadRef("11" * 32, 100, ("batch_norm",), tensors="22" * 32),)},
    {"payloads": ()},
])
def test_a_silo_that_was_told_something_else_has_another(other: dict[str, object]) -> None:
    assert context(replace(TASK, **other)) != context()  # type: ignore[arg-type]


def test_so_has_one_with_another_scale_phase_or_roster() -> None:
    found = {context(), context(form=replace(FORM, bounds=(1.0, 2.5))), context(roster=b"q"), context(phase="other"),
             context(form=replace(FORM, silo_count=4))}
    assert len(found) == 5


def test_whoever_is_asked_for_less_noise_than_the_others_has_another() -> None:
    """The noise of each protects all. That of images is a silo's own affair, unless they share it."""
    dp = DifferentialPrivacy(unit="silo", noise_multiplier=1.0)
    asked = [None, dp, replace(dp, noise_multiplier=0.1), replace(dp, clip_norm=2.0), replace(dp, honest_silos=9)]
    asked.append(DifferentialPrivacy(noise_multiplier=1.0, honest_silos=2))
    assert len({context(replace(TASK, dp=each)) for each in asked}) == 6
    assert context(replace(TASK, dp=DifferentialPrivacy(noise_multiplier=1.0))) == context()


def test_a_group_without_its_digest_is_refused() -> None:
    with pytest.raises(BadPayload, match="digest of every tensor group"):
        context(replace(TASK, payloads=(PayloadRef("11" * 32, 100, ("model",)),)))
