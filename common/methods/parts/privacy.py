"""Table [privacy] of a study: what of a single patient, or of a single silo, may show in what leaves.

[privacy.dp] is differential privacy. With unit = "example" every silo clips the gradient of each image and adds noise
before anything leaves it; its own ledger counts what that spends. With unit = "silo" the coordinator clips the update
of each silo and adds noise to their sum: that protects from those who see the model, not from the coordinator. With
secure aggregation silos clip and add a share of that noise behind their masks: that protects from the coordinator, too.
With unit = "example" they may share noise as well, where a round is one step (`shares_noise`).

What differs between two neighbouring data sets: one image (or, with "silo", one silo) is replaced by one that
contributes nothing. How many images a silo has is not hidden; docs/privacy.md says what else is not.

Tests: tests/common/methods/parts/test_privacy.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from semisilo.common.methods.parts.label_task import is_multi_label
from semisilo.common.methods.parts.secure_sum import MAX_SILOS, MIN_SILOS, WORD_BITS

__all__ = ["DEFAULT_DELTA", "FEWEST_SILOS", "MAX_NOISE", "MIN_NOISE", "DifferentialPrivacy", "PrivacySettings",
           "PrivateTask", "SharedNoise", "SiloNoise", "Unit", "contribution_of", "noise_shares", "refused_dp",
           "shares_noise", "spends_at_site", "too_few_silos", "too_few_to_sum", "trained_with"]

Unit = Literal["example", "silo"]
DEFAULT_DELTA = 1e-5
FEWEST_SILOS = 10
"""Updates of a round that one silo can be hidden among: of fewer the noise in the mean, sigma C / silos in every
weight, leaves nothing that could be learnt."""
MIN_NOISE, MAX_NOISE = 0.1, 1000.0
"""Noise multipliers that there are: below, epsilon is in the hundreds after a step; beyond, nothing is learnt."""

_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")
_WITH_BATCH_NORM = ("small_cnn", "wide_resnet_28_2", "wide_resnet_28_8", "cnn13", "cnn13_no_bias")
"""Built-in networks whose normalisation is batch-norm unless [model] normalisation says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferentialPrivacy:
    """Table [privacy.dp]."""

    unit: Unit = "example"
    """Whose presence is hidden. "example": that of one image at a silo, from everybody outside it, the coordinator
    included (DP-SGD: Abadi et al., CCS 2016). "silo": that of a whole silo, from whoever sees the model (McMahan et
    al., ICLR 2018); from the coordinator only where updates are added up behind masks."""
    noise_multiplier: float = 0.0
    """Standard deviation of the noise over `clip_norm`. Give this or `target_epsilon`."""
    target_epsilon: float = 0.0
    """Each silo works out its own noise multiplier, so that all rounds of the study together spend no more than this
    epsilon of its images. For unit = "example"."""
    clip_norm: float = 1.0
    """C: the gradient of one image, or with "silo" the update of one silo, is shortened to this length (Euclidean
    norm)."""
    delta: float = DEFAULT_DELTA
    """The delta that epsilon is told at: the probability with which the promise may fail. It should be well below one
    over the number of images; a silo that has 1 / delta images or more refuses."""
    honest_silos: int = 0
    """With secure aggregation: so many silos of a sum at least add their share of the noise; all others may work
    together with the coordinator. Fewer make shares larger. 0: with unit = "silo" more than half of the threshold; with
    "example" noise is not shared, and each silo's own covers its images. Above 0 with "example" a round is one step."""

    def __post_init__(self) -> None:
        if not (self.clip_norm > 0 and math.isfinite(self.clip_norm)):
            raise ValueError(f"clip_norm = {self.clip_norm}: must be above 0 and finite.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta}: must be above 0 and below 1.")
        if self.noise_multiplier and not MIN_NOISE <= self.noise_multiplier <= MAX_NOISE:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier}: must be between {MIN_NOISE:g} and"
                             f" {MAX_NOISE:g}.")
        if not (self.target_epsilon >= 0 and math.isfinite(self.target_epsilon)):
            raise ValueError(f"target_epsilon = {self.target_epsilon}: must be above 0 and finite.")
        if bool(self.noise_multiplier) == bool(self.target_epsilon):
            raise ValueError("give noise_multiplier or target_epsilon, one of the two.")
        if self.unit == "silo" and self.target_epsilon:
            raise ValueError('target_epsilon is for unit = "example"; with unit = "silo" give noise_multiplier.')
        if not 0 <= self.honest_silos <= MAX_SILOS:
            raise ValueError(f"honest_silos = {self.honest_silos}: must be between 1 and {MAX_SILOS}, or 0.")
        if self.honest_silos and self.target_epsilon:
            raise ValueError("honest_silos needs noise_multiplier: noise that silos share is the same for all, and with"
                             " target_epsilon each works out its own.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacySettings:
    """Table [privacy]."""

    secure_aggregation: bool = False
    """Whether silos hide their updates behind masks that vanish in the sum, so that the coordinator learns the sum of a
    round and no update by itself (Bonawitz et al., CCS 2017). For methods that average: docs/secure-aggregation.md."""
    threshold: int = 0
    """How many silos of a round are needed to take the masks off; so many that work together with the coordinator could
    see the update of another. 0: more than two thirds of those asked."""
    min_silos: int = MIN_SILOS
    """A sum of fewer silos is never made; at least 3."""
    group_size: int = 0
    """Silos are split into random groups of so many or a few more, and each group has a sum of its own: then a rule of
    [robust] can look at the means of groups. 0: one sum of all. Groups are the same in all rounds, as far as the same
    silos are asked. A group must have `min_silos`."""
    word_bits: int = 18
    """Bits of a masked number, 16 to 32: an update has so many 32nds of its dense bytes. 16 is coarse with more than a
    few silos."""
    random_k: str = "100%"
    """Share of the numbers of an update that is sent, such as "1%": random ones, the same at all silos and others in
    every round, for masks must meet. A silo adds what it did not send to its next update (error feedback)."""
    dp: DifferentialPrivacy | None = None
    """Table [privacy.dp]: differential privacy. Without it there is none."""

    @property
    def fewest_silos(self) -> int:
        """Silos that a round must ask, so that a sum of their updates can be made; 0 in the clear."""
        return max(self.min_silos, self.threshold) if self.secure_aggregation else 0

    def __post_init__(self) -> None:
        if not MIN_SILOS <= self.min_silos <= MAX_SILOS:
            raise ValueError(f"min_silos = {self.min_silos}: must be between {MIN_SILOS} and {MAX_SILOS}.")
        if not (self.threshold == 0 or MIN_SILOS <= self.threshold <= MAX_SILOS):
            raise ValueError(f"threshold = {self.threshold}: must be between {MIN_SILOS} and {MAX_SILOS}, or 0.")
        if self.group_size and not max(self.min_silos, self.threshold) <= self.group_size <= MAX_SILOS // 2:
            raise ValueError(f"group_size = {self.group_size}: must be at least min_silos and threshold,"
                             f" {max(self.min_silos, self.threshold)}, and at most {MAX_SILOS // 2}; or 0.")
        if not WORD_BITS[0] <= self.word_bits <= WORD_BITS[1]:
            raise ValueError(f"word_bits = {self.word_bits}: must be between {WORD_BITS[0]} and {WORD_BITS[1]}.")
        if not 0 < self.random_share <= 1:
            raise ValueError(f'random_k = "{self.random_k}": give a share such as "1%".')
        if not self.secure_aggregation:
            for each in fields(self):
                if each.name != "dp" and getattr(self, each.name) != each.default:
                    raise ValueError(f"{each.name} has no effect without secure_aggregation = true.")
            if self.dp is not None and self.dp.honest_silos:
                raise ValueError("[privacy.dp] honest_silos has no effect without secure_aggregation = true:"
                                 " silos share noise behind their masks.")
        elif self.dp is not None and shares_noise(self.dp, secure=True):
            self._check_shared_noise(self.dp)

    def _check_shared_noise(self, dp: DifferentialPrivacy) -> None:
        if self.random_share < 1:
            raise ValueError("random_k has no meaning where silos share noise ([privacy.dp]): what is clipped would be"
                             " sent later, without end. Leave it out.")
        if self.group_size:
            raise ValueError("group_size is not possible where silos share noise ([privacy.dp]): the sum of a group"
                             " would have the noise of a group alone. Leave it out.")
        if self.threshold and dp.honest_silos > self.threshold:
            raise ValueError(f"[privacy.dp] honest_silos = {dp.honest_silos} is more than threshold ="
                             f" {self.threshold}: sums of fewer silos could not have their noise.")

    @property
    def random_share(self) -> float:
        """`random_k` as a number, above 0 and at most 1; 0 for a text that is none."""
        match = _SHARE.match(self.random_k)
        return 0.0 if match is None else float(match[1]) / 100


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateTask:
    """What a trainer needs to do a task with differential privacy of single images, or a silo to add its share of
    noise; made once its silo has counted what that spends."""

    noise_multiplier: float
    """Over what one image can change."""
    clip_norm: float
    epsilon: float
    """What the study has spent of this silo's images at its own delta, this task included."""
    key: bytes = field(repr=False)
    """32 secret bytes that all its random numbers follow from; never sent, logged or written."""
    shared: bool = False
    """Whether a round is one step, to which the silo adds its share of the noise behind its masks: the trainer adds
    none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloNoise:
    """What a strategy needs to average with differential privacy of whole silos."""

    noise_multiplier: float
    clip_norm: float
    key: bytes = field(repr=False)
    """32 secret bytes of the coordinator's for this study; never sent or logged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedNoise:
    """What a silo clips its update to and adds to it, behind its masks."""

    noise_multiplier: float
    """Of this silo's share: that of the study over the root of `noise_shares`."""
    clip_norm: float
    """What one silo can change of the sum at most; with unit = "example" what one image can, in units of the model."""
    key: bytes = field(repr=False)
    """32 secret bytes of this silo's for this task; never sent, logged or written."""


def noise_shares(dp: DifferentialPrivacy, threshold: int) -> int:
    """How many silos' noise together is that of `noise_multiplier`: each adds a Gaussian of variance
    (sigma C)^2 / shares. With more silos the sum has more noise, never less.

    Args:
        threshold: silos that a sum has at least.
    """
    return min(dp.honest_silos or threshold // 2 + 1, threshold)


def contribution_of(dp: DifferentialPrivacy, settings: Any, *, lr: float) -> float:
    """C' = lr C / m: what one image moves an update of one step by at most, where so many images m are expected.

    Args:
        settings: of the method.
        lr: of the round.
    """
    return lr * dp.clip_norm / float(settings.expected_images)


def shares_noise(dp: DifferentialPrivacy | None, *, secure: bool) -> bool:
    """Whether what covers a silo or its images is the noise of several silos together."""
    return dp is not None and secure and (dp.unit == "silo" or dp.honest_silos > 0)


def spends_at_site(dp: DifferentialPrivacy | None, *, secure: bool) -> bool:
    """Whether a site's own noise covers its images, so that its own ledger counts them."""
    return dp is not None and (dp.unit == "example" or secure)


def trained_with(settings: Any) -> Any:
    """Settings that silos train with under differential privacy of images: those of a local objective. Of methods that
    have other settings, the property `under_privacy` of these."""
    return getattr(settings, "under_privacy", settings)


def too_few_silos(dp: DifferentialPrivacy | None, silos: int) -> str:
    """Why one silo cannot be hidden among so many updates of a round, with what to do; empty where it can."""
    if dp is None or dp.unit != "silo" or silos >= FEWEST_SILOS:
        return ""
    return (f'unit = "silo" hides one silo among those of a round, and there are {silos}: with fewer than'
            f' {FEWEST_SILOS} the noise is larger than what can be learnt. Use unit = "example", or more silos.')


def too_few_to_sum(settings: PrivacySettings, silos: int) -> str:
    """Why the updates of a round that asks so many silos are never added up, with what to do; empty where they are."""
    if silos >= settings.fewest_silos:
        return ""
    return (f"secure_aggregation with these settings takes {settings.fewest_silos} silos (min_silos, threshold), and a"
            f" round asks {silos}. Ask more: [participation] silos_per_round.")


def refused_dp(dp: DifferentialPrivacy | None, *, method: str, allowed: Sequence[Unit], settings: Any,
               precision: str = "fp32", model: str = "", normalisation: str = "", frozen_parts: bool = False,
               rule: str = "none", augmentation: _Views | None = None, begins: bool = False) -> str:
    """Why a study cannot have this differential privacy, with what to do; empty when it can.

    Both sides ask: the coordinator when it reads a study file, the silo in every task.
    Args:
        method: its name.
        allowed: units that it is defined with.
        settings: of the method.
        precision: of the numerics.
        model, normalisation: name and normalisation layers of the network; empty where the network itself is looked at.
        rule: of table [robust].
        frozen_parts: whether parts of it keep their weights, which may take in its batch-norm layers.
        augmentation: how images are varied; None where that is not asked, as of a study that has begun.
        begins: whether the study has still to begin. One that an earlier version has begun goes on with what would only
            not be learnt.
    """
    if dp is None:
        return ""
    if dp.unit not in allowed:
        why = f"it has: {', '.join(allowed)}" if allowed else (
            "what its silos send does not follow from sums over single images alone; use fedavg with objective ="
            ' "fixmatch", fedprox, fednova or self_training')
        return f'unit = "{dp.unit}" is not defined for the method {method}; {why}.'
    if dp.unit == "example" and dp.honest_silos and (why := _why_not_one_step(method, allowed, settings)):
        return f"honest_silos = {dp.honest_silos} has silos share noise, for rounds of one step: {why}"
    if dp.unit == "silo":
        if getattr(settings, "weighting", "uniform") != "uniform":
            return (f'unit = "silo" weighs silos alike, and [method] weighting = "{settings.weighting}": a count of'
                    ' images is not hidden by it. Set [method] weighting = "uniform".')
        if rule != "none":
            return (f'unit = "silo" clips every update by itself, and [robust] rule = "{rule}" would look at all'
                    ' together. Leave that rule out.')
    if model in _WITH_BATCH_NORM and normalisation == "static_batch" and not frozen_parts:
        return ('the network has batch-norm layers, in which every image of a batch changes what all others contribute.'
                ' Set [model] normalisation = "group" or "layer", or freeze these layers with trained weights.')
    if dp.unit == "silo":
        return ""
    if precision not in ("fp32", "tf32"):
        return f'[numerics] precision = "{precision}" is not defined with it. Use "fp32" or "tf32".'
    if augmentation is not None and _ties_views(augmentation):
        return (f'[augmentation] policy = "{augmentation.policy}" flips exactly half of the images of a step, so'
                ' whether an image is flipped depends on who else is in it. Use policy = "small", or leave the flips'
                ' out.')
    scenario = getattr(settings, "scenario", "labels-at-silo")
    if trained_with(settings) is not settings and scenario != "labels-at-coordinator":
        return (f'{method} mixes the labelled images of a silo in pairs, and [method] scenario = "{scenario}". With'
                ' labels at silos use fedavg with objective = "fixmatch".')
    if begins and trained_with(settings) is not settings and is_multi_label(settings):
        return (f'[study] task = "multi_label": the silos of {method} train FixMatch with it, and in our trials several'
                ' labels were hardly learnt so (AUROC about 0.55). Use fedavg with objective = "fixmatch".')
    if tied := [name for name, value in _TIES_IMAGES if getattr(settings, name, value) != value]:
        wanted = ", ".join(f"{name} = {_text(value)}" for name, value in _TIES_IMAGES if name in tied)
        return (f"[method] {', '.join(tied)}: the images of a silo would be tied to each other, by MixUp or by their"
                f" class shares. Set {wanted}.")
    for name, harmless, why in _ACROSS_IMAGES:
        value = getattr(settings, name, harmless)
        if name == "clip_norm" and trained_with(settings) is not settings:
            continue  # it is the coordinator's as well, and silos do without
        if name == "class_weights" and not isinstance(value, str):
            continue  # numbers that a person wrote follow from no image
        if value != harmless and (scenario == "labels-at-silo" or name not in _OF_LABELS):
            return f"[method] {name} = {_text(value)}: {why}. Leave it out."
    return ""


class _Views(Protocol):
    """Table [augmentation], as a study file or a task has it."""

    @property
    def policy(self) -> str: ...
    @property
    def horizontal_flip(self) -> bool: ...
    @property
    def vertical_flip(self) -> bool: ...


def _ties_views(augmentation: _Views) -> bool:
    """Whether the view of an image depends on the other images of its step. Every other policy draws for each image by
    itself (`semisilo.common.data.augmentation.augment`)."""
    return augmentation.policy == "fedmatch_official" and (augmentation.horizontal_flip or augmentation.vertical_flip)


def _why_not_one_step(method: str, allowed: Sequence[Unit], settings: Any) -> str:
    """Why the sum of a study's updates is not a sum of clipped gradients of one step, with what to do; empty where it
    is. The reasons in full: docs/decisions/0050-noise-shared-behind-masks.md."""
    if "silo" not in allowed:
        return f"updates of {method} are more than the gradients of a step. Use fedavg."
    for name, needed, because in _ONE_STEP:
        if (value := getattr(settings, name, needed)) != needed:
            return f"[method] {name} = {_text(value)}, and {because}. Set {name} = {_text(needed)}."
    if getattr(settings, "objective", "") == "mean_teacher":
        return '[method] objective = "mean_teacher", whose teacher follows steps without noise. Choose another.'
    return ""


_ONE_STEP: tuple[tuple[str, object, str], ...] = (
    ("local_epochs", 1, "later steps would follow gradients without noise, so that one image moves more than the clip"),
    ("momentum", 0.0, "a silo's momentum would hold gradients without noise; global_momentum does the same"),
    ("weight_decay", 0.0, "what is added up are gradients alone"),
    ("weighting", "uniform", "noise is for equal weights: every image counts alike already"))
"""Settings of a study whose silos share the noise of single images: the value that is needed, and why."""
_TIES_IMAGES: tuple[tuple[str, object], ...] = (
    ("mix_weight", 0.0), ("silo_prior", "model"), ("local_logit_adjustment", 0.0))
"""Settings of self_training: with these values what it makes of an image hangs on that image alone."""
_ACROSS_IMAGES: tuple[tuple[str, object, str], ...] = (
    ("mask_mean", "batch", "it divides by how many images are kept, which depends on all of them"),
    ("distribution_alignment", "none", "it follows a mean over the silo's images, which is neither clipped nor noised"),
    ("logit_adjustment", 0.0, "it follows the class shares of the silo's labels, which are neither clipped nor noised"),
    ("class_weights", (), "balanced weights follow the class shares of the silo's labels, which are neither clipped nor"
     " noised: give numbers"),
    ("labelled_sampling", "shuffled", "epsilon is counted for images that are drawn independently (Poisson sampling)"),
    ("thresholds", "fixed", "it follows the mean confidence on the silo's labels, which is neither clipped nor noised"),
    ("clip_norm", 0.0, "the gradient of every image is clipped already, at [privacy.dp] clip_norm"),
)
"""Settings that tie images to each other: the value without effect, and why any other is refused."""
_OF_LABELS = ("logit_adjustment", "class_weights", "labelled_sampling", "thresholds")
"""Of them those that look at labels alone: where the coordinator has these, they touch no image of a silo."""


def _text(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value}"
