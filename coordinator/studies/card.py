"""The study card of a study that has begun, as its coordinator makes it.

Tests: tests/common/methods/test_study_card.py.
"""

from __future__ import annotations

from semisilo.common.config import to_dict
from semisilo.common.methods import find_method
from semisilo.common.methods.study_card import StudyCard, settings_for_card
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.studies.study_file import StudyConfig

__all__ = ["card_of"]


def card_of(name: str, config: StudyConfig, frozen: FrozenStudy) -> StudyCard:
    """What the study asks of every silo."""
    spec, model = find_method(config.method.name), config.model
    return StudyCard(
        study=name, rounds=config.study.rounds, method=spec.name,
        settings=settings_for_card(spec, to_dict(config.method.settings)),
        model=model.sent(frozen.classes),
        image=frozen.image, augmentation=config.augmentation.decided(frozen.left_out_views), numerics=config.numerics,
        seed=config.study.seed, uplink=config.wire.uplink_form(), measure=str(frozen.study_measure),
        privacy=config.privacy,
        receives={group: str(meaning.value) for group, meaning in spec.receives.items()},
        sends={group: str(meaning.value) for group, meaning in spec.up.items()}, numbers=spec.tells,
        discloses=spec.discloses)
