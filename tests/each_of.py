"""Many small cases as one test: what a test of its own costs for each, ten thousand of them pay in minutes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

__all__ = ["each_of"]

Test = Callable[..., None]


def each_of(names: str | Sequence[str], cases: Iterable[Any], *,
            ids: Iterable[str] | Callable[[Any], object] | None = None) -> Callable[[Test], Test]:
    """`pytest.mark.parametrize` in one test, for cases that take no longer than a test's own setting up.

    Every case is tried. The test fails with all that failed, each with its own assertion and a line that says which
    case it was; where none fails and some were skipped, the test is. The cases share the fixtures of the test: a case
    must leave them as the next one may find them.

    Args:
        names: of the arguments that a case gives, as for `pytest.mark.parametrize`.
        cases: one value each, or one tuple each where there are several names.
        ids: what a failure calls the cases, or what makes that of one; their values where left out.
    """
    cases = list(cases)
    assert not any(hasattr(case, "marks") for case in cases), "cases cannot have marks, as pytest.param has"
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [(case,) if isinstance(names, str) and len(arguments) == 1 else tuple(case) for case in cases]
    assert values, "no cases"
    assert all(len(value) == len(arguments) for value in values), arguments
    if ids is not None and not callable(ids):
        called = list(ids)
    else:
        called = [", ".join(_name(name, part, ids) for name, part in zip(arguments, value, strict=True))
                  for value in values]

    def of(test: Test) -> Test:
        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            skipped: list[str] = []
            for case, value in zip(called, values, strict=True):
                try:
                    test(**fixtures, **dict(zip(arguments, value, strict=True)))
                except pytest.skip.Exception as skip:
                    skipped.append(f"{case}: {skip}")
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {case}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(values)} cases", failed)
            if skipped:
                pytest.skip(f"{len(skipped)} of {len(values)} cases; {'; '.join(skipped)}")

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in arguments]
        assert len(left) + len(arguments) == len(signature.parameters), f"{test.__name__} takes no {arguments}"
        every.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return every

    return of


def _name(name: str, value: object, ids: Callable[[Any], object] | None) -> str:
    said = None if ids is None else ids(value)
    return f"{name} = {value!r:.200}" if said is None else str(said)
