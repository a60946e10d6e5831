"""The local objectives: each step by step against a plain reference, and what they leave out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.consistency import tsa_threshold
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sgd import SGDSettings, make_optimiser
from semisilo.common.methods.contract import SiloData, SiloTask
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.numerics.side_by_side import lanes, set_lanes
from semisilo.silo.objectives import make_objective, train_locally, usable_data
from semisilo.silo.objectives.training import LocalTraining
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTED = "semifl_official"
"""A policy whose original, weak and strong views differ, also of images of 4 x 4 pixels."""


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


LABELLED, UNLABELLED = _images(12, 1), _images(26, 2)


def _task(build: Callable[[], nn.Module] = _net, *, round: int = 2, policy: Any = "none", **settings: Any) -> SiloTask:
    if "objective" in settings and settings["objective"] in ("sl", "uda", "fixmatch"):
        settings = {"lambda_s": 1.5, **settings}
    values = {"labelled_batch": 4, "round_lr": 0.1, "local_epochs": 2, **settings}
    return SiloTask(study="s", round=round, rounds=4, phase="train", silo="a", seed=1, groups={}, build_model=build,
                    settings=FedAvgSettings(**values), augmentation=AugmentationSettings(policy=policy), image=FORM)


def _model(build: Callable[[], nn.Module] = _net) -> nn.Module:
    model = build()
    tensors.load_into(model, initial_model(build, 3))
    found = batch_norm.measure(model, UNLABELLED.images_NCHW, form=FORM, generator=torch.Generator().manual_seed(1))
    batch_norm.load(model, batch_norm.to_tensors(found))
    return model


def _train(task: SiloTask, data: SiloData | None = None, *, teacher: dict[str, Tensor] | None = None
           ) -> tuple[nn.Module, LocalTraining, Any]:
    data = SiloData(labelled=LABELLED, unlabelled=UNLABELLED) if data is None else data
    labelled, unlabelled, reason = usable_data(task.settings, data)
    assert not reason
    model = _model(task.build_model)
    objective = make_objective(task, model, labelled, unlabelled, teacher=teacher)
    sgd = SGDSettings(lr=task.settings.round_lr, momentum=0.0, nesterov=False, weight_decay=0.0, clip_norm=0.0)
    found = train_locally(task, model, make_optimiser(model, sgd), objective, labelled, unlabelled)
    return model, found, objective


def _order(kind: str, count: int, batch: int, *, epochs: int = 2, steps: int = 3) -> list[Tensor]:
    generator = torch_generator(1, f"{kind}_order", round=2, silo="a")
    return [index for _ in range(epochs) for index in torch.split(torch.randperm(count, generator=generator),
                                                                  batch)[:steps]]


def _drawn(kind: str, images: ImageSet, order: list[Tensor], policy: Any,
           views: tuple[str, ...]) -> list[tuple[Tensor, ...]]:
    """For each step one network input per view: a round of this size is augmented at once, one view after the other."""
    generator = torch_generator(1, f"{kind}_views", round=2, silo="a")
    augmentation, images_BCHW = AugmentationSettings(policy=policy), images.images_NCHW[torch.cat(order)]
    make = {"original": lambda: images_BCHW, "weak": lambda: augment.weak(images_BCHW, augmentation, generator),
            "strong": lambda: augment.strong(images_BCHW, augmentation, generator)}
    parts = [torch.split(augment.to_input(make[view](), FORM), [len(index) for index in order]) for view in views]
    return list(zip(*parts, strict=True))


def _reference(labelled_loss: Callable[[Tensor, Tensor], Tensor] | None,
               unlabelled_loss: Callable[..., Tensor] | None,
               after: Callable[[nn.Module], None] = lambda model: None, *, policy: Any = "none",
               views: tuple[str, ...] = ("original",), labelled_view: str = "weak") -> nn.Module:
    """Round 2 written out: 2 epochs of 3 steps; 4 labelled and 9 unlabelled images in a step (26 in 3); plain SGD.

    Args:
        labelled_loss: of logits and labels, with its weight.
        unlabelled_loss: of the model, the indices of its images, the step's number, and the input of each view, with
            its weight.
        views: of the unlabelled images, in the order in which they are drawn.
    """
    labelled, unlabelled = _order("labelled", 12, 4), _order("unlabelled", 26, 9)
    x = _drawn("labelled", LABELLED, labelled, policy, (labelled_view,))
    u = _drawn("unlabelled", UNLABELLED, unlabelled, policy, views)
    assert LABELLED.labels_N is not None
    model = _model().train()
    for number, (b, c) in enumerate(zip(labelled, unlabelled, strict=True)):
        loss = torch.zeros(())
        if labelled_loss is not None:
            loss = loss + labelled_loss(model(x[number][0]), LABELLED.labels_N[b])
        if unlabelled_loss is not None:
            loss = loss + unlabelled_loss(model, c, number, *u[number])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for w, g in zip(model.parameters(), gradients, strict=True):
                w -= 0.1 * g
        after(model)
    return model


def _assert_same(found: nn.Module, expected: nn.Module) -> None:
    for (name, w), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(w, other, atol=1e-6), name


def _ce(weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda logits, labels: weight * cross_entropy(logits, labels)


def test_sl_is_cross_entropy_on_labels_alone() -> None:
    """3 labelled images steps per epoch; the unlabelled ones do not enter, so their number changes nothing."""
    model, found, _ = _train(_task(objective="sl"))
    _assert_same(model, _reference(_ce(1.5), None))
    assert set(found.metrics) == {"loss", "labelled_loss", "steps"}
    assert found.metrics["steps"] == 6
    assert found.metrics["loss"] == pytest.approx(1.5 * found.metrics["labelled_loss"])


@pytest.mark.parametrize(("mask_mean", "policy", "weak_view"), [
    ("batch", "none", "weak"), ("kept", "none", "weak"), ("batch", AUGMENTED, "weak"), ("kept", AUGMENTED, "none")])
def test_fixmatch_trains_the_strong_view_on_the_confident_class_of_the_weak_one(mask_mean: str, policy: str,
                                                                                weak_view: str) -> None:
    """Labels come from the model under training, with the batch's own batch-norm statistics. Without augmentation both
    views are the image; without weak views labelled images are not augmented either."""
    threshold, kept = 0.4, []
    weakly = "original" if weak_view == "none" else "weak"

    def unlabelled(model: nn.Module, index: Tensor, number: int, weak: Tensor, strong: Tensor) -> Tensor:
        q = torch.softmax(model(weak).detach(), dim=1)
        keep = q.amax(dim=1) >= threshold
        kept.append(keep)
        values = -torch.log_softmax(model(strong), dim=1)[torch.arange(len(strong)), q.argmax(dim=1)]
        return 2.0 * values[keep].sum() / (len(strong) if mask_mean == "batch" else max(int(keep.sum()), 1))

    model, found, _ = _train(_task(objective="fixmatch", confidence_threshold=threshold, lambda_u=2.0, policy=policy,
                                   mask_mean=mask_mean, weak_view=weak_view))
    _assert_same(model, _reference(_ce(1.5), unlabelled, policy=policy, views=(weakly, "strong"),
                                   labelled_view=weakly))
    assert 0 < sum(int(keep.sum()) for keep in kept) < 52, "the threshold must part them"
    assert found.metrics["label_ratio"] == pytest.approx(sum(int(keep.sum()) for keep in kept[3:]) / 26)


@pytest.mark.parametrize(("policy", "schedule"), [("none", "linear"), (AUGMENTED, "exp")])
def test_uda_anneals_labels_and_gives_the_strong_view_the_sharpened_target_of_the_original(policy: str,
                                                                                           schedule: Any) -> None:
    eta = tsa_threshold(schedule, t=2, total=4, num_classes=3)
    entered = []

    def labelled(logits: Tensor, labels: Tensor) -> Tensor:
        values = -torch.log_softmax(logits, dim=1)[torch.arange(len(labels)), labels]
        enters = torch.exp(-values.detach()) <= eta
        entered.append(enters)
        return 1.5 * values[enters].sum() / max(int(enters.sum()), 1)

    def unlabelled(model: nn.Module, index: Tensor, number: int, original: Tensor, strong: Tensor) -> Tensor:
        z = model(original).detach()
        keep = torch.softmax(z, dim=1).amax(dim=1) >= 0.4
        values = -(torch.softmax(z / 0.7, dim=1) * torch.log_softmax(model(strong), dim=1)).sum(dim=1)
        return values[keep].sum() / len(strong)

    model, _, _ = _train(_task(objective="uda", confidence_threshold=0.4, temperature=0.7, tsa=schedule,
                               policy=policy))
    _assert_same(model, _reference(labelled, unlabelled, policy=policy, views=("original", "strong")))
    assert not all(enters.all() for enters in entered), "annealing must leave some out"


def test_pseudo_labels_of_the_round_come_from_the_received_model_in_evaluation_mode() -> None:
    start = _model().eval()
    labels = start(augment.to_input(UNLABELLED.images_NCHW, FORM)).detach().argmax(dim=1)

    def unlabelled(model: nn.Module, index: Tensor, number: int, u: Tensor) -> Tensor:
        epoch = 2 + 1 + number // 3  # round 2 of 2 epochs each, counted from 1
        return 0.8 * epoch / 10 * cross_entropy(model(u), labels[index])

    task = _task(objective="pseudo_label", alpha0=0.8, alpha0_ramp="linear", ramp_epochs=10)
    model, found, _ = _train(task)
    _assert_same(model, _reference(_ce(1.0), unlabelled))
    assert UNLABELLED.labels_N is not None
    right = float((labels == UNLABELLED.labels_N).double().mean())
    assert found.metrics["pseudo_label_accuracy"] == pytest.approx(right)
    assert found.metrics["label_ratio"] == 1.0


def test_pseudo_labels_of_the_batch_come_from_the_model_under_training() -> None:
    def unlabelled(model: nn.Module, index: Tensor, number: int, u: Tensor) -> Tensor:
        logits = model(u)
        return cross_entropy(logits, logits.detach().argmax(dim=1))

    model, found, _ = _train(_task(objective="pseudo_label", label_refresh="batch", alpha0_ramp="none"))
    _assert_same(model, _reference(_ce(1.0), unlabelled))
    assert found.metrics["label_ratio"] == 1.0


@pytest.mark.parametrize("policy", ["none", AUGMENTED])
def test_the_mean_teacher_follows_the_student_after_every_step(policy: str) -> None:
    teacher = _model().train()

    def unlabelled(model: nn.Module, index: Tensor, number: int, own: Tensor, teachers: Tensor) -> Tensor:
        with torch.no_grad():
            target = torch.softmax(teacher(teachers), dim=1)
        return 3.0 * (torch.softmax(model(own), dim=1) - target).square().mean()

    def after(model: nn.Module) -> None:
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), model.parameters(), strict=True):
                t.copy_(0.9 * t + 0.1 * s)

    task = _task(objective="mean_teacher", alpha0=3.0, alpha0_ramp="none", ema_decay=0.9, teacher="local",
                 policy=policy)
    model, _, objective = _train(task)
    _assert_same(model, _reference(_ce(1.0), unlabelled, after, policy=policy, views=("weak", "weak")))
    for (name, w), kept in zip(teacher.named_parameters(), objective.kept().values(), strict=True):
        assert torch.allclose(w, kept, atol=1e-6), name


def test_a_threshold_that_nothing_reaches_leaves_the_labelled_term_alone() -> None:
    """No softmax of finite logits of this size is 1; FixMatch is then SL bit for bit, UDA without annealing too."""
    alone = tensors.parameters_of(_train(_task(objective="sl"))[0])
    for objective in ({"objective": "fixmatch"}, {"objective": "uda", "tsa": "none"}):
        model, found, _ = _train(_task(confidence_threshold=1.0, **objective))
        assert tensors.digest(tensors.parameters_of(model)) == tensors.digest(alone), objective
        assert found.metrics["label_ratio"] == 0.0


def test_a_teacher_that_is_the_student_gives_no_consistency() -> None:
    """With decay 0 the teacher is the student of the last step; without augmentation both see the same image."""
    supervised = _train(_task(objective="sl", lambda_s=1.0))[0]
    task = _task(objective="mean_teacher", ema_decay=0.0, alpha0=5.0, alpha0_ramp="none")
    model, found, _ = _train(task)
    assert found.metrics["unlabelled_loss"] == pytest.approx(0.0, abs=1e-12)
    _assert_same(model, supervised)


def test_with_decay_one_the_teacher_stays_where_it_started() -> None:
    kept = {name: tensor + 0.25 for name, tensor in tensors.parameters_of(_model()).items()}
    task = _task(objective="mean_teacher", ema_decay=1.0, teacher="local")
    for given, expected in ((None, tensors.parameters_of(_model())), (kept, kept)):
        objective = _train(task, teacher=given)[2]
        assert tensors.digest(objective.kept()) == tensors.digest(expected)
    # With teacher = "round" nothing is kept, and what was kept is not used.
    fresh = _task(objective="mean_teacher", ema_decay=1.0)
    model, _, objective = _train(fresh, teacher=kept)
    assert objective.kept() is None
    _assert_same(model, _train(fresh)[0])


def test_a_teacher_of_another_model_is_not_used() -> None:
    task = _task(objective="mean_teacher", ema_decay=1.0, teacher="local")
    objective = _train(task, teacher={"other": torch.zeros(1)})[2]
    assert tensors.digest(objective.kept()) == tensors.digest(tensors.parameters_of(_model()))


OBJECTIVES: list[dict[str, Any]] = [
    {"objective": "fixmatch", "confidence_threshold": 0.4}, {"objective": "uda", "confidence_threshold": 0.4},
    {"objective": "pseudo_label"}, {"objective": "pseudo_label", "label_refresh": "batch"},
    {"objective": "mean_teacher"}]


@pytest.mark.slow
@pytest.mark.parametrize("settings", OBJECTIVES)
@pytest.mark.parametrize("policy", ["none", "small"])
def test_true_labels_of_unlabelled_images_are_never_learnt_from(settings: dict[str, Any], policy: str) -> None:
    hidden = SiloData(labelled=LABELLED, unlabelled=UNLABELLED.without_labels())
    task = _task(policy=policy, **settings)
    (one, known, _), (other, unknown, _) = _train(task), _train(task, hidden)
    assert tensors.digest(tensors.parameters_of(one)) == tensors.digest(tensors.parameters_of(other))
    assert set(known.metrics) - set(unknown.metrics) == {"pseudo_label_accuracy", "threshold_accuracy"}


@pytest.mark.parametrize("settings", OBJECTIVES)
@pytest.mark.parametrize("data", [SiloData(unlabelled=UNLABELLED), SiloData(labelled=LABELLED)])
def test_a_silo_with_one_kind_of_images_trains_on_that(settings: dict[str, Any], data: SiloData) -> None:
    model, found, _ = _train(_task(**settings), data)
    assert found.steps > 0
    assert tensors.digest(tensors.parameters_of(model)) != tensors.digest(tensors.parameters_of(_model()))
    assert ("labelled_loss" in found.metrics) == (data.labelled is not None)
    assert ("unlabelled_loss" in found.metrics) == ("label_ratio" in found.metrics) == (data.unlabelled is not None)


@pytest.mark.parametrize("settings", [{"objective": "sl"}, *OBJECTIVES])
def test_metrics_are_finite_and_count_every_image_once(settings: dict[str, Any]) -> None:
    _, found, _ = _train(_task(policy="small", **settings))
    assert all(math.isfinite(value) for value in found.metrics.values())
    kept = sum(value for name, value in found.metrics.items() if name.startswith("pseudo_labels/"))
    assert kept == pytest.approx(26 * found.metrics.get("label_ratio", 0.0))


def test_with_labels_at_the_coordinator_labels_of_a_silo_are_not_looked_at() -> None:
    task = _task(scenario="labels-at-coordinator", objective="pseudo_label")
    one, other = _train(task)[0], _train(task, SiloData(unlabelled=UNLABELLED))[0]
    assert tensors.digest(tensors.parameters_of(one)) == tensors.digest(tensors.parameters_of(other))


@each_of(("settings", "data", "reason"), [
    ({"objective": "sl"}, SiloData(), "no_data"),
    ({"objective": "sl"}, SiloData(unlabelled=UNLABELLED), "no_labelled_data"),
    ({"objective": "fixmatch"}, SiloData(labelled=_images(0), unlabelled=_images(0)), "no_data"),
    ({"objective": "fixmatch", "scenario": "labels-at-coordinator"}, SiloData(labelled=LABELLED), "no_data"),
])
def test_what_cannot_be_trained_on_is_named(settings: dict[str, Any], data: SiloData, reason: str) -> None:
    assert usable_data(FedAvgSettings(**settings), data) == (None, None, reason)


def test_a_batch_without_a_kept_image_and_without_labels_is_passed_over() -> None:
    """mask_mean = "kept", as in SemiFL's code; with "batch" it is a step, which weight decay alone would move."""
    data = SiloData(unlabelled=UNLABELLED)
    settings = {"objective": "fixmatch", "confidence_threshold": 1.0, "unlabelled_batch": 13}
    assert _train(_task(mask_mean="kept", **settings), data)[1].steps == 0
    assert _train(_task(mask_mean="batch", **settings), data)[1].steps == 4


def test_steps_that_batch_norm_cannot_use_are_skipped_and_counted() -> None:
    """One image alone is one value per channel at a layer of flat features, in each of the 2 epochs. 5 images in
    batches of 2 are 2 steps (2.5, half to even), which never meet the fifth alone; 7 in batches of 2 are 4 (3.5), whose
    last is skipped."""
    alone = SiloData(labelled=_images(1))
    _, found, _ = _train(_task(_flat_net, objective="sl"), alone)
    assert (found.steps, found.skipped) == (0, 2)
    assert found.metrics == {"steps": 0.0}
    for count, steps, skipped in ((5, 4, 0), (7, 6, 2)):
        _, found, _ = _train(_task(_flat_net, objective="sl", labelled_batch=2), SiloData(labelled=_images(count)))
        assert (found.steps, found.skipped) == (steps, skipped)


def _dropping_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 3))


@each_of("settings", [{"objective": "fixmatch", "confidence_threshold": 0.3},
                      {"objective": "uda", "confidence_threshold": 0.3},
                      {"objective": "pseudo_label", "label_refresh": "batch", "alpha0_ramp": "none"}])
@each_of(("build", "labelled", "skipped"), [(_dropping_net, 12, 0), (_flat_net, 7, 2)])
def test_each_batch_enters_the_mean_of_distribution_alignment_once_on_any_number_of_cores(
        settings: dict[str, Any], build: Callable[[], nn.Module], labelled: int, skipped: int) -> None:
    """The first step of a network with dropout is done twice on two cores. On one, a step that is left out for its
    labelled batch of one image never comes to its other images."""
    found, before = [], lanes()
    for count in (1, 2):
        set_lanes(count)
        try:
            model, training, objective = _train(
                _task(build, distribution_alignment="uniform", labelled_batch=4 if skipped == 0 else 2, **settings),
                SiloData(labelled=_images(labelled, 1), unlabelled=UNLABELLED))
        finally:
            set_lanes(before)
        found.append((tensors.digest(tensors.parameters_of(model)), objective.alignment.position()[0]))
        assert training.skipped == skipped
        assert found[-1][1] == training.steps
    assert found[0] == found[1]


@each_of(("settings", "views"), [
    ({"objective": "sl"}, ()), ({"objective": "fixmatch"}, ("weak", "strong")),
    ({"objective": "fixmatch", "weak_view": "none"}, ("original", "strong")),
    ({"objective": "uda"}, ("original", "strong")), ({"objective": "pseudo_label"}, ("weak",)),
    ({"objective": "mean_teacher"}, ("weak", "weak")),
    ({"objective": "mean_teacher", "weak_view": "none"}, ("original", "original")),
])
def test_every_objective_asks_for_the_views_of_its_formula(settings: dict[str, Any], views: tuple[str, ...]) -> None:
    assert make_objective(_task(**settings), _model(), LABELLED, UNLABELLED).views == views


def test_weak_views_may_be_the_images_themselves() -> None:
    """FedMatch v3. With SemiFL's policy a weak view is shifted, so only weak_view = "none" trains on the image."""
    plain = tensors.parameters_of(_train(_task(objective="sl"))[0])
    as_is = tensors.parameters_of(_train(_task(objective="sl", policy="semifl_official", weak_view="none"))[0])
    shifted = tensors.parameters_of(_train(_task(objective="sl", policy="semifl_official"))[0])
    assert tensors.digest(as_is) == tensors.digest(plain) != tensors.digest(shifted)
