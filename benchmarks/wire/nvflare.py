"""NVIDIA FLARE: a provisioned project (mutual TLS), one server and a client per silo, the FedAvg controller.

Run by the interpreter of NVFLARE's own environment. Bytes are those on the connections of the clients' processes to the
server.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from benchmarks.wire.adapter import Options, Result, run_adapter, seconds_between
from benchmarks.wire.watch import SILO, Processes, Watch, free_port, peak_bytes, wait_for

__all__ = ["NOTES", "measure"]

_HERE = Path(__file__).parent
_BIN = Path(sys.executable).parent
_SCHEME = "tcp"
_PERIOD_SECONDS = 0.05
_ADMIN = "admin@example.com"
_COMPONENTS = "benchmarks.wire.nvflare_job"

NOTES = [
    "nvflare provision, mutual TLS; FedAvg controller, an Executor per client (not the Client API, which polls), "
    "answers of type DIFF; the server saves the model in every round",
    f"scheme {_SCHEME}; task_request_interval, default_task_fetch_interval and task_check_period {_PERIOD_SECONDS} s "
    "instead of 2, 0.5 and 0.5 s",
    "memory: the server process and the job's server process",
]


def measure(options: Options) -> Result:
    """Runs one job from nothing and measures it."""
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    record = folder / "rounds.json"
    environment = {**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}", "PYTHONPATH": str(_HERE.parents[1]),
                   "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    names = [f"{SILO}{silo}" for silo in range(options.silos)]
    kits = _provision(folder, names, port, environment)
    rounds = options.rounds + 1
    job = _write_job(folder, options, rounds, record)

    with Processes(folder / "logs") as processes:
        server = processes.start("server", ["bash", str(kits / "server" / "startup" / "sub_start.sh"), "--once"],
                                 environment=environment)
        with contextlib.closing(_session(kits, processes)) as session:
            for name in names:
                processes.start(name, ["bash", str(kits / name / "startup" / "sub_start.sh"), "--once"],
                                environment=environment)
            wait_for(lambda: processes.running() and len(session.get_system_info().client_info) == options.silos,
                     "the clients", 120, every=0.5)
            plain = [name for name in names if not processes.find(name, rf"127\.0\.0\.1:{port} (SSL server)\]")]
            if plain:
                raise RuntimeError(f"These do not use TLS, or NVFLARE does not log it as it did: {', '.join(plain)}.")
            import_bytes = peak_bytes(server)
            with Watch(port, processes.owners) as watch:
                number = session.submit_job(str(job))
                wait_for(lambda: processes.running() and (record.exists() or _failed(session, number)),
                         "the end of the job", 900, every=0.3)
            if not record.exists():
                raise RuntimeError(f"The job failed: {processes.tail('server')}")

    found = json.loads(record.read_text())
    if found["rounds"] != rounds:
        raise RuntimeError(f"{found['rounds']} of {rounds} rounds ended.")
    moments = [*found["began"], found["ended"]]
    seconds = seconds_between(moments)
    up_bytes, down_bytes = watch.bytes_between(moments[1], moments[-1])
    per = options.silos * options.rounds
    return Result(system="nvflare", version=version("nvflare"), seconds_per_round=seconds[1:],
                  warm_up_seconds=seconds[0], up_bytes=up_bytes / per, down_bytes=down_bytes / per,
                  coordinator_peak_bytes=watch.peaks[server].peak_bytes + found["peak_bytes"],
                  coordinator_import_bytes=import_bytes + found["import_bytes"],
                  silo_peak_bytes=watch.silo_peak_bytes(), notes=NOTES)


def _provision(folder: Path, names: list[str], port: int, environment: dict[str, str]) -> Path:
    """Makes keys, certificates and startup kits; returns the folder of the kits."""
    participants = [{"name": "server", "type": "server", "org": "bench", "default_host": "localhost",
                     "host_names": ["127.0.0.1"], "fed_learn_port": port},
                    *({"name": name, "type": "client", "org": "bench"} for name in names),
                    {"name": _ADMIN, "type": "admin", "org": "bench", "role": "project_admin"}]
    builders = [{"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
                 "args": {"template_file": ["master_template.yml"]}},
                {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
                 "args": {"config_folder": "config", "scheme": _SCHEME}},
                {"path": "nvflare.lighter.impl.cert.CertBuilder", "args": {}},
                {"path": "nvflare.lighter.impl.signature.SignatureBuilder", "args": {}}]
    project = {"api_version": 3, "name": "bench", "description": "transport benchmark", "participants": participants,
               "builders": builders}
    (folder / "project.yml").write_text(json.dumps(project))  # JSON is YAML
    done = subprocess.run([str(_BIN / "nvflare"), "provision", "-p", str(folder / "project.yml"), "-w",
                           str(folder / "kits")], env=environment, cwd=folder, capture_output=True, text=True,
                          timeout=120, check=False, stdin=subprocess.DEVNULL)
    kits = folder / "kits" / "bench" / "prod_00"
    if done.returncode != 0 or not kits.is_dir():
        raise RuntimeError(f"nvflare provision: {(done.stdout + done.stderr).strip()[-1500:]}")
    for name in ("server", *names):  # what each site's administrator does to permit components of its own
        local = kits / name / "local"
        resources = json.loads((local / "resources.json.default").read_text())
        resources["class_allow_list"] += [f"{_COMPONENTS}.SeededPersistor", f"{_COMPONENTS}.PerturbingExecutor"]
        (local / "resources.json").write_text(json.dumps(resources, indent=1))
    return kits


def _write_job(folder: Path, options: Options, rounds: int, record: Path) -> Path:
    """Writes the folder of the job as NVFLARE's documentation describes it."""
    job = folder / "job"
    (job / "app" / "config").mkdir(parents=True)
    (job / "meta.json").write_text(json.dumps({
        "name": "perturbing", "resource_spec": {}, "min_clients": options.silos, "deploy_map": {"app": ["@ALL"]}}))
    (job / "app" / "config" / "config_fed_server.json").write_text(json.dumps({
        "format_version": 2, "server": {"heart_beat_timeout": 600, "task_request_interval": _PERIOD_SECONDS},
        "task_data_filters": [], "task_result_filters": [],
        "components": [{"id": "persistor", "path": f"{_COMPONENTS}.SeededPersistor",
                        "args": {"parameters": options.parameters, "record": str(record)}}],
        "workflows": [{"id": "fedavg", "path": "nvflare.app_common.workflows.fedavg.FedAvg",
                       "args": {"num_clients": options.silos, "num_rounds": rounds, "persistor_id": "persistor",
                                "task_check_period": _PERIOD_SECONDS}}]}))
    (job / "app" / "config" / "config_fed_client.json").write_text(json.dumps({
        "format_version": 2, "default_task_fetch_interval": _PERIOD_SECONDS,
        "task_data_filters": [], "task_result_filters": [], "components": [],
        "executors": [{"tasks": ["train"], "executor": {"path": f"{_COMPONENTS}.PerturbingExecutor",
                                                        "args": {"density": options.density}}}]}))
    return job


def _session(kits: Path, processes: Processes) -> Session:
    """Logs in as soon as the server lets us."""
    limit = time.monotonic() + 90
    while True:
        processes.running()
        try:
            return new_secure_session(_ADMIN, str(kits / _ADMIN), timeout=5.0)
        except Exception as error:
            if time.monotonic() > limit:
                raise RuntimeError(f"The server did not answer: {error!r}; {processes.tail('server')}") from error
            time.sleep(0.5)


def _failed(session: Session, number: str) -> bool:
    return str(session.get_job_status(number)).startswith(("FINISHED", "FAILED"))


if __name__ == "__main__":
    run_adapter(measure)
