"""Attacks by a hostile coordinator, alone or with silos of its own, on honest silos.

Each attack ends with the words of a single silo, or with a sum of fewer silos than any of them allows. Each is run
twice: against the product, where it fails in the way that is said here, and against a build that lacks the check which
stops it, where it succeeds. A check whose absence changes nothing would be found.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from semisilo.common.errors import BadShare, SecureSumFailed, SecureSumRefused
from semisilo.common.secure_aggregation import masks
from semisilo.common.secure_aggregation.keys import (
    commitment,
    identity_of,
    mask_context,
    pair_seed,
    public_of,
    seal,
    self_seed,
    sign_keys,
    unseal,
)
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import (
    SHARE_BYTES,
    MaskSeed,
    Member,
    RoundKeys,
    SealedShare,
    SecureSum,
    UnmaskAnswer,
    UnmaskRequest,
    in_order,
)
from semisilo.common.secure_aggregation.shamir import combine
from semisilo.coordinator.secure_aggregation.sum import deliveries, list_members, unmasking
from semisilo.silo.secure_aggregation import session as session_module
from semisilo.silo.secure_aggregation.session import SiloSession, begin, check_follows, mask_seeds
from semisilo.silo.secure_aggregation.trust import Trust
from tests.secure_sums import (
    CONTEXT,
    Run,
    Silo,
    Words,
    a_total,
    draws,
    finish,
    identities_of,
    identity_private,
    make_silos,
    name_of,
    plain_sum,
    up_to_answers,
)

VICTIM = name_of(0)


def members_of(total: SecureSum, silos: dict[str, Silo]) -> tuple[Member, ...]:
    return list_members(total, {name: silo.round_keys() for name, silo in silos.items()}, identities_of(silos))


def stripped(masked: Words, *, total: SecureSum, members: Sequence[Member], second: Sequence[str], self_secret: bytes,
             mask_key: bytes, victim: str = VICTIM, context: bytes = CONTEXT) -> Words:
    """What a silo has masked, for whoever has both of its secrets."""
    bound = mask_context(total, members, context)
    public = {member.silo: member.keys.mask_key for member in members}
    seeds = [MaskSeed(seed=self_seed(self_secret, context=bound), sign=-1)]
    seeds += [MaskSeed(seed=pair_seed(mask_key, public[peer], context=bound), sign=-1 if victim < peer else 1)
              for peer in second if peer != victim]
    words = masked.copy()
    add_masks(words, seeds)
    return words


def secret_from(shares: dict[str, bytes], members: Sequence[Member], threshold: int) -> bytes:
    points = {member.silo: place for place, member in enumerate(members, start=1)}
    return combine({points[silo]: value for silo, value in shares.items()}, threshold=threshold)


def weaken(monkeypatch: pytest.MonkeyPatch, name: str, instead: Callable[..., object]) -> None:
    """Takes a check out of the silo's half."""
    assert hasattr(session_module, name)
    monkeypatch.setattr(session_module, name, instead)


def trusts_all(_: Trust, members: Sequence[Member], __: int) -> tuple[str, ...]:
    return tuple(member.silo for member in members)


def takes_all(*_: object, **__: object) -> None:
    return None


# Keys that the coordinator has put in place of a silo's (Flower) ------------------------------------------------------


def substitute_keys(silos: dict[str, Silo], total: SecureSum, *, identities: bool) -> Words:
    """The coordinator stands between the victim and every peer: it gives out keys of its own as theirs, opens what the
    victim seals for them, and so has all shares of both secrets.

    Args:
        identities: whether it gives the peers identities of its own as well, with right signatures.
    """
    mine = {name: begin(total, silo=name, random=draws(f"the middle {name}")) for name in silos if name != VICTIM}

    def member_of(name: str) -> Member:
        if name == VICTIM:
            return Member(silo=name, identity=identity_of(silos[name].identity), keys=silos[name].round_keys())
        private = draws(f"identity in the middle {name}")(32)
        seal_key, mask_key = public_of(mine[name].seal_key), public_of(mine[name].mask_key)
        return Member(silo=name, identity=identity_of(private if identities else silos[name].identity),
                      keys=RoundKeys(seal_key=seal_key, mask_key=mask_key,
                                     signature=sign_keys(private, total, name, seal_key, mask_key)))

    members = tuple(member_of(name) for name in silos)
    handed_in = silos[VICTIM].share(members)
    victim_seal_key = members[0].keys.seal_key
    opened = {item.silo: unseal(mine[item.silo].seal_key, victim_seal_key, total, sender=VICTIM, recipient=item.silo,
                                sealed=item.sealed) for item in handed_in.sealed}
    given = [SealedShare(silo=name, sealed=seal(mine[name].seal_key, victim_seal_key, total, sender=name,
                                                recipient=VICTIM, plain=bytes(2 * SHARE_BYTES))) for name in mine]
    masked = silos[VICTIM].mask(given)
    return stripped(masked, total=total, members=members, second=tuple(silos),
                    mask_key=secret_from({name: plain[:SHARE_BYTES] for name, plain in opened.items()}, members,
                                         total.threshold),
                    self_secret=secret_from({name: plain[SHARE_BYTES:] for name, plain in opened.items()}, members,
                                            total.threshold))


@pytest.mark.parametrize(("identities", "check", "instead", "said"), [
    (False, "check_keys", takes_all, "the keys of 'hospital-01' are not signed by its identity"),
    (True, "check_members", trusts_all, "'hospital-01' is listed with the identity .* not the one that is pinned here"),
])
def test_substituted_keys(monkeypatch: pytest.MonkeyPatch, identities: bool, check: str, instead: Callable[..., object],
                          said: str) -> None:
    total = a_total(4)
    silos = make_silos(5, total)
    with pytest.raises(SecureSumRefused, match=said):
        substitute_keys(silos, total, identities=identities)
    weaken(monkeypatch, check, instead)
    assert (substitute_keys(silos, total, identities=identities) == silos[VICTIM].words).all()


# Silos that the coordinator has minted --------------------------------------------------------------------------------


def mint(silos: dict[str, Silo], minted: Sequence[str], total: SecureSum) -> Words:
    """The coordinator's own silos hold as many shares of the victim's secrets as the threshold needs."""
    members = members_of(total, silos)
    shares = {name: silo.share(members) for name, silo in silos.items()}
    given = deliveries(shares)
    seal_key = members[0].keys.seal_key
    opened = {}
    for name in minted:
        sealed = next(item.sealed for item in given[name] if item.silo == VICTIM)
        opened[name] = unseal(silos[name].session.seal_key, seal_key, total, sender=VICTIM, recipient=name,
                              sealed=sealed)
    masked = silos[VICTIM].mask(given[VICTIM])
    return stripped(masked, total=total, members=members, second=tuple(silos),
                    mask_key=secret_from({name: plain[:SHARE_BYTES] for name, plain in opened.items()}, members,
                                         total.threshold),
                    self_secret=secret_from({name: plain[SHARE_BYTES:] for name, plain in opened.items()}, members,
                                            total.threshold))


def test_minted_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    total = a_total(4)
    real, minted = [name_of(number) for number in range(3)], [name_of(number) for number in range(3, 7)]
    silos = make_silos(7, total, pinned=real)
    with pytest.raises(SecureSumRefused, match="A threshold of 4 is too low for 7 silos of which 4 are not pinned: 6"):
        mint(silos, minted, total)
    weaken(monkeypatch, "check_members", trusts_all)
    assert (mint(silos, minted, total) == silos[VICTIM].words).all()


def test_minted_silos_where_nobody_has_pinned_anybody() -> None:
    """What remains, and the documentation says so: without pins, the first day is the coordinator's to lie on. A silo
    that requires pins refuses."""
    total = a_total(4)
    minted = [name_of(number) for number in range(3, 7)]
    silos = make_silos(7, total, pinned=[])
    assert (mint(silos, minted, total) == silos[VICTIM].words).all()
    silos = make_silos(7, total, pinned=[])
    silos[VICTIM].trust = dataclasses.replace(silos[VICTIM].trust, require_pinned=True)
    with pytest.raises(SecureSumRefused, match="1 of the 7 silos of the sum are pinned"):
        silos[VICTIM].share(members_of(total, silos))


# Both lists: one silo as a survivor and as one that dropped out (Flower) ----------------------------------------------


def both_lists(silos: dict[str, Silo], total: SecureSum, *, asked_alive: Sequence[str],
               asked_gone: Sequence[str]) -> Words:
    """Some silos are asked with the victim as a survivor, and reveal its self mask; others without it, and reveal its
    mask key."""
    run = Run()
    run.members = members_of(total, silos)
    run.shares = {name: silo.share(run.members) for name, silo in silos.items()}
    given = deliveries(run.shares)
    run.masked = {name: silo.mask(given[name]) for name, silo in silos.items()}
    alive, gone = tuple(silos), tuple(name for name in silos if name != VICTIM)
    answers: dict[bool, dict[str, UnmaskAnswer]] = {True: {}, False: {}}
    for is_alive, survivors, asked in ((True, alive, asked_alive), (False, gone, asked_gone)):
        confirmations = tuple(silos[name].confirm(survivors) for name in asked)
        for name in asked:
            answers[is_alive][name] = silos[name].unmask(
                UnmaskRequest(survivors=survivors, confirmations=confirmations))
    self_shares = {name: dict(answer.self_shares)[VICTIM] for name, answer in answers[True].items()}
    key_shares = {name: dict(answer.key_shares)[VICTIM] for name, answer in answers[False].items()}
    return stripped(run.masked[VICTIM], total=total, members=run.members, second=tuple(silos),
                    self_secret=secret_from(self_shares, run.members, total.threshold),
                    mask_key=secret_from(key_shares, run.members, total.threshold))


def test_both_lists_to_different_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold of 3 of 7, there are enough silos for both lists."""
    names = [name_of(number) for number in range(7)]
    lists = {"asked_alive": names[1:4], "asked_gone": names[4:]}
    total = a_total(3)
    with pytest.raises(SecureSumRefused, match="A threshold of 3 is too low for 7 silos of which 0 are not pinned"):
        both_lists(make_silos(7, total), total, **lists)
    enough = a_total(4)
    with pytest.raises(SecureSumRefused, match="3 silos have signed the list of survivors, and the threshold is 4"):
        both_lists(make_silos(7, enough), enough, **lists)
    weaken(monkeypatch, "check_members", trusts_all)
    silos = make_silos(7, total)
    assert (both_lists(silos, total, **lists) == silos[VICTIM].words).all()


def test_both_lists_to_the_same_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo that forgets what it has signed and answered is asked twice."""
    total = a_total(4)
    asked = [name_of(number) for number in range(1, 6)]
    with pytest.raises(SecureSumRefused, match="the sum is over"):
        both_lists(make_silos(6, total), total, asked_alive=asked, asked_gone=asked)

    keep = Silo._kept

    def forget(silo: Silo, session: SiloSession) -> None:
        if session.answer is not None:  # it is as before it has signed
            session = dataclasses.replace(silo.session, survivors=(), asked=None, answer=None)
        keep(silo, session)

    monkeypatch.setattr(Silo, "_kept", forget)
    silos = make_silos(6, total)
    assert (both_lists(silos, total, asked_alive=asked, asked_gone=asked) == silos[VICTIM].words).all()


def test_both_lists_signed_and_none_answered_yet() -> None:
    total = a_total(4)
    silos = make_silos(6, total)
    run = up_to_answers(total, silos, drop=dict.fromkeys(silos, 4))
    silos[VICTIM].confirm(run.survivors)
    with pytest.raises(SecureSumRefused, match="it has signed another list of survivors"):
        silos[VICTIM].confirm(run.survivors[:5])


def test_no_answer_has_both_shares_of_a_silo() -> None:
    total = a_total(4)
    run = up_to_answers(total, make_silos(7, total), drop={name_of(2): 3, name_of(5): 3})
    for answer in run.answers.values():
        revealed = [name for name, _ in (*answer.self_shares, *answer.key_shares)]
        assert sorted(revealed) == sorted(set(revealed))


# An active coordinator in the unmasking phase -------------------------------------------------------------------------


def partial_sum(silos: dict[str, Silo], total: SecureSum, wanted: Sequence[str]) -> Words:
    """Each silo is shown another list of six: those that the coordinator wants the sum of, itself, and others in turn.
    Nobody reveals both kinds; but the self masks of the wanted come back often enough, and the mask keys of all
    others."""
    run = Run()
    run.members = members_of(total, silos)
    run.shares = {name: silo.share(run.members) for name, silo in silos.items()}
    given = deliveries(run.shares)
    run.masked = {name: silo.mask(given[name]) for name, silo in silos.items()}
    others = [name for name in silos if name not in wanted]
    fill = {name: [name, others[(place + 1) % len(others)]] for place, name in enumerate(others)}
    turns = itertools.cycle([others[0:2], others[2:4], others[4:6]])
    fill |= {name: next(turns) for name in wanted}
    lists = {name: in_order([*wanted, *more]) for name, more in fill.items()}
    signatures = {name: silos[name].confirm(lists[name]) for name in silos}
    for name, silo in silos.items():
        fitting = [signatures[signer] for signer in lists[name] if lists[signer] == lists[name]]
        padded = [signatures[signer] for signer in lists[name] if signatures[signer] not in fitting]
        request = UnmaskRequest(survivors=lists[name], confirmations=(*fitting, *padded)[:total.threshold])
        run.answers[name] = silo.unmask(request)
    unmasked = unmasking(total, context=CONTEXT, members=run.members, shares=run.shares, survivors=wanted,
                         answers=run.answers)
    words = np.zeros_like(run.masked[wanted[0]])
    for name in wanted:
        words += run.masked[name]
    add_masks(words, unmasked.seeds)
    return words


def test_a_sum_of_fewer_than_allowed_from_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten silos, of which each requires six in a sum; the coordinator wants the sum of four."""
    total = a_total(6)
    wanted = [name_of(number) for number in (0, 1, 2, 3)]
    with pytest.raises(SecureSumRefused, match="has not signed this list of survivors"):
        partial_sum(make_silos(10, total, min_silos=6), total, wanted)
    weaken(monkeypatch, "_check_confirmations", takes_all)
    silos = make_silos(10, total, min_silos=6)
    assert (partial_sum(silos, total, wanted) == plain_sum([silos[name].words for name in wanted])).all()


# A sum of one ---------------------------------------------------------------------------------------------------------


def sum_of_one(silos: dict[str, Silo], total: SecureSum, own: Sequence[str]) -> Words:
    """All honest silos but the victim are said to have dropped out after their shares; the coordinator's own
    survive."""
    run = Run()
    run.members = members_of(total, silos)
    run.shares = {name: silo.share(run.members) for name, silo in silos.items()}
    given = deliveries(run.shares)
    left = in_order([VICTIM, *own])
    run.masked = {name: silos[name].mask(given[name]) for name in left}
    run.confirmations = tuple(silos[name].confirm(left) for name in left)
    run.answers = {name: silos[name].unmask(run.request) for name in left}
    words = finish(total, run)
    for name in own:
        words -= silos[name].words
    return words


def test_a_sum_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    total = a_total(3)
    real, own = [name_of(number) for number in range(3)], [name_of(3), name_of(4)]

    def attempt() -> bool:
        silos = make_silos(5, total, pinned=real)
        return bool((sum_of_one(silos, total, own) == silos[VICTIM].words).all())

    with pytest.raises(SecureSumRefused, match="A threshold of 3 is too low"):
        attempt()
    weaken(monkeypatch, "check_members",
           lambda trust, members, _: tuple(m.silo for m in members if m.silo in trust.pinned))
    with pytest.raises(SecureSumRefused, match="1 trusted silos are left, and 3 are required"):
        attempt()
    weaken(monkeypatch, "check_survivors", takes_all)
    # The coordinator's own silos are built without checks anyway; it is the victim's that count.
    assert attempt()


@pytest.mark.parametrize("count", [1, 2])
def test_sums_of_one_or_two_members_are_refused(count: int) -> None:
    total = a_total(2)
    silos = make_silos(count, total)
    with pytest.raises(SecureSumRefused, match="members, and 3 to 32 are possible"):
        silos[VICTIM].share(members_of(total, silos))


# Replay ---------------------------------------------------------------------------------------------------------------


def second_sum_of_a_round(first: SecureSum, silos: dict[str, Silo]) -> Words:
    """The same round again, without one silo: the two sums differ by its update."""
    one = finish(first, up_to_answers(first, silos))
    second = dataclasses.replace(first, nonce=b"m" * 16)
    for silo in silos.values():
        check_follows(silo.session, second)
        silo.session = begin(second, silo=silo.name, random=draws("again " + silo.name))
    other = finish(second, up_to_answers(second, silos, drop={VICTIM: 3}))
    return one - other


def test_a_second_sum_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    total = a_total(4)
    with pytest.raises(SecureSumRefused, match="has masked its update of round 1 for another sum"):
        second_sum_of_a_round(total, make_silos(6, total))
    monkeypatch.setattr(f"{__name__}.check_follows", takes_all)
    silos = make_silos(6, total)
    assert (second_sum_of_a_round(total, silos) == silos[VICTIM].words).all()


def test_nothing_of_an_earlier_sum_is_good_in_a_later_one() -> None:
    """Keys, shares and confirmations of round 1 in round 2: the sum is in every signature and every seal."""
    first, second = a_total(4), a_total(4, round_number=2, nonce=b"m" * 16)
    old, new = make_silos(5, first), make_silos(5, second)
    run = up_to_answers(first, old)
    members = members_of(second, new)
    with pytest.raises(SecureSumRefused, match="are not signed by its identity"):
        new[VICTIM].share((members[0], *run.members[1:]))
    shares = {name: silo.share(members) for name, silo in new.items()}
    with pytest.raises(SecureSumRefused, match="the shares of 'hospital-01' cannot be opened"):
        new[VICTIM].mask(deliveries(run.shares)[VICTIM])
    given = deliveries(shares)
    for name, silo in new.items():
        silo.mask(given[name])
    confirmations = tuple(silo.confirm(run.survivors) for silo in new.values())
    with pytest.raises(SecureSumRefused, match="'hospital-01' has not signed this list"):
        new[VICTIM].unmask(UnmaskRequest(survivors=run.survivors,
                                         confirmations=(confirmations[0], *run.confirmations[1:])))


def test_a_state_that_was_lost_begins_anew_with_other_keys() -> None:
    """The coordinator opens the same sum again for a silo whose disk was lost: nothing of the first time fits."""
    total = a_total(4)
    silos = make_silos(5, total)
    run = up_to_answers(total, silos, drop={VICTIM: 3})
    fresh = dataclasses.replace(silos[VICTIM], session=begin(total, silo=VICTIM))
    with pytest.raises(SecureSumRefused, match="it is listed with other keys than its own"):
        fresh.share(run.members)


# A different model for each silo --------------------------------------------------------------------------------------


def different_models(silos: dict[str, Silo], total: SecureSum) -> tuple[Run, dict[str, Words]]:
    """Each silo trains on another model, made so that the sum can be taken apart afterwards."""
    run = Run()
    run.members = members_of(total, silos)
    run.shares = {name: silo.share(run.members) for name, silo in silos.items()}
    given = deliveries(run.shares)
    run.masked = {name: silo.mask(given[name], b"the model for " + name.encode()) for name, silo in silos.items()}
    run.confirmations = tuple(silo.confirm(run.survivors) for silo in silos.values())
    run.answers = {name: silo.unmask(run.request) for name, silo in silos.items()}
    return run, {name: silo.words for name, silo in silos.items()}


def test_a_different_model_for_each_silo(monkeypatch: pytest.MonkeyPatch) -> None:
    total = a_total(4)
    with pytest.raises(SecureSumRefused, match="has not signed this list of survivors"):
        different_models(make_silos(5, total), total)

    weaken(monkeypatch, "_check_confirmations", takes_all)  # and without that check, the sum is noise
    run, words = different_models(make_silos(5, total), total)
    found = finish(total, run)
    plain = plain_sum(list(words.values()))
    assert np.count_nonzero(found == plain) == 0
    # Plain sums of 5 are within 5,000; of uniform words 0.0002 % are.
    assert np.count_nonzero(np.abs(found.view(np.int32).astype(np.int64)) <= 5000) <= 1

    monkeypatch.setattr(session_module, "mask_context",
                        lambda total, members, _: mask_context(total, members, CONTEXT))  # the model does not count
    run, words = different_models(make_silos(5, total), total)
    assert (finish(total, run) == plain_sum(list(words.values()))).all()


def test_another_list_of_members_for_each_silo_gives_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The victim is shown one more member than the others are."""
    total = a_total(4)
    weaken(monkeypatch, "_check_confirmations", takes_all)

    def attempt() -> tuple[Words, Words]:
        silos = make_silos(6, total)
        members = members_of(total, silos)
        run = Run(members=members[:5])
        names = [member.silo for member in members[:5]]
        run.shares = {name: silos[name].share(members if name == VICTIM else members[:5]) for name in names}
        given = deliveries(run.shares)
        run.masked = {name: silos[name].mask(given[name]) for name in names}
        run.confirmations = tuple(silos[name].confirm(names) for name in names)
        run.answers = {name: silos[name].unmask(run.request) for name in names}
        return finish(total, run), plain_sum([silos[name].words for name in names])

    found, plain = attempt()
    assert np.count_nonzero(found == plain) == 0
    first = members_of(total, make_silos(6, total))[:5]
    monkeypatch.setattr(session_module, "mask_context", lambda total, _, context: mask_context(total, first, context))
    found, plain = attempt()
    assert (found == plain).all()


# Predictable masks ----------------------------------------------------------------------------------------------------


def guess_a_session(silo: Silo, total: SecureSum, members: Sequence[Member], masked: Words, second: Sequence[str],
                    guess: Callable[[int], bytes]) -> Words:
    """The coordinator draws the victim's secrets as it believes that the victim has."""
    drawn = begin(total, silo=silo.name, random=guess)
    return stripped(masked, total=total, members=members, second=second, self_secret=drawn.self_secret,
                    mask_key=drawn.mask_key)


def test_secrets_drawn_after_seeding_with_the_rank() -> None:
    """FedML. `begin` takes the system's generator; a build that seeds with the rank is the same with another
    `random`."""
    total = a_total(4)
    for weak in (False, True):
        silos = make_silos(5, total)
        for rank, silo in enumerate(silos.values()):
            random.seed(rank)
            np.random.seed(rank)
            silo.session = begin(total, silo=silo.name, random=random.Random(rank).randbytes) if weak \
                else begin(total, silo=silo.name)
        run = up_to_answers(total, silos)
        found = guess_a_session(silos[VICTIM], total, run.members, run.masked[VICTIM], run.survivors,
                                random.Random(0).randbytes)
        assert bool((found == silos[VICTIM].words).all()) is weak


def test_one_secret_for_all_silos() -> None:
    """APPFL, and NVIDIA FLARE's kits: any silo that works with the coordinator could read all others."""
    total = a_total(4)
    for weak in (False, True):
        silos = make_silos(5, total)
        if weak:
            for silo in silos.values():
                silo.session = dataclasses.replace(begin(total, silo=silo.name, random=draws(silo.name)),
                                                   self_secret=b"s" * 32)
        mole = silos[name_of(1)].session
        run = up_to_answers(total, silos)
        bound = mask_context(total, run.members, CONTEXT)
        of_victim = unmasking(total, context=CONTEXT, members=run.members, shares=run.shares, survivors=run.survivors,
                              answers=run.answers).seeds[0].seed
        assert (self_seed(mole.self_secret, context=bound) == of_victim) is weak


def test_masks_differ_between_sums_elements_and_silos(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenFL: one scalar mask for ever. The same words in two sums: the difference tells nothing, nor do neighbours."""

    def differences() -> tuple[int, int]:
        seen = []
        for nonce in (b"n" * 16, b"m" * 16):
            total = a_total(4, nonce=nonce)
            seen.append(up_to_answers(total, make_silos(5, total, words=4000)).masked[VICTIM])
        plain = make_silos(5, a_total(4), words=4000)[VICTIM].words
        return (int(np.count_nonzero(seen[0] == seen[1])), int(np.count_nonzero(np.diff(seen[0]) == np.diff(plain))))

    assert max(differences()) <= 1

    def scalar(words: Words, seeds: Sequence[MaskSeed]) -> None:
        words += np.uint32(sum(seed.sign for seed in seeds) * 123456789 % 2**32)

    monkeypatch.setattr("tests.secure_sums.add_masks", scalar)
    assert differences() == (4000, 3999)


def test_masked_words_are_uniform() -> None:
    """Chi-square over the values of each byte of a silo's masked words, whose plain ones are all small: expected 255,
    standard deviation 22.6. Gaussian masks (APPFL) fail it by thousands."""
    total = a_total(3)
    silos = make_silos(3, total, words=1 << 17)
    masked = up_to_answers(total, silos).masked[VICTIM]
    gaussian = silos[VICTIM].words + np.random.default_rng(1).normal(0, 1e6, 1 << 17).astype(np.int32).view(np.uint32)
    for words, is_uniform in ((masked, True), (gaussian, False), (silos[VICTIM].words, False)):
        worst = 0.0
        for place in range(4):
            counts = np.bincount(words.view(np.uint8)[place::4], minlength=256)
            worst = max(worst, float((np.square(counts - 512.0) / 512.0).sum()))
        assert (worst < 255 + 6 * 22.6) is is_uniform


def test_a_seed_that_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower folds a seed of 256 bits to 32. Here, to 8 bits, so that the search takes a second: after an honest sum
    the coordinator knows the self masks, and tries all pairs of the two masks that are left on the victim's words."""
    total = a_total(2)

    def folded(seed: bytes) -> bytes:
        value = 0
        for byte in seed:
            value ^= byte
        return bytes([value]) * 32

    def search() -> bool:
        silos = make_silos(3, total, words=12)
        run = up_to_answers(total, silos)
        finish(total, run)
        assert run.unmasked is not None
        words = run.masked[VICTIM].copy()
        add_masks(words, run.unmasked.seeds[:1])
        streams = np.zeros((256, 12), dtype=np.uint32)
        for value in range(256):
            add_masks(streams[value], [MaskSeed(seed=bytes([value]) + bytes(31), sign=1)])
        found = (words - streams[:, None] - streams[None, :]).view(np.int32)
        plausible = (np.abs(found.astype(np.int64)) <= 1000).all(axis=2)
        candidates = [found[i, j].view(np.uint32) for i, j in np.argwhere(plausible)]
        return any((candidate == silos[VICTIM].words).all() for candidate in candidates)

    assert not search()
    real = ChaCha20

    class Folding:
        @staticmethod
        def ChaCha20(key: bytes, nonce: bytes) -> ChaCha20:
            return real(folded(key), nonce)

    monkeypatch.setattr(masks, "algorithms", Folding)
    assert search()


def test_one_mask_for_two_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed-BioMed: of two vectors under one mask, the difference is plain."""

    def difference() -> bool:
        total = a_total(4)
        silos = make_silos(5, total)
        members = members_of(total, silos)
        given = deliveries({name: silo.share(members) for name, silo in silos.items()})[VICTIM]
        first, one = silos[VICTIM].words, silos[VICTIM].mask(given)
        silos[VICTIM].words = first[::-1].copy()
        return bool((silos[VICTIM].mask(given) - one == first[::-1] - first).all())

    with pytest.raises(SecureSumRefused, match="they are for one vector"):
        difference()
    monkeypatch.setattr("tests.secure_sums.one_vector", lambda session, _: session)
    assert difference()


# Shares ---------------------------------------------------------------------------------------------------------------


def shares_at_the_coordinator(silos: dict[str, Silo], total: SecureSum) -> Words:
    """It keeps what silos seal for one another, and puts the secrets together."""
    run = up_to_answers(total, silos)
    texts = {item.silo: item.sealed for item in run.shares[VICTIM].sealed}
    return stripped(run.masked[VICTIM], total=total, members=run.members, second=run.survivors,
                    mask_key=secret_from({n: text[:SHARE_BYTES] for n, text in texts.items()}, run.members,
                                         total.threshold),
                    self_secret=secret_from({n: text[SHARE_BYTES:2 * SHARE_BYTES] for n, text in texts.items()},
                                            run.members, total.threshold))


def test_shares_that_pass_through_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedML and OpenFL hand all shares to the aggregator."""
    total = a_total(4)
    with pytest.raises(BadShare):
        shares_at_the_coordinator(make_silos(5, total), total)
    weaken(monkeypatch, "seal", lambda *_, plain, **__: plain)
    weaken(monkeypatch, "unseal", lambda *_, sealed, **__: sealed)
    silos = make_silos(5, total)
    assert (shares_at_the_coordinator(silos, total) == silos[VICTIM].words).all()


@pytest.mark.parametrize("moles", [3, 4])
def test_colluding_silos_below_the_threshold(moles: int) -> None:
    """Silos that are pinned, and that give all they have to the coordinator: with one fewer than the threshold they
    have nothing, with as many as the threshold they have everything (the control, and what remains)."""
    total = a_total(4)
    silos = make_silos(6, total)
    members = members_of(total, silos)
    given = deliveries({name: silo.share(members) for name, silo in silos.items()})
    masked = silos[VICTIM].mask(given[VICTIM])
    opened = {}
    for number in range(1, 1 + moles):
        name = name_of(number)
        sealed = next(item.sealed for item in given[name] if item.silo == VICTIM)
        opened[name] = unseal(silos[name].session.seal_key, members[0].keys.seal_key, total, sender=VICTIM,
                              recipient=name, sealed=sealed)

    def both() -> tuple[bytes, bytes]:
        key, own = ({name: plain[at:at + SHARE_BYTES] for name, plain in opened.items()} for at in (0, SHARE_BYTES))
        return secret_from(key, members, total.threshold), secret_from(own, members, total.threshold)

    if moles < total.threshold:
        with pytest.raises(BadShare, match="3 shares are there, 4 are needed"):
            both()
        total_of_moles = {place: plain[SHARE_BYTES:] for place, plain in enumerate(opened.values(), start=2)}
        for made_up in (bytes(SHARE_BYTES), b"\0" + b"\xff" * (SHARE_BYTES - 1)):  # a fourth share of nobody's
            try:
                found = combine({**total_of_moles, 6: made_up}, threshold=4)
            except BadShare:
                continue
            assert commitment(found) != commitment(silos[VICTIM].session.self_secret)
        return
    mask_key, self_secret = both()
    assert (stripped(masked, total=total, members=members, second=tuple(silos), self_secret=self_secret,
                     mask_key=mask_key) == silos[VICTIM].words).all()


def test_pair_masks_of_moles_do_not_bare_a_victim() -> None:
    """All but two silos collude: they take their masks off the victim's words, and the one with the other honest silo
    stays. With that one's key as well (the control), nothing is left but the self mask."""
    total = a_total(4)
    silos = make_silos(5, total)
    kept = {name: silo.session for name, silo in silos.items()}
    run = up_to_answers(total, silos)
    finish(total, run)
    assert run.unmasked is not None
    bound = mask_context(total, run.members, CONTEXT)
    public = {member.silo: member.keys.mask_key for member in run.members}
    for moles, is_bare in ((3, False), (4, True)):
        seeds = [run.unmasked.seeds[0]]
        seeds += [MaskSeed(seed=pair_seed(kept[name_of(number)].mask_key, public[VICTIM], context=bound), sign=-1)
                  for number in range(1, 1 + moles)]
        words = run.masked[VICTIM].copy()
        add_masks(words, seeds)
        assert bool((words == silos[VICTIM].words).all()) is is_bare


# Transcripts ----------------------------------------------------------------------------------------------------------


def windows(words: Words) -> set[bytes]:
    """Every run of three words, as bytes."""
    data = words.tobytes()
    return {data[4 * i:4 * i + 12] for i in range(len(words) - 2)}


def contains_any(text: bytes, parts: set[bytes]) -> bool:
    return any(text[i:i + 12] in parts for i in range(len(text) - 11))


def test_transcripts_have_no_update_and_no_secret() -> None:
    """All that has left each silo, and all that the coordinator computes of it, against every silo's words and
    secrets."""
    total = a_total(5)
    silos = make_silos(7, total, words=60)
    before = {name: silo.session for name, silo in silos.items()}
    gone = name_of(3)
    run = up_to_answers(total, silos, drop={gone: 3})
    found = finish(total, run)
    assert run.unmasked is not None
    everything = [text for silo in silos.values() for text in silo.sent]
    seeds = run.unmasked.seeds
    for masked in run.masked.values():  # and each vector with each of the masks that the coordinator knows taken off
        for seed in seeds:
            words = masked.copy()
            add_masks(words, [seed])
            everything.append(words.tobytes())
    everything.append(b"".join(seed.seed for seed in seeds))
    for name, silo in silos.items():
        parts = windows(silo.words)
        assert not any(contains_any(text, parts) for text in everything)
        session = before[name]
        for secret in (session.seal_key, session.mask_key, session.self_secret, session.key_coefficients,
                       session.self_coefficients):
            assert not any(secret in text or secret.hex().encode() in text for text in everything)
    # The search finds what is there: the sum, in the only place where it is.
    assert contains_any(found.tobytes(), windows(plain_sum([silos[name].words for name in run.survivors])))
    assert contains_any(silos[gone].words.tobytes(), windows(silos[gone].words))


def test_subsets_of_masked_vectors_are_no_sums_of_updates() -> None:
    """Any subset of the survivors, with all masks that the coordinator knows: plain for the whole set only."""
    total = a_total(4)
    silos = make_silos(5, total, words=20)
    run = up_to_answers(total, silos)
    finish(total, run)
    assert run.unmasked is not None
    seeds = dict(zip(run.survivors, run.unmasked.seeds, strict=True))
    for size in range(1, 6):
        for chosen in itertools.combinations(run.survivors, size):
            words = np.zeros(20, dtype=np.uint32)
            for name in chosen:
                words += run.masked[name]
            add_masks(words, [seeds[name] for name in chosen])
            assert bool((words == plain_sum([silos[name].words for name in chosen])).all()) is (size == 5)


def test_a_coordinator_that_wants_to_wait_for_nobody_gets_nothing() -> None:
    """Fewer answers than the threshold: the secrets cannot be put together, whoever they are from."""
    total = a_total(4)
    run = up_to_answers(total, make_silos(6, total))
    for kept in itertools.combinations(sorted(run.answers), 3):
        few = {name: run.answers[name] for name in kept}
        with pytest.raises(SecureSumFailed, match=r"3 shares .* 4 are needed"):
            unmasking(total, context=CONTEXT, members=run.members, shares=run.shares, survivors=run.survivors,
                      answers=few)


def test_seeds_of_masks_are_asked_for_once_and_another_context_is_refused() -> None:
    total = a_total(4)
    silos = make_silos(5, total)
    run = up_to_answers(total, silos, drop=dict.fromkeys(silos, 4))
    given = deliveries(run.shares)[VICTIM]
    with pytest.raises(SecureSumRefused, match="it has masked already"):
        mask_seeds(silos[VICTIM].session, given=given, context=b"another model")
    assert identity_private(VICTIM) == silos[VICTIM].identity
