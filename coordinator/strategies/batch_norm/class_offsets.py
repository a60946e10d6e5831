"""What other batch-norm statistics do to the logits of the classes, and the classifier's bias that makes up for it.

The coordinator's steps on its labels normalise by batches of these, in which the classes are as frequent as among the
labels. Statistics of the silos' images have the silos' class shares and devices. Where the labels are imbalanced, all
logits of some classes then rise and of others fall, whatever the image
(docs/decisions/0107-offsets-of-batch-norm-statistics.md). What other devices do to the logits of the labelled images
says nothing of the silos' images; so only that part is made up for which goes along the logarithm of the label shares,
as other shares would have it (docs/decisions/0112-offsets-along-the-label-shares.md).

Tests: tests/coordinator/strategies/batch_norm/test_class_offsets.py.

Shapes: N images, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisilo.common.data.form import ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm
from semisilo.common.learning.averaged_training import log_prior
from semisilo.common.learning.evaluation import logits_of

__all__ = ["class_offsets", "classifier_bias", "with_offsets"]

_AS_GOOD_AS_EQUAL = 0.02
"""Of the largest logit: those of 16 bits have two or three digits."""


def class_offsets(model: nn.Module, labelled: ImageSet, form: ImageForm, *, before: Mapping[str, Tensor],
                  after: Mapping[str, Tensor], num_classes: int) -> dict[str, Tensor]:
    """By how much statistics raise the logits of classes that have more labels, by the name of the bias to subtract it
    from.

        o = (r . l) / (l . l) l
        r = mean over classes c of mean over images i of c of (f_after(x_i) - f_before(x_i))
        l = log n less its mean, n the labelled images of each class as in `log_prior`

    {} where the labels are balanced, where the network's last layer has no bias for every class, or it is frozen, and
    where a logit is not finite.
    Args:
        model: on any device; is left in evaluation mode with the statistics `after`.
        labelled: each of one class; at least one image.
        before, after: static batch-norm statistics.
    Returns: float32 (K,) for one name, or nothing.
    """
    assert labelled.labels_N is not None
    labels_N = labelled.labels_N.cpu()
    name, prior_K = classifier_bias(model, num_classes), log_prior(labels_N, num_classes)
    if name is None or prior_K is None:
        return {}
    model.eval()
    batch_norm.load(model, before)
    logits_NK = logits_of(model, labelled.images_NCHW, form).double().cpu()
    batch_norm.load(model, after)
    raised_NK = logits_of(model, labelled.images_NCHW, form).double().cpu() - logits_NK
    of_classes = [raised_NK[labels_N == kind].mean(dim=0) for kind in sorted(set(labels_N.tolist()))]
    along_K = prior_K.double() - prior_K.double().mean()
    offset_K = (torch.stack(of_classes).mean(dim=0) @ along_K / (along_K @ along_K) * along_K).float()
    sound = bool(torch.isfinite(offset_K).all()) and _moves_logits(model, name, labelled, form)
    return {name: offset_K} if sound else {}


def classifier_bias(model: nn.Module, num_classes: int) -> str | None:
    """The parameter that is added to the logits: the bias of the last linear layer, if it has one for every class and
    is trained."""
    linear = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        return None
    name, layer = linear[-1]
    if layer.out_features != num_classes or layer.bias is None or not layer.bias.requires_grad:
        return None
    return f"{name}.bias".lstrip(".")


def _moves_logits(model: nn.Module, name: str, labelled: ImageSet, form: ImageForm) -> bool:
    """Whether the logits are moved by as much as that parameter is, as a network of somebody's own may not be."""
    bias_K, image_1CHW = model.get_parameter(name), labelled.images_NCHW[:1]
    moved_K = torch.arange(1.0, len(bias_K) + 1, device=bias_K.device)
    before_1K = logits_of(model, image_1CHW, form).float()
    kept_K = bias_K.detach().clone()
    with torch.no_grad():
        bias_K.add_(moved_K)
        after_1K = logits_of(model, image_1CHW, form).float()
        bias_K.copy_(kept_K)
    largest = float(torch.maximum(before_1K.abs(), after_1K.abs()).max())
    return torch.allclose(after_1K - before_1K, moved_K[None], atol=_AS_GOOD_AS_EQUAL * largest)


def with_offsets(parameters: Mapping[str, Tensor], offsets: Mapping[str, Tensor], *, sign: float) -> dict[str, Tensor]:
    """The parameters with sign times the offsets added to theirs."""
    return {name: tensor + sign * offsets[name].to(tensor) if name in offsets else tensor
            for name, tensor in parameters.items()}
