"""The bounds of baselines.md section 5: fully supervised, as the papers' study files write it, is central training.

The partially supervised one is the labelled-only line itself (tests/coordinator/compute/test_baseline.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from semisilo.common.learning import tensors
from semisilo.common.learning.training import SGDSettings, cosine_lr, train_labelled
from semisilo.common.methods.contract import CoordinatorData, Environment
from semisilo.common.models.factory import initial_model, model_builder
from semisilo.simulation import run
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.settings import load_simulated_study
from tests.labels_alone import train_labelled_only
from tests.semisilo.studies import study

ROUNDS = 3
RECIPE = {"objective": "sl", "lambda_s": 1.0, "local_epochs": 1, "lr": 0.1, "schedule": "cosine", "momentum": 0.9,
          "nesterov": True, "weight_decay": 5e-4, "clip_norm": 1.0, "persist_local_momentum": True,
          "sbn_source": "silos"}
"""Of benchmarks/papers/studies/semifl/table1-cifar10-fully-supervised.toml, but for the batch."""


@pytest.mark.slow
def test_one_silo_with_all_labels_and_a_round_per_epoch_is_the_recipe_of_the_labelled_only_line(tmp_path: Path) -> None:
    """With the whole set as one batch the order does not matter, so both take the same three steps from the same
    initial model: momentum goes on over the rounds, the learning rate falls on one cosine, statistics are of all
    training images."""
    tables = study("fedavg", "labels-at-silo", rounds=ROUNDS, silos=1, split={"all_labelled": True},
                   augmentation={"policy": "none", "without": []})
    tables["method"] = {"name": "fedavg", "scenario": "labels-at-silo", **RECIPE}
    dealt = deal_study(load_simulated_study(tables))
    images, config = dealt.silos_images()[0], dealt.config
    assert images.labelled is not None
    assert images.unlabelled is None
    size = len(images.labelled)
    tables["method"]["labelled_batch"] = size
    found = run(tables, out=tmp_path, device="cpu")

    environment = Environment(
        seed=config.study.seed, rounds=ROUNDS, num_silos=1, image=config.data.image,
        data=CoordinatorData(labelled=images.labelled, test=dealt.test), augmentation=config.augmentation.decided(()),
        build_model=model_builder(replace(config.model, classes=dealt.classes), config.data.image))
    line = train_labelled_only(environment, epochs=ROUNDS, batch_size=size)
    assert line.num_labelled == size == len(dealt.labels()[dealt.labelled_of(0)])
    assert line.steps == ROUNDS
    assert found.accuracy == pytest.approx(line.evaluation.accuracy, abs=2 / line.evaluation.count)
    assert found.rounds[-1].metrics["loss"] == pytest.approx(line.evaluation.loss, rel=1e-3)

    model = environment.build_model()
    tensors.load_into(model, initial_model(environment.build_model, environment.seed))
    train_labelled(model, images.labelled, form=environment.image, augmentation=environment.augmentation,
                   sgd=SGDSettings(lr=0.1), epochs=ROUNDS, batch_size=size, seed=1, purpose="test",
                   lr_of_epoch=lambda epoch: cosine_lr(0.1, round=epoch, rounds=ROUNDS))
    saved = load_file(found.model)
    for name, w in tensors.parameters_of(model).items():
        assert torch.allclose(saved[name], w, atol=1e-4), name
