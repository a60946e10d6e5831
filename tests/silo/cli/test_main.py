"""The command `silo` as a person meets it: lines, exit statuses, files; and the wiring behind `silo join` over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semisilo.common.errors import BadData, UsageError, WrongAuthority
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.rpc.tls import listen, server_credentials, server_options
from semisilo.common.text.cli_errors import run_cli
from semisilo.common.text.describe import describe_bytes, describe_seconds
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire import round_service_pb2_grpc
from semisilo.coordinator.federation.authority import CoordinatorCertificate
from semisilo.coordinator.rpc.enrollment_service import RenewalService
from semisilo.coordinator.rpc.silo_calls import SiloCalls
from semisilo.silo.agent.shared_model import FetchedModel
from semisilo.silo.agent.terminal import LiveDisplay, PlainDisplay
from semisilo.silo.cli.main import app
from semisilo.silo.join import choose_data, work
from semisilo.silo.link.link import LinkSettings
from semisilo.silo.link.retrying_calls import Backoff
from semisilo.silo.membership.enrollment import enroll
from semisilo.silo.site.evaluations import EvaluationRecord, RecordedEvaluation
from semisilo.silo.site.home import AlreadyRunning, JoinChoice, SiloHome, StatusFile, resolve_source
from semisilo.silo.site.identity_store import Identity, load_identity
from semisilo.silo.site.images_choice import check_there
from semisilo.silo.site.policy import DataPolicy, Policy
from semisilo.silo.site.working_hours import Hours
from tests import identity_kit
from tests.silo.fake_coordinator import FakeCompute, FakeCoordinator, make_task, random_bytes

QUICK = LinkSettings(backoff=Backoff(first_seconds=0.02, largest_seconds=0.2))
OVER = pb.Standby(reason=pb.Standby.REASON_NO_STUDY, text="reached 91.2 %")


def silo(*words: str) -> int:
    return run_cli(app, words, name="silo")


async def enrolled(folder: Path, home: Path, silo_name: str = "hospital-a") -> tuple[identity_kit.Federation, Identity]:
    federation = identity_kit.make_federation(folder)
    async with identity_kit.serving(federation):
        identity = await enroll(federation.invite(silo_name), home, now=time.time(), use_http_proxy=False)
    SiloHome(home).policy.write_text("# the defaults\n")  # `silo enroll` writes it
    return federation, identity


@contextlib.asynccontextmanager
async def hub(federation: identity_kit.Federation, coordinator: FakeCoordinator,
              identity: Identity) -> AsyncIterator[None]:
    """The scripted coordinator behind mutual TLS, at the address that the identity names."""
    shown = CoordinatorCertificate(federation.folder, now=time.time()).current
    server = grpc.aio.server(options=server_options())
    round_service_pb2_grpc.add_RoundServiceServicer_to_server(coordinator, server)  # type: ignore[no-untyped-call]
    RenewalService(federation.authority, federation.roster).add_to(server, SiloCalls(federation.keys.federation))
    listen(server, identity.address, server_credentials(shown, silo_authority_pem=federation.keys.pem))
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


# Enrolment and status -------------------------------------------------------------------------------------------------


def enroll_by_command(tmp_path: Path, *, times: int = 1) -> list[int]:
    async def work() -> list[int]:
        federation = identity_kit.make_federation(tmp_path / "hub")
        async with identity_kit.serving(federation):
            line = federation.invite()
            return [await asyncio.to_thread(silo, "enroll", line, "--home", str(tmp_path / "home"))
                    for _ in range(times)]
    return asyncio.run(work())


def test_enroll_makes_an_identity_and_a_policy_to_read_and_says_what_comes_next(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enroll_by_command(tmp_path) == [0]
    said = capsys.readouterr()
    assert "silo 'hospital-a' of federation 'lung'" in said.out
    option = f" --home {tmp_path / 'home'}"
    assert f"Next: silo check{option}, then: silo join{option} --data FOLDER" in said.out
    assert "[permit]" in (tmp_path / "home" / "silo.toml").read_text()
    key = tmp_path / "home" / "identity" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_enrolling_again_leaves_an_edited_policy_alone(tmp_path: Path) -> None:
    policy = tmp_path / "home" / "silo.toml"
    policy.parent.mkdir()
    policy.write_text("[permit]\nmethods = []\n")
    assert enroll_by_command(tmp_path, times=2) == [0, 0]
    assert policy.read_text() == "[permit]\nmethods = []\n"


def test_a_line_that_is_no_invitation_is_refused_in_one_line(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert silo("enroll", "hello", "--home", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: This is not an invitation line.")
    assert said.err.count("\n") == 1


def test_the_next_command_can_be_copied_whatever_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "our models" / "lung.safetensors")
    monkeypatch.setattr("semisilo.silo.agent.shared_model.fetch_model", lambda *given, **options: FetchedModel(
        path=path, study="lung", round=3, labels_alone=False, sha256="0" * 64, size_bytes=1, conclusion=""))
    assert run_cli(app, ["model", "lung", "--home", str(tmp_path)], name="silo") == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1]) == ["Next:", "semisilo", "predict", path, "IMAGES"]


def test_status_shows_identity_days_task_and_bytes_for_people_and_programs(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enroll_by_command(tmp_path)
    capsys.readouterr()
    home = str(tmp_path / "home")
    assert silo("status", "--home", home) == 0
    fresh = capsys.readouterr().out
    assert "hospital-a" in fresh
    assert "not running" in fresh
    assert "never" in fresh
    StatusFile(tmp_path / "home" / "status.json").update(
        now_unix=time.time(), last_contact_unix=time.time() - 12, last_task="first/3/train/hospital-a",
        last_outcome="update sent", sent_bytes=4321, received_bytes=1_200_000, study="first", state="training",
        labelled_count=30, unlabelled_count=70)
    assert silo("status", "--home", home) == 0
    shown = capsys.readouterr().out
    assert "first/3/train/hospital-a: update sent" in shown
    assert "4.3 kB sent, 1.2 MB received" in shown
    assert "100 (30 with a label, 70 without)" in shown
    assert silo("status", "--home", home, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["silo"], facts["federation"], facts["sent_bytes"]) == ("hospital-a", "lung", 4321)
    assert 29 < facts["days_left"] <= 30.1
    assert (facts["running"], facts["state"]) == (False, "stopped")
    with SiloHome(tmp_path / "home").lock():
        assert silo("status", "--home", home, "--json") == 0
    assert json.loads(capsys.readouterr().out)["running"] is True


def test_status_shows_what_the_newest_model_is_worth_here_and_lists_those_of_its_study(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enroll_by_command(tmp_path)
    home = tmp_path / "home"
    record = EvaluationRecord(SiloHome(home).evaluations)
    capsys.readouterr()
    assert silo("status", "--home", str(home), "--json") == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == []
    for study, number in (("old", 3), ("lung", 1), ("lung", 2)):
        record.add(RecordedEvaluation(
            unix=5.0, class_names=("benign", "malignant"), measure="recall:malignant", evaluation=SiteEvaluation(
                study=study, round=number, classes=(ClassResult(images=90, correct=80),
                                                    ClassResult(images=10, correct=5 + number)))))
    assert silo("status", "--home", str(home)) == 0
    shown = " ".join(capsys.readouterr().out.split())  # where it is wrapped hangs on what else stands in the table
    assert "at this site study lung, model of round 2: accuracy 87.0 % (79.0 to 92.2 %), balanced accuracy" in shown
    assert silo("status", "--home", str(home), "--json") == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]
    assert [(each["study"], each["round"]) for each in found] == [("lung", 1), ("lung", 2)]
    assert (found[1]["count"], found[1]["measure"]) == (100, "recall:malignant")
    assert found[1]["measured"]["value"] == 0.7
    nothing_else = {**dict.fromkeys(("auroc", "others", "average_precision")), "correct_others": 0}
    assert found[1]["classes"] == {"benign": {"images": 90, "correct": 80, **nothing_else},
                                   "malignant": {"images": 10, "correct": 7, **nothing_else}}


@pytest.mark.parametrize(("words", "status", "start"), [
    (["status", "--home", "HOME"], 2, "error: HOME holds no identity of a silo. Enrol first: silo enroll"),
    (["join", "--home", "HOME", "--data", "x"], 2, "error: HOME holds no identity of a silo."),
    (["stauts"], 2, "error: No such command 'stauts'."),
    (["join", "--dat", "x"], 2, "error: No such option: --dat"),
    (["join", "--on-error", "ignore"], 2, "error: Invalid value for '--on-error'"),
    (["enroll"], 2, "error: Missing argument 'LINE"),
])
def test_a_mistake_is_one_line_with_the_way_out_and_no_traceback(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, start: str) -> None:
    home = str(tmp_path / "none")
    assert silo(*(word.replace("HOME", home) for word in words)) == status
    said = capsys.readouterr()
    assert said.err.startswith(start.replace("HOME", home))
    assert said.err.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_help_and_version_answer_and_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert silo("--version") == 0
    assert capsys.readouterr().out.startswith("semisilo ")
    for command in ([], ["enroll"], ["join"], ["status"]):
        assert silo(*command, "--help") == 0
        shown = capsys.readouterr().out
        assert "silo join" in shown or "silo enroll" in shown or "silo status" in shown
    assert silo("join", "--help") == 0
    shown = capsys.readouterr().out
    for option in ("--data", "--home", "--exit-when-finished", "--on-error", "--verbose"):
        assert option in shown


def test_help_cuts_no_summary_of_a_command_at_80_columns(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert silo("--help") == 0
    listed = capsys.readouterr().out.partition("Commands:")[2].strip().splitlines()
    assert len(listed) >= 7
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_a_remedy_names_the_home_that_is_not_the_default_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "the other"
    assert silo("status", "--home", str(other)) == 2
    assert capsys.readouterr().err.endswith(f"operator> --home '{other}'\n")
    monkeypatch.setenv("SEMISILO_HOME", str(other))
    assert silo("status") == 2
    assert "--home" not in capsys.readouterr().err
    with pytest.raises(UsageError) as caught:
        choose_data(SiloHome(tmp_path), DataPolicy(), data=None, on_error=None)
    assert caught.value.remedy == f"Say where they are: silo join --home {tmp_path} --data /scans"


@pytest.mark.slow
@pytest.mark.parametrize(("words", "absent"), [
    (["--help"], {"torch", "grpc", "cryptography", "rich", "numpy"}), (["--version"], {"torch", "grpc", "rich"}),
    (["status", "--home", "none"], {"torch", "rich", "numpy"}),
])
def test_quick_commands_load_nothing_heavy(words: list[str], absent: set[str], tmp_path: Path) -> None:
    """Importing is what takes time; a fresh process tells what it has imported."""
    code = ("import sys; from semisilo.common.text.cli_errors import run_cli; from semisilo.silo.cli.main import app; "
            f"run_cli(app, {words!r}); print('LOADED', *sorted(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, check=True)
    loaded = set(done.stdout.partition("LOADED")[2].split())
    assert "semisilo.silo.cli.main" in loaded
    assert not loaded & absent


# Which images ---------------------------------------------------------------------------------------------------------


def test_the_command_goes_before_the_policy_and_the_policy_before_the_last_time(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="No images"):
        choose_data(home, DataPolicy(), data=None, on_error=None)
    JoinChoice(source="/last", on_error="skip").save(home.choice)
    assert choose_data(home, DataPolicy(), data=None, on_error=None) == JoinChoice(source="/last", on_error="stop")
    assert choose_data(home, DataPolicy(on_error="report"), data=None, on_error=None).on_error == "report"
    assert choose_data(home, DataPolicy(on_error="report"), data=None, on_error="skip").on_error == "skip"
    policy = DataPolicy(source="./scans", on_error="stop")
    assert choose_data(home, policy, data=None, on_error=None).source == str(home.folder / "scans")
    assert choose_data(home, policy, data="./new", on_error="skip") == JoinChoice(source=str(tmp_path / "new"),
                                                                                  on_error="skip")


def test_who_names_the_images_says_which_are_labelled_and_the_command_may_add(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    monkeypatch.chdir(tmp_path)
    last = JoinChoice(source="/last", labelled="/known", test="/test", on_error="skip")
    last.save(home.choice)
    assert JoinChoice.load(home.choice) == last
    skipping = DataPolicy(on_error="skip")
    assert choose_data(home, skipping, data=None, on_error=None) == last
    assert choose_data(home, skipping, data=None, labelled="./other", on_error=None) == replace(
        last, labelled=str(tmp_path / "other"))
    policy = DataPolicy(source="./scans", labelled="./known", test="digits#test")
    of_the_file = JoinChoice(source=str(home.folder / "scans"), labelled=str(home.folder / "known"), test="digits#test")
    assert choose_data(home, policy, data=None, on_error=None) == of_the_file
    assert choose_data(home, policy, data=None, test="/t", on_error=None) == replace(of_the_file, test="/t")
    assert choose_data(home, policy, data="/new", on_error=None) == replace(of_the_file, source="/new")
    assert choose_data(home, policy, data="/new", labelled="", test="", on_error=None) == JoinChoice(source="/new")
    assert choose_data(home, policy, data="/new", labelled="/k", test="/t", on_error=None) == JoinChoice(
        source="/new", labelled="/k", test="/t")
    with pytest.raises(BadData, match="hold the same images"):
        choose_data(home, policy, data="/new", labelled="/new/known", on_error=None)
    with pytest.raises(BadData, match="hold the same images") as caught:
        choose_data(home, policy, data=of_the_file.labelled, on_error=None)
    assert str(home.policy) in caught.value.remedy
    assert '--labelled "" --test ""' in caught.value.remedy
    with pytest.raises(UsageError, match="No images"):
        choose_data(SiloHome(tmp_path / "empty"), DataPolicy(), data=None, labelled="/k", on_error=None)


def test_a_service_names_images_while_silo_toml_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    monkeypatch.setenv("SEMISILO_IMAGES", "/scans")
    of_the_service = JoinChoice(source="/scans")
    assert choose_data(home, DataPolicy(), data=None, on_error=None) == of_the_service
    JoinChoice(source="/last", test="/test").save(home.choice)  # by hand, once
    assert choose_data(home, DataPolicy(), data=None, on_error=None) == of_the_service
    policy = DataPolicy(source="/archive", labelled="/known", test="/t")
    assert choose_data(home, policy, data=None, on_error=None) == JoinChoice(source="/archive", labelled="/known",
                                                                             test="/t")
    assert choose_data(home, DataPolicy(), data="/new", on_error=None) == JoinChoice(source="/new")


def test_join_says_that_the_command_goes_before_the_source_of_silo_toml(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    enroll_by_command(tmp_path)
    home, worked_on = tmp_path / "home", []

    async def work(home: SiloHome, identity: Any, choice: JoinChoice, **rest: Any) -> int:
        worked_on.append(choice)
        return 0

    monkeypatch.setattr("semisilo.silo.join.work", work)
    (home / "silo.toml").write_text('[data]\nsource = "scans"\ntest = "digits#test"\n')
    for name in ("scans", "new"):
        (home / name).mkdir()
    assert silo("join", "--home", str(home), "--data", str(home / "new")) == 0
    said = "".join(capsys.readouterr())
    assert said.count("WARNING") == 1
    assert f'the images are {home / "new"}, as --data says, and not [data] source = "scans" of {home}' in said
    for words in ((), ("--data", str(home / "scans"))):
        assert silo("join", "--home", str(home), *words) == 0
        assert "WARNING" not in "".join(capsys.readouterr())
    assert [(Path(each.source).name, each.test) for each in worked_on] == [
        ("new", "digits#test"), ("scans", "digits#test"), ("scans", "digits#test")]


def test_join_hands_over_what_the_command_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Path, dict[str, Any]]] = []
    monkeypatch.setattr("semisilo.silo.join.join", lambda folder, **options: heard.append((folder, options)) or 0)
    words = ["--data", "/scans", "--labelled", "/known", "--test", "/t", "--no-labels", "--on-error", "skip",
             "--exit-when-finished"]
    assert silo("join", "--home", str(tmp_path), *words) == 0
    assert silo("join", "--home", str(tmp_path)) == 0
    assert heard == [
        (tmp_path, {"data": "/scans", "labelled": "/known", "test": "/t", "no_labels": True, "on_error": "skip",
                    "exit_when_finished": True, "once_seconds": None, "metrics": None}),
        (tmp_path, {"data": None, "labelled": None, "test": None, "no_labels": False, "on_error": None,
                    "exit_when_finished": False, "once_seconds": None, "metrics": None})]


def test_a_folder_that_is_not_there_is_named_before_a_process_is_started(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    enroll_by_command(tmp_path)
    monkeypatch.setattr("semisilo.silo.join.ProcessCompute", lambda name: pytest.fail("a process was started"))
    for words in (["--data", str(tmp_path / "nothing")],
                  ["--data", str(tmp_path), "--test", f"{tmp_path / 'nothing.npz'}#test"]):
        assert silo("join", "--home", str(tmp_path / "home"), *words) == 1
        assert "nothing" in (said := capsys.readouterr().err)
        assert "no such folder or file. Give a folder of images" in said
    check_there(JoinChoice(source="digits#1/3"))


@pytest.mark.parametrize("command", ["join", "data"])
def test_a_folder_that_silo_toml_names_is_never_looked_for_in_the_folder_of_the_shell(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str) -> None:
    enroll_by_command(tmp_path)
    (tmp_path / "shell" / "scans").mkdir(parents=True)
    (tmp_path / "home" / "silo.toml").write_text('[data]\nsource = "scans"\n')
    monkeypatch.chdir(tmp_path / "shell")
    monkeypatch.setattr("semisilo.silo.join.ProcessCompute", lambda name: pytest.fail("a process was started"))
    capsys.readouterr()
    assert silo(command, "--home", str(tmp_path / "home")) != 0
    assert f"{tmp_path / 'home' / 'scans'}: no such folder or file" in "".join(capsys.readouterr())


def test_the_line_is_asked_for_at_a_terminal_and_read_from_a_pipe(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, asked in ((Terminal("no invitation\nmore\n"), True), (io.StringIO("no invitation\n"), False)):
        monkeypatch.setattr(sys, "stdin", stream)
        assert silo("enroll", "-", "--home", str(tmp_path)) != 0
        assert ("Paste the line" in capsys.readouterr().err) == asked


def test_a_file_with_the_line_is_told_how_to_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "an invitation.txt").write_text("semisilo-invite-v1.x\n")
    words = ["enroll", str(tmp_path / "an invitation.txt"), "--home", str(tmp_path / "home")]
    assert silo(*words) == 2
    assert f"silo enroll --home {tmp_path / 'home'} - < '{tmp_path / 'an invitation.txt'}'" in capsys.readouterr().err
    assert silo("enroll", "semisilo-invite-v1." + "A" * 5000, "--home", str(tmp_path / "home")) == 1
    assert "damaged or cut" in capsys.readouterr().err


def test_a_choice_from_before_there_were_labelled_images_is_read(tmp_path: Path) -> None:
    (tmp_path / "join.json").write_text('{"source": "/scans", "on_error": "skip"}')
    assert JoinChoice.load(tmp_path / "join.json") == JoinChoice(source="/scans", on_error="skip")


@pytest.mark.parametrize(("source", "resolved"), [
    ("digits", "digits"), ("digits#1/3", "digits#1/3"), ("here", "{base}/here"), ("here#train", "{base}/here#train"),
    ("missing/folder", "{base}/missing/folder"), ("missing", "{base}/missing"),
    ("missing#train", "{base}/missing#train"), ("set.npz#train", "{base}/set.npz#train"), ("/abs", "/abs"),
])
def test_relative_paths_become_absolute_and_the_digits_stay(tmp_path: Path, source: str, resolved: str) -> None:
    (tmp_path / "here").mkdir()
    assert resolve_source(source, base=tmp_path) == resolved.format(base=tmp_path)


@pytest.mark.slow
def test_a_full_disk_does_not_keep_the_lock_from_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the number of its process is not there. What is written next names its own file."""
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    home = SiloHome(tmp_path / "home")
    with home.lock(), pytest.raises(AlreadyRunning, match=r"Another `silo join` is running in"), home.lock():
        pass


def test_a_second_join_in_the_same_home_is_refused_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c",
                               "import sys; from pathlib import Path; from semisilo.silo.site.home import SiloHome\n"
                               "with SiloHome(Path(sys.argv[1])).lock():\n print('held', flush=True)\n "
                               "sys.stdin.read()", str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert home.is_running()
    with pytest.raises(AlreadyRunning, match=rf"process {holder.pid}"), home.lock():
        pass
    holder.kill()
    holder.communicate()
    assert not home.is_running()
    with home.lock():
        pass


def test_a_command_that_must_be_alone_is_named_to_another_that_must(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    with home.stopped("silo enroll LINE"):
        for wanted in (home.lock(), home.stopped("silo move hub:1")):
            said = rf"^`silo enroll` \(process {os.getpid()}\) is running in"
            with pytest.raises(AlreadyRunning, match=said), wanted:
                pass
    with home.lock(), pytest.raises(AlreadyRunning, match="Another `silo join`"), home.stopped("silo move hub:1"):
        pass


def test_a_slip_in_the_policy_stops_join_before_anything_else(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enroll_by_command(tmp_path)
    (tmp_path / "home" / "silo.toml").write_text("[permit]\nmetods = ['semifl']\n")
    capsys.readouterr()
    assert silo("join", "--home", str(tmp_path / "home"), "--data", "digits") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "unknown key 'metods'" in said
    assert "Did you mean 'methods'?" in said


# The wiring behind join -----------------------------------------------------------------------------------------------


def joining(home: Path, identity: Identity, output: io.StringIO, compute: FakeCompute, **options: Any) -> Any:
    return work(SiloHome(home), identity, JoinChoice(source="/scans"), policy=Policy(), display=PlainDisplay(output),
                compute=compute, settings=QUICK, poll_seconds=1.0, **options)


def test_join_works_over_mutual_tls_and_ends_when_the_study_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        coordinator = FakeCoordinator(after=OVER)
        payload = coordinator.add_file(random_bytes(100_000))
        coordinator.tasks = [make_task(payloads=(payload,))]
        output = io.StringIO()
        async with hub(federation, coordinator, identity):
            assert await joining(tmp_path / "home", identity, output, FakeCompute(), exit_when_finished=True) == 0
        assert len(coordinator.accepted) == 1
        assert "study first is over: reached 91.2 %" in output.getvalue()
        assert JoinChoice.load(SiloHome(tmp_path / "home").choice) == JoinChoice(source="/scans")
        status = StatusFile.load(SiloHome(tmp_path / "home").status)
        assert status.received_bytes > 100_000  # with TLS around it
    asyncio.run(run())


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_stops_join_tidily_in_the_middle_of_training(tmp_path: Path, number: int, expected: int) -> None:
    async def run() -> None:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        coordinator = FakeCoordinator(tasks=[make_task()])
        compute = FakeCompute(hang=True)
        async with hub(federation, coordinator, identity):
            running = asyncio.ensure_future(joining(tmp_path / "home", identity, io.StringIO(), compute))
            async with asyncio.timeout(300):
                while not compute.trained:
                    await asyncio.sleep(0.01)
                os.kill(os.getpid(), number)
                assert await running == expected
        assert compute.aborted
        assert StatusFile.load(SiloHome(tmp_path / "home").status).pid == 0
    asyncio.run(run())


def test_join_says_that_hours_without_a_zone_are_utc_in_a_container(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisilo.silo.site.working_hours.time.tzname", ("UTC", "UTC"))

    async def run() -> None:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        output = io.StringIO()
        async with hub(federation, FakeCoordinator(after=OVER), identity):
            await work(SiloHome(tmp_path / "home"), identity, JoinChoice(source="/scans"),
                       policy=Policy(hours=Hours(train=("00:00-12:00", "12:00-24:00"))), compute=FakeCompute(),
                       display=PlainDisplay(output), settings=QUICK, poll_seconds=1.0, once_seconds=0.1)
        assert "WARNING: [hours] of silo.toml are UTC" in output.getvalue()
    asyncio.run(run())


def test_a_certificate_that_is_due_is_renewed_before_work(tmp_path: Path) -> None:
    async def run() -> None:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        file = identity.folder / "federation.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "renew_unix": 1.0}))
        due = load_identity(tmp_path / "home")
        coordinator = FakeCoordinator(tasks=[make_task()], after=OVER)
        output = io.StringIO()
        async with hub(federation, coordinator, identity):
            assert await joining(tmp_path / "home", due, output, FakeCompute(), exit_when_finished=True) == 0
        renewed = load_identity(tmp_path / "home")
        assert renewed.credentials.certificate_pem != identity.credentials.certificate_pem
        assert renewed.about.renew_unix > time.time()
        assert "the certificate was renewed" in output.getvalue()
        assert len(coordinator.accepted) == 1
    asyncio.run(run())


def test_a_coordinator_of_another_authority_stops_join_with_the_reason(tmp_path: Path) -> None:
    async def run() -> None:
        _, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        impostor = identity_kit.make_federation(tmp_path / "impostor")
        async with hub(impostor, FakeCoordinator(), identity):
            with pytest.raises(WrongAuthority):
                await asyncio.wait_for(joining(tmp_path / "home", identity, io.StringIO(), FakeCompute()), 300)
    asyncio.run(run())


def test_a_stranger_stops_the_first_join_after_an_enrolment_whoever_has_answered_a_moment_before(tmp_path: Path
                                                                                                 ) -> None:
    """Certificates begin ten minutes before they are made: an answer to the membership before may be younger."""
    async def run() -> None:
        await enrolled(tmp_path / "before", tmp_path / "home")
        status = SiloHome(tmp_path / "home").status
        StatusFile(status).update(now_unix=5.0, last_contact_unix=time.time(), tasks_answered=3)
        federation = identity_kit.make_federation(tmp_path / "hub")
        async with identity_kit.serving(federation):
            identity = await enroll(federation.invite("hospital-a"), tmp_path / "home", now=time.time(), force=True,
                                    use_http_proxy=False)
        now = StatusFile.load(status)
        assert (now.last_contact_unix, now.updated_unix, now.tasks_answered) == (0.0, 5.0, 3)
        impostor = identity_kit.make_federation(tmp_path / "impostor")
        async with hub(impostor, FakeCoordinator(), identity):
            with pytest.raises(WrongAuthority):
                await asyncio.wait_for(joining(tmp_path / "home", identity, io.StringIO(), FakeCompute()), 300)
    asyncio.run(run())


@pytest.mark.slow
def test_join_outlasts_a_stranger_at_an_address_where_the_coordinator_has_answered(tmp_path: Path) -> None:
    """A firewall begins to inspect TLS, or a name is moved: that must not need a person at every hospital."""
    async def run() -> None:
        federation, identity = await enrolled(tmp_path / "hub", tmp_path / "home")
        impostor = identity_kit.make_federation(tmp_path / "impostor")
        home, coordinator, output = SiloHome(tmp_path / "home"), FakeCoordinator(after=OVER), io.StringIO()
        async with hub(federation, coordinator, identity):
            async with asyncio.timeout(300):
                running = asyncio.ensure_future(joining(home.folder, identity, output, FakeCompute()))
                while not StatusFile.load(home.status).last_contact_unix:
                    await asyncio.sleep(0.01)
        stranger = FakeCoordinator()
        async with hub(impostor, stranger, identity):
            async with asyncio.timeout(300):
                while "nothing is sent to what answers now" not in output.getvalue():
                    assert not running.done()
                    await asyncio.sleep(0.01)
            assert "The coordinator has answered there before" in StatusFile.load(home.status).last_error
        assert (stranger.hellos, running.done()) == ([], False)
        async with hub(federation, coordinator, identity):
            before = len(coordinator.hellos)
            async with asyncio.timeout(300):
                while len(coordinator.hellos) == before:
                    await asyncio.sleep(0.01)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert output.getvalue().count("nothing is sent to what answers now") <= 2, "said, but not with every try"
    asyncio.run(run())


# What is shown --------------------------------------------------------------------------------------------------------


def test_the_live_display_shows_events_states_and_bars_and_leaves_no_line_behind() -> None:
    from rich.console import Console

    stream = io.StringIO()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=100, _environ={"TERM": "xterm-256color"}))
    display.state("waiting [for] silos")
    display.event("round 1/3: training")
    display.progress("training", 0.5, "epoch 1 of 2")
    display.progress("training", 7.0, "beyond the end")
    display.done()
    display.close()
    shown = stream.getvalue()
    assert "waiting [for] silos" in shown
    assert "round 1/3: training" in shown
    assert shown.endswith(("\x1b[2K", "\x1b[?25h", "\r"))


def test_sizes_and_times_are_written_for_people() -> None:
    assert [describe_bytes(count) for count in (0, 999, 4321, 12_000_000, 1_200_000_000)] == [
        "0 B", "999 B", "4.3 kB", "12.0 MB", "1.20 GB"]
    assert [describe_seconds(seconds) for seconds in (4.21, 185, 7800)] == ["4.2 s", "3 min 5 s", "2 h 10 min"]
