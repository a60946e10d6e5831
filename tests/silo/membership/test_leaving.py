"""`silo leave`: the coordinator is told, then key, certificate, caches and memory go; record and silo.toml stay."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import CertificateRevoked, SiloLeft, Unreachable, UsageError
from semisilo.common.text.cli_errors import run_cli
from semisilo.silo.cli.main import app
from semisilo.silo.membership.enrollment import enroll, leave_federation, open_channel, renew_if_due
from semisilo.silo.membership.leaving import leave
from semisilo.silo.site.home import AlreadyRunning, SiloHome
from semisilo.silo.site.identity_store import Identity, has_identity, load_identity
from tests import identity_kit


def yes(question: str) -> bool:
    return True


def silo(*words: str) -> int:
    return run_cli(app, words, name="silo")


def with_hub(tmp_path: Path, work: Callable[[identity_kit.Federation, Identity], Awaitable[None]]) -> None:
    """A silo that has enrolled at a hub whose two ports are open."""
    async def run() -> None:
        federation = identity_kit.make_federation(tmp_path / "hub")
        async with identity_kit.serving(federation):
            identity = await enroll(federation.invite(), tmp_path / "home", now=time.time(), use_http_proxy=False)
            used(tmp_path / "home")
            await work(federation, identity)
    asyncio.run(run())


def used(folder: Path) -> None:
    """What a silo that has worked leaves in its home."""
    home = SiloHome(folder)
    for path in (home.memory / "memory.json", home.cache / "ab" / "payload", home.outgoing / "update"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    for path in (home.status, home.choice, home.day, home.days, home.rounds, home.page_token,
                 home.torchrun_token, home.asked):
        path.write_text("{}")
    home.policy.write_text("[limits]\nbytes_per_day = 0\n")


def test_leaving_tells_the_hub_and_removes_what_belongs_to_the_silo(tmp_path: Path) -> None:
    async def work(federation: identity_kit.Federation, identity: Identity) -> None:
        done = await asyncio.to_thread(leave, tmp_path / "home", offline=False, confirm=yes, use_http_proxy=False)
        assert done is not None
        assert (done.silo, done.told, done.note) == ("hospital-a", True, "")
        assert done.left_unix == pytest.approx(federation.roster.gone["hospital-a"], abs=1e-3)
    with_hub(tmp_path, work)
    left = {path.name for path in (tmp_path / "home").iterdir()}
    assert left == {"silo.toml", "disclosures.jsonl", "asked.jsonl", "agent.lock"}
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "home" / "disclosures.jsonl").read_text().splitlines()]
    assert kinds == ["enrolment", "leaving"]
    with pytest.raises(UsageError, match="holds no silo"):
        leave(tmp_path / "home", offline=False, confirm=yes)


def test_a_repeat_hears_when_it_left_and_the_certificate_is_good_for_nothing_else(tmp_path: Path) -> None:
    async def work(federation: identity_kit.Federation, identity: Identity) -> None:
        home = SiloHome(tmp_path / "home")
        first = await leave_federation(identity, home, use_http_proxy=False)
        assert await leave_federation(identity, home, use_http_proxy=False) == first
        async with open_channel(identity, use_http_proxy=False) as channel:
            from semisilo.common.wire import enrollment_service_pb2_grpc as pb_grpc

            stub: Any = pb_grpc.EnrollmentServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(SiloLeft, match="has left this federation"):
                await renew_if_due(tmp_path / "home", stub, identity.about.renew_unix + 1)
        # What was cut off after the hub had heard it is gone on with.
        done = await asyncio.to_thread(leave, tmp_path / "home", offline=False, confirm=yes, use_http_proxy=False)
        assert done is not None
        assert done.left_unix == first
        assert not has_identity(tmp_path / "home")
        # An invitation lets it back in.
        again = await enroll(federation.invite(), tmp_path / "home", now=time.time(), use_http_proxy=False)
        assert again.silo == "hospital-a"
        assert federation.roster.gone == {}
    with_hub(tmp_path, work)


def test_a_certificate_that_was_replaced_cannot_make_the_silo_leave(tmp_path: Path) -> None:
    async def work(federation: identity_kit.Federation, identity: Identity) -> None:
        await enroll(federation.invite(), tmp_path / "elsewhere", now=time.time(), use_http_proxy=False)
        with pytest.raises(CertificateRevoked, match="replaced by a newer invitation"):
            await leave_federation(identity, SiloHome(tmp_path / "home"), use_http_proxy=False)
        assert federation.roster.gone == {}
    with_hub(tmp_path, work)


def test_a_silo_that_was_revoked_leaves_with_a_note(tmp_path: Path) -> None:
    async def work(federation: identity_kit.Federation, identity: Identity) -> None:
        federation.roster.revoke("hospital-a")
        done = await asyncio.to_thread(leave, tmp_path / "home", offline=False, confirm=yes, use_http_proxy=False)
        assert done is not None
        assert "It was no member any more" in done.note
        assert not has_identity(tmp_path / "home")
    with_hub(tmp_path, work)


def test_without_the_hub_nothing_changes_unless_the_person_says_offline(tmp_path: Path) -> None:
    async def nothing(federation: identity_kit.Federation, identity: Identity) -> None:
        pass
    with_hub(tmp_path, nothing)
    with pytest.raises(Unreachable) as raised:
        leave(tmp_path / "home", offline=False, confirm=yes, use_http_proxy=False)
    assert "silo leave --offline" in raised.value.remedy
    assert "coordinator revoke hospital-a" in raised.value.remedy
    assert load_identity(tmp_path / "home").silo == "hospital-a"
    assert (tmp_path / "home" / "memory").is_dir()
    done = leave(tmp_path / "home", offline=True, confirm=yes)
    assert done is not None
    assert (done.told, "coordinator revoke hospital-a" in done.note) == (False, True)
    assert not has_identity(tmp_path / "home")


@pytest.mark.slow
def test_it_is_refused_while_join_runs_and_when_the_person_says_no(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def nothing(federation: identity_kit.Federation, identity: Identity) -> None:
        pass
    with_hub(tmp_path, nothing)
    home = tmp_path / "home"
    with SiloHome(home).lock(), pytest.raises(AlreadyRunning, match="running in") as raised:
        leave(home, offline=True, confirm=yes)
    assert raised.value.remedy.endswith(f"then: silo leave --home {home}")
    questions: list[str] = []
    assert leave(home, offline=True, confirm=lambda question: questions.append(question) is not None) is None
    assert "silo 'hospital-a' of federation 'lung'" in questions[0]
    assert has_identity(home)
    capsys.readouterr()
    assert silo("leave", "--home", str(home)) == 2  # nobody can answer here
    assert "Add --yes" in capsys.readouterr().err
    assert silo("leave", "--home", str(home), "--offline", "--yes", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["silo"], facts["told"]) == ("hospital-a", False)
    assert facts["kept"] == ["silo.toml", "disclosures.jsonl", "asked.jsonl"]
    assert {"identity", "identities", "memory", "cache", "outgoing"} <= set(facts["removed"])


def test_an_identity_that_is_broken_can_be_cleaned_up_offline_and_says_so(tmp_path: Path) -> None:
    async def damage(federation: identity_kit.Federation, identity: Identity) -> None:
        (identity.folder / "certificate.pem").write_text("nonsense")
    with_hub(tmp_path, damage)
    with pytest.raises(Exception, match="not a certificate") as raised:
        leave(tmp_path / "home", offline=False, confirm=yes)
    assert "silo leave --offline" in getattr(raised.value, "remedy", "")
    done = leave(tmp_path / "home", offline=True, confirm=yes)
    assert done is not None
    assert replace(done, removed=()).silo == ""
    assert not has_identity(tmp_path / "home")
