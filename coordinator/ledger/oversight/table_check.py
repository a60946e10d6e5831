"""Whether the tables say what the audit trail says: studies, rounds, answers, evaluations, cards, silos, certificates.

They are made again from the events alone; a row that somebody has altered, added or removed differs from that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from semisilo.common.audit.chain import ChainedEvent, ChainWalk
from semisilo.common.config import canonical_json
from semisilo.common.methods.study_card import digest_of
from semisilo.coordinator.ledger.ledger import Ledger, digest_of_column
from semisilo.coordinator.ledger.states import RoundState, StudyState, TaskState
from semisilo.coordinator.ledger.tasks import counts_of_evaluation

__all__ = ["compare_tables"]

Key = TypeVar("Key")
_Model = tuple[str, str, int, bool]
"""(study, silo, round, whether it is the model of labels alone): of what a silo has evaluated."""
_LETTERS = 80
_UNKNOWN = None
"""What events of earlier versions do not tell."""
_STUDY_EVENTS = {f"study_{state}": str(state) for state in StudyState}
_ROUND_EVENTS = {f"round_{state}": str(state) for state in RoundState}
_FACTS = ("frozen", "numerics", "baseline", "paired")


@dataclass(slots=True)
class _Round:
    sample: str
    state: str = str(RoundState.PREPARING)
    state_digest: str | None = _UNKNOWN
    metrics: str | None = _UNKNOWN
    confusion_digest: str | None = _UNKNOWN
    """SHA-256 of the row of table confusion, hex; empty where there is none."""
    may_be_gone: bool = False
    """Whether its study was queued again before it was committed: the row goes, or went on where an earlier version
    did that."""


@dataclass(frozen=True, slots=True)
class _Update:
    study: str
    round: int
    silo: str
    digest: str | None
    bytes: int | None
    example_count: int | None
    metrics: str | None


@dataclass(frozen=True, slots=True)
class _Evaluation:
    count: int | None
    correct: int | None
    classes_digest: str | None


@dataclass(slots=True)
class _Certificate:
    silo: str
    not_after_unix: float | None
    revoked: bool = False


@dataclass(slots=True)
class _Silo:
    revoked: bool = False
    left: bool = False
    set_aside: bool = False


@dataclass(slots=True)
class _Study:
    state: str
    config: str
    facts: dict[str, str] = field(default_factory=dict)
    measured_again: frozenset[str] = frozenset()
    """Facts that were told before the study was queued again and begins anew: the columns are empty until they are told
    again, or hold what they held where an earlier version did that."""


class _Told:
    """What the events tell, as the tables should hold it."""

    def __init__(self) -> None:
        self.studies: dict[str, _Study] = {}
        self.rounds: dict[tuple[str, int], _Round] = {}
        self.updates: dict[str, _Update] = {}
        self.abstentions: defaultdict[tuple[str, int, str], list[str | None]] = defaultdict(list)
        """(study, round, silo) -> the metrics of each, in order of phases."""
        self.evaluations: dict[_Model, _Evaluation] = {}
        self.evaluations_before: dict[_Model, _Evaluation] = {}
        """Of rounds that are gone: their rows are as well, or stayed where an earlier version went back."""
        self.cards: set[tuple[str, str]] = set()
        """(study, digest)."""
        self.signatures: dict[tuple[str, str, str], tuple[str, str]] = {}
        """(study, digest of the card, silo) -> (identity, signature), hex."""
        self.certificates: dict[str, _Certificate] = {}
        self.silos: dict[str, _Silo] = {}
        self.simulated = False
        """Whether silos were simulated, which enrol without an event of each."""

    def hear(self, event: ChainedEvent) -> None:
        """Takes the next event."""
        if event.study:
            self._of_study(event)
        else:
            self._of_silo(event)

    def _of_study(self, event: ChainedEvent) -> None:
        kind, study, detail = event.kind, event.study, event.detail
        if "config" in detail:  # it is queued, or queued again
            known = self.studies.get(study)
            config = canonical_json(detail["config"])
            facts = known.facts if known is not None else {}
            begun = (row := self.rounds.get((study, 0))) is not None and row.state == RoundState.COMPLETED
            self.studies[study] = _Study(str(StudyState.QUEUED), config, facts,
                                         frozenset() if begun else frozenset(facts))
            if (first := self.rounds.get((study, 0))) is not None and first.state != RoundState.COMPLETED:
                first.may_be_gone = True
        elif kind in _STUDY_EVENTS:
            self.studies[study].state = _STUDY_EVENTS[kind]
        elif kind.removeprefix("study_") in _FACTS:
            name, row_of = kind.removeprefix("study_"), self.studies[study]
            row_of.facts[name] = canonical_json(detail[name])
            row_of.measured_again -= {name}
        elif kind == "study_rolled_back":
            self._go_back(study, _number(detail["round"]))
        elif kind == "round_opened":
            self.rounds[study, _number(detail["round"])] = _Round(canonical_json(detail["sample"]))
        elif kind in _ROUND_EVENTS:
            row = self.rounds[study, _number(detail["round"])]
            row.state, row.state_digest = _ROUND_EVENTS[kind], str(detail["state_digest"]) or _UNKNOWN
            row.may_be_gone = False
            if row.state == RoundState.COMPLETED:
                row.metrics = canonical_json(detail["metrics"])
                row.confusion_digest = _text(detail.get("confusion_digest"))
        elif kind == "task_updated":
            self.updates[str(detail["update_id"])] = _Update(
                study, _number(detail["round"]), str(detail["silo"]), _text(detail.get("digest")),
                _count(detail.get("bytes")), _count(detail.get("example_count")), _json(detail.get("metrics")))
        elif kind == "task_abstained":
            self.abstentions[study, _number(detail["round"]), str(detail["silo"])].append(_json(detail.get("metrics")))
        elif kind == "site_evaluation":
            of = study, str(detail["silo"]), _number(detail["round"]), bool(detail.get("labels_alone", False))
            self.evaluations_before.pop(of, None)
            self.evaluations[of] = _Evaluation(_count(detail.get("count")), _count(detail.get("correct")),
                                               _text(detail.get("classes_digest")))
        elif kind == "study_card":
            self.cards.add((study, str(detail["digest"])))
        elif kind == "study_card_signed":
            self.signatures[study, str(detail["digest"]), str(detail["silo"])] = (
                str(detail["identity"]), str(detail["signature"]))

    def _go_back(self, study: str, to_round: int) -> None:
        self.studies[study].facts.pop("paired", None)
        self.rounds = {key: row for key, row in self.rounds.items() if key[0] != study or key[1] <= to_round}
        self.updates = {key: row for key, row in self.updates.items() if row.study != study or row.round <= to_round}
        for gone in [key for key in self.abstentions if key[0] == study and key[1] > to_round]:
            del self.abstentions[gone]
        for of in [of for of in self.evaluations if of[0] == study and of[2] > to_round]:
            self.evaluations_before[of] = self.evaluations.pop(of)

    def _of_silo(self, event: ChainedEvent) -> None:
        kind, detail = event.kind, event.detail
        name = str(detail.get("silo", ""))
        if kind == "silos_simulated":
            self.simulated = True
        elif kind in ("silo_enrolled", "certificate_renewed"):
            if kind == "silo_enrolled":
                silo = self._silo(name)
                silo.revoked = silo.left = False
                self._revoke(name)
            self.certificates[str(detail["serial"])] = _Certificate(name, _seconds(detail.get("not_after_unix")))
        elif kind == "silo_revoked":
            self._silo(name).revoked = True
            self._revoke(name)
        elif kind == "silo_left":
            self._silo(name).left = True
            self._revoke(name)
        elif kind in ("silo_set_aside", "silo_taken_back"):
            self._silo(name).set_aside = kind == "silo_set_aside"

    def _silo(self, name: str) -> _Silo:
        """One that was simulated has enrolled without an event."""
        return self.silos.setdefault(name, _Silo())

    def _revoke(self, silo: str) -> None:
        for certificate in self.certificates.values():
            if certificate.silo == silo:
                certificate.revoked = True


def compare_tables(ledger: Ledger, walk: ChainWalk) -> list[str]:
    """Walks the chain to its end, and returns how the tables differ from it, one line each.

    Raises: StorageDamaged when the chain itself is broken.
    """
    told = _Told()
    # In one transaction: `serve` may write meanwhile.
    with ledger.transaction(lasting=False):
        ledger.walk_events(walk, look=told.hear)
        return [*_studies(ledger, told), *_rounds(ledger, told), *_updates(ledger, told), *_answers(ledger, told),
                *_evaluations(ledger, told), *_cards(ledger, told), *_certificates(ledger, told),
                *_silos(ledger, told)]


def _studies(ledger: Ledger, told: _Told) -> Iterator[str]:
    rows = {row["name"]: row for row in ledger.query("SELECT * FROM study")}
    yield from _missing("study {}", told.studies.keys(), rows.keys())
    for name, row in rows.items():
        want = told.studies.get(name)
        if want is None:
            continue
        yield from _differs(f"study {name}", "state", row["state"], want.state)
        yield from _differs(f"study {name}", "settings", row["config_json"], want.config)
        for fact in _FACTS:
            found, wanted = row[f"{fact}_json"], want.facts.get(fact)
            if found is None or wanted is None:
                if fact not in want.measured_again:
                    yield from _differs(f"study {name}", fact, found is not None, wanted is not None)
            else:
                yield from _differs(f"study {name}", fact, found, wanted)


def _rounds(ledger: Ledger, told: _Told) -> Iterator[str]:
    rows = {(row["study"], row["number"]): row for row in ledger.query(
        "SELECT study, number, state, sample_json, state_digest, metrics_json FROM round ORDER BY study, number")}
    confusions = {(row["study"], row["round"]): digest_of_column(row["counts_json"])
                  for row in ledger.query("SELECT * FROM confusion")}
    there = [key for key, row in told.rounds.items() if key in rows or not row.may_be_gone]
    yield from _missing("round {0[1]} of {0[0]}", there, rows.keys())
    for key, row in rows.items():
        want, what = told.rounds.get(key), f"round {key[1]} of {key[0]}"
        if want is None:
            continue
        yield from _differs(what, "state", row["state"], want.state)
        yield from _differs(what, "silos", row["sample_json"], want.sample)
        yield from _differs(what, "model", row["state_digest"], want.state_digest)
        yield from _differs(what, "metrics", row["metrics_json"], want.metrics)
        yield from _differs(what, "confusion", confusions.get(key, ""), want.confusion_digest)


def _updates(ledger: Ledger, told: _Told) -> Iterator[str]:
    rows = {row["update_id"]: row for row in ledger.query(
        "SELECT declared_update.*, task.study, task.round, task.silo FROM declared_update JOIN task USING (task_id)"
        " WHERE accepted_unix IS NOT NULL ORDER BY task.study, task.round, task.silo")}
    yield from _missing("update {}", told.updates.keys(), rows.keys())
    for key, row in rows.items():
        want, what = told.updates.get(key), f"the update of {row['silo']} in round {row['round']} of {row['study']}"
        if want is None:
            continue
        found = _Update(row["study"], row["round"], row["silo"], row["digest"], row["size_bytes"], row["example_count"],
                        row["metrics_json"])
        for name in ("study", "round", "silo", "digest", "bytes", "example_count", "metrics"):
            yield from _differs(what, name, getattr(found, name), getattr(want, name))


def _answers(ledger: Ledger, told: _Told) -> Iterator[str]:
    """What tasks hold of the numbers that silos have sent, which is what the pages show."""
    abstained: defaultdict[tuple[str, int, str], list[str]] = defaultdict(list)
    for row in ledger.query("SELECT study, round, phase, silo, state, update_id, metrics_json FROM task"
                            " WHERE state <> 'open' ORDER BY study, round, silo, phase"):
        key = row["study"], row["round"], row["silo"]
        what = f"the answer of {key[2]} in round {key[1]} of {key[0]}"
        if row["state"] == TaskState.ABSTAINED:
            abstained[key].append(row["metrics_json"])
        elif row["update_id"] is None:
            yield from _differs(what, "metrics", row["metrics_json"], "{}")
        elif (update := told.updates.get(row["update_id"])) is None:
            yield f"{what} names the update {_short(row['update_id'])}, which is not in the audit trail"
        else:
            yield from _differs(what, "update", key, (update.study, update.round, update.silo))
            yield from _differs(what, "metrics", row["metrics_json"], update.metrics)
    for key in sorted(abstained.keys() | told.abstentions.keys()):
        what, found, wanted = f"round {key[1]} of {key[0]}", abstained[key], told.abstentions[key]
        yield from _differs(what, f"number of abstentions of {key[2]}", len(found), len(wanted))
        for metrics, said in zip(found, wanted, strict=False):
            yield from _differs(what, f"abstention of {key[2]}", metrics, said)


def _evaluations(ledger: Ledger, told: _Told) -> Iterator[str]:
    rows: Mapping[_Model, str] = {
        (row["study"], row["silo"], row["round"], bool(row["labels_alone"])): row["classes_json"]
        for row in ledger.query("SELECT * FROM site_evaluation ORDER BY study, silo, round, labels_alone")}
    what = "the evaluation of {0[1]} of round {0[2]} of {0[0]}"
    yield from _missing(what, told.evaluations.keys(), [of for of in rows if of not in told.evaluations_before])
    for of, classes in rows.items():
        want = told.evaluations.get(of) or told.evaluations_before.get(of)
        if want is None:
            continue
        count, correct = counts_of_evaluation(classes)
        yield from _differs(what.format(of), "number of images", count, want.count)
        yield from _differs(what.format(of), "number of right ones", correct, want.correct)
        yield from _differs(what.format(of), "classes", digest_of_column(classes), want.classes_digest)


def _cards(ledger: Ledger, told: _Told) -> Iterator[str]:
    cards = {(row["study"], row["digest"]): row["card_json"] for row in ledger.query("SELECT * FROM study_card")}
    yield from _missing("card {0[1]} of {0[0]}", sorted(told.cards), cards.keys())
    for key, text in cards.items():
        yield from _differs(f"the card of {key[0]}", "digest", digest_of(text), key[1])
    signatures = {(row["study"], row["digest"], row["silo"]): (row["identity"].hex(), row["signature"].hex())
                  for row in ledger.query("SELECT * FROM card_signature ORDER BY study, silo")}
    what = "the signature of {0[2]} under the card of {0[0]}"
    yield from _missing(what, told.signatures.keys(), signatures.keys())
    for signed, found in signatures.items():
        if (wanted := told.signatures.get(signed)) is not None:
            yield from _differs(what.format(signed), "key", found[0], wanted[0])
            yield from _differs(what.format(signed), "bytes", found[1], wanted[1])


def _certificates(ledger: Ledger, told: _Told) -> Iterator[str]:
    rows = {row["serial"]: row for row in ledger.query("SELECT * FROM certificate ORDER BY silo, issued_unix")}
    yield from _missing("certificate {}", told.certificates.keys(), rows.keys())
    for serial, row in rows.items():
        want, what = told.certificates.get(serial), f"certificate {serial} of {row['silo']}"
        if want is None:
            continue
        yield from _differs(what, "silo", row["silo"], want.silo)
        yield from _differs(what, "end", row["not_after_unix"], want.not_after_unix)
        yield from _differs(what, "revocation", row["revoked_unix"] is not None, want.revoked)


def _silos(ledger: Ledger, told: _Told) -> Iterator[str]:
    rows = {row["name"]: row for row in ledger.query("SELECT * FROM silo ORDER BY name")}
    known = rows.keys() & told.silos.keys() if told.simulated else rows.keys()
    yield from _missing("silo {}", told.silos.keys(), known)
    for name, row in rows.items():
        want = told.silos.get(name)
        if want is None:
            continue
        for what, found, wanted in (("revocation", row["revoked_unix"], want.revoked),
                                    ("leaving", row["left_unix"], want.left),
                                    ("being set aside", row["set_aside_unix"], want.set_aside)):
            yield from _differs(f"silo {name}", what, found is not None, wanted)


def _missing(what: str, told: Collection[Key], rows: Collection[Key]) -> Iterator[str]:
    for key in told:
        if key not in rows:
            yield f"{what.format(key)} is in the audit trail and not in the ledger"
    for key in rows:
        if key not in told:
            yield f"{what.format(key)} is in the ledger and not in the audit trail"


def _differs(what: str, name: str, row: object, told: object) -> Iterator[str]:
    if told is not _UNKNOWN and row != told:
        yield f"{what}: its {name} is {_short(row)} in the ledger, and {_short(told)} in the audit trail"


def _short(value: object) -> str:
    text = {True: "there", False: "not there"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..."


# What a detail holds: the chain says that it is as it was written.


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _count(value: object) -> int | None:
    return None if value is None else _number(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _json(value: object) -> str | None:
    return None if value is None else canonical_json(value)


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
