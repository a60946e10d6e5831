"""Gradients of several passes: side by side they are, bit for bit, those of one backward pass through their sum."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.sgd import SGDSettings, learn, make_optimiser
from semisilo.common.methods.numerics import Numerics, Precision
from semisilo.common.models.small_cnn import SmallCNN
from semisilo.common.numerics import numerics
from semisilo.common.numerics.passes import Descent, Gradients, Term
from semisilo.common.numerics.side_by_side import set_lanes


@pytest.fixture(autouse=True)
def _plain_numerics_after() -> Iterator[None]:
    numerics.apply(Numerics(threads=1), processors=1)
    yield
    numerics.apply(Numerics(threads=1), processors=1)


def _network(*, dropout: bool = False, channels_last: bool = False) -> nn.Module:
    torch.manual_seed(1)
    model: nn.Module = SmallCNN(num_classes=4, channels=1, size=8)
    if dropout:
        model = nn.Sequential(nn.Dropout(0.5), model)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def _terms(model: nn.Module, number: int) -> list[Term]:
    draws = torch.Generator().manual_seed(2)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(images), labels)

    return [Term(0.5 + index, partial(loss, torch.randn(6, 1, 8, 8, generator=draws),
                                      torch.randint(4, (6,), generator=draws))) for index in range(number)]


def _penalty(model: nn.Module) -> Tensor:
    return torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def _steps(model: nn.Module, *, passes: int, penalty: bool = False, steps: int = 3) -> list[Gradients]:
    optimiser = make_optimiser(model, SGDSettings(lr=0.1))
    return [learn(optimiser, _terms(model, passes), without_pass=partial(_penalty, model) if penalty else None)
            for _ in range(steps)]


def _strides(tensor: Tensor) -> list[int]:
    """Of the axes on which they mean something."""
    return [stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_side_by_side_gives_the_bits_of_one_backward_pass(passes: int, penalty: bool, channels_last: bool) -> None:
    found = []
    for count in (1, 4):
        set_lanes(count)
        model = _network(channels_last=channels_last)
        steps = _steps(model, passes=passes, penalty=penalty)
        found.append((steps, dict(model.named_parameters())))
    (alone, weights), (together, others) = found
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.total, other.total)
        assert [float(loss) for loss in one.losses if loss is not None] == [
            float(loss) for loss in other.losses if loss is not None]
        assert all(_strides(one.by_name[name]) == _strides(each) for name, each in other.by_name.items())


def test_passes_go_to_other_threads_from_the_first_step_on() -> None:
    set_lanes(2)
    weight, seen = nn.Parameter(torch.ones(())), []
    together = threading.Barrier(2)

    def loss() -> Tensor:
        seen.append(threading.get_ident())
        together.wait(timeout=60)  # in turn nobody would come
        return weight * 1.0

    descent = Descent({"w": weight})
    for _ in range(2):
        descent.gradients([Term(1.0, loss), Term(1.0, loss)])
    assert len(set(seen)) == 2


def test_a_network_that_draws_random_numbers_is_gone_through_in_turn() -> None:
    found = []
    for count in (1, 2):
        set_lanes(count)
        model = _network(dropout=True)
        torch.manual_seed(3)
        _steps(model, passes=2)
        found.append((dict(model.named_parameters()), torch.get_rng_state()))
    (alone, numbers), (together, others) = found
    assert all(torch.equal(alone[name], together[name]) for name in alone)
    assert torch.equal(numbers, others), "what the first step drew to no end was put back"


def test_a_first_step_that_is_refused_after_it_drew_random_numbers_draws_those_of_passes_in_turn() -> None:
    found = []
    for count in (1, 2):
        set_lanes(count)
        weight = nn.Parameter(torch.ones(()))

        def refused() -> Tensor:
            raise OneValuePerChannel("one")

        def drawn(weight: nn.Parameter = weight) -> Tensor:
            return weight * torch.rand(())

        torch.manual_seed(3)
        descent = Descent({"w": weight})
        with pytest.raises(OneValuePerChannel):
            descent.gradients([Term(1.0, refused), Term(1.0, drawn)])
        found.append(float(descent.gradients([Term(1.0, drawn), Term(1.0, drawn)]).total))
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [1, 2])
def test_a_pass_without_a_loss_and_a_parameter_that_no_loss_reaches_are_left_out(count: int) -> None:
    set_lanes(count)
    reached, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    descent = Descent({"reached": reached, "other": other})
    for _ in range(2):
        found = descent.gradients([Term(2.0, lambda: (3 * reached).sum()), Term(1.0, lambda: None)])
    assert found.by_name.keys() == {"reached"}
    assert found.by_name["reached"].tolist() == [6.0, 6.0]
    assert [None if loss is None else float(loss) for loss in found.losses] == [6.0, None]
    assert float(found.total) == 12.0
    assert float(descent.gradients([Term(1.0, lambda: None)]).total) == 0.0


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_that_batch_norm_refuses_changes_nothing(count: int) -> None:
    set_lanes(count)
    model = _network()
    optimiser = make_optimiser(model, SGDSettings(lr=0.1))
    learn(optimiser, _terms(model, 2))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def refused() -> Tensor:
        raise OneValuePerChannel("one")

    with pytest.raises(OneValuePerChannel):
        learn(optimiser, [*_terms(model, 1), Term(1.0, refused)])
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def _fp16(weight: nn.Parameter, factor: float) -> Gradients:
    return Descent({"w": weight}).gradients([Term(1.0, lambda: (weight * factor).sum())])


def test_fp16_gradients_are_those_of_the_loss_itself_whatever_it_was_multiplied_by() -> None:
    numerics.apply(Numerics(threads=1, precision="fp16"))
    assert _fp16(nn.Parameter(torch.ones(2)), 0.25).by_name["w"].tolist() == [0.25, 0.25]


def test_fp16_leaves_out_a_step_that_overflows_and_lowers_its_factor() -> None:
    numerics.apply(Numerics(threads=1, precision="fp16"))
    weight = nn.Parameter(torch.ones(1))
    descent = Descent({"w": weight})
    term = Term(1.0, lambda: (weight * 2.0**120).sum())
    seen = [descent.gradients([term]) for _ in range(6)]
    assert [found.overflow for found in seen] == [True, True, True, False, False, False]
    assert seen[0].by_name == {}
    assert float(seen[3].by_name["w"]) == 2.0**120


def test_fp16_says_nothing_of_overflow_where_the_loss_itself_has_diverged() -> None:
    """No factor helps; whoever looks at the weights afterwards says that training has diverged."""
    numerics.apply(Numerics(threads=1, precision="fp16"))
    weight = nn.Parameter(torch.ones(1))
    descent = Descent({"w": weight})
    seen = [descent.gradients([Term(1.0, lambda: (weight * float("inf")).sum())]) for _ in range(12)]
    assert seen[0].overflow
    assert not seen[-1].overflow
    assert not torch.isfinite(seen[-1].by_name["w"]).any()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_other_precisions_scale_nothing(precision: Precision) -> None:
    numerics.apply(Numerics(threads=1, precision=precision))
    found = _fp16(nn.Parameter(torch.ones(1)), 2.0**127)
    assert not found.overflow
    assert float(found.by_name["w"]) == 2.0**127
