"""Fed-SHVR's silo half: soft labels once per round, plain SGD on corrected gradients, control variates, edge cases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, ComputeFailed, LayoutMismatch
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import SGDSettings, make_optimiser, step
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fed_shvr import FedSHVRMemory, FedSHVRTrainer

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
SETTINGS = {"lr": 0.05, "labelled_batch": 5, "unlabelled_batch": 8, "correction_epoch": 1, "alpha0_ramp": "linear",
            "ramp_epochs": 10}


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int, seed: int = 0, *, labelled: bool = False) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3 if labelled else None, tuple(map(str, range(count))))


LABELLED, UNLABELLED = _images(7, 1, labelled=True), _images(23)
BOTH = SiloData(labelled=LABELLED, unlabelled=UNLABELLED)


def _statistics(build: Any, w: dict[str, Tensor]) -> dict[str, Tensor]:
    model = build()
    tensors.load_into(model, w)
    return batch_norm.to_tensors(batch_norm.measure(model, UNLABELLED.images_NCHW, form=FORM,
                                                    generator=torch.Generator().manual_seed(1)))


def _task(build: Any = _net, *, round: int = 1, silo: str = "a", policy: Any = "none", phase: str = "train",
          progress: Any = None, correction: dict[str, Tensor] | None = None, groups: Any = None,
          **settings: Any) -> SiloTask:
    w = initial_model(build, 3)
    sent = {"model": TensorGroup(w)}
    statistics = _statistics(build, w)
    if statistics and phase == "train":
        sent["batch_norm"] = TensorGroup(statistics)
    if correction is not None:
        sent["correction"] = TensorGroup(correction)
    values: dict[str, Any] = {**SETTINGS, **settings}
    return SiloTask(study="s", round=round, rounds=5, phase=phase, silo=silo, seed=1,
                    settings=FedSHVRSettings(**values), groups=sent if groups is None else groups, build_model=build,
                    augmentation=AugmentationSettings(policy=policy), image=FORM, progress=progress)


def _train(task: SiloTask, memory: FedSHVRMemory | None = None, data: SiloData = BOTH) -> Any:
    update, kept = FedSHVRTrainer().train(task, data, memory)
    check_metrics(METHODS["fed_shvr"], update.metrics, update=not update.abstention, phase=task.phase)
    return update, kept


def _full(w: Any, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in w.items()}


def _drawn(kind: str, count: int, size: int, steps: int) -> list[Tensor]:
    """Batches of a stream that shuffles a set, goes through it, shuffles again, written without any of the trainer."""
    generator, stream = torch_generator(1, f"{kind}_order", round=1, silo="a"), []
    while len(stream) < steps * size:
        stream += torch.randperm(count, generator=generator).tolist()
    return [torch.tensor(stream[number * size:(number + 1) * size]) for number in range(steps)]


@pytest.mark.parametrize(("build", "settings", "d"), [
    (_net, {}, None), (_net, {"alpha1": 0.0}, None),
    (_net, {"alpha2": 0.0, "alpha0_ramp": "none", "ramp_epochs": 50}, 0.3),
    (_plain, {"alpha0": 3.0, "local_epochs": 3}, -0.2), (_net, {"alpha0": 0.0, "alpha2": 0.0}, 0.1),
    (_net, {"r2_reduction": "sum"}, None),
])
def test_training_is_the_specified_sequence_of_steps(build: Any, settings: dict[str, Any], d: float | None) -> None:
    """A plain reference with tensors only: v from eq. 8 with the received statistics, then tau = floor(E * 23 / 8)
    steps w -= lr (gradient + d) with two forward passes; alpha0 = x of the linear ramp in epoch e of the round."""
    received = initial_model(build, 3)
    given = None if d is None else _full(received, d)
    task = _task(build, correction=given, correction_at="coordinator", **settings)
    update, memory = _train(task)
    values: FedSHVRSettings = task.settings
    steps = values.local_epochs * 23 // 8
    x_l, x_u = (augment.to_input(each.images_NCHW, FORM) for each in (LABELLED, UNLABELLED))
    model = build()
    tensors.load_into(model, received)
    batch_norm.load(model, _statistics(build, received))

    def alpha0(epoch: int) -> float:
        return values.alpha0 * (1.0 if values.alpha0_ramp == "none" else epoch / 10)

    with torch.no_grad():
        f = torch.softmax(model.eval()(x_u).double(), dim=1)
    if values.alpha1:
        v = f ** (alpha0(1) / values.alpha1)
        v = (v / v.sum(dim=1, keepdim=True)).float()
    else:
        v = torch.eye(3)[f.argmax(dim=1)]
    model.train()
    losses = []
    for number, (xi, zeta) in enumerate(zip(_drawn("labelled", 7, 5, steps), _drawn("unlabelled", 23, 8, steps),
                                            strict=True)):
        epoch = 1 + number * values.local_epochs // steps
        p_l, p_u = torch.softmax(model(x_l[xi]), dim=1), torch.softmax(model(x_u[zeta]), dim=1)
        ce = -(p_l[torch.arange(5), LABELLED.labels_N[xi]]).log().mean()  # type: ignore[index]
        soft = -(v[zeta] * p_u.log()).sum(dim=1).mean()
        r2 = (math.log(3) + (p_u * p_u.log()).sum(dim=1)).sum() / (1 if values.r2_reduction == "sum" else len(zeta))
        loss = ce + alpha0(epoch) * soft + values.alpha2 * r2
        losses.append(float(ce.detach()))
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        with torch.no_grad():
            for w, gradient in zip(model.parameters(), gradients, strict=True):
                assert gradient is not None
                w -= 0.05 * (gradient + (d or 0.0))
    for name, w in model.named_parameters():
        assert torch.allclose(update.groups["model"].tensors[name], w.detach() - received[name], atol=1e-5), name
    assert update.metrics["steps"] == steps
    assert update.metrics["labelled_loss"] == pytest.approx(sum(losses) / steps, abs=1e-5)
    assert memory is None, "the coordinator keeps it"


def test_a_silo_alone_does_plain_sgd_step_for_step() -> None:
    """K = 1: with its own c_k as C the correction is 0, and every step is the shared SGD's without momentum, decay or
    clipping: equal bits."""
    _, memory = _train(_task(_plain))
    c = {name: tensor.float() for name, tensor in memory.c.items()}
    update, _ = _train(_task(_plain, round=2, correction=c, correction_round=1), memory)
    free, _ = _train(_task(_plain, round=2))
    assert update.metrics["correction_lost"] == 0.0
    assert tensors.digest(update.groups["model"].tensors) == tensors.digest(free.groups["model"].tensors)
    model, received = _plain(), initial_model(_plain, 3)
    tensors.load_into(model, received)
    x, y = augment.to_input(LABELLED.images_NCHW, FORM), LABELLED.labels_N
    optimiser = make_optimiser(model, SGDSettings(lr=0.05, momentum=0.0, nesterov=False, weight_decay=0.0,
                                                  clip_norm=0.0))
    for xi in _drawn("labelled", 7, 5, 2):
        step(optimiser, nn.functional.cross_entropy(model(x[xi]), y[xi]))  # type: ignore[index]
    alone, _ = _train(_task(_plain), data=SiloData(labelled=LABELLED))
    assert tensors.digest(alone.groups["model"].tensors) == tensors.digest(
        tensors.subtract(tensors.parameters_of(model), received))


def test_an_update_is_a_difference_to_the_received_model_which_stays_as_it_was() -> None:
    task = _task()
    before = tensors.digest(task.groups["model"].tensors)
    update, memory = _train(task)
    group = update.groups["model"]
    assert set(update.groups) == {"model"}
    assert group.meaning is Meaning.DIFFERENCE
    assert group.base == before == tensors.digest(task.groups["model"].tensors)
    assert update.num_examples == 30
    assert (memory.round, memory.epoch, memory.num_examples, memory.steps) == (1, 1, 30, 5)


# Labels ---------------------------------------------------------------------------------------------------------------

def test_labels_come_from_the_received_statistics_not_from_the_batch() -> None:
    """Statistics that shift every feature far below 0 leave the classifier's bias alone: every image has one label."""
    task = _task(alpha0_ramp="none", ramp_epochs=50)
    shifted = {"1.mean": torch.full((4,), 1e4), "1.var": torch.ones(4)}
    update, _ = _train(_task(alpha0_ramp="none", ramp_epochs=50,
                             groups={**task.groups, "batch_norm": TensorGroup(shifted)}))
    log_probs = torch.log_softmax(task.groups["model"].tensors["4.bias"], dim=0)
    expected = torch.softmax(log_probs / 0.75, dim=0) * 23
    assert [update.metrics[f"pseudo_labels/{k}"] for k in range(3)] == pytest.approx(expected.tolist(), rel=1e-4)


def test_soft_labels_are_all_kept_and_the_truth_is_reported_but_never_used() -> None:
    truth = SiloData(labelled=LABELLED, unlabelled=replace(UNLABELLED, labels_N=torch.arange(23) % 3))
    blind, known = _train(_task())[0], _train(_task(), data=truth)[0]
    assert blind.metrics["label_ratio"] == 1.0
    assert "pseudo_label_accuracy" not in blind.metrics
    assert sum(blind.metrics[f"pseudo_labels/{k}"] for k in range(3)) == pytest.approx(23, rel=1e-5)
    assert known.metrics["pseudo_label_accuracy"] == known.metrics["threshold_accuracy"]
    assert tensors.digest(blind.groups["model"].tensors) == tensors.digest(known.groups["model"].tensors)


def test_without_statistics_a_network_that_needs_them_labels_nothing() -> None:
    """Mean 0 and variance 1 would be wrong. Labelled images alone need none."""
    groups = {"model": _task().groups["model"]}
    update, memory = _train(_task(groups=groups))
    assert update.abstention == "no_statistics"
    assert memory is None
    assert not _train(_task(groups=groups), data=SiloData(labelled=LABELLED))[0].abstention


def test_a_received_model_that_is_not_finite_is_an_error_not_an_update() -> None:
    broken = TensorGroup(_full(initial_model(_plain, 3), float("nan")))
    with pytest.raises(ComputeFailed, match="diverged at this silo in round 1"):
        _train(_task(_plain, groups={"model": broken}))


# Control variates -----------------------------------------------------------------------------------------------------

def _mean_followed(update: Any, lr: float = 0.05) -> dict[str, Tensor]:
    return {name: -tensor.double() / (lr * update.metrics["steps"])
            for name, tensor in update.groups["model"].tensors.items()}


@pytest.mark.parametrize(("variant", "share"), [("fed_shvr", 1), ("fed_svr", 5)])
def test_a_silo_in_the_sum_is_corrected_by_c_less_its_own(variant: Any, share: int) -> None:
    """d = C / s - c_k, the same update as with that d from the coordinator; afterwards c_k = Delta_k - d."""
    _, memory = _train(_task(variant=variant))
    C = _full(memory.c, 0.7)
    C = {name: tensor.float() for name, tensor in C.items()}
    task = _task(round=2, variant=variant, correction=C, correction_round=1)
    update, after = _train(task, memory)
    d = {name: tensor / share - memory.c[name].float() for name, tensor in C.items()}
    same, _ = _train(_task(round=2, variant=variant, correction=d, correction_at="coordinator"))
    assert tensors.digest(update.groups["model"].tensors) == tensors.digest(same.groups["model"].tensors)
    assert update.metrics["correction_lost"] == 0.0
    for name, followed in _mean_followed(update).items():
        assert torch.allclose(after.c[name], followed - d[name], atol=1e-5), name
        assert after.c[name].dtype is torch.float64
    assert after.round == 2


def test_a_newcomer_goes_without_correction_and_keeps_what_it_followed() -> None:
    """The mean control that it receives is not for it yet; memory of an earlier epoch is not looked at."""
    C = _full(initial_model(_net, 3), 0.7)
    update, memory = _train(_task(round=3, correction=C))
    old = FedSHVRMemory(c=_full(memory.c, 9.0), epoch=0, round=2, num_examples=30, steps=5)
    again, renewed = _train(_task(round=3, correction=C, correction_epoch=4), old)
    free, _ = _train(_task(round=3))
    assert update.metrics["correction_lost"] == again.metrics["correction_lost"] == 0.0
    for each in (update, again):
        assert tensors.digest(each.groups["model"].tensors) == tensors.digest(free.groups["model"].tensors)
    assert all(torch.equal(memory.c[name], tensor) for name, tensor in _mean_followed(update).items())
    assert (renewed.epoch, renewed.round) == (4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, {"epoch": 9}, {"round": 9}, {"num_examples": 9}, {"c": {}}])
def test_a_silo_whose_memory_is_not_what_the_coordinator_has_says_so(memory: dict[str, Any] | None) -> None:
    _, kept = _train(_task())
    C = _full(initial_model(_net, 3), 0.7)
    task = _task(round=2, correction=C, correction_round=1)
    update, after = _train(task, None if memory is None else replace(kept, **memory))
    free, _ = _train(_task(round=2))
    assert update.metrics["correction_lost"] == 1.0
    assert tensors.digest(update.groups["model"].tensors) == tensors.digest(free.groups["model"].tensors)
    assert (after.round, after.epoch) == (2, 1)
    assert _train(task, kept)[0].metrics["correction_lost"] == 0.0


def test_more_images_than_before_count_as_a_lost_correction() -> None:
    _, kept = _train(_task())
    task = _task(round=2, correction=_full(initial_model(_net, 3), 0.7), correction_round=1)
    more = SiloData(labelled=LABELLED, unlabelled=_images(24))
    assert _train(task, kept, more)[0].metrics["correction_lost"] == 1.0


def test_fed_sh_has_no_correction_and_no_memory() -> None:
    update, memory = _train(_task(variant="fed_sh", correction=_full(initial_model(_net, 3), 0.7)))
    free, _ = _train(_task())
    assert memory is None
    assert tensors.digest(update.groups["model"].tensors) == tensors.digest(free.groups["model"].tensors)


def test_a_correction_of_another_layout_is_refused() -> None:
    with pytest.raises(LayoutMismatch):
        _train(_task(correction={"x": torch.ones(2)}, correction_at="coordinator"))


def test_memory_survives_the_disk(tmp_path: Path) -> None:
    _, memory = _train(_task())
    checkpoint.save(tmp_path / "memory", memory)
    read = checkpoint.load(tmp_path / "memory", FedSHVRMemory)
    task = _task(round=2, correction=_full(initial_model(_net, 3), 0.7), correction_round=1)
    one, other = (_train(task, each)[0] for each in (memory, read))
    assert other.metrics["correction_lost"] == 0.0
    assert tensors.digest(one.groups["model"].tensors) == tensors.digest(other.groups["model"].tensors)


# Edge cases -----------------------------------------------------------------------------------------------------------

def test_a_silo_with_labelled_or_unlabelled_images_only_trains_on_those() -> None:
    only_labels, _ = _train(_task(), data=SiloData(labelled=LABELLED, unlabelled=_images(0)))
    assert only_labels.metrics["steps"] == 2 * 7 // 5
    assert only_labels.metrics["unlabelled_loss"] == 0.0
    assert "label_ratio" not in only_labels.metrics
    assert only_labels.num_examples == 7
    only_images, _ = _train(_task(), data=SiloData(unlabelled=UNLABELLED))
    assert only_images.metrics["steps"] == 5
    assert only_images.metrics["labelled_loss"] == 0.0
    assert only_images.num_examples == 23
    assert any(tensor.any() for tensor in only_images.groups["model"].tensors.values())


@pytest.mark.parametrize("phase", ["train", "statistics"])
def test_a_silo_without_images_abstains_and_keeps_its_memory(phase: str) -> None:
    memory = FedSHVRMemory(c={"x": torch.ones(1)}, epoch=1, round=1, num_examples=3, steps=1)
    for data in (SiloData(), SiloData(labelled=_images(0, labelled=True), unlabelled=_images(0))):
        update, kept = _train(_task(phase=phase), memory, data)
        assert update.abstention == "no_data"
        assert kept is memory


def test_only_the_batch_that_batch_norm_cannot_use_is_left_out() -> None:
    """One unlabelled image is one value per channel in every batch; the labelled ones still train. With nothing else
    there is no step, and the silo abstains."""
    one = SiloData(labelled=LABELLED, unlabelled=_images(1))
    update, _ = _train(_task(_flat_net), data=one)
    labels, _ = _train(_task(_flat_net), data=SiloData(labelled=LABELLED))
    assert update.metrics["steps"] == 2
    assert tensors.digest(update.groups["model"].tensors) == tensors.digest(labels.groups["model"].tensors)
    memory = FedSHVRMemory(c={"x": torch.ones(1)}, epoch=1, round=1, num_examples=3, steps=1)
    nothing, kept = _train(_task(_flat_net), memory, SiloData(unlabelled=_images(1)))
    assert nothing.abstention == "no_usable_batch"
    assert kept is memory


def test_a_set_smaller_than_its_batch_gives_all_its_images_once() -> None:
    """Three labelled images in batches of five: every step has the gradient of the three, so their order is nothing."""
    few = LABELLED.subset([0, 1, 2])
    one, other = (_train(_task(_plain, round=round), data=SiloData(labelled=few))[0] for round in (1, 2))
    for name, tensor in one.groups["model"].tensors.items():
        assert torch.allclose(tensor, other.groups["model"].tensors[name], atol=1e-7), name


def test_the_whole_round_has_the_epochs_of_the_ramp_of_its_number() -> None:
    """Linear over 10 epochs, 2 a round: from round 5 on alpha0 is whole in the second epoch, from 6 on in both."""
    ramped = _train(_task(_plain, round=6, alpha1=0.0))[0]
    whole = _train(_task(_plain, round=6, alpha1=0.0, alpha0_ramp="none", ramp_epochs=50))[0]
    early = _train(_task(_plain, round=5, alpha1=0.0))[0]
    early_whole = _train(_task(_plain, round=5, alpha1=0.0, alpha0_ramp="none", ramp_epochs=50))[0]
    assert tensors.digest(ramped.groups["model"].tensors) == tensors.digest(whole.groups["model"].tensors)
    assert tensors.digest(early.groups["model"].tensors) != tensors.digest(early_whole.groups["model"].tensors)


def test_weak_views_are_used_where_the_study_has_them_and_for_training_only() -> None:
    plain, weak = _train(_task())[0], _train(_task(policy="semifl_official"))[0]
    assert tensors.digest(plain.groups["model"].tensors) != tensors.digest(weak.groups["model"].tensors)
    for k in range(3):
        assert plain.metrics[f"pseudo_labels/{k}"] == weak.metrics[f"pseudo_labels/{k}"], "labels see the images"


def test_bits_follow_from_seed_round_and_silo_alone() -> None:
    def bits(**changes: Any) -> str:
        return tensors.digest(_train(_task(policy="small", **changes))[0].groups["model"].tensors)

    torch.manual_seed(1)
    one = bits()
    torch.manual_seed(2)
    assert bits() == one
    assert bits(silo="b") != one
    assert bits(round=2) != one


def test_the_statistics_phase_measures_all_images_and_trains_nothing() -> None:
    memory = FedSHVRMemory(c={"x": torch.ones(1)}, epoch=1, round=1, num_examples=3, steps=1)
    update, kept = _train(_task(phase="statistics"), memory)
    assert update.groups["batch_norm"].tensors["1.count"].tolist() == [30 * 4]
    assert kept is memory
    with pytest.raises(BadPayload, match="steps"):  # which training must bring
        check_metrics(METHODS["fed_shvr"], update.metrics, update=True, phase="train")


def test_progress_rises_to_one_after_every_step() -> None:
    told: list[float] = []
    _train(_task(progress=lambda share, text: told.append(share)))
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)
    assert len(told) == 1 + 5


def test_divergence_is_an_error_not_an_update_of_nan() -> None:
    with pytest.raises(ComputeFailed, match="diverged at this silo in round 1"):
        _train(_task(lr=3e38))


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(BadPayload, match="no phase 'dance'"):
        _train(_task(phase="dance"))


def test_the_trainer_is_found_by_name() -> None:
    assert load_trainer("fed_shvr") is FedSHVRTrainer
