"""Fed-SHVR at a silo: soft pseudo-labels once per round, then plain SGD on corrected gradients.

Source: Wang et al., "Fed-SHVR", 2021, Algorithm 1; symbols and rules of the correction are in
`semisilo.common.learning.averaging.normalised`, the objective is in `semisilo.common.learning.soft_labels`.

**The control variate.** With `correction_at = "silo"` the silo keeps c_k, the mean raw gradient of its last accepted
round, and receives C. It is kept together with the difference that was sent, so that it counts only when the
coordinator has folded that difference. The task says which round of this silo is in the coordinator's sum
(`correction_round`; where updates are added up behind masks all silos are told alike since when the sum goes on,
`correction_since`). A silo that does not have exactly that c_k, or whose images have changed since, trains without
correction and says so (metric correction_lost); the coordinator then begins its sum anew. With `correction_at =
"coordinator"` the silo receives d_k and keeps nothing. c_k is made of the exact difference: a lossy uplink, which this
module does not see, lets it differ from what the coordinator computes (`semisilo.coordinator.strategies.fed_shvr`).

Fed-SVR's rule delta_k += (w_{t+1} - w_k) / (lr tau_k) is used in the form of control variates, too, which equals it as
long as every silo takes part, and also holds for a silo that was away: it needs no model of a round that it missed.

Shapes: N labelled, M unlabelled images, S steps, B images in a batch, K classes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.learning.averaging.normalised import correction, local_steps, mean_gradient, next_control
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.imbalance.labels import adjust_logits, class_shares, epoch_order
from semisilo.common.learning.losses import first_argmax
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.soft_labels import ObjectiveTerms, objective, ramp, soft_labels
from semisilo.common.learning.training import check_finite, named_randomness, view_block_images
from semisilo.common.methods.contract import SiloData, SiloTask, Update
from semisilo.common.methods.fed_shvr import JOINS, LOST
from semisilo.common.methods.parts.secure_sum import STEPS
from semisilo.common.numerics.passes import Descent, Term
from semisilo.silo.objectives.labelling import alignment_of, balance_of
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.model import (
    difference,
    lacks_statistics,
    load_received_statistics,
    task_model,
    trained_parameters,
)

if TYPE_CHECKING:
    from semisilo.common.methods.fed_shvr import FedSHVRSettings

__all__ = ["Correction", "FedSHVRMemory", "FedSHVRTrainer", "control_to_keep", "received_correction"]

_LOG = logging.getLogger("semisilo.silo")
_LABELLING_SHARE = 0.1
"""Of the reported progress; labelling is one forward pass, training 3 * local_epochs and more."""


@dataclass(frozen=True, kw_only=True)
class FedSHVRMemory:
    """What a silo keeps between rounds with `correction_at = "silo"`."""

    c: dict[str, Tensor]
    """c_k: mean raw gradient of the silo's last accepted round, float64."""
    epoch: int
    """`correction_epoch` of the coordinator's sum that it is in."""
    round: int
    """That round."""
    num_examples: int
    """N_k + M_k then: its weight in the sum."""
    steps: int
    """tau_k then."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What is added to every gradient of a round."""

    d: Mapping[str, Tensor] | None = None
    """d_k, in the type of the model; None where it is 0."""
    mean_control: Mapping[str, Tensor] | None = None
    """C that it was made of, where the silo made it."""
    lost: bool = False
    """Whether there should have been one: the coordinator's sum holds a c_k that this silo no longer has."""

    def totals(self, steps: int) -> dict[str, float]:
        """Of the update: see `semisilo.common.methods.fed_shvr.JOINS`."""
        return {STEPS: float(steps), JOINS: float(self.mean_control is None and not self.lost), LOST: float(self.lost)}


class FedSHVRTrainer:
    """The silo half of Fed-SHVR, Fed-SH and Fed-SVR."""

    Memory = FedSHVRMemory

    def train(self, task: SiloTask, data: SiloData, memory: FedSHVRMemory | None
              ) -> tuple[Update, FedSHVRMemory | None]:
        """Phase "train": label, descend, return the difference. Phase "statistics": measure batch-norm statistics.

        Abstains with "no_data"; with "no_statistics" when images must be labelled and nobody has measured batch-norm
        statistics yet; with "no_usable_batch" when batch-norm could use no batch. Memory then stays as it is.
        Raises: BadPayload for another phase; LayoutMismatch when model or correction are not the task's; ComputeFailed
            when training diverges.
        """
        if (measured := outside_training(task, data, "Fed-SHVR")) is not None:
            return measured, memory
        settings: FedSHVRSettings = task.settings
        labelled, unlabelled = (each if each is not None and len(each) else None
                                for each in (data.labelled, data.unlabelled))
        num_labelled, num_unlabelled = (0 if each is None else len(each) for each in (labelled, unlabelled))
        num_examples = num_labelled + num_unlabelled
        if num_examples == 0:
            return Update(abstention="no_data"), memory
        model = task_model(task, task.groups["model"].tensors)
        if unlabelled is not None and lacks_statistics(task, model):
            return Update(abstention="no_statistics", num_examples=num_examples), memory
        steps = local_steps(num_labelled, num_unlabelled, epochs=settings.local_epochs,
                            labelled_batch=settings.labelled_batch, unlabelled_batch=settings.unlabelled_batch)
        corrected = received_correction(task, memory, num_examples=num_examples, steps=steps)
        v_MK, said = (None, {}) if unlabelled is None else _label(task, model, labelled, unlabelled)
        done = _descend(task, model, labelled, unlabelled, v_MK, corrected.d, steps=steps)
        metrics = {**said, "correction_lost": float(corrected.lost)}
        if done.steps == 0:
            return Update(abstention="no_usable_batch", num_examples=num_examples, metrics=metrics), memory
        group = difference(task, trained_parameters(task, model))
        return (Update(groups={"model": group}, num_examples=num_examples,
                       metrics={**metrics, **done.losses, "steps": float(done.steps)},
                       totals=corrected.totals(done.steps)),
                control_to_keep(task, memory, corrected, group.tensors, num_examples=num_examples, steps=done.steps))


# The correction -------------------------------------------------------------------------------------------------------

def received_correction(task: SiloTask, memory: FedSHVRMemory | None, *, num_examples: int, steps: int) -> Correction:
    """d_k of a round: made of C and what the silo keeps, or as the coordinator sent it.

    Args:
        num_examples, steps: the silo's n_k and tau_k of this round.
    Raises: LayoutMismatch when what was sent does not fit the model.
    """
    settings: FedSHVRSettings = task.settings
    group = task.groups.get("correction")
    if settings.variant == "fed_sh":
        return Correction()
    if group is not None:
        tensors.check_same_layout(task.groups["model"].tensors, group.tensors)
    if settings.correction_at == "coordinator":
        return Correction(d=None if group is None else group.tensors)
    counted_round = settings.correction_round
    if settings.correction_since and task.last_folded_round >= settings.correction_since:
        counted_round = task.last_folded_round
    if counted_round == 0:
        return Correction()
    if (group is None or memory is None or memory.epoch != settings.correction_epoch
            or memory.round != counted_round or memory.num_examples != num_examples
            or _share(settings, memory.steps) != _share(settings, steps)
            or {name: each.shape for name, each in memory.c.items()}
            != {name: each.shape for name, each in group.tensors.items()}):
        _LOG.warning("round %d has no correction: what was kept of round %d is lost, or the images have changed",
                     task.round, counted_round)
        return Correction(lost=True)
    return Correction(correction(group.tensors, memory.c, share=_share(settings, steps)), group.tensors)


def control_to_keep(task: SiloTask, memory: FedSHVRMemory | None, corrected: Correction,
                    delta: Mapping[str, Tensor], *, num_examples: int, steps: int) -> FedSHVRMemory | None:
    """The silo's control variate after a round, to be kept with the difference; None where the silo keeps none.

    Args:
        delta: w_k - w_t as it is sent.
        steps: those that were done.
    """
    settings: FedSHVRSettings = task.settings
    if settings.variant == "fed_sh" or settings.correction_at == "coordinator":
        return None
    before = memory.c if memory is not None and corrected.mean_control is not None else None
    c = next_control(mean_gradient(delta, lr=settings.lr, steps=steps), corrected.mean_control, before,
                     share=_share(settings, steps))
    return FedSHVRMemory(c=c, epoch=settings.correction_epoch, round=task.round, num_examples=num_examples, steps=steps)


def _share(settings: FedSHVRSettings, steps: int) -> int:
    """s_k of `semisilo.common.learning.averaging.normalised`."""
    return steps if settings.variant == "fed_svr" else 1


# Labels ---------------------------------------------------------------------------------------------------------------

def _label(task: SiloTask, model: nn.Module, labelled: ImageSet | None, unlabelled: ImageSet
           ) -> tuple[Tensor, Mapping[str, float]]:
    """Step 2.1: soft labels of all images, as they are, from the received model with the received statistics.

    All labels of a round are made with the alpha_0 of its first local epoch. Returns: v float32 (M, K) on the CPU, and
    what the silo says about its labels.
    """
    load_received_statistics(task, model)
    model.eval()
    alpha0, alpha1 = _alpha0(task, epoch_of_round=1), task.settings.alpha1
    report = PseudoLabelReport()
    logits_MK = logits_of(model, unlabelled.images_NCHW, task.image,
                          progress=lambda share: task.report(_LABELLING_SHARE * share, "labelling"))
    if (alignment := alignment_of(task, labelled)) is not None:
        logits_MK = alignment.whole(logits_MK)
    log_probs_MK = torch.log_softmax(logits_MK, dim=-1)
    v_MK = soft_labels(log_probs_MK, alpha0=alpha0, alpha1=alpha1).cpu()
    report.add(first_argmax(log_probs_MK), torch.ones(len(v_MK), dtype=torch.bool), unlabelled.labels_N, soft_BK=v_MK)
    check_finite({"v": v_MK}, where=f"at this silo in round {task.round}, before it began")
    return v_MK, report.metrics()


def _alpha0(task: SiloTask, *, epoch_of_round: int) -> float:
    """alpha_0 in a local epoch, counted from 1 over all rounds of the study, those that the silo missed included."""
    settings: FedSHVRSettings = task.settings
    epoch = (task.round - 1) * settings.local_epochs + epoch_of_round
    return settings.alpha0 * ramp(settings.alpha0_ramp, epoch=epoch, ramp_epochs=settings.ramp_epochs)


# Descent --------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Done:
    """A round's descent."""

    steps: int
    losses: dict[str, float]
    """Means over the steps: the objective and its terms."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Images of a batch as the network sees them but for normalisation, and what it should say of them."""

    views_BCHW: Tensor
    """uint8, on the task's device."""
    target: Tensor
    """Classes int64 (B,) of labelled images, soft labels float32 (B, K) of unlabelled ones; on the task's device."""


def _descend(task: SiloTask, model: nn.Module, labelled: ImageSet | None, unlabelled: ImageSet | None,
             v_MK: Tensor | None, d: Mapping[str, Tensor] | None, *, steps: int) -> _Done:
    """Step 2.3: w_k -= lr (g + d_k), with the gradient of CE(xi) + alpha0 CE(zeta, v) + alpha2 r2(zeta).

    xi and zeta go forward one after the other: batch-norm uses the statistics of each. Cross-entropy and penalty of
    zeta share a forward pass. A batch that batch-norm cannot use is left out; with none left there is no step.
    """
    settings: FedSHVRSettings = task.settings
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    descent = Descent(parameters)
    added = None if d is None else tensors.all_like(parameters, d)
    labels_N = None if labelled is None else labelled.labels_N
    adjust = _adjustment(settings, labelled)
    batches = zip(_batches(task, "labelled", labelled, labels_N, settings.labelled_batch, steps,
                           balance_of(settings, labelled)),
                  _batches(task, "unlabelled", unlabelled, v_MK, settings.unlabelled_batch, steps), strict=True)
    means = {name: RunningMean() for name in ("loss", "labelled_loss", "unlabelled_loss", "r1", "r2")}
    taken = left_out = 0
    model.train()
    with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
        for number, (xi, zeta) in enumerate(batches):
            alpha0 = _alpha0(task, epoch_of_round=number * settings.local_epochs // steps + 1)
            passes = [_Pass(model, task, alpha0, labelled=xi, adjust=adjust)] if xi is not None else []
            if zeta is not None and (alpha0 or settings.alpha2):  # terms of weight 0 cost nothing
                passes.append(_Pass(model, task, alpha0, unlabelled=zeta))
            found = descent.gradients([Term(1.0, each.loss) for each in passes])
            terms = [each.terms for each in passes if each.terms is not None]
            left_out += len(passes) - len(terms)
            if (passes and not terms) or found.overflow:
                continue
            _step(parameters, found.by_name, added, lr=settings.lr)
            taken += 1
            means["loss"].add(found.total)
            for name, of in _REPORTED.items():
                means[name].add(torch.stack([getattr(each, of) for each in terms]).sum() if terms else found.total)
            task.report(_LABELLING_SHARE + (1 - _LABELLING_SHARE) * (number + 1) / steps,
                        f"training, step {number + 1} of {steps}")
    if left_out:
        _LOG.warning("%d batches were left out: one value per channel at a batch-norm layer", left_out)
    return _Done(taken, {name: mean.value(otherwise=0.0) for name, mean in means.items()})


_REPORTED = {"labelled_loss": "ce_labelled", "unlabelled_loss": "ce_unlabelled", "r1": "r1", "r2": "r2"}
"""What the terms of the objective are called in a silo's report."""


@dataclass(slots=True)
class _Pass:
    """The terms of the objective that one batch gives."""

    model: nn.Module
    task: SiloTask
    alpha0: float
    labelled: _Batch | None = None
    unlabelled: _Batch | None = None
    adjust: Callable[[Tensor], Tensor] | None = None
    """Logit adjustment of the labelled batch."""
    terms: ObjectiveTerms | None = None
    """Detached; None before the pass, and where batch-norm cannot use the batch."""

    def loss(self) -> Tensor | None:
        """Their weighted sum, a scalar (); None where batch-norm cannot use the batch."""
        settings: FedSHVRSettings = self.task.settings
        try:
            xi, zeta = (None if batch is None else self._log_probs(batch, adjust)
                        for batch, adjust in ((self.labelled, self.adjust), (self.unlabelled, None)))
        except OneValuePerChannel:
            return None
        found = objective(xi, None if self.labelled is None else self.labelled.target, zeta,
                          None if self.unlabelled is None else self.unlabelled.target,
                          alpha0=self.alpha0, alpha1=settings.alpha1, alpha2=settings.alpha2,
                          r2_reduction=settings.r2_reduction)
        self.terms = ObjectiveTerms(*(getattr(found, each.name).detach() for each in fields(found)))
        return found.total

    def _log_probs(self, batch: _Batch, adjust: Callable[[Tensor], Tensor] | None) -> Tensor:
        logits_BK = self.model(augment.to_input(batch.views_BCHW, self.task.image))
        return torch.log_softmax(logits_BK if adjust is None else adjust(logits_BK), dim=-1)


def _adjustment(settings: FedSHVRSettings, labelled: ImageSet | None) -> Callable[[Tensor], Tensor] | None:
    """Logit adjustment by the silo's own class shares; None where it is off."""
    if labelled is None or labelled.labels_N is None or not settings.logit_adjustment:
        return None
    labels_N = labelled.labels_N
    return lambda logits_BK: adjust_logits(logits_BK, class_shares(labels_N, logits_BK.shape[-1]),
                                           tau=settings.logit_adjustment)


def _step(parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor], added: Mapping[str, Tensor] | None,
          *, lr: float) -> None:
    """One step of plain SGD, in place: w -= lr (gradient + added). A parameter that the loss does not reach has
    gradient 0; what is added moves it all the same, as the algebra of the correction asks."""
    with torch.no_grad():
        weights: list[Tensor] = list(parameters.values())
        steps = [gradients[name] if name in gradients else torch.zeros_like(parameter)
                 for name, parameter in parameters.items()]
        if added is not None:
            torch._foreach_add_(steps, [added[name] for name in parameters])
        torch._foreach_add_(weights, steps, alpha=-lr)


def _batches(task: SiloTask, kind: str, images: ImageSet | None, target: Tensor | None, batch_size: int, steps: int,
             balance_N: Tensor | None = None) -> Iterator[_Batch | None]:
    """One batch for every step; None in every step where there are no images.

    The images are shuffled, gone through, shuffled again, and so on, without regard to the other set. Every batch has
    the full size, or all images of a set that is smaller.
    """
    if images is None or target is None:
        yield from [None] * steps
        return
    order, views = (torch_generator(task.seed, f"{kind}_{purpose}", round=task.round, silo=task.silo)
                    for purpose in ("order", "views"))
    size = min(batch_size, len(images))
    passes = math.ceil(steps * size / len(images))
    indices = torch.cat([epoch_order(len(images), order, balance_N=balance_N) for _ in range(passes)])[:steps * size]
    for block in torch.split(indices, view_block_images(images.images_NCHW, size)):
        weak = augment.weak(images.images_NCHW[block].to(task.device), task.augmentation, views)
        for index, views_BCHW in zip(torch.split(block, size), torch.split(weak, size), strict=True):
            yield _Batch(views_BCHW, target[index].to(task.device))
