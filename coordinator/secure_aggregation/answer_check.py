"""What an answer to a step of a secure sum must have, before it is kept. Simulations import it: without cryptography.

Tests: tests/coordinator/rounds/test_hostile_members.py.
"""

from __future__ import annotations

from semisilo.common.errors import BadPayload
from semisilo.common.secure_aggregation.conversion import StepAnswer, SumQuestion
from semisilo.common.secure_aggregation.messages import SEALED_SHARES_BYTES, Shares

__all__ = ["check_answer"]


def check_answer(question: SumQuestion, answer: StepAnswer, *, silo: str) -> None:
    """Whether an answer has something for each silo that it must. A silo that is given no share of another does not
    sign a list with that one on it: one that seals shares for some alone would have all others refuse.

    Args:
        silo: whose answer it is.
    Raises: BadPayload.
    """
    if not isinstance(answer, Shares):
        return
    wanted = tuple(member.silo for member in question.members if member.silo != silo)
    if tuple(item.silo for item in answer.sealed) != wanted:
        raise BadPayload(f"Shares are sealed for {', '.join(item.silo for item in answer.sealed) or 'nobody'}, and are"
                         f" to be for {', '.join(wanted)}.")
    if any(len(item.sealed) != SEALED_SHARES_BYTES for item in answer.sealed):
        raise BadPayload(f"Sealed shares have {SEALED_SHARES_BYTES} bytes.")
