"""A study, its card, and a task of it, for tests of what silos sign."""

from __future__ import annotations

from semisilo.common.config import to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.studies.card import card_of
from semisilo.coordinator.studies.study_file import config_from_dict

__all__ = ["CARD", "CONFIG", "FROZEN", "TASK"]

CONFIG = config_from_dict({
    "study": {"rounds": 3, "start_with": 2, "seed": 7},
    "data": {"labelled": "digits", "image": {"size": 8, "channels": 1, "mean": [0.5], "std": [0.5]}},
    "method": {"name": "semifl", "local_epochs": 5}}, where="study.toml")
FROZEN = FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), num_labelled=4,
                     num_validation=0, num_test=0, num_parameters=10, dense_bytes=40)
CARD = card_of("s", CONFIG, FROZEN)
TASK = TaskSpec(
    task_id="s/1/0-train/a", study="s", round=1, rounds=3, phase="train", silo="a", method="semifl",
    settings={**to_dict(CONFIG.method.settings), "round_lr": 0.1},
    model=ModelSettings(name=CONFIG.model.name, classes=("a", "b"), normalisation=CONFIG.model.normalisation),
    image=FROZEN.image, augmentation=CONFIG.augmentation.decided(()), numerics=CONFIG.numerics, payloads=(),
    last_folded_round=0, seed=7, uplink=CONFIG.wire.uplink_form(), measure=str(FROZEN.study_measure),
    card=CARD.digest())
