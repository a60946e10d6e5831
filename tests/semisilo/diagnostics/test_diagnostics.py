"""Stationarity gap and loss surface: against closed forms, finite differences and the whole sum written out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.config import to_dict
from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.soft_labels import soft_labels
from semisilo.common.methods.contract import SiloData
from semisilo.common.models.factory import initial_model
from semisilo.diagnostics import (
    Problem,
    labels_of,
    loss_surface,
    objective_of,
    random_direction,
    stationarity_gap,
    statistics_of,
)

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Dropout(), nn.Flatten(),
                         nn.Linear(16, 3))


def _images(count: int, seed: int, *, labelled: bool = False) -> ImageSet:
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3 if labelled else None, tuple(map(str, range(count))))


SILOS = {"a": SiloData(labelled=_images(7, 1, labelled=True), unlabelled=_images(23, 2)),
         "b": SiloData(unlabelled=_images(10, 3)), "c": SiloData(labelled=_images(5, 4, labelled=True)),
         "d": SiloData()}


def _problem(build: Any = _plain, **changes: Any) -> Problem:
    return Problem(build_model=build, silos=SILOS, image=FORM, **{"batch_size": 8, **changes})


def _inputs(images: ImageSet | None) -> Tensor:
    assert images is not None
    return augment.to_input(images.images_NCHW, FORM)


def _whole(problem: Problem, model: nn.Module, v: dict[str, Tensor]) -> Tensor:
    """F written out: 45 images, p = 30/45, 10/45, 5/45, every mean over a whole set at once."""
    def penalty(p: Tensor) -> Tensor:
        return math.log(3) + (p * p.log()).sum(1).mean()

    total = torch.zeros(())
    for silo, share in (("a", 30 / 45), ("b", 10 / 45), ("c", 5 / 45)):
        labelled, unlabelled = SILOS[silo].labelled, SILOS[silo].unlabelled
        if labelled is not None:
            assert labelled.labels_N is not None
            total = total + share * functional.cross_entropy(model(_inputs(labelled)), labelled.labels_N)
        if unlabelled is not None:
            p = torch.softmax(model(_inputs(unlabelled)), dim=1)
            total = total + share * (-problem.alpha0 * (v[silo] * p.log()).sum(1).mean()
                                     + problem.alpha1 * penalty(v[silo]) + problem.alpha2 * penalty(p))
    return total


def test_the_objective_is_the_weighted_sum_over_all_images_whatever_the_batches() -> None:
    w = initial_model(_plain, 1)
    problem = _problem()
    v = labels_of(problem, w)
    model = _plain()
    tensors.load_into(model, w)
    expected = float(_whole(problem, model, v).detach())
    for batch_size in (1, 8, 250):
        assert objective_of(replace(problem, batch_size=batch_size), w, v).total == pytest.approx(expected, rel=1e-5)
    assert problem.shares() == {"a": 30 / 45, "b": 10 / 45, "c": 5 / 45}


def test_labels_are_those_that_the_silos_make() -> None:
    w = initial_model(_plain, 1)
    model = _plain()
    tensors.load_into(model, w)
    found = labels_of(_problem(), w)
    assert set(found) == {"a", "b"}
    expected = soft_labels(torch.log_softmax(model(_inputs(SILOS["a"].unlabelled)), dim=1), alpha0=1.0, alpha1=0.75)
    assert torch.allclose(found["a"], expected, atol=1e-6)


@pytest.mark.parametrize("build", [_plain, _normed])
def test_the_gap_is_the_squared_gradient_and_how_far_the_labels_moved(build: Any) -> None:
    """The gradient of F written out, with the batch-norm statistics of all images held fixed and dropout off; the
    labels of silo a moved by 0.1 in two elements, those of b by 0.2 in one, weights 30/45 and 10/45."""
    w = initial_model(build, 1)
    problem = _problem(build)
    statistics = statistics_of(problem, w)
    v = labels_of(problem, w)
    before = {silo: each.clone() for silo, each in v.items()}
    before["a"][3, :2] += 0.1
    before["b"][0, 0] += 0.2
    model = build()
    tensors.load_into(model, w)
    batch_norm.load(model, statistics)
    _whole(problem, model.eval(), v).backward()  # type: ignore[no-untyped-call]
    expected = sum(float(each.grad.double().square().sum()) for each in model.parameters())
    found = stationarity_gap(problem, w, v, before)
    assert found.gradient == pytest.approx(expected, rel=1e-4)
    assert found.labels == pytest.approx(30 / 45 * 0.02 + 10 / 45 * 0.04, rel=1e-5)
    assert found.gap == found.gradient + found.labels
    assert found == stationarity_gap(problem, w, v, before, statistics)
    assert found.objective == objective_of(problem, w, v)


def test_the_gap_is_nothing_where_nothing_moves() -> None:
    """One silo with unlabelled images alone: at w = 0 the model is uniform, so are the labels, both regularisers are
    least and the cross-entropy is log 3."""
    w = tensors.zeros_like(initial_model(_plain, 1))
    problem = replace(_problem(alpha2=0.3), silos={"b": SILOS["b"]})
    v = labels_of(problem, w)
    found = stationarity_gap(problem, w, v, v)
    assert found.gap == pytest.approx(0.0, abs=1e-10)
    assert found.objective.total == pytest.approx(math.log(3), rel=1e-6)


def test_statistics_of_all_silos_are_those_of_their_images_together() -> None:
    w = initial_model(_normed, 1)
    model = _normed()
    tensors.load_into(model, w)
    everything = torch.cat([_inputs(each) for data in SILOS.values() for each in (data.labelled, data.unlabelled)
                            if each is not None])
    hidden = model[0](everything).detach()
    found = statistics_of(_problem(_normed, batch_size=250), w)
    assert torch.allclose(found["1.mean"], hidden.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(found["1.var"], hidden.var((0, 2, 3)), atol=1e-4)


def test_the_surface_is_the_objective_on_a_plane_through_the_model() -> None:
    """Its middle is F(w, v); its slope along a direction is the gradient's, by central differences."""
    w = initial_model(_plain, 1)
    problem = _problem()
    v = labels_of(problem, w)
    model = _plain()
    tensors.load_into(model, w)
    _whole(problem, model, v).backward()  # type: ignore[no-untyped-call]
    step = 1e-2
    found = loss_surface(problem, w, v, b1=[-step, 0.0, step], b2=[-step, 0.0, step])
    assert found.total[1][1] == pytest.approx(objective_of(problem, w, v).total, rel=1e-6)
    for number, slope in ((1, found.total[2][1] - found.total[0][1]), (2, found.total[1][2] - found.total[1][0])):
        direction = random_direction(w, seed=problem.seed, number=number)
        expected = sum(float((parameter.grad * direction[name]).sum())
                       for name, parameter in model.named_parameters() if parameter.grad is not None)
        assert slope / (2 * step) == pytest.approx(expected, rel=1e-2, abs=1e-3), number


def test_the_penalty_can_be_taken_off_the_surface() -> None:
    w = initial_model(_plain, 1)
    problem = _problem(alpha2=0.5)
    v = labels_of(problem, w)
    grid = {"b1": [0.0, 1.0], "b2": [0.5]}
    with_it, without = (loss_surface(each, w, v, **grid) for each in (problem, replace(problem, alpha2=0.0)))
    for row in range(2):
        assert with_it.total[row][0] - 0.5 * with_it.r2[row][0] == pytest.approx(without.total[row][0], rel=1e-5)
        assert with_it.r2[row][0] > 0


def test_statistics_are_measured_anew_at_every_point_of_the_surface() -> None:
    """Scaling the convolution before a batch-norm changes nothing if its statistics follow (but for its eps)."""
    w = initial_model(_normed, 1)
    problem = _problem(_normed)
    v = labels_of(problem, w)
    scaled = {name: tensor if name.startswith("0.") else torch.zeros_like(tensor) for name, tensor in w.items()}
    found = loss_surface(problem, w, v, b1=[0.0, 1.0, 3.0], b2=[0.0], directions=(scaled, tensors.zeros_like(w)))
    assert found.total[1][0] == pytest.approx(found.total[0][0], rel=1e-3)
    assert found.total[2][0] == pytest.approx(found.total[0][0], rel=1e-3)
    fixed = objective_of(problem, tensors.add(w, scaled, factor=3.0), v, statistics_of(problem, w))
    assert abs(fixed.total - found.total[0][0]) > 0.01


def test_directions_have_the_length_of_each_tensor_and_follow_from_the_seed() -> None:
    w = {**initial_model(_plain, 1), "zero": torch.zeros(3), "empty": torch.zeros(0)}
    one, same, other, elsewhere = (random_direction(w, seed=seed, number=number)
                                   for seed, number in ((1, 1), (1, 1), (1, 2), (2, 1)))
    for name, tensor in w.items():
        assert float(one[name].norm()) == pytest.approx(float(tensor.norm()), rel=1e-5)
    assert tensors.digest(one) == tensors.digest(same)
    assert len({tensors.digest(each) for each in (one, other, elsewhere)}) == 3


def test_results_are_json_and_progress_ends_at_one() -> None:
    w = initial_model(_plain, 1)
    problem = _problem()
    v = labels_of(problem, w)
    told: list[float] = []
    surface = loss_surface(problem, w, v, b1=[0.0, 0.1], b2=[0.0], progress=told.append)
    assert told == [0.5, 1.0]
    for result in (surface, stationarity_gap(problem, w, v, v)):
        assert json.loads(json.dumps(to_dict(result))) == to_dict(result)


def test_labels_that_do_not_fit_the_images_are_refused() -> None:
    w = initial_model(_plain, 1)
    problem = _problem()
    v = labels_of(problem, w)
    with pytest.raises(BadData, match="'a' has 23 unlabelled images"):
        objective_of(problem, w, {**v, "a": v["a"][:5]})
    with pytest.raises(BadData, match="'b' has 10 unlabelled images"):
        objective_of(problem, w, {"a": v["a"]})
    with pytest.raises(BadData, match="same images in both rounds"):
        stationarity_gap(problem, w, v, {"a": v["a"]})
    with pytest.raises(BadData, match="no silo has any"):
        objective_of(replace(problem, silos={"d": SiloData()}), w, {})


def test_the_truth_of_unlabelled_images_is_never_looked_at() -> None:
    w = initial_model(_plain, 1)
    unlabelled = SILOS["a"].unlabelled
    assert unlabelled is not None
    known = {**SILOS, "a": replace(SILOS["a"], unlabelled=replace(unlabelled, labels_N=torch.zeros(23).long()))}
    v = labels_of(_problem(), w)
    assert objective_of(replace(_problem(), silos=known), w, v) == objective_of(_problem(), w, v)
