"""Typed messages: names, conversion in both directions, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import pytest

from semisilo.common.errors import ComputeFailed
from semisilo.common.process.messages import Handler, Request, answer_from_json, as_json, handlers_of, run_operation


class Kind(StrEnum):
    LABELLED = "labelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    path: Path
    metrics: dict[str, float]
    kind: Kind = Kind.LABELLED


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinParts(Request[Joined]):
    parts: tuple[Part, ...]
    kept: dict[str, str | None]


class Operations:
    def handlers(self) -> tuple[Handler, ...]:
        return (JoinParts.handled_by(self.join_parts),)

    def join_parts(self, request: JoinParts) -> Joined:
        return Joined(parts=request.parts)


PART = Part(path=Path("spool/ä.upd"), metrics={"loss": 0.1, "tiny": 5e-324})
REQUEST = JoinParts(parts=(PART,), kept={"a": None, "b": "12"})


def test_a_request_is_named_after_its_class_and_knows_its_answer() -> None:
    assert JoinParts.operation() == "join_parts"
    assert JoinParts.answer_type() is Joined
    assert REQUEST.reopening(Joined(parts=())) is None


def test_request_and_answer_arrive_as_they_were_sent_to_the_last_bit() -> None:
    handlers = handlers_of(Operations())
    answer = run_operation(handlers, REQUEST.operation(), as_json(REQUEST))
    assert answer == Joined(parts=(PART,))
    assert answer_from_json(REQUEST, as_json(answer)) == answer


def test_what_is_not_the_request_or_not_the_answer_is_refused_by_name() -> None:
    handlers = handlers_of(Operations())
    with pytest.raises(ComputeFailed, match="no operation 'join_part'; known are: join_parts"):
        run_operation(handlers, "join_part", {})
    with pytest.raises(ComputeFailed, match="the arguments of 'join_parts' cannot be read: 'parts' is missing"):
        run_operation(handlers, "join_parts", {"kept": {}})
    with pytest.raises(ComputeFailed, match="the answer of 'join_parts' cannot be read: unknown key 'part'"):
        answer_from_json(REQUEST, {"part": []})


def test_one_operation_has_one_handler() -> None:
    class Twice(Operations):
        def handlers(self) -> tuple[Handler, ...]:
            return (*super().handlers(), JoinParts.handled_by(self.join_parts))

    with pytest.raises(AssertionError, match="two handlers"):
        handlers_of(Twice())


def test_a_request_that_names_no_answer_is_our_own_mistake() -> None:
    class Nameless(Request):  # type: ignore[type-arg]
        pass

    with pytest.raises(AssertionError, match="Nameless"):
        Nameless.answer_type()
    assert replace(REQUEST, kept={}).answer_type() is Joined, "not disturbed by it"
