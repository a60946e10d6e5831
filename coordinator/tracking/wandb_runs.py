"""Weights & Biases runs of studies: settings, numbers of each round, report and model. Offline unless said otherwise.

Offline, runs are written to a folder, and `wandb sync` sends them when and where somebody wants. Which run a study has,
and up to which round it was told, stands in the ledger; a later process goes on with the same run, in a folder of its
own, as W&B does it. A study goes to one run: steps are rounds, which W&B takes in rising order only. So one whose
rounds are done again, of which W&B was told, goes on in another run (`lineage`).

Tests: tests/coordinator/tracking/test_wandb.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from semisilo.common.errors import Unreachable
from semisilo.common.text.logs import printable
from semisilo.coordinator.federation.tracking_table import WandbMode
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.records import StudyRow
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.ledger.tracking import TrackedRun, add_tracked_run, note_complete, note_told, tracked_run
from semisilo.coordinator.tracking.facts import LABELS_ALONE, RoundFacts, RoundReader, flat_settings
from semisilo.coordinator.tracking.lineage import forget_what_a_restore_undid, lineage_of

__all__ = ["WandbRuns"]

_ENDED = (StudyState.COMPLETED, StudyState.FAILED, StudyState.STOPPED)
_ENVIRONMENT = {"WANDB_SILENT": "true", "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true",
                "WANDB_ERROR_REPORTING": "false"}
"""It says nothing on the terminal, looks at no repository and saves no code, and reports its own errors to nobody. Nor
does it tell of the machine: settings of `init` keep its name, its load and its packages back."""
_INIT_SECONDS = 30.0


class WandbRuns:
    """Keeps the runs of studies in one project. For a process of its own: W&B starts another one."""

    def __init__(self, ledger: Ledger, project: str, *, mode: WandbMode, folder: Path, federation: str) -> None:
        """
        Args:
            project: its name; made when missing.
            mode: "offline" writes files below `folder` alone; "online" sends to the server of $WANDB_BASE_URL, or to
                W&B's own, with $WANDB_API_KEY.
            federation: its name, as the group of the runs.
        """
        os.environ.update(_ENVIRONMENT)
        self._ledger = ledger
        self._project = project
        self._mode = mode
        self._folder = folder
        self._federation = federation
        self._readers: dict[str, RoundReader] = {}
        self._open: dict[str, tuple[str, Any]] = {}
        """Study -> (id of its run, the run)."""

    @property
    def target(self) -> str:
        """What the ledger knows this tracker by."""
        return f"wandb:{self._mode}:{self._project}"

    def catch_up(self, study: str, *, artefacts: Callable[[str, Path], Sequence[Path]]) -> int:
        """Tells what a study's run does not know yet; returns how many rounds were new.

        Args:
            artefacts: gathers what a study that is over hands over: (study, an empty folder) -> files and folders.
        Raises: Unreachable when W&B cannot be told; nothing is lost by that.
        """
        row = self._ledger.study(study)
        known = self._known(row)
        reader = self._readers.setdefault(study, RoundReader(self._ledger, study))
        rounds = reader.rounds_after(known.last_round)
        if forget_what_a_restore_undid(self._ledger, study, self.target, last_round=known.last_round, rounds=rounds):
            known = self._known(row)
            rounds = reader.rounds_after(known.last_round)
        over = row.state in _ENDED
        if not rounds and (known.complete or not over):
            return 0
        self._asked(lambda: self._tell(row, known, rounds))
        if rounds:
            note_told(self._ledger, study, self.target, last_round=rounds[-1].number)
        if known.complete:  # it went on after it had ended
            note_complete(self._ledger, study, self.target, complete=False)
        if over:
            with TemporaryDirectory(prefix="semisilo-tracking-") as folder:
                self._asked(lambda: self._end(row, artefacts(study, Path(folder))))
            note_complete(self._ledger, study, self.target, complete=True)
        return len(rounds)

    def close(self) -> None:
        """Writes out what is open. Runs of studies that go on are taken up again by a later process."""
        for study in list(self._open):
            self._asked(self._open.pop(study)[1].finish)

    # A run ------------------------------------------------------------------------------------------------------------

    def _known(self, row: StudyRow) -> TrackedRun:
        return tracked_run(self._ledger, row.name, self.target) or add_tracked_run(
            self._ledger, row.name, self.target, run=self._id_of(row))

    def _id_of(self, row: StudyRow) -> str:
        """The same in every process, so that one that was killed leaves no second run."""
        text = f"{self._federation}\0{row.name}\0{row.queued_unix!r}"
        if key := lineage_of(self._ledger, row.name).key:
            text += f"\0{key}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _run(self, row: StudyRow, known: TrackedRun) -> Any:
        if row.name in self._open and self._open[row.name][0] != known.run:
            self._finish(self._open.pop(row.name)[1], state="undone", reason=lineage_of(self._ledger, row.name).reason,
                         exit_code=1)
        if row.name not in self._open:
            import wandb

            self._folder.mkdir(parents=True, exist_ok=True)
            self._open[row.name] = known.run, wandb.init(
                project=self._project, id=known.run, group=self._federation, mode=self._mode, resume="allow",
                name=lineage_of(self._ledger, row.name).name, reinit="create_new",
                dir=str(self._folder), config=flat_settings(row.config),
                settings=wandb.Settings(console="off", disable_git=True, save_code=False, host=self._federation,
                                        x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
                                        init_timeout=_INIT_SECONDS))
        return self._open[row.name][1]

    def _tell(self, row: StudyRow, known: TrackedRun, rounds: Sequence[RoundFacts]) -> None:
        run = self._run(row, known)
        for entry in rounds:
            numbers = dict(entry.scalars)
            numbers |= {f"pseudo_labels/{label}": count for label, count in enumerate(entry.pseudo_labels)}
            run.log({**numbers, "committed_unix": entry.unix}, step=entry.number)

    def _end(self, row: StudyRow, files: Sequence[Path]) -> None:
        import wandb

        run = self._open.pop(row.name)[1]
        last = RoundReader(self._ledger, row.name).rounds_after(-1)[-1:]
        for entry in last:  # labels alone may be done later than the rounds, whose steps are over
            run.summary.update({name: value for name, value in entry.scalars.items()
                                if name.startswith(LABELS_ALONE.removesuffix("accuracy"))})
        for path in files:
            made = wandb.Artifact(f"{self._federation}-{row.name}-{path.stem}",
                                  type="model" if path.suffix == ".safetensors" else "report")
            if path.is_dir():
                made.add_dir(str(path))
            else:
                made.add_file(str(path))
            run.log_artifact(made)
        self._finish(run, state=str(row.state), reason=row.reason,
                     exit_code=0 if row.state is StudyState.COMPLETED else 1)

    def _finish(self, run: Any, *, state: str, reason: str, exit_code: int) -> None:
        run.summary["state"] = state
        if reason:
            run.summary["reason"] = printable(reason, limit=500)
        run.finish(exit_code=exit_code)

    def _asked(self, call: Callable[[], None]) -> None:
        """Raises: Unreachable for whatever W&B raises: its errors are of many kinds."""
        try:
            call()
        except Exception as error:
            text = printable(str(error), limit=300).strip() or type(error).__name__
            raise Unreachable(f"Weights & Biases ({self._mode}) cannot be told: {text}.".replace("..", "."),
                              remedy="The study goes on; what it was not told it is told the next time.") from error
