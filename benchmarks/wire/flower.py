"""Flower: SuperLink and SuperNodes over TLS with SuperNode authentication, started with `flwr run`.

Run by the interpreter of Flower's own environment. Each silo is a SuperNode; it starts a ClientApp process for every
message, as it does in a deployment. Bytes are those on the SuperNodes' connections to the SuperLink.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.wire.adapter import Options, Result, run_adapter, seconds_between
from benchmarks.wire.certificates import write_certificates, write_key_pair
from benchmarks.wire.watch import SILO, Processes, Watch, free_port, peak_bytes, wait_for

__all__ = ["NOTES", "measure"]

_HERE = Path(__file__).parent
_BIN = Path(sys.executable).parent
_FEW_SILOS = 4
"""Up to so many, SuperExecs that ask for work ten times a second save more than they cost on two cores."""

NOTES = [
    "Message API; FedAvg(fraction_evaluate=0); ClientApps reply with the whole model, as the documentation does",
    "TLS on every API of the SuperLink, SuperNode authentication on, state in memory, isolation mode subprocess",
    f"FLWR_SUPEREXEC_TASK_POLL_INTERVAL is 0.1 s up to {_FEW_SILOS} silos, and 1 s (the default) beyond, where asking "
    "more often made rounds longer; runtime dependency installation, telemetry and the update check off",
    "No setting exists for the 3 s after which ServerApp and SuperNode ask again for messages",
]


def measure(options: Options) -> Result:
    """Runs one job from nothing and measures it."""
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    certificates = folder / "certificates"
    write_certificates(certificates)
    port = free_port()
    record = folder / "rounds.json"
    environment = {**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}", "PYTHONPATH": str(_HERE.parents[1]),
                   "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1",
                   "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1" if options.silos <= _FEW_SILOS else "1.0",
                   "OMP_NUM_THREADS": "1"}
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{certificates / "ca.crt"}"\n')
    client = {**environment, "FLWR_HOME": str(home)}

    with Processes(folder / "logs") as processes:
        server = processes.start("server", [
            str(_BIN / "flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--ssl-ca-certfile", str(certificates / "ca.crt"),
            "--ssl-certfile", str(certificates / "server.pem"), "--ssl-keyfile", str(certificates / "server.key"),
        ], environment={**environment, "FLWR_HOME": str(folder / "home-server")})
        wait_for(lambda: processes.running("server") and "Uvicorn running" in processes.tail("server"),
                 "the SuperLink", 60)
        for silo in range(options.silos):
            write_key_pair(certificates, f"silo{silo}")
            _flwr(["supernode", "register", str(certificates / f"silo{silo}.pub"), "here"], client)
        for silo in range(options.silos):
            processes.start(f"{SILO}{silo}", [
                str(_BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{port}", "--root-certificates",
                str(certificates / "ca.crt"), "--auth-supernode-private-key", str(certificates / f"silo{silo}"),
                "--node-config", f"silo={silo}", "--port", str(free_port()),
            ], environment={**environment, "FLWR_HOME": str(folder / f"home-silo{silo}")})
        import_bytes = peak_bytes(server)
        rounds = options.rounds + 1
        with Watch(port, processes.owners) as watch:
            settings = (f'parameters={options.parameters} density={options.density} silos={options.silos} '
                        f'rounds={rounds} record="{record}"')
            _flwr(["run", str(_HERE / "flower_app"), "here", "--run-config", settings], client)
            wait_for(lambda: processes.running() and (record.exists() or _ended(processes)), "the end of the job", 900)
            if not record.exists():
                run = processes.find("server", r"Created run (\d+)")
                raise RuntimeError(f"The ServerApp failed: {_flwr(['log', run, 'here', '--show'], client)[-1500:]}")

    found = json.loads(record.read_text())
    if found["rounds"] != rounds:
        raise RuntimeError(f"{found['rounds']} of {rounds} rounds had answers from silos.")
    moments = [*found["began"], found["ended"]]
    seconds = seconds_between(moments)
    up_bytes, down_bytes = watch.bytes_between(moments[1], moments[-1])
    # The SuperExec beside them only starts processes. The ServerApp reads its own peak: it ends before the next look.
    superlink = watch.peaks[server].peak_bytes
    per = options.silos * options.rounds
    return Result(system="flower", version=version("flwr"), seconds_per_round=seconds[1:], warm_up_seconds=seconds[0],
                  up_bytes=up_bytes / per, down_bytes=down_bytes / per,
                  coordinator_peak_bytes=superlink + found["peak_bytes"],
                  coordinator_import_bytes=import_bytes + found["import_bytes"],
                  silo_peak_bytes=watch.silo_peak_bytes(_program), notes=NOTES)


def _program(command: str) -> str:
    """The program's name: a silo runs one ClientApp after another, beside its SuperNode and SuperExec."""
    names = (Path(word).name for word in command.split())
    return next((name for name in names if name.startswith(("flower-", "flwr-"))), command)


def _ended(processes: Processes) -> bool:
    return bool(processes.find("server", r"Finished task (\d+)"))


def _flwr(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run([str(_BIN / "flwr"), *arguments], env=environment, capture_output=True, text=True,
                          timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"flwr {arguments[0]}: {(done.stdout + done.stderr).strip()[-1500:]}")
    return done.stdout


if __name__ == "__main__":
    run_adapter(measure)
