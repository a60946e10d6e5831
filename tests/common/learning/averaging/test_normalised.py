"""Normalised averaging and gradient corrections against the specification's oracles, and one form against the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.normalised import (
    control_increment,
    correction,
    local_steps,
    mean_gradient,
    mean_steps,
    next_control,
    normalised_factors,
)
from tests.each_of import each_of


def _w(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def test_oracle_v5_of_the_local_steps_and_their_mean() -> None:
    labelled, unlabelled = [60, 60, 100], [5940, 4320, 8000]
    steps = [local_steps(N, M, epochs=2, labelled_batch=32, unlabelled_batch=32)
             for N, M in zip(labelled, unlabelled, strict=True)]
    sizes = [N + M for N, M in zip(labelled, unlabelled, strict=True)]
    assert steps == [371, 270, 500]
    assert [size / sum(sizes) for size in sizes] == pytest.approx([0.324675, 0.237013, 0.438312], abs=1e-5)
    assert mean_steps(sizes, steps) == pytest.approx(403.603896, abs=1e-5)


@each_of(("num_labelled", "num_unlabelled", "expected"), [
    (0, 64, 4), (96, 0, 6), (96, 64, 6), (1, 1, 1), (0, 0, 1), (16, 17, 1)])
def test_local_steps_follow_the_larger_set_and_are_at_least_one(num_labelled: int, num_unlabelled: int,
                                                                expected: int) -> None:
    assert local_steps(num_labelled, num_unlabelled, epochs=2, labelled_batch=32, unlabelled_batch=32) == expected


def test_oracle_v8_of_normalised_averaging() -> None:
    w, ends, steps, shares, lr = _w(1.0, 0.0), [_w(0.8, 0.1), _w(0.4, -0.3)], [2, 6], [0.25, 0.75], 0.1
    differences = [tensors.subtract(end, w) for end in ends]
    followed = [mean_gradient(difference, lr=lr, steps=count)["w"].tolist()
                for difference, count in zip(differences, steps, strict=True)]
    assert followed == [pytest.approx([1.0, -0.5]), pytest.approx([1.0, 0.5])]
    assert mean_steps(shares, steps) == pytest.approx(5.0)
    normalised = plain = w
    for difference, share, factor in zip(differences, shares, normalised_factors(shares, steps), strict=True):
        normalised = tensors.add(normalised, difference, factor=factor)
        plain = tensors.add(plain, difference, factor=share)
    assert normalised["w"].tolist() == pytest.approx([0.5, -0.125], abs=1e-5)
    assert plain["w"].tolist() == pytest.approx([0.5, -0.2], abs=1e-5)


def test_factors_are_the_definition_and_with_equal_steps_exactly_the_weights() -> None:
    sizes, steps = [60, 40, 300], [7, 1, 12]
    tau_bar = mean_steps(sizes, steps)
    assert normalised_factors(sizes, steps) == pytest.approx(
        [size / 400 * tau_bar / count for size, count in zip(sizes, steps, strict=True)])
    sizes = [59, 61, 333]
    assert normalised_factors(sizes, [371] * 3) == [size / sum(sizes) for size in sizes]
    assert normalised_factors([7], [3]) == [1.0]


def _eq_15(d: dict[str, Tensor], w: dict[str, Tensor], w_next: dict[str, Tensor], end: dict[str, Tensor], *, lr: float,
           steps: int, tau_bar: float) -> dict[str, Tensor]:
    """Fed-SHVR's own rule: d_k + (w_t - w_{t+1}) / (lr tau_bar) - (w_t - w_k) / (lr tau_k)."""
    return {"w": d["w"] + (w["w"] - w_next["w"]) / (lr * tau_bar) - (w["w"] - end["w"]) / (lr * steps)}


def _vrl_sgd(d: dict[str, Tensor], w_next: dict[str, Tensor], end: dict[str, Tensor], *, lr: float,
             steps: int) -> dict[str, Tensor]:
    """VRL-SGD's, Algorithm 1, with d_k = -delta_k of that paper: d_k - (w_{t+1} - w_k) / (lr tau_k)."""
    return {"w": d["w"] - (w_next["w"] - end["w"]) / (lr * steps)}


def test_oracle_v9_of_the_papers_correction() -> None:
    """The first round, in which nobody had a correction: c_k is what silo k followed."""
    w, ends, steps, shares = _w(1.0, 0.0), [_w(0.8, 0.1), _w(0.4, -0.3)], [2, 6], [0.25, 0.75]
    followed = [mean_gradient(tensors.subtract(end, w), lr=0.1, steps=count)
                for end, count in zip(ends, steps, strict=True)]
    c_sum = _w(0.0, 0.0)
    for share, each in zip(shares, followed, strict=True):
        c_sum = tensors.add(c_sum, control_increment(each, None), factor=share)
    found = [correction(c_sum, next_control(each, None, None))["w"] for each in followed]
    assert [d.tolist() for d in found] == [pytest.approx([0.0, 0.75], abs=1e-5), pytest.approx([0.0, -0.25], abs=1e-5)]
    assert (shares[0] * found[0] + shares[1] * found[1]).tolist() == pytest.approx([0.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("svr", [False, True])
def test_control_variates_give_the_corrections_of_eq_15_and_of_vrl_sgd_when_everyone_takes_part(svr: bool) -> None:
    """Five rounds with made-up raw gradients: d from the recursion of the paper, and from C and c_k. Where plain
    averaging meets VRL-SGD's rule, s_k = tau_k; where normalised averaging meets Eq. 15, s_k = 1."""
    generator = torch.Generator().manual_seed(3)
    sizes, steps, lr = [50, 30, 20], [1, 3, 2], 0.1
    shares = [size / 100 for size in sizes]
    s = steps if svr else [1, 1, 1]
    tau_bar = mean_steps(sizes, steps)
    factors = shares if svr else normalised_factors(sizes, steps)
    w, d = _w(1.0, -2.0), [_w(0.0, 0.0)] * 3
    c: list[dict[str, Tensor] | None] = [None] * 3
    c_sum, mean = _w(0.0, 0.0), None
    for _ in range(5):
        raw = [{"w": torch.randn(2, generator=generator, dtype=torch.float64)} for _ in range(3)]
        ends = [tensors.add(w, tensors.add(gradient, each), factor=-lr * count)
                for gradient, each, count in zip(raw, d, steps, strict=True)]
        w_next = w
        for k, end in enumerate(ends):
            difference = tensors.subtract(end, w)
            w_next = tensors.add(w_next, difference, factor=factors[k])
            followed = mean_gradient(difference, lr=lr, steps=steps[k])
            c_sum = tensors.add(c_sum, control_increment(followed, mean, share=s[k]), factor=sizes[k])
            c[k] = next_control(followed, mean, c[k], share=s[k])
            assert torch.allclose(c[k]["w"], raw[k]["w"], atol=1e-9), "c_k is the mean raw gradient"  # type: ignore[index]
        d = [_vrl_sgd(each, w_next, end, lr=lr, steps=count) if svr else
             _eq_15(each, w, w_next, end, lr=lr, steps=count, tau_bar=tau_bar)
             for each, end, count in zip(d, ends, steps, strict=True)]
        w, mean = w_next, tensors.scale(c_sum, 1 / 100)
        for k, control in enumerate(c):
            assert control is not None
            assert torch.allclose(correction(mean, control, share=s[k])["w"], d[k]["w"], atol=1e-9)
        zero = sum(shares[k] * s[k] * d[k]["w"] for k in range(3))
        assert torch.allclose(torch.as_tensor(zero), torch.zeros(2, dtype=torch.float64), atol=1e-9)


def test_the_sum_and_the_control_variates_stay_in_step_over_many_rounds_of_float32() -> None:
    """1000 rounds of random gradients at two silos whose C and d are float32: the sum stays sum n_k c_k to the rounding
    of float64. The control, which takes d_k off Delta_k in float32 instead, drifts."""
    generator = torch.Generator().manual_seed(5)
    sizes = [300, 700]
    worst = {"in step": 0.0, "taken off": 0.0}
    for rule in worst:
        c = [_w(0.0, 0.0)] * 2
        c_sum: dict[str, Tensor] = _w(0.0, 0.0)
        for round in range(1000):
            mean = {"w": (c_sum["w"] / 1000).float()}
            known = mean if round else None
            for k in range(2):
                d = correction(mean, c[k])["w"]
                raw = 100 * torch.randn(2, generator=generator)
                followed = {"w": (raw + d).double()}
                c_sum = tensors.add(c_sum, control_increment(followed, known), factor=sizes[k])
                c[k] = (next_control(followed, known, c[k] if round else None) if rule == "in step"
                        else {"w": (followed["w"] - d).float().double()})
        drift = c_sum["w"] - sum(sizes[k] * c[k]["w"] for k in range(2))
        worst[rule] = float(drift.abs().max()) / 1000
    assert worst["in step"] < 1e-9
    assert worst["taken off"] > 1e-5


def test_a_silo_alone_has_a_correction_of_exactly_zero() -> None:
    generator = torch.Generator().manual_seed(1)
    c = {"w": torch.randn(1000, generator=generator, dtype=torch.float64)}
    mean = {"w": (tensors.scale(c, 37.0)["w"] / 37).float()}
    assert not correction(mean, c)["w"].any()


def test_a_silo_that_had_no_correction_brings_what_it_followed() -> None:
    followed = _w(2.0, -1.0)
    assert next_control(followed, None, None)["w"].tolist() == [2.0, -1.0]
    assert control_increment(followed, None, share=3)["w"].tolist() == [6.0, -3.0]
