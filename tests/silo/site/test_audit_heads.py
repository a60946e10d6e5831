"""What a silo keeps of the coordinator's audit trail, and what it finds in it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from semisilo.common.audit.export import ExportAbout, json_pieces
from semisilo.common.audit.head import SignedHead
from semisilo.common.audit.record import SeenHead, check_record, read_heads
from semisilo.common.identity.certificates import certificate_pem, make_key
from semisilo.common.rpc.convert import head_to_proto
from semisilo.silo.site import audit_heads
from semisilo.silo.site.audit_heads import HeadRecord
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.identity_store import FederationFile, install_identity
from semisilo.silo.site.trail_check import check_trail, trail_facts
from tests.audit_kit import NOW, audit_key, signed, trail
from tests.synced_paths import synced_paths

AUTHORITY = audit_key().authority


def saw(record: HeadRecord, head: SignedHead) -> str:
    return record.saw(head_to_proto(head), study="s", round=3, seen_unix=NOW).problem


def lines(path: Path) -> list[SeenHead]:
    return [each for each in read_heads(path) if isinstance(each, SeenHead)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "heads.jsonl"


def test_a_trail_that_grows_is_kept_line_by_line_and_the_same_head_once(path: Path) -> None:
    record = HeadRecord(path, AUTHORITY)
    assert [saw(record, signed(number)) for number in (1, 5, 5, 9)] == [""] * 4
    assert saw(HeadRecord(path, AUTHORITY), signed(9)) == "", "nor after a restart"
    assert [each.signed for each in lines(path)] == [signed(1), signed(5), signed(9)]
    assert (lines(path)[0].study, lines(path)[0].round, lines(path)[0].seen) == ("s", 3, "2027-01-15T08:00:00+00:00")
    assert path.stat().st_mode & 0o777 == 0o600
    checked = check_record(path, AUTHORITY)
    assert (len(checked.heads), checked.problems, checked.notes) == (3, (), ())


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("head", "problem"), [
    (signed(4), "it was cut: event 5 had been seen, and now event 4 of"),
    (signed(5, "ab" * 32), "event 5 was rewritten")])
def test_a_cut_and_a_fork_are_said_and_both_heads_stay(path: Path, restarted: bool, head: SignedHead,
                                                       problem: str) -> None:
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(5))
    if restarted:
        record = HeadRecord(path, AUTHORITY)
    assert problem in saw(record, head)
    assert [each.signed for each in lines(path)] == [signed(5), head]
    assert problem in lines(path)[1].problem
    (found,) = check_record(path, AUTHORITY).problems
    assert problem in found
    assert saw(record, signed(head.head.number + 1)) == "", "what grows from there is said once"


def test_a_head_that_nobody_of_the_federation_has_signed_is_said_and_is_no_measure_for_others(path: Path) -> None:
    record = HeadRecord(path, AUTHORITY)
    assert "authority" in saw(record, signed(50, key=audit_key("heart")))
    assert saw(record, signed(5)) == ""
    assert saw(HeadRecord(path, AUTHORITY), signed(6)) == ""
    assert len(check_record(path, AUTHORITY).problems) == 1


def test_a_restore_from_a_backup_is_told_apart_from_a_cut(path: Path) -> None:
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(9))
    news = record.saw(head_to_proto(signed(6, "cd" * 32, restored_unix=NOW + 50, backup_unix=NOW - 50)), study="s",
                      round=3, seen_unix=NOW)
    assert news.problem == ""
    assert "was restored on 2027-01-15 08:00:50 UTC from a backup of 2027-01-15 07:59:10 UTC" in news.text
    assert saw(record, signed(7, restored_unix=NOW + 50, backup_unix=NOW - 50)) == ""
    assert "are there two coordinators?" in saw(record, signed(10)), "the one from before the restore runs as well"
    checked = check_record(path, AUTHORITY)
    assert (len(checked.problems), len(checked.notes)) == (1, 1)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("seen_days", "number", "restored_day", "backup_day", "problem"), [
    (0, 6, 10, 9, "had been seen, and now event 6 is the last one, though the coordinator was restored on 2027-01-25"),
    (0, 12, 10, 9, ""),
    (0, 6, 10, 1, ""),
    (8, 6, 10, 9, ""),
    (0, 12, -10, -11, "and event 9 of 2027-01-15 08:00:00 UTC, which is later, had been seen without that"),
    (-11, 12, -10, -11, ""),
    (0, 12, -1, -2, "")])
def test_a_restore_whose_times_cannot_be_is_no_explanation(path: Path, restarted: bool, seen_days: int, number: int,
                                                           restored_day: int, backup_day: int, problem: str) -> None:
    """Both clocks must contradict it, the coordinator's and this silo's, by more than two days."""
    day = 86400.0
    record = HeadRecord(path, AUTHORITY)
    record.saw(head_to_proto(signed(9)), study="s", round=3, seen_unix=NOW + seen_days * day)
    if restarted:
        record = HeadRecord(path, AUTHORITY)
    news = record.saw(head_to_proto(signed(number, restored_unix=NOW + restored_day * day,
                                           backup_unix=NOW + backup_day * day)), study="s", round=3, seen_unix=NOW)
    assert (problem in news.problem, bool(news.problem), bool(news.text)) == (True, bool(problem), not problem)
    checked = check_record(path, AUTHORITY)
    assert (len(checked.problems), len(checked.notes)) == ((1, 0) if problem else (0, 1))


def test_a_silo_that_enrols_elsewhere_begins_anew(path: Path) -> None:
    saw(HeadRecord(path, AUTHORITY), signed(100))
    heart = audit_key("heart")
    assert saw(HeadRecord(path, heart.authority), signed(3, key=heart)) == ""
    assert check_record(path, heart.authority).others == 1


def test_what_was_being_written_when_the_machine_stopped_goes(path: Path) -> None:
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(5))
    whole = path.read_bytes()
    saw(record, signed(8))
    for end in range(len(whole) + 1, path.stat().st_size, 40):
        path.write_bytes(path.read_bytes()[:end])
        record = HeadRecord(path, AUTHORITY)
        assert path.read_bytes() == whole
        assert saw(record, signed(8)) == ""
    assert check_record(path, AUTHORITY).problems == ()


def test_a_disk_that_takes_half_a_line_keeps_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(5))
    write: Callable[[int, bytes], int] = os.write
    with monkeypatch.context() as patch:
        patch.setattr(audit_heads.os, "write", lambda handle, line: write(handle, line[:100]))
        with pytest.raises(OSError, match="space"):
            saw(record, signed(4))
    assert len(lines(path)) == 1
    assert "cut" in saw(record, signed(4)), "it is looked at again when it comes again"


def test_a_line_that_the_disk_did_not_keep_is_written_anew_and_once(path: Path) -> None:
    """After fsync has failed Linux holds the page for written, and the next fsync says that all is well."""
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(5))
    before = path.read_bytes()
    with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "broken")), pytest.raises(OSError, match="broken"):
        saw(record, signed(7))
    assert path.read_bytes() == before
    assert saw(record, signed(7)) == ""
    assert [each.signed for each in lines(path)] == [signed(5), signed(7)]


def test_a_hostile_head_is_refused_and_not_kept(path: Path) -> None:
    record = HeadRecord(path, AUTHORITY)
    for field, value in (("number", 0), ("number", -1), ("chain", b"x"), ("signature", b"x"), ("certificate_der", b""),
                         ("certificate_der", b"x" * 5000)):
        message = head_to_proto(signed(5))
        setattr(message, field, value)
        assert record.saw(message, study="s", round=1, seen_unix=NOW).problem == "The audit head is not one"
    message = head_to_proto(signed(5))
    message.event_time.CopyFrom(Timestamp(seconds=2**62))
    assert record.saw(message, study="s", round=1, seen_unix=NOW).problem
    assert not path.exists()


@pytest.mark.parametrize("line", ["", "[]", "{}", "x", '{"number": true}', "\udcff"])
def test_a_line_that_is_none_is_named(path: Path, line: str) -> None:
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(5))
    path.write_bytes(path.read_bytes() + line.encode("utf-8", "surrogateescape") + b"\n")
    assert check_record(path, AUTHORITY).problems == ("line 2 is not an entry of the record",)


def test_a_file_of_another_kind_is_said_in_a_line(path: Path) -> None:
    """It was a problem for each of its lines."""
    path.write_text("a log\n" * 1000)
    assert check_record(path, AUTHORITY).problems == (
        "none of its 1000 lines is an entry of the record (a silo's heads.jsonl)",)


def test_a_line_that_was_altered_later_is_found(path: Path) -> None:
    record = HeadRecord(path, AUTHORITY)
    saw(record, signed(5))
    entry = json.loads(path.read_text())
    path.write_text(json.dumps(entry | {"chain": "ef" * 32}) + "\n")
    (problem,) = check_record(path, AUTHORITY).problems
    assert "signature of audit head 5 is wrong" in problem


# silo disclosures --check, silo status --------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> SiloHome:
    install_identity(tmp_path, FederationFile(federation="lung", silo="a", address="h:1", enrollment_address="h:2",
                                              renew_unix=0.0, invitation=""), key=make_key(),
                     certificate_pem=certificate_pem(AUTHORITY), authority_pem=certificate_pem(AUTHORITY))
    return SiloHome(tmp_path)


def export(folder: Path, *kinds: str, fork: str = "") -> Path:
    with (folder / "audit.json").open("w") as out:
        about = ExportAbout(federation="lung", exported_unix=NOW, complete=True)
        out.writelines(json_pieces(trail(*kinds, fork=fork), about))
    return folder / "audit.json"


def test_the_check_says_what_was_seen(home: SiloHome) -> None:
    assert check_trail(home.folder, None).text == "0 heads of the coordinator's audit trail: none came yet."
    assert trail_facts(home) is None
    saw(HeadRecord(home.heads, AUTHORITY), signed(5))
    found = check_trail(home.folder, None)
    assert found.text == ("1 head of the coordinator's audit trail, the last one event 5 seen "
                          "2027-01-15T08:00:00+00:00: no contradiction.")
    facts = trail_facts(home)
    assert facts is not None
    assert (facts.number, facts.problems) == (5, 0)


def test_an_export_is_held_against_every_head(home: SiloHome) -> None:
    events = trail("a", "b", "c")
    record = HeadRecord(home.heads, AUTHORITY)
    saw(record, signed(2, events[1].chain))
    assert check_trail(home.folder, export(home.folder, "a", "b", "c")).problems == ()
    (rewritten,) = check_trail(home.folder, export(home.folder, "a", "b", "c", fork="x")).problems
    assert "event 2" in rewritten
    assert "rewritten" in rewritten
    (cut,) = check_trail(home.folder, export(home.folder, "a")).problems
    assert "missing: the trail ends at event 1" in cut


def test_an_export_with_an_altered_event_is_found(home: SiloHome) -> None:
    saw(HeadRecord(home.heads, AUTHORITY), signed(1, trail("a")[0].chain))
    path = export(home.folder, "a", "b")
    path.write_text(path.read_text().replace('"kind": "b"', '"kind": "z"'))
    assert check_trail(home.folder, path).problems == (f"{path}: event 2 was altered",)


def test_status_tells_of_a_contradiction(home: SiloHome) -> None:
    record = HeadRecord(home.heads, AUTHORITY)
    saw(record, signed(5))
    saw(record, signed(4))
    facts = trail_facts(home)
    assert facts is not None
    assert (facts.problems, facts.number) == (1, 4)
    assert "cut" in facts.last_problem


def test_heads_that_are_found_are_on_the_disk_before_they_are_believed(path: Path) -> None:
    """The process that wrote the last one may have been killed before it could wait for the disk; the same head is not
    written again."""
    head = signed(3)
    saw(HeadRecord(path, AUTHORITY), head)
    with synced_paths() as synced:
        saw(HeadRecord(path, AUTHORITY), head)
    assert synced == [str(path), str(path.parent)]
