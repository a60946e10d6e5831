"""The groups of a task, from what was fetched and what is here: fresh, held, coded, damaged, and what is a lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semisilo.common.data.form import AugmentationSettings, ImageForm
from semisilo.common.errors import BadPayload, SemisiloError, TensorsMissing, WrongBase
from semisilo.common.learning.tensors import digest
from semisilo.common.methods import MethodSpec, find_method
from semisilo.common.methods.contract import Meaning, ModelSettings, PayloadRef, TaskSpec, TensorGroup
from semisilo.common.methods.numerics import Numerics
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.reader import read_manifest
from semisilo.common.payload.torch_tensors import encode_groups
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute.downlink import Downlink
from semisilo.silo.compute.received import hold, receive

SPEC = find_method("semifl")
OVERWRITING = replace(SPEC, down={"psi": Meaning.OVERWRITE, "model": Meaning.VALUES})


class Line:
    """A coordinator that writes payloads, and a silo that fetches and receives them."""

    def __init__(self, folder: Path) -> None:
        self.hub = PayloadStore(folder / "hub")
        self.references = TensorCache(self.hub)
        self.silo = PayloadStore(folder / "silo")
        self.held = TensorCache(self.silo)

    def send(self, group: TensorGroup, *, name: str = "model", aim: Aim = Aim.SMALLEST) -> PayloadRef:
        phase = Downlink(self.hub, self.references, plan=Plan(aim=aim))
        written = phase.payload(name, group, self.held.digests())
        phase.finish()
        return written

    def fetch(self, *payloads: PayloadRef) -> dict[str, Path]:
        """What the silo's agent downloads: of what it holds, nothing."""
        paths = {}
        for payload in payloads:
            if payload.digest and not self.held.find(payload.tensors):
                file = self.silo.temporary()
                file.write_bytes(self.hub.path(payload.digest).read_bytes())
                paths[payload.digest] = self.silo.path(self.silo.add_file(file))
        return paths

    def receive(self, *payloads: PayloadRef, spec: MethodSpec = SPEC) -> dict[str, TensorGroup]:
        return receive(task_of(*payloads), spec, self.fetch(*payloads), self.silo)


def task_of(*payloads: PayloadRef) -> TaskSpec:
    return TaskSpec(
        task_id="s/1/0-train/a", study="s", round=1, rounds=4, phase="train", silo="a", method="semifl", settings={},
        model=ModelSettings(classes=("x", "y")), image=ImageForm(size=8, channels=1, mean=(0.3,), std=(0.35,)),
        augmentation=AugmentationSettings(), numerics=Numerics(), payloads=payloads, last_folded_round=0, seed=1)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def version(number: int) -> TensorGroup:
    weights = torch.randn(3000, generator=torch.Generator().manual_seed(0)) * (1 + 1e-5 * number)
    return TensorGroup({"w": weights})


DIGESTS = [digest(version(number).tensors) for number in range(5)]


def check(group: TensorGroup, number: int) -> None:
    assert digest(group.tensors) == DIGESTS[number]
    assert group.digest == DIGESTS[number], "known, so that nobody computes it again"
    assert (group.meaning, group.base) == (Meaning.VALUES, "")


def damage(path: Path, change: Callable[[bytearray], object]) -> None:
    """Changes a file in place of the link, so that no other name of it changes."""
    content = bytearray(path.read_bytes())
    change(content)
    path.unlink()
    path.write_bytes(content)


def test_a_fresh_group_is_decoded_and_kept(line: Line) -> None:
    check(line.receive(line.send(version(0)))["model"], 0)
    assert line.held.digests() == [DIGESTS[0]]


def test_a_held_group_needs_no_file(line: Line) -> None:
    line.receive(line.send(version(0)))
    line.silo.collect(set())
    again = line.send(version(0))
    assert again.digest == ""
    check(line.receive(again)["model"], 0)


def test_a_coded_group_is_put_together_and_kept_so_that_it_stands_alone(line: Line) -> None:
    line.receive(line.send(version(0)))
    for number in (1, 2, 3):
        coded = line.send(version(number))
        assert coded.reference == DIGESTS[number - 1]
        check(line.receive(coded)["model"], number)
        kept = line.held.find(DIGESTS[number])
        assert kept is not None
        assert read_manifest(kept)[0].reference == ""
        line.silo.collect(set())
        for older in DIGESTS[:number]:
            line.held.drop(older)
    check(line.receive(line.send(version(3)))["model"], 3)
    assert list(line.silo.digests()) == [], "nothing of the way there is left in the store"


def test_groups_that_come_in_different_ways_make_one_task(line: Line) -> None:
    statistics = TensorGroup({"m": torch.arange(5.0)})
    line.receive(line.send(version(0)), line.send(statistics, name="batch_norm"))
    found = line.receive(line.send(version(1)), line.send(statistics, name="batch_norm"))
    check(found["model"], 1)
    assert found["batch_norm"].tensors["m"].tolist() == [0, 1, 2, 3, 4]


DAMAGES: dict[str, Callable[[bytearray], object]] = {
    "a value": lambda content: content.__setitem__(2000, content[2000] ^ 1),
    "the header of a block": lambda content: content.__setitem__(slice(8, 20), bytes(12)),
    "the manifest": lambda content: content.__setitem__(len(content) - 40, content[-40] ^ 0xFF),
    "the layout": lambda content: content.__setitem__(content.rindex(b"w"), ord("v")),
    "the end": lambda content: content.__delitem__(slice(len(content) - 100, None)),
    "everything": lambda content: content.clear(),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_reference_is_dropped_and_the_whole_group_comes_next(line: Line, what: str) -> None:
    line.receive(line.send(version(0)))
    coded = line.send(version(1))
    assert coded.reference == DIGESTS[0]
    damage(line.held.path(DIGESTS[0]), DAMAGES[what])
    if what == "the manifest":  # it may be the digest that nobody reads of a reference: then nothing is lost
        try:
            check(line.receive(coded)["model"], 1)
            return
        except TensorsMissing:
            pass
    else:
        with pytest.raises(TensorsMissing) as error:
            line.receive(coded)
        assert error.value.retry
    assert line.held.digests() == []
    whole = line.send(version(1))
    assert whole.reference == ""
    check(line.receive(whole)["model"], 1)


def test_a_reference_that_turned_into_infinities_counts_as_damaged(line: Line) -> None:
    """The sender's tensors are finite: what is not came from here, and is no reason to refuse the task."""
    line.receive(line.send(version(0)))
    coded = line.send(version(1))
    alone = encode_groups(line.silo, {"model": TensorGroup({"w": torch.full((3000,), float("nan"))})})
    line.held.put(DIGESTS[0], line.silo.path(alone.digest))
    with pytest.raises(TensorsMissing):
        line.receive(coded)
    assert line.held.digests() == []


def test_a_reference_that_is_gone_is_asked_for(line: Line) -> None:
    line.receive(line.send(version(0)))
    coded = line.send(version(1))
    line.held.drop(DIGESTS[0])
    with pytest.raises(TensorsMissing):
        line.receive(coded)


@pytest.mark.parametrize("what", DAMAGES)
def test_a_held_group_that_is_damaged_is_dropped_and_asked_for(line: Line, what: str) -> None:
    line.receive(line.send(version(0)))
    held = line.send(version(0))
    damage(line.held.path(DIGESTS[0]), DAMAGES[what])
    try:
        check(line.receive(held)["model"], 0)
        assert what == "the manifest"
        return
    except TensorsMissing:
        pass
    assert line.held.digests() == []
    check(line.receive(line.send(version(0)))["model"], 0)


def test_a_held_group_that_is_damaged_is_taken_from_the_payload_where_that_was_fetched(line: Line) -> None:
    whole = line.send(version(0))
    paths = line.fetch(whole)
    receive(task_of(whole), SPEC, paths, line.silo)
    damage(line.held.path(DIGESTS[0]), DAMAGES["a value"])
    check(receive(task_of(whole), SPEC, paths, line.silo)["model"], 0)
    damage(line.held.path(DIGESTS[0]), lambda content: None)
    check(line.receive(line.send(version(0)))["model"], 0)


def test_tensors_held_under_another_name_come_with_the_name_of_the_task(line: Line) -> None:
    """Equal tensors are one file, whatever group they came in."""
    line.receive(line.send(version(0), name="batch_norm"))
    held = line.send(version(0), name="model")
    assert (held.digest, held.groups) == ("", ("model",))
    found = line.receive(held)
    assert list(found) == ["model"]
    check(found["model"], 0)


@pytest.mark.parametrize(("changes", "error"), [
    ({"tensors": DIGESTS[1]}, BadPayload),
    ({"groups": ("batch_norm",)}, BadPayload),
    ({"reference": DIGESTS[3]}, TensorsMissing),
])
def test_a_payload_that_is_not_what_the_task_says_is_refused_and_not_kept(
        line: Line, changes: dict[str, object], error: type[SemisiloError]) -> None:
    with pytest.raises(error):
        line.receive(replace(line.send(version(0)), **changes))  # type: ignore[arg-type]
    assert line.held.digests() == []


def test_a_payload_that_refers_to_other_tensors_than_the_task_says_is_refused(line: Line) -> None:
    line.receive(line.send(version(0)))
    coded = line.send(version(1))
    with pytest.raises(BadPayload, match="coded against other tensors"):
        line.receive(replace(coded, reference=""))
    assert line.held.find(DIGESTS[1]) is None
    check(line.receive(coded)["model"], 1)


def test_a_held_group_that_the_method_does_not_declare_is_not_used(line: Line) -> None:
    line.receive(line.send(version(0)))
    held = replace(line.send(version(0)), groups=("sigma",))
    with pytest.raises((BadPayload, TensorsMissing)):
        line.receive(held)


def test_a_coded_file_never_gets_into_the_cache_as_if_it_stood_alone(line: Line) -> None:
    line.receive(line.send(version(0)))
    coded = line.send(version(1))
    line.receive(coded)
    damage(line.held.path(DIGESTS[1]), lambda content: content.__setitem__(
        slice(None), line.hub.path(coded.digest).read_bytes()))
    held = line.send(version(1))
    with pytest.raises(TensorsMissing):
        line.receive(held)
    assert line.held.find(DIGESTS[1]) is None


def test_wrong_base_is_for_the_silo_itself_and_never_leaves_it(line: Line) -> None:
    line.receive(line.send(version(0)))
    coded = line.send(version(1))
    line.held.drop(DIGESTS[0])
    for _ in range(2):
        try:
            line.receive(coded)
        except WrongBase:
            raise AssertionError("it would refuse the task for good") from None
        except TensorsMissing:
            continue


# Groups that overwrite ------------------------------------------------------------------------------------------------


def changed(number: int, *, value: float) -> TensorGroup:
    """What the silo is sent next of a group of which it holds a version."""
    old = version(number).tensors
    new = {"w": old["w"].clone()}
    new["w"][::50] = value
    return TensorGroup(new, Meaning.OVERWRITE, DIGESTS[number], base_tensors=old)


@pytest.mark.parametrize("aim", list(Aim))
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5])
def test_a_group_that_overwrites_what_the_silo_holds_is_put_together_and_kept_whole(
        line: Line, aim: Aim, value: float) -> None:
    hold(line.silo, "psi", version(0))
    group = changed(0, value=value)
    written = line.send(group, name="psi", aim=aim)
    assert written.reference == DIGESTS[0]
    found = line.receive(written, spec=OVERWRITING)["psi"]
    assert (found.meaning, found.base) == (Meaning.OVERWRITE, DIGESTS[0])
    assert digest(found.tensors) == found.digest == digest(group.tensors)
    kept, = read_manifest(line.held.path(found.digest))
    assert (kept.meaning, kept.reference) == (Meaning.VALUES, ""), "what later payloads are coded against stands alone"
    again = line.send(group, name="psi")
    assert again.digest == ""
    assert digest(line.receive(again, spec=OVERWRITING)["psi"].tensors) == found.digest
    assert list(line.silo.digests()) == [written.digest], "nothing of the way there is left in the store"


def test_a_group_that_overwrites_and_stands_alone_is_kept_as_values(line: Line) -> None:
    group = replace(changed(0, value=2.0), base_tensors=None, digest=digest(changed(0, value=2.0).tensors))
    written = encode_groups(line.hub, {"psi": group})
    assert read_manifest(line.hub.path(written.digest))[0].meaning is Meaning.OVERWRITE
    found = line.receive(written, spec=OVERWRITING)["psi"]
    assert digest(found.tensors) == group.digest
    assert read_manifest(line.held.path(group.digest))[0].meaning is Meaning.VALUES


def test_a_silo_that_has_lost_what_is_overwritten_asks_and_gets_the_same_bits_whole(line: Line) -> None:
    hold(line.silo, "psi", version(0))
    written = line.send(changed(0, value=0.0), name="psi")
    line.held.drop(DIGESTS[0])
    with pytest.raises(TensorsMissing):
        line.receive(written, spec=OVERWRITING)
    whole = line.send(changed(0, value=0.0), name="psi")
    assert (whole.reference, whole.tensors) == ("", written.tensors)
    found = line.receive(whole, spec=OVERWRITING)["psi"]
    assert (found.meaning, digest(found.tensors)) == (Meaning.VALUES, written.tensors)


def test_a_damaged_base_is_dropped_and_the_whole_group_comes_next(line: Line) -> None:
    hold(line.silo, "psi", version(0))
    written = line.send(changed(0, value=0.0), name="psi")
    damage(line.held.path(DIGESTS[0]), DAMAGES["a value"])
    with pytest.raises(TensorsMissing):
        line.receive(written, spec=OVERWRITING)
    assert line.held.digests() == []
    assert line.send(changed(0, value=0.0), name="psi").reference == ""


def test_a_method_that_declares_values_gets_nothing_that_overwrites(line: Line) -> None:
    hold(line.silo, "psi", version(0))
    written = line.send(changed(0, value=0.0), name="psi")
    with pytest.raises((BadPayload, TensorsMissing)):
        line.receive(written, spec=replace(SPEC, down={"psi": Meaning.VALUES}))
    with pytest.raises(BadPayload, match="twice"):
        line.receive(line.send(version(1), name="psi"), line.send(version(2), name="psi"), spec=OVERWRITING)


def test_what_a_silo_made_itself_is_held_whatever_it_is_called(line: Line) -> None:
    hold(line.silo, "psi", changed(0, value=3.0))
    held = line.send(TensorGroup(changed(0, value=3.0).tensors), name="model")
    assert held.digest == ""
    assert digest(line.receive(held)["model"].tensors) == held.tensors
