"""A silo that speaks the protocol and lies in its bytes: real processes, a lossy study, another lie in every round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import STUDY, FederationOfProcesses, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

UPLOAD = "semisilo.silo.link.link:Link.upload:bytes"
SAYS = {
    2: "A scale of values sent as int8 is negative, not a number or too large.",
    3: "A position is beyond the",
    4: "A compressed stream of a block cannot be decompressed.",
    5: "numbers that are not zero; of its",
    6: "was expected.",
}
"""Round -> what the coordinator says of the update. In the first the silo is honest; see `tests/crashing`."""
STUDY_OF_LIES = (STUDY.replace("rounds = 3", "rounds = 7").replace('"wide_network:wide"', '"small_cnn"')
                 .replace("confidence_threshold = 0.3", "confidence_threshold = 0.0")
                 + '[wire]\nuplink = "top-k 5% int8"\n')


def _largest_mib(pid: int) -> list[float]:
    """The most memory that a process and those that it has started have had, MiB."""
    found = []
    for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        lines = Path(f"/proc/{each}/status").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)
    return found


def _is_committed(processes: FederationOfProcesses, number: int) -> bool:
    return bool(processes.query(f"SELECT 1 FROM round WHERE number = {number} AND state = 'completed'"))


def test_every_lie_in_the_bytes_of_an_update_is_refused_by_name_and_the_rounds_go_on(tmp_path: Path) -> None:
    with federation(tmp_path, study=STUDY_OF_LIES, images=40) as processes:
        processes.serve()
        for silo in processes.silos:
            processes.enroll(silo)
        processes.join("alpha")
        processes.join("beta", lie=UPLOAD)
        processes.wait_for(lambda: _is_committed(processes, 1))
        before = _largest_mib(processes.running["coordinator"].pid)
        processes.wait_for(lambda: _is_committed(processes, 6))
        after = _largest_mib(processes.running["coordinator"].pid)
        processes.finish()
        tasks = processes.query("SELECT round, state, reason FROM task WHERE silo = 'beta' ORDER BY round")
        assert [(number, state) for number, state, _ in tasks] == [
            (number, "refused" if number in SAYS else "updated") for number in range(1, 8)]
        log = (tmp_path / "coordinator.log").read_text(errors="replace")
        for number, _, reason in tasks:
            if number in SAYS:
                assert SAYS[number] in str(reason)  # type: ignore[index]
                (line,) = [line for line in log.splitlines() if f"silo beta for first/{number}/" in line]
                assert f"was {reason}" in line
        assert processes.query("SELECT count(*) FROM task WHERE silo = 'alpha' AND state = 'updated'") == [(7,)]
        assert all(most < least + 200 for least, most in zip(before, after, strict=True)), "gigabytes are in the fourth"
        for name in ("coordinator", "alpha", "beta"):
            assert "Traceback" not in (tmp_path / f"{name}.log").read_text(errors="replace")
