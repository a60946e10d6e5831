"""Task messages and the dataclasses of the contract are each other's inverse, and hostile messages are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semisilo.common.data.form import AugmentationSettings, ImageForm, Reading
from semisilo.common.errors import BadConfiguration, BadPayload
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.methods.contract import ModelSettings, PayloadRef, TaskSpec
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.uplink import Uplink
from semisilo.common.rpc.convert import (
    check_metrics,
    evaluation_from_proto,
    evaluation_to_proto,
    numerics_from_proto,
    numerics_to_proto,
    reference_from_proto,
    reference_to_proto,
    task_from_proto,
    task_to_proto,
)
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire import tensors_pb2
from tests.each_of import each_of


def make_task(**changes: object) -> TaskSpec:
    values: dict[str, object] = {
        "task_id": "first/3/train/hospital-a", "study": "first", "round": 3, "rounds": 20, "phase": "train",
        "silo": "hospital-a", "method": "semifl", "settings": {"lr": 0.03, "local_epochs": 5},
        "model": ModelSettings(name="small_cnn", classes=("basophil", "éosinophile"), normalisation="group"),
        "image": ImageForm(size=28, channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 1 / 3), resize="crop"),
        "augmentation": AugmentationSettings(policy="small", vertical_flip=True, without=("Invert",)),
        "numerics": Numerics(threads=2, deterministic=False, precision="bf16", memory_format="channels_last"),
        "payloads": (PayloadRef("ab" * 32, 1234, ("model", "batch_norm")),), "last_folded_round": 2, "seed": -5,
        "deadline_unix": 1_800_000_000.25,
        "uplink": Uplink(aim="smallest", values="int8", top_k=0.01, rounding="nearest", error_feedback=False),
    }
    return TaskSpec(**{**values, **changes})  # type: ignore[arg-type]


def test_a_task_survives_the_journey_through_its_message() -> None:
    task = make_task()
    message = pb.Task.FromString(task_to_proto(task, report_interval_seconds=2.5).SerializeToString())
    assert task_from_proto(message, silo="hospital-a") == task
    assert message.report_interval.ToMilliseconds() == 2500


def test_parts_that_are_equal_in_all_tasks_are_read_once_and_refused_every_time() -> None:
    message = task_to_proto(make_task(), report_interval_seconds=2.5)
    first, second = (task_from_proto(message, silo="hospital-a") for _ in range(2))
    for name in ("model", "image", "augmentation", "numerics", "uplink"):
        assert getattr(first, name) is getattr(second, name)
    message.image.size = 32
    assert task_from_proto(message, silo="hospital-a").image == replace(first.image, size=32)
    message.model.classes.append(message.model.classes[0])
    for _ in range(2):
        with pytest.raises(BadPayload):
            task_from_proto(message, silo="hospital-a")


@each_of("reading", [
    Reading(), Reading(window="image", frames="all", slices="all", axis="coronal"),
    Reading(window=(-600.5, 1500.0), window_number=2, frames=8, slices=12, axis="sagittal")])
def test_how_deep_images_are_read_travels_in_every_task(reading: Reading) -> None:
    task = make_task(image=replace(make_task().image, reading=reading))
    message = pb.Task.FromString(task_to_proto(task, report_interval_seconds=1.0).SerializeToString())
    assert task_from_proto(message, silo="hospital-a") == task


def test_whether_each_image_is_standardised_by_itself_travels_in_every_task() -> None:
    task = make_task(image=replace(make_task().image, standardise="image"))
    message = pb.Task.FromString(task_to_proto(task, report_interval_seconds=1.0).SerializeToString())
    assert task_from_proto(message, silo="hospital-a") == task
    plain = task_to_proto(make_task(), report_interval_seconds=1.0)
    assert plain.image.standardise == ""
    assert task_from_proto(plain, silo="hospital-a").image.standardise == "study"


def test_a_task_of_a_coordinator_that_knows_no_reading_asks_for_the_default() -> None:
    message = task_to_proto(make_task(), report_interval_seconds=1.0)
    message.image.ClearField("reading")
    assert task_from_proto(message, silo="hospital-a").image.reading == Reading()


@each_of(("field", "value"), [
    ("window", "auto"), ("window", ""), ("window_number", 0), ("frames", "last"), ("frames", "9" * 4000),
    ("frames", ""), ("axis", "top"), ("slices", "first"), ("slices", "-1")])
def test_a_reading_that_does_not_exist_is_refused(field: str, value: object) -> None:
    message = task_to_proto(make_task(), report_interval_seconds=1.0)
    setattr(message.image.reading, field, value)
    with pytest.raises(BadConfiguration, match="image"):
        task_from_proto(message, silo="hospital-a")


@each_of("width", [0.0, -1.0, float("nan"), float("inf")])
def test_a_window_without_width_is_refused(width: float) -> None:
    message = task_to_proto(make_task(), report_interval_seconds=1.0)
    message.image.reading.window, message.image.reading.window_width = "fixed", width
    with pytest.raises(BadConfiguration, match="window"):
        task_from_proto(message, silo="hospital-a")


def test_a_task_without_deadline_has_none_after_the_journey() -> None:
    task = make_task(deadline_unix=0.0)
    message = task_to_proto(task, report_interval_seconds=1.0)
    assert not message.HasField("deadline_time")
    assert task_from_proto(message, silo="hospital-a").deadline_unix == 0.0


def test_a_task_of_a_coordinator_that_knows_no_forms_asks_for_raw_updates() -> None:
    message = task_to_proto(make_task(), report_interval_seconds=1.0)
    message.ClearField("uplink")
    assert task_from_proto(message, silo="hospital-a").uplink == Uplink()


def test_a_task_may_name_tensors_that_the_silo_holds_or_builds_on() -> None:
    payloads = (PayloadRef("", 0, ("model",), tensors="cd" * 32),
                PayloadRef("ab" * 32, 1234, ("batch_norm",), tensors="ef" * 32, reference="01" * 32))
    message = pb.Task.FromString(task_to_proto(make_task(payloads=payloads),
                                               report_interval_seconds=1.0).SerializeToString())
    assert task_from_proto(message, silo="hospital-a").payloads == payloads


def test_the_silo_of_a_task_comes_from_the_certificate_and_never_from_the_message() -> None:
    message = task_to_proto(make_task(silo="hospital-a"), report_interval_seconds=1.0)
    assert task_from_proto(message, silo="hospital-b").silo == "hospital-b"


@pytest.mark.slow
@given(seed=st.integers(-2**63, 2**63 - 1), mean=st.floats(-10, 10, allow_nan=False),
       settings_=st.dictionaries(st.text(max_size=8), st.one_of(st.booleans(), st.integers(-2**53, 2**53),
                                                                st.floats(allow_nan=False, allow_infinity=False),
                                                                st.text(max_size=8)), max_size=4))
@settings(max_examples=60)
def test_numbers_and_settings_arrive_bit_for_bit(seed: int, mean: float, settings_: dict[str, object]) -> None:
    task = make_task(seed=seed, settings=settings_, image=ImageForm(size=8, channels=1, mean=(mean,), std=(1e-300,)))
    message = pb.Task.FromString(task_to_proto(task, report_interval_seconds=1.0).SerializeToString())
    assert task_from_proto(message, silo=task.silo) == task


def _set(path: str, value: object) -> Callable[[pb.Task], None]:
    def change(message: pb.Task) -> None:
        *parents, name = path.split(".")
        target = message
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    return change


@each_of(("change", "error"), [
    (_set("task_id", ""), BadPayload),
    (_set("task_id", "x" * 641), BadPayload),
    (_set("task_id", "first/3\nerror: all is lost"), BadPayload),
    (_set("study", "../../etc"), BadPayload),
    (_set("study", ".."), BadPayload),
    (_set("study", "x" * 129), BadPayload),
    (_set("phase", "train/../x"), BadPayload),
    (_set("method", ""), BadPayload),
    (_set("round", 0), BadPayload),
    (_set("round", 21), BadPayload),
    (_set("last_folded_round", 4), BadPayload),
    (_set("last_folded_round", -1), BadPayload),
    (_set("settings_json", "[1]"), BadPayload),
    (_set("settings_json", "{"), BadPayload),
    (_set("settings_json", '{"lr": NaN}'), BadPayload),
    (_set("settings_json", "[" * 60_000), BadPayload),
    (_set("settings_json", '{"x": "' + "y" * 65_536 + '"}'), BadPayload),
    (_set("numerics.threads", -1), BadPayload),
    (_set("numerics.precision", "fp8"), BadConfiguration),
    (_set("numerics.memory_format", "channels_first"), BadConfiguration),
    (_set("numerics.threads", 100_000), BadPayload),
    (_set("image.size", 5000), BadConfiguration),
    (_set("image.channels", 2), BadConfiguration),
    (_set("image.resize", "squeeze"), BadConfiguration),
    (_set("image.standardise", "both"), BadConfiguration),
    (_set("augmentation.policy", "smal"), BadConfiguration),
    (_set("model.normalisation", "batch"), BadConfiguration),
    (_set("model.name", "a\x1b[2J"), BadPayload),
    (lambda m: m.image.mean.append(0.0), BadPayload),
    (lambda m: m.image.std.__setitem__(0, 0.0), BadConfiguration),
    (lambda m: m.image.mean.__setitem__(0, float("nan")), BadPayload),
    (lambda m: m.model.classes.append("basophil"), BadPayload),
    (lambda m: m.model.classes.extend(str(i) for i in range(10_000)), BadPayload),
    (lambda m: m.payloads.extend([m.payloads[0]] * 1024), BadPayload),
    (lambda m: setattr(m.payloads[0], "digest", b"short"), BadPayload),
    (lambda m: setattr(m.payloads[0], "size_bytes", 0), BadPayload),
    (lambda m: m.payloads[0].groups.append("model"), BadPayload),
    (lambda m: m.payloads[0].groups.append("g" * 129), BadPayload),
    (lambda m: setattr(m.payloads[0], "tensors_digest", bytes(32)), BadPayload),  # of two groups together
    (lambda m: setattr(m.payloads[0], "reference_digest", b"short"), BadPayload),
    (_set("uplink.aim", "biggest"), BadConfiguration),
    (_set("uplink.aim", ""), BadConfiguration),
    (_set("uplink.values", "int2"), BadConfiguration),
    (_set("uplink.rounding", "up"), BadConfiguration),
    (_set("uplink.top_k", 0.0), BadPayload),
    (_set("uplink.top_k", 1.5), BadPayload),
    (_set("uplink.top_k", float("nan")), BadPayload),
])
def test_a_hostile_task_is_refused(change: Callable[[pb.Task], None], error: type[Exception]) -> None:
    message = task_to_proto(make_task(), report_interval_seconds=1.0)
    task_from_proto(message, silo="hospital-a")  # the control: without the change it is taken
    change(message)
    with pytest.raises(error):
        task_from_proto(message, silo="hospital-a")


def test_an_empty_message_is_refused_and_not_taken_for_defaults() -> None:
    with pytest.raises(BadPayload):
        task_from_proto(pb.Task(), silo="hospital-a")
    with pytest.raises(BadPayload):
        reference_from_proto(tensors_pb2.PayloadReference())
    with pytest.raises(BadPayload):
        numerics_from_proto(pb.Numerics())


def test_numerics_of_a_coordinator_that_names_no_precision_and_no_memory_format_are_those_of_its_version() -> None:
    assert numerics_from_proto(pb.Numerics(threads=2, deterministic=True)) == Numerics(
        threads=2, precision="fp32", memory_format="contiguous")


def test_threads_may_be_left_to_the_silo() -> None:
    assert numerics_from_proto(numerics_to_proto(Numerics(threads=0))).threads == 0


def test_a_payload_reference_survives_the_journey() -> None:
    reference = PayloadRef("00ff" * 16, 2**35, ("psi", "helper_psi/0"))
    assert reference_from_proto(reference_to_proto(reference)) == reference


def test_metrics_must_be_few_and_finite() -> None:
    assert check_metrics({"loss": 1, "label_ratio": 0.5}) == {"label_ratio": 0.5, "loss": 1.0}
    for metrics in ({"loss": float("nan")}, {"loss": float("inf")}, {"": 1.0}, {"x" * 129: 1.0},
                    {str(i): 0.0 for i in range(257)}):
        with pytest.raises(BadPayload):
            check_metrics(metrics)


# Evaluations ----------------------------------------------------------------------------------------------------------

EVALUATION = SiteEvaluation(study="first", round=4, classes=(
    ClassResult(images=8, correct=5, auroc=0.75), ClassResult(images=2, correct=0), ClassResult(images=0, correct=0)))


def test_an_evaluation_arrives_as_it_was_sent() -> None:
    sent = evaluation_to_proto(EVALUATION)
    assert evaluation_from_proto(pb.SiteEvaluation.FromString(sent.SerializeToString())) == EVALUATION


def test_an_evaluation_of_images_with_several_labels_arrives_as_it_was_sent() -> None:
    several = SiteEvaluation(study="first", round=4, classes=(
        ClassResult(images=0, correct=0, others=9, correct_others=9),
        ClassResult(images=3, correct=2, auroc=0.75, others=6, correct_others=0, average_precision=0.5)))
    sent = evaluation_to_proto(several).SerializeToString()
    assert evaluation_from_proto(pb.SiteEvaluation.FromString(sent)) == several


@each_of("changes", [
    {"study": ""}, {"study": "../x"}, {"round": -1}, {"classes": []}, {"labels_alone": True},
    {"classes": [pb.ClassResult(image_count=1, correct_count=2)]},
    {"classes": [pb.ClassResult(image_count=-1)]},
    {"classes": [pb.ClassResult(image_count=2**40)]},
    {"classes": [pb.ClassResult(image_count=3, auroc=float("nan")), pb.ClassResult(image_count=3)]},
    {"classes": [pb.ClassResult(image_count=3, auroc=1.5), pb.ClassResult(image_count=3)]},
    {"classes": [pb.ClassResult(image_count=1)] * 10_001}])
def test_an_evaluation_that_cannot_be_is_a_bad_payload(changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"study": "s", "round": 1, "classes": [pb.ClassResult(image_count=1)]}
    evaluation_from_proto(pb.SiteEvaluation(**good))
    with pytest.raises(BadPayload):
        evaluation_from_proto(pb.SiteEvaluation(**good | changes))


@each_of(("model_round", "measure", "read"), [
    (None, "", ""), (0, "auroc", "auroc"), (1, "recall:x", "recall:x"), (1, "a measure of a later version", "")])
def test_a_task_says_which_model_it_brings_and_by_what_rounds_are_compared(model_round: int | None, measure: str,
                                                                          read: str) -> None:
    sent = task_to_proto(make_task(round=2, model_round=model_round, measure=measure), report_interval_seconds=1.0)
    found = task_from_proto(sent, silo="a")
    assert (found.model_round, found.measure) == (model_round, read)


def test_the_digest_of_a_networks_file_crosses_and_nothing_else_that_is_not_one() -> None:
    model = ModelSettings(name="my_net.py:build", classes=("a", "b"), factory_sha256="ab" * 32)
    sent = task_to_proto(make_task(model=model), report_interval_seconds=1.0)
    assert sent.model.factory_sha256 == bytes.fromhex("ab" * 32)
    assert task_from_proto(sent, silo="a").model == model
    sent.model.factory_sha256 = b"x"
    with pytest.raises(BadPayload, match="1 bytes instead of 32"):
        task_from_proto(sent, silo="a")


@each_of("model_round", [-1, 2, 2**40])
def test_a_task_cannot_bring_the_model_of_its_own_or_a_later_round(model_round: int) -> None:
    sent = task_to_proto(make_task(round=2), report_interval_seconds=1.0)
    sent.model_round = model_round
    with pytest.raises(BadPayload, match="model of round"):
        task_from_proto(sent, silo="a")


def test_which_model_of_a_round_it_is_crosses_in_tasks_and_evaluations() -> None:
    sent = task_to_proto(make_task(round=2, model_round=1, model_digest="ab" * 32), report_interval_seconds=1.0)
    assert task_from_proto(sent, silo="a").model_digest == "ab" * 32
    sent.model_digest = b"x"
    with pytest.raises(BadPayload, match="1 bytes instead of 32"):
        task_from_proto(sent, silo="a")
    found = SiteEvaluation(study="s", round=1, model_digest="ab" * 32, classes=(ClassResult(images=2, correct=1),))
    told = evaluation_to_proto(found)
    assert evaluation_from_proto(told) == found
    told.model_digest = b"x"
    with pytest.raises(BadPayload, match="1 bytes instead of 32"):
        evaluation_from_proto(told)
    told.ClearField("model_digest")
    assert evaluation_from_proto(told).model_digest == "", "a silo of an earlier version"
