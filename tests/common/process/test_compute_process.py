"""What the compute process says of an error and of its progress; the process itself is tested in `test_compute.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from semisilo.common.errors import BadData, ComputeFailed, SemisiloError
from semisilo.common.process import compute_process
from semisilo.common.process.compute_process import OUT_OF_MEMORY, SEE_LOG, ProgressThrottle, describe
from tests.each_of import each_of


def test_an_error_of_the_catalogue_keeps_its_code_text_and_remedy_and_brings_no_traceback() -> None:
    found = describe(BadData("a.png is damaged.", remedy="Remove it."))
    assert (found.code, found.text, found.remedy, found.details) == ("BAD_DATA", "a.png is damaged.", "Remove it.", "")


def test_an_error_that_nobody_expected_is_one_line_with_its_traceback_for_the_log() -> None:
    try:
        raise ValueError("first line\nsecond line")
    except ValueError as error:
        found = describe(error)
    assert (found.code, found.text, found.remedy) == (
        ComputeFailed.code, "ValueError: first line second line", SEE_LOG)
    assert found.details is not None
    assert "test_compute_process.py" in found.details


def test_an_operation_that_is_not_deterministic_is_named_with_what_to_do() -> None:
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        with pytest.raises(RuntimeError) as caught:
            torch.zeros(3).put_(torch.tensor([0, 1]), torch.ones(2))
    finally:
        torch.set_deterministic_debug_mode(mode)
    found = describe(caught.value)
    assert found.code == ComputeFailed.code
    assert found.text.endswith("other bits each time on this machine's device: put_.")
    assert "deterministic = false" in found.remedy
    assert not found.details


def test_an_endless_error_is_cut() -> None:
    found = describe(ValueError("x" * 1_000_000))
    assert len(found.text) == 500
    assert len(found.details or "") == 16_000


@each_of(("error", "short"), [
    (MemoryError(), True), (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
    (RuntimeError("shapes do not match"), False), (ValueError("out of memory"), False)])
def test_a_lack_of_memory_is_told_from_other_failures(error: Exception, short: bool) -> None:
    found = describe(error)
    assert found.text.startswith("Out of memory: ") is short
    assert found.remedy == (OUT_OF_MEMORY if short else SEE_LOG)
    assert compute_process.unusable_after(error) is short


def test_a_cuda_fault_ends_the_process_and_a_plain_failure_does_not() -> None:
    assert compute_process.unusable_after(RuntimeError("CUDA error: device-side assert triggered"))
    assert not compute_process.unusable_after(RuntimeError("CUDA is not available"))


def test_progress_is_told_at_most_ten_times_a_second_and_always_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [100.0], list[tuple[float, str]]()
    monkeypatch.setattr("semisilo.common.process.compute_process.time", SimpleNamespace(monotonic=lambda: now[0]))
    throttle = ProgressThrottle(lambda fraction, text: told.append((fraction, text)))
    for step in range(10):
        throttle(step / 10, "a")
        now[0] += 0.05
    assert [fraction for fraction, _ in told] == [0.0, 0.2, 0.4, 0.6, 0.8]
    throttle(1.5, "b")
    throttle(1.0, "c")
    assert told[-2:] == [(1.0, "b"), (1.0, "c")], "the end is never held back, and is 1 at most"
    now[0] += 1
    throttle(-0.5)
    assert told[-1] == (0.0, "")


def test_an_error_of_the_catalogue_says_whether_code_of_others_has_raised_it() -> None:
    """As a plug-in may: its text is whatever its author writes."""
    def raised(code: str, module: str) -> SemisiloError:
        with pytest.raises(SemisiloError) as caught:
            exec(compile(code, module, "exec"), {"__name__": module})
        return caught.value

    by_plugin = raised("from semisilo.common.errors import BadPayload\nraise BadPayload('scan 17')", "their.trainer")
    by_helper = raised("from semisilo.common.methods import find_method\nfind_method('nothing')", "their.trainer")
    assert describe(by_plugin).words_of_others
    assert not describe(by_helper).words_of_others
    assert not describe(BadData("never raised")).words_of_others
    by_helper.words_of_others = True
    assert describe(by_helper).words_of_others, "as it came from another process"
