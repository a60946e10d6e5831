"""`silo join` under torchrun: which process it is, and what becomes of one that ends."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadConfiguration, ComputeFailed, ProcessGroupLost, UsageError
from semisilo.common.process.child import ComputeDied
from semisilo.common.process.compute import ProcessCompute
from semisilo.common.process.torchrun import TOKEN, Place, place
from semisilo.silo.compute import torchrun
from semisilo.silo.compute.messages import Dismiss, Dismissed
from semisilo.silo.compute.torchrun import LeadingCompute, find_token, look_after_follower
from semisilo.silo.site.home import SiloHome
from tests.each_of import each_of

ENVIRONMENT = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
               "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29400",
               "TORCHELASTIC_USE_AGENT_STORE": "True"}
FOLLOWER = Place(rank=1, size=2, local_rank=1, local_size=2, address="localhost", port=1, kept_by_torchrun=True)
HOME = SiloHome(Path("home"))


def test_a_process_knows_its_place_from_what_torchrun_has_set() -> None:
    assert place(ENVIRONMENT) == Place(rank=3, size=4, local_rank=1, local_size=2, address="node1", port=29400,
                                       kept_by_torchrun=True)


@each_of("environment", [
    {}, {name: value for name, value in ENVIRONMENT.items() if name != "TORCHELASTIC_RUN_ID"},
    ENVIRONMENT | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}])
def test_a_process_that_is_alone_has_no_place(environment: dict[str, str]) -> None:
    """Variables of another launcher (RANK alone) mean nothing."""
    assert place(environment) is None


@each_of(("change", "text"), [
    ({"RANK": "4"}, "process 4 of 4"), ({"WORLD_SIZE": "two"}, "not a number"), ({"MASTER_ADDR": None}, "MASTER_ADDR"),
    ({"LOCAL_RANK": "2"}, "2 of 2 here")])
def test_half_an_environment_is_refused(change: dict[str, str | None], text: str) -> None:
    environment = {name: value for name, value in (ENVIRONMENT | change).items() if value is not None}
    with pytest.raises(UsageError, match=text) as refused:
        place(environment)
    assert "torchrun" in refused.value.remedy


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "")  # so that what is put there meanwhile is gone afterwards
    monkeypatch.delenv(TOKEN)


@pytest.mark.usefixtures("no_token")
def test_process_0_makes_a_token_that_only_its_account_can_read_and_the_others_wait_for_it(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    (tmp_path / "identity").mkdir()
    making = threading.Timer(0.2, find_token, args=(home,), kwargs={"makes": True})
    making.start()
    find_token(home, makes=False)
    making.join()
    token = home.torchrun_token.read_text().strip()
    assert len(token) >= 32
    assert stat.S_IMODE(home.torchrun_token.stat().st_mode) == 0o600
    assert place({**ENVIRONMENT, **os.environ}) == Place(
        rank=3, size=4, local_rank=1, local_size=2, address="node1", port=29400, kept_by_torchrun=True, token=token)
    assert token not in repr(place({**ENVIRONMENT, **os.environ}))
    del os.environ[TOKEN]
    find_token(home, makes=True)
    assert os.environ[TOKEN] == token, "the same one again"


@pytest.mark.usefixtures("no_token")
def test_a_token_that_every_account_can_read_is_not_used(tmp_path: Path) -> None:
    find_token(SiloHome(tmp_path), makes=True)
    del os.environ[TOKEN]
    SiloHome(tmp_path).torchrun_token.chmod(0o644)
    with pytest.raises(BadConfiguration, match="every user of this machine can read it"):
        find_token(SiloHome(tmp_path), makes=False)


@pytest.mark.usefixtures("no_token")
def test_a_machine_without_the_silos_folder_says_at_once_how_it_gets_the_token(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with pytest.raises(BadConfiguration, match=r"torchrun\.token") as refused:
        find_token(SiloHome(tmp_path / "home"), makes=False)
    assert time.monotonic() - began < 10
    assert f"${TOKEN}" in refused.value.remedy
    assert "\n" not in refused.value.line()
    monkeypatch.setenv(TOKEN, "0123456789abcdef")
    for makes in (True, False):
        find_token(SiloHome(tmp_path / "home"), makes=makes)
    assert os.environ[TOKEN] == "0123456789abcdef"
    assert not (tmp_path / "home").exists()
    monkeypatch.setenv(TOKEN, "secret")
    with pytest.raises(BadConfiguration, match="fewer than 16 characters"):
        find_token(SiloHome(tmp_path / "home"), makes=True)


class Dying:
    """Stands in for `ProcessCompute.call`: raises what it is told, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def __call__(self, compute: Any, request: Any, *, on_progress: Any = None) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return Dismissed()


def test_a_lost_process_puts_work_off_and_one_that_is_lost_again_and_again_is_refused(
        monkeypatch: pytest.MonkeyPatch) -> None:
    died, lost = ComputeDied("The compute process was killed."), ProcessGroupLost("One is lost.")
    dying = Dying(died, lost, died, lost, died)

    async def call(self: Any, request: Any, *, on_progress: Any = None) -> Any:
        return await dying(self, request)

    monkeypatch.setattr(ProcessCompute, "call", call)

    async def work() -> None:
        compute = LeadingCompute()
        for _ in range(4):
            with pytest.raises(ProcessGroupLost) as put_off:
                await compute.call(Dismiss())
            assert put_off.value.retry
        with pytest.raises(ComputeFailed, match="5 times in a row") as refused:
            await compute.call(Dismiss())
        assert not refused.value.retry
        assert await compute.call(Dismiss()) == Dismissed()
        dying.errors = [died]
        with pytest.raises(ProcessGroupLost):  # counted anew
            await compute.call(Dismiss())

    asyncio.run(work())


def following(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(torchrun, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(torchrun, "python_command", lambda module, *words: [sys.executable, "-I", "-S", "-c", script])


def test_a_process_that_was_dismissed_ends_with_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    following(monkeypatch, "raise SystemExit(0)")
    assert look_after_follower(FOLLOWER, HOME) == 0


def test_a_process_that_cannot_stay_alive_ends_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    following(monkeypatch, "raise SystemExit(7)")
    with pytest.raises(ComputeFailed, match="process 1 of this silo ended with exit status 7, 5 times in a row"):
        look_after_follower(FOLLOWER, HOME)


def test_sigterm_ends_it_with_what_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    following(monkeypatch, "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)")
    assert look_after_follower(FOLLOWER, HOME) == 0
