"""FedRGD and FedMix through the real engine, ledger, spool and silos: which models silos are sent and answer to.

What every method promises is in test_contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.methods.contract import Meaning
from tests.both_sides import Federation, Images, quickly, study_tables, write_images

SILOS = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        yield write_images(tmp_path_factory.mktemp("images"), SILOS)


def _federation(folder: Path, images: Images, method: str, **settings: Any) -> Federation:
    """Three of five silos in each of four rounds."""
    values = {"name": method, "scenario": "labels-at-coordinator", "confidence_threshold": 0.4, **settings}
    tables = study_tables(images, method=values, silos=len(SILOS), rounds=4, participation={"silos_per_round": 3})
    return Federation(folder, tables, images, SILOS)


@pytest.mark.slow
def test_silos_of_fedrgd_start_from_their_groups_models_and_answer_to_these(images: Images, tmp_path: Path) -> None:
    """From round 2 on silos of one round are sent different models; what they return refers to the one they had."""
    federation = _federation(tmp_path, images, "fedrgd", decay="schedule", unlabelled_batch=9)
    federation.run()
    by_round: dict[int, set[str]] = {}
    for sent in federation.down():
        if sent.name == "model":
            number = next(task.round for task in federation.tasks() if task.task_id == sent.task_id)
            by_round.setdefault(number, set()).add(sent.tensors)
    assert len(by_round[1]) == 1
    assert any(len(models) > 1 for number, models in by_round.items() if number > 1)
    assert {(sent.name, sent.meaning) for sent in federation.up()} == {("model", Meaning.DIFFERENCE)}
    federation.close()


@pytest.mark.slow
def test_fedmix_sends_two_models_of_which_the_first_rounds_are_one(images: Images, tmp_path: Path) -> None:
    federation = _federation(tmp_path, images, "fedmix", lr=0.05, lambda_2=0.1, lambda_1=1.0)
    federation.run()
    names = [(sent.name, sent.tensors) for sent in federation.down()]
    models, sigmas = ({digest for name, digest in names if name == wanted} for wanted in ("model", "sigma"))
    assert len(models) == len(sigmas) == 4
    assert len(models & sigmas) == 1, "sigma_0 = w_0"
    taken_part = [federation.metrics(number)["participation_max"] for number in range(1, 5)]
    assert taken_part == sorted(taken_part)
    assert taken_part[0] == 1.0
    assert taken_part[-1] >= 3.0, "12 updates of 5 silos: somebody has come three times"
    federation.close()
