"""How well global models do on the test images of silos, as these say: noted, or dropped where it cannot be.

Tests: tests/coordinator/tasks/test_site_evaluations.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from semisilo.common.measures.site_evaluation import SiteEvaluation
from semisilo.common.text.seldom_lines import SeldomLines
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.tasks import add_site_evaluation, has_taken_part, is_committed, is_other_model

__all__ = ["SiteEvaluations"]

_LOG = logging.getLogger("semisilo.coordinator")


class SiteEvaluations:
    """Takes evaluations of models that their silo may have."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lines = SeldomLines()
        """About those that are dropped: a silo may send others at any rate."""

    def may_hear_of(self, silo: str, study: str, *, num_classes: int) -> bool:
        """Whether there is such a study and it has so many classes: to be asked before an evaluation is parsed, which
        costs time by its classes. Says in the log that it is dropped where not."""
        row = self._ledger.find_study(study)
        if row is not None and num_classes == len(row.classes):
            return True
        if row is None:
            self._drop(silo, "there is no such study")
        else:
            self._drop(silo, "the study has other classes", f"{len(row.classes)} of them")
        return False

    def note(self, silo: str, found: SiteEvaluation) -> None:
        """Takes what a silo says of a model that it may have; anything else is dropped, for the silo must go on."""
        if not self.may_hear_of(silo, found.study, num_classes=len(found.classes)):
            return
        row = self._ledger.study(found.study)
        about = f"round {found.round}"
        if row.frozen is None or found.multi_label != (row.frozen.task == "multi_label"):
            why = "its counts are those of another kind of label"
        elif not is_committed(self._ledger, found.study, found.round):
            why = "its round is not committed"
        elif found.labels_alone and (row.baseline is None or not row.baseline.model_digest):
            why = "there is no model of labels alone"
        elif is_other_model(self._ledger, row, found):
            why = "the model of its round is another one by now"
        elif not has_taken_part(self._ledger, found.study, silo):
            why = "the silo has had no part in the study"
        else:
            with self._ledger.transaction(lasting=False):
                add_site_evaluation(self._ledger, silo, found, now_unix=self._clock())
            return
        self._drop(silo, why, about)

    def _drop(self, silo: str, why: str, about: str = "") -> None:
        """Says so in the log, once an hour for each reason of a silo.

        Args:
            about: what else is to be said, which may be different each time.
        """
        if self._lines.standing(silo, why) is None:
            _LOG.warning("an evaluation of silo %s is dropped: %s%s", silo, why, f" ({about})" if about else "")
