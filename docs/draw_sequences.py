"""Draws the sequence diagrams of the pages as SVG, light and dark; `--check`: are the files current?

Each diagram is a tuple of steps, read from top to bottom. The files in `docs/images/` are committed, so that pages show
them without a build.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH = 880
TOP = 92
"""Where the first step starts, in pixels."""
LINE = 18
"""Height of a line of text, in pixels."""
NOTE_LETTER = 7.2
"""Width that a letter takes on average in the fonts above, rounded up, in pixels."""

_STYLE = """
    .page { fill: #ffffff; }
    .person { fill: #f4f6f8; stroke: #8a949e; }
    .ours { fill: #e5eefb; stroke: #3b6fb5; }
    .theirs { fill: #e7f4ea; stroke: #3c8a52; }
    .lifeline { stroke: #8a949e; stroke-dasharray: 3 4; }
    .arrow { stroke: #57606a; fill: none; }
    .head { fill: #57606a; }
    .rule { stroke: #d0d7de; }
    .text { fill: #1f2328; }
    .soft { fill: #57606a; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; }
      .person { fill: #161b22; stroke: #6e7681; }
      .ours { fill: #14233a; stroke: #6ea0e8; }
      .theirs { fill: #12281a; stroke: #62b57a; }
      .lifeline { stroke: #6e7681; }
      .arrow { stroke: #9aa4ae; }
      .head { fill: #9aa4ae; }
      .rule { stroke: #30363d; }
      .text { fill: #e6edf3; }
      .soft { fill: #9aa4ae; }
    }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Participant:
    """A column of a diagram."""

    name: str
    kind: str = "person"
    """"ours" (the coordinator), "theirs" (a silo) or "person": the colour."""


@dataclass(frozen=True, slots=True)
class Message:
    """An arrow from one column to another, by their positions from 0."""

    source: int
    target: int
    text: str
    detail: str = ""
    """A second line, in a softer colour."""
    also: tuple[int, int] | None = None
    """A second arrow of the same message, from and to other columns."""


@dataclass(frozen=True, slots=True)
class Note:
    """What one column does by itself; lines are separated by a line feed."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A heading between steps."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """A diagram and the name of its file."""

    file: str
    title: str
    participants: tuple[Participant, ...]
    steps: tuple[Message | Note | Part, ...]


SEQUENCES = (
    Sequence(
        file="sequence-enrolment.svg", title="How a hospital joins a federation",
        participants=(Participant(name="Hub operator"), Participant(name="Coordinator", kind="ours"),
                      Participant(name="Silo", kind="theirs"), Participant(name="Hospital engineer")),
        steps=(
            Part("Invitation"),
            Message(0, 1, "coordinator invite hospital-a"),
            Note(1, "stores a hash of the token,\nopens the enrolment port"),
            Message(1, 0, "the invitation line", "address, token, CA certificate"),
            Message(0, 3, "sends the line over a channel that both trust"),
            Part("Enrolment: TLS with the pinned CA certificate, port 8444"),
            Message(3, 2, "silo enroll LINE"),
            Note(2, "creates the private key,\nwhich never leaves"),
            Message(2, 1, "Enroll", "token, certificate request"),
            Note(1, "checks and uses up the token;\nthe name comes from the invitation"),
            Message(1, 2, "certificate", "valid for 30 days"),
            Part("Work: mutual TLS, port 8443; only the silo opens connections"),
            Message(3, 2, "silo check, silo join"),
            Message(2, 1, "AwaitTask", "version, methods, image counts"),
            Message(1, 2, "first task", "names the study card"),
            Message(2, 1, "DescribeStudyCard"),
            Note(2, "compares the card with its policy;\na person approves it if the\nsite requires that"),
            Message(2, 1, "SignStudyCard"),
            Message(2, 1, "RenewCertificate", "after 20 days"),
        )),
    Sequence(
        file="sequence-round.svg", title="One round between the coordinator and a silo",
        participants=(Participant(name="Coordinator", kind="ours"), Participant(name="Silo", kind="theirs")),
        steps=(
            Note(0, "opens the round in the ledger:\nsample, settings, deadline"),
            Message(1, 0, "AwaitTask", "a long poll, which is also the heartbeat"),
            Message(0, 1, "task", "settings, and the digests of the payloads"),
            Note(1, "checks the task against its own\npolicy and the study card"),
            Message(1, 0, "DownloadPayload", "digest, offset"),
            Message(0, 1, "the model, compressed against what the silo holds"),
            Note(1, "verifies the digest, labels its\nimages, trains"),
            Message(1, 0, "ReportProgress", "every few seconds; the answer may be: abort"),
            Note(1, "writes the update to disk, and\nthen to its record of disclosures"),
            Message(1, 0, "BeginUpdate", "digest, size, counts and metrics"),
            Message(0, 1, "send from this offset, already received, or refused"),
            Message(1, 0, "SubmitUpdate", "a stream, resumed after a broken connection"),
            Note(0, "checks the update; spool and\nledger are on disk"),
            Message(0, 1, "accepted"),
            Note(0, "when all have answered, or at the\ndeadline with a quorum: averages in\n"
                    "the order of silo names, evaluates,\ncommits"),
        )),
    Sequence(
        file="sequence-secure-aggregation.svg", title="One sum with secure aggregation",
        participants=(Participant(name="Silo A", kind="theirs"), Participant(name="Coordinator", kind="ours"),
                      Participant(name="Silos B, C, ...", kind="theirs")),
        steps=(
            Part("1  Keys"),
            Message(1, 0, "which sum, threshold", also=(1, 2)),
            Message(0, 1, "two public keys", "signed, for this sum only", also=(2, 1)),
            Part("2  Shares"),
            Message(1, 0, "names and keys of all members", also=(1, 2)),
            Note(0, "checks the signatures, splits\nits two secrets into shares"),
            Message(0, 1, "a sealed share for each other silo", "the coordinator cannot open it", also=(2, 1)),
            Part("3  Mask"),
            Message(1, 0, "the shares sealed for this silo", also=(1, 2)),
            Note(0, "trains; adds one mask per pair\nof silos, and one of its own"),
            Message(0, 1, "masked update", "looks like uniform noise", also=(2, 1)),
            Part("4  Confirm"),
            Message(1, 0, "who has sent a masked update", also=(1, 2)),
            Message(0, 1, "signature of this list", also=(2, 1)),
            Part("5  Unmask"),
            Message(1, 0, "the signatures", also=(1, 2)),
            Note(0, "checks that enough silos\nsigned the same list"),
            Message(0, 1, "one share per silo", "own mask, or pair masks if it dropped out", also=(2, 1)),
            Note(1, "removes the remaining masks:\nthe sum, and no single update"),
        )),
)


def svg(sequence: Sequence) -> str:
    """The diagram as the text of a file."""
    count = len(sequence.participants)
    edge = {2: 200, 3: 140}.get(count, 100)
    at = [edge + (WIDTH - 2 * edge) * column / (count - 1) for column in range(count)]
    body: list[str] = []
    y = float(TOP)
    for step in sequence.steps:
        y = _draw(step, at, y, body, sequence.participants)
    height = round(y + 14)
    told = " ".join(_told(step, sequence.participants) for step in sequence.steps)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
             'aria-labelledby="title desc"',
             '     font-family="system-ui, -apple-system, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="14">',
             f'  <title id="title">{escape(sequence.title)}</title>', f'  <desc id="desc">{escape(told)}</desc>',
             f"  <style>{_STYLE}  </style>", f'  <rect class="page" width="{WIDTH}" height="{height}" rx="10"/>']
    for x, participant in zip(at, sequence.participants, strict=True):
        wide = max(130, 8 * len(participant.name) + 20)
        lines += [f'  <line class="lifeline" x1="{x:.0f}" y1="58" x2="{x:.0f}" y2="{height - 14}"/>',
                  f'  <rect class="{participant.kind}" x="{x - wide / 2:.0f}" y="20" width="{wide}" height="38" '
                  'rx="8"/>',
                  _text(x, 44, participant.name, "text", weight=True)]
    return "\n".join([*lines, *body, "</svg>", ""])


def _draw(step: Message | Note | Part, at: list[float], y: float, body: list[str],
          participants: tuple[Participant, ...]) -> float:
    """Draws one step from `y` on; returns where the next one starts."""
    if isinstance(step, Part):
        body += [f'  <line class="rule" x1="20" y1="{y + 4:.0f}" x2="{WIDTH - 20}" y2="{y + 4:.0f}"/>',
                 f'  <rect class="page" x="20" y="{y + 6:.0f}" width="{8 * len(step.text) + 16}" height="22"/>',
                 _text(24, y + 23, step.text, "soft", anchor="start", weight=True)]
        return y + 40
    if isinstance(step, Note):
        rows = step.text.split("\n")
        high, wide = LINE * len(rows) + 14, NOTE_LETTER * max(map(len, rows)) + 24
        x = min(max(at[step.at], wide / 2 + 12), WIDTH - wide / 2 - 12)
        body.append(f'  <rect class="{participants[step.at].kind}" x="{x - wide / 2:.0f}" y="{y:.0f}" '
                    f'width="{wide:.0f}" height="{high}" rx="6"/>')
        body += [_text(x, y + 21 + LINE * row, text, "text") for row, text in enumerate(rows)]
        return y + high + 18
    for source, target in [(step.source, step.target), *([step.also] if step.also is not None else [])]:
        _arrow(step, at[source], at[target], y, body)
    return y + (62 if step.detail else 46)


def _arrow(step: Message, start: float, end: float, y: float, body: list[str]) -> None:
    line, way, middle = y + 22, (1 if end > start else -1), (start + end) / 2
    for text, top in ((step.text, y), (step.detail, line + 4)):
        if text:  # behind a text the lines of columns between are left out
            wide = min(NOTE_LETTER * len(text), abs(end - start) - 10)
            body.append(f'  <rect class="page" x="{middle - wide / 2:.0f}" y="{top:.0f}" width="{wide:.0f}" '
                        'height="17"/>')
    body += [_text(middle, y + 14, step.text, "text"),
             f'  <path class="arrow" stroke-width="1.5" d="M{start + 3 * way:.0f} {line:.0f} H{end - 9 * way:.0f}"/>',
             f'  <path class="head" d="M{end - 2 * way:.0f} {line:.0f} l{-9 * way} -4.5 v9 z"/>']
    if step.detail:
        body.append(_text(middle, line + 18, step.detail, "soft", size=12.5))


def _text(x: float, y: float, text: str, look: str, *, anchor: str = "middle", weight: bool = False,
          size: float | None = None) -> str:
    bold = ' font-weight="600"' if weight else ""
    sized = f' font-size="{size}"' if size is not None else ""
    return f'  <text class="{look}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{bold}{sized}>{escape(text)}</text>'


def _told(step: Message | Note | Part, participants: tuple[Participant, ...]) -> str:
    """The step in words, for those who do not see the picture."""
    if isinstance(step, Part):
        return f"{step.text}."
    if isinstance(step, Note):
        return f"{participants[step.at].name}: {' '.join(step.text.split())}."
    detail = f" ({step.detail})" if step.detail else ""
    return f"{participants[step.source].name} to {participants[step.target].name}: {step.text}{detail}."


def main() -> None:
    """Writes or checks."""
    for sequence in SEQUENCES:
        path, fresh = IMAGES / sequence.file, svg(sequence)
        if sys.argv[1:] != ["--check"]:
            path.write_text(fresh, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != fresh:
            sys.exit(f"docs/images/{sequence.file} is not what docs/draw_sequences.py draws. Run: make docs")
    print("docs/images/sequence-*.svg are current")


if __name__ == "__main__":
    main()
