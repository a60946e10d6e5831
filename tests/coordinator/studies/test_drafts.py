"""Study files that are made without an editor."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from semisilo.common.config import to_dict
from semisilo.common.errors import BadConfiguration, UnknownName, UsageError
from semisilo.coordinator.federation.folder import create_federation, study_template
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.studies.drafts import StudyDraft, create_draft, drafts_of, study_choices
from semisilo.coordinator.studies.queue import create_study, queue_study
from semisilo.coordinator.studies.study_file import load_study
from tests.coordinator.ledger_fixture import Filled, open_federation_with_silos


@pytest.fixture
def hub(tmp_path: Path) -> Filled:
    return open_federation_with_silos(tmp_path / "hub", silos=())


def made(hub: Filled, draft: StudyDraft) -> Path:
    return create_draft(hub.federation, hub.ledger, draft)


@pytest.mark.parametrize("scenario", ["labels-at-coordinator", "labels-at-silo", "labels-at-both"])
def test_without_a_choice_it_is_the_file_of_coordinator_new(scenario: str, hub: Filled) -> None:
    path = made(hub, StudyDraft(name="second", scenario=scenario))
    assert path.read_text() == create_study(hub.federation, "third", scenario=scenario).read_text()  # type: ignore[arg-type]


def test_choices_change_their_lines_and_comments_stay(hub: Filled) -> None:
    path = made(hub, StudyDraft(name="second", scenario="labels-at-silo", method="fedprox", rounds=7, start_with=4,
                                seed=9, model="resnet18"))
    config = load_study(path)
    assert (config.study.rounds, config.study.start_with, config.study.seed) == (7, 4, 9)
    assert (config.method.name, config.model.name) == ("fedprox", "resnet18")
    assert "# silos that must have joined before round 1" in path.read_text()
    assert "second" in drafts_of(hub.federation, hub.ledger)


def test_one_like_another_has_its_settings_and_its_images_but_what_is_chosen(hub: Filled) -> None:
    first = create_study(hub.federation, "zero")
    first.write_text(study_template().replace("local_epochs = 3", "local_epochs = 2").replace(
        'test = "data/test" ', 'test = "digits" '))
    (first.parent / "data" / "labelled").mkdir()
    was = queue_study(hub.federation, hub.ledger, "zero")
    path = made(hub, StudyDraft(name="second", like="zero", seed=5))
    tables, config = tomllib.loads(path.read_text()), load_study(path)
    assert tables["data"]["labelled"] == "../zero/data/labelled"
    assert (path.parent / tables["data"]["labelled"]).resolve() == (first.parent / "data" / "labelled").resolve()
    assert tables["data"]["test"] == "digits"
    before, after = to_dict(was), to_dict(config)
    assert after["study"].pop("seed") == 5
    before["study"].pop("seed")
    before["data"]["labelled"] = "../zero/data/labelled"
    assert after == before


def test_another_method_begins_with_its_own_defaults(hub: Filled) -> None:
    create_study(hub.federation, "zero")
    queue_study(hub.federation, hub.ledger, "zero")
    config = load_study(made(hub, StudyDraft(name="second", like="zero", method="semifl")))
    assert config.method.name == "semifl"
    assert to_dict(config.method.settings)["scenario"] == "labels-at-coordinator"


@pytest.mark.parametrize("method", ["", "self_training"])
def test_one_like_a_study_of_several_labels_has_its_task(method: str, hub: Filled) -> None:
    """The ledger has it among the settings of the method as well, where a file may not have it."""
    path = create_study(hub.federation, "findings", scenario="labels-at-silo")
    path.write_text(study_template("labels-at-silo").replace("[study]\n", '[study]\ntask = "multi_label"\n'))
    was = queue_study(hub.federation, hub.ledger, "findings")
    assert to_dict(was.method.settings)["task"] == "multi_label"
    config = load_study(made(hub, StudyDraft(name="second", like="findings", method=method)))
    assert (config.study.task, config.method) == ("multi_label", was.method)


@pytest.mark.parametrize(("name", "file"), [
    ("my_net.py:build", "my_net.py"), ("transformers/vit", "vit/config.json")])
def test_one_like_a_study_with_a_network_of_ones_own_has_its_file(name: str, file: str, hub: Filled) -> None:
    path = create_study(hub.federation, "own")
    path.write_text(study_template().replace(f'name = "{_template_model()}"', f'name = "{name}"'))
    (path.parent / file).parent.mkdir(exist_ok=True)
    (path.parent / file).write_text("{}\n")
    was = queue_study(hub.federation, hub.ledger, "own")
    copy = made(hub, StudyDraft(name="copy-own", like="own"))
    assert load_study(copy).model == was.model
    assert (copy.parent / file).read_text() == "{}\n"
    other = made(hub, StudyDraft(name="other", like="own", model="resnet18"))
    assert (load_study(other).model.name, (other.parent / file).exists()) == ("resnet18", False)
    (path.parent / file).write_text("{ }\n")
    with pytest.raises(BadConfiguration, match="as the study says"):
        made(hub, StudyDraft(name="third", like="own"))
    assert not (hub.federation.studies / "third").exists()
    (hub.federation.studies / "third").mkdir()
    (hub.federation.studies / "third" / "notes").write_text("mine")
    with pytest.raises(BadConfiguration, match="as the study says"):
        made(hub, StudyDraft(name="third", like="own"))
    assert not (hub.federation.studies / "third" / file).exists()
    (path.parent / file).unlink()
    with pytest.raises(BadConfiguration, match="cannot be read"):
        made(hub, StudyDraft(name="third", like="own"))


def _template_model() -> str:
    return str(tomllib.loads(study_template())["model"]["name"])


@pytest.mark.parametrize(("draft", "error", "words"), [
    (StudyDraft(name="a b"), UsageError, "cannot name a study"), (StudyDraft(name="../x"), UsageError, "cannot name"),
    (StudyDraft(name="second", like="nobody"), UnknownName, "nobody"),
    (StudyDraft(name="second", method="fedsgd-x"), UnknownName, "fedsgd-x"),
    (StudyDraft(name="second", scenario="nowhere"), UsageError, "labels-at-silo"),
    (StudyDraft(name="second", scenario="labels-at-silo", method="semifl"), BadConfiguration, "scenario"),
    (StudyDraft(name="second", model="os:getcwd"), UsageError, "is code"),
    (StudyDraft(name="second", rounds=0), BadConfiguration, "rounds")])
def test_what_is_wrong_is_said_as_by_the_commands_and_leaves_nothing_behind(
        draft: StudyDraft, error: type[Exception], words: str, hub: Filled) -> None:
    before = sorted(hub.federation.folder.rglob("*"))
    with pytest.raises(error) as refused:
        made(hub, draft)
    assert words in str(refused.value) + getattr(refused.value, "remedy", "")
    assert [path for path in sorted(hub.federation.folder.rglob("*")) if "ledger" not in path.name] == [
        path for path in before if "ledger" not in path.name]


def test_a_value_stays_one_value(hub: Filled) -> None:
    odd = 'x"\n[wire]\nuplink = "raw'
    config = load_study(made(hub, StudyDraft(name="second", model=odd)))
    assert (config.model.name, config.wire.uplink) == (odd, "auto")


def test_a_name_that_is_taken_stays_as_it_was(hub: Filled) -> None:
    path = create_study(hub.federation, "zero")
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        made(hub, StudyDraft(name="zero"))
    assert path.read_text() == "mine"


def test_choices_are_those_of_the_templates_and_methods(tmp_path: Path) -> None:
    federation = create_federation(tmp_path / "x", name="x", address="h:1")
    ledger = Ledger(federation.ledger)
    found = study_choices(federation, ledger)
    assert [(each.name, each.method, each.rounds, each.start_with) for each in found.scenarios] == [
        ("labels-at-coordinator", "self_training", 100, 2), ("labels-at-silo", "self_training", 100, 2),
        ("labels-at-both", "self_training", 100, 2)]
    assert {"semifl", "fedavg", "self_training"} <= {each.name for each in found.methods}
    ledger.close()
