"""Batch-norm statistics that spoil the answers for the coordinator's own images: who is left out, and who never is."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm
from semisilo.common.learning.averaging.moments import to_moments
from semisilo.common.learning.batch_norm import LayerStatistics, StaticBatchNorm, Statistics
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, TensorGroup, UpdateHeader
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.common.methods.spec import StatisticsSource
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies.batch_norm.statistics import StaticStatistics
from semisilo.coordinator.strategies.batch_norm.trial import (
    MOST_TRIED,
    Candidate,
    StatisticsTrial,
    Verdict,
    spoils,
)
from tests.each_of import each_of

FORM = ImageForm(size=1, channels=1, mean=(0.0,), std=(1.0,))
BRIGHTNESS = torch.tensor([50, 70, 90, 160, 180, 200], dtype=torch.uint8)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
IMAGES = ImageSet(BRIGHTNESS.reshape(6, 1, 1, 1), LABELS, tuple("abcdef"))
MEAN, VAR = float((BRIGHTNESS / 255).double().mean()), float((BRIGHTNESS / 255).double().var())


def _net() -> nn.Module:
    """Logits (-4 z, 4 z) of the normalised brightness z: bright is class 1."""
    head = nn.Linear(1, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-4.0], [4.0]]))
        head.bias.zero_()
    return nn.Sequential(StaticBatchNorm(1), nn.Flatten(), head)


def _environment(images: ImageSet | None = IMAGES, robust: RobustSettings = RobustSettings()) -> Environment:
    return Environment(seed=1, rounds=1, num_silos=3, data=CoordinatorData(labelled=images), build_model=_net,
                       image=FORM, augmentation=AugmentationSettings(), num_classes=2, robust=robust)


def _shifted(by: float, *, count: int = 100, spread: float = 1.0) -> Statistics:
    """Of images that are brighter by so many standard deviations of the coordinator's."""
    return {"0": LayerStatistics(float(count), torch.tensor([MEAN + by * math.sqrt(VAR)], dtype=torch.float64),
                                 torch.tensor([VAR * spread], dtype=torch.float64))}


def _found(silos: Mapping[str, Statistics], *, with_own: bool = True) -> Verdict:
    own = _shifted(0.0, count=6)
    merged = batch_norm.merge([*([own] if with_own else []), *silos.values()])
    distance = {name: abs(float(each["0"].mean) - MEAN) for name, each in silos.items()}
    return StatisticsTrial(_environment(), IMAGES).verdict(
        _net(), own=own, merged=merged, silos=len(silos), candidates=lambda: [
            Candidate(silo=name, statistics=each, distance=distance[name]) for name, each in silos.items()])


HONEST = {name: _shifted(by) for name, by in (("a", 0.1), ("b", -0.2), ("c", 0.0), ("d", 0.2))}


def test_nobody_is_left_out_of_what_does_no_harm() -> None:
    assert _found(HONEST) == Verdict(rise=pytest.approx(0.0, abs=0.02))
    assert _found({**HONEST, "other scanner": _shifted(1.0)}).left_out == ()


@each_of("liars", [{"x": _shifted(6.0)}, {"x": _shifted(-6.0)}, {"x": _shifted(6.0), "y": _shifted(5.0)},
                   {"x": _shifted(12.0), "y": _shifted(-12.0)}, {"x": _shifted(0.0, spread=4000.0)},
                   {name: _shifted(6.0) for name in "wxyz"}])
def test_who_spoils_the_answers_is_left_out_and_nobody_else(liars: dict[str, Statistics]) -> None:
    found = _found({**liars, **HONEST})
    assert set(found.left_out) == set(liars)
    assert not found.spoilt


@each_of("silos", [{"x": _shifted(6.0)}, {name: _shifted(6.0) for name in "vwxyz"},
                   {"a": _shifted(0.0), "b": _shifted(0.0), **{name: _shifted(6.0) for name in "vwxyz"}}])
def test_where_most_look_unlike_the_coordinator_nobody_is_left_out(silos: dict[str, Statistics]) -> None:
    found = _found(silos)
    assert (found.left_out, found.spoilt) == ((), True)
    assert found.rise > 1.0


def test_of_silos_that_look_unlike_the_coordinator_one_that_makes_it_much_worse_is_left_out() -> None:
    others = {name: _shifted(0.9 + 0.02 * number) for number, name in enumerate("abcde")}
    found = _found({**others, "x": _shifted(6.0)})
    assert (found.left_out, found.spoilt) == (("x",), True)
    assert found == replace(_found(others), left_out=("x",), rise=pytest.approx(_found(others).rise))


def test_a_lie_within_the_bound_is_left_standing() -> None:
    found = _found({"x": _shifted(6.0, count=2), **HONEST})
    assert (found.left_out, found.spoilt) == ((), False)


def test_where_losses_are_no_numbers_whoever_goes_nobody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    own = _shifted(0.0)
    monkeypatch.setattr(StatisticsTrial, "_losses", lambda self, model, statistics: torch.full(
        (6,), 0.0 if statistics is own else math.inf, dtype=torch.float64))
    silos = [Candidate(silo=name, statistics=_shifted(6.0), distance=1.0) for name in "xy"]
    found = StatisticsTrial(_environment(), IMAGES).verdict(
        _net(), own=own, merged=batch_norm.merge([own, *(each.statistics for each in silos)]), silos=2,
        candidates=silos.copy)
    assert found == Verdict(rise=math.inf, spoilt=True)


def test_a_model_that_is_broken_says_nothing_of_statistics() -> None:
    net = _net()
    with torch.no_grad():
        net.get_parameter("2.bias").fill_(math.nan)
    own, liar = _shifted(0.0), _shifted(6.0)
    assert StatisticsTrial(_environment(), IMAGES).verdict(
        net, own=own, merged=batch_norm.merge([own, liar]), silos=2,
        candidates=lambda: [Candidate(silo="x", statistics=liar, distance=1.0)]) == Verdict()


def test_findings_are_each_a_question() -> None:
    images = ImageSet(IMAGES.images_NCHW, torch.stack([1 - LABELS, LABELS], dim=1), IMAGES.names)
    own, liar = _shifted(0.0, count=6), _shifted(6.0)
    trial = StatisticsTrial(_environment(images), images)
    for statistics, out in ((liar, ("x",)), (_shifted(0.2), ())):
        candidate = Candidate(silo="x", statistics=statistics, distance=1.0)
        assert trial.verdict(_net(), own=own, merged=batch_norm.merge([own, statistics]), silos=2,
                             candidates=[candidate].copy).left_out == out


@each_of("by", [-6.0, -2.0, -0.5, 0.2, 2.0, 6.0])
def test_a_finding_that_is_not_known_says_nothing_of_statistics(by: float) -> None:
    """The verdict is that of the known finding alone: honest statistics stay in, a lie does not."""
    def found(rows: Tensor, classes: int) -> Verdict:
        head = nn.Linear(1, classes)
        with torch.no_grad():
            head.weight.fill_(4.0)
            head.bias.zero_()
        images = ImageSet(IMAGES.images_NCHW, rows.to(torch.int8), IMAGES.names)
        own, silo = _shifted(0.0, count=6), _shifted(by)
        return StatisticsTrial(_environment(images), images).verdict(
            nn.Sequential(StaticBatchNorm(1), nn.Flatten(), head), own=own, merged=batch_norm.merge([own, silo]),
            silos=2, candidates=lambda: [Candidate(silo="x", statistics=silo, distance=1.0)])

    alone = found(LABELS[:, None], 1)
    assert found(torch.stack([LABELS, torch.full_like(LABELS, -1)], dim=1), 2) == alone
    assert alone.left_out == (("x",) if abs(by) >= 2.0 else ())


def test_spoilt_is_what_rises_by_more_than_the_bound_beyond_noise() -> None:
    weights, strata = torch.full((4,), 0.25, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    assert spoils(torch.full((4,), 0.21, dtype=torch.float64), weights, strata, bound=0.2)
    assert not spoils(torch.full((4,), 0.2, dtype=torch.float64), weights, strata, bound=0.2)
    one = torch.tensor([2.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # mean 0.5, standard error 0.5
    assert not spoils(one, weights, strata, bound=0.2)
    assert not spoils(-one, weights, strata, bound=0.2)
    assert spoils(torch.tensor([0.0, 0.0, 0.0, math.inf], dtype=torch.float64), weights, strata, bound=0.2)


# As part of the phase -------------------------------------------------------------------------------------------------


def _after(silos: Mapping[str, Statistics], *, images: ImageSet | None = IMAGES,
           source: StatisticsSource = "coordinator+silos",
           robust: RobustSettings = RobustSettings()) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Statistics after the phase, and notices."""
    statistics = StaticStatistics(_environment(images, robust), source)
    own = batch_norm.to_tensors(_shifted(0.0, count=6), counts=True) if source == "coordinator+silos" else {}
    headers = tuple(UpdateHeader(silo, 100, {}) for silo in silos)
    groups = [{"batch_norm": TensorGroup(batch_norm.to_tensors(each, counts=True), Meaning.VALUES)}
              for each in silos.values()]
    with SpooledUpdates(headers, lambda index: groups[index], norms=[None] * len(headers), scratch=Path()) as updates:
        tally = statistics.appraised(statistics.begin(own, {}), updates, model=_net, round=1)
    for header, each in zip(headers, groups, strict=True):
        tally = statistics.fold(tally, header, each)
    return statistics.finish(tally, {"0.mean": torch.tensor([9.0]), "0.var": torch.tensor([9.0])}), tally.notices


@each_of("source", ["coordinator+silos", "silos"])
def test_in_the_phase_a_liar_is_named_and_the_others_count_as_if_it_had_not_answered(source: StatisticsSource) -> None:
    found, notices = _after({"x": _shifted(6.0), **HONEST}, source=source)
    without, none = _after(HONEST, source=source)
    assert none == {}
    assert list(notices) == ["x"]
    assert "left out: they spoil the answers for the coordinator's own images" in notices["x"]
    assert all(torch.equal(found[name], tensor) for name, tensor in without.items())


def test_where_all_look_unlike_the_coordinator_they_count_and_the_log_says_so(
        caplog: pytest.LogCaptureFixture) -> None:
    found, notices = _after({"x": _shifted(6.0), "y": _shifted(6.0), "z": _shifted(6.1)})
    assert float(found["0.mean"][0]) > MEAN + 5 * math.sqrt(VAR)
    assert notices == {}
    record, = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "no few silos are to blame: their images may look unlike the coordinator's" in record.getMessage()


def test_behind_masks_a_group_with_a_liar_is_left_out_and_a_single_sum_counts(caplog: pytest.LogCaptureFixture) -> None:
    """Every image gives one value."""
    summing = StaticStatistics(replace(_environment(), summed=True), "coordinator+silos")
    own = batch_norm.to_tensors(_shifted(0.0, count=6), counts=True)
    reference = summing.reference(own, {})

    def after(groups: Mapping[str, float]) -> tuple[dict[str, Tensor], Mapping[str, str]]:
        headers = tuple(UpdateHeader(name, 100, {}) for name in groups)
        sums = [{"batch_norm": TensorGroup(to_moments(_shifted(by), reference), Meaning.VALUES)}
                for by in groups.values()]
        with SpooledUpdates(headers, lambda index: sums[index], norms=[None] * len(headers), scratch=Path()) as updates:
            tally = summing.appraised(summing.begin(own, {}), updates, model=_net, round=1)
        for header, each in zip(headers, sums, strict=True):
            tally = summing.fold(tally, header, each)
        return summing.finish(tally, {}), tally.notices

    found, notices = after({"group-1": 0.1, "group-2": 6.0, "group-3": -0.1})
    assert list(notices) == ["group-2"]
    assert float(found["0.mean"][0]) == pytest.approx(MEAN, rel=1e-3)
    found, notices = after({"silos": 6.0})
    assert notices == {}
    assert "no few silos are to blame" in caplog.text


def test_of_very_many_silos_the_farthest_are_tried() -> None:
    silos = {f"h{number:02d}": _shifted(0.01 * number, count=10) for number in range(2 * MOST_TRIED)}
    found, notices = _after({**silos, "x": _shifted(6.5, count=100)})
    assert list(notices) == ["x"]
    assert float(found["0.mean"][0]) == pytest.approx(MEAN + 0.315 * math.sqrt(VAR), rel=0.01)


@each_of(("robust", "left_out"), [
    (RobustSettings(statistics_bound=0.0), False), (RobustSettings(statistics_bound=9.0), False),
    (RobustSettings(rule="norm_clipping"), True), (RobustSettings(rule="trimmed_mean", byzantine_silos=1), False)])
def test_the_bound_is_a_setting_and_rules_that_compare_silos_have_none(robust: RobustSettings,
                                                                       left_out: bool) -> None:
    assert ("spoil" in str(_after({"x": _shifted(6.0), **HONEST}, robust=robust)[1])) is left_out


def test_without_images_at_the_coordinator_nothing_is_tried() -> None:
    found, notices = _after({"x": _shifted(6.0), **HONEST}, images=None, source="silos")
    assert "spoil" not in str(notices)
    assert float(found["0.mean"][0]) > MEAN + 1.0 * math.sqrt(VAR)
