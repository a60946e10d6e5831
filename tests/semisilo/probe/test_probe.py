"""The probe from end to end: what it attacks is what a study would send; it finds what is there, and nothing else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from semisilo.cli.main import app
from semisilo.common.errors import BadConfiguration, NotPermitted, UsageError
from semisilo.common.learning import tensors
from semisilo.common.payload.torch_tensors import decode_groups
from semisilo.common.text.cli_errors import run_cli
from semisilo.probe.asked import asked_of_silos
from semisilo.probe.membership import Measured, attacked, confidence_logits, halves, likelihood_ratios
from semisilo.probe.probe import ProbeWatcher, probe
from semisilo.probe.result import HitsFound, MembershipFound
from semisilo.probe.settings import ProbeSettings, load_probed_study, probed_tables, protections
from semisilo.probe.updates import SiloAtWork, averaged, images_of_round
from semisilo.silo.site.stores import open_outgoing
from semisilo.simulation.dealing import Dealt, deal_study
from semisilo.simulation.engines.one_process import InlineWorkplace
from semisilo.simulation.folder import SimulationFolder
from tests.each_of import each_of
from tests.semisilo.studies import study

SUPERVISED = {"objective": "sl", "lambda_s": 1.0, "weak_view": "none"}
QUICK = ProbeSettings(shadows=6, reconstructions=2, restarts=1, iterations=10, searched=2)


def supervised(method: str = "fedavg", *, silos: int = 3, fraction: float = 0.06, **settings: Any) -> dict[str, Any]:
    """Labels at the silos, one class of loss, no augmentation."""
    tables = study(method, "labels-at-silo", silos=silos, settings={**SUPERVISED, **settings},
                   split={"all_labelled": True, "fraction": fraction, "num_validation": 0})
    tables["simulation"]["split"].pop("labelled_per_class")
    tables["augmentation"] = {"policy": "none"}
    tables["model"]["normalisation"] = "group"
    for key in ("confidence_threshold", "unlabelled_batch"):
        tables["method"].pop(key, None)
    return tables


def silos_at_work(tables: dict[str, Any], folder: Path, *, round: int = 1, site: str = "silo-000"
                  ) -> tuple[Dealt, dict[str, SiloAtWork]]:
    dealt = deal_study(probed_tables(tables, name="study"))
    asked = asyncio.run(asked_of_silos(dealt, SimulationFolder(folder / "study"), site=site, round=round, device="cpu",
                                       progress=lambda share, text: None))
    images = dealt.silos_images()
    return dealt, {name: SiloAtWork(request, images_of_round(images[dealt.silos.index(name)], round=request.task.round),
                                    scratch=folder, seed=1, device="cpu") for name, request in asked.items()}


def everything(silo: SiloAtWork) -> np.ndarray:
    return np.arange(len(silo.pool))


def test_an_update_of_all_images_is_the_one_that_the_silo_would_send(tmp_path: Path) -> None:
    dealt, silos = silos_at_work(supervised(), tmp_path)
    site = silos["silo-000"]
    trained = asyncio.run(InlineWorkplace(dealt.silos_images(), device="cpu").train(site._asked))
    assert trained.payload is not None
    sent = decode_groups(open_outgoing(site._asked.outgoing_folder).path(trained.payload.digest), require_finite=True)
    found = site.update(everything(site), number=1).change
    assert found is not None
    assert tensors.digest(found) == tensors.digest(sent["model"].tensors)
    assert tensors.norm(found) > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fednova"])
def test_the_average_of_all_updates_leads_to_the_coordinators_next_model(method: str, tmp_path: Path) -> None:
    """The site comes in round 2 and has abstained in round 1: the model of round 2 is that of the others' updates."""
    _, first = silos_at_work(supervised(method), tmp_path / "one")
    _, second = silos_at_work(supervised(method), tmp_path / "two", round=2)
    others = [silo.update(everything(silo), number=1) for name, silo in first.items() if name != "silo-000"]
    assert len(others) == 2
    change = averaged(others, first["silo-000"].settings)
    assert change is not None
    moved = tensors.subtract(second["silo-000"].base, first["silo-000"].base)
    assert tensors.norm(tensors.subtract(moved, change)) < 1e-4 * tensors.norm(moved)
    assert averaged([replace(others[0], change=None)], None) is None


@pytest.mark.slow
def test_what_was_learnt_by_heart_is_found_and_what_was_never_seen_is_not(tmp_path: Path) -> None:
    """The same images and memberships: once in the updates of the site, once in those of another silo, which has none
    of them."""
    _, silos = silos_at_work(supervised(silos=2, lr=0.3, local_epochs=40, labelled_batch=10), tmp_path)
    site, other = silos["silo-000"], silos["silo-001"]
    count = len(site.pool) // 2 * 2
    members_UN = halves(count, 6, generator=np.random.default_rng(1))
    found = []
    for silo in (site, other):
        scores_UN = np.array([
            confidence_logits(site.logits(silo.update(np.flatnonzero(chosen_N), number=index + 1).change), site.labels)
            [:count] for index, chosen_N in enumerate(members_UN)])
        found.append(attacked(likelihood_ratios(scores_UN, members_UN), members_UN, rates=(0.1,),
                              generator=np.random.default_rng(2)).area)
    assert found[0].low > 0.6
    assert found[1].low <= 0.5 <= found[1].high


@pytest.mark.slow
def test_the_command_goes_on_where_it_was_and_gives_the_same_numbers(tmp_path: Path,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "few.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(supervised("fedsgd", labelled_batch=2)))
    words = ["probe", str(file), "--out", str(out), "--shadows", "6", "--reconstructions", "2", "--restarts", "1",
             "--iterations", "10"]
    assert run_cli(app, [*words, "--json", str(tmp_path / "found.json")], name="semisilo") == 0
    shown = capsys.readouterr().out
    for text in ("guessing is 50 times", "Was this image trained on?", "What did the images look like?",
                 "the update by itself", "the average of 3 silos", "nothing has left this machine",
                 "18 updates to train"):
        assert text in shown
    first = json.loads((tmp_path / "found.json").read_text())
    assert [(each["view"], each["silos"]) for each in first["membership"]] == [("own", 1), ("average", 3)]
    assert first["inversion"][0]["trained_on"] == 2
    assert len(list((out / "pictures").glob("*.png"))) == 4
    assert not list(out.glob("scratch-*"))

    lost = sorted(out.glob("updates/*/*.json"))[2], sorted(out.glob("reconstructions/*/*.json"))[0]
    kept = {path: path.stat().st_mtime_ns for path in out.glob("updates/*/*.json")}
    for path in lost:
        path.unlink()
    assert run_cli(app, [*words, "--json", "-"], name="semisilo") == 0
    told = capsys.readouterr()
    again = json.loads(told.out)
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items() if path not in lost)
    assert run_cli(app, words, name="semisilo") == 0
    assert "everything was done before" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_with_differential_privacy_the_sites_own_count_bounds_what_may_be_found(tmp_path: Path) -> None:
    tables = supervised(labelled_batch=10, fraction=0.1)
    tables["privacy"] = {"dp": {"noise_multiplier": 1.0, "clip_norm": 0.5}}
    found = probe(probed_tables(tables, name="study"), out=tmp_path / "out",
                  settings=replace(QUICK, reconstructions=0, others=False), device="cpu")
    plain, private = found.membership
    assert (plain.protection, plain.epsilon, plain.allowed_area) == ("", None, None)
    assert private.protection == "the study's own (noise 1)"
    assert private.epsilon is not None
    assert 0.5 < private.epsilon < 20
    assert private.allowed_area is not None
    assert 0.5 < private.allowed_area <= 1
    assert not found.violates


def test_more_than_is_allowed_is_told_as_a_mistake_of_the_program() -> None:
    def found(low: float) -> MembershipFound:
        return MembershipFound(
            view="own", silos=1, protection="epsilon 1", area=Measured(0.6, 0.55, 0.65), updates=8, abstained=0,
            images=20, epsilon=1.0, delta=1e-5, allowed_area=0.8,
            hits=(HitsFound(false_positive_rate=0.1, true_positive_rate=Measured(0.5, low, 0.6), allowed=0.4),))

    assert not found(0.39).violates
    assert found(0.41).violates
    assert "mistake in this program" in found(0.41).words
    assert "mistake" not in found(0.39).words


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmatch", "self_training"])
def test_methods_with_other_updates_are_probed_as_well(method: str, tmp_path: Path) -> None:
    found = probe(probed_tables(study(method), name="study"), out=tmp_path / "out", settings=QUICK, device="cpu")
    views = [each.view for each in found.membership]
    assert views == (["own"] if method == "fedmatch" else ["own", "average"])
    assert all(each.abstained == 0 for each in found.membership)
    assert (method == "fedmatch") == any("averages no whole models" in note for note in found.notes)


@pytest.mark.slow
def test_pictures_are_not_written_where_they_are_not_wanted(tmp_path: Path) -> None:
    found = probe(probed_tables(supervised("fedsgd", labelled_batch=1), name="study"), out=tmp_path / "out",
                  settings=replace(QUICK, shadows=0, others=False, pictures=False), device="cpu")
    assert found.pictures == ""
    assert not list((tmp_path / "out").rglob("*.png"))


@pytest.mark.slow
def test_torch_is_left_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    probe(probed_tables(supervised("fedsgd", labelled_batch=1), name="study"), out=tmp_path / "out",
          settings=replace(QUICK, shadows=0, others=False), device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_silo_or_round_that_there_is_not_is_refused(tmp_path: Path) -> None:
    tables = probed_tables(supervised(), name="study")
    with pytest.raises(UsageError, match=r"no silo 'silo-003'; there are silo-000 to silo-002"):
        probe(tables, out=tmp_path / "a", settings=replace(QUICK, silo="silo-003"), device="cpu")
    with pytest.raises(UsageError, match="asks silo-000 for nothing in round 3"):
        probe(tables, out=tmp_path / "b", settings=replace(QUICK, round=3), device="cpu")


def test_a_method_that_sends_no_model_and_one_that_cannot_have_privacy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sends no model and no gradient"):
        probe(probed_tables(study("local", "labels-at-silo"), name="study"), out=tmp_path / "a", settings=QUICK,
              device="cpu")
    without = study("semifl")
    without["model"]["normalisation"] = "group"
    with pytest.raises(BadConfiguration, match="semifl"):
        protections(probed_tables(without, name="study"), (8.0,))
    tables = supervised()
    tables["model"]["normalisation"] = "static_batch"
    with pytest.raises((NotPermitted, BadConfiguration), match="batch"):
        probe(probed_tables(tables, name="study"), out=tmp_path / "b", device="cpu",
              settings=replace(QUICK, others=False, epsilons=(8.0,)))
    assert not list((tmp_path / "b").glob("updates/*/*.json")), "it is refused before anything is trained in vain"


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty, and holds no probe"):
        probe(probed_tables(supervised(), name="study"), out=tmp_path, settings=QUICK, device="cpu")


@each_of(("wrong", "said"), [
    ({"shadows": 7}, "even number from 6"), ({"shadows": 4}, "even number from 6"),
    ({"shadows": 0, "reconstructions": 0}, "nothing to do"), ({"reconstructions": 1}, "no interval"),
    ({"images": 3}, "at least 4"), ({"epsilons": (0.0,)}, "above 0"), ({"epsilons": (8.0, 8.0)}, "twice")])
def test_settings_that_cannot_be_honoured_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ProbeSettings(**wrong)


def test_a_federations_study_is_probed_on_images_of_ones_own(tmp_path: Path) -> None:
    tables = supervised()
    del tables["simulation"]
    tables["study"]["start_with"] = 3
    tables["data"] |= {"labelled": "data/labelled", "test": "data/test"}
    tables["participation"] = {"quorum": 3}
    file = tmp_path / "first" / "study.toml"
    file.parent.mkdir()
    file.write_text(tomli_w.dumps(tables))
    with pytest.raises(BadConfiguration, match=r"\[simulation\] is missing"):
        load_probed_study(file)
    found = load_probed_study(file.parent, data="digits", silos=7)
    assert (found.name, found.simulation.data, found.simulation.split.silos) == ("first", "digits", 7)
    assert found.simulation.split.all_labelled
    assert load_probed_study(file, data="digits").simulation.split.silos == 5

    tables["method"] = study("semifl")["method"]
    file.write_text(tomli_w.dumps(tables))
    at_coordinator = load_probed_study(file, data="digits").simulation.split
    assert (at_coordinator.num_labelled, at_coordinator.all_labelled) == (100, False)


def test_images_of_ones_own_take_the_place_of_those_of_the_study(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(tomli_w.dumps(supervised()))
    assert load_probed_study(file, data=str(tmp_path / "own")).simulation.data == str(tmp_path / "own")
    with pytest.raises(UsageError, match="--silos has no effect"):
        load_probed_study(file, silos=5)


@pytest.mark.slow
def test_what_is_done_is_told_with_a_forecast(tmp_path: Path) -> None:
    lines: list[str] = []
    shares: list[float] = []

    class Watcher(ProbeWatcher):
        def step(self, text: str) -> None:
            lines.append(text)

        def progress(self, fraction: float, text: str) -> None:
            shares.append(fraction)

    probe(probed_tables(supervised("fedsgd", labelled_batch=1), name="study"), out=tmp_path / "out",
          settings=replace(QUICK, others=False), device="cpu", watcher=Watcher())
    assert any(line.startswith("6 updates to train and 2 updates to invert: about ") for line in lines)
    assert shares
    assert all(0 <= share <= 1 for share in shares)
