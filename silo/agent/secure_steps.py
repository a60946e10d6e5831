"""The steps of a secure sum at a silo: what is asked, held against what this silo knows, and answered.

A silo masks an update of one round of a study once: a coordinator that has the same update masked for two sums learns
the difference between them, which may be one silo's update.

Tests: tests/silo/agent/test_secure_steps.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from semisilo.common.secure_aggregation.keys import check_keys
from semisilo.silo.secure_aggregation import session as steps
from semisilo.silo.secure_aggregation.session import SiloSession
from semisilo.silo.secure_aggregation.trust import Trust

from semisilo.common.errors import SecureSumRefused
from semisilo.common.methods.contract import SumStep, TaskSpec
from semisilo.common.secure_aggregation.context import mask_context
from semisilo.common.secure_aggregation.conversion import StepAnswer, SumQuestion
from semisilo.common.secure_aggregation.messages import SecureSum
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.site.secure_store import SecureStore

__all__ = ["STEP_TEXTS", "SecureSteps"]

STEP_TEXTS: Mapping[SumStep, str] = {
    "keys": "new public keys for this sum, signed",
    "shares": "shares of this silo's secrets, sealed for the other silos",
    "confirm": "signature under the list of silos whose masked updates have come",
    "unmask": "shares that take the masks off the sum",
}
"""What leaves in each, for a person."""


class SecureSteps:
    """Answers the steps of secure sums, one after another. Every answer is durable before it is returned."""

    def __init__(self, store: SecureStore, *, federation: str, silo: str, trust: Trust) -> None:
        self._store = store
        self._federation = federation
        self._silo = silo
        self._trust = trust

    def answer(self, task: TaskSpec, question: SumQuestion) -> StepAnswer:
        """The answer to a step that asks for no update. The same question gives the same answer.

        Raises: SecureSumRefused where answering could show this silo's update to somebody.
        """
        total = self._total(task, question)
        if question.step == "keys":
            session = self._begun(task, total)
            return steps.round_keys(session, self._store.private_identity())
        session = self._session(task, total)
        if question.step == "shares":
            for member in question.members:
                check_keys(total, member)
            after, shares = steps.share(session, question.members, self._trust)
            self._store.keep(task.study, after)
            return shares
        if question.step == "confirm":
            after, signature = steps.confirm(session, question.survivors, self._store.private_identity())
            self._store.keep(task.study, after)
            return signature
        after, answer = steps.unmask(session, question.unmasking)
        self._store.keep(task.study, after)
        return answer

    def masking(self, task: TaskSpec, question: SumQuestion) -> Masking:
        """How the update of a task is hidden; from now on this silo masks no other of that round.

        Raises: SecureSumRefused.
        """
        total = self._total(task, question)
        session = self._session(task, total)
        if question.form is None:
            raise SecureSumRefused("The task does not say how its update becomes words.")
        context = mask_context(task, phase=question.phase, form=question.form, members=session.members, roster=b"")
        after, seeds = steps.mask_seeds(session, given=question.sealed, context=context)
        self._store.keep(task.study, after, masked_round=task.round)
        return Masking(form=question.form, phase=question.phase, seeds=seeds)

    def _begun(self, task: TaskSpec, total: SecureSum) -> SiloSession:
        """A new sum, or the one that this silo has begun already."""
        session = self._store.session(task.study)
        if session is not None and session.total == total:
            return session
        if task.round <= self._store.last_masked_round(task.study):
            raise SecureSumRefused(
                f"This silo has masked an update of round {self._store.last_masked_round(task.study)} of study"
                f" '{task.study}' already, and does so once for a round. Later rounds are answered.")
        session = steps.begin(total, silo=self._silo)
        self._store.keep(task.study, session)
        return session

    def _session(self, task: TaskSpec, total: SecureSum) -> SiloSession:
        session = self._store.session(task.study)
        if session is None or session.total != total:
            raise SecureSumRefused("This silo has no part in that secure sum: it has not been asked for keys, or has"
                                   " lost them.")
        return session

    def _total(self, task: TaskSpec, question: SumQuestion) -> SecureSum:
        return SecureSum(federation=self._federation, study=task.study, round=task.round, phase=question.phase,
                         nonce=question.nonce, threshold=question.threshold)
