"""What the coordinator finds out about a model: its accuracy and loss on validation images, its answer to noise.

Source: FedMatch, Jeong et al.: reliability arXiv v1 Eq. 4, embeddings ICLR 2021 section 3.1 and official code.

Tests: tests/coordinator/strategies/fedmatch/test_strategy.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import Evaluation, evaluate_classes
from semisilo.common.learning.training import unloaded_model
from semisilo.common.methods.contract import Environment
from semisilo.coordinator.strategies.fedmatch.helpers import noise_image

__all__ = ["embedding_of", "measured_on_validation", "network_with", "validation_images"]


def validation_images(environment: Environment) -> ImageSet | None:
    """The coordinator's labelled validation images; None where there are none."""
    validation = environment.data.validation
    usable = validation is not None and len(validation) > 0 and validation.labels_N is not None
    return validation if usable else None


def network_with(environment: Environment, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> nn.Module:
    """A network with these weights on the study's device.

    Args:
        statistics: of static batch-norm; empty where the network has none, or they are not needed.
    Raises: LayoutMismatch.
    """
    network = unloaded_model(environment.build_model, seed=environment.seed, device=environment.device)
    tensors.load_into(network, w)
    if statistics:
        batch_norm.load(network, statistics)
    return network


def measured_on_validation(environment: Environment, w: Mapping[str, Tensor],
                           statistics: Mapping[str, Tensor]) -> Evaluation:
    """Accuracy and loss on the validation set, which must be there."""
    validation = validation_images(environment)
    assert validation is not None
    return evaluate_classes(network_with(environment, w, statistics), validation, form=environment.image)


def embedding_of(environment: Environment, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> list[float]:
    """m = softmax f_w(a), a the study's noise image: one number per class, not finite if the model's are not."""
    noise_BCHW = noise_image(environment.seed, channels=environment.image.channels, size=environment.image.size)
    # On the scale 0 to 255, as images of the study are: with mean 0 and std 1 it becomes the published input.
    inputs_BCHW = augment.to_input((noise_BCHW * 255).to(environment.device), environment.image)
    with torch.no_grad():
        prob_BK = torch.softmax(network_with(environment, w, statistics).eval()(inputs_BCHW).double(), dim=-1)
    return [float(value) for value in prob_BK[0]]
