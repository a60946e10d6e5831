"""What the coordinator tells `silo check` of its study: enough for a forecast, and nothing about others by name."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import grpc
import pytest

from semisilo.common import __version__
from semisilo.common.config import canonical_json, to_dict
from semisilo.common.methods.contract import GroupLayout, Meaning, Phase, TensorSpec
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivacySettings, contribution_of
from semisilo.common.methods.parts.secure_sum import totals_of
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.coordinator.ledger import ledger as ledger_module
from semisilo.coordinator.ledger.costs import Cost, add_costs
from semisilo.coordinator.ledger.records import StudyRow, study_row
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.secure_sums import Sums, masked_layout
from semisilo.coordinator.studies import describe
from semisilo.coordinator.studies.describe import describe_study
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.silo.check.needs import needs_of
from tests.coordinator.federation_in_memory import Coordinator, content_of, study_config
from tests.coordinator.hub_over_tls import hub
from tests.coordinator.ledger_fixture import fill_study
from tests.processes import PATIENCE_SECONDS


def run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_SECONDS))  # type: ignore[arg-type]


def test_a_silo_hears_what_the_study_asks_without_joining_or_being_seen(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as made:
            before = {row.name: row.seen_unix for row in made.coordinator.roster.silos()}
            answer = await made.silos["alpha"].DescribeStudy(pb.DescribeStudyRequest(version="9" * 10_000), timeout=300)
            assert (answer.study, answer.state, answer.round, answer.round_count) == ("s", "running", 1, 3)
            assert (answer.version, answer.method, answer.dense_bytes) == (__version__, "semifl", 16)
            assert abs(answer.coordinator_time.seconds - time.time()) < 60
            assert {row.name: row.seen_unix for row in made.coordinator.roster.silos()} == before
            needs, found = needs_of(answer, silo="alpha")  # what the silo makes of it
            assert found is not None
            assert needs is not None
            assert (needs.begun, needs.task.image.size, needs.task.model.classes) == (True, 8, ("a", "b"))
            assert needs.task.settings["confidence_threshold"] == 0.95
    run(work())


def test_the_settings_of_a_study_are_checked_once_however_many_silos_ask(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path)
    coordinator.enroll("alpha", "beta")
    coordinator.ledger.queue_study("settings-once", study_config())
    with mock.patch.object(describe, "config_from_dict", wraps=config_from_dict) as checked:
        first, second = (describe_study(coordinator.ledger, silo) for silo in ("alpha", "beta"))
        assert first == second
        assert checked.call_count == 1
        coordinator.ledger.query("UPDATE study SET config_json = ? WHERE name = 'settings-once'",
                                 canonical_json(study_config(round_timeout="7m")))
        third = describe_study(coordinator.ledger, "alpha")
        assert third is not None
        assert third.round_timeout_seconds == 420, "other settings are another text"
    coordinator.close()


@pytest.mark.parametrize("masked", [False, True])
def test_members_are_counted_where_masks_depend_on_how_many_there_are_and_are_never_listed(tmp_path: Path,
                                                                                          masked: bool) -> None:
    """Each of a thousand silos that asked had the names of all read."""
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False, silos=("alpha", "beta", "gamma"))
    tables = {**filled.ledger.study("first").config, "privacy": to_dict(PrivacySettings(secure_aggregation=masked)),
              "model": {"name": "small_cnn", "normalisation": "group"},
              "method": {"name": "fedavg", "scenario": "labels-at-silo", "objective": "sl"}}
    filled.ledger.query("UPDATE study SET config_json = ?", canonical_json(tables))
    asked: list[str] = []
    filled.ledger._db.set_trace_callback(asked.append)
    found = describe_study(filled.ledger, "alpha")
    filled.ledger._db.set_trace_callback(None)
    assert found is not None
    assert (found.masked_update_bytes > 0) == masked
    assert ["count(*)" in sql for sql in asked if "FROM silo " in sql] == ([True] if masked else [])
    filled.roster.revoke("beta")
    assert filled.roster.count_members() == len(filled.roster.members()) == 2


def test_a_stranger_and_a_silo_that_has_left_are_told_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as made:
            made.coordinator.roster.leave("alpha")
            with pytest.raises(grpc.aio.AioRpcError, match="has left this federation") as raised:
                await made.silos["alpha"].DescribeStudy(pb.DescribeStudyRequest(), timeout=300)
            assert ("semisilo-error-code", "SILO_LEFT") in [
                (key, value) for key, value in raised.value.trailing_metadata() or ()]
    run(work())


def test_own_rounds_are_ones_own_and_of_others_only_the_median_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with hub(tmp_path) as made:
            for silo, task in made.tasks.items():
                await made.coordinator.deliver(task, content_of(task))
                add_costs(made.coordinator.ledger, [
                    Cost(study="s", round=1, phase="train", silo=silo, direction=direction, kind=kind, item="x",
                         bytes=number * (1 if silo == "alpha" else 1000))
                    for direction, kind, number in (("down", "payload", 40), ("down", "wire", 50), ("up", "wire", 130))
                ])  # type: ignore[arg-type]
            while made.coordinator.ledger.round("s", 1).closed_unix is None:
                await asyncio.sleep(0.01)
            answer = await made.silos["alpha"].DescribeStudy(pb.DescribeStudyRequest(), timeout=300)
            (own,) = answer.own_rounds
            assert (own.round, own.payload_down_bytes, own.wire_down_bytes, own.wire_up_bytes) == (1, 40, 50, 130)
            assert own.payload_up_bytes == 100
            assert own.training_duration.ToMilliseconds() == 100
            assert answer.typical_update_bytes == 100
            assert answer.HasField("typical_round_duration")
            assert b"beta" not in answer.SerializeToString()
    run(work())


@pytest.mark.parametrize(("privacy", "bytes_out"), [
    (PrivacySettings(), 0), (PrivacySettings(secure_aggregation=True), 45),
    (PrivacySettings(secure_aggregation=True, word_bits=32), 80),
    (PrivacySettings(secure_aggregation=True, word_bits=32, random_k="10%"), 16)])
def test_the_bytes_of_a_masked_update_are_known_before_the_first_round(tmp_path: Path, privacy: PrivacySettings,
                                                                       bytes_out: int) -> None:
    async def work() -> None:
        async with hub(tmp_path) as made:
            ledger = made.coordinator.ledger
            config = replace(config_from_dict(ledger.study("s").config, where="s"), privacy=privacy)
            frozen = ledger.study("s").frozen
            assert frozen is not None
            with ledger.transaction() as db:
                db.execute("UPDATE study SET config_json = ?, frozen_json = ?",
                           (canonical_json(config), canonical_json(replace(frozen, dense_bytes=72))))
            answer = await made.silos["alpha"].DescribeStudy(pb.DescribeStudyRequest(), timeout=300)
            assert answer.masked_update_bytes == bytes_out  # 18 numbers and two more, or 2 and two more
            needs, _ = needs_of(answer, silo="alpha")
            assert needs is not None
            assert needs.masked_update_bytes == bytes_out
            assert needs.masked_share == privacy.random_share
    run(work())


@pytest.mark.parametrize(("method", "privacy", "bits"), [
    ({"name": "fednova", "scenario": "labels-at-silo", "objective": "sl"}, PrivacySettings(secure_aggregation=True),
     18),
    ({"name": "fedavg", "scenario": "labels-at-silo", "objective": "sl", "weighting": "uniform"},
     PrivacySettings(secure_aggregation=True, word_bits=16, dp=DifferentialPrivacy(
         unit="silo", noise_multiplier=2.0, clip_norm=0.5, honest_silos=6)), 19),
    ({"name": "fedavg", "scenario": "labels-at-silo", "objective": "sl", "weighting": "uniform",
      "local_epochs": 1, "labelled_batch": 3000, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0.0},
     PrivacySettings(secure_aggregation=True, word_bits=16, dp=DifferentialPrivacy(
         noise_multiplier=1.0, clip_norm=0.5, honest_silos=6)), 0)])
def test_the_forecast_of_a_masked_update_is_what_the_engine_then_asks_for(
        tmp_path: Path, method: dict[str, object], privacy: PrivacySettings, bits: int) -> None:
    """Noise that silos share needs wider words than the study says: the size of the update follows from them. Of ten
    million numbers rounding needs a clip of 2 sqrt(10^7) = 6325 levels; 19 bits give
    6507, (2^18 - 1) / 12 / 3.36."""
    silos = tuple(f"s{index:02d}" for index in range(12))
    filled = fill_study(tmp_path, rounds=3, done=1, complete=False, silos=silos)
    elements, row = 10_000_000, filled.ledger.study("first")
    assert row.frozen is not None
    frozen = replace(row.frozen, dense_bytes=4 * elements)
    tables = {**row.config, "model": {"name": "small_cnn", "normalisation": "group"}, "method": method,
              "privacy": to_dict(privacy), "study": {"seed": 7, "rounds": 3}}
    with filled.ledger.transaction() as db:
        db.execute("UPDATE study SET config_json = ?, frozen_json = ?",
                   (canonical_json(tables), canonical_json(frozen)))
    told = describe_study(filled.ledger, silos[0])
    assert told is not None

    settings = config_from_dict(tables, where="first").method.settings
    sums = Sums(filled.ledger, filled.roster)
    sums.begin(privacy, seed=7)
    opened = filled.ledger.open_round("first", 2, start_digest="", sample=silos, phases=sums.phases((Phase("train"),)))
    sums.open(opened, opened.phases[0], silos)
    images, dp = getattr(settings, "expected_images", 0), privacy.dp
    form = sums.form(opened, opened.phases[0], silos, largest_weights=(1.0,), elements=elements, reference=0,
                     totals=totals_of(settings), images=images, contribution=0.0 if dp is None or dp.unit == "silo" else
                     contribution_of(dp, settings, lr=0.0123))
    expects = {"model": GroupLayout(Meaning.DIFFERENCE, "11" * 32, (TensorSpec("w", (elements,), "float32"),))}
    (words,) = masked_layout(expects, form)["masked"].tensors
    assert told.masked_update_bytes == words.num_elements
    assert form.bits == bits or (not bits and form.bits > 16)


def test_the_next_study_of_the_queue_is_told_before_it_has_begun_and_none_when_there_is_none(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path)
    assert describe_study(coordinator.ledger, "alpha") is None
    coordinator.ledger.queue_study("s", study_config())
    found = describe_study(coordinator.ledger, "alpha")
    assert found is not None
    assert (found.name, found.state, found.round, found.rounds) == ("s", "queued", 0, 3)
    assert (found.image, found.dense_bytes, found.own_rounds, found.typical_update_bytes) == (None, 0, (), 0)
    coordinator.close()


def test_of_many_studies_the_one_that_is_next_is_read_and_no_other(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A silo may ask at any rate: with 60 studies in the queue each answer took 16 ms."""
    coordinator = Coordinator(tmp_path)
    ledger = coordinator.ledger
    for name in ("first", "second", "third", "fourth"):
        ledger.queue_study(name, study_config())
    ledger.set_study_state("first", StudyState.STOPPED)
    ledger.set_study_state("third", StudyState.PREPARING)
    read: list[str] = []

    def row_of(row: sqlite3.Row) -> StudyRow:
        read.append(row["name"])
        return study_row(row)

    monkeypatch.setattr(ledger_module, "study_row", row_of)
    found = describe_study(ledger, "alpha")
    assert found is not None
    assert (found.name, read) == ("third", ["third"]), "one that has begun goes before those that wait"
    for name, after in (("third", "second"), ("second", "fourth")):
        ledger.set_study_state(name, StudyState.STOPPED)
        found = describe_study(ledger, "alpha")
        assert found is not None
        assert found.name == after
    coordinator.close()
