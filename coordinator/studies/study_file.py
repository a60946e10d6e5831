"""A study file: `studies/<name>/study.toml` as typed settings, and what is frozen of it when the study starts."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from semisilo.common.config import ABSENT_AT_DEFAULT, Tables, from_dict, load_toml, parse_duration, tables_of
from semisilo.common.data.form import (
    LABELLED,
    UNLABELLED,
    AugmentationPolicy,
    AugmentationSettings,
    DicomRules,
    OnError,
    PatientRule,
    Reading,
    Selection,
)
from semisilo.common.errors import BadConfiguration, NotPermitted, UnknownName
from semisilo.common.learning.privacy.accountant import require_accountant
from semisilo.common.measures.study_measure import StudyMeasure, parse_measure, why_not_for
from semisilo.common.methods import (
    METHODS,
    MethodSpec,
    Scenario,
    coordinator_has_labels,
    find_method,
    silos_have_labels,
)
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.meaning import Meaning
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.label_task import LabelTask, refused_task
from semisilo.common.methods.parts.privacy import PrivacySettings, refused_dp, too_few_silos, too_few_to_sum
from semisilo.common.methods.parts.robust import RobustSettings, refused
from semisilo.common.methods.parts.secure_sum import why_not_summed
from semisilo.common.methods.plugins import check_plugin_settings
from semisilo.common.methods.uplink import Uplink, parse_uplink
from semisilo.common.models.own.model_file import names_file, with_digest
from semisilo.coordinator.ledger.records import BaselineRecipe
from semisilo.coordinator.secure_aggregation.groups import number_of_groups

__all__ = ["NEEDS_VALIDATION", "DataSettings", "ImageSettings", "MethodSettings", "ParticipationSettings",
           "StudyConfig", "StudySettings", "WireSettings", "check_class", "check_class_names", "check_participation",
           "check_scenario", "config_from_dict", "load_study"]

T = TypeVar("T")

AUTO = "auto"
"""Of `DataSettings.validation_share`: as many as the number of labels can spare."""
_MAX_THREADS = 1024  # more than that a silo takes for a mistake
MEASURED_ON = ("labelled", "validation")
"""Sets of the coordinator that mean and standard deviation may be measured on."""
NEEDS_VALIDATION = ('Name them in [data] validation, hold some out of the labels with [data] validation_share = "20%",'
                    " or leave {setting} out.")
"""What is to be done where a setting looks at validation images and there are none."""
_MOST_ROUNDS = 1_000_000
_LONGEST_SECONDS = 365 * 86_400.0
"""More of either is a mistake, and what silos are told of deadlines has an end."""
_ROUND_LIMIT = "2d"
_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySettings:
    """Table [study]."""

    task: LabelTask = field(default="single_label", metadata=ABSENT_AT_DEFAULT)
    """"single_label": every image has one class. "multi_label": an image shows any number of the classes, or none; each
    class is asked by itself, and what is measured is AUROC and average precision."""
    seed: int = 1
    """Every random number of the study follows from it."""
    rounds: int = 100
    """How many rounds to run."""
    start_with: int = 1
    """Silos that must have joined before round 1."""
    labelled_only_baseline: bool = True
    """Trains the same network on the coordinator's labels alone, as the baseline: while silos work, and to the end
    after the last round; before round 1 where self-training starts from that model."""
    baseline_recipe: BaselineRecipe = "strong"
    """How that baseline is trained. "strong": as well as the tool can, with strong views, MixUp, an average of the
    weights, and a learning rate searched on validation images or, without them, on held-out labels. "paper": SemiFL's
    partially supervised bound, to compare with published numbers."""
    baseline_epochs: int = 0
    """Passes over the labelled images of that baseline. 0: as many as its recipe makes, of the paper's 400, of the
    strong one so many that it looks at as many images as the study, within bounds."""
    baseline_budget: str = ""
    """Time that this baseline may work, such as "30m"; empty for as long as it takes. Its learning rate comes down
    within the epochs that fit, so its bits depend on the machine."""
    baseline_patience: int = 0
    """Ends this baseline of the paper's recipe once the accuracy on [data] validation has not risen for so many epochs;
    0 for never."""
    local_accuracy: bool = False
    """Measures the model of every silo whose update was accepted on the coordinator's test set, before averaging; takes
    one evaluation for each silo and round."""
    measure: str = ""
    """What rounds are chosen, stopped and compared by: "accuracy", "balanced_accuracy", "auroc" (macro) or
    "recall:CLASS"; with several labels for an image "auroc", which empty means there, or "average_precision". Empty:
    balanced accuracy where the coordinator's labelled images are imbalanced by more than 1.5 to 1, else accuracy;
    decided when the study is opened, and frozen."""
    patience: int = 0
    """Ends the study once so many rounds have not raised the measure on validation images; 0 for never."""
    share_model: bool = False
    """Whether silos that have answered a task of the study may fetch the model that it hands over, once it is over."""
    keep_every: int = 50
    """Besides the last three and the chosen one, the state of every such round is kept on disk."""

    def __post_init__(self) -> None:
        _at_least("rounds", self.rounds, 1)
        if self.rounds > _MOST_ROUNDS:
            raise ValueError(f"rounds = {self.rounds}: must be at most {_MOST_ROUNDS}.")
        _at_least("start_with", self.start_with, 1)
        _at_least("baseline_epochs", self.baseline_epochs, 0)
        _at_least("baseline_patience", self.baseline_patience, 0)
        _at_least("patience", self.patience, 0)
        if self.baseline_patience and self.baseline_recipe == "strong":
            raise ValueError(f"baseline_patience = {self.baseline_patience} has no effect on the strong recipe, which"
                             ' averages its weights to its end: remove it, or set baseline_recipe = "paper".')
        _at_least("keep_every", self.keep_every, 1)
        if self.measure:
            try:
                parse_measure(self.measure)
            except ValueError as error:
                raise ValueError(f"measure = {error}") from None
        if self.baseline_budget:
            _check_duration("baseline_budget", self.baseline_budget)
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed = {self.seed}: must fit in 64 bits.")

    @property
    def baseline_seconds(self) -> float:
        """Seconds that the baseline may work; 0 for as long as it takes."""
        return parse_duration(self.baseline_budget) if self.baseline_budget else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSettings:
    """Table [data.image]: the one form that all images of the study are brought to."""

    size: int
    """Side of the square, in pixels."""
    channels: Literal[1, 3]
    """1 (grey) or 3 (colour)."""
    mean: tuple[float, ...] | str = "labelled"
    """Mean per channel on the scale 0 to 1; or measured when the study starts, and frozen: on the images of "labelled",
    or of "validation". With labels at silos the coordinator has no labelled ones."""
    std: tuple[float, ...] | str = "labelled"
    """Standard deviation per channel, likewise."""
    resize: Literal["fit", "crop", "stretch", "pad"] = "fit"
    """How another size is brought to `size`."""
    reading: Reading = field(default_factory=Reading)
    """How files of more than 8 bits or more than one picture are read: a table of its own."""
    standardise: Literal["study", "image"] = field(default="study", metadata=ABSENT_AT_DEFAULT)
    """What the network sees: pixels less `mean` and divided by `std`, or each channel of each image less its own mean
    and divided by its own deviation, whatever scanner it is of (docs/decisions/0114-images-standardised-one-by-one.md).
    """

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise ValueError(f"size = {self.size}: must be between 1 and 4096.")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, str) and value not in MEASURED_ON:
                raise ValueError(f'{name} = "{value}": give {_numbers(self.channels)} in a list, "labelled" or'
                                 ' "validation".')
            if not isinstance(value, str) and len(value) != self.channels:
                raise ValueError(f"{name} needs {_numbers(self.channels)}, one per channel.")
            if not isinstance(value, str) and not all(map(math.isfinite, value)):
                raise ValueError(f"{name} = {list(value)}: must be finite.")
        if not isinstance(self.std, str) and min(self.std) <= 0:
            raise ValueError(f"std = {list(self.std)}: must be above 0 in every channel.")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Table [data]: what the coordinator holds. Relative paths start at the study's folder."""

    image: ImageSettings
    labelled: str = ""
    """Folder of class folders, `file.npz`, `file.npz#train`, or a named set such as "digits". Needed in the scenarios
    labels-at-coordinator and labels-at-both, refused in labels-at-silo."""
    validation: str = ""
    """Chooses the round that is handed over, and is needed by some methods; same forms as `labelled`."""
    validation_share: str = "auto"
    """Share of the labelled images that is held out for validation and not trained on, such as "20%", where none are
    named; "0%" for none. "auto": 20 % of 200 labelled images or more, at most 2000; none of fewer."""
    test: str = ""
    """Measured after every round; without it the curve is empty."""
    classes: tuple[str, ...] = ()
    """Class names, order = label; taken from `labelled` when empty, then frozen. Needed in labels-at-silo."""
    dicom: DicomRules = field(default_factory=dict)
    """Which DICOM files of the coordinator count: keyword of a tag -> values of which a file must have one, "" for a
    file without the tag. Files of other formats always count. Silos choose theirs in silo.toml."""
    patient: PatientRule = "auto"
    """How an image's patient is known, who is then in one of the labelled, validation and test images only: "auto"
    (PatientID of a DICOM file, the column "patient_id" or the like of a table), "folder" (the one below that of the
    class), "name" (the file's name up to the first "_"), or "none"."""
    formats: tuple[str, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)
    """Format plug-ins whose files are read as well, of the coordinator's images. Silos name theirs in silo.toml."""
    on_error: OnError = "stop"
    """What to do with a file that cannot be read: "stop"; "skip" it; or "report": read all, list all that is wrong,
    then stop."""

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
        if twice:
            raise ValueError(f"classes names '{twice[0]}' twice.")
        if len(self.classes) == 1 or "" in self.classes:
            raise ValueError("classes needs at least two names, or leave it out.")
        Selection(dicom=self.dicom, patient=self.patient)  # refuses what is no tag
        if self.validation_share != AUTO:
            match = _SHARE.match(self.validation_share)
            if match is None or float(match[1]) >= 100:
                raise ValueError(f'validation_share = "{self.validation_share}": give a share below 100% such as "20%",'
                                 ' or "auto".')

    @property
    def selection(self) -> Selection:
        """Which files count, and how the patients of images are known."""
        return Selection(dicom=self.dicom, patient=self.patient, formats=self.formats)

    @property
    def stated_share(self) -> float | None:
        """The share of the labelled images to hold out, 0 to below 1; None for "auto"."""
        match = _SHARE.match(self.validation_share)
        return None if match is None else float(match[1]) / 100

    @property
    def may_validate(self) -> bool:
        """Whether there may be validation images, as far as is known before any are counted."""
        return bool(self.validation) or (bool(self.labelled) and self.stated_share != 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSettings:
    """Table [method]: its name; all other keys belong to the method's own settings."""

    name: str
    settings: Any
    """Instance of the method's settings dataclass."""

    def __post_init__(self) -> None:
        # Back from JSON, on its way to another process: what the name says is what the settings are.
        if isinstance(self.settings, dict):
            object.__setattr__(self, "settings", from_dict(find_method(self.name).settings, self.settings))


@dataclass(frozen=True, kw_only=True, slots=True)
class ParticipationSettings:
    """Table [participation]: who is asked and how long the coordinator waits."""

    silos_per_round: int | str = "100%"
    """A number, or a share of the joined silos such as "10%"; at least one silo is asked."""
    quorum: int = 0
    """Updates and abstentions needed to close a phase; 0: half of those asked, rounded up. Refusals do not count. No
    round is opened that asks fewer, unless `silos_per_round` never asks so many of the silos that have joined."""
    round_timeout: str = "30m"
    """Deadline of a phase, counted from its opening."""
    round_limit: str = _ROUND_LIMIT
    """Longest wait for the quorum; then the round fails and the model stays."""
    largest_weight: str = "50%"
    """Largest share that one silo may have in an average that weighs by counts of images (docs/methods.md says which
    do), or that `[robust] byzantine_silos` have together: a larger count is lowered. With half no silo outweighs all
    others together; "100%" lets counts stand."""

    def __post_init__(self) -> None:
        if isinstance(self.silos_per_round, str):
            match = _SHARE.match(self.silos_per_round)
            if match is None or not 0 < float(match[1]) <= 100:
                raise ValueError(f'silos_per_round = "{self.silos_per_round}": give a number or a share such as "10%".')
        else:
            _at_least("silos_per_round", self.silos_per_round, 1)
        _at_least("quorum", self.quorum, 0)
        match = _SHARE.match(self.largest_weight)
        if match is None or not 0 < float(match[1]) <= 100:
            raise ValueError(f'largest_weight = "{self.largest_weight}": give a share such as "50%".')
        for name in ("round_timeout", "round_limit"):
            _check_duration(name, getattr(self, name))

    @property
    def timeout_seconds(self) -> float:
        """Seconds from the opening of a phase to its deadline."""
        return parse_duration(self.round_timeout)

    @property
    def limit_seconds(self) -> float:
        """Seconds from the opening of a phase until it fails without its quorum."""
        return max(parse_duration(self.round_limit), self.timeout_seconds)

    @property
    def largest_share(self) -> float:
        """`largest_weight` as a number, above 0 and at most 1."""
        match = _SHARE.match(self.largest_weight)
        assert match is not None
        return float(match[1]) / 100

    def sample_size(self, num_joined: int) -> int:
        """How many of `num_joined` silos to ask: max(1, floor(share * K)), never more than there are."""
        if isinstance(self.silos_per_round, str):
            match = _SHARE.match(self.silos_per_round)
            assert match is not None
            wanted = int(float(match[1]) / 100 * num_joined + 1e-9)
        else:
            wanted = self.silos_per_round
        return min(num_joined, max(1, wanted))

    def quorum_of(self, num_asked: int) -> int:
        """Updates and abstentions needed among `num_asked`, which may be fewer than at its opening."""
        return min(self.quorum, num_asked) if self.quorum else (num_asked + 1) // 2

    def fewest_asked(self, num_asked: int, *, num_aside: int) -> int:
        """Silos that a round must ask to be opened.

        `silos_per_round` bounds the quorum: a study of an earlier version may state a larger one, its file cannot be
        changed, and it must go on. A share below 100% bounds it by what it asks of today's members, for one that has
        to wait until a fifth of them are five would wait for 25.

        Args:
            num_asked: that it would ask: `sample_size` of the members.
            num_aside: members that are set aside, and count for no quorum.
        """
        stated = self.quorum
        if isinstance(self.silos_per_round, int):
            stated = min(stated, self.silos_per_round)
        elif not self._asks_everybody:
            stated = min(stated, num_asked)
        return max(1, self.quorum_of(num_asked), stated - num_aside)

    @property
    def _asks_everybody(self) -> bool:
        match = _SHARE.match(str(self.silos_per_round))
        return match is not None and float(match[1]) == 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WireSettings:
    """Table [wire]: how tensors become bytes."""

    uplink: str = "auto"
    """Updates. Exact: "auto" (least estimated time on this link), "smallest" (fewest bytes), "raw". Lossy, of groups of
    differences: "bf16", "int8", "int4", "top-k 1%", "top-k 1% int8"."""
    downlink: Literal["auto", "smallest", "raw"] = "auto"
    """What silos receive; always exact."""
    rounding: Literal["nearest", "stochastic"] = "stochastic"
    """Of int8 and int4."""
    error_feedback: bool = True
    """Whether silos keep what a lossy form left out and add it to their next update."""

    def __post_init__(self) -> None:
        try:
            self.uplink_form()
        except ValueError as error:
            raise ValueError(f"uplink = {error}") from None

    def uplink_form(self) -> Uplink:
        """The form of updates, as it travels in every task. Raises: ValueError for a text that is none."""
        return parse_uplink(self.uplink, rounding=self.rounding, error_feedback=self.error_feedback)


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentationTable:
    """Table [augmentation]: `AugmentationSettings`, with what is decided when the study starts."""

    policy: AugmentationPolicy = "small"
    """Pair of a weak and a strong augmentation."""
    horizontal_flip: bool = False
    """Whether a left-right flip keeps the meaning of an image."""
    vertical_flip: bool = False
    """Whether an up-down flip keeps the meaning of an image."""
    without: tuple[str, ...] | str = ()
    """Operations of RandAugment to leave out, for example ["Invert"]. "auto": with the policy "small" those that change
    colours, where colour alone tells classes of the coordinator's labelled images apart; else none."""

    def __post_init__(self) -> None:
        if isinstance(self.without, str) and self.without != "auto":
            raise ValueError(f'without = "{self.without}": give "auto" or a list of operations, ["{self.without}"].')

    @property
    def decides(self) -> bool:
        """Whether the images decide which operations are left out."""
        return self.without == "auto" and self.policy == "small"

    def decided(self, left_out: tuple[str, ...]) -> AugmentationSettings:
        """What tasks and trainings are given.

        Args:
            left_out: the operations that were found with "auto" (`FrozenStudy.left_out_views`).
        """
        without = left_out if self.decides else () if isinstance(self.without, str) else self.without
        return AugmentationSettings(policy=self.policy, horizontal_flip=self.horizontal_flip,
                                    vertical_flip=self.vertical_flip, without=without)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyConfig:
    """A whole study file."""

    study: StudySettings
    model: ModelSettings
    data: DataSettings
    method: MethodSettings
    participation: ParticipationSettings = field(default_factory=ParticipationSettings)
    augmentation: AugmentationTable = field(default_factory=AugmentationTable)
    wire: WireSettings = field(default_factory=WireSettings)
    robust: RobustSettings = field(default_factory=RobustSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    numerics: Numerics = field(default_factory=Numerics)


def _numbers(count: int) -> str:
    return f"{count} number{'s' * (count != 1)}"


def config_from_dict(data: Tables, *, where: str) -> StudyConfig:
    """A study's settings from the tables of its file, or from the JSON kept in the ledger.

    Raises: BadConfiguration or UnknownName, naming table and key.
    """
    tables = dict(data)
    method = tables.pop("method", None)
    names = {"study", "model", "data", "participation", "augmentation", "wire", "robust", "privacy", "numerics"}
    if not isinstance(method, dict) or not isinstance(method.get("name"), str):
        if method is None and (near := difflib.get_close_matches("method", tables.keys() - names, n=1)):
            from_dict(_Tables, {near[0]: 0}, where=where)
        raise BadConfiguration(f"{where}: table [method] with a name is missing.",
                               remedy='Add [method] name = "semifl".')
    kinds = tables_of(StudyConfig) | ({"method": METHODS[method["name"]].settings} if method["name"] in METHODS else {})
    for name in tables:
        if name not in names:
            from_dict(_Tables, {name: 0}, where=where, others=kinds)

    def table(cls: type[T], name: str) -> T:
        return from_dict(cls, tables.get(name, {}), where=f"{where}: [{name}]", others=kinds)

    tables["model"] = _named_once(tables.get("model", {}), where)
    study, model = table(StudySettings, "study"), table(ModelSettings, "model")
    if not model.name:
        raise BadConfiguration(f"{where}: [model]: name is empty.", remedy='Give one, for example name = "small_cnn".')
    if model.classes:
        raise BadConfiguration(f"{where}: [model]: unknown key 'classes'.",
                               remedy="Class names belong in [data] classes.")
    if "data" not in tables:
        raise BadConfiguration(f"{where}: table [data] is missing.",
                               remedy="Add it, with the form of the images: image = { size = 28, channels = 3 }.")
    images, participation = table(DataSettings, "data"), table(ParticipationSettings, "participation")
    augmentation, wire = table(AugmentationTable, "augmentation"), table(WireSettings, "wire")
    robust, numerics = table(RobustSettings, "robust"), table(Numerics, "numerics")
    privacy = table(PrivacySettings, "privacy")
    if not 0 <= numerics.threads <= _MAX_THREADS:
        raise BadConfiguration(f"{where}: [numerics]: threads = {numerics.threads}: must be between 1 and"
                               f" {_MAX_THREADS}, or 0 for what each machine finds fastest.")
    spec = _method_of(method["name"], where)
    from_ledger = set(method) == {"name", "settings"}
    settings = method["settings"] if from_ledger else {key: value for key, value in method.items() if key != "name"}
    _check_defined(spec, settings, where)
    if isinstance(settings, dict) and "task" in settings and not from_ledger:
        raise BadConfiguration(f"{where}: [method]: 'task' belongs in [study].", remedy='Write it there: [study] task ='
                                                                                       ' "multi_label".')
    if why := refused_task(study.task, method=spec.name, tasks=spec.tasks, rule=robust.rule,
                           local_accuracy=study.local_accuracy,
                           others=[each.name for each in METHODS.values() if study.task in each.tasks]):
        raise BadConfiguration(f"{where}: [study]: {why}")
    if study.task != "single_label" and isinstance(settings, dict):
        settings = {**settings, "task": study.task}
    chosen = MethodSettings(name=spec.name, settings=from_dict(
        spec.settings, settings, where=f"{where}: [method]", others=kinds))
    check_plugin_settings(spec.name, chosen.settings, where=f"{where}: [method]")
    if not from_ledger and (why := getattr(chosen.settings, "refused_to_begin", "")):
        raise BadConfiguration(f"{where}: [method]: {why}")
    _check_measure(study, images, where)
    if study.baseline_patience and not images.validation and not images.stated_share:
        raise BadConfiguration(f"{where}: [study]: baseline_patience = {study.baseline_patience} looks at validation"
                               " images, and there are none.",
                               remedy=NEEDS_VALIDATION.format(setting="baseline_patience"))
    if getattr(chosen.settings, "needs_exact_updates", False) and wire.uplink_form().lossy:
        raise BadConfiguration(f'{where}: [wire]: uplink = "{wire.uplink}" is lossy; {spec.name} with these'
                               " settings needs exact updates, or its corrections drift.",
                               remedy='Set uplink = "auto"' + (', or [method] correction_at = "coordinator".' if
                                                               hasattr(chosen.settings, "correction_at") else "."))
    if wire.uplink_form().lossy and not from_ledger and Meaning.DIFFERENCE not in spec.up.values():
        raise BadConfiguration(f'{where}: [wire]: uplink = "{wire.uplink}" has no effect with {spec.name}: only groups'
                               " that are differences are sent lossily, and its silos send none.",
                               remedy='Set uplink = "auto".')
    asked = participation.silos_per_round
    if why := refused(robust, method=spec.name, allowed=spec.robust_rules, uplink=wire.uplink_form(),
                      silos=None if isinstance(asked, str) else number_of_groups(asked, privacy.group_size)
                      if privacy.group_size else asked, groups=bool(privacy.group_size)):
        raise BadConfiguration(f"{where}: [robust]: {why}")
    if privacy.secure_aggregation and (why := why_not_summed(
            method=spec.name, summed=spec.summed, weighting=getattr(chosen.settings, "weighting", "uniform"),
            robust_rule=robust.rule, group_size=privacy.group_size, uplink=wire.uplink_form(),
            random_k=privacy.random_share, needs_exact=getattr(chosen.settings, "needs_exact_updates", False),
            local_accuracy=study.local_accuracy,
            most_silos=None if isinstance(asked, str) else asked)):
        raise BadConfiguration(f"{where}: [privacy]: {why}")
    if why := refused_dp(privacy.dp, method=spec.name, allowed=spec.dp_units, settings=chosen.settings,
                         precision=numerics.precision, model=model.name, normalisation=model.normalisation_layers,
                         frozen_parts=bool(model.freeze), rule=robust.rule,
                         # A study that has begun is still told of; its silos refuse by themselves.
                         augmentation=None if from_ledger else augmentation, begins=not from_ledger):
        raise BadConfiguration(f"{where}: [privacy.dp]: {why}")
    return StudyConfig(study=study, model=model, data=images, method=chosen, participation=participation,
                       augmentation=augmentation, wire=wire, robust=robust, privacy=privacy,
                       numerics=numerics)


def _named_once(model: object, where: str) -> object:
    """Table [model] with the key `factory` as the name that it is. Raises: BadConfiguration beside another name."""
    if not isinstance(model, dict) or "factory" not in model:
        return model
    factory, rest = model["factory"], {key: value for key, value in model.items() if key != "factory"}
    if "name" in rest:
        raise BadConfiguration(f"{where}: [model]: name and factory both name a network.",
                               remedy="Leave one of them out.")
    if not isinstance(factory, str) or ":" not in factory:
        raise BadConfiguration(f"{where}: [model]: factory = {factory!r}: names no function.",
                               remedy='Write "my_net.py:build" for a file beside the study file, or'
                                      ' "package.module:build" for an installed package.')
    file = factory.rpartition(":")[0]
    if file.endswith(".py") and not names_file(factory):
        raise BadConfiguration(f"{where}: [model]: factory = {factory!r}: is not a plain file name with a function.",
                               remedy='Put the file beside the study file, and write "my_net.py:build".')
    return {"name": factory, **rest}


def _check_measure(study: StudySettings, images: DataSettings, where: str) -> None:
    """Refuses a measure of a class that is not there, and what has no effect without validation images.

    Raises: BadConfiguration, naming table and key.
    """
    if study.measure and (why := why_not_for(parse_measure(study.measure), multi_label=study.task == "multi_label")):
        raise BadConfiguration(f'{where}: [study]: measure = "{study.measure}": {why}.')
    if study.measure and images.classes:
        check_class(parse_measure(study.measure), images.classes, where=where)
    if study.patience and not images.may_validate:
        raise BadConfiguration(f"{where}: [study]: patience = {study.patience} looks at validation images, and there"
                               " are none.", remedy=NEEDS_VALIDATION.format(setting="patience"))
    if images.validation and images.validation_share != AUTO:
        raise BadConfiguration(f'{where}: [data]: validation_share = "{images.validation_share}" has no effect beside'
                               " named validation images.", remedy="Leave one of the two out.")
    if not images.labelled and images.stated_share:
        raise BadConfiguration(f'{where}: [data]: validation_share = "{images.validation_share}" is a share of the'
                               " coordinator's labelled images, and there are none.",
                               remedy="Name images in [data] validation, or leave validation_share out.")


def check_class(measure: StudyMeasure, classes: Sequence[str], *, where: str) -> None:
    """Whether the class that a measure is about is one of the study's. Raises: BadConfiguration, with those there are.
    """
    if measure.kind == "recall" and measure.class_name not in classes:
        near = difflib.get_close_matches(measure.class_name, classes, n=1)
        raise BadConfiguration(f'{where}: [study]: measure = "{measure}": there is no class \'{measure.class_name}\'.',
                               remedy=f"Did you mean '{near[0]}'?" if near else f"Classes: {', '.join(classes)}.")


def check_class_names(classes: Sequence[str], *, where: str) -> None:
    """Whether silos may have class folders of these names. Raises: BadConfiguration for one that means something else.
    """
    for name in (LABELLED, UNLABELLED):
        if name in classes:
            raise BadConfiguration(f"{where}: no class may be called '{name}': at a silo this folder is none.",
                                   remedy="Choose another name.")


def _method_of(name: str, where: str) -> MethodSpec:
    try:
        return find_method(name)
    except UnknownName as error:
        raise UnknownName(f"{where}: [method]: {error.text}", remedy=error.remedy) from None


def _check_defined(spec: MethodSpec, settings: Any, where: str) -> None:
    """Refuses a scenario that the method does not define, by name of both."""
    scenario = settings.get("scenario") if isinstance(settings, dict) else None
    if isinstance(scenario, str) and scenario not in spec.scenarios:
        raise BadConfiguration(f"{where}: [method]: {spec.name} is not defined for the scenario '{scenario}'.",
                               remedy=f"It is for {' and '.join(spec.scenarios)}.")


def load_study(path: Path) -> StudyConfig:
    """Reads and checks the file of a study of real silos.

    Raises: BadConfiguration or UnknownName, naming file, table and key.
    """
    tables = load_toml(path)
    if "simulation" in tables:
        raise BadConfiguration(f"{path}: table [simulation] makes this a study of simulated silos.",
                               remedy=f"Run: semisilo simulate {path}. Or write the parts for real silos:"
                                      f" semisilo split {path} --out FOLDER.")
    config = config_from_dict(tables, where=str(path))
    config = replace(config, model=with_digest(config.model, path.parent))
    for key in find_method(config.method.name).set_by_strategy:
        if key in tables["method"]:
            raise BadConfiguration(f"{path}: [method]: '{key}' is set by the method itself in every task.",
                                   remedy="Remove that line.")
    check_scenario(config, str(path))
    if why := too_few_silos(config.privacy.dp, config.participation.sample_size(config.study.start_with)):
        raise BadConfiguration(f"{path}: [privacy.dp]: {why}", remedy="See [study] start_with and [participation].")
    if config.privacy.dp is not None and config.privacy.dp.unit == "silo":
        try:
            require_accountant()  # at its end neither report nor model card could be made
        except NotPermitted as error:
            raise BadConfiguration(f'{path}: [privacy.dp] unit = "silo": {error.text}', remedy=error.remedy) from None
    asked = config.participation.silos_per_round
    if isinstance(asked, int) and (why := too_few_to_sum(config.privacy, asked)):
        raise BadConfiguration(f"{path}: [privacy]: {why}")
    return config


def check_participation(config: StudyConfig, where: str, *, silos: int | None = None) -> None:
    """Whether a new study can do what its table [participation] says.

    Args:
        silos: how many there will ever be, in a simulation, which waits for no deadline: its limit is not looked at.
            None where more may join.
    Raises: BadConfiguration, naming table and key.
    """
    found = config.participation
    asked = found.silos_per_round if silos is None else found.sample_size(silos)
    if isinstance(asked, int) and found.quorum > asked:
        raise BadConfiguration(f"{where}: [participation]: quorum = {found.quorum}: a round asks"
                               f" {asked} {'silo' if asked == 1 else 'silos'}.",
                               remedy=f"Set quorum to {asked} at most, or ask more: silos_per_round.")
    if silos is None and found.round_limit != _ROUND_LIMIT \
            and parse_duration(found.round_limit) < found.timeout_seconds:
        raise BadConfiguration(f'{where}: [participation]: round_limit = "{found.round_limit}" is shorter than'
                               f' round_timeout = "{found.round_timeout}": no round would end before that.',
                               remedy="Make round_timeout shorter too, or round_limit longer.")


def check_scenario(config: StudyConfig, where: str) -> None:
    """Whether [data] fits the place of the labels.

    Raises: BadConfiguration, naming table and key.
    """
    data, method = config.data, config.method
    scenario: Scenario = method.settings.scenario
    at_coordinator = coordinator_has_labels(scenario)
    others = [f'"{each}"' for each in find_method(method.name).scenarios
              if coordinator_has_labels(each) is not at_coordinator]
    or_else = f" Or set [method] scenario = {' or '.join(others)}." if others else ""
    at = f"{where}: [data]"
    if at_coordinator and not data.labelled:
        raise BadConfiguration(f"{at}: 'labelled' is missing: in the scenario {scenario} {method.name} needs labelled "
                               "images at the coordinator.", remedy=f'Give their place: labelled = "folder".{or_else}')
    if silos_have_labels(scenario):
        check_class_names(data.classes, where=at)
    if not at_coordinator:
        if data.labelled:
            raise BadConfiguration(f"{at}: labelled would not be used: in the scenario {scenario} {method.name} learns "
                                   "from the labels of silos alone.", remedy=f"Remove that line.{or_else}")
        if not data.classes:
            raise BadConfiguration(f"{at}: 'classes' is missing: the labels are at the silos, which need their order.",
                                   remedy='Name them in the order of labels: classes = ["a", "b"].')
    for key in ("mean", "std"):
        source = getattr(data.image, key)
        if isinstance(source, str) and not getattr(data, source):
            raise BadConfiguration(f"{where}: [data.image]: {key} is to be measured on '{source}', and the coordinator "
                                   "has no such images.",
                                   remedy=f'Write numbers, {key} = {[0.5] * data.image.channels}; or {key} = '
                                          '"validation" where there is [data] validation.')


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of a study file; only to name the nearest one when a table is misspelt."""

    study: int = 0
    model: int = 0
    data: int = 0
    method: int = 0
    participation: int = 0
    augmentation: int = 0
    wire: int = 0
    robust: int = 0
    privacy: int = 0
    numerics: int = 0
    simulation: int = 0


def _check_duration(name: str, text: str) -> None:
    try:
        seconds = parse_duration(text, where=name)
    except BadConfiguration as error:  # `from_dict` adds file and table
        raise ValueError(error.line()) from None
    if seconds <= 0:
        raise ValueError(f'{name} = "{text}": must be above 0.')
    if seconds > _LONGEST_SECONDS:
        raise ValueError(f'{name} = "{text}": must be at most "365d".')


def _at_least(name: str, value: float, low: float) -> None:
    if value < low:
        raise ValueError(f"{name} = {value}: must be at least {low}.")
