"""Pictures of 16 bits, and TIFF files of several pages: one rule for a whole source, computed here with numpy."""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisilo.common.data.form import ImageForm, Reading
from semisilo.common.data.partly_labelled import read_partly_labelled
from semisilo.common.data.readers import read_images
from semisilo.common.errors import BadData
from tests.common.data.packed_zeros import deflated_zeros
from tests.each_of import each_of

tifffile = pytest.importorskip("tifffile")

DARK = np.arange(64, dtype=np.uint16).reshape(8, 8) * 30
"""At most 1890: fits into 12 bits."""
BRIGHT = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000


def by(values: np.ndarray, limit: float) -> np.ndarray:
    return np.floor(values * 255.0 / limit + 0.5).astype(np.uint8)


def read(folder: Path, **more: object) -> np.ndarray:
    return read_images(str(folder), **{"size": 8, "channels": 1, "labelled": False, **more}).images.images_NCHW.numpy()


@pytest.mark.parametrize("order", [("dark", "bright"), ("bright", "dark")])
def test_one_bright_picture_makes_the_whole_source_16_bits(tmp_path, order):
    """Whichever comes first, and however many lie between: a dark picture never becomes bright by itself."""
    for index, what in enumerate(order):
        Image.fromarray(DARK if what == "dark" else BRIGHT).save(tmp_path / f"{index}.png")
    for number in range(70):
        Image.fromarray(DARK).save(tmp_path / f"0{number:03}.png")
    got = read(tmp_path)
    assert np.array_equal(got[-1, 0], by(DARK if order[1] == "dark" else BRIGHT, 65535))
    assert all(np.array_equal(picture[0], by(DARK, 65535)) for picture in got[1:70])
    (tmp_path / f"{order.index('bright')}.png").unlink()
    assert all(np.array_equal(picture[0], by(DARK, 4095)) for picture in read(tmp_path)), "without it: 12 bits"


def test_the_labelled_and_the_unlabelled_part_of_a_source_share_their_range(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "unlabelled").mkdir()
    Image.fromarray(DARK).save(tmp_path / "cat/a.png")
    Image.fromarray(BRIGHT).save(tmp_path / "unlabelled/b.png")
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    found = read_partly_labelled(str(tmp_path), form, classes=("cat",), use_labels=True)
    assert np.array_equal(found.labelled.images_NCHW[0, 0].numpy(), by(DARK, 65535))
    assert np.array_equal(found.unlabelled.images_NCHW[0, 0].numpy(), by(BRIGHT, 65535))


def test_what_was_found_in_several_pictures_together_is_said(tmp_path):
    """Differential privacy of single images asks for it: one image may not change what others become."""
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))

    def tied(source: str, **reading: object) -> tuple[str, ...]:
        given = replace(form, reading=Reading(**reading))
        return read_partly_labelled(source, given, classes=(), use_labels=False).tied

    Image.fromarray(DARK.astype(np.uint8)).save(tmp_path / "a.png")
    assert tied(str(tmp_path)) == ()
    Image.fromarray(DARK).save(tmp_path / "b.png")
    assert tied(str(tmp_path)) == ("16 bits",)
    assert tied(str(tmp_path), window="image") == tied(str(tmp_path), window=(2000, 4000)) == ()

    arrays = tmp_path / "arrays.npz"
    for values, expected in ((DARK, ("16 bits",)), (DARK / 4095, ("fractions",)), (DARK.astype(np.int64),
                             ("whole numbers",)), (DARK.astype(np.uint8), ()), (DARK > 9, ())):
        np.savez(arrays, images=np.stack([values, values]))
        assert tied(str(arrays)) == expected
        assert tied(str(arrays), window="image") == tied(str(arrays), window=(2000, 4000)) == ()
    np.savez(arrays, labelled_images=np.stack([DARK / 4095]), labelled_labels=[0], unlabelled_images=np.stack([DARK]))
    assert tied(str(arrays)) == ("16 bits", "fractions")
    assert read_partly_labelled(str(arrays), form, classes=("a",), use_labels=True).tied == ("16 bits", "fractions")


def test_a_window_of_the_study_or_the_pictures_own_ends_take_the_place_of_the_rule(tmp_path):
    Image.fromarray(DARK).save(tmp_path / "a.png")
    Image.fromarray(BRIGHT).save(tmp_path / "b.tif")
    fixed = read(tmp_path, reading=Reading(window=(1000, 1000)))
    for picture, values in zip(fixed, (DARK, BRIGHT), strict=True):
        assert np.array_equal(picture[0], by(np.clip(values.astype(float) - 500, 0, 1000), 1000))
    own = read(tmp_path, reading=Reading(window="image"))
    for picture, values in zip(own, (DARK, BRIGHT), strict=True):
        assert np.array_equal(picture[0], by(values, values.max()))


def test_a_window_lets_negative_values_in(tmp_path):
    values = np.arange(-32, 32, dtype=np.int32).reshape(8, 8)
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(BadData, match="negative"):
        read(tmp_path)
    assert np.array_equal(read(tmp_path, reading=Reading(window=(0, 64)))[0, 0], by(values + 32.0, 64))


def test_a_window_leaves_pictures_of_8_bits_alone(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    for window in ((40, 400), "image"):
        assert np.array_equal(read(tmp_path, reading=Reading(window=window))[0, 0], noise)


def test_arrays_of_16_bits_obey_the_window_too(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.stack([DARK, BRIGHT]))
    both = read(tmp_path / "a.npz")
    assert np.array_equal(both[:, 0], by(np.stack([DARK, BRIGHT]), 65535))
    own = read(tmp_path / "a.npz", reading=Reading(window="image"))
    assert np.array_equal(own[0, 0], by(DARK, DARK.max()))
    fixed = read(tmp_path / "a.npz", reading=Reading(window=(1000, 2000)))
    assert np.array_equal(fixed[1, 0], by(np.clip(BRIGHT, 0, 2000), 2000))


@pytest.mark.parametrize("packing", [{}, {"compression": "zlib"}, {"planarconfig": "separate"}])
def test_colours_of_16_bits_in_a_tiff_follow_the_same_rule(tmp_path, packing):
    colours = np.random.default_rng(1).integers(0, 65536, (8, 8, 3)).astype(np.uint16)
    stored = np.moveaxis(colours, 2, 0) if "planarconfig" in packing else colours
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", **packing)
    got = read(tmp_path, channels=3)[0]
    assert np.array_equal(np.moveaxis(got, 0, 2), by(colours, 65535))
    tifffile.imwrite(tmp_path / "a.tif", stored // 16, photometric="rgb", **packing)
    assert np.array_equal(np.moveaxis(read(tmp_path, channels=3)[0], 0, 2), by(colours // 16, 4095))


@each_of("orientation", list(range(1, 9)))
def test_deep_colours_are_the_right_way_up_like_those_of_8_bits(tmp_path: Path, orientation: int) -> None:
    colours = np.random.default_rng(1).integers(0, 256, (4, 8, 3)).astype(np.uint8)
    for name, stored in (("a8", colours), ("b16", colours.astype(np.uint16) * 257)):
        tifffile.imwrite(tmp_path / f"{name}.tif", stored, photometric="rgb",
                         extratags=[(274, 3, 1, orientation, True)])
    both = read(tmp_path, channels=3)
    assert np.array_equal(both[0], both[1])
    assert both[0].any(axis=(0, 1)).all() == (orientation < 5), "it stands where it is on its side"


def test_deep_colours_with_opacity_lie_on_black_like_those_of_8_bits(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 4)).astype(np.uint8)
    pixels[0, :, 3], pixels[1, :, 3] = 0, 255
    for name, stored in (("a8", pixels), ("b16", pixels.astype(np.uint16) * 257)):
        tifffile.imwrite(tmp_path / f"{name}.tif", stored, photometric="rgb", extrasamples=["unassalpha"])
    eight, sixteen = read(tmp_path, channels=3).astype(int)
    assert not sixteen[:, 0].any()
    assert np.array_equal(sixteen[:, 1], pixels[1, :, :3].T)
    assert np.abs(eight - sixteen).max() <= 1, "but for the rounding of 8 bits"


def test_deep_colours_that_are_not_red_green_and_blue_are_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.full((8, 8, 4), 40000, dtype=np.uint16), photometric="separated",
                     planarconfig="contig")
    with pytest.raises(BadData, match=r"a\.tif cannot be read: its 16-bit colours are not red, green and blue"):
        read(tmp_path, channels=3)


def zlib_zeros(mebibytes: int) -> bytes:
    """As zlib packs them; its sum at the end counts the bytes, where all are zero."""
    sums = (mebibytes * 2**20 % 65521) << 16 | 1
    return b"\x78\xda" + deflated_zeros(mebibytes) + sums.to_bytes(4, "big")


def test_the_zeros_of_these_tests_are_what_zlib_reads():
    assert zlib.decompress(zlib_zeros(5)) == bytes(5 * 2**20)


def test_a_strip_that_unpacks_to_too_much_is_refused(tmp_path):
    """The strip of an 8 x 8 picture is replaced by a gigabyte of zeros, packed to a megabyte."""
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8, 3), np.uint16), photometric="rgb", compression="zlib")
    bomb = zlib_zeros(1024)
    content = (tmp_path / "a.tif").read_bytes()
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        tags = file.pages[0].tags
        offsets = {name: tags[name].valueoffset for name in ("StripOffsets", "StripByteCounts")}
        wide = {name: tags[name].dtype.name for name in offsets}
    changed = bytearray(content) + bomb
    for name, value in (("StripOffsets", len(content)), ("StripByteCounts", len(bomb))):
        size = {"SHORT": 2, "LONG": 4, "LONG8": 8}[wide[name]]
        if size == 2:
            pytest.skip("this version of tifffile writes short tags")
        changed[offsets[name]:offsets[name] + size] = value.to_bytes(size, "little")
    (tmp_path / "a.tif").write_bytes(changed)
    with pytest.raises(BadData, match="16-bit colours are damaged"):
        read(tmp_path, channels=3)


@pytest.mark.parametrize(("which", "expected"), [
    ("first", [10]), ("middle", [30]), ("all", [10, 20, 30, 40, 50]), (2, [20, 40]), (9, [10, 20, 30, 40, 50])])
def test_of_several_pages_a_setting_chooses(tmp_path, which, expected):
    pages = [Image.new("L", (8, 8), 10 * number) for number in range(1, 6)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    result = read_images(str(tmp_path), size=8, channels=1, labelled=False, reading=Reading(frames=which))
    assert result.images.images_NCHW[:, 0, 0, 0].tolist() == expected
    names = {"first": ("a.tif",), "middle": ("a.tif[2]",)}.get(str(which))
    assert names is None or result.images.names == names


def test_without_tifffile_one_line_names_the_extra(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8, 3), np.uint16), photometric="rgb")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(BadData, match="tifffile") as caught:
        read(tmp_path, on_error="skip")
    assert "pip install 'semisilo[tiff]'" in caught.value.line()


@each_of(("changed", "said"), [
    ({"window": (40.0, 0.0)}, "width above 0"), ({"window": "auto"}, 'window = "auto"'), ({"window": (1.0,)}, "centre"),
    ({"window": (float("nan"), 1.0)}, "centre"), ({"frames": "last"}, "frames"), ({"frames": 0}, "frames"),
    ({"slices": "first"}, "slices"), ({"window_number": 0}, "window_number")])
def test_a_reading_that_does_not_exist_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        Reading(**changed)


def test_a_tiff_of_which_zero_is_white_is_turned_round_whatever_its_depth(tmp_path):
    """Beside it black, which padding is."""
    values = np.vstack([DARK[:4], DARK[4:]])[:, :6]
    for name, stored, brightest in (("8", (values // 8).astype(np.uint8), 255), ("16", values, 4095)):
        for kind in ("minisblack", "miniswhite"):
            tifffile.imwrite(tmp_path / f"{name}.tif", stored, photometric=kind)
            got = read(tmp_path)[0, 0]
            expected = by(stored.astype(float), brightest)
            assert np.array_equal(got[:, 1:7], 255 - expected if kind == "miniswhite" else expected), (name, kind)
            assert not got[:, [0, 7]].any()
        (tmp_path / f"{name}.tif").unlink()
