"""Static batch-norm statistics from silos: what one of them claims must not stop the study or silence the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.averaging.moments import to_moments
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, Phase, TensorGroup, UpdateHeader
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.common.methods.spec import StatisticsSource
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies.batch_norm.statistics import StaticStatistics
from tests.each_of import each_of


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), StaticBatchNorm(2))


def _statistics() -> StaticStatistics:
    return StaticStatistics(Environment(
        seed=1, rounds=1, num_silos=3, data=CoordinatorData(), build_model=_net,
        image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)), augmentation=AugmentationSettings()), "silos")


def _of(count: int, mean: float, var: float = 1.0) -> dict[str, Tensor]:
    return {"1.mean": torch.full((2,), mean), "1.var": torch.full((2,), var), "1.count": torch.tensor([count])}


def _merged(answers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    statistics = _statistics()
    tally = statistics.begin({}, {})
    for silo, sent in answers.items():
        header = UpdateHeader(silo, 50, {})
        tally = statistics.fold(tally, header, {"batch_norm": TensorGroup(dict(sent), Meaning.VALUES)})
    return statistics.finish(tally, _of(1, 9.0))


def test_silos_count_by_their_values() -> None:
    """mu = (100 * 1 + 300 * 3) / 400; var = (99 * 1 + 299 * 1 + 100 * 1.5^2 + 300 * 0.5^2) / 399."""
    merged = _merged({"a": _of(100, 1.0), "b": _of(300, 3.0)})
    assert merged["1.mean"].tolist() == pytest.approx([2.5, 2.5])
    assert merged["1.var"].tolist() == pytest.approx([698 / 399] * 2)


@pytest.mark.parametrize("wrong", [
    pytest.param(_of(2**53, 7.0), id="a count with which merging leaves what a double can count"),
    pytest.param(_of(2**62, 7.0), id="a count beyond that"), pytest.param(_of(0, 7.0), id="no value"),
    pytest.param(_of(10, 7.0, -1.0), id="a negative variance"),
    pytest.param(_of(10, float("nan")), id="not a number"),
    pytest.param(_of(10, 3e38), id="a mean that makes the variance overflow"),
])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_impossible_statistics_are_left_out_and_the_others_count(wrong: dict[str, Tensor], position: int) -> None:
    honest = [("a", _of(100, 1.0)), ("b", _of(300, 3.0))]
    answers = dict([*honest[:position], ("x", wrong), *honest[position:]])
    merged = _merged(answers)
    for name, tensor in _merged(dict(honest)).items():
        assert torch.equal(merged[name], tensor)


def test_without_answers_the_last_rounds_stay() -> None:
    assert torch.equal(_merged({})["1.mean"], torch.full((2,), 9.0))


def _robust(answers: Mapping[str, Mapping[str, Tensor]], robust: RobustSettings, own: dict[str, Tensor]
            ) -> dict[str, Tensor]:
    statistics = StaticStatistics(Environment(
        seed=1, rounds=1, num_silos=3, data=CoordinatorData(), build_model=_net, robust=robust,
        image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)), augmentation=AugmentationSettings()), "silos")
    headers = tuple(UpdateHeader(silo, 50, {}) for silo in answers)
    groups = [{"batch_norm": TensorGroup(dict(each), Meaning.VALUES)} for each in answers.values()]
    with SpooledUpdates(headers, lambda index: groups[index], norms=[None] * len(headers), scratch=Path()) as updates:
        tally = statistics.appraised(statistics.begin(own, {}), updates, model=_net, round=1)
    for header, each in zip(headers, groups, strict=True):
        tally = statistics.fold(tally, header, each)
    return statistics.finish(tally, _of(1, 9.0))


HONEST = {"a": _of(100, 1.0, 2.0), "b": _of(300, 3.0, 2.0), "c": _of(10, 2.0, 2.0)}


@each_of("robust", [RobustSettings(rule="judge", byzantine_silos=1), RobustSettings(rule="judge"),
                    RobustSettings(rule="trimmed_mean", byzantine_silos=1)])
def test_under_a_rule_one_liar_moves_no_statistics_out_of_the_honest_range(robust: RobustSettings) -> None:
    for liar in (_of(2**40, 11.0, 2.0), _of(2**40, 1e9, 1e12)):
        found = _robust({**HONEST, "x": liar}, robust, {})
        assert 1.0 <= float(found["1.mean"][0]) <= 3.0
        assert float(found["1.var"][0]) <= 2.0 + 4.0
    liar = _of(2**40, 11.0, 2.0)
    plain = _robust({**HONEST, "x": liar}, RobustSettings(), {})
    assert float(plain["1.mean"][0]) > 6.0, "the control: the plain merge believes its mean"
    assert all(torch.equal(plain[name], tensor) for name, tensor in _merged({**HONEST, "x": liar}).items())


def _appraised(answers: Mapping[str, Mapping[str, Tensor]], own: Mapping[str, Tensor] | None = None,
               robust: RobustSettings | None = None) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Statistics after the phase, and notices."""
    statistics = StaticStatistics(Environment(
        seed=1, rounds=1, num_silos=3, data=CoordinatorData(), build_model=_net, robust=robust or RobustSettings(),
        image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,)), augmentation=AugmentationSettings()), "silos")
    headers = tuple(UpdateHeader(silo, 50, {}) for silo in answers)
    groups = [{"batch_norm": TensorGroup(dict(each), Meaning.VALUES)} for each in answers.values()]
    with SpooledUpdates(headers, lambda index: groups[index], norms=[None] * len(headers), scratch=Path()) as updates:
        tally = statistics.appraised(statistics.begin(own or {}, {}), updates, model=_net, round=1)
    for header, each in zip(headers, groups, strict=True):
        tally = statistics.fold(tally, header, each)
    return statistics.finish(tally, _of(1, 9.0)), tally.notices


@each_of("liar", [_of(10, 1e12, 1e12), _of(10, 2.0, 1e9), _of(10, -200.0, 2.0),
                  {**_of(10, 2.0, 2.0), "1.mean": torch.tensor([2.0, 50.0])}])
def test_statistics_far_from_those_of_the_others_are_left_out_and_named(liar: dict[str, Tensor]) -> None:
    """Without any rule: the honest round's bits, wherever the liar stands."""
    for answers in ({**HONEST, "x": liar}, {"A": liar, **HONEST}):
        found, notices = _appraised(answers)
        assert all(torch.equal(found[name], tensor) for name, tensor in _merged(HONEST).items())
        (silo, text), = notices.items()
        assert silo in ("A", "x")
        assert "are far from the others' and are left out: at layer '1' their mean square" in text
    assert _appraised(HONEST)[1] == {}, "a control"


def test_very_different_statistics_are_named_and_count() -> None:
    """Means that are five standard deviations away in all channels."""
    found, notices = _appraised({**HONEST, "x": _of(100, 2.0 + 5 * 2.0**0.5, 2.0)})
    assert "left out" not in notices["x"]
    assert all(torch.equal(found[name], tensor) for name, tensor in
               _merged({**HONEST, "x": _of(100, 2.0 + 5 * 2.0**0.5, 2.0)}).items())


def test_of_two_voices_nobody_can_say_which_is_far_and_the_coordinators_own_is_one() -> None:
    liar, few = _of(10, 1e9), {"a": _of(100, 1.0, 2.0)}
    assert _appraised({**few, "x": liar})[1] == {}
    found, notices = _appraised({**few, "x": liar}, own=_of(100, 1.5, 2.0))
    assert list(notices) == ["x"]
    assert found["1.mean"].tolist() == pytest.approx([1.25, 1.25])
    assert _appraised({"x": liar, "y": liar}, own=_of(100, 1.5, 2.0))[1] == {}, "the majority lies"


def test_under_a_rule_the_far_are_trimmed_and_named_all_the_same() -> None:
    robust = RobustSettings(rule="trimmed_mean", byzantine_silos=1)
    _, notices = _appraised({**HONEST, "x": _of(10, 1e9)}, robust=robust)
    assert list(notices) == ["x"]
    assert "left out" not in notices["x"]


@each_of("robust", [RobustSettings(), RobustSettings(rule="judge"),
                    RobustSettings(rule="trimmed_mean", byzantine_silos=1)])
def test_where_all_statistics_are_impossible_the_last_rounds_stay(robust: RobustSettings) -> None:
    found, notices = _appraised({"a": _of(0, 7.0), "b": _of(10, 7.0, -1.0)}, robust=robust)
    assert torch.equal(found["1.mean"], torch.full((2,), 9.0))
    assert list(notices) == ["a", "b"]


def test_of_very_many_silos_some_make_the_median_and_all_are_held_against_it(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of forty: every fourth, so one of the liars is among them."""
    monkeypatch.setattr("semisilo.coordinator.strategies.batch_norm.statistics._MOST_COMPARED", 10)
    answers = {f"s{number:02d}": _of(100, 1.0 + number / 40, 2.0) for number in range(40)}
    liars = {"s07": _of(10, 1e12), "s20": _of(10, -1e9), "s33": _of(0, 7.0)}
    found, notices = _appraised({**answers, **liars})
    assert list(notices) == ["s07", "s20", "s33"]
    honest = _merged({silo: each for silo, each in answers.items() if silo not in liars})
    assert all(torch.equal(found[name], tensor) for name, tensor in honest.items())


def test_impossible_statistics_are_named() -> None:
    assert "are left out: " in _appraised({**HONEST, "x": _of(0, 7.0)})[1]["x"]


def test_with_too_few_answers_the_coordinators_own_statistics_stay() -> None:
    robust, own = RobustSettings(rule="multi_krum", byzantine_silos=2), _of(50, 4.0)
    assert _robust(HONEST, robust, own)["1.mean"].tolist() == [4.0, 4.0]
    assert _robust(HONEST, robust, {})["1.mean"].tolist() == [9.0, 9.0]


# Added up behind masks --------------------------------------------------------------------------------------------


def _summing(robust: RobustSettings | None = None, source: StatisticsSource = "silos") -> StaticStatistics:
    generator = torch.Generator().manual_seed(2)
    images = ImageSet(torch.randint(0, 256, (30, 1, 4, 4), dtype=torch.uint8, generator=generator), labels_N=None,
                      names=("",) * 30)
    return StaticStatistics(Environment(
        seed=1, rounds=1, num_silos=3, data=CoordinatorData(validation=images), build_model=_net, summed=True,
        robust=robust or RobustSettings(), augmentation=AugmentationSettings(),
        image=ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))), source)


def _sum_of(silos: Mapping[int, Mapping[str, Tensor]], reference: Mapping[str, Tensor]
            ) -> tuple[UpdateHeader, dict[str, TensorGroup]]:
    """The mean of the moments of silos, by how many images each has, as the sum of masked updates gives it."""
    total = sum(silos)
    moments = {images: to_moments(batch_norm.from_tensors(dict(each)), reference) for images, each in silos.items()}
    mean = {name: torch.stack([images / total * moments[images][name] for images in silos]).sum(0)
            for name in next(iter(moments.values()))}
    return UpdateHeader("silos", total, {}), {"batch_norm": TensorGroup(mean, Meaning.VALUES)}


def _of_images(images: int, mean: float, var: float) -> dict[str, Tensor]:
    return _of(4 * images, mean, var)  # each image of 4 x 4 gives 2 x 2 values behind a convolution of 3 x 3


@pytest.mark.parametrize("source", ["silos", "coordinator+silos"])
def test_a_sum_of_moments_is_merged_as_each_silos_statistics_are(source: StatisticsSource) -> None:
    summing = _summing(source=source)
    torch.manual_seed(0)
    own = summing.own(_net(), round=1)
    assert bool(own) == (source == "coordinator+silos")
    silos = {25: _of_images(25, 1.0, 2.0), 75: _of_images(75, 3.0, 0.5)}
    reference = summing.reference(own, {})
    assert set(reference) == {"1.mean", "1.var"}
    task = summing.task(TensorGroup({}), TensorGroup(reference))
    assert task.groups["batch_norm"].tensors is reference
    header, groups = _sum_of(silos, reference)
    assert summing.expects()["batch_norm"].tensors == tensors.specs(groups["batch_norm"].tensors)
    found = summing.finish(summing.fold(summing.begin(own, {}), header, groups), {})
    parts = [batch_norm.from_tensors(each) for each in (*([own] if own else []), *silos.values())]
    expected = batch_norm.to_tensors(batch_norm.merge(parts))
    assert all(torch.allclose(found[name], expected[name], rtol=1e-4) for name in expected)


def test_the_reference_is_the_coordinators_own_then_what_is_in_use_then_noise() -> None:
    summing = _summing()
    used = {"1.mean": torch.ones(2), "1.var": torch.ones(2)}
    own = {"1.mean": torch.zeros(2).double(), "1.var": torch.ones(2).double(), "1.count": torch.tensor([8])}
    assert torch.equal(summing.reference(own, used)["1.mean"], torch.zeros(2))
    assert summing.reference({}, used) == used
    noise, again = summing.reference({}, {}), _summing().reference({}, {})
    assert all(torch.equal(noise[name], again[name]) for name in ("1.mean", "1.var"))
    assert bool((noise["1.var"] > 0).all())
    assert _statistics().reference(own, used) == {}, "in the clear silos are sent none"


def test_a_sum_has_phases_of_its_own_names_and_asks_the_sample() -> None:
    train = Phase("train")
    assert [phase.name for phase in _summing().phases(train, round=1)] == ["first-statistics", "train", "statistics"]
    assert [(phase.asks, phase.quorum) for phase in _summing().phases(train, round=2)] == [
        ("sample", "study"), ("sample", "any")]


def test_under_a_rule_a_group_with_a_liar_moves_no_statistics_out_of_the_honest_range() -> None:
    summing = _summing(RobustSettings(rule="trimmed_mean", byzantine_silos=1))
    used = {"1.mean": torch.full((2,), 2.0), "1.var": torch.full((2,), 2.0)}
    sums = [_sum_of({30: _of_images(30, mean, 2.0), 31: _of_images(31, mean, 2.0)}, used) for mean in (1.0, 2.0, 60.0)]
    headers = tuple(header for header, _ in sums)
    with SpooledUpdates(headers, lambda index: sums[index][1], norms=[None] * 3, scratch=Path()) as updates:
        tally = summing.appraised(summing.begin({}, used), updates, model=_net, round=1)
    for header, groups in sums:
        tally = summing.fold(tally, header, groups)
    found = summing.finish(tally, {})
    assert found["1.mean"].tolist() == pytest.approx([2.0, 2.0], rel=1e-4)


def test_a_sum_that_is_not_finite_is_left_out() -> None:
    summing = _summing()
    used = {"1.mean": torch.ones(2), "1.var": torch.ones(2)}
    broken = {"batch_norm": TensorGroup({"1.mean": torch.full((2,), torch.nan), "1.square": torch.ones(2)})}
    tally = summing.fold(summing.begin({}, used), UpdateHeader("silos", 9, {}), broken)
    assert summing.finish(tally, used) == used
