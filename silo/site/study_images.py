"""What the images of the current study are like, as `silo check` last heard: `study_images.json`. For `silo data`,
which asks nobody.

Tests: tests/silo/check/test_likeness.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.config import from_dict, to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.preview.likeness import ChannelStatistics
from semisilo.common.errors import BadConfiguration
from semisilo.common.storage.durable import write_durably

__all__ = ["StudyImages", "note_study_images", "read_study_images"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyImages:
    """The form of a study's images, with mean and deviation of the coordinator's own."""

    study: str
    form: ImageForm
    images: int
    """Of the coordinator, that mean and deviation were measured on."""

    @property
    def geometry(self) -> Geometry:
        """The squares that pictures are brought to."""
        return Geometry(size=self.form.size, channels=self.form.channels, resize=self.form.resize)

    @property
    def statistics(self) -> ChannelStatistics:
        """Of the coordinator's images."""
        return ChannelStatistics(images=self.images, mean=self.form.mean, std=self.form.std)


def note_study_images(path: Path, found: StudyImages) -> None:
    """Writes the note. Raises: OSError."""
    write_durably(path, json.dumps(to_dict(found)).encode() + b"\n")


def read_study_images(path: Path) -> StudyImages | None:
    """The note; None where there is none, or a damaged one."""
    try:
        found = from_dict(StudyImages, json.loads(path.read_bytes()))
        found.statistics  # noqa: B018 - whether it can be
        return found
    except (OSError, ValueError, BadConfiguration):
        return None
