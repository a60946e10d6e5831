"""Simulated silos that have what was collected at their site: [simulation] sites, and lists of sources in Python."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
from PIL import Image

import semisilo
import semisilo.api.setup as of_setup
import semisilo.api.simulate as api_module
from semisilo.common.config import load_toml
from semisilo.common.data.readers import classes_of
from semisilo.common.errors import BadConfiguration, BadData, SemisiloError, UsageError
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.simulation.dealing import Dealt, deal_study
from semisilo.simulation.output import split_study
from semisilo.simulation.parts import write_parts
from semisilo.simulation.settings import load_simulated_study
from semisilo.simulation.source_stamp import source_stamp
from tests.each_of import each_of
from tests.semisilo.studies import study

SIZES = (30, 20, 40)


def pixels(number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (number, 8, 8), dtype=np.uint8)


def archive(path: Path, number: int, seed: int, *, classes: int = 3, labels: bool = True) -> Path:
    arrays = {"images": pixels(number, seed)}
    if labels:
        arrays |= {"labels": np.arange(number) % classes}
    np.savez(path, **arrays)
    return path


def sites(folder: Path, *, labels: bool = True) -> list[str]:
    return [str(archive(folder / f"site-{index}.npz", number, index, labels=labels))
            for index, number in enumerate(SIZES)]


def tables_of(scenario: str = "labels-at-coordinator", *, split: dict[str, Any] | None = None,
              method: str = "semifl", **simulation: Any) -> dict[str, Any]:
    found = study(method, scenario, simulation=simulation)
    found["simulation"]["split"] = {"name": "natural", **(split or {})}
    found["simulation"].pop("data")
    return found


def dealt_of(tables: dict[str, Any]) -> Dealt:
    return deal_study(load_simulated_study(tables))


@pytest.mark.parametrize("labels", [True, False])
def test_each_silo_has_what_its_site_has_beside_labelled_images_of_the_coordinator(tmp_path: Path, labels: bool
                                                                                   ) -> None:
    own = archive(tmp_path / "hub.npz", 12, 9)
    dealt = dealt_of(tables_of(sites=sites(tmp_path, labels=labels), labelled=str(own)))
    assert dealt.silos == ("silo-000", "silo-001", "silo-002")
    assert dealt.classes_known == labels
    for index, number in enumerate(SIZES):
        held = dealt.silos_images()[index].unlabelled
        assert held is not None
        assert np.array_equal(held.images_NCHW.numpy()[:, 0], pixels(number, index))
    labelled = dealt.coordinator_set("labelled")
    assert labelled is not None
    assert np.array_equal(labelled.images_NCHW.numpy()[:, 0], pixels(12, 9))


def test_folders_of_images_without_classes_are_sites(tmp_path: Path) -> None:
    for number, name in enumerate(("north", "south")):
        (tmp_path / name).mkdir()
        for index in range(3 + number):
            Image.fromarray(pixels(1, 10 * number + index)[0]).save(tmp_path / name / f"{index}.png")
    own = archive(tmp_path / "hub.npz", 12, 9)
    dealt = dealt_of(tables_of(sites=[str(tmp_path / "north"), str(tmp_path / "south")], labelled=str(own)))
    assert list(map(len, dealt.split.silos)) == [3, 4]


def partly_labelled(folder: Path, kind: str, *, number: int = 9) -> str:
    """A site of which every third image has a label, the first one from the start."""
    (folder / "site").mkdir()
    if kind == "npz":
        np.savez(folder / "site" / "part.npz", labelled_images=pixels(3, 5), labelled_labels=[0, 1, 2],
                 unlabelled_images=pixels(number - 3, 6))
        return str(folder / "site" / "part.npz")
    if kind == "minus one":
        np.savez(folder / "site" / "all.npz", images=pixels(number, 6),
                 labels=[-1 if index % 3 else index // 3 % 3 for index in range(number)])
        return str(folder / "site" / "all.npz")
    top = {"folders": ("", "unlabelled"), "labelled": ("labelled/", "unlabelled")}.get(kind)
    names = []
    for index in range(number):
        label = "" if index % 3 else f"{index // 3 % 3}"
        name = f"{index}.png" if top is None else f"{top[0] + label if label else top[1]}/{index}.png"
        (folder / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(1, 50 + index)[0]).save(folder / "site" / name)
        names.append(f"{name},{label}")
    if top is not None:
        return str(folder / "site")
    (folder / "site" / "labels.csv").write_text("\n".join(["file,label", *names]))
    return str(folder / "site" / "labels.csv")


@pytest.mark.parametrize("kind", ["table", "folders", "labelled", "npz", "minus one"])
def test_a_site_of_which_some_images_have_a_label_trains_on_all_of_them(tmp_path: Path, kind: str) -> None:
    """Those without were left out without a word, or a folder of them was no class of the study."""
    own = archive(tmp_path / "hub.npz", 12, 9)
    dealt = dealt_of(tables_of(sites=[partly_labelled(tmp_path, kind)], labelled=str(own)))
    assert (len(dealt.split.silos[0]), dealt.classes_known, dealt.left_out_line()) == (9, False, "")
    one_set = tables_of(labelled=str(own), split={"name": "iid", "silos": 3})
    one_set["simulation"]["data"] = dealt.study.simulation.sites[0]
    assert list(map(len, dealt_of(one_set).split.silos)) == [3, 3, 3]


@pytest.mark.parametrize("kind", ["table", "minus one"])
def test_images_without_a_label_that_a_split_cannot_deal_are_told_of(tmp_path: Path, kind: str) -> None:
    source = partly_labelled(tmp_path, kind, number=30)
    tables = tables_of(sites=[source], split={"num_labelled": 3, "num_test": 3})
    dealt = dealt_of(tables)
    line = '20 images without a label are left out: the split "natural" in labels-at-coordinator'
    assert dealt.left_out_line() == f"{line} without [simulation] labelled needs the class of each"
    (tmp_path / "study.toml").write_text(tomli_w.dumps(tables))
    assert any(each.startswith(line) for each in split_study(tmp_path / "study.toml", out=tmp_path / "parts"))
    at_silos = dealt_of(tables_of("labels-at-silo", method="fedavg", sites=[source], split={"labelled_per_class": 1}))
    assert at_silos.left_out_line().startswith('20 images without a label are left out: the split "natural" in labels-')
    assert dealt_of(tables_of(sites=sites(tmp_path), split={"num_labelled": 30})).left_out_line() == ""


def test_a_simulation_that_was_begun_without_the_unlabelled_images_of_a_table_goes_on_without_them(tmp_path: Path
                                                                                                   ) -> None:
    own, source = archive(tmp_path / "hub.npz", 12, 9), partly_labelled(tmp_path, "table")
    tables = tables_of(sites=[source], labelled=str(own))
    lines = Path(source).read_text().splitlines()
    Path(source).write_text("\n".join(line for line in lines if not line.endswith(",")))
    begun = dealt_of(tables)
    assert len(begun.split.silos[0]) == 3
    Path(source).write_text("\n".join(lines))
    again = deal_study(load_simulated_study(tables), begun=begun.digest())
    assert (again.digest(), again.classes_known) == (begun.digest(), True)
    assert len(dealt_of(tables).split.silos[0]) == 9


def test_without_images_of_its_own_the_coordinator_gets_some_of_every_site(tmp_path: Path) -> None:
    dealt = dealt_of(tables_of(sites=sites(tmp_path), split={"num_labelled": 30, "num_test": 15}))
    whose = np.repeat(np.arange(3), SIZES)
    assert set(whose[dealt.split.coordinator].tolist()) == {0, 1, 2}
    assert [set(whose[part].tolist()) for part in dealt.split.silos] == [{0}, {1}, {2}]
    assert sum(map(len, dealt.split.silos)) == 90 - 30 - 15
    assert dealt.test is not None
    assert len(dealt.test) == 15


@pytest.mark.parametrize("scenario", ["labels-at-silo", "labels-at-both"])
def test_labels_of_silos_are_those_of_their_site(tmp_path: Path, scenario: str) -> None:
    own = {"labelled": str(archive(tmp_path / "hub.npz", 12, 9))} if scenario == "labels-at-both" else {}
    dealt = dealt_of(tables_of(scenario, method="fedavg" if not own else "self_training", sites=sites(tmp_path),
                               split={"labelled_per_class": 2}, **own))
    start = len(dealt.split.coordinator) + np.cumsum((0, *SIZES))
    for index in range(3):
        assert len(dealt.labelled_of(index)) == 6
        held = np.concatenate((dealt.labelled_of(index), dealt.split.silos[index]))
        assert sorted(held.tolist()) == list(range(start[index], start[index + 1]))


def test_the_classes_are_those_of_all_sites(tmp_path: Path) -> None:
    few, more = archive(tmp_path / "a.npz", 20, 1, classes=2), archive(tmp_path / "b.npz", 24, 2, classes=12)
    assert classes_of([str(few)]) == ("0", "1")
    assert classes_of([str(few), str(more)]) == tuple(map(str, range(12)))
    dealt = dealt_of(tables_of("labels-at-silo", method="fedavg", sites=[str(few), str(more)],
                               split={"labelled_per_class": 1}))
    assert dealt.classes == tuple(map(str, range(12)))
    assert [len(part) for part in dealt.split.labelled] == [2, 12]
    for name, kinds in (("x", ("cat", "ant")), ("y", ("bee", "ant"))):
        np.savez(tmp_path / f"{name}.npz", images=pixels(4, 1), labels=np.array([0, 1, 0, 1]), classes=np.array(kinds))
    assert classes_of([str(tmp_path / "x.npz"), str(tmp_path / "y.npz")]) == ("ant", "bee", "cat")


def test_the_parts_are_written_and_named_as_of_any_split(tmp_path: Path) -> None:
    named = sites(tmp_path)
    dealt = dealt_of(tables_of(sites=named, labelled=str(archive(tmp_path / "hub.npz", 12, 9))))
    manifest = write_parts(dealt, tmp_path / "parts").read_text()
    assert ", ".join(named) in manifest
    with np.load(tmp_path / "parts" / "silos" / "silo-001.npz") as file:
        assert np.array_equal(file["unlabelled_images"], pixels(20, 1))
    assert '"class_counts"' in manifest
    assert '"non_iidness"' in manifest
    assert load_toml(tmp_path / "parts" / "coordinator" / "study.toml")["study"]["start_with"] == 3


def test_nothing_is_said_of_classes_that_nobody_knows(tmp_path: Path) -> None:
    tables = tables_of(sites=sites(tmp_path, labels=False), labelled=str(archive(tmp_path / "hub.npz", 12, 9)))
    manifest = json.loads(write_parts(dealt_of(tables), tmp_path / "parts").read_text())
    assert "non_iidness" not in manifest
    assert all("class_counts" not in entry for entry in manifest["silos"].values())
    assert manifest["coordinator"]["labelled"]["class_counts"] == {"0": 4, "1": 4, "2": 4}
    (tmp_path / "study.toml").write_text(tomli_w.dumps(tables))
    assert "non-iidness is not known: what the silos have has no labels" in split_study(
        tmp_path / "study.toml", out=tmp_path / "again")


def test_another_file_of_a_site_is_seen_by_the_stamp(tmp_path: Path) -> None:
    named = sites(tmp_path)
    loaded = load_simulated_study(tables_of(sites=named, split={"num_labelled": 30}))
    before = source_stamp(loaded)
    assert before
    assert source_stamp(loaded) == before
    os.utime(named[2], (1, 1))
    assert source_stamp(loaded) != before


@each_of("simulation, split, said", [
    ({"sites": ["a", "b"], "data": "digits"}, {"name": "natural"}, "data has no effect beside sites"),
    ({"sites": ["a", "b"]}, {"name": "iid", "silos": 2}, 'choose split = { name = "natural" }'),
    ({"data": "digits"}, {"name": "natural"}, 'the split "natural" needs sites'),
    ({}, {"name": "iid", "silos": 2}, "data is missing"),
    ({"sites": []}, {"name": "iid", "silos": 2}, "data is missing"),
    ({"sites": ["a", "", "b"]}, {"name": "natural"}, "sites: number 2 is empty"),
    ({"sites": ["a", "b"]}, {"name": "natural", "silos": 3}, "silos = 3: there are 2 sites"),
    ({"sites": ["a", "b"], "pool_test": True}, {"name": "natural", "num_test": 5}, "pool_test has no effect"),
    ({"sites": ["a", "b"]}, {"name": "natural", "labelled_silos": 3}, "there are only 2 silos"),
    ({"sites": ["a", "b"]}, {"name": "natural", "dirichlet": 0.5}, "dirichlet has no effect"),
])
def test_settings_that_contradict_each_other_are_refused(simulation: dict[str, Any], split: dict[str, Any], said: str
                                                         ) -> None:
    tables = study()
    tables["simulation"] = {**simulation, "split": {"num_labelled": 20, **split}}
    with pytest.raises(BadConfiguration) as caught:
        load_simulated_study(tables)
    assert said in caught.value.line()


def test_unlabelled_sites_are_refused_where_labels_are_needed(tmp_path: Path) -> None:
    named, own = sites(tmp_path, labels=False), archive(tmp_path / "hub.npz", 12, 9)
    with pytest.raises(SemisiloError, match=r"no labels, which the split .natural. and the scenario labels-at-both"):
        dealt_of(tables_of("labels-at-both", method="self_training", sites=named, labelled=str(own),
                           split={"labelled_per_class": 1}))
    with pytest.raises(BadData, match="label"):
        dealt_of(tables_of(sites=named, split={"num_labelled": 30}))


QUICK: dict[str, Any] = {"method": {"name": "semifl", "local_epochs": 1, "confidence_threshold": 0.35, "lr": 0.02},
                         "rounds": 1, "labelled_only": False, "progress": False, "engine": "process"}


def counts(run: semisilo.Run) -> list[int]:
    """Unlabelled images of each silo."""
    with contextlib.closing(Ledger(run.folder / "ledger.sqlite")) as ledger:
        return [row.unlabelled_count for row in LedgerRoster(ledger).silos()]


def test_a_list_in_python_is_a_silo_for_each_of_its_sources(tmp_path: Path) -> None:
    arrays = [pixels(number, index) for index, number in enumerate(SIZES)]
    own, test = ((pixels(12, seed), np.arange(12) % 3) for seed in (9, 8))
    run = semisilo.simulate(labelled=own, unlabelled=[*arrays[:2], archive(tmp_path / "c.npz", 40, 2, labels=False)],
                            test=test, out=tmp_path / "run", **QUICK)
    assert run.completed[-1].round == 1
    assert counts(run) == list(SIZES)


def test_sites_with_labels_give_the_coordinator_some_and_hold_out_a_fifth(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    run = semisilo.simulate(data=sites(tmp_path / "here"), num_labelled=9, out=tmp_path / "run", **QUICK)
    assert run.test_images is not None
    assert run.test_images.total == 18
    assert sum(counts(run)) == 90 - 18 - 9


def darker(images: np.ndarray) -> np.ndarray:
    return (images // 3).astype(np.uint8)


def standardised_of(folder: Path, **given: Any) -> str:
    found = semisilo.simulate(test=(pixels(12, 8), np.arange(12) % 3), out=folder, **{**QUICK, **given})
    (study_file,) = found.folder.rglob("study.toml")
    return str(load_toml(study_file)["data"]["image"].get("standardise", "study"))


def test_images_of_several_sources_are_standardised_one_by_one_and_those_of_one_set_are_not(tmp_path: Path) -> None:
    own, others = (pixels(30, 9), np.arange(30) % 3), pixels(30, 1)
    (tmp_path / "sites").mkdir()
    assert standardised_of(tmp_path / "listed", labelled=own, unlabelled=[others, pixels(30, 3)]) == "image"
    assert standardised_of(tmp_path / "dealt", labelled=own, unlabelled=others, silos=2) == "image"
    assert standardised_of(tmp_path / "all", data=sites(tmp_path / "sites"), num_labelled=9) == "image"
    assert standardised_of(tmp_path / "one", data=own, num_labelled=9, silos=2) == "study"
    assert standardised_of(tmp_path / "stated", labelled=own, unlabelled=others, silos=2,
                           tables={"data": {"image": {"standardise": "study"}}}) == "study"


def test_a_comparison_looks_at_the_images_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    survey = of_setup.survey
    monkeypatch.setattr(of_setup, "survey", lambda source: looked.append(source) or survey(source))
    monkeypatch.setattr(api_module, "_run", lambda *_, **__: SimpleNamespace(labelled_only={}))
    monkeypatch.setattr(api_module, "Comparison", lambda runs: runs)
    semisilo.compare([QUICK["method"]], labelled=(pixels(30, 9), np.arange(30) % 3), silos=2, seeds=[1, 2, 3],
                     unlabelled=pixels(30, 2), out=tmp_path, progress=False)
    assert len(looked) == len(set(looked)) == 2


def test_silos_whose_images_look_unlike_the_coordinators_are_named_with_what_may_be_done(tmp_path: Path) -> None:
    own = archive(tmp_path / "hub.npz", 30, 9)
    named = [str(archive(tmp_path / f"{index}.npz", 30, index, labels=False)) for index in range(3)]
    np.savez(named[1], images=darker(pixels(30, 1)))
    tables = tables_of(sites=named, labelled=str(own))
    line = dealt_of(tables).unlike_line()
    assert line.startswith("the images of 1 silo look unlike the coordinator's labelled ones (silo-001, 1.npz: darker:")
    assert 'image.standardise = "image"' in line
    tables["data"]["image"]["standardise"] = "image"
    assert dealt_of(tables).unlike_line() == ""
    one_set = {**tables_of(), "simulation": {
        "data": named[1], "labelled": str(own), "split": {"name": "iid", "silos": 2}}}
    assert dealt_of(one_set).unlike_line().startswith("the silos' images look unlike the coordinator's labelled ones (")
    alike = tables_of(sites=[named[0], named[2]], labelled=str(own))
    assert dealt_of(alike).unlike_line() == ""
    (tmp_path / "study.toml").write_text(tomli_w.dumps({**tables_of(sites=named, labelled=str(own))}))
    assert line in split_study(tmp_path / "study.toml", out=tmp_path / "parts")


@each_of("arguments, said", [
    ({"data": []}, "data is empty"),
    ({"data": ["a.npz", "b.npz"], "silos": 3}, "silos = 3: there is a silo for each of the 2 sites"),
    ({"data": ["a.npz", "b.npz"], "split": "shards"}, "split = shards: deals one set"),
    ({"data": ["a.npz", "b.npz"], "split": {"name": "iid"}}, "split = iid: deals one set"),
])
def test_a_list_that_contradicts_the_others_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        semisilo.simulate(num_labelled=20, **arguments)
    assert said in caught.value.line()


def test_what_is_wrong_with_one_of_a_list_is_said_of_it(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"data\[1\]: the images are float64"):
        semisilo.simulate(data=[(pixels(4, 1), [0, 1, 0, 1]), (np.zeros((4, 8, 8)), [0, 1, 0, 1])], num_labelled=2,
                          out=tmp_path / "run")
