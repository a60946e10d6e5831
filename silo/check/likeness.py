"""`silo check`, the images against the study's: intensity and colour of a sample, and what training last saw of them in
the network's features. Without torch."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

from semisilo.common.errors import SemisiloError
from semisilo.silo.check.finding import Finding
from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.site.home import SiloHome

if TYPE_CHECKING:
    from semisilo.silo.site.policy import Policy

__all__ = ["look_at_features", "look_at_likeness"]


def look_at_likeness(home: SiloHome, policy: Policy, needs: StudyNeeds) -> list[Finding]:
    """Compares up to 64 images of each source with what the study was normalised on; notes that for `silo data`.

    [] where there is nothing to compare with, and where the images cannot be used, which another finding says.
    """
    from semisilo.common.data.preview.likeness import FEWEST_IMAGES, statistics_of, unlikeness
    from semisilo.common.data.preview.preview import sample_of
    from semisilo.silo.site.images_choice import choose_data
    from semisilo.silo.site.study_images import StudyImages, note_study_images

    if not needs.begun or needs.normalisation_images < FEWEST_IMAGES:
        return []
    study = StudyImages(study=needs.task.study, form=needs.task.image, images=needs.normalisation_images)
    with contextlib.suppress(OSError):  # `silo data` says less then
        note_study_images(home.study_images, study)
    try:
        choice = choose_data(home, policy.data, data=None, on_error=None)
        pictures = [square for source in choice.sources
                    for square in sample_of(source, form=study.geometry, reading=study.form.reading,
                                            selection=choice.selection)]
    except (SemisiloError, OSError, ValueError):
        return []
    if len(pictures) < FEWEST_IMAGES:
        return []
    found = statistics_of(pictures)
    facts = {"site": asdict(found), "study": asdict(study.statistics)}
    if unlike := unlikeness(found, study.statistics):
        return [Finding(
            what="likeness", state="warning", facts=facts,
            remedy="Look at them: silo data. Check how they were exported (inverted, windowed, scaled); if it is right,"
            + (" there is nothing to do, since the study standardises images one by one."
               if needs.task.image.standardise == "image" else
               " tell the coordinator's operator, who may begin a study with [data] image.standardise = \"image\"."),
            text=f"A sample of {len(pictures)} images is unlike those of the study: {'. '.join(unlike)}")]
    return [Finding(what="likeness", state="ok", facts=facts,
                    text=f"{len(pictures)} images have brightness and contrast like the study's "
                         f"{study.images}")]


def look_at_features(home: SiloHome, needs: StudyNeeds) -> list[Finding]:
    """What this silo's last training in the study has noted of its images in the network's features; [] where it has
    not."""
    from semisilo.silo.site.study_features import read_study_features

    found = read_study_features(home.study_features)
    if found is None or found.study != needs.task.study:
        return []
    return [Finding(
        what="features", state="warning" if found.is_unlike else "ok", text=found.text, facts=asdict(found),
        remedy="Look at them: silo data. Check how they were exported (inverted, windowed, blurred, noisy); if it is"
        " right, tell the coordinator's operator." if found.is_unlike else "")]
