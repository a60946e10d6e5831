"""What a silo keeps for secure sums is there again after a kill, and nobody else can read it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from semisilo.common.errors import StorageDamaged
from semisilo.common.secure_aggregation.roster import ADDED, Roster, append
from semisilo.silo.secure_aggregation.session import begin
from semisilo.silo.secure_aggregation.store import SecureStore
from tests.secure_sums import a_total
from tests.synced_paths import synced_paths


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "secure"
    store = SecureStore(folder)
    assert not folder.exists()
    key = store.identity()
    assert SecureStore(folder).identity() == key
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    store.keep("first", begin(a_total(3), silo="a"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_a_sum_is_there_again_and_the_next_one_replaces_it(tmp_path: Path) -> None:
    session = begin(a_total(3), silo="a")
    SecureStore(tmp_path).keep("first", session)
    found = SecureStore(tmp_path)
    assert found.session("first") == session
    assert found.session("second") is None
    found.keep("first", begin(a_total(3, round_number=2), silo="a"))
    text = (tmp_path / "sums.json").read_text()
    assert session.mask_key.hex() not in text
    assert session.self_secret.hex() not in text


def test_what_is_found_is_on_the_disk_before_anything_is_done_upon_it(tmp_path: Path) -> None:
    """The process that wrote it may have been killed before it could wait for the disk: a masked update that is sent
    then would be forgotten if the power went, and could be masked twice."""
    store = SecureStore(tmp_path)
    store.identity()
    store.keep("first", begin(a_total(3), silo="a"), masks=True)
    with synced_paths() as synced:
        SecureStore(tmp_path).identity()
    assert synced == [str(tmp_path / "sums.json"), str(tmp_path), str(tmp_path / "identity.key"), str(tmp_path)]


def test_a_masked_round_is_remembered_for_good(tmp_path: Path) -> None:
    store = SecureStore(tmp_path)
    store.keep("first", begin(a_total(3, round_number=4), silo="a"))
    assert not store.has_masked("first", 4, "train")
    store.keep("first", begin(a_total(3, round_number=4), silo="a"), masks=True)
    store.keep("first", begin(a_total(3, round_number=2), silo="a"), masks=True)
    found = SecureStore(tmp_path)
    assert found.has_masked("first", 4, "train")
    assert found.has_masked("first", 3, "train"), "no earlier round either"
    assert not found.has_masked("first", 4, "another phase")
    assert not found.has_masked("first", 5, "train")
    assert not found.has_masked("second", 1, "train")
    assert found.last_masked("first") == (4, "train")
    assert found.last_study == "first"


def test_peers_are_known_as_they_were_first_seen_until_they_are_forgotten(tmp_path: Path) -> None:
    store = SecureStore(tmp_path)
    store.know({"b": b"1" * 32, "c": b"2" * 32})
    store.know({"b": b"9" * 32})
    assert SecureStore(tmp_path).known == {"b": b"1" * 32, "c": b"2" * 32}
    assert store.forget("b")
    assert not store.forget("b")
    store.know({"b": b"9" * 32})
    assert SecureStore(tmp_path).known["b"] == b"9" * 32


def test_the_roster_is_there_again(tmp_path: Path) -> None:
    roster, _ = append(Roster(), silo="a", identity=b"k" * 32, change=ADDED)
    SecureStore(tmp_path).take_roster(roster)
    assert SecureStore(tmp_path).roster == roster


@pytest.mark.parametrize("content", ["{", '{"format":1,"unknown":2}', "[]"])
def test_a_damaged_file_stops_the_silo_for_it_says_what_must_not_be_done_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "sums.json").write_text(content)
    with pytest.raises(StorageDamaged, match="cannot be read"):
        SecureStore(tmp_path)


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sums.json").write_text('{"format":3,"what it knows more":{}}')
    with pytest.raises(StorageDamaged, match="newer version"):
        SecureStore(tmp_path)


def test_a_file_of_an_earlier_version_is_read_and_becomes_one_of_this(tmp_path: Path) -> None:
    """Which an earlier one must not read: it would know nothing of what is kept of other federations."""
    roster, _ = append(Roster(), silo="a", identity=b"k" * 32, change=ADDED)
    SecureStore(tmp_path).take_roster(roster)
    path = tmp_path / "sums.json"
    content = json.loads(path.read_text())
    earlier = {key: content[key] for key in ("last_study", "known", "roster", "studies")}
    path.write_text(json.dumps({"format": 1, **earlier}))
    store = SecureStore(tmp_path)
    assert store.roster == roster
    store.know({"b": b"1" * 32})
    assert json.loads(path.read_text())["format"] == 2
    assert SecureStore(tmp_path).roster == roster


def test_a_damaged_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_text("no key\n")
    with pytest.raises(StorageDamaged, match="is not a key"):
        SecureStore(tmp_path).identity()


def test_a_round_of_another_federation_is_none_of_this_one(tmp_path: Path) -> None:
    """Both have a study `first`. The silo's key stays, and what was masked is known again when it returns."""
    session = begin(a_total(3, round_number=4), silo="a")
    before = SecureStore(tmp_path)  # a file of a version that wrote no authority
    key = before.identity()
    before.keep("first", session, masks=True)
    before.know({"b": b"1" * 32})
    roster, _ = append(Roster(), silo="b", identity=b"1" * 32, change=ADDED)
    before.take_roster(roster)
    SecureStore(tmp_path).belong_to("aa" * 32)
    assert SecureStore(tmp_path).has_masked("first", 4, "train"), "taken for the present federation's"
    other = SecureStore(tmp_path)
    other.belong_to("bb" * 32)
    other = SecureStore(tmp_path)
    assert not other.has_masked("first", 1, "train")
    assert (other.identity(), other.session("first"), other.known, other.roster, other.last_study) == (
        key, None, {}, Roster(), "")
    assert session.mask_key.hex() not in (tmp_path / "sums.json").read_text()
    other.keep("first", begin(a_total(3, round_number=1), silo="a"), masks=True)
    other.belong_to("aa" * 32)
    back = SecureStore(tmp_path)
    assert back.has_masked("first", 4, "train")
    assert (back.known, back.roster) == ({"b": b"1" * 32}, roster)


def test_belonging_to_a_federation_makes_no_file(tmp_path: Path) -> None:
    store = SecureStore(tmp_path / "secure")
    store.belong_to("aa" * 32)
    assert not (tmp_path / "secure").exists()
    store.keep("first", begin(a_total(3), silo="a"), masks=True)
    found = SecureStore(tmp_path / "secure")
    found.belong_to("bb" * 32)
    assert not found.has_masked("first", 1, "train")
