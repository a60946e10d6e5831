"""What the coordinator's light process asks of its compute process, and what comes back. No torch is needed for it.

`semisilo.coordinator.compute.operations.Operations` has the method for each. A state of the strategy is named by its
digest, and the digest by its file `<study>/states/<sha256>.safetensors`; a phase and what is kept for a silo are as the
ledger has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from semisilo.common.learning.outliers import UpdateMeasure
from semisilo.common.measures.intervals import Interval
from semisilo.common.methods.contract import GroupLayout, PayloadRef, Phase, UpdateHeader
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.payload.usage import Encoded
from semisilo.common.process.messages import Request
from semisilo.common.secure_aggregation.mask_form import MaskForm, SumOutcome
from semisilo.coordinator.ledger.records import BaselineRecipe, FrozenStudy, LabelledOnlyResult
from semisilo.coordinator.secure_aggregation.groups import MaskedGroup
from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["Aggregate", "Aggregated", "Baseline", "BaselineFound", "BaselineProgress", "CheckUpdate", "CheckedUpdate",
           "Compare", "Compared",
           "Evaluate", "Evaluated", "Export", "Exported", "MaskedSum", "OpenStudy", "OpenedStudy",
           "Phases", "PhasesOfRound", "Prepare", "Prepared", "SpooledUpdate", "Tasks", "WrittenTask", "WrittenTasks"]

# Studies --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedStudy:
    """A study is open in the compute process."""

    frozen: FrozenStudy
    """What was frozen now, or when the study was opened for the first time."""
    numerics: NumericsRecord
    """In force from now on."""
    code: str = ""
    """`FrozenStudy.code` as it is now."""
    round_0_steps: int = 0
    """Steps that labels alone are trained for, where their model is to be that of round 0; 0 where the strategy makes
    its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenStudy(Request[OpenedStudy]):
    """Reads the coordinator's images, freezes what follows from them and builds the strategy."""

    name: str
    config: StudyConfig
    study_folder: Path
    """The study's own folder: relative paths of its settings start here, and its states lie in it."""
    payloads_folder: Path
    """Store of what silos download."""
    images_folder: Path | None = None
    """A folder on whose disk decoded images lie that are too many for memory; None where they must not."""
    num_silos: int
    """Silos that must have joined before round 1."""
    frozen: FrozenStudy | None
    """What an earlier opening has frozen; None at the first."""
    threads: int = 0
    """Threads of an operation that an earlier opening has measured, where the study leaves them to the machine."""
    may_have_changed: bool = False
    """Whether images that are not those of the first opening are told and not refused: where nothing more is trained
    and only a model is to be written."""

    def reopening(self, answer: OpenedStudy) -> OpenStudy:
        """A fresh process opens the study with what was frozen and measured the first time."""
        return replace(self, frozen=answer.frozen, threads=answer.numerics.threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Round 0 is done."""

    state: str
    """Digest of the state before round 1."""
    metrics: dict[str, float]
    """Of its model, as `Evaluated` has them."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """Likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare(Request[Prepared]):
    """Round 0 of the open study, from the initial model or from that of labels alone."""

    labels_alone: str = ""
    """Digest of the file of their model, which the ledger names; empty for the initial model."""
    loss: float = 0.0
    """Of the last step of labels alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineProgress:
    """How far labels alone are."""

    epochs: int
    """Whole passes so far."""
    planned: int
    """Whole passes at its end, as far as is known."""
    fraction: float
    """Share that is done, 0 to 1."""
    seconds_left: float | None
    """Of work; None before the first batch."""
    doing: str = ""
    """What it is at before its epochs; empty during them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineFound:
    """What a slice of the work on labels alone has come to."""

    done: bool
    result: LabelledOnlyResult | None
    """Once it is done; None then where the coordinator has no labelled images, or no test images."""
    progress: BaselineProgress | None = None
    """While it is not done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline(Request[BaselineFound]):
    """A slice of the work on labels alone: goes on training the same network on the coordinator's labelled images, at
    the end measures it on the test images. How the work is cut changes no bits, unless there is a budget."""

    recipe: BaselineRecipe = "strong"
    epochs: int = 0
    """Passes over the labelled images; 0 for as many as the recipe makes."""
    budget_seconds: float = 0.0
    """Time that all slices together may take; 0 for as long as it takes."""
    patience: int = 0
    """Ends once the accuracy on validation images has not risen for so many epochs; 0 for never."""
    slice_seconds: float
    """The slice ends with the first batch beyond."""


# A round --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasesOfRound:
    """What a round is made of."""

    phases: tuple[Phase, ...]
    """In order."""
    state: str = ""
    """What the round starts from, where the strategy has noted in it how many silos there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases(Request[PhasesOfRound]):
    """The phases of a round."""

    state: str
    """The state that the round before has left."""
    round: int
    silos: int
    """In the federation as the round opens, whether they are asked or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenTask:
    """What one silo is asked: the part of its task that the strategy decides."""

    settings: dict[str, object]
    """All fields of the method's settings, as `to_dict` gives them."""
    payloads: tuple[PayloadRef, ...]
    """One for each tensor group; files in the payload store, but for what the silo holds."""
    brings_model: bool = False
    """Whether its groups `model` and `batch_norm` are the model of the state that it was written from, as it is
    evaluated here: not so where silos are sent another, or where statistics that the network needs do not come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenTasks:
    """The tasks of a phase, with their payloads on disk."""

    tasks: dict[str, WrittenTask]
    """By the name of the silo."""
    expects: dict[str, GroupLayout]
    """The tensor groups that every update of the phase must hold."""
    largest: tuple[float, ...] = ()
    """Where updates are added up behind masks: of each tensor of an update, groups by name, the largest magnitude that
    the tensor of that name has in the model; 0 where the model has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tasks(Request[WrittenTasks]):
    """Writes what each silo is asked in a phase.

    Every tensor group is a payload of its own, so that a group that did not change keeps its digest: what is frozen of
    the network comes with every task, and is sent to a silo once.
    """

    is_long: ClassVar[bool] = True
    study: str = ""
    """Of the state; empty where who asks has just opened it. StudyNotOpen says that it is not open."""
    state: str
    round: int
    phase: Phase
    silos: dict[str, str | None]
    """By name, the digest of what the strategy keeps for the silo, or None."""
    held: dict[str, tuple[str, ...]]
    """By name, the digests of tensor groups that the silo has said to hold."""
    link_bytes_per_second: float
    """The slowest of the silos' links, which the round waits for; 0 when not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpooledUpdate:
    """An update whose bytes have all come, as a file of the spool."""

    header: UpdateHeader
    """What its silo has declared of it."""
    path: Path
    """Its file, called by its digest."""
    kept: str | None
    """Digest of what the strategy keeps for the silo, as when the task was written; None for nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedUpdate:
    """An update may be folded."""

    held: tuple[str, ...] = ()
    """Digests of tensors that the silo holds from now on, since its update has overwritten some."""
    encoded: tuple[Encoded, ...] = ()
    """What the blocks of its file take, by encoding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckUpdate(Request[CheckedUpdate]):
    """Whether an update that has arrived may be folded: BadPayload, LayoutMismatch or WrongBase say that it may not,
    StudyNotOpen that nothing can be said of it yet."""

    study: str
    """Of the update. A silo sends it whenever it has trained, also while another study is open or none is."""
    state: str
    round: int
    phase: Phase
    update: SpooledUpdate
    masked: dict[str, GroupLayout] | None = None
    """What it must hold where it is masked; None for what the strategy expects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedSum:
    """The updates are words behind masks: the strategy is given the mean of each group as the update of one silo."""

    form: MaskForm
    groups: tuple[MaskedGroup, ...]
    """Every update is of one of them; none where nothing is added up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregated:
    """A phase is closed."""

    state: str
    """Digest of the state after the phase."""
    kept: dict[str, str | None]
    """By the name of each silo whose update was folded: digest of what the strategy keeps for it from now on."""
    metrics: dict[str, float]
    """Of the silos' own models, where the study asks for them."""
    measures: dict[str, UpdateMeasure] = field(default_factory=dict)
    """By silo, of each update that has something to measure, also of those that were left out."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By silo whose update was not folded: why, for a person."""
    notices: dict[str, str] = field(default_factory=dict)
    """By silo of whose update an operator should hear something: what the strategy says."""
    outcome: SumOutcome | None = None
    """Of masked updates; None where there were none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregate(Request[Aggregated]):
    """Folds the accepted updates of a phase, one in memory at a time, and finishes the phase. Updates with which the
    state would not be finite are left out.

    StorageDamaged says that a spooled file is not what was accepted; ComputeFailed, that the coordinator's own training
    diverges.
    """

    is_long: ClassVar[bool] = True
    state: str
    round: int
    phase: Phase
    updates: tuple[SpooledUpdate, ...]
    """In byte order of the names of silos; may be empty."""
    masked: MaskedSum | None = None
    """None for updates in the clear."""
    gone: tuple[str, ...] = ()
    """Silos that were set aside or revoked, or have left."""


# Models ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What was measured."""

    metrics: dict[str, float]
    """Of the model, and the strategy's diagnostics; finite numbers."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """(K, K), confusion[true][predicted], in test images; () where there are none or too many classes. Where images may
    have several labels (K, 4): see `semisilo.coordinator.compute.evaluation.MeasuredModel`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate(Request[Evaluated]):
    """Measures the model of a state on the coordinator's images."""

    state: str
    round: int
    """The round that gave the state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """How far a model may be better than labels alone."""

    patients: int
    """As `semisilo.common.measures.gain.PairedGain` has it, like the next."""
    intervals: dict[str, Interval]
    """Empty where there are no test images, or the model cannot be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare(Request[Compared]):
    """What the model of a state and that of labels alone answer to each of the coordinator's test images."""

    state: str
    labels_alone: str
    """Digest of the file of their model, which the ledger names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A model was written."""

    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(Request[Exported]):
    """Writes the model of a state as one safetensors file that needs nothing else to be used."""

    state: str
    """Of labels alone the digest of their model's file, which the ledger names."""
    labels_alone: bool = False
    adjusted: bool = False
    """Whether these were trained with logit adjustment."""
    path: Path
