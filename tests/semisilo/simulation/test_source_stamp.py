"""A finished simulation that is asked for again: untouched files are believed, everything else is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from semisilo.common.data.formats import archive
from semisilo.common.errors import UsageError
from semisilo.simulation import SimulationResult, run
from semisilo.simulation.settings import SimulatedStudy, load_simulated_study
from semisilo.simulation.source_stamp import source_stamp
from tests.processes import run_command
from tests.semisilo.studies import study

ROOT = Path(__file__).resolve().parents[3]
TABLES = study(rounds=1, simulation={"data": "digits.npz"})


def images_written(path: Path, *, changed: bool = False) -> None:
    train, test = archive.digits("train", source="digits"), archive.digits("test", source="digits")
    images = np.array(train.images)
    images[0, 0, 0] += changed
    np.savez(path, train_images=images, train_labels=train.labels_N, test_images=test.images, test_labels=test.labels_N)


def loaded(folder: Path, data: str) -> SimulatedStudy:
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(study(simulation={"data": data})), encoding="utf-8")
    return load_simulated_study(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SimulationResult]:
    """A study file beside its images, and what came out of it in the folder `out` there."""
    folder = tmp_path_factory.mktemp("finished")
    images_written(folder / "digits.npz")
    (folder / "study.toml").write_text(tomli_w.dumps(TABLES), encoding="utf-8")
    return folder / "study.toml", run(folder / "study.toml", out=folder / "out", device="cpu")


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("the images were dealt")


@pytest.mark.slow
def test_what_is_finished_is_shown_again_without_images_and_without_torch(
        finished: tuple[Path, SimulationResult]) -> None:
    path, result = finished
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn", "grpc", "cryptography"):
            raise ImportError(f"{{name}} is not to be imported")
sys.meta_path.insert(0, Blocked())
from pathlib import Path
from semisilo.simulation import run
print(run(Path({str(path)!r}), out=Path({str(result.folder)!r})).digest)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == result.digest


@pytest.mark.slow
def test_images_that_look_touched_are_dealt_and_other_ones_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, path = tmp_path / "digits.npz", tmp_path / "study.toml"
    images_written(images)
    path.write_text(tomli_w.dumps(TABLES), encoding="utf-8")
    result = run(path, out=tmp_path / "out", device="cpu")
    before = images.stat()
    images.write_bytes(images.read_bytes())
    assert run(path, out=tmp_path / "out", device="cpu") == result, "dealt, and found to be the same"
    with monkeypatch.context() as patched:
        patched.setattr("semisilo.simulation.simulate.deal_study", refuse)
        assert run(path, out=tmp_path / "out", device="cpu") == result, "the files of now are believed from now on"
    images_written(images, changed=True)
    os.utime(images, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (images.stat().st_size, images.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(UsageError, match="another digest"):
        run(path, out=tmp_path / "out", device="cpu")


def test_other_settings_are_refused_however_untouched_the_images_are(finished: tuple[Path, SimulationResult]) -> None:
    path, result = finished
    with pytest.raises(UsageError, match="another config"):
        run(path, out=result.folder, device="cpu", seed=77)
    assert run(path, out=result.folder, device="cpu") == result


def test_a_stamp_follows_from_every_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "scans" / "a").mkdir(parents=True)
    file = tmp_path / "scans" / "a" / "1.png"
    file.write_bytes(b"1")
    asked = loaded(tmp_path, "scans")
    stamps = [source_stamp(asked), source_stamp(asked)]
    assert stamps[0] == stamps[1] != ""
    file.write_bytes(b"2")
    stamps.append(source_stamp(asked))
    file.with_name("2.png").touch()
    stamps.append(source_stamp(asked))
    assert len(set(stamps)) == 3


@pytest.mark.parametrize("data", ["table.csv", "linked", "nothing.npz"])
def test_where_other_files_may_belong_to_a_source_there_is_no_stamp(tmp_path: Path, data: str) -> None:
    (tmp_path / "table.csv").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a").symlink_to(tmp_path / "elsewhere")
    assert source_stamp(loaded(tmp_path, data)) == ""


def test_digits_are_the_same_everywhere(tmp_path: Path) -> None:
    assert source_stamp(loaded(tmp_path, "digits")) == source_stamp(loaded(tmp_path, "digits#test")) != ""


def test_a_report_that_is_newer_than_all_it_shows_is_left_alone(
        finished: tuple[Path, SimulationResult], monkeypatch: pytest.MonkeyPatch) -> None:
    path, result = finished
    page = result.folder / "report" / "index.html"

    def shown() -> int:
        status, _, error = run_command("semisilo.cli.main", "simulate", str(path), "--out", str(result.folder), "-q")
        assert status == 0, error
        return page.stat().st_mtime_ns

    monkeypatch.setattr("semisilo.coordinator.report.report.draw_figures", lambda summary: ())
    first = shown()
    assert shown() == first
    os.utime(result.folder / "ledger.sqlite")
    assert shown() > first
