"""Which silo may fetch the model of which study, and when; and the bytes of it over the wire."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from semisilo.common.errors import BadData, ModelNotReady, ModelNotShared, PayloadNotServed, SemisiloError
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.coordinator.ledger.states import StudyState
from semisilo.coordinator.rounds.shared_model import SharedModels
from tests.coordinator.federation_in_memory import Coordinator, study_config
from tests.coordinator.hub_over_tls import hub, refusal

SILOS = ("alpha", "beta")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 300))


async def finished(folder: Path, *, share: bool = True) -> Coordinator:
    """A study that alpha and beta have carried through."""
    coordinator = Coordinator(folder)
    coordinator.ledger.query("PRAGMA synchronous = OFF")
    coordinator.enroll(*SILOS, "gamma")
    config = study_config()
    config["study"]["share_model"] = share
    coordinator.ledger.queue_study("s", config)
    await asyncio.gather(coordinator.engine.run_next(), *(coordinator.silo(silo) for silo in SILOS))
    assert coordinator.ledger.study_state("s") is StudyState.COMPLETED
    return coordinator


async def refused(models: SharedModels, silo: str, study: str) -> SemisiloError:
    with pytest.raises(SemisiloError) as caught:
        await models.describe(silo, study)
    return caught.value


def test_a_silo_with_part_in_a_study_that_shares_gets_the_file_that_was_written_at_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = await finished(tmp_path)
        models = SharedModels(coordinator.ledger, tmp_path / "studies")
        found = await models.describe("alpha", "s")
        content = (tmp_path / "studies" / "s" / "model.safetensors").read_bytes()
        assert (found.digest, found.size_bytes) == (hashlib.sha256(content).hexdigest(), len(content))
        assert (found.round, found.labels_alone, found.measure) == (3, False, "accuracy")
        assert found.conclusion.startswith("The model handed over is that of round 3")
        assert (await models.path_for("beta", "s", found.digest)).path.read_bytes() == content
        found.path.write_bytes(b"another model")
        with pytest.raises(PayloadNotServed):
            await models.path_for("beta", "s", found.digest)
        coordinator.close()
    run(scenario())


def test_a_model_that_is_replaced_while_it_is_read_is_not_taken_for_the_one_that_replaces_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a study that went back ends again."""
    async def scenario() -> None:
        coordinator = await finished(tmp_path)
        models, path = SharedModels(coordinator.ledger, tmp_path / "studies"), tmp_path / "studies/s/model.safetensors"
        old, new, opened = path.read_bytes(), b"another model", Path.open
        (tmp_path / "new").write_bytes(new)

        def replaced(file: Path, *arguments: Any) -> Any:
            found = opened(file, *arguments)
            if file == path and (tmp_path / "new").exists():
                os.replace(tmp_path / "new", path)
            return found

        monkeypatch.setattr(Path, "open", replaced)
        for content in (old, new):
            found = await models.describe("alpha", "s")
            assert (found.digest, found.size_bytes) == (hashlib.sha256(content).hexdigest(), len(content))
        coordinator.close()
    run(scenario())


def test_strangers_to_a_study_cannot_tell_it_from_one_that_is_not_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = await finished(tmp_path)
        models = SharedModels(coordinator.ledger, tmp_path / "studies")
        for silo, study in (("gamma", "s"), ("alpha", "nothing"), ("alpha", "../s"), ("alpha", "")):
            error = await refused(models, silo, study)
            assert isinstance(error, ModelNotShared)
            assert error.line() == (f"This silo has had no part in a study '{study}'. Models go to the silos that have"
                                    " answered a task of their study.")
        coordinator.close()
    run(scenario())


def test_a_study_keeps_its_model_unless_its_file_says_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = await finished(tmp_path, share=False)
        error = await refused(SharedModels(coordinator.ledger, tmp_path / "studies"), "alpha", "s")
        assert isinstance(error, ModelNotShared)
        assert "[study] share_model" in error.line()
        coordinator.close()
    run(scenario())


def test_before_the_end_and_without_its_file_the_model_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        coordinator = await finished(tmp_path)
        models = SharedModels(coordinator.ledger, tmp_path / "studies")
        path = tmp_path / "studies" / "s" / "model.safetensors"
        path.rename(path.with_suffix(".gone"))
        assert isinstance(await refused(models, "alpha", "s"), ModelNotReady)
        path.with_suffix(".gone").rename(path)
        await models.describe("alpha", "s")
        with coordinator.ledger.transaction() as db:
            db.execute("UPDATE study SET state = ?", (StudyState.RUNNING,))
        error = await refused(models, "alpha", "s")
        assert isinstance(error, ModelNotReady)
        assert error.line() == "Study 's' is running: its model is shared once it is over."
        coordinator.close()
    run(scenario())


def test_a_model_that_could_not_be_written_is_not_ready_and_that_of_an_earlier_end_is_not_taken_for_it(tmp_path: Path
                                                                                                      ) -> None:
    """Silos got the old file under the digest of the new model."""
    async def scenario() -> None:
        coordinator = await finished(tmp_path)
        path = tmp_path / "studies" / "s" / "model.safetensors"
        old = path.read_bytes()
        coordinator.ledger.event("study_rolled_back", study="s", round=3, origin="command")  # what was written is over
        with coordinator.ledger.transaction() as db:
            db.execute("UPDATE study SET state = ?", (StudyState.STOPPED,))

        def fail(name: str, request: object) -> None:
            raise BadData(f"{name}: no file of images.")
        coordinator.compute.before = fail
        assert await coordinator.engine.run_next() is None
        assert not path.exists()
        path.write_bytes(old)  # of a coordinator that did not remove it
        error = await refused(SharedModels(coordinator.ledger, tmp_path / "studies"), "alpha", "s")
        assert isinstance(error, ModelNotReady)
        assert "is not written yet" in error.line()
        coordinator.close()
    run(scenario())


def test_over_the_wire_the_model_comes_from_any_byte_and_only_to_whom_it_is_shared(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with hub(tmp_path) as made:
            alpha, models = made.silos["alpha"], SharedModels(made.coordinator.ledger, tmp_path)
            assert (await refusal(alpha.DescribeModel(pb.DescribeModelRequest(study="s"), timeout=300))).code == \
                "MODEL_NOT_SHARED"
            content = bytes(range(256)) * 5000
            path = tmp_path / "model.safetensors"
            path.write_bytes(content)
            found = await _shared(path)
            made.servicer._models = models
            with pytest.MonkeyPatch.context() as patch:
                async def describe(self: object, silo: str, study: str) -> Any:
                    if (silo, study) != ("alpha", "s"):
                        raise ModelNotShared("no part")
                    return found
                patch.setattr(SharedModels, "describe", describe)
                answer = await alpha.DescribeModel(pb.DescribeModelRequest(study="s"), timeout=300)
                assert (answer.digest.hex(), answer.size_bytes, answer.round) == (found.digest, len(content), 3)
                for offset in (0, 1, 700_000, len(content)):
                    request = pb.DownloadModelRequest(study="s", digest=answer.digest, offset=offset)
                    pieces = [message.chunk.data async for message in alpha.DownloadModel(request, timeout=300)]
                    assert b"".join(pieces) == content[offset:]
                for wrong in ({"digest": b"x" * 32}, {"study": "t"}, {"offset": len(content) + 1}, {"offset": -1}):
                    request = pb.DownloadModelRequest(**{"study": "s", "digest": answer.digest, **wrong})
                    with pytest.raises(Exception, match=r"no part|another one|offset|byte"):
                        _ = [message async for message in alpha.DownloadModel(request, timeout=300)]
                request = pb.DownloadModelRequest(study="s", digest=answer.digest)
                with pytest.raises(Exception, match="no part"):
                    _ = [message async for message in made.silos["beta"].DownloadModel(request, timeout=300)]
    run(scenario())


async def _shared(path: Path) -> Any:
    from semisilo.coordinator.rounds.shared_model import SharedModel

    content = path.read_bytes()
    return SharedModel(study="s", path=path, digest=hashlib.sha256(content).hexdigest(), size_bytes=len(content),
                       round=3, labels_alone=False, model_digest="ab" * 32, measure="", conclusion="")
