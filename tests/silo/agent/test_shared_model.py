"""Fetching a study's model. With all processes: tests/test_own_test_images.py."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import zlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from semisilo.common.errors import DailyBudget, SemisiloError
from semisilo.common.storage.store import PayloadStore
from semisilo.silo.agent import shared_model
from semisilo.silo.agent.daily_budget import DayBudget, read_day
from semisilo.silo.agent.shared_model import fetch_model, forget_unfinished
from semisilo.silo.link.traffic import Carried
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import policy_text
from semisilo.silo.site.working_hours import Hours
from tests.proxy import Proxy
from tests.silo.agent.test_agent import run
from tests.silo.fake_coordinator import FakeCoordinator, random_bytes, serving
from tests.silo.link.test_link import open_to
from tests.silo.page.home_kit import filled_home
from tests.synced_paths import synced_paths


@pytest.mark.slow
def test_why_nothing_arrives_is_told_and_after_a_while_it_is_given_up(tmp_path: Path) -> None:
    """It waited for ever without a word."""
    home, told = filled_home(tmp_path / "home"), list[str]()
    with pytest.raises(SemisiloError) as caught:
        fetch_model(home.folder, "s", tmp_path / "s.safetensors", now=time.time, patience_seconds=1.5,
                    on_trouble=lambda error: told.append(error.line()), use_http_proxy=False)
    assert told
    assert all("hub.example" in line for line in (*told, caught.value.line()))
    assert not (tmp_path / "s.safetensors").exists()


def fetch_from(coordinator: FakeCoordinator, home: SiloHome, monkeypatch: pytest.MonkeyPatch, *,
               cut_after_bytes: int | None = None) -> None:
    """`silo model s` at a coordinator that answers. Raises: as `fetch_model`."""
    async def work() -> None:
        async with serving(coordinator) as port:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.cut_after_down_bytes = cut_after_bytes
                identity = load_identity(home.folder)
                monkeypatch.setattr(shared_model, "load_identity",
                                    lambda folder: replace(identity, about=replace(
                                        identity.about, address=f"127.0.0.1:{proxy.port}")))
                monkeypatch.setattr(shared_model, "open_channel",
                                    lambda identity, use_http_proxy: open_to(proxy.port)())
                await asyncio.to_thread(fetch_model, home.folder, "s", home.folder / "s.safetensors", now=time.time,
                                        use_http_proxy=False)
    run(work())


def test_a_model_whose_bytes_are_lost_on_the_line_gets_no_more_than_the_budget_and_is_counted(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = filled_home(tmp_path / "home")
    home.policy.write_text(policy_text().replace("bytes_per_day = 0", "bytes_per_day = 1000000"))
    home.day.unlink()
    coordinator = FakeCoordinator(model=random_bytes(800_000), chunk_bytes=800_000)
    with pytest.raises(DailyBudget, match="the rest of this model"):
        fetch_from(coordinator, home, monkeypatch, cut_after_bytes=400_000)
    assert len(coordinator.downloads) <= 8, "the kernel may tell the last bytes of a connection late"
    assert read_day(home.day, Hours(), time.time()).received_bytes > 200_000


def test_a_fetch_beside_an_agent_leaves_its_count_alone_and_counts_beside_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that had started meanwhile lost its count; beside one that ran the fetch was not counted at all."""
    home = filled_home(tmp_path / "home")
    home.policy.write_text(policy_text().replace("bytes_per_day = 0", "bytes_per_day = 51000000"))
    home.day.unlink()
    agent = DayBudget(home.day, bytes_per_day=51_000_000, hours=Hours(), now_unix=time.time())
    agent.carried(Carried(0, 50_000_000), time.time(), durably=True)
    model = random_bytes(800_000)
    fetch_from(FakeCoordinator(model=model, chunk_bytes=200_000), home, monkeypatch)
    assert 50_800_000 < read_day(home.day, Hours(), time.time()).received_bytes < 50_900_000
    with pytest.raises(DailyBudget, match="this model would take"):
        fetch_from(FakeCoordinator(model=model, chunk_bytes=200_000), home, monkeypatch)
    agent.check(150_000, "a task", time.time())
    with pytest.raises(DailyBudget):
        agent.check(200_000, "a task", time.time())
    assert agent.exhausted_until(time.time()) is not None


def test_what_has_come_of_models_goes_after_a_week_in_which_nobody_has_gone_on_with_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = filled_home(tmp_path / "home")
    store = PayloadStore(home.models)
    for key in ("old", "new"):
        with store.partial(key, size_bytes=10) as part:
            part.append(b"a mo", offset=0, crc32=zlib.crc32(b"a mo"))
        store.path(hashlib.sha256(key.encode()).hexdigest()).write_bytes(key.encode())
    for path in (store._partial_path("old"), store.path(hashlib.sha256(b"old").hexdigest())):
        os.utime(path, (time.time() - 8 * 86_400,) * 2)
    coordinator = FakeCoordinator(model=b"the model")
    fetch_from(coordinator, home, monkeypatch)
    assert (home.folder / "s.safetensors").read_bytes() == b"the model"
    assert [path.suffix for path in sorted((home.models / "incoming").iterdir())] == [".journal", ".part"]
    assert store.digests() == {hashlib.sha256(b"new").hexdigest()}
    forget_unfinished(home, now_unix=time.time() + 8 * 86_400)
    assert (list((home.models / "incoming").iterdir()), store.digests()) == ([], set())


def test_a_model_is_on_disk_before_the_one_that_was_there_is_replaced(tmp_path: Path) -> None:
    """The fetched copy in the silo's home goes then: a loss of power could take both."""
    whole, target = tmp_path / "whole", tmp_path / "out" / "first.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"before")
    whole.write_bytes(b"the model")
    there: list[bytes] = []
    with synced_paths() as synced, mock.patch("os.replace", lambda old, new: (
            there.append(target.read_bytes()), synced.append("replaced"), os.rename(old, new))):
        shared_model._put(whole, target)
    assert (there, target.read_bytes()) == ([b"before"], b"the model")
    assert synced == [str(target.with_name(f".{target.name}.{os.getpid()}.tmp")), "replaced", str(target.parent)]
