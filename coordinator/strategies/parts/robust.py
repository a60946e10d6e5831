"""How the updates of a round are weighed when some may lie: the bound on their lengths and the rules of table [robust].

Every rule but two gives each update one weight, which then takes the place of the method's own in its weighted sum.
Median and trimmed mean are no such sum: their result stands in the tally, and folding adds nothing to it. None of them
knows the method's weights: silos count alike, whatever number of images they announce.

Tests: tests/coordinator/strategies/parts/test_robust.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from semisilo.common.errors import BadConfiguration
from semisilo.common.learning import tensors
from semisilo.common.learning.robust.coordinatewise import trimmed_mean
from semisilo.common.learning.robust.fltrust import trust_weights
from semisilo.common.learning.robust.geometric_median import geometric_median_weights
from semisilo.common.learning.robust.inner_products import inner_products, squared_distances
from semisilo.common.learning.robust.krum import multi_krum
from semisilo.common.learning.robust.norms import clip_factors, norm_limit
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.methods.contract import Environment, Updates
from semisilo.common.methods.parts.imbalance import ImbalanceSettings
from semisilo.common.methods.parts.robust import RobustSettings, fewest_updates
from semisilo.coordinator.strategies.parts.averaging import AverageTally
from semisilo.coordinator.strategies.parts.judge import Judge
from semisilo.coordinator.strategies.parts.labelled_training import model_at_coordinator, train_on_labels

__all__ = ["CUT", "GONE", "Bounded", "RobustAveraging", "bounded"]

_LOG = logging.getLogger("semisilo.coordinator")

_LITTLE = 0.1
"""Of its plain share: an update that the judge lets count less is left out as far as anybody is told."""
CUT = "an update was shortened to the bound of [robust]"
GONE = "silo {} takes no part any more"
"""Why a sum of control variates is begun anew."""

T = TypeVar("T", bound=AverageTally)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounded:
    """What the bound makes of the updates of a phase."""

    factors: tuple[float, ...]
    """What each is multiplied by; 1 where nothing is cut."""
    norms: tuple[float, ...]
    """As they came."""
    limit: float | None
    """None where there is none."""

    @property
    def cuts(self) -> bool:
        """Whether an update is shortened."""
        return any(factor != 1.0 for factor in self.factors)

    def metrics(self) -> dict[str, float]:
        """Of a round in which it cuts; empty else."""
        if not self.cuts or self.limit is None:
            return {}
        return {"updates_cut": float(sum(factor != 1.0 for factor in self.factors)), "update_norm_limit": self.limit}


def bounded(settings: RobustSettings, updates: Updates, group: str, *, stretches_N: Sequence[float] | None = None,
            own: float | None = None, round: int) -> Bounded:
    """The bound on the lengths of a group.

    Args:
        stretches_N: by how much more than its plain weight a method counts each update; None for 1.
        own: length of the coordinator's own step, where it has made one.
    """
    to_median = settings.rule in ("norm_clipping", "judge")
    factor = settings.length_bound
    norms = tuple(updates.norms(group))
    if stretches_N is not None:
        norms = tuple(norm * stretch for norm, stretch in zip(norms, stretches_N, strict=True))
    limit = norm_limit(norms, factor=factor, own=own) if factor else None
    found = Bounded(factors=tuple(clip_factors(norms, limit)), norms=norms, limit=limit)
    if found.cuts and not to_median:
        for header, norm, cut in zip(updates.headers, norms, found.factors, strict=True):
            if cut != 1.0:
                _LOG.warning("round %d: the update of silo %s is %.1f times as long as the median one and is shortened "
                             "to %g times", round, header.silo, norm / (limit or 1.0) * factor, factor)
    return found


class RobustAveraging:
    """Of one study's coordinator. Holds no state of the study."""

    def __init__(self, environment: Environment, settings: object) -> None:
        """
        Args:
            settings: of the method; their learning of labelled images is what "fltrust" steps by.
        Raises: BadConfiguration where the rule looks at labelled images and there are none.
        """
        self._environment = environment
        self._settings = environment.robust
        self._method = settings
        self._labelled = None
        rule, data = self._settings.rule, environment.data
        if rule == "fltrust":
            self._labelled = data.labelled
            if data.labelled is None or data.labelled.labels_N is None or not len(data.labelled):
                raise BadConfiguration('[robust] rule = "fltrust" needs labelled images at the coordinator, to step on;'
                                       " there are none.",
                                       remedy='Choose another rule; "judge" can look at [data] validation.')
        self._judge = Judge(environment) if rule == "judge" else None

    def appraised(self, tally: T, updates: Updates, *, group: str, w: Mapping[str, Tensor], lr: Callable[[], float],
                  stretches_N: Sequence[float] | None = None, round: int) -> tuple[T, dict[str, float]]:
        """The tally of a training phase with the weights of the rule; the same object where nothing changes.

        Args:
            group: that is averaged.
            w: the model that the silos started from.
            lr: gives the learning rate of the round, for a step of its own.
            stretches_N: the tally's weights over the plain ones, such as FedNova's tau_eff / tau_k; None for 1.
        Returns: the tally, and numbers about what was done.
        """
        settings, count = self._settings, len(updates.headers)
        if not count or self._environment.silo_noise is not None:
            return tally, {}  # the bound of the updates' median length would follow from all silos; each is clipped
        if count < (least := fewest_updates(settings)):
            _LOG.warning('round %d: nothing of %d updates is taken over: rule = "%s" with byzantine_silos = %d needs'
                         " %d", round, count, settings.rule, settings.byzantine_silos, least)
            return _settled(tally, None), {"updates_left_out": float(count)}
        own = self._own_step(w, lr=lr, round=round)
        bound = bounded(settings, updates, group, stretches_N=stretches_N, round=round,
                        own=None if own is None else tensors.norm(own))
        if settings.rule in ("none", "norm_clipping"):
            if not bound.cuts:
                return tally, {}
            weights = {header.silo: tally.weights[header.silo] * factor
                       for header, factor in zip(updates.headers, bound.factors, strict=True)}
            return replace(tally, weights=weights), bound.metrics()
        stretches = [1.0] * count if stretches_N is None else list(stretches_N)
        scales = [factor * stretch for factor, stretch in zip(bound.factors, stretches, strict=True)]
        if settings.rule in ("coordinate_median", "trimmed_mean"):
            trim = settings.byzantine_silos if settings.rule == "trimmed_mean" else (count - 1) // 2
            return _settled(tally, self._by_coordinate(updates, group, scales, trim=trim, like=w)), bound.metrics()
        weights_N, told = self._weights(updates, group, bound, scales=scales, w=w, own=own, round=round,
                                        voices=_voices([tally.weights[header.silo] for header in updates.headers]))
        if not any(weights_N):
            _LOG.warning('round %d: nothing of %d updates is taken over: rule = "%s" trusts none of them', round, count,
                         settings.rule)
            return _settled(tally, None), {**bound.metrics(), **told}
        weights = {header.silo: weight * scale
                   for header, weight, scale in zip(updates.headers, weights_N, scales, strict=True)}
        return replace(tally, weights=weights), {**bound.metrics(), **told}

    def _weights(self, updates: Updates, group: str, bound: Bounded, *, scales: Sequence[float],
                 voices: Sequence[float], w: Mapping[str, Tensor], own: Mapping[str, Tensor] | None, round: int
                 ) -> tuple[list[float], dict[str, float]]:
        """What each scaled update is multiplied by, and numbers about it."""
        settings, count = self._settings, len(scales)
        if self._judge is not None:
            found = self._judge.weights(w, updates, group, scales=scales, plain=voices, round=round)
            little = [weight < _LITTLE * share for weight, share in zip(found, voices, strict=True)]
            for header, weight, few in zip(updates.headers, found, little, strict=True):
                if few and weight:
                    _LOG.warning("round %d: the update of silo %s counts less than a tenth of its share: the mean is"
                                 " better on the coordinator's images with less of it", round, header.silo)
            return found, {"updates_left_out": float(sum(little))}
        if own is not None:
            lengths = [norm * factor for norm, factor in zip(bound.norms, bound.factors, strict=True)]
            products = [product * scale for product, scale in zip(_products_with(updates, group, own), scales,
                                                                   strict=True)]
            found = trust_weights(products, lengths, tensors.norm(own))
            return found, {"updates_left_out": float(sum(weight == 0 for weight in found))}
        scale_N = torch.tensor(scales, dtype=torch.float64)
        products_NN = inner_products(updates.blocks(group)) * scale_N[:, None] * scale_N[None, :]
        if settings.rule == "geometric_median":
            return geometric_median_weights(products_NN, voices), {}
        chosen = multi_krum(squared_distances(products_NN), settings.byzantine_silos)
        return ([1.0 / len(chosen) if index in chosen else 0.0 for index in range(count)],
                {"updates_left_out": float(count - len(chosen))})

    def _by_coordinate(self, updates: Updates, group: str, scales: Sequence[float], *, trim: int,
                       like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        flat = torch.cat([trimmed_mean(block_NB * torch.tensor(scales, dtype=block_NB.dtype)[:, None], trim=trim)
                          for block_NB in updates.blocks(group)])
        order = updates.read(0)[group].tensors
        parts = torch.split(flat, [tensor.numel() for tensor in order.values()])
        found = {name: part.reshape(order[name].shape).to(order[name].dtype) for name, part
                 in zip(order, parts, strict=True)}
        return {name: found[name] for name in like}

    def _own_step(self, w: Mapping[str, Tensor], *, lr: Callable[[], float], round: int) -> dict[str, Tensor] | None:
        """d_0: what as many passes over the coordinator's labels as silos take over their images make of w; None where
        the rule needs none."""
        if self._labelled is None:
            return None
        settings, environment = self._method, self._environment
        model = model_at_coordinator(environment, w, round=round)
        train_on_labels(model, self._labelled, environment, epochs=getattr(settings, "local_epochs", 1), momentum=None,
                        batch_size=getattr(settings, "labelled_batch", 10), purpose="own_step", round=round,
                        sgd=sgd_settings(settings, lr(), nesterov=getattr(settings, "nesterov", False)),  # type: ignore[arg-type]
                        text="a step to compare silos with",
                        imbalance=settings if isinstance(settings, ImbalanceSettings) else ImbalanceSettings())
        return tensors.subtract(tensors.parameters_of(model), w)


def _settled(tally: T, delta: dict[str, Tensor] | None) -> T:
    return replace(tally, delta=delta, settled=True)


def _voices(weights: Sequence[float]) -> list[float]:
    """What rules that start from weights start from: the same of every update that has any weight, sum 1. From the
    method's own, three silos that announce a billion images would have all of the start, and learning ends near it."""
    there = sum(weight > 0 for weight in weights)
    return [(1.0 / there if weight > 0 else 0.0) if there else 1.0 / len(weights) for weight in weights]


def _products_with(updates: Updates, group: str, own: Mapping[str, Tensor]) -> list[float]:
    """<d_k, d_0> of every update."""
    order = updates.read(0)[group].tensors
    own_D = torch.cat([own[name].reshape(-1) for name in order])
    start, total_N = 0, torch.zeros(len(updates.headers), dtype=torch.float64)
    for block_NB in updates.blocks(group):
        width = block_NB.shape[1]
        total_N += block_NB.double() @ own_D[start:start + width].double()
        start += width
    return [float(product) for product in total_N]
