"""FedMatch with labels at the coordinator: sigma learns from the coordinator's labels, psi stands still.

Shapes: N labelled images, B in a batch.
Source: FedMatch, Jeong et al. (ICLR 2021) Eq. 6, "labels-at-server".

Tests: tests/coordinator/strategies/fedmatch/test_strategy.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.decomposition import Decomposed
from semisilo.common.learning.imbalance.labels import adjusted_loss, epoch_order
from semisilo.common.learning.running_mean import RunningMean
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import sgd_settings
from semisilo.common.learning.training import check_finite, named_randomness, unloaded_model
from semisilo.common.methods.contract import Environment
from semisilo.common.methods.fedmatch import FedMatchSettings

__all__ = ["SigmaTraining", "train_sigma"]

_LOG = logging.getLogger("semisilo.coordinator")


@dataclass(frozen=True, kw_only=True, slots=True)
class SigmaTraining:
    """What `coordinator_epochs` leave behind."""

    sigma: dict[str, Tensor]
    momentum: dict[str, Tensor]
    loss: float
    """Mean cross-entropy over the images of the last epoch, without lambda_s; 0 where there was no step."""


def train_sigma(environment: Environment, settings: FedMatchSettings, labelled: ImageSet, *,
                sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor], momentum: Mapping[str, Tensor] | None,
                lr: float, round: int) -> SigmaTraining:
    """`coordinator_epochs` of SGD on lambda_s * CE(y, f_{sigma + psi*}(x)), in a new order in every epoch.

    Args:
        momentum: buffers to go on from; None starts anew.
        round: that has just ended; names the random streams.
    Raises: ComputeFailed when training diverges.
    """
    model = unloaded_model(environment.build_model, seed=environment.seed, round=round, device=environment.device)
    network = Decomposed(model, sigma, psi, sgd=sgd_settings(settings, lr), sigma_momentum=momentum)
    order, views = (torch_generator(environment.seed, purpose, round=round) for purpose in ("sigma_order",
                                                                                            "sigma_views"))
    labels_N = labelled.labels_N
    assert labels_N is not None
    balance_N = labels_N if settings.labelled_sampling == "class_balanced" else None
    loss_of = adjusted_loss(labels_N, settings.logit_adjustment)
    done = skipped = 0
    mean = RunningMean()
    model.train()
    with named_randomness(environment.seed, "sigma_model", round=round, device=environment.device):
        for _ in range(settings.coordinator_epochs):
            mean = RunningMean()
            for index_B in torch.split(epoch_order(len(labelled), order, balance_N=balance_N),
                                       settings.labelled_batch):
                images_BCHW = labelled.images_NCHW[index_B].to(environment.device)
                if settings.augment_train:
                    images_BCHW = augment.weak(images_BCHW, environment.augmentation, views)
                done += len(index_B)
                try:
                    loss = network.sigma_step(augment.to_input(images_BCHW, environment.image),
                                              labels_N[index_B].to(environment.device), settings.lambda_s,
                                              loss_of=loss_of)
                    mean.add(loss, count=len(index_B))
                except OneValuePerChannel:
                    skipped += 1
                environment.report(0.9 * done / (settings.coordinator_epochs * len(labelled)),
                                   f"training sigma on {len(labelled)} labelled images")
    if skipped:
        _LOG.warning("%d batches were skipped: one value per channel at a batch-norm layer", skipped)
    trained, _ = network.parts()
    check_finite(trained, where=f"at the coordinator in round {round}")
    return SigmaTraining(sigma=trained, momentum=network.sigma_momentum(),
                         loss=mean.value(otherwise=0.0))
