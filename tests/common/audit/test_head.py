"""Heads of the audit trail: who may sign them, what a signature covers, and what a chain says of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.audit.head import SignedHead
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
from tests.audit_kit import NOW, audit_key, signed, trail, walked
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
