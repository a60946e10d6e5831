"""Says whether the result of `semisilo demo --json FILE` can be right: python check_demo.py FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Prints the numbers; exits with 1 and the reason when one of them cannot be right."""
    facts = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
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
