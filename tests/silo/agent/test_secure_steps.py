"""A silo's answers to the steps of a secure sum: written down before they leave, the same for the same question, and
none where one could show its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadConfiguration, NotPermitted, SecureSumRefused
from semisilo.common.methods.contract import ModelSettings, PayloadRef, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.common.secure_aggregation.conversion import SumQuestion
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.secure_aggregation.messages import Confirmation, Member, RoundKeys, Shares, UnmaskAnswer
from semisilo.common.secure_aggregation.roster import ADDED, Roster, RosterEntry, append
from semisilo.coordinator.secure_aggregation.sum import deliveries
from semisilo.silo.agent.secure_steps import SecureSteps, trust_of
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.secure_aggregation.trust import fingerprint
from semisilo.silo.site.policy import Permit, Policy, Require

SILOS = ("a", "b", "c", "d")
FORM = MaskForm(bits=18, bounds=(1.0,), silo_count=4)
TASK = TaskSpec(
    task_id="s/1/0-train-keys/a", study="s", round=1, rounds=9, phase="train-keys", silo="a", method="fedavg",
    settings={}, model=ModelSettings(name="small_cnn", classes=("0", "1")),
    image=ImageForm(size=8, channels=1, mean=(0.0,), std=(1.0,)), augmentation=AugmentationSettings(),
    numerics=Numerics(), payloads=(PayloadRef("11" * 32, 100, ("model",), tensors="22" * 32),), last_folded_round=0,
    seed=7)
MASK = replace(TASK, task_id="s/1/2-train/a", phase="train")


def question(step: str, **other: object) -> SumQuestion:
    return SumQuestion(step=step, phase="train", nonce=b"n" * 16, threshold=3, **other)  # type: ignore[arg-type]


@dataclass
class Site:
    """A silo whose process is another one at every step."""

    name: str
    folder: Path
    policy: Policy

    @property
    def store(self) -> SecureStore:
        return SecureStore(self.folder / self.name)

    @property
    def steps(self) -> SecureSteps:
        return SecureSteps(self.store, federation="f", silo=self.name, policy=self.policy)

    def answer(self, asked: SumQuestion, *, number: int = 1) -> object:
        return self.steps.answer(replace(TASK, silo=self.name, round=number), asked)


@dataclass
class Hub:
    """Asks four silos, step by step."""

    sites: dict[str, Site]
    entries: tuple[RosterEntry, ...] = ()
    members: tuple[Member, ...] = ()
    sealed: dict[str, tuple[object, ...]] | None = None

    def enrol(self) -> None:
        roster, entries = Roster(), []
        for name, site in self.sites.items():
            roster, entry = append(roster, silo=name, identity=site.store.identity(), change=ADDED)
            entries.append(entry)
        self.entries = tuple(entries)

    def keys(self, **other: object) -> None:
        asked = replace(question("keys", roster=self.entries), **other)  # type: ignore[arg-type]
        found = {}
        for name, site in self.sites.items():
            keys = site.answer(asked)
            assert isinstance(keys, RoundKeys)
            found[name] = Member(silo=name, identity=site.store.identity(), keys=keys)
        self.members = tuple(found[name] for name in sorted(found))

    def shares(self) -> None:
        found = {}
        for name, site in self.sites.items():
            shares = site.answer(question("shares", members=self.members))
            assert isinstance(shares, Shares)
            found[name] = shares
        self.sealed = deliveries(found)  # type: ignore[assignment]

    def mask_question(self, name: str) -> SumQuestion:
        assert self.sealed is not None
        return question("mask", members=self.members, sealed=self.sealed[name], form=FORM)

    def confirm(self, survivors: Sequence[str]) -> tuple[Confirmation, ...]:
        found = []
        for name in survivors:
            signature = self.sites[name].answer(question("confirm", members=self.members, form=FORM,
                                                         survivors=tuple(survivors)))
            assert isinstance(signature, bytes)
            found.append(Confirmation(silo=name, signature=signature))
        return tuple(found)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    made = Hub({name: Site(name, tmp_path, Policy()) for name in SILOS})
    made.enrol()
    return made


def mask(hub: Hub, name: str, vector: bytes = b"v" * 32) -> object:
    site, asked, task = hub.sites[name], hub.mask_question(name), replace(MASK, silo=name)
    masking = site.steps.masking(task, asked)
    site.steps.masked(task, asked, vector)
    return masking


def test_a_whole_sum_with_a_new_process_at_every_step_and_every_question_twice(hub: Hub) -> None:
    hub.keys()
    first = hub.members
    hub.keys()
    assert hub.members == first, "the same keys"
    hub.shares()
    given = hub.sealed
    hub.shares()
    assert hub.sealed == given
    masks = {name: mask(hub, name) for name in SILOS}
    assert {name: mask(hub, name) for name in SILOS} == masks
    confirmations = hub.confirm(SILOS[:3])
    asked = question("unmask", members=hub.members, form=FORM, survivors=SILOS[:3], confirmations=confirmations)
    for name in SILOS[:3]:
        answer = hub.sites[name].answer(asked)
        assert isinstance(answer, UnmaskAnswer)
        assert hub.sites[name].answer(asked) == answer
        assert [silo for silo, _ in answer.self_shares] == ["a", "b", "c"]
        assert [silo for silo, _ in answer.key_shares] == ["d"]
        assert hub.sites[name].store.known.keys() == set(SILOS)
        session = hub.sites[name].store.session("s")
        assert session is not None
        assert session.mask_key == session.self_secret == b"", "secrets go with the last answer"


def test_a_round_is_masked_once_whatever_the_coordinator_says(hub: Hub) -> None:
    hub.keys()
    hub.shares()
    mask(hub, "a")
    again = question("keys", roster=hub.entries)
    with pytest.raises(SecureSumRefused, match="round"):
        hub.sites["a"].answer(replace(again, nonce=b"m" * 16))
    hub.sites["a"].answer(replace(again, nonce=b"m" * 16), number=2)
    with pytest.raises(SecureSumRefused, match="once for a round"):
        hub.sites["a"].answer(replace(again, nonce=b"o" * 16), number=1)


@pytest.mark.parametrize(("phase", "number"), [("train2", 1), ("first-statistics", 2)])
def test_an_update_does_not_enter_a_second_sum_of_its_round_under_another_name(hub: Hub, phase: str,
                                                                               number: int) -> None:
    """Of a sum of all and one without a silo the difference would be that silo's update."""
    hub.keys()
    hub.shares()
    mask(hub, "d")
    site, nonce = hub.sites["d"], b"m" * 16
    other = {name: hub.sites[name].answer(replace(question("keys", roster=hub.entries), phase=phase, nonce=nonce),
                                          number=number) for name in ("b", "c", "d")}
    members = tuple(Member(silo=name, identity=hub.sites[name].store.identity(), keys=keys)
                    for name, keys in other.items() if isinstance(keys, RoundKeys))
    shares = {name: hub.sites[name].answer(replace(question("shares", members=members), phase=phase, nonce=nonce),
                                           number=number) for name in ("b", "c", "d")}
    asked = replace(question("mask", members=members, form=FORM, sealed=deliveries(shares)["d"]), phase=phase,
                    nonce=nonce)
    task = replace(MASK, silo="d", round=number, phase="train" if number == 1 else phase)
    with pytest.raises(SecureSumRefused, match=f"of phase '{phase}'"):
        site.steps.masking(task, asked)
    assert site.store.last_masked("s") == (1, "train"), "the round is not lost by it"


def test_before_it_has_masked_a_silo_begins_the_round_anew(hub: Hub) -> None:
    hub.keys()
    first = hub.members
    hub.keys(nonce=b"m" * 16)
    assert all(one.keys != other.keys for one, other in zip(first, hub.members, strict=True))


def test_masks_are_for_one_vector(hub: Hub) -> None:
    hub.keys()
    hub.shares()
    mask(hub, "a")
    with pytest.raises(SecureSumRefused, match="one vector"):
        mask(hub, "a", vector=b"w" * 32)


def test_a_silo_that_was_told_something_else_has_other_masks(hub: Hub) -> None:
    hub.keys()
    hub.shares()
    other = replace(MASK, payloads=(PayloadRef("11" * 32, 100, ("model",), tensors="33" * 32),))
    plain = hub.sites["a"].steps.masking(MASK, hub.mask_question("a"))
    with pytest.raises(SecureSumRefused, match="another model"):
        hub.sites["a"].steps.masking(other, hub.mask_question("a"))
    second = hub.sites["b"].steps.masking(replace(other, silo="b"), hub.mask_question("b"))
    shared = {each.seed for each in plain.seeds} & {each.seed for each in second.seeds}
    assert shared == set(), "the two have no mask in common, so nothing vanishes"


@pytest.mark.parametrize("step", ["shares", "mask", "confirm", "unmask"])
def test_a_step_of_a_sum_that_was_not_begun_is_refused(hub: Hub, step: str) -> None:
    steps = hub.sites["a"].steps
    with pytest.raises(SecureSumRefused, match="no part in that secure sum"):
        (steps.masking if step == "mask" else steps.answer)(MASK, question(step, form=FORM))


def test_a_random_share_needs_the_site_s_permission(hub: Hub) -> None:
    hub.keys()
    hub.shares()
    hub.sites["a"].policy = Policy(permit=Permit(encodings=("bf16",)))
    asked = replace(hub.mask_question("a"), form=replace(FORM, random_k=0.01))
    with pytest.raises(NotPermitted, match="random share"):
        hub.sites["a"].steps.masking(MASK, asked)


def test_a_roster_that_is_no_chain_or_lacks_this_silo_is_refused(hub: Hub) -> None:
    broken = (*hub.entries[:2], replace(hub.entries[2], chain=bytes(32)), hub.entries[3])
    with pytest.raises(SecureSumRefused, match="roster"):
        hub.sites["a"].answer(question("keys", roster=broken))
    with pytest.raises(SecureSumRefused, match="does not list this silo with its own key"):
        hub.sites["d"].answer(question("keys", roster=hub.entries[:3]))


def test_another_history_is_taken_after_a_restore_but_not_with_another_key_of_a_silo(
        hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.keys()
    roster, entries = Roster(), []
    for name in reversed(SILOS):
        roster, entry = append(roster, silo=name, identity=hub.sites[name].store.identity(), change=ADDED)
        entries.append(entry)
    with caplog.at_level("WARNING"):
        hub.sites["a"].answer(replace(question("keys", roster=tuple(entries)), nonce=b"m" * 16))
    assert "No silo has another key than before" in caplog.text
    roster, entries = Roster(), []
    for name in SILOS:
        key = b"x" * 32 if name == "b" else hub.sites[name].store.identity()
        roster, entry = append(roster, silo=name, identity=key, change=ADDED)
        entries.append(entry)
    with pytest.raises(SecureSumRefused, match="roster"):
        hub.sites["c"].answer(replace(question("keys", roster=tuple(entries)), nonce=b"m" * 16))


def test_a_peer_with_another_key_than_the_one_seen_first_is_refused_by_name(hub: Hub) -> None:
    hub.sites["a"].store.know({"b": b"x" * 32})
    hub.keys()
    with pytest.raises(SecureSumRefused, match="'b' is listed with the identity"):
        hub.sites["a"].answer(question("shares", members=hub.members))


def test_pins_go_before_what_was_seen_and_a_wrong_one_is_refused(hub: Hub) -> None:
    store = hub.sites["a"].store
    store.know({"b": b"x" * 32})
    right = {name: fingerprint(hub.sites[name].store.identity()) for name in SILOS[1:]}
    trust = trust_of(Policy(peers=right), store, silo="a")
    assert "b" not in trust.known
    hub.sites["a"].policy = Policy(peers=right, require=Require(pinned_peers=True))
    hub.keys()
    hub.sites["a"].answer(question("shares", members=hub.members))
    hub.sites["b"].policy = Policy(peers={"c": fingerprint(b"y" * 32)})
    with pytest.raises(SecureSumRefused, match="'c' is listed with the identity"):
        hub.sites["b"].answer(question("shares", members=hub.members))


def test_silos_that_nobody_has_pinned_do_not_count(hub: Hub) -> None:
    hub.sites["a"].policy = Policy(require=Require(pinned_peers=True),
                                   peers={"b": fingerprint(hub.sites["b"].store.identity())})
    hub.keys()
    with pytest.raises(SecureSumRefused, match="2 of the 4 silos of the sum are pinned"):
        hub.sites["a"].answer(question("shares", members=hub.members))


def noisy(task: TaskSpec, honest: int = 0) -> TaskSpec:
    return replace(task, dp=DifferentialPrivacy(unit="silo", noise_multiplier=1.0, honest_silos=honest))


def test_noise_that_silos_share_is_counted_on_from_trusted_ones_alone(hub: Hub) -> None:
    """Of a threshold of 4 three have to add theirs. Two pins do, where silos that are the coordinator's own may be
    among those that answer; with four silos of which one is nobody's, three of them answer in any sum of four."""
    hub.sites["a"].policy = Policy(peers={name: fingerprint(hub.sites[name].store.identity()) for name in ("b", "c")})
    hub.keys(threshold=4)
    asked = question("shares", members=hub.members)
    task = replace(TASK, silo="a", round=1)
    with pytest.raises(SecureSumRefused, match="3 of the 4 silos of the sum are pinned, and silo 'a' requires 4"):
        hub.sites["a"].steps.answer(noisy(task, honest=4), replace(asked, threshold=4))
    hub.sites["a"].steps.answer(noisy(task), replace(asked, threshold=4))
    session = hub.sites["a"].store.session("s")
    assert session is not None
    assert session.min_silos == 3


def test_a_sum_that_began_without_noise_is_not_masked_for_one_with_it(hub: Hub) -> None:
    """A coordinator that asks for trusted silos' noise only at the end."""
    hub.keys()
    hub.shares()
    task = noisy(replace(MASK, silo="a"), honest=4)
    assert hub.sites["a"].steps.masking(noisy(replace(MASK, silo="a")), hub.mask_question("a")).threshold == 3
    asked = replace(hub.mask_question("b"), threshold=3)
    with pytest.raises(SecureSumRefused, match="no part in that secure sum"):
        hub.sites["b"].steps.masking(replace(task, silo="b"), replace(asked, threshold=4))


def test_survivors_whose_noise_is_too_little_are_not_confirmed(hub: Hub) -> None:
    """Five silos of which two are the coordinator's: four survive, of which two are trusted, where three have to be."""
    hub.sites["a"].policy = Policy(peers={name: fingerprint(hub.sites[name].store.identity()) for name in ("b", "c")})
    hub.keys(threshold=3)
    task = noisy(replace(MASK, silo="a"), honest=3)
    hub.sites["a"].steps.answer(task, question("shares", members=hub.members))
    for name in SILOS[1:]:
        hub.sites[name].answer(question("shares", members=hub.members))
    hub.shares()
    hub.sites["a"].steps.masking(task, hub.mask_question("a"))
    with pytest.raises(SecureSumRefused, match="2 trusted silos are left, and 3 are required"):
        hub.sites["a"].steps.answer(task, question("confirm", members=hub.members, form=FORM,
                                                   survivors=("a", "b", "d")))


def test_a_silo_toml_that_pins_this_silo_with_another_key_is_refused_by_name(tmp_path: Path) -> None:
    """It ended `silo join`, again after every restart."""
    store = SecureStore(tmp_path / "a")
    policy = Policy(peers={"a": fingerprint(b"k" * 32)})
    with pytest.raises(BadConfiguration, match=r"\[peers\] a is this silo itself") as found:
        trust_of(policy, store, silo="a")
    assert fingerprint(store.identity()) in found.value.remedy
    assert trust_of(policy, store, silo="b").pinned == {"a": b"k" * 32}
