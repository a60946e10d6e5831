"""Before a task with differential privacy: what is refused, what is counted, and when the same noise comes again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semisilo.common.data.form import AugmentationSettings, ImageForm, Reading
from semisilo.common.errors import ComputeFailed, NotPermitted, StorageDamaged
from semisilo.common.learning.privacy.accountant import NoisySteps, epsilon_of
from semisilo.common.learning.training import check_finite
from semisilo.common.methods.contract import ModelSettings, TaskSpec, TensorGroup
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy
from semisilo.common.models.factory import initial_model, model_builder
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.secure_aggregation.clipped import bound_of_clip, bound_of_step, length_in_levels
from semisilo.common.secure_aggregation.mask_form import MaskForm
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.secure_aggregation.masked_updates import add_up
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.compute.operations import Operations
from semisilo.silo.site.home import JoinChoice
from semisilo.silo.site.policy import PrivacyPolicy
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending
from semisilo.silo.trainers.fedavg import FedAvgTrainer
from tests.silo.compute.test_operations import CLASSES, all_digits
from tests.synced_paths import synced_paths

NUM_IMAGES = 60
FORM = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.35,))
MODEL = ModelSettings(name="small_cnn", classes=CLASSES, normalisation="group")
SETTINGS = {"objective": "fixmatch", "scenario": "labels-at-coordinator", "unlabelled_batch": 20, "round_lr": 0.05,
            "confidence_threshold": 0.3}
DP = DifferentialPrivacy(noise_multiplier=1.0, clip_norm=0.5)


class Site:
    """A silo's folders; every request goes to operations that know nothing of earlier ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = PrivacyLedger(folder / "privacy")
        self.scans = folder / "scans.npz"
        self.write(NUM_IMAGES)
        self.model = initial_model(model_builder(MODEL, FORM), 1)

    def write(self, count: int, *, changed: int = 0) -> None:
        """So many digits; of the first `changed` one pixel is another."""
        images = (all_digits().images[:count] * 15).astype(np.uint8)
        images[:changed, 3, 3] ^= 255
        np.savez(self.scans, train_images=images)

    def train(self, *, policy: PrivacyPolicy | None = None, weights: dict[str, torch.Tensor] | None = None,
              masking: Masking | None = None, choice: JoinChoice | None = None, authority: str = "",
              **changes: Any) -> Trained:
        cache, outgoing = PayloadStore(self.folder / "cache"), PayloadStore(self.folder / "outgoing")
        task = TaskSpec(
            task_id="s/1/0-train/a", study="s", round=1, rounds=4, phase="train", silo="a", method="fedavg",
            settings=SETTINGS, model=MODEL, image=FORM, augmentation=AugmentationSettings(policy="none"),
            numerics=Numerics(threads=1), payloads=(), last_folded_round=0, seed=1, dp=DP)
        groups = {"model": TensorGroup(self.model if weights is None else weights)}
        payloads = [encode_groups(cache, {name: group}) for name, group in groups.items()]
        return Operations(lambda fraction, text: None, device="cpu").train(Train(
            task=replace(task, payloads=tuple(payloads), **changes),
            payloads={ref.digest: cache.path(ref.digest) for ref in payloads}, cache_folder=cache.folder,
            choice=choice or JoinChoice(source=str(self.scans)), memory=None, residuals=None, pending_residuals=None,
            outgoing_folder=outgoing.folder, memory_folder=self.folder / "memory",
            privacy=policy or PrivacyPolicy(), privacy_folder=self.folder / "privacy",
            masking=masking, authority=authority))

    def update(self, trained: Trained) -> torch.Tensor:
        assert trained.payload is not None
        path = PayloadStore(self.folder / "outgoing").path(trained.payload.digest)
        groups = decode_groups(path, require_finite=True)
        return torch.cat([each.flatten() for each in groups["model"].tensors.values()])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_task_is_counted_with_this_silos_own_numbers(site: Site) -> None:
    """60 images in steps of 20: three steps, each image with probability 1/3; epsilon as the accountant has it."""
    trained = site.train()
    line, = site.ledger.lines()
    expected = epsilon_of([NoisySteps(noise_multiplier=1.0, sampling_rate=1 / 3, steps=3)], 1e-5)
    assert (line.images, line.steps, line.sampling_rate, line.noise_multiplier) == (60, 3, 1 / 3, 1.0)
    assert line.epsilon == line.study_epsilon == expected
    assert trained.metrics == {"steps": 3.0, "epsilon": expected}


@pytest.mark.slow
def test_a_task_that_is_done_again_has_the_same_bits_and_counts_once(site: Site) -> None:
    first = site.train()
    assert site.train().payload == first.payload
    assert site.train(task_id="s/1/0-train/a/1").payload == first.payload  # the study went back to this round
    assert len(site.ledger.lines()) == 1


def test_a_line_that_is_found_is_on_the_disk_before_its_task_is_done_again(site: Site) -> None:
    """The process that wrote it may have been killed before it could wait for the disk: what is sent then would not
    be counted if the power went."""
    site.train()
    with synced_paths() as synced:
        site.train()
    assert str(site.ledger.path) in synced


@pytest.mark.slow
@pytest.mark.parametrize("change", ["model", "round", "study", "settings", "seed", "images", "pixels", "dp", "secret"])
def test_whatever_is_otherwise_has_other_noise_and_counts_again(site: Site, change: str) -> None:
    """Two models in one round with the same noise: their difference would be the bare gradients. The noise that the
    updates hold is compared through their signs, which agree in half of all places when it is another."""
    first = site.update(site.train())
    changes: dict[str, Any] = {
        "model": {"weights": {name: each + 0.001 for name, each in site.model.items()}}, "round": {"round": 2},
        "study": {"study": "t"}, "settings": {"settings": SETTINGS | {"confidence_threshold": 0.31}},
        "seed": {"seed": 2}, "dp": {"dp": replace(DP, delta=1e-6)}}.get(change, {})
    if change == "images":
        site.write(NUM_IMAGES - 1)
    if change == "pixels":
        site.write(NUM_IMAGES, changed=1)
    if change == "secret":
        (site.folder / "privacy" / "noise.key").unlink()
    other = site.update(site.train(**changes))
    assert len(site.ledger.lines()) == 2
    moved = (first != 0) & (other != 0)
    assert float((first.sign() == other.sign())[moved].double().mean()) < 0.6


@pytest.mark.slow
def test_a_round_that_is_done_again_tells_what_the_study_has_spent_by_now(site: Site) -> None:
    """It told what had been spent when it was first done, less than the coordinator knew of by then."""
    first, second = (site.train(round=number).metrics["epsilon"] for number in (1, 2))
    assert first < second
    site.train(study="t")
    assert site.train(task_id="s/1/0-train/a/1").metrics["epsilon"] == second
    assert len(site.ledger.lines()) == 3


@pytest.mark.slow
def test_a_study_spends_no_more_than_it_promises_when_it_goes_back(site: Site) -> None:
    """Its noise is for four rounds; after a rollback a round of other weights is a fifth. One that is done again with
    the same weights spends nothing, and is not refused."""
    promised = DifferentialPrivacy(target_epsilon=2.0, clip_norm=0.5)
    others = {name: each + 0.001 for name, each in site.model.items()}
    for round in range(1, 5):
        site.train(dp=promised, round=round)
    assert 1.9 < site.ledger.lines()[-1].study_epsilon <= 2.0
    with pytest.raises(NotPermitted) as caught:
        site.train(dp=promised, round=4, weights=others)
    assert str(caught.value).startswith(
        "This round would bring what the study 's' has spent of this site's images from epsilon 2 to 2.")
    assert "[privacy.dp] says target_epsilon = 2." in caught.value.text
    assert "another name" in caught.value.remedy
    site.train(dp=promised, round=4)
    assert len(site.ledger.lines()) == 4
    site.train(dp=promised, round=4, study="t", weights=others)
    site.train(dp=DP, round=4, weights=others)
    assert len(site.ledger.lines()) == 6, "another study, and one that promises nothing"


@pytest.mark.slow
def test_a_study_of_another_federation_takes_nothing_from_what_a_study_of_its_name_may_spend(site: Site) -> None:
    """The site's own limit counts both. The very same task there has the same bits, and counts for that study."""
    promised = DifferentialPrivacy(target_epsilon=2.0, clip_norm=0.5)
    here = [site.train(dp=promised, round=round, authority="aa") for round in range(1, 5)]
    others = {name: each + 0.001 for name, each in site.model.items()}
    with pytest.raises(NotPermitted, match="target_epsilon"):
        site.train(dp=promised, round=4, weights=others, authority="aa")
    assert site.train(dp=promised, round=1, authority="bb").payload == here[0].payload
    site.train(dp=promised, round=2, weights=others, authority="bb")
    found = site.ledger.lines()
    assert [line.authority for line in found] == ["aa"] * 4 + ["bb"] * 2
    assert [line.study_epsilon for line in found[4:]] == [line.study_epsilon for line in found[:2]]
    assert found[-1].epsilon > found[3].epsilon > found[3].study_epsilon - 1e-9
    with pytest.raises(NotPermitted, match="max_epsilon"):
        site.train(dp=promised, round=3, authority="bb", policy=PrivacyPolicy(max_epsilon=found[-1].epsilon))


@pytest.mark.slow
def test_what_an_earlier_version_has_counted_is_held_against_the_promise_of_every_federation(site: Site) -> None:
    promised = DifferentialPrivacy(target_epsilon=2.0, clip_norm=0.5)
    for round in range(1, 5):
        site.train(dp=promised, round=round)
    site.train(dp=promised, round=4, authority="aa")  # done again after the upgrade: it is there
    assert len(site.ledger.lines()) == 4
    with pytest.raises(NotPermitted, match="target_epsilon"):
        site.train(dp=promised, round=5, authority="aa")


@pytest.mark.slow
def test_numerics_that_give_other_bits_each_time_count_each_time(site: Site) -> None:
    for _ in range(2):
        site.train(numerics=Numerics(threads=1, deterministic=False))
    assert len(site.ledger.lines()) == 2


@pytest.mark.slow
def test_rounds_and_studies_add_up_and_what_goes_beyond_is_refused_before_training(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    spends = [site.train(round=number, study="s").metrics["epsilon"] for number in (1, 2)]
    assert 0 < spends[0] < spends[1]
    other = site.train(study="t")
    last = site.ledger.last()
    assert last is not None
    assert other.metrics["epsilon"] == spends[0], "the coordinator hears of its own study alone"
    assert last.epsilon > spends[1], "the site counts all"

    def never(*_: Any) -> None:
        raise AssertionError("it trained")

    monkeypatch.setattr(FedAvgTrainer, "train", never)
    policy = PrivacyPolicy(max_epsilon=last.epsilon)
    before = site.ledger.path.read_bytes()
    with pytest.raises(NotPermitted) as error:
        site.train(round=3, policy=policy)
    assert "[privacy] max_epsilon" in error.value.text
    assert "silo.toml" in error.value.text
    assert site.ledger.path.read_bytes() == before


def test_what_exactly_fits_is_not_refused(site: Site) -> None:
    epsilon = epsilon_of([NoisySteps(noise_multiplier=1.0, sampling_rate=1 / 3, steps=3)], 1e-5)
    site.train(policy=PrivacyPolicy(max_epsilon=epsilon))
    site.train(policy=PrivacyPolicy(max_epsilon=epsilon))  # the same again


def test_it_is_counted_before_training_begins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill during training must not give away a round."""
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FedAvgTrainer, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            site.train()
    assert len(site.ledger.lines()) == 1
    site.train()
    assert len(site.ledger.lines()) == 1


def test_a_damaged_ledger_stops_training(site: Site) -> None:
    site.train()
    site.ledger.path.write_text("{}\n")
    with pytest.raises(StorageDamaged, match=r"spent\.jsonl"):
        site.train(round=2)


@pytest.mark.parametrize(("changes", "said"), [
    ({"method": "semifl", "settings": {"confidence_threshold": 0.3}}, "not defined for the method semifl"),
    ({"method": "scaffold", "settings": {"objective": "fixmatch", "scenario": "labels-at-silo"}}, "scaffold"),
    ({"settings": SETTINGS | {"mask_mean": "kept"}}, "how many images are kept"),
    ({"settings": SETTINGS | {"clip_norm": 1.0}}, "clipped already"),
    ({"numerics": Numerics(threads=1, precision="bf16")}, "precision"),
    ({"augmentation": AugmentationSettings(policy="fedmatch_official", horizontal_flip=True)}, "who else is in it"),
    ({"phase": "statistics"}, "phase 'statistics'"),
    ({"dp": replace(DP, delta=0.5)}, "[privacy.dp] delta")])
def test_what_a_coordinator_may_not_ask_is_refused_here_whatever_it_checked_itself(
        site: Site, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NotPermitted) as error:
        site.train(**changes)
    assert said in error.value.line()
    assert site.ledger.lines() == ()


def test_batch_norm_is_refused_here_whatever_the_network_is_called(site: Site) -> None:
    model = replace(MODEL, normalisation="static_batch")
    with pytest.raises(NotPermitted, match="batch-norm layers"):
        site.train(model=model, weights=initial_model(model_builder(model, FORM), 1))
    assert site.ledger.lines() == ()


def test_images_whose_range_was_found_in_all_of_them_are_refused(site: Site) -> None:
    """A bright image decides what all others are divided by, 4095 or 65535: with a window, or the ends of each picture
    by itself, it does not."""
    np.savez(site.scans, train_images=(all_digits().images[:NUM_IMAGES] * 240).astype(np.uint16))
    with pytest.raises(NotPermitted, match="16 bits") as error:
        site.train()
    assert "window" in error.value.remedy
    assert site.ledger.lines() == ()
    for window in ("image", (2000.0, 4000.0)):
        site.train(image=replace(FORM, reading=Reading(window=window)))
    assert len(site.ledger.lines()) == 2


def test_labelled_images_of_their_own_are_looked_at_as_well(site: Site) -> None:
    labelled = site.folder / "labelled.npz"
    np.savez(labelled, images=(all_digits().images[:10] * 240).astype(np.uint16), labels=np.arange(10))
    with pytest.raises(NotPermitted, match="16 bits"):
        site.train(choice=JoinChoice(source=str(site.scans), labelled=str(labelled)))


def test_a_site_whose_own_delta_says_little_refuses(site: Site) -> None:
    with pytest.raises(NotPermitted, match=r"silo\.toml"):
        site.train(policy=PrivacyPolicy(delta=0.02))


@pytest.mark.slow
def test_a_target_is_kept_over_all_rounds_with_noise_of_the_silos_own(site: Site) -> None:
    for number in range(1, 5):
        trained = site.train(round=number, dp=DifferentialPrivacy(target_epsilon=2.0, clip_norm=0.5))
    assert 1.97 < trained.metrics["epsilon"] <= 2.0
    lines: tuple[Spending, ...] = site.ledger.lines()
    assert len({line.noise_multiplier for line in lines}) == 1


def test_a_trainer_that_ignores_it_is_found_before_anything_leaves(site: Site,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    train = FedAvgTrainer.train
    monkeypatch.setattr(FedAvgTrainer, "train", lambda self, task, *rest: train(self, replace(task, private=None),
                                                                               *rest))
    with pytest.raises(AssertionError, match="differential privacy"):
        site.train()


WHOLE = DifferentialPrivacy(unit="silo", noise_multiplier=1.0, clip_norm=0.5)


def masks() -> Masking:
    bound = bound_of_clip(0.5, noise_multiplier=1.0, silo_count=10, shares=4)
    bounds = (bound,) * len(initial_model(model_builder(MODEL, FORM), 1))
    return Masking(form=MaskForm(bits=20, bounds=bounds, silo_count=10), phase="train", threshold=7, seeds=())


def test_a_study_in_which_the_coordinator_adds_the_noise_counts_nothing(site: Site) -> None:
    trained = site.train(dp=WHOLE)
    assert site.ledger.lines() == ()
    assert "epsilon" not in trained.metrics


def test_behind_masks_a_silo_counts_one_step_of_half_the_noise_once(site: Site) -> None:
    """An image that is replaced moves a contribution of the clip's length by at most twice that."""
    secure = {"dp": WHOLE, "secure": b"masks", "settings": SETTINGS | {"weighting": "uniform"}}
    first = site.train(masking=masks(), **secure)
    assert site.train(masking=masks(), **secure).payload == first.payload
    line, = site.ledger.lines()
    expected = epsilon_of([NoisySteps(noise_multiplier=0.5, sampling_rate=1.0, steps=1)], 1e-5)
    assert (line.images, line.steps, line.sampling_rate, line.noise_multiplier) == (60, 1, 1.0, 0.5)
    assert line.epsilon == expected
    assert site.train(masking=masks(), **secure, study="t").payload != first.payload
    assert len(site.ledger.lines()) == 2


def test_a_budget_holds_behind_masks_as_well(site: Site) -> None:
    with pytest.raises(NotPermitted, match="max_epsilon"):
        site.train(masking=masks(), dp=WHOLE, secure=b"masks", settings=SETTINGS | {"weighting": "uniform"},
                   policy=PrivacyPolicy(max_epsilon=0.5))
    assert site.ledger.lines() == ()


IMAGES_SHARED = DifferentialPrivacy(noise_multiplier=2.0, clip_norm=0.5, honest_silos=5)


def step_masks(**changes: Any) -> Masking:
    one = 0.1 * 0.5 / 20
    bound = bound_of_step(one, images=20, noise_multiplier=2.0, silo_count=10, shares=5)
    bounds = (bound,) * len(initial_model(model_builder(MODEL, FORM), 1))
    return replace(Masking(form=MaskForm(bits=20, bounds=bounds, silo_count=10), phase="train", threshold=7, seeds=()),
                   **changes)


@pytest.mark.slow
def test_where_silos_share_the_noise_of_images_a_round_counts_one_sampled_step_of_all_their_noise(site: Site) -> None:
    secure = {"dp": IMAGES_SHARED, "secure": b"masks", "settings": SETTINGS | {"weighting": "uniform"}}
    first = site.train(masking=step_masks(), **secure)
    assert site.train(masking=step_masks(), **secure).payload == first.payload
    line, = site.ledger.lines()
    assert (line.images, line.steps, line.sampling_rate, line.noise_multiplier) == (60, 1, 1 / 3, 2.0)
    assert line.epsilon == epsilon_of([NoisySteps(noise_multiplier=2.0, sampling_rate=1 / 3, steps=1)], 1e-5)
    assert site.train(masking=step_masks(threshold=8), **secure).payload != first.payload
    assert len(site.ledger.lines()) == 2, "of another sum the noise is another, and it counts"


@pytest.mark.parametrize("changes", [{}, {"secure": b"masks"}])
def test_noise_that_silos_share_is_never_asked_of_an_update_in_the_clear(site: Site, changes: dict[str, Any]) -> None:
    with pytest.raises(NotPermitted, match="share noise behind masks"):
        site.train(dp=IMAGES_SHARED, settings=SETTINGS | {"weighting": "uniform"}, **changes)
    assert site.ledger.lines() == ()


def test_behind_masks_a_silo_that_diverges_adds_its_noise_and_tells_nobody(site: Site,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it does follows from its images, and a refusal has no noise."""
    def diverged(*_: Any) -> None:
        check_finite({"weight": torch.tensor(float("nan"))}, where="here")

    monkeypatch.setattr(FedAvgTrainer, "train", diverged)
    uniform = SETTINGS | {"weighting": "uniform"}
    found = site.train(dp=WHOLE, secure=b"masks", masking=masks(), settings=uniform)
    assert found.payload is not None
    assert not found.metrics
    with pytest.raises(ComputeFailed, match="diverged"):
        site.train(dp=WHOLE, settings=uniform)


def test_self_training_counts_as_the_steps_that_its_silos_take(site: Site) -> None:
    """60 images in steps of 20: three a pass."""
    own = {"scenario": "labels-at-coordinator", "unlabelled_batch": 20, "local_epochs": 2, "round_lr": 0.1,
           "mix_weight": 0.0, "silo_prior": "model", "local_logit_adjustment": 0.0, "model_prior": [0.1] * 10}
    assert site.train(method="self_training", settings=own).metrics.keys() == {"steps", "epsilon"}
    line, = site.ledger.lines()
    assert (line.images, line.steps, line.sampling_rate, line.noise_multiplier) == (60, 6, 1 / 3, 1.0)
    with pytest.raises(NotPermitted, match=r"silo_prior: the images of a silo would be tied"):
        site.train(method="self_training", settings=own | {"silo_prior": "estimated"})


@pytest.mark.parametrize("unit", ["silo", "example"])
def test_the_words_of_a_silo_have_its_share_of_the_noise(site: Site, unit: str) -> None:
    """sigma over the root of the shares, in units of the clip or of what one image moves at most; what it is added to
    is far smaller in any one word."""
    dp, masking = (WHOLE, masks()) if unit == "silo" else (IMAGES_SHARED, step_masks())
    found = site.train(dp=dp, secure=b"masks", masking=masking, settings=SETTINGS | {"weighting": "uniform"})
    assert found.payload is not None
    elements = sum(each.numel() for each in site.model.values())
    words = add_up([PayloadStore(site.folder / "outgoing").path(found.payload.digest)], masking.form, elements=elements)
    levels = (words[:elements] << np.uint32(12)).view(np.int32) >> np.int32(12)
    one = 0.5 if unit == "silo" else 0.05 * 0.5 / 20  # lr C / images of a step
    length = length_in_levels(one, bits=20, bound=masking.form.bounds[0], silo_count=10)
    share = 1.0 / math.sqrt(4) if unit == "silo" else 2.0 / math.sqrt(5)
    assert float(np.std(levels)) == pytest.approx(share * length, rel=0.1)
