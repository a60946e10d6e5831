"""What a silo says about its pseudo-labels."""

from __future__ import annotations

import pytest
import torch

from semisilo.silo.objectives.pseudo_label_report import PseudoLabelReport


def test_counts_add_up_over_batches_and_the_highest_class_may_come_first() -> None:
    """Batch 1: classes 2, 0, 1 with the last not kept; batch 2: 0, 0 kept. Truth 2, 1, 1 and 0, 1."""
    report = PseudoLabelReport()
    report.add(torch.tensor([2, 0, 1]), torch.tensor([True, True, False]), torch.tensor([2, 1, 1]))
    report.add(torch.tensor([0, 0]), torch.tensor([True, True]), torch.tensor([0, 1]))
    assert report.metrics() == {"label_ratio": 0.8, "pseudo_labels/0": 3.0, "pseudo_labels/2": 1.0,
                                "pseudo_label_accuracy": 0.6, "threshold_accuracy": 0.5}


def test_without_truth_nothing_is_said_of_accuracy() -> None:
    report = PseudoLabelReport()
    report.add(torch.tensor([1]), torch.tensor([False]), None)
    assert report.metrics() == {"label_ratio": 0.0}


def test_a_class_whose_truth_is_not_known_is_neither_right_nor_wrong() -> None:
    """Of eight classes four are known; two of these are labelled, one rightly."""
    report = PseudoLabelReport()
    report.add(torch.tensor([[1, 0, 1, -1], [-1, -1, 0, -1]], dtype=torch.int8), torch.ones(2, dtype=torch.bool),
               torch.tensor([[1, 1, -1, -1], [0, 0, -1, -1]], dtype=torch.int8))
    assert report.metrics() == {"label_ratio": 0.5, "pseudo_labels/0": 1.0, "pseudo_labels/2": 1.0,
                                "pseudo_label_accuracy": 0.25, "threshold_accuracy": 0.5}


def test_where_no_truth_is_known_nothing_is_said_of_accuracy() -> None:
    report = PseudoLabelReport()
    report.add(torch.tensor([[1, -1]], dtype=torch.int8), torch.ones(1, dtype=torch.bool),
               torch.full((1, 2), -1, dtype=torch.int8))
    assert report.metrics() == {"label_ratio": 0.5, "pseudo_labels/0": 1.0}


def test_nothing_added_gives_nothing() -> None:
    assert PseudoLabelReport().metrics() == {}


def test_soft_labels_count_by_their_shares() -> None:
    report = PseudoLabelReport()
    soft = torch.tensor([[0.7, 0.3], [0.1, 0.9]])
    report.add(torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool), None, soft_BK=soft)
    found = report.metrics()
    assert found["pseudo_labels/0"] == pytest.approx(0.8)
    assert found["pseudo_labels/1"] == pytest.approx(1.2)
