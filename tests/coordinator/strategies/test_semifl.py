"""SemiFL's coordinator half: oracles of the aggregation, what is sent and expected, and the limits of a round."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData, UnknownName
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.training import SGDSettings, cosine_lr, train_labelled
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.parts.averaging import AverageTally
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.semifl import SemiFLState, SemiFLStrategy
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="none")


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _images(count: int = 12, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _environment(labelled: ImageSet | None = None, **changes: Any) -> Environment:
    labelled = _images() if labelled is None else labelled
    values: dict[str, Any] = {"seed": 1, "rounds": 4, "num_silos": 2, "data": CoordinatorData(labelled=labelled),
                              "build_model": _net, "image": FORM, "augmentation": AUGMENTATION}
    return Environment(**{**values, **changes})


def _strategy(**settings: Any) -> SemiFLStrategy:
    return SemiFLStrategy(SemiFLSettings(labelled_batch=5, **{"coordinator_epochs": 1, **settings}), _environment())


def _started(strategy: SemiFLStrategy) -> SemiFLState:
    return strategy.start(initial_model(_net, 1))


def _delta(state: SemiFLState, factor: float) -> TensorGroup:
    values = {name: torch.full_like(tensor, factor) for name, tensor in state.w.items()}
    return TensorGroup(values, Meaning.DIFFERENCE, tensors.digest(state.w))


def _round(strategy: SemiFLStrategy, state: SemiFLState, factors: dict[str, float], round: int = 1,
           sizes: dict[str, int] | None = None) -> SemiFLState:
    headers = tuple(UpdateHeader(silo, (sizes or {}).get(silo, 10)) for silo in sorted(factors))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        tally, _ = strategy.fold(state, tally, header, {"model": _delta(state, factors[header.silo])}, None)
    return strategy.finish(state, TRAIN, tally, round=round)


def _same(a: dict[str, Tensor] | None, b: dict[str, Tensor] | None) -> bool:
    if a is None or b is None:
        return a is b
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_oracle_s8_the_mean_is_over_the_updates_that_were_returned() -> None:
    """Models (1, 1) and (3, 5) are returned, (100, 100) is not; from w = (0, 0) the average is (2, 3)."""
    strategy = _strategy()
    state = replace(_started(strategy), w={"w": torch.zeros(2)})
    headers = tuple(UpdateHeader(silo, 1) for silo in ("a", "b"))
    tally = strategy.begin(state, TRAIN, headers, round=1)
    for header, model in zip(headers, ([1.0, 1.0], [3.0, 5.0]), strict=True):
        group = TensorGroup({"w": torch.tensor(model)}, Meaning.DIFFERENCE, tensors.digest(state.w))
        tally, _ = strategy.fold(state, tally, header, {"model": group}, None)
    assert len(tally.weights) == 2
    assert tally.delta is not None
    assert tally.delta["w"].tolist() == pytest.approx([2.0, 3.0], abs=1e-5)


def test_a_round_is_average_then_momentum_then_fine_tuning_with_its_learning_rate() -> None:
    """Recomputed with the parts: two rounds with a buffer, fine-tuning momentum carried over."""
    strategy = _strategy(global_momentum=0.5, coordinator_epochs=2)
    state0 = _started(strategy)
    state1 = _round(strategy, state0, {"a": 0.1, "b": 0.3}, round=1)
    state2 = _round(strategy, state1, {"a": -0.2}, round=2)
    assert state2.global_buf is not None
    for name, tensor in state2.global_buf.items():  # g1 = -0.2; g2 = 0.2; buf2 = 0.5 * -0.2 + 0.2
        assert torch.allclose(tensor, torch.full_like(tensor, 0.1), atol=1e-6), name
    model = _net()
    tensors.load_into(model, tensors.subtract(state1.w, state2.global_buf))
    expected = train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION,
                              sgd=SGDSettings(lr=cosine_lr(0.03, round=2, rounds=4)), epochs=2, batch_size=5, seed=1,
                              purpose="fine_tune", round=2, momentum=state1.opt_buf)
    assert _same(state2.w, tensors.parameters_of(model))
    assert _same(state2.opt_buf, expected.momentum)


def test_one_silo_without_momentum_or_fine_tuning_gives_its_own_model() -> None:
    strategy = _strategy(global_momentum=0.0, coordinator_epochs=0)
    state = _started(strategy)
    after = _round(strategy, state, {"a": 0.25})
    assert all(torch.allclose(after.w[name], state.w[name] + 0.25, atol=1e-6) for name in state.w)


def test_without_accepted_updates_model_and_momentum_stay_and_fine_tuning_goes_on() -> None:
    silent = _strategy(coordinator_epochs=0)
    state = _round(silent, _started(silent), {"a": 0.1})
    empty = _round(silent, state, {}, round=2)
    assert _same(empty.w, state.w)
    assert _same(empty.global_buf, state.global_buf)
    tuned = _strategy(coordinator_epochs=1)
    again = _round(tuned, state, {}, round=2)
    assert _same(again.global_buf, state.global_buf)
    assert not _same(again.w, state.w)


def test_weights_are_uniform_or_by_size_and_always_sum_to_one() -> None:
    headers = (UpdateHeader("a", 100), UpdateHeader("b", 300))
    uniform, size = _strategy(), _strategy(weighting="size")
    state = _started(uniform)
    assert uniform.begin(state, TRAIN, headers, round=1).weights == {"a": 0.5, "b": 0.5}
    assert size.begin(state, TRAIN, headers, round=1).weights == {"a": 0.25, "b": 0.75}
    nobody_counts = (UpdateHeader("a", 0), UpdateHeader("b", -7))
    assert size.begin(state, TRAIN, nobody_counts, round=1).weights == {"a": 0.5, "b": 0.5}


def test_round_0_fine_tunes_with_lr_1_and_measures_statistics() -> None:
    initial = initial_model(_net, 1)
    state = _strategy(coordinator_epochs=3).start(initial)
    model = _net()
    tensors.load_into(model, initial)
    train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION, sgd=SGDSettings(lr=0.03), epochs=3,
                   batch_size=5, seed=1, purpose="fine_tune", round=0)
    assert _same(state.w, tensors.parameters_of(model))
    assert state.global_buf is None
    assert list(state.batch_norm) == ["1.mean", "1.var"]
    batch_norm.load(model, state.batch_norm)
    assert model.eval()(torch.zeros(1, 1, 4, 4)).shape == (1, 3)


def test_a_task_carries_model_statistics_and_the_rounds_learning_rate() -> None:
    strategy = _strategy(lr=0.5)
    state = _started(strategy)
    one, other = (strategy.task(state, TRAIN, silo, None, round=3) for silo in ("a", "b"))
    assert set(one.groups) == {"model", "batch_norm"}
    assert all(group.meaning is Meaning.VALUES for group in one.groups.values())
    assert one.groups["model"] is other.groups["model"], "the same object is encoded once"
    assert one.settings == {"round_lr": cosine_lr(0.5, round=3, rounds=4)}
    assert _strategy(lr=0.5, schedule="constant").task(state, TRAIN, "a", None, round=3).settings == {"round_lr": 0.5}
    later = _round(strategy, state, {"a": 0.1})
    assert strategy.task(later, TRAIN, "a", None, round=2).groups["model"].tensors is later.w


def test_an_update_must_be_a_difference_to_the_model_that_was_sent() -> None:
    strategy = _strategy()
    state = _started(strategy)
    layout = strategy.expects(state, TRAIN, round=1)["model"]
    assert layout.meaning is Meaning.DIFFERENCE
    assert layout.base == tensors.digest(strategy.task(state, TRAIN, "a", None, round=1).groups["model"].tensors)
    assert layout.tensors == tensors.specs(state.w)


def test_the_order_of_the_phases_puts_statistics_behind_the_weights_they_measure() -> None:
    own, both = _strategy(), _strategy(sbn_source="coordinator+silos")
    state = _started(own)
    assert [own.phases(state, round) for round in (1, 2)] == [(TRAIN,), (TRAIN,)]
    assert both.phases(state, 1) == (STATISTICS, TRAIN, STATISTICS)
    assert both.phases(state, 2) == (TRAIN, STATISTICS)
    assert (STATISTICS.asks, STATISTICS.quorum) == ("roster", "any")


def _statistics(count: int, mean: float, var: float) -> dict[str, TensorGroup]:
    return {"batch_norm": TensorGroup({"1.mean": torch.full((4,), mean), "1.var": torch.full((4,), var),
                                       "1.count": torch.tensor([count])})}


def test_silos_statistics_are_merged_exactly_with_those_of_the_labels() -> None:
    strategy = _strategy(sbn_source="coordinator+silos")
    state = _started(strategy)
    assert set(strategy.task(state, STATISTICS, "a", None, round=1).groups) == {"model"}
    layout = strategy.expects(state, STATISTICS, round=1)["batch_norm"]
    assert layout.meaning is Meaning.VALUES
    theirs = {"a": _statistics(500, 2.0, 3.0), "b": _statistics(40, -1.0, 0.5)}
    assert layout.tensors == tensors.specs(theirs["a"]["batch_norm"].tensors)
    headers = tuple(UpdateHeader(silo, 500) for silo in theirs)
    tally = strategy.begin(state, STATISTICS, headers, round=1)
    for header in headers:
        tally, _ = strategy.fold(state, tally, header, theirs[header.silo], None)
    found = strategy.finish(state, STATISTICS, tally, round=1)
    own = batch_norm.from_tensors(state.own_statistics)
    assert own["1"].count == 12 * 4
    parts = [own, *(batch_norm.from_tensors(groups["batch_norm"].tensors) for groups in theirs.values())]
    expected = batch_norm.to_tensors(batch_norm.merge(parts))
    assert all(torch.allclose(found.batch_norm[name], expected[name], atol=1e-5) for name in expected)
    assert _same(found.w, state.w)


def test_impossible_statistics_of_one_silo_are_left_out() -> None:
    strategy = _strategy(sbn_source="coordinator+silos")
    state = _started(strategy)
    headers = (UpdateHeader("a", 1), UpdateHeader("b", 1))
    tally = strategy.begin(state, STATISTICS, headers, round=1)
    good, _ = strategy.fold(state, tally, headers[0], _statistics(9, 1.0, 1.0), None)
    both, _ = strategy.fold(state, good, headers[1], _statistics(9, 1.0, -1.0), None)
    assert _same(both.statistics, good.statistics)
    assert not _same(good.statistics, tally.statistics)


def test_a_statistics_phase_that_nobody_answers_keeps_the_labels_statistics() -> None:
    strategy = _strategy(sbn_source="coordinator+silos")
    state = _started(strategy)
    tally = strategy.begin(state, STATISTICS, (), round=1)
    assert _same(strategy.finish(state, STATISTICS, tally, round=1).batch_norm, state.batch_norm)


def test_a_network_without_batch_norm_sends_none_and_has_no_statistics_phase() -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    strategy = SemiFLStrategy(SemiFLSettings(sbn_source="coordinator+silos"), _environment(build_model=plain))
    state = strategy.start(initial_model(plain, 1))
    assert state.batch_norm == {}
    assert strategy.phases(state, 1) == (TRAIN,)
    assert set(strategy.task(state, TRAIN, "a", None, round=1).groups) == {"model"}


def test_final_epochs_come_after_the_last_round_only() -> None:
    plain, final = _strategy(), _strategy(final_epochs=2)
    state = _started(plain)
    assert _same(_round(plain, state, {"a": 0.1}, round=3).w, _round(final, state, {"a": 0.1}, round=3).w)
    assert not _same(_round(plain, state, {"a": 0.1}, round=4).w, _round(final, state, {"a": 0.1}, round=4).w)


def test_the_same_updates_in_another_strategy_object_give_the_same_bits() -> None:
    state = _started(_strategy())
    torch.manual_seed(99)
    assert _same(state.w, _started(_strategy()).w)
    one, two = (_round(_strategy(), state, {"a": 0.1, "b": -0.2}) for _ in range(2))
    assert _same(one.w, two.w)
    assert _same(one.batch_norm, two.batch_norm)


def test_state_and_tally_survive_the_disk_bit_for_bit(tmp_path: Path) -> None:
    strategy = _strategy(sbn_source="coordinator+silos")
    start = _started(strategy)
    for number, state in enumerate((start, _round(strategy, start, {"a": 0.1}))):
        checkpoint.save(tmp_path / str(number), state)
        found = checkpoint.load(tmp_path / str(number), SemiFLState)
        for field in fields(SemiFLState):
            mine, theirs = getattr(state, field.name), getattr(found, field.name)
            tensors_inside = isinstance(mine, dict) and field.name != "participation"
            assert _same(mine, theirs) if tensors_inside else mine == theirs, field.name
    tally = strategy.begin(start, TRAIN, (UpdateHeader("a", 1),), round=1)
    checkpoint.save(tmp_path / "tally", tally)
    assert checkpoint.load(tmp_path / "tally", AverageTally) == tally


def test_a_parallel_round_is_halfway_between_the_coordinators_training_and_the_silos_mean() -> None:
    """Table 2 of the paper: avg = 1/2 w_s + 1/2 mean w_k, then server momentum; recomputed with the parts."""
    strategy = _strategy(aggregation="parallel", global_momentum=0.5, coordinator_epochs=2)
    state0 = _started(strategy)
    assert _same(state0.w, initial_model(_net, 1)), "nothing is fine-tuned before the first round"
    state1 = _round(strategy, state0, {"a": 0.1, "b": 0.3}, round=1)
    model = _net()
    tensors.load_into(model, state0.w)
    trained = train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION,
                             sgd=SGDSettings(lr=cosine_lr(0.03, round=1, rounds=4)), epochs=2, batch_size=5, seed=1,
                             purpose="fine_tune", round=1)
    assert _same(state1.opt_buf, trained.momentum)
    for name, own in tensors.parameters_of(model).items():
        average = 0.5 * own + 0.5 * (state0.w[name] + 0.2)
        assert torch.allclose(state1.w[name], average, atol=1e-6), name


def test_in_a_parallel_round_without_updates_the_coordinator_goes_on_learning() -> None:
    """Else no silo would ever become confident: nothing is fine-tuned before they label. w = w_s without momentum."""
    strategy = _strategy(aggregation="parallel", global_momentum=0.0, coordinator_epochs=1)
    state0 = _started(strategy)
    after = _round(strategy, state0, {}, round=1)
    model = _net()
    tensors.load_into(model, state0.w)
    train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION,
                   sgd=SGDSettings(lr=cosine_lr(0.03, round=1, rounds=4)), epochs=1, batch_size=5, seed=1,
                   purpose="fine_tune", round=1)
    for name, own in tensors.parameters_of(model).items():
        assert torch.allclose(after.w[name], own, atol=1e-6), name


def test_fedfreq_counts_accepted_updates_and_weighs_the_frequent_less() -> None:
    """Silo a was there in both rounds, b only in the second: q = (2, 1), p = (1 - 2/3, 1 - 1/3)."""
    strategy = _strategy(weighting="fedfreq", coordinator_epochs=0, global_momentum=0.0)
    state = _round(strategy, _started(strategy), {"a": 0.0}, round=1)
    after = _round(strategy, state, {"a": 0.3, "b": 0.6}, round=2)
    assert after.participation == {"a": 2, "b": 1}
    for name, tensor in after.w.items():
        assert torch.allclose(tensor - state.w[name], torch.tensor(0.3 / 3 + 0.6 * 2 / 3), atol=1e-6), name


def test_fine_tuning_tells_how_far_it_is() -> None:
    told: list[float] = []
    environment = _environment(progress=lambda share, text: told.append(share))
    SemiFLStrategy(SemiFLSettings(labelled_batch=5, coordinator_epochs=2), environment).start(initial_model(_net, 1))
    assert told == sorted(told)
    assert len(told) >= 6
    assert told[-1] == 1.0


@each_of("labelled", [None, "empty", "unlabelled"])
def test_a_coordinator_without_labels_is_refused(labelled: str | None) -> None:
    sets = {None: None, "empty": _images(0), "unlabelled": _images(3).without_labels()}
    with pytest.raises(BadData, match="labelled images at the coordinator"):
        SemiFLStrategy(SemiFLSettings(), _environment(data=CoordinatorData(labelled=sets[labelled])))


def test_labels_at_the_silos_is_refused_by_name() -> None:
    settings = SemiFLSettings(scenario="labels-at-silo")  # type: ignore[arg-type]
    with pytest.raises(BadConfiguration, match="'labels-at-silo'"):
        SemiFLStrategy(settings, _environment())


def test_strategies_are_found_by_name() -> None:
    assert load_strategy("semifl") is SemiFLStrategy
    assert all(load_strategy(name).__name__ for name in METHODS)
    with pytest.raises(UnknownName, match="'semiflop'"):
        load_strategy("semiflop")
