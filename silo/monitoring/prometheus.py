"""Numbers about this silo for the site's own Prometheus: off unless asked for, and never sent to the coordinator.

Counts of tasks are kept here since the start; bytes, budget and state are read from the silo's own files when they are
asked for. The names begin with `semisilo_site_`: the hub's begin with `semisilo_` and tell of all silos.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from semisilo.common import __version__
from semisilo.common.errors import BadConfiguration, NoSuchAddress, PortInUse, SemisiloError, StorageDamaged
from semisilo.common.rpc.tls import split_address
from semisilo.silo.agent.daily_budget import read_day
from semisilo.silo.agent.task_runner import OUTCOME_KINDS, TaskOutcome
from semisilo.silo.agent.terminal import Display
from semisilo.silo.site.home import AgentStatus, SiloHome, StatusFile
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import Policy
from semisilo.silo.site.privacy.ledger import PrivacyLedger
from semisilo.silo.site.working_hours import closes_at

__all__ = ["ObservedDisplay", "SiteMetrics", "serving_metrics"]

_MOST_CONNECTIONS = 8
"""Prometheus makes one now and then; a person may look as well."""
_REQUEST_SECONDS = 10.0
_STAGES = ("idle", "downloading", "training", "uploading")


@dataclass(frozen=True, slots=True)
class _Doing:
    stage: str = "idle"
    fraction: float = 0.0


class SiteMetrics(Collector):
    """Counts tasks, and reads everything else when Prometheus asks. Safe to be read by another thread."""

    def __init__(self, home: SiloHome, policy: Policy, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._policy = policy
        self._clock = clock
        self._tasks: Counter[str] = Counter()
        self._payload: Counter[str] = Counter()
        self._training_seconds = 0.0
        self._doing = _Doing()

    def task(self, outcome: TaskOutcome) -> None:
        """Counts what became of a task."""
        self._tasks[outcome.kind] += 1
        if outcome.took is not None:
            self._training_seconds += outcome.took.train_seconds
            self._payload["down"] += outcome.took.download_bytes
            self._payload["up"] += outcome.took.upload_bytes

    def doing(self, stage: str = "idle", fraction: float = 0.0) -> None:
        """Notes how far a stage of a task is."""
        self._doing = _Doing(stage if stage in _STAGES else "idle", min(1.0, max(0.0, fraction)))

    def collect(self) -> Iterator[Metric]:
        """Called for every scrape. What cannot be read now, such as with too many open files, is left out of it."""
        with suppress(OSError):
            yield from list(self._who())
        yield from self._work()
        with suppress(OSError):
            yield from list(self._state(StatusFile.load(self._home.status)))
        yield from self._policy_numbers(self._clock())

    def _work(self) -> Iterator[Metric]:
        """What is counted in this process."""
        doing = self._doing
        outcomes = CounterMetricFamily("semisilo_site_tasks", "Tasks since the start, by what became of them.",
                                       labels=["outcome"])
        for kind in OUTCOME_KINDS:
            outcomes.add_metric([kind], self._tasks[kind])
        yield outcomes
        stage = GaugeMetricFamily("semisilo_site_stage", "1 for what this silo is doing.", labels=["stage"])
        for name in _STAGES:
            stage.add_metric([name], float(name == doing.stage))
        yield stage
        yield _gauge("semisilo_site_stage_progress_ratio", "How far that is.", doing.fraction)
        yield CounterMetricFamily("semisilo_site_training_seconds", "Time spent training since the start.",
                                  value=self._training_seconds)
        payload = CounterMetricFamily("semisilo_site_payload_bytes", "Payload bytes since the start; up: to the hub.",
                                      labels=["direction"])
        for direction in ("down", "up"):
            payload.add_metric([direction], self._payload[direction])
        yield payload

    def _state(self, status: AgentStatus) -> Iterator[Metric]:
        """What the agent has written of itself."""
        wire = CounterMetricFamily("semisilo_site_wire_bytes", "Bytes on the wire since enrolment; up: to the hub.",
                                   labels=["direction"])
        for direction, size in (("down", status.received_bytes), ("up", status.sent_bytes)):
            wire.add_metric([direction], size)
        yield wire
        images = GaugeMetricFamily("semisilo_site_images", "Images of this silo.", labels=["labelled"])
        images.add_metric(["true"], status.labelled_count)
        images.add_metric(["false"], status.unlabelled_count)
        yield images
        yield _gauge("semisilo_site_round", "Round of the study that this silo takes part in; 0 for none.",
                     float(status.round if status.study else 0))
        yield _gauge("semisilo_site_last_contact_timestamp_seconds", "When the coordinator last answered.",
                     status.last_contact_unix)
        yield _gauge("semisilo_site_trouble", "Whether something is wrong that has not passed; silo status says what.",
                     float(bool(status.last_error)))

    def _who(self) -> Iterator[Metric]:
        try:
            identity = load_identity(self._home.folder)
        except SemisiloError:
            return
        build = GaugeMetricFamily("semisilo_site_build_info", "Version of semisilo; always 1.",
                                  labels=["version", "silo", "federation"])
        build.add_metric([__version__, identity.silo, identity.federation], 1)
        yield build
        yield _gauge("semisilo_site_certificate_expiry_timestamp_seconds", "When this silo's certificate expires.",
                     identity.not_after_unix)

    def _policy_numbers(self, now: float) -> Iterator[Metric]:
        limit = self._policy.limits.bytes_per_day
        with suppress(OSError):
            yield _gauge("semisilo_site_day_bytes", "Bytes on the wire today, both ways.",
                         float(read_day(self._home.day, self._policy.hours, now).bytes))
        yield _gauge("semisilo_site_day_limit_bytes", "[limits] bytes_per_day of silo.toml; 0: no limit.", float(limit))
        yield _gauge("semisilo_site_on_duty", "Whether silo.toml lets this silo work now.",
                     float(closes_at(self._policy.hours, now) is not None))
        yield _gauge("semisilo_site_epsilon_limit", "[privacy] max_epsilon of silo.toml; 0: no limit.",
                     self._policy.privacy.max_epsilon)
        with suppress(StorageDamaged, OSError):  # `silo status` says so, and nothing is trained
            last = PrivacyLedger(self._home.privacy).last()
            yield _gauge("semisilo_site_epsilon", "Spent of the privacy of this site's images, all studies together.",
                         0.0 if last is None else last.epsilon)


class ObservedDisplay:
    """Another display, whose progress the metrics follow."""

    def __init__(self, display: Display, metrics: SiteMetrics) -> None:
        self._display = display
        self._metrics = metrics

    def event(self, text: str) -> None:
        self._display.event(text)

    def state(self, text: str) -> None:
        self._metrics.doing()
        self._display.state(text)

    def progress(self, what: str, fraction: float, text: str = "") -> None:
        self._metrics.doing(what.rpartition(" ")[2], fraction)
        self._display.progress(what, fraction, text)

    def done(self) -> None:
        self._metrics.doing()
        self._display.done()

    def close(self) -> None:
        self._display.close()


@contextmanager
def serving_metrics(metrics: SiteMetrics, address: str) -> Iterator[int]:
    """Serves `metrics` at http://ADDRESS/metrics around a block, which gets the port.

    Raises: BadConfiguration for an address that cannot be; PortInUse; NoSuchAddress: its network may come later.
    """
    host, port = split_address(address)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ProcessCollector(registry=registry)
    generate_latest(registry)  # a mistake of ours shows here, not at the first scrape
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = _Server((str(where[0]), port), family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"Another process listens on {address}.",
                            remedy="Choose another port for --metrics or [metrics] listen.") from None
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            raise NoSuchAddress(f"Metrics cannot be served on {address}: {error.strerror}.",
                                remedy="Wait for the network that brings this address, or choose another one of this"
                                       ' machine for --metrics or [metrics] listen, for example "127.0.0.1:9108".'
                                ) from None
        raise BadConfiguration(f"Metrics cannot be served on {address}: {error.strerror or error}.",
                               remedy='Write an address of this machine, for example "127.0.0.1:9108".') from None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


class _Handler(WSGIRequestHandler):
    """Gives up who says nothing for so long, and writes nothing of anybody into the log."""

    timeout = _REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each of a few connections: whoever reaches the port must not use up the threads and files of `silo
    join`. A newer one goes before the oldest."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], family: int) -> None:
        self.address_family = family
        self._open: list[Any] = []
        """Oldest first."""
        self._table = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A connection has come."""
        with self._table:
            self._open.append(request)
            oldest = self._open.pop(0) if len(self._open) > _MOST_CONNECTIONS else None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its own thread closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """One ends."""
        with self._table, suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who breaks off, or comes while no thread can be started, is not the operator's business."""


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
