"""Whether this site's images look like the study's to the network: what its batch-norm layers see of them, against the
statistics that came with a task.

Mean and deviation of the pixels (`semisilo.common.data.preview.likeness`) say nothing of noise, and little where each
image is standardised by its own. Batch-norm statistics are means and variances of the network's own features over the
images of the coordinator and of the silos, this one's among them. Nothing of it leaves this site.

Shapes: C channels of a layer.

Tests: tests/silo/compute/test_feature_likeness.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from semisilo.common.data.preview.likeness import FEWEST_IMAGES
from semisilo.common.errors import SemisiloError
from semisilo.common.learning import batch_norm
from semisilo.common.methods.contract import SiloData, TaskSpec
from semisilo.silo.site.study_features import StudyFeatures, note_study_features

__all__ = ["compare_features", "feature_distances"]

_LOG = logging.getLogger("semisilo.work")
_SAMPLE = 64
"""As many images as `silo check` looks at: ResNet-18 at 224 pixels takes some seconds for them on a CPU."""
_LEAST_VARIANCE = 1e-12


def feature_distances(site: batch_norm.Statistics, study: Mapping[str, Tensor]) -> dict[str, float]:
    """For each layer that both know sqrt(mean over C of ((m - M)^2 + (s - S)^2) / S^2), with m and s mean and standard
    deviation of a channel at the site, M and S the study's. 0 where they are equal.

    Args:
        study: "<layer>.mean" and "<layer>.var", (C,) each.
    Source: the Frechet distance of Gaussians with diagonal covariances (Dowson and Landau, "The Frechet distance
    between multivariate normal distributions", 1982), each channel in the study's standard deviations.
    """
    found = {}
    for layer, own in site.items():
        mean_C, var_C = (study.get(f"{layer}.{part}") for part in ("mean", "var"))
        if mean_C is None or var_C is None or mean_C.shape != own.mean.shape:
            continue
        M_C, S2_C = mean_C.double().cpu(), var_C.double().cpu().clamp_min(_LEAST_VARIANCE)
        squares_C = (own.mean.cpu() - M_C).square() + (own.var.cpu().sqrt() - S2_C.sqrt()).square()
        found[layer] = float((squares_C / S2_C).mean().sqrt())
    return found


def compare_features(task: TaskSpec, model: nn.Module, data: SiloData, study: Mapping[str, Tensor],
                     file: Path) -> None:
    """Compares up to 64 images of this site with the study's, takes note of it for `silo check` and `silo data`, and
    warns where they are unlike. Nothing where there are fewer than 20 images or no such layers. What goes wrong costs
    nothing but the note.

    Args:
        model: with the task's parameters and statistics, in evaluation mode.
        study: those statistics, as of `feature_distances`.
        file: of `semisilo.silo.site.study_features`.
    """
    images_NCHW = _sample(data)
    if images_NCHW is None:
        return
    try:
        site = batch_norm.measure(model, images_NCHW, form=task.image,
                                  generator=torch.Generator().manual_seed(task.seed), batch_size=_SAMPLE)
        distances = feature_distances(site, study)
        if not distances or not all(map(np.isfinite, distances.values())):
            return
        layer = max(distances, key=lambda name: distances[name])
        found = StudyFeatures(study=task.study, round=task.round, images=len(images_NCHW), layer=layer,
                              distance=distances[layer])
        note_study_features(file, found)
    except (SemisiloError, OSError, RuntimeError, ValueError) as error:
        _LOG.debug("features were not compared: %s", error)
        return
    if found.is_unlike:
        _LOG.warning("%s. Look at them: silo data", found.text)


def _sample(data: SiloData) -> Tensor | None:
    """Of the unlabelled and labelled images together, evenly; None of too few."""
    sets = [each.images_NCHW for each in (data.unlabelled, data.labelled) if each is not None]
    number = sum(map(len, sets))
    if number < FEWEST_IMAGES:
        return None
    wanted = np.linspace(0, number - 1, min(_SAMPLE, number)).round().astype(np.int64)
    parts, first = [], 0
    for images_NCHW in sets:
        mine = wanted[(wanted >= first) & (wanted < first + len(images_NCHW))] - first
        parts.append(images_NCHW[torch.from_numpy(mine)])
        first += len(images_NCHW)
    return torch.cat(parts)
