"""The error catalogue: each user-facing error has a code, a gRPC status, a public text and a remedy.

The text says what is wrong and where; the remedy says how to fix it. Both fit on one line. A stranger on the network
sees only the code and the public text; details go to the log.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import ClassVar

__all__ = [
    "BadConfiguration",
    "BadData",
    "BadKey",
    "BadPayload",
    "BadRoster",
    "BadShare",
    "BadSignature",
    "CertificateExpired",
    "CertificateRevoked",
    "ClockSkew",
    "ComputeFailed",
    "ConnectionRefusedByPeer",
    "DailyBudget",
    "DiskFull",
    "InvitationExpired",
    "InvitationInvalid",
    "InvitationUsed",
    "LayoutMismatch",
    "MethodNotPermitted",
    "ModelNotReady",
    "ModelNotShared",
    "NotPermitted",
    "OutsideHours",
    "PayloadNotServed",
    "PluginFailed",
    "PortInUse",
    "ProcessGroupLost",
    "SecureSumFailed",
    "SecureSumRefused",
    "SemisiloError",
    "SiloLeft",
    "StorageDamaged",
    "StudyNotOpen",
    "SystemTrouble",
    "TaskClosed",
    "TensorsMissing",
    "TooManyCalls",
    "UnknownName",
    "UnknownSilo",
    "Unreachable",
    "UpdateConflict",
    "UsageError",
    "WrongAuthority",
    "WrongBase",
    "by_code",
    "known_codes",
]


def _without_our_frames(shown: traceback.TracebackException) -> None:
    """Takes the lines of this package and of IPython out of what is shown of an error and of its causes."""
    ours = f"{Path(__file__).parents[1]}{os.sep}"
    shown.stack[:] = [frame for frame in shown.stack if not frame.filename.startswith(ours)
                      and "IPython" not in Path(frame.filename).parts]
    for cause in (shown.__cause__, shown.__context__):
        if cause is not None:
            _without_our_frames(cause)


class SemisiloError(Exception):
    """A failure that a person can act on. `str(error)` is one line: what is wrong and where."""

    code: ClassVar[str] = "FAILED"
    """Stable name, sent over the network and searchable in the documentation."""
    status: ClassVar[str] = "INTERNAL"
    """Name of the gRPC status that carries it."""
    exit_status: ClassVar[int] = 1
    """2 for wrong usage, 1 for a failure."""
    retry: ClassVar[bool] = False
    """Whether the same request may succeed later without anyone's help."""

    words_of_others: bool = False
    """Whether code that is not semisilo's has written the text, such as a method plug-in or a library: it may hold
    anything."""

    def __init__(self, text: str, *, remedy: str = "", retry_seconds: float = 0.0) -> None:
        """`retry_seconds`: the earliest that the same request is of use again, where whoever refuses it knows."""
        super().__init__(text)
        if remedy:
            self.add_note(remedy)  # Python shows the notes below the text where nobody catches it
        self.text = text
        self.remedy = remedy
        self.retry_seconds = retry_seconds

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, as in a notebook, where it leaves out notes: the caller's own lines, text and remedy."""
        shown = traceback.TracebackException.from_exception(self)
        _without_our_frames(shown)
        return "".join(shown.format()).splitlines()

    def line(self) -> str:
        """The text and the remedy on one line, as a terminal shows them."""
        return f"{self.text} {self.remedy}".strip() if self.remedy else self.text


class UsageError(SemisiloError):
    """A command was called with words or values that do not fit."""

    code, status, exit_status = "USAGE", "INVALID_ARGUMENT", 2


class BadConfiguration(UsageError):
    """A configuration file has an unknown key, a wrong type or a value out of range."""

    code = "BAD_CONFIGURATION"


class UnknownName(UsageError):
    """A method, model, study, policy or reader of that name does not exist."""

    code, status = "UNKNOWN_NAME", "NOT_FOUND"


class BadData(SemisiloError):
    """A data folder or file cannot be used as it is."""

    code, status = "BAD_DATA", "FAILED_PRECONDITION"


class PortInUse(SemisiloError):
    """Another process listens on the address."""

    code, status = "PORT_IN_USE", "UNAVAILABLE"


class NoSuchAddress(SemisiloError):
    """This machine does not have the address to listen on: another one is meant, or its network is not there yet."""

    code, status = "NO_SUCH_ADDRESS", "UNAVAILABLE"


class SystemTrouble(SemisiloError):
    """The operating system refuses a file or another resource for now: a right is missing, a disk is read-only or
    fails, too many files are open. Nothing was lost; the work is put off and tried again by itself."""

    code, status, retry = "SYSTEM_TROUBLE", "UNAVAILABLE", True


class DiskFull(SystemTrouble):
    """No space, or the configured limit is reached. Nothing was lost; the peer tries again later."""

    code, status = "DISK_FULL", "RESOURCE_EXHAUSTED"


class TooManyCalls(SemisiloError):
    """The coordinator takes no more calls of this silo, or from this address, for a moment. The peer tries again."""

    code, status, retry = "TOO_MANY_CALLS", "RESOURCE_EXHAUSTED", True


class StorageDamaged(SemisiloError):
    """A file that the ledger names is missing or does not have its digest."""

    code, status = "STORAGE_DAMAGED", "DATA_LOSS"


class ComputeFailed(SemisiloError):
    """The compute process died or its work raised an error that nobody expected."""

    code, status = "COMPUTE_FAILED", "INTERNAL"


class PluginFailed(ComputeFailed):
    """A half of a method plug-in raised an error, or returned what it should not; the same call fails again."""

    code = "PLUGIN_FAILED"


class ProcessGroupLost(ComputeFailed):
    """Of the processes that train one task together one is gone or does not answer; the task is done again."""

    code, status, retry = "PROCESS_GROUP_LOST", "UNAVAILABLE", True


class StudyNotOpen(SemisiloError):
    """The coordinator works on another study, or has not begun to: nothing can be held against this one yet. The peer
    tries again."""

    code, status, retry = "STUDY_NOT_OPEN", "UNAVAILABLE", True


class BadPayload(SemisiloError):
    """Bytes that arrived are not what was declared or allowed."""

    code, status = "BAD_PAYLOAD", "INVALID_ARGUMENT"


class BadKey(SemisiloError):
    """A key is of the wrong size, or none that a secret can be agreed on with."""

    code, status = "BAD_KEY", "INVALID_ARGUMENT"


class BadRoster(SemisiloError):
    """The roster of identities has a gap, or is another one than a silo has seen before."""

    code, status = "BAD_ROSTER", "FAILED_PRECONDITION"


class BadShare(SemisiloError):
    """A share of a secret is damaged, belongs elsewhere, or too few are there."""

    code, status = "BAD_SHARE", "INVALID_ARGUMENT"


class BadSignature(SemisiloError):
    """A signature of secure aggregation is not that of the silo whose name it bears."""

    code, status = "BAD_SIGNATURE", "INVALID_ARGUMENT"


class SecureSumRefused(SemisiloError):
    """A silo does not go on with a secure sum: what it was asked for would not protect its update."""

    code, status = "SECURE_SUM_REFUSED", "FAILED_PRECONDITION"

    def __init__(self, text: str, *, remedy: str = "", against: str = "") -> None:
        """`against`: the other silo whose part in the sum is no use; empty where it is nobody's."""
        super().__init__(text, remedy=remedy)
        self.against = against


class SecureSumFailed(SemisiloError):
    """The coordinator cannot unmask a sum: too few right shares are left."""

    code, status = "SECURE_SUM_FAILED", "FAILED_PRECONDITION"

    def __init__(self, text: str, *, remedy: str = "", against: str = "") -> None:
        """`against`: the silo whose secret no shares give; empty where too few shares have come."""
        super().__init__(text, remedy=remedy)
        self.against = against


class LayoutMismatch(SemisiloError):
    """Two sets of tensors differ in names, shapes or types."""

    code, status = "LAYOUT_MISMATCH", "INVALID_ARGUMENT"


class WrongBase(SemisiloError):
    """A difference refers to a base that the receiver does not hold."""

    code, status = "WRONG_BASE", "FAILED_PRECONDITION"


class TensorsMissing(SemisiloError):
    """A task builds on tensors that the silo no longer holds; taken again, it brings them whole."""

    code, status, retry = "TENSORS_MISSING", "FAILED_PRECONDITION", True


class TaskClosed(SemisiloError):
    """The task is unknown, answered, late, or belongs to another silo."""

    code, status = "TASK_CLOSED", "FAILED_PRECONDITION"


class PayloadNotServed(SemisiloError):
    """The digest is not named by an open task of the caller; a task that was written anew names others."""

    code, status, retry = "PAYLOAD_NOT_SERVED", "NOT_FOUND", True


class ModelNotShared(SemisiloError):
    """The study keeps its model, or the silo has had no part in it."""

    code, status = "MODEL_NOT_SHARED", "PERMISSION_DENIED"


class StudyCardGone(SemisiloError):
    """The coordinator has no card of a study by that digest."""

    code, status = "STUDY_CARD_GONE", "NOT_FOUND"


class ModelNotReady(SemisiloError):
    """The study is not over, or its model is not written yet."""

    code, status = "MODEL_NOT_READY", "FAILED_PRECONDITION"


class UpdateConflict(SemisiloError):
    """The same update_id was declared before with other content."""

    code, status = "UPDATE_CONFLICT", "ALREADY_EXISTS"


class NotPermitted(SemisiloError):
    """The silo's own policy does not allow it."""

    code, status = "NOT_PERMITTED", "PERMISSION_DENIED"


class MethodNotPermitted(NotPermitted):
    """The silo's own policy does not list the method."""

    code = "METHOD_NOT_PERMITTED"


class StudyNotApproved(NotPermitted):
    """Nobody at the silo has approved the study yet."""

    code = "STUDY_NOT_APPROVED"


class DailyBudget(NotPermitted):
    """The bytes that the silo may carry in a day are used up."""

    code = "DAILY_BUDGET"


class OutsideHours(NotPermitted):
    """It is outside the hours in which the silo may work."""

    code = "OUTSIDE_HOURS"


class InvitationInvalid(SemisiloError):
    """The invitation line is damaged, or its token is not known."""

    code, status = "INVITATION_INVALID", "UNAUTHENTICATED"


class InvitationExpired(SemisiloError):
    """The invitation's time is over."""

    code, status = "INVITATION_EXPIRED", "UNAUTHENTICATED"


class InvitationUsed(SemisiloError):
    """The token was used before, with another key."""

    code, status = "INVITATION_USED", "UNAUTHENTICATED"


class WrongAuthority(SemisiloError):
    """The other side's certificate was not issued by this federation's authority, or carries another name."""

    code, status = "WRONG_AUTHORITY", "UNAUTHENTICATED"


class UnknownSilo(SemisiloError):
    """The certificate names no silo of this federation's roster."""

    code, status = "UNKNOWN_SILO", "PERMISSION_DENIED"


class CertificateExpired(SemisiloError):
    """The caller's certificate is past its last day."""

    code, status = "CERTIFICATE_EXPIRED", "UNAUTHENTICATED"


class CertificateRevoked(SemisiloError):
    """The operator has revoked the silo."""

    code, status = "CERTIFICATE_REVOKED", "PERMISSION_DENIED"


class SiloLeft(CertificateRevoked):
    """The silo has left the federation on its own wish."""

    code = "SILO_LEFT"


class ClockSkew(SemisiloError):
    """The two clocks differ by so much that certificates cannot be judged."""

    code, status = "CLOCK_SKEW", "FAILED_PRECONDITION"


class Unreachable(SemisiloError):
    """Nothing answers at the address."""

    code, status, retry = "UNREACHABLE", "UNAVAILABLE", True


class ConnectionRefusedByPeer(SemisiloError):
    """The TLS handshake was refused and the peer gave no reason of ours."""

    code, status = "CONNECTION_REFUSED", "UNAUTHENTICATED"


def _subclasses(cls: type[SemisiloError]) -> list[type[SemisiloError]]:
    return [cls, *(deeper for direct in cls.__subclasses__() for deeper in _subclasses(direct))]


_BY_CODE = {cls.code: cls for cls in _subclasses(SemisiloError)}


def known_codes() -> tuple[str, ...]:
    """All codes of this version, in order."""
    return tuple(sorted(_BY_CODE))


def by_code(code: str) -> type[SemisiloError]:
    """The class of a code that came over the network; `SemisiloError` for one that this version does not know."""
    return _BY_CODE.get(code, SemisiloError)
