"""What goes wrong with a running federation of processes, and what ends it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import FederationOfProcesses
from tests.proxy import Proxy
from tests.shifted_clocks import set_clock

__all__ = ["FAULTS", "Fault", "Site"]

HUB = "coordinator"


@dataclass
class Site:
    """A federation behind a proxy."""

    processes: FederationOfProcesses
    proxy: Proxy
    limits: dict[int, list[tuple[int, tuple[int, int]]]] = field(default_factory=dict)
    """Process -> limits as they were."""

    def pid(self, name: str) -> int:
        """The light process of a side."""
        return self.processes.running[name].pid

    def all_of(self, name: str) -> list[int]:
        """A side's processes: the light one and what it has started."""
        found = [self.pid(name)]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found.extend(map(int, task.read_text().split()))
        return found

    def limit(self, name: str, what: int, most: int) -> None:
        """Lowers a limit of a side's processes."""
        for pid in self.all_of(name):
            before = resource.prlimit(pid, what)
            self.limits.setdefault(pid, []).append((what, before))
            resource.prlimit(pid, what, (most, before[1]))

    def lift(self) -> None:
        """Takes the limits away again, from processes that are still there."""
        for pid, limits in self.limits.items():
            for what, before in limits:
                if Path(f"/proc/{pid}").exists():
                    resource.prlimit(pid, what, before)
        self.limits.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that goes wrong for a while."""

    name: str
    begin: Callable[[Site], None]
    end: Callable[[Site], None] = lambda site: None
    lasts_seconds: float = 0.0
    needs_faketime: bool = False


def _kill(*names: str) -> Callable[[Site], None]:
    def kill(site: Site) -> None:
        for name in names:
            site.processes.kill(name)
    return kill


def _start(*names: str) -> Callable[[Site], None]:
    def start(site: Site) -> None:
        for name in names:
            if name == HUB:
                site.processes.serve()
            else:
                site.processes.join(name)
    return start


def _kill_compute(name: str) -> Callable[[Site], None]:
    def kill(site: Site) -> None:
        for pid in site.all_of(name)[1:2]:
            os.kill(pid, signal.SIGKILL)
    return kill


def _signal(name: str, number: signal.Signals) -> Callable[[Site], None]:
    def send(site: Site) -> None:
        for pid in site.all_of(name):
            os.kill(pid, number)
    return send


def _no_room(name: str) -> Callable[[Site], None]:
    return lambda site: site.limit(name, resource.RLIMIT_FSIZE, 0)


def _no_files(name: str) -> Callable[[Site], None]:
    return lambda site: site.limit(name, resource.RLIMIT_NOFILE, 8)


def _unreachable(site: Site) -> None:
    site.proxy.refuse = True
    site.proxy.cut()


def _reachable(site: Site) -> None:
    site.proxy.refuse = False


def _clock(name: str, offset: str) -> Callable[[Site], None]:
    return lambda site: set_clock(site.processes, name, offset)


def _lift(site: Site) -> None:
    site.lift()


FAULTS = (
    Fault(name="coordinator: kill -9, started again", begin=_kill(HUB), end=_start(HUB)),
    Fault(name="silo: kill -9, started again", begin=_kill("alpha"), end=_start("alpha")),
    Fault(name="both sides: kill -9, started again", begin=_kill(HUB, "alpha", "beta"),
          end=_start(HUB, "alpha", "beta")),
    Fault(name="coordinator: its compute process is killed", begin=_kill_compute(HUB)),
    Fault(name="silo: its compute process is killed", begin=_kill_compute("alpha")),
    Fault(name="every connection is reset", begin=lambda site: site.proxy.cut()),
    Fault(name="the coordinator cannot be reached for 10 s", begin=_unreachable, end=_reachable, lasts_seconds=10.0),
    Fault(name="coordinator: frozen for 20 s", begin=_signal(HUB, signal.SIGSTOP), end=_signal(HUB, signal.SIGCONT),
          lasts_seconds=20.0),
    Fault(name="silo: frozen for 20 s", begin=_signal("alpha", signal.SIGSTOP), end=_signal("alpha", signal.SIGCONT),
          lasts_seconds=20.0),
    Fault(name="coordinator: no file can grow for 10 s", begin=_no_room(HUB), end=_lift, lasts_seconds=10.0),
    Fault(name="silo: no file can grow for 10 s", begin=_no_room("alpha"), end=_lift, lasts_seconds=10.0),
    Fault(name="coordinator: no file can be opened for 10 s", begin=_no_files(HUB), end=_lift, lasts_seconds=10.0),
    Fault(name="silo: no file can be opened for 10 s", begin=_no_files("alpha"), end=_lift, lasts_seconds=10.0),
    Fault(name="coordinator: its clock is 40 days ahead for 10 s", begin=_clock(HUB, "+40d"), end=_clock(HUB, "+0"),
          lasts_seconds=10.0, needs_faketime=True),
    Fault(name="silo: its clock is 40 days ahead for 10 s", begin=_clock("alpha", "+40d"), end=_clock("alpha", "+0"),
          lasts_seconds=10.0, needs_faketime=True),
)
