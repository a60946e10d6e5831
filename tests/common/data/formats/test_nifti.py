"""NIfTI volumes: which slice, which way up, which grey; made with nibabel, cut here with numpy alone."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

nibabel = pytest.importorskip("nibabel")

from semisilo.common.data.form import Reading  # noqa: E402
from semisilo.common.data.formats.nifti import open_nifti  # noqa: E402
from semisilo.common.data.formats.pixels import UnusableError  # noqa: E402
from semisilo.common.data.readers import read_images, survey  # noqa: E402
from semisilo.common.errors import BadData  # noqa: E402
from tests.common.data.packed_zeros import deflated_zeros  # noqa: E402

REAL = Path(nibabel.__file__).parent / "tests/data"
RAS = np.arange(5 * 6 * 7, dtype=np.uint8).reshape(5, 6, 7)
"""Grows to the head fastest, then to the front, then to the right."""


def saved(path: Path, volume: np.ndarray, axes: str = "RAS", **header: float) -> Path:
    """The volume, given right-anterior-superior, written with the axes in another order and direction."""
    wanted = nibabel.orientations.axcodes2ornt(axes)
    image = nibabel.Nifti1Image(volume, np.eye(4)).as_reoriented(
        nibabel.orientations.ornt_transform(nibabel.orientations.axcodes2ornt("RAS"), wanted))
    for name, value in header.items():
        image.header[name] = value
    nibabel.save(image, path)
    return path


def expected(volume: np.ndarray, axis: str, number: int) -> np.ndarray:
    """As DICOM shows it: axial and coronal with the right on the left, sagittal with the front on the left."""
    if axis == "axial":
        return volume[::-1, ::-1, number].T  # rows to the back, columns to the left
    if axis == "coronal":
        return volume[::-1, number, ::-1].T  # rows to the feet, columns to the left
    return volume[number, ::-1, ::-1].T  # rows to the feet, columns to the back


@pytest.mark.parametrize("axes", ["RAS", "LPS", "LAS", "SRA", "PIR", "ILA"])
@pytest.mark.parametrize("axis", ["axial", "coronal", "sagittal"])
def test_a_slice_looks_the_same_however_the_file_orders_its_axes(tmp_path, axes, axis):
    opened = open_nifti(saved(tmp_path / "a.nii", RAS, axes))
    count = {"axial": 7, "coronal": 6, "sagittal": 5}[axis]
    assert opened.count(axis) == count
    numbers = list(range(count))
    for number, picture in zip(numbers, opened.slices(numbers, Reading(axis=axis)), strict=True):
        assert np.array_equal(picture, expected(RAS, axis, number))
        assert opened.size(axis) == picture.shape[::-1]


def test_a_file_gives_the_slices_that_a_setting_wants_packed_or_not(tmp_path):
    saved(tmp_path / "a.nii.gz", RAS)
    for which, numbers in (("middle", [3]), ("all", list(range(7))), (2, [1, 5]), (50, list(range(7)))):
        got = read_images(str(tmp_path), size=6, channels=1, resize="pad", labelled=False,
                          reading=Reading(slices=which)).images
        assert got.names == tuple(f"a.nii.gz[{number}]" for number in numbers)
        for picture, number in zip(got.images_NCHW[:, 0].numpy(), numbers, strict=True):
            assert np.array_equal(picture[:, :5], expected(RAS, "axial", number))
    assert survey(str(tmp_path)).sizes == {(5, 6): 1}


def test_slope_and_window_come_before_grey(tmp_path):
    volume = np.arange(-500, 500, dtype=np.int16).reshape(10, 10, 10)
    image = nibabel.Nifti1Image(volume, np.eye(4))
    image.header.set_slope_inter(2.0, 24.0)
    nibabel.save(image, tmp_path / "a.nii")
    stored = nibabel.load(tmp_path / "a.nii")
    values = np.asarray(stored.dataobj)
    got = open_nifti(tmp_path / "a.nii").slices([4], Reading(window=(40, 400)))[0]
    exact = np.clip(((expected(values, "axial", 4) - 40) / 400 + 0.5) * 255, 0, 255)
    assert np.array_equal(got, np.floor(exact + 0.5))


def test_black_and_white_are_those_of_the_header_else_of_the_whole_volume(tmp_path):
    volume = np.arange(1000, dtype=np.float32).reshape(10, 10, 10)
    plain = open_nifti(saved(tmp_path / "a.nii", volume)).slices([0, 9], Reading())
    for number, picture in zip((0, 9), plain, strict=True):
        assert np.array_equal(picture, np.floor(expected(volume, "axial", number).astype(float) * 255 / 999 + 0.5))
    named = open_nifti(saved(tmp_path / "b.nii", volume, cal_min=100, cal_max=500)).slices([3], Reading())[0]
    exact = np.clip((expected(volume, "axial", 3).astype(float) - 100) * 255 / 400, 0, 255)
    assert np.array_equal(named, np.floor(exact + 0.5))
    own = open_nifti(tmp_path / "a.nii").slices([3], Reading(window="image"))[0]
    assert (own.min(), own.max()) == (0, 255)


def test_slices_that_count_together_share_the_range_of_their_volume_unless_something_names_one(tmp_path):
    def tied(**reading: object) -> tuple[str, ...]:
        return read_images(str(tmp_path), size=10, channels=1, labelled=False, reading=Reading(**reading)).tied

    volume = np.arange(1000, dtype=np.float32).reshape(10, 10, 10)
    saved(tmp_path / "a.nii", volume)
    assert tied() == tied(slices="all", window="image") == tied(slices="all", window=(500, 1000)) == ()
    assert tied(slices="all") == tied(slices=2) == ("slices of a volume",)
    saved(tmp_path / "a.nii", volume, cal_min=100, cal_max=500)
    assert tied(slices="all") == ()
    saved(tmp_path / "a.nii", volume.astype(np.uint8))
    assert tied(slices="all") == ()


def test_nan_is_black_and_never_moves_the_range(tmp_path):
    volume = np.full((4, 4, 4), 5.0, dtype=np.float32)
    volume[0, 0, 0], volume[1, 1, 0], volume[2, 2, 0] = np.nan, np.inf, 1.0
    got = open_nifti(saved(tmp_path / "a.nii", volume)).slices([0], Reading())[0]
    assert got[3, 3] == got[2, 2] == got[1, 1] == 0
    assert got[0, 0] == 255


def test_of_several_volumes_the_first_counts():
    found = open_nifti(REAL / "example4d.nii.gz")
    values = np.asarray(nibabel.load(REAL / "example4d.nii.gz").dataobj[..., 0], dtype=float)
    canonical = values[::-1]  # its first axis runs to the left
    got = found.slices([11], Reading())[0]
    assert np.array_equal(got, np.floor(np.clip(expected(canonical, "axial", 11) * 255 / 1162, 0, 255) + 0.5)), (
        "cal_max of the file is 1162")


def test_volumes_lie_in_class_folders_beside_others(tmp_path):
    for name in ("sick", "well"):
        (tmp_path / name).mkdir()
        saved(tmp_path / name / "v.nii", RAS)
    shutil.copy(REAL / "example_nifti2.nii.gz", tmp_path / "well/w.nii.gz")
    got = read_images(str(tmp_path), size=8, channels=3, reading=Reading(slices=2)).images
    assert got.labels_N.tolist() == [0, 0, 1, 1, 1, 1]
    assert got.names[-1] == "well/w.nii.gz[9]", "12 slices: 3 and 9"


def test_a_packed_bomb_is_refused_by_its_header(tmp_path):
    """20 thousand bytes that declare 8 thousand million: a size that they cannot unpack to."""
    image = nibabel.Nifti1Image(np.zeros((2, 2, 2), np.uint8), np.eye(4))
    image.header.set_data_shape((2000, 2000, 2000))
    image.header["vox_offset"] = 352
    header = bytearray(image.header.binaryblock) + bytes(4)
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(bytes(header) + bytes(10_000_000)))
    with pytest.raises(UnusableError, match="more voxels than it holds"):
        open_nifti(tmp_path / "a.nii.gz")
    image.header.set_data_shape((30000, 30000, 1))
    (tmp_path / "b.nii").write_bytes(image.header.binaryblock)
    with pytest.raises(UnusableError, match="too many"):
        open_nifti(tmp_path / "b.nii")


@pytest.mark.slow
def test_a_gigabyte_behind_a_small_header_is_never_unpacked(tmp_path):
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4))
    header = image.header.copy()
    header["vox_offset"] = 352
    packed = tmp_path / "a.nii.gz"
    packer = zlib.compressobj(wbits=-15)
    start = packer.compress(header.binaryblock + bytes(4)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed.write_bytes(gzip.compress(b"")[:10] + start + deflated_zeros(1024))  # cut off: nobody comes to the end
    code = ("import resource, sys; from pathlib import Path; "
            "from semisilo.common.data.formats.nifti import open_nifti; "
            "from semisilo.common.data.form import Reading; import nibabel; "
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
            f"open_nifti(Path({str(packed)!r})).slices([0, 3], Reading()); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 50 * 1024, "kibibytes"


@pytest.mark.parametrize(("content", "said"), [
    (b"", "it is empty"), (b"hello", "damaged or cut off"), (bytes(400), "not a NIfTI file"),
    (b"\x1f\x8b" + bytes(50), "damaged")])
def test_what_is_no_volume_is_said_so(tmp_path, content, said):
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(UnusableError, match=said):
        open_nifti(tmp_path / "a.nii")


def test_a_volume_that_is_cut_off_is_said_so(tmp_path):
    whole = saved(tmp_path / "a.nii", RAS).read_bytes()
    (tmp_path / "a.nii").write_bytes(whole[:-5])
    with pytest.raises(BadData, match=r"a\.nii cannot be read: it is cut off"):
        read_images(str(tmp_path), size=8, channels=1, labelled=False)


def test_without_nibabel_one_line_names_the_extra(tmp_path, monkeypatch):
    saved(tmp_path / "a.nii", RAS)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(BadData, match="nibabel") as caught:
        read_images(str(tmp_path), size=8, channels=1, labelled=False, on_error="skip")
    assert "pip install 'semisilo[nifti]'" in caught.value.line()
