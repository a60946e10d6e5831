"""`deploy/install.sh` from beginning to end in a folder that stands for the root of a machine: no user, no systemd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from semisilo.common import __version__
from tests.each_of import each_of

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "deploy" / "install.sh"
PACKAGES = ("coordinator", "silo", "common", "semisilo")
Installer = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel of this version, and one of a later version."""
    built = []
    for version in (__version__, "9.9.9"):
        source = _source(tmp_path_factory.mktemp("source") / "semisilo")
        code = source / "common" / "__init__.py"
        code.write_text(code.read_text().replace(__version__, version))
        target = tmp_path_factory.mktemp("wheel") / "a folder"
        build = subprocess.run([sys.executable, "-P", "-c", "import sys; from setuptools import build_meta;"
                                " build_meta.build_wheel(sys.argv[1])", str(target)], cwd=source, capture_output=True,
                               text=True, timeout=240)
        assert build.returncode == 0, build.stderr
        built.append(next(target.glob("*.whl")))
    return built[0], built[1]


def _source(folder: Path) -> Path:
    """A copy of what a wheel is built from."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def installed_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What semisilo depends on, for environments that fetch nothing; without this checkout."""
    folder = tmp_path_factory.mktemp("dependencies")
    for packages in (path for path in sys.path if path.endswith("-packages")):
        for entry in Path(packages).iterdir():
            ours = entry.name.startswith(("semisilo", "__editable__", "pip")) or entry.name in PACKAGES
            if not ours and not (folder / entry.name).is_symlink():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def install(tmp_path: Path, installed_here: Path) -> Installer:
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PYTHON", "PIP_", "VIRTUAL", "SEMISILO"))}

    def run(*words: str | Path, root: Path | None = tmp_path / "root",
            umask: int = -1) -> subprocess.CompletedProcess[str]:
        where = [] if root is None else ["--root", str(root)]
        return subprocess.run(["sh", str(SCRIPT), *map(str, words), *where, "--python", sys.executable],
                              capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, umask=umask,
                              env={**environment, "PYTHONPATH": str(installed_here)})

    return run


OFFLINE = ("--pip-option", "--no-deps", "--pip-option", "--no-index")


def _version(root: Path, packages: Path, program: str = "coordinator") -> str:
    done = subprocess.run([root / "opt" / "semisilo" / "bin" / program, "--version"], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": str(packages)})
    return done.stdout.strip()


def _tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if "semisilo.d/2" not in str(path)}


@pytest.mark.slow
def test_a_hub_is_installed_upgraded_rolled_back_and_removed(
        install: Installer, wheels: tuple[Path, Path], installed_here: Path, tmp_path: Path) -> None:
    root, state = tmp_path / "root", tmp_path / "root" / "var" / "lib" / "semisilo"
    done = install("hub", "--from", wheels[0], *OFFLINE)
    assert done.returncode == 0, done.stderr
    assert f"done: semisilo {__version__}" in done.stdout
    assert "coordinator init lung-federation" in done.stdout
    units = root / "etc" / "systemd" / "system"
    assert {path.name for path in units.iterdir()} == {
        "semisilo-coordinator.service", "semisilo-backup.service", "semisilo-backup.timer"}
    pages = root / "usr" / "local" / "share" / "doc" / "semisilo"
    for page in (ROOT / "docs").rglob("*.md"):
        installed = pages / page.relative_to(ROOT / "docs")
        assert installed.read_bytes() == page.read_bytes()
        assert installed.stat().st_mode & 0o777 == 0o644
        links = re.findall(r"\]\((?!https?:)([\w./-]+)[#)]", page.read_text(encoding="utf-8"))
        assert [link for link in links if (page.parent / link).resolve().is_relative_to(ROOT / "docs")
                and not (installed.parent / link).exists()] == []
    assert state.stat().st_mode & 0o777 == 0o700
    assert _version(root, installed_here) == f"semisilo {__version__}"

    made = subprocess.run([root / "opt" / "semisilo" / "bin" / "coordinator", "init", "lung", "--folder",
                           state / "federation"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(installed_here)})
    assert made.returncode == 0, made.stderr
    key = (state / "federation" / "authority" / "ca.key").read_bytes()

    again = install("hub", "--from", wheels[0], *OFFLINE)
    assert again.returncode == 0, again.stderr
    assert f"before: semisilo {__version__}" in again.stdout
    assert "coordinator init" not in again.stdout

    upgraded = install("hub", "upgrade", "--from", wheels[1], *OFFLINE)
    assert upgraded.returncode == 0, upgraded.stderr
    assert _version(root, installed_here) == "semisilo 9.9.9"
    backups = root / "var" / "backups" / "semisilo"
    (archive,) = backups.iterdir()
    assert archive.name.startswith("lung-")
    assert len(list((root / "opt" / "semisilo.d").iterdir())) == 2  # the one in use and the one before

    back = install("hub", "rollback")
    assert back.returncode == 0, back.stderr
    assert len(list(backups.iterdir())) == 2, "by the version that went"
    assert _version(root, installed_here) == f"semisilo {__version__}"

    gone = install("hub", "uninstall")
    assert gone.returncode == 0, gone.stderr
    assert list(units.iterdir()) == []
    assert not (root / "opt" / "semisilo").is_symlink()
    assert not (root / "opt" / "semisilo.d").exists()
    assert (state / "federation" / "authority" / "ca.key").read_bytes() == key
    assert install("hub", "uninstall", "--purge").returncode == 0
    assert not state.exists()
    assert archive.exists()


@pytest.mark.slow
def test_both_roles_on_one_machine_share_the_program(
        install: Installer, wheels: tuple[Path, Path], installed_here: Path, tmp_path: Path) -> None:
    for role, umask in (("hub", 0o077), ("silo", 0o000)):
        done = install(role, "--from", wheels[0], *OFFLINE, umask=umask)
        assert done.returncode == 0, done.stderr
        release = (tmp_path / "root" / "opt" / "semisilo").resolve()
        for path in (release, release / "bin", release / "bin" / "silo"):  # whatever root's umask is
            assert path.stat().st_mode & 0o777 == 0o755, path
    done = install("hub", "uninstall")
    assert "the program stays" in done.stdout
    assert _version(tmp_path / "root", installed_here, "silo") == f"semisilo {__version__}"
    assert [path.name for path in (tmp_path / "root" / "etc" / "systemd" / "system").iterdir()] == [
        "semisilo-silo.service"]


@pytest.mark.slow
def test_an_installation_that_fails_changes_nothing(
        install: Installer, wheels: tuple[Path, Path], installed_here: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert install("silo", "--from", wheels[0], *OFFLINE).returncode == 0
    before, releases = _tree(root), sorted((root / "opt" / "semisilo.d").iterdir())
    broken = tmp_path / "semisilo-1.0-py3-none-any.whl"
    broken.write_bytes(b"not a wheel")
    failed = install("silo", "upgrade", "--from", broken, *OFFLINE)
    assert failed.returncode != 0
    assert _tree(root) == before
    assert sorted((root / "opt" / "semisilo.d").iterdir()) == releases
    assert _version(root, installed_here, "silo") == f"semisilo {__version__}"


@pytest.mark.slow
def test_from_source_it_takes_nothing_from_an_earlier_build_and_leaves_nothing_there(
        install: Installer, installed_here: Path, tmp_path: Path) -> None:
    source = _source(tmp_path / "a folder" / "semisilo")
    left = source / "build" / "lib" / "semisilo" / "common" / "left_by_the_version_before.py"
    left.parent.mkdir(parents=True)
    left.touch()
    before = {path for path in source.rglob("*") if "__pycache__" not in path.parts}
    done = install("silo", "--from", source, *OFFLINE, "--pip-option", "--no-build-isolation")
    assert done.returncode == 0, done.stderr
    assert {path for path in source.rglob("*") if "__pycache__" not in path.parts} == before
    assert _version(tmp_path / "root", installed_here) == f"semisilo {__version__}"
    (release,) = (tmp_path / "root" / "opt" / "semisilo.d").iterdir()
    names = {path.name for path in release.rglob("common/*.py")}
    assert "errors.py" in names
    assert left.name not in names
    assert not (release / "source").exists()


@each_of(("folder", "refused"), [("/home/alice/miniconda3", True), ("/root/.pyenv/versions/3.12", True),
                                 ("/usr", False), ("/opt/rooted/home", False)])
def test_a_python_that_the_services_cannot_read_is_refused(folder: str, refused: bool, tmp_path: Path) -> None:
    """ProtectHome= of the units hides it: the installation would be well, and no service start."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {folder}\n")
    python.chmod(0o755)
    words = ["sh", str(SCRIPT), "hub", "--from", "semisilo==0.1.0", "--dry-run", "--python", str(python)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == int(refused), done.stderr
    assert (f"error: {python} lies in {folder}, which the service cannot read." in done.stderr) is refused
    # Whoever fills the disk of another machine has its Python elsewhere.
    assert subprocess.run([*words, "--root", str(tmp_path / "root")], capture_output=True).returncode == 0


def test_a_dry_run_says_what_it_would_do_and_does_nothing(install: Installer, tmp_path: Path) -> None:
    done = install("hub", "--dry-run", "--from", "semisilo==0.1.0", "--extras", "dicom,tiff", "--index", "INDEX",
                   "--torch-index", "OTHER")
    assert done.returncode == 0, done.stderr
    commands = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    installs = [command for command in commands if " pip install " in command]
    assert [re.sub(r".* pip install ", "", command) for command in installs] == [
        "--disable-pip-version-check --no-input --index-url INDEX --index-url OTHER torch>=2.7 torchvision>=0.22",
        "--disable-pip-version-check --no-input --index-url INDEX semisilo[dicom,tiff]==0.1.0"]
    assert any(command.startswith("mv -T") for command in commands)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(("words", "installed"), [
    (("hub",), "semisilo[dicom,onnx]==0.1.0"), (("silo",), "semisilo[dicom]==0.1.0"),
    (("hub", "--extras", ""), "semisilo==0.1.0")])
def test_a_hub_can_hand_over_onnx_and_both_sides_read_dicom_unless_told_otherwise(
        install: Installer, words: tuple[str, ...], installed: str) -> None:
    done = install(*words, "--dry-run", "--from", "semisilo==0.1.0")
    assert done.returncode == 0, done.stderr
    assert f" {installed}\n" in done.stdout


class Machine:
    """A root folder on which versions are installed that consist of a program that says its version."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._python, self._version, self.given = folder / "python", folder / "version", folder / "given"
        self.pip = folder / "pip"
        self._python.write_text(
            '#!/bin/sh\n[ "$1" = -m ] && [ "$2" = venv ] || exit 0\nmkdir -p "$3/bin"\n'
            f'printf "#!/bin/sh\\necho \\"\\$@\\" >> {self.pip}\\n" > "$3/bin/python"\n'
            f'printf "#!/bin/sh\\necho \\"\\$@\\" >> {self.given}\\necho semisilo %s\\n" "$(cat {self._version})"'
            ' > "$3/bin/coordinator"\n'
            'chmod 755 "$3/bin/python" "$3/bin/coordinator"\n')
        self._python.chmod(0o755)

    def __call__(self, action: str, version: str = "", *options: str, role: str = "hub", script: Path = SCRIPT
                 ) -> subprocess.CompletedProcess[str]:
        self._version.write_text(version)
        python = [] if "--python" in options else ["--python", str(self._python)]
        return subprocess.run(["sh", str(script), role, action, "--from", f"semisilo=={version}", "--root",
                               str(self.root), *python, *options], capture_output=True, text=True,
                              timeout=300, stdin=subprocess.DEVNULL)

    def fetched(self, action: str, version: str, *options: str, role: str = "hub") -> list[str]:
        """What pip was asked for, without what is said to it each time."""
        done = self(action, version, *options, role=role)
        assert done.returncode == 0, done.stderr
        always = " pip install --disable-pip-version-check --no-input "
        return [line.split(always)[1] for line in done.stdout.splitlines() if always in line]

    def done(self, action: str, version: str = "") -> str:
        """The version in use after it."""
        done = self(action, version)
        assert done.returncode == 0, done.stderr
        return self.in_use

    @property
    def in_use(self) -> str:
        return self._said_by(self.root / "opt" / "semisilo")

    @property
    def kept(self) -> list[str]:
        return sorted(self._said_by(each) for each in self.releases)

    @property
    def releases(self) -> list[Path]:
        return sorted((self.root / "opt" / "semisilo.d").iterdir())

    def _said_by(self, release: Path) -> str:
        return subprocess.run([release / "bin" / "coordinator"], capture_output=True, text=True, timeout=300,
                              check=True).stdout.split()[1]


@pytest.mark.parametrize(("role", "own", "others"), [("silo", "silo", "federation"), ("hub", "federation", "silo")])
def test_a_purge_beside_the_other_role_takes_the_folder_of_this_one_alone(role: str, own: str, others: str,
                                                                          tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    state = machine.root / "var" / "lib" / "semisilo"
    for each in ("hub", "silo"):
        assert machine("install", "1", role=each).returncode == 0
    for name in (own, others):
        (state / name).mkdir()
    assert f"memory stay: {state / own} (" in machine("uninstall", role=role).stdout
    assert (state / own).is_dir()
    assert machine("install", "1", role=role).returncode == 0
    assert machine("uninstall", "1", "--purge", role=role).returncode == 0
    assert sorted(path.name for path in state.iterdir()) == [others]
    (machine.root / "etc" / "semisilo").mkdir()
    done = machine("uninstall", "1", "--purge", role="hub" if role == "silo" else "silo")
    assert "/etc/semisilo, where" in done.stdout
    assert not state.exists()


def test_what_a_purge_leaves_belongs_to_root_before_the_account_goes(tmp_path: Path) -> None:
    """Else the archives, with the federation's keys, are those of whoever gets the account's number next."""
    (tmp_path / "backups").mkdir()
    account = tmp_path / "bin" / "id"
    account.parent.mkdir()
    account.write_text("#!/bin/sh\nexit 0\n")
    account.chmod(0o755)
    text = SCRIPT.read_text()
    script = tmp_path / "install.sh"
    script.write_text(text.replace("backups=$root/var/backups/semisilo", f"backups={tmp_path / 'backups'}"))
    assert script.read_text() != text
    done = subprocess.run(["sh", str(script), "hub", "uninstall", "--purge", "--dry-run"], capture_output=True,
                          text=True, timeout=300,
                          env={**os.environ, "PATH": f"{account.parent}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    commands = [line.strip() for line in done.stdout.splitlines()]
    assert commands.index(f"chown -R root:root {tmp_path / 'backups'}") < commands.index("userdel semisilo")


def test_a_silo_on_the_machine_of_a_hub_takes_the_hub_along(tmp_path: Path) -> None:
    """One program for both: another version of it is one for the hub as well."""
    machine, log = Machine(tmp_path), tmp_path / "systemctl.log"
    shutil.copytree(SCRIPT.parent, tmp_path / "deploy")
    script = tmp_path / "deploy" / "install.sh"
    text = script.read_text()
    fake = f'systemd() {{ :; }}\nsystemctl() {{ echo "$@" >> {log}; }}\nsleep() {{ :; }}'
    as_if = re.sub(r"^systemd\(\) .*$", fake, text, flags=re.M)
    assert as_if != text
    script.write_text(as_if)
    assert machine("install", "1", script=script).returncode == 0
    hub = machine.root / "var" / "lib" / "semisilo" / "federation"
    hub.mkdir(parents=True)
    (hub / "federation.toml").touch()
    for action, version in (("install", "2"), ("upgrade", "3"), ("rollback", "")):
        log.unlink(missing_ok=True)
        machine.given.unlink(missing_ok=True)
        done = machine(action, version, role="silo", script=script)
        assert done.returncode == 0, done.stderr
        assert "backup " in machine.given.read_text()
        assert "semisilo[dicom,onnx]==" in done.stdout or action == "rollback"
        restarted = [line for line in log.read_text().splitlines() if line.startswith("try-restart")]
        assert restarted == ["try-restart semisilo-silo", "try-restart semisilo-coordinator.service"]
    assert {path.name for path in (machine.root / "etc" / "systemd" / "system").iterdir()} == {
        "semisilo-coordinator.service", "semisilo-backup.service", "semisilo-backup.timer", "semisilo-silo.service"}


def test_what_was_given_for_the_version_in_use_holds_for_the_next(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    given = ("--extras", "dicom,privacy", "--torch-index", "CPU", "--index", "https://u:p=w@mirror/",
             "--pip-option", "--proxy http://p:3128", "--pip-option", "--no-color")
    usual = "--index-url https://***@mirror/ --proxy http://p:3128 --no-color"
    torch = f"{usual} --index-url CPU torch>=2.7 torchvision>=0.22"
    as_given = [torch, f"{usual} semisilo[dicom,privacy]=={{}}"]
    assert machine.fetched("install", "1", *given)[1] == as_given[1].format(1)
    kept = machine.root / "opt" / "semisilo" / ".options"
    assert kept.stat().st_mode & 0o777 == 0o600, "an index may have a password"
    assert machine.fetched("upgrade", "2") == [torch, as_given[1].format(2)]
    assert machine.fetched("install", "3", role="silo") == [torch, as_given[1].format(3)]
    fewer = ["--index-url MIRROR --index-url CPU torch>=2.7 torchvision>=0.22", "--index-url MIRROR semisilo==4"]
    assert machine.fetched("upgrade", "4", "--extras", "", "--index", "MIRROR", "--pip-option", "")[1] == fewer[1]
    assert machine.fetched("upgrade", "5", "--forget") == ["semisilo[dicom,onnx]==5"]
    assert machine.done("rollback") == "4"
    assert machine.fetched("upgrade", "6") == [fewer[0], fewer[1].replace("4", "6")], "as for the version in use"


@pytest.mark.parametrize(("extras", "taken"), [
    ("dicom,privacy", "[dicom,privacy,onnx]"), ("onnx,tiff", "[onnx,tiff]"), ("tiff,onnx", "[tiff,onnx]"),
    ("", "[onnx]")])
def test_a_hub_on_the_machine_of_a_silo_can_hand_over_onnx_beside_the_silo_s_extras(
        tmp_path: Path, extras: str, taken: str) -> None:
    machine = Machine(tmp_path)
    machine.fetched("install", "1", "--extras", extras, role="silo")
    assert machine.fetched("install", "2") == [f"semisilo{taken}==2"]
    assert machine.fetched("upgrade", "3", role="silo") == [f"semisilo{taken}==3"]
    assert machine.fetched("upgrade", "4", "--extras", "tiff") == ["semisilo[tiff]==4"]
    assert machine.fetched("upgrade", "5") == ["semisilo[tiff]==5"], "as a hub's were given"


def test_the_python_that_was_named_makes_the_next_version_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first = machine("install", "1")
    assert first.returncode == 0, first.stderr
    words = ["sh", str(SCRIPT), "hub", "upgrade", "--from", "semisilo==2", "--root", str(machine.root), "--dry-run"]
    again = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
    assert f"as before: --python {tmp_path / 'python'}" in again
    assert f"    {tmp_path / 'python'} -m venv " in again
    forgotten = subprocess.run([*words, "--forget"], capture_output=True, text=True, timeout=300, check=True).stdout
    assert "    python3 -m venv " in forgotten


@pytest.mark.slow
def test_a_machine_with_one_role_keeps_to_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine("install", "1", role="silo").returncode == 0
    done = machine("upgrade", "2", role="silo")
    assert done.returncode == 0, done.stderr
    assert "backup" not in done.stdout
    assert [path.name for path in (machine.root / "etc" / "systemd" / "system").iterdir()] == ["semisilo-silo.service"]


@pytest.mark.slow
def test_a_rollback_returns_to_the_version_that_was_in_use_and_never_to_one_that_was_rolled_back_from(tmp_path: Path
                                                                                                      ) -> None:
    machine = Machine(tmp_path)
    assert machine.done("install", "1") == "1"
    assert machine.done("upgrade", "2") == "2"
    assert machine.done("rollback") == "1"
    again = machine("rollback")
    assert again.returncode == 1
    assert "A rollback never goes to a later one" in again.stderr
    assert machine.in_use == "1"
    assert machine.done("upgrade", "3") == "3"
    assert machine.kept == ["1", "3"], "2 was never the version before"
    assert machine.done("rollback") == "1"
    assert machine.done("upgrade", "4") == "4"
    assert machine.done("upgrade", "5") == "5"
    assert machine.kept == ["4", "5"]
    assert machine.done("rollback") == "4"
    assert machine("rollback").returncode == 1, "what was before is removed"
    assert machine.in_use == "4"


@pytest.mark.slow
def test_a_rollback_puts_the_units_of_that_version_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    shutil.copytree(SCRIPT.parent, tmp_path / "deploy")
    script, unit = tmp_path / "deploy" / "install.sh", tmp_path / "deploy" / "systemd" / "semisilo-coordinator.service"
    installed = machine.root / "etc" / "systemd" / "system" / unit.name
    first = unit.read_text()
    assert machine("install", "1", script=script).returncode == 0
    unit.write_text(first.replace(" serve ", " serve --what-version-1-does-not-know "))
    assert machine("upgrade", "2", script=script).returncode == 0
    assert "--what-version-1-does-not-know" in installed.read_text()
    assert machine("rollback", script=script).returncode == 0
    assert installed.read_text() == first
    for old in machine.releases:  # as an earlier script has left them
        shutil.rmtree(old / "units")
    assert machine("upgrade", "3", script=script).returncode == 0
    assert machine("rollback", script=script).returncode == 0
    assert machine.in_use == "1"


def test_a_rollback_backs_the_hub_up_with_the_version_that_goes_and_is_not_held_up_by_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for version in ("1", "2"):
        machine.done("install", version)
    hub = machine.root / "var" / "lib" / "semisilo" / "federation"
    hub.mkdir(parents=True)
    (hub / "federation.toml").touch()
    program = machine.releases[1] / "bin" / "coordinator"
    program.write_text(f'#!/bin/sh\necho "2: $@" >> {machine.given}\n[ "$1" = --version ] && echo semisilo 2\n')
    machine.given.unlink(missing_ok=True)
    done = machine("rollback")
    assert (done.returncode, machine.in_use) == (0, "1"), done.stderr
    assert "2: backup " in machine.given.read_text()
    assert "the backup failed" in done.stdout


def test_a_hub_is_not_upgraded_without_a_backup(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.done("install", "1")
    hub = machine.root / "var" / "lib" / "semisilo" / "federation"
    hub.mkdir(parents=True)
    (hub / "federation.toml").touch()
    program = machine.releases[0] / "bin" / "coordinator"
    program.write_text('#!/bin/sh\n[ "$1" != backup ] && echo semisilo 1\n')
    done = machine("upgrade", "2")
    assert (done.returncode, machine.in_use) == (1, "1")
    assert "The backup failed; nothing was changed." in done.stderr


@pytest.mark.slow
def test_of_versions_that_an_earlier_script_has_installed_a_rollback_takes_the_newest_older_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for version in ("1", "2"):
        machine.done("install", version)
    for release in machine.releases:
        (release / ".before").unlink(missing_ok=True)
    assert machine.done("rollback") == "1"
    assert machine("rollback").returncode == 1
    assert machine.in_use == "1"


@pytest.mark.slow
def test_releases_that_lie_behind_a_link_are_told_apart_as_well(tmp_path: Path) -> None:
    """/opt may be a link to another disk."""
    machine = Machine(tmp_path)
    (tmp_path / "disk").mkdir()
    machine.root.mkdir()
    (machine.root / "opt").symlink_to(tmp_path / "disk")
    assert machine.done("install", "1") == "1"
    assert machine.done("upgrade", "2") == "2"
    assert machine.kept == ["1", "2"]
    assert machine.done("rollback") == "1"


def test_a_python_that_is_too_old_is_said_with_packages_that_are_new_enough(tmp_path: Path) -> None:
    done = subprocess.run(["sh", str(SCRIPT), "silo", "--root", str(tmp_path / "root"), "--python", "false"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith("error: false is no Python >= 3.11")
    # The python3 of Ubuntu 22.04 is 3.10: the same package again would not help.
    assert "Ubuntu 22.04: apt-get install python3.11 python3.11-venv" in done.stderr
    assert "RHEL 9: dnf install python3.11" in done.stderr  # likewise 3.9
    assert "--python python3.11" in done.stderr


def test_a_password_of_an_index_is_not_printed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    given = "--index", "https://bob:s3cret@index.example/simple", "--pip-option", \
        "--extra-index-url=https://t0ken@other.example/simple"
    for done in (machine("install", "1", *given), machine("upgrade", "2"), machine("upgrade", "3", "--dry-run")):
        assert done.returncode == 0, done.stderr
        assert "--index-url https://***@index.example/simple --extra-index-url=https://***@other.example" in done.stdout
        assert not any(secret in done.stdout + done.stderr for secret in ("s3cret", "t0ken"))
    asked = machine.pip.read_text().splitlines()
    assert len(asked) == 2
    assert all("//bob:s3cret@index.example/simple --extra-index-url=https://t0ken@other" in each for each in asked)


def test_a_script_that_was_copied_without_its_units_changes_nothing(tmp_path: Path) -> None:
    """It had fetched everything and switched the program before it missed them."""
    machine, alone = Machine(tmp_path), tmp_path / "alone" / "install.sh"
    alone.parent.mkdir()
    shutil.copy(SCRIPT, alone)
    done = machine("install", "1", script=alone)
    assert done.returncode == 2
    assert "copy the folder deploy as a whole" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not machine.root.exists()


@pytest.mark.parametrize("dies", [False, True])
def test_a_service_that_ends_soon_after_an_upgrade_is_said_with_the_way_back(tmp_path: Path, dies: bool) -> None:
    """systemd calls a service started as soon as its program is; the upgrade said that all was done."""
    machine = Machine(tmp_path)
    shutil.copytree(SCRIPT.parent, tmp_path / "deploy")
    script = tmp_path / "deploy" / "install.sh"
    asked = tmp_path / "asked"
    dead = f"[ $(wc -l < {asked}) -lt 4 ]" if dies else ":"
    fake = ("systemd() { :; }\nsleep() { :; }\n"
            f"systemctl() {{ [ $1 != is-active ] || {{ echo >> {asked}; {dead}; }}; }}")
    as_if = re.sub(r"^systemd\(\) .*$", fake, script.read_text(), flags=re.M)
    assert machine("install", "1").returncode == 0
    script.write_text(as_if)
    done = machine("upgrade", "2", script=script)
    assert done.returncode == int(dies), done.stderr
    assert ("journalctl -u semisilo-coordinator" in done.stderr) is dies
    assert ("rollback" in done.stderr) is dies
    assert asked.read_text().count("\n") == (4 if dies else 6)


def test_what_systemctl_edit_has_made_is_named_when_the_units_go(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine("install", "1").returncode == 0
    edited = machine.root / "etc" / "systemd" / "system" / "semisilo-coordinator.service.d"
    edited.mkdir()
    assert f"stays: {edited}" in machine("uninstall").stdout
    assert edited.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_root_it_says_how_to_go_on() -> None:
    # The script is read from standard input: the folder of the checkout may be closed to others.
    done = subprocess.run(["sh", "-s", "hub"], input=SCRIPT.read_text(), capture_output=True, text=True, timeout=300,
                          user=65534, cwd="/")
    assert done.returncode == 1
    assert "needs root" in done.stderr
    assert "sudo sh" in done.stderr


@pytest.mark.parametrize(("words", "reason"), [
    ((), "hub or silo"), (("hub", "silo"), "one word too many"), (("hub", "--form", "x"), "'--form' is not known"),
    (("hub", "--from"), "needs a value"), (("silo", "--purge"), "goes with uninstall"),
    (("hub", "upgrade"), "nothing to upgrade"), (("hub", "rollback"), "nothing installed"),
    (("hub", "--from", "/no/such.whl"), "no such file")])
def test_wrong_words_are_refused_in_one_line(install: Installer, words: tuple[str, ...], reason: str,
                                             tmp_path: Path) -> None:
    done = install(*words) if words != ("hub", "--from") else subprocess.run(
        ["sh", str(SCRIPT), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "root" / "opt" / "semisilo").exists()


def test_help_names_every_option_that_is_taken() -> None:
    shown = subprocess.run(["sh", str(SCRIPT), "--help"], capture_output=True, text=True, timeout=300).stdout
    taken = set(re.findall(r"^        (?:-h\|)?(--[a-z-]+)\)", SCRIPT.read_text(), re.MULTILINE))
    assert len(taken) >= 10
    assert taken == set(re.findall(r"--[a-z-]+", shown)) - {"--no-deps"}
