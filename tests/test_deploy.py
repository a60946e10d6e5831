"""What `deploy/` starts is what the commands accept, and what it needs from this repository is there.

The linters and renderers that others make look at the same files in `test_deploy_linters.py`; the commands of the units
are run in `test_deploy_units.py`; the installation is in `test_install.py`.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from semisilo.coordinator.federation.folder import create_federation
from semisilo.coordinator.rounds import live_file
from semisilo.coordinator.rounds.live_file import LiveStatus
from semisilo.coordinator.tracking import companion
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.images_choice import SERVICE_IMAGES
from tests.command_lines import problem_of
from tests.each_of import each_of

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
COMPOSE = sorted(DEPLOY.glob("compose.*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CHART = DEPLOY / "helm" / "semisilo-hub"
CHARTS = (CHART, DEPLOY / "helm" / "semisilo-silo")


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


def _dockerfile_of(path: Path) -> Path:
    return DEPLOY / f"{path.name.split('.')[1]}.Dockerfile"


def _commands_in_comments(path: Path) -> list[list[str]]:
    """What the head of a compose file tells a person to type: the words of ours after `run` or `exec`."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"#   docker compose .* (?:run --rm(?: -T)?|exec) (.*)", line):
            words = shlex.split(match[1].partition(" < ")[0])
            if words == ["backup"]:  # a service with a command of its own
                continue
            # `run SERVICE` keeps the entry point of that name; `exec SERVICE` takes a whole command.
            found.append(words if " run " in line else words[1:])
    return found


def test_there_are_units_containers_and_compose_files_for_both_sides() -> None:
    assert [path.name for path in DOCKERFILES] == ["coordinator.Dockerfile", "silo.Dockerfile"]
    assert [path.name for path in COMPOSE] == ["compose.coordinator.yaml", "compose.silo.yaml"]
    assert [path.name for path in UNITS] == [
        "semisilo-backup.service", "semisilo-coordinator.service", "semisilo-silo.service"]
    for name in ("gpu.coordinator.yaml", "gpu.silo.yaml", "install.sh", "systemd/semisilo-backup.timer"):
        assert (DEPLOY / name).is_file(), name


# systemd --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_systemd_unit_is_accepted(path: Path) -> None:
    command = shlex.split(_unit(path)["Service"]["ExecStart"])
    assert command[0].startswith("/opt/semisilo/bin/")
    assert problem_of([Path(command[0]).name, *command[1:]]) == ""


@each_of("path", UNITS, ids=lambda path: path.name)
def test_a_systemd_unit_may_write_where_its_command_does_and_nowhere_else(path: Path) -> None:
    service = _unit(path)["Service"]
    words = shlex.split(service["ExecStart"])
    folder = words[words.index("--home" if "silo.service" in path.name else "--folder") + 1]
    assert folder.startswith(f"/var/lib/{service['StateDirectory']}/")
    assert service["ProtectSystem"] == "strict"
    assert service["User"] == service["Group"] != "root"
    assert service["NoNewPrivileges"] == "yes"
    if "backup" in path.name:
        assert service["ReadWritePaths"] == words[words.index("backup") + 1]
    else:  # the compute process must be allowed to die alone, and the service comes back
        assert service["OOMPolicy"] == "continue"
        assert service["Restart"] == "on-failure"


@each_of("path", [path for path in UNITS if "backup" not in path.name], ids=lambda path: path.name)
def test_a_service_comes_back_after_an_outage_of_any_length_and_not_after_wrong_usage(path: Path) -> None:
    unit = _unit(path)
    assert unit["Unit"]["StartLimitIntervalSec"] == "0", "with a limit an outage that outlasts it ends the service"
    assert "StartLimitBurst" not in unit["Unit"]
    assert int(unit["Service"]["RestartSec"]) >= 10, "starting takes seconds of a core"
    assert unit["Service"]["RestartPreventExitStatus"] == "2"


def test_a_hub_whose_tracker_hangs_ends_before_whoever_stops_it_kills_it() -> None:
    """Both had a minute: systemd called the service failed, and an upgrade waited as long."""
    found = [int(seconds) for name in ("systemd/semisilo-coordinator.service", "compose.coordinator.yaml",
                                       "helm/semisilo-hub/templates/statefulset.yaml")
             for seconds in re.findall(r"(?:TimeoutStopSec=|stop_grace_period: |terminationGracePeriodSeconds: )(\d+)",
                                       (DEPLOY / name).read_text(encoding="utf-8"))]
    assert len(found) == 3
    assert min(found) >= 2 * companion._FAREWELL_SECONDS


def test_the_timer_starts_the_backup_also_after_a_night_without_power() -> None:
    timer = _unit(DEPLOY / "systemd" / "semisilo-backup.timer")
    assert timer["Timer"]["Persistent"] == "true"
    assert timer["Install"]["WantedBy"] == "timers.target"


# Containers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_container_runs_is_accepted_and_its_health_check_starts_no_python(path: Path) -> None:
    entry, command = json.loads(_last(path, "ENTRYPOINT")), json.loads(_last(path, "CMD"))
    assert problem_of([*entry, *command]) == ""
    check = json.loads(re.sub(r".*?CMD ", "", _last(path, "HEALTHCHECK")))
    assert check == ["semisilo-alive", *entry, _last(path, "VOLUME")]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_container_is_made_of_files_of_this_repository_and_is_not_root(path: Path) -> None:
    copies = [shlex.split(rest) for word, rest in _instructions(path)
              if word == "COPY" and not rest.startswith("--from")]
    sources = [source for copy in copies for source in copy[:-1]]
    assert {"pyproject.toml", "common", "coordinator", "silo", "semisilo"} <= set(sources)
    assert all((ROOT / source).exists() for source in sources)
    assert _last(path, "USER") == "10001:0"
    # Whatever user id a platform gives: what is written belongs to group 0.
    made = [rest for word, rest in _instructions(path) if word == "RUN" and "install -d" in rest]
    assert all("-g 0 -m 0770" in rest and _last(path, "VOLUME") in rest for rest in made)
    # Each final stage writes only to its volume and to /tmp, so that the root may be read-only.
    assert _last(path, "VOLUME") in ("/federation", "/silo")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_links_that_a_container_copies_lead_to_what_it_copies(path: Path, tmp_path: Path) -> None:
    """COPY keeps the links of a folder; those in `semisilo/` lead to the folders beside it (decision 0018)."""
    for copy in (shlex.split(rest) for word, rest in _instructions(path) if word == "COPY" and rest[0] != "-"):
        for source in copy[:-1]:
            target = tmp_path / (source if copy[-1] == "./" else copy[-1])
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, target)
    links = [link for link in tmp_path.rglob("*") if link.is_symlink()]
    assert {link.relative_to(tmp_path).as_posix() for link in links} == {
        f"semisilo/{side}" for side in ("common", "coordinator", "silo")}
    for link in links:
        assert (link / "__init__.py").is_file()
        assert link.resolve().is_relative_to(tmp_path.resolve())


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_base_of_a_container_has_a_tag_and_may_be_pinned_to_a_digest(path: Path) -> None:
    (base,) = [rest for word, rest in _instructions(path) if word == "ARG" and rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-\w+", base)
    assert [rest.split()[0] for word, rest in _instructions(path) if word == "FROM"] == ["${BASE}", "${BASE}"]


def test_what_is_sent_to_the_builder_is_what_the_containers_copy() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {source for path in DOCKERFILES for word, rest in _instructions(path)
              if word == "COPY" and not rest.startswith("--from") for source in shlex.split(rest)[:-1]}
    assert allowed == copied


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_every_service_of_a_compose_file_runs_what_is_accepted_with_nothing_that_it_does_not_need(path: Path) -> None:
    dockerfile = _dockerfile_of(path)
    entry = json.loads(_last(dockerfile, "ENTRYPOINT"))
    loaded = _compose(path)
    for name, service in loaded["services"].items():
        assert problem_of([*entry, *service["command"]]) == ""
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["init"] is True
        assert service["tmpfs"][0].startswith("/tmp:size=")
        assert set(service["deploy"]["resources"]["limits"]) == {"memory", "pids"}
        assert "privileged" not in service
        targets = [re.sub(r"\$\{[^}]*\}", "", volume).split(":")[1] for volume in service["volumes"]]
        assert _last(dockerfile, "VOLUME") in targets
        if name != "backup":
            assert service["restart"] == "unless-stopped"
            assert (path.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == dockerfile
    assert set(loaded["volumes"]) >= {path.name.split(".")[1].replace("coordinator", "federation")}


def test_a_silo_that_runs_as_a_service_leaves_the_images_to_silo_toml() -> None:
    """With --data a source in silo.toml would not hold; $SEMISILO_IMAGES is for a silo.toml that names none."""
    unit = _unit(DEPLOY / "systemd" / "semisilo-silo.service")
    dockerfile = DEPLOY / "silo.Dockerfile"
    for words in (shlex.split(unit["Service"]["ExecStart"]), json.loads(_last(dockerfile, "CMD")),
                  _compose(DEPLOY / "compose.silo.yaml")["services"]["silo"]["command"]):
        assert "join" in words
        assert "--data" not in words
    assert f"{SERVICE_IMAGES}=/scans" in unit["Service"]["Environment"].split()
    assert f"{SERVICE_IMAGES}=/scans" in dockerfile.read_text(encoding="utf-8").split()


def test_the_images_of_a_silo_are_mounted_read_only_and_the_page_is_for_this_machine() -> None:
    silo = _compose(DEPLOY / "compose.silo.yaml")["services"]["silo"]
    assert next(volume for volume in silo["volumes"] if "/scans" in volume).endswith(":/scans:ro")
    assert "ports" not in silo
    ports = _compose(DEPLOY / "compose.coordinator.yaml")["services"]["coordinator"]["ports"]
    assert [port for port in ports if "8080" in port] == ["127.0.0.1:8080:8080"]


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_the_commands_that_a_compose_file_tells_a_person_to_type_are_accepted(path: Path) -> None:
    commands = _commands_in_comments(path)
    assert len(commands) >= 2
    assert {tuple(command): problem_of(command) for command in commands if problem_of(command)} == {}


def test_the_ports_of_container_compose_and_page_are_those_that_init_writes(tmp_path: Path) -> None:
    federation = create_federation(tmp_path / "lung", name="lung", address="hub.example:8443")
    address, page = federation.config.address, federation.config.page
    ports = [listening.rpartition(":")[2] for listening in (
        address.listen_address, address.listen_enrollment_address, page.listen)]
    assert _last(DEPLOY / "coordinator.Dockerfile", "EXPOSE").split() == ports
    text = (DEPLOY / "compose.coordinator.yaml").read_text(encoding="utf-8")
    assert re.findall(r'- "(?:127\.0\.0\.1:)?(\d+):\1"', text) == ports
    assert _compose(CHART / "values.yaml")["page"]["port"] == int(ports[2])  # the others follow from the address


def test_a_gpu_is_laid_over_the_service_that_the_compose_file_has() -> None:
    for name in ("coordinator", "silo"):
        laid = _compose(DEPLOY / f"gpu.{name}.yaml")["services"]
        assert set(laid) <= set(_compose(DEPLOY / f"compose.{name}.yaml")["services"])
        (device,) = laid[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_images_and_installations_can_read_dicom_and_a_hub_can_hand_over_onnx() -> None:
    found = {path.name: _last_argument(path, "EXTRAS").split(",") for path in DOCKERFILES}
    assert {"dicom", "onnx"} <= set(found["coordinator.Dockerfile"])
    assert {"dicom", "onnx", "privacy"} <= set(found["silo.Dockerfile"])
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for extras in found.values() for extra in extras} <= set(known)
    for path in COMPOSE:
        assert f"${{EXTRAS-{_last_argument(_dockerfile_of(path), 'EXTRAS')}}}" in path.read_text()


def _last_argument(path: Path, name: str) -> str:
    (found,) = [rest for word, rest in _instructions(path) if word == "ARG" and rest.startswith(f"{name}=")]
    return found.partition("=")[2].strip('"')


# Health ---------------------------------------------------------------------------------------------------------------


def _alive(*words: str | Path) -> int:
    run = subprocess.run(["sh", DEPLOY / "alive.sh", *words], capture_output=True, text=True, timeout=60)
    return run.returncode


def test_a_hub_is_alive_while_it_writes_what_it_does(tmp_path: Path) -> None:
    assert _alive("coordinator", tmp_path) == 1
    live = tmp_path / "live.json"  # as `semisilo.coordinator.rounds.live_file` has it
    live_file.write(live, LiveStatus(pid=1, unix=time.time()))
    assert _alive("coordinator", tmp_path) == 0
    os.utime(live, (time.time() - 120, time.time() - 120))
    assert _alive("coordinator", tmp_path) == 1


def test_a_hub_whose_disk_takes_nothing_is_alive_while_it_holds_its_lock(tmp_path: Path) -> None:
    """Its work waits until the disk is well; a restart would end what waits."""
    federation = create_federation(tmp_path / "hub", name="lung", address="127.0.0.1:8443")
    live_file.write(federation.live, LiveStatus(pid=1, unix=time.time()))
    os.utime(federation.live, (time.time() - 120, time.time() - 120))
    with federation.lock():
        assert _alive("coordinator", federation.folder) == 1, "it could have written, so it hangs"
        assert not list(federation.folder.glob(".writable*"))
        (federation.folder / ".writable.tmp").mkdir()  # so that root cannot make a file of that name either
        assert _alive("coordinator", federation.folder) == 0
        federation.live.unlink()
        assert _alive("coordinator", federation.folder) == 0
    assert _alive("coordinator", federation.folder) == 1, "nobody works there"


def test_a_silo_is_alive_while_it_holds_its_lock(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    assert _alive("silo", tmp_path) == 1
    with home.lock():
        assert home.is_running()
        assert _alive("silo", tmp_path) == 0
    assert not home.is_running()
    assert _alive("silo", tmp_path) == 1


def test_a_health_check_of_something_else_is_wrong_usage(tmp_path: Path) -> None:
    assert _alive("hub", tmp_path) == 2
    assert _alive("silo") == 2


# Chart ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", CHARTS, ids=lambda path: path.name)
def test_every_value_of_the_chart_is_in_its_schema_and_its_readme(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    values = _compose(chart / "values.yaml")
    readme = (chart / "README.md").read_text(encoding="utf-8")

    def leaves(part: dict[str, Any], rules: dict[str, Any], where: str) -> list[str]:
        found = []
        for key, value in part.items():
            assert key in rules["properties"], f"{where}{key}"
            inner = rules["properties"][key]
            nested = isinstance(value, dict) and value and "properties" in inner
            found += leaves(value, inner, f"{where}{key}.") if nested else [f"{where}{key}"]
        assert set(rules["properties"]) - {"global"} == set(part), where
        assert rules["additionalProperties"] is False, where
        return found

    assert [name for name in leaves(values, schema, "") if f"`{name}`" not in readme] == []


def test_the_chart_has_the_version_of_the_program() -> None:
    from semisilo.common import __version__

    for chart in CHARTS:
        assert _compose(chart / "Chart.yaml")["appVersion"] == __version__
    for name in ("coordinator", "silo"):
        assert f"semisilo-{name}:${{TAG:-{__version__}}}" in (DEPLOY / f"compose.{name}.yaml").read_text()


# Controls -------------------------------------------------------------------------------------------------------------


def test_the_control_a_misspelt_option_is_noticed() -> None:
    assert "--fold" in problem_of(["coordinator", "serve", "--fold", "/federation"])
    assert problem_of(["silo", "join", "--home"]) != ""
    assert problem_of(["silo", "joyn"]) != ""


def test_a_silo_in_a_container_can_be_told_its_time_zone() -> None:
    assert "TZ" in _compose(DEPLOY / "compose.silo.yaml")["services"]["silo"]["environment"]
    chart = DEPLOY / "helm" / "semisilo-silo"
    assert "{{- with .Values.timeZone }}\n- {name: TZ, value:" in (chart / "templates" / "_helpers.tpl").read_text()
    assert "timeZone" in json.loads((chart / "values.schema.json").read_text())["properties"]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda path: path.name)
def test_a_disk_is_gone_through_once_and_not_at_every_start_whoever_gives_the_group(chart: Path) -> None:
    """Also where the platform gives the pod's group (userId 0): no template makes the policy hang on the user."""
    text = "\n".join(path.read_text() for path in sorted((chart / "templates").iterdir()))
    (before, _, after), lines = text.partition("fsGroupChangePolicy: OnRootMismatch"), text.splitlines()
    assert after
    assert before.rstrip().endswith("{{- end }}"), "outside of `with .Values.userId`"
    assert sum("fsGroupChangePolicy" in line for line in lines) == 1
