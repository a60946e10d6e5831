"""How long one silo waits for an answer while many others are connected: one small call, again and again.

    python -m benchmarks.wire.probe HOME OUT

Writes a line for each answer of DescribeStudy to OUT: when it came (Unix seconds) and how long it took (seconds), with
the status where the call has failed. Runs until it is ended by a signal. The time is what the caller sees: with
everything on one machine, it has to get a processor as well.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import grpc.aio

from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire import round_service_pb2_grpc
from semisilo.silo.membership.enrollment import open_channel
from semisilo.silo.site.identity_store import load_identity

__all__ = ["probe"]

_PAUSE_SECONDS = 0.05
_LONGEST_SECONDS = 60.0


async def probe(home: Path, out: Path) -> None:
    """Calls until it is cancelled."""
    async with open_channel(load_identity(home), use_http_proxy=False) as channel:
        service = round_service_pb2_grpc.RoundServiceStub(channel)  # type: ignore[no-untyped-call]
        with out.open("w", encoding="utf-8", buffering=1) as lines:
            while True:
                began = time.monotonic()
                failed = ""
                try:
                    await service.DescribeStudy(pb.DescribeStudyRequest(), timeout=_LONGEST_SECONDS)
                except grpc.aio.AioRpcError as error:
                    failed = f" {error.code().name}"
                lines.write(f"{time.time():.3f} {time.monotonic() - began:.6f}{failed}\n")
                await asyncio.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(probe(Path(sys.argv[1]), Path(sys.argv[2])))
