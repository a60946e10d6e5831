"""Learning from labels alone (SL).

Tests: tests/silo/objectives/test_objectives.py.
"""

from __future__ import annotations

from semisilo.common.data.form import ImageForm
from semisilo.silo.objectives.step import Objective, Step

__all__ = ["Supervised"]


class Supervised(Objective):
    """lambda_s * CE(y, f(x)). With all images labelled it is the upper bound of the semi-supervised methods.

    Source: FedMatch (Jeong et al.), "SL".
    """

    def __init__(self, form: ImageForm, *, lambda_s: float = 1.0) -> None:
        super().__init__(form)
        self._lambda_s = lambda_s

    def labelled_weight(self, step: Step) -> float:
        return self._lambda_s
