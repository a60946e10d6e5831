"""SCAFFOLD's coordinator half with the silos' own control variates: its limits, partial participation, lost memory.

The silos' gradients are a quadratic's; control variates and corrections are those of the real halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import CoordinatorData, Environment, Meaning, SiloTask, TensorGroup, UpdateHeader
from semisilo.common.methods.fed_shvr import FedSHVRSettings
from semisilo.common.methods.scaffold import SCAFFOLD, ScaffoldSettings
from semisilo.common.storage import checkpoint
from semisilo.coordinator.compute.spooled_updates import SpooledUpdates
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.strategies.fedavg import FedAvgStrategy
from semisilo.coordinator.strategies.parts.phases import TRAIN
from semisilo.coordinator.strategies.scaffold import ScaffoldState, ScaffoldStrategy
from semisilo.silo.trainers.scaffold import ScaffoldMemory, control_to_keep, used_controls
from tests.coordinator.strategies.test_fed_shvr import Quadratics

FORM = ImageForm(size=4, channels=1, mean=(0.5,), std=(0.25,))
AUGMENTATION = AugmentationSettings(policy="none")


def _net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


class World:
    """f_k(w) = a_k / 2 (w - b_k)^2 at silo "0", "1", ...; exact gradients, a scalar model in float64."""

    def __init__(self, a: Sequence[float], b: Sequence[float], tau: Sequence[int], *, rounds: int = 9,
                 **settings: Any) -> None:
        self.a, self.b, self.tau = a, b, tau
        self.settings = ScaffoldSettings(lr=0.1, **settings)
        self.environment = Environment(seed=1, rounds=rounds, num_silos=1, data=CoordinatorData(),
                                       build_model=_net, image=FORM, augmentation=AUGMENTATION)
        self.strategy = ScaffoldStrategy(self.settings, self.environment)
        self.state: Any = ScaffoldState(round=0, w={"w": torch.tensor([1.0], dtype=torch.float64)}, batch_norm={},
                                        own_statistics={})
        self.memories: dict[int, ScaffoldMemory] = {}
        self.number = 0

    def round(self, silos: Sequence[int] | None = None, *, refused: Sequence[int] = (),
              says: Mapping[int, float] | None = None, gone: tuple[str, ...] = ()) -> dict[int, float]:
        """One round with these silos; returns the corrections that they used. A refused update's memory is dropped.

        Args:
            says: numbers of steps that silos say and have not taken. Silos that are gone are told to the strategy.
        """
        self.number += 1
        self.state = self.strategy.opened(self.state, round=self.number, silos=len(self.a))
        answers, used_d = {}, {}
        for k in range(len(self.a)) if silos is None else silos:
            task = self.strategy.task(self.state, TRAIN, str(k), None, round=self.number)
            assert set(task.groups) <= set(SCAFFOLD.down)
            work = SiloTask(study="s", round=self.number, rounds=9, phase="train", silo=str(k), seed=1,
                            settings=replace(self.settings, **task.settings), groups=task.groups, build_model=_net,
                            augmentation=AUGMENTATION, image=FORM)
            used = used_controls(work, self.memories.get(k))
            found = used.correction()
            d = 0.0 if found is None else float(found["w"])
            start = w = float(task.groups["model"].tensors["w"])
            for _ in range(self.tau[k]):
                w -= work.settings.round_lr * (self.a[k] * (w - self.b[k]) + d)
            difference = {"w": torch.tensor([w - start], dtype=torch.float64)}
            used_d[k] = d
            if k in refused:
                continue
            memory = ScaffoldMemory(c=control_to_keep(work, used, difference, steps=self.tau[k]),
                                    epoch=work.settings.correction_epoch, round=self.number)
            metrics = {"steps": float((says or {}).get(k, self.tau[k])), "correction_lost": float(used.lost)}
            answers[k] = UpdateHeader(str(k), 7 + k, metrics), difference, memory
        tally: Any = self.strategy.begin(self.state, TRAIN, tuple(each[0] for each in answers.values()),
                                         round=self.number)
        if gone:
            tally = self.strategy.leave(TRAIN, tally, gone)
        updates = [{"model": TensorGroup(difference, Meaning.DIFFERENCE)} for _, difference, _ in answers.values()]
        with SpooledUpdates(tuple(each[0] for each in answers.values()), lambda index: updates[index],
                            norms=[None] * len(answers), scratch=Path()) as spooled:
            tally, _ = self.strategy.appraise(self.state, TRAIN, tally, spooled, round=self.number)
        for groups, (k, (header, _, memory)) in zip(updates, answers.items(), strict=True):
            tally, _ = self.strategy.fold(self.state, tally, header, groups, None)
            self.memories[k] = memory
        self.state = self.strategy.finish(self.state, TRAIN, tally, round=self.number)
        return used_d

    @property
    def w(self) -> float:
        return float(self.state.w["w"])


@pytest.fixture(autouse=True)
def _scalar_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scalar is no network, so closing a round must not load it into one; there is nothing to measure."""
    monkeypatch.setattr(FedAvgStrategy, "closed", lambda self, state, *, round: state)


def test_with_equal_weights_equal_steps_and_everyone_present_it_is_fed_shvr() -> None:
    """baselines.md section 2: eta_g = 1, p_k = 1/K, equal tau."""
    a, b, tau = [1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [3, 3, 3]
    mine = World(a, b, tau)
    theirs = Quadratics(a, b, tau, sizes=(50, 50, 50), settings=FedSHVRSettings(lr=0.1))
    for _ in range(6):
        d = mine.round()
        w, other_d, _ = theirs.round()
        assert mine.w == pytest.approx(w, abs=1e-12)
        assert [d[k] for k in range(3)] == pytest.approx(other_d, abs=1e-12)
    assert max(abs(each) for each in other_d) > 0.5


def test_it_comes_to_rest_at_the_optimum_of_the_uniform_mean_whatever_the_steps() -> None:
    """Minimum of sum a_k/2 (w - b_k)^2: (0 + 6) / 3 = 2. There c is 0 and d_k = -c_k = -a_k (w - b_k)."""
    world = World([1.0, 2.0], [0.0, 3.0], [1, 3])
    for _ in range(300):
        d = world.round()
    assert world.w == pytest.approx(2.0, abs=1e-6)
    assert [d[0], d[1]] == pytest.approx([-2.0, 2.0], abs=1e-5)
    assert world.strategy.diagnostics(world.state)["correction_norm"] == pytest.approx(0.0, abs=1e-6)


def test_the_paper_s_algorithm_written_out_with_silos_that_come_late_and_stay_away() -> None:
    """Algorithm 1, option II, in plain numbers: every silo has c_k = 0 before its first round, and then d_k = c."""
    a, b, tau, K = [1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [1, 3, 2], 3
    world = World(a, b, tau, eta_g=0.7)
    w, c, c_k = 1.0, 0.0, [0.0, 0.0, 0.0]
    for silos in ([0, 1], [0, 1, 2], [1], [0, 2], [2]):
        used = world.round(silos)
        ends, changes = [], []
        for k in silos:
            assert used[k] == pytest.approx(c - c_k[k], abs=1e-12)
            y = w
            for _ in range(tau[k]):
                y -= 0.1 * (a[k] * (y - b[k]) - c_k[k] + c)
            plus = c_k[k] - c + (w - y) / (0.1 * tau[k])
            ends.append(y - w)
            changes.append(plus - c_k[k])
            c_k[k] = plus
        w, c = w + 0.7 * sum(ends) / len(silos), c + sum(changes) / K
        assert world.w == pytest.approx(w, abs=1e-12)
    assert float(world.state.c_sum["w"]) / K == pytest.approx(c, abs=1e-12)


def test_a_schedule_of_the_learning_rate_leaves_control_variates_in_gradient_units() -> None:
    """With one step c_k' is the gradient at w, whatever the round's learning rate."""
    world = World([1.0, 2.0], [0.0, 3.0], [1, 1], schedule="cosine", rounds=4)
    for _ in range(3):
        w = world.w
        world.round()
        assert [float(world.memories[k].c["w"]) for k in (0, 1)] == pytest.approx([w, 2 * (w - 3.0)], abs=1e-9)


def test_memory_of_a_refused_update_does_not_count() -> None:
    """Corrections sum to zero over all silos, in the round after a refusal too."""
    world = World([1.0, 2.0, 0.5], [0.0, 3.0, -2.0], [1, 3, 2])
    for refused in ((), (1,), (), (0, 2)):
        used = world.round(refused=refused)
        assert sum(used.values()) == pytest.approx(0.0, abs=1e-12)
    assert world.state.correction_epoch == 1


def test_a_silo_that_lost_its_memory_has_the_sum_begun_anew() -> None:
    world = World([1.0, 2.0], [0.0, 3.0], [1, 3])
    world.round()
    del world.memories[0]
    assert world.round()[0] == 0.0
    assert (world.state.c_sum, world.state.members, world.state.correction_epoch) == (None, {}, 2)
    assert list(world.round().values()) == [0.0, 0.0]
    assert abs(world.round()[0]) > 0.1
    for _ in range(300):
        world.round()
    assert world.w == pytest.approx(2.0, abs=1e-6)


def test_a_newcomer_cannot_have_lost_anything() -> None:
    world = World([1.0, 2.0], [0.0, 3.0], [1, 3])
    world.round([1])
    header = UpdateHeader("0", 5, {"steps": 1.0, "correction_lost": 1.0})
    tally: Any = world.strategy.begin(world.state, TRAIN, (header,), round=2)
    assert tally.renew == ""


TEN: dict[str, Any] = {"a": [1.0] * 10, "b": [k - 4.5 for k in range(10)], "tau": [50] * 10}
"""The optimum of the first nine is -0.5."""


def test_one_update_that_says_one_step_for_fifty_does_not_bend_the_model_for_good() -> None:
    """Silo 9 sends an ordinary difference, once, and never answers again. The model came to rest at 2.87."""
    world = World(**TEN)
    for number in range(1, 60):
        world.round(range(10 if number <= 3 else 9), says={9: 1} if number == 3 else None)
        if number == 3:
            assert (world.state.members, world.state.correction_epoch) == ({}, 2), "its c_k of before is in the sum"
    assert world.w == pytest.approx(-0.5, abs=1e-6)


def test_an_honest_newcomer_with_other_images_and_a_tenth_of_the_steps_is_believed(
        caplog: pytest.LogCaptureFixture) -> None:
    """Of the others' gradients most is taken off by then, of its own nothing, and that over fewer steps."""
    world = World([0.02] * 10, [*(float(k) for k in range(9)), 15.0], [50] * 9 + [5])
    for number in range(1, 30):
        world.round(range(10 if number > 5 else 9))
    assert world.state.members == dict.fromkeys("0123456789", 29)
    assert not caplog.text


def test_a_newcomer_whose_steps_are_not_believed_costs_the_others_no_correction() -> None:
    world = World([0.02] * 10, [float(k) for k in range(20, 30)], [50] * 10)
    for _ in range(9):
        used = world.round(says={9: 1})
        assert (sorted(world.state.members), world.state.correction_epoch) == (list("012345678"), 1)
    assert sum(used.values()) == pytest.approx(0.0, abs=1e-9), "for the coordinator its c_k is 0, and so it is for it"
    assert min(map(abs, used.values())) > 1e-3


def test_a_round_within_the_bound_has_the_bits_of_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, free = (World([0.05, 0.1, 0.05], [9.0, 10.0, 11.0], [1, 3, 2]) for _ in range(2))
    monkeypatch.setattr(free.strategy, "train_appraise", lambda state, tally, updates, *, round: (tally, {}))
    for _ in range(9):
        assert bounded.round() == free.round()
    assert tensors.digest(bounded.state.w) == tensors.digest(free.state.w)
    assert tensors.digest(bounded.state.c_sum) == tensors.digest(free.state.c_sum)


@pytest.mark.slow
def test_what_a_silo_has_left_in_the_sum_goes_with_it() -> None:
    """It lies within the bound, says 25 steps for 50, and is set aside."""
    ends = {}
    for gone in ((), ("9",)):
        world = World(**TEN)
        for number in range(1, 60):
            world.round(range(10 if number <= 3 else 9), says={9: 25} if number == 3 else None,
                        gone=gone if number > 3 else ())
        ends[gone] = world.w
    assert abs(ends[()] + 0.5) > 0.05, "a control"
    assert ends["9",] == pytest.approx(-0.5, abs=1e-6)
    tally = world.strategy.begin(world.state, TRAIN, (), round=60)
    assert world.strategy.leave(TRAIN, tally, ("9", "somebody")) is tally, "once is enough"


def test_without_updates_no_bit_changes() -> None:
    world = World([1.0, 2.0], [0.0, 3.0], [1, 3])
    world.round()
    before = world.state
    world.round([])
    assert replace(before, round=2) == world.state
    assert tensors.digest(before.c_sum) == tensors.digest(world.state.c_sum)


def test_silos_that_have_not_taken_part_count_with_nothing_however_few_the_study_started_with() -> None:
    """[study] start_with is 1 here: two of four silos in a round give c half of what they give to two."""
    few, many = World([1.0, 2.0], [0.0, 3.0], [1, 3]), World([1.0, 2.0, 1.0, 1.0], [0.0, 3.0, 0.0, 0.0], [1, 3, 1, 1])
    for world in (few, many):
        world.round([0, 1])
        world.state = world.strategy.opened(world.state, round=2, silos=len(world.a))
    sent = [float(world.strategy.task(world.state, TRAIN, "new", None, round=2).groups["correction"].tensors["w"])
            for world in (few, many)]
    assert sent[1] == pytest.approx(sent[0] / 2)
    again = many.strategy.opened(many.state, round=3, silos=4)
    assert again is many.state, "nothing is written where nobody joins"


def test_a_study_that_an_earlier_version_began_goes_on(tmp_path: Path) -> None:
    """Its states do not say how many silos there are: until the next round opens it is `start_with`, as it was."""
    world = World([1.0, 2.0], [0.0, 3.0], [1, 3])
    world.round()
    kept = [each for each in fields(ScaffoldState) if each.name != "silos"]
    earlier = make_dataclass("ScaffoldState", [(each.name, each.type) for each in kept])
    checkpoint.save(tmp_path / "state", earlier(*(getattr(world.state, each.name) for each in kept)))
    found = checkpoint.load(tmp_path / "state", ScaffoldState)
    assert (found.silos, found.members) == (0, world.state.members)
    sent = world.strategy.task(found, TRAIN, "0", None, round=2).groups["correction"].tensors
    assert torch.equal(sent["w"], world.state.c_sum["w"] / 2), "two are in the sum, more than it started with"


def test_a_state_and_a_tally_survive_the_disk(tmp_path: Path) -> None:
    world, torn = (World([1.0, 2.0], [0.0, 3.0], [1, 3]) for _ in range(2))
    for _ in range(3):
        torn.strategy = ScaffoldStrategy(torn.settings, torn.environment)
        checkpoint.save(tmp_path / "state", torn.state)
        torn.state = checkpoint.load(tmp_path / "state", ScaffoldState)
        assert world.round() == torn.round()
    assert tensors.digest(world.state.c_sum) == tensors.digest(torn.state.c_sum)
    tally: Any = world.strategy.begin(world.state, TRAIN, (UpdateHeader("0", 5, {"steps": 1.0}),), round=4)
    checkpoint.save(tmp_path / "tally", tally)
    assert checkpoint.load(tmp_path / "tally", type(tally)).weights == {"0": 1.0}


@pytest.mark.parametrize(("settings", "says"), [
    ({"momentum": 0.9}, "momentum = 0.9"), ({"clip_norm": 1.0}, "clip_norm = 1.0"), ({"lr": 0.0}, "lr = 0.0"),
    ({"eta_g": 0.0}, "eta_g = 0.0"), ({"objective": "sl", "scenario": "labels-at-coordinator"}, "objective"),
])
def test_settings_that_would_break_the_control_variates_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ScaffoldSettings(**settings)


def test_the_strategy_is_found_by_name() -> None:
    assert load_strategy("scaffold") is ScaffoldStrategy
