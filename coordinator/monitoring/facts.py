"""What the operator page shows, as typed values; their field names are those of the JSON.

Times are Unix seconds, bytes whole numbers, shares 0 to 1; None is unknown. Text that came from a silo is in them as it
was recorded: the page writes it as text, never as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semisilo.common.measures.intervals import Interval
from semisilo.coordinator.ledger.events import StudyNote
from semisilo.coordinator.ledger.roster import OpenInvitation
from semisilo.coordinator.monitoring.alerts.open_alerts import Alert
from semisilo.coordinator.monitoring.forecast import Forecast
from semisilo.coordinator.monitoring.results.by_class import ByClass
from semisilo.coordinator.monitoring.results.study_numbers import MeasureBeside
from semisilo.coordinator.monitoring.study_facts import OpenRoundFacts
from semisilo.coordinator.monitoring.summary import SiteLine
from semisilo.coordinator.studies.model_choice import ChoiceFacts
from semisilo.coordinator.studies.participation import ParticipationFacts

__all__ = ["ByGroup", "ByRpc", "BySilo", "CostFacts", "DoingFacts", "DriftFacts", "EncodingFacts", "EventFacts",
           "EventsFacts", "FederationFacts", "LiveFacts", "NoticeFacts", "PastRoundLine", "PhaseFacts", "RollbackFacts",
           "RoundDetail", "RoundLine", "SiloLine", "SiloOfStudy", "SiloRefusal", "StudyDetail", "StudyLine",
           "TaskFacts", "TrafficFacts", "TwoWays"]


# GET /api/federation --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveFacts:
    """What `coordinator serve` is doing at this moment."""

    study: str
    round: int
    rounds: int
    phase: str
    reason: str
    """Why silos without a task have none: a `StandbyReason`."""
    activity: str
    """What the compute process is doing; empty when it is not."""
    fraction: float
    """Share of the activity that is done."""
    text: str
    labels_alone: str
    """How far labels alone are, and how long they will take; empty while they are not worked on."""
    trouble: str
    """What the operating system refuses, so that the study waits until it is fixed, in a line with its remedy; empty
    while nothing is in the way."""
    deadline_unix: float | None
    """Of the open phase; None while the study is paused or no silo works."""
    paused_unix: float | None = None
    """Since when the study is paused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyLine:
    """One study of the queue."""

    name: str
    state: str
    method: str
    scenario: str
    round: int
    rounds: int
    accuracy: float | None
    labelled_only_accuracy: float | None
    test_score: float | None
    """The study's measure, which `choice` names, of the model whose accuracy this is; on test images."""
    labels_alone_test_score: float | None
    """The same of labels alone."""
    labels_alone: str
    """That labels alone are in work, or what cut them short; empty when nothing is to be said."""
    choice: ChoiceFacts
    """Which round is handed over as things stand, and why."""
    seconds_left: float | None
    reason: str
    participation: ParticipationFacts
    """On how many of how many silos it ran."""
    wire_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DoingFacts:
    """What a silo says it is doing."""

    stage: str
    fraction: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloRefusal:
    """The last task that a silo was asked in a study that has not ended, where it refused that."""

    study: str
    round: int
    reason: str
    """A code of the error catalogue and a line, as the silo gave it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloLine:
    """One silo of the roster."""

    name: str
    state: str
    """A `semisilo.coordinator.monitoring.silo_state.SiloState`."""
    doing: DoingFacts | None
    away_reason: str
    """Why it takes no task by its own policy, for example its hours of work; empty when it takes tasks."""
    silent_unix: float | None
    """When it was last heard, while it is silent: no round asks it until it calls again."""
    refusal: SiloRefusal | None
    """None where its last answer was another one."""
    set_aside_reason: str
    """Why the operator leaves it out; empty also where no reason was given: `state` says whether it is."""
    seen_unix: float | None
    certificate_days_left: float | None
    """None for a simulated silo, which has no certificate."""
    labelled_count: int
    unlabelled_count: int
    version: str
    methods: tuple[str, ...]
    bytes_today_down: int
    """On the wire since midnight, local time of the coordinator."""
    bytes_today_up: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationFacts:
    """The federation at a glance."""

    federation: str
    address: str
    version: str
    now_unix: float
    folder_option: str
    """` --folder X`, behind a command that is proposed for the hub, whose shell may be anywhere; empty without one."""
    serving: bool
    read_only: bool
    """Whether there are no actions here: the page of `coordinator page STUDY`."""
    revision: int
    live: LiveFacts | None
    studies: tuple[StudyLine, ...]
    silos: tuple[SiloLine, ...]
    invitations: tuple[OpenInvitation, ...]
    alerts: tuple[Alert, ...]
    """What needs a person, first what presses most; empty where the page only reads."""


# GET /api/studies/NAME ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLine:
    """One round in the list of a study."""

    number: int
    state: str
    reason: str
    opened_unix: float
    seconds: float | None
    accuracy: float | None
    test_score: float | None
    """The study's measure on test images."""
    test_interval: Interval | None
    """Its interval of 95 %; None where that is not known."""
    metrics: Mapping[str, float]
    counts: Mapping[str, int]
    """Answer -> silos."""
    outcomes: Mapping[str, str]
    """Silo -> answer; empty for rounds before `StudyDetail.detail_from`."""
    wire_down: int
    wire_up: int
    wire_cumulative: int
    """Both ways, up to and with this round."""
    payload_down: int
    payload_up: int
    share_of_dense: float | None
    """Wire bytes over what the same transfers would have cost as dense tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftFacts:
    """How far a round's class histogram is from the silo's rounds before (`semisilo.coordinator.monitoring.drift`)."""

    distance: float
    threshold: float
    marked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloOfStudy:
    """What one silo has brought to a study. Maps by round begin at `StudyDetail.detail_from`."""

    name: str
    rounds_asked: int
    rounds_updated: int
    """Rounds that were committed with its update."""
    examples: int
    """Sum over those rounds of the images that it said it trained on; of several phases the largest number."""
    contribution: float
    """Its share of all silos' `examples`."""
    label_ratio: Mapping[int, float]
    class_histogram: Mapping[int, tuple[float, ...]]
    """Round -> share of its pseudo-labels per class, in the order of `classes`."""
    drift: Mapping[int, DriftFacts]
    wire_down: int
    wire_up: int
    last_reason: str
    """Why it last abstained, refused or did not answer."""
    last_reason_round: int
    """The round in which it did; 0: it never did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoWays:
    """Bytes each way."""

    down: int = 0
    up: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ByGroup:
    """Payload bytes of one tensor group in a study."""

    group: str
    down: int
    up: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ByRpc:
    """Message bytes of one call in a study."""

    rpc: str
    down: int
    up: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BySilo:
    """Wire bytes of one silo in a study; the name is empty for bytes that belong to no silo."""

    silo: str
    down: int
    up: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodingFacts:
    """What one encoding of tensors has saved."""

    encoding: str
    text: str
    """Its name for a person."""
    direction: str
    blocks: int
    bytes: int
    dense_bytes: int
    saved_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CostFacts:
    """What a study has cost so far."""

    payload: TwoWays
    message: TwoWays
    wire: TwoWays
    overhead: TwoWays
    """Part of `wire` that belongs to no silo."""
    dense_total: int
    share_of_dense: float | None
    estimated: bool
    """Whether wire bytes follow from the messages, for want of the kernel's counters."""
    by_group: tuple[ByGroup, ...]
    by_silo: tuple[BySilo, ...]
    by_rpc: tuple[ByRpc, ...]
    by_encoding: tuple[EncodingFacts, ...]
    forecast: Forecast | None
    """None before the first finished round and after the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoticeFacts:
    """The last of its kind that an operator should hear of a silo."""

    silo: str
    kind: str
    """A `semisilo.coordinator.ledger.oversight.notices.NoticeKind`."""
    round: int
    """0 outside of rounds."""
    unix: float
    text: str
    times: int
    line: str
    """All of it for a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRoundLine:
    """A round that is no more the study's."""

    number: int
    state: str
    reason: str
    opened_unix: float
    closed_unix: float | None
    accuracy: float | None
    test_score: float | None
    """The study's measure on test images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackFacts:
    """The study went back to an earlier round."""

    to_round: int
    unix: float
    origin: str
    operator: str
    reason: str
    text: str
    """All of it for a person."""
    rounds: tuple[PastRoundLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyDetail:
    """One study."""

    name: str
    state: str
    reason: str
    participation: ParticipationFacts
    """On how many of how many silos it ran: what is said of it first."""
    method: str
    scenario: str
    source: str
    """Paper and venue of the method."""
    discloses: str
    """What the method lets silos and coordinator learn, beyond updates."""
    settings: Mapping[str, Mapping[str, object]]
    """Table -> setting -> value, as in the study file."""
    classes: tuple[str, ...]
    queued_unix: float
    started_unix: float | None
    ended_unix: float | None
    paused_unix: float | None
    """Since when it is paused; None while it is not."""
    rounds_planned: int
    rounds_completed: int
    accuracy: float | None
    labelled_only_accuracy: float | None
    test_score: float | None
    """The study's measure, which `choice` names, of the model whose accuracy this is; on test images."""
    labels_alone_test_score: float | None
    """The same of labels alone."""
    beside: tuple[MeasureBeside, ...]
    """All numbers of the model that `numbers_of` names beside those of labels alone; empty before those are trained."""
    numbers_of: str
    """Which model accuracy, test score, gain and `beside` are of, in words: while the study runs the last round's, once
    it is over the one that is handed over, or where labels alone are, the chosen round's; empty before there is one."""
    numbers_round: int | None
    """That round; None before there is one."""
    federated: str
    """The same as the heading of a column."""
    no_gain: str
    """Why silos have brought nothing, whatever the numbers are; empty where a gain may be spoken of."""
    labels_alone_recipe: str
    """How labels alone were trained, in words; empty before."""
    gain: float | None
    """`test_score` less `labels_alone_test_score`; None also where silos have no part in what is handed over, as
    `no_gain` says."""
    gain_interval: Interval | None
    """Its interval of 95 %; None also where that is not known."""
    gain_text: str
    """How large it is, in words; empty without one, like the next two."""
    gain_interval_text: str
    gain_verdict: str
    """Whether it is more than chance: "no difference shown"."""
    intervals_by: str
    """What the intervals of single models go by: "by image", or "by patient (20 patients)"; empty until the images were
    read."""
    choice: ChoiceFacts
    """Which round is handed over as things stand, and why."""
    next_command: str
    """What an operator would type next at the hub once it is over; empty before."""
    seconds: float | None
    seconds_left: float | None
    num_parameters: int
    dense_bytes: int
    detail_from: int
    """First round of which values by silo are here; those before are at /api/studies/NAME/silos/SILO."""
    open_round: OpenRoundFacts | None
    rounds: tuple[RoundLine, ...]
    silos: tuple[SiloOfStudy, ...]
    by_class: ByClass | None
    """The model on the test images class by class; None before a round was measured on some."""
    sites: tuple[SiteLine, ...]
    """What the model is worth at each silo's own test images; empty where no silo has said so."""
    notices: tuple[NoticeFacts, ...]
    """What an operator should hear of its silos, the last of each kind by silo."""
    notes: tuple[StudyNote, ...]
    """Of operators beside it, oldest first."""
    rollbacks: tuple[RollbackFacts, ...]
    """Every time that it went back to an earlier round."""
    returns: tuple[int, ...]
    """The rounds that it can go back to now."""
    cost: CostFacts


# GET /api/studies/NAME/rounds/N ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFacts:
    """What one silo was asked in a phase, and its answer."""

    silo: str
    state: str
    given_unix: float | None
    closed_unix: float | None
    reason: str
    example_count: int | None
    training_seconds: float | None
    update_bytes: int | None
    groups: Mapping[str, int]
    """Tensor group -> encoded bytes of the update."""
    metrics: Mapping[str, float]
    norm: float | None
    """Of its update, as the coordinator has measured it; None before the phase is closed."""
    cosine: float | None
    """Of its update to the mean of the phase."""
    doing: DoingFacts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseFacts:
    """One phase of a round."""

    name: str
    quorum: int
    opened_unix: float
    deadline_unix: float
    limit_unix: float
    closed_unix: float | None
    tasks: tuple[TaskFacts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficFacts:
    """Bytes of one round."""

    payload: TwoWays
    message: TwoWays
    wire: TwoWays
    overhead: TwoWays
    downloads: int
    uploads: int
    dense_total: int
    share_of_dense: float | None
    estimated: bool
    by_silo: tuple[BySilo, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundDetail:
    """One round with all its answers."""

    study: str
    number: int
    state: str
    reason: str
    opened_unix: float
    closed_unix: float | None
    sample: tuple[str, ...]
    phases: tuple[PhaseFacts, ...]
    metrics: Mapping[str, float]
    by_class: ByClass | None
    """Its model on the test images class by class; None where it was not measured on any."""
    traffic: TrafficFacts
    state_digest: str


# GET /api/events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class EventFacts:
    """One event of the audit trail."""

    number: int
    unix: float
    kind: str
    study: str
    detail: Mapping[str, object]
    chain: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventsFacts:
    """A page of the audit trail, newest first."""

    events: tuple[EventFacts, ...]
    chain_intact: bool | None
    """None until all events have been checked once."""
    chain_problem: str
    checked: int
    """How many events have been checked."""
    first_number: int
    """Lowest number in this list; 0 when it is empty. Ask for `before` this number to go on."""
    more: bool
    kinds: tuple[str, ...]
    """Kinds of events, among those that have been checked."""
