"""The rows of the ledger as typed values."""

from __future__ import annotations

import functools
import json
import sqlite3
import typing
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from semisilo.common.config import ABSENT_AT_DEFAULT, Tables, canonical_json, from_dict
from semisilo.common.data.form import ImageForm, Ranges
from semisilo.common.measures.gain import ImageCounts, PairedGain
from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure, parse_measure
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.methods.parts.label_task import LabelTask
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState

if TYPE_CHECKING:
    # Imported where rows of rounds, phases and tasks are read, not by who reads how a study stands: it takes a while.
    from semisilo.common.methods.contract import GroupLayout, Phase, SumStep, TaskSpec, UpdateHeader

__all__ = ["LABELS_ALONE", "LABELS_ALONE_FILE", "LABELS_ALONE_MODEL", "MODEL_FILE", "NOISE_KEY", "START_FILE",
           "BaselineRecipe", "DeclaredUpdate", "EndedBy", "FrozenStudy", "HistoryPoint", "LabelledOnlyResult",
           "PhaseHead", "PhaseRow", "RoundHead", "RoundRow", "StudyRow", "TaskRow", "cut_short", "declared_update",
           "forget_tasks", "phase_head", "phase_row", "round_head", "round_row", "study_row", "task_column", "task_row"]

T = TypeVar("T")

LABELS_ALONE_FILE = "labels-alone.safetensors"
"""In a study's folder: work on labels alone that is not done yet."""
NOISE_KEY = "noise.key"
"""In a study's folder, where it hides whole silos: 32 bytes that the noise follows from, for its owner only. Whoever
has them and the updates can take the noise away."""
START_FILE = "start.safetensors"
"""In a study's folder: a strategy's work before round 1 that is not done yet."""
LABELS_ALONE = "labels-alone"
"""What stands in the place of a method or a round where the model is that of labels alone."""
MODEL_FILE = "model.safetensors"
"""In the folder of a study that is over: the model that it hands over."""
LABELS_ALONE_MODEL = "labels-alone-model.safetensors"
"""In a study's folder: the model that labels alone have given, once it is there."""
BaselineRecipe = Literal["strong", "paper"]
"""How labels alone are trained: as well as the tool can, or by the recipe of SemiFL's paper."""


LOGIT_ADJUSTMENT = "logit adjustment for the imbalanced labels"
"""How the description of labels alone says that there was some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenStudy:
    """What is measured once when a study starts and never changes after."""

    classes: tuple[str, ...]
    image: ImageForm
    num_labelled: int
    num_validation: int
    num_test: int
    num_parameters: int
    """Trainable parameters of the network."""
    dense_bytes: int
    """4 x `num_parameters`: the papers' 100 %. Of a network with frozen parts the trained part alone."""
    num_frozen: int = 0
    """Parameters that nobody trains."""
    frozen_digest: str = ""
    """Hex digest of group `frozen` (`semisilo.common.learning.tensors.digest`); empty when all is trained."""
    weights: str = ""
    """Name of the file of trained weights that the study started from, without its folder; empty for random ones."""
    weights_digest: str = ""
    """SHA-256 of that file, hex."""
    left_random: tuple[str, ...] = ()
    """Parameters that the file did not give."""
    head_by_class: bool = field(default=False, metadata=ABSENT_AT_DEFAULT)
    """Whether the head is not as it is in that file, because the file names other classes, or in another order; in a
    study that an earlier version began it was taken as it is."""
    skipped: tuple[str, ...] = ()
    """Files of the coordinator that were left out, with the reason."""
    num_broken: int | None = None
    """How many of them should have been images; None in a study that an earlier version began."""
    num_held_out: int = 0
    """Of `num_validation`: images held out of the labelled ones, which `num_labelled` does not count."""
    measure: str = ""
    """What rounds are chosen and compared by, as `parse_measure` reads it; empty in a study that an earlier version
    began, where it is the accuracy."""
    measure_reason: str = ""
    """Why that one, for a person: "the labelled images are balanced, 20 images of ..."."""
    by_patient: bool = False
    """Whether patients of images are known, so that none is in two of the sets; False in a study that an earlier
    version began."""
    labelled_patients: int = 0
    """Of how many patients `num_labelled` are; 0 unless that is known of every image. Likewise of the other sets."""
    validation_patients: int = 0
    test_patients: int = 0
    test_images: tuple[int, ...] = ()
    """Of `num_test`: how many there are of each class, in label order; () in a study that an earlier version began.
    Where images may have several labels or none they add up to another number."""
    test_without: tuple[int, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Likewise, known not to show each class; () where an image has one class, and in a study that an earlier version
    began: all others count then."""
    test_independent: IndependentImages | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """What they are worth where several are of one patient or file; None where every image counts, and in a study that
    an earlier version began."""
    task: LabelTask = field(default="single_label", metadata=ABSENT_AT_DEFAULT)
    """What an image's label is."""
    left_out_views: tuple[str, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Operations of RandAugment that the study leaves out because of its labelled images ([augmentation] without =
    "auto")."""
    left_out_views_reason: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """Why, for a person; empty where none is left out."""

    labelled_digest: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """SHA-256, hex, of pixels and labels of the set in any order, without its files' names; "" for an empty one, and in
    a study that an earlier version began. Likewise of the other sets."""
    validation_digest: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    test_digest: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    code: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """SHA-256, hex, of the installed code of others that the study began with, a method plug-in's or a network's
    (`semisilo.common.models.own.code_stamp`); "" without such, and in a study that an earlier version began."""
    read_with: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """Versions of what has read them: others may make other pixels of the same files."""
    ranges: Ranges = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """What deep values of the labelled images (without any, of the validation or test images) are divided by, where
    their values decide it; the least for the other sets. () without such, and in a study that an earlier version began:
    each set was read by its own values."""
    plain_images: bool = field(default=False, metadata=ABSENT_AT_DEFAULT)
    """Whether some labelled images are of a single value and may be held out, however many of them are alike; False in
    a study that an earlier version began."""
    by_file: bool = field(default=False, metadata=ABSENT_AT_DEFAULT)
    """Whether several images of unknown patients are of one file, a volume for example, and none is in two of the sets;
    False in a study that an earlier version began."""
    keeps_best: bool = field(default=False, metadata=ABSENT_AT_DEFAULT)
    """Whether the state of the round with the highest selection score stays, so that it can be handed over; False in a
    study that an earlier version began."""
    compares_usual: bool = field(default=False, metadata=ABSENT_AT_DEFAULT)
    """Whether labels alone are held against the rounds around the one that would be handed over, not against that one's
    luck; False in a study that an earlier version began, which says what it said."""

    @property
    def study_measure(self) -> StudyMeasure:
        """What rounds are chosen and compared by."""
        return parse_measure(self.measure) if self.measure else ACCURACY

    @property
    def may_have_labels_alone(self) -> bool:
        """Whether a model of labels alone can be made, and something said about it."""
        return self.num_labelled > 0 and (self.num_test > 0 or self.num_validation > 0)

    @property
    def test_counts(self) -> ImageCounts:
        """The test images, which models are compared on."""
        worth = self.test_independent
        if worth is None and 0 < self.test_patients < self.num_test:  # begun by an earlier version
            without = self.test_without or tuple(self.num_test - count for count in self.test_images)
            worth = IndependentImages.of_equal_patients(self.test_patients, self.num_test, self.test_images, without)
        return ImageCounts(self.num_test, self.test_images, self.test_without, worth)

    @property
    def findings_of(self) -> int | None:
        """How many test images there are, where they may have several labels or none; None with one class for each."""
        return self.num_test if self.task == "multi_label" else None

    @property
    def choice_line(self) -> str:
        """What rounds are compared by and why, and what chooses one, for a person."""
        why = f" ({self.measure_reason})" if self.measure_reason else ""
        images = f"{self.num_validation} validation image{'s' * (self.num_validation != 1)}"
        held_out = ", held out of the labelled ones" if self.num_held_out else ""
        chosen = f"chosen on {images}{held_out}" if self.num_validation else \
            "not chosen: the last one is handed over, since there are no validation images"
        return f"rounds are compared by {self.study_measure.title}{why}, and {chosen}"


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The labelled-only model after some epochs."""

    epoch: int
    loss: float
    """Mean training cross-entropy of that epoch, of the strong recipe that of the last step; 0 where every batch was
    skipped."""
    accuracy: float | None
    """On the test images; None of images with several labels, which have no accuracy."""
    auroc: float | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """Macro, on the test images, where these have several labels."""


EndedBy = Literal["epochs", "budget", "flat"]
"""Why labels alone were trained no longer: all epochs were done; their time was spent; validation no longer rose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledOnlyResult:
    """What labels alone give: the same network, trained on the coordinator's labelled images."""

    metrics: dict[str, float]
    """Of the last epoch, named as those of a round; those on validation images begin with "validation_", those of a
    cross-validation on the labels with "crossfit_"."""
    epochs: int
    """Whole passes that were made."""
    asked: int = 0
    """Whole passes that the study file asks for; 0 in a study of an earlier version, which made all of them."""
    ended: EndedBy = "epochs"
    lr: float
    batch_size: int
    steps: int
    loss: float = field(default=0.0, metadata=ABSENT_AT_DEFAULT)
    """Of the strong recipe's last step; 0 of the paper's, and in a study of an earlier version."""
    num_labelled: int
    history: tuple[HistoryPoint, ...]
    """Evenly spaced; the last is the last epoch."""
    recipe: BaselineRecipe = "paper"
    """In a study of an earlier version the paper's."""
    description: str = ""
    """How it was trained, in words; empty in a study of an earlier version."""
    model_digest: str = ""
    """SHA-256, hex, of the file `LABELS_ALONE_MODEL` of the study's folder; empty in a study of an earlier version."""

    @property
    def is_adjusted(self) -> bool:
        """Whether the labels' frequencies were taken out of the model, which then takes all classes for equally
        frequent."""
        return LOGIT_ADJUSTMENT in self.description


def cut_short(result: LabelledOnlyResult) -> str:
    """Why labels alone were trained for fewer epochs than asked for, for a person; empty when they were not."""
    if result.ended == "epochs":
        return ""
    why = "time budget" if result.ended == "budget" else "validation flat"
    return f"{result.epochs} of {result.asked} epochs: {why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRow:
    """One study."""

    name: str
    position: int
    state: StudyState
    config: Tables
    """The checked tables of its study file; empty of a study that was refused. Plain, since it may name a method that
    is not installed here (any more): `semisilo.coordinator.studies.study_file.config_from_dict` gives the settings
    themselves."""
    frozen: FrozenStudy | None
    """None until its images were read for the first time."""
    numerics: NumericsRecord | None
    baseline: LabelledOnlyResult | None
    """None where it was not asked for, or not trained yet."""
    queued_unix: float
    started_unix: float | None
    """When it first began with what still counts: not when it was last queued again."""
    ended_unix: float | None
    reason: str
    paired: PairedGain | None = None
    """What the round that is handed over is better by than labels alone; None until the study is over."""

    @property
    def study_measure(self) -> StudyMeasure:
        """What it chooses, compares and draws by; accuracy until the images were read."""
        return ACCURACY if self.frozen is None else self.frozen.study_measure

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; () until the images were read."""
        return () if self.frozen is None else self.frozen.classes

    @property
    def dense_bytes(self) -> int:
        """The papers' 100 %, see `FrozenStudy`; 0 until the images were read."""
        return 0 if self.frozen is None else self.frozen.dense_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundHead:
    """How one round of a study stands, without what it is made of: of a long study these are read all together."""

    number: int
    state: RoundState
    phase: int
    opened_unix: float
    closed_unix: float | None
    start_digest: str
    state_digest: str
    metrics: dict[str, float]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow(RoundHead):
    """One round of a study."""

    study: str
    phases: tuple[Phase, ...]
    sample: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseHead:
    """How one phase of a round stands, without what an update of it must hold."""

    study: str
    round: int
    number: int
    name: str
    quorum: int
    opened_unix: float
    deadline_unix: float
    limit_unix: float
    closed_unix: float | None
    step: SumStep = ""
    """Of a secure sum; empty where updates go in the clear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRow(PhaseHead):
    """One phase of a round."""

    expects: dict[str, GroupLayout]
    """The tensor groups that an update must hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """What one silo was asked, and its answer."""

    task_id: str
    study: str
    round: int
    phase: int
    silo: str
    state: TaskState
    spec: TaskSpec
    opened_unix: float
    given_unix: float | None
    closed_unix: float | None
    update_id: str | None
    reason: str
    metrics: dict[str, float]
    study_state: StudyState | None = field(default=None, compare=False)
    """Of its study, where it was read with it; None where it was not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredUpdate:
    """An update that a silo has declared; its bytes have come and are right when `accepted_unix` is set."""

    update_id: str
    task_id: str
    digest: str
    size_bytes: int
    groups: dict[str, int]
    example_count: int
    metrics: dict[str, float]
    training_seconds: float
    declared_unix: float
    accepted_unix: float | None
    folded: bool

    def header(self, silo: str) -> UpdateHeader:
        """What a strategy hears of it before its tensors are read; `silo` is the one that was given its task."""
        from semisilo.common.methods.contract import UpdateHeader

        return UpdateHeader(silo=silo, num_examples=self.example_count, metrics=self.metrics)


_MOST_SPECS = 16_384
_SPECS: dict[str, TaskSpec] = {}
"""Column -> the task in it, the oldest first: the same row is read again and again while a silo works on it."""


def _json(text: str | None) -> Any:
    if text == "{}":  # most columns of metrics
        return {}
    return None if text is None else json.loads(text)


def _record(cls: type[T], text: str) -> T:
    """The dataclass that a column holds."""
    found: T = _parsed(typing.cast(Hashable, cls), text)
    return found


@functools.lru_cache(maxsize=256)
def _parsed(cls: Hashable, text: str) -> Any:
    """The same row is read again and again while a round runs, by thousands of silos in turn."""
    return from_dict(typing.cast(type, cls), json.loads(text))


def task_column(spec: TaskSpec) -> str:
    """What the column of a task holds. Reading it anew is spared from now on: who writes a thousand tasks has them."""
    text = canonical_json(spec)
    _remember(text, spec)
    return text


def forget_tasks(*, keep: int) -> None:
    """Lets go of all tasks that were remembered but the newest: those of earlier rounds nobody works on. A task takes
    tens of kilobytes, and what is kept makes every run of Python's collector longer."""
    while len(_SPECS) > keep:
        _SPECS.pop(next(iter(_SPECS)), None)


def _remember(text: str, spec: TaskSpec) -> None:
    _SPECS[text] = spec
    forget_tasks(keep=_MOST_SPECS)


def _task_spec(text: str) -> TaskSpec:
    found = _SPECS.get(text)
    if found is None:
        from semisilo.common.methods.contract import TaskSpec

        found = from_dict(TaskSpec, json.loads(text))
        _remember(text, found)
    return found


def _record_or_none(cls: type[T], text: str | None) -> T | None:
    return None if text is None or text == "{}" else _record(cls, text)


@functools.lru_cache(maxsize=8)
def _names(text: str) -> tuple[str, ...]:
    """A round's sample: of a thousand silos it is long, and read for each of them."""
    return tuple(json.loads(text))


@functools.lru_cache(maxsize=128)
def _phases(text: str) -> tuple[Phase, ...]:
    from semisilo.common.methods.contract import Phase

    return tuple(from_dict(Phase, each) for each in json.loads(text))


@functools.lru_cache(maxsize=128)
def _expects(text: str) -> dict[str, GroupLayout]:
    """What a phase expects is another text in every round, with tens of kilobytes for a network of many tensors: few
    are kept."""
    from semisilo.common.methods.contract import GroupLayout

    return {name: from_dict(GroupLayout, each) for name, each in json.loads(text).items()}


def study_row(row: sqlite3.Row) -> StudyRow:
    """A row of table study."""
    return StudyRow(name=row["name"], position=row["position"], state=StudyState(row["state"]),
                    config=_json(row["config_json"]), frozen=_record_or_none(FrozenStudy, row["frozen_json"]),
                    numerics=_record_or_none(NumericsRecord, row["numerics_json"]),
                    baseline=_record_or_none(LabelledOnlyResult, row["baseline_json"]),
                    queued_unix=row["queued_unix"], started_unix=row["started_unix"], ended_unix=row["ended_unix"],
                    reason=row["reason"], paired=_record_or_none(PairedGain, row["paired_json"]))


def round_head(row: sqlite3.Row) -> RoundHead:
    """A row of table round, or the columns of it that a head has."""
    return RoundHead(number=row["number"], state=RoundState(row["state"]), phase=row["phase"],
                     opened_unix=row["opened_unix"], closed_unix=row["closed_unix"], start_digest=row["start_digest"],
                     state_digest=row["state_digest"], metrics=_json(row["metrics_json"]), reason=row["reason"])


def round_row(row: sqlite3.Row) -> RoundRow:
    """A row of table round."""
    return RoundRow(study=row["study"], number=row["number"], state=RoundState(row["state"]), phase=row["phase"],
                    phases=_phases(row["phases_json"]), sample=_names(row["sample_json"]),
                    opened_unix=row["opened_unix"], closed_unix=row["closed_unix"], start_digest=row["start_digest"],
                    state_digest=row["state_digest"], metrics=_json(row["metrics_json"]), reason=row["reason"])


def phase_head(row: sqlite3.Row) -> PhaseHead:
    """A row of table phase, or the columns of it that a head has."""
    return PhaseHead(study=row["study"], round=row["round"], number=row["number"], name=row["name"],
                     quorum=row["quorum"], opened_unix=row["opened_unix"], deadline_unix=row["deadline_unix"],
                     limit_unix=row["limit_unix"], closed_unix=row["closed_unix"], step=row["step"])


def phase_row(row: sqlite3.Row) -> PhaseRow:
    """A row of table phase."""
    return PhaseRow(study=row["study"], round=row["round"], number=row["number"], name=row["name"],
                    quorum=row["quorum"], opened_unix=row["opened_unix"], deadline_unix=row["deadline_unix"],
                    limit_unix=row["limit_unix"], closed_unix=row["closed_unix"],
                    expects=_expects(row["expects_json"]), step=row["step"])


def task_row(row: sqlite3.Row, study_state: StudyState | None = None) -> TaskRow:
    """A row of table task.

    Args:
        study_state: of its study, where that was read as well.
    """
    return TaskRow(task_id=row["task_id"], study=row["study"], round=row["round"], phase=row["phase"],
                   silo=row["silo"], state=TaskState(row["state"]), spec=_task_spec(row["spec_json"]),
                   opened_unix=row["opened_unix"], given_unix=row["given_unix"], closed_unix=row["closed_unix"],
                   update_id=row["update_id"], reason=row["reason"], metrics=_json(row["metrics_json"]),
                   study_state=study_state)


def declared_update(row: sqlite3.Row) -> DeclaredUpdate:
    """A row of table declared_update."""
    return DeclaredUpdate(update_id=row["update_id"], task_id=row["task_id"], digest=row["digest"],
                          size_bytes=row["size_bytes"], groups=_json(row["groups_json"]),
                          example_count=row["example_count"], metrics=_json(row["metrics_json"]),
                          training_seconds=row["training_seconds"], declared_unix=row["declared_unix"],
                          accepted_unix=row["accepted_unix"], folded=bool(row["folded"]))
