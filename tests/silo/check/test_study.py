"""What `silo check` says of a person's word about a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from semisilo.silo.check.needs import StudyNeeds
from semisilo.silo.check.study import look_at_card
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.policy import Policy, Require
from semisilo.silo.study_cards.book import CardBook
from tests.study_cards import CARD, TASK

NEEDS = StudyNeeds(task=replace(TASK, task_id="s/check", phase="check"), begun=True, state="running", round=0,
                   dense_bytes=0, own_rounds=(), typical_update_bytes=0, typical_round_seconds=None,
                   round_timeout_seconds=60.0)
ASKS = Policy(require=Require(approval=True))


@pytest.mark.parametrize("policy", [Policy(), ASKS], ids=["by policy", "by a person"])
def test_a_study_that_a_person_has_declined_is_not_called_permitted(tmp_path: Path, policy: Policy) -> None:
    home = SiloHome(tmp_path)
    book = CardBook(home.cards)
    entry = book.arrived("s", TASK.card, CARD.text(), approval=True, now_unix=5.0)
    book.decide(entry, approved=False, by="mona", now_unix=6.0)
    (found,) = look_at_card(home, policy, NEEDS)
    assert (found.state, found.remedy) == ("bad", "To take part after all: silo approve s")
    assert "This site has declined study 's'" in found.text


def test_a_study_that_waits_for_a_persons_word_says_so_until_it_comes(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    assert look_at_card(home, Policy(), NEEDS) == []
    (found,) = look_at_card(home, ASKS, NEEDS)
    assert (found.state, "must approve study 's'" in found.text) == ("warning", True)
    book = CardBook(home.cards)
    entry = book.arrived("s", TASK.card, CARD.text(), approval=True, now_unix=5.0)
    (found,) = look_at_card(home, ASKS, NEEDS)
    assert (found.state, found.text) == ("bad", "Nobody at this site has approved study 's' yet.")
    book.decide(entry, approved=True, by="mona", now_unix=6.0)
    assert look_at_card(home, ASKS, NEEDS) == []
