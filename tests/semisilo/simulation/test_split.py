"""`semisilo split`: every participant's part as files, reproducible and as a simulation deals them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from PIL import Image

from semisilo.common.config import load_toml, to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.data.formats.archive import digits
from semisilo.common.data.partly_labelled import read_partly_labelled
from semisilo.common.data.readers import read_images
from semisilo.common.errors import BadData, SemisiloError, UsageError
from semisilo.coordinator.studies.held_out import draw_validation
from semisilo.coordinator.studies.images import StudyData, read_study_data
from semisilo.coordinator.studies.study_file import load_study
from semisilo.silo.compute.images import read_silo_images
from semisilo.silo.site.home import JoinChoice
from semisilo.simulation import run
from semisilo.simulation.dealing import Dealt, deal_study, silo_names
from semisilo.simulation.output import split_study
from semisilo.simulation.parts import write_parts
from semisilo.simulation.settings import load_simulated_study
from tests.semisilo.studies import study

STREAMING = {"name": "streaming_noniid", "steps": 2, "rounds_per_step": 3, "fraction": 0.3}
STUDIES = {
    "labels-at-coordinator": study(),
    "labels-at-silo": study("fedavg", "labels-at-silo"),
    "labels-at-both": study("self_training", "labels-at-both"),
    "streaming": study("fedmatch", "labels-at-silo", split=STREAMING),
    "all labelled": study("fedavg", "labels-at-silo", settings={"objective": "sl"},
                          split={"all_labelled": True, "labelled_per_class": None}),
}
for _tables in STUDIES.values():
    _split = _tables["simulation"]["split"]
    _tables["simulation"]["split"] = {key: value for key, value in _split.items() if value is not None}
    if _tables["method"].get("objective") == "sl":
        for _key in ("unlabelled_batch", "confidence_threshold"):
            _tables["method"].pop(_key, None)


def dealt_of(tables: dict[str, Any]) -> Dealt:
    return deal_study(load_simulated_study(tables))


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", STUDIES)
def test_the_same_file_and_seed_give_the_same_bytes_and_another_seed_others(tmp_path: Path, name: str) -> None:
    tables = STUDIES[name]
    for folder in ("first", "again"):
        write_parts(dealt_of(tables), tmp_path / folder)
    write_parts(dealt_of({**tables, "study": {**tables["study"], "seed": 6}}), tmp_path / "other")
    first, again, other = (all_bytes(tmp_path / folder) for folder in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    assert first["silos/silo-000.npz"] != other["silos/silo-000.npz"]


@pytest.mark.parametrize("name", STUDIES)
def test_a_silo_reads_from_its_file_what_it_gets_in_a_simulation(tmp_path: Path, name: str) -> None:
    dealt = dealt_of(STUDIES[name])
    write_parts(dealt, tmp_path)
    form = ImageForm(size=8, channels=1, mean=(0.3,), std=(0.4,))
    for index, silo in enumerate(dealt.silos):
        simulated = dealt.silos_images()[index]
        read = read_silo_images(JoinChoice(source=str(tmp_path / "silos" / f"{silo}.npz")), form,
                                classes=dealt.classes, scenario=dealt.study.scenario).images
        for number in (1, 3, 4, 100):
            mine, theirs = (each.data(round=number, scenario=dealt.study.scenario) for each in (simulated, read))
            for part in ("labelled", "unlabelled"):
                here, there = getattr(mine, part), getattr(theirs, part)
                assert (here is None) == (there is None), part
                if here is not None:
                    assert here.images_NCHW.equal(there.images_NCHW)
                    if part == "labelled":
                        assert here.labels_N.equal(there.labels_N)
                    else:
                        assert there.labels_N is None


@pytest.mark.parametrize("name", STUDIES)
def test_no_file_of_a_silo_holds_a_class_of_an_unlabelled_image(tmp_path: Path, name: str) -> None:
    dealt = dealt_of(STUDIES[name])
    write_parts(dealt, tmp_path)
    for index, silo in enumerate(dealt.silos):
        with np.load(tmp_path / "silos" / f"{silo}.npz") as archive:
            assert set(archive.files) <= {"labelled_images", "labelled_labels", "classes", "unlabelled_images",
                                          "unlabelled_steps", "rounds_per_step"}
            if "labelled_labels" in archive.files:
                assert len(archive["labelled_labels"]) == len(dealt.labelled_of(index))
            else:
                assert "classes" not in archive.files


@pytest.mark.parametrize("name", STUDIES)
def test_nobody_has_an_image_of_somebody_else_and_every_image_is_one_of_the_set(tmp_path: Path, name: str) -> None:
    dealt = dealt_of(STUDIES[name])
    manifest = json.loads(write_parts(dealt, tmp_path).read_text())
    held = [index for entry in manifest["silos"].values()
            for index in entry["indices"] + entry.get("labelled", {}).get("indices", [])]
    held += [index for part in ("labelled", "validation")
             for index in manifest["coordinator"].get(part, {}).get("indices", [])]
    assert len(held) == len(set(held))
    train = digits("train", source="digits")
    assert train.images is not None
    assert train.labels_N is not None
    for silo, entry in manifest["silos"].items():
        with np.load(tmp_path / "silos" / f"{silo}.npz") as archive:
            assert np.array_equal(archive["unlabelled_images"], train.images[entry["indices"]])
        counts = np.bincount(train.labels_N[entry["indices"]], minlength=10).tolist()
        assert list(entry["class_counts"].values()) == counts


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("scenario", ["labels-at-coordinator", "labels-at-silo"])
def test_each_file_has_the_pictures_labels_and_steps_that_the_manifest_names(tmp_path: Path, scenario: str,
                                                                             channels: int) -> None:
    generator = np.random.default_rng(5)
    colour = (3,) if channels == 3 else ()
    pictures, tests = (generator.integers(0, 256, (number, 8, 8, *colour), dtype=np.uint8) for number in (1500, 30))
    labels, test_labels = (generator.permutation(np.arange(number) % 10) for number in (1500, 30))
    np.savez(tmp_path / "all.npz", train_images=pictures, train_labels=labels, test_images=tests,
             test_labels=test_labels)
    method, split = ("semifl", {}) if scenario == "labels-at-coordinator" else ("fedmatch", STREAMING)
    dealt = dealt_of(study(method, scenario, simulation={"data": str(tmp_path / "all.npz")}, split=split, data={
        "image": {"size": 8, "channels": channels, "mean": [0.3] * channels, "std": [0.4] * channels}}))
    out = tmp_path / "parts"
    manifest = json.loads(write_parts(dealt, out).read_text())

    def pixels_of(indices: list[int]) -> Any:
        chosen = pictures[indices]
        return chosen[:, None] if channels == 1 else chosen.transpose(0, 3, 1, 2)
    form = ImageForm(size=8, channels=channels, mean=(0.3,) * channels, std=(0.4,) * channels)
    for index, entry in enumerate(manifest["silos"].values()):
        read = read_partly_labelled(str(out / entry["file"]), form, classes=dealt.classes, use_labels=True)
        assert read.unlabelled is not None
        assert read.unlabelled.labels_N is None
        assert np.array_equal(read.unlabelled.images_NCHW.numpy(), pixels_of(entry["indices"]))
        if scenario == "labels-at-coordinator":
            assert read.labelled is None
            continue
        assert read.labelled is not None
        assert read.labelled.labels_N is not None
        held = entry["labelled"]["indices"]
        assert np.array_equal(read.labelled.images_NCHW.numpy(), pixels_of(held))
        assert read.labelled.labels_N.tolist() == labels[held].tolist()
        assert read.steps_N is not None
        assert np.array_equal(read.steps_N, dealt.split.steps_of(index))
        assert read.rounds_per_step == manifest["rounds_per_step"] == 3
    sets = {name: entry for name, entry in manifest["coordinator"].items() if name != "test"}
    assert set(sets) == {"labelled", "validation"} if scenario == "labels-at-coordinator" else {"validation"}
    for entry in sets.values():
        found = read_images(str(out / entry["file"]), size=8, channels=channels)
        assert np.array_equal(found.images.images_NCHW.numpy(), pixels_of(entry["indices"]))
        assert found.images.labels_N is not None
        assert [found.classes[label] for label in found.images.labels_N] == [
            str(label) for label in labels[entry["indices"]]]
    found = read_images(str(out / manifest["coordinator"]["test"]["file"]), size=8, channels=channels)
    assert np.array_equal(found.images.images_NCHW.numpy(),
                          tests[:, None] if channels == 1 else tests.transpose(0, 3, 1, 2))
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == {"manifest.json", "coordinator/study.toml", *(
        entry["file"] for entry in [*manifest["silos"].values(), *manifest["coordinator"].values()])}


def test_the_manifest_has_the_digest_of_every_array_and_how_the_split_was_made(tmp_path: Path) -> None:
    manifest = json.loads(write_parts(dealt_of(STUDIES["streaming"]), tmp_path).read_text())
    assert manifest["seed"] == 5
    assert manifest["scenario"] == "labels-at-silo"
    assert manifest["settings"]["name"] == "streaming_noniid"
    assert 0 < manifest["non_iidness"] < 1
    files = [*manifest["silos"].values(), *manifest["coordinator"].values()]
    assert len(files) == 3 + 2
    for entry in files:
        with np.load(tmp_path / entry["file"]) as archive:
            assert entry["sha256_arrays"].keys() == set(archive.files)
            for key, digest in entry["sha256_arrays"].items():
                array = archive[key]
                assert hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()).hexdigest() \
                    == digest


def test_the_study_file_of_the_parts_is_one_for_real_silos_with_the_same_settings(tmp_path: Path) -> None:
    dealt = dealt_of(study(augmentation={"policy": "small"}, participation={"silos_per_round": "50%"}))
    write_parts(dealt, tmp_path)
    config = load_study(tmp_path / "coordinator" / "study.toml")
    assert to_dict(config) == to_dict(dealt.config)
    assert load_toml(tmp_path / "coordinator" / "study.toml") == dealt.tables
    assert config.study.start_with == 3
    assert config.data.labelled == "data/labelled.npz"
    assert (tmp_path / "coordinator" / config.data.labelled).is_file()
    assert (tmp_path / "coordinator" / config.data.test).is_file()
    assert config.data.classes == tuple("0123456789")


def test_the_command_says_what_is_where_and_never_mixes_parts(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(study()))
    lines = split_study(path, out=tmp_path / "parts")
    assert lines[0].startswith("coordinator: 20 labelled, 20 validation, 355 test")
    assert lines[1].startswith("3 silos: 44 unlabelled, 0 labelled each")
    with pytest.raises(UsageError, match="not an empty folder"):
        split_study(path, out=tmp_path / "parts")


# Sources --------------------------------------------------------------------------------------------------------------


def npz(folder: Path, **parts: int) -> Path:
    """A file with so many random images of ten classes in each part."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, number in parts.items():
        arrays[f"{part}_images"] = generator.integers(0, 256, (number, 8, 8), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(number) % 10
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def from_file(folder: Path, **simulation: Any) -> Dealt:
    path = folder / "study.toml"
    split = {"fraction": 1.0, "num_validation": 0, **simulation.pop("split", {})}
    path.write_text(tomli_w.dumps(study(split=split, simulation=simulation)))
    return deal_study(load_simulated_study(path))


def test_the_training_part_of_a_file_is_dealt_and_its_test_part_tests(tmp_path: Path) -> None:
    npz(tmp_path, train=200, test=50)
    dealt = from_file(tmp_path, data="set.npz")
    assert len(dealt.images) == 200
    assert dealt.test is not None
    assert len(dealt.test) == 50


def test_images_to_test_on_that_silos_have_with_labels_are_refused(tmp_path: Path) -> None:
    tables = study("fedavg", "labels-at-silo", simulation={"data": "digits#train", "test": "digits#train"})
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    says = r"silos' images: \d+ of \d+ test images have the pixels of labelled ones"
    with pytest.raises(BadData, match=says):
        run(tables, out=tmp_path / "out", device="cpu", engine="process")
    with pytest.raises(BadData, match=says):
        split_study(path, out=tmp_path / "parts")
    assert [path.name for path in tmp_path.glob("out/*")] == ["lock"]
    assert not (tmp_path / "parts").exists()


def test_images_to_test_on_that_silos_have_without_labels_are_said(tmp_path: Path) -> None:
    npz(tmp_path, train=200, test=50)
    assert from_file(tmp_path, data="set.npz").check_tested_apart() == ""
    dealt = from_file(tmp_path, data="set.npz", test="set.npz#train")
    assert re.match(r"\d+ of 200 test images are among the silos' unlabelled images", dealt.check_tested_apart())


def test_a_few_copies_among_the_test_images_that_silos_have_with_labels_are_said(tmp_path: Path) -> None:
    """As real silos leave such test images out with a line, and refuse a set of nothing else."""
    def dealt_with(copies: int) -> Dealt:
        npz(tmp_path, train=200, test=100)
        with np.load(tmp_path / "set.npz") as archive:
            arrays = dict(archive)
        arrays["test_images"][:copies] = arrays["train_images"][:copies]
        np.savez(tmp_path / "set.npz", **arrays)
        tables = STUDIES["all labelled"]
        simulation = {**tables["simulation"], "data": str(tmp_path / "set.npz")}
        return dealt_of({**tables, "simulation": {**simulation, "split": {**simulation["split"], "fraction": 1.0}}})

    assert dealt_with(0).check_tested_apart() == ""
    line = dealt_with(4).check_tested_apart()
    assert line.startswith("4 of 100 test images have the pixels of labelled ones (set.npz[0] = set.npz[0], ")
    assert "unlabelled" not in line
    assert line.endswith(", ...): silos train on them, so the model may look better than it is")
    with pytest.raises(BadData, match=r"silos' images: 6 of 100 test images have the pixels of labelled ones"):
        dealt_with(6).check_tested_apart()


def with_twins(folder: Path, *, twins: int, scenario: str, **split: Any) -> Dealt:
    """A set of 200 images of which so many are there once more, a fifth of it held out for testing."""
    npz(folder, train=200)
    with np.load(folder / "set.npz") as archive:
        arrays = {name: np.concatenate([each, each[:twins]]) if name.startswith("train") else each
                  for name, each in dict(archive).items()}
    np.savez(folder / "set.npz", **arrays)
    tables = study("semifl" if scenario == "labels-at-coordinator" else "fedavg", scenario)
    return dealt_of({**tables, "simulation": {"data": str(folder / "set.npz#train"), "split": {
        "name": "iid", "silos": 2, "num_test": "20%", **split}}})


def test_an_image_that_a_set_holds_twice_is_not_tested_with_and_trained_on_without_a_word(tmp_path: Path) -> None:
    """At silos nobody noticed; at the coordinator the study failed and named files that nobody knew."""
    assert with_twins(tmp_path, twins=0, scenario="labels-at-silo", labelled_per_class=3).check_tested_apart() == ""
    line = with_twins(tmp_path, twins=40, scenario="labels-at-silo", labelled_per_class=1).check_tested_apart()
    assert re.search(r"\d+ of 48 test images are among the silos' unlabelled images: silos train on them", line)
    everywhere = with_twins(tmp_path, twins=40, scenario="labels-at-silo", all_labelled=True)
    with pytest.raises(BadData, match=r"\d+ of 48 test images have the pixels of labelled ones \(set\.npz") as caught:
        everywhere.check_tested_apart()
    assert "hold them twice" in caught.value.remedy
    dealt = with_twins(tmp_path, twins=40, scenario="labels-at-coordinator", num_labelled=100)
    says = r"set\.npz#train: \d+ of 48 test images have the pixels of labelled ones \(set"
    with pytest.raises(BadData, match=says) as caught:
        dealt.check_tested_apart()
    assert "hold them twice" in caught.value.remedy


def test_a_file_without_a_test_part_leaves_the_study_without_a_test(tmp_path: Path) -> None:
    npz(tmp_path, train=200)
    dealt = from_file(tmp_path, data="set.npz#train")
    assert dealt.test is None
    assert dealt.config.data.test == ""


def test_the_test_images_may_be_pooled_with_the_others_and_others_held_out(tmp_path: Path) -> None:
    npz(tmp_path, train=200, test=50)
    dealt = from_file(tmp_path, data="set.npz", pool_test=True, split={"num_test": 40})
    assert len(dealt.images) == 250
    assert dealt.test is not None
    assert len(dealt.test) == 40
    assert not set(dealt.split.test) & set(np.concatenate(dealt.split.silos))


def test_images_held_out_of_the_training_part_take_the_place_of_the_test_part(tmp_path: Path) -> None:
    npz(tmp_path, train=200, test=50)
    dealt = from_file(tmp_path, data="set.npz", split={"num_test": 30})
    assert len(dealt.images) == 200
    assert dealt.test is not None
    assert len(dealt.test) == 30


def test_pooling_what_is_not_there_is_refused(tmp_path: Path) -> None:
    npz(tmp_path, train=200)
    with pytest.raises(SemisiloError, match="no test images to pool"):
        from_file(tmp_path, data="set.npz", pool_test=True, split={"num_test": 40})


def test_names_of_silos_keep_the_order_of_the_split_however_many_there_are() -> None:
    for number in (1, 1000, 1001):
        names = silo_names(number)
        assert len(set(names)) == number
        assert sorted(names, key=str.encode) == list(names)
    assert silo_names(2) == ("silo-000", "silo-001")


def test_whole_patients_are_dealt_said_and_held_out_at_the_coordinator_as_well(tmp_path: Path) -> None:
    """600 images of 120 patients: with so many labelled ones the coordinator holds out a validation set, whose patients
    its file tells, as numbers that stand for nothing else."""
    random = np.random.default_rng(3)
    np.savez(tmp_path / "scans.npz", images=random.integers(0, 256, (600, 8, 8), dtype=np.uint8),
             labels=np.repeat(np.arange(120) % 3, 5), patients=np.repeat([f"P{index}" for index in range(120)], 5))
    tables = study(split={"num_labelled": 210, "num_test": 60, "fraction": 1.0})
    tables["simulation"]["data"] = str(tmp_path / "scans.npz")
    dealt = dealt_of(tables)
    assert dealt.split.patients is not None
    assert dealt.split.patients.num_patients == 120
    assert "num_files" not in to_dict(dealt.split.patients), "as earlier versions have noted it"
    assert dealt.patients_line().startswith("no patient is in two parts: 120 patients kept whole, ")
    facts = json.loads(write_parts(dealt, tmp_path / "parts").read_text())
    assert facts["patients"] == to_dict(dealt.split.patients)
    sets = {name: read_images(str(tmp_path / "parts" / "coordinator" / "data" / f"{name}.npz"), size=8,
                              channels=1).images for name in ("labelled", "test")}
    assert not set(sets["labelled"].patients) & set(sets["test"].patients)
    assert sets["labelled"].num_patients == len(np.unique(dealt.split.coordinator // 5))
    assert "patients" not in np.load(tmp_path / "parts" / "silos" / "silo-000.npz").files
    drawn = draw_validation(sets["labelled"].labels_N.numpy(), 0.2, seed=1, num_classes=3,
                            patients=sets["labelled"].patients)
    held, kept = (set(np.array(sets["labelled"].patients)[each]) for each in (
        drawn, np.setdiff1d(np.arange(len(sets["labelled"])), drawn)))
    assert len(drawn)
    assert not held & kept


def test_files_of_patients_with_one_image_each_are_those_of_images_without_patients(tmp_path: Path) -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (300, 8, 8), dtype=np.uint8)
    labels, tables = np.arange(300) % 3, study(split={"num_labelled": 30, "num_test": 60, "fraction": 1.0})
    for name, more in (("known", {"patients": np.arange(300)}), ("unknown", {})):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "scans.npz", images=pixels, labels=labels, **more)
        tables["simulation"]["data"] = str(tmp_path / name / "scans.npz")
        write_parts(dealt_of(tables), tmp_path / name / "parts")
    known, unknown = (all_bytes(tmp_path / name / "parts") for name in ("known", "unknown"))
    assert known.keys() == unknown.keys()
    assert all(known[name] == unknown[name] for name in known if name != "manifest.json"), "it names the source"


def test_pages_of_a_file_are_dealt_together_and_held_out_together_by_who_gets_them(tmp_path: Path) -> None:
    tables = of_pages(tmp_path)
    dealt = dealt_of(tables)
    whose = np.array([name.partition("[")[0] for name in dealt.images.names])
    parts = [dealt.split.coordinator, dealt.split.test, *dealt.split.silos]
    files = [set(whose[part]) for part in parts]
    assert sum(map(len, files)) == len(set().union(*files)), "none is in two parts"
    assert dealt.split.patients is not None
    assert (dealt.split.patients.num_patients, dealt.split.patients.num_files) == (0, 90), "they are no patients"
    assert dealt.patients_line().startswith("no file is in two parts: 90 files kept whole, ")
    write_parts(dealt, tmp_path / "parts")
    held = read_images(str(tmp_path / "parts" / "coordinator" / "data" / "labelled.npz"), size=8, channels=1).images
    assert len(set(held.patients)) == len(files[0])
    assert (held.has_parts_of_files, held.num_patients) == (True, 0), "they are files, not patients"


@pytest.mark.slow
def test_a_simulation_that_dealt_single_pages_goes_on_with_its_deal(tmp_path: Path) -> None:
    tables = of_pages(tmp_path)
    single = dealt_of({**tables, "data": {**tables["data"], "patient": "none"}})
    new = dealt_of(tables)
    assert single.digest() != new.digest()
    again = deal_study(load_simulated_study(tables), begun=single.digest())
    assert again.digest() == single.digest()
    assert deal_study(load_simulated_study(tables), begun="0" * 64).digest() == new.digest()


@pytest.mark.slow
def test_a_simulation_that_dealt_single_pages_goes_on_where_files_kept_whole_are_too_few(tmp_path: Path) -> None:
    tables = of_pages(tmp_path, files=6, pages=40)
    tables["simulation"]["split"] |= {"num_labelled": 30, "num_test": 0, "num_validation": 0, "silos": 5}
    single = dealt_of({**tables, "data": {**tables["data"], "patient": "none"}})
    assert deal_study(load_simulated_study(tables), begun=single.digest()).digest() == single.digest()
    for begun in ("", "0" * 64):
        with pytest.raises(BadData, match=r"^6 files kept whole leave no image at silo"):
            deal_study(load_simulated_study(tables), begun=begun)


@pytest.mark.slow
def test_pages_are_dealt_alike_wherever_their_folder_lies(tmp_path: Path) -> None:
    places = [tmp_path / "here", tmp_path / "moved" / "elsewhere"]
    begun = dealt_of(of_pages(places[0]))
    shutil.copytree(places[0], places[1])
    again = deal_study(load_simulated_study(of_pages(places[1])), begun=begun.digest())
    assert again.images.names == begun.images.names
    assert np.array_equal(again.split.test, begun.split.test)
    assert again.digest() == begun.digest()


def test_files_that_are_tested_with_stay_out_wherever_their_folder_lies(tmp_path: Path) -> None:
    tables = of_pages(tmp_path)
    tables["simulation"] |= {"test": str(tmp_path / "test"), "split": {**tables["simulation"]["split"], "num_test": 0}}
    for number in range(3):
        path = tmp_path / "test" / f"class{number}" / "scan.tif"
        path.parent.mkdir(parents=True)
        path.symlink_to(tmp_path / "scans" / f"class{number}" / f"{number + 30}.tif")
    dealt = dealt_of(tables)
    used = np.concatenate([dealt.split.coordinator, dealt.split.validation, *dealt.split.silos])
    whose = {dealt.images.names[index].partition("[")[0] for index in used.tolist()}
    assert not whose & {f"class{number}/{number + 30}.tif" for number in range(3)}
    assert len(whose) == 87


def test_the_coordinator_of_parts_keeps_what_is_white_of_deep_images(tmp_path: Path) -> None:
    tables = of_16_bits(tmp_path, train=60000, test=3000)
    data = opened_parts(tables, tmp_path / "dark-test")
    assert data.frozen.ranges == (("16 bits", 65535.0),)
    assert data.images.test is not None
    assert data.images.test.images_NCHW.max() < 16, "3000 of 65535"
    assert opened_parts(of_16_bits(tmp_path, train=3000, test=60000), tmp_path / "bright-test").frozen.ranges == (
        ("16 bits", 4095.0),)
    with np.load(tmp_path / "bright-test" / "coordinator" / "data" / "test.npz") as archive:
        assert archive["divided_by"].tolist() == ["16 bits=65535"]
    assert "divided_by" not in np.load(tmp_path / "dark-test" / "silos" / "silo-000.npz").files


@pytest.mark.parametrize("with_labels", [True, False])
def test_silos_find_what_is_white_themselves_where_the_coordinator_has_a_source_of_its_own(tmp_path: Path,
                                                                                           with_labels: bool) -> None:
    tables = of_16_bits(tmp_path, train=3000, test=3000)
    if not with_labels:
        with np.load(tmp_path / "deep.npz") as archive:
            np.savez(tmp_path / "deep.npz", **{name: archive[name] for name in archive.files if name != "train_labels"})
    pixels = np.random.default_rng(7).integers(0, 60000, (40, 8, 8)).astype(np.uint16)
    np.savez(tmp_path / "hub.npz", images=pixels, labels=np.arange(40) % 10)
    tables["simulation"] |= {"labelled": str(tmp_path / "hub.npz"), "data": str(tmp_path / "deep.npz#train"),
                             "split": {"name": "iid", "silos": 3}}
    dealt = dealt_of(tables)
    assert dealt.ranges == (("16 bits", 65535.0),)
    of_silos = dealt.images.images_NCHW[dealt.split.silos[0]]
    assert of_silos[:, 0, 0, 0].tolist() == [round(3000 * 255 / 4095)] * len(of_silos)


def test_parts_of_images_of_8_bits_say_nothing_of_what_is_white(tmp_path: Path) -> None:
    data = opened_parts(study(split={"num_labelled": 60, "num_test": 60}), tmp_path)
    assert data.frozen.ranges == ()
    assert "divided_by" not in np.load(tmp_path / "coordinator" / "data" / "labelled.npz").files


def of_16_bits(folder: Path, **brightest: int) -> dict[str, Any]:
    """A study of 300 training and 60 test images whose brightest values are these."""
    arrays: dict[str, Any] = {}
    for part, number in (("train", 300), ("test", 60)):
        pixels = np.random.default_rng(number).integers(0, 2000, (number, 8, 8)).astype(np.uint16)
        pixels[:, 0, 0] = brightest[part]
        arrays |= {f"{part}_images": pixels, f"{part}_labels": np.arange(number) % 10}
    np.savez(folder / "deep.npz", **arrays)
    tables = study(split={"num_labelled": 60, "fraction": 1.0})
    tables["simulation"]["data"] = str(folder / "deep.npz")
    return tables


def opened_parts(tables: dict[str, Any], folder: Path) -> StudyData:
    """What the coordinator of the parts of a study reads."""
    dealt = dealt_of(tables)
    write_parts(dealt, folder)
    return read_study_data(dealt.config, folder=folder / "coordinator", frozen=None)


def of_pages(folder: Path, *, files: int = 90, pages: int = 5) -> dict[str, Any]:
    """A study of TIFF files with so many pages each."""
    for number in range(files):
        path = folder / "scans" / f"class{number % 3}" / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (pages, 8, 8), dtype=np.uint8)
        first, *others = map(Image.fromarray, pixels)
        first.save(path, save_all=True, append_images=others)
    tables = study(split={"num_labelled": 90, "num_test": 60, "fraction": 1.0})
    tables["simulation"]["data"] = str(folder / "scans")
    tables["data"] = {**tables.get("data", {}), "image": {**tables.get("data", {}).get("image", {}),
                                                         "reading": {"frames": "all"}}}
    return tables
