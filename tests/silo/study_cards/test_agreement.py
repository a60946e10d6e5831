"""Before a task: its card is here, permitted and signed, and the task says what it says. The coordinator is hostile."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from semisilo.common.errors import BadPayload, BadSignature, NotPermitted, StudyNotApproved
from semisilo.common.methods import find_method
from semisilo.common.methods.contract import TaskSpec
from semisilo.common.methods.parts.privacy import PrivacySettings
from semisilo.common.secure_aggregation.conversion import SumQuestion, question_to_hex
from semisilo.common.secure_aggregation.keys import check_card_signature, identity_of, new_identity, sign_card
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import Member, RoundKeys
from semisilo.silo.study_cards.agreement import Agreement
from semisilo.silo.study_cards.book import CardBook
from tests.study_cards import CARD, TASK

KEY = new_identity()
SPEC = find_method("semifl")


@dataclass
class Hub:
    """What a silo hears."""

    text: str = CARD.text()
    asked: int = 0
    signatures: list[tuple[str, str, bytes]] = field(default_factory=list)

    async def study_card(self, study: str, digest: str) -> str:
        self.asked += 1
        return self.text

    async def sign_card(self, study: str, digest: str, signature: bytes) -> None:
        self.signatures.append((study, digest, signature))


def agreement(folder: Path, hub: Hub, *, approval: bool = False, noted: list[bytes] | None = None) -> Agreement:
    return Agreement(CardBook(folder), hub, approval=approval, clock=lambda: 5.0,
                     note=lambda study, digest, signature: None if noted is None else noted.append(signature),
                     sign=lambda study, digest: sign_card(KEY, federation="f", silo="a", study=study, digest=digest))


def check(made: Agreement, task: TaskSpec = TASK) -> None:
    asyncio.run(made.check(task, SPEC))


def test_a_card_is_fetched_signed_and_handed_in_once(tmp_path: Path) -> None:
    hub, noted = Hub(), list[bytes]()
    for _ in range(3):  # a new process each time
        check(agreement(tmp_path, hub, noted=noted))
    ((study, digest, signature),) = hub.signatures
    assert (hub.asked, study, digest, noted) == (1, "s", CARD.digest(), [signature])
    right = {"federation": "f", "silo": "a", "study": "s", "digest": digest}
    check_card_signature(identity_of(KEY), signature, **right)
    for name in right:
        with pytest.raises(BadSignature):
            check_card_signature(identity_of(KEY), signature, **{**right, name: "x"})


def test_a_signature_that_did_not_get_through_is_handed_in_again(tmp_path: Path) -> None:
    class Deaf(Hub):
        async def sign_card(self, study: str, digest: str, signature: bytes) -> None:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        check(agreement(tmp_path, Deaf()))
    hub = Hub()
    check(agreement(tmp_path, hub))
    assert (hub.asked, len(hub.signatures)) == (0, 1)


class Keeping(Hub):
    """A hub that keeps signatures by one key alone, as the roster has it."""

    def __init__(self, identity: bytes) -> None:
        super().__init__()
        self.identity = identity
        self.refused = 0

    async def sign_card(self, study: str, digest: str, signature: bytes) -> None:
        try:
            check_card_signature(self.identity, signature, federation="f", silo="a", study=study, digest=digest)
        except BadSignature:
            self.refused += 1
            raise
        await super().sign_card(study, digest, signature)


def test_a_signature_that_is_not_kept_holds_up_no_task_is_said_once_and_is_handed_in_until_it_is_kept(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub = Keeping(new_identity())
    made = agreement(tmp_path, hub)
    for _ in range(3):
        check(made)
    assert (hub.refused, len(hub.signatures)) == (3, 0)
    (line,) = [each.getMessage() for each in caplog.records]
    assert "does not keep this site's signature under the card of study s: The signature" in line
    (entry,) = CardBook(tmp_path).entries()
    assert (entry.state, entry.told) == ("signed", False)
    hub.identity = identity_of(KEY)  # the roster has the key now
    for _ in range(2):
        check(made)
    assert (hub.refused, len(hub.signatures)) == (3, 1)
    (entry,) = CardBook(tmp_path).entries()
    assert entry.told


def test_a_silo_that_has_another_key_than_it_signed_with_signs_anew(tmp_path: Path) -> None:
    """One whose key was lost and then put back from a backup, as it was told to."""
    lost, noted = new_identity(), list[bytes]()
    hub = Keeping(identity_of(KEY))
    made = Agreement(CardBook(tmp_path), hub, approval=False, clock=lambda: 5.0,
                     note=lambda study, digest, signature: noted.append(signature),
                     sign=lambda study, digest: sign_card(lost, federation="f", silo="a", study=study, digest=digest))
    check(made)
    assert hub.refused == 1
    check(agreement(tmp_path, hub, noted=noted))
    ((_, _, signature),) = hub.signatures
    (entry,) = CardBook(tmp_path).entries()
    assert (entry.signature, entry.told, entry.unix) == (signature.hex(), True, 5.0)
    assert noted[-1] == signature, "what leaves is noted before"


def test_a_coordinator_that_shows_one_card_and_asks_for_another_thing_is_refused(tmp_path: Path) -> None:
    hub = Hub()
    task = replace(TASK, settings={**TASK.settings, "local_epochs": 50})
    with pytest.raises(NotPermitted, match="local_epochs: 5, not 50"):
        check(agreement(tmp_path, hub), task)
    assert not hub.signatures
    check(agreement(tmp_path, hub))
    with pytest.raises(NotPermitted, match="local_epochs"):
        check(agreement(tmp_path, hub), task)


@pytest.mark.parametrize(("privacy", "step", "said"), [
    ({"min_silos": 8}, {"threshold": 7}, "sums of 8 silos or more, not of 7"),
    ({"threshold": 6}, {"threshold": 3}, "sums of 6 silos or more, not of 3"),
    ({}, {"threshold": 2}, "sums of 3 silos or more, not of 2"),
    ({}, {"threshold": 6, "members": 10}, "sums of 7 silos or more, not of 6"),
    ({"random_k": "10%"}, {"threshold": 7, "random_k": 0.01}, "privacy.random_k: 10%, not 1.000%")])
def test_a_secure_sum_of_fewer_silos_than_the_card_says_is_refused(tmp_path: Path, privacy: dict[str, object],
                                                                   step: dict[str, int], said: str) -> None:
    card = replace(CARD, privacy=PrivacySettings(secure_aggregation=True, **privacy))  # type: ignore[arg-type]
    keys = RoundKeys(seal_key=bytes(32), mask_key=bytes(32), signature=bytes(64))
    members = tuple(Member(silo=f"silo-{number}", identity=bytes(32), keys=keys) for number in range(
        step.get("members", 0)))

    def task(threshold: int, random_k: float) -> TaskSpec:
        return replace(TASK, card=card.digest(), secure=question_to_hex(SumQuestion(
            step="mask", phase="train", nonce=bytes(16), threshold=threshold, members=members,
            form=MaskForm(bits=18, bounds=(1.0,), silo_count=8, random_k=random_k))))

    hub = Hub(text=card.text())
    with pytest.raises(NotPermitted, match=said):
        check(agreement(tmp_path, hub), task(step["threshold"], step.get("random_k", 1.0)))
    assert not hub.signatures
    check(agreement(tmp_path, hub), task(8, card.privacy.random_share))
    assert hub.signatures


def test_a_card_of_another_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPayload, match="another one than the task names"):
        check(agreement(tmp_path, Hub(text=replace(CARD, seed=8).text())))


def test_a_person_must_approve_where_the_site_says_so_and_again_after_a_change(tmp_path: Path) -> None:
    hub, book = Hub(), CardBook(tmp_path)
    made = agreement(tmp_path, hub, approval=True)
    assert made.awaits() is None
    with pytest.raises(StudyNotApproved, match="Nobody at this site has approved study 's' yet"):
        check(made)
    waits = made.awaits()
    assert waits is not None
    assert "silo approve s" in waits.line()
    assert made.waiting == "s"
    book.decide(book.entries()[0], approved=True, by="ann", now_unix=6.0)
    assert made.awaits() is None
    check(made)
    assert len(hub.signatures) == 1
    after = replace(CARD, rounds=9)
    hub.text = after.text()
    with pytest.raises(StudyNotApproved, match="It has changed since it was signed: rounds: 3 is now 9"):
        check(made, replace(TASK, rounds=9, card=after.digest()))
    made.heard_of("another")
    assert made.awaits() is None, "another study runs now"


def test_a_card_that_cannot_be_read_for_a_moment_is_still_waited_for(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read before every call to the coordinator; an error of the system there ended the silo."""
    made = agreement(tmp_path, Hub(), approval=True)
    with pytest.raises(StudyNotApproved):
        check(made)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many")))
        waits = made.awaits()
        assert waits is not None
        assert "cannot be read: Too many" in waits.line()
    assert made.waiting == "s"
    again = made.awaits()
    assert again is not None
    assert "Nobody at this site has approved study 's' yet" in again.line()


def test_what_a_person_has_declined_is_refused(tmp_path: Path) -> None:
    book, made = CardBook(tmp_path), agreement(tmp_path, Hub(), approval=True)
    with pytest.raises(StudyNotApproved):
        check(made)
    book.decide(book.entries()[0], approved=False, by="ann", now_unix=6.0)
    assert made.awaits() is None
    with pytest.raises(NotPermitted, match="has declined study 's'") as caught:
        check(made)
    assert not isinstance(caught.value, StudyNotApproved)


def test_a_coordinator_without_cards_is_taken_but_where_a_person_must_approve(tmp_path: Path) -> None:
    task = replace(TASK, card="")
    check(agreement(tmp_path, Hub()), task)
    with pytest.raises(NotPermitted, match="requires study cards"):
        check(agreement(tmp_path, Hub(), approval=True), task)


def test_a_coordinator_that_leaves_the_card_out_asks_for_nothing_that_the_card_does_not_say(tmp_path: Path) -> None:
    """Nor is a person's word undone by it."""
    made, task = agreement(tmp_path, Hub()), replace(TASK, card="", settings={**TASK.settings, "local_epochs": 50})
    check(made)
    with pytest.raises(NotPermitted, match="names no study card"):
        check(made, task)
    check(made, replace(task, study="t"))
    check(made)
    CardBook(tmp_path).decide(CardBook(tmp_path).entries()[0], approved=False, by="ann", now_unix=6.0)
    with pytest.raises(NotPermitted, match="has declined study 's'"):
        check(made, task)


def test_what_a_person_declines_while_the_coordinator_is_away_stays_declined(tmp_path: Path) -> None:
    """`sign_card` is repeated for as long as the coordinator is away; the agent held the entry from before."""
    book = CardBook(tmp_path)

    class Away(Hub):
        async def sign_card(self, study: str, digest: str, signature: bytes) -> None:
            book.decide(book.entries()[0], approved=False, by="ann", now_unix=6.0)

    made = agreement(tmp_path, Away())
    for _ in range(2):
        with pytest.raises(NotPermitted, match="has declined study 's'"):
            check(made)
    (entry,) = book.entries()
    assert (entry.state, entry.by, entry.unix) == ("declined", "ann", 6.0)


def test_a_card_that_its_task_contradicts_is_not_kept(tmp_path: Path) -> None:
    """A coordinator could fill the disk with them: each stayed, though its task was refused."""
    hub = Hub()
    for number in range(3):
        with pytest.raises(NotPermitted, match="says something else than the card of study"):
            check(agreement(tmp_path, hub), replace(TASK, rounds=100 + number))
    assert (hub.asked, CardBook(tmp_path).entries()) == (3, [])


def test_a_silo_that_has_another_name_since_hands_in_a_signature_by_that(tmp_path: Path) -> None:
    hub = Hub()
    check(agreement(tmp_path, hub))
    renamed = Agreement(CardBook(tmp_path), hub, approval=False, clock=lambda: 6.0, note=lambda *_: None,
                        sign=lambda study, digest: sign_card(KEY, federation="f", silo="b", study=study, digest=digest))
    for _ in range(2):
        check(renamed)
    (_, _, of_a), (_, digest, of_b) = hub.signatures
    assert of_a != of_b
    check_card_signature(identity_of(KEY), of_b, federation="f", silo="b", study="s", digest=digest)
