"""FedAvg's silo half: what it returns, what it keeps, when it abstains, and the limit in which it is Fed-SHVR."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, ComputeFailed
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fedavg import FedAvgMemory, FedAvgTrainer
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


DATA = SiloData(labelled=_images(12, 1), unlabelled=_images(26, 2))


def _groups(build: Any = _net) -> dict[str, TensorGroup]:
    w = initial_model(build, 3)
    model = build()
    tensors.load_into(model, w)
    found = batch_norm.measure(model, _images(26, 2).images_NCHW, form=FORM, generator=torch.Generator().manual_seed(1))
    return {"model": TensorGroup(w), "batch_norm": TensorGroup(batch_norm.to_tensors(found))}


def _task(build: Any = _net, *, phase: str = "train", round: int = 1, groups: Any = None, progress: Any = None,
          **settings: Any) -> SiloTask:
    values = {"round_lr": 0.1, "labelled_batch": 4, **settings}
    return SiloTask(study="s", round=round, rounds=5, phase=phase, silo="a", seed=1, settings=FedAvgSettings(**values),
                    groups=_groups(build) if groups is None else groups, build_model=build,
                    augmentation=AugmentationSettings(policy="none"), image=FORM, progress=progress)


def _train(task: SiloTask, data: SiloData = DATA,
           memory: FedAvgMemory | None = None) -> tuple[Update, FedAvgMemory | None]:
    return FedAvgTrainer().train(task, data, memory)


def _delta(update: Update) -> dict[str, Tensor]:
    return dict(update.groups["model"].tensors)


@each_of("objective", ["sl", "uda", "fixmatch", "pseudo_label", "mean_teacher"])
def test_an_update_is_a_difference_to_the_received_model(objective: str) -> None:
    task = _task(objective=objective)
    before = tensors.digest(task.groups["model"].tensors)
    update, memory = _train(task)
    group = update.groups["model"]
    assert set(update.groups) == {"model"}
    assert (group.meaning, group.base) == (Meaning.DIFFERENCE, before)
    assert any(tensor.any() for tensor in group.tensors.values())
    assert update.num_examples == 38, "n_k = N_k + M_k, whatever the objective looks at"
    assert memory is None
    assert tensors.digest(task.groups["model"].tensors) == before, "what was received stays as it was"
    check_metrics(METHODS["fedavg"], update.metrics, update=True)


def test_without_a_learning_rate_nothing_moves() -> None:
    assert all(not tensor.any() for tensor in _delta(_train(_task(objective="fixmatch", round_lr=0.0))[0]).values())


def test_labels_of_the_round_are_made_with_the_received_statistics() -> None:
    """Statistics that shift every feature far away turn all labels into one class; training itself never sees them."""
    shifted = {"1.mean": torch.full((4,), -1e4), "1.var": torch.ones(4)}
    groups = {**_groups(), "batch_norm": TensorGroup(shifted)}
    update, _ = _train(_task(objective="pseudo_label", groups=groups))
    assert sum(name.startswith("pseudo_labels/") for name in update.metrics) == 1
    assert sum(name.startswith("pseudo_labels/") for name in _train(_task(objective="pseudo_label"))[0].metrics) > 1
    batchwise = _train(_task(objective="pseudo_label", label_refresh="batch", groups=groups))[0]
    assert tensors.digest(_delta(batchwise)) == tensors.digest(
        _delta(_train(_task(objective="pseudo_label", label_refresh="batch"))[0]))


def test_a_silo_that_nobody_sent_statistics_labels_with_its_own() -> None:
    alone = {"model": _groups()["model"]}
    update, _ = _train(_task(objective="pseudo_label", groups=alone))
    assert update.metrics["label_ratio"] == 1.0


def test_abstentions_leave_memory_as_it_is() -> None:
    memory = FedAvgMemory(round=3)
    for task, data, reason in (
            (_task(), SiloData(), "no_data"), (_task(), SiloData(unlabelled=_images(5)), "no_labelled_data"),
            (_task(_flat_net), SiloData(labelled=_images(1)), "no_usable_batch")):
        update, kept = _train(task, data, memory)
        assert update.abstention == reason
        assert update.groups == {}
        assert kept is memory
        check_metrics(METHODS["fedavg"], update.metrics, update=False)


def test_momentum_is_kept_only_where_it_is_asked_for() -> None:
    """Two tasks with kept momentum are one descent: buf_2 = m buf_1 + g; without it the second starts anew."""
    _, memory = _train(_task(momentum=0.9, persist_local_momentum=True))
    assert memory is not None
    assert memory.momentum is not None
    assert memory.round == 1
    with_it, _ = _train(_task(round=2, momentum=0.9, persist_local_momentum=True), memory=memory)
    without, nothing = _train(_task(round=2, momentum=0.9), memory=memory)
    fresh, _ = _train(_task(round=2, momentum=0.9))
    assert nothing is None
    assert tensors.digest(_delta(without)) == tensors.digest(_delta(fresh)) != tensors.digest(_delta(with_it))
    foreign = replace(memory, momentum={"x": torch.ones(1)})
    again, _ = _train(_task(round=2, momentum=0.9, persist_local_momentum=True), memory=foreign)
    assert tensors.digest(_delta(again)) == tensors.digest(_delta(fresh))


def test_a_local_teacher_goes_on_where_it_ended() -> None:
    """With decay 1 the teacher never moves: in round 2 it is still round 1's received model, not round 2's."""
    settings: dict[str, Any] = {"objective": "mean_teacher", "ema_decay": 1.0, "alpha0_ramp": "none", "alpha0": 5.0}
    first = _groups()["model"].tensors
    _, memory = _train(_task(teacher="local", **settings))
    assert memory is not None
    assert memory.teacher is not None
    assert tensors.digest(memory.teacher) == tensors.digest(first)
    moved = {**_groups(), "model": TensorGroup({name: tensor + 0.3 for name, tensor in first.items()})}
    kept, after = _train(_task(round=2, groups=moved, teacher="local", **settings), memory=memory)
    assert after is not None
    assert after.teacher is not None
    assert tensors.digest(after.teacher) == tensors.digest(first)
    fresh, _ = _train(_task(round=2, groups=moved, **settings), memory=memory)
    assert tensors.digest(_delta(kept)) != tensors.digest(_delta(fresh))


def test_memory_survives_the_disk(tmp_path: Path) -> None:
    _, memory = _train(_task(momentum=0.9, persist_local_momentum=True, objective="mean_teacher", teacher="local"))
    assert memory is not None
    checkpoint.save(tmp_path / "m.safetensors", memory)
    again = checkpoint.load(tmp_path / "m.safetensors", FedAvgMemory)
    assert again.round == memory.round
    for name in ("momentum", "teacher"):
        assert tensors.digest(getattr(again, name)) == tensors.digest(getattr(memory, name))


def test_fed_pseudo_is_fed_shvr_without_its_regularisers_penalty_and_correction() -> None:
    """alpha1 = alpha2 = 0, first round (d = 0): the same labels, the same batches, the same ramp, plain SGD."""
    shared: dict[str, Any] = {"local_epochs": 2, "labelled_batch": 5, "unlabelled_batch": 8, "lr": 0.1}
    task = _task(objective="pseudo_label", steps_rule="fed_shvr", **shared)
    theirs = load_trainer("fed_shvr")().train(
        replace(task, settings=FedSHVRSettings(alpha1=0.0, alpha2=0.0, **shared)), DATA, None)[0]
    ours, _ = _train(task)
    assert ours.metrics["steps"] == theirs.metrics["steps"] == 6
    for name, tensor in _delta(ours).items():
        assert torch.allclose(tensor, theirs.groups["model"].tensors[name], atol=1e-6), name


def test_the_statistics_phase_measures_all_images_of_the_silo() -> None:
    update, _ = _train(_task(phase="statistics", groups={"model": _groups(_net)["model"]}))
    assert update.groups["batch_norm"].tensors["1.count"].tolist() == [38 * 2 * 2]


def test_another_phase_is_refused_and_divergence_is_an_error() -> None:
    with pytest.raises(BadPayload, match="nonsense"):
        _train(_task(phase="nonsense"))
    with pytest.raises(ComputeFailed, match="round 1"):
        _train(_task(round_lr=1e38))


def test_progress_is_told_and_may_abort() -> None:
    told: list[float] = []
    _train(_task(progress=lambda share, text: told.append(share)))
    assert told == sorted(told)
    assert told[0] == 0.0

    def abort(share: float, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(_task(progress=abort))
