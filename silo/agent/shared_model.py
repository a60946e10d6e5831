"""`silo model`: fetches the model that a study hands over to its silos, once the study is over.

The bytes arrive in the home first, where a fetch that was cut goes on from what is there, and are checked against the
digest; only a whole file is put where the person wants it.

Tests: tests/silo/agent/test_shared_model.py, tests/test_own_test_images.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from semisilo.common.errors import BadData, NotPermitted, SemisiloError
from semisilo.common.rpc.tls import split_address
from semisilo.common.storage.durable import sync_file, sync_folder
from semisilo.common.storage.store import PayloadStore
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.link.diagnosis import diagnose
from semisilo.silo.link.link import Link, LinkSettings, ModelDescription
from semisilo.silo.link.traffic import Traffic
from semisilo.silo.membership.enrollment import open_channel
from semisilo.silo.site.disclosures import DisclosureLog, message
from semisilo.silo.site.home import SiloHome
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import Limits, load_policy

__all__ = ["FetchedModel", "check_size", "fetch_model", "forget_unfinished", "note_question"]

_KEPT_DAYS = 7
"""A fetch that was cut is gone on with for so long; then what has come of it goes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedModel:
    """A model on this machine's disk."""

    path: str
    study: str
    round: int
    labels_alone: bool
    sha256: str
    size_bytes: int
    conclusion: str
    """What the study has come to, for a person."""


def note_question(disclosures: DisclosureLog, study: str) -> None:
    """Records that this silo asks for a model, before it does. Raises: OSError."""
    sent = pb.DescribeModelRequest(study=study).SerializeToString(deterministic=True)
    disclosures.record(message("model", sent, study=study, text="asked for the model of the study"))


def check_size(model: ModelDescription, limits: Limits) -> None:
    """Whether a model may be fetched. Raises: NotPermitted."""
    if model.size_bytes > limits.max_download_bytes:
        raise NotPermitted(f"The model has {model.size_bytes} bytes; this silo takes at most "
                           f"{limits.max_download_bytes}.", remedy="Raise [limits] max_download_bytes in silo.toml.")


def fetch_model(folder: Path, study: str, out: Path | None, *, now: Callable[[], float],
                on_bytes: Callable[[int, int], None] = lambda here, all_bytes: None,
                on_trouble: Callable[[SemisiloError], None] = lambda error: None, patience_seconds: float = 600.0,
                use_http_proxy: bool = True) -> FetchedModel:
    """Fetches the model of a study; goes on where an earlier try was cut. Blocks; tries again while the line is down.

    Args:
        folder: the silo's home; `silo join` may run there.
        out: the file to write; None: STUDY.safetensors here. One that is there is replaced once the new one is whole.
        now: Unix seconds.
        on_bytes: told how many bytes are here, and how many there are.
        on_trouble: told why it is tried again, each reason once in a row.
        patience_seconds: how long it is tried in vain, with nothing arriving.
    Raises: Unreachable, or what else is the reason, once that is over; ModelNotShared, ModelNotReady; NotPermitted or
        DailyBudget by silo.toml; UsageError where this is no silo; BadData when the file cannot be written.
    """
    identity, home = load_identity(folder), SiloHome(folder)
    policy = load_policy(home.policy)
    trouble = _Trouble(on_trouble, patience_seconds)
    proxied = use_http_proxy and any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy"))

    async def fetch() -> tuple[ModelDescription, Path]:
        note_question(DisclosureLog(home.disclosures, authority=identity.authority), study)
        traffic = Traffic(identity.silo, remote_port=0 if proxied else split_address(identity.address)[1])
        link = Link(lambda: open_channel(identity, use_http_proxy=use_http_proxy), silo=identity.silo,
                    settings=LinkSettings(), on_trouble=trouble, messages=traffic.messages, on_stream=traffic.total,
                    diagnose=lambda: diagnose(folder, identity.address, now(), use_http_proxy=use_http_proxy))
        budget = DayBudget(home.day_of_models, bytes_per_day=policy.limits.bytes_per_day, hours=policy.hours,
                           now_unix=now())

        def check(wanted_bytes: int, what: str) -> None:
            budget.carried(traffic.total(), now(), durably=True)
            budget.check(wanted_bytes, what, now())

        def may_go_on(model: ModelDescription, here: int) -> None:
            check(model.size_bytes - here, "the rest of this model")

        try:
            model = await link.describe_model(study)
            check_size(model, policy.limits)
            check(model.size_bytes, "this model")
            store = PayloadStore(home.models)
            _forget_old(store, keep=model.digest, now_unix=now())
            path = await link.download_model(model, store, on_bytes=lambda here: on_bytes(here, model.size_bytes),
                                             may_go_on=partial(may_go_on, model))
            return model, path
        finally:
            with contextlib.suppress(OSError):
                budget.carried(traffic.total(), now(), durably=True)
            await link.close()
            traffic.close()

    model, path = asyncio.run(fetch())
    target = (out if out is not None else Path(f"{model.study}.safetensors")).expanduser().absolute()
    _put(path, target)
    path.unlink(missing_ok=True)
    return FetchedModel(path=str(target), study=model.study, round=model.round, labels_alone=model.labels_alone,
                        sha256=model.digest, size_bytes=model.size_bytes, conclusion=model.conclusion)


class _Trouble:
    """What is told while something is tried again, and when that ends."""

    def __init__(self, tell: Callable[[SemisiloError], None], patience_seconds: float) -> None:
        self._tell = tell
        self._patience_seconds = patience_seconds
        self._since, self._told = 0.0, ""

    def __call__(self, error: SemisiloError, failures: int) -> None:
        """Raises: the error, once the patience is over."""
        if failures == 1:
            self._since, self._told = time.monotonic(), ""
        if time.monotonic() - self._since >= self._patience_seconds:
            raise error
        if error.line() != self._told:
            self._told = error.line()
            self._tell(error)


def forget_unfinished(home: SiloHome, *, now_unix: float) -> None:
    """Removes models that `silo model` has fetched in part, or could not put where they were wanted, and that nobody
    has gone on with for a week. Raises: OSError."""
    if home.models.is_dir():
        _forget_old(PayloadStore(home.models), keep="", now_unix=now_unix)


def _forget_old(store: PayloadStore, *, keep: str, now_unix: float) -> None:
    """By age: another `silo model` may be at work, and a person go on with a fetch that was cut."""
    before = now_unix - _KEPT_DAYS * 86_400.0
    store.clean(keep_partials=[keep], before_unix=before)
    for digest in store.digests() - {keep}:
        with contextlib.suppress(FileNotFoundError):
            if store.path(digest).stat().st_mtime < before:
                store.path(digest).unlink()


def _put(path: Path, target: Path) -> None:
    """Copies a whole file into its place, which may be another disk; only once it is on disk for good is what was there
    before replaced, and then the caller may remove its own."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(path, temporary)
        handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_file(handle)
        finally:
            os.close(handle)
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadData(f"{target}: the model cannot be written: {error.strerror or error}.",
                      remedy="Name another place: --out FILE.") from None
    except SemisiloError:
        temporary.unlink(missing_ok=True)
        raise
