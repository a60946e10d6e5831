"""The catalogue of errors: one class for a code, one line for a person, a status for the wire."""

from __future__ import annotations

import grpc

from semisilo.common import errors
from semisilo.common.errors import BadConfiguration, DiskFull, SemisiloError, UsageError, by_code
from tests.each_of import each_of

CLASSES = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


def test_a_line_is_what_is_wrong_and_how_to_mend_it() -> None:
    error = DiskFull("/data: the disk is full.", remedy="Free some space.")
    assert (str(error), error.line()) == ("/data: the disk is full.", "/data: the disk is full. Free some space.")
    assert SemisiloError("It failed.").line() == "It failed."


def test_no_two_errors_have_one_code() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(codes) == len(set(codes)) > 20


@each_of("cls", CLASSES, ids=lambda cls: cls.code)
def test_a_code_that_came_over_the_network_is_its_class_again(cls: type[SemisiloError]) -> None:
    assert by_code(cls.code) is cls
    assert cls.status in grpc.StatusCode.__members__, "gRPC has that status"
    assert cls.exit_status == (2 if issubclass(cls, UsageError) else 1)


def test_a_code_of_a_newer_version_is_a_failure_like_any_other() -> None:
    assert by_code("FROM_THE_FUTURE") is by_code("") is SemisiloError
    assert by_code("BAD_CONFIGURATION") is BadConfiguration, "a control"


def test_what_may_pass_by_itself_says_so() -> None:
    assert DiskFull.retry
    assert not BadConfiguration.retry
