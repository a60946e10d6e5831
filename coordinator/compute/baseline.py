"""The labelled-only line: the same network trained on the coordinator's labels alone, as well as they allow.

Source: SemiFL's "partially supervised" bound (Diao et al., NeurIPS 2022, Table 1): SGD 0.1 on a cosine over 400 epochs,
momentum 0.9 (Nesterov), weight decay 5e-4, gradient norm at most 1, batches of 250, or of 10 for 1000 labels and fewer,
weak augmentation, batch-norm statistics of the labelled images. The last epoch counts, not the best.
"""

from __future__ import annotations

from dataclasses import dataclass

from semisilo.common.errors import BadData
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.evaluation import Evaluation, evaluate
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import SGDSettings, check_finite, cosine_lr, named_randomness, train_labelled
from semisilo.common.methods.contract import Environment
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.ledger.records import HistoryPoint

__all__ = ["LabelledOnly", "train_labelled_only"]

_EPOCHS = 400
_LR = 0.1
_MANY_LABELS = 1000
_POINTS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledOnly:
    """What labels alone give."""

    evaluation: Evaluation
    """Of the last epoch, on the test images."""
    history: tuple[HistoryPoint, ...]
    """About 20 points, evenly spaced; the last is the last epoch."""
    epochs: int
    lr: float
    batch_size: int
    steps: int
    num_labelled: int


def train_labelled_only(environment: Environment, *, epochs: int | None = None, lr: float = _LR,
                        batch_size: int | None = None) -> LabelledOnly:
    """Trains from the study's own initial model and evaluates on its test images.

    Args:
        epochs: passes over the labelled images; the paper's 400 when None.
        lr: learning rate of the first epoch; falls to 0 on a cosine.
        batch_size: None gives the paper's, 10 up to 1000 labels and 250 above.
    Raises: BadData without labelled or test images.
    """
    labelled, test = environment.data.labelled, environment.data.test
    if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
        raise BadData("The labelled-only line needs labelled images at the coordinator; there are none.",
                      remedy="Name them in [data] labelled of the study.")
    if test is None or len(test) == 0:
        raise BadData("The labelled-only line needs test images; there are none.",
                      remedy="Name them in [data] test of the study.")
    form, total = environment.image, _EPOCHS if epochs is None else epochs
    size = batch_size or (250 if len(labelled) > _MANY_LABELS else 10)
    with named_randomness(environment.seed, "unused_weights"):
        model = environment.build_model()
    tensors.load_into(model, initial_model(environment.build_model, environment.seed))
    model.to(environment.device)
    history: list[HistoryPoint] = []

    def measured() -> Evaluation:
        found = batch_norm.measure(model, labelled.images_NCHW, form=form,
                                   generator=torch_generator(environment.seed, "labelled_only_batch_norm"))
        batch_norm.load(model, batch_norm.to_tensors(found))
        return evaluate(model, test, form=form)

    def after_epoch(epoch: int, loss: float) -> None:
        if epoch % max(1, total // _POINTS) == 0 or epoch == total:
            history.append(HistoryPoint(epoch, loss if loss == loss else 0.0, measured().accuracy))

    result = train_labelled(
        model, labelled, form=form, augmentation=environment.augmentation, sgd=SGDSettings(lr=lr), epochs=total,
        batch_size=size, seed=environment.seed, purpose="labelled_only",
        lr_of_epoch=lambda epoch: cosine_lr(lr, round=epoch, rounds=total), after_epoch=after_epoch,
        progress=lambda share: environment.report(share, f"training on {len(labelled)} labelled images only"))
    check_finite(tensors.parameters_of(model), where="on labels only")
    return LabelledOnly(evaluation=measured(), history=tuple(history), epochs=total, lr=lr, batch_size=size,
                        steps=result.steps, num_labelled=len(labelled))
