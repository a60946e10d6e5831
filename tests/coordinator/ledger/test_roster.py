"""The roster in the ledger: what the authority needs of it, and whom a round may sample."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from semisilo.common.errors import CertificateRevoked, InvitationInvalid, InvitationUsed, UnknownName
from semisilo.common.identity.certificates import load_certificate, make_key, make_request
from semisilo.common.identity.invitation import decode_invitation, token_hash
from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.federation.enrollment import Authority, Issued, Roster, SiloStatus
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster, SimulatedMember
from semisilo.coordinator.ledger.states import TaskState
from tests.coordinator.ledger_fixture import open_collecting_round, study_config

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.query("PRAGMA synchronous = OFF")
    return made


@pytest.fixture
def roster(ledger: Ledger) -> LedgerRoster:
    return LedgerRoster(ledger)


@pytest.fixture
def authority(tmp_path: Path, roster: LedgerRoster) -> Authority:
    contract: Roster = roster  # the type checker proves that every method of the protocol is there
    return Authority(keys=create_authority(tmp_path / "authority", "lung", now=NOW), roster=contract)


def invite(authority: Authority, silo: str = "alpha", *, now: float = NOW) -> str:
    return authority.invite(silo, address="hub.example:8443", enrollment_address="hub.example:8444", now=now)


def enroll(authority: Authority, line: str, *, now: float = NOW) -> Issued:
    return authority.enroll(token=decode_invitation(line).token, request_der=make_request(make_key()), silo_unix=now,
                            now=now)


def serial_of(issued: Issued) -> int:
    return load_certificate(issued.certificate_der).serial_number


def hello(roster: LedgerRoster, silo: str, **changes: object) -> None:
    known: dict[str, object] = {"version": "0.1", "methods": ("semifl",), "labelled_count": 0, "unlabelled_count": 10,
                                "memory_study": "", "memory_round": 0}
    roster.joined(silo, **(known | changes))  # type: ignore[arg-type]


def test_a_silo_is_invited_enrolled_renewed_revoked_and_invited_again(authority: Authority,
                                                                      roster: LedgerRoster) -> None:
    line = invite(authority)
    assert roster.silo_status("alpha") is None
    assert roster.open_invitations(NOW) == 1
    first = enroll(authority, line)
    assert roster.silo_status("alpha") == SiloStatus(revoked=False)
    assert roster.accepts("alpha", serial_of(first))
    assert not roster.accepts("beta", serial_of(first))
    assert roster.open_invitations(NOW) == 0

    renewed = authority.renew("alpha", request_der=make_request(make_key()), now=NOW + 20 * DAY)
    assert [roster.accepts("alpha", serial_of(each)) for each in (first, renewed)] == [True, True]

    authority.revoke("alpha")
    assert roster.silo_status("alpha") == SiloStatus(revoked=True)
    assert [roster.accepts("alpha", serial_of(each)) for each in (first, renewed)] == [False, False]
    with pytest.raises(CertificateRevoked):
        authority.renew("alpha", request_der=make_request(make_key()), now=NOW)

    again = enroll(authority, invite(authority))
    assert roster.silo_status("alpha") == SiloStatus(revoked=False)
    assert [roster.accepts("alpha", serial_of(each)) for each in (first, renewed, again)] == [False, False, True]
    assert [row.name for row in roster.silos()] == ["alpha"]


def test_open_invitations_are_withdrawn_and_used_or_expired_ones_stay(ledger: Ledger, authority: Authority,
                                                                      roster: LedgerRoster) -> None:
    enroll(authority, invite(authority, "used"))
    invite(authority, "expired", now=NOW - 2 * DAY)
    for silo in ("open", "another"):
        invite(authority, silo)
    assert roster.withdraw_invitations(NOW) == 2
    assert roster.withdraw_invitations(NOW) == 0
    assert {row["silo"] for row in ledger.query("SELECT silo FROM invitation")} == {"used", "expired"}


def test_serials_of_160_bits_come_back_exactly(roster: LedgerRoster) -> None:
    serial = 2**159 + 1
    roster.add_invitation(silo="alpha", token_hash=b"t" * 32, expires_unix=NOW)
    roster.use_invitation(b"t" * 32, key_fingerprint=b"k", certificate_der=b"c", serial=serial, not_after_unix=NOW)
    assert roster.accepts("alpha", serial)
    assert not roster.accepts("alpha", serial - 1)


def test_a_serial_is_found_by_its_key_however_many_there_are(roster: LedgerRoster, ledger: Ledger) -> None:
    """With 50,000 of one silo every change of the roster cost 46 ms, in the way of all calls."""
    with ledger.transaction() as db:
        db.executemany("INSERT INTO certificate (serial, silo, issued_unix, not_after_unix) VALUES (?, 'alpha', 0, 1)",
                       ((str(2**100 + number),) for number in range(50_000)))
    asked: list[str] = []
    ledger._db.set_trace_callback(asked.append)
    assert roster.accepts("alpha", 2**100 + 49_999)
    assert not roster.accepts("alpha", 2**100 + 50_000)
    roster.silo_status("alpha")
    ledger._db.set_trace_callback(None)
    plans = [row["detail"] for sql in asked if "certificate" in sql
             for row in ledger.query(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans == ["SEARCH certificate USING INDEX sqlite_autoindex_certificate_1 (serial=?)"] * 2
    asked.clear()
    ledger._db.set_trace_callback(asked.append)
    roster.accepts("alpha", 2**100 + 49_999)
    ledger._db.set_trace_callback(None)
    assert asked == ["PRAGMA data_version"], "what was found is kept while the roster is the same"


def test_a_call_looks_once_for_changes_of_the_roster_and_sees_each(roster: LedgerRoster, ledger: Ledger) -> None:
    roster.add_invitation(silo="alpha", token_hash=b"t" * 32, expires_unix=NOW)
    roster.use_invitation(b"t" * 32, key_fingerprint=b"k", certificate_der=b"c", serial=5, not_after_unix=NOW)
    assert roster.standing("alpha", 5) == (SiloStatus(revoked=False), True)
    assert roster.standing("alpha", 6) == (SiloStatus(revoked=False), False)
    assert roster.standing("beta", 5) == (None, False)
    asked: list[str] = []
    ledger._db.set_trace_callback(asked.append)
    for serial in (5, 6):
        roster.standing("alpha", serial)
    ledger._db.set_trace_callback(None)
    assert asked == ["PRAGMA data_version"] * 2
    roster.revoke("alpha")
    assert roster.standing("alpha", 5) == (SiloStatus(revoked=True), False)


def test_who_is_excluded_is_kept_until_somebody_changes_the_roster(roster: LedgerRoster, ledger: Ledger) -> None:
    """The engine asks at every call of a silo, and of a thousand silos each was looked at."""
    for number, silo in enumerate(("alpha", "beta", "gamma"), start=1):
        roster.add_invitation(silo=silo, token_hash=bytes([number]) * 32, expires_unix=NOW)
        roster.use_invitation(bytes([number]) * 32, key_fingerprint=b"k", certificate_der=b"c", serial=number,
                              not_after_unix=NOW)

    def found() -> tuple[dict[str, str], dict[str, str]]:
        return dict(roster.aside()), dict(roster.excluded())

    assert found() == ({}, {})
    asked: list[str] = []
    ledger._db.set_trace_callback(asked.append)
    assert found() == ({}, {})
    ledger._db.set_trace_callback(None)
    assert asked == ["PRAGMA data_version"] * 2
    roster.set_aside("alpha", reason="noise")
    assert found() == ({"alpha": "noise"}, {"alpha": "set aside at the coordinator: noise"})
    with contextlib.closing(Ledger(ledger.path)) as other:
        LedgerRoster(other).revoke("beta")
        assert sorted(found()[1]) == ["alpha", "beta"], "as by another process"
        LedgerRoster(other).take_back("alpha")
        assert found() == ({}, {"beta": "silo revoked"})
    assert roster.count_enrolled() == 2
    roster.leave("gamma")
    assert (found(), roster.count_enrolled()) == (({}, {"beta": "silo revoked"}), 1)


def test_a_new_invitation_ends_the_certificates_before_it_only_when_it_is_used(authority: Authority,
                                                                              roster: LedgerRoster) -> None:
    first = enroll(authority, invite(authority))
    line = invite(authority)
    assert roster.accepts("alpha", serial_of(first))
    second = enroll(authority, line)
    assert [roster.accepts("alpha", serial_of(each)) for each in (first, second)] == [False, True]


def test_a_newer_invitation_replaces_the_open_one_of_the_same_silo_only(authority: Authority,
                                                                        roster: LedgerRoster) -> None:
    older, other, newer = invite(authority), invite(authority, "beta"), invite(authority)
    with pytest.raises(InvitationInvalid):
        enroll(authority, older)
    assert roster.open_invitations(NOW) == 2
    enroll(authority, other)
    enroll(authority, newer)


def test_a_token_is_used_once_even_if_two_processes_race_for_it(tmp_path: Path, authority: Authority,
                                                                roster: LedgerRoster) -> None:
    hashed = token_hash(decode_invitation(invite(authority)).token)
    other = LedgerRoster(Ledger(tmp_path / "ledger.sqlite"))
    other.use_invitation(hashed, key_fingerprint=b"theirs", certificate_der=b"", serial=1, not_after_unix=NOW)
    with pytest.raises(InvitationUsed):
        roster.use_invitation(hashed, key_fingerprint=b"ours", certificate_der=b"", serial=2, not_after_unix=NOW)
    assert [roster.accepts("alpha", serial) for serial in (1, 2)] == [True, False]
    found = roster.invitation(hashed)
    assert found is not None
    assert found.used_key_fingerprint == b"theirs"


def test_the_ledger_never_holds_a_token(tmp_path: Path, authority: Authority, ledger: Ledger) -> None:
    token = decode_invitation(invite(authority)).token
    ledger.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.sqlite*"))
    assert token_hash(token) in kept
    assert token.encode() not in kept


def test_an_expired_invitation_is_not_counted_as_open(authority: Authority, roster: LedgerRoster) -> None:
    invite(authority)
    assert (roster.open_invitations(NOW + DAY - 1), roster.open_invitations(NOW + DAY)) == (1, 0)


def test_revoking_withdraws_an_open_invitation_and_an_unknown_name_is_refused_with_those_there_are(
        authority: Authority, roster: LedgerRoster) -> None:
    enroll(authority, invite(authority, "beta"))
    line = invite(authority, "alpha")
    roster.revoke("alpha")
    with pytest.raises(InvitationInvalid):
        enroll(authority, line)
    with pytest.raises(UnknownName, match="'alfa'") as caught:
        roster.revoke("alfa")
    assert caught.value.remedy == "Silos: beta."


def test_revoking_cancels_the_open_task_and_no_other_silos(authority: Authority, roster: LedgerRoster,
                                                           ledger: Ledger) -> None:
    for silo in ("alpha", "beta"):
        enroll(authority, invite(authority, silo))
    ledger.queue_study("s", study_config(rounds=3))
    open_collecting_round(ledger, "s", 1, ("alpha", "beta"))
    roster.revoke("alpha")
    assert {task.silo: task.state for task in ledger.tasks("s", 1, 0)} == {
        "alpha": TaskState.CANCELLED, "beta": TaskState.OPEN}
    roster.revoke("alpha")  # again: nothing more happens
    assert len(ledger.query("SELECT 1 FROM event WHERE kind = 'task_cancelled'")) == 1


def test_members_have_joined_and_are_not_revoked_in_byte_order(authority: Authority, roster: LedgerRoster) -> None:
    for silo in ("b", "a-1", "a", "a1", "never-joined"):
        enroll(authority, invite(authority, silo))
    for silo in ("b", "a-1", "a", "a1"):
        hello(roster, silo)
    assert roster.members() == ["a", "a-1", "a1", "b"]
    roster.revoke("a1")
    assert roster.members() == ["a", "a-1", "b"]
    enroll(authority, invite(authority, "a1"))  # let in again, it is a member at once
    assert roster.members() == ["a", "a-1", "a1", "b"]


def test_a_silo_joins_once_and_what_it_says_of_itself_is_kept(authority: Authority, roster: LedgerRoster,
                                                              ledger: Ledger) -> None:
    enroll(authority, invite(authority))
    assert (roster.silos()[0].joined_unix, roster.silos()[0].version) == (None, "")
    hello(roster, "alpha")
    first = roster.silos()[0].joined_unix
    hello(roster, "alpha", version="0.2", methods=("b", "a"), unlabelled_count=12, memory_study="s", memory_round=4)
    row = roster.silos()[0]
    assert (row.joined_unix, row.version, row.methods, row.unlabelled_count, row.memory_study, row.memory_round) == (
        first, "0.2", ("a", "b"), 12, "s", 4)
    assert len(ledger.query("SELECT 1 FROM event WHERE kind = 'silo_joined'")) == 1


def test_the_certificate_shown_is_the_one_that_lasts_longest(authority: Authority, roster: LedgerRoster) -> None:
    enroll(authority, invite(authority))
    authority.renew("alpha", request_der=make_request(make_key()), now=NOW + 20 * DAY)
    assert roster.silos()[0].certificate_not_after_unix == NOW + 50 * DAY


def test_a_certificate_that_was_replaced_by_a_new_invitation_is_not_the_one_shown(authority: Authority,
                                                                                  roster: LedgerRoster) -> None:
    """A clock that was ahead, or longer validity before: the old one would hide that the new one ends."""
    enroll(authority, invite(authority), now=NOW)
    authority.renew("alpha", request_der=make_request(make_key()), now=NOW + 20 * DAY)
    with roster._ledger.transaction() as db:
        db.execute("UPDATE certificate SET not_after_unix = ?", (NOW + 400 * DAY,))
    enroll(authority, invite(authority), now=NOW)
    assert roster.silos()[0].certificate_not_after_unix == NOW + 30 * DAY
    roster.revoke("alpha")
    assert roster.silos()[0].certificate_not_after_unix == 0


def simulated(*names: str) -> list[SimulatedMember]:
    return [SimulatedMember(name=name, labelled_count=1, unlabelled_count=2) for name in names]


def test_simulated_silos_are_let_in_once_as_members_and_have_no_certificate(roster: LedgerRoster,
                                                                            ledger: Ledger) -> None:
    for version in ("1", "2"):
        roster.admit(simulated("beta", "alpha"), version=version, methods=("semifl", "fedavg"))
    assert [(row.name, row.certificate_not_after_unix, row.version, row.methods, row.labelled_count,
             row.unlabelled_count) for row in roster.silos()] == [
        ("alpha", 0, "2", ("fedavg", "semifl"), 1, 2), ("beta", 0, "2", ("fedavg", "semifl"), 1, 2)]
    assert roster.members() == ["alpha", "beta"]
    assert roster.silo_status("alpha") == SiloStatus(revoked=False)
    events = [json.loads(row["detail_json"]) for row in ledger.query(
        "SELECT detail_json FROM event WHERE kind = 'silos_simulated'")]
    assert events == [{"number": 2, "version": "1"}], "one event for all of them, when they come in"


def test_members_come_in_the_byte_order_of_their_names(roster: LedgerRoster) -> None:
    names = ["b", "B", "a-9", "a-10", "\u00e9", "z"]
    roster.admit(simulated(*names), version="1", methods=())
    assert roster.members() == sorted(names, key=str.encode)


def test_whoever_changes_the_roster_what_is_asked_next_is_the_new_state(tmp_path: Path, authority: Authority,
                                                                        roster: LedgerRoster) -> None:
    """The status of a silo is kept between two questions: not over a change by this process or by another one."""
    serial = serial_of(enroll(authority, invite(authority)))
    others = LedgerRoster(Ledger(tmp_path / "ledger.sqlite"))  # a command of the operator
    before = roster.silo_status("alpha")
    assert before == SiloStatus(revoked=False)
    assert roster.accepts("alpha", serial)
    assert not roster.accepts("alpha", 7)
    assert roster.silo_status("alpha") is before
    assert roster.silo_status("beta") is None
    others.revoke("alpha")
    assert not roster.accepts("alpha", serial)
    assert roster.silo_status("alpha") == SiloStatus(revoked=True)
    newer = serial_of(enroll(authority, invite(authority)))
    assert roster.silo_status("alpha") == SiloStatus(revoked=False)
    roster.add_certificate(silo="alpha", serial=7, not_after_unix=NOW)
    assert [roster.accepts("alpha", each) for each in (serial, newer, 7)] == [False, True, True]
    others.admit(simulated("beta"), version="1", methods=())
    assert roster.silo_status("beta") is not None
    roster.leave("alpha")
    left = roster.silo_status("alpha")
    assert left is not None
    assert left.left_unix is not None
    roster.revoke("beta")
    assert roster.silo_status("beta") == SiloStatus(revoked=True)


def test_members_and_who_is_back_when_are_found_without_reading_the_whole_roster(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", waits=False)
    roster = LedgerRoster(ledger)
    roster.admit(simulated("b", "a", "gone", "revoked"), version="1", methods=())
    roster.add_invitation(silo="new", token_hash=b"t" * 32, expires_unix=NOW)
    roster.use_invitation(b"t" * 32, key_fingerprint=b"k" * 32, certificate_der=b"c", serial=1, not_after_unix=NOW)
    roster.leave("gone")
    roster.revoke("revoked")
    roster.away("b", reason="outside working hours", until_unix=200.0)
    assert roster.members() == ["a", "b"]
    assert [roster.back_at(name, 100.0) for name in ("a", "b", "nobody")] == [0.0, 200.0, 0.0]
    assert roster.back_at("b", 201.0) == 0.0, "it is back already"
    assert roster.away_until(100.0) == {"b": 200.0}
    ledger.close()


def test_what_a_ledger_has_from_before_counts_were_bounded_counts_as_the_most_that_is_allowed(
        roster: LedgerRoster, authority: Authority) -> None:
    """Twice 2^63 - 1 was more than a message could hold, and ended the coordinator at each start."""
    enroll(authority, invite(authority))
    hello(roster, "alpha", labelled_count=2**63 - 1, unlabelled_count=2**63 - 1)
    assert (roster.announced("alpha"), roster.announced_at_least("alpha")) == (10**9, 10**9)


def test_an_update_is_from_images_with_labels_from_those_without_or_from_both(
        roster: LedgerRoster, authority: Authority) -> None:
    enroll(authority, invite(authority))
    for labelled, unlabelled, least in ((0, 0, 0), (7, 0, 7), (0, 5, 5), (7, 5, 5)):
        hello(roster, "alpha", labelled_count=labelled, unlabelled_count=unlabelled)
        assert (roster.announced("alpha"), roster.announced_at_least("alpha")) == (labelled + unlabelled, least)
