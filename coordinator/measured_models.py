"""What the coordinator finds out about a model: its accuracy and loss on validation images, its answer to noise.

Source: FedMatch, Jeong et al.: reliability arXiv v1 Eq. 4, embeddings ICLR 2021 section 3.1 and official code.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from common import batch_norm, tensors
from common.data import augment
from common.data.image_set import ImageSet
from common.evaluation import Evaluation, evaluate
from common.exchange import Environment
from common.training import named_randomness
from coordinator.helper_choice import noise_image

__all__ = ["MeasuredModels"]


class MeasuredModels:
    """Measures one model after the other in one network, of which every weight and statistic is overwritten."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._network: nn.Module | None = None
        validation = environment.data.validation
        usable = validation is not None and len(validation) > 0 and validation.labels_N is not None
        self.validation: ImageSet | None = validation if usable else None
        """None where there are no labelled ones."""

    def loaded(self, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> nn.Module:
        """The network with these weights on the study's device; good until the next call.

        Args:
            statistics: of static batch-norm; empty where the network has none, or they are not needed.
        Raises: LayoutMismatch.
        """
        if self._network is None:
            with named_randomness(self._environment.seed, "unused_weights"):
                self._network = self._environment.build_model().to(self._environment.device)
        tensors.load_into(self._network, w)
        if statistics:
            batch_norm.load(self._network, statistics)
        return self._network

    def on_validation(self, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> Evaluation:
        """Accuracy and loss on the validation set, which must be there."""
        assert self.validation is not None
        return evaluate(self.loaded(w, statistics), self.validation, form=self._environment.image)

    def embedding(self, w: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> list[float]:
        """m = softmax f_w(a), a the study's noise image: one number per class, not finite if the model's are not."""
        environment = self._environment
        noise_BCHW = noise_image(environment.seed, channels=environment.image.channels, size=environment.image.size)
        # On the scale 0 to 255, as images of the study are: with mean 0 and std 1 it becomes the published input.
        inputs_BCHW = augment.to_input((noise_BCHW * 255).to(environment.device), environment.image)
        with torch.no_grad():
            prob_BK = torch.softmax(self.loaded(w, statistics).eval()(inputs_BCHW).double(), dim=-1)
        return [float(value) for value in prob_BK[0]]
