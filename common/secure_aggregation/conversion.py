"""Questions and answers of a secure sum <-> their messages; what arrives is checked here, by both sides.

Tests: tests/common/secure_aggregation/test_conversion.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from semisilo.common.errors import BadPayload
from semisilo.common.methods.contract import SumStep
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import (
    KEY_BYTES,
    MAX_SILOS,
    NONCE_BYTES,
    SEED_BYTES,
    SIGNATURE_BYTES,
    Confirmation,
    Member,
    RoundKeys,
    SealedShare,
    Shares,
    UnmaskAnswer,
    UnmaskRequest,
    in_order,
)
from semisilo.common.secure_aggregation.roster import ADDED, MAX_ROSTER, REMOVED, RosterEntry
from semisilo.common.wire import secure_aggregation_pb2 as pb

__all__ = ["StepAnswer", "SumQuestion", "answer_from_proto", "answer_to_proto", "message_from_hex",
           "question_from_hex", "question_from_proto", "question_to_hex"]

T = TypeVar("T")
StepAnswer: TypeAlias = RoundKeys | Shares | bytes | UnmaskAnswer
"""To "keys", "shares", "confirm" (a signature) and "unmask"."""

_STEPS: dict[int, SumStep] = {
    pb.SecureTask.STEP_KEYS: "keys", pb.SecureTask.STEP_SHARES: "shares", pb.SecureTask.STEP_MASK: "mask",
    pb.SecureTask.STEP_CONFIRM: "confirm", pb.SecureTask.STEP_UNMASK: "unmask"}
_MAX_NAME_BYTES = 128
_MAX_SEALED_BYTES = 512
_MAX_SHARE_BYTES = 128
_MAX_TENSORS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class SumQuestion:
    """What a silo is asked in one step. Which fields are set follows from the step."""

    step: SumStep
    phase: str
    nonce: bytes
    threshold: int
    members: tuple[Member, ...] = ()
    sealed: tuple[SealedShare, ...] = ()
    form: MaskForm | None = None
    survivors: tuple[str, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()
    roster: tuple[RosterEntry, ...] = ()

    @property
    def unmasking(self) -> UnmaskRequest:
        """Of step "unmask"."""
        return UnmaskRequest(survivors=self.survivors, confirmations=self.confirmations)


def question_to_hex(question: SumQuestion) -> str:
    """As `TaskSpec.secure` keeps it."""
    form = question.form
    message = pb.SecureTask(
        step=f"STEP_{question.step.upper()}", phase=question.phase, nonce=question.nonce, threshold=question.threshold,
        members=[pb.SecureMember(silo=each.silo, identity=each.identity, keys=_keys_to_proto(each.keys))
                 for each in question.members],
        sealed=[pb.SealedShare(silo=each.silo, sealed=each.sealed) for each in question.sealed],
        form=None if form is None else pb.MaskForm(
            bits=form.bits, bounds=form.bounds, silo_count=form.silo_count, weight_reference=form.weight_reference,
            random_k=form.random_k, totals=form.totals),
        survivors=question.survivors,
        confirmations=[pb.Confirmation(silo=each.silo, signature=each.signature) for each in question.confirmations],
        roster=[pb.RosterEntry(number=each.number, silo=each.silo, identity=each.identity, chain=each.chain,
                               removed=each.change == REMOVED) for each in question.roster])
    return message.SerializeToString(deterministic=True).hex()


def question_from_hex(text: str) -> SumQuestion:
    """The question in `TaskSpec.secure`. Raises: BadPayload."""
    return question_from_proto(message_from_hex(text))


def message_from_hex(text: str) -> pb.SecureTask:
    """The message in `TaskSpec.secure`. Raises: BadPayload."""
    try:
        return pb.SecureTask.FromString(bytes.fromhex(text))
    except (ValueError, DecodeError):
        raise BadPayload("The step of a secure sum cannot be read.") from None


def question_from_proto(message: pb.SecureTask) -> SumQuestion:
    """The question of a message, checked as far as sizes and orders go. Raises: BadPayload."""
    step = _STEPS.get(message.step)
    if step is None:
        raise BadPayload("The task names no step of a secure sum that this version knows.",
                         remedy="Upgrade semisilo on this machine.")
    _sized("nonce", message.nonce, NONCE_BYTES)
    if not 2 <= message.threshold <= MAX_SILOS:
        raise BadPayload(f"The threshold {message.threshold} of the secure sum cannot be.")
    survivors = tuple(_silo(name) for name in _few(message.survivors))
    if survivors != in_order(tuple(set(survivors))):
        raise BadPayload("The survivors of the secure sum are not in order, or one is named twice.")
    return SumQuestion(
        step=step, phase=_silo(message.phase), nonce=message.nonce,
        threshold=message.threshold,
        members=tuple(Member(silo=_silo(each.silo), identity=_sized("identity", each.identity, KEY_BYTES),
                             keys=_keys_from_proto(each.keys)) for each in _few(message.members)),
        sealed=_sealed(message.sealed), survivors=survivors,
        form=_form(message.form) if message.HasField("form") else None,
        confirmations=tuple(Confirmation(silo=_silo(each.silo), signature=_sized(
            "signature", each.signature, SIGNATURE_BYTES)) for each in _few(message.confirmations)),
        roster=_roster(message.roster))


def answer_to_proto(answer: StepAnswer) -> pb.SecureAnswer:
    """The message of an answer."""
    if isinstance(answer, RoundKeys):
        return pb.SecureAnswer(keys=_keys_to_proto(answer))
    if isinstance(answer, Shares):
        return pb.SecureAnswer(shares=pb.SecureShares(
            sealed=[pb.SealedShare(silo=each.silo, sealed=each.sealed) for each in answer.sealed],
            commitment=answer.commitment))
    if isinstance(answer, UnmaskAnswer):
        return pb.SecureAnswer(unmask=pb.UnmaskAnswer(self_shares=_revealed_to_proto(answer.self_shares),
                                                      key_shares=_revealed_to_proto(answer.key_shares)))
    return pb.SecureAnswer(confirmation=answer)


def answer_from_proto(message: pb.SecureAnswer, step: SumStep) -> StepAnswer:
    """The answer of a message to a step, checked as far as sizes and orders go. Raises: BadPayload."""
    kind = message.WhichOneof("step")
    if kind != {"keys": "keys", "shares": "shares", "confirm": "confirmation", "unmask": "unmask"}.get(step):
        raise BadPayload(f"The step '{step}' of a secure sum is not answered so.")
    if kind == "keys":
        return _keys_from_proto(message.keys)
    if kind == "shares":
        return Shares(sealed=_sealed(message.shares.sealed),
                      commitment=_sized("commitment", message.shares.commitment, SEED_BYTES))
    if kind == "unmask":
        return UnmaskAnswer(self_shares=_revealed(message.unmask.self_shares),
                            key_shares=_revealed(message.unmask.key_shares))
    return _sized("signature", message.confirmation, SIGNATURE_BYTES)


def _keys_to_proto(keys: RoundKeys) -> pb.RoundKeys:
    return pb.RoundKeys(seal_key=keys.seal_key, mask_key=keys.mask_key, signature=keys.signature)


def _keys_from_proto(message: pb.RoundKeys) -> RoundKeys:
    return RoundKeys(seal_key=_sized("seal_key", message.seal_key, KEY_BYTES),
                     mask_key=_sized("mask_key", message.mask_key, KEY_BYTES),
                     signature=_sized("signature", message.signature, SIGNATURE_BYTES))


def _form(message: pb.MaskForm) -> MaskForm:
    if len(message.bounds) > _MAX_TENSORS:
        raise BadPayload(f"The secure sum has {len(message.bounds)} tensors; at most {_MAX_TENSORS} are allowed.")
    try:
        return MaskForm(bits=message.bits, bounds=tuple(message.bounds), silo_count=message.silo_count,
                        weight_reference=message.weight_reference, random_k=message.random_k,
                        totals=tuple(message.totals))
    except ValueError as error:
        raise BadPayload(f"The form of the secure sum: {error}") from None


def _roster(messages: Sequence[pb.RosterEntry]) -> tuple[RosterEntry, ...]:
    if len(messages) > MAX_ROSTER:
        raise BadPayload(f"The roster has {len(messages)} entries; at most {MAX_ROSTER} are possible.")
    return tuple(RosterEntry(number=each.number, silo=_silo(each.silo), change=REMOVED if each.removed else ADDED,
                             identity=_sized("identity", each.identity, KEY_BYTES),
                             chain=_sized("chain", each.chain, SEED_BYTES)) for each in messages)


def _sealed(messages: Sequence[pb.SealedShare]) -> tuple[SealedShare, ...]:
    shares = tuple(SealedShare(silo=_silo(each.silo), sealed=_short("sealed share", each.sealed, _MAX_SEALED_BYTES))
                   for each in _few(messages))
    _ordered("sealed shares", [each.silo for each in shares])
    return shares


def _revealed_to_proto(shares: Iterable[tuple[str, bytes]]) -> list[pb.RevealedShare]:
    return [pb.RevealedShare(silo=silo, share=share) for silo, share in shares]


def _revealed(messages: Sequence[pb.RevealedShare]) -> tuple[tuple[str, bytes], ...]:
    shares = tuple((_silo(each.silo), _short("share", each.share, _MAX_SHARE_BYTES)) for each in _few(messages))
    _ordered("shares", [silo for silo, _ in shares])
    return shares


def _ordered(what: str, silos: Sequence[str]) -> None:
    if tuple(silos) != in_order(tuple(set(silos))):
        raise BadPayload(f"The {what} of the secure sum are not in order, or one silo is named twice.")


def _few(messages: Sequence[T]) -> Sequence[T]:
    if len(messages) > MAX_SILOS:
        raise BadPayload(f"A secure sum has at most {MAX_SILOS} silos; the message names {len(messages)}.")
    return messages


def _silo(name: str) -> str:
    if not name or len(name.encode()) > _MAX_NAME_BYTES or not name.isprintable():
        raise BadPayload("A name in the message of a secure sum is empty, not printable or too long.")
    return name


def _sized(what: str, content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise BadPayload(f"The {what} in the message of a secure sum has {len(content)} bytes instead of {size}.")
    return content


def _short(what: str, content: bytes, limit: int) -> bytes:
    if not 0 < len(content) <= limit:
        raise BadPayload(f"The {what} in the message of a secure sum has {len(content)} bytes; at most {limit}.")
    return content
