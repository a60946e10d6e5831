"""Self-training's coordinator half: the warm-up, a round, and the prior that silos are told."""

from __future__ import annotations

from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.averaged_training import AveragedTraining, log_prior
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.training import SGDSettings, cosine_lr
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.self_training import SelfTrainingState, SelfTrainingStrategy, warm_up_steps

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _images(labels: list[int]) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (len(labels), 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.tensor(labels), tuple(map(str, range(len(labels)))))


EVEN, UNEVEN = _images([0, 1, 2] * 4), _images([0] * 8 + [1] * 3 + [2])


def _environment(labelled: ImageSet | None = EVEN, **changes: Any) -> Environment:
    values: dict[str, Any] = {"seed": 1, "rounds": 4, "num_silos": 2, "data": CoordinatorData(labelled=labelled),
                              "build_model": _net, "image": FORM, "num_classes": 3,
                              "augmentation": AugmentationSettings(policy="none")}
    return Environment(**{**values, **changes})


def _strategy(labelled: ImageSet = EVEN, **settings: Any) -> SelfTrainingStrategy:
    return SelfTrainingStrategy(SelfTrainingSettings(
        **{"labelled_batch": 6, "warm_up_steps": 5, "coordinator_steps": 3, **settings}), _environment(labelled))


def _started(strategy: SelfTrainingStrategy) -> SelfTrainingState:
    return strategy.start(initial_model(_net, 1))


def _round(strategy: SelfTrainingStrategy, state: SelfTrainingState, factors: dict[str, float],
           round: int) -> SelfTrainingState:
    headers = tuple(UpdateHeader(silo, 10) for silo in sorted(factors))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        delta = {name: torch.full_like(tensor, factors[header.silo]) for name, tensor in state.w.items()}
        group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.digest(state.w))
        tally, _ = strategy.fold(state, tally, header, {"model": group}, None)
    return strategy.finish(state, TRAIN, tally, round=round)


def _training(initial: dict[str, Tensor], *, lr: float, steps: int, round: int, cosine: bool,
              momentum: dict[str, Tensor] | None, labelled: ImageSet = EVEN, plain: bool = False) -> AveragedTraining:
    training = AveragedTraining(_environment(), _net(), labelled, initial=initial, sgd=SGDSettings(lr=lr), steps=steps,
                                batch_size=6, log_prior_K=None if labelled.labels_N is None else log_prior(
                                    labelled.labels_N, 3), purpose=f"labelled_round_{round}", cosine=cosine,
                                momentum=momentum, plain_steps=steps if plain else 0)
    for _ in training.run():
        pass
    return training


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_silos_start_from_the_average_of_the_warm_up_with_its_own_statistics() -> None:
    state = _started(_strategy(warm_up_steps=20))
    initial = initial_model(_net, 1)
    warm_up = _training(initial, lr=0.03, steps=20, round=0, cosine=True, momentum=None)
    assert not _same(warm_up.average(), warm_up.position().parameters), "long enough to average"
    assert _same(state.w, warm_up.average())
    assert not _same(state.w, initial)
    assert (state.opt_buf, state.global_buf) == (None, None)
    model = _net()
    tensors.load_into(model, state.w)
    batch_norm.load(model, state.batch_norm)
    assert torch.isfinite(model.eval()(torch.zeros(1, 1, 4, 4))).all()
    assert [warm_up_steps(SelfTrainingSettings(), count) for count in (4, 40, 1000)] == [600, 1000, 4000]
    assert warm_up_steps(SelfTrainingSettings(warm_up_steps=7), 1000) == 7
    untouched = _started(_strategy(warm_up_steps=0))
    assert _same(untouched.w, initial)


def test_in_the_place_of_a_warm_up_silos_start_from_given_parameters_with_statistics_as_after_a_warm_up() -> None:
    strategy = _strategy(warm_up_steps=20)
    warmed = _started(strategy)
    started = strategy.start_from(warmed.w, loss=warmed.labelled_loss)
    assert _same(started.w, warmed.w)
    assert _same(started.batch_norm, warmed.batch_norm)
    assert _same(started.own_statistics, warmed.own_statistics)
    assert replace(started, w={}, batch_norm={}, own_statistics={}) == replace(
        warmed, w={}, batch_norm={}, own_statistics={})


@pytest.mark.parametrize("views", ["weak", "mixed"])
def test_a_round_is_average_then_momentum_then_steps_with_its_learning_rate(views: str) -> None:
    """Two rounds with the parts: server momentum 0.5, and the momentum of the steps carried over."""
    strategy = _strategy(labelled_views=views)
    state1 = _round(strategy, _started(strategy), {"a": 0.1, "b": 0.3}, 1)
    state2 = _round(strategy, state1, {"a": -0.2}, 2)
    assert state2.global_buf is not None
    for name, tensor in state2.global_buf.items():  # g1 = -0.2; g2 = 0.2; buf2 = 0.5 * -0.2 + 0.2
        assert torch.allclose(tensor, torch.full_like(tensor, 0.1), atol=1e-6), name
    expected = _training(tensors.subtract(state1.w, state2.global_buf), lr=cosine_lr(0.03, round=2, rounds=4), steps=3,
                         round=2, cosine=False, momentum=state1.opt_buf, plain=views == "weak")
    assert _same(state2.w, expected.position().parameters)
    assert state2.opt_buf is not None
    assert _same(state2.opt_buf, expected.momentum())
    assert state2.labelled_loss == expected.loss


def test_a_study_from_before_offsets_goes_on_without_them(tmp_path: Path) -> None:
    now = _started(_strategy(UNEVEN))
    older = [each.name for each in fields(now) if each.name != "offsets"]
    earlier = make_dataclass("SelfTrainingState", older)
    checkpoint.save(tmp_path / "state", earlier(*(getattr(now, name) for name in older)))
    loaded = checkpoint.load(tmp_path / "state", SelfTrainingState)
    after = _round(_strategy(UNEVEN), loaded, {"a": 0.1}, 1)
    without = _strategy(UNEVEN, sbn_offsets=False)
    assert after.offsets is None
    assert _same(after.w, _round(without, _started(without), {"a": 0.1}, 1).w)


def test_weak_views_of_the_labels_begin_in_round_1() -> None:
    assert _same(_started(_strategy(labelled_views="weak")).w, _started(_strategy()).w)


def test_without_updates_and_steps_the_model_stays() -> None:
    strategy = _strategy(coordinator_steps=0)
    state = _round(strategy, _started(strategy), {"a": 0.1}, 1)
    empty = _round(strategy, state, {}, 2)
    assert _same(empty.w, state.w)


@pytest.mark.parametrize(("labelled", "tau", "expected"), [
    (EVEN, 0.0, (1 / 3, 1 / 3, 1 / 3)), (UNEVEN, 1.0, (1 / 3, 1 / 3, 1 / 3)), (UNEVEN, 0.0, (8 / 12, 3 / 12, 1 / 12))])
def test_silos_are_told_the_prior_that_the_model_stands_for(labelled: ImageSet, tau: float,
                                                            expected: tuple[float, ...]) -> None:
    strategy = _strategy(labelled, logit_adjustment=tau)
    state = _started(strategy)
    task = strategy.task(state, TRAIN, "a", None, round=2)
    assert task.settings["model_prior"] == pytest.approx(expected, abs=1e-6)
    assert task.settings["round_lr"] == pytest.approx(cosine_lr(0.03, round=2, rounds=4))
    assert set(task.groups) == {"model", "batch_norm"}


def test_imbalanced_labels_are_learnt_with_their_prior_unless_it_is_off() -> None:
    on, off = (_started(_strategy(UNEVEN, logit_adjustment=tau)).w for tau in (1.0, 0.0))
    assert not _same(on, off)
    assert _same(on, _training(initial_model(_net, 1), lr=0.03, steps=5, round=0, cosine=True, momentum=None,
                               labelled=UNEVEN).average())


def test_it_needs_labels_and_is_found_by_its_name() -> None:
    with pytest.raises(BadData, match="needs labelled images"):
        SelfTrainingStrategy(SelfTrainingSettings(), _environment(None))
    assert load_strategy("self_training") is SelfTrainingStrategy


@pytest.mark.parametrize("labelled", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_with_labels_at_both_the_coordinator_does_what_it_does_with_labels_of_its_own_alone(labelled: ImageSet) -> None:
    ends = []
    for scenario in ("labels-at-both", "labels-at-coordinator"):
        strategy = _strategy(labelled, scenario=scenario, logit_adjustment=0.5)
        state = _started(strategy)
        task = strategy.task(state, TRAIN, "a", None, round=1)
        ends.append((_round(strategy, state, {"a": 0.1, "b": 0.3}, 1), task.settings, strategy.phases(state, 1)))
    (both, told, phases), (expected, expected_told, expected_phases) = ends
    assert (dict(told), phases) == (dict(expected_told), expected_phases)
    assert _same(both.w, expected.w)
    assert _same(both.batch_norm, expected.batch_norm)
    assert both.opt_buf is not None
    assert expected.opt_buf is not None
    assert _same(both.opt_buf, expected.opt_buf)
    assert (both.labelled_loss, both.accepted_step) == (expected.labelled_loss, expected.accepted_step)
    with pytest.raises(BadData, match="needs labelled images"):
        SelfTrainingStrategy(SelfTrainingSettings(scenario="labels-at-both"), _environment(None))


@pytest.mark.parametrize(("settings", "data", "phases"), [
    ({"warm_up_steps": 5}, CoordinatorData(labelled=EVEN), ["first-statistics", "train", "statistics"]),
    ({"scenario": "labels-at-silo"}, CoordinatorData(validation=EVEN), ["first-statistics", "train", "statistics"]),
    ({"scenario": "labels-at-silo"}, CoordinatorData(), ["first-statistics", "train", "statistics"]),
    ({"warm_up_steps": 5, "sbn_source": "coordinator"}, CoordinatorData(labelled=EVEN), ["train"]),
    ({"warm_up_steps": 5, "sbn_source": "auto"}, CoordinatorData(labelled=EVEN), ["train"]),
])
def test_silos_measure_batch_norm_statistics_with_the_coordinator_or_in_its_place(
        settings: dict[str, Any], data: CoordinatorData, phases: list[str]) -> None:
    """By the coordinator's alone, images of silos that look unlike its own were labelled wrong."""
    strategy = SelfTrainingStrategy(SelfTrainingSettings(**settings), _environment(data=data, summed=True))
    state = _started(strategy)
    assert [phase.name for phase in strategy.phases(state, 1)] == phases
    assert [phase.name for phase in strategy.phases(state, 2)] == [each for each in phases if "first" not in each]
    assert bool(state.own_statistics) == (data != CoordinatorData())


def _measured(strategy: SelfTrainingStrategy, state: SelfTrainingState, *, round: int,
              mean: float = 0.1) -> SelfTrainingState:
    """The statistics phase with one silo, whose images are a little brighter."""
    header = UpdateHeader("a", 100)
    sent = {"1.mean": torch.full((4,), mean), "1.var": torch.full((4,), 0.5), "1.count": torch.tensor([400])}
    tally = strategy.begin(state, STATISTICS, (header,), round=round)
    tally, _ = strategy.fold(state, tally, header, {"batch_norm": TensorGroup(sent)}, None)
    return strategy.finish(state, STATISTICS, tally, round=round)


def _class_means(state: SelfTrainingState, statistics: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
    """Of the logits of UNEVEN, mean over classes."""
    model = _net()
    tensors.load_into(model, w)
    batch_norm.load(model, statistics)
    logits_NK, labels_N = logits_of(model.eval(), UNEVEN.images_NCHW, FORM), UNEVEN.labels_N
    assert labels_N is not None
    return torch.stack([logits_NK[labels_N == kind].mean(dim=0) for kind in range(3)]).mean(dim=0)


def test_what_silos_statistics_add_to_the_logits_is_taken_out_of_the_bias_and_put_back_for_the_labels() -> None:
    """The coordinator trains without it, whatever round: offsets of several rounds do not add up."""
    strategy = _strategy(UNEVEN, coordinator_steps=0)
    before = _round(strategy, _started(strategy), {"a": 0.1}, 1)
    after = _measured(strategy, before, round=1)
    assert after.offsets is not None
    assert list(after.offsets) == ["4.bias"]
    own = strategy._statistics.used(before.own_statistics)
    wanted_K, raised_K = _class_means(before, own, before.w), _class_means(before, after.batch_norm, before.w)
    assert not torch.allclose(wanted_K, raised_K, atol=1e-2)
    assert UNEVEN.labels_N is not None
    along_K = torch.bincount(UNEVEN.labels_N).double().log()
    along_K -= along_K.mean()
    has_K = _class_means(after, after.batch_norm, after.w)
    assert float((has_K - wanted_K).double() @ along_K) == pytest.approx(0.0, abs=1e-5), "along the label shares"
    assert abs(float((raised_K - wanted_K).double() @ along_K)) > 1e-2
    assert [name for name in before.w if not torch.equal(before.w[name], after.w[name])] == ["4.bias"]
    later = _round(strategy, after, {}, 2)
    assert later.offsets == {}
    assert all(torch.allclose(later.w[name], before.w[name], atol=1e-6) for name in before.w)
    again = _measured(strategy, later, round=2)
    assert again.offsets is not None
    assert torch.allclose(again.offsets["4.bias"], after.offsets["4.bias"], atol=1e-5)


def test_the_coordinators_steps_begin_without_offsets() -> None:
    strategy = _strategy(UNEVEN)
    state = _measured(strategy, _started(strategy), round=1)
    assert state.offsets
    found = _round(strategy, state, {"a": 0.1}, 1)
    back = {name: tensor + state.offsets[name] if name in state.offsets else tensor for name, tensor in state.w.items()}
    expected = _training({name: tensor + 0.1 for name, tensor in back.items()}, lr=cosine_lr(0.03, round=1, rounds=4),
                         steps=3, round=1, cosine=False, momentum=None, labelled=UNEVEN)
    assert all(torch.allclose(found.w[name], tensor, atol=1e-5)
               for name, tensor in expected.position().parameters.items())


def test_the_gate_tries_the_model_whose_bias_fits_the_statistics_that_it_is_tried_with() -> None:
    """These are of the coordinator's own images; it was tried with the bias for those of all."""
    strategy, tried = _strategy(UNEVEN), list[tuple[dict[str, Tensor], dict[str, Tensor]]]()
    state = _measured(strategy, _started(strategy), round=1)
    assert state.offsets
    accepted = strategy._gate.accepted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategy._gate, "accepted", lambda w, after, *, round: (
            tried.append((dict(w), dict(after))), accepted(w, after, round=round))[1])
        _round(strategy, state, {"a": 0.1}, 1)
    ((before, after),) = tried
    back = {name: tensor + state.offsets[name] if name in state.offsets else tensor for name, tensor in state.w.items()}
    assert all(torch.allclose(before[name], back[name]) for name in back)
    assert all(torch.allclose(after[name], back[name] + 0.1, atol=1e-6) for name in back)


def test_offsets_can_be_turned_off_and_a_study_that_began_without_them_goes_on_so(tmp_path: Path) -> None:
    off, on = _strategy(UNEVEN, sbn_offsets=False), _strategy(UNEVEN)
    assert _started(on).offsets == {}
    for strategy, state in ((off, _started(off)), (on, replace(_started(on), offsets=None))):
        assert state.offsets is None
        after = _measured(strategy, state, round=1)
        assert _same(after.w, state.w)
        assert not _same(after.batch_norm, state.batch_norm)
        assert _round(strategy, after, {"a": 0.1}, 1).offsets is None
        checkpoint.save(tmp_path / "state", state)
        assert checkpoint.load(tmp_path / "state", SelfTrainingState).offsets is None


def test_without_imbalanced_labels_there_are_no_offsets() -> None:
    state = _started(_strategy(EVEN))
    assert state.offsets is None
    assert _same(_measured(_strategy(EVEN), state, round=1).w, state.w)


@pytest.mark.parametrize("measured", [False, True])
def test_offsets_survive_the_disk(measured: bool, tmp_path: Path) -> None:
    strategy = _strategy(UNEVEN)
    state = _started(strategy)
    state = _measured(strategy, state, round=1) if measured else state
    checkpoint.save(tmp_path / "state", state)
    loaded = checkpoint.load(tmp_path / "state", SelfTrainingState)
    assert loaded.offsets is not None
    assert bool(loaded.offsets) == measured
    one, other = (_round(strategy, each, {"a": 0.1}, 1) for each in (state, loaded))
    assert tensors.digest(one.w) == tensors.digest(other.w)
    one, other = (_measured(strategy, each, round=1) for each in (one, other))
    assert tensors.digest(one.w) == tensors.digest(other.w)


def test_with_labels_at_silos_the_coordinator_averages_and_silos_stand_for_equal_classes() -> None:
    strategy = SelfTrainingStrategy(SelfTrainingSettings(scenario="labels-at-silo"), _environment(None))
    initial = initial_model(_net, 1)
    state = strategy.start(initial)
    assert _same(state.w, initial)
    assert [phase.name for phase in strategy.phases(state, 1)] == ["statistics", "train", "statistics"]
    assert strategy.task(state, TRAIN, "a", None, round=1).settings["model_prior"] == (1 / 3,) * 3
    findings = SelfTrainingStrategy(SelfTrainingSettings(scenario="labels-at-silo", task="multi_label"),
                                    _environment(None))
    assert findings.task(state, TRAIN, "a", None, round=1).settings["model_prior"] == (0.5,) * 3, "of each class a half"
    measured = {name: torch.ones(4) for name in ("1.mean", "1.var")}
    after = _round(strategy, replace(state, batch_norm=measured), {"a": 0.1, "b": 0.3}, 1)
    assert all(torch.allclose(after.w[name], state.w[name] + 0.2, atol=1e-6) for name in state.w)
    assert after.batch_norm == measured, "until the silos have measured the new model"
    assert set(strategy.diagnostics(after)) == {"accepted_step"}
