"""Study cards that this site has signed, has yet to approve, or has declined.

    home/cards/HASH.json      one file for each study: its present card, what became of it, and what was signed before
    home/cards/.authority     of the federation whose studies they are
    home/cards/AUTHORITY/     the same of another federation that this silo was in; there again when it returns

Whose they are is in a file of its own, and no card is read for it: versions that know nothing of it read the others.

A silo does no task of a study whose card it has not signed, and holds every task against that card. Where silo.toml
says [require] approval = true, a person signs: `silo approve`.

Tests: tests/silo/study_cards/test_book.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from semisilo.common.config import canonical_json, from_dict
from semisilo.common.errors import BadConfiguration, NotPermitted, StorageDamaged, UsageError
from semisilo.common.methods.study_card import StudyCard, card_from_text, changes
from semisilo.common.storage.durable import sync_folder, write_durably

__all__ = ["BY_POLICY", "CardBook", "CardEntry", "CardState", "Earlier"]

CardState = Literal["waiting", "approved", "signed", "declined"]
"""Of a card: nobody has approved it yet; a person has, and the silo signs it with its next task; it is signed; a person
has declined it."""
BY_POLICY = "silo.toml"
"""Who signs where no person must."""
_FORMAT = 1
_MOST_KEPT = 200
"""Cards of studies. A coordinator may name a new study with every task, and a card has up to 256 KiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A card of the study that was signed before."""

    digest: str
    signed_unix: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CardEntry:
    """What became of a study's present card."""

    format: int = _FORMAT
    study: str
    digest: str
    text: str
    """Of the card, as it came."""
    state: CardState
    unix: float
    """When it came into this state."""
    by: str = ""
    """Who approved, signed or declined it: an account, or `BY_POLICY`."""
    signature: str = ""
    """Hex; empty until it is signed."""
    told: bool = False
    """Whether the coordinator has the signature."""
    earlier: tuple[Earlier, ...] = ()
    """Oldest first."""
    signed_text: str = ""
    """Of the last card that was signed before this one, to say what has changed; empty where there was none."""

    @property
    def card(self) -> StudyCard:
        """What it says."""
        return card_from_text(self.text)

    @property
    def changed(self) -> str:
        """What is otherwise than in the card that was signed before; empty where there was none."""
        return changes(card_from_text(self.signed_text), self.card) if self.signed_text else ""

    def is_over(self, works_on: str | None) -> bool:
        """Whether it waits for a person in vain: its coordinator works on another study by now, or on none.

        Args:
            works_on: the study that this silo takes part in, "" for none; None where that is not known.
        """
        return self.state == "waiting" and works_on not in (None, self.study)


class CardBook:
    """Of one site. The agent and `silo approve` may both write, a whole file each time, and each looks again under a
    lock at what there is: a person's word that comes while the agent waits for the coordinator is not written over."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made when something is kept."""
        self._folder = folder

    def belong_to(self, authority: str) -> None:
        """Cards of another federation's studies are put aside, and those that were put aside of this one come back: a
        person's word about one study is none about another of the same name. A card of which nobody knows whose it is
        counts as this one's.

        Args:
            authority: `authority_id` of the federation's. Cards that come from now on are its.
        """
        owner = self._folder / ".authority"
        with self._alone():
            before = owner.read_text().strip() if owner.exists() else ""
            # A kill leaves all cards where the next call finds whose they are: those that lie here are the owner's.
            if before != authority:
                for path in sorted(self._folder.glob("*.json")) if before else ():
                    self._move(path, self._folder / before)
                write_durably(owner, f"{authority}\n".encode(), mode=0o600)
            for path in sorted((self._folder / authority).glob("*.json")):
                if not (self._folder / path.name).exists():
                    self._move(path, self._folder)

    def find(self, study: str) -> CardEntry | None:
        """The entry of a study; None where none of its cards has come. Raises: StorageDamaged."""
        return self._read(self._path(study))

    def entries(self) -> list[CardEntry]:
        """All of them, the newest first. Raises: StorageDamaged."""
        found = [entry for path in sorted(self._folder.glob("*.json")) if (entry := self._read(path)) is not None]
        return sorted(found, key=lambda entry: -entry.unix)

    def arrived(self, study: str, digest: str, text: str, *, approval: bool, now_unix: float) -> CardEntry:
        """Notes a card that has come; the entry that is there already for this one. Another card of a study that a
        person has declined is declined as well: a change of any number would undo a person's word otherwise.

        Args:
            approval: whether a person must approve it.
        """
        with self._alone():
            before = self.find(study)
            if before is not None and before.digest == digest:
                if before.state == "waiting" and not approval:
                    return self._keep(replace(before, state="approved", by=BY_POLICY, unix=now_unix))
                return before
            earlier, signed_text = ((), "") if before is None else (before.earlier, before.signed_text)
            if before is not None and before.signature:
                earlier = (*earlier, Earlier(digest=before.digest, signed_unix=before.unix))
                signed_text = before.text
            entry = CardEntry(study=study, digest=digest, text=text, state="waiting" if approval else "approved",
                              unix=now_unix, by="" if approval else BY_POLICY, earlier=earlier, signed_text=signed_text)
            if before is not None and before.state == "declined":
                entry = replace(entry, state="declined", by=before.by, unix=before.unix)
            if before is None:
                self._make_room()
            return self._keep(entry)

    def decide(self, entry: CardEntry, *, approved: bool, by: str, now_unix: float) -> CardEntry:
        """A person's word. What is signed stays signed until it is declined; what is declined is declined whatever has
        come meanwhile.

        Raises: UsageError for an approval where another card has come since `entry` was read.
        """
        with self._alone():
            now = self.find(entry.study) or entry
            if approved and now.digest != entry.digest:
                raise UsageError(f"Study '{entry.study}' has another card by now.", remedy="Look at it, then decide.")
            if approved and now.state == "signed":
                return now
            return self._keep(replace(now, state="approved" if approved else "declined", by=by, unix=now_unix))

    def signed(self, entry: CardEntry, signature: bytes, *, now_unix: float) -> CardEntry:
        """Keeps this site's signature, before it leaves; the entry that there is by now, and nothing kept, where the
        card is not approved any more."""
        with self._alone():
            now = self.find(entry.study)
            if now is None or now.digest != entry.digest or now.state != "approved":
                return now or entry
            return self._keep(replace(now, state="signed", signature=signature.hex(), unix=now_unix, told=False))

    def signed_anew(self, entry: CardEntry, signature: bytes) -> CardEntry:
        """Keeps a signature by another key in the place of one that the coordinator does not have; the entry that there
        is by now, and nothing kept, where it is another."""
        with self._alone():
            now = self.find(entry.study)
            if now is None or (now.digest, now.signature, now.state) != (entry.digest, entry.signature, "signed"):
                return now or entry
            return self._keep(replace(now, signature=signature.hex(), told=False))

    def told(self, entry: CardEntry) -> CardEntry:
        """The coordinator has the signature. The entry that there is by now: a person may have declined it since."""
        with self._alone():
            now = self.find(entry.study)
            if now is None or (now.digest, now.signature) != (entry.digest, entry.signature):
                return now or entry
            return self._keep(replace(now, told=True))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes. Held for one small file."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _make_room(self) -> None:
        """For one more card: of too many the oldest go, those first that nobody has signed. What a person has declined
        stays, so that it is never taken for a new one.

        Raises: NotPermitted where all of them were declined.
        """
        paths = list(self._folder.glob("*.json"))
        if len(paths) < _MOST_KEPT:
            return
        entries = [entry for path in paths if (entry := self._read(path)) is not None]
        going = sorted((entry for entry in entries if entry.state != "declined"),
                       key=lambda entry: (entry.state == "signed", entry.unix))
        if not going:
            raise NotPermitted(f"This site has declined {len(entries)} studies and looks at no more.",
                               remedy=f"Remove cards that are of no use any more from {self._folder}.")
        for entry in going[:len(paths) - _MOST_KEPT + 1]:
            self._path(entry.study).unlink(missing_ok=True)

    def _keep(self, entry: CardEntry) -> CardEntry:
        write_durably(self._path(entry.study), canonical_json(entry).encode() + b"\n", mode=0o600)
        return entry

    @staticmethod
    def _move(path: Path, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.rename(path, folder / path.name)
        sync_folder(folder)
        sync_folder(path.parent)

    def _path(self, study: str) -> Path:
        return self._folder / f"{hashlib.sha256(study.encode()).hexdigest()[:32]}.json"

    def _read(self, path: Path) -> CardEntry | None:
        try:
            return from_dict(CardEntry, json.loads(path.read_bytes()), where=str(path))
        except FileNotFoundError:
            return None
        except (ValueError, BadConfiguration) as error:
            raise StorageDamaged(f"{path}: cannot be read: {error}", remedy="Remove it: the card comes again, and is "
                                 "signed or approved anew.") from None
