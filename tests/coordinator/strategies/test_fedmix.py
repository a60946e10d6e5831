"""FedMix's coordinator half: the oracle of three rounds, what is sent, when sigma is trained, and the edges."""

from __future__ import annotations

import math
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
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.learning.mixing import fedmix_mix
from semisilo.common.learning.training import SGDSettings, train_labelled
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedmix import FEDMIX, FedMixSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.fedmix import FedMixState, FedMixStrategy
from semisilo.coordinator.strategies.parts.labelled_training import CoordinatorTraining
from semisilo.coordinator.strategies.parts.phases import TRAIN
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="none")
SHARES = {"mix_alpha": 0.5, "mix_beta": 0.3, "mix_gamma": 0.2}


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


class _Scalar(nn.Module):
    """A network of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


def _images(count: int = 12, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {"seed": 1, "rounds": 4, "num_silos": 2, "data": CoordinatorData(labelled=_images()),
                              "build_model": _net, "image": FORM, "augmentation": AUGMENTATION}
    return Environment(**{**values, **changes})


def _strategy(environment: Environment | None = None, **settings: Any) -> FedMixStrategy:
    values = {"labelled_batch": 5, "lr": 0.01, **settings}
    return FedMixStrategy(FedMixSettings(**values), environment or _environment())


def _started(strategy: FedMixStrategy) -> FedMixState:
    return strategy.start(initial_model(_net, 1))


def _fold(strategy: FedMixStrategy, state: FedMixState, steps: dict[str, float], *, round: int,
          sizes: dict[str, int] | None = None) -> FedMixState:
    """A training phase in which every silo's model is the sent one plus a number."""
    headers = tuple(UpdateHeader(silo, (sizes or {}).get(silo, 10)) for silo in sorted(steps))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        delta = {name: torch.full_like(tensor, steps[header.silo]) for name, tensor in state.w.items()}
        group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.digest(state.w))
        tally, _ = strategy.fold(state, tally, header, {"model": group}, None)
    return strategy.finish(state, TRAIN, tally, round=round)


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def _sigma_from(w: dict[str, Tensor], *, round: int,
                momentum: dict[str, Tensor] | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and momentum that the shared loop gives on the labels, with momentum 0.9 and clipping."""
    model = _net()
    tensors.load_into(model, w)
    sgd = SGDSettings(lr=0.01, momentum=0.9, nesterov=False, weight_decay=0.0, clip_norm=1.0)
    found = train_labelled(model, _images(), form=FORM, augmentation=AUGMENTATION, batch_size=5, epochs=1, seed=1,
                           sgd=sgd, purpose="sigma", round=round, momentum=momentum, loss_weight=10.0)
    return tensors.parameters_of(model), found.momentum


def test_oracle_x8_three_rounds_of_scalars_with_a_silo_dropped() -> None:
    """Real transitions of the strategy; only training on labels is replaced by the oracle's step."""

    class Scripted(FedMixStrategy):
        step = 0.0

        def _trained(self, model: nn.Module, state: FedMixState, *, round: int) -> CoordinatorTraining:
            tensors.load_into(model, {"w": tensors.parameters_of(model)["w"] + self.step})
            return CoordinatorTraining(momentum={}, loss=0.0)

    strategy = Scripted(FedMixSettings(**SHARES), _environment(build_model=_Scalar))  # type: ignore[arg-type]
    state = strategy.start({"w": torch.zeros(1)})
    rounds: list[tuple[float, dict[str, float]]] = [(1.0, {"a": 2.0, "b": -1.0}), (0.5, {"a": 1.0, "c": 0.0}),
                                                    (0.0, {})]
    expected = [({"a": 1, "b": 1}, [0.5, 0.5], 0.5, 1.0, 0.55),
                ({"a": 2, "b": 1, "c": 1}, [0.333333, 0.666667], 0.883333, 1.05, 0.866667),
                ({"a": 2, "b": 1, "c": 1}, [], 0.866667, 0.866667, 0.866667)]
    for number, ((step, silos), (counts, weights, psi, sigma, w)) in enumerate(zip(rounds, expected, strict=True), 1):
        strategy.step = step
        tally = strategy.begin(state, TRAIN, tuple(UpdateHeader(silo, 1) for silo in silos), round=number)
        assert list(tally.weights.values()) == pytest.approx(weights, abs=1e-5)  # type: ignore[union-attr]
        before, state = state, _fold(strategy, state, silos, round=number)
        assert state.counts == counts
        assert float(state.sigma["w"]) == pytest.approx(sigma, abs=1e-5)
        assert float(state.w["w"]) == pytest.approx(w, abs=1e-5)
        assert float(before.w["w"]) + state.diagnostics["psi_step"] == pytest.approx(psi, abs=1e-5)


def test_a_round_trains_sigma_from_the_model_that_was_sent_then_mixes() -> None:
    """Recomputed with the parts over two rounds, momentum carried over; sigma_2 starts from w_1, not from sigma_1."""
    strategy = _strategy(momentum=0.9, clip_norm=1.0)
    state0 = _started(strategy)
    state1 = _fold(strategy, state0, {"a": 0.1, "b": 0.3}, round=1)
    sigma1, momentum1 = _sigma_from(state0.w, round=1, momentum=None)
    assert _same(state1.sigma, sigma1)
    psi1 = {name: tensor + 0.2 for name, tensor in state0.w.items()}
    expected = fedmix_mix(psi1, sigma1, state0.w, **SHARES)
    assert all(torch.allclose(state1.w[name], expected[name], atol=1e-6) for name in expected)
    state2 = _fold(strategy, state1, {"a": -0.2}, round=2)
    assert _same(state2.sigma, _sigma_from(state1.w, round=2, momentum=momentum1)[0])
    assert not _same(state2.sigma, state1.sigma)


def test_a_silo_is_sent_the_model_and_the_sigma_of_the_round_before() -> None:
    strategy = _strategy()
    state = _fold(strategy, _started(strategy), {"a": 0.1}, round=1)
    task = strategy.task(state, TRAIN, "a", None, round=2)
    assert set(task.groups) == {"model", "sigma", "batch_norm"}
    assert _same(dict(task.groups["model"].tensors), state.w)
    assert _same(dict(task.groups["sigma"].tensors), state.sigma)
    assert not _same(state.w, state.sigma)
    assert task.settings == {"round_lr": 0.01}
    assert all(FEDMIX.down[name] is group.meaning for name, group in task.groups.items())
    again = strategy.task(state, TRAIN, "b", None, round=2)
    assert all(again.groups[name] is group for name, group in task.groups.items()), "encoded once for all silos"
    layout = strategy.expects(state, TRAIN, round=2)["model"]
    assert (layout.meaning, layout.base) == (Meaning.DIFFERENCE, tensors.digest(state.w))


def test_in_the_first_round_sigma_is_the_model_itself() -> None:
    strategy = _strategy()
    state = _started(strategy)
    groups = strategy.task(state, TRAIN, "a", None, round=1).groups
    assert groups["model"].digest == groups["sigma"].digest == tensors.digest(initial_model(_net, 1))


def test_the_loss_on_labels_is_weighted() -> None:
    """Without momentum, decay and clipping lambda_s = 10 at lr is lambda_s = 1 at 10 lr."""
    one, ten = _strategy(lambda_s=1.0, lr=0.1), _strategy(lambda_s=10.0, lr=0.01)
    found = [_fold(strategy, _started(strategy), {}, round=1).sigma for strategy in (one, ten)]
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-5) for name in found[0])
    assert not _same(found[0], initial_model(_net, 1))


def test_gamma_of_one_keeps_the_model_bit_for_bit_and_sigma_still_learns() -> None:
    strategy = _strategy(mix_alpha=0.0, mix_beta=0.0, mix_gamma=1.0)
    state = _started(strategy)
    after = _fold(strategy, state, {"a": 0.7, "b": -0.2}, round=1)
    assert tensors.digest(after.w) == tensors.digest(state.w)
    assert not _same(after.sigma, state.sigma)
    assert after.counts == {"a": 1, "b": 1}


def test_without_accepted_updates_psi_is_the_model_and_counts_stay() -> None:
    strategy = _strategy()
    state = _fold(strategy, _started(strategy), {"a": 0.1}, round=1)
    empty = _fold(strategy, state, {}, round=2)
    assert empty.counts == state.counts == {"a": 1}
    assert _same(empty.w, fedmix_mix(state.w, empty.sigma, state.w, **SHARES))
    assert not _same(empty.w, state.w)
    assert "weight_max" not in strategy.diagnostics(empty)


def test_equal_counts_give_the_plain_mean_and_an_eager_silo_weighs_less() -> None:
    """a and b have taken part once, then a twice more; then counts are a 4, b 2: p_a = 1 - 4/6, p_b = 1 - 2/6."""
    strategy = _strategy(mix_alpha=1.0, mix_beta=0.0, mix_gamma=0.0, coordinator_epochs=0)
    state = _started(strategy)
    first = _fold(strategy, state, {"a": 1.0, "b": 3.0}, round=1)
    assert all(torch.allclose(first.w[name], state.w[name] + 2.0, atol=1e-5) for name in state.w)
    later = _fold(strategy, _fold(strategy, first, {"a": 0.0}, round=2), {"a": 0.0}, round=3)
    assert later.counts == {"a": 3, "b": 1}
    last = _fold(strategy, later, {"a": 3.0, "b": 6.0}, round=4)
    assert all(torch.allclose(last.w[name], later.w[name] + 3.0 / 3 + 6.0 * 2 / 3, atol=1e-5) for name in state.w)
    assert strategy.diagnostics(last)["participation_max"] == 4.0
    assert strategy.diagnostics(last)["weight_min"] == pytest.approx(1 / 3)


def test_other_weightings_and_the_inverse_rule() -> None:
    headers = (UpdateHeader("a", 100), UpdateHeader("b", 300))
    found = {}
    for name, strategy in {"uniform": _strategy(weighting="uniform"), "size": _strategy(weighting="size"),
                           "inverse": _strategy(fedfreq_rule="inverse")}.items():
        state = _fold(strategy, _started(strategy), {"a": 0.0}, round=1)
        found[name] = strategy.begin(state, TRAIN, headers, round=2).weights  # type: ignore[union-attr]
    assert found["uniform"] == {"a": 0.5, "b": 0.5}
    assert found["size"] == {"a": 0.25, "b": 0.75}
    assert found["inverse"] == pytest.approx({"a": 1 / 3, "b": 2 / 3})


def test_a_silo_that_abstains_until_it_is_worth_it_has_its_share_and_no_more() -> None:
    """Nine silos have taken part in 50 rounds."""
    state = replace(_started(_strategy()), counts=dict.fromkeys("abcdefghi", 49))
    headers = tuple(UpdateHeader(silo, 10) for silo in "abcdefghij")
    weights = {}
    for limit in (0.5, 1.0):
        strategy = _strategy(_environment(largest_weight=limit), fedfreq_rule="inverse")
        weights[limit] = strategy.begin(state, TRAIN, headers, round=50).weights  # type: ignore[union-attr]
    assert weights[1.0]["j"] == pytest.approx(0.8475, abs=1e-4)
    assert weights[0.5]["j"] == pytest.approx(0.5)


def test_one_accepted_silo_has_the_whole_weight() -> None:
    strategy = _strategy()
    tally = strategy.begin(_started(strategy), TRAIN, (UpdateHeader("a", 1),), round=1)
    assert tally.weights == {"a": 1.0}  # type: ignore[union-attr]


def test_statistics_are_those_of_the_mixed_model() -> None:
    strategy = _strategy()
    state = _fold(strategy, _started(strategy), {"a": 0.1}, round=1)
    model = _net()
    tensors.load_into(model, state.w)
    expected = batch_norm.measure(model, _images().images_NCHW, form=FORM, generator=torch.Generator())
    for name, tensor in batch_norm.to_tensors(expected).items():
        assert torch.allclose(state.batch_norm[name], tensor, atol=1e-5), name
    assert [phase.name for phase in strategy.phases(state, 2)] == ["train"]


def test_silos_add_their_statistics_in_a_phase_of_their_own() -> None:
    strategy = _strategy(sbn_source="coordinator+silos")
    state = _started(strategy)
    assert [phase.name for phase in strategy.phases(state, 1)] == ["statistics", "train", "statistics"]
    assert set(strategy.task(state, STATISTICS, "a", None, round=1).groups) == {"model"}
    assert set(strategy.expects(state, STATISTICS, round=1)) == {"batch_norm"}
    mine = batch_norm.from_tensors(state.own_statistics)["1"]
    theirs = batch_norm.LayerStatistics(mine.count, mine.mean + 2.0, mine.var)
    header = UpdateHeader("a", 12)
    tally = strategy.begin(state, STATISTICS, (header,), round=1)
    group = TensorGroup(batch_norm.to_tensors({"1": theirs}, counts=True))
    tally, _ = strategy.fold(state, tally, header, {"batch_norm": group}, None)
    after = strategy.finish(state, STATISTICS, tally, round=1)
    assert torch.allclose(after.batch_norm["1.mean"].double(), mine.mean + 1.0, atol=1e-5)
    assert _same(after.w, state.w)


def test_a_network_without_batch_norm_has_no_statistics() -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    strategy = _strategy(_environment(build_model=plain), sbn_source="coordinator+silos")
    state = _fold(strategy, strategy.start(initial_model(plain, 1)), {"a": 0.1}, round=1)
    assert state.batch_norm == {}
    assert set(strategy.task(state, TRAIN, "a", None, round=2).groups) == {"model", "sigma"}
    assert [phase.name for phase in strategy.phases(state, 1)] == ["train"]


def test_a_plateau_lowers_the_learning_rate_of_silos_and_coordinator() -> None:
    """Nothing moves, so the loss after round 1 is the lowest for ever: patience 2 lets the rate fall after 3 and 5."""
    data = CoordinatorData(labelled=_images(), validation=_images(6, seed=4))
    strategy = _strategy(_environment(data=data), schedule="plateau", plateau_patience=2, lr=0.3,
                         mix_alpha=0.0, mix_beta=0.0, mix_gamma=1.0)
    state, rates = _started(strategy), []
    for number in range(1, 7):
        rates.append(strategy.task(state, TRAIN, "a", None, round=number).settings["round_lr"])
        state = _fold(strategy, state, {}, round=number)
        assert strategy.diagnostics(state)["lr"] == rates[-1]
        assert strategy.diagnostics(state)["plateau_loss"] == state.lowest_loss
    assert rates == pytest.approx([0.3, 0.3, 0.3, 0.1, 0.1, 0.1 / 3])


def test_where_silos_measure_as_well_the_plateau_judges_the_model_with_their_statistics() -> None:
    """Once in a round, and not the model of round 0, whose statistics silos measure in front of round 1."""
    validation = _images(6, seed=4)
    strategy = _strategy(_environment(data=CoordinatorData(labelled=_images(), validation=validation)), lr=0.3,
                         schedule="plateau", plateau_patience=2, sbn_source="coordinator+silos")
    state = _started(strategy)
    for number, phases in ((1, (STATISTICS, TRAIN, STATISTICS)), (2, (TRAIN, STATISTICS))):
        assert strategy.phases(state, number) == phases
        before = state
        for index, phase in enumerate(phases):
            state = _fold(strategy, state, {"a": 0.1}, round=number) if phase == TRAIN else _told(
                strategy, state, {"a": _measured_by_a_silo(state)}, round=number)
            if index + 1 < len(phases):
                assert (state.lowest_loss, state.rounds_left) == (before.lowest_loss, before.rounds_left)
        losses = []
        for statistics in (state.batch_norm, strategy._statistics.used(state.own_statistics)):
            model = _net()
            tensors.load_into(model, state.w)
            batch_norm.load(model, statistics)
            losses.append(evaluate(model, validation, form=FORM).loss)
        assert losses[0] != pytest.approx(losses[1], abs=1e-3), "otherwise the test shows nothing"
        assert strategy.diagnostics(state)["plateau_loss"] == pytest.approx(losses[0], abs=1e-6)
        assert state.lowest_loss == min(strategy.diagnostics(state)["plateau_loss"], before.lowest_loss or math.inf)


def _measured_by_a_silo(state: FedMixState) -> dict[str, Tensor]:
    """Of other images, with the model that silos are sent."""
    model = _net()
    tensors.load_into(model, state.w)
    dark = _images(30, seed=7).images_NCHW // 4
    return batch_norm.to_tensors(batch_norm.measure(model, dark, form=FORM, generator=torch.Generator()), counts=True)


def _told(strategy: FedMixStrategy, state: FedMixState, silos: dict[str, dict[str, Tensor]], *, round: int
          ) -> FedMixState:
    """A statistics phase."""
    headers = tuple(UpdateHeader(silo, 30) for silo in silos)
    tally = strategy.begin(state, STATISTICS, headers, round=round)
    for header in headers:
        tally, _ = strategy.fold(state, tally, header, {"batch_norm": TensorGroup(silos[header.silo])}, None)
    return strategy.finish(state, STATISTICS, tally, round=round)


def test_a_plateau_needs_validation_images() -> None:
    with pytest.raises(BadData, match="validation"):
        _strategy(schedule="plateau")


def test_a_silos_own_model_is_what_it_was_sent_plus_its_difference() -> None:
    strategy = _strategy()
    state = _started(strategy)
    delta = {name: torch.full_like(tensor, 0.5) for name, tensor in state.w.items()}
    group = TensorGroup(delta, Meaning.DIFFERENCE, tensors.digest(state.w))
    parameters, statistics = strategy.local_model(state, {"model": group}, None)
    assert all(torch.equal(parameters[name], state.w[name] + 0.5) for name in state.w)
    assert _same(statistics, state.batch_norm)


def test_the_state_survives_the_disk_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    strategy = _strategy(momentum=0.5)
    state = _fold(strategy, _started(strategy), {"é": 0.1, "a": 0.2}, round=1)
    checkpoint.save(tmp_path / "state", state)
    loaded = checkpoint.load(tmp_path / "state", FedMixState)
    assert loaded.counts == state.counts
    one, other = (_fold(_strategy(momentum=0.5), each, {"a": -0.1}, round=2) for each in (state, loaded))
    assert _same(one.w, other.w)
    assert _same(one.opt_buf or {}, other.opt_buf or {})
    assert one.diagnostics == other.diagnostics


def test_labels_at_the_coordinator_are_needed() -> None:
    for data in (CoordinatorData(), CoordinatorData(labelled=_images(0)),
                 CoordinatorData(labelled=_images().without_labels())):
        with pytest.raises(BadData, match="FedMix needs labelled images"):
            _strategy(_environment(data=data))


@each_of(("values", "text"), [
    ({"scenario": "labels-at-silo"}, "labels-at-silo"),
    ({"mix_alpha": 0.6}, r"mix_alpha \+ mix_beta \+ mix_gamma = 1.1: must be 1"),
    ({"mix_alpha": 1.2, "mix_beta": -0.4}, "mix_beta = -0.4"),
    ({"confidence_threshold": 1.5}, "confidence_threshold"),
    ({"num_views": 0}, "num_views"),
    ({"momentum": 1.0}, "momentum"),
    ({"lambda_2": float("inf")}, "lambda_2"),
    ({"weighting": "uniform", "fedfreq_rule": "inverse"}, "fedfreq_rule"),
    ({"plateau_patience": 3}, "plateau_patience"),
    ({"label_rule": "median"}, "'median'"),
])
def test_settings_that_cannot_be_honoured_are_refused_by_name(values: dict[str, Any], text: str) -> None:
    with pytest.raises(BadConfiguration, match=text):
        from_dict(FedMixSettings, values)


def test_the_papers_values_are_the_defaults() -> None:
    defaults = FedMixSettings()
    assert (defaults.confidence_threshold, defaults.num_views, defaults.label_rule) == (0.8, 5, "mean")
    assert (defaults.mix_alpha, defaults.mix_beta, defaults.mix_gamma) == (0.5, 0.3, 0.2)
    assert (defaults.lambda_s, defaults.lambda_1, defaults.lambda_2, defaults.lambda_l1) == (10, 0.01, 10, 1e-5)
    assert (defaults.lr, defaults.schedule, defaults.local_epochs, defaults.coordinator_epochs) == (1e-3, "constant",
                                                                                                    1, 1)
    assert (defaults.labelled_batch, defaults.unlabelled_batch) == (64, 64)
    assert (defaults.weighting, defaults.fedfreq_rule) == ("fedfreq", "share")


def test_the_method_is_in_the_tables() -> None:
    assert METHODS["fedmix"] is FEDMIX
    assert load_strategy("fedmix") is FedMixStrategy
