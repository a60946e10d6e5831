"""A silo's update as words, and the mean that the coordinator makes of several: both halves held against each other and
against plain arithmetic."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from semisilo.common.errors import ComputeFailed, SecureSumFailed, StorageDamaged
from semisilo.common.methods.contract import GroupLayout, Meaning, TensorGroup, TensorSpec
from semisilo.common.payload.reader import PayloadReader
from semisilo.common.secure_aggregation.fixed_point import largest_level
from semisilo.common.secure_aggregation.mask_form import MaskForm, SumOutcome, weight_of
from semisilo.common.secure_aggregation.masks import add_masks
from semisilo.common.secure_aggregation.messages import MASKED_GROUP, MaskSeed
from semisilo.common.secure_aggregation.words import packed_bytes
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.secure_aggregation.masked_updates import add_up, check_masked, decoded_mean
from semisilo.silo.compute.lossy_update import Sender
from semisilo.silo.compute.mask_order import Masking
from semisilo.silo.compute.masked_update import Summand, plain_words, write_masked

SILOS = ("a", "b", "c")
LAYOUT = {"model": GroupLayout(Meaning.DIFFERENCE, "11" * 32, (
    TensorSpec("weight", (20, 30), "float32"), TensorSpec("bias", (9,), "float32")))}
ELEMENTS = 609
FORM = MaskForm(bits=20, bounds=(0.5, 0.05), silo_count=3)
SUMMAND = Summand(num_examples=1)
PAIR = {("a", "b"): b"1" * 32, ("a", "c"): b"2" * 32, ("b", "c"): b"3" * 32}


def update_of(silo: str, scale: float = 0.1) -> dict[str, TensorGroup]:
    generator = torch.Generator().manual_seed(ord(silo[0]))
    return {"model": TensorGroup({"weight": scale * torch.randn(20, 30, generator=generator).clamp(-3, 3),
                                  "bias": 0.01 * torch.randn(9, generator=generator)}, Meaning.DIFFERENCE, "11" * 32)}


def sender(silo: str, round_number: int = 1) -> Sender:
    return Sender(seed=7, round=round_number, phase="train", silo=silo)


def seeds_of(silo: str) -> tuple[MaskSeed, ...]:
    """Masks between pairs alone: they vanish in the sum of all three."""
    return tuple(MaskSeed(seed=seed, sign=1 if silo == pair[0] else -1) for pair, seed in PAIR.items() if silo in pair)


def masking_of(form: MaskForm, seeds: tuple[MaskSeed, ...] = ()) -> Masking:
    return Masking(form=form, phase="train", threshold=3, seeds=seeds)


def written(folder: Path, silo: str, form: MaskForm, *, num_examples: int = 1, masked: bool = True) -> Path:
    store = PayloadStore(folder / silo)
    payload, _, _ = write_masked(store, update_of(silo), masking_of(
        form, seeds_of(silo) if masked else ()), summand=Summand(num_examples=num_examples), sender=sender(silo),
        residuals={}, add_masks=add_masks)
    return store.path(payload.digest)


def mean_of(paths: list[Path], form: MaskForm) -> tuple[dict[str, TensorGroup], object]:
    total = add_up(paths, form, elements=ELEMENTS)
    return decoded_mean(total, form, LAYOUT, silos=len(paths), seed=7, round=1, phase="train")


def test_the_mean_is_the_mean_within_the_stated_error(tmp_path: Path) -> None:
    found, outcome = mean_of([written(tmp_path, silo, FORM) for silo in SILOS], FORM)
    level = (2**19 - 1) // 3
    for name, bound in (("weight", 0.5), ("bias", 0.05)):
        right = sum(update_of(silo)["model"].tensors[name].double() for silo in SILOS) / 3
        assert float((found["model"].tensors[name].double() - right).abs().max()) <= bound / level + 1e-7
        assert found["model"].tensors[name].shape == right.shape
    assert (found["model"].meaning, found["model"].base) == (Meaning.DIFFERENCE, "11" * 32)
    assert (outcome.silos, outcome.weight, outcome.cut, outcome.elements) == (3, 3.0, 0, ELEMENTS)  # type: ignore[attr-defined]


def test_masks_change_no_bit_of_the_sum(tmp_path: Path) -> None:
    masked = [written(tmp_path / "masked", silo, FORM) for silo in SILOS]
    plain = [written(tmp_path / "plain", silo, FORM, masked=False) for silo in SILOS]
    for one, other in zip(masked, plain, strict=True):
        assert one.name != other.name
    found, right = (add_up(paths, FORM, elements=ELEMENTS) & np.uint32(2**20 - 1)
                    for paths in (masked, plain))
    assert (found == right).all()


def test_without_one_silo_its_masks_are_left_until_they_are_taken_away(tmp_path: Path) -> None:
    two = [written(tmp_path, silo, FORM) for silo in ("a", "c")]
    with pytest.raises(SecureSumFailed, match="noise"):
        mean_of(two, FORM)
    total = add_up(two, FORM, elements=ELEMENTS)
    add_masks(total, (MaskSeed(seed=PAIR["a", "b"], sign=-1), MaskSeed(seed=PAIR["b", "c"], sign=1)))
    found, _ = decoded_mean(total, FORM, LAYOUT, silos=2, seed=7, round=1, phase="train")
    right = (update_of("a")["model"].tensors["weight"] + update_of("c")["model"].tensors["weight"]) / 2
    assert torch.allclose(found["model"].tensors["weight"], right, atol=1e-5)


def test_silos_weigh_by_their_images_and_nobody_sees_how_many(tmp_path: Path) -> None:
    form = MaskForm(bits=24, bounds=(0.5, 0.05), silo_count=3, weight_reference=400)
    counts = {"a": 400, "b": 100, "c": 900}  # more than the largest was announced with counts as that
    found, outcome = mean_of([written(tmp_path, silo, form, num_examples=counts[silo]) for silo in SILOS], form)
    weights = {"a": 1.0, "b": 0.25, "c": 1.0}
    right = sum(weights[silo] * update_of(silo)["model"].tensors["weight"] for silo in SILOS) / 2.25
    assert torch.allclose(found["model"].tensors["weight"], right, atol=1e-6)
    assert outcome.weight == pytest.approx(2.25, abs=1e-6)  # type: ignore[attr-defined]


def test_what_is_beyond_the_bound_is_cut_and_counted(tmp_path: Path) -> None:
    form = MaskForm(bits=20, bounds=(0.05, 0.05), silo_count=3)
    found, outcome = mean_of([written(tmp_path, silo, form) for silo in SILOS], form)
    cut = sum(int((update_of(silo)["model"].tensors["weight"].abs() > 0.05).sum()) for silo in SILOS)
    assert outcome.cut == cut > 0  # type: ignore[attr-defined]
    assert float(found["model"].tensors["weight"].abs().max()) <= 0.05 + 1e-6


@pytest.mark.slow
def test_a_random_share_is_the_same_at_all_silos_and_the_rest_comes_later(tmp_path: Path) -> None:
    form = MaskForm(bits=20, bounds=(0.5, 0.05), silo_count=3, random_k=0.1)
    sums = {name: torch.zeros(spec.shape, dtype=torch.float64)
            for spec in LAYOUT["model"].tensors for name in (spec.name,)}
    left: dict[str, dict[str, torch.Tensor]] = {silo: {} for silo in SILOS}
    rounds = 60
    for number in range(1, rounds + 1):
        paths = []
        for silo in SILOS:
            store = PayloadStore(tmp_path / silo)
            payload, left[silo], _ = write_masked(
                store, update_of(silo), masking_of(form, seeds_of(silo)), summand=SUMMAND,
                sender=sender(silo, number), residuals=left[silo], add_masks=add_masks)
            paths.append(store.path(payload.digest))
        total = add_up(paths, form, elements=ELEMENTS)
        assert len(total) == 61 + 2
        mean, _ = decoded_mean(total, MaskForm(bits=20, bounds=form.bounds, silo_count=3, random_k=0.1), LAYOUT,
                               silos=3, seed=7, round=number, phase="train")
        for name, tensor in mean["model"].tensors.items():
            sums[name] += tensor.double()
    for name, total_sum in sums.items():  # nothing is lost for good, not even what had to be cut
        mean_update = sum(update_of(silo)["model"].tensors[name].double() for silo in SILOS) / 3
        waiting = sum(left[silo][f"train\nmodel\n{name}"].double() for silo in SILOS) / 3
        assert torch.allclose(total_sum + waiting, rounds * mean_update, atol=1e-4)


def test_the_same_update_gives_the_same_words_and_another_round_others() -> None:
    masking = masking_of(FORM)

    def words(silo: str, number: int) -> bytes:
        found, _ = plain_words(update_of("a"), masking, summand=SUMMAND, sender=sender(silo, number), residuals={})
        return found.tobytes()

    assert words("a", 1) == words("a", 1)
    assert len({words("a", 1), words("a", 2), words("b", 1)}) == 3


def test_a_file_has_nothing_but_words_and_its_digest_is_of_the_plain_ones(tmp_path: Path) -> None:
    store = PayloadStore(tmp_path)
    masking = masking_of(FORM, seeds_of("a"))
    payload, left, vector = write_masked(store, update_of("a"), masking, summand=SUMMAND, sender=sender("a"),
                                         residuals={}, add_masks=add_masks)
    plain, _ = plain_words(update_of("a"), masking, summand=SUMMAND, sender=sender("a"), residuals={})
    assert vector == hashlib.sha256(plain.tobytes()).digest()
    assert left == {}
    with PayloadReader(store.path(payload.digest)) as reader:
        group, = reader.groups
        assert (group.name, group.tensors[0].shape) == (MASKED_GROUP, (packed_bytes(ELEMENTS + 2, 20),))
    expected = {MASKED_GROUP: GroupLayout(Meaning.VALUES, "", group.tensors)}
    check_masked(store.path(payload.digest), expected)


def test_a_silo_that_has_diverged_sends_nothing() -> None:
    groups = update_of("a")
    groups["model"].tensors["bias"][3] = float("nan")
    with pytest.raises(ComputeFailed, match="Training diverged: 'bias'"):
        plain_words(groups, masking_of(FORM), summand=SUMMAND, sender=sender("a"),
                    residuals={})


def test_a_form_for_other_tensors_is_refused() -> None:
    form = MaskForm(bits=20, bounds=(0.5,), silo_count=3)
    with pytest.raises(ComputeFailed, match="bounds for 1 tensors"):
        plain_words(update_of("a"), masking_of(form), summand=SUMMAND, sender=sender("a"),
                    residuals={})


def test_a_damaged_file_of_the_spool_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, "a", FORM)
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(StorageDamaged):
        add_up([path], FORM, elements=ELEMENTS)


def test_the_secrets_of_masks_are_not_shown() -> None:
    assert "seeds" not in repr(masking_of(FORM, seeds_of("a")))


def total_of(form: MaskForm, examples: dict[str, int], *, forged: dict[str, float] | None = None) -> np.ndarray:
    """The sum of the silos' words; `forged` silos say that they weigh something else, and their tensors are honest."""
    level, total = largest_level(form.bits, form.silo_count), np.uint32(0)
    for silo, count in examples.items():
        words, _ = plain_words(update_of(silo), masking_of(form), summand=Summand(num_examples=count),
                               sender=sender(silo), residuals={})
        if forged and silo in forged:
            words[-2] = np.uint32(round(forged[silo] * level) & 0xffffffff)
        total = total + words
    return np.asarray(total)


def decoded(total: np.ndarray, form: MaskForm, *, silos: int = 3, least_weight: float = 0.0) -> SumOutcome:
    return decoded_mean(total, form, LAYOUT, silos=silos, seed=7, round=1, phase="train", least_weight=least_weight)[1]


@pytest.mark.parametrize("weight", [0.0, 0.99, 1.0 + 1e-5, -1.99999, -2.0, 3.0])
def test_where_all_weigh_the_same_a_weight_that_is_forged_is_found(weight: float) -> None:
    """One silo that said -1.99999 instead of 1 had the updates of all multiplied by half a million."""
    examples = dict.fromkeys(SILOS, 1)
    assert decoded(total_of(FORM, examples), FORM).weight == 3.0
    with pytest.raises(SecureSumFailed, match="one of them did not do as it was asked"):
        decoded(total_of(FORM, examples, forged={"c": weight}), FORM)


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_where_silos_weigh_by_size_they_weigh_what_they_have_announced_at_least(bits: int) -> None:
    form = MaskForm(bits=bits, bounds=(0.5, 0.05), silo_count=3, weight_reference=1000)
    examples = {"a": 997, "b": 3, "c": 333}
    least = sum(weight_of(form, count) for count in examples.values())
    honest = total_of(form, examples)
    assert decoded(honest, form, least_weight=least).weight == pytest.approx(least, rel=1e-3)
    level = largest_level(bits, 3)
    for weight in (-1.0, 0.0, 0.333 - 3 / level):
        with pytest.raises(SecureSumFailed, match="one of them did not do as it was asked"):
            decoded(total_of(form, examples, forged={"c": weight}), form, least_weight=least)
    assert decoded(total_of(form, examples, forged={"c": 1.0}), form, least_weight=least).weight == pytest.approx(
        2.0, rel=1e-3), "a silo may weigh as the largest one does, whatever it has announced"


def test_weights_that_add_up_to_nothing_are_no_sum_whatever_was_announced() -> None:
    form = MaskForm(bits=24, bounds=(0.5, 0.05), silo_count=3, weight_reference=1000)
    with pytest.raises(SecureSumFailed):
        decoded(total_of(form, dict.fromkeys(SILOS, 0)), form)
