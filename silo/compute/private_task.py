"""Before a task with differential privacy begins: is it defined, does it fit this site's budget, and is it counted?

Of a study that hides whole silos behind masks a round is one step, of all images at once: an image that is replaced
changes a contribution of length C by at most 2 C, so what is counted is the noise over that. Where noise is shared,
what is counted is that of so many silos together as this silo trusts to add theirs: the secure sum sees to it
(`semisilo.silo.agent.secure_steps`).

What is decided here rests on nothing that the coordinator says of epsilon: steps, sampling rate and images are this
silo's own. Only after the line of the ledger is on disk does a trainer get the key of its noise.

Tests: tests/silo/compute/test_private_task.py.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from semisilo.common import __version__
from semisilo.common.config import canonical_json, to_dict
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import NotPermitted
from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of, within_target
from semisilo.common.learning.privacy.example_gradients import mixes_images
from semisilo.common.learning.tensors import group_digest
from semisilo.common.methods import MethodSpec
from semisilo.common.methods.contract import SiloData, TaskSpec, TensorGroup
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.methods.parts.privacy import (
    DifferentialPrivacy,
    PrivateTask,
    refused_dp,
    shares_noise,
    spends_at_site,
    trained_with,
)
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.objectives import usable_data
from semisilo.silo.objectives.steps import noisy_steps_of
from semisilo.silo.site.policy import PrivacyPolicy
from semisilo.silo.site.privacy.images import check_apart, check_delta
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending, may_be_of, now_text, spent, steps_of_study

__all__ = ["Requested", "admitted"]

_HASHED_AT_ONCE = 256
"""Images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested:
    """A task as far as its noise and its cost follow from it."""

    order: TaskSpec
    spec: MethodSpec
    settings: Any
    """Of the method."""
    groups: Mapping[str, TensorGroup]
    """What it has brought."""
    frozen: TensorGroup | None
    memory: Path | None
    """File of the committed memory, called by its digest."""
    numerics: NumericsRecord
    network: nn.Module
    masking: Masking | None = None
    """How the update is hidden; None where it leaves in the clear."""


def admitted(asked: Requested, data: SiloData, *, policy: PrivacyPolicy, folder: Path | None,
             tied: tuple[str, ...] = (), authority: str = "") -> PrivateTask | None:
    """What the noise of a task needs, once it is counted; None for a study in which this silo adds none.

    Args:
        data: what the task would be trained on.
        policy: table [privacy] of silo.toml.
        folder: of the site's `PrivacyLedger`; needed where there is anything to count.
        tied: kinds of deep values whose range was found in the images together, as `SiloImages` has them.
        authority: `authority_id` of the task's federation; empty in a simulation, which has one.
    Raises: NotPermitted, naming the line of silo.toml or the setting of the study, with nothing counted; StorageDamaged
        when it cannot be known what was spent.
    """
    dp = asked.order.dp
    if dp is None or not spends_at_site(dp, secure=bool(asked.order.secure)):
        return None
    assert folder is not None, "a task with differential privacy is asked of a silo that keeps no ledger of it"
    if why := refused_dp(dp, method=asked.order.method, allowed=asked.spec.dp_units, settings=asked.settings,
                         precision=asked.numerics.precision, augmentation=asked.order.augmentation):
        raise NotPermitted(f"The study's [privacy.dp]: {why}")
    shared = shares_noise(dp, secure=bool(asked.order.secure))
    if (dp.honest_silos and not shared) or (shared and asked.masking is None):
        raise NotPermitted("The study has silos share noise behind masks, and this task sends its update in the clear.")
    if asked.order.phase != "train":
        raise NotPermitted(f"The phase '{asked.order.phase}' tells of many images at once, without clipping or noise.")
    if mixes_images(asked.network):
        raise NotPermitted("Differential privacy of single images is not defined with batch-norm layers: every image of"
                           " a batch changes what all others contribute.",
                           remedy='The study needs [model] normalisation = "group" or "layer", or these layers frozen.')
    check_apart(dp, tied)
    settings = trained_with(asked.settings)
    labelled, unlabelled, _ = usable_data(settings, data)
    labelled_count, unlabelled_count = (0 if each is None else len(each) for each in (labelled, unlabelled))
    check_delta(dp, policy, labelled_count + unlabelled_count)
    each = noisy_steps_of(settings, dp, rounds=asked.order.rounds, num_labelled=labelled_count,
                          num_unlabelled=unlabelled_count)
    ledger = PrivacyLedger(folder)
    before = ledger.lines()
    key = ledger.key_of(fingerprint := _fingerprint(asked, labelled, unlabelled, each, ledger))
    # What is the very same in another federation has the same noise and bits, and counts for the study there as well.
    known = next((line for line in before if line.fingerprint == fingerprint and may_be_of(line, authority)), None)
    if known is None:
        known = _counted(asked.order, dp, each, before, policy=policy, fingerprint=fingerprint,
                         images=labelled_count + unlabelled_count, authority=authority)
        ledger.append(known)
        epsilon = known.study_epsilon
    else:
        ledger.keep()
        # By now, and not when it was first done: a study that has gone back has spent on later rounds since.
        epsilon = max(line.study_epsilon for line in before
                      if line.study == asked.order.study and may_be_of(line, authority))
    return PrivateTask(noise_multiplier=each.noise_multiplier, clip_norm=dp.clip_norm, epsilon=epsilon, key=key,
                       shared=shared)


def _counted(order: TaskSpec, dp: DifferentialPrivacy, each: NoisySteps, before: tuple[Spending, ...], *,
             policy: PrivacyPolicy, fingerprint: str, images: int, authority: str) -> Spending:
    """The line of the ledger. Raises: NotPermitted when the site's budget does not allow it, or the study has spent
    what it has promised: it was told to do rounds again, or has other images than it had."""
    delta = policy.delta
    after = epsilon_of([*(line.noisy_steps for line in before), each], delta)
    if policy.max_epsilon and after > policy.max_epsilon:
        so_far = spent(before, delta)
        raise NotPermitted(
            f"This round would bring what this site has spent from epsilon {so_far:.3g} to {after:.3g} (delta"
            f" {delta:g}); silo.toml permits [privacy] max_epsilon = {policy.max_epsilon:g}.",
            remedy="The study continues without this silo. Whoever answers for the budget may raise it in silo.toml.")
    of_study = steps_of_study(before, order.study, authority)
    study_epsilon = epsilon_of([*of_study, each], dp.delta)
    if dp.target_epsilon and not within_target(study_epsilon, dp.target_epsilon):
        raise NotPermitted(
            f"This round would bring what the study '{order.study}' has spent of this site's images from epsilon"
            f" {epsilon_of(of_study, dp.delta):.3g} to {study_epsilon:.3g} (delta {dp.delta:g}); its [privacy.dp] says"
            f" target_epsilon = {dp.target_epsilon:g}.",
            remedy="Rounds that are done again, as after a rollback, spend again. The study ends here, or goes on as"
                   " one of another name.")
    return Spending(
        time=now_text(), study=order.study, round=order.round, phase=order.phase, task_id=order.task_id,
        fingerprint=fingerprint, images=images, noise_multiplier=each.noise_multiplier, clip_norm=dp.clip_norm,
        sampling_rate=each.sampling_rate, steps=each.steps, study_delta=dp.delta,
        study_epsilon=study_epsilon, delta=delta, epsilon=after, authority=authority)


def _fingerprint(asked: Requested, labelled: ImageSet | None, unlabelled: ImageSet | None, each: NoisySteps,
                 ledger: PrivacyLedger) -> str:
    """SHA-256 of all that the task's bits follow from, the site's secret among it.

    Two tasks that differ in anything have different noise: of the same noise on two sums the difference would be bare.
    """
    order, groups = asked.order, {**asked.groups, **({} if asked.frozen is None else {"frozen": asked.frozen})}
    ledger.key_of("")  # makes the secret where there is none
    dp = to_dict(order.dp)
    if not dp["honest_silos"]:  # younger than studies without it, whose noise stays what it was
        del dp["honest_silos"]
    content = {
        "version": __version__, "study": order.study, "round": order.round, "rounds": order.rounds,
        "phase": order.phase, "silo": order.silo, "seed": order.seed, "method": order.method,
        "settings": to_dict(asked.settings), "model": to_dict(order.model), "image": to_dict(order.image),
        "augmentation": to_dict(order.augmentation), "numerics": to_dict(asked.numerics), "dp": dp,
        "spends": to_dict(each), "groups": {name: group_digest(group) for name, group in groups.items()},
        "memory": "" if asked.memory is None else asked.memory.name, "labelled": _digest(labelled),
        "unlabelled": _digest(unlabelled), "secret": ledger.secret_name(),
        # Where the same task may come out otherwise, it is never the same.
        "once": "" if asked.numerics.deterministic else secrets.token_hex(16),
    }
    if asked.masking is not None and shares_noise(order.dp, secure=True):
        # Of two sums with other scales or shares each has noise of its own, and counts.
        content |= {"form": to_dict(asked.masking.form), "threshold": asked.masking.threshold}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _digest(images: ImageSet | None) -> str:
    """Of the pixels and labels that a training sees."""
    if images is None:
        return ""
    digest = hashlib.sha256(repr(tuple(images.images_NCHW.shape)).encode())
    for start in range(0, len(images), _HASHED_AT_ONCE):
        digest.update(images.images_NCHW[start:start + _HASHED_AT_ONCE].contiguous().numpy().tobytes())
    if images.labels_N is not None:
        digest.update(images.labels_N.contiguous().numpy().tobytes())
    return digest.hexdigest()
