"""Weak and strong augmentation of image batches, by the policies of a study.

| policy            | weak                                              | strong                                       |
|-------------------|---------------------------------------------------|----------------------------------------------|
| small (default)   | shift by up to side/8 with reflection, flips      | weak geometry, then RandAugment: 2 of 15     |
|                   |                                                   | operations, magnitude 1 to 10 of 10          |
| semifl_official   | flip, crop with reflection padding 4              | weak geometry, then RandAugment: 2 of 15     |
|                   |                                                   | operations, SemiFL's published sizes         |
| fedmatch_official | half flipped, a quarter of those also upside down | RandAugment of the image itself: 6 of 13     |
|                   | then shift by up to 2 with black                  | operations, level below 2..5 of 10           |
| fedmix            | flip, then shift by up to 2 with black            | weak geometry, then FedMatch's RandAugment   |
| none              | the image                                         | the image                                    |

"fedmatch_official" is the code of FedMatch's third version, which augments nothing but strong views. "fedmix" is the
flip-and-shift of FedMix, which has no strong views, and of FedMatch's first version, which applies it to every training
image, hence also below RandAugment.

A flip happens only if the study says that it keeps the meaning of an image (`horizontal_flip`, `vertical_flip`).

All random numbers are drawn on the CPU from the given generator, in tensors whose shape depends only on the batch size
and the policy, so a generator state gives the same views on every device.

Shapes: B images of the batch, n of a sub-batch, C channels (1 or 3), H rows, W columns. Images are uint8.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semisilo.common.data.augmentation import randaugment as ra
from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadConfiguration

__all__ = ["FEDMATCH_OPERATIONS", "SMALL_OPERATIONS", "check_settings", "standardised", "strong", "to_input", "weak"]

SMALL_OPERATIONS = (
    "AutoContrast", "Equalize", "Invert", "Brightness", "Color", "Contrast", "Sharpness", "Cutout", "Posterize",
    "Rotate", "ShearX", "ShearY", "Solarize", "TranslateX", "TranslateY",
)
"""The pool of RandAugment in "small" and "semifl_official"; the second gives three of them constant sizes."""

FEDMATCH_OPERATIONS = (
    "AutoContrast", "Equalize", "Rotate", "Solarize", "Color", "Posterize", "Contrast", "Brightness", "Sharpness",
    "ShearX", "ShearY", "TranslateX", "TranslateY",
)
"""The pool of RandAugment in the policies "fedmatch_official" and "fedmix"; its Equalize changes nothing, as in the
official code."""

_LEAST_VARIANCE = 1e-3
"""Of the pixels of an image, from 0 to 1: about 8 of 255 grey values, squared."""
_FEDMATCH_SHIFT = 2
"""Pixels, of FedMatch's and FedMix's flip-and-shift."""

_Floats = NDArray[np.float64]
_Draws = _Floats
"""(n, _DRAWS): uniform numbers of one operation on each image, see the constants below."""
_Operation = Callable[[Tensor, _Draws], Tensor]

_OP, _RATE, _APPLY, _MAGNITUDE, _A, _B = range(6)
_DRAWS = 6


def to_input(images_BCHW: Tensor, form: ImageForm) -> Tensor:
    """What a network sees: float32 (B, C, H, W), on the images' device. Per channel (image / 255 - mean) / std, or
    `standardised(image / 255)` where the form says so."""
    fractions_BCHW = images_BCHW.to(torch.float32).div_(255)
    if form.standardise == "image":
        return standardised(fractions_BCHW)
    mean, std = _mean_and_std(form, images_BCHW.device)
    return fractions_BCHW.sub_(mean).div_(std)


def standardised(fractions_BCHW: Tensor) -> Tensor:
    """Of each image each channel less its mean over all pixels, divided by sqrt(variance + 0.001): an empty image stays
    empty, and hardly any contrast is not blown up to noise.

    Source: instance normalisation, Ulyanov, Vedaldi and Lempitsky 2016 (arXiv 1607.08022), of the input, without scale
    and shift.
    """
    mean_BC11 = fractions_BCHW.mean(dim=(2, 3), keepdim=True)
    centred_BCHW = fractions_BCHW - mean_BC11
    return centred_BCHW * torch.rsqrt(centred_BCHW.square().mean(dim=(2, 3), keepdim=True) + _LEAST_VARIANCE)


@lru_cache(maxsize=16)
def _mean_and_std(form: ImageForm, device: torch.device) -> tuple[Tensor, Tensor]:
    """On the device, where every batch needs them: float32 (C, 1, 1) each."""
    mean, std = (torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]
                 for values in (form.mean, form.std))
    return mean, std


def check_settings(settings: AugmentationSettings) -> None:
    """Refuses what the policy would not honour.

    Raises: BadConfiguration for an unknown operation in `without`, for flips or `without` in the policy "none", for a
        vertical flip in "semifl_official" and "fedmix" (which have none), and when no operation is left.
    """
    _pool(settings)


def weak(images_BCHW: Tensor, settings: AugmentationSettings, generator: torch.Generator) -> Tensor:
    """Weak view of each image.

    Args:
        images_BCHW: uint8, square.
        generator: on the CPU; advanced.
    Returns: uint8, same shape and device; never the same storage unless the policy is "none".
    Raises: BadConfiguration as `check_settings`.
    Source: SemiFL code (crop, flip), FedMatch code (flip and shift) as its comments say, data.md section 4 ("fedmix");
        "small" is ours.
    """
    _pool(settings)
    if settings.policy == "none" or len(images_BCHW) == 0:
        return images_BCHW
    side = images_BCHW.shape[3]
    if settings.policy == "fedmatch_official":
        return _flip_and_shift(images_BCHW, settings, generator, limit=_FEDMATCH_SHIFT)
    # Reflection reaches at most side - 1 pixels, which matters only for images of fewer than 5 pixels.
    limit = {"small": side // 8, "semifl_official": min(4, side - 1), "fedmix": _FEDMATCH_SHIFT}[settings.policy]
    draws = torch.rand(len(images_BCHW), 4, generator=generator, dtype=torch.float64)
    shift = (draws[:, :2] * (2 * limit + 1)).to(torch.int64) - limit
    return _resample(
        images_BCHW, shift_y_B=shift[:, 0], shift_x_B=shift[:, 1], reflect=settings.policy != "fedmix",
        flip_x_B=draws[:, 2] < 0.5 if settings.horizontal_flip else None,
        flip_y_B=draws[:, 3] < 0.5 if settings.vertical_flip else None,
    )


def strong(images_BCHW: Tensor, settings: AugmentationSettings, generator: torch.Generator) -> Tensor:
    """Strong view of each image: the weak geometry, then RandAugment (FixMatch, Sohn et al. 2020); in the policy
    "fedmatch_official" RandAugment alone, as in FedMatch's code.

    Arguments, result and errors as in `weak`.
    """
    pool = _pool(settings)
    if settings.policy == "none" or len(images_BCHW) == 0:
        return images_BCHW
    from_fedmatch = settings.policy in ("fedmatch_official", "fedmix")
    images = images_BCHW.clone() if settings.policy == "fedmatch_official" else weak(images_BCHW, settings, generator)
    stages = 6 if from_fedmatch else 2
    draws_BSD = torch.rand(len(images), stages, _DRAWS, generator=generator, dtype=torch.float64).numpy()
    chosen_BS = np.floor(draws_BSD[:, :, _OP] * len(pool)).astype(np.int64)
    if from_fedmatch:
        # The largest level is drawn once per image: the column of the first stage serves all stages.
        draws_BSD[:, :, _RATE] = draws_BSD[:, :1, _RATE]
    else:
        # Each operation is applied with probability u, u uniform in 0.2 .. 0.8.
        applied_BS = draws_BSD[:, :, _APPLY] < 0.2 + 0.6 * draws_BSD[:, :, _RATE]
        chosen_BS[~applied_BS] = -1
    for stage in range(stages):
        for number in np.unique(chosen_BS[:, stage]):
            if number < 0:
                continue
            index = np.flatnonzero(chosen_BS[:, stage] == number)
            index_n = torch.from_numpy(index).to(images.device)
            images[index_n] = pool[number](images[index_n], draws_BSD[index, stage])
    return images


# --- Geometry of the weak views --------------------------------------------------------------------------------------

def _resample(
    images_BCHW: Tensor, *, shift_y_B: Tensor, shift_x_B: Tensor, reflect: bool, flip_x_B: Tensor | None,
    flip_y_B: Tensor | None,
) -> Tensor:
    """Flips, then moves by whole pixels: one gather per batch. From outside comes the mirror image or black."""
    batch, channels, height, width = images_BCHW.shape
    y_BH, inside_BH = _source(height, shift_y_B, reflect, flip_y_B)
    x_BW, inside_BW = _source(width, shift_x_B, reflect, flip_x_B)
    index = (y_BH[:, :, None] * width + x_BW[:, None, :]).view(batch, 1, -1).to(images_BCHW.device)
    moved = images_BCHW.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(images_BCHW)
    if reflect:
        return moved
    return moved * (inside_BH[:, None, :, None] & inside_BW[:, None, None, :]).to(images_BCHW.device)


def _source(length: int, shift_B: Tensor, reflect: bool, flip_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where each pixel along one axis comes from, int64 (B, length), and whether that lies inside the image."""
    last = length - 1
    source = torch.arange(length) + shift_B[:, None]
    inside = (source >= 0) & (source <= last)
    source = last - (last - source.abs()).abs() if reflect else source.clamp(0, last)
    if flip_B is not None:
        source = torch.where(flip_B[:, None], last - source, source)
    return source, inside


def _flip_and_shift(
    images_BCHW: Tensor, settings: AugmentationSettings, generator: torch.Generator, *, limit: int
) -> Tensor:
    """FedMatch's flip-and-shift: half of the batch is flipped, a quarter of that half (rounded down) also vertically;
    every image moves by whole pixels in -limit .. limit on both axes, black from outside."""
    batch = len(images_BCHW)
    draws = torch.rand(batch, 3, generator=generator, dtype=torch.float64)
    shift = (draws[:, :2] * (2 * limit + 1)).to(torch.int64) - limit
    rank_B = draws[:, 2].argsort().argsort()
    half = batch // 2
    return _resample(
        images_BCHW, shift_y_B=shift[:, 0], shift_x_B=shift[:, 1], reflect=False,
        flip_x_B=rank_B < half if settings.horizontal_flip else None,
        flip_y_B=rank_B < half // 4 if settings.vertical_flip else None,
    )


# --- Pools of RandAugment --------------------------------------------------------------------------------------------

@lru_cache(maxsize=64)
def _pool(settings: AugmentationSettings) -> tuple[_Operation, ...]:
    """The operations that the policy draws from, without those left out; also checks the settings."""
    if settings.policy == "none":
        wanted = [name for name in ("horizontal_flip", "vertical_flip", "without") if getattr(settings, name)]
        if wanted:
            raise BadConfiguration(f'[augmentation] {wanted[0]} has no effect with policy = "none".',
                                   remedy=f"Remove {wanted[0]} or choose another policy.")
        return ()
    if settings.policy in ("semifl_official", "fedmix") and settings.vertical_flip:
        raise BadConfiguration(f'[augmentation] vertical_flip: policy "{settings.policy}" has no vertical flip.',
                               remedy='Remove vertical_flip or set policy = "small".')
    pool = _POOLS[settings.policy]
    for name in settings.without:
        if name not in pool:
            near = difflib.get_close_matches(name.casefold(), [known.casefold() for known in pool], n=1)
            match = next((known for known in pool if near and known.casefold() == near[0]), None)
            raise BadConfiguration(
                f'[augmentation] without: policy "{settings.policy}" has no operation {name!r}.',
                remedy=f"Did you mean '{match}'?" if match else f"Its operations: {', '.join(pool)}.")
    left = tuple(operation for name, operation in pool.items() if name not in settings.without)
    if not left:
        raise BadConfiguration("[augmentation] without leaves no operation for the strong view.",
                               remedy="Leave out fewer operations.")
    return left


def _on(images_nCHW: Tensor, values: _Floats) -> Tensor:
    return torch.from_numpy(values).to(images_nCHW.device)


def _sign(draws_nD: _Draws) -> _Floats:
    return np.where(draws_nD[:, _B] < 0.5, -1.0, 1.0)


def _rows(images_nCHW: Tensor, *, shear: _Floats | float = 0.0, pixels: _Floats | float = 0.0) -> Tensor:
    """(n, length) shifts of the rows (or columns; images are square) for `randaugment.shift_rows`."""
    middle = np.arange(images_nCHW.shape[2]) + 0.5
    n = len(images_nCHW)
    shift = np.broadcast_to(shear, (n,))[:, None] * middle + np.broadcast_to(pixels, (n,))[:, None]
    return _on(images_nCHW, shift)


def _invert(images: Tensor, draws: _Draws) -> Tensor:
    return ra.invert(images)


def _autocontrast(images: Tensor, draws: _Draws) -> Tensor:
    return ra.autocontrast(images)


def _equalize(images: Tensor, draws: _Draws) -> Tensor:
    return ra.equalize(images)


def _unchanged(images: Tensor, draws: _Draws) -> Tensor:
    return images


def _small_magnitude(draws: _Draws) -> _Floats:
    """FixMatch's rule: a whole number, uniform in 1..10, of 10."""
    return (1.0 + np.floor(draws[:, _MAGNITUDE] * 10)) / 10


def _full_magnitude(draws: _Draws) -> _Floats:
    """SemiFL's official code: always 10 of 10."""
    return np.ones(len(draws))


def _shared_pool(magnitude: Callable[[_Draws], _Floats]) -> dict[str, _Operation]:
    """Operations with equal numbers in "small" and "semifl_official"; the latter always uses the largest magnitude."""
    def factor(images: Tensor, draws: _Draws) -> Tensor:
        return _on(images, 0.1 + 1.8 * magnitude(draws))

    def posterize(images: Tensor, draws: _Draws) -> Tensor:
        # 8 bits (no change) at magnitude 1, 4 at 10. The epsilon keeps 0.4 * 10 m whole in floating point.
        return ra.posterize(images, 8 - _on(images, np.floor(4 * magnitude(draws) + 1e-9)).to(torch.int64))

    return {
        "AutoContrast": _autocontrast,
        "Equalize": _equalize,
        "Invert": _invert,
        "Brightness": lambda images, draws: ra.brightness(images, factor(images, draws)),
        "Color": lambda images, draws: ra.color(images, factor(images, draws)),
        "Contrast": lambda images, draws: ra.contrast(images, factor(images, draws)),
        "Sharpness": lambda images, draws: ra.sharpness(images, factor(images, draws)),
        "Posterize": posterize,
        "Rotate": lambda images, draws: ra.rotate(images, _on(images, 30 * magnitude(draws) * _sign(draws))),
        "ShearX": lambda images, draws: ra.shift_rows(
            images, _rows(images, shear=0.3 * magnitude(draws) * _sign(draws)), resample="bilinear"),
        "ShearY": lambda images, draws: ra.shift_columns(
            images, _rows(images, shear=0.3 * magnitude(draws) * _sign(draws)), resample="bilinear"),
    }


def _small_pool() -> dict[str, _Operation]:
    def cutout(images: Tensor, draws: _Draws) -> Tensor:
        side = images.shape[3]
        square = np.floor(0.5 * side * _small_magnitude(draws) + 1e-9)
        top, left = (np.floor(np.maximum(0.0, draws[:, column] * side - square / 2)) for column in (_A, _B))
        return ra.cutout(images, _on(images, top), _on(images, left), _on(images, square))

    def pixels(images: Tensor, draws: _Draws) -> Tensor:
        return _rows(images, pixels=0.3 * images.shape[3] * _small_magnitude(draws) * _sign(draws))

    operations = _shared_pool(_small_magnitude) | {
        "Cutout": cutout,
        "Solarize": lambda images, draws: ra.solarize(images, _on(images, np.floor(draws[:, _A] * 257))),
        "TranslateX": lambda images, draws: ra.shift_rows(images, pixels(images, draws), resample="bilinear"),
        "TranslateY": lambda images, draws: ra.shift_columns(images, pixels(images, draws), resample="bilinear"),
    }
    return {name: operations[name] for name in SMALL_OPERATIONS}


def _semifl_pool() -> dict[str, _Operation]:
    """The published constants, made for images of 224 pixels: on 32 x 32, a translation by 100 gives black, Solarize at
    threshold 0 inverts, and the 40-pixel square covers all that is right of and below its corner."""
    def cutout(images: Tensor, draws: _Draws) -> Tensor:
        side = images.shape[3]
        top, left = (np.maximum(0.0, draws[:, column] * side - 20) for column in (_A, _B))
        return ra.cutout(images, _on(images, top), _on(images, left), _on(images, np.full(len(draws), 40.0)))

    def pixels(images: Tensor, draws: _Draws) -> Tensor:
        return _rows(images, pixels=100 * _sign(draws))

    operations = _shared_pool(_full_magnitude) | {
        "Cutout": cutout,
        "Solarize": _invert,
        "TranslateX": lambda images, draws: ra.shift_rows(images, pixels(images, draws), resample="bilinear"),
        "TranslateY": lambda images, draws: ra.shift_columns(images, pixels(images, draws), resample="bilinear"),
    }
    return {name: operations[name] for name in SMALL_OPERATIONS}


def _fedmatch_pool() -> dict[str, _Operation]:
    def value(draws: _Draws, first: float, last: float) -> _Floats:
        """Entry of a 10-point line: the level is uniform below the image's largest level, which is uniform in 2..5."""
        level = np.floor(draws[:, _MAGNITUDE] * (2 + np.floor(draws[:, _RATE] * 4)))
        values: _Floats = np.linspace(first, last, 10)[level.astype(np.int64)]
        return values

    def factor(images: Tensor, draws: _Draws, last: float) -> Tensor:
        return _on(images, 1 + value(draws, 0, last) * _sign(draws))

    def bits(images: Tensor, draws: _Draws) -> Tensor:
        return _on(images, np.round(value(draws, 8, 4))).to(torch.int64)

    def shear(images: Tensor, draws: _Draws) -> Tensor:
        return _rows(images, shear=value(draws, 0, 0.3) * _sign(draws))

    def pixels(images: Tensor, draws: _Draws) -> Tensor:
        return _rows(images, pixels=value(draws, 0, 0.2) * images.shape[3] * _sign(draws))

    operations: dict[str, _Operation] = {
        "AutoContrast": _autocontrast,
        "Equalize": _unchanged,
        "Rotate": lambda images, draws: ra.rotate(images, _on(images, value(draws, 0, 360)), fill=128),
        "Solarize": lambda images, draws: ra.solarize(images, _on(images, value(draws, 256, 231))),
        "Color": lambda images, draws: ra.color(images, factor(images, draws, 0.9)),
        "Posterize": lambda images, draws: ra.posterize(images, bits(images, draws)),
        "Contrast": lambda images, draws: ra.contrast(images, factor(images, draws, 0.5)),
        "Brightness": lambda images, draws: ra.brightness(images, factor(images, draws, 0.3)),
        "Sharpness": lambda images, draws: ra.sharpness(images, factor(images, draws, 0.9)),
        "ShearX": lambda images, draws: ra.shift_rows(images, shear(images, draws), resample="bicubic"),
        "ShearY": lambda images, draws: ra.shift_columns(images, shear(images, draws), resample="bicubic"),
        # Nearest neighbour: the default of the transform that the official code calls without naming a filter.
        "TranslateX": lambda images, draws: ra.shift_rows(images, pixels(images, draws), resample="nearest"),
        "TranslateY": lambda images, draws: ra.shift_columns(images, pixels(images, draws), resample="nearest"),
    }
    return {name: operations[name] for name in FEDMATCH_OPERATIONS}


_POOLS: dict[str, dict[str, _Operation]] = {
    "small": _small_pool(),
    "semifl_official": _semifl_pool(),
    "fedmatch_official": _fedmatch_pool(),
    "fedmix": _fedmatch_pool(),
}
