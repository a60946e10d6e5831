"""FedRGD's aggregation: the accepted updates fall into groups at random, each group is averaged with the coordinator.

Source: Zhang et al., "Improving Semi-supervised Federated Learning by Reducing the Gradient Diversity of Models"
(arXiv 2008.11364v2), with the true size of every group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from semisilo.common.learning import tensors

__all__ = ["group_mean", "mean_of_groups", "split_into_groups"]


def split_into_groups(silos: Sequence[str], num_groups: int, generator: torch.Generator) -> dict[str, int]:
    """Which group 0, 1, ... every silo falls into, at random: sizes differ by one at most, the first are the larger.

    There are never more groups than silos: an empty one would average the coordinator's model with nothing.

    Args:
        silos: in silo order; may be empty.
        num_groups: S >= 1.
        generator: on the CPU; advanced.
    """
    order = torch.randperm(len(silos), generator=generator).tolist()
    groups = min(num_groups, len(silos))
    chosen = {silos[index]: position % groups for position, index in enumerate(order)}
    return {silo: chosen[silo] for silo in silos}


def group_mean(coordinator: Mapping[str, Tensor], group_sum: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """w_avg,i = (w_s + sum of the w_k in group i) / (|G_i| + 1), as new tensors; oracle B9.

    Linear, so it may be given differences from a common model, and then gives the difference of the mean.

    Args:
        coordinator: w_s.
        group_sum: sum over the group, same layout.
        size: |G_i|.
    Raises: LayoutMismatch.
    """
    return {name: tensor / (size + 1) for name, tensor in tensors.add(coordinator, group_sum).items()}


def mean_of_groups(means: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """w_avg = 1/S sum_i w_avg,i, as new tensors: every group counts the same, whatever its size; oracle B9.

    Args:
        means: at least one, of one layout.
    Raises: LayoutMismatch.
    """
    total: Mapping[str, Tensor] = means[0]
    for mean in means[1:]:
        total = tensors.add(total, mean)
    return {name: tensor / len(means) for name, tensor in total.items()}
