"""How much of what the silos return is taken over: as far as it does not make the coordinator's own images worse.

    w + s (w' - w)        s the largest of 1, 1/2, 1/4, 0 that is accepted

with w the model that was sent and w' the one after averaging and server momentum, before any training on labels. The
images count as in the study's measure. They are the validation images, or the labelled ones where there are none: these
the model knows, so there the gate shuts only on what destroys knowledge, such as silos that have collapsed or lie.

Shapes: N images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from semisilo.common.data.multi_hot import strata_of
from semisilo.common.errors import BadPayload
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import logits_of
from semisilo.common.learning.losses import first_argmax
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.measures.multi_label import AreaParts, area_parts
from semisilo.common.measures.study_measure import StudyMeasure
from semisilo.common.methods.contract import Environment
from semisilo.coordinator.strategies.parts.averaging import apply_global_momentum
from semisilo.coordinator.strategies.parts.labelled_training import model_at_coordinator

__all__ = ["STEPS", "Gate", "accepted_area_step", "accepted_step", "class_balanced_weights", "difference_variance",
           "evenly", "images_tried", "strata_for", "taken", "through_gate", "weights_for"]

_LOG = logging.getLogger("semisilo.coordinator")

STEPS = (1.0, 0.5, 0.25)
"""What is tried, in this order, before nothing is taken."""
_MOST_IMAGES = 2000
_ROUNDING = 1e-9


def class_balanced_weights(labels_N: Tensor) -> Tensor:
    """1 / (C n_c) for an image of class c, of C classes that occur; float64 (N,), sums to 1.

    The weighted mean of what is right is balanced accuracy, which is accuracy where classes are equally frequent.
    """
    _, index_N, counts_C = torch.unique(labels_N.cpu(), return_inverse=True, return_counts=True)
    weights_N: Tensor = 1.0 / (len(counts_C) * counts_C.double()[index_N])
    return weights_N


def weights_for(measure: StudyMeasure, labels_N: Tensor) -> Tensor:
    """What each image counts, so that the weighted mean of what is right is the study's measure; float64 (N,), sum 1.

    For accuracy 1 / N; else `class_balanced_weights`: also for AUROC, of which no image has a part of its own, and for
    the recall of a class, which a model that always answers the class would raise.
    """
    labels_N = labels_N.cpu()
    if measure.kind == "accuracy":
        return torch.full((len(labels_N),), 1.0 / len(labels_N), dtype=torch.float64)
    return class_balanced_weights(labels_N)


def strata_for(measure: StudyMeasure, labels_N: Tensor) -> Tensor:
    """Of what images the measure takes the mean apart, int64 (N,): for accuracy all together, else each class."""
    labels_N = labels_N.cpu()
    return labels_N if measure.weighs_classes_alike else torch.zeros_like(labels_N)


def difference_variance(difference_N: Tensor, weights_N: Tensor, strata_N: Tensor) -> Tensor:
    """The variance of sum_i w_i d_i over images to come, scalar float64 ():

        sum_c w_c^2 n_c / (n_c - 1) sum_{i in c} (d_i - m_c)^2,  of a stratum of one image w_c^2 d^2

    The spread is that within each stratum, since how many images there are of each is not left to chance. One image
    that is lost has then a difference of just its standard error, in a rare class as in a frequent one.
    Args:
        difference_N: float64.
        weights_N: float64, the same of all images of a stratum.
    Source: of a stratified sample, Cochran, "Sampling Techniques", 1977, section 5.4; a single image, which has no
        spread, is taken for its square.
    """
    _, index_N, counts_C = torch.unique(strata_N, return_inverse=True, return_counts=True)
    mean_C = torch.zeros(len(counts_C), dtype=torch.float64).index_add_(0, index_N, difference_N) / counts_C
    mean_C[counts_C == 1] = 0.0
    factor_C = counts_C.double() / (counts_C - 1).clamp(min=1)
    variance: Tensor = (factor_C[index_N] * (weights_N * (difference_N - mean_C[index_N])).square()).sum()
    return variance


def evenly(count: int, most: int) -> Tensor:
    """At most so many of `count` images, spread evenly over them; int64, ascending."""
    return torch.arange(count) if count <= most else torch.arange(most) * count // most


def images_tried(strata_N: Tensor, most: int = _MOST_IMAGES) -> Tensor:
    """Which images a model is tried on, at most so many; int64, ascending: all of the small strata, and of each larger
    one as many as of any other, spread evenly over it. A rare class so keeps the few images that it has.

    Args:
        strata_N: int64; fewer strata than `most`.
    """
    if len(strata_N) <= most:
        return torch.arange(len(strata_N))
    _, index_N, counts_C = torch.unique(strata_N, return_inverse=True, return_counts=True)
    each, left, strata = most, most, len(counts_C)
    for count in sorted(counts_C.tolist()):
        each = max(1, left // strata)
        left, strata = left - min(count, each), strata - 1
    return torch.cat([torch.nonzero(index_N == stratum).flatten()[evenly(count, each)]
                      for stratum, count in enumerate(counts_C.tolist())]).sort().values


def accepted_step(right_at: Callable[[float], Tensor], weights_N: Tensor, strata_N: Tensor | None = None) -> float:
    """The largest step of `STEPS` at which images are not classified worse than at 0, beyond noise; else 0.

        d = right_at(s) - right_at(0)         m = sum_i w_i d_i
        accepted where m >= -sqrt(`difference_variance`)

    that is, where the difference is not below 0 by more than its standard error: one image may be lost, of whatever
    class, and not two of the same.
    Args:
        right_at: from a step to whether each image is classified rightly, bool (N,), on the CPU.
        weights_N: float64, sum 1.
        strata_N: see `strata_for`; None: all images are one.
    """
    strata_N = torch.zeros(len(weights_N), dtype=torch.int64) if strata_N is None else strata_N
    before_N = right_at(0.0).double()
    for step in STEPS:
        difference_N = right_at(step).double() - before_N
        mean = (weights_N * difference_N).sum()
        variance = difference_variance(difference_N, weights_N, strata_N)
        if float(mean + variance.sqrt()) >= -_ROUNDING:
            return step
    return 0.0


def accepted_area_step(logits_at: Callable[[float], Tensor | None], rows_NK: Tensor) -> float:
    """`accepted_step` where images have several labels or none: the largest step at which the macro AUROC is not lower
    than at 0 by more than the standard error of the difference; else 0.

        accepted where A(s) - A(0) >= -max(1 / N, sqrt(sum_i (psi_i(s) - psi_i(0))^2))

    with psi the parts of the area image by image (`area_parts`); both models see the same images, so what they err in
    alike cancels, and the smallest of differences would count were it not for 1 / N, what one image weighs.
    Args:
        logits_at: from a step to logits, (N, K); None for a model without an answer, which is not accepted.
        rows_NK: multi-hot, on the CPU.
    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), for two curves of the same images.
    """
    def parts_at(step: float) -> AreaParts | None:
        logits_NK = logits_at(step)
        if logits_NK is None or not bool(torch.isfinite(logits_NK).all()):
            return None
        return area_parts(logits_NK.float().cpu().numpy(), rows_NK.numpy())

    before = parts_at(0.0)
    if before is None:
        return STEPS[0]  # nothing to compare with: no class has images of both kinds
    for step in STEPS:
        after = parts_at(step)
        if after is not None:
            error = max(1 / len(rows_NK), float(np.sqrt(((after.influence_N - before.influence_N) ** 2).sum())))
            if after.macro - before.macro + error >= -_ROUNDING:
                return step
    return 0.0


class Gate:
    """Of one study's coordinator. Holds no state of the study."""

    def __init__(self, environment: Environment) -> None:
        data = environment.data
        self._images = next((each for each in (data.validation, data.labelled)
                             if each is not None and len(each) and each.labels_N is not None), None)
        self._environment = environment

    def accepted(self, w: Mapping[str, Tensor], after: Mapping[str, Tensor], *, round: int) -> float:
        """The step; 1 without images. Every model that is tried has batch-norm statistics of its own, of these images.

        Args:
            w: what was sent.
            after: what all that the silos returned would make of it; may be not finite, which is not accepted.
        """
        if self._images is None:
            return 1.0
        chosen = measured = self._images
        assert chosen.labels_N is not None
        if len(chosen) > _MOST_IMAGES:  # statistics are of images as frequent as they are
            measured = chosen.subset(evenly(len(chosen), _MOST_IMAGES))
            chosen = chosen.subset(images_tried(self._strata(chosen.labels_N)))
        assert chosen.labels_N is not None
        model = model_at_coordinator(self._environment, w, round=round)
        labels_N, change = chosen.labels_N.cpu(), tensors.subtract(after, w)

        def logits_at(step: float) -> Tensor | None:
            """None for a model that gives nobody an answer."""
            tried = tensors.add(w, change, factor=step) if step else w
            if not tensors.all_finite(tried):
                return None
            tensors.load_into(model, tried)
            try:
                batch_norm.load(model, batch_norm.to_tensors(batch_norm.measure(
                    model, measured.images_NCHW, form=self._environment.image,
                    generator=torch_generator(self._environment.seed, "batch_norm_order", round=round))))
            except BadPayload:  # statistics that no float32 can hold
                return None
            return logits_of(model.eval(), chosen.images_NCHW, self._environment.image)

        def right_at(step: float) -> Tensor:
            logits_NK = logits_at(step)
            if logits_NK is None:
                return torch.zeros(len(chosen), dtype=torch.bool)
            return first_argmax(logits_NK).cpu() == labels_N

        if labels_N.ndim == 2:
            step = accepted_area_step(logits_at, labels_N)
        else:
            step = accepted_step(right_at, weights_for(self._environment.measure, labels_N),
                                 self._strata(labels_N))
        if step < 1.0:
            _LOG.warning("round %d: %s what the silos returned is taken over; more of it makes the coordinator's own "
                         "images worse", round, f"{step:.0%} of" if step else "nothing of")
        return step


    def _strata(self, labels_N: Tensor) -> Tensor:
        """`strata_for`; with several labels for an image its rarest finding, or none."""
        if labels_N.ndim == 2:
            return torch.from_numpy(strata_of(labels_N.cpu().numpy()))
        return strata_for(self._environment.measure, labels_N)


def taken(w: Mapping[str, Tensor], after: Mapping[str, Tensor], buffer: Mapping[str, Tensor] | None,
          buffer_after: Mapping[str, Tensor] | None, *, step: float
          ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Model and server momentum of which a step is taken over; of step 0 both as they were.

    w + s (after - w), and s times the momentum after, so that what was refused does not come back in the next round.
    """
    if step == 0.0:
        return dict(w), None if buffer is None else dict(buffer)
    if step == 1.0:
        return dict(after), None if buffer_after is None else dict(buffer_after)
    return (tensors.add(w, tensors.subtract(after, w), factor=step),
            None if buffer_after is None else tensors.scale(buffer_after, step))


def through_gate(gate: Gate | None, w: Mapping[str, Tensor], buffer: Mapping[str, Tensor] | None,
                 delta: Mapping[str, Tensor] | None, *, momentum: float, round: int
                 ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None, float]:
    """The server's step: `apply_global_momentum`, of which as much is taken over as the gate accepts.

    Args:
        gate: None lets everything through.
    Returns: model, server momentum and the accepted step, 1 where nothing was returned.
    """
    after, buffer_after = apply_global_momentum(w, buffer, delta, momentum=momentum)
    if gate is None or delta is None:
        return after, buffer_after, 1.0
    step = gate.accepted(w, after, round=round)
    return (*taken(w, after, buffer, buffer_after, step=step), step)
