"""What the current study asks of a silo, and what its last rounds took of it: the answer to `silo check`.

Nothing here is about another silo by name: of others only the median size of an update is told.
"""

from __future__ import annotations

import functools
import json
import statistics
from dataclasses import dataclass, replace

from semisilo.common.config import canonical_json
from semisilo.common.data.form import ImageForm
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, contribution_of, shares_noise
from semisilo.common.methods.parts.secure_sum import MAX_SILOS, threshold_of, totals_of
from semisilo.common.methods.uplink import Uplink
from semisilo.common.secure_aggregation.mask_form import MaskForm, share_count
from semisilo.common.secure_aggregation.words import packed_bytes
from semisilo.coordinator.ledger.costs import rounds_with_payload, silo_round_bytes
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.progress import round_heads
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.coordinator.ledger.states import RoundState
from semisilo.coordinator.ledger.tasks import sizes_of_last_updates, training_seconds
from semisilo.coordinator.secure_aggregation.groups import largest_group
from semisilo.coordinator.secure_aggregation.scale import form_with_noise
from semisilo.coordinator.studies.study_file import ImageSettings, StudyConfig, config_from_dict

__all__ = ["OwnRound", "StudyDescription", "describe_study"]

_FEWEST_IMAGES = 20
"""As `semisilo.common.data.preview.likeness.FEWEST_IMAGES`, which needs numpy; a test holds them equal."""
_OWN_ROUNDS = 8
_ROUNDS_LOOKED_AT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRound:
    """What one round took of the silo that asks. Bytes; "down" is to the silo."""

    number: int
    payload_down: int
    payload_up: int
    wire_down: int
    wire_up: int
    training_seconds: float | None
    """As the silo declared it, over all phases; None when it did not train."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyDescription:
    """One study, as a silo should know it before it joins."""

    name: str
    state: str
    round: int
    rounds: int
    method: str
    settings: object
    """The dataclass that the method declares for its settings."""
    model: ModelSettings
    """Without classes until the study has begun."""
    image: ImageForm | None
    """None until the study has begun: mean and deviation are measured then."""
    uplink: Uplink
    dp: DifferentialPrivacy | None
    secure_silos: int
    """Silos that a secure sum of it must have; 0 where updates go in the clear."""
    masked_update_bytes: int
    """Of an update behind masks; 0 where updates go in the clear, and until the study has begun."""
    masked_share: float
    """Of the values of an update, the share that goes behind masks; 0 where updates go in the clear."""
    dense_bytes: int
    frozen_bytes: int
    """Of the parameters that nobody trains; 0 for none, and until the study has begun."""
    own_rounds: tuple[OwnRound, ...]
    """Oldest first."""
    normalisation_images: int
    """Images of the coordinator that the mean and deviation of `image` were measured on; 0 where they were stated, or
    measured on too few to be told apart from them, and until the study has begun."""
    typical_update_bytes: int
    typical_round_seconds: float | None
    round_timeout_seconds: float


def describe_study(ledger: Ledger, silo: str) -> StudyDescription | None:
    """The study that runs or is next, for one silo; None when there is none that has not ended."""
    row = ledger.next_study()
    if row is None:
        return None
    config = _config(canonical_json(row.config), row.name)
    frozen = row.frozen
    last = ledger.last_round(row.name)
    model = config.model if frozen is None else _with_classes(config.model, frozen.classes)
    return StudyDescription(
        name=row.name, state=str(row.state), round=0 if last is None else last.number, rounds=config.study.rounds,
        method=config.method.name, settings=config.method.settings, model=model,
        image=None if frozen is None else frozen.image, uplink=config.wire.uplink_form(), dp=config.privacy.dp,
        secure_silos=config.privacy.min_silos if config.privacy.secure_aggregation else 0,
        masked_update_bytes=0 if frozen is None or not config.privacy.secure_aggregation else _masked_bytes(
            config, frozen.dense_bytes // 4, num_silos=LedgerRoster(ledger).count_members()),
        masked_share=config.privacy.random_share if config.privacy.secure_aggregation else 0.0,
        dense_bytes=0 if frozen is None else frozen.dense_bytes,
        frozen_bytes=0 if frozen is None else 4 * frozen.num_frozen, own_rounds=_own_rounds(ledger, row.name, silo),
        normalisation_images=_normalisation_images(config.data.image, frozen),
        typical_update_bytes=_typical_update(ledger, row.name, ledger.committed_round(row.name)),
        typical_round_seconds=_typical_round(ledger, row.name, last=0 if last is None else last.number),
        round_timeout_seconds=config.participation.timeout_seconds)


@functools.lru_cache(maxsize=4)
def _config(text: str, study: str) -> StudyConfig:
    """The settings of a study from the JSON of its tables: every silo asks for them, and to check them takes most of
    the answer's time. Raises: as `config_from_dict`."""
    return config_from_dict(json.loads(text), where=f"study {study}")


def _normalisation_images(image: ImageSettings, frozen: FrozenStudy | None) -> int:
    if frozen is None or not (isinstance(image.mean, str) and isinstance(image.std, str)):
        return 0
    counts = {"labelled": frozen.num_labelled, "validation": frozen.num_validation}
    fewest = min(counts[image.mean], counts[image.std])
    return fewest if fewest >= _FEWEST_IMAGES else 0


def _masked_bytes(config: StudyConfig, elements: int, *, num_silos: int) -> int:
    """Of the words of an update of so many numbers behind masks.

    Args:
        num_silos: that have joined; fewer than the study begins with will not be asked.
    """
    privacy, settings = config.privacy, config.method.settings
    asked = config.participation.sample_size(max(num_silos, config.study.start_with))
    silos = min(MAX_SILOS, largest_group(asked, privacy.group_size))
    if privacy.dp is not None and shares_noise(privacy.dp, secure=True):
        images = settings.expected_images if privacy.dp.unit == "example" else 0
        form = form_with_noise(
            privacy, elements=elements, silos=silos, images=images,
            threshold=threshold_of(privacy.threshold, privacy.min_silos, silos),
            # words grow with the noise over what an image moves, on which the learning rate has no part
            contribution=contribution_of(privacy.dp, settings, lr=1.0) if images else 0.0)
    else:
        form = MaskForm(bits=privacy.word_bits, bounds=(), silo_count=silos, random_k=privacy.random_share,
                        totals=totals_of(settings))
    return packed_bytes(share_count(form.random_k, elements) + form.extra_words, form.bits)


def _own_rounds(ledger: Ledger, study: str, silo: str) -> tuple[OwnRound, ...]:
    """The last rounds in which payloads went to the silo or came from it, of the last ones in which it was asked."""
    found = []
    for number in rounds_with_payload(ledger, study, silo, looked_at=_ROUNDS_LOOKED_AT, most=_OWN_ROUNDS):
        took = silo_round_bytes(ledger, study, silo, number)
        found.append(OwnRound(
            number=number, payload_down=took.payload_down, payload_up=took.payload_up, wire_down=took.wire_down,
            wire_up=took.wire_up, training_seconds=training_seconds(ledger, study, silo, number)))
    return tuple(found)


@functools.lru_cache(maxsize=4)
def _typical_update(ledger: Ledger, study: str, committed: int) -> int:
    """Median size of what silos sent in the last committed round in which any did; 0 when none has.

    Args:
        committed: the last committed round, after which nothing changes until the next: of a thousand silos it is a
            thousand rows that every one of them would read.
    """
    sizes = sizes_of_last_updates(ledger, study)
    return round(statistics.median(sizes)) if sizes else 0


def _typical_round(ledger: Ledger, study: str, *, last: int) -> float | None:
    lengths = [entry.closed_unix - entry.opened_unix
               for entry in round_heads(ledger, study, first=last - _OWN_ROUNDS + 1)
               if entry.number > 0 and entry.state is RoundState.COMPLETED and entry.closed_unix is not None]
    return statistics.median(lengths) if lengths else None


def _with_classes(model: ModelSettings, classes: tuple[str, ...]) -> ModelSettings:
    return replace(model, classes=classes)
