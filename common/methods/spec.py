"""What a method declares once, for both sides, the ledger, the policy of silos and the documentation.

Tests: tests/test_contract.py.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from semisilo.common.errors import BadPayload
from semisilo.common.methods.meaning import Meaning
from semisilo.common.text.logs import printable

if TYPE_CHECKING:
    from semisilo.common.methods.parts.label_task import LabelTask
    from semisilo.common.methods.parts.privacy import Unit
    from semisilo.common.methods.parts.robust import Rule

__all__ = ["ABSTENTIONS", "ACCEPTED_STEP", "EPSILON", "FIRST_STATISTICS", "FROZEN", "MAX_COUNT", "MEASURING",
           "PSEUDO_LABEL_METRICS", "STATISTICS", "TRUTH_METRICS", "EitherScenario", "MethodPlugin", "MethodSpec",
           "Scenario", "StatisticsSource", "at_least", "below_one", "check_metrics", "coordinator_has_labels",
           "counts_of", "first_unused", "is_declared", "positive", "reason_that_leaves", "refuse_unused",
           "silos_have_labels", "within"]

EitherScenario = Literal["labels-at-coordinator", "labels-at-silo"]
"""Of methods for labels at one of the two places, and never at both in one study."""
Scenario = Literal[EitherScenario, "labels-at-both"]
"""Who holds labels. With labels-at-both the coordinator does, and silos may: some, a few, of some classes."""
StatisticsSource = Literal["auto", "coordinator", "coordinator+silos", "silos"]
"""Who measures static batch-norm statistics: `semisilo.coordinator.strategies.batch_norm.statistics`."""

MAX_COUNT = 10**9
"""Largest number of images or steps that a silo may claim; a product of two still fits into 64 bits."""
FROZEN = "frozen"
"""Tensor group that tasks of any method bring where a study freezes parts of its network: the tensors that nobody
trains. It comes down and never goes up. Strategies and trainers do not see it."""
ACCEPTED_STEP = "accepted_step"
"""Number of a round of any method with a gate: the share of what the silos returned that was taken over, 0 to 1."""
EPSILON = "epsilon"
"""Metric of any method with differential privacy of single images: what the study has spent of those of the silo, at
its own delta. It follows from counts alone, so no policy need permit it."""
STATISTICS, FIRST_STATISTICS = "statistics", "first-statistics"
MEASURING = (STATISTICS, FIRST_STATISTICS)
"""Names of the phases in which silos measure batch-norm statistics and train nothing. The second is that before the
training of round 1, where they are added up behind masks: a silo does so once for a phase of a round."""
TRUTH_METRICS = ("pseudo_label_accuracy", "threshold_accuracy")
"""How right pseudo-labels are. Known in simulations only, where unlabelled images keep their labels; no other
coordinator takes them."""
PSEUDO_LABEL_METRICS = ("label_ratio", "pseudo_labels/*", *TRUTH_METRICS)
"""What `semisilo.silo.objectives.pseudo_label_report` gives for every method that makes pseudo-labels.
"pseudo_labels/<label>" is how many kept images have that class."""
ABSTENTIONS = ("no_confident_example", "no_data", "no_labelled_data", "no_statistics", "no_unlabelled_data",
               "no_usable_batch")
"""Reasons of any method why a silo has no update."""
_NO_UPDATE = "no_update"
"""What leaves in the place of a reason that is not declared."""
_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_OF_A_CLASS = "pseudo_labels/"
_MOST_DIGITS = 5


def coordinator_has_labels(scenario: Scenario) -> bool:
    """Whether the coordinator holds labelled images that it trains on."""
    return scenario != "labels-at-silo"


def silos_have_labels(scenario: Scenario) -> bool:
    """Whether labels that a silo has count as labels; else they are dropped."""
    return scenario != "labels-at-coordinator"


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSpec:
    """Declares a method."""

    name: str
    source: str
    """Paper and venue."""
    scenarios: tuple[Scenario, ...]
    down: Mapping[str, Meaning]
    """Tensor groups that a silo may receive. A name that ends in "/*" stands for numbered groups."""
    up: Mapping[str, Meaning]
    """Tensor groups that a silo may send."""
    metrics: tuple[str, ...]
    """Numbers that a silo may send with an update or an abstention. A name that ends in "/*" stands for numbered
    ones."""
    counts: tuple[str, ...] = ()
    """Metrics that the strategy computes with: every update (not: an abstention, nor batch-norm statistics) must bring
    them, whole numbers from 1 to 10^9. They are among `metrics`."""
    abstentions: tuple[str, ...] = ()
    """Reasons of its own why a silo has no update, besides `ABSTENTIONS`: lower-case letters, digits and "_", at most
    64. In the place of any other text "no_update" leaves a silo: it could hold what was computed from images."""
    settings: type
    """Dataclass of the method's settings. A property `needs_exact_updates` that is true refuses lossy uplinks. A
    property `refused_to_begin` says why no study begins with these values, with what to do; one that has begun goes on.
    A property `passes_side_by_side` says how many passes through the network a step at a silo has that do not need each
    other, where there are several; the number of threads is measured with it."""
    set_by_strategy: tuple[str, ...] = ()
    """Settings that the strategy writes into every task; a study file must not have them."""
    tasks: tuple[LabelTask, ...] = ("single_label",)
    """Kinds of labels that the method is defined for; its settings inherit `LabelTaskSettings` where there are more
    than the first."""
    robust_rules: tuple[Rule, ...] = ()
    """Rules of table [robust] that the method is defined with, besides the plain mean."""
    summed: bool = False
    """Whether the strategy needs no more of its training phase than the mean of all updates, by weights that are the
    same for all or follow from a silo's own images: then updates may be added up behind masks. It is given the mean as
    the update of a single silo."""
    dp_units: tuple[Unit, ...] = ()
    """Units of table [privacy.dp] that the method is defined with."""
    discloses: str
    """What a silo learns about others and the coordinator about a silo, beyond model updates. Shown to operators."""

    def __post_init__(self) -> None:
        if FROZEN in (*self.down, *self.up):
            raise ValueError(f"method {self.name}: the tensor group '{FROZEN}' is not a method's own.")
        if not isinstance(self.abstentions, tuple) or not all(
                isinstance(each, str) and _REASON.fullmatch(each) for each in self.abstentions):
            raise ValueError(f"method {self.name}: abstentions is a tuple of words such as \"no_confident_example\".")

    @property
    def receives(self) -> Mapping[str, Meaning]:
        """Tensor groups that a task may bring: the method's own, and those of any method."""
        return {**self.down, FROZEN: Meaning.VALUES}

    @property
    def tells(self) -> tuple[str, ...]:
        """Numbers that an update or an abstention may bring: the method's own, and that of any method with differential
        privacy."""
        return (*self.metrics, *((EPSILON,) if "example" in self.dp_units else ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodPlugin:
    """A method with where its halves are: a row of `semisilo.common.methods.builtin`, or a method of somebody else's,
    which an entry point of the group `semisilo.methods` names.

        [project.entry-points."semisilo.methods"]
        ours = "our_package.method:OURS"          # OURS is a MethodPlugin, its spec is called "ours"

    The module of the entry point is imported by the light processes of both sides, so it must import neither torch nor
    the halves; these are named as text and imported by the compute processes alone.
    """

    spec: MethodSpec
    """Its name is the entry point's (of a plug-in). Its settings need a field `scenario`, as those of every method."""
    strategy: str
    """"package.module:Class" of the coordinator half, built as `Class(settings, environment)`."""
    trainer: str
    """"package.module:Class" of the silo half, built as `Class()`."""


def is_declared(name: str, declared: Collection[str]) -> bool:
    """Whether a name is among the declared ones; one that ends in "/*" stands for numbers in the star's place, 0 to
    99999 in ASCII digits without zeros in front."""
    return name in declared or any(
        each.endswith("/*") and name.startswith(each[:-1]) and _is_index(name[len(each) - 1:]) for each in declared)


def reason_that_leaves(spec: MethodSpec, said: str) -> str:
    """The reason of an abstention as the coordinator may hear it: one of any method or of this one's own, as its
    trainer said, else "no_update"."""
    return said if said in ABSTENTIONS or said in spec.abstentions else _NO_UPDATE


def _is_index(text: str) -> bool:
    """str.isdigit alone takes digits that int() refuses, and numbers of any length."""
    return (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
            and (text == "0" or not text.startswith("0")))


def counts_of(spec: MethodSpec, phase: str) -> tuple[str, ...]:
    """`MethodSpec.counts`, as far as updates of a phase must bring them: all but where silos only measure."""
    return () if phase in MEASURING else spec.counts


def check_metrics(spec: MethodSpec, metrics: Mapping[str, float], *, update: bool, phase: str = "",
                  num_classes: int | None = None, truth: bool = True) -> None:
    """Metrics that came from a silo, against what its method declares.

    Args:
        update: whether they came with an update; `MethodSpec.counts` are asked of these only.
        phase: name of the phase that they came in.
        num_classes: K of the study: no metric may be of a label that is not below it. None where it is not known.
        truth: whether silos can know how right their pseudo-labels are; without it `TRUTH_METRICS` are refused.
    Raises: BadPayload, naming the metric.
    """
    for name, value in metrics.items():
        if not is_declared(name, spec.tells):
            raise BadPayload(f"The method {spec.name} has no metric '{printable(name, limit=64)}'.",
                             remedy=f"It has: {', '.join(spec.metrics)}.")
        if not math.isfinite(value):
            raise BadPayload(f"The metric '{name}' is not a finite number.")
        if name in TRUTH_METRICS and not truth:
            raise BadPayload(f"The metric '{name}' can be known in a simulation only.")
        if num_classes is not None and name.startswith(_OF_A_CLASS) and \
                int(name.removeprefix(_OF_A_CLASS)) >= num_classes:
            raise BadPayload(f"The metric '{name}' is of a class that the study does not have; it has {num_classes}.")
    for name in counts_of(spec, phase) if update else ():
        value = metrics.get(name, 0.0)
        if not (1 <= value <= MAX_COUNT and value == int(value)):
            raise BadPayload(f"The metric '{name}' must be a whole number from 1 to {MAX_COUNT}.")


# Checks of settings: each raises ValueError with a text that names the setting, what it is and what it must be.

def within(name: str, value: float, low: float, high: float) -> None:
    """low <= value <= high."""
    if not low <= value <= high:
        raise ValueError(f"{name} = {value}: must be between {low} and {high}.")


def at_least(name: str, value: float, low: float) -> None:
    """low <= value, and finite."""
    if not (value >= low and math.isfinite(value)):
        raise ValueError(f"{name} = {value}: must be at least {low} and finite.")


def positive(name: str, value: float) -> None:
    """0 < value, and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} = {value}: must be above 0 and finite.")


def below_one(name: str, value: float) -> None:
    """0 <= value < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} = {value}: must be at least 0 and below 1.")


@functools.cache
def _default(settings: Hashable, name: str) -> object:
    """Of a setting; every task that arrives builds settings anew."""
    return next(field.default for field in fields(cast(Any, settings)) if field.name == name)


def refuse_unused(settings: Any, name: str, because: str) -> None:
    """Refuses a setting that would not be honoured.

    Raises: ValueError when the setting `name` is not at its default.
    """
    if why := first_unused(settings, {name: because}):
        raise ValueError(why)


def first_unused(settings: Any, names: Mapping[str, str], *, defaults: Mapping[str, object] | None = None) -> str:
    """What `refuse_unused` would say, of the first of these settings that is not at its default; empty where all are.

    For a property `refused_to_begin` of settings: why no study begins with them, while one that an earlier version has
    begun, which took them, goes on.
    Args:
        names: of settings that would have no effect, and with what.
        defaults: of some of them in the place of the field's own.
    """
    for name, because in names.items():
        value = getattr(settings, name)
        default = defaults[name] if defaults and name in defaults else _default(cast(Hashable, type(settings)), name)
        if value != default:
            return f"{name} = {value!r}: not used with {because}. Leave it out."
    return ""
