"""The facts of a model card: what the model is, its worth, its cost, where it comes from. `model_card.json` is this
dataclass with its fields in this order; the pages are drawn from it.

What was not measured is said so; nothing is made up in its place.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PureWindowsPath

import numpy as np
import torch

from semisilo.common import __version__
from semisilo.common.config import ABSENT_AT_DEFAULT, Tables
from semisilo.common.data.form import ImageForm
from semisilo.common.measures.calibration import BINS
from semisilo.common.measures.findings import NOT_CHOSEN, FindingsMeasures
from semisilo.common.measures.gain import Gain, PairedGain, gain_of
from semisilo.common.measures.intervals import LEVEL, Interval
from semisilo.common.measures.site_evaluation import Estimate, SiteEvaluation, site_scores
from semisilo.common.measures.study_measure import ACCURACY, parse_measure
from semisilo.common.methods import MethodSpec
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.methods.parts.label_task import is_multi_label
from semisilo.common.models.exported import ModelFacts
from semisilo.coordinator.export.choose_model import BEST_ON_TEST, CHANGED_TEST, STUDY_TEST, ChosenModel
from semisilo.coordinator.export.measures import Measures
from semisilo.coordinator.export.onnx_file import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, OnnxCheck
from semisilo.coordinator.export.operating_point import CardOperatingPoint, PointRates
from semisilo.coordinator.export.thresholds import threshold_in_words
from semisilo.coordinator.ledger.records import LABELS_ALONE
from semisilo.coordinator.ledger.roster import SiloRow
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.monitoring.participants import participants_of
from semisilo.coordinator.monitoring.results.study_numbers import scenario_name
from semisilo.coordinator.monitoring.summary import StudySummary
from semisilo.coordinator.monitoring.traffic import traffic_of
from semisilo.coordinator.studies.privacy import StudyPrivacy, privacy_of

__all__ = [
    "CARD_FORMAT",
    "INTENDED_USE",
    "USE_OF_FINDINGS",
    "CardCost",
    "CardData",
    "CardFile",
    "CardMethod",
    "CardModel",
    "CardNetwork",
    "CardOnnx",
    "CardSilo",
    "CardSilos",
    "CardSite",
    "CardTest",
    "CardThreshold",
    "CoordinatorImages",
    "EventChain",
    "LabelsAlone",
    "ModelCard",
    "Provenance",
    "Software",
    "card_cost",
    "card_model",
    "card_onnx",
    "card_privacy",
    "card_silos",
    "card_sites",
    "card_test",
    "card_thresholds",
    "limits_of",
    "settings_shown",
    "software_here",
]

CARD_FORMAT = 1
INTENDED_USE = (
    "Not for clinical use. This is the result of a training study, not a medical device; nobody has validated it in"
    " care, and no diagnosis or treatment may rest on it.",
    "It is for research: to compare methods and studies, and to be studied further on images of the same kind, by"
    " people who know where its training and test images came from.",
    "It answers every picture with one of its classes, also a picture that belongs to none of them.")
USE_OF_FINDINGS = (
    *INTENDED_USE[:-1],
    "A picture may show several of its classes or none: it answers to each class by itself, also for a picture of"
    " another kind than those that it was trained on.")


# What a card says -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class CardMethod:
    """The method of the study."""

    name: str
    source: str
    """Where it was published."""
    scenario: str
    """Where the labels are; empty for a method that knows one place only."""
    discloses: str
    """What its updates tell of a silo's images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardNetwork:
    """The network, and what it began from."""

    name: str
    normalisation: str
    parameters: int
    """That were trained."""
    frozen: int
    """Parameters that stayed as they were."""
    weights_sha256: str
    """Of the file of weights that it started from; empty: from random ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardModel:
    """Which model of which study this is."""

    study: str
    study_state: str
    round: int
    chosen: str
    """How: "chosen", "last", "best-on-test" or the number."""
    measure: str
    """What the study compares rounds by."""
    choice: str
    """Which round the study itself has chosen, and why; empty in the card of an earlier version."""
    planned_rounds: int
    method: CardMethod
    network: CardNetwork
    classes: tuple[str, ...]
    """In label order."""
    image: ImageForm


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorImages:
    """How many images the coordinator has, and how many of its files are none."""

    labelled: int
    validation: int
    test: int
    labelled_patients: int = 0
    """Of how many patients the images are; 0 where that is not known of every one."""
    validation_patients: int = 0
    test_patients: int = 0
    unreadable_files: int | None
    """Of those left out; None where that was not counted."""
    left_out_files: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSilo:
    """One silo: the images that it has announced, and how often it answered how."""

    silo: str
    labelled: int | None
    """None: not announced."""
    unlabelled: int | None
    updates: int
    abstentions: int
    refusals: int
    late: int
    took_part: bool
    """Whether a committed round up to the card's has an update or an abstention of it. Its images count only then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSilos:
    """The silos that were asked, and their sums."""

    count: int
    names_left_out: bool
    silos: tuple[CardSilo, ...]
    labelled: int
    """Of those that took part, like the next one."""
    unlabelled: int
    took_part: int
    """Up to the card's round; see `CardSilo.took_part`."""
    of: int
    """Silos of the study: `count`, and other members that it never asked."""

    @property
    def refused_all(self) -> int:
        """Silos that took no part and have refused."""
        return sum(each.refusals > 0 and not each.took_part for each in self.silos)

    @property
    def updates(self) -> int:
        """Of all silos."""
        return sum(each.updates for each in self.silos)

    @property
    def abstentions(self) -> int:
        """Of all silos."""
        return sum(each.abstentions for each in self.silos)

    @property
    def refusals(self) -> int:
        """Of all silos."""
        return sum(each.refusals for each in self.silos)

    @property
    def late(self) -> int:
        """Of all silos."""
        return sum(each.late for each in self.silos)


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSite:
    """This model on the own test images of one silo, as the silo says."""

    silo: str
    images: int | None
    """None: it has sent no numbers of this model; so are those below."""
    accuracy: Estimate | None
    balanced_accuracy: Estimate | None
    measure: Estimate | None
    """What the study compares rounds by; None also where that cannot be measured on these images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardData:
    """The images of both sides."""

    coordinator: CoordinatorImages
    silos: CardSilos


@dataclass(frozen=True, kw_only=True, slots=True)
class CardTest(Measures):
    """The numbers of `measure`, with what they are."""

    source: str
    """Which images, in words; `STUDY_TEST` for the study's own, `CHANGED_TEST` where these have changed."""
    sha256_images: str
    confidence_level: float
    """Of every interval."""
    definitions: Mapping[str, str]
    """Number -> how it is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFindings(FindingsMeasures):
    """The numbers of `measure_findings`, with what they are."""

    source: str
    """Which images, in words; `STUDY_TEST` for the study's own, `CHANGED_TEST` where these have changed."""
    sha256_images: str
    confidence_level: float
    """Of every interval."""
    definitions: Mapping[str, str]
    """Number -> how it is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardThreshold:
    """From which probability on a class counts as shown, where images may have several labels or none."""

    name: str
    """The class."""
    threshold: float
    chosen_for: str
    """In words, such as "largest F1" or "sensitivity 95 %"."""
    validation: PointRates
    """On the images that it was chosen on; those on test images are in `findings`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelsAlone:
    """The same network, trained on the coordinator's labels alone."""

    accuracy: float | None
    """None where images may have several labels or none."""
    num_labelled: int
    epochs: int
    accuracy_interval: Interval | None
    recipe: str = ""
    """How it was trained, in words; empty in a study of an earlier version."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All its numbers on the study's images, named as those of a round."""
    cut_short: str = ""
    """Why it was trained for fewer epochs than the study file asks for; empty when it was not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardCost:
    """Bytes from the beginning to the end of a round. What a simulation does not measure is None."""

    up_to_round: int
    payload_down: int
    payload_up: int
    message_down: int | None
    message_up: int | None
    wire_down: int | None
    wire_up: int | None
    wire_estimated: bool
    dense_model: int
    """Bytes of one dense model."""
    dense_total: int
    downloads: int
    uploads: int
    updates_accepted: int
    """Of committed rounds that have taken them in: not of one in which the gate has accepted nothing of them."""
    payload_share_of_dense: float | None
    wire_share_of_dense: float | None

    @property
    def dense_down(self) -> int:
        """What the downloads would have cost as dense models."""
        return self.dense_model * self.downloads

    @property
    def dense_up(self) -> int:
        """What the accepted updates would have cost as dense models."""
        return self.dense_model * self.uploads


@dataclass(frozen=True, kw_only=True, slots=True)
class CardOnnx(OnnxCheck):
    """How the ONNX graph was checked."""

    absolute_tolerance: float
    relative_tolerance: float
    input: str
    output: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFile:
    """One file of the hand-over."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventChain:
    """The ledger's chain of events when the card was written."""

    head: str
    events: int
    intact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """Versions of what computed the numbers of the card, and when."""

    semisilo: str
    python: str
    torch: str
    numpy: str
    written: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """By what the model and the card can be traced. Digests are SHA-256, hex."""

    state_sha256: str
    settings_sha256: str
    study_file_sha256: str | None
    """None where the file is gone."""
    event_chain: EventChain
    numerics_of_training: Mapping[str, object] | None
    """Sorted by name."""
    numerics_of_this_card: NumericsRecord
    software: Software


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """Everything that a card says."""

    format: int
    intended_use: tuple[str, ...]
    model: CardModel
    data: CardData
    test: CardTest | None
    """None without test images."""
    recorded_accuracy: float | None
    """What the ledger has for this round on the same images."""
    labelled_only: LabelsAlone | None
    """None where that was not trained."""
    cost: CardCost
    onnx: CardOnnx | None
    """None where no graph was written."""
    files: Mapping[str, CardFile]
    """By name."""
    provenance: Provenance
    settings: Mapping[str, Mapping[str, object]]
    operating_point: CardOperatingPoint | None = None
    """None: predictions are the largest probability."""
    sites: tuple[CardSite, ...] = ()
    """The silos that were asked up to the round; of labels alone all that were asked."""
    privacy: StudyPrivacy | None = None
    """What the rounds up to this one have spent; None where the study has no differential privacy, and of labels alone,
    for which no silo has spent anything."""
    masked: str = ""
    """What secure aggregation means, where the study has it; empty for labels alone."""
    findings: CardFindings | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """In the place of `test`, where images may have several labels or none; None without test images."""
    thresholds: tuple[CardThreshold, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Likewise, of every class; () without validation images, by which they are chosen."""
    limits: tuple[str, ...] = ()
    """`limits_of` the rest."""
    paired: PairedGain | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """Intervals of what it is better by than labels alone, by what both answered to each test image at the end of the
    study; None where these are not the answers of this card's model, of other images, and of other rounds."""

    @property
    def multi_label(self) -> bool:
        """Whether images may have several labels or none."""
        return is_multi_label(self.settings.get("study", {}))

    @property
    def shows_gain(self) -> bool:
        """Whether the accuracy may be compared with that of the labels alone: on the same images, which these were
        measured on while the study ran, with silos that had part in it."""
        measured = self.test or self.findings
        return (measured is not None and self.labelled_only is not None and measured.source == STUDY_TEST
                and self.cost.updates_accepted > 0)

    @property
    def gain(self) -> Gain | None:
        """What it is better by than labels alone, in the study's measure; in accuracy where labels alone have no
        other; None where they may not be compared."""
        measured = self.test or self.findings
        if not self.shows_gain or measured is None or self.labelled_only is None:
            return None
        accuracy = self.labelled_only.accuracy
        alone = {**({} if accuracy is None else {"accuracy": accuracy}), **self.labelled_only.metrics}
        found = (gain_of(measure, classes=self.model.classes, images=measured.counts, federated=measured.metrics,
                         labels_alone=alone, paired=self.paired)
                 for measure in (parse_measure(self.model.measure), ACCURACY))
        return next((gain for gain in found if gain is not None), None)


# From the study -------------------------------------------------------------------------------------------------------


def settings_shown(config: Tables, *, left_out_views: Sequence[str] = ()) -> dict[str, dict[str, object]]:
    """All settings of a study; of an absolute path only its last part: the rest is the coordinator's affair.

    Args:
        left_out_views: what "auto" has come to in `[augmentation] without`.
    """
    tables = {name: dict(table) for name, table in config.items()}
    for table, keys in _PATHS.items():
        for key in keys:
            value = tables.get(table, {}).get(key, "")
            if isinstance(value, str) and (value.startswith(("/", "~")) or PureWindowsPath(value).is_absolute()):
                tables[table][key] = re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    if left_out_views:
        tables["augmentation"]["without"] = list(left_out_views)
    return tables


_PATHS = {"data": ("labelled", "validation", "test"), "model": ("weights",)}


def card_model(chosen: ChosenModel, facts: ModelFacts, spec: MethodSpec) -> CardModel:
    """Which model of which study this is."""
    row, frozen = chosen.study, chosen.study.frozen
    assert frozen is not None, "a model is chosen of a study whose images were read"
    return CardModel(
        study=facts.study, study_state=str(row.state), round=chosen.round.number, chosen=chosen.rule,
        measure=chosen.choice.measure, choice=chosen.choice.text,
        planned_rounds=row.config["study"]["rounds"],
        method=CardMethod(name=spec.name, source=spec.source, discloses=spec.discloses,
                          scenario=str(row.config.get("method", {}).get("settings", {}).get("scenario", ""))),
        network=CardNetwork(name=facts.model.name, normalisation=facts.model.normalisation_layers,
                            parameters=frozen.num_parameters, frozen=frozen.num_frozen,
                            weights_sha256=frozen.weights_digest),
        classes=facts.model.classes, image=facts.image)


def card_silos(summary: StudySummary, silos: Sequence[SiloRow], *, up_to: int, names: bool) -> CardSilos:
    """What the silos that were asked have announced and answered, up to a round. Where labels of silos do not count,
    all of their images are unlabelled ones, whatever folders they are in there.

    Args:
        names: False numbers them in the place of their names.
    """
    parts = {silo: part for silo, part in participants_of(summary, up_to=up_to).items() if part.outcomes}
    known = {row.name: row for row in silos}
    rows = []
    labels_count = scenario_name(summary.row) != "labels-at-coordinator"
    for number, (silo, part) in enumerate(parts.items(), 1):
        row, outcomes = known.get(silo), part.outcomes
        labelled = 0 if row is None or not labels_count else row.labelled_count
        rows.append(CardSilo(silo=silo if names else f"silo {number}",
                             labelled=None if row is None else labelled,
                             unlabelled=None if row is None else
                             row.labelled_count + row.unlabelled_count - labelled,
                             updates=outcomes[TaskState.UPDATED], abstentions=outcomes[TaskState.ABSTAINED],
                             refusals=outcomes[TaskState.REFUSED], late=outcomes[TaskState.EXPIRED],
                             took_part=part.took_part))
    return CardSilos(count=len(rows), names_left_out=not names, silos=tuple(rows),
                     labelled=sum(row.labelled or 0 for row in rows if row.took_part),
                     unlabelled=sum(row.unlabelled or 0 for row in rows if row.took_part),
                     took_part=sum(row.took_part for row in rows), of=max(len(rows), summary.participation.silos))


def card_sites(summary: StudySummary, evaluations: Mapping[str, SiteEvaluation], *, round: int, labels_alone: bool,
               names: bool) -> tuple[CardSite, ...]:
    """What the silos that were asked up to a round say of its model, or all that were asked of labels alone; those that
    say nothing have a row without numbers.

    Args:
        evaluations: silo -> what it says of some model of the study.
        labels_alone: whether the card is of labels alone; `round` is 0 then.
        names: False numbers them in the place of their names.
    """
    frozen = summary.row.frozen
    assert frozen is not None, "a card is of a study whose images were read"
    rows = []
    parts = participants_of(summary, up_to=None if labels_alone else round)
    for number, silo in enumerate((silo for silo, part in parts.items() if part.outcomes), 1):
        found = evaluations.get(silo)
        is_this = found is not None and (found.round, found.labels_alone) == (round, labels_alone)
        scores = site_scores(found, frozen.study_measure, frozen.classes) if found is not None and is_this else None
        rows.append(CardSite(
            silo=silo if names else f"silo {number}", images=None if scores is None else scores.count,
            accuracy=None if scores is None else scores.accuracy,
            balanced_accuracy=None if scores is None else scores.balanced_accuracy,
            measure=None if scores is None else scores.measure))
    return tuple(rows)


def card_privacy(summary: StudySummary, *, up_to: int, names: bool) -> StudyPrivacy | None:
    """What was spent up to a round, by silo.

    Args:
        names: False numbers silos as `card_sites` does.
    """
    found = privacy_of(summary.row.config, summary.rounds, past=summary.went_back, up_to=up_to)
    if found is None or not up_to:
        return None
    asked = [silo for silo, part in participants_of(summary, up_to=up_to).items() if part.outcomes]
    # Behind them whoever has answered in rounds alone that no longer count.
    asked += [each.silo for each in found.silos if each.silo not in asked]
    numbers = {silo: number for number, silo in enumerate(asked, 1)}
    return found if names else replace(found, silos=tuple(
        replace(each, silo=f"silo {numbers[each.silo]}") for each in found.silos))


def card_test(measures: Measures, *, source: str, digest: str) -> CardTest:
    """The numbers of `measure`, with what they are."""
    numbers = {each.name: getattr(measures, each.name) for each in fields(measures)}
    return CardTest(**numbers, source=source, sha256_images=digest, confidence_level=LEVEL, definitions={
        "accuracy_interval": "Wilson's score interval of right / images",
        "balanced_accuracy": "mean recall of the classes that occur",
        "balanced_accuracy_interval": "of the mean of the recalls, from Wilson's of each (Zou and Donner 2008)",
        "auroc_macro_interval": "mean of those of the classes, as if their areas erred alike; of each Newcombe's, of"
                                " Hanley and McNeil's error",
        "recall_interval": "Wilson", "precision_interval": "Wilson",
        "auroc": "one class against the rest, of the class's probability at temperature 1, as in the rounds; macro:"
                 " mean over classes",
        "expected_error": f"expected calibration error: sum over {BINS} equal bins of the confidence of"
                          " (images in the bin / images) x |accuracy - mean confidence|",
        "brier": "mean over images of the sum over classes of (probability - truth)^2, from 0 to 2",
        "negative_log_likelihood": "mean of -ln(probability of the true class)"})


def card_findings(measures: FindingsMeasures, *, source: str, digest: str) -> CardFindings:
    """The numbers of `measure_findings`, with what they are."""
    numbers = {each.name: getattr(measures, each.name) for each in fields(measures)}
    return CardFindings(**numbers, source=source, sha256_images=digest, confidence_level=LEVEL, definitions={
        "auroc": "images that show the class against those that do not; macro: mean over classes",
        "auroc_interval": "Newcombe, of Hanley and McNeil's error; macro: as if the areas of all classes erred alike",
        "average_precision": "sum over the scores of (gain in recall) x precision; macro: mean over classes",
        "average_precision_interval": "Wilson's form of the binomial interval with the images of the class as trials",
        "threshold": f"of the class's probability, chosen by {measures.thresholds_from}",
        "sensitivity": "found / images", "specificity": "spared / others",
        "f1": "2 x found / (2 x found + missed + falsely found); macro: mean over classes",
        "f1_interval": "of found / (found + missed + falsely found), Wilson's, as F1 = 2 J / (1 + J); macro: as if all"
                       " classes erred alike",
        "exact_match": "images of which every class is answered rightly at the thresholds / images",
        "micro": "all pairs of an image and a class together; intervals let the pairs of one image hang on one another"
                 " (AUROC: Obuchowski; shares: Korn and Graubard, an effective number of trials)",
        "expected_error": f"expected calibration error of a class: sum over {BINS} equal bins of its probability of"
                          " (images in the bin / images) x |share that shows it - mean probability|; macro: mean over"
                          " classes",
        "brier": "mean over images of (probability - truth)^2, from 0 to 1",
        "scaling": "sigmoid(slope x logit + offset), fitted on validation images (Platt)",
        "together_shown": "images that show both classes; on the diagonal the class itself",
        "together_found": "images that are answered with both"})


def card_thresholds(facts: ModelFacts, rates: Sequence[PointRates]) -> tuple[CardThreshold, ...]:
    """What each class's threshold was chosen for, and gives on the images that it was chosen on.

    Args:
        rates: of every class, in label order; () without validation images.
    """
    return tuple(CardThreshold(name=name, threshold=cut, validation=each,
                               chosen_for=threshold_in_words(facts, name, shown=each.of_class))
                 for name, cut, each in zip(facts.model.classes, facts.thresholds, rates, strict=True)) if rates else ()


def card_onnx(check: OnnxCheck) -> CardOnnx:
    """How the ONNX graph was checked."""
    found = {each.name: getattr(check, each.name) for each in fields(check)}
    return CardOnnx(**found, absolute_tolerance=ABSOLUTE_TOLERANCE, relative_tolerance=RELATIVE_TOLERANCE,
                    input="images: float32 (batch, channels, size, size), 0 to 1",
                    output="logits: float32 (batch, classes)")


def card_cost(summary: StudySummary, *, up_to: int) -> CardCost:
    """Bytes from the beginning to the end of a round."""
    traffic = traffic_of((cost for cost in summary.costs if cost.round <= up_to),
                         dense_bytes=summary.traffic.dense_bytes)
    network = bool(traffic.wire or traffic.message_down or traffic.message_up)
    return CardCost(
        up_to_round=up_to, payload_down=traffic.payload_down, payload_up=traffic.payload_up,
        message_down=traffic.message_down if network else None, message_up=traffic.message_up if network else None,
        wire_down=traffic.wire_down if network else None, wire_up=traffic.wire_up if network else None,
        wire_estimated=traffic.estimated, dense_model=traffic.dense_bytes, dense_total=traffic.dense_total,
        downloads=traffic.downloads, uploads=traffic.uploads,
        updates_accepted=sum(entry.updates for entry in summary.rounds
                             if entry.number <= up_to and entry.state is RoundState.COMPLETED and entry.taken_in),
        payload_share_of_dense=traffic.payload_share, wire_share_of_dense=traffic.share if network else None)


def software_here() -> Software:
    """Of what computes the numbers of a card."""
    return Software(semisilo=__version__, python=platform.python_version(), torch=str(torch.__version__),
                    numpy=np.__version__, written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _limits_of_images(card: ModelCard, measured: CardTest | CardFindings, worth: str) -> list[str]:
    """Of what was measured on test images, whatever the task: how far they tell what they say.

    Args:
        worth: what is shown of every round.
    """
    found = [_limit_of_intervals(measured)]
    if measured.source in (STUDY_TEST, CHANGED_TEST):
        found.append(f"The test {worth} of every round was shown while the study ran; whoever chose settings by it"
                     " has made these numbers optimistic.")
        if card.model.chosen == BEST_ON_TEST:
            found.append("This round was chosen because it is the best on these very test images, so that they no"
                         " longer measure this model: its numbers are optimistic. Measure it on other images:"
                         " --test SOURCE.")
    return found


def _limit_of_intervals(measured: CardTest | CardFindings) -> str:
    if (worth := measured.independent) is None:
        return ("Intervals are by image: they treat every test image as independent. Several images of one patient, or"
                " from one device, make the true intervals wider.")
    return (f"Intervals are by patient: they count the {measured.images} test images as the {worth.patients} patients"
            " that they are of, with an image or file of an unknown patient for one. Several patients from one device"
            " make them wider.")


def _limits_of_findings(card: ModelCard, findings: CardFindings) -> list[str]:
    found = [*_limits_of_images(card, findings, "score"),
             "Classes are asked by themselves: the model does not know that some findings come together or exclude one"
             " another."]
    if findings.thresholds_from == NOT_CHOSEN:
        found.append("The thresholds are 0.5 for every class, since there are no validation images: for rare findings"
                     " that is seldom a good one.")
    else:
        found.append("The thresholds were chosen on the validation images, so the rates there are as chosen; those on"
                     " the images of this card are the ones to expect.")
    if findings.expected_error_macro_with_scaling is None:
        found.append("No scaling was fitted: probabilities are those of the network. Rare classes, and losses that"
                     " weigh or adjust classes, move them; --calibrate brings them back.")
    else:
        found.append("The scaling was fitted on the validation images, which may differ from those to come.")
    absent = [each.name for each in findings.classes if each.images == 0]
    if absent:
        found.append(f"No test image shows these classes, so nothing is known of them: {', '.join(absent)}.")
    few = [each.name for each in findings.classes if 0 < each.images < 30]
    if few:
        found.append(f"Fewer than 30 test images each show: {', '.join(few)}; their intervals are wide.")
    return found


def limits_of(card: ModelCard) -> tuple[str, ...]:
    """What to bear in mind with just these numbers, and what was not measured."""
    found: list[str] = []
    test = card.test
    worth = parse_measure(card.model.measure).title if card.multi_label else "accuracy"
    if test is None and card.findings is not None:
        found += _limits_of_findings(card, card.findings)
    elif test is None:
        found.append(f"The {worth} was not measured: the coordinator has no test images.")
    else:
        found += _limits_of_images(card, test, worth)
        absent = [each.name for each in test.classes if each.images == 0]
        if absent:
            found.append(f"No test image is of these classes, so nothing is known of them: {', '.join(absent)}.")
        few = [each.name for each in test.classes if 0 < each.images < 30]
        if few:
            found.append(f"Fewer than 30 test images each are of: {', '.join(few)}; their intervals are wide.")
        if test.auroc_macro is None:
            found.append("No AUROC was measured: the test images are all of one class.")
        if test.temperature == 1.0:
            found.append("No temperature was fitted: probabilities are those of the network.")
        else:
            found.append("The temperature was fitted on the validation images, which may differ from those to come."
                         " Each AUROC is of the probabilities before it, as in the rounds.")
    if card.operating_point is not None:
        found.append("The operating point's threshold was chosen on the validation images, so its rates there are as"
                     " chosen; those on test images are the ones to expect, and the other sections' numbers are without"
                     " it." if card.operating_point.test is not None else
                     "The operating point's threshold was chosen on the validation images, and was not measured on any"
                     " others.")
    if card.cost.updates_accepted == 0 and card.model.round > 0:
        found.append("No update of any silo was taken in up to this round: no silo has contributed to this model,"
                     f" and its {worth} comes from the coordinator's training alone.")
    if card.model.chosen == LABELS_ALONE:
        found.append("This is the model of labels alone, the baseline: trained on the coordinator's labelled images"
                     " without any silo. No round, method or update of the study has contributed to it.")
    if card.labelled_only is None:
        found.append("Training on the coordinator's labels alone was not measured, so the gain is not known.")
    if card.shows_gain and card.model.method.scenario == "labels-at-both":
        found.append("Silos may have trained on labels of their own, which labels alone do without: the gain is of"
                     " these and of images without labels together.")
    if card.onnx is None:
        found.append("No ONNX graph was written.")
    elif card.onnx.source == "random":
        found.append("The ONNX graph was compared on random images, since the coordinator has none.")
    if card.cost.wire_down is None:
        found.append("This is a simulation: no message and no wire bytes were measured.")
    elif card.cost.wire_estimated:
        found.append("Wire bytes, or some of them, are estimated: the kernel's counters could not be read, or what they"
                     " said was lost when the coordinator was killed.")
    if not any(each.images is not None for each in card.sites):
        found.append(f"No site has sent the {worth} of this model on its own images.")
    elif silent := [each.silo for each in card.sites if each.images is None]:
        found.append(f"These sites have not sent the {worth} of this model on their own images: {', '.join(silent)}.")
    found.append("Counts of silos are what they have announced; nobody has checked them, and images at silos may be in"
                 " the test set as well.")
    found.append("Not measured: differences between patients (age, sex, origin), devices, sites or over time; behaviour"
                 " on images of another kind, damaged or made to deceive; what the weights reveal of training images.")
    return tuple(found)
