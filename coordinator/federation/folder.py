"""The federation folder: `federation.toml`, `authority/`, `ledger.sqlite`, `payloads/`, `spool/`, `studies/`."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from semisilo.common.config import from_dict, load_toml, parse_duration, tables_from_dict, to_dict
from semisilo.common.errors import BadConfiguration, SemisiloError, StorageDamaged, UsageError
from semisilo.common.methods import Scenario
from semisilo.common.process.folder_owner import check_may_enter, refuse_for_root
from semisilo.common.storage.durable import sync_file, sync_folder, write_durably
from semisilo.common.storage.lock_file import is_locked, lock_soon
from semisilo.common.system_errors import explained
from semisilo.common.text.names import nearest_name
from semisilo.coordinator.federation.alerts_table import AlertSettings
from semisilo.coordinator.federation.tracking_table import TrackingSettings

__all__ = ["WHERE_KEYS_ARE_EXPLAINED", "AddressSettings", "CoordinatorFolder", "Federation", "FederationConfig",
           "FederationSettings", "LimitSettings", "PageSettings", "create_federation", "folder_option", "keep_private",
           "new_federation", "open_federation", "study_template", "with_page_at"]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})")
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_HOST = re.compile(r"\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_FOLDERS = ("authority", "payloads", "spool", "studies")
_UNFINISHED = ".unfinished"
"""Is there while `coordinator init` is at work, and locked; and after one that was killed."""
GIB = 2**30
_LONGEST_INVITATION_SECONDS = 30 * 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationSettings:
    """Table [federation]."""

    name: str
    """Lower-case letters, digits and hyphens; part of every certificate, never to be changed."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            near = nearest_name(self.name[:200])
            raise ValueError(f'name = "{self.name}": use lower-case letters, digits and hyphens, at most 63'
                             f'{f", for example {near!r}" if near else ""}.')


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressSettings:
    """Table [address]: where silos reach the coordinator, and where it listens."""

    public: str
    """host:port that silos connect to; written into every invitation."""
    enrollment: str = ""
    """host:port for enrollment; empty: the host of `public` with the next port."""
    listen: str = "[::]"
    """Interface to listen on, "[::]" for all, "127.0.0.1" for this machine only; with a port ("[::]:9443") where a
    router forwards another one. Enrollment then listens on the next port."""

    def __post_init__(self) -> None:
        for name in ("public", "enrollment"):
            value = getattr(self, name)
            if (name == "public" or value) and not _valid_address(value):
                raise ValueError(f'{name} = "{value}": write host:port, the port below 65536, for example'
                                 ' "hub.example:8443".')
        if not (_valid_address(self.listen) or _valid_address(f"{self.listen}:1")):
            raise ValueError(f'listen = "{self.listen}": write an interface, for example "[::]" or "127.0.0.1:8443".')
        if _port(self.public) == _port(self.enrollment_address):
            raise ValueError("public and enrollment need different ports.")
        for address in (self.enrollment_address, self.listen_enrollment_address):
            if not _valid_address(address):
                raise ValueError(f"enrollment would need the address {address}: choose a port below 65535.")

    @property
    def enrollment_address(self) -> str:
        """host:port that silos reach for enrollment."""
        return self.enrollment or f"{self.public.rpartition(':')[0]}:{_port(self.public) + 1}"

    @property
    def listen_address(self) -> str:
        """interface:port of the work port."""
        return self.listen if _valid_address(self.listen) else f"{self.listen}:{_port(self.public)}"

    @property
    def listen_port(self) -> int:
        """The port of `listen_address`."""
        return _port(self.listen_address)

    @property
    def listen_enrollment_address(self) -> str:
        """interface:port of the enrollment port."""
        if _valid_address(self.listen):
            return f"{self.listen.rpartition(':')[0]}:{self.listen_port + 1}"
        return f"{self.listen}:{_port(self.enrollment_address)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitSettings:
    """Table [limits]."""

    spool_bytes: int = 20 * GIB
    """Updates beyond this total are refused until the round is committed; silos try again later."""
    uploads: int = 4
    """Updates that are received at the same time; others wait. A quick one takes some 20 MB of memory."""
    images_on_disk: bool = True
    """Whether decoded images of the coordinator that are too many for memory may lie in a file on the federation's disk
    while a study runs. The file has no name and is gone with the process. Without it such images are refused."""
    invitation_life: str = "24h"
    """How long an invitation can be used."""
    silent_after: str = "3m"
    """A silo of which nothing was heard for so long is silent: no round asks it until it calls again. Silos that wait
    call every 25 seconds."""

    @property
    def silent_seconds(self) -> float:
        """`silent_after` in seconds."""
        return parse_duration(self.silent_after)

    def __post_init__(self) -> None:
        if self.spool_bytes < 1 or self.uploads < 1:
            raise ValueError("spool_bytes and uploads must be at least 1.")
        for name in ("invitation_life", "silent_after"):
            try:
                seconds = parse_duration(getattr(self, name), where=name)
            except BadConfiguration as error:
                raise ValueError(error.line()) from None
            if seconds <= 0:
                raise ValueError(f'{name} = "{getattr(self, name)}": must be above 0.')
            if name == "invitation_life" and seconds > _LONGEST_INVITATION_SECONDS:
                raise ValueError(f'invitation_life = "{self.invitation_life}": must be at most "30d".')
        if self.silent_seconds < 10:
            raise ValueError(f'silent_after = "{self.silent_after}": silos that work report every 3 to 7 seconds, so'
                             " give 10s at least.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSettings:
    """Table [page]: the operator page that `coordinator serve` shows."""

    listen: str = "127.0.0.1:8080"
    """host:port of the page; port 0 takes any free one, "" switches the page off. There is no TLS on it: beyond this
    machine, put a reverse proxy with TLS in front, or use an ssh tunnel."""
    hosts: tuple[str, ...] = ()
    """Names under which browsers may ask for the page besides localhost and the host of `listen`, for example that of a
    reverse proxy: "page.hub.example"."""

    user_header: str = ""
    """Header in which a reverse proxy with a login of its own, such as one for OIDC, says who acts, for example
    "X-Forwarded-User"; whom it lets through may act without a token. "": nobody's word is taken."""
    trusted_proxies: tuple[str, ...] = ()
    """IP addresses that `user_header` is believed from: those of the proxy. Nobody else may reach the page from there:
    any program on the machine of the proxy could say any name."""

    def __post_init__(self) -> None:
        if self.user_header and _HEADER.fullmatch(self.user_header) is None:
            raise ValueError(f'user_header: "{self.user_header}" is not the name of a header, such as'
                             ' "X-Forwarded-User".')
        if bool(self.user_header) != bool(self.trusted_proxies):
            raise ValueError("user_header and trusted_proxies belong together: set both or none.")
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_address(proxy)
            except ValueError:
                raise ValueError(f'trusted_proxies: "{proxy}" is not an IP address.') from None
        address = _ADDRESS.fullmatch(self.listen)
        if self.listen and (address is None or int(address[2]) > 65535):
            raise ValueError(f'listen = "{self.listen}": write host:port, for example "127.0.0.1:8080", or "".')
        for host in self.hosts:
            if _HOST.fullmatch(host) is None:
                raise ValueError(f'hosts: "{host}" is not a host name; write it without a scheme or a port.')


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationConfig:
    """`federation.toml`."""

    federation: FederationSettings
    address: AddressSettings
    limits: LimitSettings = field(default_factory=LimitSettings)
    page: PageSettings = field(default_factory=PageSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)


@dataclass(frozen=True, slots=True)
class CoordinatorFolder:
    """What every coordinator keeps in its folder, that of a simulation too."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """The SQLite file."""
        return self.folder / "ledger.sqlite"

    @property
    def payloads(self) -> Path:
        """Content-addressed payload files on their way to silos."""
        return self.folder / "payloads"

    @property
    def images(self) -> Path:
        """Decoded images that are too many for memory, in files without a name."""
        return self.folder / "images"

    @property
    def spool(self) -> Path:
        """Updates on disk until their round is committed."""
        return self.folder / "spool"

    @property
    def studies(self) -> Path:
        """One folder per study."""
        return self.folder / "studies"


@dataclass(frozen=True, slots=True)
class Federation(CoordinatorFolder):
    """An opened federation folder."""

    config: FederationConfig

    @property
    def name(self) -> str:
        """Name of the federation."""
        return self.config.federation.name

    @property
    def authority(self) -> Path:
        """Keys and certificates of the CA and the coordinator."""
        return self.folder / "authority"

    def with_temporary_files(self) -> tuple[Path, ...]:
        """The folders in which files are written under another name first."""
        studies = [each for each in self.studies.iterdir() if each.is_dir()] if self.studies.is_dir() else []
        return (self.folder, self.authority, self.payloads, self.payloads / "incoming", self.spool,
                self.spool / "incoming", *studies, *(each / "states" for each in studies))

    @property
    def page_token(self) -> Path:
        """The operator's token: whoever has it may act through the page."""
        return self.folder / "page.token"

    @property
    def live(self) -> Path:
        """What `serve` is doing now, for `status`; rewritten every second."""
        return self.folder / "live.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by `serve`, so that two never run over one folder.

        Raises: SemisiloError when another process holds it, or this user cannot write the folder.
        """
        try:
            opened = open(self.folder / ".lock", "ab+", buffering=0)  # noqa: SIM115 - closed below
        except OSError as error:
            if (trouble := explained(error)) is not None:  # names the file, which may be another account's
                raise trouble from None
            raise SemisiloError(f"{error.filename}: cannot be written: {error.strerror}.",
                                remedy="This user must be able to write there.") from None
        with opened as file:
            if not lock_soon(file.fileno()):
                file.seek(0)
                raise SemisiloError(f"Another 'coordinator serve' runs over {self.folder} (process "
                                    f"{file.read().decode().strip() or 'unknown'}).", remedy="Stop it first.")
            with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
                file.truncate(0)
                file.write(str(os.getpid()).encode())
            yield

    def silenced(self) -> str:
        """What keeps a `serve` that runs from writing `live`: what the system says of its folder, "/hub: Read-only file
        system. ..."; empty where none runs, or the folder can be written.

        So a disk that refuses everything, on which the work waits, is told from a `serve` that hangs or has ended.
        """
        if not is_locked(self.folder / ".lock"):
            return ""
        probe = self.folder / ".writable.tmp"
        try:
            try:
                probe.write_bytes(b"1")
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            trouble = explained(error)
            return "" if trouble is None else trouble.line()
        return ""


def open_federation(folder: Path) -> Federation:
    """Reads a federation folder.

    Raises: UsageError when it is none, or another account's and this is root; SystemTrouble when this user may not
        enter it; BadConfiguration when its file is wrong; StorageDamaged when its ledger is gone.
    """
    refuse_for_root(folder)
    check_may_enter(folder)
    path = folder / "federation.toml"
    if not path.is_file():
        if _is_unfinished(folder):
            raise UsageError(f"{folder.resolve()} is not a federation folder yet: `coordinator init` has not finished "
                             "there.", remedy="Give the same `coordinator init` again: it begins anew there.")
        raise UsageError(f"{folder.resolve()} is not a federation folder: there is no federation.toml.",
                         remedy="Go there with cd, name it with --folder, or make one: coordinator init NAME.")
    data = load_toml(path)
    parts = tables_from_dict(FederationConfig, data, where=str(path))
    if rest := {name: table for name, table in data.items() if name not in parts}:
        from_dict(FederationConfig, rest, where=str(path))
    missing = [name for name in ("federation", "address") if name not in parts]
    if missing:
        example = {"federation": 'name = "lung"', "address": 'public = "hub.example:8443"'}[missing[0]]
        raise BadConfiguration(f"{path}: table [{missing[0]}] is missing.", remedy=f"Add [{missing[0]}] {example}.")
    federation = Federation(folder.resolve(), FederationConfig(**parts))
    # `serve` makes that key once it has a ledger. An empty one in its place would know no silo and no study, and
    # backups of it would take the places of good ones.
    # One of no bytes is no ledger either: programs that only look for it may make such a file.
    if not (size := _size(federation.ledger)) and (federation.authority / "audit.key").exists():
        what = "is gone" if size is None else "is empty"
        raise StorageDamaged(f"{federation.ledger}: {what}, and this federation has had one.",
                             remedy="Mount what holds it, or restore the federation: coordinator restore.")
    return federation


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def keep_private(federation: Federation) -> list[str]:
    """Takes the rights of other users away from the folder and the ledger, where they had some.

    Returns: lines for the log, about what they had, and what they still have because it is not this user's.
    """
    ledger = federation.ledger
    others, not_ours = [], []
    for path in (federation.folder, *(ledger.with_name(f"{ledger.name}{ending}") for ending in ("", "-wal", "-shm"))):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                path.chmod(mode & 0o700)
                others.append(path.name if path != federation.folder else str(path))
        except FileNotFoundError:
            continue
        except OSError:
            not_ours.append(str(path))
    said = []
    if others:
        said.append(f"{', '.join(others)}: other users of this machine had rights there; now only this one has")
    said += [f"{path}: other users of this machine have rights there, and this one may not take them away: its owner"
             f" can, with chmod go-rwx {shlex.quote(path)}" for path in not_ours]
    return said


def folder_option(folder: Path | str) -> str:
    """` --folder X`, for a command that is proposed to a person; empty where that command would find the folder itself:
    in the current one, or in $SEMISILO_FEDERATION."""
    own = Path(os.environ.get("SEMISILO_FEDERATION") or ".")
    return "" if Path(folder).resolve() == own.resolve() else f" --folder {shlex.quote(str(folder))}"


def with_page_at(federation: Federation, listen: str) -> Federation:
    """The federation with its page at another address than its file says.

    Raises: BadConfiguration for what is no address.
    """
    settings = {**to_dict(federation.config.page), "listen": listen}
    page = from_dict(PageSettings, settings, where="--page")
    return replace(federation, config=replace(federation.config, page=page))


@contextlib.contextmanager
def new_federation(folder: Path, *, name: str, address: str) -> Iterator[Federation]:
    """A federation in the making: folder, configuration and what the block makes. Where either fails, what was made
    goes again, so that the same command can be repeated.

    `federation.toml`, without which no command takes the folder for a federation, comes last and when all else is on
    disk: one that was killed, or whose machine stopped, leaves nothing that could be taken for a whole one, and the
    same command clears it away and begins anew.
    Raises: UsageError when the folder is in use or another account's, or a value is wrong; nothing is written then.
    """
    refuse_for_root(folder)
    config = FederationConfig(federation=from_dict(FederationSettings, {"name": name}, where="NAME"),
                              address=from_dict(AddressSettings, {"public": address}, where="--address"))
    was_there = folder.is_dir()
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _in_the_making(folder):
        try:
            for part in _FOLDERS:
                (folder / part).mkdir(mode=0o700 if part == "authority" else 0o777)
            yield Federation(folder.resolve(), config)
            for part in (*_FOLDERS, "."):
                sync_folder(folder / part)
            write_durably(folder / "federation.toml", _commented(name, address).encode())
        except BaseException:
            for part in _FOLDERS:
                shutil.rmtree(folder / part, ignore_errors=True)
            for file in (folder / "federation.toml", *folder.glob("ledger.sqlite*"), folder / _UNFINISHED):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)
            if not was_there:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


def create_federation(folder: Path, *, name: str, address: str) -> Federation:
    """Makes the folder with its configuration; the authority is made by the caller.

    Raises: as `new_federation`.
    """
    with new_federation(folder, name=name, address=address) as made:
        pass
    return made


def _check_free(folder: Path) -> None:
    """Raises: UsageError when anything is there but what a killed `new_federation` has left, or one is at work."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not _is_unfinished(folder) or (others := _not_left_by_init(folder)):
        found = f": it holds {others[0]}" if _is_unfinished(folder) else ""
        raise UsageError(f"{folder} exists and is not empty{found}.", remedy="Choose another name, or remove it.")


def _is_unfinished(folder: Path) -> bool:
    return (folder / _UNFINISHED).exists() and not (folder / "federation.toml").exists()


def _left_by_init(path: Path, name: str) -> bool:
    """Whether `coordinator init` makes such a file or folder. The file of the first study is one as long as nobody has
    edited it."""
    if name == "studies/first/study.toml":
        return path.read_bytes() in [study_template(scenario).encode() for scenario in _DATA]
    return name in (_UNFINISHED, *_FOLDERS, "studies/first", "studies/first/data") or name.startswith(
        ("authority/", "ledger.sqlite", ".federation.toml.", "studies/first/.study.toml."))


def _not_left_by_init(folder: Path) -> list[str]:
    names = [(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*"))]
    return [name for path, name in names if not _left_by_init(path, name)]


@contextlib.contextmanager
def _in_the_making(folder: Path) -> Iterator[None]:
    """Marks the folder as unfinished for the time of the block, after clearing what a killed one has left.

    Raises: UsageError while another process makes a federation there.
    """
    marker = folder / _UNFINISHED
    with open(marker, "ab", buffering=0) as file:
        if not lock_soon(file.fileno()):
            raise UsageError(f"Another 'coordinator init' is at work in {folder}.", remedy="Wait for it.")
        _check_free(folder)  # the one that had the lock until now may have finished
        for path in folder.iterdir():
            if path.name != _UNFINISHED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        sync_file(file.fileno())
        sync_folder(folder)
        yield
        with contextlib.suppress(OSError):  # beside a `federation.toml` it means nothing
            marker.unlink()
            sync_folder(folder)


def _commented(name: str, address: str) -> str:
    """The first `federation.toml`."""
    host, _, port = address.rpartition(":")
    return (
        f'[federation]\nname = "{name}"\n\n[address]\n# What silos connect to; goes into every invitation.\n'
        f'public = "{address}"\n# enrollment = "{host}:{int(port) + 1}"\n'
        '# "127.0.0.1": this machine only; "[::]:9443": where a router forwards another port.\n'
        f'listen = "[::]"\n\n[limits]\n# spool_bytes = {20 * GIB}\n# uploads = 4\n# invitation_life = "24h"\n'
        '# images_on_disk = true     # false: decoded images that are too many for memory are refused\n'
        '# silent_after = "3m"     # after this time without a call, a silo is not asked until it calls again\n\n'
        '[page]\n# The operator page; "" switches it off.\nlisten = "127.0.0.1:8080"\n'
        '# hosts = ["page.hub.example"]\n'
        '# user_header = "X-Forwarded-User"   # a reverse proxy with its own login says who acts\n'
        '# trusted_proxies = ["10.0.0.5"]     # and is believed only from here\n\n'
        '[alerts]\n# webhook = "https://chat.example/hooks/abc"   # told what needs a person\n\n'
        '[tracking]\n# tensorboard = true   # studies/NAME/tensorboard\n# mlflow = "https://mlflow.example"\n'
        '# mlflow_experiment = "lung"   # left out: the name of the federation\n'
        '# wandb = "lung"               # a project of Weights & Biases\n'
        '# wandb_mode = "offline"       # or "online"\n')


WHERE_KEYS_ARE_EXPLAINED = """\
# Every key: study.md; settings of a method: methods/NAME.md. Both are in docs/ of the source code, and in
# /usr/local/share/doc/semisilo where install.sh has installed this program."""


def study_template(scenario: Scenario = "labels-at-coordinator") -> str:
    """A commented study file to edit, for labels at the coordinator, at the silos or at both."""
    return f'''# What the silos train together. Paths are relative to this folder.
{WHERE_KEYS_ARE_EXPLAINED}
[study]
seed = 1
rounds = 100
start_with = 2                    # silos that must have joined before round 1

[model]
name = "small_cnn"                # or wide_resnet_28_2, resnet18, "timm/resnet18", ...: `coordinator models` lists them
# weights = "resnet18.safetensors"  # start from a file of trained weights
# freeze = "backbone"               # train the head alone; or a list of parts that keep their weights

[data]                            # the images of the coordinator
{_DATA[scenario]}
[augmentation]
policy = "small"
horizontal_flip = false           # true only if a mirrored image means the same
vertical_flip = false

[method]
{_METHOD[scenario]}
[participation]
silos_per_round = "100%"          # or a number
# quorum = 2                      # updates and abstentions that a round needs; default: half of those asked
round_timeout = "30m"
round_limit = "2d"

[wire]
uplink = "auto"
'''


_LABELLED_DATA = '''\
labelled = "data/labelled"        # a folder of class folders, or file.npz, or "digits"
test = "data/test"                # measured after every round
# validation_share = "20%"        # held out of the labels to select the round; default: from 200 labels on
# classes = ["basophil", "eosinophil"]   # order = label; taken from `labelled` when left out, then frozen
image = { size = 28, channels = 3, mean = "labelled", std = "labelled", resize = "fit", standardise = "image" }
# standardise = "image": every image by its own mean and deviation, so that brightness, contrast and colour cast of a
# scanner hardly count. "study" keeps them: for sites with the same scanner, or if they tell classes apart.
'''
_DATA: dict[Scenario, str] = {
    "labels-at-coordinator": _LABELLED_DATA,
    "labels-at-both": _LABELLED_DATA.replace("taken from", "those of silos too; taken from"),
    "labels-at-silo": '''\
test = "data/test"                # measured after every round: class folders, or file.npz; optional
# validation = "data/validation"  # selects the round that is exported; some methods need it
classes = ["basophil", "eosinophil"]   # order = label; silos' class folders are called so
image = { size = 28, channels = 3, mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25], standardise = "image" }
# standardise = "image": every image by its own mean and deviation, so that brightness, contrast and colour cast of a
# scanner hardly count. "study" keeps them: for sites with the same scanner, or if they tell classes apart.
'''}
_METHOD: dict[Scenario, str] = {
    "labels-at-coordinator": '''\
name = "self_training"
scenario = "labels-at-coordinator"
# warm_up_steps = 400             # on the labels, before silos are asked; left out: labels alone, the baseline
coordinator_steps = 40            # on the labels, after every round
local_epochs = 3
''',
    "labels-at-both": '''\
name = "self_training"
scenario = "labels-at-both"
# warm_up_steps = 400             # on the labels here, before silos are asked; left out: labels alone
coordinator_steps = 40            # on the labels here, after every round
local_epochs = 3                  # of a silo over the images that it could label
labelled_steps = 40               # of a silo on its own labels, where it has some, in every round
''',
    "labels-at-silo": '''\
name = "self_training"
scenario = "labels-at-silo"
labelled_steps = 40               # of a silo on its own labels, in every round; more with thousands of labels
# warm_up_rounds = 2              # of labels alone, so that there is a model that can label
local_epochs = 3                  # of a silo over the images that it could label
'''}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _valid_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[2]) < 65536
