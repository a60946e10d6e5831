"""The process beside `coordinator serve` that tells trackers: it disturbs nothing, gives up nothing, and ends."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.config import from_dict
from semisilo.common.errors import BadConfiguration, Unreachable, UsageError
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app
from semisilo.coordinator.federation.folder import Federation, open_federation
from semisilo.coordinator.federation.tracking_table import TrackingSettings, check_installed, mlflow_target
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.tracking import follow
from semisilo.coordinator.tracking.companion import keep_tracking
from semisilo.coordinator.tracking.follow import Follower
from semisilo.coordinator.tracking.hand_over import track_study
from semisilo.coordinator.tracking.tensorboard_files import event_file
from tests.coordinator.ledger_fixture import Filled, fill_study
from tests.coordinator.tracking.test_tensorboard import commit, steps_in
from tests.each_of import each_of

pytest.importorskip("tensorboard")


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return fill_study(tmp_path / "fed", rounds=9, done=3, complete=False)


def events(filled: Filled) -> Path:
    return event_file(filled.federation.studies / "first" / "tensorboard",
                      filled.ledger.study("first").queued_unix)


def configured(federation: Federation, text: str) -> Federation:
    path = federation.folder / "federation.toml"
    lines = path.read_text(encoding="utf-8").partition("[tracking]")[0]
    path.write_text(f"{lines}\n[tracking]\n{text}\n", encoding="utf-8")
    return open_federation(federation.folder)


# Telling --------------------------------------------------------------------------------------------------------------


def test_every_study_that_has_begun_is_followed_and_only_what_is_new_is_looked_at(filled: Filled) -> None:
    follower = Follower(filled.federation, filled.ledger, TrackingSettings(tensorboard=True))
    assert follower.look()
    assert steps_in(events(filled)) == [0, 1, 2, 3]
    written = events(filled).stat().st_mtime_ns
    assert follower.look()
    assert events(filled).stat().st_mtime_ns == written
    commit(filled, 4)
    follower.look()
    assert steps_in(events(filled)) == [0, 1, 2, 3, 4]


def test_what_fails_is_said_once_and_tried_again_later(filled: Filled, monkeypatch: pytest.MonkeyPatch,
                                                       caplog: pytest.LogCaptureFixture) -> None:
    now, calls = [0.0], 0

    class Runs:
        def __init__(self, *arguments: object, **options: object) -> None:
            pass

        def catch_up(self, study: str, *, artefacts: object) -> int:
            nonlocal calls
            calls += 1
            if now[0] < 70:
                raise Unreachable("MLflow cannot be told.")
            return 1

    monkeypatch.setattr(follow, "MlflowRuns", Runs)
    follower = Follower(filled.federation, filled.ledger, TrackingSettings(tensorboard=True, mlflow="https://x.example"),
                        clock=lambda: now[0])
    with caplog.at_level(logging.INFO, logger="semisilo.tracking"):
        for moment in (0, 2, 4, 31, 62):
            now[0] = moment
            assert not follower.look()
        assert calls == 3
        assert [record.getMessage() for record in caplog.records] == ["MLflow: MLflow cannot be told."]
        now[0] = 100
        assert follower.look()
    assert "could be told again" in caplog.records[-1].getMessage()
    assert steps_in(events(filled)) == [0, 1, 2, 3], "another tracker is not held up"


# The process ----------------------------------------------------------------------------------------------------------


async def until(condition: object, seconds: float = 300) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.05)


def children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(word) for word in listed.split()]


@pytest.mark.slow
def test_it_writes_while_serve_runs_comes_back_when_killed_and_tells_the_rest_at_the_end(filled: Filled) -> None:
    configured(filled.federation, "tensorboard = true")
    before = set(children())

    async def scenario() -> None:
        tracking = asyncio.ensure_future(keep_tracking(filled.federation.folder, again_seconds=0.1))
        await until(lambda: steps_in(events(filled)) == [0, 1, 2, 3])
        child, = set(children()) - before
        os.kill(child, signal.SIGKILL)
        await until(lambda: set(children()) - before - {child})
        commit(filled, 4)
        await until(lambda: steps_in(events(filled)) == [0, 1, 2, 3, 4])
        commit(filled, 5)
        tracking.cancel()
        await asyncio.gather(tracking, return_exceptions=True)
    asyncio.run(scenario())
    assert steps_in(events(filled)) == [0, 1, 2, 3, 4, 5], "what came last is told before it ends"
    assert set(children()) == before


def test_a_tracker_that_hangs_does_not_keep_serve_from_ending(filled: Filled,
                                                              caplog: pytest.LogCaptureFixture) -> None:
    configured(filled.federation, "tensorboard = true")
    before = set(children())

    async def scenario() -> None:
        tracking = asyncio.ensure_future(keep_tracking(filled.federation.folder, farewell_seconds=0.3))
        await until(lambda: set(children()) - before)
        child, = set(children()) - before
        os.kill(child, signal.SIGSTOP)
        # Until then SIGTERM would still end it. And asyncio itself ends a process that it has just started.
        await until(lambda: "(stopped)" in Path(f"/proc/{child}/status").read_text(encoding="ascii"))
        await asyncio.sleep(0.05)
        tracking.cancel()
        async with asyncio.timeout(300):
            await asyncio.gather(tracking, return_exceptions=True)
    asyncio.run(scenario())
    assert set(children()) == before
    assert "the tracker does not answer" in caplog.text


@pytest.mark.slow
def test_a_tracker_that_cannot_be_started_is_tried_again_and_ends_nothing(
        filled: Filled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    configured(filled.federation, "tensorboard = true")
    real, failures = asyncio.create_subprocess_exec, [
        OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]

    async def start(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        if failures:
            raise failures.pop()
        return await real(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)

    async def scenario() -> None:
        tracking = asyncio.ensure_future(keep_tracking(filled.federation.folder, again_seconds=0.1))
        await until(lambda: steps_in(events(filled)) == [0, 1, 2, 3])
        tracking.cancel()
        await asyncio.gather(tracking, return_exceptions=True)
    asyncio.run(scenario())
    for why in ("[Errno 24] Too many open files", "can't start new thread"):
        assert caplog.text.count(f"cannot be started: {why}; it is tried again") == 1


# The command ----------------------------------------------------------------------------------------------------------


def test_track_hands_a_finished_study_over_and_says_how_much(filled: Filled, tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    filled.ledger.set_study_state("first", StudyState.COMPLETED)
    out = tmp_path / "tb"
    arguments = ["track", "first", "--folder", str(filled.federation.folder), "--tensorboard", str(out)]
    assert run_cli(app, [*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "study": "first", "trackers": {"TensorBoard": {"target": str(out), "rounds": 4}}}
    assert run_cli(app, arguments) == 0
    assert "0 new rounds of first" in capsys.readouterr().out
    assert steps_in(event_file(out, filled.ledger.study("first").queued_unix)) == [0, 1, 2, 3]


def test_a_file_in_the_place_of_the_folder_for_tensorboard_is_wrong_usage(filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        track_study(filled.federation.folder, "first", tensorboard=tmp_path / "file", mlflow="", experiment="")


def test_track_wants_somebody_to_tell(filled: Filled) -> None:
    with pytest.raises(UsageError, match="Nobody to tell"):
        track_study(filled.federation.folder, "first", tensorboard=None, mlflow="", experiment="")


# Settings -------------------------------------------------------------------------------------------------------------


def test_the_table_tracking_is_read_and_off_by_default(filled: Filled) -> None:
    assert not filled.federation.config.tracking.any
    assert configured(filled.federation, 'tensorboard = true\nmlflow = "runs"').config.tracking == TrackingSettings(
        tensorboard=True, mlflow="runs")
    with pytest.raises(BadConfiguration, match="tensorboards"):
        configured(filled.federation, "tensorboards = true")


@each_of("address", ["https://user:secret@mlflow.example", "ftp://mlflow.example", "https://"])
def test_an_address_that_cannot_be_or_holds_a_password_is_refused(address: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        from_dict(TrackingSettings, {"mlflow": address}, where="federation.toml: [tracking]")
    assert "mlflow" in caught.value.text


def test_a_folder_is_one_of_the_federation_and_an_address_stays(tmp_path: Path) -> None:
    assert mlflow_target("runs", base=tmp_path) == (tmp_path / "runs").as_uri()
    assert mlflow_target(str(tmp_path), base=Path("/")) == tmp_path.as_uri()
    assert mlflow_target("https://mlflow.example", base=tmp_path) == "https://mlflow.example"


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.coordinator.federation.tracking_table.find_spec", lambda name: None)
    with pytest.raises(BadConfiguration) as caught:
        check_installed(TrackingSettings(mlflow="runs"))
    assert "semisilo[mlflow]" in caught.value.remedy
    check_installed(TrackingSettings())
    monkeypatch.setattr("semisilo.coordinator.federation.tracking_table.find_spec",
                        lambda name: None if name == "sqlalchemy" else object())
    check_installed(TrackingSettings(tensorboard=True, mlflow="https://mlflow.example"))
    with pytest.raises(BadConfiguration, match="whole of MLflow"):
        check_installed(TrackingSettings(mlflow="sqlite:///runs.db"))
