"""The files beside a simulation's ledger, and the commands that write them again and the parts of a study.

Tests: tests/semisilo/simulation/test_measuring.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semisilo.common.errors import UsageError
from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.report.report import write_pages
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.parts import write_parts
from semisilo.simulation.result import SimulationResult, read_result
from semisilo.simulation.settings import check_names, load_simulated_study
from semisilo.simulation.surface import SURFACE_FILE, drawn_surface

if TYPE_CHECKING:
    from semisilo.common.data.form import PatientRule
    from semisilo.coordinator.export.export import Exported

__all__ = ["export_run", "report", "split_study", "write_output"]

_PAGE = Path("report") / "index.html"


def write_output(result: SimulationResult, *, tensorboard: bool = False, again: bool = True) -> Path:
    """Writes `metrics.csv`, `metrics.json` and the report into a simulation's folder; returns the report's page.

    Args:
        again: False leaves a report that is newer than all that it shows: drawing it takes longer than all else that
            is done for a simulation that is over.
        tensorboard: also the folder `tensorboard` with an event file; where it is there, it is kept up to date anyway.
    Raises: BadConfiguration when TensorBoard is wanted and not installed.
    """
    write_durably(result.folder / "metrics.csv", result.to_csv().encode())
    write_durably(result.folder / "metrics.json", result.to_json().encode())
    wanted = again or not _is_up_to_date(result.folder)  # an open ledger has files of its own, which are new
    page = result.folder / _PAGE
    ledger = Ledger(result.folder / "ledger.sqlite")
    try:
        if tensorboard or (result.folder / "tensorboard").is_dir():
            from semisilo.coordinator.federation.tracking_table import TrackingSettings, check_installed
            from semisilo.coordinator.tracking.tensorboard_files import write_events

            check_installed(TrackingSettings(tensorboard=True))
            write_events(ledger, result.study, result.folder / "tensorboard")
        if wanted:
            write_pages(ledger, result.study, page.parent,
                        more_figures=drawn_surface(result.folder, state=result.digest))
    finally:
        ledger.close()
    if wanted:
        page.touch()  # closing the ledger has moved its last pages into its file
    return page


def _is_up_to_date(folder: Path) -> bool:
    """Whether the report was written after everything that it shows."""
    shown = [folder / "ledger.sqlite", folder / "ledger.sqlite-wal", folder / SURFACE_FILE]
    try:
        written = (folder / _PAGE).stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return all(not path.exists() or path.stat().st_mtime_ns < written for path in shown)


def report(run: Path, *, tensorboard: bool = False) -> tuple[SimulationResult, Path]:
    """Writes the files of a simulation again, at whatever moment; its result so far, and the report's page.

    Args:
        run: the simulation's folder.
        tensorboard: as `write_output` has it.
    Raises: UsageError when it holds no simulation, or one that has not begun.
    """
    folder = SimulationFolder(run.absolute())
    name = folder.read_record().study
    ledger = Ledger(folder.ledger)
    try:
        if name not in {row.name for row in ledger.studies()}:
            raise UsageError(f"{run}: this simulation has not begun.", remedy="Call `semisilo simulate STUDY` first.")
        result = read_result(ledger, name, folder.folder)
    finally:
        ledger.close()
    return result, write_output(result, tensorboard=tensorboard)


def export_run(run: Path, *, out: Path | None = None, round: str = "chosen", test: str = "",
               patient: PatientRule | None = None, formats: Collection[str] = ("safetensors", "onnx"),
               calibrate: bool = False, device: str = "auto", operating_point: str | Sequence[str] = (),
               progress: Callable[[float, str], None] | None = None) -> Exported:
    """Exports a model of a simulation: see `semisilo.coordinator.export.export`, whose errors it raises.

    Args:
        run: the simulation's folder.
        out: the folder to write; None: `export-round-N`, or `export-labels-alone`, in the simulation's.
    Raises: UsageError when `run` holds no simulation, or one that has not begun.
    """
    from semisilo.coordinator.export.choose_model import choose_model
    from semisilo.coordinator.export.export import ExportChoice, export_study

    folder = SimulationFolder(run.absolute())
    name = folder.read_record().study
    ledger = Ledger(folder.ledger)
    try:
        if name not in {row.name for row in ledger.studies()}:
            raise UsageError(f"{run}: this simulation has not begun.", remedy="Call `semisilo simulate STUDY` first.")
        study = folder.studies / name
        if out is None:
            out = folder.folder / choose_model(ledger, name, rule=round, study_folder=study).folder_name
        choice = ExportChoice(round=round, test=test, patient=patient, formats=formats, calibrate=calibrate,
                              device=device, operating_point=operating_point)
        return export_study(ledger, name, study_folder=study, out=out, choice=choice, progress=progress)
    finally:
        ledger.close()


def split_study(path: Path, *, out: Path, seed: int | None = None) -> list[str]:
    """Deals the images of a simulated study and writes the parts; returns lines that say what is where.

    Raises: UsageError when `out` is not empty; what `deal_study` raises.
    """
    study = load_simulated_study(path, seed=seed)
    check_names(study)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder.", remedy="Choose another --out.")
    dealt = deal_study(study)
    warning = dealt.check_tested_apart()
    manifest = write_parts(dealt, out)
    sets = [f"{len(images)} {name}" for name in ("labelled", "validation", "test")
            if (images := dealt.coordinator_set(name)) is not None]
    unlabelled = [len(part) for part in dealt.split.silos]
    labelled = [len(dealt.labelled_of(index)) for index in range(len(dealt.silos))]
    return [f"coordinator: {', '.join(sets) or 'no images'} -> {out / 'coordinator'}",
            f"{len(dealt.silos)} silos: {_range(unlabelled)} unlabelled, {_range(labelled)} labelled each"
            f" -> {out / 'silos'}",
            f"non-iidness R = {dealt.non_iidness():.3f} (0: the same classes everywhere, 1: none in common)"
            if dealt.classes_known else "non-iidness is not known: what the silos have has no labels",
            *(line for line in (warning, dealt.left_out_line(), dealt.unlike_line(), dealt.patients_line()) if line),
            f"manifest: {manifest}"]


def _range(numbers: list[int]) -> str:
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
