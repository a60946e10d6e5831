"""The record of what global models are worth on this site's own test images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.measures.independent_images import IndependentImages
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.silo.site import evaluations
from semisilo.silo.site.evaluations import EvaluationRecord, RecordedEvaluation, read_evaluations, scores_text

HERE = "0f" * 32


def entry(round: int, *, study: str = "lung", correct: int = 30, measure: str = "", model_digest: str = ""
          ) -> RecordedEvaluation:
    return RecordedEvaluation(unix=1.0, class_names=("a", "b"), measure=measure, evaluation=SiteEvaluation(
        study=study, round=round, model_digest=model_digest,
        classes=(ClassResult(images=40, correct=correct, auroc=0.9), ClassResult(images=10, correct=5, auroc=0.9))))


def test_what_was_added_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.json"
    record = EvaluationRecord(path)
    assert record.newest is None
    record.add(entry(1))
    record.add(entry(2, measure="recall:b"))
    again = EvaluationRecord(path)
    assert again.newest == entry(2, measure="recall:b")
    assert read_evaluations(path) == (entry(1), entry(2, measure="recall:b"))
    assert [again.find("lung", number, authority=HERE) is not None for number in (1, 2, 3)] == [True, True, False]
    assert not again.find("heart", 1, authority=HERE)
    assert not again.find("lung", 1, authority=HERE, labels_alone=True)


def test_another_model_of_the_same_round_is_not_known(tmp_path: Path) -> None:
    """A study that has gone back does a round again, with another model."""
    record = EvaluationRecord(tmp_path / "evaluations.json")
    record.add(entry(1))
    record.add(entry(2, model_digest="ab" * 32))
    record = EvaluationRecord(tmp_path / "evaluations.json")
    assert record.find("lung", 2, authority=HERE, model_digest="ab" * 32)
    assert not record.find("lung", 2, authority=HERE, model_digest="cd" * 32)
    assert record.find("lung", 2, authority=HERE), "a coordinator that names no model"
    assert not record.find("lung", 1, authority=HERE, model_digest="ab" * 32), "nobody knows which one that was"


def test_what_another_federation_calls_by_the_same_name_is_not_known(tmp_path: Path) -> None:
    record = EvaluationRecord(tmp_path / "evaluations.json")
    record.add(replace(entry(1), authority=HERE))
    record = EvaluationRecord(tmp_path / "evaluations.json")
    assert record.find("lung", 1, authority=HERE)
    assert not record.find("lung", 1, authority="ab" * 32)


def test_the_oldest_of_too_many_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "_MOST_KEPT", 3)
    record = EvaluationRecord(tmp_path / "evaluations.json")
    for number in range(5):
        record.add(entry(number))
    assert [each.evaluation.round for each in read_evaluations(tmp_path / "evaluations.json")] == [2, 3, 4]


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b'{"evaluations": [{}]}',
    b'{"evaluations": [{"unix": 1, "class_names": ["a"], "evaluation": {"study": "s", "round": 1, "classes": []}}]}'])
def test_a_damaged_record_is_none_and_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "evaluations.json"
    path.write_bytes(content)
    record = EvaluationRecord(path)
    assert record.newest is None
    record.add(entry(1))
    assert len(read_evaluations(path)) == 1


def test_a_person_reads_accuracy_balanced_accuracy_and_the_study_s_measure_with_intervals() -> None:
    assert scores_text(entry(3)) == ("study lung, model of round 3: accuracy 70.0 % (56.2 to 80.9 %), balanced accuracy"
                                     " 62.5 % (47.3 to 76.7 %); 50 images, by image")
    assert "recall of b 50.0 % (23.7 to 76.3 %); 50 images, by image" in scores_text(entry(3, measure="recall:b"))
    assert scores_text(entry(3, measure="accuracy")) == scores_text(entry(3))


def test_where_patients_are_known_intervals_go_by_them_and_the_record_keeps_that(tmp_path: Path) -> None:
    worth = IndependentImages(patients=10, total=10.0, by_class=(8.0, 2.0), without=(2.0, 8.0))
    found = replace(entry(3), independent=worth)
    assert scores_text(found).endswith("; 50 images, by patient (10 patients)")
    assert "accuracy 70.0 % (39.7 to 89.2 %)" in scores_text(found)
    EvaluationRecord(tmp_path / "evaluations.json").add(found)
    assert read_evaluations(tmp_path / "evaluations.json") == (found,)
