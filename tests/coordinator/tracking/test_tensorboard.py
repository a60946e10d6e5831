"""TensorBoard's own reader finds every round once, whatever was killed, and nothing heavy is loaded to write it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import SemisiloError
from semisilo.coordinator.ledger.costs import costs_of, total_bytes
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.rollback import roll_back
from semisilo.coordinator.ledger.states import StudyState, TaskState
from semisilo.coordinator.ledger.tasks import answers_of_study
from semisilo.coordinator.ledger.tracking import studies_with_results
from semisilo.coordinator.tracking import tensorboard_files
from semisilo.coordinator.tracking.facts import RoundReader
from semisilo.coordinator.tracking.tensorboard_files import event_file, write_events
from tests.coordinator.ledger_fixture import (
    LABELLED_ONLY,
    SILOS,
    UNEVEN_ALONE,
    Filled,
    accuracy_after,
    answer,
    fill_study,
    open_collecting_round,
)

pytest.importorskip("tensorboard")


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=9, done=7, complete=False)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    found.Reload()
    return found


def points(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in found.Scalars(tag)]


def steps_in(path: Path) -> list[int]:
    """The rounds that a file holds, in order; none when there is no file. Goes on where TensorBoard's reader gives
    up."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        return [event.step for event, _ in tensorboard_files._events(file) if event.HasField("summary")]


def commit(filled: Filled, number: int) -> None:
    with filled.ledger.transaction():
        _commit(filled.ledger, number)


def _commit(ledger: Ledger, number: int) -> None:
    open_collecting_round(ledger, "first", number, SILOS)
    for silo in SILOS:
        answer(ledger, "first", number, silo, TaskState.UPDATED, ratio=0.7)
    ledger.close_phase(ledger.phase("first", number, 0))
    ledger.set_round_state("first", number, "evaluating")  # type: ignore[arg-type]
    ledger.commit_round("first", number, metrics={"accuracy": 0.5})


def test_tensorboard_reads_accuracy_bytes_and_label_ratios_of_every_round(filled: Filled, tmp_path: Path) -> None:
    assert write_events(filled.ledger, "first", tmp_path / "tb") == 8
    found = read(tmp_path / "tb")
    accuracy = points(found, "model/accuracy")
    assert [step for step, _ in accuracy] == list(range(8))
    assert accuracy[7][1] == pytest.approx(accuracy_after(7))
    assert points(found, "model/labelled_only_accuracy") == [(step, pytest.approx(LABELLED_ONLY)) for step in range(8)]
    assert [step for step, _ in points(found, f"label_ratio/{SILOS[0]}")] == [1, 2, 3, 4, 6, 7], "late in round 5"
    assert points(found, "silos/abstained") == [(3, 1.0)]
    costs = costs_of(filled.ledger, "first")
    assert points(found, "bytes_so_far/wire")[-1][1] == pytest.approx(total_bytes(costs, kind="wire"), rel=1e-6)
    second = total_bytes([cost for cost in costs if cost.round == 2], kind="payload", direction="down")
    assert dict(points(found, "bytes/payload_down"))[2] == pytest.approx(second, rel=1e-6)
    assert dict(points(found, "seconds/round"))[4] == pytest.approx(4, abs=0.1)
    text, = found.Tensors("settings")
    assert b"| method.settings.lr | 0.03 |" in text.tensor_proto.string_val[0]


def test_the_line_of_labels_alone_that_comes_later_is_given_to_the_rounds_before_it_once(
        filled: Filled, tmp_path: Path) -> None:
    baseline = filled.ledger.study("first").baseline
    with filled.ledger.transaction() as db:
        db.execute("UPDATE study SET baseline_json = NULL")
    before, = studies_with_results(filled.ledger)
    assert write_events(filled.ledger, "first", tmp_path / "tb") == 8
    assert "model/labelled_only_accuracy" not in read(tmp_path / "tb").Tags()["scalars"]
    filled.ledger.set_study_facts("first", baseline=baseline)
    assert studies_with_results(filled.ledger) != [before], "there is something new to tell"
    commit(filled, 8)
    for _ in range(2):
        write_events(filled.ledger, "first", tmp_path / "tb")
        found = read(tmp_path / "tb")
        assert points(found, "model/labelled_only_accuracy") == [
            (step, pytest.approx(LABELLED_ONLY)) for step in range(9)]
        assert [step for step, _ in points(found, "model/accuracy")] == list(range(9))


def test_classes_of_pseudo_labels_are_a_histogram(filled: Filled, tmp_path: Path) -> None:
    filled.ledger.query("UPDATE task SET metrics_json = ? WHERE round = 2",
                        '{"pseudo_labels/0": 3.0, "pseudo_labels/2": 5.0, "pseudo_labels/x": 1.0, "label_ratio": 0.5}')
    write_events(filled.ledger, "first", tmp_path)
    histogram, = read(tmp_path).Histograms("pseudo_labels")
    assert histogram.step == 2
    assert list(zip(histogram.histogram_value.bucket_limit, histogram.histogram_value.bucket, strict=True)) == [
        (0.5, 3.0 * len(SILOS)), (1.5, 0.0), (2.5, 5.0 * len(SILOS))]


@pytest.mark.parametrize("name", ["pseudo_labels/\u00b2", "pseudo_labels/99999999999", "pseudo_labels/10"])
def test_a_class_that_no_study_has_stops_no_tracker_whatever_a_ledger_holds(filled: Filled, name: str) -> None:
    filled.ledger.query("UPDATE task SET metrics_json = ? WHERE round = 2",
                        json.dumps({name: 1.0, "pseudo_labels/1": 2.0}))
    found, = (facts for facts in RoundReader(filled.ledger, "first").rounds_after(1) if facts.number == 2)
    assert found.pseudo_labels == (0.0, 2.0 * len(SILOS))


def test_a_silo_counts_for_no_more_pseudo_labels_than_its_update_has_images(filled: Filled) -> None:
    filled.ledger.query("UPDATE task SET metrics_json = ? WHERE round = 2", json.dumps(
        {"pseudo_labels/0": 2.0, "pseudo_labels/1": 1e300, "label_ratio": 1e300}))
    images = sum(answer.example_count or 0 for answer in answers_of_study(filled.ledger, "first", first=2, last=2))
    found, = (facts for facts in RoundReader(filled.ledger, "first").rounds_after(1) if facts.number == 2)
    assert found.pseudo_labels == (2.0 * len(SILOS), float(images))
    assert {found.scalars[f"label_ratio/{silo}"] for silo in SILOS} == {1.0}


def test_a_round_is_written_once_however_often_it_is_asked_for(filled: Filled, tmp_path: Path) -> None:
    out, reader = tmp_path / "tb", RoundReader(filled.ledger, "first")
    assert write_events(filled.ledger, "first", out, reader=reader) == 8
    before = next(out.iterdir()).read_bytes()
    assert write_events(filled.ledger, "first", out, reader=reader) == 0
    assert next(out.iterdir()).read_bytes() == before
    commit(filled, 8)
    assert write_events(filled.ledger, "first", out, reader=reader) == 1
    assert next(out.iterdir()).read_bytes().startswith(before), "what TensorBoard has read is as it was"
    after = read(out)
    assert [step for step, _ in points(after, "model/accuracy")] == list(range(9))
    totals = [value for _, value in points(after, "bytes_so_far/wire")]
    fresh = tmp_path / "fresh"
    write_events(filled.ledger, "first", fresh)
    assert [value for _, value in points(read(fresh), "bytes_so_far/wire")] == totals, "with or without a memory"


def test_a_failed_round_is_no_point_and_its_bytes_count(filled: Filled, tmp_path: Path) -> None:
    open_collecting_round(filled.ledger, "first", 8, SILOS)
    answer(filled.ledger, "first", 8, SILOS[0], TaskState.UPDATED, ratio=0.7)
    filled.ledger.fail_round(filled.ledger.round("first", 8), reason="nobody came")
    commit(filled, 9)
    write_events(filled.ledger, "first", tmp_path)
    found = read(tmp_path)
    assert [step for step, _ in points(found, "model/accuracy")] == [*range(8), 9]
    assert points(found, "bytes_so_far/wire")[-1][1] == pytest.approx(
        total_bytes(costs_of(filled.ledger, "first"), kind="wire"), rel=1e-6)


@pytest.mark.parametrize("left", [1, 11, 12, 60, 400])
def test_a_record_that_was_cut_off_is_written_again(filled: Filled, tmp_path: Path, left: int) -> None:
    """As after kill -9 in the middle of a write: `left` bytes of the last record are there."""
    write_events(filled.ledger, "first", tmp_path)
    path = event_file(tmp_path, filled.ledger.study("first").queued_unix)
    whole = path.read_bytes()
    with path.open("rb") as file:
        ends = [end for _, end in tensorboard_files._events(file)]
    path.write_bytes(whole[:ends[-2] + left])
    assert steps_in(path) == list(range(7))
    assert write_events(filled.ledger, "first", tmp_path) == 1
    assert path.read_bytes() == whole


def test_a_damaged_record_ends_what_is_believed(filled: Filled, tmp_path: Path) -> None:
    write_events(filled.ledger, "first", tmp_path)
    path = event_file(tmp_path, filled.ledger.study("first").queued_unix)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert steps_in(path) == list(range(len(steps_in(path))))
    assert len(steps_in(path)) < 8
    write_events(filled.ledger, "first", tmp_path)
    assert [step for step, _ in points(read(tmp_path), "model/accuracy")] == list(range(8))


def _write_for_ever(federation: str, out: str) -> None:
    from semisilo.coordinator.ledger.ledger import Ledger

    while True:
        write_events(Ledger(Path(federation)), "first", Path(out))
        next(Path(out).iterdir()).unlink()


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_a_file_that_is_gone_on_with(filled: Filled, tmp_path: Path) -> None:
    out = tmp_path / "tb"
    for pause in (0.005, 0.05):
        process = multiprocessing.get_context("spawn").Process(
            target=_write_for_ever, args=(str(filled.federation.ledger), str(out)))
        process.start()
        assert process.pid is not None
        while not (out.is_dir() and any(out.iterdir())):
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(pause)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        write_events(filled.ledger, "first", out)
        assert [step for step, _ in points(read(out), "model/accuracy")] == list(range(8))


@pytest.mark.parametrize("looked", [False, True])
def test_rounds_that_are_gone_are_taken_back_and_those_that_are_done_again_told(filled: Filled, tmp_path: Path,
                                                                                looked: bool) -> None:
    """After a rollback TensorBoard showed the rounds that were gone, and none of those that took their place."""
    reader, folder = RoundReader(filled.ledger, "first"), tmp_path / "tb"
    write_events(filled.ledger, "first", folder, reader=reader)
    filled.ledger.set_study_state("first", StudyState.PAUSED)
    roll_back(filled.ledger, "first", 4, operator="", reason="")
    if looked:  # by the process that follows, before a round is done again
        assert write_events(filled.ledger, "first", folder, reader=reader) == 0
        assert [step for step, _ in points(read(folder), "model/accuracy")] == [0, 1, 2, 3, 4]
    for state in (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING):
        filled.ledger.set_study_state("first", state)
    commit(filled, 5)
    commit(filled, 6)
    assert write_events(filled.ledger, "first", folder, reader=reader) == 2
    assert write_events(filled.ledger, "first", folder) == 0
    found, costs = read(folder), costs_of(filled.ledger, "first")
    assert dict(points(found, "model/accuracy")) == pytest.approx(
        {number: accuracy_after(number) for number in range(5)} | {5: 0.5, 6: 0.5})
    assert dict(points(found, "bytes_so_far/payload")[-2:]) == pytest.approx(
        {last: total_bytes([each for each in costs if each.round <= last], kind="payload") for last in (5, 6)})
    assert len(steps_in(event_file(folder, filled.ledger.study("first").queued_unix))) == 8 + 2


def test_two_writers_do_not_mix(filled: Filled, tmp_path: Path) -> None:
    path = event_file(tmp_path, filled.ledger.study("first").queued_unix)
    with tensorboard_files._locked(path), pytest.raises(SemisiloError, match="another process"):
        write_events(filled.ledger, "first", tmp_path)
    assert write_events(filled.ledger, "first", tmp_path) == 8


@pytest.mark.slow
def test_neither_torch_nor_tensorflow_is_loaded_to_write(filled: Filled, tmp_path: Path) -> None:
    code = ("import sys; from pathlib import Path; from semisilo.coordinator.ledger.ledger import Ledger;"
            "from semisilo.coordinator.tracking.tensorboard_files import write_events;"
            f"write_events(Ledger(Path({str(filled.federation.ledger)!r})), 'first', Path({str(tmp_path / 'tb')!r}));"
            "print([name for name in ('torch', 'tensorflow', 'mlflow') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.usefixtures("simulated_in_one_process")
def test_a_simulation_writes_one_too_and_keeps_it_up_to_date(tmp_path: Path) -> None:
    from semisilo.simulation import run
    from semisilo.simulation.output import report, write_output
    from tests.semisilo.studies import study

    result = run(study("semifl", rounds=2), out=tmp_path / "run", device="cpu")
    write_output(result)
    assert not (tmp_path / "run" / "tensorboard").exists()
    write_output(result, tensorboard=True)
    found = read(tmp_path / "run" / "tensorboard")
    accuracies = [entry.accuracy for entry in result.rounds]
    assert [value for _, value in points(found, "model/accuracy")] == pytest.approx(accuracies[-3:], rel=1e-6)
    file, = (tmp_path / "run" / "tensorboard").iterdir()
    file.unlink()
    report(tmp_path / "run")
    assert steps_in(file) == [0, 1, 2], "it was there, so it is kept"


def test_labels_alone_are_told_in_the_studys_measure_beside_their_accuracy(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2, measure="balanced_accuracy")
    told = RoundReader(filled.ledger, "first").rounds_after(0)
    assert [(each.scalars["model/labelled_only_accuracy"], each.scalars["model/labelled_only_balanced_accuracy"])
            for each in told] == [(LABELLED_ONLY, UNEVEN_ALONE["balanced_accuracy"])] * 2
    later = RoundReader(filled.ledger, "first").labels_alone(up_to=2, known=())
    assert {frozenset(each.scalars) for each in later} == {
        frozenset({"model/labelled_only_accuracy", "model/labelled_only_balanced_accuracy"})}
