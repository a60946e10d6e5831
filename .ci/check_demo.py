"""Reads what `semisilo demo --json` printed and says whether the federation has done its job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def facts_in(text: str) -> dict[str, Any]:
    """The last JSON object that begins at the start of a line of `text`."""
    found: dict[str, Any] | None = None
    position = 0
    while (position := text.find("{", position)) >= 0:
        if position and text[position - 1] != "\n":
            position += 1
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, position)
        except ValueError:
            position += 1
            continue
        found, position = value, end
    if found is None:
        sys.exit("the demo printed no JSON object")
    return found


def main() -> None:
    """Prints the numbers; exits with 1 and the reason when one of them cannot be right."""
    facts = facts_in(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(facts, indent=1, sort_keys=True))
    problems = []
    accuracy, alone = facts["accuracy"], facts["labelled_only_accuracy"]
    if not 0 < alone < accuracy <= 1:
        problems.append(f"accuracy {accuracy} should be above that of labels alone, {alone}, and at most 1")
    payload, wire = facts["payload_bytes"], facts["wire_bytes"]
    if not 0 < payload < wire:
        problems.append(f"{wire} bytes on the wire should be more than the {payload} bytes of payloads in them")
    if problems:
        sys.exit("; ".join(problems))
    print(f"demo: accuracy {accuracy:.4f}, labels alone {alone:.4f}, {wire} bytes on the wire")


if __name__ == "__main__":
    main()
