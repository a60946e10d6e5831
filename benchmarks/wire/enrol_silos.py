"""Enrols many silos at a running coordinator, over the real enrollment port, in one process.

    python -m benchmarks.wire.enrol_silos FEDERATION_FOLDER HOMES silo-000 silo-001 ...

Each silo gets an invitation, a key, a certificate and a home `HOMES/<name>`; a silo.toml is the caller's to write.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from semisilo.common.errors import SemisiloError
from semisilo.coordinator.federation.folder import open_federation
from semisilo.coordinator.federation.invitations import authority_of
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster
from semisilo.silo.membership.enrollment import enroll

_PATIENCE_SECONDS = 30.0


async def _enrol(folder: Path, homes: Path, names: list[str]) -> None:
    federation = open_federation(folder)
    address = federation.config.address
    ledger = Ledger(federation.ledger)
    try:
        authority = authority_of(federation, LedgerRoster(ledger))
        for number, name in enumerate(names):
            line = authority.invite(name, address=address.public, enrollment_address=address.enrollment_address,
                                    now=time.time())
            await _persist(line, homes / name)
            if (number + 1) % 20 == 0:
                print(f"enrolled {number + 1} of {len(names)}", file=sys.stderr)
    finally:
        ledger.close()


async def _persist(line: str, home: Path) -> None:
    """The port opens within a second of an invitation; until then nothing listens."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            await enroll(line, home, now=time.time(), use_http_proxy=False)
            return
        except SemisiloError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(_enrol(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
