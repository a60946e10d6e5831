"""Random groups of silos: nearly equal, every silo in one, the same in all rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semisilo.coordinator.secure_aggregation.groups import largest_group, number_of_groups, split
from tests.each_of import each_of

SILOS = tuple(f"silo-{number:02}" for number in range(40))


@given(count=st.integers(1, 40), size=st.sampled_from([0, 3, 4, 5, 16]), seed=st.integers(0, 5))
def test_every_silo_is_in_one_group_and_none_is_too_small(count: int, size: int, seed: int) -> None:
    groups = split(SILOS[:count], size=size, seed=seed)
    assert sorted(silo for group in groups for silo in group) == sorted(SILOS[:count])
    sizes = [len(group) for group in groups]
    assert len(groups) == number_of_groups(count, size)
    assert max(sizes) == largest_group(count, size)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(size, count)
    assert all(list(group) == sorted(group) for group in groups)


@each_of(("silos", "size", "groups", "largest"), [
    (12, 3, 4, 3), (13, 3, 4, 4), (5, 3, 1, 5), (2, 3, 1, 2), (100, 0, 1, 100), (100, 16, 6, 17)])
def test_how_many_groups_and_how_large(silos: int, size: int, groups: int, largest: int) -> None:
    assert (number_of_groups(silos, size), largest_group(silos, size)) == (groups, largest)


def test_the_same_silos_are_split_alike_however_they_are_listed_and_other_studies_otherwise() -> None:
    groups = split(SILOS[:12], size=3, seed=1)
    assert groups == split(SILOS[11::-1], size=3, seed=1)
    assert groups != split(SILOS[:12], size=3, seed=2)
    assert groups != tuple(SILOS[start:start + 3] for start in range(0, 12, 3)), "not by name"
