"""The facts of a model card: counted from the ledger, and every limit said exactly where it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest

from semisilo.common.config import to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.measures.findings import NOT_CHOSEN, measure_findings
from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.coordinator.export.card import (
    CARD_FORMAT,
    INTENDED_USE,
    CardCost,
    CardData,
    CardMethod,
    CardModel,
    CardNetwork,
    CardOnnx,
    CardSilos,
    CardTest,
    CoordinatorImages,
    EventChain,
    LabelsAlone,
    ModelCard,
    Provenance,
    card_cost,
    card_findings,
    card_onnx,
    card_silos,
    card_sites,
    card_test,
    limits_of,
    settings_shown,
    software_here,
)
from semisilo.coordinator.export.card_pages import card_html, card_markdown
from semisilo.coordinator.export.choose_model import STUDY_TEST
from semisilo.coordinator.export.measures import Measures, measure
from semisilo.coordinator.export.onnx_file import OnnxCheck
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.monitoring.summary import StudySummary, summarise
from tests.coordinator.ledger_fixture import (
    DENSE_BYTES,
    PAYLOAD_DOWN,
    PAYLOAD_UP,
    SILOS,
    WIRE_DOWN,
    Filled,
    fill_study,
)
from tests.each_of import each_of
from tests.newcombe import newcombe

MEASURES = measure(np.eye(3, dtype=np.float32).repeat(40, axis=0), np.arange(3).repeat(40), classes=("a", "b", "c"),
                   temperature=1.5)
CHECK = OnnxCheck(images=40, source="test", largest_difference=1e-6, largest_logit=3.0, same_predictions=40, opset=18,
                  versions={"onnx": "1"})
COST = CardCost(up_to_round=2, payload_down=1, payload_up=1, message_down=1, message_up=1, wire_down=1, wire_up=1,
                wire_estimated=False, dense_model=10, dense_total=50, downloads=3, uploads=2, updates_accepted=2,
                payload_share_of_dense=0.1, wire_share_of_dense=0.1)
COMPLETE = ModelCard(
    format=CARD_FORMAT, intended_use=INTENDED_USE,
    model=CardModel(
        study="s", study_state="completed", round=2, chosen="last", measure="accuracy",
        choice="round 2, the last one", planned_rounds=2, classes=("a", "b", "c"),
        method=CardMethod(name="semifl", source="x", scenario="labels-at-coordinator", discloses="y"),
        network=CardNetwork(name="small_cnn", normalisation="none", parameters=5, frozen=0, weights_sha256=""),
        image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.25,))),
    data=CardData(coordinator=CoordinatorImages(labelled=3, validation=1, test=120, unreadable_files=0,
                                                left_out_files=0),
                  silos=CardSilos(count=0, names_left_out=False, silos=(), labelled=0, unlabelled=0,
                                  took_part=0, of=0)),
    test=card_test(MEASURES, source=STUDY_TEST, digest="ab"), recorded_accuracy=1.0,
    labelled_only=LabelsAlone(accuracy=0.5, num_labelled=3, epochs=1, accuracy_interval=None), cost=COST,
    onnx=card_onnx(CHECK), files={},
    provenance=Provenance(
        state_sha256="s", settings_sha256="t", study_file_sha256=None,
        event_chain=EventChain(head="h", events=3, intact=True), numerics_of_training=None,
        numerics_of_this_card=NumericsRecord(device="cpu", torch="2", cpu_capability="AVX2", threads=1,
                                             deterministic=True), software=software_here()), settings={})
TEST = card_test(MEASURES, source=STUDY_TEST, digest="ab")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Six rounds: in round 3 the last silo abstains, in round 5 the first is late, in round 6 the second refuses."""
    made = fill_study(tmp_path_factory.mktemp("hub") / "fed", rounds=6)
    yield made
    made.ledger.close()


@pytest.fixture(scope="module")
def summary(filled: Filled) -> StudySummary:
    return summarise(filled.ledger, "first")


# Counted --------------------------------------------------------------------------------------------------------------


def test_silos_have_what_they_announced_and_how_they_answered_up_to_the_round(filled: Filled, summary: StudySummary
                                                                              ) -> None:
    rows = LedgerRoster(filled.ledger).silos()
    found = card_silos(summary, rows, up_to=5, names=True)
    assert [(each.silo, each.labelled, each.unlabelled) for each in found.silos] == [(silo, 0, 470) for silo in SILOS]
    assert [(each.updates, each.abstentions, each.refusals, each.late) for each in found.silos] == [
        (4, 0, 0, 1), (5, 0, 0, 0), (4, 1, 0, 0)]
    assert (found.count, found.labelled, found.unlabelled) == (3, 0, 3 * 470)
    assert (found.updates, found.abstentions, found.refusals, found.late) == (13, 1, 0, 1)
    assert card_silos(summary, rows, up_to=6, names=True).refusals == 1


@pytest.mark.parametrize(("scenario", "counts"), [
    ("labels-at-coordinator", (0, 770)), ("labels-at-silo", (300, 470)), ("labels-at-both", (300, 470))])
def test_labels_that_a_study_drops_are_not_counted_as_labelled(filled: Filled, summary: StudySummary, scenario: str,
                                                               counts: tuple[int, int]) -> None:
    """300 images in folders of patients at each silo, which look like classes there."""
    rows = [replace(row, labelled_count=300) for row in LedgerRoster(filled.ledger).silos()]
    method = {**summary.row.config["method"]["settings"], "scenario": scenario}
    config = {**summary.row.config, "method": {**summary.row.config["method"], "settings": method}}
    found = card_silos(replace(summary, row=replace(summary.row, config=config)), rows, up_to=5, names=True)
    assert {(each.labelled, each.unlabelled) for each in found.silos} == {counts}
    assert (found.labelled, found.unlabelled) == (3 * counts[0], 3 * counts[1])


def test_without_names_silos_are_numbered_and_one_that_nobody_knows_has_no_counts(filled: Filled, summary: StudySummary
                                                                                  ) -> None:
    found = card_silos(summary, LedgerRoster(filled.ledger).silos(), up_to=6, names=False)
    assert [each.silo for each in found.silos] == ["silo 1", "silo 2", "silo 3"]
    assert found.names_left_out
    assert [each.labelled for each in card_silos(summary, [], up_to=6, names=True).silos] == [None] * 3


def test_the_cost_is_that_of_the_rounds_up_to_the_model_s(summary: StudySummary) -> None:
    cost = card_cost(summary, up_to=2)
    assert (cost.payload_down, cost.payload_up) == (6 * PAYLOAD_DOWN, 6 * PAYLOAD_UP)
    assert (cost.downloads, cost.uploads, cost.updates_accepted) == (6, 6, 6)
    assert (cost.dense_model, cost.dense_down, cost.dense_up) == (DENSE_BYTES, 6 * DENSE_BYTES, 6 * DENSE_BYTES)
    assert cost.dense_total == 12 * DENSE_BYTES
    assert (cost.wire_down or 0) > 6 * WIRE_DOWN, "with the overhead"
    assert cost.payload_share_of_dense == (cost.payload_down + cost.payload_up) / cost.dense_total


def test_updates_of_which_the_gate_has_accepted_nothing_are_in_no_model(summary: StudySummary) -> None:
    """Page and report say then that no silo has part in it; the card spoke of what the silos had brought."""
    rounds = [replace(entry, taken_in=entry.number > 2) for entry in summary.rounds]
    shut = replace(summary, rounds=tuple(rounds))
    assert [card_cost(shut, up_to=number).updates_accepted for number in (2, 3)] == [0, 2]
    assert card_cost(shut, up_to=2).uploads == 6, "they have come all the same"
    card = replace(COMPLETE, cost=card_cost(shut, up_to=2))
    assert (card.shows_gain, card.gain) == (False, None)
    assert any("no silo has contributed to this model" in limit for limit in limits_of(card))


def test_a_simulation_has_no_message_and_no_wire_bytes(summary: StudySummary) -> None:
    simulated = replace(summary, costs=tuple(cost for cost in summary.costs if cost.kind == "payload"))
    cost = card_cost(simulated, up_to=6)
    assert (cost.message_down, cost.message_up, cost.wire_down, cost.wire_up, cost.wire_share_of_dense) == (None,) * 5
    assert cost.payload_down == card_cost(summary, up_to=6).payload_down


def test_the_measures_stand_in_the_card_as_they_are_with_what_they_are_of() -> None:
    for each in fields(Measures):
        assert getattr(TEST, each.name) == getattr(MEASURES, each.name)
    assert (TEST.source, TEST.sha256_images, TEST.confidence_level) == (STUDY_TEST, "ab", 0.95)
    assert list(to_dict(TEST))[:2] == ["images", "right"], "their order in model_card.json"
    assert set(TEST.definitions) <= {*(each.name for each in fields(CardTest)), "recall_interval", "auroc", "brier",
                                     "precision_interval", "expected_error", "negative_log_likelihood"}


def test_of_an_absolute_path_only_the_last_part_is_shown_and_nothing_else_is_changed() -> None:
    config: dict[str, dict[str, object]] = {
        "data": {"test": "/home/mueller/test.npz", "labelled": "data/labelled.npz", "validation": "~/v/"},
        "model": {"weights": "C:\\Users\\mueller\\w.pth", "name": "/not/a/path"}, "study": {"seed": 1}}
    assert settings_shown(config) == {
        "data": {"test": "test.npz", "labelled": "data/labelled.npz", "validation": "v"},
        "model": {"weights": "w.pth", "name": "/not/a/path"}, "study": {"seed": 1}}
    assert config["data"]["test"] == "/home/mueller/test.npz", "what was handed in stays"


# Limits ---------------------------------------------------------------------------------------------------------------

FEW = replace(TEST, classes=(replace(TEST.classes[0], images=29), replace(TEST.classes[1], images=0), TEST.classes[2]))


@each_of(("card", "said"), [
    (replace(COMPLETE, test=None), "The accuracy was not measured"),
    (replace(COMPLETE, model=replace(COMPLETE.model, chosen="best-on-test")),
     "Measure it on other images: --test SOURCE"),
    (replace(COMPLETE, test=replace(TEST, independent=IndependentImages(30, 30.0, (10.0,) * 3, (20.0,) * 3))),
     "Intervals are by patient: they count the 120 test images as the 30 patients that they are of"),
    (replace(COMPLETE, test=FEW), "No test image is of these classes, so nothing is known of them: b."),
    (replace(COMPLETE, test=FEW), "Fewer than 30 test images each are of: a; their intervals are wide."),
    (replace(COMPLETE, test=replace(TEST, auroc_macro=None)), "No AUROC was measured"),
    (replace(COMPLETE, test=replace(TEST, temperature=1.0)), "No temperature was fitted"),
    (replace(COMPLETE, cost=replace(COST, updates_accepted=0)), "No update of any silo was taken in"),
    (replace(COMPLETE, labelled_only=None), "so the gain is not known"),
    (replace(COMPLETE, model=replace(COMPLETE.model, method=replace(COMPLETE.model.method, scenario="labels-at-both"))),
     "the gain is of these and of images without labels together"),
    (replace(COMPLETE, onnx=None), "No ONNX graph was written"),
    (replace(COMPLETE, onnx=card_onnx(replace(CHECK, source="random"))), "compared on random images"),
    (replace(COMPLETE, cost=replace(COST, wire_down=None)), "This is a simulation"),
    (replace(COMPLETE, cost=replace(COST, wire_estimated=True)), "Wire bytes, or some of them, are estimated"),
], ids=lambda value: value if isinstance(value, str) else "card")
def test_a_limit_is_said_where_it_holds_and_only_there(card: ModelCard, said: str) -> None:
    assert any(said in limit for limit in limits_of(card))
    assert not any(said in limit for limit in limits_of(COMPLETE))


def test_areas_are_said_to_be_of_the_probabilities_before_a_fitted_temperature() -> None:
    before = "Each AUROC is of the probabilities before it"
    assert any(before in limit for limit in limits_of(COMPLETE))  # its temperature is 1.5
    assert not any(before in limit for limit in limits_of(replace(COMPLETE, test=replace(TEST, temperature=1.0))))


@pytest.mark.parametrize("said", ["Measure it on other images: --test SOURCE", "was shown while the study ran",
                                  "Intervals are by image: they treat every test image as independent."])
def test_what_holds_of_any_test_images_is_said_with_several_labels_as_well(said: str) -> None:
    measures = measure_findings(np.array([[2.0, -1], [-1, 2], [1, 1]], dtype=np.float32),
                                np.array([[1, 0], [0, 1], [1, 1]], dtype=np.int8), classes=("a", "b"),
                                thresholds=(0.5, 0.5), thresholds_from=NOT_CHOSEN)
    card = replace(COMPLETE, test=None, findings=card_findings(measures, source=STUDY_TEST, digest="ab"),
                   settings={"study": {"task": "multi_label"}},
                   model=replace(COMPLETE.model, chosen="best-on-test", measure="auroc"))
    assert any(said in limit for limit in limits_of(card))
    other = replace(card, findings=card_findings(measures, source="other images (x)", digest="ab"),
                    model=replace(card.model, chosen="last"))
    assert any(said in limit for limit in limits_of(other)) == said.startswith("Intervals")


def test_images_that_others_have_chosen_are_not_called_the_study_s_own() -> None:
    own = "was shown while the study ran"
    assert any(own in limit for limit in limits_of(COMPLETE))
    others = replace(COMPLETE, test=replace(TEST, source="other images (x)"))
    assert not any(own in limit for limit in limits_of(others))
    assert (COMPLETE.shows_gain, others.shows_gain) == (True, False), "nor compared with what was measured on others"


def test_a_gain_is_shown_only_of_what_silos_had_part_in() -> None:
    assert not replace(COMPLETE, labelled_only=None).shows_gain
    assert not replace(COMPLETE, cost=replace(COST, updates_accepted=0)).shows_gain
    assert not replace(COMPLETE, test=None).shows_gain


def test_the_gain_is_in_the_studys_measure_with_its_interval() -> None:
    """Everything right on 40 images of each of three classes, against recalls of 0.5, 0.5 and 0.8."""
    alone = {"accuracy": 0.6, "balanced_accuracy": 0.6, "recall/a": 0.5, "recall/b": 0.5, "recall/c": 0.8}
    card = replace(COMPLETE, onnx=None, labelled_only=replace(COMPLETE.labelled_only, accuracy=0.6, metrics=alone))
    assert card.gain is not None
    assert (card.gain.measure, card.gain.interval) == (ACCURACY, newcombe(120, 72, 120))
    other = replace(card, model=replace(card.model, measure="recall:c"))
    assert other.gain is not None
    assert other.gain.interval == newcombe(40, 32, 40)
    page = card_markdown(replace(other, limits=()))
    assert "| Gain, recall of c | +20.0 points, the silos have helped |" in page
    assert card_markdown(card).splitlines()[2].count("test accuracy") == 1
    assert "test recall of c 100.0 %" in page
    assert "| The study compares rounds by | recall of c |" in page
    assert replace(COMPLETE, cost=replace(COST, updates_accepted=0)).gain is None


def test_who_subtracts_the_areas_of_the_card_finds_its_gain() -> None:
    """They had a digit more than the gain, and than page and report."""
    card = replace(COMPLETE, onnx=None, model=replace(COMPLETE.model, measure="auroc"), labelled_only=replace(
        COMPLETE.labelled_only, metrics={"accuracy": 0.6, "auroc": 0.75049}))
    page = card_markdown(card).replace(" ---: ", "")
    assert "| AUROC, macro | 1.000 |" in page
    assert "| AUROC, macro, labels alone | 0.750 |" in page
    assert "| Gain, AUROC | +0.250 |" in page


def test_the_page_of_a_card_can_be_handed_on_without_a_file_beside_it() -> None:
    """The operator page offers it alone, and its picture was missing there."""
    card = replace(COMPLETE, onnx=None)
    assert 'src="reliability.png"' in card_html(card)
    page = card_html(card, pictures={"reliability.png": b"the picture"})
    assert "reliability.png" not in page
    assert 'src="data:image/png;base64,dGhlIHBpY3R1cmU="' in page
    assert "img-src 'self' data:;" in page
    assert "(reliability.png)" in card_markdown(card), "which cannot hold it"


def test_the_graph_s_tolerances_stand_beside_its_check() -> None:
    found = to_dict(COMPLETE.onnx)
    assert isinstance(COMPLETE.onnx, CardOnnx)
    assert {name: found[name] for name in to_dict(CHECK)} == to_dict(CHECK)
    assert (found["absolute_tolerance"], found["relative_tolerance"]) == (1e-4, 1e-4)


# At the sites ---------------------------------------------------------------------------------------------------------


def test_the_card_has_what_each_site_says_of_this_very_model_and_who_says_nothing(summary: StudySummary) -> None:
    classes = (ClassResult(images=10, correct=9), ClassResult(images=10, correct=5),
               *(ClassResult(images=0, correct=0),) * 8)
    found = {silo: SiteEvaluation(study="first", round=number, classes=classes) for silo, number in
             ((SILOS[0], 5), (SILOS[1], 4))}
    rows = card_sites(summary, found, round=5, labels_alone=False, names=True)
    assert [(each.silo, each.images) for each in rows] == [(SILOS[0], 20), (SILOS[1], None), (SILOS[2], None)]
    assert rows[0].accuracy is not None
    assert rows[0].accuracy.value == 0.7
    assert [each.silo for each in card_sites(summary, found, round=5, labels_alone=False, names=False)] == [
        "silo 1", "silo 2", "silo 3"]
    assert [each.images for each in card_sites(summary, found, round=0, labels_alone=True, names=True)] == [None] * 3
    card = replace(COMPLETE, sites=rows, onnx=None)
    assert any(f"on their own images: {SILOS[1]}, {SILOS[2]}." in limit for limit in limits_of(card))
    assert any("No site has sent" in limit for limit in limits_of(COMPLETE))
    for text in (card_markdown(card), card_html(card)):
        assert "70.0 % (48.1 to 85.5 %)" in text
        assert "sent none" in text
        assert "At the sites" in text
    assert "At the sites" not in card_markdown(replace(COMPLETE, onnx=None))
