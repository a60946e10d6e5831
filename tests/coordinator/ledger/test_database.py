"""The file of the ledger: opened from any version, atomic, append-only where it must be, clear when it is unusable."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import semisilo.coordinator.ledger.database as ledger_file
from semisilo.common.errors import DiskFull, SemisiloError, StorageDamaged, SystemTrouble
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.migrations import MIGRATIONS
from semisilo.coordinator.ledger.states import StudyState
from tests.coordinator.ledger_fixture import query_plan, study_config

pytestmark = pytest.mark.usefixtures("ledgers_made_anew")


def opened(folder: Path) -> Ledger:
    ledger = Ledger(folder / "ledger.sqlite")
    ledger.query("PRAGMA synchronous = OFF")
    return ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = opened(tmp_path)
    yield made
    made.close()


def dump_of(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    names = [row["name"] for row in ledger.query("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [tuple(row) for row in ledger.query(f"SELECT * FROM {name}")] for name in names}


# Opening --------------------------------------------------------------------------------------------------------------


def test_an_empty_file_is_brought_to_this_version_and_opens_again(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").touch()
    opened(tmp_path).close()
    again = opened(tmp_path)
    assert again.query("PRAGMA user_version")[0][0] == len(MIGRATIONS)
    assert again.query("PRAGMA journal_mode")[0][0] == "wal"
    assert again.studies() == []
    again.close()


def test_a_ledger_of_an_older_version_is_migrated_with_its_rows(tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(tmp_path)
    first.queue_study("s", study_config(rounds=3))
    first.close()
    monkeypatch.setattr(ledger_file, "MIGRATIONS",
                        (*MIGRATIONS, "ALTER TABLE study ADD COLUMN note TEXT NOT NULL DEFAULT 'none';"))
    second = opened(tmp_path)
    assert second.query("PRAGMA user_version")[0][0] == len(MIGRATIONS) + 1
    assert [row["note"] for row in second.query("SELECT note FROM study")] == ["none"]
    second.close()


def test_a_migration_that_fails_half_way_leaves_the_version_before(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(ledger_file, "MIGRATIONS",
                        (*MIGRATIONS, "CREATE TABLE extra (name TEXT); CREATE TABLE study (name TEXT);"))
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        Ledger(tmp_path / "ledger.sqlite")
    monkeypatch.undo()
    again = opened(tmp_path)
    assert again.query("PRAGMA user_version")[0][0] == len(MIGRATIONS)
    assert again.query("SELECT 1 FROM sqlite_master WHERE name = 'extra'") == []
    again.close()


def test_a_ledger_that_is_gone_is_made_by_nobody_who_only_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for go_on in (lambda: ledger_file.checkpoint(path), lambda: Ledger(path, makes=False)):
        with pytest.raises(SemisiloError, match=r"ledger\.sqlite: unable to open"):
            go_on()
        assert list(tmp_path.iterdir()) == []
    opened(tmp_path).close()
    ledger_file.checkpoint(path)
    Ledger(path, makes=False).close()


def test_a_ledger_that_was_removed_or_replaced_is_noticed_and_so_is_its_return(tmp_path: Path) -> None:
    first = opened(tmp_path)
    place = ledger_file.LedgerPlace(first.path)
    assert place.is_kept()
    first.path.rename(tmp_path / "moved")
    assert not place.is_kept()
    first.path.touch()
    assert not place.is_kept()
    (tmp_path / "moved").rename(first.path)
    assert place.is_kept()
    first.close()


def test_a_disk_that_does_not_answer_says_nothing_of_the_ledger(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(tmp_path)
    place = ledger_file.LedgerPlace(first.path)

    def fails(path: Path, **options: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "stat", fails)
    assert place.is_kept()
    first.close()


def _only_to_be_read(path: Path) -> sqlite3.Connection:
    """As SQLite opens a file that the system would not let it write at that moment."""
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    db.row_factory = sqlite3.Row
    return db


def test_a_ledger_that_could_only_be_read_when_it_was_opened_is_opened_again(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.checkpointed_elsewhere()
    ledger.event("first")
    ledger._db.close()
    ledger._db = _only_to_be_read(ledger.path)
    assert ledger.check_events() == 1
    with pytest.raises(SystemTrouble, match="readonly"):
        ledger.event("lost")
    ledger.event("second")
    assert [row["kind"] for row in ledger.query("SELECT kind FROM event")] == ["first", "second"]
    assert [ledger.query(f"PRAGMA {name}")[0][0] for name in ("synchronous", "foreign_keys", "wal_autocheckpoint")] \
        == [2, 1, 16_384]
    ledger.close()


def test_another_file_in_the_place_of_a_ledger_is_not_opened_instead(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger._db.close()
    ledger._db = _only_to_be_read(ledger.path)
    with pytest.raises(SystemTrouble):
        ledger.event("lost")
    ledger.path.rename(tmp_path / "moved")
    opened(tmp_path).close()
    with pytest.raises(SystemTrouble, match="readonly"):
        ledger.event("lost")
    ledger.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_ledger_on_a_disk_that_was_made_read_only_is_not_said_to_be_another_accounts(
        read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for a file that is another's
    room = dict.fromkeys(("f_frsize", "f_blocks", "f_bfree", "f_bavail"), 4096)
    disk = types.SimpleNamespace(f_flag=os.ST_RDONLY if read_only else 0, **room)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    found = ledger_file.explained_by_sqlite(tmp_path / "ledger.sqlite", error)
    assert isinstance(found, SystemTrouble)
    assert ("Read-only file system" in found.text) is read_only
    assert ("chown" in found.remedy) is not read_only


def test_a_page_that_the_system_could_not_read_is_tried_again(tmp_path: Path) -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    found = ledger_file.explained_by_sqlite(tmp_path / "ledger.sqlite", error)
    assert isinstance(found, SystemTrouble)
    assert "malformed" in found.text
    assert "backup" in found.remedy


def test_processes_that_open_a_new_ledger_at_the_same_time_all_succeed(tmp_path: Path) -> None:
    code = "import sys, pathlib; from semisilo.coordinator.ledger.ledger import Ledger; sys.stdin.read(1);" \
           "print(Ledger(pathlib.Path(sys.argv[1])).check_events())"
    others = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "ledger.sqlite")], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [other.communicate("x", timeout=300) for other in others] == [("0\n", "")] * 4


def test_a_ledger_of_a_newer_semisilo_is_refused_and_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    before = (tmp_path / "ledger.sqlite").read_bytes()
    with pytest.raises(StorageDamaged, match="newer semisilo") as caught:
        Ledger(tmp_path / "ledger.sqlite")
    assert "Upgrade" in caught.value.remedy
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"my holiday photographs" * 100)
    with pytest.raises(StorageDamaged, match="not a database") as caught:
        Ledger(path)
    assert str(path) in caught.value.text
    assert "backup" in caught.value.remedy
    assert path.read_bytes() == b"my holiday photographs" * 100


def test_a_place_that_cannot_be_written_is_no_damaged_ledger(tmp_path: Path) -> None:
    with pytest.raises(SemisiloError, match="unable to open") as caught:
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")
    assert not isinstance(caught.value, StorageDamaged)
    assert "able to write" in caught.value.remedy


def test_a_ledger_that_another_program_locks_is_named_after_a_while(tmp_path: Path, ledger: Ledger,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.query("PRAGMA busy_timeout = 50")
    with sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SemisiloError, match="kept it locked"):
            ledger.event("never")
        other.execute("ROLLBACK")
    other.close()
    ledger.event("now")
    assert ledger.check_events() == 1


def test_a_lock_that_was_waited_for_in_vain_is_not_waited_for_as_long_again_until_it_is_given(
        tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of `serve` waits here: it would stand still as long for each call of each silo."""
    def waits() -> int:
        return int(ledger.query("PRAGMA busy_timeout")[0][0])

    monkeypatch.setattr(ledger_file, "_BUSY_AGAIN_SECONDS", 0.05)
    ledger.query("PRAGMA busy_timeout = 100")
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            with pytest.raises(SystemTrouble, match="kept it locked"):
                ledger.event("refused")
            assert waits() == 50
        other.execute("ROLLBACK")
    ledger.event("told")
    assert waits() == 30_000
    assert ledger.check_events() == 1


def test_a_folder_that_nobody_may_look_into_is_named_as_trouble_of_the_system(tmp_path: Path,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may look everywhere, the system's answer is played."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN

    def refuse(*args: object, **options: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        found = ledger_file.explained_by_sqlite(tmp_path / "ledger.sqlite", error)
    assert isinstance(found, SystemTrouble)
    assert f"must be able to write {tmp_path}" in found.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_ledger_of_another_user_is_named_with_the_remedy() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        opened(folder).close()
        done = _as_nobody(folder / "ledger.sqlite")
    assert done.stderr == ""
    assert done.stdout.startswith(f"SystemTrouble {folder / 'ledger.sqlite'}: ")
    assert "It belongs to 'root': run this as that user" in done.stdout


def _as_nobody(path: Path) -> subprocess.CompletedProcess[str]:
    """Writes an event as a user who may only read."""
    code = "import os, sys, pathlib; from semisilo.coordinator.ledger.ledger import Ledger\n" \
           "from semisilo.common.errors import SemisiloError\n" \
           "os.setgid(65534); os.setuid(65534)\n" \
           "try:\n    Ledger(pathlib.Path(sys.argv[1])).event('mine')\n" \
           "except SemisiloError as error:\n    print(type(error).__name__, error.line())"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300)


# Transactions ---------------------------------------------------------------------------------------------------------


def synchronous_in(ledger: Ledger, **options: bool) -> int:
    """SQLite's setting during a transaction: 0 OFF, 1 NORMAL (a commit may be lost when the machine stops), 2 FULL (it
    is on disk)."""
    with ledger.transaction(**options) as db:
        return int(db.execute("PRAGMA synchronous").fetchone()[0])


def test_what_must_last_is_on_disk_when_its_transaction_ends(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.query("PRAGMA synchronous")[0][0] == 2, "migrations last too"
    assert synchronous_in(ledger) == 2
    assert synchronous_in(ledger, lasting=False) == 1
    assert synchronous_in(ledger, lasting=True) == 2, "also after one that need not last"
    with ledger.transaction():
        assert synchronous_in(ledger, lasting=False) == 2, "a part of what lasts lasts"
    ledger.close()
    simulated = Ledger(tmp_path / "simulated.sqlite", waits=False)
    assert simulated.query("PRAGMA synchronous")[0][0] == 1
    assert [synchronous_in(simulated, lasting=lasting) for lasting in (True, False)] == [1, 1]
    simulated.close()


def test_what_must_last_cannot_be_part_of_what_need_not(tmp_path: Path) -> None:
    """It would be promised to be on disk, and nothing would have waited for the disk."""
    ledger = Ledger(tmp_path / "ledger.sqlite")

    def both() -> None:
        with ledger.transaction(lasting=False):
            ledger.event("first")
            with ledger.transaction():
                ledger.event("second")

    with pytest.raises(RuntimeError, match="cannot be part of one that is not lasting"):
        both()
    assert ledger.last_event() is None, "neither was written"
    with ledger.transaction(lasting=False), ledger.part() as db:
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 1, "as lasting as what is around it"
    with ledger.part() as db:
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 2, "alone it lasts"
    ledger.close()
    simulated = Ledger(tmp_path / "simulated.sqlite", waits=False)
    with simulated.transaction(lasting=False), simulated.transaction():
        simulated.event("here nothing waits")
    assert simulated.check_events() == 1
    simulated.close()


def test_a_transaction_that_is_rolled_back_leaves_nothing(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    dump = dump_of(ledger)

    def write_and_be_interrupted() -> None:
        with ledger.transaction():
            ledger.queue_study("t", study_config(rounds=1))
            ledger.set_study_state("s", StudyState.PREPARING)
            ledger.event("seen")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_be_interrupted()
    assert dump_of(ledger) == dump
    with ledger.transaction():  # the control: the same without the end is kept, and the ledger still works
        ledger.queue_study("t", study_config(rounds=1))
    assert [row.name for row in ledger.studies()] == ["s", "t"]


def test_what_one_process_has_committed_another_sees_and_hears_of(tmp_path: Path, ledger: Ledger) -> None:
    other = opened(tmp_path)
    version = other.data_version()
    assert other.data_version() == version
    ledger.queue_study("s", study_config(rounds=3))
    assert other.data_version() != version
    assert other.study("s").state is StudyState.QUEUED
    other.close()


def test_events_of_a_study_come_in_order_from_a_walk_over_the_table_that_makes_nothing_of_the_others(ledger: Ledger
                                                                                                    ) -> None:
    """A stranger may ask for them, and whoever serves silos must go on meanwhile."""
    for name in ("first", "second", "first"):
        ledger.event("study_note", study=name, text="a")
    found = ledger.events_after(0, limit=10, study="first")
    assert [event.number for event in found] == [event.number for event in ledger.events_after(0, limit=10)
                                                 if event.study == "first"]
    assert len(found) == 2
    assert ledger.events_after(found[0].number, limit=10, study="first", since_unix=found[1].unix) == found[1:]
    plan = query_plan(ledger, lambda: ledger.events_after(0, limit=10, study="first"))
    assert plan == ["SEARCH event USING INTEGER PRIMARY KEY (rowid>?)"]


def test_a_full_disk_is_said_so_and_loses_nothing(ledger: Ledger) -> None:
    ledger.queue_study("s", study_config(rounds=3))
    dump = dump_of(ledger)
    pages = ledger.query("PRAGMA page_count")[0][0]
    ledger.query(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(DiskFull, match="disk is full") as caught:
        ledger.event("large", text="x" * 100_000)
    assert "safe" in caught.value.remedy
    assert dump_of(ledger) == dump
    ledger.query("PRAGMA max_page_count = 100000")
    ledger.event("large", text="x" * 100_000)
    assert ledger.check_events() == 2


def test_a_mistake_in_sql_is_not_blamed_on_the_disk(ledger: Ledger) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        ledger.query("SELECT * FROM absent")


# Events ---------------------------------------------------------------------------------------------------------------


def test_the_chain_of_events_is_the_documented_hash(ledger: Ledger) -> None:
    ledger.event("first", study="s", number=1)
    ledger.event("second", text="ä")
    previous = ""
    for row in ledger.query("SELECT * FROM event ORDER BY number"):
        content = json.dumps([previous, row["number"], row["unix"], row["kind"], row["study"], row["detail_json"]],
                             separators=(",", ":"), ensure_ascii=False)
        previous = hashlib.sha256(content.encode()).hexdigest()
        assert row["chain"] == previous
    assert ledger.check_events() == 2


@pytest.mark.parametrize("change", [
    "UPDATE event SET kind = 'harmless' WHERE number = 2", "UPDATE event SET unix = unix + 1 WHERE number = 2",
    "UPDATE event SET detail_json = '{}' WHERE number = 2", "UPDATE event SET study = 't' WHERE number = 2",
    "UPDATE event SET number = 9 WHERE number = 3", "DELETE FROM event WHERE number = 2",
    "UPDATE event SET chain = (SELECT chain FROM event WHERE number = 1) WHERE number = 2"])
def test_an_altered_event_is_found(tmp_path: Path, ledger: Ledger, change: str) -> None:
    for number in range(3):
        ledger.event("kind", study="s", number=number)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        for trigger in ("event_is_append_only_1", "event_is_append_only_2"):
            db.execute(f"DROP TRIGGER {trigger}")
        assert ledger.check_events() == 3
        db.execute(change)
    db.close()
    with pytest.raises(StorageDamaged, match=r"event [23] (was altered|is missing)"):
        ledger.check_events()


@pytest.mark.parametrize("change", ["UPDATE event SET kind = 'x'", "DELETE FROM event",
                                    "UPDATE event SET detail_json = '{}' WHERE number = 1"])
def test_events_cannot_be_changed_or_removed(ledger: Ledger, change: str) -> None:
    ledger.event("kind")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        ledger.query(change)
    assert ledger.check_events() == 1


# Checkpoints ----------------------------------------------------------------------------------------------------------


def test_what_is_checkpointed_elsewhere_reaches_the_file_and_nobody_sees_a_change(tmp_path: Path) -> None:
    ledger, alone = opened(tmp_path), tmp_path / "alone" / "ledger.sqlite"
    alone.parent.mkdir()
    ledger.checkpointed_elsewhere()
    ledger.queue_study("s", study_config(rounds=3))
    version = ledger.data_version()

    def studies_in_the_file() -> int:
        """Without the journal beside it."""
        alone.write_bytes(ledger.path.read_bytes())
        db = sqlite3.connect(f"file:{alone}?immutable=1", uri=True)
        try:
            return int(db.execute("SELECT count(*) FROM study").fetchone()[0])
        except sqlite3.DatabaseError:
            return 0
        finally:
            db.close()

    assert studies_in_the_file() == 0
    ledger_file.checkpoint(ledger.path)
    assert studies_in_the_file() == 1
    assert ledger.data_version() == version, "else everyone who waits would look at everything anew"
    ledger.close()


class _Failing:
    """A connection of which some statements fail, as on a disk that refuses."""

    def __init__(self, db: sqlite3.Connection, *failing: str, code: int = sqlite3.SQLITE_IOERR) -> None:
        self._db, self.failing, self._code = db, failing, code

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        if sql in self.failing:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return self._db.execute(sql, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def test_a_transaction_that_can_neither_be_committed_nor_taken_back_does_not_swallow_the_next(ledger: Ledger) -> None:
    failing = _Failing(ledger._db, "COMMIT", "ROLLBACK")
    ledger._db = failing  # type: ignore[assignment]
    with pytest.raises(SystemTrouble, match="disk I/O error"):
        ledger.event("lost")
    failing.failing = ()
    ledger.event("kept")
    assert not ledger._db.in_transaction
    assert [row["kind"] for row in ledger.query("SELECT kind FROM event")] == ["kept"]
    assert ledger.check_events() == 1


def test_what_the_disk_did_not_keep_of_the_log_is_nothing_that_lasts_hangs_on(tmp_path: Path,
                                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """After fsync has failed Linux holds the pages of an earlier transaction for written, which did not wait for the
    disk. SQLite reads its log up to the first page that is missing: what follows would be gone with it, though its own
    fsync said that all was well."""
    monkeypatch.setattr(ledger_file, "_BUSY_SECONDS", 0.05)
    ledger, log = Ledger(tmp_path / "ledger.sqlite"), tmp_path / "ledger.sqlite-wal"
    ledger.query("PRAGMA wal_checkpoint(TRUNCATE)")
    with ledger.transaction(lasting=False):
        ledger.event("not waited for")
    failing = _Failing(ledger._db, "COMMIT", code=sqlite3.SQLITE_IOERR_FSYNC)
    ledger._db = failing  # type: ignore[assignment]
    with pytest.raises(SystemTrouble, match="disk I/O error"):
        ledger.event("tried")
    failing.failing = ()
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM event").fetchone() == (1,)
        for _ in range(2):
            with pytest.raises(SystemTrouble, match="another process has it open"):
                ledger.event("tried")
    ledger.event("lasts")
    kept = log.stat().st_size
    ledger.event("is logged behind that")
    assert log.stat().st_size > kept, "once is enough"
    alone = tmp_path / "alone.sqlite"
    alone.write_bytes(ledger.path.read_bytes())  # as if the log were lost
    ledger.close()
    with closing(sqlite3.connect(f"file:{alone}?immutable=1", uri=True)) as file:
        assert file.execute("SELECT kind FROM event").fetchall() == [("not waited for",)]
