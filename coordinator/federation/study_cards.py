"""What silos ask about study cards: their text, and that a signature be kept.

Tests: tests/coordinator/federation/test_study_cards.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from semisilo.common.errors import BadSignature, StudyCardGone
from semisilo.common.secure_aggregation.keys import check_card_signature
from semisilo.common.secure_aggregation.roster import ADDED
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.study_cards import (
    CardSignature,
    card_text,
    note_signature,
    signatures,
    signatures_given,
)
from semisilo.coordinator.ledger.secure_sums.roster import held_identity, roster_entries

__all__ = ["StudyCards"]


class StudyCards:
    """Of one federation."""

    def __init__(self, ledger: Ledger, *, federation: str, clock: Callable[[], float] = time.time) -> None:
        """`federation`: its name, which is in every signature."""
        self._ledger = ledger
        self._federation = federation
        self._clock = clock

    def text(self, study: str, digest: str) -> str:
        """The text of a card. Raises: StudyCardGone."""
        found = card_text(self._ledger, study, digest)
        if found is None:
            raise StudyCardGone(f"There is no such card of study '{study}'.")
        return found

    def sign(self, silo: str, study: str, digest: str, signature: bytes) -> None:
        """Keeps a silo's signature. A silo goes on without where that is refused.

        Raises: StudyCardGone; BadSignature for one that is not by the key that stands for the silo in the roster.
        """
        self.text(study, digest)
        identity = held_identity(self._ledger, silo)
        if identity is None:
            raise BadSignature(f"The roster of keys has none of silo '{silo}'.")
        check_card_signature(identity, signature, federation=self._federation, silo=silo, study=study, digest=digest)
        note_signature(self._ledger, study, digest, CardSignature(
            silo=silo, identity=identity, signature=signature, unix=self._clock()))

    def wrong(self, study: str, digest: str) -> list[str]:
        """Silos whose signature under a card is not right, as after a change of the ledger: it is not by the key that
        it names, that key was never the silo's in the roster, or the audit trail does not say that it was given."""
        found = []
        added = {(entry.silo, entry.identity) for entry in roster_entries(self._ledger) if entry.change == ADDED}
        given = signatures_given(self._ledger, study, digest)
        for each in signatures(self._ledger, study, digest):
            if (each.silo, each.identity) not in added or (each.silo, each.identity, each.signature) not in given:
                found.append(each.silo)
                continue
            try:
                check_card_signature(each.identity, each.signature, federation=self._federation, silo=each.silo,
                                     study=study, digest=digest)
            except BadSignature:
                found.append(each.silo)
        return found
