"""The gradient of a sum of losses, each with a pass through the network of its own; side by side where that is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from semisilo.common.numerics import numerics, process_group
from semisilo.common.numerics.side_by_side import lanes, one_after_the_other, shares, side_by_side

__all__ = ["Descent", "Gradients", "Term"]

_FIRST_SCALE, _LEAST_SCALE, _MOST_SCALE = 2.0**10, 1.0, 2.0**16
_STEPS_BEFORE_GROWTH = 100


@dataclass(frozen=True, slots=True)
class Term:
    """A loss with its weight in the sum."""

    weight: float
    loss: Callable[[], Tensor | None]
    """Goes through the network and returns a scalar (); None where there is nothing to learn from. May raise
    `semisilo.common.learning.batch_norm.OneValuePerChannel`."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a step has found."""

    losses: tuple[Tensor | None, ...]
    """Of each term, without its weight, detached; on the network's device."""
    total: Tensor
    """Their weighted sum, without what has no pass of its own; 0 where there is none."""
    by_name: Mapping[str, Tensor]
    """Of every parameter that the sum reaches, in the parameter's memory format; empty where the gradient of a scaled
    loss was not finite."""
    overflow: bool = False
    """Whether it was not: the step is to be left out."""


@dataclass(slots=True)
class Descent:
    """Finds the gradients of the steps of one task.

    The passes of the terms go side by side, with the bits of one after the other: gradients are added in the order in
    which autograd does. That is not possible for a network that draws random numbers (dropout), which the first step
    shows: if torch's generator has moved, it is put back and the step done again in turn, as are all that follow. (To
    go in turn first would cost every task a step that takes twice as long: a tenth of ten.)

    With the precision "fp16" losses are multiplied before they go backward, so that small gradients are not 0, and
    gradients divided after; a factor under which they are not finite is halved and that step left out, as torch's
    GradScaler does it (Micikevicius et al., ICLR 2018, section 3.2).
    """

    parameters: Mapping[str, nn.Parameter]
    apart: bool = False
    """Whether they are no network's own, but put in the place of its parameters: several processes that train together
    (`semisilo.common.numerics.process_group`) then make the mean of the gradients here."""
    _draws: bool | None = None
    """Whether the network draws random numbers; None before the first step with several passes."""
    factor: float = _FIRST_SCALE
    """Of losses in fp16."""
    good_steps: int = 0
    """Since the factor has changed."""

    def gradients(self, terms: Sequence[Term], *, without_pass: Callable[[], Tensor] | None = None) -> Gradients:
        """The gradient of sum weight * loss, plus a term that looks at the weights alone.

        Raises: what a term raises; nothing has changed then.
        """
        scale = self.factor if numerics.precision() == "fp16" else 1.0
        if lanes() == 1 or len(terms) == 1 or self._draws:
            return self._checked(self._in_turn(terms, without_pass, scale), scale)
        if self._draws is None:
            return self._checked(self._watched(terms, without_pass, scale), scale)
        return self._checked(self._side_by_side(terms, without_pass, scale), scale)

    def _watched(self, terms: Sequence[Term], without_pass: Callable[[], Tensor] | None, scale: float) -> Gradients:
        """The first step with several passes."""
        before, failure, found = torch.get_rng_state(), None, None
        try:
            found = self._side_by_side(terms, without_pass, scale)
        except Exception as error:
            failure = error
        if not torch.equal(before, torch.get_rng_state()):
            self._draws = True
            torch.set_rng_state(before)
            return self._in_turn(terms, without_pass, scale)
        if found is None:
            assert failure is not None
            raise failure  # it need not have come to where numbers are drawn: the next step is watched as well
        self._draws = False
        return found

    def _in_turn(self, terms: Sequence[Term], without_pass: Callable[[], Tensor] | None, scale: float) -> Gradients:
        losses = one_after_the_other(term.loss for term in terms)
        weighted = _weighted(terms, losses)
        total = _sum(weighted, self.parameters)
        loss = total if without_pass is None else total + without_pass()
        for parameter in self.parameters.values():
            parameter.grad = None
        if loss.requires_grad:
            (loss if scale == 1.0 else loss * scale).backward()  # type: ignore[no-untyped-call]
        by_name = {name: parameter.grad for name, parameter in self.parameters.items() if parameter.grad is not None}
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.apart:
            process_group.averaged(by_name)
        return Gradients(tuple(None if each is None else each.detach() for each in losses), total.detach(), by_name)

    def _side_by_side(self, terms: Sequence[Term], without_pass: Callable[[], Tensor] | None,
                      scale: float) -> Gradients:
        weights: list[Tensor] = list(self.parameters.values())

        def one(term: Term) -> tuple[Tensor | None, Sequence[Tensor | None]]:
            loss = term.loss()
            if loss is None:
                return None, ()
            return loss.detach(), _gradient(_weighted([term], [loss])[0], weights, scale)

        found = side_by_side([lambda term=term: one(term) for term in terms])  # type: ignore[misc]
        total = _sum(_weighted(terms, [loss for loss, _ in found]), self.parameters)
        # What was computed last comes first, as in a backward pass through all terms together.
        parts = [gradients for _, gradients in reversed(found) if gradients]
        if without_pass is not None:
            parts.insert(0, _gradient(without_pass(), weights, scale))

        def added(share: slice) -> list[Tensor | None]:
            return [_added(weight, of_parts) for weight, *of_parts in zip(
                weights[share], *(part[share] for part in parts), strict=True)]

        gradients = [each for of_share in side_by_side([partial(added, share) for share in shares(weights)])
                     for each in of_share]
        by_name = {name: gradient for name, gradient in zip(self.parameters, gradients, strict=True)
                   if gradient is not None}
        return Gradients(tuple(loss for loss, _ in found), total, by_name)

    def _checked(self, found: Gradients, scale: float) -> Gradients:
        """Without the factor, which goes with what it has led to."""
        if numerics.precision() != "fp16" or not found.by_name:
            return found
        gradients = list(found.by_name.values())
        torch._foreach_mul_(gradients, 1.0 / scale)
        if bool(torch.isfinite(torch.stack(list(torch._foreach_norm(gradients)))).all()):
            self.good_steps += 1
            if self.good_steps == _STEPS_BEFORE_GROWTH:
                self.good_steps, self.factor = 0, min(_MOST_SCALE, self.factor * 2)
            return found
        if self.factor <= _LEAST_SCALE:
            return found  # it is not the factor: training diverges, and whoever looks at the weights says so
        self.good_steps, self.factor = 0, max(_LEAST_SCALE, self.factor / 2)
        return Gradients(found.losses, found.total, {}, overflow=True)


def _weighted(terms: Sequence[Term], losses: Sequence[Tensor | None]) -> list[Tensor]:
    return [loss if term.weight == 1 else term.weight * loss for term, loss in zip(terms, losses, strict=True)
            if loss is not None]


def _sum(weighted: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> Tensor:
    if not weighted:
        return torch.zeros((), device=next(iter(parameters.values())).device)
    total = weighted[0]
    for each in weighted[1:]:
        total = total + each
    return total


def _gradient(loss: Tensor, weights: list[Tensor], scale: float) -> Sequence[Tensor | None]:
    if not loss.requires_grad:
        return (None,) * len(weights)
    return torch.autograd.grad(loss if scale == 1.0 else loss * scale, weights, allow_unused=True)


def _added(parameter: Tensor, of_parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of gradients in their order, with the parameter's strides, as autograd leaves it in `grad`: norms add in
    memory order. None where there are none."""
    reached = [each for each in of_parts if each is not None]
    if not reached:
        return None
    gradient = reached[0]
    for number, other in enumerate(reached[1:], start=2):
        # The last sum goes at once to where it is to lie.
        gradient = torch.add(gradient, other, out=torch.empty_like(parameter)) if number == len(reached) \
            else gradient + other
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
