"""A silo's work with lossy updates: update and residuals together are what was trained, and the files are durable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from semisilo.common.errors import ComputeFailed
from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Meaning, TensorGroup, Update
from semisilo.common.methods.uplink import parse_uplink
from semisilo.common.payload.torch_tensors import decode_groups
from semisilo.common.storage.state_files import STATE_ENDING, StateFiles
from semisilo.silo.compute.lossy_update import Residuals
from semisilo.silo.compute.messages import Trained
from semisilo.silo.trainers.semifl import SemiFLTrainer
from tests.silo.compute.test_operations import SETTINGS, Site, digits, operations

__all__ = ["digits"]  # the fixture

FORM = "top-k 10% int8"


@pytest.fixture
def site(tmp_path: Path, digits: str) -> Site:
    return Site(tmp_path, digits)


def train(site: Site, uplink: str = FORM, *, error_feedback: bool = True, phase: str = "train", round: int = 1,
          **changes: Any) -> Trained:
    site.spec = replace(site.spec, uplink=parse_uplink(uplink, error_feedback=error_feedback), phase=phase, round=round,
                        settings={**SETTINGS, "sbn_source": "coordinator+silos"})
    return operations().train(site.request(**changes))


def sent(site: Site, result: Trained, name: str = "model") -> dict[str, torch.Tensor]:
    """What the coordinator decodes."""
    assert result.payload is not None
    path = site.outgoing.verify(result.payload.digest)
    return dict(decode_groups(path, require_finite=True)[name].tensors)


def left_out(result: Trained) -> dict[str, torch.Tensor]:
    path = result.residuals
    assert path is not None
    return StateFiles(path.parent).load(path.name.removesuffix(STATE_ENDING), Residuals).tensors


def model_residual(result: Trained) -> dict[str, torch.Tensor]:
    prefix = "train\nmodel\n"
    return {key.removeprefix(prefix): tensor for key, tensor in left_out(result).items() if key.startswith(prefix)}


def test_what_is_sent_and_what_is_left_out_are_together_what_was_trained(site: Site) -> None:
    exact = sent(site, train(site, "raw"))
    result = train(site)
    lossy, rest = sent(site, result), model_residual(result)
    assert result.payload is not None
    assert result.payload.size_bytes < 0.1 * 4 * sum(tensor.numel() for tensor in exact.values())
    for name, tensor in exact.items():
        assert not torch.equal(lossy[name], tensor)
        torch.testing.assert_close(lossy[name] + rest[name], tensor, rtol=1e-6, atol=0)


def test_the_next_update_brings_what_this_one_left_out(site: Site) -> None:
    """The trainer's memory is not handed on here, so that both rounds train the same."""
    first = train(site)
    rest = model_residual(first)
    second = train(site, residuals=first.residuals)
    exact = sent(site, train(site, "raw"))
    for name, tensor in exact.items():
        torch.testing.assert_close(sent(site, second)[name] + model_residual(second)[name], tensor + rest[name],
                                   rtol=1e-5, atol=1e-9)


def name_of_file(result: Trained) -> str:
    assert result.residuals is not None
    return result.residuals.name


@pytest.mark.slow
def test_the_same_task_gives_the_same_files(site: Site, tmp_path: Path) -> None:
    first = train(site)
    args = {"residuals": first.residuals, "memory": first.memory, "round": 2}
    one = train(site, **args)
    torch.manual_seed(5)
    two = train(site, **args, memory_folder=tmp_path / "elsewhere")
    other = train(site, round=2, memory=first.memory)
    assert one.payload == two.payload != other.payload
    assert name_of_file(one) == name_of_file(two) != name_of_file(other)
    assert one.memory != one.residuals


@pytest.mark.slow
@pytest.mark.parametrize(("uplink", "error_feedback"), [("raw", True), ("smallest", True), (FORM, False)])
def test_a_study_without_loss_or_without_error_feedback_keeps_nothing_and_drops_what_was_kept(
        site: Site, uplink: str, error_feedback: bool) -> None:
    assert train(site, uplink, error_feedback=error_feedback).residuals is None
    before = train(site).residuals
    result = train(site, uplink, error_feedback=error_feedback, residuals=before)
    assert left_out(result) == {}, "a file that says so: it takes the place of the committed one"
    assert result.payload == train(site, uplink, error_feedback=error_feedback).payload


def test_a_phase_that_sends_values_leaves_the_residuals_of_this_round_alone(site: Site) -> None:
    committed = train(site).residuals
    pending = train(site, residuals=committed, round=2).residuals
    assert pending != committed
    site.given = {"model": site.given["model"]}
    result = train(site, phase="statistics", round=2, residuals=committed, pending_residuals=pending)
    assert sent(site, result, "batch_norm")
    assert result.residuals == pending
    first_round = train(site, phase="statistics")
    assert first_round.residuals is None


def test_an_abstention_says_nothing_about_residuals(site: Site) -> None:
    before = train(site).residuals
    shy = {**SETTINGS, "confidence_threshold": 1.0}
    site.spec = replace(site.spec, phase="train", settings=shy)
    result = operations().train(site.request(residuals=before))
    assert result.abstention == "no_confident_example"
    assert (result.payload, result.residuals) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"other bytes"])
def test_residuals_that_cannot_be_read_count_as_zero(
        site: Site, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    before = train(site).residuals
    assert before is not None
    fresh = train(site, round=2)
    before.write_bytes(damage)
    assert train(site, round=2, residuals=before).payload == fresh.payload
    assert "what earlier updates left out is lost" in caplog.text


def test_an_update_that_is_not_finite_means_that_training_diverged(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {name: tensor * float("inf") for name, tensor in tensors.zeros_like(site.model).items()}
    update = Update(groups={"model": TensorGroup(broken, Meaning.DIFFERENCE, "0" * 64)})
    monkeypatch.setattr(SemiFLTrainer, "train", lambda *arguments: (update, None))
    with pytest.raises(ComputeFailed, match="diverged"):
        train(site)
    assert site.outgoing.digests() == set()
