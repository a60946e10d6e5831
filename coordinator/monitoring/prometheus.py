"""`/metrics` of the operator page: what the ledger and the live state say, as Prometheus reads it.

Everything is read when it is asked for: nothing is counted beside the ledger, so a restart forgets nothing. Only
members have series of their own, so their number does not grow with those who come and go.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from semisilo.common import __version__
from semisilo.common.errors import SemisiloError, known_codes
from semisilo.common.identity.certificates import load_certificate, not_after_unix
from semisilo.coordinator.federation.backup import last_backup_unix
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, count_notices
from semisilo.coordinator.ledger.progress import open_phase
from semisilo.coordinator.ledger.roster import LedgerRoster, SiloRow, certificate_ends, open_invitations
from semisilo.coordinator.ledger.states import ENDED_ROUND, ENDED_STUDY, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import open_tasks
from semisilo.coordinator.ledger.traffic import total_bytes_by_silo
from semisilo.coordinator.monitoring.ledger_metrics import NOT_ACCEPTED, OTHER_CODE, StudyReading, StudyScrapes
from semisilo.coordinator.monitoring.outcomes import OUTCOMES
from semisilo.coordinator.monitoring.silo_state import SiloActivity, SiloState, activities_of
from semisilo.coordinator.rounds.live_file import LiveStatus

__all__ = ["FORMER", "OVERHEAD", "Exposition"]

OVERHEAD = "(overhead)"
"""Label `silo` of bytes that belong to no silo; no silo can have that name."""
FORMER = "(former)"
"""And of those of silos that are revoked or have left, together."""
_FORMER_STATES = (SiloState.REVOKED, SiloState.LEFT)
_RUNNING = (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)


class Exposition:
    """Answers scrapes. To be used by the thread that opened the ledger."""

    def __init__(self, federation: Federation, ledger: Ledger, *, live: Callable[[], LiveStatus | None],
                 clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            live: what `serve` is doing now; None while it does not run.
            clock: Unix seconds.
        """
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Coordinator(federation, ledger, live, clock))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format 0.0.4."""
        return generate_latest(self._registry)


class _Coordinator(Collector):
    def __init__(self, federation: Federation, ledger: Ledger, live: Callable[[], LiveStatus | None],
                 clock: Callable[[], float]) -> None:
        self._federation = federation
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._studies = StudyScrapes()
        self._certificates: dict[Path, tuple[int, float]] = {}

    def collect(self) -> Iterator[Metric]:
        """Called for every scrape."""
        live, now = self._live(), self._clock()
        studies = self._studies.read(self._ledger)
        roster = LedgerRoster(self._ledger).silos()
        activities = activities_of(roster, live, open_tasks(self._ledger), now_unix=now)
        members = {row.name for row in roster if activities[row.name].state not in _FORMER_STATES}
        build = GaugeMetricFamily("semisilo_build_info", "Version of semisilo; always 1.",
                                  labels=["version", "python", "federation"])
        build.add_metric([__version__, platform.python_version(), self._federation.name], 1)
        yield build
        yield _gauge("semisilo_serving", "Whether coordinator serve is running.", float(live is not None))
        yield from _of_studies(studies)
        yield from self._of_phase(studies)
        yield from _of_silos([row for row in roster if row.name in members], activities, certificate_ends(self._ledger),
                             now)
        yield from _notices(studies, count_notices(self._ledger, ""))
        yield from _label_ratios(studies, members)
        yield from self._bytes(members)
        yield from _encodings(studies)
        yield from self._machine()
        yield from self._certificate_ends()
        yield _gauge("semisilo_invitations_open", "Invitations that can still be used.", float(len(
            open_invitations(self._ledger, now))))

    def _of_phase(self, studies: list[StudyReading]) -> Iterator[Metric]:
        deadline = GaugeMetricFamily("semisilo_phase_deadline_timestamp_seconds",
                                     "When the phase in which silos work now closes with a quorum.",
                                     labels=["study", "phase"])
        tasks = GaugeMetricFamily("semisilo_phase_tasks", "Tasks of the phase in which silos work now, by state.",
                                  labels=["study", "phase", "state"])
        for study in studies:
            found = open_phase(self._ledger, study.name) if study.state in _RUNNING else None
            if found is not None:
                if study.state is not StudyState.PAUSED:  # it moves with the pause, and nobody knows how long that is
                    deadline.add_metric([study.name, found.name], found.deadline_unix)
                for state in TaskState:
                    tasks.add_metric([study.name, found.name, state], found.tasks.get(state, 0))
        yield deadline
        yield tasks

    def _bytes(self, members: set[str]) -> Iterator[Metric]:
        family = CounterMetricFamily("semisilo_bytes", "Bytes by silo, direction (down: to silos) and kind: payload"
                                     " within message within wire.", labels=["direction", "kind", "silo"])
        sums: Counter[tuple[str, str, str]] = Counter()
        for (silo, direction, kind), size in total_bytes_by_silo(self._ledger).items():
            sums[direction, kind, silo if silo in members else FORMER if silo else OVERHEAD] += size
        for labels, size in sorted(sums.items()):
            family.add_metric(labels, size)
        yield family

    def _machine(self) -> Iterator[Metric]:
        yield _gauge("semisilo_spool_bytes", "Accepted updates on disk until their round is committed.",
                     float(_folder_bytes(self._federation.spool)))
        yield _gauge("semisilo_spool_limit_bytes", "Updates beyond this are refused until a round is committed.",
                     float(self._federation.config.limits.spool_bytes))
        disk = shutil.disk_usage(self._federation.folder)
        yield _gauge("semisilo_disk_free_bytes", "Free on the disk of the federation folder.", float(disk.free))
        yield _gauge("semisilo_disk_size_bytes", "Size of that disk.", float(disk.total))
        yield _gauge("semisilo_ledger_bytes", "Size of the ledger.", float(_size(self._federation.ledger)))
        if (made := last_backup_unix(self._federation)) is not None:
            yield _gauge("semisilo_last_backup_timestamp_seconds", "When coordinator backup last made an archive.",
                         made)

    def _certificate_ends(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("semisilo_certificate_expiry_timestamp_seconds",
                                   "When a certificate of the coordinator expires.", labels=["certificate"])
        for name, file in (("authority", "ca.pem"), ("coordinator", "coordinator.pem")):
            if (unix := self._certificate_end(self._federation.authority / file)) is not None:
                family.add_metric([name], unix)
        yield family

    def _certificate_end(self, path: Path) -> float | None:
        """Read again only when the file was replaced."""
        try:
            written = path.stat().st_mtime_ns
            if self._certificates.get(path, (0, 0.0))[0] != written:
                self._certificates[path] = written, not_after_unix(load_certificate(path.read_bytes()))
        except (OSError, SemisiloError):
            return None
        return self._certificates[path][1]


def _of_studies(studies: list[StudyReading]) -> Iterator[Metric]:
    state = GaugeMetricFamily("semisilo_study_state", "1 for the state that a study is in.", labels=["study", "state"])
    rounds = CounterMetricFamily("semisilo_rounds", "Rounds with silos, by how they ended.", labels=["study", "state"])
    seconds = SummaryMetricFamily("semisilo_round_duration_seconds", "Rounds that are over, and how long they took.",
                                  labels=["study"])
    tasks = CounterMetricFamily("semisilo_tasks", "Tasks that are over, by outcome.", labels=["study", "outcome"])
    updates = CounterMetricFamily("semisilo_updates", "Updates that arrived, by whether they were accepted.",
                                  labels=["study", "result"])
    refusals = CounterMetricFamily("semisilo_task_refusals", "Tasks that were refused, by error code.",
                                   labels=["study", "code"])
    gauges: Mapping[str, tuple[str, Callable[[StudyReading], float | None]]] = {
        "semisilo_study_round": ("Round that was opened last.", lambda study: _float(study.progress.last_round)),
        "semisilo_study_rounds_planned": ("Rounds that the study file asks for.",
                                          lambda study: float(study.planned_rounds)),
        "semisilo_study_accuracy_ratio": ("Test accuracy after the last committed round.",
                                          lambda study: study.accuracy),
        "semisilo_study_labelled_only_accuracy_ratio": ("Test accuracy of the labels at the coordinator alone.",
                                                        lambda study: study.labelled_only),
        "semisilo_study_loss": ("Test loss after the last committed round.", lambda study: study.loss),
        "semisilo_round_last_duration_seconds": ("How long the last round took that is over.",
                                                 lambda study: study.progress.last_seconds),
        "semisilo_round_opened_timestamp_seconds": ("When the round was opened that is under way.",
                                                    lambda study: study.progress.round_opened_unix),
    }
    score = GaugeMetricFamily("semisilo_study_measure_ratio", "The study's measure on the test images after the last"
                              " committed round.", labels=["study", "measure"])
    alone = GaugeMetricFamily("semisilo_study_labelled_only_measure_ratio", "The same of the labels at the coordinator"
                              " alone.", labels=["study", "measure"])
    for study in studies:
        for family, value in ((score, study.test_score), (alone, study.labels_alone_test_score)):
            if value is not None:
                family.add_metric([study.name, study.measure], value)
        for each in StudyState:
            state.add_metric([study.name, each], float(study.state == each))
        over = {ended: entry for ended, entry in study.rounds.items() if ended in ENDED_ROUND}
        for ended in ENDED_ROUND:
            rounds.add_metric([study.name, ended], over[ended].count if ended in over else 0)
        seconds.add_metric([study.name], sum(entry.count for entry in over.values()),
                           sum(entry.seconds for entry in over.values()))
        for outcome in OUTCOMES:
            tasks.add_metric([study.name, outcome], study.tasks.get(outcome, 0))
        rejected = study.refusals.get(NOT_ACCEPTED, 0)
        updates.add_metric([study.name, "accepted"], study.tasks.get(TaskState.UPDATED, 0))
        updates.add_metric([study.name, "refused"], rejected)
        # At 0 before the first one, for a series that begins at 1 has not increased. Only while there may be one.
        nothing = () if study.state in ENDED_STUDY else (*known_codes(), NOT_ACCEPTED, OTHER_CODE)
        for code, count in sorted({**dict.fromkeys(nothing, 0), **study.refusals}.items()):
            refusals.add_metric([study.name, code], count)
    yield from (state, rounds, seconds, tasks, updates, refusals, score, alone)
    for name, (text, value_of) in gauges.items():
        family = GaugeMetricFamily(name, text, labels=["study"])
        for study in studies:
            if (value := value_of(study)) is not None:
                family.add_metric([study.name], value)
        yield family


def _of_silos(members: Sequence[SiloRow], activities: Mapping[str, SiloActivity], ends: Mapping[str, float],
              now: float) -> Iterator[Metric]:
    connected = GaugeMetricFamily("semisilo_silo_connected", "Whether a silo is connected now.", labels=["silo"])
    seen = GaugeMetricFamily("semisilo_silo_last_seen_timestamp_seconds", "When a silo last called.",
                             labels=["silo"])
    aside = GaugeMetricFamily("semisilo_silo_set_aside", "Whether the operator has set a silo aside.", labels=["silo"])
    expiry = GaugeMetricFamily("semisilo_silo_certificate_expiry_timestamp_seconds",
                               "When the certificate of a silo expires.", labels=["silo"])
    images = GaugeMetricFamily("semisilo_silo_images", "Images that a silo has said to have.",
                               labels=["silo", "labelled"])
    for silo in members:
        connected.add_metric([silo.name], float(activities[silo.name].present))
        aside.add_metric([silo.name], float(activities[silo.name].state is SiloState.SET_ASIDE))
        if (heard := activities[silo.name].seen_unix) is not None:
            seen.add_metric([silo.name], heard)
        if silo.name in ends:
            expiry.add_metric([silo.name], ends[silo.name])
        if silo.joined_unix is not None:
            images.add_metric([silo.name, "true"], silo.labelled_count)
            images.add_metric([silo.name, "false"], silo.unlabelled_count)
    states = Counter(activity.state for activity in activities.values())
    family = GaugeMetricFamily("semisilo_silos", "Silos by what they are doing (docs/observability.md).",
                               labels=["state"])
    for state in SiloState:
        family.add_metric([state], states[state])
    paused = GaugeMetricFamily("semisilo_silos_off_duty", "Silos that take no task now by their own policy.")
    paused.add_metric([], sum(silo.is_away(now) for silo in members))
    yield from (family, paused, connected, seen, aside, expiry, images)


def _notices(studies: list[StudyReading], outside: Mapping[NoticeKind, int]) -> Iterator[Metric]:
    family = CounterMetricFamily("semisilo_silo_notices", "What an operator should hear of silos, by kind"
                                 " (docs/observability.md); outside of studies with an empty study.",
                                 labels=["study", "kind"])
    for name, counts in (*((study.name, study.notices) for study in studies), ("", outside)):
        for kind in NoticeKind:
            family.add_metric([name, kind], counts.get(kind, 0))
    yield family


def _label_ratios(studies: list[StudyReading], members: set[str]) -> Iterator[Metric]:
    family = GaugeMetricFamily("semisilo_silo_label_ratio", "Share of a silo's images with a pseudo-label, when it last"
                               " said so.", labels=["study", "silo"])
    for study in studies:
        if study.state in _RUNNING:
            for silo, ratio in study.label_ratio.items():
                if silo in members:
                    family.add_metric([study.name, silo], ratio)
    yield family


def _encodings(studies: list[StudyReading]) -> Iterator[Metric]:
    sizes = CounterMetricFamily("semisilo_encoded_bytes", "Payload bytes by encoding (docs/observability.md).",
                                labels=["study", "direction", "encoding"])
    dense = CounterMetricFamily("semisilo_encoded_dense_bytes", "What the same elements take dense.",
                                labels=["study", "direction", "encoding"])
    for study in studies:
        for use in sorted(study.encodings, key=lambda use: (use.direction, use.encoding)):
            sizes.add_metric([study.name, use.direction, use.encoding], use.bytes)
            dense.add_metric([study.name, use.direction, use.encoding], use.dense_bytes)
    yield from (sizes, dense)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _folder_bytes(folder: Path) -> int:
    """Of the files right in a folder; one that goes meanwhile counts nothing."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                total += _file_bytes(entry)
    except OSError:
        return total
    return total


def _file_bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
    except OSError:
        return 0
