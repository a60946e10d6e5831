"""FedMatch at a silo: sigma learns from labels, psi from unlabelled images, whose labels are a vote with the helpers.

Source: FedMatch, Jeong et al., arXiv 2006.12097 (v1) and ICLR 2021 (v3) section 3; official code where marked [C].

A network with dropout or static batch-norm labels in evaluation mode, with the received statistics, and learns in
training mode; the published networks have neither.

Shapes: B images in a batch, K classes, N_k labelled and M_k unlabelled images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import LayoutMismatch
from semisilo.common.learning import tensors
from semisilo.common.learning.agreement import (
    AgreementVotes,
    agreement_votes,
    iccs_kl,
    psi_regulariser,
    soft_threshold_,
)
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.decomposition import Decomposed, theta
from semisilo.common.learning.imbalance.labels import adjusted_loss, epoch_order
from semisilo.common.learning.losses import ClassThresholds, cross_entropy
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.sparse_transfer import sparse_delta
from semisilo.common.learning.training import check_finite, named_randomness, unloaded_model
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update
from semisilo.silo.objectives.batch_room import check_images_fit, kept_bytes_per_image, warn_of_large_batch
from semisilo.silo.objectives.labelling import alignment_of, balance_of, threshold_of
from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport
from semisilo.silo.trainers.batch_norm_phase import outside_training
from semisilo.silo.trainers.parts.model import lacks_statistics, load_received_statistics

if TYPE_CHECKING:
    from semisilo.common.methods.fedmatch import FedMatchSettings

__all__ = ["MORE_STEPS", "EpochPlan", "FedMatchMemory", "FedMatchTrainer", "epoch_plan"]

_LOG = logging.getLogger("semisilo.silo")
MORE_STEPS = 'The study can set [method] steps_by = "unlabelled", by which a step has unlabelled_batch images.'
"""What mends a batch that is too large."""


@dataclass(frozen=True, kw_only=True)
class FedMatchMemory:
    """What a silo keeps between rounds, with keep_helpers alone: sigma and psi come with every task."""

    helpers: dict[str, Tensor]
    """Thresholded psi of the helpers it was sent last, "<index>/<tensor>"."""
    round: int
    """When that was."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """How the images of a silo make an epoch."""

    steps: int
    unlabelled_batch: int
    """0 without unlabelled images."""


def epoch_plan(settings: FedMatchSettings, num_labelled: int, num_unlabelled: int) -> EpochPlan:
    """Steps of an epoch and size of its unlabelled batches, for N_k and M_k that are not both 0.

        steps_by = "labelled" (v3) [C]:    round(N_k / B_S), batches of ceil(M_k / steps); without labels
                                           round(M_k / B_U), batches of B_U
        steps_by = "unlabelled" (v1) [R]:  ceil(M_k / B_U), batches of B_U; without unlabelled images
                                           ceil(N_k / B_S)

    At least one step; halves are rounded to even, as Python does. Source: FedMatch v3's code; v1 as reconstructed.
    """
    by_labelled = num_labelled > 0 and (settings.steps_by == "labelled" or num_unlabelled == 0)
    share = num_labelled / settings.labelled_batch if by_labelled else num_unlabelled / settings.unlabelled_batch
    steps = max(1, round(share) if settings.steps_by == "labelled" else math.ceil(share))
    batch = math.ceil(num_unlabelled / steps) if by_labelled else settings.unlabelled_batch
    return EpochPlan(steps, batch)


class FedMatchTrainer:
    """The silo half of FedMatch."""

    Memory = FedMatchMemory

    def train(self, task: SiloTask, data: SiloData, memory: FedMatchMemory | None
              ) -> tuple[Update, FedMatchMemory | None]:
        """Phase "train": sigma on labels, psi on the vote. Phase "statistics": measures batch-norm statistics.

        Abstains with "no_data"; with "no_statistics" when nobody has measured the batch-norm statistics yet that the
        network needs to label; with "no_confident_example" where the settings say so; with "no_usable_batch" when
        batch-norm could use no batch. Memory then stays as it is.
        Raises: BadPayload for another phase; LayoutMismatch when the tensors are not the task's model's; ComputeFailed
            when training diverges, or a batch that is far larger than usual does not fit into memory.
        """
        if (measured := outside_training(task, data, "FedMatch")) is not None:
            return measured, memory
        settings: FedMatchSettings = task.settings
        at_silo = settings.scenario == "labels-at-silo"
        labelled = _usable(data.labelled) if at_silo else None
        unlabelled = _usable(data.unlabelled)
        count = sum(len(each) for each in (labelled, unlabelled) if each is not None)
        if count == 0:
            return Update(abstention="no_data"), memory
        model = unloaded_model(task.build_model, seed=task.seed, round=task.round, silo=task.silo, device=task.device)
        if lacks_statistics(task, model):
            return Update(abstention="no_statistics", num_examples=count), memory
        helpers, keep = _helpers(task, memory)
        work = _Work(task, model, labelled, unlabelled, helpers)
        work.run()
        metrics = work.metrics()
        if work.steps == 0:
            return Update(abstention="no_usable_batch", num_examples=count, metrics=metrics), memory
        if settings.abstain_if_no_confident and labelled is None and not work.kept_any:
            return Update(abstention="no_confident_example", num_examples=count, metrics=metrics), memory
        sigma, psi = work.network.parts()
        check_finite({**psi, **{f"sigma/{name}": tensor for name, tensor in sigma.items()}},
                     where=f"at this silo in round {task.round}")
        groups = {"psi": _overwrite(task.groups["psi"], psi, settings.l1_thres, settings.delta_thres)}
        if at_silo:
            # Without labels this is what was received, to the bit: it costs nothing, and takes no weight in the mean.
            groups["sigma"] = _overwrite(task.groups["sigma"], sigma, 0.0, settings.delta_thres)
        return Update(groups=groups, num_examples=count, metrics=metrics), keep


def _usable(images: ImageSet | None) -> ImageSet | None:
    return images if images is not None and len(images) else None


def _overwrite(received: TensorGroup, trained: Mapping[str, Tensor], l1_thres: float,
               delta_thres: float) -> TensorGroup:
    """What goes up: both sides go on from the received values with only the sent elements changed [C]."""
    after = sparse_delta(trained, received.tensors, l1_thres=l1_thres, delta_thres=delta_thres).receiver_after
    return TensorGroup(after, Meaning.OVERWRITE, base=tensors.group_digest(received), base_tensors=received.tensors)


def _helpers(task: SiloTask, memory: FedMatchMemory | None
             ) -> tuple[list[dict[str, Tensor]], FedMatchMemory | None]:
    """psi of every helper, in order, from the task or else from memory; and the memory of after this task."""
    settings: FedMatchSettings = task.settings
    sent: list[dict[str, Tensor]] = []
    while (group := task.groups.get(f"helper_psi/{len(sent)}")) is not None:
        sent.append(dict(group.tensors))
    if not settings.keep_helpers:
        return sent, None
    if sent:
        flat = {f"{index}/{name}": tensor for index, psi in enumerate(sent) for name, tensor in psi.items()}
        return sent, FedMatchMemory(helpers=flat, round=task.round)
    limit = settings.helper_max_age_rounds
    if memory is None or (limit and task.round - memory.round > limit):
        return [], None
    kept: dict[str, dict[str, Tensor]] = {}
    for key, tensor in memory.helpers.items():
        index, _, name = key.partition("/")
        kept.setdefault(index, {})[name] = tensor
    try:
        for psi in kept.values():
            tensors.check_same_layout(task.groups["psi"].tensors, psi)
    except LayoutMismatch as error:
        _LOG.warning("the helpers that were kept do not fit the model and are dropped: %s", error.text)
        return [], None
    return list(kept.values())[: settings.num_helpers], memory


class _Work:
    """One task's training; lives as long as the task."""

    def __init__(self, task: SiloTask, model: nn.Module, labelled: ImageSet | None, unlabelled: ImageSet | None,
                 helpers: list[dict[str, Tensor]]) -> None:
        self._task, self._labelled, self._unlabelled = task, labelled, unlabelled
        self._settings: FedMatchSettings = task.settings
        sigma, psi = task.groups["sigma"].tensors, task.groups["psi"].tensors
        load_received_statistics(task, model)
        self.network = Decomposed(model, sigma, psi, sgd=sgd_settings(self._settings, self._settings.round_lr))
        # Frozen for the whole task, with the received global sigma [P v3, C], not the one under training.
        self._helpers = [tensors.all_like(self.network.psi, theta(sigma, helper)) for helper in helpers]
        # The silo's own answers and each helper's are aligned by means of their own.
        self._alignments = [alignment_of(task, labelled) for _ in range(1 + len(helpers))]
        self._threshold = threshold_of(task, self._settings.confidence_threshold, labelled,
                                       logits_of_views=self._answers)
        self._balance_N = balance_of(self._settings, labelled)
        self._loss_of = cross_entropy if labelled is None or labelled.labels_N is None else adjusted_loss(
            labelled.labels_N, self._settings.logit_adjustment)
        self._report = PseudoLabelReport()
        self._views, self._labelled_views, self._order, self._labelled_order = (
            torch_generator(task.seed, purpose, round=task.round, silo=task.silo)
            for purpose in ("local_views", "labelled_views", "local_order", "labelled_order"))
        self._means: dict[str, RunningMean] = {}
        self.steps = self._skipped = self._num_kept = 0
        self._kept_bytes = 0
        """What a pass with gradients keeps of an image; 0 where no batch is far larger than usual."""
        self.kept_any = False

    def _answers(self, views_BCHW: Tensor) -> Tensor:
        """Logits of uint8 images from the weights as they are, with the received statistics."""
        self.network.model.eval()
        with torch.no_grad():
            return self.network.forward(augment.to_input(views_BCHW, self._task.image), self.network.weights())

    def run(self) -> None:
        """`local_epochs` epochs."""
        task, settings = self._task, self._settings
        num_labelled, num_unlabelled = (len(each) if each is not None else 0
                                        for each in (self._labelled, self._unlabelled))
        plan = epoch_plan(settings, num_labelled, num_unlabelled)
        if num_unlabelled and warn_of_large_batch(task, plan.unlabelled_batch, settings.unlabelled_batch,
                                                  remedy=MORE_STEPS):
            self._kept_bytes = kept_bytes_per_image(task)
        with named_randomness(task.seed, "local_model", round=task.round, silo=task.silo, device=task.device):
            for epoch in range(settings.local_epochs):
                with_labels = _cycle(num_labelled, settings.labelled_batch, self._labelled_order, self._balance_N)
                without = iter(()) if not num_unlabelled else iter(torch.split(
                    torch.randperm(num_unlabelled, generator=self._order), plan.unlabelled_batch))
                for number, (chosen_B, index_B) in enumerate(islice(_paired(with_labels, without), plan.steps)):
                    trained = chosen_B is not None and self._learn_labels(chosen_B)
                    if index_B is not None:
                        last = epoch == settings.local_epochs - 1
                        trained = self._learn_unlabelled(index_B, counted=last) or trained
                    self.steps += trained
                    task.report((epoch + (number + 1) / plan.steps) / settings.local_epochs,
                                f"training on {num_labelled} labelled and {num_unlabelled} unlabelled images")
        if self._skipped:
            _LOG.warning("%d batches were skipped: one value per channel at a batch-norm layer", self._skipped)

    def metrics(self) -> dict[str, float]:
        """Means over the steps, and what there was to learn from; of pseudo-labels those of the last epoch."""
        sizes = {"num_labelled": self._labelled, "num_unlabelled": self._unlabelled}
        return {**self._report.metrics(), **{name: mean.value() for name, mean in self._means.items()},
                **{name: float(len(images)) if images is not None else 0.0 for name, images in sizes.items()},
                "num_kept": float(self._num_kept), "steps": float(self.steps)}

    def _learn_labels(self, chosen_B: Tensor) -> bool:
        """Step 1: one step of sigma on lambda_s * CE. Whether there was one."""
        task, labelled = self._task, self._labelled
        assert labelled is not None
        assert labelled.labels_N is not None
        images_BCHW = labelled.images_NCHW[chosen_B].to(task.device)
        if self._settings.augment_train:
            images_BCHW = augment.weak(images_BCHW, task.augmentation, self._labelled_views)
        self.network.model.train()
        try:
            loss = self.network.sigma_step(augment.to_input(images_BCHW, task.image),
                                           labelled.labels_N[chosen_B].to(task.device), self._settings.lambda_s,
                                           loss_of=self._loss_of)
        except OneValuePerChannel:
            self._skipped += 1
            return False
        self._add("label_loss", loss)
        return True

    def _learn_unlabelled(self, index_B: Tensor, *, counted: bool) -> bool:
        """Step 2: vote, then one step of psi on L_u. Whether there was one.

        Args:
            counted: whether the pseudo-labels go into the report.
        """
        task, settings, network, unlabelled = self._task, self._settings, self.network, self._unlabelled
        assert unlabelled is not None
        images_BCHW = unlabelled.images_NCHW[index_B].to(task.device)
        # Views of all images, kept or not: so the random numbers of later batches do not hang on who is kept.
        plain_BCHW = augment.weak(images_BCHW, task.augmentation, self._views) if settings.augment_train \
            else images_BCHW
        strong_BCHW = augment.strong(images_BCHW, task.augmentation, self._views)
        inputs_BCHW, weights = augment.to_input(plain_BCHW, task.image), network.weights()
        votes, helper_probs = self._vote(inputs_BCHW, weights)
        keep_B = votes.keep_B
        if counted:
            truth_N = unlabelled.labels_N
            self._report.add(votes.pseudo_label_B, keep_B, None if truth_N is None else truth_N[index_B])
            self._num_kept += int(keep_B.sum())
        proximal = settings.l1_update == "proximal"
        loss = psi_regulariser(network.sigma, network.psi, lambda_l2=settings.lambda_l2,
                               lambda_l1=0.0 if proximal else settings.lambda_l1).loss
        network.model.train()
        try:
            kept, everywhere = bool(keep_B.any()), settings.icc_images == "all"
            self.kept_any = self.kept_any or kept
            if kept or everywhere:
                near_B = torch.ones_like(keep_B) if everywhere else keep_B
                loss = loss + self._images_loss(
                    weights, inputs_BCHW[near_B], [prob[near_B] for prob in helper_probs],
                    strong_BCHW=strong_BCHW[keep_B], label_B=votes.pseudo_label_B[keep_B])
        except OneValuePerChannel:
            self._skipped += 1
            return False
        network.psi_step(loss)
        if proximal:
            soft_threshold_(network.psi.values(), settings.round_lr * settings.lambda_l1)
        self._add("loss", loss)
        return True

    def _vote(self, inputs_BCHW: Tensor, weights: Mapping[str, Tensor]) -> tuple[AgreementVotes, list[Tensor]]:
        """The vote of local model and helpers, and the helpers' probabilities.

        With distribution alignment the vote is among aligned answers; the probabilities are those as they come.

        A helper is another silo's model and so not to be trusted: one whose answer is not finite (huge weights are
        enough) is left out of the batch, for it would make this silo's own weights not finite.
        """
        self.network.model.eval()
        with torch.no_grad():
            all_logits = [self.network.forward(inputs_BCHW, each) for each in (weights, *self._helpers)]
        sound = [True, *(bool(torch.isfinite(torch.softmax(each_BK, dim=-1)).all()) for each_BK in all_logits[1:])]
        pairs = zip(all_logits, self._alignments, strict=True)
        usable = [pair for pair, is_sound in zip(pairs, sound, strict=True) if is_sound]
        voting = [torch.softmax(logits_BK if alignment is None else alignment.batch(logits_BK), dim=-1)
                  for logits_BK, alignment in usable]
        assert not isinstance(self._threshold, ClassThresholds), "FedMatch votes for one class"
        votes = agreement_votes(voting[0], voting[1:], self._threshold, tie_break=self._settings.tie_break)
        return votes, [torch.softmax(logits_BK, dim=-1) for logits_BK, _ in usable[1:]]

    def _images_loss(self, weights: Mapping[str, Tensor], inputs_BCHW: Tensor, helper_probs: list[Tensor], *,
                     strong_BCHW: Tensor, label_B: Tensor) -> Tensor:
        """lambda_a * CE + lambda_i * ICC; a term of weight 0, or without images or helpers, costs nothing.

        Args:
            inputs_BCHW, helper_probs: of the images of the inter-client term, and what the helpers say of them.
            strong_BCHW, label_B: of the kept images, perhaps none.
        Raises: ComputeFailed where what the passes keep cannot fit into memory.
        """
        settings, network = self._settings, self.network
        if self._kept_bytes:  # the system would kill this process, or another one, in the middle of the pass
            passes = len(label_B) * bool(settings.lambda_a) + len(inputs_BCHW) * bool(settings.lambda_i
                                                                                      and helper_probs)
            check_images_fit(self._task, passes, settings.unlabelled_batch, per_image=self._kept_bytes,
                             remedy=MORE_STEPS)
        loss = torch.zeros((), device=label_B.device)
        if settings.lambda_a and len(label_B):
            logits_BK = network.forward(augment.to_input(strong_BCHW, self._task.image), weights)
            agreement = cross_entropy(logits_BK, label_B)
            loss = loss + settings.lambda_a * agreement
            self._add("agreement_loss", agreement)
        if settings.lambda_i and helper_probs:
            log_prob_BK = functional.log_softmax(network.forward(inputs_BCHW, weights), dim=-1)
            consistency = iccs_kl(log_prob_BK, helper_probs, over_helpers=settings.icc).loss
            loss = loss + settings.lambda_i * consistency
            self._add("consistency_loss", consistency)
        return loss

    def _add(self, name: str, loss: Tensor) -> None:
        self._means.setdefault(name, RunningMean()).add(loss)


def _cycle(count: int, batch: int, generator: torch.Generator, balance_N: Tensor | None) -> Iterator[Tensor]:
    """Indices of batches without end, in a new order on every pass; nothing of nothing."""
    while count:
        yield from torch.split(epoch_order(count, generator, balance_N=balance_N), batch)


def _paired(first: Iterator[Tensor], second: Iterator[Tensor]) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """The two beside each other without end; None where one has no more."""
    while True:
        yield next(first, None), next(second, None)
