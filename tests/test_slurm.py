"""The batch script of a silo on Slurm, run as Slurm runs it, with stand-ins for Slurm's commands and for torchrun."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.command_lines import problem_of

SCRIPT = Path(__file__).resolve().parents[1] / "deploy" / "slurm" / "silo.sbatch"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed here")

SRUN = """#!/bin/bash
shift
for node in 0 1; do SLURM_NODEID=$node "$@" & pids="$pids $!"; done
trap 'kill -TERM $pids' TERM
status=0
for pid in $pids; do wait "$pid" || status=$?; done
for pid in $pids; do wait "$pid"; done
exit "$status"
"""


class Cluster:
    """A folder with commands that write down what they were asked."""

    def __init__(self, folder: Path, torchrun: str) -> None:
        self.folder = folder
        for name, text in (
                ("srun", SRUN), ("torchrun", f'#!/bin/bash\necho "torchrun $*" >> {folder}/log\n{torchrun}\n'),
                ("scontrol", f'#!/bin/bash\necho "scontrol $*" >> {folder}/log\necho node1\necho node2\n')):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def submit(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        variables = {"PATH": f"{self.folder}:{os.environ['PATH']}", "SEMISILO_HOME": "/project/silo",
                     "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7",
                     "SLURM_GPUS_ON_NODE": "4", **environment}
        return subprocess.Popen(["bash", SCRIPT, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={name: value for name, value in variables.items() if value})

    def log(self) -> list[str]:
        path = self.folder / "log"
        return sorted(path.read_text().splitlines()) if path.exists() else []


def test_every_machine_starts_its_processes_and_the_first_one_is_the_silo(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "exit 0")
    job = cluster.submit("--data", "/project/my scans")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    first, second = (line for line in cluster.log() if line.startswith("torchrun"))
    expected = ("torchrun --node-rank {} --nnodes 2 --nproc-per-node 4 --max-restarts 3 --master-addr node1"
                " --master-port 29400 --no-python silo join --once --wait 30m --data /project/my scans")
    assert [first, second] == [expected.format(0), expected.format(1)]
    assert "requeue" not in out
    assert problem_of(["silo", "join", "--once", "--wait", "30m", "--data", "/project/my scans"]) == ""


@pytest.mark.slow
def test_torchrun_knows_the_options_that_the_script_gives_it() -> None:
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(shlex.split(
        "--node-rank 1 --nnodes 2 --nproc-per-node 4 --max-restarts 3 --master-addr node1 --master-port 29400"
        " --no-python silo join --once --wait 30m"))
    assert (given.no_python, given.training_script, given.training_script_args) == (
        True, "silo", ["join", "--once", "--wait", "30m"])


def test_a_failure_of_the_silo_is_one_of_the_job_and_a_home_must_be_named(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "exit 1")
    job = cluster.submit()
    job.communicate(timeout=60)
    assert job.returncode == 1
    assert not [line for line in cluster.log() if "requeue" in line]
    job = cluster.submit(SEMISILO_HOME="")
    _, err = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "silo enroll" in err


def test_a_job_whose_time_is_up_ends_the_silo_and_goes_into_the_queue_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, f"trap 'echo \"ended $*\" >> {tmp_path}/log; exit 143' TERM\n"
                                f'echo "works" >> {tmp_path}/log\nwhile :; do sleep 0.05; done')
    job = cluster.submit()
    while len([line for line in cluster.log() if line == "works"]) < 2:
        assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert "goes on in the next one" in out
    assert len([line for line in cluster.log() if line.startswith("ended")]) == 2
    assert "scontrol requeue 7" in cluster.log()
