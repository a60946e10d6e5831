"""Silos on Ray: the same bits as in one process, and what is shipped to a trainer and back."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import Unreachable, UsageError
from semisilo.common.methods.contract import ModelSettings, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.process.messages import Failure
from semisilo.silo.compute.messages import Train, Trained
from semisilo.silo.site.home import JoinChoice
from semisilo.simulation import run
from semisilo.simulation.engines.one_process import InlineWorkplace
from semisilo.simulation.engines.ray_cluster import (
    RayWorkplace,
    Shipment,
    ShipmentOutcome,
    _rebuilt,
    _unpacked,
    train_shipment,
)
from tests.semisilo.studies import study

KEEPS_MUCH = study("semifl", rounds=3, wire={"uplink": "top-k 20%"})
"""Silos keep momentum and what was left out; tasks are coded against what they hold."""


@pytest.mark.slow
def test_training_from_bytes_in_an_empty_folder_gives_the_bits_of_one_process(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that Ray does except Ray itself: each task is packed, trained in a folder of its own, and unpacked."""
    import semisilo.simulation.simulate as simulate

    here = run(KEEPS_MUCH, out=tmp_path / "here", device="cpu")
    trained: list[str] = []

    class Elsewhere(InlineWorkplace):
        def __init__(self, images: list[object], **options: object) -> None:
            super().__init__(images, **options)  # type: ignore[arg-type]
            self._all = images

        async def train(self, request: Train, *, on_progress: object = None) -> Trained:
            from semisilo.common.payload.cache import TensorCache
            from semisilo.common.storage.store import PayloadStore

            cache = TensorCache(PayloadStore(request.cache_folder))
            held = {digest: found.read_bytes() for each in request.task.payloads
                    for digest in (each.tensors, each.reference) if digest and (found := cache.find(digest))}

            def content(path: Path | None) -> bytes | None:
                return None if path is None else path.read_bytes()

            shipment = Shipment(
                request=request, device="cpu", tensors=held, memory=content(request.memory),
                payloads={digest: path.read_bytes() for digest, path in request.payloads.items()},
                residuals=content(request.residuals), pending_residuals=content(request.pending_residuals))
            folder = tmp_path / "elsewhere" / str(len(trained))
            folder.mkdir(parents=True)
            images = self._all[int(request.choice.source)]
            outcome = train_shipment(shipment, images, folder)  # type: ignore[arg-type]
            trained.append(request.task.task_id)
            return _unpacked(outcome, request)

    monkeypatch.setattr("semisilo.simulation.engines.one_process.InlineWorkplace", Elsewhere)
    there = simulate.run(KEEPS_MUCH, out=tmp_path / "there", device="cpu", engine="process")
    assert len(trained) == 9
    assert there.digest == here.digest
    assert [each.payload_up for each in there.rounds] == [each.payload_up for each in here.rounds]


def test_what_a_real_silo_would_refuse_comes_back_as_that_error_and_a_mistake_as_one() -> None:
    refusal = _rebuilt(Failure(code="BAD_DATA", text="Nothing here.", remedy="Look elsewhere."))
    assert (type(refusal).__name__, refusal.remedy, refusal.__cause__) == ("BadData", "Look elsewhere.", None)
    mistake = _rebuilt(Failure(code="COMPUTE_FAILED", text="Training failed", details="Traceback ..."))
    assert isinstance(mistake.__cause__, RuntimeError)


def test_an_outcome_without_an_update_leaves_no_files(tmp_path: Path) -> None:
    def file(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    trained = Trained(payload=None, abstention="no_data", metrics={}, memory=None, residuals=None, seconds=0.0)
    request = Train(task=a_task(), payloads={}, cache_folder=file("cache"), choice=JoinChoice(source="0"), memory=None,
                    residuals=None, pending_residuals=None, outgoing_folder=file("outgoing"),
                    memory_folder=file("memory"))
    assert _unpacked(ShipmentOutcome(trained=trained), request) == trained
    assert not [path for folder in ("memory", "outgoing", "cache") for path in (tmp_path / folder).rglob("*")
                if path.is_file()]


def a_task() -> TaskSpec:
    return TaskSpec(
        task_id="s/1/0-train/a", study="s", round=1, rounds=1, phase="train", silo="a", method="fedavg", settings={},
        model=ModelSettings(), image=ImageForm(size=1, channels=1, mean=(0.0,), std=(1.0,)),
        augmentation=AugmentationSettings(), numerics=Numerics(), payloads=(), last_folded_round=0, seed=1)


def test_without_ray_the_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="not installed") as error:
        RayWorkplace([], device="cpu", threads=1)
    assert "semisilo[ray]" in error.value.remedy


class _PretendedRay:
    """Ray as far as joining a cluster goes, which never works."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

    def __init__(self, error: Exception) -> None:
        self.error = error

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        raise self.error


@pytest.mark.parametrize(("address", "why"), [
    ("{}", "nothing answers there"),
    ("ray://{}", "nothing answers there"),
    ("nonsense", "Invalid address format: nonsense."),
    ("auto", "Invalid address format: nonsense."),
])
def test_a_cluster_that_cannot_be_used_is_one_line_at_once(
        monkeypatch: pytest.MonkeyPatch, address: str, why: str) -> None:
    """Ray tried for many minutes where nothing listened, and ended with a traceback at other mistakes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address.format(closed))
    monkeypatch.setitem(sys.modules, "ray", _PretendedRay(ValueError("Invalid address format: nonsense.\nsee there")))
    with pytest.raises(Unreachable, match="RAY_ADDRESS") as error:
        RayWorkplace([], device="cpu", threads=1)
    assert why in error.value.text
    assert "\n" not in error.value.text
    assert "RAY_AUTH_MODE=token" in error.value.remedy


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("method", "scenario"), [("semifl", "labels-at-coordinator"), ("fedmatch", "labels-at-silo")])
def test_two_trainers_of_a_local_ray_end_with_the_bits_of_one_process_and_leave_no_process(
        tmp_path: Path, method: str, scenario: str) -> None:
    ray = pytest.importorskip("ray")
    tables = KEEPS_MUCH if method == "semifl" else study(method, scenario)
    here = run(tables, out=tmp_path / "here", device="cpu")
    there = run(tables, out=tmp_path / "there", device="cpu", engine="ray", workers=2)
    assert there.digest == here.digest
    assert not ray.is_initialized()
    assert not [each for each in _children() if "ray" in each]


def _children() -> list[str]:
    """Command lines of all processes that this one has started, and theirs."""
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            lines[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    found, here = [], [os.getpid()]
    while here:
        parent = here.pop()
        children = [each for each, its in parents.items() if its == parent]
        here += children
        found += [lines[each] for each in children]
    return found
