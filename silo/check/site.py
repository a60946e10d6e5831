"""`silo check`, this machine: home, identity, silo.toml, images, disk, memory and accelerator. Without torch.

Tests: tests/silo/check/test_report.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from semisilo.common.config import to_dict
from semisilo.common.errors import SemisiloError, UsageError
from semisilo.common.methods.parts.label_task import is_multi_label
from semisilo.common.text.describe import counted, describe_bytes
from semisilo.silo.check.finding import Finding, bad
from semisilo.silo.site.home import JoinChoice, SiloHome, home_option
from semisilo.silo.site.identity_store import Identity, has_identity, load_identity
from semisilo.silo.site.policy import Policy, load_policy

if TYPE_CHECKING:
    from semisilo.silo.check.needs import StudyNeeds

__all__ = ["look_at_disk", "look_at_gpu", "look_at_home", "look_at_images", "look_at_memory", "look_at_policy"]

_DAY = 86400.0
_TORCH_BYTES = 700 * 10**6
"""What the compute process takes before it has an image: libraries and their caches."""
_MODELS_ON_DISK = 6
"""Models that lie in the home at a time, at most: what came, what it becomes, the update, memory before and after."""
_MODELS_IN_MEMORY = 8
"""Weights, gradients, momentum, the received ones and what is made of them; without the activations of a batch."""
_FROZEN_IN_MEMORY = 2
"""What came, and what the network has of it."""
_SPARE_BYTES = 2**30
_GPU_SECONDS = 3.0
_HEADERS = 400
_HEADER_CPU_SECONDS, _HEADER_SECONDS = 0.25, 2.0
"""`silo check` opens no more files than that, and none after so long."""
_NAMED_FILES = 5


def look_at_home(folder: Path, now: float) -> tuple[list[Finding], Identity | None]:
    """The folder, the key and the certificate."""
    if not folder.is_dir() or not has_identity(folder):
        return [bad("identity", UsageError(
            f"{folder} holds no identity of a silo.",
            remedy=f"Enrol first: silo enroll LINE{home_option(folder)}, with the line from the coordinator's "
                   "operator."))], None
    findings = []
    if not os.access(folder, os.W_OK | os.X_OK):
        findings.append(Finding(what="home", state="bad", text=f"{folder} cannot be written.",
                                remedy="The user that runs `silo join` needs the right to."))
    else:
        findings.append(Finding(what="home", state="ok", text=str(folder)))
    try:
        identity = load_identity(folder)
    except SemisiloError as error:
        return [*findings, bad("identity", error)], None
    except OSError as error:
        return [*findings, Finding(what="identity", state="bad", text=f"{error.filename}: {error.strerror}.",
                                   remedy="The user that runs `silo join` must be able to read it.")], None
    findings.append(_key(identity))
    findings.append(_certificate(identity, now))
    return findings, identity


def _key(identity: Identity) -> Finding:
    path = identity.folder / "key.pem"
    mode = path.stat().st_mode & 0o777
    who = f"silo '{identity.silo}' of federation '{identity.federation}'"
    if mode & 0o077:
        return Finding(what="identity", state="warning", text=f"{who}; others than its owner may read the private key "
                                                              f"(mode {mode:04o}).",
                       remedy=f"Run: chmod 600 {path}", facts={"key_mode": f"{mode:04o}"})
    return Finding(what="identity", state="ok", text=f"{who}; private key with mode {mode:04o}",
                   facts={"silo": identity.silo, "federation": identity.federation, "key_mode": f"{mode:04o}"})


def _certificate(identity: Identity, now: float) -> Finding:
    from semisilo.common.identity.certificates import utc_text

    days = (identity.not_after_unix - now) / _DAY
    facts = {"days_left": round(days, 2), "until_unix": identity.not_after_unix,
             "renews_from_unix": identity.about.renew_unix}
    until = utc_text(identity.not_after_unix)
    invite = f"Ask the coordinator's operator to run: coordinator invite {identity.silo}"
    if days <= 0:
        return Finding(what="certificate", state="bad", text=f"It ended on {until}; this machine's clock says "
                                                             f"{utc_text(now)}.", remedy=invite, facts=facts)
    if now < identity.not_before_unix:
        return Finding(what="certificate", state="bad", facts=facts,
                       text=f"It begins on {utc_text(identity.not_before_unix)}, but this machine's clock says "
                            f"{utc_text(now)}.", remedy="Set this machine's clock, for example with NTP.")
    text = f"until {until} ({days:.0f} days left)" if days >= 2 else f"until {until} ({days * 24:.1f} hours left)"
    if now > identity.about.renew_unix:
        return Finding(what="certificate", state="warning", text=f"{text}; it could have been renewed already.",
                       remedy="Run `silo join` while the coordinator can be reached: it renews the certificate.",
                       facts=facts)
    return Finding(what="certificate", state="ok", text=f"{text}, renews from {utc_text(identity.about.renew_unix)}",
                   facts=facts)


def look_at_policy(home: SiloHome) -> tuple[Policy | None, Finding]:
    """silo.toml."""
    try:
        enrolled = has_identity(home.folder)
        if enrolled:
            home.require_policy()
        policy = load_policy(home.policy)
    except SemisiloError as error:
        return None, bad("silo.toml", error)
    if not enrolled and not home.policy.exists():
        return policy, Finding(what="silo.toml", state="warning", text=f"{home.policy} is not there yet.",
                               remedy="`silo enroll` writes one with the defaults, for you to read.")
    permitted = ", ".join((counted(len(policy.methods), "method"), counted(len(policy.permit.groups), "tensor group"),
                           counted(len(policy.permit.metrics), "metric")))
    return policy, Finding(what="silo.toml", state="ok", text=f"{home.policy} is valid: {permitted} permitted")


def look_at_images(home: SiloHome, policy: Policy, needs: StudyNeeds | None = None
                   ) -> tuple[Finding, tuple[int, int]]:
    """The images of silo.toml or of the last join, by names and headers; (finding, (labelled, unlabelled)).

    Args:
        needs: the current study, whose classes folders and labels must be called like.
    """
    from semisilo.silo.site.images_choice import choose_data

    try:
        choice = choose_data(home, policy.data, data=None, on_error=None)
    except UsageError:
        return Finding(what="images", state="warning", text="No images are named yet.",
                       remedy="Name them in [data] source of silo.toml, or with: silo "
                              f"join{home_option(home.folder)} --data FOLDER"), (0, 0)
    except SemisiloError as error:
        return bad("images", error), (0, 0)
    from semisilo.silo.check.needs import scenario_of
    from semisilo.silo.compute.images import check_silo_images, survey_silo_images

    try:
        found = survey_silo_images(choice)
        if needs is not None and needs.task.model.classes:
            check_silo_images(choice, classes=needs.task.model.classes, scenario=scenario_of(needs),
                              multi_label=is_multi_label(needs.task.settings))
    except SemisiloError as error:
        return bad("images", error), (0, 0)
    except OSError as error:
        return Finding(what="images", state="bad",
                       text=f"{error.filename or choice.source}: {error.strerror or error}.",
                       remedy="The user that runs `silo join` must be able to read them."), (0, 0)
    total = found.labelled + found.unlabelled
    where = " and ".join(each for each in (choice.source, choice.labelled) if each)
    text = f"{total} in {where} ({found.labelled} with a label, {found.unlabelled} without)"
    if found.test:
        text += f"; {found.test} for testing"
    facts = {**to_dict(found), "source": choice.source}
    if not total:
        return Finding(what="images", state="bad", text=f"There are none in {where}.", facts=facts,
                       remedy="Put images there, or name another folder in [data] source of silo.toml."), (0, 0)
    counts = (found.labelled, found.unlabelled)
    try:
        opened, broken, no_pictures = _headers(choice)
    except SemisiloError as error:  # a package is missing
        return bad("images", error), counts
    facts |= {"headers_read": opened, "broken": list(broken), "no_pictures": no_pictures}
    looks = f"silo data{home_option(home.folder)}"
    if no_pictures:
        text += f"; {no_pictures} of {opened} that were opened hold no picture and will be left out"
    if opened and no_pictures == opened:
        return Finding(what="images", state="bad", text=text, facts=facts, remedy="Name the folder that the images are"
                                                                                  " in."), counts
    if broken:
        text += f"; {len(broken)} of {opened} that were opened cannot be read: {', '.join(broken[:_NAMED_FILES])}"
        text += f" and {len(broken) - _NAMED_FILES} more" if len(broken) > _NAMED_FILES else ""
        if len(broken) == opened:
            return Finding(what="images", state="bad", text=text, facts=facts,
                           remedy=f"Check that they were copied completely and how they were exported; `{looks}` says "
                                  "what is wrong with each."), counts
        if choice.on_error == "skip":
            return Finding(what="images", state="warning", text=f'{text}; on_error = "skip" leaves them out',
                           remedy=f"`{looks}` reads every file completely.", facts=facts), counts
        return Finding(what="images", state="bad", text=text, facts=facts,
                       remedy=f'Fix them, or set on_error = "skip" in [data] of {home.policy}; `{looks}` looks at '
                              "every file whole."), counts
    if found.layout:
        text += f"; taken for {found.layout}"
    if found.question and (needs is None or not needs.task.model.classes):
        return Finding(what="images", state="warning", text=f"{text}; {found.question}", facts=facts,
                       remedy=f"{found.remedy}; `{looks}` shows them."), counts
    last = JoinChoice.load(home.choice) if home.is_running() else None
    if last is not None and last.sources != choice.sources:
        return Finding(what="images", state="warning", facts=facts,
                       text=f"{text}; but the `silo join` that runs here works on {' and '.join(last.sources)}",
                       remedy="Restart it without --data, --labelled and --test: it then takes these."), counts
    text += f"; the headers of {opened} can be read, `{looks}` reads every file completely" if opened else \
        f"; `{looks}` checks every one"
    return Finding(what="images", state="ok", text=text, facts=facts), counts


def _headers(choice: JoinChoice) -> tuple[int, tuple[str, ...], int]:
    """How many files of folders and tables were opened, spread evenly; the names of those that are broken; and how many
    are whole and hold no picture, such as reports among scans.

    Raises: BadData when a package is missing, or a source cannot be listed.
    """
    from semisilo.common.data.formats.decoding import trouble_of
    from semisilo.common.data.formats.folder import ImageFile
    from semisilo.common.data.readers import kind_of, listing_of, parse_source

    files: list[ImageFile] = []
    broken: list[str] = []
    for source in choice.sources:
        path, split = parse_source(source)
        if path is not None and kind_of(path) in ("folder", "table"):
            listing = listing_of(path, split, source=source, selection=choice.selection)
            files += listing.images
            broken += [item.name for item in listing.skipped if item.broken]
    opened, no_pictures = len(broken), 0
    began, cpu = time.monotonic(), time.process_time()
    for file in files[::max(1, -(-len(files) // _HEADERS))]:
        if time.process_time() - cpu > _HEADER_CPU_SECONDS or time.monotonic() - began > _HEADER_SECONDS:
            break
        opened += 1
        found = trouble_of(file)
        if found is not None and found.broken:
            broken.append(file.name)
        no_pictures += found is not None and not found.broken
    return opened, tuple(broken), no_pictures


def images_on_disk(image_bytes: int, *, permitted: bool) -> bool:
    """Whether images of so many bytes would lie on the disk: as `semisilo.common.data.squares.disk_for` decides."""
    from semisilo.common.data.room import free_bytes
    from semisilo.common.data.squares import SHARE_OF_MEMORY

    free = free_bytes()
    return permitted and free is not None and image_bytes > SHARE_OF_MEMORY * free


def look_at_disk(home: SiloHome, *, dense_bytes: int, frozen_bytes: int = 0, image_bytes: int = 0) -> Finding:
    """Room for what the silo keeps of a study.

    Args:
        frozen_bytes: of layers that nobody trains, which come once and stay.
        image_bytes: of images that would lie on the disk; 0 when they fit into memory.
    """
    folder = home.folder if home.folder.is_dir() else home.folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(what="disk", state="unknown", text=f"{folder}: {error.strerror}.")
    needed = _MODELS_ON_DISK * dense_bytes + frozen_bytes + image_bytes
    facts = {"free_bytes": free, "needed_bytes": needed}
    images = f", and images that are too many for memory: {describe_bytes(image_bytes)}" if image_bytes else ""
    frozen = f", and frozen layers: {describe_bytes(frozen_bytes)}" if frozen_bytes else ""
    about = f"; the study needs up to {describe_bytes(needed)} ({_MODELS_ON_DISK} models{frozen}{images})" if needed \
        else ""
    text = f"{describe_bytes(free)} are free in {folder}{about}"
    if free < max(needed, 10 * 2**20):
        return Finding(what="disk", state="bad", text=text, remedy="Free some space, or move the home: --home DIR",
                       facts=facts)
    if free < needed + _SPARE_BYTES:
        return Finding(what="disk", state="warning", text=text, remedy="Free some space.", facts=facts)
    return Finding(what="disk", state="ok", text=text, facts=facts)


def look_at_memory(*, image_bytes: int, dense_bytes: int, frozen_bytes: int = 0) -> Finding:
    """Memory for training on a processor: libraries, all images, and the copies of the model."""
    from semisilo.common.data.room import free_bytes

    free, cores = free_bytes(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    needed = _TORCH_BYTES + image_bytes + _MODELS_IN_MEMORY * dense_bytes + _FROZEN_IN_MEMORY * frozen_bytes
    facts = {"free_bytes": free, "needed_bytes": needed, "cores": cores}
    if free is None:
        return Finding(what="memory", state="unknown", text="This system does not say how much is free.", facts=facts)
    parts = [f"{describe_bytes(_TORCH_BYTES)} for torch"]
    parts += [f"{describe_bytes(image_bytes)} for the images"] if image_bytes else []
    parts += [f"{describe_bytes(_MODELS_IN_MEMORY * dense_bytes)} for the model"] if dense_bytes else []
    parts += [f"{describe_bytes(_FROZEN_IN_MEMORY * frozen_bytes)} for its frozen layers"] if frozen_bytes else []
    text = (f"{describe_bytes(free)} are free, {cores} processor cores; estimated need: {' + '.join(parts)}, and a "
            "batch's activations")
    if free < needed:
        return Finding(what="memory", state="bad", text=text, remedy="Free memory, or use a machine with more.",
                       facts=facts)
    if free < 1.3 * needed:
        return Finding(what="memory", state="warning", text=text, remedy="It is tight: end what else runs here.",
                       facts=facts)
    return Finding(what="memory", state="ok", text=text, facts=facts)


def look_at_gpu(*, driver: Path = Path("/proc/driver/nvidia/gpus")) -> Finding:
    """An accelerator, as the driver's own tool or its files show it; torch is not asked, for it takes seconds."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            done = subprocess.run([tool, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"],
                                  capture_output=True, text=True, timeout=_GPU_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return Finding(what="gpu", state="warning", text=f"{tool} does not answer.",
                           remedy="Check the driver: nvidia-smi")
        rows = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if done.returncode == 0 and rows:
            return Finding(what="gpu", state="ok", text=f"{'; '.join(rows[:8])} (name, memory, free; by nvidia-smi)",
                           facts={"gpus": rows})
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return Finding(what="gpu", state="warning",
                       text=f"nvidia-smi finds none: {said[0] if said else 'no reason given'}",
                       remedy="Check the driver; without one, training runs on the CPU.")
    try:
        names = [_gpu_name(folder) for folder in sorted(driver.iterdir())]
    except OSError:
        names = []
    if names:
        return Finding(what="gpu", state="ok", text=f"{'; '.join(names)} (by the driver's files)",
                       facts={"gpus": names})
    return Finding(what="gpu", state="ok", text="none found (no nvidia-smi, no NVIDIA driver): training runs on the "
                                                "CPU", facts={"gpus": []})


def _gpu_name(folder: Path) -> str:
    for line in (folder / "information").read_text(errors="replace").splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return folder.name
