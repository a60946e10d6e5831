"""The steps of a secure sum as phases of a round. Whole sums: tests/test_secure_aggregation.py, and the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.common.methods.contract import GroupLayout, Meaning, Phase, TensorSpec
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivacySettings
from semisilo.common.secure_aggregation.clipped import bound_of_clip, bound_of_step
from semisilo.common.secure_aggregation.mask_form import MOMENT_BOUND, MaskForm, SumOutcome
from semisilo.common.secure_aggregation.messages import STEPS
from semisilo.common.secure_aggregation.roster import roster_of
from semisilo.common.secure_aggregation.words import packed_bytes
from semisilo.coordinator.ledger.secure_sums.roster import note_identity, roster_entries
from semisilo.coordinator.rounds import masked_sums
from semisilo.coordinator.rounds.masked_sums import MaskedSums
from semisilo.coordinator.rounds.secure_sums import (
    STEP_SECONDS,
    Sums,
    masked_layout,
    method_phase,
    with_steps,
    word_count,
)
from tests.coordinator.ledger_fixture import fill_study

TRAIN = Phase("train")
EXPECTS = {"model": GroupLayout(Meaning.DIFFERENCE, "11" * 32, (
    TensorSpec("a", (3, 4), "float32"), TensorSpec("b", (7,), "float32")))}


def test_a_phase_becomes_five_of_which_one_has_its_name() -> None:
    phases = with_steps((TRAIN, Phase("refine", asks="roster", quorum="any")))
    assert [phase.name for phase in phases[:5]] == ["train-keys", "train-shares", "train", "train-confirm",
                                                     "train-unmask"]
    assert tuple(phase.step for phase in phases) == STEPS * 2
    assert {(phase.asks, phase.quorum) for phase in phases[5:]} == {("roster", "any")}


def test_without_masks_only_the_update_is_left() -> None:
    assert with_steps((TRAIN,), Sums.steps) == (Phase("train", step="mask"),)


@pytest.mark.parametrize("sums", [Sums, MaskedSums])
def test_every_step_knows_the_phase_of_the_method(sums: type[Sums]) -> None:
    assert {method_phase(phase) for phase in with_steps((TRAIN,), sums.steps)} == {TRAIN}
    assert method_phase(TRAIN) == TRAIN


def test_a_masked_update_has_a_word_for_every_element_and_two_more() -> None:
    form = MaskForm(bits=18, bounds=(1.0, 1.0), silo_count=3)
    layout, = masked_layout(EXPECTS, form).values()
    assert word_count(EXPECTS, form) == 21
    assert layout.tensors == (TensorSpec("words", (packed_bytes(21, 18),), "uint8"),)
    assert word_count(EXPECTS, replace(form, random_k=0.1)) == 4
    assert word_count(EXPECTS, replace(form, totals=("steps", "lost"))) == 27, "three words for each total"


def test_only_steps_that_do_not_train_have_a_short_deadline() -> None:
    assert STEP_SECONDS.keys() == set(STEPS) - {"mask"}


def test_the_threshold_of_a_sum_that_is_open_stays_whoever_answers(tmp_path: Path) -> None:
    """It was lowered while keys were waited for, so a sum went on with fewer silos than could open it."""
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    sums = MaskedSums(filled.ledger, filled.roster, federation="f")
    sums.begin(PrivacySettings(secure_aggregation=True), seed=1)
    row = filled.ledger.open_round("first", 2, start_digest="", sample=("a", "b", "c", "d", "e"),
                                   phases=sums.phases((TRAIN,)))
    keys, shares = row.phases[:2]
    assert sums.fewest(row, keys, 5) == 4
    sums.open(row, keys, ["a", "b", "c", "d", "e"])
    for phase in (keys, shares):
        assert sums.fewest(row, phase, None) == 4
    assert sums.fewest(row, shares, 3) == 4
    assert sums.fewest(row, TRAIN, 3) == 0


def test_the_roster_of_a_sum_is_checked_once_and_is_that_of_its_moment(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group of a sum had all entries hashed anew, several times."""
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    sums, checked = MaskedSums(filled.ledger, filled.roster, federation="f"), list[int]()
    monkeypatch.setattr(masked_sums, "roster_of", lambda entries: (
        checked.append(len(entries)) or roster_of(entries)))  # type: ignore[func-returns-value]
    sums.begin(PrivacySettings(secure_aggregation=True), seed=1)
    for number in (2, 3):
        note_identity(filled.ledger, f"silo-{number}", bytes([number]) * 32, now_unix=1.0)
        row = filled.ledger.open_round("first", number, start_digest="", sample=("a", "b", "c"),
                                       phases=sums.phases((TRAIN,)))
        sums.open(row, row.phases[0], ["a", "b", "c"])
        note_identity(filled.ledger, f"later-{number}", bytes([9 * number]) * 32, now_unix=1.0)
        entries = roster_entries(filled.ledger)[:-1]
        for _ in range(3):
            assert sums._roster_of(row, row.phases[0]) == roster_of(entries)
        filled.ledger.fail_round(row, reason="of the test")
    assert checked == [1, 3]


def test_moments_of_statistics_have_the_widest_words_and_bounds_that_do_not_shrink(tmp_path: Path) -> None:
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    sums, asked = Sums(filled.ledger, filled.roster), ["a", "b", "c", "d"]
    sums.begin(PrivacySettings(secure_aggregation=True, random_k="10%"), seed=1)

    def form_of(number: int) -> MaskForm:
        row = filled.ledger.open_round("first", number, start_digest="", sample=tuple(asked), phases=sums.phases(
            (Phase("statistics"),)))
        sums.open(row, row.phases[0], asked)
        found = sums.form_of_moments(row, row.phases[0], asked, tensors=2, reference=60)
        sums.made(row, SumOutcome(silos=4, weight=4.0, cut=0, elements=8, largest=(0.1, 1.0)))
        filled.ledger.fail_round(row, reason="of the test")
        return found

    expected = MaskForm(bits=32, bounds=(MOMENT_BOUND, MOMENT_BOUND), silo_count=4, weight_reference=60)
    assert [form_of(2), form_of(3)] == [expected, expected]


@pytest.mark.parametrize(("elements", "bits"), [(10_000, 18), (25_000_000, 20)])
def test_where_silos_add_noise_the_scale_follows_from_it_alone(tmp_path: Path, elements: int, bits: int) -> None:
    """No sum of before has a part in it, and sizes have none; words grow where rounding so many numbers needs it."""
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    sums, asked = Sums(filled.ledger, filled.roster), ["a", "b", "c", "d", "e"]
    dp = DifferentialPrivacy(unit="silo", noise_multiplier=2.0, clip_norm=0.5, honest_silos=3)
    sums.begin(PrivacySettings(secure_aggregation=True, threshold=4, dp=dp), seed=1)
    bound = bound_of_clip(0.5, noise_multiplier=2.0, silo_count=5, shares=3)
    for number in (2, 3):
        row = filled.ledger.open_round("first", number, start_digest="", sample=tuple(asked),
                                       phases=sums.phases((TRAIN,)))
        sums.open(row, row.phases[0], asked)
        form = sums.form(row, TRAIN, asked, largest_weights=(1.0, 7.0), elements=elements, reference=0)
        assert form == MaskForm(bits=bits, bounds=(bound, bound), silo_count=5)
        sums.made(row, SumOutcome(silos=5, weight=5.0, cut=0, elements=8, largest=(0.1, 9.0)))
        filled.ledger.fail_round(row, reason="of the test")


def test_where_silos_share_the_noise_of_images_the_scale_follows_from_a_step_and_words_grow_with_it(
        tmp_path: Path) -> None:
    """3,000 images of noise 1 in five silos: 18 bits would leave each silo's share less than eight levels."""
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    sums, asked = Sums(filled.ledger, filled.roster), ["a", "b", "c", "d", "e"]
    dp = DifferentialPrivacy(noise_multiplier=1.0, clip_norm=0.5, honest_silos=3)
    sums.begin(PrivacySettings(secure_aggregation=True, threshold=4, dp=dp), seed=1)
    row = filled.ledger.open_round("first", 2, start_digest="", sample=tuple(asked), phases=sums.phases((TRAIN,)))
    sums.open(row, row.phases[0], asked)
    form = sums.form(row, TRAIN, asked, largest_weights=(1.0, 7.0), elements=10_000, reference=0, images=3000,
                     contribution=1e-4)
    bound = bound_of_step(1e-4, images=3000, noise_multiplier=1.0, silo_count=5, shares=3)
    assert form == MaskForm(bits=form.bits, bounds=(bound, bound), silo_count=5)
    assert form.bits > 18
    length = 1e-4 / bound * ((2**(form.bits - 1) - 1) // 5)
    assert length / 3**0.5 >= 8
    assert 1e-4 / bound * ((2**(form.bits - 2) - 1) // 5) / 3**0.5 < 8, "and no wider than that"


def test_the_least_that_silos_weigh_follows_from_what_they_have_announced(tmp_path: Path) -> None:
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False)
    for silo, labelled, unlabelled in (("clinic-north", 0, 50), ("hospital-a", 10, 500), ("hospital-b", 300, 0)):
        filled.roster.joined(silo, version="0", methods=(), labelled_count=labelled, unlabelled_count=unlabelled,
                             memory_study="", memory_round=0)
    sums = Sums(filled.ledger, filled.roster)
    by_size = MaskForm(bits=20, bounds=(1.0,), silo_count=3, weight_reference=200)
    names = ("clinic-north", "hospital-a", "hospital-b")
    assert sums.least_weight(by_size, names) == pytest.approx(50 / 200 + 10 / 200 + 1.0)
    assert sums.least_weight(by_size, names[:1]) == pytest.approx(0.25)
    assert sums.least_weight(replace(by_size, weight_reference=0), names) == 0.0
