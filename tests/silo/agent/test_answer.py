"""From a task to an answer that may be sent: what is asked of the policy, what is durable, what is written down."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import ComputeFailed, DailyBudget, MethodNotPermitted, NotPermitted
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import PayloadRef, TaskSpec
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.silo.agent import answer as answer_module
from semisilo.silo.agent.answer import ReadyAnswer, Site, abstention_request, answer_task
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.site.disclosures import DisclosureLog, Line, read_lines
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.memory import SiloMemory, update_id_of
from semisilo.silo.site.policy import Limits, Permit, Policy
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending
from semisilo.silo.site.stores import open_cache
from tests.silo.fake_coordinator import FakeCompute, make_task


@dataclass
class Steps:
    """Payloads that need not come, training without a process."""

    compute: FakeCompute = field(default_factory=FakeCompute)
    fetched: list[str] = field(default_factory=list)
    upload_rate: float = 12.5
    room_bytes: int = 2**60
    found: int = 0
    """How often an answer was ready before."""

    def ready_before(self) -> None:
        self.found += 1

    async def fetch(self, task: TaskSpec) -> dict[str, Path]:
        self.fetched.append(task.task_id)
        return {}

    async def train(self, request: Train) -> Trained:
        return await self.compute.call(request)

    def check_room(self, size_bytes: int) -> None:
        if size_bytes > self.room_bytes:
            raise DailyBudget("Used up.")


def open_site(folder: Path, policy: Policy | None = None) -> Site:
    """The site as a process finds it that has just been started."""
    home = SiloHome(folder)
    return Site(policy=policy or Policy(), choice=JoinChoice(source="/scans"),
                disclosures=DisclosureLog(home.disclosures),
                memory=SiloMemory(home.memory, outgoing=home.outgoing), cache_folder=open_cache(home.cache).folder,
                privacy_folder=home.privacy)


def answered(task: TaskSpec, site: Site, steps: Steps) -> ReadyAnswer:
    return asyncio.run(answer_task(task, site, steps))


def recorded(folder: Path) -> list[Line]:
    return [line for line in read_lines(SiloHome(folder).disclosures) if isinstance(line, Line)]


def test_an_update_is_durable_and_written_down_when_it_is_handed_over(tmp_path: Path) -> None:
    steps = Steps()
    found = answered(make_task(), open_site(tmp_path), steps)
    payload = found.pending.payload
    assert payload is not None
    assert steps.found == 0
    assert open_site(tmp_path).memory.pending_for(found.task.task_id) == found.pending
    (line,) = recorded(tmp_path)
    assert (line.kind, line.update_id, line.digest, line.bytes) == (
        "update", found.pending.update_id, payload.digest, payload.size_bytes)
    assert (line.study, line.round, line.groups, line.num_examples, line.metrics) == (
        "first", 1, ("model",), 17, {"label_ratio": 0.5})
    assert [group.name for group in found.manifest] == ["model"]
    (request,) = steps.compute.trained
    assert (request.choice, request.link_bytes_per_second) == (JoinChoice(source="/scans"), 12.5)


def test_what_was_spent_by_then_is_written_down_also_where_the_study_has_gone_back_to_the_round(tmp_path: Path) -> None:
    """The very same task has the same noise and no line of its own, and another name. Its update was written down
    without a word of what was spent."""
    spent = Spending(time="2026-01-01T00:00:00+00:00", study="first", round=1, phase="train", task_id="first/1/train/a",
                     fingerprint="f1", images=17, noise_multiplier=1.0, clip_norm=1.0, sampling_rate=1.0, steps=1,
                     study_delta=1e-5, study_epsilon=1.0, delta=1e-6, epsilon=2.0)
    ledger, dp = PrivacyLedger(SiloHome(tmp_path).privacy), DifferentialPrivacy(noise_multiplier=1.0)
    ledger.append(spent)
    ledger.append(replace(spent, round=2, task_id="first/2/train/a", fingerprint="f2", study_epsilon=1.5, epsilon=2.5))
    ledger.append(replace(spent, study="second", task_id="second/1/train/a", fingerprint="f3", epsilon=3.0))
    answered(make_task(task_id="first/1/train/a/1", dp=dp), open_site(tmp_path), Steps())
    answered(make_task(study="third", task_id="third/1/train/a"), open_site(tmp_path), Steps())
    private, other = recorded(tmp_path)
    assert private.content == {"epsilon": 3.0, "delta": 1e-6, "study_epsilon": 1.5, "study_delta": 1e-5}
    assert other.content == {}


def test_an_abstention_is_written_down_with_the_reason_and_the_size_of_its_message(tmp_path: Path) -> None:
    found = answered(make_task(), open_site(tmp_path), Steps(FakeCompute(abstention="no_data")))
    assert found.manifest == ()
    (line,) = recorded(tmp_path)
    message = abstention_request(found.task.task_id, found.pending)
    assert (line.kind, line.text, line.bytes) == ("abstention", "no_data", message.ByteSize())


@pytest.mark.parametrize(("said", "heard"), [
    ("no_confident_example", "no_confident_example"), ("scan 17 scores 0.871 at best", "no_update"),
    ("no_data ", "no_update"), ("too_dark", "too_dark")])
def test_of_an_abstention_a_reason_leaves_that_the_method_declares_and_no_other_text(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str, heard: str
        ) -> None:
    """Whatever a plug-in's trainer writes there could be computed from images, and no policy is asked about it."""
    spec = replace(METHODS["semifl"], abstentions=("too_dark",))
    monkeypatch.setattr(answer_module, "check_task", lambda policy, task: spec)
    found = answered(make_task(), open_site(tmp_path), Steps(FakeCompute(abstention=said)))
    assert abstention_request(found.task.task_id, found.pending).abstention.reason == heard
    assert [line.text for line in recorded(tmp_path)] == [heard]
    assert open_site(tmp_path).memory.pending_for(found.task.task_id) == found.pending
    assert (said in caplog.text) is (said != heard), "whoever installed the method can read here what it said"


def test_a_text_that_an_earlier_version_has_kept_as_a_reason_does_not_leave(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "_without_words", lambda task, spec, trained: trained)
    answered(make_task(), open_site(tmp_path), Steps(FakeCompute(abstention="scan 17 scores 0.871")))
    monkeypatch.undo()
    steps = Steps()
    found = answered(make_task(), open_site(tmp_path), steps)
    assert steps.found == 1
    assert abstention_request(found.task.task_id, found.pending).abstention.reason == "no_update"
    assert recorded(tmp_path)[-1].text == "no_update"


@pytest.mark.parametrize("permitted", [True, False])
def test_images_may_lie_on_the_disk_where_the_policy_says_so(tmp_path: Path, permitted: bool) -> None:
    site = replace(open_site(tmp_path, Policy(limits=Limits(images_on_disk=permitted))), images_folder=tmp_path / "i")
    seen: list[Path | None] = []

    class Looking(Steps):
        async def train(self, request: Train) -> Trained:
            seen.append(request.images_folder)
            return await super().train(request)

    answered(make_task(), site, Looking())
    assert seen == [tmp_path / "i" if permitted else None]


def test_what_the_policy_does_not_permit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    steps = Steps()
    with pytest.raises(MethodNotPermitted):
        answered(make_task(), open_site(tmp_path, Policy(permit=Permit(methods=("fedmatch",)))), steps)
    assert (steps.fetched, steps.compute.trained, recorded(tmp_path)) == ([], [], [])


def test_a_task_whose_answer_is_durable_is_not_done_again_and_is_told_once(tmp_path: Path) -> None:
    first = answered(make_task(), open_site(tmp_path), Steps())
    steps = Steps()
    assert answered(make_task(), open_site(tmp_path), steps) == first
    assert (steps.fetched, steps.compute.trained, steps.found) == ([], [], 1)
    assert len(recorded(tmp_path)) == 1


def model_of(digest: str, *, coded: str = "1") -> tuple[PayloadRef, ...]:
    return (PayloadRef(coded * 64, 10, ("model",), tensors=digest * 64),)


@pytest.mark.parametrize("abstention", ["", "no_data"])
@pytest.mark.parametrize(("task", "is_another"), [
    (make_task(payloads=model_of("b")), True), (make_task(payloads=model_of("a"), last_folded_round=1), True),
    (make_task(payloads=model_of("a"), settings={**make_task().settings, "lr": 0.5}), True),
    (make_task(payloads=model_of("a", coded="2"), deadline_unix=5.0), False)])
def test_an_answer_to_another_task_of_the_same_name_is_not_sent(
        tmp_path: Path, task: TaskSpec, is_another: bool, abstention: str) -> None:
    """As after a restore of the coordinator: an update that refers to another model was refused, and a gradient, which
    refers to none, was folded, as an abstention counted. The same model may come in other bytes."""
    first = answered(make_task(payloads=model_of("a")), open_site(tmp_path), Steps(FakeCompute(abstention=abstention)))
    steps = Steps(FakeCompute(abstention=abstention))
    again = answered(task, open_site(tmp_path), steps)
    assert (steps.fetched, steps.found) == (([task.task_id], 0) if is_another else ([], 1))
    assert (again.pending == first.pending) is not is_another
    assert again.pending.update_id != first.pending.update_id or not is_another


def test_an_answer_that_an_earlier_version_has_left_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name says nothing of the task but the task's name."""
    monkeypatch.setattr(answer_module, "_update_id", lambda task, payload, abstention: update_id_of(
        task.task_id, payload.digest))
    first = answered(make_task(), open_site(tmp_path), Steps())
    monkeypatch.undo()
    steps = Steps()
    assert answered(make_task(), open_site(tmp_path), steps) == first
    assert (steps.fetched, steps.found) == ([], 1)


@pytest.mark.parametrize(("policy", "compute"), [
    (Policy(permit=Permit(metrics=tuple(name for name in Permit().metrics if name != "label_ratio"))), FakeCompute()),
    (Policy(limits=Limits(max_upload_bytes=1000)), FakeCompute()),
    (Policy(permit=Permit(metrics=())), FakeCompute(abstention="no_data")),
], ids=["metric", "size", "abstention"])
def test_an_answer_from_before_a_restart_is_held_against_the_silo_toml_of_today(
        tmp_path: Path, policy: Policy, compute: FakeCompute, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies between the durable answer and the record; silo.toml changes before it is started again."""
    monkeypatch.setattr(DisclosureLog, "record", lambda self, disclosure: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        answered(make_task(), open_site(tmp_path), Steps(compute))
    monkeypatch.undo()
    # A task of this method would be refused for its metrics as a whole; here the answer itself is in question.
    monkeypatch.setattr(answer_module, "check_task", lambda policy, task: answer_module_spec(task))
    steps = Steps()
    with pytest.raises(NotPermitted):
        answered(make_task(), open_site(tmp_path, policy), steps)
    assert (steps.compute.trained, recorded(tmp_path)) == ([], [])
    assert steps.found == 1, "whoever reads that it was refused reads first that it was ready"


def answer_module_spec(task: TaskSpec) -> Any:
    from semisilo.common.methods import find_method

    return find_method(task.method)


def test_what_training_brings_beyond_the_policy_is_neither_kept_nor_written_down(tmp_path: Path) -> None:
    with pytest.raises(NotPermitted, match="psi"):
        answered(make_task(), open_site(tmp_path), Steps(FakeCompute(group="psi")))
    assert open_site(tmp_path).memory.pending_for(make_task().task_id) is None
    assert recorded(tmp_path) == []


def test_the_file_itself_is_held_against_the_policy_and_not_what_was_said_of_it(tmp_path: Path) -> None:
    class Lying(FakeCompute):
        async def call(self, request: Any, *, on_progress: Any = None) -> Any:
            trained = await super().call(request, on_progress=on_progress)
            return replace(trained, payload=replace(trained.payload, groups=("model",)))

    with pytest.raises(NotPermitted, match="psi"):
        answered(make_task(), open_site(tmp_path), Steps(Lying(group="psi")))
    assert recorded(tmp_path) == []


def test_an_update_that_does_not_fit_into_the_day_is_forgotten_and_not_written_down(tmp_path: Path) -> None:
    with pytest.raises(DailyBudget):
        answered(make_task(), open_site(tmp_path), Steps(room_bytes=100))
    assert open_site(tmp_path).memory.pending_for(make_task().task_id) is None
    assert recorded(tmp_path) == []


def test_a_training_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ComputeFailed):
        answered(make_task(), open_site(tmp_path), Steps(FakeCompute(errors=[ComputeFailed("Out of luck.")])))
    assert open_site(tmp_path).memory.pending_for(make_task().task_id) is None
    assert recorded(tmp_path) == []


def test_who_is_cancelled_goes_on_only_when_the_files_are_left_alone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is put off in the middle of writing the memory index: the next one must not find a writer at work."""
    writing, done = asyncio.Event(), []
    real: Callable[..., Any] = SiloMemory.record_pending

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def slow(self: SiloMemory, *args: Any, **keywords: Any) -> Any:
            loop.call_soon_threadsafe(writing.set)
            time.sleep(0.3)
            found = real(self, *args, **keywords)
            done.append(found)
            return found

        monkeypatch.setattr(SiloMemory, "record_pending", slow)
        working = asyncio.ensure_future(answer_task(make_task(), open_site(tmp_path), Steps()))
        await writing.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert len(done) == 1, "still at work"

    asyncio.run(scenario())
    assert json.loads((tmp_path / "memory" / "memory.json").read_text())["studies"]["first"]["pending"] is not None
