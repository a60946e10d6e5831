"""Complaints about members of secure sums, in the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.coordinator.ledger.secure_sums.complaints import add_complaints, complaints, forget_complaints
from tests.coordinator.ledger_fixture import Filled, open_federation_with_silos


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return open_federation_with_silos(tmp_path)


def test_each_is_noted_once_in_a_round_and_told_in_order(filled: Filled) -> None:
    add_complaints(filled.ledger, "first", 2, [("beta", "alpha"), ("gamma", "alpha"), ("beta", "alpha")])
    add_complaints(filled.ledger, "first", 2, [("gamma", "alpha")])
    add_complaints(filled.ledger, "first", 1, [("gamma", "beta")])
    add_complaints(filled.ledger, "second", 1, [("alpha", "beta")])
    assert complaints(filled.ledger, "first") == (("gamma", "beta"), ("beta", "alpha"), ("gamma", "alpha"))
    assert filled.ledger.query("SELECT count(*) FROM event WHERE kind = 'secure_sum_complaint'")[0][0] == 4


def test_those_of_one_study_are_forgotten_and_stay_in_the_audit_trail(filled: Filled) -> None:
    add_complaints(filled.ledger, "first", 1, [("gamma", "beta")])
    add_complaints(filled.ledger, "second", 1, [("alpha", "beta")])
    forget_complaints(filled.ledger, "first")
    assert complaints(filled.ledger, "first") == ()
    assert complaints(filled.ledger, "second") == (("alpha", "beta"),)
    assert filled.ledger.query("SELECT count(*) FROM event WHERE kind = 'secure_sum_complaint'")[0][0] == 2
