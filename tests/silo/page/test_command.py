"""`silo page` as a person starts it and ends it."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from semisilo.silo.page.server import DEFAULT_LISTEN
from tests.processes import run_command

MODULE = "semisilo.silo.cli.main"


def test_the_token_is_made_once_for_nobody_else_to_read(tmp_path: Path) -> None:
    status, first, _ = run_command(MODULE, "page", "--token", "--home", str(tmp_path))
    assert (status, len(first.strip()) >= 43) == (0, True)
    assert stat.S_IMODE((tmp_path / "page.token").stat().st_mode) == 0o600
    _, again, _ = run_command(MODULE, "page", "--token", "--home", str(tmp_path), "--json")
    assert json.loads(again) == {"token": first.strip()}


def test_a_folder_that_is_none_is_refused_with_the_way_to_name_one(tmp_path: Path) -> None:
    status, _, err = run_command(MODULE, "page", "--home", str(tmp_path / "nothing"))
    assert status == 2
    assert "holds no silo" in err
    assert "silo page --home DIR" in err


@pytest.mark.parametrize(("listen", "said"), [("127.0.0.1:{taken}", "Another process listens on"),
                                              ("203.0.113.9:8090", "--listen: cannot listen on")])
def test_where_it_cannot_listen_is_said(tmp_path: Path, listen: str, said: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, err = run_command(MODULE, "page", "--home", str(tmp_path), "--listen",
                                     listen.format(taken=taken.getsockname()[1]))
    assert (status, said in err) == (1 if "Another" in said else 2, True), err


def test_an_address_that_is_none_is_said(tmp_path: Path) -> None:
    status, _, err = run_command(MODULE, "page", "--home", str(tmp_path), "--listen", "8090")
    assert (status, "host:port" in err) == (2, True), err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [
    (signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)])
def test_it_answers_until_it_is_told_to_end_also_where_its_usual_port_is_taken(tmp_path: Path, number: int,
                                                                               status: int) -> None:
    host, port = DEFAULT_LISTEN.split(":")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, int(port)))
            taken.listen()
        except OSError:
            pass  # so it is taken already
        code = ("import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                "from semisilo.silo.cli.main import main; sys.argv = ['silo', 'page', '--home', sys.argv[1]]; main()")
        with subprocess.Popen([sys.executable, "-P", "-c", code, str(tmp_path)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = line.removeprefix("The page of this silo: ").strip()
            assert address.startswith("http://127.0.0.1:"), line
            assert not address.endswith(f":{port}")
            with urllib.request.urlopen(f"{address}/api/silo", timeout=60) as answer:
                assert json.load(answer)["enrolled"] is False
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (status, "", "")
