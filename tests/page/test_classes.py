"""What the page says class by class, and beside labels alone, with names and numbers as hospitals have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from semisilo.common.config import canonical_json
from tests.coordinator.ledger_fixture import fill_study
from tests.page.kit import NARROW, WIDE, LivePage, live_page, tab

CLASSES = ("pneumonia, organising", "a class whose name was written by a committee of eleven people in 1998", "of",
           *(f"finding {label}" for label in range(3, 10)))


@pytest.fixture(scope="module")
def perfect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    """Every round and labels alone have 100 %; validation images were measured class by class as well."""
    filled = fill_study(tmp_path_factory.mktemp("classes") / "hub", rounds=3)
    row = filled.ledger.study("first")
    assert row.frozen is not None
    assert row.baseline is not None
    by_class = {f"{where}recall/{name}": 1.0 for where in ("", "validation_") for name in CLASSES}
    filled.ledger.set_study_facts("first", frozen=replace(row.frozen, classes=CLASSES), baseline=replace(
        row.baseline, metrics={"accuracy": 1.0, **by_class}))
    with filled.ledger.transaction() as db:
        db.execute("UPDATE round SET metrics_json = ?", (canonical_json(
            {"accuracy": 1.0, "validation_auroc": 0.8125, "validation_f1": 0.5, **by_class}),))
    with live_page(filled.federation, serving=False) as served:
        yield served


@pytest.mark.slow
def test_every_measure_beside_labels_alone_is_called_the_same_for_every_class(browser: Any, perfect: LivePage) -> None:
    """Of validation images they were called "Recall of finding 9, val", by the last class."""
    with tab(browser, perfect.address) as shown:
        shown.go("#/study/first")
        shown.page.locator("summary", has_text="Class by class").click()
        heads = shown.page.get_by_role("table", name="Classes beside those of labels alone").get_by_role("columnheader")
        heads.first.wait_for()
        assert heads.all_inner_texts() == ["Class", "Recall", "Recall, labels alone", "Recall, validation images",
                                           "Recall, validation images, labels alone"]


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_long_names_of_classes_leave_room_for_their_numbers(browser: Any, perfect: LivePage, viewport: dict[str, int]
                                                            ) -> None:
    with tab(browser, perfect.address, viewport=viewport) as shown:
        shown.go("#/study/first")
        shown.wait_for_text("Confusion")
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        name = shown.page.locator(".confusion tbody th").nth(1)
        assert name.locator("span").get_attribute("title") == CLASSES[1]
        card, first = (shown.page.locator(at).first.bounding_box() for at in (".confusion", ".confusion tbody td"))
        assert first["x"] + first["width"] <= card["x"] + card["width"], "the first count is seen without scrolling"


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_what_is_written_in_a_chart_covers_nothing_where_all_is_100_percent(browser: Any, perfect: LivePage,
                                                                             viewport: dict[str, int]) -> None:
    with tab(browser, perfect.address, viewport=viewport) as shown:
        shown.go("#/study/first")
        shown.page.locator("line-chart svg").first.wait_for()
        boxes = [shown.page.locator("line-chart").first.locator(f"{part} text").first.bounding_box()
                 for part in (".level", ".ends")]
        (upper, lower) = sorted(boxes, key=lambda box: float(box["y"]))
        assert upper["y"] + upper["height"] <= lower["y"] + 4, "but for what letters leave free above and below"


@pytest.mark.slow
def test_a_round_writes_its_numbers_on_validation_images_as_those_on_test_images(browser: Any, perfect: LivePage
                                                                                  ) -> None:
    with tab(browser, perfect.address) as shown:
        shown.go("#/study/first/round/2", title="Round 2")
        shown.wait_for_text("validation AUROC")
        facts = shown.page.locator("section", has=shown.page.locator("#metrics")).locator("dl > div").all_inner_texts()
        assert [each.split("\n")[0:2] for each in facts] == [
            ["accuracy", "100.0 %"], ["validation AUROC", "0.812"], ["validation f1", "50.0 %"]]
