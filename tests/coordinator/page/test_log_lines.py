"""The last lines of the log: what is kept, who may read it, and that no secret is in it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from semisilo.coordinator.page.log_lines import LogLines
from tests.coordinator.ledger_fixture import open_federation_with_silos
from tests.coordinator.page.page_kit import TOKEN, Page, asking

LOG = logging.getLogger("semisilo.coordinator")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> LogLines:
    caplog.set_level(logging.DEBUG)
    kept = LogLines(most=5)
    with kept.listening():
        LOG.debug("looking")
        LOG.info("first, round 3/9 committed: accuracy 0.9")
        LOG.warning("hospital-a stands out", extra={"silo": "hospital-a", "study": "first"})
        try:
            raise ValueError("token=abc")
        except ValueError:
            LOG.exception("the page could not answer\x1b[31m\nwarning: forged line, token = %s", "s3cret-value")
    LOG.info("nobody listens any more")
    return kept


def test_lines_are_found_by_level_and_text_newest_first(lines: LogLines) -> None:
    assert [line.level for line in lines.find().lines] == ["error", "warning", "info", "debug"]
    assert [line.level for line in lines.find(level="warning").lines] == ["error", "warning"]
    assert [line.number for line in lines.find(text="HOSPITAL-A").lines] == [3]
    assert [line.number for line in lines.find(text="first").lines] == [3, 2], "of a line's study as well"
    assert [line.number for line in lines.find(before=3).lines] == [2, 1]
    page = lines.find(limit=2)
    assert ([line.number for line in page.lines], page.more, page.kept, page.dropped) == ([4, 3], True, 4, 0)


def test_a_line_is_one_line_without_secrets_or_tracebacks(lines: LogLines) -> None:
    text = lines.find(level="error").lines[0].text
    assert "s3cret" not in text
    assert "abc" not in text
    assert text.isprintable()
    assert text.endswith("(a traceback is in the log at the hub)")


def test_of_many_lines_the_last_are_kept(lines: LogLines) -> None:
    with lines.listening():
        for number in range(4):
            LOG.info("more %d", number)
    page = lines.find()
    assert [line.number for line in page.lines] == [8, 7, 6, 5, 4]
    assert (page.kept, page.dropped) == (5, 3)


def test_the_log_is_for_operators(lines: LogLines, tmp_path: Path) -> None:
    async def work(page: Page) -> None:
        assert (await page.client.get("/api/logs")).status_code == 401
        wrong = {"authorization": "Bearer a-wrong-token-of-some-length"}
        assert (await page.client.get("/api/logs", headers=wrong)).status_code == 401
        right = {"authorization": f"Bearer {TOKEN}"}
        found = (await page.client.get("/api/logs?level=warning&text=stands", headers=right)).json()
        assert [line["text"] for line in found["lines"]] == ["hospital-a stands out"]
        assert [line["level"] for line in (await page.client.get("/api/logs", headers=right)).json()["lines"]] == [
            "error", "warning", "info"], "without a level not what only a developer wants"
        for query in ("level=loud", "before=x", "x=1"):
            assert (await page.client.get(f"/api/logs?{query}", headers=right)).status_code == 400
    asking(open_federation_with_silos(tmp_path / "hub"), work, logs=lines)


def test_where_no_coordinator_runs_there_is_no_log(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "hub")

    async def work(page: Page) -> None:
        right = {"authorization": f"Bearer {TOKEN}"}
        assert (await page.client.get("/api/logs", headers=right)).status_code == 404

    async def read_only(page: Page) -> None:
        assert (await page.client.get("/api/logs")).status_code == 403
    asking(filled, work)
    asking(filled, read_only, token=None)
