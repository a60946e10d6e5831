"""What must hold at the end of every run, whatever went wrong in it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.audit.record import find_head
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import rollbacks_of
from semisilo.coordinator.ledger.oversight.table_check import compare_tables
from semisilo.coordinator.ledger.records import RoundRow
from semisilo.coordinator.ledger.secure_sums.sums import sum_row
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.silo.site.audit_heads import SeenHead, read_heads
from semisilo.silo.site.memory import SiloMemory
from tests.simulator.disk import Folder
from tests.simulator.schedule import COORDINATOR
from tests.simulator.training import (
    ZEROS,
    Numbers,
    abstains,
    delta_of,
    digest_of,
    examples_of,
    first_vector,
    folded,
    frozen_vector,
    kept_after,
    mean_of_words,
    memory_after,
    words_of,
)

if TYPE_CHECKING:
    from tests.simulator.federation import SimulatedFederation

__all__ = ["broken_invariants"]


def broken_invariants(federation: SimulatedFederation) -> list[str]:
    """What does not hold; the study has ended."""
    machine = federation.machines[COORDINATOR]
    if machine.life is None or not machine.life.alive:
        machine.begin()
    assert machine.life is not None
    ledger = machine.life.context.copy().run(lambda: Ledger(Path(f"/~{COORDINATOR}/ledger.sqlite")))
    found: list[str] = []
    for study in ledger.studies():
        if study.state is not StudyState.COMPLETED:
            return [f"the study is {study.state}: {study.reason}"]
        found += _bits(federation, ledger, study.name)
        found += _once(ledger, study.name)
        found += _bytes(federation, ledger, study.name)
        found += _memory(federation, ledger, study.name)
        found += _files(federation, ledger, study.name)
    found += _heads(federation, ledger)
    return found


def _bits(federation: SimulatedFederation, ledger: Ledger, study: str) -> list[str]:
    """The same bits as an undisturbed run with the same accepted updates; and where every silo must answer, that all
    have."""
    found: list[str] = []
    silos = federation.schedule.silos
    w = first_vector(study)
    memory: dict[str, Numbers] = dict.fromkeys(silos, ZEROS)
    kept: dict[str, Numbers | None] = dict.fromkeys(silos)
    last: dict[str, int] = dict.fromkeys(silos, 0)
    f = frozen_vector()
    doubtful = set[str]()
    """Silos that were sent back: what they remember may be of a round that is gone, and is dropped then."""
    gone = [each for each in rollbacks_of(ledger, study) if each.origin != "coordinator"]
    for row in ledger.rounds(study):
        if row.number == 0:
            if row.state_digest != digest_of(w):
                found.append("round 0 has another state")
            continue
        if any(each.number == row.number for back in gone for each in back.rounds):
            doubtful |= {silo for silo in silos if memory[silo].any()}
        if row.state is RoundState.FAILED:
            found.append(f"round {row.number} has failed: {row.reason}")
            continue
        if row.state is RoundState.CANCELLED and federation.schedule.studies > 1 and federation.schedule.masked:
            continue  # the study was stopped; only without masks is the round done again
        if row.state is not RoundState.COMPLETED:
            found.append(f"round {row.number} is {row.state}")
            continue
        answered = {silo for number in range(len(row.phases))
                    for silo, state in ledger.task_states(study, row.number, number).items()
                    if state in (TaskState.UPDATED, TaskState.ABSTAINED)}
        asked_again = sorted(doubtful & answered)
        tries = [_Played(federation, ledger, row, w, f, memory | dict.fromkeys(dropped, ZEROS), kept)
                 for number in range(len(asked_again) + 1)
                 for dropped in itertools.combinations(asked_again, number)] if asked_again else [
            _Played(federation, ledger, row, w, f, memory, kept)]
        played = next((each for each in tries if digest_of(each.w) == row.state_digest), tries[0])
        doubtful -= answered
        memory = dict(played.memory)
        found += played.found
        for silo in played.folded - played.incomplete:
            memory[silo], kept[silo] = played.pending[silo], played.pending_kept.get(silo)
            last[silo] = row.number
        w = played.w
        if row.state_digest != digest_of(w):
            found.append(f"round {row.number} has other bits than an undisturbed run")
            break
    for silo in silos:
        have, digest = ledger.silo_state(study, silo)
        if have != last[silo]:
            found.append(f"{silo}: round {have} counts as folded last, but it was {last[silo]}")
        want = kept[silo]
        if digest != (None if want is None else digest_of(np.asarray(want, dtype=np.float32))):
            found.append(f"{silo}: what the strategy keeps is not what follows from its updates")
    return found


class _Played:
    """A round as its accepted updates make it."""

    def __init__(self, federation: SimulatedFederation, ledger: Ledger, row: RoundRow, w: Numbers, f: Numbers,
                 memory: Mapping[str, Numbers], kept: Mapping[str, Numbers | None]) -> None:
        schedule, silos, study = federation.schedule, federation.schedule.silos, row.study
        self.memory = memory
        self.pending: dict[str, Numbers] = {}
        self.pending_kept: dict[str, Numbers] = {}
        self.folded: set[str] = set()
        self.incomplete: set[str] = set()
        """Silos of which a phase has no answer."""
        self.found: list[str] = []
        now, pending, pending_kept = w, self.pending, self.pending_kept
        incomplete, folded_now = self.incomplete, self.folded
        for number, phase in enumerate(row.phases):
            states = ledger.task_states(study, row.number, number)
            if phase.step not in ("", "mask"):  # whoever drops out here may be in the sum all the same
                continue
            updates = []
            plain_sum, form = None, None
            if phase.step:
                sum_of = sum_row(ledger, study, row.number, phase.name)
                form = sum_of.form
                too_few = sum(state is TaskState.UPDATED for state in states.values()) < sum_of.threshold
            for silo, state in states.items():
                c = pending_kept.get(silo, kept[silo])
                delta = delta_of(now, ZEROS if c is None else c, memory[silo], f, round=row.number, phase=phase.name,
                                 silo=silo)
                quiet = abstains(silo, round=row.number, phase=phase.name)
                if state is TaskState.UPDATED and not quiet and form is not None:
                    words = words_of(delta, form, silo=silo, round=row.number, phase=phase.name)
                    plain_sum = words if plain_sum is None else plain_sum + words
                    updates.append((examples_of(silo), delta))
                    pending[silo] = memory_after(memory[silo], delta)
                    folded_now.add(silo)
                elif state is TaskState.UPDATED and not quiet:
                    updates.append((examples_of(silo), delta))
                    pending[silo] = memory_after(memory[silo], delta)
                    pending_kept[silo] = kept_after(ZEROS if c is None else c, delta)
                    folded_now.add(silo)
                elif state is TaskState.ABSTAINED and quiet:
                    pending[silo] = memory_after(memory[silo], delta)
                elif state in (TaskState.UPDATED, TaskState.ABSTAINED):
                    self.found.append(f"round {row.number}: {silo} has {state}, which it does not do there")
                else:
                    incomplete.add(silo)
                    if form is not None and too_few and state is TaskState.REFUSED:
                        continue  # left out
                    if schedule.quorum == len(silos) and state is not TaskState.EXPIRED:
                        self.found.append(f"round {row.number}: {silo} has {state}")
            answered = sum(state in (TaskState.UPDATED, TaskState.ABSTAINED) for state in states.values())
            if not phase.step and answered < schedule.quorum:
                self.found.append(f"round {row.number} has {answered} answers and a quorum of {schedule.quorum}")
            if schedule.quorum == len(silos) and len(states) != len(silos):
                self.found.append(f"round {row.number} asked {sorted(states)}")
            if form is not None and plain_sum is not None:
                mean, _ = mean_of_words(plain_sum, form, silos=len(updates))
                now = (now + mean).astype(np.float32)
            elif updates:
                now = folded(now, updates)
        self.w = now


def _once(ledger: Ledger, study: str) -> list[str]:
    """A round commits once, a task is answered once, an update is folded once; no event was altered."""
    found = []
    ledger.check_events()
    rows = ledger.query("SELECT kind, detail_json FROM event WHERE study = ?", study)
    import json

    completed = Counter(json.loads(row["detail_json"])["round"] for row in rows if row["kind"] == "round_completed")
    completed.subtract(each.number for gone in rollbacks_of(ledger, study) for each in gone.rounds
                       if each.state is RoundState.COMPLETED)
    found += [f"round {number} was committed {count} times" for number, count in completed.items() if count != 1]
    answers = Counter((each["round"], each["silo"], each["update_id"]) for row in rows if row["kind"] == "task_updated"
                      for each in [json.loads(row["detail_json"])])
    found += [f"{which} was accepted {count} times" for which, count in answers.items() if count != 1]
    found += [f"task {row['task_id']} has {row['n']} accepted updates" for row in ledger.query(
        "SELECT task_id, count(*) AS n FROM declared_update WHERE accepted_unix IS NOT NULL GROUP BY task_id"
        " HAVING n > 1")]
    found += [f"update {row['update_id']} counts as folded = {row['folded']}" for row in ledger.query(
        "SELECT update_id, folded FROM declared_update JOIN task USING (update_id) JOIN round"
        " ON round.study = task.study AND round.number = task.round"
        " WHERE task.study = ? AND folded <> (round.state = ?)", study, RoundState.COMPLETED)]
    return found


def _bytes(federation: SimulatedFederation, ledger: Ledger, study: str) -> list[str]:
    """Every byte counts once: accepted payloads exactly, messages never more than have crossed, and all of them when
    the coordinator did not die."""
    found = []
    up: Counter[tuple[int, str, str]] = Counter()
    for row in ledger.query("SELECT round, phase, silo, sum(bytes) AS bytes FROM cost WHERE study = ? AND kind ="
                            " 'payload' AND direction = 'up' GROUP BY round, phase, silo", study):
        up[row["round"], row["phase"], row["silo"]] += row["bytes"]
    want: Counter[tuple[int, str, str]] = Counter()
    for row in ledger.query("SELECT task.round, phase.name, silo, size_bytes FROM declared_update JOIN task USING"
                            " (update_id) JOIN phase ON phase.study = task.study AND phase.round = task.round AND"
                            " phase.number = task.phase WHERE accepted_unix IS NOT NULL AND task.study = ?", study):
        want[row["round"], row["name"], row["silo"]] += row["size_bytes"]
    # A round that was done again has cost what both tries did, of which the trail alone knows the first.
    tries = ledger.query("SELECT json_extract(detail_json, '$.round') AS round, json_extract(detail_json, '$.silo') AS"
                         " silo, json_extract(detail_json, '$.bytes') AS bytes FROM event WHERE study = ? AND kind ="
                         " 'task_updated'", study)
    told, counted_up = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for row in tries:
        told[row["round"], row["silo"]] += row["bytes"]
    for (number, _, silo), amount in up.items():
        counted_up[number, silo] += amount
    if told != counted_up:
        found.append(f"payloads up: the trail tells of {sorted(told.items())}, and {sorted(counted_up.items())} were"
                     " counted")
    for again in {each.number for gone in rollbacks_of(ledger, study) for each in gone.rounds}:
        for counts in (up, want):
            for key in [key for key in counts if key[0] == again]:
                del counts[key]
    if up != want:
        found.append(f"payloads up: counted {sorted((up - want).items())} too much, {sorted((want - up).items())}"
                     " too little")
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in ledger.query("SELECT item, silo, direction, sum(bytes) AS bytes FROM cost WHERE kind = 'message'"
                            " GROUP BY item, silo, direction"):
        counted[row["item"], row["silo"], row["direction"]] += row["bytes"]
    crossed = federation.network.counted
    for key, amount in counted.items():
        if amount > crossed[key]:
            found.append(f"messages {key}: {amount} bytes counted, {crossed[key]} have crossed")
    return found


def _memory(federation: SimulatedFederation, ledger: Ledger, study: str) -> list[str]:
    """What a silo remembers is what the ledger counts on."""
    found = []
    for silo in federation.schedule.silos:
        folder = Path(f"/~{silo}")
        machine = federation.machines[silo]
        if machine.life is None or not machine.life.alive:
            machine.begin()
        memory = SiloMemory(folder / "memory", outgoing=folder / "outgoing")
        rotten = any(death.rots for death in federation.schedule.deaths_of(silo))
        if rotten:  # then the answer that was accepted may lie there with another byte: nobody needs it any more
            for kept in memory._index.studies.values():
                if kept.pending is not None and memory._index.studies.get(study) is kept:
                    memory._index.studies[study] = replace(kept, pending=replace(kept.pending, payload=None))
        folded = ledger.silo_state(study, silo)[0]
        if not memory.is_sound(study, folded) and not _awaits_rollback(memory, ledger, study, silo):
            found.append(f"{silo}: its memory is not that of round {folded}")
    return found


def _awaits_rollback(memory: SiloMemory, ledger: Ledger, study: str, silo: str) -> bool:
    """Whether a silo still has, whole, what it remembered before the study went back, and has answered no task since: a
    task is what tells it."""
    kept, back = memory._index.studies.get(study), rollbacks_of(ledger, study)
    if not back or kept is None or kept.committed is None:
        return False
    answered = ledger.query("SELECT 1 FROM task WHERE study = ? AND silo = ? AND round > ? AND state IN (?, ?)", study,
                            silo, back[-1].to_round, TaskState.UPDATED, TaskState.ABSTAINED)
    return not answered and memory.is_sound(study, kept.committed.round)


def _files(federation: SimulatedFederation, ledger: Ledger, study: str) -> list[str]:
    """States that the ledger counts on are there; nothing of a round that is over is left in the spool."""
    folder, found = Path(f"/~{COORDINATOR}"), []
    states = {path.name for path in (folder / "studies" / study / "states").iterdir()}
    digest = ledger.committed_digest(study)
    if f"{digest}.safetensors" not in states:
        found.append("the last state is not there")
    if not (folder / "studies" / study / "model.safetensors").exists():
        found.append("the study has left no model")
    spool = federation.machines[COORDINATOR].disk.entry(str(folder / "spool"))
    assert isinstance(spool, Folder)
    # What was removed may be there again after a loss of power; the next round of any study removes it.
    if left := spool.names.keys() - spool.returned - {"incoming"}:
        found.append(f"the spool still has {len(left)} updates")
    return found


def _heads(federation: SimulatedFederation, ledger: Ledger) -> list[str]:
    """The audit trail holds every head of it that a silo has seen, and says what the tables hold."""
    silos = federation.schedule.silos
    seen = [(silo, head) for silo in silos for head in read_heads(Path(f"/~{silo}/heads.jsonl"))]
    walk = ChainWalk({head.signed.head.number for _, head in seen if isinstance(head, SeenHead)})
    found = [f"the audit trail: {problem}" for problem in compare_tables(ledger, walk)]
    for silo, head in seen:
        if isinstance(head, SeenHead):
            problem = head.problem or find_head(head.signed.head, walk).problem
        else:
            problem = head.reason
        if problem:
            found.append(f"{silo}: head {head.line} of the audit trail: {problem}")
    if len({silo for silo, _ in seen}) < len(silos) and federation.schedule.quorum == len(silos):
        found.append("a silo has seen no head of the audit trail")
    return found
