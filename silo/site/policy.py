"""What this site permits: `silo.toml`. The hospital decides here what may run and what may leave; nothing else does."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from semisilo.common.config import canonical_json, from_dict, load_toml, tables_from_dict
from semisilo.common.data.form import DicomRules, OnError, PatientRule, Selection
from semisilo.common.data.formats.plugins import installed_formats
from semisilo.common.errors import BadConfiguration, MethodNotPermitted, NotPermitted
from semisilo.common.methods import METHODS, MethodSpec, find_method, is_declared
from semisilo.common.methods.parts.privacy import DEFAULT_DELTA, shares_noise, spends_at_site
from semisilo.common.methods.parts.secure_sum import MASKED_GROUP, MAX_SILOS, MIN_SILOS
from semisilo.common.methods.plugins import plugin_names
from semisilo.common.methods.spec import EPSILON, FROZEN
from semisilo.common.methods.uplink import LOSSY_FORMS, RANDOM_K
from semisilo.common.models.own.model_file import ModelFile, PermittedCode, file_of, names_file
from semisilo.silo.site.working_hours import DAYS, Hours

if TYPE_CHECKING:
    from semisilo.common.methods.contract import ModelSettings, TaskSpec

__all__ = ["DataPolicy", "Limits", "MetricsSettings", "Permit", "Policy", "PrivacyPolicy", "Require",
           "check_code", "check_masked_share", "check_task", "check_update", "load_policy", "names_code",
           "policy_text"]

_GIB = 2**30
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SHA256 = re.compile("[0-9a-f]{64}")


def _all_methods() -> tuple[str, ...]:
    return tuple(sorted(METHODS))


def _all_groups() -> tuple[str, ...]:
    return _groups_of(METHODS.values())


def _all_metrics() -> tuple[str, ...]:
    return _metrics_of(METHODS.values())


def _groups_of(specs: Iterable[MethodSpec]) -> tuple[str, ...]:
    return tuple(sorted({name for spec in specs for name in (*spec.receives, *spec.up)}))


def _metrics_of(specs: Iterable[MethodSpec]) -> tuple[str, ...]:
    return tuple(sorted({name for spec in specs for name in spec.metrics}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Permit:
    """Table [permit]: what may run here and what may leave. What is not listed is refused."""

    methods: tuple[str, ...] = field(default_factory=_all_methods)
    """Methods that may run here; all built-in ones when the line is missing. A plug-in runs only when it is listed."""
    groups: tuple[str, ...] = field(default_factory=_all_groups)
    """Tensor groups that may arrive and leave; "helper_psi/*" stands for numbered groups. Those of the built-in
    methods when the line is missing: what a plug-in has beyond them must be listed, whatever `methods` says."""
    metrics: tuple[str, ...] = field(default_factory=_all_metrics)
    """Numbers that may leave with an update or an abstention; of the built-in methods when the line is missing."""
    factories: tuple[str, ...] = ()
    """Model factories `package.module:name` that may be imported and run; none when the line is missing."""
    model_files: tuple[str, ...] = ()
    """SHA-256, hex, of files that a study may build its network with ("file.py:factory"); they lie in the folder
    model_files beside silo.toml. None when the line is missing; `silo permit-model` adds one."""
    encodings: tuple[str, ...] = LOSSY_FORMS
    """Lossy forms in which an update may be sent; exact ones change nothing and are always permitted."""
    site_evaluation: bool = False
    """Whether the coordinator may be told what global models are worth on the test images of this site: of each class
    how many there are, how many are classified right, and the area under the curve. They are shown here either way."""

    def __post_init__(self) -> None:
        for factory in self.factories:
            if not _FACTORY.fullmatch(factory):
                raise ValueError(f'factories: "{factory}" is not of the form "package.module:name".')
        for digest in self.model_files:
            if not _SHA256.fullmatch(digest):
                raise ValueError(f'model_files: "{digest[:80]}" is not a SHA-256 of 64 lower-case hex digits; silo'
                                 " permit-model FILE writes it.")

    def code(self, folder: Path) -> tuple[PermittedCode, ...]:
        """What may build networks here; `folder` is that of the files."""
        return (*self.factories, *(ModelFile(folder, digest) for digest in self.model_files))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPolicy:
    """Table [data]: where the images are, unless `silo join` says otherwise."""

    source: str = ""
    """A folder, `file.npz`, or a named set; relative paths start at the folder of silo.toml."""
    labelled: str = ""
    """Labelled images that lie elsewhere: class folders, or an .npz with labels. `source` is then unlabelled, all of
    it. For studies with labels at silos; others drop all labels."""
    test: str = ""
    """Labelled images of the study's classes that the global model of each round is evaluated on, and in local-only
    training this silo's own; never trained on."""
    labels: bool = True
    """false: nothing in `source` has a label; its folders are patients or examinations, say, and no classes."""
    dicom: DicomRules = field(default_factory=dict)
    """Which DICOM files count: keyword of a tag -> values of which a file must have one, "" for a file without the tag.
    Files of other formats always count."""
    patient: PatientRule = "auto"
    """How an image's patient is known, so that nobody is both trained and tested on: "auto" (PatientID of a DICOM file,
    the column "patient_id" or the like of a table), "folder" (the one below that of the class), "name" (the file's
    name up to the first "_"), or "none". It stays here."""
    formats: tuple[str, ...] = ()
    """Format plug-ins whose files are read as well, by name. It is code of your own that runs with your rights."""
    on_error: OnError = "stop"
    """What to do with a file that cannot be read: "stop"; "skip" it; or "report": read all, list all that is wrong on
    this machine, then stop."""

    def __post_init__(self) -> None:
        for name in ("labelled", "test"):
            if getattr(self, name) and not self.source:
                raise ValueError(f"{name} without source: name the other images as well, or say {name} to `silo join`.")
        Selection(dicom=self.dicom, patient=self.patient)  # refuses what is no tag

    @property
    def selection(self) -> Selection:
        """Which files count, and how the patients of images are known."""
        return Selection(dicom=self.dicom, patient=self.patient, formats=self.formats)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Table [limits]: the largest transfers of one task, and of a day; what may lie on the disk."""

    max_download_bytes: int = 16 * _GIB
    """Payloads of one task together; a larger task is refused before a byte is fetched."""
    max_upload_bytes: int = 16 * _GIB
    """One update; a larger one is refused here and never sent."""
    bytes_per_day: int = 0
    """What may leave and arrive in a day, both together, as the kernel counts it on the connection; 0: no limit. A task
    whose payloads do not fit into what is left is refused, and this silo is not asked again before the next day."""
    images_on_disk: bool = True
    """Whether decoded images that are too many for memory may lie in a file on the disk of this silo's home while `silo
    join` needs them. The file has no name and is gone with the process. Without it such images are refused."""

    def __post_init__(self) -> None:
        if self.bytes_per_day < 0:
            raise ValueError(f"bytes_per_day = {self.bytes_per_day}: must be at least 0; 0 sets no limit.")
        for name in ("max_download_bytes", "max_upload_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1.")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsSettings:
    """Table [metrics]: numbers about this silo for the site's own Prometheus."""

    listen: str = ""
    """host:port to serve them at, for example "127.0.0.1:9108"; nowhere when it is empty."""

    def __post_init__(self) -> None:
        if self.listen and not _ADDRESS.fullmatch(self.listen):
            raise ValueError(f'listen = "{self.listen}": write host:port, for example "127.0.0.1:9108".')


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyPolicy:
    """Table [privacy]: what this site may spend of its patients' privacy, over all studies together."""

    max_epsilon: float = 0.0
    """A task that would bring the site beyond this epsilon is refused before training, and so is every study without
    differential privacy of single images; 0: no limit. What is spent is counted either way, and never comes back."""
    delta: float = DEFAULT_DELTA
    """The delta at which epsilon is counted here; well below one over the number of images."""

    def __post_init__(self) -> None:
        if not (self.max_epsilon >= 0 and math.isfinite(self.max_epsilon)):
            raise ValueError(f"max_epsilon = {self.max_epsilon}: must be above 0 and finite, or 0 for no limit.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta}: must be above 0 and below 1.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Require:
    """Table [require]: what a study must have, or no task of it is done here."""

    secure_aggregation: bool = False
    """Whether updates leave only behind masks that vanish in the sum of a round, so that nobody sees this site's
    update, the coordinator included."""
    min_silos: int = MIN_SILOS
    """Silos that this one trusts, itself included, that a sum must have: see [peers]. At least 3."""
    pinned_peers: bool = False
    """Whether only silos that stand in [peers] are trusted. Without it a silo is trusted as it was first seen."""
    no_helpers: bool = False
    """Whether studies are refused in which this silo's weights go to other silos by themselves (FedMatch's helpers)."""
    approval: bool = False
    """Whether a person here must approve a study before its first task, and again when it changes: `silo approve`.
    Without it the silo signs the cards of studies that its policy permits."""

    def __post_init__(self) -> None:
        if not MIN_SILOS <= self.min_silos <= MAX_SILOS:
            raise ValueError(f"min_silos = {self.min_silos}: must be between {MIN_SILOS} and {MAX_SILOS}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """A whole silo.toml."""

    permit: Permit = field(default_factory=Permit)
    data: DataPolicy = field(default_factory=DataPolicy)
    limits: Limits = field(default_factory=Limits)
    hours: Hours = field(default_factory=Hours)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    privacy: PrivacyPolicy = field(default_factory=PrivacyPolicy)
    require: Require = field(default_factory=Require)
    peers: dict[str, str] = field(default_factory=dict)
    """Table [peers]: silo -> fingerprint of the key that it takes part in secure sums with; `silo peers` shows them."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that are installed here and that this site permits, sorted."""
        listed = set(self.permit.methods)
        return tuple(sorted(listed if listed <= METHODS.keys() else listed & {*METHODS, *plugin_names()}))


def load_policy(path: Path) -> Policy:
    """Reads and checks silo.toml; the defaults when there is no such file.

    Who serves a home holds that it is there: `SiloHome.require_policy`.

    Raises: BadConfiguration, naming file, table, key and the nearest valid key; also for a method that is neither built
        in nor installed, since a misspelt permission would otherwise refuse every task, and for a listed plug-in that
        cannot be used.
    """
    if not path.exists():
        if path.is_symlink():  # as of a share that is away: the defaults would permit what it forbids
            raise BadConfiguration(f"{path}: a link to a file that is not there.",
                                   remedy="Bring the file back, or put one in the link's place.")
        return Policy()
    tables = dict(_with_budget(load_toml(path), path))
    parts = tables_from_dict(Policy, tables, where=str(path))
    rest = {name: table for name, table in tables.items() if name not in parts}
    policy = replace(from_dict(Policy, rest, where=str(path)), **parts)
    plugins = [name for name in policy.permit.methods if name not in METHODS]
    installed = plugin_names() if plugins else ()
    specs = [*METHODS.values(), *(find_method(name) for name in plugins if name in installed)]
    known: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
        ("methods", policy.permit.methods, (*_all_methods(), *installed)),
        ("groups", policy.permit.groups, _groups_of(specs)), ("metrics", policy.permit.metrics, _metrics_of(specs)),
        ("encodings", policy.permit.encodings, LOSSY_FORMS))
    for key, listed, valid in known:
        for name in listed:
            if name not in valid:
                plugin = "If it is a plug-in's, install its package on this machine. " if key == "methods" else ""
                raise BadConfiguration(f"{path}: [permit] {key}: there is no '{name}' in this version.",
                                       remedy=f"{plugin}Known: {', '.join(valid)}.")
    if policy.peers:
        from semisilo.silo.secure_aggregation.trust import parse_fingerprint  # late: `silo status` is quick without it

        for name, text in policy.peers.items():
            parse_fingerprint(text, where=f"{path}: [peers] {name}")
    for name in policy.data.formats:
        if name not in installed_formats():
            raise BadConfiguration(f"{path}: [data] formats: there is no format plug-in '{name}' here.",
                                   remedy=f"Installed: {', '.join(installed_formats()) or 'none'}.")
    return policy


def _with_budget(tables: Mapping[str, object], path: Path) -> Mapping[str, object]:
    """A budget may stand in [require], too, beside what else a study must have; none in [privacy], 0, says nothing
    against it. Raises: BadConfiguration for two of them."""
    require, privacy = tables.get("require"), tables.get("privacy", {})
    if not isinstance(require, dict) or "max_epsilon" not in require or not isinstance(privacy, dict):
        return tables
    if privacy.get("max_epsilon") and privacy["max_epsilon"] != require["max_epsilon"]:
        raise BadConfiguration(f"{path}: max_epsilon is set in [privacy] and, with another value, in [require].",
                               remedy="Leave one of the two out; they mean the same.")
    rest = {name: value for name, value in require.items() if name != "max_epsilon"}
    return {**tables, "require": rest, "privacy": {**privacy, "max_epsilon": require["max_epsilon"]}}


@functools.lru_cache(maxsize=16)
def _num_helpers(kind: type, settings: str, method: str) -> int:
    """The setting of that name; 0 for a method that has none. Kept: the settings of a study are checked with every
    task, and seldom change.

    Args:
        kind: the dataclass of the method's settings.
        settings: canonical JSON.
        method: its name, for the error.
    Raises: BadConfiguration for settings that do not fit the method.
    """
    return int(getattr(from_dict(kind, json.loads(settings), where=f"settings of {method}"), "num_helpers", 0))


def check_task(policy: Policy, task: TaskSpec) -> MethodSpec:
    """Whether this site permits a task, decided before anything is fetched.

    Returns: the spec of the task's method.
    Raises: MethodNotPermitted or NotPermitted, naming what is missing in silo.toml; UnknownName for a method that is
        not installed here; BadConfiguration for settings that do not fit the method, or a plug-in that cannot be used.
    """
    if task.method not in policy.permit.methods:
        raise MethodNotPermitted(f"This silo does not permit the method '{task.method}'.",
                                 remedy=f"To allow it, add it to [permit] methods in silo.toml of '{task.silo}'.")
    spec = find_method(task.method)
    for direction, groups in (("receive", spec.down), ("send", spec.up)):
        _require("tensor group", direction, groups, policy.permit.groups, task)
    _require("metric", "send", spec.metrics, policy.permit.metrics, task)
    for reference in task.payloads:
        for group in reference.groups:
            if not is_declared(group, spec.receives):
                raise NotPermitted(f"The task sends the tensor group '{group}', which {task.method} does not declare.")
            if group == FROZEN:
                _require("tensor group", "receive", (group,), policy.permit.groups, task)
    check_code(policy.permit, task.model)
    for form in task.uplink.lossy:
        if form not in policy.permit.encodings:
            raise NotPermitted(f"The study wants updates in the lossy form '{form}', which this silo does not permit.",
                               remedy=f"To allow it, add it to [permit] encodings in silo.toml of '{task.silo}'.")
    if policy.require.secure_aggregation and not task.secure:
        raise NotPermitted("This site requires secure aggregation, and the study sends updates in the clear.",
                           remedy=f"[require] secure_aggregation in silo.toml of '{task.silo}' says so; the study has"
                                  " [privacy] secure_aggregation.")
    if policy.privacy.max_epsilon and not spends_at_site(task.dp, secure=bool(task.secure)):
        has = "has no differential privacy" if task.dp is None else "leaves clipping and noise to the coordinator"
        raise NotPermitted(f"This silo requires differential privacy of single images, [privacy] max_epsilon ="
                           f" {policy.privacy.max_epsilon:g} in silo.toml; the study {has}.",
                           remedy='The study needs [privacy.dp] unit = "example", or secure aggregation as well.')
    if policy.privacy.max_epsilon and shares_noise(task.dp, secure=bool(task.secure)) and not (
            policy.peers or policy.require.pinned_peers or (task.dp is not None and task.dp.honest_silos == 1)):
        raise NotPermitted("What covers this site's images in this study is the noise of several silos together, and"
                           " nobody here has compared whose silos these are: the coordinator's own would add none.",
                           remedy="Pin them in [peers] of silo.toml, as `silo peers` shows them; or the study has"
                                  ' [privacy.dp] unit = "example" without honest_silos.')
    size = sum(reference.size_bytes for reference in task.payloads)
    if size > policy.limits.max_download_bytes:
        raise NotPermitted(f"The task's payloads have {size} bytes; this silo takes at most "
                           f"{policy.limits.max_download_bytes}.",
                           remedy="Raise [limits] max_download_bytes in silo.toml.")
    num_helpers = _num_helpers(spec.settings, canonical_json(task.settings), task.method)
    if policy.require.no_helpers and num_helpers:
        raise NotPermitted(f"This site does not have its weights handed to other silos, and the study has"
                           f" [method] num_helpers = {num_helpers}.",
                           remedy=f"[require] no_helpers in silo.toml of '{task.silo}' says so; the study needs"
                                  " num_helpers = 0.")
    return spec


def names_code(model: ModelSettings) -> bool:
    """Whether a network is built by code that a site must permit."""
    return names_file(model.name) or ":" in model.name


def check_code(permit: Permit, model: ModelSettings) -> None:
    """Whether this site permits the code that a network is built by, if it is. Raises: NotPermitted, naming it."""
    if not names_code(model):
        return
    if file := file_of(model.name):
        if model.factory_sha256 not in permit.model_files:
            raise NotPermitted(
                f"This silo does not permit the file '{file}' (SHA-256"
                f" {model.factory_sha256 or 'not said'}), which the study builds its network with.",
                remedy="It is code: have the coordinator's operator give you the file, read it, then run: silo"
                       f" permit-model {file}.")
    elif model.name not in permit.factories:
        raise NotPermitted(f"This silo does not permit the model factory '{model.name}'.",
                           remedy="It runs code: install and read it, then add it to [permit] factories in silo.toml.")


def check_update(policy: Policy, spec: MethodSpec, *, groups: Iterable[str], metrics: Mapping[str, float],
                 size_bytes: int, masked: bool = False) -> None:
    """Whether an outcome may leave, decided on what it really holds just before it is declared.

    Args:
        masked: whether it goes into a secure sum: then it may hold words behind masks and nothing else.
    Raises: NotPermitted, naming the first group or metric that the method does not declare or this site does not
        permit, or the size.
    """
    for group in groups:
        if masked != (group == MASKED_GROUP):
            raise NotPermitted(f"The update holds the tensor group '{group}', and this study's updates are"
                               f" {'' if masked else 'not '}to be masked.")
        if not masked and not (is_declared(group, spec.up) and is_declared(group, policy.permit.groups)):
            raise NotPermitted(f"The update holds the tensor group '{group}', which may not leave this silo.")
    for metric in metrics:
        permitted = metric == EPSILON or is_declared(metric, policy.permit.metrics)
        if not (is_declared(metric, spec.tells) and permitted):
            raise NotPermitted(f"The update holds the metric '{metric}', which may not leave this silo.")
    if size_bytes > policy.limits.max_upload_bytes:
        raise NotPermitted(f"The update has {size_bytes} bytes; this silo sends at most "
                           f"{policy.limits.max_upload_bytes}.",
                           remedy="Raise [limits] max_upload_bytes in silo.toml.")


def check_masked_share(policy: Policy, share: float) -> None:
    """Whether so large a share of an update may go behind masks.

    Raises: NotPermitted for less than 1, a random k of its values, where that form is not permitted.
    """
    if share < 1 and RANDOM_K not in policy.permit.encodings:
        raise NotPermitted("The study wants a random share of every update, which this silo does not permit.",
                           remedy=f'To allow it, add "{RANDOM_K}" to [permit] encodings in silo.toml.')


def policy_text() -> str:
    """A commented silo.toml that holds this version's defaults, for `silo enroll` to write."""
    return f"""\
# What this site permits. `silo join` reads this file when it starts. The silo refuses what is not listed here, and the
# coordinator's operator sees the refusal.

[permit]
# Methods that may run here. A method that you have installed as a plug-in is code that runs with your permissions. It
# runs only if it is listed here. Groups and metrics that it uses beyond those below must be listed as well.
methods = {_list(_all_methods())}
# Tensor groups that may arrive and leave: weights and statistics of the network, never images. "frozen" contains parts
# of the network that are not trained; it only ever arrives.
groups = {_list(_all_groups())}
# Numbers about the training that may leave with an update.
metrics = {_list(_all_metrics())}
# Your own code that a study may use to build its network, "package.module:name". It runs with your permissions.
factories = []
# Files that a study may build its network with, by their SHA-256; `silo permit-model FILE` adds one.
model_files = []
# Lossy encodings that a study may request for updates, to send fewer bytes. Exact encodings are always permitted.
encodings = {_list(LOSSY_FORMS)}
# Whether to send the coordinator the accuracy of its models on the test images of this site, as counts by class. `silo
# status` shows these numbers here in any case.
site_evaluation = {str(Permit().site_evaluation).lower()}

[data]
# The images, unless `silo join --data` gives others: a folder, "file.npz", or a named set. While this names none, a
# service takes /scans. Relative paths start at the folder of this file.
# source = "/scans"
# If some images have labels: put them into the folders labelled/CLASS and unlabelled, or name the labelled ones
# separately; all of `source` is then unlabelled. A study with labels at the coordinator alone ignores the labels here.
# labelled = "/scans-with-a-diagnosis"
# Labelled images of the study's classes to evaluate the global model. They are never used for training.
# test = "/scans-for-testing"
# false: no image in `source` has a label, for example because its folders are patients and not classes.
labels = true
# Which DICOM files to use, by their tags; "" stands for a file without the tag.
# dicom = {{ Modality = ["CR", "DX"], ViewPosition = ["PA", "AP"], BurnedInAnnotation = ["NO", ""] }}
# How to identify the patient of an image, so that no patient is in both training and test images: "auto" (PatientID of
# DICOM files, a column of a table), "folder" (the one below that of the class), "name" (the file's name up to "_"), or
# "none". The identity stays here.
patient = "auto"
# Formats of files that an installed package reads, by the names of its plug-ins.
formats = []
# What to do with a file that cannot be read: "stop", "skip" (and say so), or "report" (read everything, list all
# problems, stop).
on_error = "stop"

[limits]
# The largest task that is accepted and the largest update that is sent, in bytes.
max_download_bytes = {Limits().max_download_bytes}
max_upload_bytes = {Limits().max_upload_bytes}
# Bytes that may leave and arrive in a day, in total; 0 for no limit.
bytes_per_day = {Limits().bytes_per_day}
# Whether decoded images that are too many for memory may lie in a file on this disk while `silo join` runs. Otherwise
# such images are refused.
images_on_disk = {str(Limits().images_on_disk).lower()}

[privacy]
# The privacy budget of this site's patients over all studies, as the epsilon of differential privacy. A task that would
# exceed it is refused, and so is every study without differential privacy. 0: no limit.
max_epsilon = 0.0
# The delta for which epsilon is computed; well below one over the number of images.
delta = {DEFAULT_DELTA:g}

[hours]
# When tasks are accepted, for example train = ["20:00-06:00"]; if the list is empty, at any time.
train = []
# Days on which such a span may start.
days = {_list(DAYS)}
# Time zone, for example "Europe/Berlin"; if empty, that of this machine.
zone = ""
# What to do with a running task when the hours end: "finish" it, or "abort" it.
at_end = "finish"

[require]
# What a study must have; otherwise its tasks are refused. Secure aggregation: updates leave only with masks that cancel
# in the sum of a round, so that nobody sees this site's update, including the coordinator.
secure_aggregation = {str(Require().secure_aggregation).lower()}
# Number of trusted silos, including this one, that such a sum must have.
min_silos = {Require().min_silos}
# Whether only the silos in [peers] are trusted; otherwise each is trusted with the key that was first seen here. A
# coordinator could invent silos.
pinned_peers = {str(Require().pinned_peers).lower()}
# Whether to refuse studies that send this silo's individual weights to other silos (helpers of FedMatch).
no_helpers = {str(Require().no_helpers).lower()}
# Whether a person here must approve a study before its first task, and again when it changes: silo approve STUDY.
approval = {str(Require().approval).lower()}

# Silos that this one knows, by the fingerprint that `silo peers` shows at both sites: read it to each other.
# [peers]
# hospital-b = "..."

[metrics]
# Address of this silo's metrics for this site's own Prometheus, for example "127.0.0.1:9108"; "": none.
listen = ""
"""


def _require(what: str, direction: str, wanted: Iterable[str], permitted: tuple[str, ...], task: TaskSpec) -> None:
    for name in wanted:
        if name not in permitted:
            raise NotPermitted(
                f"{task.method} needs to {direction} the {what} '{name}', which this silo does not permit.",
                remedy=f"To allow it, add it to [permit] {what.split()[-1]}s in silo.toml of '{task.silo}'.")


def _list(names: tuple[str, ...]) -> str:
    line = ", ".join(f'"{name}"' for name in names)
    return f"[{line}]"
