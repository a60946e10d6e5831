"""What silos receive: every group once, in the smallest form that its readers can use."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semisilo.common.errors import WrongBase
from semisilo.common.learning.tensors import digest, group_digest
from semisilo.common.methods.contract import Meaning, PayloadRef, TensorGroup
from semisilo.common.payload.cache import TensorCache
from semisilo.common.payload.codec import Aim, Plan
from semisilo.common.payload.reader import read_manifest
from semisilo.common.payload.torch_tensors import decode_groups, encode_groups
from semisilo.common.storage.store import PayloadStore
from semisilo.coordinator.compute import downlink as module
from semisilo.coordinator.compute.downlink import SPARE_REFERENCES, Downlink

COUNT = 5000


class Hub:
    """A coordinator's folder, and the versions of a model that change a little from phase to phase."""

    def __init__(self, folder: Path, aim: Aim = Aim.SMALLEST) -> None:
        self.store = PayloadStore(folder)
        self.cache = TensorCache(self.store)
        self.aim = aim

    def phase(self) -> Downlink:
        return Downlink(self.store, self.cache, plan=Plan(aim=self.aim))

    def send(self, group: TensorGroup, held: Collection[str] = (), *, name: str = "model") -> PayloadRef:
        """One phase with one silo."""
        phase = self.phase()
        written = phase.payload(name, group, held)
        phase.finish()
        self._age()
        return written

    def received(self, written: PayloadRef) -> TensorGroup:
        """What a silo makes of it that holds what it needs."""
        return decode_groups(self.store.path(written.digest), require_finite=True, references=self.cache.find)[
            written.groups[0]]

    def _age(self) -> None:
        """A clock of the disk that cannot tell two phases apart must not decide a test."""
        for digest_ in self.cache.digests():
            path = self.cache.path(digest_)
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**9))


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "payloads")


def version(number: int, *, size: int = COUNT) -> TensorGroup:
    """Each is 0.001 % of noise away from the one before."""
    weights = torch.randn(size, generator=torch.Generator().manual_seed(0))
    for step in range(number):
        weights = weights * (1 + 1e-5 * torch.randn(size, generator=torch.Generator().manual_seed(step + 1)))
    return TensorGroup({"w": weights})


def of(number: int, **options: Any) -> str:
    return digest(version(number, **options).tensors)


def before(number: int) -> list[str]:
    """What a silo holds that took part in the phase before."""
    return [of(number - 1)] if number else []


def check(hub: Hub, written: PayloadRef, number: int) -> None:
    """That the version arrives, bit for bit."""
    assert written.tensors == of(number)
    assert digest(hub.received(written).tensors) == of(number)
    assert hub.store.path(written.digest).stat().st_size == written.size_bytes


def test_a_silo_that_holds_nothing_gets_the_whole_group(hub: Hub) -> None:
    written = hub.send(version(0))
    assert written.reference == ""
    check(hub, written, 0)


def test_what_a_silo_holds_is_not_sent_and_needs_no_file(hub: Hub) -> None:
    before = hub.store.digests()
    assert hub.send(version(0), held=[of(0)]) == PayloadRef(
        "", 0, ("model",), tensors=of(0), held_bytes=4 * COUNT)
    assert hub.store.digests() == before


def test_a_silo_that_holds_the_version_before_gets_much_less(hub: Hub) -> None:
    first = hub.send(version(0))
    second = hub.send(version(1), held=[of(0)])
    check(hub, second, 1)
    assert second.reference == of(0)
    assert second.size_bytes < 0.7 * first.size_bytes


@pytest.mark.slow
@pytest.mark.parametrize("behind", range(1, SPARE_REFERENCES + 1))
def test_a_silo_that_missed_some_phases_gets_a_difference_while_its_version_is_kept(hub: Hub, behind: int) -> None:
    for number in range(8):
        hub.send(version(number), held=before(number))
    written = hub.send(version(8), held=[of(8 - behind)])
    check(hub, written, 8)
    assert written.reference == of(8 - behind)


def test_a_version_that_is_too_old_gives_the_whole_group(hub: Hub) -> None:
    for number in range(8):
        hub.send(version(number), held=before(number))
    written = hub.send(version(8), held=[of(0)])
    check(hub, written, 8)
    assert written.reference == ""


def test_of_several_versions_that_a_silo_holds_the_newest_counts(hub: Hub) -> None:
    for number in range(3):
        hub.send(version(number))
    assert hub.send(version(3), held=[of(0), of(1)]).reference == of(1)
    assert hub.send(version(4), held=[of(2), of(0), "ff" * 32, of(9)]).reference == of(2)


def test_silos_with_different_holdings_get_different_files_and_equal_ones_the_same(hub: Hub) -> None:
    for number in range(2):
        hub.send(version(number))
    phase, group = hub.phase(), version(2)
    held: dict[str, list[str]] = {"a": [of(1)], "b": [], "c": [of(0)], "d": [of(2), of(0)], "e": [of(1)],
                                  "f": ["00" * 32]}
    sent = {silo: phase.payload("model", group, digests) for silo, digests in held.items()}
    assert {silo: ref.reference for silo, ref in sent.items()} == {
        "a": of(1), "b": "", "c": of(0), "d": "", "e": of(1), "f": ""}
    assert sent["d"].digest == ""
    assert sent["a"] == sent["e"]
    assert sent["b"] == sent["f"]
    assert len({sent[silo].digest for silo in "abc"}) == 3
    for silo in "abcef":
        check(hub, sent[silo], 2)
    phase.finish()
    assert hub.cache.find(of(2)) is not None


def test_each_form_of_a_group_is_encoded_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.send(version(0))
    encoded: list[Any] = []

    def counting(*arguments: Any, **options: Any) -> PayloadRef:
        encoded.append(options.get("reference"))
        return encode_groups(*arguments, **options)

    monkeypatch.setattr(module, "encode_groups", counting)
    phase, group = hub.phase(), version(1)
    for _ in range(20):
        phase.payload("model", group, [])
        phase.payload("model", group, [of(0)])
    assert [reference and reference.digest for reference in encoded] == [None, of(0)]


def test_with_the_aim_raw_nothing_refers_to_anything(tmp_path: Path) -> None:
    hub = Hub(tmp_path, Aim.RAW)
    first = hub.send(version(0))
    second = hub.send(version(1), held=[of(0)])
    assert (second.reference, second.size_bytes) == ("", first.size_bytes)
    check(hub, second, 1)
    assert hub.send(version(1), held=[of(1)]).digest == "", "what is held is not sent even so"


def test_a_version_that_only_went_out_coded_can_be_referred_to_later(hub: Hub) -> None:
    hub.send(version(0))
    coded = hub.send(version(1), held=[of(0)])
    kept = hub.cache.find(of(1))
    assert coded.reference == of(0)
    assert kept is not None
    assert read_manifest(kept)[0].reference == "", "what is kept stands alone"
    hub.store.collect(set())  # as at the commit of a round
    written = hub.send(version(2), held=[of(1)])
    assert written.reference == of(1)
    check(hub, written, 2)


def test_a_coordinator_that_has_lost_its_cache_sends_whole_groups_and_recovers(hub: Hub) -> None:
    hub.send(version(0))
    hub.cache.collect((), spare=0)
    whole = Hub(hub.store.folder).send(version(1), held=[of(0)])
    assert whole.reference == ""
    check(hub, whole, 1)
    assert Hub(hub.store.folder).send(version(2), held=[of(1)]).reference == of(1)


def test_a_coordinator_that_starts_again_refers_to_what_it_sent_before(hub: Hub) -> None:
    hub.send(version(0))
    again = Hub(hub.store.folder)
    written = again.send(version(1), held=[of(0)])
    assert written.reference == of(0)
    check(again, written, 1)


@pytest.mark.parametrize("damage", ["empty", "cut", "manifest", "blocks", "gone", "no group"])
def test_a_reference_that_is_damaged_at_the_coordinator_costs_bytes_and_no_round(hub: Hub, damage: str) -> None:
    hub.send(version(0))
    path = hub.cache.path(of(0))
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "blocks":
        content[8:20] = bytes(12)  # the header of the first block; the manifest stays as it was
    elif damage == "manifest":
        content[-12] ^= 0xFF  # its length
    elif damage == "cut":
        content = content[:-1]
    elif damage == "empty":
        content = bytearray()
    elif damage == "no group":
        content = bytearray(hub.store.path(encode_groups(hub.store, {}).digest).read_bytes())
    if damage == "gone":
        phase = hub.phase()
        hub.cache.digests = lambda: [of(0)]  # type: ignore[method-assign]  # seen, and removed a moment later
        written = phase.payload("model", version(1), [of(0)])
    else:
        path.write_bytes(content)
        phase = hub.phase()
        written = phase.payload("model", version(1), [of(0)])
        also = phase.payload("model", version(1), [of(0), "ff" * 32])
        assert also.digest == written.digest
    assert written.reference == ""
    check(hub, written, 1)


def test_a_reference_whose_bits_have_flipped_at_the_coordinator_never_gives_other_tensors(hub: Hub) -> None:
    """The coordinator does not notice; the silo does, since its own copy is sound, and asks for the whole group."""
    hub.send(version(0))
    path = hub.cache.path(of(0))
    sound = path.read_bytes()
    damaged = bytearray(hub.store.path(encode_groups(hub.store, {"model": version(0)}).digest).read_bytes())
    damaged[2000] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    written = hub.send(version(1), held=[of(0)])
    assert written.reference == of(0)
    path.write_bytes(sound)
    with pytest.raises(WrongBase, match="does not come out"):
        hub.received(written)
    whole = hub.send(version(1))
    assert whole.reference == ""
    check(hub, whole, 1)


def test_groups_of_other_names_and_layouts_are_no_reference(hub: Hub) -> None:
    hub.send(version(0), name="batch_norm")
    assert hub.send(version(1), held=[of(0)], name="model").reference == ""
    hub.send(version(0, size=COUNT + 1))
    held = [of(0, size=COUNT + 1)]
    assert hub.send(version(2), held=held).reference == ""


def test_equal_tensors_of_two_names_are_two_payloads_with_their_own_names(hub: Hub) -> None:
    phase, group = hub.phase(), version(0)
    sent = [phase.payload(f"helper_psi/{number}", group, []) for number in range(2)]
    phase.finish()
    assert [ref.groups for ref in sent] == [("helper_psi/0",), ("helper_psi/1",)]
    for ref in sent:
        assert [each.name for each in read_manifest(hub.store.path(ref.digest))] == list(ref.groups)
        assert ref.tensors == of(0)
    held = hub.phase().payload("helper_psi/2", group, [of(0)])
    assert (held.digest, held.groups) == ("", ("helper_psi/2",))


def test_what_the_cache_keeps_is_bounded_and_never_what_this_phase_has_sent(hub: Hub) -> None:
    for number in range(3 * SPARE_REFERENCES):
        hub.send(version(number), held=before(number))
        assert hub.cache.find(of(number)) is not None
    assert len(hub.cache.digests()) == SPARE_REFERENCES + 1
    phase = hub.phase()
    for number in range(20, 30 + SPARE_REFERENCES):
        phase.payload("model", version(number), [])
    phase.finish()
    assert {of(number) for number in range(20, 30 + SPARE_REFERENCES)} <= set(hub.cache.digests())


def test_a_group_that_is_used_in_every_phase_is_kept_however_old_its_file_is(hub: Hub) -> None:
    steady = version(50)
    hub.send(steady, name="batch_norm")
    for number in range(3 * SPARE_REFERENCES):
        phase = hub.phase()
        phase.payload("batch_norm", steady, [of(50)])
        phase.payload("model", version(number), [])
        phase.finish()
    assert hub.cache.find(of(50)) is not None


def test_a_digest_that_came_with_a_group_is_not_computed_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[TensorGroup] = []

    def counting(group: TensorGroup) -> str:
        computed.append(group)
        return group_digest(group)

    monkeypatch.setattr(module, "group_digest", counting)
    phase, plain = hub.phase(), version(0)
    for _ in range(5):
        phase.payload("model", plain, [])
        phase.payload("model", TensorGroup(version(1).tensors, digest=of(1)), [])
    assert computed == [plain]


# What one silo alone has received -------------------------------------------------------------------------------------


def overwriting(number: int, *, share: float = 0.01, digest_: bool = False) -> TensorGroup:
    """A share of the elements of a silo's own version is replaced."""
    old = version(number).tensors
    new = {"w": old["w"].clone()}
    new["w"][:round(share * COUNT)] = 0.0
    return TensorGroup(new, Meaning.OVERWRITE, digest(old), digest(new) if digest_ else "", old)


@pytest.mark.parametrize("aim", list(Aim))
@pytest.mark.parametrize("digest_", [False, True])
def test_a_silo_that_holds_the_base_gets_what_is_overwritten_whatever_the_aim(
        tmp_path: Path, aim: Aim, digest_: bool) -> None:
    hub, group = Hub(tmp_path, aim), overwriting(0, digest_=digest_)
    written = hub.send(group, held=[of(3), group.base], name="psi")
    manifest, = read_manifest(hub.store.path(written.digest))
    assert (manifest.meaning, manifest.base, manifest.reference) == (Meaning.OVERWRITE, of(0), of(0))
    assert (written.reference, written.tensors, written.groups) == (of(0), digest(group.tensors), ("psi",))
    assert written.size_bytes < 0.05 * 4 * COUNT
    assert group.base_tensors is not None
    found = decode_groups(hub.store.path(written.digest), require_finite=True,
                          references={of(0): group.base_tensors}.get)["psi"]
    assert digest(found.tensors) == digest(group.tensors)
    assert hub.cache.digests() == [], "of use to nobody but a silo that holds it itself"


@pytest.mark.parametrize("held", [[], ["ff" * 32], [of(1)]])
def test_a_silo_that_does_not_hold_the_base_gets_the_group_whole(hub: Hub, held: list[str]) -> None:
    group = overwriting(0)
    written = hub.send(group, held=held, name="psi")
    manifest, = read_manifest(hub.store.path(written.digest))
    assert (manifest.meaning, manifest.base, written.reference) == (Meaning.VALUES, "", "")
    assert digest(decode_groups(hub.store.path(written.digest), require_finite=True)["psi"].tensors) == written.tensors
    assert hub.cache.digests() == []


def test_a_silo_that_lost_its_base_may_still_hold_what_all_were_sent(hub: Hub) -> None:
    """The whole group is then coded against that, as any other."""
    hub.send(version(1), name="psi")
    written = hub.send(overwriting(0), held=[of(1)], name="psi")
    assert written.reference == of(1)
    assert hub.received(written).meaning is Meaning.VALUES
    assert digest(hub.received(written).tensors) == written.tensors
    assert hub.cache.digests() == [of(1)]


def test_what_a_silo_holds_already_is_not_sent_even_if_it_overwrites(hub: Hub) -> None:
    group = overwriting(0)
    result = digest(group.tensors)
    assert hub.send(group, held=[of(0), result], name="psi") == PayloadRef(
        "", 0, ("psi",), tensors=result, held_bytes=4 * COUNT)


def test_groups_of_single_silos_are_forgotten_as_soon_as_they_are_written(hub: Hub) -> None:
    """With hundreds of silos, remembering them would take hundreds of models."""
    phase = hub.phase()
    for number in range(4):
        group = overwriting(number)
        gone = weakref.ref(group.tensors["w"])
        for held in ([group.base], []):
            phase.payload("psi", group, held)
        del group
        assert gone() is None
    phase.finish()
    assert hub.cache.digests() == []


def test_the_same_tensors_for_one_silo_and_for_all_are_kept_for_all(hub: Hub) -> None:
    phase, group = hub.phase(), overwriting(0)
    alone = phase.payload("psi", group, [])
    shared = phase.payload("psi", TensorGroup(group.tensors), [])
    phase.finish()
    assert shared == alone
    assert hub.cache.digests() == [digest(group.tensors)]


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=3), min_size=1, max_size=6),
       lost=st.sets(st.integers(0, 5)))
def test_whatever_silos_hold_every_payload_is_readable_with_it_and_gives_the_version(
        tmp_path_factory: pytest.TempPathFactory, rounds: list[list[set[int]]], lost: set[int]) -> None:
    """Silos say that they hold some versions, also of the future; a payload may refer to nothing else."""
    hub = Hub(tmp_path_factory.mktemp("hub"))
    for number, silos in enumerate(rounds):
        if number in lost:
            hub.cache.collect((), spare=0)
        phase, group = hub.phase(), SMALL[number]
        for held in silos:
            digests = {SMALL_DIGESTS[each] for each in held}
            written = phase.payload("model", group, digests)
            assert written.tensors == SMALL_DIGESTS[number]
            if not written.digest:
                assert number in held
                continue
            assert written.reference == "" or written.reference in digests
            assert digest(hub.received(written).tensors) == SMALL_DIGESTS[number]
        phase.finish()


SMALL = [version(number, size=64) for number in range(13)]
SMALL_DIGESTS = [digest(group.tensors) for group in SMALL]
