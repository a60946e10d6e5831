"""The silo's end of the wire: every call may be repeated, a cut transfer resumes, nothing waits without a limit.

Unary calls have deadlines. Transfers have none, because a large update on a thin line may take hours: they are given up
when no byte has moved for a minute. After a failure the same request is made again, at growing intervals that shrink
back as soon as bytes have advanced. What the coordinator answers on purpose (the task is closed, the payload is not
served) is raised at once, and so is what no repetition can fix (the certificate was revoked). The patience is in
`semisilo.silo.link.retrying_calls`, the bytes of one stream in `semisilo.silo.link.transfers`; here is what is asked,
and from which byte.

`asyncio.timeout` is used throughout, never `wait_for`: in Python 3.11 that one swallows a cancellation that comes in
the same turn as the result, and a silo that is told to stop would work on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from semisilo.common.errors import BadPayload, ModelNotShared, SemisiloError
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.rpc.grpc_errors import from_rpc_error
from semisilo.common.rpc.meter import MessageMeter
from semisilo.common.storage.store import PayloadStore
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.link.retrying_calls import Backoff, LinkSettings, RetryingCalls, TryAgain, is_answer, is_fatal
from semisilo.silo.link.transfers import Request, Transfers

__all__ = ["Link", "LinkSettings", "ModelDescription", "Verdict", "is_fatal"]

_GARBLED_LIMIT = 2
"""How often a payload that arrives damaged is fetched again, and a transfer that is objected to is sent again. A disk
or line that spoils something now and then gets another trial; what is damaged three times is damaged at its source."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the coordinator made of an outcome."""

    accepted: bool
    reason: str = ""
    """Why it was not wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """The model that a study shares, as the coordinator describes it."""

    study: str
    digest: str
    """SHA-256 of the file, hex."""
    size_bytes: int
    round: int
    """That gave the model; 0 for labels alone."""
    labels_alone: bool
    model_digest: str = ""
    """Which model of that round, hex; empty: the coordinator's version does not say."""
    measure: str
    """What the study compares rounds by; empty: accuracy."""
    conclusion: str
    """What the study has come to, for a person."""


class Link:
    """Calls RoundService. One connection; one caller at a time, apart from `report_progress`."""

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], *, silo: str,
                 settings: LinkSettings | None = None,
                 on_trouble: Callable[[SemisiloError, int], None] = lambda error, failures: None,
                 on_contact: Callable[[], None] = lambda: None,
                 on_through: Callable[[], None] = lambda: None,
                 on_stream: Callable[[], object] = lambda: None,
                 diagnose: Callable[[], SemisiloError | None] = lambda: None,
                 by_own_clock: Callable[[SemisiloError], SemisiloError] = lambda error: error,
                 messages: MessageMeter | None = None) -> None:
        """
        Args:
            open_channel: makes a connection with the silo's current certificate; called again by `reopen`.
            silo: this silo's name; it sets the rhythm of retries.
            on_trouble: told of each failure that is going to be repeated, with the number of failures in a row.
            on_contact: told whenever the coordinator has answered.
            on_through: told when a call has got through that would be repeated until it does.
            on_stream: called when bytes of a payload begin to move: the time to count a new connection, which may be
                cut a moment later.
            diagnose: finds out why there is no connection; blocks, and runs in a thread.
            by_own_clock: what an answer means by this machine's clock; see `semisilo.silo.link.diagnosis.by_own_clock`.
            messages: where the sizes of messages are added up.
        """
        self._settings = LinkSettings() if settings is None else settings
        self._calls = RetryingCalls(open_channel, silo=silo, settings=self._settings, on_trouble=on_trouble,
                                    on_contact=on_contact, on_through=on_through, diagnose=diagnose,
                                    by_own_clock=by_own_clock,
                                    messages=MessageMeter() if messages is None else messages)
        self._transfers = Transfers(self._calls, begun=on_stream)

    async def reopen(self) -> None:
        """Makes the next call on a new connection: after the certificate was renewed."""
        await self._calls.reopen()

    @property
    def backoff(self) -> Backoff:
        """Pauses between attempts."""
        return self._settings.backoff

    @property
    def upload_rate(self) -> float:
        """Bytes per second of the last upload in which at least 256 KiB went out, 0.0 when there was none.

        From the first byte until the coordinator's answer, without the time that it says its check took: when the last
        byte has been handed to the transport, megabytes may still lie in buffers on this side of a slow line.
        """
        return self._transfers.upload_rate

    @property
    def channel(self) -> grpc.aio.Channel:
        """The connection, for the one call that is not RoundService's: renewing the certificate."""
        return self._calls.channel

    async def close(self) -> None:
        """Closes the connection; a running call ends."""
        await self.reopen()

    # Calls ------------------------------------------------------------------------------------------------------------

    async def await_task(self, request: Callable[[], pb.AwaitTaskRequest]) -> pb.AwaitTaskResponse:
        """The next task or the reason why there is none; tries for ever.

        Args:
            request: makes the message anew for every attempt, since it carries the time.
        """
        async def attempt() -> pb.AwaitTaskResponse:
            message = request()
            wait = message.poll_timeout.ToTimedelta().total_seconds()
            answer: pb.AwaitTaskResponse = await self._calls.ask("AwaitTask", message, wait_seconds=wait)
            return answer
        return await self._calls.persist(attempt)

    async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
        """Tells once how far the work is. Raises: Unreachable and the like when it does not get through."""
        try:
            answer: pb.ReportProgressResponse = await self._calls.ask("ReportProgress", request)
        except grpc.aio.AioRpcError as error:
            raise self._calls.said_by(error) from None
        return answer

    async def declare(self, request: pb.BeginUpdateRequest) -> Verdict:
        """Sends an abstention or a refusal. Raises: what the coordinator objects to it."""
        async def attempt() -> Verdict:
            answer: pb.BeginUpdateResponse = await self._calls.ask("BeginUpdate", request)
            return Verdict(answer.state == pb.BeginUpdateResponse.STATE_HAVE, answer.reason)
        return await self._calls.persist(attempt)

    async def download(self, task_id: str, reference: PayloadRef, store: PayloadStore, *,
                       on_bytes: Callable[[int], None] = lambda count: None,
                       may_go_on: Callable[[int], None] = lambda here: None) -> Path:
        """Brings a payload into the store and returns its path; goes on from what is on disk.

        Args:
            on_bytes: told how many bytes of the payload are here.
            may_go_on: asked before each further attempt, with the bytes that are here: what a line has carried in vain
                counts as well. Raises NotPermitted to end them.
        Raises: TaskClosed or PayloadNotServed when the coordinator no longer serves it; BadPayload when it arrived
            damaged three times.
        """
        def request(offset: int) -> pb.DownloadPayloadRequest:
            return pb.DownloadPayloadRequest(task_id=task_id, digest=bytes.fromhex(reference.digest), offset=offset)

        return await self._fetch(request, reference.digest, reference.size_bytes, store, on_bytes, may_go_on)

    async def describe_model(self, study: str, *, tries: int | None = None) -> ModelDescription:
        """The model that a study shares with this silo.

        Args:
            tries: how often in a row it may fail; None: for ever.
        Raises: ModelNotShared, ModelNotReady; BadPayload; the last failure.
        """
        async def attempt() -> ModelDescription:
            try:
                answer: pb.DescribeModelResponse = await self._calls.ask("DescribeModel",
                                                                         pb.DescribeModelRequest(study=study))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise ModelNotShared("The coordinator's version shares no models.",
                                         remedy="Ask its operator to upgrade semisilo.") from None
                raise
            if len(answer.digest) != 32 or answer.size_bytes < 1 or answer.round < 0 \
                    or len(answer.model_digest) not in (0, 32):
                raise BadPayload("The coordinator describes a model that cannot be.")
            return ModelDescription(study=study, digest=answer.digest.hex(), size_bytes=answer.size_bytes,
                                    round=answer.round, labels_alone=answer.labels_alone,
                                    model_digest=answer.model_digest.hex(),
                                    measure=printable(answer.measure, limit=300),
                                    conclusion=printable(answer.conclusion, limit=2000))
        return await self._calls.persist(attempt, tries=tries)

    async def study_card(self, study: str, digest: str) -> str:
        """The text of a study's card. Raises: StudyCardGone."""
        async def attempt() -> str:
            answer: pb.DescribeStudyCardResponse = await self._calls.ask(
                "DescribeStudyCard", pb.DescribeStudyCardRequest(study=study, digest=bytes.fromhex(digest)))
            return answer.card_json
        return await self._calls.persist(attempt)

    async def sign_card(self, study: str, digest: str, signature: bytes) -> None:
        """Hands in this silo's signature under a card. Raises: StudyCardGone, BadSignature."""
        async def attempt() -> None:
            await self._calls.ask("SignStudyCard", pb.SignStudyCardRequest(
                study=study, digest=bytes.fromhex(digest), signature=signature))
        await self._calls.persist(attempt)

    async def download_model(self, model: ModelDescription, store: PayloadStore, *,
                             on_bytes: Callable[[int], None] = lambda count: None,
                             may_go_on: Callable[[int], None] = lambda here: None,
                             tries: int | None = None) -> Path:
        """Brings a model into the store, as `download` does.

        Args:
            tries: how often in a row it may fail with no byte moved; None: for ever.
        Raises: what `describe_model` raises; PayloadNotServed when it is another one by now.
        """
        def request(offset: int) -> pb.DownloadModelRequest:
            return pb.DownloadModelRequest(study=model.study, digest=bytes.fromhex(model.digest), offset=offset)

        return await self._fetch(request, model.digest, model.size_bytes, store, on_bytes, may_go_on, tries=tries)

    async def _fetch(self, request: Callable[[int], Request], digest: str, size_bytes: int, store: PayloadStore,
                     on_bytes: Callable[[int], None], may_go_on: Callable[[int], None], *,
                     tries: int | None = None) -> Path:
        here = 0
        garbled = 0
        first = True

        async def attempt() -> Path:
            nonlocal here, garbled, first
            if store.has(digest):
                return store.path(digest)
            if not first:
                may_go_on(here)
            first = False

            def arrived(count: int) -> None:
                nonlocal here
                here = count
                on_bytes(count)

            try:
                return await self._transfers.receive(request, store, digest, size_bytes, arrived=arrived)
            except BadPayload as error:
                # Raised here, not by the coordinator: `receive` leaves its errors as gRPC made them.
                garbled += 1
                if garbled > _GARBLED_LIMIT:
                    raise BadPayload(f"A payload arrived damaged {garbled} times: {error.text}") from None
                raise TryAgain(f"A payload arrived damaged and is fetched again: {error.text}") from None
        return await self._calls.persist(attempt, moved=lambda: here, tries=tries)

    async def upload(self, request: pb.BeginUpdateRequest, path: Path, *,
                     on_bytes: Callable[[int], None] = lambda count: None) -> Verdict:
        """Declares an update and sends its bytes from where the coordinator wants them.

        Args:
            request: with an update as its outcome; the same for every repetition.
            path: the payload file.
            on_bytes: told how many bytes have been handed over.
        Raises: what the coordinator objects to the declaration, or three times in a row to the bytes.
        """
        size = path.stat().st_size
        acknowledged = 0
        objections = 0

        async def attempt() -> Verdict:
            nonlocal acknowledged, objections
            answer: pb.BeginUpdateResponse = await self._calls.ask("BeginUpdate", request)
            if answer.state != pb.BeginUpdateResponse.STATE_SEND:
                return Verdict(answer.state == pb.BeginUpdateResponse.STATE_HAVE, answer.reason)
            if not 0 <= answer.resume_offset <= size:
                raise BadPayload(f"The coordinator asks for byte {answer.resume_offset} of an update of {size} bytes.")
            if answer.resume_offset > acknowledged:
                acknowledged, objections = answer.resume_offset, 0
            try:
                await self._transfers.send(request.update_id, path, offset=answer.resume_offset,
                                           on_bytes=on_bytes)
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
                if not is_answer(error):
                    raise
                # Closed meanwhile, or damaged on its way: declaring it again tells which.
                objections += 1
                if objections > _GARBLED_LIMIT:
                    raise error from None
                raise TryAgain(error.text, remedy=error.remedy) from None
            return Verdict(True)
        return await self._calls.persist(attempt, moved=lambda: acknowledged)
