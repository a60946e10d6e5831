"""`silo peers`: whom a silo knows, with numbers to be read to each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.secure_aggregation.trust import fingerprint, short_number
from semisilo.silo.site import peers as peers_module
from semisilo.silo.site.home import SiloHome
from tests.processes import run_command

SILO = "semisilo.silo.cli.main"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiloHome:
    class Enrolled:
        silo = "hospital-a"

    monkeypatch.setattr(peers_module, "load_identity", lambda folder: Enrolled())
    return SiloHome(tmp_path)


def shown(home: SiloHome, *words: str) -> tuple[int, str, str]:
    return run_command(SILO, "peers", "--home", str(home.folder), *words)


def test_alone_it_shows_its_own_number_and_what_comes(home: SiloHome) -> None:
    status, out, _ = shown(home)
    assert status == 0
    assert f"hospital-a  {short_number(SecureStore(home.secure).identity())}  this silo" in out
    assert "No other silo was seen yet" in out


def test_those_that_were_seen_come_with_lines_for_silo_toml_that_make_them_pinned(home: SiloHome) -> None:
    SecureStore(home.secure).know({"hospital-b": b"b" * 32})
    _, out, _ = shown(home)
    assert f"hospital-b  {short_number(b'b' * 32)}  seen" in out
    home.policy.write_text(out[out.index("[peers]"):])
    _, out, _ = shown(home)
    assert f"hospital-b  {short_number(b'b' * 32)}  pinned" in out
    assert "[peers]" not in out


def test_a_pin_that_differs_from_what_was_seen_is_said(home: SiloHome) -> None:
    SecureStore(home.secure).know({"hospital-b": b"b" * 32})
    home.policy.write_text(f'[peers]\nhospital-b = "{fingerprint(b"c" * 32)}"\n')
    _, out, _ = shown(home, "--json")
    found = {each["silo"]: each for each in json.loads(out)}
    assert found["hospital-b"]["state"] == "pinned, and seen with another key"
    assert found["hospital-b"]["number"] == short_number(b"c" * 32)


def test_a_silo_can_be_forgotten(home: SiloHome) -> None:
    SecureStore(home.secure).know({"hospital-b": b"b" * 32})
    status, out, _ = shown(home, "--forget", "hospital-b")
    assert (status, SecureStore(home.secure).known) == (0, {})
    assert "hospital-b" in out
    status, _, err = shown(home, "--forget", "hospital-b")
    assert status == 2
    assert "No silo 'hospital-b' was seen here" in err


def test_a_program_hears_which_silo_was_forgotten(home: SiloHome) -> None:
    SecureStore(home.secure).know({"hospital-b": b"b" * 32})
    status, out, _ = shown(home, "--forget", "hospital-b", "--json")
    assert (status, json.loads(out)) == (0, {"forgotten": "hospital-b"})


def test_while_the_silo_works_nothing_is_forgotten_and_the_command_for_afterwards_is_said(home: SiloHome) -> None:
    SecureStore(home.secure).know({"hospital-b": b"b" * 32})
    with home.lock():
        status, _, err = shown(home, "--forget", "hospital-b")
    assert status != 0
    assert f"then: silo peers --forget hospital-b --home {home.folder}" in err
    assert "--home of its own" not in err
    assert SecureStore(home.secure).known


def test_nothing_is_forgotten_or_made_in_a_folder_that_holds_no_silo(tmp_path: Path) -> None:
    status, _, err = run_command(SILO, "peers", "--home", str(tmp_path / "typo"), "--forget", "hospital-b")
    assert (status, err.count("\n")) == (2, 1)
    assert not (tmp_path / "typo").exists()


def test_a_line_that_is_no_fingerprint_is_named(home: SiloHome) -> None:
    home.policy.write_text('[peers]\nhospital-b = "12345"\n')
    status, _, err = shown(home)
    assert status != 0
    assert "[peers] hospital-b" in err


def test_on_a_narrow_terminal_numbers_stand_below_names_and_what_is_copied_is_whole(
        home: SiloHome, monkeypatch: pytest.MonkeyPatch) -> None:
    SecureStore(home.secure).know({"hospital-b": b"b" * 32})
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = shown(home)
    lines = out.splitlines()
    at = lines.index("hospital-b")
    assert lines[at + 1:at + 3] == [f"  {short_number(b'b' * 32)}", "  seen"]
    copied = f'hospital-b = "{fingerprint(b"b" * 32)}"'
    assert copied in lines
    assert max(len(line) for line in lines if line != copied) <= 40
