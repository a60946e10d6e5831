"""Before a task of a study: its card is here, is permitted and signed, and the task says what the card says.

Tests: tests/silo/study_cards/test_agreement.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from semisilo.common.errors import BadPayload, BadSignature, NotPermitted, StudyNotApproved
from semisilo.common.methods import MethodSpec
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.parts.secure_sum import threshold_of
from semisilo.common.methods.study_card import StudyCard, card_from_text, contradictions, digest_of
from semisilo.common.secure_aggregation.conversion import question_from_hex
from semisilo.common.text.describe import describe_moment
from semisilo.common.text.logs import printable
from semisilo.silo.study_cards.book import CardBook, CardEntry

__all__ = ["Agreement", "CardCalls", "declined", "not_approved"]

_LOG = logging.getLogger("semisilo.silo")


class CardCalls(Protocol):
    """What is asked of the coordinator."""

    async def study_card(self, study: str, digest: str) -> str:
        """The text of a card. Raises: StudyCardGone; what no repetition can fix."""

    async def sign_card(self, study: str, digest: str, signature: bytes) -> None:
        """Hands in this silo's signature. Raises: BadSignature where the coordinator knows this silo by no such key;
        what no repetition can fix."""


class Agreement:
    """Between this site and the studies of its federation."""

    def __init__(self, book: CardBook, calls: CardCalls, *, sign: Callable[[str, str], bytes], approval: bool,
                 note: Callable[[str, str, bytes], None], clock: Callable[[], float]) -> None:
        """
        Args:
            sign: makes a signature of a study and the digest of its card.
            approval: whether a person must approve cards; studies without one are refused then.
            note: records a study, the digest of its card and this silo's signature before that leaves.
            clock: Unix seconds.
        """
        self._book = book
        self._calls = calls
        self._sign = sign
        self._approval = approval
        self._note = note
        self._clock = clock
        self._said = ""
        self._not_kept = ""
        """The card of which it was said that the coordinator does not keep the signature."""
        self._waiting = ""

    async def check(self, task: TaskSpec, spec: MethodSpec) -> None:
        """Whether a task, which the policy permits, is of a study whose card this site has signed; signs it where no
        person must, and hands the signature in. One that the coordinator does not keep, since the roster of keys has
        not this silo's, is handed in again with the next task: the work waits for none of that.

        Raises: StudyNotApproved while a person must approve it; NotPermitted where a person has declined it, for a
            task that says something else than the card, and for one without where this site requires or has one.
        """
        if not task.card:
            if self._approval:
                raise NotPermitted("This site requires study cards, and the coordinator's version has none.",
                                   remedy="[require] approval in silo.toml says so; the coordinator must be upgraded.")
            if (entry := await asyncio.to_thread(self._book.find, task.study)) is not None:
                _not_declined(entry)
                raise NotPermitted(f"The task names no study card, and this site has one of study '{task.study}', which"
                                   " every task of it is held against.",
                                   remedy="Tell the coordinator's operator: a version of semisilo without cards cannot"
                                          " continue the study.")
            return
        entry = await asyncio.to_thread(self._book.find, task.study)
        if entry is None or entry.digest != task.card or entry.state == "waiting":
            entry = await self._arrived(task, spec)
        _not_declined(entry)
        if entry.state == "waiting":
            self._waiting = task.study
            raise not_approved(entry)
        _not_contradicted(entry.card, task, spec)
        if entry.state == "approved":
            signature = self._sign(task.study, entry.digest)
            entry = await asyncio.to_thread(self._book.signed, entry, signature, now_unix=self._clock())
            _not_declined(entry)
            _LOG.info("signed the card of study %s (%s...), by %s", entry.study, entry.digest[:12], entry.by)
        # A silo that was given another name has another signature to hand in.
        if not entry.told or entry.signature != self._sign(task.study, entry.digest).hex():
            _not_declined(await self._hand_in(entry))  # may have taken hours

    def stands(self, study: str) -> bool:
        """Whether this site's word about a study, as it is now, is for it: nobody has declined it, and it is signed
        where a person must approve it. Reads a file. Raises: StorageDamaged, OSError."""
        entry = self._book.find(study)
        if entry is None:
            return not self._approval
        return entry.state == "signed" or (entry.state == "approved" and not self._approval)

    def awaits(self) -> StudyNotApproved | None:
        """What keeps this silo from a task that it was given, as long as nobody has decided; None for nothing."""
        try:
            entry = self._book.find(self._waiting) if self._waiting else None
        except OSError as error:  # nobody is known to have decided; asked again with the next call
            return StudyNotApproved(f"Whether study '{self._waiting}' is approved cannot be read:"
                                    f" {error.strerror or error}.")
        if entry is None or entry.state != "waiting":
            self._waiting = ""
            return None
        return not_approved(entry)

    @property
    def waiting(self) -> str:
        """The study that nobody has decided yet; empty when there is none."""
        return self._waiting

    def heard_of(self, study: str) -> None:
        """The coordinator works on a study now, or on none: another one is not waited for any more."""
        if study != self._waiting:
            self._waiting = ""

    async def _hand_in(self, entry: CardEntry) -> CardEntry:
        """Gives the coordinator the signature under a card; returns the entry that there is then."""
        # By the key that this silo has now: it may have got back the one that the roster has.
        signature = self._sign(entry.study, entry.digest)
        if signature.hex() != entry.signature:
            entry = await asyncio.to_thread(self._book.signed_anew, entry, signature)
            _not_declined(entry)
        await asyncio.to_thread(self._note, entry.study, entry.digest, signature)
        try:
            await self._calls.sign_card(entry.study, entry.digest, signature)
        except BadSignature as error:
            if self._not_kept != entry.digest:
                self._not_kept = entry.digest
                _LOG.warning("the coordinator does not keep this site's signature under the card of study %s: %s This"
                             " silo takes part, but in no secure sum, and hands it in with every task until it is kept",
                             entry.study, error.line())
            return await asyncio.to_thread(self._book.find, entry.study) or entry
        return await asyncio.to_thread(self._book.told, entry)

    async def _arrived(self, task: TaskSpec, spec: MethodSpec) -> CardEntry:
        text = await self._calls.study_card(task.study, task.card)
        if digest_of(text) != task.card:
            raise BadPayload("The study card is another one than the task names.")
        _not_contradicted(card_from_text(text), task, spec)  # before it is kept: it would fill the disk
        entry = await asyncio.to_thread(self._book.arrived, task.study, task.card, text, approval=self._approval,
                                        now_unix=self._clock())
        if entry.state == "declined" and self._said != entry.digest:
            self._said = entry.digest
            _LOG.warning("study %s, which this site has declined, has another card; it stays declined", task.study)
        elif entry.changed and self._said != entry.digest:
            self._said = entry.digest
            _LOG.warning("study %s has changed since this site signed it: %s", task.study,
                         printable(entry.changed, limit=1000))
        return entry


def _not_contradicted(card: StudyCard, task: TaskSpec, spec: MethodSpec) -> None:
    if wrong := contradictions(card, task, spec) or _sum_contradictions(card, task):
        raise NotPermitted(f"The task says something else than the card of study '{task.study}', which this site signs:"
                           f" {printable(wrong[0], limit=300)}.")


def _sum_contradictions(card: StudyCard, task: TaskSpec) -> list[str]:
    """What the step of a secure sum asks otherwise than the card says: the sum of fewer silos, or a smaller share of
    each update. Raises: BadPayload."""
    if not task.secure:
        return []
    question, privacy, found = question_from_hex(task.secure), card.privacy, []
    least = threshold_of(privacy.threshold, privacy.min_silos, len(question.members))
    if question.threshold < least:
        found.append(f"privacy: sums of {least} silos or more, not of {question.threshold}")
    if question.form is not None and question.form.random_k < privacy.random_share:
        found.append(f"privacy.random_k: {privacy.random_k}, not {question.form.random_k:.3%}")
    return found


def _not_declined(entry: CardEntry) -> None:
    if entry.state == "declined":
        raise declined(entry)


def declined(entry: CardEntry) -> NotPermitted:
    """What keeps this silo from the tasks of a study that a person here has declined."""
    return NotPermitted(f"This site has declined study '{entry.study}' on {describe_moment(entry.unix)}.",
                        remedy=f"To take part after all: silo approve {entry.study}")


def not_approved(entry: CardEntry) -> StudyNotApproved:
    """What keeps this silo from the tasks of a study that nobody here has decided."""
    changed = f" It has changed since it was signed: {printable(entry.changed, limit=500)}." if entry.changed else ""
    return StudyNotApproved(f"Nobody at this site has approved study '{entry.study}' yet.{changed}",
                            remedy=f"A person at the silo looks at it and decides: silo approve {entry.study}")
