"""Two processes with one identity are told apart from one that is started again, however often that is."""

from __future__ import annotations

from semisilo.coordinator.tasks.silo_processes import SiloProcesses

A, B, C = b"a", b"b", b"c"


class _Calls:
    def __init__(self) -> None:
        self.now = 1000.0
        self.processes = SiloProcesses(clock=lambda: self.now)

    def call(self, *order: bytes, silo: str = "alpha", every_seconds: float = 25.0) -> tuple[str, str] | None:
        found = None
        for process in order:
            self.now += every_seconds
            found = self.processes.heard(silo, process, address=f"at {process.decode()}")
        return found


def test_two_that_call_in_turn_are_found_within_a_few_calls() -> None:
    calls = _Calls()
    assert calls.call(A, B, A, B) is None
    assert calls.call(A) == ("at b", "at a")
    assert calls.call(B) == ("at a", "at b")
    assert calls.call(B, B) == ("at a", "at b"), "the other may be at work"


def test_a_silo_that_is_started_again_and_again_is_one() -> None:
    calls = _Calls()
    for number in range(1000):
        assert calls.call(*[str(number).encode()] * (number % 3 + 1)) is None
    assert len(calls.processes._silos["alpha"].addresses) == 8


def test_a_call_that_was_held_up_on_its_way_is_no_second_process() -> None:
    calls = _Calls()
    assert calls.call(A, A, B, A, B, B, B) is None
    assert calls.call(C, C, B, C) is not None, "that comes again and again is one"


def test_processes_of_different_silos_and_those_that_do_not_say_have_nothing_to_do_with_each_other() -> None:
    calls = _Calls()
    for _ in range(10):
        assert calls.call(A, silo="alpha") is None
        assert calls.call(B, silo="beta") is None
        assert calls.call(b"", silo="alpha") is None


def test_it_is_over_when_one_of_them_is_not_heard_any_more() -> None:
    calls = _Calls()
    assert calls.call(A, B, A, B, A) is not None
    assert calls.call(*[A] * 30) is None
    assert calls.call(B) is not None, "it is there again"
    assert calls.call(C) is None, "both were stopped, and one is started"
    assert calls.call(*[C] * 30) is None
    assert calls.call(A, B, every_seconds=90_000) is None, "what was days ago does not count"


def test_two_whose_rounds_last_hours_are_found() -> None:
    calls = _Calls()
    assert calls.call(A, B, A, B, A, every_seconds=3 * 3600) == ("at b", "at a")
