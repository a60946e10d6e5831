"""The contract between the halves of a method: tasks and updates, and the Strategy and Trainer protocols.

A strategy (at the coordinator) and a trainer (at a silo) see tensors and numbers only: no clock, no disk, no network.
Whatever crosses is named here and in the method's `MethodSpec`. This module imports no torch, so that the light
processes may import it.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from semisilo.common.config import ABSENT_AT_DEFAULT
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.measures.study_measure import BALANCED_ACCURACY, StudyMeasure
from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivateTask, SiloNoise
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.common.methods.uplink import Uplink

if TYPE_CHECKING:
    import torch

    from semisilo.common.data.readers import ImageSet

__all__ = [
    "FROM_TASK", "CoordinatorData", "Environment", "GroupLayout", "Meaning", "Memory", "ModelBuilder", "ModelSettings",
    "PayloadRef", "Phase", "SiloData", "SiloState", "SiloTask", "Strategy", "Tally", "Task", "TaskSpec", "TensorGroup",
    "TensorSpec", "Tensors", "Trainer", "Update", "UpdateHeader", "Updates", "task_id_of", "try_of",
]

_SHA256 = re.compile("[0-9a-f]{64}")
_WITHOUT_NORMALISATION = ("resnet9", "alexnet_like", "mlp_5000")
"""Built-in networks that their papers use without normalisation layers."""

SumStep = Literal["", "keys", "shares", "mask", "confirm", "unmask"]
"""Of a phase whose updates are added up behind masks; empty where they go in the clear."""
FROM_TASK = "task"
"""In `GroupLayout.base`: the group of the same name that the silo was sent in its task."""

Tensors = Mapping[str, "torch.Tensor"]
"""Named tensors in a fixed order: the order of the model's `named_parameters()`."""

ModelBuilder = Callable[[], "torch.nn.Module"]
"""Makes the network of a study on the CPU; every call gives a new one, with weights from torch's global generator."""
State = TypeVar("State")
T = TypeVar("T")
Tally = Any
"""What a strategy carries while it folds: its own frozen dataclass."""
Memory = Any
"""What a trainer keeps between rounds: its own frozen dataclass, or None."""
SiloState = Any
"""What a strategy keeps per silo: its own frozen dataclass, or None."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and type of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As numpy and torch spell it: "float32", "bfloat16", "int64", ..."""

    @property
    def num_elements(self) -> int:
        """Product of the shape; 1 for a scalar."""
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """One named tensor group as a strategy or trainer hands it over or receives it, decoded."""

    tensors: Tensors
    meaning: Meaning = Meaning.VALUES
    base: str = ""
    """Hex digest (`semisilo.common.learning.tensors.digest`) of the tensors that a DIFFERENCE or OVERWRITE refers to;
    else empty."""
    digest: str = ""
    """Hex digest of `tensors` where it is known, so that nobody computes it twice
    (`semisilo.common.learning.tensors.group_digest`)."""
    base_tensors: Tensors | None = None
    """The tensors that `base` is the digest of, set by who hands over an OVERWRITE: what the receiver has already, so
    that only the elements whose bits differ are sent. A receiver gets groups without it."""


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """What an update's group must look like, known before its bytes arrive."""

    meaning: Meaning
    base: str
    """Hex digest of the base of a DIFFERENCE or OVERWRITE; empty for VALUES. `FROM_TASK` stands for the group of the
    same name in the task of the silo that answers, which may be another one for every silo."""
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """Names a payload file without its bytes."""

    digest: str
    """SHA-256 of the whole file, hex."""
    size_bytes: int
    groups: tuple[str, ...]
    tensors: str = ""
    """Hex digest of the tensors of its only group: set in tasks, so that who holds them fetches nothing."""
    reference: str = ""
    """Hex digest of the tensors that its reader must hold; empty for a payload that stands alone."""
    held_bytes: int = 0
    """Dense bytes of tensors that its reader holds, so that no file is named; the coordinator's own note, not sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """The network of a study."""

    name: str = "small_cnn"
    """A built-in name, a torchvision name, "timm/NAME", "monai/NAME", "transformers/FOLDER",
    "package.module:factory", or "file.py:factory"."""
    classes: tuple[str, ...] = ()
    """Class names in label order; frozen when the study starts."""
    normalisation: Literal["auto", "static_batch", "group", "layer", "none"] = "auto"
    """What stands in the place of batch-norm layers; models.md, "Batch normalisation in a federation". "auto": what the
    network's paper has, that is "none" for those that were published without, else "static_batch"."""
    weights: str = ""
    """The coordinator's file of trained weights to start from; empty: random ones. It does not travel."""
    freeze: tuple[str, ...] | str = ()
    """Parts of the network that keep their weights, as parameter names, module names or patterns; or "backbone", all
    but the head. It does not travel: tasks bring the frozen tensors as group `frozen`, which says it all."""
    factory_sha256: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """Of "file.py:factory": SHA-256 of the file, hex, by which a silo knows the file that it permits. Of a network that
    was handed over from Python: what tells it from others. Else empty."""

    def __post_init__(self) -> None:
        if self.factory_sha256 and (_SHA256.fullmatch(self.factory_sha256) is None
                                    or not (":" in self.name or self.name.startswith("transformers/"))):
            raise ValueError(f'factory_sha256 = "{self.factory_sha256[:80]}": must be 64 lower-case hex digits, beside'
                             ' a name of the form "file.py:factory".')
        if isinstance(self.freeze, str) and self.freeze != "backbone":
            raise ValueError(f'freeze = "{self.freeze}": write a list of names, such as ["{self.freeze}"], or'
                             ' "backbone" for all but the head.')

    def sent(self, classes: tuple[str, ...]) -> ModelSettings:
        """What silos are told of it, with the study's classes; weights and what is frozen come with tasks."""
        return ModelSettings(name=self.name, classes=classes, normalisation=self.normalisation,
                             factory_sha256=self.factory_sha256)

    @property
    def normalisation_layers(self) -> Literal["static_batch", "group", "layer", "none"]:
        """The kind of layers that the network gets."""
        if self.normalisation != "auto":
            return self.normalisation
        return "none" if self.name in _WITHOUT_NORMALISATION else "static_batch"


def task_id_of(study: str, round: int, phase: str, silo: str, *, again: int = 0) -> str:
    """The name of a task: "first/12/0-train/hospital-a".

    Args:
        phase: number and name, which make it the only one of its round.
        again: how often the study had gone back before. A silo that has answered a task sends the same answer again, so
            what is asked when a round is done again needs another name.
    """
    return "/".join([study, str(round), phase, silo, *([str(again)] if again else [])])


def try_of(task_id: str) -> str:
    """What is different in the names of the tasks of a round once it is done again; empty the first time."""
    return "/".join(task_id.split("/")[4:])


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """What one silo is asked to do, without the tensors: settings and payload references. Plain JSON types only."""

    task_id: str
    study: str
    round: int
    rounds: int
    phase: str
    silo: str
    method: str
    settings: dict[str, object]
    model: ModelSettings
    image: ImageForm
    augmentation: AugmentationSettings
    numerics: Numerics
    payloads: tuple[PayloadRef, ...]
    last_folded_round: int
    seed: int
    deadline_unix: float = 0.0
    uplink: Uplink = field(default_factory=Uplink)
    model_round: int | None = None
    """The round after which the global model is what the groups `model` and `batch_norm` of the task hold; None where
    they hold another model."""
    model_digest: str = ""
    """Hex digest that tells the model of `model_round` apart from another of the same round, which there may be once a
    study has gone back; empty where there is none, or the coordinator is of a version without."""
    measure: str = ""
    """What the study compares rounds by, as `semisilo.common.measures.study_measure.parse_measure` reads it; empty:
    accuracy."""
    secure: str = ""
    """The message SecureTask, serialised, in hex: which step of a secure sum this is. Empty where updates go in the
    clear."""
    dp: DifferentialPrivacy | None = None
    """Table [privacy.dp] of the study; None where it has none."""
    card: str = ""
    """Hex digest of the study's card (`semisilo.common.methods.study_card`), which a silo must have signed; empty where
    the coordinator is of a version without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a strategy asks of one silo in one phase: the settings that differ from the study's, and tensor groups."""

    groups: Mapping[str, TensorGroup]
    """The same TensorGroup object may appear in the tasks of many silos; it is encoded once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values for fields of the method's settings that change per round or silo, for example the learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloTask:
    """A task as the trainer receives it: checked settings and decoded tensors."""

    study: str
    round: int
    rounds: int
    phase: str
    silo: str
    seed: int
    settings: Any
    """An instance of the method's settings dataclass."""
    groups: Mapping[str, TensorGroup]
    build_model: ModelBuilder
    augmentation: AugmentationSettings
    image: ImageForm
    device: str = "cpu"
    progress: Any = None
    """Callable (fraction 0..1, text) -> None; may raise to abort. None where nobody watches."""
    last_folded_round: int = 0
    """The last round whose update from this silo the coordinator has folded; 0 for none."""
    private: PrivateTask | None = None
    """Set where the study has differential privacy of single images: nothing may then leave but what was clipped and
    noised with it, and what follows from counts. None for none."""

    def report(self, fraction: float, text: str = "") -> None:
        """Tells how far the work is; cheap to call after every batch."""
        if self.progress is not None:
            self.progress(fraction, text)


ALL_SILOS = "*"
"""In the place of a silo's name, which is none: the mean of all updates that were added up behind masks."""


NUM_LABELLED = "num_labelled"
"""Metric of methods that average a part of the model over silos with labels alone: from how many labelled images an
update is. It counts as no more than its silo has announced."""


@dataclass(frozen=True, slots=True)
class UpdateHeader:
    """What is known of an accepted update before its tensors are read."""

    silo: str
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    uncut_examples: int | None = None
    """What the silo said, where `num_examples` may be less: a count is cut by the counts of who else answered, so only
    this tells of two rounds whether the silo has other images. None: `num_examples` is what it said."""
    weight_reference: int = 0
    """Of the mean of several silos' updates, where they weigh by their images: what a silo's count is cut to, the same
    for all."""

    @property
    def said_examples(self) -> int:
        """Images, as the silo said."""
        return self.num_examples if self.uncut_examples is None else self.uncut_examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What a trainer returns: tensor groups, or an abstention with its reason."""

    groups: Mapping[str, TensorGroup] = field(default_factory=dict)
    num_examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    abstention: str = ""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Of methods that have any (`semisilo.common.methods.parts.secure_sum.totals_of`): numbers of at least 0 that are
    added up behind masks, where updates are, and leave the silo in no other way."""
    exact: Tensors | None = field(default=None, repr=False)
    """Where `PrivateTask.shared`: in place of the group `model`, which is zeros, its numbers without noise, float64 by
    parameter. What one image moves of them is bounded exactly. They leave with this silo's share of the noise behind
    masks, or not at all."""


class Updates(Protocol):
    """The accepted updates of one phase, in silo order, to be looked at before they are folded."""

    @property
    def headers(self) -> tuple[UpdateHeader, ...]:
        """What is known of each."""

    def norms(self, group: str) -> Sequence[float]:
        """Euclidean norm of a group of every update, over all its elements. Costs nothing after a check."""

    def read(self, index: int) -> Mapping[str, TensorGroup]:
        """The decoded groups of one update. One at a time is in memory."""

    def blocks(self, group: str) -> Iterator[torch.Tensor]:
        """A group of all updates, flat, block by block of coordinates: (N, B), float32 unless the group is wider. The
        coordinates are those of its tensors one after another, in the group's order."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A step of a round in which silos work."""

    name: str
    asks: Literal["sample", "roster"] = "sample"
    """Whether the round's sample or every joined silo is asked."""
    quorum: Literal["study", "any"] = "study"
    """"study": the study's quorum; "any": closes at the deadline with whoever has answered, even nobody."""
    step: SumStep = ""
    """Where updates are added up behind masks: which step of the sum it is. "mask" stands for the phase of the method
    itself, whose name it has; a strategy sees that one alone, without a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorData:
    """What the coordinator holds; sets that are not configured are None."""

    labelled: ImageSet | None = None
    validation: ImageSet | None = None
    test: ImageSet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloData:
    """What a silo holds. `labelled` is None in the scenario labels-at-coordinator, and where a silo has no labels."""

    labelled: ImageSet | None = None
    unlabelled: ImageSet | None = None
    """In a simulation they keep their labels, for diagnostics alone: no training may look at them."""
    test: ImageSet | None = None
    """What the silo's own model is measured on, where there is such a set (always in a simulation of a study that has
    a test set)."""


class StartWork(Protocol):
    """Keeps long work before round 1, so that a process that comes after a kill goes on with it."""

    def left(self, kind: type[T]) -> T | None:
        """What an earlier process has left, if it is of this kind."""

    def keep(self, position: Callable[[], object]) -> None:
        """Takes note of where the work stands, now and then; cheap to call after every batch.

        Args:
            position: makes a dataclass as `semisilo.common.storage.checkpoint` writes them; called when one is wanted.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """What a strategy may use besides its state: handed to its constructor."""

    seed: int
    rounds: int
    num_silos: int
    """Silos that must have joined before round 1 (`start_with`)."""
    data: CoordinatorData
    build_model: ModelBuilder
    image: ImageForm
    augmentation: AugmentationSettings
    num_classes: int = 0
    """K of the study; 0 for methods that do not ask."""
    device: str = "cpu"
    progress: Any = None
    robust: RobustSettings = field(default_factory=RobustSettings)
    """Table [robust] of the study."""
    largest_weight: float = 1.0
    """The largest share that one update, or `robust.capped_together` of them, may have in an average whose weights
    silos have a say in; 1 for no limit. Counts of images are cut to it before a strategy sees them."""
    summed: bool = False
    """Whether updates are added up behind masks: the strategy then gets means of several silos' updates, each as the
    update of one silo, and what it asks must be the same for all silos."""
    silo_noise: SiloNoise | None = None
    """Where the study has differential privacy of whole silos."""
    trained_before: bool = False
    """Whether the initial model is one that was trained before, so that it must be started from as it is."""
    measure: StudyMeasure = BALANCED_ACCURACY
    """What the study chooses, stops and compares by, so that gates aim at the same."""
    start_work: StartWork | None = None
    """Where the work of `Strategy.start` is kept while it is under way; None where nobody goes on with it."""

    def report(self, fraction: float, text: str = "") -> None:
        """Tells how far the work is; cheap to call after every batch."""
        if self.progress is not None:
            self.progress(fraction, text)


class Strategy(Protocol[State]):
    """The coordinator half of a method. Built as `Strategy(settings, environment)`.

    State, Tally and SiloState are frozen dataclasses whose fields are numbers, text, None, JSON lists/dicts or
    `dict[str, torch.Tensor]`, so that `semisilo.common.storage.checkpoint` can write them. Folding happens in silo
    order (byte order of names), so the same accepted updates give the same bits whatever their order of arrival. What
    is computed once for many silos is remembered by the state that it is made of, never by the strategy.

    A strategy may have nine more methods:

        starts_from_labels_alone() -> bool
            whether round 0 may begin from the model of labels alone in the place of the initial one
        start_from(parameters, *, loss: float) -> State
            round 0 in the place of `start`, where it does: their parameters, and the loss of their last step
        opened(state, *, round, silos: int) -> State
            before the phases of a round, from the state that the round before has left: how many silos the federation
            has now, whether they are asked or not. A state that it changes is written down before any silo is asked
        leave(phase, tally, silos: tuple[str, ...]) -> Tally
            after `begin`, of silos that the coordinator asks nothing any more, where there are any: nothing that they
            have left in a sum is to stay in it. Not where updates are added up behind masks
        appraise(state, phase, tally, updates: Updates, *, round) -> tuple[Tally, Mapping[str, float]]
            looks at all accepted updates after `begin` and before the first `fold`, and may weigh them anew; also
            numbers about that, which stand among the round's metrics
        notices(tally) -> Mapping[str, str]
            asked after the last `fold`: by silo, what an operator should hear of its update, in words behind its name
        accepted(state) -> float
            share of what silos returned that the training which gave this state has taken over, where the strategy may
            refuse it. With 0 an operator hears whose updates point away, and where one is long and the rule of [robust]
            is "none" the phase is folded once more with "norm_clipping", by an instance that is built for it
        diagnostics(state) -> Mapping[str, float]
            numbers about the round that gave this state; they stand among the round's metrics
        local_model(state, groups, kept) -> tuple[Tensors, Tensors]
            parameters and batch-norm statistics of one silo's own model, from its decoded update; for the diagnostic
            "local accuracy". Raises or is missing where the update does not hold a model.
    """

    def start(self, initial: Tensors) -> State:
        """Round 0: from the freshly initialised model to the state before round 1 (fine-tuning, statistics)."""

    def phases(self, state: State, round: int) -> tuple[Phase, ...]:
        """The phases of a round, in order."""

    def task(self, state: State, phase: Phase, silo: str, kept: SiloState, *, round: int) -> Task:
        """What one silo is asked in a phase."""

    def expects(self, state: State, phase: Phase, *, round: int) -> Mapping[str, GroupLayout]:
        """The groups that an update of this phase must hold: checked before a byte of it is taken."""

    def begin(self, state: State, phase: Phase, headers: tuple[UpdateHeader, ...], *, round: int) -> Tally:
        """Fixes the weights of the accepted updates (abstentions are not among them; the tuple may be empty)."""

    def fold(self, state: State, tally: Tally, header: UpdateHeader, groups: Mapping[str, TensorGroup],
             kept: SiloState) -> tuple[Tally, SiloState]:
        """Adds one silo's decoded update.

        Raises: BadPayload or ComputeFailed where that cannot be done; the phase is then closed without it, by name.
        """

    def finish(self, state: State, phase: Phase, tally: Tally, *, round: int) -> State:
        """Closes a phase; coordinator training happens here."""

    def model(self, state: State) -> tuple[Tensors, Tensors]:
        """The model to evaluate and export: (parameters, static batch-norm statistics or an empty dict)."""


class Trainer(Protocol):
    """The silo half of a method. Stateless: what it keeps goes through `memory`."""

    def train(self, task: SiloTask, data: SiloData, memory: Memory | None) -> tuple[Update, Memory | None]:
        """Trains for one phase of one round; returns the update and what to keep if it is folded."""
