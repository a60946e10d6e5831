"""How many steps a silo takes in a round, and which images enter each of them.

Shapes: N_k labelled and M_k unlabelled images at a silo, B images of one of them in a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semisilo.common.errors import NotPermitted
from semisilo.common.learning.averaging.normalised import local_steps
from semisilo.common.learning.imbalance.labels import epoch_order
from semisilo.common.learning.privacy.accountant import MAX_STEPS, NoisySteps, noise_for
from semisilo.common.methods.contract import SiloTask
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.common.methods.parts.privacy import DifferentialPrivacy

__all__ = ["MORE_STEPS", "StepPlan", "StepsRule", "epoch_of", "image_batches", "noisy_steps_of", "one_step",
           "plan_of", "plan_steps"]

StepsRule = Literal["fedmatch", "fed_shvr"]
MORE_STEPS = 'The study can set [method] steps_rule = "fed_shvr", by which a step has unlabelled_batch images.'
"""What mends a batch that is too large."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The steps of one round at one silo."""

    steps: int
    """In all epochs together."""
    steps_per_epoch: int
    """After as many steps all images are drawn in a new order; 0: every set is cycled by itself."""
    labelled_batch: int
    """Labelled images in a step; 0 where there are none."""
    unlabelled_batch: int
    """Unlabelled images in a step; 0 where there are none."""

    def last_pass(self, batch: int, count: int) -> int:
        """The first step, from 0, of the last pass over `count` images in batches of `batch`."""
        passing = self.steps_per_epoch or -(-count // max(batch, 1))
        return max(0, self.steps - passing)

    def labelled_rate(self, count: int) -> float:
        """Probability of each of `count` labelled images to enter a step that draws them independently."""
        return min(1.0, self.labelled_batch / count) if count else 0.0

    def unlabelled_rate(self, count: int) -> float:
        """The same of unlabelled images."""
        return min(1.0, self.unlabelled_batch / count) if count else 0.0


def plan_of(settings: ObjectiveSettings, *, num_labelled: int, num_unlabelled: int) -> StepPlan:
    """The steps of a silo by its task's settings."""
    return plan_steps(settings.steps_rule, num_labelled=num_labelled, num_unlabelled=num_unlabelled,
                      epochs=settings.local_epochs, labelled_batch=settings.labelled_batch,
                      unlabelled_batch=settings.unlabelled_batch)


def one_step(settings: ObjectiveSettings, *, num_labelled: int, num_unlabelled: int) -> StepPlan:
    """The one step of a round in which silos share the noise of their images, whatever rule there is for others."""
    return StepPlan(1, 1, settings.labelled_batch if num_labelled else 0,
                    settings.unlabelled_batch if num_unlabelled else 0)


def noisy_steps_of(settings: ObjectiveSettings, dp: DifferentialPrivacy, *, rounds: int, num_labelled: int,
                   num_unlabelled: int) -> NoisySteps:
    """What one round spends of the privacy of a silo's images: the counts are of those that its objective uses.

    A silo without such images spends nothing. With `target_epsilon` the noise is such that all `rounds` together spend
    no more. Where whole silos are hidden, a round is one step of all images, and one image, replaced, moves what is
    clipped to C by at most 2 C.
    Raises: NotPermitted for more steps than can be counted, and where the accountant is not installed;
        BadConfiguration for a target that cannot be reached.
    """
    if not num_labelled + num_unlabelled:
        return NoisySteps(noise_multiplier=dp.noise_multiplier or 1.0, sampling_rate=0.0, steps=0)
    if dp.unit == "silo":
        return NoisySteps(noise_multiplier=dp.noise_multiplier / 2, sampling_rate=1.0, steps=1)
    plan_by = one_step if dp.honest_silos else plan_of
    plan = plan_by(settings, num_labelled=num_labelled, num_unlabelled=num_unlabelled)
    if plan.steps * rounds > MAX_STEPS:
        raise NotPermitted(f"{plan.steps} noisy steps in each of {rounds} rounds are more than can be counted.",
                           remedy="Fewer local_epochs or rounds, or larger batches, are up to the study.")
    rate = max(plan.labelled_rate(num_labelled), plan.unlabelled_rate(num_unlabelled))
    noise = dp.noise_multiplier or noise_for(dp.target_epsilon, dp.delta, sampling_rate=rate,
                                             steps=plan.steps * rounds)
    return NoisySteps(noise_multiplier=noise, sampling_rate=rate, steps=plan.steps)


def epoch_of(task: SiloTask, plan: StepPlan, number: int) -> int:
    """The local epoch of a step, from 0: counted from 1, over all rounds of the study."""
    epochs: int = task.settings.local_epochs
    return (task.round - 1) * epochs + 1 + number * epochs // plan.steps


def plan_steps(rule: StepsRule, *, num_labelled: int, num_unlabelled: int, epochs: int, labelled_batch: int,
               unlabelled_batch: int) -> StepPlan:
    """The steps of a silo with N_k = num_labelled and M_k = num_unlabelled images, not both 0.

        fedmatch: n = max(1, round(N_k / B_l)) per epoch, B_u = ceil(M_k / n); N_k = 0: n = max(1, round(M_k / B_u))
        fed_shvr: tau_k = max(1, floor(E M_k / B_u), floor(E N_k / B_l))

    `round` is Python's, half to even. Images beyond n batches are not used in that epoch. By "fedmatch" a silo with few
    labels has few steps, with all its unlabelled images in them: see `semisilo.silo.objectives.batch_room`.
    Source: FedMatch's official code; Fed-SHVR (Wang et al.) section V, the floor and the maximum with 1 as
        fedshvr.md reconstructs them.
    """
    if num_labelled + num_unlabelled < 1:
        raise ValueError("a silo without images takes no steps.")
    if rule == "fed_shvr":
        steps = local_steps(num_labelled, num_unlabelled, epochs=epochs, labelled_batch=labelled_batch,
                            unlabelled_batch=unlabelled_batch)
        return StepPlan(steps, 0, min(labelled_batch, num_labelled), min(unlabelled_batch, num_unlabelled))
    if num_labelled:
        per_epoch = max(1, round(num_labelled / labelled_batch))
        return StepPlan(epochs * per_epoch, per_epoch, labelled_batch, -(-num_unlabelled // per_epoch))
    per_epoch = max(1, round(num_unlabelled / unlabelled_batch))
    return StepPlan(epochs * per_epoch, per_epoch, 0, unlabelled_batch)


def image_batches(plan: StepPlan, count: int, batch: int, generator: torch.Generator, *,
                  balance_N: Tensor | None = None) -> Iterator[Tensor]:
    """Which of `count` images enter each of `plan.steps` steps: int64 (B,), on the CPU.

    By epochs every image enters at most once in an epoch, in an order drawn anew, and the last steps of an epoch may
    have fewer images or none. Cycled, orders drawn anew follow each other without a gap, so that every step has exactly
    `batch` images.
    Args:
        batch: `plan.labelled_batch` or `plan.unlabelled_batch`; with 0 all steps are empty.
        generator: advanced; on the CPU.
        balance_N: labels by which every order has the classes equally often (`epoch_order`).
    """
    rest = torch.empty(0, dtype=torch.int64)
    for number in range(plan.steps):
        if not (count and batch):
            yield rest
        elif plan.steps_per_epoch:
            step = number % plan.steps_per_epoch
            if step == 0:
                rest = epoch_order(count, generator, balance_N=balance_N)
            yield rest[step * batch:(step + 1) * batch]
        else:
            while len(rest) < batch:
                rest = torch.cat([rest, epoch_order(count, generator, balance_N=balance_N)])
            yield rest[:batch]
            rest = rest[batch:]
