"""Studies side by side in the browser."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.text.describe import describe_percentage
from tests.coordinator.ledger_fixture import accuracy_after, add_study, fill_study
from tests.page.kit import NARROW, WIDE, LivePage, live_page, tab
from tests.page.test_accessibility import violations


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    filled = fill_study(tmp_path_factory.mktemp("three") / "hub", rounds=6)
    add_study(filled, "second", rounds=8, done=3, complete=True)
    add_study(filled, "third", rounds=5, done=2)
    with live_page(filled.federation) as served:
        served.said["study"] = "third"
        yield served


@pytest.mark.slow
def test_studies_are_chosen_and_compared_over_rounds_bytes_and_time(browser: Any, three: LivePage) -> None:
    with tab(browser, three.address) as shown:
        shown.go("#/studies", title="Studies")
        shown.page.get_by_role("link", name="Compare").click()
        shown.page.get_by_role("heading", level=1, name="Compare studies").wait_for()
        shown.wait_for_text("Where they stand")
        assert shown.page.locator("line-chart g.line").count() == 3
        shown.page.get_by_role("group", name="Studies to compare").get_by_role("button", name="third").click()
        shown.wait_for("() => document.querySelectorAll('line-chart g.line').length === 2")
        rows = shown.page.locator("section[aria-labelledby=ends] tbody tr").all_inner_texts()
        assert [describe_percentage(accuracy_after(number)) in row for number, row in zip((6, 3), rows, strict=True)] \
            == [True, True]
        assert "[study] rounds" in shown.text("section[aria-labelledby=differences]")
        for over, axis in (("Bytes", "on the wire, both directions"), ("Time", "seconds since the start")):
            shown.page.get_by_role("group", name="Over what").get_by_role("button", name=over).click()
            shown.wait_for("axis => document.querySelector('line-chart svg').textContent.includes(axis)", axis)


@pytest.mark.slow
def test_an_accuracy_is_rounded_alike_wherever_it_stands_on_a_page(browser: Any, three: LivePage) -> None:
    """84.55 % was 84.6 in one place and 84.5 in another."""
    with tab(browser, three.address) as shown:
        shown.go("#/study/second", title="second")
        beside = shown.text("section[aria-labelledby=beside]")
        assert describe_percentage(accuracy_after(3)) in beside


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_studies_that_end_alike_are_all_named_beside_their_lines(viewport: dict[str, int], browser: Any, tmp_path: Path
                                                                 ) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3)
    others = [f"other-{number}" for number in range(6)]
    for name in others:
        add_study(filled, name, rounds=3, done=3, complete=True)
    with live_page(filled.federation) as served, tab(browser, served.address, viewport=viewport) as shown:
        shown.go(f"#/compare/first/{'/'.join(others)}", title="Compare")
        shown.wait_for_text("Where they stand")
        names = shown.page.locator("line-chart .ends text")
        assert sorted(text.split()[0] for text in names.all_text_contents()) == ["first", *others]
        boxes = sorted(box["y"] for each in names.all() if (box := each.bounding_box()) is not None)
        assert min(low - high for high, low in itertools.pairwise(boxes)) > 11, boxes


@pytest.mark.slow
def test_an_address_can_be_handed_on_and_one_study_is_none_to_compare(browser: Any, three: LivePage) -> None:
    with tab(browser, three.address) as shown:
        shown.go("#/compare/second", title="Compare")
        shown.wait_for_text("Choose at least two")
        shown.go("#/compare/second/third", title="Compare")
        shown.wait_for_text("Where they stand")
        assert shown.page.title().startswith("Compare second, third")


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", NARROW)])
def test_axe_finds_nothing_in_a_comparison(scheme: str, viewport: dict[str, int], browser: Any, three: LivePage
                                           ) -> None:
    with tab(browser, three.address, viewport=viewport, scheme=scheme) as shown:
        shown.go("#/compare/first/second/third", title="Compare")
        shown.wait_for_text("Where they stand")
        assert violations(shown, scheme=scheme) == []
        over = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0
