"""Wires identity, link, compute process, display and agent together; the only place at a silo that knows them all.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from semisilo.common.errors import SemisiloError
from semisilo.common.identity.certificates import load_certificate
from semisilo.common.process.allocator import settle_allocator
from semisilo.common.process.compute import Compute, ProcessCompute
from semisilo.common.process.compute_process import die_with_parent
from semisilo.common.process.torchrun import is_under_torchrun, place
from semisilo.common.rpc.tls import split_address
from semisilo.common.storage.half_written import LEFT_SECONDS, remove_leftovers
from semisilo.common.text.describe import describe_seconds
from semisilo.common.wire import enrollment_service_pb2_grpc as enrollment_grpc
from semisilo.silo.agent.agent import Agent, Renewal
from semisilo.silo.agent.task_runner import TaskOutcome
from semisilo.silo.agent.terminal import Display, open_display
from semisilo.silo.compute.torchrun import LeadingCompute, find_token, look_after_follower
from semisilo.silo.link.diagnosis import by_own_clock, diagnose
from semisilo.silo.link.link import Link, LinkSettings
from semisilo.silo.link.traffic import Traffic
from semisilo.silo.membership.enrollment import open_channel, renew_if_due
from semisilo.silo.site.audit_heads import HeadRecord
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.identity_store import Identity, load_identity
from semisilo.silo.site.images_choice import OnError, check_there, choose_data, overridden_source
from semisilo.silo.site.policy import Policy, load_policy
from semisilo.silo.site.working_hours import zone_doubt

__all__ = ["NOTHING_TO_DO", "choose_data", "join", "work"]

NOTHING_TO_DO = 3
"""Exit status of `silo join --once` when there was no study to take part in."""
_COUNT_SECONDS = 0.5
"""Often enough to have seen a connection that lasts a second or two; a look reads the kernel's counters."""


async def _nothing() -> None:
    pass


def join(folder: Path, *, data: str | None = None, labelled: str | None = None, test: str | None = None,
         no_labels: bool = False, on_error: OnError | None = None, exit_when_finished: bool = False,
         once_seconds: float | None = None, metrics: str | None = None) -> int:
    """Takes part until stopped; what `silo join` does. Under torchrun only process 0 does so
    (`semisilo.silo.compute.torchrun`).

    Args:
        folder: the silo's home.
        data: source of the images; None for the one of silo.toml or of the last time.
        labelled: labelled images apart from `data`; None where `data` holds them as well, or for what silo.toml or the
            last time says when `data` is None too.
        test: labelled images to measure this silo's own model on, likewise.
        no_labels: all images of `data` are unlabelled.
        on_error: at a file that cannot be read; None for what silo.toml says.
        exit_when_finished: end when there is no study any more after this silo has taken part in one.
        once_seconds: the same, and end as well when there was none for so long; None waits for ever.
        metrics: host:port to serve numbers for Prometheus at; None for what silo.toml says.
    Returns: exit status: 0 at the end of the study, 130 after SIGINT; after SIGTERM 0, or 143 with `once_seconds`,
        which leave a study under way; `NOTHING_TO_DO`, but 0 under torchrun.
    Raises: UsageError, BadConfiguration, BadData, AlreadyRunning; what no repetition can fix.
    """
    settle_allocator()
    home = SiloHome(folder)
    if (found := place()) is not None:
        die_with_parent(os.getppid())  # without torchrun's store the processes cannot find each other again
        if found.rank:
            find_token(home, makes=False)
            return look_after_follower(found, home)
    load_identity(folder)  # before a lock is made in a folder that is no silo's
    with home.lock():
        identity = load_identity(folder)  # `silo enroll` or `silo move` may have ended only now
        home.require_policy()
        if found is not None:
            find_token(home, makes=True)
        policy = load_policy(home.policy)
        choice = choose_data(home, policy.data, data=data, labelled=labelled, test=test, no_labels=no_labels,
                             on_error=on_error)
        check_there(choice)
        display: Display = open_display()
        compute = (LeadingCompute() if found is not None
                   else ProcessCompute("semisilo.silo.compute.masking:MaskingOperations"))
        with ExitStack() as stack:
            stack.callback(display.close)
            if said := overridden_source(home, policy.data, choice):
                display.event(f"WARNING: {said}")
            observed, port = None, 0
            if address := policy.metrics.listen if metrics is None else metrics:
                from semisilo.silo.monitoring.prometheus import ObservedDisplay, SiteMetrics, serving_metrics

                observed = SiteMetrics(home, policy)
                port = stack.enter_context(serving_metrics(observed, address))
                display = ObservedDisplay(display, observed)
                display.event(f"numbers for Prometheus: http://{address}/metrics")

            async def run() -> int:
                return await work(home, identity, choice, policy=policy, display=display, compute=compute,
                                  on_end=compute.dismiss if isinstance(compute, LeadingCompute) else _nothing,
                                  exit_when_finished=exit_when_finished, once_seconds=once_seconds, metrics_port=port,
                                  on_task=(lambda outcome: None) if observed is None else observed.task)
            return asyncio.run(run())


async def work(home: SiloHome, identity: Identity, choice: JoinChoice, *, policy: Policy, display: Display,
               compute: Compute, exit_when_finished: bool = False, once_seconds: float | None = None,
               settings: LinkSettings | None = None,
               poll_seconds: float = 25.0, metrics_port: int = 0,
               on_task: Callable[[TaskOutcome], None] = lambda outcome: None,
               on_end: Callable[[], Awaitable[None]] = _nothing) -> int:
    """Runs the agent on the current event loop until it ends or a signal comes; returns the exit status.

    Args:
        metrics_port: where this process serves Prometheus; what crosses there is not counted.
        on_task: told what became of each task.
        on_end: awaited when the agent has ended by itself.
    """
    present = identity
    proxied = any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy"))
    traffic = Traffic(identity.silo, remote_port=0 if proxied else split_address(identity.address)[1],
                      metrics_port=metrics_port)
    agent: Agent

    async def renew() -> bool:
        nonlocal present
        stub: Any = enrollment_grpc.EnrollmentServiceStub(link.channel)  # type: ignore[no-untyped-call]
        try:
            renewed = await renew_if_due(home.folder, stub, time.time())
        except SemisiloError as error:
            raise judged(error) from None
        present = renewed or present
        return renewed is not None

    def cause() -> SemisiloError:
        return diagnose(home.folder, present.address, time.time(),
                        was_known=agent.contact_unix >= present.not_before_unix)

    def judged(error: SemisiloError) -> SemisiloError:
        return by_own_clock(error, present, time.time())

    link = Link(lambda: open_channel(present), silo=identity.silo, settings=settings, messages=traffic.messages,
                on_trouble=lambda error, failures: agent.trouble(error, failures),
                on_contact=lambda: agent.contact(), on_through=lambda: agent.through(),
                on_stream=lambda: agent.count(), diagnose=cause, by_own_clock=judged)
    renewal = Renewal(renew, due=lambda: present.about.renew_unix, link=link, display=display)
    agent = Agent(home=home, silo=identity.silo, address=identity.address, federation=identity.federation,
                  policy=policy, choice=choice, link=link,
                  heads=HeadRecord(home.heads, load_certificate(identity.authority_pem)),
                  compute=compute, display=display, traffic=traffic, renew=renewal,
                  exit_when_finished=exit_when_finished or once_seconds is not None,
                  idle_seconds=math.inf if once_seconds is None else once_seconds, poll_seconds=poll_seconds,
                  on_task=on_task)
    if doubt := zone_doubt(policy.hours):
        display.event(f'WARNING: {doubt} Write zone = "UTC" there if that is meant.')
    counting, tidying = asyncio.ensure_future(_count(agent)), asyncio.ensure_future(_tidy(home))
    try:
        status = await _until_signal(agent, on_end, terminated=0 if once_seconds is None else 128 + signal.SIGTERM)
        if status == 0 and once_seconds is not None and not agent.has_worked:
            display.event(f"there was no study within {describe_seconds(once_seconds)}")
            return 0 if is_under_torchrun() else NOTHING_TO_DO
        return status
    finally:
        counting.cancel()
        tidying.cancel()
        agent.count(durably=True)
        await compute.close()
        await link.close()
        traffic.close()


async def _count(agent: Agent) -> None:
    """Looks at the counters until cancelled."""
    while True:
        agent.count()
        await asyncio.sleep(_COUNT_SECONDS)


async def _tidy(home: SiloHome) -> None:
    """Removes what killed compute processes, and a silo before this one, have left half-written; until cancelled."""
    while True:
        await asyncio.to_thread(remove_leftovers, home.with_temporary_files())
        await asyncio.sleep(LEFT_SECONDS)


async def _until_signal(agent: Agent, on_end: Callable[[], Awaitable[None]], *, terminated: int) -> int:
    """Returns: exit status; `terminated` after SIGTERM."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(agent.run())
    received: list[int] = []

    def stop(number: int) -> None:
        if received:  # a second time: the person does not want to wait
            os._exit(128 + number)
        received.append(number)
        cancel()

    def cancel() -> None:
        if not running.done():
            running.cancel()
            loop.call_later(1.0, cancel)  # should a library on the way have swallowed it; a person waits

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await running
        await on_end()
        return 0
    except asyncio.CancelledError:
        if not received:
            raise
        return 130 if received[0] == signal.SIGINT else terminated
    finally:
        running.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
