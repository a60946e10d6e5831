"""What `coordinator queue` checks beyond the file: what opening the study would refuse.

Tests: tests/coordinator/cli/test_bad_input.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semisilo.coordinator.federation.folder import Federation
    from semisilo.coordinator.ledger.records import FrozenStudy
    from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["check_images"]


def check_images(federation: Federation, study: str, *, progress: Callable[[float, str], None]
                 ) -> Callable[[StudyConfig, FrozenStudy | None], None]:
    """The check of a study over its images, for `semisilo.coordinator.studies.queue.queue_study`. torch is
    imported when it runs."""
    def check(config: StudyConfig, frozen: FrozenStudy | None) -> None:
        from semisilo.coordinator.compute.operations import check_study

        check_study(config, folder=federation.studies / study, frozen=frozen, num_silos=config.study.start_with,
                    images_folder=federation.images if federation.config.limits.images_on_disk else None,
                    progress=progress)

    return check
