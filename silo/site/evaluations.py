"""Accuracy of global models on this site's own test images: the record `evaluations.json`, oldest first.

It is written durably before anything of it is sent, and stays here whatever the policy says about sending.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from semisilo.common.config import ABSENT_AT_DEFAULT, from_dict, to_dict
from semisilo.common.errors import BadConfiguration
from semisilo.common.measures.independent_images import IndependentImages, by_what
from semisilo.common.measures.site_evaluation import SiteEvaluation, SiteScores, estimate_text, site_scores
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure, parse_measure
from semisilo.common.storage.durable import write_durably
from semisilo.common.text.describe import counted

__all__ = ["EvaluationRecord", "RecordedEvaluation", "read_evaluations", "scores_text"]

_MOST_KEPT = 1000
"""Two studies of 500 rounds; the file is written anew for every round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEvaluation:
    """One model on this site's test images."""

    unix: float
    """When that was, Unix seconds."""
    evaluation: SiteEvaluation
    class_names: tuple[str, ...]
    """In label order."""
    measure: str = ""
    """What the study compares rounds by, as `parse_measure` reads it; empty: accuracy."""
    independent: IndependentImages | None = field(default=None, metadata=ABSENT_AT_DEFAULT)
    """What the images are worth where several are of one patient; None where every image counts, and in what an earlier
    version recorded. It is not sent."""
    authority: str = field(default="", metadata=ABSENT_AT_DEFAULT)
    """`authority_id` of the federation whose study it is; empty in what an earlier version recorded."""

    def __post_init__(self) -> None:
        self.scores()  # a record that cannot be shown is none

    @property
    def study_measure(self) -> StudyMeasure:
        """What the study compares rounds by."""
        return parse_measure(self.measure) if self.measure else ACCURACY

    def scores(self) -> SiteScores:
        """Accuracy, balanced accuracy and the study's measure with intervals. Raises: ValueError for what cannot be."""
        return site_scores(self.evaluation, self.study_measure, self.class_names, self.independent)

    def is_of(self, study: str, round: int, *, labels_alone: bool = False, model_digest: str = "") -> bool:
        """Whether it is about that model; without a digest, about any of that round."""
        found = self.evaluation
        return (found.study, found.round, found.labels_alone) == (study, round, labels_alone) \
            and model_digest in ("", found.model_digest)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    evaluations: tuple[RecordedEvaluation, ...] = ()


class EvaluationRecord:
    """The record, for the one agent that writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = read_evaluations(path)

    @property
    def newest(self) -> RecordedEvaluation | None:
        """What was evaluated last; None before the first."""
        return self._kept[-1] if self._kept else None

    def find(self, study: str, round: int, *, authority: str, labels_alone: bool = False,
             model_digest: str = "") -> RecordedEvaluation | None:
        """What was found of that model, rather than of another of the same round; None where it was not evaluated.

        Args:
            authority: of the federation whose study it is; another may have one of the same name.
            model_digest: as the coordinator named it; empty where it did not: any model of that round counts, the
                newest first.
        """
        return next((each for each in reversed(self._kept) if each.authority in ("", authority)
                     and each.is_of(study, round, labels_alone=labels_alone, model_digest=model_digest)), None)

    def add(self, found: RecordedEvaluation) -> None:
        """Writes it durably; the oldest of too many go. Raises: OSError, with nothing changed."""
        kept = (*self._kept[-_MOST_KEPT + 1:], found)
        write_durably(self._path, json.dumps(to_dict(_Kept(evaluations=kept)), ensure_ascii=False).encode() + b"\n")
        self._kept = kept


def read_evaluations(path: Path) -> tuple[RecordedEvaluation, ...]:
    """What is recorded, oldest first; nothing where there is no file, or a damaged one."""
    try:
        return from_dict(_Kept, json.loads(path.read_bytes())).evaluations
    except (FileNotFoundError, ValueError, BadConfiguration):
        return ()


def scores_text(entry: RecordedEvaluation) -> str:
    """A line for a person: "study lung, model of round 3: accuracy 81.2 % (76.0 to 85.4 %), ..."."""
    found, scores, measure = entry.evaluation, entry.scores(), entry.study_measure
    named = scores.by_measure(measure)
    which = "labels alone" if found.labels_alone else f"model of round {found.round}"
    numbers = ", ".join(f"{each.title} {estimate_text(value, each)}" for each, value in named.items())
    return f"study {found.study}, {which}: {numbers}; {counted(scores.count, 'image')}, {by_what(entry.independent)}"
