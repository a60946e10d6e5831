"""FedMatch's coordinator half: what is sent over a silo's shadow, weights, helpers, sigma's training, learning rate."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadData, ComputeFailed
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.evaluation import evaluate
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sparse_transfer import sparse_delta, threshold
from semisilo.common.methods.contract import FROM_TASK, CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.fedmatch import FedMatchSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.fedmatch.helpers import noise_image, pool_psi, pool_silos
from semisilo.coordinator.strategies.fedmatch.strategy import FedMatchShadow, FedMatchState, FedMatchStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
SILO, COORDINATOR = "labels-at-silo", "labels-at-coordinator"
PLAIN: dict[str, Any] = {"lambda_l1": 0.0, "l1_thres": 0.0, "delta_thres": 0.0}


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _normalised_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), StaticBatchNorm(2), nn.Flatten(), nn.Linear(8, 3))


def _images(count: int = 12, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _strategy(scenario: str = SILO, build: Any = _net, *, validation: bool = True, labelled: bool = True,
              rounds: int = 9, **settings: Any) -> FedMatchStrategy:
    data = CoordinatorData(labelled=_images() if scenario == COORDINATOR and labelled else None,
                           validation=_images(30, seed=1) if validation else None)
    environment = Environment(seed=1, rounds=rounds, num_silos=2, data=data, build_model=build, image=FORM,
                              augmentation=AugmentationSettings(policy="none"))
    return FedMatchStrategy(FedMatchSettings(scenario=scenario, **settings), environment)  # type: ignore[arg-type]


def _started(strategy: FedMatchStrategy, build: Any = _net) -> FedMatchState:
    return strategy.start(initial_model(build, 1))


class Silos:
    """Silos that answer with given parts: what the trainer does to psi and sigma is not the strategy's business."""

    def __init__(self, strategy: FedMatchStrategy, state: FedMatchState) -> None:
        self.strategy, self.state, self.round = strategy, state, 0
        self.kept: dict[str, FedMatchShadow | None] = {}

    def step(self, answers: dict[str, dict[str, Any]], *, gone: tuple[str, ...] = ()) -> FedMatchState:
        """A round in which silos add numbers to what they received: {"psi": .., "sigma": .., metrics}. Silos that are
        gone are told to the strategy."""
        self.round += 1
        groups: dict[str, dict[str, TensorGroup]] = {}
        headers = []
        for silo in sorted(answers):
            change = dict(answers[silo])
            task = self.strategy.task(self.state, TRAIN, silo, self.kept.get(silo), round=self.round)
            expected = self.strategy.expects(self.state, TRAIN, round=self.round)
            groups[silo] = {}
            for name in expected:
                sent = task.groups[name]
                moved = {key: tensor + change.get(name, 0.0) for key, tensor in sent.tensors.items()}
                groups[silo][name] = TensorGroup(moved, Meaning.OVERWRITE, base=tensors.digest(sent.tensors))
            change.pop("psi", None)
            change.pop("sigma", None)
            headers.append(UpdateHeader(silo, 10, {"num_labelled": 5.0, "num_unlabelled": 5.0, **change}))
        tally = self.strategy.begin(self.state, TRAIN, tuple(headers), round=self.round)
        if gone:
            tally = self.strategy.leave(TRAIN, tally, gone)
        for header in headers:
            tally, self.kept[header.silo] = self.strategy.fold(self.state, tally, header, groups[header.silo],
                                                               self.kept.get(header.silo))
        self.state = self.strategy.finish(self.state, TRAIN, tally, round=self.round)
        return self.state

    def helpers(self, silo: str, *, round: int | None = None) -> list[TensorGroup]:
        """The helpers that a silo would be sent in the next round."""
        number = self.round + 1 if round is None else round
        task = self.strategy.task(self.state, TRAIN, silo, self.kept.get(silo), round=number)
        return [task.groups[f"helper_psi/{index}"] for index in range(8) if f"helper_psi/{index}" in task.groups]


def _silos(scenario: str = SILO, **settings: Any) -> Silos:
    strategy = _strategy(scenario, **{**PLAIN, "aggregation": "uniform", **settings})
    return Silos(strategy, _started(strategy))


def _same(a: Any, b: Any) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def _close(a: Any, b: Any, atol: float = 1e-6) -> bool:
    return list(a) == list(b) and all(torch.allclose(a[name], b[name], atol=atol) for name in a)


def _plus(a: Any, number: float) -> dict[str, Tensor]:
    return {name: tensor + number for name, tensor in a.items()}


def _owner(group: TensorGroup, silos: Silos) -> str:
    """Whose psi a helper is."""
    found = [silo for silo in pool_silos(silos.state.pool) if _same(pool_psi(silos.state.pool, silo), group.tensors)]
    assert len(found) == 1
    return found[0]


# Round 0 and what a study needs ---------------------------------------------------------------------------------------

def test_the_model_starts_as_1_2_times_the_initial_weights() -> None:
    initial = initial_model(_net, 1)
    strategy = _strategy(SILO)
    state = strategy.start(initial)
    assert _same(state.sigma, initial)
    assert _close(strategy.model(state)[0], {"1.weight": 1.2 * initial["1.weight"], "1.bias": initial["1.bias"]})


def test_reliability_without_validation_images_is_refused_by_name() -> None:
    for settings, name in (({}, "aggregation"), ({"aggregation": "uniform"}, "helpers")):
        with pytest.raises(BadConfiguration, match=f'{name} = "reliability" needs validation') as caught:
            _strategy(SILO, validation=False, **settings)
        assert "[data] validation" in caught.value.remedy
    _strategy(SILO, validation=False, aggregation="uniform", num_helpers=0)
    _strategy(SILO, validation=False, aggregation="fedfreq", helpers="similarity")


def test_labels_at_the_coordinator_need_labels_there() -> None:
    with pytest.raises(BadData, match="labelled images"):
        _strategy(COORDINATOR, labelled=False)


def test_the_strategy_is_found_by_name() -> None:
    assert load_strategy("fedmatch") is FedMatchStrategy


# What crosses ---------------------------------------------------------------------------------------------------------

def test_a_new_silo_is_sent_everything_and_one_object_serves_all() -> None:
    strategy = _strategy(SILO, l1_thres=0.02)
    state = _started(strategy)
    one, other = (strategy.task(state, TRAIN, silo, None, round=1) for silo in ("a", "b"))
    assert set(one.groups) == {"sigma", "psi"}
    assert all(one.groups[name] is other.groups[name] for name in one.groups)
    assert {group.meaning for group in one.groups.values()} == {Meaning.VALUES}
    assert _same(one.groups["sigma"].tensors, state.sigma)
    assert _same(one.groups["psi"].tensors, threshold(state.psi, 0.02))
    assert not _same(one.groups["psi"].tensors, state.psi)
    assert one.settings == {"round_lr": 1e-4}


def test_a_known_silo_is_sent_an_overwriting_of_its_shadow() -> None:
    silos = _silos(l1_thres=0.02, delta_thres=0.01)
    silos.step({"a": {"psi": 0.3, "sigma": -0.2}, "b": {"psi": 0.0, "sigma": 0.001}})
    shadow = silos.kept["b"]
    assert shadow is not None
    task = silos.strategy.task(silos.state, TRAIN, "b", shadow, round=2)
    for name, held, limit in (("sigma", shadow.sigma, 0.0), ("psi", shadow.psi, 0.02)):
        group = task.groups[name]
        expected = sparse_delta(getattr(silos.state, name), held, l1_thres=limit, delta_thres=0.01).receiver_after
        assert group.meaning is Meaning.OVERWRITE
        assert group.base == tensors.digest(held)
        assert group.base_tensors is held
        assert _same(group.tensors, expected)


def test_an_update_overwrites_what_the_task_sent() -> None:
    for scenario, names in ((SILO, {"sigma", "psi"}), (COORDINATOR, {"psi"})):
        strategy = _strategy(scenario)
        state = _started(strategy)
        layouts = strategy.expects(state, TRAIN, round=1)
        assert set(layouts) == names
        for layout in layouts.values():
            assert (layout.meaning, layout.base) == (Meaning.OVERWRITE, FROM_TASK)
            assert layout.tensors == tensors.specs(state.psi)


def test_the_shadow_is_what_the_silo_answered_and_with_labels_at_the_coordinator_the_sigma_it_was_sent() -> None:
    silos = _silos(COORDINATOR, lr=0.1)
    sent = silos.strategy.task(silos.state, TRAIN, "a", None, round=1)
    silos.step({"a": {"psi": 0.5}})
    shadow = silos.kept["a"]
    assert shadow is not None
    assert _same(shadow.sigma, sent.groups["sigma"].tensors)
    assert _close(shadow.psi, _plus(sent.groups["psi"].tensors, 0.5))
    assert not _same(silos.state.sigma, shadow.sigma), "sigma has been trained for the next round"


def test_a_silo_that_was_away_catches_up_from_its_old_shadow() -> None:
    silos = _silos()
    silos.step({"a": {"psi": 0.1, "sigma": 0.1}, "b": {"psi": 0.2}})
    old = silos.kept["a"]
    for _ in range(3):
        silos.step({"b": {"psi": 0.2, "sigma": -0.1}})
    assert silos.kept["a"] is old
    task = silos.strategy.task(silos.state, TRAIN, "a", old, round=5)
    assert _close(task.groups["psi"].tensors, silos.state.psi), "lossless: it ends where everybody is"
    assert _close(task.groups["sigma"].tensors, silos.state.sigma)


# The mean -------------------------------------------------------------------------------------------------------------

def test_uniform_weights_give_the_plain_mean_of_both_parts() -> None:
    silos = _silos()
    before = silos.state
    after = silos.step({"a": {"psi": 0.1, "sigma": 1.0}, "b": {"psi": 0.5, "sigma": 2.0}})
    assert _close(after.psi, _plus(before.psi, 0.3))
    assert _close(after.sigma, _plus(before.sigma, 1.5))


def test_reliability_weighs_by_accuracy_of_the_silos_own_model() -> None:
    """Recomputed: theta_k = sigma_k + psi_k on the validation images, then the weighted mean."""
    silos = _silos(aggregation="reliability")
    state = silos.state
    scores = {}
    for silo, change in (("a", 0.2), ("b", -0.4), ("c", 3.0)):
        model = _net()
        tensors.load_into(model, tensors.add(state.sigma, _moved(state.psi, change)))
        scores[silo] = evaluate(model, _images(30, seed=1), form=FORM).accuracy
    assert len(set(scores.values())) > 1, "otherwise the test shows nothing"
    after = _step_moved(silos, {"a": 0.2, "b": -0.4, "c": 3.0})
    assert after.scores == scores
    assert silos.strategy.diagnostics(after)["mean_score"] == pytest.approx(sum(scores.values()) / 3)
    total = sum(scores.values())
    weighted = sum(score / total * change for score, change in zip(scores.values(), (0.2, -0.4, 3.0), strict=True))
    assert _close(after.psi, _moved(state.psi, weighted), atol=1e-5)


def test_a_model_without_finite_answers_has_score_0_and_no_weight() -> None:
    """Its weights are finite, its logits are not: every prediction then falls on one class, which is some accuracy."""
    silos = _silos(aggregation="reliability")
    psi, sigma = silos.state.psi, silos.state.sigma
    after = silos.step({"a": {"psi": 0.25}, "b": {"psi": 3e38, "sigma": 3e38}})
    assert after.scores["b"] == 0.0
    assert after.scores["a"] > 0.0
    assert _close(after.psi, _plus(psi, 0.25))
    assert _close(after.sigma, sigma)


def _moved(psi: Any, change: float) -> dict[str, Tensor]:
    """psi turned so that class 0 wins more or less often: a constant on all weights would change no prediction."""
    pattern = torch.linspace(-1, 1, 3)
    return {name: tensor + change * (pattern[:, None] if tensor.dim() == 2 else pattern)
            for name, tensor in psi.items()}


def _step_moved(silos: Silos, changes: dict[str, float]) -> FedMatchState:
    silos.round += 1
    headers = tuple(UpdateHeader(silo, 1, {"num_labelled": 1.0, "num_unlabelled": 1.0}) for silo in sorted(changes))
    tally = silos.strategy.begin(silos.state, TRAIN, headers, round=silos.round)
    for header in headers:
        kept = silos.kept.get(header.silo)
        task = silos.strategy.task(silos.state, TRAIN, header.silo, kept, round=silos.round)
        groups = {"psi": TensorGroup(_moved(task.groups["psi"].tensors, changes[header.silo])),
                  "sigma": TensorGroup(task.groups["sigma"].tensors)}
        tally, silos.kept[header.silo] = silos.strategy.fold(silos.state, tally, header, groups, kept)
    silos.state = silos.strategy.finish(silos.state, TRAIN, tally, round=silos.round)
    return silos.state


def test_weights_by_size_count_a_silos_images() -> None:
    strategy = _strategy(SILO, **PLAIN, aggregation="size")
    state = _started(strategy)
    headers = (UpdateHeader("a", 30, {}), UpdateHeader("b", 10, {}))
    tally = strategy.begin(state, TRAIN, headers, round=1)
    assert tally.weights == {"a": 0.75, "b": 0.25}  # type: ignore[union-attr]


def _weights(counts: dict[str, tuple[int, int, int]], **settings: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Shares of psi and sigma. Args: counts: by silo the update's images, those with and those without a label."""
    strategy = _strategy(SILO, **PLAIN, **settings)
    strategy._environment = replace(strategy._environment, largest_weight=0.5)
    headers = tuple(UpdateHeader(silo, count, {"num_labelled": float(labelled), "num_unlabelled": float(unlabelled)})
                    for silo, (count, labelled, unlabelled) in counts.items())
    tally: Any = strategy.begin(_started(strategy), TRAIN, headers, round=1)
    found = []
    for weights, index in ((tally.weights, 2), (tally.sigma_weights, 1)):
        there = {silo: weights[silo] for silo in counts if counts[silo][index]}
        found.append({silo: weight / sum(there.values()) for silo, weight in there.items()})
    return found[0], found[1]


def test_a_count_that_is_within_its_share_of_all_silos_is_so_of_those_that_have_labels_too() -> None:
    """Nine silos of 100 and one that says a million, which is 900 beside them; with two that have labels it had 0.9 of
    sigma."""
    counts = {f"silo-{index}": (100, 0, 100) for index in range(8)}
    counts |= {"silo-8": (100, 50, 50), "silo-9": (900, 1, 899)}
    psi, sigma = _weights(counts, aggregation="size")
    assert psi["silo-9"] == pytest.approx(0.5)
    assert sigma == pytest.approx({"silo-8": 0.5, "silo-9": 0.5})
    _, even = _weights({**counts, "silo-7": (100, 50, 50)}, aggregation="size")
    assert even == pytest.approx({"silo-7": 0.25, "silo-8": 0.25, "silo-9": 0.5})


@pytest.mark.parametrize("rule", ["size", "uniform", "fedfreq"])
def test_weights_that_are_within_the_limit_are_the_same_in_both_means(rule: Any) -> None:
    strategy = _strategy(SILO, **PLAIN, aggregation=rule)
    strategy._environment = replace(strategy._environment, largest_weight=0.5)
    headers = tuple(UpdateHeader(silo, count, {"num_labelled": 1.0, "num_unlabelled": 1.0})
                    for silo, count in (("a", 30), ("b", 10), ("c", 23)))
    tally: Any = strategy.begin(_started(strategy), TRAIN, headers, round=1)
    expected = {"size": {"a": 30 / 63, "b": 10 / 63, "c": 23 / 63}, "uniform": dict.fromkeys("abc", 1 / 3),
                "fedfreq": dict.fromkeys("abc", (1 - 1 / 3) / 2)}
    assert tally.weights == tally.sigma_weights == expected[rule]


def test_fedfreq_weighs_those_less_who_took_part_often() -> None:
    """Counts after round 2: a 2, b 1, so p = (1 - 2/3, 1 - 1/3) = (1/3, 2/3)."""
    silos = _silos(aggregation="fedfreq")
    silos.step({"a": {"psi": 0.0}})
    before = silos.state
    after = silos.step({"a": {"psi": 0.3}, "b": {"psi": 0.6}})
    assert after.participation == {"a": 2, "b": 1}
    assert _close(after.psi, _plus(before.psi, 0.1 + 0.4))


def test_a_silo_without_labels_takes_no_weight_in_sigma_nor_one_without_unlabelled_images_in_psi() -> None:
    silos = _silos()
    before = silos.state
    after = silos.step({"a": {"psi": 0.4, "sigma": 7.0, "num_labelled": 0.0},
                        "b": {"psi": 9.0, "sigma": 0.2, "num_unlabelled": 0.0}, "c": {"psi": 0.8, "sigma": 0.6}})
    assert _close(after.sigma, _plus(before.sigma, 0.4))
    assert _close(after.psi, _plus(before.psi, 0.6))
    nobody = silos.step({"a": {"psi": 0.1, "sigma": 7.0, "num_labelled": 0.0}})
    assert _same(nobody.sigma, after.sigma)


def test_one_silo_alone_gives_its_own_model() -> None:
    for rule in ("uniform", "reliability", "fedfreq"):
        silos = _silos(aggregation=rule)
        before = silos.state
        after = silos.step({"a": {"psi": 0.25, "sigma": -0.5}})
        assert _close(after.psi, _plus(before.psi, 0.25))
        assert _close(after.sigma, _plus(before.sigma, -0.5))
        assert silos.helpers("a") == [], "nobody else is there to help"


@pytest.mark.parametrize("settings", [{"scenario": SILO}, {"scenario": COORDINATOR, "coordinator_epochs": 0}])
def test_without_accepted_updates_nothing_changes_to_the_bit(settings: dict[str, Any]) -> None:
    silos = _silos(**settings, momentum=0.5, lr=0.1)
    before = silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
    after = silos.step({})
    assert after.round == 2
    assert replace(after, round=1, numbers=before.numbers) == before
    assert silos.strategy.diagnostics(after) == {"lr": before.lr}


def test_without_accepted_updates_sigma_goes_on_learning_from_the_labels() -> None:
    """Or silos that abstain while they are not confident about any image would never be sent a model that is. As if the
    one silo had sent back what it was sent."""
    results = []
    for answers in ({}, {"a": {}}):
        silos = _silos(COORDINATOR, momentum=0.5, lr=0.1)
        before = silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
        results.append(silos.step(answers))
    empty, unchanged = results
    assert not _same(empty.sigma, before.sigma)
    for name in ("sigma", "psi", "sigma_buf", "batch_norm"):
        assert _same(getattr(empty, name), getattr(unchanged, name)), name
    assert (empty.lr, empty.best_loss, empty.patience_left) == (
        unchanged.lr, unchanged.best_loss, unchanged.patience_left)
    assert _same(empty.pool, before.pool)
    assert (empty.last_round, empty.participation) == (before.last_round, before.participation)
    assert set(empty.numbers) == {"sigma_loss", "psi_density", "plateau_loss", "lr"}


def test_the_model_is_sigma_plus_the_thresholded_psi() -> None:
    strategy = _strategy(SILO, l1_thres=0.02)
    state = _started(strategy)
    w, statistics = strategy.model(state)
    assert _same(w, tensors.add(state.sigma, threshold(state.psi, 0.02)))
    assert statistics == {}
    assert not _same(w, tensors.add(state.sigma, state.psi))


def test_a_mean_that_is_not_finite_stops_the_round_with_a_clear_error() -> None:
    """Updates that are not finite never get this far over the wire; a sum of large ones may overflow."""
    silos = _silos()
    with pytest.raises(ComputeFailed, match="mean over silos of round 1"):
        silos.step({"a": {"psi": float("inf")}, "b": {"psi": 0.0}})


# Helpers --------------------------------------------------------------------------------------------------------------

def _with_scores(silos: Silos, scores: dict[str, float]) -> None:
    """Every silo answers with another psi, then its score is set by hand."""
    silos.step({silo: {"psi": 0.01 * number} for number, silo in enumerate(sorted(scores))})
    silos.state = replace(silos.state, scores=scores)


def test_helpers_are_the_best_others_of_the_last_round_and_one_copy_serves_all() -> None:
    silos = _silos(num_helpers=2, helper_pool="all")
    _with_scores(silos, {"s0": 0.41, "s1": 0.52, "s2": 0.52, "s3": 0.6})
    assert [_owner(group, silos) for group in silos.helpers("s3")] == ["s1", "s2"]
    assert [_owner(group, silos) for group in silos.helpers("s1")] == ["s3", "s2"]
    assert [_owner(group, silos) for group in silos.helpers("new")] == ["s3", "s1"]
    assert silos.helpers("s3")[0] is silos.helpers("s0")[1], "s1 for both: encoded once"
    assert all(group.meaning is Meaning.VALUES for group in silos.helpers("s3"))


def test_helpers_travel_thresholded() -> None:
    silos = _silos(l1_thres=0.02)
    silos.step({"a": {"psi": 0.0}, "b": {"psi": 0.01}})
    helper, = silos.helpers("a")
    shadow = silos.kept["b"]
    assert shadow is not None
    assert _same(helper.tensors, threshold(shadow.psi, 0.02))
    assert 0 < int(helper.tensors["1.weight"].count_nonzero()) < 48


def test_the_state_holds_no_more_psi_than_could_be_asked_for() -> None:
    """H + 1 of seven silos: whoever asks, his two best others are among them. Scores come from the folds themselves."""
    silos = _silos(aggregation="reliability", num_helpers=2)
    changes = {f"s{number}": 0.7 * number - 2.0 for number in range(7)}
    state = _step_moved(silos, changes)
    assert len(pool_silos(state.pool)) == 3
    best = sorted(state.scores, key=lambda silo: (-state.scores[silo], silo))
    for silo in [*changes, "new"]:
        assert [_owner(group, silos) for group in silos.helpers(silo)] == [each for each in best if each != silo][:2]


def test_first_round_and_late_joiners_have_no_helpers_but_those_there_are() -> None:
    silos = _silos(num_helpers=3)
    assert silos.helpers("a") == []
    silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
    assert len(silos.helpers("a")) == 1, "fewer than H known: those there are"
    assert len(silos.helpers("late")) == 2
    assert _silos(num_helpers=0).step({"a": {"psi": 0.1}, "b": {"psi": 0.1}}).pool == {}


def test_silos_of_earlier_rounds_help_only_from_the_pool_of_all() -> None:
    for pool, expected in (("last_round", ["b"]), ("all", ["b", "a"])):
        silos = _silos(num_helpers=3, helper_pool=pool)
        silos.step({"a": {"psi": 0.1}})
        silos.step({"b": {"psi": 0.1}})
        silos.state = replace(silos.state, scores={"a": 0.1, "b": 0.2})
        assert [_owner(group, silos) for group in silos.helpers("late")] == expected
        silos.step({})
        assert [_owner(group, silos) for group in silos.helpers("late")] == expected, "an empty round changes nothing"


def test_a_helper_that_is_too_old_is_not_chosen() -> None:
    silos = _silos(num_helpers=3, helper_pool="all", helper_max_age_rounds=2)
    silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
    for _ in range(2):
        silos.step({"b": {"psi": 0.1}})
    assert [_owner(group, silos) for group in silos.helpers("late")] == ["b"], "a answered in round 1"
    assert pool_silos(silos.state.pool) == ("b",), "and its psi is not kept for nothing"
    silos.step({"a": {"psi": 0.1}})
    assert {_owner(group, silos) for group in silos.helpers("late")} == {"a", "b"}


@pytest.mark.parametrize("answers", [("a", "c"), ("a", "b", "c"), ()])
@pytest.mark.parametrize(("pool", "scenario"), [("all", SILO), ("all", COORDINATOR), ("last_round", SILO)])
def test_a_silo_that_is_gone_helps_nobody_until_it_comes_back(pool: Any, scenario: Any, answers: tuple[str, ...]
                                                               ) -> None:
    """Set aside as one that lies, or revoked; one that has left by itself may have answered in its last round."""
    silos = _silos(scenario, helper_pool=pool, num_helpers=2)
    silos.step({silo: {"psi": number / 10} for number, silo in enumerate("abc", start=1)})
    silos.step({silo: {"psi": number / 10} for number, silo in enumerate(answers)}, gone=("b", "somebody"))
    assert pool_silos(silos.state.pool) == ("a", "c")
    assert {_owner(group, silos) for group in silos.helpers("a")} == {"c"}
    silos.step({silo: {"psi": 0.1} for silo in "abc"})
    assert pool_silos(silos.state.pool) == ("a", "b", "c")


def test_age_counts_rounds_in_which_nobody_answered_as_well() -> None:
    silos = _silos(helper_max_age_rounds=2)
    silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
    silos.step({})
    assert len(silos.helpers("a")) == 1, "round 3: the helper's update is 2 rounds old"
    silos.step({})
    assert silos.helpers("a") == [], "round 4: 3 rounds old"


def test_similar_models_help_each_other_in_every_tenth_round() -> None:
    """Recomputed: softmax of sigma_k + psi_k on the noise image, Euclidean distance."""
    silos = _silos(helpers="similarity", helper_interval=10, helper_pool="all", num_helpers=1)
    changes = {"a": 0.1, "b": 2.0, "c": 0.15}
    before = silos.state
    state = _step_moved(silos, changes)
    noise = augment.to_input(noise_image(1, channels=1, size=4) * 255, FORM)
    for silo, change in changes.items():
        model = _net()
        tensors.load_into(model, tensors.add(before.sigma, _moved(before.psi, change)))
        expected = torch.softmax(model(noise).detach()[0].double(), dim=0).tolist()
        assert state.embeddings[silo] == pytest.approx(expected, abs=1e-5)
    assert [_owner(group, silos) for group in silos.helpers("a", round=10)] == ["c"]
    assert [_owner(group, silos) for group in silos.helpers("b", round=20)] == ["c"]
    assert silos.helpers("a", round=9) == silos.helpers("a", round=11) == []
    assert silos.helpers("late", round=10) == [], "it has no embedding"


def test_a_model_without_a_finite_answer_neither_helps_nor_is_helped() -> None:
    silos = _silos(helpers="similarity", helper_interval=1, helper_pool="all", lambda_l2=0.0)
    state = silos.state
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in state.psi.items()}
    headers = (UpdateHeader("a", 1, {"num_unlabelled": 1.0}), UpdateHeader("b", 1, {"num_unlabelled": 0.0}))
    tally = silos.strategy.begin(state, TRAIN, headers, round=1)
    for header, psi in zip(headers, (dict(state.psi), huge), strict=True):
        groups = {"psi": TensorGroup(psi), "sigma": TensorGroup(state.sigma)}
        tally, _ = silos.strategy.fold(state, tally, header, groups, None)
    silos.state, silos.round = silos.strategy.finish(state, TRAIN, tally, round=1), 1
    assert set(silos.state.embeddings) == {"a"}
    assert silos.helpers("a") == silos.helpers("b") == []


# Labels at the coordinator --------------------------------------------------------------------------------------------

def test_sigma_is_trained_before_round_1_and_after_every_round_the_last_included() -> None:
    """A plain reference: lambda_s times the gradient of the cross-entropy at sigma + psi, momentum carried over. Round
    2 is the last: its model is the mean after a pass over the labels, as that of all others (Algorithm 2)."""
    silos = _silos(COORDINATOR, rounds=2, lr=0.01, momentum=0.9, augment_train=False, labelled_batch=5,
                   coordinator_epochs=2, plateau_factor=1.0)
    x, y = augment.to_input(_images().images_NCHW, FORM), torch.arange(12) % 3
    sigma = initial_model(_net, 1)
    psi = {name: 0.2 * tensor if tensor.dim() > 1 else torch.zeros_like(tensor) for name, tensor in sigma.items()}
    buffers = {name: torch.zeros_like(tensor) for name, tensor in sigma.items()}

    def train(round: int) -> None:
        order = torch_generator(1, "sigma_order", round=round)
        for _ in range(2):
            for index in torch.randperm(12, generator=order).split(5):
                w = {name: (sigma[name] + psi[name]).requires_grad_() for name in sigma}
                logits = x[index].flatten(1) @ w["1.weight"].T + w["1.bias"]
                loss = 10.0 * nn.functional.cross_entropy(logits, y[index])
                for name, gradient in zip(w, torch.autograd.grad(loss, list(w.values())), strict=True):
                    buffers[name] = 0.9 * buffers[name] + gradient
                    sigma[name] = sigma[name] - 0.01 * buffers[name]

    train(0)
    assert _close(silos.state.sigma, sigma, atol=1e-4)
    silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
    psi = _plus(psi, 0.15)
    train(1)
    assert _close(silos.state.psi, psi, atol=1e-4)
    assert _close(silos.state.sigma, sigma, atol=1e-3)
    last = silos.step({"a": {"psi": 0.1}})
    untuned = dict(sigma)
    psi = _plus(psi, 0.1)
    train(2)
    assert _close(last.sigma, sigma, atol=2e-3)
    assert not _close(last.sigma, untuned, atol=2e-3), "otherwise the test shows nothing"
    assert "sigma_loss" in silos.strategy.diagnostics(last)
    assert _close(silos.strategy.model(last)[0], tensors.add(last.sigma, last.psi))


def test_a_round_has_the_same_model_whether_it_is_the_last_or_not() -> None:
    """So the curve compares one kind of model, and a study that is extended goes on with the bits of a longer one."""
    found = []
    for rounds in (1, 9):
        silos = _silos(COORDINATOR, rounds=rounds, lr=0.01, momentum=0.9)
        found.append(silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}}))
    assert _plain(found[0]) == _plain(found[1])


def test_without_momentum_none_is_kept_for_sigma() -> None:
    """Zeros would be as large as the model, in every checkpoint."""
    silos = _silos(COORDINATOR, momentum=0.0, lr=0.01)
    assert silos.state.sigma_buf is None
    before = silos.state.sigma
    assert silos.step({"a": {"psi": 0.1}}).sigma_buf is None
    assert not _same(silos.state.sigma, before)


def test_with_labels_at_silos_the_coordinator_does_not_train() -> None:
    strategy = _strategy(SILO, lr=0.1)
    state = _started(strategy)
    assert _same(state.sigma, initial_model(_net, 1))
    assert state.sigma_buf is None


# Learning rate, statistics, diagnostics -------------------------------------------------------------------------------

def test_the_learning_rate_falls_when_the_validation_loss_does_not() -> None:
    silos = _silos(lr=0.3, plateau_patience=2, plateau_factor=3.0)
    sent, losses = [], []
    for _ in range(5):
        sent.append(silos.strategy.task(silos.state, TRAIN, "a", None, round=1).settings["round_lr"])
        losses.append(silos.strategy.diagnostics(silos.step({"a": {"psi": 0.0}}))["plateau_loss"])
    assert len(set(losses)) == 1, "the model stays, so the loss does"
    assert sent == pytest.approx([0.3, 0.3, 0.3, 0.1, 0.1])
    model = _net()
    tensors.load_into(model, silos.strategy.model(silos.state)[0])
    assert losses[0] == pytest.approx(evaluate(model, _images(30, seed=1), form=FORM).loss)


def test_without_validation_images_the_learning_rate_is_constant() -> None:
    silos = _silos(validation=False, helpers="similarity", lr=0.3, plateau_patience=1)
    for _ in range(4):
        silos.step({"a": {"psi": 0.0}})
    assert silos.state.lr == 0.3


@pytest.mark.parametrize("scenario", [SILO, COORDINATOR])
def test_static_batch_norm_is_measured_by_the_coordinator_with_the_new_model(scenario: str) -> None:
    strategy = _strategy(scenario, _normalised_net, **PLAIN)
    silos = Silos(strategy, _started(strategy, _normalised_net))
    assert strategy.phases(silos.state, 1) == (TRAIN,)
    task = strategy.task(silos.state, TRAIN, "a", None, round=1)
    assert _same(task.groups["batch_norm"].tensors, silos.state.batch_norm)
    state = silos.step({"a": {"psi": 0.1}, "b": {"psi": -0.3}})
    images = _images() if scenario == COORDINATOR else _images(30, seed=1)
    assert _close(state.batch_norm, _measured(strategy.model(state)[0], images), atol=1e-5)


def _measured(w: Any, images: ImageSet) -> dict[str, Tensor]:
    model = _normalised_net()
    tensors.load_into(model, w)
    return batch_norm.to_tensors(batch_norm.measure(model, images.images_NCHW, form=FORM,
                                                    generator=torch.Generator().manual_seed(0)))


def test_a_silos_model_is_scored_with_statistics_of_its_own() -> None:
    """Those of the global model would not fit it: here its first layer has moved far."""
    strategy = _strategy(SILO, _normalised_net, **PLAIN)
    state = _started(strategy, _normalised_net)
    psi = {**state.psi, "0.bias": state.psi["0.bias"] + 50.0}
    groups = {"psi": TensorGroup(psi), "sigma": TensorGroup(state.sigma)}
    header = UpdateHeader("a", 1, {"num_unlabelled": 1.0})
    tally, _ = strategy.fold(state, strategy.begin(state, TRAIN, (header,), round=1), header, groups, None)
    w, validation = tensors.add(state.sigma, psi), _images(30, seed=1)
    found = []
    for statistics in (_measured(w, validation), state.batch_norm):
        model = _normalised_net()
        tensors.load_into(model, w)
        batch_norm.load(model, statistics)
        found.append(evaluate(model, validation, form=FORM).accuracy)
    assert found[0] != found[1], "otherwise the test shows nothing"
    after = strategy.finish(state, TRAIN, tally, round=1)  # type: ignore[arg-type]
    assert after.scores == {"a": found[0]}
    assert _close(strategy.local_model(state, groups, None)[1], _measured(w, validation), atol=1e-4)


def test_where_silos_measure_the_loss_is_taken_after_their_phase() -> None:
    strategy = _strategy(SILO, _normalised_net, **PLAIN, sbn_source="silos", lr=0.3, plateau_patience=1)
    silos = Silos(strategy, _started(strategy, _normalised_net))
    assert strategy.phases(silos.state, 1) == (STATISTICS, TRAIN, STATISTICS)
    assert strategy.phases(silos.state, 2) == (TRAIN, STATISTICS)

    def measure(state: FedMatchState, round: int) -> FedMatchState:
        task = strategy.task(state, STATISTICS, "a", None, round=round)
        assert task is not None
        assert _same(task.groups["model"].tensors, strategy.model(state)[0])
        model = _normalised_net()
        tensors.load_into(model, task.groups["model"].tensors)
        found = batch_norm.measure(model, _images(9).images_NCHW, form=FORM, generator=torch.Generator())
        header = UpdateHeader("a", 9)
        tally = strategy.begin(state, STATISTICS, (header,), round=round)
        tally, kept = strategy.fold(state, tally, header,
                                    {"batch_norm": TensorGroup(batch_norm.to_tensors(found, counts=True))}, None)
        assert kept is None
        return strategy.finish(state, STATISTICS, tally, round=round)

    silos.state = measure(silos.state, 1)
    assert silos.state.best_loss is None, "the model of round 0 is not judged"
    assert silos.state.batch_norm
    trained = silos.step({"a": {"psi": 0.0}})
    assert trained.best_loss is None
    judged = measure(trained, 1)
    assert judged.best_loss is not None
    again = measure(judged, 1)
    assert (again.patience_left, again.lr, again.best_loss) == (1, 0.3, judged.best_loss), "judged once"


def test_values_sent_are_counted_by_the_papers_measure() -> None:
    """51 parameters. Round 1 sends sigma and psi whole, 200 %; a changes all of psi and none of sigma, b nothing.
    Round 2: psi and sigma of silo a differ from the new mean, and the only helper has psi 0.2 sigma_0 + 0.1, all of
    it not 0."""
    silos = _silos(num_helpers=1)
    state = silos.step({"a": {"psi": 0.1}, "b": {}})
    first = silos.strategy.diagnostics(state)
    assert first["s2c_percent"] == pytest.approx(200.0)
    assert first["c2s_percent"] == pytest.approx((100.0 + 0.0) / 2)
    silos.state = replace(silos.state, scores={"a": 0.9, "b": 0.1})
    second = silos.strategy.diagnostics(silos.step({"b": {"psi": 0.1, "sigma": 0.1}}))
    assert second["c2s_percent"] == pytest.approx(200.0)
    assert second["s2c_percent"] == pytest.approx(100.0 + 0.0 + 100.0), "psi; sigma as it was; a's psi"


def test_numbers_of_a_round_are_finite_and_named() -> None:
    silos = _silos(COORDINATOR, aggregation="reliability", l1_thres=0.02)
    numbers = silos.strategy.diagnostics(silos.step({"a": {"psi": 0.0}}))
    assert set(numbers) == {"c2s_percent", "s2c_percent", "mean_score", "psi_density", "sigma_loss",
                            "plateau_loss", "lr"}
    psi = torch.cat([tensor.flatten() for tensor in silos.state.psi.values()])
    assert numbers["psi_density"] == pytest.approx(float((psi.abs() > 0.02).float().mean()))
    assert 0 < numbers["psi_density"] < 1


def test_a_silos_own_model_is_the_sum_of_its_parts() -> None:
    strategy = _strategy(SILO)
    state = _started(strategy)
    groups = {"sigma": TensorGroup(_plus(state.sigma, 1.0)), "psi": TensorGroup(_plus(state.psi, 2.0))}
    assert _close(strategy.local_model(state, groups, None)[0], _plus(tensors.add(state.sigma, state.psi), 3.0))
    other = _strategy(COORDINATOR, **PLAIN)
    state = _started(other)
    kept = FedMatchShadow(sigma=_plus(state.sigma, -1.0), psi=state.psi)
    found, _ = other.local_model(state, {"psi": TensorGroup(_plus(state.psi, 2.0))}, kept)
    assert _close(found, _plus(tensors.add(state.sigma, state.psi), 2.0))


@pytest.mark.parametrize("scenario", [SILO, COORDINATOR])
def test_state_shadow_and_tally_survive_the_disk(scenario: str, tmp_path: Path) -> None:
    silos = _silos(scenario, helpers="similarity", helper_interval=1, aggregation="reliability")
    silos.step({"a": {"psi": 0.1}, "b": {"psi": 0.2}})
    for value in (silos.state, silos.kept["a"], silos.strategy.begin(silos.state, TRAIN, (), round=2)):
        checkpoint.save(tmp_path / "file", value)
        assert _plain(checkpoint.load(tmp_path / "file", type(value))) == _plain(value)
    reloaded = Silos(_strategy(scenario, **PLAIN, helpers="similarity", helper_interval=1), silos.state)
    checkpoint.save(tmp_path / "file", silos.state)
    reloaded.state, reloaded.round = checkpoint.load(tmp_path / "file", FedMatchState), 1
    reloaded.kept = dict(silos.kept)
    one, other = (each.step({"a": {"psi": 0.3}, "b": {"psi": 0.1}}) for each in (silos, reloaded))
    assert _plain(one) == _plain(other)


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass for comparison: tensors as their digest."""
    return {field.name: tensors.digest(part) if isinstance(part, dict) and part and all(
                isinstance(each, Tensor) for each in part.values()) else part
            for field in fields(value) for part in (getattr(value, field.name),)}
