"""Consistency losses: the specification's oracles, limits, and that targets carry no gradient."""

from __future__ import annotations

import math

import pytest
import torch

from semisilo.common.learning.consistency import (
    ema_into,
    fixmatch_unsup,
    masked_mean,
    mt_consistency,
    pseudo_label_loss,
    tsa_loss,
    tsa_threshold,
    uda_unsup,
)
from semisilo.common.learning.losses import cross_entropy
from tests.each_of import each_of

WEAK = torch.tensor([[3.0, 0.0, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64)
STRONG = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)


def test_oracle_b4_annealed_labels() -> None:
    threshold = tsa_threshold("exp", t=50, total=100, num_classes=10)
    assert threshold == pytest.approx(0.173876, abs=1e-5)
    rest = torch.tensor([0.05, 0.15, 0.2, 0.9], dtype=torch.float64)
    logits = torch.log(torch.cat([rest[:, None], ((1 - rest) / 9)[:, None].expand(4, 9)], dim=1))
    found = tsa_loss(logits, torch.zeros(4, dtype=torch.int64), threshold)
    assert found.keep_B.tolist() == [True, True, False, False]
    assert float(found.loss) == pytest.approx(2.446426, abs=1e-5)


def test_oracle_b5_uda() -> None:
    found = uda_unsup(WEAK, STRONG, temperature=0.4, confidence_threshold=0.8)
    assert found.labels.keep_B.tolist() == [True, False]
    expected = torch.tensor([[0.998895, 0.000552, 0.000552], [0.730679, 0.209343, 0.059978]], dtype=torch.float64)
    assert torch.allclose(found.target_BK, expected, atol=1e-5)
    assert float(found.loss) == pytest.approx(0.431274, abs=1e-5)


def test_oracle_b6_fixmatch() -> None:
    found = fixmatch_unsup(WEAK, STRONG, 0.85)
    assert found.labels.keep_B.tolist() == [True, False]
    assert found.labels.hard_label_B.tolist() == [0, 0]
    assert float(found.loss) == pytest.approx(0.430997, abs=1e-5)


def test_uda_keeps_by_what_the_model_says_not_by_the_sharpened_target() -> None:
    """q = 0.75 is below the threshold of 0.8; sharpened with T = 0.5 it is 0.9."""
    logits = torch.tensor([[0.75, 0.25]]).log()
    found = uda_unsup(logits, logits, temperature=0.5, confidence_threshold=0.8)
    assert found.target_BK[0].tolist() == pytest.approx([0.9, 0.1])
    assert found.labels.keep_B.tolist() == [False]
    assert float(found.loss) == 0.0


def test_oracle_b7_moving_average() -> None:
    teacher = torch.tensor([0.0, 1.0], dtype=torch.float64)
    seen = []
    for student in ([1.0, 1.0], [2.0, 0.0]):
        ema_into([teacher], [torch.tensor(student, dtype=torch.float64)], decay=0.99)
        seen.append(teacher.tolist())
    assert torch.allclose(torch.tensor(seen), torch.tensor([[0.01, 1.0], [0.0299, 0.99]]), atol=1e-5)


def test_oracle_b8_mean_teacher() -> None:
    found = mt_consistency(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]]))
    assert float(found) == pytest.approx(0.026694, abs=1e-5)


def test_the_kept_mean_of_one_kept_image_is_its_cross_entropy() -> None:
    """Twice the whole-batch mean of B6, where one of two images is kept."""
    found = fixmatch_unsup(WEAK, STRONG, 0.85, mask_mean="kept")
    assert float(found.loss) == pytest.approx(float(cross_entropy(STRONG[:1], torch.tensor([0]))))
    assert float(found.loss) == pytest.approx(2 * float(fixmatch_unsup(WEAK, STRONG, 0.85).loss))


@pytest.mark.parametrize("mask_mean", ["batch", "kept"])
def test_nothing_kept_is_a_loss_of_zero_without_gradient(mask_mean: str) -> None:
    strong = STRONG.clone().requires_grad_()
    found = fixmatch_unsup(WEAK, strong, 1.0, mask_mean=mask_mean)  # type: ignore[arg-type]
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert float(found.loss.detach()) == 0.0
    assert strong.grad is not None
    assert not strong.grad.any()


def test_a_value_that_is_not_kept_does_nothing_even_when_it_is_infinite() -> None:
    values = torch.tensor([1.0, math.inf], requires_grad=True)
    mean = masked_mean(values, torch.tensor([True, False]))
    mean.backward()  # type: ignore[no-untyped-call]
    assert float(mean.detach()) == 0.5
    assert values.grad is not None
    assert values.grad.tolist() == [0.5, 0.0]


def test_targets_carry_no_gradient() -> None:
    targets = WEAK.clone().requires_grad_()
    strong = STRONG.clone().requires_grad_()
    loss = (fixmatch_unsup(targets, strong, 0.5).loss + mt_consistency(strong, targets)
            + uda_unsup(targets, strong, temperature=0.4, confidence_threshold=0.5).loss)
    loss.backward()  # type: ignore[no-untyped-call]
    assert targets.grad is None
    assert strong.grad is not None
    assert strong.grad.any()


def test_a_low_temperature_turns_uda_into_fixmatch() -> None:
    """softmax(z / T) tends to the one-hot of the argmax."""
    sharp = uda_unsup(WEAK, STRONG, temperature=1e-3, confidence_threshold=0.5)
    assert float(sharp.loss) == pytest.approx(float(fixmatch_unsup(WEAK, STRONG, 0.5).loss), abs=1e-9)


@each_of(("schedule", "start"), [("linear", 0.0), ("exp", math.exp(-5)), ("log", 0.0)])
def test_annealing_begins_near_chance_and_ends_with_all(schedule: str, start: float) -> None:
    values = [tsa_threshold(schedule, t=t, total=20, num_classes=4) for t in range(21)]  # type: ignore[arg-type]
    assert values[0] == pytest.approx(0.25 + 0.75 * start)
    assert values == sorted(values)
    end = {"linear": 1.0, "exp": 1.0, "log": 1 - math.exp(-5)}[schedule]
    assert values[-1] == pytest.approx(0.25 + 0.75 * end)


def test_at_threshold_one_annealing_is_plain_cross_entropy() -> None:
    logits = torch.cat([WEAK, torch.tensor([[200.0, 0.0, 0.0]], dtype=torch.float64)])
    labels = torch.tensor([0, 2, 0])
    found = tsa_loss(logits, labels, 1.0)
    assert found.keep_B.all()
    assert float(found.loss) == pytest.approx(float(cross_entropy(logits, labels)))


def test_annealing_that_keeps_nothing_gives_zero() -> None:
    assert float(tsa_loss(WEAK, torch.tensor([0, 0]), 0.1).loss) == 0.0


def test_pseudo_labels_of_the_batch_are_its_own_argmax_or_those_given() -> None:
    own = pseudo_label_loss(WEAK)
    assert own.labels.hard_label_B.tolist() == [0, 0]
    assert float(own.loss) == pytest.approx(float(cross_entropy(WEAK, torch.tensor([0, 0]))))
    given = pseudo_label_loss(WEAK, torch.tensor([1, 2]))
    assert given.labels.hard_label_B.tolist() == [1, 2]
    assert given.labels.keep_B.all()
    assert float(given.loss) == pytest.approx(float(cross_entropy(WEAK, torch.tensor([1, 2]))))


def test_a_student_that_is_its_teacher_has_no_consistency_loss() -> None:
    assert float(mt_consistency(WEAK, WEAK)) == 0.0


def test_the_average_at_its_limits_is_the_teacher_or_the_student() -> None:
    teacher, student = torch.tensor([1.5, -2.0]), torch.tensor([0.3, 7.0])
    ema_into([teacher], [student], decay=1.0)
    assert torch.equal(teacher, torch.tensor([1.5, -2.0]))
    ema_into([teacher], [student], decay=0.0)
    assert torch.equal(teacher, student)


def test_the_average_of_several_tensors_leaves_the_student_and_its_gradients_alone() -> None:
    teacher = [torch.tensor([1.0, 2.0]), torch.tensor(4.0)]
    student = [torch.tensor([3.0, 5.0], requires_grad=True), torch.tensor(8.0)]
    ema_into(teacher, student, decay=0.75)
    assert [each.tolist() for each in teacher] == [[1.5, 2.75], 5.0]
    assert [each.tolist() for each in student] == [[3.0, 5.0], 8.0]
    assert not teacher[0].requires_grad


