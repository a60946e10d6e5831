"""What the coordinator asks of its compute process: every request has a handler, and arrives as it was sent."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from semisilo.common.config import to_dict
from semisilo.common.data.form import ImageForm
from semisilo.common.measures.intervals import Interval
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import GroupLayout, Meaning, PayloadRef, Phase, TensorSpec, UpdateHeader
from semisilo.common.methods.numerics import NumericsRecord
from semisilo.common.payload.usage import Encoded
from semisilo.common.process.messages import Request, answer_from_json, as_json, handlers_of, run_operation
from semisilo.coordinator.compute import messages
from semisilo.coordinator.compute.operations import Operations
from semisilo.coordinator.ledger.records import FrozenStudy, HistoryPoint, LabelledOnlyResult
from semisilo.coordinator.studies.study_file import StudyConfig, config_from_dict
from tests.each_of import each_of

FROZEN = FrozenStudy(classes=("a", "b"), image=ImageForm(size=8, channels=1, mean=(0.5,), std=(0.25,)), num_labelled=4,
                     num_validation=0, num_test=3, num_parameters=5, dense_bytes=20, left_random=("head.weight",))
NUMERICS = NumericsRecord(device="cpu", torch="2", cpu_capability="AVX2", threads=1, deterministic=True)
UPDATE = messages.SpooledUpdate(header=UpdateHeader("ä", 10, {"loss": 0.1}), path=Path("spool/12"), kept=None)


def config(method: str = "semifl", **settings: object) -> StudyConfig:
    scenarios = METHODS[method].scenarios  # a method may have nothing to train without labels at silos
    return config_from_dict({
        "study": {"rounds": 3, "seed": -(2**63)},
        "data": {"labelled": "digits", "classes": ["a", "b"], "image": {"size": 8, "channels": 1, "mean": [0.3]}},
        "method": {"name": method, **settings, "scenario": "labels-at-silo" if
                   "labels-at-silo" in scenarios else scenarios[0]}}, where="test")


def opening(study: StudyConfig, frozen: FrozenStudy | None = None, *, threads: int = 0) -> messages.OpenStudy:
    return messages.OpenStudy(name="first", config=study, study_folder=Path("studies/first"),
                              payloads_folder=Path("payloads"), num_silos=2, frozen=frozen, threads=threads)


def arrived(message: object) -> object:
    """What another process makes of it."""
    if isinstance(message, Request):
        found: list[object] = []

        def note(request: object) -> object:
            found.append(request)
            return request

        handler = type(message).handled_by(note)
        run_operation({message.operation(): handler}, message.operation(), as_json(message))
        return found[0]
    request = next(each for each in requests() if each.answer_type() is type(message))
    return answer_from_json(request.__new__(request), as_json(message))


def requests() -> list[type[Request[object]]]:
    return [each for _, each in inspect.getmembers(messages, inspect.isclass)
            if issubclass(each, Request) and each is not Request]


def test_every_request_of_the_coordinator_has_its_handler() -> None:
    handlers = handlers_of(Operations(lambda fraction, text: None))
    assert {each.operation(): each for each in requests()} == {
        name: handler.request for name, handler in handlers.items()}
    for each in requests():
        assert each.answer_type().__module__ == messages.__name__


@each_of("method", sorted(METHODS))
def test_the_settings_of_every_method_arrive_as_what_they_are(method: str) -> None:
    request = opening(config(method), FROZEN)
    found = arrived(request)
    assert found == request
    assert isinstance(found, messages.OpenStudy)
    assert type(found.config.method.settings) is METHODS[method].settings


@each_of("message", [
    opening(config(lr=0.25)),
    messages.OpenedStudy(frozen=FROZEN, numerics=NUMERICS),
    messages.Prepare(), messages.Prepared(state="ab", metrics={"accuracy": 1 / 3}),
    messages.Baseline(epochs=3, budget_seconds=1.5, patience=2, slice_seconds=0.5),
    messages.BaselineFound(done=False, result=None, progress=messages.BaselineProgress(
        epochs=3, planned=7, fraction=0.4, seconds_left=None)),
    messages.BaselineFound(done=True, result=LabelledOnlyResult(
        metrics={"accuracy": 0.1}, epochs=3, lr=0.1, batch_size=10, steps=7, num_labelled=30,
        history=(HistoryPoint(3, 0.5, 0.1),))),
    messages.Phases(state="ab", round=1, silos=3),
    messages.PhasesOfRound(phases=(Phase("train"), Phase("statistics", asks="roster", quorum="any"))),
    messages.Tasks(study="first", state="ab", round=1, phase=Phase("train"), silos={"ä": None, "b": "cd"},
                   held={"b": ("ef",)}, link_bytes_per_second=0.1),
    messages.WrittenTasks(
        tasks={"ä": messages.WrittenTask(settings={"lr": 0.1, "none": None, "list": [1, 2.5]},
                                         payloads=(PayloadRef("ab", 3, ("model",), tensors="cd"),))},
        expects={"model": GroupLayout(Meaning.DIFFERENCE, "ab", (TensorSpec("w", (), "float32"),))}),
    messages.CheckUpdate(study="first", state="ab", round=1, phase=Phase("train"), update=UPDATE),
    messages.CheckedUpdate(held=("ab",), encoded=(Encoded("planes", 1, 2, 3),)),
    messages.Aggregate(state="ab", round=1, phase=Phase("train"), updates=(UPDATE, UPDATE)),
    messages.Aggregated(state="ab", kept={"ä": None, "b": "cd"}, metrics={}),
    messages.Evaluate(state="ab", round=1), messages.Evaluated(metrics={"accuracy": 0.1 + 0.2}),
    messages.Compare(state="ab", labels_alone="cd"),
    messages.Compared(patients=3, intervals={"recall:a:b c": Interval(-0.25, 1.0)}),
    messages.Export(state="ab", path=Path("model.safetensors")), messages.Exported(path=Path("model.safetensors"))],
    ids=lambda message: type(message).__name__)
def test_requests_and_answers_arrive_as_they_were_sent(message: object) -> None:
    assert arrived(message) == message


def test_a_fresh_process_opens_the_study_with_what_was_frozen_the_first_time() -> None:
    request = opening(config())
    assert request.reopening(messages.OpenedStudy(frozen=FROZEN, numerics=NUMERICS)) == opening(
        config(), FROZEN, threads=NUMERICS.threads)
    assert messages.Prepare().reopening(messages.Prepared(state="", metrics={})) is None


def test_what_a_study_file_says_of_its_method_is_kept_in_the_ledger_as_plain_tables() -> None:
    tables = to_dict(config(lr=0.25))
    assert tables["method"]["settings"]["lr"] == 0.25
    assert config_from_dict(tables, where="test") == config(lr=0.25)


def test_the_light_process_needs_no_torch_for_its_messages() -> None:
    code = "import sys, semisilo.coordinator.compute.messages; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
