"""Three real hospitals on one machine: processes, certificates and mutual TLS, as in a federation of institutions.

    python blood_cells.py bloodmnist.npz

The file has the layout of MedMNIST (https://medmnist.com: `train_images`, `train_labels`, `test_images`,
`test_labels`); any such file will do. Its training images are dealt to a hub, with labels, and to three hospitals,
without. Then this script types what a hub operator and three hospital engineers would type; each command is shown.
"""

import argparse
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

HOSPITALS = ("silo-000", "silo-001", "silo-002")
BIN = Path(sys.executable).parent

STUDY = """\
[study]
rounds = {rounds}
start_with = 3
labelled_only_baseline = {baseline}

[model]
name = "small_cnn"

[data]
image = {{ size = {size}, channels = {channels}, mean = "labelled", std = "labelled" }}

[method]
name = "self_training"
{settings}
[simulation]
data = "{images}"
split = {{ name = "iid", silos = 3, num_labelled = {labels}{fraction} }}
"""


def run(program: str, *words: object, **options: object) -> str:
    """Runs a command to its end; what it prints."""
    command = [program, *map(str, words)]
    print(f"$ {shlex.join(command)}", flush=True)
    return subprocess.run([BIN / program, *command[1:]], check=True, text=True, stdout=subprocess.PIPE,
                          **options).stdout


def start(stack: ExitStack, log: Path, program: str, *words: object) -> subprocess.Popen:
    """Starts a command that stays; it is ended with the script."""
    command = [program, *map(str, words)]
    print(f"$ {shlex.join(command)} &", flush=True)
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen([BIN / program, *command[1:]], stdout=output, stderr=output)
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    return process


def wait_for(process: subprocess.Popen, log: Path) -> None:
    """Waits for a command that ends by itself when the study is over."""
    if process.wait() != 0:
        raise SystemExit(f"{log.name} ended with an error:\n{log.read_text()[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="an .npz file in the layout of MedMNIST")
    parser.add_argument("--folder", type=Path, default=Path("blood-cells"), help="a new folder to work in")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--labels", type=int, default=200, help="labelled images at the hub, a multiple of the classes")
    parser.add_argument("--size", type=int, default=28, help="side of the images in pixels")
    parser.add_argument("--channels", type=int, default=3, choices=(1, 3))
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the images that is used")
    parser.add_argument("--port", type=int, default=8443, help="the hub's; the next one must be free as well")
    parser.add_argument("--settings", default="", help="further lines of table [method]")
    parser.add_argument("--no-baseline", action="store_true", help="do not train on the labels alone")
    chosen = parser.parse_args()
    folder = chosen.folder.absolute()
    if not chosen.images.is_file():
        parser.error(f"{chosen.images}: no such file")
    if folder.exists():
        parser.error(f"{folder} exists already: remove it, or name another one with --folder")
    folder.mkdir(parents=True)

    # The images: a part for the hub, one for each hospital. `semisilo simulate study.toml` would run the same here.
    (folder / "study.toml").write_text(STUDY.format(
        rounds=chosen.rounds, baseline=str(not chosen.no_baseline).lower(), size=chosen.size, channels=chosen.channels,
        settings=chosen.settings + "\n", images=chosen.images.absolute(), labels=chosen.labels,
        fraction=f", fraction = {chosen.fraction}" if chosen.fraction < 1 else ""))
    run("semisilo", "split", folder / "study.toml", "--out", folder / "parts")

    with ExitStack() as stack:
        # The hub.
        hub = folder / "hub"
        run("coordinator", "init", "blood-cells", "--address", f"localhost:{chosen.port}", "--folder", hub)
        study = hub / "studies" / "first"
        study.mkdir(parents=True, exist_ok=True)
        for path in (folder / "parts" / "coordinator").rglob("*"):
            target = study / path.relative_to(folder / "parts" / "coordinator")
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                target.write_bytes(path.read_bytes())
        coordinator = start(stack, folder / "hub.log", "coordinator", "serve", "--exit-when-finished", "--folder", hub)

        # Each hospital: the line from the hub, a check, and then it waits for work. It only ever dials out.
        silos = []
        for name in HOSPITALS:
            line = run("coordinator", "invite", name, "--folder", hub)
            home = folder / name
            for attempt in range(60):  # the hub may still be starting
                try:
                    run("silo", "enroll", "--home", home, "-", input=line, stderr=subprocess.PIPE)
                    break
                except subprocess.CalledProcessError as error:
                    if attempt == 59:
                        raise SystemExit(error.stderr) from None
                    time.sleep(2)
            silos.append((folder / f"{name}.log", start(
                stack, folder / f"{name}.log", "silo", "join", "--exit-when-finished", "--home", home,
                "--data", folder / "parts" / "silos" / f"{name}.npz")))
        wait_for(coordinator, folder / "hub.log")
        for log, silo in silos:
            wait_for(silo, log)

    # What came out, at the hub and at a hospital.
    print(run("coordinator", "status", "--folder", hub))
    run("coordinator", "report", "first", "--folder", hub)
    print(run("silo", "disclosures", "--home", folder / HOSPITALS[0]))
    run("coordinator", "export", "first", "--folder", hub, "--out", folder / "model")
    print(f"The report: {study}/report/index.html\nThe model, with its card: {folder}/model")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed:  # the command has said what is wrong
        raise SystemExit(failed.returncode) from None
