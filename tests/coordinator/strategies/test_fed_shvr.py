"""Fed-SHVR's coordinator half: the oracles of whole rounds on quadratics, partial participation, what is sent, limits.

The quadratics go through the real strategy and, at the silos, the trainer's own correction and memory; only the
gradient is a quadratic's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.data.image_set import ImageSet
from semisilo.common.errors import BadConfiguration
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, SiloTask, TensorGroup, UpdateHeader
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.models.factory import initial_model
from semisilo.common.storage import checkpoint
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.batch_norm.statistics import STATISTICS
from semisilo.coordinator.strategies.fed_shvr import FedSHVRSiloState, FedSHVRState, FedSHVRStrategy, FedSHVRTally
from semisilo.coordinator.strategies.parts.count_cap import capped_counts
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.silo.trainers.fed_shvr import FedSHVRMemory, control_to_keep, received_correction
from tests.each_of import each_of

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="none")
ZERO = torch.zeros((), dtype=torch.float64)


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def _environment(build: Callable[[], nn.Module] = _plain, **changes: Any) -> Environment:
    values: dict[str, Any] = {"seed": 1, "rounds": 4, "num_silos": 2, "data": CoordinatorData(), "build_model": build,
                              "image": FORM, "augmentation": AUGMENTATION}
    return Environment(**{**values, **changes})


def _strategy(build: Callable[[], nn.Module] = _plain, **settings: Any) -> FedSHVRStrategy:
    return FedSHVRStrategy(FedSHVRSettings(**settings), _environment(build))


# Quadratics -----------------------------------------------------------------------------------------------------------

@dataclass
class Quadratics:
    """f_k(w) = a_k / 2 (w - b_k)^2 at silo "0", "1", ...; exact gradients, a scalar model."""

    a: Sequence[float]
    b: Sequence[float]
    tau: Sequence[int]
    sizes: Sequence[int] = (50, 50)
    settings: FedSHVRSettings = field(default_factory=lambda: FedSHVRSettings(lr=0.1))
    ignores_correction: bool = False
    dtype: torch.dtype = torch.float64
    summed: Sequence[Sequence[int]] = ()
    """Groups of silos whose updates are added up before the coordinator sees them; none where it sees each."""
    largest_share: float = 1.0
    """To which counts are cut before the coordinator's half sees them."""
    reference: int = 0
    """By which silos weigh in sums; 0: that of no sum."""

    def __post_init__(self) -> None:
        self.strategy = FedSHVRStrategy(self.settings, _environment(summed=bool(self.summed)))
        self.folded: dict[int, int] = {}
        self.state = self.strategy.start({"w": torch.tensor([1.0], dtype=self.dtype)})
        self.memories: dict[int, FedSHVRMemory | None] = {}
        self.kept: dict[int, FedSHVRSiloState | None] = {}
        self.round_number = 0
        self.lost: list[int] = []

    def corrections(self, silos: Sequence[int] | None = None) -> dict[int, tuple[SiloTask, Any]]:
        """What each silo would be asked now, and the correction that it would use."""
        result = {}
        for k in range(len(self.a)) if silos is None else silos:
            task = self.strategy.task(self.state, TRAIN, str(k), self.kept.get(k), round=self.round_number + 1)
            work = SiloTask(study="s", round=self.round_number + 1, rounds=9, phase="train", silo=str(k), seed=1,
                            settings=replace(self.settings, **task.settings), groups=task.groups, build_model=_plain,
                            augmentation=AUGMENTATION, image=FORM, last_folded_round=self.folded.get(k, 0))
            result[k] = work, received_correction(work, self.memories.get(k), num_examples=self.sizes[k],
                                                  steps=self.tau[k])
        return result

    def round(self, silos: Sequence[int] | None = None, *,
              gone: tuple[str, ...] = ()) -> tuple[float, list[float], list[float]]:
        """One round with these silos; others may be gone for good. Returns: w_{t+1}, the d_k that were used and the
        w_k."""
        asked = self.corrections(silos)
        self.round_number += 1
        answers, used, ends = {}, [], []
        self.lost = []
        for k, (work, corrected) in asked.items():
            d = ZERO.to(self.dtype) if corrected.d is None or self.ignores_correction else corrected.d["w"]
            w = self.state.w["w"]
            for _ in range(self.tau[k]):
                w = w - self.settings.lr * (self.a[k] * (w - self.b[k]) + d)
            difference = {"w": w - self.state.w["w"]}
            used.append(float(d))
            ends.append(float(w))
            self.lost += [k] if corrected.lost else []
            metrics = {"steps": float(self.tau[k]), "correction_lost": float(corrected.lost)}
            memory = control_to_keep(work, self.memories.get(k), corrected, difference, num_examples=self.sizes[k],
                                     steps=self.tau[k])
            answers[k] = UpdateHeader(str(k), self.sizes[k], metrics), difference, memory
            self.folded[k] = self.round_number
        if self.summed:
            self.memories |= {k: memory for k, (_, _, memory) in answers.items()}
            self._fold_sums({k: (answers[k][1], asked[k][1].totals(self.tau[k])) for k in answers})
            return float(self.state.w["w"]), used, ends
        cut = capped_counts([self.sizes[k] for k in answers], self.largest_share)
        answers = {k: (replace(header, num_examples=count, uncut_examples=header.num_examples), *others)
                   for (k, (header, *others)), count in zip(answers.items(), cut, strict=True)}
        tally: Any = self.strategy.begin(self.state, TRAIN, tuple(answers[k][0] for k in answers),
                                         round=self.round_number)
        tally = self.strategy.leave(TRAIN, tally, gone)
        for k, (header, difference, memory) in answers.items():
            groups = {"model": TensorGroup(difference, Meaning.DIFFERENCE)}
            tally, self.kept[k] = self.strategy.fold(self.state, tally, header, groups, self.kept.get(k))
            self.memories[k] = memory
        self.state = self.strategy.finish(self.state, TRAIN, tally, round=self.round_number)
        return float(self.state.w["w"]), used, ends

    def _fold_sums(self, answers: dict[int, tuple[dict[str, Tensor], dict[str, float]]]) -> None:
        """As the coordinator gets them behind masks, but for the rounding: means by images, of what was divided by its
        steps times their mean."""
        sums = []
        for number, group in enumerate(self.summed):
            there = [k for k in group if k in answers]
            if not there:
                continue
            images = sum(self.sizes[k] for k in there)
            means = {name: sum(self.sizes[k] * answers[k][1][name] for k in there) / images
                     for name in self.settings.sum_totals}
            per_step = self.settings.sums_per_step
            mean = sum((self.sizes[k] / images * answers[k][0]["w"] / (self.tau[k] if per_step else 1)
                        for k in there), start=ZERO) * (means["steps"] if per_step else 1.0)
            sums.append((UpdateHeader(f"group-{number}", images, means, weight_reference=self.reference), {"w": mean}))
        tally = self.strategy.begin(self.state, TRAIN, tuple(header for header, _ in sums), round=self.round_number)
        for header, mean in sums:
            tally, _ = self.strategy.fold(self.state, tally, header,
                                          {"model": TensorGroup(mean, Meaning.DIFFERENCE)}, None)
        self.state = self.strategy.finish(self.state, TRAIN, tally, round=self.round_number)

    def zero_sum(self) -> float:
        """sum p_k s_k d_k over the silos that are in the sum, of the corrections of the next round."""
        svr = self.settings.variant == "fed_svr"
        weights = {int(silo): member["examples"] for silo, member in self.state.members.items()}
        return sum(weights[k] / sum(weights.values()) * (self.tau[k] if svr else 1) * float(corrected.d["w"])
                   for k, (_, corrected) in self.corrections().items() if corrected.d is not None)


def _two(**settings: Any) -> Quadratics:
    return Quadratics([1.0, 2.0], [0.0, 3.0], [1, 3], settings=FedSHVRSettings(lr=0.1, **settings))


AT = pytest.mark.parametrize("at", ["silo", "coordinator"])


@AT
def test_oracle_v10_two_rounds_on_quadratics(at: Any) -> None:
    world = _two(correction_at=at)
    for expected in ((1.225333, [0.0, 0.0], [0.9, 1.976]), (1.431177, [-2.126667, 2.126667], [1.315467, 1.572464])):
        w, d, ends = world.round()
        assert w == pytest.approx(expected[0], abs=1e-5)
        assert d == pytest.approx(expected[1], abs=1e-5)
        assert ends == pytest.approx(expected[2], abs=1e-5)
    following = [float(corrected.d["w"]) for _, corrected in world.corrections().values()]
    assert following == pytest.approx([-2.254551, 2.254551], abs=1e-5)
    assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)
    assert world.state.c_sum is not None
    assert float(world.state.c_sum["w"]) / world.state.mass == pytest.approx(-1.029218, abs=1e-5)
    controls = [(kept.c if at == "coordinator" else memory.c)["w"].item()  # type: ignore[union-attr]
                for kept, memory in zip(world.kept.values(), world.memories.values(), strict=True)]
    assert controls == pytest.approx([1.225333, -3.283769], abs=1e-5)


@pytest.mark.slow
@AT
def test_what_a_silo_has_left_in_the_sum_goes_with_it(at: Any) -> None:
    """Minimum of the first two: 2. The third stays in the sum as long as it is a member, and its gradient of before."""
    ends = {}
    for gone in ((), ("2",)):
        world = Quadratics([1.0, 2.0, 1.0], [0.0, 3.0, -30.0], [1, 3, 2], sizes=(50, 50, 50),
                           settings=FedSHVRSettings(lr=0.1, correction_at=at))
        world.round()
        for _ in range(300):
            ends[gone], _, _ = world.round([0, 1], gone=gone)
    assert abs(ends[()] - 2.0) > 0.5, "a control"
    assert ends["2",] == pytest.approx(2.0, abs=1e-5)
    assert (world.state.correction_epoch, sorted(world.state.members)) == (2, ["0", "1"])


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "ignores", "w", "d", "ends"), [
    pytest.param({}, False, 2.0, [-2.0, 2.0], [2.0, 2.0], id="V11"),
    pytest.param({"correction_at": "coordinator"}, False, 2.0, [-2.0, 2.0], [2.0, 2.0], id="V11 at the coordinator"),
    pytest.param({"variant": "fed_sh"}, False, 1.857868, [0.0, 0.0], [1.672081, 2.415228], id="V12"),
    pytest.param({"variant": "fed_svr"}, False, 2.571429, [-2.571429, 0.857143], [2.571429, 2.571429], id="V13"),
    pytest.param({"variant": "fed_svr", "correction_at": "coordinator"}, False, 2.571429, [-2.571429, 0.857143],
                 [2.571429, 2.571429], id="V13 at the coordinator"),
    pytest.param({"variant": "fed_svr"}, True, 2.489796, [0.0, 0.0], [2.240816, 2.738776],
                 id="V14, plain averaging with no correction"),
])
def test_oracles_v11_to_v14_where_each_variant_comes_to_rest(settings: dict[str, Any], ignores: bool, w: float,
                                                             d: list[float], ends: list[float]) -> None:
    """After 300 rounds. Only normalised averaging with the correction ends at the optimum, 2."""
    world = _two(**settings)
    world.ignores_correction = ignores
    for _ in range(300):
        found = world.round()
    assert found[0] == pytest.approx(w, abs=1e-5)
    assert found[1] == pytest.approx(d, abs=1e-5)
    assert found[2] == pytest.approx(ends, abs=1e-5)
    if settings.get("variant") != "fed_sh" and not ignores:
        assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)


@AT
def test_oracle_v15_silos_that_come_late_and_stay_away(at: Any) -> None:
    world = Quadratics([1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [1, 3, 2], sizes=(50, 30, 20),
                       settings=FedSHVRSettings(lr=0.1, correction_at=at))
    for silos, w, d, ends in (
            ([0, 1], 1.104125, [0.0, 0.0], [0.9, 1.976]),
            ([0, 1, 2], 1.143606, [-1.595, 2.658333, 0.0], [1.153212, 1.380679, 0.801473]),
            ([1], 1.229481, [3.36084], [1.229481]),
            ([0, 2], 1.244896, [-1.343538, -1.752674], [1.240887, 1.256378])):
        found = world.round(silos)
        assert found[0] == pytest.approx(w, abs=1e-5)
        assert found[1] == pytest.approx(d, abs=1e-5)
        assert found[2] == pytest.approx(ends, abs=1e-5)
        assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)
    following = [float(corrected.d["w"]) for _, corrected in world.corrections().values()]
    assert following == pytest.approx([-1.38523, 3.491342, -1.773938], abs=1e-5)
    assert world.state.c_sum is not None
    assert float(world.state.c_sum["w"]) / 100 == pytest.approx(-0.155749, abs=1e-5)
    assert world.lost == []


@AT
@pytest.mark.parametrize("variant", ["fed_shvr", "fed_svr"])
def test_corrections_sum_to_zero_in_every_round_whoever_takes_part_also_in_float32(variant: Any, at: Any) -> None:
    """30 rounds in which the silos come and go at random; the identity holds to the rounding of d to float32."""
    world = Quadratics([1.0, 2.0, 0.5, 3.0], [0.0, 3.0, -2.0, 1.0], [1, 3, 2, 5], sizes=(50, 30, 20, 7),
                       settings=FedSHVRSettings(lr=0.05, variant=variant, correction_at=at), dtype=torch.float32)
    generator = torch.Generator().manual_seed(8)
    for _ in range(30):
        world.round(torch.randperm(4, generator=generator)[:2].sort().values.tolist())
        assert world.zero_sum() == pytest.approx(0.0, abs=1e-5)
        assert world.lost == []
    assert len(world.state.members) == 4
    assert world.state.mass == 107


@pytest.mark.slow
def test_partial_participation_with_the_correction_still_ends_at_the_optimum() -> None:
    """Two of three silos in every round: the optimum of sum p_k f_k is reached, without correction it is missed."""
    optimum = (0.5 * 1.0 * 0.0 + 0.3 * 2.0 * 3.0 - 0.2 * 0.5 * 2.0) / (0.5 * 1.0 + 0.3 * 2.0 + 0.2 * 0.5)
    ends = {}
    for variant in ("fed_shvr", "fed_sh"):
        world = Quadratics([1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [1, 3, 2], sizes=(50, 30, 20),
                           settings=FedSHVRSettings(lr=0.05, variant=variant))
        ends[variant] = [world.round([[0, 1], [1, 2], [0, 2]][number % 3])[0] for number in range(600)][-1]
    assert ends["fed_shvr"] == pytest.approx(optimum, abs=1e-6)
    assert abs(ends["fed_sh"] - optimum) > 0.01


# Lost and changed memories --------------------------------------------------------------------------------------------

def test_a_silo_that_lost_its_memory_goes_without_and_the_sum_is_begun_anew() -> None:
    """The round after goes without correction for everybody, then all is as if the study had begun there."""
    world = _two()
    world.round()
    world.memories[0] = None
    assert world.round()[1][0] == 0.0
    assert world.lost == [0]
    assert (world.state.correction_epoch, world.state.c_sum, world.state.mass, world.state.members) == (2, None, 0, {})
    fresh = _two()
    fresh.state = replace(fresh.state, w=world.state.w)
    for number in range(3):
        w, d, _ = world.round()
        assert (w, d) == fresh.round()[:2]
        assert d == [0.0, 0.0] or number > 0
    assert world.lost == []


def test_memory_of_a_round_that_was_not_folded_counts_as_lost() -> None:
    """What the silo keeps must be what the coordinator folded: here it kept a later round's."""
    world = _two()
    world.round()
    memory = world.memories[0]
    assert memory is not None
    for other in (replace(memory, round=7), replace(memory, epoch=7), replace(memory, num_examples=51),
                  replace(memory, c={"v": memory.c["w"]})):
        world.memories[0] = other
        assert world.corrections()[0][1].lost
    world.memories[0] = memory
    assert not world.corrections()[0][1].lost


def test_a_silo_with_more_images_than_before_has_the_sum_begun_anew() -> None:
    world = _two()
    world.round()
    world.sizes = (60, 50)
    world.round()
    assert world.lost == [0], "the silo sees it itself"
    assert world.state.correction_epoch == 2
    assert world.state.sizes == {"0": 60, "1": 50}


def test_the_coordinator_sees_a_changed_weight_even_if_the_silo_says_nothing() -> None:
    for variant, steps, sizes, renewed in (("fed_shvr", 1, 51, True), ("fed_shvr", 2, 50, False),
                                           ("fed_svr", 2, 50, True), ("fed_svr", 1, 50, False)):
        world = _two(variant=variant)
        world.round()
        header = UpdateHeader("0", sizes, {"steps": float(steps), "correction_lost": 0.0})
        tally = world.strategy.begin(world.state, TRAIN, (header,), round=2)
        assert bool(tally.renew) is renewed, (variant, steps, sizes)


@AT
def test_a_count_that_is_cut_by_who_else_answers_is_no_other_number_of_images(at: Any) -> None:
    """Silo 0 weighs 90, 20 and 30 in the average of these rounds, and in the sum of control variates 90 in all."""
    world = Quadratics([1.0, 2.0, 0.5, 1.5], [0.0, 3.0, -2.0, 1.0], [1, 3, 2, 2], sizes=(500, 20, 30, 40),
                       settings=FedSHVRSettings(lr=0.1, correction_at=at), largest_share=0.5)
    for silos in (None, [0, 1], [0, 2], [0, 3], None):
        world.round(silos)
        assert world.lost == []
        assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)
    assert (world.state.correction_epoch, world.state.mass) == (1, 180)
    assert world.state.members["0"]["examples"] == world.state.sizes["0"] == 90
    assert world.strategy.diagnostics(world.state)["correction_mass"] == 1.0
    world.sizes = (400, 20, 30, 40)
    world.round()
    assert world.state.correction_epoch == (2 if at == "silo" else 1)


def test_why_the_sum_is_begun_anew_is_told_in_what_the_silo_says() -> None:
    world = Quadratics([1.0, 2.0], [0.0, 3.0], [1, 3], sizes=(500, 20), largest_share=0.5)
    world.round()
    header = UpdateHeader("0", 20, {"steps": 1.0, "correction_lost": 0.0}, uncut_examples=501)
    assert world.strategy.begin(world.state, TRAIN, (header,), round=2).renew == "silo 0 has 501 images, no longer 500"
    before = {silo: {key: value for key, value in member.items() if key != "said"}
              for silo, member in world.state.members.items()}
    older = replace(world.state, members=before)
    assert not world.strategy.begin(older, TRAIN, (header,), round=2).renew, "an earlier version kept 20 alone"


def test_a_newcomer_cannot_have_lost_anything() -> None:
    """Only a silo in the sum can have it begun anew: what one says that is not in it is ignored."""
    world = Quadratics([1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [1, 3, 2], sizes=(50, 30, 20))
    world.round([0, 1])
    header = UpdateHeader("2", 20, {"steps": 2.0, "correction_lost": 1.0})
    assert not world.strategy.begin(world.state, TRAIN, (header,), round=2).renew


def test_at_the_coordinator_a_changed_number_of_images_only_changes_the_weight() -> None:
    """The old control variate is taken out with its old weight, so the sum goes on."""
    world = _two(correction_at="coordinator")
    world.round()
    world.sizes = (70, 50)
    world.round()
    assert world.state.correction_epoch == 1
    assert world.state.mass == 120
    assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)
    assert all(memory is None for memory in world.memories.values()), "silos keep nothing"


def test_at_the_coordinator_a_silo_that_was_away_too_long_starts_again_without_correction() -> None:
    world = Quadratics([1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [1, 3, 2], sizes=(50, 30, 20),
                       settings=FedSHVRSettings(lr=0.1, correction_at="coordinator", correction_max_age_rounds=2))
    world.round()
    world.round([0, 1])
    assert "correction" in world.strategy.task(world.state, TRAIN, "2", world.kept[2], round=3).groups
    world.round([0, 1])
    before = float(world.state.w["w"])
    _, d, ends = world.round([1, 2])
    assert d[0] != 0.0
    assert d[1] == 0.0
    assert world.kept[2] is not None
    assert float(world.kept[2].c["w"]) == pytest.approx((before - ends[1]) / (0.1 * 2)), "its raw gradient alone"
    assert world.state.mass == 100, "its old control variate was taken out"
    assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)


def test_at_the_coordinator_what_is_kept_for_a_silo_may_be_lost() -> None:
    """For example after the silo was removed and invited again."""
    world = _two(correction_at="coordinator")
    world.round()
    world.kept[1] = None
    assert world.round()[1][1] == 0.0
    assert (world.state.correction_epoch, world.state.c_sum) == (2, None)
    assert world.round()[1] == [0.0, 0.0]
    world.round()
    assert world.zero_sum() == pytest.approx(0.0, abs=1e-9)


# A round's parts ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("variant", ["fed_shvr", "fed_sh", "fed_svr"])
@pytest.mark.parametrize("groups", [((0, 1, 2, 3),), ((0, 2), (1, 3))])
def test_added_up_behind_masks_every_round_is_what_it_is_in_the_clear(variant: Any, groups: Any) -> None:
    def world(summed: Any) -> Quadratics:
        return Quadratics([1.0, 2.0, 0.5, 1.5], [0.0, 3.0, -1.0, 2.0], [1, 3, 2, 5], [50, 20, 30, 40],
                          settings=FedSHVRSettings(lr=0.1, variant=variant), summed=summed)

    clear, sums = world(()), world(groups)
    for number, silos in enumerate(((0, 1, 2), (0, 1, 2, 3), (1, 3), (0, 2), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))):
        if number == 4:  # silo 1 has lost what it kept: all begin anew in the round after
            clear.memories[1] = sums.memories[1] = None
        (w, d, _), (found, used, _) = clear.round(silos), sums.round(silos)
        assert found == pytest.approx(w, rel=1e-12), number
        assert used == pytest.approx(d, rel=1e-9, abs=1e-12), number
        assert sums.lost == clear.lost == ([1] if number == 4 and variant != "fed_sh" else [])
    assert sums.state.correction_epoch == clear.state.correction_epoch == (1 if variant == "fed_sh" else 2)
    assert sums.state.mass == pytest.approx(clear.state.mass)
    assert not sums.state.members, "nobody knows who is in the sum"


def test_behind_masks_another_count_to_which_all_are_cut_begins_the_sum_anew() -> None:
    """What a silo has in the sum has its weight then, and would be taken out with another one."""
    world = Quadratics([1.0, 2.0, 0.5], [0.0, 3.0, -1.0], [1, 3, 2], [50, 20, 30], summed=((0, 1, 2),))
    for reference, epoch in ((50, 1), (50, 1), (40, 2), (40, 2), (45, 3)):
        world.reference = reference
        world.round()
        assert (world.state.correction_epoch, world.state.weight_reference) == (epoch, reference)
    world.round()
    header = UpdateHeader("all", 100, {"steps": 2.0, "joins": 0.0, "lost": 0.0}, weight_reference=46)
    earlier = replace(world.state, weight_reference=0)
    assert world.strategy.begin(earlier, TRAIN, (header,), round=9).renew == (
        "an earlier version has kept no count of images that none weighs more than")
    assert not world.strategy.begin(replace(earlier, c_sum=None), TRAIN, (header,), round=9).renew, "there is no sum"
    assert world.strategy.begin(world.state, TRAIN, (header,), round=9).renew == (
        "the count of images that none weighs more than is 46, no longer 45")


def test_behind_masks_all_silos_are_told_alike() -> None:
    world = Quadratics([1.0, 2.0, 0.5], [0.0, 3.0, -1.0], [1, 3, 2], [50, 20, 30], summed=((0, 1, 2),))
    world.round((0, 1))
    told = [world.strategy.task(world.state, TRAIN, str(k), None, round=2).settings for k in range(3)]
    assert told == [{"correction_epoch": 1, "correction_since": 1}] * 3
    _, used, _ = world.round()
    assert used[0] != 0
    assert used[1] != 0
    assert used[2] == 0, "a newcomer goes without"


def test_behind_masks_the_coordinator_keeps_nothing_of_single_silos() -> None:
    with pytest.raises(BadConfiguration, match="correction_at = \"coordinator\" keeps what each silo has sent"):
        FedSHVRStrategy(FedSHVRSettings(correction_at="coordinator"), _environment(summed=True))


def _started(strategy: FedSHVRStrategy, build: Callable[[], nn.Module] = _plain) -> FedSHVRState:
    return strategy.start(initial_model(build, 1))


def _folded(strategy: FedSHVRStrategy, state: FedSHVRState, factors: dict[str, float], *, round: int = 1,
            steps: dict[str, int] | None = None, sizes: dict[str, int] | None = None) -> FedSHVRState:
    headers = tuple(UpdateHeader(silo, (sizes or {}).get(silo, 10), {"steps": float((steps or {}).get(silo, 4))})
                    for silo in sorted(factors))
    tally = strategy.begin(state, TRAIN, headers, round=round)
    for header in headers:
        delta = {name: torch.full_like(tensor, factors[header.silo]) for name, tensor in state.w.items()}
        groups = {"model": TensorGroup(delta, Meaning.DIFFERENCE)}
        tally, _ = strategy.fold(state, tally, header, groups, None)
    return strategy.finish(state, TRAIN, tally, round=round)


def _same(a: dict[str, Tensor] | None, b: dict[str, Tensor] | None) -> bool:
    if a is None or b is None:
        return a is b
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_equal_steps_and_no_correction_are_fedavg_by_size() -> None:
    for variant in ("fed_shvr", "fed_sh", "fed_svr"):
        strategy = _strategy(variant=variant)
        state = _started(strategy)
        after = _folded(strategy, state, {"a": 0.1, "b": 0.5}, sizes={"a": 30, "b": 10})
        for name, tensor in after.w.items():
            assert torch.allclose(tensor, state.w[name] + 0.75 * 0.1 + 0.25 * 0.5, atol=1e-6), (variant, name)


def test_unequal_steps_weigh_mean_gradients_or_distances() -> None:
    """p = (0.75, 0.25), tau = (2, 8), tau_bar = 3.5: factors 0.75 * 3.5 / 2 and 0.25 * 3.5 / 8, or just p."""
    for variant, expected in (("fed_sh", 0.75 * 3.5 / 2 * 0.1 + 0.25 * 3.5 / 8 * 0.4), ("fed_svr", 0.175)):
        strategy = _strategy(variant=variant)
        state = _started(strategy)
        after = _folded(strategy, state, {"a": 0.1, "b": 0.4}, sizes={"a": 30, "b": 10}, steps={"a": 2, "b": 8})
        assert after.tau_bar == 3.5
        for name, tensor in after.w.items():
            assert torch.allclose(tensor, state.w[name] + expected, atol=1e-6), (variant, name)


def test_without_accepted_updates_nothing_changes() -> None:
    strategy = _strategy()
    state = _folded(strategy, _started(strategy), {"a": 0.1})
    after = _folded(strategy, state, {}, round=2)
    assert after == replace(state, round=2)
    assert after.w is state.w


def test_a_task_carries_the_model_and_from_the_second_round_on_the_mean_control() -> None:
    strategy = _strategy()
    state = _started(strategy)
    first = strategy.task(state, TRAIN, "a", None, round=1)
    assert set(first.groups) == {"model"}
    assert first.settings == {"correction_epoch": 1, "correction_round": 0}
    later = _folded(strategy, state, {"a": 0.1}, round=5)
    one, other = (strategy.task(later, TRAIN, silo, None, round=6) for silo in ("a", "b"))
    assert set(one.groups) == {"model", "correction"}
    assert all(one.groups[name] is other.groups[name] for name in one.groups), "the same object is encoded once"
    assert one.settings == {"correction_epoch": 1, "correction_round": 5}
    assert other.settings == {"correction_epoch": 1, "correction_round": 0}
    sent = one.groups["correction"]
    assert sent.meaning is Meaning.VALUES
    assert tensors.specs(sent.tensors) == tensors.specs(later.w)
    for tensor in sent.tensors.values():  # Delta = -0.1 / (lr * 4) of the one silo
        assert torch.allclose(tensor, torch.full_like(tensor, -0.1 / 0.04))


def test_fed_sh_sends_no_correction_and_keeps_no_sum() -> None:
    strategy = _strategy(variant="fed_sh")
    state = _folded(strategy, _started(strategy), {"a": 0.1})
    assert state.c_sum is None
    assert state.mass == 0
    task = strategy.task(state, TRAIN, "a", None, round=2)
    assert set(task.groups) == {"model"}
    assert task.settings == {}
    assert set(strategy.diagnostics(state)) == {"tau_bar", "alpha0"}


def test_an_update_must_be_a_difference_to_the_model_that_was_sent() -> None:
    strategy = _strategy()
    state = _started(strategy)
    layout = strategy.expects(state, TRAIN, round=1)["model"]
    assert layout.meaning is Meaning.DIFFERENCE
    assert layout.base == tensors.digest(strategy.task(state, TRAIN, "a", None, round=1).groups["model"].tensors)
    assert layout.tensors == tensors.specs(state.w)


def test_groups_and_settings_that_are_sent_are_declared() -> None:
    spec = METHODS["fed_shvr"]
    for settings in ({}, {"correction_at": "coordinator"}):
        strategy = _strategy(_net, **settings)
        state = replace(_started(strategy, _net), batch_norm={"1.mean": torch.zeros(4), "1.var": torch.ones(4)})
        state = _folded(strategy, state, {"a": 0.1})
        kept = FedSHVRSiloState(c=state.w, epoch=1, round=1)
        task = strategy.task(state, TRAIN, "a", kept, round=2)
        assert set(task.groups) == set(spec.down) == {"model", "correction", "batch_norm"}
        assert set(task.settings) <= set(spec.set_by_strategy)
        assert set(strategy.expects(state, TRAIN, round=2)) | set(strategy.expects(state, STATISTICS, round=2)) \
            == set(spec.up)
    assert set(spec.counts) <= set(spec.metrics)


def _images(count: int) -> ImageSet:
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, tuple(map(str, range(count))))


def test_silos_measure_statistics_where_the_coordinator_has_no_images() -> None:
    strategy = _strategy(_net)
    state = _started(strategy, _net)
    assert strategy.phases(state, 1) == (STATISTICS, TRAIN, STATISTICS)
    assert strategy.phases(state, 2) == (TRAIN, STATISTICS)
    assert state.batch_norm == {}
    assert set(strategy.task(state, STATISTICS, "a", None, round=1).groups) == {"model"}
    sent = {"1.mean": torch.full((4,), 2.0), "1.var": torch.full((4,), 3.0), "1.count": torch.tensor([500])}
    tally = strategy.begin(state, STATISTICS, (UpdateHeader("a", 1),), round=1)
    kept = FedSHVRSiloState(c=state.w, epoch=1, round=1)
    tally, after = strategy.fold(state, tally, UpdateHeader("a", 1), {"batch_norm": TensorGroup(sent)}, kept)
    assert after is kept
    state = strategy.finish(state, STATISTICS, tally, round=1)
    assert state.batch_norm["1.mean"].tolist() == [2.0] * 4
    trained = _folded(strategy, state, {"a": 0.1})
    assert _same(trained.batch_norm, state.batch_norm), "until silos have measured the new model"
    assert set(strategy.task(trained, TRAIN, "a", None, round=2).groups) == {"model", "batch_norm", "correction"}


def test_the_coordinator_measures_statistics_where_it_has_images() -> None:
    data = CoordinatorData(validation=_images(30))
    strategy = FedSHVRStrategy(FedSHVRSettings(), _environment(_net, data=data))
    state = _started(strategy, _net)
    assert strategy.phases(state, 1) == (TRAIN,)
    after = _folded(strategy, state, {"a": 0.1})
    assert set(after.batch_norm) == {"1.mean", "1.var"}
    assert not torch.equal(after.batch_norm["1.mean"], state.batch_norm["1.mean"])
    parameters, statistics = strategy.model(after)
    assert parameters is after.w
    assert statistics is after.batch_norm


def test_the_local_model_of_a_silo_is_what_it_sent_on_top_of_the_received_one() -> None:
    strategy = _strategy()
    state = _started(strategy)
    delta = {name: torch.full_like(tensor, 0.5) for name, tensor in state.w.items()}
    parameters, _ = strategy.local_model(state, {"model": TensorGroup(delta, Meaning.DIFFERENCE)}, None)
    assert all(torch.equal(parameters[name], state.w[name] + 0.5) for name in state.w)
    with pytest.raises(KeyError):
        strategy.local_model(state, {}, None)


def test_diagnostics_tell_what_the_correction_is_made_of() -> None:
    """sigmoid ramp at the first local epoch of round 3, which is 5 of 50; norm of C by hand; 10 of 40 images are in."""
    strategy = _strategy(alpha0=2.0)
    state = _folded(strategy, _started(strategy), {"a": 0.1}, round=3)
    state = replace(state, sizes={"a": 10, "b": 30})
    found = strategy.diagnostics(state)
    size = sum(tensor.numel() for tensor in state.w.values())
    assert found == pytest.approx({
        "tau_bar": 4.0, "alpha0": 2.0 * 2.718281828 ** (-5 * 0.9 ** 2), "correction_epoch": 1.0,
        "correction_silos": 1.0, "correction_mass": 0.25, "correction_norm": 2.5 * size ** 0.5}, rel=1e-5)
    assert strategy.diagnostics(_started(strategy))["correction_mass"] == 0.0


@AT
def test_state_kept_and_tally_survive_the_disk_bit_for_bit(at: Any, tmp_path: Path) -> None:
    """A study that goes through the disk between any two rounds ends with the same bits."""
    def through_the_disk(value: Any, name: str) -> Any:
        if value is None:
            return None
        checkpoint.save(tmp_path / name, value)
        return checkpoint.load(tmp_path / name, type(value))

    whole, torn = (_two(correction_at=at) for _ in range(2))
    for _ in range(4):
        torn.strategy = FedSHVRStrategy(torn.settings, _environment())
        torn.state = through_the_disk(torn.state, "state")
        torn.kept = {k: through_the_disk(kept, f"kept{k}") for k, kept in torn.kept.items()}
        torn.memories = {k: through_the_disk(memory, f"memory{k}") for k, memory in torn.memories.items()}
        assert whole.round() == torn.round()
    for entry in fields(FedSHVRState):
        mine, theirs = getattr(whole.state, entry.name), getattr(torn.state, entry.name)
        assert mine == theirs or _same(mine, theirs), entry.name
    tally = whole.strategy.begin(whole.state, TRAIN, (UpdateHeader("0", 50, {"steps": 1.0}),), round=5)
    checkpoint.save(tmp_path / "tally", tally)
    found = checkpoint.load(tmp_path / "tally", FedSHVRTally)
    assert found.weights == tally.weights
    assert _same(found.c_sum, tally.c_sum)


def test_labels_at_the_coordinator_is_refused_by_name() -> None:
    settings = FedSHVRSettings(scenario="labels-at-coordinator")  # type: ignore[arg-type]
    with pytest.raises(BadConfiguration, match="'labels-at-coordinator'"):
        FedSHVRStrategy(settings, _environment())


@each_of(("settings", "says"), [
    ({"lr": 0.0}, "lr"), ({"alpha0": -1.0}, "alpha0"), ({"alpha1": float("nan")}, "alpha1"),
    ({"ramp_epochs": 0}, "ramp_epochs"),
    ({"unlabelled_batch": 0}, "unlabelled_batch"), ({"correction_max_age_rounds": 3}, "correction_max_age_rounds"),
    ({"variant": "fed_sh", "correction_at": "coordinator"}, "correction_at"),
    ({"alpha0_ramp": "none", "ramp_epochs": 20}, "ramp_epochs"),
    ({"r2_reduction": "sum", "alpha2": 0.0}, "r2_reduction"),
])
def test_settings_that_cannot_be_honoured_are_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FedSHVRSettings(**settings)


def test_the_objective_weighs_the_mean_penalty_by_the_batch_where_silos_sum_it() -> None:
    """E[alpha2 * sum over B_u images] = alpha2 B_u * mean: what the stationarity gap and the loss surface are of."""
    assert FedSHVRSettings().penalty_of_mean == 0.1
    assert FedSHVRSettings(r2_reduction="sum", unlabelled_batch=8).penalty_of_mean == pytest.approx(0.8)


def test_the_strategy_is_found_by_name() -> None:
    assert load_strategy("fed_shvr") is FedSHVRStrategy
