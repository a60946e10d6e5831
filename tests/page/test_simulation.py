"""The page over the folder of a simulation (`coordinator page STUDY --folder RUN`): no network and no hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from semisilo.common.text.describe import describe_bytes, describe_share
from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.monitoring.summary import summarise
from tests.coordinator import ledger_fixture
from tests.coordinator.ledger_fixture import Filled, fill_study
from tests.page.kit import Tab, live_page, tab

VIEWS = {"#/study/first": "first", "#/study/first/rounds": "Rounds", "#/study/first/round/2": "Round 2",
         "#/silo/hospital-a": "hospital-a", "#/cost/first": "Cost", "#/studies": "Studies", "#/wall/first": "first"}


def simulated(folder: Path, *, failed: bool = False, over: bool = True) -> Filled:
    """A study with bytes of payloads only, as a simulation counts them."""
    def add(ledger: Ledger, costs: Iterable[Cost]) -> None:
        add_costs(ledger, [cost for cost in costs if cost.kind == "payload"])

    with mock.patch.object(ledger_fixture, "add_costs", add):
        filled = fill_study(folder / "hub", rounds=2, complete=over and not failed)
    if failed:
        filled.ledger.set_study_state("first", StudyState.FAILED, reason="the disk is full")
    return filled


def tile_of(shown: Tab, name: str) -> str:
    """Value and note of a tile."""
    return str(shown.page.locator(".tile", has=shown.page.get_by_text(name, exact=True)).first.inner_text())


@pytest.mark.slow
def test_bytes_of_a_simulation_are_those_of_its_payloads_and_none_is_said_to_be_counted_on_a_wire(
        browser: Any, tmp_path: Path) -> None:
    """It said "0 B, counted by the kernel" and "0 % of dense", in green."""
    filled = simulated(tmp_path)
    traffic = summarise(filled.ledger, "first").traffic
    assert traffic.simulated
    sent, share = describe_bytes(traffic.payload), describe_share(traffic.payload_share)
    with live_page(filled.federation, read_only=True, serving=False, simulation=True) as served, \
            tab(browser, served.address) as shown:
        for view, title in VIEWS.items():
            shown.go(view, title=title)
            text = shown.text("body").lower()
            assert "wire" not in text, view
            assert "kernel" not in text, view
            assert "0 b" not in text.split(), view
        for view in ("#/study/first", "#/cost/first"):
            shown.go(view)
            assert sent in tile_of(shown, "Payload")
            assert share in tile_of(shown, "Of dense")
        shown.go("#/wall/first")
        shown.wait_for_text(f"{sent} of payload", selector="main")
        shown.go("#/study/first/round/2", title="Round 2")
        row = summarise(filled.ledger, "first").rounds[2].traffic
        assert describe_bytes(row.payload_down) in tile_of(shown, "Down")
        assert describe_share(row.payload_share) in tile_of(shown, "Of dense")


@pytest.mark.slow
@pytest.mark.parametrize("failed", [False, True])
def test_nobody_is_sent_to_a_hub_that_there_is_not(browser: Any, tmp_path: Path, failed: bool) -> None:
    filled = simulated(tmp_path, failed=failed)
    for simulation in (True, False):
        with live_page(filled.federation, read_only=True, serving=False, simulation=simulation) as served, \
                tab(browser, served.address) as shown:
            shown.go("#/study/first")
            shown.wait_for_text("the disk is full" if failed else "The model handed over")
            said = f"coordinator {'queue' if failed else 'export'} first"
            assert (said in shown.text()) is not simulation
            assert ("start the simulation again" in shown.text()) is (simulation and failed)


@pytest.mark.slow
def test_a_study_that_goes_on_is_not_called_finished(browser: Any, tmp_path: Path) -> None:
    """Who looks at a simulation while it runs read "finished study" at the top."""
    for over, words in ((False, "as recorded"), (True, "finished study")):
        filled = simulated(tmp_path / words, over=over)
        with live_page(filled.federation, read_only=True, serving=False, simulation=True) as served, \
                tab(browser, served.address) as shown:
            shown.go("#/study/first")
            assert shown.text(".connection") == words
