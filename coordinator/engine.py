"""The round engine: a durable state machine over the ledger. Killed at any instant, it resumes with the same bits.

Every step is a deterministic function of files that the ledger names, so a step that was cut off is simply done again.
The engine itself holds no tensors: the compute process does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common.compute import Compute
from common.config import canonical_json, from_dict, to_dict
from common.data.form import ImageForm
from common.errors import ComputeFailed, DiskFull, SemisiloError
from common.exchange import ModelSettings, PayloadRef, TaskSpec
from common.seeds import numpy_generator
from common.store import PayloadStore
from coordinator.bulletin import Bulletin, StandbyReason
from coordinator.ledger import Ledger
from coordinator.retention import states_to_keep
from coordinator.roster import LedgerRoster
from coordinator.rows import PhaseRow, RoundRow, StudyRow
from coordinator.states import RoundState, StudyState, TaskState
from coordinator.study import FrozenStudy, StudyConfig, config_from_dict

__all__ = ["Accountant", "Engine", "EngineFolders", "RunningStudy"]

_LOG = logging.getLogger("semisilo.coordinator")
_COMPUTE_ATTEMPTS = 3
_STATE_ENDING = ".safetensors"
_ROUND_OVER = (RoundState.COMPLETED, RoundState.FAILED, RoundState.CANCELLED)
_WRITTEN, _NOT_WRITTEN = "model_written", "model_not_written"
_ENDED = (StudyState.COMPLETED, StudyState.FAILED, StudyState.STOPPED)


class Accountant(Protocol):
    """Writes what the wire has carried since the last call to the ledger."""

    def settle(self, *, study: str, round: int, phase: str) -> None:
        """Attributes the bytes since the last call to a phase of a round; "standby" between phases."""


@dataclass(frozen=True, slots=True)
class EngineFolders:
    """Where the files are that the ledger names."""

    studies: Path
    payloads: Path


@dataclass(frozen=True, slots=True)
class RunningStudy:
    """A study with its checked settings."""

    name: str
    config: StudyConfig
    frozen: FrozenStudy


class Engine:
    """Runs queued studies one after another."""

    def __init__(self, *, ledger: Ledger, roster: LedgerRoster, bulletin: Bulletin, compute: Compute,
                 payloads: PayloadStore, spool: PayloadStore, folders: EngineFolders, accountant: Accountant,
                 slowest_link: Callable[[Collection[str]], float] = lambda silos: 0.0,
                 clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            slowest_link: of the given silos, in bytes per second down; 0 when none was measured.
        """
        self._ledger = ledger
        self._roster = roster
        self._bulletin = bulletin
        self._compute = compute
        self._payloads = payloads
        self._spool = spool
        self._folders = folders
        self._accountant = accountant
        self._slowest_link = slowest_link
        self._clock = clock
        self._opened = ""
        """The study that the compute process has open."""
        self._resumed = True  # the first phase found open after a start gets a fresh deadline

    def has_work(self) -> bool:
        """Whether a study waits in the queue or has not ended."""
        return any(row.state not in _ENDED for row in self._ledger.studies())

    async def run_next(self) -> StudyRow | None:
        """Runs the first study of the queue that is not over; None when there is none.

        A study that cannot go on is marked FAILED with its reason; only DiskFull is raised, with nothing lost.
        """
        await self._tidy_up()
        study = next((row for row in self._ledger.studies() if row.state not in _ENDED), None)
        if study is None:
            return None
        try:
            await self._run(study)
        except DiskFull:
            raise
        except SemisiloError as error:
            _LOG.error("study %s failed: %s Then queue it again: coordinator queue %s", study.name, error.line(),
                       study.name)
            with self._ledger.transaction():
                if self._ledger.study_state(study.name) is not StudyState.STOPPED:
                    self._ledger.set_study_state(study.name, StudyState.FAILED, reason=error.line())
            self._bulletin.set(reason=StandbyReason.NO_STUDY, text=f"study {study.name} failed", activity="")
        await self._tidy_up()
        return self._ledger.study(study.name)

    async def _run(self, row: StudyRow) -> None:
        name = row.name
        self._resumed = True
        config = config_from_dict(row.config, where=f"study {name}")
        self._bulletin.set(study=name, round=0, rounds=config.study.rounds, phase="",
                           reason=StandbyReason.COORDINATOR_WORKING, activity="reading images", text="")
        self._ledger.move_study(name, StudyState.QUEUED, StudyState.PREPARING)
        if await self._stopped(name):
            return
        study = await self._open(row, config)
        if self._ledger.committed_digest(name) == "":
            await self._prepare(study)
        if not await self._wait_for_silos(study):
            return
        for number in range(1, config.study.rounds + 1):
            if await self._stopped(name):
                return
            last = self._ledger.last_round(name)
            assert last is not None
            if number < last.number or (number == last.number and last.state in _ROUND_OVER):
                continue
            await self._round(study, number)
        while not await self._stopped(name):
            await self._export(name)
            if self._ledger.move_study(name, StudyState.RUNNING, StudyState.COMPLETED):
                break
        else:
            return
        for store in (self._payloads, self._spool):
            store.drop_spares()
        self._bulletin.set(reason=StandbyReason.NO_STUDY, text=f"study {name} is complete", activity="", phase="")

    # Round 0 ----------------------------------------------------------------------------------------------------------

    async def _open(self, row: StudyRow, config: StudyConfig) -> RunningStudy:
        answer = await self._call("open_study", {
            "name": row.name, "config": row.config, "study_folder": str(self._folders.studies / row.name),
            "payloads_folder": str(self._folders.payloads), "num_silos": config.study.start_with,
            "frozen": row.frozen}, activity="reading images")
        self._opened = row.name
        if row.frozen is None:
            self._ledger.set_study_facts(row.name, frozen=answer["frozen"], numerics=answer["numerics"])
        elif row.numerics is not None and canonical_json(row.numerics) != canonical_json(answer["numerics"]):
            changed = sorted(key for key in answer["numerics"] if answer["numerics"][key] != row.numerics.get(key))
            _LOG.warning("study %s resumes under other numerics (%s): its bits will differ from an undisturbed run",
                         row.name, ", ".join(f"{key}: {row.numerics.get(key)} -> {answer['numerics'][key]}"
                                             for key in changed))
            self._ledger.event("numerics_changed", study=row.name, before=row.numerics, after=answer["numerics"])
        return RunningStudy(row.name, config, from_dict(FrozenStudy, answer["frozen"]))

    async def _prepare(self, study: RunningStudy) -> None:
        if self._ledger.last_round(study.name) is None:
            self._ledger.open_round(study.name, 0, start_digest="", sample=(), phases=())
        settings = study.config.study
        wanted = settings.labelled_only_baseline and study.frozen.num_test > 0 and study.frozen.num_labelled > 0
        if wanted and self._ledger.study(study.name).baseline is None:
            _LOG.info("training on %d labelled images alone, %d epochs: the line to beat", study.frozen.num_labelled,
                      settings.baseline_epochs)
            baseline = await self._call("baseline", {"epochs": settings.baseline_epochs},
                                        activity="training on labels only")
            self._ledger.set_study_facts(study.name, baseline=baseline)
            if "accuracy" in baseline.get("metrics", {}):
                _LOG.info("labels alone reach an accuracy of %.4f", baseline["metrics"]["accuracy"])
        if await self._stopped(study.name):
            return
        doing = "training on labels" if study.frozen.num_labelled else "the first model"
        answer = await self._call("prepare", {}, activity=f"round 0: {doing}")
        with self._ledger.transaction():
            self._ledger.set_round_state(study.name, 0, RoundState.EVALUATING, state_digest=answer["state"],
                                         metrics=answer["metrics"])
            self._ledger.commit_round(study.name, 0, metrics=answer["metrics"])
        self._accountant.settle(study=study.name, round=0, phase="standby")
        self._log_round(study, 0, answer["metrics"])

    async def _wait_for_silos(self, study: RunningStudy) -> bool:
        """Until as many silos have joined as the study starts with; False when the operator stops it before."""
        while not await self._stopped(study.name):
            self._ledger.move_study(study.name, StudyState.PREPARING, StudyState.WAITING)
            if self._ledger.study_state(study.name) is StudyState.RUNNING:
                return True
            if not await self._members(study, study.config.study.start_with):
                return False
            self._ledger.move_study(study.name, StudyState.WAITING, StudyState.RUNNING)
        return False

    async def _members(self, study: RunningStudy, wanted: int) -> list[str]:
        """The roster once it has `wanted` silos; empty when the operator stops the study before."""
        while not await self._stopped(study.name):
            if len(members := self._roster.members()) >= wanted:
                return members
            self._bulletin.reason, self._bulletin.activity = StandbyReason.WAITING_FOR_SILOS, ""
            self._bulletin.text = f"{len(members)} of {wanted} silos have joined"
            await self._bulletin.wait(1.0)
        return []

    async def _available(self, study: RunningStudy) -> tuple[list[str], int]:
        """Members that may be asked in a round, once there is a quorum of them, and how many to ask.

        Those who are away by their own policy (outside working hours, daily budget used up) are not asked: a round in
        which they are missed would only wait for its deadline. Nobody, when the operator stops the study before.
        """
        participation, told = study.config.participation, False
        while True:
            members = await self._members(study, 1)
            away = self._roster.away_until(self._clock())
            there = [silo for silo in members if silo not in away]
            size = min(participation.sample_size(len(members)), len(there)) if members else 0
            enough = len(there) >= max(1, participation.quorum_of(participation.sample_size(len(members))))
            if not members or enough or await self._stopped(study.name):
                if told:
                    self._bulletin.text = ""
                return (there, size) if enough else ([], 0)
            back = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(away[silo] for silo in members if silo in away)))
            if not told:
                _LOG.info("too few silos to open a round: %s away by their own policy; the next is back on %s",
                          ", ".join(silo for silo in members if silo in away), back)
                told = True
            self._bulletin.reason, self._bulletin.activity = StandbyReason.WAITING_FOR_SILOS, ""
            self._bulletin.text = (f"{len(members) - len(there)} of {len(members)} silos are away by their own policy, "
                                   f"the next is back on {back}")
            await self._bulletin.wait(1.0)

    # Rounds -----------------------------------------------------------------------------------------------------------

    async def _round(self, study: RunningStudy, number: int) -> None:
        row = self._ledger.last_round(study.name)
        if row is None or row.number < number:
            members, size = await self._available(study)
            if not members:
                return
            row = await self._open_round(study, number, members, size)
        self._bulletin.set(round=number)
        while row.state not in _ROUND_OVER:
            if await self._stopped(study.name):
                return
            if row.state is RoundState.PREPARING:
                await self._open_phase(study, row)
            elif row.state is RoundState.COLLECTING:
                await self._collect(study, row)
            elif row.state is RoundState.AGGREGATING:
                await self._aggregate(study, row)
            else:
                await self._commit(study, row)
            row = self._ledger.round(study.name, number)

    async def _open_round(self, study: RunningStudy, number: int, members: list[str], size: int) -> RoundRow:
        start = self._ledger.committed_digest(study.name)
        phases = (await self._call("phases", {"state": start, "round": number}, activity="opening the round"))["phases"]
        generator = numpy_generator(study.config.study.seed, "sample", round=number)
        chosen = generator.choice(len(members), size=size, replace=False)
        sample = sorted((members[index] for index in chosen), key=str.encode)
        return self._ledger.open_round(study.name, number, start_digest=start, sample=sample, phases=phases)

    async def _open_phase(self, study: RunningStudy, row: RoundRow) -> None:
        phase = row.phases[row.phase]
        members = self._roster.members()
        asked = [silo for silo in (row.sample if phase["asks"] == "sample" else members) if silo in members]
        self._bulletin.set(reason=StandbyReason.COORDINATOR_WORKING, phase=phase["name"])
        answer = await self._call("tasks", {
            "state": row.state_digest, "round": row.number, "phase": phase,
            "silos": {silo: self._ledger.silo_state(study.name, silo, round=row.number)[1]
                      for silo in asked},
            "held": {silo: sorted(self._bulletin.held.get(silo, ())) for silo in asked},
            "link_bytes_per_second": self._slowest_link(asked)}, activity="writing tasks")
        now = self._clock()
        participation = study.config.participation
        quorum = participation.quorum_of(len(row.sample)) if phase["quorum"] == "study" else 0
        opened = PhaseRow(study=study.name, round=row.number, number=row.phase, name=phase["name"],
                          quorum=quorum, opened_unix=now, deadline_unix=now + participation.timeout_seconds,
                          limit_unix=now + participation.limit_seconds, closed_unix=None, expects=answer["expects"])
        tasks = [self._task_spec(study, row, phase["name"], silo, answer["tasks"][silo], opened.deadline_unix)
                 for silo in asked]
        self._accountant.settle(study=study.name, round=row.number, phase="standby")
        self._ledger.open_phase(opened, tasks)
        self._resumed = False
        self._bulletin.silos.clear()
        self._bulletin.set(reason=StandbyReason.NOT_SAMPLED, activity="")
        _LOG.info("round %d/%d: phase %s opened for %s", row.number, study.config.study.rounds, phase["name"],
                  ", ".join(asked) or "nobody")

    def _task_spec(self, study: RunningStudy, row: RoundRow, phase: str, silo: str, task: dict[str, Any],
                   deadline_unix: float) -> TaskSpec:
        model: ModelSettings = study.config.model
        return TaskSpec(
            task_id=f"{study.name}/{row.number}/{row.phase}-{phase}/{silo}", study=study.name, round=row.number,
            rounds=study.config.study.rounds, phase=phase, silo=silo, method=study.config.method.name,
            settings=task["settings"],
            model=ModelSettings(name=model.name, classes=study.frozen.classes, normalisation=model.normalisation),
            image=from_dict(ImageForm, to_dict(study.frozen.image)), augmentation=study.config.augmentation,
            numerics=study.config.numerics,
            payloads=tuple(from_dict(PayloadRef, payload) for payload in task["payloads"]),
            last_folded_round=self._ledger.silo_state(study.name, silo)[0], seed=study.config.study.seed,
            deadline_unix=deadline_unix, uplink=study.config.wire.uplink_form())

    async def _collect(self, study: RunningStudy, row: RoundRow) -> None:
        phase = self._ledger.phase(study.name, row.number, row.phase)
        if self._resumed:
            # The coordinator was away: what silos could not deliver meanwhile must not count against them.
            participation, now = study.config.participation, self._clock()
            self._ledger.move_deadline(
                phase, deadline_unix=max(phase.deadline_unix, now + participation.timeout_seconds),
                limit_unix=max(phase.limit_unix, now + participation.limit_seconds))
            self._resumed = False
            phase = self._ledger.phase(study.name, row.number, row.phase)
        told = False
        self._bulletin.set(reason=StandbyReason.NOT_SAMPLED, phase=phase.name, activity="")
        while True:
            if await self._stopped(study.name):
                return
            states = self._ledger.task_states(study.name, row.number, row.phase)
            waiting = [silo for silo, state in states.items() if state is TaskState.OPEN]
            answered = sum(state in (TaskState.UPDATED, TaskState.ABSTAINED, TaskState.REFUSED)
                           for state in states.values())
            phase = self._ledger.phase(study.name, row.number, row.phase)
            now = self._clock()
            if not waiting:
                if answered >= phase.quorum:
                    break
                self._fail_round(study, row, f"{answered} of {phase.quorum} answers, and no other silo is left to ask")
                return
            if now >= phase.deadline_unix and answered >= phase.quorum:
                _LOG.warning("round %d: closed at its deadline without %s", row.number, ", ".join(waiting))
                break
            away = self._roster.away_until(now)
            if answered >= phase.quorum and all(away.get(silo, 0.0) >= phase.deadline_unix for silo in waiting):
                _LOG.warning("round %d: closed without %s, away by their own policy until after its deadline",
                             row.number, ", ".join(waiting))
                break
            if now >= phase.limit_unix:
                self._fail_round(study, row, f"{answered} of {phase.quorum} answers within round_limit;"
                                             f" missing: {', '.join(waiting)}")
                return
            if now >= phase.deadline_unix and not told:
                _LOG.warning("round %d: past its deadline with %d of %d answers; waiting on for %s", row.number,
                             answered, phase.quorum, ", ".join(waiting))
                told = True
            end = phase.deadline_unix if now < phase.deadline_unix else phase.limit_unix
            await self._bulletin.wait(min(end - now, 60.0) + 0.001)
        self._accountant.settle(study=study.name, round=row.number, phase=phase.name)
        self._ledger.close_phase(phase)
        self._bulletin.set(reason=StandbyReason.COORDINATOR_WORKING)

    def _fail_round(self, study: RunningStudy, row: RoundRow, reason: str) -> None:
        _LOG.error("round %d failed: %s; the model stays as it was", row.number, reason)
        self._ledger.fail_round(row, reason=reason)
        self._empty_spool(study, row.number)
        self._bulletin.notify()

    async def _aggregate(self, study: RunningStudy, row: RoundRow) -> None:
        self._bulletin.set(reason=StandbyReason.COORDINATOR_WORKING)
        accepted = self._ledger.accepted_updates(study.name, row.number, row.phase)
        answer = await self._call("aggregate", {
            "state": row.state_digest, "round": row.number, "phase": row.phases[row.phase],
            "updates": [{"silo": task.silo, "num_examples": update.example_count, "metrics": update.metrics,
                         "path": str(self._spool.path(update.digest)),
                         "kept": self._ledger.silo_state(study.name, task.silo, round=row.number)[1]}
                        for task, update in accepted]},
            activity=f"aggregating {len(accepted)} updates")
        metrics = {**row.metrics, **answer.get("metrics", {})}
        with self._ledger.transaction(lasting=False):
            self._ledger.folded(study.name, row.number, answer["kept"])
            if row.phase + 1 < len(row.phases):
                self._ledger.set_round_state(study.name, row.number, RoundState.PREPARING, metrics=metrics,
                                             state_digest=answer["state"], phase=row.phase + 1)
            else:
                self._ledger.set_round_state(study.name, row.number, RoundState.EVALUATING, metrics=metrics,
                                             state_digest=answer["state"])

    async def _commit(self, study: RunningStudy, row: RoundRow) -> None:
        answer = await self._call("evaluate", {"state": row.state_digest, "round": row.number}, activity="evaluating")
        self._accountant.settle(study=study.name, round=row.number, phase="standby")
        metrics = {**row.metrics, **answer["metrics"]}  # of its phases, then of its model
        self._ledger.commit_round(study.name, row.number, metrics=metrics)
        self._collect_garbage(study)
        self._log_round(study, row.number, metrics)

    def _collect_garbage(self, study: RunningStudy) -> None:
        """Removes files that no row needs any more; only ever called after a commit."""
        last = self._ledger.last_round(study.name)
        assert last is not None
        self._empty_spool(study, last.number)
        self._payloads.collect(set())
        keep = states_to_keep(self._ledger.rounds(study.name), every=study.config.study.keep_every)
        keep |= self._ledger.kept_digests(study.name)
        for file in (self._folders.studies / study.name / "states").glob(f"*{_STATE_ENDING}"):
            if file.name.removesuffix(_STATE_ENDING) not in keep:
                file.unlink(missing_ok=True)

    def _empty_spool(self, study: RunningStudy, number: int) -> None:
        """Removes the updates of a round that is over, also those of which only a part has come."""
        for update_id in self._ledger.unfinished_updates(study.name, number):
            self._spool.drop_partial(update_id)
        self._spool.collect(set())

    # Shared -----------------------------------------------------------------------------------------------------------

    async def _call(self, operation: str, arguments: dict[str, Any], *, activity: str) -> dict[str, Any]:
        """One step of the compute process; a step that died is tried again, since it gives the same bits.

        The fresh process opens the study again by itself (`common.compute`).
        """
        self._bulletin.set(activity=activity)
        for attempt in range(1, _COMPUTE_ATTEMPTS + 1):
            try:
                return await self._compute.call(operation, arguments, on_progress=self._bulletin.progress)
            except ComputeFailed as error:
                if attempt == _COMPUTE_ATTEMPTS:
                    raise
                _LOG.warning("%s: %s; trying again", operation, error.line())
        raise AssertionError("unreachable")

    async def _stopped(self, name: str) -> bool:
        """Waits while the study is paused; True when the operator has stopped it."""
        if self._ledger.study_state(name) is StudyState.PAUSED:
            board = self._bulletin
            before = (board.reason, board.text, board.activity)
            _LOG.info("study %s is paused; go on with: coordinator resume", name)
            board.set(reason=StandbyReason.PAUSED, text="paused", activity="")
            while self._ledger.study_state(name) is StudyState.PAUSED:
                await board.wait(1.0)
            board.set(reason=before[0], text=before[1], activity=before[2])
            _LOG.info("study %s is %s", name, self._ledger.study_state(name))
        return self._ledger.study_state(name) is StudyState.STOPPED

    async def _export(self, name: str) -> None:
        """Writes the model of the last committed round, for others to use."""
        digest = self._ledger.committed_digest(name)
        model = self._folders.studies / name / "model.safetensors"
        await self._call("export", {"state": digest, "path": str(model)}, activity="writing the model")
        self._ledger.event(_WRITTEN, study=name, state_digest=digest)

    async def _tidy_up(self) -> None:
        """Ends the open round of studies that the operator has stopped, perhaps while nobody served, and writes the
        model of their last committed round."""
        for row in self._ledger.studies():
            if row.state is StudyState.STOPPED:
                self._cancel_open_round(row.name)
                digest = self._ledger.committed_digest(row.name)
                if digest and not self._is_written(row.name, digest):
                    await self._write_model_of_stopped(row, digest)
                if self._bulletin.study == row.name and self._bulletin.reason is not StandbyReason.NO_STUDY:
                    _LOG.info("study %s is stopped", row.name)
                    self._bulletin.set(reason=StandbyReason.NO_STUDY, text=f"study {row.name} was stopped",
                                       activity="", phase="")

    def _cancel_open_round(self, name: str) -> None:
        row = self._ledger.last_round(name)
        if row is None or row.state in _ROUND_OVER:
            return
        with self._ledger.transaction():
            for task in self._ledger.tasks(name, row.number, row.phase):
                if task.state is TaskState.OPEN:
                    self._ledger.close_task(task, TaskState.CANCELLED, reason="the study was stopped")
            self._ledger.set_round_state(name, row.number, RoundState.CANCELLED)
        for update_id in self._ledger.unfinished_updates(name, row.number):
            self._spool.drop_partial(update_id)
        self._spool.collect(set())

    def _is_written(self, name: str, digest: str) -> bool:
        """Whether the model of a state was written, or could not be."""
        return bool(self._ledger.query(
            "SELECT 1 FROM event WHERE study = ? AND kind IN (?, ?) AND json_extract(detail_json, '$.state_digest') = ?"
            " LIMIT 1", name, _WRITTEN, _NOT_WRITTEN, digest))

    async def _write_model_of_stopped(self, row: StudyRow, digest: str) -> None:
        try:
            if self._opened != row.name:  # it was stopped while nobody served
                await self._open(row, config_from_dict(row.config, where=f"study {row.name}"))
            await self._export(row.name)
        except DiskFull:
            raise
        except SemisiloError as error:
            _LOG.error("study %s is stopped, but its model could not be written: %s", row.name, error.line())
            self._ledger.event(_NOT_WRITTEN, study=row.name, state_digest=digest, reason=error.line())

    def _log_round(self, study: RunningStudy, number: int, metrics: dict[str, float]) -> None:
        missing = "no accuracy yet" if study.frozen.num_test else "no test set"
        accuracy = f"accuracy {metrics['accuracy']:.4f}" if "accuracy" in metrics else missing
        _LOG.info("round %d/%d committed: %s", number, study.config.study.rounds, accuracy)
