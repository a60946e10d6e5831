"""Questions and answers of a secure sum go through their messages unchanged, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semisilo.common.errors import BadPayload
from semisilo.common.secure_aggregation.conversion import (
    StepAnswer,
    SumQuestion,
    answer_from_proto,
    answer_to_proto,
    question_from_hex,
    question_to_hex,
)
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import (
    Confirmation,
    Member,
    RoundKeys,
    SealedShare,
    Shares,
    UnmaskAnswer,
)
from semisilo.common.wire import secure_aggregation_pb2 as pb
from tests.each_of import each_of

KEYS = RoundKeys(seal_key=b"a" * 32, mask_key=b"b" * 32, signature=b"c" * 64)
QUESTION = SumQuestion(
    step="unmask", phase="train", nonce=b"n" * 16, threshold=2,
    members=(Member(silo="a", identity=b"i" * 32, keys=KEYS), Member(silo="b", identity=b"j" * 32, keys=KEYS)),
    sealed=(SealedShare(silo="b", sealed=b"x" * 150),), form=MaskForm(
        bits=18, bounds=(1.0, 0.1), silo_count=2, totals=("steps", "lost")),
    survivors=("a", "b"), confirmations=(Confirmation(silo="a", signature=b"s" * 64),))
ANSWERS: dict[str, StepAnswer] = {
    "keys": KEYS, "shares": Shares(sealed=(SealedShare(silo="b", sealed=b"x"),), commitment=b"h" * 32),
    "confirm": b"s" * 64, "unmask": UnmaskAnswer(self_shares=(("a", b"1"), ("b", b"2")), key_shares=(("c", b"3"),))}


@each_of("step", ["keys", "shares", "mask", "confirm", "unmask"])
def test_a_question_comes_back_as_it_was(step: str) -> None:
    question = replace(QUESTION, step=step)  # type: ignore[arg-type]
    assert question_from_hex(question_to_hex(question)) == question


@each_of("step", sorted(ANSWERS))
def test_an_answer_comes_back_as_it_was_and_fits_its_own_step_only(step: str) -> None:
    message = answer_to_proto(ANSWERS[step])
    assert answer_from_proto(message, step) == ANSWERS[step]  # type: ignore[arg-type]
    for other in ANSWERS.keys() - {step}:
        with pytest.raises(BadPayload, match="is not answered so"):
            answer_from_proto(message, other)  # type: ignore[arg-type]


@each_of("wrong", [
    {"nonce": b"short"}, {"threshold": 1}, {"threshold": 33}, {"survivors": ("b", "a")}, {"survivors": ("a", "a")},
    {"phase": ""}, {"survivors": tuple(f"s{number:02d}" for number in range(33))},
    {"sealed": (SealedShare(silo="b", sealed=b"x" * 513),)}, {"sealed": (SealedShare(silo="b", sealed=b""),)},
    {"sealed": (SealedShare(silo="b", sealed=b"x"), SealedShare(silo="b", sealed=b"x"))},
    {"members": (Member(silo="a", identity=b"i", keys=KEYS),)},
    {"members": (Member(silo="a\n", identity=b"i" * 32, keys=KEYS),)},
    {"members": (Member(silo="a", identity=b"i" * 32, keys=replace(KEYS, mask_key=b"")),)},
    {"confirmations": (Confirmation(silo="a", signature=b"s" * 63),)},
])
def test_a_question_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadPayload):
        question_from_hex(question_to_hex(replace(QUESTION, **wrong)))  # type: ignore[arg-type]


@each_of("form", [pb.MaskForm(bits=8, silo_count=3, random_k=1.0),
                  pb.MaskForm(bits=18, silo_count=3, random_k=1.0, bounds=[float("nan")]),
                  pb.MaskForm(bits=18, silo_count=3, random_k=1.0, bounds=[1.0] * 65_537),
                  pb.MaskForm(bits=18, silo_count=3, random_k=1.0, totals=["x"] * 9),
                  pb.MaskForm(bits=18, silo_count=3, random_k=1.0, totals=["x" * 33]),
                  pb.MaskForm(bits=18, silo_count=3, random_k=1.0, totals=[""])])
def test_a_form_that_cannot_be_is_refused(form: pb.MaskForm) -> None:
    message = pb.SecureTask.FromString(bytes.fromhex(question_to_hex(QUESTION)))
    message.form.CopyFrom(form)
    with pytest.raises(BadPayload):
        question_from_hex(message.SerializeToString().hex())


@each_of("text", ["zz", "ff", ""])
def test_what_is_no_question_is_refused(text: str) -> None:
    with pytest.raises(BadPayload):
        question_from_hex(text)


@each_of(("step", "message"), [
    ("keys", pb.SecureAnswer(keys=pb.RoundKeys(seal_key=b"a"))), ("confirm", pb.SecureAnswer(confirmation=b"s")),
    ("shares", pb.SecureAnswer(shares=pb.SecureShares(commitment=b"h"))), ("keys", pb.SecureAnswer()),
    ("unmask", pb.SecureAnswer(unmask=pb.UnmaskAnswer(self_shares=[pb.RevealedShare(silo="a", share=b"x" * 129)]))),
    ("unmask", pb.SecureAnswer(unmask=pb.UnmaskAnswer(key_shares=[pb.RevealedShare(silo="a", share=b"x")] * 33)))])
def test_an_answer_that_cannot_be_is_refused(step: str, message: pb.SecureAnswer) -> None:
    with pytest.raises(BadPayload):
        answer_from_proto(message, step)  # type: ignore[arg-type]
