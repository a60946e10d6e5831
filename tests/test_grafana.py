"""The dashboard and the alert rules ask for what the coordinator really serves, in PromQL that Prometheus reads."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from semisilo.coordinator.federation.backup import LAST_BACKUP
from semisilo.coordinator.monitoring.prometheus import Exposition
from semisilo.coordinator.rounds.live_file import LiveStatus
from tests.coordinator.ledger_fixture import fill_study
from tests.each_of import each_of

GRAFANA = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "semisilo.json").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((GRAFANA / "alerts.yaml").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
_METRIC = re.compile(r"\b(?:semisilo|process)_\w+|\bup\b")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_BY_PROMETHEUS = {"up": {"job", "instance"}}
_TARGET_LABELS = {"job", "instance"}


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.get("targets", ())]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Sample -> its labels, of a federation in which everything has happened."""
    filled = fill_study(tmp_path_factory.mktemp("served") / "fed", rounds=9, done=8, collecting=True)
    from semisilo.common.payload.usage import Encoded
    from semisilo.coordinator.federation.authority import create_authority, ensure_coordinator_certificate
    from semisilo.coordinator.ledger.encodings import add_encoded

    shutil.rmtree(filled.federation.authority)
    create_authority(filled.federation.authority, "lung-federation", now=1.7e9)
    ensure_coordinator_certificate(filled.federation.authority, 1.7e9)
    add_encoded(filled.ledger, [Encoded("planes", 1, 10, 20)], study="first", round=1, direction="up")
    (filled.federation.folder / LAST_BACKUP).write_text('{"archive": "a", "made_unix": 1.7e9}')
    text = Exposition(filled.federation, filled.ledger, live=lambda: LiveStatus(pid=1, unix=1.0)).text().decode()
    found: dict[str, set[str]] = {name: set(labels) for name, labels in _BY_PROMETHEUS.items()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set(_TARGET_LABELS)).update(sample.labels)
    return found


@each_of("expression", [*queries(), *(rule["expr"] for rule in RULES)])
def test_every_metric_and_label_that_is_asked_for_is_served(expression: str, served: dict[str, set[str]]) -> None:
    names = _METRIC.findall(re.sub(r'"[^"]*"', '""', expression))
    assert names
    for name in names:
        assert name in served, name
    for name, selectors in _SELECTOR.findall(expression):
        for label in re.findall(r"(\w+)\s*[=!]~?", re.sub(r'"[^"]*"', '""', selectors)):
            assert label in served[name], (name, label)
    for labels in re.findall(r"\bby \(([^)]*)\)", expression):
        for label in labels.split(", "):
            assert any(label in served[name] for name in names), label


@each_of("panel", [panel for panel in PANELS if panel["type"] != "row"],
                         ids=lambda panel: panel["title"])
def test_every_legend_names_labels_that_its_query_leaves(panel: dict[str, Any], served: dict[str, set[str]]) -> None:
    for target in panel["targets"]:
        grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        left = set(grouped[0].split(", ")) if grouped else set().union(
            *(served[name] for name in _METRIC.findall(re.sub(r'"[^"]*"', '""', target["expr"]))))
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]):
            assert label in left


@each_of("panel", [panel for panel in PANELS if panel["type"] != "row"],
                         ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_shows_in_which_unit_and_asks_the_chosen_prometheus(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
        assert source == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_have_ids_of_their_own_and_lie_beside_each_other() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) > 20
    for one, other in itertools.combinations([panel["gridPos"] for panel in PANELS], 2):
        apart = (one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
                 or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"])
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def test_the_datasource_is_a_variable_and_every_variable_that_is_used_exists() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS)))
    assert used == set(variables)


def test_every_alert_says_what_happened_and_what_to_do(served: dict[str, set[str]]) -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["remedy"]
        known = set().union(*(served[name] for name in _METRIC.findall(re.sub(r'"[^"]*"', '""', rule["expr"]))))
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert label in known, (rule["alert"], label)


def test_a_study_that_had_failed_before_its_first_scrape_is_told_of_as_well() -> None:
    """promtool tells below; without it, that the rule does not ask for a sample of before."""
    (rule,) = [each for each in RULES if each["alert"] == "SemisiloStudyFailed"]
    assert "offset 10m == 0" not in rule["expr"]
    assert " unless on (job, instance, study) " in rule["expr"]


def test_what_is_called_bytes_in_an_alert_is_bytes() -> None:
    """`a < 10e9 or a / b < 0.05` has the share as its value: "0.04 left on the disk"."""
    rules = [rule for rule in RULES if "humanize1024" in str(rule)]
    assert rules
    assert not any("/" in rule["expr"] for rule in rules)


def test_no_rate_shows_the_bytes_of_years_when_a_silo_is_revoked() -> None:
    """All of them move to the series of former silos at once; the sum over silos stays."""
    asked = [expression for expression in queries() if "rate(" in expression and "semisilo_bytes_total" in expression]
    assert asked
    for expression in asked:
        assert 'silo!="(former)"' in expression or "rate(sum by" in expression, expression


def test_every_expression_has_its_brackets_and_quotes() -> None:
    """What can be told without Prometheus; promtool tells the rest below."""
    for expression in (*queries(), *(rule["expr"] for rule in RULES)):
        bare = re.sub(r'"[^"]*"', "", expression)
        assert '"' not in bare
        for opening, closing in ("()", "{}", "[]"):
            assert bare.count(opening) == bare.count(closing), expression


def test_the_examples_of_provisioning_are_yaml_that_fits_together() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["type"] == "prometheus"
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/semisilo.yaml").read_text(encoding="utf-8"))
    assert provider["providers"][0]["options"]["path"].startswith("/")
    config = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text(encoding="utf-8"))
    assert all((GRAFANA / name).is_file() for name in config["rule_files"])
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert {name for rule in RULES for name in re.findall(r'job="(\w+)"', rule["expr"])} <= jobs


def test_prometheus_itself_reads_every_expression(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    rules = [{"record": f"panel:{number}", "expr": re.sub(r"\$\{?\w+\}?", ".*", expression)}
             for number, expression in enumerate(queries())]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    for arguments in (["check", "rules", str(path)], ["check", "rules", str(GRAFANA / "alerts.yaml")],
                      ["check", "config", "prometheus.yaml"]):
        done = subprocess.run([promtool, *arguments], cwd=GRAFANA, capture_output=True, text=True, timeout=300,
                              check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("alert", "series", "fires"), [
    ("SemisiloSiloAway", {'semisilo_silo_last_seen_timestamp_seconds{silo="a"}': "0x100", "semisilo_serving": "1x100"},
     True),
    ("SemisiloSiloAway", {'semisilo_silo_last_seen_timestamp_seconds{silo="a"}': "0x100", "semisilo_serving": "0x100"},
     False),
    ("SemisiloSiloAway", {'semisilo_silo_last_seen_timestamp_seconds{silo="a"}': "0x100",
                          'semisilo_silo_set_aside{silo="a"}': "1x100", "semisilo_serving": "1x100"}, False),
    ("SemisiloSiloCertificateExpiring",
     {'semisilo_silo_certificate_expiry_timestamp_seconds{silo="a"}': "500000x100"}, True),
    ("SemisiloSiloCertificateExpiring",
     {'semisilo_silo_certificate_expiry_timestamp_seconds{silo="a"}': "5000000x100"}, False),
    ("SemisiloRoundFailed", {'semisilo_rounds_total{state="failed", study="s"}': "0x60 1x40"}, True),
    ("SemisiloRoundFailed", {'semisilo_rounds_total{state="failed", study="s"}': "1x100"}, False),
    ("SemisiloStudyFailed", {'semisilo_study_state{state="failed", study="s"}': "0x85 1x15"}, True),
    ("SemisiloStudyFailed", {'semisilo_study_state{state="failed", study="s"}': "_x85 1x15"}, True),
    ("SemisiloStudyFailed", {'semisilo_study_state{state="failed", study="s"}': "1x100"}, False),
    ("SemisiloPhaseOverdue", {'semisilo_phase_deadline_timestamp_seconds{study="s", phase="train"}': "0x100",
                              "semisilo_serving": "1x100"}, True),
    ("SemisiloPhaseOverdue", {'semisilo_phase_deadline_timestamp_seconds{study="s", phase="train"}': "0x100",
                              "semisilo_serving": "0x100"}, False),
    ("SemisiloTasksRefused", {'semisilo_task_refusals_total{code="BAD_DATA", study="s"}': "0x60 1x40"}, True),
    ("SemisiloBackupOld", {"semisilo_last_backup_timestamp_seconds": "-200000x100"}, True),
    ("SemisiloBackupOld", {"semisilo_last_backup_timestamp_seconds": "0x100"}, False),
    ("SemisiloNoBackup", {"semisilo_serving": "1x100"}, True),
    ("SemisiloNoBackup", {"semisilo_serving": "1x100", "semisilo_last_backup_timestamp_seconds": "0x100"}, False),
    ("SemisiloDiskLow", {"semisilo_disk_free_bytes": "5000000000x100", "semisilo_disk_size_bytes": "1e11x100"}, True),
    ("SemisiloDiskLow", {"semisilo_disk_free_bytes": "4e10x100", "semisilo_disk_size_bytes": "1e12x100"}, True),
    ("SemisiloDiskLow", {"semisilo_disk_free_bytes": "5e10x100", "semisilo_disk_size_bytes": "1e11x100"}, False),
])
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path, alert: str, series: dict[str, str],
                                                    fires: bool) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    inputs = [{"series": name, "values": _values(values)} for name, values in series.items()]
    checks = [{"expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)', "eval_time": "90m",
               "exp_samples": [{"labels": "{}", "value": int(fires)}]}]
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(GRAFANA / "alerts.yaml")], "evaluation_interval": "1m",
                                    "tests": [{"interval": "1m", "input_series": inputs,
                                               "promql_expr_test": checks}]}), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _values(text: str) -> str:
    """`5x100`: the value 5, a hundred times more, in promtool's notation; `_x85`: none, so many times."""
    return " ".join(f"_x{times}" if value == "_" else f"{value}+0x{times}"
                    for value, _, times in (part.partition("x") for part in text.split()))
