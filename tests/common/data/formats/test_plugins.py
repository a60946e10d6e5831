"""Readers of others: used only for who names them, and refused in one line where they cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray

from semisilo.common.config import canonical_json
from semisilo.common.data.form import Reading, Selection
from semisilo.common.data.formats import registry
from semisilo.common.data.formats.pixels import Geometry, UnusableError
from semisilo.common.data.formats.plugins import format_plugin, installed_formats, opened_array, use_formats
from semisilo.common.data.readers import read_images, survey
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.silo.site.policy import load_policy
from tests.plugin_kit import on_the_module_path
from tests.processes import run_command

MODULE = '''
import numpy as np
from semisilo.common.data.formats.plugins import opened_array
from semisilo.common.data.formats.registry import ImageFormat


def read(path):
    content = path.read_bytes()
    if content == b"pair":
        path.with_suffix(".index").read_bytes()
    if content == b"broken":
        raise ValueError("no slide")
    if content == b"prints":
        print("a slide of 16 bytes")
        content = bytes(16)
    if content == b"ends":
        raise SystemExit(3)
    if content == b"nothing":
        return None
    if path.suffix == ".deep":
        return opened_array(np.frombuffer(content, dtype=np.uint16).reshape(4, 4, 1))
    return opened_array(np.frombuffer(content, dtype=np.uint8).reshape(4, 4))


SLIDE = ImageFormat(name="slide", suffixes=(".slide",), open=read)
DEEP = ImageFormat(name="deep", suffixes=(".deep",), open=read)
PNG = ImageFormat(name="png2", suffixes=(".png",), open=read)
OTHER = ImageFormat(name="other", suffixes=(".other",), open=read)
DOTLESS = ImageFormat(name="dotless", suffixes=("slide",), open=read)
TEXT = "slide"
'''
ENTRIES = ("[semisilo.formats]\nslide = slides_of_tests:SLIDE\ndeep = slides_of_tests:DEEP\n"
           "png2 = slides_of_tests:PNG\n"
           "name = slides_of_tests:OTHER\n"
           "dotless = slides_of_tests:DOTLESS\ntext = slides_of_tests:TEXT\ngone = slides_of_tests:GONE\n"
           "ends = ends_of_tests:SLIDE\n")


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path) -> Iterator[None]:
    site = tmp_path / "site"
    facts = site / "slides_of_tests-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: slides-of-tests\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    (site / "slides_of_tests.py").write_text(MODULE)
    (site / "ends_of_tests.py").write_text("raise SystemExit(2)\n")
    with on_the_module_path(site):
        yield
    use_formats(())


@pytest.fixture
def slides(tmp_path: Path) -> Path:
    for index, name in enumerate(("benign/a.slide", "benign/b.slide", "malign/c.slide")):
        path = tmp_path / "slides" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(range(16 * index, 16 * index + 16)))
    return tmp_path / "slides"


def test_files_of_a_plug_in_are_images_for_who_names_it_and_for_nobody_else(slides: Path) -> None:
    with pytest.raises(BadData):
        read_images(str(slides), size=4, channels=1)
    found = read_images(str(slides), size=4, channels=1, selection=Selection(formats=("slide",))).images
    assert found.labels_N is not None
    assert found.labels_N.tolist() == [0, 0, 1]
    assert found.images_NCHW.flatten().tolist() == list(range(48))
    assert survey(str(slides), Selection(formats=("slide",))).class_counts == {"benign": 2, "malign": 1}
    with pytest.raises(BadData):  # also after somebody else has named it in this process
        read_images(str(slides), size=4, channels=1)
    assert registry.others == ()


def test_the_range_of_16_bits_is_that_of_the_source_as_for_other_files(tmp_path: Path) -> None:
    """A dark slide does not become as bright as the one beside it."""
    (tmp_path / "deep").mkdir()
    for name, value in (("a", 2000), ("b", 60000), ("c", 2000)):
        (tmp_path / "deep" / f"{name}.deep").write_bytes(np.full(16, value, dtype=np.uint16).tobytes())

    def read() -> tuple[list[int], tuple[str, ...]]:
        found = read_images(str(tmp_path / "deep"), size=4, channels=1, labelled=False,
                            selection=Selection(formats=("deep",)))
        return found.images.images_NCHW[:, 0, 0, 0].tolist(), found.tied

    assert read() == ([8, 233, 8], ("16 bits",))
    (tmp_path / "deep" / "b.deep").unlink()
    assert read() == ([125, 125], ("16 bits",))


def test_what_the_reader_raises_is_said_of_the_file(slides: Path) -> None:
    (slides / "benign" / "b.slide").write_bytes(b"broken")
    with pytest.raises(BadData, match=r"b\.slide"):
        read_images(str(slides), size=4, channels=1, selection=Selection(formats=("slide",)))
    found = read_images(str(slides), size=4, channels=1, on_error="skip", selection=Selection(formats=("slide",)))
    assert [skipped.name for skipped in found.skipped] == ["benign/b.slide"]
    (slides / "benign" / "b.slide").write_bytes(b"pair")
    found = read_images(str(slides), size=4, channels=1, on_error="skip", selection=Selection(formats=("slide",)))
    assert [skipped.reason for skipped in found.skipped] == [
        "cannot be read: there is no file b.index, which it needs"], "no share has gone away for that"


@pytest.mark.parametrize(("content", "says"), [
    (b"ends", "its reader ends with SystemExit"),
    (b"nothing", "its reader gives a NoneType, not what opened_array() returns")])
def test_a_reader_that_ends_the_process_or_gives_nothing_is_said_of_the_file(slides: Path, content: bytes, says: str
                                                                             ) -> None:
    (slides / "benign" / "b.slide").write_bytes(content)
    found = read_images(str(slides), size=4, channels=1, on_error="skip", selection=Selection(formats=("slide",)))
    assert [(skipped.name, skipped.reason) for skipped in found.skipped] == [
        ("benign/b.slide", f"cannot be read: {says}")]


@pytest.mark.parametrize(("name", "says"), [
    ("missing", "no format plug-in 'missing' here"), ("png2", r"files that end in \.png have a reader already"),
    ("name", "its format is called 'other'"), ("dotless", "its suffixes are not"), ("text", "names a str"),
    ("gone", "cannot be imported: AttributeError"), ("ends", "cannot be imported: SystemExit: 2")])
def test_a_plug_in_that_cannot_be_used_is_refused_with_its_package(name: str, says: str) -> None:
    with pytest.raises(BadConfiguration, match=says) as caught:
        format_plugin(name)
    assert "\n" not in caught.value.line()
    assert name == "missing" or "slides-of-tests 1" in caught.value.text


def test_what_a_reader_prints_is_not_in_the_json_of_a_command(slides: Path, tmp_path: Path) -> None:
    (slides / "benign" / "b.slide").write_bytes(b"prints")
    home = tmp_path / "home"
    home.mkdir()
    (home / "silo.toml").write_text(tomli_w.dumps({"data": {"formats": ["slide"]}}))
    status, out, err = run_command("semisilo.silo.cli.main", "data", str(slides), "--json", "--home", str(home))
    assert (status, json.loads(out)["images"]) == (0, 3)
    assert "a slide of 16 bytes" in err


def test_a_silo_names_them_in_its_own_file_and_a_misspelt_one_is_refused(tmp_path: Path) -> None:
    assert "slide" in installed_formats()
    path = tmp_path / "silo.toml"
    path.write_text(tomli_w.dumps({"data": {"formats": ["slide"]}}))
    assert load_policy(path).data.selection.formats == ("slide",)
    path.write_text(tomli_w.dumps({"data": {"formats": ["slides"]}}))
    with pytest.raises(BadConfiguration, match="no format plug-in 'slides' here"):
        load_policy(path)


def test_who_names_none_has_the_files_and_digests_of_before() -> None:
    assert canonical_json(Selection()) == '{"dicom":{},"patient":"auto"}'


@pytest.mark.parametrize(("array", "square"), [
    (np.array([[0, 65535], [65535, 0]], dtype=np.uint16), [[0, 255], [255, 0]]),
    (np.array([[0.0, 1.0], [0.5, 0.0]]), [[0, 255], [128, 0]]),
    (np.array([[[7]]], dtype=np.uint8).repeat(2, 0).repeat(2, 1), [[7, 7], [7, 7]])])
def test_arrays_of_a_reader_become_squares_as_those_of_other_formats(array: NDArray[Any],
                                                                     square: list[list[int]]) -> None:
    opened = opened_array(array, patient="Ada")
    found, = opened.pictures(Geometry(size=2, channels=1, resize="fit"), Reading(), {})
    assert found.square.tolist() == [square]
    assert found.patient not in ("", "Ada")
    assert opened.header(Reading()).size == (2, 2)


@pytest.mark.parametrize("arrays", [(), (np.zeros((2, 2, 2), dtype=np.uint8),), (np.zeros((0, 2), dtype=np.uint8),)])
def test_arrays_that_are_no_pictures_are_refused(arrays: tuple[NDArray[Any], ...]) -> None:
    with pytest.raises(UnusableError):
        opened_array(*arrays)
