"""FedMatch's silo half: two parts that learn in turn, votes with helpers, sparse answers, and who may abstain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadPayload, ComputeFailed
from semisilo.common.learning import batch_norm, tensors
from semisilo.common.learning.agreement import agreement_votes
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.seeds import torch_generator
from semisilo.common.learning.sparse_transfer import sparse_delta
from semisilo.common.methods import METHODS, check_metrics
from semisilo.common.methods.contract import Meaning, SiloData, SiloTask, TensorGroup, Update
from semisilo.common.methods.fedmatch import FedMatchSettings
from semisilo.common.storage import checkpoint
from semisilo.silo.objectives import batch_room
from semisilo.silo.trainers import load_trainer
from semisilo.silo.trainers.fedmatch import EpochPlan, FedMatchMemory, FedMatchTrainer, epoch_plan
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTED = "semifl_official"
"""A policy whose original, weak and strong views differ, also of images of 4 x 4 pixels."""
SILO, COORDINATOR = "labels-at-silo", "labels-at-coordinator"
PLAIN: dict[str, Any] = {"lambda_l1": 0.0, "l1_thres": 0.0, "delta_thres": 0.0, "augment_train": False}


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _normalised_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), StaticBatchNorm(4), nn.Linear(4, 3))


def _images(count: int, seed: int, *, labels: bool = True) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels_N = torch.randint(0, 3, (count,), generator=generator) if labels else None
    return ImageSet(pixels, labels_N, tuple(str(index) for index in range(count)))


LABELLED, UNLABELLED = _images(13, 0), _images(23, 1, labels=False)
BOTH = SiloData(labelled=LABELLED, unlabelled=UNLABELLED)


def _part(seed: int, size: float = 0.3, build: Callable[[], nn.Module] = _net) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(parameter.shape, generator=generator) * size
            for name, parameter in build().named_parameters()}


SIGMA, PSI, HELPERS = _part(10), _part(11), [_part(12), _part(13)]


def _task(scenario: str = SILO, *, helpers: Any = (), round: int = 1, policy: Any = "none", phase: str = "train",
          build: Callable[[], nn.Module] = _net, groups: Any = None, **settings: Any) -> SiloTask:
    if groups is None:
        groups = {"sigma": TensorGroup(SIGMA), "psi": TensorGroup(PSI)}
    groups = {**groups, **{f"helper_psi/{index}": TensorGroup(psi) for index, psi in enumerate(helpers)}}
    values = {**PLAIN, "confidence_threshold": 0.5, "round_lr": 0.01, "scenario": scenario, **settings}
    return SiloTask(study="s", round=round, rounds=5, phase=phase, silo="a", seed=1, groups=groups, image=FORM,
                    settings=FedMatchSettings(**values), build_model=build,
                    augmentation=AugmentationSettings(policy=policy))


def _train(task: SiloTask, data: SiloData = BOTH, memory: FedMatchMemory | None = None
           ) -> tuple[Update, FedMatchMemory | None]:
    update, keep = FedMatchTrainer().train(task, data, memory)
    check_metrics(METHODS["fedmatch"], update.metrics, update=not update.abstention)
    return update, keep


def _answer(task: SiloTask, data: SiloData = BOTH) -> dict[str, dict[str, Tensor]]:
    update, _ = _train(task, data)
    assert not update.abstention
    return {name: dict(group.tensors) for name, group in update.groups.items()}


def _same(a: Any, b: Any) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def _close(a: Any, b: Any, atol: float = 1e-5) -> bool:
    return list(a) == list(b) and all(torch.allclose(a[name], b[name], atol=atol) for name in a)


# One round ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("icc", "icc_images", "momentum", "steps_by", "policy", "augment_train"), [
    ("sum", "kept", 0.9, "unlabelled", "none", False), ("mean", "kept", 0.0, "labelled", "none", False),
    ("sum", "all", 0.9, "unlabelled", AUGMENTED, True), ("mean", "kept", 0.0, "labelled", AUGMENTED, False),
    ("mean", "all", 0.0, "labelled", "none", False)])
def test_training_is_the_specified_sequence_of_steps(icc: str, icc_images: str, momentum: float, steps_by: str,
                                                     policy: str, augment_train: bool) -> None:
    """A plain reference, with tensors only: in every step sigma on lambda_s CE with psi frozen, then psi on L_u with
    sigma frozen; CE is of the strong view, votes and KL are of the image, augmented weakly where the settings say so;
    helpers are the received sigma plus their psi; each part has its own momentum, from zero; the L2 and L1 terms act
    whoever is kept. KL is over the kept images (official code), or over all of the batch (Eq. 1 and 2).

    v1: ceil(23 / 8) = 3 steps, labelled batches of 5, 5, 3 of 13. v3: round(13 / 5) = 3 steps, batches of ceil(23 / 3).
    """
    weights: dict[str, Any] = {"lambda_s": 10.0, "lambda_a": 0.7, "lambda_i": 0.4, "lambda_l2": 0.3, "lambda_l1": 0.01}
    task = _task(helpers=HELPERS, icc=icc, icc_images=icc_images, momentum=momentum, steps_by=steps_by,
                 labelled_batch=5, unlabelled_batch=8, local_epochs=2, confidence_threshold=0.7, policy=policy,
                 augment_train=augment_train, **weights)
    found = _answer(task)

    augmentation = AugmentationSettings(policy=policy)
    labelled_views, views = (torch_generator(1, purpose, round=1, silo="a")
                             for purpose in ("labelled_views", "local_views"))

    def plain(images: ImageSet, index: Tensor, generator: torch.Generator) -> Tensor:
        chosen = images.images_NCHW[index]
        return seen(augment.weak(chosen, augmentation, generator) if augment_train else chosen)

    def seen(images_BCHW: Tensor) -> Tensor:
        return augment.to_input(images_BCHW, FORM).flatten(1)

    y_l = LABELLED.labels_N
    assert y_l is not None
    sigma, psi = ({name: tensor.clone() for name, tensor in part.items()} for part in (SIGMA, PSI))
    buffers = {part: {name: torch.zeros_like(tensor) for name, tensor in SIGMA.items()} for part in ("sigma", "psi")}

    def f(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        return x @ w["1.weight"].T + w["1.bias"]

    def move(part: str, w: dict[str, Tensor], loss: Tensor, learning: dict[str, Tensor]) -> None:
        for name, gradient in zip(w, torch.autograd.grad(loss, list(learning.values())), strict=True):
            buffers[part][name] = momentum * buffers[part][name] + gradient
            w[name] = w[name] - 0.01 * buffers[part][name]

    order, labelled_order = (torch_generator(1, purpose, round=1, silo="a")
                             for purpose in ("local_order", "labelled_order"))
    kept_steps = []
    for _ in range(2):
        labelled = torch.randperm(13, generator=labelled_order).split(5)
        unlabelled = torch.randperm(23, generator=order).split(8)
        for l_index, u_index in zip(labelled, unlabelled, strict=True):
            learning = {name: tensor.clone().requires_grad_() for name, tensor in sigma.items()}
            theta = {name: learning[name] + psi[name] for name in psi}
            x_l = plain(LABELLED, l_index, labelled_views)
            move("sigma", sigma, 10.0 * nn.functional.cross_entropy(f(x_l, theta), y_l[l_index]), learning)
            learning = {name: tensor.clone().requires_grad_() for name, tensor in psi.items()}
            theta = {name: sigma[name] + learning[name] for name in psi}
            u = plain(UNLABELLED, u_index, views)
            strong = seen(augment.strong(UNLABELLED.images_NCHW[u_index], augmentation, views))
            p = torch.softmax(f(u, theta), dim=1)
            p_h = [torch.softmax(f(u, {name: SIGMA[name] + helper[name] for name in helper}), dim=1)
                   for helper in HELPERS]
            votes = agreement_votes(p.detach(), p_h, 0.7, tie_break="local_first")
            keep = votes.keep_B
            kept_steps.append(int(keep.sum()))
            ce = nn.functional.cross_entropy(f(strong[keep], theta), votes.pseudo_label_B[keep])
            of = torch.ones_like(keep) if icc_images == "all" else keep
            kl = [(q[of] * (q[of].log() - p[of].log())).sum(dim=1).mean() for q in p_h]
            consistency = (kl[0] + kl[1]) / (2 if icc == "mean" else 1)
            l2 = sum((sigma[name] - learning[name]).square().sum() for name in psi)
            l1 = sum(learning[name].abs().sum() for name in psi)
            move("psi", psi, 0.7 * ce + 0.4 * consistency + 0.3 * l2 + 0.01 * l1, learning)
    assert all(kept_steps), kept_steps
    assert min(kept_steps) < 7, "some are kept and some are not"
    assert _close(found["sigma"], sigma)
    assert _close(found["psi"], psi)


def test_with_labels_at_the_coordinator_only_psi_learns_and_only_psi_is_sent() -> None:
    update, _ = _train(_task(COORDINATOR))
    assert set(update.groups) == {"psi"}
    ignoring = _answer(_task(COORDINATOR), SiloData(unlabelled=UNLABELLED))
    assert _same(update.groups["psi"].tensors, ignoring["psi"]), "labels that a silo happens to have are not used"
    assert update.metrics["num_labelled"] == 0.0
    assert update.num_examples == 23


def test_the_vote_of_the_helpers_decides_the_label_and_the_local_model_what_is_kept() -> None:
    """Three helpers that always say class 2, certain or not, outvote the local model; with a threshold that the local
    model does not reach nothing is kept, however certain they are."""
    says_two = {"1.weight": -SIGMA["1.weight"], "1.bias": torch.tensor([-50.0, -50.0, 50.0]) - SIGMA["1.bias"]}
    update, _ = _train(_task(COORDINATOR, helpers=[says_two] * 3, num_helpers=3))
    assert {name for name in update.metrics if name.startswith("pseudo_labels/")} == {"pseudo_labels/2"}
    alone, _ = _train(_task(COORDINATOR))
    assert {name for name in alone.metrics if name.startswith("pseudo_labels/")} != {"pseudo_labels/2"}
    assert update.metrics["label_ratio"] <= alone.metrics["label_ratio"] + 0.2
    none_kept, _ = _train(_task(COORDINATOR, helpers=[says_two] * 3, num_helpers=3, confidence_threshold=1.0))
    assert none_kept.metrics["num_kept"] == 0.0


def test_without_helpers_the_vote_is_the_local_models_and_there_is_no_consistency_term() -> None:
    update, _ = _train(_task())
    assert "consistency_loss" not in update.metrics
    helped, _ = _train(_task(helpers=HELPERS))
    assert helped.metrics["consistency_loss"] > 0
    assert _same(_answer(_task(helpers=HELPERS, num_helpers=0))["sigma"], _answer(_task(helpers=HELPERS))["sigma"])


def test_one_helper_and_five_helpers_work() -> None:
    for count in (1, 5):
        assert _answer(_task(helpers=[_part(seed) for seed in range(count)], num_helpers=count))


def test_a_helper_without_a_finite_answer_has_no_vote_and_does_no_harm() -> None:
    """Weights near the largest number of float32 are finite and pass every check of what arrives; their logits are
    not."""
    broken = {name: torch.full_like(tensor, 3e38) for name, tensor in PSI.items()}
    beside, without = _answer(_task(helpers=[broken, *HELPERS], num_helpers=3)), _answer(_task(helpers=HELPERS))
    assert all(_same(beside[name], without[name]) for name in ("sigma", "psi"))


# What goes up ---------------------------------------------------------------------------------------------------------

def test_an_answer_overwrites_what_was_received_with_what_is_worth_sending() -> None:
    settings = {"l1_thres": 0.2, "delta_thres": 0.003}
    update, _ = _train(_task(**settings))
    exact = _answer(_task())
    for name, received, limit in (("sigma", SIGMA, 0.0), ("psi", PSI, 0.2)):
        group = update.groups[name]
        assert (group.meaning, group.base) == (Meaning.OVERWRITE, tensors.digest(received))
        assert group.base_tensors is not None
        assert _same(group.base_tensors, received)
        expected = sparse_delta(exact[name], received, l1_thres=limit, delta_thres=0.003)
        assert _same(group.tensors, expected.receiver_after)
        assert 0 < expected.nnz < 51


def test_what_was_received_is_left_as_it_was() -> None:
    before = tensors.digest(SIGMA), tensors.digest(PSI), tensors.digest(HELPERS[0])
    _train(_task(helpers=HELPERS, momentum=0.9))
    assert (tensors.digest(SIGMA), tensors.digest(PSI), tensors.digest(HELPERS[0])) == before


def test_without_a_learning_rate_nothing_is_sent() -> None:
    found = _answer(_task(round_lr=0.0, helpers=HELPERS, delta_thres=1e-5))
    assert _same(found["sigma"], SIGMA)
    assert _same(found["psi"], PSI)


# Edge cases -----------------------------------------------------------------------------------------------------------

def test_when_nothing_is_kept_psi_moves_towards_sigma_alone_and_is_still_returned() -> None:
    """One epoch of 3 steps: psi <- psi + 2 lr lambda_l2 (sigma - psi), so the distance shrinks by (1 - 0.02)^3."""
    task = _task(COORDINATOR, confidence_threshold=1.0, momentum=0.0, lambda_l2=1.0, unlabelled_batch=8)
    found = _answer(task)
    shrunk = {name: SIGMA[name] + (PSI[name] - SIGMA[name]) * 0.98**3 for name in PSI}
    assert _close(found["psi"], shrunk)
    update, _ = _train(task)
    assert (update.metrics["num_kept"], update.metrics["label_ratio"]) == (0.0, 0.0)
    assert "agreement_loss" not in update.metrics


def test_over_all_images_the_helpers_pull_even_where_nothing_is_kept() -> None:
    """One step on all 23 images, none kept: psi <- psi - lr (lambda_i grad KL + 2 lambda_l2 (psi - sigma)); over the
    kept ones the helpers do nothing. Nothing kept is still nothing kept: such a silo may abstain."""
    settings: dict[str, Any] = {"helpers": HELPERS, "confidence_threshold": 1.0, "momentum": 0.0, "lambda_l2": 1.0,
                                "unlabelled_batch": 23, "lambda_i": 0.4, "icc": "sum"}
    found = _answer(_task(COORDINATOR, icc_images="all", **settings))
    x = augment.to_input(UNLABELLED.images_NCHW, FORM).flatten(1)
    learning = {name: tensor.clone().requires_grad_() for name, tensor in PSI.items()}
    w = {name: SIGMA[name] + learning[name] for name in PSI}
    log_p = torch.log_softmax(x @ w["1.weight"].T + w["1.bias"], dim=1)
    loss = torch.zeros(())
    for helper in HELPERS:
        q = torch.softmax(x @ (SIGMA["1.weight"] + helper["1.weight"]).T + SIGMA["1.bias"] + helper["1.bias"], dim=1)
        loss = loss + 0.4 * (q * (q.log() - log_p)).sum(dim=1).mean()
    loss = loss + sum((SIGMA[name] - learning[name]).square().sum() for name in PSI)
    gradients = torch.autograd.grad(loss, list(learning.values()))
    assert _close(found["psi"], {name: PSI[name] - 0.01 * gradient
                                 for name, gradient in zip(PSI, gradients, strict=True)})
    assert not _close(_answer(_task(COORDINATOR, **settings))["psi"], found["psi"])
    update, _ = _train(_task(COORDINATOR, icc_images="all", abstain_if_no_confident=True, **settings))
    assert update.abstention == "no_confident_example"


def test_a_silo_that_kept_nothing_may_abstain_unless_it_learnt_from_labels() -> None:
    nothing: dict[str, Any] = {"confidence_threshold": 1.0, "abstain_if_no_confident": True}
    memory = FedMatchMemory(helpers={}, round=1)
    update, keep = _train(_task(COORDINATOR, **nothing), memory=memory)
    assert (update.abstention, update.groups) == ("no_confident_example", {})
    assert keep is memory
    assert _train(_task(SILO, **nothing), SiloData(unlabelled=UNLABELLED))[0].abstention == "no_confident_example"
    assert not _train(_task(SILO, **nothing))[0].abstention
    assert not _train(_task(COORDINATOR, abstain_if_no_confident=True))[0].abstention


def test_a_silo_without_labels_returns_sigma_as_it_came() -> None:
    update, _ = _train(_task(SILO), SiloData(unlabelled=UNLABELLED))
    assert _same(update.groups["sigma"].tensors, SIGMA)
    assert not _same(update.groups["psi"].tensors, PSI)
    assert (update.metrics["num_labelled"], update.metrics["num_unlabelled"]) == (0.0, 23.0)


def test_a_silo_without_unlabelled_images_learns_sigma_alone() -> None:
    for nothing in (None, _images(0, 0)):
        update, _ = _train(_task(SILO, l1_thres=1e-6), SiloData(labelled=LABELLED, unlabelled=nothing))
        assert _same(update.groups["psi"].tensors, PSI)
        assert not _same(update.groups["sigma"].tensors, SIGMA)
        assert (update.metrics["num_labelled"], update.metrics["num_unlabelled"]) == (13.0, 0.0)
        assert update.num_examples == 13


def test_a_silo_without_images_abstains() -> None:
    assert _train(_task(SILO), SiloData())[0].abstention == "no_data"
    assert _train(_task(COORDINATOR), SiloData(labelled=LABELLED))[0].abstention == "no_data"
    assert _train(_task(SILO, phase="statistics"), SiloData())[0].abstention == "no_data"


def test_batches_of_one_image_train() -> None:
    one = SiloData(labelled=_images(1, 3), unlabelled=_images(1, 4, labels=False))
    found = _answer(_task(SILO, confidence_threshold=0.0), one)
    assert not _same(found["sigma"], SIGMA)
    assert not _same(found["psi"], PSI)


def test_a_batch_that_batch_norm_cannot_use_is_skipped() -> None:
    sigma, psi = _part(1, build=_normalised_net), _part(2, build=_normalised_net)
    statistics = {"2.mean": torch.zeros(4), "2.var": torch.ones(4)}
    groups = {"sigma": TensorGroup(sigma), "psi": TensorGroup(psi), "batch_norm": TensorGroup(statistics)}
    task = _task(SILO, build=_normalised_net, groups=groups, confidence_threshold=0.0)
    one = SiloData(labelled=_images(1, 3), unlabelled=_images(1, 4, labels=False))
    assert _train(task, one)[0].abstention == "no_usable_batch"
    update, _ = _train(task, SiloData(labelled=_images(1, 3), unlabelled=UNLABELLED))
    assert _same(update.groups["sigma"].tensors, sigma)
    assert not _same(update.groups["psi"].tensors, psi)


def test_without_statistics_a_network_that_needs_them_labels_nothing() -> None:
    """Silos alone measure, and none had answered in time."""
    groups = {name: TensorGroup(_part(seed, build=_normalised_net)) for name, seed in (("sigma", 1), ("psi", 2))}
    update, keep = _train(_task(build=_normalised_net, groups=groups))
    assert (update.abstention, update.num_examples, keep) == ("no_statistics", 36, None)


def test_labels_come_from_the_received_statistics_not_from_the_batch() -> None:
    """Statistics that shift every feature far away give every image one class with certainty."""
    sigma, psi = _part(1, build=_normalised_net), _part(2, build=_normalised_net)
    shifted = {"2.mean": torch.full((4,), -1e4), "2.var": torch.ones(4)}
    groups = {"sigma": TensorGroup(sigma), "psi": TensorGroup(psi), "batch_norm": TensorGroup(shifted)}
    update, _ = _train(_task(COORDINATOR, build=_normalised_net, groups=groups, confidence_threshold=0.999,
                             unlabelled_batch=23))
    assert update.metrics["label_ratio"] == 1.0
    assert sum(name.startswith("pseudo_labels/") for name in update.metrics) == 1


# Settings -------------------------------------------------------------------------------------------------------------

@each_of(("settings", "sizes", "plan"), [
    ({"preset": "paper_v3"}, (50, 510), EpochPlan(5, 102)),  # the official code's numbers
    ({"preset": "paper_v3"}, (50, 490), EpochPlan(5, 98)),
    ({"preset": "paper_v3"}, (25, 100), EpochPlan(2, 50)),  # 2.5 is rounded to even
    ({"preset": "paper_v3"}, (35, 100), EpochPlan(4, 25)),
    ({"preset": "paper_v3"}, (3, 100), EpochPlan(1, 100)),
    ({"preset": "paper_v3"}, (0, 250), EpochPlan(2, 100)),  # without labels by unlabelled_batch
    ({"preset": "paper_v3"}, (50, 0), EpochPlan(5, 0)),
    ({"preset": "paper_v3", "scenario": COORDINATOR}, (0, 550), EpochPlan(6, 100)),
    ({"preset": "paper_v3", "scenario": COORDINATOR}, (0, 30), EpochPlan(1, 100)),
    ({"preset": "paper_v1"}, (50, 490), EpochPlan(10, 50)),
    ({"preset": "paper_v1"}, (50, 501), EpochPlan(11, 50)),
    ({"preset": "paper_v1"}, (13, 0), EpochPlan(2, 50)),
    ({"preset": "paper_v1", "scenario": COORDINATOR}, (0, 1), EpochPlan(1, 50)),
])
def test_steps_of_an_epoch(settings: dict[str, Any], sizes: tuple[int, int], plan: EpochPlan) -> None:
    found = epoch_plan(FedMatchSettings(**{"scenario": SILO, **settings}), *sizes)
    assert found.steps == plan.steps
    assert found.unlabelled_batch == plan.unlabelled_batch or sizes[1] == 0


def test_an_epoch_uses_every_unlabelled_image_once_or_what_fits() -> None:
    """v1: all 23, labelled batches repeat. v3: round(13 / 10) = 1 step of all 23; without labels round(23 / 10) = 2
    steps of 10, 3 images are left out."""
    seen = {name: _train(task, data)[0].metrics for name, task, data in (
        ("v1", _task(SILO, unlabelled_batch=2), BOTH),
        ("v3", _task(SILO, steps_by="labelled"), BOTH),
        ("unlabelled", _task(SILO, steps_by="labelled", unlabelled_batch=10), SiloData(unlabelled=UNLABELLED)))}
    assert [metrics["steps"] for metrics in seen.values()] == [12, 1, 2]
    kept = {name: metrics["num_kept"] / metrics["label_ratio"] for name, metrics in seen.items()}
    assert kept == {"v1": pytest.approx(23), "v3": pytest.approx(23), "unlabelled": pytest.approx(20)}


def test_proximal_updates_make_exact_zeros_where_the_subgradient_makes_none() -> None:
    """With nothing kept and lambda_l2 = 0 psi shrinks by lr * lambda_l1 in each of 3 steps."""
    common: dict[str, Any] = {"confidence_threshold": 1.0, "lambda_l2": 0.0, "lambda_l1": 5.0, "momentum": 0.0,
                              "unlabelled_batch": 8}
    proximal = _answer(_task(COORDINATOR, l1_update="proximal", **common))["psi"]
    expected = {name: tensor.sign() * (tensor.abs() - 0.15).clamp(min=0) for name, tensor in PSI.items()}
    assert _close(proximal, expected, atol=1e-6)
    assert all(torch.equal(proximal[name] == 0, expected[name] == 0) for name in PSI)
    assert any((tensor == 0).any() for tensor in proximal.values())
    subgradient = _answer(_task(COORDINATOR, **common))["psi"]
    assert all(bool(tensor.all()) for tensor in subgradient.values())


def test_v1_augments_all_training_images_and_v3_none() -> None:
    """The study's weak views: here flips and shifts."""
    flips = AugmentationSettings(policy="semifl_official", horizontal_flip=True)

    def answer(augmented: bool) -> dict[str, dict[str, Tensor]]:
        task = _task(SILO, augment_train=augmented, lambda_a=0.0, lambda_i=0.0)
        return _answer(replace(task, augmentation=flips))

    assert not _close(answer(True)["sigma"], answer(False)["sigma"])
    assert _same(answer(False)["sigma"], _answer(_task(SILO, lambda_a=0.0, lambda_i=0.0))["sigma"])


def test_weights_of_zero_leave_their_terms_out() -> None:
    update, _ = _train(_task(helpers=HELPERS, lambda_a=0.0, lambda_i=0.0, lambda_l2=0.0))
    assert {"agreement_loss", "consistency_loss"}.isdisjoint(update.metrics)
    assert _same(update.groups["psi"].tensors, PSI)


@pytest.mark.parametrize(("settings", "helpers", "passes"), [
    ({}, (), 1), ({}, HELPERS, 2), ({"lambda_a": 0.0}, HELPERS, 1), ({"icc_images": "all"}, HELPERS, 2)])
def test_a_batch_that_cannot_fit_is_refused_before_its_pass_and_one_that_does_is_only_told(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], helpers: Any,
        passes: int) -> None:
    """Ten labels, one step: all 23 other images are a batch. It was begun, and the system killed the process or
    another one in the middle of it."""
    task = _task(helpers=helpers, steps_by="labelled", unlabelled_batch=5, confidence_threshold=0.0, **settings)
    data = SiloData(labelled=_images(10, 0), unlabelled=UNLABELLED)
    needed = passes * 23 * batch_room.kept_bytes_per_image(task)
    monkeypatch.setattr(batch_room, "_SAID", set())
    monkeypatch.setattr(batch_room, "free_bytes", lambda: needed)
    assert _train(task, data)[0].metrics["steps"] == 1
    assert "a step takes 23 unlabelled images at once" in caplog.text
    monkeypatch.setattr(batch_room, "free_bytes", lambda: needed - 1)
    with pytest.raises(ComputeFailed, match=rf"A step takes {passes * 23} unlabelled images at once") as caught:
        _train(task, data)
    assert 'steps_by = "unlabelled"' in caught.value.remedy
    usual = _task(helpers=helpers, steps_by="unlabelled", unlabelled_batch=5, confidence_threshold=0.0, **settings)
    assert _train(usual, data)[0].metrics["steps"] == 5, "only batches far above the usual are looked at"


def test_training_that_diverges_says_so() -> None:
    with pytest.raises(ComputeFailed, match="not finite"):
        _train(_task(round_lr=1e30, lambda_l2=10.0, local_epochs=3))


def test_another_phase_is_refused() -> None:
    with pytest.raises(BadPayload, match="no phase"):
        _train(_task(phase="dance"))


# Memory ---------------------------------------------------------------------------------------------------------------

def test_helpers_are_not_kept_unless_the_study_says_so() -> None:
    assert _train(_task(helpers=HELPERS))[1] is None
    update, keep = _train(_task(round=2), memory=FedMatchMemory(helpers=_flat(HELPERS), round=1))
    assert keep is None
    assert "consistency_loss" not in update.metrics


def _flat(helpers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{index}/{name}": tensor for index, psi in enumerate(helpers) for name, tensor in psi.items()}


def test_kept_helpers_serve_in_the_rounds_in_between(tmp_path: Path) -> None:
    _, keep = _train(_task(helpers=HELPERS, keep_helpers=True))
    assert keep is not None
    checkpoint.save(tmp_path / "memory", keep)
    keep = checkpoint.load(tmp_path / "memory", FedMatchMemory)
    update, after = _train(_task(round=2, keep_helpers=True), memory=keep)
    assert _same(update.groups["psi"].tensors, _answer(_task(round=2, helpers=HELPERS))["psi"])
    assert after is keep
    _, newer = _train(_task(round=3, helpers=HELPERS[:1], keep_helpers=True), memory=keep)
    assert newer is not None
    assert (newer.round, _same(newer.helpers, _flat(HELPERS[:1]))) == (3, True)


def test_kept_helpers_that_are_too_old_or_of_another_model_are_dropped() -> None:
    keep = FedMatchMemory(helpers=_flat(HELPERS), round=1)
    for task, memory in ((_task(round=5, keep_helpers=True, helper_max_age_rounds=3), keep),
                         (_task(keep_helpers=True), FedMatchMemory(helpers={"0/1.weight": torch.zeros(2)}, round=1))):
        update, after = _train(task, memory=memory)
        assert "consistency_loss" not in update.metrics
        assert after is None


# Diagnostics and determinism ------------------------------------------------------------------------------------------

def test_pseudo_labels_are_reported_against_the_truth_of_a_simulation_only() -> None:
    secret = SiloData(labelled=LABELLED, unlabelled=_images(23, 1))
    known, _ = _train(_task(), secret)
    hidden, _ = _train(_task(), SiloData(labelled=LABELLED, unlabelled=_images(23, 1).without_labels()))
    assert {"pseudo_label_accuracy", "threshold_accuracy"} <= set(known.metrics)
    assert {"pseudo_label_accuracy", "threshold_accuracy"}.isdisjoint(hidden.metrics)
    assert _same(known.groups["psi"].tensors, hidden.groups["psi"].tensors), "training never looks at the truth"


def test_the_same_task_gives_the_same_bits_whatever_the_global_generator(tmp_path: Path) -> None:
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(_answer(_task(SILO, helpers=HELPERS, policy="small", augment_train=True)))
    assert all(_same(answers[0][name], answers[1][name]) for name in ("sigma", "psi"))
    other = _answer(_task(SILO, helpers=HELPERS, policy="small", augment_train=True, round=2))
    assert not _same(answers[0]["psi"], other["psi"])


def test_progress_reaches_the_end_and_an_exception_from_it_aborts() -> None:
    class Aborted(Exception):
        pass

    seen: list[float] = []

    def stop(fraction: float, text: str) -> None:
        raise Aborted

    task = _task(unlabelled_batch=8, local_epochs=2)
    _train(replace(task, progress=lambda fraction, text: seen.append(fraction)))
    assert len(seen) == 6
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    with pytest.raises(Aborted):
        _train(replace(task, progress=stop))


def test_the_statistics_phase_measures_all_images_of_the_silo() -> None:
    w = _part(1, build=_normalised_net)
    task = _task(SILO, phase="statistics", build=_normalised_net, groups={"model": TensorGroup(w)})
    update, _ = _train(task)
    found = batch_norm.from_tensors(update.groups["batch_norm"].tensors)
    assert found["2"].count == 36
    x = augment.to_input(torch.cat([LABELLED.images_NCHW, UNLABELLED.images_NCHW]), FORM).flatten(1)
    features = x @ w["1.weight"].T + w["1.bias"]
    assert torch.allclose(found["2"].mean, features.mean(dim=0).double(), atol=1e-5)


def test_losses_are_means_over_the_steps() -> None:
    """With lr 0 the model stands still, so the mean of CE over all images of equal batches is that of one batch."""
    update, _ = _train(_task(SILO, round_lr=0.0, labelled_batch=13, unlabelled_batch=23, lambda_a=0.0, lambda_i=0.0,
                             lambda_l2=0.5))
    x, y = augment.to_input(LABELLED.images_NCHW, FORM).flatten(1), LABELLED.labels_N
    assert y is not None
    logits = x @ (SIGMA["1.weight"] + PSI["1.weight"]).T + SIGMA["1.bias"] + PSI["1.bias"]
    assert update.metrics["label_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    distance = sum(float((SIGMA[name] - PSI[name]).square().sum()) for name in PSI)
    assert update.metrics["loss"] == pytest.approx(0.5 * distance, rel=1e-5)
    assert math.isfinite(update.metrics["steps"])


def test_the_trainer_is_found_by_name() -> None:
    assert load_trainer("fedmatch") is FedMatchTrainer
