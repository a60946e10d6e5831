"""The silo's folder: where each thing lies, the lock of the one agent, the remembered source and the status file.

```
silo.toml            policy                     identity/            key and certificates
join.json            source of the last join    memory/              what trainers keep, the pending update
status.json          for `silo status`          cache/               payloads by digest
disclosures.jsonl    what left this site        outgoing/            updates on their way
secure/              key and secrets of secure sums
heads.jsonl          heads of the coordinator's audit trail that this silo has seen
day.json             bytes carried today        rounds.json          what the last tasks took
days.json            bytes of the days before   asked.jsonl          what the coordinator has asked
day.models.json      what `silo model` has carried of them; days.models.json likewise
page.token           who may approve and decline on this silo's page
torchrun.token       what the processes of this silo know each other by, where torchrun starts several
evaluations.json     what global models are worth on this site's test images
model_files/         code that this site permits to build networks
models/              models of studies that are over, while they arrive
privacy/             what was spent of the privacy budget, and the secret of the noise
study_images.json    what the images of the current study are like
study_features.json  how far this site's images are from them in the network's features
```

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semisilo.common.config import ABSENT_AT_DEFAULT, from_dict, to_dict
from semisilo.common.data.form import DicomRules, OnError, PatientRule, Selection
from semisilo.common.data.formats.registry import DIGITS, NPZ, has_suffix
from semisilo.common.errors import BadConfiguration, BadData, SemisiloError
from semisilo.common.storage.durable import write_durably
from semisilo.common.storage.lock_file import is_locked, lock_soon
from semisilo.common.storage.shown_file import ShownFile

__all__ = ["AgentStatus", "AlreadyRunning", "JoinChoice", "SiloHome", "StatusFile", "check_apart", "default_home",
           "home_option", "resolve_source"]


_AGENT = "silo join"


class AlreadyRunning(SemisiloError):
    """Another `silo join`, or a command that must be alone, works in the same home."""

    code = "ALREADY_RUNNING"


@dataclass(frozen=True, slots=True)
class SiloHome:
    """The paths in a silo's folder."""

    folder: Path

    @property
    def policy(self) -> Path:
        """silo.toml."""
        return self.folder / "silo.toml"

    def require_policy(self) -> None:
        """Holds that silo.toml is there and says something, since the defaults may permit what it forbids.

        Raises: BadConfiguration; OSError when it cannot be looked at.
        """
        if not self.policy.exists():
            raise BadConfiguration(f"{self.policy}: not there, so nothing says what this site permits.",
                                   remedy=f"Bring it back; {_FOR_DEFAULTS}")
        if not self.policy.stat().st_size:  # as a full disk, or a mount that is gone, has left it
            raise BadConfiguration(f"{self.policy}: empty, so nothing says what this site permits.",
                                   remedy=f"Write it again; {_FOR_DEFAULTS}")

    @property
    def cache(self) -> Path:
        """Payloads by digest."""
        return self.folder / "cache"

    @property
    def outgoing(self) -> Path:
        """Updates that are written or wait to be sent."""
        return self.folder / "outgoing"

    @property
    def images(self) -> Path:
        """Decoded images that are too many for memory, in files without a name."""
        return self.folder / "images"

    @property
    def memory(self) -> Path:
        """What trainers keep between rounds, and the pending update."""
        return self.folder / "memory"

    @property
    def secure(self) -> Path:
        """Key and secrets of secure sums."""
        return self.folder / "secure"

    @property
    def cards(self) -> Path:
        """Cards of studies, and what became of them."""
        return self.folder / "cards"

    @property
    def status(self) -> Path:
        """What `silo status` shows."""
        return self.folder / "status.json"

    @property
    def day(self) -> Path:
        """How many bytes were carried today."""
        return self.folder / "day.json"

    @property
    def day_of_models(self) -> Path:
        """What `silo model` has carried today, which runs beside the agent."""
        return self.folder / "day.models.json"

    @property
    def days_of_models(self) -> Path:
        """And on the days before."""
        return self.folder / "days.models.json"

    @property
    def days(self) -> Path:
        """How many bytes were carried on the days before."""
        return self.folder / "days.json"

    @property
    def asked(self) -> Path:
        """What the coordinator has asked."""
        return self.folder / "asked.jsonl"

    @property
    def page_token(self) -> Path:
        """Who may approve and decline on this silo's page."""
        return self.folder / "page.token"

    @property
    def torchrun_token(self) -> Path:
        """What the processes of this silo know each other by, where torchrun starts several."""
        return self.folder / "torchrun.token"

    @property
    def rounds(self) -> Path:
        """What the last tasks took, for forecasts."""
        return self.folder / "rounds.json"

    @property
    def evaluations(self) -> Path:
        """What global models are worth on this site's test images."""
        return self.folder / "evaluations.json"

    @property
    def model_files(self) -> Path:
        """Files that may build networks here, as far as silo.toml lists their digests."""
        return self.folder / "model_files"

    @property
    def models(self) -> Path:
        """Models of studies that are over, while `silo model` fetches them."""
        return self.folder / "models"

    @property
    def evaluated_models(self) -> Path:
        """The same while the agent fetches and evaluates them: apart, for both may do so at once."""
        return self.models / "evaluated"

    @property
    def study_images(self) -> Path:
        """What the images of the current study are like."""
        return self.folder / "study_images.json"

    @property
    def study_features(self) -> Path:
        """How far this site's images are from the study's in the network's features."""
        return self.folder / "study_features.json"

    @property
    def stop_evaluation(self) -> Path:
        """Is there while a task waits for an evaluation to end."""
        return self.folder / "evaluation.stop"

    @property
    def threads(self) -> Path:
        """Which numbers of threads were measured to be fastest."""
        return self.folder / "threads.json"

    @property
    def choice(self) -> Path:
        """The source of the last `silo join`."""
        return self.folder / "join.json"

    def with_temporary_files(self) -> tuple[Path, ...]:
        """The folders in which files are written under another name first."""
        stores = (self.cache, self.outgoing, self.evaluated_models)
        return (self.folder, self.folder / "identity", self.memory, *stores, *(each / "incoming" for each in stores))

    @property
    def privacy(self) -> Path:
        """What was spent of the privacy budget, and the secret that noise follows from."""
        return self.folder / "privacy"

    @property
    def disclosures(self) -> Path:
        """What left this site."""
        return self.folder / "disclosures.jsonl"

    @property
    def heads(self) -> Path:
        """Heads of the coordinator's audit trail that this silo has seen."""
        return self.folder / "heads.jsonl"

    @contextmanager
    def lock(self, command: str = _AGENT, *, remedy: str = "Stop it first, or give this one a --home of its own."
             ) -> Iterator[None]:
        """Held while an agent works here; the kernel lets go of it when the process ends, however it ends.

        Args:
            command: that holds it, for whoever else wants it.
            remedy: where an agent holds it already.
        Raises: AlreadyRunning, naming the command and the process that hold it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not lock_soon(handle):
                process, _, other = os.read(handle, 60).decode(errors="replace").strip().partition(" ")
                who = f" (process {process})" if process.isdigit() else ""
                if other in ("", _AGENT):
                    raise AlreadyRunning(f"Another `{_AGENT}`{who} is running in {self.folder}.", remedy=remedy)
                raise AlreadyRunning(f"`{other}`{who} is running in {self.folder}.", remedy="Wait until it has ended.")
            with suppress(OSError):  # a full disk: the lock holds all the same, and what is next names its file
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()} {command}\n".encode(), 0)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def stopped(self, command: str) -> Iterator[None]:
        """Holds the lock for a command that changes what a running agent stands on.

        Args:
            command: what to give again once the agent is stopped.
        Raises: AlreadyRunning, with the way to stop the agent.
        """
        with self.lock(" ".join(command.split()[:2]),
                       remedy=f"Stop it first, with Ctrl-C or `systemctl stop`, then: {command}"):
            yield

    def is_running(self) -> bool:
        """Whether an agent holds the lock."""
        return is_locked(self.folder / "agent.lock")

    def agent_began(self) -> float | None:
        """When the agent that runs, or the last that ran, has begun, Unix seconds; None when none ever did."""
        try:
            return (self.folder / "agent.lock").stat().st_mtime
        except OSError:
            return None


def default_home() -> Path:
    """$SEMISILO_HOME, or ~/.semisilo."""
    return Path(os.environ.get("SEMISILO_HOME") or Path.home() / ".semisilo")


def home_option(folder: Path) -> str:
    """What a command needs to work in this folder, " --home DIR" as a shell reads it; empty for the default one."""
    default = default_home().expanduser().absolute()
    return "" if folder.absolute() == default else f" --home {shlex.quote(str(folder))}"


# The remembered source ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinChoice:
    """Which images a `silo join` works on."""

    source: str
    labelled: str = ""
    """Labelled images apart from `source`, whose images are then all unlabelled."""
    test: str = ""
    """Labelled images that the silo's own model is measured on; never trained on."""
    on_error: OnError = "stop"
    use_labels: bool = True
    """False: all images of `source` are unlabelled, whatever folders they are in."""
    dicom: DicomRules = field(default_factory=dict)
    patient: PatientRule = "auto"
    formats: tuple[str, ...] = field(default=(), metadata=ABSENT_AT_DEFAULT)

    @property
    def selection(self) -> Selection:
        """Which files count, and how the patients of images are known."""
        return Selection(dicom=self.dicom, patient=self.patient, formats=self.formats)

    @property
    def sources(self) -> tuple[str, ...]:
        """All that are named."""
        return tuple(each for each in (self.source, self.labelled, self.test) if each)

    def save(self, path: Path) -> None:
        """Remembers the choice for a later `silo join` without --data."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, (json.dumps(asdict(self)) + "\n").encode())

    @staticmethod
    def load(path: Path) -> JoinChoice | None:
        """The remembered choice; None when there is none or it is damaged."""
        try:
            return from_dict(JoinChoice, json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, BadConfiguration):
            return None


def resolve_source(source: str, *, base: Path) -> str:
    """The source with a relative path made absolute, so that it means the same from another folder.

    Also of what is not there: left relative, it would be looked for in the folder in which a command is given.

    Args:
        source: a path, perhaps followed by `#part`, or the digits, perhaps a part of them: "digits#1/3".
        base: folder that a relative path starts at.
    """
    name, mark, part = source.partition("#")
    path = base / Path(name).expanduser()
    return source if name == DIGITS and not path.exists() else f"{path.resolve()}{mark}{part}"


def check_apart(choice: JoinChoice) -> None:
    """Whether the sources of a choice have no image in common: trained on twice, or measured on what was trained on.

    Raises: BadData, naming the two.
    """
    for index, second in enumerate(choice.sources):
        for first in choice.sources[:index]:
            (one, _, part), (other, _, other_part) = first.partition("#"), second.partition("#")
            if first == second or (one == other and not (part and other_part)) or _inside(one, other) \
                    or _inside(other, one):
                raise BadData(f"{first} and {second} hold the same images.",
                              remedy="Name folders or files apart; or put the folders 'labelled' and 'unlabelled' into "
                                     "one and name that one alone.")


def _inside(inner: str, outer: str) -> bool:
    """Whether images of the one lie within the other; an .npz in a folder of images is not read with it."""
    return Path(outer) != Path(inner) and Path(inner).is_relative_to(outer) and not has_suffix(inner, NPZ)


# The status file ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus:
    """What the agent last wrote about itself. Times are seconds since 1970, 0 for never."""

    state: str = "not started"
    """What it was doing, a line for a person."""
    pid: int = 0
    """Its process, 0 when it has ended."""
    updated_unix: float = 0.0
    """When this was written."""
    last_contact_unix: float = 0.0
    """When the coordinator last answered."""
    study: str = ""
    """The study that this silo is taking part in; empty before the first and after its end."""
    round: int = 0
    rounds: int = 0
    stage: str = ""
    """Of the work that is under way: "downloading", "training", "uploading", ...; empty when there is none."""
    stage_fraction: float = 0.0
    """How far the stage is, 0 to 1."""
    stage_text: str = ""
    """The same in words, such as "epoch 2 of 5"."""
    last_task: str = ""
    """Identifier of the last task."""
    last_outcome: str = ""
    """What became of it, a line for a person."""
    tasks_answered: int = 0
    """Updates, abstentions and refusals that the coordinator has acknowledged, since enrolment."""
    labelled_count: int = 0
    unlabelled_count: int = 0
    sent_bytes: int = 0
    """On the wire, TLS included, since enrolment."""
    received_bytes: int = 0
    bytes_estimated: bool = False
    """Whether the two counts are estimates, for want of the kernel's."""
    last_error: str = ""
    """The last trouble that has not passed; empty when all is well."""
    refusals: int = 0
    """How many tasks in a row were refused, without those outside the hours and beyond the budget; since the start of
    the agent."""
    refusal_code: str = ""
    """Of the last of them."""
    last_refusal: str = ""
    """Why, a line for the person here: it may name files."""
    warning: str = ""
    """What the coordinator says that somebody here should know; empty when there is nothing."""
    set_aside: str = ""
    """What the coordinator says while it does not ask this silo until further notice; empty when it does."""
    final_of: str = ""
    """The study that is over and whose model is still to be fetched, to evaluate it here; empty: none."""
    final_from_unix: float = 0.0
    """Not before this."""

    @property
    def works_on(self) -> str | None:
        """`study`; None where nothing was ever written, so that nobody knows."""
        return self.study if self.updated_unix else None


_FOR_DEFAULTS = "a file with a comment alone (# the defaults) stands for the defaults."
_LINES = json.JSONEncoder(ensure_ascii=False, separators=(",\n ", ": "))


class StatusFile:
    """The status on disk, replaced atomically; a full disk takes it as well.

    A power failure may lose the last state of it: nothing depends on it but what a person sees, and whether the last
    model of a study is evaluated here, so it is not worth a disk flush every few seconds.
    """

    def __init__(self, path: Path) -> None:
        self._file = ShownFile(path, temporary=path.with_name(f"{path.name}.{os.getpid()}.tmp"))
        self.now = self.load(path)
        self._plain: dict[str, Any] = to_dict(self.now)

    @staticmethod
    def load(path: Path) -> AgentStatus:
        """What is written; the defaults when there is nothing or it is damaged."""
        try:
            return from_dict(AgentStatus, json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, BadConfiguration):
            return AgentStatus()

    def update(self, *, now_unix: float, **changes: Any) -> None:
        """Changes fields of the status by name and writes it."""
        self._plain |= changes | {"updated_unix": now_unix}
        self.now = AgentStatus(**self._plain)
        # As `indent=1` writes it, for which Python has no quick way: a line for each field, and no field has parts.
        fields = _LINES.encode(self._plain)
        self._file.write(f"{{\n {fields[1:-1]}\n}}\n")
