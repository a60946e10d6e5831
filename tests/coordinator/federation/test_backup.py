"""What a backup holds follows from the ledger, nothing is believed of an archive, and a restore leaves all or nothing.

`tests/test_backup_processes.py` takes one of a federation at work and goes on from it elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.config import canonical_json
from semisilo.common.errors import BadConfiguration, DiskFull, SemisiloError, StorageDamaged, UsageError
from semisilo.common.methods.contract import Phase
from semisilo.common.payload.codec.zstd import zstd
from semisilo.common.storage.store import SpareFiles
from semisilo.common.text.cli_errors import run_cli
from semisilo.coordinator.cli.main import app
from semisilo.coordinator.export.choose_model import choose_model
from semisilo.coordinator.federation import backup_archive
from semisilo.coordinator.federation.authority import create_authority
from semisilo.coordinator.federation.backup import back_up, last_backup_unix, named_files, study_facts
from semisilo.coordinator.federation.backup_archive import (
    MANIFEST,
    ArchivedFile,
    BackupManifest,
    read_archive,
    write_archive,
)
from semisilo.coordinator.federation.folder import Federation, open_federation
from semisilo.coordinator.federation.operate import returnable_rounds
from semisilo.coordinator.federation.restore import restore
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import handed_over, handed_over_then
from semisilo.coordinator.ledger.records import LABELS_ALONE_FILE
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.secure_sums import with_steps
from semisilo.coordinator.studies.queue import create_study
from tests.another_account import given_to_another_account
from tests.coordinator.ledger_fixture import SILOS, digest, fill_study

NOW = 1_767_323_045.0  # 2026-01-02 03:04:05 UTC
NAME = "lung-federation-20260102T030405Z.tar.zst"


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Round 5 is open: the first silo has answered, the others work. A file of the fixture is called by its content."""
    filled = fill_study(tmp_path / "hub", rounds=20, done=4, collecting=True, complete=False)
    filled.ledger.close()
    folder = filled.federation.folder
    create_authority(folder / "authority", "lung-federation", now=time.time())
    create_study(filled.federation, "first")
    first = folder / "studies" / "first"
    for number in (2, 3, 4):
        _put(first / "states" / f"{digest(str(number))}.safetensors", str(number))
    _put(first / "states" / f"{digest('rubbish')}.safetensors", "rubbish")
    _put(folder / "payloads" / digest("model"), "model")
    _put(folder / "payloads" / digest("nobody's"), "nobody's")
    _put(folder / "payloads" / "incoming" / "x.part", "half")
    _put(folder / "spool" / digest("update 5"), "update 5")
    _put(folder / "page.token", "secret")
    _put(folder / "live.json", "{}")
    _put(first / "data" / "labelled" / "a" / "patient-1.png", "an image")
    _put(first / "report" / "index.html", "<p>")
    return filled.federation


def _names(archive: Path) -> set[str]:
    return {file.path for file in read_archive(archive).files}


# What goes along ------------------------------------------------------------------------------------------------------


def test_a_backup_holds_what_the_ledger_names_and_the_keys_and_nothing_else(
        federation: Federation, tmp_path: Path) -> None:
    for name in ("contact-sheet.png", "contact-sheet-test.png"):  # drawn anew by `coordinator data`
        (federation.studies / "first" / name).write_bytes(b"png")
    _put(federation.studies / "first" / LABELS_ALONE_FILE, "not done yet")
    facts = back_up(federation, tmp_path / "safe", now=NOW)
    assert facts.archive == str(tmp_path / "safe" / NAME)
    states = {f"studies/first/states/{digest(str(number))}.safetensors" for number in (2, 3, 4)}
    assert _names(Path(facts.archive)) == {
        "ledger.sqlite", "federation.toml", "page.token", "authority/ca.key", "authority/ca.pem",
        "studies/first/study.toml", f"studies/first/{LABELS_ALONE_FILE}", f"payloads/{digest('model')}",
        f"spool/{digest('update 5')}", *states}
    assert facts.left_out == ("studies/first/data/",)
    assert [(study.name, study.state, study.round) for study in facts.studies] == [("first", "running", 4)]


def test_an_archive_and_its_folder_are_for_the_owner_only(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert stat.S_IMODE(archive.parent.stat().st_mode) == 0o700


def test_nothing_is_left_beside_the_archive_or_in_the_federation(federation: Federation, tmp_path: Path) -> None:
    back_up(federation, tmp_path / "safe", now=NOW)
    assert [path.name for path in (tmp_path / "safe").iterdir()] == [NAME]
    assert not (federation.folder / ".backup").exists()


def test_images_go_along_only_when_asked_for_and_links_are_never_followed(
        federation: Federation, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    _put(elsewhere / "secret.png", "not of this folder")
    (federation.studies / "first" / "linked").symlink_to(elsewhere)
    (federation.studies / "first" / "data" / "linked.png").symlink_to(elsewhere / "secret.png")
    odd = os.fsdecode(b"studies/first/data/\xff\xfe.png")
    long = f"studies/first/data/{'n' * 200}/{'m' * 200}.png"
    for path in (odd, long):
        _put(federation.folder / path, path.encode(errors="replace").decode())
    facts = back_up(federation, tmp_path / "safe", now=NOW, with_data=True)
    data = {path for path in _names(Path(facts.archive)) if "/data/" in path}
    assert data == {"studies/first/data/labelled/a/patient-1.png", odd, long}
    assert facts.left_out == (str(federation.studies / "first" / "linked"),)
    restore(Path(facts.archive), tmp_path / "new")
    assert (tmp_path / "new" / odd).exists()
    assert (tmp_path / "new" / long).read_text() == long


def test_images_in_folders_that_are_called_like_what_is_made_again_go_along(federation: Federation,
                                                                            tmp_path: Path) -> None:
    first = federation.folder / "studies" / "first"
    for name in ("reports", "states-of-the-lung", "contact-sheets", "export-round-trip"):
        _put(first / name / "1.png", name)
    made = ["report/index.html", "export-round-3/model_card.md", "contact-sheet.png", "contact-sheet-test.png"]
    for name in made:
        _put(first / name, name)
    plain = back_up(federation, tmp_path / "plain", now=NOW)
    assert {"studies/first/reports/", "studies/first/states-of-the-lung/", "studies/first/contact-sheets/",
            "studies/first/export-round-trip/"} <= set(plain.left_out)
    names = _names(Path(back_up(federation, tmp_path / "all", now=NOW, with_data=True).archive))
    assert {"studies/first/reports/1.png", "studies/first/states-of-the-lung/1.png",
            "studies/first/contact-sheets/1.png", "studies/first/export-round-trip/1.png"} <= names
    assert names.isdisjoint(f"studies/first/{name}" for name in made)


def test_archives_inside_the_federation_do_not_hold_those_before_them(federation: Federation) -> None:
    for destination in (federation.folder, federation.folder / "studies" / "first" / "data"):
        sizes = [len(_names(Path(back_up(federation, destination, now=NOW + second, with_data=True).archive)))
                 for second in range(3)]
        assert sizes[0] == sizes[1] == sizes[2]
    assert not any(name.endswith(".zst") for name in _names(federation.folder / NAME))


def test_images_outside_of_the_folder_are_named_as_left_out(federation: Federation, tmp_path: Path) -> None:
    with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.transaction() as db:
        config = json.loads(db.execute("SELECT config_json FROM study").fetchone()[0])
        config["data"]["test"] = "/srv/images/test.npz#test"
        db.execute("UPDATE study SET config_json = ?", (json.dumps(config),))
    assert "/srv/images/test.npz" in back_up(federation, tmp_path / "safe", now=NOW).left_out


def test_the_weights_that_a_study_started_from_go_along(federation: Federation, tmp_path: Path) -> None:
    def weights_at(path: str) -> tuple[set[str], tuple[str, ...]]:
        with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.transaction() as db:
            config = json.loads(db.execute("SELECT config_json FROM study").fetchone()[0])
            config["model"]["weights"] = path
            db.execute("UPDATE study SET config_json = ?", (json.dumps(config),))
        facts = back_up(federation, tmp_path / "safe", now=NOW)
        return {name for name in _names(Path(facts.archive)) if "weights" in name}, facts.left_out

    first = federation.studies / "first"
    _put(first / "start" / "weights.pth", "weights")
    assert weights_at("start/weights.pth") == ({"studies/first/start/weights.pth"}, ("studies/first/data/",))
    assert weights_at(str(first / "start" / "weights.pth")) == (
        {"studies/first/start/weights.pth"}, ("studies/first/data/",))
    _put(tmp_path / "weights.pth", "weights")
    for elsewhere in (str(tmp_path / "weights.pth"), "../../../weights.pth"):  # of studies/first in tmp_path/hub
        names, left_out = weights_at(elsewhere)
        assert names == set()
        assert left_out == ("studies/first/data/", "studies/first/start/", str(tmp_path / "weights.pth"))


@pytest.mark.parametrize(("model", "file"), [("my_net.py:build", "my_net.py"), ("report_net.py:build", "report_net.py"),
                                             ("transformers/swin", "swin/config.json")])
def test_the_file_that_builds_a_studys_network_goes_along_and_is_put_back(federation: Federation, tmp_path: Path,
                                                                          model: str, file: str) -> None:
    with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.transaction() as db:
        config = json.loads(db.execute("SELECT config_json FROM study").fetchone()[0])
        config["model"]["name"] = model
        db.execute("UPDATE study SET config_json = ?", (json.dumps(config),))
    _put(federation.studies / "first" / file, "the network")
    facts = back_up(federation, tmp_path / "safe", now=NOW)
    assert facts.left_out == ("studies/first/data/",)
    restore(Path(facts.archive), tmp_path / "new")
    assert (tmp_path / "new" / "studies" / "first" / file).read_text() == "the network"


def test_a_link_in_the_place_of_a_network_file_is_named_as_left_out(federation: Federation, tmp_path: Path) -> None:
    with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.transaction() as db:
        config = json.loads(db.execute("SELECT config_json FROM study").fetchone()[0])
        config["model"]["name"] = "my_net.py:build"
        db.execute("UPDATE study SET config_json = ?", (json.dumps(config),))
    first = federation.studies / "first"
    _put(first / "data" / "my_net.py", "the network")
    (first / "my_net.py").symlink_to(first / "data" / "my_net.py")
    facts = back_up(federation, tmp_path / "safe", now=NOW)
    assert facts.left_out == ("studies/first/data/", str(first / "my_net.py"))


def test_a_file_that_a_study_needs_is_missing_and_there_is_no_archive(federation: Federation, tmp_path: Path) -> None:
    needed = named_files_of(federation)
    assert needed == {f"payloads/{digest('model')}", f"spool/{digest('update 5')}",
                      f"studies/first/states/{digest('4')}.safetensors"}
    back_up(federation, tmp_path / "safe", now=NOW)
    for number, path in enumerate(sorted(needed)):
        content = (federation.folder / path).read_bytes()
        (federation.folder / path).unlink()
        with pytest.raises(StorageDamaged, match="missing"):
            back_up(federation, tmp_path / "safe", now=NOW + 60 * (number + 1), keep=1)
        (federation.folder / path).write_bytes(content)
    assert [path.name for path in (tmp_path / "safe").iterdir()] == [NAME]


def named_files_of(federation: Federation) -> set[str]:
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        return set(named_files(ledger).needed)


def test_a_damaged_state_is_noticed_and_there_is_no_archive(federation: Federation, tmp_path: Path) -> None:
    (federation.studies / "first" / "states" / f"{digest('4')}.safetensors").write_text("5")
    with pytest.raises(StorageDamaged, match="damaged"):
        back_up(federation, tmp_path / "safe", now=NOW)
    assert list((tmp_path / "safe").iterdir()) == []


def test_what_a_restore_would_refuse_pushes_no_archive_out(federation: Federation, tmp_path: Path) -> None:
    back_up(federation, tmp_path / "to", now=NOW, keep=1)
    key, name = federation.authority / "ca.key", federation.folder / "federation.toml"
    key.rename(tmp_path / "ca.key")
    with pytest.raises(StorageDamaged, match=f"^{key}: no such file"):
        back_up(federation, tmp_path / "to", now=NOW + 1, keep=1)
    (tmp_path / "ca.key").rename(key)
    right = name.read_text()
    name.write_text(right.replace('"lung-federation"', '"heart"'))
    with pytest.raises(BadConfiguration, match="was made for 'lung-federation'"):
        back_up(open_federation(federation.folder), tmp_path / "to", now=NOW + 2, keep=1)
    name.write_text(right)
    with contextlib.closing(sqlite3.connect(federation.ledger)) as db, db:
        db.execute("DROP TRIGGER event_is_append_only_1")
        db.execute("UPDATE event SET unix = unix - 1 WHERE number = 2")
    with pytest.raises(StorageDamaged, match=f"^{federation.ledger}: ") as caught:
        back_up(federation, tmp_path / "to", now=NOW + 3, keep=1)
    assert ".backup" not in str(caught.value)
    assert [path.name for path in (tmp_path / "to").iterdir()] == [NAME]
    restore(tmp_path / "to" / NAME, tmp_path / "new")  # the control


def test_a_damaged_ledger_is_noticed(federation: Federation, tmp_path: Path) -> None:
    with federation.ledger.open("r+b") as file:
        file.write(b"no ledger at all" * 64)
    with pytest.raises(StorageDamaged, match=r"ledger\.sqlite"):
        back_up(federation, tmp_path / "safe", now=NOW)


def test_a_study_that_is_over_needs_no_files_to_be_backed_up(tmp_path: Path) -> None:
    filled = fill_study(tmp_path / "hub", rounds=3)
    filled.ledger.close()
    create_authority(filled.federation.authority, "lung-federation", now=time.time())
    assert named_files_of(filled.federation) == set()
    assert back_up(filled.federation, tmp_path / "safe", now=NOW).studies[0].state == "completed"


def test_of_a_study_that_is_over_goes_along_what_export_rollback_and_extend_need_and_no_more(tmp_path: Path) -> None:
    """A hub keeps the state of every tenth round; archives would hold all of them of every study for ever."""
    filled = fill_study(tmp_path / "hub", rounds=40)
    create_authority(filled.federation.authority, "lung-federation", now=time.time())
    with filled.ledger.transaction() as db:
        db.execute("UPDATE round SET metrics_json = json_set(metrics_json, '$.selection_score', 0.5 + (number = 12))")
    rows = filled.ledger.rounds("first")
    chosen = handed_over(rows)
    assert chosen is not None
    assert chosen.number == 12
    states = filled.federation.studies / "first" / "states"
    for row in rows:
        _put(states / f"{row.state_digest}.safetensors", str(row.number))
    filled.ledger.close()
    archive = Path(back_up(filled.federation, tmp_path / "safe", now=NOW).archive)
    names = _names(archive)
    gone_along = {row.number for row in rows if f"studies/first/states/{row.state_digest}.safetensors" in names}
    assert gone_along == {0, 37, 38, 39, 40, chosen.number} | {
        then.number for number, then in handed_over_then(rows).items() if number >= 37}
    assert len(gone_along) < 10
    restore(archive, tmp_path / "new")
    federation = open_federation(tmp_path / "new")
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        folder = federation.studies / "first"
        assert {37, 38, 39} <= set(returnable_rounds(ledger, "first", study_folder=folder))
        assert choose_model(ledger, "first", rule="chosen", study_folder=folder).round.number == chosen.number
        assert choose_model(ledger, "first", rule="last", study_folder=folder).round.number == 40


def test_a_study_that_has_failed_takes_the_files_of_its_open_round_along_and_is_backed_up_without_them(
        federation: Federation, tmp_path: Path) -> None:
    """Queued again, it goes on with that round; but an earlier version may have removed them."""
    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        ledger.set_study_state("first", StudyState.FAILED, reason="a disk that lied")
    files = {f"payloads/{digest('model')}", f"spool/{digest('update 5')}"}
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    assert files <= _names(archive)
    restore(archive, tmp_path / "new")
    assert all((tmp_path / "new" / path).is_file() for path in files)
    for path in files:
        (federation.folder / path).unlink()
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW + 60).archive)
    assert not files & _names(archive)
    restore(archive, tmp_path / "without")


def test_masked_updates_go_along_until_their_sum_is_made(federation: Federation, tmp_path: Path) -> None:
    """While masks are taken off, the phase of the round is one behind that of the updates."""
    def named() -> set[str]:
        with contextlib.closing(Ledger(federation.ledger)) as ledger:
            return {path for path in {**named_files(ledger).needed, **named_files(ledger).awaited}
                    if path.startswith("spool/")}

    steps = with_steps((Phase("train"),))
    mask = next(number for number, phase in enumerate(steps) if phase.step == "mask")
    with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.transaction() as db:
        ledger.close_phase(ledger.phase("first", 5, 0))
        db.execute("UPDATE task SET phase = ? WHERE round = 5", (mask,))
        db.execute("UPDATE round SET phases_json = ? WHERE number = 5", (canonical_json(steps),))
    for number, phase in enumerate(steps):
        with contextlib.closing(Ledger(federation.ledger)) as ledger, ledger.transaction() as db:
            db.execute("UPDATE round SET phase = ? WHERE number = 5", (number,))
        wanted = phase.step in ("mask", "confirm", "unmask")
        assert named() == ({f"spool/{digest('update 5')}"} if wanted else set()), phase.step
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    assert f"spool/{digest('update 5')}" in _names(archive)


# Beside a running coordinator -----------------------------------------------------------------------------------------


def may_commit(ledger: Path) -> bool:
    """Whether another process could commit at this moment."""
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None, timeout=0)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True


def test_nobody_waits_for_a_snapshot_and_it_is_that_of_one_moment(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are linked another process writes."""
    import semisilo.coordinator.federation.backup as module

    link, check, wrote = module._link, module.check_copy, list[str]()

    def write(what: str) -> None:
        with contextlib.closing(Ledger(federation.ledger)) as ledger:
            ledger.query("PRAGMA busy_timeout = 0")
            ledger.event(what)
        wrote.append(what)

    def linking(source: Path, target: Path) -> bool:
        write("while_files_are_linked")
        return link(source, target)

    def checking(copy: Path, source: Path) -> None:
        write("while_the_copy_is_checked")
        check(copy, source)

    monkeypatch.setattr(module, "_link", linking)
    monkeypatch.setattr(module, "check_copy", checking)
    archive = back_up(federation, tmp_path / "safe", now=NOW).archive
    assert wrote[-1] == "while_the_copy_is_checked"
    assert wrote.count("while_files_are_linked") == len(wrote) - 1 > 4
    restore(Path(archive), tmp_path / "new")
    kinds = [{row["kind"] for row in Ledger(path / "ledger.sqlite").query("SELECT kind FROM event")}
             for path in (federation.folder, tmp_path / "new")]
    assert set(wrote) <= kinds[0]
    assert not set(wrote) & kinds[1]


def test_a_snapshot_whose_files_went_away_again_and_again_is_taken_while_nobody_commits(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import semisilo.coordinator.federation.backup as module

    link, check, free = module._link, module.check_copy, list[bool]()
    update, away = federation.spool / digest("update 5"), tmp_path / "away"

    def linking(source: Path, target: Path) -> bool:
        if source == update:
            free.append(may_commit(federation.ledger))
            if free[-1]:  # as a round that was committed in this moment, and whose files are removed
                update.rename(away)
                try:
                    return link(source, target) or module._copied(source, target, digest("update 5"))
                finally:
                    away.rename(update)
        return link(source, target)

    def checking(copy: Path, source: Path) -> None:
        free.append(may_commit(federation.ledger))
        check(copy, source)

    monkeypatch.setattr(module, "_link", linking)
    monkeypatch.setattr(module, "_copied", lambda source, target, digest: False)
    monkeypatch.setattr(module, "check_copy", checking)
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    assert free == [True] * (module._ATTEMPTS - 1) + [False, True], "the check, too, holds nobody up"
    assert f"spool/{digest('update 5')}" in _names(archive)


def test_what_a_snapshot_has_linked_is_not_written_over_as_a_spare(tmp_path: Path) -> None:
    """Accepted updates become spare files after a commit, which the next ones are written over."""
    for linked in ("", "before", "after"):
        folder = tmp_path / f"linked {linked}"
        folder.mkdir()
        update = folder / "update"
        update.write_bytes(bytes(2**20))
        if linked == "before":
            os.link(update, folder / "snapshot")
        spares = SpareFiles(folder, 1)
        assert spares.add(update) is (linked != "before")
        if linked == "after":
            os.link(next(folder.glob("*.spare")), folder / "snapshot")
        assert spares.take(folder / "next", 2**20) is not bool(linked)


def test_a_disk_without_hard_links_gives_the_same_files(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = _names(Path(back_up(federation, tmp_path / "safe", now=NOW).archive))

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert _names(Path(back_up(federation, tmp_path / "safe", now=NOW + 60).archive)) == linked


def test_a_second_backup_at_the_same_time_is_refused(federation: Federation, tmp_path: Path) -> None:
    import semisilo.coordinator.federation.backup as module

    with module._alone(federation), pytest.raises(SemisiloError, match="Another"):
        back_up(federation, tmp_path / "safe", now=NOW)
    back_up(federation, tmp_path / "safe", now=NOW)


def test_root_is_refused_in_a_federation_of_another_account(federation: Federation, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    given_to_another_account(federation.folder, monkeypatch)
    before = sorted(federation.folder.rglob("*"))
    with pytest.raises(UsageError, match="this is root"):
        open_federation(federation.folder)
    assert sorted(federation.folder.rglob("*")) == before


def test_root_restores_nothing_into_the_folder_of_another_account(federation: Federation, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Path(back_up(federation, tmp_path / "out", now=NOW).archive)
    home = given_to_another_account(tmp_path / "home", monkeypatch)
    for folder in (home / "new" / "hub", home):
        with pytest.raises(UsageError, match="this is root"):
            restore(archive, folder)
    assert list(home.iterdir()) == []


def test_a_lock_that_another_account_has_made_is_locked_all_the_same(federation: Federation, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """As one command of root's has left it: 0644, for its owner alone to write."""
    (federation.folder / ".backup.lock").touch()
    opened, kinds = os.open, []

    def as_another(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if str(path).endswith(".backup.lock"):
            kinds.append(flags & os.O_ACCMODE)
            if flags & os.O_ACCMODE != os.O_RDONLY:
                raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *rest, **named)
    monkeypatch.setattr("semisilo.coordinator.federation.backup.os.open", as_another)
    back_up(federation, tmp_path / "out", now=NOW)
    assert kinds == [os.O_RDWR, os.O_RDONLY]


def test_when_the_last_archive_was_made_is_known_and_only_of_one_that_is_whole(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_backup_unix(federation) is None
    back_up(federation, tmp_path / "out", now=NOW)
    assert last_backup_unix(federation) == NOW

    def damaged(*_: Any, **__: Any) -> None:
        raise StorageDamaged("as on a failing disk")
    monkeypatch.setattr("semisilo.coordinator.federation.backup.read_archive", damaged)
    with pytest.raises(StorageDamaged):
        back_up(federation, tmp_path / "out", now=NOW + 99)
    assert last_backup_unix(federation) == NOW


def test_the_newest_archive_is_named_for_whoever_looks_from_another_folder(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = back_up(federation, Path("archives"), now=NOW)
    named = Path(json.loads((federation.folder / ".backup.json").read_text())["archive"])
    assert named.is_absolute()
    assert named == tmp_path / made.archive


def test_what_a_killed_backup_has_left_goes_with_the_next_one(federation: Federation, tmp_path: Path) -> None:
    _put(federation.folder / ".backup" / "ledger.sqlite", "half")
    _put(tmp_path / "safe" / f".{NAME}.part", "half")
    back_up(federation, tmp_path / "safe", now=NOW + 60)
    assert [path.name for path in (tmp_path / "safe").iterdir()] == [NAME.replace("0405", "0505")]


# Rotation -------------------------------------------------------------------------------------------------------------


def test_the_newest_archives_of_this_federation_are_kept(federation: Federation, tmp_path: Path) -> None:
    safe = tmp_path / "safe"
    others = {"lung-20250101T000000Z.tar.zst", "lung-federation-20250101T000000Z.tar.zst.asc", "notes.txt"}
    for name in others:
        _put(safe / name, "kept")
    made = [Path(back_up(federation, safe, now=NOW + 3600 * hour, keep=2).archive).name for hour in range(4)]
    assert {path.name for path in safe.iterdir()} == others | set(made[2:])


def test_an_archive_made_while_the_clock_was_ahead_pushes_no_newer_one_out(
        federation: Federation, tmp_path: Path) -> None:
    safe, day = tmp_path / "safe", 86400.0

    def backup(now: float, *, keep: int) -> Path:
        archive = Path(back_up(federation, safe, now=now, keep=keep).archive)
        os.utime(archive, (now, now))  # the disk goes by the same clock
        return archive

    ahead = backup(NOW + 400 * day, keep=1)
    first = backup(NOW, keep=1)
    assert list(safe.iterdir()) == [first]
    ahead = backup(NOW + 400 * day, keep=2)
    second, third = backup(NOW + day, keep=3), backup(NOW + 2 * day, keep=3)
    assert set(safe.iterdir()) == {ahead, second, third}
    fourth = backup(NOW + 3 * day, keep=3)
    assert set(safe.iterdir()) == {ahead, third, fourth}
    fifth = backup(NOW + 4 * day, keep=3)
    assert set(safe.iterdir()) == {third, fourth, fifth}, "it has grown old as the others have"


def test_what_only_looks_like_an_archive_stays(federation: Federation, tmp_path: Path) -> None:
    odd = tmp_path / "safe" / "lung-federation-20269999T999999Z.tar.zst"
    _put(odd, "a name without a date")
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW, keep=1).archive)
    assert set((tmp_path / "safe").iterdir()) == {odd, archive}


def test_two_backups_of_one_second_are_two_files(federation: Federation, tmp_path: Path) -> None:
    archives = {back_up(federation, tmp_path / "safe", now=NOW).archive for _ in range(2)}
    assert len(archives) == 2


# Restoring ------------------------------------------------------------------------------------------------------------


def test_a_restored_folder_is_a_federation_with_the_same_files(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    facts = restore(archive, tmp_path / "new")
    assert open_federation(tmp_path / "new").name == "lung-federation"
    for path in _names(archive) - {"ledger.sqlite"}:
        assert (tmp_path / "new" / path).read_bytes() == (federation.folder / path).read_bytes(), path
        assert stat.S_IMODE((tmp_path / "new" / path).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new" / "authority").stat().st_mode) == 0o700
    assert facts.left_out == ("studies/first/data/",)
    assert facts.made_unix == NOW
    rows = [[tuple(row) for row in Ledger(folder / "ledger.sqlite").query("SELECT * FROM task ORDER BY task_id")]
            for folder in (federation.folder, tmp_path / "new")]
    assert rows[0] == rows[1] != []


def test_an_empty_folder_that_others_may_look_into_is_closed_before_keys_are_put_there(
        federation: Federation, tmp_path: Path) -> None:
    """It kept its mode until `coordinator serve`."""
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    (tmp_path / "new").mkdir(mode=0o755)
    restore(archive, tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_restore_ends_open_invitations_and_stands_in_the_audit_trail(federation: Federation, tmp_path: Path) -> None:
    from semisilo.coordinator.ledger.roster import LedgerRoster

    with contextlib.closing(Ledger(federation.ledger)) as ledger:
        LedgerRoster(ledger).add_invitation(silo="late", token_hash=b"t" * 32, expires_unix=time.time() + 3600)
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    assert restore(archive, tmp_path / "new").withdrawn_invitations == 1
    restored = Ledger(tmp_path / "new" / "ledger.sqlite")
    assert restored.query("SELECT 1 FROM invitation WHERE token_hash = ?", b"t" * 32) == []
    assert restored.query("SELECT kind FROM event ORDER BY number DESC LIMIT 1")[0]["kind"] == "restored"
    assert restored.check_events() > 10
    assert len(restored.query("SELECT 1 FROM invitation")) == len(SILOS)  # used ones stay


def test_a_folder_in_use_is_refused_and_an_empty_disk_is_not(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    with pytest.raises(UsageError, match="not an empty folder"):
        restore(archive, federation.folder)
    disk = tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)
    restore(archive, disk)
    assert (disk / "federation.toml").exists()


def _killed_at(rename: int, archive: Path, folder: Path) -> bool:
    """Restores in a process that is gone at its n-th rename, counted from 0; whether it had got there."""
    child = os.fork()
    if child == 0:
        replace, status, left = os.replace, 1, [rename]

        def dying(source: Any, target: Any) -> None:
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            replace(source, target)

        try:
            os.replace = dying
            restore(archive, folder)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.slow
def test_a_restore_that_was_killed_at_any_moment_can_be_repeated(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    folder = tmp_path / "new"
    renames = 0
    while _killed_at(renames, archive, folder):
        assert (folder / ".restoring").is_dir()
        assert not (folder / "federation.toml").exists()
        assert restore(archive, folder).federation == "lung-federation"
        assert not (folder / ".restoring").exists()
        whole = {path.relative_to(folder) for path in folder.rglob("*")}
        assert {Path(path) for path in _names(archive)} | {Path("payloads"), Path("spool"), Path("studies")} <= whole
        shutil.rmtree(folder)
        renames += 1
    assert renames > 5


def test_what_a_finished_restore_has_left_removes_no_federation(federation: Federation, tmp_path: Path) -> None:
    """It was killed while it tidied up; later the federation has lost its file, and somebody tries to restore it."""
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    folder = tmp_path / "new"
    restore(archive, folder)
    _put(folder / ".restoring" / ".moving", json.dumps(["ledger.sqlite", "studies", "authority"]))
    (folder / "federation.toml").unlink()
    with pytest.raises(UsageError, match="not an empty folder"):
        restore(archive, folder)
    assert (folder / "ledger.sqlite").is_file()
    assert (folder / "studies").is_dir()


def test_what_somebody_has_put_beside_a_killed_restore_stays(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    folder = tmp_path / "new"
    assert _killed_at(3, archive, folder)
    _put(folder / "notes" / "mine.txt", "kept")
    with pytest.raises(UsageError, match="not an empty folder"):
        restore(archive, folder)
    assert [path.relative_to(folder) for path in folder.rglob("*")] == [Path("notes"), Path("notes/mine.txt")]


def test_a_list_of_moved_names_leads_nowhere_else(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    folder = tmp_path / "new"
    _put(folder / ".restoring" / ".moving", json.dumps(["../safe", str(tmp_path / "safe"), "..", "", 7]))
    restore(archive, folder)
    assert archive.is_file()


def test_a_restore_that_fails_while_it_moves_leaves_the_folder_as_it_was(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    replace, disk = os.replace, tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)

    def failing(source: Any, target: Any) -> None:
        if Path(target) == disk / "federation.toml":
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", failing)
        with pytest.raises(OSError, match="Input/output"):
            restore(archive, disk)
    assert [path.name for path in disk.iterdir()] == ["lost+found"]
    restore(archive, disk)


def test_a_restore_that_is_done_says_so_whatever_fails_after_it(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    """The folder was the federation, and the command said that it had failed: the next try was refused."""
    import semisilo.coordinator.federation.restore as module

    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    folder = tmp_path / "new"

    def failing(synchronised: Path) -> None:
        if (folder / "federation.toml").exists():
            raise OSError(5, "Input/output error")

    def no_more(ledger: Path) -> Any:
        assert not (folder / "federation.toml").exists()
        return study_facts(ledger)

    monkeypatch.setattr(module, "sync_folder", failing)
    monkeypatch.setattr(module, "study_facts", no_more)
    found = restore(archive, folder)
    assert found.studies == study_facts(folder / "ledger.sqlite") != ()
    assert not (folder / ".restoring").exists()
    assert "does not confirm that it is on the disk for good: Input/output error" in caplog.text


def test_a_second_restore_at_the_same_time_is_refused(federation: Federation, tmp_path: Path) -> None:
    import semisilo.coordinator.federation.restore as module

    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    (tmp_path / "new" / ".restoring").mkdir(parents=True)
    with module._alone(tmp_path / "new"), pytest.raises(SemisiloError, match="Another"):
        restore(archive, tmp_path / "new")
    assert (tmp_path / "new" / ".restoring").exists()


def test_an_archive_without_what_its_ledger_names_is_refused(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    restore(archive, tmp_path / "new")
    manifest = read_archive(archive)
    for lacking in (f"spool/{digest('update 5')}", "authority/ca.key", "ledger.sqlite", "federation.toml"):
        files = tuple(file for file in manifest.files if file.path != lacking and file.path != "ledger.sqlite")
        altered = tmp_path / f"{hashlib.sha256(lacking.encode()).hexdigest()}.tar.zst"
        sources = {file.path: tmp_path / "new" / file.path for file in manifest.files}
        if lacking != "ledger.sqlite":
            sources["ledger.sqlite"] = tmp_path / "new" / "ledger.sqlite"
            content = sources["ledger.sqlite"].read_bytes()
            files += (ArchivedFile(path="ledger.sqlite", bytes=len(content),
                                   sha256=hashlib.sha256(content).hexdigest()),)
        write_archive(altered, dataclasses.replace(manifest, files=files), sources)
        read_archive(altered)  # whole, as an archive
        with pytest.raises(StorageDamaged, match="not a backup to continue from"):
            restore(altered, tmp_path / "other")
        assert not (tmp_path / "other").exists()


def test_an_archive_whose_audit_trail_was_altered_is_refused(federation: Federation, tmp_path: Path) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    (tmp_path / "files").mkdir()
    manifest = read_archive(archive, into=tmp_path / "files")
    ledger = tmp_path / "files" / "ledger.sqlite"
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("DROP TRIGGER event_is_append_only_1")
        db.execute("UPDATE event SET unix = unix + 1 WHERE number = 3")
    content = ledger.read_bytes()
    files = tuple(file if file.path != "ledger.sqlite" else ArchivedFile(
        path=file.path, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()) for file in manifest.files)
    altered = tmp_path / "altered.tar.zst"
    write_archive(altered, dataclasses.replace(manifest, files=files),
                  {file.path: tmp_path / "files" / file.path for file in files})
    with pytest.raises(StorageDamaged, match="event 3 was altered"):
        restore(altered, tmp_path / "new")


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_written(
        federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Path(back_up(federation, tmp_path / "safe", now=NOW).archive)
    usage = backup_archive.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(backup_archive.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DiskFull):
        restore(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Hostile archives -----------------------------------------------------------------------------------------------------

CONTENT = b"content"
SHA = hashlib.sha256(CONTENT).hexdigest()


def _file(path: str, content: bytes = CONTENT) -> dict[str, Any]:
    return {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _manifest(*files: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({"format": 1, "semisilo": "0.1.0", "federation": "lung", "made_unix": NOW, "with_data": False,
                       "files": list(files), **changes}).encode()


def _member(name: str, content: bytes = CONTENT, **changes: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def _archive(path: Path, *members: bytes, end: bytes = bytes(1024)) -> Path:
    path.write_bytes(zstd.compress(b"".join(members) + end))
    return path


def _hostile(name: str) -> Iterator[bytes]:
    """The members of an archive that must be refused."""
    one = _member(MANIFEST, _manifest(_file("a")))
    paths = {"out_of_the_folder": "../a", "out_of_a_folder": "x/../../a", "absolute": "/tmp/a", "empty": "",
             "doubled": "x//a", "here": "./a", "zero_byte": "a\0b", "very_long": "x/" * 3000 + "a", "long": "n" * 300}
    links = {"symlink": tarfile.SYMTYPE, "hard_link": tarfile.LNKTYPE, "device": tarfile.CHRTYPE,
             "pipe": tarfile.FIFOTYPE, "folder": tarfile.DIRTYPE, "sparse": tarfile.GNUTYPE_SPARSE}
    if name in paths:
        yield _member(MANIFEST, _manifest(_file(paths[name])))
        yield _member("a")
    elif name in links:
        yield one
        yield _member("a", type=links[name], linkname="/etc/passwd")
    elif name == "another_name":
        yield one
        yield _member("../a")
    elif name == "larger_than_announced":
        yield one
        yield _member("a", CONTENT * 1_000_000)
    elif name == "other_content":
        yield one
        yield _member("a", b"CONTENT")
    elif name == "more_than_announced":
        yield one
        yield _member("a")
        yield _member("b")
    elif name == "bomb_behind_the_end":
        yield one
        yield _member("a")
        yield bytes(2**26)
    elif name == "twice":
        yield _member(MANIFEST, _manifest(_file("a"), _file("a")))
        yield _member("a") * 2
    elif name == "file_and_folder":
        yield _member(MANIFEST, _manifest(_file("a"), _file("a/b")))
        yield _member("a")
        yield _member("a/b")
    elif name == "extended_header_of_1_gigabyte":
        yield one
        info = tarfile.TarInfo("a")
        info.type, info.size = tarfile.XHDTYPE, 2**30
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield bytes(2**20)
    elif name == "name_of_1_gigabyte":
        yield one
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**30
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield bytes(2**20)
    elif name == "manifest_of_1_gigabyte":
        info = tarfile.TarInfo(MANIFEST)
        info.size = 2**30
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield bytes(2**20)
    elif name == "no_manifest":
        yield _member("a")
    elif name == "manifest_is_no_json":
        yield _member(MANIFEST, b"{")
    elif name == "manifest_is_nested":
        yield _member(MANIFEST, b"[" * 100_000)
    elif name == "manifest_is_a_list":
        yield _member(MANIFEST, b"[]")
    elif name == "unknown_key":
        yield _member(MANIFEST, _manifest(_file("a"), run="rm -rf /"))
        yield _member("a")
    elif name == "negative_size":
        yield _member(MANIFEST, _manifest({"path": "a", "bytes": -512, "sha256": SHA}))
        yield _member("a")
    elif name == "no_digest":
        yield _member(MANIFEST, _manifest({"path": "a", "bytes": 7, "sha256": "../../x"}))
        yield _member("a")


@pytest.mark.parametrize("name", [
    "out_of_the_folder", "out_of_a_folder", "absolute", "empty", "doubled", "here", "zero_byte", "very_long", "long",
    "symlink", "hard_link", "device", "pipe", "folder", "sparse", "another_name", "larger_than_announced",
    "other_content", "more_than_announced", "bomb_behind_the_end", "twice", "file_and_folder",
    "extended_header_of_1_gigabyte", "name_of_1_gigabyte", "manifest_of_1_gigabyte", "no_manifest",
    "manifest_is_no_json", "manifest_is_nested", "manifest_is_a_list", "unknown_key", "negative_size", "no_digest"])
def test_an_archive_that_is_not_what_we_write_is_refused_and_writes_nothing_elsewhere(
        name: str, tmp_path: Path) -> None:
    members = list(_hostile(name))
    assert members, name
    archive = _archive(tmp_path / "hostile.tar.zst", *members)
    with pytest.raises(StorageDamaged, match="not a whole backup") as caught:
        restore(archive, tmp_path / "new")
    assert len(caught.value.line()) < 1000
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.tar.zst"]


def test_the_control_an_archive_of_the_same_kind_is_read(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "good.tar.zst", _member(MANIFEST, _manifest(_file("a"), _file("x/b"))), _member("a"),
                       _member("x/b"))
    (tmp_path / "into").mkdir()
    read_archive(archive, into=tmp_path / "into")
    assert (tmp_path / "into" / "x" / "b").read_bytes() == CONTENT


def test_a_cut_or_altered_archive_is_refused(federation: Federation, tmp_path: Path) -> None:
    whole = Path(back_up(federation, tmp_path / "safe", now=NOW).archive).read_bytes()
    broken = tmp_path / "broken.tar.zst"
    for content in (b"", whole[:10], whole[:-1], whole[:-100], whole[:len(whole) // 2], whole + b"more",
                    *(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:]
                      for at in range(20, len(whole), len(whole) // 23)),
                    b"PK\x03\x04 a zip", zstd.compress(zstd.decompress(whole)[:-1024])):
        broken.write_bytes(content)
        with contextlib.suppress(zstd.ZstdError, EOFError):
            if len(content) == len(whole) and zstd.decompress(content) == zstd.decompress(whole):
                continue  # a byte that changes nothing: compressed data can say the same thing in two ways
        with pytest.raises(StorageDamaged):
            read_archive(broken)


def test_a_backup_of_a_newer_version_says_so(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "newer.tar.zst", _member(MANIFEST, _manifest(format=2, semisilo="9.0.0", more=1)))
    with pytest.raises(StorageDamaged, match=r"newer semisilo \(9\.0\.0\)"):
        read_archive(archive)


def test_a_stream_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    def write(window_log: int) -> None:
        compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
        content = _member(MANIFEST, _manifest()) + bytes(1024)
        # In two steps: a frame whose size is known when it begins asks for no more than that.
        (tmp_path / "x.tar.zst").write_bytes(compressor.compress(content, zstd.ZstdCompressor.FLUSH_BLOCK)
                                             + compressor.flush())

    write(27)
    read_archive(tmp_path / "x.tar.zst")
    write(28)
    with pytest.raises(StorageDamaged):
        read_archive(tmp_path / "x.tar.zst")


def test_a_manifest_whose_paths_lead_elsewhere_cannot_even_be_made() -> None:
    with pytest.raises(ValueError, match="leads out"):
        ArchivedFile(path="../a", bytes=1, sha256=SHA)
    good = ArchivedFile(path="a", bytes=7, sha256=SHA)
    with pytest.raises(ValueError, match="one place"):
        BackupManifest(format=1, semisilo="", federation="x", made_unix=0.0, with_data=False, files=(good, good))


# Commands -------------------------------------------------------------------------------------------------------------


def test_the_commands_print_facts_for_a_person_and_for_a_program(
        federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(app, ["backup", str(tmp_path / "safe"), "--folder", str(federation.folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["studies"] == [{"name": "first", "state": "running", "round": 4}]
    assert run_cli(app, ["backup", str(tmp_path / "safe"), "--folder", str(federation.folder), "--keep", "1"]) == 0
    said = capsys.readouterr().out
    assert "running, round 4 is the last committed one" in said
    assert f"removed: {facts['archive']}" in said
    assert "left out: studies/first/data/" in said
    (archive,) = (tmp_path / "safe").iterdir()
    assert run_cli(app, ["restore", str(archive), "--folder", str(tmp_path / "new")]) == 0
    assert "put back            studies/first/data/" in capsys.readouterr().out
    assert run_cli(app, ["restore", str(archive), "--folder", str(tmp_path / "new")]) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_an_archive_inside_the_federation_is_warned_of(
        federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for destination, warned in ((federation.studies, True), (tmp_path / "safe", False)):
        assert run_cli(app, ["backup", str(destination), "--folder", str(federation.folder)]) == 0
        assert ("is inside the federation's own folder" in capsys.readouterr().err) == warned


def test_a_destination_that_cannot_be_made_is_told_with_what_to_do(
        federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(app, ["backup", "/proc/x", "--folder", str(federation.folder)]) == 2
    assert "/proc/x: this folder cannot be made here. Make the folder, or name another" in capsys.readouterr().err


def test_no_destination_and_no_federation_are_told_in_one_line(
        federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _put(tmp_path / "file", "x")
    assert run_cli(app, ["backup", str(tmp_path / "file"), "--folder", str(federation.folder)]) == 2
    assert run_cli(app, ["backup", str(tmp_path / "safe"), "--folder", str(tmp_path)]) == 2
    assert run_cli(app, ["restore", str(tmp_path / "nothing"), "--folder", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.count("error: ") == 3
    assert issubclass(BadConfiguration, UsageError)
