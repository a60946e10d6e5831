"""What names a sum: every field counts, and lists have one order."""

from __future__ import annotations

import dataclasses

from semisilo.common.config import from_dict, to_dict
from semisilo.common.secure_aggregation.messages import SecureSum, in_order
from tests.secure_sums import a_total


def test_every_field_of_a_sum_is_in_its_digest() -> None:
    total = a_total(3)
    others = [dataclasses.replace(total, federation="l"), dataclasses.replace(total, study="l"),
              dataclasses.replace(total, round=2), dataclasses.replace(total, phase="l"),
              dataclasses.replace(total, nonce=b"m" * 16), dataclasses.replace(total, threshold=4)]
    assert len(others) == len(dataclasses.fields(SecureSum))
    assert len({other.digest() for other in [total, *others]}) == 7
    assert len(total.digest()) == 32


def test_fields_do_not_run_into_one_another() -> None:
    total = a_total(3)
    assert dataclasses.replace(total, federation="lungsf", study="irst").digest() != total.digest()
    assert dataclasses.replace(total, federation='lungs","study":"', study="first").digest() != total.digest()


def test_lists_are_in_byte_order() -> None:
    assert in_order(["b", "ä", "a", "B", "aa"]) == ("B", "a", "aa", "b", "ä")


def test_a_sum_is_kept_and_read_again() -> None:
    assert from_dict(SecureSum, to_dict(a_total(3))) == a_total(3)
