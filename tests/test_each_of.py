"""Many cases as one test: all are tried, and what fails is named. Mirrors tests/each_of.py."""

from __future__ import annotations

import pytest

from tests.each_of import each_of

TRIED: list[int] = []


@each_of(("number", "square"), [(1, 1), (2, 4), (-3, 9)])
def test_cases_are_called_with_their_values_and_the_fixtures(request: pytest.FixtureRequest, number: int,
                                                             square: int) -> None:
    assert request.node.name == "test_cases_are_called_with_their_values_and_the_fixtures"
    assert number**2 == square


@each_of("number", [1, 2, 3, 4])
def _is_odd(number: int) -> None:
    TRIED.append(number)
    assert number % 2


@each_of("number", [1, 2, 3], ids=lambda number: f"page {number}")
def _is_no_2(number: int) -> None:
    with pytest.raises(ValueError, match="no"):
        _raise_unless(number == 2)


def _raise_unless(fine: bool) -> None:
    if not fine:
        raise ValueError("no")


@each_of("number", [1, 2, 3])
def _skips_1_and_wants(number: int, least: int) -> None:
    if number == 1:
        pytest.skip("not here")
    TRIED.append(number)
    assert number >= least


def test_a_case_that_is_skipped_keeps_no_other_from_being_tried() -> None:
    TRIED.clear()
    with pytest.raises(pytest.skip.Exception, match="1 of 3 cases; number = 1: not here"):
        _skips_1_and_wants(least=0)
    assert TRIED == [2, 3]
    with pytest.raises(AssertionError):
        _skips_1_and_wants(least=3)


def test_all_cases_are_tried_and_each_failure_says_which_case_it_was() -> None:
    TRIED.clear()
    with pytest.raises(ExceptionGroup, match="2 of 4 cases") as raised:
        _is_odd()
    assert TRIED == [1, 2, 3, 4]
    assert [each.__notes__ for each in raised.value.exceptions] == [["case: number = 2"], ["case: number = 4"]]


def test_a_single_failure_is_raised_as_it_is_also_where_an_expected_error_did_not_come() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE") as raised:
        _is_no_2()
    assert raised.value.__notes__ == ["case: page 2"]


def test_a_case_that_does_not_fit_the_test_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="takes no"):
        each_of("wrong", [1])(_raise_unless)
    with pytest.raises(AssertionError, match="no cases"):
        each_of("fine", [])
    with pytest.raises(AssertionError, match="cannot have marks"):
        each_of("fine", [pytest.param(True, marks=pytest.mark.slow)])
