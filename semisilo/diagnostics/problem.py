"""The objective of Fed-SHVR over all images of all silos, for one model and one set of soft labels.

    F(w, v) = sum_k p_k F_k(w, v_k),      p_k = (N_k + M_k) / sum_j (N_j + M_j)

Every image counts once, as it is, with the network in evaluation mode: dropout is off, and static batch-norm uses
statistics that are measured with w on all images. They are constants to the gradient.

Shapes: N labelled, M unlabelled images of a silo, B images in a batch, K classes.
Source: Fed-SHVR, Wang et al. (2021), section II; `semisilo.common.learning.soft_labels` has F_k.

Tests: tests/semisilo/diagnostics/test_diagnostics.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import inference_batches
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.soft_labels import ObjectiveTerms, objective, soft_labels
from semisilo.common.learning.training import named_randomness
from semisilo.common.methods.contract import ModelBuilder, SiloData

__all__ = ["ObjectiveValue", "Problem", "gradient_of", "labels_of", "objective_of", "statistics_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What F is a function on."""

    build_model: ModelBuilder
    silos: Mapping[str, SiloData]
    """Labels that simulations keep with unlabelled images are not looked at."""
    image: ImageForm
    alpha0: float = 1.0
    """Weight of the unlabelled images; of a round within the ramp, what it had risen to."""
    alpha1: float = 0.75
    alpha2: float = 0.1
    """0 gives F without the confidence penalty."""
    seed: int = 0
    """Of the order in which batch-norm statistics are measured, and of random directions."""
    batch_size: int = 250
    device: str = "cpu"

    def shares(self) -> dict[str, float]:
        """p_k of every silo that has images. Raises: BadData when none has."""
        sizes = {silo: sum(len(each) for each in _sets(data)) for silo, data in self.silos.items()}
        total = sum(sizes.values())
        if total == 0:
            raise BadData("The objective needs images; no silo has any.")
        return {silo: size / total for silo, size in sizes.items() if size}


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveValue:
    """F and its terms, each the mean over silos by p_k, unweighted by the alphas."""

    total: float
    ce_labelled: float
    ce_unlabelled: float
    r1: float
    r2: float


def statistics_of(problem: Problem, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Static batch-norm statistics of w on all images of all silos, merged exactly; {} for a network without."""
    model = _loaded(problem, w)
    if not batch_norm.layers_of(model):
        return {}
    images = [each.images_NCHW for data in problem.silos.values() for each in _sets(data)]
    generator = torch_generator(problem.seed, "batch_norm_order")
    return batch_norm.to_tensors(batch_norm.merge([
        batch_norm.measure(model, images_NCHW, form=problem.image, generator=generator, batch_size=problem.batch_size)
        for images_NCHW in images]))


def labels_of(problem: Problem, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None = None
              ) -> dict[str, Tensor]:
    """v_k = argmin_v F(w, v) of every silo with unlabelled images, float32 (M, K), as the silos make them (Eq. 8).

    Args:
        statistics: of batch-norm; None measures them.
    """
    model = _evaluable(problem, w, statistics)
    labels: dict[str, Tensor] = {}
    with torch.no_grad():
        for silo, data in problem.silos.items():
            if data.unlabelled is not None and len(data.unlabelled):
                labels[silo] = torch.cat([
                    soft_labels(_log_probs(problem, model, data.unlabelled, cut), alpha0=problem.alpha0,
                                alpha1=problem.alpha1).cpu()
                    for cut in inference_batches(len(data.unlabelled), problem.batch_size)])
    return labels


def objective_of(problem: Problem, w: Mapping[str, Tensor], v: Mapping[str, Tensor],
                 statistics: Mapping[str, Tensor] | None = None) -> ObjectiveValue:
    """F(w, v) and its terms.

    Args:
        v: soft labels by silo, (M, K) each.
        statistics: of batch-norm; None measures them.
    Raises: BadData when a silo's soft labels are missing or not one row per image.
    """
    with torch.no_grad():
        return _value(_parts(problem, _evaluable(problem, w, statistics), v))


def gradient_of(problem: Problem, w: Mapping[str, Tensor], v: Mapping[str, Tensor],
                statistics: Mapping[str, Tensor] | None = None) -> tuple[dict[str, Tensor], ObjectiveValue]:
    """grad_w F(w, v), on the CPU, and F(w, v). Arguments and errors as of `objective_of`."""
    model = _evaluable(problem, w, statistics)

    def descended() -> Iterator[tuple[float, ObjectiveTerms]]:
        for weight, terms in _parts(problem, model, v):
            (weight * terms.total).backward()  # type: ignore[no-untyped-call]
            yield weight, terms

    value = _value(descended())
    return {name: torch.zeros_like(parameter, device="cpu", requires_grad=False) if parameter.grad is None
            else parameter.grad.to("cpu", copy=True)
            for name, parameter in model.named_parameters() if parameter.requires_grad}, value


def _parts(problem: Problem, model: nn.Module, v: Mapping[str, Tensor]) -> Iterator[tuple[float, ObjectiveTerms]]:
    """F as a sum over batches: the weight of each, and the terms of its images."""
    terms = partial(objective, alpha0=problem.alpha0, alpha1=problem.alpha1, alpha2=problem.alpha2)
    for silo, share in problem.shares().items():
        labelled, unlabelled = problem.silos[silo].labelled, problem.silos[silo].unlabelled
        if labelled is not None and labelled.labels_N is not None:
            for cut in inference_batches(len(labelled), problem.batch_size):
                labels_B = labelled.labels_N[cut].to(problem.device)
                log_probs_BK = _log_probs(problem, model, labelled, cut)
                yield share * len(labels_B) / len(labelled), terms(log_probs_BK, labels_B, None, None)
        if unlabelled is not None and len(unlabelled):
            v_MK = v.get(silo)
            if v_MK is None or v_MK.dim() != 2 or len(v_MK) != len(unlabelled):
                raise BadData(f"Silo '{silo}' has {len(unlabelled)} unlabelled images, and not as many soft labels.")
            for cut in inference_batches(len(unlabelled), problem.batch_size):
                v_BK = v_MK[cut].to(problem.device)
                log_probs_BK = _log_probs(problem, model, unlabelled, cut)
                yield share * len(v_BK) / len(unlabelled), terms(None, None, log_probs_BK, v_BK)


def _value(parts: Iterator[tuple[float, ObjectiveTerms]]) -> ObjectiveValue:
    sums = torch.zeros(5, dtype=torch.float64)
    for weight, terms in parts:
        each = (terms.total, terms.ce_labelled, terms.ce_unlabelled, terms.r1, terms.r2)
        sums += weight * torch.tensor([float(term.detach()) for term in each], dtype=torch.float64)
    total, ce_labelled, ce_unlabelled, r1, r2 = sums.tolist()
    return ObjectiveValue(total=total, ce_labelled=ce_labelled, ce_unlabelled=ce_unlabelled, r1=r1, r2=r2)


def _log_probs(problem: Problem, model: nn.Module, images: ImageSet, cut: slice) -> Tensor:
    images_BCHW = images.images_NCHW[cut].to(problem.device)
    return torch.log_softmax(model(augment.to_input(images_BCHW, problem.image)), dim=-1)


def _sets(data: SiloData) -> list[ImageSet]:
    return [each for each in (data.labelled, data.unlabelled) if each is not None and len(each)]


def _loaded(problem: Problem, w: Mapping[str, Tensor]) -> nn.Module:
    with named_randomness(problem.seed, "unused_weights"):
        model = problem.build_model()
    tensors.load_into(model, w)
    return model.to(problem.device)


def _evaluable(problem: Problem, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None) -> nn.Module:
    model = _loaded(problem, w)
    batch_norm.load(model, statistics_of(problem, w) if statistics is None else statistics)
    return model.eval()
