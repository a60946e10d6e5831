"""Heads of the coordinator's audit trail come with tasks: they are kept, and what is wrong is said."""

from __future__ import annotations

from pathlib import Path

from semisilo.common.audit.record import SeenHead, read_heads
from semisilo.common.rpc.convert import head_to_proto
from semisilo.silo.secure_aggregation.session import begin
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.memory import SiloMemory
from semisilo.silo.study_cards.book import CardBook
from tests.audit_kit import audit_key, signed
from tests.secure_sums import a_total
from tests.silo.agent.test_agent import OVER, agent_at, run
from tests.silo.fake_coordinator import FakeCoordinator, make_task, random_bytes, serving
from tests.study_cards import CARD


def test_a_head_is_kept_and_a_cut_is_said_while_training_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(1000))
        coordinator.tasks = [make_task(number, payloads=(payload,)) for number in (1, 2, 3)]
        coordinator.audit_heads = [head_to_proto(signed(7)), head_to_proto(signed(4)),
                                   head_to_proto(signed(8, key=audit_key("heart")))]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            assert len(coordinator.begins) == 3
            kept = [each for each in read_heads(bench.home.heads) if isinstance(each, SeenHead)]
            assert [(each.signed.head.number, bool(each.problem)) for each in kept] == [
                (7, False), (4, True), (8, True)]
            assert (kept[0].study, kept[0].round) == ("first", 1)
            assert "WARNING: the coordinator's audit trail: it was cut: event 7 had been seen" in bench.text
            assert "silo disclosures --check" in bench.text
            assert "WARNING: the coordinator's audit trail: The certificate of the audit head" in bench.text
    run(work())


def test_a_record_that_cannot_be_written_does_not_stop_the_work(tmp_path: Path) -> None:
    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        coordinator.tasks = [make_task(payloads=(coordinator.add_file(random_bytes(1000)),))]
        coordinator.audit_heads = [head_to_proto(signed(7))]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            bench.home.heads.mkdir()
            await bench.agent.run()
            assert len(coordinator.begins) == 1
    run(work())


def test_what_was_kept_for_another_federation_counts_for_nothing_in_this_one(tmp_path: Path) -> None:
    """Both have a study `first`, of which the silo has masked round 4, answered the first task and declined the card
    where it was before."""
    home = SiloHome(tmp_path)
    store, memory = SecureStore(home.secure), SiloMemory(home.memory, outgoing=home.outgoing)
    cards = CardBook(home.cards)
    for each in (store, memory, cards):
        each.belong_to("bb" * 32)
    store.keep("first", begin(a_total(3, round_number=4), silo="a"), masks=True)
    memory.record_pending("first", round=1, task_id=make_task().task_id, update_id="u", abstention="NO_IMAGES")
    cards.decide(cards.arrived("first", CARD.digest(), CARD.text(), approval=True, now_unix=1.0), approved=False,
                 by="ann", now_unix=2.0)

    async def work() -> None:
        coordinator = FakeCoordinator(after=OVER)
        coordinator.tasks = [make_task(payloads=(coordinator.add_file(random_bytes(1000)),))]
        async with serving(coordinator) as port, agent_at(port, tmp_path) as bench:
            await bench.agent.run()
            assert coordinator.outcomes() == ["update"], "trained here, not answered with what was kept"
            assert not SecureStore(home.secure).has_masked("first", 4, "train")
            assert CardBook(home.cards).entries() == []
    run(work())
