"""Numbers for the site's own Prometheus: off unless asked for, right, and never part of what the hub is charged."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from semisilo.common.config import from_dict
from semisilo.common.errors import BadConfiguration, NoSuchAddress, PortInUse
from semisilo.common.identity.certificates import key_from_pem
from semisilo.common.rpc.meter import ConnectionMeter
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.agent.task_runner import OUTCOME_KINDS, TaskOutcome
from semisilo.silo.agent.task_times import TaskTook
from semisilo.silo.agent.terminal import PlainDisplay
from semisilo.silo.link.traffic import Carried
from semisilo.silo.monitoring import prometheus
from semisilo.silo.monitoring.prometheus import ObservedDisplay, SiteMetrics, serving_metrics
from semisilo.silo.site.home import SiloHome, StatusFile
from semisilo.silo.site.identity_store import FederationFile, install_identity
from semisilo.silo.site.policy import Limits, MetricsSettings, Policy, load_policy, policy_text
from semisilo.silo.site.privacy.ledger import PrivacyLedger
from semisilo.silo.site.working_hours import Hours
from tests.identity_kit import make_federation


@pytest.fixture
def home(tmp_path: Path) -> SiloHome:
    return SiloHome(tmp_path)


def metrics_of(home: SiloHome) -> SiteMetrics:
    return SiteMetrics(home, Policy(limits=Limits(bytes_per_day=5000)))


def fetched(port: int) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    values = [sample.value for family in found.values() for sample in family.samples
              if sample.name == name and labels.items() <= sample.labels.items()]
    assert len(values) == 1, (name, labels, values)
    return values[0]


def took(**numbers: float) -> TaskTook:
    return TaskTook(**{"study": "s", "round": 1, "phase": "train", "method": "semifl", "unix": 1.0,  # type: ignore[arg-type]
                       "images": 10, **numbers})


def test_tasks_bytes_seconds_and_the_budget_are_served(home: SiloHome) -> None:
    metrics = metrics_of(home)
    metrics.task(TaskOutcome("sent", answered=True, kind="updated",
                             took=took(train_seconds=2.5, download_bytes=1000, upload_bytes=300)))
    metrics.task(TaskOutcome("sent", answered=True, kind="updated", took=took(train_seconds=1.5, upload_bytes=30)))
    metrics.task(TaskOutcome("no", answered=True, kind="refused"))
    StatusFile(home.status).update(now_unix=5.0, last_contact_unix=4.0, study="s", round=7, labelled_count=3,
                                   unlabelled_count=40, sent_bytes=1234, received_bytes=99, last_error="no way")
    with serving_metrics(metrics, "127.0.0.1:0") as port:
        found = fetched(port)
    assert value(found, "semisilo_site_tasks_total", outcome="updated") == 2
    assert value(found, "semisilo_site_tasks_total", outcome="refused") == 1
    assert {sample.labels["outcome"] for sample in found["semisilo_site_tasks"].samples} == set(OUTCOME_KINDS)
    assert value(found, "semisilo_site_training_seconds_total") == 4.0
    assert value(found, "semisilo_site_payload_bytes_total", direction="down") == 1000
    assert value(found, "semisilo_site_payload_bytes_total", direction="up") == 330
    assert value(found, "semisilo_site_wire_bytes_total", direction="up") == 1234
    assert value(found, "semisilo_site_images", labelled="false") == 40
    assert value(found, "semisilo_site_round") == 7
    assert value(found, "semisilo_site_last_contact_timestamp_seconds") == 4
    assert value(found, "semisilo_site_trouble") == 1
    assert value(found, "semisilo_site_day_limit_bytes") == 5000
    assert value(found, "semisilo_site_day_bytes") == 0
    assert value(found, "semisilo_site_on_duty") == 1
    assert value(found, "semisilo_site_epsilon") == value(found, "semisilo_site_epsilon_limit") == 0
    assert value(found, "process_resident_memory_bytes") > 10**6


@pytest.mark.slow
@pytest.mark.parametrize(("unreadable", "missing", "left"), [
    ("status.json", "semisilo_site_wire_bytes", "semisilo_site_build_info"),
    ("key.pem", "semisilo_site_build_info", "semisilo_site_round"),
    ("day.json", "semisilo_site_day_bytes", "semisilo_site_day_limit_bytes"),
    ("spent.jsonl", "semisilo_site_epsilon", "semisilo_site_epsilon_limit")])
def test_what_cannot_be_read_for_a_moment_is_left_out_of_the_answer(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str, missing: str, left: str) -> None:
    """The whole answer was an error of the server with a stack trace, just when the machine was in trouble."""
    made = make_federation(tmp_path / "hub", now=time.time()).silo_credentials("hospital-a", now=time.time())
    home = SiloHome(tmp_path / "home")
    home.folder.mkdir()
    install_identity(home.folder, FederationFile(federation="lung", silo="hospital-a", address="127.0.0.1:1",
                                                 invitation="00", enrollment_address="127.0.0.1:1", renew_unix=1.0),
                     key=key_from_pem(made.key_pem), certificate_pem=made.certificate_pem,
                     authority_pem=(tmp_path / "hub" / "ca.pem").read_bytes())
    StatusFile(home.status).update(now_unix=5.0, study="s", round=7)
    DayBudget(home.day, bytes_per_day=0, hours=Hours(), now_unix=time.time()).carried(Carried(100_000, 0), time.time())
    real = io.open

    def failing(file: object, *arguments: Any, **keywords: Any) -> Any:
        if str(file).endswith(unreadable):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(file))
        return real(file, *arguments, **keywords)  # type: ignore[call-overload]

    def unread(ledger: PrivacyLedger) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with serving_metrics(metrics_of(home), "127.0.0.1:0") as port:
        whole = fetched(port)
        with monkeypatch.context() as patch:
            patch.setattr(io, "open", failing)
            if unreadable == "spent.jsonl":
                patch.setattr(PrivacyLedger, "last", unread)
            some = fetched(port)
    assert {missing, left} <= whole.keys()
    assert (missing in some, left in some, "semisilo_site_tasks" in some) == (False, True, True)


def test_the_stage_follows_what_is_shown(home: SiloHome) -> None:
    metrics = metrics_of(home)
    display = ObservedDisplay(PlainDisplay(), metrics)
    with serving_metrics(metrics, "127.0.0.1:0") as port:
        assert value(fetched(port), "semisilo_site_stage", stage="idle") == 1
        display.progress("training", 0.25)
        found = fetched(port)
        assert value(found, "semisilo_site_stage", stage="training") == 1
        assert value(found, "semisilo_site_stage_progress_ratio") == 0.25
        display.done()
        assert value(fetched(port), "semisilo_site_stage", stage="idle") == 1


def test_nothing_about_patients_is_in_it(home: SiloHome) -> None:
    """Files and errors have names; the numbers have none."""
    StatusFile(home.status).update(now_unix=5.0, last_error="/scans/Smith_John.dcm: cannot be read",
                                   state="reading /scans/Smith_John", last_outcome="refused: Smith")
    with serving_metrics(metrics_of(home), "127.0.0.1:0") as port, \
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        assert b"Smith" not in answer.read()


def test_it_ends_with_its_block_and_an_address_in_use_is_said(home: SiloHome) -> None:
    with serving_metrics(metrics_of(home), "127.0.0.1:0") as port:
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}"), \
                serving_metrics(metrics_of(home), f"127.0.0.1:{port}"):
            pass
        fetched(port)
    with pytest.raises(OSError, match="refused"):
        fetched(port)
    with pytest.raises(NoSuchAddress) as caught, serving_metrics(metrics_of(home), "192.0.2.1:1"):
        pass
    assert caught.value.exit_status == 1  # a service tries again: the network may come later


@pytest.mark.slow
def test_who_opens_connections_and_says_nothing_takes_few_threads_and_keeps_nobody_out(
        home: SiloHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a thread and a file of `silo join` for good: 500 of them all that a container may have."""
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.5)
    with serving_metrics(metrics_of(home), "127.0.0.1:0") as port, contextlib.ExitStack() as stack:
        before = threading.active_count()
        for number in range(60):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number % 2:
                silent.sendall(b"GET /metrics HT")
            if number % 20 == 0:
                fetched(port)
        end = time.monotonic() + 300
        while threading.active_count() > before + 8 and time.monotonic() < end:
            time.sleep(0.01)
        assert threading.active_count() <= before + 8
        fetched(port)
        while threading.active_count() > before and time.monotonic() < end:
            time.sleep(0.01)
        assert threading.active_count() == before, "who says nothing is given up"


def test_what_prometheus_fetches_is_not_counted_as_the_hubs(home: SiloHome) -> None:
    """A silo behind a proxy counts all connections of its process: not those to its metrics."""
    with serving_metrics(metrics_of(home), "127.0.0.1:0") as port:
        if not (meter := ConnectionMeter(except_local_port=port)).supported:
            pytest.skip("this kernel does not count the bytes of connections")
        everything = ConnectionMeter()

        def sees(which: ConnectionMeter) -> bool:
            return str(port) in {connection.local.rpartition(":")[2] for connection in which.sample()}

        with socket.create_connection(("127.0.0.1", port)):
            end = time.monotonic() + 300
            while not sees(everything) and time.monotonic() < end:
                time.sleep(0.02)
            assert sees(everything)
            assert not sees(meter)
        meter.close()
        everything.close()


def test_metrics_are_off_unless_silo_toml_names_an_address(tmp_path: Path) -> None:
    path = tmp_path / "silo.toml"
    path.write_text(policy_text(), encoding="utf-8")
    assert load_policy(path).metrics == MetricsSettings(listen="") == Policy().metrics
    path.write_text('[metrics]\nlisten = "127.0.0.1:9108"\n', encoding="utf-8")
    assert load_policy(path).metrics.listen == "127.0.0.1:9108"
    for wrong in ("9108", "http://127.0.0.1:9108", "localhost"):
        with pytest.raises(BadConfiguration, match="listen"):
            from_dict(MetricsSettings, {"listen": wrong}, where="silo.toml: [metrics]")


def test_names_follow_the_conventions_of_prometheus(home: SiloHome) -> None:
    promtool = shutil.which("promtool")
    with serving_metrics(metrics_of(home), "127.0.0.1:0") as port:
        for name in fetched(port):
            assert name.startswith(("semisilo_site_", "process_")), name
        if promtool is None:
            pytest.skip("promtool (Debian package prometheus) is not installed")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            text = answer.read()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=300, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
