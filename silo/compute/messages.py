"""What a silo's light process asks of its compute process, and what it gets back.

One frozen dataclass for each operation, and one for its answer; `semisilo.silo.compute.operations.Operations` and
`semisilo.silo.check.measure_operations.Operations` have a method for each. This module imports no torch, for both
processes need it.

Tests: tests/silo/compute/test_operations.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.site_evaluation import ClassResult
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.models.own.model_file import PermittedCode
from semisilo.common.process.messages import Request
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.policy import PrivacyPolicy

__all__ = ["Dismiss", "Dismissed", "EvaluateFile", "EvaluateReceived", "Evaluated", "EvaluatedFile", "MeasureSteps",
           "MeasuredSteps", "Survey", "Surveyed", "Train", "Trained"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyed:
    """How many images a silo has, counted without decoding them."""

    labelled: int
    """With a class: what a study with labels at silos would train on as labelled."""
    unlabelled: int
    test: int = 0
    steps: int = 0
    """Steps in which the unlabelled images come; 0 when all are there from the start."""
    layout: str = ""
    """Of a folder: what its own folders are taken for (`semisilo.common.data.layout.Layout`)."""
    question: str = ""
    """What a person must say of them, on one line; "" where all is clear."""
    remedy: str = ""
    """What to set then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey(Request[Surveyed]):
    """Counts the images of this site, before any study is known.

    Raises: BadData when a source cannot be used.
    """

    choice: JoinChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What came of a task: files that are written, and numbers. Nothing of it is durable as an answer yet."""

    payload: PayloadRef | None
    """Of the update, in the outgoing store; None for an abstention."""
    abstention: str = ""
    """Why there is no update; empty when there is one."""
    num_examples: int = 0
    metrics: dict[str, float]
    memory: Path | None
    """File of what the trainer wants to keep, called by its digest; None when it keeps nothing."""
    residuals: Path | None
    """The same of what lossy updates have left out; None where it stays as it is."""
    seconds: float
    """How long it took, reading of images included."""
    numerics: NumericsRecord | None = None
    """What was in force in the compute process."""
    skipped: int = 0
    """Files that could not be read and were left out; told once, not in every round."""
    processes: int = 1
    """That have trained together: bits hang on their number as well."""
    vector: bytes = b""
    """SHA-256 of the words of a masked update before they were masked; empty where it goes in the clear. Never sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Train(Request[Trained]):
    """Does one task. Safe to repeat: the same request gives the same bytes under the same names.

    Raises: any SemisiloError; BadPayload when the received groups are not the method's.
    """

    task: TaskSpec
    payloads: dict[str, Path]
    """Each payload that was fetched for the task, by digest; already verified."""
    cache_folder: Path
    """Store of what arrives; in its folder "tensors" are the groups that this silo holds."""
    choice: JoinChoice
    """The silo's images. In a simulation `source` is the silo's index among all silos."""
    images_folder: Path | None = None
    """A folder on whose disk decoded images lie that are too many for memory; None where this silo forbids it."""
    factories: tuple[PermittedCode, ...] = ()
    """Code that this silo permits to build networks."""
    memory: Path | None
    """File of the committed memory, called by its digest; None when there is none."""
    residuals: Path | None
    """File of what lossy updates have left out, committed; None when there is none."""
    pending_residuals: Path | None
    """The same after an earlier phase of this round."""
    outgoing_folder: Path
    """Store that the update's payload is written to."""
    memory_folder: Path
    """Where the new memory file is written."""
    link_bytes_per_second: float = 0.0
    """Last measured up; 0 when it was not."""
    privacy: PrivacyPolicy = field(default_factory=PrivacyPolicy)
    """Table [privacy] of silo.toml."""
    privacy_folder: Path | None = None
    """Of the site's `semisilo.silo.site.privacy.ledger.PrivacyLedger`; without one no task with differential privacy
    can be done."""
    authority: str = ""
    """Of the task's federation (`semisilo.common.audit.signature.authority_id`); empty in a simulation."""
    threads_file: Path | None = None
    """Where it is kept which number of threads was measured to be fastest here, for tasks that leave it to the silo;
    without it such a task has one."""
    features_file: Path | None = None
    """Where it is noted how far the images are from the study's in the network's features; None: not compared."""
    masking: Masking | None = None
    """How the update is hidden; None where it goes in the clear."""
    announced_labelled: int = 0
    """How many images with a label this silo has told the coordinator of; 0 also where that is not known."""
    announced_least: int = 0
    """Those with a label or those without, whichever it has told of fewer: behind masks an update weighs as much at
    least, or its sum is not used. 0 also where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What a global model is worth on this site's test images."""

    classes: tuple[ClassResult, ...]
    """By label; empty where it was not evaluated."""
    why_not: str = ""
    """Why it was not, for a person here; empty where it was."""
    independent: IndependentImages | None = None
    """What the test images are worth where several are of one patient; None where every image counts. Stays here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedFile(Evaluated):
    """The same of a model file, which says itself what its classes are."""

    class_names: tuple[str, ...]
    """In label order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateReceived(Request[Evaluated]):
    """Evaluates the global model that a task has brought on this site's test images; trains nothing.

    Asked after the task was done: its tensor groups and the images are here. Changes no bit of what is trained later.
    Raises: what `Train` raises before it trains.
    """

    task: TaskSpec
    payloads: dict[str, Path]
    """As of `Train`, as far as they are still there."""
    cache_folder: Path
    choice: JoinChoice
    images_folder: Path | None = None
    factories: tuple[PermittedCode, ...] = ()
    threads_file: Path | None = None
    stop_file: Path
    """Once it is there, no further batch is evaluated: a task waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateFile(Request[EvaluatedFile]):
    """Evaluates the model that a study has handed over, a file from the coordinator, on this site's test images.

    Raises: BadData for a file that is no such model, and for images that cannot be used.
    """

    path: Path
    choice: JoinChoice
    images_folder: Path | None = None
    factories: tuple[PermittedCode, ...] = ()
    """Code that this silo permits to build networks."""
    stop_file: Path
    """As of `EvaluateReceived`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSteps:
    """How long training steps take on this machine."""

    seconds_per_step: float
    steps: int
    """That were timed."""
    device: str
    """"cpu", or the accelerator's name as its driver gives it."""
    batch: int
    """Images of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureSteps(Request[MeasuredSteps]):
    """Times steps of a study's network on made-up images, for about two seconds.

    Raises: SemisiloError when the network cannot be built or does not fit its images.
    """

    task: TaskSpec
    """Its network, image form, numerics and the settings of its optimiser count."""
    batch: int
    """Images of a step."""
    factories: tuple[PermittedCode, ...] = ()
    """Code that this silo permits to build networks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismissed:
    """The other processes will end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dismiss(Request[Dismissed]):
    """Tells the other processes that `torchrun` has started for this silo that it is over, so that they end.

    Raises: ProcessGroupLost when they cannot be told.
    """
