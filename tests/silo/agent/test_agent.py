"""The loop of a silo against a scripted coordinator: what it answers, what it keeps, and when it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import io
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from semisilo.common.audit.signature import authority_id
from semisilo.common.errors import (
    BadData,
    CertificateRevoked,
    ComputeFailed,
    DiskFull,
    NotPermitted,
    PayloadNotServed,
    PluginFailed,
    SecureSumRefused,
    SemisiloError,
    StorageDamaged,
    TaskClosed,
    TensorsMissing,
    Unreachable,
)
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.process.child import ComputeDied
from semisilo.common.text.logs import printable
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.agent import Agent, Renewal
from semisilo.silo.agent.asked import read_asked
from semisilo.silo.agent.terminal import PlainDisplay
from semisilo.silo.agent.watch import Watch
from semisilo.silo.compute.messages import Survey, Surveyed
from semisilo.silo.link.link import Link, LinkSettings
from semisilo.silo.link.retrying_calls import Backoff, waits
from semisilo.silo.link.traffic import Traffic
from semisilo.silo.site.audit_heads import HeadRecord
from semisilo.silo.site.home import JoinChoice, SiloHome, StatusFile
from semisilo.silo.site.policy import Limits, Permit, Policy, Require
from semisilo.silo.site.stores import open_cache
from semisilo.silo.study_cards.book import CardBook
from tests.audit_kit import audit_key
from tests.processes import free_ports
from tests.proxy import Proxy
from tests.silo.fake_coordinator import HOLD_SECONDS, FakeCompute, FakeCoordinator, make_task, random_bytes, serving
from tests.study_cards import CARD, TASK

SCANS = JoinChoice(source="/scans")
OVER = pb.Standby(reason=pb.Standby.REASON_NO_STUDY, text="reached 91.2 %")


@dataclass
class Bench:
    """An agent with all that it stands on."""

    agent: Agent
    link: Link
    compute: FakeCompute
    output: io.StringIO
    home: SiloHome

    @property
    def text(self) -> str:
        return self.output.getvalue()

    def disclosures(self) -> list[dict[str, Any]]:
        """What was recorded of answers to tasks."""
        path = self.home.disclosures
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [entry for entry in entries if entry["kind"] != "announcement"]

    def status(self) -> Any:
        return StatusFile.load(self.home.status)


@asynccontextmanager
async def agent_at(port: int, folder: Path, *, compute: FakeCompute | None = None, policy: Policy | None = None,
                   renew: Any = None, exit_when_finished: bool = True, idle_seconds: float = math.inf,
                   choice: JoinChoice = SCANS, federation: str = "lung", clock: Callable[[], float] = time.time,
                   quick_seconds: float | None = HOLD_SECONDS / 2) -> AsyncIterator[Bench]:
    """
    Args:
        quick_seconds: answers that come sooner are followed by a pause; None: as it is outside of tests, where
            coordinators hold polls for longer.
    """
    home = SiloHome(folder)
    folder.mkdir(exist_ok=True)
    compute = compute or FakeCompute()
    output = io.StringIO()
    traffic = Traffic("a", remote_port=port)
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200),
               ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    link = Link(lambda: grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options), silo="a",
                settings=LinkSettings(call_seconds=5.0, stall_seconds=5.0,
                                      backoff=Backoff(first_seconds=0.02, largest_seconds=0.2)),
                messages=traffic.messages, on_trouble=lambda error, failures: agent.trouble(error, failures),
                on_contact=lambda: agent.contact(), on_through=lambda: agent.through(),
                on_stream=lambda: agent.count())

    async def nothing() -> None:
        return None
    agent = Agent(home=home, silo="a", address="hub:8443", federation=federation, policy=policy or Policy(),
                  choice=choice, link=link, compute=compute, display=PlainDisplay(output),
                  heads=HeadRecord(home.heads, audit_key(federation).authority),
                  traffic=traffic, renew=renew(link) if renew else nothing, exit_when_finished=exit_when_finished,
                  idle_seconds=idle_seconds, poll_seconds=2.0, clock=clock)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if quick_seconds is not None:
                patch.setattr("semisilo.silo.agent.agent._QUICK_SECONDS", quick_seconds)
            yield Bench(agent, link, compute, output, home)
    finally:
        await link.close()
        traffic.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 300))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


# A round --------------------------------------------------------------------------------------------------------------


def test_a_task_is_fetched_trained_sent_recorded_and_shown(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(300_000), tensors="7e" * 32)
        coordinator.tasks = [make_task(payloads=(payload,))]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            assert await bench.agent.run() == "reached 91.2 %"
            hello = coordinator.hellos[0]
            assert (hello.labelled_count, hello.unlabelled_count, list(hello.methods)) == (4, 475, sorted(METHODS))
            assert (hello.memory_study, hello.memory_round) == ("", 0)
            assert abs(hello.silo_time.ToSeconds() - time.time()) < 60
            (begin,) = coordinator.begins
            update = begin.update
            assert coordinator.accepted[begin.update_id][:8] == b"SEMISILO"
            assert update.example_count == 17
            assert dict(update.metrics) == {"label_ratio": 0.5}
            assert update.training_duration.ToMilliseconds() == 1500
            assert [group.name for group in update.manifest.groups] == ["model"]
            # What left is in the record, and after the task the coordinator hears what the silo holds.
            (entry,) = bench.disclosures()
            assert (entry["kind"], entry["study"], entry["round"], entry["groups"]) == ("update", "first", 1, ["model"])
            assert entry["digest"] == update.payload.digest.hex()
            assert entry["bytes"] == len(coordinator.accepted[begin.update_id]) == update.payload.size_bytes
            assert entry["authority"] == bench.compute.trained[0].authority == authority_id(audit_key().authority)
            assert bench.compute.trained[0].features_file == bench.home.study_features
            assert [digest.hex() for digest in coordinator.hellos[1].held_digests] == [payload.tensors]
            assert (coordinator.hellos[1].memory_study, coordinator.hellos[1].memory_round) == ("first", 1)
            assert "round 1/3: training (semifl, 479 images)" in bench.text
            assert "study first is over: reached 91.2 %" in bench.text
            stages = {report.stage for report in coordinator.reports}
            assert stages <= {pb.ReportProgressRequest.STAGE_DOWNLOADING, pb.ReportProgressRequest.STAGE_TRAINING,
                              pb.ReportProgressRequest.STAGE_UPLOADING}
            status = bench.status()
            assert (status.tasks_answered, status.pid, status.study, status.last_task) == (1, 0, "", "first/1/train/a")
            assert status.sent_bytes >= update.payload.size_bytes
            assert status.received_bytes >= 300_000
            (asked,) = read_asked(bench.home.asked)
            assert (asked.task_id, asked.method, asked.outcome) == ("first/1/train/a", "semifl", "updated")
            assert (asked.settings["local_epochs"], asked.download_bytes) == (5, 300_000)
            assert asked.text == status.last_outcome
    run(work())


def test_the_tensors_of_one_federation_are_not_there_for_another(tmp_path: Path) -> None:
    """A coordinator that names them would have had an update from another one's model."""
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(3000), tensors="7e" * 32)
        coordinator.tasks = [make_task(payloads=(payload,))]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
        again, other = FakeCoordinator(after=OVER), FakeCoordinator(after=OVER)
        for each, federation in ((again, "lung"), (other, "liver")):
            async with serving(each) as port, agent_at(port, tmp_path, federation=federation,
                                                       idle_seconds=0.5) as bench:
                await bench.agent.run()
        assert [digest.hex() for digest in again.hellos[0].held_digests] == [payload.tensors]
        assert list(other.hellos[0].held_digests) == []
        assert open_cache(bench.home.cache).digests() == set()
    run(work())


def test_the_status_file_is_what_json_writes_with_a_line_for_each_field(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status.json")
    status.update(now_unix=1.5, study='quote " and \u00e9\n', round=2, bytes_estimated=True)
    written = (tmp_path / "status.json").read_text(encoding="utf-8")
    assert written.rstrip(" ") == json.dumps(dataclasses.asdict(status.now), ensure_ascii=False, indent=1) + "\n"
    assert StatusFile.load(tmp_path / "status.json") == status.now


def test_the_status_says_how_far_the_work_is_as_long_as_it_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        coordinator.tasks = [make_task(payloads=(coordinator.add_file(random_bytes(1000)),))]
        seen: list[str] = []

        class Watching(FakeCompute):
            async def call(self, request: Any, **options: Any) -> Any:
                if not isinstance(request, Survey):
                    bench.agent._display.progress("training", 0.2, "epoch 1 of 5")
                    assert bench.status().stage != "training", "a stage that is over at once is not worth a writing"
                    bench.agent._display.progress("training", 0.4, "epoch 2 of 5")
                    await until(lambda: bench.status().stage == "training")
                    status = bench.status()
                    seen.append(f"{status.state}; {status.stage} {status.stage_fraction} {status.stage_text}")
                return await super().call(request, **options)

        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=Watching()) as bench:
            await bench.agent.run()
            status = bench.status()
            assert (status.stage, status.stage_fraction, status.stage_text) == ("", 0.0, "")
        assert seen[0] == "first, round 1/3: works on it; training 0.4 epoch 2 of 5"
    run(work())


def test_all_sources_that_were_named_are_counted_and_trained_on_and_shown_here_only(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        coordinator.tasks = [make_task(payloads=(coordinator.add_file(random_bytes(1000)),))]
        compute = FakeCompute(survey_steps=3, survey_test=9)
        choice = JoinChoice(source="/scans", labelled="/known", test="/t", on_error="skip")
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute, choice=choice) as bench:
            await bench.agent.run()
        assert compute.surveyed == [Survey(choice=choice)]
        (request,) = compute.trained
        assert request.choice == choice
        assert ("479 images in /scans and /known (4 with a label, 475 without that come in 3 steps; 9 for testing)"
                in bench.text)
        assert JoinChoice.load(bench.home.choice) == choice
        assert (bench.status().labelled_count, bench.status().unlabelled_count) == (4, 475)
        sent = "".join(map(str, [*coordinator.hellos, *coordinator.begins, *coordinator.reports]))
        assert "scans" not in sent
        assert "known" not in sent
    run(work())


def test_memory_follows_what_was_folded_and_payloads_are_fetched_once(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(50_000))
        coordinator.tasks = [make_task(1, payloads=(payload,)), make_task(2, payloads=(payload,), last_folded_round=1),
                             make_task(3, payloads=(payload,), last_folded_round=1)]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            first, second, third = (request.memory for request in bench.compute.trained)
        assert first is None
        assert second is not None
        assert third == second  # round 2 was not folded
        assert len(coordinator.downloads) == 1
        assert len(coordinator.accepted) == 3
    run(work())


HELD, NEXT = "7e" * 32, "8f" * 32
"""Digests of the tensors of two versions of a group."""


def test_what_the_silo_holds_is_not_fetched_and_what_was_kept_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        whole = coordinator.add_file(random_bytes(50_000), tensors=HELD)
        coded = coordinator.add_file(random_bytes(20_000, seed=1), tensors=NEXT, reference=HELD)
        held = PayloadRef("", 0, ("model",), tensors=NEXT)
        coordinator.tasks = [make_task(1, payloads=(whole,)), make_task(2, payloads=(coded,)),
                             make_task(3, payloads=(held,))]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            fetched = [sorted(request.payloads) for request in bench.compute.trained]
        assert fetched == [[whole.digest], [coded.digest], []]
        assert coordinator.downloads == [(whole.digest, 0), (coded.digest, 0)]
        assert len(coordinator.accepted) == 3
        told = [{digest.hex() for digest in hello.held_digests} for hello in coordinator.hellos[:3]]
        assert told == [set(), {HELD}, {HELD, NEXT}]
    run(work())


@pytest.mark.parametrize("payload", [
    PayloadRef("", 0, ("model",), tensors=HELD),
    PayloadRef("ab" * 32, 20_000, ("model",), tensors=NEXT, reference=HELD)], ids=["held", "coded"])
def test_a_task_that_builds_on_what_is_not_here_is_put_off_until_it_brings_the_whole_group(
        tmp_path: Path, payload: PayloadRef) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        whole = coordinator.add_file(random_bytes(50_000), tensors=payload.tensors)

        def reissue(rpc: str, request: Any) -> None:
            """The second time that the silo says what it holds, the coordinator has written the payload anew."""
            if rpc == "AwaitTask" and len(coordinator.hellos) == 1:
                coordinator.tasks = [make_task(payloads=(whole,))]
        coordinator.tasks = [make_task(payloads=(payload,))]
        coordinator.fault = reissue
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            assert len(bench.compute.trained) == 1
            assert "put off" in bench.text
        assert coordinator.downloads == [(whole.digest, 0)]
        assert coordinator.outcomes() == ["update"], "nothing was refused"
        assert len(coordinator.accepted) == 1
    run(work())


def test_a_payload_that_the_task_no_longer_names_puts_the_task_off_and_refuses_nothing(tmp_path: Path) -> None:
    """The coordinator has written the task anew since it was given: the silo asks for it again."""
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        before, after = (coordinator.add_file(random_bytes(50_000, seed=seed), tensors=NEXT) for seed in (1, 2))

        def written_anew(rpc: str, request: Any) -> SemisiloError | None:
            if rpc == "DownloadPayload" and request.digest.hex() == before.digest:
                coordinator.tasks = [make_task(payloads=(after,))]
                return PayloadNotServed("No open task of this silo names that payload.")
            return None
        coordinator.tasks = [make_task(payloads=(before,))]
        coordinator.fault = written_anew
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            assert "put off" in bench.text
        assert coordinator.downloads == [(after.digest, 0)]
        assert coordinator.outcomes() == ["update"]
    run(work())


def test_tensors_that_turn_out_to_be_damaged_in_training_put_the_task_off_and_refuse_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        whole = coordinator.add_file(random_bytes(50_000), tensors=HELD)
        coordinator.tasks = [make_task(payloads=(whole,))]
        compute = FakeCompute(errors=[TensorsMissing("The reference is damaged here.")])
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        assert len(compute.trained) == 2
        assert coordinator.outcomes() == ["update"]
        assert len(coordinator.hellos) >= 3, "it asked for the task again"
    run(work())


@pytest.mark.slow
def test_old_tensors_are_let_go_while_new_ones_come(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        digests = [f"{number:02x}" * 32 for number in range(12)]
        coordinator.tasks = [make_task(number + 1, rounds=12, payloads=(
            coordinator.add_file(random_bytes(1000, seed=number), tensors=digest),))
            for number, digest in enumerate(digests)]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
        kept = {path.name for path in (tmp_path / "cache" / "tensors").iterdir()}
        assert digests[-1] in kept
        assert digests[-2] in kept
        assert len(kept) <= 6
    run(work())


def test_a_payload_that_went_bad_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(50_000))
        coordinator.tasks = [make_task(payloads=(payload,))]
        damaged = tmp_path / "cache" / payload.digest
        damaged.parent.mkdir()
        damaged.write_bytes(random_bytes(50_000, seed=1))
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
        assert coordinator.downloads == [(payload.digest, 0)]
        assert len(coordinator.accepted) == 1
    run(work())


@pytest.mark.slow
def test_a_round_goes_through_a_line_that_breaks_all_the_time(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(3 * 2**20))
        coordinator.tasks = [make_task(payloads=(payload,))]
        async with serving(coordinator) as port:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.cut_after_down_bytes = proxy.cut_after_up_bytes = 900_000
                async with agent_at(proxy.port, tmp_path, compute=FakeCompute(update_bytes=3 * 2**20)) as bench:
                    await bench.agent.run()
        (data,) = coordinator.accepted.values()
        assert len(data) > 3 * 2**20
        assert len(coordinator.downloads) >= 3
        assert len(coordinator.uploads) >= 3
        assert len(bench.compute.trained) == 1
        assert len(bench.disclosures()) == 1
    run(work())


# Answers without an update --------------------------------------------------------------------------------------------


def test_an_abstention_is_an_answer_with_its_reason_and_metrics(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        compute = FakeCompute(abstention="no_confident_example", metrics={"label_ratio": 0.0})
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        (begin,) = coordinator.begins
        assert begin.abstention.reason == "no_confident_example"
        assert dict(begin.abstention.metrics) == {"label_ratio": 0.0}
        assert [entry["kind"] for entry in bench.disclosures()] == ["abstention"]
        assert "nothing to send this round: no_confident_example" in bench.text
    run(work())


@pytest.mark.parametrize(("policy", "code", "word"), [
    (Policy(permit=Permit(methods=())), "METHOD_NOT_PERMITTED", "semifl"),
    (Policy(permit=Permit(groups=("model",))), "NOT_PERMITTED", "batch_norm"),
    (Policy(permit=Permit(metrics=())), "NOT_PERMITTED", "label_ratio"),
    (Policy(limits=Limits(max_download_bytes=10)), "NOT_PERMITTED", "max_download_bytes"),
])
def test_what_the_site_does_not_permit_is_refused_before_anything_is_fetched(
        tmp_path: Path, policy: Policy, code: str, word: str) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(1000))
        coordinator.tasks = [make_task(1, payloads=(payload,)), make_task(2, payloads=(payload,))]
        async with serving(coordinator) as port, agent_at(port, tmp_path, policy=policy) as bench:
            await bench.agent.run()
        assert coordinator.outcomes() == ["refusal", "refusal"]  # and the agent lived on after the first
        assert coordinator.begins[0].refusal.code == code
        assert word in coordinator.begins[0].refusal.text
        assert coordinator.downloads == []
        assert bench.compute.trained == []
        assert [entry["kind"] for entry in bench.disclosures()] == ["refusal", "refusal"]
    run(work())


@pytest.mark.parametrize(("compute", "word"), [
    (FakeCompute(metrics={"patients": 12.0}), "patients"), (FakeCompute(group="images"), "images"),
    (FakeCompute(update_bytes=2_000_000), "max_upload_bytes"),
])
def test_a_result_that_holds_more_than_is_permitted_does_not_leave(
        tmp_path: Path, compute: FakeCompute, word: str) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        policy = Policy(limits=Limits(max_upload_bytes=1_000_000))
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute, policy=policy) as bench:
            await bench.agent.run()
        assert coordinator.outcomes() == ["refusal"]
        assert coordinator.begins[0].refusal.code == "NOT_PERMITTED"
        assert word in coordinator.begins[0].refusal.text
        assert coordinator.uploads == []
        assert all(entry["kind"] == "refusal" for entry in bench.disclosures())
    run(work())


def test_a_refusal_names_no_path_of_this_machine(tmp_path: Path) -> None:
    async def work() -> None:
        compute = FakeCompute(errors=[NotPermitted("No file has the SHA-256 ab12 in /home/dr-smith/silo/model_files.")])
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        assert coordinator.begins[0].refusal.text == "No file has the SHA-256 ab12 in [path]"
    run(work())


def test_tasks_that_are_refused_in_a_row_come_no_faster_than_they_may(tmp_path: Path) -> None:
    """Each refusal is a line of the disclosures: a coordinator wrote 50 kB of them a second."""
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task(number, task_id=f"first/{number}/train/a")
                                             for number in range(1, 8)], after=OVER)
        async with serving(coordinator) as port, \
                agent_at(port, tmp_path, policy=Policy(permit=Permit(methods=()))) as bench:
            began = time.monotonic()
            await bench.agent.run()
        assert coordinator.outcomes() == ["refusal"] * 7
        assert time.monotonic() - began > 0.02 * sum(range(2, 8))
    run(work())


def test_settings_of_another_version_are_refused_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task(settings={"temperature": 2.0})], after=OVER)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
        refusal = coordinator.begins[0].refusal
        assert refusal.code == "BAD_CONFIGURATION"
        assert "temperature" in refusal.text
        assert bench.compute.trained == []
    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("settings", ['{"a":"\\ud800"}', '{"a":1e999}', '{"a":NaN}',
                                      '{"confidence_threshold":' + "9" * 400 + "}"])
def test_settings_that_are_no_unicode_or_no_numbers_are_refused_and_the_agent_goes_on(
        tmp_path: Path, settings: str) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task(1), make_task(2)], after=OVER)

        def alter(task: pb.Task) -> None:
            if task.round == 1:
                task.settings_json = settings
        coordinator.alter_task = alter
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            assert coordinator.outcomes() == ["refusal", "update"]
            asked = read_asked(bench.home.asked)
            assert [(each.round, each.outcome) for each in asked] == [(1, "refused"), (2, "updated")]
            json.dumps([dataclasses.asdict(each) for each in asked], ensure_ascii=False, allow_nan=False).encode()
    run(work())


def test_training_that_fails_once_is_done_again_and_twice_is_refused_without_naming_files(tmp_path: Path) -> None:
    async def work() -> None:
        crash = ComputeFailed("FileNotFoundError: '/scans/jane_doe.png' went away")
        for errors, outcome in ((1, "update"), (2, "refusal")):
            coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
            compute = FakeCompute(errors=[crash] * errors)
            async with serving(coordinator) as port, agent_at(port, tmp_path / outcome, compute=compute) as bench:
                await bench.agent.run()
            assert coordinator.outcomes() == [outcome]
            assert len(compute.trained) == 2
        refusal = coordinator.begins[0].refusal
        assert refusal.code == "COMPUTE_FAILED"
        assert "FileNotFoundError" in refusal.text
        assert "jane_doe" not in refusal.text
        assert "jane_doe" in bench.text  # here, where the files are, it is shown
    run(work())


def test_a_plug_in_that_fails_in_the_same_way_again_is_not_trained_twice(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        compute = FakeCompute(errors=[PluginFailed("The trainer 'x:Y' returned a NoneType.")])
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        assert (coordinator.begins[0].refusal.code, len(compute.trained)) == ("PLUGIN_FAILED", 1)
    run(work())


def test_words_of_code_that_is_not_semisilos_stay_here(tmp_path: Path) -> None:
    """A plug-in may raise an error of the catalogue, with a text that it has computed from images."""
    async def work() -> None:
        error = ComputeFailed("the mean of scan 17 is 0.871", remedy="look at scan 17")
        error.words_of_others = True
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        compute = FakeCompute(errors=[error, error])
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        refusal = coordinator.begins[0].refusal
        assert refusal.code == "COMPUTE_FAILED"
        assert "17" not in refusal.text
        assert "log" in refusal.text
        assert "the mean of scan 17 is 0.871" in bench.text
    run(work())


@pytest.mark.parametrize("against", ["", "hospital-b"])
def test_a_refusal_of_a_secure_sum_names_the_silo_that_it_is_about(tmp_path: Path, against: str) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        compute = FakeCompute(errors=[SecureSumRefused("The shares cannot be opened.", against=against)])
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        assert coordinator.outcomes() == ["refusal"]
        assert coordinator.begins[0].refusal == pb.Refusal(
            code="SECURE_SUM_REFUSED", text="The shares cannot be opened.", against=against)
    run(work())


def test_images_that_cannot_be_used_are_refused_without_naming_them(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        compute = FakeCompute(errors=[BadData("/scans/jane_doe.png is no image.")])
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        assert coordinator.begins[0].refusal.code == "BAD_DATA"
        assert "jane" not in coordinator.begins[0].refusal.text
        assert "jane_doe.png is no image" in bench.text
    run(work())


def test_images_that_cannot_be_used_are_refused_from_then_on_without_a_download_until_they_have_changed(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    (scans / "jane_doe.png").write_bytes(b"broken")

    async def work() -> None:
        coordinator = FakeCoordinator(standby=pb.Standby(reason=pb.Standby.REASON_WAITING_FOR_SILOS))
        payloads = [coordinator.add_file(random_bytes(1000 + number)) for number in range(4)]
        given = [make_task(number, rounds=9, payloads=(payloads[number - 1],)) for number in (1, 2, 3, 4)]
        coordinator.tasks = given[:3]
        compute = FakeCompute(errors=[BadData("jane_doe.png is no image.", remedy='Or set on_error = "skip".')])
        async with serving(coordinator) as port, agent_at(
                port, tmp_path / "home", compute=compute, choice=JoinChoice(source=str(scans))) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.begins) == 3 and bench.status().tasks_answered == 3)
            assert [begin.refusal.code for begin in coordinator.begins] == ["BAD_DATA"] * 3
            assert {begin.refusal.text for begin in coordinator.begins} == {coordinator.begins[0].refusal.text}
            assert coordinator.downloads == [(payloads[0].digest, 0)], "those of the first task only"
            assert len(compute.trained) == 1
            status = bench.status()
            assert (status.refusals, status.refusal_code) == (3, "BAD_DATA")
            assert "jane_doe.png is no image" in status.last_refusal
            (scans / "jane_doe.png").write_bytes(b"fixed now")
            coordinator.tasks = given[3:]
            await until(lambda: bool(coordinator.accepted) and bench.status().tasks_answered == 4)
            assert coordinator.outcomes() == ["refusal"] * 3 + ["update"]
            assert (bench.status().refusals, bench.status().last_refusal) == (0, "")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
    with caplog.at_level("WARNING", logger="semisilo.silo"):
        run(work())
    (said,) = [record.getMessage() for record in caplog.records if "images of this site" in record.getMessage()]
    assert "jane_doe.png is no image" in said
    assert "`silo data`" in said
    assert 'on_error = "skip"' in said
    assert "restart `silo join`" in said


def test_a_study_that_ends_without_this_sites_approval_is_waited_for_no_longer(tmp_path: Path) -> None:
    """It said for days that it waits for a person, and was away for the coordinator."""
    class WithCard(FakeCoordinator):
        async def DescribeStudyCard(self, request: pb.DescribeStudyCardRequest,
                                    context: Any) -> pb.DescribeStudyCardResponse:
            return pb.DescribeStudyCardResponse(card_json=CARD.text())

    async def work() -> None:
        coordinator = WithCard(tasks=[TASK], standby=pb.Standby(reason=pb.Standby.REASON_NOT_SAMPLED, study="s",
                                                                round=1, round_count=3))
        async with serving(coordinator) as port, agent_at(port, tmp_path, policy=Policy(require=Require(approval=True)),
                                                          exit_when_finished=False) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: "waits for a person: silo approve s" in bench.text)
            assert coordinator.hellos[-1].away.reason == pb.Away.REASON_AWAITING_APPROVAL
            # The coordinator still names the study that is over.
            coordinator.tasks, coordinator.standby = [], pb.Standby(reason=pb.Standby.REASON_NO_STUDY, study="s",
                                                                    round=3, round_count=3, text="study s is complete")
            await until(lambda: "study s is over" in bench.text and not coordinator.hellos[-1].HasField("away"))
            assert "waits for a person" not in bench.status().state
            assert [entry.is_over(bench.status().works_on) for entry in CardBook(bench.home.cards).entries()] == [True]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    run(work())


@pytest.mark.parametrize(("fault", "state"), [
    (Unreachable("nobody there"), "stopped; it could not reach the coordinator"),
    (StorageDamaged("/hub/x: is damaged"), "stopped; it was in trouble"), (None, "stopped")])
def test_who_is_stopped_while_a_call_is_repeated_has_not_ended_by_that(
        tmp_path: Path, fault: SemisiloError | None, state: str) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(fault=lambda rpc, request: fault if rpc == "AwaitTask" else None)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: bool(bench.status().last_error) if fault else len(coordinator.hellos) > 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert (bench.status().state, bench.status().pid) == (state, 0)
            assert bool(bench.status().last_error) == (fault is not None)
    run(work())


def test_images_that_are_broken_for_one_study_are_tried_for_another(tmp_path: Path) -> None:
    async def work() -> None:
        tasks = [make_task(1), make_task(1, study="second", task_id="second/1/train/a")]
        coordinator = FakeCoordinator(tasks=tasks, after=OVER)
        compute = FakeCompute(errors=[BadData("A class that the study does not know.")])
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            await bench.agent.run()
        assert coordinator.outcomes() == ["refusal", "update"]
    run(work())


def test_the_first_answer_is_asked_for_soon_and_shown_with_the_connection_and_then_what_changes(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(hold_polls=True, standby=pb.Standby(
            reason=pb.Standby.REASON_COORDINATOR_WORKING, study="first", round=1, round_count=3, text="preparing"))
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.hellos) >= 4)
            assert coordinator.hellos[0].poll_timeout.ToMilliseconds() == 1000
            assert coordinator.hellos[1].poll_timeout.ToMilliseconds() == 2000  # what this test asks for
            coordinator.standby = pb.Standby(reason=pb.Standby.REASON_WAITING_FOR_SILOS)
            await until(lambda: "waiting for other silos" in bench.text)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        lines = [line[20:] for line in bench.text.splitlines()]
        assert lines[-3:] == [
            "connecting to hub:8443",
            "connected to lung at hub:8443; first, round 1/3: waiting for the coordinator (preparing)",
            "waiting for other silos to join"]
    run(work())


def test_what_the_coordinator_warns_of_is_shown_once_and_in_the_status_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(warning="silo 'a': its identity is in use \x1b[2Jtwice")
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.hellos) >= 4)
            said = printable(coordinator.warning)
            assert bench.text.count(f"the coordinator warns: {said}") == 1
            assert bench.status().warning == said
            coordinator.warning = ""
            await until(lambda: not bench.status().warning)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        processes = {hello.process for hello in coordinator.hellos}
        assert [len(each) for each in processes] == [8], "one process, one name"
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: coordinator.hellos[-1].process not in processes)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    run(work())


# Ends before the end --------------------------------------------------------------------------------------------------


def test_an_abort_kills_training_and_the_agent_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task(1)], after=OVER, abort_reason="the round is closed")
        compute = FakeCompute(hang=True)
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: compute.aborted > 0)
            compute.hang, coordinator.abort_reason, coordinator.tasks = False, "", [make_task(2)]
            await running
        assert "dropped: the round is closed" in bench.text
        assert [begin.task_id for begin in coordinator.begins] == ["first/2/train/a"]
    run(work())


def test_a_task_that_closes_while_it_is_fetched_is_dropped(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(1000))
        coordinator.tasks = [make_task(payloads=(payload,))]
        coordinator.fault = lambda rpc, _: TaskClosed("The round is over.") if rpc == "DownloadPayload" else None
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
        assert "dropped: The round is over." in bench.text
        assert coordinator.begins == []
    run(work())


@pytest.mark.slow
def test_a_coordinator_of_many_silos_hears_at_its_interval_and_not_of_every_stage(
        monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    class Answering:
        async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
            heard.append(request.stage)
            return pb.ReportProgressResponse()

    async def stages(watch: Watch, *, prompt: bool) -> None:
        for stage in (pb.ReportProgressRequest.STAGE_DOWNLOADING, pb.ReportProgressRequest.STAGE_TRAINING,
                      pb.ReportProgressRequest.STAGE_UPLOADING):
            watch.stage(stage)
            if prompt:
                await until(lambda stage=stage: stage in heard)
            else:
                await asyncio.sleep(0.02)
        await until(lambda: bool(heard))

    async def nothing() -> None:
        return None

    async def never() -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def work() -> None:
        monkeypatch.setattr("semisilo.silo.agent.watch._SHORT_STAGE_SECONDS", 0.01)
        monkeypatch.setattr("semisilo.silo.agent.watch._PROMPT_SECONDS", 0.3)
        for interval, prompt in ((0.3, True), (1.0, False)):
            heard.clear()
            watch = Watch(make_task(), cast(Any, Answering()), PlainDisplay(io.StringIO()), interval_seconds=interval)
            await watch.over(stages(watch, prompt=prompt), stop=nothing, hours_over=never)
            assert prompt or heard == [pb.ReportProgressRequest.STAGE_UPLOADING]
    run(work())


def test_of_many_silos_one_that_only_waits_to_transfer_sends_no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call is in flight, by which the coordinator knows that it is there. While it trains there is no such call."""
    heard: list[tuple[int, float]] = []

    class Answering:
        async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
            heard.append((request.stage, request.fraction))
            return pb.ReportProgressResponse()

    async def stages(watch: Watch) -> None:
        watch.stage(pb.ReportProgressRequest.STAGE_DOWNLOADING)
        await asyncio.sleep(0.05)
        assert heard == [], "it waits for its turn"
        watch.tell(0.5, "half of it")
        await until(lambda: len(heard) == 1)
        await asyncio.sleep(0.05)
        assert len(heard) == 1, "nothing has moved since"
        watch.stage(pb.ReportProgressRequest.STAGE_TRAINING)
        await until(lambda: len(heard) >= 4)  # at every interval, whether an epoch has passed or not
        assert set(heard[1:]) == {(pb.ReportProgressRequest.STAGE_TRAINING, 0.0)}

    async def nothing() -> None:
        return None

    async def never() -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def work() -> None:
        monkeypatch.setattr("semisilo.silo.agent.watch._PROMPT_SECONDS", 0.001)
        watch = Watch(make_task(), cast(Any, Answering()), PlainDisplay(io.StringIO()), interval_seconds=0.01)
        await watch.over(stages(watch), stop=nothing, hours_over=never)
    run(work())


@pytest.mark.parametrize(("options", "told"), [
    ({}, (0.3799, "training on 81 images")), ({"secure": "00"}, (0.3, "")), ({"method": "ours"}, (0.3799, ""))])
def test_of_a_secure_sum_no_words_and_no_exact_share_are_told_and_of_a_plug_in_no_words(
        options: dict[str, Any], told: tuple[float, str]) -> None:
    """Words name the images that have a pseudo-label, and the share of a step in all of them tells their number. Those
    of a plug-in are whatever its author writes."""
    heard: list[pb.ReportProgressRequest] = []

    class Answering:
        async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
            heard.append(request)
            return pb.ReportProgressResponse()

    async def train(watch: Watch) -> None:
        watch.stage(pb.ReportProgressRequest.STAGE_TRAINING)
        watch.tell(0.3799, "training on 81 images")
        await until(lambda: bool(heard))

    async def nothing() -> None:
        return None

    async def never() -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def work() -> None:
        output = io.StringIO()
        watch = Watch(make_task(**options), cast(Any, Answering()), PlainDisplay(output), interval_seconds=0.2)
        await watch.over(train(watch), stop=nothing, hours_over=never)
        assert {(round(each.fraction, 4), each.text) for each in heard} == {told}
        assert all(each.stage == pb.ReportProgressRequest.STAGE_TRAINING for each in heard)
    run(work())


def test_work_that_fails_at_the_moment_when_a_stage_begins_ends_the_reports_as_well() -> None:
    """The report that the new stage sets off and the cancellation that the failure sets off come in the same turn."""
    class Answering:
        async def report_progress(self, request: pb.ReportProgressRequest) -> pb.ReportProgressResponse:
            return pb.ReportProgressResponse()

    async def work() -> None:
        for turns in range(20):
            watch = Watch(make_task(), cast(Any, Answering()), PlainDisplay(io.StringIO()), interval_seconds=1000.0)

            async def fail(watch: Watch = watch, turns: int = turns) -> None:
                await asyncio.sleep(0.001)
                watch.stage(pb.ReportProgressRequest.STAGE_TRAINING)
                for _ in range(turns // 4):
                    await asyncio.sleep(0)
                raise BadData("no")

            async def stop() -> None:
                return None

            async def never() -> str:
                await asyncio.Event().wait()
                raise AssertionError("unreachable")
            async with asyncio.timeout(60):
                with pytest.raises(BadData):
                    await watch.over(fail(), stop=stop, hours_over=never)
    run(work())


def test_a_late_update_is_dropped_with_the_reason_and_the_agent_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER, refuse_reason="the round is closed")
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
        assert "not wanted any more: the round is closed" in bench.text
        assert coordinator.uploads == []
        assert bench.status().tasks_answered == 0
    run(work())


def test_an_update_of_a_study_that_waits_for_its_turn_is_kept_and_sent_as_it_is_once_the_study_goes_on(
        tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            if rpc == "AwaitTask" and len(coordinator.hellos) < 3:
                coordinator.tasks = [make_task()]  # the study goes on
            waits = rpc == "BeginUpdate" and len(coordinator.hellos) < 3
            return TaskClosed("The study first waits for its turn.") if waits else None
        coordinator.fault = fault
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            assert "dropped: The study first waits for its turn." in bench.text
            assert len(coordinator.accepted) == 1
            assert len(bench.compute.trained) == 1, "it trained once"
            assert bench.status().tasks_answered == 1
    run(work())


def test_what_a_late_update_left_is_dropped_before_another_task_even_from_a_full_disk(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER, refuse_reason="the round is closed")
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            memory, tries = bench.agent._memory, 0
            drop = memory.refused

            def full(task_id: str) -> None:
                nonlocal tries
                tries += 1
                assert len(coordinator.hellos) == 1, "another task was asked for"
                if tries < 4:
                    raise OSError(errno.ENOSPC, "No space left on device")
                drop(task_id)
            memory.refused = full  # type: ignore[method-assign]
            await bench.agent.run()
            assert tries == 4
            assert "not wanted any more: the round is closed" in bench.text
            assert memory.pending_for(make_task().task_id) is None
    run(work())


def test_a_disk_without_room_for_the_answer_is_said_once_and_nothing_is_trained_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            memory, tries = bench.agent._memory, 0

            def check_room(study: str) -> None:
                nonlocal tries
                tries += 1
                assert not bench.compute.trained
                if tries < 4:
                    raise DiskFull("/silo/memory: training would leave 2 MB here, and not so much is free.",
                                   remedy="Free some space.")
            memory.check_room = check_room  # type: ignore[method-assign]
            assert await bench.agent.run() == "reached 91.2 %"
            assert (tries, len(bench.compute.trained)) == (4, 1)
            lines = [line for line in bench.text.splitlines() if "put off: /silo/memory: training would" in line]
            assert len([line for line in lines if "on the wire" in line]) == 1
            assert len(lines) <= 2, "and what it is doing, which a log shows when it changes"
            assert bench.text.count(": training (semifl") == 1
    run(work())


def test_a_phase_that_only_measures_is_not_called_training(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task(phase="statistics")], after=OVER)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            assert await bench.agent.run() == "reached 91.2 %"
            assert "round 1/3: measuring batch-norm statistics (479 images)" in bench.text
            assert ": batch-norm statistics of " in bench.text
            assert "measured in 1.5 s)" in bench.text
            assert "train" not in bench.text
    run(work())


@pytest.mark.parametrize("deaths", [1, 2])
def test_the_images_are_read_again_when_the_process_that_reads_them_is_killed(tmp_path: Path, deaths: int) -> None:
    """`silo join` ended, though a task is done again."""
    class Dying(FakeCompute):
        tries = 0

        async def call(self, request: Any, *, on_progress: Any = None) -> Any:
            if isinstance(request, Survey):
                self.tries += 1
                if self.tries <= deaths:
                    raise ComputeDied("The compute process was killed by signal 9 during 'start'.")
            return await super().call(request, on_progress=on_progress)

    async def work() -> None:
        coordinator, compute = FakeCoordinator(tasks=[make_task()], after=OVER), Dying()
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            if deaths < 2:
                assert await bench.agent.run() == "reached 91.2 %"
            else:
                with pytest.raises(ComputeDied):
                    await bench.agent.run()
        assert compute.tries == 2
    run(work())


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"),
                                   BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")])
def test_a_task_for_which_no_thread_or_process_can_be_started_is_put_off(tmp_path: Path, error: Exception) -> None:
    """As with TasksMax of systemd. Python gives a thread that it cannot start no number of the system's: `silo join`
    ended with a stack trace. And a task was refused whose compute process could not be started."""
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            tries = 0

            def resolve(*words: object, **named: object) -> None:
                nonlocal tries
                tries += 1
                if tries < 4:
                    raise error
            bench.agent._memory.resolve = resolve  # type: ignore[method-assign]
            assert await bench.agent.run() == "reached 91.2 %"
            assert (tries, len(bench.compute.trained)) == (4, 1)
            assert "put off: " in bench.text
            assert "TasksMax" in bench.text
    run(work())


def test_a_silo_that_died_half_way_through_its_upload_sends_the_same_update_without_training_again(
        tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        first_try: list[bool] = []

        def objection(update_id: str) -> SemisiloError | None:
            first_try.append(True)
            coordinator.spool[update_id] = coordinator.spool[update_id][:1_000_000]  # the rest had not reached the disk
            return Unreachable("stands for a cut")
        coordinator.objection = objection
        compute = FakeCompute(update_bytes=2_000_000)
        async with serving(coordinator) as port:
            async with agent_at(port, tmp_path, compute=compute) as bench:
                dying = asyncio.ensure_future(bench.agent.run())
                await until(lambda: bool(first_try))
                dying.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await dying
            uploads = len(coordinator.uploads)
            coordinator.objection = lambda _: None
            async with agent_at(port, tmp_path, compute=compute) as bench:
                await bench.agent.run()
        assert len(compute.trained) == 1
        assert len({begin.update_id for begin in coordinator.begins}) == 1
        assert coordinator.begins[0] == coordinator.begins[-1]
        assert coordinator.uploads[uploads][1] == 1_000_000
        assert len(coordinator.accepted) == 1
        assert len(bench.disclosures()) == 1
        assert "the answer was ready before; it is sent again" in bench.text
    run(work())


def test_an_answer_that_was_ready_before_a_restart_does_not_leave_when_silo_toml_forbids_it_since(
        tmp_path: Path) -> None:
    """The policy was asked when the answer was made; the restart brought another policy."""
    async def work() -> None:
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        declared: list[str] = []

        def unreachable(rpc: str, request: Any) -> SemisiloError | None:
            if rpc == "BeginUpdate":
                declared.append(request.WhichOneof("outcome"))
            return Unreachable("stands for a cut") if rpc == "BeginUpdate" else None
        coordinator.fault = unreachable
        compute = FakeCompute(update_bytes=40_000)
        async with serving(coordinator) as port:
            async with agent_at(port, tmp_path, compute=compute) as bench:
                dying = asyncio.ensure_future(bench.agent.run())
                await until(lambda: bool(declared))
                dying.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await dying
            coordinator.fault = lambda rpc, request: None
            stricter = Policy(limits=Limits(max_upload_bytes=10_000))
            async with agent_at(port, tmp_path, compute=compute, policy=stricter) as bench:
                await bench.agent.run()
        assert declared[0] == "update"
        assert len(compute.trained) == 1
        assert "the answer was ready before" in bench.text
        assert coordinator.outcomes() == ["refusal"]
        assert "max_upload_bytes" in coordinator.begins[0].refusal.text
        assert (coordinator.uploads, coordinator.accepted) == ([], {})
    run(work())


def test_a_revoked_silo_stops_with_the_line_wherever_it_hears_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        revoked = CertificateRevoked("The operator has revoked silo 'a'.", remedy="Ask for a new invitation.")
        for rpc in ("AwaitTask", "DownloadPayload", "ReportProgress", "BeginUpdate", "SubmitUpdate"):
            coordinator = FakeCoordinator(after=OVER)
            payload = coordinator.add_file(random_bytes(1000))
            coordinator.tasks = [make_task(payloads=(payload,))]
            coordinator.fault = lambda asked, _, rpc=rpc: revoked if asked == rpc else None
            compute = FakeCompute(hang=rpc == "ReportProgress")
            async with serving(coordinator) as port, agent_at(port, tmp_path / rpc, compute=compute) as bench:
                with pytest.raises(CertificateRevoked) as caught:
                    await bench.agent.run()
            assert caught.value.line() == revoked.line()
            assert bench.status().last_error == revoked.line()
            assert coordinator.accepted == {}
    run(work())


@pytest.mark.slow
def test_what_the_coordinator_objects_to_one_call_stays_in_the_status_while_it_answers_others(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reports of progress got through all the time, and each wiped off what kept the silo from its work."""
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        coordinator.tasks = [make_task(payloads=(coordinator.add_file(random_bytes(1000)),))]
        begun: list[str] = []
        trouble = [StorageDamaged("/hub/payloads/7e: is damaged")]

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            begun.extend([rpc] if rpc == "BeginUpdate" else [])
            return trouble[0] if rpc == "BeginUpdate" and trouble else None
        coordinator.fault = fault
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(begun) >= 3 and bool(bench.status().last_error))
            reports = len(coordinator.reports)
            await until(lambda: len(coordinator.reports) >= reports + 3)
            assert "Internal error" in bench.status().last_error
            assert "connected to" not in bench.text.partition("Internal error")[2]
            trouble.clear()
            await running
            assert bench.status().last_error == ""
        assert coordinator.outcomes() == ["update"]
    run(work())
    assert sum("goes on trying: Internal error" in each.getMessage() for each in caplog.records) == 1


def test_images_that_cannot_be_read_at_all_stop_the_agent_before_it_connects(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator()
        compute = FakeCompute(survey_error=BadData("/scans holds no image."))
        async with serving(coordinator) as port, agent_at(port, tmp_path, compute=compute) as bench:
            with pytest.raises(BadData, match="no image"):
                await bench.agent.run()
        assert coordinator.hellos == []
        assert not bench.home.choice.exists()  # and are not remembered
    run(work())


# Waiting --------------------------------------------------------------------------------------------------------------


def test_a_silo_whose_labels_are_gone_since_the_last_time_stops_unless_it_is_told_that_it_has_none(
        tmp_path: Path) -> None:
    """A share that is not mounted after a restart leaves an empty folder."""
    class Unmounted(FakeCompute):
        def _surveyed(self, request: Survey) -> Surveyed:
            return replace(super()._surveyed(request), labelled=0)

    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        async with serving(coordinator) as port:
            coordinator.tasks = [make_task()]
            async with agent_at(port, tmp_path) as bench:
                await bench.agent.run()
                assert bench.compute.trained[0].announced_labelled == 4
                assert bench.compute.trained[0].announced_least == 4
            for _ in range(2):
                asked = len(coordinator.hellos)
                async with agent_at(port, tmp_path, compute=Unmounted()) as bench:
                    with pytest.raises(BadData, match="/scans: 4 images had a label when this silo was here last"):
                        await bench.agent.run()
                    assert bench.status().state == "stopped"
                assert len(coordinator.hellos) == asked
            for number, choice in ((2, replace(SCANS, use_labels=False)), (3, JoinChoice(source="/other"))):
                coordinator.tasks = [make_task(number)]
                async with agent_at(port, tmp_path, compute=Unmounted(), choice=choice) as bench:
                    await bench.agent.run()
                    assert coordinator.hellos[-1].labelled_count == 0
    run(work())


def test_no_study_ends_the_agent_only_after_it_has_taken_part(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(standby=OVER)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.hellos) >= 2)
            assert not running.done()
            coordinator.standby = pb.Standby(reason=pb.Standby.REASON_NOT_SAMPLED, study="first", round=1,
                                             round_count=3)
            await until(lambda: bench.status().study == "first")
            coordinator.standby = OVER
            assert await running == "reached 91.2 %"
    run(work())


def test_what_a_silo_hears_that_is_set_aside_is_noted_until_it_is_asked_again(tmp_path: Path) -> None:
    """For `silo check`."""
    async def work() -> None:
        aside = pb.Standby(reason=pb.Standby.REASON_SET_ASIDE, study="first", round=1, round_count=3,
                           text="set aside at the coordinator: it stands out")
        coordinator = FakeCoordinator(standby=aside)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: bench.status().set_aside == aside.text)
            coordinator.standby = pb.Standby(reason=pb.Standby.REASON_NOT_SAMPLED, study="first", round=1,
                                             round_count=3)
            await until(lambda: not bench.status().set_aside)
            coordinator.standby = aside
            await until(lambda: bench.status().set_aside == aside.text)
            coordinator.tasks = [TASK]
            await until(lambda: bench.status().last_task == TASK.task_id and not bench.status().set_aside)
            running.cancel()
    run(work())


def test_a_silo_that_was_away_when_its_study_ended_still_ends_but_not_twice(tmp_path: Path) -> None:
    async def work() -> None:
        StatusFile(tmp_path / "status.json").update(now_unix=1.0, study="first", round=2)
        coordinator = FakeCoordinator(standby=OVER)
        async with serving(coordinator) as port:
            async with agent_at(port, tmp_path) as bench:
                assert await bench.agent.run() == "reached 91.2 %"
            async with agent_at(port, tmp_path) as bench:
                running = asyncio.ensure_future(bench.agent.run())
                await until(lambda: len(coordinator.hellos) >= 3)
                assert not running.done()  # it waits for the next study
                running.cancel()
    run(work())


@pytest.mark.slow
def test_a_coordinator_that_does_not_hold_polls_is_not_asked_without_pause(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(hold_polls=False)
        async with serving(coordinator) as port, agent_at(port, tmp_path, quick_seconds=None) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.hellos) >= 2)
            began = time.monotonic()
            await until(lambda: len(coordinator.hellos) >= 4)
            assert time.monotonic() - began > 1.0, "pauses of half a second and of three quarters"
            running.cancel()
    run(work())


@pytest.mark.slow
def test_a_task_that_cannot_be_answered_is_not_tried_without_pause(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator()

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            coordinator.tasks = [make_task(settings={"unknown": 1})]
            return TaskClosed("closed, and yet given again") if rpc == "BeginUpdate" else None
        coordinator.fault = fault
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            began = time.monotonic()
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.hellos) >= 7)
            assert time.monotonic() - began > 0.35, "pauses of 0.01, 0.02, 0.04, 0.08, 0.1 and 0.1 s at least"
            running.cancel()
    run(work())


def test_a_silo_whose_answers_are_not_wanted_does_not_hold_up_one_round_after_another_for_longer(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        coordinator, drawn = FakeCoordinator(), list[float]()

        def recorded(*args: Any, **kwargs: Any) -> Iterator[float]:
            for pause in waits(*args, **kwargs):
                drawn.append(pause)
                yield pause

        def fault(rpc: str, request: Any) -> SemisiloError | None:
            number = len(coordinator.hellos)
            coordinator.tasks = [make_task(number, rounds=99, settings={"unknown": 1})]
            return TaskClosed("not accepted") if rpc == "BeginUpdate" else None
        coordinator.fault = fault
        monkeypatch.setattr("semisilo.silo.agent.agent.waits", recorded)
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(drawn) >= 5)
            assert len(set(drawn)) == 1, "each round begins with the shortest pause"
            running.cancel()
    run(work())


def test_what_the_coordinator_writes_cannot_move_the_cursor(tmp_path: Path) -> None:
    async def work() -> None:
        standby = pb.Standby(reason=pb.Standby.REASON_PAUSED, study="first", round_count=3,
                             text="\x1b[2Jpaused\nerror: fake")
        async with serving(FakeCoordinator(standby=standby)) as port, agent_at(port, tmp_path) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: "paused" in bench.text)
            running.cancel()
        assert "\x1b" not in bench.text
        assert not any(line.startswith("error") for line in bench.text.splitlines())
    run(work())


def test_the_certificate_is_renewed_when_due_on_a_new_connection_and_a_failure_is_no_end(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator()
        answers: list[bool | SemisiloError] = [Unreachable("away"), SemisiloError("a fault"), True]
        due = [0.0]
        channels = []

        async def renew() -> bool:
            answer = answers.pop(0)
            if isinstance(answer, SemisiloError):
                raise answer
            due[0] = time.time() + 1000
            return answer

        def build(link: Link) -> Renewal:
            renewal = Renewal(renew, due=lambda: due[0], link=link, display=display, pause_seconds=0.05)
            channels.append(link.channel)
            return renewal
        output = io.StringIO()
        display = PlainDisplay(output)
        async with serving(coordinator) as port, agent_at(port, tmp_path, renew=build) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: not answers)
            polls = len(coordinator.hellos)
            await until(lambda: len(coordinator.hellos) > polls)
            assert bench.link.channel is not channels[0]
            running.cancel()
        assert "could not be renewed yet: a fault" in output.getvalue()
        assert "was renewed" in output.getvalue()
    run(work())


# Once -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_waits_only_for_a_while_ends_when_there_is_no_study_or_nobody_answers(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(standby=pb.Standby(reason=pb.Standby.REASON_NO_STUDY))
        async with serving(coordinator) as port, agent_at(port, tmp_path / "idle", idle_seconds=2.5) as bench:
            assert await bench.agent.run() == ""
            assert not bench.agent.has_worked
            assert coordinator.hellos
        async with agent_at(free_ports(), tmp_path / "alone", idle_seconds=0.5) as bench:
            assert await bench.agent.run() == ""
            assert not bench.agent.has_worked
    run(work())


@pytest.mark.slow
def test_who_waits_only_for_a_while_stays_as_long_as_there_is_a_study(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator()
        async with serving(coordinator) as port, agent_at(port, tmp_path, idle_seconds=2.5) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(coordinator.hellos) >= 2)
            await asyncio.sleep(2.7)  # longer than it would wait for a study
            assert not running.done()
            coordinator.after, coordinator.tasks = OVER, [make_task()]
            assert await running == "reached 91.2 %"
            assert bench.agent.has_worked
            assert coordinator.begins
    run(work())
