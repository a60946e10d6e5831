"""Studies through what stands between real silos and the coordinator: an HTTP proxy with a password, a balancer that
passes TLS through. Real processes, and Debian's own tinyproxy and HAProxy."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path

import pytest

from semisilo.common.identity.certificates import coordinator_name
from semisilo.common.identity.invitation import decode_invitation
from tests.middleboxes import HttpProxy, balancer, http_proxy
from tests.processes import (
    FederationOfProcesses,
    Undisturbed,
    federation,
    federation_behind_a_proxy,
    free_ports,
    run_command,
)
from tests.proxy import Proxy

pytestmark = pytest.mark.slow

PASSWORD = "s3cret-of-the-site"


def go_through(processes: FederationOfProcesses, proxy: HttpProxy, password: str) -> str:
    """Tells the silos' processes of the proxy; returns its URL."""
    url = f"http://silo:{password}@127.0.0.1:{proxy.port}"
    for name in processes.silos:
        processes.surroundings[name] = {"https_proxy": url, "no_proxy": ""}
    return url


def whole_log(processes: FederationOfProcesses, name: str) -> str:
    return (processes.folder / f"{name}.log").read_text(errors="replace")


def all_that_was_written(processes: FederationOfProcesses) -> bytes:
    """Every file of hub and silos, logs included."""
    return b"\n".join(path.read_bytes() for path in sorted(processes.folder.rglob("*")) if path.is_file())


def test_enrolment_and_a_study_go_through_a_proxy_with_a_password_that_is_written_nowhere(
        tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proxy").mkdir()
    with http_proxy(tmp_path / "proxy", password=PASSWORD) as proxy, federation(tmp_path / "f") as processes:
        monkeypatch.setenv("https_proxy", go_through(processes, proxy, PASSWORD))  # for `silo enroll`, in this process
        monkeypatch.setenv("no_proxy", "")
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        home = str(tmp_path / "f" / processes.silos[0])
        _, checked, checked_err = run_command("semisilo.silo.cli.main", "check", "--home", home)
        monkeypatch.delenv("https_proxy")
        for name in processes.silos:
            processes.join(name)
        assert processes.finish() == undisturbed.digest

        assert f"127.0.0.1:{proxy.port}, from the environment" in checked, checked_err
        asked = re.findall(rf"CONNECT 127\.0\.0\.1:({processes.port}|{processes.port + 1}) ", proxy.log)
        assert asked.count(str(processes.port)) >= 2, "work of both silos"
        assert asked.count(str(processes.port + 1)) >= 2, "enrolment of both silos"
        _, status, _ = run_command("semisilo.silo.cli.main", "status", "--json", "--home", home)
        written = all_that_was_written(processes) + checked.encode() + status.encode()
    for secret in (PASSWORD, b64encode(f"silo:{PASSWORD}".encode()).decode()):
        assert secret.encode() not in written


def test_a_wrong_password_is_said_in_one_line_and_tried_again_until_it_is_right(
        tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proxy").mkdir()
    with http_proxy(tmp_path / "proxy", password=PASSWORD) as proxy, federation(tmp_path / "f") as processes:
        processes.serve()
        for name in processes.silos:
            processes.enroll(name)
        said = f"The HTTP proxy 127.0.0.1:{proxy.port} does not accept the user name and password of https_proxy."
        url = go_through(processes, proxy, "another-one")
        with monkeypatch.context() as here:
            here.setenv("https_proxy", url)
            here.setenv("no_proxy", "")
            status, _, refused = run_command("semisilo.silo.cli.main", "enroll",
                                             processes.coordinator("invite", "gamma").strip(), "--home",
                                             str(tmp_path / "gamma"))
        assert (status, said in refused, "another-one" in refused, refused.count("\n")) == (1, True, False, 1)
        for name in processes.silos:
            processes.join(name)
        for name in processes.silos:
            processes.wait_for(lambda name=name: said in whole_log(processes, name))  # type: ignore[misc]
            assert processes.running[name].poll() is None, "it tries again"
            log = whole_log(processes, name)
            assert "Traceback" not in log
            assert "another-one" not in log
        assert not processes.query("SELECT 1 FROM round WHERE number > 0"), "nobody goes around the proxy"
        proxy.stop()
        proxy.password = "another-one"  # the site's administrator has set it right
        proxy.start()
        assert processes.finish() == undisturbed.digest


def test_enrolment_and_a_study_go_through_a_balancer_that_passes_tls_through_and_is_restarted_meanwhile(
        tmp_path: Path, undisturbed: Undisturbed) -> None:
    (tmp_path / "balancer").mkdir()
    public = free_ports()
    with federation(tmp_path / "f", public_port=public) as processes, \
            balancer(tmp_path / "balancer", name=coordinator_name("testing"), port=public,
                     target_port=processes.port) as between:
        settings = processes.hub / "federation.toml"  # enrolment goes through it as well
        settings.write_text(settings.read_text().replace(f'enrollment = "127.0.0.1:{processes.port + 1}"\n', ""))
        processes.start()
        processes.wait_for(lambda: bool(processes.query("SELECT 1 FROM task WHERE state = 'updated'")))
        between.stop()
        between.start()
        assert processes.finish() == undisturbed.digest
        assert between.log.count(" silos hub/hub ") >= 2, between.log
        assert between.log.count(" enrolment hub-enrolment/hub ") >= 2, between.log


def test_a_study_goes_on_at_another_address_of_the_coordinator(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with federation_behind_a_proxy(tmp_path) as (processes, before), Proxy("127.0.0.1", processes.port) as after:
        processes.start()
        processes.wait_for(lambda: bool(processes.query("SELECT 1 FROM task WHERE state = 'updated'")))
        before.stop_listening()
        before.cut()
        old, new = f"127.0.0.1:{before.port}", f"127.0.0.1:{after.port}"
        for name in processes.silos:
            words = ("semisilo.silo.cli.main", "move", new, "--home", str(tmp_path / name))
            status, _, running = run_command(*words)
            assert (status, "Stop it first" in running) == (1, True)
            processes.kill(name)
            status, said, _ = run_command(*words)
            assert status == 0
            assert f"goes to {new} from now on; before, to {old}." in said
            processes.join(name)
        settings = processes.hub / "federation.toml"
        settings.write_text(settings.read_text().replace(f'public = "{old}"', f'public = "{new}"'))
        assert decode_invitation(processes.coordinator("invite", "gamma").strip()).address == new
        assert processes.finish() == undisturbed.digest
