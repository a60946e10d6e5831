"""The silos of a federation: invitations, certificates, who has joined, is revoked or has left. Kept in the ledger."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from semisilo.common.config import canonical_json
from semisilo.common.errors import InvitationUsed, UnknownName, UnknownSilo, UsageError
from semisilo.common.methods.spec import MAX_COUNT
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.ledger.oversight.notices import NoticeKind, add_notice

__all__ = ["HeardMember", "Invitation", "LedgerRoster", "OpenInvitation", "SiloRow", "SiloStatus", "SimulatedMember",
           "certificate_ends", "open_invitations", "set_aside_text"]

_NOTES_AT_ONCE, _NOTE_SECONDS = 20, 300.0
"""So many events about a silo's being away in a row, then one in this time; the same of what it announces."""
_REVOKED = "silo revoked"
_SMALLEST_JUMP = 10
"""Images; fewer more or less are no news of a small silo."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """An invitation as the roster keeps it."""

    silo: str
    expires_unix: float
    used_key_fingerprint: bytes | None = None
    """`semisilo.common.identity.certificates.fingerprint` of the key that used it; None while it is open."""
    certificate_der: bytes | None = field(default=None, repr=False)
    """What was issued for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloStatus:
    """What every RPC asks of a silo."""

    revoked: bool
    left_unix: float | None = None
    """When it left on its own wish; None while it is a member."""
    set_aside: str | None = None
    """Why the operator leaves it out, perhaps ''; None while it takes part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloRow:
    """One silo as the operator sees it."""

    name: str
    enrolled_unix: float
    revoked_unix: float | None
    joined_unix: float | None
    seen_unix: float | None
    version: str
    methods: tuple[str, ...]
    labelled_count: int
    unlabelled_count: int
    memory_study: str
    memory_round: int
    certificate_not_after_unix: float
    """When the last of its certificates ends that is not revoked; 0 where there is none."""
    left_unix: float | None = None
    """When it left on its own wish; None while it is a member."""
    away_reason: str = ""
    """Why it takes no task by its own policy, for example "outside working hours"; empty when it takes tasks."""
    away_until_unix: float = 0.0
    silent_unix: float | None = None
    """When it was last heard, while it is silent: it is not asked until it calls again. None: it is not silent."""
    set_aside_unix: float | None = None
    """Since when the operator leaves it out; None while it takes part."""
    set_aside_reason: str = ""

    def is_away(self, now_unix: float) -> bool:
        """Whether the silo takes no task at the moment, by its own policy."""
        return bool(self.away_reason) and now_unix < self.away_until_unix


@dataclass(frozen=True, kw_only=True, slots=True)
class HeardMember:
    """When a member was heard, as far as the ledger knows."""

    name: str
    seen_unix: float
    """When it last asked for a task."""
    silent_unix: float | None
    """See `SiloRow.silent_unix`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedMember:
    """A silo of a simulation, as the roster keeps it."""

    name: str
    labelled_count: int
    unlabelled_count: int


class LedgerRoster:
    """Implements `semisilo.coordinator.federation.enrollment.Roster` on the ledger, and keeps what silos say of
    themselves."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._statuses: dict[str, SiloStatus | None] = {}
        self._accepted: dict[tuple[str, int], bool] = {}
        self._aside: dict[str, str] | None = None
        self._excluded: dict[str, str] | None = None
        self._statuses_of = (-1, -1)
        self._notes: dict[str, tuple[float, float]] = {}
        """Silo -> (notes about its being away that are held against it, when that was); "<silo> jumps" -> those about
        what it announces, for no silo has a blank in its name."""

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that changes whether somebody is served."""
        try:
            with self._ledger.transaction() as db:
                yield db
        finally:
            self._ledger.roster_changes += 1

    def add_invitation(self, *, silo: str, token_hash: bytes, expires_unix: float) -> None:
        """Records an invitation; an open one of the same silo no longer works."""
        with self._ledger.transaction() as db:
            db.execute("DELETE FROM invitation WHERE silo = ? AND used_unix IS NULL", (silo,))
            db.execute("INSERT INTO invitation (token_hash, silo, created_unix, expires_unix) VALUES (?, ?, ?, ?)",
                       (token_hash, silo, time.time(), expires_unix))
            self._ledger.event("silo_invited", silo=silo, expires_unix=expires_unix)

    def invitation(self, token_hash: bytes) -> Invitation | None:
        """The invitation of a token, None when there is none."""
        rows = self._ledger.query("SELECT * FROM invitation WHERE token_hash = ?", token_hash)
        if not rows:
            return None
        row = rows[0]
        return Invitation(silo=row["silo"], expires_unix=row["expires_unix"],
                          used_key_fingerprint=row["key_fingerprint"], certificate_der=row["certificate_der"])

    def use_invitation(self, token_hash: bytes, *, key_fingerprint: bytes, certificate_der: bytes, serial: int,
                       not_after_unix: float) -> None:
        """Uses a token once: marks it, records the certificate, and lets the silo into the roster, un-revoked.

        Earlier certificates of the silo stop working: an invitation is how a lost or stolen key is replaced.
        Raises: InvitationUsed when another call was first.
        """
        with self._changing() as db:
            now = time.time()
            changed = db.execute("UPDATE invitation SET used_unix = ?, key_fingerprint = ?, certificate_der = ?"
                                 " WHERE token_hash = ? AND used_unix IS NULL",
                                 (now, key_fingerprint, certificate_der, token_hash)).rowcount
            if changed != 1:
                raise InvitationUsed("This invitation has been used already.",
                                     remedy="Ask the coordinator's operator for a new one.")
            silo = db.execute("SELECT silo FROM invitation WHERE token_hash = ?", (token_hash,)).fetchone()["silo"]
            db.execute("INSERT INTO silo (name, enrolled_unix) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET"
                       " enrolled_unix = excluded.enrolled_unix, revoked_unix = NULL, left_unix = NULL,"
                       " away_reason = '', away_until_unix = 0, silent_unix = NULL", (silo, now))
            db.execute("UPDATE certificate SET revoked_unix = ? WHERE silo = ? AND revoked_unix IS NULL", (now, silo))
            self._record_certificate(silo, serial, not_after_unix)
            self._ledger.event("silo_enrolled", silo=silo, serial=str(serial), not_after_unix=not_after_unix)

    def add_certificate(self, *, silo: str, serial: int, not_after_unix: float) -> None:
        """Records a renewed certificate; the one before stays valid until it expires."""
        with self._ledger.transaction():
            self._record_certificate(silo, serial, not_after_unix)
            self._ledger.event("certificate_renewed", silo=silo, serial=str(serial), not_after_unix=not_after_unix)

    def _record_certificate(self, silo: str, serial: int, not_after_unix: float) -> None:
        with self._changing() as db:
            db.execute("INSERT INTO certificate (serial, silo, issued_unix, not_after_unix) VALUES (?, ?, ?, ?)",
                       (str(serial), silo, time.time(), not_after_unix))

    def silo_status(self, silo: str) -> SiloStatus | None:
        """Whether a silo is revoked, has left or is set aside; None when the roster has no such silo."""
        self._forget_old()
        if silo not in self._statuses:
            self._statuses[silo] = self._read_status(silo)
        return self._statuses[silo]

    def accepts(self, silo: str, serial: int) -> bool:
        """Whether a certificate was issued to a silo and is neither revoked nor replaced by a later invitation; its
        dates are not looked at."""
        self._forget_old()
        if (silo, serial) not in self._accepted:
            self._accepted[silo, serial] = bool(self._ledger.query(  # by the primary key: a silo may have very many
                "SELECT 1 FROM certificate WHERE serial = ? AND silo = ? AND revoked_unix IS NULL", str(serial), silo))
        return self._accepted[silo, serial]

    def standing(self, silo: str, serial: int) -> tuple[SiloStatus | None, bool]:
        """`silo_status` and `accepts` of one moment: every call asks for both, and a look for what has changed costs
        more than either."""
        known, accepted = self._statuses, self._accepted
        if self.version() != self._statuses_of or silo not in known or (silo, serial) not in accepted:
            return self.silo_status(silo), self.accepts(silo, serial)
        return known[silo], accepted[silo, serial]

    def _forget_old(self) -> None:
        """Answers are asked for at every call and twice a second during each: they are kept until somebody changes the
        roster."""
        version = self.version()
        if version != self._statuses_of:
            self._statuses, self._accepted, self._statuses_of = {}, {}, version
            self._aside = self._excluded = None

    def version(self) -> tuple[int, int]:
        """Another one when the roster may have changed."""
        return self._ledger.data_version(), self._ledger.roster_changes

    def _read_status(self, silo: str) -> SiloStatus | None:
        rows = self._ledger.query("SELECT revoked_unix, left_unix, set_aside_unix, set_aside_reason FROM silo"
                                  " WHERE name = ?", silo)
        if not rows:
            return None
        return SiloStatus(revoked=rows[0]["revoked_unix"] is not None, left_unix=rows[0]["left_unix"],
                          set_aside=None if rows[0]["set_aside_unix"] is None else rows[0]["set_aside_reason"])

    def admit(self, silos: Sequence[SimulatedMember], *, version: str, methods: tuple[str, ...]) -> None:
        """Lets silos of a simulation in, in one transaction: members at once, without certificates, so that nobody may
        call for them over the network. Those who are in already stay so; what they say of themselves is brought up to
        date.

        Args:
            version, methods: what each would say of itself.
        """
        now, permitted = time.time(), canonical_json(sorted(methods))
        with self._changing() as db:
            before, = db.execute("SELECT count(*) FROM silo WHERE joined_unix IS NOT NULL").fetchone()
            db.executemany(
                "INSERT INTO silo (name, enrolled_unix, joined_unix, seen_unix, version, methods_json, labelled_count,"
                " unlabelled_count) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                " joined_unix = coalesce(joined_unix, excluded.joined_unix), seen_unix = excluded.seen_unix,"
                " version = excluded.version, methods_json = excluded.methods_json,"
                " labelled_count = excluded.labelled_count, unlabelled_count = excluded.unlabelled_count",
                [(each.name, now, now, now, version, permitted, each.labelled_count, each.unlabelled_count)
                 for each in silos])
            after, = db.execute("SELECT count(*) FROM silo WHERE joined_unix IS NOT NULL").fetchone()
            if after > before:
                self._ledger.event("silos_simulated", number=after - before, version=version)

    def check_known(self, silo: str) -> None:
        """Raises: UnknownName for one that is neither in the roster nor has an invitation that nobody has used."""
        if not self._ledger.query("SELECT 1 FROM invitation WHERE silo = ? AND used_unix IS NULL", silo):
            self._row(silo)

    def revoke(self, silo: str) -> None:
        """Ends a silo's membership: its certificates, its open invitation and its open tasks.

        Raises: UnknownName, with the names there are.
        """
        from semisilo.coordinator.ledger.secure_sums.roster import remove_identity  # late: only here

        with self._changing() as db:
            withdrawn = db.execute("DELETE FROM invitation WHERE silo = ? AND used_unix IS NULL", (silo,)).rowcount
            if self.silo_status(silo) is None and withdrawn:
                self._ledger.event("invitation_withdrawn", silo=silo)
                return
            if self.silo_status(silo) is None:
                names = ", ".join(row.name for row in self.silos()) or "none yet"
                raise UnknownName(f"There is no silo '{silo}' in this federation.", remedy=f"Silos: {names}.")
            now = time.time()
            db.execute("UPDATE silo SET revoked_unix = coalesce(revoked_unix, ?) WHERE name = ?", (now, silo))
            db.execute("UPDATE certificate SET revoked_unix = ? WHERE silo = ? AND revoked_unix IS NULL", (now, silo))
            self._ledger.cancel_tasks(silo, reason=_REVOKED)
            remove_identity(self._ledger, silo, now_unix=now)
            self._ledger.event("silo_revoked", silo=silo)

    def leave(self, silo: str) -> float:
        """Ends a silo's membership on its own wish: its certificates and its open tasks. A repeat changes nothing.

        Returns: when it left first, Unix seconds. Raises: UnknownSilo.
        """
        from semisilo.coordinator.ledger.secure_sums.roster import remove_identity  # late: only here

        with self._changing() as db:
            status = self.silo_status(silo)
            if status is None:
                raise UnknownSilo(f"There is no silo '{silo}' in this federation.")
            if status.left_unix is not None:
                return status.left_unix
            now = time.time()
            db.execute("UPDATE silo SET left_unix = ?, joined_unix = NULL, away_reason = '', away_until_unix = 0,"
                       " silent_unix = NULL WHERE name = ?", (now, silo))
            db.execute("UPDATE certificate SET revoked_unix = ? WHERE silo = ? AND revoked_unix IS NULL", (now, silo))
            self._ledger.cancel_tasks(silo, reason="the silo has left the federation")
            remove_identity(self._ledger, silo, now_unix=now)
            self._ledger.event("silo_left", silo=silo)
            return now

    def set_aside(self, silo: str, *, reason: str) -> None:
        """Leaves a silo out until `take_back`: it keeps its certificate and may call, but is asked nothing. Its open
        tasks are closed. One that is revoked or has left is asked nothing as it is, but a stated quorum goes on
        counting it until then.

        Raises: UnknownName; UsageError when it is set aside already.
        """
        with self._changing() as db:
            row = self._row(silo)
            if row["set_aside_unix"] is not None:
                raise UsageError(f"Silo '{silo}' is set aside already.",
                                 remedy=f"Let it take part again: coordinator take-back {silo}.")
            db.execute("UPDATE silo SET set_aside_unix = ?, set_aside_reason = ? WHERE name = ?",
                       (time.time(), reason, silo))
            self._ledger.cancel_tasks(silo, reason=set_aside_text(reason))
            self._ledger.event("silo_set_aside", silo=silo, reason=reason)

    def take_back(self, silo: str) -> None:
        """Lets a silo take part again that was set aside.

        Raises: UnknownName; UsageError when it is not set aside.
        """
        with self._changing() as db:
            if self._row(silo)["set_aside_unix"] is None:
                raise UsageError(f"Silo '{silo}' is not set aside.", remedy="See: coordinator status.")
            db.execute("UPDATE silo SET set_aside_unix = NULL, set_aside_reason = '' WHERE name = ?", (silo,))
            self._ledger.event("silo_taken_back", silo=silo)

    def aside(self) -> Mapping[str, str]:
        """Silos that are set aside -> why. Kept until somebody changes the roster, as is `excluded`: the engine asks
        whenever a silo has called."""
        self._forget_old()
        if self._aside is None:
            self._aside = {row["name"]: row["set_aside_reason"] for row in self._ledger.query(
                "SELECT name, set_aside_reason FROM silo WHERE set_aside_unix IS NOT NULL")}
        return self._aside

    def excluded(self) -> Mapping[str, str]:
        """Silos that the operator has revoked or set aside -> what their tasks say of that; none that has left by
        itself, for what it has sent before is good."""
        self._forget_old()
        if self._excluded is None:
            self._excluded = {
                row["name"]: _REVOKED if row["revoked_unix"] is not None else set_aside_text(row["set_aside_reason"])
                for row in self._ledger.query("SELECT name, revoked_unix, set_aside_reason FROM silo"
                                              " WHERE revoked_unix IS NOT NULL OR set_aside_unix IS NOT NULL")}
        return self._excluded

    def count_enrolled(self) -> int:
        """Silos that may call: neither revoked nor gone by themselves, whether they have joined or not."""
        return int(self._ledger.query("SELECT count(*) FROM silo WHERE revoked_unix IS NULL"
                                      " AND left_unix IS NULL")[0][0])

    def count_aside(self) -> int:
        """Silos that are set aside and would be members, or have been: leaving the federation beyond that does not put
        them back into a stated quorum."""
        return int(self._ledger.query("SELECT count(*) FROM silo WHERE set_aside_unix IS NOT NULL"
                                      " AND (joined_unix IS NOT NULL OR left_unix IS NOT NULL)")[0][0])

    def gone(self) -> tuple[str, ...]:
        """Silos that are asked nothing any more: set aside, revoked, or gone by themselves; by name."""
        return tuple(row["name"] for row in self._ledger.query(
            "SELECT name FROM silo WHERE set_aside_unix IS NOT NULL OR revoked_unix IS NOT NULL"
            " OR left_unix IS NOT NULL ORDER BY name"))

    def _row(self, silo: str) -> sqlite3.Row:
        rows = self._ledger.query("SELECT * FROM silo WHERE name = ?", silo)
        if not rows:
            names = ", ".join(row.name for row in self.silos()) or "none yet"
            raise UnknownName(f"There is no silo '{silo}' in this federation.", remedy=f"Silos: {names}.")
        return rows[0]

    def announced(self, silo: str) -> int:
        """Images with and without a label that a silo last said to have; no more than anything may count, for ledgers
        hold what silos could say before that was refused."""
        return min(MAX_COUNT, sum(self._announced(silo)))

    def announced_labelled(self, silo: str) -> int:
        """Images with a label among those that a silo last said to have."""
        return min(MAX_COUNT, self._announced(silo)[0])

    def announced_by(self, silos: Collection[str]) -> dict[str, int]:
        """`announced` of these silos, in one look."""
        return {row["name"]: min(MAX_COUNT, int(row["labelled_count"]) + int(row["unlabelled_count"]))
                for row in self._ledger.query("SELECT name, labelled_count, unlabelled_count FROM silo")
                if row["name"] in silos}

    def announced_at_least(self, silo: str) -> int:
        """Images that an update of a silo is from at least: a method learns from those with a label, from those
        without, or from both."""
        return min(MAX_COUNT, min((count for count in self._announced(silo) if count > 0), default=0))

    def _announced(self, silo: str) -> tuple[int, int]:
        row = self._row(silo)
        return int(row["labelled_count"]), int(row["unlabelled_count"])

    def has_issued(self, silo: str, serial: int) -> bool:
        """Whether a certificate was ever issued to a silo, whatever became of it."""
        return bool(self._ledger.query("SELECT 1 FROM certificate WHERE silo = ? AND serial = ?", silo, str(serial)))

    def away(self, silo: str, *, reason: str, until_unix: float) -> None:
        """Notes that a silo takes no task by its own policy, or with an empty reason that it does again."""
        with self._ledger.transaction(lasting=False) as db:
            known = db.execute("SELECT away_reason, away_until_unix FROM silo WHERE name = ?", (silo,)).fetchone()
            if known is None or (known["away_reason"], known["away_until_unix"]) == (reason, until_unix):
                return
            db.execute("UPDATE silo SET away_reason = ?, away_until_unix = ? WHERE name = ?",
                       (reason, until_unix, silo))
            moved = reason != known["away_reason"] or until_unix > known["away_until_unix"] + 60
            # Events stay for ever, and a silo may call at any rate.
            if not moved or (notes := self._recent_notes(silo)) > _NOTES_AT_ONCE - 1:
                return
            self._notes[silo] = notes + 1, time.monotonic()
            if reason:
                self._ledger.event("silo_away", silo=silo, reason=reason, until_unix=until_unix)
            else:
                self._ledger.event("silo_back", silo=silo)

    def _recent_notes(self, silo: str) -> float:
        """Events about a silo's being away that are held against it; one is forgiven every `_NOTE_SECONDS`."""
        count, then = self._notes.get(silo, (0.0, 0.0))
        return max(0.0, count - (time.monotonic() - then) / _NOTE_SECONDS)

    def open_invitations(self, now_unix: float) -> int:
        """How many invitations can still be used."""
        return int(self._ledger.query("SELECT count(*) AS n FROM invitation WHERE used_unix IS NULL"
                                      " AND expires_unix > ?", now_unix)[0]["n"])

    def withdraw_invitations(self, now_unix: float) -> int:
        """Removes all invitations that can still be used; returns how many there were."""
        with self._ledger.transaction() as db:
            return db.execute("DELETE FROM invitation WHERE used_unix IS NULL AND expires_unix > ?",
                              (now_unix,)).rowcount

    def joined(self, silo: str, *, version: str, methods: tuple[str, ...], labelled_count: int, unlabelled_count: int,
               memory_study: str, memory_round: int, now_unix: float | None = None) -> None:
        """Notes what a silo says of itself in AwaitTask. The first time makes it part of the roster to sample from."""
        now = time.time() if now_unix is None else now_unix
        with self._ledger.transaction(lasting=False) as db:
            known = db.execute("SELECT joined_unix, labelled_count, unlabelled_count FROM silo WHERE name = ?",
                               (silo,)).fetchone()
            first = known["joined_unix"] is None
            if not first:
                self._note_jump(silo, before=known["labelled_count"] + known["unlabelled_count"],
                                now=labelled_count + unlabelled_count)
            db.execute("UPDATE silo SET joined_unix = coalesce(joined_unix, ?), seen_unix = ?, version = ?,"
                       " methods_json = ?, labelled_count = ?, unlabelled_count = ?, memory_study = ?,"
                       " memory_round = ? WHERE name = ?",
                       (now, now, version, canonical_json(sorted(methods)), labelled_count,
                        unlabelled_count, memory_study, memory_round, silo))
            if first:
                self._ledger.event("silo_joined", silo=silo, version=version, labelled_count=labelled_count,
                                   unlabelled_count=unlabelled_count)

    def _note_jump(self, silo: str, *, before: int, now: int) -> None:
        """Tells the operator when a silo says that it has twice as many images as before, or half as many: the size of
        its next updates may weigh so."""
        less, more = sorted((before, now))
        if before == 0 or more < 2 * less or more - less < _SMALLEST_JUMP:
            return
        if (notes := self._recent_notes(f"{silo} jumps")) > _NOTES_AT_ONCE - 1:
            return
        self._notes[f"{silo} jumps"] = notes + 1, time.monotonic()
        add_notice(self._ledger, NoticeKind.COUNT_JUMP, silo=silo,
                   text=f"it announces {now} images, and announced {before} before")

    def silos(self) -> list[SiloRow]:
        """All silos that have ever enrolled, by name."""
        rows = self._ledger.query(
            "SELECT silo.*, coalesce((SELECT max(not_after_unix) FROM certificate WHERE silo = name"
            " AND certificate.revoked_unix IS NULL), 0) AS not_after"
            " FROM silo ORDER BY name")
        return [SiloRow(name=row["name"], enrolled_unix=row["enrolled_unix"], revoked_unix=row["revoked_unix"],
                        joined_unix=row["joined_unix"], seen_unix=row["seen_unix"], version=row["version"],
                        methods=tuple(json.loads(row["methods_json"])), labelled_count=row["labelled_count"],
                        unlabelled_count=row["unlabelled_count"], memory_study=row["memory_study"],
                        memory_round=row["memory_round"], certificate_not_after_unix=row["not_after"],
                        left_unix=row["left_unix"], away_reason=row["away_reason"],
                        away_until_unix=row["away_until_unix"], silent_unix=row["silent_unix"],
                        set_aside_unix=row["set_aside_unix"], set_aside_reason=row["set_aside_reason"])
                for row in rows]

    def members(self) -> list[str]:
        """The roster to sample from: joined, neither revoked, gone nor set aside, in byte order of names."""
        return [row["name"] for row in self._ledger.query(  # SQLite compares text byte by byte
            "SELECT name FROM silo WHERE joined_unix IS NOT NULL AND revoked_unix IS NULL AND left_unix IS NULL"
            " AND set_aside_unix IS NULL ORDER BY name")]

    def count_members(self) -> int:
        """How many `members` there are."""
        return int(self._ledger.query(
            "SELECT count(*) FROM silo WHERE joined_unix IS NOT NULL AND revoked_unix IS NULL AND left_unix IS NULL"
            " AND set_aside_unix IS NULL")[0][0])

    def members_permitting(self, method: str) -> list[str]:
        """Members whose own policy permits a method, as they say themselves; who lists none has not said."""
        able = {row["name"] for row in self._ledger.query(
            "SELECT name FROM silo WHERE methods_json = '[]' OR EXISTS (SELECT 1 FROM json_each(methods_json)"
            " WHERE value = ?)", method)}
        return [silo for silo in self.members() if silo in able]

    def back_at(self, silo: str, now_unix: float) -> float:
        """When a silo that takes no task at the moment by its own policy expects to be back; 0 when it takes tasks."""
        rows = self._ledger.query("SELECT away_until_unix FROM silo WHERE name = ? AND away_reason <> ''"
                                  " AND away_until_unix > ?", silo, now_unix)
        return float(rows[0]["away_until_unix"]) if rows else 0.0

    def away_until(self, now_unix: float) -> dict[str, float]:
        """Silos that take no task at the moment by their own policy -> when they expect to be back."""
        rows = self._ledger.query("SELECT name, away_until_unix FROM silo WHERE away_reason <> ''"
                                  " AND away_until_unix > ?", now_unix)
        return {row["name"]: row["away_until_unix"] for row in rows}

    # Silent silos -----------------------------------------------------------------------------------------------------

    def members_heard(self) -> list[HeardMember]:
        """When each member was heard."""
        return [HeardMember(name=row["name"], seen_unix=row["seen_unix"] or 0.0, silent_unix=row["silent_unix"])
                for row in self._ledger.query(
                    "SELECT name, seen_unix, silent_unix FROM silo WHERE joined_unix IS NOT NULL AND revoked_unix IS"
                    " NULL AND left_unix IS NULL AND set_aside_unix IS NULL ORDER BY name")]

    def silent(self, silo: str, *, heard_unix: float) -> None:
        """Notes that nothing is heard of a silo any more: it is not asked until it calls again.

        Args:
            heard_unix: when it was last heard.
        """
        with self._ledger.transaction(lasting=False) as db:
            db.execute("UPDATE silo SET silent_unix = ? WHERE name = ?", (heard_unix, silo))
            self._ledger.event("silo_silent", silo=silo, heard_unix=heard_unix)

    def heard(self, silo: str) -> None:
        """Notes that a silent silo is heard again."""
        with self._ledger.transaction(lasting=False) as db:
            db.execute("UPDATE silo SET silent_unix = NULL WHERE name = ?", (silo,))
            self._ledger.event("silo_heard", silo=silo)


def set_aside_text(reason: str) -> str:
    """What a silo hears that is set aside, and what its tasks say that were open then."""
    return f"set aside at the coordinator{f': {reason}' if reason else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenInvitation:
    """An invitation that can still be used."""

    silo: str
    expires_unix: float


def open_invitations(ledger: Ledger, now_unix: float) -> tuple[OpenInvitation, ...]:
    """Invitations that can still be used, by silo."""
    rows = ledger.query("SELECT silo, expires_unix FROM invitation WHERE used_unix IS NULL AND expires_unix > ?"
                        " ORDER BY silo", now_unix)
    return tuple(OpenInvitation(silo=row["silo"], expires_unix=row["expires_unix"]) for row in rows)


def certificate_ends(ledger: Ledger) -> dict[str, float]:
    """Silo -> Unix seconds at which the last of its certificates ends that is not revoked."""
    return {row["silo"]: row["unix"] for row in ledger.query(
        "SELECT silo, max(not_after_unix) AS unix FROM certificate WHERE revoked_unix IS NULL GROUP BY silo")}
