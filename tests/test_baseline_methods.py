"""The baselines as whole methods, both halves in one process: they learn, and in their limits they are one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.augmentation import augment
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.data.readers import read_images
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.learning.losses import cross_entropy
from semisilo.common.methods import check_metrics, find_method
from semisilo.common.methods.contract import CoordinatorData, Environment, SiloData, SiloTask, Update, UpdateHeader
from semisilo.common.models.factory import initial_model
from semisilo.coordinator.compute.evaluation import measure_model
from semisilo.coordinator.strategies import load_strategy
from semisilo.silo.trainers import load_trainer

DIGITS = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.38,))
SMALL = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
PLAIN = AugmentationSettings(policy="none")


def _digits_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 16, 3), StaticBatchNorm(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(144, 10))


def _small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


class Study:
    """Both halves of a method, without network: tasks and updates are handed over as they are, memory as it is folded.
    """

    def __init__(self, method: str, environment: Environment, silos: Mapping[str, SiloData], **settings: Any) -> None:
        self.spec = find_method(method)
        self.settings = from_dict(self.spec.settings, settings)
        self.environment, self.silos = environment, silos
        self.strategy: Any = load_strategy(method)(self.settings, environment)
        self.trainer: Any = load_trainer(method)()
        self.state = self.strategy.start(initial_model(environment.build_model, environment.seed))
        self.memory: dict[str, Any] = {}
        self.answers: dict[str, Update] = {}

    def round(self, number: int) -> None:
        for phase in self.strategy.phases(self.state, number):
            updates = {}
            for silo in sorted(self.silos):
                task = self.strategy.task(self.state, phase, silo, None, round=number)
                assert set(task.groups) <= set(self.spec.down)
                settings = from_dict(self.spec.settings, {**to_dict(self.settings), **to_dict(dict(task.settings))})
                asked = SiloTask(study="s", round=number, rounds=self.environment.rounds, phase=phase.name, silo=silo,
                                 seed=self.environment.seed, settings=settings, groups=task.groups,
                                 build_model=self.environment.build_model, augmentation=self.environment.augmentation,
                                 image=self.environment.image)
                update, keep = self.trainer.train(asked, self.silos[silo], self.memory.get(silo))
                check_metrics(self.spec, update.metrics, update=not update.abstention)
                if not update.abstention:
                    updates[silo] = update
                    self.memory[silo] = keep if phase.name == "train" else self.memory.get(silo)
                if phase.name == "train":
                    self.answers[silo] = update
            headers = tuple(UpdateHeader(silo, update.num_examples, update.metrics)
                            for silo, update in updates.items())
            expected = self.strategy.expects(self.state, phase, round=number)
            tally = self.strategy.begin(self.state, phase, headers, round=number)
            for header in headers:
                groups = updates[header.silo].groups
                assert {name: (group.meaning, group.base, tensors.specs(group.tensors))
                        for name, group in groups.items()} \
                    == {name: (layout.meaning, layout.base, layout.tensors) for name, layout in expected.items()}
                tally, _ = self.strategy.fold(self.state, tally, header, groups, None)
            self.state = self.strategy.finish(self.state, phase, tally, round=number)

    def run(self) -> None:
        for number in range(1, self.environment.rounds + 1):
            self.round(number)

    def accuracy(self) -> float:
        parameters, statistics = self.strategy.model(self.state)
        return measure_model(self.environment, tuple("0123456789"), parameters, statistics).metrics["accuracy"]


def _digits() -> tuple[ImageSet, ImageSet]:
    train, test = (read_images(f"digits#{part}", size=8, channels=1, labelled=True).images
                   for part in ("train", "test"))
    return train, test


def _digits_study(method: str, *, rounds: int = 3, at_coordinator: bool = False, **settings: Any) -> Study:
    """Three silos with 300 images each; 20 labels of every class are at the coordinator, or spread over the silos."""
    train, test = _digits()
    labels_N = train.labels_N
    assert labels_N is not None
    first = torch.cat([torch.nonzero(labels_N == label).flatten()[:20] for label in range(10)])
    rest = torch.tensor(sorted(set(range(len(train))) - set(first.tolist())))[:900]
    labelled = train.subset(first)
    silos = {name: SiloData(labelled=None if at_coordinator else labelled.subset(torch.arange(200)[index::3]),
                            unlabelled=train.subset(rest[index::3]), test=test)
             for index, name in enumerate("abc")}
    data = CoordinatorData(labelled=labelled if at_coordinator else None, test=test)
    environment = Environment(seed=1, rounds=rounds, num_silos=3, data=data, build_model=_digits_net, image=DIGITS,
                              augmentation=AugmentationSettings(policy="small", without=("Invert", "Solarize")))
    scenario = {} if method == "local" else {
        "scenario": "labels-at-coordinator" if at_coordinator else "labels-at-silo"}
    return Study(method, environment, silos, **scenario, **settings)


def _small(count: int, seed: int) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(str(index) for index in range(count)))


def _small_study(method: str, silos: Mapping[str, SiloData], *, labelled: ImageSet | None = None,
                 **settings: Any) -> Study:
    environment = Environment(seed=1, rounds=3, num_silos=len(silos), data=CoordinatorData(labelled=labelled),
                              build_model=_small_net, image=SMALL, augmentation=PLAIN)
    return Study(method, environment, silos, lr=0.1, **settings)


SILOS = {name: SiloData(labelled=_small(count, count), unlabelled=_small(2 * count, 50 + count))
         for name, count in (("a", 9), ("b", 12), ("c", 20))}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "settings"), [
    ("fedavg", {"objective": "sl", "lambda_s": 1.0}),
    pytest.param("fedavg", {"objective": "sl", "lambda_s": 1.0, "global_momentum": 0.5, "persist_local_momentum": True},
                 marks=pytest.mark.slow),
    pytest.param("fedavg", {"objective": "fixmatch", "lambda_s": 1.0}, marks=pytest.mark.slow),
    ("fedprox", {"objective": "uda", "lambda_s": 1.0}),
    pytest.param("fedavg", {"objective": "pseudo_label", "steps_rule": "fed_shvr", "labelled_batch": 32,
                            "unlabelled_batch": 32}, marks=pytest.mark.slow),
    pytest.param("fedavg", {"objective": "mean_teacher", "teacher": "local", "steps_rule": "fed_shvr",
                            "unlabelled_batch": 32}, marks=pytest.mark.slow),
])
def test_with_labels_at_silos_digits_are_learnt(method: str, settings: dict[str, Any]) -> None:
    """60 to 70 labels at each of three silos: far above the 10 % of guessing after three rounds."""
    study = _digits_study(method, momentum=0.9, **{"lr": 0.05, **settings})
    study.run()
    assert study.accuracy() > 0.5
    if settings["objective"] != "sl":
        assert {"label_ratio", "pseudo_label_accuracy"} <= set(study.answers["a"].metrics)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "settings"), [
    ("fedavg", {"objective": "fixmatch", "lambda_s": 1.0}),
    pytest.param("fedprox", {"objective": "uda", "lambda_s": 1.0}, marks=pytest.mark.slow),
    pytest.param("fedavg", {"objective": "pseudo_label"}, marks=pytest.mark.slow),
    pytest.param("fedprox", {"objective": "mean_teacher"}, marks=pytest.mark.slow)])
def test_with_labels_at_the_coordinator_digits_are_learnt(method: str, settings: dict[str, Any]) -> None:
    """200 labels at the coordinator; the round's model is the silos' average, not trained on labels since."""
    study = _digits_study(method, at_coordinator=True, coordinator_epochs=3, unlabelled_batch=32, lr=0.05, momentum=0.9,
                          **settings)
    study.run()
    assert study.accuracy() > 0.5
    assert "labelled_loss" not in study.answers["a"].metrics


def test_a_silo_alone_learns_and_reports_what_its_own_model_can() -> None:
    study = _digits_study("local", objective="sl", lambda_s=1.0, lr=0.05, momentum=0.9)
    initial = tensors.digest(study.strategy.model(study.state)[0])
    study.run()
    assert study.strategy.diagnostics(study.state)["local_accuracy"] > 0.5
    assert tensors.digest(study.strategy.model(study.state)[0]) == initial


def test_one_silo_with_all_data_and_full_batches_is_centralised_training() -> None:
    """One epoch of one full batch per round: three rounds are three steps of plain gradient descent on all images."""
    images = _small(30, 7)
    study = _small_study("fedavg", {"a": SiloData(labelled=images)}, objective="sl", lambda_s=1.0, labelled_batch=30)
    model = _small_net()
    tensors.load_into(model, initial_model(_small_net, 1))
    x, y = augment.to_input(images.images_NCHW, SMALL), images.labels_N
    assert y is not None
    for number in (1, 2, 3):
        study.round(number)
        gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for w, gradient in zip(model.parameters(), gradients, strict=True):
                w -= 0.1 * gradient
        for name, w in model.named_parameters():
            assert torch.allclose(study.state.w[name], w, atol=1e-6), (number, name)


@pytest.mark.parametrize("objective", ["sl", "fixmatch", "mean_teacher"])
def test_fedprox_without_mu_is_fedavg_with_a_uniform_mean_bit_for_bit(objective: str) -> None:
    prox = _small_study("fedprox", SILOS, objective=objective, mu=0.0)
    plain = _small_study("fedavg", SILOS, objective=objective, weighting="uniform")
    pulled = _small_study("fedprox", SILOS, objective=objective, mu=0.5)
    for study in (prox, plain, pulled):
        study.run()
    assert tensors.digest(prox.state.w) == tensors.digest(plain.state.w) != tensors.digest(pulled.state.w)


def test_scaffold_is_fed_shvr_where_silos_are_equally_large_and_all_take_part() -> None:
    """baselines.md section 2: eta_g = 1, p_k = 1/K, equal tau. On labels alone, so that both have one objective."""
    silos = {name: SiloData(labelled=_small(12, seed)) for name, seed in (("a", 1), ("b", 2), ("c", 3))}
    shared = {"local_epochs": 3, "labelled_batch": 4}
    scaffold = _small_study("scaffold", silos, objective="sl", lambda_s=1.0, steps_rule="fed_shvr", **shared)
    shvr = _small_study("fed_shvr", silos, **shared)
    fed_sh = _small_study("fed_shvr", silos, variant="fed_sh", **shared)
    for study in (scaffold, shvr, fed_sh):
        study.run()
    assert scaffold.answers["a"].metrics["steps"] == shvr.answers["a"].metrics["steps"] == 9
    for name, w in scaffold.state.w.items():
        assert torch.allclose(w, shvr.state.w[name], atol=1e-6), name
    assert any(not torch.allclose(w, fed_sh.state.w[name], atol=1e-4) for name, w in scaffold.state.w.items())


def test_a_silo_alone_is_not_touched_by_the_others() -> None:
    together = _small_study("local", SILOS, objective="pseudo_label", momentum=0.9)
    apart = _small_study("local", {"b": SILOS["b"]}, objective="pseudo_label", momentum=0.9)
    together.run()
    apart.run()
    assert together.memory["b"].round == 3
    for part in ("model", "momentum"):
        assert tensors.digest(getattr(together.memory["b"], part)) == tensors.digest(getattr(apart.memory["b"], part))


def test_a_local_teacher_is_each_silos_own_over_the_rounds() -> None:
    """With decay 1 it stays what the silo was sent first."""
    study = _small_study("fedavg", SILOS, objective="mean_teacher", teacher="local", ema_decay=1.0)
    study.run()
    first = tensors.digest(initial_model(_small_net, 1))
    assert {tensors.digest(memory.teacher) for memory in study.memory.values()} == {first}
    assert tensors.digest(study.state.w) != first


@pytest.mark.parametrize("scenario", ["labels-at-silo", "labels-at-coordinator"])
def test_silos_without_images_abstain_and_weigh_nothing(scenario: str) -> None:
    some = dict(SILOS) if scenario == "labels-at-silo" else {
        name: SiloData(unlabelled=data.unlabelled) for name, data in SILOS.items()}
    labelled = None if scenario == "labels-at-silo" else _small(12, 5)
    finals = []
    for silos in (some, {**some, "d": SiloData()}):
        study = _small_study("fedavg", silos, labelled=labelled, scenario=scenario, objective="pseudo_label")
        study.run()
        finals.append(tensors.digest(study.state.w))
    assert finals[0] == finals[1]
    assert study.answers["d"].abstention == "no_data"


def test_a_round_in_which_all_abstain_leaves_the_model_bit_for_bit() -> None:
    study = _small_study("fedavg", {"a": SiloData(unlabelled=_small(5, 1)), "b": SiloData()}, objective="sl")
    study.run()
    assert [study.answers[silo].abstention for silo in "ab"] == ["no_labelled_data", "no_data"]
    assert tensors.digest(study.state.w) == tensors.digest(initial_model(_small_net, 1))
