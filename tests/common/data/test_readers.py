"""Sources as hospitals really have them: odd sizes, depths, leftovers, damage."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from semisilo.common.data.form import ImageForm, Selection
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.partly_labelled import check_partly_labelled, read_partly_labelled
from semisilo.common.data.preview.preview import look_at
from semisilo.common.data.readers import ImageSet, check_labelled, measure_form, read_images, survey
from semisilo.common.errors import BadConfiguration, BadData, SystemTrouble
from semisilo.prediction.images import open_source


def picture(
    path: Path, *, size: tuple[int, int] = (8, 8), mode: str = "L", value: object = 100, **save: object
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path, **save)
    return path


def pixel(folder: Path, **form: object) -> list[int]:
    """Channel values in the middle of the only image, 8 x 8."""
    images = read_images(str(folder), **{"size": 8, "channels": 3, "labelled": False, **form}).images
    return images.images_NCHW[0, :, 4, 4].tolist()


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    for name, value in (("lymphocyte/b.png", 20), ("basophil/z.png", 30), ("basophil/deep/a.png", 40),
                        ("monocyte/1.png", 50)):
        picture(tmp_path / name, value=value)
    return tmp_path


# --- Folders ---------------------------------------------------------------------------------------------------------

def test_class_folders_are_read_in_byte_order_with_sorted_classes(cells):
    picture(cells / "Zebra/é.png", value=60)
    result = read_images(str(cells), size=8, channels=1)
    assert result.classes == ("Zebra", "basophil", "lymphocyte", "monocyte")
    assert result.images.names == ("Zebra/é.png", "basophil/deep/a.png", "basophil/z.png", "lymphocyte/b.png",
                                   "monocyte/1.png")
    assert result.images.labels_N.tolist() == [0, 1, 1, 2, 3]
    assert result.images.labels_N.dtype == torch.int64
    assert result.images.images_NCHW.dtype == torch.uint8
    assert result.images.images_NCHW[:, 0, 0, 0].tolist() == [60, 40, 30, 20, 50]
    assert result.skipped == ()


def test_a_frozen_class_order_decides_the_labels_and_an_absent_class_shifts_none(cells):
    order = ("monocyte", "eosinophil", "lymphocyte", "basophil")
    result = read_images(str(cells), size=8, channels=1, classes=order)
    assert result.classes == order
    assert dict(zip(result.images.names, result.images.labels_N.tolist(), strict=True)) == {
        "basophil/deep/a.png": 3, "basophil/z.png": 3, "lymphocyte/b.png": 2, "monocyte/1.png": 0}


def test_an_unknown_class_folder_is_refused_with_the_nearest_name(cells):
    with pytest.raises(BadData, match="folder 'monocyte'") as caught:
        read_images(str(cells), size=8, channels=1, classes=("basophil", "lymphocyte", "Monocytes"))
    assert caught.value.remedy == "Did you mean 'Monocytes'?"
    assert len(read_images(str(cells), size=8, channels=1, classes=("x",), labelled=False).images) == 4


def test_a_class_name_has_one_spelling_whatever_the_file_system(tmp_path):
    picture(tmp_path / "O\u0308dem/a.png")  # decomposed, as macOS stores it
    result = read_images(str(tmp_path), size=8, channels=1, classes=("\u00d6dem",))
    assert result.images.labels_N.tolist() == [0]


def test_two_spellings_of_a_class_are_one_class(tmp_path):
    """As a folder that was copied from macOS beside one of the same name."""
    picture(tmp_path / "caf\u00e9" / "a.png")
    picture(tmp_path / "cafe\u0301" / "b.png", value=9)
    picture(tmp_path / "tea" / "c.png", value=90)
    found = read_images(str(tmp_path), size=4, channels=1)
    assert (found.classes, found.images.labels_N.tolist()) == (("caf\u00e9", "tea"), [0, 0, 1])
    assert survey(str(tmp_path)).class_counts == {"caf\u00e9": 2, "tea": 1}


def test_class_folders_whose_names_are_no_text_are_refused_by_name(tmp_path):
    for name in (b"caf\xe9", b"caf\xea", b"tea"):
        picture(tmp_path / os.fsdecode(name) / "a.png", value=name[-1] // 2)
    for read in (lambda: read_images(str(tmp_path), size=4, channels=1),
                 lambda: check_partly_labelled(str(tmp_path), classes=())):
        with pytest.raises(BadData) as caught:
            read()
        assert caught.value.text.endswith("the names of 2 folders are not in UTF-8: 'caf\\xe9', 'caf\\xea'.")
    assert len(read_images(str(tmp_path), size=4, channels=1, labelled=False).images) == 3


def test_unlabelled_reading_takes_images_at_any_depth_and_drops_labels(cells):
    picture(cells / "loose.png", value=70)
    result = read_images(str(cells), size=8, channels=1, labelled=False)
    assert result.images.labels_N is None
    assert result.images.names == ("basophil/deep/a.png", "basophil/z.png", "loose.png", "lymphocyte/b.png",
                                   "monocyte/1.png")
    labelled = read_images(str(cells), size=8, channels=1)
    assert [(item.name, "no class" in item.reason) for item in labelled.skipped] == [("loose.png", True)]
    assert len(labelled.images) == 4


def test_cleanup_are_ignored_in_silence_and_other_files_are_reported(cells):
    for name in (".DS_Store", "basophil/Thumbs.db", "basophil/._z.png", ".hidden/x.png", "desktop.ini",
                 "__MACOSX/y.png"):
        (cells / name).parent.mkdir(exist_ok=True)
        (cells / name).write_bytes(b"x")
    (cells / "basophil/notes.txt").write_text("stained")
    result = read_images(str(cells), size=8, channels=1)
    assert len(result.images) == 4
    assert [(item.name, item.reason) for item in result.skipped] == [
        ("basophil/notes.txt", "not an image")]


def test_an_image_without_a_telling_suffix_is_found_by_its_first_bytes(tmp_path):
    picture(tmp_path / "IM0001", value=9, format="PNG")
    assert read_images(str(tmp_path), size=8, channels=1, labelled=False).images.names == ("IM0001",)


@pytest.mark.parametrize("prepare", ["missing", "empty", "hollow", "text", "flat"])
def test_a_folder_without_usable_images_is_refused_by_name(tmp_path, prepare):
    folder = tmp_path / "scans"
    said = {"missing": "no such folder", "empty": "the folder is empty",
            "hollow": "there is no image in its folders",
            "text": "found 12 files, none is an image: first is a.txt", "flat": "no class folders"}[prepare]
    if prepare != "missing":
        folder.mkdir()
    if prepare == "hollow":
        (folder / "cat").mkdir()
    if prepare == "text":
        for letter in "abcdefghijkl":
            (folder / f"{letter}.txt").write_text("x")
    if prepare == "flat":
        picture(folder / "a.png")
    with pytest.raises(BadData, match="scans") as caught:
        read_images(str(folder), size=8, channels=1)
    assert said in caught.value.text
    assert caught.value.remedy
    assert "\n" not in caught.value.line()


def damaged(kind: str) -> bytes:
    if kind == "empty":
        return b""
    if kind == "text":
        return b"this is no picture"
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(stream, "PNG" if kind == "png" else "JPEG")
    return stream.getvalue()[: len(stream.getvalue()) // 2]


@pytest.mark.parametrize("kind", ["empty", "text", "png", "jpeg"])
def test_a_damaged_file_stops_the_reading_by_name_or_is_left_out_on_request(cells, kind):
    (cells / "lymphocyte/a.png").write_bytes(damaged(kind))
    with pytest.raises(BadData, match=r"lymphocyte/a\.png cannot be read") as caught:
        read_images(str(cells), size=8, channels=1)
    assert 'on_error = "skip"' in caught.value.remedy
    result = read_images(str(cells), size=8, channels=1, on_error="skip")
    assert [item.name for item in result.skipped] == ["lymphocyte/a.png"]
    assert result.images.names == ("basophil/deep/a.png", "basophil/z.png", "lymphocyte/b.png", "monocyte/1.png")
    assert result.images.labels_N.tolist() == [0, 0, 1, 2]
    assert result.images.images_NCHW[:, 0, 0, 0].tolist() == [40, 30, 20, 50]


@pytest.mark.parametrize("place", ["formats.decoding._opened", "formats.folder.os.scandir"])
def test_too_many_open_files_leave_no_image_out(cells, place):
    """Left out, the images would be others, and with them the bits of the study."""
    short = mock.patch(f"semisilo.common.data.{place}", side_effect=OSError(errno.EMFILE, "Too many open files"))
    with short, pytest.raises(SystemTrouble, match="open files"):
        read_images(str(cells), size=8, channels=1, on_error="skip")
    assert len(read_images(str(cells), size=8, channels=1, on_error="skip").images) == 4


def test_when_no_file_can_be_read_skipping_does_not_give_an_empty_set(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(BadData, match=r"none of the 1 images can be read: first is a\.png"):
        read_images(str(tmp_path), size=8, channels=1, labelled=False, on_error="skip")


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    picture(tmp_path / "a.png", size=(60, 60))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)
    with pytest.raises(BadData, match=r"a\.png cannot be read: 60 x 60 pixels are too many"):
        read_images(str(tmp_path), size=8, channels=1, labelled=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # beyond twice the limit Pillow itself refuses
    with pytest.raises(BadData, match="too many pixels"):
        read_images(str(tmp_path), size=8, channels=1, labelled=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3600)
    assert len(read_images(str(tmp_path), size=8, channels=1, labelled=False).images) == 1


def test_a_link_back_to_a_folder_above_does_not_loop_and_linked_classes_count(tmp_path):
    store = picture(tmp_path / "store/a.png").parent
    (tmp_path / "data").mkdir()
    (tmp_path / "data/basophil").symlink_to(store, target_is_directory=True)
    (store / "back").symlink_to(tmp_path / "data", target_is_directory=True)
    result = read_images(str(tmp_path / "data"), size=8, channels=1)
    assert result.images.names == ("basophil/a.png",)


def test_a_file_name_that_is_no_text_does_no_harm(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(picture(tmp_path / "b.png").read_bytes())
    except OSError:
        pytest.skip("this file system allows text names only")
    names = read_images(str(tmp_path), size=8, channels=1, labelled=False).images.names
    assert names == ("b.png", "\ufffd.png")
    "".join(names).encode()


def test_progress_rises_to_one(cells):
    seen: list[float] = []
    read_images(str(cells), size=8, channels=1, progress=lambda share, text: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


# --- Pixels ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "tif", "webp", "jpg", "ppm"])
def test_formats_give_the_same_grey(tmp_path, suffix):
    picture(tmp_path / f"a.{suffix}", value=100, **({"lossless": True} if suffix == "webp" else {}))
    assert all(abs(value - 100) <= 1 for value in pixel(tmp_path))


@pytest.mark.parametrize(("mode", "value", "rgb"), [
    ("1", 1, [255, 255, 255]), ("L", 7, [7, 7, 7]), ("RGB", (10, 20, 30), [10, 20, 30]),
    ("RGBA", (200, 100, 50, 128), [100, 50, 25]), ("LA", (200, 128), [100, 100, 100])])
def test_modes_become_colour_and_transparency_lies_on_black(tmp_path, mode, value, rgb):
    picture(tmp_path / "a.png", mode=mode, value=value)
    assert pixel(tmp_path) == pytest.approx(rgb, abs=1)


def test_a_palette_and_its_transparent_entry_are_resolved(tmp_path):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 250, 120, 60])
    image.save(tmp_path / "a.png")
    assert pixel(tmp_path) == [250, 120, 60]
    image.save(tmp_path / "a.png", transparency=1)
    assert pixel(tmp_path) == [0, 0, 0]


def test_cmyk_becomes_colour(tmp_path):
    picture(tmp_path / "a.tif", mode="CMYK", value=(0, 255, 255, 0))
    red, green, blue = pixel(tmp_path)
    assert red > 200 > 60 > max(green, blue)


def test_colour_becomes_luminance_and_grey_is_repeated(tmp_path):
    picture(tmp_path / "a.png", mode="RGB", value=(200, 100, 50))
    assert pixel(tmp_path, channels=1) == [round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)]
    picture(tmp_path / "a.png", mode="L", value=77)
    assert pixel(tmp_path, channels=3) == [77, 77, 77]


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(("brightest", "value", "expected"), [
    (4095, 2048, 128), (4095, 4095, 255), (65535, 2048, 8), (4096, 4096, 16), (200, 200, 12)])
def test_sixteen_bits_are_divided_by_twelve_or_sixteen_bits(tmp_path, suffix, brightest, value, expected):
    """round(255 * value / range), the range being 4095 when no pixel exceeds it, else 65535."""
    array = np.full((8, 8), value, dtype=np.uint16)
    array[0, 0] = brightest
    Image.fromarray(array).save(tmp_path / f"a.{suffix}")
    assert pixel(tmp_path, channels=1) == [expected]


def test_big_endian_and_wide_tiffs_are_read_and_negative_or_huge_values_refused(tmp_path):
    tags = b"".join(number.to_bytes(2, "big") + kind.to_bytes(2, "big") + (1).to_bytes(4, "big") + value
                    for number, kind, value in (
                        (256, 4, (8).to_bytes(4, "big")), (257, 4, (8).to_bytes(4, "big")),
                        (258, 3, b"\0\x10\0\0"), (259, 3, b"\0\x01\0\0"), (262, 3, b"\0\x01\0\0"),
                        (273, 4, (8).to_bytes(4, "big")), (277, 3, b"\0\x01\0\0"),
                        (278, 4, (8).to_bytes(4, "big")), (279, 4, (128).to_bytes(4, "big"))))
    data = np.full(64, 4095, dtype=">u2").tobytes()
    start = b"MM\0*" + (136).to_bytes(4, "big")
    (tmp_path / "a.tif").write_bytes(start + data + (9).to_bytes(2, "big") + tags + bytes(4))
    assert pixel(tmp_path, channels=1) == [255]
    for value, said in ((2048, None), (-5, "negative"), (70000, "70000")):
        Image.fromarray(np.full((8, 8), value, dtype=np.int32)).save(tmp_path / "a.tif")
        if said is None:
            assert pixel(tmp_path, channels=1) == [128]
        else:
            with pytest.raises(BadData, match=said):
                pixel(tmp_path)


@pytest.mark.parametrize(("value", "expected"), [(0.5, 128), (1.0, 255), (200.0, 200), (300.0, None), (-0.1, None),
                                                 (float("nan"), None)])
def test_fractions_are_read_on_the_scale_that_holds_them(tmp_path, value, expected):
    Image.fromarray(np.full((8, 8), value, dtype=np.float32)).save(tmp_path / "a.tif")
    if expected is None:
        with pytest.raises(BadData, match=r"a\.tif"):
            pixel(tmp_path)
    else:
        assert pixel(tmp_path, channels=1) == [expected]


def test_the_orientation_noted_by_the_camera_is_applied(tmp_path):
    image = Image.new("L", (8, 8))
    image.putpixel((0, 0), 255)
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    image.save(tmp_path / "a.png", exif=exif)
    read = read_images(str(tmp_path), size=8, channels=1, labelled=False).images.images_NCHW[0, 0]
    assert read[7, 7] == 255
    assert read.sum() == 255


def test_of_several_frames_the_first_is_taken(tmp_path):
    frames = [Image.new("L", (8, 8), value) for value in (30, 200)]
    for suffix in ("gif", "tif"):
        frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
        assert pixel(tmp_path, channels=1) == [30]
        (tmp_path / f"a.{suffix}").unlink()


def test_fit_pads_with_black_crop_cuts_and_stretch_does_neither(tmp_path):
    # 16 wide, 8 high; the left half is white.
    image = Image.new("L", (16, 8))
    image.paste(255, (0, 0, 8, 8))
    image.save(tmp_path / "a.png")

    def read(resize: str) -> torch.Tensor:
        return read_images(str(tmp_path), size=8, channels=1, resize=resize, labelled=False).images.images_NCHW[0, 0]

    fit, crop, stretch = read("fit"), read("crop"), read("stretch")
    assert not fit[:1].any()
    assert not fit[7:].any()
    assert (fit[3:5, :3] == 255).all()
    assert not fit[:, 5:].any()
    assert (crop[:, :4] == 255).all()
    assert not crop[:, 4:].any()
    assert (stretch[:, :3] == 255).all()
    assert not stretch[:, 5:].any()


@pytest.mark.parametrize("size", [(37, 20), (20, 37), (9, 64), (64, 64), (3, 5)])
def test_fit_equals_padding_at_full_size_and_then_scaling(tmp_path, size):
    """The two axes are resampled apart to save memory; rounding may differ by one level from Pillow's."""
    noise = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    side = max(size)
    padded = Image.new("RGB", (side, side))
    padded.paste(Image.fromarray(noise), ((side - size[0]) // 2, (side - size[1]) // 2))
    expected = np.asarray(padded.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    got = read_images(str(tmp_path), size=16, channels=3, labelled=False).images.images_NCHW[0]
    assert np.abs(np.moveaxis(got.numpy(), 0, 2) - expected).max() <= 1


@pytest.mark.parametrize("resize", ["fit", "crop", "stretch"])
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 2), (30000, 2)])
def test_odd_sizes_are_read(tmp_path, resize, size):
    picture(tmp_path / "a.png", size=size, value=255)
    got = read_images(str(tmp_path), size=8, channels=1, resize=resize, labelled=False).images.images_NCHW
    assert got.shape == (1, 1, 8, 8)
    if resize != "fit":
        assert (got == 255).all()


def test_grey_28_pixel_images_are_padded_to_32_and_repeated_to_three_channels(tmp_path):
    """As FedMatch has Fashion-MNIST: two pixels of black on each side, nothing scaled, so the mean falls by (28/32)^2
    (0.2860 to 0.2190)."""
    noise = np.random.default_rng(4).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images=noise)
    form = {"size": 32, "channels": 3, "resize": "pad", "labelled": False}
    got = read_images(str(tmp_path / "a.npz"), **form).images.images_NCHW.numpy()
    assert np.array_equal(got, np.repeat(np.pad(noise, ((0, 0), (2, 2), (2, 2)))[:, None], 3, axis=1))
    assert got.mean() == pytest.approx(noise.mean() * (28 / 32) ** 2)
    for number, array in enumerate(noise):
        Image.fromarray(array).save(tmp_path / f"{number}.png")
    (tmp_path / "a.npz").unlink()
    assert np.array_equal(read_images(str(tmp_path), **form).images.images_NCHW.numpy(), got)


def test_pad_puts_an_odd_pixel_right_and_below_and_scales_nothing(tmp_path):
    picture(tmp_path / "a.png", size=(5, 2), value=255)
    got = read_images(str(tmp_path), size=8, channels=1, resize="pad", labelled=False).images.images_NCHW[0, 0]
    expected = torch.zeros(8, 8, dtype=torch.uint8)
    expected[3:5, 1:6] = 255
    assert torch.equal(got, expected)


def test_pad_refuses_a_larger_picture_and_says_which_size_it_needs(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 28, 40), np.uint8))
    with pytest.raises(BadData, match="40x28 pixels it does not fit into 32x32") as caught:
        read_images(str(tmp_path / "a.npz"), size=32, channels=1, resize="pad", labelled=False)
    assert "size = 40" in caught.value.remedy
    picture(tmp_path / "one.png", size=(3, 9))
    (tmp_path / "a.npz").unlink()
    with pytest.raises(BadData, match=r"one\.png cannot be read: with 3x9 pixels it does not fit into 8x8"):
        read_images(str(tmp_path), size=8, channels=1, resize="pad", labelled=False)


@pytest.mark.parametrize(("form", "said"), [
    ({"size": 0}, "size"), ({"size": 5000}, "size"), ({"channels": 2}, "channels"), ({"resize": "fitt"}, "fit"),
    ({"classes": ("a", "a")}, "'a' is listed twice")])
def test_a_form_that_does_not_exist_is_refused(cells, form, said):
    with pytest.raises(BadConfiguration, match=said):
        read_images(str(cells), **{"size": 8, "channels": 1, **form})


# --- Arrays ----------------------------------------------------------------------------------------------------------

def medmnist(path: Path, **more: np.ndarray) -> str:
    generator = np.random.default_rng(0)
    arrays = {f"{name}_images": generator.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
              for name, count in (("train", 6), ("val", 3), ("test", 4))}
    arrays |= {f"{name}_labels": (np.arange(count) % 3).astype(np.uint8)[:, None]
               for name, count in (("train", 6), ("val", 3), ("test", 4))}
    np.savez(path, **{key: value for key, value in (arrays | more).items() if value is not None})
    return str(path)


def test_an_npz_in_medmnists_layout_gives_the_split_that_is_named(tmp_path):
    source = medmnist(tmp_path / "blood.npz")
    train, val, test = (read_images(source + part, size=8, channels=3) for part in ("", "#val", "#test"))
    assert [len(result.images) for result in (train, val, test)] == [6, 3, 4]
    assert train.images.labels_N.tolist() == [0, 1, 2, 0, 1, 2]
    assert train.classes == val.classes == ("0", "1", "2")
    assert train.images.names[2] == "blood.npz[2]"
    with np.load(source) as arrays:
        assert np.array_equal(np.moveaxis(test.images.images_NCHW.numpy(), 1, 3), arrays["test_images"])
    assert read_images(source, size=8, channels=3, labelled=False).images.labels_N is None
    with pytest.raises(BadData, match="no split 'tset'"):
        read_images(source + "#tset", size=8, channels=3)


def test_a_split_without_the_highest_class_still_counts_all_classes_of_the_file(tmp_path):
    source = medmnist(tmp_path / "a.npz", val_labels=np.zeros((3, 1), dtype=np.int64))
    assert read_images(source + "#val", size=8, channels=1).classes == ("0", "1", "2")


def test_class_names_of_an_npz_are_mapped_to_the_studys_order(tmp_path):
    source = medmnist(tmp_path / "a.npz", classes=np.array(["cat", "dog", "eel"]))
    assert read_images(source, size=8, channels=1).classes == ("cat", "dog", "eel")
    result = read_images(source, size=8, channels=1, classes=("eel", "ant", "dog", "cat"))
    assert result.images.labels_N.tolist() == [3, 2, 0, 3, 2, 0]
    with pytest.raises(BadData, match="class 'eel'") as caught:
        read_images(source, size=8, channels=1, classes=("cat", "dog", "eels"))
    assert "'eels'" in caught.value.remedy


def test_class_names_of_an_npz_and_of_columns_have_one_spelling(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 5, 5), np.uint8), labels=[0, 1],
             classes=np.array(["cafe\u0301", "tea"]))
    assert read_images(str(tmp_path / "a.npz"), size=4, channels=1).classes == ("caf\u00e9", "tea")
    np.savez(tmp_path / "b.npz", images=np.zeros((2, 5, 5), np.uint8), labels=[0, 1],
             classes=np.array(["cafe\u0301", "caf\u00e9"]))
    with pytest.raises(BadData, match="not a list of different names"):
        read_images(str(tmp_path / "b.npz"), size=4, channels=1)
    for name in "xy":
        picture(tmp_path / f"{name}.png")
    for heading in ("cafe\u0301", "caf\u00e9"):
        for named in ("", "#label=cafe\u0301,tea"):
            (tmp_path / "t.csv").write_text(f"file,{heading},tea\nx.png,1,0\ny.png,0,1\n")
            found = read_images(f"{tmp_path}/t.csv{named}", size=4, channels=1, classes=("caf\u00e9", "tea"))
            assert found.images.labels_N.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["folders", "labelled", "cells", "columns", "findings", "npz", "rows"])
def test_a_study_keeps_the_spelling_with_which_it_was_begun(kind: str, tmp_path: Path) -> None:
    """Earlier versions took the names of classes as they were written: with decomposed letters, or a space behind."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    begun, several = (f"{decomposed} ", "tea"), kind in ("columns", "findings", "rows")
    source = str(tmp_path)
    for name in (composed, "tea"):
        picture(tmp_path / ("labelled" if kind == "labelled" else "") / name / "x.png", value=len(name))
    if kind in ("cells", "findings"):
        source = f"{tmp_path}/t.csv"
        Path(source).write_text(f"file,label\n{composed}/x.png,{decomposed}\ntea/x.png,tea\n")
    elif kind == "columns":
        source = f"{tmp_path}/t.csv"
        Path(source).write_text(f"file,{composed},tea\n{composed}/x.png,1,-1\ntea/x.png,0,1\n")
    elif kind in ("npz", "rows"):
        source = f"{tmp_path}/a.npz"
        np.savez(source, images=np.zeros((2, 5, 5), np.uint8), labels=np.eye(2, dtype=int) if several else [0, 1],
                 classes=np.array([decomposed, "tea"]))
    expected = [[1, -1 if kind == "columns" else 0], [0, 1]] if several else [0, 1]
    form = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))
    check_partly_labelled(source, classes=begun, multi_label=several)
    found = read_partly_labelled(source, form, classes=begun, use_labels=True, multi_label=several)
    assert found.labelled.labels_N.tolist() == expected
    shown = look_at(source, form=Geometry(size=8, channels=1, resize="fit"), classes=begun, at_silo=True,
                    multi_label=several)
    assert (shown.misfits, tuple(shown.classes)) == ((), begun)
    if kind == "labelled":
        return
    check_labelled(source, classes=begun, multi_label=several)
    read = read_images(source, size=8, channels=1, classes=begun, multi_label=several)
    assert (read.classes, read.images.labels_N.tolist()) == (begun, expected)
    opened = open_source(source, form=form, classes=begun, on_error="stop", batch_size=2, multi_label=several)
    batch, = opened
    assert (batch.labels if not several else batch.rows_BK.tolist(), opened.not_compared) == (expected, "")


def test_labels_of_an_npz_without_class_names_are_indices_into_the_studys_classes(tmp_path):
    source = medmnist(tmp_path / "a.npz")
    assert read_images(source, size=8, channels=1, classes=("x", "y", "z")).images.labels_N.tolist() == [0, 1, 2] * 2
    with pytest.raises(BadData, match="label 2 of image 2 is out of range"):
        read_images(source, size=8, channels=1, classes=("x", "y"))


def test_plain_keys_grey_stacks_and_a_single_split_are_understood(tmp_path):
    grey = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
    np.savez_compressed(tmp_path / "a.npz", images=grey, labels=np.array([1, 0, 1, 0]))
    result = read_images(str(tmp_path / "a.npz"), size=8, channels=3)
    assert torch.equal(result.images.images_NCHW[:, 2], torch.from_numpy(grey))
    np.savez(tmp_path / "b.npz", test_images=grey[..., None])
    assert len(read_images(str(tmp_path / "b.npz"), size=16, channels=1, labelled=False).images) == 4


def test_arrays_and_files_of_the_same_pictures_give_the_same_pixels(tmp_path):
    noise = np.random.default_rng(2).integers(0, 256, (3, 21, 34, 4)).astype(np.uint8)
    noise[1:, :, :, 3] = 255
    np.savez(tmp_path / "a.npz", images=noise)
    for number, array in enumerate(noise):
        (tmp_path / "files").mkdir(exist_ok=True)
        Image.fromarray(array).save(tmp_path / f"files/{number}.png")
    for channels in (1, 3):
        for resize in ("fit", "crop", "stretch"):
            form = {"size": 16, "channels": channels, "resize": resize, "labelled": False}
            one, other = (read_images(str(tmp_path / source), **form).images.images_NCHW.int()
                          for source in ("a.npz", "files"))
            assert torch.equal(one[1:], other[1:])
            assert (one[0] - other[0]).abs().max() <= 1, "opacity may be rounded differently by one level"


@pytest.mark.parametrize(("images", "expected"), [
    (np.full((1, 2, 2), 4095, np.uint16), 255), (np.full((1, 2, 2), 200, np.int64), 200),
    (np.full((1, 2, 2), 0.5), 128), (np.full((1, 2, 2), 200.0, np.float32), 200), (np.ones((1, 2, 2), bool), 255)])
def test_arrays_of_other_types_follow_the_rule_of_depth(tmp_path, images, expected):
    np.savez(tmp_path / "a.npz", images=images)
    got = read_images(str(tmp_path / "a.npz"), size=2, channels=1, labelled=False).images.images_NCHW
    assert (got == expected).all()


PICTURES = np.zeros((4, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize(("arrays", "said"), [
    ({"pixels": PICTURES}, "its keys: pixels"),
    ({"images": PICTURES}, "no key 'labels'"),
    ({"images": PICTURES, "labels": np.zeros(3, int)}, "4 images but 3 labels"),
    ({"images": PICTURES, "labels": np.zeros((4, 14), int)}, "4 x 14"),
    ({"images": PICTURES, "labels": np.zeros(4)}, "float64"),
    ({"images": PICTURES, "labels": np.array([0, 1, -2, 0])}, "label -2 of image 2"),
    ({"images": PICTURES, "labels": np.full(4, -1)}, "4 images and no label: no class of any is known (-1)."),
    ({"images": PICTURES, "labels": np.array([0, 1, 2**40, 0])}, "of image 2 is out of range"),
    ({"images": PICTURES, "labels": np.array([0, 1, 2, 0]), "classes": np.array(["a", "b"])}, "label 2 of image 2"),
    ({"images": PICTURES, "labels": np.zeros(4, int), "classes": np.array(["a", "a"])},
     "not a list of different names"),
    ({"images": PICTURES[0], "labels": np.zeros(8, int)}, "8 x 8"),
    ({"images": np.zeros((4, 3, 8, 8), np.uint8), "labels": np.zeros(4, int)}, "transpose(0, 2, 3, 1)"),
    ({"images": np.zeros((4, 8, 8, 8), np.uint8), "labels": np.zeros(4, int)}, "Volumes"),
    ({"images": PICTURES[:0], "labels": np.zeros(0, int)}, "is empty"),
    ({"images": np.full((4, 8, 8), 2.0e3), "labels": np.zeros(4, int)}, "beyond 255"),
    ({"images": np.full((4, 8, 8), np.nan), "labels": np.zeros(4, int)}, "NaN"),
    ({"images": np.full((4, 8, 8), -1), "labels": np.zeros(4, int)}, "negative"),
    ({"images": np.full((4, 8, 8), "x"), "labels": np.zeros(4, int)}, "not numbers"),
])
def test_an_npz_that_does_not_fit_is_refused_by_key(tmp_path, arrays, said):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadData, match=r"a\.npz") as caught:
        read_images(str(tmp_path / "a.npz"), size=8, channels=1)
    assert said in caught.value.line()
    assert caught.value.remedy


@pytest.mark.parametrize("named", [False, True])
def test_images_of_an_npz_whose_label_is_minus_one_have_none(tmp_path, named):
    images = np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([-1, 1, 0, -1]),
             **({"classes": np.array(["b", "a"])} if named else {}))
    found = read_images(str(tmp_path / "a.npz"), size=8, channels=1, classes=("a", "b") if named else None)
    assert found.images.images_NCHW[:, 0, 0, 0].tolist() == [1, 2]
    assert found.images.labels_N.tolist() == ([0, 1] if named else [1, 0])
    assert found.images.names == ("a.npz[1]", "a.npz[2]")
    assert [(each.name, each.reason) for each in found.skipped] == [("2 rows", "have no label")]
    seen = survey(str(tmp_path / "a.npz"))
    assert (seen.num_images, seen.num_labelled, len(seen.classes)) == (4, 2, 2)


def test_pickled_objects_in_an_npz_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    np.savez(tmp_path / "a.npz", images=np.array([Trap()], dtype=object))
    with pytest.raises(BadData, match="Python objects"):
        read_images(str(tmp_path / "a.npz"), size=8, channels=1, labelled=False)
    np.savez(tmp_path / "b.npz", images=PICTURES, labels=np.array([Trap()] * 4, dtype=object))
    with pytest.raises(BadData, match="Python objects"):
        read_images(str(tmp_path / "b.npz"), size=8, channels=1)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_npz_is_refused_by_name(tmp_path):
    whole = Path(medmnist(tmp_path / "a.npz")).read_bytes()
    flipped = bytearray(whole)
    flipped[300] ^= 255  # inside the first member's data: its checksum no longer holds
    for name, data in (("cut", whole[: len(whole) // 2]), ("empty", b""), ("text", b"hello"), ("flip", bytes(flipped))):
        (tmp_path / f"{name}.npz").write_bytes(data)
        with pytest.raises(BadData, match=f"{name}.npz") as caught:
            read_images(str(tmp_path / f"{name}.npz"), size=8, channels=3)
        assert "\n" not in caught.value.line()
    np.save(tmp_path / "single.npy", PICTURES)
    (tmp_path / "single.npz").write_bytes((tmp_path / "single.npy").read_bytes())
    with pytest.raises(BadData, match="single array"), mock.patch.object(np, "load") as load:
        read_images(str(tmp_path / "single.npz"), size=8, channels=3)
    assert not load.called, "it may be larger than memory"


def test_an_npz_whose_disk_fails_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "data.npz", images=np.zeros((3, 8, 8), np.uint8))
    real, read = zipfile.ZipExtFile.read, 0

    def failing(self: zipfile.ZipExtFile, size: int = -1) -> bytes:
        nonlocal read
        read += 1
        if read > good:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, size)

    monkeypatch.setattr(zipfile.ZipExtFile, "read", failing)
    for good in (0, 5):  # while it looks at the header, and at the values
        read = 0
        with pytest.raises(SystemTrouble, match=r"data\.npz: Input/output error"):
            read_images(f"{tmp_path}/data.npz", size=8, channels=1)
        assert read > good


def test_an_npz_that_claims_a_terabyte_is_refused_before_memory_is_taken(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (2**30, 32, 32)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", stream.getvalue() + bytes(100))
    with pytest.raises(BadData, match="declares more data than the file holds"):
        read_images(str(tmp_path / "a.npz"), size=8, channels=1, labelled=False)


def test_an_npz_is_not_unpacked_for_a_header_that_is_longer_than_any(tmp_path, monkeypatch):
    """A deflated header of a gigabyte is a megabyte, and numpy reads it whole before it looks at its limit."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", b"\x93NUMPY\2\0" + (2**24).to_bytes(4, "little") + b" " * 2**24)
    real, taken = zipfile.ZipExtFile.read, 0

    def counted(self: zipfile.ZipExtFile, size: int = -1) -> bytes:
        nonlocal taken
        found = real(self, size)
        taken += len(found)
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    with pytest.raises(BadData, match="key 'images' cannot be read: its header is said to have 16777216 bytes"):
        read_images(str(tmp_path / "a.npz"), size=8, channels=1, labelled=False)
    assert taken < 100


def test_the_header_that_is_checked_is_that_of_the_array_that_is_read(tmp_path):
    """An archive may have a key with and without its suffix: numpy reads the one without."""
    members = []
    for values in (PICTURES, PICTURES[:2]):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, values)
        members.append(stream.getvalue())
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", members[0])
        archive.writestr("images", members[1][:100] + b"x" * (len(members[1]) - 100))
    with pytest.raises(BadData, match="key 'images' cannot be read"):
        survey(str(tmp_path / "a.npz"))
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("images.npy", members[0])
        archive.writestr("images", members[1])
    assert survey(str(tmp_path / "b.npz")).num_images == 2
    assert len(read_images(str(tmp_path / "b.npz"), size=8, channels=1, labelled=False).images) == 2


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_of_every_version_of_npy_are_read(tmp_path, version):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, PICTURES, version=version)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", stream.getvalue())
    assert len(read_images(str(tmp_path / "a.npz"), size=8, channels=1, labelled=False).images) == len(PICTURES)


def test_a_file_that_is_neither_is_refused(tmp_path):
    (tmp_path / "scans.zip").write_bytes(b"PK")
    with pytest.raises(BadData, match=r"neither a folder nor an \.npz"):
        read_images(str(tmp_path / "scans.zip"), size=8, channels=1)


def test_the_digits_are_all_there_and_their_split_is_stratified():
    everything, train, test = (read_images(f"digits{part}", size=8, channels=1) for part in ("", "#train", "#test"))
    assert [len(result.images) for result in (everything, train, test)] == [1797, 1442, 355]
    total, held = (torch.bincount(result.images.labels_N, minlength=10) for result in (everything, test))
    assert torch.equal(held, total // 5), "every fifth of each class"
    assert everything.classes == tuple("0123456789")
    from sklearn.datasets import load_digits
    scans = load_digits().images
    assert np.abs(everything.images.images_NCHW[:, 0].numpy() / 255 - scans / 16).max() < 0.5 / 255 + 1e-9
    rows = {bytes(image.numpy().tobytes()) for image in train.images.images_NCHW}
    assert sum(bytes(image.numpy().tobytes()) in rows for image in test.images.images_NCHW) == 0
    with pytest.raises(BadData, match="no split 'val'"):
        read_images("digits#val", size=8, channels=1)
    assert read_images("digits", size=12, channels=3).images.images_NCHW.shape == (1797, 3, 12, 12)


# --- Survey and image sets -------------------------------------------------------------------------------------------

def test_a_survey_agrees_with_reading(cells, tmp_path_factory):
    (cells / "empty").mkdir()
    picture(cells / "monocyte/2.png", size=(10, 6), mode="RGB", value=(1, 2, 3))
    found = survey(str(cells))
    assert (found.kind, found.num_images, found.channels) == ("class_folders", 5, 3)
    assert found.classes == read_images(str(cells), size=8, channels=1).classes
    assert found.class_counts == {"basophil": 2, "empty": 0, "lymphocyte": 1, "monocyte": 2}
    assert found.sizes == {(8, 8): 4, (10, 6): 1}
    flat = survey(str(cells / "lymphocyte"))
    assert (flat.kind, flat.num_images, flat.classes, flat.channels) == ("flat_folder", 1, (), 1)
    source = medmnist(tmp_path_factory.mktemp("npz") / "a.npz")
    arrays = survey(source + "#test")
    assert (arrays.kind, arrays.num_images, arrays.channels) == ("npz", 4, 3)
    assert arrays.class_counts == {"0": 2, "1": 1, "2": 1}
    assert arrays.sizes == {(8, 8): 4}
    digits = survey("digits")
    assert (digits.kind, digits.num_images, digits.sizes, digits.channels) == ("digits", 1797, {(8, 8): 1797}, 1)


def test_a_survey_of_an_unlabelled_npz_has_no_classes(tmp_path):
    np.savez(tmp_path / "a.npz", images=PICTURES)
    found = survey(str(tmp_path / "a.npz"))
    assert (found.num_images, found.classes, found.class_counts) == (4, (), {})


@pytest.mark.slow
def test_a_survey_does_not_import_torch(cells):
    code = (f"import sys; from semisilo.common.data.readers import survey; survey({str(cells)!r}); survey('digits'); "
            "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mean_and_deviation_are_those_of_all_pixels():
    pixels = np.random.default_rng(3).integers(0, 256, (1500, 3, 4, 4)).astype(np.uint8)
    pixels[:, 2] = 51
    mean, std = measure_form(ImageSet(torch.from_numpy(pixels), None, ("x",) * 1500))
    scaled = pixels.astype(np.float64) / 255
    assert mean == pytest.approx(scaled.mean((0, 2, 3)))
    assert std[:2] == pytest.approx(scaled.std((0, 2, 3))[:2])
    assert std[2] == 1 / 255, "a constant channel can still be divided by it"
    with pytest.raises(BadData):
        measure_form(ImageSet(torch.empty(0, 1, 8, 8, dtype=torch.uint8), None, ()))


def test_subsets_keep_images_labels_and_names_together():
    images = ImageSet(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5) * 10, tuple("abcde"))
    for indices in ([3, 1, 3], np.array([3, 1, 3]), torch.tensor([3, 1, 3])):
        part = images.subset(indices)
        assert part.images_NCHW.flatten().tolist() == [3, 1, 3]
        assert part.labels_N.tolist() == [30, 10, 30]
        assert part.names == ("d", "b", "d")
    assert len(images.subset([])) == 0
    assert images.without_labels().labels_N is None
    assert len(images) == 5
    for wrong in ([5], [-1], [True, False, True, True, False]):
        with pytest.raises(IndexError):
            images.subset(wrong)
    with pytest.raises(ValueError, match="names"):
        ImageSet(images.images_NCHW, None, ("a",))


def test_a_key_of_an_npz_says_whose_image_it_is(tmp_path):
    images, path = np.zeros((3, 8, 8), np.uint8), tmp_path / "scans.npz"
    np.savez(path, train_images=images, train_labels=np.array([0, 1, 0]), train_patients=np.array([4, -1, 4]))
    first, second, third = read_images(str(path), size=8, channels=1).images.patients
    assert (first == third != "", second) == (True, ""), "-1: not known"
    np.savez(path, images=images, labels=np.array([0, 1, 0]), patients=np.array(["P4", "", "P4"]))
    assert read_images(str(path), size=8, channels=1).images.patients[1] == ""
    assert read_images(str(path), size=8, channels=1, selection=Selection(patient="none")).images.patients == ()
    np.savez(path, images=images, labels=np.array([0, 1, 0]), patients=np.array([1.5, 2.0, 3.0]))
    with pytest.raises(BadData, match="'patients' must be a whole number or a text for each of 3 images"):
        read_images(str(path), size=8, channels=1)


def test_a_key_of_an_npz_says_what_its_values_were_divided_by(tmp_path):
    images, path = np.zeros((3, 8, 8), np.uint8), tmp_path / "scans.npz"
    labels = np.array([0, 1, 0])
    np.savez(path, test_images=images, test_labels=labels, test_divided_by=np.array(["fractions=1", "16 bits=4095"]))
    assert read_images(f"{path}#test", size=8, channels=1).ranges == {"16 bits": 4095.0, "fractions": 1.0}
    assert read_images(f"{path}#test", size=8, channels=1, ranges={"16 bits": 65535.0}).ranges["16 bits"] == 65535.0
    for wrong in (["16 bits=4000"], ["17 bits=4095"], ["16 bits"], "16 bits=4095", [4095.0], ["16 bits=nan"]):
        np.savez(path, images=images, labels=labels, divided_by=np.array(wrong))
        with pytest.raises(BadData, match="'divided_by' does not say what values were divided by"):
            read_images(str(path), size=8, channels=1)
