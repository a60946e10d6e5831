"""Fetches the model that a finished study hands over, to evaluate it on this site's own test images.

No task waits for it for long: what is in the way is tried a few times, then the next task goes before.

Tests: tests/silo/agent/test_site_evaluation.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from semisilo.common.errors import DailyBudget, NotPermitted, OutsideHours, SemisiloError
from semisilo.common.storage.store import PayloadStore
from semisilo.common.system_errors import SYSTEM_ERRORS, explained
from semisilo.common.text.logs import printable
from semisilo.silo.agent.away import away_now
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.agent.shared_model import check_size, note_question
from semisilo.silo.agent.site_evaluation import SiteEvaluator
from semisilo.silo.link.link import Link, ModelDescription
from semisilo.silo.link.retrying_calls import is_answer, is_fatal
from semisilo.silo.site.disclosures import DisclosureLog
from semisilo.silo.site.policy import Policy
from semisilo.silo.site.working_hours import next_day_at
from semisilo.silo.study_cards.agreement import Agreement

__all__ = ["FinalModel"]

_LOG = logging.getLogger("semisilo.silo")
_TRIES = 4
"""Failures in a row, with nothing moved, after which it is put off."""
_AGAIN_SECONDS = 600.0
"""For so long."""


class FinalModel:
    """What a study hands over, from the coordinator to the evaluation here."""

    def __init__(self, *, folder: Path, link: Link, sites: SiteEvaluator, policy: Policy, budget: DayBudget,
                 disclosures: DisclosureLog, agreement: Agreement | None, clock: Callable[[], float],
                 count: Callable[[], None]) -> None:
        """
        Args:
            folder: where the model lies until it is evaluated.
            agreement: None where studies have no cards.
            clock: Unix seconds.
            count: takes note of what the connection has carried.
        """
        self._folder = folder
        self._link = link
        self._sites = sites
        self._policy = policy
        self._budget = budget
        self._disclosures = disclosures
        self._agreement = agreement
        self._clock = clock
        self._count = count

    async def evaluate(self, study: str, *, not_before_unix: float) -> float | None:
        """Fetches it and begins to evaluate it, where the study shares it and this site has agreed to the study.

        Args:
            not_before_unix: what the last call has returned; 0 before the first.
        Returns: when to try again, Unix seconds; None when there is nothing more to do: what the coordinator refuses is
            no trouble, since the rounds before were evaluated.
        Raises: what no repetition can fix.
        """
        now = self._clock()
        if now < not_before_unix <= next_day_at(self._policy.hours, now):  # later is another clock's
            return not_before_unix
        try:
            found = await self._fetched(study)
            if found is not None:
                await self._sites.make_way()
                self._sites.begin_file(*found)
            return None
        except DailyBudget as error:
            later, why = next_day_at(self._policy.hours, self._clock()), error.text
        except OutsideHours as error:
            later, why = not_before_unix, error.text
        except (SemisiloError, *SYSTEM_ERRORS) as error:
            if isinstance(error, SemisiloError) and is_fatal(error):
                raise
            problem = explained(error) or error
            if isinstance(problem, RuntimeError):
                raise
            line = problem.line() if isinstance(problem, SemisiloError) else str(error)
            if isinstance(problem, OSError) or is_answer(problem):
                _LOG.debug("the model of study %s is not evaluated: %s", printable(study), printable(line, limit=500))
                return None
            _LOG.warning("the model of study %s cannot be fetched to be evaluated here; it is tried again in %.0f"
                         " minutes: %s", printable(study), _AGAIN_SECONDS / 60, printable(line, limit=500))
            return self._clock() + _AGAIN_SECONDS
        _LOG.debug("the model of study %s is put off: %s", printable(study), why)
        return later

    async def _fetched(self, study: str) -> tuple[ModelDescription, Path] | None:
        """The model with its file; None where this site has no part in the study, or knows the model.

        Raises: DailyBudget, OutsideHours, and whatever else is in the way.
        """
        if not await self._agreed(study):
            _LOG.debug("the model of study %s is not evaluated: this site has no part in it", printable(study))
            return None
        note_question(self._disclosures, study)
        model = await self._link.describe_model(study, tries=_TRIES)
        if self._sites.knows(model):
            return None
        check_size(model, self._policy.limits)
        self._may_fetch(model, 0)
        store = PayloadStore(self._folder)
        await asyncio.to_thread(store.clean, keep_partials=[model.digest])
        return model, await self._link.download_model(model, store, may_go_on=partial(self._may_fetch, model),
                                                      tries=_TRIES)

    async def _agreed(self, study: str) -> bool:
        """Whether this silo has answered a task of the study, and this site would permit another: a coordinator may
        name any study. Raises: StorageDamaged, OSError."""
        if self._disclosures.method_of(study) not in self._policy.methods:
            return False
        if self._agreement is None:
            return not self._policy.require.approval
        return await asyncio.to_thread(self._agreement.stands, study)

    def _may_fetch(self, model: ModelDescription, here: int) -> None:
        """Whether the rest of a model may come now. No task waits for it, so that none is put off with it.

        Raises: OutsideHours, DailyBudget; NotPermitted where it will never fit.
        """
        self._count()
        if (away := away_now(self._policy.hours, self._budget, self._clock())) is not None:
            raise away.error
        limit = self._policy.limits.bytes_per_day
        if limit and model.size_bytes > limit:
            raise NotPermitted(f"The model has {model.size_bytes} bytes; this silo carries at most {limit} in a day.")
        self._budget.check(model.size_bytes - here, "the model that the study hands over", self._clock(),
                           ends_day=False)
