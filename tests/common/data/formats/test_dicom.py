"""DICOM files: real ones that pydicom brings along, and made ones whose pixels are computed here with numpy alone."""

from __future__ import annotations

import io
import logging
import shutil
import struct
import sys
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pydicom = pytest.importorskip("pydicom")
from pydicom.data.data_manager import DATA_ROOT  # noqa: E402
from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.encaps import encapsulate  # noqa: E402
from pydicom.uid import (  # noqa: E402
    JPEG2000,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    SecondaryCaptureImageStorage,
)

from semisilo.common.data import room  # noqa: E402
from semisilo.common.data.form import Reading, Selection  # noqa: E402
from semisilo.common.data.formats.dicom import open_dicom  # noqa: E402
from semisilo.common.data.formats.pixels import Geometry, NoPictureError, UnusableError  # noqa: E402
from semisilo.common.data.formats.raster import open_raster  # noqa: E402
from semisilo.common.data.preview.preview import look_at  # noqa: E402
from semisilo.common.data.readers import read_images, survey  # noqa: E402
from semisilo.common.errors import BadConfiguration, BadData  # noqa: E402
from tests.common.data.twelve_bits import jpeg_of_12_bits  # noqa: E402
from tests.each_of import each_of  # noqa: E402

REAL = Path(DATA_ROOT) / "test_files"
NAME = "Unspeakable^Patient"


def made(path: Path, pixels: np.ndarray | bytes, *, syntax: str = ExplicitVRLittleEndian, **tags: object) -> Path:
    """A file of these pixels, grey of 16 bits unless the tags say otherwise, of a patient with a name."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    data.SOPClassUID, data.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3"
    data.PatientName, data.PatientID = NAME, "4711-0815"
    if isinstance(pixels, np.ndarray):
        data.Rows, data.Columns = pixels.shape[:2] if pixels.ndim == 2 or pixels.shape[-1] == 3 else pixels.shape[1:3]
        data.SamplesPerPixel = 3 if pixels.ndim > 2 and pixels.shape[-1] == 3 else 1
        data.BitsAllocated = data.BitsStored = 8 * pixels.dtype.itemsize
        data.HighBit = data.BitsStored - 1
        data.PixelRepresentation = int(pixels.dtype.kind == "i")
        if data.SamplesPerPixel == 3:
            data.PlanarConfiguration = 0
        if pixels.ndim == 3 and data.SamplesPerPixel == 1:
            data.NumberOfFrames = len(pixels)
        pixels = pixels.tobytes()
    data.PhotometricInterpretation = "RGB" if data.get("SamplesPerPixel") == 3 else "MONOCHROME2"
    for name, value in tags.items():
        setattr(data, name, value)
    if "BitsStored" in tags and "HighBit" not in tags:
        data.HighBit = data.BitsStored - 1
    data.PixelData = pixels + b"\0" * (len(pixels) % 2)
    data.save_as(path, enforce_file_format=True)
    return path


def shown(path: Path, reading: Reading = Reading(), frame: int = 0) -> np.ndarray:
    return open_dicom(path).frame(frame, reading)


STORED = np.arange(-1024, 3072, dtype=np.int16).reshape(64, 64)


def window(values: np.ndarray, centre: float, width: float) -> np.ndarray:
    """PS3.3 C.11.2.1.2.1 from scratch, rounded half up."""
    y = np.clip(((values - (centre - 0.5)) / (width - 1) + 0.5) * 255, 0, 255)
    return np.floor(y + 0.5).astype(np.uint8)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian])
def test_values_in_the_upper_bits_are_refused_and_not_taken_for_noise(tmp_path, syntax):
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    made(tmp_path / "left.dcm", values << 4, syntax=syntax, BitsStored=12, HighBit=15)
    with pytest.raises(UnusableError, match=r"its values lie in the upper bits \(HighBit\), which is not read"):
        open_dicom(tmp_path / "left.dcm")
    right = made(tmp_path / "right.dcm", values, syntax=syntax, BitsStored=12, HighBit=11)
    assert np.array_equal(shown(right), np.floor(values * 255.0 / 4095 + 0.5))


def test_hounsfield_units_go_through_slope_intercept_and_the_files_window(tmp_path):
    path = made(tmp_path / "a", STORED, RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=40, WindowWidth=400)
    assert np.array_equal(shown(path), window(STORED.astype(float) * 2 - 1000, 40, 400))


def test_the_studys_window_takes_the_place_of_the_files(tmp_path):
    path = made(tmp_path / "a", STORED, RescaleIntercept=-24, WindowCenter=40, WindowWidth=400)
    assert np.array_equal(shown(path, Reading(window=(-600, 1500))), window(STORED - 24.0, -600, 1500))


def test_of_several_windows_the_wanted_one_counts_and_the_last_where_there_are_fewer(tmp_path):
    path = made(tmp_path / "a", STORED, WindowCenter=[40, -600], WindowWidth=[400, 1500])
    for number, (centre, width) in ((1, (40, 400)), (2, (-600, 1500)), (7, (-600, 1500))):
        assert np.array_equal(shown(path, Reading(window_number=number)), window(STORED * 1.0, centre, width))


@pytest.mark.parametrize("function", ["LINEAR_EXACT", "SIGMOID"])
def test_the_files_own_function_is_honoured(tmp_path, function):
    path = made(tmp_path / "a", STORED, WindowCenter=50, WindowWidth=350, VOILUTFunction=function)
    x = STORED.astype(float)
    y = {"LINEAR_EXACT": np.clip(((x - 50) / 350 + 0.5) * 255, 0, 255),
         "SIGMOID": 255 / (1 + np.exp(-4 * (x - 50) / 350))}[function]
    assert np.array_equal(shown(path), np.floor(y + 0.5).astype(np.uint8))


def test_monochrome1_is_the_negative_of_monochrome2(tmp_path):
    two = shown(made(tmp_path / "a", STORED, WindowCenter=40, WindowWidth=400))
    one = shown(made(tmp_path / "b", STORED, WindowCenter=40, WindowWidth=400, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(one, 255 - two)
    fixed = shown(made(tmp_path / "c", STORED, PhotometricInterpretation="MONOCHROME1"), Reading(window=(40, 400)))
    assert np.array_equal(fixed, one)


@pytest.mark.parametrize(("bits", "signed"), [
    (8, False), (10, False), (12, False), (12, True), (16, False), (16, True)])
def test_without_a_window_the_whole_range_of_the_bits_is_shown(tmp_path, bits, signed):
    """Whatever the picture holds: 0 is as dark in a dark picture as in a bright one."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = np.linspace(low // 2, high // 2, 64).astype(np.int64).reshape(8, 8)
    kind = {(8, False): np.uint8}.get((bits, signed), np.int16 if signed else np.uint16)
    path = made(tmp_path / "a", values.astype(kind), BitsStored=bits, HighBit=bits - 1)
    expected = np.floor((values - low) / (high - low) * 255 + 0.5)
    assert np.array_equal(shown(path), expected)


def test_each_picture_is_stretched_only_when_that_is_asked_for(tmp_path):
    values = np.linspace(100, 300, 64).astype(np.uint16).reshape(8, 8)
    path = made(tmp_path / "a", values)
    assert shown(path).max() == 1
    stretched = shown(path, Reading(window="image"))
    assert np.array_equal(stretched, (255 * (values.astype(int) - 100) + 100) // 200)


def test_a_table_of_the_file_comes_before_its_windows(tmp_path):
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    item = Dataset()
    item.add_new(0x00283002, "US", [4, 10, 8])
    item.add_new(0x00283006, "US", [0, 50, 100, 250])
    path = made(tmp_path / "a", values, VOILUTSequence=[item], WindowCenter=32, WindowWidth=64)
    expected = np.select([values <= 10, values == 11, values == 12], [0, 50, 100], 250)
    assert np.array_equal(shown(path), expected)
    assert np.array_equal(shown(path, Reading(window_number=2)), window(values * 1.0, 32, 64))


def test_a_modality_table_takes_the_place_of_slope_and_intercept(tmp_path):
    values = np.arange(4, dtype=np.uint8).reshape(2, 2)
    item = Dataset()
    item.add_new(0x00283002, "US", [4, 0, 16])
    item.add_new(0x00283006, "US", [0, 65535, 32768, 16384])
    path = made(tmp_path / "a", values, ModalityLUTSequence=[item])
    assert shown(path).tolist() == [[0, 255], [128, 64]]
    assert np.array_equal(shown(path, Reading(window=(30000, 20000))),
                          window(np.array([[0.0, 65535], [32768, 16384]]), 30000, 20000))


def test_colours_have_no_window(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    path = made(tmp_path / "a", noise, WindowCenter=40, WindowWidth=400)
    assert np.array_equal(shown(path, Reading(window=(1, 1))), noise)
    planes = made(tmp_path / "b", noise, PlanarConfiguration=1)
    data = pydicom.dcmread(planes)
    data.PixelData = np.moveaxis(noise, 2, 0).tobytes() + b"\0"
    data.save_as(planes)
    assert np.array_equal(shown(planes), noise)


def test_ybr_becomes_rgb_by_the_standards_equation(tmp_path):
    """C.7.6.3.1.2, solved for R, G and B: R = Y + 1.402 (Cr - 128), B = Y + 1.772 (Cb - 128)."""
    ybr = np.array([[[128, 128, 128], [76, 85, 255], [150, 44, 21], [200, 100, 150]]], dtype=np.uint8)
    y, cb, cr = (ybr[..., channel].astype(float) for channel in range(3))
    expected = np.stack([y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
                         y + 1.772 * (cb - 128)], axis=-1)
    got = shown(made(tmp_path / "a", ybr, PhotometricInterpretation="YBR_FULL"))
    assert np.abs(got - np.clip(expected, 0, 255)).max() <= 1


def test_palettes_are_resolved(tmp_path):
    indices = np.array([[0, 1], [2, 1]], dtype=np.uint8)
    colours = np.array([[0, 0, 0], [65535, 32768, 0], [0, 65535, 65535]], dtype=np.uint16)
    tags: dict[str, object] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for channel, name in enumerate(("Red", "Green", "Blue")):
        tags[f"{name}PaletteColorLookupTableDescriptor"] = [3, 0, 16]
        tags[f"{name}PaletteColorLookupTableData"] = colours[:, channel].astype("<u2").tobytes()
    got = shown(made(tmp_path / "a", indices, **tags))
    assert got.tolist() == [[[0, 0, 0], [255, 128, 0]], [[0, 255, 255], [255, 128, 0]]]


def test_of_several_frames_a_setting_chooses(tmp_path):
    frames = np.stack([np.full((4, 4), 20 * number, np.uint8) for number in range(1, 8)])
    made(tmp_path / "cine.dcm", frames)
    for which, expected in (("first", [20]), ("middle", [80]), ("all", [20, 40, 60, 80, 100, 120, 140]),
                            (2, [40, 120]), (3, [40, 80, 120]), (99, [20, 40, 60, 80, 100, 120, 140])):
        got = read_images(str(tmp_path), size=4, channels=1, labelled=False, reading=Reading(frames=which)).images
        assert got.images_NCHW[:, 0, 0, 0].tolist() == expected, which
    assert got.names[2] == "cine.dcm[2]"
    one = read_images(str(tmp_path), size=4, channels=1, labelled=False).images
    assert one.names == ("cine.dcm",)


def test_frames_have_windows_of_their_own_in_enhanced_files(tmp_path):
    frames = np.stack([STORED, STORED])
    groups = []
    for centre in (40, -600):
        voi = Dataset()
        voi.WindowCenter, voi.WindowWidth = centre, 400
        values = Dataset()
        values.RescaleSlope, values.RescaleIntercept = 1, -24
        group = Dataset()
        group.FrameVOILUTSequence, group.PixelValueTransformationSequence = [voi], [values]
        groups.append(group)
    path = made(tmp_path / "a", frames, PerFrameFunctionalGroupsSequence=groups)
    for number, centre in enumerate((40, -600)):
        assert np.array_equal(shown(path, frame=number), window(STORED - 24.0, centre, 400))


def test_compressed_files_show_what_the_uncompressed_one_shows():
    """The same slice in five lossless transfer syntaxes, as pydicom brings it along."""
    plain = shown(REAL / "MR_small.dcm")
    for name in ("MR_small_RLE", "MR_small_jp2klossless", "MR_small_jpeg_ls_lossless", "MR_small_bigendian",
                 "MR_small_implicit"):
        assert np.array_equal(shown(REAL / f"{name}.dcm"), plain), name
    stored = pydicom.dcmread(REAL / "MR_small.dcm").pixel_array
    assert np.array_equal(plain, window(stored.astype(float), 600, 1600)), "its own window is 600, 1600"


def test_class_folders_of_dicom_simply_work(tmp_path):
    for name, file in (("mr", "MR_small.dcm"), ("mr", "examples_overlay.dcm"), ("ct", "CT_small.dcm"),
                       ("us", "examples_palette.dcm"), ("us", "examples_ybr_color.dcm")):
        (tmp_path / name).mkdir(exist_ok=True)
        shutil.copy(REAL / file, tmp_path / name / file.removesuffix(".dcm"))  # found by what they begin with
    shutil.copy(REAL / "reportsi.dcm", tmp_path / "mr/report.dcm")
    (tmp_path / "mr/DICOMDIR").write_bytes(b"x")
    result = read_images(str(tmp_path), size=32, channels=3)
    assert result.classes == ("ct", "mr", "us")
    assert result.images.labels_N.tolist() == [0, 1, 1, 2, 2]
    assert [(item.name, item.reason, item.broken) for item in result.skipped] == [
        ("mr/DICOMDIR", "a DICOM directory, no picture", False),
        ("mr/report.dcm", "a DICOM file without pixels", False)]
    found = survey(str(tmp_path))
    assert (found.num_images, found.channels) == (6, 3), "by names: the report is found out by looking into it"
    assert found.sizes[(64, 64)] == 1


@pytest.mark.parametrize(("tags", "said"), [
    ({"Rows": 65535, "Columns": 65535}, "too many"),
    ({"Rows": 900}, "cut off"),
    ({"NumberOfFrames": 2**31 - 1}, "cut off"),
    ({"BitsAllocated": 24}, "number of bits"),
    ({"BitsStored": 200}, "number of bits"),
    ({"PhotometricInterpretation": "HSV"}, "colours"),
    ({"SamplesPerPixel": 200}, "colours"),
])
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path, tags, said):
    path = made(tmp_path / "a", np.zeros((8, 8), np.uint16), **tags)
    with pytest.raises(UnusableError, match=said):
        open_dicom(path)


def test_a_stream_of_another_size_than_the_header_says_is_refused(tmp_path):
    """A decoder believes the stream: 6000 x 5000 pixels behind a header of 8 x 8."""
    written = io.BytesIO()
    Image.new("L", (6000, 5000)).save(written, "JPEG")
    path = made(tmp_path / "a", encapsulate([written.getvalue()]), syntax=JPEGBaseline8Bit, Rows=8, Columns=8,
                SamplesPerPixel=1, BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0)
    with pytest.raises(UnusableError, match="not of the size that its header says"):
        shown(path)
    Image.new("L", (8, 8), 200).save(written := io.BytesIO(), "JPEG")
    path = made(tmp_path / "a", encapsulate([written.getvalue()]), syntax=JPEGBaseline8Bit, Rows=8, Columns=8,
                SamplesPerPixel=1, BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0)
    assert (shown(path) == 200).all()


@each_of(("kept", "whole"), [(0.3, False), (0.99, False), (1.0, True)])
def test_a_jpeg_that_was_cut_before_it_came_into_its_file_is_refused(tmp_path, kept, whole):
    """The decoder fills what is missing with grey."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
    Image.fromarray(noise).save(written := io.BytesIO(), "JPEG")
    stream = written.getvalue()[:int(kept * len(written.getvalue()))]
    path = made(tmp_path / "a", encapsulate([stream + bytes(len(stream) % 2)]), syntax=JPEGBaseline8Bit, Rows=64,
                Columns=64, SamplesPerPixel=1, BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0)
    if whole:
        assert shown(path).shape == (64, 64)
    else:
        with pytest.raises(UnusableError, match="damaged or cut off"):
            shown(path)


def of_components(number: int, *, bits: int = 8, size: tuple[int, int] = (8, 8)) -> bytes:
    """The beginning of a JPEG 2000 stream, ITU-T T.800 A.4.1 and A.5.1: a decoder takes memory by it."""
    width, height = size
    told = struct.pack(">HIIIIIIIIH", 0, width, height, 0, 0, width, height, 0, 0, number)
    told += bytes([bits - 1, 1, 1]) * number
    return b"\xff\x4f\xff\x51" + struct.pack(">H", 2 + len(told)) + told + bytes(64)


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def with_a_palette() -> bytes:
    """A JP2 file, ITU-T T.800 I.5: the stream has one component, and its palette makes three of it."""
    palette = box(b"pclr", struct.pack(">HB3B", 2, 3, 7, 7, 7) + bytes(6))
    return box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ") + box(b"jp2h", palette) \
        + box(b"jp2c", of_components(1))


def jpeg_of_components(number: int) -> bytes:
    """A JPEG whose start of frame says so, ITU-T T.81 B.2.2."""
    Image.new("L", (8, 8)).save(written := io.BytesIO(), "JPEG")
    whole = written.getvalue()
    at = whole.index(b"\xff\xc0")
    told = struct.pack(">BHHB", 8, 8, 8, number) + b"".join(bytes([1 + index, 0x11, 0]) for index in range(number))
    return whole[:at] + b"\xff\xc0" + struct.pack(">H", 2 + len(told)) + told + whole[at + 13 :]


@each_of(("stream", "syntax", "said"), [
    (of_components(1000), JPEG2000, "other colours or more bits than its header says"),
    (of_components(16384), JPEG2000, "other colours or more bits than its header says"),
    (of_components(3), JPEG2000, "other colours or more bits than its header says"),
    (of_components(1, bits=38), JPEG2000, "other colours or more bits than its header says"),
    (of_components(0), JPEG2000, "not of the size that its header says, or damaged"),
    (of_components(1000)[:2000], JPEG2000, "not of the size that its header says, or damaged"),
    (with_a_palette(), JPEG2000, "not of the size that its header says, or damaged"),
    (jpeg_of_components(255), JPEGBaseline8Bit, "other colours or more bits than its header says"),
])
def test_a_stream_of_more_colours_or_bits_than_the_header_says_is_refused_before_a_decoder_sees_it(
        tmp_path, monkeypatch, stream, syntax, said):
    """1000 components of 8000 x 8000 are 3.6 KB and took 4 GiB; a palette made a decoder write beyond its memory."""
    path = made(tmp_path / "a", encapsulate([stream]), syntax=syntax, Rows=8, Columns=8, SamplesPerPixel=1,
                BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0)
    monkeypatch.setattr(pydicom.pixels, "pixel_array", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(UnusableError, match=said):
        shown(path)


def test_the_stream_that_is_checked_is_the_one_that_is_decoded(tmp_path):
    """Two tables may say where a frame lies, and differ: the extended one counts."""
    Image.new("L", (8, 8), 200).save(honest := io.BytesIO(), "JPEG")
    streams = [honest.getvalue() + bytes(len(honest.getvalue()) % 2), jpeg_of_components(255)]
    path = made(tmp_path / "a", encapsulate(streams), syntax=JPEGBaseline8Bit, Rows=8, Columns=8, SamplesPerPixel=1,
                BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0, NumberOfFrames=2,
                ExtendedOffsetTable=struct.pack("<QQ", 8 + len(streams[0]), 0),
                ExtendedOffsetTableLengths=struct.pack("<QQ", len(streams[1]), len(streams[0])))
    assert (shown(path, frame=1) == 200).all()
    with pytest.raises(UnusableError, match="other colours or more bits"):
        shown(path, frame=0)


def test_a_deflated_file_has_the_pixels_of_the_same_file_uncompressed(tmp_path):
    frames = np.stack([STORED, STORED[::-1]])
    plain = made(tmp_path / "a", frames, WindowCenter=40, WindowWidth=400)
    deflated = made(tmp_path / "b", frames, syntax=DeflatedExplicitVRLittleEndian, WindowCenter=40, WindowWidth=400)
    assert deflated.stat().st_size < plain.stat().st_size
    for frame in (0, 1):
        assert np.array_equal(shown(deflated, frame=frame), shown(plain, frame=frame))
    assert np.array_equal(shown(plain), window(STORED * 1.0, 40, 400))


def test_a_deflated_file_that_is_cut_off_or_far_too_large_is_said_to_be_that(tmp_path, monkeypatch):
    whole = made(tmp_path / "a", STORED, syntax=DeflatedExplicitVRLittleEndian).read_bytes()
    (tmp_path / "b").write_bytes(whole[:-500])
    with pytest.raises(UnusableError, match="deflated and cut off"):
        open_dicom(tmp_path / "b")
    monkeypatch.setattr("semisilo.common.data.formats.dicom._LARGEST_INFLATED", 4000)
    with pytest.raises(UnusableError, match="deflated and has more than 4000 bytes"):
        open_dicom(tmp_path / "a")


def deflated(path: Path, before: bytes, pixels: np.ndarray, after: bytes = b"") -> Path:
    """A deflated file with more before and behind its pixels than a picture has."""
    small = made(path, pixels, syntax=DeflatedExplicitVRLittleEndian).read_bytes()
    start = 144 + int(pydicom.filereader.read_file_meta_info(path).FileMetaInformationGroupLength)
    inside = zlib.decompress(small[start:], -15)
    cut = inside.index(b"\xe0\x7f\x10\x00")
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(inside[:cut] + before + inside[cut:] + after) + packer.flush()
    path.write_bytes(small[:start] + packed)
    return path


def element(tag: bytes, length: int) -> bytes:
    """So many zeros under this tag."""
    return tag + b"OB\0\0" + length.to_bytes(4, "little") + bytes(length)


def test_a_deflated_file_is_inflated_no_further_than_its_own_tags_permit(tmp_path, monkeypatch):
    """A megabyte of deflate may stand for a gigabyte of nothing; here the limits are a thousand times smaller."""
    monkeypatch.setattr("semisilo.common.data.formats.dicom._STEPS", (10_000,))
    private, behind = b"\x09\x7f\x10\x10", b"\xfc\xff\xfc\xff"
    pixels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    assert np.array_equal(shown(deflated(tmp_path / "a", element(private, 5000), pixels, element(behind, 5000))),
                          shown(made(tmp_path / "b", pixels)))
    long = np.arange(10_000, dtype=np.uint16).reshape(100, 100)
    assert np.array_equal(shown(deflated(tmp_path / "a", element(private, 5000), long, element(behind, 5000))),
                          shown(made(tmp_path / "b", long))), "more than is inflated at first"
    inflated: list[int] = []

    class Watched:
        def __init__(self, *_: object) -> None:
            self.stream = zlib.decompressobj(-15)

        def decompress(self, data: bytes, most: int) -> bytes:
            inflated.append(most)
            return self.stream.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self.stream, name)

    monkeypatch.setattr("semisilo.common.data.formats.dicom.zlib", SimpleNamespace(decompressobj=Watched, MAX_WBITS=15))
    for name, said, before, after in (("before", "header is too long", 2**21, 0),
                                      ("behind", "more bytes than its header says", 0, 2**21)):
        inflated.clear()
        with pytest.raises(UnusableError, match=said):
            open_dicom(deflated(tmp_path / name, element(private, before), pixels, element(behind, after)))
        assert 0 < sum(inflated) < 25_000, name
        assert all(inflated), "0 is no limit"


def test_a_deflated_file_for_whose_pixels_there_is_no_memory_is_refused_before_they_are_inflated(tmp_path, monkeypatch):
    path = made(tmp_path / "a", np.zeros((1000, 1000), np.uint16), syntax=DeflatedExplicitVRLittleEndian)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(room, "free_bytes", lambda: 5_000_000)
    with pytest.raises(BadData, match="A deflated DICOM file need"):
        open_dicom(path)
    monkeypatch.setattr(room, "free_bytes", lambda: 7_000_000)
    assert open_dicom(path).width == 1000


@pytest.mark.parametrize("tags", [
    {"RescaleSlope": None, "RescaleIntercept": None}, {"RescaleSlope": "", "RescaleIntercept": ""},
    {"ModalityLUTSequence": []}, {"ModalityLUTSequence": [Dataset()]}, {"ModalityLUTSequence": None},
    {"VOILUTSequence": []}, {"VOILUTSequence": [Dataset()]}])
def test_a_tag_of_grey_values_that_is_there_and_empty_means_what_a_missing_one_means(tmp_path, tags):
    path = made(tmp_path / "a", STORED, WindowCenter=40, WindowWidth=400, **tags)
    assert np.array_equal(shown(path), window(STORED * 1.0, 40, 400))


def test_an_empty_window_is_none(tmp_path):
    opened = open_dicom(made(tmp_path / "a", STORED, WindowCenter=None, WindowWidth=None))
    assert not opened.has_window
    assert np.array_equal(shown(tmp_path / "a"), shown(made(tmp_path / "b", STORED)))


VALUES = np.array([[0, 1024, 4095], [2048, 2047, 100]], dtype=np.uint16)


def test_jpeg_of_12_bits_is_read_in_a_dicom_file_and_alone(tmp_path):
    """Without a window 0 is black and 4095 white, in both: (4095 in 12 bits, and the rule of depth)."""
    stream, expected = jpeg_of_12_bits(VALUES), np.floor(VALUES / 4095 * 255 + 0.5)
    inside = made(tmp_path / "a.dcm", encapsulate([stream]), syntax=JPEGExtended12Bit, Rows=16, Columns=24,
                  SamplesPerPixel=1, BitsAllocated=16, BitsStored=12, HighBit=11, PixelRepresentation=0)
    assert np.array_equal(shown(inside)[::8, ::8], expected)
    for name in ("b.jpg", "no suffix"):
        (tmp_path / name).write_bytes(stream)
        (picture,) = open_raster(tmp_path / name).pictures(Geometry(size=24, channels=1, resize="pad"), Reading(), {})
        assert np.array_equal(picture.square[0][4:20:8, ::8], expected)
        assert (picture.width, picture.height, picture.channels, picture.bits) == (24, 16, 1, 12)
    assert survey(str(tmp_path)).num_images == 3


def test_jpeg_of_12_bits_that_cannot_be_decoded_is_named_as_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(jpeg_of_12_bits(VALUES)[:-20])
    (tmp_path / "b.jpg").write_bytes(jpeg_of_12_bits(VALUES).replace(b"\xff\xc4\x00\x23", b"\xff\xc4\x00\x03"))
    for name in ("a.jpg", "b.jpg"):
        with pytest.raises(UnusableError, match="JPEG of 12 bits"):
            open_raster(tmp_path / name).pictures(Geometry(size=8, channels=1, resize="fit"), Reading(), {})
    monkeypatch.setitem(sys.modules, "libjpeg", None)
    with pytest.raises(BadData, match=r"^JPEG files of 12 bits need the package 'libjpeg', which is not installed"):
        read_images(str(tmp_path), size=8, channels=1, labelled=False)


def test_only_files_whose_tags_are_chosen_count(tmp_path):
    for name, tags in {"a": {"Modality": "CR", "ViewPosition": "PA"}, "b": {"Modality": "DX", "ViewPosition": "LL"},
                       "c": {"Modality": "CT"}, "d": {"Modality": "DX", "ViewPosition": "AP"}, "e": {}}.items():
        made(tmp_path / f"{name}.dcm", STORED, WindowCenter=40, WindowWidth=400, **tags)
    Image.new("L", (8, 8)).save(tmp_path / "f.png")

    def names(**rules: object) -> list[str]:
        found = read_images(str(tmp_path), size=8, channels=1, labelled=False, selection=Selection(dicom=rules))
        return [name.partition(".")[0] for name in found.images.names]

    assert names() == list("abcdef")
    assert names(Modality=("cr", "DX"), ViewPosition=("PA", "AP")) == list("adf")
    assert names(Modality=("CR", "")) == list("aef")
    assert names(Modality="CT") == list("cf")
    with pytest.raises(BadConfiguration, match=r"no tag .Modalitie.\.") as caught:
        names(Modalitie="CT")
    assert caught.value.remedy == "Did you mean 'Modality'?"
    (tmp_path / "f.png").unlink()
    with pytest.raises(BadData, match=r"none of 5 DICOM files has the tags that \[data\] dicom asks .*5 by Modality"):
        names(Modality="XX")


def test_a_tag_of_several_values_counts_by_any_of_them(tmp_path):
    made(tmp_path / "a.dcm", STORED, ImageType=["ORIGINAL", "PRIMARY", "AXIAL"])
    made(tmp_path / "b.dcm", STORED, ImageType=["DERIVED", "SECONDARY"])
    found = read_images(str(tmp_path), size=8, channels=1, labelled=False,
                        selection=Selection(dicom={"ImageType": "primary"}))
    assert found.images.names == ("a.dcm",)


def test_writing_in_the_picture_is_counted(tmp_path):
    for name, tags in {"a": {"BurnedInAnnotation": "YES"}, "b": {"BurnedInAnnotation": "NO"}, "c": {}}.items():
        made(tmp_path / f"{name}.dcm", STORED, WindowCenter=40, WindowWidth=400, **tags)
    found = look_at(str(tmp_path), form=Geometry(size=8, channels=1, resize="fit"))
    assert found.burned_in == 1
    assert any(note.startswith("DICOM images that say of themselves that there is writing in them: 1")
               for note in found.notes)


def test_patients_are_told_apart_by_number_and_issuer_and_their_numbers_are_not_kept(tmp_path):
    for name, tags in {"a": {"PatientID": "7"}, "b": {"PatientID": "7"}, "c": {"PatientID": "8"},
                       "d": {"PatientID": "7", "IssuerOfPatientID": "North"}, "e": {"PatientID": ""}}.items():
        made(tmp_path / f"{name}.dcm", STORED, **tags)
    found = read_images(str(tmp_path), size=8, channels=1, labelled=False).images.patients
    a, b, c, d, e = found
    assert a == b
    assert len({a, c, d, ""}) == 4
    assert e == ""
    assert "7" not in found
    table = tmp_path / "of_tables.csv"
    table.write_text("file,patient_id,label\na.dcm,7,x\nd.dcm,7,y\n")
    assert set(read_images(str(table), size=8, channels=1).images.patients) == {a}, "the same patient in tags and table"


@each_of("file", ["reportsi.dcm", "rtplan.dcm", "test-SR.dcm", "waveform_ecg.dcm"])
def test_objects_without_pixels_are_no_trouble(file):
    with pytest.raises(NoPictureError, match="without pixels"):
        open_dicom(REAL / file)


def test_nothing_of_a_patient_is_said_or_logged(tmp_path, caplog, capfd):
    """Damaged in every way that the library talks about: neither messages nor log hold the value of a tag."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "in").mkdir()
    whole = made(tmp_path / "whole", STORED, WindowCenter=40, WindowWidth=400, StudyDescription=NAME).read_bytes()
    wrong = [whole[: len(whole) - 100], whole[:600], whole.replace(b"1.2.3", NAME[:5].encode()),
             whole.replace(b"40", b"Un").replace(b"400", b"Uns"), whole.replace(b"MONOCHROME2", NAME[:11].encode()),
             whole.replace(b"\x28\x00\x52\x10", b"\x28\x00\x53\x10").replace(b"400", b"abc")]
    for number, content in enumerate(wrong):
        (tmp_path / f"in/{number}.dcm").write_bytes(content)
    said = []
    try:
        result = read_images(str(tmp_path / "in"), size=8, channels=1, labelled=False, on_error="report")
        said += [item.reason for item in result.skipped]
    except BadData as error:
        said.append(error.line())
    assert any("cannot be used" in line for line in said)
    text = " ".join([*said, caplog.text, *capfd.readouterr()])
    assert "cannot be read" in text
    for piece in ("Unspeak", "Patient", "4711", "abc"):
        assert piece not in text


def test_a_warning_of_the_library_quotes_no_tag_in_the_log(tmp_path, caplog):
    path = made(tmp_path / "x.dcm", STORED)
    content = path.read_bytes()
    name = NAME.encode() + b" " * (len(NAME) % 2)
    # The same bytes as the character set of the file's texts, which the library complains of with a warning.
    odd = b"\x08\x00\x05\x00CS" + len(name).to_bytes(2, "little") + name
    first = content.index(b"\x08\x00\x16\x00UI")
    path.write_bytes(content[:first] + odd + content[first:])
    with warnings.catch_warnings(record=True) as control:
        warnings.simplefilter("always")
        str(pydicom.dcmread(path).PatientName)
    assert NAME in " ".join(str(each.message) for each in control), "the control: it does complain"
    caplog.clear()
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            opened = open_dicom(path)
            str(opened.data.get("PatientName"))
            opened.frame(0, Reading())
    finally:
        logging.captureWarnings(False)
    assert caplog.text == ""


def test_the_librarys_own_log_goes_nowhere(caplog, capfd):
    """It quotes tags; here a line of its own stands for that."""
    caplog.set_level(logging.DEBUG)
    open_dicom(REAL / "MR_small.dcm")
    logging.getLogger("pydicom").warning("tag of %s", NAME)
    logging.getLogger("pylibjpeg.utils").error("tag of %s", NAME)
    assert NAME not in caplog.text + "".join(capfd.readouterr())
    logging.getLogger("other").warning("tag of %s", NAME)
    assert NAME in caplog.text, "the control: others are heard"


def test_without_pydicom_one_line_names_the_extra(tmp_path, monkeypatch):
    import sys

    shutil.copy(REAL / "MR_small.dcm", tmp_path / "a.dcm")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(BadData, match="pydicom") as caught:
        read_images(str(tmp_path), size=8, channels=1, labelled=False, on_error="skip")
    assert "pip install 'semisilo[dicom]'" in caught.value.line()


@pytest.mark.parametrize("keyword", ["SamplesPerPixel", "PhotometricInterpretation", "BitsStored",
                                     "PixelRepresentation", "PlanarConfiguration"])
def test_a_tag_that_says_how_pixels_are_stored_is_named_where_it_is_missing(tmp_path, keyword):
    """The file is whole: to be told that it is damaged sends people to copy it again."""
    pixels = np.zeros((4, 4, 3) if keyword == "PlanarConfiguration" else (4, 4), np.uint8)
    path = made(tmp_path / "x.dcm", pixels)
    data = pydicom.dcmread(path)
    for missing in (False, True):
        if missing:
            delattr(data, keyword)
        else:
            data[keyword].value = None
        data.save_as(path)
        with pytest.raises(UnusableError, match=f"how its pixels are stored: it lacks {keyword}$"):
            shown(path)
