"""`docs/tutorial-one-machine.md`, followed word for word: its files, its commands in its order, in several shells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import free_ports

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial-one-machine.md"
_STAYS = re.compile(r"^(coordinator serve|silo join)\b")
_NOT_HERE = ("pip install", "python3 -m venv", ". semisilo-env", "semisilo demo")
"""Installing, and the demo, which has tests of its own."""


@pytest.fixture
def page(tmp_path: Path) -> str:
    """The page's text with ports that are free here; its files are written."""
    text = PAGE.read_text(encoding="utf-8").replace("localhost:8443", f"localhost:{free_ports()}")
    for name, content in re.findall(r"^`(\w+\.toml)`\n+```toml\n(.*?)```", text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(content, encoding="utf-8")
    return text


@pytest.fixture
def staying() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands that stay, each in a shell of its own; ended afterwards."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(timeout=300)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tutorial_on_one_machine_does_what_it_says(page: str, staying: list[subprocess.Popen[bytes]],
                                                       tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if not line.startswith(_NOT_HERE)]
    assert sum(bool(_STAYS.match(line)) for line in commands) == 3, "one coordinator and two hospitals"

    def run(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=300, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    for line in commands:
        if line.startswith("coordinator status"):
            _until_complete(lambda: run("coordinator status --folder hub --json"))
        if _STAYS.match(line):
            log = (tmp_path / f"log-{len(staying)}").open("wb")
            staying.append(subprocess.Popen(["sh", "-c", f"exec {line}"], cwd=tmp_path, env=environment, stdout=log,
                                            stderr=log))
            if line.startswith("coordinator serve"):
                _until(lambda: (tmp_path / "hub" / "live.json").exists(), seconds=300)
        else:
            run(line)
    for process in staying:
        assert process.poll() is None, "it stays until it is stopped"
    assert (tmp_path / "hub/studies/first/report/index.html").is_file()
    assert len((tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()) > 300
    assert "model.onnx" in {path.name for path in (tmp_path / "model").iterdir()}


def _until_complete(status: Callable[[], str]) -> None:
    def complete() -> bool:
        study = json.loads(status())["studies"][0]
        assert study["state"] != "failed", study["reason"]
        return bool(study["state"] == "completed")
    _until(complete, seconds=300)


def _until(true: Callable[[], bool], *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)
