"""How far this site's images are from the study's in the network's own features, as training last saw:
`study_features.json`. For `silo check` and `silo data`, which have no network.

Tests: tests/silo/compute/test_feature_likeness.py.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.preview.likeness import FEWEST_IMAGES
from semisilo.common.errors import BadConfiguration
from semisilo.common.storage.durable import write_durably

__all__ = ["StudyFeatures", "note_study_features", "read_study_features"]

_FARTHEST = 0.2
"""Measured (docs/data.md): images of two classes of the study's own kind come to 0.19 at most, of a single one to
0.29."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFeatures:
    """What was compared, and what came of it."""

    study: str
    round: int
    """Whose model it was."""
    images: int
    """Of this site, that were looked at."""
    layer: str
    """The one that they are farthest at."""
    distance: float
    """There, in standard deviations of the study's images: `semisilo.silo.compute.feature_likeness`."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.distance) and self.distance >= 0 and self.images >= FEWEST_IMAGES):
            raise ValueError("a comparison of features that cannot be")

    @property
    def is_unlike(self) -> bool:
        """Whether they are farther than other images of the study's kind may be."""
        return self.distance > _FARTHEST

    @property
    def text(self) -> str:
        """For a person, without a full stop."""
        return (f"{self.images} images of this site look {'un' if self.is_unlike else ''}like those of study"
                f" {self.study} in the features of its network (round {self.round}): {self.distance:.2f} standard"
                f" deviations away, up to {_FARTHEST:g} is usual")


def note_study_features(path: Path, found: StudyFeatures) -> None:
    """Writes the note. Raises: OSError."""
    write_durably(path, json.dumps(to_dict(found)).encode() + b"\n")


def read_study_features(path: Path) -> StudyFeatures | None:
    """The note; None where there is none, or a damaged one."""
    try:
        return from_dict(StudyFeatures, json.loads(path.read_bytes()))
    except (OSError, ValueError, BadConfiguration):
        return None
