"""`python -m benchmarks.wire.transfer`: how fast a payload moves, and what it costs, against raw Python TLS.

In one run: raw TLS one way; the download and the upload of a payload over mutual TLS, with spooling to disk, a CRC for
every chunk and the SHA-256 of the whole; CPU seconds per GB at both ends; the peak memory of the coordinator's light
process with several silos at once; and all of it again through a proxy that delays every byte.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.wire import delay_proxy, raw_tls
from benchmarks.wire.raw_tls import RawTransfer
from benchmarks.wire.transfer_ends import FEDERATION, Used, be_coordinator, be_silo, silo_name
from semisilo.common.identity.certificates import certificate_pem, issue_silo_certificate, key_to_pem, make_key
from semisilo.coordinator.federation.authority import CoordinatorCertificate, create_authority
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.roster import LedgerRoster

_SPAWN = multiprocessing.get_context("spawn")
_GB = 1e9
_LONGEST_SECONDS = 600.0
"""That anything asked of a process may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Transfers of one kind, one after the other. Rates in bytes per second, CPU in seconds per 10^9 bytes."""

    what: str
    """"raw TLS", "download" or "upload"."""
    silos: int
    """How many transferred at the same time."""
    delay_ms: float
    """Each way."""
    size_bytes: int
    """Of each payload."""
    seconds: list[float]
    """Until the last silo had finished, warm ones only."""
    first_seconds: float
    """The first transfer over a fresh connection."""
    rate: float
    """All silos together, median of `seconds`."""
    send_cpu: float
    receive_cpu: float
    """Medians; of the sending and of the receiving side, all processes of it."""
    peak_bytes: int = 0
    """Resident memory of the coordinator's light process, at most, so far in its life."""
    idle_bytes: int = 0
    """What it had before the first silo came: mostly its imports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints a table, and writes JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire.transfer", description=__doc__)
    parser.add_argument("--size", type=int, default=100_000_000, help="bytes of a payload")
    parser.add_argument("--repetitions", type=int, default=7, help="transfers of each kind on one connection")
    parser.add_argument("--silos", type=int, nargs="+", default=[1, 2, 8, 16], help="at the same time, each count")
    parser.add_argument("--uploads", type=int, default=4, help="the federation's limit of uploads at the same time")
    parser.add_argument("--delay-ms", type=float, default=25.0, help="of the proxy, each way; 0 leaves it out")
    parser.add_argument("--spare-files", type=int, default=8, help="of the spool")
    parser.add_argument("--folder", type=Path, help="where to work; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    chosen = parser.parse_args(arguments)
    if min(chosen.size, chosen.repetitions - 1, *chosen.silos) < 1:
        parser.error("sizes and counts must be at least 1, repetitions at least 2")
    folder = Path(tempfile.mkdtemp(prefix="transfer-", dir=chosen.folder))
    try:
        found = [each for delay_ms in dict.fromkeys([0.0, chosen.delay_ms])
                 for each in _measure_all(chosen, folder, delay_ms)]
    finally:
        shutil.rmtree(folder)
    print(describe(found))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    return 0


def _measure_all(chosen: argparse.Namespace, folder: Path, delay_ms: float) -> Iterator[Measured]:
    """Everything at one delay, raw TLS before and after, since other work on the machine comes and goes."""
    counts = chosen.silos if not delay_ms else chosen.silos[:1]
    make_federation(folder / f"{delay_ms}", max(counts))
    raw = [_raw(folder / f"{delay_ms}", chosen, delay_ms)]
    moved = [each for count in counts for each in _moved(folder / f"{delay_ms}", chosen, count, delay_ms)]
    raw.append(_raw(folder / f"{delay_ms}", chosen, delay_ms))
    yield from raw
    yield from moved


def make_federation(folder: Path, silos: int) -> None:
    """Keys, certificates and a roster, for that many silos."""
    folder.mkdir()
    now = time.time()
    keys = create_authority(folder / "authority", FEDERATION, now=now)
    (folder / "ca.pem").write_bytes(keys.pem)
    own = CoordinatorCertificate(folder / "authority", now=now).current()
    (folder / "server.pem").write_bytes(own.certificate_pem)
    (folder / "server.key").write_bytes(own.key_pem)
    ledger = Ledger(folder / "ledger.sqlite")
    roster = LedgerRoster(ledger)
    for name in map(silo_name, range(silos)):
        key = make_key()
        certificate = issue_silo_certificate(keys.key, keys.certificate, key.public_key(), name, now=now,
                                             seconds=86_400.0)
        token = name.encode().ljust(32)
        roster.add_invitation(silo=name, token_hash=token, expires_unix=now + 3600)
        roster.use_invitation(token, key_fingerprint=token, certificate_der=b"", serial=certificate.serial_number,
                              not_after_unix=now + 86_400)
        (folder / f"{name}.key").write_bytes(key_to_pem(key))
        (folder / f"{name}.pem").write_bytes(certificate_pem(certificate))
        if name == silo_name(0):  # raw TLS shows the same kind of certificate
            (folder / "silo.key").write_bytes(key_to_pem(key))
            (folder / "silo.pem").write_bytes(certificate_pem(certificate))
    ledger.close()


@contextmanager
def _process(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """A process of its own, and the end of a pipe to it; killed at the end of the block."""
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.terminate()
        process.join(10)
        here.close()


@contextmanager
def _way(port: int, delay_ms: float) -> Iterator[int]:
    """The port to connect to: the target's own, or that of a proxy in front of it."""
    if not delay_ms:
        yield port
        return
    with _process(delay_proxy.run, port, delay_ms / 1e3) as proxy:
        yield proxy.recv()


def _raw(folder: Path, chosen: argparse.Namespace, delay_ms: float) -> Measured:
    with _process(raw_tls.receive, folder, 1) as receiver, _way(receiver.recv(), delay_ms) as port:
        first, *warm = raw_tls.send(folder, port, chosen.size, chosen.repetitions)
    return _summary("raw TLS", 1, delay_ms, chosen.size, [first, *warm])


def _moved(folder: Path, chosen: argparse.Namespace, count: int, delay_ms: float) -> Iterator[Measured]:
    """Downloads, then uploads, of `count` silos at the same time, each silo over one connection."""
    with _process(be_coordinator, folder, chosen.uploads, chosen.spare_files) as hub, \
            _way(hub.recv(), delay_ms) as port, _silos(folder, count, port) as silos:
        idle = _ask(hub, "used").peak_bytes
        for what in ("download", "upload"):
            found = [_once(hub, silos, what, chosen.size) for _ in range(chosen.repetitions)]
            yield _summary(what, count, delay_ms, chosen.size, found, peak_bytes=_ask(hub, "used").peak_bytes,
                           idle_bytes=idle)


@contextmanager
def _silos(folder: Path, count: int, port: int, *made: Connection) -> Iterator[list[Connection]]:
    if len(made) == count:
        yield list(made)
        return
    with _process(be_silo, folder, len(made), port) as silo, _silos(folder, count, port, *made, silo) as all_silos:
        yield all_silos


def _ask(end: Connection, order: Any) -> Any:
    end.send(order)
    return _answer(end)


def _answer(end: Connection) -> Any:
    """Raises: TimeoutError where none comes: a silo tries for ever what its coordinator cannot do."""
    if not end.poll(_LONGEST_SECONDS):
        raise TimeoutError(f"a process has not answered within {_LONGEST_SECONDS:.0f} s; what it printed says why")
    return end.recv()


def _ask_all(ends: Sequence[Connection], order: Any) -> list[Any]:
    for end in ends:
        end.send(order)
    return [_answer(end) for end in ends]


def _once(hub: Connection, silos: Sequence[Connection], what: str, size_bytes: int) -> RawTransfer:
    """One payload to, or one update from, every silo; making it and throwing it away are not counted."""
    if what == "download":
        order: Any = ("download", _ask(hub, ("payload", size_bytes)), size_bytes)
    else:
        order = "upload"
        _ask_all(silos, ("prepare", size_bytes))
    before: list[Used] = [_ask(hub, "used"), *_ask_all(silos, "used")]
    start = time.perf_counter()
    own = _ask_all(silos, order)
    seconds = own[0] if len(own) == 1 else time.perf_counter() - start
    after: list[Used] = [_ask(hub, "used"), *_ask_all(silos, "used")]
    at_hub, *at_silos = (now.cpu_seconds - then.cpu_seconds for now, then in zip(after, before, strict=True))
    _ask(hub, "collect")
    ends = (at_hub, sum(at_silos)) if what == "download" else (sum(at_silos), at_hub)
    return RawTransfer(seconds, *ends)


def _summary(what: str, silos: int, delay_ms: float, size_bytes: int, found: Sequence[RawTransfer], *,
             peak_bytes: int = 0, idle_bytes: int = 0) -> Measured:
    first, *warm = found
    total = silos * size_bytes
    return Measured(
        what=what, silos=silos, delay_ms=delay_ms, size_bytes=size_bytes, seconds=[each.seconds for each in warm],
        first_seconds=first.seconds, rate=total / statistics.median(each.seconds for each in warm),
        send_cpu=statistics.median(each.send_cpu_seconds for each in warm) / total * _GB,
        receive_cpu=statistics.median(each.receive_cpu_seconds for each in warm) / total * _GB,
        peak_bytes=peak_bytes, idle_bytes=idle_bytes)


def describe(found: Sequence[Measured]) -> str:
    """The figures as a table; "of raw" compares with the mean of raw TLS before and after, in the same run."""
    lines = ["| transfer | silos | delay each way | warm MB/s | first MB/s | of raw TLS | CPU s/GB sender | receiver "
             "| coordinator above idle |", "|---|---|---|---|---|---|---|---|---|"]
    for each in found:
        raw = statistics.mean(other.rate for other in found
                              if other.what == "raw TLS" and other.delay_ms == each.delay_ms)
        memory = f"{(each.peak_bytes - each.idle_bytes) / 2**20:.0f} MiB" if each.peak_bytes else ""
        first = each.silos * each.size_bytes / each.first_seconds
        lines.append(f"| {each.what} | {each.silos} | {each.delay_ms:g} ms | {each.rate / 1e6:.0f} | {first / 1e6:.0f} "
                     f"| {each.rate / raw:.2f} | {each.send_cpu:.2f} | {each.receive_cpu:.2f} | {memory} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
