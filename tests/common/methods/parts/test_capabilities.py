"""What a silo has to honour of a task: an older one says that it honours less, or says nothing."""

from __future__ import annotations

from dataclasses import replace

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.capabilities import CAPABILITIES, lacking
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from tests.each_of import each_of

TASK = TaskSpec(
    task_id="s/1/0-train/a", study="s", round=1, rounds=9, phase="train", silo="a", method="fedavg", settings={},
    model=ModelSettings(name="small_cnn", classes=("0", "1")),
    image=ImageForm(size=8, channels=1, mean=(0.0,), std=(1.0,)), augmentation=AugmentationSettings(),
    numerics=Numerics(), payloads=(), last_folded_round=0, seed=7)
IMAGES = DifferentialPrivacy(noise_multiplier=1.0)
SILOS = DifferentialPrivacy(unit="silo", noise_multiplier=1.0)
OF_PRIVACY = CAPABILITIES - {"image_standardisation"}


@each_of(("task", "needs"), [
    (TASK, set()), (replace(TASK, dp=IMAGES), {"differential_privacy"}),
    (replace(TASK, secure=b"x"), {"secure_aggregation"}),
    (replace(TASK, dp=IMAGES, secure=b"x"), {"secure_aggregation", "differential_privacy"}),
    (replace(TASK, dp=replace(IMAGES, honest_silos=3), secure=b"x"), OF_PRIVACY),
    (replace(TASK, dp=SILOS), {"differential_privacy"}), (replace(TASK, dp=SILOS, secure=b"x"), OF_PRIVACY),
    (replace(TASK, image=replace(TASK.image, standardise="image")), {"image_standardisation"})])
def test_a_silo_lacks_what_a_task_needs_and_it_does_not_announce(task: TaskSpec, needs: set[str]) -> None:
    assert len(lacking(task, ())) == len(needs)
    assert lacking(task, needs) == lacking(task, CAPABILITIES) == ()
    for each in needs:
        found, = lacking(task, needs - {each})
        assert ("[data.image" if each == "image_standardisation" else "[privacy") in found, "the line of the study file"
