"""Typed messages between a light process and its compute process: what is asked, what is answered, what went wrong.

A request is a frozen dataclass that names the dataclass of its answer, and an Operations class has one method for each:

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Evaluate(Request[Evaluated]):
        state: str

    evaluated = await compute.call(Evaluate(state=digest))              # the light process: an `Evaluated`

    class Operations:                                                   # the compute process
        def handlers(self) -> tuple[Handler, ...]:
            return (Evaluate.handled_by(self.evaluate), ...)

        def evaluate(self, request: Evaluate) -> Evaluated: ...

Fields are what `semisilo.common.config.from_dict` converts; both directions go through it and are thereby checked once.
"""

from __future__ import annotations

import functools
import json
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import BadConfiguration, ComputeFailed

__all__ = ["Call", "Failure", "Handler", "Operations", "Progress", "Reply", "Request", "answer_from_json", "as_json",
           "handlers_of", "run_operation"]

AnswerT = TypeVar("AnswerT")
MessageT = TypeVar("MessageT")

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


class Request(Generic[AnswerT]):
    """What a light process asks of its compute process. Subclasses are frozen dataclasses; see the module."""

    __slots__ = ()

    is_long: ClassVar[bool] = False
    """Whether it, or its answer, has something for every silo: a light process then converts both in a thread, since a
    thousand silos would hold its event loop up."""

    @classmethod
    def operation(cls) -> str:
        """Its name on the socket, in log lines and in errors: "check_update" for the class CheckUpdate."""
        return _operation(cls.__name__)

    @classmethod
    def answer_type(cls) -> type[AnswerT]:
        """The dataclass of its answer, as `class Evaluate(Request[Evaluated])` says it."""
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is Request:
                answer: type[AnswerT] = typing.get_args(base)[0]
                return answer
        raise AssertionError(f"{cls.__name__} does not say what answers it: class {cls.__name__}(Request[...])")

    @classmethod
    def handled_by(cls, handle: Callable[[Self], AnswerT]) -> Handler:
        """The row of an Operations' table: `handle` is its method for these requests."""
        return Handler(cls, handle)

    def reopening(self, answer: AnswerT) -> Request[Any] | None:
        """What a fresh process is asked before anything else, where this request has opened something that others
        work on. None: it has opened nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Handler:
    """One operation of a compute process. Made by `Request.handled_by`, which checks that both belong together."""

    request: type[Request[Any]]
    handle: Callable[[Any], object]
    """Answers such a request with its answer's dataclass, or raises."""


class Operations(Protocol):
    """What a compute process can do."""

    def handlers(self) -> tuple[Handler, ...]:
        """One for each request that it answers."""


# On the socket --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request on its way to the compute process, one line of JSON."""

    id: int
    """Counts from 1; the replies repeat it."""
    operation: str
    """Names the request's class."""
    arguments: object
    """Its fields, as `to_dict` gives them; the request itself at the end that sends it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the running operation is."""

    fraction: float
    """0 to 1."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception on its way back."""

    code: str
    """`SemisiloError.code`."""
    text: str
    remedy: str = ""
    details: str = ""
    """Traceback of an error that nobody foresaw: only for this machine's log. Empty for one of the catalogue."""
    words_of_others: bool = False
    """`SemisiloError.words_of_others`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the compute process says, one line of JSON: that it is ready, or progress, an answer or a failure."""

    id: int = 0
    """Of the call; 0 for what is said before the first one."""
    ready: bool = False
    progress: Progress | None = None
    answer: object = None
    """The fields of the answer, as `to_dict` gives them."""
    error: Failure | None = None
    exits: bool = False
    """After an error: the process ends, since it cannot be trusted with another call."""


def answer_from_json(request: Request[AnswerT], answer: object) -> AnswerT:
    """The answer to a request. Raises: ComputeFailed when it is not one."""
    return _checked(type(request).answer_type(), answer, f"the answer of '{type(request).operation()}'")


def as_json(message: object) -> object:
    """The fields of a message as they would arrive in another process: work in one process and in two is the same.

    Raises: TypeError for what is not JSON.
    """
    arrived: object = json.loads(json.dumps(to_dict(message)))
    return arrived


# Running an operation -------------------------------------------------------------------------------------------------


def handlers_of(operations: Operations) -> dict[str, Handler]:
    """The handlers by the name of their operation."""
    handlers = operations.handlers()
    table = {handler.request.operation(): handler for handler in handlers}
    assert len(table) == len(handlers), f"{type(operations).__name__} has two handlers for one operation"
    return table


def run_operation(handlers: dict[str, Handler], operation: str, arguments: object) -> object:
    """Answers a request. Raises: ComputeFailed when there is no such operation, or the arguments are not its request's;
    else whatever it raises; RuntimeError in the place of what would end the process, which a signal never brings about
    here: code of others has raised it."""
    handler = handlers.get(operation)
    if handler is None:
        raise ComputeFailed(f"There is no operation '{operation}'; known are: {', '.join(sorted(handlers))}.")
    try:
        return handler.handle(_checked(handler.request, arguments, f"the arguments of '{operation}'"))
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}".rstrip(": ")) from error


def _checked(cls: type[MessageT], data: object, what: str) -> MessageT:
    try:
        return from_dict(cls, data)
    except BadConfiguration as error:
        raise ComputeFailed(f"{what} cannot be read: {error.text}",
                            remedy="If the installation was changed meanwhile, start the program again.") from error


@functools.cache
def _operation(name: str) -> str:
    return _WORD_START.sub("_", name).lower()
