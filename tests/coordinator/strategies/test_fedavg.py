"""FedAvg's coordinator half: oracles of the average, both scenarios, server momentum, and what survives a round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.consistency import tsa_loss, tsa_threshold
from semisilo.common.learning.training import SGDSettings, cosine_lr, train_labelled
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.fedavg import FedAvgState, FedAvgStrategy
from semisilo.coordinator.strategies.parts.averaging import AverageTally, apply_global_momentum
from semisilo.coordinator.strategies.parts.phases import TRAIN

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="none")
AT_COORDINATOR: dict[str, Any] = {"scenario": "labels-at-coordinator", "objective": "fixmatch", "labelled_batch": 5}


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _images(count: int = 12, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _strategy(build: Any = _net, *, data: CoordinatorData | None = None, rounds: int = 4,
              **settings: Any) -> FedAvgStrategy:
    made = FedAvgSettings(**{"lr": 0.1, **settings})
    if data is None:
        data = CoordinatorData(labelled=_images()) if made.scenario == "labels-at-coordinator" else CoordinatorData()
    environment = Environment(seed=1, rounds=rounds, num_silos=2, data=data, build_model=build, image=FORM,
                              augmentation=AUGMENTATION)
    return FedAvgStrategy(made, environment)


def _started(strategy: FedAvgStrategy, build: Any = _net) -> FedAvgState:
    return strategy.start(initial_model(build, 1))


def _sent(strategy: FedAvgStrategy, state: FedAvgState, round: int = 1) -> dict[str, Tensor]:
    return dict(strategy.task(state, TRAIN, "a", None, round=round).groups["model"].tensors)


def _round(strategy: FedAvgStrategy, state: FedAvgState, factors: dict[str, float], round: int = 1,
           sizes: dict[str, int] | None = None) -> FedAvgState:
    headers = tuple(UpdateHeader(silo, (sizes or {}).get(silo, 10)) for silo in sorted(factors))
    sent = _sent(strategy, state, round)
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        values = {name: torch.full_like(tensor, factors[header.silo]) for name, tensor in sent.items()}
        group = TensorGroup(values, Meaning.DIFFERENCE, tensors.digest(sent))
        tally, kept = strategy.fold(state, tally, header, {"model": group}, None)
        assert kept is None
    return strategy.finish(state, TRAIN, tally, round=round)


def _same(a: dict[str, Tensor] | None, b: dict[str, Tensor] | None) -> bool:
    if a is None or b is None:
        return a is b
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("rule", "weights", "average"), [
    ("size", [0.25, 0.75], [2.5, 5.0]), ("uniform", [0.5, 0.5], [2.0, 4.0])])
def test_oracles_b1_and_b2_weighted_averages(rule: str, weights: list[float], average: list[float]) -> None:
    strategy = _strategy(_plain_net, weighting=rule)
    state = replace(_started(strategy, _plain_net), w={"w": torch.zeros(2)})
    headers = (UpdateHeader("a", 100), UpdateHeader("b", 300))
    tally = strategy.begin(state, TRAIN, headers, round=1)
    assert isinstance(tally, AverageTally)
    assert list(tally.weights.values()) == pytest.approx(weights, abs=1e-5)
    for header, model in zip(headers, ([1.0, 2.0], [3.0, 6.0]), strict=True):
        group = TensorGroup({"w": torch.tensor(model)}, Meaning.DIFFERENCE, tensors.digest(state.w))
        tally, _ = strategy.fold(state, tally, header, {"model": group}, None)
    assert isinstance(tally, AverageTally)
    assert tally.delta is not None
    assert tally.delta["w"].tolist() == pytest.approx(average, abs=1e-5)


def test_with_silos_of_equal_size_size_and_uniform_are_the_same_bits() -> None:
    after = []
    for rule in ("size", "uniform"):
        strategy = _strategy(_plain_net, weighting=rule)
        factors = {"a": 0.1, "b": 0.3, "c": -0.7}
        after.append(_round(strategy, _started(strategy, _plain_net), factors, sizes=dict.fromkeys(factors, 38)))
    assert _same(after[0].w, after[1].w)


def test_fedfreq_counts_accepted_updates_over_the_rounds() -> None:
    """Silo a comes twice, b once: q = (2, 1), p = (1 - 2/3, 1 - 1/3), so w moves by 1/3 * 0.3 + 2/3 * 0.6 = 0.5."""
    strategy = _strategy(_plain_net, weighting="fedfreq")
    state = _round(strategy, _started(strategy, _plain_net), {"a": 0.0})
    after = _round(strategy, state, {"a": 0.3, "b": 0.6}, round=2)
    assert after.participation == {"a": 2, "b": 1}
    assert all(torch.allclose(after.w[name], state.w[name] + 0.5, atol=1e-6) for name in state.w)


def test_server_momentum_is_semifls() -> None:
    strategy = _strategy(_plain_net, global_momentum=0.5)
    state = _started(strategy, _plain_net)
    w, buffer = state.w, None
    for round, factor in ((1, 0.2), (2, -0.4)):
        state = _round(strategy, state, {"a": factor}, round=round)
        delta = {name: torch.full_like(tensor, factor) for name, tensor in w.items()}
        w, buffer = apply_global_momentum(w, buffer, delta, momentum=0.5)
        assert _same(state.w, w)
        assert _same(state.global_buf, buffer)


def test_without_server_momentum_no_buffer_is_kept_and_one_silo_gives_its_model() -> None:
    strategy = _strategy(_plain_net)
    state = _started(strategy, _plain_net)
    after = _round(strategy, state, {"a": 0.25})
    assert after.global_buf is None
    assert all(torch.equal(after.w[name], state.w[name] + 0.25) for name in state.w)


def test_a_round_without_updates_changes_no_bit_and_sends_the_same_again() -> None:
    strategy = _strategy(global_momentum=0.5)
    state = _round(strategy, _started(strategy), {"a": 0.1})
    empty = _round(strategy, state, {}, round=2)
    assert empty.round == 2
    for name in ("w", "global_buf", "trained", "opt_buf", "batch_norm", "trained_batch_norm"):
        assert _same(getattr(empty, name), getattr(state, name)), name
    assert empty.participation == state.participation
    assert _same(_sent(strategy, empty, 3), _sent(strategy, state, 2))


def test_a_round_without_updates_goes_on_learning_from_the_labels() -> None:
    """As if silos had left what they were sent as it is, but for the server momentum, which stands still: silos that
    abstain while they are not confident would never be sent a model that is."""
    strategy = _strategy(**AT_COORDINATOR, momentum=0.9)
    state = _round(strategy, _started(strategy), {"a": 0.1})
    empty, unchanged = (_round(strategy, state, silos, round=2) for silos in ({}, {"a": 0.0}))
    assert _same(empty.w, _sent(strategy, state, 2))
    assert not _same(_sent(strategy, empty, 3), empty.w)
    for name in ("w", "trained", "opt_buf", "batch_norm", "own_statistics", "trained_batch_norm"):
        assert _same(getattr(empty, name), getattr(unchanged, name)), name
    assert empty.labelled_loss == unchanged.labelled_loss != state.labelled_loss
    assert empty.participation == state.participation
    strategy = _strategy(**AT_COORDINATOR, global_momentum=0.5)
    state = _round(strategy, _started(strategy), {"a": 0.1})
    assert _same(_round(strategy, state, {}, round=2).global_buf, state.global_buf)


def test_without_updates_the_last_rounds_model_is_what_was_sent() -> None:
    strategy = _strategy(**AT_COORDINATOR, rounds=1)
    state = _started(strategy)
    after = _round(strategy, state, {})
    assert _same(after.w, _sent(strategy, state))
    assert after.trained is None


def test_labels_at_the_coordinator_are_trained_before_sending_and_the_average_is_the_rounds_model() -> None:
    """Recomputed with the parts: round 0 trains for round 1 with lr_1; round 1 averages into w, then trains a copy of w
    with lr_2 and the momentum of the first training."""
    strategy = _strategy(**AT_COORDINATOR, lambda_s=2.0, coordinator_epochs=2, schedule="cosine", momentum=0.9)
    state = _started(strategy)

    def trained(w: dict[str, Tensor], round: int, momentum: dict[str, Tensor] | None) -> tuple[dict[str, Tensor], Any]:
        model = _net()
        tensors.load_into(model, w)
        sgd = SGDSettings(lr=cosine_lr(0.1, round=round, rounds=4), momentum=0.9, nesterov=False, weight_decay=0.0,
                          clip_norm=0.0)
        found = train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION, sgd=sgd, epochs=2, batch_size=5,
                               seed=1, purpose="coordinator", round=round, momentum=momentum, loss_weight=2.0)
        return tensors.parameters_of(model), found

    initial = initial_model(_net, 1)
    first, done = trained(initial, 1, None)
    assert _same(state.w, initial)
    assert _same(_sent(strategy, state), first)
    after = _round(strategy, state, {"a": 0.1, "b": 0.3})
    assert all(torch.allclose(after.w[name], first[name] + 0.2, atol=1e-6) for name in first)
    second, done = trained(after.w, 2, done.momentum)
    assert _same(_sent(strategy, after, 2), second)
    assert _same(after.opt_buf, done.momentum)
    assert _same(strategy.model(after)[0], after.w)
    assert strategy.diagnostics(after) == {"coordinator_loss": done.loss}


def test_silos_get_the_statistics_of_what_they_are_sent_and_an_evaluation_those_of_the_average() -> None:
    strategy = _strategy(**AT_COORDINATOR)
    state = _started(strategy)
    task = strategy.task(state, TRAIN, "a", None, round=1)
    assert set(task.groups) == {"model", "batch_norm"}
    assert task.settings == {"round_lr": 0.1}
    for w, statistics in ((task.groups["model"].tensors, task.groups["batch_norm"].tensors), strategy.model(state)):
        model = _net()
        tensors.load_into(model, w)
        found = batch_norm.measure(model, _images().images_NCHW, form=FORM, generator=torch.Generator().manual_seed(5))
        for name, tensor in batch_norm.to_tensors(found).items():
            assert torch.allclose(statistics[name], tensor, atol=1e-5), name
    assert strategy.phases(state, 1) == strategy.phases(state, 2) == (TRAIN,)


def test_behind_the_last_round_nothing_is_trained_any_more() -> None:
    strategy = _strategy(**AT_COORDINATOR, rounds=1)
    after = _round(strategy, _started(strategy), {"a": 0.1})
    assert after.trained is None
    assert _same(strategy.model(after)[0], after.w)


def test_uda_anneals_the_coordinators_labels_by_the_round_that_is_sent() -> None:
    """Against the loss written out: one full batch, one epoch of plain SGD, threshold of round 1 of 4."""
    strategy = _strategy(_plain_net, scenario="labels-at-coordinator", objective="uda", labelled_batch=12, lambda_s=2.0,
                         tsa="linear")
    state = _started(strategy, _plain_net)
    model = _plain_net()
    tensors.load_into(model, initial_model(_plain_net, 1))
    images = _images()
    assert images.labels_N is not None
    threshold = tsa_threshold("linear", t=1, total=4, num_classes=3)
    found = tsa_loss(model((images.images_NCHW.float() / 255 - 0.5) / 0.25), images.labels_N, threshold)
    assert 0 < int(found.keep_B.sum()) < 12
    (2.0 * found.loss).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(_sent(strategy, state)[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-6), name


def test_where_silos_measure_a_round_has_a_phase_for_it() -> None:
    strategy = _strategy()  # no images at the coordinator
    state = _started(strategy)
    assert [phase.name for phase in strategy.phases(state, 1)] == ["statistics", "train", "statistics"]
    assert [phase.name for phase in strategy.phases(state, 2)] == ["train", "statistics"]
    assert set(strategy.task(state, STATISTICS, "a", None, round=1).groups) == {"model"}
    tally = strategy.begin(state, STATISTICS, (UpdateHeader("a", 5),), round=1)
    sent = {"1.mean": torch.full((4,), 2.0), "1.var": torch.full((4,), 3.0), "1.count": torch.tensor([8])}
    assert tensors.specs(sent) == strategy.expects(state, STATISTICS, round=1)["batch_norm"].tensors
    tally, _ = strategy.fold(state, tally, UpdateHeader("a", 5), {"batch_norm": TensorGroup(sent)}, None)
    state = strategy.finish(state, STATISTICS, tally, round=1)
    assert state.batch_norm["1.mean"].tolist() == [2.0] * 4
    assert set(strategy.task(state, TRAIN, "a", None, round=1).groups) == {"model", "batch_norm"}
    after = _round(strategy, state, {"a": 0.1})
    assert _same(after.batch_norm, state.batch_norm), "until the silos have measured the new model"


def test_validation_images_at_the_coordinator_spare_the_phase() -> None:
    strategy = _strategy(data=CoordinatorData(validation=_images()))
    state = _started(strategy)
    assert strategy.phases(state, 1) == (TRAIN,)
    assert set(state.batch_norm) == {"1.mean", "1.var"}


def test_a_network_without_batch_norm_needs_no_statistics() -> None:
    strategy = _strategy(_plain_net)
    state = _started(strategy, _plain_net)
    assert strategy.phases(state, 1) == (TRAIN,)
    assert set(strategy.task(state, TRAIN, "a", None, round=1).groups) == {"model"}
    assert strategy.model(state)[1] == {}


@pytest.mark.parametrize("settings", [{}, AT_COORDINATOR])
def test_a_silos_own_model_is_what_it_was_sent_and_its_difference(settings: dict[str, Any]) -> None:
    strategy = _strategy(**settings)
    state = _started(strategy)
    sent = strategy.task(state, TRAIN, "a", None, round=1).groups
    delta = {name: torch.full_like(tensor, 0.5) for name, tensor in sent["model"].tensors.items()}
    w, statistics = strategy.local_model(state, {"model": TensorGroup(delta, Meaning.DIFFERENCE)}, None)
    assert all(torch.equal(w[name], sent["model"].tensors[name] + 0.5) for name in w)
    assert _same(statistics, dict(sent["batch_norm"].tensors) if "batch_norm" in sent else {})


def test_what_is_sent_is_what_updates_refer_to() -> None:
    strategy = _strategy(**AT_COORDINATOR)
    state = _started(strategy)
    groups = strategy.task(state, TRAIN, "a", None, round=1).groups
    layout = strategy.expects(state, TRAIN, round=1)["model"]
    assert layout.meaning is Meaning.DIFFERENCE
    assert layout.base == tensors.digest(groups["model"].tensors) == groups["model"].digest
    assert strategy.task(state, TRAIN, "b", None, round=1).groups["model"] is groups["model"], "encoded once"


@pytest.mark.parametrize("settings", [{"global_momentum": 0.5}, {**AT_COORDINATOR, "momentum": 0.9}])
def test_a_state_survives_the_disk(settings: dict[str, Any], tmp_path: Path) -> None:
    strategy = _strategy(**settings)
    state = _round(strategy, _started(strategy), {"a": 0.1})
    checkpoint.save(tmp_path / "s.safetensors", state)
    again = checkpoint.load(tmp_path / "s.safetensors", FedAvgState)
    assert _same(_round(strategy, again, {"a": 0.2}, round=2).w, _round(strategy, state, {"a": 0.2}, round=2).w)


def test_labels_that_must_be_at_the_coordinator_are_asked_for() -> None:
    for data in (CoordinatorData(), CoordinatorData(labelled=_images(0)),
                 CoordinatorData(labelled=_images().without_labels())):
        with pytest.raises(BadData, match="labelled"):
            _strategy(data=data, **AT_COORDINATOR)
    with pytest.raises(BadConfiguration, match="sbn_source"):
        _strategy(sbn_source="coordinator")
