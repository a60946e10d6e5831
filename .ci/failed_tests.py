"""Prints the tests that failed in the last run of pytest, one on a line: `python .ci/failed_tests.py MOST`.

Exit status 1, and nothing printed, where none has or more than MOST have: then something is broken, not busy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    found = Path(".pytest_cache/v/cache/lastfailed")
    failed = sorted(json.loads(found.read_text(encoding="utf-8"))) if found.exists() else []
    if not 0 < len(failed) <= int(sys.argv[1]):
        return 1
    print("\n".join(failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
