"""The page of a report: one HTML file without scripts or links, readable offline, on a phone, by day and by night.

What stands in it is text, made here; its markup is the template beside this module. Names, reasons and versions come
from silos: the template escapes whatever it is given, and the page's own policy forbids scripts and any request.

Tests: tests/coordinator/report/test_report.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from semisilo.common import __version__
from semisilo.common.config import to_dict
from semisilo.common.measures.gain import gain_interval_text, gain_text, gain_verdict
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.study_measure import ACCURACY
from semisilo.common.payload.usage import describe_encoding
from semisilo.common.text.describe import (
    describe_bytes,
    describe_metric,
    describe_percentage,
    describe_range,
    describe_seconds,
    describe_share,
)
from semisilo.common.text.html import Table, png_address, render_html
from semisilo.common.text.setting_rows import setting_rows
from semisilo.coordinator.ledger.encodings import EncodingUse
from semisilo.coordinator.ledger.records import FrozenStudy
from semisilo.coordinator.ledger.roster import SiloRow, set_aside_text
from semisilo.coordinator.ledger.states import RoundState, TaskState
from semisilo.coordinator.monitoring.outcomes import OUTCOMES
from semisilo.coordinator.monitoring.participants import Participant, participants_of
from semisilo.coordinator.monitoring.results.by_class import ByClass
from semisilo.coordinator.monitoring.results.study_numbers import (
    labels_alone_note,
    measure_text,
    method_name,
    score_on_test,
)
from semisilo.coordinator.monitoring.silo_state import SiloSigns, activity_of
from semisilo.coordinator.monitoring.summary import AuditSummary, RoundSummary, StudySummary
from semisilo.coordinator.monitoring.traffic import OVERHEAD, SILOS, Traffic, cost_lines
from semisilo.coordinator.report.figures import DrawnFigure
from semisilo.coordinator.studies.model_choice import ChoiceFacts, next_command
from semisilo.coordinator.studies.privacy import StudyPrivacy, masked_sentence, privacy_of

__all__ = ["render_page"]

_DASH = "–"
_MOST_IN_MATRIX = 20
_MOST_NUMBERS = 40
_SHOWN = tuple(outcome for outcome in OUTCOMES if outcome is not TaskState.CANCELLED)
"""Outcomes that have a column."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """One of the large numbers at the top."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class _Figure:
    """A plot, by day and by night."""

    title: str
    description: str
    light_uri: str
    """The picture itself, as a data: address."""
    dark_uri: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Page:
    """What the template shows, as text for people."""

    title: str
    federation: str
    """Empty for a simulation."""
    address: str
    study: str
    state: str
    reason: str
    """Why it is in that state; empty where there is nothing to say."""
    participation: str
    """On how many of how many silos it ran; empty before a silo has answered."""
    refusing: tuple[str, ...]
    """Silos that refused every round, with the reason."""
    conclusion: str
    """What it has come to; empty before its end."""
    next_command: str
    """What an operator would type next at the hub; empty before its end, and of a simulation."""
    method: str
    completed_rounds: int
    planned_rounds: int
    started: str
    """Empty before its start."""
    tiles: tuple[_Tile, ...]
    figures: tuple[_Figure, ...]
    rounds: Table | None
    """None before the first."""
    classes: Table | None
    """Recall of each class; None without test images."""
    classes_of: str
    """Of which model that is."""
    confusion: Table | None
    """What is taken for what: a matrix, or of many classes the most frequent mistakes; None where it was not kept."""
    confusion_note: str
    beside: Table | None
    """All numbers beside those of labels alone; None before these are trained."""
    beside_by_class: Table | None
    """Likewise, of every class."""
    alone: str
    """How labels alone were trained; empty where that is not known."""
    round_notes: tuple[str, ...]
    costs: Table | None
    """None where nothing was counted."""
    simulated_bytes: bool
    """There are payload bytes only."""
    wire_estimated: bool
    dense_model: str
    encodings: Table | None
    silos: Table | None
    """None before the first has enrolled."""
    left: Table | None
    """What has left each hospital; None where no silo was asked."""
    sites: Table | None
    """What the model is worth at each site; None where no site has said so."""
    masked: str
    """What secure aggregation means; empty where the study has none."""
    privacy: Table | None
    """What each silo has spent; None where the study has no differential privacy."""
    privacy_notes: tuple[str, ...]
    """What that means; empty likewise."""
    notices: tuple[str, ...]
    """What a person should hear of silos: set aside, counts that cannot be, updates that stand out or were left out."""
    operator_notes: tuple[str, ...]
    """What operators have written beside the study, with who and when."""
    past: tuple[Table, ...]
    """Rounds that no longer count, one table for each time that the study went back."""
    settings: Table
    audit_problem: str
    """Empty while the chain is intact."""
    audit_events: int
    events: Table
    provenance: Table


def render_page(*, federation: str, address: str, study: StudySummary, silos: Sequence[SiloRow],
                figures: Sequence[DrawnFigure], audit: AuditSummary, state_digest: str,
                last_digest: str = "") -> str:
    """The whole page as HTML text.

    Args:
        state_digest: of the state whose model is handed over.
        last_digest: of the last committed round; left out where it is the same.
    """
    row, traffic = study.row, study.traffic
    privacy = privacy_of(row.config, study.rounds, past=study.went_back)
    return render_html(__name__, _Page(
        title=f"{row.name} – {federation or 'simulation'}", federation=federation, address=address, study=row.name,
        state=str(row.state), reason=row.reason, conclusion=study.choice.conclusion,
        next_command=next_command(row, study.choice) if federation else "", method=method_name(row),
        participation=_sentence(study.participation.text), refusing=tuple(
            f"{each.silo} refused every round ({each.rounds}): {each.reason or 'no reason given'}"
            for each in study.participation.refusing),
        completed_rounds=study.completed_rounds, planned_rounds=study.planned_rounds,
        started=_moment(row.started_unix) if row.started_unix else "", tiles=tuple(_tiles(study)),
        figures=tuple(_Figure(each.title, each.description, png_address(each.light_png), png_address(each.dark_png))
                      for each in figures),
        rounds=_rounds(study), classes=_classes(study.by_class), classes_of=_classes_of(study.by_class),
        confusion=_confusion(study.by_class), confusion_note=_confusion_note(study.by_class),
        left=_left(study), beside=_beside(study, by_class=False), beside_by_class=_beside(study, by_class=True),
        alone="" if row.baseline is None else row.baseline.description,
        round_notes=tuple(note for entry in study.rounds for note in _round_notes(entry)),
        costs=_costs(study), simulated_bytes=traffic.simulated, wire_estimated=traffic.estimated,
        dense_model=describe_bytes(traffic.dense_bytes), encodings=_encodings(study), silos=_silos(study, silos),
        sites=_sites(study), masked=masked_sentence(row.config), privacy=None if privacy is None else _privacy(privacy),
        privacy_notes=() if privacy is None else (f"{privacy.how[:1].upper()}{privacy.how[1:]}.", privacy.promise),
        notices=tuple(_notices(study, silos)),
        operator_notes=tuple(f"{_moment(each.unix)}, {each.by or 'unknown'}: {each.text}" for each in study.notes),
        past=tuple(_past(study)),
        settings=_settings(row.config), audit_problem=audit.problem, audit_events=audit.events, events=_events(audit),
        provenance=_provenance(study, state_digest, last_digest)))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


# Parts ----------------------------------------------------------------------------------------------------------------


def _tiles(study: StudySummary) -> list[_Tile]:
    traffic = study.traffic
    without_labels = study.row.frozen is not None and study.row.frozen.num_labelled == 0
    alone = [] if without_labels else [
        _Tile("Labels alone", describe_metric(study.measure.metric, study.labels_alone_test_score),
              labels_alone_note(study.row) or "same network, no silos"),
        _Tile("Gain", _DASH if study.gain is None else gain_text(study.gain), _gain_note(study))]
    return [
        _Tile(f"Federated {study.measure.title}" if study.shown.has_silos or study.shown.round is None
              else f"{study.measure.heading}, without silos",
              describe_metric(study.measure.metric, study.test_score), _score_note(study)), *alone,
        *_choice_tile(study.choice), _bytes_tile(traffic),
        _Tile("Silos", str(len(study.silos)), "asked at least once"),
        _Tile("Duration", _DASH if study.seconds is None else describe_seconds(study.seconds), _duration_note(study)),
    ]


def _choice_tile(choice: ChoiceFacts) -> list[_Tile]:
    """Which round's model is handed over; none before the first commit."""
    return [] if choice.round is None else [_Tile(
        "Model handed over", "labels alone" if choice.labels_alone else f"round {choice.round}", choice.text)]


def _bytes_tile(traffic: Traffic) -> _Tile:
    """Of a simulation there are payload bytes only."""
    if traffic.wire or not traffic.payload:
        estimated = ", estimated" if traffic.estimated else ""
        return _Tile("On the wire", describe_bytes(traffic.wire) if traffic.wire else _DASH,
                     f"{describe_share(traffic.share)} of dense{estimated}" if traffic.share is not None else
                     "no model has been sent yet" if traffic.wire else "nothing yet")
    return _Tile("Payload", describe_bytes(traffic.payload),
                 f"{describe_share(traffic.payload_share)} of dense")


def _gain_note(study: StudySummary) -> str:
    if study.gain is not None:
        return ", ".join(filter(None, (f"against labels alone; {gain_interval_text(study.gain)}",
                                       gain_verdict(study.gain))))
    return study.shown.no_gain or "against labels alone"


def _score_note(study: StudySummary) -> str:
    if study.test_score is not None:
        beside = "" if study.measure == ACCURACY or study.accuracy is None else \
            f"; accuracy {describe_percentage(study.accuracy)}"
        return f"{study.shown.words}; test images: {'?' if study.row.frozen is None else study.row.frozen.num_test}" \
               f"{beside}"
    if study.shown.round is None:
        return "no round yet"
    return "no test images" if study.accuracy is None else "no test images give it"


def _duration_note(study: StudySummary) -> str:
    lengths = [entry.seconds for entry in study.rounds if entry.seconds is not None and entry.number > 0]
    return f"{describe_seconds(sum(lengths) / len(lengths))} a round" if lengths else "no round yet"


def _beside(study: StudySummary, *, by_class: bool) -> Table | None:
    rows = tuple((each.words, measure_text(each, each.federated), measure_text(each, each.labels_alone))
                 for each in study.beside if by_class == ("/" in each.name))
    return Table(f"Compared with labels alone{', every class' if by_class else ''}",
                 ("Measure", study.shown.column.capitalize(), "Labels alone"), rows) if rows else None


def _classes(found: ByClass | None) -> Table | None:
    if found is None:
        return None
    if found.findings:
        return _findings(found)
    rows = [[each.name, _DASH if each.images is None else str(each.images), describe_percentage(each.recall),
             _DASH if each.interval is None else
             describe_range(each.interval.low, each.interval.high)] for each in found.classes]
    return Table(f"Recall of each class, intervals {found.intervals_by}",
                 ("Class", "Test images", "Recall", "95 % interval"), rows)


def _findings(found: ByClass) -> Table:
    def between(interval: Interval | None) -> str:
        return _DASH if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"

    rows = [[each.name, _count(each.images), describe_metric("auroc", each.auroc), between(each.auroc_interval),
             describe_metric("average_precision", each.average_precision), between(each.average_precision_interval),
             describe_percentage(each.calibration_error)] for each in found.findings]
    return Table(f"Every class, intervals {found.intervals_by}",
                 ("Class", "Test images", "AUROC", "95 % interval", "Average precision", "95 % interval",
                  "Calibration error"), rows)


def _confusion_of_findings(found: ByClass) -> Table | None:
    if all(each.found is None for each in found.findings):
        return None

    def share(value: float | None, interval: Interval | None) -> tuple[str, str]:
        return describe_percentage(value), _DASH if interval is None else describe_range(interval.low, interval.high)

    rows = [[each.name, _count(each.found), _count(each.missed), _count(each.falsely_found), _count(each.spared),
             *share(each.sensitivity, each.sensitivity_interval), *share(each.specificity, each.specificity_interval)]
            for each in found.findings]
    return Table("Confusion of every class", ("Class", "Found", "Missed", "Falsely found", "Rightly without",
                                              "Sensitivity", "95 % interval", "Specificity", "95 % interval"), rows)


def _count(value: int | None) -> str:
    return _DASH if value is None else str(value)


def _classes_of(found: ByClass | None) -> str:
    if found is None:
        return ""
    if found.labels_alone:
        said, which = "The model of labels alone", ", which is handed over"
    else:
        said, which = f"The model of round {found.round}", ", which is handed over" if found.handed_over else ""
    if found.findings:
        return (f"{said}{which}, on {found.images} test images, which may show several"
                " classes or none: every class is a question of its own.")
    return f"{said}{which}, on the test images: which share of each class it finds."


def _confusion(found: ByClass | None) -> Table | None:
    if found is not None and found.findings:
        return _confusion_of_findings(found)
    if found is None or not found.confusion:
        return None
    names = [each.name for each in found.classes]
    if len(names) > _MOST_IN_MATRIX:
        return Table("Most frequent mistakes", ("Is", "Taken for", "Images", "Of the class"),
                     [[each.true, each.predicted, str(each.images), describe_share(each.share)]
                      for each in found.mistakes], words=2)
    return Table("Confusion of classes", ("Is", *(f"taken for {name}" for name in names)),
                 [[name, *map(str, row)] for name, row in zip(names, found.confusion, strict=True)])


def _confusion_note(found: ByClass | None) -> str:
    if found is not None and found.findings:
        return ("At a probability of 0.5, which is seldom the best: the model that is exported has a threshold for each"
                " class, chosen on validation images.")
    return "" if found is None or len(found.classes) > _MOST_IN_MATRIX else \
        "A row is what the images are, a column what the model says; in images."


def _left(study: StudySummary) -> Table | None:
    if not study.left:
        return None
    rows = [[each.silo, ", ".join(f"{group} {describe_bytes(size)}" for group, size in each.groups.items()) or _DASH,
             _names_of_numbers(each.numbers), str(each.updates),
             describe_bytes(each.payload_bytes) if each.groups else _DASH, _bytes(each.wire_bytes),
             str(each.refusals or ""), str(each.evaluations or "")] for each in study.left]
    return Table("What has left each hospital", ("Silo", "Tensor groups", "Numbers beside them", "Updates", "Payload",
                                                 "Wire", "Refusals", "Own evaluations"), rows, words=3)


def _names_of_numbers(names: Sequence[str]) -> str:
    """A method has a few; a silo may send others in every round, and must not make the page endless."""
    shown = [name.replace("_", " ") for name in names[:_MOST_NUMBERS]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "") or _DASH


def _rounds(study: StudySummary) -> Table | None:
    if not study.rounds:
        return None
    has_accuracy = study.row.frozen is None or study.row.frozen.task == "single_label"
    measured = (study.measure,) if study.measure == ACCURACY or not has_accuracy else (study.measure, ACCURACY)
    columns = ("Round", *(each.heading for each in measured), *(outcome.capitalize() for outcome in _SHOWN),
               "Payload down", "% of dense", "Payload up", "% of dense", "Wire down", "Wire up", "Time")
    rows = []
    for entry in study.rounds:
        counts = [str(entry.count(state)) if entry.outcomes else "" for state in _SHOWN]
        traffic = entry.traffic
        scores = [describe_metric(each.metric, score_on_test(entry.metrics, each)) for each in measured]
        rows.append([_round_name(entry), *scores, *counts,
                     *_amounts(traffic.payload_down, traffic.share_down),
                     *_amounts(traffic.payload_up, traffic.share_up), _bytes(traffic.wire_down),
                     _bytes(traffic.wire_up), _DASH if entry.seconds is None else describe_seconds(entry.seconds)])
    return Table("Every round of the study", columns, rows)


def _round_name(entry: RoundSummary) -> str:
    return str(entry.number) if entry.state is RoundState.COMPLETED else f"{entry.number} ({entry.state})"


def _round_notes(entry: RoundSummary) -> list[str]:
    notes = [f"Round {entry.number}: {entry.reason}"] if entry.reason else []
    for silo, state in sorted(entry.outcomes.items(), key=lambda item: item[0].encode()):
        if state is not TaskState.UPDATED:
            reason = entry.reasons.get(silo, "").replace("_", " ") if state is TaskState.ABSTAINED \
                else entry.reasons.get(silo, "")
            notes.append(f"Round {entry.number}, {silo}: {state}{f' ({reason})' if reason else ''}")
    return notes


def _costs(study: StudySummary) -> Table | None:
    if not study.costs:
        return None
    words = {"payload": "Payload", "message": "Messages", "wire": "Wire"}
    labels = {("wire", SILOS): "connections of silos", ("wire", OVERHEAD): "overhead, no silo’s"}
    rows = [[f"{words[line.kind]}: {labels.get((line.kind, line.item), line.item)}", _bytes(line.down), _bytes(line.up),
             describe_bytes(line.down + line.up), str(line.count or "")] for line in cost_lines(study.costs)]
    traffic = study.traffic
    wire = "Wire, all (estimated)" if traffic.estimated else "Wire, all"
    totals = [[wire, _bytes(traffic.wire_down), _bytes(traffic.wire_up), describe_bytes(traffic.wire), ""],
              ["Dense, for comparison", _bytes(traffic.dense_down), _bytes(traffic.dense_up),
               describe_bytes(traffic.dense_total), str(traffic.downloads + traffic.uploads)],
              ["Payload, % of dense", describe_share(traffic.share_down), describe_share(traffic.share_up),
               describe_share(traffic.payload_share), ""],
              ["Wire, % of dense", describe_share(traffic.wire_share_down), describe_share(traffic.wire_share_up),
               describe_share(traffic.share), ""]]
    if traffic.simulated:
        totals = [row for row in totals if not row[0].startswith("Wire")]
        rows = [row for row in rows if not row[0].startswith("Wire")]
    return Table("What went down and up while rounds were under way", ("What", "Down", "Up", "Both", "Count"), rows,
                 totals=totals)


def _encodings(study: StudySummary) -> Table | None:
    if not study.encodings:
        return None
    return Table("What each encoding saved",
                 ("Encoding", "In words", "Blocks", "Payload", "The same, dense", "Saved", "% of dense"),
                 [_encoding(use, describe_encoding(use.encoding)) for use in study.encodings], words=2,
                 totals=[_encoding(use, "") for use in study.encoding_totals])


def _encoding(use: EncodingUse, words: str) -> list[str]:
    arrow = "↓" if use.direction == "down" else "↑"
    return [f"{arrow} {use.encoding}", words, str(use.blocks or ""), _bytes(use.bytes), _bytes(use.dense_bytes),
            _saved(use.saved_bytes), describe_share(use.share_of_dense)]


def _saved(size: int) -> str:
    return f"−{describe_bytes(-size)}" if size < 0 else _bytes(size)


def _silos(study: StudySummary, silos: Sequence[SiloRow]) -> Table | None:
    if not silos:
        return None
    participants, now, rows = participants_of(study), time.time(), []
    for row in silos:
        part = participants.get(row.name, Participant())
        state = activity_of(SiloSigns(member=row, now_unix=now, serving=False)).state
        rows.append([row.name, state,
                     str(row.labelled_count + row.unlabelled_count) if row.joined_unix else _DASH,
                     str(row.labelled_count) if row.joined_unix else _DASH,
                     *(str(part.outcomes[outcome]) for outcome in _SHOWN), describe_share(part.label_ratio),
                     _bytes(part.wire_down), _bytes(part.wire_up), row.version or _DASH])
    columns = ("Silo", "State", "Images", "With a label", *(outcome.capitalize() for outcome in _SHOWN),
               "Last label ratio", "Wire down", "Wire up", "Version")
    return Table("Who took part", columns, rows, words=2)


def _sites(study: StudySummary) -> Table | None:
    if not study.sites:
        return None
    titles = list(dict.fromkeys(title for each in study.sites for title in each.texts))
    rows = [[each.silo, each.model or "sent none", _DASH if each.scores is None else str(each.scores.count),
             *(each.texts.get(title, _DASH) for title in titles)] for each in study.sites]
    columns = ("Silo", "Model", "Test images", *(f"{title[0].upper()}{title[1:]}" for title in titles))
    return Table("The model on each site’s own test images", columns, rows, words=2)


def _privacy(found: StudyPrivacy) -> Table:
    rows = [[each.silo, f"{each.epsilon:.3g}", str(each.updates)] for each in found.silos]
    return Table("Differential privacy", ("Silo", "Epsilon spent by this study", "Updates"), rows)


def _notices(study: StudySummary, silos: Sequence[SiloRow]) -> list[str]:
    aside = [f"{row.name}: {set_aside_text(row.set_aside_reason)}, since {_moment(row.set_aside_unix)}"
             for row in silos if row.set_aside_unix is not None]
    return [*aside, *(each.line for each in study.notices)]


def _past(study: StudySummary) -> list[Table]:
    """The rounds that are no more the study's."""
    columns = ("Round", study.measure.heading, "State", "Ended", "Model state (SHA-256)")
    return [Table(f"The study {each.text}", columns, [
        (str(row.number), describe_metric(study.measure.metric, score_on_test(row.metrics, study.measure)),
         str(row.state), _moment(row.closed_unix), row.state_digest) for row in each.rounds])
        for each in study.rollbacks]


def _settings(config: Mapping[str, object]) -> Table:
    rows = sorted(setting_rows(config), key=lambda row: (row[0] != "study", row[0] != "method"))
    return Table("Settings", ("Table", "Key", "Value"), rows, words=3)


def _events(audit: AuditSummary) -> Table:
    return Table("Events by kind", ("Event of this study", "Times"),
                 [(kind.replace("_", " "), str(count)) for kind, count in audit.kinds])


def _provenance(study: StudySummary, state_digest: str, last_digest: str) -> Table:
    row = study.row
    frozen, numerics = row.frozen, {} if row.numerics is None else to_dict(row.numerics)
    facts = [("Model state (SHA-256)", state_digest or _DASH),
             *([(f"State after the last round, {study.choice.last}, whose model is not handed over", last_digest)]
               if last_digest not in ("", state_digest) else []),
             ("Seed", str(row.config.get("study", {}).get("seed", _DASH))),
             ("semisilo that wrote this page", __version__),
             *((f"Numerics: {key}", str(value)) for key, value in sorted(numerics.items())),
             ("Parameters", _DASH if frozen is None else f"{frozen.num_parameters:,}"),
             *_starting_weights(frozen),
             ("Labelled / validation / test images", " / ".join(
                 (_DASH, _DASH, _DASH) if frozen is None else
                 map(str, (frozen.num_labelled, frozen.num_validation, frozen.num_test)))),
             ("Rounds are compared by", " ".join(filter(None, (
                 study.choice.title, study.choice.measure_reason and f"({study.choice.measure_reason})")))),
             *([] if frozen is None or not frozen.left_out_views else [
                 ("Strong views are made without", f"{', '.join(frozen.left_out_views)}"
                                                   f" ({frozen.left_out_views_reason})")]),
             ("Queued", _moment(row.queued_unix)), ("Started", _moment(row.started_unix)),
             ("Ended", _moment(row.ended_unix)), ("Page written", _moment(time.time()))]
    return Table("Provenance", ("Fact", "Value"), facts, words=2)


def _starting_weights(frozen: FrozenStudy | None) -> list[tuple[str, str]]:
    """What the network started from, where that was not all random or not all is trained."""
    facts = []
    if frozen is not None and frozen.num_frozen:
        facts.append(("Frozen parameters, which nobody trains", f"{frozen.num_frozen:,}"))
        facts.append(("Frozen tensors (digest)", frozen.frozen_digest))
    if frozen is not None and frozen.weights:
        facts.append(("Started from the file", frozen.weights))
        facts.append(("Its SHA-256", frozen.weights_digest))
        facts.append(("Not in that file, started at random", ", ".join(frozen.left_random) or "nothing"))
    return facts


# Pieces ---------------------------------------------------------------------------------------------------------------


def _bytes(count: int) -> str:
    return describe_bytes(count) if count else _DASH


def _amounts(count: int, share: float | None) -> tuple[str, str]:
    return _bytes(count), describe_share(share)


def _moment(unix: float | None) -> str:
    return _DASH if unix is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))
