"""What `deploy/` starts is what the commands accept, and what it needs from this repository is there."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from coordinator.federation import create_federation
from tests.command_lines import problem_of

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
COMPOSE = sorted(DEPLOY.glob("compose.*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def _unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def _instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, argument) of each line of a Dockerfile, continued lines joined."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def _last(path: Path, instruction: str) -> str:
    return [rest for word, rest in _instructions(path) if word == instruction][-1]


def _compose(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def _commands_in_comments(path: Path) -> list[list[str]]:
    """What the head of a compose file tells a person to type: the words of ours after `run` or `exec`."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"#   docker compose .* (?:run --rm|exec) (.*)", line):
            words = shlex.split(match[1].replace("<the line from the hub>", "LINE"))
            # `run SERVICE` keeps the entry point of that name; `exec SERVICE` takes a whole command.
            found.append(words if " run " in line else words[1:])
    return found


def test_there_are_units_containers_and_compose_files_for_both_sides() -> None:
    for paths in (DOCKERFILES, COMPOSE, UNITS):
        assert len(paths) == 2
        assert ["coordinator" in path.name for path in paths] == [True, False]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_systemd_unit_is_accepted(path: Path) -> None:
    command = shlex.split(_unit(path)["Service"]["ExecStart"])
    assert command[0].startswith("/opt/semisilo/bin/")
    assert problem_of([Path(command[0]).name, *command[1:]]) == ""


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_systemd_unit_may_write_where_its_command_does_and_nowhere_else(path: Path) -> None:
    service = _unit(path)["Service"]
    words = shlex.split(service["ExecStart"])
    folder = words[words.index("--folder" if "coordinator" in path.name else "--home") + 1]
    assert folder.startswith(f"/var/lib/{service['StateDirectory']}/")
    assert service["ProtectSystem"] == "strict"
    assert service["User"] == service["Group"] != "root"
    assert service["NoNewPrivileges"] == "yes"
    # The compute process must be allowed to die alone.
    assert service["OOMPolicy"] == "continue"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_container_runs_is_accepted(path: Path) -> None:
    entry, command = json.loads(_last(path, "ENTRYPOINT")), json.loads(_last(path, "CMD"))
    assert problem_of([*entry, *command]) == ""
    check = re.sub(r".*?CMD ", "", _last(path, "HEALTHCHECK")).partition("|")[0]
    assert problem_of(shlex.split(check)) == ""


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_container_is_made_of_files_of_this_repository_and_is_not_root(path: Path) -> None:
    copies = [shlex.split(rest) for word, rest in _instructions(path)
              if word == "COPY" and not rest.startswith("--from")]
    sources = [source for copy in copies for source in copy[:-1]]
    assert {"pyproject.toml", "common", "coordinator", "silo", "semisilo"} <= set(sources)
    assert all((ROOT / source).exists() for source in sources)
    assert _last(path, "USER") == "10001:10001"
    # Each final stage writes only to its volume and to /tmp, so that the root may be read-only.
    assert _last(path, "VOLUME") in ("/federation", "/silo")


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_what_a_compose_file_runs_is_accepted(path: Path) -> None:
    (service,) = _compose(path)["services"].values()
    dockerfile = (path.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve()
    assert dockerfile in DOCKERFILES
    entry = json.loads(_last(dockerfile, "ENTRYPOINT"))
    assert problem_of([*entry, *service["command"]]) == ""
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    volumes = [volume.split(":") for volume in service["volumes"]]
    assert _last(dockerfile, "VOLUME") in [volume[1] for volume in volumes]


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_the_commands_that_a_compose_file_tells_a_person_to_type_are_accepted(path: Path) -> None:
    commands = _commands_in_comments(path)
    assert commands
    assert {tuple(command): problem_of(command) for command in commands if problem_of(command)} == {}


def test_the_ports_of_container_and_compose_are_those_that_init_writes(tmp_path: Path) -> None:
    federation = create_federation(tmp_path / "lung", name="lung", address="hub.example:8443")
    address = federation.config.address
    ports = [listening.rpartition(":")[2] for listening in (address.listen_address, address.listen_enrollment_address)]
    assert _last(DEPLOY / "coordinator.Dockerfile", "EXPOSE").split() == ports
    text = (DEPLOY / "compose.coordinator.yaml").read_text(encoding="utf-8")
    assert re.findall(r'- "(\d+):\1"', text) == ports


def test_the_health_checks_look_for_what_status_prints() -> None:
    """Both commands print `"running": true` while the process they tell of is there."""
    import dataclasses

    from coordinator.status import StatusFacts

    assert "running" in {field.name for field in dataclasses.fields(StatusFacts)}
    for path in DOCKERFILES:
        assert "grep -q '\"running\": true'" in _last(path, "HEALTHCHECK")


def test_the_control_a_misspelt_option_is_noticed() -> None:
    assert "--fold" in problem_of(["coordinator", "serve", "--fold", "/federation"])
    assert problem_of(["silo", "join", "--home"]) != ""
    assert problem_of(["silo", "joyn"]) != ""
