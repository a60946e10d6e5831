"""The catalogue of errors: one class for a code, one line for a person, a status for the wire."""

from __future__ import annotations

import grpc
import pytest

from semisilo.common import errors
from semisilo.common.errors import BadConfiguration, BadData, DiskFull, SemisiloError, UsageError, by_code
from semisilo.common.text.python_arguments import checked_path
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


def test_ipython_shows_the_callers_lines_the_text_and_the_remedy_and_none_of_ours() -> None:
    def of_a_caller() -> None:
        try:
            raise ZeroDivisionError("of a caller's data set")
        except ZeroDivisionError as error:
            raise BadData("data: item 3: fails.", remedy="Fix it.") from error

    with pytest.raises(BadData) as caught:
        of_a_caller()
    shown = "\n".join(caught.value._render_traceback_())
    assert shown.endswith("errors.BadData: data: item 3: fails.\nFix it.")
    assert shown.count("in of_a_caller") == 2
    assert "ZeroDivisionError: of a caller's data set" in shown
    with pytest.raises(UsageError) as refused:
        checked_path(3, "out")
    lines = refused.value._render_traceback_()
    assert [line for line in lines if "python_arguments.py" in line] == []
    assert lines[-2:] == ["semisilo.common.errors.UsageError: out = 3: must be a path.",
                          'Write out="some/folder"; the current one is ".".']
