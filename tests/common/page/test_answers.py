"""Answers of a page: how long they are kept, and that they are made one at a time in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from semisilo.common.page.answers import Answers


class Facts:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


def test_an_answer_is_shared_for_a_moment_kept_while_its_version_is_the_same_and_then_made_again() -> None:
    at = [0.0]
    answers, facts = Answers(share_seconds=1.0, keep_seconds=10.0, clock=lambda: at[0]), Facts()
    try:
        assert answers.json_of("a", facts, version=1) == b"1"
        at[0] = 0.9
        assert answers.json_of("a", facts, version=2) == b"1", "shared, whatever has changed"
        at[0] = 5.0
        assert answers.json_of("a", facts, version=1) == b"1", "kept, since nothing has changed"
        assert answers.json_of("a", facts, version=2) == b"2"
        at[0] = 16.0
        assert answers.json_of("a", facts, version=2) == b"3", "time left is told anew"
        assert answers.json_of("b", facts, version=2) == b"4", "another key is another answer"
    finally:
        answers.end()


def test_nothing_that_was_answered_holds_after_an_action() -> None:
    answers, facts = Answers(share_seconds=100.0), Facts()
    try:
        assert answers.json_of("a", facts) == b"1"
        answers.forget()
        assert answers.json_of("a", facts) == b"2"
    finally:
        answers.end()


def test_answers_that_nobody_asks_for_again_do_not_pile_up() -> None:
    answers, facts = Answers(share_seconds=100.0), Facts()
    try:
        for number in range(65):
            answers.json_of(str(number), facts)
        assert answers.json_of("1", facts) == b"2", "among the 64 newest"
        assert answers.json_of("0", facts) == b"66", "the oldest was dropped"
    finally:
        answers.end()


def test_a_long_text_is_made_in_the_other_thread_and_some_pieces_at_a_time() -> None:
    threads = set()

    def pieces() -> Iterator[str]:
        for number in range(1200):
            threads.add(threading.current_thread().name)
            yield f"{number},"

    async def read() -> list[str]:
        answers = Answers(share_seconds=0.0)
        try:
            return [text async for text in answers.text_of(pieces())]
        finally:
            answers.end()

    texts = asyncio.run(read())
    assert "".join(texts) == "".join(f"{number}," for number in range(1200))
    assert len(texts) == 3
    assert len(threads) == 1
    assert threading.current_thread().name not in threads
