"""An exported model on images: the coordinator's own numbers, whatever the source and what is broken in it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import semisilo
from semisilo.cli.main import app
from semisilo.common.data import room
from semisilo.common.data.form import ImageForm
from semisilo.common.data.formats import archive
from semisilo.common.errors import BadData, UsageError
from semisilo.common.measures.calibration import probabilities
from semisilo.common.models.exported import METADATA_KEY, OperatingPoint, logits_of, read_model
from semisilo.common.text.cli_errors import run_cli
from semisilo.prediction import predictor
from semisilo.prediction.images import Batch, open_source
from semisilo.prediction.predictor import Predictions, open_predictor, predict
from semisilo.simulation import SimulationResult, run
from semisilo.simulation.output import export_run
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", autouse=True)
def _torch_as_before() -> Iterator[None]:
    mode = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(mode)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> SimulationResult:
    return run(study("semifl", rounds=2), out=tmp_path_factory.mktemp("simulated") / "run", device="cpu")


@pytest.fixture(scope="module")
def model(simulated: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export without a graph, with a temperature."""
    return export_run(simulated.folder, out=tmp_path_factory.mktemp("model") / "export", calibrate=True, device="cpu",
                      formats=("safetensors",)).folder


@pytest.fixture(scope="module")
def with_graph(simulated: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a graph and an operating point. What writes a graph takes ten seconds to import."""
    return export_run(simulated.folder, out=tmp_path_factory.mktemp("graph") / "export", calibrate=True, device="cpu",
                      operating_point="sensitivity 95% for 3").folder


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits' test part as class folders of PNG files."""
    folder, digits = tmp_path_factory.mktemp("scans"), archive.digits("test", source="digits")
    assert digits.images is not None
    assert digits.labels_N is not None
    for index, (pixels, label) in enumerate(zip(digits.images, digits.labels_N, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / str(label) / f"{index:03d}.png")
    return folder


GIVEN = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)


class GivenSet:
    """A torch.utils.data.Dataset without torch; `classes` is what it calls its numbers."""

    def __init__(self, labels: list[Any] | None, classes: tuple[str, ...] = ()) -> None:
        self.labels, self.classes = labels, classes

    def __len__(self) -> int:
        return len(GIVEN)

    def __getitem__(self, index: int) -> Any:
        return GIVEN[index] if self.labels is None else (GIVEN[index], self.labels[index])


def given_batch(source: Any, *, multi_label: bool = False) -> Batch:
    batch, = open_source(source, form=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), on_error="stop",
                         classes=("no", "yes", "été"), batch_size=10, multi_label=multi_label)
    return batch


@pytest.mark.parametrize(("labels", "known"), [
    (["yes", "no", "no", "yes"], [1, 0, 0, 1]), (np.array(["yes", "no", "no", "yes"], dtype=object), [1, 0, 0, 1]),
    (["e\u0301te\u0301", "no", "no", "no"], [2, 0, 0, 0]), ([1, 0, -1, 2], [1, 0, -1, 2]),
    (np.array([1, 0, -1, 2], dtype=object), [1, 0, -1, 2]), ([[1], [0], [0], [1]], [1, 0, 0, 1]),
    (None, [-1, -1, -1, -1])])
def test_labels_from_python_are_names_or_places_among_the_models_classes(labels: Any, known: list[int]) -> None:
    batch = given_batch(GIVEN if labels is None else (GIVEN, labels))
    assert batch.labels == known
    assert np.array_equal(batch.images_BCHW[:, 0], GIVEN)


@pytest.mark.parametrize(("data", "known"), [
    (GivenSet(["yes", "no", "no", "yes"]), [1, 0, 0, 1]), (GivenSet([1, 0, 0, 2]), [1, 0, 0, 2]),
    (GivenSet([0, 1, 1, 1], ("yes", "no", "else")), [1, 0, 0, 0]), (GivenSet(None), [-1] * 4),
    (GivenSet([0, 1, -1, 1]), [0, 1, -1, 1]), (GivenSet([0, -1, 1, 1], ("yes", "no", "else")), [1, -1, 0, 0])])
def test_a_data_set_is_predicted_as_simulate_reads_it(data: Any, known: list[int]) -> None:
    batch = given_batch(data)
    assert batch.labels == known
    assert np.array_equal(batch.images_BCHW[:, 0], GIVEN)


@pytest.mark.parametrize(("source", "says", "remedy"), [
    ((GIVEN, ["yes", "maybe", "no", "no"]), "label 'maybe' is none of the model's classes", "They are no, yes"),
    (GivenSet([0, 1, 1, 2], ("yes", "no", "maybe")), "label 'maybe' is none of the model's classes", "They are no"),
    ((GIVEN, [0.7, 1.7, 0.7, 1.7]), "labels have the type float64", "whole numbers"),
    ((GIVEN, [np.nan] * 4), "labels have the type float64", "whole numbers"),
    ((GIVEN, np.array(["yes", None, "no", "no"], dtype=object)), "labels have the type object", "whole numbers"),
    ((GIVEN, [0, 1, 3, 0]), "not one per image, from 0 to 2", "or its name"),
    ((GIVEN, [0, 1]), "not one per image, from 0 to 2", "or its name"),
    (([GIVEN[0], GIVEN[1, :4]], [0, 1]), r"The images have several shapes: \(8, 8\), \(4, 8\)", "of one shape"),
    ((GIVEN, [[0], [0, 1], [1], [2]]), "The labels are no array", "of one shape"),
    (GivenSet([0.5, 1, 1, 1]), "The data set: item 0: its label is '0.5'", "number")])
def test_labels_that_would_be_others_are_refused_in_one_line(source: Any, says: str, remedy: str) -> None:
    with pytest.raises(BadData, match=says) as caught:
        given_batch(source)
    assert "\n" not in caught.value.line()
    assert remedy in caught.value.remedy


def test_what_to_do_with_broken_files_is_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no on_error 'stpo'") as caught:
        predict(tmp_path, tmp_path, on_error="stpo")  # type: ignore[arg-type]
    assert caught.value.remedy == "Choose one of: skip, stop."


def test_where_images_may_have_several_labels_those_of_a_data_set_are_rows_by_the_names_of_its_classes() -> None:
    assert given_batch(GivenSet(None), multi_label=True).rows_BK is not None
    with pytest.raises(BadData, match=r"The labels have the shape \(4,\)"):
        given_batch(GivenSet([0, 1, 1, 1]), multi_label=True)
    rows = [[0, 1], [1, 0], [-1, 1], [0, 0]]
    batch = given_batch(GivenSet(rows, ("été", "no")), multi_label=True)
    assert batch.rows_BK is not None
    assert batch.rows_BK.tolist() == [[1, -1, 0], [0, -1, 1], [1, -1, -1], [0, -1, 0]]  # no, yes, été
    with pytest.raises(BadData, match="'maybe' is none of the model's classes"):
        given_batch(GivenSet(rows, ("maybe", "no")), multi_label=True)
    with pytest.raises(BadData, match=r"The labels have the shape \(4, 2\)"):
        given_batch(GivenSet(rows), multi_label=True)


@pytest.mark.parametrize(("argument", "says"), [
    ({"device": "gpu"}, "no device 'gpu'"), ({"device": 0}, "no device '0'"),
    ({"batch_size": "250"}, "batch_size = '250'"), ({"batch_size": 2.5}, "batch_size = 2.5"),
    ({"batch_size": 0}, "batch_size = 0"), ({"progress": True}, "progress = True"),
    ({"prevalence": {"no": 0.5}}, "prevalence = .* must be a text"),
    ({"operating_point": "no"}, "operating_point = 'no'"),
    ({"selection": {"Modality": "CR"}}, "selection = .* must be a Selection"),
    ({"allow_factories": 3}, "allow_factories = 3"), ({"model": None}, "model: is a NoneType"),
    ({"model": ""}, "model = ''"), ({"on_error": None}, "no on_error 'None'")])
def test_an_argument_of_another_type_is_named_in_a_line(argument: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        predict(**{"model": tmp_path, "source": GIVEN, **argument})
    assert "\n" not in caught.value.line()
    assert caught.value.remedy


def test_a_factory_may_be_given_as_one_text_and_predictions_are_a_line_on_a_terminal(tmp_path: Path) -> None:
    classes, count = ("no", "yes"), 5000
    found = Predictions(classes=classes, files=tuple(f"{index}.png" for index in range(count)),
                        predicted=np.zeros(count, np.int64), probabilities=np.full((count, 2), 0.5),
                        true=np.zeros(count, np.int64))
    assert repr(found) == "Predictions(images=5000, classes=2, labelled=5000, accuracy=1.0, skipped=0)"
    for path in (3, ""):
        with pytest.raises(UsageError, match="path = "):
            found.to_csv(path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top = '3'"):
        found.rows(top="3")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"holds no model\.safetensors"):
        predict(tmp_path, GIVEN, allow_factories="my_net.py:build")


@pytest.mark.slow
def test_the_accuracy_is_exactly_the_coordinators_whatever_form_the_images_have(
        simulated: SimulationResult, model: Path, scans: Path) -> None:
    digits = archive.digits("test", source="digits")
    for source in ("digits#test", str(scans), (digits.images, digits.labels_N),
                   str(simulated.folder / "studies" / simulated.study / "data" / "test.npz")):
        assert predict(model, source, device="cpu").accuracy == simulated.accuracy


@pytest.mark.slow
def test_every_probability_is_that_of_the_network_bit_for_bit_at_the_coordinators_batch_size(
        model: Path, scans: Path) -> None:
    found = predict(model / "model.safetensors", "digits#test", device="cpu")
    network, facts = read_model(model / "model.safetensors")
    digits = archive.digits("test", source="digits")
    logits_NK = logits_of(network, torch.from_numpy(digits.images)[:, None], facts.image).numpy()
    assert facts.temperature != 1.0
    assert np.array_equal(found.probabilities, probabilities(logits_NK, temperature=facts.temperature))
    assert np.array_equal(found.predicted, logits_NK.argmax(axis=1))
    in_folders = predict(model, scans, device="cpu")
    position_of = {int(Path(name).stem): index for index, name in enumerate(in_folders.files)}
    order = [position_of[index] for index in range(len(found))]
    assert np.allclose(in_folders.probabilities[order], found.probabilities, atol=1e-5)


@pytest.mark.slow
def test_the_graph_predicts_what_the_network_predicts_and_loads_no_torch(with_graph: Path, scans: Path) -> None:
    code = ("import sys; from semisilo.prediction.predictor import predict;"
            f" found = predict({str(with_graph / 'model.onnx')!r}, {str(scans)!r});"
            " print(found.right, len(found), 'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    ours = predict(with_graph, scans, device="cpu")
    assert done.stdout.split() == [str(ours.right), str(len(ours)), "False"]


@pytest.mark.slow
def test_a_graph_of_one_layer_predicts_in_a_process_without_torch(model: Path, scans: Path, tmp_path: Path) -> None:
    """As the graphs of networks, which take long to write: logits of fractions, temperature and operating point."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    facts = read_model(model / "model.safetensors")[1]
    point = OperatingPoint(label="3", measure="sensitivity", level=0.95, threshold=0.3)
    weights_PK = np.random.default_rng(4).normal(0, 0.6, (64, 10)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["images"], ["pixels"]),
         helper.make_node("MatMul", ["pixels", "weights"], ["logits"])], "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        initializer=[numpy_helper.from_array(weights_PK, "weights")])
    written = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    entry = written.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, replace(facts, operating_point=point).to_json()
    onnx.save(written, str(tmp_path / "model.onnx"))
    code = ("import json, sys; from semisilo.prediction.predictor import predict;"
            f" found = predict({str(tmp_path)!r}, {str(scans)!r});"
            " print(json.dumps([found.files, found.probabilities.tolist(), found.predicted.tolist(), found.right,"
            " 'torch' in sys.modules]))")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    files, found_NK, predicted, right, with_torch = json.loads(done.stdout)
    digits = archive.digits("test", source="digits")
    assert digits.images is not None
    assert digits.labels_N is not None
    order = [int(Path(name).stem) for name in files]
    logits_NK = (digits.images[order].reshape(-1, 64) / np.float32(255)) @ weights_PK
    expected_NK = probabilities(logits_NK, temperature=facts.temperature)
    assert np.allclose(found_NK, expected_NK, atol=1e-5)
    others_NK = expected_NK.copy()
    others_NK[:, 3] = -1
    expected = np.where(expected_NK[:, 3] >= point.threshold, 3, others_NK.argmax(axis=1))
    assert predicted == expected.tolist()
    assert predicted != expected_NK.argmax(axis=1).tolist(), "the threshold must matter here"
    assert right == int((expected == digits.labels_N[order]).sum())
    assert not with_torch


def test_the_network_is_run_with_what_the_coordinator_measures_with_and_without_trace(
        model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU TensorFloat-32 and operations without order give other bits."""
    opened = open_predictor(model / "model.safetensors", device="cpu")
    seen: list[tuple[bool, bool]] = []
    real = torch.nn.Module.__call__

    def watched(module: torch.nn.Module, *arguments: Any, **more: Any) -> Any:
        seen.append((torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()))
        return real(module, *arguments, **more)

    mode = torch.get_deterministic_debug_mode()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.set_deterministic_debug_mode("default")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(torch.nn.Module, "__call__", watched)
            opened.logits(np.zeros((2, 1, 8, 8), dtype=np.uint8))
        assert seen
        assert set(seen) == {(False, True)}
        assert (torch.backends.cudnn.allow_tf32, torch.get_deterministic_debug_mode()) == (True, 0)
    finally:
        torch.set_deterministic_debug_mode(mode)


def test_batches_of_any_size_predict_the_same(model: Path, scans: Path) -> None:
    few = scans / "3"
    whole = predict(model, few, device="cpu")
    assert len(whole) > 20
    for batch_size in (1, 7, 10_000):
        found = predict(model, few, device="cpu", batch_size=batch_size)
        assert found.files == whole.files
        assert np.allclose(found.probabilities, whole.probabilities, atol=1e-5)
    with pytest.raises(UsageError, match="at least 1"):
        predict(model, few, batch_size=0)


def test_a_batch_has_no_more_pixels_than_fit_whatever_size_a_model_says(
        model: Path, scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 images of 4096 x 4096 are 12.6 GB before a network sees them; what is predicted stays the same."""
    assert 250 * 256 * 256 <= predictor._MOST_PIXELS < 2 * 4096 * 4096
    whole, opened, seen = predict(model, scans / "3", device="cpu"), open_predictor(model, device="cpu"), list[int]()
    true = opened.logits

    def watched(images_BCHW: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(len(images_BCHW))
        return true(images_BCHW)

    monkeypatch.setattr(opened, "logits", watched)
    for most, expected in ((7 * 8 * 8 + 1, 7), (10, 1)):
        monkeypatch.setattr(predictor, "_MOST_PIXELS", most)
        seen.clear()
        found = predict(opened, scans / "3")
        assert set(seen[:-1]) == {expected}
        assert found.files == whole.files
        assert np.allclose(found.probabilities, whole.probabilities, atol=1e-5)


def test_arrays_that_do_not_fit_into_memory_at_the_models_size_are_refused(
        model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = np.zeros((100, 2, 2), np.uint8)
    monkeypatch.setattr(room, "free_bytes", lambda: 100 * 8 * 8 - 1)
    with pytest.raises(BadData, match="The images, at 8 x 8 pixels, need"):
        predict(model, few, device="cpu")
    monkeypatch.setattr(room, "free_bytes", lambda: 100 * 8 * 8)
    assert len(predict(model, few, device="cpu")) == 100


def test_a_folder_is_never_in_memory_as_a_whole(model: Path, scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen at once is a batch, however large the folder."""
    seen: list[int] = []
    opened = open_predictor(model, device="cpu")
    true = opened.logits

    def watched(images_BCHW: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(len(images_BCHW))
        return true(images_BCHW)

    monkeypatch.setattr(opened, "logits", watched)
    found = predict(opened, scans, batch_size=50)
    assert seen == [50] * 7 + [5]
    assert len(found) == 355


def test_broken_files_are_left_out_and_listed_or_end_it(model: Path, tmp_path: Path) -> None:
    for name in ("0/good.png", "0/second.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), 7, dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "0" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (tmp_path / "0" / "empty.jpg").touch()
    (tmp_path / "notes.txt").write_text("not an image")
    found = predict(model, tmp_path)
    assert found.files == ("0/good.png", "0/second.png")
    assert {each.name for each in found.skipped} == {"0/broken.png", "0/empty.jpg", "notes.txt"}
    with pytest.raises(BadData, match="0/broken"):
        predict(model, tmp_path, on_error="stop")
    for name in found.files:
        (tmp_path / name).unlink()
    with pytest.raises(BadData, match="can be read"):
        predict(model, tmp_path)


def test_images_without_a_class_and_of_unknown_ones_are_predicted_all_the_same(model: Path, tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((8, 8), 7, dtype=np.uint8))
    for name in ("flat.png", "3/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture.save(tmp_path / name)
    mixed = predict(model, tmp_path)
    assert (len(mixed), mixed.labelled) == (2, 1)
    (tmp_path / "patient-17").mkdir()
    picture.save(tmp_path / "patient-17" / "b.png")
    foreign = predict(model, tmp_path)
    assert (len(foreign), foreign.labelled, foreign.accuracy) == (3, 0, None)
    assert "true" not in foreign.rows()[0]


def test_tables_and_parquet_are_read_with_their_labels(model: Path, simulated: SimulationResult, tmp_path: Path,
                                                       scans: Path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    files = sorted(scans.rglob("*.png"))
    table = "file,label\n" + "".join(f"{path.relative_to(scans)},{path.parent.name}\n" for path in files)
    (scans / "labels.csv").write_text(table)
    try:
        assert predict(model, scans / "labels.csv").accuracy == simulated.accuracy
    finally:
        (scans / "labels.csv").unlink()
    rows = pyarrow.table({"image": [path.read_bytes() for path in files],
                          "label": [path.parent.name for path in files]})
    write_table(rows, tmp_path / "scans.parquet")
    assert predict(model, tmp_path / "scans.parquet").accuracy == simulated.accuracy


def test_the_csv_has_a_line_for_each_image_with_all_classes_or_the_likeliest(model: Path, tmp_path: Path) -> None:
    found = predict(model, "digits#test")
    assert found.to_csv(tmp_path / "all.csv") == (tmp_path / "all.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert len(rows) == 355
    assert list(rows[0]) == ["file", "predicted", "probability", "true", *(f"p_{digit}" for digit in range(10))]
    assert all(abs(sum(float(row[f"p_{digit}"]) for digit in range(10)) - 1) < 1e-4 for row in rows)
    best = list(csv.DictReader(io.StringIO(found.to_csv(top=2))))
    assert all(row["class_1"] == row["predicted"] and row["probability_1"] == row["probability"] for row in best)
    assert all(float(row["probability_1"]) >= float(row["probability_2"]) for row in best)
    assert len(best[0]) == 8


def test_a_notebook_gets_names_as_text() -> None:
    found = Predictions(classes=("<b>", "b"), files=("<script>x</script>",), predicted=np.array([0]),
                        probabilities=np.array([[0.75, 0.25]]), true=np.array([-1]))
    page = found._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("name", "content", "text"), [
    ("nothing.safetensors", None, "no such folder or file"), ("m.safetensors", b"rubbish", "cannot be read"),
    ("m.onnx", b"rubbish", "cannot be read as an ONNX graph"), ("folder", None, "holds no model"),
])
def test_what_is_no_model_is_refused_in_one_line(name: str, content: bytes | None, text: str, tmp_path: Path) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(semisilo.SemisiloError, match=text) as caught:
        predict(tmp_path / name, "digits#test")
    assert caught.value.remedy


def test_an_onnx_graph_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Identity", ["images"], ["logits"])], "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1, 8, 8])])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]),
              str(tmp_path / "m.onnx"))
    with pytest.raises(BadData, match="says nothing about its images"):
        predict(tmp_path / "m.onnx", "digits#test")


def test_the_command_prints_facts_as_one_document_and_writes_the_file(
        model: Path, scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "9").mkdir()
    (tmp_path / "scans" / "9" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "scans" / "9" / "good.png").write_bytes(next((scans / "9").iterdir()).read_bytes())
    assert run_cli(app, ["predict", str(model), str(tmp_path / "scans"), "--out", str(tmp_path / "p.csv"), "--json"],
                   name="semisilo") == 0
    done = capsys.readouterr()
    facts = json.loads(done.out)
    assert (facts["images"], facts["labelled"], len(facts["skipped"])) == (1, 1, 1)
    assert facts["predictions"][0]["file"] == "9/good.png"
    assert "left out: 9/bad.png" in done.err
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
    (tmp_path / "twice.csv").write_text("file,label\nscans/9/good.png,9\nscans/9/good.png,9\n")
    assert run_cli(app, ["predict", str(model), str(tmp_path / "twice.csv")], name="semisilo") == 0
    done = capsys.readouterr()
    assert "left out" not in done.err, "it is predicted, once"
    assert run_cli(app, ["predict", str(model), str(tmp_path / "twice.csv"), "--out", "-"], name="semisilo") == 0
    assert capsys.readouterr().out == done.out
    assert not Path("-").exists()


@pytest.mark.usefixtures("pictures_left_blank")
def test_the_command_exports_a_simulation_and_refuses_what_is_none(simulated: SimulationResult, tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(simulated.folder), "--out", str(tmp_path / "out"), "--format", "safetensors", "--json",
             "--device", "cpu"]
    assert run_cli(app, words, name="semisilo") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["card"]["test"]["accuracy"] == simulated.accuracy
    assert facts["folder"] == str(tmp_path / "out")
    assert run_cli(app, [words[0], str(tmp_path)], name="semisilo") == 2
    assert "holds no simulation" in capsys.readouterr().err
    assert run_cli(app, [*words, "--patient", "none"], name="semisilo") == 2
    assert "--patient none: is said of the images of --test" in capsys.readouterr().err


@pytest.fixture(scope="module")
def pointed(simulated: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export without a graph, with an operating point."""
    return export_run(simulated.folder, out=tmp_path_factory.mktemp("pointed") / "export", device="cpu",
                      operating_point="sensitivity 95% for 3", formats=("safetensors",)).folder


def test_an_operating_point_decides_its_class_and_the_likeliest_other_the_rest(pointed: Path) -> None:
    found, plain = (predict(pointed, "digits#test", operating_point=used) for used in (True, False))
    point = found.operating_point
    assert point is not None
    assert np.array_equal(found.predicted == 3, found.probabilities[:, 3] >= point.threshold)
    others = found.probabilities.copy()
    others[:, 3] = -1
    assert np.array_equal(found.predicted[found.predicted != 3], others.argmax(axis=1)[found.predicted != 3])
    assert np.array_equal(found.probabilities, plain.probabilities)
    assert np.array_equal(plain.predicted, plain.probabilities.argmax(axis=1))
    assert (plain.operating_point, plain.notes()) == (None, ())
    assert not np.array_equal(found.predicted, plain.predicted), "the threshold must matter here"
    assert "sensitivity 95 % for 3" in found.notes()[0]


@pytest.mark.slow
def test_an_operating_point_decides_the_same_of_a_graph(with_graph: Path) -> None:
    graph, ours = (predict(with_graph / name, "digits#test", device="cpu") for name in ("model.onnx",
                                                                                       "model.safetensors"))
    assert np.array_equal(graph.predicted, ours.predicted)
    assert graph.operating_point == ours.operating_point is not None


def test_probabilities_are_brought_to_a_prevalence_and_the_operating_point_stays(pointed: Path) -> None:
    plain = predict(pointed, "digits#test", operating_point=False)
    moved = predict(pointed, "digits#test", operating_point=False, prevalence="3=0.55")
    ratio = np.full(10, 0.05 / 0.1)
    ratio[3] = 0.55 / 0.1
    raised = plain.probabilities * ratio  # Saerens et al., Eq. 2.4: ten classes were equal in training
    assert moved.probabilities == pytest.approx(raised / raised.sum(axis=1, keepdims=True))
    assert np.array_equal(moved.predicted, moved.probabilities.argmax(axis=1))
    assert (moved.predicted == 3).sum() > (plain.predicted == 3).sum()
    both = predict(pointed, "digits#test", prevalence="3=0.55")
    assert np.array_equal(both.predicted == 3, predict(pointed, "digits#test").predicted == 3)
    assert len(both.notes()) == 2
    assert both.to_dict()["prevalence"]["shares"][3] == 0.55  # type: ignore[index]


def test_the_command_says_what_it_used(pointed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(pointed), "digits#test", "--json"]
    assert run_cli(app, [*words, "--prevalence", "estimate"], name="semisilo") == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert said["operating_point"]["label"] == "3"
    assert said["prevalence"]["how"] == "estimated"
    assert sum(said["prevalence"]["shares"]) == pytest.approx(1)
    assert "operating point: sensitivity 95 % for 3" in out.err.replace("\n", " ")
    assert run_cli(app, [*words, "--no-operating-point"], name="semisilo") == 0
    assert json.loads(capsys.readouterr().out)["operating_point"] is None


def test_no_cell_of_the_csv_is_a_formula() -> None:
    """Names of images and classes come from elsewhere, and a spreadsheet runs what begins so."""
    found = Predictions(classes=("=1+1", "b"), files=("@cmd|calc.png",), predicted=np.array([0]),
                        probabilities=np.array([[0.75, 0.25]]), true=np.array([-1]))
    (row,) = csv.DictReader(io.StringIO(found.to_csv()))
    assert (row["file"], row["predicted"], row["probability"], row["p_=1+1"]) == \
        ("'@cmd|calc.png", "'=1+1", "0.750000", "0.750000")
    assert found.rows()[0]["file"] == "@cmd|calc.png"
