"""What a silo keeps for secure sums: the key that its peers know it by, the secrets of the sum under way, and the last
round of every study in which it has sent a masked update.

    home/secure/identity.key       Ed25519, made once (0600)
    home/secure/sums.json          secrets and answers of the sums under way, by federation (0600)

An answer is written here before it is sent, so a silo that is killed sends the same one again. The secrets of a sum go
with the answer to its last step, or when the next round begins; what a disk keeps of a file that was removed is beyond
this program.

Tests: tests/silo/secure_aggregation/test_store.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from semisilo.common.config import canonical_json, from_dict
from semisilo.common.errors import BadConfiguration, StorageDamaged
from semisilo.common.secure_aggregation.keys import identity_of, new_identity
from semisilo.common.secure_aggregation.roster import Roster
from semisilo.common.storage.durable import sync_found, write_secret
from semisilo.silo.secure_aggregation.session import SiloSession

__all__ = ["SecureStore"]

_FORMAT = 2
"""Of format 1 are files that know of one federation. What is kept of others cannot lie beside it in a form that those
versions read: one of them in another federation in between would leave rounds of which nobody knows whose they are, and
an update might be masked twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Study:
    session: SiloSession | None = None
    """Of the sum under way."""
    masked_round: int = 0
    """The last one in which a masked update was sent, or may have been; it never falls."""
    masked_phases: tuple[str, ...] = ()
    """Of that round, in which there was one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Elsewhere:
    """What is kept of another federation, for a silo that returns to it: it must not mask an update twice there."""

    known: dict[str, bytes]
    roster: Roster
    studies: dict[str, _Study]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sums:
    format: int = _FORMAT
    last_study: str = ""
    known: dict[str, bytes] = field(default_factory=dict)
    """Silo -> its key, as it was first seen."""
    roster: Roster = field(default_factory=Roster)
    studies: dict[str, _Study] = field(default_factory=dict)
    authority: str = ""
    """Of the federation that all this is of (`authority_id`); empty where that was not written yet."""
    elsewhere: dict[str, _Elsewhere] = field(default_factory=dict)
    """Authority -> what is kept of its federation."""


class SecureStore:
    """Used by one agent at a time (the agent's lock sees to that)."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made when something is kept. Raises: StorageDamaged."""
        self._folder = folder
        self._sums = self._load()
        self._private = self._public = b""

    def belong_to(self, authority: str) -> None:
        """Rounds, keys that were seen and roster are of one federation: with another one they begin anew, and are there
        again when the silo returns. The secrets of a sum under way go. What nobody knows the federation of counts as
        this one's. The silo's own key stays.

        Args:
            authority: `authority_id` of the federation's.
        """
        sums = self._sums
        if sums.authority == authority:
            return
        if not sums.authority:
            if sums != _Sums():
                self._write(replace(sums, authority=authority))
            else:
                self._sums = replace(sums, authority=authority)  # nothing to keep, no file to make
            return
        left = _Elsewhere(known=sums.known, roster=sums.roster, studies={
            study: replace(kept, session=None) for study, kept in sums.studies.items()})
        back = sums.elsewhere.get(authority, _Elsewhere(known={}, roster=Roster(), studies={}))
        others = {each: kept for each, kept in sums.elsewhere.items() if each != authority}
        self._write(_Sums(authority=authority, known=back.known, roster=back.roster, studies=back.studies,
                          elsewhere={**others, sums.authority: left}))

    def private_identity(self) -> bytes:
        """The private key that its peers know this silo by; made at the first call."""
        if not self._private:
            path = self._folder / "identity.key"
            sync_found(path)  # peers that have seen it must not see another one
            try:
                self._private = bytes.fromhex(path.read_text().strip())
            except FileNotFoundError:
                self._private = new_identity()
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_secret(path, self._private.hex().encode() + b"\n")
            except ValueError:
                raise StorageDamaged(f"{path}: is not a key.", remedy="Restore it from a backup, or remove it: peers"
                                     " that have pinned this silo must then pin its new key.") from None
        return self._private

    def identity(self) -> bytes:
        """The public key of it: said with every call for a task."""
        if not self._public:
            self._public = identity_of(self.private_identity())
        return self._public

    @property
    def last_study(self) -> str:
        """The study of the last secure sum; empty before the first."""
        return self._sums.last_study

    @property
    def known(self) -> Mapping[str, bytes]:
        """Silo -> the key that it was first seen with."""
        return self._sums.known

    @property
    def roster(self) -> Roster:
        """The roster of silos that this one was told last."""
        return self._sums.roster

    def take_roster(self, roster: Roster) -> None:
        """Keeps it."""
        if roster != self._sums.roster:
            self._write(replace(self._sums, roster=roster))

    def know(self, silos: Mapping[str, bytes]) -> None:
        """Notes silos that were not seen before."""
        new = {silo: key for silo, key in silos.items() if silo not in self._sums.known}
        if new:
            self._write(replace(self._sums, known={**self._sums.known, **new}))

    def forget(self, silo: str) -> bool:
        """Drops the key that a silo was first seen with; whether there was one."""
        known = {name: key for name, key in self._sums.known.items() if name != silo}
        if len(known) == len(self._sums.known):
            return False
        self._write(replace(self._sums, known=known))
        return True

    def session(self, study: str) -> SiloSession | None:
        """The sum of a study that is under way, with its secrets; None when there is none."""
        return self._sums.studies.get(study, _Study()).session

    def last_masked(self, study: str) -> tuple[int, str]:
        """(round, phase) in which a masked update of a study was last sent, or may have been; round 0 for none."""
        kept = self._sums.studies.get(study, _Study())
        return kept.masked_round, kept.masked_phases[-1] if kept.masked_phases else ""

    def has_masked(self, study: str, round: int, phase: str) -> bool:
        """Whether a masked update of that phase was sent, or of a later round."""
        kept = self._sums.studies.get(study, _Study())
        return round < kept.masked_round or (round == kept.masked_round and phase in kept.masked_phases)

    def keep(self, study: str, session: SiloSession, *, masks: bool = False) -> None:
        """Makes the state of a sum durable; the one before goes.

        Args:
            masks: whether its masked update is about to be made.
        """
        before = self._sums.studies.get(study, _Study())
        after = replace(before, session=session)
        if masks and not self.has_masked(study, session.total.round, session.total.phase):
            phases = before.masked_phases if session.total.round == before.masked_round else ()
            after = replace(after, masked_round=session.total.round, masked_phases=(*phases, session.total.phase))
        if after != before:
            self._write(replace(self._sums, last_study=study, studies={**self._sums.studies, study: after}))

    def _load(self) -> _Sums:
        path = self._folder / "sums.json"
        sync_found(path)  # a masked update that is sent upon it must not be forgotten with it, and be masked twice
        try:
            content = json.loads(path.read_bytes())
            written = content.get("format") if isinstance(content, dict) else None
            if isinstance(written, int) and written > _FORMAT:
                raise StorageDamaged(f"{path}: written by a newer version (format {written}).",
                                     remedy="Upgrade semisilo on this machine.")
            return replace(from_dict(_Sums, content, where=str(path)), format=_FORMAT)
        except FileNotFoundError:
            return _Sums()
        except (ValueError, BadConfiguration) as error:
            # Not put aside: it says in which rounds this silo must not answer again.
            raise StorageDamaged(f"{path}: cannot be read: {error}", remedy="Restore it from a backup. Without it this"
                                 " silo could mask one update twice; remove it only where all studies are over."
                                 ) from None

    def _write(self, sums: _Sums) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(self._folder / "sums.json", canonical_json(sums).encode() + b"\n")
        self._sums = sums
