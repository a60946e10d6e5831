"""What docs/privacy.md tells of attacks is what was measured, with the studies as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.privacy import probe, run

ROOT = Path(__file__).resolve().parents[2]


def test_every_case_was_measured_as_it_is_now() -> None:
    assert probe.lines().keys() == probe.CASES.keys()


def test_the_page_and_the_documentation_have_the_measured_numbers() -> None:
    found = probe.lines()
    assert probe.PAGE.read_text() == probe.page(found)
    documented = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    for table in (probe.membership_table(found), probe.inversion_table(found)):
        assert len(table) > 3
        assert "".join(table) in documented


def test_no_attack_found_more_than_differential_privacy_allows() -> None:
    bounded = [entry for found in probe.lines().values() for entry in found["membership"] if entry["allowed_area"]]
    assert bounded
    assert not any(entry["violates"] for entry in bounded)


def test_the_benchmark_of_privacy_has_the_probe_behind_an_option(capsys: pytest.CaptureFixture[str],
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(probe, "main", lambda arguments: asked.append(arguments) or 0)
    assert run.main(["--probe", "--page", "--cases", "fedsgd-1"]) == 0
    assert asked == [["--cases", "fedsgd-1", "--page"]]
    with pytest.raises(SystemExit):
        run.main(["--cases", "fedsgd-1"])
    assert "unrecognized arguments" in capsys.readouterr().err
