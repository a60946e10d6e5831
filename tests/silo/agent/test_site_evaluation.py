"""The agent evaluates global models on its own test images while it waits, and says so only where it may."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import ComputeFailed, SemisiloError, SystemTrouble
from semisilo.common.methods.contract import PayloadRef
from semisilo.common.storage.store import PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent import agent, site_evaluation
from semisilo.silo.agent.task_runner import TaskOutcome
from semisilo.silo.compute.messages import Evaluated
from semisilo.silo.site.disclosures import Disclosure, DisclosureLog, Kind
from semisilo.silo.site.evaluations import read_evaluations
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.policy import Limits, Permit, Policy, Require
from semisilo.silo.site.working_hours import Hours
from semisilo.silo.study_cards.book import CardBook
from tests.proxy import Proxy
from tests.silo.agent.test_agent import OVER, Bench, agent_at, run, until
from tests.silo.agent.test_away import EVENING, NIGHTS, NOON, Clock
from tests.silo.fake_coordinator import FakeCompute, FakeCoordinator, make_task, random_bytes, serving
from tests.study_cards import CARD

TESTED = JoinChoice(source="/scans", test="/scans-for-testing")
PERMITTED = Policy(permit=Permit(site_evaluation=True))


def coordinator_with(*model_rounds: int | None, **changes: Any) -> FakeCoordinator:
    """Tasks of rounds 1, 2, ... that bring the model of these rounds."""
    made = FakeCoordinator(after=OVER)
    payload = made.add_file(random_bytes(3000), tensors="7e" * 32)
    made.tasks = [make_task(number, task_id=f"first/{number}/train/a", payloads=(payload,), model_round=model_round,
                            measure="recall:y", **changes) for number, model_round in enumerate(model_rounds, 1)]
    return made


def coordinator_payloads(coordinator: FakeCoordinator) -> tuple[PayloadRef, ...]:
    ((digest, data),) = coordinator.files.items()
    return (PayloadRef(digest, len(data), ("model",), tensors="7e" * 32),)


def recorded(bench: Bench) -> list[int]:
    return [each.evaluation.round for each in read_evaluations(bench.home.evaluations)]


def told(coordinator: FakeCoordinator) -> list[pb.SiteEvaluation]:
    return [each for hello in coordinator.hellos for each in hello.evaluations]


def kinds(bench: Bench) -> list[str]:
    return [each["kind"] for each in bench.disclosures()]


def test_by_default_the_numbers_are_recorded_and_shown_here_and_nothing_of_them_leaves(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0, 1)
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED) as bench:
            await bench.agent.run()
            assert recorded(bench) == [0, 1]
            (first, second) = bench.compute.evaluated
            assert (first.task.model_round, second.task.round, first.choice) == (0, 2, TESTED)
            assert "study first, model of round 1: accuracy 72.5 % (57.2 to 83.9 %)" in bench.text
            assert "recall of y 90.0 %" in bench.text
            assert told(coordinator) == []
            assert kinds(bench) == ["update", "update", "model"], "the last one asks for the study's model"
    run(work())


def test_where_the_policy_permits_every_evaluation_is_written_down_and_sent_once(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0, 1)
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, policy=PERMITTED) as bench:
            await bench.agent.run()
            assert [(each.study, each.round, [(one.image_count, one.correct_count, one.auroc) for one in each.classes])
                    for each in told(coordinator)] == [("first", number, [(30, 20, 0.8), (10, 9, 0.8)])
                                                       for number in (0, 1)]
            entries = [each for each in bench.disclosures() if each["kind"] == "evaluation"]
            assert [(each["round"], each["content"]["images"]) for each in entries] == [(0, [30, 10]), (1, [30, 10])]
    run(work())


@pytest.mark.slow
def test_after_a_restart_the_newest_is_told_again_and_recorded_as_disclosed_once(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0, 1)
        for _ in range(2):
            async with serving(coordinator) as port, \
                    agent_at(port, tmp_path, choice=TESTED, policy=PERMITTED) as bench:
                await bench.agent.run()
            coordinator.tasks = [make_task(3, task_id="first/3/train/a", payloads=coordinator_payloads(coordinator))]
        assert [each.round for each in told(coordinator)] == [0, 1, 1]
        assert kinds(bench).count("evaluation") == 2
    run(work())


def test_another_federation_hears_nothing_of_the_last_ones_models(tmp_path: Path) -> None:
    """The newest evaluation went to whichever coordinator the silo called first after a restart."""
    async def work() -> None:
        async with serving(coordinator_with(0)) as port, \
                agent_at(port, tmp_path, choice=TESTED, policy=PERMITTED) as bench:
            await bench.agent.run()
        other = coordinator_with(0)
        async with serving(other) as port, \
                agent_at(port, tmp_path, choice=TESTED, policy=PERMITTED, federation="liver") as bench:
            await bench.agent.run()
        assert not other.hellos[0].evaluations
        assert [each.round for each in told(other)] == [0], "that of its own study of the same name"
        assert recorded(bench) == [0, 0]
    run(work())


def test_without_test_images_or_the_global_model_in_the_task_nothing_is_evaluated(tmp_path: Path) -> None:
    async def work(choice: JoinChoice, model_round: int | None, name: str) -> None:
        async with serving(coordinator_with(model_round)) as port, \
                agent_at(port, tmp_path / name, choice=choice) as bench:
            await bench.agent.run()
            assert bench.compute.evaluated == []
            assert len(bench.compute.trained) == 1
    run(work(JoinChoice(source="/scans"), 0, "one"))
    run(work(TESTED, None, "two"))


def test_a_phase_that_measures_statistics_is_no_reason_to_say_that_models_are_not_evaluated(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(phase: str) -> None:
        async with serving(coordinator_with(None, phase=phase)) as port, \
                agent_at(port, tmp_path / phase, choice=TESTED) as bench:
            await bench.agent.run()
            assert len(bench.compute.trained) == 1
    caplog.set_level("INFO", "semisilo.silo")
    run(work("statistics"))
    assert "not evaluated on this site's test images" not in caplog.text
    run(work("train"))
    assert "tasks do not bring the global model as it is" in caplog.text


def test_a_model_that_was_evaluated_is_not_again(tmp_path: Path) -> None:
    """After a failed round the next one starts from the same model."""
    async def work() -> None:
        async with serving(coordinator_with(0, 0)) as port, agent_at(port, tmp_path, choice=TESTED) as bench:
            await bench.agent.run()
            assert len(bench.compute.evaluated) == 1
    run(work())


def malformed(task: pb.Task) -> None:
    task.settings_json = "{"


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "alter"), [
    (replace(PERMITTED, permit=Permit(site_evaluation=True, methods=())), lambda task: None),
    (replace(PERMITTED, limits=Limits(max_download_bytes=10)), lambda task: None), (PERMITTED, malformed)],
    ids=["method", "limits", "malformed"])
def test_the_model_of_a_task_that_is_refused_is_not_evaluated_whatever_the_coordinator_says_to_the_refusal(
        tmp_path: Path, policy: Policy, alter: Callable[[pb.Task], None]) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0, 1)
        coordinator.refuse_reason, coordinator.alter_task = "the round is closed", alter
        outcomes = list[TaskOutcome]()
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, policy=policy) as bench:
            bench.agent._on_task = outcomes.append
            await bench.agent.run()
            assert "not wanted any more: the round is closed" in bench.text
            assert bench.status().refusals == 2
        assert coordinator.outcomes() == ["refusal", "refusal"]
        assert [each.kind for each in outcomes] == ["refused", "refused"]
        assert [(each.answered, each.wanted, each.done) for each in outcomes] == [(False, False, False)] * 2
        assert bench.compute.evaluated == []
        assert told(coordinator) == []
    run(work())


def test_the_model_of_a_task_that_was_done_too_late_is_evaluated(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0)
        coordinator.refuse_reason = "the round is closed"
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED) as bench:
            await bench.agent.run()
            assert recorded(bench) == [0]
    run(work())


def test_an_evaluation_that_fails_costs_no_task_and_the_next_model_is_evaluated(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0, 1)
        compute = FakeCompute(evaluation_errors=[ComputeFailed("out of memory")])
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, compute=compute) as bench:
            await bench.agent.run()
            assert coordinator.outcomes() == ["update", "update"]
            assert recorded(bench) == [1]
    run(work())


def test_a_task_waits_for_an_evaluation_only_so_long_and_then_stops_it(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_evaluation.SiteEvaluator.__init__, "__kwdefaults__", {"patience_seconds": 0.05})
    monkeypatch.setattr(agent, "_LAST_WORD_SECONDS", 0.2)

    async def work() -> None:
        coordinator = coordinator_with(0, 1)
        compute = FakeCompute(evaluation_hangs=True)
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, compute=compute) as bench:
            await bench.agent.run()
            assert coordinator.outcomes() == ["update", "update"]
            assert len(compute.trained) == len(compute.evaluated) == 2
            assert recorded(bench) == []
    run(work())


def test_the_silo_asks_on_while_it_evaluates(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = coordinator_with(0)
        coordinator.after = None
        compute = FakeCompute(evaluation_hangs=True)
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, compute=compute) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: bool(compute.evaluated))
            asked = len(coordinator.hellos)
            await until(lambda: len(coordinator.hellos) > asked + 2)
            compute.evaluation_hangs = False
            await until(lambda: recorded(bench) == [0])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    run(work())


def test_why_a_network_cannot_be_evaluated_here_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        compute = FakeCompute(evaluation=Evaluated(classes=(), why_not="it needs statistics"))
        async with serving(coordinator_with(0, 1)) as port, \
                agent_at(port, tmp_path, choice=TESTED, compute=compute) as bench:
            with caplog.at_level("INFO"):
                await bench.agent.run()
            assert caplog.text.count("it needs statistics") == 1
            assert recorded(bench) == []
    run(work())


def test_a_model_that_a_crash_has_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(coordinator_with(0)) as port, agent_at(port, tmp_path, choice=TESTED) as bench:
            left = bench.home.evaluated_models / ("ab" * 32)
            left.parent.mkdir(parents=True)
            left.write_bytes(b"model")
            await bench.agent.run()
            assert not left.exists()
    run(work())


def test_the_model_of_a_round_that_was_done_again_is_evaluated_again_and_named(tmp_path: Path) -> None:
    """The study has gone back to its beginning: round 0 has another model now."""
    async def work() -> None:
        coordinator = coordinator_with(0, 0, 0)
        coordinator.tasks = [replace(task, model_digest=digest * 32)
                             for task, digest in zip(coordinator.tasks, ("ab", "cd", "cd"), strict=True)]
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, policy=PERMITTED) as bench:
            await bench.agent.run()
            assert recorded(bench) == [0, 0]
            assert [each.model_digest.hex() for each in told(coordinator)] == ["ab" * 32, "cd" * 32]
    run(work())


def test_a_study_that_went_back_and_comes_to_the_same_models_is_told_of_them_again(tmp_path: Path) -> None:
    """The coordinator has deleted what it was told of the rounds that are gone; they are not measured again."""
    async def work() -> None:
        rounds = (0, 1, 1, 0, 1, 1)
        coordinator = coordinator_with(*rounds, rounds=len(rounds))
        coordinator.tasks = [replace(task, model_digest=f"{number:02x}" * 32)
                             for task, number in zip(coordinator.tasks, rounds, strict=True)]
        async with serving(coordinator) as port, agent_at(port, tmp_path, choice=TESTED, policy=PERMITTED) as bench:
            await bench.agent.run()
            assert recorded(bench) == [0, 1]
            assert [each.round for each in told(coordinator)] == [0, 1, 1]
    run(work())


# The model that a study hands over ------------------------------------------------------------------------------------


def naming(study: str = "first", *, model: bytes = b"the model") -> FakeCoordinator:
    """Names a study as under way, and then as over."""
    made = FakeCoordinator(model=model)
    made.standby.study = study

    def over(rpc: str, request: Any) -> None:
        if rpc == "AwaitTask" and made.hellos:
            made.after = OVER
    made.fault = over
    return made


def answered_before(folder: Path, study: str = "first", *, kind: Kind = "update") -> SiloHome:
    """A silo that has answered a task of a study, and was started again since."""
    folder.mkdir()
    home = SiloHome(folder)
    DisclosureLog(home.disclosures).record(Disclosure(kind=kind, study=study, method="semifl", update_id="0" * 32))
    return home


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["update", "abstention"])
def test_the_model_of_a_study_is_evaluated_also_where_the_silo_was_started_again_since_its_last_task(
        tmp_path: Path, kind: Kind) -> None:
    async def work() -> None:
        answered_before(tmp_path / "a", kind=kind)
        coordinator = naming()
        async with serving(coordinator) as port, agent_at(port, tmp_path / "a", choice=TESTED) as bench:
            await bench.agent.run()
            assert bench.compute.evaluated_files == [b"the model"]
            assert recorded(bench) == [3]
            assert coordinator.described == ["first"]
            store = PayloadStore(bench.home.evaluated_models)
            assert store.digests() == set()
            assert list((store.folder / "incoming").iterdir()) == []
    run(work())


def without_part(folder: Path) -> Policy:
    answered_before(folder, "another")
    return PERMITTED


def refused_alone(folder: Path) -> Policy:
    answered_before(folder, kind="refusal")
    return PERMITTED


def method_withdrawn(folder: Path) -> Policy:
    answered_before(folder)
    return replace(PERMITTED, permit=Permit(site_evaluation=True, methods=("fedavg",)))


def declined(folder: Path) -> Policy:
    book = CardBook(answered_before(folder).cards)
    card = book.arrived("first", CARD.digest(), CARD.text(), approval=False, now_unix=1.0)
    book.decide(card, approved=False, by="a person", now_unix=2.0)
    return PERMITTED


def changed_since(folder: Path) -> Policy:
    """Its card waits for a person again."""
    book = CardBook(answered_before(folder).cards)
    book.arrived("first", CARD.digest(), CARD.text(), approval=True, now_unix=1.0)
    return replace(PERMITTED, require=Require(approval=True))


def without_card(folder: Path) -> Policy:
    answered_before(folder)
    return replace(PERMITTED, require=Require(approval=True))


@pytest.mark.slow
@pytest.mark.parametrize("site", [without_part, refused_alone, method_withdrawn, declined, changed_since, without_card])
def test_the_model_of_a_study_that_this_site_has_not_agreed_to_is_not_even_asked_for(
        tmp_path: Path, site: Callable[[Path], Policy]) -> None:
    """A coordinator may name any study."""
    async def work() -> None:
        policy, coordinator = site(tmp_path / "a"), naming()
        async with serving(coordinator) as port, \
                agent_at(port, tmp_path / "a", choice=TESTED, policy=policy) as bench:
            await bench.agent.run()
            assert (coordinator.described, coordinator.downloads) == ([], [])
            assert bench.compute.evaluated_files == []
            assert "model" not in kinds(bench)
            assert told(coordinator) == []
    run(work())


def test_the_model_of_a_study_that_is_signed_where_a_person_must_is_evaluated(tmp_path: Path) -> None:
    async def work() -> None:
        book = CardBook(answered_before(tmp_path / "a").cards)
        card = book.arrived("first", CARD.digest(), CARD.text(), approval=True, now_unix=1.0)
        card = book.decide(card, approved=True, by="a person", now_unix=2.0)
        book.signed(card, b"signature", now_unix=3.0)
        coordinator = naming()
        async with serving(coordinator) as port, agent_at(
                port, tmp_path / "a", choice=TESTED, policy=Policy(require=Require(approval=True))) as bench:
            await bench.agent.run()
            assert bench.compute.evaluated_files == [b"the model"]
    run(work())


def test_the_model_of_a_study_is_put_off_outside_of_the_working_hours(tmp_path: Path) -> None:
    async def work() -> None:
        answered_before(tmp_path / "a")
        coordinator, clock = naming(), Clock(NOON)
        coordinator.heeds_away = False
        async with serving(coordinator) as port, agent_at(port, tmp_path / "a", choice=TESTED, policy=NIGHTS,
                                                          clock=clock, exit_when_finished=False) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: "study first is over" in bench.text and len(coordinator.hellos) >= 4)
            assert coordinator.described == []
            clock.set(EVENING)
            await until(lambda: recorded(bench) == [3])
            assert coordinator.described == ["first"]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    run(work())


def test_a_model_that_is_put_off_is_evaluated_by_the_next_silo_join_and_said_to_be_missing_by_this_one(
        tmp_path: Path) -> None:
    """It was forgotten with the process, without a word."""
    async def work() -> None:
        answered_before(tmp_path / "a")
        coordinator, clock = naming(), Clock(NOON)
        coordinator.heeds_away = False
        async with serving(coordinator) as port:
            async with agent_at(port, tmp_path / "a", choice=TESTED, policy=NIGHTS, clock=clock) as bench:
                await bench.agent.run()
                assert "the model of study first could not be fetched yet" in bench.text
                assert bench.status().final_of == "first"
            clock.set(EVENING)
            async with agent_at(port, tmp_path / "a", choice=TESTED, policy=NIGHTS, clock=clock,
                                exit_when_finished=False) as bench:
                running = asyncio.ensure_future(bench.agent.run())
                await until(lambda: recorded(bench) == [3])
                assert coordinator.described == ["first"]
                await until(lambda: bench.status().final_of == "")
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    run(work())


def failing(coordinator: FakeCoordinator, rpc: str, asked: list[str]) -> None:
    """Answers the first four such calls with a trouble of the system."""
    coordinator.model = b"the model"

    def away(called: str, request: Any) -> SemisiloError | None:
        if called != rpc:
            return None
        asked.append(called)
        return SystemTrouble("The disk of the coordinator is away.") if len(asked) <= 4 else None
    coordinator.fault = away


@pytest.mark.parametrize("rpc", ["DescribeModel", "DownloadModel"])
def test_a_model_that_cannot_be_fetched_keeps_no_task_waiting(tmp_path: Path, rpc: str) -> None:
    """The next study's tasks waited until it was there: for ever, where the coordinator cannot read it."""
    async def work() -> None:
        coordinator, asked = coordinator_with(0), list[str]()
        failing(coordinator, rpc, asked)
        payloads = coordinator_payloads(coordinator)
        async with serving(coordinator) as port, agent_at(port, tmp_path / "a", choice=TESTED,
                                                          exit_when_finished=False) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(asked) == 4 and bench.status().final_from_unix > 0)
            assert bench.status().last_error == ""
            coordinator.tasks = [make_task(1, study="second", task_id="second/1/train/a", payloads=payloads)]
            await until(lambda: len(bench.compute.trained) == 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    run(work())


def test_a_model_that_could_not_be_fetched_is_tried_again_ten_minutes_later(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator, asked, clock = coordinator_with(0), list[str](), Clock(NOON)
        failing(coordinator, "DownloadModel", asked)
        async with serving(coordinator) as port, agent_at(port, tmp_path / "a", choice=TESTED, clock=clock,
                                                          exit_when_finished=False) as bench:
            running = asyncio.ensure_future(bench.agent.run())
            await until(lambda: len(asked) == 4 and bench.status().final_from_unix > clock())
            before = len(coordinator.hellos)
            await until(lambda: len(coordinator.hellos) > before + 1)
            assert (len(asked), bench.status().final_of) == (4, "first")
            clock.set(NOON + 700)
            await until(lambda: recorded(bench) == [0, 3] and bench.status().final_of == "")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    run(work())


def test_what_has_come_of_a_model_before_a_crash_or_of_another_one_is_removed(tmp_path: Path) -> None:
    def left(home: SiloHome, key: str) -> None:
        with PayloadStore(home.evaluated_models).partial(key, size_bytes=10) as partial:
            partial.append(b"a mo", offset=0, crc32=zlib.crc32(b"a mo"))

    async def work() -> None:
        home = answered_before(tmp_path / "a")
        left(home, "ab" * 32)
        incoming = home.evaluated_models / "incoming"
        assert len(list(incoming.iterdir())) == 2
        coordinator = naming()
        over = coordinator.fault

        def another(rpc: str, request: Any) -> SemisiloError | None:
            if rpc == "AwaitTask" and not coordinator.hellos:
                assert list(incoming.iterdir()) == []
                left(home, "cd" * 32)
            if rpc == "DownloadModel":
                assert len(list(incoming.iterdir())) <= 2, "that of this model"
            return over(rpc, request)
        coordinator.fault = another
        async with serving(coordinator) as port, agent_at(port, tmp_path / "a", choice=TESTED) as bench:
            await bench.agent.run()
            assert bench.compute.evaluated_files == [b"the model"]
            assert list(incoming.iterdir()) == []
    run(work())


@pytest.mark.slow
def test_a_model_that_comes_in_vain_is_put_off_when_the_day_is_used_up_and_keeps_no_task_away(tmp_path: Path) -> None:
    """The line breaks before a piece is whole, again and again: what it has carried counts."""
    async def work() -> None:
        answered_before(tmp_path / "a")
        coordinator, clock = naming(model=random_bytes(1_500_000)), Clock(NOON)
        coordinator.chunk_bytes = 1_500_000
        policy = Policy(limits=Limits(bytes_per_day=2_000_000), hours=Hours(zone="UTC"))
        async with serving(coordinator) as port:
            with Proxy("127.0.0.1", port) as proxy:
                proxy.cut_after_down_bytes = 400_000
                async with agent_at(proxy.port, tmp_path / "a", choice=TESTED, policy=policy, clock=clock,
                                    exit_when_finished=False) as bench:
                    running = asyncio.ensure_future(bench.agent.run())
                    await until(lambda: bool(coordinator.downloads))
                    tried = asked = 0

                    def asks_without_trying() -> bool:  # how often it tried before depends on what the kernel told when
                        nonlocal tried, asked
                        if len(coordinator.downloads) > tried:
                            tried, asked = len(coordinator.downloads), len(coordinator.hellos)
                        return len(coordinator.hellos) > asked + 3
                    await until(asks_without_trying)
                    assert not coordinator.hellos[-1].HasField("away")
                    proxy.cut_after_down_bytes = None
                    await asyncio.to_thread(proxy.cut)
                    clock.set(NOON + 24 * 3600)
                    await until(lambda: recorded(bench) == [3])
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
    run(work())
