"""A round with differential privacy of single images: step by step against a plain reference, and what leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.learning import tensors
from semisilo.common.learning.losses import cross_entropy, pseudo_labels
from semisilo.common.learning.privacy.example_gradients import ClippedSum, each_by_itself
from semisilo.common.learning.privacy.gaussian import SecretStream, grid_of
from semisilo.common.learning.sgd import SGDSettings, make_optimiser
from semisilo.common.methods.contract import SiloTask
from semisilo.common.methods.fedavg import FedAvgSettings
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivateTask, refused_dp
from semisilo.common.models.factory import initial_model
from semisilo.silo.objectives import make_objective, train_locally

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
PRIVATE = PrivateTask(noise_multiplier=1.0, clip_norm=0.3, epsilon=2.5, key=b"k" * 32)
OBJECTIVES: list[dict[str, Any]] = [
    {"objective": "sl", "lambda_s": 1.5}, {"objective": "fixmatch", "confidence_threshold": 0.4, "lambda_s": 1.5},
    {"objective": "uda", "confidence_threshold": 0.3, "tsa": "linear"}, {"objective": "pseudo_label"},
    {"objective": "pseudo_label", "label_refresh": "batch"}, {"objective": "mean_teacher"}]


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def images(count: int, seed: int) -> ImageSet:
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(map(str, range(count))))


LABELLED, UNLABELLED = images(12, 1), images(26, 2)


def task(private: PrivateTask | None = PRIVATE, *, policy: Any = "none", build: Callable[[], nn.Module] = network,
         **settings: Any) -> SiloTask:
    values = {"labelled_batch": 4, "round_lr": 0.1, "local_epochs": 2, **settings}
    return SiloTask(study="s", round=2, rounds=4, phase="train", silo="a", seed=1, groups={}, build_model=build,
                    settings=FedAvgSettings(**values), augmentation=AugmentationSettings(policy=policy), image=FORM,
                    private=private)


def trained(given: SiloTask, labelled: ImageSet | None = LABELLED, unlabelled: ImageSet | None = UNLABELLED, *,
            sgd: SGDSettings | None = None, penalty: Callable[[nn.Module], Tensor] | None = None
            ) -> tuple[dict[str, Tensor], Any]:
    model = given.build_model()
    tensors.load_into(model, initial_model(given.build_model, 3))
    settings = sgd or SGDSettings(lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, clip_norm=0.0)
    objective = make_objective(given, model, labelled, unlabelled)
    found = train_locally(given, model, make_optimiser(model, settings), objective, labelled,
                          unlabelled if given.settings.objective != "sl" else None, penalty=penalty)
    return tensors.parameters_of(model), found


def by_hand(rounds: int, *, expected: float, lot: Callable[[int], Tensor], noise: float = 1.0,
            divisor: Callable[[Tensor], float] | None = None, skip_empty: bool = False,
            same_noise: bool = False) -> dict[str, Tensor]:
    """DP-SGD on the labelled images with a loop over them: clipped sum and the stream's noise over what is expected.

    divisor, skip_empty and same_noise plant known errors.
    """
    model, stream = network(), SecretStream(PRIVATE.key)
    tensors.load_into(model, initial_model(network, 3))
    count = sum(each.numel() for each in model.parameters())
    assert LABELLED.labels_N is not None
    for number in range(rounds):
        index_B, total = lot(number), torch.zeros(count, dtype=torch.float64)
        if skip_empty and not len(index_B):
            continue
        for index in index_B.tolist():
            logits = model(augment.to_input(LABELLED.images_NCHW[index][None], FORM))
            loss = 1.5 * cross_entropy(logits, LABELLED.labels_N[index][None])
            flat = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]).double()
            total += flat * min(1.0, PRIVATE.clip_norm / float(flat.norm()))
        drawn = stream.noise("gradient", 0 if same_noise else number, count, noise * PRIVATE.clip_norm * 2.0**22)
        gradient = (total + drawn * 2.0**-22) / (expected if divisor is None else divisor(index_B))
        with torch.no_grad():
            start = 0
            for parameter in model.parameters():
                parameter -= 0.1 * gradient[start:start + parameter.numel()].reshape(parameter.shape).float()
                start += parameter.numel()
    return tensors.parameters_of(model)


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def lots(rate: float, count: int = 12) -> Callable[[int], Tensor]:
    return lambda number: SecretStream(PRIVATE.key).sampled("labelled", number, count, rate)


def test_a_round_is_dp_sgd_by_hand() -> None:
    """12 labelled images in steps of 4: 6 steps, each image with probability 1/3, divided by 4."""
    found, told = trained(task(objective="sl", lambda_s=1.5, weak_view="none"))
    assert told.steps == 6
    assert apart(found, by_hand(6, expected=4.0, lot=lots(1 / 3))) < 1e-4


@pytest.mark.parametrize("planted", [
    {"divisor": lambda index_B: max(1.0, float(len(index_B)))}, {"same_noise": True}, {"noise": 0.0},
    {"noise": 0.5}, {"lot": lambda number: torch.arange(4) + 4 * (number % 3)}])
def test_planted_errors_are_far_from_it(planted: dict[str, Any]) -> None:
    """Division by the batch size, reused noise, no noise, too little, shuffled batches in place of Poisson sampling."""
    found, _ = trained(task(objective="sl", lambda_s=1.5, weak_view="none"))
    assert apart(found, by_hand(6, **{"expected": 4.0, "lot": lots(1 / 3), **planted})) > 1e-2


def test_an_empty_step_is_a_step() -> None:
    """One image of twelve expected a step: some steps are empty, and have noise like all others."""
    drawn = lots(1 / 12)
    assert any(not len(drawn(number)) for number in range(24))
    found, told = trained(task(objective="sl", lambda_s=1.5, weak_view="none", labelled_batch=1))
    assert told.steps == 24
    assert apart(found, by_hand(24, expected=1.0, lot=drawn)) < 1e-3
    assert apart(found, by_hand(24, expected=1.0, lot=drawn, skip_empty=True)) > 1e-2


@pytest.mark.parametrize("settings", OBJECTIVES, ids=lambda each: "-".join(map(str, each.values())))
def test_every_objective_is_what_it_is_without_privacy_when_nothing_is_clipped_or_noised(
        settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All images in one step (rate 1), hardly any noise, a clip that binds nowhere: the step is that of the objective
    without privacy, of a batch that holds all; the mean there is over each kind of image, here over both."""
    everything = {"labelled_batch": 12, "local_epochs": 1, "weak_view": "none", **settings}
    if settings["objective"] != "sl":
        everything["unlabelled_batch"] = 26
    monkeypatch.setattr(SecretStream, "noise", lambda self, *args: torch.zeros(args[2], dtype=torch.float64))
    loose = replace(PRIVATE, clip_norm=1e4)
    for labelled, unlabelled in ((LABELLED, None), (None, UNLABELLED)):
        if labelled is None and settings["objective"] == "sl":
            continue
        private, told = trained(task(loose, **everything), labelled, unlabelled)
        plain, plain_told = trained(task(None, **everything), labelled, unlabelled)
        assert told.steps == plain_told.steps == 1
        assert apart(private, plain) < 2e-3 * max(float(each.abs().max()) for each in plain.values())


def test_labelled_and_unlabelled_images_share_one_clip_and_one_divisor() -> None:
    """Neighbours differ in one image of either kind, so the noise that covers one covers both."""
    both, _ = trained(task(objective="fixmatch", confidence_threshold=0.0, lambda_s=1.0))
    assert all(torch.isfinite(each).all() for each in both.values())
    given = task(objective="fixmatch", confidence_threshold=1.0, lambda_s=1.0)
    assert apart(both, trained(given)[0]) > 1e-6


def test_leaving_one_image_out_moves_a_step_by_at_most_the_clip_over_what_is_expected() -> None:
    """End to end, pseudo-labels and strong views of all others included, whose draws must not shift: rate 1, one step.
    The image is blackened and its label dropped below the threshold, as if it had never contributed."""
    given = task(replace(PRIVATE, noise_multiplier=0.1), objective="fixmatch", confidence_threshold=0.3, lambda_s=1.0,
                 labelled_batch=12, unlabelled_batch=26, local_epochs=1, policy="semifl_official")
    whole, _ = trained(given, None)
    changed = UNLABELLED.images_NCHW.clone()
    changed[7] = 255 - changed[7]
    other, _ = trained(given, None, replace(UNLABELLED, images_NCHW=changed))
    moved = torch.cat([(whole[name] - other[name]).flatten().double() for name in whole]).norm()
    assert float(moved) <= 2 * 0.1 * PRIVATE.clip_norm / 26 + 1e-6  # replaced: one leaves and one comes


def test_momentum_decay_and_a_penalty_work_on_what_was_noised() -> None:
    sgd = SGDSettings(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.0)
    plain, _ = trained(task(objective="sl", lambda_s=1.5))
    assert apart(plain, trained(task(objective="sl", lambda_s=1.5), sgd=sgd)[0]) > 1e-3

    def pull(model: nn.Module) -> Tensor:
        return 0.5 * torch.stack([each.square().sum() for each in model.parameters()]).sum()

    decayed, _ = trained(task(objective="sl", lambda_s=1.5), sgd=replace(sgd, momentum=0.0, nesterov=False,
                                                                         weight_decay=1.0))
    pulled, _ = trained(task(objective="sl", lambda_s=1.5), penalty=pull)
    assert apart(decayed, pulled) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("settings", OBJECTIVES, ids=lambda each: "-".join(map(str, each.values())))
def test_nothing_measured_on_images_is_told(settings: dict[str, Any]) -> None:
    """No loss, no share of kept labels, no class counts: each would need noise of its own."""
    _, told = trained(task(**settings))
    assert told.metrics == {"steps": float(told.steps), "epsilon": 2.5}


def test_the_same_task_has_the_same_bits_and_another_key_others() -> None:
    given = task(objective="fixmatch", confidence_threshold=0.3, lambda_s=1.0, policy="semifl_official")
    first, _ = trained(given)
    assert apart(first, trained(given)[0]) == 0
    other = replace(given, private=replace(PRIVATE, key=b"j" * 32))
    assert apart(first, trained(other)[0]) > 1e-3


def test_what_is_random_follows_from_the_secret_and_from_nothing_that_the_coordinator_knows() -> None:
    """The seed of the study is in every task: with it the coordinator would know who was drawn, and the noise."""
    given = task(objective="fixmatch", confidence_threshold=0.3, lambda_s=1.0, policy="semifl_official")
    assert apart(trained(given)[0], trained(replace(given, seed=99))[0]) == 0


@pytest.mark.slow
def test_training_with_much_noise_and_many_steps_stays_near_its_deviation() -> None:
    """Without images that matter (weight 0 through a threshold of 1) the model walks at random: after T steps it is
    lr sqrt(T) sigma C / expected away in every coordinate, in the mean."""
    given = task(replace(PRIVATE, noise_multiplier=4.0), objective="fixmatch", confidence_threshold=1.0, lambda_s=1.0,
                 unlabelled_batch=13, local_epochs=20)
    found, told = trained(given, None)
    start = initial_model(network, 3)
    walk = torch.cat([(found[name] - start[name]).flatten() for name in start])
    expected = 0.1 * math.sqrt(told.steps) * 4.0 * 0.3 / 13
    assert float(walk.std()) == pytest.approx(expected, rel=0.25)


class Mixing(nn.Module):
    """A network in which images of a batch change each other, in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, inputs_BCHW: Tensor) -> Tensor:
        logits_BK: Tensor = self.layers(inputs_BCHW - inputs_BCHW.mean(dim=0, keepdim=True))
        return logits_BK


def test_pseudo_labels_of_a_round_are_those_of_each_image_alone() -> None:
    """With a network that mixes images: every image by itself is black to it, so all have one label."""
    for private, kinds in ((PRIVATE, 1), (None, 3)):
        given = task(private, build=Mixing, objective="pseudo_label")
        model = Mixing()
        tensors.load_into(model, initial_model(Mixing, 3))
        labels = make_objective(given, model, None, UNLABELLED).labels
        assert labels is not None
        assert (len(labels.hard_label_B.unique()) == 1) is (kinds == 1)


def test_pseudo_labels_of_a_step_are_those_of_each_image_alone() -> None:
    model = network()
    tensors.load_into(model, initial_model(network, 3))
    given = task(objective="fixmatch", confidence_threshold=0.3)
    objective = make_objective(given, model, None, UNLABELLED)
    inputs = augment.to_input(UNLABELLED.images_NCHW, FORM)
    label_B, keep_B = objective.targets(model, (inputs, inputs), torch.arange(26), each_by_itself)
    with torch.no_grad():
        expected = [pseudo_labels(model(each[None]), 0.3) for each in inputs]
    assert label_B.tolist() == [int(each.hard_label_B) for each in expected]
    assert keep_B.tolist() == [bool(each.keep_B) for each in expected]


def test_where_silos_share_noise_a_round_is_one_step_of_clipped_gradients_without_any() -> None:
    """By hand: of 12 labelled images each enters with probability 1/3; lr 0.1, over the 4 that are expected. The model
    itself stays: nothing without noise can leave as weights."""
    given = task(replace(PRIVATE, shared=True), objective="sl", lambda_s=1.5, weak_view="none", local_epochs=1)
    found, told = trained(given)
    assert told.steps == 1
    before = initial_model(network, 3)
    expected = by_hand(1, expected=4.0, lot=lots(1 / 3), noise=0.0)
    assert told.exact is not None
    assert apart(expected, {name: (before[name].double() + told.exact[name]).float() for name in before}) < 1e-6
    assert apart(before, found) == 0.0


def test_where_silos_share_noise_one_image_moves_what_leaves_by_at_most_the_clip_over_what_is_expected() -> None:
    """Exactly, in float64; and a silo without labels divides by the same number as others."""
    given = task(replace(PRIVATE, shared=True), objective="fixmatch", confidence_threshold=0.0, unlabelled_batch=26,
                 labelled_batch=12, weak_view="none", local_epochs=1)
    whole, less = (trained(given, None, images(26, 2) if not left else ImageSet(
        UNLABELLED.images_NCHW[left:], None, UNLABELLED.names[left:]))[1].exact for left in (0, 1))
    assert whole is not None
    assert less is not None
    apart_by = math.sqrt(sum(float((whole[name] - less[name]).square().sum()) for name in whole))
    assert 0 < apart_by <= 0.1 * PRIVATE.clip_norm / (12 + 26)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"objective": "sl"}, {"objective": "fixmatch", "confidence_threshold": 0.51},
                                      {"objective": "sl", "class_weights": (1.0, 50.0, 3.0)}])
def test_an_image_with_several_labels_moves_a_sum_by_its_bound_at_most(settings: dict[str, Any]) -> None:
    """Whatever it shows and weighs: each has a loss of its own, whose gradient is clipped. Without clipping most are
    longer than the bound, so that it is the clipping that holds."""
    given, bound = task(task="multi_label", **settings), 0.05
    model = given.build_model()
    tensors.load_into(model, initial_model(given.build_model, 3))
    rows_NK = torch.tensor([[1, 1, 1], [0, 0, 0], [1, -1, 0], [0, 1, 0]] * 3, dtype=torch.int8)
    labelled = ImageSet(LABELLED.images_NCHW, rows_NK, LABELLED.names)
    objective = make_objective(given, model, labelled, UNLABELLED if settings["objective"] == "fixmatch" else None)
    inputs_BCHW = augment.to_input(LABELLED.images_NCHW, FORM)
    terms: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [(objective.labelled_loss, (rows_NK,))]
    if settings["objective"] == "fixmatch":
        targets = objective.targets(model, (inputs_BCHW, inputs_BCHW), torch.arange(12), each_by_itself)
        assert bool(targets[1].any())
        terms.append((objective.unlabelled_loss, targets))

    def length(clip_norm: float, loss: Callable[..., Tensor], image: int, rows: tuple[Tensor, ...]) -> float:
        found = ClippedSum(model, clip_norm=clip_norm)
        found.add(inputs_BCHW[image:image + 1], loss, *(each[image:image + 1] for each in rows))
        unit = grid_of(clip_norm)
        return math.sqrt(sum(float((each * unit).square().sum()) for each in found.total.values()))

    for loss, rows in terms:
        assert max(length(bound, loss, image, rows) for image in range(12)) <= bound
        assert max(length(100.0, loss, image, rows) for image in range(12)) > bound


def test_balanced_weights_of_a_silos_labels_are_refused_with_differential_privacy() -> None:
    dp = DifferentialPrivacy(unit="example", noise_multiplier=1.0, clip_norm=1.0)
    for weights, refused in (("balanced", True), ((1.0, 2.0), False)):
        settings = FedAvgSettings(scenario="labels-at-silo", objective="sl", task="multi_label", class_weights=weights)
        why = refused_dp(dp, method="fedavg", allowed=("example",), settings=settings, normalisation="group")
        assert ("class_weights" in why) is refused
