"""The Python API: what docs/python.md promises, in scripts and where an event loop runs already."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

import semisilo
import semisilo.api.simulate as api_module
from semisilo.api.progress import Watching, shown_for
from semisilo.api.setup import ARRAYS_FOLDER, stored
from semisilo.common.data.formats import archive
from semisilo.common.errors import BadConfiguration, BadData, SemisiloError, UsageError
from semisilo.common.text.describe import describe_percentage
from semisilo.coordinator.federation.folder import create_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import LABELS_ALONE_MODEL
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.simulation import run as run_simulation
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.output import export_run
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "python.md"
SMALL: dict[str, Any] = {"silos": 3, "num_labelled": 20, "rounds": 1, "labelled_only": False, "progress": False,
                         "tables": {"simulation": {"split": {"fraction": 0.12}}}}
GREY = np.arange(512, dtype=np.uint8).reshape(8, 8, 8) // 2 * np.arange(1, 9, dtype=np.uint8)[:, None, None]
QUICK = {"name": "semifl", "local_epochs": 1, "coordinator_epochs": 1, "confidence_threshold": 0.11}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def own_images() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    digits = archive.digits("train", source="digits")
    assert digits.images is not None
    assert digits.labels_N is not None
    return digits.images[:200], digits.labels_N[:200]


# Importing ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_importing_is_light_and_every_public_name_is_there() -> None:
    code = ("import sys, semisilo\n"
            "assert not {'torch', 'numpy', 'matplotlib', 'grpc'} & set(sys.modules), sorted(sys.modules)\n"
            "assert set(semisilo.__all__) <= set(dir(semisilo))\n"
            "[getattr(semisilo, name) for name in semisilo.__all__]\n"
            "assert not {'grpc', 'cryptography'} & set(sys.modules)\n")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'similate'"):
        semisilo.similate  # noqa: B018


# The page -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # quickly: what it calls below, and that the page has every argument and every part of a result
def test_the_ten_lines_of_the_page_run_with_fewer_rounds_epochs_and_images(tmp_path: Path) -> None:
    example, *_ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    for long, quick in (("rounds=6", "rounds=1"), ('"coordinator_epochs": 40', '"coordinator_epochs": 2'),
                        ('"local_epochs": 3', '"local_epochs": 1'),
                        ('"augmentation"', '"simulation": {"split": {"fraction": 0.2}}, "augmentation"')):
        assert example.count(long) == 1
        example = example.replace(long, quick)
    done = subprocess.run([sys.executable, "-P", "-c", example], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[:4]] == [
        "method", "SemiFL", "without MixUp", "FixMatch"]
    assert "labels alone: " in done.stdout
    assert len(done.stderr.strip().splitlines()) == 6  # a line for each run
    for name in ("accuracy.png", "cost.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > 600


def rows_under(heading: str) -> dict[str, str]:
    """First cell without backticks -> second cell, of the table under a heading."""
    found: dict[str, str] = {}
    section = re.split(r"^#+ ", PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2], maxsplit=1,
                       flags=re.MULTILINE)[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            first, second, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
            found |= dict.fromkeys(first.strip("`").split("`, `"), second)
    return found


@pytest.mark.parametrize("name", ["simulate", "compare", "load_run", "predict"])
def test_every_argument_of_a_call_is_on_the_page_with_its_default(name: str) -> None:
    rows, parameters = rows_under(f"semisilo.{name}"), inspect.signature(getattr(semisilo, name)).parameters
    assert set(rows) == set(parameters)
    shared = inspect.signature(semisilo.simulate).parameters
    for argument, default in rows.items():
        real = parameters[argument].default
        if default == "as of `simulate`":
            assert real == shared[argument].default, argument
        elif default == "required":
            assert real is inspect.Parameter.empty, argument
        else:
            assert eval(default.strip("`")) == real, argument


@pytest.mark.parametrize("name", ["Run", "Round", "Comparison", "Summary", "Predictions"])
def test_every_part_of_a_result_is_on_the_page(name: str) -> None:
    kind = getattr(semisilo, name)
    fields = {field.name for field in dataclasses.fields(kind)}
    methods = {f"{each}()" for each, value in vars(kind).items()
               if inspect.isfunction(value) and not each.startswith("_")}
    properties = {each for each, value in vars(kind).items() if isinstance(value, property)}
    assert set(rows_under(f"semisilo.{name}")) == fields | methods | properties


def test_every_public_name_has_its_place_on_the_page() -> None:
    headings = set(re.findall(r"^### semisilo\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert headings == set(semisilo.__all__) - {"__version__"}


def test_no_folder_has_the_name_of_what_the_package_offers() -> None:
    """It would take that name's place as soon as anything in it is imported."""
    assert [name for name in semisilo.__all__ if importlib.util.find_spec(f"semisilo.{name}") is not None] == []


# simulate -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_file_gives_the_bits_of_the_command(tmp_path: Path) -> None:
    tables = study("semifl", rounds=1)
    wanted = run_simulation(tables, out=tmp_path / "command", device="cpu")
    found = semisilo.simulate(tables, out=tmp_path / "python", device="cpu", progress=False)
    assert found.digest == wanted.digest
    assert found.curve == wanted.curve
    assert found.payload_bytes == sum(each.payload_down + each.payload_up for each in wanted.rounds)
    assert found.silos == wanted.silos
    assert (found.wire_bytes, found.simulated, found.state) == (None, True, "completed")


def test_a_study_file_that_was_edited_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(api_module, "_run", lambda study, folder, **_: folders.append(folder))
    path = tmp_path / "lungs.toml"
    for rounds in (1, 2, 1):
        path.write_text(tomli_w.dumps(study("semifl", rounds=rounds)), encoding="utf-8")
        semisilo.simulate(path, progress=False)
    (tmp_path / "elsewhere").mkdir()
    semisilo.simulate(path.rename(tmp_path / "elsewhere" / "lungs.toml"), progress=False)
    first, edited, again, moved = (folder.name for folder in folders)
    assert first == again
    assert len({first, edited, moved}) == 3, "relative paths start at another folder"
    assert {name.rpartition("-")[0] for name in (first, edited, moved)} == {"lungs"}


@pytest.mark.slow
def test_own_arrays_a_file_and_a_folder_of_the_same_images_give_the_same_model(tmp_path: Path) -> None:
    images, labels = own_images()
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "folder" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "folder" / str(label) / f"{index:04d}.png")
    shared = {**SMALL, "tables": {}, "method": QUICK}
    by_arrays = semisilo.simulate(data=(images, labels), **shared)
    by_file = semisilo.simulate(data="own.npz", **shared)
    by_folder = semisilo.simulate(data=tmp_path / "folder", **shared)
    assert by_arrays.digest == by_file.digest
    assert by_arrays.accuracy is not None  # a fifth was held out
    assert len(by_folder.classes) == len(by_arrays.classes) == 10
    assert by_folder.accuracy is not None
    named = semisilo.simulate(data=(images, np.array([f"digit {label}" for label in labels])), **shared)
    assert named.classes == tuple(f"digit {label}" for label in range(10))
    assert named.digest == by_arrays.digest


@pytest.mark.slow
def test_arrays_are_kept_in_a_folder_of_our_own_and_found_where_an_earlier_version_kept_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = own_images()
    (tmp_path / "data").mkdir()  # somebody's images
    call: dict[str, Any] = {"data": (images, labels), "method": QUICK, "engine": "process", **SMALL, "tables": None}
    semisilo.simulate(**call, out=tmp_path / "mine")
    assert list((tmp_path / "data").iterdir()) == []
    kept, = (tmp_path / "semisilo-arrays").iterdir()
    assert kept.suffix == ".npz"

    monkeypatch.setattr(api_module, "ARRAYS_FOLDER", "data")  # as an earlier version did
    earlier = semisilo.simulate(**call)
    earlier_out = semisilo.simulate(**call, out=tmp_path / "runs" / "chosen")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("semisilo.simulation.simulate.simulate", None)  # nothing is run again
    assert semisilo.simulate(**call).folder == earlier.folder
    assert semisilo.simulate(**call, out=earlier_out.folder).digest == earlier_out.digest
    assert not (tmp_path / "runs" / "semisilo-arrays").exists()


@pytest.mark.slow
def test_a_finished_run_is_read_and_other_settings_have_another_folder() -> None:
    first = semisilo.simulate(data="digits", method=QUICK, **SMALL)
    states = sorted(first.folder.rglob("states/*"))
    before = [path.stat().st_mtime_ns for path in states], sorted(path.name for path in Path("runs").iterdir())
    again = semisilo.simulate(data="digits", method=QUICK, **SMALL)
    assert again == first
    with SimulationFolder(first.folder).lock(to_read=True):  # another process reads it as well
        assert semisilo.simulate(data="digits", method=QUICK, **SMALL) == first
    with SimulationFolder(first.folder).lock(), pytest.raises(UsageError, match="another simulation runs here"):
        semisilo.simulate(data="digits", method=QUICK, **SMALL)
    assert states
    assert ([path.stat().st_mtime_ns for path in states],
            sorted(path.name for path in Path("runs").iterdir())) == before
    other = semisilo.simulate(data="digits", method=QUICK, **{**SMALL, "seed": 2})
    assert other.folder != first.folder
    assert other.digest != first.digest


@pytest.mark.slow
def test_labels_may_be_at_the_silos() -> None:
    found = semisilo.simulate(data="digits", method={"name": "fedavg", "objective": "sl", "local_epochs": 1},
                              **{**SMALL, "num_labelled": None, "labelled_per_class": 1})
    assert found.labelled_only_accuracy is None
    assert len(found.completed) == 2


@pytest.mark.slow
def test_labels_may_be_at_both_and_silos_labels_then_count() -> None:
    """The same images everywhere: without the silos' labels another model, though the warm-up is the same."""
    method = {"name": "self_training", "warm_up_steps": 3, "coordinator_steps": 1, "local_epochs": 1,
              "confidence_threshold": 0.11}
    arguments = {**SMALL, "engine": "process", "labelled_per_class": 1, "split": {
        "name": "iid", "labelled_silos": 1, "labelled_classes": 5}}
    both = semisilo.simulate(data="digits", method={**method, "labelled_steps": 2}, **arguments)
    with contextlib.closing(Ledger(both.folder / "ledger.sqlite")) as ledger:
        assert [row.labelled_count for row in LedgerRoster(ledger).silos()] == [5, 0, 0]
    assert len(both.completed) == 2
    hub = semisilo.simulate(data="digits", method={**method, "scenario": "labels-at-coordinator"},
                            **{**arguments, "split": "iid"})
    assert both.rounds[0].metrics == hub.rounds[0].metrics, "the warm-up is that of the coordinator's labels"
    assert both.digest != hub.digest


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({}, UsageError, "no images and no study"),
    ({"data": "digits"}, UsageError, "not said how many images have labels"),
    ({"data": "digits", "num_labelled": 20, "labelled_per_class": 1, "method": "semifl"}, BadConfiguration,
     "semifl is not defined for the scenario 'labels-at-both'"),
    ({"data": "digits", "num_labelled": 20, "method": "semifll"}, SemisiloError, "semifll"),
    ({"data": "digits", "num_labelled": 20, "method": {"lr": 1}}, UsageError, "needs a name"),
    ({"data": "digits", "num_labelled": 20, "method": {"name": "semifl", "lrr": 1}}, BadConfiguration, "lrr"),
    ({"data": "digits", "num_labelled": 20, "tables": {"study": {"roundz": 1}}}, BadConfiguration, "roundz"),
    ({"data": "digits", "num_labelled": 20, "tables": {"study": 1}}, UsageError, "must be a table"),
    ({"data": "no such folder", "num_labelled": 20}, BadData, "no such folder"),
    ({"data": (np.zeros((4, 8, 8)), [0, 1, 0, 1]), "num_labelled": 2}, BadData, "float64"),
    ({"data": (np.zeros((4, 8, 8), np.uint8), [0, 1]), "num_labelled": 2}, BadData, "4 images, and labels"),
    ({"data": ([np.zeros((8, 8), np.uint8), np.zeros((4, 8), np.uint8)], [0, 1]), "num_labelled": 2}, BadData,
     r"data: the images have several shapes: \(8, 8\), \(4, 8\)"),
    ({"data": (np.zeros((2, 8, 8), np.uint8), [[0], [0, 1]]), "num_labelled": 2}, BadData, "the labels are no array"),
    ({"data": "digits", "num_labelled": 20, "image_size": 0}, UsageError, "image_size = 0: must be at least 1"),
    ({"data": "digits", "num_labelled": 20, "image_size": -3}, UsageError, "image_size = -3: must be at least 1"),
    ({"study": study("semifl"), "rounds": 3}, UsageError, "rounds has no effect beside a study"),
    ({"study": 3}, UsageError, "study = 3: is neither"),
    ({"study": {**study("semifl"), "method": "semifl"}}, BadConfiguration, r"\[method\]"),
    ({"data": "digits", "num_labelled": 20, "tables": [("a", 1)]}, UsageError, "tables = .*must be a dictionary"),
    ({"data": "digits", "num_labelled": 20, "split": 3}, UsageError, "split = 3: must be a dictionary"),
    ({"data": "digits", "num_labelled": 20, "method": 3}, UsageError, "needs a name"),
    ({"data": "digits", "num_labelled": 20, "method": {"name": "semifl", "lr": {1}}}, UsageError,
     r"method: lr: \{1\} \(set\) cannot be"),
    ({"data": "digits", "num_labelled": 20, "model": torch.nn.Linear(40, 2).state_dict()}, UsageError,
     r"model: weight: tensor\(.* \(Tensor\) cannot be"),
    ({"data": "digits", "num_labelled": 20, "rounds": float("nan")}, UsageError, r"rounds: nan \(float\) cannot be"),
    ({"data": "digits", "num_labelled": 20, "out": 3}, UsageError, "out = 3: must be a path"),
    ({"data": "digits", "num_labelled": 20, "out": ""}, UsageError, "out = '': must be a path"),
    ({"data": "digits", "num_labelled": 20, "labelled_only": "no"}, UsageError, "labelled_only = 'no': must be True"),
    ({"data": "", "num_labelled": 20}, BadData, "data: is an empty text"),
    ({"data": "x" * 300, "num_labelled": 20}, BadData, "data = x+.*: cannot be a path: File name too long"),
    ({"data": "digits", "num_labelled": 20, "out": __file__}, UsageError, "out = .*test_simulate.py is not a folder"),
    ({"study": ""}, UsageError, "study = '': must be a path"),
    ({"data": (np.zeros((2, 8, 8), np.uint8), None), "num_labelled": 2}, BadData, "data: the labels are None"),
])
def test_what_is_wrong_is_one_line_with_a_remedy(arguments: dict[str, Any], error: type[SemisiloError], text: str
                                                 ) -> None:
    with pytest.raises(error, match=text) as caught:
        semisilo.simulate(progress=False, **arguments)
    assert "\n" not in caught.value.line()
    assert caught.value.remedy
    assert "".join(traceback.format_exception(caught.value)).endswith(f"{caught.value.text}\n{caught.value.remedy}\n")


@pytest.mark.parametrize(("arguments", "says"), [
    ({"test": (GREY[:4] + 1, [0, 1, 2, 7])}, "^test: label 7 of image 3 is out of range"),
    ({"labelled": (GREY[:4] + 9, [0, 1, -3, 1])}, "^labelled: label -3 of image 2 is out of range"),
    ({"labelled": (GREY[:4], np.eye(4, dtype=int))}, "^labelled: 'labels' has the shape 4 x 4"),
    ({"test": (GREY[:4], [0, 1, 2, 1])}, r"4 of 4 test images have the pixels of labelled ones"),
    ({"unlabelled": (GREY[:4, :0], None)}, "^unlabelled: 'images' is empty")])
def test_an_error_names_the_argument_and_not_the_file_that_was_made_of_it(arguments: dict[str, Any], says: str) -> None:
    given = {"labelled": (GREY[:4], [0, 1, 2, 1]), "unlabelled": (GREY + 3, None), "silos": 2, "rounds": 1,
             "progress": False, **arguments}
    with pytest.raises(SemisiloError, match=says) as caught:
        semisilo.simulate(**given)
    assert ARRAYS_FOLDER not in str(caught.value)
    with pytest.raises(SemisiloError, match=says.removeprefix("^")) as caught:
        semisilo.compare(["self_training"], **given)
    assert ARRAYS_FOLDER not in str(caught.value)


@pytest.mark.parametrize(("tables", "says", "remedies"), [
    ({"study": {"seed": 7}}, r"\[study\] seed would take the place", ("seed=7", "seeds=[7]")),
    ({"method": {"name": "fedavg"}}, r"\[method\] name would take the place",
     ('method="semifl"', 'methods=["semifl"]'))])
def test_tables_do_not_make_one_seed_or_method_of_all(tables: dict[str, Any], says: str,
                                                      remedies: tuple[str, str]) -> None:
    """Three seeds that are one would be reported as three, with no spread."""
    calls: tuple[Any, ...] = (lambda **given: semisilo.simulate(method=QUICK, **given),
                              lambda **given: semisilo.compare([QUICK], seeds=[1, 2, 3], **given))
    for call, remedy in zip(calls, remedies, strict=True):
        with pytest.raises(UsageError, match=says) as caught:
            call(data="digits", **{**SMALL, "tables": tables})
        assert remedy in caught.value.remedy
    assert not Path("runs").exists()


FOUR = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)


@pytest.mark.parametrize(("labels", "kind"), [
    (np.array(["b", "a", "b", "a"]), "names"), (np.array([1, 0, 1, 0]), "numbers")])
def test_a_column_of_a_table_is_the_labels_that_it_holds(labels: Any, kind: str, tmp_path: Path) -> None:
    """pandas hands over the texts of a column as Python objects."""
    found = [stored((FOUR, each), tmp_path) for each in (labels, labels.astype(object), labels.tolist())]
    assert found[0] == found[1] == found[2]
    assert found[0].labels == kind
    with pytest.raises(BadData, match="labels have the type object"):
        stored((FOUR, np.array(["b", None, "b", "a"], dtype=object)), tmp_path)
    with pytest.raises(BadData, match="the label of image 1 is 'nan', as if there were none"):
        stored((FOUR, ["b", float("nan"), "b", "a"]), tmp_path)  # of a list NumPy makes a text, which was a class
    with pytest.raises(BadData, match="the label of image 2 is ''"):
        stored((FOUR, np.array(["b", "a", "", "a"], dtype=object)), tmp_path)


class Named(torch.utils.data.Dataset[Any]):
    """Numbers, or the names themselves, and perhaps what the numbers are called."""

    def __init__(self, labels: list[Any], classes: list[str] | None = None) -> None:
        self.labels = labels
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return np.full((8, 8), index, np.uint8), self.labels[index]


@pytest.mark.parametrize(("arguments", "says"), [
    ({"labelled": (FOUR, ["b", "a", "b", "a"]), "unlabelled": FOUR, "test": (FOUR, [1, 0, 1, 0])},
     "labelled has names of classes, test has numbers"),
    ({"data": (FOUR, [1, 0, 1, 0]), "test": Named(["b", "a"])}, "test has names of classes, data has numbers"),
    ({"labelled": (FOUR, [0, 1, 0, 1]), "unlabelled": [FOUR, (FOUR, ["a", "b", "a", "b"])]},
     r"unlabelled\[1\] has names of classes, labelled has numbers"),
    ({"data": [(FOUR, ["a", "b", "a", "b"]), (FOUR, [0, 1, 0, 1])]},
     r"data\[0\] has names of classes, data\[1\] has numbers"),
    ({"labelled": (FOUR, ["b", "a", "b", "a"]), "unlabelled": FOUR, "test": Named([0, 1], ["a", "b"])}, ""),
    ({"labelled": Named([0, 1], ["a", "b"]), "unlabelled": FOUR, "test": (FOUR, [1, 0, 1, 0])}, ""),
    ({"labelled": (FOUR, [0, 1, 0, 1]), "unlabelled": FOUR, "test": Named([0, 1])}, ""),
    ({"data": "digits", "test": (FOUR, ["a", "b", "a", "b"])}, "")])
def test_names_of_classes_in_one_argument_and_numbers_in_another_are_refused(
        arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Names get numbers in their own order: the first class that somebody names is not his number 0."""
    given = {name: arguments.get(name) for name in ("data", "labelled", "unlabelled", "test")}
    settings: Any = {**given, "silos": 10, "split": "iid", "num_labelled": None, "labelled_per_class": None,
                     "num_test": None, "num_validation": None, "rounds": 1, "model": "small_cnn", "image_size": None,
                     "tables": None}
    if says:
        with pytest.raises(BadData, match=says) as caught:
            api_module._setup(tmp_path, **settings)
        assert caught.value.remedy == "Give names in both, or numbers in both."
    else:
        api_module._setup(tmp_path, **settings)


def test_numbers_of_numpy_are_those_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Path]] = []

    def run(study: Any, folder: Path, **options: Any) -> Any:
        asked.append((study, folder))
        return SimpleNamespace(labelled_only={})

    monkeypatch.setattr(api_module, "_run", run)
    monkeypatch.setattr(api_module, "Comparison", lambda runs: runs)
    for whole, real, seeds in ((int, float, [0, 1]), (np.int64, np.float32, np.arange(2)),
                               (np.int32, np.float64, list(np.arange(2)))):
        few = {**SMALL, "silos": whole(2), "rounds": whole(3), "num_labelled": whole(20)}
        method = {**QUICK, "lr": real(0.5)}
        semisilo.simulate(data="digits", method=method, seed=whole(7), **few)  # type: ignore[arg-type]
        semisilo.simulate(study("semifl", study={"seed": whole(7)}), progress=False)
        semisilo.compare([method], data="digits", seeds=seeds, **few)  # type: ignore[arg-type]
    assert len(asked) == 12
    assert asked[:4] == asked[4:8] == asked[8:]
    for methods in (3, [3]):
        with pytest.raises(UsageError, match=r"methods = 3: must be a list|A method needs a name"):
            semisilo.compare(methods, data="digits", **SMALL)  # type: ignore[arg-type]
    for seeds in (3, np.int64(3), [], [1, 1]):
        with pytest.raises(UsageError, match="must be a list of different numbers"):
            semisilo.compare([QUICK], data="digits", seeds=seeds, **SMALL)  # type: ignore[arg-type]


# compare --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> semisilo.Comparison:
    return semisilo.compare(
        {"a <b>$": QUICK, "second": {**QUICK, "local_epochs": 2}}, data="digits", seeds=[1, 2],
        out=tmp_path_factory.mktemp("comparison"),
        **{**SMALL, "rounds": 2, "labelled_only": True,
           "tables": {"study": {"baseline_epochs": 2}, "simulation": {"split": {"fraction": 0.12}}}})


@pytest.mark.slow
def test_a_comparison_has_a_run_for_each_method_and_seed_on_the_same_images(comparison: semisilo.Comparison) -> None:
    assert [(run.label, run.seed) for run in comparison.runs] == [
        ("a <b>$", 1), ("a <b>$", 2), ("second", 1), ("second", 2)]
    dealt = [json.loads((run.folder / "simulation.json").read_text())["digest"] for run in comparison.runs]
    assert dealt[0] == dealt[2] != dealt[1] == dealt[3]
    assert len({run.digest for run in comparison.runs}) == 4


@pytest.mark.slow
def test_the_line_of_the_labels_alone_is_trained_once_for_each_seed(comparison: semisilo.Comparison) -> None:
    lines = [run.labelled_only_accuracy for run in comparison.runs]
    assert None not in lines
    assert lines[:2] == lines[2:]
    assert {each.labelled_only for each in comparison.summary()} == {sum(each for each in lines[:2] if each) / 2}


@pytest.mark.slow
def test_every_run_has_the_line_and_its_model_so_that_it_can_hand_it_over(comparison: semisilo.Comparison,
                                                                          tmp_path: Path) -> None:
    models, taken = [], []
    for run in comparison.runs:
        ledger = Ledger(run.folder / "ledger.sqlite", waits=False)
        (row,) = ledger.studies()
        kinds = [each["kind"] for each in ledger.query("SELECT kind FROM event ORDER BY number")]
        taken.append(kinds.index("study_baseline") < kinds.index("round_opened"))
        ledger.close()
        assert row.baseline is not None
        content = (run.folder / "studies" / row.name / LABELS_ALONE_MODEL).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row.baseline.model_digest
        models.append(row.baseline)
        found = export_run(run.folder, out=tmp_path / run.folder.name, round="labels-alone", formats=("safetensors",))
        assert found.model.exists()
    assert models[0] == models[2] != models[1] == models[3]
    assert taken == [True, True, False, False], "the second method, which looks at more labels, has trained it"


@pytest.mark.parametrize("labels", [("short", "long", "other"), ("other", "long", "short")])
def test_the_line_is_trained_by_the_method_that_looks_at_most_labels_whatever_the_order(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...]) -> None:
    ran: list[tuple[str, Path | None]] = []

    def run(study: Any, folder: Path, *, label: str, labels_alone: Path | None, **options: Any) -> Any:
        ran.append((folder.name.partition("-seed")[0], labels_alone))
        return SimpleNamespace(labelled_only={"accuracy": 0.5})

    monkeypatch.setattr(api_module, "_run", run)
    monkeypatch.setattr(api_module, "Comparison", lambda runs: runs)
    methods = {"short": {**QUICK, "local_epochs": 1}, "long": {**QUICK, "local_epochs": 30},
               "other": {**QUICK, "local_epochs": 2}}
    semisilo.compare({label: methods[label] for label in labels}, data="digits", seeds=[1, 2], out=tmp_path,
                     **{**SMALL, "labelled_only": True})
    assert ran[:2] == [("long", None), ("long", None)], "one for each seed"
    assert {label for label, _ in ran[2:]} == {"short", "other"}
    taken = [line.name.rpartition("-")[0] for _, line in ran[2:] if line is not None]
    assert taken == ["long-seed-1", "long-seed-2"] * 2


def test_the_summary_is_mean_and_spread_over_the_seeds(comparison: semisilo.Comparison) -> None:
    for each in comparison.summary():
        final = [run.accuracy for run in comparison.of(each.label)]
        assert each.accuracy == pytest.approx(np.mean(final))  # type: ignore[arg-type]
        assert each.accuracy_std == pytest.approx(np.std(final, ddof=1))  # type: ignore[arg-type]
        assert each.payload_bytes == np.mean([run.payload_bytes for run in comparison.of(each.label)])
        assert f"{100 * np.mean(final):.2f}" in str(comparison)  # type: ignore[arg-type]
    rows = comparison.rows()
    assert len(rows) == 4 * 3
    assert {"label", "seed", "round", "accuracy", "bytes_so_far", "label_ratio"} <= set(rows[0])
    assert json.loads(json.dumps(comparison.to_dict()))["summary"][0]["label"] == "a <b>$"
    with pytest.raises(UsageError, match="'third' is not compared"):
        comparison.of("third")


@pytest.mark.slow
def test_with_another_seed_only_its_runs_are_new(comparison: semisilo.Comparison, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    ran: list[str] = []
    true = api_module.run_simulation

    def watched(study: Any, **options: Any) -> Any:
        existed = (options["out"] / "ledger.sqlite").exists()
        ran.extend([] if existed else [options["out"].name])
        return true(study, **options)

    monkeypatch.setattr(api_module, "run_simulation", watched)
    more = semisilo.compare(
        {"a <b>$": QUICK}, data="digits", seeds=[1, 2, 3], out=comparison.runs[0].folder.parent,
        **{**SMALL, "rounds": 2, "labelled_only": True,
           "tables": {"study": {"baseline_epochs": 2}, "simulation": {"split": {"fraction": 0.12}}}})
    assert more.runs[:2] == comparison.runs[:2]
    assert len(ran) == 1
    assert ran[0].startswith("a-b-seed-3-")


def test_a_mistake_in_the_last_method_is_told_before_the_first_one_runs(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"wrong: .*local_epoch"):
        semisilo.compare({"right": QUICK, "wrong": {"name": "semifl", "local_epoch": 1}}, data="digits",
                         out=tmp_path / "out", **SMALL)
    assert not (tmp_path / "out").exists()
    for wrong, text in ((["semifl", "semifl"], "Two methods are called"), ([], "no method"), ("semifl", "a list")):
        with pytest.raises(UsageError, match=text):
            semisilo.compare(wrong, data="digits", **SMALL)
    for seeds in (1, [], [1, 1]):
        with pytest.raises(UsageError, match="different numbers"):
            semisilo.compare(["semifl"], data="digits", seeds=seeds, **SMALL)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_drawn")
def test_the_plot_has_a_line_and_a_band_for_each_method_and_the_line_to_beat(comparison: semisilo.Comparison) -> None:
    for by, label in (("round", "round"), ("bytes", "payload bytes so far")):
        figure = comparison.plot(by=by)  # type: ignore[arg-type]
        (axes,) = figure.axes
        assert len(axes.lines) == 3
        assert len(axes.collections) == 2  # the bands
        assert label in axes.get_xlabel()
        drawn = axes.lines[0].get_ydata()
        curves = [dict(run.curve) for run in comparison.of("a <b>$")]
        assert list(drawn) == pytest.approx([100 * np.mean([curve[number] for curve in curves]) for number in range(3)])
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts[0] == "a <b>$, 2 seeds"
        assert texts[2].startswith("labels alone")
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="is not an axis"):
        comparison.plot(by="time")  # type: ignore[arg-type]


def test_a_notebook_shows_table_and_plot_with_names_as_text(comparison: semisilo.Comparison) -> None:
    for page in (comparison._repr_html_(), comparison.runs[0]._repr_html_()):
        assert "<b>" not in page
        assert "a &lt;b&gt;$" in page
        assert '<img alt="test accuracy" src="data:image/png;base64,' in page


def test_pandas_is_asked_for_only_when_it_is_wanted(comparison: semisilo.Comparison, monkeypatch: pytest.MonkeyPatch
                                                    ) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pandas is not installed"):
        comparison.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda rows: ("frame", rows)))
    assert comparison.to_pandas() == ("frame", comparison.rows())


# In a notebook --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_works_where_an_event_loop_runs_already(tmp_path: Path) -> None:
    async def cell() -> semisilo.Comparison:
        return semisilo.compare([QUICK], data="digits", out=tmp_path / "out", **SMALL)

    found = asyncio.run(cell())
    assert found.runs[0].state == "completed"
    assert semisilo.simulate(data="digits", method=QUICK, **SMALL).digest == found.runs[0].digest


@pytest.mark.slow
@pytest.mark.parametrize("script", [False, True])
def test_an_interrupt_in_a_notebook_ends_the_simulation_and_the_same_call_goes_on(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: bool) -> None:
    """A notebook's stop button is SIGINT in the thread of the event loop, while the simulation has one of its own. In a
    script's `asyncio.run` it cancels the task, and raises nothing."""
    pressed: list[int] = []

    class Stops(Watching):
        def progress(self, ledger: Ledger, study: str, text: str, fraction: float) -> None:
            last = ledger.last_round(study)
            if last is not None and last.number == 2 and not pressed:
                pressed.append(last.number)
                os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> semisilo.Run:
        return semisilo.simulate(data="digits", method=QUICK, out=tmp_path / "run", **{**SMALL, "rounds": 8})

    monkeypatch.setattr(api_module, "Watching", Stops)
    before, loop = signal.signal(signal.SIGINT, signal.default_int_handler), asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(cell()) if script else loop.run_until_complete(cell())
        assert [each.name for each in threading.enumerate() if "simulation" in each.name] == []
        stopped = semisilo.load_run(tmp_path / "run")
        assert stopped.state == "running"
        assert len(stopped.rounds) < 8
        again = loop.run_until_complete(cell())
        assert (again.state, len(again.rounds)) == ("completed", 9)
        assert pressed == [2]
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()


@pytest.mark.slow
def test_a_cell_of_a_notebook_has_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    handle = types.SimpleNamespace(update=pages.append)

    def display(page: str, display_id: bool) -> Any:
        assert display_id
        pages.append(page)
        return handle

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=lambda text: text, display=display))
    shown = shown_for(True)
    found = semisilo.simulate(data="digits", method=QUICK, **{**SMALL, "progress": True})
    shown.close()
    assert found.accuracy is not None
    assert any("<progress" in page for page in pages)
    final = next(page for page in reversed(pages[:-1]) if "semifl" in page)
    assert f"semifl: accuracy {describe_percentage(found.accuracy, decimals=2)}" in final
    assert "<progress" not in pages[-1]
    watching = Watching(shown, "<script>", index=0, total=1)
    watching.step("starts")
    assert "<script>" not in pages[-1]


# What is on disk ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("pictures_left_blank")
def test_a_run_is_read_from_its_folder_exported_and_used(tmp_path: Path) -> None:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    found = semisilo.simulate(data="digits", method=QUICK, **SMALL)
    loaded = semisilo.load_run(found.folder)
    assert loaded == found
    assert len(repr(loaded)) < 300
    with pytest.raises(SemisiloError, match="'other'"):
        semisilo.load_run(found.folder, study="other")
    for argument, says in (({"test": (GREY, [0] * 8)}, "test: is a tuple"), ({"formats": None}, "formats = None"),
                           ({"calibrate": "no"}, "calibrate = 'no'"), ({"operating_point": 3}, "operating_point = 3"),
                           ({"progress": True}, "progress = True"), ({"out": 3}, "out = 3")):
        with pytest.raises(UsageError, match=says):
            loaded.export(**argument)  # type: ignore[arg-type]
    np.savez(tmp_path / "others.npz", images=255 - GREY, labels=np.arange(8))
    measured = loaded.export(tmp_path / "measured", formats="safetensors", test=tmp_path / "others.npz")
    assert measured.card["test"]["images"] == 8
    exported = loaded.export(tmp_path / "out", formats=("safetensors",))
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert exported.card["test"]["accuracy"] == loaded.accuracy
    assert semisilo.predict(exported.folder, "digits#test").accuracy == loaded.accuracy
    assert loaded.predict("digits#test").accuracy == loaded.accuracy


def test_a_federation_is_read_with_its_wire_bytes(tmp_path: Path) -> None:
    from tests.coordinator.ledger_fixture import WIRE_DOWN, fill_study

    fill_study(tmp_path / "hub", rounds=2).ledger.close()
    found = semisilo.load_run(tmp_path / "hub")
    assert not found.simulated
    assert found.rounds[1].wire_down is not None
    assert found.rounds[1].wire_down >= 3 * WIRE_DOWN
    assert found.wire_bytes == found.bytes_so_far()[-1]
    with pytest.raises(UsageError, match="is a federation"):
        found.export()


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=f"^{tmp_path}/home/runs/a holds no simulation"):
        semisilo.load_run("~/runs/a")
    with pytest.raises(BadConfiguration, match=f"^{tmp_path}/home/study.toml: no such file"):
        semisilo.simulate("~/study.toml")
    with pytest.raises(BadData):
        semisilo.simulate(data=(GREY, [0, 1, 2, 70000] * 2), num_labelled=4, out="~/runs/a", progress=False)
    assert [path.name for path in (tmp_path / "home" / "runs").iterdir()] == [ARRAYS_FOLDER]
    assert not (tmp_path / "~").exists()


def test_a_folder_that_holds_nothing_of_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no simulation and no federation"):
        semisilo.load_run(tmp_path)
    create_federation(tmp_path / "hub", name="lung", address="localhost:8443")
    with pytest.raises(UsageError, match="nothing has begun there"):
        semisilo.load_run(tmp_path / "hub")
    with pytest.raises(UsageError, match="folder = 3: must be a path"):
        semisilo.load_run(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="study = 3: must be a name"):
        semisilo.load_run(tmp_path / "hub", study=3)  # type: ignore[arg-type]


def test_arrays_with_a_row_of_0_and_1_for_each_image_are_stored_as_they_are(tmp_path: Path) -> None:
    rows = np.array([[1, 0, 1], [0, 0, 0]])
    with np.load(stored((np.zeros((2, 8, 8), dtype=np.uint8), rows), tmp_path).source) as arrays:
        assert arrays["labels"].tolist() == rows.tolist()
        assert "classes" not in arrays.files
