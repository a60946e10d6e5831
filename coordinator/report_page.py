"""The page of a report: one HTML file without scripts or links, readable offline, on a phone, by day and by night.

Names, reasons and versions come from silos, so everything that is not markup of ours goes through `html.escape`, and
the page's own policy forbids scripts and any request.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from common import __version__
from common.describe import describe_bytes, describe_seconds, describe_share
from common.encodings import describe_encoding
from coordinator.figures import DrawnFigure
from coordinator.roster import SiloRow
from coordinator.states import RoundState, StudyState, TaskState
from coordinator.summary import AuditSummary, RoundSummary, StudySummary, Traffic

__all__ = ["render_page"]

_DASH = "–"
_NO_UPDATES = "no update of any silo was accepted"
_ANSWERS = ((TaskState.UPDATED, "accepted"), (TaskState.ABSTAINED, "abstained"), (TaskState.REFUSED, "refused"),
            (TaskState.EXPIRED, "late"))


def render_page(*, federation: str, address: str, study: StudySummary, silos: Sequence[SiloRow],
                figures: Sequence[DrawnFigure], audit: AuditSummary, state_digest: str) -> str:
    """The whole page as HTML text."""
    title = f"{study.row.name} – {federation or 'simulation'}"
    body = "\n".join((
        _header(federation, address, study), _headline(study), _figures(figures), _rounds(study), _costs(study),
        _silos(study, silos), _settings(study.row.config), _audit(audit), _provenance(study, state_digest)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


# Parts ----------------------------------------------------------------------------------------------------------------


def _header(federation: str, address: str, study: StudySummary) -> str:
    row = study.row
    method = row.config.get("method", {}).get("name", "?")
    reason = f'<p class="trouble">{escape(row.reason)}</p>' if row.reason else ""
    begun = f", started {_moment(row.started_unix)}" if row.started_unix else ""
    where = f"Federation {escape(federation)} at {escape(address)}" if federation else "Simulation"
    return (f'<header><p class="over">{where}</p>'
            f'<h1>Study {escape(row.name)} <span class="state {escape(str(row.state))}">{escape(str(row.state))}</span>'
            f"</h1><p>{escape(str(method))}, {study.completed_rounds} of {study.planned_rounds} rounds"
            f"{escape(begun)}</p>{reason}</header>")


def _headline(study: StudySummary) -> str:
    traffic = study.traffic
    without_labels = (study.row.frozen or {}).get("num_labelled") == 0
    alone = [] if without_labels else [
        ("Labels alone", _accuracy(study.labelled_only), "same network, no silos"),
        ("Gain", _DASH if study.gain is None else f"{100 * study.gain:+.1f}",
         "points against labels alone" if study.updates or not study.completed_rounds else _NO_UPDATES)]
    tiles = [
        ("Federated accuracy" if study.updates or not study.completed_rounds else "Accuracy, without silos",
         _accuracy(study.accuracy), _accuracy_note(study)), *alone,
        _bytes_tile(traffic),
        ("Silos", str(len(study.silos)), "asked at least once"),
        ("Duration", _DASH if study.seconds is None else describe_seconds(study.seconds),
         _duration_note(study)),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>"
                    for name, value, note in tiles)
    return f'<section aria-label="Result"><dl class="tiles">{cells}</dl></section>'


def _bytes_tile(traffic: Traffic) -> tuple[str, str, str]:
    """Of a simulation there are payload bytes only."""
    if traffic.wire or not traffic.payload:
        estimated = ", estimated" if traffic.estimated else ""
        return ("On the wire", describe_bytes(traffic.wire) if traffic.wire else _DASH,
                f"{describe_share(traffic.share)} of dense{estimated}" if traffic.wire else "nothing yet")
    return "Payload", describe_bytes(traffic.payload), f"{describe_share(_share(traffic.payload, traffic))} of dense"


def _accuracy_note(study: StudySummary) -> str:
    if study.accuracy is not None:
        return f"test images: {(study.row.frozen or {}).get('num_test', '?')}"
    if study.completed_rounds == 0:
        return "no round yet"
    return "no test images"


def _duration_note(study: StudySummary) -> str:
    lengths = [entry.seconds for entry in study.rounds if entry.seconds is not None and entry.number > 0]
    return f"{describe_seconds(sum(lengths) / len(lengths))} a round" if lengths else "no round yet"


def _figures(figures: Iterable[DrawnFigure]) -> str:
    pictures = "".join(
        f"<figure><figcaption>{escape(figure.title)}</figcaption><picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{_data_uri(figure.dark_png)}">'
        f'<img src="{_data_uri(figure.light_png)}" alt="{escape(figure.description)}"></picture></figure>'
        for figure in figures)
    return f'<section><h2>Curves</h2><div class="figures">{pictures}</div></section>'


def _rounds(study: StudySummary) -> str:
    if not study.rounds:
        return "<section><h2>Rounds</h2><p>No round has begun.</p></section>"
    columns = ("Round", "Accuracy", *(word.capitalize() for _, word in _ANSWERS), "Payload down", "% of dense",
               "Payload up", "% of dense", "Wire down", "Wire up", "Time")
    rows, notes = [], []
    for entry in study.rounds:
        counts = [str(entry.count(state)) if entry.outcomes else "" for state, _ in _ANSWERS]
        traffic = entry.traffic
        rows.append([_round_name(entry), _accuracy(entry.accuracy), *counts,
                     *_amounts(traffic.payload_down, traffic.share_down),
                     *_amounts(traffic.payload_up, traffic.share_up), _bytes(traffic.wire_down),
                     _bytes(traffic.wire_up), _DASH if entry.seconds is None else describe_seconds(entry.seconds)])
        notes += _round_notes(entry)
    notes_html = ("<details><summary>Silos that sent no update, and why</summary><ul>"
                  f"{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul></details>") if notes else ""
    return (f"<section><h2>Rounds</h2>{_table(columns, rows, caption='Every round of the study')}{notes_html}"
            '<p class="note">Round 0 is the coordinator’s own training before any silo works. % of dense: payload bytes'
            " of a download or an accepted update, over 4 bytes for every parameter of the model. Wire bytes are all"
            " that crossed the connections, TLS included.</p></section>")


def _round_name(entry: RoundSummary) -> str:
    return str(entry.number) if entry.state is RoundState.COMPLETED else f"{entry.number} ({entry.state})"


def _round_notes(entry: RoundSummary) -> list[str]:
    notes = [f"Round {entry.number}: {entry.reason}"] if entry.reason else []
    words = {**dict(_ANSWERS), TaskState.CANCELLED: "cancelled", TaskState.OPEN: "still at work"}
    for silo, state in sorted(entry.outcomes.items(), key=lambda item: item[0].encode()):
        if state is not TaskState.UPDATED:
            reason = entry.reasons.get(silo, "").replace("_", " ") if state is TaskState.ABSTAINED \
                else entry.reasons.get(silo, "")
            notes.append(f"Round {entry.number}, {silo}: {words[state]}{f' ({reason})' if reason else ''}")
    return notes


def _costs(study: StudySummary) -> str:
    if not study.costs:
        return "<section><h2>Cost</h2><p>No bytes have been counted.</p></section>"
    sizes: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for cost in study.costs:
        item = cost.item if cost.kind != "wire" else ("silos" if cost.silo else "overhead")
        sizes[cost.kind, item, cost.direction] += cost.bytes
        counts[cost.kind, item] += cost.count
    words = {"payload": "Payload", "message": "Messages", "wire": "Wire"}
    rows = []
    for kind in ("payload", "message", "wire"):
        found = {item for each, item, _ in sizes if each == kind} | ({"overhead"} if kind == "wire" else set())
        items = sorted(found, key=lambda item: (item == "overhead", item))
        for item in items:
            down, up = sizes[kind, item, "down"], sizes[kind, item, "up"]
            label = {"silos": "connections of silos", "overhead": "overhead, no silo’s"}.get(item, item) \
                if kind == "wire" else item
            rows.append([f"{words[kind]}: {label}", _bytes(down), _bytes(up), describe_bytes(down + up),
                         str(counts[kind, item] or "")])
    traffic = study.traffic
    wire = "Wire, all (estimated)" if traffic.estimated else "Wire, all"
    totals = [[wire, _bytes(traffic.wire_down), _bytes(traffic.wire_up), describe_bytes(traffic.wire), ""],
              ["Dense, for comparison", _bytes(traffic.dense_bytes * traffic.downloads),
               _bytes(traffic.dense_bytes * traffic.uploads), describe_bytes(traffic.dense_total),
               str(traffic.downloads + traffic.uploads)],
              ["Payload, % of dense", describe_share(traffic.share_down), describe_share(traffic.share_up),
               describe_share(_share(traffic.payload, traffic)), ""],
              ["Wire, % of dense", describe_share(_part(traffic.wire_down, traffic.dense_bytes * traffic.downloads)),
               describe_share(_part(traffic.wire_up, traffic.dense_bytes * traffic.uploads)),
               describe_share(traffic.share), ""]]
    estimated = (" Wire bytes are estimated from the messages, because the kernel’s counters could not be read."
                 if traffic.estimated else " Wire bytes are the kernel’s counters of the connections.")
    layers = ("Payload: encoded tensors, by group. Messages: serialised, by call; they contain the payload. Wire: they"
              f" contain both.{estimated}")
    if traffic.payload and not (traffic.wire or traffic.message_down or traffic.message_up):  # a simulation
        totals = [row for row in totals if not row[0].startswith("Wire")]
        rows = [row for row in rows if not row[0].startswith("Wire")]
        layers = "Payload: encoded tensors, by group, as for real silos; here nothing crossed a network."
    table = _table(("What", "Down", "Up", "Both", "Count"), rows, totals=totals, caption="What went down and up")
    return (f"<section><h2>Cost</h2>{table}"
            f'<p class="note">{layers} Dense: one model for each download and accepted update,'
            f" {describe_bytes(traffic.dense_bytes)} each.</p>{_encodings(study)}</section>")


def _encodings(study: StudySummary) -> str:
    if not study.encodings:
        return ""
    arrows = {"down": "↓", "up": "↑"}
    totals = []
    rows = [[f"{arrows[use.direction]} {use.encoding}", describe_encoding(use.encoding), str(use.blocks or ""),
             _bytes(use.bytes), _bytes(use.dense_bytes), _saved(use.saved_bytes),
             describe_share(_part(use.bytes, use.dense_bytes))] for use in study.encodings]
    for direction in arrows:
        uses = [use for use in study.encodings if use.direction == direction]
        spent, dense = sum(use.bytes for use in uses), sum(use.dense_bytes for use in uses)
        totals.append([f"{arrows[direction]} all", "", str(sum(use.blocks for use in uses) or ""), _bytes(spent),
                       _bytes(dense), _saved(dense - spent), describe_share(_part(spent, dense))])
    table = _table(("Encoding", "In words", "Blocks", "Payload", "The same, dense", "Saved", "% of dense"), rows,
                   totals=totals, words=2, caption="What each encoding saved")
    return (f"<h3>What each encoding saved</h3>{table}"
            '<p class="note">↓ to silos, what crossed, so every download counts; groups that a silo held already are'
            " not sent and count as saved once per task. ↑ from silos, accepted updates. Dense: the same elements as"
            " they lie in memory.</p>")


def _saved(size: int) -> str:
    return f"−{describe_bytes(-size)}" if size < 0 else _bytes(size)


def _silos(study: StudySummary, silos: Sequence[SiloRow]) -> str:
    if not silos:
        return "<section><h2>Silos</h2><p>No silo has enrolled.</p></section>"
    answers: dict[str, Counter[TaskState]] = {}
    ratio: dict[str, float] = {}
    for entry in study.rounds:
        for silo, state in entry.outcomes.items():
            answers.setdefault(silo, Counter())[state] += 1
        ratio.update(entry.label_ratio)
    wire: Counter[tuple[str, str]] = Counter()
    for cost in study.costs:
        if cost.kind == "wire":
            wire[cost.silo, cost.direction] += cost.bytes
    rows = []
    for row in silos:
        counts = answers.get(row.name, Counter[TaskState]())
        membership = ("revoked" if row.revoked_unix else "left" if row.left_unix else "joined" if row.joined_unix
                      else "enrolled")
        rows.append([row.name, membership,
                     str(row.labelled_count + row.unlabelled_count) if row.joined_unix else _DASH,
                     str(row.labelled_count) if row.joined_unix else _DASH,
                     *(str(counts[answer]) for answer, _ in _ANSWERS), describe_share(ratio.get(row.name)),
                     _bytes(wire[row.name, "down"]), _bytes(wire[row.name, "up"]), row.version or _DASH])
    columns = ("Silo", "State", "Images", "With a label", *(word.capitalize() for _, word in _ANSWERS),
               "Last label ratio", "Wire down", "Wire up", "Version")
    return f"<section><h2>Silos</h2>{_table(columns, rows, caption='Who took part', words=2)}</section>"


def _settings(config: Mapping[str, Any]) -> str:
    rows = [[table, key, value] for table, content in config.items() for key, value in _flat(content)]
    rows.sort(key=lambda row: (row[0] != "study", row[0] != "method"))
    return ("<section><h2>Settings</h2><details><summary>All settings, as frozen when the study was queued</summary>"
            f"{_table(('Table', 'Key', 'Value'), rows, caption='Settings', words=3)}</details></section>")


def _flat(content: Any, prefix: str = "") -> list[tuple[str, str]]:
    if not isinstance(content, Mapping):
        return [(prefix, content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))]
    return [pair for key, value in content.items()
            for pair in _flat(value, str(key) if prefix in ("", "settings") else f"{prefix}.{key}")]


def _audit(audit: AuditSummary) -> str:
    verdict = (f'<p class="trouble">The audit trail is not intact. {escape(audit.problem)}</p>' if audit.problem
               else f"<p>The hash chain over all {audit.events} events of the ledger is intact.</p>")
    rows = [[kind.replace("_", " "), str(count)] for kind, count in audit.kinds]
    table = _table(("Event of this study", "Times"), rows, caption="Events by kind")
    return (f"<section><h2>Audit trail</h2>{verdict}<details><summary>Events of this study by kind</summary>{table}"
            "</details></section>")


def _provenance(study: StudySummary, state_digest: str) -> str:
    row = study.row
    frozen, numerics = row.frozen or {}, row.numerics or {}
    facts = [("Model state (SHA-256)", state_digest or _DASH),
             ("Seed", str(row.config.get("study", {}).get("seed", _DASH))),
             ("semisilo that wrote this page", __version__),
             *((f"Numerics: {key}", str(value)) for key, value in numerics.items()),
             ("Parameters", f"{frozen['num_parameters']:,}" if "num_parameters" in frozen else _DASH),
             *_starting_weights(frozen),
             ("Labelled / validation / test images", " / ".join(
                 str(frozen.get(f"num_{part}", _DASH)) for part in ("labelled", "validation", "test"))),
             ("Queued", _moment(row.queued_unix)), ("Started", _moment(row.started_unix)),
             ("Ended", _moment(row.ended_unix)), ("Page written", _moment(time.time()))]
    rows = [[name, value] for name, value in facts]
    return f"<section><h2>Provenance</h2>{_table(('Fact', 'Value'), rows, caption='Provenance', words=2)}</section>"


def _starting_weights(frozen: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the network started from, where that was not all random or not all is trained."""
    facts = []
    if frozen.get("num_frozen"):
        facts.append(("Frozen parameters, which nobody trains", f"{frozen['num_frozen']:,}"))
        facts.append(("Frozen tensors (digest)", str(frozen.get("frozen_digest", _DASH))))
    if frozen.get("weights"):
        facts.append(("Started from the file", str(frozen["weights"])))
        facts.append(("Its SHA-256", str(frozen.get("weights_digest", _DASH))))
        facts.append(("Not in that file, started at random", ", ".join(frozen.get("left_random", ())) or "nothing"))
    return facts


# Pieces ---------------------------------------------------------------------------------------------------------------


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, words: int = 1,
           totals: Sequence[Sequence[str]] = ()) -> str:
    """A table whose first `words` columns are text and whose others are numbers; the first cell names its row."""
    def cell(place: int, text: str) -> str:
        # A word alone is a name, and stays in one piece: browsers would break it at its hyphens.
        style = ' class="number"' if place >= words else ' class="name"' if place == 0 and " " not in text else ""
        return (f'<th scope="row"{style}>{escape(text)}</th>' if place == 0 else f"<td{style}>{escape(text)}</td>")

    def lines(content: Sequence[Sequence[str]]) -> str:
        return "".join(f"<tr>{''.join(cell(place, text) for place, text in enumerate(row))}</tr>" for row in content)

    def heading(place: int, name: str) -> str:
        style = ' class="number"' if place >= words else ""
        return f'<th scope="col"{style}>{escape(name)}</th>'

    head = "".join(heading(place, name) for place, name in enumerate(columns))
    foot = f"<tfoot>{lines(totals)}</tfoot>" if totals else ""
    return (f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table>'
            f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{lines(rows)}</tbody>{foot}"
            "</table></div>")


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _accuracy(value: float | None) -> str:
    return _DASH if value is None else f"{100 * value:.1f} %"


def _bytes(count: int) -> str:
    return describe_bytes(count) if count else _DASH


def _amounts(count: int, share: float | None) -> tuple[str, str]:
    return _bytes(count), describe_share(share)


def _share(count: int, traffic: Traffic) -> float | None:
    return _part(count, traffic.dense_total)


def _part(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _moment(unix: float | None) -> str:
    return _DASH if unix is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))


_STATE_COLOURS = {StudyState.COMPLETED: "good", StudyState.RUNNING: "accent", StudyState.FAILED: "bad",
                  StudyState.STOPPED: "bad", StudyState.PAUSED: "faint"}
_STYLE = """
:root { --paper: #f6f7f9; --card: #ffffff; --text: #1f2933; --faint: #5b6770; --line: #dfe4e8; --accent: #0067a3;
  --good: #00694e; --bad: #a8320c; --shade: #1f293366; }
@media (prefers-color-scheme: dark) { :root { --paper: #10151a; --card: #171d24; --text: #e6eaee; --faint: #9aa7b3;
  --line: #303a45; --accent: #56b4e9; --good: #2fcf9d; --bad: #f0954e; --shade: #000000b3; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--text); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 78rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .6rem; }
header p { margin: 0; color: var(--faint); }
.over { margin-bottom: .4rem !important; overflow-wrap: anywhere; }
.state { font-size: .9rem; font-weight: 600; padding: .1rem .6rem; border-radius: 1rem; vertical-align: middle;
  border: 1px solid currentColor; color: var(--faint); white-space: nowrap; }
""" + "".join(f".state.{state} {{ color: var(--{colour}); }}\n" for state, colour in _STATE_COLOURS.items()) + """
.trouble { color: var(--bad) !important; font-weight: 600; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .8rem; margin: 1.4rem 0 0; }
.tiles div, figure, .scroll, details { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.tiles div { padding: .8rem 1rem; }
.tiles dt, .tiles p { color: var(--faint); font-size: .85rem; margin: 0; }
.tiles dd { font-size: 1.45rem; font-weight: 650; white-space: nowrap; margin: .1rem 0;
  font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .8rem; }
figcaption { font-weight: 600; margin: 0 0 .5rem .2rem; }
img { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; scrollbar-width: thin; background:
  linear-gradient(to right, var(--card) 40%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / .8rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / .8rem 100% no-repeat scroll, var(--card); }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
th, td { text-align: left; padding: .35rem .5rem; border-bottom: 1px solid var(--line); font-weight: 400;
  vertical-align: top; }
.number { text-align: right; white-space: nowrap; }
.name { white-space: nowrap; }
thead .number { white-space: normal; }
thead th { color: var(--faint); font-weight: 600; vertical-align: bottom; font-size: .82rem; line-height: 1.25; }
tbody tr:last-child > * { border-bottom: 0; }
tfoot { border-top: 2px solid var(--line); }
tfoot th { font-weight: 600; }
td:not(.number) { overflow-wrap: anywhere; min-width: 8rem; }
details { padding: .6rem .9rem; margin-top: .8rem; }
details .scroll { border: 0; margin-top: .5rem; }
details ul { margin: .5rem 0 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
.note { color: var(--faint); font-size: .85rem; max-width: 60rem; }
@media print { body { background: #fff; } figure, table { break-inside: avoid; } }
"""
