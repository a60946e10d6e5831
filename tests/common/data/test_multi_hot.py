"""Rows of 0 and 1 for images that may have several labels or none, and the strata by which they are counted."""

from __future__ import annotations

import numpy as np
import torch

from semisilo.common.data.multi_hot import class_counts, findings_of, num_strata, strata_of, to_rows


def test_findings_by_name_become_rows_and_come_back() -> None:
    rows_NK = to_rows([("b",), (), ("c", "a")], ("a", "b", "c"))
    assert rows_NK.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert [findings_of(row, ("a", "b", "c")) for row in rows_NK.tolist()] == [("b",), (), ("a", "c")]


def test_a_class_that_nobody_was_asked_for_is_not_known() -> None:
    assert to_rows([("a",), ()], ("a", "b"), asked=("a",)).tolist() == [[1, -1], [0, -1]]


def test_an_image_counts_as_one_of_the_rarest_finding_that_it_shows() -> None:
    """Class 0 is shown by three images, class 1 by one, class 2 by two; an image without findings is of stratum 3."""
    rows_NK = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [0, 0, 1], [0, 0, 0], [-1, 0, 0]])
    assert strata_of(rows_NK).tolist() == [0, 1, 2, 2, 3, 3]
    assert num_strata(rows_NK, 3) == 4


def test_labels_of_one_class_are_their_own_strata() -> None:
    labels_N = np.array([2, 0, 1])
    assert strata_of(labels_N).tolist() == [2, 0, 1]
    assert num_strata(labels_N, 3) == 3


def test_counts_of_both_forms() -> None:
    assert class_counts(torch.tensor([0, 2, 2]), 4) == (1, 0, 2, 0)
    assert class_counts(torch.tensor([[1, 1, 0], [1, 0, -1]], dtype=torch.int8), 3) == (2, 1, 0)
    assert class_counts(None, 2) == (0, 0)
