"""The policies: what the draws may and may not do, and the published probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from semisilo.common.data.augmentation.augment import (
    FEDMATCH_OPERATIONS,
    SMALL_OPERATIONS,
    check_settings,
    strong,
    to_input,
    weak,
)
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadConfiguration
from tests.each_of import each_of

POLICIES = ("small", "semifl_official", "fedmatch_official", "fedmix")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(batch: int, channels: int, side: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (batch, channels, side, side), dtype=torch.uint8, generator=seeded(seed))


def only(operation: str, policy: str, **more: bool) -> AugmentationSettings:
    pool = FEDMATCH_OPERATIONS if policy in ("fedmatch_official", "fedmix") else SMALL_OPERATIONS
    return AugmentationSettings(policy=policy, without=tuple(name for name in pool if name != operation), **more)


def shifted(image: torch.Tensor, dy: int, dx: int) -> torch.Tensor:
    """Plain reference: torch's own reflection padding, then a crop."""
    pad = max(abs(dy), abs(dx))
    if pad == 0:
        return image
    padded = torch.nn.functional.pad(image[None].float(), (pad,) * 4, mode="reflect")[0].to(torch.uint8)
    side = image.shape[-1]
    return padded[:, pad + dy : pad + dy + side, pad + dx : pad + dx + side]


def test_to_input_scales_then_standardises():
    form = ImageForm(size=2, channels=3, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))
    images = torch.tensor([0, 255], dtype=torch.uint8).repeat(6).view(1, 3, 2, 2)
    got = to_input(images, form)
    assert got.dtype == torch.float32
    assert got[0, :, 0].tolist() == [[-1.0, 1.0], [-1.0, 3.0], [0.0, 0.5]]
    assert images.max() == 255, "the images stay"


def test_each_channel_of_each_image_is_standardised_by_itself_where_the_form_says_so():
    form = ImageForm(size=2, channels=3, mean=(0.9,) * 3, std=(9.0,) * 3, standardise="image")
    images = noise(5, 3, 2)
    got = to_input(images, form)
    pixels = images.double().numpy() / 255
    centred = pixels - pixels.mean(axis=(2, 3), keepdims=True)
    expected = centred / np.sqrt((centred ** 2).mean(axis=(2, 3), keepdims=True) + 0.001)
    assert got.dtype == torch.float32
    assert np.allclose(got.numpy(), expected, atol=1e-5)
    assert torch.equal(to_input(images[2:3], form)[0], got[2]), "whatever else is in the batch"


def test_by_itself_an_image_is_the_same_by_a_scanner_of_other_brightness_contrast_and_colours():
    form = ImageForm(size=6, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3, standardise="image")
    images = (noise(4, 3, 6) // 2).to(torch.uint8)
    other = (images.float() * torch.tensor([1.5, 1.0, 1.2])[:, None, None] + 20).round().to(torch.uint8)
    assert float((to_input(images, form) - to_input(other, form)).abs().max()) < 0.06
    by_study = [to_input(each, replace(form, standardise="study")) for each in (images, other)]
    assert float((by_study[0] - by_study[1]).abs().mean()) > 0.5
    flat = torch.full((1, 3, 6, 6), 77, dtype=torch.uint8)
    assert to_input(flat, form).abs().max() < 1e-4, "an empty image stays empty"


@pytest.mark.slow
@each_of("policy", POLICIES)
@each_of("view", [weak, strong])
@each_of(("channels", "side"), [(1, 8), (3, 8), (1, 32), (3, 32), (3, 1), (1, 5)])
def test_views_keep_shape_and_type_and_follow_from_the_generator_alone(policy, view, channels, side):
    images = noise(16, channels, side)
    before = images.clone()
    settings = AugmentationSettings(policy=policy, horizontal_flip=True)
    first, again, other = (view(images, settings, seeded(seed)) for seed in (7, 7, 8))
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert torch.equal(images, before), "the originals are never changed"
    if side >= 8:
        assert not torch.equal(first, other)


@each_of("policy", [*POLICIES, "none"])
def test_an_empty_batch_is_allowed(policy):
    empty = torch.empty(0, 3, 8, 8, dtype=torch.uint8)
    assert strong(empty, AugmentationSettings(policy=policy), seeded()).shape == (0, 3, 8, 8)


def test_policy_none_changes_nothing():
    images = noise(4, 3, 8)
    assert torch.equal(weak(images, AugmentationSettings(policy="none"), seeded()), images)
    assert torch.equal(strong(images, AugmentationSettings(policy="none"), seeded()), images)


@pytest.mark.parametrize(("side", "limit"), [(8, 1), (28, 3), (32, 4), (7, 0)])
def test_weak_small_is_a_reflected_shift_of_at_most_an_eighth_and_never_flips(side, limit):
    images = noise(60, 1, side)
    views = weak(images, AugmentationSettings(), seeded())
    found = set()
    for image, view in zip(images, views, strict=True):
        matches = [(dy, dx) for dy in range(-limit, limit + 1) for dx in range(-limit, limit + 1)
                   if torch.equal(shifted(image, dy, dx), view)]
        assert len(matches) == 1, "the view is one of the allowed shifts, unflipped"
        found.add(matches[0])
    for axis in (0, 1):
        assert {shift[axis] for shift in found} == set(range(-limit, limit + 1)), "every shift occurs"


@each_of("policy", ["small", "semifl_official", "fedmix"])
def test_flips_happen_to_half_of_the_images_when_allowed_and_to_none_otherwise(policy):
    ramp = torch.arange(32, dtype=torch.uint8).expand(400, 1, 32, 32).contiguous()  # brighter to the right

    def flipped(settings: AugmentationSettings) -> int:
        view = weak(ramp, settings, seeded(3)).int()
        return int((view[:, 0, 16, 20] < view[:, 0, 16, 10]).sum())

    assert flipped(AugmentationSettings(policy=policy)) == 0
    # Binomial(400, 1/2): 5 standard deviations are 50.
    assert abs(flipped(AugmentationSettings(policy=policy, horizontal_flip=True)) - 200) < 50
    upright = ramp.transpose(2, 3).contiguous()
    if policy == "small":
        view = weak(upright, AugmentationSettings(vertical_flip=True), seeded(3)).int()
        assert abs(int((view[:, 0, 20, 16] < view[:, 0, 10, 16]).sum()) - 200) < 50
        assert torch.equal(weak(ramp, AugmentationSettings(vertical_flip=True), seeded(3)),
                           weak(ramp, AugmentationSettings(), seeded(3))), "it changes no column of a ramp"


@pytest.mark.slow
def test_weak_semifl_is_a_crop_of_the_image_padded_by_four_with_reflection():
    images = noise(200, 3, 32)
    views = weak(images, AugmentationSettings(policy="semifl_official"), seeded())
    found = []
    for image, view in zip(images, views, strict=True):
        found += [(dy, dx) for dy in range(-4, 5) for dx in range(-4, 5) if torch.equal(shifted(image, dy, dx), view)]
    assert len(found) == 200
    assert {dy for dy, _ in found} == {dx for _, dx in found} == set(range(-4, 5))


def test_weak_fedmatch_flips_exactly_half_and_a_quarter_of_those_upside_down():
    images = torch.zeros(100, 1, 16, 16, dtype=torch.uint8)
    images[:, 0, 4, 4] = 255  # one bright point in the upper left quarter, whose shift by 2 leaves it there
    settings = AugmentationSettings(policy="fedmatch_official", horizontal_flip=True, vertical_flip=True)
    view = weak(images, settings, seeded())
    assert (view > 0).sum() == 100, "no image loses its point or gains one"
    point = view.flatten(1).long().argmax(1)
    right, low = point % 16 >= 8, point // 16 >= 8
    assert right.sum() == 50
    assert low.sum() == 12
    assert not (low & ~right).any()
    unflipped = weak(images, AugmentationSettings(policy="fedmatch_official"), seeded()).flatten(1).long().argmax(1)
    assert set((unflipped // 16).tolist()) == set((unflipped % 16).tolist()) == {2, 3, 4, 5, 6}
    border = weak(torch.full((50, 1, 8, 8), 255, dtype=torch.uint8), settings, seeded())
    assert (border == 0).any(), "black comes in from outside"


def blackened(image: torch.Tensor, dy: int, dx: int) -> torch.Tensor:
    """Plain reference: the image between 2 pixels of black, then a crop."""
    padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
    side = image.shape[-1]
    return padded[:, 2 + dy : 2 + dy + side, 2 + dx : 2 + dx + side]


@pytest.mark.slow
@pytest.mark.parametrize("flip", [False, True])
def test_weak_fedmix_flips_half_of_the_images_and_shifts_each_by_up_to_two_pixels_with_black(flip):
    """Each view is exactly one of the 25 shifts of the image or of its mirror image; all of them occur among 400, and
    of 400 flips with probability 1/2 five standard deviations are 50."""
    images = noise(400, 3, 12)
    views = weak(images, AugmentationSettings(policy="fedmix", horizontal_flip=flip), seeded())
    shifts = [(dy, dx) for dy in range(-2, 3) for dx in range(-2, 3)]
    found = []
    for image, view in zip(images, views, strict=True):
        matches = [(flipped, shift) for flipped, source in ((False, image), (True, image.flip(2))) for shift in shifts
                   if torch.equal(blackened(source, *shift), view)]
        assert len(matches) == 1
        found += matches
    assert {shift for _, shift in found} == set(shifts)
    count = sum(flipped for flipped, _ in found)
    assert abs(count - 200) < 50 if flip else count == 0


def test_strong_fedmix_is_fedmatchs_randaugment_on_the_weak_geometry():
    images = noise(64, 3, 32)
    settings = only("Equalize", "fedmix")
    assert torch.equal(strong(images, settings, seeded(1)), weak(images, settings, seeded(1))), "it changes nothing"
    settings = only("Brightness", "fedmix")
    assert not torch.equal(strong(images, settings, seeded(1)), weak(images, settings, seeded(1)))


def test_strong_semifl_has_the_published_share_of_black_and_grey_images():
    """P(black): each of 2 stages applies an operation with probability 1/2 and picks a translation with 2/15; a black
    image stays black unless inverted (Invert, Solarize) or partly greyed (Cutout). Counted here for the first stage
    alone, by leaving out everything else: a translation by 100 pixels always gives black."""
    images = noise(2000, 3, 32) // 2 + 100
    settings = only("TranslateX", "semifl_official")
    black = (strong(images, settings, seeded()).flatten(1).amax(1) == 0).float().mean().item()
    assert black == pytest.approx(1 - 0.5**2, abs=0.05), "applied with probability 1/2 in each of two stages"
    greys = strong(images, only("Cutout", "semifl_official"), seeded())
    whole = (greys == 127).flatten(1).all(1).float().mean().item()
    # Whole grey with one cutout: 0.625^2 = 0.39. Two stages: 1 - (1 - 0.39 / 2)^2, a corner being covered by either.
    assert whole == pytest.approx(1 - (1 - 0.625**2 / 2) ** 2, abs=0.05)


def test_strong_semifl_solarize_inverts():
    images = noise(500, 1, 32)
    settings = only("Solarize", "semifl_official")
    # The weak geometry draws first, so the same seed gives the same crop without RandAugment.
    crop = weak(images, settings, seeded(5))
    view = strong(images, settings, seeded(5))
    same, inverted = (view == crop).flatten(1).all(1), (view == 255 - crop).flatten(1).all(1)
    assert (same | inverted).all()
    assert inverted.float().mean().item() == pytest.approx(0.5, abs=0.12), "once of two: 2 * 1/2 * 1/2"


def test_strong_small_never_blacks_out_an_image():
    images = noise(500, 1, 8) // 2 + 100
    settings = AugmentationSettings(without=("Invert", "Solarize", "Brightness", "Posterize"))
    # Two translations by at most 0.3 of the side and the rest leave some of the image.
    assert (strong(images, settings, seeded()).flatten(1).amax(1) > 0).all()


@pytest.mark.parametrize("policy", ["small", "semifl_official"])
def test_every_operation_of_the_pool_can_be_drawn_and_left_out(policy):
    """Each operation alone changes a noise image in its own way; with all others left out some image must change,
    but for Color and (on 8 x 8) Equalize on grey."""
    images = noise(64, 3, 32)
    for name in SMALL_OPERATIONS:
        settings = only(name, policy)
        crop, view = weak(images, settings, seeded(1)), strong(images, settings, seeded(1))
        changed = (crop != view).flatten(1).any(1).sum()
        assert changed > 0, name
        assert changed < 64, "applied with probability 1/2 only"


def test_strong_fedmatch_always_applies_and_its_equalize_changes_nothing():
    """On the image itself: its code has no flip and shift below RandAugment."""
    images = noise(64, 3, 32)
    view = strong(images, only("Equalize", "fedmatch_official", horizontal_flip=True, vertical_flip=True), seeded(1))
    assert torch.equal(view, images)
    assert view.data_ptr() != images.data_ptr(), "never the same storage"
    for name in FEDMATCH_OPERATIONS:
        if name != "Equalize":
            assert not torch.equal(strong(images, only(name, "fedmatch_official"), seeded(1)), images), name


def test_the_largest_level_of_fedmatch_is_four_of_ten():
    """M <= 5 and levels 0..M-1 of a ten-point line. Brightness 1 +- 0.3 * 4 / 9 in each of 6 stages: a grey of 100
    stays between 100 (1 - 0.1333)^6 = 42 and 100 (1 + 0.1333)^6 = 212; level 9 would reach 12."""
    images = torch.full((3000, 1, 4, 4), 100, dtype=torch.uint8)
    views = strong(images, only("Brightness", "fedmatch_official"), seeded())
    assert 38 <= views.min() < 60, "each stage cuts fractions off"
    assert 150 < views.max() <= 212


def test_posterize_of_fedmatch_keeps_at_least_six_bits():
    """Levels stop at 4 of 10 (0..M-1, M <= 5): linspace(8, 4, 10)[4] = 6.2, rounded 6."""
    views = strong(noise(200, 1, 16), only("Posterize", "fedmatch_official"), seeded())
    assert (views & 0b11 != 0).any()
    lowest = {int((view & 0b111).unique().numel()) for view in views}
    assert min(lowest) == 2, "6 bits leave two different values of the last three bits"


@each_of(("settings", "said"), [
    (AugmentationSettings(without=("invert",)), "Did you mean 'Invert'?"),
    (AugmentationSettings(without=("Solarise",)), "Did you mean 'Solarize'?"),
    (AugmentationSettings(policy="fedmatch_official", without=("Cutout",)), "has no operation 'Cutout'"),
    (AugmentationSettings(without=SMALL_OPERATIONS), "no operation"),
    (AugmentationSettings(policy="semifl_official", vertical_flip=True), "no vertical flip"),
    (AugmentationSettings(policy="fedmix", vertical_flip=True), 'policy "fedmix" has no vertical flip'),
    (AugmentationSettings(policy="fedmix", without=("Invert",)), 'policy "fedmix" has no operation'),
    (AugmentationSettings(policy="none", horizontal_flip=True), "no effect"),
    (AugmentationSettings(policy="none", without=("Invert",)), "no effect"),
])
def test_settings_that_would_not_be_honoured_are_refused(settings, said):
    for attempt in (lambda: check_settings(settings), lambda: weak(noise(1, 1, 8), settings, seeded())):
        with pytest.raises(BadConfiguration) as caught:
            attempt()
        assert said in caught.value.line()
    check_settings(AugmentationSettings(without=("Invert", "Solarize")))


def test_views_do_not_touch_the_global_generators():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    strong(noise(8, 3, 32), AugmentationSettings(), seeded())
    assert torch.equal(torch.get_rng_state(), state)
