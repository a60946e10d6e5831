"""On how many of how many silos a study ran: in the ledger, and as the first thing that every reader says."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from semisilo.coordinator.cli.status import render
from semisilo.coordinator.export.card import card_silos
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.monitoring.status import gather
from semisilo.coordinator.monitoring.summary import audit, summarise
from semisilo.coordinator.page.reader import PageReader, PageSource
from semisilo.coordinator.report.page import render_page
from semisilo.coordinator.studies.participation import ParticipationFacts, participation_of
from tests.coordinator.ledger_fixture import (
    Filled,
    answer,
    digest,
    open_collecting_round,
    open_federation_with_silos,
    study_config,
)

SILOS = ("alpha", "beta", "gamma")
R, U, A, E = TaskState.REFUSED, TaskState.UPDATED, TaskState.ABSTAINED, TaskState.EXPIRED


def studied(folder: Path, *rounds: Mapping[str, TaskState], members: tuple[str, ...] = SILOS,
            failed: tuple[int, ...] = (), ended: bool = True) -> Filled:
    """A study with rounds in which silos have answered so."""
    filled = open_federation_with_silos(folder, silos=members)
    ledger = filled.ledger
    ledger.queue_study("s", study_config(rounds=len(rounds)))
    for state in (StudyState.PREPARING, StudyState.WAITING, StudyState.RUNNING):
        ledger.set_study_state("s", state)
    for number, answers in enumerate(rounds, 1):
        open_collecting_round(ledger, "s", number, tuple(answers))
        for silo, state in answers.items():
            answer(ledger, "s", number, silo, state, ratio=0.5)
        if number in failed:
            ledger.fail_round(ledger.round("s", number), reason="too few")
            continue
        ledger.close_phase(ledger.phase("s", number, 0))
        ledger.set_round_state("s", number, RoundState.EVALUATING, state_digest=digest(str(number)))
        ledger.commit_round("s", number, metrics={})
    if ended:
        ledger.set_study_state("s", StudyState.COMPLETED)
    return filled


def said(filled: Filled) -> ParticipationFacts:
    return participation_of(filled.ledger, filled.ledger.study("s"))


@pytest.mark.parametrize(("rounds", "text"), [
    (({"alpha": U, "beta": U, "gamma": U},), "ran on 3 of 3 silos"),
    (({"alpha": U, "beta": R, "gamma": R},) * 2,
     "ran on 1 of 3 silos; refused every round: beta, gamma (METHOD_NOT_PERMITTED)"),
    (({"alpha": U, "beta": R, "gamma": U}, {"alpha": U, "beta": U, "gamma": E}), "ran on 3 of 3 silos"),
    (({"alpha": U, "beta": A}, {"alpha": U, "beta": E}),
     "ran on 2 of 3 silos; never asked: gamma; sent no update: beta"),
    (({"alpha": R, "beta": E, "gamma": E},),
     "ran on 0 of 3 silos; refused every round: alpha (METHOD_NOT_PERMITTED); no answer in a committed round: beta,"
     " gamma")])
def test_a_silo_takes_part_when_a_committed_round_has_an_answer_of_it_that_counts(
        tmp_path: Path, rounds: tuple[Mapping[str, TaskState], ...], text: str) -> None:
    assert said(studied(tmp_path / "hub", *rounds)).text == text


def test_what_came_in_a_round_that_failed_is_no_part(tmp_path: Path) -> None:
    filled = studied(tmp_path / "hub", {"alpha": U, "beta": U, "gamma": U}, {"alpha": U, "beta": R, "gamma": R},
                     failed=(1,))
    found = said(filled)
    assert (found.took_part, found.silos) == (1, 3)
    assert found.text == "ran on 1 of 3 silos; no answer in a committed round: beta, gamma"
    card = card_silos(summarise(filled.ledger, "s"), filled.roster.silos(), up_to=2, names=True)
    assert [each.took_part for each in card.silos] == [True, False, False]


def test_nothing_is_said_before_a_round_is_over_and_then_as_of_now(tmp_path: Path) -> None:
    filled = studied(tmp_path / "hub", ended=False)
    assert said(filled) == ParticipationFacts()
    filled.ledger.close()
    assert said(studied(tmp_path / "other", {"alpha": U, "beta": U}, ended=False)).text == \
        "has run on 2 of 3 silos; never asked: gamma"


def test_a_silo_that_was_set_aside_is_told_from_one_that_was_never_asked(tmp_path: Path) -> None:
    filled = studied(tmp_path / "hub", {"alpha": U}, ended=False)
    filled.roster.set_aside("beta", reason="scanner broken")
    assert said(filled).text == "has run on 1 of 3 silos; set aside: beta; never asked: gamma"
    filled.ledger.set_study_state("s", StudyState.COMPLETED)
    filled.roster.set_aside("gamma", reason="later, so that was not why")
    assert said(filled).text == "ran on 1 of 3 silos; set aside: beta; never asked: gamma"


def test_many_silos_are_counted_and_not_named(tmp_path: Path) -> None:
    members = tuple(f"silo-{number}" for number in range(9))
    found = said(studied(tmp_path / "hub", {"silo-0": U, **dict.fromkeys(members[1:5], R)}, members=members))
    assert found.text == "ran on 1 of 9 silos; refused every round: 4 (METHOD_NOT_PERMITTED); never asked: 4"
    assert [each.silo for each in found.refusing] == list(members[1:5])


def test_a_silo_that_was_revoked_counts_where_it_was_asked_and_one_that_joined_later_does_not(tmp_path: Path) -> None:
    filled = studied(tmp_path / "hub", {"alpha": U, "beta": U})
    filled.roster.revoke("alpha")
    filled.roster.revoke("gamma")
    filled.ledger.query("UPDATE study SET ended_unix = 1000")  # long before these have joined
    filled.roster.add_invitation(silo="delta", token_hash=b"d" * 32, expires_unix=4e9)
    filled.roster.use_invitation(b"d" * 32, key_fingerprint=b"f" * 32, certificate_der=b"c", serial=9,
                                 not_after_unix=4e9)
    filled.roster.joined("delta", version="0", methods=(), labelled_count=0, unlabelled_count=1, memory_study="",
                         memory_round=0)
    assert said(filled).text == "ran on 2 of 2 silos"


def test_every_reader_says_it_first_and_the_card_does_not_count_images_of_silos_that_took_no_part(
        tmp_path: Path) -> None:
    filled = studied(tmp_path / "hub", *[{"alpha": U, "beta": R, "gamma": R}] * 11)
    text = "ran on 1 of 3 silos; refused every round: beta, gamma (METHOD_NOT_PERMITTED)"

    console = Console(file=io.StringIO(), width=200)
    render(console, gather(filled.federation, filled.ledger, None))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert next(line for line in lines if line.startswith("s: ")) == f"s: {text}"

    summary = summarise(filled.ledger, "s")
    page = render_page(federation="f", address="a:1", study=summary, silos=filled.roster.silos(), figures=(),
                       audit=audit(filled.ledger, "s"), state_digest="")
    assert f"<p>R{text[1:]}.</p>" in page
    assert "beta refused every round (11): METHOD_NOT_PERMITTED: silo.toml does not list semifl" in page

    reader = PageReader(PageSource(federation="f", address="a:1", ledger=filled.ledger.path, read_only=False,
                                   folder=tmp_path / "the hub"), filled.ledger)
    found = reader.study("s").participation
    assert found.text == reader.federation(None).studies[0].participation.text == text
    assert [(each.silo, each.rounds, each.reason) for each in found.refusing] == [
        (silo, 11, "METHOD_NOT_PERMITTED: silo.toml does not list semifl") for silo in ("beta", "gamma")]
    assert reader.federation(None).folder_option == f" --folder '{tmp_path / 'the hub'}'"

    card = card_silos(summary, filled.roster.silos(), up_to=11, names=False)
    assert (card.count, card.of, card.took_part, card.refused_all) == (3, 3, 1, 2)
    assert (card.labelled, card.unlabelled) == (0, 470)


def test_a_refusal_of_a_running_study_and_a_silent_silo_are_on_page_and_in_status(tmp_path: Path) -> None:
    filled = studied(tmp_path / "hub", {"alpha": U, "beta": R, "gamma": U}, ended=False)
    filled.roster.silent("gamma", heard_unix=1_000_000_000.0)
    reader = PageReader(PageSource(federation="f", address="a:1", ledger=filled.ledger.path, read_only=False),
                        filled.ledger)
    alpha, beta, gamma = reader.silos(None)
    assert (alpha.refusal, alpha.silent_unix) == (None, None)
    assert beta.refusal is not None
    assert (beta.refusal.study, beta.refusal.round) == ("s", 1)
    assert (gamma.state, gamma.silent_unix) == ("silent", 1_000_000_000.0)

    console = Console(file=io.StringIO(), width=200)
    render(console, gather(filled.federation, filled.ledger, None, now_unix=1_000_007_200.0))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "silo beta refused every round of s (1): METHOD_NOT_PERMITTED: silo.toml does not list semifl" in text
    assert ("silo gamma: silent, last heard on 2001-09-09 01:46 UTC (2 h 0 min ago); no round asks it until it calls"
            f" again. To leave it out: coordinator set-aside gamma --folder {filled.federation.folder}") in text
