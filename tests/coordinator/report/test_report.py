from __future__ import annotations

import base64
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.text import Annotation

from semisilo.common.config import canonical_json
from semisilo.common.errors import UnknownName
from semisilo.common.measures.intervals import wilson
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.text.describe import describe_bytes, describe_percentage, describe_range
from semisilo.coordinator.federation import operate
from semisilo.coordinator.ledger.states import StudyState, TaskState
from semisilo.coordinator.ledger.tasks import add_site_evaluation
from semisilo.coordinator.monitoring.summary import summarise
from semisilo.coordinator.report.figure_style import LIGHT
from semisilo.coordinator.report.figures import FIGURES
from semisilo.coordinator.report.report import write_report
from tests.coordinator.ledger_fixture import (
    DENSE_BYTES,
    LABELLED_ONLY,
    OVERHEAD,
    SILOS,
    accuracy_after,
    answer,
    confusion_after,
    fill_study,
    open_collecting_round,
    open_federation_with_silos,
    study_config,
)

_VOID = {"meta", "img", "source", "br", "link", "input", "hr"}


class _Page(HTMLParser):
    """Checks nesting and collects what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str]] = []
        self.references: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.references += [values[name] for name in ("src", "srcset", "href", "action", "data") if name in values]
        if tag == "img":
            self.images.append(values)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def table(self, first_heading: str) -> list[list[str]]:
        return next(table for table in self.tables if table[0][0] == first_heading)


def _size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    filled = fill_study(tmp_path_factory.mktemp("report") / "fed", rounds=8)
    return write_report(filled.federation, filled.ledger, "first")


@pytest.fixture(scope="module")
def page(page_path: Path) -> _Page:
    return _Page(page_path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_report_lies_in_the_folder_of_the_study_with_every_plot_as_a_file(page_path: Path) -> None:
    assert page_path.parts[-4:] == ("studies", "first", "report", "index.html")
    assert {path.name for path in page_path.parent.iterdir()} == {"index.html", *(f"{name}.png" for name in FIGURES)}
    assert set(FIGURES) == {"accuracy_by_round", "accuracy_by_bytes", "cost_by_round", "label_ratio"}
    for name in FIGURES:
        width, height = _size((page_path.parent / f"{name}.png").read_bytes())
        assert width > 1000
        assert height > 500


@pytest.mark.slow
def test_the_page_needs_nothing_but_itself(page: _Page) -> None:
    assert page.references, "there are pictures"
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert not page.tags & {"script", "link", "iframe", "object", "form", "base"}


def test_the_page_asks_for_nothing_from_its_style(page_path: Path) -> None:
    style = re.search(r"<style>(.*?)</style>", page_path.read_text(encoding="utf-8"), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "prefers-color-scheme: dark" in style[1]


def test_every_picture_says_in_words_what_it_shows_and_is_the_file_that_lies_beside(page: _Page,
                                                                                  page_path: Path) -> None:
    assert len(page.images) == len(FIGURES)
    for image, name in zip(page.images, FIGURES, strict=True):
        assert len(image["alt"]) > 30
        embedded = base64.b64decode(image["src"].partition("base64,")[2])
        assert embedded == (page_path.parent / f"{name}.png").read_bytes()
    assert f"to {describe_percentage(accuracy_after(8))}" in page.images[0]["alt"]
    assert f"labels alone reach {describe_percentage(LABELLED_ONLY)}" in page.images[0]["alt"]


def test_the_headline_compares_the_federated_model_with_labels_alone(page: _Page) -> None:
    accuracy, alone = describe_percentage(accuracy_after(8)), describe_percentage(LABELLED_ONLY)
    gain = float(accuracy.removesuffix(" %")) - float(alone.removesuffix(" %"))  # of the numbers that stand there
    for words in (f"Federated accuracy {accuracy}", f"Labels alone {alone}", f"Gain {gain:+.1f}",
                  "8 of 8 rounds", "Silos 3", "of dense"):
        assert words in page.text, words


def test_the_table_of_rounds_counts_every_answer(page: _Page) -> None:
    heading, *rows = page.table("Round")
    assert heading[:6] == ["Round", "Accuracy", "Updated", "Abstained", "Refused", "Expired"]
    assert [row[0] for row in rows] == [str(number) for number in range(9)]
    assert rows[1][1:6] == [describe_percentage(accuracy_after(1)), "3", "0", "0", "0"]
    assert rows[3][2:6] == ["2", "1", "0", "0"]
    assert rows[5][2:6] == ["2", "0", "0", "1"]
    assert rows[6][2:6] == ["2", "0", "1", "0"]
    assert rows[1][6:] == ["280.6 kB", "101 %", "281.2 kB", "101 %", "285.1 kB", "290.5 kB", "4.0 s"]
    assert f"Round 3, {SILOS[2]}: abstained (no confident example)" in page.text


def test_names_stay_in_one_piece_and_words_may_break(page_path: Path) -> None:
    html = page_path.read_text(encoding="utf-8")
    assert f'<th scope="row" class="name">{SILOS[0]}</th>' in html
    assert '<th scope="row">Dense, for comparison</th>' in html
    assert re.search(r"\.name \{ white-space: nowrap; \}", html)


def test_the_cost_table_goes_from_groups_to_the_wire_with_overhead_of_its_own(page: _Page) -> None:
    rows = {row[0]: row[1:] for row in page.table("What")}
    assert {"Payload: model", "Payload: manifest", "Messages: SubmitUpdate", "Messages: DownloadPayload",
            "Wire: connections of silos", "Wire: overhead, no silo’s", "Wire, all", "Dense, for comparison",
            "Wire, % of dense"} <= rows.keys()
    assert rows["Wire: overhead, no silo’s"][:3] == ["3.0 kB", "3.0 kB", "6.1 kB"]
    assert rows["Payload: manifest"][:2] == ["–", "14.7 kB"], "21 updates of 700 bytes"


def test_the_page_says_where_the_numbers_come_from(page: _Page) -> None:
    facts = {row[0]: row[1] for row in page.table("Fact")}
    assert facts["Seed"] == "7"
    assert re.fullmatch(r"[0-9a-f]{64}", facts["Model state (SHA-256)"])
    assert facts["Numerics: torch"] == "2.9.0"
    assert facts["Parameters"] == "23,258"
    assert re.search(r"hash chain over all \d+ events of the ledger is intact", page.text)


@pytest.mark.usefixtures("pictures_left_blank")
def test_estimated_bytes_are_called_estimated(tmp_path: Path, page: _Page) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2, estimated=True)
    text = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8")).text
    assert "Wire, all (estimated)" in text
    assert "estimated" not in page.text


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_that_has_not_begun_has_a_page_too(tmp_path: Path) -> None:
    filled = open_federation_with_silos(tmp_path / "fed", silos=())
    filled.ledger.queue_study("empty", study_config(rounds=5))
    path = write_report(filled.federation, filled.ledger, "empty", tmp_path / "elsewhere" / "deep")
    assert path == tmp_path / "elsewhere" / "deep" / "index.html"
    page = _Page(path.read_text(encoding="utf-8"))
    assert "0 of 5 rounds" in page.text
    assert "No round has begun." in page.text
    assert all(image["alt"].startswith("Nothing to plot yet") for image in page.images)


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_with_labels_at_silos_has_no_line_of_labels_alone_and_tells_who_has_labels(tmp_path: Path) -> None:
    pages = []
    for at_silo in (True, False):
        filled = fill_study(tmp_path / str(at_silo), rounds=3, labels_at_silo=at_silo)
        pages.append(_Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8")))
    at_silo_page, page = pages
    for text in ("Labels alone", "Gain"):
        assert text in page.text
        assert text not in at_silo_page.text
    assert "labels alone" in page.images[0]["alt"]
    assert "labels alone" not in at_silo_page.images[0]["alt"]
    assert f"Federated accuracy {describe_percentage(accuracy_after(3))}" in at_silo_page.text
    column = page.table("Silo")[0].index("With a label")
    assert [row[column - 1:column + 1] for row in at_silo_page.table("Silo")[1:]] == [["470", "50"]] * 3
    assert [row[column - 1:column + 1] for row in page.table("Silo")[1:]] == [["470", "0"]] * 3


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_without_test_images_shows_its_costs_and_no_accuracy(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=2, test=False)
    page = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8"))
    assert "Federated accuracy – no test images" in page.text
    assert page.images[0]["alt"].startswith("Nothing to plot yet")
    assert page.images[2]["alt"].startswith("Bars:")
    assert [row[1] for row in page.table("Round")[1:]] == ["–", "–", "–"]


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_study_that_was_stopped_before_any_silo_worked_is_compared_with_no_dense_model(tmp_path: Path) -> None:
    """It was "– of dense"."""
    filled = fill_study(tmp_path / "fed", rounds=2, done=0, complete=False)
    filled.ledger.set_study_state("first", StudyState.STOPPED)
    page = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8"))
    assert f"On the wire {describe_bytes(OVERHEAD)} no model has been sent yet" in page.text


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_failed_study_with_a_failed_round_shows_both_reasons(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=3, done=1, collecting=True)
    filled.ledger.fail_round(filled.ledger.round("first", 2), reason="1 of 2 answers within round_limit")
    filled.ledger.set_study_state("first", StudyState.FAILED, reason="the compute process died")
    page = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8"))
    assert page.table("Round")[3][0] == "2 (failed)"
    assert "Round 2: 1 of 2 answers within round_limit" in page.text
    assert "the compute process died Once the cause is removed: coordinator queue first" in page.text


@pytest.mark.usefixtures("pictures_left_blank")
def test_text_from_silos_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&"
    filled = fill_study(tmp_path / "fed", rounds=3, done=1, complete=False)
    filled.roster.joined(SILOS[0], version=evil, methods=(), labelled_count=0, unlabelled_count=1, memory_study="",
                         memory_round=0)
    open_collecting_round(filled.ledger, "first", 2, SILOS)
    task = filled.ledger.task(f"first/2/0-train/{SILOS[0]}")
    assert task is not None
    filled.ledger.close_task(task, TaskState.REFUSED, reason=evil)
    answer(filled.ledger, "first", 2, SILOS[1], TaskState.UPDATED, ratio=0.5)
    text = write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8")
    page = _Page(text)
    assert "script" not in page.tags
    assert evil in page.text, "shown as what it is"
    assert "<script" not in text


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_broken_audit_trail_is_said_aloud(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=1)
    with filled.ledger.transaction() as db:
        db.execute("DROP TRIGGER event_is_append_only_1")
        db.execute("UPDATE event SET kind = 'forged' WHERE number = 2")
    text = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8")).text
    assert "The audit trail is not intact." in text
    assert "event 2 was altered" in text


def test_an_unknown_study_is_refused_by_name(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=1)
    with pytest.raises(UnknownName, match="no study 'second'"):
        write_report(filled.federation, filled.ledger, "second")


@pytest.mark.usefixtures("pictures_left_blank")
def test_many_silos_are_drawn_as_a_range(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "fed", rounds=3, silos=tuple(f"silo-{number:02}" for number in range(12)))
    page = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8"))
    assert len(page.table("Silo")) == 13
    assert "share of a silo's images" in page.images[3]["alt"]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
@pytest.mark.parametrize(("measure", "title", "last", "alone", "gain"), [
    ("balanced_accuracy", "balanced accuracy", "81.3 %", "61.7 %", "+19.6"),
    ("recall:9", "recall of 9", "72.0 %", "70.0 %", "+2.0")])
def test_a_report_is_drawn_and_compared_by_the_studys_measure(tmp_path: Path, measure: str, title: str, last: str,
                                                              alone: str, gain: str) -> None:
    filled = fill_study(tmp_path / "hub", rounds=8, measure=measure)
    page = _Page(write_report(filled.federation, filled.ledger, "first").read_text(encoding="utf-8"))
    for words in (f"Federated {title} {last}", f"Labels alone {alone}", f"Gain {gain}",
                  f"accuracy {describe_percentage(accuracy_after(8))}", f"{title[0].upper()}{title[1:]} by round"):
        assert words in page.text, words
    said = page.images[0]["alt"]
    for words in (f"test {title} from round 1 to round 8", f"to {last}", f"labels alone reach {alone}",
                  f"Dotted line: accuracy, {describe_percentage(accuracy_after(8))} at the end"):
        assert words in said, words
    heading, *rows = page.table("Round")
    assert heading[1:3] == [f"{title[0].upper()}{title[1:]}", "Accuracy"]
    assert rows[8][1:3] == [last, describe_percentage(accuracy_after(8))]


@pytest.mark.usefixtures("pictures_left_blank")
def test_the_page_shows_the_model_at_each_site_and_who_sent_no_numbers(tmp_path: Path) -> None:
    made = fill_study(tmp_path / "hub", rounds=3)
    add_site_evaluation(made.ledger, SILOS[1], SiteEvaluation(study="first", round=3, classes=(
        ClassResult(images=80, correct=60), ClassResult(images=20, correct=15),
        *(ClassResult(images=0, correct=0),) * 8)), now_unix=1.0)
    text = write_report(made.federation, made.ledger, "first").read_text(encoding="utf-8")
    rows = next(table for table in _Page(text).tables if "Model" in table[0])
    assert rows[0] == ["Silo", "Model", "Test images", "Accuracy", "Balanced accuracy"]
    assert rows[2] == [SILOS[1], "round 3, handed over", "100", "75.0 % (65.7 to 82.5 %)", rows[2][4]]
    assert rows[2][4].startswith("75.0 % (")
    assert [rows[number][1] for number in (1, 3)] == ["sent none", "sent none"]


@pytest.mark.usefixtures("pictures_left_blank")
def test_the_page_shows_recalls_confusion_and_notes(tmp_path: Path) -> None:
    """Of 36 images of class 3 round 3 finds as many as the fixture says, and takes the others for an 8."""
    made = fill_study(tmp_path / "hub", rounds=3)
    with made.ledger.acted_by("operator:alice"):
        operate.note(made.ledger, "first", "<b>new</b> scanner", origin="page")
    text = write_report(made.federation, made.ledger, "first").read_text(encoding="utf-8")
    found, right = _Page(text), confusion_after(3)[3][3]
    recall = wilson(right, 36)
    assert recall is not None
    assert found.table("Class")[4] == ["3", "36", describe_percentage(right / 36),
                                       describe_range(recall.low, recall.high)]
    row = next(table for table in found.tables if table[0][1] == "taken for 0")[4]
    assert row == ["3", *(str(count) for count in confusion_after(3)[3])]
    assert "&lt;b&gt;new&lt;/b&gt; scanner" in text
    assert "operator:alice: " in text


@pytest.mark.usefixtures("pictures_left_blank")
def test_the_page_says_what_left_each_hospital(tmp_path: Path) -> None:
    """Three rounds: in the third the last silo abstains, so two updates of it have arrived."""
    made = fill_study(tmp_path / "hub", rounds=3)
    text = write_report(made.federation, made.ledger, "first").read_text(encoding="utf-8")
    table = next(table for table in _Page(text).tables if "Tensor groups" in table[0])
    assert [row[0] for row in table[1:]] == list(SILOS)
    for row, updates in zip(table[1:], (3, 3, 2), strict=True):
        assert row[1] == f"model {describe_bytes(updates * DENSE_BYTES)}"
        assert "label ratio" in row[2]
        assert row[3:5] == [str(updates), describe_bytes(updates * DENSE_BYTES)]


@pytest.mark.usefixtures("pictures_left_blank")
def test_a_silo_that_sends_ever_new_numbers_does_not_make_the_page_endless(tmp_path: Path) -> None:
    """256 names in every update: 60 rounds made a page of 4 MB."""
    made = fill_study(tmp_path / "hub", rounds=4)
    with made.ledger.transaction() as db:
        for number in range(1, 5):
            sent = canonical_json({f"round_{number}_number_{each:03}": 1.0 for each in range(256)})
            db.execute("UPDATE task SET metrics_json = ? WHERE round = ? AND silo = ?", (sent, number, SILOS[2]))
    text = write_report(made.federation, made.ledger, "first").read_text(encoding="utf-8")
    table = next(table for table in _Page(text).tables if "Tensor groups" in table[0])
    assert table[1][2] == "label ratio, loss"
    assert table[3][2].startswith("round 1 number 000, round 1 number 001, ")
    assert table[3][2].endswith("round 1 number 039 and 984 more")


def test_bars_of_very_many_rounds_leave_no_gaps_that_would_be_a_pattern(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    for rounds, width in ((3, 0.8), (80, 1.0)):
        axes = Figure().add_subplot()
        made = fill_study(tmp_path / f"hub-{rounds}", rounds=rounds)
        assert FIGURES["cost_by_round"][1](axes, summarise(made.ledger, "first"), LIGHT)
        assert {round(bar.get_width(), 6) for bar in axes.patches} == {width}


def test_the_last_value_stands_beside_the_axes(tmp_path: Path) -> None:
    """No line goes there, wherever the curve ends."""
    made = fill_study(tmp_path / "hub", rounds=3)
    study = summarise(made.ledger, "first")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    assert FIGURES["accuracy_by_round"][1](axes, study, LIGHT)
    label, = (text for text in axes.texts if text.get_text() == describe_percentage(accuracy_after(3)))
    assert isinstance(label, Annotation)
    axes.figure.canvas.draw()
    assert label.get_window_extent().x0 >= axes.get_window_extent().x1
