"""What the makers of Docker, Compose, Helm, Kubernetes and systemd say to the files of `deploy/`.

Most of these tools come with the extra `deploy` (`make lint-deploy` installs it); where one is missing its test is
skipped, and says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.identity.certificates import coordinator_name
from tests.command_lines import problem_of

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "semisilo-hub"
MOST_EXPOSURE = 2.0
"""Of 10, as `systemd-analyze security` counts."""
KUBERNETES = ("1.29", "1.33")
NEEDED = {"federation": {"name": "lung", "address": "hub.example:8443"}}
EVERYTHING = {
    **NEEDED, "page": {"service": True}, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "backup": {"enabled": True, "existingClaim": "archives", "withData": True}, "images": {"existingClaim": "images"},
    "networkPolicy": {"silos": ["192.0.2.0/24", "2001:db8::/32"],
                      "page": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "service": {"type": "NodePort", "nodePort": 30443, "enrollmentNodePort": 30444, "annotations": {"a": "b"}},
    "image": {"repository": "registry.example/semisilo", "digest": f"sha256:{'0' * 64}"}, "logFormat": "json",
    "imagePullSecrets": [{"name": "pull"}], "nodeSelector": {"disk": "fast"}, "priorityClassName": "high",
    "tolerations": [{"key": "gpu", "operator": "Exists"}], "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"},
    "affinity": {"nodeAffinity": {}}, "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}}, "podDisruptionBudget": {"enabled": True}}
SILO_CHART = DEPLOY / "helm" / "semisilo-silo"
HUB = {"to": [{"ipBlock": {"cidr": "192.0.2.10/32"}}], "ports": [{"port": 8443, "protocol": "TCP"}]}
SILO_NEEDED: dict[str, Any] = {"images": {"existingClaim": "scans"}}
SILO_EVERYTHING: dict[str, Any] = {
    "images": {"existingClaim": "scans", "data": "/scans/ct"}, "invitation": {"existingSecret": "invitation"},
    "policy": '[permit]\nmethods = ["semifl"]\n', "proxy": "http://proxy.example:3128", "metrics": {"port": 9108},
    "timeZone": "Europe/Berlin",
    "networkPolicy": {"egress": [HUB], "metrics": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "userId": 0, "podDisruptionBudget": {"enabled": True}, "persistence": {"existingClaim": "home"},
    "image": {"digest": f"sha256:{'0' * 64}"}, "runtimeClassName": "nvidia", "podAnnotations": {"a": "b"},
    "extraEnv": [{"name": "OMP_NUM_THREADS", "value": "4"}],
    "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "32Gi"}}}
SILO_CASES = {"what is needed": SILO_NEEDED, "everything": SILO_EVERYTHING}
CASES = {"what is needed": NEEDED, "everything": EVERYTHING,
         "disks that exist": {**NEEDED, "persistence": {"existingClaim": "mine"}, "networkPolicy": {"enabled": False},
                              "backup": {"enabled": True, "existingClaim": "archives"}}}


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


def _run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL, env={**os.environ, **environment})


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.Dockerfile")), ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path, tmp_path: Path) -> None:
    hadolint = _tool("hadolint")
    run = _run(hadolint, path)
    assert (run.returncode, run.stdout) == (0, "")
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && pip install torch\n")
    assert "DL3006" in _run(hadolint, tmp_path / "Dockerfile").stdout  # the control


@pytest.mark.slow
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    shellcheck = _tool("shellcheck")
    run = _run(shellcheck, DEPLOY / "install.sh", DEPLOY / "alive.sh", DEPLOY / "slurm" / "silo.sbatch",
               DEPLOY / "release" / "release.sh")
    assert (run.returncode, run.stdout) == (0, "")
    (tmp_path / "x.sh").write_text("#!/bin/sh\nrm -rf $1/*\n")
    assert _run(shellcheck, tmp_path / "x.sh").returncode == 1  # the control


def test_yamllint_finds_nothing() -> None:
    rules = ("{extends: default, rules: {line-length: {max: 160}, document-start: disable, braces: {max-spaces-inside:"
             " 0}, comments: {min-spaces-from-content: 1}, truthy: {check-keys: false}}}")
    run = _run(_tool("yamllint"), "--strict", "-d", rules, *sorted(DEPLOY.glob("*.yaml")),
               DEPLOY / "release" / "release.yml", *sorted((DEPLOY / "helm").glob("*/*.yaml")))
    assert (run.returncode, run.stdout) == (0, "")


@pytest.mark.parametrize("side", ["coordinator", "silo"])
@pytest.mark.parametrize("gpu", [False, True])
def test_docker_compose_reads_the_files_as_we_mean_them(side: str, gpu: bool, tmp_path: Path) -> None:
    compose = _tool("docker-compose")
    files = ["-f", f"compose.{side}.yaml", *(["-f", f"gpu.{side}.yaml"] if gpu else [])]
    folder = "FEDERATION" if side == "coordinator" else "SILO"
    quiet = {"DOCKER_CONFIG": str(tmp_path)}
    run = _run(compose, *files, "--profile", "*", "config", "--format", "json", cwd=DEPLOY, **quiet)
    assert run.returncode == 0, run.stderr
    service = json.loads(run.stdout)["services"][side]
    assert service["user"] == "10001:0"
    assert service["volumes"][0]["type"] == "volume"
    assert ("devices" in service["deploy"]["resources"]["reservations"]) is gpu
    if side == "coordinator":
        assert [(port.get("host_ip", ""), port["published"]) for port in service["ports"]] == [
            ("", "8443"), ("", "8444"), ("127.0.0.1", "8080")]
    else:
        assert service["volumes"][1]["read_only"] is True
    own = _run(compose, *files, "config", "--format", "json", cwd=DEPLOY, USER_ID="1000", GROUP_ID="100",
               **{folder: "./here"}, **quiet)
    service = json.loads(own.stdout)["services"][side]
    assert service["user"] == "1000:100"
    assert (service["volumes"][0]["type"], Path(service["volumes"][0]["source"]).name) == ("bind", "here")


# Helm and Kubernetes --------------------------------------------------------------------------------------------------


def _rendered(values: dict[str, Any], *, of: Path = CHART, **options: Any) -> dict[str, str]:
    chart = pytest.importorskip("helm_python.chart", reason="helm is not installed here: make lint-deploy")
    with chart.Chart.load(of) as loaded:
        loaded.validate_schema(values)
        found: dict[str, str] = loaded.render(values, name="hub", namespace="federation", **options)
        return found


def _objects(values: dict[str, Any], *, of: Path = CHART) -> list[dict[str, Any]]:
    import yaml

    return [each for name, text in _rendered(values, of=of).items() if name.endswith(".yaml")
            for each in yaml.safe_load_all(text) if each]


def _of(values: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [each for each in _objects(values) if each["kind"] == kind and "page" not in each["metadata"]["name"]]
    return found


def test_helm_lint_finds_nothing_but_that_there_is_no_icon() -> None:
    chart = pytest.importorskip("helm_python.chart", reason="helm is not installed here: make lint-deploy")
    for values in CASES.values():
        report = chart.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("case", CASES)
def test_what_helm_renders_is_what_kubernetes_accepts(case: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed here: "
                                                                 "make lint-deploy")
    objects = _objects(CASES[case])
    assert {each["kind"] for each in objects} >= {"StatefulSet", "Service"}
    for each in objects:
        if each["kind"] != "ServiceMonitor":  # of the operator of Prometheus; not Kubernetes's own
            for version in KUBERNETES:
                validate.validate(each, version, strict=True)
    broken = _of(NEEDED, "StatefulSet")
    broken["spec"]["replica"] = broken["spec"].pop("replicas")
    with pytest.raises(validate.ValidationError):  # the control
        validate.validate(broken, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("case", CASES)
def test_every_pod_of_the_chart_is_restricted_and_runs_what_is_accepted(case: str) -> None:
    pods = [(each["spec"].get("template") or each["spec"]["jobTemplate"]["spec"]["template"])["spec"]
            for each in _objects(CASES[case]) if each["kind"] in ("StatefulSet", "CronJob")]
    assert len(pods) == (1 if case == "what is needed" else 2)
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            inner = container["securityContext"]
            assert inner["capabilities"] == {"drop": ["ALL"]}
            assert inner["readOnlyRootFilesystem"] is True
            assert inner["allowPrivilegeEscalation"] is False
            assert "memory" in container["resources"]["limits"]
            assert problem_of(["coordinator", *container["args"]]) == ""
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claimed = {"data"} if case != "disks that exist" and len(pod["volumes"]) < 4 else set()
            assert mounted <= {volume["name"] for volume in pod["volumes"]} | claimed
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    assert container[probe]["exec"]["command"] == ["semisilo-alive", "coordinator", "/federation"]


def test_there_is_one_coordinator_and_its_disk_outlives_the_release() -> None:
    spec = _of(NEEDED, "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(spec["template"]["spec"]["containers"][0])


def test_the_page_stays_in_the_pod_unless_a_service_is_asked_for() -> None:
    def listens(values: dict[str, Any]) -> str:
        args = _of(values, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["args"]
        return str(args[args.index("--page") + 1])

    assert listens(NEEDED) == "127.0.0.1:8080"
    assert listens(EVERYTHING) == "0.0.0.0:8080"
    assert [each["metadata"]["name"] for each in _objects(NEEDED) if each["kind"] == "Service"] == ["hub-semisilo-hub"]
    policies = [_of(values, "NetworkPolicy")["spec"] for values in (NEEDED, EVERYTHING)]
    ports = [[port["port"] for rule in policy["ingress"] for port in rule["ports"]] for policy in policies]
    assert ports == [["work", "enrollment"], ["work", "enrollment", "page"]]
    assert all(policy["egress"] == [] for policy in policies)
    rule = {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 5000, "protocol": "TCP"}]}
    assert _of({**NEEDED, "networkPolicy": {"egress": [rule]}}, "NetworkPolicy")["spec"]["egress"] == [rule]


def test_without_a_user_id_the_platform_gives_one_and_a_budget_keeps_the_pod_where_it_is() -> None:
    pod = _of({**NEEDED, "userId": 0}, "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    # OpenShift gives the group as well: without the policy it would go through all files at every start.
    assert pod == {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch",
                   "seccompProfile": {"type": "RuntimeDefault"}}
    assert [each for each in _objects(NEEDED) if each["kind"] == "PodDisruptionBudget"] == []
    budget = _of(EVERYTHING, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 0
    assert budget["selector"]["matchLabels"].items() <= _of(EVERYTHING, "StatefulSet")["spec"]["template"]["metadata"][
        "labels"].items()


@pytest.mark.parametrize("address", ["hub.example:8443", "[2001:db8::1]:443"])
def test_pod_and_service_listen_on_the_ports_of_the_address(address: str) -> None:
    work = int(address.rpartition(":")[2])
    values = {"federation": {"name": "lung", "address": address}}
    spec = _of(values, "StatefulSet")["spec"]["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert ports == {"work": work, "enrollment": work + 1, "page": 8080}
    service = _of({**values, "service": {"port": 9000}}, "Service")["spec"]["ports"]
    assert [(port["port"], port["targetPort"]) for port in service] == [(9000, "work"), (work + 1, "enrollment")]


@pytest.mark.parametrize(("values", "low"), [
    ({}, False), ({"federation": {"name": "lung", "address": "hub.example:443"}}, True),
    ({"page": {"port": 80}}, True)])
def test_the_pod_may_open_a_port_below_1024_where_it_has_one(values: dict[str, Any], low: bool) -> None:
    """It has no capabilities, and not every container runtime lets others than root open such a port. Kubernetes counts
    this setting as safe, and the restricted standard for pods permits it."""
    pod = _of({**NEEDED, **values}, "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    setting = [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    assert pod.get("sysctls", []) == (setting if low else [])


def test_services_find_the_coordinator_and_not_the_backup() -> None:
    labels = _of(EVERYTHING, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    job = _of(EVERYTHING, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    services = [each for each in _objects(EVERYTHING) if each["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        selector = service["spec"]["selector"].items()
        assert selector <= labels.items()
        assert not selector <= job.items()
    monitor = _of(EVERYTHING, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    assert [monitor <= service["metadata"]["labels"].items() for service in services].count(True) == 1


def test_wrong_values_are_refused_with_the_reason() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "federation.name is needed"), ({"federation": {"name": "Lung", "address": "x:1"}}, "Lung"),
        ({"federation": {"name": "lung", "address": ""}}, "federation.address is needed"),
        ({**NEEDED, "servise": {}}, "servise"), ({**NEEDED, "backup": {"enabled": True}}, "backup.existingClaim"),
        ({**NEEDED, "serviceMonitor": {"enabled": True}}, "page.service"),
        ({**NEEDED, "service": {"port": 99999}}, "65,535")]
    for values, reason in cases:
        with pytest.raises(Exception, match=re.escape(reason)) as caught:
            _rendered(values)
        assert type(caught.value).__name__.startswith("Helm"), caught.value


def test_the_notes_tell_commands_that_are_accepted() -> None:
    notes = _rendered(NEEDED)["semisilo-hub/templates/NOTES.txt"]
    commands = re.findall(r"-- (coordinator .*)", notes)
    assert len(commands) == 3
    assert [problem_of(command.split()) for command in commands] == [""] * 3


# The silo's chart -----------------------------------------------------------------------------------------------------


def test_the_chart_of_a_silo_is_what_kubernetes_accepts_and_lets_nobody_in() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed here: "
                                                                 "make lint-deploy")
    chart = pytest.importorskip("helm_python.chart", reason="helm is not installed here: make lint-deploy")
    for values in SILO_CASES.values():
        assert chart.lint(SILO_CHART, values, strict=True)["errors"] == []
        objects = _objects(values, of=SILO_CHART)
        for each in objects:
            for version in KUBERNETES:
                validate.validate(each, version, strict=True)
        (policy,) = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
        (pod,) = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "StatefulSet"]
        assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == (
            ["metrics"] if "metrics" in values else [])
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert problem_of(["silo", *container["args"]]) == ""
            assert "--data" not in container["args"]  # it would go before [data] of silo.toml
            assert {"name": "SEMISILO_IMAGES", "value": values["images"].get("data", "/scans")} in container["env"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        scans, = (mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/scans")
        assert scans["readOnly"] is True


def test_a_silo_connects_to_what_is_named_and_to_the_name_service() -> None:
    (policy,) = [each["spec"] for each in _objects(SILO_EVERYTHING, of=SILO_CHART) if each["kind"] == "NetworkPolicy"]
    assert policy["egress"][0] == HUB
    assert [port["port"] for rule in policy["egress"][1:] for port in rule["ports"]] == [53, 53]
    (open_,) = [each["spec"] for each in _objects(SILO_NEEDED, of=SILO_CHART) if each["kind"] == "NetworkPolicy"]
    assert open_["egress"] == [{}]


def test_a_silo_without_images_is_refused_with_the_reason_and_a_policy_is_a_file_of_its_home() -> None:
    with pytest.raises(Exception, match=r"images\.existingClaim is needed"):
        _rendered({}, of=SILO_CHART)
    objects = _objects(SILO_EVERYTHING, of=SILO_CHART)
    (policy,) = [each for each in objects if each["kind"] == "ConfigMap"]
    assert policy["data"]["silo.toml"] == SILO_EVERYTHING["policy"]
    (pod,) = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "StatefulSet"]
    assert {"name": "policy", "mountPath": "/silo/silo.toml", "subPath": "silo.toml", "readOnly": True} in pod[
        "containers"][0]["volumeMounts"]


@pytest.mark.parametrize("path", sorted((DEPLOY / "helm" / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_what_kubernetes_accepts_and_name_what_the_chart_makes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed here: "
                                                                 "make lint-deploy")
    import yaml

    objects = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
    ours = {each["metadata"]["name"]: each for each in _objects(EVERYTHING) if each["kind"] == "Service"}
    for each in objects:
        if "openshift" not in each["apiVersion"] and "gateway" not in each["apiVersion"]:  # not Kubernetes's own
            for version in KUBERNETES:
                validate.validate(each, version, strict=True)
    named = set(re.findall(r"hub-semisilo-hub[a-z-]*", path.read_text(encoding="utf-8")))
    assert named
    assert named <= set(ours)
    if "page" not in path.name:
        assert coordinator_name("lung-federation") == "coordinator.lung-federation.semisilo"
        assert "coordinator.lung-federation.semisilo" in path.read_text(encoding="utf-8")


# Release --------------------------------------------------------------------------------------------------------------


def test_a_release_says_what_it_would_do_and_refuses_a_commit_without_a_tag(tmp_path: Path) -> None:
    script = DEPLOY / "release" / "release.sh"
    run = _run("sh", script, "--dry-run", "--any-commit", "--images", "registry.example/x", "--sign")
    assert run.returncode == 0, run.stderr
    steps = [line[2:].split()[0] if not line.startswith("+ /") else Path(line[2:].split()[0]).name
             for line in run.stdout.splitlines() if line.startswith("+ ")]
    assert steps[:3] == ["rm", "python3", "cyclonedx-py"]
    assert steps[3] == steps[4]
    assert steps[3] in ("buildah", "podman", "docker")
    assert steps[5:] == ["cosign"]
    refused = _run("sh", script)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert _run("sh", script, "--nonsense").returncode == 2


def test_the_workflow_of_a_release_is_off_and_gives_each_job_no_more_than_it_needs() -> None:
    yaml = pytest.importorskip("yaml")
    assert not (ROOT / ".github" / "workflows" / "release.yml").exists()
    flow = yaml.safe_load((DEPLOY / "release" / "release.yml").read_text(encoding="utf-8"))
    assert flow["on"] == {"push": {"tags": ["v*"]}}
    assert flow["permissions"] == {}
    assert all("write" not in str(job["permissions"].get("contents")) or name == "publish"
               for name, job in flow["jobs"].items())
    steps = [step for job in flow["jobs"].values() for step in job["steps"]]
    assert any("deploy/release/release.sh --sign" in step.get("run", "") for step in steps)
    assert [step for step in steps if "checkout" in step.get("uses", "") and
            step["with"]["persist-credentials"] is not False] == []
    assert {job.get("environment") for name, job in flow["jobs"].items() if name != "build"} == {"release"}


# systemd --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units as they would be on a machine where /opt/semisilo is there."""
    folder = tmp_path / "units"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("coordinator", "silo"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text(encoding="utf-8").replace("/opt/semisilo/bin", str(tmp_path / "bin"))
        (folder / path.name).write_text(text)
    return folder


def test_systemd_finds_no_fault_in_the_units(units: Path) -> None:
    systemd = _tool("systemd-analyze")
    run = _run(systemd, "verify", *sorted(units.iterdir()))
    assert (run.returncode, run.stderr) == (0, "")
    broken = units / "semisilo-silo.service"
    broken.write_text(broken.read_text().replace("RestartSec=", "RestartSecs="))
    assert "RestartSecs" in _run(systemd, "verify", broken).stderr  # the control


@pytest.mark.parametrize("name", ["semisilo-coordinator", "semisilo-silo", "semisilo-backup"])
def test_systemd_finds_the_services_little_exposed(name: str, units: Path) -> None:
    systemd = _tool("systemd-analyze")
    run = _run(systemd, "security", "--offline=true", "--no-pager", units / f"{name}.service")
    if "offline" in run.stderr:
        pytest.skip("this systemd cannot look at files")
    match = re.search(r"exposure level for .*: (\d+\.\d+)", run.stdout)
    assert match is not None, run.stdout + run.stderr
    assert float(match[1]) <= MOST_EXPOSURE
