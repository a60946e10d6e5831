"""Static batch-norm statistics for any strategy: who measures them, and the phase in which silos do.

| source              | whose images                                       | phases                                    |
|---------------------|----------------------------------------------------|-------------------------------------------|
| coordinator         | the coordinator's labelled, else validation images | none                                      |
| coordinator+silos   | these and those of every silo that can be reached  | "statistics" behind training, and in      |
| silos               | the silos' alone                                   | round 1 in front of it                    |
| auto                | coordinator where it has such images, else silos   |                                           |

A network without static batch-norm layers needs none of it. The phase sends the model to be measured as group `model`
(so a method that decomposes its model sends the sum) and gets group `batch_norm` with counts;
`semisilo.silo.trainers.batch_norm_phase` is the silo's part. A strategy keeps two dictionaries in its state:
`batch_norm`, what is used, and `own_statistics`, the coordinator's part with counts, float64.

Where updates are added up behind masks, the task brings group `batch_norm` too, as a reference, and gets moments around
it (`semisilo.common.learning.averaging.moments`): the statistics of all silos of the sum at once. The round's sample is
asked then, since a sum has room for so many. The reference is the coordinator's own part, else what is in use, else
what images of noise give.

Source: SemiFL (Diao et al., NeurIPS 2022) section 3.4.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.averaging.moments import from_moments, to_moments
from semisilo.common.learning.batch_norm import LayerStatistics
from semisilo.common.learning.robust.coordinatewise import trimmed_statistics
from semisilo.common.learning.robust.far_statistics import Middle, distance, far_from, middle_of
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.training import named_randomness
from semisilo.common.methods import spec as names
from semisilo.common.methods.contract import (
    Environment,
    GroupLayout,
    Meaning,
    Phase,
    Task,
    TensorGroup,
    UpdateHeader,
    Updates,
)
from semisilo.common.methods.spec import StatisticsSource
from semisilo.coordinator.strategies.batch_norm.trial import MOST_TRIED, Candidate, StatisticsTrial

__all__ = ["STATISTICS", "StaticStatistics", "StatisticsTally", "has_images"]

_LOG = logging.getLogger("semisilo.coordinator")

STATISTICS = Phase(names.STATISTICS, asks="roster", quorum="any")
_SUMMED = Phase(names.STATISTICS, quorum="any")
_FIRST_SUMMED = Phase(names.FIRST_STATISTICS, quorum="any")
_NOISE_IMAGES = 16
_MOST_VALUES = 2**40
"""Of one channel at one silo: 20 million images of 224 x 224. Of 8192 silos the sum can still be counted (2^53)."""
_MOST_COMPARED = 512
"""Silos whose statistics are in memory at once, to find their median."""
_LARGEST = 1e18
"""Largest mean and standard deviation of one silo: their squares, summed, are finite in float32."""


@dataclass(frozen=True, kw_only=True)
class StatisticsTally:
    """The phase "statistics" being folded."""

    statistics: dict[str, Tensor]
    """Merged so far, with counts, float64; starts as the coordinator's own, which may be nothing."""
    reference: dict[str, Tensor] = field(default_factory=dict)
    """That silos were sent; {} where they send their statistics by themselves."""
    settled: bool = False
    """Whether they are what a rule of [robust] made of all updates before these are folded."""
    notices: dict[str, str] = field(default_factory=dict)
    """By silo whose statistics are impossible, far from the others', or spoil answers: in what, for a person."""
    left_out: list[str] = field(default_factory=list)
    """Of those the ones that are not merged."""


def has_images(environment: Environment) -> bool:
    """Whether the coordinator has images that statistics may be of: labelled ones, or those for validation."""
    return _images(environment) is not None


def _images(environment: Environment) -> ImageSet | None:
    data = environment.data
    return next((each for each in (data.labelled, data.validation) if each is not None and len(each)), None)


class StaticStatistics:
    """Who measures the statistics of one study. Holds no state of the study."""

    def __init__(self, environment: Environment, source: StatisticsSource) -> None:
        """Raises: BadConfiguration when the coordinator is to measure and has no images to do it with."""
        self._environment = environment
        self._images = _images(environment)
        with named_randomness(environment.seed, "unused_weights"):
            layers = batch_norm.layers_of(environment.build_model())
        self._layers = {name: layer.num_features for name, layer in layers.items()}
        if source == "auto":
            source = "silos" if self._images is None else "coordinator"
        if self._layers and source != "silos" and self._images is None:
            raise BadConfiguration(
                f'[method] sbn_source = "{source}" needs labelled or validation images at the coordinator.',
                remedy='Set sbn_source = "silos", or [model] normalisation = "group".')
        self._noise: batch_norm.Statistics = {}
        self._most_positions = environment.image.size**2
        """Of one image in one channel; layers behind strides have fewer."""
        self._asks_silos = bool(self._layers) and source != "coordinator"
        self._measures = bool(self._layers) and source != "silos"
        self._trial = StatisticsTrial(environment, self._images) if (
            environment.robust.statistics_bound and self._asks_silos and self._images is not None
            and self._images.labels_N is not None) else None

    @property
    def needed(self) -> bool:
        """Whether the network has layers that need statistics."""
        return bool(self._layers)

    def phases(self, *train: Phase, round: int) -> tuple[Phase, ...]:
        """The phases of a round whose training phases are given."""
        if not self._asks_silos:
            return train
        first, behind = (_FIRST_SUMMED, _SUMMED) if self._environment.summed else (STATISTICS, STATISTICS)
        # Nobody has measured the weights of round 0 yet, and a silo labels with them in round 1.
        return (first, *train, behind) if round == 1 else (*train, behind)

    def own(self, model: nn.Module, *, round: int, report_from: float | None = None) -> dict[str, Tensor]:
        """The coordinator's part, measured with the current weights: with counts, float64; {} where it has none.

        Args:
            report_from: share of the reported work that is done before, 0..1; None reports nothing.
        """
        return self._measured_here(model, round=round, report_from=report_from) if self._measures else {}

    def _measured_here(self, model: nn.Module, *, round: int, report_from: float | None = None) -> dict[str, Tensor]:
        assert self._images is not None
        report = self._environment.report
        found = batch_norm.measure(
            model, self._images.images_NCHW, form=self._environment.image,
            progress=None if report_from is None else lambda share: report(
                report_from + (1 - report_from) * share, "measuring batch-norm statistics"),
            generator=torch_generator(self._environment.seed, "batch_norm_order", round=round))
        return _float64_form(found)

    def used(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Group `batch_norm` from the coordinator's part alone: what holds until silos have answered."""
        return batch_norm.to_tensors(batch_norm.from_tensors(own))

    def reference(self, own: Mapping[str, Tensor], used: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Around which silos give their moments, float32; {} where nothing is added up behind masks.

        Args:
            own: the coordinator's part, of the model that is measured.
            used: the statistics in use, of a model before it.
        """
        if not self._environment.summed:
            return {}
        return self.used(own) if own else dict(used) or batch_norm.to_tensors(self._noise_statistics())

    def task(self, model: TensorGroup, reference: TensorGroup | None = None) -> Task:
        """What a silo is asked in the phase."""
        return Task(groups={"model": model} if reference is None else {"model": model, "batch_norm": reference})

    def expects(self) -> dict[str, GroupLayout]:
        """What an answer of the phase must hold: mean, variance and count of every layer; or moments."""
        layout = {name: LayerStatistics(1.0, torch.zeros(width, dtype=torch.float64),
                                        torch.zeros(width, dtype=torch.float64))
                  for name, width in self._layers.items()}
        plain = batch_norm.to_tensors(layout)
        sent = to_moments(layout, plain) if self._environment.summed else batch_norm.to_tensors(layout, counts=True)
        return {"batch_norm": GroupLayout(Meaning.VALUES, "", tensors.specs(sent))}

    def begin(self, own: Mapping[str, Tensor], used: Mapping[str, Tensor]) -> StatisticsTally:
        """Starts with the coordinator's own part. Args: as of `reference`."""
        return StatisticsTally(statistics=dict(own), reference=self.reference(own, used))

    def appraised(self, tally: StatisticsTally, updates: Updates, *, model: Callable[[], nn.Module],
                  round: int) -> StatisticsTally:
        """With notices of silos whose statistics are impossible, far from the others' (`far_from`), or spoil the
        answers for the coordinator's own images with labels (`StatisticsTrial`). Those that are too far to be believed
        or spoil them are left out of the merge, and so are impossible ones. The same object where there are none, so
        that an honest round keeps its bits.

        With a rule of [robust] that compares silos: the trimmed mean of theirs and of the coordinator's own, each with
        one voice whatever count it claims, however far it is. `byzantine_silos` are left out at both ends of every
        channel, without that setting all but the middle. With too few answers nothing of them is taken over.
        """
        if not updates.headers:
            return tally
        robust = self._environment.robust
        merges, count = robust.merges_statistics, len(updates.headers)
        own = [batch_norm.from_tensors(tally.statistics)] if tally.statistics else []
        # A rule needs all of them at once. The median of very many would fill the memory, and that of some will do.
        held: dict[int, batch_norm.Statistics] = {}
        for index in _spread(count, _MOST_COMPARED if merges else count):
            if not isinstance(found := self._theirs(tally, updates.headers[index], updates.read(index)), BadPayload):
                held[index] = found
        middle = middle_of([*own, *held.values()])  # the coordinator's own are what they are
        for index, header in enumerate(updates.headers):
            theirs = held.get(index) or self._theirs(tally, header, updates.read(index))
            if isinstance(theirs, BadPayload):
                tally = _impossible(tally, header.silo, theirs)
            elif (far := far_from(middle, theirs)) is not None:
                out = merges and not far.believed
                tally = _noted(tally, header.silo, "its batch-norm statistics are far from the others'"
                               f"{' and are left out' if out else ''}: {far.text}", left_out=out)
        if merges:
            return tally if self._trial is None else self._tried(
                self._trial, tally, updates, held, middle, model=model(), round=round)
        voices = [*own, *held.values()]
        trim = robust.byzantine_silos or max(0, (len(voices) - 1) // 2)
        if len(voices) <= 2 * trim:
            _LOG.warning('batch-norm statistics of %d silos are left out: rule = "%s" with byzantine_silos = %d needs'
                         " more", len(updates.headers), robust.rule, robust.byzantine_silos)
            return replace(tally, settled=True)
        merged: batch_norm.Statistics = {}
        for name in voices[0]:
            layers = [voice[name] for voice in voices]
            mean_C, var_C = trimmed_statistics(torch.stack([layer.mean for layer in layers]),
                                               torch.stack([layer.var for layer in layers]), trim=trim)
            merged[name] = LayerStatistics(min(layer.count for layer in layers), mean_C, var_C)
        return replace(tally, statistics=_float64_form(merged), settled=True)

    def _tried(self, trial: StatisticsTrial, tally: StatisticsTally, updates: Updates,
               held: Mapping[int, batch_norm.Statistics], middle: Mapping[str, Middle], *, model: nn.Module,
               round: int) -> StatisticsTally:
        """Without silos whose statistics spoil the answers for the coordinator's images.

        Args:
            held: those of some updates, which need not be read again.
        """
        merged, silos = batch_norm.from_tensors(tally.statistics), 0
        own = merged or batch_norm.from_tensors(self._measured_here(model, round=round))
        for _, theirs in self._counted(tally, updates, held):
            merged, silos = batch_norm.merge([merged, theirs] if merged else [theirs]), silos + 1
        if not silos:
            return tally
        found = trial.verdict(model, own=own, merged=merged, silos=silos, candidates=lambda: heapq.nlargest(
            MOST_TRIED, (Candidate(silo=silo, statistics=theirs, distance=distance(middle, theirs))
                         for silo, theirs in self._counted(tally, updates, held)), key=lambda each: each.distance))
        if found.spoilt:
            _LOG.warning("round %d: with silos' batch-norm statistics the loss on the coordinator's own images is %.2f"
                         " nats higher, and no few silos are to blame: their images may look unlike the coordinator's",
                         round, found.rise)
        for silo in found.left_out:
            tally = _noted(tally, silo, "its batch-norm statistics are left out: they spoil the answers for the"
                           " coordinator's own images", left_out=True)
        return tally

    def _counted(self, tally: StatisticsTally, updates: Updates, held: Mapping[int, batch_norm.Statistics]
                 ) -> Iterator[tuple[str, batch_norm.Statistics]]:
        """Of each silo that is not left out, as its statistics count in the merge."""
        for index, header in enumerate(updates.headers):
            if header.silo not in tally.left_out:
                theirs = held.get(index) or self._theirs(tally, header, updates.read(index))
                if not isinstance(theirs, BadPayload):
                    yield header.silo, _weighing_no_more(theirs, header.num_examples * self._most_positions)

    def fold(self, tally: StatisticsTally, header: UpdateHeader, groups: Mapping[str, TensorGroup]) -> StatisticsTally:
        """Merges one silo's statistics.

        They weigh by their counts: by no more values of a channel than as many images can have as the update counts as.
        Impossible ones (a negative variance, say, or a count with which those of the others vanish or can no longer be
        added) are left out with a notice, as those that `appraised` has found too far from the others': one silo must
        not stop the study, nor speak for all, and the others' are as good without them.
        """
        if tally.settled or header.silo in tally.left_out:
            return tally
        theirs = self._theirs(tally, header, groups)
        if isinstance(theirs, BadPayload):
            return _impossible(tally, header.silo, theirs)
        so_far = [batch_norm.from_tensors(tally.statistics)] if tally.statistics else []
        merged = batch_norm.merge([*so_far, _weighing_no_more(theirs, header.num_examples * self._most_positions)])
        return replace(tally, statistics=_float64_form(merged))

    def finish(self, tally: StatisticsTally, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Group `batch_norm` from now on; what was used `before` when nobody has measured anything."""
        if not tally.statistics:
            _LOG.warning("no silo has measured batch-norm statistics; those of the last round stay in use")
            return dict(before)
        return self.used(tally.statistics)

    def _theirs(self, tally: StatisticsTally, header: UpdateHeader,
                groups: Mapping[str, TensorGroup]) -> batch_norm.Statistics | BadPayload:
        """What one silo, or the silos of one sum, measured; or why it cannot be."""
        found = groups["batch_norm"].tensors
        try:
            return _possible(from_moments(found, tally.reference, {
                name: header.num_examples * positions for name, positions in self._positions().items()})
                if tally.reference else batch_norm.from_tensors(found))
        except BadPayload as error:
            return error

    def _positions(self) -> dict[str, float]:
        """Values of a channel that one image gives, by layer."""
        return {name: layer.count / _NOISE_IMAGES for name, layer in self._noise_statistics().items()}

    def _noise_statistics(self) -> batch_norm.Statistics:
        """Those of the network as it is made, on images of noise: right to an order of magnitude or two."""
        if not self._noise:
            form, seed = self._environment.image, self._environment.seed
            with named_randomness(seed, "unused_weights"):
                model = self._environment.build_model()
            images_NCHW = torch.randint(0, 256, (_NOISE_IMAGES, form.channels, form.size, form.size), dtype=torch.uint8,
                                        generator=torch_generator(seed, "noise_images"))
            self._noise = batch_norm.measure(model, images_NCHW, form=form,
                                             generator=torch_generator(seed, "noise_images"))
        return self._noise


def _weighing_no_more(statistics: batch_norm.Statistics, most: int) -> batch_norm.Statistics:
    """With counts of at most so many values of a channel, at least one."""
    return {name: replace(layer, count=min(layer.count, max(1, most))) for name, layer in statistics.items()}


def _possible(theirs: batch_norm.Statistics) -> batch_norm.Statistics:
    """The same. Raises: BadPayload where they can be nobody's."""
    if any(layer.count > _MOST_VALUES for layer in theirs.values()):
        raise BadPayload(f"They claim more than {_MOST_VALUES} values of a channel.")
    if any(bool((layer.mean.abs() > _LARGEST).any() or (layer.var > _LARGEST**2).any()) for layer in theirs.values()):
        raise BadPayload("Merged with others, mean or variance could overflow.")
    return theirs


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers from 0 to count - 1, evenly, in order."""
    return list(range(count)) if count <= most else [number * count // most for number in range(most)]


def _impossible(tally: StatisticsTally, silo: str, error: BadPayload) -> StatisticsTally:
    return _noted(tally, silo, f"its batch-norm statistics are left out: {error.text}", left_out=True)


def _noted(tally: StatisticsTally, silo: str, text: str, *, left_out: bool) -> StatisticsTally:
    if tally.reference:  # behind masks it is of several silos, and nobody else says so
        _LOG.warning("of a sum: %s", text)
    return replace(tally, notices={**tally.notices, silo: text},
                   left_out=[*tally.left_out, silo] if left_out else tally.left_out)


def _float64_form(statistics: batch_norm.Statistics) -> dict[str, Tensor]:
    """As `to_tensors` with counts, but not rounded to float32: sums of many silos go through it."""
    form: dict[str, Tensor] = {}
    for name, layer in statistics.items():
        form |= {f"{name}.mean": layer.mean, f"{name}.var": layer.var,
                 f"{name}.count": torch.tensor([round(layer.count)], dtype=torch.int64)}
    return form
