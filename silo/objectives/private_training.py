"""The steps of one round at a silo with differential privacy of single images (DP-SGD), with any local objective.

What is otherwise than without: every image enters every step by itself with the same probability (Poisson sampling);
it goes through the network by itself; its gradient is clipped; noise is added to the sum; and that is divided by the
number of images that are expected. Momentum, weight decay and a proximal term work on what was noised, and cost
nothing.

Everything random follows from the silo's secret, views and dropout too: with numbers that somebody else knows, an
image that is left out would shift the draws of all others, which no noise covers.

Nothing that was measured on the images leaves: of metrics only the number of steps, which follows from counts, and
what was spent.

Where silos share noise behind masks a round is one step, to which nothing is added here: what leaves is its clipped sum
itself, with this silo's share of the noise (`semisilo.silo.compute.masked_update`).

Shapes: B images of a step, which may be 0.

Tests: tests/silo/objectives/test_private_training.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.privacy.example_gradients import ClippedSum, each_by_itself
from semisilo.common.learning.privacy.gaussian import SecretStream, grid_of
from semisilo.common.learning.sgd import SGD, descend
from semisilo.common.methods.contract import SiloTask
from semisilo.common.methods.parts.objectives import ObjectiveSettings
from semisilo.common.methods.parts.privacy import PrivateTask
from semisilo.silo.objectives.step import Objective, Step
from semisilo.silo.objectives.steps import StepPlan, epoch_of, one_step, plan_of
from semisilo.silo.objectives.views import View, view_of

__all__ = ["PrivateTraining", "train_privately"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateTraining:
    """What it leaves behind, besides the model."""

    steps: int
    metrics: Mapping[str, float]
    exact: Mapping[str, Tensor] | None = None
    """See `semisilo.common.methods.contract.Update.exact`."""


def train_privately(task: SiloTask, private: PrivateTask, model: nn.Module, optimiser: SGD, objective: Objective,
                    labelled: ImageSet | None, unlabelled: ImageSet | None, *,
                    penalty: Callable[[nn.Module], Tensor] | None = None) -> PrivateTraining:
    """Trains `model` in place for one round; arguments as of `semisilo.silo.objectives.train_locally`."""
    settings: ObjectiveSettings = task.settings
    counts = tuple(0 if each is None else len(each) for each in (labelled, unlabelled))
    plan = (one_step if private.shared else plan_of)(settings, num_labelled=counts[0], num_unlabelled=counts[1])
    exact: dict[str, Tensor] | None = None
    stream = SecretStream(private.key)
    sets = _Sets(task, plan, stream, objective, labelled, unlabelled)
    text = f"training on {sum(counts)} images, with noise"
    model.train()
    with _secret_randomness(stream, task.device):
        for number in range(plan.steps):
            task.report(number / plan.steps, text)
            found = ClippedSum(model, clip_norm=private.clip_norm)
            epoch = epoch_of(task, plan, number)
            sets.add_labelled(found, number, epoch)
            sets.add_unlabelled(found, model, number, epoch)
            if private.shared:
                # The model itself stays as it was received: as float32 weights the step would be rounded by as much as
                # one image may change, and might diverge. A term that looks at the weights alone has no gradient yet.
                scale = -optimiser.lr * (grid_of(private.clip_norm) / settings.expected_images)
                exact = {name: each.cpu() * scale for name, each in found.total.items()}
                continue
            by_name = found.with_noise(stream, step=number, noise_multiplier=private.noise_multiplier,
                                       expected=sets.expected)
            if penalty is not None:
                _add_gradient(by_name, penalty(model), optimiser)
            descend(optimiser, by_name)
            objective.after_step(model)
    task.report(1.0, text)
    return PrivateTraining(steps=plan.steps, metrics={"steps": float(plan.steps), "epsilon": private.epsilon},
                           exact=exact)


class _Sets:
    """The silo's images, and who of them enters a step."""

    def __init__(self, task: SiloTask, plan: StepPlan, stream: SecretStream, objective: Objective,
                 labelled: ImageSet | None, unlabelled: ImageSet | None) -> None:
        self._task, self._stream, self._objective = task, stream, objective
        self._labelled, self._unlabelled = labelled, unlabelled
        self._rates = (plan.labelled_rate(0 if labelled is None else len(labelled)),
                       plan.unlabelled_rate(0 if unlabelled is None else len(unlabelled)))
        self.expected = sum(rate * len(images) for rate, images in zip(self._rates, (labelled, unlabelled), strict=True)
                            if images is not None)
        """Images that a step has in the mean, both kinds together."""
        self._draws = torch.Generator()
        self._draws.manual_seed(stream.seed("views"))

    def add_labelled(self, found: ClippedSum, number: int, epoch: int) -> None:
        """The labelled images of a step."""
        if self._labelled is None:
            return
        assert self._labelled.labels_N is not None
        index_B = self._stream.sampled("labelled", number, len(self._labelled), self._rates[0])
        if not len(index_B):
            return
        view: View = "original" if self._task.settings.weak_view == "none" else "weak"
        images_BCHW, = self._views(self._labelled, index_B, (view,))
        weight = self._objective.labelled_weight(_step(epoch, index_B))

        def loss(logits_K: Tensor, label: Tensor) -> Tensor:
            return weight * self._objective.labelled_loss(logits_K, label)

        found.add(images_BCHW, loss, self._labelled.labels_N[index_B].to(self._task.device))

    def add_unlabelled(self, found: ClippedSum, model: nn.Module, number: int, epoch: int) -> None:
        """The unlabelled images of a step; pseudo-labels are made of each by itself."""
        if self._unlabelled is None or not self._objective.views:
            return
        index_B = self._stream.sampled("unlabelled", number, len(self._unlabelled), self._rates[1])
        if not len(index_B):
            return
        views = self._views(self._unlabelled, index_B, self._objective.views)
        targets = self._objective.targets(model, views, index_B, each_by_itself)
        weight = self._objective.unlabelled_weight(_step(epoch, index_B))

        def loss(logits_K: Tensor, *rows: Tensor) -> Tensor:
            return weight * self._objective.unlabelled_loss(logits_K, *rows)

        found.add(views[self._objective.trained_view], loss, *targets)

    def _views(self, images: ImageSet, index_B: Tensor, views: tuple[View, ...]) -> tuple[Tensor, ...]:
        """As the network takes them, float (B, C, H, W) each."""
        images_BCHW = images.images_NCHW[index_B].to(self._task.device)
        return tuple(augment.to_input(view_of(view, images_BCHW, self._task.augmentation, self._draws),
                                      self._task.image) for view in views)


def _step(epoch: int, index_B: Tensor) -> Step:
    """What the weights of an objective's terms follow from."""
    return Step(epoch=epoch, labelled_BCHW=None, labels_B=None, index_B=index_B, views=())


def _add_gradient(by_name: dict[str, Tensor], penalty: Tensor, optimiser: SGD) -> None:
    """Adds the gradient of a term that looks at the weights alone."""
    weights = list(optimiser.parameters.values())
    for name, gradient in zip(optimiser.parameters, torch.autograd.grad(penalty, weights, allow_unused=True),
                              strict=True):
        if gradient is not None:
            by_name[name] = by_name[name] + gradient


@contextmanager
def _secret_randomness(stream: SecretStream, device: str) -> Iterator[None]:
    """Inside, torch's global generators (dropout) stand on the secret; afterwards they are as before."""
    target = torch.device(device)
    devices = [target] if target.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed = stream.seed("model")
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(target):
                torch.cuda.manual_seed(seed)
        yield
