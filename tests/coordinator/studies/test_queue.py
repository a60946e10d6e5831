"""From study files to the queue: what is taken, what is refused, and that one bad file stops no other study."""

from __future__ import annotations

from pathlib import Path

import pytest

from semisilo.common.audit.chain import ChainWalk
from semisilo.common.config import canonical_json, to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.errors import BadConfiguration, UnknownName, UsageError
from semisilo.coordinator.federation.folder import Federation, create_federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.table_check import compare_tables
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.ledger.states import RoundState, StudyState
from semisilo.coordinator.studies.queue import create_study, edited_studies, queue_new_studies, queue_study
from semisilo.coordinator.studies.study_file import load_study

GOOD = '[study]\nrounds = 3\n[data]\nlabelled = "data"\nimage = { size = 8, channels = 1 }\n[method]\nname = "semifl"\n'
BAD = GOOD.replace("rounds", "ronds")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path / "lung", name="lung", address="hub.example:8443")


@pytest.fixture
def ledger(federation: Federation) -> Ledger:
    return Ledger(federation.ledger)


def write(federation: Federation, name: str, text: str = GOOD) -> Path:
    path = federation.studies / name / "study.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def commit_round_0(ledger: Ledger, name: str) -> None:
    ledger.open_round(name, 0, start_digest="", sample=(), phases=())
    ledger.set_round_state(name, 0, RoundState.EVALUATING, state_digest="s0")
    ledger.commit_round(name, 0, metrics={})


def end(ledger: Ledger, name: str, state: StudyState) -> None:
    ledger.set_study_state(name, StudyState.PREPARING)
    if state is StudyState.COMPLETED:
        ledger.set_study_state(name, StudyState.WAITING)
        ledger.set_study_state(name, StudyState.RUNNING)
    ledger.set_study_state(name, state, reason="because")


def test_a_new_study_is_made_once_and_can_be_queued(federation: Federation, ledger: Ledger) -> None:
    path = create_study(federation, "second")
    assert queue_study(federation, ledger, "second").data.labelled == "data/labelled"
    path.write_text("edited")
    with pytest.raises(UsageError, match="exists already"):
        create_study(federation, "second")
    assert path.read_text() == "edited"


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a b", "-a", "ä", "a" * 64, "a\n"])
def test_a_name_that_could_leave_the_folder_or_confuse_is_refused(federation: Federation, ledger: Ledger,
                                                                  name: str) -> None:
    before = sorted(federation.folder.rglob("*"))
    with pytest.raises(UsageError, match="cannot name a study"):
        create_study(federation, name)
    with pytest.raises(UsageError):
        queue_study(federation, ledger, name)
    assert ledger.studies() == []
    assert sorted(federation.folder.rglob("*")) == before


def test_a_study_without_a_file_names_those_there_are(federation: Federation, ledger: Ledger) -> None:
    write(federation, "first")
    with pytest.raises(UnknownName, match=r"second.study\.toml") as caught:
        queue_study(federation, ledger, "second")
    assert "first" in caught.value.remedy


def test_a_study_that_waits_takes_its_edited_file_when_it_is_queued_again_and_keeps_its_place(
        federation: Federation, ledger: Ledger) -> None:
    """`coordinator new`, a start of `serve`, and only then the edit: what the operator has written must run."""
    for name in ("first", "second"):
        write(federation, name)
    queue_new_studies(federation, ledger)
    write(federation, "first", GOOD.replace("rounds = 3", "rounds = 9"))
    assert queue_new_studies(federation, ledger) == ([], {})
    assert ledger.study("first").config["study"]["rounds"] == 3, "nobody has asked for it"
    seen: list[object] = []
    queue_study(federation, ledger, "first", only_check=True, check=lambda config, frozen: seen.append(frozen))
    assert (seen, ledger.study("first").config["study"]["rounds"]) == ([None], 3)
    queue_study(federation, ledger, "first")
    assert [(row.name, row.state, row.config["study"]["rounds"]) for row in ledger.studies()] == [
        ("first", StudyState.QUEUED, 9), ("second", StudyState.QUEUED, 3)]
    with pytest.raises(UsageError, match="'first' is queued"):
        queue_study(federation, ledger, "first")
    assert compare_tables(ledger, ChainWalk()) == []


def test_a_study_that_begins_while_its_edited_file_is_checked_keeps_its_settings(federation: Federation,
                                                                                 ledger: Ledger) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    write(federation, "first", GOOD.replace("rounds = 3", "rounds = 9"))
    with pytest.raises(UsageError, match="has begun with other settings"):
        queue_study(federation, ledger, "first",
                    check=lambda config, frozen: ledger.set_study_state("first", StudyState.PREPARING))
    assert ledger.study("first").config["study"]["rounds"] == 3


@pytest.mark.parametrize("state", [StudyState.QUEUED, StudyState.PREPARING, StudyState.RUNNING, StudyState.PAUSED])
def test_an_edit_of_a_study_that_has_begun_is_refused_and_not_ignored(federation: Federation, ledger: Ledger,
                                                                      state: StudyState) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    if state is not StudyState.PREPARING:
        commit_round_0(ledger, "first")  # queued again in the middle, where it is queued
    if state is not StudyState.QUEUED:
        ledger.set_study_state("first", StudyState.PREPARING)
    if state not in (StudyState.QUEUED, StudyState.PREPARING):
        ledger.set_study_state("first", StudyState.WAITING)
        ledger.set_study_state("first", StudyState.RUNNING)
        ledger.set_study_state("first", state)
    with pytest.raises(UsageError, match=f"'first' is {state}"):
        queue_study(federation, ledger, "first")
    write(federation, "first", GOOD.replace("rounds = 3", "rounds = 9"))
    with pytest.raises(UsageError, match=r"'first' has begun with other settings than .*study") as caught:
        queue_study(federation, ledger, "first")
    assert ("coordinator stop first" if state is StudyState.PREPARING else "It goes on") in caught.value.remedy
    assert ledger.study("first").config["study"]["rounds"] == 3
    assert edited_studies(federation, ledger) == {"first": caught.value.line()}


def test_settings_that_differ_are_named_so_that_they_can_be_written_into_the_file(
        federation: Federation, ledger: Ledger) -> None:
    """A file that leaves them out is of other settings as well once a version has brought other defaults."""
    then = GOOD.replace("channels = 1", "channels = 3") + 'sbn_source = "coordinator+silos"\nweighting = "size"\n'
    write(federation, "first", then)
    queue_study(federation, ledger, "first")
    commit_round_0(ledger, "first")
    end(ledger, "first", StudyState.STOPPED)
    write(federation, "first")
    with pytest.raises(UsageError, match="has begun with other settings") as caught:
        queue_study(federation, ledger, "first")
    assert caught.value.text.endswith(
        'has now: [data.image] channels is 1, and was 3; [method] sbn_source is "coordinator", and was'
        ' "coordinator+silos"; [method] weighting is "uniform", and was "size".')
    write(federation, "first", then)
    queue_study(federation, ledger, "first")
    assert ledger.study("first").state is StudyState.QUEUED


def test_what_was_edited_is_told_when_serve_starts(federation: Federation, ledger: Ledger) -> None:
    names = ("edited", "wrong", "same", "over", "gone")
    for name in names:
        write(federation, name)
        queue_study(federation, ledger, name)
    end(ledger, "over", StudyState.COMPLETED)
    for name in ("edited", "over"):
        write(federation, name, GOOD.replace("rounds = 3", "rounds = 9"))
    write(federation, "wrong", BAD)
    write(federation, "same", f"# a comment changes nothing\n{GOOD}")
    (federation.studies / "gone" / "study.toml").unlink()
    found = edited_studies(federation, ledger)
    assert sorted(found) == ["edited", "wrong"]
    assert found["edited"].endswith("has now: [study] rounds is 9, and was 3. To take the file as it is: coordinator"
                                    " queue edited")
    assert "Did you mean 'rounds'?" in found["wrong"]


@pytest.mark.parametrize("state", [StudyState.FAILED, StudyState.STOPPED])
def test_before_its_first_commit_a_study_is_queued_again_with_the_file_as_it_is_now(
        federation: Federation, ledger: Ledger, state: StudyState) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    ledger.set_study_facts("first", frozen=FrozenStudy(
        classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,)), num_labelled=10,
        num_validation=0, num_test=0, num_parameters=1, dense_bytes=4))
    end(ledger, "first", state)
    write(federation, "first", GOOD.replace("rounds = 3", "rounds = 9"))
    seen: list[object] = []
    queue_study(federation, ledger, "first", check=lambda config, frozen: seen.append(frozen))
    assert seen == [None], "with the images as they are now, too"
    row = ledger.study("first")
    assert (row.state, row.config["study"]["rounds"], row.reason) == (StudyState.QUEUED, 9, "")


def test_after_its_first_commit_a_study_goes_on_only_with_the_settings_that_it_began_with(
        federation: Federation, ledger: Ledger) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    commit_round_0(ledger, "first")
    end(ledger, "first", StudyState.FAILED)
    write(federation, "first", GOOD.replace("rounds = 3", "rounds = 9"))
    with pytest.raises(UsageError, match="other settings") as caught:
        queue_study(federation, ledger, "first")
    assert "undo the edit" in caught.value.remedy
    write(federation, "first", f"# a comment changes nothing\n{GOOD}")
    queue_study(federation, ledger, "first")
    assert ledger.study("first").state is StudyState.QUEUED


def test_a_begun_study_of_an_earlier_version_that_did_not_know_a_setting_yet_goes_on(
        federation: Federation, ledger: Ledger) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    commit_round_0(ledger, "first")
    end(ledger, "first", StudyState.FAILED)
    config = ledger.study("first").config
    del config["study"]["baseline_budget"], config["study"]["baseline_patience"]
    with ledger.transaction() as db:
        db.execute("UPDATE study SET config_json = ?", (canonical_json(config),))
    queue_study(federation, ledger, "first")
    assert ledger.study_state("first") is StudyState.QUEUED
    assert ledger.study("first").config == config


def test_a_complete_study_is_not_run_again(federation: Federation, ledger: Ledger) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    end(ledger, "first", StudyState.COMPLETED)
    with pytest.raises(UsageError, match="is complete"):
        queue_study(federation, ledger, "first")
    assert queue_new_studies(federation, ledger) == ([], {})


def test_a_study_that_has_begun_goes_on_with_a_participation_that_no_new_one_may_have(
        federation: Federation, ledger: Ledger) -> None:
    """Of an earlier version, which took it: the file of a study that has begun cannot be changed."""
    odd = GOOD + "[participation]\nquorum = 3\nsilos_per_round = 2\n"
    path = write(federation, "a", odd)
    for _ in ("new", "failed before its first commit"):
        with pytest.raises(BadConfiguration, match="quorum = 3: a round asks 2 silos"):
            queue_study(federation, ledger, "a")
        if ledger.find_study("a") is None:
            ledger.queue_study("a", to_dict(load_study(path)))
            end(ledger, "a", StudyState.FAILED)
    commit_round_0(ledger, "a")
    queue_study(federation, ledger, "a")
    assert ledger.study_state("a") is StudyState.QUEUED


@pytest.mark.parametrize("before", [None, StudyState.FAILED, StudyState.STOPPED])
@pytest.mark.parametrize("committed", [False, True])
def test_of_two_people_who_queue_a_study_at_once_the_second_reads_that_it_is_queued(
        federation: Federation, ledger: Ledger, before: StudyState | None, committed: bool) -> None:
    """Checks of images take minutes; the second got a traceback."""
    write(federation, "a")
    if before is not None:
        queue_study(federation, ledger, "a")
        if committed:
            commit_round_0(ledger, "a")
        end(ledger, "a", before)

    def other_queues(*_: object) -> None:
        queue_study(federation, ledger, "a")

    with pytest.raises(UsageError, match="Study 'a' is queued") as caught:
        queue_study(federation, ledger, "a", check=other_queues)
    assert caught.value.remedy == "It needs no queueing."
    assert ledger.study_state("a") is StudyState.QUEUED


def test_a_study_that_others_have_begun_meanwhile_is_held_against_how_it_began(
        federation: Federation, ledger: Ledger) -> None:
    path = write(federation, "a")

    def other_begins_it_and_it_fails(*_: object) -> None:
        path.write_text(GOOD.replace("rounds = 3", "rounds = 4"))
        queue_study(federation, ledger, "a")
        commit_round_0(ledger, "a")
        end(ledger, "a", StudyState.FAILED)

    with pytest.raises(UsageError, match="has begun with other settings"):
        queue_study(federation, ledger, "a", check=other_begins_it_and_it_fails)
    assert ledger.study_state("a") is StudyState.FAILED


def test_serve_queues_new_and_failed_studies_and_leaves_stopped_ones(federation: Federation, ledger: Ledger) -> None:
    for name in ("failed", "begun", "stopped", "new"):
        write(federation, name)
        if name != "new":
            queue_study(federation, ledger, name)
    commit_round_0(ledger, "begun")
    end(ledger, "failed", StudyState.FAILED)
    end(ledger, "begun", StudyState.FAILED)
    end(ledger, "stopped", StudyState.STOPPED)
    assert queue_new_studies(federation, ledger) == (["failed", "begun", "new"], {}), "in the order of the queue"
    assert [row.name for row in ledger.studies() if row.state is StudyState.QUEUED] == ["failed", "begun", "new"]
    assert ledger.study("stopped").state is StudyState.STOPPED
    assert ledger.committed_digest("begun") == "s0"


def test_a_bad_file_is_visible_stops_no_other_study_and_is_tried_again(federation: Federation, ledger: Ledger) -> None:
    write(federation, "a-bad", BAD)
    write(federation, "b-good")
    queued, refused = queue_new_studies(federation, ledger)
    assert queued == ["b-good"]
    assert list(refused) == ["a-bad"]
    assert isinstance(refused["a-bad"], BadConfiguration)
    row = ledger.study("a-bad")
    assert (row.state, row.reason) == (StudyState.FAILED, refused["a-bad"].line())
    assert "Did you mean 'rounds'?" in row.reason

    assert queue_new_studies(federation, ledger)[0] == []  # still bad: told again, and nothing else happens
    write(federation, "a-bad")
    assert queue_new_studies(federation, ledger) == (["a-bad"], {})
    assert ledger.study("a-bad").config["study"]["rounds"] == 3


def test_an_edit_that_keeps_a_begun_study_from_going_on_is_visible(federation: Federation, ledger: Ledger) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    commit_round_0(ledger, "first")
    end(ledger, "first", StudyState.FAILED)
    write(federation, "first", GOOD.replace("rounds = 3", "rounds = 9"))
    assert list(queue_new_studies(federation, ledger)[1]) == ["first"]
    assert "other settings" in ledger.study("first").reason
    assert ledger.study("first").config["study"]["rounds"] == 3


def test_a_file_that_is_edited_to_be_wrong_does_not_disturb_a_study_in_the_queue(federation: Federation,
                                                                                 ledger: Ledger) -> None:
    write(federation, "first")
    queue_study(federation, ledger, "first")
    write(federation, "first", BAD)
    assert queue_new_studies(federation, ledger) == ([], {})
    assert ledger.study("first").state is StudyState.QUEUED
