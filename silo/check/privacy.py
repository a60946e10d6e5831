"""`silo check`, privacy: what the study would spend of this site's budget, and how many rounds of it fit.

Tests: tests/silo/check/test_privacy.py.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from semisilo.common.config import from_dict
from semisilo.common.errors import NotPermitted, SemisiloError
from semisilo.common.methods import find_method, silos_have_labels
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.parts.privacy import refused_dp, spends_at_site, trained_with
from semisilo.common.text.describe import counted
from semisilo.silo.check.finding import Finding, bad
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import Policy
from semisilo.silo.site.privacy.ledger import PrivacyLedger, spent, steps_of_study

__all__ = ["look_at_privacy"]


def look_at_privacy(home: SiloHome, policy: Policy, needs: StudyNeeds | None, *, labelled: int,
                    unlabelled: int, authority: str = "") -> list[Finding]:
    """One finding, where the study has differential privacy of single images, or something was spent before. What a
    task of the study would be refused for, as far as it can be known here, is said in the words of that refusal.

    Args:
        labelled, unlabelled: images of this silo, as they were counted.
        authority: of its federation (`authority_id`).
    """
    try:
        if needs is not None and spends_at_site(needs.task.dp, secure=bool(needs.task.secure)):
            return [_of_study(home, policy, needs, labelled=labelled, unlabelled=unlabelled, authority=authority)]
        last = PrivacyLedger(home.privacy).last()
    except SemisiloError as error:
        return [bad("privacy", error)]
    if last is None:
        return []
    return [Finding(what="privacy", state="ok", text=f"epsilon {last.epsilon:.3g} spent (delta {last.delta:g})",
                    facts={"epsilon": last.epsilon, "delta": last.delta})]


def _of_study(home: SiloHome, policy: Policy, needs: StudyNeeds, *, labelled: int, unlabelled: int,
              authority: str) -> Finding:
    """Raises: SemisiloError."""
    from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of, within_target
    from semisilo.silo.objectives.steps import noisy_steps_of
    from semisilo.silo.site.privacy.images import check_apart, check_delta

    task, dp = needs.task, needs.task.dp
    assert dp is not None
    spec = find_method(task.method)
    stated: Any = from_dict(spec.settings, task.settings, where=f"settings of {task.method}")
    settings: Any = trained_with(stated)
    if why := refused_dp(dp, method=task.method, allowed=spec.dp_units, settings=stated):
        raise NotPermitted(f"The study's [privacy.dp]: {why}")
    if dp.unit == "example" and needs.begun:
        check_apart(dp, _tied(home, policy, task))
    has_labels = silos_have_labels(settings.scenario)
    numbers = (labelled if has_labels else 0, unlabelled if has_labels else labelled + unlabelled)
    numbers = (numbers[0], 0 if settings.objective == "sl" else numbers[1])
    check_delta(dp, policy.privacy, sum(numbers))
    each = noisy_steps_of(settings, dp, rounds=task.rounds, num_labelled=numbers[0], num_unlabelled=numbers[1])
    if not each.steps:
        return Finding(what="privacy", state="ok", text="nothing is spent: there are no images that the study uses")
    ledger = PrivacyLedger(home.privacy).lines()
    before, delta, limit = [line.noisy_steps for line in ledger], policy.privacy.delta, policy.privacy.max_epsilon

    def more(rounds: int) -> NoisySteps:
        return NoisySteps(noise_multiplier=each.noise_multiplier, sampling_rate=each.sampling_rate,
                          steps=each.steps * rounds)

    def after(rounds: int) -> float:
        return epsilon_of([*before, more(rounds)], delta)

    def on_target(rounds: int) -> bool:
        return not dp.target_epsilon or within_target(epsilon_of(
            [*steps_of_study(ledger, task.study, authority), more(rounds)], dp.delta), dp.target_epsilon)

    left = max(0, task.rounds - needs.round)
    fit = left if not limit or after(left) <= limit else _most(left, lambda rounds: after(rounds) <= limit)
    permitted = fit
    if not on_target(fit):
        fit = _most(fit, on_target)
    now, end = spent(ledger, delta), after(left)
    facts: dict[str, object] = {
        "epsilon": now, "delta": delta, "max_epsilon": limit or None, "epsilon_after_study": end, "rounds_left": left,
        "rounds_that_fit": fit, "noise_multiplier": each.noise_multiplier, "sampling_rate": each.sampling_rate,
        "steps_per_round": each.steps}
    text = (f"epsilon {now:.3g} spent so far (delta {delta:g}); {counted(left, 'round')} more, of"
            f" {counted(each.steps, 'noisy step')} at a sampling rate of {each.sampling_rate:.3g} and noise"
            f" {each.noise_multiplier:.3g}, would bring it to {end:.3g}")
    if fit == left:
        return Finding(what="privacy", state="ok", facts=facts, text=text + (
            f"; silo.toml permits {limit:g}" if limit else "; silo.toml sets no limit ([privacy] max_epsilon)"))
    if fit < permitted:
        return Finding(
            what="privacy", state="warning" if fit else "bad", facts=facts,
            text=f"{text}; the study promises no more than target_epsilon = {dp.target_epsilon:g}, and has done rounds"
                 f" more than once: {counted(fit, 'round')} of them",
            remedy="This silo refuses the others: the study must end there, or go on as one of another name.")
    return Finding(
        what="privacy", state="warning" if fit else "bad", facts=facts,
        text=f"{text}; silo.toml permits {limit:g}: {counted(fit, 'round')} of them",
        remedy="This silo refuses the others: raise [privacy] max_epsilon in silo.toml, or ask for more noise or fewer"
               " rounds.")


def _tied(home: SiloHome, policy: Policy, task: TaskSpec) -> tuple[str, ...]:
    """Kinds of values of which a sample of this site's images has black and white in common; () where the images cannot
    be looked at, which another finding says."""
    from semisilo.common.data.formats.pixels import Geometry
    from semisilo.common.data.preview.preview import tied_in_sample
    from semisilo.silo.site.images_choice import choose_data

    geometry = Geometry(size=task.image.size, channels=task.image.channels, resize=task.image.resize)
    found: set[str] = set()
    with contextlib.suppress(SemisiloError, OSError, ValueError):
        choice = choose_data(home, policy.data, data=None, on_error=None)
        for source in (choice.source, choice.labelled):
            if source:
                found |= set(tied_in_sample(source, form=geometry, reading=task.image.reading,
                                            selection=choice.selection))
    return tuple(sorted(found))


def _most(upper: int, fits: Any) -> int:
    """The largest number below `upper`, from 0, that still fits; whatever does not fit is followed by such alone."""
    low, high = 0, upper
    while high - low > 1:
        middle = math.floor((low + high) / 2)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
