"""The chain of events: what was altered or removed is found, restores are remembered."""

from __future__ import annotations

from dataclasses import replace

from semisilo.common.audit.chain import ChainWalk
from tests.audit_kit import NOW, trail, walked
from tests.each_of import each_of


def test_a_sound_chain_is_walked_to_its_end_and_keeps_what_is_wanted() -> None:
    events = trail("a", "b", "restored", "c")
    walk = walked(events, 2, 9)
    assert (walk.number, walk.chain, walk.values) == (4, events[-1].chain, {2: events[1].chain})
    (restore,) = walk.restores
    assert (restore.number, restore.unix, restore.backup_unix) == (3, NOW + 3, NOW - 100.0)


@each_of("change", [{"unix": NOW}, {"kind": "z"}, {"study": "s"}, {"detail_json": "{}"},
                    {"chain": "00" * 32}])
def test_every_part_of_an_event_is_in_the_chain(change: dict[str, object]) -> None:
    first, second = trail("a", "b")
    walk = ChainWalk()
    assert walk.step(first) == ""
    assert walk.step(replace(second, **change)) == "event 2 was altered"  # type: ignore[arg-type]
    assert walk.number == 1


def test_an_event_that_is_missing_is_named() -> None:
    first, _, third = trail("a", "b", "c")
    walk = ChainWalk()
    walk.step(first)
    assert walk.step(third) == "event 2 is missing"
