"""Named seeds: the documented number, other numbers for whatever differs, and generators that follow from it alone."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from semisilo.common.learning.seeds import derive_seed, numpy_generator, torch_generator
from tests.each_of import each_of


def test_a_seed_is_the_documented_number_of_63_bits() -> None:
    text = b"7\x1fshuffle\x1f3\x1fhospital-a"
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "little") % 2**63
    assert derive_seed(7, "shuffle", round=3, silo="hospital-a") == number
    assert all(0 <= derive_seed(seed, "shuffle") < 2**63 for seed in range(20))


@each_of("other", [{"study_seed": 8}, {"purpose": "views"}, {"round": 4}, {"silo": "hospital-b"},
                   {"round": 31, "study_seed": 7}, {"silo": ""}])
def test_every_part_of_the_name_gives_other_numbers(other: dict[str, Any]) -> None:
    name: dict[str, Any] = {"study_seed": 7, "purpose": "shuffle", "round": 3, "silo": "hospital-a"}
    assert derive_seed(**name) != derive_seed(**{**name, **other})
    draws = [int(torch.randint(2**62, (1,), generator=torch_generator(**each))) for each in (name, {**name, **other})]
    assert draws[0] != draws[1]
    assert numpy_generator(**name).random() != numpy_generator(**{**name, **other}).random()
    assert numpy_generator(**name).random() == numpy_generator(**name).random()
