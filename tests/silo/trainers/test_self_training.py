"""Self-training's silo half: labels under the silo's own prior, that prior in the losses; SemiFL where both are off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semisilo.common.config import to_dict
from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.averaged_training import AveragedTraining
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.losses import PseudoLabels
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.learning.sgd import SGDSettings
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import SiloData, SiloTask, TensorGroup
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.parts.privacy import PrivateTask
from semisilo.common.methods.self_training import SelfTrainingSettings
from semisilo.common.methods.semifl import SemiFLSettings
from semisilo.common.models.factory import initial_model
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers import self_training as trainer
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from semisilo.silo.trainers.self_training import (
    OwnLabels,
    SelfTrainingMemory,
    SelfTrainingTrainer,
    labels_under_own_prior,
    log_shares,
)
from semisilo.silo.trainers.semifl import SemiFLTrainer

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
THIRDS = (1 / 3, 1 / 3, 1 / 3)
PLAIN = {"silo_prior": "model", "local_logit_adjustment": 0.0, "label_statistics": "received"}
"""What makes it SemiFL."""


def _net(num_classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, num_classes))


def _images(count: int = 23) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, None, tuple(str(index) for index in range(count)))


def _task(settings: Any, build: Callable[[], nn.Module] = _net, **changes: Any) -> SiloTask:
    w = initial_model(build, 3)
    model = build()
    tensors.load_into(model, w)
    statistics = batch_norm.to_tensors(batch_norm.measure(model, _images().images_NCHW, form=FORM,
                                                          generator=torch.Generator().manual_seed(1)))
    values = {"study": "s", "round": 1, "rounds": 5, "phase": "train", "silo": "a", "seed": 1, "settings": settings,
              "groups": {"model": TensorGroup(w), "batch_norm": TensorGroup(statistics)}, "build_model": build,
              "augmentation": AugmentationSettings(policy="semifl_official"), "image": FORM}
    return SiloTask(**{**values, **changes})


def _settings(**changes: Any) -> SelfTrainingSettings:
    return SelfTrainingSettings(**{"confidence_threshold": 0.0, "round_lr": 0.03,
                                   "local_epochs": 2, "unlabelled_batch": 10, "model_prior": THIRDS, **changes})


def _logits(count: int = 40, seed: int = 5) -> Tensor:
    return 2.0 * torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def test_labels_are_those_of_the_posterior_under_the_estimated_shares() -> None:
    """Recomputed with numpy: EM from the model's prior to its fixed point, then Bayes' rule."""
    logits_NK, prior, smoothing = _logits(), np.array([0.5, 0.3, 0.2]), 0.4
    p = np.exp(logits_NK.double().numpy())
    p /= p.sum(1, keepdims=True)
    shares = prior
    for _ in range(3000):
        q = p * shares / prior
        q /= q.sum(1, keepdims=True)
        shares = (q.sum(0) + smoothing * len(p) / 3) / (len(p) * (1 + smoothing))
    expected = p * shares / prior
    expected /= expected.sum(1, keepdims=True)
    found = labels_under_own_prior(logits_NK, _settings(
        confidence_threshold=0.7, model_prior=tuple(prior), prior_smoothing=smoothing)).labels
    assert found.hard_label_B.tolist() == expected.argmax(1).tolist()
    assert found.max_prob_B.tolist() == pytest.approx(expected.max(1).tolist(), abs=1e-5)
    assert found.keep_B.tolist() == (expected.max(1) >= 0.7).tolist()
    assert 0 < int(found.keep_B.sum()) < len(p)
    assert found.hard_label_B.tolist() != p.argmax(1).tolist(), "the prior decides some images"


def test_images_that_a_model_of_equal_classes_doubts_go_to_the_frequent_class() -> None:
    """Ninety images that show class 0 and ten that could be 0 or 1: these are 0's, far more often than not."""
    sure, unsure = torch.tensor([[6.0, 0.0, 0.0]]).expand(90, 3), torch.tensor([[1.0, 1.2, -3.0]]).expand(10, 3)
    logits_NK = torch.cat([sure, unsure])
    labels = {prior: labels_under_own_prior(logits_NK, _settings(
        silo_prior=prior, confidence_threshold=0.9)).labels for prior in ("estimated", "model")}
    assert labels["model"].hard_label_B[90:].unique().tolist() == [1]
    assert not labels["model"].keep_B[90:].any()
    assert labels["estimated"].hard_label_B[90:].unique().tolist() == [0]


def test_labels_are_made_with_statistics_of_the_silos_own_images_unless_the_received_ones_are_asked_for(
        monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def told(name: str, real: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
        asked.append(name)
        return real(*given, **named)

    for name in ("adaptive_logits", "received_logits"):
        monkeypatch.setattr(trainer, name, partial(told, name, getattr(trainer, name)))
    data = SiloData(unlabelled=_images())
    for settings in (_settings(), _settings(label_statistics="received")):
        assert SelfTrainingTrainer().train(_task(settings), data, None)[0].groups
    assert asked == ["adaptive_logits", "received_logits"]


def test_no_class_has_a_share_of_zero_and_of_few_classes_hardly_any_without_labels() -> None:
    for num_classes, smoothing in ((3, 0.003), (7, 0.003), (8, 0.1), (10, 0.1)):
        log_prior_K = log_shares(torch.tensor([0, 0, 0, 1]), num_classes, strength=1.0)
        expected = [(count + smoothing * 4 / num_classes) / (4 * (1 + smoothing))
                    for count in (3, 1, *[0] * (num_classes - 2))]
        assert log_prior_K.exp().tolist() == pytest.approx(expected)
        half = log_shares(torch.tensor([0, 0, 0, 1]), num_classes, strength=0.5)
        assert half.tolist() == pytest.approx((0.5 * log_prior_K).tolist())


def test_a_rare_finding_is_taken_for_about_as_rare_as_it_is() -> None:
    """Each finding is a problem of two classes, however many there are: 1 % stays 1.1 %, one without a label 0.15 %."""
    for num_classes in (2, 10):
        rows_NK = torch.zeros((200, num_classes), dtype=torch.int8)
        rows_NK[:2, 0] = 1
        rows_NK[:, 1] = -1
        rows_NK[0, 1] = 1
        shares = torch.sigmoid(log_shares(rows_NK, num_classes, strength=1.0).double())
        assert float(shares[0]) == pytest.approx((2 + 0.0015 * 200) / (200 * 1.003), rel=1e-5)
        assert float(shares[1]) == pytest.approx((1 + 0.0015) / 1.003, rel=1e-5), "of those that are known"
        assert shares[2:].tolist() == pytest.approx([0.0015 / 1.003] * (num_classes - 2), rel=1e-5)


def test_each_label_in_the_losses_has_the_shares_of_those_that_it_was_drawn_from() -> None:
    """Kept images speak for kept ones, partners of MixUp for all."""
    labels = PseudoLabels(torch.ones(6), torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([1, 1, 1, 1, 0, 0]).bool())
    soft_NK = torch.softmax(_logits(6), dim=1)
    for partners in (labels.hard_label_B, soft_NK):
        priors = trainer._priors(_task(_settings(local_logit_adjustment=0.5)), OwnLabels(labels, partners), 3)
        assert priors is not None
        assert torch.equal(priors.kept_K, log_shares(torch.tensor([0, 0, 0, 1]), 3, strength=0.5))
        assert torch.equal(priors.all_K, log_shares(partners, 3, strength=0.5))
    assert priors.all_K.tolist() == pytest.approx(
        (0.5 * ((soft_NK.double().sum(0) + 0.003 * 6 / 3) / (6 * 1.003)).log()).tolist()), "of soft labels the mean"
    off = _task(_settings(local_logit_adjustment=0.0))
    assert trainer._priors(off, OwnLabels(labels, soft_NK), 3) is None


def test_partners_of_few_classes_are_labelled_by_the_probabilities_and_of_more_by_the_class() -> None:
    few = labels_under_own_prior(_logits(), _settings())
    assert few.partners.dtype == torch.float32
    assert few.partners.sum(1).tolist() == pytest.approx([1.0] * 40)
    assert few.partners.max(1).values.tolist() == pytest.approx(few.labels.max_prob_B.tolist(), abs=1e-6)
    assert few.partners.argmax(1).tolist() == few.labels.hard_label_B.tolist()
    many = labels_under_own_prior(torch.randn(40, 8, generator=torch.Generator().manual_seed(1)),
                                  _settings(model_prior=(1 / 8,) * 8))
    assert many.partners is many.labels.hard_label_B


@pytest.mark.parametrize(("num_classes", "smoothing"), [(2, 0.06), (3, 0.09), (7, 0.21), (8, 0.3), (10, 0.3)])
def test_of_few_classes_the_estimated_shares_are_smoothed_less(num_classes: int, smoothing: float) -> None:
    """So that a class that nobody shows has a fortieth of the images at most, of two classes as of ten."""
    shown, doubt = torch.full((10_000, num_classes), -40.0), torch.zeros(1, num_classes)
    shown[:, 0] = 0.0
    settings = _settings(model_prior=(1 / num_classes,) * num_classes)
    for given, expected in ((settings, smoothing), (replace(settings, prior_smoothing=0.5), 0.5)):
        own = labels_under_own_prior(torch.cat([shown, doubt]), given)
        # The probabilities of an image that could be anything are the shares.
        assert 1 - float(own.labels.max_prob_B[-1]) == pytest.approx(
            (num_classes - 1) * expected / num_classes / (1 + expected), rel=0.01)


def test_findings_are_smoothed_as_among_ten_classes_however_many_there_are() -> None:
    assert _settings(task="multi_label", confidence_threshold=0.9).smoothing_of(2) == 0.3


def test_without_priors_it_is_semifl_to_the_bit() -> None:
    data = SiloData(unlabelled=_images())
    same = {"confidence_threshold": 0.2, "round_lr": 0.03, "local_epochs": 2, "unlabelled_batch": 10}
    eight = partial(_net, 8)
    ours, memory = SelfTrainingTrainer().train(
        _task(_settings(**PLAIN, **same, model_prior=(1 / 8,) * 8), eight), data, None)
    theirs, their_memory = SemiFLTrainer().train(_task(SemiFLSettings(**same), eight), data, None)
    assert memory is not None
    assert their_memory is not None
    for name, tensor in theirs.groups["model"].tensors.items():
        assert torch.equal(ours.groups["model"].tensors[name], tensor), name
        assert torch.equal(memory.momentum[name], their_memory.momentum[name]), name
    assert dict(ours.metrics) == dict(theirs.metrics)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("num_classes", [3, 8])
def test_a_step_takes_both_losses_of_the_logits_and_the_log_shares_of_what_each_label_was_drawn_from(
        num_classes: int, joined: bool) -> None:
    """One batch, recomputed with tensors only; of three classes partners have soft labels."""
    threshold, smoothing, build = {3: (0.4, 0.003, _net), 8: (0.2, 0.1, partial(_net, 8))}[num_classes]
    settings = _settings(silo_prior="model", local_epochs=1, unlabelled_batch=23, local_logit_adjustment=0.7,
                         confidence_threshold=threshold, joined_passes=joined,
                         model_prior=(1 / num_classes,) * num_classes)
    task = _task(settings, build, augmentation=AugmentationSettings(policy="none"))
    update, _ = SelfTrainingTrainer().train(task, SiloData(unlabelled=_images()), None)
    x = augment.to_input(_images().images_NCHW, FORM)
    model = build()
    tensors.load_into(model, task.groups["model"].tensors)
    batch_norm.load(model, task.groups["batch_norm"].tensors)
    p = torch.softmax(model.eval()(x).detach(), dim=1)
    q, labels = p.max(1)
    kept = torch.nonzero(q >= threshold).flatten()
    one_hot = torch.nn.functional.one_hot(labels, num_classes).float()
    partners = p if num_classes == 3 else one_hot
    of_kept, of_all = (0.7 * ((each.double().sum(0) + smoothing * len(each) / num_classes)
                              / (len(each) * (1 + smoothing))).log().float() for each in (one_hot[kept], partners))
    assert not torch.allclose(of_kept, of_all, atol=0.01)
    order, partner = (torch_generator(1, purpose, round=1, silo="a") for purpose in ("local_order", "mix_index"))
    fix, other = (kept[torch.randperm(len(kept), generator=order)],
                  torch.randint(23, (len(kept),), generator=partner))
    lam = float(numpy_generator(1, "mixup", round=1, silo="a").beta(0.75, 0.75))
    model.train()
    inputs = x[fix], lam * x[fix] + (1 - lam) * x[other]
    f, f_mix = torch.split(model(torch.cat(inputs)), len(kept)) if joined else map(model, inputs)
    row = torch.arange(len(kept))
    loss = -torch.log_softmax(f + of_kept, 1)[row, labels[fix]].mean() \
        - lam * torch.log_softmax(f_mix + of_kept, 1)[row, labels[fix]].mean() \
        - (1 - lam) * (partners[other] * torch.log_softmax(f_mix + of_all, 1)).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
    for (name, w), gradient in zip(model.named_parameters(), gradients, strict=True):
        g = gradient * min(1.0, 1.0 / (norm + 1e-6)) + 5e-4 * w.detach()
        assert torch.allclose(update.groups["model"].tensors[name], -0.03 * 1.9 * g, atol=1e-6), name
    assert update.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_it_abstains_without_images_or_confident_ones_and_keeps_its_memory() -> None:
    memory = SelfTrainingMemory(momentum={}, round=1)
    none, kept = SelfTrainingTrainer().train(_task(_settings()), SiloData(), memory)
    assert (none.abstention, kept) == ("no_data", memory)
    unsure, kept = SelfTrainingTrainer().train(_task(_settings(confidence_threshold=1.0)),
                                               SiloData(unlabelled=_images()), memory)
    assert (unsure.abstention, unsure.num_examples, kept) == ("no_confident_example", 23, memory)
    assert unsure.metrics["label_ratio"] == 0.0


@pytest.mark.parametrize("prior", [(), (0.5, 0.5)])
def test_a_task_without_a_prior_for_every_class_is_refused(prior: tuple[float, ...]) -> None:
    with pytest.raises(BadPayload, match="model_prior"):
        SelfTrainingTrainer().train(_task(_settings(model_prior=prior)), SiloData(unlabelled=_images()), None)


def test_without_statistics_a_silo_labels_nothing_and_learns_from_its_own_labels() -> None:
    """Silos alone measure, and none had answered in time."""
    at_silo = {"scenario": "labels-at-silo", "warm_up_rounds": 0, "labelled_steps": 3, "labelled_batch": 6}
    unlabelled, labelled = SiloData(unlabelled=_images()), SiloData(labelled=_labelled())
    trained = SelfTrainingTrainer()
    for settings in ({}, at_silo):
        task = _task(_settings(**settings))
        task = replace(task, groups={"model": task.groups["model"]})
        update, keep = trained.train(task, unlabelled, None)
        assert (update.abstention, update.num_examples, keep) == ("no_statistics", 23, None)
    both, alone = (trained.train(task, data, None)[0] for data in (
        replace(labelled, unlabelled=_images()), labelled))
    assert tensors.digest(both.groups["model"].tensors) == tensors.digest(alone.groups["model"].tensors)


def test_momentum_goes_on_from_the_last_participation_unless_it_is_too_old() -> None:
    data = SiloData(unlabelled=_images())
    _, memory = SelfTrainingTrainer().train(_task(_settings()), data, None)
    fresh, on, old = (SelfTrainingTrainer().train(_task(settings, round=4), data, kept)[0].groups["model"].tensors
                      for settings, kept in ((_settings(), None), (_settings(), memory),
                                             (_settings(momentum_max_age_rounds=2), memory)))
    assert not all(torch.equal(fresh[name], on[name]) for name in fresh)
    assert all(torch.equal(fresh[name], old[name]) for name in fresh)


def _labelled() -> ImageSet:
    """Ten images of two of the three classes."""
    images = _images(10)
    return ImageSet(images.images_NCHW, torch.tensor([0] * 7 + [1] * 3), images.names)


AT_SILO = {"scenario": "labels-at-silo", "warm_up_rounds": 1, "labelled_steps": 3, "labelled_batch": 4}


def _own_training(task: SiloTask, initial: dict[str, Tensor], momentum: dict[str, Tensor] | None) -> AveragedTraining:
    """Of the silo's labels 7, 3 and 0 of 10, a tenth counted once more, evenly."""
    log_prior_K = torch.tensor([(count + 1 / 3) / 11 for count in (7, 3, 0)]).log()
    training = AveragedTraining(task, _net(), _labelled(), log_prior_K=log_prior_K, initial=initial, steps=3,
                                sgd=SGDSettings(lr=0.03), batch_size=4, cosine=False, momentum=momentum,
                                purpose=f"own_labels_round_{task.round}_of_a")
    for _ in training.run():
        pass
    return training


def test_in_the_first_rounds_a_silo_learns_from_its_labels_alone_and_one_without_abstains() -> None:
    task = _task(_settings(**AT_SILO))
    received = task.groups["model"].tensors
    update, memory = SelfTrainingTrainer().train(task, SiloData(labelled=_labelled(), unlabelled=_images()), None)
    expected = _own_training(task, received, None)
    for name, tensor in expected.position().parameters.items():
        assert torch.allclose(update.groups["model"].tensors[name], tensor - received[name], atol=1e-6), name
    assert memory is not None
    assert all(torch.allclose(memory.momentum[name], each, atol=1e-5) for name, each in expected.momentum().items())
    assert (update.num_examples, dict(update.metrics)) == (10, {"labelled_loss": pytest.approx(expected.loss)})
    none, kept = SelfTrainingTrainer().train(task, SiloData(unlabelled=_images()), None)
    assert (none.abstention, kept) == ("no_labelled_data", None)


def test_then_pseudo_labels_come_first_and_its_own_after_them_with_their_momentum() -> None:
    task = _task(_settings(**AT_SILO), round=2)
    both, _ = SelfTrainingTrainer().train(task, SiloData(labelled=_labelled(), unlabelled=_images()), None)
    pseudo, of_pseudo = SelfTrainingTrainer().train(task, SiloData(unlabelled=_images()), None)
    assert of_pseudo is not None
    received = task.groups["model"].tensors
    after = tensors.add(received, pseudo.groups["model"].tensors)
    expected = _own_training(task, after, of_pseudo.momentum)
    for name, tensor in expected.position().parameters.items():
        assert torch.allclose(both.groups["model"].tensors[name], tensor - received[name], atol=1e-5), name
    assert (pseudo.num_examples, both.num_examples) == (23, 33)
    assert {name: both.metrics[name] for name in pseudo.metrics} == dict(pseudo.metrics)
    labels_only, _ = SelfTrainingTrainer().train(task, SiloData(labelled=_labelled()), None)
    assert labels_only.num_examples == 10
    check_metrics(METHODS["self_training"], both.metrics, update=True)


AT_BOTH = {"scenario": "labels-at-both", "labelled_steps": 3, "labelled_batch": 4}


def test_with_labels_at_both_a_silo_trains_on_its_own_after_its_pseudo_labels_from_the_first_round_on() -> None:
    task = _task(_settings(**AT_BOTH))
    received = task.groups["model"].tensors
    both, memory = SelfTrainingTrainer().train(task, SiloData(labelled=_labelled(), unlabelled=_images()), None)
    pseudo, of_pseudo = SelfTrainingTrainer().train(_task(_settings()), SiloData(unlabelled=_images()), None)
    assert of_pseudo is not None
    expected = _own_training(task, tensors.add(received, pseudo.groups["model"].tensors), of_pseudo.momentum)
    for name, tensor in expected.position().parameters.items():
        assert torch.allclose(both.groups["model"].tensors[name], tensor - received[name], atol=1e-5), name
    assert memory is not None
    assert all(torch.allclose(memory.momentum[name], each, atol=1e-4) for name, each in expected.momentum().items())
    assert (both.num_examples, both.metrics["labelled_loss"]) == (33, pytest.approx(expected.loss, rel=1e-4))
    alone, _ = SelfTrainingTrainer().train(task, SiloData(labelled=_labelled()), None)
    of_alone = _own_training(task, received, None).position().parameters
    assert all(torch.allclose(tensor, of_alone[name] - received[name], atol=1e-6)
               for name, tensor in alone.groups["model"].tensors.items())
    check_metrics(METHODS["self_training"], both.metrics, update=True)


def test_with_labels_at_both_a_silo_without_labels_trains_as_with_labels_at_the_coordinator() -> None:
    same, expected = (SelfTrainingTrainer().train(_task(_settings(**scenario)), SiloData(unlabelled=_images()), None)
                      for scenario in (AT_BOTH, {}))
    assert same[0].metrics == expected[0].metrics
    for name, tensor in expected[0].groups["model"].tensors.items():
        assert torch.equal(same[0].groups["model"].tensors[name], tensor), name
    unsure, _ = SelfTrainingTrainer().train(_task(_settings(**AT_BOTH, confidence_threshold=1.0)),
                                            SiloData(unlabelled=_images()), None)
    assert unsure.abstention == "no_confident_example"


def test_where_no_image_is_confident_the_silos_own_labels_are_learnt_all_the_same() -> None:
    task = _task(_settings(**AT_BOTH, confidence_threshold=1.0))
    update, _ = SelfTrainingTrainer().train(task, SiloData(labelled=_labelled(), unlabelled=_images()), None)
    expected = _own_training(task, task.groups["model"].tensors, None).position().parameters
    for name, tensor in update.groups["model"].tensors.items():
        assert torch.allclose(tensor, expected[name] - task.groups["model"].tensors[name], atol=1e-6), name
    assert (update.num_examples, update.metrics["label_ratio"]) == (33, 0.0)


def test_the_threshold_is_the_scenarios_unless_it_is_set() -> None:
    assert SelfTrainingSettings().threshold == SelfTrainingSettings(scenario="labels-at-both").threshold == 0.65
    assert SelfTrainingSettings(scenario="labels-at-silo").threshold == 0.9
    assert SelfTrainingSettings(confidence_threshold=0.0).threshold == 0.0
    of_few = {2: 13 / 14, 3: 13 / 15, 7: 13 / 19, 8: 0.65, 10: 0.65}
    assert {number: SelfTrainingSettings().threshold_of(number) for number in of_few} == of_few
    assert SelfTrainingSettings(scenario="labels-at-silo").threshold_of(3) == 0.9
    assert SelfTrainingSettings(confidence_threshold=0.5).threshold_of(2) == 0.5
    with pytest.raises(ValueError, match="confidence_threshold"):
        SelfTrainingSettings(confidence_threshold=1.5)


def test_settings_of_the_other_scenario_are_refused() -> None:
    for changes, what in (({"scenario": "labels-at-silo", "coordinator_steps": 3}, "coordinator_steps"),
                          ({"scenario": "labels-at-silo", "warm_up_steps": 3}, "warm_up_steps"),
                          ({"scenario": "labels-at-silo", "labelled_views": "weak"}, "labelled_views"),
                          ({"labelled_steps": 3}, "labelled_steps"), ({"warm_up_rounds": 3}, "warm_up_rounds"),
                          ({"scenario": "labels-at-both", "warm_up_rounds": 3}, "warm_up_rounds")):
        with pytest.raises(ValueError, match=what):
            SelfTrainingSettings(**changes)  # type: ignore[arg-type]
    both = SelfTrainingSettings(scenario="labels-at-both", warm_up_steps=3, coordinator_steps=3, labelled_steps=3)
    assert (both.labels_at_coordinator, both.labels_at_silos) == (True, True)


def test_how_labels_are_viewed_is_told_only_where_it_is_not_as_earlier_versions_did_it() -> None:
    """A silo of an earlier version refuses a setting that it does not know."""
    assert "labelled_views" not in to_dict(SelfTrainingSettings())
    assert to_dict(SelfTrainingSettings(labelled_views="weak"))["labelled_views"] == "weak"


def test_settings_without_effect_are_refused() -> None:
    for changes, what in (({"silo_prior": "model", "prior_smoothing": 0.1}, "prior_smoothing"),
                          ({"prior_smoothing": 0.0}, "prior_smoothing"),
                          ({"joined_passes": True, "mix_weight": 0.0}, "one pass"),
                          ({"nesterov": True, "momentum": 0.0}, "nesterov")):
        with pytest.raises(ValueError, match=what):
            SelfTrainingSettings(**changes)  # type: ignore[arg-type]


def test_what_it_says_of_itself_is_declared() -> None:
    update, _ = SelfTrainingTrainer().train(_task(_settings()), SiloData(unlabelled=_images()), None)
    check_metrics(METHODS["self_training"], update.metrics, update=True)
    assert load_trainer("self_training") is SelfTrainingTrainer


def _group_norm_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def test_with_differential_privacy_a_silo_trains_fixmatch_and_tells_nothing_of_its_images() -> None:
    """The bits of fedavg with that objective, key and momentum; and where no image is sure it does not abstain."""
    private = PrivateTask(noise_multiplier=0.5, clip_norm=0.3, epsilon=2.5, key=b"k" * 32)
    changes = {"groups": {"model": TensorGroup(initial_model(_group_norm_net, 3))}, "build_model": _group_norm_net,
               "private": private}
    data = SiloData(labelled=None, unlabelled=_images())
    own = _settings(mix_weight=0.0, **PLAIN, model_prior=THIRDS)
    update, memory = SelfTrainingTrainer().train(_task(own, **changes), data, None)
    fixmatch = FedAvgSettings(
        objective="fixmatch", scenario="labels-at-coordinator", confidence_threshold=0.0, round_lr=0.03, local_epochs=2,
        unlabelled_batch=10, momentum=0.9, nesterov=True, weight_decay=5e-4, persist_local_momentum=True)
    expected, kept = FedAvgTrainer().train(_task(fixmatch, **changes), data, None)
    assert memory is not None
    assert kept is not None
    assert all(bool((update.groups["model"].tensors[name] == each).all())
               for name, each in expected.groups["model"].tensors.items())
    assert all(bool((memory.momentum[name] == each).all()) for name, each in (kept.momentum or {}).items())
    assert update.metrics == {"steps": 4.0, "epsilon": 2.5}
    unsure, _ = SelfTrainingTrainer().train(_task(replace(own, confidence_threshold=1.0), **changes), data, None)
    assert not unsure.abstention
    assert unsure.metrics == {"steps": 4.0, "epsilon": 2.5}
