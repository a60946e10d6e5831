"""Heads of the audit trail: who may sign them, what a signature covers, and what a chain says of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.audit.chain import ChainedEvent
from semisilo.common.audit.head import AuditHead, SignedHead
from semisilo.common.audit.record import HeadFinding, find_head
from semisilo.common.audit.signature import authority_id, check_head
from semisilo.common.errors import WrongAuthority
from semisilo.common.identity.certificates import (
    certificate_der,
    issue_audit_certificate,
    issue_coordinator_certificate,
    issue_silo_certificate,
    make_authority,
    make_key,
)
from semisilo.coordinator.federation.audit_key import AuditKey
from tests.audit_kit import NOW, audit_key, signed, timed_trail, trail, walked
from tests.each_of import each_of


def test_the_coordinators_own_head_passes_and_is_signed_the_same_way_each_time() -> None:
    check_head(signed(7), audit_key().authority)
    assert signed(7) == signed(7)


@each_of("change", [{"number": 8}, {"chain": "11" * 32}, {"unix": NOW + 1e-6}, {"restored_unix": NOW},
                    {"backup_unix": NOW}])
def test_the_signature_covers_every_field(change: dict[str, object]) -> None:
    one = signed(7)
    altered = SignedHead(head=replace(one.head, **change), signature=one.signature,  # type: ignore[arg-type]
                         certificate_der=one.certificate_der)
    with pytest.raises(WrongAuthority, match=r"signature of audit head [0-9]+ is wrong"):
        check_head(altered, audit_key().authority)


def test_a_head_of_another_federation_or_of_another_authority_of_that_name_is_refused() -> None:
    for other in (audit_key("heart").authority, make_authority("lung", now=NOW)[1]):
        with pytest.raises(WrongAuthority, match="not one of this federation's authority"):
            check_head(signed(7), other)
        assert authority_id(other) != authority_id(audit_key().authority)


def test_a_signature_is_good_for_one_federation_even_where_two_have_certified_the_same_key() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    for name in ("lung", "heart"):
        ca_key, ca = make_authority(name, now=NOW)
        der = certificate_der(issue_audit_certificate(ca_key, ca, key.public_key(), now=NOW))
        here = AuditKey(key=key, certificate_der=der, authority=ca)
        check_head(signed(7, key=here), ca)
        elsewhere = AuditKey(key=key, certificate_der=der, authority=audit_key().authority)
        with pytest.raises(WrongAuthority, match="signature"):
            check_head(signed(7, key=elsewhere), ca)


def test_only_the_key_for_audit_heads_signs_them() -> None:
    ca_key, ca = make_authority("lung", now=NOW)
    key = ed25519.Ed25519PrivateKey.generate()
    tls = issue_coordinator_certificate(ca_key, ca, make_key().public_key(), now=NOW)
    silo = issue_silo_certificate(ca_key, ca, make_key().public_key(), "a", now=NOW)
    for certificate in (tls, silo):
        wrong = AuditKey(key=key, certificate_der=certificate_der(certificate), authority=ca)
        with pytest.raises(WrongAuthority, match="not one for audit heads"):
            check_head(signed(7, key=wrong), ca)
    with pytest.raises(WrongAuthority):
        check_head(replace(signed(7), certificate_der=b"garbage"), audit_key().authority)


def test_the_certificate_is_none_for_tls() -> None:
    ca_key, ca = make_authority("lung", now=NOW)
    made = issue_audit_certificate(ca_key, ca, ed25519.Ed25519PrivateKey.generate().public_key(), now=NOW)
    uses = [str(each.value) for each in made.extensions]
    assert "serverAuth" not in str(uses)
    assert "clientAuth" not in str(uses)
    assert "1.3.6.1.5.5.7.3.36" in str(uses)


# Against a chain ------------------------------------------------------------------------------------------------------


def test_a_head_of_the_chain_is_found() -> None:
    events = trail("a", "b", "c")
    assert find_head(signed(2, events[1].chain).head, walked(events, 2)) == HeadFinding()


def test_a_chain_that_was_cut_or_rewritten_contradicts_the_head() -> None:
    events, fork = trail("a", "b", "c"), trail("a", "b", "c", fork="x")
    cut = find_head(signed(3, events[2].chain).head, walked(events[:2], 3))
    assert "event 3" in cut.problem
    assert "missing: the trail ends at event 2" in cut.problem
    rewritten = find_head(signed(2, events[1].chain).head, walked(fork, 2))
    assert "rewritten" in rewritten.problem


def test_a_restore_explains_what_came_after_the_backup_and_nothing_before() -> None:
    old, new = trail("a", "b", "c"), trail("a", "restored", "c")
    lost = find_head(signed(3, old[2].chain).head, walked(new, 3))
    assert (lost.problem, "was lost when the coordinator was restored" in lost.note) == ("", True)
    before = find_head(signed(1, "11" * 32).head, walked(new, 1))
    assert "rewritten" in before.problem
    of_that_restore = signed(3, "11" * 32, restored_unix=new[1].unix).head
    assert "rewritten" in find_head(of_that_restore, walked(new, 3)).problem, "signed after the restore"


DAY = 86400.0


class Hub:
    """A coordinator that goes back to backups; what it has signed stays in `heads`, whatever becomes of its trail."""

    def __init__(self) -> None:
        self.written: list[tuple[float, str, dict[str, object]]] = []
        self.heads: list[AuditHead] = []
        self._restore = 0.0, 0.0

    def works(self, first_day: int, last_day: int, *, clock: float = 0.0) -> None:
        """An event a day, in the middle of it, with a clock that is so many days ahead."""
        for day in range(first_day, last_day + 1):
            self._write(NOW + (day + 0.5 + clock) * DAY, "x", {"day": day, "since": self._restore[0]})

    def backup(self) -> list[tuple[float, str, dict[str, object]]]:
        return list(self.written)

    def restore(self, backup: list[tuple[float, str, dict[str, object]]], *, day: float, made_day: float) -> None:
        self._restore = NOW + day * DAY, NOW + made_day * DAY
        self.written = list(backup)
        self._write(self._restore[0], "restored", {"backup_made_unix": self._restore[1]})

    def _write(self, unix: float, kind: str, detail: dict[str, object]) -> None:
        self.written.append((unix, kind, detail))
        end = self.trail()[-1]
        self.heads.append(AuditHead(number=end.number, chain=end.chain, unix=unix, restored_unix=self._restore[0],
                                    backup_unix=self._restore[1]))

    def trail(self) -> list[ChainedEvent]:
        return timed_trail(*self.written)

    def problems(self, trail: list[ChainedEvent] | None = None) -> list[int]:
        """Numbers of the heads that contradict a trail, its own where none is given."""
        walk = walked(self.trail() if trail is None else trail, *(head.number for head in self.heads))
        return [head.number for head in self.heads if find_head(head, walk).problem]


def rewritten(hub: Hub, *, kept: int, restored_day: float, backup_day: float) -> list[ChainedEvent]:
    """A trail that claims a restore after its first events, and tells a story of its own from there."""
    return timed_trail(*hub.written[:kept], (NOW + restored_day * DAY, "restored",
                                             {"backup_made_unix": NOW + backup_day * DAY}),
                       *((NOW + 60 * DAY + number, "x", {"lie": number}) for number in range(80)))


def test_a_claimed_restore_explains_nothing_that_was_written_before_its_backup_or_after_itself() -> None:
    """A trail that was rewritten from event 3 on passed as restored, whatever times the restore had."""
    hub = Hub()
    hub.works(0, 59)
    assert hub.problems(rewritten(hub, kept=2, restored_day=60, backup_day=59)) == list(range(3, 58)), \
        "57 to 59 may have been lost, as clocks go"
    assert hub.problems(rewritten(hub, kept=2, restored_day=1.9, backup_day=1.8)) == list(range(5, 61)), \
        "what came after the claimed restore says nothing of it"
    assert hub.problems(rewritten(hub, kept=2, restored_day=60, backup_day=1.8)) == [], \
        "a restore that admits that all since is lost explains that"


def test_honest_restores_in_any_order_explain_every_head() -> None:
    twice = Hub()
    twice.works(0, 9)
    first = twice.backup()
    twice.works(10, 29)
    second = twice.backup()
    twice.works(30, 39)
    twice.restore(second, day=40, made_day=30)
    twice.works(40, 59)
    assert twice.problems() == []
    third = twice.backup()
    twice.works(60, 69)
    twice.restore(third, day=70, made_day=60)
    twice.works(70, 72)
    assert twice.problems() == [], "the second from a backup of after the first"
    twice.restore(third, day=75, made_day=60)
    assert twice.problems() == [], "the same again"
    twice.restore(first, day=80, made_day=10)
    twice.works(80, 81)
    assert twice.problems() == [], "an older one"
    wrong = Hub()
    wrong.works(0, 9)
    older = wrong.backup()
    wrong.works(10, 29)
    newer = wrong.backup()
    wrong.works(30, 35)
    wrong.restore(older, day=36, made_day=10)
    wrong.works(36, 41)
    wrong.restore(newer, day=42, made_day=30)
    wrong.works(42, 43)
    assert wrong.problems() == [], "the wrong one first: its heads have numbers of before the newer backup"
    assert wrong.problems(timed_trail(*wrong.written[:25], *((unix, kind, {"lie": 1}) if kind == "x" else
                                                            (unix, kind, detail) for unix, kind, detail in
                                                            wrong.written[25:]))) != []


def test_of_a_lost_head_one_of_two_clocks_must_say_that_it_was_lost() -> None:
    hub = Hub()
    hub.works(0, 4)
    backup = hub.backup()
    hub.works(5, 5, clock=40.0)  # ahead for a moment
    early = hub.heads[-1]
    hub.restore(backup, day=7, made_day=5)
    walk = walked(hub.trail(), early.number)
    assert "rewritten" in find_head(early, walk).problem
    assert find_head(early, walk, seen_unix=NOW + 5.5 * DAY).note
    assert "rewritten" in find_head(early, walk, seen_unix=NOW + 30 * DAY).problem
    assert find_head(replace(early, unix=NOW + 4.5 * DAY), walk).note, "half a day before the backup: clocks are set"


def test_a_backup_of_which_no_time_is_known_explains_what_it_can() -> None:
    hub = Hub()
    hub.works(0, 9)
    trail = timed_trail(*hub.written[:4], (NOW + 20 * DAY, "restored", {}))
    assert hub.problems(trail) == []
