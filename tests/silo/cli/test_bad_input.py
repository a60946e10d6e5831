"""Bad images and bad settings at a hospital: one line that says what is wrong and how to fix it, no traceback, and
nothing of a file's name, which may be a patient's, in anything that is sent."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
from PIL import Image

from semisilo.common.data import room
from semisilo.common.errors import BadData
from semisilo.common.process.compute import InlineCompute
from semisilo.silo.agent.agent import Agent
from semisilo.silo.agent.terminal import PlainDisplay
from semisilo.silo.compute import operations as work_module
from semisilo.silo.compute.operations import Operations
from semisilo.silo.link.link import Link, LinkSettings
from semisilo.silo.link.retrying_calls import Backoff
from semisilo.silo.link.traffic import Traffic
from semisilo.silo.site.home import JoinChoice, SiloHome
from semisilo.silo.site.policy import Policy
from tests.silo.cli.test_main import OVER, enrolled
from tests.silo.compute.test_operations import Site
from tests.silo.fake_coordinator import FakeCoordinator, serving

PATIENT = "MUSTERMANN Erika 1970-01-01"


def picture(width: int = 28, height: int = 28, *, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def ten_pictures(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number in range(10):
        picture(seed=number).save(folder / f"scan_{number}.png")
    return folder


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# Seen at once: silo join ends -----------------------------------------------------------------------------------------

IMAGES = np.zeros((4, 28, 28), np.uint8)


def text_files(folder: Path) -> Path:
    (folder / "notes").mkdir()
    (folder / "notes" / "letter.txt").write_text("Dear colleague")
    return folder / "notes"


def dead_links_only(folder: Path) -> Path:
    (folder / "links").mkdir()
    (folder / "links" / "scan.png").symlink_to(folder / "nowhere.png")
    return folder / "links"


def declares_a_terabyte(path: Path) -> Path:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 32, 32)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images.npy", head.getvalue() + bytes(1000))
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


SOURCES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "a folder that is not there": (lambda at: at / "missing", "no such folder or file", "Give a folder"),
    "an empty folder": (lambda at: at, "the folder is empty", "Put images into it"),
    "text files": (text_files, "found 1 file, none is an image: first is letter.txt", "Images are PNG"),
    "links to nothing": (dead_links_only, "a link that leads nowhere", "Images are PNG"),
    "an .npz with other keys": (lambda at: npz(at / "a.npz", pictures=IMAGES),
                                "neither a key 'train_images' nor 'images'; its keys: pictures", "Store the images"),
    "one colour image as a stack": (lambda at: npz(at / "a.npz", images=np.zeros((28, 28, 3), np.uint8)),
                                    "one colour image, not a stack", "Stack the images"),
    "volumes": (lambda at: npz(at / "a.npz", images=np.zeros((2, 9, 9, 9, 1), np.uint8)), "not a stack of images",
                "Store them as N x H x W"),
    "pickled objects": (lambda at: npz(at / "a.npz", images=np.array([{"a": 1}], dtype=object)),
                        "holds Python objects, which are never loaded", "Store plain numbers"),
    "a text called .npz": (lambda at: written(at / "a.npz", b"hello"), "not an .npz file, whatever its name says",
                           "Write it with numpy.savez"),
    "a bomb": (lambda at: declares_a_terabyte(at / "a.npz"), "declares more data than the file holds",
               "Write the file again"),
}


def silo_in_parallel(calls: dict[str, list[str]]) -> dict[str, tuple[int, str]]:
    """Exit status and standard error of many `silo` commands that run at the same time."""
    environment = dict(os.environ, GRPC_ENABLE_FORK_SUPPORT="0")
    running = {name: subprocess.Popen([sys.executable, "-P", "-m", "semisilo.silo.cli.main", *words],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                      text=True, env=environment)
               for name, words in calls.items()}
    ended = {}
    for name, process in running.items():
        try:
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
        ended[name] = (process.returncode, said)
    return ended


@pytest.mark.slow
def test_images_that_cannot_be_used_end_join_with_one_line_and_its_remedy(tmp_path: Path) -> None:
    asyncio.run(enrolled(tmp_path / "hub", tmp_path / "home"))
    calls = {}
    for number, (name, (make, _, _)) in enumerate(SOURCES.items()):
        home, images = tmp_path / f"home-{number}", tmp_path / f"images-{number}"
        shutil.copytree(tmp_path / "home", home)
        images.mkdir()
        calls[name] = ["join", "--home", str(home), "--data", str(make(images))]
    for name, (status, said) in silo_in_parallel(calls).items():
        _, problem, remedy = SOURCES[name]
        *_, last = said.splitlines()
        assert last.startswith("error: "), (name, said)
        assert problem in last, (name, said)
        assert remedy in last, (name, said)
        assert "Traceback" not in said, (name, said)
        assert "pickle" not in said, "nobody is to be told how to load what may run code"
        assert status == 1, (name, said)


# Seen while training: the task is refused -----------------------------------------------------------------------------


def truncated_jpeg(folder: Path) -> None:
    data = io.BytesIO()
    picture(128, 128).save(data, "JPEG")
    (folder / f"{PATIENT}.jpg").write_bytes(data.getvalue()[:2000])


def png_of(width: int, height: int) -> bytes:
    """A few bytes that promise an image of any size."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000)))
            + chunk(b"IEND", b""))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (truncated_jpeg, "image file is truncated"),
    "empty": (lambda folder: (folder / f"{PATIENT}.png").write_bytes(b""), "it is empty"),
    "a text": (lambda folder: (folder / f"{PATIENT}.png").write_text("hello"), "not an image, or damaged"),
    "enormous": (lambda folder: (folder / f"{PATIENT}.png").write_bytes(png_of(60_000, 60_000)), "too many pixels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_stops_a_task_by_name_or_is_left_out(case: str, tmp_path: Path,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    damage, reason = DAMAGED[case]
    damage(ten_pictures(tmp_path / "scans"))
    site = Site(tmp_path, str(tmp_path / "scans"))
    operations = Operations(lambda fraction, text: None)
    with pytest.raises(BadData, match=reason) as caught:
        operations.train(site.request())
    assert PATIENT in caught.value.text
    assert "on_error" in caught.value.remedy
    first, second = (operations.train(site.request(on_error="skip")) for _ in range(2))
    assert first.num_examples == second.num_examples == 10
    assert (first.skipped, second.skipped) == (1, 0), "said once, not in every round"
    assert f"left out: {PATIENT}" in caplog.text
    assert caplog.text.count("left out") == 1


UNUSUAL: dict[str, Callable[[Path], object]] = {
    "a thousand pixels wide and one high": lambda folder: picture(1000, 1).save(folder / "thin.png"),
    "16 bits": lambda folder: Image.fromarray(np.full((40, 32), 4000, np.uint16)).save(folder / "deep.png"),
    "CMYK": lambda folder: picture().convert("CMYK").save(folder / "print.jpg"),
    "animated": lambda folder: picture().save(folder / "film.gif", save_all=True,
                                              append_images=[picture(seed=1), picture(seed=2)]),
    "in folders in folders": lambda folder: ten_pictures(folder / "a" / "b"),
    "beside a text": lambda folder: (folder / "notes.txt").write_text("hello"),
}


def test_unusual_images_are_no_trouble(tmp_path: Path) -> None:
    folder = ten_pictures(tmp_path / "scans")
    for make in UNUSUAL.values():
        make(folder)
    site = Site(tmp_path, str(folder))
    result = Operations(lambda fraction, text: None).train(site.request())
    assert result.num_examples == 10 + 1 + 1 + 1 + 1 + 10  # a film counts once, a text not at all


def test_more_images_than_memory_holds_are_refused_before_memory_is_taken(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, str(ten_pictures(tmp_path / "scans")))
    monkeypatch.setattr(room, "free_bytes", lambda: 10 * 8 * 8 - 1)
    with pytest.raises(BadData, match=r"10 images as squares .* need 640 B of memory; 639 B are free") as caught:
        Operations(lambda fraction, text: None).train(site.request())
    assert "Use fewer images" in caught.value.remedy
    monkeypatch.setattr(room, "free_bytes", lambda: 10 * 8 * 8)
    Operations(lambda fraction, text: None).train(site.request())


def test_more_images_than_memory_holds_train_from_the_disk_to_the_same_bytes_where_that_is_permitted(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, str(ten_pictures(tmp_path / "scans")))
    in_memory = Operations(lambda fraction, text: None).train(site.request())
    monkeypatch.setattr(room, "free_bytes", lambda: 10 * 8 * 8 - 1)
    mapped = Operations(lambda fraction, text: None)
    found = mapped.train(site.request(images_folder=tmp_path / "images"))
    assert f" {tmp_path.resolve()}/images/" in Path("/proc/self/maps").read_text()
    assert (found.payload, found.memory, found.metrics) == (in_memory.payload, in_memory.memory, in_memory.metrics)
    assert list((tmp_path / "images").iterdir()) == []


def test_free_memory_is_the_machines_or_the_containers_whichever_is_less(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    assert room.free_bytes(meminfo=meminfo, control_group=group) is None
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:    2000 kB\n")
    assert room.free_bytes(meminfo=meminfo, control_group=group) == 2000 * 1024
    group.mkdir()
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("700000\n")
    (group / "memory.stat").write_text("anon 500000\nfile 200000\n")
    assert room.free_bytes(meminfo=meminfo, control_group=group) == 500_000
    (group / "memory.stat").write_text("anon 400000\nfile 200000\nslab_reclaimable 50000\nslab_unreclaimable 50000\n")
    assert room.free_bytes(meminfo=meminfo, control_group=group) == 550_000
    (group / "memory.max").write_text("max\n")
    assert room.free_bytes(meminfo=meminfo, control_group=group) == 2000 * 1024


# What the coordinator hears -------------------------------------------------------------------------------------------


def what_is_sent(folder: Path, source: Path, output: io.StringIO, *, on_error: Any = "stop",
                 **changes: Any) -> FakeCoordinator:
    """Runs an agent with the real operations for one task; returns the coordinator that recorded what it was sent.

    Args:
        changes: of the task, by name.
    """
    async def run() -> FakeCoordinator:
        site = Site(folder / "given", str(source))
        site.spec = replace(site.spec, **changes)
        coordinator = FakeCoordinator(after=OVER)
        request = site.request()
        references = tuple(coordinator.add_file(path.read_bytes(), groups=(name,))
                           for name, path in zip(site.given, request.payloads.values(), strict=True))
        coordinator.tasks = [replace(site.spec, payloads=references)]
        home = SiloHome(folder / "home")
        home.folder.mkdir()
        settings = LinkSettings(backoff=Backoff(first_seconds=0.02, largest_seconds=0.2))
        async with serving(coordinator) as port:
            link = Link(lambda: grpc.aio.insecure_channel(f"127.0.0.1:{port}"), silo="a", settings=settings)
            compute = InlineCompute(Operations)
            agent = Agent(home=home, silo="a", address=f"127.0.0.1:{port}", policy=Policy(),
                          choice=JoinChoice(source=str(source), on_error=on_error), link=link, compute=compute,
                          display=PlainDisplay(output), traffic=Traffic("a", remote_port=port),
                          renew=lambda: asyncio.sleep(0), exit_when_finished=True, poll_seconds=1.0)
            try:
                await asyncio.wait_for(agent.run(), 300)
            finally:
                await compute.close()
                await link.close()
        return coordinator
    return asyncio.run(run())


def everything(coordinator: FakeCoordinator) -> str:
    messages = [*coordinator.hellos, *coordinator.begins, *coordinator.reports]
    assert coordinator.hellos
    assert coordinator.begins
    return "\n".join(str(message) for message in messages)


def assert_says_nothing_of_the_patient(sent: str, source: Path) -> None:
    for secret in ("MUSTERMANN", "Erika", source.name, str(source.parent)):
        assert secret not in sent
    assert re.search(r"(?<!\d)1970(?!\d)", sent) is None, "the year; a time in seconds may have these digits in it"


def patients_folder(tmp_path: Path) -> Path:
    source = ten_pictures(tmp_path / "ward 7 of MUSTERMANN")
    truncated_jpeg(source)
    return source


@pytest.mark.slow
def test_a_refusal_names_neither_file_nor_folder_and_the_hospital_sees_both(tmp_path: Path) -> None:
    source, output = patients_folder(tmp_path), io.StringIO()
    coordinator = what_is_sent(tmp_path, source, output)
    assert coordinator.outcomes() == ["refusal"]
    assert coordinator.begins[0].refusal.code == "BAD_DATA"
    assert "its operator sees which and why" in coordinator.begins[0].refusal.text
    assert_says_nothing_of_the_patient(everything(coordinator), source)
    assert f"{PATIENT}.jpg cannot be read: image file is truncated" in output.getvalue()
    assert 'set on_error = "skip"' in output.getvalue()


@pytest.mark.slow
def test_work_on_a_folder_with_files_left_out_tells_the_coordinator_nothing_of_their_names(tmp_path: Path) -> None:
    source, output = patients_folder(tmp_path), io.StringIO()
    coordinator = what_is_sent(tmp_path, source, output, on_error="skip")
    assert coordinator.outcomes() == ["update"]
    assert coordinator.begins[0].update.example_count == 10
    assert_says_nothing_of_the_patient(everything(coordinator), source)
    assert "1 file could not be read: left out" in output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["", "labelled"])
def test_folders_of_patients_that_are_taken_for_classes_are_refused_without_their_names(
        tmp_path: Path, inside: str) -> None:
    source, output = tmp_path / "ward 7 of MUSTERMANN", io.StringIO()
    ten_pictures(source / inside / PATIENT)
    coordinator = what_is_sent(tmp_path, source, output, method="fedavg", settings={
        "scenario": "labels-at-silo", "objective": "sl", "round_lr": 0.05})
    assert coordinator.outcomes() == ["refusal"]
    assert_says_nothing_of_the_patient(everything(coordinator), source)
    assert f"folder '{PATIENT}' is not a class of the study" in output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(("during", "path"), [
    pytest.param("reading", True, id="reading-path"), pytest.param("training", False, id="training-name"),
    pytest.param("reading", False, id="reading-name", marks=pytest.mark.slow),
    pytest.param("training", True, id="training-path", marks=pytest.mark.slow)])
def test_an_error_that_nobody_foresaw_keeps_the_names_of_files_to_itself(
        during: str, path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = ten_pictures(tmp_path / "ward 7 of MUSTERMANN"), io.StringIO()

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError(f"'{source}/{PATIENT}.png' is odd" if path else f"could not convert '{PATIENT}' to int: odd")

    monkeypatch.setattr(work_module, "read_silo_images" if during == "reading" else "load_trainer", fails)
    coordinator = what_is_sent(tmp_path, source, output)
    assert coordinator.outcomes() == ["refusal"]
    assert_says_nothing_of_the_patient(everything(coordinator), source)
    assert "odd" in output.getvalue()
    assert ("(ValueError)" in coordinator.begins[0].refusal.text) == (during == "training")
