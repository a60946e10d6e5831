"""A silo's steps: each repeated with the same answer, never with another question, and every refusal in words.

Attacks of a whole coordinator are in test_attacks.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable

import pytest

from semisilo.common.config import from_dict, to_dict
from semisilo.common.errors import SecureSumRefused
from semisilo.common.secure_aggregation.keys import commitment, new_key, public_of, sign_keys
from semisilo.common.secure_aggregation.messages import Member, RoundKeys, SealedShare, UnmaskRequest
from semisilo.coordinator.secure_aggregation.sum import deliveries, list_members
from semisilo.silo.secure_aggregation.session import (
    SiloSession,
    begin,
    check_follows,
    confirm,
    mask_seeds,
    one_vector,
    round_keys,
    share,
    unmask,
)
from semisilo.silo.secure_aggregation.trust import Trust
from tests.each_of import each_of
from tests.secure_sums import (
    CONTEXT,
    Silo,
    a_total,
    finish,
    identities_of,
    identity_private,
    make_silos,
    name_of,
    plain_sum,
    up_to_answers,
)

TOTAL = a_total(4)
ME = name_of(1)


def a_sum(count: int = 5) -> tuple[dict[str, Silo], tuple[Member, ...]]:
    silos = make_silos(count, TOTAL)
    return silos, list_members(TOTAL, {name: silo.round_keys() for name, silo in silos.items()}, identities_of(silos))


def masked_sum() -> tuple[dict[str, Silo], tuple[str, ...]]:
    silos, members = a_sum()
    given = deliveries({name: silo.share(members) for name, silo in silos.items()})
    for name, silo in silos.items():
        silo.mask(given[name])
    return silos, tuple(silos)


# Repeated and killed --------------------------------------------------------------------------------------------------


def test_every_step_is_repeated_with_the_same_answer_by_a_process_that_was_killed() -> None:
    """The state goes through JSON after every step, and each step is asked three times, once of the state before it."""
    silos, members = a_sum()
    others = {name: silo for name, silo in silos.items() if name != ME}
    trust, private = silos[ME].trust, silos[ME].identity

    def kept(session: SiloSession) -> SiloSession:
        return from_dict(SiloSession, json.loads(json.dumps(to_dict(session))))

    state = kept(silos[ME].session)
    assert state == silos[ME].session
    keys = round_keys(state, private)
    assert round_keys(kept(state), private) == keys

    before = state
    state, shares = share(state, members, trust)
    assert share(before, members, trust) == share(kept(state), members, trust) == (state, shares)

    handed_in = {name: silo.share(members) for name, silo in others.items()} | {ME: shares}
    given = deliveries(handed_in)
    before = kept(state)
    state, seeds = mask_seeds(before, given=given[ME], context=CONTEXT)
    assert mask_seeds(before, given=given[ME], context=CONTEXT) == (state, seeds)
    assert mask_seeds(kept(state), given=given[ME], context=CONTEXT) == (state, seeds)
    state = one_vector(state, b"d" * 32)
    assert one_vector(kept(state), b"d" * 32) == state

    for name, silo in others.items():
        silo.mask(given[name])
    survivors = tuple(silos)
    before = kept(state)
    state, signature = confirm(before, survivors, private)
    assert confirm(before, survivors, private) == confirm(kept(state), survivors, private) == (state, signature)

    confirmations = tuple(silo.confirm(survivors) for silo in others.values())
    request = UnmaskRequest(survivors=survivors, confirmations=confirmations)
    before = kept(state)
    state, answer = unmask(before, request)
    assert unmask(before, request) == unmask(kept(state), request) == (state, answer)


def test_all_secrets_are_drawn_at_once_and_are_different() -> None:
    sizes: list[int] = []

    def draw(size: int) -> bytes:
        sizes.append(size)
        return bytes([len(sizes)]) * size

    session = begin(TOTAL, silo=ME, random=draw)
    assert sizes == [32] * 5
    assert len({session.seal_key, session.mask_key, session.self_secret, session.key_coefficients,
                session.self_coefficients}) == 5


def test_the_system_s_generator_is_the_one_that_is_used() -> None:
    """Two sums of one silo have nothing in common."""
    one, other = (begin(TOTAL, silo=ME) for _ in range(2))
    for name in ("seal_key", "mask_key", "self_secret", "key_coefficients", "self_coefficients"):
        assert getattr(one, name) != getattr(other, name)


def test_secrets_are_not_shown() -> None:
    session = begin(TOTAL, silo=ME)
    for secret in (session.seal_key, session.mask_key, session.self_secret, session.key_coefficients,
                   session.self_coefficients):
        assert repr(secret) not in repr(session)
        assert secret.hex() not in repr(session)


def test_secrets_are_gone_once_it_is_unmasked() -> None:
    silos = make_silos(5, TOTAL)
    before = silos[ME].session
    run = up_to_answers(TOTAL, silos, drop={name_of(4): 3})
    after = json.dumps(to_dict(silos[ME].session))
    for secret in (before.seal_key, before.mask_key, before.self_secret, before.key_coefficients,
                   before.self_coefficients):
        assert secret.hex() not in after
    assert silos[ME].unmask(run.request) == run.answers[ME]
    assert silos[ME].session.given == ()


@pytest.mark.parametrize("step", [
    lambda s: round_keys(s, identity_private(ME)), lambda s: share(s, s.members, Trust(silo=ME, identity=bytes(32))),
    lambda s: mask_seeds(s, given=(), context=CONTEXT), lambda s: one_vector(s, b""),
    lambda s: confirm(s, s.survivors, identity_private(ME)),
])
def test_a_sum_that_is_over_answers_no_other_step(step: Callable[[SiloSession], object]) -> None:
    silos = make_silos(5, TOTAL)
    up_to_answers(TOTAL, silos)
    with pytest.raises(SecureSumRefused, match="refuses the secure sum of round 1: the sum is over"):
        step(silos[ME].session)


# Begin ----------------------------------------------------------------------------------------------------------------


@each_of("changes", [{"threshold": 1}, {"threshold": 33}, {"nonce": b""}, {"nonce": bytes(17)}])
def test_sums_that_are_none_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SecureSumRefused, match="a threshold of 2 to 32 and a nonce of 16 bytes"):
        begin(dataclasses.replace(TOTAL, **changes), silo=ME)  # type: ignore[arg-type]


def test_no_second_sum_of_a_round_once_it_has_masked() -> None:
    silos, members = a_sum()
    again = dataclasses.replace(TOTAL, nonce=b"m" * 16)
    check_follows(silos[ME].session, again)
    silos[ME].share(members)
    check_follows(silos[ME].session, again)
    given = deliveries({name: silo.share(members) for name, silo in silos.items()})
    silos[ME].mask(given[ME])
    with pytest.raises(SecureSumRefused, match="has masked its update of round 1 for another sum"):
        check_follows(silos[ME].session, again)
    check_follows(silos[ME].session, TOTAL)
    check_follows(silos[ME].session, dataclasses.replace(again, round=2))
    check_follows(silos[ME].session, dataclasses.replace(again, phase="statistics"))


# Share ----------------------------------------------------------------------------------------------------------------


def signed_member(silo: str, *, seal_key: bytes | None = None, mask_key: bytes | None = None) -> Member:
    """A member as a coordinator can mint it."""
    seal_key, mask_key = seal_key or public_of(new_key()), mask_key or public_of(new_key())
    signature = sign_keys(identity_private(silo), TOTAL, silo, seal_key, mask_key)
    return Member(silo=silo, identity=identities_of(make_silos(8, TOTAL))[silo],
                  keys=RoundKeys(seal_key=seal_key, mask_key=mask_key, signature=signature))


def other_signature(members: tuple[Member, ...]) -> tuple[Member, ...]:
    keys = dataclasses.replace(members[2].keys, signature=members[3].keys.signature)
    return (*members[:2], dataclasses.replace(members[2], keys=keys), *members[3:])


@each_of(("change", "said"), [
    (lambda m: m[:2], "it has 2 members, and 3 to 32 are possible"),
    (lambda m: m[:1] + m[2:], "it is not listed as a member"),
    (lambda m: (*m[:1], signed_member(ME), *m[2:]), "it is listed with other keys than its own"),
    (lambda m: m[::-1], "not each listed once and in order"),
    (lambda m: m[:3] + m[2:], "not each listed once and in order"),
    (lambda m: m[:3], "its 3 members cannot reach the threshold of 4"),
    (lambda m: (*m[:4], signed_member(name_of(4), mask_key=m[3].keys.mask_key)), "same identity or the same keys"),
    (lambda m: (*m[:4], signed_member(name_of(4), seal_key=m[1].keys.mask_key)), "same identity or the same keys"),
    (lambda m: (*m[:4], dataclasses.replace(m[4], identity=m[3].identity)), "same identity or the same keys"),
    (other_signature, "the keys of 'hospital-02' are not signed by its identity"),
    (lambda m: (*m[:4], signed_member(name_of(4), seal_key=bytes(32))), "the keys of 'hospital-04' are not keys"),
    (lambda m: (*m[:4], signed_member(name_of(4), seal_key=b"short")), "the keys of 'hospital-04' are not keys"),
    (lambda m: (*m[:4], signed_member(name_of(4), mask_key=b"\1" + bytes(31))),
     "the keys of 'hospital-04' are not keys"),
    (lambda m: m * 7, "it has 35 members"),
])
def test_member_lists_that_protect_nobody_are_refused(
        change: Callable[[tuple[Member, ...]], tuple[Member, ...]], said: str) -> None:
    silos, members = a_sum()
    with pytest.raises(SecureSumRefused, match=f"Silo '{ME}' refuses the secure sum of round 1: .*{said}"):
        silos[ME].share(change(members))
    silos[ME].share(members)


def test_a_second_list_of_members_is_refused() -> None:
    silos, members = a_sum()
    silos[ME].share(members)
    with pytest.raises(SecureSumRefused, match="its shares are made for other members"):
        silos[ME].share(members[:4])


def test_a_commitment_is_that_of_the_self_mask_s_secret() -> None:
    silos, members = a_sum()
    assert silos[ME].share(members).commitment == commitment(silos[ME].session.self_secret)


# Mask -----------------------------------------------------------------------------------------------------------------


def mask_input() -> tuple[Silo, tuple[SealedShare, ...]]:
    silos, members = a_sum()
    return silos[ME], deliveries({name: silo.share(members) for name, silo in silos.items()})[ME]


def test_masks_before_shares_are_refused() -> None:
    with pytest.raises(SecureSumRefused, match="it has made no shares yet"):
        mask_seeds(begin(TOTAL, silo=ME), given=(), context=CONTEXT)


@pytest.mark.parametrize(("change", "said"), [
    (lambda g: g[:2], "3 silos are left, and the threshold is 4"),
    (lambda g: g + g[:1], "come twice from one silo"),
    (lambda g: (*g, SealedShare(silo=ME, sealed=g[0].sealed)), "from one that is not another member"),
    (lambda g: (*g[:3], SealedShare(silo="stranger", sealed=g[3].sealed)), "from one that is not another member"),
    (lambda g: (g[1], *g[2:], SealedShare(silo=g[0].silo, sealed=g[1].sealed)),
     "the shares of 'hospital-00' cannot be opened"),
    (lambda g: (*g[:3], SealedShare(silo=g[3].silo, sealed=b"")), "the shares of 'hospital-04' cannot be opened"),
])
def test_shares_that_were_not_sealed_for_it_are_refused(
        change: Callable[[tuple[SealedShare, ...]], tuple[SealedShare, ...]], said: str) -> None:
    silo, given = mask_input()
    with pytest.raises(SecureSumRefused, match=said):
        silo.mask(change(given))
    silo.mask(given)


@pytest.mark.parametrize("changed", ["given", "context"])
def test_masks_are_made_once(changed: str) -> None:
    silo, given = mask_input()
    silo.mask(given)
    silo.mask(given)
    with pytest.raises(SecureSumRefused, match="it has masked already, among other silos or for another model"):
        silo.mask(given[:3] if changed == "given" else given, b"another" if changed == "context" else CONTEXT)


def test_masks_are_for_one_vector() -> None:
    silo, given = mask_input()
    with pytest.raises(SecureSumRefused, match="it has no masks yet"):
        one_vector(silo.session, b"d")
    silo.mask(given)
    silo.words = silo.words + 1
    with pytest.raises(SecureSumRefused, match="its masks are used up: they are for one vector"):
        silo.mask(given)


def test_each_seed_is_another() -> None:
    silo, given = mask_input()
    _, seeds = mask_seeds(silo.session, given=given, context=CONTEXT)
    assert len({seed.seed for seed in seeds}) == len(seeds) == 5
    assert [seed.sign for seed in seeds] == [1, -1, 1, 1, 1]


# Confirm and unmask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "said"), [
    (lambda s: s[:3], "3 silos are left, and the threshold is 4"),
    (lambda s: (s[0], *s[2:]), "lack this silo"),
    (lambda s: (*s, "stranger"), "name one that it has no shares of"),
    (lambda s: s[::-1], "in order"), (lambda s: (*s[:1], *s), "once"), (lambda s: (), "lack this silo"),
])
def test_lists_of_survivors_that_are_none_are_not_signed(
        change: Callable[[tuple[str, ...]], tuple[str, ...]], said: str) -> None:
    silos, names = masked_sum()
    with pytest.raises(SecureSumRefused, match=said):
        silos[ME].confirm(change(names))
    silos[ME].confirm(names)


def test_one_list_is_signed() -> None:
    silos, names = masked_sum()
    silos[ME].confirm(names)
    with pytest.raises(SecureSumRefused, match="it has signed another list of survivors"):
        silos[ME].confirm(names[:4])


def test_no_list_is_signed_before_masking() -> None:
    silos, members = a_sum()
    silos[ME].share(members)
    with pytest.raises(SecureSumRefused, match="it has not masked yet"):
        silos[ME].confirm(tuple(silos))


@pytest.mark.parametrize(("change", "said"), [
    (lambda r: dataclasses.replace(r, survivors=r.survivors[:4]), "it has not signed this list"),
    (lambda r: dataclasses.replace(r, confirmations=r.confirmations[:3]),
     "3 silos have signed the list of survivors, and the threshold is 4"),
    (lambda r: dataclasses.replace(r, confirmations=r.confirmations[:3] * 2), "a confirmation comes twice"),
    (lambda r: dataclasses.replace(r, confirmations=(
        *r.confirmations, dataclasses.replace(r.confirmations[0], silo="stranger"))),
     "from a silo that is not a survivor"),
    (lambda r: dataclasses.replace(r, confirmations=(
        *r.confirmations[:4], dataclasses.replace(r.confirmations[4], signature=r.confirmations[3].signature))),
     "'hospital-04' has not signed this list"),
])
def test_requests_to_unmask_that_too_few_have_signed_are_refused(
        change: Callable[[UnmaskRequest], UnmaskRequest], said: str) -> None:
    silos, names = masked_sum()
    request = UnmaskRequest(survivors=names, confirmations=tuple(silo.confirm(names) for silo in silos.values()))
    with pytest.raises(SecureSumRefused, match=said):
        silos[ME].unmask(change(request))
    silos[ME].unmask(request)


def test_a_silo_that_has_signed_nothing_unmasks_nothing() -> None:
    silos, names = masked_sum()
    confirmations = tuple(silo.confirm(names) for name, silo in silos.items() if name != ME)
    with pytest.raises(SecureSumRefused, match="it has not signed this list"):
        silos[ME].unmask(UnmaskRequest(survivors=names, confirmations=confirmations))


def test_another_request_to_unmask_is_refused_even_about_the_same_list() -> None:
    silos, names = masked_sum()
    confirmations = tuple(silo.confirm(names) for silo in silos.values())
    silos[ME].unmask(UnmaskRequest(survivors=names, confirmations=confirmations))
    with pytest.raises(SecureSumRefused, match="it has answered another request to unmask"):
        silos[ME].unmask(UnmaskRequest(survivors=names, confirmations=confirmations[:4]))


def test_of_each_silo_one_kind_of_share_is_given() -> None:
    silos = make_silos(5, TOTAL)
    run = up_to_answers(TOTAL, silos, drop={name_of(3): 3})
    for answer in run.answers.values():
        assert [name for name, _ in answer.self_shares] == [name_of(number) for number in (0, 1, 2, 4)]
        assert [name for name, _ in answer.key_shares] == [name_of(3)]


def test_states_of_every_step_are_read_again_in_a_whole_sum() -> None:
    """`Silo` writes and reads its state after each step; without that the sum is the same."""
    sums = []
    for kill in (True, False):
        silos = make_silos(6, TOTAL)
        for silo in silos.values():
            silo.kill = kill
        run = up_to_answers(TOTAL, silos, drop={name_of(2): 3, name_of(5): 5})
        sums.append(hashlib.sha256(finish(TOTAL, run).tobytes()).hexdigest())
        assert run.result is not None
        assert (run.result == plain_sum([silos[name].words for name in run.survivors])).all()
    assert sums[0] == sums[1]
