"""`silo move`: another address of the same coordinator, proved before it is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.text.cli_errors import run_cli
from semisilo.silo.cli.main import app
from semisilo.silo.site.home import SiloHome, StatusFile
from semisilo.silo.site.identity_store import load_identity
from tests import identity_kit
from tests.proxy import Proxy
from tests.silo.check.test_report import Describing, answered
from tests.silo.cli.test_main import enrolled, hub
from tests.silo.fake_coordinator import FakeCoordinator

Words = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_site_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def silo(*words: str) -> int:
    return run_cli(app, words, name="silo")


def with_hub(tmp_path: Path, work: Callable[[identity_kit.Federation, Path], Awaitable[None]]) -> None:
    """A silo that has enrolled at a hub whose work port is open and answers."""
    async def run() -> None:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        coordinator: Any = FakeCoordinator()
        coordinator.DescribeStudy = Describing(answered()).DescribeStudy
        async with hub(federation, coordinator, identity):
            await work(federation, tmp_path / "home")
    asyncio.run(run())


def contents(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (home / "identity").iterdir()}


def test_the_coordinator_is_found_at_its_new_address_without_an_invitation(tmp_path: Path, capsys: Words) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        before, was = load_identity(home), federation.address
        with Proxy("127.0.0.1", int(federation.address.rpartition(":")[2])) as elsewhere:
            new = f"127.0.0.1:{elsewhere.port}"
            assert await asyncio.to_thread(silo, "move", new, "--home", str(home), "--json") == 0
            assert elsewhere.total_up > 0, "it was asked there"
        assert json.loads(capsys.readouterr().out) == {
            "silo": "hospital-a", "federation": "lung", "address": new, "address_before": was}
        after = load_identity(home)
        assert after.address == new
        assert (after.credentials, after.authority_pem) == (before.credentials, before.authority_pem)
        assert after.about.renew_unix == before.about.renew_unix
    with_hub(tmp_path, work)


def test_what_was_in_the_way_to_the_address_that_is_left_is_not_shown_any_more(tmp_path: Path, capsys: Words) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        status = StatusFile(SiloHome(home).status)
        for trouble, left in (("127.0.0.1 refuses connections to port 1.", ""), ("/scans: No such file.", "/scans")):
            status.update(now_unix=7.0, last_error=trouble)
            assert await asyncio.to_thread(silo, "move", federation.address, "--home", str(home)) == 0
            found = StatusFile.load(SiloHome(home).status)
            assert found.last_error.startswith(left)
            assert bool(found.last_error) == bool(left)
            assert found.updated_unix == 7.0
    with_hub(tmp_path, work)


def test_an_address_where_nothing_listens_is_not_kept(tmp_path: Path, capsys: Words) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        before = contents(home)
        with Proxy("127.0.0.1", 1) as gone:
            pass
        assert await asyncio.to_thread(silo, "move", f"127.0.0.1:{gone.port}", "--home", str(home)) == 1
        said = capsys.readouterr().err
        assert "refuses connections" in said
        assert "Nothing was changed here." in said
        assert said.count("\n") == 1
        assert contents(home) == before
    with_hub(tmp_path, work)


def test_another_federations_coordinator_is_not_believed(tmp_path: Path, capsys: Words) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        before = contents(home)
        async with identity_kit.serving(identity_kit.make_federation(tmp_path / "other")) as other:
            assert await asyncio.to_thread(silo, "move", other.address, "--home", str(home)) == 1
        assert "not one of the authority of federation 'lung'" in capsys.readouterr().err
        assert contents(home) == before
    with_hub(tmp_path, work)


def test_the_port_for_enrolment_is_no_address_for_work(tmp_path: Path, capsys: Words) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        before = contents(home)
        async with identity_kit.serving(federation) as again:
            assert await asyncio.to_thread(silo, "move", again.enrollment_address, "--home", str(home)) == 1
        assert "serves no work there. Check the port" in capsys.readouterr().err
        assert contents(home) == before
    with_hub(tmp_path, work)


def test_a_running_join_must_be_stopped_first(tmp_path: Path, capsys: Words) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        with SiloHome(home).lock():
            assert await asyncio.to_thread(silo, "move", federation.address, "--home", str(home)) == 1
        assert f"then: silo move {federation.address} --home {home}" in capsys.readouterr().err
    with_hub(tmp_path, work)


@pytest.mark.parametrize("address", ["hub.example", "hub.example:port", ""])
def test_what_is_no_address_is_refused_in_one_line(tmp_path: Path, capsys: Words, address: str) -> None:
    async def work(federation: identity_kit.Federation, home: Path) -> None:
        assert await asyncio.to_thread(silo, "move", address, "--home", str(home)) == 2
        assert "is not an address" in capsys.readouterr().err
        assert load_identity(home).address == federation.address
    with_hub(tmp_path, work)


def test_a_folder_that_is_no_silos_stays_as_it_is(tmp_path: Path, capsys: Words) -> None:
    assert silo("move", "hub.example:8443", "--home", str(tmp_path / "empty")) == 2
    assert "Enrol first" in capsys.readouterr().err
    assert not (tmp_path / "empty").exists()
