"""The tracking process as `coordinator serve` sees it: started with it, started again when it dies, ended with it.

Tests: tests/coordinator/tracking/test_follow.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path

__all__ = ["keep_tracking"]

_LOG = logging.getLogger("semisilo.tracking")
_AGAIN_SECONDS = 30.0
_FAREWELL_SECONDS = 20.0
"""Well within the minute after which systemd, Docker and Kubernetes kill what they stop."""


async def keep_tracking(folder: Path, *, again_seconds: float = _AGAIN_SECONDS,
                        farewell_seconds: float = _FAREWELL_SECONDS) -> None:
    """Runs the process until cancelled; then it has `farewell_seconds` to tell what is left."""
    while True:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "semisilo.coordinator.tracking.follow", str(folder), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr)
        except (OSError, RuntimeError) as error:  # no more files, processes or threads: the coordinator goes on without
            _LOG.warning("the tracking process cannot be started: %s; it is tried again in %.0f s, and nothing is lost",
                         error, again_seconds)
            await asyncio.sleep(again_seconds)
            continue
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            await _end(process, farewell_seconds)
            raise
        _LOG.warning("the tracking process has ended (status %d); it is started again in %.0f s, and nothing is lost",
                     status, again_seconds)
        await asyncio.sleep(again_seconds)


async def _end(process: asyncio.subprocess.Process, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    # Not asyncio.timeout: before Python 3.11.3 it does not time out in a task that was cancelled, as this one was.
    ended = asyncio.ensure_future(process.wait())
    await asyncio.wait({ended}, timeout=seconds)
    if not ended.done():
        _LOG.warning("the tracker does not answer; what it has missed is sent at the next start")
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await ended
