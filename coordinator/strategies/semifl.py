"""SemiFL at the coordinator: uniform averaging, server momentum, fine-tuning on labels, static batch-norm statistics.

Source: Diao, Ding and Tarokh, "SemiFL", NeurIPS 2022, section 3 and algorithm 1.

| when       | phases                                   | what a phase's end does                                    |
|------------|------------------------------------------|------------------------------------------------------------|
| round 0    | none                                     | fine-tune with lr_1, measure statistics on the labels      |
| each round | train                                    | average, momentum, fine-tune with lr_t, measure statistics |
|            | statistics, if silos give theirs as well | merge what silos measured with what the labels gave        |

With `sbn_source = "coordinator+silos"` the statistics phase stands behind the fine-tuning whose weights it measures, so
that the round's evaluation and the next round's labelling both use it; round 1 has one more in front, since silos have
not yet measured the weights of round 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from common import batch_norm, tensors
from common.batch_norm import Statistics
from common.data.image_set import ImageSet
from common.errors import BadConfiguration, BadData, BadPayload
from common.exchange import Environment, GroupLayout, Meaning, Phase, SiloState, Task, TensorGroup, UpdateHeader
from common.methods import SemiFLSettings
from common.seeds import torch_generator
from common.training import SGDSettings, check_finite, cosine_lr, named_randomness, train_labelled

__all__ = ["STATISTICS", "TRAIN", "SemiFLState", "SemiFLStrategy", "SemiFLTally", "apply_global_momentum"]

_LOG = logging.getLogger("semisilo.coordinator")

TRAIN = Phase("train")
STATISTICS = Phase("statistics", asks="roster", quorum="any")


@dataclass(frozen=True, kw_only=True)
class SemiFLState:
    """Everything that survives a round."""

    round: int
    """The round that gave this state."""
    w: dict[str, Tensor]
    """The fine-tuned global model."""
    global_buf: dict[str, Tensor] | None
    """Server momentum; None until a round accepts an update."""
    opt_buf: dict[str, Tensor] | None
    """SGD momentum of fine-tuning, which goes on over the rounds."""
    batch_norm: dict[str, Tensor]
    """"<layer>.mean" and "<layer>.var", measured with `w`; empty for a network without static batch-norm."""
    own_statistics: dict[str, Tensor]
    """What the labelled images alone gave, with counts: the coordinator's part of the statistics phase."""
    fine_tune_loss: float
    """Mean cross-entropy of the last fine-tuning epoch; 0 where there was none."""


@dataclass(frozen=True, kw_only=True)
class SemiFLTally:
    """A phase being folded."""

    weights: dict[str, float] = field(default_factory=dict)
    """p_k by silo, summing to 1; empty when no update was accepted, and in the statistics phase."""
    delta: dict[str, Tensor] | None = None
    """sum p_k (w_k - w) so far."""
    statistics: dict[str, Tensor] | None = None
    """Batch-norm statistics merged so far, with counts, float64."""


class SemiFLStrategy:
    """The coordinator half of SemiFL."""

    State = SemiFLState
    Tally = SemiFLTally

    def __init__(self, settings: SemiFLSettings, environment: Environment) -> None:
        """Raises: BadConfiguration or BadData when there is nothing at the coordinator to learn from."""
        if settings.scenario != "labels-at-coordinator":
            raise BadConfiguration(f"SemiFL is not defined for the scenario '{settings.scenario}'.",
                                   remedy='Set [method] scenario = "labels-at-coordinator".')
        labelled = environment.data.labelled
        if labelled is None or len(labelled) == 0 or labelled.labels_N is None:
            raise BadData("SemiFL needs labelled images at the coordinator; there are none.",
                          remedy="Name them in [data] labelled of the study.")
        self._settings = settings
        self._environment = environment
        self._labelled: ImageSet = labelled
        self._served: tuple[SemiFLState, TensorGroup, TensorGroup | None] | None = None

    # Round 0 ----------------------------------------------------------------------------------------------------------

    def start(self, initial: Mapping[str, Tensor]) -> SemiFLState:
        """Fine-tunes the initial model with lr_1 and measures its statistics."""
        return self._fine_tune(self._loaded(initial, round=0), global_buf=None, opt_buf=None, round=0)

    # A round ----------------------------------------------------------------------------------------------------------

    def phases(self, state: SemiFLState, round: int) -> tuple[Phase, ...]:
        """See the table at the top of the module."""
        if self._settings.sbn_source == "coordinator" or not state.batch_norm:
            return (TRAIN,)
        return (STATISTICS, TRAIN, STATISTICS) if round == 1 else (TRAIN, STATISTICS)

    def task(self, state: SemiFLState, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """The model; for training also its batch-norm statistics and lr_t."""
        model, statistics = self._groups(state)
        if phase.name == STATISTICS.name:
            return Task(groups={"model": model})
        groups = {"model": model} if statistics is None else {"model": model, "batch_norm": statistics}
        return Task(groups=groups, settings={"round_lr": self._lr(round)})

    def expects(self, state: SemiFLState, phase: Phase, *, round: int) -> dict[str, GroupLayout]:
        """A difference to the model that was sent, or batch-norm statistics with counts."""
        if phase.name == STATISTICS.name:
            return {"batch_norm": GroupLayout(Meaning.VALUES, "", tensors.specs(_wire_form(state.own_statistics)))}
        model, _ = self._groups(state)
        return {"model": GroupLayout(Meaning.DIFFERENCE, model.digest, tensors.specs(state.w))}

    def begin(self, state: SemiFLState, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> SemiFLTally:
        """Weights 1/m', or by the number of unlabelled images. Statistics start with the coordinator's own."""
        if phase.name == STATISTICS.name:
            return SemiFLTally(statistics=state.own_statistics)
        sizes = {header.silo: float(max(header.num_examples, 0)) for header in headers}
        if self._settings.weighting == "uniform" or sum(sizes.values()) == 0:
            sizes = dict.fromkeys(sizes, 1.0)
        total = sum(sizes.values())
        return SemiFLTally(weights={silo: size / total for silo, size in sizes.items()})

    def fold(self, state: SemiFLState, tally: SemiFLTally, header: UpdateHeader, groups: Mapping[str, TensorGroup],
             kept: SiloState) -> tuple[SemiFLTally, SiloState]:
        """Adds p_k (w_k - w), or merges one silo's statistics.

        Statistics that are impossible (a negative variance, say) are left out with a warning: one silo must not stop
        the study, and the others' are as good without them.
        """
        if tally.statistics is not None:
            try:
                theirs = batch_norm.from_tensors(groups["batch_norm"].tensors)
                merged = batch_norm.merge([batch_norm.from_tensors(tally.statistics), theirs])
            except BadPayload as error:
                _LOG.warning("batch-norm statistics of silo %s are left out: %s", header.silo, error.text)
                return tally, kept
            return replace(tally, statistics=_float64_form(merged)), kept
        delta, weight = groups["model"].tensors, tally.weights[header.silo]
        so_far = tensors.zeros_like(state.w) if tally.delta is None else tally.delta
        return replace(tally, delta=tensors.add(so_far, delta, factor=weight)), kept

    def finish(self, state: SemiFLState, phase: Phase, tally: SemiFLTally, *, round: int) -> SemiFLState:
        """Train: average, server momentum, fine-tuning, statistics of the labels. Statistics: the merged ones."""
        if tally.statistics is not None:
            return replace(state, batch_norm=batch_norm.to_tensors(batch_norm.from_tensors(tally.statistics)))
        w, global_buf = apply_global_momentum(state.w, state.global_buf, tally.delta,
                                              momentum=self._settings.global_momentum)
        model, opt_buf = self._loaded(w, round=round), state.opt_buf
        self._served = None
        del state, tally, w  # several models, not needed while this one trains
        return self._fine_tune(model, global_buf=global_buf, opt_buf=opt_buf, round=round)

    def model(self, state: SemiFLState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The fine-tuned model and its statistics."""
        return state.w, state.batch_norm

    # Work at the coordinator ------------------------------------------------------------------------------------------

    def _lr(self, round: int) -> float:
        if self._settings.schedule == "constant":
            return self._settings.lr
        return cosine_lr(self._settings.lr, round=round, rounds=self._environment.rounds)

    def _sgd(self, lr: float) -> SGDSettings:
        settings = self._settings
        return SGDSettings(lr=lr, momentum=settings.momentum, nesterov=settings.nesterov,
                           weight_decay=settings.weight_decay, clip_norm=settings.clip_norm)

    def _fine_tune(self, model: nn.Module, *, global_buf: dict[str, Tensor] | None,
                   opt_buf: dict[str, Tensor] | None, round: int) -> SemiFLState:
        """Steps 4 and 5 of a round. After the last round come `final_epochs` more, on a fresh cosine from `lr` with
        fresh momentum: lr_t is nearly 0 by then and would change nothing."""
        settings, environment = self._settings, self._environment
        final = settings.final_epochs if round == environment.rounds else 0
        total = max(settings.coordinator_epochs + final, 1)

        def train(epochs: int, lr: float, purpose: str, done: int, buffers: dict[str, Tensor] | None,
                  falls: bool) -> tuple[dict[str, Tensor], float]:
            report = f"fine-tuning on {len(self._labelled)} labelled images"
            result = train_labelled(
                model, self._labelled, form=environment.image, augmentation=environment.augmentation,
                sgd=self._sgd(lr), epochs=epochs, batch_size=settings.labelled_batch, seed=environment.seed,
                purpose=purpose, round=round, momentum=buffers,
                lr_of_epoch=(lambda epoch: cosine_lr(lr, round=epoch, rounds=epochs)) if falls else None,
                progress=lambda share: environment.report(0.95 * (done + share * epochs) / total, report))
            check_finite(dict(model.named_parameters()), where=f"at the coordinator in round {round}")
            return result.momentum, result.loss

        loss = 0.0
        if settings.coordinator_epochs:
            opt_buf, loss = train(settings.coordinator_epochs, self._lr(max(round, 1)), "fine_tune", 0, opt_buf, False)
        if final:
            falls = settings.schedule == "cosine"
            opt_buf, loss = train(final, settings.lr, "final", settings.coordinator_epochs, None, falls)
        own = self._measure(model, round=round)
        environment.report(1.0, "")
        return SemiFLState(round=round, w=tensors.parameters_of(model), global_buf=global_buf, opt_buf=opt_buf,
                           batch_norm=batch_norm.to_tensors(own), own_statistics=_float64_form(own),
                           fine_tune_loss=loss if loss == loss else 0.0)

    def _measure(self, model: nn.Module, *, round: int) -> Statistics:
        environment = self._environment
        return batch_norm.measure(
            model, self._labelled.images_NCHW, form=environment.image,
            generator=torch_generator(environment.seed, "batch_norm_order", round=round),
            progress=lambda share: environment.report(0.95 + 0.05 * share, "measuring batch-norm statistics"))

    def _loaded(self, w: Mapping[str, Tensor], *, round: int) -> nn.Module:
        with named_randomness(self._environment.seed, "unused_weights", round=round):
            model = self._environment.build_model()
        tensors.load_into(model, w)
        return model.to(self._environment.device)

    def _groups(self, state: SemiFLState) -> tuple[TensorGroup, TensorGroup | None]:
        """The same objects for every silo of a phase, so that they are encoded once; the last state's are kept."""
        if self._served is None or self._served[0] is not state:
            statistics = TensorGroup(state.batch_norm) if state.batch_norm else None
            self._served = state, TensorGroup(state.w, digest=tensors.digest(state.w)), statistics
        return self._served[1], self._served[2]


def apply_global_momentum(w: Mapping[str, Tensor], buffer: Mapping[str, Tensor] | None,
                          delta: Mapping[str, Tensor] | None, *, momentum: float
                          ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Server momentum on the pseudo-gradient g = w - average = -delta; oracles S5 and S8.

        buffer = g (the first time) or momentum * buffer + g;   w = w - buffer

    Args:
        w: the model that the silos started from.
        buffer: None until a round accepts an update.
        delta: sum p_k (w_k - w), or None when no update was accepted: then both come back untouched.
        momentum: beta_g, 0..1.
    Returns: the new model and buffer.
    Source: SemiFL section 3.5.
    """
    if delta is None:
        return dict(w), None if buffer is None else dict(buffer)
    gradient = tensors.scale(delta, -1.0)
    new = gradient if buffer is None else tensors.add(gradient, buffer, factor=momentum)
    return tensors.subtract(w, new), new


def _wire_form(own_statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return batch_norm.to_tensors(batch_norm.from_tensors(own_statistics), counts=True)


def _float64_form(statistics: Statistics) -> dict[str, Tensor]:
    """As `to_tensors` with counts, but not rounded to float32: sums of many silos go through it."""
    result = batch_norm.to_tensors(statistics, counts=True)
    for name, layer in statistics.items():
        result[f"{name}.mean"], result[f"{name}.var"] = layer.mean, layer.var
    return result
