"""FedRGD's coordinator half: the oracle through a real round, who goes on from which model, limits and edges."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.config import from_dict
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.training import SGDSettings, train_labelled
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import FROM_TASK, CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedrgd import FEDRGD, FedRGDSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.fedrgd import FedRGDSilo, FedRGDState, FedRGDStrategy, fedrgd_lr
from semisilo.coordinator.strategies.parts.labelled_training import CoordinatorTraining
from semisilo.coordinator.strategies.parts.phases import TRAIN
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="none")


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


class _Pair(nn.Module):
    """A network of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


def _images(count: int = 12) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {"seed": 1, "rounds": 20, "num_silos": 2, "data": CoordinatorData(labelled=_images()),
                              "build_model": _net, "image": FORM, "augmentation": AUGMENTATION}
    return Environment(**{**values, **changes})


def _strategy(environment: Environment | None = None, **settings: Any) -> FedRGDStrategy:
    return FedRGDStrategy(FedRGDSettings(**{"labelled_batch": 5, **settings}), environment or _environment())


def _started(strategy: FedRGDStrategy) -> FedRGDState:
    return strategy.start(initial_model(_net, 1))


class _Still(FedRGDStrategy):
    """Whose coordinator moves every weight by `step` instead of training."""

    step = 0.0

    def _trained(self, model: nn.Module, opt_buf: Any, *, round: int) -> CoordinatorTraining:
        tensors.load_into(model, {name: tensor + self.step for name, tensor in tensors.parameters_of(model).items()})
        return CoordinatorTraining(momentum={}, loss=0.0)


def _still(environment: Environment | None = None, **settings: Any) -> _Still:
    return _Still(FedRGDSettings(**settings), environment or _environment())


def _round(strategy: FedRGDStrategy, state: FedRGDState, models: dict[str, dict[str, Tensor]],
           kept: dict[str, FedRGDSilo | None], *, round: int = 1) -> tuple[FedRGDState, dict[str, FedRGDSilo | None]]:
    """A training phase whose silos return these models, sent as differences to what each was sent."""
    headers = tuple(UpdateHeader(silo, 10) for silo in sorted(models))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    after = dict(kept)
    for header in headers:
        sent = strategy.task(state, TRAIN, header.silo, kept.get(header.silo), round=round).groups["model"]
        delta = tensors.subtract(models[header.silo], sent.tensors)
        group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.group_digest(sent))
        tally, after[header.silo] = strategy.fold(state, tally, header, {"model": group}, kept.get(header.silo))
    return strategy.finish(state, TRAIN, tally, round=round), after


def _filled(state: FedRGDState, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in state.w.items()}


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_oracle_b9_through_a_round_of_the_strategy() -> None:
    """w_s = (1, 1); the four silos return the oracle's models, placed so that the split puts two into each group."""
    strategy = _still(_environment(build_model=_Pair))
    strategy.step = 1.0
    state = strategy.start({"w": torch.zeros(2)})
    silos = ("a", "b", "c", "d")
    split = strategy.begin(state, TRAIN, tuple(UpdateHeader(silo, 1) for silo in silos), round=1).groups  # type: ignore[union-attr]
    assert sorted(split.values()) == [0, 0, 1, 1]
    oracle = {0: [[2.0, 0.0], [3.0, 1.0]], 1: [[5.0, 4.0], [0.0, 0.0]]}
    models = {silo: {"w": torch.tensor(oracle[group].pop(0))} for silo, group in split.items()}
    after, kept = _round(strategy, state, models, {})
    assert after.group_means["0/w"].tolist() == pytest.approx([2.0, 0.666667], abs=1e-5)
    assert after.group_means["1/w"].tolist() == pytest.approx([2.0, 1.666667], abs=1e-5)
    assert after.w["w"].tolist() == pytest.approx([2.0, 1.166667], abs=1e-5)
    assert kept == {silo: FedRGDSilo(round=1, group=group) for silo, group in split.items()}


def test_in_the_next_round_a_silo_is_sent_its_groups_mean_and_others_the_mean_of_all() -> None:
    strategy = _still()
    state, kept = _round(strategy, _started(strategy), {silo: _filled(_started(strategy), value)
                                                        for silo, value in zip("abcd", (1.0, 2.0, 4.0, 8.0),
                                                                               strict=True)}, {})
    sent = {silo: strategy.task(state, TRAIN, silo, kept.get(silo), round=2).groups["model"] for silo in "abcde"}
    for silo in "abcd":
        remembered = kept[silo]
        assert remembered is not None
        assert all(torch.equal(tensor, state.group_means[f"{remembered.group}/{name}"])
                   for name, tensor in sent[silo].tensors.items())
    assert _same(dict(sent["e"].tensors), state.w)
    assert len({group.digest for group in sent.values()}) == 3, "two groups and the mean of all"
    assert len({id(group) for group in sent.values()}) == 3, "each encoded once"
    layout = strategy.expects(state, TRAIN, round=2)["model"]
    assert (layout.meaning, layout.base) == (Meaning.DIFFERENCE, FROM_TASK)


def test_updates_are_taken_from_the_model_that_each_silo_was_sent() -> None:
    """Silos that return 3 from different models give groups of (w_s + 3 + 3) / 3 with w_s the old mean."""
    strategy = _still()
    first, kept = _round(strategy, _started(strategy), {silo: _filled(_started(strategy), value)
                                                        for silo, value in zip("abcd", (1.0, 2.0, 4.0, 8.0),
                                                                               strict=True)}, {})
    second, _ = _round(strategy, first, {silo: _filled(first, 3.0) for silo in "abcd"}, kept, round=2)
    for name, tensor in first.w.items():
        assert torch.allclose(second.w[name], (tensor + 6.0) / 3, atol=1e-5), name


def test_a_group_of_an_older_round_counts_no_more() -> None:
    """a is in the first round only; in the third it is sent the mean of all, and after an empty round its group's."""
    strategy = _still()
    state0 = _started(strategy)
    state1, kept = _round(strategy, state0, {"a": _filled(state0, 1.0), "b": _filled(state0, 2.0)}, {})
    empty, kept = _round(strategy, state1, {}, kept, round=2)
    assert not _same(dict(strategy.task(empty, TRAIN, "a", kept["a"], round=3).groups["model"].tensors), empty.w)
    state3, kept = _round(strategy, empty, {"b": _filled(state0, 5.0)}, kept, round=3)
    assert kept["a"] == FedRGDSilo(round=1, group=kept["a"].group)  # type: ignore[union-attr]
    assert _same(dict(strategy.task(state3, TRAIN, "a", kept["a"], round=4).groups["model"].tensors), state3.w)


def test_unequal_groups_are_divided_by_their_true_sizes() -> None:
    """Three silos at 6 and a still coordinator at w: groups (w + 12) / 3 and (w + 6) / 2, mean of the two."""
    strategy = _still()
    state = _started(strategy)
    after, kept = _round(strategy, state, {silo: _filled(state, 6.0) for silo in "abc"}, {})
    assert sorted(Counter(silo.group for silo in kept.values() if silo).values()) == [1, 2]
    for name, w in state.w.items():
        assert torch.allclose(after.w[name], ((w + 12) / 3 + (w + 6) / 2) / 2, atol=1e-5), name
    assert strategy.diagnostics(after)["smallest_group"] == 1


def test_one_silo_is_one_group_whatever_the_setting() -> None:
    strategy = _still(groups=5)
    state = _started(strategy)
    after, _ = _round(strategy, state, {"a": _filled(state, 1.0)}, {})
    assert all(torch.allclose(after.w[name], (w + 1) / 2, atol=1e-6) for name, w in state.w.items())
    assert {name.split("/")[0] for name in after.group_means} == {"0"}


def test_one_group_is_averaging_with_the_coordinator() -> None:
    strategy = _still(groups=1)
    state = _started(strategy)
    after, _ = _round(strategy, state, {silo: _filled(state, value) for silo, value in (("a", 1.0), ("b", 3.0))}, {})
    assert all(torch.allclose(after.w[name], (w + 4) / 3, atol=1e-6) for name, w in state.w.items())
    assert strategy.diagnostics(after)["group_spread"] == 0.0


def test_the_coordinator_trains_from_the_mean_beside_the_silos() -> None:
    """w_s of round 2 recomputed with the parts, momentum carried over, the silos standing still at w_1."""
    strategy = _strategy(groups=1)
    state0 = _started(strategy)
    state1, _ = _round(strategy, state0, {"a": dict(state0.w)}, {})
    state2, _ = _round(strategy, state1, {"a": dict(state1.w)}, {}, round=2)
    model = _net()
    tensors.load_into(model, state1.w)
    found = train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION, epochs=1, batch_size=5, seed=1,
                           sgd=SGDSettings(lr=0.03 * 2 / 5, momentum=0.9, nesterov=False, weight_decay=1e-4,
                                           clip_norm=0.0), purpose="coordinator", round=2, momentum=state1.opt_buf)
    own = tensors.parameters_of(model)
    assert all(torch.allclose(state2.w[name], (own[name] + state1.w[name]) / 2, atol=1e-6) for name in own)
    assert state2.opt_buf is not None
    assert _same(state2.opt_buf, found.momentum)


def test_without_accepted_updates_everything_stays_bit_for_bit() -> None:
    strategy = _strategy(mode="semifl_variant")
    state0 = _started(strategy)
    state, kept = _round(strategy, state0, {"a": _filled(state0, 0.1)}, {})
    empty, _ = _round(strategy, state, {}, kept, round=2)
    assert replace(empty, round=1, diagnostics=state.diagnostics) == state
    assert empty.diagnostics == {}


def test_semifls_variant_sends_the_same_to_all_and_takes_server_momentum() -> None:
    """Still coordinator, w_0 = w: steps d1 = (0 + 2 * 1) / 3 per group; w1 = w + d1, w2 = w1 + d2 + d1 / 2."""
    strategy = _still(mode="semifl_variant")
    state0 = _started(strategy)
    up = {silo: {name: w + 1.0 for name, w in state0.w.items()} for silo in "abcd"}
    state1, kept = _round(strategy, state0, up, {})
    assert kept == dict.fromkeys("abcd")
    assert state1.group_means == {}
    assert all(torch.allclose(state1.w[name], w + 2 / 3, atol=1e-5) for name, w in state0.w.items())
    sent = strategy.task(state1, TRAIN, "a", None, round=2).groups["model"]
    assert _same(dict(sent.tensors), state1.w)
    up = {silo: {name: w + 0.5 for name, w in state1.w.items()} for silo in "abcd"}
    state2, _ = _round(strategy, state1, up, kept, round=2)
    assert all(torch.allclose(state2.w[name], w + 1 / 3 + 1 / 3, atol=1e-5) for name, w in state1.w.items())


def test_the_learning_rate_warms_up_then_follows_the_cosine_to_its_floor() -> None:
    """T = 105, w = 5: lr t / 5, then lr cos(pi c (t - 5) / 100), never below lr / 10 000."""
    def rate(round: int, decay_c: float = 2.3) -> float:
        return fedrgd_lr(0.1, round=round, rounds=105, warmup_rounds=5, decay_c=decay_c)

    assert [rate(t) for t in (1, 2, 5)] == pytest.approx([0.02, 0.04, 0.1])
    assert rate(15) == pytest.approx(0.1 * math.cos(0.23 * math.pi))
    assert rate(55) == pytest.approx(1e-5)
    assert rate(105) == pytest.approx(0.1 * math.cos(0.3 * math.pi))  # cos(2.3 pi)
    assert rate(105, decay_c=7 / 16) == pytest.approx(0.1 * math.cos(7 / 16 * math.pi))
    assert fedrgd_lr(0.1, round=1, rounds=1, warmup_rounds=0, decay_c=0.4) == pytest.approx(
        0.1 * math.cos(0.4 * math.pi))
    assert fedrgd_lr(0.1, round=3, rounds=3, warmup_rounds=5, decay_c=0.4) == pytest.approx(0.06)


def test_silos_are_told_the_rounds_learning_rate() -> None:
    strategy, plain = _strategy(), _strategy(decay="schedule", schedule="cosine", lr=0.2)
    state = _started(strategy)
    assert strategy.task(state, TRAIN, "a", None, round=1).settings == {"round_lr": pytest.approx(0.006)}
    assert plain.task(_started(plain), TRAIN, "a", None, round=11).settings == {"round_lr": pytest.approx(0.1)}


def test_statistics_are_those_of_the_mean_of_all_groups() -> None:
    strategy = _strategy()
    state0 = _started(strategy)
    state, kept = _round(strategy, state0, {"a": _filled(state0, 0.1), "b": _filled(state0, 0.3)}, {})
    model = _net()
    tensors.load_into(model, state.w)
    found = batch_norm.measure(model, _images().images_NCHW, form=FORM, generator=torch.Generator())
    for name, tensor in batch_norm.to_tensors(found).items():
        assert torch.allclose(state.batch_norm[name], tensor, atol=1e-5), name
    task = strategy.task(state, TRAIN, "a", kept["a"], round=2)
    assert _same(dict(task.groups["batch_norm"].tensors), state.batch_norm)
    assert all(FEDRGD.down[name] is group.meaning for name, group in task.groups.items())


def test_silos_measure_the_mean_of_all_groups_and_stay_in_theirs() -> None:
    strategy = _strategy(sbn_source="coordinator+silos")
    state0 = _started(strategy)
    state, kept = _round(strategy, state0, {"a": _filled(state0, 0.1), "b": _filled(state0, 0.3)}, {})
    task = strategy.task(state, STATISTICS, "a", kept["a"], round=1)
    assert set(task.groups) == {"model"}
    assert _same(dict(task.groups["model"].tensors), state.w)
    header = UpdateHeader("a", 12)
    tally = strategy.begin(state, STATISTICS, (header,), round=1)
    group = TensorGroup(batch_norm.to_tensors(batch_norm.from_tensors(state.own_statistics), counts=True))
    tally, still = strategy.fold(state, tally, header, {"batch_norm": group}, kept["a"])
    assert still == kept["a"]
    assert _same(strategy.finish(state, STATISTICS, tally, round=1).w, state.w)


def test_a_silos_own_model_starts_from_what_it_was_sent() -> None:
    strategy = _still()
    state0 = _started(strategy)
    state, kept = _round(strategy, state0, {"a": _filled(state0, 1.0), "b": _filled(state0, 2.0)}, {})
    sent = strategy.task(state, TRAIN, "a", kept["a"], round=2).groups["model"]
    delta = TensorGroup(_filled(state, 0.5), Meaning.DIFFERENCE, sent.digest)
    parameters, _ = strategy.local_model(state, {"model": delta}, kept["a"])
    assert all(torch.equal(parameters[name], tensor + 0.5) for name, tensor in sent.tensors.items())


def test_state_and_what_is_kept_survive_the_disk(tmp_path: Path) -> None:
    strategy = _strategy()
    state0 = _started(strategy)
    state, kept = _round(strategy, state0, {"a": _filled(state0, 0.1), "b": _filled(state0, 0.3)}, {})
    checkpoint.save(tmp_path / "state", state)
    checkpoint.save(tmp_path / "kept", kept["a"])
    loaded = checkpoint.load(tmp_path / "state", FedRGDState)
    again = {**kept, "a": checkpoint.load(tmp_path / "kept", FedRGDSilo)}
    models = {"a": _filled(state0, 0.2), "b": _filled(state0, -0.1)}
    one, _ = _round(_strategy(), state, models, kept, round=2)
    other, _ = _round(_strategy(), loaded, models, again, round=2)
    assert tensors.digest(one.w) == tensors.digest(other.w)
    assert tensors.digest(one.group_means) == tensors.digest(other.group_means)


def test_labels_at_the_coordinator_are_needed() -> None:
    with pytest.raises(BadData, match="FedRGD needs labelled images"):
        _strategy(_environment(data=CoordinatorData(labelled=_images().without_labels())))


@each_of(("values", "text"), [
    ({"scenario": "labels-at-silo"}, "labels-at-silo"),
    ({"objective": "uda"}, "uda"),
    ({"groups": 0}, "groups"),
    ({"global_momentum": 0.5}, "global_momentum"),
    ({"mode": "semifl_variant", "global_momentum": 1.0}, "global_momentum"),
    ({"schedule": "cosine"}, "schedule"),
    ({"decay": "schedule", "warmup_rounds": 3}, "warmup_rounds"),
    ({"decay_c": 0.0}, "decay_c"),
    ({"tsa": "log"}, "tsa"),
    ({"momentum": 0.0, "persist_local_momentum": True}, "persist_local_momentum"),
])
def test_settings_that_cannot_be_honoured_are_refused_by_name(values: dict[str, Any], text: str) -> None:
    with pytest.raises(BadConfiguration, match=text):
        from_dict(FedRGDSettings, values)


def test_the_papers_values_are_the_defaults() -> None:
    defaults = FedRGDSettings()
    assert (defaults.groups, defaults.mode, defaults.threshold, defaults.mask_mean) == (2, "paper", 0.95, "batch")
    assert (defaults.lr, defaults.momentum, defaults.weight_decay, defaults.unlabelled_batch) == (0.03, 0.9, 1e-4, 64)
    assert (defaults.warmup_rounds, defaults.decay_c, defaults.server_momentum) == (5, 2.3, 0.0)
    assert FedRGDSettings(mode="semifl_variant").server_momentum == 0.5


def test_the_method_is_in_the_tables() -> None:
    assert METHODS["fedrgd"] is FEDRGD
    assert load_strategy("fedrgd") is FedRGDStrategy
