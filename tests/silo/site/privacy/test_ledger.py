"""The site's ledger of epsilon: durable before anything is trained, whole or refused, and its secret its own."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

import semisilo.silo.site.privacy.ledger as ledger_file
from semisilo.common.config import from_dict
from semisilo.common.errors import StorageDamaged
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending, spent, spent_by_study, steps_of_study

LINE = Spending(time="2026-01-01T00:00:00+00:00", study="s", round=1, phase="train", task_id="s/1/0-train/a",
                fingerprint="f1", images=100, noise_multiplier=1.0, clip_norm=1.0, sampling_rate=0.1, steps=10,
                study_delta=1e-5, study_epsilon=1.0, delta=1e-5, epsilon=1.0)


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path / "privacy")
    assert (ledger.lines(), ledger.last()) == ((), None)
    second = replace(LINE, study="t", task_id="t/1/0-train/a", fingerprint="f2")
    ledger.append(LINE)
    ledger.append(second)
    assert PrivacyLedger(tmp_path / "privacy").lines() == (LINE, second)
    assert ledger.of_study("s") == LINE
    assert ledger.of_study("x") is None


def test_what_was_read_before_is_not_parsed_again_and_what_was_changed_since_is(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, parsed = PrivacyLedger(tmp_path), list[object]()

    def counted(kind: type[Spending], entry: object) -> Spending:
        parsed.append(entry)
        return from_dict(kind, entry)

    monkeypatch.setattr(ledger_file, "from_dict", counted)
    for number in range(5):
        ledger.append(replace(LINE, round=number))
        assert [line.round for line in PrivacyLedger(tmp_path).lines()] == list(range(number + 1))
    assert len(parsed) == 5
    assert ledger.last() == replace(LINE, round=4)
    assert len(parsed) == 6
    text = ledger.path.read_text()
    for other in (text.replace('"round":1', '"round":7'), text.split("\n", 1)[1], ""):
        ledger.path.write_text(other)
        assert [line.round for line in ledger.lines()] == [json.loads(line)["round"] for line in other.splitlines()]
    ledger.path.write_text(f"{text}\n{{}}\n")
    with pytest.raises(StorageDamaged, match="line 7 cannot"):
        ledger.lines()
    ledger.path.write_text(text)
    assert len(ledger.lines()) == 5
    ledger.path.write_text(f"{text}\n{{}}\n")
    with pytest.raises(StorageDamaged, match="line 7 cannot"):
        ledger.lines()


def test_a_study_of_another_federation_is_another_study_and_a_line_that_does_not_say_may_be_of_any(
        tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path)
    one, other = replace(LINE, authority="aa", steps=3), replace(LINE, authority="bb", steps=5)
    for line in (LINE, one, other):
        ledger.append(line)
    assert ledger.lines() == (LINE, one, other)
    assert "authority" not in json.loads(ledger.path.read_text().splitlines()[0]), "an earlier version reads it"
    assert [each.steps for each in steps_of_study(ledger.lines(), "s", "aa")] == [LINE.steps, 3]
    assert spent_by_study(ledger.lines(), "aa") == {"s": one.study_epsilon}
    assert spent_by_study((one, replace(other, study_epsilon=9.0)), "aa") == {"s": one.study_epsilon}
    assert spent_by_study((one, replace(other, study_epsilon=9.0)), None) == {"s": 9.0}
    assert ledger.of_study("s", authority="aa") == one
    assert ledger.of_study("s", authority="cc") == LINE
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_all_studies_add_up(tmp_path: Path) -> None:
    lines = [LINE, replace(LINE, study="t"), replace(LINE, study="t")]
    alone, both = spent(lines, 1e-5, study="s"), spent(lines, 1e-5)
    assert 0 < alone < spent(lines, 1e-5, study="t") < both


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_line_that_a_kill_has_cut_short_was_never_spent_and_is_written_over(tmp_path: Path, cut: int) -> None:
    ledger = PrivacyLedger(tmp_path)
    ledger.append(LINE)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + whole[:-cut])
    assert ledger.lines() == (LINE,)
    ledger.append(replace(LINE, round=2))
    assert [line.round for line in ledger.lines()] == [1, 2]


@pytest.mark.parametrize("content", [b"{}\n", b"not JSON\n", b'{"time": 1}\n', b"[1]\n"])
def test_a_damaged_line_stops_everything_with_one_line(tmp_path: Path, content: bytes) -> None:
    """Whoever cannot say what was spent must spend no more."""
    ledger = PrivacyLedger(tmp_path)
    ledger.append(LINE)
    ledger.path.write_bytes(content + ledger.path.read_bytes())
    with pytest.raises(StorageDamaged, match="line 1 cannot be read") as error:
        ledger.lines()
    assert "backup" in error.value.remedy


def test_the_key_follows_from_the_secret_and_the_fingerprint(tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path / "a")
    key = ledger.key_of("f1")
    assert len(key) == 32
    assert PrivacyLedger(tmp_path / "a").key_of("f1") == key  # after a restart
    assert ledger.key_of("f2") != key
    assert PrivacyLedger(tmp_path / "b").key_of("f1") != key  # another silo
    assert stat.S_IMODE((tmp_path / "a" / "noise.key").stat().st_mode) == 0o600


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.key").write_bytes(b"short")
    with pytest.raises(StorageDamaged, match="32 bytes"):
        PrivacyLedger(tmp_path).key_of("f1")


def test_a_failed_write_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = PrivacyLedger(tmp_path)
    ledger.append(LINE)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("semisilo.silo.site.privacy.ledger.sync_file", full)
    with pytest.raises(OSError, match="No space"):
        ledger.append(replace(LINE, round=2))
    assert ledger.lines() == (LINE,)
