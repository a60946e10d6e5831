"""`silo check`: every finding in its good and its bad state; what a hostile answer does; how forecasts are made."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from semisilo.common.data.form import ImageForm
from semisilo.common.errors import SemisiloError, Unreachable
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.uplink import Uplink
from semisilo.common.rpc.convert import image_to_proto, model_to_proto
from semisilo.common.rpc.grpc_errors import abort_with
from semisilo.common.text.cli_errors import run_cli
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.task_times import TaskTook, note_task, read_tasks
from semisilo.silo.check.agent import look_at_tasks
from semisilo.silo.check.finding import Finding
from semisilo.silo.check.forecast import forecast, line_of
from semisilo.silo.check.needs import OwnRound, StudyNeeds, needs_of
from semisilo.silo.check.report import CheckReport, check
from semisilo.silo.check.site import images_on_disk, look_at_disk, look_at_gpu, look_at_images, look_at_memory
from semisilo.silo.check.study import look_at_hours, look_at_study, look_at_sum
from semisilo.silo.cli.main import app
from semisilo.silo.site.home import JoinChoice, SiloHome, StatusFile
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import DataPolicy, Limits, Permit, Policy, Require
from semisilo.silo.site.study_features import StudyFeatures, note_study_features
from semisilo.silo.site.working_hours import Hours
from tests import identity_kit
from tests.each_of import each_of
from tests.silo.cli.test_main import enrolled, hub

NOW = 1_790_000_000.0
FORM = ImageForm(size=8, channels=1, mean=(0.5,), std=(0.5,))


def by_name(report: CheckReport) -> dict[str, Finding]:
    return {finding.what: finding for finding in report.findings}


def described(**changes: Any) -> pb.DescribeStudyResponse:
    """What a coordinator says of a study that runs."""
    values: dict[str, Any] = {
        "version": "0.1.0", "study": "first", "state": "running", "round": 3, "round_count": 9, "method": "semifl",
        "settings_json": "{}", "model": model_to_proto(ModelSettings(name="small_cnn", classes=("a", "b"))),
        "image": image_to_proto(FORM), "dense_bytes": 400_000,
        "uplink": pb.Uplink(aim="auto", values="exact", top_k=1.0, rounding="nearest", error_feedback=True)}
    return pb.DescribeStudyResponse(**{**values, **changes})


def needs(**changes: Any) -> StudyNeeds:
    found, _ = needs_of(described(), silo="a")
    assert found is not None
    return replace(found, **changes)


# Against a live port --------------------------------------------------------------------------------------------------


class Describing:
    """RoundService with one call, as a coordinator of choice answers it."""

    def __init__(self, answer: Callable[[], pb.DescribeStudyResponse]) -> None:
        self.answer = answer
        self.asked: list[pb.DescribeStudyRequest] = []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    async def DescribeStudy(self, request: pb.DescribeStudyRequest, context: Any) -> pb.DescribeStudyResponse:
        self.asked.append(request)
        try:
            return self.answer()
        except SemisiloError as error:
            await abort_with(context, error)


def checked(tmp_path: Path, answer: Callable[[], pb.DescribeStudyResponse] | None, *,
            now: Callable[[], float] = time.time, prepare: Callable[[Path], None] = lambda home: None) -> CheckReport:
    """The report of a silo that has enrolled, with a coordinator behind mutual TLS; None for one that does not know
    the call."""
    from tests.silo.fake_coordinator import FakeCoordinator

    async def work() -> CheckReport:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        prepare(tmp_path / "home")
        coordinator: Any = FakeCoordinator()
        if answer is not None:
            coordinator.DescribeStudy = Describing(answer).DescribeStudy
        async with hub(federation, coordinator, identity):
            return await asyncio.to_thread(check, tmp_path / "home", now=now, use_http_proxy=False)
    return asyncio.run(work())


def answered(**changes: Any) -> Callable[[], pb.DescribeStudyResponse]:
    def answer() -> pb.DescribeStudyResponse:
        response = described(**changes)
        response.coordinator_time.FromMicroseconds(round(time.time() * 1e6))
        return response
    return answer


def test_all_is_well_when_the_coordinator_answers_and_the_site_permits_its_study(tmp_path: Path) -> None:
    report = checked(tmp_path, answered(),
                     prepare=lambda home: (home / "silo.toml").write_text('[data]\nsource = "digits"\n') and None)
    found = by_name(report)
    assert report.well, [finding for finding in report.findings if finding.state == "bad"]
    assert {name: finding.state for name, finding in found.items()} == dict.fromkeys(
        ("home", "identity", "certificate", "silo.toml", "proxy", "address", "TLS", "coordinator", "clock", "version",
         "images", "study", "disk", "memory", "gpu", "permission", "hours", "budget"), "ok")
    assert "1797 in digits" in found["images"].text
    assert abs(found["clock"].facts["skew_seconds"]) < 5
    assert "coordinator.lung.semisilo" in found["TLS"].text
    assert report.forecast is not None
    assert (report.forecast.down_bytes, report.forecast.up_bytes) == (400_000, 400_000)
    record = [json.loads(line)["kind"] for line in (tmp_path / "home" / "disclosures.jsonl").read_text().splitlines()]
    assert record == ["enrolment", "check"]
    json.dumps(report.to_json())


def test_what_training_saw_of_the_images_is_among_the_findings(tmp_path: Path) -> None:
    def prepare(home: Path) -> None:
        (home / "silo.toml").write_text('[data]\nsource = "digits"\n')
        note_study_features(SiloHome(home).study_features, StudyFeatures(
            study=described().study, round=4, images=64, layer="features.1", distance=0.5))

    report = checked(tmp_path, answered(), prepare=prepare)
    assert by_name(report)["features"].state == "warning"
    assert report.well, "the silo can take part"


def failing(times: int, answer: Callable[[], pb.DescribeStudyResponse]) -> Callable[[], pb.DescribeStudyResponse]:
    """Fails so many calls as a connection does that is cut."""
    left = [times]

    def answer_or_not() -> pb.DescribeStudyResponse:
        left[0] -= 1
        if left[0] >= 0:
            raise Unreachable("The connection was cut.")
        return answer()
    return answer_or_not


def test_a_call_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    report = checked(tmp_path, failing(1, answered()))
    found = by_name(report)
    assert (found["coordinator"].state, found["study"].state) == ("ok", "ok")


def test_calls_that_fail_where_connections_work_are_told_with_their_reason(tmp_path: Path) -> None:
    found = by_name(checked(tmp_path, failing(2, answered())))
    assert (found["coordinator"].state, "study" in found) == ("bad", False)
    assert found["coordinator"].text == "The connection was cut. It accepts connections; two calls failed."
    assert "overloaded" in found["coordinator"].remedy


def test_a_clock_that_is_wrong_is_told_with_both_times(tmp_path: Path) -> None:
    report = checked(tmp_path, answered(), now=lambda: time.time() + 400)
    clock = by_name(report)["clock"]
    assert (clock.state, report.well) == ("bad", False)
    assert "400 s ahead of the coordinator's" in clock.text
    assert "NTP" in clock.remedy


def test_a_clock_that_is_a_little_wrong_is_a_note(tmp_path: Path) -> None:
    clock = by_name(checked(tmp_path, answered(), now=lambda: time.time() - 100))["clock"]
    assert (clock.state, "100 s behind" in clock.text) == ("warning", True)


def test_a_certificate_that_has_ended_is_bad_and_the_remedy_an_invitation(tmp_path: Path) -> None:
    report = checked(tmp_path, answered(), now=lambda: time.time() + 40 * 86400)
    certificate = by_name(report)["certificate"]
    assert (certificate.state, report.well) == ("bad", False)
    assert certificate.remedy == "Ask the coordinator's operator to run: coordinator invite hospital-a"
    assert certificate.facts["days_left"] < 0


def test_an_older_coordinator_is_said_to_be_one_and_what_can_be_known_is_known(tmp_path: Path) -> None:
    report = checked(tmp_path, None)
    found = by_name(report)
    assert found["TLS"].state == "ok"
    assert found["coordinator"].state == "warning"
    assert "older" in found["coordinator"].text
    assert "study" not in found
    assert report.forecast is None
    assert report.well


def test_nothing_that_answers_is_bad_with_what_to_look_at(tmp_path: Path) -> None:
    async def enrol() -> None:
        await enrolled(tmp_path / "hub", tmp_path / "home")
    asyncio.run(enrol())
    report = check(tmp_path / "home", now=time.time, use_http_proxy=False)
    address = by_name(report)["address"]
    assert (address.state, report.well) == ("bad", False)
    assert "refuses connections" in address.text
    assert "coordinator serve" in address.remedy
    assert "TLS" not in by_name(report)


def test_a_coordinator_of_another_authority_is_told_from_one_that_does_not_answer(tmp_path: Path) -> None:
    async def work() -> CheckReport:
        _, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        other = identity_kit.make_federation(tmp_path / "other")
        from tests.silo.fake_coordinator import FakeCoordinator
        async with hub(other, FakeCoordinator(), identity):
            return await asyncio.to_thread(check, tmp_path / "home", now=time.time, use_http_proxy=False)
    report = asyncio.run(work())
    assert not report.well
    assert by_name(report)["TLS"].state == "bad"
    assert "not one of the authority of federation 'lung'" in by_name(report)["TLS"].text


def test_a_home_without_identity_is_one_line_of_remedy_and_status_1(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(app, ["check", "--home", str(tmp_path / "none")], name="silo") == 1
    said = capsys.readouterr().out
    assert "BAD  identity" in said
    assert "silo enroll LINE" in said
    assert not (tmp_path / "none").exists()
    assert run_cli(app, ["check", "--home", str(tmp_path / "none"), "--json"], name="silo") == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["well"] is False
    assert facts["findings"][0]["what"] == "identity"
    (policy,) = (found for found in facts["findings"] if found["what"] == "silo.toml")
    assert (policy["state"], "is not there yet" in policy["text"]) == ("warning", True)


def test_a_key_that_others_may_read_and_a_policy_with_a_slip_are_found(tmp_path: Path) -> None:
    def spoil(home: Path) -> None:
        (load_identity(home).folder / "key.pem").chmod(0o640)
        (home / "silo.toml").write_text("[limits]\nbytes_per_dya = 5\n")
    report = checked(tmp_path, answered(), prepare=spoil)
    found = by_name(report)
    assert (found["identity"].state, "chmod 600" in found["identity"].remedy) == ("warning", True)
    assert found["silo.toml"].state == "bad"
    assert "bytes_per_day" in found["silo.toml"].remedy
    assert "budget" not in found


def test_tasks_that_were_refused_are_bad_while_the_agent_runs_with_the_command_that_finds_the_file(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = SiloHome(tmp_path)
    assert look_at_tasks(home) == []
    status = StatusFile(home.status)
    status.update(now_unix=NOW, refusals=9, refusal_code="BAD_DATA",
                  last_refusal='scan 7.png: it is damaged. Or set on_error = "skip".')
    with home.lock():
        (found,) = look_at_tasks(home)
        assert (found.what, found.state) == ("tasks", "bad")
        assert found.text == "The last 9 tasks were refused: BAD_DATA: scan 7.png: it is damaged. " \
            'Or set on_error = "skip".'
        assert f"silo data --home {tmp_path} " in found.remedy
        assert 'on_error = "skip"' in found.remedy
        assert found.remedy.endswith(f"then restart: silo join --home {tmp_path}")
        assert run_cli(app, ["check", "--home", str(tmp_path)], name="silo") == 1
        assert "BAD  tasks" in capsys.readouterr().out
    status.update(now_unix=NOW, last_refusal="scans: folder 'zebra' is not a class of the study.")
    assert "skip" not in look_at_tasks(home)[0].remedy, "leaving files out does not help there"
    (ended,) = look_at_tasks(home)
    assert (ended.state, ended.text.startswith("Before `silo join` ended, the last 9 tasks")) == ("warning", True)
    status.update(now_unix=NOW, refusals=1)
    assert "The last task was refused" in look_at_tasks(home)[0].text.replace("Before `silo join` ended, t", "T")
    assert run_cli(app, ["check", "--home", str(tmp_path)], name="silo") == 1
    assert "1 thing to fix first." in capsys.readouterr().out  # the identity
    status.update(now_unix=NOW, refusals=0, state="stopped; it could not reach the coordinator", last_error="Away.")
    assert look_at_tasks(home)[0].text == "`silo join` stopped; it could not reach the coordinator: Away."
    status.update(now_unix=NOW, state="stopped", last_error="The coordinator cannot be reached.")
    assert look_at_tasks(home)[0].text == "`silo join` ended in trouble: The coordinator cannot be reached."
    assert (look_at_tasks(home)[0].state, "cannot be reached" in look_at_tasks(home)[0].text) == ("warning", True)


def test_a_silo_that_is_set_aside_is_told_so_as_long_as_its_agent_runs(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was: "All is well"."""
    home = SiloHome(tmp_path)
    status = StatusFile(home.status)
    status.update(now_unix=NOW, set_aside="set aside at the coordinator: it stands out")
    assert look_at_tasks(home) == [], "without an agent nobody knows whether that still holds"
    with home.lock():
        (found,) = look_at_tasks(home)
        assert (found.what, found.state) == ("tasks", "bad")
        assert found.text == "No task comes until further notice: set aside at the coordinator: it stands out"
        assert "coordinator take-back" in found.remedy
        status.update(now_unix=NOW, last_error="Away.")
        assert [each.state for each in look_at_tasks(home)] == ["bad", "warning"]
        assert run_cli(app, ["check", "--home", str(tmp_path)], name="silo") == 1
    out = capsys.readouterr().out
    assert "BAD  tasks" in out
    assert "All is well" not in out


def dicom_without_pixels() -> bytes:
    pydicom = pytest.importorskip("pydicom")
    tags = pydicom.dataset.Dataset()
    tags.file_meta = pydicom.dataset.FileMetaDataset()
    tags.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    tags.SOPClassUID, tags.SOPInstanceUID, tags.Modality = "1.2.840.10008.5.1.4.1.1.88.11", "1.2.3", "SR"
    tags.file_meta.MediaStorageSOPClassUID, tags.file_meta.MediaStorageSOPInstanceUID = tags.SOPClassUID, "1.2.3"
    stream = io.BytesIO()
    pydicom.dcmwrite(stream, tags, enforce_file_format=True)
    return stream.getvalue()


def scans_with_one_broken(folder: Path, number: int = 30) -> None:
    folder.mkdir()
    for each in range(number):
        Image.new("L", (8, 8), each % 256).save(folder / f"{each:04}.png")
    (folder / "0007.png").write_bytes(b"no picture at all")


def test_images_whose_header_cannot_be_read_are_named(tmp_path: Path) -> None:
    scans_with_one_broken(tmp_path / "scans")
    home = SiloHome(tmp_path)
    for on_error, state in (("stop", "bad"), ("report", "bad"), ("skip", "warning")):
        found, counts = look_at_images(home, Policy(data=DataPolicy(source=str(tmp_path / "scans"),
                                                                    on_error=on_error)))  # type: ignore[arg-type]
        assert (found.state, found.facts["broken"], counts) == (state, ["0007.png"], (0, 30))
        assert "1 of 30 that were opened cannot be read: 0007.png" in found.text
        assert "silo data" in found.remedy
    Image.new("L", (8, 8)).save(tmp_path / "scans" / "0007.png")
    found, _ = look_at_images(home, Policy(data=DataPolicy(source=str(tmp_path / "scans"))))
    assert found.state == "ok"
    assert f"the headers of 30 can be read, `silo data --home {tmp_path}` reads every file completely" in found.text


def test_files_that_hold_no_picture_are_left_out_and_stop_nothing(tmp_path: Path) -> None:
    """A structured report among the scans: `silo join` leaves it out, so it is no mistake."""
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "report.dcm").write_bytes(dicom_without_pixels())
    policy = Policy(data=DataPolicy(source=str(tmp_path / "scans")))
    found, _ = look_at_images(SiloHome(tmp_path), policy)
    assert (found.state, found.facts["broken"], found.facts["no_pictures"]) == ("bad", [], 1), "there is nothing else"
    Image.new("L", (8, 8)).save(tmp_path / "scans" / "a.png")
    found, _ = look_at_images(SiloHome(tmp_path), policy)
    assert found.state == "ok"
    assert "1 of 2 that were opened hold no picture and will be left out" in found.text


def test_where_no_file_can_be_read_nobody_is_told_to_leave_files_out(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for name in "abc":
        (tmp_path / "scans" / f"{name}.png").write_bytes(b"no picture at all")
    for on_error in ("stop", "skip"):
        policy = Policy(data=DataPolicy(source=str(tmp_path / "scans"), on_error=on_error))  # type: ignore[arg-type]
        found, _ = look_at_images(SiloHome(tmp_path), policy)
        assert (found.state, "skip" in found.remedy, "exported" in found.remedy) == ("bad", False, True)


@pytest.mark.parametrize(("folders", "scenario", "said"), [
    (("a", "zebra"), "labels-at-silo", "folder 'zebra' is not a class of the study."),
    (("a", "zebra"), "labels-at-coordinator", ""),
    (("labelled/a", "more"), "labels-at-silo", "it is not clear what the folder 'more' beside 'labelled' is."),
    (("labeled", "b"), "labels-at-silo", "the folder 'labeled' is not a class of the study."),
    (("a", "b"), "labels-at-silo", "")])
def test_what_join_would_refuse_of_folders_is_bad_before_and_in_the_same_words(
        tmp_path: Path, folders: tuple[str, ...], scenario: str, said: str) -> None:
    from semisilo.common.errors import BadData
    from semisilo.silo.compute.images import read_silo_images

    for folder in folders:
        (tmp_path / "scans" / folder).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "scans" / folder / "x.png")
    source = str(tmp_path / "scans")
    study = needs(task=replace(needs().task, settings={"scenario": scenario}))
    found, _ = look_at_images(SiloHome(tmp_path), Policy(data=DataPolicy(source=source)), study)
    assert (found.state == "bad") is bool(said)

    def join() -> None:
        read_silo_images(JoinChoice(source=source), FORM, classes=("a", "b"), scenario=scenario)  # type: ignore[arg-type]

    if not said:
        return join()
    with pytest.raises(BadData) as caught:
        join()
    assert (found.text, found.remedy) == (caught.value.text, caught.value.remedy)
    assert said in found.text


def test_folders_of_patients_are_asked_about_until_silo_toml_says_that_nothing_has_a_label(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / "scans" / f"PAT{number:04}").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "scans" / f"PAT{number:04}" / "x.png")
    source, home = str(tmp_path / "scans"), SiloHome(tmp_path)
    found, counts = look_at_images(home, Policy(data=DataPolicy(source=source)))
    assert (found.state, counts) == ("warning", (9, 0))
    assert "are these 9 folders patients" in found.text
    assert "'unlabelled'" in found.remedy
    assert "labels = false" in found.remedy
    found, counts = look_at_images(home, Policy(data=DataPolicy(source=source, labels=False)))
    assert (found.state, counts) == ("ok", (0, 9))


def test_a_large_folder_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans_with_one_broken(tmp_path / "scans")
    monkeypatch.setattr("semisilo.silo.check.site._HEADERS", 10)
    policy = Policy(data=DataPolicy(source=str(tmp_path / "scans")))
    assert look_at_images(SiloHome(tmp_path), policy)[0].facts["headers_read"] == 10
    monkeypatch.setattr("semisilo.silo.check.site._HEADER_SECONDS", -1.0)
    assert look_at_images(SiloHome(tmp_path), policy)[0].facts["headers_read"] == 0


# What the study asks --------------------------------------------------------------------------------------------------


@each_of(("policy", "state", "said"), [
    (Policy(), "ok", "semifl and what it needs are permitted"),
    (Policy(permit=Permit(methods=("fedavg",))), "bad", "does not permit the method 'semifl'"),
    (Policy(permit=Permit(groups=("model",))), "bad", "tensor group"),
    (Policy(permit=Permit(metrics=())), "bad", "metric"),
])
def test_what_the_site_permits_is_held_against_the_study(policy: Policy, state: str, said: str) -> None:
    finding = next(found for found in look_at_study(policy, needs()) if found.what == "permission")
    assert (finding.state, said in finding.text) == (state, True)


def test_lossy_updates_that_are_not_permitted_are_found() -> None:
    lossy = needs_of(described(uplink=pb.Uplink(aim="auto", values="int8", top_k=0.01, rounding="stochastic",
                                                error_feedback=True)), silo="a")[0]
    assert lossy is not None
    (finding,) = look_at_study(Policy(permit=Permit(encodings=())), lossy)
    assert (finding.state, "int8" in finding.text or "top-k" in finding.text) == ("bad", True)


PINS = {"b": "ed25519:" + 64 * "b"}


@each_of(("policy", "changes", "said"), [
    (Policy(), {}, ""),
    (Policy(), {"secure_silo_count": 3}, ""),
    (Policy(permit=Permit(encodings=())), {"secure_silo_count": 3}, ""),
    (Policy(permit=Permit(encodings=())), {"secure_silo_count": 3, "masked_share": 0.1}, "a random share"),
    (Policy(), {"secure_silo_count": 3, "masked_share": 0.1}, ""),
    (Policy(peers=PINS), {}, ""),
    (Policy(peers=PINS), {"secure_silo_count": 3}, "Only 2 silos can count in a sum"),
    (Policy(peers={**PINS, "a": "ed25519:" + 64 * "a"}), {"secure_silo_count": 3}, "Only 2 silos"),
    (Policy(peers={**PINS, "c": "ed25519:" + 64 * "c"}), {"secure_silo_count": 3}, ""),
    (Policy(require=Require(pinned_peers=True)), {"secure_silo_count": 3}, "Only 1 silo can count in a sum"),
])
def test_secure_sums_that_every_round_would_be_refused_in_are_told(
        policy: Policy, changes: dict[str, Any], said: str) -> None:
    study, _ = needs_of(described(**changes), silo="a")
    assert study is not None
    found = look_at_sum(policy, study)
    assert [(each.what, each.state, said in each.text) for each in found] == (
        [("secure sum", "bad", True)] if said else [])


@each_of("changes", [
    {"study": "../../etc"}, {"method": "a b"}, {"settings_json": "[]"}, {"settings_json": "{" * 100_000},
    {"dense_bytes": -1}, {"dense_bytes": 2**60}, {"typical_update_bytes": -5},
    {"model": pb.ModelSpec(name="\x1b[31m")}, {"model": pb.ModelSpec(name="x", classes=["a"] * 20_000)},
    {"image": pb.ImageForm(size=8, channels=1, mean=[float("nan")], std=[1.0], resize="fit")},
    {"own_rounds": [pb.RoundTraffic(round=1)] * 65}, {"own_rounds": [pb.RoundTraffic(round=1, wire_up_bytes=-1)]},
    {"uplink": pb.Uplink(aim="auto", values="exact", top_k=float("nan"), rounding="nearest")},
    {"masked_share": 1.5}, {"masked_share": float("nan")},
])
def test_an_answer_that_cannot_be_is_a_finding_and_not_a_crash(changes: dict[str, Any]) -> None:
    found, finding = needs_of(described(**changes), silo="a")
    assert found is None
    assert finding is not None
    assert finding.state == "bad"
    assert "\x1b" not in finding.text


def test_no_study_is_no_trouble() -> None:
    found, finding = needs_of(pb.DescribeStudyResponse(version="0.1.0"), silo="a")
    assert found is None
    assert finding is not None
    assert finding.state == "ok"


# Hours and budget -----------------------------------------------------------------------------------------------------


def test_hours_and_budget_say_what_is_left_and_until_when(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    noon = 1_795_521_600.0  # 2026-11-24 12:00 UTC
    (tmp_path / "day.json").write_text('{"day": "2026-11-24", "sent_bytes": 300000, "received_bytes": 100000}')
    expected = forecast(needs(), home, images=10)
    nights = Hours(train=("20:00-06:00",), zone="UTC")
    hours, budget = look_at_hours(home, Policy(hours=nights, limits=Limits(bytes_per_day=4_000_000)), needs(), expected,
                                  noon)
    assert hours.state == "warning"
    assert "until 2026-11-24 20:00 UTC" in hours.text
    assert budget.state == "ok"
    assert "about 4 rounds more today, 5 a day" in budget.text  # 3.6 MB left, 0.8 MB a round
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semisilo.silo.site.working_hours.time.tzname", ("UTC", "UTC"))
        _, zone, _ = look_at_hours(home, Policy(hours=replace(nights, zone="")), needs(), expected, noon)
    assert (zone.what, zone.state) == ("zone", "warning")
    assert "Europe/Berlin" in zone.remedy
    _, short = look_at_hours(home, Policy(hours=nights, limits=Limits(bytes_per_day=500_000)), needs(), expected, noon)
    assert (short.state, "allows none" in short.text) == ("bad", True)
    _, used = look_at_hours(home, Policy(hours=nights, limits=Limits(bytes_per_day=400_000)), needs(), None, noon)
    assert (used.state, "2026-11-25 00:00 UTC" in used.text) == ("warning", True)


# Forecast -------------------------------------------------------------------------------------------------------------


def took(number: int, **changes: Any) -> TaskTook:
    values: dict[str, Any] = {
        "study": "first", "round": number, "phase": "train", "method": "semifl", "unix": NOW, "images": 100,
        "train_seconds": 10.0 * number, "download_bytes": 1_000_000, "download_seconds": 0.5,
        "upload_bytes": 1_000_000, "upload_seconds": 2.0, "sent_bytes": 1_100_000, "received_bytes": 1_200_000}
    return TaskTook(**{**values, **changes})


def test_without_any_round_the_forecast_is_a_whole_model_and_says_so(tmp_path: Path) -> None:
    found = forecast(needs(), SiloHome(tmp_path), images=10)
    assert (found.down_bytes, found.up_bytes, found.seconds) == (400_000, 400_000, None)
    assert "at most" in found.bytes_from
    assert "--measure" in line_of(found)
    assert "at 100 Mbit/s it would be 0.1 s" in line_of(found)  # 800 kB * 8 / 100e6 = 0.064 s
    masked = forecast(needs(masked_update_bytes=225_005), SiloHome(tmp_path), images=10)
    assert (masked.up_bytes, "the words of a masked update" in masked.bytes_from) == (225_005, True)
    typical = forecast(needs(typical_update_bytes=70_000), SiloHome(tmp_path), images=10)
    assert (typical.up_bytes, "other silos" in typical.bytes_from) == (70_000, True)
    sparse = needs(task=replace(needs().task, uplink=Uplink(aim="auto", values="int8", top_k=0.1)))
    assert forecast(sparse, SiloHome(tmp_path), images=10).up_bytes == 30_000  # 10 000 elements of 1 + 2 bytes


def test_frozen_layers_that_come_once_are_in_the_forecast_until_they_have_come(tmp_path: Path) -> None:
    """The network of a trial: 8 kB to train, 37 MB frozen."""
    found, said = needs_of(described(dense_bytes=8_000, frozen_bytes=37_000_000), silo="a")
    assert found is not None
    assert said is not None
    assert "8.0 kB dense and 37.0 MB of frozen layers, which come once" in said.text
    first = forecast(found, SiloHome(tmp_path), images=10)
    assert (first.once_bytes, first.down_bytes) == (37_000_000, 8_000)
    assert "before the first round once 37.0 MB in, of layers that nobody trains" in line_of(first)

    def own(number: int, down: int) -> OwnRound:
        return OwnRound(number=number, payload_down=down, payload_up=8_000, wire_down=down + 500, wire_up=8_500,
                        training_seconds=1.0)

    after = replace(found, own_rounds=(own(1, 37_008_000),))
    second = forecast(after, SiloHome(tmp_path), images=10)
    assert (second.once_bytes, second.down_bytes) == (0, 8_500)
    assert "frozen" not in line_of(second)
    assert "once" not in line_of(second)
    third = forecast(replace(after, own_rounds=(own(1, 37_008_000), own(2, 8_000))), SiloHome(tmp_path), images=10)
    assert third.down_bytes == 8_500
    with_frozen = look_at_disk(SiloHome(tmp_path), dense_bytes=8_000, frozen_bytes=37_000_000)
    assert with_frozen.facts["needed_bytes"] == 6 * 8_000 + 37_000_000
    assert "frozen layers: 37.0 MB" in with_frozen.text
    plain, more = (look_at_memory(image_bytes=0, dense_bytes=8_000, frozen_bytes=each) for each in (0, 37_000_000))
    assert more.facts["needed_bytes"] - plain.facts["needed_bytes"] == 2 * 37_000_000  # type: ignore[operator]


def test_own_rounds_go_before_estimates_and_the_median_before_an_outlier(tmp_path: Path) -> None:
    rounds = tuple(OwnRound(number=number, payload_down=900, payload_up=90, wire_down=wire, wire_up=wire // 10,
                            training_seconds=4.0) for number, wire in enumerate((1000, 1000, 50_000), 1))
    found = forecast(needs(own_rounds=rounds, typical_update_bytes=7), SiloHome(tmp_path), images=10)
    assert (found.down_bytes, found.up_bytes) == (1000, 100)
    assert "last 3 rounds" in found.bytes_from
    assert found.train_seconds == 4.0


def test_transfers_too_small_to_measure_the_line_are_said_to_be_so(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    assert "the line has not been measured yet" in line_of(forecast(needs(), home, images=10))
    for number in (1, 2, 3, 4, 5):
        note_task(home.rounds, took(number, download_bytes=900, upload_bytes=900, sent_bytes=1500, received_bytes=1500))
    said = line_of(forecast(needs(), home, images=10))
    assert ("transfers so far were too small to measure the connection; at 100 Mbit/s it would be less than 0.1 s"
            in said)
    assert "has not been measured" not in said


def test_the_silo_s_own_notes_give_training_and_line(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    for number in (1, 2, 3):
        note_task(home.rounds, took(number))
    note_task(home.rounds, took(9, study="other", train_seconds=999.0))
    found = forecast(needs(), home, images=50)  # half the images of those rounds
    assert (found.down_bytes, found.up_bytes) == (1_200_000, 1_100_000)
    assert found.train_seconds == 10.0  # the median is round 2's: 20 s for 100 images
    # 1.2 MB at 2 MB/s and 1.1 MB at 0.5 MB/s
    assert found.transfer_seconds == pytest.approx(0.6 + 2.2)
    assert found.seconds == pytest.approx(12.8)
    assert forecast(needs(), home, images=50, measured_seconds=3.0).train_seconds == 3.0


def test_notes_of_tasks_are_kept_short_and_a_damaged_file_means_none(tmp_path: Path) -> None:
    for number in range(1, 50):
        note_task(tmp_path / "rounds.json", took(number))
    assert [task.round for task in read_tasks(tmp_path / "rounds.json")] == list(range(20, 50))
    (tmp_path / "rounds.json").write_text("{")
    assert read_tasks(tmp_path / "rounds.json") == ()


# This machine ---------------------------------------------------------------------------------------------------------


def test_disk_memory_and_gpu_say_what_they_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_at_disk(SiloHome(tmp_path), dense_bytes=0).state == "ok"
    full = look_at_disk(SiloHome(tmp_path), dense_bytes=2**50)
    assert (full.state, "Free some space" in full.remedy) == ("bad", True)
    assert look_at_memory(image_bytes=2**50, dense_bytes=0).state == "bad"
    assert images_on_disk(2**50, permitted=True)
    assert not images_on_disk(2**50, permitted=False)
    assert not images_on_disk(2**10, permitted=True)
    with_images = look_at_disk(SiloHome(tmp_path), dense_bytes=2**10, image_bytes=2**50)
    assert with_images.state == "bad"
    assert "images that are too many for memory: 1125899.91 GB" in with_images.text
    monkeypatch.setenv("PATH", str(tmp_path))
    driver = tmp_path / "gpus" / "0000:01:00.0"
    assert look_at_gpu(driver=tmp_path / "gpus").facts == {"gpus": []}
    driver.mkdir(parents=True)
    (driver / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert look_at_gpu(driver=tmp_path / "gpus").facts == {"gpus": ["NVIDIA H200"]}
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 143000 MiB'\n")
    tool.chmod(0o755)
    assert look_at_gpu(driver=tmp_path / "gpus").facts == {"gpus": ["NVIDIA H200, 143771 MiB, 143000 MiB"]}
    tool.write_text("#!/bin/sh\necho 'Driver/library version mismatch' >&2; exit 9\n")
    broken = look_at_gpu(driver=tmp_path / "gpus")
    assert (broken.state, "version mismatch" in broken.text) == ("warning", True)


def test_images_that_are_not_there_or_not_named_are_found(tmp_path: Path) -> None:
    from semisilo.silo.site.policy import DataPolicy

    home = SiloHome(tmp_path)
    none, counted = look_at_images(home, Policy())
    assert (none.state, counted) == ("warning", (0, 0))
    gone, _ = look_at_images(home, Policy(data=DataPolicy(source="/not/there.npz")))
    assert gone.state == "bad"
    digits, counted = look_at_images(home, Policy(data=DataPolicy(source="digits")))
    assert (digits.state, sum(counted)) == ("ok", 1797)


def test_images_other_than_those_that_silo_join_works_on_are_not_approved(tmp_path: Path) -> None:
    from semisilo.silo.site.policy import DataPolicy

    home, policy = SiloHome(tmp_path), Policy(data=DataPolicy(source="digits#train", test="digits#test"))
    JoinChoice(source="digits").save(home.choice)
    assert look_at_images(home, policy)[0].state == "ok", "nothing runs here"
    with home.lock():
        other, _ = look_at_images(home, policy)
        assert (other.state, other.text.endswith("runs here works on digits")) == ("warning", True)
        assert "without --data" in other.remedy
        JoinChoice(source="digits#train", test="digits#test").save(home.choice)
        assert look_at_images(home, policy)[0].state == "ok"


@pytest.mark.slow
def test_check_loads_no_torch_and_no_grpc_before_it_connects(tmp_path: Path) -> None:
    code = ("import sys; from semisilo.common.text.cli_errors import run_cli; from semisilo.silo.cli.main import app; "
            f"run_cli(app, ['check', '--home', {str(tmp_path / 'none')!r}]); print('LOADED', *sorted(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])})
    loaded = set(done.stdout.partition("LOADED")[2].split())
    assert "semisilo.silo.check.site" in loaded
    assert not loaded & {"torch", "grpc", "rich.console", "matplotlib"}
