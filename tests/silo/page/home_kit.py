"""A silo's home with a bit of everything in it, and its page asked through ASGI as a browser would ask it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.identity.certificates import (
    certificate_der,
    certificate_pem,
    issue_audit_certificate,
    issue_silo_certificate,
    make_authority,
    make_key,
)
from semisilo.common.measures.site_evaluation import ClassResult, SiteEvaluation
from semisilo.common.rpc.convert import head_to_proto
from semisilo.common.storage.durable import write_secret
from semisilo.common.wire import round_service_pb2 as pb
from semisilo.common.wire.tensors_pb2 import PayloadReference
from semisilo.coordinator.federation.audit_key import AuditKey
from semisilo.silo.agent.asked import AskedRecord
from semisilo.silo.agent.daily_budget import DayBudget
from semisilo.silo.link.traffic import Carried
from semisilo.silo.page.routes import silo_page_app
from semisilo.silo.page.service import SiloPage
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.site.audit_heads import HeadRecord
from semisilo.silo.site.disclosures import Disclosure, DisclosureLog
from semisilo.silo.site.evaluations import EvaluationRecord, RecordedEvaluation
from semisilo.silo.site.home import SiloHome, StatusFile
from semisilo.silo.site.identity_store import FederationFile, install_identity
from semisilo.silo.site.policy import policy_text
from semisilo.silo.site.privacy.ledger import PrivacyLedger, Spending
from semisilo.silo.site.working_hours import Hours
from semisilo.silo.study_cards.book import CardBook
from tests.audit_kit import signed
from tests.study_cards import CARD

TOKEN = "a-token-that-is-long-enough"
SECRET = "/scans/mueller.dcm"
"""What names a file of the site, in three places that only who has the token may read."""
DAY = 86_400.0


def filled_home(folder: Path, *, now: float | None = None) -> SiloHome:
    """An enrolled silo that has taken part: a study that waits, tasks, updates, test images, trouble."""
    now = time.time() if now is None else now
    home = SiloHome(folder)
    folder.mkdir(mode=0o700, parents=True)
    ca_key, ca = make_authority("lung", now=now)
    key = make_key()
    certificate = issue_silo_certificate(ca_key, ca, key.public_key(), "hospital-a", now=now, seconds=30 * DAY)
    install_identity(folder, FederationFile(
        federation="lung", silo="hospital-a", address="hub.example:8443", enrollment_address="hub.example:8444",
        renew_unix=now + 20 * DAY, invitation="0" * 64), key=key, certificate_pem=certificate_pem(certificate),
        authority_pem=certificate_pem(ca))
    home.policy.write_text(policy_text().replace("approval = false", "approval = true").replace(
        "bytes_per_day = 0", "bytes_per_day = 60000000").replace("max_epsilon = 0.0", "max_epsilon = 8.0").replace(
        '# source = "/scans"', f'source = "{SECRET}"'))
    book = CardBook(home.cards)
    first = book.arrived("s", CARD.digest(), CARD.text(), approval=False, now_unix=now - 5 * DAY)
    book.told(book.signed(first, b"signature", now_unix=now - 5 * DAY))
    other = replace(CARD, rounds=9)
    book.arrived("s", other.digest(), other.text(), approval=True, now_unix=now - 60)
    StatusFile(home.status).update(
        now_unix=now, state="s, round 2/3: works on it", last_contact_unix=now - 3, study="s", round=2, rounds=3,
        stage="training", stage_fraction=0.42, stage_text="epoch 2 of 5", last_task="s/2/0-train/hospital-a",
        last_outcome=f"refused: {SECRET} is no image", tasks_answered=5, labelled_count=30, unlabelled_count=300,
        sent_bytes=900_000, received_bytes=1_200_000, refusals=2, refusal_code="BAD_DATA",
        last_refusal=f"{SECRET} is no image", last_error=f"{SECRET}: permission denied")
    record = DisclosureLog(home.disclosures)
    record.record(Disclosure(kind="enrolment", update_id="e", bytes=252, digest="ab" * 32, text="public key"))
    for number in (1, 2):
        record.record(Disclosure(kind="update", study="s", round=number, phase="train", method="semifl",
                                 update_id=f"u{number}", groups=("model",), bytes=100_000 * number,
                                 digest=f"{number:064x}", num_examples=330, metrics={"label_ratio": 0.5}))
    asked = AskedRecord(home.asked)
    for number, outcome, code in ((1, "updated", ""), (2, "refused", "BAD_DATA")):
        task = pb.Task(task_id=f"s/{number}/0-train/hospital-a", study="s", round=number, round_count=3, phase="train",
                       method="semifl", settings_json='{"local_epochs":5}', payloads=[PayloadReference(size_bytes=7)])
        asked.came(task, now_unix=now - 200 + 10 * number)
        asked.ended(task, outcome=outcome, code=code, text=f"{SECRET}" if code else "sent",
                    now_unix=now - 195 + 10 * number)
    evaluations = EvaluationRecord(home.evaluations)
    for number in (1, 2, 3):
        evaluations.add(RecordedEvaluation(unix=now - 100, class_names=("a", "b"), evaluation=SiteEvaluation(
            study="s", round=number, classes=(ClassResult(images=40, correct=20 + 5 * number, auroc=0.9),
                                              ClassResult(images=10, correct=5, auroc=0.9)))))
    DayBudget(home.day, bytes_per_day=1, hours=Hours(), now_unix=now - DAY).carried(
        Carried(70_000, 80_000), now - DAY, durably=True)
    wrong = now + 40 * DAY  # for a moment, by a clock that was set
    DayBudget(home.day, bytes_per_day=1, hours=Hours(), now_unix=wrong).carried(Carried(5_000, 0), wrong, durably=True)
    DayBudget(home.day, bytes_per_day=1, hours=Hours(), now_unix=now).carried(Carried(1_000, 2_000), now, durably=True)
    line = Spending(
        time="2026-11-25T00:00:00+00:00", study="s", round=1, phase="train", task_id="s/1", fingerprint="f", images=330,
        noise_multiplier=1.0, clip_norm=1.0, sampling_rate=0.1, steps=10, study_delta=1e-5, study_epsilon=1.25,
        delta=1e-5, epsilon=1.5)
    PrivacyLedger(home.privacy).append(line)
    # A study of this name in another federation is another study.
    PrivacyLedger(home.privacy).append(replace(line, fingerprint="g", study_epsilon=7.0, authority="ff" * 32))
    SecureStore(home.secure).know({"clinic-b": SecureStore(folder / "elsewhere").identity()})
    SecureStore(home.secure).private_identity()
    audit = ed25519.Ed25519PrivateKey.generate()
    trail = HeadRecord(home.heads, ca)
    for number in (3, 8):
        trail.saw(head_to_proto(signed(number, key=AuditKey(key=audit, authority=ca, certificate_der=certificate_der(
            issue_audit_certificate(ca_key, ca, audit.public_key(), now=now))), unix=now)), study="s", round=1,
            seen_unix=now)
    write_secret(home.page_token, TOKEN.encode())
    return home


@dataclass(slots=True)
class Page:
    """A client and what it talks to."""

    client: httpx.AsyncClient
    page: SiloPage

    async def get(self, path: str, *, token: str = "") -> Any:
        """JSON of an answer that must be there."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = await self.client.get(path, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def decide(self, action: str, body: Any, *, token: str = TOKEN) -> httpx.Response:
        """POST of a decision."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self.client.post(f"/api/actions/{action}", json=body, headers=headers)


def asking(home: SiloHome, work: Callable[[Page], Awaitable[None]], **options: Any) -> None:
    """Runs a scenario against the page of a home."""
    async def scenario() -> None:
        async with page_of(home, **options) as opened:
            await work(opened)
    asyncio.run(scenario())


@asynccontextmanager
async def page_of(home: SiloHome, *, hosts: tuple[str, ...] = (), listen_host: str = "127.0.0.1"
                  ) -> AsyncIterator[Page]:
    """The page over a home."""
    page = SiloPage(home)
    transport = httpx.ASGITransport(silo_page_app(page, listen_host=listen_host, hosts=hosts),
                                    client=("127.0.0.1", 4711), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
        try:
            yield Page(client, page)
        finally:
            await page.close()
