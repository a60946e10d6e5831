"""`coordinator report`: one self-contained page and four plots, from the ledger alone, at any moment of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from semisilo.common.storage.durable import write_durably
from semisilo.coordinator.federation.folder import Federation
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import handed_over_beside, prefers_labels_alone, round_heads
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.report.figures import DrawnFigure, draw_figures
from semisilo.coordinator.report.page import render_page

__all__ = ["write_pages", "write_report"]


def write_report(federation: Federation, ledger: Ledger, study: str, out: Path | None = None) -> Path:
    """Writes `index.html` and the plots as PNG files.

    Args:
        federation: its name and folders go into the page.
        study: name of a study in the ledger, in whatever state.
        out: folder, made when missing; `studies/<study>/report` when None.
    Returns: the page.
    Raises: UnknownName when there is no such study; OSError when the folder cannot be written.
    """
    return write_pages(ledger, study, federation.studies / study / "report" if out is None else out,
                       federation=federation.name, address=federation.config.address.public)


def write_pages(ledger: Ledger, study: str, folder: Path, *, federation: str = "", address: str = "",
                more_figures: Sequence[DrawnFigure] = ()) -> Path:
    """As `write_report`, from a ledger alone; without a federation's name it is that of a simulation.

    Args:
        more_figures: plots that follow those of every study.
    """
    summary = summarise(ledger, study)
    folder.mkdir(parents=True, exist_ok=True)
    figures = (*draw_figures(summary), *more_figures)
    for figure in figures:
        write_durably(folder / f"{figure.name}.png", figure.light_png)
    page = folder / "index.html"
    text = render_page(federation=federation, address=address, study=summary,
                       silos=tuple(LedgerRoster(ledger).silos()), figures=figures, audit=audit(ledger, study),
                       state_digest=_handed_over_digest(ledger, summary.row),
                       last_digest=ledger.committed_digest(study))
    write_durably(page, text.encode("utf-8"))
    return page


def _handed_over_digest(ledger: Ledger, row: StudyRow) -> str:
    """Of the state whose model the study hands over as things stand, as the model card has it; '' before round 0."""
    rounds = round_heads(ledger, row.name)
    chosen = handed_over_beside(row, rounds)
    if row.baseline is not None and prefers_labels_alone(row, chosen, rounds):
        return row.baseline.model_digest
    return "" if chosen is None else chosen.state_digest
