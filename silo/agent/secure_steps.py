"""The steps of a secure sum at a silo: what is asked, held against what this silo knows, and answered.

A silo masks an update of one round of a study once: a coordinator that has the same update masked for two sums learns
the difference between them, which may be one silo's update.

Tests: tests/silo/agent/test_secure_steps.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from semisilo.common.errors import BadConfiguration, BadRoster, SecureSumRefused
from semisilo.common.methods.contract import SumStep, TaskSpec
from semisilo.common.methods.parts.privacy import noise_shares, shares_noise
from semisilo.common.methods.spec import FIRST_STATISTICS
from semisilo.common.secure_aggregation.context import told_alike
from semisilo.common.secure_aggregation.conversion import StepAnswer, SumQuestion
from semisilo.common.secure_aggregation.messages import SecureSum
from semisilo.common.secure_aggregation.roster import RosterEntry, replay, roster_of
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.secure_aggregation import session as steps
from semisilo.silo.secure_aggregation.session import SiloSession
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.secure_aggregation.trust import Trust, fingerprint, parse_fingerprint
from semisilo.silo.site.policy import Policy, check_masked_share

__all__ = ["STEP_TEXTS", "SecureSteps", "trust_of"]

_LOG = logging.getLogger("semisilo.silo")
STEP_TEXTS: Mapping[SumStep, str] = {
    "keys": "new public keys for this sum, signed",
    "shares": "shares of this silo's secrets, sealed for the other silos",
    "confirm": "signature under the list of silos whose masked updates have come",
    "unmask": "shares that take the masks off the sum",
}
"""What leaves in each, for a person."""


def trust_of(policy: Policy, store: SecureStore, *, silo: str, min_silos: int = 0) -> Trust:
    """Whom this silo takes for a silo: those pinned in silo.toml, and others as they were first seen.

    Args:
        min_silos: trusted ones that a sum must have, where that is more than silo.toml says.
    Raises: BadConfiguration for a silo.toml that pins what is no identity, or this silo itself with another.
    """
    pinned = {name: parse_fingerprint(text, where=f"silo.toml: [peers] {name}") for name, text in policy.peers.items()}
    own = store.identity()
    if pinned.get(silo, own) != own:
        raise BadConfiguration(f"silo.toml: [peers] {silo} is this silo itself, with another identity than its own.",
                               remedy=f'Its own is "{fingerprint(own)}": write that, or leave the line out.')
    return Trust(silo=silo, identity=own, pinned=pinned, require_pinned=policy.require.pinned_peers,
                 known={name: key for name, key in store.known.items() if name not in pinned and name != silo},
                 min_silos=max(policy.require.min_silos, min_silos))


class SecureSteps:
    """Answers the steps of secure sums, one after another. Every answer is durable before it is returned."""

    def __init__(self, store: SecureStore, *, federation: str, silo: str, policy: Policy) -> None:
        self._store = store
        self._federation = federation
        self._silo = silo
        self._policy = policy

    def answer(self, task: TaskSpec, question: SumQuestion) -> StepAnswer:
        """The answer to a step that asks for no update. The same question gives the same answer.

        Raises: SecureSumRefused where answering could show this silo's update to somebody.
        """
        total = self._total(task, question)
        if question.step == "keys":
            session = self._begun(task, total, question.roster)
            return steps.round_keys(session, self._store.private_identity())
        session = self._session(task, total)
        if question.step == "shares":
            after, shares = steps.share(session, question.members, trust_of(
                self._policy, self._store, silo=self._silo, min_silos=_noise_takes(task, total)))
            self._store.keep(task.study, after)
            self._store.know({each.silo: each.identity for each in question.members})
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
        if question.phase != task.phase or (question.phase == FIRST_STATISTICS and task.round > 1):
            # A name that is not the work's own would let a round's update into a second sum.
            raise SecureSumRefused(f"The task of phase '{task.phase}' in round {task.round} is asked for a secure sum"
                                   f" of phase '{question.phase}'.")
        total = self._total(task, question)
        session = self._session(task, total)
        if question.form is None:
            raise SecureSumRefused("The task does not say how its update becomes words.")
        check_masked_share(self._policy, question.form.random_k)
        if session.min_silos < (takes := _noise_takes(task, total)):
            raise SecureSumRefused(f"The noise of this sum is that of {takes} silos together, and it was begun as one"
                                   f" that {session.min_silos} would do for.")
        context = told_alike(task, phase=question.phase, form=question.form, roster=self._store.roster.head.digest())
        after, seeds = steps.mask_seeds(session, given=question.sealed, context=context)
        self._store.keep(task.study, after, masks=True)
        return Masking(form=question.form, phase=question.phase, threshold=question.threshold, seeds=seeds)

    def masked(self, task: TaskSpec, question: SumQuestion, vector: bytes) -> None:
        """Remembers what was masked, before it leaves: the masks are for one vector.

        Args:
            vector: SHA-256 of the words before they were masked.
        Raises: SecureSumRefused for another one than before, as after a change of this machine.
        """
        session = self._session(task, self._total(task, question))
        self._store.keep(task.study, steps.one_vector(session, vector))

    def _begun(self, task: TaskSpec, total: SecureSum, roster: Sequence[RosterEntry]) -> SiloSession:
        """A new sum, or the one that this silo has begun already."""
        session = self._store.session(task.study)
        if session is not None and session.total == total:
            return session
        if session is not None:
            steps.check_follows(session, total)
        if self._store.has_masked(task.study, task.round, total.phase):
            raise SecureSumRefused(
                f"This silo has masked an update of round {self._store.last_masked(task.study)[0]} of study"
                f" '{task.study}' already, and does so once for a round. Later rounds are answered.")
        self._replay(roster)
        session = steps.begin(total, silo=self._silo, random=os.urandom)
        self._store.keep(task.study, session)
        return session

    def _replay(self, entries: Sequence[RosterEntry]) -> None:
        """Takes the roster that the coordinator tells all silos; its end goes into the masks, so silos that were told
        different ones get noise.

        A coordinator that goes on from a backup tells another history than before. It is taken, and said, where no
        silo has another key in it than this one has seen.
        Raises: SecureSumRefused for one that is no chain, in which a silo has another key, or this one has not its own.
        """
        before = self._store.roster
        try:
            try:
                roster = replay(before, entries)
            except BadRoster as error:
                roster = roster_of(entries)
                changed = [silo for silo, key in roster.present.items() if before.present.get(silo, key) != key]
                if changed:
                    raise
                _LOG.warning("%s No silo has another key than before, so this silo goes on; `silo peers` shows whom it"
                             " knows.", error.text)
        except BadRoster as error:
            raise SecureSumRefused(error.text, remedy=error.remedy) from None
        if roster.present.get(self._silo) != self._store.identity():
            raise SecureSumRefused("The roster does not list this silo with its own key.")
        self._store.take_roster(roster)

    def _session(self, task: TaskSpec, total: SecureSum) -> SiloSession:
        session = self._store.session(task.study)
        if session is None or session.total != total:
            raise SecureSumRefused("This silo has no part in that secure sum: it has not been asked for keys, or has"
                                   " lost them.")
        return session

    def _total(self, task: TaskSpec, question: SumQuestion) -> SecureSum:
        return SecureSum(federation=self._federation, study=task.study, round=task.round, phase=question.phase,
                         nonce=question.nonce, threshold=question.threshold)


def _noise_takes(task: TaskSpec, total: SecureSum) -> int:
    """Silos whose noise together covers this one, all of whom it must trust: those with the coordinator take theirs
    away. 0 where noise is not shared."""
    if task.dp is None or not shares_noise(task.dp, secure=True):
        return 0
    return noise_shares(task.dp, total.threshold)
